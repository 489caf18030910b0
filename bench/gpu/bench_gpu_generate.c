/* The generator on one GPU: Qwen3-0.6B's shape, 256 requests at once, prompts and answers of 100 to 1024 tokens, against
 * the time that reading weights and keys takes at the card's copy rate. */
#include "bench/bench.h"

#include <ravel/shape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/generator.h"

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

/* Small random weights: an answer then never ends before its time. */
static ravel_status fill_weights(job *j, ravel_error *err) {
    const train_params *params = train_generator_params(j->generator);
    size_t n = (size_t)params->elements;
    uint16_t *host = malloc(n * sizeof *host);
    uint64_t seed = 9;
    if (!host) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for weights");
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
    j->weight_bytes = n * sizeof *host;
    ravel_status s = j->kernels->alloc(j->device, j->weight_bytes, &j->weights, err);
    if (!s) j->kernels->upload(j->device, j->weights, host, j->weight_bytes);
    free(host);
    return s;
}

static ravel_status job_open(job *j, ravel_error *err) {
    train_generator_options o;
    memset(j, 0, sizeof *j);
    ravel_status s = ravel_shape_named("qwen3-0.6b", &j->shape, err);
    if (!s) s = train_kernels_find("cuda", &j->kernels, err);
    if (!s) s = j->kernels->open(&(train_device_options){.threads = 1}, &j->device, err);
    train_generator_options_default(&o);
    o.slots = REQUESTS;
    o.slot_tokens = 2 * MOST;
    o.prefill = 16384;
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

BENCH(gpu_generate) {
    static load l;
    job j;
    ravel_error err = {0};
    if (job_open(&j, &err)) {
        bench_note("gpu_generate: %s", err.message);
        return;
    }
    fill_load(&l, &j.shape);
    for (int run = 0; run < 2; run++) { /* the first run chooses algorithms and records graphs */
        int64_t tokens = 0;
        train_generator_stats before = train_generator_counts(j.generator);
        double begin = bench_seconds();
        if (train_generator_run(j.generator, l.requests, REQUESTS, count_answer, &tokens, &err)) {
            bench_note("gpu_generate: %s", err.message);
            break;
        }
        double took = bench_seconds() - begin;
        train_generator_stats after = train_generator_counts(j.generator);
        if (run == 0) continue;
        bench_report("gpu.decode_tokens_per_second", (double)tokens / took, "tok/s", HIGHER,
                     "qwen3-0.6b, %d requests, prompts and answers of %d to %d tokens (%lld and %lld), %lld steps",
                     REQUESTS, LEAST, MOST, (long long)l.prompt_tokens, (long long)tokens,
                     (long long)(after.steps - before.steps));
        bench_report("gpu.decode_vs_floor", l.floor / took, "", HIGHER,
                     "time of reading weights and cache at 4.25 TB/s (%.2f s) over the time taken, prompts included",
                     l.floor);
    }
    job_close(&j);
}
