/* Pages that a generator keeps: turns of conversations go on from them, and answer as a generator without kept pages does. */
#include "base/rng.h"
#include "tests/unit/train_support.h"

#include "train/model/generate/generator.h"

#include <math.h>
#include <stdlib.h>

enum { ROOM = 640, TALKS = 6, TURNS = 4, VOCAB = 53, MOST = 40 };

typedef struct talk {
    int32_t tokens[ROOM];
    int64_t count, answered; /* tokens of the last answer */
    float logprob[ROOM];     /* of the last answer */
} talk;

typedef struct stage {
    rig r;
    train_generator *generator;
    talk talks[TALKS];
    bool answered[TALKS];
} stage;

static bool stage_open(stage *s, const char *set, int64_t slots, int64_t keep) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape = small_shape();
    train_model_options options;
    train_generator_options go;
    train_model_options_default(&options);
    train_generator_options_default(&go);
    options.budget = 64;
    options.inference = 1;
    go.slots = slots;
    go.slot_tokens = ROOM;
    go.keep = keep;
    *s = (stage){0};
    if (!rig_open(&s->r, set, 1, &shape, &options)) return false;
    if (!EXPECT(train_model_init(s->r.model, 5, 0.2, NULL) == RAVEL_OK)) return false;
    if (train_generator_create(s->r.kernels, s->r.device, &s->r.shape, &go, &s->generator, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    train_generator_set_weights(s->generator, train_model_weights(s->r.model), 7);
    return true;
}

static void stage_close(stage *s) {
    train_generator_free(s->generator);
    rig_close(&s->r);
}

/* The first sample goes on as the conversation. */
static ravel_status hear(void *user, const train_answer *a, ravel_error *err) {
    stage *s = user;
    talk *t = &s->talks[a->request];
    (void)err;
    if (a->sample) return RAVEL_OK;
    memcpy(t->tokens + t->count, a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(t->logprob, a->logprob, (size_t)a->count * sizeof *a->logprob);
    t->answered = a->count;
    s->answered[a->request] = true;
    return RAVEL_OK;
}

/* A turn of every conversation: some tokens of the user, and an answer of at most MOST. */
static bool turn(stage *s, const int32_t *words, const int64_t *counts, const train_sampling *sampling) {
    train_request requests[TALKS];
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < TALKS; i++) {
        talk *t = &s->talks[i];
        memcpy(t->tokens + t->count, words + i * ROOM, (size_t)counts[i] * sizeof *words);
        t->count += counts[i];
        s->answered[i] = false;
        requests[i] = (train_request){
            .prompt = t->tokens, .count = t->count, .id = i, .samples = 1 + i % 3, .sampling = sampling};
    }
    bool ok = train_generator_run(s->generator, requests, TALKS, hear, s, &err) == RAVEL_OK;
    if (!ok) printf("    %s\n", err.message);
    for (int i = 0; i < TALKS; i++) ok &= s->answered[i];
    return EXPECT(ok);
}

static bool same_turn(const stage *a, const stage *b) {
    bool ok = true;
    for (int i = 0; i < TALKS; i++) {
        const talk *x = &a->talks[i], *y = &b->talks[i];
        ok &= x->answered == y->answered;
        ok &= memcmp(x->tokens, y->tokens, (size_t)(x->count + x->answered) * sizeof *x->tokens) == 0;
        for (int64_t t = 0; t < x->answered; t++) ok &= fabsf(x->logprob[t] - y->logprob[t]) < 2e-5f;
    }
    return EXPECT(ok);
}

/* Conversations that all begin with the same system prompt, over several turns. At least `least` tokens are taken from kept
 * pages. */
static void converse(const char *set, uint64_t seed, int64_t slots, int64_t keep, int64_t least) {
    ravel__rng rng = ravel__rng_seed(seed);
    static stage kept, plain;
    static int32_t words[TALKS * ROOM];
    train_sampling sampling;
    train_sampling_default(&sampling);
    sampling.max_tokens = MOST;
    sampling.seed = seed;
    CHECK(stage_open(&kept, set, slots, keep) && stage_open(&plain, set, slots, 0));
    for (int k = 0; k < TURNS; k++) {
        int64_t counts[TALKS];
        for (int i = 0; i < TALKS; i++) {
            counts[i] = 1 + (int64_t)ravel__rng_below(&rng, 60) + (k ? 0 : 70);
            for (int64_t t = 0; t < counts[i]; t++)
                words[i * ROOM + t] = (int32_t)(k == 0 && t < 70 ? t % VOCAB : (int64_t)ravel__rng_below(&rng, VOCAB));
        }
        CHECK(turn(&kept, words, counts, &sampling) && turn(&plain, words, counts, &sampling));
        CHECK(same_turn(&kept, &plain));
        for (int i = 0; i < TALKS; i++) kept.talks[i].count += kept.talks[i].answered;
        for (int i = 0; i < TALKS; i++) plain.talks[i].count += plain.talks[i].answered;
        if (k == TURNS / 2) { /* other weights: everything is forgotten */
            train_generator_set_weights(kept.generator, train_model_weights(kept.r.model), 8);
            train_generator_set_weights(plain.generator, train_model_weights(plain.r.model), 8);
        }
    }
    train_generator_stats a = train_generator_counts(kept.generator), b = train_generator_counts(plain.generator);
    CHECK_EQ(a.kept_tokens + a.prompt_tokens, b.prompt_tokens);
    CHECK_EQ(b.kept_tokens, 0);
    CHECK(a.kept_tokens >= least);
    stage_close(&kept);
    stage_close(&plain);
}

TEST(train_kept_turns_go_on_from_their_pages) {
    converse("ref", 1, 3, 8192, 64 * TALKS);
    for (int64_t round = 0; round < check_rounds(2, 60); round++) {
        uint64_t seed = check_seed() + (uint64_t)round;
        converse("cpu", seed, 1 + round % 7, 8192, 64 * TALKS);
        converse("cpu", seed, 2, 64 + 64 * (round % 9), 0); /* pages are taken away again */
    }
}

/* A run that ends early, and another set of weights of the same version. */
TEST(train_kept_pages_survive_an_end_and_no_new_weights) {
    static stage s;
    static int32_t words[TALKS * ROOM];
    int64_t counts[TALKS];
    ravel_error err = RAVEL_ERROR_INIT;
    train_sampling sampling;
    train_sampling_default(&sampling);
    sampling.max_tokens = 8;
    CHECK(stage_open(&s, "cpu", 2, 4096));
    for (int i = 0; i < TALKS; i++) counts[i] = 200;
    for (int i = 0; i < TALKS * ROOM; i++) words[i] = i / 64 % VOCAB;
    CHECK(turn(&s, words, counts, &sampling));
    train_generator_stats before = train_generator_counts(s.generator);
    train_request again = {.prompt = s.talks[0].tokens, .count = 200, .samples = 2, .sampling = &sampling};
    CHECK_OK(train_generator_begin(s.generator, &again, 1, &err), &err);
    CHECK_OK(train_generator_step(s.generator, hear, &s, &err), &err);
    CHECK_EQ(train_generator_counts(s.generator).kept_tokens - before.kept_tokens, 192);
    CHECK_OK(train_generator_run(s.generator, &again, 1, hear, &s, &err), &err); /* what ran is dropped */
    CHECK_EQ(train_generator_counts(s.generator).kept_tokens - before.kept_tokens, 384);
    train_generator_set_weights(s.generator, train_model_weights(s.r.model), 7);
    CHECK_OK(train_generator_run(s.generator, &again, 1, hear, &s, &err), &err);
    CHECK_EQ(train_generator_counts(s.generator).kept_tokens - before.kept_tokens, 384);
    stage_close(&s);
}
