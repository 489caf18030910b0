/* Memory that grows by doubling and is kept for the next text. */
#ifndef RAVEL_TEXT_BUFFER_H
#define RAVEL_TEXT_BUFFER_H

#include "base/memory.h"

typedef struct ravel__buffer {
    void *at;
    size_t room; /* bytes */
} ravel__buffer;

/* Room for `count` elements; what is in it stays. E_MEMORY leaves it as it was. */
static inline ravel_status ravel__buffer_reserve(ravel__buffer *buffer, const ravel_allocator *allocator, size_t count,
                                                 size_t each, ravel_error *err) {
    size_t need;
    if (!ravel__size_mul(count, each, &need) || need > SIZE_MAX / 4) return ravel__no_memory(err, SIZE_MAX, "a text");
    if (need <= buffer->room) return RAVEL_OK;
    size_t room = need < 2 * buffer->room ? 2 * buffer->room : need < 256 ? 256 : need;
    void *at = ravel__resize(allocator, buffer->at, buffer->room, room);
    if (!at) return ravel__no_memory(err, room, "a text");
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
