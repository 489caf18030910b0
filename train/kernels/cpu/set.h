/* The fast CPU set for one instruction set: the bodies, the sizes of their scratch, the table. Included by the files
 * that choose the instruction set, after they have defined
 *
 *     CPU_LANES   floats in a vector
 *     CPU_NV      vectors in a row of attention's register tile
 *     CPU_GEMM_ROWS, CPU_GEMM_VECTORS   the register tile of large products
 *     CPU_TABLE, CPU_NARROW   the names of the tables: weights in f32, and in bf16
 *     CPU_TITLE   train_kernels.name
 *     CPU_DOC     train_kernels.doc
 *     CPU_PAIRS   1: only the table with weights in bf16, whose large products are AVX512-BF16's; CPU_TITLE is all of its name
 *
 * Weights in bf16 are widened where they are read, and everything is computed in f32: results have the bits that the
 * same values in f32 would give. The optimiser keeps f32 masters of what is trained. */

#ifndef CPU_PAIRS
#define CPU_PAIRS 0
#endif

enum { MR = 6, NV = CPU_NV, NR = CPU_NV * CPU_LANES };

#include "train/kernels/cpu/simd.h"

#include "train/kernels/cpu/gemm.h"

#include "train/kernels/cpu/layers.h"

#include "train/kernels/cpu/flat.h"

#include "train/kernels/cpu/experts.h"

#include "train/kernels/cpu/attention.h"

#include "train/kernels/cpu/batch_invariant.h"

#include "train/kernels/cpu/head.h"

/* Products that are scaled are narrow: those of adapters. */
static void scale_product(const train_matmul *x) {
    for (int64_t i = 0; i < x->m; i++)
        for (int64_t j = 0; j < x->n; j++) ((float *)x->c)[i * x->ldc + j] *= (float)x->scale;
}

static void cpu_matmul(train_device *d, const train_matmul *product) {
    train_matmul x = train__matmul_filled(product);
    RAVEL_ASSERT(train__matmul_ok(product));
    RAVEL_ASSERT(x.a_type == RAVEL_F32 && x.c_type == RAVEL_F32);
    RAVEL_ASSERT(x.b_type == RAVEL_F32 || (x.b_type == RAVEL_BF16 && d->narrow));
    if (x.m == 0 || x.n == 0) return;
    if (x.batch_invariant && x.trans_b && !x.trans_a)
        batch_invariant_run(d, &x);
    else if (d->blas && x.b_type == RAVEL_F32)
        train__blas_matmul(d, &x);
    else
        gemm_run(d, &x);
    if (x.scale != 0) scale_product(&x);
}

static ravel_status cpu_open(const train_device_options *options, train_device **device, ravel_error *err) {
    int fused = CPU_NV == 4 || LANES >= 8; /* the register tile of a machine with fused multiply-add */
    return train__cpu_open(options, fused, device, err);
}

static ravel_status narrow_open(const train_device_options *options, train_device **device, ravel_error *err) {
    ravel_status status = cpu_open(options, device, err);
    if (!status) (*device)->narrow = 1;
    if (!status) (*device)->pairs = CPU_PAIRS;
    return status;
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

static int64_t longest_side(const train_limits *l) {
    return train__max(train__max(l->tokens, l->pairs), train__max(l->width, l->vocab));
}

static size_t shared_elements(const train_limits *l) {
    int64_t partials = sum_runs_of(l->tokens) * train__max(l->width, 2 * l->head_dim);
    return (size_t)train__max(train__max(packed_elements(longest_side(l)), partials), parts_elements(l));
}

static size_t private_elements(const train_limits *l) {
    attend_room room;
    int64_t attention = room_make(&room, NULL, l->longest, l->head_dim, !l->inference);
    int64_t cached = train__round_up(l->cached + TRAIN_PAGE, LANES);
    int64_t product = owned_elements(longest_side(l));
    return (size_t)train__max(train__max(attention, product), train__max(cached, l->vocab));
}

static size_t cpu_scratch_bytes(const train_limits *l, int32_t threads) {
    return train__cpu_scratch_bytes(shared_elements(l), private_elements(l), threads);
}

static ravel_status cpu_reserve(train_device *d, const train_limits *l, ravel_error *err) {
    return train__cpu_reserve(d, shared_elements(l), private_elements(l), err);
}

/* About 128 MiB of logits: with fewer rows the weights of a large vocabulary and their gradient are read and written
 * for too little work. */
static int64_t cpu_head_rows(const train_limits *l) {
    int64_t rows = train__max((int64_t)(128 << 20) / 4 / train__max(l->vocab, 1), 64);
    return train__min(train__min(rows, 1024), l->tokens);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

/* Slots that both tables have. */
/* clang-format off */
#define CPU_SLOTS                                  \
    TRAIN__HOST_SLOTS,                             \
    .copy = train__cpu_copy,                       \
    .zero = train__cpu_zero,                       \
    .close = train__cpu_close,                     \
    .scratch_bytes = cpu_scratch_bytes,            \
    .reserve = cpu_reserve,                        \
    .head_rows = cpu_head_rows,                    \
    .matmul = cpu_matmul,                          \
    .copy_rows = cpu_copy_rows,                    \
    .embed = cpu_embed,                            \
    .embed_backward = cpu_embed_backward,          \
    .bias = cpu_bias,                              \
    .bias_backward = cpu_bias_backward,            \
    .scale = cpu_scale,                            \
    .rmsnorm = cpu_rmsnorm,                        \
    .rmsnorm_backward = cpu_rmsnorm_backward,      \
    .rope = cpu_rope,                              \
    .rope_backward = cpu_rope_backward,            \
    .attention = cpu_attention,                    \
    .attention_backward = cpu_attention_backward,  \
    .attention_merge = train__ref_attention_merge, \
    .cache_write = cpu_cache_write,                \
    .attention_cached = cpu_attention_cached,      \
    .gated = cpu_gated,                            \
    .gated_backward = cpu_gated_backward,          \
    .route = cpu_route,                            \
    .route_backward = cpu_route_backward,          \
    .weigh = cpu_weigh,                            \
    .weigh_backward = cpu_weigh_backward,          \
    .softmax_parts = cpu_softmax_parts,            \
    .softmax_combine = train__ref_softmax_combine, \
    .softmax_backward = cpu_softmax_backward,      \
    .loss = train__ref_loss,                       \
    .sequence_sums = train__ref_sequence_sums,     \
    .sample = cpu_sample,                          \
    .top_parts = train__ref_top_parts,             \
    .top_combine = train__ref_top_combine,         \
    .top_gather = train__ref_top_gather,           \
    .top_loss = train__ref_top_loss,               \
    .top_backward = train__ref_top_backward,       \
    .add = cpu_add,                                \
    .sum_squares = cpu_sum_squares,                \
    .clip = train__ref_clip,                       \
    .adamw = cpu_adamw
/* clang-format on */

#if CPU_PAIRS
#define CPU_NARROW_TITLE CPU_TITLE
#else
#define CPU_NARROW_TITLE CPU_TITLE "-bf16"
const train_kernels CPU_TABLE = {
    .name = CPU_TITLE,
    .doc = CPU_DOC,
    .types =
        {.weight = RAVEL_F32, .activation = RAVEL_F32, .grad = RAVEL_F32, .master = RAVEL_F32, .moment = RAVEL_F32},
    .open = cpu_open,
    CPU_SLOTS,
};
#endif

const train_kernels CPU_NARROW = {
    .name = CPU_NARROW_TITLE,
    .doc = CPU_DOC ", weights in bf16",
    .types =
        {.weight = RAVEL_BF16, .activation = RAVEL_F32, .grad = RAVEL_F32, .master = RAVEL_F32, .moment = RAVEL_F32},
    .open = narrow_open,
    CPU_SLOTS,
};
