/* train/run/scores.h: log-probs of micro-batches, stored under the caller's number until they are needed. */
#ifndef TRAIN_SCORES_H
#define TRAIN_SCORES_H

#include <ravel/base.h>

typedef struct train_scores {
    float *values; /* [room] of which `used` */
    int64_t used, room;
    int64_t *keys; /* [2 * key_room] number, and where its values begin */
    int64_t count, key_room;
} train_scores;

void train_scores_clear(train_scores *scores);
void train_scores_free(train_scores *scores);
ravel_status train_scores_add(train_scores *scores, int64_t key, const float *values, int64_t count, ravel_error *err);
/* NULL where nothing was kept under this number. Valid until the next add. */
const float *train_scores_at(const train_scores *scores, int64_t key);

#endif
