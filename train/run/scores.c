#include "train/run/scores.h"

#include "train/kernels/host.h"

#include <string.h>

/* Room for `need` elements of `each` bytes, twice as many where it has to grow. */
static ravel_status grow(void **data, int64_t *room, int64_t used, int64_t need, size_t each, ravel_error *err) {
    if (need <= *room) return RAVEL_OK;
    void *grown = train__alloc(NULL, (size_t)(2 * need) * each);
    if (!grown) return train__no_memory(err, (size_t)(2 * need) * each, "log-probs");
    if (used) memcpy(grown, *data, (size_t)used * each);
    train__release(NULL, *data, (size_t)*room * each);
    *data = grown;
    *room = 2 * need;
    return RAVEL_OK;
}

void train_scores_clear(train_scores *s) {
    s->used = s->count = 0;
}

void train_scores_free(train_scores *s) {
    train__release(NULL, s->values, (size_t)s->room * sizeof *s->values);
    train__release(NULL, s->keys, (size_t)s->key_room * 2 * sizeof *s->keys);
    *s = (train_scores){0};
}

ravel_status train_scores_add(train_scores *s, int64_t key, const float *values, int64_t count, ravel_error *err) {
    void *data = s->values, *keys = s->keys;
    ravel_status status = grow(&data, &s->room, s->used, s->used + count, sizeof *s->values, err);
    s->values = data;
    if (!status) status = grow(&keys, &s->key_room, s->count, s->count + 1, 2 * sizeof *s->keys, err);
    s->keys = keys;
    if (status) return status;
    memcpy(s->values + s->used, values, (size_t)count * sizeof *values);
    s->keys[2 * s->count] = key;
    s->keys[2 * s->count + 1] = s->used;
    s->count++;
    s->used += count;
    return RAVEL_OK;
}

const float *train_scores_at(const train_scores *s, int64_t key) {
    for (int64_t i = 0; i < s->count; i++)
        if (s->keys[2 * i] == key) return s->values + s->keys[2 * i + 1];
    return NULL;
}
