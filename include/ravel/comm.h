/* ravel/comm.h: communicators. N ranks that exchange arrays and never hang.
 *
 * Nouns
 *   communicator  a numbered group of ranks, and this rank's handle to it. Every rank holds a handle of its own.
 *   collective    an operation that all ranks of a communicator call, in the same order: barrier, broadcast,
 *                 all-gather, all-to-all, all-reduce, reduce, reduce-scatter, split.
 *   request       an operation that was started and not yet waited for.
 *   back end      the transport:
 *                   self       one rank
 *                   threads    N ranks inside this process; receivers copy straight from the sender's array
 *                   mpi        N processes, Open MPI or MPICH, started by mpirun or srun
 *                   tcp        N processes that find one another at a rendezvous; started by hand, srun or torchrun
 *                   callbacks  the caller's own functions (torch.distributed, mpi4py, ...)
 *                   nccl       arrays in device memory, beside any of the others
 *
 * The calling loop, the same over every back end:
 *
 *     static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
 *         int64_t mine = ravel_comm_rank(comm), sum;
 *         return ravel_comm_allreduce(comm, &mine, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
 *     }
 *     ravel_threads_run(8, NULL, work, NULL, &err);               8 ranks in this process, or, under mpirun:
 *     ravel_comm_open("auto", NULL, &comm, &err); work(comm, NULL, &err); ravel_comm_free(comm);
 *
 * Errors
 *   E_ARGUMENT   found before anything was sent: this call did nothing. The other ranks still wait for this one: call
 *                again with correct arguments, or ravel_comm_abort.
 *   E_MISMATCH   the ranks disagree: other operation, size, type, root or counts. Every rank of a collective gets it,
 *                with a sentence that names the ranks; nothing was moved; the communicator can be used further.
 *                (docs/comm.md lists what each back end detects; `threads` detects every mismatch.)
 *   E_TIMEOUT    the deadline passed; the sentence names the missing ranks if they are known.
 *   E_PEER_LOST  a rank's process ended, or it left (freed its handle too early, returned), or called ravel_comm_abort.
 *   After E_TIMEOUT or E_PEER_LOST the communicator is dead, on every rank and together with all that was split from
 *   it: waiting calls return at once (`threads`) or soon (`mpi`), the first call on each handle returns E_PEER_LOST,
 *   and every further call E_DEAD with the first reason. Free it; that is safe on every rank at any time.
 *
 * Deadlines: every call that waits has one: options.timeout, else the environment's RAVEL_COMM_TIMEOUT in seconds, else
 * 600 s.
 *
 * Arrays: counts and offsets are int64_t and count elements, not bytes; they may be above 2^31. A count may be 0
 * everywhere, and its pointer NULL. Arrays must not overlap unless a function says "in place". Offsets may be
 * NULL: the pieces then lie one after the other in rank order.
 *
 * Reductions give the same bits on every rank, every run and every back end: elements are combined in rank order,
 * in any order of arrival. Integers wrap around; bf16 and f16 are summed in f32 and rounded once; a NaN makes min and
 * max NaN. Types: all integers, f16, bf16, f32, f64.
 *
 * Threads: a handle, with its requests, belongs to one thread at a time. Handles of different communicators may be
 * used from different threads at once; ravel_comm_dup makes one for a background thread.
 */
#ifndef RAVEL_COMM_H
#define RAVEL_COMM_H

#include <ravel/device.h>
#include <ravel/dtype.h>
#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_comm ravel_comm;
typedef struct ravel_request ravel_request;

typedef enum ravel_reduce { RAVEL_SUM, RAVEL_MIN, RAVEL_MAX } ravel_reduce;
#define RAVEL_REDUCE_CHOICES "sum|min|max"

/* Tags of send and receive: 0 .. RAVEL_TAG_MAX. */
#define RAVEL_TAG_MAX 32767
/* The most operations that one rank may have under way on one communicator. */
#define RAVEL_REQUESTS_MAX 64

/* ---- options -------------------------------------------------------------------------------------------- */

typedef struct ravel_comm_options {
    size_t size;         /* sizeof(ravel_comm_options), set by ravel_comm_options_default */
    double timeout;      /* seconds that a call may wait; 0: RAVEL_COMM_TIMEOUT, else 600 */
    int64_t chunk_bytes; /* the most that is handed to mpi, or to a callback's send, recv or broadcast, at once */
    int32_t check;       /* compare what the ranks ask for before anything moves; threads always does */
    int32_t shared;      /* tcp: long messages inside a machine go through shared memory */
    const char *module;  /* mpi: file of the module; NULL: RAVEL_MPI_MODULE, else looked for */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the communicator and all split from it */
    const char *comm;                 /* what ravel_comm_open("auto") opens: auto, self, mpi or tcp */
    /* tcp. If they are not given, Slurm's or torchrun's environment says rank, ranks and rendezvous. */
    const char *rendezvous; /* host:port, unix:/path or file:/path: where rank 0 listens, and the others find it */
    /* the only address that this rank listens at; NULL: a Unix socket, and the one that leads to the rendezvous */
    const char *listen;
    const char *allow;      /* networks that may connect, like 10.0.0.0/8,fd00::/8; NULL: any */
    const char *token_file; /* file with the shared token; NULL: RAVEL_TOKEN, RAVEL_TOKEN_FILE */
    int32_t rank;           /* -1: the launcher's, else any that is free */
    int32_t ranks;          /* 0: the launcher's */
    int32_t queued;         /* nccl: calls return when their operation is in the stream, see ravel_comm_nccl */
    int32_t tls;            /* tcp: connections between machines are encrypted; also if RAVEL_TLS is 1 */
} ravel_comm_options;

RAVEL_API void ravel_comm_options_default(ravel_comm_options *options);
RAVEL_API ravel_option_table ravel_comm_option_table(void);

/* ---- create and free ------------------------------------------------------------------------------------- */

/* One rank. */
RAVEL_API ravel_status ravel_comm_self(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);

/* Runs work(comm, user, err) on `count` ranks, a thread each, and returns when all have returned. A rank that returns
 * a status other than RAVEL_OK fails the others with its sentence; the result is the status of the rank that failed
 * first by itself, and err says "rank 3: ...". The communicator belongs to the run; `work` frees what it splits off. */
typedef ravel_status (*ravel_rank_fn)(ravel_comm *comm, void *user, ravel_error *err);
RAVEL_API ravel_status ravel_threads_run(int32_t count, const ravel_comm_options *options, ravel_rank_fn work,
                                         void *user, ravel_error *err);

/* For callers that own their threads: comms[0 .. count-1], one per thread. A thread that ends without freeing its
 * handle is noticed by the others only at their deadline. */
RAVEL_API ravel_status ravel_comm_threads(int32_t count, const ravel_comm_options *options, ravel_comm **comms,
                                          ravel_error *err);

/* All processes that the launcher started. libravel links no MPI: it loads libravel_openmpi.so or libravel_mpich.so,
 * whichever fits the launcher, from options.module, RAVEL_MPI_MODULE, beside libravel or the program, or the library
 * folder. Initialises MPI if the program has not (and finalises it when the process ends). E_UNSUPPORTED says which
 * files were looked for. After E_TIMEOUT or E_PEER_LOST MPI may still use the arrays of the failed call: end the
 * process. */
RAVEL_API ravel_status ravel_comm_mpi(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);

/* Processes that were not launched together: over TCP, and Unix sockets inside a machine. options.rendezvous, ranks and
 * rank say where they meet; by default Slurm's or torchrun's environment does. The ranks prove to one another that they
 * know the same token. A token is required if a rank listens beyond its own machine, unless the token is the word
 * "none". Nobody who does not know it can forge frames; with options.tls they are encrypted, too. E_TIMEOUT if not all
 * ranks came in time, E_ARGUMENT says what is missing. See docs/comm.md. */
RAVEL_API ravel_status ravel_comm_tcp(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);

/* What "auto" means here: options.comm if it is not "auto"; "tcp" if a rendezvous or a number of ranks is given;
 * "mpi" under mpirun or srun --mpi; "tcp" under srun or torchrun; else "self". options may be NULL. */
RAVEL_API const char *ravel_comm_auto_kind(const ravel_comm_options *options);

/* "self", "mpi", "tcp", or "auto" for whichever ravel_comm_auto_kind says. */
RAVEL_API ravel_status ravel_comm_open(const char *kind, const ravel_comm_options *options, ravel_comm **comm,
                                       ravel_error *err);

/* Collective. Ranks with the same colour (>= 0) form a communicator, in the order of (key, rank). A negative colour
 * takes part and gets *child = NULL. It succeeds on every rank or on none. The child is freed separately, before or
 * after its parent. */
RAVEL_API ravel_status ravel_comm_split(ravel_comm *comm, int32_t colour, int32_t key, ravel_comm **child,
                                        ravel_error *err);
/* Collective. The same ranks again, with traffic of its own: for a background thread. */
RAVEL_API ravel_status ravel_comm_dup(ravel_comm *comm, ravel_comm **child, ravel_error *err);

/* Leaves the communicator. Operations of other ranks that still need this one fail. Open requests are cancelled. Never
 * waits for a peer. */
RAVEL_API void ravel_comm_free(ravel_comm *comm);

/* Notifies all other ranks that this one failed, and why (err may be NULL or empty): their calls return E_PEER_LOST
 * with that sentence, also on everything that was split from comm. The handle is dead afterwards; free it. */
RAVEL_API void ravel_comm_abort(ravel_comm *comm, const ravel_error *why);

RAVEL_API int32_t ravel_comm_rank(const ravel_comm *comm);
RAVEL_API int32_t ravel_comm_size(const ravel_comm *comm);
/* "self", "threads", "mpi", "tcp", "callbacks" or "nccl"; static. */
RAVEL_API const char *ravel_comm_kind(const ravel_comm *comm);
/* A short name for error sentences ("tp"); copied and cut at 15 characters. "world" by default, a child has "sub". */
RAVEL_API void ravel_comm_set_name(ravel_comm *comm, const char *name);
RAVEL_API const char *ravel_comm_name(const ravel_comm *comm);
/* Seconds; a value of 0 or less is ignored. Children inherit it. */
RAVEL_API void ravel_comm_set_timeout(ravel_comm *comm, double seconds);
RAVEL_API double ravel_comm_timeout(const ravel_comm *comm);
/* RAVEL_OK, or the reason why every call fails: E_PEER_LOST the first time, then E_DEAD. Never waits. */
RAVEL_API ravel_status ravel_comm_alive(ravel_comm *comm, ravel_error *err);
/* The rank that was lost, -1 if none was or it is not known. */
RAVEL_API int32_t ravel_comm_lost_rank(const ravel_comm *comm);

/* ---- arrays on devices ---------------------------------------------------------------------------------- */

/* The same ranks over NCCL: every array that is given to `comm` is memory of stream's device (or pinned), and
 * operations run in `stream`: after what is in it, before what comes later. Collective over `host`, which is any
 * communicator of host memory with one CUDA device per rank; it is used further, through a duplicate. The stream
 * outlives comm. Loads libravel_nccl.so, or what RAVEL_NCCL_MODULE names. What differs from other back ends:
 *   - if options.check is on, a collective's start waits for the other ranks' starts; with check off nothing waits, and
 *     ranks that disagree are found by the deadline;
 *   - reductions are NCCL's: the same bits on every rank, in an order of its own; 16-bit integers are E_UNSUPPORTED;
 *   - messages are launched together by the first wait or test of any of them; between two ranks they are received in the
 *     order in which they were sent, and a receive of another size or type makes the communicator dead;
 *   - a deadline, a lost rank or an error of NCCL's aborts it: arrays in flight are undefined, the stream is usable.
 * With options.queued no call waits for the device, nor for the other ranks: it returns when NCCL has taken the
 * operation, and what comes later in the stream sees the result. Nothing is compared. Messages have no tags: between
 * two ranks they are matched in the order of their starts, and the first wait or test launches all that were started,
 * as one group. Arrays must stay until the stream is past them. Whoever waits for the stream looks at ravel_comm_alive
 * meanwhile, and calls ravel_comm_abort if it has waited too long: then the stream goes on. */
RAVEL_API ravel_status ravel_comm_nccl(ravel_comm *host, ravel_stream *stream, const ravel_comm_options *options,
                                       ravel_comm **comm, ravel_error *err);
/* RAVEL_OK if NCCL's module can be loaded here; else E_UNSUPPORTED says what was looked for. */
RAVEL_API ravel_status ravel_comm_nccl_find(ravel_error *err);
/* The communicator for arrays in host memory: comm itself, or the host communicator below NCCL. It belongs to comm. */
RAVEL_API ravel_comm *ravel_comm_host(ravel_comm *comm);
/* RAVEL_OK if arrays in that place can be given to comm, else E_UNSUPPORTED with what could. */
RAVEL_API ravel_status ravel_comm_place_check(const ravel_comm *comm, const ravel_place *place, ravel_error *err);

/* ---- collectives ---------------------------------------------------------------------------------------- */

RAVEL_API ravel_status ravel_comm_barrier(ravel_comm *comm, ravel_error *err);

/* data[count] of `root` to every rank's data[count]. */
RAVEL_API ravel_status ravel_comm_broadcast(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t root,
                                            ravel_error *err);

/* send[count] of every rank to recv[size * count] of every rank. In place: send == recv + rank * count. */
RAVEL_API ravel_status ravel_comm_allgather(ravel_comm *comm, const void *send, void *recv, int64_t count,
                                            int32_t dtype, ravel_error *err);

/* send[recv_counts[rank]] of every rank; recv_counts[size] is the same on every rank, the piece of rank r is put at
 * recv + recv_offsets[r] (each rank's own choice). In place: send is that place. */
RAVEL_API ravel_status ravel_comm_allgatherv(ravel_comm *comm, const void *send, void *recv, const int64_t *recv_counts,
                                             const int64_t *recv_offsets, int32_t dtype, ravel_error *err);

/* send[size * count]: piece r goes to rank r; recv[size * count]: piece r came from rank r. */
RAVEL_API ravel_status ravel_comm_alltoall(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                           ravel_error *err);

/* send_counts[r] elements at send + send_offsets[r] go to rank r, which must expect as many from this rank. */
RAVEL_API ravel_status ravel_comm_alltoallv(ravel_comm *comm, const void *send, const int64_t *send_counts,
                                            const int64_t *send_offsets, void *recv, const int64_t *recv_counts,
                                            const int64_t *recv_offsets, int32_t dtype, ravel_error *err);

/* Element by element over all ranks, the result on every rank. In place: send == recv. */
RAVEL_API ravel_status ravel_comm_allreduce(ravel_comm *comm, const void *send, void *recv, int64_t count,
                                            int32_t dtype, int32_t reduce, ravel_error *err);

/* The same, the result on `root` only; recv may be NULL elsewhere. In place: send == recv. */
RAVEL_API ravel_status ravel_comm_reduce(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                         int32_t reduce, int32_t root, ravel_error *err);

/* send[size * count] is reduced, and piece r of the result is rank r's recv[count]. */
RAVEL_API ravel_status ravel_comm_reduce_scatter(ravel_comm *comm, const void *send, void *recv, int64_t count,
                                                 int32_t dtype, int32_t reduce, ravel_error *err);
/* Pieces of different sizes: counts[size], the same on every rank, one after the other in send. */
RAVEL_API ravel_status ravel_comm_reduce_scatterv(ravel_comm *comm, const void *send, void *recv, const int64_t *counts,
                                                  int32_t dtype, int32_t reduce, ravel_error *err);

/* ---- point to point ------------------------------------------------------------------------------------- */

/* Messages from one rank to another with the same tag arrive in order. The receiver's count and dtype must be the
 * sender's. A send may wait until the peer receives: two ranks that send to each other first and receive then must
 * use the non-blocking forms. */
RAVEL_API ravel_status ravel_comm_send(ravel_comm *comm, const void *data, int64_t count, int32_t dtype, int32_t peer,
                                       int32_t tag, ravel_error *err);
RAVEL_API ravel_status ravel_comm_recv(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t peer,
                                       int32_t tag, ravel_error *err);

/* ---- non-blocking forms --------------------------------------------------------------------------------- */

/* Start now, wait later. Arrays, counts and offsets belong to the operation until it is done. Every request must be
 * waited for, or tested until done; both end it. Collectives are matched by the order in which they are started.
 * At most RAVEL_REQUESTS_MAX are open at once on a communicator: one more is E_STATE.
 * threads: data moves when the last rank has come and any rank waits (or at once, if it is little).
 * mpi, tcp: data moves while some call on the communicator waits or tests.
 * callbacks: collectives happen in the start, messages in the first wait for any of them; test begins nothing. */
RAVEL_API ravel_status ravel_comm_ibarrier(ravel_comm *comm, ravel_request **request, ravel_error *err);
RAVEL_API ravel_status ravel_comm_ibroadcast(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t root,
                                             ravel_request **request, ravel_error *err);
RAVEL_API ravel_status ravel_comm_iallgatherv(ravel_comm *comm, const void *send, void *recv,
                                              const int64_t *recv_counts, const int64_t *recv_offsets, int32_t dtype,
                                              ravel_request **request, ravel_error *err);
RAVEL_API ravel_status ravel_comm_ialltoallv(ravel_comm *comm, const void *send, const int64_t *send_counts,
                                             const int64_t *send_offsets, void *recv, const int64_t *recv_counts,
                                             const int64_t *recv_offsets, int32_t dtype, ravel_request **request,
                                             ravel_error *err);
RAVEL_API ravel_status ravel_comm_isend(ravel_comm *comm, const void *data, int64_t count, int32_t dtype, int32_t peer,
                                        int32_t tag, ravel_request **request, ravel_error *err);
RAVEL_API ravel_status ravel_comm_irecv(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t peer,
                                        int32_t tag, ravel_request **request, ravel_error *err);

/* Waits at most the timeout. The request is freed in every case; NULL is RAVEL_OK. */
RAVEL_API ravel_status ravel_request_wait(ravel_request *request, ravel_error *err);
/* *done = 1: the request is complete or failed, and freed. *done = 0: it is still open. */
RAVEL_API ravel_status ravel_request_test(ravel_request *request, int32_t *done, ravel_error *err);
/* Waits for all of them; NULLs are skipped. The first failure is returned; all are freed. */
RAVEL_API ravel_status ravel_request_wait_all(ravel_request **requests, int64_t count, ravel_error *err);

/* ---- agreement ------------------------------------------------------------------------------------------ */

/* Collective. Every rank hands in the status of its own work, with the sentence in err; every rank gets back RAVEL_OK
 * when all did, or else the status and sentence of the first rank that failed, "rank 3: row 17: ...". One all-reduce of
 * two words when all is well. Afterwards the communicator can be used further. */
RAVEL_API ravel_status ravel_agree(ravel_comm *comm, ravel_status mine, ravel_error *err);

/* Collective. E_MISMATCH on every rank if the digests are not all the same; the sentence names the ranks that differ
 * from most. One all-reduce of two words when they are. */
RAVEL_API ravel_status ravel_compare(ravel_comm *comm, uint64_t digest, ravel_error *err);

/* Collective. *count: the ranks of `comm` that run on this rank's machine, this one included: those that share its
 * cores. Containers on one host count apart. */
RAVEL_API ravel_status ravel_comm_neighbours(ravel_comm *comm, int32_t *count, ravel_error *err);
/* Collective. *rank: this rank's number among them, from 0 in the order of the ranks. */
RAVEL_API ravel_status ravel_comm_local_rank(ravel_comm *comm, int32_t *rank, ravel_error *err);

/* ---- the caller's own transport ------------------------------------------------------------------------- */

/* A framework's collectives behind a communicator. All sizes are bytes; offsets are never NULL; arrays of a zero size
 * may be NULL. `timeout` is what is left of the deadline, in seconds. A function returns RAVEL_OK, or a status with a
 * sentence in err; any failure makes the communicator dead (the state of the framework's group is unknown). send and
 * recv are required; everything else may be NULL and is made from them. Reductions are made by Ravel from all-gathers
 * and all-to-alls, so that they give the same bits as everywhere, unless `allreduce` is given. Functions are called
 * from the thread that calls the communicator. Tags may be any int32_t from 0. isend and irecv only queue; the first
 * wait runs all queued messages, and waits if send and recv do. So start together what belongs together. A test
 * never calls send or recv: a loop that only tests makes no progress. */
typedef struct ravel_comm_hooks {
    size_t size; /* sizeof(ravel_comm_hooks) */
    void *user;
    int32_t rank, ranks;
    ravel_status (*barrier)(void *user, double timeout, ravel_error *err);
    ravel_status (*broadcast)(void *user, void *data, int64_t bytes, int32_t root, double timeout, ravel_error *err);
    ravel_status (*allgatherv)(void *user, const void *send, int64_t send_bytes, void *recv, const int64_t *recv_bytes,
                               const int64_t *recv_offsets, double timeout, ravel_error *err);
    ravel_status (*alltoallv)(void *user, const void *send, const int64_t *send_bytes, const int64_t *send_offsets,
                              void *recv, const int64_t *recv_bytes, const int64_t *recv_offsets, double timeout,
                              ravel_error *err);
    /* `recv` may be `send`. */
    ravel_status (*allreduce)(void *user, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                              double timeout, ravel_error *err);
    ravel_status (*send)(void *user, const void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                         ravel_error *err);
    ravel_status (*recv)(void *user, void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                         ravel_error *err);
    /* Fills `child` (its size, user, rank, ranks and functions) for the group that this rank's colour forms; members
     * [count] are ranks of this communicator in the child's order. Not called for a negative colour. NULL: children
     * use send and recv of this table. */
    ravel_status (*split)(void *user, const int32_t *members, int32_t count, int32_t index,
                          struct ravel_comm_hooks *child, double timeout, ravel_error *err);
    /* Notifies the peers of a failure if it can; NULL: their calls end at the deadline. */
    void (*abort)(void *user, const char *why);
    /* The communicator is being freed; NULL: nothing to do. */
    void (*close)(void *user);
} ravel_comm_hooks;

RAVEL_API ravel_status ravel_comm_callbacks(const ravel_comm_hooks *hooks, const ravel_comm_options *options,
                                            ravel_comm **comm, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
