/* Where the elements of a field lie in a ragged array, for each kind of field. */
#ifndef RAVEL_FEED_FIELD_H
#define RAVEL_FEED_FIELD_H

#include <ravel/batch.h>

enum { RAVEL__FIELDS_MAX = 64 };
#define RAVEL__FIELD_KIND_CHOICES "token|next|step|sample|spread"

/* Bytes of one element, all of its width. */
static inline int64_t ravel__field_each(const ravel_field *field) {
    return ravel_dtype_bytes(field->dtype) * (field->width > 1 ? field->width : 1);
}

static inline int ravel__field_per_sample(const ravel_field *field) {
    return field->kind == RAVEL_FIELD_SAMPLE || field->kind == RAVEL_FIELD_SPREAD;
}

/* Elements of `samples` samples that have `tokens` tokens in all; also the place of the element that comes after them.
 */
static inline int64_t ravel__field_elements(const ravel_field *field, int64_t samples, int64_t tokens) {
    if (ravel__field_per_sample(field)) return samples;
    return field->kind == RAVEL_FIELD_STEP ? tokens - samples : tokens;
}

static inline int64_t ravel__field_bytes(const ravel_field *field, int64_t samples, int64_t tokens) {
    return ravel__field_elements(field, samples, tokens) * ravel__field_each(field);
}

/* Names, kinds, dtypes, widths; no name twice; "tokens" of i32 among them, or nothing but per-sample fields. */
ravel_status ravel__fields_check(const ravel_field *fields, int64_t count, ravel_error *err);

/* "name:dtype[:kind[:width]],..." added to fields[*count .. RAVEL__FIELDS_MAX); names go to `pool`, NUL-terminated. */
enum { RAVEL__FIELD_POOL = 2048 };
ravel_status ravel__fields_parse(const char *text, ravel_field *fields, int64_t *count, char pool[RAVEL__FIELD_POOL],
                                 ravel_error *err);

/* A copy of the fields, without data, and of their names in one block of *bytes; NULL when memory is short. */
ravel_field *ravel__fields_copy(const ravel_field *fields, int64_t count, const ravel_allocator *allocator,
                                size_t *bytes);

#endif
