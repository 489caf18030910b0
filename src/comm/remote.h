/* The back end whose ranks are processes, over a wire (comm/wire.h): remote.c (the table, life), remote_job.c (operations),
 * remote_death.c (who is gone). See remote.c for the design.
 *
 * Whatever the wire may still hold when an operation was given up (jobs, leave messages, worlds) comes from malloc and not from
 * the caller's allocator, which may be gone by then. */
#ifndef RAVEL_COMM_REMOTE_H
#define RAVEL_COMM_REMOTE_H

#include "comm/backend.h"
#include "comm/machine.h"
#include "comm/wire.h"

#include <pthread.h>

enum { REMOTE_DEPTH = 16, REMOTE_TAGS = 32768 };

typedef enum remote_phase { HEAD, TURN, MOVE, SIZES, CARDS, OVER } remote_phase;

typedef struct leave_message {
    int32_t kind, id, rank, lost; /* of the world: who writes, and who was lost (-1: not known) */
    int64_t serial;               /* the first collective that the writer has not completed */
    int64_t sent, received;       /* LEFT: messages to and from the reader */
    int64_t broken;               /* FAILED: somebody will not come to the meeting at the end */
    char text[400];
} leave_message;

typedef struct notice { /* a leave message on its way */
    struct notice *next;
    ravel__bundle bundle;
    leave_message body;
} notice;

/* A communicator that this rank has left. Its channels are dropped when everybody else has left as well and every message
 * has been received: before that, one could still arrive, and meet a later channel that was given the same number. */
typedef struct left_comm {
    struct left_comm *next;
    ravel__channel *head, *data;
    int32_t id, size, missing, spoiled;
    int64_t serial;
    int64_t *sent, *received; /* [size] */
    int32_t *members;         /* [size], ranks of the world */
} left_comm;

typedef struct remote_rank remote_rank;
typedef struct remote_job remote_job;
typedef struct remote_world remote_world;

/* What the communicators of one ravel_comm_mpi have in common. */
struct remote_world {
    ravel__channel *leave_channel;
    ravel__bundle listening;
    leave_message heard;
    int32_t rank, size, refs, next_id;
    remote_world *next; /* in the list of closed ones */
    remote_rank *ranks; /* of all communicators */
    notice *notices;
    remote_job *orphans; /* given up, but the wire has not */
    left_comm *left;
    ravel__process own, *processes; /* [size]; pid 0: on another machine */
    int64_t looked_ns;
};

/* This process in one communicator. */
struct remote_rank {
    ravel_comm *comm;
    remote_world *world;
    remote_rank *next;
    ravel__channel *head, *data; /* what ranks agree about, and messages; the data of collectives */
    int32_t id, depth, ancestors[REMOTE_DEPTH];
    int32_t dead, lost;
    char reason[480];
    int64_t serial;    /* of the next collective */
    int64_t dead_from; /* collectives before this one were completed by whoever failed, and can be here */
    /* [size] each, one block: the collective after which a rank left (-1: it has not), what it says it had sent to and
     * received from this one, and the messages to and from it that were begun here */
    int64_t *left_at, *left_sent, *left_received, *sent, *received;
    remote_job *first, *last, *idle;
};
enum { REMOTE_LISTS = 5 };

/* An operation. */
struct remote_job {
    remote_job *next;
    ravel_request *request;
    remote_phase phase;
    int32_t status, message, disagree;
    int32_t announced;     /* the header of a message has been read */
    int64_t serial, index; /* index: of a message to or from its peer */
    int64_t grace_ns;      /* until when its data may still come after a death; 0: nobody died */
    uint64_t sums[2], totals[2];
    int64_t header[2], heard[2];
    ravel__bundle bundle, header_bundle; /* of a checked receive's header */
    ravel__card mine, *cards;            /* [size] */
    int64_t *arriving;                   /* [size] */
    char *gathered;                      /* [gathered_room] a small all-gather, pieces back to back */
    int64_t gathered_room;
};

typedef struct remote_request {
    remote_job *job;
} remote_request;

/* One a process, as MPI is. */
typedef struct remote_process {
    pthread_mutex_t lock; /* held around every call into the wire */
    const ravel__wire *wire;
    int32_t ours;         /* MPI was initialised here */
    int32_t broken;       /* a rank is gone or gave up: nobody can count on meeting at the end */
    int32_t hopeless;     /* the wire holds memory of the caller: no further call into it */
    int64_t patience_ns;  /* at the end */
    remote_world *closed; /* worlds without communicators, whose last leave messages may still be under way */
    remote_world *kept;   /* those that the wire may use for ever */
} remote_process;
extern remote_process ravel__remote;

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

/* The world of `wire`, which was found to be of this build. `expected`: the number of ranks that the launcher promises; 0:
 * it does not say. */
ravel_status ravel__remote_open(const ravel__wire *wire, const ravel_comm_options *options, int32_t expected,
                                ravel_comm **comm, ravel_error *err);
/* Busy for a moment, then polite. */
void ravel__remote_pause(int32_t round);

/* ---- remote_death.c; the caller holds the lock ---- */

/* A failure that this rank noticed: the communicator and all below it are dead, and the others are told. `lost`: a rank of
 * the communicator, -1: not known. */
void ravel__remote_fail(remote_rank *me, int32_t lost, const char *reason);
/* The same for a code of the wire. */
void ravel__remote_fail_code(remote_rank *me, int code, const char *what);
void ravel__remote_kill_all(remote_world *w, const char *reason);
/* Tells all members that this rank leaves. */
void ravel__remote_leave(remote_rank *me);
/* Drops the channels as soon as that is safe, or gives them up. */
void ravel__remote_release(remote_rank *me);
void ravel__remote_abandon(ravel__channel *head, ravel__channel *data);
void ravel__remote_drop_left(remote_world *w);
/* Begins to listen for leave messages; hears what has come; stops. */
void ravel__remote_listen(remote_world *w);
void ravel__remote_hear(remote_world *w);
void ravel__remote_stop_listening(remote_world *w);
/* Whether one that `j` needs has left. */
void ravel__remote_look_for_leavers(remote_rank *me, const remote_job *j);
/* Whether the processes of others on this machine still live. */
void ravel__remote_look_at_processes(remote_rank *me);
/* Collective over the world, at the beginning. */
ravel_status ravel__remote_exchange_processes(remote_world *w, int64_t timeout_ns, ravel_error *err);
/* "rank 2" or "rank 2 (world rank 13)". */
void ravel__remote_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes);
/* E_PEER_LOST, or E_MEMORY, in the wire's words. */
ravel_status ravel__remote_error(ravel_error *err, int code, const char *what);

/* ---- remote_job.c; the caller holds the lock ---- */

/* A job for the request, begun. NULL: out of memory. */
remote_job *ravel__remote_begin(remote_rank *me, ravel_request *r);
/* Everything that can be done on this communicator without waiting. */
void ravel__remote_progress(remote_rank *me);
/* The same for a message. */
void ravel__remote_step(remote_rank *me, remote_job *j);
/* The job is over as far as the caller is concerned; the wire may think otherwise. */
void ravel__remote_let_go(remote_rank *me, ravel_request *r);
void ravel__remote_free_job(remote_job *j, int32_t size);

#endif
