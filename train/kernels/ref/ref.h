/* The reference set, one prototype a kernel. The names depend on the type that it is compiled for, so that float and
 * double versions live in one program. */
#ifndef TRAIN_KERNELS_REF_H
#define TRAIN_KERNELS_REF_H

#include "train/kernels/kernels.h"

#ifdef TRAIN_DOUBLE
#define REF(name) train__ref64_##name
#else
#define REF(name) train__ref_##name
#endif

/* A token and its weight, for sorting. */
typedef struct train__ranked {
    double weight;
    int32_t token;
} train__ranked;

struct train_device {
    const ravel_allocator *allocator;
    train__ranked *ranked; /* [vocab] for `sample` */
    int64_t vocab;
};

extern const train_kernels REF(table);

void REF(matmul)(train_device *d, const train_matmul *x);
void REF(copy_rows)(train_device *d, const train_rows *x);
void REF(scatter_add)(train_device *d, train_real *table, const train_real *x, const int32_t *ids, int64_t rows,
                      int64_t width);
void REF(bias)(train_device *d, train_real *x, const train_real *bias, int64_t rows, int64_t width, int64_t ld);
void REF(bias_backward)(train_device *d, train_real *d_bias, const train_real *d_x, int64_t rows, int64_t width,
                        int64_t ld);
void REF(adamw)(train_device *d, const train_adamw *x);
void REF(sum_squares)(train_device *d, const train_real *x, int64_t n, double *host);

void REF(rmsnorm)(train_device *d, train_real *y, train_real *sum, const train_real *x, const train_real *add,
                  const train_real *weight, train_real eps, int64_t rows, int64_t width);
void REF(rmsnorm_backward)(train_device *d, train_real *d_x, train_real *d_weight, const train_real *d_y,
                           const train_real *x, const train_real *weight, train_real eps, int64_t rows, int64_t width);
void REF(rope)(train_device *d, const train_rope *x);
void REF(rope_backward)(train_device *d, const train_rope *x);
void REF(swiglu)(train_device *d, train_real *h, const train_real *gate_up, int64_t rows, int64_t ffn);
void REF(swiglu_backward)(train_device *d, train_real *d_gate_up, train_real *h, const train_real *d_h,
                          const train_real *gate_up, int64_t rows, int64_t ffn);

void REF(attention)(train_device *d, const train_attention *x);
void REF(attention_backward)(train_device *d, const train_attention *x);
void REF(attention_cached)(train_device *d, const train_cached *x);

void REF(softmax)(train_device *d, const train_softmax *x);
void REF(softmax_backward)(train_device *d, const train_softmax *x);
void REF(sample)(train_device *d, const train_sample *x);

#endif
