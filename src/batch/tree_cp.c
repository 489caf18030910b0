/* A tree over context-parallel ranks: chunks of equal tokens, dealt by their pairs of (query, key).
 *
 * The heaviest chunk goes to the rank with the least work that still has room; then the heaviest and the lightest rank
 * swap two chunks for as long as that helps. For one causal sequence with two chunks per rank this is the zig-zag. */
#include <ravel/tree_batch.h>

#include "base/assert.h"

#include <string.h>

/* ---- dealing -------------------------------------------------------------------------------------------- */

enum { RANKS = 256 };

typedef struct dealing {
    int32_t ranks, *owners;
    int64_t chunks;
    int64_t pairs[RANKS * RAVEL_TREE_CHUNKS]; /* of each chunk */
    int64_t work[RANKS];                      /* of each rank */
    int32_t rooms[RANKS];                     /* chunks that it still takes */
} dealing;

static void open_dealing(dealing *d, const ravel_tree_batch *b, int32_t ranks, int32_t *owners) {
    *d = (dealing){.ranks = ranks, .owners = owners, .chunks = (int64_t)ranks * RAVEL_TREE_CHUNKS};
    int64_t width = b->tokens / d->chunks;
    for (int64_t c = 0; c < d->chunks; c++) {
        owners[c] = -1;
        for (int64_t p = c * width; p < (c + 1) * width && p < b->unique; p++) d->pairs[c] += b->positions[p] + 1;
    }
    for (int32_t r = 0; r < ranks; r++) d->rooms[r] = RAVEL_TREE_CHUNKS;
}

/* The heaviest chunk that nobody has, to the lightest rank with room. */
static void deal_one(dealing *d) {
    int64_t best = -1;
    int32_t to = -1;
    for (int64_t c = 0; c < d->chunks; c++)
        if (d->owners[c] < 0 && (best < 0 || d->pairs[c] > d->pairs[best])) best = c;
    for (int32_t r = 0; r < d->ranks; r++)
        if (d->rooms[r] && (to < 0 || d->work[r] < d->work[to])) to = r;
    RAVEL_ASSERT(best >= 0 && to >= 0);
    d->owners[best] = to;
    d->work[to] += d->pairs[best];
    d->rooms[to]--;
}

static int64_t absolute(int64_t x) {
    return x < 0 ? -x : x;
}

/* The swap between two ranks after which they are closest; 0: none brings them closer. */
static int swap_one(dealing *d, int32_t heavy, int32_t light) {
    int64_t give = -1, take = -1, gap = d->work[heavy] - d->work[light], closest = gap;
    for (int64_t x = 0; x < d->chunks; x++)
        for (int64_t y = 0; d->owners[x] == heavy && y < d->chunks; y++) {
            int64_t left = absolute(gap - 2 * (d->pairs[x] - d->pairs[y]));
            if (d->owners[y] != light || left >= closest) continue;
            closest = left;
            give = x;
            take = y;
        }
    if (give < 0) return 0;
    d->owners[give] = light;
    d->owners[take] = heavy;
    d->work[heavy] -= d->pairs[give] - d->pairs[take];
    d->work[light] += d->pairs[give] - d->pairs[take];
    return 1;
}

/* The heaviest rank swaps with whichever rank helps, the lightest first. */
static int lighten(dealing *d) {
    int32_t heavy = 0, light = 0;
    for (int32_t r = 1; r < d->ranks; r++) {
        if (d->work[r] > d->work[heavy]) heavy = r;
        if (d->work[r] < d->work[light]) light = r;
    }
    if (heavy == light || swap_one(d, heavy, light)) return heavy != light;
    for (int32_t r = 0; r < d->ranks; r++)
        if (r != heavy && swap_one(d, heavy, r)) return 1;
    return 0;
}

ravel_status ravel_tree_deal(const ravel_tree_batch *batch, int32_t ranks, int32_t *owners, int64_t *pairs,
                             ravel_error *err) {
    int64_t chunks = (int64_t)ranks * RAVEL_TREE_CHUNKS;
    dealing d;
    if (ranks < 1 || ranks > RANKS || !batch->positions)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a tree with positions is dealt to 1 to %d ranks, not %d", RANKS,
                               ranks);
    if (batch->tokens % chunks)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the tree has %lld tokens; dealing it to %d ranks needs a multiple of %lld (align)",
                               (long long)batch->tokens, ranks, (long long)chunks);
    open_dealing(&d, batch, ranks, owners);
    for (int64_t c = 0; c < chunks; c++) deal_one(&d);
    for (int32_t round = 0; round < 4 * ranks && lighten(&d); round++) {}
    if (pairs) memcpy(pairs, d.work, (size_t)ranks * sizeof *pairs);
    return RAVEL_OK;
}

/* ---- one rank's share ----------------------------------------------------------------------------------- */

/* The part of sample i's own places within first .. end - 1 is lo .. hi - 1: one run of the piece. */
static void add_run(const ravel_tree_bin *bin, const ravel_tree_batch *b, int64_t i, int32_t lo, int32_t hi,
                    int64_t row, ravel_tree_piece *p) {
    int32_t own = b->starts[i + 1] - b->starts[i], shared = bin->cu_seqlens[i + 1] - bin->cu_seqlens[i] - own;
    int64_t keys = shared + hi - b->starts[i];
    if (p->gather && b->path)
        memcpy(p->gather + p->keys, b->path + bin->cu_seqlens[i], (size_t)keys * sizeof *p->gather);
    if (p->query_starts) p->query_starts[p->runs] = (int32_t)row;
    p->runs++;
    p->keys += keys;
    if (p->cu_seqlens_q) p->cu_seqlens_q[p->runs] = p->cu_seqlens_q[p->runs - 1] + hi - lo;
    if (p->cu_seqlens_k) p->cu_seqlens_k[p->runs] = (int32_t)p->keys;
}

/* Counts, and writes where there are arrays. */
static void walk(const ravel_tree_bin *bin, const ravel_tree_batch *b, const int32_t *owners, int32_t ranks,
                 int32_t rank, ravel_tree_piece *p) {
    int64_t chunks = owners ? (int64_t)ranks * RAVEL_TREE_CHUNKS : 1, width = b->tokens / chunks, sample = 0;
    p->tokens = p->runs = p->keys = 0;
    if (p->cu_seqlens_q) p->cu_seqlens_q[0] = 0;
    if (p->cu_seqlens_k) p->cu_seqlens_k[0] = 0;
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first = c * width, end = first + width;
        if (owners && owners[c] != rank) continue;
        while (sample > 0 && b->starts[sample] > first) sample--;
        while (sample + 1 < bin->count && b->starts[sample + 1] <= first) sample++;
        for (int64_t i = sample; i < bin->count && b->starts[i] < end; i++) {
            int64_t lo = b->starts[i] > first ? b->starts[i] : first,
                    hi = b->starts[i + 1] < end ? b->starts[i + 1] : end;
            if (lo < hi) add_run(bin, b, i, (int32_t)lo, (int32_t)hi, p->tokens + lo - first, p);
        }
        for (int64_t k = 0; p->places && k < width; k++) p->places[p->tokens + k] = (int32_t)(first + k);
        p->tokens += width;
    }
}

static ravel_status check_piece(const ravel_tree_bin *bin, const ravel_tree_batch *b, const int32_t *owners,
                                int32_t ranks, int32_t rank, const ravel_tree_piece *p, ravel_error *err) {
    if (p->size == sizeof *p && bin->count == b->samples && b->starts && ranks >= 1 && rank >= 0 && rank < ranks &&
        (owners ? b->tokens % ((int64_t)ranks * RAVEL_TREE_CHUNKS) == 0 : ranks == 1))
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "rank %d of %d: a piece needs its size, the tree of its bin with `starts`, and the owners "
                           "that ravel_tree_deal gave",
                           rank, ranks);
}

ravel_status ravel_tree_piece_measure(const ravel_tree_bin *bin, const ravel_tree_batch *batch, const int32_t *owners,
                                      int32_t ranks, int32_t rank, ravel_tree_piece *piece, ravel_error *err) {
    ravel_tree_piece own = {.size = sizeof own};
    ravel_status status = check_piece(bin, batch, owners, ranks, rank, piece, err);
    if (status) return status;
    walk(bin, batch, owners, ranks, rank, &own);
    if (own.keys > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the tree gathers %lld keys, over 2^31 - 1: use levels",
                               (long long)own.keys);
    piece->tokens = own.tokens;
    piece->runs = own.runs;
    piece->keys = own.keys;
    return RAVEL_OK;
}

ravel_status ravel_tree_piece_pack(const ravel_tree_bin *bin, const ravel_tree_batch *batch, const int32_t *owners,
                                   int32_t ranks, int32_t rank, const ravel_tree_piece *piece, ravel_error *err) {
    ravel_tree_piece own = *piece;
    ravel_status status = check_piece(bin, batch, owners, ranks, rank, piece, err);
    if (!status && !batch->path) status = ravel_error_set(err, RAVEL_E_ARGUMENT, "a piece of a tree needs its path");
    if (status) return status;
    walk(bin, batch, owners, ranks, rank, &own);
    RAVEL_ASSERT(own.tokens == piece->tokens && own.runs == piece->runs && own.keys == piece->keys);
    return RAVEL_OK;
}
