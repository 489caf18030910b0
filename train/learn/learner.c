/* Creating a learner. update.c runs the update. */
#include "train/learn/learner_internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

/* ---- size ----------------------------------------------------------------------------------------------- */

train_parts_options train_learner_parts_options(const train_learner_options *from, int inference) {
    return (train_parts_options){.model = from->model,
                                 .budget = from->budget,
                                 .plan = from->plan,
                                 .inference = inference,
                                 .flat_tokens = from->flat_tokens,
                                 .top = from->top,
                                 .shard = from->learn->shard == TRAIN_SHARD_PARAMS,
                                 .ep = from->learn->ep,
                                 .replay = !inference && from->replay,
                                 .router_scope = from->learn->router_scope,
                                 .router_aux = inference ? 0 : from->learn->router_aux,
                                 .allocator = from->allocator};
}

/* Bytes of train__part.run. */
static size_t run_bytes(const train_shares *shares, const train_kernels *kernels) {
    return (size_t)(train__max(shares->most_of_unit, 1) * ravel_dtype_bytes(kernels->types.grad));
}

/* Ranks that share the optimiser's states. */
static int32_t state_ranks(const train_learner_options *options, int32_t ranks) {
    return options->learn->shard == TRAIN_SHARD_NONE ? 1 : ranks;
}

/* The optimiser of one rank of a stage, and where reduce-scatter puts its runs. */
static ravel_status optimizer_bytes(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, int32_t stage, const train_kernels *kernels,
                                    int64_t *bytes, ravel_error *err) {
    int32_t ranks = state_ranks(options, ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP));
    RAVEL_ASSERT(ranks >= 1 && stage >= 0 && stage < train_layout_pp(layout));
    ravel_status status = RAVEL_OK;
    *bytes = 0;
    for (int32_t chunk = 0; chunk < layout->vpp && !status; chunk++) {
        train_params *params = NULL;
        train_shares *shares = NULL;
        train_slice part = train_layout_slice(layout, shape, chunk * train_layout_pp(layout) + stage, 0);
        part.ep = options->learn->ep;
        status = train_trained_params(shape, &part, &options->model->lora, options->allocator, &params, err);
        if (!status) status = train_shares_create(params, ranks, 0, options->allocator, &shares, err);
        if (!status) *bytes += train_optimizer_bytes(kernels, shares, (train_moments)options->learn->moments);
        int whole = options->learn->shard == TRAIN_SHARD_STATES || options->model->lora.rank; /* gradients are */
        if (!status && ranks > 1 && whole) *bytes += (int64_t)run_bytes(shares, kernels);
        train_shares_free(shares);
        train_params_free(params);
    }
    return status;
}

ravel_status train_learner_estimate(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, train_estimate *estimate, ravel_error *err) {
    const train_kernels *kernels;
    train_parts_options parts = train_learner_parts_options(options, 0);
    ravel_status status = train_choice_kernels(options->model, &kernels, err);
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

/* ---- create and free ------------------------------------------------------------------------------------- */

static ravel_status make_optimizer(train_learner *l, train__part *p, ravel_error *err) {
    RAVEL_ASSERT(p->model && !p->optimizer && !p->run);
    const train_learn_options *learn = l->options.learn;
    train_optimizer_options options;
    train_optimizer_options_default(&options);
    options.beta1 = learn->beta1;
    options.beta2 = learn->beta2;
    options.eps = learn->eps;
    options.decay = learn->weight_decay;
    options.moments = learn->moments;
    options.ranks = state_ranks(&l->options, l->ranks);
    options.rank = options.ranks > 1 ? l->rank : 0;
    ravel_status status = train_optimizer_create(p->model, &options, l->options.allocator, &p->optimizer, err);
    if (status) return status;
    p->shares = train_optimizer_shares(p->optimizer);
    RAVEL_ASSERT(p->shares->ranks == options.ranks && p->shares->rank == options.rank);
    if (options.ranks == 1 || train_model_shares(p->model)) return RAVEL_OK;
    return l->kernels->alloc(l->device, run_bytes(p->shares, l->kernels), &p->run, err);
}

/* The groups that the mesh does not have yet. Collective. */
static ravel_status join_groups(train_learner *l, ravel_error *err) {
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(l->mesh);
    int32_t pp = train_layout_pp(layout), stage = ravel_mesh_coords(l->mesh).pp;
    RAVEL_ASSERT(stage >= 0 && stage < pp);
    ravel_status status = RAVEL_OK;
    if (train_layout_tp(layout) * pp > 1) {
        status = ravel_mesh_add(l->mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP, err);
        l->sharers = ravel_mesh_comm(l->mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP);
    }
    if (!status && pp > 1 && l->shape.tied)
        status = ravel_comm_split(ravel_mesh_comm(l->mesh, RAVEL_AXIS_PP), stage == 0 || stage == pp - 1 ? 0 : -1,
                                  stage, &l->ends_host, err);
    if (!status && l->ends_host) status = train__parts_join(l->parts, l->ends_host, TRAIN__WIRE_PP, &l->ends, err);
    return status;
}

static size_t squares_count(const train_learner *l) {
    RAVEL_ASSERT(l->count >= 0 && l->count <= TRAIN_CHUNKS);
    return l->sharers ? (size_t)ravel_comm_size(l->sharers) * (size_t)l->count : 0;
}

static ravel_status make_states(train_learner *l, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < l->count && !status; i++) {
        l->part[i].model = train_parts_model(l->parts, i);
        status = make_optimizer(l, &l->part[i], err);
    }
    if (status || !squares_count(l)) return status;
    l->squares = ravel__calloc(l->options.allocator, squares_count(l), sizeof *l->squares);
    if (!l->squares) return ravel__no_memory(err, squares_count(l) * sizeof *l->squares, "sums of squares");
    return l->kernels->alloc(l->device, squares_count(l) * sizeof *l->squares, &l->square_block, err);
}

/* Every part has a model and an optimiser; groups and their buffers are there where the mesh needs them. */
static int learner_ok(const train_learner *l) {
    for (int32_t i = 0; i < l->count; i++)
        if (!l->part[i].model || !l->part[i].optimizer || !l->part[i].shares) return 0;
    return l->count >= 1 && l->count <= TRAIN_CHUNKS && l->kernels && l->device && !l->sharers == !l->squares;
}

ravel_status train_learner_create(const train_learner_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                  train_learner **learner, ravel_error *err) {
    train_learner *l = ravel__calloc(options->allocator, 1, sizeof *l);
    if (!l) return ravel__no_memory(err, sizeof *l, "a trainer");
    train_parts_options parts = train_learner_parts_options(options, 0);
    int32_t stops[TRAIN_STOPS], stop_count;
    train_stop_tokens(options->model, stops, &stop_count);
    l->options = *options;
    l->shape = *shape;
    l->mesh = mesh;
    l->world = ravel_mesh_world(mesh);
    l->replicas = ravel_mesh_comm(mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    l->ranks = ravel_comm_size(l->replicas);
    l->rank = ravel_comm_rank(l->replicas);
    RAVEL_ASSERT(l->ranks >= 1 && l->rank >= 0 && l->rank < l->ranks);
    l->run_counts = ravel__calloc(options->allocator, (size_t)l->ranks, sizeof *l->run_counts);
    if (!l->run_counts) {
        train_learner_free(l);
        return ravel__no_memory(err, sizeof *l, "a trainer");
    }
    l->eos = stops[0] < shape->vocab ? stops[0] : -1;
    ravel_status status = train_parts_create(&parts, shape, mesh, &l->parts, err);
    if (!status) {
        l->count = l->parts->count;
        l->kernels = l->parts->kernels;
        l->device = l->parts->device;
        l->replicas = l->parts->replicas;
        status = join_groups(l, err);
    }
    if (!status) status = ravel_agree(l->world, make_states(l, err), err);
    if (status) {
        train_learner_free(l);
        return status;
    }
    *learner = l;
    RAVEL_ASSERT(learner_ok(l));
    return RAVEL_OK;
}

void train_learner_disconnect(train_learner *l) {
    if (l) train_parts_disconnect(l->parts, NULL);
}

void train_learner_free(train_learner *l) {
    if (!l) return;
    train_learner_disconnect(l);
    for (int32_t i = 0; i < l->count; i++) {
        train__part *p = &l->part[i];
        if (p->run) l->kernels->release(l->device, p->run, run_bytes(p->shares, l->kernels));
        train_optimizer_free(p->optimizer);
    }
    if (l->square_block) l->kernels->release(l->device, l->square_block, squares_count(l) * sizeof *l->squares);
    ravel__release(l->options.allocator, l->squares, squares_count(l) * sizeof *l->squares);
    ravel__release(l->options.allocator, l->run_counts, (size_t)l->ranks * sizeof *l->run_counts);
    ravel_comm_free(l->ends_host);
    train_parts_free(l->parts);
    ravel__release(l->options.allocator, l, sizeof *l);
}

train_parts *train_learner_parts(train_learner *l) {
    return l->parts;
}
