/* An array of bytes that grows by doubling and is used again: one per kind of data that is read update after update, or
 * text after text. */
#ifndef RAVEL_BASE_BUFFER_H
#define RAVEL_BASE_BUFFER_H

#include "base/memory.h"

typedef struct ravel__buffer {
    void *at;
    size_t room; /* bytes */
} ravel__buffer;

/* Room for at least `count` elements; what it holds is kept. E_MEMORY, naming `what`, leaves it as it was. */
static inline ravel_status ravel__buffer_reserve(ravel__buffer *buffer, const ravel_allocator *allocator, int64_t count,
                                                 size_t each, const char *what, ravel_error *err) {
    size_t need;
    if (count < 0 || !ravel__size_mul((size_t)count, each, &need) || need > SIZE_MAX / 4)
        return ravel__no_memory(err, SIZE_MAX, what);
    if (need <= buffer->room) return RAVEL_OK;
    size_t room = need < 2 * buffer->room ? 2 * buffer->room : need;
    room = ravel__round_up(room, RAVEL__ALIGN);
    void *at = ravel__resize(allocator, buffer->at, buffer->room, room);
    if (!at) return ravel__no_memory(err, room, what);
    buffer->at = at;
    buffer->room = room;
    return RAVEL_OK;
}

static inline void ravel__buffer_free(ravel__buffer *buffer, const ravel_allocator *allocator) {
    ravel__release(allocator, buffer->at, buffer->room);
    buffer->at = NULL;
    buffer->room = 0;
}

#endif
