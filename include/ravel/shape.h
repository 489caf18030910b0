/* ravel/shape.h: the shape of a transformer: widths, heads, layers, vocabulary.
 *
 * The planner computes costs from it, metrics FLOPs, refit the tensors of its bench, and the trainer builds the model
 * from it. It is read from a Hugging Face `config.json` by ravel_shape_read, or taken by name from a few published
 * shapes.
 */
#ifndef RAVEL_SHAPE_H
#define RAVEL_SHAPE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How rotary positions are stretched beyond those that the model was first trained with. */
typedef enum ravel_rope {
    RAVEL_ROPE_PLAIN,
    RAVEL_ROPE_LINEAR, /* every frequency divided by the factor */
    RAVEL_ROPE_LLAMA3, /* low frequencies divided, high ones kept, a smooth change in between */
    RAVEL_ROPE_OTHER   /* a kind that is not listed here */
} ravel_rope;

typedef struct ravel_shape {
    int64_t hidden; /* model width */
    int64_t layers;
    int64_t heads;    /* query heads */
    int64_t kv_heads; /* key and value heads (grouped-query attention) */
    int64_t head_dim;
    int64_t ffn; /* width of the dense feed-forward block */
    int64_t vocab;
    int64_t experts;        /* 0: dense */
    int64_t experts_active; /* top-k */
    int64_t expert_ffn;     /* width of one expert */
    int64_t shared_ffn;     /* width of the always-on shared expert(s), 0: none */
    int64_t dense_layers;   /* layers with a dense block in an otherwise MoE model */
    int64_t max_positions;  /* the longest sequence that the model was made for, 0: unknown */
    int32_t tied;           /* the LM head is the embedding */
    int32_t qk_norm;        /* RMSNorm on queries and keys (Qwen3) */
    int32_t attention_bias; /* biases on q, k, v (Qwen2) */
    int32_t gated;          /* SwiGLU: three matrices in a feed-forward block, else two */
    double rope_theta;
    double norm_eps;
    /* latent attention (DeepSeek): queries and keys of head_dim, of which rope_dim are rotated, and values of v_dim,
     * all made from low-rank projections. All 0 in ordinary attention, where values are as wide as keys. */
    int64_t q_rank; /* 0: queries are projected in one go */
    int64_t kv_rank;
    int64_t rope_dim;
    int64_t v_dim;
    int64_t window;         /* keys that a query sees, itself included, the same in every layer; 0: all */
    int32_t rope;           /* ravel_rope; this and the rest with a rope that is not plain */
    int32_t reserved;       /* 0 */
    double rope_factor;     /* what frequencies are divided by */
    double rope_low;        /* llama3: wavelengths above rope_positions / rope_low are divided, */
    double rope_high;       /* below rope_positions / rope_high kept */
    int64_t rope_positions; /* llama3: positions of the first training */
} ravel_shape;

/* Reads a Hugging Face config (Llama, Mistral, Qwen2, Qwen3, their MoE variants, DeepSeek and what is named like them;
 * of a multimodal one, its text model). Missing keys get the defaults of transformers; a missing key without a default
 * is an error that names it. `path` may also be the folder that holds the config.json. */
RAVEL_API ravel_status ravel_shape_parse(const char *json_text, size_t bytes, ravel_shape *shape, ravel_error *err);
RAVEL_API ravel_status ravel_shape_read(const char *path, ravel_shape *shape, ravel_error *err);

/* A published shape by name: "qwen3-0.6b", "llama-8b", ... E_ARGUMENT suggests the nearest name and lists them all. */
RAVEL_API ravel_status ravel_shape_named(const char *name, ravel_shape *shape, ravel_error *err);
/* The i-th name, or NULL after the last. */
RAVEL_API const char *ravel_shape_name(int32_t index);

/* Every size positive, heads a multiple of kv_heads, head_dim even, all within 2^31. */
RAVEL_API ravel_status ravel_shape_check(const ravel_shape *shape, ravel_error *err);

/* Number of parameters, norms and biases included; embeddings counted once where tied. INT64_MAX where it would not fit
 * (as in the two below). */
RAVEL_API int64_t ravel_shape_parameters(const ravel_shape *shape);

/* Work per token, the base of both costs and FLOPs:
 *   matmul weights   the weights that one token is multiplied with: its active experts, routers and the LM head, but
 *                    no embedding lookup. A forward pass takes 2 FLOPs for each, a backward pass 4.
 *   attention width  multiply-adds for one (query, key) pair, over all heads and layers: scores and weighted values.
 *                    A forward pass takes 2 FLOPs for each and causal attention has length * (length + 1) / 2 pairs. */
RAVEL_API int64_t ravel_shape_matmul_weights(const ravel_shape *shape);
RAVEL_API int64_t ravel_shape_attention_width(const ravel_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
