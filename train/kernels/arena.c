#include "train/kernels/arena.h"

#include "base/assert.h"

#include <string.h>

/* In front of each piece, in a line of its own. */
typedef struct train__chunk {
    struct train__chunk *next;
    size_t bytes; /* of the piece with this header */
} train__chunk;
_Static_assert(sizeof(train__chunk) <= TRAIN_ALIGN, "a header fits its line");

void *train__arena_take(train__arena *a, size_t bytes) {
    if (a->failed) return NULL;
    RAVEL_ASSERT(!a->chunks || a->chunks->bytes > TRAIN_ALIGN);
    size_t whole = TRAIN_ALIGN + (bytes ? bytes : 1);
    train__chunk *chunk = bytes < SIZE_MAX / 2 ? train__alloc_aligned(a->allocator, whole) : NULL;
    if (!chunk) {
        a->failed = whole;
        return NULL;
    }
    memset(chunk, 0, whole);
    chunk->next = a->chunks;
    chunk->bytes = whole;
    a->chunks = chunk;
    return (char *)chunk + TRAIN_ALIGN;
}

void *train__arena_take_array(train__arena *a, int64_t count, size_t each) {
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((size_t)count, each, &bytes)) bytes = SIZE_MAX;
    return train__arena_take(a, bytes);
}

ravel_status train__arena_status(const train__arena *a, const char *what, ravel_error *err) {
    return a->failed ? ravel__no_memory(err, a->failed, what) : RAVEL_OK;
}

void train__arena_free(train__arena *a) {
    for (train__chunk *chunk = a->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        RAVEL_ASSERT(chunk->bytes > TRAIN_ALIGN);
        train__release_aligned(a->allocator, chunk, chunk->bytes);
    }
    *a = (train__arena){.allocator = a->allocator};
}
