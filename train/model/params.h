/* train/model/params.h: the parameters of a model as one flat array and a table of what is where.
 *
 * Weights, gradients and each of the optimiser's states are arrays of `elements` numbers with the same layout, so that
 * whatever works on all parameters (all-reduce, sharding, the optimiser, refit, checkpoints) sees one run of memory
 * and, where it cares, this table:
 *
 *     embed | layer 0: q k v | (biases) | o | q_norm k_norm | gate up | down | norms | layer 1 ... | norm | (lm_head)
 *
 * Names, shapes and order are Hugging Face's, except that with attention biases q, k and v come first and their biases
 * after them: q, k and v are one matrix to the model, as are gate and up. Tensors begin at multiples of 16 elements,
 * those two groups apart; elements between tensors are 0 and stay 0.
 */
#ifndef TRAIN_PARAMS_H
#define TRAIN_PARAMS_H

#include <ravel/shape.h>

#include "train/kernels/kernels.h"

/* X(NAME, name, rows, columns, decay): the tensors of one layer, in order. Sizes are in terms of the macro's user. */
#define TRAIN_LAYER_LIST(X)                              \
    X(Q, "self_attn.q_proj.weight", q_width, hidden, 1)  \
    X(K, "self_attn.k_proj.weight", kv_width, hidden, 1) \
    X(V, "self_attn.v_proj.weight", kv_width, hidden, 1) \
    X(Q_BIAS, "self_attn.q_proj.bias", q_width, 0, 0)    \
    X(K_BIAS, "self_attn.k_proj.bias", kv_width, 0, 0)   \
    X(V_BIAS, "self_attn.v_proj.bias", kv_width, 0, 0)   \
    X(O, "self_attn.o_proj.weight", hidden, q_width, 1)  \
    X(Q_NORM, "self_attn.q_norm.weight", head_dim, 0, 0) \
    X(K_NORM, "self_attn.k_norm.weight", head_dim, 0, 0) \
    X(GATE, "mlp.gate_proj.weight", ffn, hidden, 1)      \
    X(UP, "mlp.up_proj.weight", ffn, hidden, 1)          \
    X(DOWN, "mlp.down_proj.weight", hidden, ffn, 1)      \
    X(NORM_IN, "input_layernorm.weight", hidden, 0, 0)   \
    X(NORM_OUT, "post_attention_layernorm.weight", hidden, 0, 0)

typedef enum train_layer_tensor {
#define X(NAME, name, rows, columns, decay) TRAIN_##NAME,
    TRAIN_LAYER_LIST(X)
#undef X
        TRAIN_LAYER_TENSORS
} train_layer_tensor;

typedef struct train_tensor {
    const char *name; /* as Hugging Face names it */
    int32_t rank;     /* 1 or 2 */
    int32_t decay;    /* whether weight decay applies: to matrices, not to norms and biases */
    int64_t dims[2];  /* row-major: [out, in] of a matrix */
    int64_t offset;   /* into the flat array, in elements */
    int64_t count;    /* elements */
} train_tensor;

/* Read-only; made by train_params_create. */
typedef struct train_params {
    int64_t elements;            /* of the flat array; a multiple of 16 */
    int64_t count;               /* of tensors */
    const train_tensor *tensors; /* [count] in the order of their offsets */
    int64_t parameters;          /* elements that are parameters: without the gaps */
} train_params;

/* A flat array of this layout on a device: weights, gradients, a state of the optimiser. */
typedef struct train_array {
    const train_kernels *kernels;
    train_device *device;
    void *data;    /* [params->elements] */
    int32_t dtype; /* of its elements */
} train_array;

/* E_UNSUPPORTED names what the trainer has no kernels for (experts, latent attention, feed-forward without a gate). */
ravel_status train_params_create(const ravel_shape *shape, const ravel_allocator *allocator, train_params **params,
                                 ravel_error *err);
void train_params_free(train_params *params);

/* The tensor called `name`, or NULL. */
const train_tensor *train_params_find(const train_params *params, const char *name);
/* Where a layer's tensor begins, or -1 where this model has none (a bias, q_norm). */
int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which);
/* The embedding, the last norm, and the head (which is the embedding where they are tied). */
int64_t train_params_embedding(const train_params *params);
int64_t train_params_norm(const train_params *params);
int64_t train_params_head(const train_params *params);

#endif
