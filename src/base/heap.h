/* A heap of (key, id): the largest key on top. The order of equal keys depends only on the sequence of calls, so it is
 * the same on every machine. The caller owns the memory. A node of 16 bytes has four children: 64 bytes, one or two
 * cache lines, and half the depth of a binary heap.
 *
 *     ravel__heap h = {nodes, 0};
 *     ravel__heap_push(&h, key, id);
 *     h.at[0].key = smaller; ravel__heap_sink(&h);      the top key became smaller
 */
#ifndef RAVEL_BASE_HEAP_H
#define RAVEL_BASE_HEAP_H

#include "base/assert.h"

#include <stdint.h>

typedef struct ravel__node {
    int64_t key;
    int32_t id;
} ravel__node;

typedef struct ravel__heap {
    ravel__node *at;
    int32_t count;
} ravel__heap;

static inline void ravel__heap_push(ravel__heap *h, int64_t key, int32_t id) {
    ravel__node node = {key, id};
    RAVEL_ASSERT(h->count >= 0);
    int32_t at = h->count++;
    for (; at > 0 && key > h->at[(at - 1) / 4].key; at = (at - 1) / 4) h->at[at] = h->at[(at - 1) / 4];
    h->at[at] = node;
}

/* The child with the largest key, the first of equals. Where there are all four, without a branch: which of them it is
 * cannot be predicted. */
static inline int32_t ravel__heap_child(const ravel__heap *h, int32_t child) {
    const ravel__node *at = h->at;
    if (child + 3 < h->count) {
        int64_t k0 = at[child].key, k1 = at[child + 1].key, k2 = at[child + 2].key, k3 = at[child + 3].key;
        int32_t a = child + (k1 > k0), b = child + 2 + (k3 > k2);
        int64_t x = k1 > k0 ? k1 : k0, y = k3 > k2 ? k3 : k2;
        return y > x ? b : a;
    }
    int32_t best = child;
    for (int32_t c = child + 1; c < h->count; c++)
        if (at[c].key > at[best].key) best = c;
    return best;
}

/* Moves the top down until no child has a larger key. */
static inline void ravel__heap_sink(ravel__heap *h) {
    RAVEL_ASSERT(h->count > 0);
    ravel__node node = h->at[0];
    int32_t at = 0;
    for (int32_t child = 1; child < h->count; child = 4 * at + 1) {
        int32_t best = ravel__heap_child(h, child);
        RAVEL_ASSERT(best >= child && best < h->count && best < child + 4);
        if (h->at[best].key <= node.key) break;
        h->at[at] = h->at[best];
        at = best;
    }
    h->at[at] = node;
    RAVEL_ASSERT(at < h->count && h->at[0].key >= node.key);
}

/* Removes the top and returns its id. */
static inline int32_t ravel__heap_pop(ravel__heap *h) {
    RAVEL_ASSERT(h->count > 0);
    int32_t id = h->at[0].id;
    h->at[0] = h->at[--h->count];
    if (h->count) ravel__heap_sink(h);
    return id;
}

#endif
