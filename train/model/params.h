/* train/model/params.h: the parameters of a model as one flat array, and a table of names, shapes and offsets.
 *
 * Weights, gradients and each of the optimiser's states are arrays of `elements` numbers with the same layout, so that
 * everything that works on all parameters (all-reduce, sharding, the optimiser, refit, checkpoints) sees one run of
 * memory and, where it cares, this table:
 *
 *     embed | layer 0: q k v | (biases) | o | q_norm k_norm | gate up | down | norms | layer 1 ... | norm | (lm_head)
 *
 * Names, shapes and order are Hugging Face's, except that with attention biases q, k and v come first and their biases
 * after them: q, k and v are one matrix to the model, as are gate and up; a family whose files have them as one tensor
 * (ravel__family.fused) has them apart here, and so has one with stacked experts. Tensors begin at multiples of 16
 * elements, those two groups apart; elements between tensors are 0 and stay 0.
 *
 * A layer with experts has the router and then gate, up and down of each expert in place of those of the block; from
 * one expert to the next it is the same distance everywhere. Where ranks share out the experts (train_slice.ep) a part
 * has its own after the rest of their layer, as a unit.
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
    TRAIN_SPLIT_FFN,      /* rows of the feed-forward block, or of each expert */
    TRAIN_SPLIT_VOCAB,    /* rows of the vocabulary, as evenly as possible */
    TRAIN_SPLIT_HEADS_IN, /* columns, by query heads */
    TRAIN_SPLIT_FFN_IN    /* columns of the feed-forward block */
} train_split;

/* X(NAME, name, rows, columns, decay, split): the tensors of one layer, in order. Sizes are in terms of the macro's
 * user. The norms are before attention, after it, before the feed-forward block and after it; the family's row has
 * their names, or says that there are none, and the names of routers and experts. */
#define TRAIN_LAYER_LIST(X)                                        \
    X(Q, "self_attn.q_proj.weight", q_width, hidden, 1, HEADS)     \
    X(K, "self_attn.k_proj.weight", kv_width, hidden, 1, KV_HEADS) \
    X(V, "self_attn.v_proj.weight", kv_width, hidden, 1, KV_HEADS) \
    X(Q_BIAS, "self_attn.q_proj.bias", q_width, 0, 0, HEADS)       \
    X(K_BIAS, "self_attn.k_proj.bias", kv_width, 0, 0, KV_HEADS)   \
    X(V_BIAS, "self_attn.v_proj.bias", kv_width, 0, 0, KV_HEADS)   \
    X(O, "self_attn.o_proj.weight", hidden, q_width, 1, HEADS_IN)  \
    X(Q_NORM, "self_attn.q_norm.weight", q_norm, 0, 0, NONE)       \
    X(K_NORM, "self_attn.k_norm.weight", k_norm, 0, 0, NONE)       \
    X(ROUTER, NULL, experts, hidden, 1, NONE)                      \
    X(GATE, "mlp.gate_proj.weight", ffn, hidden, 1, FFN)           \
    X(UP, "mlp.up_proj.weight", ffn, hidden, 1, FFN)               \
    X(DOWN, "mlp.down_proj.weight", hidden, ffn, 1, FFN_IN)        \
    X(NORM_IN, NULL, hidden, 0, 0, NONE)                           \
    X(NORM_ATTENDED, NULL, hidden, 0, 0, NONE)                     \
    X(NORM_OUT, NULL, hidden, 0, 0, NONE)                          \
    X(NORM_FED, NULL, hidden, 0, 0, NONE)

typedef enum train_layer_tensor {
#define X(NAME, name, rows, columns, decay, split) TRAIN_##NAME,
    TRAIN_LAYER_LIST(X)
#undef X
        TRAIN_LAYER_TENSORS
} train_layer_tensor;

/* A low-rank adapter (lora.h); rank 0: none. */
typedef struct train_lora {
    int32_t rank;
    int32_t rslora;   /* scale by alpha / sqrt(rank) */
    double alpha;     /* scale by alpha / rank */
    uint32_t targets; /* 1 << train_layer_tensor of each matrix that has one */
    uint32_t reserved;
    /* Set by the table: that of the model. If its files have q k v as one tensor, these are one target with one A. */
    const struct ravel__family *family;
} train_lora;
enum train_lora_half { TRAIN_LORA_A, TRAIN_LORA_B }; /* [rank, in] and [out, rank] */

/* The part of a model that a rank holds: layers of a pipeline stage, and a share of every matrix. All 0: the whole
 * model. */
typedef struct train_slice {
    int64_t first_layer, last_layer; /* layers first .. last - 1; last 0: to the end. The stage of layer 0 has the
                                        embedding, that of the last layer the last norm and the head (where that is the
                                        embedding, both stages have it). */
    int32_t tp, tp_rank;             /* 0 ranks mean 1 */
    int32_t ep, ep_rank;             /* ranks that share out the experts of every layer; 0 ranks mean 1 */
} train_slice;

/* The shape of the part: heads, kv_heads, ffn and vocab of this rank; layers of the whole model. E_ARGUMENT if the
 * model cannot be cut like that; the sentence says what would be possible. */
ravel_status train_slice_shape(const ravel_shape *whole, const train_slice *part, ravel_shape *local, ravel_error *err);
/* The first token of this rank's part of the vocabulary. */
int64_t train_slice_vocab(const ravel_shape *whole, const train_slice *part);

typedef struct train_tensor {
    const char *name;              /* as Hugging Face names it */
    int32_t rank;                  /* 1 or 2 */
    int32_t decay;                 /* whether weight decay applies: to matrices, not to norms and biases */
    int64_t dims[2];               /* row-major: [out, in] of a matrix; of the part */
    int64_t offset;                /* into the flat array, in elements */
    int64_t count;                 /* elements */
    int64_t whole[2];              /* dims of the whole tensor, */
    int64_t first[2];              /* and where in it this part begins */
    int64_t number;                /* of the tensor in the whole model */
    const char *file_name;         /* of the tensor of a file that it is a part of, usually `name`, */
    int64_t file_first, file_rows; /* which of its rows it begins with, and how many the file's has */
    const char *stacked;     /* of experts and routers: the tensor that files with stacked experts have; else NULL */
    int64_t stacked_dims[3]; /* [experts, rows, columns], or of a router [experts, columns, 0] */
    int64_t stacked_first;   /* the element of it that the whole tensor begins with */
    int32_t expert;          /* 1: of an expert */
    int32_t copies;          /* tensor-parallel ranks that have the same elements */
    int32_t partial;         /* its gradient must be summed over those copies */
    /* 1 on one of all ranks that have these elements: whose gradients count in the norm, and which are saved */
    int32_t counted;
} train_tensor;

/* What is gathered, reduced and stepped together: the embedding, a layer, or the last norm with the head. */
typedef struct train_unit {
    int64_t first, count;    /* elements of the flat array, up to the next unit */
    int64_t tensor, tensors; /* the first tensor, and how many */
    int32_t experts;         /* 1: experts of a layer, which other ranks have than the rest of it (train_slice.ep) */
    int32_t reserved;        /* 0 */
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
    train_lora lora;         /* of an adapter's table; rank 0: a model's */
    int32_t unit_norms;      /* norms multiply with 1 + weight */
    int64_t expert_first, expert_count; /* experts that this part has of each layer */
    int64_t expert_stride; /* elements from an expert's tensor to the same of the next one; 0: there are none */
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

/* `part` NULL: the whole model. E_UNSUPPORTED names what the trainer has no kernels for (latent attention, shared
 * experts, feed-forward without a gate). */
ravel_status train_params_create(const ravel_shape *shape, const train_slice *part, const ravel_allocator *allocator,
                                 train_params **params, ravel_error *err);
void train_params_free(train_params *params);

/* The tensor called `name`, or NULL. */
const train_tensor *train_params_find(const train_params *params, const char *name);
/* Where a layer's tensor begins (of experts, the first one's), or -1 where this part has none (a bias, q_norm, a layer
 * of another stage). */
int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which);
/* The same of an adapter: `half` of that matrix's; -1 where it has none. */
int64_t train_params_lora(const train_params *params, int64_t layer, train_layer_tensor which, int half);
/* The unit that has element `offset`, and that of a layer. */
int64_t train_params_unit(const train_params *params, int64_t offset);
/* The tensor that an element of the flat array is of. */
int64_t train_params_tensor_at(const train_params *params, int64_t offset);

/* Weights that are only read: in one flat array or, where each tensor stays in the map of its file, one by one. */
typedef struct train_frozen {
    const void *flat;          /* [params->elements]; NULL: `places` */
    const void *const *places; /* [params->count] where each tensor begins */
} train_frozen;
int64_t train_params_layer_unit(const train_params *params, int64_t layer);
/* The unit of the layer's experts; -1: they are in that of the layer, or there are none. */
int64_t train_params_expert_unit(const train_params *params, int64_t layer);

#endif
