#include "train/model/units.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

enum { BLOCK = 512 }; /* elements that are added at a time, in cache */

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static int is_layer(const train_params *p, int64_t unit) {
    int64_t first = train_params_layer_unit(p, p->part.first_layer);
    return unit >= first && unit < first + p->part.last_layer - p->part.first_layer;
}

/* The first buffer that a unit may be in, and how many there are. The embedding and a head of its own are never needed
 * at the same time. */
static int buffers_of(const train_params *p, int64_t unit, int layer_buffers, int *count) {
    int tied = p->head >= 0 && p->head == p->embedding;
    *count = is_layer(p, unit) ? layer_buffers : 1;
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

/* Whether the run of a unit comes from every rank and is added here: those of layers, where the host can add them. That of
 * another one is reduced by the communicator. */
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
    size_buffers(params, u->weights, TRAIN__LAYER_WEIGHTS, kernels->types.weight);
    if (inference) return RAVEL_OK;
    size_buffers(params, u->grads, TRAIN__LAYER_GRADS, kernels->types.grad);
    u->received_bytes = received_elements(kernels, u->shares) * (size_t)ravel_dtype_bytes(kernels->types.grad);
    u->received_counts = train__calloc(allocator, (size_t)ranks, sizeof *u->received_counts);
    return u->received_counts ? RAVEL_OK : train__no_memory(err, (size_t)ranks * 8, "shares of the parameters");
}

/* Where an error is written: the first failure counts. */
static ravel_error *first(train__units *u) {
    return u->status ? NULL : &u->error;
}

static void note(train__units *u, ravel_status status) {
    if (!u->status) u->status = status;
}

static void end(train__units *u, train__message *message) {
    if (!message->request && !message->event) return;
    double begun = train__now();
    note(u, train__exchange_end(u->exchange, message, first(u)));
    u->waited += train__now() - begun;
}

static void test(train__units *u, train__message *message) {
    note(u, train__exchange_progress(message, first(u)));
}

void train__units_progress(train__units *u) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) test(u, &u->weights[i].gather);
    test(u, &u->reduction);
}

void train__units_wait(train__units *u) {
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) end(u, &u->weights[i].gather);
    end(u, &u->reduction);
}

void train__units_close(train__units *u) {
    if (!u->shares) return;
    train__release(u->shares->allocator, u->received_counts, (size_t)u->shares->ranks * sizeof *u->received_counts);
    train_shares_free(u->shares);
    u->shares = NULL;
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

static const int64_t *counts_of(const train__units *u, int64_t unit) {
    return u->shares->counts + unit * u->shares->ranks;
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
    TRAIN_ASSERT(b->unit == unit || u->status);
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
        end(u, &u->weights[i].gather);
        u->weights[i].unit = -1;
    }
}

/* Begins to gather a unit that is not there; where it goes through host memory, gathers it. */
static train__buffer *gather(train__units *u, int64_t unit) {
    train__buffer *b = &u->weights[weights_for(u, unit)];
    TRAIN_ASSERT(unit >= 0 && unit < u->shares->params->unit_count);
    TRAIN_ASSERT((size_t)(unit_at(u, unit)->count * ravel_dtype_bytes(u->kernels->types.weight)) <= b->bytes);
    b->used = ++u->clock;
    if (b->unit == unit || u->status) return b;
    int32_t type = u->kernels->types.weight;
    end(u, &b->gather);
    b->unit = unit;
    const void *share = train__at(u->weight_share, type, u->shares->places[unit]);
    double begun = train__exchange_clock(u->exchange);
    note(u, train__exchange_begin_gather(u->exchange, u->comm, share, b->data, (train__pieces){counts_of(u, unit), 0},
                                         type, &b->gather, first(u)));
    u->waited += train__now() - begun;
    return b;
}

void train__units_need(train__units *u, int64_t unit, int64_t next) {
    train__buffer *b = gather(u, unit);
    if (next >= 0 && next < u->shares->params->unit_count) (void)gather(u, next);
    end(u, &b->gather);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* Where this rank's run of a unit is in its share. */
static train_real *run_of(const train__units *u, int64_t unit, int64_t *count) {
    *count = counts_of(u, unit)[u->shares->rank];
    return train__at(u->grad_share, u->kernels->types.grad, u->shares->places[unit]);
}

/* share += the sum over ranks, which are added first and in their order, as a reduction of the communicator does. */
static void add_received(train__units *u, int64_t unit) {
    int64_t count;
    train_real *run = run_of(u, unit, &count);
    for (int64_t first = 0; first < count; first += BLOCK) {
        train_real sum[BLOCK];
        const train_real *from = (const train_real *)u->received + first;
        int64_t n = train__min(BLOCK, count - first);
        for (int64_t i = 0; i < n; i++) sum[i] = from[i];
        for (int32_t r = 1; r < u->shares->ranks; r++)
            for (int64_t i = 0; i < n; i++) sum[i] += from[r * count + i];
        for (int64_t i = 0; i < n; i++) run[first + i] += sum[i];
    }
}

void train__units_finish(train__units *u) {
    int64_t unit = u->exchanged;
    if (!u->shares || unit < 0) return;
    u->exchanged = -1;
    end(u, &u->reduction);
    if (u->status) return;
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
    for (int32_t r = 0; r < u->shares->ranks; r++) u->received_counts[r] = counts_of(u, unit)[u->shares->rank];
    note(u, ravel_comm_ialltoallv(u->comm, grads, counts_of(u, unit), NULL, u->received, u->received_counts, NULL,
                                  u->kernels->types.grad, &u->reduction.request, first(u)));
}

/* Over NCCL it is under way afterwards, elsewhere done. */
static void begin_sum(train__units *u, int64_t unit, const void *grads) {
    double begun = train__exchange_clock(u->exchange);
    note(u,
         train__exchange_begin_scatter(u->exchange, u->comm, grads, u->received, (train__pieces){counts_of(u, unit), 0},
                                       u->kernels->types.grad, &u->reduction, first(u)));
    u->waited += train__now() - begun;
}

/* The embedding and the head are large, and nothing runs beside their sums. */
void train__units_reduce(train__units *u, int64_t unit) {
    const void *grads = u->grads[grads_for(u, unit)].data;
    TRAIN_ASSERT(!u->inference && (u->grads[grads_for(u, unit)].unit == unit || u->status)); /* it was opened */
    train__units_finish(u);
    if (u->status) return;
    TRAIN_ASSERT(!u->reduction.request && !u->reduction.event && u->exchanged < 0);
    int here = is_added_here(u->kernels, u->shares->params, unit);
    if (here)
        begin_all_to_all(u, unit, grads);
    else
        begin_sum(u, unit, grads);
    u->exchanged = unit;
    if (!is_layer(u->shares->params, unit)) train__units_finish(u);
}

ravel_status train__units_status(train__units *u, ravel_error *err) {
    if (u->status) (void)ravel_error_set(err, u->status, "%s", u->error.message);
    return u->status;
}
