/* train/model/params.h: the parameters of a model as one flat array, and a table of names, shapes and offsets.
 *
 * Weights, gradients and each of the optimiser's states are arrays of `elements` numbers with the same layout, so that
 * everything that works on all parameters (all-reduce, sharding, the optimiser, refit, checkpoints) sees one run of
 * memory and, where it cares, this table:
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

/* How a tensor is shared out over tensor-parallel ranks. */
typedef enum train_split {
    TRAIN_SPLIT_NONE,     /* every rank has all of it */
    TRAIN_SPLIT_HEADS,    /* rows, by query heads */
    TRAIN_SPLIT_KV_HEADS, /* rows, by key heads; where there are fewer than ranks, several ranks have the same */
    TRAIN_SPLIT_FFN,      /* rows of the feed-forward block */
    TRAIN_SPLIT_VOCAB,    /* rows of the vocabulary, as evenly as possible */
    TRAIN_SPLIT_HEADS_IN, /* columns, by query heads */
    TRAIN_SPLIT_FFN_IN    /* columns of the feed-forward block */
} train_split;

/* X(NAME, name, rows, columns, decay, split): the tensors of one layer, in order. Sizes are in terms of the macro's user.
 */
#define TRAIN_LAYER_LIST(X)                                        \
    X(Q, "self_attn.q_proj.weight", q_width, hidden, 1, HEADS)     \
    X(K, "self_attn.k_proj.weight", kv_width, hidden, 1, KV_HEADS) \
    X(V, "self_attn.v_proj.weight", kv_width, hidden, 1, KV_HEADS) \
    X(Q_BIAS, "self_attn.q_proj.bias", q_width, 0, 0, HEADS)       \
    X(K_BIAS, "self_attn.k_proj.bias", kv_width, 0, 0, KV_HEADS)   \
    X(V_BIAS, "self_attn.v_proj.bias", kv_width, 0, 0, KV_HEADS)   \
    X(O, "self_attn.o_proj.weight", hidden, q_width, 1, HEADS_IN)  \
    X(Q_NORM, "self_attn.q_norm.weight", head_dim, 0, 0, NONE)     \
    X(K_NORM, "self_attn.k_norm.weight", head_dim, 0, 0, NONE)     \
    X(GATE, "mlp.gate_proj.weight", ffn, hidden, 1, FFN)           \
    X(UP, "mlp.up_proj.weight", ffn, hidden, 1, FFN)               \
    X(DOWN, "mlp.down_proj.weight", hidden, ffn, 1, FFN_IN)        \
    X(NORM_IN, "input_layernorm.weight", hidden, 0, 0, NONE)       \
    X(NORM_OUT, "post_attention_layernorm.weight", hidden, 0, 0, NONE)

typedef enum train_layer_tensor {
#define X(NAME, name, rows, columns, decay, split) TRAIN_##NAME,
    TRAIN_LAYER_LIST(X)
#undef X
        TRAIN_LAYER_TENSORS
} train_layer_tensor;

/* The part of a model that a rank holds: layers of a pipeline stage, and a share of every matrix. All 0: the whole
 * model. */
typedef struct train_slice {
    int64_t first_layer, last_layer; /* layers first .. last - 1; last 0: to the end. The stage of layer 0 has the
                                        embedding, that of the last layer the last norm and the head (where that is the
                                        embedding, both stages have it). */
    int32_t tp, tp_rank;             /* 0 ranks mean 1 */
} train_slice;

/* The shape of the part: heads, kv_heads, ffn and vocab of this rank; layers of the whole model. E_ARGUMENT where the
 * model cannot be cut like that; the sentence says what would be possible. */
ravel_status train_slice_shape(const ravel_shape *whole, const train_slice *part, ravel_shape *local, ravel_error *err);
/* The first token of this rank's part of the vocabulary. */
int64_t train_slice_vocab(const ravel_shape *whole, const train_slice *part);

typedef struct train_tensor {
    const char *name; /* as Hugging Face names it */
    int32_t rank;     /* 1 or 2 */
    int32_t decay;    /* whether weight decay applies: to matrices, not to norms and biases */
    int64_t dims[2];  /* row-major: [out, in] of a matrix; of the part */
    int64_t offset;   /* into the flat array, in elements */
    int64_t count;    /* elements */
    int64_t whole[2]; /* dims of the whole tensor, */
    int64_t first[2]; /* and where in it this part begins */
    int64_t number;   /* of the tensor in the whole model */
    int32_t copies;   /* tensor-parallel ranks that have the same elements */
    int32_t partial;  /* its gradient must be summed over those copies */
    int32_t
        counted; /* 1 on one of all ranks that have these elements: whose gradients count in the norm, and which are saved */
} train_tensor;

/* What is gathered, reduced and stepped together: the embedding, a layer, or the last norm with the head. */
typedef struct train_unit {
    int64_t first, count;    /* elements of the flat array, up to the next unit */
    int64_t tensor, tensors; /* the first tensor, and how many */
} train_unit;

/* Read-only; made by train_params_create. */
typedef struct train_params {
    int64_t elements;            /* of the flat array; a multiple of 16 */
    int64_t count;               /* of tensors */
    const train_tensor *tensors; /* [count] in the order of their offsets */
    int64_t parameters;          /* elements that are parameters: without the gaps */
    train_slice part;            /* with the last layer and the number of ranks filled in */
    /* Where these begin; -1 where another stage has it. The head is the embedding where they are tied. */
    int64_t embedding, norm, head;
    int64_t unit_count;
    const train_unit *units; /* [unit_count] in the order of the array: (embedding), layers, (last norm and head) */
} train_params;

struct train_shares;

/* A flat array of this layout on a device: weights, gradients, a state of the optimiser. */
typedef struct train_array {
    const train_kernels *kernels;
    train_device *device;
    void *data;                        /* [params->elements], or this rank's share of them */
    int32_t dtype;                     /* of its elements */
    const struct train_shares *shares; /* NULL: all elements are here */
} train_array;

/* `part` NULL: the whole model. E_UNSUPPORTED names what the trainer has no kernels for (experts, latent attention, feed-forward without a gate). */
ravel_status train_params_create(const ravel_shape *shape, const train_slice *part, const ravel_allocator *allocator,
                                 train_params **params, ravel_error *err);
void train_params_free(train_params *params);

/* The tensor called `name`, or NULL. */
const train_tensor *train_params_find(const train_params *params, const char *name);
/* Where a layer's tensor begins, or -1 where this part has none (a bias, q_norm, a layer of another stage). */
int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which);
/* The unit that has element `offset`, and that of a layer. */
int64_t train_params_unit(const train_params *params, int64_t offset);
int64_t train_params_layer_unit(const train_params *params, int64_t layer);

#endif
