/* The plan: which slice of which tensor goes from which sender to which receivers. A pure function of the catalog.
 *
 *     group    receivers that take one stream together: all that hold the same pieces, if they outnumber the senders that
 *              have these (broadcast), else one (shard)
 *     stream   (sender, group): an ordered list of slices. Its members pass frames on along a tree:
 *
 *                  sender -> member 0 -> member 1 -> ...              fanout 1, a chain
 *     slice    a box of one tensor; what a stream carries of it
 *     window   consecutive tensors; a sender finishes a window on all of its streams before the next one. One window
 *              for everything, unless a source makes its tensors one by one (iterate) for several groups.
 *
 * Frames are sent and received in one order over the whole communicator, or ranks that send to and receive from
 * several others could wait for each other in a ring: by (window, number of the frame in the window,
 * (group - sender) mod groups, sender). Senders and receivers both go through their streams in that order. */
#ifndef RAVEL_REFIT_PLAN_H
#define RAVEL_REFIT_PLAN_H

#include "refit/catalog.h"

typedef struct ravel__slice {
    int32_t item;   /* of this rank's holding: the source's for outgoing streams, the sink's for incoming ones */
    int32_t tensor; /* of the catalog: what frames call it */
    int32_t window;
    int32_t dtype;  /* that travels */
    int64_t count;  /* elements */
    int64_t coords; /* index into plan->coords: start[ndim], extent[ndim] */
} ravel__slice;

typedef struct ravel__stream {
    int32_t sender;   /* rank */
    int32_t turn;     /* (group - sender) mod groups: its position in a round */
    int32_t tag;      /* of its messages */
    int32_t local;    /* the sender is the receiver: nothing travels */
    int32_t *members; /* ranks, in forwarding order */
    int32_t member_count;
    int64_t first, slices; /* plan->slices[first .. first+slices) */
    int64_t bytes;         /* of the slices as they travel */
} ravel__stream;

typedef struct ravel__refit_plan {
    ravel__arena arena;
    ravel__slice *slices;
    int64_t slice_count;
    int64_t *coords;
    ravel__stream *out, *in; /* of this rank; in the order of turns */
    int32_t out_count, in_count;
    int32_t windows;
    int64_t bytes_needed; /* by all receivers together */
    uint64_t digest;      /* of all slices of all ranks */
} ravel__refit_plan;

/* For `rank`, whose holdings are `source` and `sink` (NULL: none). A piece that no rank sends is a difference; the
 * plan is then made without it. */
ravel_status ravel__refit_plan_make(const ravel__catalog *catalog, int32_t rank, const ravel__holding *source,
                                    const ravel__holding *sink, int64_t buffer_bytes, const ravel_allocator *allocator,
                                    ravel__refit_plan *plan, ravel__differences *list, ravel_error *err);
void ravel__refit_plan_free(ravel__refit_plan *plan);

ravel__box ravel__slice_box(const ravel__refit_plan *plan, const ravel__slice *slice, int32_t ndim);

#endif
