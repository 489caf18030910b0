/* The NCCL functions that nccl_comm.c needs, as a table. nccl.c, in the module libravel_nccl.so, implements it over
 * NCCL; the tests have a mock that checks the sequence of calls on many ranks.
 *
 *     ravel_comm_*  ->  front  ->  nccl_comm.c  ->  the table below  ->  nccl.c, in a module  ->  NCCL
 *                                      |
 *                                      +->  a host communicator: unique ids, checks, headers, splits, lost ranks
 *
 * The contract. Nothing waits: a function that NCCL goes on with in the background returns RAVEL__NCCL_PENDING, and
 * `state` says when the communicator can take the next call. Other codes are NCCL's, which `describe` puts into words.
 * One thread is inside a communicator at a time. Operations belong to a stream, in which they run in order. */
#ifndef RAVEL_COMM_NCCL_H
#define RAVEL_COMM_NCCL_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__NCCL_VERSION = 2, RAVEL__NCCL_PENDING = -1, RAVEL__NCCL_UNSUPPORTED = -2, RAVEL__NCCL_ID = 128 };

typedef struct ravel__nccl {
    int32_t version, bytes; /* RAVEL__NCCL_VERSION, sizeof(ravel__nccl) */

    int (*id)(unsigned char *id); /* [RAVEL__NCCL_ID], for one communicator */
    /* All ranks, with the same id; on the CUDA device `device`. */
    int (*begin)(int32_t device, int32_t ranks, int32_t rank, const unsigned char *id, void **comm);
    int (*state)(void *comm); /* 0: idle; PENDING; or what went wrong */
    /* Aborts the communicator on this rank and frees it. */
    void (*abort)(void *comm);
    void (*describe)(int code, char *text, size_t bytes);

    /* Messages between group_begin and group_end are one operation, which starts at group_end. */
    int (*group_begin)(void *comm);
    int (*group_end)(void *comm);
    int (*send)(void *comm, const void *data, int64_t bytes, int32_t peer, void *stream);
    int (*recv)(void *comm, void *data, int64_t bytes, int32_t peer, void *stream);
    /* Collectives; dtype and reduce are Ravel's. UNSUPPORTED: NCCL has no such element. */
    int (*broadcast)(void *comm, void *data, int64_t bytes, int32_t root, void *stream);
    int (*allreduce)(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                     void *stream);
    int (*reduce)(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce, int32_t root,
                  void *stream);
    /* Pieces of one size, in the order of ranks. In place: send is this rank's piece of recv; recv is that of send. */
    int (*allgather)(void *comm, const void *send, void *recv, int64_t bytes, void *stream); /* of a piece */
    int (*reduce_scatter)(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                          void *stream); /* elements of a piece */
} ravel__nccl;

typedef const ravel__nccl *(*ravel__nccl_fn)(void);

#endif
