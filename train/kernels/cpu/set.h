/* The fast CPU set for one instruction set: the bodies, the sizes of their scratch, the table. Included by the files
 * that choose the instruction set, after they have defined
 *
 *     CPU_LANES   floats in a vector
 *     CPU_NV      vectors in a row of a register tile
 *     CPU_TABLE   the name of the table
 *     CPU_TITLE   what train_kernels.name says
 *     CPU_DOC     what train_kernels.doc says */

enum { MR = 6, NV = CPU_NV, NR = CPU_NV * CPU_LANES };

#include "train/kernels/cpu/simd.h"

#include "train/kernels/cpu/gemm.h"

#include "train/kernels/cpu/layers.h"

#include "train/kernels/cpu/flat.h"

#include "train/kernels/cpu/attention.h"

#include "train/kernels/cpu/batch_invariant.h"

#include "train/kernels/cpu/head.h"

static void cpu_matmul(train_device *d, const train_matmul *x) {
    if (x->m == 0 || x->n == 0) return;
    if (x->exact && x->trans_b && !x->trans_a)
        exact_run(d, x);
    else if (d->blas)
        train__blas_matmul(d, x);
    else
        gemm_run(d, x);
}

static ravel_status cpu_open(const train_device_options *options, train_device **device, ravel_error *err) {
    return train__cpu_open(options, LANES >= 8, device, err);
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

static size_t shared_elements(const train_limits *l) {
    int64_t most = train__max(train__max(l->tokens, l->width), l->vocab);
    int64_t panels = train__min(KC, most) * train__round_up(train__min(NC, most), NR);
    int64_t partials = runs_of(l->tokens) * train__max(l->width, 2 * l->head_dim), sums = 2 * PARTS;
    return (size_t)train__max(train__max(panels, partials), sums);
}

static size_t private_elements(const train_limits *l) {
    attend_room room;
    int64_t rows = MC * train__min(KC, train__max(train__max(l->tokens, l->width), l->vocab));
    int64_t attention = room_make(&room, NULL, l->longest, l->head_dim, !l->inference);
    int64_t cached = train__round_up(l->cached, LANES);
    return (size_t)train__max(train__max(rows, attention), train__max(cached, l->vocab));
}

static size_t cpu_scratch_bytes(const train_limits *l, int32_t threads) {
    return train__cpu_scratch_bytes(shared_elements(l), private_elements(l), threads);
}

static ravel_status cpu_reserve(train_device *d, const train_limits *l, ravel_error *err) {
    return train__cpu_reserve(d, shared_elements(l), private_elements(l), err);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

const train_kernels CPU_TABLE = {
    .name = CPU_TITLE,
    .doc = CPU_DOC,
    .open = cpu_open,
    .close = train__cpu_close,
    .scratch_bytes = cpu_scratch_bytes,
    .reserve = cpu_reserve,
    .sync = train__cpu_sync,
    .alloc = train__cpu_alloc,
    .release = train__cpu_release,
    .upload = train__cpu_upload,
    .download = train__cpu_download,
    .copy = train__cpu_copy,
    .zero = train__cpu_zero,
    .matmul = cpu_matmul,
    .copy_rows = cpu_copy_rows,
    .scatter_add = cpu_scatter_add,
    .bias = cpu_bias,
    .bias_backward = cpu_bias_backward,
    .rmsnorm = cpu_rmsnorm,
    .rmsnorm_backward = cpu_rmsnorm_backward,
    .rope = cpu_rope,
    .rope_backward = cpu_rope_backward,
    .attention = cpu_attention,
    .attention_backward = cpu_attention_backward,
    .attention_cached = cpu_attention_cached,
    .swiglu = cpu_swiglu,
    .swiglu_backward = cpu_swiglu_backward,
    .softmax = cpu_softmax,
    .softmax_backward = cpu_softmax_backward,
    .sample = cpu_sample,
    .adamw = cpu_adamw,
    .sum_squares = cpu_sum_squares,
};
