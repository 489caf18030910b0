/* The generator: answers do not depend on how they were batched; log-probs are those of the model; ends and errors. */
#include "tests/unit/train_support.h"

#include "train/model/generate/generator.h"
#include "train/model/hf/hf.h"

#include <math.h>
#include <stdlib.h>

enum { ROOM = 64, PROMPTS = 5, EACH = 4, ANSWERS = PROMPTS * EACH };

typedef struct kept_answer {
    int64_t count, id, version;
    int32_t sample, ended, tokens[ROOM];
    float logprob[ROOM], kept[ROOM];
} kept_answer;

/* Answers by (request, sample), in whatever order they came. */
typedef struct basket {
    kept_answer answers[ANSWERS];
    int count, fail_at; /* the answer at which the callback fails; 0: none */
} basket;

static ravel_status keep(void *user, const train_answer *a, ravel_error *err) {
    basket *b = user;
    if (++b->count == b->fail_at) return ravel_error_set(err, RAVEL_E_CALLBACK, "enough");
    kept_answer *to = b->answers + a->request * EACH + a->sample % EACH;
    *to = (kept_answer){.count = a->count, .id = a->id, .version = a->version, .sample = a->sample, .ended = a->ended};
    memcpy(to->tokens, a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(to->logprob, a->logprob, (size_t)a->count * sizeof *a->logprob);
    memcpy(to->kept, a->kept_logprob, (size_t)a->count * sizeof *a->kept_logprob);
    return RAVEL_OK;
}

/* The golden model and a generator on its weights. */
typedef struct stage {
    rig r;
    golden g;
    train_generator *generator;
} stage;

static int32_t padded, likeliest; /* of the generators that are made: options padded and top */

static bool stage_open(stage *s, const char *set, int32_t threads, int64_t slots, int64_t prefill) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options options;
    train_generator_options go;
    train_model_options_default(&options);
    train_generator_options_default(&go);
    options.budget = 2 * ROOM;
    options.inference = 1;
    go.slots = slots;
    go.slot_tokens = ROOM;
    go.prefill = prefill;
    go.padded = padded;
    go.top = likeliest;
    *s = (stage){0};
    if (!golden_open(&s->g) || !rig_golden(&s->r, set, threads, &options)) return false;
    if (train_generator_create(s->r.kernels, s->r.device, &s->r.shape, &go, &s->generator, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    train_generator_set_weights(s->generator, train_model_weights(s->r.model), 7);
    return true;
}

static void stage_close(stage *s) {
    train_generator_free(s->generator);
    rig_close(&s->r);
    ravel_safetensors_free(s->g.file);
}

static const int32_t stops[] = {11, 200};

static train_sampling usual(void) {
    train_sampling s;
    train_sampling_default(&s);
    s.temperature = 0.8;
    s.top_p = 0.95;
    s.top_k = 50;
    s.max_tokens = 30;
    s.stop = stops;
    s.stops = 2;
    s.seed = 5;
    return s;
}

/* Prompts of 3, 9, 1, 20 and 33 tokens from the golden samples. */
static void make_requests(const stage *s, const train_sampling *sampling, train_request *requests) {
    static const int64_t counts[PROMPTS] = {3, 9, 1, 20, 33}, sources[PROMPTS] = {0, 2, 4, 6, 3};
    for (int i = 0; i < PROMPTS; i++)
        requests[i] = (train_request){
            .prompt = s->g.ids[sources[i]], .count = counts[i], .id = 100 + i, .samples = EACH, .sampling = sampling};
}

static bool generate(const char *set, int32_t threads, int64_t slots, int64_t prefill, basket *b) {
    stage s;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling = usual();
    train_request requests[PROMPTS];
    memset(b, 0, sizeof *b);
    if (!stage_open(&s, set, threads, slots, prefill)) return false;
    make_requests(&s, &sampling, requests);
    ravel_status status = train_generator_run(s.generator, requests, PROMPTS, keep, b, &err);
    if (status) check_fail(__FILE__, __LINE__, "%s: %s", set, err.message);
    train_generator_stats counts = train_generator_counts(s.generator);
    int64_t tokens = 0;
    for (int i = 0; i < ANSWERS; i++) tokens += b->answers[i].count;
    bool good = status == RAVEL_OK && EXPECT(b->count == ANSWERS) && EXPECT(counts.tokens == tokens) &&
                EXPECT(counts.answers == ANSWERS) && EXPECT(counts.slot_steps <= counts.steps * slots);
    stage_close(&s);
    return good;
}

static const char *const sets[] = {"cpu-avx512", "cpu-avx2", "cpu-base"};

/* The same bits, tokens and log-probs, for one slot or many, prompts together or alone, one thread or three. */
TEST(train_generator_batching_changes_nothing) {
    static basket alone, other;
    for (int i = 0; i < 3; i++) {
        if (!rig_can(sets[i])) continue;
        CHECK(generate(sets[i], 1, 1, 0, &alone));
        static const int64_t slots[] = {3, 20, 7};
        for (int k = 0; k < 3; k++) {
            CHECK(generate(sets[i], k == 2 ? 3 : 1, slots[k], k == 1 ? 700 : 0, &other));
            CHECK(memcmp(alone.answers, other.answers, sizeof alone.answers) == 0);
        }
        padded = 1; /* rows of a slot that no sequence has */
        bool good = generate(sets[i], 1, 19, 0, &other);
        padded = 0;
        CHECK(good && memcmp(alone.answers, other.answers, sizeof alone.answers) == 0);
    }
}

/* ---- tensor parallel ------------------------------------------------------------------------------------ */

/* A generator whose layers several ranks share, and the answers of each of them. */
typedef struct shared_job {
    const golden *g;
    train_sampling sampling;
    int64_t slots;
    basket *baskets;                /* [ranks] */
    int failing;                    /* the rank whose callback fails; -1: none */
    float (*scores)[PROMPTS][ROOM]; /* [ranks] log-probs of the prompts; NULL: not wanted */
} shared_job;

static ravel_status shared_generator(ravel_comm *comm, void *user, ravel_error *err) {
    const shared_job *j = user;
    int32_t rank = ravel_comm_rank(comm);
    stage s = {.g = *j->g};
    train_request requests[PROMPTS];
    train_device_options device = {.threads = 1};
    train_generator_options go;
    void *weights = NULL;
    size_t bytes = 0;
    train_generator_options_default(&go);
    go.slots = j->slots;
    go.slot_tokens = ROOM;
    go.tp = comm;
    memset(&j->baskets[rank], 0, sizeof j->baskets[rank]);
    if (rank == j->failing) j->baskets[rank].fail_at = 3;
    ravel_status status = train_config_read(GOLDEN, &s.r.shape, err);
    if (!status) status = train_kernels_find("cpu", &s.r.kernels, err);
    if (!status) status = s.r.kernels->open(&device, &s.r.device, err);
    if (!status) status = train_generator_create(s.r.kernels, s.r.device, &s.r.shape, &go, &s.generator, err);
    if (!status) {
        const train_params *params = train_generator_params(s.generator);
        bytes = (size_t)params->elements * sizeof(float);
        status = s.r.kernels->alloc(s.r.device, bytes, &weights, err);
        train_array array = {s.r.kernels, s.r.device, weights, RAVEL_F32, NULL};
        if (!status) status = train_tensors_load(params, &array, GOLDEN "/model.safetensors", err);
    }
    make_requests(&s, &j->sampling, requests);
    for (int i = 0; i < PROMPTS && j->scores; i++) requests[i].prompt_logprob = j->scores[rank][i];
    if (!status) train_generator_set_weights(s.generator, weights, 7);
    if (!status) status = train_generator_run(s.generator, requests, PROMPTS, keep, &j->baskets[rank], err);
    train_generator_free(s.generator);
    if (weights) s.r.kernels->release(s.r.device, weights, bytes);
    if (s.r.device) s.r.kernels->close(s.r.device);
    return status;
}

static int agreeing(const basket *a, const basket *b) {
    int agree = 0;
    for (int i = 0; i < ANSWERS; i++) {
        const kept_answer *x = &a->answers[i], *y = &b->answers[i];
        if (x->count != y->count || memcmp(x->tokens, y->tokens, (size_t)x->count * sizeof *x->tokens) != 0) continue;
        agree++;
        for (int64_t t = 0; t < x->count; t++)
            EXPECT(fabsf(x->logprob[t] - y->logprob[t]) < 2e-5f && fabsf(x->kept[t] - y->kept[t]) < 2e-5f);
    }
    return agree;
}

/* Ranks that share the layers draw the answers of one rank, sampled and greedy; all of them the same bits, for any number of
 * slots. With 4 ranks, pairs of them have the same key head. */
TEST(train_generator_tensor_ranks_draw_the_same_answers) {
    enum { MOST = 4 };
    static basket one, few[MOST], many[MOST];
    static float alone[1][PROMPTS][ROOM], shared[MOST][PROMPTS][ROOM];
    golden g;
    if (!golden_open(&g)) return;
    for (int greedy = 0; greedy < 2; greedy++) {
        shared_job j = {&g, usual(), 20, &one, -1, alone};
        ravel_error err = RAVEL_ERROR_INIT;
        if (greedy) j.sampling.temperature = 0;
        if (ravel_threads_run(1, NULL, shared_generator, &j, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
        for (int32_t ranks = 2; ranks <= MOST; ranks += 2) {
            j.slots = 3, j.baskets = few, j.scores = shared;
            ravel_status status = ravel_threads_run(ranks, NULL, shared_generator, &j, &err);
            j.slots = 20, j.baskets = many;
            if (!status) status = ravel_threads_run(ranks, NULL, shared_generator, &j, &err);
            if (status) check_fail(__FILE__, __LINE__, "%d ranks: %s", ranks, err.message);
            for (int32_t r = 0; r < ranks; r++) {
                CHECK(memcmp(few[r].answers, few[0].answers, sizeof few->answers) == 0);
                CHECK(memcmp(many[r].answers, few[0].answers, sizeof few->answers) == 0);
            }
            for (int32_t r = 0; r < ranks; r++)
                for (int i = 0; i < PROMPTS; i++)
                    for (int t = 0; t < ROOM; t++) CHECK(fabsf(shared[r][i][t] - alone[0][i][t]) < 2e-5f);
            CHECK(agreeing(&one, &few[0]) >= ANSWERS - 2); /* an edge sends an answer another way: rarely */
        }
    }
    ravel_safetensors_free(g.file);
}

TEST(train_generator_a_lost_tensor_rank_is_an_error) {
    static basket baskets[2];
    golden g;
    ravel_error err = RAVEL_ERROR_INIT;
    if (!golden_open(&g)) return;
    shared_job j = {&g, usual(), 3, baskets, 1, NULL};
    CHECK(ravel_threads_run(2, NULL, shared_generator, &j, &err) == RAVEL_E_CALLBACK);
    CHECK(baskets[0].count < ANSWERS);
    ravel_safetensors_free(g.file);
}

/* ---- answers -------------------------------------------------------------------------------------------- */

/* Different samples of a prompt differ; so do seeds and ids; the reference draws nearly the same answers. */
TEST(train_generator_samples_differ_and_sets_agree) {
    static basket fast, ref;
    CHECK(generate("cpu", 1, 6, 0, &fast) && generate("ref", 1, 20, 700, &ref));
    int same = 0, agree = 0;
    for (int i = 0; i < ANSWERS; i++)
        for (int j = 0; j < i; j++)
            same += fast.answers[i].count == fast.answers[j].count &&
                    memcmp(fast.answers[i].tokens, fast.answers[j].tokens,
                           (size_t)fast.answers[i].count * sizeof(int32_t)) == 0;
    CHECK(same <= 1);
    for (int i = 0; i < ANSWERS; i++) {
        const kept_answer *a = fast.answers + i, *b = ref.answers + i;
        if (a->count != b->count || memcmp(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens) != 0) continue;
        agree++;
        for (int64_t t = 0; t < a->count; t++)
            CHECK(fabsf(a->logprob[t] - b->logprob[t]) < 2e-5f && fabsf(a->kept[t] - b->kept[t]) < 2e-5f);
    }
    CHECK(agree >= ANSWERS - 2); /* a uniform on an edge sends an answer another way: rarely */
}

/* The model's log-probs of prompt and answer, at the sampling temperature, are those that were recorded. */
TEST(train_generator_logprobs_are_the_models) {
    static basket b;
    stage s;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling = usual();
    train_request requests[PROMPTS];
    CHECK(generate("cpu", 1, 5, 0, &b));
    CHECK(stage_open(&s, "cpu", 1, 1, 0));
    make_requests(&s, &sampling, requests);
    for (int i = 0; i < ANSWERS; i++) {
        const train_request *r = requests + i / EACH;
        const kept_answer *a = b.answers + i;
        int32_t tokens[ROOM], cu[2] = {0, (int32_t)(r->count + a->count)};
        float logprob[ROOM];
        memcpy(tokens, r->prompt, (size_t)r->count * sizeof *tokens);
        memcpy(tokens + r->count, a->tokens, (size_t)a->count * sizeof *tokens);
        train_batch batch = {.samples = 1, .tokens = tokens, .cu_seqlens = cu, .temperature = sampling.temperature};
        train_result result = {.logprob = logprob};
        CHECK_OK(train_model_score(s.r.model, &batch, &result, &err), &err);
        CHECK(a->count >= 1 && a->count <= 30 && a->version == 7 && a->id == r->id);
        for (int64_t t = 0; t < a->count; t++) {
            CHECK(fabsf(logprob[r->count + t] - a->logprob[t]) < 1e-5f);
            CHECK(a->kept[t] >= a->logprob[t] - 1e-6f && a->kept[t] <= 1e-6f);
            bool stop = a->tokens[t] == 11 || a->tokens[t] == 200;
            CHECK(stop == (a->ended && t == a->count - 1));
        }
        CHECK(a->ended || a->count == 30);
    }
    stage_close(&s);
}

/* Log-probs of prompts are the model's, on any set of kernels and with any number of slots; the answers
 * are those without them. (Kept pages: tests/serve/serve.py.) */
TEST(train_generator_logprobs_of_prompts_are_the_models) {
    enum { TOP = 3 };
    static const struct {
        const char *set;
        int64_t slots;
    } cases[] = {{"cpu", 5}, {"cpu", 1}, {"ref", 20}};
    static basket b, plain;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        stage s;
        ravel_error err = RAVEL_ERROR_INIT;
        train_sampling sampling = usual();
        train_request requests[PROMPTS];
        float scores[PROMPTS][ROOM];
        train_top best[PROMPTS][ROOM * TOP];
        sampling.max_tokens = 4;
        likeliest = TOP;
        CHECK(stage_open(&s, cases[c].set, 1, cases[c].slots, 0));
        likeliest = 0;
        make_requests(&s, &sampling, requests);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < PROMPTS && round; i++) {
                requests[i].prompt_logprob = scores[i];
                requests[i].prompt_top = i % 2 ? best[i] : NULL;
                requests[i].prompt_top_count = i % 2 ? TOP : 0;
            }
            basket *to = round ? &b : &plain;
            memset(to, 0, sizeof *to);
            CHECK_OK(train_generator_run(s.generator, requests, PROMPTS, keep, to, &err), &err);
        }
        CHECK(agreeing(&plain, &b) == ANSWERS);
        for (int i = 0; i < PROMPTS; i++) {
            const train_request *r = requests + i;
            float logprob[ROOM];
            int32_t cu[2] = {0, (int32_t)r->count};
            train_batch batch = {.samples = 1, .tokens = r->prompt, .cu_seqlens = cu};
            train_result result = {.logprob = logprob};
            CHECK_OK(train_model_score(s.r.model, &batch, &result, &err), &err);
            CHECK(scores[i][0] == 0);
            for (int64_t t = 1; t < r->count; t++) {
                CHECK(fabsf(scores[i][t] - logprob[t]) < 1e-5f);
                const train_top *at = best[i] + t * TOP;
                if (!r->prompt_top) continue;
                CHECK(at[0].logprob >= at[1].logprob && at[1].logprob >= at[2].logprob);
                CHECK(at[0].token == r->prompt[t] ? fabsf(at[0].logprob - logprob[t]) < 1e-5f
                                                  : at[0].logprob >= logprob[t] - 1e-5f);
            }
        }
        requests[0].prompt_top = best[0];
        requests[0].prompt_top_count = TOP + 1;
        CHECK_EQ(train_generator_begin(s.generator, requests, PROMPTS, &err), RAVEL_E_ARGUMENT);
        stage_close(&s);
    }
}

static int ends_at_five(void *user, const int32_t *tokens, int64_t count) {
    int64_t *asked = user;
    ++*asked;
    return count == 5 || tokens[count - 1] < 0;
}

/* A rule of the caller's ends answers, which are the beginnings of those without it. */
TEST(train_generator_answers_end_where_the_caller_says) {
    static basket whole, cut;
    stage s;
    int64_t asked = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling = usual();
    train_request requests[PROMPTS];
    sampling.ends = ends_at_five;
    sampling.user = &asked;
    CHECK(generate("cpu", 1, 5, 0, &whole) && stage_open(&s, "cpu", 1, 3, 0));
    make_requests(&s, &sampling, requests);
    CHECK_OK(train_generator_run(s.generator, requests, PROMPTS, keep, &cut, &err), &err);
    CHECK_EQ(cut.count, ANSWERS);
    int64_t stopped = 0, tokens = 0;
    for (int i = 0; i < ANSWERS; i++) {
        const kept_answer *a = cut.answers + i, *b = whole.answers + i;
        CHECK_EQ(a->count, b->count < 5 ? b->count : 5);
        CHECK_EQ(a->ended, b->count < 5 || (b->count == 5 && b->ended) ? 1 : 2);
        CHECK(memcmp(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens) == 0);
        CHECK(memcmp(a->logprob, b->logprob, (size_t)a->count * sizeof *a->logprob) == 0);
        stopped += a->ended == 1;
        tokens += a->count;
    }
    CHECK_EQ(asked, tokens - stopped);
    stage_close(&s);
}

/* Greedy: the first token after each golden sample is the likeliest of Hugging Face's log-probs there. */
TEST(train_generator_greedy_agrees_with_the_golden_logprobs) {
    stage s;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling greedy;
    train_sampling_default(&greedy);
    greedy.temperature = 0;
    greedy.max_tokens = 1;
    CHECK(stage_open(&s, "cpu", 1, 2, 0));
    static const int samples[] = {0, 1, 3, 5}; /* those shorter than a slot */
    for (int k = 0; k < 4; k++) {
        static basket b;
        char name[32];
        const ravel_safetensor *want = NULL;
        (void)snprintf(name, sizeof name, "last_logprobs/%d", samples[k]);
        CHECK_OK(ravel_safetensors_get(s.g.file, name, -1, NULL, &want, &err), &err);
        float *logprobs = malloc((size_t)want->count * sizeof *logprobs);
        CHECK_OK(ravel_safetensor_read(want, 0, want->count, RAVEL_F32, logprobs, &err), &err);
        int64_t best = 0;
        for (int64_t i = 0; i < want->count; i++) best = logprobs[i] > logprobs[best] ? i : best;
        train_request r = {
            .prompt = s.g.ids[samples[k]], .count = s.g.lengths[samples[k]], .samples = 1, .sampling = &greedy};
        CHECK_OK(train_generator_run(s.generator, &r, 1, keep, &b, &err), &err);
        CHECK(b.answers[0].count == 1 && b.answers[0].ended == 0);
        CHECK_EQ(b.answers[0].tokens[0], best);
        CHECK(fabsf(b.answers[0].logprob[0] - logprobs[best]) < 1e-5f && b.answers[0].kept[0] == 0);
        free(logprobs);
    }
    stage_close(&s);
}

TEST(train_generator_ends_steps_and_resumed_samples) {
    static basket whole, part;
    stage s;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling = usual();
    sampling.stops = 0;
    sampling.max_tokens = 0; /* until the slot is full */
    CHECK(stage_open(&s, "cpu", 1, 2, 0));
    train_request requests[PROMPTS];
    make_requests(&s, &sampling, requests);
    CHECK_OK(train_generator_run(s.generator, requests, PROMPTS, keep, &whole, &err), &err);
    for (int i = 0; i < ANSWERS; i++)
        CHECK(whole.answers[i].count == ROOM - requests[i / EACH].count && !whole.answers[i].ended);
    /* Samples 2 and 3 of a request by themselves, step by step, are the same answers. */
    train_request half = requests[1];
    half.samples = 2;
    half.first_sample = 2;
    int steps = 0;
    memset(&part, 0, sizeof part);
    CHECK_OK(train_generator_begin(s.generator, &half, 1, &err), &err);
    for (; train_generator_busy(s.generator); steps++)
        CHECK_OK(train_generator_step(s.generator, keep, &part, &err), &err);
    CHECK_EQ(steps, ROOM - half.count + 1); /* one per token, and one that reads the last */
    CHECK(memcmp(part.answers + 2, whole.answers + EACH + 2, 2 * sizeof *part.answers) == 0);
    /* Another seed, another id: other answers. */
    sampling.seed++;
    CHECK_OK(train_generator_run(s.generator, &half, 1, keep, &part, &err), &err);
    CHECK(memcmp(part.answers[2].tokens, whole.answers[EACH + 2].tokens, sizeof part.answers[2].tokens) != 0);
    half.samples = 0;
    CHECK_OK(train_generator_run(s.generator, &half, 1, keep, &part, &err), &err);
    stage_close(&s);
}

TEST(train_generator_bad_requests) {
    stage s;
    static basket b;
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling = usual();
    CHECK(stage_open(&s, "cpu", 1, 2, 0));
    static const int32_t bad[] = {3, 320, 5};
    static int32_t longer[ROOM];
    train_request r = {.prompt = bad, .count = 3, .samples = 1, .sampling = &sampling};
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "token 1 is 320");
    r.prompt = longer;
    r.count = ROOM;
    ravel_error_clear(&err);
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "slot_tokens");
    r.count = 0;
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, NULL), RAVEL_E_DATA);
    r.count = 5;
    sampling.top_p = 0;
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, NULL), RAVEL_E_ARGUMENT);
    sampling = usual();
    sampling.temperature = NAN;
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, NULL), RAVEL_E_ARGUMENT);
    sampling = usual();
    r.samples = EACH;
    b.fail_at = 2; /* a callback that fails ends the run with its own status */
    ravel_error_clear(&err);
    CHECK_EQ(train_generator_run(s.generator, &r, 1, keep, &b, &err), RAVEL_E_CALLBACK);
    CHECK_STR(err.message, "enough");
    b = (basket){0};
    ravel_error_clear(&err);
    CHECK_OK(train_generator_run(s.generator, &r, 1, keep, &b, &err), &err); /* and it can begin anew */
    CHECK_EQ(b.count, EACH);
    train_generator_set_weights(s.generator, NULL, 0);
    CHECK_EQ(train_generator_begin(s.generator, &r, 1, &err), RAVEL_E_STATE);
    stage_close(&s);
}

static ravel_status life(const ravel_allocator *allocator, void *user) {
    const train_kernels *k = user;
    train_device *device = NULL;
    train_generator *generator = NULL;
    train_device_options d = {.threads = 2, .allocator = allocator};
    train_generator_options o;
    ravel_shape shape = small_shape();
    train_generator_options_default(&o);
    o.slots = 3;
    o.slot_tokens = 20;
    o.allocator = allocator;
    ravel_status status = k->open(&d, &device, NULL);
    if (!status) status = train_generator_create(k, device, &shape, &o, &generator, NULL);
    train_generator_free(generator);
    k->close(device);
    return status;
}

TEST(train_generator_memory_is_as_told_and_every_allocation_may_fail) {
    ravel_error err = RAVEL_ERROR_INIT;
    const train_kernels *k = NULL;
    CHECK_OK(train_kernels_find("cpu", &k, &err), &err);
    CHECK(check_every_allocation(life, (void *)k) > 6);
    for (int i = 0; i < 3; i++) {
        check_memory memory;
        train_device *device = NULL;
        train_generator *generator = NULL;
        train_generator_options o;
        ravel_shape shape = small_shape();
        int64_t told = 0;
        check_memory_init(&memory);
        train_generator_options_default(&o);
        o.slots = 4 + 20 * i;
        o.slot_tokens = 100 + 300 * i;
        o.allocator = &memory.allocator;
        train_device_options d = {.threads = 1, .allocator = &memory.allocator};
        CHECK_OK(train_generator_memory(k, 1, &shape, &o, &told, &err), &err);
        CHECK_OK(k->open(&d, &device, &err), &err);
        CHECK_OK(train_generator_create(k, device, &shape, &o, &generator, &err), &err);
        CHECK(fabs((double)memory.live / (double)told - 1) < 0.02);
        train_generator_free(generator);
        k->close(device);
        CHECK_EQ(memory.live, 0);
    }
}
