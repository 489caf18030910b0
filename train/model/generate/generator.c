/* Creation and requests of a generator. Device memory is one block; the same walk counts it and cuts it. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "train/model/hf/lora.h"

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
    int64_t rows = g->rows, slots = g->options.slots;
    int64_t angles =
        train__net_rope_kinds(n, g->options.slot_tokens) * g->options.slot_tokens * (n->shape.head_dim / 2);
    const struct {
        void **place;
        int64_t width;
    } arrays[] = {{&a->x, n->hidden},
                  {&a->x_mid, n->hidden},
                  {&a->xn, n->hidden},
                  {&a->y, n->hidden},
                  {&a->qkv, n->qkv_width},
                  {&a->q, n->q_width},
                  {&a->k, n->kv_width},
                  {&a->o, n->q_width},
                  {&a->h, n->feed_width},
                  {&a->gate_up, 2 * n->feed_width},
                  {&a->routes.pairs, n->shape.experts ? n->shape.experts_active * n->hidden : 0}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i].place = train__cut_take(&cut, 1, train__net_bytes(n, rows * arrays[i].width));
    if (n->adapter.rank)
        g->net.adapter.u = train__cut_take(&cut, 1, train__net_bytes(n, rows * TRAIN__JOINED * n->adapter.rank));
    a->next = a->x;
    if (n->shape.experts) {
        size_t bytes = train__routes_cut(n, rows, NULL, &a->routes);
        (void)train__routes_cut(n, rows, train__cut_take(&cut, 1, bytes), &a->routes);
    }
    a->whole = a->attended = a->fed = a->y;
    if (n->shape.qk_norm == RAVEL_QK_NORM_WHOLE)
        a->normed = train__cut_take(&cut, 1, train__net_bytes(n, rows * n->qkv_width));
    a->xn_mid = a->xn_next = a->xn;
    a->lse = train__cut_take(&cut, rows * n->shape.heads, sizeof *a->lse);
    p->cosine = train__cut_take(&cut, angles, sizeof *p->cosine);
    p->sine = train__cut_take(&cut, angles, sizeof *p->sine);
    p->k_pages = train__cut_take(&cut, n->shape.layers * g->pages, g->page_bytes);
    RAVEL_ASSERT(slots > 0 && g->pages > slots && g->page_bytes > 0);
    p->v_pages = train__cut_take(&cut, n->shape.layers * g->pages, g->page_bytes);
    size_t whole =
        g->options.prefill < g->options.slot_tokens ? train__net_bytes(n, g->options.slot_tokens * n->kv_width) : 0;
    p->k_whole = train__cut_take(&cut, 1, whole);
    p->v_whole = train__cut_take(&cut, 1, whole);
    p->logits = train__cut_take(&cut, 1, train__net_bytes(n, slots * g->whole.vocab));
    if (g->tp.ranks > 1) {
        size_t bytes = train__net_bytes(n, slots * train__generator_vocab_share(g));
        p->part = train__cut_take(&cut, 1, bytes);
        p->parts = train__cut_take(&cut, g->tp.ranks, bytes);
    }
    p->last = train__cut_take(&cut, slots + 1, sizeof *p->last);
    p->targets = train__cut_take(&cut, slots, sizeof *p->targets);
    p->parts_of_rows = train__cut_take(&cut, 4 * slots, sizeof *p->parts_of_rows);
    p->scores = train__cut_take(&cut, 2 * slots, sizeof *p->scores);
    for (int i = 0; i < TRAIN__STAGES; i++) p->results[i] = train__cut_take(&cut, 1, g->result_bytes);
    RAVEL_ASSERT(g->result_bytes > 0 && g->staging.bytes > 0 && g->rows_of_steps.bytes > 0);
    for (int i = 0; i < TRAIN__STAGES; i++) g->staging.block[i] = train__cut_take(&cut, 1, g->staging.bytes);
    for (int i = 0; i < TRAIN__STAGES; i++)
        g->rows_of_steps.block[i] = train__cut_take(&cut, 1, g->rows_of_steps.bytes);
    return cut.used;
}

enum { TRAIN__ADAPTERS = 65536, LEAST_PREFILL = 128 };
enum { GRAPHS = 256 }; /* of steps: buckets of rows and lengths, for two sets of weights in two turns */

/* X(field, count): the arrays on the host, see generator_internal.h. */
_Static_assert(TRAIN__STAGES == 2, "steps[0] and steps[1] below");
#define HOST_LIST(X)                                          \
    X(sequences, slots)                                       \
    X(answer, slots * g->options.slot_tokens)                 \
    X(logprob, slots * g->options.slot_tokens)                \
    X(kept_logprob, slots * g->options.slot_tokens)           \
    X(versions, slots * g->options.slot_tokens)               \
    X(top, slots * g->options.slot_tokens * g->options.top)   \
    X(table, slots * g->pages_per_slot)                       \
    X(references, g->pages)                                   \
    X(free_pages, g->pages)                                   \
    X(retired, g->pages)                                      \
    X(copies, 2 * slots)                                      \
    X(row, g->net.shape.head_dim)                             \
    X(sets, 2 + g->options.adapters)                          \
    X(runs, slots + 1)                                        \
    X(pass.acts.routes.offsets, expert_room(g, 1))            \
    X(router.ids, expert_room(g, 0))                          \
    X(routes, g->pages *TRAIN_PAGE * g->route_width)          \
    X(answer_routes, g->options.slot_tokens * g->route_width) \
    X(route_rows, g->route_width ? g->rows : 0)               \
    X(prefix.pages, g->pages_per_slot)                        \
    X(scored, slots)                                          \
    X(cancelled, slots)                                       \
    X(scores, 2 * slots)                                      \
    X(steps[0].slots, slots)                                  \
    X(steps[0].serials, slots)                                \
    X(steps[0].versions, slots)                               \
    X(steps[1].slots, slots)                                  \
    X(steps[1].serials, slots)                                \
    X(steps[1].versions, slots)                               \
    X(graphs.places, g->graphs.most)                          \
    X(kept.heads, g->kept.buckets)                            \
    X(kept.next, kept_room(g, 1))                             \
    X(kept.ids, kept_room(g, 1))                              \
    X(kept.parents, kept_room(g, 1))                          \
    X(kept.tokens, kept_room(g, TRAIN_PAGE))                  \
    X(kept.older, kept_room(g, 1) + 1)                        \
    X(kept.newer, kept_room(g, 1) + 1)

/* Elements of an array of what pages hold. */
static int64_t kept_room(const train_generator *g, int64_t each) {
    return g->kept.pages ? g->pages * each : 0;
}

/* Of what sorts the rows by expert: offsets, or ids and index. */
static int64_t expert_room(const train_generator *g, int offsets) {
    const train__net *n = &g->net;
    if (!n->shape.experts) return 0;
    return offsets ? n->shape.experts + 1 : train__net_pairs(n, g->rows) + train__index_elements(n, g->rows);
}

static int64_t host_bytes(const train_generator *g) {
    int64_t slots = g->options.slots, bytes = 0;
#define X(field, count) bytes += (count) * (int64_t)sizeof *g->field;
    HOST_LIST(X)
#undef X
    return bytes + (int64_t)train__port_bytes(&g->port) +
           TRAIN__STAGES *
               (int64_t)(g->staging.bytes + g->rows_of_steps.bytes + g->result_bytes + train__generator_logit_bytes(g));
}

static train_limits limits_of(const train_generator *g) {
    train_limits limits = train__net_limits(&g->net, g->rows, g->options.slot_tokens, g->options.slots);
    limits.cached = g->options.slot_tokens;
    RAVEL_ASSERT(limits.tokens >= limits.samples);
    limits.inference = 1;
    return limits;
}

static ravel_status check_options(const train_generator_options *o, ravel_error *err) {
    if (o->size < sizeof *o)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "train_generator_options.size is %zu; fill the struct with "
                               "train_generator_options_default first",
                               o->size);
    if (o->top < 0 || o->top > 1024)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "top is %d; it must be from 0 to 1024", o->top);
    if (o->slot_tokens < 2 || o->slot_tokens > INT32_MAX || o->slots < 0 || o->slots > 1 << 20 || o->prefill < 0 ||
        o->keep < 0 || o->keep > INT64_C(1) << 40)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "slot_tokens is %lld, slots %lld, prefill %lld, keep %lld; slot_tokens must be at least "
                               "2, the others not negative",
                               (long long)o->slot_tokens, (long long)o->slots, (long long)o->prefill,
                               (long long)o->keep);
    if (o->prefill_rows && o->prefill_rows < LEAST_PREFILL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "prefill_rows is %lld; it must be 0, or at least %d",
                               (long long)o->prefill_rows, LEAST_PREFILL);
    if (o->adapters < 0 || o->adapters > TRAIN__ADAPTERS || o->adapter_rank < 0 || o->adapter_rank > TRAIN_LORA_RANK)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "adapters is %d and adapter_rank %d; they must be from 0 to %d and from 0 to %d",
                               o->adapters, o->adapter_rank, TRAIN__ADAPTERS, TRAIN_LORA_RANK);
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
    g->tp = train__link_over(options->tp, &g->port);
    if (!device && !options->tp && options->tp_ranks > 0) g->tp.ranks = options->tp_ranks;
    g->port = (train__port){.kernels = kernels, .device = device, .ranks = g->tp.ranks};
    train_slice part = {.tp = g->tp.ranks, .tp_rank = g->tp.rank};
    if (!status) status = train_params_create(shape, &part, options->allocator, &g->params, err);
    if (!status && options->lora.rank)
        status = train_trained_params(shape, &part, &options->lora, options->allocator, &g->adapter, err);
    if (!status && g->adapter) status = train_lora_check_kernels(&options->lora, kernels, err);
    if (status) return status;
    if (!g->options.slots) g->options.slots = 16;
    g->options.top = (int32_t)train__min(g->options.top, shape->vocab);
    g->options.prefill = train__max(g->options.prefill ? g->options.prefill : 512, g->options.slot_tokens);
    if (g->options.prefill_rows) g->options.prefill = train__min(g->options.prefill, g->options.prefill_rows);
    g->rows = train__max(g->options.prefill, g->options.slots);
    int64_t slots = g->options.slots;
    train__net_init(&g->net, kernels, device, shape, g->params);
    ravel__shape_settle_rope(&g->net.shape, g->options.slot_tokens);
    g->net.adapter.rank = train__max(options->lora.rank, options->adapters ? options->adapter_rank : 0);
    g->net.batch_invariant = TRAIN_INVARIANT_MANY;
    g->net.tp = &g->tp;
    g->graphs = (train__graphs){.kernels = kernels, .device = device, .most = kernels->capture_begin ? GRAPHS : 0};
    status = train__graphs_check(g->options.graphs, kernels, g->tp.ranks == 1 && !shape->experts, err);
    if (!status && options->routes && !shape->experts)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "routes are asked for; the model has no experts");
    if (status) return status;
    g->pages_per_slot = (g->options.slot_tokens + TRAIN_PAGE - 1) / TRAIN_PAGE;
    g->kept.pages = (g->options.keep + TRAIN_PAGE - 1) / TRAIN_PAGE;
    g->pages = slots * g->pages_per_slot + slots + 2 * g->pages_per_slot + 1 + g->kept.pages;
    while (g->kept.pages && g->kept.buckets < g->pages) g->kept.buckets = g->kept.buckets ? 2 * g->kept.buckets : 1;
    if (g->pages > INT32_MAX / shape->layers)
        return ravel_error_set(err, RAVEL_E_OVERFLOW,
                               "slots * slot_tokens * layers must be below 2^31 pages of %d tokens", TRAIN_PAGE);
    if (options->routes) g->route_width = shape->layers * shape->experts_active;
    g->page_bytes = train__net_bytes(&g->net, TRAIN_PAGE * g->net.kv_width);
    g->result_bytes = (size_t)(3 * train__round_up(slots * 4, TRAIN_ALIGN));
    g->staging = (train__staging){.kernels = kernels, .device = device, .first_slot = TRAIN__STAGE_GENERATOR};
    g->staging.count = TRAIN__STAGES;
    g->staging.bytes = (size_t)(g->rows * 16 + slots * (12 + (int64_t)sizeof(train_choice)) +
                                slots * g->pages_per_slot * 4 + 2 * slots * shape->layers * 4 + 16 * TRAIN_ALIGN);
    g->rows_of_steps = g->staging;
    g->rows_of_steps.first_slot += TRAIN__STAGES;
    g->rows_of_steps.turn = TRAIN__STAGES - 1; /* in step with g->turn */
    g->rows_of_steps.bytes =
        (size_t)(slots * (12 + (int64_t)sizeof(train_choice)) + (slots + 1) * g->pages_per_slot * 4 + 16 * TRAIN_ALIGN);
    g->device_bytes = cut_device(g, NULL);
    RAVEL_ASSERT(g->device_bytes >= 2 * (size_t)(shape->layers * g->pages) * g->page_bytes);
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
    train_params_free(g.adapter);
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
    if (!status && g->net.shape.experts) {
        g->router.index = g->router.ids + train__net_pairs(&g->net, g->rows);
        g->router.rows = g->rows;
        g->net.router = &g->router;
    }
    for (int i = 0; i < TRAIN__STAGES && !status; i++) {
        status = k->alloc_host(g->net.device, g->staging.bytes, &g->staging.host[i], err);
        if (!status) status = k->alloc_host(g->net.device, g->rows_of_steps.bytes, &g->rows_of_steps.host[i], err);
        if (!status) status = k->alloc_host(g->net.device, g->result_bytes, &g->steps[i].host, err);
        if (!status && g->options.top)
            status = k->alloc_host(g->net.device, train__generator_logit_bytes(g), &g->steps[i].logits, err);
    }
    if (!status && train__port_bytes(&g->port))
        status = k->alloc_host(g->net.device, train__port_bytes(&g->port), &g->port.host, err);
    if (!status) status = k->reserve(g->net.device, &limits, err);
    if (!status) status = k->alloc(g->net.device, g->device_bytes, &g->device_block, err);
    size_t used = status ? g->device_bytes : cut_device(g, g->device_block);
    RAVEL_ASSERT(used == g->device_bytes);
    (void)used;
    return status;
}

ravel_status train_generator_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                    const train_generator_options *options, train_generator **generator,
                                    ravel_error *err) {
    train_generator *g = ravel__calloc(options->allocator, 1, sizeof *g);
    if (!g) return ravel__no_memory(err, sizeof *g, "a generator");
    ravel_status status = prepare(g, kernels, device, shape, options, err);
    if (!status) status = take_memory(g, err);
    if (status) {
        train_generator_free(g);
        return status;
    }
    train__net_rope_tables(&g->net, g->pass.cosine, g->pass.sine, g->options.slot_tokens, g->row);
    for (int64_t i = 0; i < g->pages * TRAIN_PAGE * g->route_width; i++) g->routes[i] = -1;
    train__kept_reset(g);
    train__generator_reset(g);
    RAVEL_ASSERT(train__generator_ok(g));
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
        k->release_host(g->net.device, g->port.host, train__port_bytes(&g->port));
        for (int i = 0; i < TRAIN__STAGES; i++) {
            k->release_host(g->net.device, g->staging.host[i], g->staging.bytes);
            k->release_host(g->net.device, g->rows_of_steps.host[i], g->rows_of_steps.bytes);
            k->release_host(g->net.device, g->steps[i].host, g->result_bytes);
            k->release_host(g->net.device, g->steps[i].logits, train__generator_logit_bytes(g));
        }
    }
    train_params_free(g->params);
    train_params_free(g->adapter);
    train__arena_free(&g->arena);
    ravel__release(allocator, g, sizeof *g);
}

const train_params *train_generator_params(const train_generator *g) {
    return g->adapter ? g->adapter : g->params;
}

const train_params *train_generator_base_params(const train_generator *g) {
    return g->params;
}

static void hold(train_generator *g, train_frozen weights) {
    g->net.weights = weights.flat;
    g->net.places = weights.places;
}

void train_generator_set_base(train_generator *g, train_frozen weights) {
    RAVEL_ASSERT(weights.flat || weights.places);
    if (!g->adapter) train_generator_set_weights(g, NULL, 1);
    hold(g, weights);
}

/* Pages of what was there before are not found any more. */
static void new_root(train_generator *g, train__set *set) {
    set->root = ++g->kept.last;
}

void train_generator_set_weights(train_generator *g, const void *weights, int64_t version) {
    train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    train__kept_reset(g);
    for (int32_t i = 0; i < 2 + g->options.adapters; i++) new_root(g, &g->sets[i]);
    if (g->adapter)
        g->sets[0].weights = weights;
    else
        hold(g, (train_frozen){.flat = weights});
    g->sets[0].params = g->adapter;
    g->sets[0].version = version;
    if (!g->adapter) g->sets[1 + g->options.adapters].version = version;
}

void train_generator_set_adapter(train_generator *g, int32_t index, const train_params *params, const void *weights,
                                 int64_t version) {
    RAVEL_ASSERT(index >= 1 && index <= g->options.adapters && params->lora.rank <= g->options.adapter_rank && weights);
    train__set *set = &g->sets[index];
    train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    set->params = params;
    set->weights = weights;
    set->version = version;
    new_root(g, set);
}

void train_generator_use_adapter(train_generator *g, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index <= g->options.adapters && (!index || g->sets[index].weights));
    train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    g->used = index;
}

int64_t train_generator_users(const train_generator *g, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index <= g->options.adapters);
    return g->sets[index].users;
}

train_generator_stats train_generator_counts(const train_generator *g) {
    return g->stats;
}

int64_t train_generator_busy(const train_generator *g) {
    RAVEL_ASSERT(g->waiting >= 0 && g->running >= 0 && g->running <= g->options.slots);
    return g->waiting + g->running;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static ravel_status check_sampling(const train_generator *g, const train_sampling *s, int64_t i, ravel_error *err) {
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
    if (s->top < 0 || s->top > g->options.top)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "request %lld: top is %d; this generator reports from 0 to %d",
                               (long long)i, s->top, g->options.top);
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
    if (r->adapter < TRAIN_NO_ADAPTER || r->adapter > g->options.adapters ||
        (r->adapter > 0 && !g->sets[r->adapter].weights))
        return ravel_error_set(err, RAVEL_E_DATA, "request %lld: adapter %d is not there", (long long)i, r->adapter);
    if (r->prompt_top_count < 0 || r->prompt_top_count > g->options.top || (r->prompt_top_count && !r->prompt_top))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "request %lld: prompt_top_count is %d; this generator reports from 0 to %d",
                               (long long)i, r->prompt_top_count, g->options.top);
    for (int64_t t = 0; t < r->count; t++)
        if (r->prompt[t] < 0 || r->prompt[t] >= g->whole.vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "request %lld: token %lld is %d; the vocabulary is 0 to %lld",
                                   (long long)i, (long long)t, r->prompt[t], (long long)g->whole.vocab - 1);
    return check_sampling(g, r->sampling, i, err);
}

ravel_status train_generator_begin(train_generator *g, const train_request *requests, int64_t count, ravel_error *err) {
    int64_t waiting = 0;
    if ((!g->net.weights && !g->net.places) || (g->adapter && !g->sets[0].weights))
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
    RAVEL_ASSERT(g->running == 0 && (g->kept.pages || g->free_count == g->pages - 1) && g->copy_count == 0);
    g->requests = requests;
    g->request_count = count;
    g->waiting = waiting;
    g->cancelled_count = 0;
    train__generator_wait_for(g, 0);
    RAVEL_ASSERT(waiting == 0 || g->next_request < count);
    return RAVEL_OK;
}

ravel_status train_generator_start(train_generator *g, const train_request *requests, int64_t ended, int64_t more,
                                   ravel_error *err) {
    int64_t old = g->request_count - ended, answers = 0;
    int keeps = g->waiting && g->prefix.request == g->next_request; /* a part of it may be in the cache */
    RAVEL_ASSERT(ended >= 0 && old >= 0 && more >= 0 && (!g->waiting || g->next_request >= ended));
    for (int64_t i = old; i < old + more; i++) {
        ravel_status status = check_request(g, requests + i, i, err);
        if (status) return status;
        answers += requests[i].samples;
    }
    if (answers > train_generator_idle_slots(g))
        return ravel_error_set(err, RAVEL_E_STATE, "%lld answers are to begin, but %lld slots are idle",
                               (long long)answers, (long long)train_generator_idle_slots(g));
    for (int64_t slot = 0; slot < g->options.slots; slot++) {
        train__sequence *s = &g->sequences[slot];
        RAVEL_ASSERT(s->request < 0 || s->request >= ended);
        if (s->request >= 0) s->request -= ended;
    }
    if (!keeps) train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    if (keeps) g->prefix.request -= ended;
    int64_t left = 0;
    for (int64_t i = 0; i < g->cancelled_count; i++)
        if (g->cancelled[i] >= ended) g->cancelled[left++] = g->cancelled[i] - ended;
    g->cancelled_count = left;
    g->requests = requests;
    g->request_count = old + more;
    g->next_request -= ended;
    if (!g->waiting) train__generator_wait_for(g, old);
    g->waiting += answers;
    RAVEL_ASSERT(train__generator_ok(g) && (g->waiting == 0 || g->next_request < g->request_count));
    return RAVEL_OK;
}

int64_t train_generator_idle_slots(const train_generator *g) {
    RAVEL_ASSERT(g->running >= 0 && g->waiting >= 0);
    return train__max(0, g->options.slots - g->running - g->waiting);
}
