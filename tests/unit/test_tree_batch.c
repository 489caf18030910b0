/* The tree layout against brute force: paths by comparing tokens, visibility by comparing paths, nodes by their samples. */
#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/tree_batch.h>

#include <stdlib.h>

enum { SAMPLES = 12, LENGTH = 20, TOKENS = SAMPLES * LENGTH, ALIGN = 64 };

/* Sorted samples of few letters, a longer one before its own prefixes. */
typedef struct forest {
    int32_t count, tokens[SAMPLES][LENGTH], lengths[SAMPLES];
    int32_t cu[SAMPLES + 1], shared[SAMPLES], flat[TOKENS];
    ravel_tree_bin bin;
    ravel_tree_batch batch;
    void *block;
} forest;

static int compare(const void *a, const void *b) {
    const int32_t *x = a, *y = b; /* a length, then tokens */
    int32_t least = x[0] < y[0] ? x[0] : y[0];
    for (int32_t i = 1; i <= least; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return y[0] - x[0];
}

static void draw(forest *f, ravel__rng *rng) {
    int32_t rows[SAMPLES][LENGTH + 1];
    f->count = 1 + (int32_t)ravel__rng_below(rng, SAMPLES);
    uint64_t letters = 1 + ravel__rng_below(rng, 3);
    for (int32_t i = 0; i < f->count; i++) {
        rows[i][0] = 1 + (int32_t)ravel__rng_below(rng, LENGTH);
        int32_t same = i ? (int32_t)ravel__rng_below(rng, LENGTH) : 0;
        for (int32_t k = 1; k <= LENGTH; k++)
            rows[i][k] = k <= same ? rows[i - 1][k] : (int32_t)ravel__rng_below(rng, letters);
    }
    qsort(rows, (size_t)f->count, sizeof rows[0], compare);
    f->cu[0] = 0;
    for (int32_t i = 0; i < f->count; i++) {
        int32_t k = 0, n = rows[i][0];
        memcpy(f->tokens[i], rows[i] + 1, sizeof f->tokens[i]);
        memcpy(f->flat + f->cu[i], rows[i] + 1, (size_t)n * sizeof(int32_t));
        while (i && k < n && k < f->lengths[i - 1] && f->tokens[i - 1][k] == f->tokens[i][k]) k++;
        f->lengths[i] = n;
        f->shared[i] = k;
        f->cu[i + 1] = f->cu[i] + n;
    }
    f->bin = (ravel_tree_bin){f->cu, f->shared, f->count};
}

static bool lay_out(forest *f, int64_t align) {
    ravel_error err = RAVEL_ERROR_INIT;
    f->batch = (ravel_tree_batch){.size = sizeof f->batch};
    if (!EXPECT(ravel_tree_measure(&f->bin, align, &f->batch, &err) == RAVEL_OK)) return false;
    size_t bytes = ravel_tree_bytes(&f->batch);
    f->block = malloc(bytes);
    if (!f->block) return false;
    memset(f->block, 0x5a, bytes);
    ravel_tree_place(f->block, &f->batch);
    return EXPECT(ravel_tree_pack(&f->bin, &f->batch, &err) == RAVEL_OK);
}

/* Sample i passes through place p at depth d if its token d came there; by brute force: the first sample with the same
 * first d + 1 tokens owns it. */
static int32_t owner_of(const forest *f, int32_t i, int32_t d) {
    for (int32_t j = 0; j < i; j++)
        if (d < f->lengths[j] && memcmp(f->tokens[j], f->tokens[i], (size_t)(d + 1) * sizeof(int32_t)) == 0) return j;
    return i;
}

static bool check_paths(const forest *f) {
    const ravel_tree_batch *b = &f->batch;
    bool ok = true;
    for (int32_t i = 0; i < f->count; i++)
        for (int32_t d = 0; d < f->lengths[i]; d++) {
            int32_t place = b->path[f->cu[i] + d], owner = owner_of(f, i, d);
            ok &= place == b->path[f->cu[owner] + d] && b->positions[place] == d;
            ok &= b->parents[place] == (d ? b->path[f->cu[i] + d - 1] : -1);
            if (owner == i) ok &= place >= b->starts[i] && place < b->starts[i + 1];
        }
    return EXPECT(ok);
}

static bool on_path(const forest *f, int32_t sample, int32_t place) {
    for (int32_t d = f->cu[sample]; d < f->cu[sample + 1]; d++)
        if (f->batch.path[d] == place) return true;
    return false;
}

/* Key k is seen by q if some sample has both, k first. */
static bool check_limits(const forest *f) {
    const ravel_tree_batch *b = &f->batch;
    bool ok = true;
    for (int32_t q = 0; q < b->tokens; q++)
        for (int32_t k = 0; k < b->tokens; k++) {
            bool seen = q == k;
            for (int32_t i = 0; i < f->count && !seen; i++)
                seen = b->positions[k] < b->positions[q] && on_path(f, i, q) && on_path(f, i, k);
            ok &= seen == (k <= q && q < b->limits[k]);
        }
    return EXPECT(ok);
}

/* By gathered keys, bottom right: what each run's queries see. */
static bool check_runs(const forest *f, const ravel_tree_piece *p) {
    const ravel_tree_batch *b = &f->batch;
    bool ok = p->cu_seqlens_k[p->runs] == p->keys;
    for (int64_t r = 0; r < p->runs; r++) {
        int32_t queries = p->cu_seqlens_q[r + 1] - p->cu_seqlens_q[r],
                keys = p->cu_seqlens_k[r + 1] - p->cu_seqlens_k[r];
        const int32_t *gather = p->gather + p->cu_seqlens_k[r];
        for (int32_t i = 0; i < queries; i++) {
            int32_t q = p->places[p->query_starts[r] + i], last = keys - queries + i;
            ok &= gather[last] == q && b->positions[q] == last;
            for (int32_t d = q, at = last; at >= 0; at--, d = b->parents[d]) ok &= gather[at] == d;
        }
    }
    return EXPECT(ok);
}

/* Over all levels each pair is there once. */
static bool check_levels(const forest *f) {
    const ravel_tree_batch *b = &f->batch;
    uint8_t seen[TOKENS] = {0};
    int64_t pairs = 0, want = 0;
    bool ok = b->level_offsets[b->levels] == b->nodes && b->nodes <= b->nodes_most;
    for (int64_t l = 0; l < b->levels; l++)
        for (int32_t k = b->level_offsets[l]; k < b->level_offsets[l + 1]; k++) {
            int32_t n = b->level_nodes[k], above = b->node_parent[n];
            ok &= b->node_level[n] == l && (above < 0 ? l == 0 : b->node_level[above] == l - 1);
            ok &= above < 0 || (b->node_last[above] <= b->node_first[n] && b->node_end[n] <= b->node_end[above]);
            for (int32_t p = b->node_first[n]; p < b->node_last[n]; p++) {
                ok &= !seen[p]++ && b->node_of[p] == n && b->limits[p] == b->node_end[n];
                pairs += b->node_end[n] - p;
            }
        }
    for (int32_t p = 0; p < b->unique; p++) want += b->positions[p] + 1;
    return EXPECT(ok && pairs == want);
}

static bool check_fields(const forest *f) {
    int32_t packed[TOKENS + ALIGN], back[TOKENS], steps[TOKENS], pad = -7, at = 0;
    bool ok = ravel_tree_pack_field(&f->bin, &f->batch, f->flat, 4, &pad, packed, NULL) == RAVEL_OK;
    ok &= ravel_tree_unpack(&f->bin, &f->batch, RAVEL_FIELD_TOKEN, packed, 4, back, NULL) == RAVEL_OK;
    ok &= ravel_tree_unpack(&f->bin, &f->batch, RAVEL_FIELD_STEP, packed, 4, steps, NULL) == RAVEL_OK;
    ok &= memcmp(back, f->flat, (size_t)f->cu[f->count] * 4) == 0;
    for (int64_t p = f->batch.unique; p < f->batch.tokens; p++) ok &= packed[p] == pad;
    for (int32_t i = 0; i < f->count; i++)
        for (int32_t t = 1; t < f->lengths[i]; t++) ok &= steps[at++] == f->flat[f->cu[i] + t];
    return EXPECT(ok);
}

static bool pack_piece(const forest *f, const int32_t *owners, int32_t ranks, int32_t rank, ravel_tree_piece *p,
                       int32_t *memory) {
    *p = (ravel_tree_piece){.size = sizeof *p};
    if (ravel_tree_piece_measure(&f->bin, &f->batch, owners, ranks, rank, p, NULL) != RAVEL_OK) return EXPECT(false);
    p->places = memory;
    p->query_starts = p->places + p->tokens;
    p->cu_seqlens_q = p->query_starts + p->runs;
    p->cu_seqlens_k = p->cu_seqlens_q + p->runs + 1;
    p->gather = p->cu_seqlens_k + p->runs + 1;
    return EXPECT(ravel_tree_piece_pack(&f->bin, &f->batch, owners, ranks, rank, p, NULL) == RAVEL_OK);
}

/* The whole bin as one piece has the batch's own arrays; pieces of all ranks have each place once. */
static bool check_pieces(const forest *f, int32_t ranks) {
    static int32_t memory[40 * TOKENS];
    int32_t owners[8 * RAVEL_TREE_CHUNKS], seen[TOKENS + ALIGN] = {0};
    const ravel_tree_batch *b = &f->batch;
    ravel_tree_piece p;
    bool ok = pack_piece(f, NULL, 1, 0, &p, memory) && check_runs(f, &p);
    ok = ok && p.runs == b->runs && memcmp(p.gather, b->gather, (size_t)b->keys * 4) == 0 &&
         memcmp(p.cu_seqlens_q, b->cu_seqlens_q, (size_t)(b->runs + 1) * 4) == 0 &&
         memcmp(p.cu_seqlens_k, b->cu_seqlens_k, (size_t)(b->runs + 1) * 4) == 0;
    if (!ok || ravel_tree_deal(b, ranks, owners, NULL, NULL) != RAVEL_OK) return EXPECT(false);
    for (int32_t r = 0; r < ranks; r++) {
        if (!pack_piece(f, owners, ranks, r, &p, memory) || !check_runs(f, &p)) return false;
        ok &= p.tokens == b->tokens / ranks;
        for (int64_t k = 0; k < p.tokens; k++) seen[p.places[k]]++;
    }
    for (int64_t k = 0; k < b->tokens; k++) ok &= seen[k] == 1;
    return EXPECT(ok);
}

TEST(tree_batch_equals_brute_force) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(400, 20000); round++) {
        forest f = {0};
        draw(&f, &rng);
        int32_t ranks = 1 << ravel__rng_below(&rng, 4);
        bool ok = lay_out(&f, RAVEL_TREE_CHUNKS * ranks) && check_paths(&f) && check_limits(&f) && check_levels(&f) &&
                  check_fields(&f) && check_pieces(&f, ranks);
        free(f.block);
        CHECK(ok);
    }
}

/* 16 answers of different lengths to each of several prompts, as the notes measure it. */
TEST(tree_batch_deals_equal_work) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 2);
    enum { COUNT = 48 };
    for (int32_t ranks = 2; ranks <= 8; ranks *= 2)
        for (int round = 0; round < 20; round++) {
            int32_t cu[COUNT + 1] = {0}, shared[COUNT], prompt = 0, owners[64];
            int64_t pairs[8], total = 0, most = 0;
            for (int32_t i = 0; i < COUNT; i++) {
                if (i % 16 == 0) prompt = 200 + (int32_t)ravel__rng_below(&rng, 2000);
                shared[i] = i % 16 ? prompt : 0;
                cu[i + 1] = cu[i] + prompt + 1 + (int32_t)ravel__rng_below(&rng, 1500);
            }
            forest f = {.bin = {cu, shared, COUNT}};
            bool ok = lay_out(&f, 64);
            ok = ok && ravel_tree_deal(&f.batch, ranks, owners, pairs, NULL) == RAVEL_OK;
            free(f.block);
            CHECK(ok);
            for (int32_t r = 0; r < ranks; r++) {
                total += pairs[r];
                if (pairs[r] > most) most = pairs[r];
            }
            CHECK((double)most * ranks <= 1.02 * (double)total);
        }
}

TEST(tree_batch_refuses_what_is_wrong) {
    int32_t cu[] = {0, 3, 5}, shared[] = {0, 3}, owners[16];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_tree_bin bin = {cu, shared, 2};
    ravel_tree_batch b = {.size = sizeof b};
    CHECK_EQ(ravel_tree_measure(&bin, 1, &b, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "sample 1 of the tree shares 3");
    shared[1] = 2;
    CHECK_OK(ravel_tree_measure(&bin, 1, &b, &err), &err);
    CHECK_EQ(b.unique, 3);
    CHECK_EQ(b.runs, 1);
    int32_t positions[3] = {0, 1, 2};
    b.positions = positions;
    CHECK_EQ(ravel_tree_deal(&b, 2, owners, NULL, &err), RAVEL_E_ARGUMENT);
    shared[1] = 0;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_tree_pack(&bin, &b, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "measure it again");
}
