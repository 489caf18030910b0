/* Every kernel of every fast set against the reference, over random shapes; and the same bits for any number of
 * threads. */
#include "tests/unit/train_support.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <math.h>
#include <stdlib.h>

static ravel__rng rng;

static const char *const sets[] = {"cpu-avx512", "cpu-avx2", "cpu-base"};
enum { SETS = sizeof sets / sizeof *sets, THREADS = 3 };

/* The reference and a fast set on 1 and 3 threads; results of the last two must be the same bits. */
typedef struct bench_of_three {
    const train_kernels *ref, *fast;
    train_device *ref_device, *one, *many;
    const char *name;
} trio;

static const train_limits limits = {.tokens = 3000,
                                    .longest = 800,
                                    .samples = 100,
                                    .width = 3000,
                                    .heads = 8,
                                    .kv_heads = 8,
                                    .head_dim = 160,
                                    .vocab = 3000,
                                    .cached = 600};

static bool trio_open(trio *t, const char *set, int32_t products) {
    ravel_error err = RAVEL_ERROR_INIT;
    *t = (trio){.name = set};
    train_device_options one = {.threads = 1, .products = products}, many = {.threads = THREADS, .products = products};
    bool good =
        train_kernels_find("ref", &t->ref, &err) == RAVEL_OK && train_kernels_find(set, &t->fast, &err) == RAVEL_OK &&
        t->ref->open(NULL, &t->ref_device, &err) == RAVEL_OK &&
        t->ref->reserve(t->ref_device, &limits, &err) == RAVEL_OK && t->fast->open(&one, &t->one, &err) == RAVEL_OK &&
        t->fast->open(&many, &t->many, &err) == RAVEL_OK && t->fast->reserve(t->one, &limits, &err) == RAVEL_OK &&
        t->fast->reserve(t->many, &limits, &err) == RAVEL_OK;
    if (!good) check_fail(__FILE__, __LINE__, "%s: %s", set, err.message);
    return good;
}

static void trio_close(trio *t) {
    if (t->ref) t->ref->close(t->ref_device);
    if (t->fast) t->fast->close(t->one);
    if (t->fast) t->fast->close(t->many);
}

static float *random_array(int64_t n, double size) {
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(size * ravel__rng_normal(&rng));
    return x;
}

static float *copy_of(const float *x, int64_t n) {
    float *y = malloc((size_t)(n + 1) * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)ravel__rng_below(&rng, (uint64_t)(high - low + 1));
}

/* An output in three versions, all starting from the same content. */
typedef struct output {
    float *ref, *one, *many;
    int64_t n;
} output;

static output output_from(const float *start, int64_t n) {
    return (output){copy_of(start, n), copy_of(start, n), copy_of(start, n), n};
}

static output output_random(int64_t n) {
    float *start = random_array(n, 1);
    output o = output_from(start, n);
    free(start);
    return o;
}

static void output_check(const trio *t, output *o, const char *what, double tolerance) {
    double off = relative_distance(o->one, o->ref, o->n);
    if (!(off <= tolerance)) check_fail(__FILE__, __LINE__, "%s: %s is off by %g", t->name, what, off);
    if (memcmp(o->one, o->many, (size_t)o->n * sizeof *o->one) != 0)
        check_fail(__FILE__, __LINE__, "%s: %s depends on the number of threads", t->name, what);
    free(o->ref), free(o->one), free(o->many);
}

/* Calls a kernel three times; `pick` chooses ref, one or many in its arguments. */
#define RUN(t, kernel, pick, ...)                                              \
    do {                                                                       \
        for (int pick = 0; pick < 3; pick++) {                                 \
            const train_kernels *set = pick ? (t)->fast : (t)->ref;            \
            train_device *devices[3] = {(t)->ref_device, (t)->one, (t)->many}; \
            set->kernel(devices[pick], __VA_ARGS__);                           \
        }                                                                      \
    } while (0)
#define OF(output, pick) ((pick) == 0 ? (output).ref : (pick) == 1 ? (output).one : (output).many)

static void each_set(void (*body)(const trio *t)) {
    rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < SETS; i++) {
        trio t;
        if (!rig_can(sets[i])) continue;
        if (trio_open(&t, sets[i], TRAIN_PRODUCTS_OWN)) body(&t);
        trio_close(&t);
    }
}

/* ---- products ------------------------------------------------------------------------------------------- */

enum { TRANS_A = 1, TRANS_B = 2, ADD = 4, EXACT = 8, WAYS = 16 };

static void one_product(const trio *t, int64_t m, int64_t n, int64_t k, int way) {
    int trans_a = (way & TRANS_A) != 0, trans_b = (way & TRANS_B) != 0, add = (way & ADD) != 0;
    int exact = (way & EXACT) != 0;
    if (exact) trans_a = 0, trans_b = 1;
    int64_t lda = (trans_a ? m : k) + between(0, 3), ldb = (trans_b ? k : n) + between(0, 3), ldc = n + between(0, 3);
    float *a = random_array(lda * (trans_a ? k : m), 1), *b = random_array(ldb * (trans_b ? n : k), 1);
    output c = output_random(ldc * m);
    train_matmul x = {.m = m,
                      .n = n,
                      .k = k,
                      .a = a,
                      .b = b,
                      .lda = lda,
                      .ldb = ldb,
                      .ldc = ldc,
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .add = add,
                      .exact = exact};
    RUN(t, matmul, p, (x.c = OF(c, p), &x));
    output_check(t, &c, "a product", 1e-6);
    free(a), free(b);
}

static void products(const trio *t) {
    for (int i = 0; i < check_scale(40, 400); i++)
        one_product(t, between(1, 70), between(1, 150), between(1, 90), i % WAYS);
    for (int way = 0; way < WAYS; way++) {
        one_product(t, 200, 70, 1100, way); /* more than one part of k and block of rows */
        one_product(t, 3, 2800, 20, way);   /* more than one block of columns in the narrow sets */
    }
}

TEST(train_kernels_products) {
    each_set(products);
}

TEST(train_kernels_products_by_openblas) {
#ifdef RAVEL_HAVE_OPENBLAS
    rng = ravel__rng_seed(check_seed());
    trio t;
    CHECK(trio_open(&t, "cpu-base", TRAIN_PRODUCTS_OPENBLAS));
    for (int i = 0; i < 40; i++) one_product(&t, between(1, 70), between(1, 150), between(1, 90), i % WAYS);
    for (int way = 0; way < EXACT; way++) one_product(&t, 1500, 20, 30, way);
    trio_close(&t);
    const train_kernels *ref = NULL;
    train_device *device = NULL;
    train_device_options options = {.products = TRAIN_PRODUCTS_OPENBLAS};
    CHECK(train_kernels_find("ref", &ref, NULL) == RAVEL_OK);
    CHECK_EQ(ref->open(&options, &device, NULL), RAVEL_E_UNSUPPORTED);
#else
    check_skip("this build has no OpenBLAS");
#endif
}

/* A row of an exact product is the same bits alone and among others. */
static void exact_rows(const trio *t) {
    for (int i = 0; i < 20; i++) {
        int64_t m = between(2, 30), n = between(1, 100), k = between(1, 200), row = between(0, m - 1);
        float *a = random_array(m * k, 1), *b = random_array(n * k, 1), *all = random_array(m * n, 1);
        float *alone = random_array(n, 1);
        train_matmul x = {.m = m, .n = n, .k = k, .a = a, .b = b, .c = all, .trans_b = 1, .exact = 1};
        t->fast->matmul(t->one, &x);
        x.m = 1;
        x.a = a + row * k;
        x.c = alone;
        t->fast->matmul(t->one, &x);
        EXPECT(memcmp(alone, all + row * n, (size_t)n * sizeof *all) == 0);
        free(a), free(b), free(all), free(alone);
    }
}

TEST(train_kernels_exact_rows_do_not_depend_on_the_others) {
    each_set(exact_rows);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static void rows_of(const trio *t) {
    for (int i = 0; i < check_scale(15, 150); i++) {
        int64_t rows = between(1, 200), width = between(1, 100), table = between(1, 40);
        int32_t *ids = malloc((size_t)rows * sizeof *ids);
        for (int64_t r = 0; r < rows; r++) ids[r] = (int32_t)between(0, table - 1);
        float *from = random_array(table * width, 1), *x = random_array(rows * width, 1);
        output to = output_random(rows * (width + 2)), added = output_random(table * width);
        output biased = output_from(x, rows * width), d_bias = output_random(width);
        train_rows copy = {.rows = rows, .width = width, .from = from, .from_ids = ids, .ld_to = width + 2};
        RUN(t, copy_rows, p, (copy.to = OF(to, p), &copy));
        RUN(t, scatter_add, p, OF(added, p), x, ids, rows, width);
        RUN(t, bias, p, OF(biased, p), from, rows, width, width);
        RUN(t, bias_backward, p, OF(d_bias, p), x, rows, width, width);
        output_check(t, &to, "copy_rows", 0);
        output_check(t, &added, "scatter_add", 1e-6);
        output_check(t, &biased, "bias", 0);
        output_check(t, &d_bias, "bias_backward", 1e-5);
        free(ids), free(from), free(x);
    }
}

TEST(train_kernels_rows) {
    each_set(rows_of);
}

static void norms(const trio *t) {
    for (int i = 0; i < check_scale(15, 150); i++) {
        int64_t rows = between(1, 150), width = between(1, 130), n = rows * width;
        float *x = random_array(n, 2), *add = i % 2 ? random_array(n, 1) : NULL, *w = random_array(width, 1);
        float *d_y = random_array(n, 1);
        output y = output_random(n), sum = output_random(n), d_x = output_random(n), d_w = output_random(width);
        RUN(t, rmsnorm, p, OF(y, p), OF(sum, p), x, add, w, 1e-6f, rows, width);
        RUN(t, rmsnorm_backward, p, OF(d_x, p), OF(d_w, p), d_y, x, w, 1e-6f, rows, width);
        output_check(t, &y, "rmsnorm", 1e-6);
        output_check(t, &sum, "sum of rmsnorm", 0);
        output_check(t, &d_x, "rmsnorm_backward, x", 2e-6);
        output_check(t, &d_w, "rmsnorm_backward, weight", 1e-5);
        free(x), free(add), free(w), free(d_y);
    }
}

TEST(train_kernels_rmsnorm) {
    each_set(norms);
}

static void ropes(const trio *t) {
    for (int i = 0; i < check_scale(12, 100); i++) {
        int64_t tokens = between(1, 150), kv = between(1, 3), heads = kv * between(1, 3), half = between(1, 70);
        int64_t dim = 2 * half, width = (heads + 2 * kv) * dim;
        float *qkv = random_array(tokens * width, 1), *wq = random_array(dim, 1), *wk = random_array(dim, 1);
        float *cosine = random_array(5 * half, 1), *sine = random_array(5 * half, 1);
        float *d_q = random_array(tokens * heads * dim, 1), *d_k = random_array(tokens * kv * dim, 1);
        int32_t *places = malloc((size_t)tokens * sizeof *places);
        for (int64_t r = 0; r < tokens; r++) places[r] = (int32_t)between(0, 4);
        output q = output_random(tokens * heads * dim), k = output_random(tokens * kv * dim);
        output d_qkv = output_random(tokens * width), d_wq = output_random(dim), d_wk = output_random(dim);
        train_rope x = {.tokens = tokens,
                        .heads = (int32_t)heads,
                        .kv_heads = (int32_t)kv,
                        .head_dim = (int32_t)dim,
                        .eps = 1e-6f,
                        .qkv = qkv,
                        .q_weight = i % 3 ? wq : NULL,
                        .k_weight = i % 3 ? wk : NULL,
                        .cosine = cosine,
                        .sine = sine,
                        .positions = places,
                        .d_q = d_q,
                        .d_k = d_k};
        RUN(t, rope, p, (x.q = OF(q, p), x.k = OF(k, p), &x));
        RUN(t, rope_backward, p, (x.d_qkv = OF(d_qkv, p), x.d_q_weight = OF(d_wq, p), x.d_k_weight = OF(d_wk, p), &x));
        output_check(t, &q, "rope, q", 1e-6);
        output_check(t, &k, "rope, k", 1e-6);
        output_check(t, &d_qkv, "rope_backward, qkv", 2e-6);
        output_check(t, &d_wq, "rope_backward, q weight", 1e-5);
        output_check(t, &d_wk, "rope_backward, k weight", 1e-5);
        free(qkv), free(wq), free(wk), free(cosine), free(sine), free(d_q), free(d_k), free(places);
    }
}

TEST(train_kernels_rope) {
    each_set(ropes);
}

static void swiglus(const trio *t) {
    for (int i = 0; i < check_scale(10, 100); i++) {
        int64_t rows = between(1, 150), ffn = between(1, 100), n = rows * ffn;
        float *gate_up = random_array(2 * n, i % 2 ? 3 : 60),
              *d_h = random_array(n, 1); /* 60: past where exp overflows */
        output h = output_random(n), again = output_random(n), d = output_from(gate_up, 2 * n);
        RUN(t, swiglu, p, OF(h, p), gate_up, rows, ffn);
        RUN(t, swiglu_backward, p, OF(d, p), OF(again, p), d_h, OF(d, p), rows, ffn);
        output_check(t, &h, "swiglu", 1e-6);
        output_check(t, &again, "swiglu_backward, h", 1e-6);
        output_check(t, &d, "swiglu_backward, in place", 1e-6);
        free(gate_up), free(d_h);
    }
}

TEST(train_kernels_swiglu) {
    each_set(swiglus);
}

/* ---- attention ------------------------------------------------------------------------------------------ */

enum { MOST_SAMPLES = 8 };

/* Samples of the lengths given (0: none), with gaps between; rows of q, k, v a little further apart than need be. */
static void one_attention(const trio *t, const int32_t *lengths, int64_t kv, int64_t group, int64_t dim, double size) {
    int32_t starts[MOST_SAMPLES], samples = 0, tokens = 0, longest = 0;
    for (; samples < MOST_SAMPLES && lengths[samples]; samples++) {
        starts[samples] = tokens;
        tokens += lengths[samples] + (int32_t)between(0, 2);
        if (lengths[samples] > longest) longest = lengths[samples];
    }
    int64_t heads = kv * group, q_width = heads * dim, kv_width = kv * dim, ld = q_width + kv_width;
    float *q = random_array(tokens * ld, size), *k = random_array(tokens * ld, size), *v = random_array(tokens * ld, 1);
    float *d_o = random_array(tokens * q_width, 1);
    output o = output_random(tokens * q_width), lse = output_random(tokens * heads);
    output d_q = output_random(tokens * ld), d_k = output_random(tokens * ld), d_v = output_random(tokens * ld);
    train_ragged batch = {
        .tokens = tokens, .samples = samples, .longest = longest, .starts = starts, .lengths = lengths};
    train_attention x = {.batch = batch,
                         .heads = (int32_t)heads,
                         .kv_heads = (int32_t)kv,
                         .head_dim = (int32_t)dim,
                         .scale = (float)(1 / sqrt((double)dim)),
                         .q = q,
                         .k = k,
                         .v = v,
                         .ld_q = ld,
                         .ld_k = ld,
                         .ld_v = ld,
                         .d_o = d_o,
                         .ld_dq = ld,
                         .ld_dk = ld,
                         .ld_dv = ld};
    RUN(t, attention, p, (x.o = OF(o, p), x.lse = OF(lse, p), &x));
    RUN(t, attention_backward, p,
        (x.o = OF(o, p), x.lse = OF(lse, p), x.d_q = OF(d_q, p), x.d_k = OF(d_k, p), x.d_v = OF(d_v, p), &x));
    /* A weight is exp of a score, so it is as exact as the score is in absolute terms; those grow as size squared. */
    double tolerance = 2e-6 * size * size;
    output_check(t, &o, "attention, o", tolerance);
    output_check(t, &lse, "attention, lse", 1e-6);
    output_check(t, &d_q, "attention_backward, q", 2 * tolerance);
    output_check(t, &d_k, "attention_backward, k", 2 * tolerance);
    output_check(t, &d_v, "attention_backward, v", 2 * tolerance);
    free(q), free(k), free(v), free(d_o);
}

static void attentions(const trio *t) {
    static const int32_t edges[][MOST_SAMPLES] = {{1},      {6, 1, 7}, {48, 49, 47, 5}, {255, 1, 2},
                                                  {256, 3}, {257, 16}, {530, 64, 63}};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        one_attention(t, edges[i], 1 + (int64_t)i % 2, 1 + (int64_t)i % 3, i == 6 ? 18 : 16, 1);
    for (int i = 0; i < check_scale(8, 80); i++) {
        int32_t lengths[MOST_SAMPLES] = {0};
        int64_t count = between(1, 4);
        for (int64_t s = 0; s < count; s++) lengths[s] = (int32_t)between(1, check_scale(70, 300));
        one_attention(t, lengths, between(1, 2), between(1, 3), between(1, 80), i % 2 ? 1 : 6); /* 6: sharp weights */
    }
    static const int32_t wide[MOST_SAMPLES] = {60, 3};
    one_attention(t, wide, 1, 2, 144, 1);
}

TEST(train_kernels_attention) {
    each_set(attentions);
}

static void cached(const trio *t) {
    for (int i = 0; i < check_scale(12, 100); i++) {
        int64_t rows = between(1, 9), kv = between(1, 2), heads = kv * between(1, 3), dim = between(1, 150), room = 300;
        int32_t slots[9], lengths[9];
        for (int64_t r = 0; r < rows; r++) slots[r] = (int32_t)between(0, 2), lengths[r] = (int32_t)between(1, room);
        int64_t n = 3 * room * kv * dim;
        float *q = random_array(rows * heads * dim, 1), *k = random_array(n, 1), *v = random_array(n, 1);
        output o = output_random(rows * heads * dim);
        train_cached x = {.rows = (int32_t)rows,
                          .heads = (int32_t)heads,
                          .kv_heads = (int32_t)kv,
                          .head_dim = (int32_t)dim,
                          .scale = (float)(1 / sqrt((double)dim)),
                          .slot_tokens = room,
                          .longest = room,
                          .q = q,
                          .ld_q = heads * dim,
                          .k_cache = k,
                          .v_cache = v,
                          .slots = slots,
                          .lengths = lengths};
        RUN(t, attention_cached, p, (x.o = OF(o, p), &x));
        output_check(t, &o, "attention_cached", 2e-6);
        free(q), free(k), free(v);
    }
}

TEST(train_kernels_attention_over_a_cache) {
    each_set(cached);
}

/* ---- the head and flat arrays --------------------------------------------------------------------------- */

static void softmaxes(const trio *t) {
    for (int i = 0; i < check_scale(12, 100); i++) {
        int64_t rows = between(1, 20), vocab = between(1, 400), n = rows * vocab;
        float *logits = random_array(n, i % 2 ? 2 : 30), *coef = random_array(rows, 1), *bonus = random_array(rows, 1);
        int32_t *targets = malloc((size_t)rows * sizeof *targets);
        for (int64_t r = 0; r < rows; r++) targets[r] = (int32_t)between(0, vocab - 1);
        output logprob = output_random(rows), lse = output_random(rows), entropy = output_random(rows);
        output d = output_from(logits, n);
        train_softmax x = {.rows = rows, .vocab = vocab, .logits = logits, .scale = 0.8f, .targets = targets};
        RUN(t, softmax, p, (x.logprob = OF(logprob, p), x.lse = OF(lse, p), x.entropy = OF(entropy, p), &x));
        x.coef = coef;
        x.entropy_coef = i % 3 ? bonus : NULL;
        RUN(t, softmax_backward, p, (x.logits = OF(d, p), x.lse = OF(lse, p), x.entropy = OF(entropy, p), &x));
        for (int64_t r = 0; r < rows; r++) {
            EXPECT(fabsf(logprob.one[r] - logprob.ref[r]) <= 1e-5f * (1 + fabsf(lse.ref[r])));
            EXPECT(fabsf(entropy.one[r] - entropy.ref[r]) <= 1e-5f * (1 + fabsf(lse.ref[r])));
        }
        output_check(t, &logprob, "softmax, logprob", 1e-4);
        output_check(t, &lse, "softmax, lse", 1e-6);
        output_check(t, &entropy, "softmax, entropy", 1e-4);
        output_check(t, &d, "softmax_backward", vocab == 1 ? INFINITY : 2e-5);
        free(logits), free(coef), free(bonus), free(targets);
    }
}

TEST(train_kernels_softmax) {
    each_set(softmaxes);
}

static void flats(const trio *t) {
    for (int i = 0; i < check_scale(4, 40); i++) {
        int64_t n = between(1, 40000);
        float *grad = random_array(n, 1e-2), *m = random_array(n, 1e-2), *v = random_array(n, 1e-4),
              *w = random_array(n, 1);
        for (int64_t e = 0; e < n; e++) v[e] = fabsf(v[e]);
        output ow = output_from(w, n), om = output_from(m, n), ov = output_from(v, n);
        train_adamw x = {.n = n,
                         .grad = grad,
                         .lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .grad_scale = 0.7,
                         .step = 1 + i};
        double sums[3];
        RUN(t, adamw, p, (x.w = OF(ow, p), x.m = OF(om, p), x.v = OF(ov, p), &x));
        RUN(t, sum_squares, p, w, n, &sums[p]);
        EXPECT(fabs(sums[1] - sums[0]) <= 1e-6 * sums[0] && sums[1] == sums[2]);
        output_check(t, &ow, "adamw, w", 1e-6);
        output_check(t, &om, "adamw, m", 1e-6);
        output_check(t, &ov, "adamw, v", 1e-6);
        free(grad), free(m), free(v), free(w);
    }
}

TEST(train_kernels_flat_arrays) {
    each_set(flats);
}
