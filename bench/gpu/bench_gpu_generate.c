/* The generator on one GPU: Qwen3-0.6B's shape, 256 requests at once, prompts and answers of 100 to 1024 tokens,
 * against the time that reading weights and keys takes at the card's copy rate. */
#include "bench/bench.h"

#include <ravel/shape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/generate/generator.h"

enum { REQUESTS = 256, LEAST = 100, MOST = 1024 };
static const double COPY_RATE = 4.25e12; /* bytes per second, read and written, of a device copy on an H200 */

typedef struct job {
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    void *weights;
    size_t weight_bytes;
    ravel_shape shape;
} job;

static void job_close(job *j) {
    train_generator_free(j->generator);
    if (j->device) {
        j->kernels->release(j->device, j->weights, j->weight_bytes);
        j->kernels->close(j->device);
    }
}

/* Small random weights: an answer then never ends before its time. NULL: no memory. */
static uint16_t *random_weights(const train_params *params) {
    size_t n = (size_t)params->elements;
    uint16_t *host = malloc(n * sizeof *host);
    uint64_t seed = 9;
    if (!host) return NULL;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float x = ((float)(seed >> 40) / 16777216.0F - 0.5F) * 0.07F;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t t = 0; t < params->count; t++) /* norms are 1 */
        if (params->tensors[t].rank == 1)
            for (int64_t i = 0; i < params->tensors[t].count; i++) host[params->tensors[t].offset + i] = 0x3f80;
    return host;
}

/* Made once for all the jobs of a process. */
static ravel_status fill_weights(job *j, ravel_error *err) {
    static uint16_t *host;
    const train_params *params = train_generator_params(j->generator);
    if (!host) host = random_weights(params);
    if (!host) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for weights");
    j->weight_bytes = (size_t)params->elements * sizeof *host;
    ravel_status s = j->kernels->alloc(j->device, j->weight_bytes, &j->weights, err);
    if (!s) j->kernels->upload(j->device, j->weights, host, j->weight_bytes);
    return s;
}

static ravel_status job_open(job *j, int32_t graphs, ravel_error *err) {
    train_generator_options o;
    memset(j, 0, sizeof *j);
    ravel_status s = ravel_shape_named("qwen3-0.6b", &j->shape, err);
    if (!s) s = train_kernels_find("cuda", &j->kernels, err);
    if (!s) s = j->kernels->open(&(train_device_options){.threads = 1}, &j->device, err);
    train_generator_options_default(&o);
    o.slots = REQUESTS;
    o.slot_tokens = 2 * MOST;
    o.prefill = 16384;
    o.graphs = graphs;
    if (!s) s = train_generator_create(j->kernels, j->device, &j->shape, &o, &j->generator, err);
    if (!s) s = fill_weights(j, err);
    if (s)
        job_close(j);
    else
        train_generator_set_weights(j->generator, j->weights, 1);
    return s;
}

static ravel_status count_answer(void *user, const train_answer *answer, ravel_error *err) {
    (void)err;
    *(int64_t *)user += answer->count;
    return RAVEL_OK;
}

typedef struct load {
    int32_t prompt[REQUESTS][MOST];
    train_sampling sampling[REQUESTS];
    train_request requests[REQUESTS];
    int64_t prompt_tokens, answer_tokens;
    double floor; /* seconds that the bytes take */
} load;

/* Bytes of decode: the weights once per step, and the keys and values of every sequence that runs. */
static void fill_load(load *l, const ravel_shape *shape) {
    uint64_t seed = 3;
    int64_t per_token = shape->layers * 2 * shape->kv_heads * shape->head_dim * 2, longest = 0;
    double bytes = 0;
    memset(l, 0, sizeof *l);
    for (int i = 0; i < REQUESTS; i++) {
        int64_t sizes[2];
        for (int k = 0; k < 2; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sizes[k] = LEAST + (int64_t)((seed >> 33) % (MOST - LEAST + 1));
        }
        for (int64_t t = 0; t < sizes[0]; t++) l->prompt[i][t] = (int32_t)((i * 7919 + t * 104729) % shape->vocab);
        train_sampling_default(&l->sampling[i]);
        l->sampling[i].max_tokens = sizes[1];
        l->sampling[i].seed = 1;
        l->requests[i] = (train_request){
            .prompt = l->prompt[i], .count = sizes[0], .id = i, .samples = 1, .sampling = &l->sampling[i]};
        l->prompt_tokens += sizes[0];
        l->answer_tokens += sizes[1];
        if (sizes[1] > longest) longest = sizes[1];
        for (int64_t t = 0; t < sizes[1]; t++) bytes += (double)((sizes[0] + t) * per_token);
    }
    bytes += (double)longest * 2 * (double)ravel_shape_parameters(shape);
    l->floor = bytes / COPY_RATE;
}

/* Tokens per second of the second of two runs: the first one chooses algorithms and records graphs. 0: it failed. */
static double tokens_per_second(const load *l, int32_t graphs, int64_t *steps) {
    job j;
    ravel_error err = {0};
    double rate = 0;
    ravel_status opened = job_open(&j, graphs, &err), s = opened;
    for (int run = 0; run < 2 && !s; run++) {
        int64_t tokens = 0, before = train_generator_counts(j.generator).steps;
        double begin = bench_seconds();
        s = train_generator_run(j.generator, l->requests, REQUESTS, count_answer, &tokens, &err);
        rate = s ? 0 : (double)tokens / (bench_seconds() - begin);
        *steps = train_generator_counts(j.generator).steps - before;
    }
    if (s) bench_note("gpu_generate: %s", err.message);
    if (!opened) job_close(&j);
    return rate;
}

BENCH(gpu_generate) {
    static load l;
    ravel_shape shape;
    int64_t steps = 0;
    if (ravel_shape_named("qwen3-0.6b", &shape, NULL)) return;
    fill_load(&l, &shape);
    double rate = tokens_per_second(&l, TRAIN_GRAPHS_AUTO, &steps);
    if (rate <= 0) return;
    bench_report("gpu.decode_tokens_per_second", rate, "tok/s", HIGHER,
                 "qwen3-0.6b, %d requests, prompts and answers of %d to %d tokens (%lld and %lld), %lld steps",
                 REQUESTS, LEAST, MOST, (long long)l.prompt_tokens, (long long)l.answer_tokens, (long long)steps);
    bench_report("gpu.decode_vs_floor", l.floor * rate / (double)l.answer_tokens, "", HIGHER,
                 "time of reading weights and cache at 4.25 TB/s (%.2f s) over the time taken, prompts included",
                 l.floor);
    double plain = tokens_per_second(&l, TRAIN_GRAPHS_OFF, &steps);
    bench_report("gpu.decode_graphs_vs_none", plain > 0 ? rate / plain : 0, "x", HIGHER,
                 "with graphs over without; %.0f tok/s without", plain);
}
