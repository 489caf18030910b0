#include "refit/model/box.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

ravel__box ravel__box_whole(int32_t ndim, const int64_t *dims) {
    RAVEL_ASSERT(ndim >= 0 && ndim <= RAVEL_REFIT_DIMS);
    ravel__box box = {.ndim = ndim};
    for (int32_t d = 0; d < ndim; d++) box.extent[d] = dims[d];
    return box;
}

int64_t ravel__box_count(const ravel__box *box) {
    int64_t count = 1;
    for (int32_t d = 0; d < box->ndim; d++) count *= box->extent[d];
    RAVEL_ASSERT(count >= 0);
    return count;
}

int ravel__box_equal(const ravel__box *a, const ravel__box *b) {
    size_t bytes = (size_t)a->ndim * sizeof(int64_t);
    return a->ndim == b->ndim && memcmp(a->start, b->start, bytes) == 0 && memcmp(a->extent, b->extent, bytes) == 0;
}

int ravel__box_meet(const ravel__box *a, const ravel__box *b, ravel__box *out) {
    ravel__box meet = {.ndim = a->ndim};
    RAVEL_ASSERT(a->ndim == b->ndim);
    for (int32_t d = 0; d < a->ndim; d++) {
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d], end = a_end < b_end ? a_end : b_end;
        if (start >= end) return 0;
        meet.start[d] = start;
        meet.extent[d] = end - start;
    }
    *out = meet;
    return 1;
}

/* Slabs before and after b in the first dimension, then, within b's range of it, in the second, and so on:
 *
 *     +-------------+        0 0 0 0 0
 *     |   +---+     |        2 2 b 3 3
 *     |   | b |     |   ->   2 2 b 3 3
 *     |   +---+     |        1 1 1 1 1
 *     +-------------+ */
int32_t ravel__box_without(const ravel__box *a, const ravel__box *b, ravel__box *out) {
    ravel__box hole, rest = *a;
    int32_t count = 0;
    if (!ravel__box_meet(a, b, &hole)) {
        out[0] = *a;
        return ravel__box_count(a) > 0;
    }
    for (int32_t d = 0; d < a->ndim; d++) {
        int64_t before = hole.start[d] - rest.start[d];
        int64_t after = rest.start[d] + rest.extent[d] - (hole.start[d] + hole.extent[d]);
        if (before > 0) {
            out[count] = rest;
            out[count++].extent[d] = before;
        }
        if (after > 0) {
            out[count] = rest;
            out[count].start[d] = hole.start[d] + hole.extent[d];
            out[count++].extent[d] = after;
        }
        rest.start[d] = hole.start[d];
        rest.extent[d] = hole.extent[d];
    }
    RAVEL_ASSERT(count <= 2 * a->ndim && ravel__box_equal(&rest, &hole));
    return count;
}

void ravel__box_describe(const ravel__box *box, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int32_t d = 0; d < box->ndim && used < bytes; d++) {
        long long start = box->start[d], end = start + box->extent[d];
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld:%lld", d ? ", " : "", start, end);
    }
    if (used < bytes) (void)snprintf(text + used, bytes - used, "]");
}
