/* train/learn/whole.h: the whole model on trainer rank 0, so that it can answer between updates.
 *
 *     train_whole_open(learner, &whole, &err);     on every rank; rank 0 has the weights
 *     ... train_generator_set_weights(generator, whole.weights, version) ...
 *     train_whole_close(&whole);
 *
 * A rank that has the whole model lends its own weights. Otherwise (--tp, --pp, --shard params) rank 0 takes them from
 * all ranks, block by block, into memory of its own. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include "train/learn/learner.h"
#include "train/model/hf/base.h"

typedef struct train_whole {
    const train_kernels *kernels;
    train_device *device;
    const void *weights; /* in the order of the model's table, or of its adapter's; NULL on the other ranks */
    train_frozen base;   /* beside an adapter: the model's own; else nothing */
    void *taken;         /* memory of `weights`; NULL: lent */
    size_t taken_bytes;
    train_base loaded; /* of `base` if it was read again */
} train_whole;

/* Collective over the trainers. Lent weights are valid until the next update. Close it also after an error. */
ravel_status train_whole_open(train_learner *learner, train_whole *whole, ravel_error *err);
void train_whole_close(train_whole *whole);

#endif
