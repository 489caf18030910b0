/* train/run/dpo.h: preference pairs through a model and its reference.
 *
 * A pair is one sample of the feed: the chosen answer, then the rejected one (train/run/pair_source.h). The model sees them as two
 * sequences. The reference scores the same micro-batch just before it is learnt, so both go through the same plan, and
 * before the first update every margin is exactly 0. */
#ifndef TRAIN_DPO_H
#define TRAIN_DPO_H

#include "train/learn/reference.h"
#include "train/rl/dpo.h"

typedef struct train_pairs train_pairs;

/* Makes the reference model too. */
ravel_status train_pairs_create(const train_learner_options *options, const ravel_shape *shape, double beta,
                                train_pairs **pairs, ravel_error *err);
void train_pairs_free(train_pairs *pairs);

/* A micro-batch whose samples are pairs: chosen[samples] tokens of each are the chosen answer. `learn` 1: forward, loss
 * and backward; 0: forward and loss. Adds to *sums; `metrics` (may be NULL) gets the phases. */
ravel_status train_pairs_run(train_pairs *pairs, train_model *model, const train_batch *batch, const int32_t *chosen,
                             int learn, ravel_metrics *metrics, train_dpo_sums *sums, ravel_error *err);

#endif
