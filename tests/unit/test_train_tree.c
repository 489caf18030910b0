/* Batches whose samples share prefixes against the same samples one by one: log-probs, loss, sums and every gradient, for random
 * forests with shared loss tokens of both signs. */
#include "base/rng.h"
#include "tests/unit/train_support.h"

#include <math.h>
#include <stdlib.h>

enum { SAMPLES_MOST = 14, LONGEST = 30, FLAT = SAMPLES_MOST * (LONGEST + 4), VOCAB = 53, BUDGET = 100, MODELS = 7 };

typedef struct forest {
    int32_t count, lengths[SAMPLES_MOST], shared[SAMPLES_MOST];
    int32_t cu[SAMPLES_MOST + 1], padded[SAMPLES_MOST + 1];
    int32_t tokens[FLAT], targets[FLAT];
    float weights[FLAT], old[FLAT], generator[FLAT], reference[FLAT], advantages[SAMPLES_MOST];
    int64_t unique, both_signs; /* shared losses whose samples have advantages of both signs */
} forest;

typedef struct row {
    int32_t length, tokens[LONGEST];
} row;

static int compare(const void *a, const void *b) {
    const row *x = a, *y = b;
    for (int32_t i = 0; i < x->length && i < y->length; i++)
        if (x->tokens[i] != y->tokens[i]) return x->tokens[i] < y->tokens[i] ? -1 : 1;
    return y->length - x->length;
}

static void text(ravel__rng *rng, row *r, int64_t more) {
    for (int64_t i = 0; i < more && r->length < LONGEST; i++)
        r->tokens[r->length++] = (int32_t)ravel__rng_below(rng, VOCAB);
}

/* Prompts with answers that begin alike, duplicates, prefixes of others, and samples that share nothing. */
static int32_t draw_rows(ravel__rng *rng, row *rows) {
    row root = {0}, prompt, stem;
    int32_t count = 0, most = 1 + (int32_t)ravel__rng_below(rng, SAMPLES_MOST);
    text(rng, &root, (int64_t)ravel__rng_below(rng, 5));
    while (count < most) {
        uint64_t kind = count ? ravel__rng_below(rng, 6) : 0;
        if (kind == 0) prompt = root, text(rng, &prompt, 1 + (int64_t)ravel__rng_below(rng, 9)), stem = prompt;
        if (kind == 1) stem = prompt, text(rng, &stem, (int64_t)ravel__rng_below(rng, 5));
        row *r = rows + count++;
        *r = stem;
        if (kind == 4) *r = rows[ravel__rng_below(rng, (uint64_t)count - 1)];               /* a duplicate, */
        if (kind == 5) r->length = 1 + (int32_t)ravel__rng_below(rng, (uint64_t)r->length); /* a prefix */
        if (kind < 4) text(rng, r, 1 + (int64_t)ravel__rng_below(rng, 8));
    }
    qsort(rows, (size_t)count, sizeof *rows, compare);
    return count;
}

static void draw(forest *f, ravel__rng *rng, int32_t align) {
    row rows[SAMPLES_MOST];
    *f = (forest){.count = draw_rows(rng, rows)};
    for (int32_t i = 0; i < f->count; i++) {
        const row *r = rows + i, *before = rows + i - 1;
        int32_t at = f->padded[i], k = 0;
        while (i && k < r->length && k < before->length && r->tokens[k] == before->tokens[k]) k++;
        f->shared[i] = k;
        f->lengths[i] = r->length;
        f->unique += r->length - k;
        f->cu[i + 1] = f->cu[i] + r->length;
        f->padded[i + 1] = at + (r->length + align - 1) / align * align;
        f->advantages[i] = (float)ravel__rng_unit(rng) * 2 - 1;
        for (int32_t t = 0; t < r->length; t++) {
            f->tokens[at + t] = r->tokens[t];
            f->targets[at + t] = t + 1 < r->length ? r->tokens[t + 1] : -100;
            f->weights[at + t] = ravel__rng_below(rng, 4) ? (float)(0.1 + ravel__rng_unit(rng)) : 0;
            f->old[at + t] = (float)(-4 + ravel__rng_unit(rng) - 0.5);
            f->generator[at + t] = (float)(f->old[at + t] + 0.2 * ravel__rng_unit(rng));
            f->reference[at + t] = (float)(-4 + ravel__rng_unit(rng) - 0.5);
            if (t < k && f->weights[at + t] != 0)
                f->both_signs += f->advantages[i] * f->advantages[i - 1] < 0 && f->weights[f->padded[i - 1] + t] != 0;
        }
        f->weights[at + r->length - 1] = 0; /* with targets it predicts nothing; without, one token more is left out */
    }
}

/* Samples first .. first + count - 1 of the forest as a batch. */
static train_batch batch_of(const forest *f, int32_t first, int32_t count, int targets, int tree, int32_t *cu) {
    int32_t at = f->padded[first];
    for (int32_t i = 0; i <= count; i++) cu[i] = f->cu[first + i] - f->cu[first];
    static int32_t padded[SAMPLES_MOST + 1];
    for (int32_t i = 0; i <= count; i++) padded[i] = f->padded[first + i] - at;
    return (train_batch){.samples = count,
                         .tokens = f->tokens + at,
                         .cu_seqlens = cu,
                         .cu_seqlens_padded = padded,
                         .weights = f->weights + at,
                         .targets = targets ? f->targets + at : NULL,
                         .temperature = 0.9,
                         .shared = tree ? f->shared : NULL};
}

typedef enum kind { NLL, TOKEN, SEQUENCE, COUPLED, KINDS } kind;

/* d(loss)/d(logprob) of a loss that is not linear, place by place. */
static ravel_status couple(void *user, int64_t tag, const float *logprob, float *coef, ravel_error *err) {
    const train_batch *b = user;
    (void)tag, (void)err;
    for (int32_t i = 0; i < b->cu_seqlens_padded[b->samples]; i++)
        coef[i] = b->weights[i] == 0 ? 0 : b->weights[i] * (logprob[i] + 3);
    return RAVEL_OK;
}

static train_loss loss_of(const forest *f, int32_t first, kind k, train_batch *b) {
    int32_t at = f->padded[first];
    train_loss loss = {.old = f->old + at,
                       .generator = f->generator + at,
                       .reference = f->reference + at,
                       .advantages = f->advantages + first,
                       .entropy = 1};
    loss.policy = (train_policy_terms){.sequence = k == SEQUENCE, .kl_kind = TRAIN_KL_K3, .gap = TRAIN_GAP_OLD};
    loss.policy.clip_low = loss.policy.clip_high = 0.2;
    loss.policy.dual_clip = 3;
    loss.policy.kl = 0.1;
    (void)ravel_policy_get_correction(RAVEL_CORRECTION_TIS, 0, 1.1, &loss.policy.correction, NULL);
    loss.policy.entropy = 0.05;
    if (k == COUPLED) loss = (train_loss){.couple = couple, .user = b};
    return loss;
}

typedef struct outcome {
    float *grads, logprob[FLAT];
    double loss;
    train_update update;
} outcome;

static bool learn(rig *r, const forest *f, int32_t first, int32_t count, kind k, int targets, int tree, outcome *out) {
    int32_t cu[SAMPLES_MOST + 1];
    ravel_error err = RAVEL_ERROR_INIT;
    train_batch b = batch_of(f, first, count, targets, tree, cu);
    train_loss loss = loss_of(f, first, k, &b);
    train_result result = {.logprob = out->logprob + f->padded[first]};
    bool ok = train_model_learn(r->model, &b, k == NLL ? NULL : &loss, &result, &err) == RAVEL_OK;
    out->loss += result.loss;
    if (!ok) printf("    %s\n", err.message);
    return EXPECT(ok);
}

static bool run(rig *r, const forest *f, kind k, int targets, int tree, outcome *out) {
    *out = (outcome){0};
    train_model_clear_grads(r->model);
    bool ok = true;
    for (int32_t i = 0; i < f->count && !tree && ok; i++) ok = learn(r, f, i, 1, k, targets, 0, out);
    if (tree) ok = learn(r, f, 0, f->count, k, targets, 1, out);
    ok = ok && EXPECT(train_model_read(r->model, &out->update, NULL) == RAVEL_OK);
    out->grads = rig_grads(r);
    return ok;
}

static bool close_to(double a, double b) {
    return fabs(a - b) <= 1e-5 * (1 + fabs(b));
}

static bool same(const rig *r, const forest *f, const outcome *got, const outcome *want) {
    bool ok = EXPECT(close_to(got->loss, want->loss));
    const double *a = (const double *)&got->update.sums, *b = (const double *)&want->update.sums;
    for (size_t i = 0; i < sizeof got->update.sums / sizeof *a; i++) ok &= EXPECT(close_to(a[i], b[i]));
    for (int32_t i = 0; i < f->count; i++)
        for (int32_t t = f->padded[i]; t < f->padded[i] + f->lengths[i]; t++)
            ok &= fabsf(got->logprob[t] - want->logprob[t]) < 2e-5f;
    double off = relative_distance(got->grads, want->grads, train_model_params(r->model)->elements);
    if (!EXPECT(ok && off < 1e-5)) printf("    gradients are off by %g (%d samples)\n", off, f->count), ok = false;
    return ok;
}

static bool open_model(rig *r, const char *set, int32_t recompute, int32_t attention, int32_t window) {
    ravel_shape shape = small_shape();
    shape.window = window;
    train_model_options options;
    train_model_options_default(&options);
    options.budget = BUDGET; /* so small that gathered keys come in several parts */
    options.flat_tokens = FLAT;
    options.longest = LONGEST;
    options.logits_rows = 17;
    options.recompute = recompute;
    options.tree_attention = attention;
    return rig_open(r, set, 2, &shape, &options) && EXPECT(train_model_init(r->model, 5, 0.2, NULL) == RAVEL_OK);
}

static void random_forests(const char *set, int64_t rounds) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    int64_t signs = 0;
    rig r[MODELS]; /* a window goes by keys, whatever is cheaper */
    for (int i = 0; i < MODELS; i++)
        CHECK(open_model(&r[i], set, i % 3, i < 6 ? i / 3 + TRAIN_TREE_LEVELS : TRAIN_TREE_AUTO, i < 6 ? 0 : 7));
    for (int64_t round = 0; round < rounds; round++) {
        forest f;
        outcome tree, single;
        do draw(&f, &rng, round % 2 ? 1 : 4);
        while (f.unique > BUDGET);
        kind k = (kind)(round % KINDS);
        int targets = (int)(round / KINDS % 2);
        rig *mine = r + round % MODELS;
        bool ok = run(mine, &f, k, targets, 0, &single) && run(mine, &f, k, targets, 1, &tree) &&
                  (k == COUPLED || same(mine, &f, &tree, &single));
        if (ok && k == COUPLED)
            ok = EXPECT(relative_distance(tree.grads, single.grads, train_model_params(mine->model)->elements) < 1e-5);
        free(tree.grads), free(single.grads);
        signs += f.both_signs;
        if (!ok) printf("    round %d, loss %d, targets %d, model %d\n", (int)round, k, targets, (int)(round % MODELS));
        CHECK(ok);
    }
    CHECK(rounds < 16 || signs > 0);
    for (int i = 0; i < MODELS; i++) rig_close(&r[i]);
}

TEST(train_tree_reference_equals_one_by_one) {
    random_forests("ref", check_rounds(24, 300));
}

TEST(train_tree_fast_equals_one_by_one) {
    random_forests("cpu", check_rounds(48, 300));
}

TEST(train_tree_says_what_is_wrong) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    forest f;
    rig r;
    int32_t cu[SAMPLES_MOST + 1];
    do draw(&f, &rng, 1);
    while (f.count < 2 || f.shared[1] < 2 || f.shared[1] == f.lengths[1] || f.unique > BUDGET);
    CHECK(open_model(&r, "ref", 0, TRAIN_TREE_AUTO, 0));
    ravel_error err = RAVEL_ERROR_INIT;
    train_batch b = batch_of(&f, 0, f.count, 1, 1, cu);
    int32_t at = f.padded[1];
    const int32_t token = f.tokens[at];
    f.tokens[at] = token ? 0 : 1; /* in f, whose tokens the batch borrows */
    CHECK(train_model_learn(r.model, &b, NULL, NULL, &err) == RAVEL_E_DATA);
    CHECK_HAS(err.message, "does not begin with the same");
    f.tokens[at] = token;
    f.weights[0] = f.weights[at] = 1;
    f.targets[at] = f.targets[0] ? 0 : 1;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK(train_model_learn(r.model, &b, NULL, NULL, &err) == RAVEL_E_DATA);
    CHECK_HAS(err.message, "to predict");
    f.targets[at] = f.targets[0];
    f.weights[at + f.lengths[1] - 1] = 1;
    f.targets[at + f.lengths[1] - 1] = 3;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK(train_model_learn(r.model, &b, NULL, NULL, &err) == RAVEL_E_DATA);
    CHECK_HAS(err.message, "has a target");
    f.weights[at + f.lengths[1] - 1] = 0;
    CHECK_OK(train_model_learn(r.model, &b, NULL, NULL, &err), &err);
    rig_close(&r);
}
