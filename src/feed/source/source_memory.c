/* Sources without a file: the caller's functions, and samples that are in memory. */
#include "feed/source/source.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- callbacks ------------------------------------------------------------------------------------------ */

typedef struct callback_source {
    ravel_source base;
    ravel_source_hooks hooks;
} callback_source;

static ravel_status callback_read(const ravel_source *source, void *scratch, int64_t row, ravel_collector *collector,
                                  ravel_error *err) {
    const ravel_source_hooks *hooks = &((const callback_source *)source)->hooks;
    (void)scratch;
    ravel_status status = hooks->read(hooks->user, row, collector, err);
    if (status && err && err->status && !hooks->where) ravel_error_prefix(err, "row %" PRId64, row);
    return status;
}

static size_t callback_where(const ravel_source *source, int64_t row, char *text, size_t bytes) {
    const ravel_source_hooks *hooks = &((const callback_source *)source)->hooks;
    if (hooks->where) return hooks->where(hooks->user, row, text, bytes);
    return (size_t)snprintf(text, bytes, "row %" PRId64, row);
}

static void callback_close(ravel_source *source) {
    const ravel_source_hooks *hooks = &((const callback_source *)source)->hooks;
    if (hooks->close) hooks->close(hooks->user);
}

static const ravel__source_kind callback_kind = {"callbacks", 0, callback_read, NULL, callback_close, callback_where};

ravel_status ravel_source_callbacks(const ravel_source_hooks *hooks, ravel_source **source, ravel_error *err) {
    ravel_source *s;
    const size_t least = offsetof(ravel_source_hooks, where);
    if (!hooks || hooks->size < least || !hooks->read || hooks->count < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a callback source needs its size field, a read function and a count of 0 or more");
    ravel_status status = ravel__source_create(&callback_kind, sizeof(callback_source), hooks->fields,
                                               hooks->field_count, hooks->allocator, &s, err);
    if (status) return status;
    memcpy(&((callback_source *)s)->hooks, hooks, hooks->size < sizeof *hooks ? hooks->size : sizeof *hooks);
    s->count = hooks->count;
    *source = s;
    return RAVEL_OK;
}

/* ---- samples in memory ---------------------------------------------------------------------------------- */

typedef struct samples_source {
    ravel_source base;
    ravel_samples samples;
} samples_source;

static ravel_status samples_read(const ravel_source *source, void *scratch, int64_t row, ravel_collector *collector,
                                 ravel_error *err) {
    const ravel_ragged *ragged = &((const samples_source *)source)->samples.ragged;
    const void *data[RAVEL__FIELDS_MAX] = {0};
    RAVEL_ASSERT(row >= 0 && row < ragged->count && ragged->field_count <= RAVEL__FIELDS_MAX);
    int64_t begin = ragged->offsets ? ragged->offsets[row] : row;
    int64_t end = ragged->offsets ? ragged->offsets[row + 1] : row + 1;
    (void)scratch;
    for (int64_t f = 0; f < ragged->field_count; f++)
        data[f] = (const char *)ragged->fields[f].data + ravel__field_bytes(&ragged->fields[f], row, begin);
    return ravel_collector_add(collector, end - begin, data, err);
}

static const ravel__source_kind samples_kind = {"samples", 0, samples_read, NULL, NULL, NULL};

ravel_status ravel_source_samples(const ravel_samples *samples, const ravel_allocator *allocator, ravel_source **source,
                                  ravel_error *err) {
    ravel_source *s;
    ravel_status status = ravel_ragged_check(&samples->ragged, err);
    if (!status)
        status = ravel__source_create(&samples_kind, sizeof(samples_source), samples->ragged.fields,
                                      samples->ragged.field_count, allocator, &s, err);
    if (status) return status;
    ((samples_source *)s)->samples = *samples;
    s->count = samples->ragged.count;
    *source = s;
    return RAVEL_OK;
}
