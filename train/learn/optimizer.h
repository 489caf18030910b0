/* train/learn/optimizer.h: AdamW over a model's flat arrays, or over one rank's share of them, and learning-rate schedules.
 *
 * An optimiser steps the elements first .. first+count-1 of the model's weights. Without sharding that is all of them on
 * every rank; with ZeRO-1 each rank has a share, steps it, and the weights are gathered afterwards:
 *
 *     sum gradients over ranks (all-reduce, or reduce-scatter to the shares)
 *     train_optimizer_sum_squares   of the share; summed over ranks it is the squared norm (all of it, unsharded)
 *     train_optimizer_step          with the scale that clipping asks for
 *     (gather the weights)
 *
 * Weight decay applies to matrices, as the parameter table says. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "train/model/model.h"

typedef struct train_optimizer train_optimizer;

typedef struct train_optimizer_options {
    size_t size; /* sizeof(train_optimizer_options) */
    double beta1, beta2, eps, decay;
    int64_t first, count; /* the share; count 0: everything */
} train_optimizer_options;

void train_optimizer_options_default(train_optimizer_options *options);
/* Bytes of the states for a share of `count` elements. */
int64_t train_optimizer_bytes(int64_t count);

/* The model must outlive it. States begin at 0. */
ravel_status train_optimizer_create(train_model *model, const train_optimizer_options *options,
                                    const ravel_allocator *allocator, train_optimizer **optimizer, ravel_error *err);
void train_optimizer_free(train_optimizer *optimizer);

/* Sum of squares of the share's gradients, in double; waits. */
double train_optimizer_sum_squares(train_optimizer *optimizer);
/* w -= lr * ... with gradients times grad_scale; counts the step. */
void train_optimizer_step(train_optimizer *optimizer, double lr, double grad_scale);

/* For checkpoints: the two states, [count] on the device, and the number of steps taken. */
train_real *train_optimizer_first_moment(train_optimizer *optimizer);
train_real *train_optimizer_second_moment(train_optimizer *optimizer);
int64_t train_optimizer_steps(const train_optimizer *optimizer);
void train_optimizer_set_steps(train_optimizer *optimizer, int64_t steps);

/* What gradients are multiplied with so that their norm is at most `most` (0: no limit). */
double train_clip_scale(double norm, double most);

typedef enum train_schedule { TRAIN_CONSTANT, TRAIN_LINEAR, TRAIN_COSINE } train_schedule;
#define TRAIN_SCHEDULE_CHOICES "constant|linear|cosine"

/* The learning rate of update `step` (from 1) of `steps`: it rises over `warmup` updates, is `lr` at the next one, and
 * falls towards `min_lr`, which an update after the last would have: no update of a run has rate 0. */
double train_learning_rate(train_schedule schedule, double lr, double min_lr, int64_t warmup, int64_t step,
                           int64_t steps);

#endif
