/* The `threads` back end: N ranks inside one process, over shared memory.
 *
 *   threads.c             groups: members, ranks that left or failed; the table; ravel_threads_run
 *   threads_collective.c  collectives: a ring of slots
 *   threads_message.c     send and receive: a mailbox per rank
 *
 * A group is what all ranks of one communicator share. Groups form a tree (by split); a failure goes down the tree.
 *
 *     world
 *      +-- group "world" -- slots[0..63]   one open collective each, by its serial number
 *           |               boxes[0..n-1]  messages to each rank that have met no partner yet
 *           |               bells[0..n-1]  where a rank sleeps that waits for a message
 *           +-- group "tp"
 *           +-- group "dp" ...
 *
 * Locks: world->lock guards the tree, reference counts and the making of children; a box's lock its lists. Order:
 * world, then box. Collectives take no lock. No rank holds a lock while copying or sleeping. */
#ifndef RAVEL_COMM_THREADS_H
#define RAVEL_COMM_THREADS_H

#include "base/system/futex.h"
#include "comm/backend.h"

#include <pthread.h>

enum { SLOTS = RAVEL_REQUESTS_MAX }; /* so that a rank's limit of open requests keeps it within one round of the ring */
enum { YIELDS = 2 };                 /* yields before sleep: often the awaited ranks only need the core */

typedef struct threads_group threads_group;

/* One collective under way. `turn` is its serial number * 4 + a state, so that a compare-and-swap by a rank that looks
 * at an earlier or later collective in the same slot fails.
 *
 *     OPEN    ranks arrive one by one; any rank may FAIL it (deadline, lost rank)
 *     FULL    all have come; the last one looks whether they agree. From here it cannot fail any more
 *     READY   they agree: copies are claimed and made, by the ranks that wait
 *     FAILED final: the group is dead
 *
 * When the last copy is made, every request is marked done and the slot is OPEN for serial + SLOTS. */
enum { TURN_OPEN, TURN_FULL, TURN_READY, TURN_FAILED };

typedef struct threads_slot {
    _Atomic uint64_t turn;
    _Atomic uint32_t word; /* to sleep on */
    _Atomic int32_t sleepers;
    _Atomic int32_t arrived;
    _Atomic int32_t finished;         /* copies made */
    _Atomic(ravel_request *) *posted; /* [size], NULL: not here yet */
    _Atomic uint64_t *claims;         /* [size]: serial + 1 of the last operation whose copy was claimed */
    const char **sources;             /* [size]: the sends of all ranks, for reductions */
} threads_slot;

typedef struct threads_box {
    pthread_mutex_t lock;
    ravel_request *sends, *recvs; /* to this rank, by this rank; oldest first */
    ravel_request **sends_end, **recvs_end;
} threads_box;

typedef struct threads_bell {
    _Alignas(64) _Atomic uint32_t word;
    _Atomic int32_t sleepers;
    _Atomic int32_t left; /* this rank freed its handle */
} threads_bell;

typedef struct threads_world {
    pthread_mutex_t lock;
    const ravel_allocator *allocator;
    int64_t groups; /* alive */
} threads_world;

struct threads_group {
    threads_world *world;
    threads_group *parent, *children, *sibling;
    int32_t size, handles, expected; /* under world->lock; expected: handles yet to be made */
    int32_t colour;                  /* with serial: which of the parent's children */
    int64_t serial;
    int32_t spins;  /* rounds of busy waiting before sleep */
    int32_t *ranks; /* [size] world ranks, for sentences; NULL: this is the world */
    void *block;    /* what all of this lies in */
    size_t bytes;
    threads_slot *slots;
    threads_box *boxes;
    threads_bell *bells;
    _Atomic int32_t leavers; /* ranks that freed their handles */
    _Atomic int32_t dead;    /* set after what follows */
    int32_t lost;            /* rank of this group, -1: it is not in this group or not known */
    char reason[480];
};

/* State of a handle. */
typedef struct threads_rank {
    threads_group *group;
    uint64_t serial; /* of the next collective */
} threads_rank;

/* State of a request. */
typedef struct threads_request {
    uint64_t serial;       /* of the collective */
    _Atomic int32_t done;  /* set last, by the rank that finishes it; the owner may free the request right after */
    int32_t status;        /* of the finished operation; the sentence is in request->why */
    int32_t rank;          /* who owns it */
    int32_t queued;        /* under the box's lock: in a list */
    ravel_request *behind; /* in that list */
} threads_request;

static inline threads_rank *threads_of(ravel_comm *comm) {
    return comm->state;
}
static inline threads_request *threads_state(ravel_request *r) {
    return (threads_request *)(void *)r->state;
}

/* Makes the group and all below it dead, unless they are; wakes all waiting ranks. `lost` is a rank of this group or
 * -1. */
void ravel__threads_kill(threads_group *group, int32_t lost, const char *format, ...) RAVEL_PRINTF(3, 4);
/* The status and sentence of a dead group, into why. */
ravel_status ravel__threads_lost(ravel_comm *comm, ravel_error *why);
/* "rank 2" or "rank 2 (world rank 13)". */
void ravel__threads_name(const threads_group *group, int32_t rank, char *text, size_t bytes);
/* A rank that left and is needed: the lowest, -1: none. */
int32_t ravel__threads_leaver(threads_group *group);

/* collectives */
ravel_status ravel__threads_join(ravel_comm *comm, ravel_request *r);
ravel_status ravel__threads_await(ravel_comm *comm, ravel_request *r);
ravel_status ravel__threads_look(ravel_comm *comm, ravel_request *r, int32_t *done);
void ravel__threads_withdraw(ravel_comm *comm, ravel_request *r);
/* Every open collective fails; all ranks that wait for one wake. */
void ravel__threads_fail_slots(threads_group *group);
/* Whether a rank waits in a collective that has yet to be joined by all. */
int ravel__threads_is_awaited(threads_group *group);

/* messages */
ravel_status ravel__threads_post(ravel_comm *comm, ravel_request *r);
ravel_status ravel__threads_await_message(ravel_comm *comm, ravel_request *r);
ravel_status ravel__threads_look_message(ravel_comm *comm, ravel_request *r, int32_t *done);
void ravel__threads_unpost(ravel_comm *comm, ravel_request *r);
void ravel__threads_give_back(ravel_comm *comm, ravel_request *lender);
void ravel__threads_ring_all(threads_group *group);
/* Whether a rank waits for a message from or to the rank. */
int ravel__threads_has_partner(threads_group *group, int32_t rank);

#endif
