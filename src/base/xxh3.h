/* XXH3 (64 bits, seed 0, the default secret), written from its published specification.
 *
 * Why here and not from libxxhash: both sides of a refit must have the same checksum, so an optional library would mean
 * a second kind for machines without it and one more way to disagree. The algorithm is 150 lines, and its speed comes
 * from one loop over eight lanes.
 *
 * A state takes the bytes in pieces of any size, so that a block can be hashed while it is still in the cache; the
 * result does not depend on how they were cut. */
#ifndef RAVEL_BASE_XXH3_H
#define RAVEL_BASE_XXH3_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__XXH3_BUFFER = 1024 };

typedef struct ravel__xxh3 {
    uint64_t acc[8];
    uint64_t total;         /* bytes so far */
    size_t held;            /* bytes in `buffer`: the last ones, not yet in acc; at least 64 once total is large */
    unsigned char last[64]; /* the 64 bytes before `buffer`, for the last stripe */
    unsigned char buffer[RAVEL__XXH3_BUFFER];
} ravel__xxh3;

void ravel__xxh3_begin(ravel__xxh3 *state);
void ravel__xxh3_add(ravel__xxh3 *state, const void *data, size_t bytes);
/* The same, and a copy of the bytes past the cache (base/copy.h): one way through memory for both. */
void ravel__xxh3_add_copy(ravel__xxh3 *state, void *to, const void *data, size_t bytes);
uint64_t ravel__xxh3_end(const ravel__xxh3 *state);

/* All at once. */
uint64_t ravel__xxh3_of(const void *data, size_t bytes);

/* The portable loop, for comparing the fast ones with it. */
uint64_t ravel__xxh3_reference(const void *data, size_t bytes);

#endif
