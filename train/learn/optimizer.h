/* train/learn/optimizer.h: AdamW over a model's flat arrays, or over one rank's share of them, and learning-rate
 * schedules.
 *
 * An optimiser steps one rank's share of the model's weights (train/model/ranks/shares.h): all of them without
 * sharding. Where the states are sharded, each rank steps its share:
 *
 *     sum gradients over ranks (all-reduce, or reduce-scatter to the shares)
 *     train_optimizer_squares       sums of squares of the share, a number per span of about TRAIN_SPAN elements
 *     (add them over ranks: every rank then has those of all elements, the same bits with and without sharding)
 *     train_optimizer_clip          norm, clip scale and whether it is finite, on the device
 *     train_optimizer_step          does nothing there where the norm is not finite
 *     (gather the weights, unless they are sharded too)
 *
 * Nothing is read back until train_model_read, once per update. Where the kernels' master type differs from the
 * weights' type, the optimiser holds the share's master weights and writes both.
 *
 * Weight decay applies to matrices, as the parameter table says. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "train/model/model.h"
#include "train/model/ranks/shares.h"

typedef struct train_optimizer train_optimizer;

/* How the two moments are stored. They are computed in f32 either way. bf16 halves their memory; it has 8 bits, so a
 * moment that changes by less than 0.4 % in a step may not change at all, and TRAIN_MOMENTS_BETA bounds the betas. */
typedef enum train_moments { TRAIN_MOMENTS_F32, TRAIN_MOMENTS_BF16 } train_moments;
#define TRAIN_MOMENTS_CHOICES "f32|bf16"
#define TRAIN_MOMENTS_BETA    0.99 /* the largest beta of bf16 moments */

typedef struct train_optimizer_options {
    size_t size; /* sizeof(train_optimizer_options) */
    double beta1, beta2, eps, decay;
    int32_t ranks, rank; /* that share the states; 0 ranks mean 1 */
    int32_t moments;     /* train_moments; TRAIN_MOMENTS_F32 is the kernel set's own type */
} train_optimizer_options;

void train_optimizer_options_default(train_optimizer_options *options);
/* Bytes of the states of the largest share. */
int64_t train_optimizer_bytes(const train_kernels *kernels, const train_shares *shares, train_moments moments);

/* The model must outlive it. States begin at 0. Where the model's weights are sharded, the ranks must be the same. */
ravel_status train_optimizer_create(train_model *model, const train_optimizer_options *options,
                                    const ravel_allocator *allocator, train_optimizer **optimizer, ravel_error *err);
void train_optimizer_free(train_optimizer *optimizer);

const train_shares *train_optimizer_shares(const train_optimizer *optimizer);

/* Begins to sum the squares of the share's gradients. Returns the sums of the whole model, [*count] doubles on the
 * device: one per span (train_tensor_span) of each tensor that this rank counts (train_tensor.counted), in the order of
 * the table; 0 for the spans of other ranks. Of experts that other ranks have, with nothing sharded, they have to be
 * added up over those, and the first of them has the other tensors. */
double *train_optimizer_squares(train_optimizer *optimizer, int64_t *count);
/* The sums as they are now, added in their order. Waits. */
double train_optimizer_total(const train_optimizer *optimizer);
/* From sums of squares, [count] on the device, to the model's train_update.clip; NULL: from the optimiser's own. Others
 * are those of a model that several ranks have parts of. most 0: no limit. */
void train_optimizer_clip(train_optimizer *optimizer, const double *sums, int64_t count, double most);
/* w -= lr * ... with clipped gradients; counts the step. */
void train_optimizer_step(train_optimizer *optimizer, double lr);

/* For checkpoints: the share's arrays on the device. The master weights are the model's, if those are the master
 * weights. */
typedef enum train_states { TRAIN_MOMENT1, TRAIN_MOMENT2, TRAIN_MASTER } train_states;
train_array train_optimizer_array(train_optimizer *optimizer, train_states which);
/* After weights were loaded: the share's master weights become these. */
void train_optimizer_take_weights(train_optimizer *optimizer);
/* Steps taken. A checkpoint sets the number, and a step that the device skipped is taken back. */
int64_t *train_optimizer_steps(train_optimizer *optimizer);

typedef enum train_schedule { TRAIN_CONSTANT, TRAIN_LINEAR, TRAIN_COSINE } train_schedule;
#define TRAIN_SCHEDULE_CHOICES "constant|linear|cosine"

/* The learning rate of update `step` (from 1) of `steps`: it rises over `warmup` updates, is `lr` at the next one, and
 * falls towards `min_lr`, which an update after the last would have: no update of a run has rate 0. */
double train_learning_rate(train_schedule schedule, double lr, double min_lr, int64_t warmup, int64_t step,
                           int64_t steps);

#endif
