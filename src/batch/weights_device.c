#include "batch/weights_device.h"

#include "base/assert.h"
#include "base/memory.h"
#include "device/handle.h"

#include <string.h>

enum { COUNT_SECONDS = 600 };

static ravel_status list_samples(const ravel_ragged *ragged, const ravel_bin *bin, int64_t n, ravel__row_run *runs,
                                 ravel_error *err) {
    for (int64_t i = 0; i < n; i++) {
        ravel__sequence g;
        ravel_status status = ravel__sequence_get(ragged, bin ? bin->samples[i] : i, &g, err);
        if (status) return status;
        RAVEL_ASSERT(g.length <= INT32_MAX && g.prompt <= g.length);
        runs[i] = (ravel__row_run){
            .offset = g.offset, .index = (int32_t)g.index, .length = (int32_t)g.length, .prompt = (int32_t)g.prompt};
    }
    return RAVEL_OK;
}

ravel_status ravel__count_on_device(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *field,
                                    const ravel__mask *mask, int64_t **counts, ravel_error *err) {
    int64_t n = bin ? bin->count : ragged->count;
    size_t run_bytes = (size_t)n * sizeof(ravel__row_run), count_bytes = (size_t)n * sizeof(int64_t);
    if (n == 0) return RAVEL_OK;
    if (n > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "more than 2^31 samples cannot be counted on a device at once");
    RAVEL_ASSERT(n > 0);
    ravel__row_run *runs = ravel__alloc(NULL, run_bytes);
    int64_t *found = runs ? ravel__alloc(NULL, count_bytes) : NULL;
    ravel_status status = found ? list_samples(ragged, bin, n, runs, err)
                                : ravel__no_memory(err, run_bytes + count_bytes, "counting a mask");
    const ravel__mask_job job = {.runs = runs,
                                 .count = (int32_t)n,
                                 .mask_kind = mask->kind,
                                 .mask_bytes = mask->element,
                                 .mask = mask->data,
                                 .one = mask->one,
                                 .minus = mask->minus,
                                 .counts = found};
    if (!status) status = ravel__launch_count(field->place.stream, &job, COUNT_SECONDS, err);
    for (int64_t i = 0; !status && i < n; i++)
        if (found[i] < 0) status = ravel__mask_bad_value(mask, runs[i].index, -found[i], err);
    ravel__release(NULL, runs, run_bytes);
    if (status)
        ravel__release(NULL, found, count_bytes);
    else
        *counts = found;
    return status;
}

void ravel__book_weights(ravel__book *book, const ravel__mask *mask, void *weights, int32_t bytes) {
    RAVEL_ASSERT(bytes == 4 || bytes == 8);
    ravel__row_track *t = &book->tracks[book->head->tracks++];
    *t = (ravel__row_track){.source = mask->data,
                            .target = weights,
                            .positions = book->positions,
                            .kind = RAVEL__ROW_WEIGHT,
                            .unit = bytes,
                            .units = 1,
                            .mask_kind = mask->kind,
                            .mask_bytes = mask->element};
    memcpy(t->pad, &mask->one, sizeof mask->one);
}
