/* Option structs from tables: one row per field holds its default, parser, limits and help. See ravel/options.h. */
#include <ravel/options.h>

#include "base/assert.h"
#include "base/number.h"
#include "base/options.h"
#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---------------------------------------------------------------------------------------------- */

int ravel__choice_word(const char *choices, int32_t index, char *word, size_t bytes) {
    if (!choices || index < 0) return 0;
    for (; index > 0; index--) {
        choices = strchr(choices, '|');
        if (!choices) return 0;
        choices++;
    }
    size_t length = strcspn(choices, "|");
    if (length >= bytes) return 0;
    RAVEL_ASSERT(length < bytes);
    memcpy(word, choices, length);
    word[length] = '\0';
    return 1;
}

static char fold(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

/* Names are equal whichever of '-' and '_' they are written with. */
static int same_name(const char *a, const char *b, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!b[i] || fold(a[i]) != fold(b[i])) return 0;
    return b[bytes] == '\0';
}

int32_t ravel__choice_index(const char *choices, const char *word) {
    int32_t index = 0;
    for (const char *c = choices; c; index++) {
        size_t length = strcspn(c, "|");
        if (same_name(c, word, length)) return index;
        c = c[length] ? c + length + 1 : NULL;
    }
    return -1;
}

/* Edit distance with early exit, over a fixed row: names are short. */
static size_t distance(const char *a, const char *b) {
    enum { MOST = 64 };
    size_t row[MOST + 1], n = strlen(b);
    if (n > MOST || strlen(a) > MOST) return MOST;
    RAVEL_ASSERT(n <= MOST);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (fold(a[i]) != fold(b[j]));
            diagonal = row[j + 1];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j + 1] + 1 < best) best = row[j + 1] + 1;
            row[j + 1] = best;
        }
    }
    RAVEL_ASSERT(row[n] <= MOST);
    return row[n];
}

const char *ravel__suggest(const char *typed, const char *const *names, size_t count) {
    const char *best = NULL;
    size_t least = strlen(typed) / 3 + 2; /* further off than this is another word, not a slip */
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(typed, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

/* The factor of a size suffix, 0 when it is none: "", k, ki, kb, kib, and so on. */
static int64_t suffix_factor(const char *suffix) {
    static const char letters[] = "kmgt";
    if (!*suffix) return 1;
    const char *letter = strchr(letters, tolower((unsigned char)*suffix));
    if (!letter || !*letter) return 0;
    suffix++;
    if (tolower((unsigned char)*suffix) == 'i') suffix++;
    if (tolower((unsigned char)*suffix) == 'b') suffix++;
    return *suffix ? 0 : (int64_t)1 << (10 * (letter - letters + 1));
}

static ravel_status not_a_size(const char *text, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.40s\" is not a whole number; write one like 4096, 16k or 1M",
                           text);
}

ravel_status ravel__parse_size(const char *text, int64_t *value, ravel_error *err) {
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (end == text || isspace((unsigned char)*text)) return not_a_size(text, err);
    if (errno == ERANGE) return ravel_error_set(err, RAVEL_E_OVERFLOW, "\"%.40s\" does not fit 64 bits", text);
    if (*end == '.') { /* 1.5M: exact in double for any size that a person would write */
        char *fraction_end;
        double real = ravel__number_read(text, &fraction_end);
        int64_t factor = suffix_factor(fraction_end);
        double scaled = real * (double)factor;
        if (!factor || scaled != floor(scaled) || fabs(scaled) > 0x1p53) return not_a_size(text, err);
        *value = (int64_t)scaled;
        return RAVEL_OK;
    }
    int64_t factor = suffix_factor(end), result;
    if (!factor) return not_a_size(text, err);
    if (__builtin_mul_overflow((int64_t)whole, factor, &result))
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "\"%.40s\" does not fit 64 bits", text);
    *value = result;
    return RAVEL_OK;
}

static ravel_status parse_u64(const char *text, uint64_t *value, ravel_error *err) {
    int64_t size = -1;
    if (ravel__parse_size(text, &size, NULL) == RAVEL_OK && size >= 0) {
        *value = (uint64_t)size;
        return RAVEL_OK;
    }
    char *end;
    errno = 0;
    unsigned long long big = strtoull(text, &end, 0);
    if (end == text || *end || errno || strchr(text, '-'))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.40s\" is not a non-negative whole number below 2^64", text);
    *value = big;
    return RAVEL_OK;
}

static ravel_status parse_f64(const char *text, double *value, ravel_error *err) {
    char *end;
    double real = ravel__number_read(text, &end);
    if (end == text || *end || !isfinite(real))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.40s\" is not a number", text);
    *value = real;
    return RAVEL_OK;
}

static ravel_status parse_bool(const char *text, int32_t *value, ravel_error *err) {
    int32_t index = ravel__choice_index("false|true|no|yes|off|on|0|1", text);
    if (index < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.40s\" is neither true nor false", text);
    RAVEL_ASSERT(index < 8);
    *value = index & 1;
    return RAVEL_OK;
}

/* ---- fields --------------------------------------------------------------------------------------------- */

/* A value of any of the types; fields are moved by memcpy, `bytes_of` wide. */
typedef union field {
    int32_t i32;
    int64_t i64;
    uint64_t u64;
    double f64;
    const char *text;
} field;

static size_t bytes_of(const ravel_option *row) {
    static const uint8_t bytes[] = {[RAVEL_OPTION_I32] = 4,
                                    [RAVEL_OPTION_I64] = 8,
                                    [RAVEL_OPTION_U64] = 8,
                                    [RAVEL_OPTION_F64] = 8,
                                    [RAVEL_OPTION_BOOL] = 4,
                                    [RAVEL_OPTION_ENUM] = 4,
                                    [RAVEL_OPTION_STRING] = sizeof(const char *)};
    RAVEL_ASSERT(row->type >= 0 && row->type <= RAVEL_OPTION_STRING && bytes[row->type]);
    return bytes[row->type];
}

static field get(const ravel_option *row, const void *options) {
    RAVEL_ASSERT(row->name && row->offset >= 0 && options);
    field v = {0};
    memcpy(&v, (const char *)options + row->offset, bytes_of(row));
    return v;
}

static void put(const ravel_option *row, void *options, field v) {
    RAVEL_ASSERT(row->name && row->offset >= 0 && options);
    memcpy((char *)options + row->offset, &v, bytes_of(row));
}

static double number_of(const ravel_option *row, const void *options) {
    field v = get(row, options);
    switch ((ravel_option_type)row->type) {
    case RAVEL_OPTION_I64: return (double)v.i64;
    case RAVEL_OPTION_U64: return (double)v.u64;
    case RAVEL_OPTION_F64: return v.f64;
    case RAVEL_OPTION_STRING: return 0;
    default: return v.i32;
    }
}

/* 16777216 and 0.9, as a person would write them: whole numbers in full, others without the digits of their
 * rounding. */
static void print_limit(double value, char *text, size_t bytes) {
    RAVEL_ASSERT(bytes >= 32);
    (void)ravel__number_print(text, bytes, value == floor(value) ? "%.17g" : "%.15g", value);
}

static ravel_status check_range(const ravel_option *row, const void *options, ravel_error *err) {
    RAVEL_ASSERT(row->min <= row->max && (row->type != RAVEL_OPTION_ENUM || row->choices));
    char text[64], first[32], last[32];
    if (row->type == RAVEL_OPTION_ENUM) {
        char word[64];
        if (ravel__choice_word(row->choices, (int32_t)number_of(row, options), word, sizeof word)) return RAVEL_OK;
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is %d, which is none of %s", row->name,
                               (int)number_of(row, options), row->choices);
    }
    if (row->type == RAVEL_OPTION_STRING || row->type == RAVEL_OPTION_BOOL || (row->min == 0 && row->max == 0))
        return RAVEL_OK;
    double value = number_of(row, options);
    if (value >= row->min && value <= row->max) return RAVEL_OK;
    ravel_option_format(row, options, text, sizeof text);
    print_limit(row->min, first, sizeof first);
    print_limit(row->max, last, sizeof last);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is %s; it must be from %s to %s", row->name, text, first, last);
}

ravel_status ravel__check_options(ravel_option_table table, const void *options, ravel_error *err) {
    for (const ravel_option *row = table; row->name; row++) {
        ravel_status status = check_range(row, options, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

const ravel_option *ravel_option_find(ravel_option_table table, const char *name) {
    for (const ravel_option *row = table; row->name; row++)
        if (same_name(row->name, name, strlen(row->name))) return row;
    return NULL;
}

static ravel_status unknown_option(ravel_option_table table, const char *name, ravel_error *err) {
    const char *names[256] = {0};
    size_t count = 0;
    for (const ravel_option *row = table; row->name && count < 256; row++) names[count++] = row->name;
    const char *near = ravel__suggest(name, names, count);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "unknown option \"%.60s\"%s%s%s", name,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static ravel_status parse_enum(const ravel_option *row, const char *text, int32_t *value, ravel_error *err) {
    RAVEL_ASSERT(row->choices);
    int32_t index = ravel__choice_index(row->choices, text);
    if (index < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is \"%.40s\"; it must be one of %s", row->name, text,
                               row->choices);
    *value = index;
    return RAVEL_OK;
}

static ravel_status parse_i32(const char *text, int32_t *out, ravel_error *err) {
    int64_t wide = 0;
    ravel_status status = ravel__parse_size(text, &wide, err);
    if (status) return status;
    if (wide < INT32_MIN || wide > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "\"%.40s\" does not fit 32 bits", text);
    *out = (int32_t)wide;
    return RAVEL_OK;
}

static ravel_status parse_value(const ravel_option *row, const char *text, field *out, ravel_error *err) {
    switch ((ravel_option_type)row->type) {
    case RAVEL_OPTION_I32: return parse_i32(text, &out->i32, err);
    case RAVEL_OPTION_I64: return ravel__parse_size(text, &out->i64, err);
    case RAVEL_OPTION_U64: return parse_u64(text, &out->u64, err);
    case RAVEL_OPTION_F64: return parse_f64(text, &out->f64, err);
    case RAVEL_OPTION_BOOL: return parse_bool(text, &out->i32, err);
    case RAVEL_OPTION_ENUM: return parse_enum(row, text, &out->i32, err);
    case RAVEL_OPTION_STRING: out->text = text; return RAVEL_OK;
    }
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s has an unknown type", row->name);
}

static ravel_status set_row(const ravel_option *row, void *options, const char *text, ravel_error *err) {
    field parsed = {0}, before = get(row, options);
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = parse_value(row, text, &parsed, &inner);
    if (status) {
        if (row->type != RAVEL_OPTION_ENUM) ravel_error_prefix(&inner, "%s", row->name);
        return ravel_error_set(err, status, "%s", inner.message);
    }
    put(row, options, parsed);
    status = check_range(row, options, err);
    if (status) put(row, options, before); /* outputs are set only on success */
    return status;
}

ravel_status ravel_option_set(ravel_option_table table, void *options, const char *name, const char *text,
                              ravel_error *err) {
    const ravel_option *row = ravel_option_find(table, name);
    if (!row) return unknown_option(table, name, err);
    return set_row(row, options, text, err);
}

void ravel_options_default(ravel_option_table table, void *options) {
    for (const ravel_option *row = table; row->name; row++) {
        field v = {0};
        ravel_status status = row->preset ? parse_value(row, row->preset, &v, NULL) : RAVEL_OK;
        RAVEL_ASSERT(status == RAVEL_OK && row->offset >= 0); /* a row's own default can be read */
        (void)status;
        put(row, options, v);
    }
}

static int format_f64(double x, char *text, size_t bytes) {
    char shortest[RAVEL__NUMBER_BYTES];
    ravel__number_shortest(x, 1, shortest);
    return snprintf(text, bytes, "%s", shortest);
}

static int format_enum(const ravel_option *row, int32_t index, char *text, size_t bytes) {
    char word[64];
    if (!ravel__choice_word(row->choices, index, word, sizeof word)) return snprintf(text, bytes, "%d", index);
    return snprintf(text, bytes, "%s", word);
}

size_t ravel_option_format(const ravel_option *row, const void *options, char *text, size_t bytes) {
    field v = get(row, options);
    int length = 0;
    switch ((ravel_option_type)row->type) {
    case RAVEL_OPTION_I32: length = snprintf(text, bytes, "%d", v.i32); break;
    case RAVEL_OPTION_I64: length = snprintf(text, bytes, "%lld", (long long)v.i64); break;
    case RAVEL_OPTION_U64: length = snprintf(text, bytes, "%llu", (unsigned long long)v.u64); break;
    case RAVEL_OPTION_F64: length = format_f64(v.f64, text, bytes); break;
    case RAVEL_OPTION_BOOL: length = snprintf(text, bytes, "%s", v.i32 ? "true" : "false"); break;
    case RAVEL_OPTION_ENUM: length = format_enum(row, v.i32, text, bytes); break;
    case RAVEL_OPTION_STRING: length = snprintf(text, bytes, "%s", v.text ? v.text : ""); break;
    }
    return length > 0 ? (size_t)length : 0;
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static ravel_status set_from_node(ravel_option_table table, void *options, const ravel__json_node *node,
                                  ravel_error *err) {
    RAVEL_ASSERT(node->key);
    char text[64];
    const ravel_option *row = ravel_option_find(table, node->key);
    if (!row) return unknown_option(table, node->key, err);
    switch ((ravel__json_kind)node->kind) {
    case RAVEL__JSON_TRUE: return set_row(row, options, "true", err);
    case RAVEL__JSON_FALSE: return set_row(row, options, "false", err);
    case RAVEL__JSON_STRING: return set_row(row, options, node->as.string, err);
    case RAVEL__JSON_INTEGER: (void)snprintf(text, sizeof text, "%lld", (long long)node->as.integer); break;
    case RAVEL__JSON_REAL: ravel__number_shortest(node->as.real, 17, text); break;
    default: return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a number, a word or true or false", row->name);
    }
    return set_row(row, options, text, err);
}

ravel_status ravel__options_from_json(ravel_option_table table, void *options, const ravel__json *doc,
                                      const ravel__json_node *object, ravel_error *err) {
    if (!object || object->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "options must be a JSON object like {\"budget\": 16384}");
    for (const ravel__json_node *n = ravel__json_first(doc, object); n; n = ravel__json_next(doc, n)) {
        ravel_status status = set_from_node(table, options, n, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

void ravel__options_preset(ravel_option_table table, void *options, size_t bytes) {
    memset(options, 0, bytes);
    ravel_options_default(table, options);
    memcpy(options, &bytes, sizeof bytes);
}

ravel_status ravel__take_options(ravel_option_table table, const char *object, const void *given, void *own,
                                 size_t bytes, ravel_error *err) {
    size_t size = 0;
    RAVEL_ASSERT(bytes >= sizeof size);
    if (given) memcpy(&size, given, sizeof size);
    if (size <= sizeof size || size > 4096)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%s options: size is %zu; fill them with ravel_%s_options_default", object, size,
                               object);
    memcpy(own, given, size < bytes ? size : bytes);
    memcpy(own, &bytes, sizeof bytes);
    return ravel__check_options(table, own, err);
}
