/* Creation and memory of a model. Every block is a row of one list (blocks_of), used by the estimate, by the allocation
 * and by the release alike. */
#include "train/model/model_internal.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "train/kernels/arena.h"
#include "train/model/hf/lora.h"
#include "train/model/ranks/shares.h"

#include <stddef.h>
#include <string.h>

void train_model_options_default(train_model_options *options) {
    *options = (train_model_options){.size = sizeof *options, .recompute = TRAIN_RECOMPUTE_LIGHT};
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static size_t lines(size_t bytes) {
    return (bytes + TRAIN_ALIGN - 1) / TRAIN_ALIGN * TRAIN_ALIGN;
}

static size_t cut_kept(const train_model *m, train__micro *mb, char *base) {
    const train__sizes *s = &m->sizes;
    const train__net *n = &m->net;
    train__kept *k = &mb->kept;
    train__cut cut = {base, 0};
    int64_t layers = m->params->part.last_layer - m->params->part.first_layer, share = train__net_share(n, s->tokens);
    int64_t head = n->sequence ? 0 : s->scored;
    RAVEL_ASSERT(layers > 0 && share > 0 && s->tokens > 0);
    k->x = train__cut_take(&cut, s->x ? layers + 1 : 1, lines(train__net_bytes(n, share * n->hidden)));
    k->rest = train__cut_take(&cut, s->rest ? layers : 1, s->end);
    k->gate_up =
        train__cut_take(&cut, s->gate_up ? layers : 1, lines(train__net_bytes(n, s->tokens * 2 * n->feed_width)));
    k->light = train__cut_take(&cut, s->light ? layers : 0, s->light);
    k->head_x = train__cut_take(&cut, 1, train__net_bytes(n, head * n->hidden));
    k->head_xn = train__cut_take(&cut, 1, train__net_bytes(n, head * n->hidden));
    train_real **numbers[] = {&k->logprob, &k->lse, &k->entropy, &k->coef, &k->entropy_coef};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i] = train__cut_take(&cut, s->scored, sizeof(train_real));
    k->sequences = train__cut_take(&cut, s->flat, sizeof *k->sequences);
    return cut.used;
}

/* Behind the other working arrays. */
static size_t cut_ring(train_model *m, char *base, size_t used) {
    const train__net *n = &m->net;
    train__ring *r = &m->ring;
    train__cut cut = {base, used};
    RAVEL_ASSERT(m->cp_most > 1);
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

/* What attention over trees needs, after the other working arrays. */
static size_t cut_tree(train_model *m, char *base, size_t used) {
    train__cut cut = {base, used};
    m->tree.o = train__cut_take(&cut, 1, train__net_bytes(&m->net, m->sizes.tokens * m->net.q_width));
    m->tree.lse = train__cut_take(&cut, m->sizes.tokens * m->net.shape.heads, sizeof *m->tree.lse);
    train__tree_cut_keys(m, &cut);
    return cut.used;
}

/* The shared part is cut three times from the same place: for attention, for feed-forward, for the head. */
static size_t cut_working(train_model *m, char *base) {
    const train__net *n = &m->net;
    train__working *w = &m->working;
    train__cut cut = {base, 0};
    int64_t t = m->sizes.tokens, share = train__net_share(n, t);
    w->xn = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    int64_t rows = n->sequence ? share : train__max(t, m->sizes.scored); /* the head's rows pass through y */
    w->y = train__cut_take(&cut, 1, train__net_bytes(n, rows * n->hidden));
    if (m->adapter) {
        train__adapter *a = &m->net.adapter;
        /* a rank of an exchange may receive all pairs for one expert, whose gate and up are one matrix */
        int64_t rows_wide = train__max(TRAIN__JOINED * t, n->exchange ? 2 * train__net_pairs(n, t) : 0);
        size_t bytes = train__net_bytes(n, rows_wide * m->adapter->lora.rank);
        a->u = train__cut_take(&cut, 1, bytes);
        if (!m->options.inference) a->d_u = train__cut_take(&cut, 1, bytes);
    }
    w->whole = n->sequence ? train__cut_take(&cut, 1, train__net_bytes(n, share * m->tp.ranks * n->hidden)) : w->y;
    if (!m->options.inference) w->d_x = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    if (!m->options.inference && (train__net_norms_after(n) || n->residual_scale < 1 || n->residual_scale > 1))
        w->d_given = train__cut_take(&cut, 1, train__net_bytes(n, share * n->hidden));
    train__cut forward = cut, head = cut;
    w->q = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
    w->k = train__cut_take(&cut, 1, train__net_bytes(n, t * n->kv_width));
    if (n->shape.qk_norm == RAVEL_QK_NORM_WHOLE)
        w->normed = train__cut_take(&cut, 1, train__net_bytes(n, t * n->qkv_width));
    w->h = train__cut_take(&forward, 1, train__net_bytes(n, t * n->feed_width));
    if (n->shape.experts)
        w->pairs = train__cut_take(&forward, 1, train__net_bytes(n, train__net_pairs(n, t) * n->hidden));
    if (n->exchange) {
        train__exchange *x = &m->exchange;
        x->capacity = train__net_pairs(n, t);
        x->rows = train__cut_take(&forward, 1, train__net_bytes(n, x->capacity * n->hidden));
        x->wire = train__cut_take(&forward, 1, train__net_bytes(n, x->capacity * n->hidden));
        x->order_there = train__cut_take(&forward, x->capacity, sizeof *x->order_there);
        x->weights = train__cut_take(&forward, x->capacity, sizeof *x->weights);
    }
    if (n->exchange && !m->options.inference) {
        train__exchange *x = &m->exchange;
        x->given = train__cut_take(&forward, 1, train__net_bytes(n, x->capacity * n->hidden));
        x->sorted = train__cut_take(&forward, 1, train__net_bytes(n, x->capacity * n->hidden));
        x->d_weights = train__cut_take(&forward, x->capacity, sizeof *x->d_weights);
    }
    if (n->shape.experts && !m->options.inference) {
        w->d_weights = train__cut_take(&forward, train__net_pairs(n, t), sizeof *w->d_weights);
        w->d_logits = train__cut_take(&forward, 1, train__net_bytes(n, t * n->shape.experts));
    }
    w->d_rows = train__cut_take(&head, 1, train__net_bytes(n, m->sizes.scored * n->hidden));
    if (n->sequence) w->head_xn = train__cut_take(&head, 1, train__net_bytes(n, m->sizes.scored * n->hidden));
    if (!m->options.inference) {
        w->d_q = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
        w->d_k = train__cut_take(&cut, 1, train__net_bytes(n, t * n->kv_width));
        w->d_o = train__cut_take(&cut, 1, train__net_bytes(n, t * n->q_width));
        w->d_qkv = train__cut_take(&cut, 1, train__net_bytes(n, t * n->qkv_width));
        w->d_h = train__cut_take(&forward, 1, train__net_bytes(n, t * n->feed_width));
    }
    size_t most = cut.used > forward.used ? cut.used : forward.used;
    if (head.used > most) most = head.used;
    RAVEL_ASSERT(most >= cut.used && most >= forward.used && most >= head.used);
    if (m->options.flat_tokens) most = cut_tree(m, base, most);
    return m->cp_most > 1 ? cut_ring(m, base, most) : most;
}

/* Of load, [layers, experts]. */
static int64_t load_numbers(const train_model *m) {
    return (m->params->part.last_layer - m->params->part.first_layer) * m->net.shape.experts;
}

static size_t cut_tables(train_model *m, char *base) {
    train__cut cut = {base, 0};
    int64_t angles =
        train__net_rope_kinds(&m->net, m->sizes.positions) * m->sizes.positions * (m->net.shape.head_dim / 2);
    m->cosine = train__cut_take(&cut, angles, sizeof *m->cosine);
    m->sine = train__cut_take(&cut, angles, sizeof *m->sine);
    m->parts = train__cut_take(&cut, (m->tp.ranks + 1) * 4 * m->sizes.logits_rows, sizeof *m->parts);
    int64_t tops = m->options.top * m->sizes.logits_rows;
    m->top_parts = train__cut_take(&cut, (m->tp.ranks + 1) * 2 * tops, sizeof *m->top_parts);
    m->top_rest = train__cut_take(&cut, m->options.top ? m->sizes.logits_rows : 0, sizeof *m->top_rest);
    m->update = train__cut_take(&cut, 1, sizeof *m->update);
    if (m->net.shape.experts && !m->options.inference) {
        m->balance = train__cut_take(&cut, load_numbers(m), sizeof *m->balance);
        m->row_loss = train__cut_take(&cut, m->sizes.tokens, sizeof *m->row_loss);
    }
    return cut.used;
}

static train_limits limits_of(const train_model *m) {
    /* with shared prefixes, all that stands below a node are its queries, and a call's samples are nodes */
    int64_t longest = m->options.flat_tokens ? train__max(m->sizes.tokens, m->sizes.positions) : m->sizes.positions;
    train_limits limits = train__net_limits(&m->net, m->sizes.tokens, longest, m->sizes.tokens);
    if (m->options.flat_tokens) limits.keys = train__tree_copies(m);
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
    int64_t t = o->budget;
    if (o->flat_tokens && m->cp_most > 1) t = train__round_up(t, RAVEL_TREE_CHUNKS); /* trees are dealt by chunks */
    int64_t share = train__net_share(n, t);
    *s = (train__sizes){.tokens = t, .positions = o->longest > 0 ? train__min(o->longest, t) : t};
    s->flat = train__max(o->flat_tokens, t);
    s->scored = o->flat_tokens && m->cp_most > 1 ? 2 * t : t;
    if (m->cp_most > 1) s->positions = o->longest > 0 ? o->longest : t * m->cp_most;
    s->o = lines(train__net_bytes(n, t * n->qkv_width));
    s->lse = s->o + lines(train__net_bytes(n, t * n->q_width));
    s->x_mid = s->lse + lines((size_t)(t * n->shape.heads) * sizeof(train_real));
    size_t row_share = lines(train__net_bytes(n, share * n->hidden));
    s->attended = s->x_mid + row_share;
    s->fed = !o->inference && train__net_norms_after(n) ? s->attended + row_share : 0;
    s->routes = s->end = s->fed ? s->fed + row_share : s->attended;
    if (n->shape.experts) s->end += lines(train__routes_cut(n, t, NULL, &(train__routes){0}));
    if (!o->inference) s->x = row_share;
    if (!o->inference && o->recompute != TRAIN_RECOMPUTE_FULL) s->rest = s->end;
    int again = n->exchange && !n->shape.dense_layers; /* gate and up of experts are made again in backward */
    if (!o->inference && o->recompute != TRAIN_RECOMPUTE_FULL && !again)
        s->gate_up = lines(train__net_bytes(n, t * 2 * n->feed_width));
    s->xn_mid = lines(train__net_bytes(n, share * n->hidden));
    s->q = 2 * s->xn_mid;
    s->k = s->q + lines(train__net_bytes(n, t * n->q_width));
    s->h = s->k + lines(train__net_bytes(n, t * n->kv_width));
    if (!o->inference && o->recompute == TRAIN_RECOMPUTE_NONE)
        s->light = s->h + lines(train__net_bytes(n, t * n->feed_width));
    train_limits limits = limits_of(m);
    limits.vocab = (m->vocab + m->tp.ranks - 1) / m->tp.ranks; /* every rank has the same chunks */
    s->logits_rows = train__min(o->logits_rows > 0 ? o->logits_rows : n->kernels->head_rows(&limits), t);
    s->kept = cut_kept(m, &(train__micro){0}, NULL);
    s->working = cut_working(m, NULL);
    s->logits = train__net_bytes(n, s->logits_rows * n->shape.vocab);
    s->tables = cut_tables(m, NULL);
    int64_t arrays = STAGED_ARRAYS;
    if (train__model_by_chunk(m)) arrays += OWN_ARRAYS + (int64_t)VIEW_ARRAYS * m->cp_most;
    if (o->flat_tokens) arrays += TREE_ARRAYS;
    s->stage = (size_t)arrays * (lines((size_t)s->flat * 4) + 2 * TRAIN_ALIGN);
    if (o->flat_tokens) s->stage += train__tree_staged(m);
    s->stage += train__load_staged(m);
    RAVEL_ASSERT(s->positions > 0 && s->logits_rows > 0 && s->logits_rows <= s->tokens);
    RAVEL_ASSERT(s->o <= s->lse && s->lse <= s->x_mid && s->q <= s->k && s->k <= s->h);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

typedef enum memory_kind { DEVICE, STAGED } memory_kind;

typedef struct block {
    void **place;
    size_t bytes;
    memory_kind kind;
    size_t field; /* of train_memory */
} block;

enum { BLOCKS = 9 + TRAIN_FLIGHTS + 2 * TRAIN__MOST_STAGES + 2 * TRAIN__UNIT_BUFFERS };

/* Elements that this rank holds of the model's weights; of the largest share where they are sharded. */
static int64_t base_held(const train_model *m) {
    return train__model_sharded(m) ? m->units.shares->most : m->params->elements;
}

/* The same of what is trained. */
static int64_t held(const train_model *m) {
    return m->adapter ? m->adapter->elements : base_held(m);
}

static int64_t widest_norm(const train_model *m) {
    return train__max(m->net.hidden, m->net.q_width); /* of q: over all heads, or over one */
}

static void put_block(block *list, int *count, void **place, size_t bytes, memory_kind kind, size_t field) {
    list[(*count)++] = (block){place, bytes, kind, field};
}

static int blocks_of(train_model *m, block *list) {
    const train__sizes *s = &m->sizes;
    size_t elements = (size_t)held(m);
    const train_types *types = &m->net.types;
    int count = 0;
#define BLOCK(place, bytes, kind, field) \
    put_block(list, &count, (void **)&(place), bytes, kind, offsetof(train_memory, field))
    if (m->adapter || !m->options.mapped)
        BLOCK(m->weights, elements * (size_t)ravel_dtype_bytes(types->weight), DEVICE, weights);
    size_t frozen = (size_t)(base_held(m) * ravel_dtype_bytes(types->weight));
    if (m->adapter && !m->options.mapped) BLOCK(m->frozen, frozen, DEVICE, weights);
    if (m->adapter) BLOCK(m->unused, (size_t)(widest_norm(m) * ravel_dtype_bytes(types->grad)), DEVICE, working);
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
    size_t exchanged = train__port_bytes(&m->port);
    if (exchanged) BLOCK(m->port.host, exchanged, STAGED, tables);
#undef BLOCK
    RAVEL_ASSERT(count > 0 && count <= BLOCKS);
    return count;
}

/* Host memory for experts: numbers that the router sorts, and the offsets of one micro-batch. */
static int64_t router_numbers(const train_model *m) {
    int64_t t = m->sizes.tokens;
    return m->net.shape.experts ? train__net_pairs(&m->net, t) + train__index_elements(&m->net, t) : 0;
}

static int64_t offset_numbers(const train_model *m) {
    int64_t layers = m->sizes.rest ? m->params->part.last_layer - m->params->part.first_layer : 1;
    return m->net.shape.experts ? layers * (m->net.shape.experts + 1) : 0;
}

/* X(array, count): of the exchange between ranks that share out experts. */
#define EXCHANGE_LIST(X)                              \
    X(counts, (x->link.ranks + 1) * x->experts)       \
    X(totals, (int64_t)x->link.ranks * x->link.ranks) \
    X(sizes, 4 * (int64_t)x->link.ranks)              \
    X(by_place, x->capacity)                          \
    X(out, x->capacity)                               \
    X(out_back, x->capacity)                          \
    X(in, x->capacity)                                \
    X(numbers, x->capacity)                           \
    X(order, x->capacity)                             \
    X(first, x->experts / x->link.ranks + 1)

static int64_t exchange_bytes(const train_model *m) {
    const train__exchange *x = &m->exchange;
    int64_t bytes = 0;
    if (!m->net.exchange) return 0;
#define X(array, count) bytes += (count) * (int64_t)sizeof *x->array;
    EXCHANGE_LIST(X)
#undef X
    return bytes;
}

static int64_t host_bytes(const train_model *m) {
    int64_t graphs = m->graphs.kernels ? TRAIN__GRAPH_PLACES * (int64_t)sizeof *m->graphs.places : 0;
    int64_t views =
        train__model_by_chunk(m) ? (int64_t)m->options.in_flight * 2 * m->cp_most * (int64_t)sizeof(train__view) : 0;
    int64_t routing = 4 * (router_numbers(m) + m->options.in_flight * offset_numbers(m)) + 8 * load_numbers(m);
    if (m->net.shape.experts) routing += m->sizes.tokens * (int64_t)sizeof *m->row_sums;
    return graphs + views + routing + exchange_bytes(m) + (int64_t)sizeof(train__micro) * m->options.in_flight +
           train__tree_bytes(m) + m->sizes.scored * 4 + m->sizes.flat * 4 * (2 + m->options.in_flight) +
           widest_norm(m) * (int64_t)sizeof(train_real);
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
    ravel_status status =
        train__units_init(&m->units, kernels, device, m->params, ranks, o->shard ? ravel_comm_rank(o->shard) : 0,
                          o->inference || m->adapter, o->allocator, err);
    m->units.link = train__link_over(o->shard, &m->port);
    m->units.experts = train__link_over(o->expert_shard, &m->port);
    return status;
}

/* The ring of context parallelism has its places first, then come those of the pipeline. */
static void prepare_port(train_model *m, const train_kernels *kernels, train_device *device) {
    const train_model_options *o = &m->options;
    const train_slice *part = &m->params->part;
    int32_t shard = o->shard ? ravel_comm_size(o->shard) : o->shard_ranks;
    int staged = part->first_layer > 0 || part->last_layer < m->net.shape.layers;
    int64_t ring = m->cp_most > 1 ? 2 * m->net.kv_width : 0, rows = staged ? m->net.hidden : 0;
    m->port = (train__port){.kernels = kernels, .device = device, .wires = o->wires, .ranks = o->peers};
    const int32_t ranks[] = {m->tp.ranks, m->cp_most, shard, part->ep};
    for (int i = 0; i < 4; i++) m->port.ranks = (int32_t)train__max(m->port.ranks, ranks[i]);
    m->port.places = (ring ? TRAIN__SHIFT_PLACES : 0) + (staged ? 1 + 2 * o->in_flight : 0);
    m->port.message_bytes = lines(train__net_bytes(&m->net, m->sizes.tokens * train__max(ring, rows)));
    RAVEL_ASSERT(m->port.ranks >= m->tp.ranks && m->port.ranks >= m->cp_most);
}

/* Graphs are for training: a reference model has none, and needs none. */
static ravel_status prepare_graphs(train_model *m, const train_kernels *kernels, train_device *device,
                                   ravel_error *err) {
    int apart = m->tp.ranks == 1 && m->cp_most <= 1 && !train__model_sharded(m) && !m->options.progress &&
                !m->options.flat_tokens && !m->net.shape.experts;
    if (m->options.inference) return RAVEL_OK;
    m->graphs.device = device;
    if (kernels->capture_begin && apart && m->options.graphs != TRAIN_GRAPHS_OFF) m->graphs.kernels = kernels;
    return train__graphs_check(m->options.graphs, kernels, apart, err);
}

/* The GPU's products read rows of whole 16 bytes. */
static ravel_status check_experts(const train__net *n, ravel_error *err) {
    if (n->kernels->host_memory || (n->shape.experts % 8 == 0 && n->shape.expert_ffn % 8 == 0)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "%lld experts of width %lld on each rank: both must be multiples of 8 with the %s kernels",
                           (long long)n->shape.experts, (long long)n->shape.expert_ffn, n->kernels->name);
}

static ravel_status check_top(const train_model *m, const ravel_shape *shape, ravel_error *err) {
    const train_model_options *o = &m->options;
    if (!o->top) return RAVEL_OK;
    if (!m->net.kernels->top_parts)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "a teacher's likeliest tokens: the %s kernels cannot; the cpu and ref kernels can",
                               m->net.kernels->name);
    if (o->flat_tokens || o->top < 0 || o->top > shape->vocab)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "top is %d, the vocabulary %lld; samples may share no prefixes (flat_tokens)", o->top,
                               (long long)shape->vocab);
    return RAVEL_OK;
}

/* Where the length of a sequence chooses its rotary frequencies, tokens that sequences share would need both. */
static ravel_status check_lengths(const train_model *m, ravel_error *err) {
    const ravel_shape *s = &m->net.shape;
    if (!m->options.flat_tokens || !ravel__shape_is_long(s, m->sizes.positions) || s->rope_always) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "sequences of more than %lld tokens have other rotary factors in this model (longrope), so "
                           "they cannot share prefixes with shorter ones: --share-prefix off",
                           (long long)s->rope_positions);
}

/* Everything but the blocks. */
static ravel_status prepare(train_model *m, const train_kernels *kernels, train_device *device,
                            const ravel_shape *shape, const train_model_options *options, ravel_error *err) {
    ravel_status status = check_options(options, err);
    m->options = *options;
    if (!m->options.in_flight) m->options.in_flight = 1;
    m->staging.count = m->options.in_flight + 1;
    m->arena.allocator = options->allocator;
    m->tp = train__link_over(options->tp, &m->port);
    m->cp_most = (int32_t)train__max(options->cp ? ravel_comm_size(options->cp) : 1, options->cp_ranks);
    if (!device && !options->tp && options->tp_ranks > 0)
        m->tp.ranks = options->tp_ranks, m->tp.rank = options->tp_rank;
    int32_t ep = options->ep ? ravel_comm_size(options->ep) : device ? 1 : options->ep_ranks;
    train_slice part = {options->first_layer,
                        options->last_layer,
                        m->tp.ranks,
                        m->tp.rank,
                        ep,
                        options->ep ? ravel_comm_rank(options->ep) : 0};
    if (!status) status = train_params_create(shape, &part, options->allocator, &m->params, err);
    if (!status && options->lora.rank)
        status = train_trained_params(shape, &part, &options->lora, options->allocator, &m->adapter, err);
    if (!status && m->adapter) status = train_lora_check_kernels(&options->lora, kernels, err);
    if (status) return status;
    train__net_init(&m->net, kernels, device, shape, m->params);
    m->net.adapter.params = m->adapter;
    m->net.adapter.rank = m->adapter ? m->adapter->lora.rank : 0;
    status = check_experts(&m->net, err);
    if (!status) status = check_top(m, shape, err);
    if (!status) status = prepare_units(m, kernels, device, err);
    if (status) return status;
    m->net.tp = &m->tp;
    m->net.sequence = options->sequence && m->tp.ranks > 1;
    m->exchange.link = train__link_over(options->ep, &m->port);
    m->exchange.experts = shape->experts;
    if (m->params->part.ep > 1) m->net.exchange = &m->exchange;
    if (!device) m->exchange.link.ranks = m->params->part.ep;
    m->vocab = shape->vocab;
    if (options->flat_tokens && shape->window && options->tree_attention == TRAIN_TREE_LEVELS)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "a sliding window of %d tokens ends inside levels of a tree: set tree-attention to keys",
                               (int32_t)shape->window);
    sizes_of(m);
    status = check_lengths(m, err);
    if (status) return status;
    prepare_port(m, kernels, device);
    RAVEL_ASSERT(m->staging.count <= TRAIN__MOST_STAGES && m->net.hidden > 0);
    return prepare_graphs(m, kernels, device, err);
}

static void close_parts(train_model *m) {
    train__units_close(&m->units);
    train_params_free(m->params);
    train_params_free(m->adapter);
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
    RAVEL_ASSERT(memory->total >= memory->weights + memory->grads + memory->activations);
    close_parts(&m);
    return RAVEL_OK;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

static ravel_status take_memory(train_model *m, ravel_error *err) {
    const train_kernels *k = m->net.kernels;
    train_limits limits = limits_of(m);
    block list[BLOCKS];
    TRAIN__TAKE(&m->arena, m->flights, m->options.in_flight);
    ravel_status status = train__arena_status(&m->arena, "micro-batches in flight", err);
    if (status) return status;
    for (int i = 0; i < m->options.in_flight; i++) TRAIN__TAKE(&m->arena, m->flights[i].places, m->sizes.flat);
    for (int i = 0; i < m->options.in_flight && train__model_by_chunk(m); i++)
        TRAIN__TAKE(&m->arena, m->flights[i].views, 2 * m->cp_most);
    if (m->graphs.kernels) TRAIN__TAKE(&m->arena, m->graphs.places, TRAIN__GRAPH_PLACES);
    if (m->net.shape.experts) {
        TRAIN__TAKE(&m->arena, m->router.ids, router_numbers(m));
        m->router.index = m->router.ids ? m->router.ids + train__net_pairs(&m->net, m->sizes.tokens) : NULL;
        m->router.rows = m->sizes.tokens;
        m->net.router = &m->router;
        TRAIN__TAKE(&m->arena, m->load, load_numbers(m));
        TRAIN__TAKE(&m->arena, m->row_sums, m->sizes.tokens);
    }
    if (m->net.exchange) {
        train__exchange *x = &m->exchange;
#define X(array, count) TRAIN__TAKE(&m->arena, x->array, count);
        EXCHANGE_LIST(X)
#undef X
    }
    for (int i = 0; i < m->options.in_flight && m->net.shape.experts; i++)
        TRAIN__TAKE(&m->arena, m->flights[i].offsets, offset_numbers(m));
    TRAIN__TAKE(&m->arena, m->numbers, m->sizes.scored);
    TRAIN__TAKE(&m->arena, m->by_place, 2 * m->sizes.flat);
    TRAIN__TAKE(&m->arena, m->row, widest_norm(m));
    status = train__tree_open(m, err);
    if (!status) status = train__arena_status(&m->arena, "staging of batches", err);
    if (!status) status = k->reserve(m->net.device, &limits, err);
    for (int i = 0, count = blocks_of(m, list); i < count && !status; i++)
        status = (list[i].kind == STAGED ? k->alloc_host : k->alloc)(m->net.device, list[i].bytes, list[i].place, err);
    if (status) return status;
    for (int i = 0; i < m->options.in_flight; i++) {
        (void)cut_kept(m, &m->flights[i], m->kept_block[i]);
        m->flights[i].cp = train__link_over(m->options.cp, &m->port);
        RAVEL_ASSERT(m->flights[i].kept.x && m->flights[i].places);
    }
    (void)cut_working(m, m->working_block);
    (void)cut_tables(m, m->table_block);
    m->staging.kernels = k;
    m->staging.device = m->net.device;
    m->staging.first_slot = TRAIN__STAGE_MODEL;
    m->staging.bytes = m->sizes.stage;
    RAVEL_ASSERT(m->working.xn && m->parts && m->update && m->staging.block[m->staging.count - 1]);
    return RAVEL_OK;
}

/* The ranks that have the same key heads, if there are fewer heads than ranks. */
static ravel_status join_copies(train_model *m, const ravel_shape *shape, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (m->tp.ranks <= shape->kv_heads) return RAVEL_OK;
    int32_t copies = (int32_t)(m->tp.ranks / shape->kv_heads);
    RAVEL_ASSERT(copies > 1 && m->tp.ranks % copies == 0);
    status = ravel_comm_split(ravel_comm_host(m->tp.comm), m->tp.rank / copies, m->tp.rank, &m->kv_comm, err);
    ravel_comm *comm = m->kv_comm;
    if (!status && m->options.wires)
        status = train__wires_join(m->options.wires, comm, TRAIN__WIRE_KERNELS, TRAIN__WIRE_TP, &comm, err);
    m->kv = train__link_over(comm, &m->port);
    return status;
}

ravel_status train_model_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                const train_model_options *options, train_model **model, ravel_error *err) {
    train_model *m = ravel__calloc(options->allocator, 1, sizeof *m);
    if (!m) return ravel__no_memory(err, sizeof *m, "a model");
    ravel_status status = prepare(m, kernels, device, shape, options, err);
    if (!status) status = take_memory(m, err);
    if (!status) status = join_copies(m, shape, err);
    if (status) {
        train_model_free(m);
        return status;
    }
    void *base = m->adapter ? m->frozen : m->weights;
    m->net.weights = base;
    m->net.adapter.grads = m->grads;
    train_model_set_adapter(m, 1);
    if (train__model_sharded(m)) m->net.units = &m->units;
    m->net.progress = m->options.progress;
    m->net.progress_user = m->options.progress_user;
    m->units.weight_share = base;
    m->units.grad_share = m->adapter ? NULL : m->grads;
    train__net_rope_tables(&m->net, m->cosine, m->sine, m->sizes.positions, m->row);
    if (m->weights) kernels->zero(device, m->weights, (size_t)(held(m) * ravel_dtype_bytes(m->net.types.weight)));
    if (m->frozen) kernels->zero(device, m->frozen, (size_t)(base_held(m) * ravel_dtype_bytes(m->net.types.weight)));
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
    for (int i = 0, count = m->port.kernels ? blocks_of(m, list) : 0; i < count; i++)
        (list[i].kind == STAGED ? k->release_host : k->release)(m->net.device, *list[i].place, list[i].bytes);
    if (m->kv_comm) ravel_comm_free(m->kv_comm);
    close_parts(m);
    train__arena_free(&m->arena);
    ravel__release(allocator, m, sizeof *m);
}

void train_model_clear_grads(train_model *m) {
    const train_kernels *k = m->net.kernels;
    size_t bytes = (size_t)(held(m) * ravel_dtype_bytes(m->net.types.grad));
    RAVEL_ASSERT(m->update && !m->grads == !!m->options.inference);
    train__units_finish(&m->units);
    if (m->grads) k->zero(m->net.device, m->grads, bytes);
    k->zero(m->net.device, m->update, sizeof *m->update);
    train__load_clear(m);
}
