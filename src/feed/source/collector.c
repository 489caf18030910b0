/* The collector: samples one after the other in one growing array per field.
 *
 *     offsets   0        5     8
 *     tokens    a a a a a b b b       one element per token
 *     reward    x         y           one element per sample
 */
#include "feed/source/source.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

ravel_status ravel__collector_init(ravel_collector *collector, const ravel_field *fields, int32_t field_count,
                                   const ravel_allocator *allocator, ravel_error *err) {
    memset(collector, 0, sizeof *collector);
    collector->allocator = allocator;
    collector->fields = fields;
    collector->data = ravel__calloc(allocator, (size_t)field_count, sizeof *collector->data);
    if (!collector->data)
        return ravel__no_memory(err, (size_t)field_count * sizeof *collector->data, "the fields of a reader");
    collector->field_count = field_count;
    ravel_status status =
        ravel__buffer_reserve(&collector->offsets, allocator, 1, sizeof(int64_t), "sample offsets", err);
    if (!status) *(int64_t *)collector->offsets.at = 0;
    return status;
}

void ravel__collector_free(ravel_collector *collector) {
    ravel__buffer_free(&collector->offsets, collector->allocator);
    ravel__buffer_free(&collector->rows, collector->allocator);
    ravel__buffer_free(&collector->parts, collector->allocator);
    for (int32_t f = 0; f < collector->field_count; f++) ravel__buffer_free(&collector->data[f], collector->allocator);
    ravel__release(collector->allocator, collector->data, (size_t)collector->field_count * sizeof *collector->data);
    collector->data = NULL;
    collector->field_count = 0;
}

void ravel__collector_rewind(ravel_collector *collector, int64_t count) {
    RAVEL_ASSERT(count >= 0 && count <= collector->count);
    collector->count = count;
    collector->tokens = ((const int64_t *)collector->offsets.at)[count];
    RAVEL_ASSERT(collector->tokens >= count); /* no sample is empty */
}

void ravel__collector_clear(ravel_collector *collector) {
    ravel__collector_rewind(collector, 0);
    collector->inserted = 0;
}

void ravel_collector_inserted(ravel_collector *collector, int64_t answers, const char *text) {
    if (answers > 0 && !collector->inserted)
        (void)snprintf(collector->inserted_text, sizeof collector->inserted_text, "%s", text);
    collector->inserted += answers;
}

int64_t ravel__collector_cut(const ravel_collector *collector, int64_t length) {
    RAVEL_ASSERT(collector->truncate >= 0);
    return collector->truncate > 0 && length > collector->truncate ? collector->truncate : length;
}

ravel_status ravel__collector_room(ravel_collector *collector, int64_t length, ravel_error *err) {
    const ravel_allocator *a = collector->allocator;
    int64_t count = collector->count + 1, tokens;
    if (length < 1) return ravel_error_set(err, RAVEL_E_DATA, "a sample needs at least one token, this one has none");
    if (__builtin_add_overflow(collector->tokens, length, &tokens)) tokens = INT64_MAX;
    ravel_status status =
        ravel__buffer_reserve(&collector->offsets, a, count + 1, sizeof(int64_t), "sample offsets", err);
    if (!status) status = ravel__buffer_reserve(&collector->rows, a, count, sizeof(int64_t), "row numbers", err);
    if (!status) status = ravel__buffer_reserve(&collector->parts, a, count, sizeof(int32_t), "part numbers", err);
    for (int32_t f = 0; f < collector->field_count && !status; f++) {
        const ravel_field *field = &collector->fields[f];
        status = ravel__buffer_reserve(&collector->data[f], a, ravel__field_elements(field, count, tokens),
                                       (size_t)ravel__field_each(field), field->name, err);
    }
    return status;
}

void *ravel__collector_place(const ravel_collector *collector, int32_t field) {
    RAVEL_ASSERT(field >= 0 && field < collector->field_count);
    char *at = collector->data[field].at; /* NULL as long as every sample has no elements of this field */
    return at ? at + ravel__field_bytes(&collector->fields[field], collector->count, collector->tokens) : NULL;
}

void ravel__collector_push(ravel_collector *collector, int64_t length) {
    RAVEL_ASSERT(length >= 1 && collector->first <= collector->count);
    RAVEL_ASSERT(collector->offsets.room >= (size_t)(collector->count + 2) * sizeof(int64_t));
    ((int64_t *)collector->rows.at)[collector->count] = collector->row;
    ((int32_t *)collector->parts.at)[collector->count] = (int32_t)(collector->count - collector->first);
    collector->tokens += length;
    ((int64_t *)collector->offsets.at)[++collector->count] = collector->tokens;
    for (int32_t f = 0; f < collector->field_count; f++)
        RAVEL_ASSERT((size_t)ravel__field_bytes(&collector->fields[f], collector->count, collector->tokens) <=
                     collector->data[f].room);
}

/* ---- what callbacks use --------------------------------------------------------------------------------- */

static void fill_pad(const ravel_field *field, char *place, int64_t elements) {
    RAVEL_ASSERT(elements >= 0 && (elements == 0 || place));
    int32_t each = ravel_dtype_bytes(field->dtype);
    for (int64_t i = 0; i < elements * (field->width > 1 ? field->width : 1); i++)
        if (!ravel_dtype_store(field->dtype, place + i * each, field->pad)) memset(place + i * each, 0, (size_t)each);
}

/* Per-token arrays are read from element `token` on, per-sample ones at `index`. */
static ravel_status add_at(ravel_collector *collector, int64_t length, int64_t token, int64_t index,
                           const void *const *data, ravel_error *err) {
    int64_t cut = ravel__collector_cut(collector, length);
    RAVEL_ASSERT(cut <= length);
    ravel_status status = ravel__collector_room(collector, cut, err);
    if (status) return status;
    for (int32_t f = 0; f < collector->field_count; f++) {
        const ravel_field *field = &collector->fields[f];
        int64_t each = ravel__field_each(field), elements = ravel__field_elements(field, 1, cut);
        char *place = ravel__collector_place(collector, f);
        RAVEL_ASSERT(elements >= 0 && each > 0 && token >= 0 && index >= 0);
        const char *from = data[f];
        if (!from)
            fill_pad(field, place, elements);
        else if (elements)
            memcpy(place, from + each * (ravel__field_per_sample(field) ? index : token), (size_t)(elements * each));
    }
    collector->truncated += cut < length;
    ravel__collector_push(collector, cut);
    return RAVEL_OK;
}

ravel_status ravel_collector_add(ravel_collector *collector, int64_t length, const void *const *data,
                                 ravel_error *err) {
    return add_at(collector, length, 0, 0, data, err);
}

static ravel_status check_boundaries(int64_t count, const int64_t *cu_seqlens, const int64_t *starts,
                                     ravel_error *err) {
    if (count < 0 || cu_seqlens[0] != 0)
        return ravel_error_set(err, RAVEL_E_DATA, "the boundaries of a packed row must begin with 0");
    for (int64_t i = 0; i < count; i++) {
        if (cu_seqlens[i + 1] < cu_seqlens[i])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "the boundaries of a packed row must not go down: %" PRId64 " follows %" PRId64,
                                   cu_seqlens[i + 1], cu_seqlens[i]);
        if (starts && (starts[i] < 0 || (i > 0 && starts[i] < starts[i - 1] + cu_seqlens[i] - cu_seqlens[i - 1])))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "sample %" PRId64 " of a packed row, %" PRId64 " tokens from %" PRId64
                                   " on, begins inside the one before it",
                                   i, cu_seqlens[i + 1] - cu_seqlens[i], starts[i]);
    }
    return RAVEL_OK;
}

ravel_status ravel_collector_add_packed(ravel_collector *collector, int64_t count, const int64_t *cu_seqlens,
                                        const int64_t *starts, const void *const *data, ravel_error *err) {
    ravel_status status = check_boundaries(count, cu_seqlens, starts, err);
    for (int32_t f = 0; f < collector->field_count && !status; f++)
        if (collector->fields[f].kind == RAVEL_FIELD_STEP && data[f])
            status = ravel_error_set(err, RAVEL_E_DATA, "packed rows cannot have the step field \"%s\"; use kind next",
                                     collector->fields[f].name);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        if (length > 0) status = add_at(collector, length, starts ? starts[i] : cu_seqlens[i], i, data, err);
    }
    return status;
}
