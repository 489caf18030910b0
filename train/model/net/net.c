#include "train/model/net/net.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "train/model/hf/arch.h"
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
    net->feed_width = shape->experts ? shape->experts_active * shape->expert_ffn : net->ffn;
    if (shape->experts && shape->dense_layers) net->feed_width = train__max(net->feed_width, net->ffn);
    net->q_width = shape->heads * shape->head_dim;
    net->kv_width = shape->kv_heads * shape->head_dim;
    net->qkv_width = net->q_width + 2 * net->kv_width;
    net->eps = (train_real)shape->norm_eps;
    net->family = ravel__shape_family(shape);
    net->scale = (train_real)(shape->attention_scale > 0 ? shape->attention_scale : 1 / sqrt((double)shape->head_dim));
    net->shift = net->family->unit_norms ? 1 : 0;
    net->embedding_scale = shape->embedding_scale > 0 ? shape->embedding_scale : 1;
    net->residual_scale = shape->residual_scale > 0 ? shape->residual_scale : 1;
    net->logits_scale = shape->logits_scale > 0 ? 1 / shape->logits_scale : 1;
    net->window = shape->window_every ? 0 : (int32_t)shape->window;
    RAVEL_ASSERT(net_ok(net));
}

int32_t train__net_rope_kinds(const train__net *net, int64_t positions) {
    const ravel_shape *s = &net->shape;
    int lengths = ravel__shape_is_long(s, positions) && !s->rope_always;
    return s->rope_every || s->rope_local > 0 || lengths ? 2 : 1;
}

int32_t train__net_first_position(const train__net *net, int64_t length) {
    return ravel__shape_is_long(&net->shape, length) && !net->shape.rope_always ? (int32_t)net->positions : 0;
}

/* The second kind: layers without rope, whose angles are 0, or those with a window and a base of their own. That of
 * sequences is chosen by their positions. */
static int32_t rope_kind(const train__net *net, int64_t layer) {
    const ravel_shape *s = &net->shape;
    return !train_arch_has_rope(s, layer) || (s->rope_local > 0 && train_arch_window(s, layer));
}

int32_t train__net_window(const train__net *net, int64_t layer) {
    return (int32_t)train_arch_window(&net->shape, layer);
}

/* The angle of pair i per position. */
static double frequency(const ravel_shape *s, int32_t kind, int64_t i) {
    if (2 * i >= ravel__shape_rotated(s) || (kind && s->rope_every)) return 0;
    if (kind && s->rope_local > 0) return ravel__shape_plain_frequency(s, s->rope_local, i);
    return ravel__shape_frequency(s, kind || s->rope_always > 0, i);
}

/* What its cosine and sine are multiplied with. */
static double amplitude(const ravel_shape *s, int32_t kind, int64_t i) {
    int plain = 2 * i >= ravel__shape_rotated(s) || (kind && (s->rope_every || s->rope_local > 0));
    return plain || s->rope_attention == 0 ? 1 : s->rope_attention;
}

void train__net_rope_tables(train__net *net, train_real *cosine, train_real *sine, int64_t positions, train_real *row) {
    int64_t half = net->shape.head_dim / 2;
    size_t bytes = (size_t)half * sizeof *row;
    RAVEL_ASSERT(half > 0 && positions > 0 && cosine && sine && row);
    RAVEL_ASSERT(net->shape.rope != RAVEL_ROPE_OTHER);
    net->cosine = cosine;
    net->sine = sine;
    net->positions = positions;
    for (int64_t r = 0; r < train__net_rope_kinds(net, positions) * positions; r++) {
        const ravel_shape *s = &net->shape;
        int32_t kind = r >= positions;
        double p = (double)(r - kind * positions);
        for (int64_t i = 0; i < half; i++)
            row[i] = (train_real)(cos(p * frequency(s, kind, i)) * amplitude(s, kind, i));
        net->kernels->upload(net->device, cosine + r * half, row, bytes);
        for (int64_t i = 0; i < half; i++)
            row[i] = (train_real)(sin(p * frequency(s, kind, i)) * amplitude(s, kind, i));
        net->kernels->upload(net->device, sine + r * half, row, bytes);
    }
}

train_limits train__net_limits(const train__net *net, int64_t tokens, int64_t longest, int64_t samples) {
    int64_t adapted = TRAIN__JOINED * net->adapter.rank;
    int64_t feed = train__max(net->shape.experts, 2 * net->shape.expert_ffn);
    if (!net->shape.experts || net->shape.dense_layers) feed = train__max(feed, 2 * net->ffn);
    return (train_limits){.tokens = tokens,
                          .pairs = net->shape.experts ? train__net_pairs(net, tokens) : 0,
                          .longest = longest,
                          .samples = samples,
                          .width = train__max(train__max(feed, net->qkv_width), train__max(net->hidden, adapted)),
                          .hidden = net->hidden,
                          .heads = net->shape.heads,
                          .kv_heads = net->shape.kv_heads,
                          .head_dim = net->shape.head_dim,
                          .rotated = ravel__shape_rotated(&net->shape),
                          .vocab = net->shape.vocab};
}

const void *train__net_weight(const train__net *net, int64_t offset) {
    RAVEL_ASSERT(offset < net->params->elements && (net->units || net->weights || net->places));
    if (offset < 0) return NULL;
    if (net->places) {
        int64_t i = train_params_tensor_at(net->params, offset);
        return train__at(net->places[i], net->types.weight, offset - net->params->tensors[i].offset);
    }
    return net->units ? train__units_weight(net->units, offset) : train__at(net->weights, net->types.weight, offset);
}

const void *train__net_layer_weight(const train__net *net, int64_t layer, train_layer_tensor which) {
    if (layer == net->shape.layers) {
        RAVEL_ASSERT(which == TRAIN_NORM_IN);
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
void train__net_multiply(const train__net *net, train_matmul x, int32_t b_type, int32_t c_type) {
    RAVEL_ASSERT(x.m >= 0 && x.n > 0 && x.k >= 0 && x.a && x.b && x.c);
    progress(net);
    x.a_type = net->types.activation;
    x.b_type = b_type;
    x.c_type = c_type;
    net->kernels->matmul(net->device, &x);
}

/* A matrix as the products with it: one or, where tensors stay in their files, one for each tensor of it, whose rows
 * may be parts of longer ones. */
typedef struct matrix_part {
    const void *data;
    int64_t column, width, stride; /* rows of the matrix: columns of y */
} matrix_part;

static int next_part(const train__net *net, int64_t offset, int64_t n, matrix_part *p) {
    p->column += p->width;
    if (p->column == n) return 0;
    if (!net->places) {
        *p = (matrix_part){.data = train__net_weight(net, offset), .width = n};
        return 1;
    }
    int64_t i = train_params_tensor_at(net->params, offset);
    for (int64_t before = 0; before < p->column; i++) before += net->params->tensors[i].dims[0];
    const train_tensor *t = &net->params->tensors[i];
    p->data = net->places[i];
    p->width = t->dims[0];
    p->stride = t->whole[1];
    RAVEL_ASSERT(p->column + p->width <= n);
    return 1;
}

void train__net_linear(const train__net *net, void *y, const void *x, int64_t offset, int64_t rows, int64_t n,
                       int64_t k) {
    for (matrix_part p = {NULL, 0, 0, 0}; next_part(net, offset, n, &p);) {
        train_matmul product = {.m = rows, .n = p.width, .k = k, .a = x, .b = p.data, .ldc = n, .trans_b = 1};
        product.c = train__net_at(net, y, p.column);
        product.ldb = p.stride;
        product.batch_invariant = net->batch_invariant;
        train__net_multiply(net, product, net->types.weight, net->types.activation);
    }
}

void train__net_linear_input(const train__net *net, void *d_x, const void *d_y, int64_t offset, int64_t rows, int64_t n,
                             int64_t k) {
    for (matrix_part p = {NULL, 0, 0, 0}; next_part(net, offset, n, &p);) {
        train_matmul product = {.m = rows, .n = k, .k = p.width, .b = p.data, .c = d_x, .lda = n, .add = p.column > 0};
        product.a = train__net_at(net, d_y, p.column);
        product.ldb = p.stride;
        train__net_multiply(net, product, net->types.weight, net->types.activation);
    }
}

void train__net_linear_weight(const train__net *net, void *d_w, const void *d_y, const void *x, int64_t rows, int64_t n,
                              int64_t k) {
    train_matmul product = {.m = n, .n = k, .k = rows, .a = d_y, .b = x, .c = d_w, .trans_a = 1, .add = 1};
    train__net_multiply(net, product, net->types.activation, net->types.grad);
}

/* Of q k v: query heads, and key heads twice. */
int train__net_matrix(const train__net *net, const train__matrix *m, int64_t *n, int64_t *k,
                      int64_t widths[TRAIN__JOINED]) {
    const int64_t ffn = m->expert < 0 ? net->ffn : net->shape.expert_ffn;
    const int gate = m->which == TRAIN_GATE;
    RAVEL_ASSERT(gate || m->which == TRAIN_DOWN || (m->expert < 0 && (m->which == TRAIN_Q || m->which == TRAIN_O)));
    *n = m->which == TRAIN_Q ? net->qkv_width : gate ? 2 * ffn : net->hidden;
    *k = m->which == TRAIN_O ? net->q_width : m->which == TRAIN_DOWN ? ffn : net->hidden;
    widths[0] = m->which == TRAIN_Q ? net->q_width : gate ? ffn : *n;
    widths[1] = gate ? ffn : net->kv_width;
    widths[2] = net->kv_width;
    return m->which == TRAIN_Q ? 3 : gate ? 2 : 1;
}

static int64_t matrix_at(const train__net *net, const train__matrix *m) {
    RAVEL_ASSERT(m->expert < net->params->expert_count || m->expert < 0);
    return train_params_layer(net->params, m->layer, m->which) +
           (m->expert > 0 ? m->expert * net->params->expert_stride : 0);
}

void train__net_project(const train__net *net, void *y, const void *x, train__matrix m, int64_t rows) {
    int64_t n, k, widths[TRAIN__JOINED];
    (void)train__net_matrix(net, &m, &n, &k, widths);
    train__net_linear(net, y, x, matrix_at(net, &m), rows, n, k);
    if (net->adapter.weights || net->adapter.run_count) train__adapter_project(net, y, x, &m, rows);
}

void train__net_project_input(const train__net *net, void *d_x, const void *d_y, train__matrix m, int64_t rows) {
    int64_t n, k, widths[TRAIN__JOINED];
    (void)train__net_matrix(net, &m, &n, &k, widths);
    train__net_linear_input(net, d_x, d_y, matrix_at(net, &m), rows, n, k);
    if (net->adapter.weights) train__adapter_input(net, d_x, d_y, &m, rows);
}

void train__net_project_weight(const train__net *net, void *d_w, const void *d_y, const void *x, train__matrix m,
                               int64_t rows) {
    int64_t n, k, widths[TRAIN__JOINED];
    if (net->adapter.params) {
        train__adapter_weight(net, d_y, x, &m, rows);
        return;
    }
    RAVEL_ASSERT(m.layer >= 0 && d_w);
    (void)train__net_matrix(net, &m, &n, &k, widths);
    if (m.expert > 0) d_w = train__at(d_w, net->types.grad, m.expert * net->params->expert_stride);
    train__net_linear_weight(net, d_w, d_y, x, rows, n, k);
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
    train__net_scale(net, x, net->embedding_scale, train__net_share(net, rows) * net->hidden);
}

void train__net_scale(const train__net *net, void *y, double by, int64_t count) {
    RAVEL_ASSERT(y && by > 0 && count >= 0);
    if (by < 1 || by > 1) net->kernels->scale(net->device, y, y, by, count);
}

void train__net_sum(const train__net *net, void *x, int64_t count) {
    RAVEL_ASSERT(count >= 0 && x);
    if (net->tp) train__link_sum(net->tp, x, count, net->types.activation);
}

const void *train__net_enter(const train__net *net, void *whole, const void *x, int64_t rows) {
    RAVEL_ASSERT(rows > 0 && x && (!net->sequence || (net->tp->ranks > 1 && whole != x)));
    if (!net->sequence) return x;
    train__link_gather(net->tp, x, whole, train__net_share(net, rows) * net->hidden, net->types.activation);
    return whole;
}

void train__net_leave(const train__net *net, void *y, void *whole, int64_t rows) {
    if (!net->sequence) {
        RAVEL_ASSERT(y == whole);
        train__net_sum(net, y, rows * net->hidden);
        return;
    }
    int64_t share = train__net_share(net, rows), all = share * net->tp->ranks;
    RAVEL_ASSERT(all >= rows && all - rows < net->tp->ranks && y != whole);
    if (all > rows)
        net->kernels->zero(net->device, train__net_at(net, whole, rows * net->hidden),
                           train__net_bytes(net, (all - rows) * net->hidden));
    train__link_scatter(net->tp, whole, y, share * net->hidden, net->types.activation);
}

void train__net_norm(const train__net *net, void *y, void *sum, const void *x, const void *add, int64_t layer,
                     train_layer_tensor which, int64_t rows) {
    const void *weight = train__net_layer_weight(net, layer, which);
    RAVEL_ASSERT(rows >= 0 && x && !add == !sum && (y || !weight));
    net->kernels->rmsnorm(net->device, &(train_norm){.rows = rows,
                                                     .width = net->hidden,
                                                     .eps = net->eps,
                                                     .shift = net->shift,
                                                     .x = x,
                                                     .add = add,
                                                     .sum = sum,
                                                     .weight = weight,
                                                     .y = weight ? y : NULL});
}

train_norm train__net_whole_norm(const train__net *net, int64_t layer, const train__acts *a, train_layer_tensor which,
                                 int64_t rows) {
    int64_t first = which == TRAIN_K_NORM ? net->q_width : 0;
    RAVEL_ASSERT(a->normed && net->shape.qk_norm == RAVEL_QK_NORM_WHOLE);
    return (train_norm){.rows = rows,
                        .width = which == TRAIN_K_NORM ? net->kv_width : net->q_width,
                        .eps = net->eps,
                        .shift = net->shift,
                        .x = train__net_at(net, a->qkv, first),
                        .weight = train__net_layer_weight(net, layer, which),
                        .y = train__net_at(net, a->normed, first),
                        .ld_x = net->qkv_width,
                        .ld_y = net->qkv_width};
}

train_rope train__net_rope(const train__net *net, int64_t layer, const train__acts *a, const int32_t *positions,
                           int64_t rows) {
    int whole = net->shape.qk_norm == RAVEL_QK_NORM_WHOLE;
    int64_t table = rope_kind(net, layer) * net->positions * (net->shape.head_dim / 2);
    return (train_rope){.tokens = rows,
                        .heads = (int32_t)net->shape.heads,
                        .kv_heads = (int32_t)net->shape.kv_heads,
                        .head_dim = (int32_t)net->shape.head_dim,
                        .rotated = (int32_t)net->shape.rope_dim,
                        .eps = net->eps,
                        .shift = net->shift,
                        .qkv = whole ? a->normed : a->qkv,
                        .q_weight = whole ? NULL : train__net_layer_weight(net, layer, TRAIN_Q_NORM),
                        .k_weight = whole ? NULL : train__net_layer_weight(net, layer, TRAIN_K_NORM),
                        .cosine = net->cosine + table,
                        .sine = net->sine + table,
                        .positions = positions,
                        .q = a->q,
                        .k = a->k};
}

void train__net_rotate(const train__net *net, int64_t layer, const train__acts *a, const int32_t *positions,
                       int64_t rows) {
    train_rope rope = train__net_rope(net, layer, a, positions, rows);
    for (int which = TRAIN_Q_NORM; which <= TRAIN_K_NORM && net->shape.qk_norm == RAVEL_QK_NORM_WHOLE; which++) {
        train_norm norm = train__net_whole_norm(net, layer, a, (train_layer_tensor)which, rows);
        net->kernels->rmsnorm(net->device, &norm);
    }
    net->kernels->rope(net->device, &rope);
}

void train__net_gate(const train__net *net, void *h, const void *gate_up, int64_t rows, int64_t ffn) {
    int32_t gelu = net->family->activation == RAVEL__ACTIVATION_GELU;
    net->kernels->gated(net->device, &(train_gated){rows, ffn, gelu, gate_up, .h = h});
}

void train__net_gate_backward(const train__net *net, void *d_gate_up, void *h, const void *d_h, const void *gate_up,
                              int64_t rows, int64_t ffn) {
    int32_t gelu = net->family->activation == RAVEL__ACTIVATION_GELU;
    net->kernels->gated_backward(net->device, &(train_gated){rows, ffn, gelu, gate_up, h, d_h, d_gate_up});
}

train_attention train__net_attention(const train__net *net, const train__acts *a) {
    RAVEL_ASSERT(a->q && a->k && a->qkv && a->o && a->lse);
    return (train_attention){.heads = (int32_t)net->shape.heads,
                             .kv_heads = (int32_t)net->shape.kv_heads,
                             .head_dim = (int32_t)net->shape.head_dim,
                             .scale = net->scale,
                             .window = a->window,
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

/* Of q, k and v, one behind the other unless tensors are apart. */
static void add_biases(const train__net *net, void *qkv, int64_t layer, int64_t rows) {
    int64_t widths[TRAIN__JOINED], column = 0, n, k;
    const train__matrix matrix = train__dense(layer, TRAIN_Q);
    int count = train__net_matrix(net, &matrix, &n, &k, widths);
    if (!net->places) count = 1, widths[0] = n;
    for (int i = 0; i < count; column += widths[i++]) {
        const void *bias = train__net_layer_weight(net, layer, (train_layer_tensor)(TRAIN_Q_BIAS + i));
        if (bias)
            net->kernels->bias(net->device, train__net_at(net, qkv, column), bias, rows, widths[i], net->qkv_width);
    }
}

void train__net_attend(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *of) {
    int64_t rows = of->rows;
    RAVEL_ASSERT(of->attend && of->positions && a->qkv && a->q && a->k && a->o);
    const void *xn = train__net_enter(net, a->whole, train__net_input(net, a, TRAIN_NORM_IN), rows);
    train__net_project(net, a->qkv, xn, train__dense(layer, TRAIN_Q), rows);
    add_biases(net, a->qkv, layer, rows);
    train__net_rotate(net, layer, a, of->positions, rows);
    of->attend(of->user, layer, a);
}

/* Where a block puts what it gives, this rank's part of the sum over ranks; and what becomes of it. */
static void *given_place(const train__net *net, const train__acts *a, train_layer_tensor which) {
    return !train__net_norms_after(net) ? a->y : which == TRAIN_O ? a->attended : a->fed;
}

static void *whole_place(const train__net *net, const train__acts *a, train_layer_tensor which) {
    return net->sequence ? a->whole : given_place(net, a, which);
}

/* The feed-forward block up to what it gives, all rows of it; NULL: all but the last product was wanted. */
static void *feed_forward(const train__net *net, int64_t layer, const train__acts *a, int64_t rows) {
    const void *xn = train__net_enter(net, a->whole, train__net_input(net, a, TRAIN_NORM_OUT), rows);
    int ends = !a->next && !train__net_norms_after(net);
    void *y = ends ? NULL : whole_place(net, a, TRAIN_DOWN);
    if (ravel_shape_has_experts(&net->shape, layer)) {
        train__net_experts(net, layer, a, xn, y, rows);
        return y;
    }
    train__net_project(net, a->gate_up, xn, train__dense(layer, TRAIN_GATE), rows);
    if (!y) return NULL;
    train__net_gate(net, a->h, a->gate_up, rows, net->ffn);
    train__net_project(net, y, a->h, train__dense(layer, TRAIN_DOWN), rows);
    return y;
}

/* What the block gave, as it is added: normalised, scaled. */
static const void *added(const train__net *net, const train__acts *a, void *given, int64_t layer,
                         train_layer_tensor norm, int64_t share) {
    if (train__net_norms_after(net)) train__net_norm(net, a->y, NULL, given, NULL, layer, norm, share);
    train__net_scale(net, a->y, net->residual_scale, share * net->hidden);
    return a->y;
}

void train__net_layer(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *of) {
    int64_t rows = of->rows, share = train__net_share(net, rows);
    RAVEL_ASSERT(share > 0 && share <= rows && a->x && a->x_mid && a->gate_up);
    RAVEL_ASSERT(rows > 0 && layer >= net->params->part.first_layer && layer < net->params->part.last_layer);
    train__net_attend(net, layer, a, of);
    void *given = given_place(net, a, TRAIN_O), *whole = whole_place(net, a, TRAIN_O);
    train__net_project(net, whole, a->o, train__dense(layer, TRAIN_O), rows);
    train__net_leave(net, given, whole, rows);
    train__net_norm(net, a->xn_mid, a->x_mid, a->x, added(net, a, given, layer, TRAIN_NORM_ATTENDED, share), layer,
                    TRAIN_NORM_OUT, share);
    whole = feed_forward(net, layer, a, rows);
    if (!whole) return;
    given = given_place(net, a, TRAIN_DOWN);
    train__net_leave(net, given, whole, rows);
    if (!a->next) return;
    train__net_norm(net, a->xn_next, a->next, a->x_mid, added(net, a, given, layer, TRAIN_NORM_FED, share), layer + 1,
                    TRAIN_NORM_IN, share);
}
