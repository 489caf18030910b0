/* A 64-bit digest of integers: for plans, manifests and metadata that ranks compare. Order matters; the same on every
 * machine, since its input is numbers, not bytes. It does not resist chosen collisions. */
#ifndef RAVEL_BASE_HASH_H
#define RAVEL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct ravel__hash {
    uint64_t a, b;
} ravel__hash;

static inline ravel__hash ravel__hash_begin(uint64_t kind) {
    ravel__hash h = {0x243f6a8885a308d3u ^ kind, 0x13198a2e03707344u};
    return h;
}

/* One multiply and one rotate per word; two lanes keep information that one would lose. */
static inline void ravel__hash_u64(ravel__hash *h, uint64_t x) {
    h->a = (h->a ^ x) * 0x9e3779b97f4a7c15u;
    h->b = ((h->b << 27) | (h->b >> 37)) + (h->a ^ (h->a >> 32));
}

static inline uint64_t ravel__hash_end(ravel__hash h) {
    uint64_t x = h.a ^ (h.b * 0xbf58476d1ce4e5b9u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void ravel__hash_i64s(ravel__hash *h, const int64_t *x, size_t count);
void ravel__hash_i32s(ravel__hash *h, const int32_t *x, size_t count);
/* Bytes, read as little-endian words; the length is part of it. */
void ravel__hash_bytes(ravel__hash *h, const void *data, size_t bytes);

#endif
