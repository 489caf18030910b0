/* Launchers of the CUDA set's own kernels, implemented in the .cu files. Internal to the set.
 *
 * Arguments are those of kernels.h where they fit. Pointers are device memory. Activations and weights are bf16,
 * gradients and statistics f32. Rows have no gap between them unless an `ld` says otherwise; widths are multiples of 8
 * and blocks are aligned to 16 bytes (the table's limits see to both). Launchers allocate nothing and never wait.
 * Scratch is the caller's; where a launcher needs some, a function beside it says how many bytes. */
#ifndef TRAIN_CUDA_LAUNCH_H
#define TRAIN_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "train/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What kernels may use on the current GPU. A kernel that does not fit has a plain form, which every GPU since Ampere
 * runs. RAVEL_CUDA_PLAIN=1 asks for the plain forms everywhere, for tests. */
typedef struct cuda_forms {
    int clusters;  /* blocks of a cluster reach each other's shared memory: Hopper and later */
    size_t shared; /* bytes of shared memory of a block, at most */
} cuda_forms;
cuda_forms cuda_forms_here(void); /* set.c */

/* ---- norm.cu: with ld_x and ld_y ---- */
void cuda_rmsnorm(cudaStream_t stream, const train_norm *args);
/* parts: [cuda_norm_parts(rows), width] floats */
void cuda_rmsnorm_backward(cudaStream_t stream, const train_norm *args, float *parts);
int64_t cuda_norm_parts(int64_t rows);
/* to[width] += the sum of parts[count, width], rows `ld` apart, in an order that depends on the sizes alone. Where
 * `second` is not NULL: second[width] += the next `width` columns. */
void cuda_add_parts(cudaStream_t stream, float *to, float *second, const float *parts, int64_t count, int64_t width,
                    int64_t ld);

/* ---- rope.cu: with `rotated`; head_dim is 8, 16, 32, 64, 96, 128 or 256, `rotated` a multiple of 8 ---- */
void cuda_rope(cudaStream_t stream, const train_rope *args);
/* parts: [cuda_rope_parts(tokens), 2 head_dim] floats */
void cuda_rope_backward(cudaStream_t stream, const train_rope *args, float *parts);
int64_t cuda_rope_parts(int64_t tokens);

/* ---- flat.cu ---- */
void cuda_gated(cudaStream_t stream, const train_gated *args);
void cuda_gated_backward(cudaStream_t stream, const train_gated *args);
/* y = by * x; y may be x */
void cuda_scale(cudaStream_t stream, void *y, const void *x, float by, int64_t n);
void cuda_bias(cudaStream_t stream, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld);
/* parts: [cuda_norm_parts(rows), width] floats */
void cuda_bias_backward(cudaStream_t stream, float *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld,
                        float *parts);
/* Rows of `bytes` bytes, ld_to and ld_from bytes apart; all multiples of 16. */
void cuda_copy_rows(cudaStream_t stream, void *to, const void *from, const int32_t *to_ids, const int32_t *from_ids,
                    int64_t rows, int64_t bytes, int64_t ld_to, int64_t ld_from);
/* Sums of rows of bf16, `width` elements each, see train_rows.first. */
void cuda_sum_rows(cudaStream_t stream, void *to, const void *from, const int32_t *to_ids, const int32_t *first,
                   const int32_t *list, int64_t rows, int64_t width, int64_t ld_to, int64_t ld_from);
/* Rows first .. first + count - 1 of a table are here; another id gives zeros and takes no gradient. Row r has id
 * ids[r], or ids[picks[r]]. */
void cuda_embed(cudaStream_t stream, void *y, const void *table, const int32_t *ids, const int32_t *picks, int64_t rows,
                int64_t width, int64_t first, int64_t count);
void cuda_embed_backward(cudaStream_t stream, float *table, const void *d_y, const int32_t *ids, const int32_t *order,
                         int64_t ordered, int64_t width, int64_t first, int64_t count);
void cuda_cast_to_bf16(cudaStream_t stream, void *to, const float *from, int64_t n);
void cuda_cast_to_f32(cudaStream_t stream, float *to, const void *from, int64_t n);
void cuda_add(cudaStream_t stream, float *to, const float *from, int64_t n);
/* sums[i] = the sum of squares of span i, in double */
void cuda_sum_squares(cudaStream_t stream, double *sums, const float *x, int64_t n, int64_t span);
void cuda_clip_norm(cudaStream_t stream, train_clip *clip, const double *sums, int64_t count, double most);

typedef struct cuda_adamw_args {
    int64_t n;
    float *master;          /* [n] */
    void *weight;           /* [n] bf16 copy of the master, or NULL */
    const float *grad;      /* [n] */
    void *m, *v;            /* [n] float, or bf16 with bf16_moments */
    const train_clip *clip; /* NULL: neither clipped nor skipped */
    float lr, beta1, beta2, eps, decay;
    float correct1, correct2; /* 1 - beta^step */
    int32_t bf16_moments;
} cuda_adamw_args;
void cuda_adamw(cudaStream_t stream, const cuda_adamw_args *args);

/* ---- experts.cu ---- */
void cuda_route(cudaStream_t stream, const train_route *args);
void cuda_route_backward(cudaStream_t stream, const train_route *args);
/* Both directions. */
void cuda_weigh(cudaStream_t stream, const train_weigh *args);

/* ---- head.cu ---- */
void cuda_softmax_parts(cudaStream_t stream, const train_softmax *args);
void cuda_softmax_combine(cudaStream_t stream, const train_softmax *args);
void cuda_softmax_backward(cudaStream_t stream, const train_softmax *args);
void cuda_softmax_fused(cudaStream_t stream, const train_softmax *args, int multiprocessors);

/* ---- sample.cu ---- */
void cuda_sample(cudaStream_t stream, const train_sample *args);

/* ---- attention_own.cu: head_dim is a multiple of 8, at most 256 ---- */
void cuda_attention_own(cudaStream_t stream, const train_attention *args);
/* row_sums: [query tokens, heads] floats */
void cuda_attention_own_backward(cudaStream_t stream, const train_attention *args, float *row_sums);
/* Samples as rows of one token axis; starts ascend. */
typedef struct cuda_rows {
    const int32_t *starts, *lengths; /* [samples] */
    int32_t samples, tokens;
} cuda_rows;
/* (o, lse) merged with (other_o, other_lse), for the rows of `queries`. */
void cuda_attention_merge(cudaStream_t stream, void *o, float *lse, const void *other_o, const float *other_lse,
                          cuda_rows queries, int64_t heads, int64_t dim);
/* to += from, for the rows of `of`; rows are `width` (a multiple of 8) elements. */
void cuda_attention_add(cudaStream_t stream, void *to, const void *from, cuda_rows of, int64_t width);
/* cuDNN's lengths and offsets of samples first .. first + count - 1, in a batch of `entries`. */
enum { CUDA_QUERY_OFFSETS = 3, CUDA_KEY_OFFSETS = 2 };
typedef struct cuda_offsets_args {
    const int32_t *query_starts, *query_lengths, *key_starts, *key_lengths;
    int32_t first, count, entries, reserved;
    int64_t query_ld[CUDA_QUERY_OFFSETS], key_ld[CUDA_KEY_OFFSETS];
    int32_t *to_lengths; /* [2, entries] of queries, of keys */
    int64_t *to_offsets; /* [5, entries + 1] by the queries' three distances, then by the keys' two */
} cuda_offsets_args;
void cuda_attention_offsets(cudaStream_t stream, const cuda_offsets_args *args);

/* ---- decode.cu ---- */
enum { CUDA_DECODE_HEADS = 8 }; /* query heads of a block at most */
typedef struct cuda_decode_args {
    const void *k, *v; /* [pages, kv_heads, 64, head_dim] */
    const int32_t *table;
    int64_t pages_per_slot;
    int32_t rows, heads, kv_heads, head_dim, window, longest;
    float scale;
    const void *q;
    int64_t ld_q;
    const int32_t *slots, *lengths;
    void *o;
    float *partial;    /* cuda_decode_scratch bytes */
    unsigned *tickets; /* [rows, kv_heads] all 0, and 0 again after the launch */
} cuda_decode_args;
void cuda_decode(cudaStream_t stream, const cuda_decode_args *args);
int64_t cuda_decode_splits(int64_t longest);
size_t cuda_decode_scratch(int64_t rows, int64_t heads, int64_t dim, int64_t longest);

void cuda_cache_write(cudaStream_t stream, const train_cache_write *args);

/* ---- loss.cu ---- */
typedef struct cuda_loss_args {
    train_loss_rows rows;
    train_policy_terms policy; /* a copy, because kernels can't follow the host's pointer */
    int32_t has_policy;
} cuda_loss_args;
void cuda_loss(cudaStream_t stream, const cuda_loss_args *args);
void cuda_sequence_sums(cudaStream_t stream, const cuda_loss_args *args, train_sequence_sums *sequences);

#ifdef __cplusplus
}
#endif

#endif
