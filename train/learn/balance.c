/* The load of experts over an update, and their load loss (train/model/model_load.c): counts of all ranks, parts and
 * micro-batches, which are integers, so the loss depends on no layout. */
#include "train/learn/balance.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <string.h>

static int64_t numbers(const train_parts *p) {
    return p->shape.layers * p->shape.experts;
}

ravel_status train__balance_open(train_parts *p, ravel_error *err) {
    p->aux = p->options.router_aux < 0 ? p->shape.router_aux : p->options.router_aux;
    if (!p->shape.experts && p->options.router_aux > 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "router-aux is %g; a model without experts has no load to balance",
                               p->options.router_aux);
    if (!p->shape.experts) return RAVEL_OK;
    TRAIN__TAKE(&p->arena, p->load, numbers(p));
    TRAIN__TAKE(&p->arena, p->balance, numbers(p));
    TRAIN__TAKE(&p->arena, p->counted, p->options.budget);
    if (p->options.replay)
        TRAIN__TAKE(&p->arena, p->routes, p->options.budget * p->shape.layers * p->shape.experts_active);
    return train__arena_status(&p->arena, "the load of experts", err);
}

/* The load of the whole model, the same on every rank. Of ranks that share layers the first one reports. */
static ravel_status sum_load(train_parts *p, ravel_error *err) {
    memset(p->load, 0, (size_t)numbers(p) * sizeof *p->load);
    for (int32_t i = 0; i < p->count && p->at.tp == 0; i++) {
        const train_slice *part = &train_model_base_params(p->models[i])->part;
        memcpy(p->load + part->first_layer * p->shape.experts, train_model_load(p->models[i]),
               (size_t)((part->last_layer - part->first_layer) * p->shape.experts) * sizeof *p->load);
    }
    return ravel_comm_allreduce(ravel_mesh_world(p->mesh), p->load, p->load, numbers(p), RAVEL_I64, RAVEL_SUM, err);
}

static void describe(train_parts *p) {
    train_router_figures *f = &p->router;
    int64_t experts = p->shape.experts, layers = 0, unused = 0;
    double sum = 0;
    for (int64_t layer = 0; layer < p->shape.layers; layer++) {
        int64_t all = 0, most = 0;
        for (int64_t e = 0; e < experts; e++) {
            int64_t n = p->load[layer * experts + e];
            all += n;
            most = train__max(most, n);
        }
        if (!all) continue;
        for (int64_t e = 0; e < experts; e++) unused += p->load[layer * experts + e] == 0;
        double ratio = (double)most * (double)experts / (double)all;
        sum += ratio;
        if (ratio > f->load_worst) f->load_worst = ratio;
        layers++;
    }
    f->layers = layers;
    if (layers) f->load_mean = sum / (double)layers;
    if (layers) f->unused = (double)unused / (double)(layers * experts);
}

ravel_status train__balance_count(train_parts *p, ravel_error *err) {
    ravel_status status = sum_load(p, err);
    if (!status) describe(p);
    return status;
}

/* Over one group of layers: balance = coef * experts * f / N, where f = load / N; `groups` of them share the
 * coefficient. */
static void balance_layers(const train_parts *p, int64_t first, int64_t last, double groups) {
    int64_t experts = p->shape.experts, all = 0;
    for (int64_t i = first * experts; i < last * experts; i++) all += p->load[i];
    double tokens = (double)all / (double)p->shape.experts_active;
    for (int64_t e = 0; e < experts; e++) {
        int64_t load = 0;
        for (int64_t layer = first; layer < last; layer++) load += p->load[layer * experts + e];
        float value = all ? (float)(p->aux / groups * (double)experts * (double)load / (tokens * tokens)) : 0;
        for (int64_t layer = first; layer < last; layer++) p->balance[layer * experts + e] = value;
    }
}

ravel_status train__balance_set(train_parts *p, ravel_error *err) {
    ravel_status status = train__balance_count(p, err);
    if (status) return status;
    int64_t layers = p->shape.layers;
    if (p->options.router_scope == TRAIN_ROUTER_MODEL) balance_layers(p, 0, layers, 1);
    for (int64_t i = 0; i < layers && p->options.router_scope == TRAIN_ROUTER_LAYER; i++)
        balance_layers(p, i, i + 1, (double)train__max(p->router.layers, 1));
    for (int32_t i = 0; i < p->count; i++) {
        const train_slice *part = &train_model_base_params(p->models[i])->part;
        train_model_set_balance(p->models[i], p->balance + part->first_layer * p->shape.experts);
    }
    return RAVEL_OK;
}

ravel_status train__balance_end(train_parts *p, ravel_error *err) {
    double sum = 0, part;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < p->count && !status; i++) {
        status = train_model_balance_sum(p->models[i], &part, err);
        sum += part;
    }
    status = ravel_agree(ravel_mesh_world(p->mesh), status, err);
    if (!status) status = ravel_comm_allreduce(ravel_mesh_world(p->mesh), &sum, &sum, 1, RAVEL_F64, RAVEL_SUM, err);
    RAVEL_ASSERT(p->aux > 0);
    p->router.loss = sum / p->aux;
    return status;
}

const train_router_figures *train_parts_router(const train_parts *p) {
    return &p->router;
}
