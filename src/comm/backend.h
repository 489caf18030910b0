/* A back end: a const table of functions over two structs.
 *
 *     ravel_comm_*  ->  front (comm.c, ops.c, reduce.c)  ->  table  ->  self.c | threads*.c | callbacks.c | nccl*.c
 *                                                                    ->  remote*.c  ->  wire.h  ->  mpi.c | tcp*.c
 *
 * The front does what is the same everywhere: argument checks, byte sizes, offsets, deadlines, failures, sentences,
 * splitting, and the reductions of back ends that have none of their own. A back end moves bytes: it starts an
 * operation, reports whether it is done, and cancels it.
 *
 * To add one: a file with one `const ravel__backend` table, a function in ravel/comm.h that makes the first
 * handle with ravel__comm_new, and a row in docs/comm.md. The slots that may be NULL are marked; a back end whose
 * memory is not the host's sets all of `reduces` and reduces by itself.
 *
 * The states of an operation:
 *
 *     front fills request->op  ->  start  ->  wait or test ...  ->  done, request goes back to the handle's idle list
 *                                    \-> or: cancel (the handle is freed with the request still open)
 */
#ifndef RAVEL_COMM_BACKEND_H
#define RAVEL_COMM_BACKEND_H

#include <ravel/comm.h>

#include "base/memory.h"

typedef enum ravel__op_kind {
    RAVEL__BARRIER,
    RAVEL__BROADCAST,
    RAVEL__ALLGATHER,
    RAVEL__ALLTOALL,
    RAVEL__ALLREDUCE,
    RAVEL__REDUCE,
    RAVEL__REDUCE_SCATTER,
    RAVEL__SEND,
    RAVEL__RECV,
    RAVEL__OP_KINDS
} ravel__op_kind;

/* Everything is in bytes here; the lists are never NULL if a kind uses them, and are [size] long.
 *
 *     kind            send            recv                      lists
 *     barrier
 *     broadcast       root's data     the others' data          (bytes)
 *     all-gather      recv_sizes[me]  pieces                    recv_sizes, recv_offsets
 *     all-to-all      pieces          pieces                    all four
 *     all-reduce      data            result, may be send       (bytes)
 *     reduce          data            root's result             (bytes)
 *     reduce-scatter  pieces          recv_sizes[me]            recv_sizes, send_offsets (of the pieces in send)
 *     send, recv      data            data                      (bytes)
 */
typedef struct ravel__op {
    int32_t kind;
    int32_t label;  /* the kind that the caller asked for, of which this is a step */
    int32_t dtype;  /* ravel_dtype */
    int32_t each;   /* bytes of one element */
    int32_t reduce; /* ravel_reduce, -1: none */
    int32_t root;   /* or peer; -1: none */
    int32_t tag;
    int32_t blocking; /* blocking call: the caller waits right after the start */
    int32_t borrows;  /* recv: `recv` is a ravel__loan; only if the back end has give_back */
    int64_t bytes;    /* of the data if there is no list, else of send */
    int64_t total;    /* elements of the whole operation of which this is a step; all ranks agree */
    const char *send;
    char *recv;
    const int64_t *send_sizes, *send_offsets, *recv_sizes, *recv_offsets;
} ravel__op;

/* Arguments of a public call, in elements. Lists may be NULL: `count` elements for each rank, back to back. */
typedef struct ravel__call {
    int32_t kind, label, dtype, reduce, root, tag, borrows;
    int64_t count, total; /* total: 0: not a step of another operation */
    const void *send;
    void *recv;
    const int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
} ravel__call;

struct ravel_request {
    ravel_comm *comm;
    ravel_request *next, *prev; /* in the handle's list of open or idle requests */
    ravel__op op;
    int64_t deadline_ns;                /* 0: no wait has begun */
    int64_t *lists;                     /* [4 * size], for send_sizes .. recv_offsets */
    ravel_error why;                    /* set by the back end when the operation fails */
    _Alignas(16) unsigned char state[]; /* the back end's, request_bytes long, zero at first */
};

/* A message that stays in the sender's array. The sender cannot reuse the array until the receiver gives it back. */
typedef struct ravel__loan {
    const void *data;
    ravel_request *lender; /* the sender's request; NULL: nothing is lent */
} ravel__loan;

typedef struct ravel__backend {
    const char *name;
    size_t request_bytes;  /* of ravel_request.state */
    uint32_t reduces;      /* bits 1 << kind: reductions that start takes; the front composes the others */
    int32_t moves_in_wait; /* messages move only inside a wait: test starts nothing */
    int64_t exact_bytes;   /* start also takes all-reduces of integers up to this size: any order gives the same */

    /* Begins the operation. Must not wait for a peer (collectives of callbacks do). On failure nothing was started, and
     * request->why holds the sentence. The operation may already be done on return. */
    ravel_status (*start)(ravel_comm *comm, ravel_request *request);
    /* Makes progress and sets *done. Returns the status of a failed operation. Never waits. */
    ravel_status (*test)(ravel_comm *comm, ravel_request *request, int32_t *done);
    /* Until done, failed, or the monotonic clock passes request->deadline_ns (E_TIMEOUT, which makes the communicator
     * dead for all). Statuses: RAVEL_OK; E_MISMATCH, with nothing moved; E_PEER_LOST, E_TIMEOUT. */
    ravel_status (*wait)(ravel_comm *comm, ravel_request *request);
    /* The handle is being freed: the operation must not touch the caller's memory after this. Never waits for a peer
     * to come; may wait for copies that are under way. */
    void (*cancel)(ravel_comm *comm, ravel_request *request);

    /* Makes child->state for members[0 .. child->size-1] (ranks of comm), this one being members[child->rank].
     * `serial` and `colour` are the same on all members and name this child among all of comm's. The front lets the
     * ranks agree afterwards whether all succeeded. */
    ravel_status (*subset)(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial, int32_t colour,
                           ravel_error *err);
    /* A serial that no child of this rank has used; the front takes the maximum over ranks. NULL: the front counts
     * splits. */
    int64_t (*serial)(ravel_comm *comm);
    /* Tells the other ranks that this one failed. */
    void (*abort)(ravel_comm *comm, const char *why);
    /* RAVEL_OK, or E_PEER_LOST with the reason. Never waits. */
    ravel_status (*alive)(ravel_comm *comm, ravel_error *err);
    /* Leaves, and frees comm->state. After cancel of every open request. */
    void (*close)(ravel_comm *comm);
    /* Completes the send behind a loan. Any thread, while comm is open. NULL: this back end does not lend, and gets no
     * borrowing receive. A cancelled receive returns its loan itself. */
    void (*give_back)(ravel_comm *comm, ravel_request *lender);
    /* A communicator of the same ranks for host memory, which the front's own messages use. NULL: comm itself. */
    ravel_comm *(*control)(ravel_comm *comm);
} ravel__backend;

struct ravel_comm {
    const ravel__backend *backend;
    void *state; /* the back end's */
    int32_t rank, size;
    int64_t timeout_ns;
    int64_t chunk_bytes;
    int32_t check;
    int32_t lost_rank; /* of the failure that made it dead; set by the back end, -1: not known */
    int64_t splits;    /* so far */
    const ravel_allocator *allocator;
    int32_t *world_ranks;       /* [size]; NULL: 0, 1, 2, ... */
    ravel_request *idle, *open; /* two lists; open is linked both ways */
    int32_t open_count;
    char name[16];
    ravel_error failure;  /* status != 0: the handle reported a failure, and is dead */
    unsigned char *spare; /* of the composite operations */
    size_t spare_bytes;
};

/* ---- the front, for back ends ---- */

/* A handle without a state; NULL options: the defaults. */
ravel_status ravel__comm_new(const ravel__backend *backend, int32_t rank, int32_t size,
                             const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);
/* Frees what ravel__comm_new made, for when the state could not be. */
void ravel__comm_discard(ravel_comm *comm);
/* Copies `from` over the defaults (NULL: nothing) and checks it and the environment. */
ravel_status ravel__comm_options_take(const ravel_comm_options *from, ravel_comm_options *options, ravel_error *err);

extern const char *const ravel__op_names[RAVEL__OP_KINDS];
/* "broadcast of 10 i32 from rank 0" into text, for sentences. */
void ravel__op_describe(const ravel__op *op, char *text, size_t bytes);
#define RAVEL__ALL_REDUCTIONS (1u << RAVEL__ALLREDUCE | 1u << RAVEL__REDUCE | 1u << RAVEL__REDUCE_SCATTER)

/* Ranks without shared memory compare cards before a collective; a difference is reported with their texts. */
typedef struct ravel__card {
    uint64_t signature; /* of everything that all ranks must agree on */
    uint64_t pairs;     /* all-to-all: over all ranks these add up to 0 if every receiver expects what is sent */
    char text[176];     /* the operation in words, or what is wrong with it */
} ravel__card;
void ravel__card_fill(const ravel_comm *comm, const ravel__op *op, ravel__card *card);
/* 1 if all cards agree; else a sentence into why. cards [size]. */
int ravel__cards_agree(const ravel_comm *comm, const ravel__card *cards, ravel_error *why);
/* An all-to-all where the pairs disagree: arriving [size]: bytes that each rank sends to this one. Writes the
 * difference into the card's text, or "" if there is none. */
void ravel__card_complain(const ravel_comm *comm, const ravel__op *op, const int64_t *arriving, ravel__card *card);
/* Copies the first rank's non-empty text into why. */
void ravel__cards_complaint(const ravel_comm *comm, const ravel__card *cards, ravel_error *why);
/* All of it, for back ends that may wait in start: gather is an all-gather of `bytes` from each rank. */
typedef ravel_status (*ravel__card_gather)(ravel_comm *comm, ravel_request *r, const void *send, void *recv,
                                           int64_t bytes);
ravel_status ravel__cards_compare(ravel_comm *comm, ravel_request *r, ravel__card_gather gather);

/* Whether two ranks' collectives are the same operation with the same sizes (of all-to-alls: without the sizes). */
int ravel__op_same(const ravel__op *a, const ravel__op *b, int32_t size);
/* `rank 2`, or `rank 2 of "tp" (world rank 13)`. */
void ravel__rank_describe(const ravel_comm *comm, int32_t rank, char *text, size_t bytes);

/* Reduces sources[0 .. count-1] + offset, `bytes` bytes, in this order, into `out`, which may be one of them. */
void ravel__reduce(int32_t dtype, int32_t reduce, const char *const *sources, int32_t count, int64_t offset,
                   int64_t bytes, char *out);
/* Whether the dtype can be reduced. */
int ravel__can_reduce(int32_t dtype);

/* ---- borrowing: floors above read a large message in place, without a copy ---- */

/* Whether receives on comm may borrow. */
int ravel__comm_lends(const ravel_comm *comm);
/* As ravel_comm_irecv of `bytes` bytes, without the copy: when the request is done, *loan says where the message is in
 * the sender's memory. The sender's request, and its ravel_comm_free, wait until ravel__comm_give_back, so a
 * borrower must give back soon, also after a failure, and before freeing comm. */
ravel_status ravel__comm_iborrow(ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer, int32_t tag,
                                 ravel_request **request, ravel_error *err);
/* Any thread. The loan is empty afterwards; an empty loan is allowed. */
void ravel__comm_give_back(ravel_comm *comm, ravel__loan *loan);

/* One blocking operation: checks, start, wait, result. */
ravel_status ravel__comm_run(ravel_comm *comm, const ravel__call *call, ravel_error *err);
/* The same without the wait. */
ravel_status ravel__comm_launch(ravel_comm *comm, const ravel__call *call, ravel_request **request, ravel_error *err);
/* The reductions of back ends that have none. */
ravel_status ravel__reduce_composite(ravel_comm *comm, const ravel__call *call, ravel_error *err);
/* Elements of `each` bytes per rank and round of a long reduction; `longest` is the largest share of a rank. */
int64_t ravel__reduce_piece(int32_t ranks, int64_t chunk_bytes, int64_t each, int64_t longest);
/* Fills request->op and the lists from the call, with all checks of arguments. */
ravel_status ravel__op_prepare(ravel_comm *comm, const ravel__call *call, ravel_request *request, ravel_error *err);
/* Takes an idle request, or makes one; E_STATE if too many are open. */
ravel_status ravel__request_take(ravel_comm *comm, ravel_request **request, ravel_error *err);
void ravel__request_give(ravel_comm *comm, ravel_request *request);
/* Records the failure of an operation: the handle is dead if the group is. Prefixes the sentence with the operation. */
ravel_status ravel__comm_fail(ravel_comm *comm, const char *what, ravel_status status, const ravel_error *why,
                              ravel_error *err);
/* RAVEL_OK, or the failure that made the handle dead. */
ravel_status ravel__comm_usable(ravel_comm *comm, ravel_error *err);
/* At least `bytes` of memory that the handle keeps; NULL when there is none. */
void *ravel__comm_spare(ravel_comm *comm, size_t bytes);

/* The number that `rank` of this communicator has in the one that all splitting began with. */
int32_t ravel__comm_world_rank(const ravel_comm *comm, int32_t rank);

#endif
