#include "train/run/scores.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <string.h>

void train_scores_clear(train_scores *s) {
    s->used = s->count = 0;
}

void train_scores_free(train_scores *s) {
    ravel__release(NULL, s->values, (size_t)s->room * sizeof *s->values);
    ravel__release(NULL, s->keys, (size_t)s->key_room * 3 * sizeof *s->keys);
    *s = (train_scores){0};
}

ravel_status train_scores_keep(train_scores *s, int64_t step, const void *values, int64_t count, ravel_error *err) {
    int64_t need = s->used + count;
    RAVEL_ASSERT(count >= 0 && values && !train_scores_at(s, s->update, step));
    float *grown = train__grown(NULL, s->values, &s->room, s->used, need, sizeof *grown);
    if (!grown) return ravel__no_memory(err, (size_t)need * sizeof *grown, "log-probs");
    s->values = grown;
    int64_t *keys = train__grown(NULL, s->keys, &s->key_room, s->count, s->count + 1, 3 * sizeof *keys);
    if (!keys) return ravel__no_memory(err, (size_t)(s->count + 1) * 3 * sizeof *keys, "log-probs");
    s->keys = keys;
    memcpy(s->values + s->used, values, (size_t)count * sizeof *s->values);
    memcpy(s->keys + 3 * s->count++, (int64_t[]){s->update, step, s->used}, 3 * sizeof *s->keys);
    s->used += count;
    RAVEL_ASSERT(s->used <= s->room && s->count <= s->key_room);
    return RAVEL_OK;
}

ravel_status train_scores_take(void *user, const ravel_micro_batch *micro, const train_batch *batch,
                               const float *logprob, ravel_error *err) {
    (void)batch;
    return train_scores_keep(user, micro->step, logprob, micro->thd->local_tokens, err);
}

const float *train_scores_at(const train_scores *s, int64_t update, int64_t step) {
    RAVEL_ASSERT(s->count >= 0 && s->count <= s->key_room);
    for (const int64_t *key = s->keys; key < s->keys + 3 * s->count; key += 3)
        if (key[0] == update && key[1] == step) return s->values + key[2];
    return NULL;
}
