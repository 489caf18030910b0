/* Memory through the caller's hook, and an arena on top of it.
 *
 *   ravel__alloc / ravel__resize / ravel__release   thin wrappers: NULL allocator means malloc.
 *   ravel__arena                                     many pieces, one lifetime:
 *
 *       block 0                 block 1 (at least as large as what was asked for)
 *       [used......|free]  <-   [used..|free..........]  <- arena.head
 *
 * Pieces are aligned to 64 bytes (a cache line, and the widest vector). A piece cannot be freed alone; the arena is
 * rewound to a mark or freed whole. */
#ifndef RAVEL_BASE_MEMORY_H
#define RAVEL_BASE_MEMORY_H

#include <ravel/base.h>

/* NULL when bytes is 0 or memory is short. */
void *ravel__alloc(const ravel_allocator *allocator, size_t bytes);
/* As ravel__alloc, zeroed; NULL also if count * each overflows. */
void *ravel__calloc(const ravel_allocator *allocator, size_t count, size_t each);
void *ravel__resize(const ravel_allocator *allocator, void *ptr, size_t old_bytes, size_t new_bytes);
void ravel__release(const ravel_allocator *allocator, void *ptr, size_t bytes);

/* The sentence that every failed allocation gets. Returns RAVEL_E_MEMORY, here, so that an analyser sees it. */
void ravel__say_no_memory(ravel_error *err, size_t bytes, const char *what);
static inline ravel_status ravel__no_memory(ravel_error *err, size_t bytes, const char *what) {
    ravel__say_no_memory(err, bytes, what);
    return RAVEL_E_MEMORY;
}

/* a * b for sizes; 0 on overflow, 1 and the result otherwise. */
static inline int ravel__size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

#define RAVEL__ALIGN 64
static inline size_t ravel__round_up(size_t bytes, size_t align) {
    return (bytes + align - 1) / align * align;
}

typedef struct ravel__block ravel__block;

typedef struct ravel__arena {
    const ravel_allocator *allocator;
    ravel__block *head;
    size_t grow;    /* least size of a new block */
    size_t missing; /* bytes of the first push that failed; 0: none has */
} ravel__arena;

typedef struct ravel__mark {
    ravel__block *head;
    size_t used;
} ravel__mark;

/* `grow`: least size of a block; the first is allocated on the first push. */
void ravel__arena_init(ravel__arena *arena, const ravel_allocator *allocator, size_t grow);
/* count * each bytes, not zeroed, aligned to 64; NULL when memory is short or the product overflows. A push of
 * nothing is a valid pointer that must not be read. */
void *ravel__arena_push(ravel__arena *arena, size_t count, size_t each);
/* `array` gets room for `count` of its elements, or NULL. */
#define RAVEL__PUSH(arena, array, count) ((array) = ravel__arena_push(arena, count, sizeof *(array)))
/* After several pushes: E_MEMORY if one since the arena's init has failed. `what` it was for. */
ravel_status ravel__arena_status(const ravel__arena *arena, const char *what, ravel_error *err);
ravel__mark ravel__arena_mark(const ravel__arena *arena);
void ravel__arena_rewind(ravel__arena *arena, ravel__mark mark);
void ravel__arena_free(ravel__arena *arena);

#endif
