/* train/run/scores.h: log-probs of the micro-batches of a batch's updates, kept until they are needed.
 *
 *     train_work work = {.take = train_scores_take, .user = &scores};       scores.update: of the micro-batches to come
 *     train_parts_score(parts, feed, micros, &work, &err); */
#ifndef TRAIN_SCORES_H
#define TRAIN_SCORES_H

#include "train/learn/parts.h"

typedef struct train_scores {
    float *values; /* [room] of which `used` */
    int64_t used, room;
    int64_t *keys; /* [3 * key_room] update, micro-step, and where its values begin */
    int64_t count, key_room;
    int64_t update;
} train_scores;

void train_scores_clear(train_scores *scores);
void train_scores_free(train_scores *scores);
/* Keeps the log-probs of a micro-batch; `user` is the train_scores (train_work.take). */
ravel_status train_scores_take(void *user, const ravel_micro_batch *micro, const train_batch *batch,
                               const float *logprob, ravel_error *err);
/* The same of `count` values of 4 bytes, whatever they are. */
ravel_status train_scores_keep(train_scores *scores, int64_t step, const void *values, int64_t count, ravel_error *err);
/* NULL if nothing was kept of this micro-batch. Valid until the next take. */
const float *train_scores_at(const train_scores *scores, int64_t update, int64_t step);

#endif
