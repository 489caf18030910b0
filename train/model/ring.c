#include "train/model/ring.h"

#include "base/assert.h"

/* The keys are [tokens, kv_width], the values a part of qkv's rows. */
void train__ring_pack(const train_model *m, const train__micro *mb, void *kv, const train__acts *a) {
    const train__net *n = &m->net;
    const void *k = a->k, *v = train__net_at(n, a->qkv, n->q_width + n->kv_width);
    train_rows rows = {.rows = mb->ragged.tokens, .width = n->kv_width, .ld_to = 2 * n->kv_width};
    rows.to = kv;
    rows.from = k;
    n->kernels->copy_rows(n->device, &rows);
    rows.to = train__net_at(n, kv, n->kv_width);
    rows.from = v;
    rows.ld_from = n->qkv_width;
    n->kernels->copy_rows(n->device, &rows);
}

void train__ring_unpack(const train_model *m, const train__micro *mb, const void *kv) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    void *k = w->d_k, *v = train__net_at(n, w->d_qkv, n->q_width + n->kv_width);
    train_rows rows = {.rows = mb->ragged.tokens, .width = n->kv_width, .ld_from = 2 * n->kv_width};
    rows.to = k;
    rows.from = kv;
    n->kernels->copy_rows(n->device, &rows);
    rows.to = v;
    rows.ld_to = n->qkv_width;
    rows.from = train__net_at(n, kv, n->kv_width);
    n->kernels->copy_rows(n->device, &rows);
}

/* Attention over the keys and values of rank `owner`; see ring.h for who sees what. */
static train_attention over(const train_model *m, train__micro *mb, const train__acts *a, int32_t owner,
                            const void *kv) {
    const train__net *n = &m->net;
    const train__halves *h = &mb->staged.halves;
    RAVEL_ASSERT(owner >= 0 && owner < mb->cp.ranks && h->lengths && h->seconds);
    train_attention x = train__net_attention(n, a);
    x.k = kv;
    x.v = train__net_at(n, kv, n->kv_width);
    x.ld_k = x.ld_v = 2 * n->kv_width;
    x.samples = mb->batch.samples;
    x.queries = x.keys = mb->ragged;
    if (owner == mb->cp.rank) return x;
    train_ragged *half = owner < mb->cp.rank ? &x.keys : &x.queries;
    half->lengths = h->lengths;
    half->host_lengths = h->host_lengths;
    half->longest /= 2;
    if (owner > mb->cp.rank) half->starts = h->seconds;
    x.shifts = x.keys.lengths; /* every key is seen */
    return x;
}

int32_t train__ring_owner(train__micro *mb, int32_t step) {
    RAVEL_ASSERT(step >= 0 && step < mb->cp.ranks);
    return (mb->cp.rank + mb->cp.ranks - step) % mb->cp.ranks;
}

void train__ring_forward(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    int64_t count = (int64_t)mb->ragged.tokens * 2 * n->kv_width;
    RAVEL_ASSERT(mb->cp.ranks > 1 && mb->cp.ranks <= m->cp_most);
    RAVEL_ASSERT(count > 0 && mb->ragged.tokens <= m->sizes.tokens);
    train__ring_pack(m, mb, r->kv[0], a);
    for (int32_t step = 0; step < mb->cp.ranks; step++) {
        void *kv = r->kv[step % 2];
        train_attention x = over(m, mb, a, train__ring_owner(mb, step), kv);
        train__shift next = {0};
        if (step + 1 < mb->cp.ranks)
            train__link_begin(&mb->cp, &next, TRAIN__RING_KV, 1, kv, r->kv[(step + 1) % 2], count, n->types.activation);
        if (step) x.o = r->o, x.lse = r->lse;
        n->kernels->attention(n->device, &x);
        if (step)
            n->kernels->attention_merge(
                n->device, &(train_merge){x.samples, x.heads, x.head_dim, x.queries, a->o, a->lse, r->o, r->lse});
        train__link_finish(&mb->cp, &next);
    }
}

void train__ring_gradients(const train_model *m, train_attention *x, void *d_kv) {
    const train__net *n = &m->net;
    x->d_o = m->working.d_o;
    x->d_q = m->working.d_q;
    x->d_k = d_kv;
    x->d_v = train__net_at(n, d_kv, n->kv_width);
    x->ld_dq = n->q_width;
    x->ld_dk = x->ld_dv = 2 * n->kv_width;
}

/* d_q += and `d_kv` =, of this rank's queries over the block that is here; 0 for keys that no query sees. */
static void block_backward(const train_model *m, train__micro *mb, const train__acts *a, int32_t owner, const void *kv,
                           void *d_kv) {
    const train__net *n = &m->net;
    train_attention x = over(m, mb, a, owner, kv);
    train__ring_gradients(m, &x, d_kv);
    x.add = owner != mb->cp.rank; /* the own block is the first */
    n->kernels->zero(n->device, d_kv, train__net_bytes(n, mb->ragged.tokens * 2 * n->kv_width));
    n->kernels->attention_backward(n->device, &x);
}

void train__ring_add(const train_model *m, const train__micro *mb, void *x, const void *add) {
    const train__net *n = &m->net;
    n->kernels->rmsnorm(
        n->device, &(train_norm){.rows = mb->ragged.tokens, .width = 2 * n->kv_width, .x = x, .add = add, .sum = x});
}

void train__ring_backward(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__net *n = &m->net;
    const train__ring *r = &m->ring;
    int64_t count = mb->ragged.tokens * 2 * n->kv_width;
    int32_t ranks = mb->cp.ranks, type = n->types.activation;
    train__shift gradients = {0};
    RAVEL_ASSERT(ranks > 1 && !m->options.inference && r->own && r->d_kv[0]);
    train__ring_pack(m, mb, r->kv[0], a);
    for (int32_t step = 0; step < ranks; step++) {
        void *kv = r->kv[step % 2], *d_kv = r->d_kv[step % 2];
        train__shift next = {0};
        if (step + 1 < ranks)
            train__link_begin(&mb->cp, &next, TRAIN__RING_KV, 1, kv, r->kv[(step + 1) % 2], count, type);
        block_backward(m, mb, a, train__ring_owner(mb, step), kv, step ? r->own : d_kv);
        train__link_finish(&mb->cp, &gradients);
        if (step) train__ring_add(m, mb, d_kv, r->own);
        train__link_begin(&mb->cp, &gradients, TRAIN__RING_D_KV, 1, d_kv, r->d_kv[(step + 1) % 2], count, type);
        train__link_finish(&mb->cp, &next);
    }
    train__link_finish(&mb->cp, &gradients); /* own again after the last step */
    train__ring_unpack(m, mb, r->d_kv[ranks % 2]);
}
