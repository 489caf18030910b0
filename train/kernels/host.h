/* Memory and numbers on the host, for the CPU sets and the code above them. */
#ifndef TRAIN_HOST_H
#define TRAIN_HOST_H

#include "base/assert.h"
#include "base/memory.h"

#define TRAIN_ALIGN 64 /* bytes: a cache line and the widest vector */

/* As ravel__alloc and ravel__release, aligned to TRAIN_ALIGN. */
void *train__alloc_aligned(const ravel_allocator *allocator, size_t bytes);
void train__release_aligned(const ravel_allocator *allocator, void *ptr, size_t bytes);
/* The array with room for `need` elements, at least twice its old room, the first `used` kept; NULL when memory is
 * short: it and *room are then as they were. */
void *train__grown(const ravel_allocator *allocator, void *array, int64_t *room, int64_t used, int64_t need,
                   size_t each);

static inline int64_t train__round_up(int64_t n, int64_t multiple) {
    RAVEL_ASSERT(n >= 0 && multiple > 0);
    return (n + multiple - 1) / multiple * multiple;
}
static inline int64_t train__min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t train__max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Seconds of a clock that only goes forward. */
double train__now(void);

/* Whether the status means that other ranks are lost. */
static inline int train__is_lost(ravel_status status) {
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT || status == RAVEL_E_DEAD;
}

/* A random number that is a pure function of its arguments: it depends neither on earlier draws nor on the rank. */
uint64_t train__random(uint64_t seed, uint64_t stream, uint64_t index);
/* [0, 1) with 24 bits, so that it is the same number as a float. */
float train__random_unit(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal. */
double train__random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
