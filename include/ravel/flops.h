/* ravel/flops.h: how many floating-point operations a packed batch takes, exactly.
 *
 * Nouns
 *   lengths sum   the figures of a batch that the count needs: the number of samples, the sum of their lengths and the
 *                 sum of their squared lengths. Sums of parts can be merged, so ranks and micro-steps can be added up.
 *   flops         an exact 128-bit count. A multiply-add is two operations.
 *
 * The count is of matrix work only, as is usual: norms, softmax, rotary embeddings, activations and the
 * optimiser are left out. With T = sum of lengths, S = sum of squared lengths, H = number of tokens that go through
 * the LM head, D = heads * head_dim, K = kv_heads * head_dim, multiply-adds of one forward pass are
 *
 *     per layer     T * hidden * (D + 2 K)        q, k and v: fewer key and value heads make only this line smaller
 *                   T * D * hidden                the output projection
 *                   2 * D * (S + T) / 2           scores and values: a sample of length L has L (L + 1) / 2 causal
 *                                                 pairs of positions; samples never see one another
 *     dense layer   T * m * hidden * ffn          m = 3 matrices if gated (SwiGLU), else 2
 *     MoE layer     T * hidden * experts          the router
 *                   T * m * hidden * (experts_active * expert_ffn + shared_ffn)
 *     once          H * hidden * vocab            the LM head; tied or not makes no difference, a lookup is free
 *
 * forward = 2 * multiply-adds, backward = 2 * forward. Recomputation adds what is run again: everything but the LM
 * head (full), or the scores-and-values line (attention).
 *
 *     ravel_lengths_sum sum = {0};
 *     ravel_lengths_add(&sum, lengths, count);
 *     ravel_flops_count(&shape, &sum, sum.tokens, RAVEL_RECOMPUTE_NONE, &flops, &err);
 *     printf("%.3f TFLOP\n", ravel_flops_real(flops.model) / 1e12);
 */
#ifndef RAVEL_FLOPS_H
#define RAVEL_FLOPS_H

#include <ravel/shape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* high * 2^64 + low. */
typedef struct ravel_u128 {
    uint64_t high;
    uint64_t low;
} ravel_u128;

/* All zero is the sum of nothing. */
typedef struct ravel_lengths_sum {
    int64_t samples;
    int64_t tokens;     /* sum of lengths */
    ravel_u128 squares; /* sum of squared lengths */
    int64_t shortest;   /* 0 when there are no samples */
    int64_t longest;
} ravel_lengths_sum;

/* Adds `count` samples; a length below 1 is left out. Exact for lengths up to 2^31 and 2^31 samples. */
RAVEL_API void ravel_lengths_add(ravel_lengths_sum *sum, const int64_t *lengths, int64_t count);
RAVEL_API void ravel_lengths_merge(ravel_lengths_sum *sum, const ravel_lengths_sum *other);

/* What the backward pass recomputes. */
typedef enum ravel_recompute {
    RAVEL_RECOMPUTE_NONE,
    RAVEL_RECOMPUTE_ATTENTION, /* scores and values only (Megatron's "selective") */
    RAVEL_RECOMPUTE_FULL       /* every layer */
} ravel_recompute;
#define RAVEL_RECOMPUTE_CHOICES "none|attention|full"

typedef struct ravel_flops {
    ravel_u128 forward;
    ravel_u128 backward;
    ravel_u128 recompute;
    ravel_u128 model;    /* forward + backward: what MFU is made of */
    ravel_u128 hardware; /* model + recompute: what HFU is made of */
} ravel_flops;

/* `head_tokens`: tokens that go through the LM head; sum->tokens if all do. E_DATA for a shape that
 * ravel_shape_check refuses, E_OVERFLOW past 2^128. */
RAVEL_API ravel_status ravel_flops_count(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                                         ravel_recompute recompute, ravel_flops *flops, ravel_error *err);

/* The same if the model is frozen and an adapter of `adapter` weights beside its matrices (LoRA) is trained; 0: the
 * model is. A product with a frozen weight is made once in backward, not twice, and the first layer's q, k and v have
 * no backward at all; the adapter's own are made three times. */
RAVEL_API ravel_status ravel_flops_adapted(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                                           int64_t adapter, ravel_recompute recompute, ravel_flops *flops,
                                           ravel_error *err);

/* The nearest double. */
RAVEL_API double ravel_flops_real(ravel_u128 count);

/* The dense bf16 peak of one GPU in FLOP/s (no sparsity), by the name that its driver gives ("NVIDIA H100 80GB HBM3",
 * "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X") or a short one ("h100", "H100 PCIe"). 0 for a name that is not
 * surely known: a laptop part, a slice of a GPU, a new product. An unknown peak gives no MFU. */
RAVEL_API double ravel_gpu_peak(const char *name);
/* The i-th row of the table: its name and peak; NULL after the last. */
RAVEL_API const char *ravel_gpu_name(int32_t index, double *peak);

#ifdef __cplusplus
}
#endif
#endif
