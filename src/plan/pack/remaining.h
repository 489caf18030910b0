/* The samples of a pool that have no bin yet, longest first: "the longest remaining one that fits a given room" by a
 * table over rooms (where they are few; else a binary search) and a table of skips (union-find). */
#ifndef RAVEL_PLAN_PACK_REMAINING_H
#define RAVEL_PLAN_PACK_REMAINING_H

#include "base/assert.h"
#include "plan/internal.h"

/* skip[i] leads to the first remaining sample at or after i. */
typedef struct ravel__remaining {
    const uint32_t *slot;
    int32_t *skip;  /* [count + 1] */
    int32_t *first; /* [cap + 1] the first sample of at most this many units; NULL: too many rooms for a table */
    int64_t cap;
    int32_t count;
} ravel__remaining;

enum { RAVEL__ROOMS_PER_SAMPLE = 4 }; /* largest cap for which the table is faster */

static inline int ravel__remaining_table(const ravel__job *job, ravel__remaining *r) {
    r->first = NULL;
    r->cap = job->rules->cap;
    if (r->cap > (int64_t)RAVEL__ROOMS_PER_SAMPLE * r->count) return 1;
    r->first = ravel__arena_push(job->arena, (size_t)r->cap + 1, sizeof *r->first);
    if (!r->first) return 0;
    int32_t at = r->count;
    for (int64_t room = 0; room <= r->cap; room++) {
        while (at > 0 && r->slot[at - 1] <= room) at--;
        RAVEL_ASSERT(at == r->count || r->slot[at] <= room);
        r->first[room] = at;
    }
    return 1;
}

static inline int ravel__remaining_make(const ravel__job *job, ravel__remaining *r) {
    r->count = job->pool->count;
    r->slot = job->pool->slot;
    r->skip = ravel__arena_push(job->arena, (size_t)r->count + 1, sizeof *r->skip);
    for (int32_t i = 0; r->skip && i <= r->count; i++) r->skip[i] = i;
    return r->skip != NULL && ravel__remaining_table(job, r);
}

/* Where i leads: skip[i] is i if it remains, else leads on to the next that does. Shortens the way. */
static inline int32_t ravel__skip_from(int32_t *skip, int32_t i) {
    int32_t root = i;
    while (skip[root] != root) root = skip[root];
    while (skip[i] != root) {
        int32_t next = skip[i];
        skip[i] = root;
        i = next;
    }
    return root;
}

/* The first remaining sample at or after i; r->count when there is none. */
static inline int32_t ravel__remaining_from(ravel__remaining *r, int32_t i) {
    RAVEL_ASSERT(i >= 0 && i <= r->count);
    return ravel__skip_from(r->skip, i);
}

/* The longest remaining sample of at most `room` at or after `from`; r->count when there is none. */
static inline int32_t ravel__remaining_within(ravel__remaining *r, int64_t room, int32_t from) {
    int32_t low = from, high = r->count;
    if (r->first) {
        int32_t first = room < 0 ? r->count : r->first[room < r->cap ? room : r->cap];
        return ravel__remaining_from(r, first > from ? first : from);
    }
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (r->slot[middle] <= room)
            high = middle;
        else
            low = middle + 1;
    }
    return ravel__remaining_from(r, low);
}

static inline void ravel__remaining_take(ravel__remaining *r, int32_t i) {
    RAVEL_ASSERT(i < r->count && r->skip[i] == i); /* nothing is taken twice */
    r->skip[i] = i + 1;
}

#endif
