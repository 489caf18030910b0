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

/* The reference and a fast set on one thread and on several; results of the last two must be the same bits. */
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

static bool trio_open(trio *t, const char *set, int32_t products, int32_t threads) {
    ravel_error err = RAVEL_ERROR_INIT;
    *t = (trio){.name = set};
    train_device_options one = {.threads = 1, .products = products}, many = {.threads = threads, .products = products};
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

static double norm(const float *x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    return sqrt(squares);
}

/* Relative to the result, or to `terms` per element if that is larger: a sum is rounded as its terms are, also where they
 * cancel (the attention of one key, whose weight is 1, has the gradient 0 for its query). 0: nothing cancels. */
static void output_check_sum(const trio *t, output *o, const char *what, double tolerance, double terms) {
    double result = norm(o->ref, o->n), least = terms * sqrt((double)o->n);
    double off = relative_distance(o->one, o->ref, o->n);
    if (result < least) off *= result / least;
    if (!(off <= tolerance)) check_fail(__FILE__, __LINE__, "%s: %s is off by %g", t->name, what, off);
    if (memcmp(o->one, o->many, (size_t)o->n * sizeof *o->one) != 0)
        check_fail(__FILE__, __LINE__, "%s: %s depends on the number of threads", t->name, what);
    free(o->ref), free(o->one), free(o->many);
}

static void output_check(const trio *t, output *o, const char *what, double tolerance) {
    output_check_sum(t, o, what, tolerance, 0);
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

/* Every set draws the same problems, so that what a set is given does not depend on which others a machine has. */
static void each_set_on(int32_t threads, void (*body)(const trio *t)) {
    for (int i = 0; i < SETS; i++) {
        trio t;
        if (!rig_can(sets[i])) continue;
        rng = ravel__rng_seed(check_seed());
        if (trio_open(&t, sets[i], TRAIN_PRODUCTS_OWN, threads)) body(&t);
        trio_close(&t);
    }
}

static void each_set(void (*body)(const trio *t)) {
    each_set_on(THREADS, body);
}

/* ---- products ------------------------------------------------------------------------------------------- */

enum { TRANS_A = 1, TRANS_B = 2, ADD = 4, INVARIANT = 8, WAYS = 16 };

static void one_product(const trio *t, int64_t m, int64_t n, int64_t k, int way) {
    int trans_a = (way & TRANS_A) != 0, trans_b = (way & TRANS_B) != 0, add = (way & ADD) != 0;
    int invariant = (way & INVARIANT) != 0;
    if (invariant) trans_a = 0, trans_b = 1;
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
                      .a_type = RAVEL_F32,
                      .b_type = RAVEL_F32,
                      .c_type = RAVEL_F32,
                      .batch_invariant = invariant};
    RUN(t, matmul, p, (x.c = OF(c, p), &x));
    output_check(t, &c, "a product", 1e-6);
    free(a), free(b);
}

static void products(const trio *t) {
    for (int i = 0; i < check_rounds(40, 400); i++)
        one_product(t, between(1, 70), between(1, 150), between(1, 90), i % WAYS);
    for (int way = 0; way < WAYS && !check_repeated(); way++) {
        one_product(t, 200, 70, 1100, way); /* more than one part of k and block of rows */
        one_product(t, 3, 2800, 20, way);   /* more than one block of columns in the narrow sets */
        one_product(t, 40, 90, 1300, way);  /* columns are owned; three parts of k */
    }
    if (!check_repeated()) one_product(t, 2060, 4100, 3, TRANS_B | ADD); /* more than one stretch of the shared side */
}

TEST(train_kernels_products) {
    each_set(products);
}

/* So many threads that both sides of C are cut. */
static void products_cut_twice(const trio *t) {
    for (int way = 0; way < INVARIANT; way++) {
        one_product(t, 140, 260, 90, way); /* rows are owned */
        one_product(t, 260, 530, 40, way); /* columns are owned */
    }
    one_product(t, 140, 260, 700, TRANS_A | ADD); /* two parts of k */
}

TEST(train_kernels_products_on_many_threads) {
    each_set_on(16, products_cut_twice);
}

TEST(train_kernels_products_by_openblas) {
#ifdef RAVEL_HAVE_OPENBLAS
    rng = ravel__rng_seed(check_seed());
    trio t;
    CHECK(trio_open(&t, "cpu-base", TRAIN_PRODUCTS_OPENBLAS, THREADS));
    for (int i = 0; i < 40; i++) one_product(&t, between(1, 70), between(1, 150), between(1, 90), i % WAYS);
    for (int way = 0; way < INVARIANT; way++) one_product(&t, 1500, 20, 30, way);
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

/* A row of a batch-invariant product is the same bits alone and among others. */
static void invariant_rows(const trio *t) {
    for (int i = 0; i < 20; i++) {
        int64_t m = between(2, 30), n = between(1, 100), k = between(1, 200), row = between(0, m - 1);
        float *a = random_array(m * k, 1), *b = random_array(n * k, 1), *all = random_array(m * n, 1);
        float *alone = random_array(n, 1);
        train_matmul x = {.m = m, .n = n, .k = k, .a = a, .b = b, .c = all, .trans_b = 1, .batch_invariant = 1};
        x.a_type = x.b_type = x.c_type = RAVEL_F32;
        t->fast->matmul(t->one, &x);
        x.m = 1;
        x.a = a + row * k;
        x.c = alone;
        t->fast->matmul(t->one, &x);
        EXPECT(memcmp(alone, all + row * n, (size_t)n * sizeof *all) == 0);
        free(a), free(b), free(all), free(alone);
    }
}

TEST(train_kernels_batch_invariant_rows_do_not_depend_on_the_others) {
    each_set(invariant_rows);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static const int32_t *sort_ids;

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_ids[x] != sort_ids[y]) return sort_ids[x] < sort_ids[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void rows_of(const trio *t) {
    for (int i = 0; i < check_rounds(15, 150); i++) {
        int64_t rows = between(1, 200), width = between(1, 100), table = between(1, 40);
        int64_t first = between(0, table < 5 ? table : 5), held = between(0, table - first);
        int32_t *ids = malloc((size_t)rows * sizeof *ids), *order = malloc((size_t)rows * sizeof *order);
        for (int64_t r = 0; r < rows; r++) ids[r] = (int32_t)between(0, table - 1), order[r] = (int32_t)r;
        sort_ids = ids;
        qsort(order, (size_t)rows, sizeof *order, by_id);
        float *from = random_array(table * width, 1), *x = random_array(rows * width, 1);
        output to = output_random(rows * (width + 2)), added = output_random(table * width);
        output biased = output_from(x, rows * width), d_bias = output_random(width), y = output_random(rows * width);
        train_rows copy = {.rows = rows, .width = width, .from = from, .from_ids = ids, .ld_to = width + 2};
        train_embedding e = {.rows = rows, .width = width, .first = first, .count = held, .ids = ids};
        e.picks = i % 2 ? order : NULL;
        e.table = from;
        e.d_y = x;
        e.order = order;
        e.ordered = rows - rows / 3;
        RUN(t, copy_rows, p, (copy.to = OF(to, p), &copy));
        RUN(t, embed, p, (e.y = OF(y, p), &e));
        RUN(t, embed_backward, p, (e.d_table = OF(added, p), &e));
        RUN(t, bias, p, OF(biased, p), from, rows, width, width);
        RUN(t, bias_backward, p, OF(d_bias, p), x, rows, width, width);
        output_check(t, &to, "copy_rows", 0);
        output_check(t, &y, "embed", 0);
        output_check(t, &added, "embed_backward", 1e-6);
        output_check(t, &biased, "bias", 0);
        output_check(t, &d_bias, "bias_backward", 1e-5);
        free(ids), free(order), free(from), free(x);
    }
}

TEST(train_kernels_rows) {
    each_set(rows_of);
}

static void norms(const trio *t) {
    for (int i = 0; i < check_rounds(15, 150); i++) {
        int64_t rows = between(1, 150), width = between(1, 130), gap = i % 2 ? 0 : between(0, 20);
        int64_t ld = width + gap, n = rows * ld;
        float *x = random_array(n, 2), *add = i % 2 ? random_array(n, 1) : NULL, *w = random_array(width, 1);
        float *d_y = random_array(n, 1);
        output y = output_random(n), sum = output_random(n), d_x = output_random(n), d_w = output_random(width);
        train_norm f = {.rows = rows, .width = width, .eps = 1e-6f, .x = x, .add = add, .weight = w, .d_y = d_y};
        f.shift = i % 3 ? 0 : 1;
        if (gap) f.ld_x = f.ld_y = ld;
        RUN(t, rmsnorm, p, (f.y = i % 5 ? OF(y, p) : NULL, f.sum = OF(sum, p), &f));
        RUN(t, rmsnorm_backward, p, (f.d_x = OF(d_x, p), f.d_weight = OF(d_w, p), &f));
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
    for (int i = 0; i < check_rounds(12, 100); i++) {
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
                        .rotated = i % 4 == 3 ? 2 * (int32_t)between(1, half) : 0,
                        .eps = 1e-6f,
                        .shift = i % 2,
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

static void gates(const trio *t) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int64_t rows = between(1, 150), ffn = between(1, 100), n = rows * ffn;
        float *gate_up = random_array(2 * n, i % 2 ? 3 : 60),
              *d_h = random_array(n, 1); /* 60: past where exp overflows */
        output h = output_random(n), again = output_random(n), d = output_from(gate_up, 2 * n);
        int32_t gelu = i % 3 == 0;
        RUN(t, gated, p, &(train_gated){rows, ffn, gelu, gate_up, .h = OF(h, p)});
        RUN(t, gated_backward, p, &(train_gated){rows, ffn, gelu, OF(d, p), OF(again, p), d_h, OF(d, p)});
        output_check(t, &h, "gated", 1e-6);
        output_check(t, &again, "gated_backward, h", 1e-6);
        output_check(t, &d, "gated_backward, in place", 1e-6);
        free(gate_up), free(d_h);
    }
}

TEST(train_kernels_gated) {
    each_set(gates);
}

/* Logits in steps of an eighth, so that some are equal: the first of them is chosen by all. */
static void routes(const trio *t) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int32_t rows = (int32_t)between(1, 100), experts = (int32_t)between(1, 40);
        int32_t active = (int32_t)between(1, experts), n = rows * active, *ids = calloc((size_t)n, 3 * sizeof *ids);
        float *logits = random_array((int64_t)rows * experts, 2), *d_w = random_array(n, 1);
        float *balance = random_array(experts, 1);
        for (int64_t k = 0; k < (int64_t)rows * experts; k++) logits[k] = roundf(8 * logits[k]) / 8;
        output w = output_random(n), d = output_random((int64_t)rows * experts), loss = output_random(rows);
        train_route x = {.rows = rows,
                         .experts = experts,
                         .active = active,
                         .normalise = i % 2,
                         .logits = logits,
                         .d_weights = d_w,
                         .balance = i % 3 ? balance : NULL};
        RUN(t, route, p, (x.ids = ids + p * n, x.weights = OF(w, p), &x));
        CHECK(memcmp(ids, ids + n, (size_t)n * sizeof *ids) == 0 &&
              memcmp(ids, ids + 2 * n, (size_t)n * sizeof *ids) == 0);
        RUN(t, route_backward, p,
            (x.ids = ids + p * n, x.weights = OF(w, p), x.d_logits = OF(d, p), x.row_loss = OF(loss, p), &x));
        output_check(t, &w, "route, weights", 1e-6);
        output_check_sum(t, &d, "route_backward", 2e-6, 0.1);
        output_check(t, &loss, "route_backward, load", 1e-6);
        free(logits), free(d_w), free(balance), free(ids);
    }
}

TEST(train_kernels_route) {
    each_set(routes);
}

static void weighs(const trio *t) {
    for (int i = 0; i < check_rounds(10, 100); i++) {
        int64_t rows = between(1, 150), width = between(1, 100), n = rows * width;
        int32_t *places = calloc((size_t)rows, sizeof *places);
        float *weights = random_array(rows, 1);
        for (int64_t r = 0; r < rows; r++) places[r] = (int32_t)(rows - 1 - r);
        output x = output_random(n), d = output_random(n), d_w = output_random(rows);
        train_weigh w = {.rows = rows, .width = width, .weights = weights, .places = places};
        RUN(t, weigh, p, (w.x = OF(x, p), &w));
        RUN(t, weigh_backward, p, (w.x = OF(x, p), w.d_y = OF(d, p), w.d_weights = OF(d_w, p), &w));
        output_check(t, &x, "weigh", 1e-6);
        output_check(t, &d, "weigh_backward", 1e-6);
        output_check_sum(t, &d_w, "weigh_backward, weights", 1e-5, 1);
        free(weights), free(places);
    }
}

TEST(train_kernels_weigh) {
    each_set(weighs);
}

static void scales(const trio *t) {
    for (int i = 0; i < 5; i++) {
        int64_t n = between(1, 9000);
        output x = output_random(n);
        RUN(t, scale, p, OF(x, p), OF(x, p), .3, n);
        output_check(t, &x, "scale, in place", 1e-6);
    }
}

TEST(train_kernels_scale) {
    each_set(scales);
}

/* ---- attention ------------------------------------------------------------------------------------------ */

enum { MOST_SAMPLES = 8 };

/* What one sample of a problem looks like. */
typedef struct span {
    int32_t queries, keys, shift;
} span;

/* Samples side by side on both axes, with gaps between; rows of q, k, v a little further apart than need be. */
static void one_attention(const trio *t, const span *spans, int32_t samples, int64_t kv, int64_t group, int64_t dim,
                          double size, int32_t window) {
    int32_t q_starts[MOST_SAMPLES], q_lengths[MOST_SAMPLES], k_starts[MOST_SAMPLES], k_lengths[MOST_SAMPLES];
    int32_t shifts[MOST_SAMPLES], rows = 0, keys = 0, shifted = 0;
    for (int32_t i = 0; i < samples; i++) {
        q_starts[i] = rows;
        q_lengths[i] = spans[i].queries;
        k_starts[i] = keys;
        k_lengths[i] = spans[i].keys;
        shifts[i] = spans[i].shift;
        shifted |= shifts[i];
        rows += spans[i].queries + (int32_t)between(0, 2);
        keys += spans[i].keys + (int32_t)between(0, 2);
    }
    int64_t heads = kv * group, q_width = heads * dim, kv_width = kv * dim, ld = q_width + kv_width;
    float *q = random_array(rows * ld, size), *k = random_array(keys * ld, size), *v = random_array(keys * ld, 1);
    float *d_o = random_array(rows * q_width, 1);
    output o = output_random(rows * q_width), lse = output_random(rows * heads);
    output d_q = output_random(rows * ld), d_k = output_random(keys * ld), d_v = output_random(keys * ld);
    train_attention x = {.samples = samples,
                         .heads = (int32_t)heads,
                         .kv_heads = (int32_t)kv,
                         .head_dim = (int32_t)dim,
                         .scale = (float)(1 / sqrt((double)dim)),
                         .window = window,
                         .queries = {rows, rows, q_starts, q_lengths},
                         .keys = {keys, keys, k_starts, k_lengths},
                         .shifts = shifted ? shifts : NULL,
                         .q = q,
                         .k = k,
                         .v = v,
                         .ld_q = ld,
                         .ld_k = ld,
                         .ld_v = ld,
                         .d_o = d_o,
                         .ld_dq = ld,
                         .ld_dk = ld,
                         .ld_dv = ld,
                         .add = samples % 2};
    RUN(t, attention, p, (x.o = OF(o, p), x.lse = OF(lse, p), &x));
    RUN(t, attention_backward, p,
        (x.o = OF(o, p), x.lse = OF(lse, p), x.d_q = OF(d_q, p), x.d_k = OF(d_k, p), x.d_v = OF(d_v, p), &x));
    for (int64_t i = 0; i < rows * heads; i++) { /* rows that see nothing */
        EXPECT(isinf(lse.ref[i]) == isinf(lse.one[i]));
        if (isinf(lse.ref[i])) lse.ref[i] = lse.one[i] = lse.many[i] = 0;
    }
    /* A weight is exp of a score, so it is as exact as the score is in absolute terms; those grow as size squared. */
    double tolerance = 2e-6 * size * size;
    double few = 0.25; /* of a term: what is left where weights spread over several keys is smaller than one */
    output_check_sum(t, &o, "attention, o", tolerance, few);
    output_check_sum(t, &lse, "attention, lse", 1e-6, size * size);
    output_check_sum(t, &d_q, "attention_backward, q", 2 * tolerance, few * size);
    output_check_sum(t, &d_k, "attention_backward, k", 2 * tolerance, few * size);
    output_check_sum(t, &d_v, "attention_backward, v", 2 * tolerance, few);
    free(q), free(k), free(v), free(d_o);
}

/* Whole samples of these lengths (0: no more). */
static void whole_samples(const trio *t, const int32_t *lengths, int64_t kv, int64_t group, int64_t dim, double size,
                          int32_t window) {
    span spans[MOST_SAMPLES];
    int32_t samples = 0;
    for (; samples < MOST_SAMPLES && lengths[samples]; samples++)
        spans[samples] = (span){lengths[samples], lengths[samples], 0};
    one_attention(t, spans, samples, kv, group, dim, size, window);
}

static void attentions(const trio *t) {
    static const int32_t edges[][MOST_SAMPLES] = {{1},      {6, 1, 7}, {48, 49, 47, 5}, {255, 1, 2},
                                                  {256, 3}, {257, 16}, {530, 64, 63},   {700, 300}};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        whole_samples(t, edges[i], 1 + (int64_t)i % 2, 1 + (int64_t)i % 3, i == 6 ? 18 : 16, 1, i % 2 ? 40 : 0);
    for (int i = 0; i < check_rounds(8, 80); i++) {
        int32_t lengths[MOST_SAMPLES] = {0};
        int64_t count = between(1, 4);
        for (int64_t s = 0; s < count; s++) lengths[s] = (int32_t)between(1, check_scale(70, 300));
        whole_samples(t, lengths, between(1, 2), between(1, 3), between(1, 80), i % 2 ? 1 : 6,
                      0); /* 6: sharp weights */
    }
    static const int32_t wide[MOST_SAMPLES] = {60, 3};
    whole_samples(t, wide, 1, 2, 144, 1, 0);
}

TEST(train_kernels_attention) {
    each_set(attentions);
}

/* Queries and keys of different numbers, anywhere against one another, with and without a window. */
static void shifted_attentions(const trio *t) {
    for (int i = 0; i < check_rounds(20, 200); i++) {
        span spans[MOST_SAMPLES];
        int32_t samples = (int32_t)between(1, 4),
                most = i % 8 ? (int32_t)check_scale(90, 600) : 600; /* long: in parts */
        for (int32_t s = 0; s < samples; s++) {
            spans[s] = (span){(int32_t)between(1, most), (int32_t)between(0, most), 0};
            spans[s].shift = (int32_t)between(-most, most);
            if (between(0, 3) == 0) spans[s].shift = spans[s].keys; /* all of them */
        }
        one_attention(t, spans, samples, between(1, 2), between(1, 3), between(1, 40), 1,
                      i % 3 ? 0 : (int32_t)between(1, most));
    }
}

TEST(train_kernels_attention_of_shifted_queries) {
    each_set(shifted_attentions);
}

/* Attention over all keys is attention over two parts of them, merged; and so is its gradient. */
static void merged(const trio *t) {
    enum { N = 150, CUT = 61, HEADS = 2, DIM = 12, WIDTH = HEADS * DIM };
    static const int32_t starts[] = {0}, all[] = {N}, head[] = {CUT}, tail[] = {N - CUT}, back[] = {-CUT};
    float *q = random_array(N * WIDTH, 1), *k = random_array(N * WIDTH, 1), *v = random_array(N * WIDTH, 1);
    float *d_o = random_array(N * WIDTH, 1);
    for (int window = 0; window <= 30; window += 30) {
        output o = output_random(N * WIDTH), lse = output_random(N * HEADS), d_q = output_random(N * WIDTH);
        float *part = random_array(N * WIDTH, 1), *part_lse = random_array(N * HEADS, 1);
        train_attention x = {.samples = 1, .heads = HEADS, .kv_heads = HEADS, .head_dim = DIM, .scale = 0.3f};
        x.window = window;
        x.queries = x.keys = (train_ragged){N, N, starts, all, NULL};
        x.q = q, x.k = k, x.v = v, x.d_o = d_o;
        x.ld_q = x.ld_k = x.ld_v = x.ld_dq = x.ld_dk = x.ld_dv = WIDTH;
        float *d_k = random_array(N * WIDTH, 1), *d_v = random_array(N * WIDTH, 1);
        RUN(t, attention, p, (x.o = OF(o, p), x.lse = OF(lse, p), &x));
        RUN(t, attention_backward, p,
            (x.o = OF(o, p), x.lse = OF(lse, p), x.d_q = OF(d_q, p), x.d_k = d_k, x.d_v = d_v, &x));
        output o2 = output_random(N * WIDTH), lse2 = output_random(N * HEADS), d_q2 = output_random(N * WIDTH);
        for (int p = 0; p < 3; p++) {
            const train_kernels *set = p ? t->fast : t->ref;
            train_device *device = p == 0 ? t->ref_device : p == 1 ? t->one : t->many;
            train_attention y = x;
            y.keys = (train_ragged){CUT, CUT, starts, head, NULL};
            y.o = OF(o2, p), y.lse = OF(lse2, p);
            set->attention(device, &y);
            train_attention z = x;
            z.keys = (train_ragged){N - CUT, N - CUT, starts, tail, NULL};
            z.shifts = back;
            z.k = k + CUT * WIDTH, z.v = v + CUT * WIDTH;
            z.o = part, z.lse = part_lse;
            set->attention(device, &z);
            set->attention_merge(device, &(train_merge){1, HEADS, DIM, x.queries, y.o, y.lse, part, part_lse});
            z.o = y.o, z.lse = y.lse;
            y.d_q = z.d_q = OF(d_q2, p);
            y.d_k = d_k, y.d_v = d_v;
            z.d_k = d_k + CUT * WIDTH, z.d_v = d_v + CUT * WIDTH;
            set->attention_backward(device, &y);
            z.add = 1;
            set->attention_backward(device, &z);
        }
        EXPECT(relative_distance(o2.one, o.one, o.n) < 1e-6 && relative_distance(lse2.one, lse.one, lse.n) < 1e-6);
        EXPECT(relative_distance(d_q2.one, d_q.one, d_q.n) < 1e-5);
        output_check(t, &o, "attention", 2e-6), output_check(t, &o2, "attention_merge", 2e-6);
        output_check(t, &lse, "lse", 1e-6), output_check(t, &lse2, "merged lse", 1e-6);
        output_check(t, &d_q, "d_q", 4e-6), output_check(t, &d_q2, "d_q of two parts", 4e-6);
        free(part), free(part_lse), free(d_k), free(d_v);
    }
    free(q), free(k), free(v), free(d_o);
}

TEST(train_kernels_attention_of_parts_merges) {
    each_set(merged);
}

/* Keys written through page tables that share pages, and read back. */
static void cached(const trio *t) {
    enum { SLOTS = 3, PAGES_PER_SLOT = 5, PAGES = 16, ROOM = PAGES_PER_SLOT * TRAIN_PAGE };
    for (int i = 0; i < check_rounds(12, 100); i++) {
        int64_t rows = between(1, 9), kv = between(1, 2), heads = kv * between(1, 3), dim = between(1, 150);
        int64_t width = kv * dim, writes = SLOTS * ROOM, n = PAGES * TRAIN_PAGE * width;
        int32_t slots[9], lengths[9], table[SLOTS * PAGES_PER_SLOT], *to_slots = malloc((size_t)writes * 4);
        int32_t *positions = malloc((size_t)writes * 4);
        for (int j = 0; j < SLOTS * PAGES_PER_SLOT; j++) table[j] = j; /* slots 0 and 1 share their first page */
        table[PAGES_PER_SLOT] = 0;
        for (int64_t r = 0; r < rows; r++) slots[r] = (int32_t)between(0, 2), lengths[r] = (int32_t)between(0, ROOM);
        for (int32_t j = 0; j < writes; j++) {
            to_slots[j] = j / ROOM == 1 && j % ROOM < TRAIN_PAGE ? -1 : j / ROOM;
            positions[j] = j % ROOM;
        }
        float *q = random_array(rows * heads * dim, 1), *k = random_array(writes * width, 1);
        float *v = random_array(writes * (width + 3), 1);
        output o = output_random(rows * heads * dim), k_pages = output_random(n), v_pages = output_random(n);
        train_cache cache = {.table = table, .pages_per_slot = PAGES_PER_SLOT};
        cache.kv_heads = (int32_t)kv;
        cache.head_dim = (int32_t)dim;
        train_cache_write w = {.cache = cache, .rows = writes, .k = k, .v = v, .ld_k = width, .ld_v = width + 3};
        w.slots = to_slots;
        w.positions = positions;
        RUN(t, cache_write, p, (w.cache.k = OF(k_pages, p), w.cache.v = OF(v_pages, p), &w));
        float *read[2] = {calloc((size_t)(ROOM * width), 4), calloc((size_t)(ROOM * (width + 1)), 4)};
        train_cache_write b = {
            .cache = cache, .rows = ROOM, .k = read[0], .v = read[1], .ld_k = width, .ld_v = width + 1};
        b.back = 1;
        RUN(t, cache_write, p, (b.cache.k = OF(k_pages, p), b.cache.v = OF(v_pages, p), &b));
        CHECK(memcmp(read[0], k, (size_t)(ROOM * width) * 4) == 0);
        for (int64_t r = 0; r < ROOM; r++)
            CHECK(memcmp(read[1] + r * (width + 1), v + r * (width + 3), (size_t)width * 4) == 0);
        free(read[0]), free(read[1]);
        train_cached x = {.cache = cache,
                          .rows = (int32_t)rows,
                          .heads = (int32_t)heads,
                          .scale = (float)(1 / sqrt((double)dim)),
                          .window = i % 3 ? 0 : (int32_t)between(1, ROOM),
                          .longest = ROOM,
                          .q = q,
                          .ld_q = heads * dim,
                          .slots = slots,
                          .lengths = lengths};
        RUN(t, attention_cached, p, (x.cache.k = OF(k_pages, p), x.cache.v = OF(v_pages, p), x.o = OF(o, p), &x));
        output_check(t, &o, "attention_cached", 2e-6);
        for (int p = 0; p < 3; p++) free(OF(k_pages, p)), free(OF(v_pages, p));
        free(q), free(k), free(v), free(to_slots), free(positions);
    }
}

TEST(train_kernels_attention_over_a_cache) {
    each_set(cached);
}

/* ---- the head and flat arrays --------------------------------------------------------------------------- */

/* The vocabulary in one part or in three, on three ranks whose parts are combined. */
static void softmaxes(const trio *t) {
    for (int i = 0; i < check_rounds(24, 200); i++) {
        int64_t ranks = i % 2 ? 3 : 1, rows = between(1, 20), each = between(1, 200), vocab = ranks * each;
        float *logits = random_array(rows * vocab, i % 4 < 2 ? 2 : 30), *coef = random_array(rows, 1);
        float *bonus = random_array(rows, 1);
        int32_t *targets = malloc((size_t)rows * sizeof *targets);
        for (int64_t r = 0; r < rows; r++) targets[r] = (int32_t)between(0, vocab - 1);
        output logprob = output_random(rows), lse = output_random(rows), entropy = output_random(rows);
        output parts = output_random(ranks * 4 * rows), d = output_from(logits, rows * vocab);
        train_softmax x = {.rows = rows, .columns = each, .scale = 0.8f, .targets = targets, .ranks = ranks};
        for (int64_t rank = 0; rank < ranks; rank++) { /* a rank's logits are [rows, each] */
            x.first = rank * each;
            x.logits = logits + rank * rows * each;
            RUN(t, softmax_parts, p, (x.parts = OF(parts, p) + rank * 4 * rows, &x));
        }
        RUN(t, softmax_combine, p,
            (x.parts = OF(parts, p), x.logprob = OF(logprob, p), x.lse = OF(lse, p), x.entropy = OF(entropy, p), &x));
        x.coef = coef;
        x.entropy_coef = i % 3 ? bonus : NULL;
        for (int64_t rank = 0; rank < ranks; rank++) {
            x.first = rank * each;
            RUN(t, softmax_backward, p,
                (x.logits = OF(d, p) + rank * rows * each, x.lse = OF(lse, p), x.entropy = OF(entropy, p), &x));
        }
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, at = targets[r];
            for (int64_t c = 0; c < vocab; c++)
                sum += exp((double)0.8f * (double)logits[c / each * rows * each + r * each + c % each] -
                           (double)lse.ref[r]);
            EXPECT(fabs(sum - 1) < 1e-5 && at >= 0);
            EXPECT(fabsf(logprob.one[r] - logprob.ref[r]) <= 1e-5f * (1 + fabsf(lse.ref[r])));
            EXPECT(fabsf(entropy.one[r] - entropy.ref[r]) <= 1e-5f * (1 + fabsf(lse.ref[r])));
        }
        output_check(t, &logprob, "softmax, logprob", INFINITY);
        output_check(t, &lse, "softmax, lse", 1e-6);
        output_check(t, &entropy, "softmax, entropy", INFINITY);                      /* small ones: absolute, above */
        output_check_sum(t, &d, "softmax_backward", 2e-5, 0.8 / sqrt((double)vocab)); /* target - weight, in each row */
        for (int p = 0; p < 3; p++) free(OF(parts, p));
        free(logits), free(coef), free(bonus), free(targets);
    }
}

TEST(train_kernels_softmax) {
    each_set(softmaxes);
}

static void flats(const trio *t) {
    for (int i = 0; i < check_rounds(4, 40); i++) {
        int64_t n = between(1, 40000), spans = (n + TRAIN_SPAN - 1) / TRAIN_SPAN;
        float *grad = random_array(n, 1e-2), *m = random_array(n, 1e-2), *v = random_array(n, 1e-4),
              *w = random_array(n, 1);
        for (int64_t e = 0; e < n; e++) v[e] = fabsf(v[e]);
        output ow = output_from(w, n), om = output_from(m, n), ov = output_from(v, n);
        double sums[3][16], expected = 0;
        train_clip clips[3];
        for (int64_t e = 0; e < n; e++) expected += (double)grad[e] * (double)grad[e];
        RUN(t, sum_squares, p, grad, n, TRAIN_SPAN, sums[p]);
        RUN(t, clip, p, sums[p], spans, i % 2 ? 0.1 : 0, &clips[p]);
        EXPECT(fabs(clips[1].norm - sqrt(expected)) <= 1e-6 * clips[1].norm && clips[1].finite == 1);
        EXPECT(memcmp(&clips[1], &clips[2], sizeof *clips) == 0 && fabs(clips[0].scale - clips[1].scale) < 1e-6);
        EXPECT(i % 2 && clips[1].norm > 0.1 ? fabs(clips[1].scale * clips[1].norm - 0.1) < 1e-5 : clips[1].scale == 1);
        train_adamw x = {.n = n,
                         .grad = grad,
                         .clip = &clips[0],
                         .lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .step = 1 + i,
                         .moment_type = RAVEL_F32};
        RUN(t, adamw, p, (x.weight = x.master = OF(ow, p), x.m = OF(om, p), x.v = OF(ov, p), &x));
        train_clip bad = {.norm = NAN, .scale = 1};
        float *before = copy_of(ow.one, n);
        x.clip = &bad;
        RUN(t, adamw, p, (x.weight = x.master = OF(ow, p), x.m = OF(om, p), x.v = OF(ov, p), &x));
        EXPECT(memcmp(before, ow.one, (size_t)n * sizeof *before) == 0); /* a norm that is not finite changes nothing */
        output_check(t, &ow, "adamw, w", 1e-6);
        output_check(t, &om, "adamw, m", 1e-6);
        output_check(t, &ov, "adamw, v", 1e-6);
        free(grad), free(m), free(v), free(w), free(before);
    }
}

TEST(train_kernels_flat_arrays) {
    each_set(flats);
}
