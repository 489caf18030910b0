/* The trainer's core: the speed of a whole training step over that of a plain matrix product, and the speedup of
 * packing and of continuous batching. One thread on both sides of every ratio, and the processor time of that thread: a
 * step takes half a second, a small product less than a millisecond, and on a shared machine wall time would favour the
 * short one. */
#include "bench/bench.h"
#include "bench/train_profile.h"

#include "train/learn/optimizer.h"
#include "train/model/generate/generator.h"
#include "train/model/model.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef RAVEL_HAVE_OPENBLAS
#include <cblas.h>
#endif

/* 20 M parameters: hidden 512, 5 layers, 8 heads of 64 over 4, feed-forward 1536, vocabulary 8192, tied. */
static const ravel_shape shape = {.hidden = 512,
                                  .layers = 5,
                                  .heads = 8,
                                  .kv_heads = 4,
                                  .head_dim = 64,
                                  .ffn = 1536,
                                  .vocab = 8192,
                                  .tied = 1,
                                  .qk_norm = 1,
                                  .gated = 1,
                                  .rope_theta = 1e6,
                                  .norm_eps = 1e-6};

/* Six layers of SmolLM2-135M, with its vocabulary: 50 M parameters. */
static const ravel_shape wide_shape = {.hidden = 576,
                                       .layers = 6,
                                       .heads = 9,
                                       .kv_heads = 3,
                                       .head_dim = 64,
                                       .ffn = 1536,
                                       .vocab = 49152,
                                       .tied = 1,
                                       .gated = 1,
                                       .rope_theta = 1e5,
                                       .norm_eps = 1e-5};

enum { BUDGET = 2048, MOST = 512 };

/* Samples of lognormal lengths (sigma 0.8) that fill one budget. */
typedef struct batch_of {
    int32_t samples, tokens[BUDGET], cu[MOST + 1];
    int64_t lengths[MOST];
} batch_of;

static uint64_t draw(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double normal(uint64_t *state) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)(draw(state) >> 11) * 0x1p-53;
    return sum - 6;
}

static void fill_batch(batch_of *b, double median) {
    uint64_t state = 11;
    *b = (batch_of){0};
    while (b->samples < MOST && b->cu[b->samples] < BUDGET) {
        int64_t length = (int64_t)(median * exp(0.8 * normal(&state)));
        if (length < 8) length = 8;
        if (length > BUDGET - b->cu[b->samples]) length = BUDGET - b->cu[b->samples];
        b->lengths[b->samples] = length;
        b->cu[b->samples + 1] = b->cu[b->samples] + (int32_t)length;
        b->samples++;
    }
    for (int t = 0; t < b->cu[b->samples]; t++) b->tokens[t] = (int32_t)(draw(&state) % (uint64_t)shape.vocab);
}

static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_of(int repeats, void (*run)(void *user), void *user) {
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        double start = processor_time();
        run(user);
        best = fmin(best, processor_time() - start);
    }
    return best;
}

static int64_t longest_of(const batch_of *b) {
    int64_t most = 1;
    for (int i = 0; i < b->samples; i++) most = b->lengths[i] > most ? b->lengths[i] : most;
    return most;
}

typedef struct job {
    const ravel_shape *shape;
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
    const batch_of *batch;
    int failed;
} job;

static void learn(job *j, const train_batch *b) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_result result = {0};
    if (train_model_learn(j->model, b, NULL, &result, &err)) {
        if (!j->failed++) bench_note("failed: %s", err.message);
    }
}

static void run_packed(void *user) {
    job *j = user;
    train_batch b = {.samples = j->batch->samples, .tokens = j->batch->tokens, .cu_seqlens = j->batch->cu};
    learn(j, &b);
}

static void run_single(void *user) {
    job *j = user;
    for (int i = 0; i < j->batch->samples; i++) {
        int32_t cu[2] = {0, (int32_t)j->batch->lengths[i]};
        train_batch b = {.samples = 1, .tokens = j->batch->tokens + j->batch->cu[i], .cu_seqlens = cu};
        learn(j, &b);
    }
}

/* Every sample in a row as long as the longest; padding is computed, its loss is not counted. As many rows at a time as
 * the budget takes. */
static void run_padded(void *user) {
    job *j = user;
    const batch_of *p = j->batch;
    static int32_t tokens[BUDGET];
    static float weights[BUDGET];
    int32_t wide = (int32_t)longest_of(p), rows = BUDGET / wide, cu[MOST + 1];
    for (int first = 0; first < p->samples; first += rows) {
        int count = p->samples - first < rows ? p->samples - first : rows;
        memset(tokens, 0, sizeof tokens);
        memset(weights, 0, sizeof weights);
        for (int i = 0; i < count; i++) {
            memcpy(tokens + i * wide, p->tokens + p->cu[first + i], (size_t)p->lengths[first + i] * sizeof *tokens);
            for (int64_t t = 1; t < p->lengths[first + i]; t++) weights[i * wide + t] = 1;
            cu[i] = i * wide;
        }
        cu[count] = count * wide;
        train_batch b = {.samples = count, .tokens = tokens, .cu_seqlens = cu, .weights = weights};
        learn(j, &b);
    }
}

/* With kernels that are measured (`timed`) or as they are. */
static int job_open_with(job *j, const ravel_shape *of, const batch_of *b, train_device_options device, int timed) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options options;
    train_model_options_default(&options);
    options.budget = BUDGET;
    *j = (job){.shape = of, .batch = b};
    ravel_status status = train_kernels_find("cpu", &j->kernels, &err);
    if (!status && timed) j->kernels = profile_wrap(j->kernels);
    if (status || j->kernels->open(&device, &j->device, &err) ||
        train_model_create(j->kernels, j->device, of, &options, &j->model, &err) ||
        train_model_init(j->model, 1, 0, &err)) {
        bench_note("failed: %s", err.message);
        return 0;
    }
    return 1;
}

static int job_open(job *j, const ravel_shape *of, const batch_of *b, train_device_options device) {
    return job_open_with(j, of, b, device, 0);
}

static void job_close(job *j) {
    train_model_free(j->model);
    if (j->kernels) j->kernels->close(j->device);
}

/* ---- the yardstick -------------------------------------------------------------------------------------- */

/* Square products of several sizes: the best of them is what OpenBLAS can do here, on the core type that it chose. */
enum { SIDE_MOST = 2048 };
static const int sides[] = {256, 512, 1024, SIDE_MOST};
enum { SIDES = sizeof sides / sizeof *sides, ROUNDS = 3 };

typedef struct product {
    float *a, *b, *c;
    int side;
} product;

static void run_sgemm(void *user) {
    const product *p = user;
#ifdef RAVEL_HAVE_OPENBLAS
    int n = p->side;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, p->a, n, p->b, n, 0, p->c, n);
#else
    (void)p;
#endif
}

typedef struct times {
    double packed, single, padded;
    double sgemm;        /* FLOP/s, the most of all rounds */
    int side, rounds;    /* that was the best; so far */
    double pace[ROUNDS]; /* of each round: seconds of the packed run times FLOP/s of sgemm just before */
} times;

/* For a quarter of a second per size: where the clock varies, a short burst would be measured at its peak. */
static double measure_sgemm(times *t, product *p) {
    double best = 0;
    for (int i = 0; i < SIDES; i++) {
        double side = p->side = sides[i], begun = processor_time(), took = 0;
        int64_t runs = 0;
        while (took < 0.25) {
            run_sgemm(p);
            runs++;
            took = processor_time() - begun;
#ifndef RAVEL_HAVE_OPENBLAS
            break;
#endif
        }
        double rate = 2 * side * side * side * (double)runs / fmax(took, 1e-9);
        if (rate > t->sgemm) t->sgemm = rate, t->side = p->side;
        best = fmax(best, rate);
    }
    return best;
}

/* sgemm, then the model, so that a busy machine or a slow clock slows both. */
static void measure_pair(times *t, product *p, job *j) {
    double sgemm = measure_sgemm(t, p), packed = best_of(1, run_packed, j);
    t->packed = fmin(t->packed, packed);
    t->pace[t->rounds++] = packed * sgemm;
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The padded run is several times as long, and goes once. */
static times measure(job *j) {
    times t = {.packed = 1e9, .single = 1e9};
    run_packed(j); /* warm */
    for (int round = 0; round < ROUNDS; round++) {
        t.packed = fmin(t.packed, best_of(1, run_packed, j));
        t.single = fmin(t.single, best_of(1, run_single, j));
    }
    t.padded = best_of(1, run_padded, j);
    return t;
}

static product make_product(void) {
    size_t bytes = (size_t)SIDE_MOST * SIDE_MOST * sizeof(float);
    product p = {malloc(bytes), malloc(bytes), malloc(bytes), SIDE_MOST};
    for (int i = 0; i < SIDE_MOST * SIDE_MOST; i++) p.a[i] = p.b[i] = p.c[i] = 1.0f / (float)(1 + i % 97);
#ifdef RAVEL_HAVE_OPENBLAS
    openblas_set_num_threads(1);
#endif
    return p;
}

static double flops_of(const job *j) {
    const batch_of *b = j->batch;
    return train_model_flops(j->shape, 0, b->samples, b->lengths, b->cu[b->samples] - b->samples);
}

static void report_ratio(const job *j, times *t, const char *name, const char *what) {
#ifdef RAVEL_HAVE_OPENBLAS
    qsort(t->pace, (size_t)t->rounds, sizeof *t->pace, by_size);
    bench_report(
        name, flops_of(j) / t->pace[t->rounds / 2], "ratio", HIGHER,
        "%s: model FLOP/s / the best OpenBLAS sgemm of 256^3 to %d^3 for a quarter of a second (%d^3, at most %.1f "
        "GFLOP/s, core %s), one thread each, in turns, the middle of %d; kernels %s",
        what, SIDE_MOST, t->side, t->sgemm * 1e-9, openblas_get_corename(), t->rounds, j->kernels->name);
#else
    (void)j, (void)t, (void)what, (void)by_size;
    bench_note("%s needs OpenBLAS", name);
#endif
}

static void report_speed(const job *j, times *t) {
    const batch_of *b = j->batch;
    double rate = flops_of(j) / t->packed;
    const char *what = "20 M parameters, forward and backward, 2048 tokens, lognormal lengths, one thread";
    bench_report("train.gflops", rate * 1e-9, "GFLOP/s", HIGHER, "%s; kernels %s", what, j->kernels->name);
    bench_report("train.tokens_per_s", b->cu[b->samples] / t->packed, "tokens/s", HIGHER, "%s; %d samples", what,
                 b->samples);
    report_ratio(j, t, "train.vs_sgemm", "20 M parameters");
}

#ifdef RAVEL_HAVE_OPENBLAS
/* The same update with the set's own products and with OpenBLAS's, in turns: why "cpu" has its own. */
static void report_products(const batch_of *b) {
    job own = {0}, theirs = {0};
    double mine = 1e9, blas = 1e9;
    if (job_open(&own, &shape, b, (train_device_options){.products = TRAIN_PRODUCTS_OWN}) &&
        job_open(&theirs, &shape, b, (train_device_options){.products = TRAIN_PRODUCTS_OPENBLAS})) {
        for (int round = 0; round < 3; round++) {
            mine = fmin(mine, best_of(1, run_packed, &own));
            blas = fmin(blas, best_of(1, run_packed, &theirs));
        }
        bench_report("train.own_vs_openblas", blas / mine, "ratio", HIGHER,
                     "an update with OpenBLAS's products / with the set's own, one thread");
    }
    job_close(&own);
    job_close(&theirs);
}
#endif

/* ---- what the processors can do together: a product per thread, nothing in common ------------------------- */

enum { ALONE = 512 }; /* the side of such a product: in a second-level cache, or nearly */

typedef struct alone {
    pthread_t id;
    pthread_barrier_t *start;
    double rate;
} alone;

static void *multiply_alone(void *user) {
    alone *me = user;
    ravel_error err = RAVEL_ERROR_INIT;
    const train_kernels *k = NULL;
    train_device *device = NULL;
    const train_limits limits = {.tokens = ALONE, .longest = 1, .width = ALONE, .hidden = ALONE, .vocab = ALONE};
    float *a = calloc(3 * (size_t)ALONE * ALONE, sizeof *a);
    int ready = a && train_kernels_find("cpu", &k, &err) == RAVEL_OK &&
                k->open(&(train_device_options){.threads = 1}, &device, &err) == RAVEL_OK &&
                k->reserve(device, &limits, &err) == RAVEL_OK;
    const int64_t each = a ? (int64_t)ALONE * ALONE : 0; /* without memory, nothing is multiplied */
    train_matmul x = {.m = ALONE, .n = ALONE, .k = ALONE, .a = a, .b = a + each, .c = a + 2 * each};
    (void)pthread_barrier_wait(me->start);
    double begun = bench_seconds(), took = 0, count = 0;
    for (; ready && took < 0.25; took = bench_seconds() - begun, count++) k->matmul(device, &x);
    if (ready) me->rate = count * 2.0 * ALONE * ALONE * ALONE / took;
    if (device) k->close(device);
    free(a);
    return NULL;
}

/* FLOP/s of `threads` threads together, 0 after a failure. */
static double rate_alone(int32_t threads) {
    pthread_barrier_t start;
    double sum = 0;
    alone *all = calloc((size_t)threads, sizeof *all);
    if (!all || pthread_barrier_init(&start, NULL, (unsigned)threads) != 0) abort();
    for (int32_t i = 0; i < threads; i++) {
        all[i].start = &start;
        if (pthread_create(&all[i].id, NULL, multiply_alone, &all[i]) != 0) abort();
    }
    for (int32_t i = 0; i < threads; i++) {
        (void)pthread_join(all[i].id, NULL);
        sum += all[i].rate;
    }
    (void)pthread_barrier_destroy(&start);
    free(all);
    return sum;
}

static void report_bound(int32_t threads) {
    double one = 0, all = 0;
    for (int round = 0; round < 5; round++) {
        one = fmax(one, rate_alone(1));
        all = fmax(all, rate_alone(threads));
    }
    if (one > 0)
        bench_report("train.threads_bound", all / one, "ratio", HIGHER,
                     "%d threads with a product of %d^3 each, nothing in common (%.0f GFLOP/s), over one thread (%.0f)",
                     threads, ALONE, all * 1e-9, one * 1e-9);
}

/* The same update on one thread and on as many as there are processors, in turns and for the same time each: several
 * threads are only as fast as the slowest of their processors, so one update of theirs would be a smaller sample of a
 * noisy machine. */
static void report_threads(const ravel_shape *of, const batch_of *b, const char *suffix) {
    int32_t threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    job one = {0}, all = {0};
    double slow = 1e9, fast = 1e9;
    char name[64];
    (void)snprintf(name, sizeof name, "train.threads_speedup%s", suffix);
    if (threads > 1 && job_open(&one, of, b, (train_device_options){.threads = 1}) &&
        job_open(&all, of, b, (train_device_options){.threads = threads})) {
        fast = bench_best(2, run_packed, &all); /* the first touches its memory */
        for (int round = 0; round < 3; round++) {
            double took = bench_best(1, run_packed, &one);
            slow = fmin(slow, took);
            fast = fmin(fast, bench_best((int)fmax(1, took / fast), run_packed, &all));
        }
        bench_report(name, slow / fast, "ratio", HIGHER,
                     "one thread / %d threads, the best of updates in turns for the same time, the same bits; %lld "
                     "tokens in %.0f ms",
                     threads, (long long)b->cu[b->samples], 1e3 * fast);
    }
    job_close(&one);
    job_close(&all);
}

static void report_packing(const job *j, const times *t, const char *suffix, double median) {
    char name[64];
    (void)snprintf(name, sizeof name, "train.packed_vs_single%s", suffix);
    bench_report(name, t->single / t->packed, "ratio", HIGHER, "one sample at a time / packed; %d samples, median %g",
                 j->batch->samples, median);
    (void)snprintf(name, sizeof name, "train.packed_vs_padded%s", suffix);
    bench_report(name, t->padded / t->packed, "ratio", HIGHER, "rows padded to the longest (%lld) / packed; median %g",
                 (long long)longest_of(j->batch), median);
}

/* Real widths and a real vocabulary. */
static void report_wide(product *p) {
    static batch_of batch;
    job j;
    times t = {.packed = 1e9};
    fill_batch(&batch, 200);
    if (job_open(&j, &wide_shape, &batch, (train_device_options){.threads = 1})) {
        run_packed(&j); /* warm */
        for (int round = 0; round < ROUNDS; round++) measure_pair(&t, p, &j);
        report_ratio(&j, &t, "train.vs_sgemm_wide", "six layers of SmolLM2-135M, 50 M parameters");
    }
    job_close(&j);
    report_threads(&wide_shape, &batch, "_wide");
}

static void report_speed_of(product *p) {
    static batch_of batch;
    job j;
    times t = {.packed = 1e9};
    fill_batch(&batch, 40);
    if (job_open(&j, &shape, &batch, (train_device_options){.threads = 1})) {
        run_packed(&j); /* warm */
        for (int round = 0; round < ROUNDS; round++) measure_pair(&t, p, &j);
        report_speed(&j, &t);
    }
    job_close(&j);
}

/* One bench per question, so that a filter can ask for one. */
BENCH(train_speed) {
    product p = make_product();
    report_speed_of(&p);
    free(p.a), free(p.b), free(p.c);
}

BENCH(train_threads) {
    static batch_of batch;
    fill_batch(&batch, 40);
    report_threads(&shape, &batch, "");
    report_bound((int32_t)sysconf(_SC_NPROCESSORS_ONLN));
}

BENCH(train_wide) {
    product p = make_product();
    report_wide(&p);
    free(p.a), free(p.b), free(p.c);
}

BENCH(train_packing) {
    static const struct {
        double median;
        const char *suffix;
    } kinds[] = {{40, ""}, {200, "_long"}};
    static batch_of batch;
    for (int i = 0; i < 2; i++) {
        job j;
        fill_batch(&batch, kinds[i].median);
        if (job_open(&j, &shape, &batch, (train_device_options){.threads = 1})) {
            times t = measure(&j);
            report_packing(&j, &t, kinds[i].suffix, kinds[i].median);
        }
        job_close(&j);
    }
#ifdef RAVEL_HAVE_OPENBLAS
    fill_batch(&batch, 40);
    report_products(&batch);
#endif
}

/* ---- where a step's time goes ---------------------------------------------------------------------------- */

enum { PROFILE_STEPS = 2 };

/* Forward, backward, clipping and AdamW, as means of PROFILE_STEPS; returns the number of rows, 0 after a failure. */
static int profile_steps(const ravel_shape *of, const batch_of *b, int32_t threads, profile_row *rows, double *took) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_optimizer *optimizer = NULL;
    train_optimizer_options options;
    job j;
    int count = 0;
    train_optimizer_options_default(&options);
    if (job_open_with(&j, of, b, (train_device_options){.threads = threads}, 1) &&
        train_optimizer_create(j.model, &options, NULL, &optimizer, &err) == RAVEL_OK) {
        for (int i = 0; i <= PROFILE_STEPS; i++) {
            if (i == 1) profile_clear(), *took = -bench_seconds(); /* the first one touches the memory */
            run_packed(&j);
            (void)train_optimizer_squares(optimizer, &(int64_t){0});
            train_optimizer_clip(optimizer, NULL, 0, 1);
            train_optimizer_step(optimizer, 1e-6);
        }
        *took = (*took + bench_seconds()) / PROFILE_STEPS;
        count = profile_take(rows, PROFILE_STEPS);
    }
    if (err.message[0]) bench_note("failed: %s", err.message);
    train_optimizer_free(optimizer);
    job_close(&j);
    return count;
}

static double seconds_of(const profile_row *rows, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].seconds;
    return 0;
}

/* Every kernel of a step on one thread and on all, and the share of products. */
static void report_profile(const ravel_shape *of, double median, const char *what, const char *suffix) {
    static batch_of batch;
    static profile_row one[PROFILE_ROWS], all[PROFILE_ROWS];
    int32_t threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    double slow = 0, fast = 0, products = 0, flops = 0;
    char name[64];
    fill_batch(&batch, median);
    int few = profile_steps(of, &batch, 1, one, &slow), count = profile_steps(of, &batch, threads, all, &fast);
    if (!few || !count) return;
    bench_note("%s: one thread %.0f ms, %d threads %.0f ms (%.2f times)", what, 1e3 * slow, threads, 1e3 * fast,
               slow / fast);
    bench_note("%-34s %5s %11s %8s %11s %8s %7s %6s", "kernel", "calls", "one, ms", "GFLOP/s", "all, ms", "GFLOP/s",
               "speedup", "share");
    for (int i = 0; i < count; i++) {
        const profile_row *r = all + i;
        double before = seconds_of(one, few, r->name);
        if (r->flops > 0) products += r->seconds, flops += r->flops;
        bench_note("%-34s %5lld %11.3f %8.1f %11.3f %8.1f %7.2f %6.3f", r->name, (long long)r->calls, 1e3 * before,
                   before > 0 ? r->flops / before * 1e-9 : 0, 1e3 * r->seconds, r->flops / r->seconds * 1e-9,
                   before / r->seconds, r->seconds / fast);
    }
    (void)snprintf(name, sizeof name, "train.products_gflops%s", suffix);
    bench_report(name, flops / products * 1e-9, "GFLOP/s", HIGHER,
                 "%s: matrix products of a step on %d threads; they take %.2f of it", what, threads, products / fast);
}

BENCH(train_profile) {
    report_profile(&shape, 40, "20 M parameters, 2048 tokens", "");
    report_profile(&wide_shape, 200, "six layers of SmolLM2-135M, 2048 tokens", "_wide");
}

/* ---- the generator -------------------------------------------------------------------------------------- */

enum { PROMPTS = 8, GROUP = 4, PROMPT = 32, ROOM = 160, SLOTS = 32 };

typedef struct talk {
    train_generator *generator;
    train_request requests[PROMPTS];
    int64_t tokens;
    int failed;
} talk;

static ravel_status count_answer(void *user, const train_answer *a, ravel_error *err) {
    (void)err;
    ((talk *)user)->tokens += a->count;
    return RAVEL_OK;
}

static void run_talk(void *user) {
    talk *t = user;
    ravel_error err = RAVEL_ERROR_INIT;
    t->tokens = 0;
    if (train_generator_run(t->generator, t->requests, PROMPTS, count_answer, t, &err) && !t->failed++)
        bench_note("failed: %s", err.message);
}

/* Tokens per second with this many slots; answers of lognormal lengths, up to ROOM - PROMPT. */
static double talk_rate(const job *j, int64_t slots, int64_t *tokens) {
    static int32_t prompt[PROMPT];
    static train_sampling sampling[PROMPTS];
    uint64_t state = 3;
    talk t = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    train_generator_options o;
    train_generator_options_default(&o);
    o.slots = slots;
    o.slot_tokens = ROOM;
    if (train_generator_create(j->kernels, j->device, j->shape, &o, &t.generator, &err)) {
        bench_note("failed: %s", err.message);
        return 0;
    }
    train_generator_set_weights(t.generator, train_model_weights(j->model), 0);
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(draw(&state) % (uint64_t)shape.vocab);
    for (int i = 0; i < PROMPTS; i++) {
        train_sampling_default(&sampling[i]);
        sampling[i].max_tokens = (int64_t)fmin(ROOM - PROMPT, 8 + 40 * exp(0.6 * normal(&state)));
        t.requests[i] =
            (train_request){.prompt = prompt, .count = PROMPT, .id = i, .samples = GROUP, .sampling = &sampling[i]};
    }
    double best = best_of(2, run_talk, &t);
    *tokens = t.tokens;
    train_generator_free(t.generator);
    return (double)t.tokens / best;
}

/* Answers to one long prompt: the prompt's keys and values once for all of them, or, with prompts that differ in their
 * first token, once for each. */
enum { LONG = 1000, ANSWERS = 16, ANSWER = 64 };

typedef struct group {
    train_generator *generator;
    train_request requests[ANSWERS];
    int64_t count, tokens;
} group;

static void run_group(void *user) {
    group *g = user;
    talk t = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_generator_run(g->generator, g->requests, g->count, count_answer, &t, &err))
        bench_note("failed: %s", err.message);
    g->tokens = t.tokens;
}

static double group_seconds(const job *j, int apart, int64_t *tokens) {
    static int32_t prompts[ANSWERS][LONG];
    static train_sampling sampling;
    uint64_t state = 5;
    group g = {.count = apart ? ANSWERS : 1};
    ravel_error err = RAVEL_ERROR_INIT;
    train_generator_options o;
    train_generator_options_default(&o);
    o.slots = ANSWERS;
    o.slot_tokens = LONG + ANSWER;
    if (train_generator_create(j->kernels, j->device, j->shape, &o, &g.generator, &err)) {
        bench_note("failed: %s", err.message);
        return 0;
    }
    train_generator_set_weights(g.generator, train_model_weights(j->model), 0);
    train_sampling_default(&sampling);
    sampling.max_tokens = ANSWER;
    for (int i = 0; i < LONG; i++) prompts[0][i] = (int32_t)(draw(&state) % (uint64_t)shape.vocab);
    for (int k = 0; k < g.count; k++) {
        memcpy(prompts[k], prompts[0], sizeof prompts[0]);
        prompts[k][0] = k;
        g.requests[k] = (train_request){
            .prompt = prompts[k], .count = LONG, .id = k, .samples = apart ? 1 : ANSWERS, .sampling = &sampling};
    }
    double best = best_of(2, run_group, &g);
    *tokens = g.tokens;
    train_generator_free(g.generator);
    return best;
}

BENCH(generate_group) {
    static batch_of batch;
    job j;
    int64_t together = 0, apart = 0;
    fill_batch(&batch, 40);
    if (job_open(&j, &shape, &batch, (train_device_options){.threads = 1})) {
        double shared = group_seconds(&j, 0, &together), own = group_seconds(&j, 1, &apart);
        if (shared > 0 && own > 0)
            bench_report(
                "generate.group_vs_own_prompts", own / (double)apart / (shared / (double)together), "ratio", HIGHER,
                "%d answers of %d tokens to one prompt of %d tokens, against as many prompts of which no two begin "
                "alike: time per token; 20 M parameters, one thread",
                ANSWERS, ANSWER, LONG);
    }
    job_close(&j);
}

BENCH(generate) {
    static batch_of batch;
    job j;
    int64_t tokens = 0, same = 0;
    fill_batch(&batch, 40);
    if (job_open(&j, &shape, &batch, (train_device_options){.threads = 1})) {
        double many = talk_rate(&j, SLOTS, &tokens), one = talk_rate(&j, 1, &same);
        bench_report("generate.tokens_per_s", many, "tokens/s", HIGHER,
                     "20 M parameters, %d prompts x %d answers of lognormal lengths, %d slots, one thread", PROMPTS,
                     GROUP, SLOTS);
        bench_report("generate.batched_vs_single", many / one, "ratio", HIGHER,
                     "%d slots / one at a time (%.0f tokens/s); the same %lld tokens", SLOTS, one, (long long)tokens);
        if (tokens != same) bench_note("the two runs drew %lld and %lld tokens", (long long)tokens, (long long)same);
    }
    job_close(&j);
}
