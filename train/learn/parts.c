#include "train/learn/parts_internal.h"

#include "train/kernels/host.h"
#include "train/learn/pipeline.h"
#include "train/model/hf.h"

#include <string.h>

enum { SCORING_FLIGHTS = 2 }; /* one is computed while the other is sent */

/* ---- size ----------------------------------------------------------------------------------------------- */

static int32_t flights_of(const train_parts_options *from, const ravel_mesh_layout *layout, int32_t stage,
                          int32_t chunk) {
    int32_t pp = train_layout_pp(layout);
    if (from->inference) return pp > 1 ? SCORING_FLIGHTS : 1;
    return (int32_t)train__max(train_pipeline_flights(pp, layout->vpp, stage, chunk), pp > 1 ? SCORING_FLIGHTS : 1);
}

int32_t train_parts_widest(const ravel_plan_options *plan, const ravel_mesh_layout *layout) {
    int32_t widths[RAVEL_FIT_WIDTHS], count = plan ? ravel_plan_widths(plan, widths) : 0;
    return count ? widths[count - 1] : train_layout_cp(layout);
}

static void model_options(const train_parts_options *from, const ravel_shape *shape, const ravel_mesh_layout *layout,
                          int32_t stage, int32_t chunk, train_model_options *options) {
    train_slice part = train_layout_slice(layout, shape, chunk * train_layout_pp(layout) + stage, 0);
    train_model_options_default(options);
    options->budget = from->budget;
    options->cp_ranks = train_parts_widest(from->plan, layout);
    options->longest = from->budget * options->cp_ranks;
    options->recompute = from->model->recompute;
    options->inference = from->inference;
    options->first_layer = part.first_layer;
    options->last_layer = part.last_layer;
    options->in_flight = flights_of(from, layout, stage, chunk);
    options->tp_ranks = train_layout_tp(layout);
    options->sequence = from->model->sequence;
    options->peers = layout->ranks;
    if (from->shard) options->shard_ranks = ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    options->allocator = from->allocator;
}

ravel_status train_parts_memory(const train_parts_options *from, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int32_t stage, train_memory *memory,
                                ravel_error *err) {
    const train_kernels *kernels;
    ravel_status status = train_kernels_find(from->model->kernels, &kernels, err);
    *memory = (train_memory){0};
    for (int32_t chunk = 0; chunk < layout->vpp && !status; chunk++) {
        train_model_options options;
        train_memory part;
        model_options(from, shape, layout, stage, chunk, &options);
        status = train_model_memory(kernels, from->model->threads, shape, &options, &part, err);
        for (size_t i = 0; i < sizeof part / sizeof(int64_t) && !status; i++)
            ((int64_t *)(void *)memory)[i] += ((const int64_t *)(const void *)&part)[i];
    }
    return status;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

static ravel_status set_weights(train_model *model, const train_model_choice *choice, ravel_error *err) {
    train_array weights = train_model_array(model);
    if (choice->model) return train_tensors_load(train_model_params(model), &weights, choice->model, err);
    return train_model_init(model, choice->init_seed, choice->init_std, err);
}

ravel_comm *train__parts_replicas(const train_parts *p) {
    return ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
}

static ravel_status make_model(train_parts *p, int32_t chunk, ravel_error *err) {
    train_model_options options;
    model_options(&p->options, &p->shape, &p->layout, p->at.pp, chunk, &options);
    p->flights[chunk] = options.in_flight;
    if (options.tp_ranks > 1) options.tp = ravel_mesh_comm(p->mesh, RAVEL_AXIS_TP);
    if (options.cp_ranks > 1 && !p->width_count) options.cp = ravel_mesh_comm(p->mesh, RAVEL_AXIS_CP);
    if (options.shard_ranks > 1) options.shard = train__parts_replicas(p);
    if (train_layout_pp(&p->layout) > 1) {
        options.progress = train__parts_progress;
        options.progress_user = p;
    }
    ravel_status status = train_model_create(p->kernels, p->device, &p->shape, &options, &p->models[chunk], err);
    return status ? status : set_weights(p->models[chunk], p->options.model, err);
}

/* Groups begin at multiples of their width, so for each width a rank is in one group. Collective. */
static ravel_status join_rings(train_parts *p, ravel_error *err) {
    ravel_comm *pool = ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    int32_t rank = ravel_comm_rank(pool);
    ravel_status status = RAVEL_OK;
    if (p->options.plan) p->width_count = ravel_plan_widths(p->options.plan, p->widths);
    for (int32_t i = 0; i < p->width_count && !status; i++)
        if (p->widths[i] > 1) status = ravel_comm_split(pool, rank / p->widths[i], rank, &p->rings[i], err);
    return status;
}

static ravel_status take_arrays(train_parts *p, ravel_error *err) {
    size_t count = (size_t)p->options.budget;
    p->cu = train__calloc(p->options.allocator, count + 1, sizeof *p->cu);
    p->logprob = train__calloc(p->options.allocator, count, sizeof *p->logprob);
    return p->cu && p->logprob ? RAVEL_OK : train__no_memory(err, count * 8, "batches");
}

ravel_status train_parts_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                train_parts **parts, ravel_error *err) {
    train_parts *p = train__calloc(options->allocator, 1, sizeof *p);
    if (!p) return train__no_memory(err, sizeof *p, "a model");
    p->options = *options;
    p->shape = *shape;
    p->mesh = mesh;
    p->layout = *ravel_mesh_get_layout(mesh);
    p->at = ravel_mesh_coords(mesh);
    p->pp = ravel_mesh_comm(mesh, RAVEL_AXIS_PP);
    p->count = p->layout.vpp;
    ravel_status status = train_device_open(options->model, options->allocator, &p->kernels, &p->device, err);
    if (!status) status = take_arrays(p, err);
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (!status) status = join_rings(p, err);
    for (int32_t chunk = 0; chunk < p->count && !status; chunk++) status = make_model(p, chunk, err);
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (status) {
        train_parts_free(p);
        return status;
    }
    *parts = p;
    return RAVEL_OK;
}

void train_parts_free(train_parts *p) {
    if (!p) return;
    for (int32_t chunk = 0; chunk < p->count; chunk++) train_model_free(p->models[chunk]);
    for (int32_t i = 0; i < p->width_count; i++) ravel_comm_free(p->rings[i]);
    if (p->device) p->kernels->close(p->device);
    size_t count = (size_t)p->options.budget;
    train__release(p->options.allocator, p->cu, (count + 1) * sizeof *p->cu);
    train__release(p->options.allocator, p->logprob, count * sizeof *p->logprob);
    train__release(p->options.allocator, p, sizeof *p);
}

int32_t train_parts_count(const train_parts *p) {
    return p->count;
}

train_model *train_parts_model(const train_parts *p, int32_t chunk) {
    return p->models[chunk];
}

int32_t train_parts_number(const train_parts *p, int32_t chunk) {
    return chunk * train_layout_pp(&p->layout) + p->at.pp;
}

const train_kernels *train_parts_kernels(const train_parts *p) {
    return p->kernels;
}

train_device *train_parts_device(const train_parts *p) {
    return p->device;
}

ravel_mesh *train_parts_mesh(const train_parts *p) {
    return p->mesh;
}

int train_parts_is_last(const train_parts *p) {
    return train_parts_number(p, p->count - 1) == train_layout_parts(&p->layout) - 1;
}
