/* Creation and memory of a model. The sizes are worked out once, by layout_of, and used by the estimate and by the
 * allocation alike. */
#include "train/model/model_internal.h"

#include "train/kernels/host.h"

#include <string.h>

void train_model_options_default(train_model_options *options) {
    *options = (train_model_options){.size = sizeof *options};
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

/* The next `elements` of a block, at a multiple of 16. */
static int64_t carve(int64_t *used, int64_t elements) {
    int64_t at = train__round_up(*used, 16);
    *used = at + elements;
    return at;
}

static int64_t chunk_rows(const ravel_shape *shape, const train_model_options *options) {
    int64_t rows = options->logits_rows;
    if (rows <= 0) rows = train__min(train__max((int64_t)(16 << 20) / 4 / shape->vocab, 64), 1024);
    return train__min(rows, options->budget);
}

static void layer_layout(train__layout *l, const train__net *net) {
    int64_t used = 0, t = l->tokens;
    l->x_size = train__round_up(t * net->hidden, 16);
    l->qkv = carve(&used, t * net->qkv_width);
    l->o = carve(&used, t * net->q_width);
    l->lse = carve(&used, t * net->shape.heads);
    l->x_mid = carve(&used, t * net->hidden);
    l->gate_up = carve(&used, t * 2 * net->ffn);
    l->rest_size = train__round_up(used, 16);
}

/* What the two halves of a layer need beside their input and output, see model_layers.c. */
static int64_t shared_width(const train__net *net, int inference) {
    int64_t attention = net->q_width + net->kv_width, feed_forward = net->ffn;
    if (!inference) {
        attention += net->q_width + net->q_width + net->kv_width + net->qkv_width;
        feed_forward += net->ffn;
    }
    return train__max(train__max(attention, feed_forward), net->hidden);
}

static train__layout layout_of(const train__net *net, const train_model_options *o) {
    train__layout l = {.tokens = o->budget};
    int64_t used = 0, t = o->budget, layers = net->shape.layers;
    layer_layout(&l, net);
    l.layers_x = o->inference ? 1 : layers + 1;
    l.layers_rest = o->inference || o->recompute ? 1 : layers;
    used = l.layers_x * l.x_size + l.layers_rest * l.rest_size;
    l.head_x = carve(&used, t * net->hidden);
    l.head_xn = carve(&used, t * net->hidden);
    l.kept_elements = used;

    used = 0;
    l.xn = carve(&used, t * net->hidden);
    l.y = carve(&used, t * net->hidden);
    l.d_x = o->inference ? 0 : carve(&used, t * net->hidden);
    l.shared_size = t * shared_width(net, o->inference) + 16 * 8; /* up to 8 parts, each rounded up */
    l.shared = carve(&used, l.shared_size);
    l.working_elements = used;

    l.logits_rows = chunk_rows(&net->shape, o);
    l.logits_elements = l.logits_rows * net->shape.vocab;
    l.positions = o->longest > 0 ? train__min(o->longest, o->budget) : o->budget;
    return l;
}

/* Hands out pieces of a block of bytes; with base NULL it only counts. */
typedef struct pieces {
    char *base;
    int64_t used;
} pieces;

static void *piece(pieces *p, int64_t count, size_t each) {
    int64_t at = train__round_up(p->used, TRAIN_ALIGN);
    p->used = at + count * (int64_t)each;
    return p->base ? p->base + at : NULL;
}

static int64_t cut_tables(char *base, const train__layout *l, const train__net *net, train__tables *t) {
    pieces p = {0};
    p.base = base;
    int64_t n = l->tokens, half = net->shape.head_dim / 2;
    t->cosine = piece(&p, l->positions * half, sizeof(train_real));
    t->sine = piece(&p, l->positions * half, sizeof(train_real));
    int32_t **ids[] = {&t->tokens, &t->places, &t->starts, &t->lengths, &t->rows, &t->targets};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) *ids[i] = piece(&p, n, sizeof(int32_t));
    train_real **numbers[] = {&t->logprob, &t->lse, &t->entropy, &t->coef, &t->entropy_coef};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) *numbers[i] = piece(&p, n, sizeof(train_real));
    return p.used;
}

static int64_t cut_staging(char *base, const train__layout *l, const train__net *net, train__staging *s) {
    pieces p = {0};
    p.base = base;
    int64_t n = l->tokens;
    int32_t **ids[] = {&s->tokens, &s->positions, &s->starts, &s->lengths, &s->rows, &s->targets, &s->places};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) *ids[i] = piece(&p, n, sizeof(int32_t));
    float **numbers[] = {&s->logprob, &s->entropy, &s->coef, &s->entropy_coef};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) *numbers[i] = piece(&p, n, sizeof(float));
    s->real = piece(&p, train__max(net->hidden, net->shape.head_dim), sizeof(train_real));
    return p.used;
}

static train_limits limits_of(const train__net *net, const train__layout *l, int inference) {
    return (train_limits){.tokens = l->tokens,
                          .longest = l->positions,
                          .samples = l->tokens,
                          .width = train__max(train__max(2 * net->ffn, net->qkv_width), net->hidden),
                          .heads = net->shape.heads,
                          .kv_heads = net->shape.kv_heads,
                          .head_dim = net->shape.head_dim,
                          .vocab = net->shape.vocab,
                          .inference = inference};
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
    return RAVEL_OK;
}

static void fill_memory(const train_kernels *kernels, int32_t threads, const train__net *net, const train__layout *l,
                        const train_model_options *o, train_memory *memory) {
    train__tables tables;
    train__staging staging;
    train_limits limits = limits_of(net, l, o->inference);
    int64_t real = (int64_t)sizeof(train_real);
    memory->weights = net->params->elements * real;
    memory->grads = o->inference ? 0 : memory->weights;
    memory->activations = l->kept_elements * real;
    memory->working = l->working_elements * real;
    memory->logits = l->logits_elements * real;
    memory->scratch = (int64_t)kernels->scratch_bytes(&limits, threads);
    memory->tables = cut_tables(NULL, l, net, &tables) + cut_staging(NULL, l, net, &staging);
    memory->total = memory->weights + memory->grads + memory->activations + memory->working + memory->logits +
                    memory->scratch + memory->tables;
}

ravel_status train_model_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                const train_model_options *options, train_memory *memory, ravel_error *err) {
    train_params *params = NULL;
    train__net net;
    ravel_status status = check_options(options, err);
    if (!status) status = train_params_create(shape, options->allocator, &params, err);
    if (status) return status;
    train__net_init(&net, kernels, NULL, shape, params);
    train__layout layout = layout_of(&net, options);
    fill_memory(kernels, threads, &net, &layout, options, memory);
    train_params_free(params);
    return RAVEL_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static ravel_status take(train_model *m, int64_t elements, train_real **block, ravel_error *err) {
    void *got = NULL;
    ravel_status status = m->net.kernels->alloc(m->net.device, (size_t)elements * sizeof(train_real), &got, err);
    if (!status) *block = got;
    return status;
}

static void give(train_model *m, train_real *block, int64_t elements) {
    m->net.kernels->release(m->net.device, block, (size_t)elements * sizeof(train_real));
}

static ravel_status take_tables(train_model *m, ravel_error *err) {
    void *block = NULL;
    m->layout.table_bytes = cut_tables(NULL, &m->layout, &m->net, &m->tables);
    m->layout.host_bytes = cut_staging(NULL, &m->layout, &m->net, &m->staging);
    ravel_status status = m->net.kernels->alloc(m->net.device, (size_t)m->layout.table_bytes, &block, err);
    if (status) return status;
    m->table_block = block;
    m->host_block = train__alloc_aligned(m->allocator, (size_t)m->layout.host_bytes);
    if (!m->host_block) return train__no_memory(err, (size_t)m->layout.host_bytes, "staging of batches");
    cut_tables(m->table_block, &m->layout, &m->net, &m->tables);
    cut_staging(m->host_block, &m->layout, &m->net, &m->staging);
    return RAVEL_OK;
}

static ravel_status take_blocks(train_model *m, ravel_error *err) {
    train_limits limits = limits_of(&m->net, &m->layout, m->options.inference);
    ravel_status status = m->net.kernels->reserve(m->net.device, &limits, err);
    if (!status) status = take(m, m->params->elements, &m->weights, err);
    if (!status && !m->options.inference) status = take(m, m->params->elements, &m->grads, err);
    if (!status) status = take(m, m->layout.kept_elements, &m->kept, err);
    if (!status) status = take(m, m->layout.working_elements, &m->working, err);
    if (!status) status = take(m, m->layout.logits_elements, &m->logits, err);
    if (!status) status = take_tables(m, err);
    return status;
}

ravel_status train_model_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                const train_model_options *options, train_model **model, ravel_error *err) {
    ravel_status status = check_options(options, err);
    if (status) return status;
    train_model *m = train__calloc(options->allocator, 1, sizeof *m);
    if (!m) return train__no_memory(err, sizeof *m, "a model");
    m->allocator = options->allocator;
    m->options = *options;
    status = train_params_create(shape, m->allocator, &m->params, err);
    if (!status) {
        train__net_init(&m->net, kernels, device, shape, m->params);
        m->layout = layout_of(&m->net, options);
        status = take_blocks(m, err);
    }
    if (status) {
        train_model_free(m);
        return status;
    }
    m->net.weights = m->weights;
    m->net.cosine = m->tables.cosine;
    m->net.sine = m->tables.sine;
    train__net_rope_tables(&m->net, m->tables.cosine, m->tables.sine, m->layout.positions, m->staging.real);
    kernels->zero(device, m->weights, (size_t)m->params->elements * sizeof(train_real));
    train_model_clear_grads(m);
    *model = m;
    return RAVEL_OK;
}

void train_model_free(train_model *m) {
    if (!m) return;
    if (m->params) {
        give(m, m->weights, m->params->elements);
        give(m, m->grads, m->params->elements);
        give(m, m->kept, m->layout.kept_elements);
        give(m, m->working, m->layout.working_elements);
        give(m, m->logits, m->layout.logits_elements);
        m->net.kernels->release(m->net.device, m->table_block, (size_t)m->layout.table_bytes);
        train__release_aligned(m->allocator, m->host_block, (size_t)m->layout.host_bytes);
    }
    train_params_free(m->params);
    train__release(m->allocator, m, sizeof *m);
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

train_real *train_model_weights(train_model *m) {
    return m->weights;
}

train_real *train_model_grads(train_model *m) {
    return m->grads;
}

void train_model_clear_grads(train_model *m) {
    if (m->grads) m->net.kernels->zero(m->net.device, m->grads, (size_t)m->params->elements * sizeof(train_real));
}

/* A matrix is normal, a norm is 1, a bias is 0; row by row through the staging row. */
static void init_tensor(train_model *m, int64_t index, uint64_t seed, double deviation) {
    const train_tensor *t = m->params->tensors + index;
    train_real *row = m->staging.real;
    int is_norm = t->rank == 1 && !strstr(t->name, "bias");
    for (int64_t done = 0; done < t->count;) {
        int64_t count = train__min(t->count - done, m->net.hidden);
        for (int64_t i = 0; i < count; i++) {
            double normal = t->rank == 2 ? train__random_normal(seed, (uint64_t)index, (uint64_t)(done + i)) : 0;
            row[i] = (train_real)(is_norm ? 1 : deviation * normal);
        }
        m->net.kernels->upload(m->net.device, m->weights + t->offset + done, row, (size_t)count * sizeof *row);
        done += count;
    }
}

ravel_status train_model_init(train_model *m, uint64_t seed, double deviation, ravel_error *err) {
    if (!(deviation >= 0)) return ravel_error_set(err, RAVEL_E_ARGUMENT, "deviation must not be negative");
    for (int64_t i = 0; i < m->params->count; i++) init_tensor(m, i, seed, deviation > 0 ? deviation : 0.02);
    return m->net.kernels->sync(m->net.device, err);
}

double train_model_flops(const ravel_shape *shape, int64_t samples, const int64_t *lengths, int64_t scored) {
    double tokens = 0, pairs = 0, head = (double)shape->vocab * (double)shape->hidden;
    for (int64_t i = 0; i < samples; i++) {
        double n = (double)lengths[i];
        tokens += n;
        pairs += n * (n + 1) / 2;
    }
    double body = (double)ravel_shape_matmul_weights(shape) - head;
    return 6 * (body * tokens + head * (double)scored + (double)ravel_shape_attention_width(shape) * pairs);
}
