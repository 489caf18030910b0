/* Comparing versions on the host: the reference of cuda_compare.cu. */
#include "device/host_rows.h"

#include "base/assert.h"
#include "base/sparse.h"

#include <string.h>

void ravel__host_compare(const ravel__compare_job *job) {
    for (int64_t b = 0; b < job->blocks; b++) {
        ravel__compare_span *s = &job->spans[b];
        const char *fresh = (const char *)job->fresh + s->at, *base = (const char *)job->base + s->at;
        unsigned char *out = job->out + *job->used;
        size_t bytes = (size_t)s->bytes, each = (size_t)s->each, changed = 0;
        RAVEL_ASSERT(s->at >= 0 && s->at % 16 == 0 && s->bytes > 0 && s->bytes <= RAVEL__COMPARE_MOST);
        RAVEL_ASSERT(each > 0 && bytes % each == 0);
        size_t size = ravel__sparse_encode(base, fresh, bytes / each, each, out, &changed);
        if (size == 0) memcpy(out, fresh, bytes);
        s->found = (int64_t)*job->used;
        s->changed = (int32_t)changed;
        s->size = (int32_t)(size > 0 ? size : bytes);
        *job->used += ((uint64_t)s->size + 15) / 16 * 16;
    }
}
