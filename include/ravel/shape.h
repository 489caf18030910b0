/* ravel/shape.h: the shape of a transformer: widths, heads, layers, vocabulary.
 *
 * The planner computes costs from it, metrics FLOPs, refit the tensors of its bench, and the trainer builds the model
 * from it. It is read from a Hugging Face `config.json` by ravel_shape_read, or taken by name from a few published
 * shapes.
 */
#ifndef RAVEL_SHAPE_H
#define RAVEL_SHAPE_H

#include <ravel/base.h>

#define RAVEL_ROPE_PAIRS 64 /* of a longrope at most */

#ifdef __cplusplus
extern "C" {
#endif

/* How rotary positions are stretched beyond those that the model was first trained with. */
typedef enum ravel_rope {
    RAVEL_ROPE_PLAIN,
    RAVEL_ROPE_LINEAR, /* every frequency divided by the factor */
    RAVEL_ROPE_LLAMA3, /* low frequencies divided, high ones kept, a smooth change in between */
    RAVEL_ROPE_OTHER,  /* a kind that is not listed here */
    RAVEL_ROPE_YARN,   /* as llama3, with a ramp over pairs in between (Qwen beyond 32,768 positions) */
    RAVEL_ROPE_LONG    /* longrope: each frequency has factors of its own (Phi-3.5, Phi-4-mini) */
} ravel_rope;

/* Which vectors of queries and keys are normalised (RMSNorm). */
typedef enum ravel_qk_norm {
    RAVEL_QK_NORM_NONE,
    RAVEL_QK_NORM_HEAD, /* each head by itself (Qwen3, Gemma 3) */
    RAVEL_QK_NORM_WHOLE /* all heads as one vector (OLMo 2) */
} ravel_qk_norm;

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
    int32_t qk_norm;        /* ravel_qk_norm */
    int32_t attention_bias; /* biases on q, k, v (Qwen2) */
    int32_t gated;          /* SwiGLU: three matrices in a feed-forward block, else two */
    double rope_theta;
    double norm_eps;
    /* latent attention (DeepSeek): queries and keys of head_dim, of which the last rope_dim are rotated, and values of
     * v_dim, all made from low-rank projections. In ordinary attention values are as wide as keys, all but rope_dim are
     * 0, and the first rope_dim elements of a head are rotated (0: all). */
    int64_t q_rank; /* 0: queries are projected in one go */
    int64_t kv_rank;
    int64_t rope_dim;
    int64_t v_dim;
    int64_t window;         /* keys that a query sees, itself included; 0: all */
    int32_t rope;           /* ravel_rope */
    int32_t family;         /* row of src/base/model/family.c; 0: by qk_norm, attention_bias and window */
    double rope_factor;     /* what frequencies are divided by */
    double rope_low;        /* llama3, yarn: wavelengths above rope_positions / rope_low are divided, */
    double rope_high;       /* below rope_positions / rope_high kept */
    int64_t rope_positions; /* positions of the first training; longrope: longer sequences take rope_long */
    int64_t window_every;   /* every n-th layer sees all keys in spite of `window`; 0: none does */
    int64_t rope_every;     /* every n-th layer has no rope; 0: all have */
    double rope_local;      /* rope_theta of layers with a window, whose rope is plain; 0: as all others */
    double attention_scale; /* of scores; 0: 1 / sqrt(head_dim) */
    double embedding_scale; /* embeddings are multiplied with it; 0: 1, as for the next two */
    double residual_scale;  /* what a block adds is multiplied with it */
    double logits_scale;    /* logits are divided by it */
    /* which the `dense_layers` are: bit i % 64 of word i / 64 for layer i; all 0: the first ones */
    uint64_t dense_mask[2];
    int64_t router_norm;   /* weights of a token's experts are divided by their sum */
    double router_aux;     /* coefficient of the load loss of training (router_aux_loss_coef, where output_router_logits
                               asks for it); 0: none */
    double rope_attention; /* yarn, longrope: what cosines and sines are multiplied with; 0: 1 */
    int32_t rope_exact;    /* yarn: the bounds of the ramp are not rounded to whole pairs */
    int32_t rope_always; /* longrope: 1: shorter sequences take rope_long too; -1: longer ones rope_short; 0: neither */
    /* longrope: what the frequency of each pair is divided by, in sequences of at most rope_positions and in longer
     * ones */
    float rope_short[RAVEL_ROPE_PAIRS], rope_long[RAVEL_ROPE_PAIRS];
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

/* Whether the layer's feed-forward block is a choice of experts. */
RAVEL_API int32_t ravel_shape_has_experts(const ravel_shape *shape, int64_t layer);

/* Number of parameters, norms and biases included; embeddings counted once if tied. INT64_MAX if it would not fit
 * (as in the two below). */
RAVEL_API int64_t ravel_shape_parameters(const ravel_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
