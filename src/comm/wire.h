/* A wire: the functions that remote.c needs from a transport between processes. mpi.c and tcp.c implement it; UCX would
 * be one more file.
 *
 *     remote.c, remote_job.c, remote_lost.c    operations, deadlines, lost ranks
 *     remote_match.c                           which message belongs to which receive
 *     the table below                          frames and transfers between the ranks of one world
 *     mpi.c in a module, tcp.c                 MPI, sockets
 *
 *   net        this process's end of one world. A process may have several, of different wires; they are independent
 *   frame      at most frame_most bytes, copied, in order between two ranks
 *   transfer   an array, straight from memory to memory. The receiver chooses a token and tells the sender in a frame; the
 *              sender then begins with that token. So a transfer never waits for its receiver, and needs no buffer
 *
 * libravel links no MPI. mpi.c is compiled once against Open MPI and once against MPICH into a module, which exports
 * one function, ravel_wire, and links no libravel: so it does not matter whether the program has libravel static,
 * shared, or loaded by Python into a scope of its own. Library and module come from the same build; version and size of
 * the table are compared before anything else.
 *
 * The contract. One thread is inside a net at a time (`serial`: inside the whole wire). Only `open` waits for peers, at
 * most until its deadline. A function that returns a code returns 0 or one of the codes below. */
#ifndef RAVEL_COMM_WIRE_H
#define RAVEL_COMM_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__WIRE_VERSION = 4 };

enum {
    RAVEL__WIRE_MEMORY = -1,   /* there is none */
    RAVEL__WIRE_OVER = -2,     /* MPI was finalised in this process */
    RAVEL__WIRE_THREADS = -3,  /* MPI cannot be used from several threads, not even from one at a time */
    RAVEL__WIRE_TIMEOUT = -4,  /* not all ranks came */
    RAVEL__WIRE_ARGUMENT = -5, /* an option is wrong; `why` says which */
    RAVEL__WIRE_BROKEN = -6,   /* the transport failed; `why` says how */
};

typedef struct ravel__net ravel__net;

/* A transfer under way; all zero before the first use, and whenever it is over. It and its data stay where they are
 * until then. */
typedef struct ravel__transfer {
    int32_t state; /* RAVEL__TRANSFER_... */
    int32_t peer;
    uint32_t token;
    int32_t spare;
    void *data;
    int64_t bytes;
    void *inside;  /* the wire's */
    int64_t moved; /* the wire's: bytes sent or received so far */
} ravel__transfer;

enum { RAVEL__TRANSFER_IDLE, RAVEL__TRANSFER_RUNS, RAVEL__TRANSFER_DONE };

/* Callbacks of the wire, called inside poll only. */
typedef struct ravel__wire_events {
    void *user;
    void (*frame)(void *user, int32_t peer, const void *data, int32_t bytes);
    /* The peer cannot be reached any more; once per peer. Everything that it sent before has been delivered. */
    void (*lost)(void *user, int32_t peer, const char *why);
} ravel__wire_events;

typedef struct ravel__wire_open {
    const void *options; /* ravel_comm_options; modules do not look inside */
    ravel__wire_events events;
    int64_t deadline_ns; /* of the monotonic clock, for the first meeting */
    int64_t chunk_bytes; /* the most that is handed to the transport at once */
    int32_t one_thread;  /* out: only the thread that opened may call (MPI was initialised so) */
    char why[480];       /* out: the sentence of a code */
} ravel__wire_open;

typedef struct ravel__wire {
    int32_t version, bytes; /* RAVEL__WIRE_VERSION, sizeof(ravel__wire) */
    const char *name;
    int32_t frame_most;
    int32_t serial;     /* one thread of the process at a time, whatever the net */
    int32_t tells_lost; /* the events is called for every lost peer with which frames were exchanged */

    /* The world: collective over all its ranks, until the deadline. */
    int (*open)(ravel__wire_open *how, ravel__net **net, int32_t *rank, int32_t *size);
    /* Leaves. Waits for no peer; what was sent still arrives. broken: a rank was lost or gave up, so that no rank can
     * count on meeting at the end. */
    void (*close)(ravel__net *net, int32_t broken);

    /* head[head_bytes] and body[body_bytes] as one frame. A lost peer is no error: the frame goes nowhere. */
    int (*frame)(ravel__net *net, int32_t peer, const void *head, int32_t head_bytes, const void *body,
                 int32_t body_bytes);
    /* How many frames were given for the peer, and how many of them, oldest first, no longer need this process: they
     * arrive even if it never polls again. */
    int64_t (*given)(const ravel__net *net, int32_t peer);
    int64_t (*gone)(const ravel__net *net, int32_t peer);
    /* t->peer, token, data and bytes are set. The receiver begins before the sender can know the token. */
    int (*send)(ravel__net *net, ravel__transfer *t);
    int (*recv)(ravel__net *net, ravel__transfer *t);
    /* Cancels the transfer. 1: the caller may reuse its memory, and *t is complete. 0: the transport may use it until
     * the process ends; *t and its data must stay. */
    int (*cancel)(ravel__net *net, ravel__transfer *t);

    /* Makes progress and calls the events. Never waits. 0, or a code with a sentence in why[480]. */
    int (*poll)(ravel__net *net, char *why);
    /* The caller is about to sleep, and waits for this peer alone. 1: its sleep may be a short one that ends when the
     * peer sends something, and the next poll follows it. Inside the net. NULL: there is none. */
    int (*aim)(ravel__net *net, int32_t peer);
    /* Waits until there may be something to do, at most `ns`. Not inside the net: another thread may be. aimed: what
     * aim returned. */
    void (*sleep)(ravel__net *net, int32_t aimed, int64_t ns);
} ravel__wire;

/* What a module exports. */
typedef const ravel__wire *(*ravel__wire_fn)(void);

#endif
