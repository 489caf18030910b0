/* A generator as a server uses it: requests that start and are cancelled between steps get the answers of a run; the
 * version of every token; the likeliest tokens. */
#include "tests/unit/train_support.h"

#include "base/rng.h"
#include "train/model/generate/generator.h"

#include <math.h>
#include <stdlib.h>

enum { ROOM = 48, KINDS = 12, SLOTS = 3, TOP = 5, LONG = 64 };

typedef struct kept {
    int64_t count;
    int32_t tokens[ROOM];
    float logprob[ROOM];
} kept;

typedef struct stage {
    rig r;
    golden g;
    train_generator *generator;
    train_sampling sampling;
    kept run[KINDS]; /* what a run gives for each kind of request */
    train_request requests[LONG];
    int32_t kinds[LONG];              /* of each request */
    uint8_t states[LONG];             /* RUNS, ENDED, CANCELLED */
    int64_t count, checked, left_out; /* answers seen; requests that left the array */
} stage;

enum { RUNS = 1, ENDED, CANCELLED };

static train_request request_of(const stage *s, int32_t kind) {
    return (train_request){.prompt = s->g.ids[kind % 6],
                           .count = 1 + 3 * (kind % 5),
                           .id = kind / 2,
                           .samples = 1,
                           .first_sample = kind % 2,
                           .sampling = &s->sampling};
}

static ravel_status keep(void *user, const train_answer *a, ravel_error *err) {
    stage *s = user;
    (void)err;
    kept *k = &s->run[a->request];
    k->count = a->count;
    memcpy(k->tokens, a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(k->logprob, a->logprob, (size_t)a->count * sizeof *a->logprob);
    return RAVEL_OK;
}

static bool stage_open(stage *s, const char *set, int32_t top) {
    static const int32_t stop[] = {11};
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options options;
    train_generator_options go;
    train_model_options_default(&options);
    train_generator_options_default(&go);
    options.budget = 2 * ROOM;
    options.inference = 1;
    go.slots = SLOTS;
    go.slot_tokens = ROOM;
    go.top = top;
    if (!golden_open(&s->g) || !rig_golden(&s->r, set, 1, &options)) return false;
    if (train_generator_create(s->r.kernels, s->r.device, &s->r.shape, &go, &s->generator, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    train_generator_set_weights(s->generator, train_model_weights(s->r.model), 7);
    train_sampling_default(&s->sampling);
    s->sampling.max_tokens = 20;
    s->sampling.seed = 3;
    s->sampling.stop = stop;
    s->sampling.stops = 1;
    return true;
}

static void stage_close(stage *s) {
    train_generator_free(s->generator);
    rig_close(&s->r);
    ravel_safetensors_free(s->g.file);
    free(s);
}

static ravel_status compare(void *user, const train_answer *a, ravel_error *err) {
    stage *s = user;
    const kept *k = &s->run[s->kinds[a->request]];
    s->states[a->request] = ENDED;
    s->checked++;
    if (a->count != k->count || memcmp(a->tokens, k->tokens, (size_t)k->count * sizeof *k->tokens) != 0 ||
        memcmp(a->logprob, k->logprob, (size_t)k->count * sizeof *k->logprob) != 0)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "kind %d differs from the run", s->kinds[a->request]);
    for (int64_t i = 0; i < a->count; i++)
        if (a->versions[i] != 7) return ravel_error_set(err, RAVEL_E_INTERNAL, "version of token %d", (int)i);
    return RAVEL_OK;
}

/* Leaves out the requests at the front that have ended, and starts up to `more` new ones. */
static ravel_status start(stage *s, ravel__rng *rng, int64_t more, ravel_error *err) {
    int64_t ended = 0;
    while (ended < s->count && s->states[ended] != RUNS) ended++;
    s->count -= ended;
    s->left_out += ended;
    memmove(s->requests, s->requests + ended, (size_t)s->count * sizeof *s->requests);
    memmove(s->kinds, s->kinds + ended, (size_t)s->count * sizeof *s->kinds);
    memmove(s->states, s->states + ended, (size_t)s->count);
    if (s->count + more > LONG) more = 0;
    for (int64_t i = s->count; i < s->count + more; i++) {
        s->kinds[i] = (int32_t)ravel__rng_below(rng, KINDS);
        s->requests[i] = request_of(s, s->kinds[i]);
        s->states[i] = RUNS;
    }
    s->count += more;
    return train_generator_start(s->generator, s->requests, ended, more, err);
}

TEST(train_generator_requests_start_and_are_cancelled_at_any_step) {
    stage *s = calloc(1, sizeof *s);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(s && stage_open(s, "cpu-base", 0));
    for (int32_t k = 0; k < KINDS; k++) s->requests[k] = request_of(s, k);
    CHECK_OK(train_generator_run(s->generator, s->requests, KINDS, keep, s, &err), &err);
    CHECK_OK(train_generator_begin(s->generator, NULL, 0, &err), &err);
    ravel__rng rng = ravel__rng_seed(check_seed());
    int64_t rounds = check_rounds(150, 3000);
    for (int64_t i = 0; i < rounds || train_generator_busy(s->generator); i++) {
        int64_t idle = train_generator_idle_slots(s->generator);
        if (i < rounds && ravel__rng_below(&rng, 3) == 0)
            CHECK_OK(start(s, &rng, (int64_t)ravel__rng_below(&rng, (uint64_t)idle + 1), &err), &err);
        CHECK_OK(train_generator_step(s->generator, compare, s, &err), &err);
        int64_t one = s->count ? (int64_t)ravel__rng_below(&rng, (uint64_t)s->count) : 0;
        if (s->count && s->states[one] == RUNS && ravel__rng_below(&rng, 30) == 0) {
            train_generator_cancel(s->generator, one);
            s->states[one] = CANCELLED;
        }
    }
    for (int64_t i = 0; i < s->count; i++) CHECK(s->states[i] != RUNS);
    CHECK(s->checked > rounds / 20);
    CHECK_EQ(train_generator_idle_slots(s->generator), SLOTS);
    stage_close(s);
}

static ravel_status check_top(void *user, const train_answer *a, ravel_error *err) {
    stage *s = user;
    s->checked++;
    for (int64_t i = 0; i < a->count; i++) {
        const train_top *top = a->top + i * TOP;
        double sum = 0;
        if (top[0].token != a->tokens[i] || fabs((double)(top[0].logprob - a->logprob[i])) > 1e-4)
            return ravel_error_set(err, RAVEL_E_INTERNAL, "token %lld: the drawn one is %d %g, the likeliest %d %g",
                                   (long long)i, a->tokens[i], (double)a->logprob[i], top[0].token,
                                   (double)top[0].logprob);
        for (int j = 0; j < TOP; j++) {
            sum += exp((double)top[j].logprob);
            if (j && top[j].logprob > top[j - 1].logprob) return ravel_error_set(err, RAVEL_E_INTERNAL, "order");
        }
        if (sum > 1 + 1e-5) return ravel_error_set(err, RAVEL_E_INTERNAL, "probabilities add up to %g", sum);
        if (a->versions[i] != (i < s->left_out ? 7 : 8))
            return ravel_error_set(err, RAVEL_E_INTERNAL, "token %lld has version %lld", (long long)i,
                                   (long long)a->versions[i]);
    }
    return RAVEL_OK;
}

TEST(train_generator_reports_the_likeliest_tokens_and_versions) {
    stage *s = calloc(1, sizeof *s);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(s && stage_open(s, "cpu-base", TOP));
    s->sampling.temperature = 0;
    s->sampling.top = TOP;
    s->sampling.stops = 0;
    s->requests[0] = request_of(s, 4);
    CHECK_OK(train_generator_begin(s->generator, s->requests, 1, &err), &err);
    s->left_out = 6; /* tokens that are asked for before the weights change */
    for (int i = 0; i < 6; i++) CHECK_OK(train_generator_step(s->generator, check_top, s, &err), &err);
    train_answer part = {0};
    CHECK(train_generator_running(s->generator, 0, &part) && part.count == 5 && part.ended == 0);
    CHECK_OK(check_top(s, &part, &err), &err);
    train_generator_set_weights(s->generator, train_model_weights(s->r.model), 8);
    while (train_generator_busy(s->generator)) CHECK_OK(train_generator_step(s->generator, check_top, s, &err), &err);
    CHECK_EQ(s->checked, 2);
    CHECK(!train_generator_running(s->generator, 0, &part));
    s->sampling.top = TOP + 1;
    CHECK_EQ(train_generator_begin(s->generator, s->requests, 1, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "reports from 0 to 5");
    stage_close(s);
}

/* ---- prompts in parts ----------------------------------------------------------------------------------- */

enum { DEEP = 1000, DEEP_KINDS = 8 };

/* A generator over the golden weights with long slots, and prompts of random tokens. */
typedef struct deep {
    stage s;
    int32_t prompts[DEEP_KINDS][DEEP];
    int64_t counts[DEEP_KINDS];
    float scores[DEEP_KINDS][DEEP], part_scores[DEEP];
} deep;

static train_request deep_request(const deep *d, int32_t kind) {
    return (train_request){
        .prompt = d->prompts[kind], .count = d->counts[kind], .id = kind, .samples = 1, .sampling = &d->s.sampling};
}

static ravel_status deep_open(deep *d, int64_t rows, int64_t keep_tokens, ravel_error *err) {
    train_generator_options go;
    train_generator_options_default(&go);
    go.slots = SLOTS;
    go.slot_tokens = DEEP + ROOM;
    go.prefill_rows = rows;
    go.keep = keep_tokens;
    train_generator_free(d->s.generator);
    d->s.generator = NULL;
    ravel_status status =
        train_generator_create(d->s.r.kernels, d->s.r.device, &d->s.r.shape, &go, &d->s.generator, err);
    if (!status) train_generator_set_weights(d->s.generator, train_model_weights(d->s.r.model), 7);
    return status;
}

/* Starts and cancels requests whose prompts are run in parts of any size: each step runs no more rows than it may, and answers
 * have the bits of those whose prompts were run whole. */
TEST(train_generator_prompts_in_parts_change_nothing) {
    deep *d = calloc(1, sizeof *d);
    stage *s = &d->s;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng rng = ravel__rng_seed(check_seed());
    CHECK(d && stage_open(s, "cpu", 0));
    for (int32_t k = 0; k < DEEP_KINDS; k++) {
        d->counts[k] =
            k % 4 == 3 ? 1 + (int64_t)ravel__rng_below(&rng, 60) : 100 + (int64_t)ravel__rng_below(&rng, DEEP - 101);
        for (int64_t t = 0; t < d->counts[k]; t++)
            d->prompts[k][t] = (int32_t)ravel__rng_below(&rng, (uint64_t)s->r.shape.vocab);
        s->requests[k] = deep_request(d, k);
        s->requests[k].prompt_logprob = d->scores[k];
    }
    CHECK_OK(deep_open(d, 0, 0, &err), &err);
    CHECK_OK(train_generator_run(s->generator, s->requests, DEEP_KINDS, keep, s, &err), &err);
    for (int64_t round = 0; round < check_rounds(3, 60); round++) {
        int64_t rows = 128 + (int64_t)ravel__rng_below(&rng, 400), steps = 60, before = 0;
        CHECK_OK(deep_open(d, rows, 0, &err), &err);
        CHECK_OK(train_generator_begin(s->generator, NULL, 0, &err), &err);
        s->count = 0;
        for (int64_t i = 0; i < steps || train_generator_busy(s->generator); i++) {
            int64_t idle = train_generator_idle_slots(s->generator), more = 0;
            if (i < steps && s->count < LONG - SLOTS) more = (int64_t)ravel__rng_below(&rng, (uint64_t)idle + 1);
            int64_t old = s->count;
            for (; more > 0; more--) {
                s->kinds[s->count] = (int32_t)ravel__rng_below(&rng, DEEP_KINDS);
                s->requests[s->count] = deep_request(d, s->kinds[s->count]);
                s->states[s->count++] = RUNS;
            }
            CHECK_OK(train_generator_start(s->generator, s->requests, 0, s->count - old, &err), &err);
            CHECK_OK(train_generator_step(s->generator, compare, s, &err), &err);
            int64_t prompts = train_generator_counts(s->generator).prompt_tokens;
            CHECK(prompts - before <= rows);
            before = prompts;
            int64_t one = s->count ? (int64_t)ravel__rng_below(&rng, (uint64_t)s->count) : 0;
            if (s->count && s->states[one] == RUNS && ravel__rng_below(&rng, 8) == 0) {
                train_generator_cancel(s->generator, one);
                s->states[one] = CANCELLED;
            }
        }
        for (int64_t i = 0; i < s->count; i++) CHECK(s->states[i] != RUNS);
        CHECK_EQ(train_generator_idle_slots(s->generator), SLOTS);
        int32_t kind = (int32_t)ravel__rng_below(&rng, DEEP_KINDS);
        s->requests[0] = deep_request(d, kind);
        s->requests[0].prompt_logprob = d->part_scores;
        s->kinds[0] = kind;
        CHECK_OK(train_generator_run(s->generator, s->requests, 1, compare, s, &err), &err);
        CHECK(memcmp(d->part_scores, d->scores[kind], (size_t)d->counts[kind] * sizeof(float)) == 0);
    }
    CHECK_EQ(deep_open(d, 100, 0, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "at least 128");
    train_generator_free(s->generator);
    rig_close(&s->r);
    ravel_safetensors_free(s->g.file);
    free(d);
}

/* As compare, up to the rounding of kept pages. */
static ravel_status nearly(void *user, const train_answer *a, ravel_error *err) {
    stage *s = user;
    const kept *k = &s->run[s->kinds[a->request]];
    s->checked++;
    for (int64_t i = 0; i < a->count; i++)
        if (a->tokens[i] != k->tokens[i] || fabsf(a->logprob[i] - k->logprob[i]) > 1e-4f)
            return ravel_error_set(err, RAVEL_E_INTERNAL, "kind %d differs from the run", s->kinds[a->request]);
    return RAVEL_OK;
}

/* With kept pages: what a prompt in parts leaves behind is what it is, also if it is given up in the middle. */
TEST(train_generator_parts_and_kept_pages) {
    deep *d = calloc(1, sizeof *d);
    stage *s = &d->s;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng rng = ravel__rng_seed(check_seed());
    CHECK(d && stage_open(s, "cpu", 0));
    for (int32_t k = 0; k < DEEP_KINDS; k++) {
        d->counts[k] = 300 + (int64_t)ravel__rng_below(&rng, DEEP - 301);
        for (int64_t t = 0; t < d->counts[k]; t++) /* all begin alike */
            d->prompts[k][t] = t < 280 ? (int32_t)(t * 7 % s->r.shape.vocab)
                                       : (int32_t)ravel__rng_below(&rng, (uint64_t)s->r.shape.vocab);
        s->requests[k] = deep_request(d, k);
    }
    s->sampling.temperature = 0;
    CHECK_OK(deep_open(d, 0, 0, &err), &err);
    CHECK_OK(train_generator_run(s->generator, s->requests, DEEP_KINDS, keep, s, &err), &err);
    CHECK_OK(deep_open(d, 150, 4 * DEEP, &err), &err);
    for (int64_t i = 0; i < check_rounds(40, 400); i++) {
        int64_t steps = ravel__rng_below(&rng, 2) ? 1 + (int64_t)ravel__rng_below(&rng, 5) : 1000;
        s->kinds[0] = (int32_t)ravel__rng_below(&rng, DEEP_KINDS);
        s->requests[0] = deep_request(d, s->kinds[0]);
        CHECK_OK(train_generator_begin(s->generator, s->requests, 1, &err), &err);
        while (steps-- > 0 && train_generator_busy(s->generator))
            CHECK_OK(train_generator_step(s->generator, nearly, s, &err), &err);
    }
    CHECK(s->checked > 0 && train_generator_counts(s->generator).kept_tokens > 0);
    train_generator_free(s->generator);
    rig_close(&s->r);
    ravel_safetensors_free(s->g.file);
    free(d);
}
