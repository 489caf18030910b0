/* Lists of fields: checked, parsed from options, copied. */
#include "feed/source/field.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static ravel_status check_field(const ravel_field *field, int64_t index, ravel_error *err) {
    if (!field->name || !*field->name)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field %" PRId64 " has no name", index);
    if (!ravel_dtype_bytes(field->dtype))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no dtype of the list", field->name);
    if (field->kind < RAVEL_FIELD_TOKEN || field->kind > RAVEL_FIELD_SPREAD)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "field \"%s\" has kind %d; the kinds are " RAVEL__FIELD_KIND_CHOICES, field->name,
                               field->kind);
    if (field->width < 0 || field->width > 1 << 28)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has width %" PRId64 "; 1 to 2^28 are possible",
                               field->name, field->width);
    return RAVEL_OK;
}

static int is_tokens(const ravel_field *field) {
    return strcmp(field->name, "tokens") == 0 && field->dtype == RAVEL_I32 && field->kind == RAVEL_FIELD_TOKEN &&
           field->width <= 1;
}

ravel_status ravel__fields_check(const ravel_field *fields, int64_t count, ravel_error *err) {
    int tokens = 0, positions = 0;
    if (count < 1 || count > RAVEL__FIELDS_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "samples have 1 to %d fields, not %" PRId64, RAVEL__FIELDS_MAX,
                               count);
    for (int64_t i = 0; i < count; i++) {
        ravel_status status = check_field(&fields[i], i, err);
        if (status) return status;
        for (int64_t j = 0; j < i; j++)
            if (strcmp(fields[j].name, fields[i].name) == 0)
                return ravel_error_set(err, RAVEL_E_ARGUMENT, "there are two fields \"%s\"", fields[i].name);
        tokens |= is_tokens(&fields[i]);
        positions |= fields[i].kind != RAVEL_FIELD_SAMPLE;
    }
    if (tokens || !positions) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "samples need a per-token field \"tokens\" of i32 and width 1, or per-sample fields alone");
}

/* ---- parsing -------------------------------------------------------------------------------------------- */

/* The next of the words between colons; *rest is NULL after the last. */
static char *next_word(char **rest) {
    char *word = *rest, *colon = word ? strchr(word, ':') : NULL;
    if (colon) *colon++ = '\0';
    *rest = colon;
    return word;
}

static ravel_status parse_field(char *text, ravel_field *field, ravel_error *err) {
    const char *name = next_word(&text), *dtype = next_word(&text), *kind = next_word(&text);
    const char *width = next_word(&text);
    *field = (ravel_field){.name = name, .width = 1};
    if (!*name || !dtype || text)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "field \"%s\" must be name:dtype, name:dtype:kind or "
                               "name:dtype:kind:width",
                               name);
    field->kind = kind ? ravel__choice_index(RAVEL__FIELD_KIND_CHOICES, kind) : RAVEL_FIELD_TOKEN;
    if (field->kind < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "field \"%s\" has kind \"%s\"; the kinds are " RAVEL__FIELD_KIND_CHOICES, name, kind);
    ravel_status status = ravel_dtype_parse(dtype, &field->dtype, err);
    if (!status && width) status = ravel__parse_size(width, &field->width, err);
    if (status) ravel_error_prefix(err, "field \"%s\"", name);
    return status;
}

ravel_status ravel__fields_parse(const char *text, ravel_field *fields, int64_t *count, char pool[RAVEL__FIELD_POOL],
                                 ravel_error *err) {
    if (!text) return RAVEL_OK;
    size_t bytes = strlen(text) + 1;
    if (bytes > RAVEL__FIELD_POOL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the list of fields is %zu characters long; %d are possible",
                               bytes - 1, RAVEL__FIELD_POOL - 1);
    memcpy(pool, text, bytes);
    while (pool && *pool) {
        char *comma = strchr(pool, ',');
        if (comma) *comma++ = '\0';
        if (*count == RAVEL__FIELDS_MAX)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "there are more than %d fields", RAVEL__FIELDS_MAX);
        ravel_status status = parse_field(pool, &fields[*count], err);
        if (status) return status;
        ++*count;
        pool = comma;
    }
    return RAVEL_OK;
}

ravel_field *ravel__fields_copy(const ravel_field *fields, int64_t count, const ravel_allocator *allocator,
                                size_t *bytes) {
    size_t head = (size_t)count * sizeof *fields, names = 0;
    for (int64_t i = 0; i < count; i++) names += strlen(fields[i].name) + 1;
    ravel_field *copy = ravel__alloc(allocator, head + names);
    *bytes = head + names;
    if (!copy) return NULL;
    char *pool = (char *)copy + head;
    for (int64_t i = 0; i < count; i++) {
        size_t length = strlen(fields[i].name) + 1;
        copy[i] = fields[i];
        copy[i].name = memcpy(pool, fields[i].name, length);
        copy[i].data = NULL;
        if (copy[i].width < 1) copy[i].width = 1;
        pool += length;
    }
    RAVEL_ASSERT(pool == (char *)copy + *bytes);
    return copy;
}
