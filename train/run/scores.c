#include "train/run/scores.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <string.h>

void train_scores_clear(train_scores *s) {
    s->used = s->count = 0;
}

void train_scores_free(train_scores *s) {
    train__release(NULL, s->values, (size_t)s->room * sizeof *s->values);
    train__release(NULL, s->keys, (size_t)s->key_room * 2 * sizeof *s->keys);
    *s = (train_scores){0};
}

ravel_status train_scores_add(train_scores *s, int64_t key, const float *values, int64_t count, ravel_error *err) {
    int64_t need = s->used + count;
    TRAIN_ASSERT(count >= 0 && (count == 0 || values) && !train_scores_at(s, key));
    float *grown = train__grown(NULL, s->values, &s->room, s->used, need, sizeof *grown);
    if (!grown) return train__no_memory(err, (size_t)need * sizeof *grown, "log-probs");
    s->values = grown;
    int64_t *keys = train__grown(NULL, s->keys, &s->key_room, s->count, s->count + 1, 2 * sizeof *keys);
    if (!keys) return train__no_memory(err, (size_t)(s->count + 1) * 2 * sizeof *keys, "log-probs");
    s->keys = keys;
    memcpy(s->values + s->used, values, (size_t)count * sizeof *values);
    s->keys[2 * s->count] = key;
    s->keys[2 * s->count + 1] = s->used;
    s->count++;
    s->used += count;
    TRAIN_ASSERT(s->used <= s->room && s->count <= s->key_room);
    return RAVEL_OK;
}

const float *train_scores_at(const train_scores *s, int64_t key) {
    TRAIN_ASSERT(s->count >= 0 && s->count <= s->key_room);
    for (int64_t i = 0; i < s->count; i++)
        if (s->keys[2 * i] == key) return s->values + s->keys[2 * i + 1];
    return NULL;
}
