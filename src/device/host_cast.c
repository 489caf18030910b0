/* Refit's jobs in plain C: the reference of cuda_refit.cu. */
#include "device/host_rows.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <ravel/dtype.h>
#include <ravel/slab.h>

#include <math.h>
#include <string.h>

static const int32_t packed_types[RAVEL__CAST_KINDS] = {RAVEL_U8, RAVEL_BF16, RAVEL_F16, RAVEL_F8_E4M3};

static void pack_f8(const float *from, float scale, char *to, int64_t count) {
    RAVEL_ASSERT(count >= 0 && scale > 0);
    for (int64_t i = 0; i < count; i++) {
        float scaled = from[i] * scale;
        (void)ravel_dtype_convert(RAVEL_F32, &scaled, RAVEL_F8_E4M3, to + i, 1, NULL);
    }
}

static void move_piece(const ravel__cast_job *job, const ravel__cast_piece *p) {
    RAVEL_ASSERT(p->kind >= 0 && p->kind < RAVEL__CAST_KINDS && p->tensor);
    int32_t packed = packed_types[p->kind], wide = p->kind == RAVEL__CAST_COPY ? RAVEL_U8 : RAVEL_F32;
    char *at = (char *)job->packed + p->at;
    int64_t count = p->bytes / ravel_dtype_bytes(packed);
    RAVEL_ASSERT(p->at >= 0 && p->bytes > 0 && p->at + p->bytes <= job->bytes);
    RAVEL_ASSERT(p->at % ravel_dtype_bytes(packed) == 0 && count * ravel_dtype_bytes(packed) == p->bytes);
    RAVEL_ASSERT(!job->unpack || p->kind != RAVEL__CAST_F32_F8_E4M3); /* the scale is gone: slabs refuse it */
    if (job->unpack)
        (void)ravel_dtype_convert(packed, at, wide, p->tensor, count, NULL);
    else if (p->kind == RAVEL__CAST_F32_F8_E4M3)
        pack_f8(p->tensor, p->scale, at, count);
    else
        (void)ravel_dtype_convert(wide, p->tensor, packed, at, count, NULL);
}

void ravel__host_hash(const ravel__hash_job *job) {
    RAVEL_ASSERT(job->block > 0 && job->bytes >= 0);
    for (int64_t at = 0, i = 0; at < job->bytes; at += job->block, i++) {
        int64_t left = job->bytes - at;
        job->hashes[i] = ravel__xxh3_of((const char *)job->data + at, (size_t)(left < job->block ? left : job->block));
    }
}

void ravel__host_cast(const ravel__cast_job *job) {
    for (int64_t b = 0; b < job->blocks && !job->unpack; b++) {
        ravel__cast_span span = ravel__cast_block(job, b);
        RAVEL_ASSERT(span.at >= 0 && span.at % 16 == 0 && span.bytes > 0 && span.at + span.bytes <= job->bytes);
        memset((char *)job->packed + span.at, 0, (size_t)span.bytes);
    }
    for (int64_t i = 0; i < job->count; i++) move_piece(job, &job->pieces[i]);
    for (int64_t b = 0; b < job->blocks && job->hashes; b++) {
        ravel__cast_span span = ravel__cast_block(job, b);
        job->hashes[b] = ravel__xxh3_of((const char *)job->packed + span.at, (size_t)span.bytes);
    }
}

/* ---- fp8 blocks ----------------------------------------------------------------------------------------- */

static float element_of(const ravel__fp8_job *job, int64_t row, int64_t col) {
    RAVEL_ASSERT(row >= 0 && row < job->rows && col >= 0 && col < job->cols);
    double value = 0;
    int32_t dtype = job->bf16 ? RAVEL_BF16 : RAVEL_F32;
    int64_t at = (row * job->stride + col) * ravel_dtype_bytes(dtype);
    (void)ravel_dtype_load(dtype, (const char *)job->data + at, &value);
    return (float)value;
}

static void pack_block(const ravel__fp8_job *job, int64_t row, int64_t col, float *scale_inv) {
    int64_t row_end = row + RAVEL__FP8_BLOCK < job->rows ? row + RAVEL__FP8_BLOCK : job->rows;
    int64_t col_end = col + RAVEL__FP8_BLOCK < job->cols ? col + RAVEL__FP8_BLOCK : job->cols;
    float most = 0, line[RAVEL__FP8_BLOCK];
    for (int64_t i = row; i < row_end; i++)
        for (int64_t j = col; j < col_end; j++) most = fmaxf(most, fabsf(element_of(job, i, j)));
    *scale_inv = ravel__fp8_scale(most);
    RAVEL_ASSERT(*scale_inv > 0 || most != most);
    for (int64_t i = row; i < row_end; i++) {
        for (int64_t j = col; j < col_end; j++) line[j - col] = element_of(job, i, j) / *scale_inv;
        (void)ravel_dtype_convert(RAVEL_F32, line, RAVEL_F8_E4M3, (char *)job->weight + i * job->cols + col,
                                  col_end - col, NULL);
    }
}

void ravel__host_fp8(const ravel__fp8_job *job) {
    float *scale = job->scale_inv;
    for (int64_t row = 0; row < job->rows; row += RAVEL__FP8_BLOCK)
        for (int64_t col = 0; col < job->cols; col += RAVEL__FP8_BLOCK) pack_block(job, row, col, scale++);
    RAVEL_ASSERT(scale - job->scale_inv == ravel_fp8_scales(job->rows, job->cols));
}
