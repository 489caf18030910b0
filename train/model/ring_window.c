/* Context parallelism with a sliding window; ring.h has the plan. */
#include "train/model/ring.h"

#include "train/kernels/assert.h"

/* One call of attention: query chunks of this rank over key chunks of another, `distance` chunks back in their samples. */
typedef enum chunks { FIRSTS, SECONDS, BOTH } chunks;
typedef struct view {
    chunks queries, keys;
    int32_t distance;
} view;
enum { VIEWS = 2 };

/* ---- who sees what -------------------------------------------------------------------------------------- */

/* Whether any query sees a key `distance` chunks of `chunk` tokens back: the first query the last key. */
static int sees(int64_t window, int64_t chunk, int64_t distance) {
    return distance == 0 || (distance - 1) * chunk + 1 < window;
}

int32_t train__ring_step_after(int32_t ranks, int32_t step, int64_t window, int64_t chunk) {
    TRAIN_ASSERT(step >= 0 && step < ranks && window > 0 && chunk > 0);
    for (step++; step < ranks; step++)
        if (sees(window, chunk, train__min(step, ranks - step))) break;
    return step;
}

/* Whether every query sees every key. */
static int sees_all(const train_model *m, int64_t distance) {
    return distance > 0 && (distance + 1) * m->now.staged.halves.longest - 1 < m->net.window;
}

/* The views of this rank on the chunks of `owner`. */
static int views_of(const train_model *m, int32_t owner, view *list) {
    int32_t ranks = m->cp->ranks, rank = m->cp->rank;
    const view all[VIEWS] = {owner == rank  ? (view){BOTH, BOTH, 0}
                             : owner < rank ? (view){FIRSTS, FIRSTS, rank - owner}
                                            : (view){SECONDS, SECONDS, owner - rank},
                             {SECONDS, FIRSTS, 2 * ranks - 1 - rank - owner}};
    int count = 0;
    for (int i = 0; i < VIEWS; i++)
        if (sees(m->net.window, m->now.staged.halves.shortest, all[i].distance)) list[count++] = all[i];
    TRAIN_ASSERT(owner != rank || (count > 0 && list[0].queries == BOTH)); /* the first call writes every query */
    return count;
}

static int32_t step_after(const train_model *m, int32_t step) {
    return train__ring_step_after(m->cp->ranks, step, m->net.window, m->now.staged.halves.shortest);
}

/* ---- a block -------------------------------------------------------------------------------------------- */

static train_ragged ragged_of(const train_model *m, chunks which) {
    const train__halves *h = &m->now.staged.halves;
    train_ragged r = m->now.ragged;
    r.longest = h->longest;
    r.lengths = which == BOTH ? h->chunk_lengths : h->lengths;
    r.host_lengths = which == BOTH ? h->host_chunk_lengths : h->host_lengths;
    if (which == BOTH) r.starts = h->chunk_starts;
    if (which == SECONDS) r.starts = h->seconds;
    return r;
}

static train_attention attention_of(const train_model *m, const train__acts *a, view v, const void *kv) {
    const train__net *n = &m->net;
    int32_t samples = m->now.batch.samples;
    TRAIN_ASSERT(v.distance >= 0 && v.distance < 2 * m->cp->ranks && (v.queries == BOTH) == (v.keys == BOTH));
    train_attention x = train__net_attention(n, a);
    x.k = kv;
    x.v = train__net_at(n, kv, n->kv_width);
    x.ld_k = x.ld_v = 2 * n->kv_width;
    x.samples = v.queries == BOTH ? 2 * samples : samples;
    x.queries = ragged_of(m, v.queries);
    x.keys = ragged_of(m, v.keys);
    if (v.distance > 0) x.shifts = m->now.staged.halves.shifts + (int64_t)v.distance * samples;
    if (sees_all(m, v.distance)) x.window = 0, x.shifts = x.keys.lengths;
    return x;
}

static void attend(const train_model *m, const train__acts *a, int32_t owner, const void *kv) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    view list[VIEWS];
    for (int i = 0, count = views_of(m, owner, list); i < count; i++) {
        train_attention x = attention_of(m, a, list[i], kv);
        int merged = list[i].distance > 0;
        if (merged) x.o = r->o, x.lse = r->lse;
        n->kernels->attention(n->device, &x);
        if (merged)
            n->kernels->attention_merge(
                n->device, &(train_merge){x.samples, x.heads, x.head_dim, x.queries, a->o, a->lse, r->o, r->lse});
    }
}

/* d_q += and d_kv =. The second view's keys are firsts: they may be the first view's too. */
static void attend_backward(const train_model *m, const train__acts *a, int32_t owner, const void *kv, void *d_kv) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    size_t bytes = train__net_bytes(n, m->now.ragged.tokens * 2 * n->kv_width);
    view list[VIEWS];
    n->kernels->zero(n->device, d_kv, bytes);
    for (int i = 0, count = views_of(m, owner, list); i < count; i++) {
        train_attention x = attention_of(m, a, list[i], kv);
        int shared = i > 0 && list[0].keys != SECONDS;
        void *to = shared ? m->ring.spare : d_kv;
        if (shared) n->kernels->zero(n->device, to, bytes);
        x.d_o = w->d_o;
        x.d_q = w->d_q;
        x.d_k = to;
        x.d_v = train__net_at(n, to, n->kv_width);
        x.ld_dq = n->q_width;
        x.ld_dk = x.ld_dv = 2 * n->kv_width;
        x.add = list[i].distance > 0;
        n->kernels->attention_backward(n->device, &x);
        if (shared) train__ring_add(m, d_kv, to);
    }
}

/* ---- the steps ------------------------------------------------------------------------------------------ */

/* Keys and values of the rank `step` back begin to come; none after the last step. */
static void fetch(const train_model *m, train__shift *shift, int32_t step, void *to) {
    const train__net *n = &m->net;
    *shift = (train__shift){0};
    if (step < m->cp->ranks)
        train__link_begin(m->cp, shift, TRAIN__RING_KV, step, m->ring.mine, to, m->now.ragged.tokens * 2 * n->kv_width,
                          n->types.activation);
}

void train__ring_window_forward(const train_model *m, const train__acts *a) {
    const train__ring *r = &m->ring;
    const void *kv = r->mine;
    TRAIN_ASSERT(m->cp && m->cp->ranks > 1 && m->net.window > 0 && r->mine);
    train__ring_pack(m, r->mine, a);
    for (int32_t step = 0, turn = 0; step < m->cp->ranks; turn = !turn) {
        int32_t next = step_after(m, step);
        train__shift coming;
        fetch(m, &coming, next, r->kv[turn]);
        attend(m, a, train__ring_owner(m, step), kv);
        train__link_finish(m->cp, &coming);
        kv = r->kv[turn];
        step = next;
    }
}

/* Waits for gradients of this rank's block from another one, and adds them. */
static void take_back(const train_model *m, train__shift *shift, int begun) {
    if (!begun) return;
    train__link_finish(m->cp, shift);
    train__ring_add(m, m->ring.own, m->ring.back);
}

void train__ring_window_backward(const train_model *m, const train__acts *a) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    const void *kv = r->mine;
    int32_t ranks = m->cp->ranks, begun = 0;
    train__shift returning = {0};
    TRAIN_ASSERT(!m->options.inference && r->own && r->spare && r->back && n->window > 0);
    train__ring_pack(m, r->mine, a);
    for (int32_t step = 0, turn = 0; step < ranks; turn = !turn) {
        int32_t next = step_after(m, step);
        train__shift coming;
        void *d_kv = step ? r->d_kv[turn] : r->own;
        fetch(m, &coming, next, r->kv[turn]);
        attend_backward(m, a, train__ring_owner(m, step), kv, d_kv);
        train__link_finish(m->cp, &coming);
        take_back(m, &returning, begun);
        begun = step > 0;
        if (begun)
            train__link_begin(m->cp, &returning, TRAIN__RING_D_KV, ranks - step, d_kv, r->back,
                              m->now.ragged.tokens * 2 * n->kv_width, n->types.activation);
        kv = r->kv[turn];
        step = next;
    }
    take_back(m, &returning, begun);
    train__ring_unpack(m, r->own);
}
