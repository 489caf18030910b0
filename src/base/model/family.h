/* Families of models: what all models of one `model_type` share, a row of one table that everything reads which depends
 * on it: the reader of config.json, counts of parameters, the tensors of refit, the trainer's layer. */
#ifndef RAVEL_BASE_FAMILY_H
#define RAVEL_BASE_FAMILY_H

#include "base/json.h"
#include <ravel/shape.h>

/* Of the gate of a feed-forward block. */
typedef enum ravel__activation {
    RAVEL__ACTIVATION_SILU,
    RAVEL__ACTIVATION_GELU /* in its tanh form */
} ravel__activation;

/* The norms of a layer: before attention, after it, before the feed-forward block, after it. */
enum { RAVEL__LAYER_NORMS = 4 };

/* Names of tensors are those of a Hugging Face file, within a layer ("model.layers.N.") and without ".weight". */
typedef struct ravel__family {
    const char *model_type;   /* of config.json */
    const char *architecture; /* of transformers, for config.json; NULL: the native trainer does not have the family */
    const char *norms[RAVEL__LAYER_NORMS]; /* their names; NULL: the layers have none there */
    int32_t unit_norms;                    /* norms multiply with 1 + weight */
    int32_t activation;                    /* ravel__activation */
    int32_t fused;                         /* files have q, k, v as one tensor, and gate and up */
    int32_t windows;                       /* layers may have a sliding window; 2: unless the config says otherwise */
    int32_t scalars;                       /* the config has the four factors of Granite */
    int32_t scaled_embedding; /* embeddings are multiplied with the root of `hidden`, and attention_scale comes
                                             from query_pre_attn_scalar */
    int32_t partial;          /* rope may be on the first elements of a head alone */
    int32_t rope_every;       /* every n-th layer is without rope unless the config says otherwise */
    /* what a config means that lacks the key, as in transformers */
    const char *router;         /* of models with experts: name of the router; NULL: a dense family */
    const char *experts[4];     /* what comes before an expert's number, and names of gate, up and down after it */
    const char *expert_keys[2]; /* of config.json: how many there are, and their width (NULL: intermediate_size) */
    int32_t router_norm; /* weights of a token's experts are divided by their sum: 2: always; 1: unless the config says
                               otherwise (norm_topk_prob) */
    int32_t active;      /* experts of a token */
    int32_t kv_heads;    /* 0: as many as heads */
    int32_t head_dim;    /* 0: hidden / heads */
    int32_t qk_norm;     /* ravel_qk_norm */
    int32_t bias, ungated, tied;
    double rope_theta, norm_eps;
    int64_t max_positions;
    double rope_local;    /* of layers with a window */
    int64_t heads, vocab; /* 0: a config must say */
} ravel__family;

/* The i-th family, or NULL after the last; and that of a shape. */
const ravel__family *ravel__family_at(int32_t index);
const ravel__family *ravel__shape_family(const ravel_shape *shape);

/* What of a config.json describes the model of text: all of it, or of a model with images its "text_config". */
const ravel__json_node *ravel__family_config(const ravel__json *doc);

#endif
