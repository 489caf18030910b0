/* NPY, NumPy's format for one array:
 *
 *     offset  bytes
 *     0       6      "\x93NUMPY"
 *     6       2      version: major 1, 2 or 3; minor 0
 *     8       2 or 4 length of the header, little-endian (2 in version 1)
 *     10, 12  n      header: a Python dict, {'descr': '<i8', 'fortran_order': False, 'shape': (4096, 2), }
 *     ...            the numbers, row by row, or column by column in Fortran order
 *
 * The header's sizes are not trusted: arrays grow with the data that is read. */
#include "io/integers.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_HEADER = 1 << 16, CHUNK = 1 << 16 };

typedef struct npy {
    ravel__source *source;
    ravel__integers *table;
    ravel_error *err;
    char kind, order; /* 'i' or 'u'; '<', '>' or '|' */
    int bytes;        /* of one number */
    int fortran;
    int64_t rows, columns;
} npy;

static ravel_status bad(const npy *n, const char *what) {
    return ravel_error_set(n->err, RAVEL_E_DATA, "%s: %s", n->source->name, what);
}

/* Exactly `bytes`, or E_DATA. */
static ravel_status read_exactly(npy *n, void *buffer, size_t bytes, const char *what) {
    RAVEL_ASSERT(buffer);
    for (size_t used = 0, got; used < bytes; used += got) {
        ravel_status status = ravel__source_read(n->source, (char *)buffer + used, bytes - used, &got, n->err);
        if (status) return status;
        if (!got) return bad(n, what);
    }
    return RAVEL_OK;
}

/* ---- the header ----------------------------------------------------------------------------------------- */

/* What follows "'key':" in the header, or NULL. */
static const char *find_key(const char *header, const char *key) {
    char quoted[40];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(quoted, sizeof quoted, i ? "\"%s\"" : "'%s'", key);
        const char *at = strstr(header, quoted);
        if (!at) continue;
        at += strlen(quoted);
        at += strspn(at, " ");
        if (*at == ':') return at + 1 + strspn(at + 1, " ");
    }
    return NULL;
}

static ravel_status parse_descr(npy *n, const char *at) {
    char quote = at ? *at : 0, text[12] = "";
    const char *end = quote == '\'' || quote == '"' ? strchr(at + 1, quote) : NULL;
    if (!end || end - at - 1 >= (int)sizeof text) return bad(n, "an array of plain integers is wanted, not of records");
    memcpy(text, at + 1, (size_t)(end - at - 1));
    const char *c = text;
    n->order = strchr("<>|=", *c) && *c ? *c++ : '<';
    n->kind = *c;
    n->bytes = c[0] && c[1] >= '1' && c[1] <= '8' && !c[2] ? c[1] - '0' : 0;
    int width = n->bytes == 1 || n->bytes == 2 || n->bytes == 4 || n->bytes == 8;
    if ((n->kind == 'i' || n->kind == 'u') && width) return RAVEL_OK;
    return ravel_error_set(n->err, RAVEL_E_DATA,
                           "%s: numbers of type '%s'; integers are wanted: save array.astype('int64')", n->source->name,
                           text);
}

/* "(4096, 2)" */
static ravel_status parse_shape(npy *n, const char *at) {
    int64_t dims[3] = {0, 1, 1};
    int count = 0;
    if (!at || *at != '(') return bad(n, "the header has no shape");
    for (at++; *at && *at != ')' && count < 3;) {
        size_t digits = strspn(at, "0123456789");
        if (!digits || !ravel__parse_integer(at, digits, &dims[count++])) return bad(n, "the shape is not readable");
        at += digits + strspn(at + digits, ", L");
    }
    if (*at != ')' || count < 1 || count > 2 || dims[1] < 1 || dims[1] > 1 + n->table->ask->pairs)
        return bad(n, n->table->ask->pairs ? "the shape must be [n], [n, 1] or [n, 2]"
                                           : "the shape must be [n] or [n, 1]");
    n->rows = dims[0];
    n->columns = dims[1];
    RAVEL_ASSERT(n->rows >= 0 && (n->columns == 1 || n->columns == 2));
    return RAVEL_OK;
}

static ravel_status parse_header(npy *n, const char *header) {
    const char *fortran = find_key(header, "fortran_order");
    ravel_status status = parse_descr(n, find_key(header, "descr"));
    if (!status) status = parse_shape(n, find_key(header, "shape"));
    if (status) return status;
    if (!fortran || (strncmp(fortran, "True", 4) != 0 && strncmp(fortran, "False", 5) != 0))
        return bad(n, "the header has no fortran_order");
    n->fortran = *fortran == 'T' && n->columns == 2;
    return RAVEL_OK;
}

static ravel_status read_header(npy *n) {
    unsigned char start[12];
    ravel_status status = read_exactly(n, start, 10, "not an NPY file: it is too short");
    if (status) return status;
    if (memcmp(start, "\x93NUMPY", 6) != 0) return bad(n, "not an NPY file: it does not begin with \\x93NUMPY");
    if (start[6] < 1 || start[6] > 3) return bad(n, "NPY versions 1 to 3 are known, not this one");
    if (start[6] > 1) status = read_exactly(n, start + 10, 2, "the header is cut off");
    if (status) return status;
    size_t length = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1) length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (length > LONGEST_HEADER) return bad(n, "the header is too long");
    char *header = ravel__alloc(n->table->ask->allocator, length + 1);
    if (!header) return ravel__no_memory(n->err, length + 1, "an NPY header");
    status = read_exactly(n, header, length, "the header is cut off");
    header[length] = '\0';
    if (!status) status = parse_header(n, header);
    ravel__release(n->table->ask->allocator, header, length + 1);
    return status;
}

/* ---- the numbers ---------------------------------------------------------------------------------------- */

/* 0 if an unsigned number is too large. */
static int decode(const npy *n, const unsigned char *at, int64_t *value) {
    RAVEL_ASSERT(n->bytes >= 1 && n->bytes <= 8);
    uint64_t bits = 0;
    for (int i = 0; i < n->bytes; i++) bits = bits << 8 | at[n->order == '>' ? i : n->bytes - 1 - i];
    if (n->kind == 'u') {
        *value = (int64_t)bits;
        return bits <= INT64_MAX;
    }
    int unused = 64 - 8 * n->bytes; /* sign-extend */
    *value = (int64_t)(bits << unused) >> unused;
    return 1;
}

static ravel_status push(npy *n, const unsigned char *at, int64_t row) {
    int64_t values[2] = {0, 0};
    RAVEL_ASSERT(n->columns >= 1 && n->columns <= 2 && row >= 0);
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < n->columns && !status; i++)
        if (!decode(n, at + i * n->bytes, &values[i]))
            status = ravel_error_set(&inner, RAVEL_E_DATA, "a number above 2^63");
    if (!status) status = ravel__integers_push(n->table, values[0], values[1], &inner);
    return status ? ravel_error_set(n->err, status, "%s: row %lld: %s", n->source->name, (long long)row, inner.message)
                  : RAVEL_OK;
}

/* Row by row; whatever is left of a chunk after its last whole row is moved to the front of the next. */
static ravel_status read_rows(npy *n, unsigned char *chunk) {
    size_t each = (size_t)(n->bytes * n->columns), kept = 0, got;
    int64_t row = 0;
    RAVEL_ASSERT(each >= 1 && each <= 16 && CHUNK % each == 0);
    while (row < n->rows && !ravel__integers_full(n->table)) {
        RAVEL_ASSERT(kept < each);
        ravel_status status = ravel__source_read(n->source, chunk + kept, CHUNK - kept, &got, n->err);
        if (status) return status;
        if (!got)
            return ravel_error_set(n->err, RAVEL_E_DATA, "%s: the data ends after %lld of %lld rows", n->source->name,
                                   (long long)row, (long long)n->rows);
        size_t have = kept + got, at = 0;
        for (; have - at >= each && row < n->rows && !ravel__integers_full(n->table); at += each) {
            status = push(n, chunk + at, row++);
            if (status) return status;
        }
        RAVEL_ASSERT(at <= have && have <= CHUNK);
        kept = have - at;
        if (kept && at) memmove(chunk, chunk + at, kept);
    }
    RAVEL_ASSERT(row <= n->rows);
    if (row < n->rows) return RAVEL_OK;
    ravel_status status = kept ? RAVEL_OK : ravel__source_read(n->source, chunk, 1, &got, n->err);
    if (status) return status;
    return kept || got ? bad(n, "there is more data than the header says") : RAVEL_OK;
}

/* Column by column: the second column can only be joined to the first when all of it is there. */
static ravel_status read_fortran(npy *n, unsigned char *chunk) {
    RAVEL_ASSERT(n->columns == 2 && n->table->width == 2);
    ravel__ask any = *n->table->ask;
    ravel__integers flat;
    any.min = INT64_MIN;
    any.max = INT64_MAX;
    any.limit = 0;
    ravel__integers_init(&flat, &any);
    ravel__integers_choose(&flat, "", NULL);
    npy all = *n;
    all.table = &flat;
    all.columns = 1;
    if (__builtin_mul_overflow(n->rows, (int64_t)2, &all.rows)) return bad(n, "the shape is too large");
    ravel_status status = read_rows(&all, chunk);
    ravel_error inner = RAVEL_ERROR_INIT;
    RAVEL_ASSERT(status || flat.count == 2 * n->rows);
    for (int64_t i = 0; i < n->rows && !status && !ravel__integers_full(n->table); i++) {
        status = ravel__integers_push(n->table, flat.columns[0][i], flat.columns[0][n->rows + i], &inner);
        if (status) ravel_error_set(n->err, status, "%s: row %lld: %s", n->source->name, (long long)i, inner.message);
    }
    ravel__integers_free(&flat);
    return status;
}

ravel_status ravel__npy_read(ravel__source *source, ravel__integers *table, ravel_error *err) {
    npy n;
    memset(&n, 0, sizeof n);
    n.source = source;
    n.table = table;
    n.err = err;
    ravel_status status = read_header(&n);
    if (status) return status;
    ravel__integers_choose(table, n.columns == 2 ? "column 1" : "array", n.columns == 2 ? "column 2" : NULL);
    unsigned char *chunk = ravel__alloc(table->ask->allocator, CHUNK);
    if (!chunk) return ravel__no_memory(err, CHUNK, "a read buffer");
    status = n.fortran ? read_fortran(&n, chunk) : read_rows(&n, chunk);
    ravel__release(table->ask->allocator, chunk, CHUNK);
    return status;
}
