/* Creation and memory of a model. Every block is a row of one list (blocks_of), used by the estimate, by the allocation
 * and by the release alike. */
#include "train/model/model_internal.h"

#include "train/kernels/assert.h"
#include "train/kernels/arena.h"
#include "train/model/shares.h"

#include <stddef.h>
#include <string.h>

void train_model_options_default(train_model_options *options) {
    *options = (train_model_options){.size = sizeof *options, .recompute = TRAIN_RECOMPUTE_LIGHT};
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static size_t lines(size_t bytes) {
    return (bytes + TRAIN_ALIGN - 1) / TRAIN_ALIGN * TRAIN_ALIGN;
}

static size_t cut_kept(train_model *m, char *base) {
    const train__sizes *s = &m->sizes;
    const train__net *n = &m->net;
    train__kept *k = &m->now.kept;
    train__cut cut = {base, 0};
    int64_t layers = m->params->part.last_layer - m->params->part.first_layer, share = train__net_share(n, s->tokens);
    int64_t head = n->sequence ? 0 : s->tokens;
    TRAIN_ASSERT(layers > 0 && share > 0 && s->tokens > 0);
    k->x = train__cut_take(&cut, s->x ? layers + 1 : 1, lines(train__net_bytes(n, share * n->hidden)));
    k->rest = train__cut_take(&cut, s->rest ? layers : 1, s->x_mid + lines(train__net_bytes(n, share * n->hidden)));
    k->gate_up = train__cut_take(&cut, s->gate_up ? layers : 1, lines(train__net_bytes(n, s->tokens * 2 * n->ffn)));
    k->light = train__cut_take(&cut, s->light ? layers : 0, s->light);
    k->head_x = train__cut_take(&cut, 1, train__net_bytes(n, head * n->hidden));
    k->head_xn = train__cut_take(&cut, 1, train__net_bytes(n, head * n->hidden));
    train_real **numbers[] = {&k->logprob, &k->lse, &k->entropy, &k->coef, &k->entropy_coef};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i] = train__cut_take(&cut, s->tokens, sizeof(train_real));
    k->sequences = train__cut_take(&cut, s->flat, sizeof *k->sequences);
    return cut.used;
}

/* Behind the other working arrays. */
static size_t cut_ring(train_model *m, char *base, size_t used) {
    const train__net *n = &m->net;
    train__ring *r = &m->ring;
    train__cut cut = {base, used};
    TRAIN_ASSERT(m->cp_most > 1);
    size_t bytes = train__net_bytes(n, m->sizes.tokens * 2 * n->kv_width);
    for (int i = 0; i < 2; i++) r->kv[i] = train__cut_take(&cut, 1, bytes);
    for (int i = 0; i < 2 && !m->options.inference; i++) r->d_kv[i] = train__cut_take(&cut, 1, bytes);
    if (!m->options.inference) r->own = train__cut_take(&cut, 1, bytes);
    if (train__model_by_chunk(m)) r->mine = train__cut_take(&cut, 1, bytes);
    if (train__model_by_chunk(m) && !m->options.inference) r->spare = train__cut_take(&cut, 1, bytes);
    if (train__model_by_chunk(m) && !m->options.inference) r->back = train__cut_take(&cut, 1, bytes);
    r->o = train__cut_take(&cut, 1, train__net_bytes(n, m->sizes.tokens * n->q_width));
    r->lse = train__cut_take(&cut, m->sizes.tokens * n->shape.heads, sizeof *r->lse);
    return cut.used;
}

/* The output of a level, behind the other working arrays. */
static size_t cut_tree(train_model *m, char *base, size_t used) {
    train__cut cut = {base, used};
    m->tree.o = train__cut_take(&cut, 1, train__net_bytes(&m->net, m->sizes.tokens * m->net.q_width));
    m->tree.lse = train__cut_take(&cut, m->sizes.tokens * m->net.shape.heads, sizeof *m->tree.lse);
    return cut.used;
}

/* The shared part is cut three times from the same place: for attention, for feed-forward, for the head. */
static size_t cut_working(train_model *m, char *base) {
    const train__net *n = &m->net;
    train__working *w = &m->working;
    train__cut cut = {base, 0};
    int64_t t = m->sizes.tokens, share = train__net_share(n, t);
    w->xn = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    w->y = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    w->whole = n->sequence ? train__cut_take(&cut, 1, train__net_bytes(n, share * m->tp.ranks * n->hidden)) : w->y;
    if (!m->options.inference) w->d_x = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    train__cut forward = cut, head = cut;
    w->q = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
    w->k = train__cut_take(&cut, 1, train__net_bytes(n, t * n->kv_width));
    w->h = train__cut_take(&forward, 1, train__net_bytes(n, t * n->ffn));
    w->d_rows = train__cut_take(&head, 1, train__net_bytes(n, t * n->hidden));
    if (n->sequence) w->head_xn = train__cut_take(&head, 1, train__net_bytes(n, t * n->hidden));
    if (!m->options.inference) {
        w->d_q = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
        w->d_k = train__cut_take(&cut, 1, train__net_bytes(n, t * n->kv_width));
        w->d_o = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
        w->d_qkv = train__cut_take(&cut, 1, train__net_bytes(n, t * n->qkv_width));
        w->d_h = train__cut_take(&forward, 1, train__net_bytes(n, t * n->ffn));
    }
    size_t most = cut.used > forward.used ? cut.used : forward.used;
    if (head.used > most) most = head.used;
    TRAIN_ASSERT(most >= cut.used && most >= forward.used && most >= head.used);
    if (m->options.flat_tokens) most = cut_tree(m, base, most);
    return m->cp_most > 1 ? cut_ring(m, base, most) : most;
}

static size_t cut_tables(train_model *m, char *base) {
    train__cut cut = {base, 0};
    int64_t half = m->net.shape.head_dim / 2;
    m->cosine = train__cut_take(&cut, m->sizes.positions * half, sizeof *m->cosine);
    m->sine = train__cut_take(&cut, m->sizes.positions * half, sizeof *m->sine);
    m->parts = train__cut_take(&cut, (m->tp.ranks + 1) * 4 * m->sizes.logits_rows, sizeof *m->parts);
    m->update = train__cut_take(&cut, 1, sizeof *m->update);
    return cut.used;
}

static train_limits limits_of(const train_model *m) {
    /* with shared prefixes, all that stands below a node are its queries, and a call's samples are nodes */
    int64_t longest = m->options.flat_tokens ? m->sizes.tokens : m->sizes.positions;
    train_limits limits = train__net_limits(&m->net, m->sizes.tokens, longest, m->sizes.tokens);
    limits.inference = m->options.inference;
    return limits;
}

/* A batch's arrays, each at most [T] of 4 bytes, see model_batch.c. */
enum { STAGED_ARRAYS = 18 };
/* Chunk by chunk: two arrays of [1.5 T] and five of [T / 2] for each of 2 R - 1 views. */
enum { OWN_ARRAYS = 3, VIEW_ARRAYS = 5 };
/* Shared prefixes: nodes, and the losses of each row (model_tree.c). */
enum { TREE_ARRAYS = 9 };

static void sizes_of(train_model *m) {
    const train_model_options *o = &m->options;
    const train__net *n = &m->net;
    train__sizes *s = &m->sizes;
    int64_t t = o->budget, share = train__net_share(n, t);
    *s = (train__sizes){.tokens = t, .positions = o->longest > 0 ? train__min(o->longest, t) : t};
    s->flat = train__max(o->flat_tokens, t);
    if (m->cp_most > 1) s->positions = o->longest > 0 ? o->longest : t * m->cp_most;
    s->o = lines(train__net_bytes(n, t * n->qkv_width));
    s->lse = s->o + lines(train__net_bytes(n, t * n->q_width));
    s->x_mid = s->lse + lines((size_t)(t * n->shape.heads) * sizeof(train_real));
    if (!o->inference) s->x = lines(train__net_bytes(n, share * n->hidden));
    if (!o->inference && o->recompute != TRAIN_RECOMPUTE_FULL)
        s->rest = s->x_mid + lines(train__net_bytes(n, share * n->hidden));
    if (!o->inference && o->recompute != TRAIN_RECOMPUTE_FULL) s->gate_up = lines(train__net_bytes(n, t * 2 * n->ffn));
    s->xn_mid = lines(train__net_bytes(n, share * n->hidden));
    s->q = 2 * s->xn_mid;
    s->k = s->q + lines(train__net_bytes(n, t * n->q_width));
    s->h = s->k + lines(train__net_bytes(n, t * n->kv_width));
    if (!o->inference && o->recompute == TRAIN_RECOMPUTE_NONE) s->light = s->h + lines(train__net_bytes(n, t * n->ffn));
    train_limits limits = limits_of(m);
    limits.vocab = (m->vocab + m->tp.ranks - 1) / m->tp.ranks; /* every rank has the same chunks */
    s->logits_rows = train__min(o->logits_rows > 0 ? o->logits_rows : n->kernels->head_rows(&limits), t);
    s->kept = cut_kept(m, NULL);
    s->working = cut_working(m, NULL);
    s->logits = train__net_bytes(n, s->logits_rows * n->shape.vocab);
    s->tables = cut_tables(m, NULL);
    int64_t arrays = STAGED_ARRAYS;
    if (train__model_by_chunk(m)) arrays += OWN_ARRAYS + (int64_t)VIEW_ARRAYS * m->cp_most;
    if (o->flat_tokens) arrays += TREE_ARRAYS;
    s->stage = (size_t)arrays * (lines((size_t)s->flat * 4) + 2 * TRAIN_ALIGN);
    TRAIN_ASSERT(s->positions > 0 && s->logits_rows > 0 && s->logits_rows <= s->tokens);
    TRAIN_ASSERT(s->o <= s->lse && s->lse <= s->x_mid && s->q <= s->k && s->k <= s->h);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

typedef enum memory_kind { DEVICE, STAGED } memory_kind;

typedef struct block {
    void **place;
    size_t bytes;
    memory_kind kind;
    size_t field; /* of train_memory */
} block;

enum { BLOCKS = 7 + TRAIN_FLIGHTS + 2 * TRAIN__MOST_STAGES + 2 * TRAIN__UNIT_BUFFERS };

/* Elements that this rank holds of weights and gradients; of the largest share where they are sharded. */
static int64_t held(const train_model *m) {
    return train__model_sharded(m) ? m->units.shares->most : m->params->elements;
}

static int blocks_of(train_model *m, block *list) {
    const train__sizes *s = &m->sizes;
    size_t elements = (size_t)held(m);
    const train_types *types = &m->net.types;
    int count = 0;
/* clang-format off */
#define BLOCK(place, bytes, kind, field) \
    list[count++] = (block){(void **)&(place), bytes, kind, offsetof(train_memory, field)}
    /* clang-format on */
    BLOCK(m->weights, elements * (size_t)ravel_dtype_bytes(types->weight), DEVICE, weights);
    if (!m->options.inference) BLOCK(m->grads, elements * (size_t)ravel_dtype_bytes(types->grad), DEVICE, grads);
    for (int i = 0; i < TRAIN__UNIT_BUFFERS; i++) {
        if (m->units.weights[i].bytes) BLOCK(m->units.weights[i].data, m->units.weights[i].bytes, DEVICE, weights);
        if (m->units.grads[i].bytes) BLOCK(m->units.grads[i].data, m->units.grads[i].bytes, DEVICE, grads);
    }
    if (m->units.received_bytes) BLOCK(m->units.received, m->units.received_bytes, DEVICE, grads);
    for (int i = 0; i < m->options.in_flight; i++) BLOCK(m->kept_block[i], s->kept, DEVICE, activations);
    BLOCK(m->working_block, s->working, DEVICE, working);
    BLOCK(m->logits, s->logits, DEVICE, logits);
    BLOCK(m->table_block, s->tables, DEVICE, tables);
    for (int i = 0; i < m->staging.count; i++) {
        BLOCK(m->staging.block[i], s->stage, DEVICE, tables);
        BLOCK(m->staging.host[i], s->stage, STAGED, tables);
    }
    size_t exchanged = train__exchange_bytes(&m->exchange);
    if (exchanged) BLOCK(m->exchange.host, exchanged, STAGED, tables);
#undef BLOCK
    TRAIN_ASSERT(count > 0 && count <= BLOCKS);
    return count;
}

static int64_t host_bytes(const train_model *m) {
    int64_t graphs = m->graphs.kernels ? TRAIN__GRAPH_PLACES * (int64_t)sizeof *m->graphs.places : 0;
    int64_t views =
        train__model_by_chunk(m) ? (int64_t)m->options.in_flight * 2 * m->cp_most * (int64_t)sizeof(train__view) : 0;
    return graphs + views + train__tree_bytes(m) + m->sizes.tokens * 4 +
           m->sizes.flat * 4 * (2 + m->options.in_flight) +
           train__max(m->net.hidden, m->net.shape.head_dim) * (int64_t)sizeof(train_real);
}

static ravel_status check_options(const train_model_options *o, ravel_error *err) {
    if (o->size < sizeof *o)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "train_model_options.size is %zu; fill the struct with "
                               "train_model_options_default first",
                               o->size);
    if (o->budget < 1 || o->budget > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "budget is %lld; it must be 1 to %d tokens", (long long)o->budget,
                               INT32_MAX);
    if (o->longest < 0 || o->logits_rows < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "longest and logits_rows must not be negative");
    if (o->flat_tokens < 0 || o->flat_tokens > INT32_MAX / 2)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "flat_tokens is %lld; it must be 0 to %d",
                               (long long)o->flat_tokens, INT32_MAX / 2);
    if (o->in_flight < 0 || o->in_flight > TRAIN_FLIGHTS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "in_flight is %d; it must be 0 to %d", o->in_flight,
                               TRAIN_FLIGHTS);
    if (o->recompute < TRAIN_RECOMPUTE_NONE || o->recompute > TRAIN_RECOMPUTE_FULL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "recompute is %d; it must be one of train_recompute",
                               o->recompute);
    return RAVEL_OK;
}

/* Shares of the weights and gradients, where more than one rank has them. */
static ravel_status prepare_units(train_model *m, const train_kernels *kernels, train_device *device,
                                  ravel_error *err) {
    const train_model_options *o = &m->options;
    int32_t ranks = o->shard ? ravel_comm_size(o->shard) : device ? 1 : o->shard_ranks;
    if (ranks <= 1) return RAVEL_OK;
    ravel_status status = train__units_init(&m->units, kernels, device, m->params, ranks,
                                            o->shard ? ravel_comm_rank(o->shard) : 0, o->inference, o->allocator, err);
    m->units.comm = o->shard;
    m->units.exchange = &m->exchange;
    return status;
}

/* The ring of context parallelism has its places first, then come those of the pipeline. */
static void prepare_exchange(train_model *m, const train_kernels *kernels, train_device *device) {
    const train_model_options *o = &m->options;
    const train_slice *part = &m->params->part;
    int32_t shard = o->shard ? ravel_comm_size(o->shard) : o->shard_ranks;
    int staged = part->first_layer > 0 || part->last_layer < m->net.shape.layers;
    int64_t ring = m->cp_most > 1 ? 2 * m->net.kv_width : 0, rows = staged ? m->net.hidden : 0;
    m->exchange = (train__exchange){.kernels = kernels, .device = device, .wires = o->wires, .ranks = o->peers};
    const int32_t ranks[] = {m->tp.ranks, m->cp_most, shard};
    for (int i = 0; i < 3; i++) m->exchange.ranks = (int32_t)train__max(m->exchange.ranks, ranks[i]);
    m->exchange.places = (ring ? TRAIN__SHIFT_PLACES : 0) + (staged ? 1 + 2 * o->in_flight : 0);
    m->exchange.message_bytes = lines(train__net_bytes(&m->net, m->sizes.tokens * train__max(ring, rows)));
    TRAIN_ASSERT(m->exchange.ranks >= m->tp.ranks && m->exchange.ranks >= m->cp_most);
}

/* Graphs are for training: a reference model has none, and needs none. */
static ravel_status prepare_graphs(train_model *m, const train_kernels *kernels, train_device *device,
                                   ravel_error *err) {
    int apart = m->tp.ranks == 1 && m->cp_most <= 1 && !train__model_sharded(m) && !m->options.progress &&
                !m->options.flat_tokens;
    if (m->options.inference) return RAVEL_OK;
    m->graphs.device = device;
    if (kernels->capture_begin && apart && m->options.graphs != TRAIN_GRAPHS_OFF) m->graphs.kernels = kernels;
    return train__graphs_check(m->options.graphs, kernels, apart, err);
}

/* Everything but the blocks. */
static ravel_status prepare(train_model *m, const train_kernels *kernels, train_device *device,
                            const ravel_shape *shape, const train_model_options *options, ravel_error *err) {
    ravel_status status = check_options(options, err);
    m->options = *options;
    if (!m->options.in_flight) m->options.in_flight = 1;
    m->staging.count = m->options.in_flight + 1;
    m->arena.allocator = options->allocator;
    m->tp = train__link_over(options->tp, &m->exchange);
    m->cp_link = train__link_over(options->cp, &m->exchange);
    m->cp_most = options->cp_ranks > m->cp_link.ranks ? options->cp_ranks : m->cp_link.ranks;
    TRAIN_ASSERT(m->cp_most >= 1 && m->cp_link.ranks <= m->cp_most);
    if (!device && !options->tp && options->tp_ranks > 0)
        m->tp.ranks = options->tp_ranks, m->tp.rank = options->tp_rank;
    train_slice part = {options->first_layer, options->last_layer, m->tp.ranks, m->tp.rank};
    if (!status) status = train_params_create(shape, &part, options->allocator, &m->params, err);
    if (status) return status;
    train__net_init(&m->net, kernels, device, shape, m->params);
    status = prepare_units(m, kernels, device, err);
    if (status) return status;
    m->net.tp = &m->tp;
    m->net.sequence = options->sequence && m->tp.ranks > 1;
    m->vocab = shape->vocab;
    if (options->flat_tokens && m->net.window)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "shared prefixes are not possible with a sliding window of %d tokens yet",
                               m->net.window);
    if (options->flat_tokens && m->cp_most > 1)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "shared prefixes are not possible with %d context-parallel ranks yet", m->cp_most);
    sizes_of(m);
    prepare_exchange(m, kernels, device);
    TRAIN_ASSERT(m->staging.count <= TRAIN__MOST_STAGES && m->net.hidden > 0);
    return prepare_graphs(m, kernels, device, err);
}

static void close_parts(train_model *m) {
    train__units_close(&m->units);
    train_params_free(m->params);
}

ravel_status train_model_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                const train_model_options *options, train_memory *memory, ravel_error *err) {
    train_model m = {0};
    block list[BLOCKS];
    ravel_status status = prepare(&m, kernels, NULL, shape, options, err);
    if (status) {
        close_parts(&m);
        return status;
    }
    train_limits limits = limits_of(&m);
    *memory = (train_memory){.scratch = (int64_t)kernels->scratch_bytes(&limits, threads), .tables = host_bytes(&m)};
    memory->total = memory->scratch + memory->tables;
    for (int i = 0, count = blocks_of(&m, list); i < count; i++) {
        *(int64_t *)(void *)((char *)memory + list[i].field) += (int64_t)list[i].bytes;
        memory->total += (int64_t)list[i].bytes;
    }
    TRAIN_ASSERT(memory->total >= memory->weights + memory->grads + memory->activations);
    close_parts(&m);
    return RAVEL_OK;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

static ravel_status take_memory(train_model *m, ravel_error *err) {
    const train_kernels *k = m->net.kernels;
    train_limits limits = limits_of(m);
    block list[BLOCKS];
    for (int i = 0; i < m->options.in_flight; i++) TRAIN__TAKE(&m->arena, m->flights[i].places, m->sizes.flat);
    for (int i = 0; i < m->options.in_flight && train__model_by_chunk(m); i++)
        TRAIN__TAKE(&m->arena, m->flights[i].views, 2 * m->cp_most);
    if (m->graphs.kernels) TRAIN__TAKE(&m->arena, m->graphs.places, TRAIN__GRAPH_PLACES);
    TRAIN__TAKE(&m->arena, m->numbers, m->sizes.tokens);
    TRAIN__TAKE(&m->arena, m->by_place, 2 * m->sizes.flat);
    TRAIN__TAKE(&m->arena, m->row, train__max(m->net.hidden, m->net.shape.head_dim));
    ravel_status status = train__tree_open(m, err);
    if (!status) status = train__arena_status(&m->arena, "staging of batches", err);
    if (!status) status = k->reserve(m->net.device, &limits, err);
    for (int i = 0, count = blocks_of(m, list); i < count && !status; i++)
        status = (list[i].kind == STAGED ? k->alloc_host : k->alloc)(m->net.device, list[i].bytes, list[i].place, err);
    if (status) return status;
    for (int i = 0; i < m->options.in_flight; i++) {
        (void)cut_kept(m, m->kept_block[i]);
        m->flights[i].kept = m->now.kept;
    }
    m->now = m->flights[0];
    TRAIN_ASSERT(m->flight == 0 && m->now.kept.x && m->now.places);
    (void)cut_working(m, m->working_block);
    (void)cut_tables(m, m->table_block);
    m->staging.kernels = k;
    m->staging.device = m->net.device;
    m->staging.first_slot = TRAIN__STAGE_MODEL;
    m->staging.bytes = m->sizes.stage;
    TRAIN_ASSERT(m->working.xn && m->parts && m->update && m->staging.block[m->staging.count - 1]);
    return RAVEL_OK;
}

/* The ranks that have the same key heads, where there are fewer heads than ranks. */
static ravel_status join_copies(train_model *m, const ravel_shape *shape, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (m->tp.ranks <= shape->kv_heads) return RAVEL_OK;
    int32_t copies = (int32_t)(m->tp.ranks / shape->kv_heads);
    TRAIN_ASSERT(copies > 1 && m->tp.ranks % copies == 0);
    status = ravel_comm_split(ravel_comm_host(m->tp.comm), m->tp.rank / copies, m->tp.rank, &m->kv_comm, err);
    ravel_comm *comm = m->kv_comm;
    if (!status && m->options.wires)
        status = train__wires_join(m->options.wires, comm, TRAIN__WIRE_KERNELS, TRAIN__WIRE_TP, &comm, err);
    m->kv = train__link_over(comm, &m->exchange);
    return status;
}

void train__model_use_ring(train_model *m) {
    train__link_set(&m->cp_link, m->now.batch.cp ? m->now.batch.cp : m->options.cp);
    TRAIN_ASSERT(m->cp_link.ranks <= m->cp_most);
    m->cp = m->cp_link.ranks > 1 ? &m->cp_link : NULL;
}

void train__model_use(train_model *m, int32_t flight) {
    TRAIN_ASSERT(flight >= 0 && flight < m->options.in_flight);
    if (flight == m->flight) return;
    m->flights[m->flight] = m->now;
    m->now = m->flights[flight];
    m->flight = flight;
    train__model_use_ring(m);
}

ravel_status train_model_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                const train_model_options *options, train_model **model, ravel_error *err) {
    train_model *m = train__calloc(options->allocator, 1, sizeof *m);
    if (!m) return train__no_memory(err, sizeof *m, "a model");
    ravel_status status = prepare(m, kernels, device, shape, options, err);
    if (!status) status = take_memory(m, err);
    if (!status) status = join_copies(m, shape, err);
    if (status) {
        train_model_free(m);
        return status;
    }
    m->net.weights = m->weights;
    if (train__model_sharded(m)) m->net.units = &m->units;
    m->net.progress = m->options.progress;
    m->net.progress_user = m->options.progress_user;
    m->units.weight_share = m->weights;
    m->units.grad_share = m->grads;
    m->net.cosine = m->cosine;
    m->net.sine = m->sine;
    train__net_rope_tables(&m->net, m->cosine, m->sine, m->sizes.positions, m->row);
    kernels->zero(device, m->weights, (size_t)(held(m) * ravel_dtype_bytes(m->net.types.weight)));
    train_model_clear_grads(m);
    *model = m;
    return RAVEL_OK;
}

void train_model_free(train_model *m) {
    if (!m) return;
    const train_kernels *k = m->net.kernels;
    const ravel_allocator *allocator = m->arena.allocator;
    block list[BLOCKS];
    train__units_wait(&m->units);
    train__graphs_drop(&m->graphs);
    for (int i = 0, count = m->params ? blocks_of(m, list) : 0; i < count; i++)
        (list[i].kind == STAGED ? k->release_host : k->release)(m->net.device, *list[i].place, list[i].bytes);
    if (m->kv_comm) ravel_comm_free(m->kv_comm);
    close_parts(m);
    train__arena_free(&m->arena);
    train__release(allocator, m, sizeof *m);
}

/* ---- getters and weights -------------------------------------------------------------------------------- */

const train_params *train_model_params(const train_model *m) {
    return m->params;
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

const train__exchange *train_model_exchange(const train_model *m) {
    return &m->exchange;
}

train__parcel train_model_stage_parcel(const train_model *m, int64_t tokens, int32_t place) {
    TRAIN_ASSERT(place >= 0 && place <= 2 * m->options.in_flight && tokens <= m->sizes.tokens);
    int32_t first = m->cp_most > 1 ? TRAIN__SHIFT_PLACES : 0;
    return (train__parcel){
        .count = train_model_stage_elements(m, tokens), .dtype = m->net.types.activation, .place = first + place};
}

train_array train_model_array(train_model *m) {
    if (train__model_sharded(m)) train__units_forget(&m->units);
    return (train_array){m->net.kernels, m->net.device, m->weights, m->net.types.weight, m->units.shares};
}

train_array train_model_grad_array(train_model *m) {
    return (train_array){m->net.kernels, m->net.device, m->grads, m->net.types.grad, m->units.shares};
}

train_update *train_model_update(train_model *m) {
    return m->update;
}

void train_model_clear_grads(train_model *m) {
    const train_kernels *k = m->net.kernels;
    size_t bytes = (size_t)(held(m) * ravel_dtype_bytes(m->net.types.grad));
    TRAIN_ASSERT(m->update && !m->grads == !!m->options.inference);
    train__units_finish(&m->units);
    if (m->grads) k->zero(m->net.device, m->grads, bytes);
    k->zero(m->net.device, m->update, sizeof *m->update);
}

void *train__model_grad(const train_model *m, int64_t offset) {
    if (offset < 0) return NULL;
    TRAIN_ASSERT(offset < m->params->elements && !m->options.inference);
    return train__model_sharded(m) ? train__units_grad(&m->units, offset)
                                   : train__at(m->grads, m->net.types.grad, offset);
}

train_graph_figures train_model_graphs(const train_model *m) {
    const train__graphs *g = &m->graphs;
    return (train_graph_figures){g->called, g->recorded, g->launched, g->dropped};
}

double train_model_waited(const train_model *m) {
    return m->units.waited;
}

const train_shares *train_model_shares(const train_model *m) {
    return m->units.shares;
}

ravel_status train_model_finish_grads(train_model *m, ravel_error *err) {
    train__units_finish(&m->units);
    return train__units_status(&m->units, err);
}

ravel_status train_model_sum_grads(train_model *m, const train_shares *shares, ravel_error *err) {
    train_array grads = train_model_grad_array(m);
    for (int64_t i = 0; i < m->params->count; i++) {
        const train_tensor *t = m->params->tensors + i;
        train__link *link = t->copies == m->tp.ranks ? &m->tp : &m->kv;
        int64_t begin = t->offset, end = begin + t->count;
        int partial = t->partial || (m->net.sequence && t->copies == m->tp.ranks); /* norms of a share of the rows */
        if (!partial || (shares && !train_shares_cut(shares, shares->rank, &begin, &end))) continue;
        TRAIN_ASSERT(!shares || shares->params->elements == m->params->elements);
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
    return (train_waits){m->tp.seconds + m->kv.seconds, m->cp_link.seconds};
}

double train_model_flops(const ravel_shape *shape, int64_t samples, const int64_t *lengths, int64_t scored) {
    double tokens = 0, pairs = 0, head = (double)shape->vocab * (double)shape->hidden;
    for (int64_t i = 0; i < samples; i++) {
        double n = (double)lengths[i];
        tokens += n;
        pairs += n * (n + 1) / 2;
    }
    double body = (double)ravel_shape_matmul_weights(shape) - head;
    TRAIN_ASSERT(body > 0 && scored >= 0);
    return 6 * (body * tokens + head * (double)scored + (double)ravel_shape_attention_width(shape) * pairs);
}
