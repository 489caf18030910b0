/* Creating a learner. update.c runs the update. */
#include "train/learn/learner_internal.h"

#include "train/kernels/host.h"

#include <ravel/exchange.h>
#include <ravel/order.h>

/* ---- size ----------------------------------------------------------------------------------------------- */

static train_parts_options parts_options(const train_learner_options *from) {
    return (train_parts_options){.model = from->model, .budget = from->budget, .allocator = from->allocator};
}

int64_t train__share_begin(int64_t elements, int32_t ranks, int32_t rank) {
    int64_t spans = (elements + TRAIN_SPAN - 1) / TRAIN_SPAN;
    return train__min(ravel_share(spans, ranks, rank) * TRAIN_SPAN, elements);
}

/* The optimiser of one rank of a stage, and where its share of the gradients is put. */
static ravel_status optimizer_bytes(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, int32_t stage, const train_kernels *kernels,
                                    int64_t *bytes, ravel_error *err) {
    int32_t ranks = ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    ravel_status status = RAVEL_OK;
    *bytes = 0;
    for (int32_t chunk = 0; chunk < layout->vpp && !status; chunk++) {
        train_params *params = NULL;
        train_slice part = train_layout_slice(layout, shape, chunk * train_layout_pp(layout) + stage, 0);
        status = train_params_create(shape, &part, options->allocator, &params, err);
        if (status) break;
        int64_t elements = params->elements, share = elements;
        train_params_free(params);
        if (options->learn->shard && ranks > 1) {
            share = (elements + (int64_t)ranks * TRAIN_SPAN - 1) / ((int64_t)ranks * TRAIN_SPAN) *
                    TRAIN_SPAN; /* the largest */
            share = train__min(share, elements);
            *bytes += share * ravel_dtype_bytes(kernels->types.grad);
        }
        *bytes += train_optimizer_bytes(kernels, share, elements);
    }
    return status;
}

ravel_status train_learner_estimate(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, train_estimate *estimate, ravel_error *err) {
    const train_kernels *kernels;
    train_parts_options parts = parts_options(options);
    ravel_status status = train_kernels_find(options->model->kernels, &kernels, err);
    *estimate = (train_estimate){0};
    for (int32_t stage = 0; stage < train_layout_pp(layout) && !status; stage++) {
        train_estimate e = {.stage = stage};
        status = train_parts_memory(&parts, shape, layout, stage, &e.model, err);
        if (!status) status = optimizer_bytes(options, shape, layout, stage, kernels, &e.optimizer, err);
        e.total = e.model.total + e.optimizer;
        if (!status && e.total > estimate->total) *estimate = e;
    }
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static size_t share_bytes(const train_learner *l, const train__shares *s) {
    return (size_t)(train__max(s->counts[l->rank], 1) * ravel_dtype_bytes(l->kernels->types.grad));
}

static ravel_status make_shares(train_learner *l, train__shares *s, ravel_error *err) {
    int64_t elements = train_model_params(s->model)->elements;
    s->counts = train__calloc(l->options.allocator, (size_t)l->ranks, sizeof *s->counts);
    if (!s->counts) return train__no_memory(err, (size_t)l->ranks * sizeof *s->counts, "shares of the optimiser");
    for (int32_t r = 0; r < l->ranks; r++) s->counts[r] = elements;
    if (!l->options.learn->shard || l->ranks == 1) return RAVEL_OK;
    for (int32_t r = 0; r < l->ranks; r++)
        s->counts[r] = train__share_begin(elements, l->ranks, r + 1) - train__share_begin(elements, l->ranks, r);
    s->first = train__share_begin(elements, l->ranks, l->rank);
    return l->kernels->alloc(l->device, share_bytes(l, s), &s->share, err);
}

static ravel_status make_optimizer(train_learner *l, train__shares *s, ravel_error *err) {
    const train_learn_options *learn = l->options.learn;
    train_optimizer_options options;
    train_optimizer_options_default(&options);
    options.beta1 = learn->beta1;
    options.beta2 = learn->beta2;
    options.eps = learn->eps;
    options.decay = learn->weight_decay;
    options.first = s->first;
    options.count = s->counts[l->rank] > 0 ? s->counts[l->rank] : -1; /* a small part is shared by some of them */
    return train_optimizer_create(s->model, &options, l->options.allocator, &s->optimizer, err);
}

/* The groups that the mesh does not have yet. Collective. */
static ravel_status join_groups(train_learner *l, ravel_error *err) {
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(l->mesh);
    int32_t pp = train_layout_pp(layout), stage = ravel_mesh_coords(l->mesh).pp;
    ravel_status status = RAVEL_OK;
    if (train_layout_tp(layout) * pp > 1) {
        status = ravel_mesh_add(l->mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP, err);
        l->sharers = ravel_mesh_comm(l->mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP);
    }
    if (!status && pp > 1 && l->shape.tied)
        status = ravel_comm_split(ravel_mesh_comm(l->mesh, RAVEL_AXIS_PP), stage == 0 || stage == pp - 1 ? 0 : -1,
                                  stage, &l->ends, err);
    return status;
}

static size_t squares_count(const train_learner *l) {
    return l->sharers ? (size_t)ravel_comm_size(l->sharers) * (size_t)l->count : 0;
}

/* How many sums of squares each rank's share has. */
static ravel_status count_pieces(train_learner *l, train__shares *s, ravel_error *err) {
    int64_t first = 0;
    if (!s->share) return RAVEL_OK;
    s->pieces = train__calloc(l->options.allocator, (size_t)l->ranks, sizeof *s->pieces);
    if (!s->pieces) return train__no_memory(err, (size_t)l->ranks * sizeof *s->pieces, "shares of the optimiser");
    for (int32_t r = 0; r < l->ranks; first += s->counts[r++])
        s->pieces[r] =
            train_optimizer_pieces(s->optimizer, first + s->counts[r]) - train_optimizer_pieces(s->optimizer, first);
    return RAVEL_OK;
}

static ravel_status make_states(train_learner *l, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < l->count && !status; i++) {
        train__shares *s = &l->shares[i];
        s->model = train_parts_model(l->parts, i);
        status = make_shares(l, s, err);
        if (!status) status = make_optimizer(l, s, err);
        if (!status) status = count_pieces(l, s, err);
    }
    if (status || !squares_count(l)) return status;
    l->squares = train__calloc(l->options.allocator, squares_count(l), sizeof *l->squares);
    return l->squares ? RAVEL_OK : train__no_memory(err, squares_count(l) * sizeof *l->squares, "sums of squares");
}

ravel_status train_learner_create(const train_learner_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                  train_learner **learner, ravel_error *err) {
    train_learner *l = train__calloc(options->allocator, 1, sizeof *l);
    if (!l) return train__no_memory(err, sizeof *l, "a trainer");
    train_parts_options parts = parts_options(options);
    int32_t stops[TRAIN_STOPS], stop_count;
    train_stop_tokens(options->model, stops, &stop_count);
    l->options = *options;
    l->shape = *shape;
    l->mesh = mesh;
    l->world = ravel_mesh_world(mesh);
    l->replicas = ravel_mesh_comm(mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    l->ranks = ravel_comm_size(l->replicas);
    l->rank = ravel_comm_rank(l->replicas);
    l->eos = stops[0] < shape->vocab ? stops[0] : -1;
    ravel_status status = train_parts_create(&parts, shape, mesh, &l->parts, err);
    if (!status) {
        l->count = train_parts_count(l->parts);
        l->kernels = train_parts_kernels(l->parts);
        l->device = train_parts_device(l->parts);
        status = join_groups(l, err);
    }
    if (!status) status = ravel_agree(l->world, make_states(l, err), err);
    if (status) {
        train_learner_free(l);
        return status;
    }
    *learner = l;
    return RAVEL_OK;
}

void train_learner_free(train_learner *l) {
    if (!l) return;
    for (int32_t i = 0; i < l->count; i++) {
        train__shares *s = &l->shares[i];
        train_optimizer_free(s->optimizer);
        if (s->share) l->kernels->release(l->device, s->share, share_bytes(l, s));
        train__release(l->options.allocator, s->counts, (size_t)l->ranks * sizeof *s->counts);
        train__release(l->options.allocator, s->pieces, (size_t)l->ranks * sizeof *s->pieces);
    }
    train__release(l->options.allocator, l->squares, squares_count(l) * sizeof *l->squares);
    if (l->ends) ravel_comm_free(l->ends);
    train_parts_free(l->parts);
    train__release(l->options.allocator, l, sizeof *l);
}

train_parts *train_learner_parts(train_learner *l) {
    return l->parts;
}

train_model *train_learner_model(train_learner *l) {
    return train_parts_model(l->parts, 0);
}
