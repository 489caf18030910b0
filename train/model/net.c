#include "train/model/net.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <math.h>

/* Widths agree with the shape and with the groups of the table that are one matrix to the model. */
static int net_ok(const train__net *n) {
    const ravel_shape *s = &n->shape;
    return n->hidden > 0 && n->ffn > 0 && n->q_width == s->heads * s->head_dim && s->heads % s->kv_heads == 0 &&
           n->kv_width == s->kv_heads * s->head_dim && n->qkv_width == n->q_width + 2 * n->kv_width &&
           s->head_dim % 2 == 0 && n->first_token >= 0 && s->vocab > 0;
}

void train__net_init(train__net *net, const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                     const train_params *params) {
    *net = (train__net){.kernels = kernels, .device = device, .params = params};
    (void)train_slice_shape(shape, &params->part, &net->shape, NULL); /* train_params_create has checked it */
    net->first_token = train_slice_vocab(shape, &params->part);
    shape = &net->shape;
    net->types = kernels->types;
    net->hidden = shape->hidden;
    net->ffn = shape->ffn;
    net->q_width = shape->heads * shape->head_dim;
    net->kv_width = shape->kv_heads * shape->head_dim;
    net->qkv_width = net->q_width + 2 * net->kv_width;
    net->eps = (train_real)shape->norm_eps;
    net->scale = (train_real)(1 / sqrt((double)shape->head_dim));
    net->window = (int32_t)shape->window;
    TRAIN_ASSERT(net_ok(net));
}

/* The angle of pair i per position: theta^(-2i / head_dim), stretched as the shape says. */
static double frequency(const ravel_shape *s, int64_t i) {
    double plain = pow(s->rope_theta, -2 * (double)i / (double)s->head_dim);
    if (s->rope == RAVEL_ROPE_PLAIN) return plain;
    if (s->rope == RAVEL_ROPE_LINEAR) return plain / s->rope_factor;
    double turns = (double)s->rope_positions * plain / 6.283185307179586476925; /* within the first training */
    if (turns < s->rope_low) return plain / s->rope_factor;
    if (turns > s->rope_high) return plain;
    double smooth = (turns - s->rope_low) / (s->rope_high - s->rope_low);
    return (1 - smooth) * plain / s->rope_factor + smooth * plain;
}

void train__net_rope_tables(const train__net *net, train_real *cosine, train_real *sine, int64_t positions,
                            train_real *row) {
    int64_t half = net->shape.head_dim / 2;
    size_t bytes = (size_t)half * sizeof *row;
    TRAIN_ASSERT(half > 0 && positions > 0 && cosine && sine && row);
    TRAIN_ASSERT(net->shape.rope != RAVEL_ROPE_OTHER);
    for (int64_t p = 0; p < positions; p++) {
        for (int64_t i = 0; i < half; i++) row[i] = (train_real)cos((double)p * frequency(&net->shape, i));
        net->kernels->upload(net->device, cosine + p * half, row, bytes);
        for (int64_t i = 0; i < half; i++) row[i] = (train_real)sin((double)p * frequency(&net->shape, i));
        net->kernels->upload(net->device, sine + p * half, row, bytes);
    }
}

train_limits train__net_limits(const train__net *net, int64_t tokens, int64_t longest, int64_t samples) {
    return (train_limits){.tokens = tokens,
                          .longest = longest,
                          .samples = samples,
                          .width = train__max(train__max(2 * net->ffn, net->qkv_width), net->hidden),
                          .hidden = net->hidden,
                          .heads = net->shape.heads,
                          .kv_heads = net->shape.kv_heads,
                          .head_dim = net->shape.head_dim,
                          .vocab = net->shape.vocab};
}

const void *train__net_weight(const train__net *net, int64_t offset) {
    TRAIN_ASSERT(offset < net->params->elements && (net->units || net->weights));
    if (offset < 0) return NULL;
    return net->units ? train__units_weight(net->units, offset) : train__at(net->weights, net->types.weight, offset);
}

const void *train__net_layer_weight(const train__net *net, int64_t layer, train_layer_tensor which) {
    if (layer == net->shape.layers) {
        TRAIN_ASSERT(which == TRAIN_NORM_IN);
        return train__net_weight(net, net->params->norm);
    }
    return train__net_weight(net, train_params_layer(net->params, layer, which));
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

/* Between products, so that sharded weights and gradients, and the caller's messages, move while a layer runs. */
static void progress(const train__net *net) {
    if (net->units) train__units_progress(net->units);
    if (net->progress) net->progress(net->progress_user);
}

/* c = a b or, for a gradient, c += a b; the sizes, pointers and transpositions are the caller's. */
static void multiply(const train__net *net, train_matmul x, int32_t b_type, int32_t c_type) {
    TRAIN_ASSERT(x.m >= 0 && x.n > 0 && x.k >= 0 && x.a && x.b && x.c);
    progress(net);
    x.a_type = net->types.activation;
    x.b_type = b_type;
    x.c_type = c_type;
    net->kernels->matmul(net->device, &x);
}

void train__net_linear(const train__net *net, void *y, const void *x, const void *w, int64_t rows, int64_t n,
                       int64_t k) {
    train_matmul product = {.m = rows, .n = n, .k = k, .a = x, .b = w, .c = y, .trans_b = 1};
    product.batch_invariant = net->batch_invariant;
    multiply(net, product, net->types.weight, net->types.activation);
}

void train__net_linear_input(const train__net *net, void *d_x, const void *d_y, const void *w, int64_t rows, int64_t n,
                             int64_t k) {
    train_matmul product = {.m = rows, .n = k, .k = n, .a = d_y, .b = w, .c = d_x};
    multiply(net, product, net->types.weight, net->types.activation);
}

void train__net_linear_weight(const train__net *net, void *d_w, const void *d_y, const void *x, int64_t rows, int64_t n,
                              int64_t k) {
    train_matmul product = {.m = n, .n = k, .k = rows, .a = d_y, .b = x, .c = d_w, .trans_a = 1, .add = 1};
    multiply(net, product, net->types.activation, net->types.grad);
}

void train__net_embed(const train__net *net, void *x, void *whole, const int32_t *tokens, const int32_t *picks,
                      int64_t rows) {
    net->kernels->embed(net->device, &(train_embedding){.rows = rows,
                                                        .width = net->hidden,
                                                        .first = net->first_token,
                                                        .count = net->shape.vocab,
                                                        .ids = tokens,
                                                        .picks = picks,
                                                        .table = train__net_weight(net, net->params->embedding),
                                                        .y = whole});
    train__net_leave(net, x, whole, rows);
}

void train__net_sum(const train__net *net, void *x, int64_t count) {
    TRAIN_ASSERT(count >= 0 && x);
    if (net->tp) train__link_sum(net->tp, x, count, net->types.activation);
}

const void *train__net_enter(const train__net *net, void *whole, const void *x, int64_t rows) {
    TRAIN_ASSERT(rows > 0 && x && (!net->sequence || (net->tp->ranks > 1 && whole != x)));
    if (!net->sequence) return x;
    train__link_gather(net->tp, x, whole, train__net_share(net, rows) * net->hidden, net->types.activation);
    return whole;
}

void train__net_leave(const train__net *net, void *y, void *whole, int64_t rows) {
    if (!net->sequence) {
        TRAIN_ASSERT(y == whole);
        train__net_sum(net, y, rows * net->hidden);
        return;
    }
    int64_t share = train__net_share(net, rows), all = share * net->tp->ranks;
    TRAIN_ASSERT(all >= rows && all - rows < net->tp->ranks && y != whole);
    if (all > rows)
        net->kernels->zero(net->device, train__net_at(net, whole, rows * net->hidden),
                           train__net_bytes(net, (all - rows) * net->hidden));
    train__link_scatter(net->tp, whole, y, share * net->hidden, net->types.activation);
}

void train__net_norm(const train__net *net, void *y, void *sum, const void *x, const void *add, int64_t layer,
                     train_layer_tensor which, int64_t rows) {
    const void *weight = train__net_layer_weight(net, layer, which);
    TRAIN_ASSERT(rows >= 0 && x && !add == !sum && (y || !weight));
    net->kernels->rmsnorm(net->device, &(train_norm){.rows = rows,
                                                     .width = net->hidden,
                                                     .eps = net->eps,
                                                     .x = x,
                                                     .add = add,
                                                     .sum = sum,
                                                     .weight = weight,
                                                     .y = weight ? y : NULL});
}

train_rope train__net_rope(const train__net *net, int64_t layer, void *q, void *k, const void *qkv,
                           const int32_t *positions, int64_t tokens) {
    return (train_rope){.tokens = tokens,
                        .heads = (int32_t)net->shape.heads,
                        .kv_heads = (int32_t)net->shape.kv_heads,
                        .head_dim = (int32_t)net->shape.head_dim,
                        .eps = net->eps,
                        .qkv = qkv,
                        .q_weight = train__net_layer_weight(net, layer, TRAIN_Q_NORM),
                        .k_weight = train__net_layer_weight(net, layer, TRAIN_K_NORM),
                        .cosine = net->cosine,
                        .sine = net->sine,
                        .positions = positions,
                        .q = q,
                        .k = k};
}

train_attention train__net_attention(const train__net *net, const train__acts *a) {
    TRAIN_ASSERT(a->q && a->k && a->qkv && a->o && a->lse);
    return (train_attention){.heads = (int32_t)net->shape.heads,
                             .kv_heads = (int32_t)net->shape.kv_heads,
                             .head_dim = (int32_t)net->shape.head_dim,
                             .scale = net->scale,
                             .window = net->window,
                             .q = a->q,
                             .k = a->k,
                             .v = train__net_at(net, a->qkv, net->q_width + net->kv_width),
                             .o = a->o,
                             .lse = a->lse,
                             .ld_q = net->q_width,
                             .ld_k = net->kv_width,
                             .ld_v = net->qkv_width};
}

/* ---- the layer ------------------------------------------------------------------------------------------ */

void train__net_attend(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *of) {
    const train_kernels *k = net->kernels;
    const void *bias = train__net_layer_weight(net, layer, TRAIN_Q_BIAS);
    int64_t rows = of->rows;
    TRAIN_ASSERT(of->attend && of->positions && a->qkv && a->q && a->k && a->o);
    const void *xn = train__net_enter(net, a->whole, a->xn, rows);
    train__net_linear(net, a->qkv, xn, train__net_layer_weight(net, layer, TRAIN_Q), rows, net->qkv_width, net->hidden);
    if (bias) k->bias(net->device, a->qkv, bias, rows, net->qkv_width, net->qkv_width);
    train_rope rope = train__net_rope(net, layer, a->q, a->k, a->qkv, of->positions, rows);
    k->rope(net->device, &rope);
    of->attend(of->user, layer, a);
}

void train__net_layer(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *of) {
    const train_kernels *k = net->kernels;
    int64_t rows = of->rows, share = train__net_share(net, rows);
    TRAIN_ASSERT(share > 0 && share <= rows && a->x && a->x_mid && a->gate_up);
    TRAIN_ASSERT(rows > 0 && layer >= net->params->part.first_layer && layer < net->params->part.last_layer);
    train__net_attend(net, layer, a, of);
    train__net_linear(net, a->whole, a->o, train__net_layer_weight(net, layer, TRAIN_O), rows, net->hidden,
                      net->q_width);
    train__net_leave(net, a->y, a->whole, rows);
    train__net_norm(net, a->xn_mid, a->x_mid, a->x, a->y, layer, TRAIN_NORM_OUT, share);
    const void *xn = train__net_enter(net, a->whole, a->xn_mid, rows);
    train__net_linear(net, a->gate_up, xn, train__net_layer_weight(net, layer, TRAIN_GATE), rows, 2 * net->ffn,
                      net->hidden);
    if (!a->next) return;
    k->swiglu(net->device, a->h, a->gate_up, rows, net->ffn);
    train__net_linear(net, a->whole, a->h, train__net_layer_weight(net, layer, TRAIN_DOWN), rows, net->hidden,
                      net->ffn);
    train__net_leave(net, a->y, a->whole, rows);
    train__net_norm(net, a->xn_next, a->next, a->x_mid, a->y, layer + 1, TRAIN_NORM_IN, share);
}
