/* The network, as the model and the generator share it: the kernels, the weights, and the layer's forward, which exists
 * once. Internal to train/.
 *
 *     x ──┬── norm ── qkv ── rope ── attention ── o ──(+)──┬── norm ── gate up ── swiglu ── down ──(+)── x of the next
 *         └──────────────────────────────────────────┘     └────────────────────────────────────────┘
 *
 * The sums are made together with the norm that follows them, so a layer begins with its input x and the normalised xn,
 * and ends with the next layer's. */
#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include "train/kernels/kernels.h"
#include "train/model/parallel.h"
#include "train/model/params.h"
#include "train/model/units.h"

typedef struct train__net {
    const train_kernels *kernels;
    train_device *device;
    train_types types;
    ravel_shape shape;   /* of this part: its heads, feed-forward columns, vocabulary */
    int64_t first_token; /* of this part of the vocabulary */
    train__link *tp;     /* ranks that share the layers */
    int32_t sequence;    /* sequence parallel: between products, each of them has a share of the rows */
    const train_params *params;
    const void *weights;          /* [W] [params->elements] */
    train__units *units;          /* where weights are sharded, instead; else NULL */
    void (*progress)(void *user); /* called between products; NULL: nothing */
    void *progress_user;
    const train_real *cosine, *sine; /* [positions, head_dim / 2] */
    int64_t hidden, ffn, q_width, kv_width, qkv_width;
    train_real eps, scale;
    int32_t window;          /* keys that a query sees; 0: all */
    int32_t batch_invariant; /* train_invariant: a row's bits do not depend on the number of rows (generation) */
} train__net;

/* Widths and constants from the whole model's shape and the part that `params` has; pointers are the caller's to set. */
void train__net_init(train__net *net, const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                     const train_params *params);
/* Fills [positions, head_dim / 2] tables through `row`, [head_dim / 2] on the host. */
void train__net_rope_tables(const train__net *net, train_real *cosine, train_real *sine, int64_t positions,
                            train_real *row);
/* The largest calls for `tokens` rows and samples of up to `longest` tokens. */
train_limits train__net_limits(const train__net *net, int64_t tokens, int64_t longest, int64_t samples);

/* Element `index` of an array of activations. */
static inline void *train__net_at(const train__net *net, const void *block, int64_t index) {
    return train__at(block, net->types.activation, index);
}
/* Bytes of `count` activations. */
static inline size_t train__net_bytes(const train__net *net, int64_t count) {
    return (size_t)count * (size_t)ravel_dtype_bytes(net->types.activation);
}

/* A weight by its offset, and a layer's tensor; NULL where this part has none. Layer `layers` has the last norm as its
 * TRAIN_NORM_IN. */
const void *train__net_weight(const train__net *net, int64_t offset);
const void *train__net_layer_weight(const train__net *net, int64_t layer, train_layer_tensor which);

/* y = x w', w being [n, k]; x: [rows, k], y: [rows, n] */
void train__net_linear(const train__net *net, void *y, const void *x, const void *w, int64_t rows, int64_t n,
                       int64_t k);
/* d_x = d_y w;  d_w += d_y' x */
void train__net_linear_input(const train__net *net, void *d_x, const void *d_y, const void *w, int64_t rows, int64_t n,
                             int64_t k);
void train__net_linear_weight(const train__net *net, void *d_w, const void *d_y, const void *x, int64_t rows, int64_t n,
                              int64_t k);

/* x [count] = the sum over tensor-parallel ranks. */
void train__net_sum(const train__net *net, void *x, int64_t count);

/* The rows that this rank has between products, of a batch of `rows`: all of them or, with sequence parallelism, an equal
 * share, rounded up. Rows that pad the last shares are 0, and so are their gradients. */
static inline int64_t train__net_share(const train__net *net, int64_t rows) {
    return net->sequence ? (rows + net->tp->ranks - 1) / net->tp->ranks : rows;
}
/* Before a product by columns: all rows of x, which is x itself or, with sequence parallelism, gathered in `whole`, [share *
 * ranks, hidden]. */
const void *train__net_enter(const train__net *net, void *whole, const void *x, int64_t rows);
/* After a product by rows, which left `whole` [rows, hidden]: y = this rank's share of the sum over ranks. Without sequence
 * parallelism `whole` is y. */
void train__net_leave(const train__net *net, void *y, void *whole, int64_t rows);

/* x = this rank's share of the embedding of `tokens` [rows], or of tokens[picks[r]] where picks is not NULL, through `whole`.
 */
void train__net_embed(const train__net *net, void *x, void *whole, const int32_t *tokens, const int32_t *picks,
                      int64_t rows);
/* y = norm of x (+ add, kept in sum) with a layer's weight; only the sum where this part has no such layer. */
void train__net_norm(const train__net *net, void *y, void *sum, const void *x, const void *add, int64_t layer,
                     train_layer_tensor which, int64_t rows);
/* q, k = rotated (and normalised) parts of qkv */
train_rope train__net_rope(const train__net *net, int64_t layer, void *q, void *k, const void *qkv,
                           const int32_t *positions, int64_t tokens);

/* The arrays of one layer, all [A] [rows, ...] but lse; x, next, xn, xn_mid, xn_next, y and x_mid have this rank's share of
 * the rows. */
typedef struct train__acts {
    void *x;    /* input */
    void *next; /* output: the next layer's x; may be x. NULL: the feed-forward's last product is left out */
    void *xn;   /* normalised x */
    void *xn_mid, *xn_next; /* normalised x_mid and, by the next layer's weight, next; both may be xn */
    void *y;                /* [share, hidden] scratch */
    void *whole;            /* sequence parallel: [share * ranks, hidden] scratch; else y */
    void *qkv, *q, *k, *o;
    void *x_mid, *gate_up, *h;
    train_real *lse; /* [rows, heads] */
} train__acts;

/* Attention from a->q, a->k and the v part of a->qkv to a->o (and a->lse). */
typedef void train__attend_fn(void *user, int64_t layer, const train__acts *a);

typedef struct train__rows_of {
    int64_t rows;
    const int32_t *positions; /* [rows] */
    train__attend_fn *attend;
    void *user;
} train__rows_of;

/* The layer up to its attention: from xn to what `attend` makes of q, k and v. */
void train__net_attend(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *rows);
void train__net_layer(const train__net *net, int64_t layer, const train__acts *a, const train__rows_of *rows);

/* The arguments that do not depend on the batch. */
train_attention train__net_attention(const train__net *net, const train__acts *a);

#endif
