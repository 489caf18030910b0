/* Training by recorded graphs, without a GPU: a kernel set that records its calls, with their arguments as they were,
 * and makes them again over the CPU's set. So whatever differs between two micro-batches of one key must be in device
 * memory, or the results differ. */
#include "tests/unit/train_support.h"

#include "train/model/generate/generator_internal.h"
#include "train/model/net/graphs.h"

#include <stdlib.h>

enum { MOST_ARGUMENTS = 400, BUDGET = 64, MOST_SAMPLES = 3 };

typedef struct call {
    void (*again)(train_device *device, const void *arguments);
    _Alignas(16) unsigned char arguments[MOST_ARGUMENTS];
} call;

struct train_graph {
    call *calls;
    int count, memory;
};

static const train_kernels *real;
static train_graph *open_graph; /* being recorded */
static int memory;              /* changes where the device's own memory moves */
static int refuses;             /* to record */
static int alive;               /* graphs */

/* Whether the call was recorded, and so is not to be made. */
static int recorded(void (*again)(train_device *device, const void *arguments), const void *arguments, size_t bytes) {
    if (!open_graph) return 0;
    (void)EXPECT(bytes <= MOST_ARGUMENTS);
    open_graph->calls = realloc(open_graph->calls, (size_t)(open_graph->count + 1) * sizeof *open_graph->calls);
    call *c = &open_graph->calls[open_graph->count++];
    c->again = again;
    memcpy(c->arguments, arguments, bytes);
    return 1;
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

#define SLOT(slot, type)                                             \
    static void slot##_again(train_device *d, const void *x) {       \
        real->slot(d, x);                                            \
    }                                                                \
    static void some_##slot(train_device *d, const type *x) {        \
        if (!recorded(slot##_again, x, sizeof *x)) real->slot(d, x); \
    }
SLOT(matmul, train_matmul)
SLOT(copy_rows, train_rows)
SLOT(embed, train_embedding)
SLOT(embed_backward, train_embedding)
SLOT(rmsnorm, train_norm)
SLOT(rmsnorm_backward, train_norm)
SLOT(rope, train_rope)
SLOT(rope_backward, train_rope)
SLOT(gated, train_gated)
SLOT(gated_backward, train_gated)
SLOT(softmax_parts, train_softmax)
SLOT(softmax_combine, train_softmax)
SLOT(softmax_backward, train_softmax)
SLOT(cache_write, train_cache_write)
SLOT(attention_cached, train_cached)
SLOT(sample, train_sample)

/* Lengths on the host are not there when a graph is launched; a set may have cut its kernels by them, so they must be
 * those of the device. */
typedef struct attention_call {
    train_attention x;
    int32_t lengths[MOST_SAMPLES];
} attention_call;

static attention_call kept_attention(const train_attention *x) {
    attention_call c = {.x = *x};
    if (x->queries.host_lengths) /* prompts have none, and are not recorded */
        memcpy(c.lengths, x->queries.host_lengths, (size_t)x->samples * sizeof *c.lengths);
    c.x.queries.host_lengths = c.x.keys.host_lengths = NULL;
    return c;
}

static const train_attention *checked(const attention_call *c) {
    (void)EXPECT(memcmp(c->lengths, c->x.queries.lengths, (size_t)c->x.samples * sizeof *c->lengths) == 0);
    return &c->x;
}

#define ATTENTION(slot)                                                    \
    static void slot##_again(train_device *d, const void *x) {             \
        real->slot(d, checked(x));                                         \
    }                                                                      \
    static void some_##slot(train_device *d, const train_attention *x) {   \
        attention_call kept = kept_attention(x);                           \
        if (!recorded(slot##_again, &kept, sizeof kept)) real->slot(d, x); \
    }
ATTENTION(attention)
ATTENTION(attention_backward)

typedef struct loss_call {
    train_loss_rows rows;
    train_policy_terms policy;
} loss_call;

static void loss_again(train_device *d, const void *x) {
    loss_call kept = *(const loss_call *)x;
    if (kept.rows.policy) kept.rows.policy = &kept.policy;
    real->loss(d, &kept.rows);
}

static void some_loss(train_device *d, const train_loss_rows *x) {
    loss_call kept = {.rows = *x};
    if (x->policy) kept.policy = *x->policy;
    if (!recorded(loss_again, &kept, sizeof kept)) real->loss(d, x);
}

typedef struct flat_call {
    void *to;
    int64_t rows;
} flat_call;

static void zero_again(train_device *d, const void *x) {
    const flat_call *c = x;
    real->zero(d, c->to, (size_t)c->rows);
}

static void some_zero(train_device *d, void *block, size_t bytes) {
    flat_call c = {.to = block, .rows = (int64_t)bytes};
    if (!recorded(zero_again, &c, sizeof c)) real->zero(d, block, bytes);
}

/* Memory may not move, nor the host wait, while a graph is recorded. */
static ravel_status some_sync(train_device *d, ravel_error *err) {
    (void)EXPECT(!open_graph);
    return real->sync(d, err);
}

static void some_download(train_device *d, void *host, const void *block, size_t bytes) {
    CHECK(!open_graph);
    real->download(d, host, block, bytes);
}

/* ---- graphs --------------------------------------------------------------------------------------------- */

static ravel_status begin(train_device *d, ravel_error *err) {
    (void)d;
    if (refuses) return ravel_error_set(err, RAVEL_E_DEVICE, "recording is refused");
    (void)EXPECT(!open_graph);
    open_graph = calloc(1, sizeof *open_graph);
    open_graph->memory = memory;
    alive++;
    return RAVEL_OK;
}

static ravel_status end(train_device *d, train_graph **graph, ravel_error *err) {
    (void)d, (void)err;
    *graph = open_graph;
    open_graph = NULL;
    return RAVEL_OK;
}

static void run(train_device *d, train_graph *graph) {
    CHECK(graph->memory == memory);
    for (int i = 0; i < graph->count; i++) graph->calls[i].again(d, graph->calls[i].arguments);
}

static int valid(const train_device *d, const train_graph *graph) {
    (void)d;
    return graph->memory == memory;
}

static void release(train_device *d, train_graph *graph) {
    (void)d;
    free(graph->calls);
    free(graph);
    alive--;
}

static bool recording_set(train_kernels *table) {
    if (train_kernels_find("cpu", &real, NULL)) return false;
    memory = refuses = 0;
    *table = *real;
    table->matmul = some_matmul;
    table->copy_rows = some_copy_rows;
    table->embed = some_embed;
    table->embed_backward = some_embed_backward;
    table->rmsnorm = some_rmsnorm;
    table->rmsnorm_backward = some_rmsnorm_backward;
    table->rope = some_rope;
    table->rope_backward = some_rope_backward;
    table->attention = some_attention;
    table->attention_backward = some_attention_backward;
    table->gated = some_gated;
    table->gated_backward = some_gated_backward;
    table->softmax_parts = some_softmax_parts;
    table->softmax_combine = some_softmax_combine;
    table->softmax_backward = some_softmax_backward;
    table->softmax_fused = NULL;
    table->loss = some_loss;
    table->cache_write = some_cache_write;
    table->attention_cached = some_attention_cached;
    table->sample = some_sample;
    table->zero = some_zero;
    table->sync = some_sync;
    table->download = some_download;
    table->capture_begin = begin;
    table->capture_end = end;
    table->graph_run = run;
    table->graph_valid = valid;
    table->graph_free = release;
    return true;
}

/* ---- the places ----------------------------------------------------------------------------------------- */

static void count_calls(void *user) {
    if (!open_graph) ++*(int *)user;
}

static void run_key(train__graphs *g, int64_t word, int *calls) {
    train__graph_key key = {.count = 0};
    train__key_add(&key, word);
    train__graphs_run(g, &key, TRAIN_PHASE_FORWARD, count_calls, calls);
}

static train__graphs graphs_on(const train_kernels *table, train_device **device) {
    (void)EXPECT(!table->open(&(train_device_options){.threads = 1}, device, NULL));
    static train__graph_place places[TRAIN__GRAPH_PLACES];
    return (train__graphs){.kernels = table, .device = *device, .places = places};
}

TEST(train_graphs_first_called_then_recorded) {
    train_kernels table;
    train_device *device;
    int calls = 0;
    CHECK(recording_set(&table));
    train__graphs g = graphs_on(&table, &device);
    for (int i = 0; i < 4; i++) run_key(&g, 1, &calls);
    CHECK_EQ(calls, 1);
    CHECK_EQ(g.recorded, 1);
    CHECK_EQ(g.launched, 3);
    memory++; /* scratch has grown: recorded again, without another call */
    for (int i = 0; i < 2; i++) run_key(&g, 1, &calls);
    CHECK_EQ(calls, 1);
    CHECK_EQ(g.recorded, 2);
    CHECK_EQ(g.dropped, 1);
    CHECK_EQ(alive, 1);
    refuses = 1; /* a failed device: calls are made, which then do nothing */
    for (int i = 0; i < 2; i++) run_key(&g, 2, &calls);
    CHECK_EQ(calls, 3);
    train__graphs_drop(&g);
    CHECK_EQ(alive, 0);
    table.close(device);
}

TEST(train_graphs_keep_those_used_last) {
    train_kernels table;
    train_device *device;
    int calls = 0;
    CHECK(recording_set(&table));
    train__graphs g = graphs_on(&table, &device);
    for (int round = 0; round < 2; round++)
        for (int64_t key = 0; key < TRAIN__GRAPH_PLACES; key++) run_key(&g, key, &calls);
    CHECK_EQ(alive, TRAIN__GRAPH_PLACES);
    run_key(&g, 0, &calls); /* now key 1 is the oldest */
    calls = 0;
    run_key(&g, 1000, &calls);
    CHECK_EQ(calls, 1);
    CHECK_EQ(alive, TRAIN__GRAPH_PLACES - 1);
    run_key(&g, 0, &calls);
    CHECK_EQ(calls, 1); /* still there */
    run_key(&g, 1, &calls);
    CHECK_EQ(calls, 2); /* was dropped, and took the place of key 2 */
    run_key(&g, 3, &calls);
    CHECK_EQ(calls, 2);
    CHECK_EQ(g.dropped, 2);
    train__graphs_drop(&g);
    CHECK_EQ(alive, 0);
    table.close(device);
}

/* Keys of different words are different, also where one begins with the other. */
TEST(train_graphs_keys) {
    train_kernels table;
    train_device *device;
    int calls = 0;
    CHECK(recording_set(&table));
    train__graphs g = graphs_on(&table, &device);
    double terms[2] = {1, 2};
    for (int i = 0; i < 4; i++) {
        train__graph_key key = {.count = 0};
        train__key_add_pointer(&key, &terms[i % 2]);
        if (i >= 2) train__key_add_struct(&key, terms, sizeof terms);
        train__graphs_run(&g, &key, TRAIN_PHASE_HEAD, count_calls, &calls);
    }
    CHECK_EQ(calls, 4);
    CHECK_EQ(g.count, 4);
    train__graphs_drop(&g);
    table.close(device);
}

/* ---- whole models --------------------------------------------------------------------------------------- */

typedef struct micro {
    int32_t tokens[BUDGET], cu_seqlens[MOST_SAMPLES + 1];
    float weights[BUDGET], old[BUDGET], advantages[MOST_SAMPLES];
    train_batch batch;
} micro;

static uint32_t next(uint32_t *seed) {
    return (*seed = *seed * 1664525u + 1013904223u) >> 8;
}

/* Samples of these lengths with random contents. */
static void fill(micro *b, const int32_t *lengths, int32_t samples, int64_t vocab, uint32_t *seed) {
    for (int32_t i = 0; i < samples; i++) b->cu_seqlens[i + 1] = b->cu_seqlens[i] + lengths[i];
    for (int32_t t = 0; t < b->cu_seqlens[samples]; t++) {
        b->tokens[t] = (int32_t)(next(seed) % (uint32_t)vocab);
        b->weights[t] = 0.5F + (float)(next(seed) % 100) / 100;
        b->old[t] = -4 - (float)(next(seed) % 100) / 100;
    }
    for (int32_t i = 0; i < samples; i++) b->advantages[i] = (float)(next(seed) % 200) / 100 - 1;
    b->batch = (train_batch){
        .samples = samples, .tokens = b->tokens, .cu_seqlens = b->cu_seqlens, .weights = b->weights, .temperature = 1};
}

typedef struct results {
    float *grads;
    train_update update;
    train_graph_figures figures;
} results;

/* Two updates: rounds of micro-batches of three shapes; `policy`: with a policy loss whose terms change on the way. */
static results learn_rounds(const train_kernels *table, int32_t graphs, int32_t recompute, int policy) {
    static const int32_t lengths[3][MOST_SAMPLES] = {{20, 9, 3}, {20, 9, 3}, {9, 20, 3}};
    results r = {0};
    rig g = {.kernels = table, .shape = small_shape()};
    train_model_options o;
    uint32_t seed = (uint32_t)check_seed();
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options_default(&o);
    o.budget = BUDGET;
    o.graphs = graphs;
    o.recompute = recompute;
    (void)EXPECT(!table->open(&(train_device_options){.threads = 1}, &g.device, &err));
    (void)EXPECT(!train_model_create(table, g.device, &g.shape, &o, &g.model, &err));
    (void)EXPECT(!train_model_init(g.model, 3, 0, &err));
    train_model_clear_grads(g.model);
    for (int i = 0; i < 24; i++) {
        micro b = {0};
        train_loss loss = {.old = b.old, .advantages = b.advantages};
        loss.policy =
            (train_policy_terms){.clip_low = 0.2, .clip_high = i < 12 ? 0.2 : 0.3, .entropy = i % 2 ? 0 : 0.01};
        fill(&b, lengths[i / 2 % 3], MOST_SAMPLES, g.shape.vocab, &seed);
        if (i == 9) memory++;
        if (train_model_learn(g.model, &b.batch, policy ? &loss : NULL, NULL, &err))
            check_fail(__FILE__, __LINE__, "%s", err.message);
    }
    (void)EXPECT(!train_model_read(g.model, &r.update, &err));
    r.grads = rig_grads(&g);
    r.figures = train_model_graphs(g.model);
    train_model_free(g.model);
    table->close(g.device);
    (void)EXPECT(alive == 0);
    return r;
}

TEST(train_graphs_give_the_bits_of_calls) {
    train_kernels table;
    ravel_shape shape = small_shape();
    CHECK(recording_set(&table));
    for (int recompute = 0; recompute < 3; recompute++)
        for (int policy = 0; policy < 2; policy++) {
            results on = learn_rounds(&table, TRAIN_GRAPHS_AUTO, recompute, policy);
            results off = learn_rounds(&table, TRAIN_GRAPHS_OFF, recompute, policy);
            train_params *params;
            CHECK(on.figures.launched > 20 && on.figures.recorded > 0 && on.figures.called > 0);
            CHECK_EQ(off.figures.launched + off.figures.recorded, 0);
            CHECK(!train_params_create(&shape, &(train_slice){.tp = 1}, NULL, &params, NULL));
            CHECK(memcmp(on.grads, off.grads, (size_t)params->elements * sizeof(float)) == 0);
            CHECK(memcmp(&on.update, &off.update, sizeof on.update) == 0);
            train_params_free(params);
            free(on.grads);
            free(off.grads);
        }
}

/* ---- a generator ---------------------------------------------------------------------------------------- */

enum { SEQUENCES = 6, ANSWER = 40 };

typedef struct answers {
    int32_t tokens[SEQUENCES][ANSWER];
    float logprob[SEQUENCES][ANSWER];
    int64_t launched, left; /* graphs that were launched; graphs alive afterwards */
} answers;

static ravel_status keep_answer(void *user, const train_answer *a, ravel_error *err) {
    answers *to = user;
    (void)err;
    memcpy(to->tokens[a->sample], a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(to->logprob[a->sample], a->logprob, (size_t)a->count * sizeof *a->logprob);
    return RAVEL_OK;
}

/* The same prompts with two sets of weights in turn, and the device's memory moving on the way. */
static bool generate(const train_kernels *table, int32_t graphs, answers *to) {
    static const int32_t prompt[] = {3, 1, 4, 1, 5};
    rig g = {.kernels = table, .shape = small_shape()};
    train_model_options o;
    train_generator_options options;
    train_generator *generator = NULL;
    train_sampling sampling;
    train_model *other = NULL;
    train_model_options_default(&o);
    train_generator_options_default(&options);
    train_sampling_default(&sampling);
    sampling.max_tokens = ANSWER;
    o.budget = 8;
    o.inference = 1;
    options.slots = 4;
    options.slot_tokens = 64;
    options.graphs = graphs;
    bool good = EXPECT(!table->open(&(train_device_options){.threads = 1}, &g.device, NULL)) &&
                EXPECT(!train_model_create(table, g.device, &g.shape, &o, &g.model, NULL)) &&
                EXPECT(!train_model_create(table, g.device, &g.shape, &o, &other, NULL)) &&
                EXPECT(!train_model_init(g.model, 3, 0.5, NULL)) && EXPECT(!train_model_init(other, 4, 0.5, NULL)) &&
                EXPECT(!train_generator_create(table, g.device, &g.shape, &options, &generator, NULL));
    for (int i = 0; i < 4 && good; i++) {
        train_request request = {.prompt = prompt, .count = 5, .id = i, .samples = SEQUENCES, .sampling = &sampling};
        train_generator_set_weights(generator, train_model_weights(i % 2 ? other : g.model), i);
        if (i == 3) memory++;
        good = EXPECT(!train_generator_run(generator, &request, 1, keep_answer, to, NULL));
    }
    to->launched = generator ? generator->graphs.launched : 0;
    train_generator_free(generator);
    to->left = alive;
    train_model_free(g.model);
    train_model_free(other);
    table->close(g.device);
    return good;
}

TEST(train_graphs_of_a_generator) {
    static answers on, off;
    train_kernels table;
    CHECK(recording_set(&table));
    CHECK(generate(&table, TRAIN_GRAPHS_AUTO, &on) && generate(&table, TRAIN_GRAPHS_OFF, &off));
    CHECK(on.launched > 100 && off.launched == 0 && on.left == 0);
    CHECK(memcmp(on.tokens, off.tokens, sizeof on.tokens) == 0);
    CHECK(memcmp(on.logprob, off.logprob, sizeof on.logprob) == 0);
}

/* On is for what trains: a reference model beside it has no graphs, and that is no error. */
TEST(train_graphs_on_of_a_reference_model) {
    train_kernels table;
    train_device *device;
    train_model *model;
    train_model_options o;
    ravel_shape shape = small_shape();
    CHECK(recording_set(&table));
    CHECK(!table.open(&(train_device_options){.threads = 1}, &device, NULL));
    train_model_options_default(&o);
    o.budget = BUDGET;
    o.graphs = TRAIN_GRAPHS_ON;
    o.inference = 1;
    CHECK(!train_model_create(&table, device, &shape, &o, &model, NULL));
    train_model_free(model);
    table.close(device);
}

/* A set without graphs: auto calls, on says so. */
TEST(train_graphs_of_a_set_without_them) {
    const train_kernels *cpu;
    train_device *device;
    train_model *model;
    train_model_options o;
    ravel_shape shape = small_shape();
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(!train_kernels_find("cpu", &cpu, &err));
    CHECK(!cpu->open(&(train_device_options){.threads = 1}, &device, &err));
    train_model_options_default(&o);
    o.budget = BUDGET;
    CHECK(!train_model_create(cpu, device, &shape, &o, &model, &err));
    train_model_free(model);
    o.graphs = TRAIN_GRAPHS_ON;
    CHECK_EQ(train_model_create(cpu, device, &shape, &o, &model, &err), RAVEL_E_UNSUPPORTED);
    CHECK(strstr(err.message, "--graphs") != NULL);
    train_generator *generator;
    train_generator_options g;
    train_generator_options_default(&g);
    g.slot_tokens = 64;
    g.graphs = TRAIN_GRAPHS_ON;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(train_generator_create(cpu, device, &shape, &g, &generator, &err), RAVEL_E_UNSUPPORTED);
    CHECK(strstr(err.message, "no graphs") != NULL);
    cpu->close(device);
}
