/* The reference set: each kernel as its formula reads, one element after the other, sums in double. It is what the
 * fast sets are compared with, and, compiled in double, what finite differences are compared with.
 *
 *   ref.c         the device, products, rows, flat arrays, the table
 *   layers.c      rms-norm, rotation, swiglu
 *   attention.c   attention over a ragged batch and over a cache
 *   head.c        softmax, sampling */
#include "train/kernels/ref/ref.h"

#include "train/kernels/host.h"

#include <math.h>
#include <string.h>

/* ---- the device: host memory, no threads ---------------------------------------------------------------- */

static ravel_status device_open(const train_device_options *options, train_device **device, ravel_error *err) {
    const ravel_allocator *allocator = options ? options->allocator : NULL;
    if (options && options->products == TRAIN_PRODUCTS_OPENBLAS)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the reference kernels multiply matrices themselves");
    train_device *d = train__calloc(allocator, 1, sizeof *d);
    if (!d) return train__no_memory(err, sizeof *d, "the reference device");
    d->allocator = allocator;
    *device = d;
    return RAVEL_OK;
}

static void device_close(train_device *d) {
    if (!d) return;
    train__release(d->allocator, d->ranked, (size_t)d->vocab * sizeof *d->ranked);
    train__release(d->allocator, d, sizeof *d);
}

static size_t scratch_bytes(const train_limits *limits, int32_t threads) {
    (void)threads;
    return (size_t)limits->vocab * sizeof(train__ranked);
}

static ravel_status reserve(train_device *d, const train_limits *limits, ravel_error *err) {
    if (limits->vocab <= d->vocab) return RAVEL_OK;
    size_t bytes = scratch_bytes(limits, 1);
    train__ranked *ranked = train__alloc(d->allocator, bytes);
    if (!ranked) return train__no_memory(err, bytes, "scratch for sampling");
    train__release(d->allocator, d->ranked, (size_t)d->vocab * sizeof *d->ranked);
    d->ranked = ranked;
    d->vocab = limits->vocab;
    return RAVEL_OK;
}

static ravel_status sync_device(train_device *d, ravel_error *err) {
    (void)d, (void)err;
    return RAVEL_OK;
}

static ravel_status alloc_block(train_device *d, size_t bytes, void **block, ravel_error *err) {
    void *ptr = train__alloc_aligned(d->allocator, bytes);
    if (!ptr) return train__no_memory(err, bytes, "a device block");
    *block = ptr;
    return RAVEL_OK;
}

static void release_block(train_device *d, void *block, size_t bytes) {
    train__release_aligned(d->allocator, block, bytes);
}

static void upload(train_device *d, void *block, const void *host, size_t bytes) {
    (void)d;
    if (bytes) memcpy(block, host, bytes);
}

static void download(train_device *d, void *host, const void *block, size_t bytes) {
    (void)d;
    if (bytes) memcpy(host, block, bytes);
}

static void copy(train_device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    if (bytes) memcpy(to, from, bytes);
}

static void zero(train_device *d, void *block, size_t bytes) {
    (void)d;
    if (bytes) memset(block, 0, bytes);
}

/* ---- products and rows ---------------------------------------------------------------------------------- */

void REF(matmul)(train_device *d, const train_matmul *x) {
    (void)d;
    int64_t lda = x->lda ? x->lda : x->trans_a ? x->m : x->k;
    int64_t ldb = x->ldb ? x->ldb : x->trans_b ? x->k : x->n;
    int64_t ldc = x->ldc ? x->ldc : x->n;
    for (int64_t i = 0; i < x->m; i++)
        for (int64_t j = 0; j < x->n; j++) {
            double sum = x->add ? x->c[i * ldc + j] : 0;
            for (int64_t k = 0; k < x->k; k++) {
                train_real a = x->trans_a ? x->a[k * lda + i] : x->a[i * lda + k];
                train_real b = x->trans_b ? x->b[j * ldb + k] : x->b[k * ldb + j];
                sum += (double)a * b;
            }
            x->c[i * ldc + j] = (train_real)sum;
        }
}

void REF(copy_rows)(train_device *d, const train_rows *x) {
    (void)d;
    int64_t ld_to = x->ld_to ? x->ld_to : x->width, ld_from = x->ld_from ? x->ld_from : x->width;
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t to = x->to_ids ? x->to_ids[r] : r, from = x->from_ids ? x->from_ids[r] : r;
        memcpy(x->to + to * ld_to, x->from + from * ld_from, (size_t)x->width * sizeof *x->to);
    }
}

void REF(scatter_add)(train_device *d, train_real *table, const train_real *x, const int32_t *ids, int64_t rows,
                      int64_t width) {
    (void)d;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) table[ids[r] * width + i] += x[r * width + i];
}

void REF(bias)(train_device *d, train_real *x, const train_real *bias, int64_t rows, int64_t width, int64_t ld) {
    (void)d;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) x[r * ld + i] += bias[i];
}

void REF(bias_backward)(train_device *d, train_real *d_bias, const train_real *d_x, int64_t rows, int64_t width,
                        int64_t ld) {
    (void)d;
    for (int64_t i = 0; i < width; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += d_x[r * ld + i];
        d_bias[i] += (train_real)sum;
    }
}

/* ---- flat arrays ---------------------------------------------------------------------------------------- */

void REF(adamw)(train_device *d, const train_adamw *x) {
    (void)d;
    double fix1 = 1 - pow(x->beta1, (double)x->step), fix2 = 1 - pow(x->beta2, (double)x->step);
    for (int64_t i = 0; i < x->n; i++) {
        double g = x->grad_scale * x->grad[i];
        double m = x->beta1 * x->m[i] + (1 - x->beta1) * g;
        double v = x->beta2 * x->v[i] + (1 - x->beta2) * g * g;
        x->m[i] = (train_real)m;
        x->v[i] = (train_real)v;
        double step = m / fix1 / (sqrt(v / fix2) + x->eps) + x->decay * x->w[i];
        x->w[i] = (train_real)(x->w[i] - x->lr * step);
    }
}

void REF(sum_squares)(train_device *d, const train_real *x, int64_t n, double *host) {
    (void)d;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    *host = sum;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

const train_kernels REF(table) = {
    .name = "ref",
    .doc = "readable reference, one thread",
    .open = device_open,
    .close = device_close,
    .scratch_bytes = scratch_bytes,
    .reserve = reserve,
    .sync = sync_device,
    .alloc = alloc_block,
    .release = release_block,
    .upload = upload,
    .download = download,
    .copy = copy,
    .zero = zero,
    .matmul = REF(matmul),
    .copy_rows = REF(copy_rows),
    .scatter_add = REF(scatter_add),
    .bias = REF(bias),
    .bias_backward = REF(bias_backward),
    .rmsnorm = REF(rmsnorm),
    .rmsnorm_backward = REF(rmsnorm_backward),
    .rope = REF(rope),
    .rope_backward = REF(rope_backward),
    .attention = REF(attention),
    .attention_backward = REF(attention_backward),
    .attention_cached = REF(attention_cached),
    .swiglu = REF(swiglu),
    .swiglu_backward = REF(swiglu_backward),
    .softmax = REF(softmax),
    .softmax_backward = REF(softmax_backward),
    .sample = REF(sample),
    .adamw = REF(adamw),
    .sum_squares = REF(sum_squares),
};
