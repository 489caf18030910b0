#include "train/model/ranks/units.h"

#include "base/assert.h"
#include "train/kernels/host.h"

enum { BLOCK = 512 }; /* elements that are added at a time, in cache */

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static int is_layer(const train_params *p, int64_t unit) {
    int64_t first = train_params_layer_unit(p, p->part.first_layer);
    int64_t last = train_params_layer_unit(p, p->part.last_layer - 1);
    return unit >= first && (unit <= last || p->units[unit].experts);
}

/* The first buffer that a unit may be in, and how many there are. The embedding and a head of its own are never needed
 * at the same time. */
static int buffers_of(const train_params *p, int64_t unit, int layer_buffers, int *count) {
    int tied = p->head >= 0 && p->head == p->embedding;
    *count = p->units[unit].experts ? TRAIN__EXPERT_BUFFERS : is_layer(p, unit) ? layer_buffers : 1;
    if (p->units[unit].experts) return TRAIN__UNIT_BUFFERS - TRAIN__EXPERT_BUFFERS;
    if (is_layer(p, unit)) return TRAIN__END_BUFFERS;
    return tied && p->norm == p->units[unit].first;
}

static void size_buffers(const train_params *p, train__buffer *buffers, int layer_buffers, int32_t type) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) buffers[i].unit = -1;
    for (int64_t u = 0; u < p->unit_count; u++) {
        int count, first = buffers_of(p, u, layer_buffers, &count);
        size_t bytes = (size_t)(p->units[u].count * ravel_dtype_bytes(type));
        for (int i = first; i < first + count; i++)
            if (bytes > buffers[i].bytes) buffers[i].bytes = bytes;
    }
}

/* Whether the run of a unit comes from every rank and is added here: those of layers, where the host can add them. That
 * of another one is reduced by the communicator. */
static int is_added_here(const train_kernels *kernels, const train_params *p, int64_t unit) {
    return kernels->host_memory && is_layer(p, unit);
}

static size_t received_elements(const train_kernels *kernels, const train_shares *s) {
    int64_t most = 0;
    for (int64_t u = 0; u < s->params->unit_count; u++)
        for (int32_t r = 0; r < s->ranks; r++)
            most =
                train__max(most, s->counts[u * s->ranks + r] * (is_added_here(kernels, s->params, u) ? s->ranks : 1));
    return (size_t)most;
}

ravel_status train__units_init(train__units *u, const train_kernels *kernels, train_device *device,
                               const train_params *params, int32_t ranks, int32_t rank, int inference,
                               const ravel_allocator *allocator, ravel_error *err) {
    *u = (train__units){.kernels = kernels, .device = device, .inference = inference, .exchanged = -1};
    ravel_status status = train_shares_create(params, ranks, rank, allocator, &u->shares, err);
    if (status) return status;
    u->run_counts = ravel__calloc(allocator, (size_t)ranks, sizeof *u->run_counts);
    if (!u->run_counts) return ravel__no_memory(err, (size_t)ranks * 8, "shares of the parameters");
    size_buffers(params, u->weights, TRAIN__LAYER_WEIGHTS, kernels->types.weight);
    if (inference) return RAVEL_OK;
    size_buffers(params, u->grads, TRAIN__LAYER_GRADS, kernels->types.grad);
    u->received_bytes = received_elements(kernels, u->shares) * (size_t)ravel_dtype_bytes(kernels->types.grad);
    u->received_counts = ravel__calloc(allocator, (size_t)ranks, sizeof *u->received_counts);
    return u->received_counts ? RAVEL_OK : ravel__no_memory(err, (size_t)ranks * 8, "shares of the parameters");
}

void train__units_progress(train__units *u) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) train__link_progress(&u->link, &u->weights[i].gather);
    train__link_progress(&u->link, &u->reduction);
}

void train__units_wait(train__units *u) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) train__link_end(&u->link, &u->weights[i].gather);
    train__link_end(&u->link, &u->reduction);
}

void train__units_close(train__units *u) {
    if (!u->shares) return;
    ravel__release(u->shares->allocator, u->received_counts, (size_t)u->shares->ranks * sizeof *u->received_counts);
    ravel__release(u->shares->allocator, u->run_counts, (size_t)u->shares->ranks * sizeof *u->run_counts);
    train_shares_free(u->shares);
    u->shares = NULL;
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

static train_runs runs_of(const train__units *u, int64_t unit) {
    return train_shares_runs(u->shares, unit, u->run_counts);
}

static train__link *link_of(train__units *u, int64_t unit) {
    return u->shares->params->units[unit].experts ? &u->experts : &u->link;
}

static const train_unit *unit_at(const train__units *u, int64_t unit) {
    return &u->shares->params->units[unit];
}

/* The buffer that has the unit, or else the one of its kind that was used longest ago. */
static int buffer_for(const train__units *u, const train__buffer *buffers, int layer_buffers, int64_t unit) {
    int count, first = buffers_of(u->shares->params, unit, layer_buffers, &count), oldest = first;
    for (int i = first; i < first + count; i++) {
        if (buffers[i].unit == unit) return i;
        if (buffers[i].used < buffers[oldest].used) oldest = i;
    }
    return oldest;
}

static int weights_for(const train__units *u, int64_t unit) {
    return buffer_for(u, u->weights, TRAIN__LAYER_WEIGHTS, unit);
}

static int grads_for(const train__units *u, int64_t unit) {
    return buffer_for(u, u->grads, TRAIN__LAYER_GRADS, unit);
}

static void *element_in(const train__units *u, const train__buffer *b, int32_t type, int64_t unit, int64_t offset) {
    RAVEL_ASSERT(b->unit == unit || u->link.status);
    return train__at(b->data, type, offset - unit_at(u, unit)->first);
}

const void *train__units_weight(const train__units *u, int64_t offset) {
    int64_t unit = train_params_unit(u->shares->params, offset);
    return element_in(u, &u->weights[weights_for(u, unit)], u->kernels->types.weight, unit, offset);
}

void *train__units_grad(const train__units *u, int64_t offset) {
    int64_t unit = train_params_unit(u->shares->params, offset);
    return element_in(u, &u->grads[grads_for(u, unit)], u->kernels->types.grad, unit, offset);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

void train__units_forget(train__units *u) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) {
        train__link_end(&u->link, &u->weights[i].gather);
        u->weights[i].unit = -1;
    }
}

/* Begins to gather a unit that is not there; where it goes through host memory, gathers it. */
static train__buffer *gather(train__units *u, int64_t unit) {
    train__buffer *b = &u->weights[weights_for(u, unit)];
    RAVEL_ASSERT(unit >= 0 && unit < u->shares->params->unit_count);
    RAVEL_ASSERT((size_t)(unit_at(u, unit)->count * ravel_dtype_bytes(u->kernels->types.weight)) <= b->bytes);
    b->used = ++u->clock;
    if (b->unit == unit || u->link.status || u->experts.status) return b;
    int32_t type = u->kernels->types.weight;
    train__link_end(link_of(u, unit), &b->gather);
    b->unit = unit;
    const void *share = train__at(u->weight_share, type, u->shares->places[unit]);
    train_runs runs = runs_of(u, unit);
    if (runs.ranks == 1)
        u->kernels->copy(u->device, b->data, share, (size_t)(runs.counts[0] * ravel_dtype_bytes(type)));
    else
        train__link_begin_gather(link_of(u, unit), share, b->data, (train__pieces){runs.counts, 0}, type, &b->gather);
    return b;
}

void train__units_need(train__units *u, int64_t unit, int64_t next) {
    train__buffer *b = gather(u, unit);
    if (next >= 0 && next < u->shares->params->unit_count) (void)gather(u, next);
    train__link_end(link_of(u, unit), &b->gather);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* Where this rank's run of a unit is in its share. */
static train_real *run_of(const train__units *u, int64_t unit, int64_t *count) {
    *count = u->shares->places[unit + 1] - u->shares->places[unit];
    return train__at(u->grad_share, u->kernels->types.grad, u->shares->places[unit]);
}

/* share += the sum over ranks, which are added first and in their order, as a reduction of the communicator does. */
static void add_received(train__units *u, int64_t unit) {
    int64_t count;
    int32_t ranks = runs_of(u, unit).ranks;
    train_real *run = run_of(u, unit, &count);
    for (int64_t first = 0; first < count; first += BLOCK) {
        train_real sum[BLOCK];
        const train_real *from = (const train_real *)u->received + first;
        int64_t n = train__min(BLOCK, count - first);
        for (int64_t i = 0; i < n; i++) sum[i] = from[i];
        for (int32_t r = 1; r < ranks; r++)
            for (int64_t i = 0; i < n; i++) sum[i] += from[r * count + i];
        for (int64_t i = 0; i < n; i++) run[first + i] += sum[i];
    }
}

void train__units_finish(train__units *u) {
    int64_t unit = u->exchanged;
    if (!u->shares || unit < 0) return;
    u->exchanged = -1;
    train__link_end(link_of(u, unit), &u->reduction);
    if (u->link.status || u->experts.status) return;
    if (is_added_here(u->kernels, u->shares->params, unit)) {
        add_received(u, unit);
        return;
    }
    int64_t count;
    void *run = run_of(u, unit, &count);
    u->kernels->add(u->device, run, u->received, count);
}

void train__units_open_grads(train__units *u, int64_t unit) {
    train__buffer *b = &u->grads[grads_for(u, unit)];
    if (b->unit >= 0 && b->unit == u->exchanged) train__units_finish(u);
    b->unit = unit;
    b->used = ++u->clock;
    u->kernels->zero(u->device, b->data, (size_t)(unit_at(u, unit)->count * ravel_dtype_bytes(u->kernels->types.grad)));
}

static void begin_all_to_all(train__units *u, int64_t unit, const void *grads) {
    train_runs runs = runs_of(u, unit);
    train__link *link = link_of(u, unit);
    for (int32_t r = 0; r < runs.ranks; r++) u->received_counts[r] = runs.counts[runs.rank];
    train__link_note(link,
                     ravel_comm_ialltoallv(link->comm, grads, runs.counts, NULL, u->received, u->received_counts, NULL,
                                           u->kernels->types.grad, &u->reduction.request, train__link_error(link)));
}

/* The embedding and the head are large, and nothing runs beside their sums. */
void train__units_reduce(train__units *u, int64_t unit) {
    const void *grads = u->grads[grads_for(u, unit)].data;
    RAVEL_ASSERT(!u->inference && (u->grads[grads_for(u, unit)].unit == unit || u->link.status)); /* it was opened */
    train__units_finish(u);
    if (u->link.status || u->experts.status) return;
    RAVEL_ASSERT(!u->reduction.request && !u->reduction.event && u->exchanged < 0);
    if (runs_of(u, unit).ranks == 1) { /* of experts that no other rank has */
        int64_t count;
        void *run = run_of(u, unit, &count);
        u->kernels->add(u->device, run, grads, count);
        return;
    }
    int here = is_added_here(u->kernels, u->shares->params, unit);
    if (here)
        begin_all_to_all(u, unit, grads);
    else
        train__link_begin_scatter(link_of(u, unit), grads, u->received, (train__pieces){runs_of(u, unit).counts, 0},
                                  u->kernels->types.grad, &u->reduction);
    u->exchanged = unit;
    if (!is_layer(u->shares->params, unit)) train__units_finish(u);
}
