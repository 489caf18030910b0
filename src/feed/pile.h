/* An array of bytes that grows by doubling and is used again: what is read update after update. */
#ifndef RAVEL_FEED_PILE_H
#define RAVEL_FEED_PILE_H

#include "base/memory.h"

typedef struct ravel__pile {
    void *at;
    size_t room; /* bytes */
} ravel__pile;

/* Room for at least `count` elements; what it holds is kept. E_MEMORY leaves it as it was. */
static inline ravel_status ravel__pile_reserve(ravel__pile *pile, const ravel_allocator *allocator, int64_t count,
                                               size_t each, const char *what, ravel_error *err) {
    size_t need;
    if (count < 0 || !ravel__size_mul((size_t)count, each, &need) || need > SIZE_MAX / 4)
        return ravel__no_memory(err, SIZE_MAX, what);
    if (need <= pile->room) return RAVEL_OK;
    size_t room = need < 2 * pile->room ? 2 * pile->room : need;
    room = ravel__round_up(room, RAVEL__ALIGN);
    void *at = ravel__resize(allocator, pile->at, pile->room, room);
    if (!at) return ravel__no_memory(err, room, what);
    pile->at = at;
    pile->room = room;
    return RAVEL_OK;
}

static inline void ravel__pile_free(ravel__pile *pile, const ravel_allocator *allocator) {
    ravel__release(allocator, pile->at, pile->room);
    pile->at = NULL;
    pile->room = 0;
}

#endif
