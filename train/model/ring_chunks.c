/* Context parallelism chunk by chunk, with a sliding window. ring.h has the plan. */
#include "train/model/ring.h"

#include "base/assert.h"

/* ---- who sees what -------------------------------------------------------------------------------------- */

int32_t train__ring_step_after(int32_t ranks, int32_t step, int64_t window, int64_t chunk) {
    RAVEL_ASSERT(step >= 0 && step < ranks && window >= 0 && chunk > 0);
    for (step++; window && step < ranks; step++) {
        int64_t distance = train__min(step, ranks - step); /* of the nearest chunks */
        if ((distance - 1) * chunk + 1 < window) break;    /* the first query sees the last key */
    }
    return step;
}

static int32_t step_after(const train_model *m, train__micro *mb, int32_t step) {
    return train__ring_step_after(mb->cp.ranks, step, m->net.window, mb->staged.halves.shortest);
}

/* A chunk of a sample on its rank. */
typedef struct chunk {
    int64_t first; /* position in the whole sample */
    int32_t row, length;
} chunk;

static chunk chunk_of(train__micro *mb, int32_t sample, int32_t number) {
    const train_batch *b = &mb->batch;
    int32_t start = (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[sample];
    int32_t length = (b->cu_seqlens[sample + 1] - b->cu_seqlens[sample]) / 2;
    RAVEL_ASSERT(number >= 0 && number < 2 * mb->cp.ranks && length > 0);
    return (chunk){(int64_t)number * length, number < mb->cp.ranks ? start : start + length, length};
}

/* Whether the queries see some of the keys, which are before them. */
static int sees(const train_model *m, const chunk *queries, const chunk *keys) {
    int64_t keys_end = keys->first + keys->length;
    RAVEL_ASSERT(keys_end <= queries->first);
    return !m->net.window || queries->first - (keys_end - 1) < m->net.window; /* 0: all, in some layers */
}

/* ---- views ---------------------------------------------------------------------------------------------- */

/* An array of `count` elements of the staged block: where the host writes it. */
static int32_t *take(train_model *m, int64_t count, const int32_t **there) {
    return train__staging_take(&m->staging, count, sizeof(int32_t), there);
}

/* Query chunk `at` of every sample over key chunk `of`, which is before it. */
static train__view view_between(train_model *m, train__micro *mb, int32_t at, int32_t of) {
    train__view v = {.all = 1, .queries = mb->ragged, .keys = mb->ragged};
    int32_t samples = mb->batch.samples, n = 0;
    int32_t *query_starts = take(m, samples, &v.queries.starts), *query_lengths = take(m, samples, &v.queries.lengths);
    int32_t *key_starts = take(m, samples, &v.keys.starts), *key_lengths = take(m, samples, &v.keys.lengths);
    int32_t *shifts = take(m, samples, &v.shifts);
    for (int32_t i = 0; i < samples; i++) {
        chunk queries = chunk_of(mb, i, at), keys = chunk_of(mb, i, of);
        if (!sees(m, &queries, &keys)) continue;
        query_starts[n] = queries.row, query_lengths[n] = queries.length;
        key_starts[n] = keys.row, key_lengths[n] = keys.length;
        shifts[n++] = (int32_t)(queries.first - keys.first);
        v.all &= !m->net.window || queries.first + queries.length - 1 - keys.first < m->net.window;
    }
    v.samples = n;
    v.queries.host_lengths = query_lengths;
    v.keys.host_lengths = key_lengths;
    v.queries.longest = v.keys.longest = mb->staged.halves.longest;
    return v;
}

/* Both chunks of every sample over themselves, in the order of their rows. */
static train__view view_of_own(train_model *m, train__micro *mb) {
    train__view v = {.queries = mb->ragged};
    int32_t samples = mb->batch.samples, n = 0;
    int32_t *starts = take(m, 2 * (int64_t)samples, &v.queries.starts);
    int32_t *lengths = take(m, 2 * (int64_t)samples, &v.queries.lengths);
    for (int32_t i = 0; i < samples; i++)
        for (int k = 0; k < 2; k++) {
            chunk c = chunk_of(mb, i, k ? 2 * mb->cp.ranks - 1 - mb->cp.rank : mb->cp.rank);
            starts[n] = c.row, lengths[n++] = c.length;
        }
    v.samples = n;
    v.queries.host_lengths = lengths;
    v.queries.longest = mb->staged.halves.longest;
    v.keys = v.queries;
    return v;
}

void train__ring_lay_out(train_model *m, train__micro *mb) {
    int32_t rank = mb->cp.rank, last = 2 * mb->cp.ranks - 1;
    train__view *v = mb->views;
    RAVEL_ASSERT(v && mb->cp.ranks <= m->cp_most);
    for (int32_t owner = 0; owner < mb->cp.ranks; owner++, v += 2) {
        v[0] = owner == rank  ? view_of_own(m, mb)
               : owner < rank ? view_between(m, mb, rank, owner)
                              : view_between(m, mb, last - rank, last - owner);
        v[1] = view_between(m, mb, last - rank, owner);
    }
}

/* ---- a block -------------------------------------------------------------------------------------------- */

static train_attention attention_of(const train_model *m, const train__acts *a, const train__view *v, const void *kv) {
    const train__net *n = &m->net;
    train_attention x = train__net_attention(n, a);
    x.k = kv;
    x.v = train__net_at(n, kv, n->kv_width);
    x.ld_k = x.ld_v = 2 * n->kv_width;
    x.samples = v->samples;
    x.queries = v->queries;
    x.keys = v->keys;
    x.shifts = v->shifts;
    if (v->all && x.window == n->window) x.window = 0, x.shifts = x.keys.lengths;
    return x;
}

static void attend(const train_model *m, const train__micro *mb, const train__acts *a, int32_t owner, const void *kv) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    for (int k = 0; k < 2; k++) {
        const train__view *v = &mb->views[2 * owner + k];
        train_attention x = attention_of(m, a, v, kv);
        if (!v->samples) continue;
        if (v->shifts) x.o = r->o, x.lse = r->lse;
        n->kernels->attention(n->device, &x);
        if (v->shifts)
            n->kernels->attention_merge(
                n->device, &(train_merge){x.samples, x.heads, x.head_dim, x.queries, a->o, a->lse, r->o, r->lse});
    }
}

/* d_q += and d_kv =. The second view's keys are first chunks: up to this rank, the first view's are too. */
static void attend_backward(const train_model *m, train__micro *mb, const train__acts *a, int32_t owner, const void *kv,
                            void *d_kv) {
    const train__net *n = &m->net;
    size_t bytes = train__net_bytes(n, mb->ragged.tokens * 2 * n->kv_width);
    n->kernels->zero(n->device, d_kv, bytes);
    for (int k = 0; k < 2; k++) {
        const train__view *v = &mb->views[2 * owner + k];
        train_attention x = attention_of(m, a, v, kv);
        int shared = k > 0 && owner <= mb->cp.rank;
        void *to = shared ? m->ring.spare : d_kv;
        if (!v->samples) continue;
        if (shared) n->kernels->zero(n->device, to, bytes);
        train__ring_gradients(m, &x, to);
        x.add = v->shifts != NULL;
        n->kernels->attention_backward(n->device, &x);
        if (shared) train__ring_add(m, mb, d_kv, to);
    }
}

/* ---- the steps ------------------------------------------------------------------------------------------ */

/* Keys and values of the rank `step` back begin to come; none after the last step. */
static void fetch(const train_model *m, train__micro *mb, train__shift *shift, int32_t step, void *to) {
    const train__net *n = &m->net;
    *shift = (train__shift){0};
    if (step < mb->cp.ranks)
        train__link_begin(&mb->cp, shift, TRAIN__RING_KV, step, m->ring.mine, to, mb->ragged.tokens * 2 * n->kv_width,
                          n->types.activation);
}

void train__ring_chunks_forward(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__ring *r = &m->ring;
    const void *kv = r->mine;
    RAVEL_ASSERT(mb->cp.ranks > 1 && r->mine && !mb->views[2 * mb->cp.rank].shifts);
    train__ring_pack(m, mb, r->mine, a);
    for (int32_t step = 0, turn = 0; step < mb->cp.ranks; turn = !turn) {
        int32_t next = step_after(m, mb, step);
        train__shift coming;
        fetch(m, mb, &coming, next, r->kv[turn]);
        attend(m, mb, a, train__ring_owner(mb, step), kv);
        train__link_finish(&mb->cp, &coming);
        kv = r->kv[turn];
        step = next;
    }
}

/* Waits for gradients of this rank's block from another one, and adds them. */
static void take_back(const train_model *m, train__micro *mb, train__shift *shift, int begun) {
    if (!begun) return;
    train__link_finish(&mb->cp, shift);
    train__ring_add(m, mb, m->ring.own, m->ring.back);
}

void train__ring_chunks_backward(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    const void *kv = r->mine;
    int32_t ranks = mb->cp.ranks, begun = 0;
    train__shift returning = {0};
    RAVEL_ASSERT(!m->options.inference && r->own && r->spare && r->back);
    train__ring_pack(m, mb, r->mine, a);
    for (int32_t step = 0, turn = 0; step < ranks; turn = !turn) {
        int32_t next = step_after(m, mb, step);
        train__shift coming;
        void *d_kv = step ? r->d_kv[turn] : r->own;
        fetch(m, mb, &coming, next, r->kv[turn]);
        attend_backward(m, mb, a, train__ring_owner(mb, step), kv, d_kv);
        train__link_finish(&mb->cp, &coming);
        take_back(m, mb, &returning, begun);
        begun = step > 0;
        if (begun)
            train__link_begin(&mb->cp, &returning, TRAIN__RING_D_KV, ranks - step, d_kv, r->back,
                              mb->ragged.tokens * 2 * n->kv_width, n->types.activation);
        kv = r->kv[turn];
        step = next;
    }
    take_back(m, mb, &returning, begun);
    train__ring_unpack(m, mb, r->own);
}
