/* The plan: which slices one receiver (a generator rank, or a receiver of a collective refit) requests from which
 * sender. Computed from the directory and the rank's own tensors alone: no other rank takes part, and none replans when
 * a generator joins or leaves.
 *
 *     index     the boxes of one cut, equal ones together (replicas), sorted by their start along the axis that is cut
 *               most: the boxes that meet a given one are found by binary search
 *     pattern   how one box of a cut is put together: pieces, each a box and the replicas that have it. Tensors with the
 *               same cut, wanted in the same box, share a pattern
 *     want      (item, piece): one slice that one sender will be asked for
 *
 * Replicas take turns, beginning elsewhere for each receiver: those on its machine, or all if none is there. */
#ifndef RAVEL_REFIT_PLAN_H
#define RAVEL_REFIT_PLAN_H

#include "refit/model/directory.h"
#include "refit/model/holding.h"

typedef struct ravel__piece {
    ravel__box box;
    int64_t count; /* elements */
    const int32_t *replicas;
    int32_t replica_count;
} ravel__piece;

typedef struct ravel__want {
    int32_t item;   /* of the sink's holding */
    int32_t tensor; /* of the directory */
    const ravel__piece *piece;
} ravel__want;

typedef struct ravel__refit_plan {
    ravel__arena arena;
    int32_t *dtypes;    /* [items] that travel */
    ravel__want *wants; /* sorted by sender, then in the order of the directory's tensors */
    int64_t want_count;
    int64_t *first_want; /* [senders + 1] */
    int32_t senders;
    int64_t bytes; /* of all wants */
} ravel__refit_plan;

typedef struct ravel__refit_plan_place {
    uint64_t machine; /* of this rank; 0: of several */
    uint64_t turn;    /* where replicas begin to take turns */
    int32_t cast;     /* ravel_refit_cast */
    int32_t self;     /* this rank as a sender, which is taken first; -1: it is none */
    const char *who;  /* for sentences: "rank 3 (receiver)" */
} ravel__refit_plan_place;

/* Names that no sender has, shapes, dtypes and boxes that no sender has go to the list. */
ravel_status ravel__refit_plan_make(const ravel__directory *directory, const ravel__holding *sink,
                                    const ravel__refit_plan_place *place, const ravel_allocator *allocator,
                                    ravel__refit_plan *plan, ravel__differences *list, ravel_error *err);
void ravel__refit_plan_free(ravel__refit_plan *plan);

/* The dtype in which a tensor travels from `source` to `sink` under a ravel_refit_cast; -1: it cannot. */
int32_t ravel__travel_dtype(int32_t source, int32_t sink, int32_t cast);

static inline int64_t ravel__want_bytes(const ravel__refit_plan *plan, const ravel__want *want) {
    return want->piece->count * ravel_dtype_bytes(plan->dtypes[want->item]);
}

#endif
