/* Exact weights: golden losses under every way of cutting the batch, and the identity over random stores. */
#include "tests/unit/store.h"

#include "base/json.h"

#include <ravel/plan.h>
#include <ravel/safetensors.h>
#include <ravel/weights.h>

#include <math.h>
#include <stdlib.h>

#define GOLDEN "tests/golden/qwen3-tiny/"

/* ---- the golden batch ----------------------------------------------------------------------------------- */

enum { SAMPLES = 7, TOKENS = 338 };

typedef struct golden {
    int64_t offsets[SAMPLES + 1], lengths[SAMPLES];
    int32_t ids[TOKENS];
    float mask[TOKENS];
    double nll[TOKENS]; /* one shorter a sample */
    double expected[4]; /* by mode; sum-norm with a divisor of 64 */
    int64_t loss_tokens;
} golden;

static bool read_golden(golden *g) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_safetensors *file = NULL;
    char name[32];
    memset(g, 0, sizeof *g);
    if (ravel_safetensors_open(GOLDEN "batch.safetensors", NULL, &file, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    double *nll = g->nll;
    for (int i = 0; i < SAMPLES; i++) {
        const ravel_safetensor *t = NULL;
        snprintf(name, sizeof name, "ids/%d", i);
        ravel_safetensors_get(file, name, -1, NULL, &t, &err);
        g->lengths[i] = t->count;
        g->offsets[i + 1] = g->offsets[i] + t->count;
        ravel_safetensor_read(t, 0, t->count, RAVEL_I32, g->ids + g->offsets[i], &err);
        snprintf(name, sizeof name, "mask/%d", i);
        ravel_safetensors_get(file, name, 1, &g->lengths[i], &t, &err);
        ravel_safetensor_read(t, 0, t->count, RAVEL_F32, g->mask + g->offsets[i], &err);
        snprintf(name, sizeof name, "token_nll/%d", i);
        if (g->lengths[i] == 1) continue;
        ravel_safetensors_get(file, name, -1, NULL, &t, &err);
        ravel_safetensor_read(t, 0, t->count, RAVEL_F64, nll, &err);
        nll += t->count;
    }
    ravel_safetensors_free(file);
    return EXPECT(err.status == RAVEL_OK && g->offsets[SAMPLES] == TOKENS && nll - g->nll == TOKENS - SAMPLES);
}

static bool read_expected(golden *g) {
    char text[1024];
    FILE *f = fopen(GOLDEN "expected.json", "r");
    size_t bytes = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    ravel__json *doc = NULL;
    if (!EXPECT(ravel__json_parse(text, bytes, NULL, &doc, NULL) == RAVEL_OK)) return false;
    const ravel__json_node *root = ravel__json_root(doc), *loss = ravel__json_get(doc, root, "loss");
    bool good = EXPECT(
        ravel__json_real(ravel__json_get(doc, loss, "token-mean"), &g->expected[RAVEL_TOKEN_MEAN]) &&
        ravel__json_real(ravel__json_get(doc, loss, "seq-mean-token-mean"), &g->expected[RAVEL_SEQ_MEAN_TOKEN_MEAN]) &&
        ravel__json_real(ravel__json_get(doc, loss, "seq-mean-token-sum"), &g->expected[RAVEL_SEQ_MEAN_TOKEN_SUM]) &&
        ravel__json_integer(ravel__json_get(doc, root, "loss_tokens"), &g->loss_tokens));
    g->expected[RAVEL_SEQ_MEAN_TOKEN_SUM_NORM] = g->expected[RAVEL_SEQ_MEAN_TOKEN_SUM] / 64;
    ravel__json_free(doc);
    return good;
}

/* Sum over a packed array of weight * loss, as a framework's loss function does it: it sees packed arrays only. */
static bool packed_loss(const ravel_ragged *ragged, const ravel_bin *bin, ravel_thd_options options, int32_t rank,
                        double *loss) {
    ravel_thd t = {.size = sizeof t};
    options.cp_rank = rank;
    if (!EXPECT(ravel_thd_measure(ragged, bin, &options, &t, NULL) == RAVEL_OK)) return false;
    void *block = malloc(ravel_thd_bytes(ragged, &options, &t));
    ravel_thd_place(ragged, &options, block, &t);
    bool good = EXPECT(ravel_thd_pack(ragged, bin, &options, &t, NULL) == RAVEL_OK);
    const double *nll = t.fields[0], *weights = t.fields[1];
    *loss = 0;
    for (int64_t i = 0; i < t.local_tokens; i++) *loss += weights[i] * nll[i];
    free(block);
    return good;
}

typedef struct cutting {
    int32_t dp, cp;
    int64_t budget;
    int32_t align;
    int32_t method; /* of the planner: each gives another order */
    ravel_weights_options options;
} cutting;

/* The whole update as a framework runs it: loss over cp ranks, micro-steps and dp ranks, summed or averaged. */
static bool framework_loss(const ravel_ragged *ragged, const ravel_plan *plan, const cutting *c, double *total) {
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = c->align;
    options.cp = c->cp;
    *total = 0;
    for (int64_t b = 0; b < plan->bins; b++) {
        const ravel_bin bin = {plan->samples + plan->bin_offsets[b], plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
        for (int32_t rank = 0; rank < c->cp; rank++) {
            double loss;
            if (!packed_loss(ragged, &bin, options, rank, &loss)) return false;
            *total += loss;
        }
    }
    if (c->options.dp_reduce == RAVEL_FRAMEWORK_MEAN) *total /= c->dp;
    if (c->options.cp_reduce == RAVEL_FRAMEWORK_MEAN) *total /= c->cp;
    if (c->options.step_reduce == RAVEL_FRAMEWORK_MEAN) *total /= (double)plan->micro_steps;
    return true;
}

/* Counts rank by rank, as ranks that see only their own bins do, summed in the end. */
static bool count_by_rank(const ravel_ragged *ragged, const ravel_plan *plan, const ravel_field *mask,
                          ravel_counts *sum) {
    memset(sum, 0, sizeof *sum);
    for (int32_t rank = 0; rank < plan->dp; rank++) {
        ravel_counts mine = {0};
        for (int64_t b = rank; b < plan->bins; b += plan->dp) {
            const ravel_bin bin = {plan->samples + plan->bin_offsets[b],
                                   plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
            if (!EXPECT(ravel_counts_add(ragged, &bin, mask, NULL, &mine, NULL) == RAVEL_OK)) return false;
        }
        int64_t words[RAVEL_COUNTS_WORDS], all[RAVEL_COUNTS_WORDS];
        memcpy(words, &mine, sizeof words);
        memcpy(all, sum, sizeof all);
        for (int i = 0; i < RAVEL_COUNTS_WORDS; i++) all[i] += words[i];
        memcpy(sum, all, sizeof all);
    }
    return true;
}

static bool golden_agrees(const golden *g, cutting *c) {
    double weights[TOKENS], total;
    const ravel_field mask = {.name = "mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = g->mask};
    const ravel_field fields[] = {{.name = "nll",
                                   .kind = RAVEL_FIELD_STEP,
                                   .dtype = RAVEL_F64,
                                   .data = g->nll,
                                   .pad = 1e30}, /* loud, if it counts */
                                  {.name = "weights", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F64, .data = weights}};
    const ravel_ragged ragged = {
        .size = sizeof ragged, .count = SAMPLES, .offsets = g->offsets, .fields = fields, .field_count = 2};
    ravel_plan_options po;
    ravel_plan_options_default(&po);
    po.budget = c->budget;
    po.cp = c->cp;
    po.align = c->align;
    po.dp = c->dp;
    po.method = c->method;
    po.count = 2;
    const ravel_plan_input input = {.size = sizeof input, .count = SAMPLES, .lengths = g->lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(&input, &po, &plan, &err)) return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    ravel_counts counts;
    c->options.dp = c->dp;
    c->options.cp = c->cp;
    c->options.micro_steps = plan->micro_steps;
    c->options.divisor = 64;
    bool good = count_by_rank(&ragged, plan, &mask, &counts) && EXPECT(counts.loss_tokens == g->loss_tokens) &&
                EXPECT(counts.samples == SAMPLES && counts.tokens == TOKENS);
    for (int32_t mode = 0; good && mode < 4; mode++) {
        c->options.mode = mode;
        good = EXPECT(ravel_weights_fill(&ragged, NULL, &mask, NULL, &counts, &c->options, RAVEL_F64, weights, &err) ==
                      RAVEL_OK) &&
               framework_loss(&ragged, plan, c, &total);
        if (good && fabs(total - g->expected[mode]) > 1e-12 * g->expected[mode])
            good = (check_fail(__FILE__, __LINE__, "mode %d, dp %d, cp %d, budget %lld: %.17g instead of %.17g", mode,
                               c->dp, c->cp, (long long)c->budget, total, g->expected[mode]),
                    false);
    }
    ravel_plan_free(plan);
    return good;
}

TEST(weights_golden_loss_under_every_cut) {
    golden g;
    CHECK(read_golden(&g) && read_expected(&g));
    int cuts = 0;
    for (int32_t dp = 1; dp <= 8; dp++)
        for (int32_t cp = 1; cp <= 4; cp++)
            for (int64_t cap = 128; cap <= 512; cap += 96)
                for (int32_t method = 0; method <= RAVEL_METHOD_AS_IS; method += 1 + (cuts % 3)) {
                    cutting c = {.dp = dp, .cp = cp, .align = cp > 1 ? 2 * cp : 1, .method = method};
                    c.budget = (cap + 2 * c.align) / cp + c.align;
                    ravel_weights_options_default(&c.options);
                    c.options.dp_reduce = cuts & 1;
                    c.options.cp_reduce = cuts >> 1 & 1;
                    c.options.step_reduce = cuts >> 2 & 1;
                    CHECK(golden_agrees(&g, &c));
                    cuts++;
                }
    CHECK(cuts > 500);
}

/* ---- random stores -------------------------------------------------------------------------------------- */

/* A mask of any kind and dtype over a store, and the same as plain flags per token. */
typedef struct random_mask {
    ravel_field field;
    unsigned char *data;
    uint8_t *flags; /* [tokens] the token counts */
} random_mask;

static void mask_make(random_mask *m, const store *s, ravel__rng *r) {
    static const int32_t dtypes[] = {RAVEL_U8,  RAVEL_BOOL, RAVEL_I32, RAVEL_I64,
                                     RAVEL_F16, RAVEL_BF16, RAVEL_F32, RAVEL_F64};
    int64_t tokens = s->offsets[s->ragged.count];
    m->field =
        (ravel_field){.name = "mask", .kind = (int32_t)ravel__rng_below(r, 3), .dtype = dtypes[ravel__rng_below(r, 8)]};
    int32_t each = ravel_dtype_bytes(m->field.dtype);
    m->data = calloc((size_t)tokens + 1, (size_t)each);
    m->flags = calloc((size_t)tokens + 1, 1);
    m->field.data = m->data;
    for (int64_t i = 0; i < s->ragged.count; i++) {
        int density = (int)ravel__rng_below(r, 4); /* 0: none of the sample's */
        for (int64_t t = 0; t < s->lengths[i]; t++) {
            int64_t at = s->offsets[i] + t;
            bool one = (int)ravel__rng_below(r, 3) < density;
            if (m->field.kind == RAVEL_FIELD_STEP && t > 0)
                ravel_dtype_store(m->field.dtype, m->data + (at - i - 1) * each, one);
            if (m->field.kind != RAVEL_FIELD_STEP) ravel_dtype_store(m->field.dtype, m->data + at * each, one);
            m->flags[at] = one && t > 0; /* nothing predicts the first */
        }
    }
}

static void mask_free(random_mask *m) {
    free(m->data);
    free(m->flags);
}

static int64_t flagged(const store *s, const random_mask *m, int64_t sample) {
    int64_t count = 0;
    for (int64_t t = s->offsets[sample]; t < s->offsets[sample + 1]; t++) count += m->flags[t];
    return count;
}

/* The definition of each mode, with no cleverness: long double, one sample at a time. */
static long double plain_weight(const store *s, const random_mask *m, const double *w, const ravel_weights_options *o,
                                int64_t sample) {
    long double samples = 0, tokens = 0, n = flagged(s, m, sample);
    for (int64_t i = 0; i < s->ragged.count; i++) {
        int64_t mine = flagged(s, m, i);
        tokens += (long double)w[i] * mine;
        if (mine || o->empty == RAVEL_EMPTY_COUNT) samples += w[i];
    }
    long double factor = (o->dp_reduce ? o->dp : 1) * (long double)(o->cp_reduce ? o->cp : 1) *
                         (long double)(o->step_reduce ? o->micro_steps : 1);
    if (n == 0 || w[sample] == 0) return 0;
    switch (o->mode) {
    case RAVEL_TOKEN_MEAN: return factor * w[sample] / tokens;
    case RAVEL_SEQ_MEAN_TOKEN_MEAN: return factor * w[sample] / (samples * n);
    case RAVEL_SEQ_MEAN_TOKEN_SUM: return factor * w[sample] / samples;
    default: return factor * w[sample] / (samples * o->divisor);
    }
}

static bool near(long double a, long double b) {
    return fabsl(a - b) <= 4e-16L * fabsl(b);
}

static void random_weights_options(ravel__rng *r, ravel_weights_options *o) {
    ravel_weights_options_default(o);
    o->mode = (int32_t)ravel__rng_below(r, 4);
    o->empty = (int32_t)ravel__rng_below(r, 2);
    o->divisor = 1 + (int64_t)ravel__rng_below(r, 5000);
    o->dp = 1 + (int32_t)ravel__rng_below(r, 64);
    o->cp = 1 + (int32_t)ravel__rng_below(r, 8);
    o->micro_steps = 1 + (int64_t)ravel__rng_below(r, 30);
    o->dp_reduce = (int32_t)ravel__rng_below(r, 2);
    o->cp_reduce = (int32_t)ravel__rng_below(r, 2);
    o->step_reduce = (int32_t)ravel__rng_below(r, 2);
}

/* Two ranks in one process: the first counts, the second adds its own. */
typedef struct two_ranks {
    int64_t other[RAVEL_COUNTS_WORDS + 8];
} two_ranks;

static ravel_status remember(void *user, int64_t *values, size_t count, ravel_error *err) {
    two_ranks *two = user;
    (void)err;
    memcpy(two->other, values, count * sizeof *values);
    return RAVEL_OK;
}

static ravel_status add_other(void *user, int64_t *values, size_t count, ravel_error *err) {
    const two_ranks *two = user;
    (void)err;
    for (size_t i = 0; i < count; i++) values[i] += two->other[i];
    return RAVEL_OK;
}

static bool random_case(ravel__rng *r) {
    store s;
    random_mask m;
    double w[STORE_SAMPLES];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_weights_options o;
    store_make(&s, r, 1 + (int64_t)ravel__rng_below(r, 30), 60);
    mask_make(&m, &s, r);
    random_weights_options(r, &o);
    int64_t n = s.ragged.count, cut = (int64_t)ravel__rng_below(r, (uint64_t)n + 1), tokens = s.offsets[n];
    bool weighted = ravel__rng_below(r, 2);
    for (int64_t i = 0; i < n; i++)
        w[i] = !weighted ? 1 : ravel__rng_below(r, 4) ? ldexp((double)ravel__rng_below(r, 1 << 20), -18) : 0;
    const double *given = weighted ? w : NULL;
    const ravel_bin first = {s.everyone, cut}, second = {s.everyone + cut, n - cut};
    ravel_counts all = {0}, a = {0}, b = {0};
    two_ranks two;
    const ravel_sum_hook note = {remember, &two}, join = {add_other, &two};
    bool good =
        EXPECT(ravel_counts_add(&s.ragged, NULL, &m.field, given, &all, &err) == RAVEL_OK) &&
        EXPECT(ravel_counts_add(&s.ragged, &first, &m.field, given, &a, &err) == RAVEL_OK) &&
        EXPECT(ravel_counts_add(&s.ragged, &second, &m.field, given, &b, &err) == RAVEL_OK) &&
        EXPECT(ravel_counts_sum(&a, &note, &err) == RAVEL_OK && ravel_counts_sum(&b, &join, &err) == RAVEL_OK) &&
        EXPECT(memcmp(&all, &b, sizeof all) == 0);
    float *single = malloc((size_t)tokens * sizeof *single);
    double *exact = malloc((size_t)tokens * sizeof *exact), total = -1;
    memset(single, 0xee, (size_t)tokens * sizeof *single);
    memset(exact, 0xee, (size_t)tokens * sizeof *exact);
    good = good &&
           EXPECT(ravel_weights_fill(&s.ragged, &first, &m.field, given, &all, &o, RAVEL_F64, exact, &err) == RAVEL_OK);
    good = good && EXPECT(ravel_weights_fill(&s.ragged, &second, &m.field, given, &all, &o, RAVEL_F64, exact, &err) ==
                          RAVEL_OK);
    good = good &&
           EXPECT(ravel_weights_fill(&s.ragged, NULL, &m.field, given, &all, &o, RAVEL_F32, single, &err) == RAVEL_OK);
    good = good && EXPECT(ravel_weights_total(&all, &o, &total, &err) == RAVEL_OK);
    long double sum = 0;
    for (int64_t i = 0; good && i < n; i++) {
        long double want = plain_weight(&s, &m, w, &o, i);
        for (int64_t t = s.offsets[i]; good && t < s.offsets[i + 1]; t++) {
            good = EXPECT(m.flags[t] ? near(exact[t], want) : exact[t] == 0) && EXPECT(single[t] == (float)exact[t]);
            sum += exact[t];
        }
    }
    good = good && EXPECT(near(sum, total) || fabsl(sum - total) < 1e-13L * total);
    if (!good) check_fail(__FILE__, __LINE__, "%s", err.message);
    free(single);
    free(exact);
    mask_free(&m);
    store_free(&s);
    return good;
}

TEST(weights_are_the_definition_on_random_stores) {
    ravel__rng r = ravel__rng_seed(check_seed() + 2);
    for (int64_t round = 0; round < check_rounds(800, 50000); round++)
        if (!random_case(&r)) {
            check_fail(__FILE__, __LINE__, "round %lld", (long long)round);
            return;
        }
}

/* ---- edges ---------------------------------------------------------------------------------------------- */

static const int64_t edge_offsets[] = {0, 1, 4, 6};
static const uint8_t edge_mask[] = {1, 0, 0, 0, 1, 1}; /* one token; none; two tokens, of which the second counts */
static const ravel_field edge_field = {.name = "mask", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_U8, .data = edge_mask};
static const ravel_ragged edge = {.size = sizeof edge, .count = 3, .offsets = edge_offsets};

TEST(weights_of_samples_without_loss_tokens) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_counts counts = {0};
    ravel_weights_options o;
    ravel_weights_options_default(&o);
    CHECK_OK(ravel_counts_add(&edge, NULL, &edge_field, NULL, &counts, &err), &err);
    CHECK(counts.samples == 3 && counts.samples_with_loss == 1 && counts.tokens == 6 && counts.loss_tokens == 1);
    int64_t n = -1;
    CHECK_OK(ravel_counts_sample(&edge, 0, &edge_field, &n, &err), &err);
    CHECK_EQ(n, 0);
    double weights[6];
    static const double want[4][2] = {{1, 1}, {1.0 / 3, 1}, {1.0 / 3, 1}, {1.0 / 24, 1.0 / 8}};
    o.divisor = 8;
    for (o.mode = 0; o.mode < 4; o.mode++)
        for (o.empty = 0; o.empty < 2; o.empty++) {
            CHECK_OK(ravel_weights_fill(&edge, NULL, &edge_field, NULL, &counts, &o, RAVEL_F64, weights, &err), &err);
            for (int t = 0; t < 5; t++) CHECK(weights[t] == 0);
            CHECK(weights[5] == want[o.mode][o.empty]);
        }
    /* without a mask, prompts decide; without prompts, every token that is predicted */
    ravel_counts every = {0};
    CHECK_OK(ravel_counts_add(&edge, NULL, NULL, NULL, &every, &err), &err);
    CHECK_EQ(every.loss_tokens, 3);
    const int64_t prompts[] = {0, 2, 2};
    ravel_ragged prompted = edge;
    prompted.prompts = prompts;
    memset(&every, 0, sizeof every);
    CHECK_OK(ravel_counts_add(&prompted, NULL, NULL, NULL, &every, &err), &err);
    CHECK_EQ(every.loss_tokens, 1);
    /* a filler adds nothing */
    const ravel_bin none = {NULL, 0};
    ravel_counts same = every;
    CHECK_OK(ravel_counts_add(&edge, &none, &edge_field, NULL, &every, &err), &err);
    CHECK(memcmp(&same, &every, sizeof same) == 0);
    /* nothing to learn from at all */
    static const uint8_t zeros[6] = {0};
    const ravel_field blank = {.name = "mask", .dtype = RAVEL_U8, .data = zeros};
    ravel_counts empty = {0};
    o.mode = o.empty = 0;
    double total = -1;
    CHECK_OK(ravel_counts_add(&edge, NULL, &blank, NULL, &empty, &err), &err);
    CHECK_OK(ravel_weights_fill(&edge, NULL, &blank, NULL, &empty, &o, RAVEL_F64, weights, &err), &err);
    for (int t = 0; t < 6; t++) CHECK(weights[t] == 0);
    CHECK_OK(ravel_weights_total(&empty, &o, &total, &err), &err);
    CHECK(total == 0);
}

TEST(weights_sums_stay_exact_where_doubles_would_not) {
    /* 4096 + 2^-40 a hundred times: 53 bits are not enough for the sum's last bit */
    enum { N = 100 };
    int64_t offsets[N + 1];
    double w[N];
    for (int i = 0; i <= N; i++) offsets[i] = 3 * (int64_t)i;
    for (int i = 0; i < N; i++) w[i] = i % 2 ? 4096 : 0x1p-40;
    const ravel_ragged ragged = {.size = sizeof ragged, .count = N, .offsets = offsets};
    ravel_counts forward = {0}, backward = {0};
    for (int32_t i = 0; i < N; i++) {
        const int32_t last = N - 1 - i;
        const ravel_bin a = {&i, 1}, b = {&last, 1};
        CHECK_EQ(ravel_counts_add(&ragged, &a, NULL, w, &forward, NULL), RAVEL_OK);
        CHECK_EQ(ravel_counts_add(&ragged, &b, NULL, w, &backward, NULL), RAVEL_OK);
    }
    CHECK(memcmp(&forward, &backward, sizeof forward) == 0);
    CHECK_EQ(forward.weight[0], 50);
    CHECK_EQ(forward.weight[1], 50 * (INT64_C(1) << 20)); /* 4096 is 2^52 of them */
    CHECK_EQ(forward.weighted_tokens[0], 100);
}

TEST(weights_refuse_with_a_sentence) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_counts counts = {0}, none = {0};
    ravel_weights_options o;
    ravel_weights_options_default(&o);
    float half[] = {1, 1, 0.5f, 1, 1, 1}, weights[6];
    ravel_field field = {.name = "loss_mask", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_F32, .data = half};
    CHECK_EQ(ravel_counts_add(&edge, NULL, &field, NULL, &counts, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "\"loss_mask\" of sample 1, token 1 is neither 0 nor 1");
    CHECK_EQ(counts.samples, 0);
    ravel_error_clear(&err);
    half[2] = -0.0f;
    CHECK_OK(ravel_counts_add(&edge, NULL, &field, NULL, &counts, &err), &err);
    CHECK_EQ(counts.loss_tokens, 2);
    const double negative[] = {1, -1, 1}, odd[] = {1, NAN, 1};
    CHECK_EQ(ravel_counts_add(&edge, NULL, &field, negative, &none, &err), RAVEL_E_DATA);
    CHECK_STR(err.message, "the weight of sample 1 is -1; it must be from 0 to 4096");
    CHECK_EQ(ravel_counts_add(&edge, NULL, &field, odd, &none, NULL), RAVEL_E_DATA);
    ravel_error_clear(&err);
    CHECK_EQ(ravel_weights_fill(&edge, NULL, &field, NULL, &none, &o, RAVEL_F32, weights, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "they must be those of the whole update");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_weights_fill(&edge, NULL, &field, NULL, &counts, &o, RAVEL_BF16, weights, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    o.mode = RAVEL_SEQ_MEAN_TOKEN_SUM_NORM;
    CHECK_EQ(ravel_weights_fill(&edge, NULL, &field, NULL, &counts, &o, RAVEL_F32, weights, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs a divisor");
    ravel_error_clear(&err);
    field.kind = RAVEL_FIELD_SAMPLE;
    CHECK_EQ(ravel_counts_add(&edge, NULL, &field, NULL, &none, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
}
