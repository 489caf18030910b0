/* Launching the jobs of kernels.h: blocks that do not fit into a launch go to the device first, in memory of the
 * cache. */
#include "device/handle.h"

#include "base/assert.h"

#include <stdbool.h>
#include <string.h>

/* A block of rows: its parts lie one behind the other, each at a multiple of 16, and the tracks share the tiles without
 * gaps. */
static bool rows_ok(const ravel__rows_head *h) {
    const ravel__row_track *tracks = (const void *)((const char *)h + h->tracks_at);
    int64_t tile = 0;
    if ((h->tracks_at | h->runs_at | h->samples_at | h->values_at) % 16 || h->tracks < 0 || h->runs < 0) return false;
    if (h->tracks_at < (int64_t)sizeof *h || h->runs_at < h->tracks_at + h->tracks * (int64_t)sizeof *tracks ||
        h->samples_at < h->runs_at + h->runs * (int64_t)sizeof(ravel__row_run) || h->values_at < h->samples_at ||
        h->bytes < h->values_at)
        return false;
    for (int32_t i = 0; i < h->tracks; i++) {
        if (tracks[i].first_tile != tile || tracks[i].kind < 0 || tracks[i].kind > RAVEL__ROW_WEIGHT) return false;
        tile += ravel__row_tiles(&tracks[i]);
    }
    return tile == h->tiles;
}

static ravel_status unsupported(const ravel_device *d, const char *what, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s has no kernel for %s", d->info.name, what);
}

ravel_status ravel__launch_rows(ravel_stream *stream, const ravel__rows_head *block, ravel_error *err) {
    ravel_device *d = stream->device;
    ravel__rows rows = {block, NULL};
    void *copy = NULL;
    RAVEL_ASSERT(block->tiles >= 0 && block->bytes >= (int64_t)sizeof *block);
    RAVEL_ASSERT(rows_ok(block));
    ravel_status status = ravel__device_usable(d, err);
    if (!status && !d->driver->rows) status = unsupported(d, "packing", err);
    if (!status && block->tiles > 0 && block->bytes > RAVEL__ROWS_IN_LAUNCH) {
        status = ravel_device_alloc(d, RAVEL_DEVICE, (size_t)block->bytes, stream, &copy, err);
        if (!status) status = ravel_device_copy(d, copy, block, (size_t)block->bytes, stream, err);
        rows.device_side = copy;
    }
    RAVEL_ASSERT(status || (rows.device_side != NULL) == (block->tiles > 0 && block->bytes > RAVEL__ROWS_IN_LAUNCH));
    if (!status && block->tiles > 0)
        status = ravel__device_check(d, d->driver->rows(d->inside, &rows, stream->native), "packing", err);
    ravel_device_release(d, copy, stream);
    return status;
}

ravel_status ravel__launch_count(ravel_stream *stream, const ravel__mask_job *job, double seconds, ravel_error *err) {
    ravel_device *d = stream->device;
    size_t run_bytes = (size_t)job->count * sizeof *job->runs, count_bytes = (size_t)job->count * sizeof *job->counts;
    void *runs = NULL, *counts = NULL, *back = NULL;
    RAVEL_ASSERT(job->count >= 0 && (job->count == 0 || (job->runs && job->counts)));
    ravel_status status = ravel__device_usable(d, err);
    if (!status && !d->driver->count_mask) status = unsupported(d, "counting a mask", err);
    if (status || job->count == 0) return status;
    RAVEL_ASSERT(job->mask &&
                 (job->mask_bytes == 1 || job->mask_bytes == 2 || job->mask_bytes == 4 || job->mask_bytes == 8));
    status = ravel_device_alloc(d, RAVEL_DEVICE, run_bytes, stream, &runs, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_DEVICE, count_bytes, stream, &counts, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_PINNED, count_bytes, stream, &back, err);
    if (!status) status = ravel_device_copy(d, runs, job->runs, run_bytes, stream, err);
    if (!status) {
        ravel__mask_job there = *job;
        there.runs = runs;
        there.counts = counts;
        status =
            ravel__device_check(d, d->driver->count_mask(d->inside, &there, stream->native), "counting a mask", err);
    }
    if (!status) status = ravel_device_copy(d, back, counts, count_bytes, stream, err);
    if (!status) status = ravel_stream_wait(stream, seconds, err);
    if (!status) memcpy(job->counts, back, count_bytes);
    ravel_device_release(d, runs, stream);
    ravel_device_release(d, counts, stream);
    ravel_device_release(d, back, stream);
    return status;
}

ravel_status ravel__launch_cast(ravel_stream *stream, const ravel__cast_job *job, ravel_error *err) {
    ravel_device *d = stream->device;
    ravel_status status = ravel__device_usable(d, err);
    if (status || job->blocks == 0) return status;
    RAVEL_ASSERT(job->blocks > 0 && job->count > 0 && job->pieces && job->first);
    RAVEL_ASSERT(job->blocks <= INT32_MAX && job->count < INT32_MAX && (job->unpack == 0 || job->unpack == 1));
    RAVEL_ASSERT((uintptr_t)job->packed % 16 == 0);
    RAVEL_ASSERT(job->spans || (job->bytes % 16 == 0 && job->block > 0 && job->block % 1024 == 0));
    if (!d->driver->cast) return unsupported(d, "packing tensors", err);
    return ravel__device_check(d, d->driver->cast(d->inside, job, stream->native),
                               job->unpack ? "unpacking tensors" : "packing tensors", err);
}

ravel_status ravel__launch_compare(ravel_stream *stream, const ravel__compare_job *job, ravel_error *err) {
    ravel_device *d = stream->device;
    ravel_status status = ravel__device_usable(d, err);
    if (status || job->blocks == 0) return status;
    RAVEL_ASSERT(job->blocks > 0 && job->blocks <= INT32_MAX && job->spans && job->used);
    RAVEL_ASSERT(((uintptr_t)job->fresh | (uintptr_t)job->base | (uintptr_t)job->out) % 16 == 0);
    if (!d->driver->compare) return unsupported(d, "comparing versions", err);
    return ravel__device_check(d, d->driver->compare(d->inside, job, stream->native), "comparing versions", err);
}
