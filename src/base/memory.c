#include "base/assert.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static void *malloc_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    (void)user;
    (void)old_bytes;
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

static const ravel_allocator malloc_allocator = {malloc_resize, NULL};

void *ravel__resize(const ravel_allocator *allocator, void *ptr, size_t old_bytes, size_t new_bytes) {
    RAVEL_ASSERT(!allocator || (ptr == NULL) == (old_bytes == 0)); /* the caller passes the size to free */
    if (!allocator || !allocator->resize) allocator = &malloc_allocator;
    return allocator->resize(allocator->user, ptr, old_bytes, new_bytes);
}

void *ravel__alloc(const ravel_allocator *allocator, size_t bytes) {
    return bytes ? ravel__resize(allocator, NULL, 0, bytes) : NULL;
}

void *ravel__calloc(const ravel_allocator *allocator, size_t count, size_t each) {
    size_t bytes;
    if (!ravel__size_mul(count, each, &bytes)) return NULL;
    void *ptr = ravel__alloc(allocator, bytes);
    if (ptr) memset(ptr, 0, bytes);
    return ptr;
}

void ravel__release(const ravel_allocator *allocator, void *ptr, size_t bytes) {
    if (ptr) ravel__resize(allocator, ptr, bytes, 0);
}

void ravel__say_no_memory(ravel_error *err, size_t bytes, const char *what) {
    RAVEL_ASSERT(what);
    ravel_error_set(err, RAVEL_E_MEMORY, "out of memory: %zu bytes for %s could not be allocated", bytes, what);
}

/* ---- arena ---------------------------------------------------------------------------------------------- */

struct ravel__block {
    ravel__block *older;
    size_t bytes; /* of the whole allocation */
    size_t used;  /* offset of the first free byte from the block's start */
};

void ravel__arena_init(ravel__arena *arena, const ravel_allocator *allocator, size_t grow) {
    arena->allocator = allocator;
    arena->head = NULL;
    arena->grow = grow;
    arena->missing = 0;
}

/* Where the next 64-byte boundary lies: the hook promises only the alignment of malloc. */
static size_t aligned_offset(const ravel__block *block, size_t used) {
    uintptr_t at = (uintptr_t)block + used;
    RAVEL_ASSERT(used >= sizeof *block && used <= block->bytes);
    return used + (size_t)((RAVEL__ALIGN - at % RAVEL__ALIGN) % RAVEL__ALIGN);
}

static void *missing(ravel__arena *arena, size_t bytes) {
    if (!arena->missing) arena->missing = bytes;
    return NULL;
}

void *ravel__arena_push(ravel__arena *arena, size_t count, size_t each) {
    RAVEL_ASSERT(each >= 1);
    size_t bytes;
    if (!ravel__size_mul(count, each, &bytes) || bytes > SIZE_MAX / 2) return missing(arena, SIZE_MAX);
    ravel__block *block = arena->head;
    size_t at = block ? aligned_offset(block, block->used) : 0;
    if (!block || at > block->bytes || block->bytes - at < bytes) {
        size_t total = sizeof *block + RAVEL__ALIGN + bytes;
        if (total < arena->grow) total = arena->grow;
        block = ravel__alloc(arena->allocator, total);
        if (!block) return missing(arena, total);
        block->older = arena->head;
        block->bytes = total;
        block->used = sizeof *block;
        arena->head = block;
        at = aligned_offset(block, block->used);
    }
    RAVEL_ASSERT(at >= sizeof *block && at <= block->bytes && bytes <= block->bytes - at);
    block->used = at + bytes;
    RAVEL_ASSERT(block->used <= block->bytes && ((uintptr_t)block + at) % RAVEL__ALIGN == 0);
    return (char *)block + at;
}

ravel_status ravel__arena_status(const ravel__arena *arena, const char *what, ravel_error *err) {
    return arena->missing ? ravel__no_memory(err, arena->missing, what) : RAVEL_OK;
}

ravel__mark ravel__arena_mark(const ravel__arena *arena) {
    ravel__mark mark = {arena->head, arena->head ? arena->head->used : 0};
    return mark;
}

void ravel__arena_rewind(ravel__arena *arena, ravel__mark mark) {
    while (arena->head != mark.head) {
        RAVEL_ASSERT(arena->head); /* the mark is one of this arena */
        ravel__block *older = arena->head->older;
        ravel__release(arena->allocator, arena->head, arena->head->bytes);
        arena->head = older;
    }
    RAVEL_ASSERT(!arena->head || (mark.used >= sizeof *arena->head && mark.used <= arena->head->used));
    if (arena->head) arena->head->used = mark.used;
}

void ravel__arena_free(ravel__arena *arena) {
    ravel__mark empty = {NULL, 0};
    ravel__arena_rewind(arena, empty);
}
