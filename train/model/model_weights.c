/* Weights and gradients of a model as arrays, sums of gradients over ranks, and what a model tells about itself. */
#include "train/model/model_internal.h"

#include "base/assert.h"

#include <ravel/flops.h>

const train_params *train_model_params(const train_model *m) {
    return m->adapter ? m->adapter : m->params;
}

const train_params *train_model_base_params(const train_model *m) {
    return m->params;
}

train_array train_model_base_array(train_model *m) {
    if (!m->adapter) return train_model_array(m);
    if (train__model_sharded(m)) train__units_forget(&m->units);
    return (train_array){m->net.kernels, m->net.device, m->frozen, m->net.types.weight, m->units.shares};
}

void train_model_set_frozen(train_model *m, train_frozen weights) {
    RAVEL_ASSERT((m->adapter || m->options.inference) && m->options.mapped && (weights.flat || weights.places));
    m->net.weights = weights.flat;
    m->net.places = weights.places;
}

train_frozen train_model_frozen(const train_model *m) {
    RAVEL_ASSERT(m->adapter && !train__model_sharded(m));
    return (train_frozen){m->net.weights, m->net.places};
}

void train_model_set_adapter(train_model *m, int on) {
    if (m->adapter) m->net.adapter.weights = on ? m->weights : NULL;
}

const train_kernels *train_model_kernels(const train_model *m) {
    return m->net.kernels;
}

train_device *train_model_device(const train_model *m) {
    return m->net.device;
}

void *train_model_weights(train_model *m) {
    return m->weights;
}

void *train_model_grads(train_model *m) {
    return m->grads;
}

void train_model_wait(train_model *m) {
    train__units_wait(&m->units);
}

const train__port *train_model_port(const train_model *m) {
    return &m->port;
}

train__parcel train_model_stage_parcel(const train_model *m, int64_t tokens, int32_t place) {
    RAVEL_ASSERT(place >= 0 && place <= 2 * m->options.in_flight && tokens <= m->sizes.tokens);
    int32_t first = m->cp_most > 1 ? TRAIN__SHIFT_PLACES : 0;
    return (train__parcel){
        .count = train_model_stage_elements(m, tokens), .dtype = m->net.types.activation, .place = first + place};
}

train_array train_model_array(train_model *m) {
    if (train__model_sharded(m) && !m->adapter) train__units_forget(&m->units);
    return (train_array){m->net.kernels, m->net.device, m->weights, m->net.types.weight, train_model_shares(m)};
}

train_array train_model_grad_array(train_model *m) {
    return (train_array){m->net.kernels, m->net.device, m->grads, m->net.types.grad, train_model_shares(m)};
}

train_update *train_model_update(train_model *m) {
    return m->update;
}

void *train__model_grad(const train_model *m, int64_t offset) {
    if (offset < 0) return NULL;
    RAVEL_ASSERT(offset < m->params->elements && !m->options.inference);
    if (m->adapter) return m->unused;
    return train__model_sharded(m) ? train__units_grad(&m->units, offset)
                                   : train__at(m->grads, m->net.types.grad, offset);
}

train_graph_figures train_model_graphs(const train_model *m) {
    const train__graphs *g = &m->graphs;
    return (train_graph_figures){g->called, g->recorded, g->launched, g->dropped};
}

double train_model_waited(const train_model *m) {
    return m->units.link.seconds + m->units.experts.seconds;
}

const train_shares *train_model_shares(const train_model *m) {
    return m->adapter ? NULL : m->units.shares;
}

ravel_status train_model_finish_grads(train_model *m, ravel_error *err) {
    train__units_finish(&m->units);
    ravel_status status = train__link_status(&m->units.link, err);
    return status ? status : train__link_status(&m->units.experts, err);
}

ravel_status train_model_sum_grads(train_model *m, const train_shares *shares, ravel_error *err) {
    train_array grads = train_model_grad_array(m);
    const train_params *params = train_model_params(m);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = params->tensors + i;
        train__link *link = t->copies == m->tp.ranks ? &m->tp : &m->kv;
        int64_t begin = t->offset, end = begin + t->count;
        int partial = t->partial || (m->net.sequence && t->copies == m->tp.ranks); /* norms of a share of the rows */
        if (!partial || (shares && !train_shares_cut(shares, shares->rank, &begin, &end))) continue;
        RAVEL_ASSERT(!shares || shares->params->elements == params->elements);
        train__link_sum(link, train_array_at(&grads, begin), end - begin, grads.dtype);
    }
    ravel_status status = train__link_status(&m->tp, err);
    return status ? status : train__link_status(&m->kv, err);
}

ravel_status train_model_read(train_model *m, train_update *update, ravel_error *err) {
    m->net.kernels->download(m->net.device, update, m->update, sizeof *update);
    return m->net.kernels->sync(m->net.device, err);
}

train_waits train_model_waits(const train_model *m) {
    train_waits waits = {.tp = m->tp.seconds + m->kv.seconds, .ep = m->exchange.link.seconds};
    for (int i = 0; i < m->options.in_flight; i++) waits.cp += m->flights[i].cp.seconds;
    return waits;
}

double train_model_flops(const ravel_shape *shape, int64_t adapter, int64_t samples, const int64_t *lengths,
                         int64_t scored) {
    ravel_lengths_sum sum = {.samples = 0};
    ravel_flops flops = {.model = {0, 0}};
    ravel_lengths_add(&sum, lengths, samples);
    (void)ravel_flops_adapted(shape, &sum, scored, adapter, RAVEL_RECOMPUTE_NONE, &flops, NULL);
    return ravel_flops_real(flops.model);
}
