/* The model against Hugging Face's: per-token losses, total losses and every gradient, in three aggregation modes,
 * however the samples are cut into batches, on every set of kernels. */
#include "tests/unit/train_support.h"

#include <math.h>
#include <stdlib.h>

/* How the seven samples go into batches: next-fit in the order given, within a budget. */
typedef struct cutting {
    const char *name;
    int64_t budget;
    int32_t align;
    int order[SAMPLES];
    int32_t recompute, two_pass;
    int64_t logits_rows;
} cutting;

static const cutting cuttings[] = {
    {"one batch", 338, 1, {0, 1, 2, 3, 4, 5, 6}, 0, 0, 0},
    {"one at a time", 128, 128, {0, 1, 2, 3, 4, 5, 6}, 0, 0, 0},
    {"budget 160", 160, 1, {6, 0, 4, 1, 3, 2, 5}, 0, 0, 50},
    {"budget 200, slots of 16, recomputed", 200, 16, {4, 2, 6, 0, 5, 3, 1}, 1, 0, 7},
    {"budget 384, slots of 8, two passes", 384, 8, {5, 4, 3, 2, 1, 0, 6}, 0, 1, 100},
    {"budget 144, two passes, recomputed", 144, 4, {0, 1, 2, 3, 4, 5, 6}, 1, 1, 64},
};
enum { CUTTINGS = sizeof cuttings / sizeof *cuttings };

/* Samples from `first` that fit; at least one. */
static int fit(const golden *g, const cutting *c, int first) {
    int64_t used = 0;
    int count = 0;
    while (first + count < SAMPLES) {
        int64_t slot = (g->lengths[c->order[first + count]] + c->align - 1) / c->align * c->align;
        if (count && used + slot > c->budget) break;
        used += slot;
        count++;
    }
    return count;
}

/* The weighted sum, as a loss of the caller's. */
static ravel_status likelihood(void *user, int64_t tag, const float *logprob, float *coef, ravel_error *err) {
    const train_batch *b = *(const train_batch **)user;
    (void)tag, (void)logprob, (void)err;
    for (int32_t t = 0; t < b->cu_seqlens_padded[b->samples]; t++) coef[t] = -b->weights[t];
    return RAVEL_OK;
}

static ravel_status run(rig *r, const cutting *c, const train_batch *b, train_result *result, ravel_error *err) {
    if (!c->two_pass) return train_model_learn(r->model, b, NULL, result, err);
    train_loss loss = {.couple = likelihood, .user = &(const train_batch *){b}};
    return train_model_learn(r->model, b, &loss, result, err);
}

/* Log-probs of scored tokens against the golden losses. */
static bool nll_agree(const golden *g, const cutting *c, int first, int count, const train_batch *b,
                      const float *logprob) {
    double worst = 0;
    for (int i = 0; i < count; i++) {
        int sample = c->order[first + i];
        for (int32_t t = 1; t < g->lengths[sample]; t++) {
            int32_t place = b->cu_seqlens_padded[i] + t;
            double want = g->mask[sample][t] != 0 ? -g->nll[sample][t - 1] : 0;
            worst = fmax(worst, fabs(logprob[place] - want));
        }
    }
    if (worst > 1e-5) check_fail(__FILE__, __LINE__, "%s: token losses are wrong by %g", c->name, worst);
    return worst <= 1e-5;
}

/* Runs all batches of a cutting; the loss, and the gradients in the model. */
static bool learn(rig *r, const golden *g, const cutting *c, int mode, double *loss) {
    ravel_error err = RAVEL_ERROR_INIT;
    bool good = true;
    *loss = 0;
    train_model_clear_grads(r->model);
    for (int first = 0, count; first < SAMPLES && good; first += count) {
        count = fit(g, c, first);
        train_batch b = golden_batch(g, mode, c->order + first, count, c->align);
        float *logprob = malloc((size_t)b.cu_seqlens_padded[count] * sizeof *logprob);
        train_result result = {.logprob = logprob};
        good = run(r, c, &b, &result, &err) == RAVEL_OK && nll_agree(g, c, first, count, &b, logprob);
        if (err.status) check_fail(__FILE__, __LINE__, "%s: %s", c->name, err.message);
        *loss += result.loss;
        free(logprob);
        batch_free(&b);
    }
    return good;
}

static bool grads_agree(const rig *r, const char *name, int mode) {
    char path[128], key[160];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_safetensors *file = NULL;
    bool good = true;
    (void)snprintf(path, sizeof path, GOLDEN "/grads-%s.safetensors", golden_modes[mode]);
    if (ravel_safetensors_open(path, NULL, &file, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    const train_params *params = train_model_params(r->model);
    float *grads = rig_grads(r);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = params->tensors + i;
        const ravel_safetensor *want = NULL;
        (void)snprintf(key, sizeof key, "%s/%s", golden_modes[mode], t->name);
        if (ravel_safetensors_get(file, key, t->rank, t->dims, &want, &err)) break;
        double off = relative_distance(grads + t->offset, want->data, t->count);
        if (off <= 1e-4) continue;
        check_fail(__FILE__, __LINE__, "%s, %s: gradient of %s is off by %g", name, golden_modes[mode], t->name, off);
        good = false;
    }
    if (err.status) check_fail(__FILE__, __LINE__, "%s", err.message);
    free(grads);
    ravel_safetensors_free(file);
    return good && !err.status;
}

/* Every cutting in every mode, or (the reference is slow) in one mode, each in another. */
static void golden_on(const char *set, int32_t threads, bool every_mode) {
    golden g;
    CHECK(golden_open(&g));
    for (int i = 0; i < CUTTINGS; i++) {
        const cutting *c = cuttings + i;
        train_model_options options;
        train_model_options_default(&options);
        options.budget = c->budget;
        options.recompute = c->recompute;
        options.logits_rows = c->logits_rows;
        rig r;
        CHECK(rig_golden(&r, set, threads, &options));
        for (int mode = 0; mode < MODES; mode++) {
            double loss;
            if (!every_mode && mode != i % MODES) continue;
            CHECK(learn(&r, &g, c, mode, &loss));
            CHECK(fabs(loss - golden_losses[mode]) <= 1e-6 * golden_losses[mode]);
            EXPECT(grads_agree(&r, c->name, mode));
        }
        rig_close(&r);
    }
    ravel_safetensors_free(g.file);
}

TEST(train_golden_reference) {
    golden_on("ref", 1, check_scale(0, 1));
}

static const char *const fast[] = {"cpu-avx512", "cpu-avx2", "cpu-base"};
enum { FAST = sizeof fast / sizeof *fast };

TEST(train_golden_fast) {
    bool every_mode = check_rounds(2, 2) > 1; /* sanitizers: the first */
    for (int i = 0; i < FAST; i++)
        if (rig_can(fast[i])) golden_on(fast[i], 1, every_mode);
    golden_on("cpu", 3, every_mode);
}

/* Unmasked losses of every token, without gradients. */
static void score_on(const char *set) {
    golden g;
    CHECK(golden_open(&g));
    train_model_options options;
    train_model_options_default(&options);
    options.budget = 338;
    options.inference = 1;
    rig r;
    CHECK(rig_golden(&r, set, 1, &options));
    static const int order[SAMPLES] = {0, 1, 2, 3, 4, 5, 6};
    train_batch b = golden_batch(&g, 0, order, SAMPLES, 1), all = b;
    all.weights = NULL;
    float logprob[338], entropy[338];
    train_result result = {.logprob = logprob, .entropy = entropy};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_model_score(r.model, &all, &result, &err), &err);
    CHECK_EQ(result.scored, 338 - SAMPLES);
    for (int i = 0; i < SAMPLES; i++)
        for (int32_t t = 1; t < g.lengths[i]; t++) CHECK(fabs(logprob[b.cu_seqlens[i] + t] + g.nll[i][t - 1]) <= 1e-5);
    CHECK(logprob[0] == 0 && logprob[17] == 0); /* first tokens are not scored */
    CHECK_EQ(train_model_learn(r.model, &b, NULL, &result, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "inference");
    batch_free(&b);
    rig_close(&r);
    ravel_safetensors_free(g.file);
}

TEST(train_golden_score_without_mask) {
    score_on("ref");
    for (int i = 0; i < FAST; i++)
        if (rig_can(fast[i])) score_on(fast[i]);
}
