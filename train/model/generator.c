/* Creation and requests of a generator. Device memory is one block; the same walk counts it and cuts it. */
#include "train/model/generator_internal.h"

#include "train/kernels/assert.h"

#include <string.h>

void train_generator_options_default(train_generator_options *options) {
    *options = (train_generator_options){.size = sizeof *options};
}

void train_sampling_default(train_sampling *sampling) {
    *sampling = (train_sampling){.temperature = 1, .top_p = 1};
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static size_t cut_device(train_generator *g, char *base) {
    const train__net *n = &g->net;
    train__pass *p = &g->pass;
    train__acts *a = &p->acts;
    train__cut cut = {base, 0};
    int64_t rows = g->rows, slots = g->options.slots, half = n->shape.head_dim / 2;
    const struct {
        void **place;
        int64_t width;
    } arrays[] = {{&a->x, n->hidden},      {&a->x_mid, n->hidden},   {&a->xn, n->hidden},  {&a->y, n->hidden},
                  {&a->qkv, n->qkv_width}, {&a->q, n->q_width},      {&a->k, n->kv_width}, {&a->o, n->q_width},
                  {&a->h, n->ffn},         {&a->gate_up, 2 * n->ffn}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i].place = train__cut_take(&cut, 1, train__net_bytes(n, rows * arrays[i].width));
    a->next = a->x;
    a->whole = a->y;
    a->xn_mid = a->xn_next = a->xn;
    a->lse = train__cut_take(&cut, rows * n->shape.heads, sizeof *a->lse);
    p->cosine = train__cut_take(&cut, g->options.slot_tokens * half, sizeof *p->cosine);
    p->sine = train__cut_take(&cut, g->options.slot_tokens * half, sizeof *p->sine);
    p->k_pages = train__cut_take(&cut, n->shape.layers * g->pages, g->page_bytes);
    TRAIN_ASSERT(slots > 0 && g->pages > slots && g->page_bytes > 0);
    p->v_pages = train__cut_take(&cut, n->shape.layers * g->pages, g->page_bytes);
    p->logits = train__cut_take(&cut, 1, train__net_bytes(n, slots * g->whole.vocab));
    if (g->tp.ranks > 1) {
        size_t bytes = train__net_bytes(n, slots * train__generator_vocab_share(g));
        p->part = train__cut_take(&cut, 1, bytes);
        p->parts = train__cut_take(&cut, g->tp.ranks, bytes);
    }
    p->last = train__cut_take(&cut, slots + 1, sizeof *p->last);
    for (int i = 0; i < TRAIN__STAGES; i++) p->results[i] = train__cut_take(&cut, 1, g->result_bytes);
    TRAIN_ASSERT(g->result_bytes > 0 && g->staging.bytes > 0 && g->rows_of_steps.bytes > 0);
    for (int i = 0; i < TRAIN__STAGES; i++) g->staging.block[i] = train__cut_take(&cut, 1, g->staging.bytes);
    for (int i = 0; i < TRAIN__STAGES; i++)
        g->rows_of_steps.block[i] = train__cut_take(&cut, 1, g->rows_of_steps.bytes);
    return cut.used;
}

enum { GRAPHS = 256 }; /* of steps: buckets of rows and lengths, for two sets of weights in two turns */

/* X(field, count): the arrays on the host, see generator_internal.h. */
_Static_assert(TRAIN__STAGES == 2, "steps[0] and steps[1] below");
#define HOST_LIST(X)                                \
    X(sequences, slots)                             \
    X(answer, slots * g->options.slot_tokens)       \
    X(logprob, slots * g->options.slot_tokens)      \
    X(kept_logprob, slots * g->options.slot_tokens) \
    X(table, slots * g->pages_per_slot)             \
    X(references, g->pages)                         \
    X(free_pages, g->pages)                         \
    X(retired, g->pages)                            \
    X(copies, 2 * slots)                            \
    X(row, g->net.shape.head_dim)                   \
    X(prefix.pages, g->pages_per_slot)              \
    X(steps[0].slots, slots)                        \
    X(steps[0].serials, slots)                      \
    X(steps[1].slots, slots)                        \
    X(steps[1].serials, slots)                      \
    X(graphs.places, g->graphs.most)

static int64_t host_bytes(const train_generator *g) {
    int64_t slots = g->options.slots, bytes = 0;
#define X(field, count) bytes += (count) * (int64_t)sizeof *g->field;
    HOST_LIST(X)
#undef X
    return bytes + (int64_t)train__exchange_bytes(&g->exchange) +
           TRAIN__STAGES * (int64_t)(g->staging.bytes + g->rows_of_steps.bytes + g->result_bytes);
}

static train_limits limits_of(const train_generator *g) {
    train_limits limits = train__net_limits(&g->net, g->rows, g->options.slot_tokens, g->options.slots);
    limits.cached = g->options.slot_tokens;
    TRAIN_ASSERT(limits.tokens >= limits.samples);
    limits.inference = 1;
    return limits;
}

static ravel_status check_options(const train_generator_options *o, ravel_error *err) {
    if (o->size < sizeof *o)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "train_generator_options.size is %zu; fill the struct with "
                               "train_generator_options_default first",
                               o->size);
    if (o->slot_tokens < 2 || o->slot_tokens > INT32_MAX || o->slots < 0 || o->slots > 1 << 20 || o->prefill < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "slot_tokens is %lld, slots %lld, prefill %lld; slot_tokens must be at least 2, the "
                               "others not negative",
                               (long long)o->slot_tokens, (long long)o->slots, (long long)o->prefill);
    if ((o->slots ? o->slots : 16) > INT32_MAX / o->slot_tokens)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "slots * slot_tokens must be below 2^31");
    return RAVEL_OK;
}

/* Everything but the memory. */
static ravel_status prepare(train_generator *g, const train_kernels *kernels, train_device *device,
                            const ravel_shape *shape, const train_generator_options *options, ravel_error *err) {
    ravel_status status = check_options(options, err);
    g->arena.allocator = options->allocator;
    g->options = *options;
    g->whole = *shape;
    g->tp = train__link_over(options->tp, &g->exchange);
    if (!device && !options->tp && options->tp_ranks > 0) g->tp.ranks = options->tp_ranks;
    g->exchange = (train__exchange){.kernels = kernels, .device = device, .ranks = g->tp.ranks};
    train_slice part = {.tp = g->tp.ranks, .tp_rank = g->tp.rank};
    if (!status) status = train_params_create(shape, &part, options->allocator, &g->params, err);
    if (status) return status;
    if (!g->options.slots) g->options.slots = 16;
    g->options.prefill = train__max(g->options.prefill ? g->options.prefill : 512, g->options.slot_tokens);
    g->rows = train__max(g->options.prefill, g->options.slots);
    TRAIN_ASSERT(g->options.prefill >= g->options.slot_tokens);
    int64_t slots = g->options.slots;
    train__net_init(&g->net, kernels, device, shape, g->params);
    g->net.batch_invariant = TRAIN_INVARIANT_MANY;
    g->net.tp = &g->tp;
    g->graphs = (train__graphs){.kernels = kernels, .device = device, .most = kernels->capture_begin ? GRAPHS : 0};
    status = train__graphs_check(g->options.graphs, kernels, g->tp.ranks == 1, err);
    if (status) return status;
    g->pages_per_slot = (g->options.slot_tokens + TRAIN_PAGE - 1) / TRAIN_PAGE;
    g->pages = slots * g->pages_per_slot + slots + 2 * g->pages_per_slot + 1;
    if (g->pages > INT32_MAX / shape->layers)
        return ravel_error_set(err, RAVEL_E_OVERFLOW,
                               "slots * slot_tokens * layers must be below 2^31 pages of %d tokens", TRAIN_PAGE);
    g->page_bytes = train__net_bytes(&g->net, TRAIN_PAGE * g->net.kv_width);
    g->result_bytes = (size_t)(3 * train__round_up(slots * 4, TRAIN_ALIGN));
    g->staging = (train__staging){.kernels = kernels, .device = device, .first_slot = TRAIN__STAGE_GENERATOR};
    g->staging.count = TRAIN__STAGES;
    g->staging.bytes = (size_t)(g->rows * 12 + slots * (12 + (int64_t)sizeof(train_choice)) +
                                slots * g->pages_per_slot * 4 + 2 * slots * shape->layers * 4 + 16 * TRAIN_ALIGN);
    g->rows_of_steps = g->staging;
    g->rows_of_steps.first_slot += TRAIN__STAGES;
    g->rows_of_steps.turn = TRAIN__STAGES - 1; /* in step with g->turn */
    g->rows_of_steps.bytes =
        (size_t)(slots * (12 + (int64_t)sizeof(train_choice)) + (slots + 1) * g->pages_per_slot * 4 + 16 * TRAIN_ALIGN);
    g->device_bytes = cut_device(g, NULL);
    TRAIN_ASSERT(g->device_bytes >= 2 * (size_t)(shape->layers * g->pages) * g->page_bytes);
    return RAVEL_OK;
}

ravel_status train_generator_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                    const train_generator_options *options, int64_t *bytes, ravel_error *err) {
    train_generator g = {0};
    ravel_status status = prepare(&g, kernels, NULL, shape, options, err);
    if (!status) {
        train_limits limits = limits_of(&g);
        *bytes = (int64_t)(g.device_bytes + kernels->scratch_bytes(&limits, threads)) + host_bytes(&g);
    }
    train_params_free(g.params);
    return status;
}

static ravel_status take_memory(train_generator *g, ravel_error *err) {
    const train_kernels *k = g->net.kernels;
    train_limits limits = limits_of(g);
    int64_t slots = g->options.slots;
#define X(field, count) TRAIN__TAKE(&g->arena, g->field, count);
    HOST_LIST(X)
#undef X
    ravel_status status = train__arena_status(&g->arena, "the sequences of a generator", err);
    for (int i = 0; i < TRAIN__STAGES && !status; i++) {
        status = k->alloc_host(g->net.device, g->staging.bytes, &g->staging.host[i], err);
        if (!status) status = k->alloc_host(g->net.device, g->rows_of_steps.bytes, &g->rows_of_steps.host[i], err);
        if (!status) status = k->alloc_host(g->net.device, g->result_bytes, &g->steps[i].host, err);
    }
    if (!status && train__exchange_bytes(&g->exchange))
        status = k->alloc_host(g->net.device, train__exchange_bytes(&g->exchange), &g->exchange.host, err);
    if (!status) status = k->reserve(g->net.device, &limits, err);
    if (!status) status = k->alloc(g->net.device, g->device_bytes, &g->device_block, err);
    size_t used = status ? g->device_bytes : cut_device(g, g->device_block);
    TRAIN_ASSERT(used == g->device_bytes);
    (void)used;
    return status;
}

ravel_status train_generator_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                    const train_generator_options *options, train_generator **generator,
                                    ravel_error *err) {
    train_generator *g = train__calloc(options->allocator, 1, sizeof *g);
    if (!g) return train__no_memory(err, sizeof *g, "a generator");
    ravel_status status = prepare(g, kernels, device, shape, options, err);
    if (!status) status = take_memory(g, err);
    if (status) {
        train_generator_free(g);
        return status;
    }
    g->net.cosine = g->pass.cosine;
    g->net.sine = g->pass.sine;
    train__net_rope_tables(&g->net, g->pass.cosine, g->pass.sine, g->options.slot_tokens, g->row);
    train__generator_reset(g);
    TRAIN_ASSERT(train__generator_ok(g));
    *generator = g;
    return RAVEL_OK;
}

void train_generator_free(train_generator *g) {
    if (!g) return;
    const ravel_allocator *allocator = g->arena.allocator;
    const train_kernels *k = g->net.kernels;
    if (g->params) {
        train__graphs_drop(&g->graphs);
        k->release(g->net.device, g->device_block, g->device_bytes);
        k->release_host(g->net.device, g->exchange.host, train__exchange_bytes(&g->exchange));
        for (int i = 0; i < TRAIN__STAGES; i++) {
            k->release_host(g->net.device, g->staging.host[i], g->staging.bytes);
            k->release_host(g->net.device, g->rows_of_steps.host[i], g->rows_of_steps.bytes);
            k->release_host(g->net.device, g->steps[i].host, g->result_bytes);
        }
    }
    train_params_free(g->params);
    train__arena_free(&g->arena);
    train__release(allocator, g, sizeof *g);
}

const train_params *train_generator_params(const train_generator *g) {
    return g->params;
}

void train_generator_set_weights(train_generator *g, const void *weights, int64_t version) {
    train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    g->net.weights = weights;
    g->version = version;
}

train_generator_stats train_generator_counts(const train_generator *g) {
    return g->stats;
}

int64_t train_generator_busy(const train_generator *g) {
    TRAIN_ASSERT(g->waiting >= 0 && g->running >= 0 && g->running <= g->options.slots);
    return g->waiting + g->running;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static ravel_status check_sampling(const train_sampling *s, int64_t i, ravel_error *err) {
    if (!s) return ravel_error_set(err, RAVEL_E_ARGUMENT, "request %lld has no sampling options", (long long)i);
    if (!(s->temperature >= 0 && s->temperature <= 1e6) || !(s->top_p > 0 && s->top_p <= 1) || s->top_k < 0 ||
        !(s->min_p >= 0 && s->min_p < 1))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "request %lld: temperature %g, top_p %g, top_k %d, min_p %g; they must be 0 or more, above 0 up to "
            "1, 0 or more, and from 0 to below 1",
            (long long)i, s->temperature, s->top_p, s->top_k, s->min_p);
    if (s->max_tokens < 0 || s->stops < 0 || (s->stops && !s->stop))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "request %lld: max_tokens and stops must not be negative",
                               (long long)i);
    return RAVEL_OK;
}

static ravel_status check_request(const train_generator *g, const train_request *r, int64_t i, ravel_error *err) {
    if (r->count < 1 || !r->prompt || r->samples < 0 || r->first_sample < 0)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "request %lld: a prompt needs at least one token (a begin token will do), and the number "
            "of samples must not be negative",
            (long long)i);
    if (r->count >= g->options.slot_tokens)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "request %lld: the prompt has %lld tokens; a slot holds %lld of prompt and answer "
                               "(slot_tokens)",
                               (long long)i, (long long)r->count, (long long)g->options.slot_tokens);
    for (int64_t t = 0; t < r->count; t++)
        if (r->prompt[t] < 0 || r->prompt[t] >= g->whole.vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "request %lld: token %lld is %d; the vocabulary is 0 to %lld",
                                   (long long)i, (long long)t, r->prompt[t], (long long)g->whole.vocab - 1);
    return check_sampling(r->sampling, i, err);
}

ravel_status train_generator_begin(train_generator *g, const train_request *requests, int64_t count, ravel_error *err) {
    int64_t waiting = 0;
    if (!g->net.weights)
        return ravel_error_set(err, RAVEL_E_STATE, "the generator has no weights: train_generator_set_weights first");
    for (int64_t i = 0; i < count; i++) {
        ravel_status status = check_request(g, requests + i, i, err);
        if (status) return status;
        waiting += requests[i].samples;
    }
    for (int i = 0; i < TRAIN__STAGES; i++) { /* a step that is still running writes its results */
        if (g->steps[i].rows) g->net.kernels->fetch_wait(g->net.device, TRAIN__STAGE_GENERATOR + i);
        g->steps[i].rows = 0;
    }
    train__generator_reset(g);
    TRAIN_ASSERT(g->running == 0 && g->free_count == g->pages - 1 && g->copy_count == 0);
    g->requests = requests;
    g->request_count = count;
    g->next_request = 0;
    g->next_sample = 0;
    g->waiting = waiting;
    while (g->next_request < count && requests[g->next_request].samples == 0) g->next_request++;
    TRAIN_ASSERT(waiting == 0 || g->next_request < count);
    return RAVEL_OK;
}
