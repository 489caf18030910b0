/* fp8 with a scale per block: the front of the kernel, and which tensors checkpoints keep that way. */
#include "device/handle.h"

#include "base/assert.h"

#include <ravel/slab.h>

#include <string.h>

_Static_assert(RAVEL_FP8_BLOCK == RAVEL__FP8_BLOCK, "the header and the kernels cut alike");

static int64_t blocks_of(int64_t elements) {
    return (elements + RAVEL_FP8_BLOCK - 1) / RAVEL_FP8_BLOCK;
}

int64_t ravel_fp8_scales(int64_t rows, int64_t cols) {
    RAVEL_ASSERT(rows >= 0 && cols >= 0);
    return blocks_of(rows) * blocks_of(cols);
}

static ravel_status check_matrix(const ravel_fp8_matrix *m, ravel_error *err) {
    if (m->dtype != RAVEL_F32 && m->dtype != RAVEL_BF16)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "a matrix of %s cannot be packed as fp8; f32 and bf16 can",
                               ravel_dtype_bytes(m->dtype) ? ravel_dtype_name(m->dtype) : "an unknown dtype");
    if (m->rows < 1 || m->cols < 1 || m->rows > INT64_MAX / 16 / m->cols)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a matrix of %lld rows and %lld columns", (long long)m->rows,
                               (long long)m->cols);
    if (m->stride != 0 && (m->stride < m->cols || m->stride > INT64_MAX / 16 / m->rows))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "rows of %lld columns that are %lld elements apart",
                               (long long)m->cols, (long long)m->stride);
    if (ravel_fp8_scales(m->rows, m->cols) > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "a matrix of more than 2^31 - 1 blocks");
    if (!m->data || !m->weight || !m->scale_inv)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a matrix without %s",
                               !m->data     ? "data"
                               : !m->weight ? "weight"
                                            : "scale_inv");
    if ((uintptr_t)m->data % (uintptr_t)ravel_dtype_bytes(m->dtype) || (uintptr_t)m->scale_inv % sizeof(float))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a matrix that is not aligned to its dtype");
    return RAVEL_OK;
}

ravel_status ravel_fp8_pack(const ravel_fp8_matrix *matrix, ravel_stream *stream, ravel_error *err) {
    ravel_status status = check_matrix(matrix, err);
    if (status) return status;
    const ravel__fp8_job job = {.data = matrix->data,
                                .bf16 = matrix->dtype == RAVEL_BF16,
                                .rows = matrix->rows,
                                .cols = matrix->cols,
                                .stride = matrix->stride ? matrix->stride : matrix->cols,
                                .weight = matrix->weight,
                                .scale_inv = matrix->scale_inv};
    RAVEL_ASSERT(job.stride >= job.cols && job.rows <= INT64_MAX / 16 / job.stride);
    return ravel__launch_fp8(stream, &job, err);
}

/* The last part of the name before ".weight" is a projection: q_proj, down_proj, kv_a_proj_with_mqa, ... */
int ravel_fp8_takes(const char *name, int32_t ndim) {
    static const char ending[] = ".weight";
    size_t length = strlen(name), tail = sizeof ending - 1;
    if (ndim != 2 || length <= tail || strcmp(name + length - tail, ending) != 0) return 0;
    size_t end = length - tail, begin = end;
    while (begin > 0 && name[begin - 1] != '.') begin--;
    for (size_t i = begin; i + 5 <= end; i++)
        if (memcmp(name + i, "_proj", 5) == 0) return 1;
    return 0;
}
