/* The parts of the MPI module: mpi.c (the table, life), mpi_job.c (operations), mpi_death.c (who is gone). See mpi.c for the
 * design. These four files are all that sees <mpi.h>.
 *
 * Whatever MPI may still hold when an operation was given up (jobs, obituaries, worlds) comes from malloc and not from the
 * caller's allocator, which may be gone by then. */
#ifndef RAVEL_COMM_MPI_PARTS_H
#define RAVEL_COMM_MPI_PARTS_H

#include <mpi.h>

#include "comm/module.h"

#include <pthread.h>

enum { HEAD, TURN, MOVE, SIZES, CARDS, OVER };
enum { DEPTH = 16, SMALL_GATHER = 1 << 20, TAGS = 32768 };

typedef struct obituary {
    int32_t kind, id, rank, lost; /* of the world: who writes, and who was lost (-1: not known) */
    int64_t serial;               /* the first collective that the writer has not completed */
    int64_t sent, received;       /* LEFT: messages to and from the reader */
    int64_t broken;               /* FAILED: somebody will not come to the meeting at the end */
    char text[400];
} obituary;

typedef struct notice { /* an obituary on its way */
    struct notice *next;
    MPI_Request request;
    obituary body;
} notice;

/* A communicator that this rank has left. MPI's own are freed when everybody else has left as well and every message has
 * been received: before that, one could still arrive, and meet a later communicator that was given the same number. */
typedef struct grave {
    struct grave *next;
    MPI_Comm head, data;
    int32_t id, size, missing, spoiled;
    int64_t serial;
    int64_t *sent, *received; /* [size] */
    int32_t *members;         /* [size], ranks of the world */
} grave;

typedef struct process { /* a rank on this machine; pid 0: it is elsewhere */
    int64_t machine, pid, started;
} process;

typedef struct mpi_rank mpi_rank;
typedef struct mpi_job mpi_job;
typedef struct mpi_world mpi_world;

struct mpi_world {
    MPI_Comm obit;
    MPI_Request listen;
    obituary heard;
    int32_t rank, size, refs, next_id;
    mpi_world *next; /* in the list of closed ones */
    mpi_rank *ranks; /* of all communicators */
    notice *notices;
    mpi_job *orphans; /* given up, but MPI has not */
    grave *graves;
    process *processes;
    int64_t looked_ns;
};

struct mpi_rank {
    ravel_comm *comm;
    mpi_world *world;
    mpi_rank *next;
    MPI_Comm head, data;
    int32_t id, depth, ancestors[DEPTH];
    int32_t dead, lost;
    char reason[480];
    int64_t serial;    /* of the next collective */
    int64_t dead_from; /* collectives before this one were completed by whoever failed, and can be here */
    int64_t *lists;    /* [5 * size]: left_at (-1: here), left_sent, left_received, sent, received */
    mpi_job *first, *last, *idle;
};

struct mpi_job {
    mpi_job *next;
    ravel_request *request;
    int32_t phase, status, message, disagree;
    int32_t announced;     /* the header of a message has been read */
    int64_t serial, index; /* index: of a message to or from its peer */
    int64_t grace_ns;      /* until when its data may still come after a death; 0: nobody died */
    uint64_t sums[2], totals[2];
    int64_t header[2], heard[2];
    MPI_Request *requests;
    MPI_Status *statuses;
    int32_t *expect; /* bytes that a receive must bring; -1: any */
    int32_t count, room;
    ravel__card mine, *cards;
    int64_t *arriving;
    int *counts;    /* [2 * size] of an Iallgatherv */
    char *gathered; /* where it goes when the caller's offsets do not fit an int */
    int64_t gathered_bytes;
};

typedef struct mpi_request {
    mpi_job *job;
} mpi_request;

/* One a process, as MPI is. */
typedef struct mpi_module {
    pthread_mutex_t lock; /* held around every call into MPI: nobody needs more than MPI_THREAD_SERIALIZED */
    const ravel__services *s;
    int32_t ours;        /* MPI was initialised here */
    int32_t broken;      /* a rank is gone or gave up: nobody can count on meeting at the end */
    int32_t hopeless;    /* MPI holds memory of the caller: no further call into it */
    int64_t patience_ns; /* at the end */
    mpi_world *closed;   /* worlds without communicators, whose last obituaries may still be under way */
} mpi_module;
extern mpi_module ravel__mpi;
#define S (ravel__mpi.s)

static inline mpi_rank *mpi_rank_of(ravel_comm *comm) {
    return comm->state;
}
static inline mpi_job **mpi_job_of(ravel_request *r) {
    return &((mpi_request *)(void *)r->state)->job;
}
static inline int32_t mpi_world_rank(const ravel_comm *comm, int32_t rank) {
    return comm->world_ranks ? comm->world_ranks[rank] : rank;
}

/* ---- mpi_death.c; the caller holds the lock ---- */

/* A failure that this rank noticed: the communicator and all below it are dead, and the others are told. `lost`: a rank of
 * the communicator, -1: not known. */
void ravel__mpi_fail(mpi_rank *me, int32_t lost, const char *reason);
void ravel__mpi_fail_code(mpi_rank *me, int code, const char *what);
void ravel__mpi_kill_all(mpi_world *w, const char *reason);
/* Tells all members that this rank leaves. */
void ravel__mpi_leave(mpi_rank *me);
/* Frees MPI's communicators as soon as that is safe. */
void ravel__mpi_bury(mpi_rank *me);
void ravel__mpi_forget_graves(mpi_world *w);
/* Begins to listen for obituaries; hears what has come; stops. */
void ravel__mpi_listen(mpi_world *w);
void ravel__mpi_hear(mpi_world *w);
void ravel__mpi_deafen(mpi_world *w);
/* Whether one that `j` needs has left. */
void ravel__mpi_look_for_leavers(mpi_rank *me, const mpi_job *j);
/* Whether the processes of others on this machine still live. */
void ravel__mpi_look_at_processes(mpi_rank *me);
ravel_status ravel__mpi_exchange_processes(mpi_world *w, ravel_error *err);
/* "rank 2" or "rank 2 (world rank 13)". */
void ravel__mpi_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes);
ravel_status ravel__mpi_error(ravel_error *err, int code, const char *what);

/* ---- mpi_job.c; the caller holds the lock ---- */

/* A job for the request, begun. NULL: out of memory. */
mpi_job *ravel__mpi_begin(mpi_rank *me, ravel_request *r);
/* Everything that can be done on this communicator without waiting. */
void ravel__mpi_progress(mpi_rank *me);
/* The same for a message. */
void ravel__mpi_step(mpi_rank *me, mpi_job *j);
/* The job is over as far as the caller is concerned; MPI may think otherwise. */
void ravel__mpi_let_go(mpi_rank *me, ravel_request *r);
void ravel__mpi_free_job(mpi_job *j, int32_t size);

#endif
