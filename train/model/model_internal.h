/* What the files of the model share. Internal to train/.
 *
 *   model.c          creation, memory, accessors
 *   model_batch.c    a batch checked, laid out and uploaded
 *   model_layers.c   the layers, forward and backward
 *   model_head.c     from the last hidden rows to log-probs, and back, a chunk of logits at a time
 *   model_run.c      score, learn, forward, backward
 *
 * Memory, in blocks of the device (T: budget, C: hidden):
 *
 *     kept       x of every layer [T, C] | qkv, o, lse, x_mid, gate_up of every layer, or of one (recompute) | head rows
 *     working    xn [T, C] | y [T, C] | d_x [T, C] | shared: what attention needs, or what feed-forward needs
 *     logits     [logits_rows, vocab]
 *     tables     rope, ids of the batch, numbers of the scored rows */
#ifndef TRAIN_MODEL_INTERNAL_H
#define TRAIN_MODEL_INTERNAL_H

#include "train/model/model.h"
#include "train/model/net.h"

/* Parts of the blocks, as element offsets; sizes are in elements of train_real (tables: see there). */
typedef struct train__layout {
    int64_t tokens;                      /* the budget */
    int64_t layers_x;                    /* how many x are kept: layers + 1, or 1 */
    int64_t layers_rest;                 /* how many of the rest: layers, or 1 */
    int64_t x_size, rest_size;           /* of one layer */
    int64_t qkv, o, lse, x_mid, gate_up; /* within a layer's rest */
    int64_t head_x, head_xn;             /* within kept: rows before and after the last norm */
    int64_t kept_elements;
    int64_t xn, y, d_x, shared, shared_size, working_elements;
    int64_t logits_rows, logits_elements;
    int64_t positions; /* rows of the rope tables */
    int64_t table_bytes, host_bytes;
} train__layout;

/* The batch on the device, [budget] each. */
typedef struct train__tables {
    train_real *cosine, *sine; /* [positions, head_dim / 2] */
    int32_t *tokens, *places, *starts, *lengths;
    int32_t *rows, *targets; /* of scored tokens: the row that predicts, and what */
    train_real *logprob, *lse, *entropy, *coef, *entropy_coef;
} train__tables;

/* The same on the host, [budget] each. */
typedef struct train__staging {
    int32_t *tokens, *positions, *starts, *lengths, *rows, *targets, *places;
    float *logprob, *entropy, *coef, *entropy_coef;
    train_real *real; /* a row of numbers on its way to the device */
} train__staging;

struct train_model {
    const ravel_allocator *allocator;
    train_model_options options;
    train_params *params;
    train__net net;
    train__layout layout;
    train_real *weights, *grads, *kept, *working, *logits;
    char *table_block, *host_block;
    train__tables tables;
    train__staging staging;

    /* the batch that was prepared last */
    train_batch batch;
    train_ragged ragged;
    int64_t scored;
    train_real logit_scale;
    int32_t gaps;         /* some rows belong to no sample */
    int32_t forward_kept; /* train_model_forward ran, and may be followed by backward */
    int32_t entropy_kept; /* ... with entropies */
};

/* Parts of one layer's activations. */
typedef struct train__acts {
    train_real *x, *qkv, *o, *lse, *x_mid, *gate_up;
} train__acts;
train__acts train__model_acts(const train_model *m, int64_t layer);

/* Checks the batch and puts it on the device; sets ragged, scored and the staged arrays. */
ravel_status train__model_prepare(train_model *m, const train_batch *batch, ravel_error *err);

/* Embedding and all layers; the last hidden rows of scored tokens go to head_x and, normalised, to head_xn. */
void train__model_layers(train_model *m);
/* From d_x of the last layer to all gradients below it. */
void train__model_layers_backward(train_model *m);

typedef enum train__head_mode {
    TRAIN__HEAD_SCORE, /* log-probs */
    TRAIN__HEAD_LEARN, /* log-probs, coefficients from the loss, gradients */
    TRAIN__HEAD_BACK   /* logits again, coefficients given, gradients */
} train__head_mode;

typedef struct train__head {
    train__head_mode mode;
    int32_t entropy;        /* is worked out, or was */
    int32_t entropy_coef;   /* BACK: coefficients of entropies were given */
    const train_loss *loss; /* LEARN: NULL for the weighted sum */
    train_result *result;   /* SCORE, LEARN */
} train__head;

/* Runs the chunks. With gradients, d_x of the last layer is left in the working block. */
ravel_status train__model_head(train_model *m, const train__head *head, ravel_error *err);

#endif
