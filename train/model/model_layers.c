/* The layers of the model on the batch that was prepared.
 *
 * Forward keeps of each layer what backward can't get more cheaply: its input x, qkv before norm and rotation, the
 * attention's output and log-sum-exp, x_mid between the halves, gate_up before the swiglu. Normalised rows, rotated q
 * and k and the swiglu's output are made again: reading them from memory would cost about as much as computing them.
 * With `recompute`, only x is kept and everything else of one layer at a time is made again. */
#include "train/model/model_internal.h"

#include "train/kernels/host.h"

train__acts train__model_acts(const train_model *m, int64_t layer) {
    const train__layout *l = &m->layout;
    train_real *rest = m->kept + l->layers_x * l->x_size + (l->layers_rest > 1 ? layer : 0) * l->rest_size;
    return (train__acts){.x = m->kept + (l->layers_x > 1 ? layer : 0) * l->x_size,
                         .qkv = rest + l->qkv,
                         .o = rest + l->o,
                         .lse = rest + l->lse,
                         .x_mid = rest + l->x_mid,
                         .gate_up = rest + l->gate_up};
}

/* The shared part of the working block, cut anew for each half of a layer. */
typedef struct cutter {
    train_real *base;
    int64_t used;
} cutter;

static train_real *cut(cutter *c, int64_t elements) {
    train_real *part = c->base + c->used;
    c->used += train__round_up(elements, 16);
    return part;
}

static void clear(const train_model *m, train_real *block, int64_t elements) {
    m->net.kernels->zero(m->net.device, block, (size_t)elements * sizeof *block);
}

static const train_real *norm_weight(const train_model *m, int64_t layer, train_layer_tensor which) {
    if (layer == m->net.shape.layers) return m->weights + train_params_norm(m->params);
    return train__net_weight(&m->net, layer, which);
}

static train_real *grad(const train_model *m, int64_t layer, train_layer_tensor which) {
    int64_t offset = train_params_layer(m->params, layer, which);
    return offset < 0 ? NULL : m->grads + offset;
}

static train_attention attention_of(const train_model *m, const train__acts *a, const train_real *q,
                                    const train_real *k) {
    const train__net *n = &m->net;
    return (train_attention){.batch = m->ragged,
                             .heads = (int32_t)n->shape.heads,
                             .kv_heads = (int32_t)n->shape.kv_heads,
                             .head_dim = (int32_t)n->shape.head_dim,
                             .scale = n->scale,
                             .q = q,
                             .k = k,
                             .v = a->qkv + n->q_width + n->kv_width,
                             .o = a->o,
                             .lse = a->lse,
                             .ld_q = n->q_width,
                             .ld_k = n->kv_width,
                             .ld_v = n->qkv_width};
}

/* ---- forward -------------------------------------------------------------------------------------------- */

/* xn to y: the attention half. */
static void attend(train_model *m, int64_t layer, const train__acts *a, train_real *y, const train_real *xn) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens;
    cutter c = {m->working + m->layout.shared, 0};
    train_real *q = cut(&c, tokens * n->q_width), *k = cut(&c, tokens * n->kv_width);
    train__net_qkv(n, layer, a->qkv, xn, tokens);
    train_rope rope = train__net_rope(n, layer, q, k, a->qkv, m->ragged.positions, tokens);
    n->kernels->rope(n->device, &rope);
    if (m->gaps) clear(m, a->o, tokens * n->q_width);
    train_attention attention = attention_of(m, a, q, k);
    n->kernels->attention(n->device, &attention);
    train__net_project(n, layer, y, a->o, tokens);
}

void train__model_layers(train_model *m) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens, layers = n->shape.layers;
    train_real *xn = m->working + m->layout.xn, *y = m->working + m->layout.y, *h = m->working + m->layout.shared;
    train__acts a = train__model_acts(m, 0);
    n->kernels->copy_rows(n->device, &(train_rows){.rows = tokens,
                                                   .width = n->hidden,
                                                   .to = a.x,
                                                   .from = m->weights + train_params_embedding(m->params),
                                                   .from_ids = m->tables.tokens});
    train__net_norm(n, xn, NULL, a.x, NULL, norm_weight(m, 0, TRAIN_NORM_IN), tokens);
    for (int64_t layer = 0; layer < layers; layer++) {
        a = train__model_acts(m, layer);
        train_real *next = train__model_acts(m, layer + 1).x;
        attend(m, layer, &a, y, xn);
        train__net_norm(n, xn, a.x_mid, a.x, y, norm_weight(m, layer, TRAIN_NORM_OUT), tokens);
        train__net_feed_forward(n, layer, y, a.gate_up, h, xn, tokens);
        train__net_norm(n, xn, next, a.x_mid, y, norm_weight(m, layer + 1, TRAIN_NORM_IN), tokens);
    }
    train_rows pick = {.rows = m->scored, .width = n->hidden, .from_ids = m->tables.rows};
    pick.from = train__model_acts(m, layers).x;
    pick.to = m->kept + m->layout.head_x;
    n->kernels->copy_rows(n->device, &pick);
    pick.from = xn;
    pick.to = m->kept + m->layout.head_xn;
    n->kernels->copy_rows(n->device, &pick);
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* A layer's kept activations again, from its x; without the last product, whose result nobody needs. */
static void recompute(train_model *m, int64_t layer, const train__acts *a) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens;
    train_real *xn = m->working + m->layout.xn, *y = m->working + m->layout.y;
    train__net_norm(n, xn, NULL, a->x, NULL, norm_weight(m, layer, TRAIN_NORM_IN), tokens);
    attend(m, layer, a, y, xn);
    train__net_norm(n, xn, a->x_mid, a->x, y, norm_weight(m, layer, TRAIN_NORM_OUT), tokens);
    train__net_linear(n, a->gate_up, xn, train__net_weight(n, layer, TRAIN_GATE), tokens, 2 * n->ffn, n->hidden);
}

/* d_x: from the layer's output to x_mid. gate_up becomes its own gradient. */
static void feed_forward_backward(train_model *m, int64_t layer, const train__acts *a, train_real *d_x) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens;
    train_real *xn = m->working + m->layout.xn, *y = m->working + m->layout.y, *d_gate_up = a->gate_up;
    cutter c = {m->working + m->layout.shared, 0};
    train_real *h = cut(&c, tokens * n->ffn), *d_h = cut(&c, tokens * n->ffn);
    const train_real *weight = norm_weight(m, layer, TRAIN_NORM_OUT);
    train__net_linear_input(n, d_h, d_x, train__net_weight(n, layer, TRAIN_DOWN), tokens, n->hidden, n->ffn);
    n->kernels->swiglu_backward(n->device, d_gate_up, h, d_h, a->gate_up, tokens, n->ffn);
    train__net_linear_weight(n, grad(m, layer, TRAIN_DOWN), d_x, h, tokens, n->hidden, n->ffn);
    train__net_norm(n, xn, NULL, a->x_mid, NULL, weight, tokens);
    train__net_linear_weight(n, grad(m, layer, TRAIN_GATE), d_gate_up, xn, tokens, 2 * n->ffn, n->hidden);
    train__net_linear_input(n, y, d_gate_up, train__net_weight(n, layer, TRAIN_GATE), tokens, 2 * n->ffn, n->hidden);
    n->kernels->rmsnorm_backward(n->device, d_x, grad(m, layer, TRAIN_NORM_OUT), y, a->x_mid, weight, n->eps, tokens,
                                 n->hidden);
}

/* d_o to d_qkv: attention, rotation, norms of q and k. */
static void attend_backward(train_model *m, int64_t layer, const train__acts *a, cutter *c, const train_real *d_o,
                            train_real *d_qkv) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens;
    train_real *q = cut(c, tokens * n->q_width), *k = cut(c, tokens * n->kv_width);
    train_real *d_q = cut(c, tokens * n->q_width), *d_k = cut(c, tokens * n->kv_width);
    train_rope rope = train__net_rope(n, layer, q, k, a->qkv, m->ragged.positions, tokens);
    n->kernels->rope(n->device, &rope);
    if (m->gaps) {
        clear(m, d_q, tokens * n->q_width);
        clear(m, d_k, tokens * n->kv_width);
        clear(m, d_qkv, tokens * n->qkv_width);
    }
    train_attention attention = attention_of(m, a, q, k);
    attention.d_o = d_o;
    attention.d_q = d_q;
    attention.d_k = d_k;
    attention.d_v = d_qkv + n->q_width + n->kv_width;
    attention.ld_dq = n->q_width;
    attention.ld_dk = n->kv_width;
    attention.ld_dv = n->qkv_width;
    n->kernels->attention_backward(n->device, &attention);
    rope.d_q = d_q;
    rope.d_k = d_k;
    rope.d_qkv = d_qkv;
    rope.d_q_weight = grad(m, layer, TRAIN_Q_NORM);
    rope.d_k_weight = grad(m, layer, TRAIN_K_NORM);
    n->kernels->rope_backward(n->device, &rope);
}

/* d_x: from x_mid to the layer's input. */
static void attention_half_backward(train_model *m, int64_t layer, const train__acts *a, train_real *d_x) {
    const train__net *n = &m->net;
    int64_t tokens = m->ragged.tokens;
    train_real *xn = m->working + m->layout.xn, *y = m->working + m->layout.y;
    cutter c = {m->working + m->layout.shared, 0};
    train_real *d_o = cut(&c, tokens * n->q_width), *d_qkv = cut(&c, tokens * n->qkv_width);
    const train_real *weight = norm_weight(m, layer, TRAIN_NORM_IN);
    train__net_linear_input(n, d_o, d_x, train__net_weight(n, layer, TRAIN_O), tokens, n->hidden, n->q_width);
    train__net_linear_weight(n, grad(m, layer, TRAIN_O), d_x, a->o, tokens, n->hidden, n->q_width);
    attend_backward(m, layer, a, &c, d_o, d_qkv);
    train_real *d_bias = grad(m, layer, TRAIN_Q_BIAS);
    if (d_bias) n->kernels->bias_backward(n->device, d_bias, d_qkv, tokens, n->qkv_width, n->qkv_width);
    train__net_norm(n, xn, NULL, a->x, NULL, weight, tokens);
    train__net_linear_weight(n, grad(m, layer, TRAIN_Q), d_qkv, xn, tokens, n->qkv_width, n->hidden);
    train__net_linear_input(n, y, d_qkv, train__net_weight(n, layer, TRAIN_Q), tokens, n->qkv_width, n->hidden);
    n->kernels->rmsnorm_backward(n->device, d_x, grad(m, layer, TRAIN_NORM_IN), y, a->x, weight, n->eps, tokens,
                                 n->hidden);
}

void train__model_layers_backward(train_model *m) {
    const train__net *n = &m->net;
    train_real *d_x = m->working + m->layout.d_x;
    for (int64_t layer = n->shape.layers - 1; layer >= 0; layer--) {
        train__acts a = train__model_acts(m, layer);
        if (m->options.recompute && layer < n->shape.layers - 1) recompute(m, layer, &a); /* the last is still there */
        feed_forward_backward(m, layer, &a, d_x);
        attention_half_backward(m, layer, &a, d_x);
    }
    n->kernels->scatter_add(n->device, m->grads + train_params_embedding(m->params), d_x, m->tables.tokens,
                            m->ragged.tokens, n->hidden);
}
