/* Over what arrays move between ranks: a port gives arrays of one device to communicators, a link is a communicator and
 * a port, with its first failure and the time it was waited for. What moves is the business of those above: the layer's
 * products (net.h), the ring (ring.h), sharded parameters (units.h), rows between stages and gradients (train/learn).
 * Internal to train/.
 *
 * Where blocks are ordinary memory, a call goes straight to the communicator. So it does over NCCL (wires.h), where the
 * operation goes into a stream and nothing waits. Elsewhere the arrays travel through page-locked host memory, which is
 * sized once:
 *
 *     collectives    block -> chunk -> communicator -> chunk -> block, as many chunks as it takes
 *     messages       block -> place -> communicator -> place -> block; a place is one message's from begin to end
 *
 * The sums are those of the communicator either way, so a run on a GPU over host memory adds in the order of a run on
 * the CPU. Kernels that are called between the begin and the end of a message run beside it. */
#ifndef TRAIN_LINK_H
#define TRAIN_LINK_H

#include <ravel/comm.h>

#include "train/model/ranks/wires.h"

typedef struct train__port {
    const train_kernels *kernels;
    train_device *device;
    train__wires *wires;  /* not NULL: every communicator is one of these */
    int32_t ranks;        /* the most of a communicator; 1: nothing is exchanged */
    int32_t places;       /* for messages */
    size_t chunk_bytes;   /* of collectives; 0: 4 MiB. At least 16 per rank, and 16 more. */
    size_t message_bytes; /* of a place */
    void *host;           /* [train__port_bytes] from alloc_host, allocated by the owner; NULL: calls go straight */
} train__port;

/* Bytes of `host`; 0: none is needed. */
size_t train__port_bytes(const train__port *port);

/* data [count] = the sum over ranks. */
ravel_status train__port_sum(const train__port *port, ravel_comm *comm, void *data, int64_t count, int32_t dtype,
                             ravel_error *err);

/* Elements of every rank's piece of an array, which lie there in rank order. */
typedef struct train__pieces {
    const int64_t *counts; /* [ranks]; NULL: `each` for all */
    int64_t each;
} train__pieces;

/* all = every rank's `mine`, which may lie there already. */
ravel_status train__port_gather(const train__port *port, ravel_comm *comm, const void *mine, void *all,
                                train__pieces pieces, int32_t dtype, ravel_error *err);
/* mine = this rank's piece of the sum of every rank's `all`. */
ravel_status train__port_scatter(const train__port *port, ravel_comm *comm, const void *all, void *mine,
                                 train__pieces pieces, int32_t dtype, ravel_error *err);

/* A message or a collective under way; all zeros: none. */
typedef struct train__message {
    ravel_request *request;
    const ravel_comm *comm; /* over NCCL: it was queued, or `event` comes after it */
    ravel_event *event;
    void *block; /* where it arrives after the wait, and */
    const void *host;
    size_t bytes; /* how much; 0: nothing is left to copy */
} train__message;

/* Data of a message: count elements of `dtype`. While it is under way no other message may use `place` (0 .. places -
 * 1). */
typedef struct train__parcel {
    int64_t count;
    int32_t dtype, peer, tag, place;
} train__parcel;

/* Begins to send or to receive; the block is written by no kernel until the end. Over NCCL messages that must travel
 * together are begun one after the other and then launched, each; a message that is not launched travels at its end. */
ravel_status train__port_send(const train__port *port, ravel_comm *comm, const void *block, const train__parcel *parcel,
                              train__message *message, ravel_error *err);
ravel_status train__port_receive(const train__port *port, ravel_comm *comm, void *block, const train__parcel *parcel,
                                 train__message *message, ravel_error *err);
ravel_status train__port_launch(const train__port *port, train__message *message, ravel_error *err);
/* Without waiting: whether a message over a host communicator is over is noted. */
ravel_status train__port_progress(train__message *message, ravel_error *err);
/* Waits; over NCCL, later kernels do. The message is gone afterwards, whatever the result. */
ravel_status train__port_end(const train__port *port, train__message *message, ravel_error *err);

/* ---- links ---------------------------------------------------------------------------------------------- */

/* These functions return no status, as those of a layer do not: the first failure is stored, and later calls do
 * nothing; the function that runs a batch returns it at its end. */
typedef struct train__link {
    const train__port *port;
    ravel_comm *comm; /* NULL: one rank */
    int32_t ranks, rank;
    double seconds;      /* that calls have waited: exposed communication */
    ravel_status status; /* the first failure */
    ravel_error error;
} train__link;

/* A link over `comm`, or of one rank where it is NULL, for arrays of the port's device. */
train__link train__link_over(ravel_comm *comm, const train__port *port);
/* Another communicator for the link; a failure stays. */
void train__link_set(train__link *link, ravel_comm *comm);
/* x = the sum over ranks, in place; no operation with one rank. */
void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype);
/* all [ranks, count] = every rank's `mine`. */
void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype);
/* mine [count] = this rank's piece of the sum of every rank's all [ranks, count]. */
void train__link_scatter(train__link *link, const void *all, void *mine, int64_t count, int32_t dtype);

/* send[r] elements at from + send_at[r] go to rank r, receive[r] of it come to to + receive_at[r]; `most`: the largest
 * number between two ranks, the same on all. */
void train__link_exchange(train__link *link, const void *from, const int64_t *send, const int64_t *send_at, void *to,
                          const int64_t *receive, const int64_t *receive_at, int64_t most, int32_t dtype);

/* The same beside kernels until the message's end, where the port can do that: a gather over NCCL and on the host, a
 * scatter over NCCL. Else it is done when the call returns. */
void train__link_begin_gather(train__link *link, const void *mine, void *all, train__pieces pieces, int32_t dtype,
                              train__message *message);
void train__link_begin_scatter(train__link *link, const void *all, void *mine, train__pieces pieces, int32_t dtype,
                               train__message *message);
/* Without waiting: notes whether a message over a host communicator has ended. */
void train__link_progress(train__link *link, train__message *message);
/* Waits; no operation if nothing is under way. */
void train__link_end(train__link *link, train__message *message);
/* A failure of an operation on the communicator that is not one of these. */
void train__link_note(train__link *link, ravel_status status);
/* Where such an operation writes its error: only the first one is kept. */
ravel_error *train__link_error(train__link *link);

/* A transfer around the ring: `out` goes `hop` ranks on while `in` comes from as many back. begin starts it, and
 * computation that only reads `out` may continue; finish waits, and is called once for each begin. Two transfers at a
 * time have different tags. */
typedef struct train__shift {
    train__message in, out;
} train__shift;
enum { TRAIN__SHIFT_PLACES = 4 }; /* for messages: two shifts at a time */
void train__link_begin(train__link *link, train__shift *shift, int32_t tag, int32_t hop, const void *out, void *in,
                       int64_t count, int32_t dtype);
void train__link_finish(train__link *link, train__shift *shift);
/* The first failure, reported once. */
ravel_status train__link_status(train__link *link, ravel_error *err);

#endif
