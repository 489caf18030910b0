/* Creation, requests and slots of a generator. All memory is two blocks, one on the device and one on the host; the same
 * walk counts them and cuts them. */
#include "train/model/generator_internal.h"

#include "train/kernels/host.h"

#include <string.h>

void train_generator_options_default(train_generator_options *options) {
    *options = (train_generator_options){.size = sizeof *options};
}

void train_sampling_default(train_sampling *sampling) {
    *sampling = (train_sampling){.temperature = 1, .top_p = 1};
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Hands out pieces of a block; with base NULL it only counts. */
typedef struct pieces {
    char *base;
    size_t used;
} pieces;

static void *piece(pieces *p, int64_t count, size_t each) {
    size_t at = (p->used + TRAIN_ALIGN - 1) / TRAIN_ALIGN * TRAIN_ALIGN;
    p->used = at + (size_t)count * each;
    return p->base ? p->base + at : NULL;
}

#define CUT(field, count) s->field = piece(&p, count, sizeof *s->field)

static size_t cut_device(const train_generator *g, char *base, train__pass *s) {
    pieces p = {0};
    p.base = base;
    const train__net *n = &g->net;
    int64_t rows = g->rows, slots = g->options.slots, cache = slots * g->options.slot_tokens;
    int64_t half = n->shape.head_dim / 2;
    CUT(cosine, g->options.slot_tokens * half);
    CUT(sine, g->options.slot_tokens * half);
    CUT(k_cache, n->shape.layers * cache * n->kv_width);
    CUT(v_cache, n->shape.layers * cache * n->kv_width);
    CUT(x, rows * n->hidden);
    CUT(x_mid, rows * n->hidden);
    CUT(xn, rows * n->hidden);
    CUT(y, rows * n->hidden);
    CUT(qkv, rows * n->qkv_width);
    CUT(q, rows * n->q_width);
    CUT(k, rows * n->kv_width);
    CUT(o, rows * n->q_width);
    CUT(lse, rows * n->shape.heads);
    CUT(gate_up, rows * 2 * n->ffn);
    CUT(h, rows * n->ffn);
    CUT(head, slots * n->hidden);
    CUT(logits, slots * n->shape.vocab);
    CUT(logprob, slots);
    CUT(kept_logprob, slots);
    CUT(choices, slots);
    CUT(drawn, slots);
    CUT(tokens, rows);
    CUT(positions, rows);
    CUT(starts, rows);
    CUT(lengths, rows);
    CUT(slots, rows);
    CUT(head_rows, slots);
    CUT(from, cache);
    CUT(to, cache);
    return p.used;
}

static size_t cut_host(const train_generator *g, char *base, train__host *s) {
    pieces p = {0};
    p.base = base;
    int64_t rows = g->rows, slots = g->options.slots, cache = slots * g->options.slot_tokens;
    CUT(sequences, slots);
    CUT(answer, cache);
    CUT(logprob, cache);
    CUT(kept_logprob, cache);
    CUT(choices, slots);
    CUT(drawn, slots);
    CUT(drawn_logprob, slots);
    CUT(drawn_kept, slots);
    CUT(order, slots);
    CUT(tokens, rows);
    CUT(positions, rows);
    CUT(starts, rows);
    CUT(lengths, rows);
    CUT(slots, rows);
    CUT(head_rows, slots);
    CUT(from, cache);
    CUT(to, cache);
    CUT(row, g->net.shape.head_dim);
    return p.used;
}

static train_limits limits_of(const train_generator *g) {
    const train__net *n = &g->net;
    return (train_limits){.tokens = g->rows,
                          .longest = g->options.slot_tokens,
                          .samples = g->options.slots,
                          .width = train__max(train__max(2 * n->ffn, n->qkv_width), n->hidden),
                          .heads = n->shape.heads,
                          .kv_heads = n->shape.kv_heads,
                          .head_dim = n->shape.head_dim,
                          .vocab = n->shape.vocab,
                          .cached = g->options.slot_tokens,
                          .inference = 1};
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

/* Everything but the blocks. `params` are the caller's to free. */
static ravel_status prepare(train_generator *g, const train_kernels *kernels, train_device *device,
                            const ravel_shape *shape, const train_generator_options *options, ravel_error *err) {
    ravel_status status = check_options(options, err);
    if (status) return status;
    g->allocator = options->allocator;
    g->options = *options;
    if (!g->options.slots) g->options.slots = 16;
    g->options.prefill = train__max(g->options.prefill ? g->options.prefill : 512, g->options.slot_tokens);
    g->rows = train__max(g->options.prefill, g->options.slots);
    status = train_params_create(shape, g->allocator, &g->params, err);
    if (status) return status;
    train__net_init(&g->net, kernels, device, shape, g->params);
    g->net.exact = 1;
    g->device_bytes = cut_device(g, NULL, &g->pass);
    g->host_bytes = cut_host(g, NULL, &g->host);
    return RAVEL_OK;
}

ravel_status train_generator_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                    const train_generator_options *options, int64_t *bytes, ravel_error *err) {
    train_generator g = {0};
    ravel_status status = prepare(&g, kernels, NULL, shape, options, err);
    if (status) return status;
    train_limits limits = limits_of(&g);
    *bytes = (int64_t)(g.device_bytes + g.host_bytes + kernels->scratch_bytes(&limits, threads));
    train_params_free(g.params);
    return RAVEL_OK;
}

static ravel_status take_blocks(train_generator *g, ravel_error *err) {
    train_limits limits = limits_of(g);
    void *block = NULL;
    ravel_status status = g->net.kernels->reserve(g->net.device, &limits, err);
    if (!status) status = g->net.kernels->alloc(g->net.device, g->device_bytes, &block, err);
    if (status) return status;
    g->device_block = block;
    g->host_block = train__alloc_aligned(g->allocator, g->host_bytes);
    if (!g->host_block) return train__no_memory(err, g->host_bytes, "the sequences of a generator");
    cut_device(g, g->device_block, &g->pass);
    cut_host(g, g->host_block, &g->host);
    return RAVEL_OK;
}

ravel_status train_generator_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                    const train_generator_options *options, train_generator **generator,
                                    ravel_error *err) {
    train_generator *g = train__calloc(options->allocator, 1, sizeof *g);
    if (!g) return train__no_memory(err, sizeof *g, "a generator");
    g->allocator = options->allocator;
    ravel_status status = prepare(g, kernels, device, shape, options, err);
    if (!status) status = take_blocks(g, err);
    if (status) {
        train_generator_free(g);
        return status;
    }
    g->net.cosine = g->pass.cosine;
    g->net.sine = g->pass.sine;
    train__net_rope_tables(&g->net, g->pass.cosine, g->pass.sine, g->options.slot_tokens, g->host.row);
    for (int64_t i = 0; i < g->options.slots; i++) g->host.sequences[i].request = -1;
    *generator = g;
    return RAVEL_OK;
}

void train_generator_free(train_generator *g) {
    if (!g) return;
    if (g->params) g->net.kernels->release(g->net.device, g->device_block, g->device_bytes);
    train__release_aligned(g->allocator, g->host_block, g->host_bytes);
    train_params_free(g->params);
    train__release(g->allocator, g, sizeof *g);
}

const train_params *train_generator_params(const train_generator *g) {
    return g->params;
}

void train_generator_set_weights(train_generator *g, const train_real *weights, int64_t version) {
    g->net.weights = weights;
    g->version = version;
}

train_generator_stats train_generator_counts(const train_generator *g) {
    return g->stats;
}

int64_t train_generator_busy(const train_generator *g) {
    return g->waiting + g->running;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static ravel_status check_sampling(const train_sampling *s, int64_t i, ravel_error *err) {
    if (!s) return ravel_error_set(err, RAVEL_E_ARGUMENT, "request %lld has no sampling options", (long long)i);
    if (!(s->temperature >= 0 && s->temperature <= 1e6) || !(s->top_p > 0 && s->top_p <= 1) || s->top_k < 0)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "request %lld: temperature %g, top_p %g, top_k %d; they must be 0 or more, above 0 up to "
            "1, and 0 or more",
            (long long)i, s->temperature, s->top_p, s->top_k);
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
        if (r->prompt[t] < 0 || r->prompt[t] >= g->net.shape.vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "request %lld: token %lld is %d; the vocabulary is 0 to %lld",
                                   (long long)i, (long long)t, r->prompt[t], (long long)g->net.shape.vocab - 1);
    return check_sampling(r->sampling, i, err);
}

/* To the next request that wants answers. */
static void skip_empty(train_generator *g) {
    while (g->next_request < g->request_count && g->next_sample >= g->requests[g->next_request].samples) {
        g->next_request++;
        g->next_sample = 0;
    }
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
    for (int64_t i = 0; i < g->options.slots; i++) g->host.sequences[i].request = -1;
    g->requests = requests;
    g->request_count = count;
    g->next_request = 0;
    g->next_sample = 0;
    g->waiting = waiting;
    g->running = 0;
    skip_empty(g);
    return RAVEL_OK;
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

const train_request *train__generator_next(const train_generator *g) {
    return g->waiting ? g->requests + g->next_request : NULL;
}

int train__generator_admit(train_generator *g, int32_t *slot) {
    int32_t free_slot = 0;
    if (!g->waiting || g->running == g->options.slots) return 0;
    while (g->host.sequences[free_slot].request >= 0) free_slot++;
    const train_request *r = g->requests + g->next_request;
    int32_t sample = r->first_sample + g->next_sample;
    g->host.sequences[free_slot] = (train__sequence){.request = g->next_request,
                                                     .sample = sample,
                                                     .cached = r->count,
                                                     .version = g->version,
                                                     .stream = train__random((uint64_t)r->id, (uint64_t)sample, 0)};
    g->next_sample++;
    g->waiting--;
    g->running++;
    skip_empty(g);
    *slot = free_slot;
    return 1;
}

static int is_stop(const train_sampling *s, int32_t token) {
    for (int32_t i = 0; i < s->stops; i++)
        if (s->stop[i] == token) return 1;
    return 0;
}

/* Tokens that the answer may have: what was asked for, and what the slot holds beside the prompt. */
static int64_t room_of(const train_generator *g, const train_request *r) {
    int64_t room = g->options.slot_tokens - r->count, asked = r->sampling->max_tokens;
    return asked ? train__min(asked, room) : room;
}

ravel_status train__generator_append(train_generator *g, int32_t slot, int32_t token, float logprob, float kept,
                                     train_answer_fn answer, void *user, ravel_error *err) {
    train__sequence *s = g->host.sequences + slot;
    const train_request *r = g->requests + s->request;
    int64_t first = slot * g->options.slot_tokens, at = first + s->drawn++;
    g->host.answer[at] = token;
    g->host.logprob[at] = logprob;
    g->host.kept_logprob[at] = kept;
    s->last = token;
    g->stats.tokens++;
    int ended = is_stop(r->sampling, token);
    if (!ended && s->drawn < room_of(g, r)) return RAVEL_OK;
    train_answer a = {.request = s->request,
                      .id = r->id,
                      .sample = s->sample,
                      .ended = ended,
                      .count = s->drawn,
                      .tokens = g->host.answer + first,
                      .logprob = g->host.logprob + first,
                      .kept_logprob = g->host.kept_logprob + first,
                      .version = s->version};
    s->request = -1;
    g->running--;
    g->stats.answers++;
    return answer(user, &a, err);
}

const int32_t *train_generator_partial(const train_generator *g, int64_t request, int32_t sample, int64_t *count) {
    for (int64_t slot = 0; slot < g->options.slots; slot++) {
        const train__sequence *s = &g->host.sequences[slot];
        if (s->request != request || s->sample != sample) continue;
        *count = s->drawn;
        return g->host.answer + slot * g->options.slot_tokens;
    }
    return NULL;
}
