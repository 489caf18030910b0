/* The network, as the model and the generator share it: the kernels, the weights, and the layer's forward, which exists
 * once. Internal to train/.
 *
 *     x ──┬── norm ── qkv ── rope ── attention ── o ──(+)──┬── norm ── gate up ── swiglu ── down ──(+)── x of the next
 *         └──────────────────────────────────────────┘     └────────────────────────────────────────┘
 *
 * The sums are made together with the norm that follows them, so a layer begins with its input x and the normalised xn,
 * and ends with the next layer's. What differs between families is data: the family's row (base/model/family.h) and the
 * shape say which norms there are (before a block, on what it adds, or both), their form, the activation, factors, and
 * of each layer its window and whether and how it rotates.
 *
 * A tensor-parallel rank has a share of the heads, of the feed-forward columns and of the vocabulary (train_slice):
 *
 *     xn ── qkv (columns) ── attention on its heads ── o (rows) ── SUM ── + ── norm ── gate up (columns) ── down (rows) ── SUM
 *     tokens ── embedding (its part of the vocabulary, zeros elsewhere) ── SUM
 *     rows ── logits of its part ── max, sum, target: GATHER ── log-probs of the whole vocabulary
 *
 * and in backward a SUM after each product by columns, whose gradient of the input is partial on each rank.
 *
 * With sequence parallelism a rank holds a share of the rows between the products: a SUM becomes a reduce-scatter, and
 * each product by columns begins with an all-gather. In backward the gradient of a product by rows is gathered, and the
 * input of a product by columns is gathered again for the gradient of its weight.
 *
 * The feed-forward block of a layer may be a choice of experts (net_experts.c) with the same input and output. */
#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include "base/model/family.h"
#include "train/kernels/kernels.h"
#include "train/model/ranks/link.h"
#include "train/model/params.h"
#include "train/model/ranks/units.h"

/* Rows of a pass, and the adapter that they go through. */
typedef struct train__adapter_run {
    int64_t rows;
    const train_params *params;
    const void *weights; /* NULL: none */
} train__adapter_run;

/* An adapter beside the weights, which are frozen then (lora.h), and room for its narrow products. */
typedef struct train__adapter {
    const train_params *params; /* NULL: there is none */
    const void *weights;        /* [W] [params->elements]; NULL: it is off */
    void *grads;                /* [G] the same; NULL: inference */
    void *u, *d_u;              /* [A] [rows, TRAIN__JOINED * rank]; d_u: training only */
    int64_t rank;               /* the largest that there is; 0: none */
    /* Generators, instead of params and weights: rows of one pass may go through different adapters. */
    const train__adapter_run *runs; /* [run_count], of all rows of the pass in their order */
    int64_t run_count;
} train__adapter;
enum { TRAIN__JOINED = 3 }; /* the most targets that are one matrix: q k v */

/* Experts: what the host needs to sort the pairs of a batch of `rows`. The caller's memory. */
typedef struct train__router {
    int64_t rows;   /* the most of a call; 0: there are no experts */
    int32_t *ids;   /* [pairs] */
    int32_t *index; /* [train__index_elements] */
} train__router;

/* Experts that several ranks share out (net_exchange.c); all arrays are the caller's. */
typedef struct train__exchange {
    train__link link;       /* those ranks */
    int64_t experts;        /* of a layer, on all of them */
    int64_t capacity;       /* rows of pairs that a rank receives in a round */
    int64_t rounds;         /* of the layer at hand */
    const int32_t *offsets; /* its pairs by expert (train__routes) */
    int32_t *counts;        /* [ranks + 1, experts] pairs of every rank for every expert, then scratch */
    int64_t *totals;        /* [ranks, ranks] pairs of one rank for another */
    int64_t *sizes;         /* [4, ranks] scratch */
    train_real *by_place, *out, *out_back, *in; /* on the host: [pairs], the last one [capacity] */
    void *rows, *given;              /* [A] [capacity, hidden] received rows; backward: gradients of what they gave */
    void *sorted;                    /* [A] [pairs, hidden] backward: those gradients before they are sent */
    train_real *weights, *d_weights; /* [capacity] of received rows */
    void *wire;                      /* [A] [capacity, hidden] received rows in the order of ranks */
    int32_t *order, *order_there; /* [capacity] where a row of an expert is among them; on the host and on the device */
    int32_t *first;               /* [own experts + 1] rows of each in the order of experts */
    train_real *numbers;          /* [capacity] scratch on the host */
} train__exchange;

typedef struct train__net {
    const train_kernels *kernels;
    train_device *device;
    train_types types;
    ravel_shape shape;   /* of this part: its heads, feed-forward columns, vocabulary */
    int64_t first_token; /* of this part of the vocabulary */
    train__link *tp;     /* ranks that share the layers */
    int32_t sequence;    /* sequence parallel: between products, each of them has a share of the rows */
    const train_params *params;
    const void *weights;       /* [W] [params->elements] */
    const void *const *places; /* where tensors stay in the map of their file, instead: train_frozen; else NULL */
    train__units *units;       /* where weights are sharded, instead; else NULL */
    train__adapter adapter;
    const train__router *router;
    train__exchange *exchange;    /* NULL: this rank has all experts */
    void (*progress)(void *user); /* called between products; NULL: nothing */
    void *progress_user;
    const ravel__family *family;
    const train_real *cosine, *sine; /* [train__net_rope_kinds, positions, head_dim / 2] */
    int64_t positions;               /* of a table */
    int64_t hidden, ffn, q_width, kv_width, qkv_width;
    int64_t feed_width; /* elements of h per row: of `ffn`, or of the experts of a token where that is more */
    train_real eps, scale;
    train_real shift;        /* of norms */
    double embedding_scale;  /* 1: none, as for the next one */
    double residual_scale;   /* of what a block adds */
    double logits_scale;     /* logits are multiplied with it */
    int32_t window;          /* keys that a query sees in every layer; 0: all, or all in some layers */
    int32_t batch_invariant; /* train_invariant: a row's bits do not depend on the number of rows (generation) */
} train__net;

/* Widths and constants from the whole model's shape and the part that `params` has; pointers are the caller's to
 * set. */
void train__net_init(train__net *net, const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                     const train_params *params);
/* Kinds of rotation in a model with tables of `positions`: 2 where some layers have another base, or none, or where
 * long sequences have other frequencies. Of the latter the first position of a sequence of `length` tokens is that of
 * its kind's table. */
int32_t train__net_rope_kinds(const train__net *net, int64_t positions);
int32_t train__net_first_position(const train__net *net, int64_t length);
/* Fills [train__net_rope_kinds, positions, head_dim / 2] tables through `row`, [head_dim / 2] on the host, and makes
 * them the net's. */
void train__net_rope_tables(train__net *net, train_real *cosine, train_real *sine, int64_t positions, train_real *row);
/* Keys that a query of the layer sees; 0: all. */
int32_t train__net_window(const train__net *net, int64_t layer);
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

/* A weight by its offset, and a layer's tensor; NULL if this part has none. Layer `layers` has the last norm as its
 * TRAIN_NORM_IN. */
const void *train__net_weight(const train__net *net, int64_t offset);
const void *train__net_layer_weight(const train__net *net, int64_t layer, train_layer_tensor which);

/* y = x w', w being [n, k]; x: [rows, k], y: [rows, n] */
void train__net_linear(const train__net *net, void *y, const void *x, int64_t offset, int64_t rows, int64_t n,
                       int64_t k);
/* d_x = d_y w;  d_w += d_y' x */
void train__net_linear_input(const train__net *net, void *d_x, const void *d_y, int64_t offset, int64_t rows, int64_t n,
                             int64_t k);
void train__net_linear_weight(const train__net *net, void *d_w, const void *d_y, const void *x, int64_t rows, int64_t n,
                              int64_t k);

/* A matrix [n, k] of a layer: q k v, o, gate up, down, named by the first of the tensors that follow one another in it;
 * of an expert, counted from this part's first one, or -1. */
typedef struct train__matrix {
    int64_t layer, expert;
    train_layer_tensor which;
    const int32_t *tokens; /* generators, of an expert: [rows] on the host, the row of the pass that each comes from */
} train__matrix;
static inline train__matrix train__dense(int64_t layer, train_layer_tensor which) {
    return (train__matrix){layer, -1, which, NULL};
}
/* Its size, and how many rows each of its tensors has; returns how many these are. */
int train__net_matrix(const train__net *net, const train__matrix *matrix, int64_t *n, int64_t *k,
                      int64_t widths[TRAIN__JOINED]);

/* The products of a layer. Forward, y = x w'; the gradient of x; that of the weights, d_w += (of experts d_w is the
 * first one's). With an adapter, y and d_x are of both, and the gradients are the adapter's alone. */
void train__net_project(const train__net *net, void *y, const void *x, train__matrix matrix, int64_t rows);
void train__net_project_input(const train__net *net, void *d_x, const void *d_y, train__matrix matrix, int64_t rows);
void train__net_project_weight(const train__net *net, void *d_w, const void *d_y, const void *x, train__matrix matrix,
                               int64_t rows);

/* net_lora.c: what an adapter adds to these three. */
void train__adapter_project(const train__net *net, void *y, const void *x, const train__matrix *m, int64_t rows);
void train__adapter_input(const train__net *net, void *d_x, const void *d_y, const train__matrix *m, int64_t rows);
void train__adapter_weight(const train__net *net, const void *d_y, const void *x, const train__matrix *m, int64_t rows);
/* A product with activations at its left; the sizes, pointers and transpositions are the caller's. */
void train__net_multiply(const train__net *net, train_matmul product, int32_t b_type, int32_t c_type);

/* x [count] = the sum over tensor-parallel ranks. */
void train__net_sum(const train__net *net, void *x, int64_t count);

/* The rows that this rank has between products, of a batch of `rows`: all of them or, with sequence parallelism, an
 * equal share, rounded up. Rows that pad the last shares are 0, and so are their gradients. */
static inline int64_t train__net_share(const train__net *net, int64_t rows) {
    return net->sequence ? (rows + net->tp->ranks - 1) / net->tp->ranks : rows;
}
/* Before a product by columns: all rows of x, which is x itself or, with sequence parallelism, gathered in `whole`,
 * [share * ranks, hidden]. */
const void *train__net_enter(const train__net *net, void *whole, const void *x, int64_t rows);
/* After a product by rows, which left `whole` [rows, hidden]: y = this rank's share of the sum over ranks. Without
 * sequence parallelism `whole` is y. */
void train__net_leave(const train__net *net, void *y, void *whole, int64_t rows);

/* x = this rank's share of the embedding of `tokens` [rows], or of tokens[picks[r]] where picks is not NULL, through
 * `whole`.
 */
void train__net_embed(const train__net *net, void *x, void *whole, const int32_t *tokens, const int32_t *picks,
                      int64_t rows);
/* y = norm of x (+ add, kept in sum) with a layer's weight; only the sum where this part has no such layer. */
void train__net_norm(const train__net *net, void *y, void *sum, const void *x, const void *add, int64_t layer,
                     train_layer_tensor which, int64_t rows);
/* A layer's experts: a pair is a row with one of its experts. All but `offsets` on the device. */
typedef struct train__routes {
    void *logits;           /* [A] [rows, experts] */
    int32_t *ids;           /* [rows, active] */
    train_real *weights;    /* [rows, active] */
    int32_t *index;         /* [train__index_elements] see sort_pairs in net_experts.c */
    int32_t *offsets;       /* [experts + 1] on the host: the first pair of each expert, in the order of experts */
    void *pairs;            /* [A] [pairs, hidden] scratch */
    const int32_t *given;   /* [rows, active] ids to take, -1: none; NULL: all are chosen */
    const int32_t *counted; /* [rows] on the device: how often a row counts in the load; NULL: once */
    /* On the host: */
    const int32_t *times;       /* [rows] the same */
    int64_t *load;              /* [experts] += rows that went to each; NULL: they are not counted */
    int16_t *record;            /* ids of row r to record + r * record_stride; NULL: not wanted */
    const int32_t *record_rows; /* [rows] or NULL; row r goes to record_rows[r] there */
    int64_t record_stride;
} train__routes;

/* The arrays of one layer, all [A] [rows, ...] but lse; x, next, xn, xn_mid, xn_next, y and x_mid have this rank's
 * share of the rows. */
typedef struct train__acts {
    void *x;    /* input */
    void *next; /* output: the next layer's x; may be x. NULL: the feed-forward's last product is left out */
    void *xn;   /* normalised x */
    void *xn_mid, *xn_next; /* normalised x_mid and, by the next layer's weight, next; both may be xn */
    void *y;                /* [share, hidden] scratch */
    void *whole;            /* sequence parallel: [share * ranks, hidden] scratch; else y */
    void *qkv, *q, *k, *o;
    void *x_mid, *gate_up, *h;
    void *normed;         /* [rows, qkv_width] scratch; only with norms over all heads */
    void *attended, *fed; /* [share, hidden] what the blocks give, before their own norms; only with these; may be y */
    train_real *lse;      /* [rows, heads] */
    int32_t window;       /* of the layer, for train__net_attention */
    train__routes routes; /* of a layer with experts, whose gate_up and h are [pairs, ...] */
} train__acts;

/* What a block reads: normalised x or x_mid, or these themselves where the family has no norm there. */
static inline const void *train__net_input(const train__net *net, const train__acts *a, train_layer_tensor norm) {
    int feed = norm == TRAIN_NORM_OUT;
    if (!net->family->norms[norm - TRAIN_NORM_IN]) return feed ? a->x_mid : a->x;
    return feed ? a->xn_mid : a->xn;
}
/* Whether what a block adds is normalised first. */
static inline int train__net_norms_after(const train__net *net) {
    return net->family->norms[TRAIN_NORM_ATTENDED - TRAIN_NORM_IN] != NULL;
}

/* q, k = rotated (and normalised) parts of qkv; and from a->q and the rest to the arguments of its backward. */
void train__net_rotate(const train__net *net, int64_t layer, const train__acts *a, const int32_t *positions,
                       int64_t rows);
train_rope train__net_rope(const train__net *net, int64_t layer, const train__acts *a, const int32_t *positions,
                           int64_t rows);
/* The norm over all heads of q, or of k (TRAIN_Q_NORM, TRAIN_K_NORM), from qkv to a->normed. */
train_norm train__net_whole_norm(const train__net *net, int64_t layer, const train__acts *a, train_layer_tensor which,
                                 int64_t rows);
/* h = the gated activation of gate_up; its backward as train_kernels.gated_backward. */
void train__net_gate(const train__net *net, void *h, const void *gate_up, int64_t rows, int64_t ffn);
void train__net_gate_backward(const train__net *net, void *d_gate_up, void *h, const void *d_h, const void *gate_up,
                              int64_t rows, int64_t ffn);
/* y *= by, unless that is 1. */
void train__net_scale(const train__net *net, void *y, double by, int64_t count);

/* net_experts.c: the experts of a layer. Pairs of `rows`; elements of an index; bytes of a layer's routes, and where
 * they are. */
int64_t train__net_pairs(const train__net *net, int64_t rows);
int64_t train__index_elements(const train__net *net, int64_t rows);
size_t train__routes_cut(const train__net *net, int64_t rows, char *base, train__routes *routes);
/* y = what the experts give for the rows of xn, [rows, hidden]; NULL: all but the last product. */
void train__net_experts(const train__net *net, int64_t layer, const train__acts *a, const void *xn, void *y,
                        int64_t rows);
/* Arguments of kernels: of routing, and of weights of h [pairs, expert_ffn]. */
train_route train__net_route(const train__net *net, const train__routes *routes, int64_t rows);
train_weigh train__net_weigh(const train__net *net, const train__routes *routes, void *h, int64_t rows);
/* to [pairs, hidden] = the rows of x by expert; y [rows, hidden] = the sum of each row's pairs. */
void train__net_to_experts(const train__net *net, const train__routes *routes, void *to, const void *x, int64_t rows);
void train__net_from_experts(const train__net *net, const train__routes *routes, void *y, const void *from,
                             int64_t rows);
/* The three products of every expert with its own rows: of the pairs or, with `exchange`, of what was received. */
void train__net_experts_project(const train__net *net, const train__routes *routes, void *y, const void *x,
                                int64_t layer, train_layer_tensor which);
void train__net_experts_input(const train__net *net, const train__routes *routes, void *d_x, const void *d_y,
                              int64_t layer, train_layer_tensor which);
void train__net_experts_weight(const train__net *net, const train__routes *routes, void *d_w, const void *d_y,
                               const void *x, int64_t layer, train_layer_tensor which);

/* net_exchange.c: with `exchange`. begin: what the pairs of every rank are. round: how many rows come here in a round,
 * and their order, which is that of experts. Then rows of pairs go to the experts, or back, and so do numbers of pairs
 * on the host. */
void train__exchange_begin(train__exchange *x, const int32_t *offsets);
int64_t train__exchange_round(const train__net *net, int64_t round);
void train__exchange_move(const train__net *net, int64_t round, const void *from, void *to, int back);
void train__exchange_numbers(train__exchange *x, int64_t round, const train_real *from, train_real *to, int back);
/* Weights of pairs to x->out, and those of received rows to x->weights. */
void train__exchange_weights(const train__net *net, const train__routes *routes, int64_t rows);
void train__exchange_receive_weights(const train__net *net, int64_t round, int64_t rows);
/* routes.pairs = what the experts give for them. gate_up and h are scratch of [capacity, ...]. */
void train__exchange_forward(const train__net *net, int64_t layer, const train__acts *a, int64_t rows);
/* Sorts ids [rows, active] on the host into offsets and net->router->index. */
void train__net_sort(const train__net *net, const int32_t *ids, int64_t rows, int32_t *offsets);

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
