/* Shared by the files of the model. Internal to train/.
 *
 *   model.c          creation, memory, accessors
 *   model_batch.c    a batch checked, laid out and staged
 *   model_layers.c   the layers, forward and backward
 *   model_experts.c  the backward of blocks of experts; model_load.c: their load, and routes that are given
 *   model_tree.c     batches whose samples share prefixes; model_tree_keys.c: their attention by gathered keys
 *   model_head.c     from the last hidden rows to log-probs, and back, a chunk of logits at a time
 *   model_run.c      score, learn
 *   graphs.c         runs of kernels recorded and launched as graphs
 *
 * Memory, in blocks of the device (T: budget, C: hidden). With sequence parallelism, arrays of [T, C] other than d_rows
 * are [T / ranks, C], rounded up, there are no head rows, and a working array `whole` has the rows of all ranks:
 *
 *     kept       x of every layer [T, C] | qkv, o, lse, x_mid of every layer, or of one | gate_up of every layer, or of
 *                one | head rows | numbers of the scored rows
 *     working    xn [T, C] | y [T, C] | d_x [T, C] | shared: what attention needs, or what feed-forward needs
 *     logits     [logits_rows, vocab] | parts [4, logits_rows]
 *     tables     rope | figures of the update
 *     staging    a batch per micro-batch in flight and one more, on the host and on the device, used in turn
 *
 * kept is there once per micro-batch in flight. */
#ifndef TRAIN_MODEL_INTERNAL_H
#define TRAIN_MODEL_INTERNAL_H

#include <ravel/tree_batch.h>

#include "train/model/net/graphs.h"
#include "train/model/model.h"
#include "train/model/net/net.h"
#include "train/model/net/staging.h"
#include "train/model/ranks/units.h"

/* Context parallel: a sample's tokens on this rank are two chunks of the same length, see ring.h. */
typedef struct train__halves {
    const int32_t *lengths, *seconds; /* [samples] tokens of a chunk, and where the second one begins */
    const int32_t *host_lengths;      /* lengths, in host memory */
    int32_t shortest, longest;        /* of the lengths */
} train__halves;

/* Context parallel, chunk by chunk: one call of attention. */
typedef struct train__view {
    train_ragged queries, keys;
    const int32_t *shifts; /* [samples] see train_attention; NULL: both are the same rows */
    int32_t samples;       /* 0: nothing is seen */
    int32_t all;           /* every query sees every key */
} train__view;

/* A batch on the device: pointers into one staged block, and what the host knows of it. Scored rows are numbered 0 ..
 * scored - 1 in the order of their tokens. */
typedef struct train__staged {
    const int32_t *tokens, *positions; /* [tokens] */
    const int32_t *starts, *lengths;   /* [samples] */
    const int32_t *order;              /* [ordered] rows sorted by token, see train_embedding */
    const int32_t *counted, *given;    /* experts: [tokens]; [sparse layers, tokens, active], see train__routes */
    const int32_t *times;              /* on the host: counted */
    const int32_t *rows, *targets;     /* [scored] the row that predicts, and what */
    const int32_t *samples_of;         /* [losses] sample */
    const float *weights;              /* [losses] */
    const float *coef;                 /* [scored] from the caller (train_loss.couple) or -weights */
    const float *old, *generator, *reference, *advantages; /* [losses] of a policy loss */
    const int32_t *sources, *source_first,
        *source_list;                     /* shared prefixes: rows that predict, and the scored rows of each */
    const int32_t *first, *list, *row_of; /* shared prefixes: losses of each scored row (train_loss_rows) */
    train__halves halves;
    int32_t block; /* of the staging */
} train__staged;

/* Parts of the kept and working blocks; the same walk counts and cuts. */
typedef struct train__kept {
    char *x, *rest, *gate_up, *light; /* of layer 0; strides in train__sizes */
    void *head_x, *head_xn; /* [T, C] scored rows before and after the last norm; not with sequence parallelism */
    train_real *logprob, *lse, *entropy, *coef, *entropy_coef; /* [T] of scored rows */
    train_sequence_sums *sequences;                            /* [T] */
} train__kept;

typedef struct train__working {
    void *xn, *y, *d_x; /* [T, C] */
    void *q, *k, *h;    /* the shared part, cut for each use: attention, or */
    void *d_q, *d_k, *d_o, *d_qkv;
    void *d_h;
    void *pairs;           /* experts: [T, active, C], */
    train_real *d_weights; /* [T, active] and */
    void *d_logits;        /* [T, experts] */
    void *d_given;         /* [T, C] gradient of what a block gave, if that is scaled or normalised */
    void *normed;          /* [T, qkv] norms of q and k over all heads */
    void *d_rows;          /* head */
    void *whole;           /* sequence parallel: the rows of all ranks; else y */
    void *head_xn;         /* sequence parallel: [T, C] scored rows after the last norm */
} train__working;

/* Context parallel: two buffers of keys and values for the ring, their gradients, and a part's output. */
typedef struct train__ring {
    void *kv[2], *d_kv[2]; /* [T, 2 * kv_width] one is sent from, the other received into */
    void *own;             /* [T, 2 * kv_width] gradients of the block that is here, by this rank's queries */
    void *mine;            /* chunk by chunk: this rank's block, */
    void *spare, *back;    /* gradients of a part of a block, and those that come back; all [T, 2 * kv_width] */
    void *o;               /* [T, q_width] */
    train_real *lse;       /* [T, heads] */
} train__ring;

/* Samples that share prefixes (model_tree.c): what staging a batch needs, and what attention needs on the device. With
 * context parallelism a bin has T places for each rank. */
typedef struct train__tree {
    ravel_tree_batch batch;                   /* on the host: of the batch that is being staged */
    ravel_tree_piece piece;                   /* this rank's share of it */
    void *block;                              /* arrays of the batch; with context parallelism its positions too */
    int32_t *marks;                           /* [bin + 1] */
    int32_t chunk;                            /* places that are dealt together; all of them if there is one rank */
    int32_t *owners, *chunk_here, *chunk_all; /* of each chunk: rank, first row of that rank (-1: of another one), and
                                                 first row where the rows of all ranks follow one another */
    void *o;                                  /* levels: output of one, [T, q_width], */
    train_real *lse;                          /* and log-sum-exps, [T, heads] */
    void *own, *all, *d_all, *spare, *copies, *d_copies; /* gathered keys and values (model_tree_keys.c) */
} train__tree;

/* Gathered keys: one call of attention. Copy k is of row from[k] of `all`; row to[r] has copies list[first[r]] ... */
typedef struct train__tree_part {
    train_ragged queries, keys;
    const int32_t *shifts; /* [runs] */
    const int32_t *from;   /* [copies] */
    const int32_t *to, *first, *list;
    int32_t runs, copies, rows;
} train__tree_part;

/* Of a micro-batch: nodes sorted by level. Keys of a node are its own rows, queries these and all rows below. */
typedef struct train__levels {
    int32_t *offsets; /* host [T + 1] first node of each level */
    int64_t count;    /* 0: nothing is shared, or keys are gathered */
    train_ragged queries, keys;
} train__levels;

typedef struct train__sizes {
    int64_t tokens, positions, logits_rows;
    int64_t flat;            /* tokens of samples, shared ones counted for each; else `tokens` */
    int64_t scored;          /* rows of the head: `tokens`, more where several places of other ranks follow one here */
    size_t x, rest, gate_up; /* strides between layers, 0 if layers share */
    size_t light;            /* the same for arrays that are cheap to recompute, 0 if they are not kept */
    size_t o, lse, x_mid;    /* within a layer's rest; qkv is first */
    size_t attended, fed;    /* the same, with norms after blocks: what is normalised; fed 0: not kept */
    size_t routes;           /* the same, with experts */
    size_t end;              /* of a layer's rest */
    size_t xn_mid, q, k, h;  /* within a layer's light; xn is first */
    size_t kept, working, logits, tables, stage;
} train__sizes;

/* A micro-batch from its staging to the end of its backward: what it keeps, and where. */
typedef struct train__micro {
    train__kept kept;
    train__staged staged;
    train_batch batch;
    train_ragged ragged;
    train__link cp; /* ranks that share its samples */
    train__levels levels;
    train__tree_part *tree_parts; /* [train__tree_parts] of which there are tree_count */
    int32_t *places;              /* [flat] on the host: place of each loss in the batch */
    /* [flat] on the host, shared prefixes: scored row of each loss; else NULL, as they are the same */
    int32_t *rows_of;
    int32_t *offsets;   /* experts: on the host, [kept layers, experts + 1] (train__routes) */
    int64_t losses;     /* scored tokens of all samples */
    int64_t sources;    /* shared prefixes: rows that predict a scored token, or several where samples part */
    train__view *views; /* [2 * cp_most] two per rank of the ring: chunk by chunk only */
    int64_t scored, ordered;
    train_real logit_scale;
    int32_t tree_count;
    int32_t gaps;           /* some rows belong to no sample */
    const train_loss *loss; /* NULL: the weighted sum */
    int32_t learn_begun;    /* its forward ran for learning */
    int32_t counts;         /* experts: its forward adds to the load */
    int16_t *record;        /* experts: where routes go, train_result.routes; NULL: not wanted */
} train__micro;

struct train_model {
    train__arena arena; /* host memory */
    train_model_options options;
    train_params *params;
    train_params *adapter; /* NULL: none; else the table of what is trained */
    train__net net;
    train__sizes sizes;
    int64_t vocab;   /* of the whole model */
    int32_t cp_most; /* the most ranks that share the samples of a micro-batch */
    train__ring ring;
    train__tree tree;
    train__port port;
    train__link tp, kv; /* all tensor-parallel ranks; those that have the same key heads */
    ravel_comm *kv_comm;
    void *weights, *grads; /* flat arrays of what is trained, or this rank's shares */
    void *frozen;          /* with an adapter: the model's weights, or this rank's share; else NULL */
    void *unused;          /* with an adapter: gradients of frozen norms [max(hidden, head_dim)] */
    train__units units;    /* with shares; units.shares is NULL if this rank has everything */
    void *kept_block[TRAIN_FLIGHTS], *working_block, *logits, *table_block;
    train__exchange exchange;       /* of experts, where several ranks have them */
    train__router router;           /* of experts: */
    int64_t *load;                  /* [layers, experts] on the host */
    train_real *balance, *row_loss; /* [layers, experts], [T] on the device; training only */
    train_real *row_sums;           /* [T] on the host */
    int32_t balanced;               /* the load loss is on */
    train__staging staging;
    train__graphs graphs;
    train_real *row; /* [max(hidden, head_dim)] on the host: upload buffer */
    float *numbers;  /* [T] on the host: download buffer */
    float *by_place; /* [2, flat] on the host: log-probs and coefficients of a loss that couples samples */
    train__working working;
    train_real *cosine, *sine, *parts; /* parts: [ranks + 1, 4, logits_rows], this rank's last */
    train_real *top_parts, *top_rest;  /* [ranks + 1, 2, logits_rows, top], likewise; [logits_rows] */
    train_update *update;

    train__micro *flights; /* [in_flight] */
};

/* Whether the ring goes chunk by chunk (ring.h). */
static inline int train__model_by_chunk(const train_model *m) {
    return m->cp_most > 1 && m->net.shape.window;
}

/* Whether its samples share prefixes. */
static inline int train__micro_has_tree(const train__micro *mb) {
    return mb->batch.shared != NULL;
}
/* The scored row of a loss. */
static inline int64_t train__micro_row_of(const train__micro *mb, int64_t loss) {
    return train__micro_has_tree(mb) ? mb->rows_of[loss] : loss;
}
/* model_tree.c: the batch as a tree. lay_out sets m->tree.batch and the number of rows and writes tokens and
 * positions; then come what attention needs (levels), and the rows, targets and losses of each (scored). */
ravel_status train__tree_check(train_model *m, const train_batch *b, ravel_error *err);
void train__tree_lay_out(train_model *m, const train__micro *mb, const train_batch *b, int32_t *ids,
                         int32_t *positions);
void train__tree_stage_attention(train_model *m, train__micro *mb);
/* Rows of this rank; and those of tokens, which alignment is left out of: returns how many. */
int64_t train__tree_rows(const train_model *m, const train__micro *mb);
int64_t train__tree_list_rows(const train_model *m, const train__micro *mb, int32_t *rows);
/* times[rows] = samples that have the row's token. */
void train__tree_count_rows(train_model *m, const train__micro *mb, const train_batch *b, int32_t *times);
ravel_status train__tree_stage_scored(train_model *m, train__micro *mb, const train_batch *b, int32_t *rows,
                                      int32_t *targets, ravel_error *err);
void train__tree_attend(const train_model *m, train__micro *mb, const train__acts *a);
/* `x`: attention over the whole batch, its gradients included. */
void train__tree_attend_backward(const train_model *m, train__micro *mb, const train__acts *a,
                                 const train_attention *x);
/* Host bytes of the arrays of a tree batch, and where they are. */
int64_t train__tree_bytes(const train_model *m);
ravel_status train__tree_open(train_model *m, ravel_error *err);
/* model_tree_keys.c: the most places of a bin, keys of this rank's runs, and parts of them; bytes of
 * what is staged; memory on the device. */
int64_t train__tree_bin(const train_model *m);
int64_t train__tree_path_keys(const train_model *m);
int64_t train__tree_copies(const train_model *m);
int64_t train__tree_parts(const train_model *m);
size_t train__tree_staged(const train_model *m);
void train__tree_cut_keys(train_model *m, train__cut *cut);
/* Attention of m->tree.piece, which has been laid out. */
void train__tree_stage_keys(train_model *m, train__micro *mb);
void train__tree_keys_attend(const train_model *m, train__micro *mb, const train__acts *a);
void train__tree_keys_attend_backward(const train_model *m, train__micro *mb, const train__acts *a);

/* model_load.c: bytes that are staged for experts; a batch's; the arrays of a layer; load and sums to 0. */
size_t train__load_staged(const train_model *m);
ravel_status train__load_stage(train_model *m, train__micro *mb, const train_batch *b, ravel_error *err);
void train__load_routes(const train_model *m, const train__micro *mb, int64_t layer, train__routes *routes);
void train__load_clear(train_model *m);

/* Whether weights and gradients are sharded. */
static inline int train__model_sharded(const train_model *m) {
    return m->units.shares != NULL;
}
/* Whether only an adapter is trained. */
static inline int train__model_frozen(const train_model *m) {
    return m->adapter != NULL;
}
/* The gradient at `offset` of the flat array; of a frozen one, a place whose contents mean nothing. */
void *train__model_grad(const train_model *m, int64_t offset);

/* Arrays of [padded tokens] (advantages: [samples]) that are staged with a batch; NULL if not needed. */
typedef struct train__extra {
    const float *old, *generator, *reference, *advantages;
    int32_t negative_weights; /* coef = -weight */
} train__extra;

/* Checks the batch and stages it; sets ragged, scored and staged. */
ravel_status train__model_stage(train_model *m, train__micro *mb, const train_batch *batch, const train__extra *extra,
                                ravel_error *err);
/* Coefficients for the batch that is staged already. */
void train__model_stage_coefs(train_model *m, train__micro *mb, const float *coef);

/* Rows of scored tokens: to[to_ids[r]] = from[from_ids[r]], either list may be NULL. */
void train__model_copy_scored(const train_model *m, const train__micro *mb, void *to, const void *from,
                              const int32_t *to_ids, const int32_t *from_ids);
/* The way back: rows of d_x that predict get the sum of their scored rows. */
void train__model_spread_scored(const train_model *m, const train__micro *mb, void *d_x, const void *d_rows);
/* d_x += what comes through the norm of x, whose weight is at `offset`; d_y is the gradient after it. */
void train__model_norm_backward(const train_model *m, int64_t offset, const void *x, const void *d_y, void *d_x,
                                int64_t rows);

/* model_experts.c: the two halves of the backward of a block of experts. From the gradient of what the block gave to
 * that of gate_up, which takes its place; and from there to d_x =, which may be xn. */
void train__model_experts_down(train_model *m, int64_t layer, const train__acts *a, const void *d_out, int64_t rows);
void train__model_experts_up(train_model *m, int64_t layer, const train__acts *a, const void *xn, void *d_x,
                             int64_t rows);

/* Where the input of `layer` (the last one's output: of the layer after it) is kept. */
void *train__model_x(const train_model *m, const train__micro *mb, int64_t layer);
/* The layers of this stage, from the embedding or from the input of the first one. On the last stage the hidden rows of
 * scored tokens go to head_x and, normalised, to head_xn. */
void train__model_layers(train_model *m, train__micro *mb);
/* How the kernel set cuts the attention of the current micro-batch (train_kernels.attention_shape). */
uint64_t train__model_attention_shape(const train_model *m, const train__micro *mb);
/* From the gradient of the output (d_x in the working block on the last stage) to all gradients below it. */
void train__model_layers_backward(train_model *m, train__micro *mb);

typedef enum train__head_mode {
    TRAIN__HEAD_SCORE, /* log-probs */
    TRAIN__HEAD_LEARN, /* log-probs, coefficients from the loss, gradients */
    TRAIN__HEAD_BACK   /* logits again, coefficients known, gradients */
} train__head_mode;

typedef struct train__head {
    train__head_mode mode;
    int32_t entropy;                  /* is worked out, or was */
    int32_t right;                    /* SCORE: whether targets are the likeliest tokens, in the place of entropies */
    int32_t entropy_coef;             /* there are coefficients of entropies */
    const train_policy_terms *policy; /* LEARN: NULL for the weighted sum */
    const train_real *coef, *entropy_coefs; /* BACK: [scored] */
    int32_t *top_ids;                       /* SCORE: =, LEARN: of a teacher; NULL: none */
    float *top_logprob;
    double top_weight;
} train__head;

/* Runs the chunks. With gradients, d_x of the last layer is left in the working block. */
void train__model_head(train_model *m, train__micro *mb, const train__head *head);
/* The loss of scored rows first .. first + count - 1. */
train_loss_rows train__model_loss_rows(const train_model *m, const train__micro *mb, const train__head *head,
                                       int64_t first, int64_t count);

#endif
