/* Micro-batches as recorded graphs beside the calls themselves: the time of a pass over micro-batches whose shapes come
 * again, and whether the gradients have the same bits.
 *
 * Two shapes: Qwen3-0.6B, where the host's calls are hidden behind the device's work, and four of its layers with a
 * small vocabulary and short micro-batches, where the device waits for the host. */
#include "bench/bench.h"

#include <ravel/shape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/model.h"

enum { MICROS = 4, WARM = 3, MOST_SAMPLES = 8 };

typedef struct graph_kind {
    const char *name;
    int64_t layers, vocab; /* 0: as the shape has them */
    int32_t longest;       /* of the samples: longest, longest / 2, ... and the last two alike */
    int32_t passes;
} graph_kind;

typedef struct pass_result {
    double seconds; /* of one pass: the best of `passes` */
    double bytes;   /* in graphs */
    uint64_t bits;  /* a hash of the gradients */
    train_graph_figures figures;
} pass_result;

/* Samples of n, n/2, n/4, n/8, n/8 tokens; the last one is shorter by the micro-batch's number, so shapes differ. */
static train_batch make_micro(int32_t *tokens, int32_t *cu_seqlens, int32_t longest, int32_t number, int64_t vocab) {
    int32_t samples = 0;
    uint64_t seed = 11 + (uint64_t)number;
    for (int32_t n = longest; samples < 4; n /= 2, samples++) cu_seqlens[samples + 1] = cu_seqlens[samples] + n;
    cu_seqlens[samples + 1] = cu_seqlens[samples] + longest / 8 - number;
    samples++;
    for (int32_t t = 0; t < cu_seqlens[samples]; t++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[t] = (int32_t)((seed >> 33) % (uint64_t)vocab);
    }
    return (train_batch){.samples = samples, .tokens = tokens, .cu_seqlens = cu_seqlens};
}

static ravel_status run_pass(train_model *model, const train_batch *micros, ravel_error *err) {
    ravel_status s = RAVEL_OK;
    train_model_clear_grads(model);
    for (int i = 0; i < MICROS && !s; i++) s = train_model_learn(model, &micros[i], NULL, NULL, err);
    return s ? s : train_model_kernels(model)->sync(train_model_device(model), err);
}

static uint64_t hash_grads(train_model *model) {
    int64_t n = train_model_params(model)->elements;
    uint64_t hash = 0xcbf29ce484222325u;
    uint32_t *host = malloc((size_t)n * sizeof *host);
    if (!host) return 0;
    train_model_kernels(model)->download(train_model_device(model), host, train_model_grads(model),
                                         (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) hash = (hash ^ host[i]) * 0x100000001b3u;
    free(host);
    return hash;
}

static ravel_status measure(train_model *model, const train_batch *micros, int32_t passes, pass_result *result,
                            ravel_error *err) {
    const train_kernels *k = train_model_kernels(model);
    train_gpu_state state = {.model = {0}};
    ravel_status s = RAVEL_OK;
    result->seconds = 1e9;
    for (int i = 0; i < WARM + passes && !s; i++) {
        double begin = bench_seconds();
        s = run_pass(model, micros, err);
        double took = bench_seconds() - begin;
        if (i >= WARM && took < result->seconds) result->seconds = took;
    }
    if (s) return s;
    if (k->gpu_state) k->gpu_state(train_model_device(model), &state);
    result->bytes = (double)state.graph_bytes;
    result->bits = hash_grads(model);
    result->figures = train_model_graphs(model);
    return RAVEL_OK;
}

static ravel_status run_kind(const graph_kind *kind, int32_t graphs, pass_result *result, ravel_error *err) {
    static int32_t tokens[MICROS][65536], cu_seqlens[MICROS][MOST_SAMPLES];
    train_batch micros[MICROS];
    const train_kernels *kernels = NULL;
    train_device *device = NULL;
    train_model *model = NULL;
    train_model_options o;
    ravel_shape shape;
    ravel_status s = ravel_shape_named("qwen3-0.6b", &shape, err);
    if (kind->layers) shape.layers = kind->layers;
    if (kind->vocab) shape.vocab = kind->vocab;
    for (int i = 0; i < MICROS && !s; i++)
        micros[i] = make_micro(tokens[i], cu_seqlens[i], kind->longest, i, shape.vocab);
    train_model_options_default(&o);
    o.budget = 2 * (int64_t)kind->longest;
    o.longest = kind->longest;
    o.graphs = graphs;
    if (!s) s = train_kernels_find("cuda", &kernels, err);
    if (!s) s = kernels->open(&(train_device_options){.threads = 1}, &device, err);
    if (!s) s = train_model_create(kernels, device, &shape, &o, &model, err);
    if (!s) s = train_model_init(model, 1, 0, err);
    if (!s) s = measure(model, micros, kind->passes, result, err);
    train_model_free(model);
    if (device) kernels->close(device);
    return s;
}

BENCH(gpu_graphs) {
    static const graph_kind kinds[] = {{"few_layers", 4, 320, 512, 30}, {"0_6b", 0, 0, 8192, 4}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        pass_result calls = {0}, graphs = {0};
        ravel_error err = {0};
        char figure[64];
        ravel_status s = run_kind(&kinds[i], TRAIN_GRAPHS_OFF, &calls, &err);
        if (!s) s = run_kind(&kinds[i], TRAIN_GRAPHS_AUTO, &graphs, &err);
        if (s) {
            bench_note("graphs, %s: %s", kinds[i].name, err.message);
            continue;
        }
        (void)snprintf(figure, sizeof figure, "gpu.graphs_vs_calls_%s", kinds[i].name);
        bench_report(figure, calls.seconds / graphs.seconds, "x", HIGHER,
                     "%d micro-batches of %d tokens: %.2f ms by calls, %.2f ms by graphs; gradients have %s bits; %lld "
                     "graphs (%.1f MiB), %lld launches",
                     MICROS, 2 * kinds[i].longest, calls.seconds * 1e3, graphs.seconds * 1e3,
                     calls.bits == graphs.bits ? "the same" : "OTHER", (long long)graphs.figures.recorded,
                     graphs.bytes / 1048576, (long long)graphs.figures.launched);
    }
}
