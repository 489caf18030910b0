/* The streams of a collective refit: what its plan becomes when all receivers pull the same version at once, over one
 * communicator.
 *
 *     group    receivers that take one stream together: all that hold the same pieces, if they outnumber the senders that
 *              have these (broadcast), else one. Every rank computes the groups from the hellos
 *     want     a slice that a receiver needs from a sender (plan.h); members of a group want the same from the same
 *     stream   (sender, group): the group's wants from that sender, in the order of the directory's tensors. Its members
 *              pass frames on along a tree:
 *
 *                  sender -> member 0 -> member 1 -> ...              a chain
 *     window   consecutive tensors; a sender finishes a window on all of its streams before the next one. One window
 *              for everything, unless a source makes its tensors one by one (iterate) for several groups.
 *
 * A receiver knows its streams from its own plan, which outlives them. A sender learns of its own from the first rank
 * of each group, which asks it once, when the session connects, as a generator asks a publication for every version:
 *
 *     XXH3 of the rest u64, number of slices u32, 0 u32, slices (pull_wire.h)
 *
 * Frames are sent and received in one order over the whole communicator, or ranks that send to and receive from
 * several others could wait for each other in a ring: by (window, number of the frame in the window,
 * (group - sender) mod groups, sender). Senders and receivers both go through their streams in that order. */
#ifndef RAVEL_REFIT_STREAMS_H
#define RAVEL_REFIT_STREAMS_H

#include "refit/session/hello.h"
#include "refit/wire/pull_wire.h"

typedef struct ravel__stream {
    int32_t sender;   /* rank */
    int32_t turn;     /* (group - sender) mod groups: its position in a round */
    int32_t tag;      /* of its messages */
    int32_t local;    /* the sender is the receiver: nothing travels */
    int32_t *members; /* ranks, in forwarding order */
    int32_t member_count;
    const ravel__asked *asked; /* [count] slices of an outgoing stream; flags: all members can apply changed elements */
    int64_t first, count;      /* of an incoming one: plan->wants[first .. first+count) */
    int64_t bytes;             /* of the slices as they travel */
} ravel__stream;

typedef struct ravel__streams {
    ravel__arena arena;
    ravel__stream *out, *in; /* of this rank; in the order of turns */
    int32_t out_count, in_count;
    int32_t *window_of; /* [tensors] of the directory */
    int32_t windows;
} ravel__streams;

/* ---- groups ---- */

typedef struct ravel__groups {
    ravel__arena arena;
    int32_t **ranks; /* [count] of each group, ascending */
    int32_t *sizes;  /* [count] */
    int32_t count;
    int32_t *sender_index; /* [ranks], -1: no sender */
    int32_t mine;          /* this rank's group; -1: it does not receive */
} ravel__groups;

ravel_status ravel__groups_make(const ravel__hello *hellos, int32_t ranks, int32_t rank,
                                const ravel_allocator *allocator, ravel__groups *groups, ravel_error *err);
void ravel__groups_free(ravel__groups *groups);
/* Where a receiver of this rank's group plans: members of a group choose the same senders. */
ravel__refit_plan_place ravel__groups_place(const ravel__groups *groups, const ravel__hello *hellos, int32_t rank);

/* ---- streams ---- */

typedef struct ravel__streams_from {
    ravel_comm *comm;
    const ravel__hello *hellos;
    const ravel__groups *groups;
    const ravel__directory *directory;
    const char *moves;            /* [directory->count]: 1 where any receiver wants the tensor */
    const ravel__holding *source; /* NULL: it does not send */
    const ravel__holding *sink;   /* and its plan of what it wants; NULL: it does not receive */
    const ravel__refit_plan *plan;
    int64_t buffer_bytes;
} ravel__streams_from;

/* Collective: the ranks ask one another. A failure of the communicator, or E_DATA, E_CHECKSUM or E_MEMORY of this rank
 * alone. */
ravel_status ravel__streams_make(const ravel__streams_from *from, const ravel_allocator *allocator,
                                 ravel__streams *streams, ravel_error *err);
void ravel__streams_free(ravel__streams *streams);

#endif
