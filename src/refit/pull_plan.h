/* Which slices one generator rank requests from which trainer rank. Computed from the directory and the rank's own
 * tensors alone: no other rank takes part, and none replans when a generator joins or leaves.
 *
 *     index     the boxes of one cut, equal ones together (replicas), sorted by their start along the axis that is cut
 *               most: the boxes that meet a given one are found by binary search
 *     pattern   how one box of a cut is put together: pieces, each a box and the replicas that have it. Tensors with the
 *               same cut, wanted in the same box, share a pattern
 *     want      (item, pattern, piece): one slice that one sender will be asked for
 *
 * Among replicas, one on this machine is chosen where there is one; else they take turns, beginning elsewhere for each
 * generator rank. */
#ifndef RAVEL_REFIT_PULL_PLAN_H
#define RAVEL_REFIT_PULL_PLAN_H

#include "refit/directory.h"
#include "refit/holding.h"

typedef struct ravel__piece {
    ravel__box box;
    int64_t count; /* elements */
    const int32_t *replicas;
    int32_t replica_count;
} ravel__piece;

typedef struct ravel__pattern {
    const ravel__piece *pieces;
    int32_t count;
} ravel__pattern;

typedef struct ravel__want {
    int32_t item;   /* of the sink's holding */
    int32_t tensor; /* of the directory */
    int32_t pattern;
    int32_t piece;
} ravel__want;

typedef struct ravel__pull_plan {
    ravel__arena arena;
    ravel__pattern *patterns;
    int32_t pattern_count;
    int32_t *dtypes;    /* [items] that travel */
    ravel__want *wants; /* sorted by sender, in the order of items */
    int64_t want_count;
    int64_t *first_want; /* [senders + 1] */
    int32_t senders;
    int64_t bytes; /* of all wants */
} ravel__pull_plan;

typedef struct ravel__pull_place {
    uint64_t machine; /* of this rank */
    uint64_t turn;    /* where replicas begin to take turns */
    int32_t cast;     /* ravel_refit_cast */
} ravel__pull_place;

/* Names that no sender has, shapes, dtypes and boxes that no trainer rank has go to the list. */
ravel_status ravel__pull_plan_make(const ravel__directory *directory, const ravel__holding *sink,
                                   const ravel__pull_place *place, const ravel_allocator *allocator,
                                   ravel__pull_plan *plan, ravel__differences *list, ravel_error *err);
void ravel__pull_plan_free(ravel__pull_plan *plan);

static inline const ravel__piece *ravel__want_piece(const ravel__pull_plan *plan, const ravel__want *want) {
    return &plan->patterns[want->pattern].pieces[want->piece];
}
static inline int64_t ravel__want_bytes(const ravel__pull_plan *plan, const ravel__want *want) {
    return ravel__want_piece(plan, want)->count * ravel_dtype_bytes(plan->dtypes[want->item]);
}

#endif
