/* Attention as a context-parallel ring and a sliding window ask for it, beside plain causal attention: floating-point
 * operations per second, forward and backward together, of the pairs of query and key that are seen.
 *
 *     whole      16,384 queries over 16,384 keys, causal
 *     earlier    the same queries over the first half of another rank's keys, all of them seen
 *     later      the second half of the queries over all keys of another rank
 *     window     as whole, 4,096 keys per query
 *
 * Backward adds to the gradient of the queries in the ring's blocks, as the ring does. */
#include "bench/bench.h"

#include "train/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 16384, HEADS = 16, KV_HEADS = 8, DIM = 128, WINDOW = 4096, CALLS = 10, ARRAYS = 12 };

static const int32_t STARTS[] = {0, TOKENS / 2}, LENGTHS[] = {TOKENS, TOKENS / 2};

typedef struct job {
    const train_kernels *kernels;
    train_device *device;
    void *arrays[ARRAYS];
    size_t bytes[ARRAYS];
    train_attention call;
    int32_t *starts, *lengths; /* on the device */
    ravel_error err;
} job;

static void *room(job *j, int *count, size_t bytes) {
    int i = (*count)++;
    if (j->err.status || j->kernels->alloc(j->device, bytes, &j->arrays[i], &j->err)) return NULL;
    j->bytes[i] = bytes;
    j->kernels->zero(j->device, j->arrays[i], bytes);
    return j->arrays[i];
}

/* Numbers of either sign below 2 in bf16: a GPU takes less power, and is faster, on zeros. */
static void *numbers(job *j, int *count, size_t bytes) {
    void *block = room(j, count, bytes);
    uint16_t *host = block ? malloc(bytes) : NULL;
    uint32_t state = 1;
    for (size_t i = 0; host && i < bytes / 2; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (uint16_t)((state >> 16 & 0x83ff) | 0x3c00);
    }
    if (host) j->kernels->upload(j->device, block, host, bytes);
    free(host);
    return block;
}

static void make_call(job *j) {
    size_t q = (size_t)TOKENS * HEADS * DIM * 2, kv = (size_t)TOKENS * KV_HEADS * DIM * 2;
    train_attention *x = &j->call;
    int n = 0;
    *x = (train_attention){.samples = 1, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM};
    x->scale = 1 / sqrtf((float)DIM);
    x->q = numbers(j, &n, q);
    x->k = numbers(j, &n, kv);
    x->v = numbers(j, &n, kv);
    x->o = room(j, &n, q);
    x->lse = room(j, &n, (size_t)TOKENS * HEADS * sizeof(float));
    x->d_o = numbers(j, &n, q);
    x->d_q = room(j, &n, q);
    x->d_k = room(j, &n, kv);
    x->d_v = room(j, &n, kv);
    x->ld_q = x->ld_dq = HEADS * DIM;
    x->ld_k = x->ld_v = x->ld_dk = x->ld_dv = KV_HEADS * DIM;
    j->starts = room(j, &n, sizeof STARTS);
    j->lengths = room(j, &n, sizeof LENGTHS);
    if (j->err.status) return;
    j->kernels->upload(j->device, j->starts, STARTS, sizeof STARTS);
    j->kernels->upload(j->device, j->lengths, LENGTHS, sizeof LENGTHS);
}

/* All tokens, or one of their halves. */
static train_ragged rows_of(const job *j, int half, int second) {
    return (train_ragged){TOKENS, TOKENS >> half, j->starts + second, j->lengths + half, LENGTHS + half};
}

static void wait_for(const job *j) {
    float word;
    j->kernels->download(j->device, &word, j->call.lse, sizeof word);
}

/* TFLOP/s of the call as it stands; backward is 2.5 times forward. */
static double rate(const job *j, double pairs) {
    double best = INFINITY;
    for (int repeat = 0; repeat < 4; repeat++) { /* the first builds the plans */
        wait_for(j);
        double began = bench_seconds();
        for (int i = 0; i < CALLS; i++) {
            j->kernels->attention(j->device, &j->call);
            j->kernels->attention_backward(j->device, &j->call);
        }
        wait_for(j);
        double seconds = (bench_seconds() - began) / CALLS;
        if (repeat && seconds < best) best = seconds;
    }
    return 3.5 * 4 * pairs * HEADS * DIM / best / 1e12;
}

static void measure(job *j) {
    const double n = TOKENS;
    train_attention *x = &j->call;
    x->queries = x->keys = rows_of(j, 0, 0);
    double whole = rate(j, n * (n + 1) / 2);
    x->window = WINDOW;
    double window = rate(j, n * WINDOW - (double)WINDOW * (WINDOW - 1) / 2);
    x->window = 0;
    x->add = 1;
    x->keys = rows_of(j, 1, 0);
    x->shifts = x->keys.lengths;
    double earlier = rate(j, n * n / 2);
    x->queries = rows_of(j, 1, 1);
    x->keys = rows_of(j, 0, 0);
    x->shifts = x->keys.lengths;
    double later = rate(j, n * n / 2);
    const char *what = "16,384 tokens, 16 query and 8 key heads of 128, bf16, forward and backward";
    bench_report("gpu.attention_tflops", whole, "TFLOP/s", HIGHER, "one causal sample of %s", what);
    bench_report("gpu.attention_window_vs_causal", window / whole, "x", HIGHER, "a window of 4,096: %.0f TFLOP/s",
                 window);
    bench_report(
        "gpu.attention_ring_vs_causal", (earlier < later ? earlier : later) / whole, "x", HIGHER,
        "the slower block of a context-parallel ring: keys of an earlier rank %.0f TFLOP/s, of a later one %.0f; "
        "%s",
        earlier, later, what);
}

BENCH(gpu_attention) {
    job j = {0};
    train_limits limits = {.tokens = TOKENS, .longest = TOKENS, .samples = 1, .width = HEADS * DIM, .hidden = 1024};
    limits.heads = HEADS;
    limits.kv_heads = KV_HEADS;
    limits.head_dim = DIM;
    limits.vocab = 1024;
    ravel_status status = train_kernels_find("cuda", &j.kernels, &j.err);
    if (!status) status = j.kernels->open(&(train_device_options){.threads = 1}, &j.device, &j.err);
    if (!status) status = j.kernels->reserve(j.device, &limits, &j.err);
    if (!status) make_call(&j);
    if (!j.err.status) measure(&j);
    if (j.device && !j.err.status) (void)j.kernels->sync(j.device, &j.err);
    if (j.err.status) bench_note("gpu_attention: %s", j.err.message);
    for (int i = 0; j.device && i < ARRAYS; i++) j.kernels->release(j.device, j.arrays[i], j.bytes[i]);
    if (j.device) j.kernels->close(j.device);
}
