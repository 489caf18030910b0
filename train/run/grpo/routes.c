/* Router replay: the experts that tokens go to when they are learnt. The generator's come with the samples, as a field
 * of the feed (ravel/routes.h); those of the pass that scored old log-probs stay where they were taken, in the rows of
 * each part. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <ravel/routes.h>

#include <string.h>

static const train_slice *part_of(const train__grpo *g, int32_t chunk) {
    return &train_model_base_params(train_parts_model(train_learner_parts(g->learner), chunk))->part;
}

ravel_status train__grpo_routes_take(void *user, const ravel_micro_batch *micro, const int16_t *routes, int64_t rows,
                                     ravel_error *err) {
    train__grpo *g = user;
    train__grpo_routes *r = &g->routes;
    const train_slice *part = part_of(g, micro->chunk);
    int64_t count = rows * (part->last_layer - part->first_layer) * g->shape.experts_active;
    RAVEL_ASSERT(count > 0 && routes);
    int16_t *grown = train__grown(NULL, r->rows, &r->room, r->used, r->used + count, sizeof *grown);
    if (!grown) return ravel__no_memory(err, (size_t)(r->used + count) * sizeof *grown, "routes");
    r->rows = grown;
    int64_t *keys = train__grown(NULL, r->keys, &r->key_room, r->count, r->count + 1, 4 * sizeof *keys);
    if (!keys) return ravel__no_memory(err, (size_t)(r->count + 1) * 4 * sizeof *keys, "routes");
    r->keys = keys;
    memcpy(r->rows + r->used, routes, (size_t)count * sizeof *routes);
    memcpy(r->keys + 4 * r->count++, (int64_t[]){g->old.update, micro->chunk, micro->step, r->used},
           4 * sizeof *r->keys);
    r->used += count;
    return RAVEL_OK;
}

static void give_first(const train__grpo *g, const ravel_micro_batch *micro, train_batch *batch) {
    const train__grpo_routes *r = &g->routes;
    const train_slice *part = part_of(g, micro->chunk);
    for (const int64_t *key = r->keys; key < r->keys + 4 * r->count; key += 4) {
        if (key[0] != g->update || key[1] != micro->chunk || key[2] != micro->step) continue;
        batch->routes = r->rows + key[3];
        batch->routes_layer = part->first_layer;
        batch->routes_stride = (part->last_layer - part->first_layer) * g->shape.experts_active;
    }
}

void train__grpo_routes_give(const train__grpo *g, const ravel_micro_batch *micro, train_batch *batch) {
    if (micro->filler) return;
    if (g->config->grpo.replay == TRAIN_REPLAY_FIRST) give_first(g, micro, batch);
    if (g->config->grpo.replay != TRAIN_REPLAY_ROLLOUT) return;
    batch->routes = micro->thd->fields[ravel_feed_find(g->feed, RAVEL_ROUTES_FIELD)];
    batch->routes_stride = g->batch.route_width;
    RAVEL_ASSERT(batch->routes && batch->routes_stride > 0);
}

void train__grpo_routes_free(train__grpo_routes *r) {
    ravel__release(NULL, r->rows, (size_t)r->room * sizeof *r->rows);
    ravel__release(NULL, r->keys, (size_t)r->key_room * 4 * sizeof *r->keys);
    *r = (train__grpo_routes){0};
}
