/* The layers of the model on the batch that was staged.
 *
 * What forward keeps of each layer is the user's choice (train_recompute):
 *
 *     full     x                                               layers share one place for the rest: it is made again
 *     light    + qkv, o, lse, x_mid, gate_up                   what products and attention made
 *     none     + normalised x and x_mid, rotated q and k, h    what backward reads, all of it */
#include "train/model/model_internal.h"

#include "train/kernels/assert.h"
#include "train/model/ring.h"

/* A layer's arrays: kept ones of its own, working ones shared. */
static train__acts acts_of(const train_model *m, int64_t layer) {
    const train__sizes *s = &m->sizes;
    int64_t layers = m->params->part.last_layer - m->params->part.first_layer; /* of this stage */
    layer -= m->params->part.first_layer;
    TRAIN_ASSERT(layer >= 0 && layer <= layers && m->now.kept.x);
    char *rest = m->now.kept.rest + (size_t)layer * s->rest, *light = m->now.kept.light + (size_t)layer * s->light;
    train__acts a = {.x = m->now.kept.x + (size_t)layer * s->x,
                     .next = m->now.kept.x + (size_t)(layer + 1) * s->x,
                     .xn = m->working.xn,
                     .xn_mid = m->working.xn,
                     .xn_next = m->working.xn,
                     .y = m->working.y,
                     .whole = m->working.whole,
                     .qkv = rest,
                     .q = m->working.q,
                     .k = m->working.k,
                     .o = rest + s->o,
                     .lse = (train_real *)(void *)(rest + s->lse),
                     .x_mid = rest + s->x_mid,
                     .gate_up = m->now.kept.gate_up + (size_t)layer * s->gate_up,
                     .h = m->working.h};
    if (!s->light || layer == layers) return a;
    a.xn = light;
    a.xn_mid = light + s->xn_mid;
    if (layer + 1 < layers) a.xn_next = light + s->light;
    a.q = light + s->q;
    a.k = light + s->k;
    a.h = light + s->h;
    return a;
}

void *train__model_x(const train_model *m, int32_t flight, int64_t layer) {
    TRAIN_ASSERT(flight >= 0 && flight < m->options.in_flight);
    TRAIN_ASSERT(layer >= m->params->part.first_layer && layer <= m->params->part.last_layer);
    const train__kept *kept = flight == m->flight ? &m->now.kept : &m->flights[flight].kept;
    return kept->x + (size_t)(layer - m->params->part.first_layer) * m->sizes.x;
}

static void clear(const train_model *m, void *block, int64_t elements) {
    TRAIN_ASSERT(block && elements > 0);
    m->net.kernels->zero(m->net.device, block, train__net_bytes(&m->net, elements));
}

static const void *weight(const train_model *m, int64_t layer, train_layer_tensor which) {
    return train__net_layer_weight(&m->net, layer, which);
}

static void *grad(const train_model *m, int64_t layer, train_layer_tensor which) {
    return train__model_grad(m, train_params_layer(m->params, layer, which));
}

static train_attention attention_of(const train_model *m, const train__acts *a) {
    train_attention x = train__net_attention(&m->net, a);
    x.samples = m->now.batch.samples;
    TRAIN_ASSERT(x.samples > 0 && m->now.ragged.starts && m->now.ragged.lengths);
    x.queries = m->now.ragged;
    x.keys = m->now.ragged;
    return x;
}

void train__model_copy_scored(const train_model *m, void *to, const void *from, const int32_t *to_ids,
                              const int32_t *from_ids) {
    const train__net *n = &m->net;
    train_rows rows = {.rows = m->now.scored, .width = n->hidden, .to_ids = to_ids, .from_ids = from_ids};
    TRAIN_ASSERT(to && from && to != from);
    rows.to = to;
    rows.from = from;
    n->kernels->copy_rows(n->device, &rows);
}

void train__model_spread_scored(const train_model *m, void *d_x, const void *d_rows) {
    const train__staged *s = &m->now.staged;
    const train__net *n = &m->net;
    if (!train__model_has_tree(m)) {
        train__model_copy_scored(m, d_x, d_rows, s->rows, NULL);
        return;
    }
    train_rows rows = {.rows = m->now.sources, .width = n->hidden, .to = d_x, .from = d_rows, .to_ids = s->sources};
    rows.from_ids = s->source_list;
    rows.first = s->source_first;
    n->kernels->copy_rows(n->device, &rows);
}

/* A set that does not say looks at each length. */
uint64_t train__model_attention_shape(const train_model *m) {
    train__acts a = acts_of(m, m->params->part.first_layer);
    train_attention x = attention_of(m, &a);
    uint64_t hash = 0;
    if (m->net.kernels->attention_shape) return m->net.kernels->attention_shape(m->net.device, &x);
    for (int32_t i = 0; i < x.samples; i++)
        hash = (hash ^ (uint64_t)(uint32_t)x.queries.host_lengths[i]) * 0x9e3779b97f4a7c15u;
    return hash;
}

/* ---- forward -------------------------------------------------------------------------------------------- */

static void attend(void *user, int64_t layer, const train__acts *a) {
    const train_model *m = user;
    (void)layer;
    if (m->now.gaps) clear(m, a->o, m->now.ragged.tokens * m->net.q_width);
    if (m->cp) {
        (train__model_by_chunk(m) ? train__ring_chunks_forward : train__ring_forward)(m, a);
        return;
    }
    if (train__model_has_tree(m)) {
        train__tree_attend(m, a);
        return;
    }
    train_attention attention = attention_of(m, a);
    m->net.kernels->attention(m->net.device, &attention);
}

static train__rows_of rows_of(train_model *m) {
    TRAIN_ASSERT(m->now.ragged.tokens > 0 && m->now.staged.positions);
    return (train__rows_of){m->now.ragged.tokens, m->now.staged.positions, attend, m};
}

/* Sharded weights: the embedding, and the first layer's norm after it. */
static void prepare_input(train_model *m) {
    if (!train__model_sharded(m)) return;
    int64_t unit = train_params_layer_unit(m->params, m->params->part.first_layer);
    if (!m->params->part.first_layer) train__units_need(&m->units, 0, unit);
    train__units_need(&m->units, unit, unit + 1);
}

/* A layer ends with the norm of the next one. */
static void prepare_forward(train_model *m, int64_t layer) {
    if (!train__model_sharded(m)) return;
    int64_t unit = train_params_layer_unit(m->params, layer);
    train__units_need(&m->units, unit, -1);
    if (unit + 1 < m->params->unit_count) train__units_need(&m->units, unit + 1, unit + 2);
}

/* Rows of scored tokens, before and after the last norm. With sequence parallelism the head does it, from its share. */
static void pick_head_rows(train_model *m, const void *x, const void *xn) {
    if (m->net.sequence) return;
    TRAIN_ASSERT(m->now.kept.head_x && m->now.kept.head_xn && x && xn);
    train__model_copy_scored(m, m->now.kept.head_x, x, NULL, m->now.staged.rows);
    train__model_copy_scored(m, m->now.kept.head_xn, xn, NULL, m->now.staged.rows);
}

void train__model_layers(train_model *m) {
    const train__net *n = &m->net;
    int64_t first = m->params->part.first_layer, last = m->params->part.last_layer;
    train__rows_of rows = rows_of(m);
    train__acts a = acts_of(m, first);
    TRAIN_ASSERT(first < last && last <= n->shape.layers && (first || m->now.staged.tokens));
    n->kernels->phase(n->device, TRAIN_PHASE_FORWARD);
    prepare_input(m);
    if (!first) train__net_embed(n, a.x, n->sequence ? a.whole : a.x, m->now.staged.tokens, NULL, rows.rows);
    train__net_norm(n, a.xn, NULL, a.x, NULL, first, TRAIN_NORM_IN, train__net_share(n, rows.rows));
    for (int64_t layer = first; layer < last; layer++) {
        a = acts_of(m, layer);
        prepare_forward(m, layer);
        train__net_layer(n, layer, &a, &rows);
    }
    if (last == n->shape.layers) pick_head_rows(m, acts_of(m, last).x, a.xn_next);
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* Sharded weights and gradients of a layer, and the weights of the one below it on their way. */
static void prepare_backward(train_model *m, int64_t layer) {
    if (!train__model_sharded(m)) return;
    int64_t unit = train_params_layer_unit(m->params, layer);
    train__units_need(&m->units, unit, layer > m->params->part.first_layer ? unit - 1 : -1);
    train__units_open_grads(&m->units, unit);
}

static void reduce(train_model *m, int64_t unit) {
    if (train__model_sharded(m)) train__units_reduce(&m->units, unit);
}

/* The layer's forward again, where only its input was kept. The last layer's is still there. */
static void recompute(train_model *m, int64_t layer, train__acts a) {
    const train__net *n = &m->net;
    train__rows_of rows = rows_of(m);
    if (m->options.recompute != TRAIN_RECOMPUTE_FULL || layer == m->params->part.last_layer - 1) return;
    a.next = NULL;
    TRAIN_ASSERT(!m->sizes.light && m->sizes.x);
    train__net_norm(n, a.xn, NULL, a.x, NULL, layer, TRAIN_NORM_IN, train__net_share(n, rows.rows));
    train__net_layer(n, layer, &a, &rows);
}

/* Whether forward kept the arrays that are cheap to recompute. */
static int kept_light(const train_model *m) {
    return m->sizes.light > 0;
}

void train__model_norm_backward(const train_model *m, int64_t offset, const void *x, const void *d_y, void *d_x,
                                int64_t rows) {
    const train__net *n = &m->net;
    TRAIN_ASSERT(offset >= 0 && x && d_y && d_x != d_y && rows >= 0);
    n->kernels->rmsnorm_backward(n->device, &(train_norm){.rows = rows,
                                                          .width = n->hidden,
                                                          .eps = n->eps,
                                                          .x = x,
                                                          .weight = train__net_weight(n, offset),
                                                          .d_y = d_y,
                                                          .d_x = d_x,
                                                          .d_weight = train__model_grad(m, offset)});
}

/* d_x: from the layer's output to x_mid. gate_up becomes its own gradient. */
static void feed_forward_backward(train_model *m, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = m->now.ragged.tokens, share = train__net_share(n, tokens);
    void *d_gate_up = a->gate_up;
    const void *d_out = train__net_enter(n, w->whole, w->d_x, tokens), *xn;
    TRAIN_ASSERT(w->d_x && share > 0);
    train__net_linear_input(n, w->d_h, d_out, weight(m, layer, TRAIN_DOWN), tokens, n->hidden, n->ffn);
    n->kernels->swiglu_backward(n->device, d_gate_up, kept_light(m) ? NULL : a->h, w->d_h, a->gate_up, tokens, n->ffn);
    train__net_linear_weight(n, grad(m, layer, TRAIN_DOWN), d_out, a->h, tokens, n->hidden, n->ffn);
    if (!kept_light(m)) train__net_norm(n, a->xn_mid, NULL, a->x_mid, NULL, layer, TRAIN_NORM_OUT, share);
    xn = train__net_enter(n, w->whole, a->xn_mid, tokens);
    train__net_linear_weight(n, grad(m, layer, TRAIN_GATE), d_gate_up, xn, tokens, 2 * n->ffn, n->hidden);
    train__net_linear_input(n, w->whole, d_gate_up, weight(m, layer, TRAIN_GATE), tokens, 2 * n->ffn, n->hidden);
    train__net_leave(n, w->y, w->whole, tokens);
    train__model_norm_backward(m, train_params_layer(m->params, layer, TRAIN_NORM_OUT), a->x_mid, w->y, w->d_x, share);
}

static void whole_attention_backward(train_model *m, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    train_attention attention = attention_of(m, a);
    attention.d_o = w->d_o;
    attention.d_q = w->d_q;
    attention.d_k = w->d_k;
    attention.d_v = train__net_at(n, w->d_qkv, n->q_width + n->kv_width);
    attention.ld_dq = n->q_width;
    attention.ld_dk = n->kv_width;
    attention.ld_dv = n->qkv_width;
    if (train__model_has_tree(m))
        train__tree_attend_backward(m, &attention);
    else
        n->kernels->attention_backward(n->device, &attention);
}

/* d_o to d_qkv: attention, rotation, norms of q and k. */
static void attend_backward(train_model *m, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = m->now.ragged.tokens;
    train_rope rope = train__net_rope(n, layer, a->q, a->k, a->qkv, m->now.staged.positions, tokens);
    if (!kept_light(m)) n->kernels->rope(n->device, &rope);
    if (m->now.gaps || m->cp) {
        clear(m, w->d_q, tokens * n->q_width);
        clear(m, w->d_k, tokens * n->kv_width);
        clear(m, w->d_qkv, tokens * n->qkv_width);
    }
    if (m->cp)
        (train__model_by_chunk(m) ? train__ring_chunks_backward : train__ring_backward)(m, a);
    else
        whole_attention_backward(m, a);
    rope.d_q = w->d_q;
    rope.d_k = w->d_k;
    rope.d_qkv = w->d_qkv;
    rope.d_q_weight = grad(m, layer, TRAIN_Q_NORM);
    rope.d_k_weight = grad(m, layer, TRAIN_K_NORM);
    TRAIN_ASSERT(!rope.q_weight == !rope.d_q_weight && !rope.k_weight == !rope.d_k_weight);
    n->kernels->rope_backward(n->device, &rope);
}

/* d_x: from x_mid to the layer's input. */
static void attention_half_backward(train_model *m, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = m->now.ragged.tokens, share = train__net_share(n, tokens);
    void *d_bias = grad(m, layer, TRAIN_Q_BIAS);
    const void *d_out = train__net_enter(n, w->whole, w->d_x, tokens), *xn;
    TRAIN_ASSERT(w->d_o && w->d_qkv && share > 0);
    train__net_linear_input(n, w->d_o, d_out, weight(m, layer, TRAIN_O), tokens, n->hidden, n->q_width);
    train__net_linear_weight(n, grad(m, layer, TRAIN_O), d_out, a->o, tokens, n->hidden, n->q_width);
    attend_backward(m, layer, a);
    if (d_bias) n->kernels->bias_backward(n->device, d_bias, w->d_qkv, tokens, n->qkv_width, n->qkv_width);
    if (!kept_light(m)) train__net_norm(n, a->xn, NULL, a->x, NULL, layer, TRAIN_NORM_IN, share);
    xn = train__net_enter(n, w->whole, a->xn, tokens);
    train__net_linear_weight(n, grad(m, layer, TRAIN_Q), w->d_qkv, xn, tokens, n->qkv_width, n->hidden);
    train__net_linear_input(n, w->whole, w->d_qkv, weight(m, layer, TRAIN_Q), tokens, n->qkv_width, n->hidden);
    train__net_leave(n, w->y, w->whole, tokens);
    train__model_norm_backward(m, train_params_layer(m->params, layer, TRAIN_NORM_IN), a->x, w->y, w->d_x, share);
}

void train__model_layers_backward(train_model *m) {
    const train__net *n = &m->net;
    int64_t first = m->params->part.first_layer, last = m->params->part.last_layer;
    size_t bytes = train__net_bytes(n, train__net_share(n, m->now.ragged.tokens) * n->hidden);
    TRAIN_ASSERT(!m->options.inference && m->grads);
    TRAIN_ASSERT(first || m->now.staged.order);
    n->kernels->phase(n->device, TRAIN_PHASE_BACKWARD);
    if (last < n->shape.layers) n->kernels->copy(n->device, m->working.d_x, acts_of(m, last).x, bytes);
    for (int64_t layer = last - 1; layer >= first; layer--) {
        train__acts a = acts_of(m, layer);
        prepare_backward(m, layer);
        recompute(m, layer, a);
        feed_forward_backward(m, layer, &a);
        attention_half_backward(m, layer, &a);
        reduce(m, train_params_layer_unit(m->params, layer));
    }
    if (first) {
        n->kernels->copy(n->device, acts_of(m, first).x, m->working.d_x, bytes);
        return;
    }
    if (train__model_sharded(m) && m->params->head != 0) train__units_open_grads(&m->units, 0);
    void *d_table = train__model_grad(m, m->params->embedding);
    const void *d_y = train__net_enter(n, m->working.whole, m->working.d_x, m->now.ragged.tokens);
    n->kernels->embed_backward(n->device, &(train_embedding){.rows = m->now.ragged.tokens,
                                                             .width = n->hidden,
                                                             .first = n->first_token,
                                                             .count = n->shape.vocab,
                                                             .ids = m->now.staged.tokens,
                                                             .d_y = d_y,
                                                             .d_table = d_table,
                                                             .order = m->now.staged.order,
                                                             .ordered = m->now.ordered});
    reduce(m, 0);
}
