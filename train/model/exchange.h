/* Communicator operations on arrays of a device. Internal to train/.
 *
 * Where blocks are ordinary memory, a call goes straight to the communicator. So it does over NCCL (wires.h), where the operation goes
 * into a stream and nothing waits. Elsewhere the arrays travel through page-locked host memory, which is sized once:
 *
 *     collectives    block -> chunk -> communicator -> chunk -> block, as many chunks as it takes
 *     messages       block -> place -> communicator -> place -> block; a place is one message's from begin to end
 *
 * The sums are those of the communicator either way, so a run on a GPU over host memory adds in the order of a run on the CPU.
 * Kernels that are called between the begin and the end of a message run beside it. */
#ifndef TRAIN_EXCHANGE_H
#define TRAIN_EXCHANGE_H

#include <ravel/comm.h>

#include "train/model/wires.h"

typedef struct train__exchange {
    const train_kernels *kernels;
    train_device *device;
    train__wires *wires;  /* not NULL: every communicator is one of these */
    int32_t ranks;        /* the most of a communicator; 1: nothing is exchanged */
    int32_t places;       /* for messages */
    size_t chunk_bytes;   /* of collectives; 0: 4 MiB. At least 16 per rank, and 16 more. */
    size_t message_bytes; /* of a place */
    void *host;           /* [train__exchange_bytes] from alloc_host, allocated by the owner; NULL: calls go straight */
} train__exchange;

/* Bytes of `host`; 0: none is needed. */
size_t train__exchange_bytes(const train__exchange *exchange);

/* The host's clock, for the time of a call below. Where arrays travel through host memory, the call would first wait for the
 * kernels, whose time is not that of communication: this waits for them before it looks. */
double train__exchange_clock(const train__exchange *exchange);

/* data [count] = the sum over ranks. */
ravel_status train__exchange_sum(const train__exchange *exchange, ravel_comm *comm, void *data, int64_t count,
                                 int32_t dtype, ravel_error *err);

/* Elements of every rank's piece of an array, which lie there in rank order. */
typedef struct train__pieces {
    const int64_t *counts; /* [ranks]; NULL: `each` for all */
    int64_t each;
} train__pieces;

/* all = every rank's `mine`, which may lie there already. */
ravel_status train__exchange_gather(const train__exchange *exchange, ravel_comm *comm, const void *mine, void *all,
                                    train__pieces pieces, int32_t dtype, ravel_error *err);
/* mine = this rank's piece of the sum of every rank's `all`. */
ravel_status train__exchange_scatter(const train__exchange *exchange, ravel_comm *comm, const void *all, void *mine,
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

/* A gather or a reduction that runs beside kernels until its end, where the exchange can do that: a gather over NCCL and
 * on the host, a scatter over NCCL. Else it is done when the call returns. */
ravel_status train__exchange_begin_gather(const train__exchange *exchange, ravel_comm *comm, const void *mine,
                                          void *all, train__pieces pieces, int32_t dtype, train__message *message,
                                          ravel_error *err);
ravel_status train__exchange_begin_scatter(const train__exchange *exchange, ravel_comm *comm, const void *all,
                                           void *mine, train__pieces pieces, int32_t dtype, train__message *message,
                                           ravel_error *err);

/* Begins to send or to receive; the block is written by no kernel until the end. Over NCCL messages that must travel together
 * are begun one after the other and then launched, each; a message that is not launched travels at its end. */
ravel_status train__exchange_send(const train__exchange *exchange, ravel_comm *comm, const void *block,
                                  const train__parcel *parcel, train__message *message, ravel_error *err);
ravel_status train__exchange_receive(const train__exchange *exchange, ravel_comm *comm, void *block,
                                     const train__parcel *parcel, train__message *message, ravel_error *err);
ravel_status train__exchange_launch(const train__exchange *exchange, train__message *message, ravel_error *err);
/* Without waiting: whether a message over a host communicator is over is noted. */
ravel_status train__exchange_progress(train__message *message, ravel_error *err);
/* Waits; over NCCL, later kernels do. The message is gone afterwards, whatever the result. */
ravel_status train__exchange_end(const train__exchange *exchange, train__message *message, ravel_error *err);

#endif
