/* The network, as the model and the generator share it: the kernels, the weights, and one function a piece of a layer.
 * Internal to train/.
 *
 *     x ──┬── norm ── qkv ── rope ── attention ── o ──(+)──┬── norm ── gate up ── swiglu ── down ──(+)── x of the next
 *         └──────────────────────────────────────────┘     └────────────────────────────────────────┘
 *
 * The sums are made together with the norm that follows them, so a piece begins with a normalised input `xn` and ends
 * with an output `y` that nobody has added yet. */
#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include "train/kernels/kernels.h"
#include "train/model/params.h"

typedef struct train__net {
    const train_kernels *kernels;
    train_device *device;
    ravel_shape shape;
    const train_params *params;
    const train_real *weights;
    const train_real *cosine, *sine; /* [positions, head_dim / 2] */
    int64_t hidden, ffn, q_width, kv_width, qkv_width;
    train_real eps, scale;
    int32_t exact; /* products whose rows do not depend on how many there are (generation) */
} train__net;

/* Widths and constants from the shape; pointers are the caller's to set. */
void train__net_init(train__net *net, const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                     const train_params *params);
/* Fills [positions, head_dim / 2] tables through `row`, [head_dim / 2] on the host. */
void train__net_rope_tables(const train__net *net, train_real *cosine, train_real *sine, int64_t positions,
                            train_real *row);

/* A layer's tensor in the weights, or NULL where this model has none. */
const train_real *train__net_weight(const train__net *net, int64_t layer, train_layer_tensor which);

/* y = x w', w being [n, k]; x: [rows, k], y: [rows, n] */
void train__net_linear(const train__net *net, train_real *y, const train_real *x, const train_real *w, int64_t rows,
                       int64_t n, int64_t k);
/* d_x = d_y w;  d_w += d_y' x */
void train__net_linear_input(const train__net *net, train_real *d_x, const train_real *d_y, const train_real *w,
                             int64_t rows, int64_t n, int64_t k);
void train__net_linear_weight(const train__net *net, train_real *d_w, const train_real *d_y, const train_real *x,
                              int64_t rows, int64_t n, int64_t k);

/* y = norm of x (+ add, kept in sum), with the weight at `weight`. */
void train__net_norm(const train__net *net, train_real *y, train_real *sum, const train_real *x, const train_real *add,
                     const train_real *weight, int64_t rows);
/* qkv = xn Wqkv (+ bias) */
void train__net_qkv(const train__net *net, int64_t layer, train_real *qkv, const train_real *xn, int64_t tokens);
/* q, k = rotated (and normalised) parts of qkv */
train_rope train__net_rope(const train__net *net, int64_t layer, train_real *q, train_real *k, const train_real *qkv,
                           const int32_t *positions, int64_t tokens);
/* y = o Wo' */
void train__net_project(const train__net *net, int64_t layer, train_real *y, const train_real *o, int64_t tokens);
/* y = swiglu(gate_up = xn Wgu') Wdown', through h: [tokens, ffn] */
void train__net_feed_forward(const train__net *net, int64_t layer, train_real *y, train_real *gate_up, train_real *h,
                             const train_real *xn, int64_t tokens);

#endif
