/* The tree layout of a bin. One walk over the samples keeps the path of the sample before: what sample i shares stays,
 * the rest of that path ends at the first own place of sample i, and the own tokens are put on top.
 *
 *     path of i - 1   p0 p1 p2 | p3 p4            shared[i] = 3: limits of p3 and p4 are starts[i]
 *     path of i       p0 p1 p2 | q0 q1 q2         q0 = starts[i], its parent is p2
 *
 * Every place gets its limit once, so the walk is linear in the tokens. */
#include <ravel/tree_batch.h>

#include "base/assert.h"
#include "batch/slot.h"

#include <string.h>

static int32_t length_of(const ravel_tree_bin *bin, int64_t i) {
    return bin->cu_seqlens[i + 1] - bin->cu_seqlens[i];
}

static int32_t shared_of(const ravel_tree_bin *bin, int64_t i) {
    return bin->shared ? bin->shared[i] : 0;
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static ravel_status add_sample(const ravel_tree_bin *bin, int64_t i, ravel_tree_batch *b, ravel_error *err) {
    int64_t length = (int64_t)bin->cu_seqlens[i + 1] - bin->cu_seqlens[i], shared = shared_of(bin, i);
    int64_t before = i ? (int64_t)length_of(bin, i - 1) : 0, most = before < length ? before : length;
    if (length < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "sample %lld of the tree has %lld tokens; it needs at least 1",
                               (long long)i, (long long)length);
    if (shared < 0 || shared > most)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "sample %lld of the tree shares %lld tokens with the one before it; 0 to %lld are "
                               "possible",
                               (long long)i, (long long)shared, (long long)most);
    int64_t own = length - shared;
    b->unique += own;
    b->path_tokens += length;
    if (length > b->longest) b->longest = length;
    if (own > b->longest_own) b->longest_own = own;
    if (own == 0) return RAVEL_OK;
    b->runs++;
    b->keys += length;
    return RAVEL_OK;
}

ravel_status ravel_tree_measure(const ravel_tree_bin *bin, int64_t align, ravel_tree_batch *batch, ravel_error *err) {
    ravel_tree_batch b = {.samples = bin->count};
    if (batch->size != sizeof b)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "tree batch: size is %zu; it must be %zu", batch->size, sizeof b);
    if (bin->count < 1 || bin->count >= INT32_MAX / 2 || align < 1 || align > INT32_MAX || bin->cu_seqlens[0] != 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a tree needs samples, cu_seqlens that begin with 0, and align from 1 to 2^31 - 1");
    for (int64_t i = 0; i < bin->count; i++) {
        ravel_status status = add_sample(bin, i, &b, err);
        if (status) return status;
    }
    b.tokens = ravel__multiple_up(b.unique, align);
    b.nodes_most = 2 * b.samples < b.unique ? 2 * b.samples : b.unique;
    if (b.tokens > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the tree has more than 2^31 - 1 tokens: use a smaller budget");
    RAVEL_ASSERT(b.unique <= b.path_tokens && b.runs >= 1 && b.runs <= b.samples && b.keys <= b.path_tokens);
    b.size = sizeof b;
    *batch = b;
    return RAVEL_OK;
}

/* X(array, count): the one order of arrays in a block. */
#define ARRAYS(X)              \
    X(starts, samples + 1)     \
    X(positions, tokens)       \
    X(path, path_tokens)       \
    X(limits, tokens)          \
    X(parents, tokens)         \
    X(cu_seqlens_q, runs + 1)  \
    X(cu_seqlens_k, runs + 1)  \
    X(gather, keys)            \
    X(node_of, tokens)         \
    X(node_first, nodes_most)  \
    X(node_last, nodes_most)   \
    X(node_end, nodes_most)    \
    X(node_parent, nodes_most) \
    X(node_level, nodes_most)  \
    X(level_nodes, nodes_most) \
    X(level_offsets, nodes_most + 1)

static size_t cut(void *block, ravel_tree_batch *b) {
    ravel__cutter cutter = ravel__cutter_begin(block);
#define TAKE(array, count) b->array = ravel__cutter_take(&cutter, b->count, sizeof *b->array);
    ARRAYS(TAKE)
#undef TAKE
    return cutter.used;
}

size_t ravel_tree_bytes(const ravel_tree_batch *batch) {
    ravel_tree_batch own = *batch;
    return cut(NULL, &own);
}

void ravel_tree_place(void *block, ravel_tree_batch *batch) {
    (void)cut(block, batch);
}

/* ---- the walk ------------------------------------------------------------------------------------------- */

static void iota(int32_t *to, int64_t count, int32_t first) {
    for (int64_t k = 0; k < count; k++) to[k] = first + (int32_t)k;
}

/* The path of sample i, its own tokens beginning at place `start`. */
static void walk_path(const ravel_tree_bin *bin, ravel_tree_batch *b, int64_t i, int32_t start) {
    int32_t *path = b->path + bin->cu_seqlens[i], shared = shared_of(bin, i), own = length_of(bin, i) - shared;
    const int32_t *before = i ? b->path + bin->cu_seqlens[i - 1] : NULL;
    if (before) memcpy(path, before, (size_t)shared * sizeof *path);
    iota(path + shared, own, start);
    for (int32_t k = shared; b->limits && i && k < length_of(bin, i - 1); k++) b->limits[before[k]] = start;
    if (!b->parents || own == 0) return;
    iota(b->parents + start, own, start - 1);
    b->parents[start] = shared ? path[shared - 1] : -1;
}

/* What never ended ends at the end; padding is alone. */
static void finish_places(const ravel_tree_bin *bin, ravel_tree_batch *b) {
    const int32_t *last = b->path ? b->path + bin->cu_seqlens[bin->count - 1] : NULL;
    for (int32_t k = 0; b->limits && k < length_of(bin, bin->count - 1); k++) b->limits[last[k]] = (int32_t)b->unique;
    for (int64_t p = b->unique; p < b->tokens; p++) {
        if (b->positions) b->positions[p] = 0;
        if (b->limits) b->limits[p] = (int32_t)p + 1;
        if (b->parents) b->parents[p] = -1;
    }
}

static void pack_samples(const ravel_tree_bin *bin, ravel_tree_batch *b) {
    int64_t start = 0, run = 0, key = 0;
    if (b->cu_seqlens_q) b->cu_seqlens_q[0] = 0;
    if (b->cu_seqlens_k) b->cu_seqlens_k[0] = 0;
    for (int64_t i = 0; i < bin->count; i++) {
        int32_t length = length_of(bin, i), shared = shared_of(bin, i), own = length - shared;
        if (b->starts) b->starts[i] = (int32_t)start;
        if (b->positions) iota(b->positions + start, own, shared);
        if (b->path) walk_path(bin, b, i, (int32_t)start);
        start += own;
        if (own == 0) continue;
        if (b->gather) memcpy(b->gather + key, b->path + bin->cu_seqlens[i], (size_t)length * sizeof *b->gather);
        key += length;
        run++;
        if (b->cu_seqlens_q) b->cu_seqlens_q[run] = (int32_t)start;
        if (b->cu_seqlens_k) b->cu_seqlens_k[run] = (int32_t)key;
    }
    RAVEL_ASSERT(start == b->unique && run == b->runs && key == b->keys);
    if (b->starts) b->starts[bin->count] = (int32_t)start;
    finish_places(bin, b);
}

/* ---- nodes ---------------------------------------------------------------------------------------------- */

/* A place goes on with the node of the one before it if it is that one's only child. */
static void find_nodes(ravel_tree_batch *b) {
    int32_t nodes = 0;
    b->levels = 0;
    for (int32_t p = 0; p < b->unique; p++) {
        int goes_on = p && b->parents[p] == p - 1 && b->limits[p] == b->limits[p - 1];
        if (!goes_on) {
            int32_t above = b->parents[p] < 0 ? -1 : b->node_of[b->parents[p]];
            RAVEL_ASSERT(nodes < b->nodes_most && above < nodes);
            b->node_first[nodes] = p;
            b->node_end[nodes] = b->limits[p];
            b->node_parent[nodes] = above;
            b->node_level[nodes] = above < 0 ? 0 : b->node_level[above] + 1;
            if (b->node_level[nodes] >= b->levels) b->levels = b->node_level[nodes] + 1;
            nodes++;
        }
        b->node_of[p] = nodes - 1;
        b->node_last[nodes - 1] = p + 1;
    }
    for (int64_t p = b->unique; p < b->tokens; p++) b->node_of[p] = -1;
    b->nodes = nodes;
}

static void sort_levels(ravel_tree_batch *b) {
    int32_t *at = b->level_offsets;
    memset(at, 0, (size_t)(b->levels + 1) * sizeof *at);
    for (int64_t n = 0; n < b->nodes; n++) at[b->node_level[n] + 1]++;
    for (int64_t l = 0; l < b->levels; l++) at[l + 1] += at[l];
    for (int64_t n = 0; n < b->nodes; n++) b->level_nodes[at[b->node_level[n]]++] = (int32_t)n;
    memmove(at + 1, at, (size_t)b->levels * sizeof *at);
    at[0] = 0;
}

static int has_nodes(const ravel_tree_batch *b) {
    return b->node_of && b->limits && b->parents && b->node_first && b->node_last && b->node_end && b->node_parent &&
           b->node_level && b->level_nodes && b->level_offsets;
}

ravel_status ravel_tree_pack(const ravel_tree_bin *bin, ravel_tree_batch *batch, ravel_error *err) {
    ravel_tree_batch fresh = {.size = sizeof fresh};
    ravel_status status = ravel_tree_measure(bin, 1, &fresh, err);
    if (status) return status;
    if (batch->size != sizeof fresh || fresh.unique != batch->unique || fresh.path_tokens != batch->path_tokens ||
        fresh.samples != batch->samples || fresh.runs != batch->runs || fresh.keys != batch->keys)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the tree was measured with another bin: measure it again");
    if (!batch->path && (batch->limits || batch->parents || batch->gather))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "limits, parents and gather of a tree need its path");
    pack_samples(bin, batch);
    if (!has_nodes(batch)) return RAVEL_OK;
    find_nodes(batch);
    sort_levels(batch);
    return RAVEL_OK;
}

/* ---- fields --------------------------------------------------------------------------------------------- */

ravel_status ravel_tree_pack_field(const ravel_tree_bin *bin, const ravel_tree_batch *batch, const void *data,
                                   size_t each, const void *pad, void *out, ravel_error *err) {
    if (bin->count != batch->samples || !batch->starts || each == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a field needs the tree of its bin, packed with `starts`");
    char *to = out;
    for (int64_t i = 0; i < bin->count; i++) {
        size_t own = (size_t)(batch->starts[i + 1] - batch->starts[i]), end = (size_t)bin->cu_seqlens[i + 1];
        memcpy(to + (size_t)batch->starts[i] * each, (const char *)data + (end - own) * each, own * each);
    }
    for (int64_t p = batch->unique; p < batch->tokens; p++) {
        if (pad)
            memcpy(to + (size_t)p * each, pad, each);
        else
            memset(to + (size_t)p * each, 0, each);
    }
    return RAVEL_OK;
}

ravel_status ravel_tree_own(const ravel_tree_bin *bin, int64_t *offsets, int32_t *samples, int64_t *own,
                            ravel_error *err) {
    ravel_tree_batch sizes = {.size = sizeof sizes};
    ravel_status status = ravel_tree_measure(bin, 1, &sizes, err);
    if (status) return status;
    *own = 0;
    for (int64_t i = 0; i < bin->count; i++) {
        offsets[2 * i] = bin->cu_seqlens[i];
        offsets[2 * i + 1] = bin->cu_seqlens[i] + (bin->shared ? bin->shared[i] : 0);
        if (offsets[2 * i + 1] < bin->cu_seqlens[i + 1]) samples[(*own)++] = (int32_t)(2 * i + 1);
    }
    offsets[2 * bin->count] = bin->cu_seqlens[bin->count];
    RAVEL_ASSERT(*own == sizes.runs);
    return RAVEL_OK;
}

ravel_status ravel_tree_unpack(const ravel_tree_bin *bin, const ravel_tree_batch *batch, int32_t kind,
                               const void *packed, size_t each, void *out, ravel_error *err) {
    int32_t skip = kind == RAVEL_FIELD_STEP;
    if (bin->count != batch->samples || !batch->path || (kind != RAVEL_FIELD_TOKEN && !skip))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "unpacking needs the tree of its bin, packed with `path`, and a token or step field");
    char *to = out;
    for (int64_t i = 0; i < bin->count; i++)
        for (int32_t t = bin->cu_seqlens[i] + skip; t < bin->cu_seqlens[i + 1]; t++, to += each)
            memcpy(to, (const char *)packed + (size_t)batch->path[t] * each, each);
    return RAVEL_OK;
}
