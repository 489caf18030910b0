/* The load of experts and their load loss, of an update's run (parts_run.c). Internal to train/learn.
 *
 *     count    forward of all micro-batches, for their load alone; left out where one micro-batch is the whole update
 *     set      the load of all ranks, and the derivative of the loss, to the models
 *     learn    forward and backward
 *     end      the loss */
#ifndef TRAIN_BALANCE_H
#define TRAIN_BALANCE_H

#include "train/learn/parts_internal.h"

ravel_status train__balance_open(train_parts *p, ravel_error *err);
/* The load of what was learnt or counted; collective over the mesh, as the others. */
ravel_status train__balance_count(train_parts *p, ravel_error *err);
ravel_status train__balance_set(train_parts *p, ravel_error *err);
ravel_status train__balance_end(train_parts *p, ravel_error *err);

#endif
