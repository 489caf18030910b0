/* Attention over a ragged batch: cuDNN's fused kernels where they apply, our own kernels elsewhere.
 *
 * A cuDNN plan is static: it knows the number of samples and the longest one. Both are rounded up to powers of two,
 * which costs nothing (unused entries have length 0) and leaves a dozen plans for a run. A plan takes a second to
 * compile, so plans are kept on disk as cuDNN's JSON, one file per key.
 *
 * cuDNN gets causal attention over whole samples, with a sliding window or without, the blocks of a context-parallel
 * ring, whose queries see every key of other rows, and shared prefixes: nodes of a tree, whose queries go on below
 * their keys, or queries that are the last of gathered keys. Gradients of queries that add are made in scratch and
 * added afterwards.
 *
 * Backward with the same bits on every run needs a workspace of samples * heads * queries * keys bf16. A batch is
 * therefore cut into runs of samples that fit a fixed limit:
 *
 *     lengths   8192 | 2884 2610 ... | 1993 ...      longest first, as packed bins have them
 *     calls     (1, 8192)   (8, 4096)     (16, 2048)
 *
 * so the limit costs little where samples of similar length lie together. */
#include "train/kernels/cuda/device.h"

#include "base/assert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/kernels/cuda/attention_graph.h"
#include "train/kernels/cuda/kept.h"

enum { PLANS = 512, LEAST_LONGEST = 256, LEAST_SAMPLES = 1 };
#define MOST_WORKSPACE ((int64_t)8 << 30)

typedef struct plan {
    cuda_plan_key key;
    cudnnBackendDescriptor_t built;
    int64_t workspace;
    int32_t state; /* 0: free, 1: built, -1: cuDNN has no engine for it */
} plan;

struct cuda_attention {
    cudnnHandle_t handle;
    plan plans[PLANS];
    int32_t count;
    char said[256]; /* why the last plan could not be built */
};

static int64_t power_of_two(int64_t x, int64_t least) {
    int64_t p = least;
    while (p < x) p *= 2;
    return p;
}

static size_t align256(size_t x) {
    return (x + 255) / 256 * 256;
}

/* ---- limits ---------------------------------------------------------------------------------------------- */

/* Bounds of one backward call, as rounded: samples * queries * keys of the longest, and samples * queries. */
typedef struct bounds {
    int64_t squares, products;
} bounds;

static bounds bounds_of(const train_limits *l) {
    int64_t longest = power_of_two(l->longest, LEAST_LONGEST), heads = l->heads > 0 ? l->heads : 1;
    int64_t most = MOST_WORKSPACE / 2 / heads, wanted = 4 * l->tokens * longest;
    bounds b = {wanted < most ? wanted : most, 4 * l->tokens};
    if (b.squares < LEAST_SAMPLES * longest * longest) b.squares = LEAST_SAMPLES * longest * longest;
    if (b.products < LEAST_SAMPLES * longest) b.products = LEAST_SAMPLES * longest;
    return b;
}

/* Samples of a call, and the longest of their queries and keys. */
typedef struct extent {
    int64_t samples, queries, keys;
} extent;

static extent rounded(extent e) {
    return (extent){power_of_two(e.samples, LEAST_SAMPLES), power_of_two(e.queries, LEAST_LONGEST),
                    power_of_two(e.keys, LEAST_LONGEST)};
}

static int fits(const bounds *b, extent e) {
    extent r = rounded(e);
    return r.samples * r.queries * r.keys <= b->squares && r.samples * r.queries <= b->products;
}

static int64_t most_entries(const train_limits *l) {
    return power_of_two(l->samples, LEAST_SAMPLES);
}

/* The scratch of a call, cut in this order. */
typedef struct room {
    size_t lengths, offsets, row_sums, d_q, d_k, d_v, workspace, total;
} room;

/* One bf16 gradient of all queries. */
static size_t query_bytes(const train_limits *l) {
    return align256((size_t)(l->tokens * l->heads * l->head_dim) * 2);
}

static room room_of(const train_limits *l) {
    bounds b = bounds_of(l);
    int64_t entries = most_entries(l), group = l->kv_heads > 0 ? l->heads / l->kv_heads : 1;
    int64_t row = (l->heads + 2 * l->kv_heads) * l->head_dim; /* the widest distance between tokens */
    int64_t keys = l->keys > l->tokens ? l->keys : l->tokens;
    int64_t sums = l->inference ? 0 : b.products > l->tokens ? b.products : l->tokens;
    room r = {0};
    r.offsets = align256((size_t)entries * 2 * 4);
    r.row_sums = r.offsets + align256((size_t)(entries + 1) * 5 * 8);
    r.d_q = r.row_sums + align256((size_t)(sums * l->heads) * 4);
    r.d_k = r.d_q + (l->inference ? 0 : 2 * query_bytes(l)); /* f32 */
    r.d_v = r.d_k + (l->inference || group == 1 ? 0 : align256((size_t)(keys * row * group) * 2));
    r.workspace = r.d_v + (l->inference || group == 1 ? 0 : align256((size_t)(keys * row * group) * 2));
    size_t most = (size_t)(b.squares * l->heads) * 2;
    if (most < query_bytes(l)) most = query_bytes(l);
    r.total = r.workspace + (l->inference ? (size_t)1 << 20 : align256(most) + ((size_t)16 << 20));
    return r;
}

size_t cuda_attention_scratch(const train_limits *limits) {
    return limits->heads > 0 ? room_of(limits).total : 0;
}

/* ---- plans ----------------------------------------------------------------------------------------------- */

ravel_status cuda_attention_open(train_device *d, ravel_error *err) {
    cuda_attention *a = calloc(1, sizeof *a);
    if (!a) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for the table of attention plans");
    cudnnStatus_t s = cudnnCreate(&a->handle);
    if (!s) s = cudnnSetStream(a->handle, d->stream);
    if (s) {
        free(a);
        return ravel_error_set(err, RAVEL_E_DEVICE, "cuDNN %zu could not be opened on GPU %d: %s", cudnnGetVersion(),
                               d->index, cudnnGetErrorString(s));
    }
    d->attention = a;
    return RAVEL_OK;
}

void cuda_attention_close(train_device *d) {
    cuda_attention *a = d->attention;
    if (!a) return;
    for (int i = 0; i < a->count; i++)
        if (a->plans[i].state > 0) cudnnBackendDestroyDescriptor(a->plans[i].built);
    cudnnDestroy(a->handle);
    free(a);
    d->attention = NULL;
}

static void plan_file(const train_device *d, const cuda_plan_key *k, char *path, size_t size) {
    static const char *const masks[PLAN_MASKS] = {"causal", "sliding", "all", "causal-at-end", "sliding-at-end"};
    char name[200];
    snprintf(name, sizeof name, "attention-%zu-%s-%s%s-b%d-s%d-%d-h%d-%d-d%d-%lld-%lld-%lld", cudnnGetVersion(),
             masks[k->mask], k->backward ? "backward" : "forward", k->deterministic ? "-deterministic" : "", k->samples,
             k->longest_query, k->longest_key, k->heads, k->kv_heads, k->head_dim, (long long)k->ld_q,
             (long long)k->ld_k, (long long)k->ld_v);
    kept_path(d->cache, d->index, name, "json", path, size);
}

static void build(train_device *d, plan *p) {
    cuda_attention *a = d->attention;
    char path[600];
    size_t bytes;
    plan_file(d, &p->key, path, sizeof path);
    char *text = kept_read(path, &bytes);
    p->state = 1;
    if (text && cuda_plan_from_text(a->handle, text, bytes, &p->built, &p->workspace) == CUDNN_STATUS_SUCCESS) {
        free(text);
        return;
    }
    free(text);
    if (cuda_plan_build(a->handle, NULL, &p->key, &p->built, &p->workspace, a->said, sizeof a->said)) {
        p->state = -1;
        return;
    }
    text = cuda_plan_text(p->built, &bytes);
    if (text) kept_write(path, text, bytes);
    free(text);
}

/* The plan for the key, or NULL if cuDNN has none. */
static plan *plan_for(train_device *d, const cuda_plan_key *key) {
    cuda_attention *a = d->attention;
    for (int i = 0; i < a->count; i++)
        if (memcmp(&a->plans[i].key, key, sizeof *key) == 0) return a->plans[i].state > 0 ? &a->plans[i] : NULL;
    if (a->count == PLANS) return NULL;
    plan *p = &a->plans[a->count++];
    p->key = *key;
    build(d, p);
    return p->state > 0 ? p : NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------------- */

/* Queries that see every key of every sample, and each sample has some. */
static int without_mask(const train_attention *x) {
    const int32_t *keys = x->keys.host_lengths;
    if (!x->shifts || x->shifts != x->keys.lengths || x->window || !keys) return 0;
    for (int32_t i = 0; i < x->samples; i++)
        if (keys[i] < 1) return 0;
    return 1;
}

/* Whether a cuDNN graph describes this call, with gradients laid out as their tensors; *mask is the graph's. */
static int has_graph(const train_attention *x, int backward, cuda_plan_mask *mask) {
    int causal = x->at_end || (x->queries.starts == x->keys.starts && !x->shifts), all = !causal && without_mask(x);
    int slides = x->window > 0 && x->window < x->keys.longest;
    if (!causal && !all) return 0;
    if (x->head_dim % 8 || x->head_dim > 128) return 0;
    *mask = all         ? PLAN_WITHOUT_MASK
            : x->at_end ? (slides ? PLAN_SLIDING_AT_END : PLAN_CAUSAL_AT_END)
                        : (slides ? PLAN_SLIDING : PLAN_CAUSAL);
    if (!backward) return 1;
    if (x->add && x->ld_q != (int64_t)x->heads * x->head_dim) return 0;
    return x->ld_dq == x->ld_q && x->ld_dk == x->ld_k && x->ld_dv == x->ld_v;
}

static cuda_plan_key key_for(const train_attention *x, extent e, cuda_plan_mask mask) {
    extent r = rounded(e);
    cuda_plan_key key;
    memset(&key, 0, sizeof key); /* compared as bytes */
    key.samples = (int32_t)r.samples;
    key.longest_query = (int32_t)r.queries;
    key.longest_key = (int32_t)r.keys;
    key.mask = (int32_t)mask;
    key.heads = x->heads;
    key.kv_heads = x->kv_heads;
    key.head_dim = x->head_dim;
    key.ld_q = x->ld_q;
    key.ld_k = x->ld_k;
    key.ld_v = x->ld_v;
    return key;
}

/* Where a backward call makes the gradients of queries: their own place, or scratch where they are added to it. Plans
 * that are not deterministic sum in the scratch of d_q, and use the first bytes of their workspace only. */
static void *made_d_q(const train_device *d, const train_attention *x) {
    room r = room_of(&d->limits);
    if (!x->add) return x->d_q;
    return d->scratch + (d->deterministic ? r.d_q : r.total - query_bytes(&d->limits));
}

/* Runs a plan on samples first .. first + count - 1. */
static void run(train_device *d, const train_attention *x, plan *p, int32_t first, int32_t count) {
    static const float one = 1, hidden = -INFINITY;
    room r = room_of(&d->limits);
    char *scratch = d->scratch;
    int64_t entries = p->key.samples;
    RAVEL_ASSERT(first >= 0 && count > 0 && first + count <= x->samples && count <= entries);
    RAVEL_ASSERT(entries <= most_entries(&d->limits) && r.total <= d->scratch_bytes);
    int64_t *offsets = (int64_t *)(void *)(scratch + r.offsets);
    float scale = x->scale, width = (float)x->window;
    void *t[PLAN_TENSORS] = {0};
    cuda_offsets_args where = {.query_starts = x->queries.starts,
                               .query_lengths = x->queries.lengths,
                               .key_starts = x->keys.starts,
                               .key_lengths = x->keys.lengths,
                               .first = first,
                               .count = count,
                               .entries = (int32_t)entries,
                               .query_ld = {x->ld_q, (int64_t)x->heads * x->head_dim, x->heads},
                               .key_ld = {x->ld_k, x->ld_v},
                               .to_lengths = (int32_t *)(void *)scratch,
                               .to_offsets = offsets};
    static const cuda_plan_tensor order[] = {PLAN_OFFSETS_Q, PLAN_OFFSETS_O, PLAN_OFFSETS_LSE, PLAN_OFFSETS_K,
                                             PLAN_OFFSETS_V};
    cuda_attention_offsets(d->stream, &where);
    t[PLAN_LENGTHS_Q] = where.to_lengths;
    t[PLAN_LENGTHS_KV] = where.to_lengths + entries;
    for (int i = 0; i < CUDA_QUERY_OFFSETS + CUDA_KEY_OFFSETS; i++) t[order[i]] = offsets + i * (entries + 1);
    t[PLAN_Q] = (void *)(uintptr_t)x->q;
    t[PLAN_K] = (void *)(uintptr_t)x->k;
    t[PLAN_V] = (void *)(uintptr_t)x->v;
    t[PLAN_O] = x->o;
    t[PLAN_LSE] = x->lse;
    t[PLAN_SCALE] = &scale;
    t[PLAN_PADDING] = (void *)(uintptr_t)&hidden;
    if (p->key.mask != PLAN_WITHOUT_MASK) t[PLAN_HIDDEN] = (void *)(uintptr_t)&hidden;
    if (p->key.mask == PLAN_SLIDING || p->key.mask == PLAN_SLIDING_AT_END) t[PLAN_WIDTH] = &width;
    if (p->key.backward) {
        t[PLAN_ONE] = (void *)(uintptr_t)&one;
        t[PLAN_D_O] = (void *)(uintptr_t)x->d_o;
        t[PLAN_D_Q] = made_d_q(d, x);
        t[PLAN_D_K] = x->d_k;
        t[PLAN_D_V] = x->d_v;
        t[PLAN_ROW_SUMS] = scratch + r.row_sums;
        if (!p->key.deterministic) t[PLAN_D_Q_F32] = scratch + r.d_q;
        if (x->heads != x->kv_heads) t[PLAN_D_K_HEADS] = scratch + r.d_k, t[PLAN_D_V_HEADS] = scratch + r.d_v;
    }
    cudnnStatus_t s = r.workspace + (size_t)p->workspace > r.total
                          ? CUDNN_STATUS_INTERNAL_ERROR
                          : cuda_plan_run(d->attention->handle, p->built, t, scratch + r.workspace);
    if (s) cuda_fail(d, RAVEL_E_DEVICE, "cuDNN attention: %s", cudnnGetErrorString(s));
}

void cuda_attention_forward(train_device *d, const train_attention *x) {
    plan *p = NULL;
    cuda_plan_mask mask;
    if (d->failed || x->samples == 0) return;
    if (has_graph(x, 0, &mask) && x->samples <= most_entries(&d->limits)) {
        cuda_plan_key key = key_for(x, (extent){x->samples, x->queries.longest, x->keys.longest}, mask);
        p = plan_for(d, &key);
    }
    if (p) {
        run(d, x, p, 0, x->samples);
        return;
    }
    cuda_attention_own(d->stream, x);
}

static int64_t longer(const train_ragged *of, int32_t sample, int64_t than) {
    int64_t length = of->host_lengths ? of->host_lengths[sample] : of->longest;
    return length > than ? length : than;
}

/* Samples from `first` on that go into one call. */
static extent next_run(const train_device *d, const train_attention *x, int32_t first) {
    bounds b = bounds_of(&d->limits);
    extent e = {0};
    for (int32_t i = first; i < x->samples; i++) {
        extent more = {e.samples + 1, longer(&x->queries, i, e.queries), longer(&x->keys, i, e.keys)};
        if (e.samples > 0 && !fits(&b, more)) break;
        e = more;
    }
    RAVEL_ASSERT(e.samples > 0 && e.queries <= power_of_two(d->limits.longest, LEAST_LONGEST));
    return e;
}

/* Through cuDNN, run by run; 0 if it has no plan for one of them (our own kernels then overwrite the results). */
static int backward_by_plans(train_device *d, const train_attention *x) {
    cuda_plan_mask mask;
    if (!has_graph(x, 1, &mask)) return 0;
    for (int32_t first = 0; first < x->samples;) {
        extent e = next_run(d, x, first);
        cuda_plan_key key = key_for(x, e, mask);
        key.backward = 1;
        key.deterministic = d->deterministic;
        plan *p = plan_for(d, &key);
        if (!p) return 0;
        run(d, x, p, first, (int32_t)e.samples);
        first += (int32_t)e.samples;
    }
    if (x->add) {
        cuda_rows rows = {x->queries.starts, x->queries.lengths, x->samples, x->queries.tokens};
        cuda_attention_add(d->stream, x->d_q, made_d_q(d, x), rows, (int64_t)x->heads * x->head_dim);
    }
    return 1;
}

void cuda_attention_backward(train_device *d, const train_attention *x) {
    if (d->failed || x->samples == 0 || backward_by_plans(d, x)) return;
    cuda_attention_own_backward(d->stream, x, (float *)(void *)(d->scratch + room_of(&d->limits).row_sums));
}

/* FNV-1a over 64-bit words. */
static uint64_t mixed(uint64_t hash, int64_t word) {
    for (int i = 0; i < 8; i++) hash = (hash ^ ((uint64_t)word >> 8 * i & 255)) * 0x100000001b3u;
    return hash;
}

static uint64_t mixed_extent(uint64_t hash, extent e) {
    extent r = rounded(e);
    return mixed(mixed(mixed(mixed(hash, e.samples), r.samples), r.queries), r.keys);
}

/* The plan of the forward pass, and the runs of the backward pass with their plans; our own kernels see the tokens
 * alone. */
uint64_t cuda_attention_shape(const train_device *d, const train_attention *x) {
    cuda_plan_mask mask = PLAN_CAUSAL;
    uint64_t hash = mixed(0xcbf29ce484222325u, has_graph(x, 0, &mask));
    hash = mixed_extent(mixed(hash, mask), (extent){x->samples, x->queries.longest, x->keys.longest});
    for (int32_t first = 0; first < x->samples;) {
        extent e = next_run(d, x, first);
        hash = mixed_extent(hash, e);
        first += (int32_t)e.samples;
    }
    return hash;
}
