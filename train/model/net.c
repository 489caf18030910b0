#include "train/model/net.h"

#include <math.h>

void train__net_init(train__net *net, const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                     const train_params *params) {
    *net = (train__net){.kernels = kernels, .device = device, .shape = *shape, .params = params};
    net->hidden = shape->hidden;
    net->ffn = shape->ffn;
    net->q_width = shape->heads * shape->head_dim;
    net->kv_width = shape->kv_heads * shape->head_dim;
    net->qkv_width = net->q_width + 2 * net->kv_width;
    net->eps = (train_real)shape->norm_eps;
    net->scale = (train_real)(1 / sqrt((double)shape->head_dim));
}

/* The angle of pair i at position p is p / theta^(2i / head_dim). */
void train__net_rope_tables(const train__net *net, train_real *cosine, train_real *sine, int64_t positions,
                            train_real *row) {
    int64_t dim = net->shape.head_dim, half = dim / 2;
    size_t bytes = (size_t)half * sizeof *row;
    double slope = -2 * log(net->shape.rope_theta) / (double)dim;
    for (int64_t p = 0; p < positions; p++) {
        for (int64_t i = 0; i < half; i++) row[i] = (train_real)cos((double)p * exp(slope * (double)i));
        net->kernels->upload(net->device, cosine + p * half, row, bytes);
        for (int64_t i = 0; i < half; i++) row[i] = (train_real)sin((double)p * exp(slope * (double)i));
        net->kernels->upload(net->device, sine + p * half, row, bytes);
    }
}

const train_real *train__net_weight(const train__net *net, int64_t layer, train_layer_tensor which) {
    int64_t offset = train_params_layer(net->params, layer, which);
    return offset < 0 ? NULL : net->weights + offset;
}

void train__net_linear(const train__net *net, train_real *y, const train_real *x, const train_real *w, int64_t rows,
                       int64_t n, int64_t k) {
    net->kernels->matmul(
        net->device,
        &(train_matmul){.m = rows, .n = n, .k = k, .a = x, .b = w, .c = y, .trans_b = 1, .exact = net->exact});
}

void train__net_linear_input(const train__net *net, train_real *d_x, const train_real *d_y, const train_real *w,
                             int64_t rows, int64_t n, int64_t k) {
    net->kernels->matmul(net->device, &(train_matmul){.m = rows, .n = k, .k = n, .a = d_y, .b = w, .c = d_x});
}

void train__net_linear_weight(const train__net *net, train_real *d_w, const train_real *d_y, const train_real *x,
                              int64_t rows, int64_t n, int64_t k) {
    net->kernels->matmul(
        net->device, &(train_matmul){.m = n, .n = k, .k = rows, .a = d_y, .b = x, .c = d_w, .trans_a = 1, .add = 1});
}

void train__net_norm(const train__net *net, train_real *y, train_real *sum, const train_real *x, const train_real *add,
                     const train_real *weight, int64_t rows) {
    net->kernels->rmsnorm(net->device, y, sum, x, add, weight, net->eps, rows, net->hidden);
}

void train__net_qkv(const train__net *net, int64_t layer, train_real *qkv, const train_real *xn, int64_t tokens) {
    const train_real *bias = train__net_weight(net, layer, TRAIN_Q_BIAS);
    train__net_linear(net, qkv, xn, train__net_weight(net, layer, TRAIN_Q), tokens, net->qkv_width, net->hidden);
    if (bias) net->kernels->bias(net->device, qkv, bias, tokens, net->qkv_width, net->qkv_width);
}

train_rope train__net_rope(const train__net *net, int64_t layer, train_real *q, train_real *k, const train_real *qkv,
                           const int32_t *positions, int64_t tokens) {
    return (train_rope){.tokens = tokens,
                        .heads = (int32_t)net->shape.heads,
                        .kv_heads = (int32_t)net->shape.kv_heads,
                        .head_dim = (int32_t)net->shape.head_dim,
                        .eps = net->eps,
                        .qkv = qkv,
                        .q_weight = train__net_weight(net, layer, TRAIN_Q_NORM),
                        .k_weight = train__net_weight(net, layer, TRAIN_K_NORM),
                        .cosine = net->cosine,
                        .sine = net->sine,
                        .positions = positions,
                        .q = q,
                        .k = k};
}

void train__net_project(const train__net *net, int64_t layer, train_real *y, const train_real *o, int64_t tokens) {
    train__net_linear(net, y, o, train__net_weight(net, layer, TRAIN_O), tokens, net->hidden, net->q_width);
}

void train__net_feed_forward(const train__net *net, int64_t layer, train_real *y, train_real *gate_up, train_real *h,
                             const train_real *xn, int64_t tokens) {
    train__net_linear(net, gate_up, xn, train__net_weight(net, layer, TRAIN_GATE), tokens, 2 * net->ffn, net->hidden);
    net->kernels->swiglu(net->device, h, gate_up, tokens, net->ffn);
    train__net_linear(net, y, h, train__net_weight(net, layer, TRAIN_DOWN), tokens, net->hidden, net->ffn);
}
