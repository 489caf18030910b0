/* The ragged store: checks, and one sample of it. */
#include "base/assert.h"
#include "batch/slot.h"

#include <stddef.h>
#include <string.h>

ravel_status ravel__record_read(const char *name, const void *record, size_t size, size_t least, void *own,
                                size_t own_size, ravel_error *err) {
    RAVEL_ASSERT(least <= own_size);
    if (size < least || size > own_size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s.size is %zu; it must be sizeof(ravel_%s), %zu", name, size,
                               name, own_size);
    memset(own, 0, own_size);
    memcpy(own, record, size);
    return RAVEL_OK;
}

ravel_status ravel__bin_valid(const ravel_ragged *ragged, const ravel_bin *bin, ravel_error *err) {
    enum { FIRST = offsetof(ravel_ragged, field_count) + sizeof ragged->field_count }; /* the first release's size */
    if (ragged->size < FIRST || ragged->size > sizeof *ragged)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "ragged.size is %zu; it must be sizeof(ravel_ragged), %zu",
                               ragged->size, sizeof *ragged);
    if (ragged->count < 0 || ragged->field_count < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a store of %lld samples and %lld fields",
                               (long long)ragged->count, (long long)ragged->field_count);
    if (!ragged->offsets && ragged->prompts)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a store of samples without tokens (no offsets) has prompts");
    if (bin->count < 0 || bin->count > INT32_MAX - 2)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a bin of %lld samples", (long long)bin->count);
    return RAVEL_OK;
}

static ravel_status check_length(const ravel_ragged *ragged, int64_t i, ravel_error *err) {
    if (!ragged->offsets) return RAVEL_OK;
    int64_t begin = ragged->offsets[i], end = ragged->offsets[i + 1];
    if (begin < 0 || end <= begin || end - begin > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "sample %lld goes from token %lld to %lld; it must have 1 to 2^31 - 1", (long long)i,
                               (long long)begin, (long long)end);
    if (ragged->prompts && (ragged->prompts[i] < 0 || ragged->prompts[i] > end - begin))
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld of %lld tokens has a prompt of %lld", (long long)i,
                               (long long)(end - begin), (long long)ragged->prompts[i]);
    return RAVEL_OK;
}

ravel_status ravel__sequence_get(const ravel_ragged *ragged, int64_t index, ravel__sequence *seq, ravel_error *err) {
    if (index < 0 || index >= ragged->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the bin names sample %lld, and the store has %lld",
                               (long long)index, (long long)ragged->count);
    ravel_status status = check_length(ragged, index, err);
    if (status) return status;
    seq->index = index;
    seq->offset = ragged->offsets ? ragged->offsets[index] : index;
    seq->length = ragged->offsets ? ragged->offsets[index + 1] - seq->offset : 1;
    seq->prompt = ragged->prompts ? ragged->prompts[index] : 0;
    seq->lead = 0;
    RAVEL_ASSERT(seq->offset >= 0 && seq->length >= 1 && seq->prompt >= 0 && seq->prompt <= seq->length);
    return RAVEL_OK;
}

int64_t ravel_ragged_find(const ravel_ragged *ragged, const char *name) {
    for (int64_t i = 0; i < ragged->field_count; i++)
        if (ragged->fields[i].name && strcmp(ragged->fields[i].name, name) == 0) return i;
    return -1;
}

int64_t ravel_field_bytes(const ravel_ragged *ragged, const ravel_field *field) {
    ravel__track track;
    int64_t count = ragged->offsets ? ragged->offsets[ragged->count] : ragged->count, bytes;
    if (ravel__track_init(field, &track, NULL)) return -1;
    if (field->kind == RAVEL_FIELD_STEP) count -= ragged->count;
    if (field->kind == RAVEL_FIELD_SAMPLE || field->kind == RAVEL_FIELD_SPREAD) count = ragged->count;
    return __builtin_mul_overflow(count, (int64_t)track.each, &bytes) ? -1 : bytes;
}

static ravel_status check_field(const ravel_ragged *ragged, int64_t i, ravel_error *err) {
    ravel__track track;
    const ravel_field *field = &ragged->fields[i];
    ravel_status status = ravel__track_init(field, &track, err);
    if (status) return status;
    int64_t bytes = ravel_field_bytes(ragged, field);
    if (bytes < 0)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "field \"%s\": its size overflows",
                               field->name ? field->name : "");
    if (bytes > 0 && !field->data)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no data", field->name ? field->name : "");
    if (field->name && ravel_ragged_find(ragged, field->name) != i)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" is there twice", field->name);
    return RAVEL_OK;
}

ravel_status ravel_ragged_check(const ravel_ragged *ragged, ravel_error *err) {
    const ravel_bin none = {NULL, 0};
    ravel_status status = ravel__bin_valid(ragged, &none, err);
    if (status) return status;
    if (ragged->offsets && ragged->offsets[0] != 0)
        return ravel_error_set(err, RAVEL_E_DATA, "offsets begin with %lld; they must begin with 0",
                               (long long)ragged->offsets[0]);
    for (int64_t i = 0; i < ragged->count && !status; i++) status = check_length(ragged, i, err);
    for (int64_t i = 0; i < ragged->field_count && !status; i++) status = check_field(ragged, i, err);
    return status;
}
