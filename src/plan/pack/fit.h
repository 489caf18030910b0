/* An index of open bins by the room they have left: "the bin with the least room that is enough", exactly.
 *
 * Small rooms (the ordinary case: a budget of thousands of tokens) use one list of bins per room and a bitmap tree over
 * the rooms that have any, 64 to a word:
 *
 *     level 1   [ 1 0 1 ... ]                    bit i: word i below is not empty
 *     level 0   [0100...] [0000...] [1000...]    bit r: some bin has room r
 *     head[r]   -> bin -> bin -> none
 *
 * so that looking up, adding and removing touch three or four words. Huge rooms (a budget of 2^40 and a few samples)
 * use a treap whose priorities are a mix of the bin's number, so it is the same tree on every machine. */
#ifndef RAVEL_PLAN_PACK_FIT_H
#define RAVEL_PLAN_PACK_FIT_H

#include "plan/internal.h"

enum { RAVEL__FIT_LEVELS = 6 };

typedef struct ravel__fit {
    uint64_t *level[RAVEL__FIT_LEVELS]; /* level[0] NULL: a treap */
    int levels;
    int32_t *head; /* by room */
    int32_t *next; /* by bin; also the treap's left */
    int32_t *right;
    int64_t *room;
    int32_t root;
} ravel__fit;

/* For bins 0 .. bins-1 with rooms 0 .. cap. */
ravel_status ravel__fit_make(ravel__fit *fit, ravel__arena *arena, int64_t cap, int32_t bins, ravel_error *err);
void ravel__fit_put(ravel__fit *fit, int32_t bin, int64_t room);
/* Removes and returns the bin with the least room >= need, -1 when there is none. Among equals the one put last. */
int32_t ravel__fit_take(ravel__fit *fit, int64_t need, int64_t *room);

#endif
