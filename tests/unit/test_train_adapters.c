/* Several adapters in one generator: answers are those of a generator with that adapter alone, to the bit; versions that are
 * published replace one another while answers finish with theirs. */
#include "tests/unit/refit_case.h"
#include "tests/unit/train_support.h"

#include "base/model/family.h"
#include "base/rng.h"
#include "train/model/generate/generator.h"
#include "train/model/hf/lora.h"
#include "train/run/answers/published.h"

#include <stdlib.h>
#include <unistd.h>

enum kinds { PLAIN, EXPERTS, FUSED }; /* of models; the last one's files have q, k and v as one tensor */
enum { ADAPTERS = 4, REQUESTS = 12, ROOM = 100, MOST = 12 };

typedef struct answer {
    int64_t count, version;
    int32_t tokens[ROOM];
    float logprob[ROOM];
    int64_t versions[ROOM];
} answer;

typedef struct stage {
    rig r;
    train_lora loras[ADAPTERS];
    train_adapter adapters[ADAPTERS];
    int32_t prompts[REQUESTS][ROOM];
    train_sampling sampling[REQUESTS];
    train_request requests[REQUESTS];
    answer answers[REQUESTS];
} stage;

static void fill(ravel__rng *rng, void *weights, const train_params *p) {
    memset(weights, 0, (size_t)p->elements * sizeof(float));
    for (int64_t i = 0; i < p->count; i++)
        for (int64_t k = 0; k < p->tensors[i].count; k++)
            ((float *)weights)[p->tensors[i].offset + k] = (float)((double)ravel__rng_below(rng, 2001) / 5000 - .2);
}

static train_lora random_lora(ravel__rng *rng) {
    static const train_layer_tensor all[] = {TRAIN_Q, TRAIN_K, TRAIN_V, TRAIN_O, TRAIN_GATE, TRAIN_UP, TRAIN_DOWN};
    train_lora l = {.rank = 1 + (int32_t)ravel__rng_below(rng, 9), .alpha = 1 + (double)ravel__rng_below(rng, 20)};
    while (!l.targets)
        for (int i = 0; i < 7; i++) l.targets |= (uint32_t)ravel__rng_below(rng, 2) << all[i];
    return l;
}

static stage *stage_open(const char *set, ravel__rng *rng, enum kinds kind) {
    ravel_shape shape = small_shape();
    if (kind == EXPERTS) shape.experts = 5, shape.experts_active = 2, shape.expert_ffn = 11;
    for (int32_t i = 0; kind == FUSED && ravel__family_at(i); i++)
        if (strcmp(ravel__family_at(i)->model_type, "phi3") == 0) shape.family = i, shape.qk_norm = 0;
    train_model_options options;
    train_model_options_default(&options);
    options.budget = 64;
    options.inference = 1;
    stage *s = calloc(1, sizeof *s);
    if (!EXPECT(s) || !rig_open(&s->r, set, 1, &shape, &options)) {
        free(s);
        return NULL;
    }
    bool good = EXPECT(train_model_init(s->r.model, 5, 0.2, NULL) == RAVEL_OK);
    for (int i = 0; i < ADAPTERS && good; i++) {
        s->loras[i] = random_lora(rng);
        if (kind == FUSED) s->loras[i].targets = train_lora_all();
        good = EXPECT(train_adapter_open(&s->adapters[i], s->r.kernels, s->r.device, &shape, &s->loras[i], NULL) ==
                      RAVEL_OK);
        if (good) fill(rng, s->adapters[i].weights, s->adapters[i].params);
    }
    for (int i = 0; i < REQUESTS; i++) {
        int64_t count = i % 3 == 2 ? s->requests[i - 1].count : 1 + (int64_t)ravel__rng_below(rng, ROOM - MOST - 1);
        for (int64_t t = 0; t < count; t++)
            s->prompts[i][t] =
                i % 3 == 2 ? s->prompts[i - 1][t] : (int32_t)ravel__rng_below(rng, (uint64_t)shape.vocab);
        train_sampling_default(&s->sampling[i]);
        s->sampling[i].max_tokens = MOST - i % 5;
        s->sampling[i].seed = 9;
        s->requests[i] = (train_request){
            .prompt = s->prompts[i], .count = count, .id = i, .samples = 1, .sampling = &s->sampling[i]};
    }
    return s;
}

static void stage_close(stage *s) {
    for (int i = 0; i < ADAPTERS; i++) train_adapter_close(&s->adapters[i]);
    rig_close(&s->r);
    free(s);
}

static ravel_status keep(void *user, const train_answer *a, ravel_error *err) {
    answer *to = &((answer *)user)[a->id];
    (void)err;
    *to = (answer){.count = a->count, .version = a->version};
    memcpy(to->tokens, a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(to->logprob, a->logprob, (size_t)a->count * sizeof *a->logprob);
    memcpy(to->versions, a->versions, (size_t)a->count * sizeof *a->versions);
    return RAVEL_OK;
}

static train_generator *make(const stage *s, int64_t slots, int64_t kept, const train_lora *one, int32_t adapters) {
    train_generator_options o;
    train_generator *g = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    train_generator_options_default(&o);
    o.slots = slots;
    o.slot_tokens = ROOM;
    o.keep = kept;
    if (one) o.lora = *one;
    o.adapters = adapters;
    o.adapter_rank = 16;
    if (train_generator_create(s->r.kernels, s->r.device, &s->r.shape, &o, &g, &err)) {
        check_fail(__FILE__, __LINE__, "%s", err.message);
        return NULL;
    }
    const void *base = train_model_weights(s->r.model);
    if (one) train_generator_set_base(g, (train_frozen){.flat = base});
    train_generator_set_weights(g, one ? s->adapters[0].weights : base, 7);
    return g;
}

/* Each request through a generator that has one adapter only, or none. */
static bool alone(stage *s, const int32_t *which, answer *want) {
    bool good = true;
    for (int i = 0; i < REQUESTS && good; i++) {
        const int32_t a = which[i] - 1;
        train_generator *g = make(s, 1, 0, a < 0 ? NULL : &s->loras[a], 0);
        if (!g) return false;
        if (a >= 0) train_generator_set_weights(g, s->adapters[a].weights, 7);
        good = EXPECT(train_generator_run(g, &s->requests[i], 1, keep, want, NULL) == RAVEL_OK);
        train_generator_free(g);
    }
    return good;
}

static bool equal(const answer *a, const answer *b) {
    return a->count == b->count && memcmp(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens) == 0 &&
           memcmp(a->logprob, b->logprob, (size_t)a->count * sizeof *a->logprob) == 0;
}

static void side_by_side(const char *set, uint64_t seed, enum kinds kind) {
    ravel__rng rng;
    rng = ravel__rng_seed(seed);
    stage *s = stage_open(set, &rng, kind);
    if (!s) return;
    answer *want = calloc(REQUESTS, sizeof *want);
    int32_t which[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) which[i] = (int32_t)ravel__rng_below(&rng, ADAPTERS + 1);
    train_generator *g = make(s, 1 + (int64_t)ravel__rng_below(&rng, 5), 0, NULL, ADAPTERS);
    for (int i = 0; i < ADAPTERS && g; i++)
        train_generator_set_adapter(g, i + 1, s->adapters[i].params, s->adapters[i].weights, 100 + i);
    if (g && alone(s, which, want)) {
        for (int i = 0; i < REQUESTS; i++) s->requests[i].adapter = which[i] ? which[i] : TRAIN_NO_ADAPTER;
        EXPECT(train_generator_run(g, s->requests, REQUESTS, keep, s->answers, NULL) == RAVEL_OK);
        for (int i = 0; i < REQUESTS; i++) {
            const answer *a = &s->answers[i];
            if (!EXPECT(equal(a, &want[i]) && a->version == (which[i] ? 99 + which[i] : 7)))
                printf("    %s: request %d of adapter %d, seed %llu\n", set, i, which[i], (unsigned long long)seed);
            for (int64_t t = 0; t < a->count; t++) EXPECT(a->versions[t] == a->version);
        }
        for (int i = 0; i <= ADAPTERS; i++) EXPECT(train_generator_users(g, i) == 0);
    }
    train_generator_free(g);
    free(want);
    stage_close(s);
}

TEST(train_adapters_side_by_side_answer_as_alone) {
    for (int i = 0; i < check_rounds(3, 60); i++) {
        side_by_side("ref", check_seed() + (uint64_t)i, (enum kinds)((i + 1) % 3));
        side_by_side("cpu", check_seed() + (uint64_t)i, (enum kinds)((i + 1) % 3));
    }
}

/* The same prompts through different adapters, in a generator that keeps pages: no page of another adapter is taken. */
TEST(train_adapters_share_no_kept_pages) {
    ravel__rng rng;
    rng = ravel__rng_seed(check_seed());
    stage *s = stage_open("ref", &rng, PLAIN);
    CHECK(s);
    for (int i = 0; i < REQUESTS; i++) {
        s->requests[i].prompt = s->prompts[0];
        s->requests[i].count = 80;
        s->requests[i].id = i;
        for (int t = 0; t < 80; t++) s->prompts[0][t] = t % (int32_t)s->r.shape.vocab;
    }
    train_generator *g = make(s, 2, 4096, NULL, ADAPTERS), *plain = make(s, 2, 0, NULL, ADAPTERS);
    CHECK(g && plain);
    answer *want = calloc(REQUESTS, sizeof *want);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < ADAPTERS; i++) {
            if (round == 3 && i == 1) fill(&rng, s->adapters[i].weights, s->adapters[i].params);
            if (round != 0 && !(round == 3 && i == 1)) continue;
            train_generator_set_adapter(g, i + 1, s->adapters[i].params, s->adapters[i].weights, round);
            train_generator_set_adapter(plain, i + 1, s->adapters[i].params, s->adapters[i].weights, round);
        }
        for (int i = 0; i < REQUESTS; i++) s->requests[i].adapter = (int32_t)ravel__rng_below(&rng, ADAPTERS + 1);
        CHECK(train_generator_run(g, s->requests, REQUESTS, keep, s->answers, NULL) == RAVEL_OK);
        CHECK(train_generator_run(plain, s->requests, REQUESTS, keep, want, NULL) == RAVEL_OK);
        for (int i = 0; i < REQUESTS; i++) {
            EXPECT(s->answers[i].count == want[i].count);
            EXPECT(largest_difference(s->answers[i].logprob, want[i].logprob, want[i].count) < 1e-4);
        }
    }
    EXPECT(train_generator_counts(g).kept_tokens > 0);
    free(want);
    train_generator_free(g);
    train_generator_free(plain);
    stage_close(s);
}

/* ---- published ------------------------------------------------------------------------------------------- */

typedef struct publication {
    ravel_comm *self;
    ravel_publisher *publisher;
    ravel_refit_tensor *tensors;
    ravel_refit_source source;
    char address[64];
    char *config;
    size_t config_bytes;
    float *weights;
} publication;

/* What a trainer publishes that has tensors as PEFT has them. */
static int64_t join(const train_params *params, ravel_refit_tensor *tensors) {
    int64_t count = 0;
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = &params->tensors[i];
        if (t->file_first > 0) continue; /* it follows in memory */
        tensors[count] = tensors[i];
        tensors[count].name = t->file_name;
        tensors[count].dims[0] = tensors[count].extent[0] = t->file_rows;
        count++;
    }
    return count;
}

static bool publication_open(publication *p, const stage *s, int without) {
    static int number;
    ravel_error err = RAVEL_ERROR_INIT;
    const train_params *params = s->adapters[0].params;
    int64_t count = 0;
    *p = (publication){0};
    (void)snprintf(p->address, sizeof p->address, "unix:@ravel-adapters-%d-%d", (int)getpid(), number++);
    p->tensors = calloc((size_t)params->count + 1, sizeof *p->tensors);
    p->weights = calloc((size_t)params->elements, sizeof *p->weights);
    train_array array = {s->r.kernels, s->r.device, p->weights, RAVEL_F32, NULL};
    train_refit_tensors(params, &array, NULL, (ravel_place){0}, p->tensors, &count);
    count = s->r.shape.family ? join(params, p->tensors) : count - without;
    if (!EXPECT(train_adapter_print(&s->loras[0], NULL, &p->config, &p->config_bytes, &err) == RAVEL_OK)) return false;
    int64_t bytes = (int64_t)p->config_bytes;
    p->tensors[count++] = (ravel_refit_tensor){.name = TRAIN_ADAPTER_CONFIG,
                                               .dtype = RAVEL_U8,
                                               .ndim = 1,
                                               .dims = {bytes},
                                               .extent = {bytes},
                                               .data = p->config};
    p->source = (ravel_refit_source){.size = sizeof p->source, .tensors = p->tensors, .count = count};
    return EXPECT(ravel_comm_self(NULL, &p->self, &err) == RAVEL_OK) &&
           EXPECT(ravel_publisher_create(p->self, p->address, &p->source, NULL, &p->publisher, &err) == RAVEL_OK);
}

static void publication_close(publication *p) {
    ravel_publisher_free(p->publisher);
    ravel_comm_free(p->self);
    free(p->tensors);
    free(p->weights);
    free(p->config);
}

static bool publish(publication *p, const stage *s, int64_t version) {
    ravel__rng rng;
    rng = ravel__rng_seed((uint64_t)version);
    fill(&rng, p->weights, s->adapters[0].params);
    return EXPECT(ravel_publisher_publish(p->publisher, version, NULL) == RAVEL_OK);
}

/* Every answer is of one version, which it has from its first token to its last, and is that of a generator with that version
 * alone, whatever was committed meanwhile; `versions` of them are held. */
static void versions_in_flight(int32_t versions, enum kinds kind, uint64_t seed) {
    ravel__rng rng;
    ravel_error err = RAVEL_ERROR_INIT;
    rng = ravel__rng_seed(seed);
    stage *s = stage_open("ref", &rng, kind);
    publication p;
    train_published *published = NULL;
    train_pulled *pulled = NULL;
    if (!s || !publication_open(&p, s, 0) || !publish(&p, s, 1)) return;
    train_pulled_options options = {.address = p.address, .timeout = 60, .versions = versions};
    CHECK_OK(train_published_look(&options, &published, &err), &err);
    CHECK(published && train_published_versions(published) == versions);
    CHECK_OK(train_published_open(published, &options, &pulled, &err), &err);
    CHECK_EQ(train_published_lora(published)->rank, s->loras[0].rank);
    train_generator *g = make(s, 3, 0, NULL, versions + 1);
    CHECK_OK(train_published_attach(published, s->r.kernels, s->r.device, g, &s->r.shape, 2, &err), &err);
    CHECK_OK(train_generator_begin(g, s->requests, REQUESTS, &err), &err);
    int64_t next = 2, apart = 0;
    while (train_generator_busy(g)) {
        const int first =
            next ==
            2; /* comes at once, and is waited for: requests that begin later have it, however slow the machine */
        if ((first || ravel__rng_below(&rng, 4) == 0) && next - train_pulled_counts(pulled).version < 2)
            publish(&p, s, next++);
        CHECK_OK(train_generator_step(g, keep, s->answers, &err), &err);
        do {
            CHECK_OK(train_pulled_step(pulled, train_generator_busy(g) == 0, 0, &err), &err);
        } while (first && versions > 1 && train_pulled_counts(pulled).version < 2 && usleep(1000) == 0);
        int64_t used = 0;
        for (int32_t i = 0; i < versions; i++) used += train_generator_users(g, 2 + i) > 0;
        apart += used > 1;
        if (ravel__rng_below(&rng, 2)) usleep(2000); /* for what is staged in the background */
    }
    EXPECT(train_pulled_counts(pulled).commits > 1 || versions == 1);
    EXPECT(apart > 0 || versions == 1);
    for (int i = 0; i < REQUESTS; i++) {
        const answer *a = &s->answers[i];
        answer want[REQUESTS];
        ravel__rng again;
        again = ravel__rng_seed((uint64_t)a->version);
        fill(&again, s->adapters[0].weights, s->adapters[0].params);
        train_generator *one = make(s, 1, 0, &s->loras[0], 0);
        CHECK(one && train_generator_run(one, &s->requests[i], 1, keep, want, NULL) == RAVEL_OK);
        EXPECT(equal(a, &want[i]));
        for (int64_t t = 0; t < a->count; t++) EXPECT(a->versions[t] == a->version);
        train_generator_free(one);
    }
    train_pulled_free(pulled);
    train_generator_free(g);
    train_published_free(published);
    publication_close(&p);
    stage_close(s);
}

TEST(train_adapters_that_are_pulled_let_answers_finish) {
    for (int i = 0; i < check_rounds(1, 20); i++) {
        versions_in_flight(1, PLAIN, check_seed() + (uint64_t)i);
        versions_in_flight(2, EXPERTS, check_seed() + (uint64_t)i);
        versions_in_flight(3, FUSED, check_seed() + (uint64_t)i);
    }
}

/* An adapter of another model, and a whole model. */
TEST(train_adapters_that_do_not_fit_are_refused) {
    ravel__rng rng;
    ravel_error err = RAVEL_ERROR_INIT;
    rng = ravel__rng_seed(check_seed());
    stage *s = stage_open("ref", &rng, PLAIN);
    CHECK(s);
    for (int without = 0; without < 2; without++) {
        publication p;
        train_published *published = NULL;
        train_pulled *pulled = NULL;
        CHECK(publication_open(&p, s, without) && publish(&p, s, 1));
        train_pulled_options options = {.address = p.address, .timeout = 60};
        CHECK_OK(train_published_look(&options, &published, &err), &err);
        CHECK_OK(train_published_open(published, &options, &pulled, &err), &err);
        train_generator *g = make(s, 1, 0, NULL, 2);
        ravel_shape shape = s->r.shape;
        if (!without) shape.hidden *= 2;
        CHECK_EQ(train_published_attach(published, s->r.kernels, s->r.device, g, &shape, 1, &err), RAVEL_E_MISMATCH);
        CHECK_HAS(err.message, without ? "is not there" : "must be [");
        train_pulled_free(pulled);
        train_generator_free(g);
        train_published_free(published);
        publication_close(&p);
    }
    stage_close(s);
}
