/* The reference set, one prototype per kernel. The names depend on the type that it is compiled for, so that float and
 * double versions live in one program. */
#ifndef TRAIN_KERNELS_REF_H
#define TRAIN_KERNELS_REF_H

#include "train/kernels/checks.h"

#ifdef TRAIN_DOUBLE
#define REF(name) train__ref64_##name
#else
#define REF(name) train__ref_##name
#endif

extern const train_kernels REF(table);

void REF(matmul)(train_device *d, const train_matmul *x);
void REF(copy_rows)(train_device *d, const train_rows *x);
void REF(embed)(train_device *d, const train_embedding *x);
void REF(embed_backward)(train_device *d, const train_embedding *x);
void REF(bias)(train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld);
void REF(bias_backward)(train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld);

void REF(rmsnorm)(train_device *d, const train_norm *x);
void REF(rmsnorm_backward)(train_device *d, const train_norm *x);
void REF(rope)(train_device *d, const train_rope *x);
void REF(rope_backward)(train_device *d, const train_rope *x);
void REF(gated)(train_device *d, const train_gated *x);
void REF(gated_backward)(train_device *d, const train_gated *x);
void REF(scale)(train_device *d, void *y, const void *x, double by, int64_t n);

void REF(route)(train_device *d, const train_route *x);
void REF(route_backward)(train_device *d, const train_route *x);
void REF(weigh)(train_device *d, const train_weigh *x);
void REF(weigh_backward)(train_device *d, const train_weigh *x);
/* Rows first .. last - 1 of them. */
void REF(route_rows)(const train_route *x, int64_t first, int64_t last);
void REF(route_rows_backward)(const train_route *x, int64_t first, int64_t last);

void REF(attention)(train_device *d, const train_attention *x);
void REF(attention_backward)(train_device *d, const train_attention *x);
void REF(attention_merge)(train_device *d, const train_merge *x);
void REF(cache_write)(train_device *d, const train_cache_write *x);
void REF(attention_cached)(train_device *d, const train_cached *x);

void REF(softmax_parts)(train_device *d, const train_softmax *x);
void REF(softmax_combine)(train_device *d, const train_softmax *x);
void REF(softmax_backward)(train_device *d, const train_softmax *x);
void REF(softmax_fused)(train_device *d, const train_softmax *x);
void REF(sample)(train_device *d, const train_sample *x);
void REF(top_parts)(train_device *d, const train_top_rows *x);
void REF(top_combine)(train_device *d, const train_top_rows *x);
void REF(top_gather)(train_device *d, const train_top_rows *x);
void REF(top_loss)(train_device *d, const train_top_rows *x);
void REF(top_backward)(train_device *d, const train_top_rows *x);

/* These use nothing of the device, so every set on the host may take them. */
void REF(loss)(train_device *d, const train_loss_rows *x);
void REF(sequence_sums)(train_device *d, const train_loss_rows *x, train_sequence_sums *sequences);
void REF(add)(train_device *d, void *to, const void *from, int64_t n);
void REF(sum_squares)(train_device *d, const void *grads, int64_t n, int64_t span, double *sums);
void REF(clip)(train_device *d, const double *sums, int64_t count, double most, train_clip *clip);
void REF(adamw)(train_device *d, const train_adamw *x);

#endif
