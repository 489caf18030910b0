/* Experts' routes as servers answer them: what is written in any of their forms is read back; what is cut is refused. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "train/rl/routes_read.h"

#include <stdlib.h>
#include <string.h>

/* Base64 of bytes[count]; free it. */
static char *encode(const uint8_t *bytes, size_t count, size_t *length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc(count / 3 * 4 + 8);
    *length = 0;
    for (size_t i = 0; i < count; i += 3) {
        uint32_t v = (uint32_t)bytes[i] << 16;
        if (i + 1 < count) v |= (uint32_t)bytes[i + 1] << 8;
        if (i + 2 < count) v |= bytes[i + 2];
        for (size_t k = 0; k < 4; k++) text[(*length)++] = (char)(i + k > count ? '=' : digits[v >> (18 - 6 * k) & 63]);
    }
    return text;
}

/* The head of an .npy file, 128 bytes; 0 bytes without a type. */
static size_t put_head(uint8_t *to, const char *type, int64_t rows, const train_routes *r) {
    char dict[128];
    if (!type) return 0;
    memcpy(to, "\x93NUMPY\1\0\x76\0", 10);
    memset(to + 10, ' ', 118);
    int n = snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%lld, %lld, %lld), }", type,
                     (long long)rows, (long long)r->layers, (long long)r->topk);
    memcpy(to + 10, dict, (size_t)n);
    to[127] = '\n';
    return 128;
}

TEST(train_routes_of_servers_are_read_in_every_form) {
    static const struct {
        const char *type;
        size_t size;
    } forms[] = {{NULL, 4}, {"<i4", 4}, {"|u1", 1}, {"<u2", 2}, {"<i2", 2}, {"<i8", 8}};
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < check_rounds(60, 600); i++) {
        train_routes r = {.layers = 1 + (int64_t)ravel__rng_below(&rng, 4),
                          .topk = 1 + (int64_t)ravel__rng_below(&rng, 3)};
        int64_t tokens = 2 + (int64_t)ravel__rng_below(&rng, 9), width = r.layers * r.topk;
        int64_t rows = tokens - (int64_t)ravel__rng_below(&rng, 2), count = rows * width;
        r.experts = r.topk + 1 + (int64_t)ravel__rng_below(&rng, 100);
        int16_t *want = calloc((size_t)count, sizeof *want);
        uint8_t *bytes = calloc((size_t)count * 8 + 128, 1);
        size_t form = (size_t)i % 6, used = put_head(bytes, forms[form].type, rows, &r), length;
        for (int64_t k = 0; k < count; k++) {
            int64_t expert =
                k % r.topk ? (want[k - 1] + 1) % r.experts : (int64_t)ravel__rng_below(&rng, (uint64_t)r.experts);
            want[k] = (int16_t)expert;
            bytes[used + (size_t)k * forms[form].size] = (uint8_t)expert;
        }
        used += (size_t)count * forms[form].size;
        char *text = encode(bytes, used, &length);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(train_routes_read(&r, text, length, tokens, &err), &err);
        CHECK(r.count == tokens - 1 && memcmp(r.rows, want, (size_t)(r.count * width) * sizeof *want) == 0);
        CHECK_EQ(train_routes_read(&r, text, length, tokens + 2, NULL), RAVEL_E_MISMATCH);
        CHECK_EQ(train_routes_read(&r, text, length - 4, tokens, NULL), RAVEL_E_MISMATCH);
        CHECK_EQ(train_routes_read(&r, text, length - 1, tokens, &err), RAVEL_E_MISMATCH);
        CHECK_HAS(err.message, "base64");
        train_routes_free(&r);
        free(want), free(bytes), free(text);
    }
}
