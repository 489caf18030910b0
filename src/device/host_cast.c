/* Refit's jobs in plain C: the reference of cuda_refit.cu. */
#include "device/host_rows.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <ravel/dtype.h>

#include <string.h>

static const int32_t packed_types[RAVEL__CAST_KINDS] = {RAVEL_U8, RAVEL_BF16, RAVEL_F16};

static void move_piece(const ravel__cast_job *job, const ravel__cast_piece *p) {
    RAVEL_ASSERT(p->kind >= 0 && p->kind < RAVEL__CAST_KINDS && p->tensor);
    int32_t packed = packed_types[p->kind], wide = p->kind == RAVEL__CAST_COPY ? RAVEL_U8 : RAVEL_F32;
    char *at = (char *)job->packed + p->at;
    int64_t count = p->bytes / ravel_dtype_bytes(packed);
    RAVEL_ASSERT(p->at >= 0 && p->bytes > 0 && p->at + p->bytes <= job->bytes);
    RAVEL_ASSERT(p->at % ravel_dtype_bytes(packed) == 0 && count * ravel_dtype_bytes(packed) == p->bytes);
    if (job->unpack)
        (void)ravel_dtype_convert(packed, at, wide, p->tensor, count, NULL);
    else
        (void)ravel_dtype_convert(wide, p->tensor, packed, at, count, NULL);
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
