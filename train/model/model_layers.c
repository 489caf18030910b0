/* The layers of the model on the batch that was staged.
 *
 * What forward keeps of each layer is the user's choice (train_recompute):
 *
 *     full     x                                               layers share one place for the rest: it is made again
 *     light    + qkv, o, lse, x_mid, gate_up                   what products and attention made
 *     none     + normalised x and x_mid, rotated q and k, h    what backward reads, all of it */
#include "train/model/model_internal.h"

#include "base/assert.h"
#include "train/model/ring.h"

/* A layer's arrays: kept ones of its own, working ones shared. */
static train__acts acts_of(const train_model *m, const train__micro *mb, int64_t layer) {
    const train__sizes *s = &m->sizes;
    int64_t layers = m->params->part.last_layer - m->params->part.first_layer; /* of this stage */
    layer -= m->params->part.first_layer;
    RAVEL_ASSERT(layer >= 0 && layer <= layers && mb->kept.x);
    char *rest = mb->kept.rest + (size_t)layer * s->rest, *light = mb->kept.light + (size_t)layer * s->light;
    train__acts a = {.x = mb->kept.x + (size_t)layer * s->x,
                     .next = mb->kept.x + (size_t)(layer + 1) * s->x,
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
                     .gate_up = mb->kept.gate_up + (size_t)layer * s->gate_up,
                     .normed = m->working.normed,
                     .attended = s->fed ? rest + s->attended : m->working.y,
                     .fed = s->fed ? rest + s->fed : m->working.y,
                     .window = train__net_window(&m->net, layer + m->params->part.first_layer),
                     .h = m->working.h};
    if (m->router.rows && layer < layers) {
        (void)train__routes_cut(&m->net, s->tokens, rest + s->routes, &a.routes);
        a.routes.offsets = mb->offsets + (s->rest ? layer : 0) * (m->net.shape.experts + 1);
        a.routes.pairs = m->working.pairs;
        train__load_routes(m, mb, layer + m->params->part.first_layer, &a.routes);
    }
    if (!s->light || layer == layers) return a;
    a.xn = light;
    a.xn_mid = light + s->xn_mid;
    if (layer + 1 < layers) a.xn_next = light + s->light;
    a.q = light + s->q;
    a.k = light + s->k;
    a.h = light + s->h;
    return a;
}

void *train__model_x(const train_model *m, const train__micro *mb, int64_t layer) {
    RAVEL_ASSERT(layer >= m->params->part.first_layer && layer <= m->params->part.last_layer);
    return mb->kept.x + (size_t)(layer - m->params->part.first_layer) * m->sizes.x;
}

static void clear(const train_model *m, void *block, int64_t elements) {
    RAVEL_ASSERT(block && elements > 0);
    m->net.kernels->zero(m->net.device, block, train__net_bytes(&m->net, elements));
}

static void *grad(const train_model *m, int64_t layer, train_layer_tensor which) {
    return train__model_grad(m, train_params_layer(m->params, layer, which));
}

static train_attention attention_of(const train_model *m, const train__micro *mb, const train__acts *a) {
    train_attention x = train__net_attention(&m->net, a);
    x.samples = mb->batch.samples;
    RAVEL_ASSERT(x.samples > 0 && mb->ragged.starts && mb->ragged.lengths);
    x.queries = mb->ragged;
    x.keys = mb->ragged;
    return x;
}

void train__model_copy_scored(const train_model *m, const train__micro *mb, void *to, const void *from,
                              const int32_t *to_ids, const int32_t *from_ids) {
    const train__net *n = &m->net;
    train_rows rows = {.rows = mb->scored, .width = n->hidden, .to_ids = to_ids, .from_ids = from_ids};
    RAVEL_ASSERT(to && from && to != from);
    rows.to = to;
    rows.from = from;
    n->kernels->copy_rows(n->device, &rows);
}

void train__model_spread_scored(const train_model *m, const train__micro *mb, void *d_x, const void *d_rows) {
    const train__staged *s = &mb->staged;
    const train__net *n = &m->net;
    if (!train__micro_has_tree(mb)) {
        train__model_copy_scored(m, mb, d_x, d_rows, s->rows, NULL);
        return;
    }
    train_rows rows = {.rows = mb->sources, .width = n->hidden, .to = d_x, .from = d_rows, .to_ids = s->sources};
    rows.from_ids = s->source_list;
    rows.first = s->source_first;
    n->kernels->copy_rows(n->device, &rows);
}

/* A set that does not say looks at each length. */
uint64_t train__model_attention_shape(const train_model *m, const train__micro *mb) {
    train__acts a = acts_of(m, mb, m->params->part.first_layer);
    train_attention x = attention_of(m, mb, &a);
    uint64_t hash = 0;
    if (m->net.kernels->attention_shape) return m->net.kernels->attention_shape(m->net.device, &x);
    for (int32_t i = 0; i < x.samples; i++)
        hash = (hash ^ (uint64_t)(uint32_t)x.queries.host_lengths[i]) * 0x9e3779b97f4a7c15u;
    return hash;
}

/* ---- forward -------------------------------------------------------------------------------------------- */

/* A model and the micro-batch that it runs. */
typedef struct pass {
    const train_model *m;
    train__micro *mb;
} pass;

static void attend(void *user, int64_t layer, const train__acts *a) {
    const train_model *m = ((pass *)user)->m;
    train__micro *mb = ((pass *)user)->mb;
    (void)layer;
    if (mb->gaps) clear(m, a->o, mb->ragged.tokens * m->net.q_width);
    if (train__micro_has_tree(mb)) {
        train__tree_attend(m, mb, a);
        return;
    }
    if (mb->cp.ranks > 1) {
        (train__model_by_chunk(m) ? train__ring_chunks_forward : train__ring_forward)(m, mb, a);
        return;
    }
    train_attention attention = attention_of(m, mb, a);
    m->net.kernels->attention(m->net.device, &attention);
}

static train__rows_of rows_of(pass *p) {
    const train__micro *mb = p->mb;
    RAVEL_ASSERT(mb->ragged.tokens > 0 && mb->staged.positions);
    return (train__rows_of){mb->ragged.tokens, mb->staged.positions, attend, p};
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
    int64_t experts = train_params_expert_unit(m->params, layer), next = experts < 0 ? unit + 1 : experts + 1;
    train__units_need(&m->units, unit, experts);
    if (experts >= 0) train__units_need(&m->units, experts, -1);
    if (next < m->params->unit_count) train__units_need(&m->units, next, next + 1);
}

/* Rows of scored tokens, before and after the last norm. With sequence parallelism the head does it, from its share. */
static void pick_head_rows(train_model *m, const train__micro *mb, const void *x, const void *xn) {
    if (m->net.sequence) return;
    RAVEL_ASSERT(mb->kept.head_x && mb->kept.head_xn && x && xn);
    train__model_copy_scored(m, mb, mb->kept.head_x, x, NULL, mb->staged.rows);
    train__model_copy_scored(m, mb, mb->kept.head_xn, xn, NULL, mb->staged.rows);
}

void train__model_layers(train_model *m, train__micro *mb) {
    const train__net *n = &m->net;
    int64_t first = m->params->part.first_layer, last = m->params->part.last_layer;
    pass p = {m, mb};
    train__rows_of rows = rows_of(&p);
    train__acts a = acts_of(m, mb, first);
    RAVEL_ASSERT(first < last && last <= n->shape.layers && (first || mb->staged.tokens));
    n->kernels->phase(n->device, TRAIN_PHASE_FORWARD);
    prepare_input(m);
    if (!first) train__net_embed(n, a.x, n->sequence ? a.whole : a.x, mb->staged.tokens, NULL, rows.rows);
    train__net_norm(n, a.xn, NULL, a.x, NULL, first, TRAIN_NORM_IN, train__net_share(n, rows.rows));
    for (int64_t layer = first; layer < last; layer++) {
        a = acts_of(m, mb, layer);
        prepare_forward(m, layer);
        train__net_layer(n, layer, &a, &rows);
    }
    if (last == n->shape.layers) pick_head_rows(m, mb, acts_of(m, mb, last).x, a.xn_next);
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* Sharded weights and gradients of a layer, and the weights of the one below it on their way. */
static void prepare_backward(train_model *m, int64_t layer) {
    if (!train__model_sharded(m)) return;
    int64_t unit = train_params_layer_unit(m->params, layer), experts = train_params_expert_unit(m->params, layer);
    if (experts >= 0) train__units_need(&m->units, experts, -1);
    train__units_need(&m->units, unit, layer > m->params->part.first_layer ? unit - 1 : -1);
    if (!train__model_frozen(m)) train__units_open_grads(&m->units, unit);
    if (!train__model_frozen(m) && experts >= 0) train__units_open_grads(&m->units, experts);
}

static void reduce(train_model *m, int64_t unit) {
    if (train__model_sharded(m) && !train__model_frozen(m)) train__units_reduce(&m->units, unit);
}

/* The layer's forward again, where only its input was kept. The last layer's is still there. */
static void recompute(train_model *m, train__micro *mb, int64_t layer, train__acts a) {
    const train__net *n = &m->net;
    pass p = {m, mb};
    train__rows_of rows = rows_of(&p);
    if (m->options.recompute != TRAIN_RECOMPUTE_FULL || layer == m->params->part.last_layer - 1) return;
    a.next = NULL;
    a.routes.load = NULL; /* it was counted */
    RAVEL_ASSERT(!m->sizes.light && m->sizes.x);
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
    RAVEL_ASSERT(offset >= 0 && x && d_y && d_x != d_y && rows >= 0);
    n->kernels->rmsnorm_backward(n->device, &(train_norm){.rows = rows,
                                                          .width = n->hidden,
                                                          .eps = n->eps,
                                                          .shift = n->shift,
                                                          .x = x,
                                                          .weight = train__net_weight(n, offset),
                                                          .d_y = d_y,
                                                          .d_x = d_x,
                                                          .d_weight = train__model_grad(m, offset)});
}

/* d_x += the gradient d_y of what a block reads, through the norm before it. */
static void into_residual(train_model *m, int64_t layer, train_layer_tensor norm, const void *x, const void *d_y,
                          int64_t share) {
    const train__net *n = &m->net;
    int64_t offset = train_params_layer(m->params, layer, norm);
    if (offset >= 0)
        train__model_norm_backward(m, offset, x, d_y, m->working.d_x, share);
    else
        train__net_norm(n, NULL, m->working.d_x, m->working.d_x, d_y, layer, norm, share);
}

/* The gradient of what a block gave, from d_x: through its factor and the norm after it. All rows. */
static const void *from_residual(train_model *m, int64_t layer, train_layer_tensor norm, const void *given,
                                 int64_t tokens) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t offset = train_params_layer(m->params, layer, norm), share = train__net_share(n, tokens);
    const void *d = w->d_x;
    if (n->residual_scale < 1 || n->residual_scale > 1) {
        RAVEL_ASSERT(w->d_given && offset < 0);
        n->kernels->scale(n->device, w->d_given, w->d_x, n->residual_scale, share * n->hidden);
        d = w->d_given;
    } else if (offset >= 0) {
        clear(m, w->d_given, share * n->hidden);
        train__model_norm_backward(m, offset, given, w->d_x, w->d_given, share);
        d = w->d_given;
    }
    return train__net_enter(n, w->whole, d, tokens);
}

/* The norm before a block again, where it was not kept. */
static void normalise_again(const train_model *m, int64_t layer, train_layer_tensor norm, void *xn, const void *x,
                            int64_t share) {
    if (!kept_light(m) && train_params_layer(m->params, layer, norm) >= 0)
        train__net_norm(&m->net, xn, NULL, x, NULL, layer, norm, share);
}

/* The two halves of a dense block's backward. gate_up becomes its own gradient. */
static void dense_down(train_model *m, int64_t layer, const train__acts *a, const void *d_out, int64_t tokens) {
    const train__net *n = &m->net;
    void *d_h = m->working.d_h;
    train__net_project_input(n, d_h, d_out, train__dense(layer, TRAIN_DOWN), tokens);
    train__net_gate_backward(n, a->gate_up, kept_light(m) ? NULL : a->h, d_h, a->gate_up, tokens, n->ffn);
    train__net_project_weight(n, grad(m, layer, TRAIN_DOWN), d_out, a->h, train__dense(layer, TRAIN_DOWN), tokens);
}

static void dense_up(train_model *m, int64_t layer, const train__acts *a, const void *xn, void *d_x, int64_t tokens) {
    train__net_project_weight(&m->net, grad(m, layer, TRAIN_GATE), a->gate_up, xn, train__dense(layer, TRAIN_GATE),
                              tokens);
    train__net_project_input(&m->net, d_x, a->gate_up, train__dense(layer, TRAIN_GATE), tokens);
}

/* d_x: from the layer's output to x_mid. */
static void feed_forward_backward(train_model *m, const train__micro *mb, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = mb->ragged.tokens, share = train__net_share(n, tokens);
    int sparse = ravel_shape_has_experts(&n->shape, layer);
    const void *d_out = from_residual(m, layer, TRAIN_NORM_FED, a->fed, tokens), *xn;
    RAVEL_ASSERT(w->d_x && share > 0);
    if (sparse)
        train__model_experts_down(m, layer, a, d_out, tokens);
    else
        dense_down(m, layer, a, d_out, tokens);
    normalise_again(m, layer, TRAIN_NORM_OUT, a->xn_mid, a->x_mid, share);
    xn = train__net_enter(n, w->whole, train__net_input(n, a, TRAIN_NORM_OUT), tokens);
    if (sparse)
        train__model_experts_up(m, layer, a, xn, w->whole, tokens);
    else
        dense_up(m, layer, a, xn, w->whole, tokens);
    train__net_leave(n, w->y, w->whole, tokens);
    into_residual(m, layer, TRAIN_NORM_OUT, a->x_mid, w->y, share);
}

static void whole_attention_backward(train_model *m, train__micro *mb, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    train_attention attention = attention_of(m, mb, a);
    attention.d_o = w->d_o;
    attention.d_q = w->d_q;
    attention.d_k = w->d_k;
    attention.d_v = train__net_at(n, w->d_qkv, n->q_width + n->kv_width);
    attention.ld_dq = n->q_width;
    attention.ld_dk = n->kv_width;
    attention.ld_dv = n->qkv_width;
    if (train__micro_has_tree(mb))
        train__tree_attend_backward(m, mb, a, &attention);
    else
        n->kernels->attention_backward(n->device, &attention);
}

/* The gradient of q, or of k, in d_qkv: from after the norm over all heads to before it. */
static void whole_norm_backward(train_model *m, int64_t layer, const train__acts *a, train_layer_tensor which,
                                int64_t tokens) {
    const train__net *n = &m->net;
    train_norm norm = train__net_whole_norm(n, layer, a, which, tokens);
    void *part = train__net_at(n, m->working.d_qkv, which == TRAIN_K_NORM ? n->q_width : 0);
    norm.y = NULL;
    norm.d_y = part;
    norm.d_x = which == TRAIN_K_NORM ? m->working.d_k : m->working.d_q; /* which nothing needs any more */
    norm.d_weight = grad(m, layer, which);
    clear(m, norm.d_x, tokens * norm.width);
    n->kernels->rmsnorm_backward(n->device, &norm);
    train_rows rows = {.rows = tokens, .width = norm.width, .to = part, .from = norm.d_x, .ld_to = n->qkv_width};
    n->kernels->copy_rows(n->device, &rows);
}

/* d_o to d_qkv: attention, rotation, norms of q and k. */
static void attend_backward(train_model *m, train__micro *mb, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = mb->ragged.tokens;
    train_rope rope = train__net_rope(n, layer, a, mb->staged.positions, tokens);
    if (!kept_light(m)) train__net_rotate(n, layer, a, mb->staged.positions, tokens);
    if (mb->gaps || mb->cp.ranks > 1) {
        clear(m, w->d_q, tokens * n->q_width);
        clear(m, w->d_k, tokens * n->kv_width);
        clear(m, w->d_qkv, tokens * n->qkv_width);
    }
    if (mb->cp.ranks > 1 && !train__micro_has_tree(mb))
        (train__model_by_chunk(m) ? train__ring_chunks_backward : train__ring_backward)(m, mb, a);
    else
        whole_attention_backward(m, mb, a);
    rope.d_q = w->d_q;
    rope.d_k = w->d_k;
    rope.d_qkv = w->d_qkv;
    if (rope.q_weight) rope.d_q_weight = grad(m, layer, TRAIN_Q_NORM);
    if (rope.k_weight) rope.d_k_weight = grad(m, layer, TRAIN_K_NORM);
    RAVEL_ASSERT(!rope.q_weight == !rope.d_q_weight && !rope.k_weight == !rope.d_k_weight);
    n->kernels->rope_backward(n->device, &rope);
    if (n->shape.qk_norm != RAVEL_QK_NORM_WHOLE) return;
    whole_norm_backward(m, layer, a, TRAIN_Q_NORM, tokens);
    whole_norm_backward(m, layer, a, TRAIN_K_NORM, tokens);
}

/* d_x: from x_mid to the layer's input. */
static void attention_half_backward(train_model *m, train__micro *mb, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = mb->ragged.tokens, share = train__net_share(n, tokens);
    void *d_bias = grad(m, layer, TRAIN_Q_BIAS);
    const void *d_out = from_residual(m, layer, TRAIN_NORM_ATTENDED, a->attended, tokens), *xn;
    RAVEL_ASSERT(w->d_o && w->d_qkv && share > 0);
    train__net_project_input(n, w->d_o, d_out, train__dense(layer, TRAIN_O), tokens);
    train__net_project_weight(n, grad(m, layer, TRAIN_O), d_out, a->o, train__dense(layer, TRAIN_O), tokens);
    attend_backward(m, mb, layer, a);
    if (d_bias && !train__model_frozen(m))
        n->kernels->bias_backward(n->device, d_bias, w->d_qkv, tokens, n->qkv_width, n->qkv_width);
    normalise_again(m, layer, TRAIN_NORM_IN, a->xn, a->x, share);
    xn = train__net_enter(n, w->whole, train__net_input(n, a, TRAIN_NORM_IN), tokens);
    train__net_project_weight(n, grad(m, layer, TRAIN_Q), w->d_qkv, xn, train__dense(layer, TRAIN_Q), tokens);
    if (layer == 0 && train__model_frozen(m)) return; /* nothing below it is trained */
    train__net_project_input(n, w->whole, w->d_qkv, train__dense(layer, TRAIN_Q), tokens);
    train__net_leave(n, w->y, w->whole, tokens);
    into_residual(m, layer, TRAIN_NORM_IN, a->x, w->y, share);
}

void train__model_layers_backward(train_model *m, train__micro *mb) {
    const train__net *n = &m->net;
    int64_t first = m->params->part.first_layer, last = m->params->part.last_layer;
    size_t bytes = train__net_bytes(n, train__net_share(n, mb->ragged.tokens) * n->hidden);
    RAVEL_ASSERT(!m->options.inference && m->grads);
    RAVEL_ASSERT(first || mb->staged.order);
    n->kernels->phase(n->device, TRAIN_PHASE_BACKWARD);
    if (last < n->shape.layers) n->kernels->copy(n->device, m->working.d_x, acts_of(m, mb, last).x, bytes);
    for (int64_t layer = last - 1; layer >= first; layer--) {
        train__acts a = acts_of(m, mb, layer);
        prepare_backward(m, layer);
        recompute(m, mb, layer, a);
        feed_forward_backward(m, mb, layer, &a);
        attention_half_backward(m, mb, layer, &a);
        reduce(m, train_params_layer_unit(m->params, layer));
        if (train_params_expert_unit(m->params, layer) >= 0) reduce(m, train_params_expert_unit(m->params, layer));
    }
    if (first) {
        n->kernels->copy(n->device, acts_of(m, mb, first).x, m->working.d_x, bytes);
        return;
    }
    if (train__model_frozen(m)) return;
    if (train__model_sharded(m) && m->params->head != 0) train__units_open_grads(&m->units, 0);
    void *d_table = train__model_grad(m, m->params->embedding);
    train__net_scale(n, m->working.d_x, n->embedding_scale, train__net_share(n, mb->ragged.tokens) * n->hidden);
    const void *d_y = train__net_enter(n, m->working.whole, m->working.d_x, mb->ragged.tokens);
    n->kernels->embed_backward(n->device, &(train_embedding){.rows = mb->ragged.tokens,
                                                             .width = n->hidden,
                                                             .first = n->first_token,
                                                             .count = n->shape.vocab,
                                                             .ids = mb->staged.tokens,
                                                             .d_y = d_y,
                                                             .d_table = d_table,
                                                             .order = mb->staged.order,
                                                             .ordered = mb->ordered});
    reduce(m, 0);
}
