/* The CUDA set against the reference: attention over ragged batches (cuDNN's plans and our own kernels), the merge of two
 * blocks of keys, the paged cache. */
#include "tests/gpu/pair.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_SAMPLES = 12 };

typedef struct ragged_case {
    int32_t heads, kv_heads, dim, samples;
    int32_t q_starts[MOST_SAMPLES], q_lengths[MOST_SAMPLES], k_starts[MOST_SAMPLES], k_lengths[MOST_SAMPLES];
    int32_t shifts[MOST_SAMPLES], q_tokens, k_tokens, q_longest, k_longest;
    int32_t window, apart, add, all; /* apart: keys have rows of their own; all: every key is seen */
    int32_t at_end, below;           /* apart: queries are the last of the keys; else queries go on below the keys */
} ragged_case;

/* Random samples with gaps between some of them. */
static void draw_case(pair *p, ragged_case *c, int64_t longest) {
    c->q_tokens = c->k_tokens = c->q_longest = c->k_longest = 0;
    for (int i = 0; i < c->samples; i++) {
        int32_t gap = (int32_t)pair_below(p, 3) * 8, n = 1 + (int32_t)pair_below(p, longest);
        c->q_starts[i] = c->q_tokens + gap;
        c->q_lengths[i] = n;
        c->q_tokens = c->q_starts[i] + n;
        c->k_starts[i] = c->apart ? c->k_tokens + gap : c->q_starts[i];
        c->k_lengths[i] = c->apart ? (int32_t)pair_below(p, longest) + c->all : n;
        if (c->at_end) c->k_lengths[i] = n + (int32_t)pair_below(p, longest);
        if (c->below) c->k_lengths[i] = 1 + (int32_t)pair_below(p, n);
        c->k_tokens = c->k_starts[i] + c->k_lengths[i];
        c->shifts[i] = c->apart ? (int32_t)pair_below(p, longest) - (int32_t)longest / 4 : 0;
        if (c->at_end) c->shifts[i] = c->k_lengths[i] - n;
        if (n > c->q_longest) c->q_longest = n;
        if (c->k_lengths[i] > c->k_longest) c->k_longest = c->k_lengths[i];
    }
}

typedef struct ragged_arrays {
    pair_array qs, ql, ks, kl, shifts, q, k, v, o, lse, d_o, d_q, d_k, d_v;
} ragged_arrays;

static ragged_arrays make_arrays(pair *p, const ragged_case *c) {
    int64_t q = (int64_t)c->q_tokens * c->heads * c->dim, kv = (int64_t)c->k_tokens * c->kv_heads * c->dim;
    ragged_arrays a;
    a.qs = pair_ints(p, c->q_starts, c->samples);
    a.ql = pair_ints(p, c->q_lengths, c->samples);
    a.ks = c->apart ? pair_ints(p, c->k_starts, c->samples) : a.qs;
    a.kl = c->apart || c->below ? pair_ints(p, c->k_lengths, c->samples) : a.ql;
    a.shifts = pair_ints(p, c->shifts, c->samples);
    a.q = pair_random(p, q, PAIR_ACTIVATION, 1);
    a.k = pair_random(p, kv + 8, PAIR_ACTIVATION, 1);
    a.v = pair_random(p, kv + 8, PAIR_ACTIVATION, 1);
    a.o = pair_zeros(p, q, PAIR_ACTIVATION);
    a.lse = pair_zeros(p, (int64_t)c->q_tokens * c->heads, PAIR_REAL);
    a.d_o = pair_random(p, q, PAIR_ACTIVATION, 1);
    a.d_q = c->add ? pair_random(p, q, PAIR_ACTIVATION, 1) : pair_zeros(p, q, PAIR_ACTIVATION);
    a.d_k = pair_random(p, kv + 8, PAIR_ACTIVATION, 1); /* rows of no sample keep it */
    a.d_v = pair_random(p, kv + 8, PAIR_ACTIVATION, 1);
    return a;
}

static train_attention call_of(const ragged_case *c, const ragged_arrays *a, int side) {
    train_attention x = {.samples = c->samples, .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->dim};
    x.scale = 1 / sqrtf((float)c->dim);
    x.window = c->window;
    x.add = c->add;
    x.at_end = c->at_end;
    x.queries = (train_ragged){.tokens = c->q_tokens, .longest = c->q_longest};
    x.queries.starts = a->qs.on[side];
    x.queries.lengths = a->ql.on[side];
    x.queries.host_lengths = c->q_lengths;
    x.keys = (train_ragged){.tokens = c->k_tokens, .longest = c->k_longest};
    x.keys.starts = a->ks.on[side];
    x.keys.lengths = a->kl.on[side];
    x.keys.host_lengths = c->k_lengths;
    x.shifts = !c->apart ? NULL : c->all ? x.keys.lengths : a->shifts.on[side];
    x.q = a->q.on[side];
    x.k = a->k.on[side];
    x.v = a->v.on[side];
    x.o = a->o.on[side];
    x.lse = a->lse.on[side];
    x.d_o = a->d_o.on[side];
    x.d_q = a->d_q.on[side];
    x.d_k = a->d_k.on[side];
    x.d_v = a->d_v.on[side];
    x.ld_q = x.ld_dq = (int64_t)c->heads * c->dim;
    x.ld_k = x.ld_v = x.ld_dk = x.ld_dv = (int64_t)c->kv_heads * c->dim;
    return x;
}

static train_limits limits_of(const ragged_case *c, int64_t longest) {
    return (train_limits){.tokens = MOST_SAMPLES * (longest + 16),
                          .longest = 2 * longest,
                          .keys = 2 * MOST_SAMPLES * (longest + 16),
                          .samples = MOST_SAMPLES,
                          .width = 4096,
                          .hidden = 1024,
                          .heads = c->heads,
                          .kv_heads = c->kv_heads,
                          .head_dim = c->dim,
                          .vocab = 1000};
}

static void compare(ragged_case c, int64_t longest) {
    pair p;
    train_limits limits = limits_of(&c, longest);
    if (!pair_open(&p, &limits)) return;
    draw_case(&p, &c, longest);
    ragged_arrays a = make_arrays(&p, &c);
    EACH_SIDE {
        train_attention x = call_of(&c, &a, side);
        p.set[side]->attention(p.device[side], &x);
        p.set[side]->attention_backward(p.device[side], &x);
    }
    const struct {
        const char *name;
        const pair_array *array;
        double most;
    } results[] = {
        {"o", &a.o, 0.06}, {"lse", &a.lse, 1e-2}, {"d_q", &a.d_q, 0.12}, {"d_k", &a.d_k, 0.12}, {"d_v", &a.d_v, 0.12}};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        double off = pair_difference(&p, results[i].array);
        if (!(off < results[i].most))
            check_fail(
                __FILE__, __LINE__,
                "%s differs by %g of its size (heads %d and %d of %d, window %d, apart %d, all %d, add %d, at end %d, below %d, up to "
                "%lld)",
                results[i].name, off, c.heads, c.kv_heads, c.dim, c.window, c.apart, c.all, c.add, c.at_end, c.below,
                (long long)longest);
    }
    pair_close(&p);
}

TEST(cuda_attention_causal) {
    static const int32_t shapes[][3] = {{16, 8, 128}, {9, 3, 64}, {4, 4, 64}, {4, 2, 16}, {14, 2, 64}, {2, 1, 256}};
    for (int i = 0; i < 6; i++)
        compare((ragged_case){.heads = shapes[i][0], .kv_heads = shapes[i][1], .dim = shapes[i][2], .samples = 5}, 150);
    compare((ragged_case){.heads = 4, .kv_heads = 2, .dim = 128, .samples = 3}, 700);
    compare((ragged_case){.heads = 4, .kv_heads = 2, .dim = 128, .samples = 1}, 40);
}

/* Shifts that are neither none nor all keys: no plan of cuDNN's serves these, so compute-sanitizer sees our kernels alone. */
TEST(cuda_attention_own_kernels) {
    compare((ragged_case){.heads = 4, .kv_heads = 2, .dim = 64, .samples = 6, .apart = 1}, 100);
    compare((ragged_case){.heads = 6, .kv_heads = 2, .dim = 128, .samples = 6, .apart = 1, .window = 30}, 100);
    compare((ragged_case){.heads = 4, .kv_heads = 4, .dim = 32, .samples = 6, .apart = 1, .add = 1}, 100);
}

/* What a context-parallel ring and a model with a sliding window ask of cuDNN's plans. */
TEST(cuda_attention_blocks_and_windows_by_plans) {
    compare((ragged_case){.heads = 4, .kv_heads = 2, .dim = 64, .samples = 5, .window = 20}, 100);
    static const int32_t shapes[][4] = {{16, 8, 128, 130}, {9, 3, 64, 300}, {4, 4, 64, 300}, {2, 1, 64, 700}};
    for (int i = 0; i < 4; i++) {
        ragged_case c = {.heads = shapes[i][0], .kv_heads = shapes[i][1], .dim = shapes[i][2], .samples = 6};
        for (c.add = 0; c.add < 2; c.add++) {
            c.apart = c.all = 0;
            c.window = 0;
            compare(c, shapes[i][3]);
            c.window = 70;
            compare(c, shapes[i][3]);
            c.apart = c.all = 1;
            c.window = 0;
            compare(c, shapes[i][3]);
        }
    }
}

/* What trees ask of them: gathered keys, and nodes with all that is below. */
TEST(cuda_attention_trees_by_plans) {
    static const int32_t shapes[][4] = {{16, 8, 128, 130}, {9, 3, 64, 300}, {4, 4, 64, 300}, {2, 1, 64, 700}};
    for (int i = 0; i < 4; i++) {
        ragged_case c = {.heads = shapes[i][0], .kv_heads = shapes[i][1], .dim = shapes[i][2], .samples = 6};
        c.apart = c.at_end = 1;
        compare(c, shapes[i][3]);
        c.window = 70;
        compare(c, shapes[i][3]);
        c.apart = c.at_end = c.window = 0;
        c.below = 1;
        for (c.add = 0; c.add < 2; c.add++) compare(c, shapes[i][3]);
    }
}

/* Many calls of random lengths; the same call twice gives the same bits, backward too, however it is cut into runs. */
TEST(cuda_attention_repeats_its_bits) {
    ragged_case c = {.heads = 4, .kv_heads = 2, .dim = 128, .samples = 10};
    pair p;
    train_limits limits = limits_of(&c, 1500);
    if (!pair_open(&p, &limits)) return;
    draw_case(&p, &c, 1500);
    ragged_arrays a = make_arrays(&p, &c);
    int64_t n = a.d_q.n;
    float *first = malloc((size_t)n * sizeof *first), *again = malloc((size_t)n * sizeof *again);
    train_attention x = call_of(&c, &a, CUDA_SIDE);
    for (int i = 0; i < 4; i++) {
        p.set[CUDA_SIDE]->attention(p.device[CUDA_SIDE], &x);
        p.set[CUDA_SIDE]->attention_backward(p.device[CUDA_SIDE], &x);
        pair_read(&p, &a.d_q, CUDA_SIDE, i ? again : first);
        if (i && memcmp(first, again, (size_t)n * sizeof *first) != 0)
            check_fail(__FILE__, __LINE__, "d_q changed in run %d", i);
    }
    free(first);
    free(again);
    pair_close(&p);
}

TEST(cuda_attention_merge) {
    pair p;
    train_limits limits = {.tokens = 64,
                           .longest = 64,
                           .samples = 1,
                           .width = 512,
                           .hidden = 512,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 64};
    if (!pair_open(&p, &limits)) return;
    const int64_t rows = 50, heads = 4, dim = 64;
    float lse[200], other[200];
    for (int i = 0; i < 200; i++) {
        lse[i] = i % 7 == 0 ? -INFINITY : (float)i / 50;
        other[i] = i % 5 == 0 ? -INFINITY : (float)(200 - i) / 40;
    }
    pair_array o = pair_random(&p, rows * heads * dim, PAIR_ACTIVATION, 1),
               b = pair_random(&p, rows * heads * dim, PAIR_ACTIVATION, 1);
    pair_array l = pair_reals(&p, lse, 200), m = pair_reals(&p, other, 200);
    static const int32_t from[] = {3, 20, 31}, count[] = {10, 11, 18};
    pair_array starts = pair_ints(&p, from, 3), lengths = pair_ints(&p, count, 3);
    EACH_SIDE {
        train_merge merge = {.samples = 3, .heads = (int32_t)heads, .head_dim = (int32_t)dim, .o = o.on[side]};
        merge.queries = (train_ragged){(int32_t)rows, 18, starts.on[side], lengths.on[side], count};
        merge.lse = l.on[side];
        merge.other_o = b.on[side];
        merge.other_lse = m.on[side];
        p.set[side]->attention_merge(p.device[side], &merge);
    }
    NEAR(&p, &o, 0.03);
    NEAR(&p, &l, 1e-4);
    pair_close(&p);
}

/* ---- the paged cache ---------------------------------------------------------------------------------------- */

enum { SLOTS = 7, PAGES_PER_SLOT = 24, POOL = SLOTS * PAGES_PER_SLOT };

static void cache_case(int32_t heads, int32_t kv, int32_t dim, int32_t window) {
    pair p;
    train_limits limits = {
        .tokens = SLOTS * 1500, .longest = 1500, .samples = SLOTS, .width = 4096, .hidden = 1024, .inference = 1};
    limits.heads = heads;
    limits.kv_heads = kv;
    limits.head_dim = dim;
    limits.cached = PAGES_PER_SLOT * TRAIN_PAGE;
    if (!pair_open(&p, &limits)) return;
    static const int32_t lengths[SLOTS] = {1, 64, 65, 511, 513, 1200, 0};
    int32_t table[POOL], slots[SLOTS], *row_slot = malloc(SLOTS * 1500 * sizeof *row_slot),
                                       *row_place = malloc(SLOTS * 1500 * sizeof *row_place);
    int64_t rows = 0, width = (int64_t)kv * dim;
    for (int i = 0; i < POOL; i++) table[i] = (i * 37) % POOL; /* pages in no order */
    for (int s = 0; s < SLOTS; s++) {
        slots[s] = SLOTS - 1 - s; /* rows are not in the order of the slots */
        for (int32_t t = 0; t < lengths[s]; t++, rows++) {
            row_slot[rows] = slots[s];
            row_place[rows] = t;
        }
    }
    pair_array pages = pair_ints(&p, table, POOL), slot = pair_ints(&p, slots, SLOTS),
               length = pair_ints(&p, lengths, SLOTS);
    pair_array rs = pair_ints(&p, row_slot, rows), rp = pair_ints(&p, row_place, rows);
    pair_array k = pair_random(&p, rows * width, PAIR_ACTIVATION, 1),
               v = pair_random(&p, rows * width, PAIR_ACTIVATION, 1);
    pair_array k2 = pair_zeros(&p, lengths[0] * width, PAIR_ACTIVATION),
               v2 = pair_zeros(&p, lengths[0] * width, PAIR_ACTIVATION);
    pair_array ck = pair_zeros(&p, POOL * TRAIN_PAGE * width, PAIR_ACTIVATION),
               cv = pair_zeros(&p, POOL * TRAIN_PAGE * width, PAIR_ACTIVATION);
    pair_array q = pair_random(&p, (int64_t)SLOTS * heads * dim, PAIR_ACTIVATION, 1),
               o = pair_zeros(&p, (int64_t)SLOTS * heads * dim, PAIR_ACTIVATION);
    EACH_SIDE {
        train_cache cache = {
            .k = ck.on[side], .v = cv.on[side], .table = pages.on[side], .pages_per_slot = PAGES_PER_SLOT};
        cache.kv_heads = kv;
        cache.head_dim = dim;
        train_cache_write write = {
            .cache = cache, .rows = rows, .k = k.on[side], .v = v.on[side], .ld_k = width, .ld_v = width};
        write.slots = rs.on[side];
        write.positions = rp.on[side];
        p.set[side]->cache_write(p.device[side], &write);
        train_cache_write back = {
            .cache = cache, .rows = lengths[0], .k = k2.on[side], .v = v2.on[side], .ld_k = width, .ld_v = width};
        back.back = 1;
        p.set[side]->cache_write(p.device[side], &back);
        train_cached call = {
            .cache = cache, .rows = SLOTS, .heads = heads, .scale = 1 / sqrtf((float)dim), .window = window};
        call.longest = 1200;
        call.q = q.on[side];
        call.ld_q = (int64_t)heads * dim;
        call.slots = slot.on[side];
        call.lengths = length.on[side];
        call.o = o.on[side];
        p.set[side]->attention_cached(p.device[side], &call);
    }
    NEAR(&p, &o, 0.05);
    NEAR(&p, &k2, 0);
    NEAR(&p, &v2, 0);
    free(row_slot);
    free(row_place);
    pair_close(&p);
}

TEST(cuda_attention_cached) {
    cache_case(16, 8, 128, 0);
    cache_case(4, 4, 64, 0);
    cache_case(9, 3, 64, 0);
    cache_case(8, 1, 32, 0);
    cache_case(4, 2, 256, 0);
    cache_case(4, 2, 128, 100);
    cache_case(4, 2, 128, 700);
    cache_case(16, 1, 128, 0);
    cache_case(24, 2, 96, 0);
}
