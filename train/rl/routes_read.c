#include "train/rl/routes_read.h"

#include "base/assert.h"
#include "base/memory.h"
#include "train/kernels/host.h"

#include <stdio.h>
#include <string.h>

/* ---- bytes ---------------------------------------------------------------------------------------------- */

static int digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Base64 with its padding; how many bytes it was, -1 if it is none. `to` has room for three quarters of `bytes`. */
static int64_t decode(const char *text, size_t bytes, uint8_t *to) {
    int64_t n = 0;
    if (bytes % 4) return -1;
    for (size_t i = 0; i < bytes; i += 4) {
        int pad = i + 4 == bytes ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
        uint32_t value = 0;
        for (int k = 0; k < 4; k++) {
            int d = k >= 4 - pad ? 0 : digit(text[i + (size_t)k]);
            if (d < 0) return -1;
            value = value << 6 | (uint32_t)d;
        }
        for (int k = 0; k < 3 - pad; k++) to[n++] = (uint8_t)(value >> (16 - 8 * k));
    }
    return n;
}

/* Whole numbers in memory, little-endian. */
typedef struct numbers {
    const uint8_t *at;
    int64_t count;
    int size, is_signed;
} numbers;

static int64_t number_at(const numbers *x, int64_t i) {
    uint64_t value = 0;
    for (int k = 0; k < x->size; k++) value |= (uint64_t)x->at[i * x->size + k] << 8 * k;
    int sign = x->is_signed && x->size < 8 && value >> (8 * x->size - 1) & 1;
    return sign ? (int64_t)value - (INT64_C(1) << 8 * x->size) : (int64_t)value;
}

/* The array of an .npy file of whole numbers [rows, layers, topk]; 0: it is none. */
static int is_npy(const uint8_t *raw, int64_t bytes, const train_routes *r, numbers *x) {
    char head[512] = "", sign = 0;
    long long rows, layers, topk;
    int64_t begin = bytes > 10 && raw[6] == 1 ? 10 : 12;
    if (bytes < 12) return 0;
    int64_t length = begin == 10 ? raw[8] | raw[9] << 8 : raw[8] | raw[9] << 8 | raw[10] << 16;
    if (length >= (int64_t)sizeof head || begin + length > bytes) return 0;
    memcpy(head, raw + begin, (size_t)length);
    const char *type = strstr(head, "'descr': '"), *shape = strstr(head, "'shape': (");
    if (!type || !shape || !strstr(head, "'fortran_order': False")) return 0;
    if (sscanf(type, "'descr': '%*1[|<]%c%d'", &sign, &x->size) != 2 || (sign != 'i' && sign != 'u')) return 0;
    if (x->size != 1 && x->size != 2 && x->size != 4 && x->size != 8) return 0;
    if (sscanf(shape, "'shape': (%lld, %lld, %lld)", &rows, &layers, &topk) != 3) return 0;
    x->is_signed = sign == 'i';
    x->at = raw + begin + length;
    x->count = (bytes - begin - length) / x->size;
    return rows >= 0 && layers == r->layers && topk == r->topk && rows <= INT32_MAX && rows * layers * topk == x->count;
}

/* ---- routes --------------------------------------------------------------------------------------------- */

/* A token's experts in a layer. */
static int take_experts(const train_routes *r, const numbers *x, int64_t first, int16_t *to) {
    int zeros = 1;
    for (int64_t k = 0; k < r->topk; k++) {
        int64_t expert = number_at(x, first + k);
        if (expert < -1 || expert >= r->experts) return 0;
        zeros &= expert == 0;
        to[k] = (int16_t)expert;
    }
    for (int64_t k = 0; k < r->topk && r->topk > 1 && zeros; k++) to[k] = -1;
    for (int64_t k = 0; k < r->topk; k++)
        for (int64_t other = 0; other < k; other++)
            if (to[k] == to[other] && to[k] >= 0) return 0;
    return 1;
}

static ravel_status make_room(train_routes *r, size_t bytes, int64_t tokens, ravel_error *err) {
    int64_t need = tokens * r->layers * r->topk;
    uint8_t *raw = train__grown(NULL, r->raw, &r->raw_room, 0, (int64_t)bytes, 1);
    if (raw) r->raw = raw;
    int16_t *rows = train__grown(NULL, r->rows, &r->row_room, 0, need, sizeof *rows);
    if (rows) r->rows = rows;
    return raw && rows ? RAVEL_OK : ravel__no_memory(err, bytes + (size_t)need * sizeof *rows, "routes");
}

ravel_status train_routes_read(train_routes *r, const char *text, size_t bytes, int64_t tokens, ravel_error *err) {
    RAVEL_ASSERT(r->layers > 0 && r->topk > 0 && r->experts <= INT16_MAX && tokens > 0);
    int64_t width = r->layers * r->topk;
    r->count = 0;
    ravel_status status = make_room(r, bytes + 4, tokens, err);
    if (status) return status;
    int64_t got = decode(text, bytes, r->raw);
    numbers x = {r->raw, got / 4, 4, 1};
    int npy = got >= 6 && memcmp(r->raw, "\x93NUMPY", 6) == 0;
    if (got < 0 || (npy ? !is_npy(r->raw, got, r, &x) : got % 4 != 0))
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "routed_experts must be base64 of an array of numpy or of int32, [tokens, %lld, %lld]",
                               (long long)r->layers, (long long)r->topk);
    int64_t least = (tokens - 1) * width;
    if (x.count != least && x.count != tokens * width)
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "routed_experts has %lld experts; a sequence of %lld tokens has %lld in %lld layers",
                               (long long)x.count, (long long)tokens, (long long)least, (long long)r->layers);
    for (int64_t i = 0; i < (tokens - 1) * r->layers; i++)
        if (!take_experts(r, &x, i * r->topk, r->rows + i * r->topk))
            return ravel_error_set(err, RAVEL_E_MISMATCH,
                                   "routed_experts of token %lld, layer %lld: experts must be below %lld, and differ",
                                   (long long)(i / r->layers), (long long)(i % r->layers), (long long)r->experts);
    r->count = tokens - 1;
    return RAVEL_OK;
}

void train_routes_free(train_routes *r) {
    ravel__release(NULL, r->rows, (size_t)r->row_room * sizeof *r->rows);
    ravel__release(NULL, r->raw, (size_t)r->raw_room);
    r->rows = NULL;
    r->raw = NULL;
    r->row_room = r->raw_room = r->count = 0;
}
