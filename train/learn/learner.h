/* train/learn/learner.h: one trainer rank: a model, its optimiser, and the sum over the ranks beside it.
 *
 *     train_learner_begin(learner);                                        gradients to zero
 *     for each micro-batch of the update:
 *         train_learner_batch(learner, &micro, &batch, &err);              the feed's arrays as the model takes them
 *         train_model_learn(train_learner_model(learner), &batch, ...);
 *     train_learner_finish(learner, lr, ..., &err);                        sum over ranks, clip, step
 *
 * Summing over ranks, plain or sharded (ZeRO-1), gives the same bits: elements are added in rank order either way.
 *
 *     plain    gradients: all-reduce                every rank steps everything
 *     zero     gradients: reduce-scatter            every rank steps its share, then weights: all-gather
 *
 * Positions. The trainer has one convention: weights, log-probs and coefficients are at the token that they belong to
 * (train/model/model.h). A packed batch (ravel/batch.h) has its loss weights one position earlier, where the token is
 * predicted; train_learner_batch is the one place that moves them. */
#ifndef TRAIN_LEARNER_H
#define TRAIN_LEARNER_H

#include <ravel/feed.h>
#include <ravel/metrics.h>

#include "train/learn/choice.h"
#include "train/learn/optimizer.h"

typedef struct train_learner train_learner;

typedef struct train_learn_options {
    double lr, min_lr;
    int32_t schedule; /* train_schedule */
    int32_t zero;     /* 1: optimiser states are sharded over the trainer ranks (ZeRO-1) */
    int64_t warmup;
    double weight_decay, beta1, beta2, eps, clip_grad;
    int32_t aggregation; /* ravel_aggregation: how token losses become one loss */
    int32_t reserved;
    double norm; /* divisor of seq-mean-token-sum-norm */
} train_learn_options;

/* What a learner is made from; the pointers must outlive it. */
typedef struct train_learner_options {
    const train_model_choice *model;
    const train_learn_options *learn;
    int64_t budget;                   /* tokens per micro-batch */
    int32_t save_dtype;               /* of the model in a checkpoint: RAVEL_F32 or RAVEL_BF16 */
    const ravel_allocator *allocator; /* NULL: malloc */
} train_learner_options;

/* Collective over `comm`, the trainer ranks, which must outlive it. Weights are loaded or initialised, the same on every
 * rank. */
ravel_status train_learner_create(const train_learner_options *options, const ravel_shape *shape, ravel_comm *comm,
                                  train_learner **learner, ravel_error *err);
void train_learner_free(train_learner *learner);

/* Bytes that one rank allocates, by purpose; a pure function. */
typedef struct train_estimate {
    train_memory model;
    int64_t optimizer;
    int64_t total;
} train_estimate;
ravel_status train_learner_estimate(const train_learner_options *options, const ravel_shape *shape, int32_t ranks,
                                    train_estimate *estimate, ravel_error *err);

train_model *train_learner_model(train_learner *learner);

void train_learner_begin(train_learner *learner);
/* *batch borrows from the micro-batch and from the learner, until the next call. */
ravel_status train_learner_batch(train_learner *learner, const ravel_micro_batch *micro, train_batch *batch,
                                 ravel_error *err);
/* Weight 1 for every token that has one: the model's loss is then the sum of negative log-likelihoods. */
void train_learner_set_unit_weights(train_learner *learner, const train_batch *batch);
/* *norm is the global gradient norm before clipping. A norm that is not finite leaves the weights as they are on every
 * rank and sets *skipped. `metrics` (may be NULL) gets the phases. */
ravel_status train_learner_finish(train_learner *learner, double lr, ravel_metrics *metrics, double *norm,
                                  int32_t *skipped, ravel_error *err);
/* The sum of this rank's losses in the last finished update. */
const train_loss_sums *train_learner_sums(const train_learner *learner);

#endif
