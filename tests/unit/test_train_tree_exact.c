/* Attention and losses over shared prefixes in double, against the samples one by one: 1e-12. The reference set, as
 * test_train_gradient.c compiles it with train_real = double, is called as train/model calls its set. */
#define TRAIN_DOUBLE
#include "train/kernels/ref/ref.h"

#include "base/rng.h"
#include "tests/unit/check.h"
#include "tests/unit/normal.h"

#include <ravel/tree_batch.h>

#include <math.h>
#include <stdlib.h>

enum { COUNT = 10, LENGTH = 24, PATHS = COUNT * LENGTH, HEADS = 4, KV_HEADS = 2, DIM = 3 };
enum { Q_WIDTH = HEADS * DIM, K_WIDTH = KV_HEADS * DIM };

/* Rows of q and o, and of k and v, in the same places. */
typedef struct arrays {
    double q[PATHS * Q_WIDTH], o[PATHS * Q_WIDTH], k[PATHS * K_WIDTH], v[PATHS * K_WIDTH], lse[PATHS * HEADS];
    double d_o[PATHS * Q_WIDTH], d_q[PATHS * Q_WIDTH], d_k[PATHS * K_WIDTH], d_v[PATHS * K_WIDTH];
} arrays;

typedef struct trees {
    int32_t cu[COUNT + 1], shared[COUNT];
    ravel_tree_bin bin;
    ravel_tree_batch batch;
    void *block;
    arrays places;               /* of the tree */
    double d_o[PATHS * Q_WIDTH]; /* of each sample's own output, in the order of `path` */
} trees;

static double relative(const double *a, const double *b, int64_t n) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off = fmax(off, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return off / (size > 0 ? size : 1);
}

static void add_rows(double *to, const double *from, int64_t width) {
    for (int64_t i = 0; i < width; i++) to[i] += from[i];
}

static bool draw(trees *t, ravel__rng *rng) {
    int32_t count = 1 + (int32_t)ravel__rng_below(rng, COUNT);
    memset(t, 0, sizeof *t);
    for (int32_t i = 0, before = 0; i < count; i++) {
        int32_t length = 1 + (int32_t)ravel__rng_below(rng, LENGTH), most = length < before ? length : before;
        t->shared[i] = ravel__rng_below(rng, 4) ? (int32_t)ravel__rng_below(rng, (uint64_t)most + 1) : most * (i > 0);
        t->cu[i + 1] = t->cu[i] + length;
        before = length;
    }
    t->bin = (ravel_tree_bin){t->cu, t->shared, count};
    t->batch.size = sizeof t->batch;
    if (!EXPECT(ravel_tree_measure(&t->bin, 1, &t->batch, NULL) == RAVEL_OK)) return false;
    t->block = malloc(ravel_tree_bytes(&t->batch));
    ravel_tree_place(t->block, &t->batch);
    for (int i = 0; i < PATHS * Q_WIDTH; i++) {
        t->places.q[i] = ravel__rng_normal(rng);
        t->d_o[i] = ravel__rng_normal(rng);
    }
    for (int i = 0; i < PATHS * K_WIDTH; i++) {
        t->places.k[i] = ravel__rng_normal(rng);
        t->places.v[i] = ravel__rng_normal(rng);
    }
    if (!EXPECT(ravel_tree_pack(&t->bin, &t->batch, NULL) == RAVEL_OK)) return false;
    for (int32_t at = 0; at < t->cu[count]; at++)
        add_rows(t->places.d_o + t->batch.path[at] * Q_WIDTH, t->d_o + at * Q_WIDTH, Q_WIDTH);
    return true;
}

static train_attention attention_over(arrays *a, int32_t samples) {
    return (train_attention){.samples = samples,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS,
                             .head_dim = DIM,
                             .scale = 0.6,
                             .q = a->q,
                             .k = a->k,
                             .v = a->v,
                             .o = a->o,
                             .lse = a->lse,
                             .ld_q = Q_WIDTH,
                             .ld_k = K_WIDTH,
                             .ld_v = K_WIDTH,
                             .d_o = a->d_o,
                             .d_q = a->d_q,
                             .d_k = a->d_k,
                             .d_v = a->d_v,
                             .ld_dq = Q_WIDTH,
                             .ld_dk = K_WIDTH,
                             .ld_dv = K_WIDTH};
}

static train_ragged ragged(const int32_t *starts, const int32_t *lengths, int32_t samples, int64_t tokens) {
    train_ragged r = {.tokens = (int32_t)tokens, .starts = starts, .lengths = lengths, .host_lengths = lengths};
    for (int32_t i = 0; i < samples; i++) r.longest = lengths[i] > r.longest ? lengths[i] : r.longest;
    return r;
}

/* Every sample by itself; gradients are added up per place. */
static void one_by_one(const trees *t, arrays *sum) {
    static arrays own;
    *sum = t->places;
    memset(sum->d_q, 0, sizeof sum->d_q), memset(sum->d_k, 0, sizeof sum->d_k), memset(sum->d_v, 0, sizeof sum->d_v);
    for (int64_t i = 0; i < t->bin.count; i++) {
        const int32_t *path = t->batch.path + t->cu[i];
        int32_t start = 0, length = t->cu[i + 1] - t->cu[i];
        for (int32_t k = 0; k < length; k++) {
            memcpy(own.q + k * Q_WIDTH, t->places.q + path[k] * Q_WIDTH, Q_WIDTH * sizeof(double));
            memcpy(own.k + k * K_WIDTH, t->places.k + path[k] * K_WIDTH, K_WIDTH * sizeof(double));
            memcpy(own.v + k * K_WIDTH, t->places.v + path[k] * K_WIDTH, K_WIDTH * sizeof(double));
            memcpy(own.d_o + k * Q_WIDTH, t->d_o + (t->cu[i] + k) * Q_WIDTH, Q_WIDTH * sizeof(double));
        }
        train_attention x = attention_over(&own, 1);
        x.queries = x.keys = ragged(&start, &length, 1, length);
        REF(table).attention(NULL, &x);
        REF(table).attention_backward(NULL, &x);
        for (int32_t k = 0; k < length; k++) {
            memcpy(sum->o + path[k] * Q_WIDTH, own.o + k * Q_WIDTH, Q_WIDTH * sizeof(double));
            add_rows(sum->d_q + path[k] * Q_WIDTH, own.d_q + k * Q_WIDTH, Q_WIDTH);
            add_rows(sum->d_k + path[k] * K_WIDTH, own.d_k + k * K_WIDTH, K_WIDTH);
            add_rows(sum->d_v + path[k] * K_WIDTH, own.d_v + k * K_WIDTH, K_WIDTH);
        }
    }
}

/* Level by level: outputs are merged, keys are in one call only. */
static void by_levels(const trees *t, arrays *a) {
    static double o[PATHS * Q_WIDTH], lse[PATHS * HEADS];
    const ravel_tree_batch *b = &t->batch;
    int32_t starts[PATHS], queries[PATHS], node_keys[PATHS];
    *a = t->places;
    for (int backward = 0; backward < 2; backward++)
        for (int64_t level = 0; level < b->levels; level++) {
            int32_t first = b->level_offsets[level], count = b->level_offsets[level + 1] - first;
            for (int32_t i = 0; i < count; i++) {
                int32_t node = b->level_nodes[first + i];
                starts[i] = b->node_first[node];
                queries[i] = b->node_end[node] - starts[i];
                node_keys[i] = b->node_last[node] - starts[i];
            }
            train_attention x = attention_over(a, count);
            x.queries = ragged(starts, queries, count, b->tokens);
            x.keys = ragged(starts, node_keys, count, b->tokens);
            x.add = level > 0;
            if (backward) {
                REF(table).attention_backward(NULL, &x);
                continue;
            }
            if (level) x.o = o, x.lse = lse;
            REF(table).attention(NULL, &x);
            if (level)
                REF(table).attention_merge(NULL, &(train_merge){count, HEADS, DIM, x.queries, a->o, a->lse, o, lse});
        }
}

/* Copies of each run's keys; their gradients are added up. */
static void by_keys(const trees *t, arrays *a) {
    static arrays copies;
    const ravel_tree_batch *b = &t->batch;
    int32_t starts[COUNT], queries[COUNT], key_starts[COUNT], path_keys[COUNT], shifts[COUNT];
    *a = t->places;
    for (int64_t k = 0; k < b->keys; k++) {
        memcpy(copies.k + k * K_WIDTH, a->k + b->gather[k] * K_WIDTH, K_WIDTH * sizeof(double));
        memcpy(copies.v + k * K_WIDTH, a->v + b->gather[k] * K_WIDTH, K_WIDTH * sizeof(double));
    }
    for (int64_t r = 0; r < b->runs; r++) {
        starts[r] = b->cu_seqlens_q[r];
        queries[r] = b->cu_seqlens_q[r + 1] - starts[r];
        key_starts[r] = b->cu_seqlens_k[r];
        path_keys[r] = b->cu_seqlens_k[r + 1] - key_starts[r];
        shifts[r] = path_keys[r] - queries[r];
    }
    train_attention x = attention_over(a, (int32_t)b->runs);
    x.queries = ragged(starts, queries, (int32_t)b->runs, b->tokens);
    x.keys = ragged(key_starts, path_keys, (int32_t)b->runs, b->keys);
    x.shifts = shifts;
    x.k = copies.k, x.v = copies.v, x.d_k = copies.d_k, x.d_v = copies.d_v;
    REF(table).attention(NULL, &x);
    REF(table).attention_backward(NULL, &x);
    for (int64_t k = 0; k < b->keys; k++) {
        add_rows(a->d_k + b->gather[k] * K_WIDTH, copies.d_k + k * K_WIDTH, K_WIDTH);
        add_rows(a->d_v + b->gather[k] * K_WIDTH, copies.d_v + k * K_WIDTH, K_WIDTH);
    }
}

static bool same(const trees *t, const arrays *a, const arrays *b) {
    int64_t n = t->batch.unique;
    double off = fmax(fmax(relative(a->o, b->o, n * Q_WIDTH), relative(a->d_q, b->d_q, n * Q_WIDTH)),
                      fmax(relative(a->d_k, b->d_k, n * K_WIDTH), relative(a->d_v, b->d_v, n * K_WIDTH)));
    if (off > 1e-12) printf("    off by %g\n", off);
    return EXPECT(off <= 1e-12);
}

TEST(train_tree_attention_in_double_equals_one_by_one) {
    static trees t;
    static arrays want, levels, copies;
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(60, 3000); round++) {
        bool ok = draw(&t, &rng);
        if (ok) {
            one_by_one(&t, &want);
            by_levels(&t, &levels);
            by_keys(&t, &copies);
            ok = same(&t, &levels, &want) && same(&t, &copies, &want);
        }
        free(t.block);
        CHECK(ok);
    }
}

/* ---- the loss --------------------------------------------------------------------------------------------------- */

enum { ROWS = 20, LOSSES = 60 };

typedef struct losses {
    int32_t first[ROWS + 1], list[LOSSES], row_of[LOSSES], samples[LOSSES], count;
    double logprob[ROWS], entropy[ROWS];
    float weights[LOSSES], old[LOSSES], generator[LOSSES], reference[LOSSES], advantages[LOSSES];
} losses;

/* Each row has one loss or several, of samples whose advantages have either sign. */
static void draw_losses(losses *l, ravel__rng *rng) {
    l->count = 0;
    for (int32_t r = 0; r < ROWS; r++) {
        l->first[r] = l->count;
        l->logprob[r] = -3 * ravel__rng_unit(rng);
        l->entropy[r] = ravel__rng_unit(rng);
        for (uint64_t k = 1 + ravel__rng_below(rng, 3); k > 0; k--) {
            int32_t j = l->count++;
            l->list[j] = j;
            l->row_of[j] = r;
            l->weights[j] = (float)ravel__rng_unit(rng);
            l->old[j] = (float)(l->logprob[r] + ravel__rng_unit(rng) - 0.5);
            l->generator[j] = (float)(l->old[j] + 0.2 * ravel__rng_unit(rng));
            l->reference[j] = (float)(-3 * ravel__rng_unit(rng));
            l->advantages[j] = (float)(2 * ravel__rng_unit(rng) - 1);
        }
    }
    l->first[ROWS] = l->count;
}

static train_loss_rows loss_rows(const losses *l, const train_policy_terms *terms, double *coef, double *entropy_coef,
                                 train_loss_sums *sums) {
    return (train_loss_rows){.rows = ROWS,
                             .policy = terms,
                             .logprob = l->logprob,
                             .entropy = l->entropy,
                             .weights = l->weights,
                             .old = l->old,
                             .generator = l->generator,
                             .reference = l->reference,
                             .advantages = l->advantages,
                             .coef = coef,
                             .entropy_coef = entropy_coef,
                             .sums = sums};
}

/* Derivatives of a row are those of its losses, each clipped by its own advantage, added up. */
TEST(train_tree_loss_in_double_equals_one_by_one) {
    static losses l;
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(200, 10000); round++) {
        train_policy_terms terms = {.kl_kind = (int32_t)(round % 3),
                                    .gap = TRAIN_GAP_OLD,
                                    .clip_low = 0.2,
                                    .clip_high = 0.3,
                                    .kl = 0.1,
                                    .entropy = 0.02,
                                    .dual_clip = round % 2 ? 3 : 0};
        double coef[ROWS], entropy_coef[ROWS], want[ROWS] = {0}, want_entropy[ROWS] = {0}, logprob[LOSSES],
                                               entropy[LOSSES];
        double each[LOSSES], each_entropy[LOSSES];
        train_loss_sums sums = {0}, own = {0};
        draw_losses(&l, &rng);
        (void)ravel_policy_get_correction(RAVEL_CORRECTION_TIS, 0, 1.1, &terms.correction, NULL);
        train_loss_rows tree = loss_rows(&l, &terms, coef, entropy_coef, &sums);
        tree.losses = l.count;
        tree.first = l.first;
        tree.list = l.list;
        tree.row_of = l.row_of;
        REF(table).loss(NULL, &tree);
        for (int32_t j = 0; j < l.count; j++) logprob[j] = l.logprob[l.row_of[j]], entropy[j] = l.entropy[l.row_of[j]];
        train_loss_rows flat = loss_rows(&l, &terms, each, each_entropy, &own);
        flat.rows = l.count;
        flat.logprob = logprob;
        flat.entropy = entropy;
        REF(table).loss(NULL, &flat);
        for (int32_t j = 0; j < l.count; j++) {
            want[l.row_of[j]] += each[j];
            want_entropy[l.row_of[j]] += each_entropy[j];
        }
        CHECK(relative(coef, want, ROWS) <= 1e-12 && relative(entropy_coef, want_entropy, ROWS) <= 1e-12);
        CHECK(relative((const double *)&sums, (const double *)&own, sizeof sums / sizeof(double)) <= 1e-12);
    }
}
