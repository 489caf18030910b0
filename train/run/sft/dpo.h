/* train/run/sft/dpo.h: preference pairs through a model and its reference.
 *
 * A pair is a row of two samples, the chosen answer and then the rejected one, which the feed keeps in one micro-batch
 * (keep_rows). Prefixes are shared as in any other batch, between pairs too. Context-parallel ranks add up their sums
 * of log-probs before the loss. The reference scores the micro-batches of an update just before they are learnt, so
 * both go through the same plan, and before the first update every margin is exactly 0.
 *
 *     train_pairs_learn    the reference's log-probs, then train_parts_learn with the loss of pairs
 *     train_pairs_score    the same without gradients */
#ifndef TRAIN_DPO_H
#define TRAIN_DPO_H

#include "train/learn/learner.h"
#include "train/rl/dpo.h"

typedef struct train_pairs train_pairs;

/* Collective over the mesh. Makes the reference model too: `options` are for inference. */
ravel_status train_pairs_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                double beta, train_pairs **pairs, ravel_error *err);
/* The same without a reference, whose log-probs are 0: margins are of the answers' own log-probs. Only for train_pairs_score. */
ravel_status train_pairs_create_alone(const train_parts_options *options, ravel_mesh *mesh, double beta,
                                      train_pairs **pairs, ravel_error *err);
void train_pairs_free(train_pairs *pairs);

/* The current update of the feed, whose weights are those of seq-mean-token-sum. *sums is of the pairs of this rank: 0 if it has not the last part of the model, or another rank has the same. */
ravel_status train_pairs_learn(train_pairs *pairs, train_parts *parts, const ravel_feed *feed, int64_t micros,
                               ravel_metrics *metrics, train_parts_time *time, train_dpo_sums *sums, ravel_error *err);
ravel_status train_pairs_score(train_pairs *pairs, train_parts *parts, const ravel_feed *feed, int64_t micros,
                               train_dpo_sums *sums, ravel_error *err);

#endif
