/* The reference set: each kernel as its formula reads, one element after the other, sums in double. It is what the
 * fast sets are compared with, and, compiled in double, what finite differences are compared with.
 *
 *   ref.c         the device, products, rows, the table
 *   layers.c      rms-norm, rotation, gated units
 *   attention.c   attention over a ragged batch and over a cache
 *   experts.c     routing
 *   head.c        softmax, sampling
 *   top.c         a teacher's likeliest tokens
 *   loss.c        losses, gradient norm, AdamW */
#include "train/kernels/ref/ref.h"

#include "train/kernels/host.h"
#include "train/kernels/ref/device.h"

#include <math.h>
#include <string.h>

/* ---- the device: host memory, no threads ---------------------------------------------------------------- */

static ravel_status device_open(const train_device_options *options, train_device **device, ravel_error *err) {
    const ravel_allocator *allocator = options ? options->allocator : NULL;
    if (options && options->products == TRAIN_PRODUCTS_OPENBLAS)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the reference kernels multiply matrices themselves");
    train_device *d = ravel__calloc(allocator, 1, sizeof *d);
    if (!d) return ravel__no_memory(err, sizeof *d, "the reference device");
    train__host_device_init(&d->host, allocator);
    *device = d;
    return RAVEL_OK;
}

static void device_close(train_device *d) {
    if (!d) return;
    const ravel_allocator *allocator = d->host.allocator;
    ravel__release(allocator, d->ranked, (size_t)d->vocab * sizeof *d->ranked);
    ravel__release(allocator, d, sizeof *d);
}

static size_t scratch_bytes(const train_limits *limits, int32_t threads) {
    (void)threads;
    return (size_t)limits->vocab * sizeof(train__ranked);
}

static ravel_status reserve(train_device *d, const train_limits *limits, ravel_error *err) {
    if (limits->vocab <= d->vocab) return RAVEL_OK;
    size_t bytes = scratch_bytes(limits, 1);
    train__ranked *ranked = ravel__alloc(d->host.allocator, bytes);
    if (!ranked) return ravel__no_memory(err, bytes, "scratch for sampling");
    ravel__release(d->host.allocator, d->ranked, (size_t)d->vocab * sizeof *d->ranked);
    d->ranked = ranked;
    d->vocab = limits->vocab;
    RAVEL_ASSERT(d->ranked && d->vocab > 0);
    return RAVEL_OK;
}

static int64_t head_rows(const train_limits *limits) {
    return limits->tokens < 64 ? limits->tokens : 64;
}

/* ---- products and rows ---------------------------------------------------------------------------------- */

void REF(matmul)(train_device *d, const train_matmul *product) {
    const train_matmul x = train__matmul_filled(product);
    const train_real *a = x.a, *b = x.b;
    train_real *c = x.c;
    (void)d;
    RAVEL_ASSERT(train__matmul_ok(product));
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) {
            double sum = x.add ? c[i * x.ldc + j] : 0;
            for (int64_t k = 0; k < x.k; k++)
                sum += (double)(x.trans_a ? a[k * x.lda + i] : a[i * x.lda + k]) *
                       (double)(x.trans_b ? b[j * x.ldb + k] : b[k * x.ldb + j]);
            c[i * x.ldc + j] = (train_real)(x.scale != 0 ? x.scale * sum : sum);
        }
}

static void sum_rows(const train_rows *x, int64_t r, int64_t ld_to, int64_t ld_from) {
    train_real *to = (train_real *)x->to + (x->to_ids ? x->to_ids[r] : r) * ld_to;
    for (int64_t i = 0; i < x->width; i++) {
        train_real sum = 0;
        for (int64_t k = x->first[r]; k < x->first[r + 1]; k++)
            sum += ((const train_real *)x->from)[x->from_ids[k] * ld_from + i];
        to[i] = sum;
    }
}

void REF(copy_rows)(train_device *d, const train_rows *x) {
    (void)d;
    RAVEL_ASSERT(train__rows_ok(x));
    int64_t ld_to = x->ld_to ? x->ld_to : x->width, ld_from = x->ld_from ? x->ld_from : x->width;
    for (int64_t r = 0; r < x->rows && x->first; r++) sum_rows(x, r, ld_to, ld_from);
    for (int64_t r = 0; r < x->rows && !x->first; r++) {
        int64_t to = x->to_ids ? x->to_ids[r] : r, from = x->from_ids ? x->from_ids[r] : r;
        memcpy((train_real *)x->to + to * ld_to, (const train_real *)x->from + from * ld_from,
               (size_t)x->width * sizeof(train_real));
    }
}

void REF(embed)(train_device *d, const train_embedding *x) {
    (void)d;
    RAVEL_ASSERT(train__embedding_ok(x));
    const train_real *table = x->table;
    train_real *y = x->y;
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t id = x->ids[x->picks ? x->picks[r] : r] - x->first;
        for (int64_t i = 0; i < x->width; i++)
            y[r * x->width + i] = id >= 0 && id < x->count ? table[id * x->width + i] : 0;
    }
}

void REF(embed_backward)(train_device *d, const train_embedding *x) {
    (void)d;
    RAVEL_ASSERT(train__embedding_backward_ok(x));
    const train_real *d_y = x->d_y;
    train_real *d_table = x->d_table;
    for (int64_t n = 0; n < x->ordered; n++) {
        int64_t r = x->order[n], id = x->ids[r] - x->first;
        for (int64_t i = 0; i < x->width && id >= 0 && id < x->count; i++)
            d_table[id * x->width + i] += d_y[r * x->width + i];
    }
}

void REF(bias)(train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld) {
    (void)d;
    RAVEL_ASSERT(train__bias_ok(x, bias, rows, width, ld));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) ((train_real *)x)[r * ld + i] += ((const train_real *)bias)[i];
}

void REF(bias_backward)(train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld) {
    (void)d;
    RAVEL_ASSERT(train__bias_ok(d_x, d_bias, rows, width, ld));
    for (int64_t i = 0; i < width; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += ((const train_real *)d_x)[r * ld + i];
        ((train_real *)d_bias)[i] += (train_real)sum;
    }
}

void REF(scale)(train_device *d, void *y, const void *x, double by, int64_t n) {
    (void)d;
    for (int64_t i = 0; i < n; i++) ((train_real *)y)[i] = (train_real)(by * ((const train_real *)x)[i]);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

enum { TYPE = TRAIN__REAL };

const train_kernels REF(table) = {
    .name = "ref",
    .doc = "readable reference, one thread",
    .types = {.weight = TYPE, .activation = TYPE, .grad = TYPE, .master = TYPE, .moment = TYPE},
    TRAIN__HOST_SLOTS,
    .copy = train__host_copy,
    .zero = train__host_zero,
    .open = device_open,
    .close = device_close,
    .scratch_bytes = scratch_bytes,
    .reserve = reserve,
    .head_rows = head_rows,
    .matmul = REF(matmul),
    .copy_rows = REF(copy_rows),
    .embed = REF(embed),
    .embed_backward = REF(embed_backward),
    .bias = REF(bias),
    .bias_backward = REF(bias_backward),
    .scale = REF(scale),
    .rmsnorm = REF(rmsnorm),
    .rmsnorm_backward = REF(rmsnorm_backward),
    .rope = REF(rope),
    .rope_backward = REF(rope_backward),
    .attention = REF(attention),
    .attention_backward = REF(attention_backward),
    .attention_merge = REF(attention_merge),
    .cache_write = REF(cache_write),
    .attention_cached = REF(attention_cached),
    .gated = REF(gated),
    .gated_backward = REF(gated_backward),
    .route = REF(route),
    .route_backward = REF(route_backward),
    .weigh = REF(weigh),
    .weigh_backward = REF(weigh_backward),
    .softmax_parts = REF(softmax_parts),
    .softmax_combine = REF(softmax_combine),
    .softmax_backward = REF(softmax_backward),
    .softmax_fused = REF(softmax_fused),
    .loss = REF(loss),
    .sequence_sums = REF(sequence_sums),
    .sample = REF(sample),
    .top_parts = REF(top_parts),
    .top_combine = REF(top_combine),
    .top_gather = REF(top_gather),
    .top_loss = REF(top_loss),
    .top_backward = REF(top_backward),
    .add = REF(add),
    .sum_squares = REF(sum_squares),
    .clip = REF(clip),
    .adamw = REF(adamw),
};
