/* The sink: samples one after the other in one growing array a field.
 *
 *     offsets   0        5     8
 *     tokens    a a a a a b b b       one element a token
 *     reward    x         y           one element a sample
 */
#include "feed/source.h"

#include <inttypes.h>
#include <string.h>

ravel_status ravel__sink_init(ravel_sink *sink, const ravel_field *fields, int32_t field_count,
                              const ravel_allocator *allocator, ravel_error *err) {
    memset(sink, 0, sizeof *sink);
    sink->allocator = allocator;
    sink->fields = fields;
    sink->data = ravel__calloc(allocator, (size_t)field_count, sizeof *sink->data);
    if (!sink->data) return ravel__no_memory(err, (size_t)field_count * sizeof *sink->data, "the fields of a reader");
    sink->field_count = field_count;
    ravel_status status = ravel__pile_reserve(&sink->offsets, allocator, 1, sizeof(int64_t), "sample offsets", err);
    if (!status) *(int64_t *)sink->offsets.at = 0;
    return status;
}

void ravel__sink_free(ravel_sink *sink) {
    ravel__pile_free(&sink->offsets, sink->allocator);
    ravel__pile_free(&sink->rows, sink->allocator);
    ravel__pile_free(&sink->parts, sink->allocator);
    for (int32_t f = 0; f < sink->field_count; f++) ravel__pile_free(&sink->data[f], sink->allocator);
    ravel__release(sink->allocator, sink->data, (size_t)sink->field_count * sizeof *sink->data);
    sink->data = NULL;
    sink->field_count = 0;
}

void ravel__sink_rewind(ravel_sink *sink, int64_t count) {
    sink->count = count;
    sink->tokens = ((const int64_t *)sink->offsets.at)[count];
}

void ravel__sink_clear(ravel_sink *sink) {
    ravel__sink_rewind(sink, 0);
}

int64_t ravel__sink_cut(const ravel_sink *sink, int64_t length) {
    return sink->truncate > 0 && length > sink->truncate ? sink->truncate : length;
}

ravel_status ravel__sink_room(ravel_sink *sink, int64_t length, ravel_error *err) {
    const ravel_allocator *a = sink->allocator;
    int64_t count = sink->count + 1, tokens;
    if (length < 1) return ravel_error_set(err, RAVEL_E_DATA, "a sample needs at least one token, this one has none");
    if (__builtin_add_overflow(sink->tokens, length, &tokens)) tokens = INT64_MAX;
    ravel_status status = ravel__pile_reserve(&sink->offsets, a, count + 1, sizeof(int64_t), "sample offsets", err);
    if (!status) status = ravel__pile_reserve(&sink->rows, a, count, sizeof(int64_t), "row numbers", err);
    if (!status) status = ravel__pile_reserve(&sink->parts, a, count, sizeof(int32_t), "part numbers", err);
    for (int32_t f = 0; f < sink->field_count && !status; f++) {
        const ravel_field *field = &sink->fields[f];
        status = ravel__pile_reserve(&sink->data[f], a, ravel__field_elements(field, count, tokens),
                                     (size_t)ravel__field_each(field), field->name, err);
    }
    return status;
}

void *ravel__sink_place(const ravel_sink *sink, int32_t field) {
    return (char *)sink->data[field].at + ravel__field_bytes(&sink->fields[field], sink->count, sink->tokens);
}

void ravel__sink_push(ravel_sink *sink, int64_t length) {
    ((int64_t *)sink->rows.at)[sink->count] = sink->row;
    ((int32_t *)sink->parts.at)[sink->count] = (int32_t)(sink->count - sink->first);
    sink->tokens += length;
    ((int64_t *)sink->offsets.at)[++sink->count] = sink->tokens;
}

/* ---- what callbacks use --------------------------------------------------------------------------------- */

static void fill_pad(const ravel_field *field, char *place, int64_t elements) {
    int32_t each = ravel_dtype_bytes(field->dtype);
    for (int64_t i = 0; i < elements * (field->width > 1 ? field->width : 1); i++)
        if (!ravel_dtype_store(field->dtype, place + i * each, field->pad)) memset(place + i * each, 0, (size_t)each);
}

/* Per-token arrays are read from element `token` on, per-sample ones at `index`. */
static ravel_status add_at(ravel_sink *sink, int64_t length, int64_t token, int64_t index, const void *const *data,
                           ravel_error *err) {
    int64_t cut = ravel__sink_cut(sink, length);
    ravel_status status = ravel__sink_room(sink, cut, err);
    if (status) return status;
    for (int32_t f = 0; f < sink->field_count; f++) {
        const ravel_field *field = &sink->fields[f];
        int64_t each = ravel__field_each(field), elements = ravel__field_elements(field, 1, cut);
        char *place = ravel__sink_place(sink, f);
        const char *from = data[f];
        if (!from)
            fill_pad(field, place, elements);
        else if (elements)
            memcpy(place, from + each * (ravel__field_per_sample(field) ? index : token), (size_t)(elements * each));
    }
    sink->truncated += cut < length;
    ravel__sink_push(sink, cut);
    return RAVEL_OK;
}

ravel_status ravel_sink_add(ravel_sink *sink, int64_t length, const void *const *data, ravel_error *err) {
    return add_at(sink, length, 0, 0, data, err);
}

static ravel_status check_boundaries(int64_t count, const int64_t *cu_seqlens, const int64_t *starts,
                                     ravel_error *err) {
    if (count < 0 || cu_seqlens[0] != 0)
        return ravel_error_set(err, RAVEL_E_DATA, "the boundaries of a packed row must begin with 0");
    for (int64_t i = 0; i < count; i++) {
        int64_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        if (cu_seqlens[i + 1] < cu_seqlens[i])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "the boundaries of a packed row must not go down: %" PRId64 " follows %" PRId64,
                                   cu_seqlens[i + 1], cu_seqlens[i]);
        if (starts && (starts[i] < 0 || (i > 0 && starts[i] < starts[i - 1] + cu_seqlens[i] - cu_seqlens[i - 1])))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "sample %" PRId64 " of a packed row, %" PRId64 " tokens from %" PRId64
                                   " on, begins inside the one before it",
                                   i, length, starts[i]);
    }
    return RAVEL_OK;
}

ravel_status ravel_sink_add_packed(ravel_sink *sink, int64_t count, const int64_t *cu_seqlens, const int64_t *starts,
                                   const void *const *data, ravel_error *err) {
    ravel_status status = check_boundaries(count, cu_seqlens, starts, err);
    for (int32_t f = 0; f < sink->field_count && !status; f++)
        if (sink->fields[f].kind == RAVEL_FIELD_STEP && data[f])
            status = ravel_error_set(err, RAVEL_E_DATA, "packed rows cannot have the step field \"%s\"; use kind next",
                                     sink->fields[f].name);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        if (length > 0) status = add_at(sink, length, starts ? starts[i] : cu_seqlens[i], i, data, err);
    }
    return status;
}
