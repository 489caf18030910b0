#include "train/learn/parts_internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/learn/balance.h"
#include "train/learn/pipeline.h"
#include "train/model/hf/lora.h"

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

/* Frozen weights are mapped where they can be (base.h), unless ranks share them out. */
static int maps(const train_parts_options *from, const ravel_shape *shape, const train_slice *part) {
    const train_kernels *kernels;
    train_params *params = NULL;
    if (!(from->model->lora.rank || from->inference) || !from->model->model || from->shard) return 0;
    if (train_choice_kernels(from->model, &kernels, NULL)) return 0;
    int can =
        !train_params_create(shape, part, NULL, &params, NULL) && train_base_maps(kernels, params, from->model->model);
    train_params_free(params);
    return can;
}

static void model_options(const train_parts_options *from, const ravel_shape *shape, const ravel_mesh_layout *layout,
                          int32_t stage, int32_t chunk, train_model_options *options) {
    train_slice part = train_layout_slice(layout, shape, chunk * train_layout_pp(layout) + stage, 0);
    train_model_options_default(options);
    options->budget = from->budget;
    options->cp_ranks = train_parts_widest(from->plan, layout);
    options->longest = from->budget * options->cp_ranks;
    options->recompute = from->model->recompute;
    options->graphs = from->model->graphs;
    options->inference = from->inference;
    options->top = from->top;
    options->flat_tokens = from->flat_tokens;
    options->tree_attention = from->model->tree_attention;
    options->lora = from->model->lora;
    options->first_layer = part.first_layer;
    options->last_layer = part.last_layer;
    options->in_flight = flights_of(from, layout, stage, chunk);
    options->tp_ranks = train_layout_tp(layout);
    options->sequence = from->model->sequence;
    options->peers = layout->ranks;
    options->replay = from->replay;
    options->ep_ranks = from->ep;
    options->load_loss = !from->inference && (from->router_aux < 0 ? shape->router_aux : from->router_aux) > 0;
    if (from->shard) options->shard_ranks = ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    options->allocator = from->allocator;
    options->mapped = maps(from, shape, &part);
    RAVEL_ASSERT(options->first_layer < options->last_layer && options->in_flight <= TRAIN_FLIGHTS);
}

ravel_status train_parts_memory(const train_parts_options *from, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int32_t stage, train_memory *memory,
                                ravel_error *err) {
    const train_kernels *kernels;
    ravel_status status = train_layout_check_ep(layout, shape, from->ep, err);
    if (!status) status = train_choice_kernels(from->model, &kernels, err);
    *memory = (train_memory){0};
    for (int32_t chunk = 0; chunk < layout->vpp && !status; chunk++) {
        train_model_options options;
        train_memory part;
        model_options(from, shape, layout, stage, chunk, &options);
        status = train_model_memory(kernels, from->model->threads, shape, &options, &part, err);
        _Static_assert(sizeof part % sizeof(int64_t) == 0, "counts alone");
        for (size_t i = 0; i < sizeof part / sizeof(int64_t) && !status; i++)
            ((int64_t *)(void *)memory)[i] += ((const int64_t *)(const void *)&part)[i];
    }
    return status;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

static ravel_status set_base(train_parts *p, int32_t chunk, int mapped, ravel_error *err) {
    train_model *model = p->models[chunk];
    const train_model_choice *choice = p->options.model;
    const train_params *own = train_model_base_params(model);
    if (!mapped) {
        train_array base = train_model_base_array(model);
        return choice->model ? train_tensors_load(own, &base, choice->model, err)
                             : train_params_init(own, &base, choice->init_seed, choice->init_std, err);
    }
    ravel_status status = train_base_open(&p->bases[chunk], p->kernels, p->device, own, choice->model, 0, 0, err);
    if (!status) train_model_set_frozen(model, p->bases[chunk].frozen);
    return status;
}

static ravel_status set_weights(train_parts *p, int32_t chunk, int mapped, ravel_error *err) {
    train_model *model = p->models[chunk];
    const train_model_choice *choice = p->options.model;
    const train_params *trained = train_model_params(model);
    train_array adapter = train_model_array(model);
    ravel_status status = set_base(p, chunk, mapped, err);
    if (status || !trained->lora.rank) return status;
    if (choice->adapter) return train_adapter_load(trained, &adapter, choice->adapter, err);
    return train_params_init(trained, &adapter, choice->init_seed, 0, err);
}

static ravel_status make_model(train_parts *p, int32_t chunk, ravel_error *err) {
    RAVEL_ASSERT(chunk >= 0 && chunk < p->count && !p->models[chunk]);
    train_model_options options;
    model_options(&p->options, &p->shape, &p->layout, p->at.pp, chunk, &options);
    p->flights[chunk] = options.in_flight;
    options.wires = p->wires;
    if (options.tp_ranks > 1) options.tp = p->tp;
    if (options.cp_ranks > 1 && !p->width_count) options.cp = p->cp;
    if (options.shard_ranks > 1) options.shard = p->replicas;
    options.ep = p->ep;
    if (options.shard_ranks > 1) options.expert_shard = p->experts;
    if (train_layout_pp(&p->layout) > 1) {
        options.progress = train__parts_progress;
        options.progress_user = p;
    }
    ravel_status status = train_model_create(p->kernels, p->device, &p->shape, &options, &p->models[chunk], err);
    return status ? status : set_weights(p, chunk, options.mapped, err);
}

/* Groups begin at multiples of their width, so for each width a rank is in one group. Collective. */
static ravel_status join_rings(train_parts *p, ravel_error *err) {
    ravel_comm *pool = ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    int32_t rank = ravel_comm_rank(pool);
    ravel_status status = RAVEL_OK;
    if (p->options.plan) p->width_count = ravel_plan_widths(p->options.plan, p->widths);
    RAVEL_ASSERT(p->width_count >= 0 && p->width_count <= RAVEL_FIT_WIDTHS);
    for (int32_t i = 0; i < p->width_count && !status; i++)
        if (p->widths[i] > 1) {
            status = ravel_comm_split(pool, rank / p->widths[i], rank, &p->ring_hosts[i], err);
            if (!status) status = train__parts_join(p, p->ring_hosts[i], TRAIN__WIRE_CP, &p->rings[i], err);
        }
    return status;
}

/* ---- NCCL ------------------------------------------------------------------------------------------------ */

ravel_status train__parts_join(train_parts *p, ravel_comm *host, train__wire_use use, ravel_comm **comm,
                               ravel_error *err) {
    *comm = host;
    return p->wires ? train__wires_join(p->wires, host, TRAIN__WIRE_OWN, use, comm, err) : RAVEL_OK;
}

/* Between stage `e` and the next one: rows that way, gradients the other. The sender is rank 0. Collective over the
 * pipeline. */
static ravel_status join_edge(train_parts *p, int32_t e, int gradients, ravel_error *err) {
    int32_t pp = train_layout_pp(&p->layout), next = (e + 1) % pp, mine = p->at.pp;
    int32_t sender = gradients ? next : e;
    ravel_comm *pair = NULL;
    ravel_status status = ravel_comm_split(p->pp, mine == e || mine == next ? 0 : -1, mine != sender, &pair, err);
    if (!status && pair)
        status = train__wires_join(p->wires, pair, TRAIN__WIRE_OWN, TRAIN__WIRE_PP,
                                   &p->edges[gradients][mine == sender], err);
    ravel_comm_free(pair);
    return status;
}

static ravel_status join_edges(train_parts *p, ravel_error *err) {
    int32_t pp = train_layout_pp(&p->layout), edges = p->layout.vpp > 1 ? pp : pp - 1;
    ravel_status status = RAVEL_OK;
    for (int32_t e = 0; e < edges && !status; e++) {
        status = join_edge(p, e, 0, err);
        if (!status) status = join_edge(p, e, 1, err);
    }
    return status;
}

/* The communicators of the mesh that arrays of the device are given to. Collective over the mesh. */
static ravel_status join_mesh(train_parts *p, ravel_error *err) {
    ravel_comm *world = ravel_mesh_world(p->mesh);
    ravel_status status = RAVEL_OK;
    p->tp = ravel_mesh_comm(p->mesh, RAVEL_AXIS_TP);
    p->cp = ravel_mesh_comm(p->mesh, RAVEL_AXIS_CP);
    p->replicas = ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    if (p->options.model->wire != TRAIN_WIRE_NCCL || p->kernels->host_memory) return RAVEL_OK;
    status = train__wires_open(p->kernels, p->device, p->options.model->gpu, world, &p->wires, err);
    status = ravel_agree(world, status, err);
    if (!status && ravel_comm_size(p->tp) > 1)
        status = train__wires_join(p->wires, p->tp, TRAIN__WIRE_KERNELS, TRAIN__WIRE_TP, &p->tp, err);
    if (!status && ravel_comm_size(p->cp) > 1) status = train__parts_join(p, p->cp, TRAIN__WIRE_CP, &p->cp, err);
    if (!status) status = train__parts_join(p, p->replicas, TRAIN__WIRE_SHARD, &p->replicas, err);
    return status ? status : join_edges(p, err);
}

/* Neighbours among the ranks with the same parameters share out the experts; every ep-th of these ranks has the same
 * ones. */
static ravel_status join_experts(train_parts *p, ravel_error *err) {
    ravel_comm *replicas = ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    int32_t ep = p->options.ep, rank = ravel_comm_rank(replicas);
    if (ep <= 1) return RAVEL_OK;
    ravel_status status = ravel_comm_split(replicas, rank / ep, rank, &p->ep_host, err);
    if (!status) status = ravel_comm_split(replicas, rank % ep, rank, &p->experts_host, err);
    p->ep = p->ep_host, p->experts = p->experts_host;
    if (!status && p->wires)
        status = train__wires_join(p->wires, p->ep_host, TRAIN__WIRE_KERNELS, TRAIN__WIRE_TP, &p->ep, err);
    if (!status && p->wires && ravel_comm_size(p->experts_host) > 1)
        status = train__parts_join(p, p->experts_host, TRAIN__WIRE_SHARD, &p->experts, err);
    return status;
}

ravel_comm *train_parts_ring(const train_parts *p, int32_t cp) {
    if (cp == 1) return NULL;
    for (int32_t i = 0; i < p->width_count; i++)
        if (p->widths[i] == cp) return p->ring_hosts[i];
    RAVEL_ASSERT(!p->width_count && cp == train_layout_cp(&p->layout));
    return ravel_mesh_comm(p->mesh, RAVEL_AXIS_CP);
}

void train_parts_disconnect(train_parts *p, const ravel_error *why) {
    if (!p || !p->wires) return;
    if (why) train__wires_abort(p->wires, why);
    for (int32_t chunk = 0; chunk < p->count; chunk++)
        if (p->models[chunk]) train_model_wait(p->models[chunk]);
    train__wires_close(p->wires);
    p->wires = NULL;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

ravel_status train_parts_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                train_parts **parts, ravel_error *err) {
    train_parts *p = ravel__calloc(options->allocator, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "a model");
    p->arena.allocator = options->allocator;
    p->options = *options;
    p->shape = *shape;
    p->mesh = mesh;
    p->layout = *ravel_mesh_get_layout(mesh);
    p->at = ravel_mesh_coords(mesh);
    p->pp = ravel_mesh_comm(mesh, RAVEL_AXIS_PP);
    p->count = p->layout.vpp;
    RAVEL_ASSERT(p->count >= 1 && p->count <= TRAIN_CHUNKS && options->budget > 0);
    ravel_status status = train_device_open(options->model, options->allocator, &p->kernels, &p->device, err);
    TRAIN__TAKE(&p->arena, p->cu, options->budget + 1);
    TRAIN__TAKE(&p->arena, p->logprob, train__max(options->budget, options->flat_tokens));
    if (!status) status = train__arena_status(&p->arena, "batches", err);
    if (!status) status = train__balance_open(p, err);
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (!status) status = join_mesh(p, err);
    if (!status) status = train_layout_check_ep(&p->layout, shape, options->ep, err);
    if (!status) status = join_experts(p, err);
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
    train_parts_disconnect(p, NULL);
    for (int32_t chunk = 0; chunk < p->count; chunk++) train_model_free(p->models[chunk]);
    for (int32_t chunk = 0; chunk < p->count; chunk++) train_base_close(&p->bases[chunk]);
    for (int32_t i = 0; i < p->width_count; i++) ravel_comm_free(p->ring_hosts[i]);
    ravel_comm_free(p->ep_host);
    ravel_comm_free(p->experts_host);
    if (p->device) p->kernels->close(p->device);
    train__arena_free(&p->arena);
    ravel__release(p->options.allocator, p->micro_seconds, (size_t)p->micro_room * sizeof *p->micro_seconds);
    ravel__release(p->options.allocator, p, sizeof *p);
}

int32_t train_parts_count(const train_parts *p) {
    return p->count;
}

void train_parts_set_adapter(train_parts *p, int on) {
    for (int32_t i = 0; i < p->count; i++) train_model_set_adapter(p->models[i], on);
}

train_model *train_parts_model(const train_parts *p, int32_t chunk) {
    RAVEL_ASSERT(chunk >= 0 && chunk < p->count);
    return p->models[chunk];
}

const train_kernels *train_parts_kernels(const train_parts *p) {
    return p->kernels;
}

train_device *train_parts_device(const train_parts *p) {
    return p->device;
}
