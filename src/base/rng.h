/* A deterministic random number generator: SplitMix64 to seed, xoshiro256** to draw. The same seed gives the same
 * stream on every machine; a stream is 32 bytes that can be saved and restored as they are. */
#ifndef RAVEL_BASE_RNG_H
#define RAVEL_BASE_RNG_H

#include "base/assert.h"

#include <stdint.h>

typedef struct ravel__rng {
    uint64_t s[4];
} ravel__rng;

/* A strong 64-bit mix: every input bit changes every output bit. */
static inline uint64_t ravel__mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline ravel__rng ravel__rng_seed(uint64_t seed) {
    ravel__rng r;
    for (int i = 0; i < 4; i++) {
        r.s[i] = ravel__mix64(seed);
        seed += 0x9e3779b97f4a7c15u;
    }
    return r;
}

static inline uint64_t ravel__rng_next(ravel__rng *r) {
    uint64_t *s = r->s, x = s[1] * 5, result = ((x << 7) | (x >> 57)) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* 0 .. bound-1 without bias; bound > 0. */
static inline uint64_t ravel__rng_below(ravel__rng *r, uint64_t bound) {
    RAVEL_ASSERT(bound > 0);
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
    do x = ravel__rng_next(r);
    while (x >= limit);
    return x % bound;
}

/* [0, 1) with 53 bits. */
static inline double ravel__rng_unit(ravel__rng *r) {
    return (double)(ravel__rng_next(r) >> 11) * 0x1p-53;
}

#endif
