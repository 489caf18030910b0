/* The back end whose ranks are processes, over a wire (comm/wire.h). See remote.c for the design.
 *
 *   remote.c        the table of the back end, worlds and communicators
 *   remote_job.c    operations, as rounds of transfers
 *   remote_match.c  which message belongs to which receive
 *   remote_lost.c   which ranks left, failed or ended, and which ranks are notified
 *
 * Memory that a wire may still use after an operation was cancelled comes from malloc, not from the caller's allocator,
 * which may no longer exist. */
#ifndef RAVEL_COMM_REMOTE_H
#define RAVEL_COMM_REMOTE_H

#include "comm/backend.h"
#include "comm/machine.h"
#include "comm/wire.h"

#include <pthread.h>

enum {
    REMOTE_DEPTH = 16,   /* communicators split from one another */
    REMOTE_BUCKETS = 64, /* of a communicator's receives and messages, by peer and tag */
    REMOTE_WORLD_BUCKETS = 256,
    REMOTE_WINDOW = 16,     /* transfers of one operation under way at once, in each direction */
    REMOTE_CREDIT = 64,     /* small messages to one peer that no receive has matched yet */
    REMOTE_TELL_ALL = 64,   /* larger communicators notify only contacts of a lost rank */
    REMOTE_LEFT_KEPT = 1024 /* ids of communicators that this rank has left */
};

typedef struct remote_rank remote_rank;
typedef struct remote_world remote_world;
typedef struct remote_job remote_job;
typedef struct remote_parcel remote_parcel;
typedef struct remote_stray remote_stray;

/* ---- frames of remote_match.c and remote_lost.c: one head, little-endian words of the machine (checked when opening)
 * ---- */

typedef enum remote_kind {
    FRAME_EAGER = 1, /* a small message, body behind the head */
    FRAME_OFFER,     /* a long one is ready; token: the sender's parcel */
    FRAME_ACCEPT, /* of an offer: bytes = the receiver's token for the transfer; note 1: not wanted, it counts as sent */
    FRAME_CREDIT, /* note: messages that were taken */
    FRAME_LEFT,   /* the sender has left the communicator */
    FRAME_FAILED, /* the communicator is dead; body: a sentence */
    FRAME_ASK,    /* are you still in it? The answer is LEFT, or nothing */
    FRAME_KINDS
} remote_kind;

typedef struct remote_head {
    uint32_t magic, kind;
    uint64_t port; /* the communicator's id */
    uint32_t tag, note, token, lost;
    int64_t bytes; /* of the message */
    int64_t serial;
} remote_head;
enum { REMOTE_MAGIC = 0x52766c33, REMOTE_FRAME_MOST = 8192 };

/* One message of this rank: a send or a receive. */
struct remote_parcel {
    remote_parcel *next; /* in a bucket: unmatched receives */
    remote_rank *port;
    int32_t sends, member, peer; /* member: rank of the communicator; peer: the same, of the world */
    uint32_t tag, note;          /* note: must be the same on both sides, where it is checked */
    char *data;
    int64_t bytes;
    int32_t state; /* PARCEL_... */
    int32_t mismatch;
    int64_t ticket;    /* of a small message: done when the wire has sent this number of frames */
    int64_t got_bytes; /* of the mismatch: what the sender says */
    uint32_t got_note, token;
    ravel__transfer transfer;
};
/* SENT: a small message that this process still holds. */
enum { PARCEL_IDLE, PARCEL_POSTED, PARCEL_OFFERED, PARCEL_SENT, PARCEL_MOVES, PARCEL_DONE };

/* A message that came before its receive. */
struct remote_stray {
    remote_stray *next;
    int32_t peer;
    remote_head head;
    char body[];
};

/* State shared by the communicators of one ravel_comm_mpi or ravel_comm_tcp. */
struct remote_world {
    const ravel__wire *wire;
    ravel__net *net;
    pthread_mutex_t own_lock, *lock; /* held around every call into the wire */
    int32_t rank, size, refs;
    int32_t broken; /* a rank is lost or failed */
    int32_t stuck;  /* the wire still uses memory of a cancelled operation: no further call into it */
    int32_t one_thread, sleepers;
    int32_t spins;          /* rounds of a wait before it sleeps: SPINS_MOST or 0; adapted by the next two */
    int32_t misses, unspun; /* consecutive waits that spun and then slept; waits since then that did not spin */
    pthread_t thread;
    remote_rank *ranks;                         /* of all communicators */
    remote_rank *ports[REMOTE_WORLD_BUCKETS];   /* by id */
    remote_stray *strays[REMOTE_WORLD_BUCKETS]; /* frames for communicators that this rank has not created yet */
    uint64_t left[REMOTE_LEFT_KEPT];            /* a ring */
    int64_t left_count;
    remote_parcel **slots; /* [slot_room] by the low bits of their tokens */
    int32_t slot_room, slot_next;
    uint32_t generation;      /* high bits of the next token */
    int16_t *credits, *taken; /* [size]: small messages that may be sent; matched, not yet credited */
    uint8_t *contact, *lost;  /* [size]: has exchanged frames with this rank; is lost */
    int32_t any_gone;         /* a rank left a communicator, or is lost */
    char lost_why[256];       /* of the last one */
    int32_t lost_rank;        /* the first that was lost, and when */
    int64_t lost_ns;
    remote_job *orphans;                  /* cancelled, but still used by the wire */
    remote_world *kept;                   /* next in the list of worlds that the wire may still use */
    ravel__process own, *processes;       /* [size] */
    int32_t *neighbours, neighbour_count; /* ranks of this machine */
    int64_t looked_ns, frames, bytes;     /* sent, for tests and figures */
};

/* This process in one communicator. */
struct remote_rank {
    ravel_comm *comm;
    remote_world *world;
    remote_rank *next, *next_port;
    uint64_t id, ancestors[REMOTE_DEPTH];
    int32_t depth, dead, lost;
    char reason[480];
    int64_t serial, splits; /* of the next collective */
    int64_t dead_from;      /* collectives before this one were completed by the rank that failed, and can be here */
    uint8_t *left;          /* [size]: ranks that left it */
    remote_parcel *posted[REMOTE_BUCKETS];
    remote_stray *strays[REMOTE_BUCKETS];
    remote_job *jobs, *idle;
};

typedef enum remote_phase { HEAD, MOVE, SIZES, CARDS, OVER } remote_phase;

/* An operation: phases, each of which is rounds of parcels. */
struct remote_job {
    remote_job *next;
    ravel_request *request;
    remote_phase phase;
    int32_t status, message, disagree;
    int64_t serial, round, next_send; /* see remote_job.c */
    int32_t used, asked;              /* parcels of this round; its peers were asked whether they are still there */
    int64_t grace_ns;                 /* until when its data may still come after a failure; 0: there was none */
    uint64_t sums[2], heard[2];
    remote_parcel parcels[2 * REMOTE_WINDOW];
    ravel__card mine, *cards; /* [size] */
    int64_t *sizes;           /* [2 * size + 1] */
    char *room;               /* of a gather, pieces in the order in which they come */
    int64_t room_bytes;
};

typedef struct remote_request {
    remote_job *job;
} remote_request;

static inline remote_rank *remote_rank_of(ravel_comm *comm) {
    return comm->state;
}
static inline remote_job **remote_job_of(ravel_request *r) {
    return &((remote_request *)(void *)r->state)->job;
}
static inline int32_t remote_world_rank(const ravel_comm *comm, int32_t rank) {
    return comm->world_ranks ? comm->world_ranks[rank] : rank;
}

/* ---- remote.c ---- */

/* A world over `wire`. `expected`: the number of ranks that the launcher promises; 0: it does not say; -1: the ranks
 * do not meet and do not learn where the others run, so that one thread can open many of them (tests). */
ravel_status ravel__remote_open(const ravel__wire *wire, const ravel_comm_options *options, int32_t expected,
                                ravel_comm **comm, ravel_error *err);
/* The world of a communicator, for tests. */
remote_world *ravel__remote_world(ravel_comm *comm);
/* Makes progress in the whole world. */
void ravel__remote_poll(remote_world *w);

/* ---- remote_match.c; the caller holds the lock ---- */

int ravel__match_init(remote_world *w);
void ravel__match_free(remote_world *w);
/* Begins a message: 0, or a code of the wire. p->port, sends, member, tag, note, data and bytes are set. */
int ravel__match_begin(remote_parcel *p);
/* Cancels it. 1: the caller may reuse its memory. */
int ravel__match_cancel(remote_parcel *p);
/* Whether it is complete. Detects finished transfers. */
int ravel__match_done(remote_parcel *p);
/* Whether it can never complete because its peer left the communicator or is lost. */
int ravel__match_is_hopeless(const remote_parcel *p);
/* A frame of the wire, of one of the first four kinds. */
void ravel__match_frame(remote_world *w, int32_t peer, const remote_head *head, const char *body);
/* Messages to a communicator that came before it was made; and of one that is freed. */
void ravel__match_adopt(remote_rank *me);
void ravel__match_close(remote_rank *me);
/* Sends a frame, and counts it. */
int ravel__match_tell(remote_world *w, int32_t peer, const remote_head *head, const void *body, int32_t bytes);
remote_rank *ravel__match_find(const remote_world *w, uint64_t id);
/* Keeps a frame at the end of a list, until its receiver exists. */
void ravel__match_keep(remote_stray **list, int32_t peer, const remote_head *head, const char *body);
/* Whether this rank has left the communicator. */
int ravel__match_has_left(const remote_world *w, uint64_t id);

/* ---- remote_lost.c; the caller holds the lock ---- */

/* Records a failure that this rank detected: the communicator and its children are dead, and the other ranks are
 * notified. `lost`: a rank of the communicator, -1: unknown. */
void ravel__remote_fail(remote_rank *me, int32_t lost, const char *reason);
void ravel__remote_fail_code(remote_rank *me, int code, const char *what, const char *why);
/* All communicators of the world. */
void ravel__remote_fail_all(remote_world *w, const char *reason);
void ravel__remote_leave(remote_rank *me);
/* FRAME_LEFT and FRAME_FAILED. */
void ravel__remote_notice(remote_world *w, int32_t peer, const remote_head *head, const char *body);
/* The wire has lost a rank. */
void ravel__remote_peer_lost(remote_world *w, int32_t peer, const char *why);
/* Sends ASK to ranks that the job has waited for long. */
void ravel__remote_ask(remote_rank *me, remote_job *j);
/* Whether a rank that the job needs has left or is lost: then the communicator fails. */
void ravel__remote_look_for_lost(remote_rank *me, const remote_job *j);
/* Whether the processes of others on this machine still run. */
void ravel__remote_look_at_processes(remote_world *w);
ravel_status ravel__remote_exchange_processes(remote_rank *me, ravel_error *err);
/* "rank 2" or "rank 2 (world rank 13)". */
void ravel__remote_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes);
/* A status and a sentence for a code of the wire. */
ravel_status ravel__remote_error(ravel_error *err, const remote_world *w, int code, const char *what, const char *why);

/* ---- remote_job.c; the caller holds the lock ---- */

/* A job for the request, begun. NULL: out of memory. */
remote_job *ravel__remote_begin(remote_rank *me, ravel_request *r);
/* Everything that can be done on this communicator without waiting. */
void ravel__remote_progress(remote_rank *me);
/* Ends the job for the caller; the wire may still use its memory. */
void ravel__remote_let_go(remote_rank *me, ravel_request *r);
void ravel__remote_free_job(remote_job *j, int32_t size);
/* Whether the job can still complete: no failure prevents it. */
int ravel__remote_is_alive(const remote_rank *me, const remote_job *j);

#endif
