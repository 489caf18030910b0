/* Two ways to hand out memory in pieces.
 *
 *   arena   host memory that is freed in one go. After a failed allocation all later ones return NULL, so a caller
 *           allocates everything it needs and checks once, at the end.
 *   cut     pieces of a block that the caller owns. With base NULL it only counts, so that one function computes both
 *           the size of a block and its layout. */
#ifndef TRAIN_ARENA_H
#define TRAIN_ARENA_H

#include "base/assert.h"
#include "train/kernels/host.h"

typedef struct train__arena {
    const ravel_allocator *allocator;
    struct train__chunk *chunks; /* newest first */
    size_t failed;               /* bytes of the allocation that failed; 0: none */
} train__arena;

/* `bytes` at a multiple of TRAIN_ALIGN, zeroed. NULL when memory is, or was, short; bytes 0 count as 1. */
void *train__arena_take(train__arena *arena, size_t bytes);
/* count elements of the type that `pointer` points to. */
#define TRAIN__TAKE(arena, pointer, count) ((pointer) = train__arena_take_array(arena, count, sizeof *(pointer)))
void *train__arena_take_array(train__arena *arena, int64_t count, size_t each);
/* E_MEMORY if an allocation failed; `what` ends the sentence. */
ravel_status train__arena_status(const train__arena *arena, const char *what, ravel_error *err);
/* Frees every piece; the arena is empty again. */
void train__arena_free(train__arena *arena);

typedef struct train__cut {
    char *base;
    size_t used;
} train__cut;

/* The next `count * each` bytes, at a multiple of TRAIN_ALIGN; NULL if it only counts. */
static inline void *train__cut_take(train__cut *cut, int64_t count, size_t each) {
    size_t at = (cut->used + TRAIN_ALIGN - 1) / TRAIN_ALIGN * TRAIN_ALIGN;
    RAVEL_ASSERT(count >= 0 && at >= cut->used);
    cut->used = at + (size_t)count * each;
    return cut->base ? cut->base + at : NULL;
}

#endif
