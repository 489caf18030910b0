/* NCCL communicators of one rank, beside the host communicators of its mesh, and the order in which its GPU runs their
 * operations. Internal to train/.
 *
 *     kernels     layer ──[tp sum]── layer ──────────[tp sum]── layer ──────── layer ────── ...
 *                   │ waits for it                      ▲                        ▲
 *     ring          └────> keys and values to the next rank                      │
 *     replicas    gather the weights of the next layer ──────────────────────────┘   sum the gradients of the last one
 *     edges       rows to the next stage | rows from it | gradients to the stage before | gradients from it
 *
 * Streams run side by side; what is in one runs in order. The rule:
 *
 *   1. A communicator has one stream, and all its ranks make the same calls on it in the same order. A rank makes its calls
 *      from one thread, in the order of its program.
 *   2. Operations that the next kernel needs at once (tensor parallel) are in the kernels' stream. Every other communicator
 *      has a stream of its own: an operation there waits for the kernels that were called before it, and kernels that need
 *      its result wait for its event.
 *   3. A message waits on the GPU until its peer comes. Two neighbouring stages therefore have a communicator of two ranks
 *      for each direction and each of rows and gradients: no send waits behind a receive.
 *
 * Why nothing waits in a circle: with every operation in the kernels' stream, a rank would do what it does over host
 * communicators, where a call waits for its peers in the order of the program, except for messages, which wait for
 * nothing there. Rule 3 gives messages streams in which only the messages of one peer and direction are, in the order
 * of the schedule, which is the same on both sides (tests/unit/test_train_pipeline.c). Rule 2 only takes waits away.
 *
 * A lost rank: calls that wait for the kernels look at all communicators about every millisecond (train_kernels.watch).
 * Where a rank is lost, NCCL failed or the deadline is over, all are aborted, which ends what the GPU waits for.
 *
 * Sums are NCCL's: f32 gradients and bf16 activations are added in an order of its own, which is the same on every run
 * with the same ranks, sizes and links between the GPUs; it is not the order of ranks. */
#ifndef TRAIN_WIRES_H
#define TRAIN_WIRES_H

#include <ravel/comm.h>

#include "train/kernels/kernels.h"

typedef struct train__wires train__wires;

/* For arrays of `device` on GPU `gpu`; `control` is a host communicator of the ranks, whose timeout is taken. */
ravel_status train__wires_open(const train_kernels *kernels, train_device *device, int32_t gpu, ravel_comm *control,
                               train__wires **wires, ravel_error *err);
/* Waits for the kernels, as long as the other ranks live, and ends all communicators. NULL does nothing. */
void train__wires_close(train__wires *wires);

typedef enum train__wire_stream { TRAIN__WIRE_KERNELS, TRAIN__WIRE_OWN } train__wire_stream;
/* What a communicator is for: tensor parallel, context parallel, shares of weights and gradients, stages. */
typedef enum train__wire_use { TRAIN__WIRE_TP, TRAIN__WIRE_CP, TRAIN__WIRE_SHARD, TRAIN__WIRE_PP } train__wire_use;
enum { TRAIN__WIRE_USES = TRAIN__WIRE_PP + 1 };
/* The ranks of `host` over NCCL; the communicator belongs to the wires. Collective over `host`. */
ravel_status train__wires_join(train__wires *wires, ravel_comm *host, train__wire_stream stream, train__wire_use use,
                               ravel_comm **comm, ravel_error *err);

/* The next operation on comm comes after the kernels called so far. */
ravel_status train__wires_enter(train__wires *wires, const ravel_comm *comm, ravel_error *err);
/* Kernels called from here on come after comm's operations so far. */
ravel_status train__wires_leave(train__wires *wires, const ravel_comm *comm, ravel_error *err);
/* *event: comm's operations so far. */
ravel_status train__wires_mark(train__wires *wires, const ravel_comm *comm, ravel_event **event, ravel_error *err);
/* Kernels called from here on come after the event, which is comm's and is freed. */
ravel_status train__wires_order(train__wires *wires, const ravel_comm *comm, ravel_event *event, ravel_error *err);
/* Tells the other ranks that this one failed; what the GPU waits for ends. */
void train__wires_abort(train__wires *wires, const ravel_error *why);

/* ---- time, on the GPU (stopwatch.h): the host only puts operations into streams ---- */

/* Seconds of forward [0] and backward [1] operations, and the time in them that kernels waited for communicators of
 * each use. */
typedef struct train__wire_times {
    double seconds; /* from train__wires_time_begin to train__wires_time_end */
    double busy[2], waited[2][TRAIN__WIRE_USES];
} train__wire_times;

void train__wires_time_begin(train__wires *wires);
/* An operation begins, and ends. Waits outside of operations are not measured. */
void train__wires_op_begin(train__wires *wires, int backward);
void train__wires_op_end(train__wires *wires);
/* Waits for the kernels. */
ravel_status train__wires_time_end(train__wires *wires, train__wire_times *times, ravel_error *err);

#endif
