/* A wire: what a transport between processes must offer, for remote.c to make a back end of it. mpi.c is the one there is.
 *
 *     remote.c, remote_job.c, remote_death.c  ->  the table below  ->  mpi.c, in a module  ->  MPI
 *
 *   channel   a numbered group of ranks whose messages meet no others
 *   bundle    operations that were begun and end together; a value, all zero at first
 *
 * libravel links no MPI. mpi.c is compiled once against Open MPI and once against MPICH into a module, which exports one
 * function, ravel_wire, and links no libravel: so it does not matter whether the program has libravel static, shared, or
 * loaded by Python into a scope of its own. Library and module come from the same build; version and size of the table
 * are compared before anything else.
 *
 * The contract. One thread is inside the table at a time. Nothing waits for a peer but begin, dup and group. A function
 * that returns a code returns 0, one of the codes below, or one of the transport's own, which `describe` puts into words.
 * Memory that an operation was given belongs to the transport until the operation is over. */
#ifndef RAVEL_COMM_WIRE_H
#define RAVEL_COMM_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__WIRE_VERSION = 2 };

enum {
    RAVEL__WIRE_MEMORY = -1,  /* there is none */
    RAVEL__WIRE_OVER = -2,    /* MPI was finalised in this process */
    RAVEL__WIRE_THREADS = -3, /* MPI cannot be used from several threads, not even from one at a time */
};

typedef enum ravel__wire_verdict {
    RAVEL__WIRE_PENDING,
    RAVEL__WIRE_DONE,     /* the bundle is empty again */
    RAVEL__WIRE_MISMATCH, /* the same, but a receive brought another number of bytes than it had room for */
    RAVEL__WIRE_TORN,     /* a receive did, and others of the bundle are still under way */
    RAVEL__WIRE_BROKEN    /* the transport failed; *code says how */
} ravel__wire_verdict;

typedef struct ravel__channel ravel__channel;

typedef struct ravel__bundle {
    int32_t count; /* operations that were begun and are not known to be over; 0: the bundle may be discarded */
    void *inside;  /* the wire's */
} ravel__bundle;

typedef struct ravel__wire {
    int32_t version, bytes; /* RAVEL__WIRE_VERSION, sizeof(ravel__wire) */

    /* Begins, where nobody has: *ours = 1. Rank and number of ranks of the world. */
    int (*begin)(int32_t *rank, int32_t *size, int32_t *ours);
    int (*is_over)(void);
    void (*end)(void);
    void (*describe)(int code, char *text, size_t bytes);

    /* The same ranks again (from NULL: the world); collective. */
    int (*dup)(ravel__channel *from, ravel__channel **channel);
    /* Ranks members[0 .. count-1] of `from`; collective over them alone. tag: 0 .. 32767. */
    int (*group)(ravel__channel *from, const int32_t *members, int32_t count, int32_t tag, ravel__channel **channel);
    /* No message may be under way on it any more. */
    void (*drop)(ravel__channel *channel);
    /* One may be: only the handle is freed, and the transport keeps the rest for ever. NULL is nothing. */
    void (*abandon)(ravel__channel *channel);

    /* Beginning operations. A receive from peer -1 takes whoever comes first. NULL is the world's channel in `sum`. */
    int (*send)(ravel__channel *channel, ravel__bundle *bundle, const void *data, int32_t bytes, int32_t peer,
                int32_t tag);
    int (*recv)(ravel__channel *channel, ravel__bundle *bundle, void *data, int32_t bytes, int32_t peer, int32_t tag);
    int (*broadcast)(ravel__channel *channel, ravel__bundle *bundle, void *data, int32_t bytes, int32_t root);
    /* The pieces of all ranks, sizes[] bytes each, back to back; less than 2^31 bytes in all. */
    int (*gather)(ravel__channel *channel, ravel__bundle *bundle, const void *send, const int64_t *sizes, void *recv);
    int (*sum)(ravel__channel *channel, ravel__bundle *bundle, const uint64_t *in, uint64_t *out, int32_t count);

    /* How far it is. */
    ravel__wire_verdict (*test)(ravel__bundle *bundle, int *code);
    /* Takes back the receives that nothing has come for, then looks once. */
    void (*cancel)(ravel__bundle *bundle);
    /* Frees what an empty bundle holds. */
    void (*discard)(ravel__bundle *bundle);
} ravel__wire;

/* What a module exports. */
typedef const ravel__wire *(*ravel__wire_fn)(void);

#endif
