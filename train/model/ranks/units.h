/* Sharded parameters (FSDP, ZeRO-3): every rank of a group has a share of each unit's weights and gradients, and the
 * whole unit only while it is used. Internal to train/.
 *
 *     forward     gather 0   layer 0   layer 1   ...            while a layer runs, the next units are being gathered
 *     backward    layer n    layer n-1 ...   embedding          ... and the gradients of the layer before are exchanged
 *
 * Buffers, reused:
 *
 *     weights     one for the embedding or the head, one for the last norm where the head is the embedding, three for
 *                 layers: a layer's forward ends with the norm of the next one, and the one after that is under way
 *     gradients   the same with two for layers: one is written, one is being exchanged
 *     received    this rank's run of a unit's gradients from every rank, which are added in rank order; where blocks are not
 *                 host memory, their sum. Over NCCL it is made beside kernels, through host memory at once
 *
 * A unit that is still in its buffer is not gathered again: that saves the turn from forward to backward and back. All
 * ranks of the group run the same calls in the same order, fillers included, so they agree on what is in the buffers.
 *
 * Functions return no status: the first failure is stored, and later calls do nothing (link.h). */
#ifndef TRAIN_UNITS_H
#define TRAIN_UNITS_H

#include "train/model/ranks/link.h"
#include "train/model/ranks/shares.h"

enum {
    TRAIN__LAYER_WEIGHTS = 3,
    TRAIN__LAYER_GRADS = 2,
    TRAIN__END_BUFFERS = 2,
    TRAIN__EXPERT_BUFFERS = 2,
    TRAIN__UNIT_BUFFERS = 7
};

/* Room for one unit. */
typedef struct train__buffer {
    void *data;
    size_t bytes;
    int64_t unit;          /* that is in it or on its way; -1: none */
    int64_t used;          /* when it was used last */
    train__message gather; /* that fills it; none: it is complete */
} train__buffer;

typedef struct train__units {
    train__link link;    /* ranks that share the parameters out; `seconds`: waited for weights and gradients */
    train__link experts; /* those of them that have the same experts */
    const train_kernels *kernels;
    train_device *device;
    train_shares *shares;
    int32_t inference;
    train__buffer weights[TRAIN__UNIT_BUFFERS], grads[TRAIN__UNIT_BUFFERS];
    void *received; /* [received_bytes] */
    size_t received_bytes;
    int64_t *received_counts; /* [ranks] of the exchange that is under way */
    int64_t *run_counts;      /* [ranks] of a unit of experts; as the one before, from one block */
    int64_t exchanged;        /* unit whose gradients are being exchanged; -1: none */
    train__message reduction; /* that */
    int64_t clock;
    void *weight_share, *grad_share; /* the model's arrays */
} train__units;

/* Sizes of all buffers; nothing is allocated but the shares. `ranks` of the group, `rank` in it. */
ravel_status train__units_init(train__units *units, const train_kernels *kernels, train_device *device,
                               const train_params *params, int32_t ranks, int32_t rank, int inference,
                               const ravel_allocator *allocator, ravel_error *err);
/* Moves what is under way along, without waiting: communicators of processes transfer only inside calls. */
void train__units_progress(train__units *units);
/* Waits for open transfers, and ignores their results: before the buffers are freed. */
void train__units_wait(train__units *units);
void train__units_close(train__units *units);

/* The weight at `offset` of the flat array, whose unit was prepared. */
const void *train__units_weight(const train__units *units, int64_t offset);
void *train__units_grad(const train__units *units, int64_t offset);

/* Weights have changed: buffers are empty. */
void train__units_forget(train__units *units);

/* Prepares the weights of `unit`, and waits for them; begins to gather `next` (-1: nothing). */
void train__units_need(train__units *units, int64_t unit, int64_t next);
/* Gradients of `unit`, all 0. */
void train__units_open_grads(train__units *units, int64_t unit);
/* Adds them, over ranks, to this rank's share: a layer's later, while other units are worked on. */
void train__units_reduce(train__units *units, int64_t unit);
/* Waits for the exchange that is under way. */
void train__units_finish(train__units *units);

#endif
