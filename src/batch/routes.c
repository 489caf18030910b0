/* Ids of routes: per position one number of (token, position, row), summed per sample modulo 2^64. The number of a row
 * is XXH3 of its elements as 16-bit integers, so that every dtype gives the same one. */
#include <ravel/routes.h>

#include "base/assert.h"
#include "base/memory.h"
#include "base/xxh3.h"

#include <string.h>

enum { ELEMENTS = 65536, EXPERTS = 32767, ROW = 4096 /* elements of a row that need no memory */ };

static ravel_status check_shape(const ravel_routes *r, ravel_error *err) {
    int known = r->dtype == RAVEL_I8 || r->dtype == RAVEL_I16 || r->dtype == RAVEL_I32 || r->dtype == RAVEL_I64;
    if (r->layers >= 1 && r->topk >= 1 && (int64_t)r->layers * r->topk <= ELEMENTS && r->experts >= r->topk &&
        r->experts <= EXPERTS && known)
        return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "routes of %d layers, %d experts of %d each, dtype %s: a row has 1 to %d elements, there are from "
        "top-k to %d experts, and the dtype is i8, i16, i32 or i64",
        r->layers, r->topk, r->experts, ravel_dtype_name(r->dtype), ELEMENTS, EXPERTS);
}

/* A row as 16-bit integers; what does not fit becomes -2, which is no expert. Rows of that dtype are taken where they
 * are. */
static const int16_t *widen(const ravel_routes *r, const void *rows, int64_t row, int64_t width, int16_t *to) {
    const int64_t first = row * width;
#define COPY(type)                                                  \
    for (int64_t i = 0; i < width; i++) {                           \
        const int64_t x = (int64_t)((const type *)rows)[first + i]; \
        to[i] = x < -1 || x > EXPERTS ? -2 : (int16_t)x;            \
    }
    switch (r->dtype) {
    case RAVEL_I16: return (const int16_t *)rows + first;
    case RAVEL_I8: COPY(int8_t) break;
    case RAVEL_I32: COPY(int32_t) break;
    default: COPY(int64_t) break;
    }
#undef COPY
    return to;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t number_of(int32_t token, int64_t position, const int16_t *row, int64_t width) {
    uint64_t place = mixed(((uint64_t)position << 32 | (uint32_t)token) + UINT64_C(0x9e3779b97f4a7c15));
    return mixed(ravel__xxh3_of(row, (size_t)width * sizeof *row) ^ place);
}

/* The layer whose experts are wrong, or -1. */
static int64_t wrong_layer(const ravel_routes *r, const int16_t *row) {
    for (int64_t layer = 0; layer < r->layers; layer++) {
        const int16_t *e = row + layer * r->topk;
        for (int32_t i = 0; i < r->topk; i++) {
            if (e[i] < -1 || e[i] >= r->experts || (e[i] < 0) != (e[0] < 0)) return layer;
            for (int32_t k = 0; k < i && e[i] >= 0; k++)
                if (e[k] == e[i]) return layer;
        }
    }
    return -1;
}

typedef struct row_memory {
    int16_t here[ROW], *at;
    size_t bytes;
} row_memory;

static ravel_status open_row(row_memory *m, int64_t width, ravel_error *err) {
    m->bytes = (size_t)width * sizeof *m->at;
    m->at = width <= ROW ? m->here : ravel__alloc(NULL, m->bytes);
    return m->at ? RAVEL_OK : ravel__no_memory(err, m->bytes, "a row of routes");
}

static void close_row(row_memory *m) {
    if (m->at != m->here) ravel__release(NULL, m->at, m->bytes);
}

ravel_status ravel_routes_ids(const ravel_routes *r, int64_t count, const int64_t *offsets, const int32_t *tokens,
                              const void *rows, int64_t *ids, ravel_error *err) {
    row_memory m;
    ravel_status status = check_shape(r, err);
    int64_t width = (int64_t)r->layers * r->topk;
    if (!status) status = open_row(&m, width, err);
    if (status) return status;
    for (int64_t s = 0; s < count && !status; s++) {
        uint64_t sum = 0;
        for (int64_t i = offsets[s]; i < offsets[s + 1] && !status; i++) {
            const int16_t *row = widen(r, rows, i, width, m.at);
            int64_t layer = wrong_layer(r, row);
            if (layer >= 0)
                status = ravel_error_set(
                    err, RAVEL_E_DATA,
                    "sample %lld, token %lld, layer %lld: its route must be %d different experts from 0 "
                    "to %d, or -1 throughout",
                    (long long)s, (long long)(i - offsets[s]), (long long)layer, r->topk, r->experts - 1);
            sum += number_of(tokens[i], i - offsets[s], row, width);
        }
        if (!status) ids[s] = (int64_t)sum;
    }
    close_row(&m);
    return status;
}

ravel_status ravel_routes_add(const ravel_routes *r, int64_t count, const int32_t *tokens, const int32_t *positions,
                              const int32_t *segments, const void *rows, int64_t sequences, int64_t *sums,
                              ravel_error *err) {
    row_memory m;
    ravel_status status = check_shape(r, err);
    int64_t width = (int64_t)r->layers * r->topk;
    if (!status) status = open_row(&m, width, err);
    if (status) return status;
    for (int64_t i = 0; i < count && !status; i++) {
        const int16_t *row = widen(r, rows, i, width, m.at);
        if (segments[i] < 0 || segments[i] > sequences)
            status = ravel_error_set(err, RAVEL_E_ARGUMENT, "segments[%lld] is %d; there are %lld sequences",
                                     (long long)i, segments[i], (long long)sequences);
        else if (segments[i] > 0)
            sums[segments[i] - 1] =
                (int64_t)((uint64_t)sums[segments[i] - 1] + number_of(tokens[i], positions[i], row, width));
        for (int64_t k = 0; k < width && segments[i] == 0 && !status; k++)
            if (row[k] != -1)
                status = ravel_error_set(err, RAVEL_E_DATA,
                                         "place %lld is padding, but has a route: expert %d in layer %lld",
                                         (long long)i, row[k], (long long)(k / r->topk));
    }
    close_row(&m);
    return status;
}

ravel_status ravel_routes_compare(int64_t sequences, const int32_t *samples, const int64_t *ids, const int64_t *sums,
                                  ravel_error *err) {
    for (int64_t i = 0; i < sequences; i++)
        if (samples[i] >= 0 && ids[i] != sums[i])
            return ravel_error_set(
                err, RAVEL_E_DATA,
                "sample %d: its routes are not those of its tokens; rows and tokens were moved apart, by a "
                "shift of a position for one, or one of them was changed",
                samples[i]);
    return RAVEL_OK;
}
