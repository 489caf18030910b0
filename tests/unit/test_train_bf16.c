/* CPU sets with weights in bf16: every kernel that reads weights gives the bits of the f32 set on the same values, on one
 * thread and on several; AdamW steps an f32 master as the f32 set does, and rounds it. */
#include "tests/unit/train_support.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <stdlib.h>

static const char *const sets[][2] = {
    {"cpu-avx512", "cpu-avx512-bf16"}, {"cpu-avx2", "cpu-avx2-bf16"}, {"cpu-base", "cpu-base-bf16"}};
enum { SETS = sizeof sets / sizeof *sets, WIDE = 0, NARROW = 1, NARROW_MANY = 2, DEVICES = 3 };

static const train_limits limits = {.tokens = 300,
                                    .longest = 300,
                                    .samples = 4,
                                    .width = 1300,
                                    .heads = 4,
                                    .kv_heads = 4,
                                    .head_dim = 160,
                                    .vocab = 600};

static ravel__rng rng;
static const train_kernels *kernels[DEVICES];
static train_device *devices[DEVICES];

static bool open_all(const char *const *names) {
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < DEVICES; i++) {
        const train_device_options options = {.threads = i == NARROW_MANY ? 3 : 1, .products = TRAIN_PRODUCTS_OWN};
        if (train_kernels_find(names[i > WIDE], &kernels[i], &err) || kernels[i]->open(&options, &devices[i], &err) ||
            kernels[i]->reserve(devices[i], &limits, &err)) {
            check_fail(__FILE__, __LINE__, "%s: %s", names[i > WIDE], err.message);
            return false;
        }
    }
    return true;
}

static void close_all(void) {
    for (int i = 0; i < DEVICES; i++) kernels[i]->close(devices[i]);
}

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)ravel__rng_below(&rng, (uint64_t)(high - low + 1));
}

/* Arrays are of exact size in the heap, so that sanitizers see a read beyond a row of weights. */
typedef struct weights {
    float *wide;
    uint16_t *narrow;
} weights;

static float *numbers(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)ravel__rng_normal(&rng);
    return x;
}

static weights weights_of(int64_t n) {
    weights w = {numbers(n), malloc((size_t)n * sizeof(uint16_t))};
    EXPECT(ravel_dtype_convert(RAVEL_F32, w.wide, RAVEL_BF16, w.narrow, n, NULL) == RAVEL_OK);
    EXPECT(ravel_dtype_convert(RAVEL_BF16, w.narrow, RAVEL_F32, w.wide, n, NULL) == RAVEL_OK);
    return w;
}

static const void *of(const weights *w, int device) {
    return device == WIDE ? (const void *)w->wide : w->narrow;
}

static void weights_free(weights *w) {
    free(w->wide), free(w->narrow);
}

/* What each device makes of the same start. */
typedef struct results {
    float *of[DEVICES];
    int64_t n;
} results;

static results results_from(const float *start, int64_t n) {
    results r = {.n = n};
    for (int i = 0; i < DEVICES; i++) {
        r.of[i] = malloc((size_t)n * sizeof(float));
        memcpy(r.of[i], start, (size_t)n * sizeof(float));
    }
    return r;
}

static results results_random(int64_t n) {
    float *start = numbers(n);
    results r = results_from(start, n);
    free(start);
    return r;
}

static void check_same(results *r, const char *what) {
    for (int i = NARROW; i < DEVICES; i++)
        if (memcmp(r->of[WIDE], r->of[i], (size_t)r->n * sizeof(float)) != 0)
            check_fail(__FILE__, __LINE__, "%s: %s differs from f32 of the same values%s", kernels[i]->name, what,
                       i == NARROW_MANY ? ", on three threads" : "");
    for (int i = 0; i < DEVICES; i++) free(r->of[i]);
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

static void product(int64_t m, int64_t n, int64_t k, int way) {
    int invariant = way >> 2 & 1, trans_b = invariant || (way & 1), add = way >> 1 & 1;
    int64_t ldb = (trans_b ? k : n) + between(0, 3), ldc = n + between(0, 3), rows = trans_b ? n : k;
    float *a = numbers(m * k);
    weights b = weights_of(ldb * (rows - 1) + (trans_b ? k : n)); /* nothing behind the last row */
    results c = results_random(ldc * m);
    for (int i = 0; i < DEVICES; i++) {
        train_matmul x = {.m = m, .n = n, .k = k, .a = a, .b = of(&b, i), .c = c.of[i], .ldb = ldb, .ldc = ldc};
        x.trans_b = trans_b;
        x.add = add;
        x.batch_invariant = invariant;
        x.a_type = x.c_type = RAVEL_F32;
        x.b_type = kernels[i]->types.weight;
        kernels[i]->matmul(devices[i], &x);
    }
    check_same(&c, "a product");
    free(a);
    weights_free(&b);
}

static void products(void) {
    for (int i = 0; i < check_rounds(40, 400); i++) product(between(1, 70), between(1, 150), between(1, 90), i % 8);
    for (int way = 0; way < 8 && !check_repeated(); way++) {
        product(90, 70, 1300, way); /* several parts of k; rows are owned */
        product(20, 560, 33, way);  /* columns are owned */
    }
}

static void tables(void) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int64_t rows = between(1, 50), width = between(1, 100), count = between(1, 20);
        weights table = weights_of(count * width), bias = weights_of(width);
        int32_t ids[50];
        for (int64_t r = 0; r < rows; r++) ids[r] = (int32_t)between(0, 24);
        results y = results_random(rows * width), biased = results_random(rows * width);
        for (int d = 0; d < DEVICES; d++) {
            train_embedding e = {.rows = rows, .width = width, .first = 2, .count = count, .ids = ids};
            e.table = of(&table, d);
            e.y = y.of[d];
            kernels[d]->embed(devices[d], &e);
            kernels[d]->bias(devices[d], biased.of[d], of(&bias, d), rows, width, width);
        }
        check_same(&y, "embed");
        check_same(&biased, "bias");
        weights_free(&table), weights_free(&bias);
    }
}

static void norms(void) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int64_t rows = between(1, 100), width = between(1, 130), n = rows * width;
        float *x = numbers(n), *d_y = numbers(n);
        weights w = weights_of(width);
        results y = results_random(n), d_x = results_random(n), d_w = results_random(width);
        for (int d = 0; d < DEVICES; d++) {
            train_norm f = {.rows = rows, .width = width, .eps = 1e-6f, .shift = i % 2, .x = x, .d_y = d_y};
            f.weight = of(&w, d);
            f.y = y.of[d];
            f.d_x = d_x.of[d];
            f.d_weight = d_w.of[d];
            kernels[d]->rmsnorm(devices[d], &f);
            kernels[d]->rmsnorm_backward(devices[d], &f);
        }
        check_same(&y, "rmsnorm");
        check_same(&d_x, "rmsnorm_backward, x");
        check_same(&d_w, "rmsnorm_backward, weight");
        free(x), free(d_y);
        weights_free(&w);
    }
}

static void ropes(void) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int64_t tokens = between(1, 60), kv = between(1, 3), heads = kv * between(1, 2), half = between(1, 70);
        int64_t dim = 2 * half, width = (heads + 2 * kv) * dim;
        float *qkv = numbers(tokens * width), *turns = numbers(10 * half);
        float *d_q = numbers(tokens * heads * dim), *d_k = numbers(tokens * kv * dim);
        weights wq = weights_of(dim), wk = weights_of(dim);
        int32_t places[60], rotated = i % 4 == 3 ? 2 * (int32_t)between(1, half) : 0;
        for (int64_t t = 0; t < tokens; t++) places[t] = (int32_t)between(0, 4);
        results q = results_random(tokens * heads * dim), k = results_random(tokens * kv * dim);
        results d_qkv = results_random(tokens * width), d_wq = results_random(dim), d_wk = results_random(dim);
        for (int d = 0; d < DEVICES; d++) {
            train_rope x = {.tokens = tokens, .eps = 1e-6f, .shift = i % 2, .qkv = qkv, .positions = places};
            x.heads = (int32_t)heads, x.kv_heads = (int32_t)kv, x.head_dim = (int32_t)dim, x.rotated = rotated;
            x.q_weight = of(&wq, d), x.k_weight = of(&wk, d);
            x.cosine = turns, x.sine = turns + 5 * half;
            x.q = q.of[d], x.k = k.of[d];
            x.d_q = d_q, x.d_k = d_k;
            x.d_qkv = d_qkv.of[d], x.d_q_weight = d_wq.of[d], x.d_k_weight = d_wk.of[d];
            kernels[d]->rope(devices[d], &x);
            kernels[d]->rope_backward(devices[d], &x);
        }
        check_same(&q, "rope, q"), check_same(&k, "rope, k");
        check_same(&d_qkv, "rope_backward, qkv");
        check_same(&d_wq, "rope_backward, q weight"), check_same(&d_wk, "rope_backward, k weight");
        free(qkv), free(turns), free(d_q), free(d_k);
        weights_free(&wq), weights_free(&wk);
    }
}

static void steps(void) {
    for (int i = 0; i < 8; i++) {
        int64_t n = i ? between(1, 500) : 40000;
        float *grad = numbers(n);
        int moments = i % 2 ? RAVEL_BF16 : RAVEL_F32;
        results master = results_random(n);
        uint16_t *rounded = malloc((size_t)n * sizeof *rounded), *weight = calloc((size_t)n, sizeof *weight);
        for (int d = 0; d < DEVICES; d++) {
            float *m = calloc((size_t)n, sizeof *m), *v = calloc((size_t)n, sizeof *v);
            const train_clip clip = {.scale = .5f, .finite = 1};
            train_adamw x = {.n = n, .master = master.of[d], .m = m, .v = v, .grad = grad, .clip = &clip};
            x.weight = d == WIDE ? (void *)master.of[d] : weight;
            x.lr = .01, x.beta1 = .9, x.beta2 = .95, x.eps = 1e-8, x.decay = .1, x.step = 1;
            x.moment_type = moments;
            kernels[d]->adamw(devices[d], &x);
            CHECK(ravel_dtype_convert(RAVEL_F32, master.of[d], RAVEL_BF16, rounded, n, NULL) == RAVEL_OK);
            CHECK(d == WIDE || memcmp(rounded, weight, (size_t)n * sizeof *weight) == 0);
            free(m), free(v);
        }
        check_same(&master, "adamw");
        free(grad), free(rounded), free(weight);
    }
}

static void each_set(void (*body)(void)) {
    for (int i = 0; i < SETS; i++) {
        if (!rig_can(sets[i][WIDE])) continue;
        rng = ravel__rng_seed(check_seed());
        if (open_all(sets[i])) body();
        close_all();
    }
}

TEST(train_bf16_products) {
    each_set(products);
}

TEST(train_bf16_tables) {
    each_set(tables);
}

TEST(train_bf16_norms) {
    each_set(norms);
}

TEST(train_bf16_ropes) {
    each_set(ropes);
}

TEST(train_bf16_steps_round_their_masters) {
    each_set(steps);
}

/* ---- AVX512-BF16 ------------------------------------------------------------------------------------------- */

/* With a and b of few bits every product and every sum is exact, so that rounding a changes nothing and any order gives the
 * same: k and edges of every kind. Then random ones against the f32 product of rounded a. */
static void paired_product(int64_t m, int64_t n, int64_t k, int way, int exact) {
    int trans_b = way & 1, add = way >> 1 & 1;
    int64_t ldb = (trans_b ? k : n) + between(0, 3), ldc = n + between(0, 3), rows = trans_b ? n : k;
    float *a = numbers(m * k);
    uint16_t *rounded = malloc((size_t)(m * k) * sizeof *rounded);
    weights b = weights_of(ldb * (rows - 1) + (trans_b ? k : n));
    for (int64_t i = 0; i < ldb * (rows - 1) + (trans_b ? k : n) && exact; i++) b.wide[i] = (float)between(-8, 8);
    for (int64_t i = 0; i < m * k && exact; i++) a[i] = (float)between(-8, 8);
    EXPECT(ravel_dtype_convert(RAVEL_F32, b.wide, RAVEL_BF16, b.narrow, ldb * (rows - 1) + (trans_b ? k : n), NULL) ==
           RAVEL_OK);
    float *near = malloc((size_t)(m * k) * sizeof *near);
    EXPECT(ravel_dtype_convert(RAVEL_F32, a, RAVEL_BF16, rounded, m * k, NULL) == RAVEL_OK);
    EXPECT(ravel_dtype_convert(RAVEL_BF16, rounded, RAVEL_F32, near, m * k, NULL) == RAVEL_OK);
    float *start = calloc((size_t)(ldc * m), sizeof *start);
    for (int64_t i = 0; i < ldc * m; i++) start[i] = (float)between(-9, 9);
    results c = results_from(start, ldc * m);
    for (int i = 0; i < DEVICES; i++) {
        train_matmul x = {.m = m, .n = n, .k = k, .b = of(&b, i), .c = c.of[i], .ldb = ldb, .ldc = ldc};
        x.a = i == WIDE ? near : a;
        x.trans_b = trans_b;
        x.add = add;
        x.a_type = x.c_type = RAVEL_F32;
        x.b_type = kernels[i]->types.weight;
        kernels[i]->matmul(devices[i], &x);
    }
    if (exact) {
        check_same(&c, "a product of pairs");
    } else {
        EXPECT(relative_distance(c.of[NARROW], c.of[WIDE], c.n) < 2e-6);
        EXPECT(memcmp(c.of[NARROW], c.of[NARROW_MANY], (size_t)c.n * sizeof(float)) == 0);
        for (int i = 0; i < DEVICES; i++) free(c.of[i]);
    }
    free(a), free(rounded), free(near), free(start);
    weights_free(&b);
}

TEST(train_bf16_products_of_pairs) {
    static const char *const names[] = {"cpu-avx512", "cpu-avx512bf16"};
    if (!rig_can(names[1])) {
        check_skip("no AVX512-BF16 here");
        return;
    }
    rng = ravel__rng_seed(check_seed());
    CHECK(open_all(names));
    for (int i = 0; i < check_rounds(60, 600); i++)
        paired_product(between(1, 70), between(1, 150), between(1, 90), i % 4, i % 8 < 4);
    for (int way = 0; way < 4 && !check_repeated(); way++) {
        paired_product(90, 70, 1299, way, way % 2); /* two parts of k; rows are owned */
        paired_product(20, 560, 33, way, 1);        /* columns are owned */
    }
    norms(); /* all else is as in the other sets */
    close_all();
}
