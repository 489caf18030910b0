/* The trainer on one GPU: whole optimiser steps of Qwen3 shapes on a packed mix of lengths, beside PyTorch in the same
 * run, and where the time of a step goes.
 *
 * 128 samples (lengths.txt: lognormal, median 900, sigma .9, 64 to 8192 tokens, 150,874 in all) make one optimiser step,
 * planned by ravel_plan_create into micro-batches. Weights are random; the time of a step does not depend on them.
 * PyTorch runs train_torch.py on the same lengths, in processes of its own, before and after. */
#include "bench/bench.h"
#include "bench/gpu/parts.h"

#include <ravel/device.h>
#include <ravel/plan.h>
#include <ravel/shape.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/learn/optimizer.h"
#include "train/model/model.h"

enum { MOST_SAMPLES = 512, WARM_STEPS = 2 };
static const double PEAK = 989.4e12; /* bf16, dense, of an H200 */

typedef struct mix {
    int32_t count;
    int64_t lengths[MOST_SAMPLES], total;
} mix;

typedef struct micro_batch {
    train_batch batch;
    int32_t *tokens, *cu_seqlens;
} micro_batch;

typedef struct job {
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
    train_optimizer *optimizer;
    micro_batch *micro;
    int64_t micros;
} job;

static int read_mix(mix *m) {
    FILE *f = fopen("bench/gpu/lengths.txt", "r");
    long long n;
    memset(m, 0, sizeof *m);
    while (f && m->count < MOST_SAMPLES && fscanf(f, "%lld", &n) == 1) {
        m->lengths[m->count++] = n;
        m->total += n;
    }
    if (f) (void)fclose(f);
    return m->count > 0;
}

static int longest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Samples of these lengths side by side, with random tokens. */
static void fill_micro(micro_batch *b, int64_t *lengths, int32_t count, int64_t vocab, uint64_t *seed) {
    int64_t total = 0, at = 0;
    qsort(lengths, (size_t)count, sizeof *lengths, longest_first);
    for (int32_t i = 0; i < count; i++) total += lengths[i];
    b->tokens = malloc(((size_t)total + 1) * sizeof *b->tokens);
    b->cu_seqlens = malloc(((size_t)count + 1) * sizeof *b->cu_seqlens);
    for (int32_t i = 0; i < count; i++) {
        b->cu_seqlens[i] = (int32_t)at;
        at += lengths[i];
    }
    b->cu_seqlens[count] = (int32_t)at;
    for (int64_t i = 0; i < total; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((*seed >> 33) % (uint64_t)vocab);
    }
    b->batch = (train_batch){.samples = count, .tokens = b->tokens, .cu_seqlens = b->cu_seqlens};
}

static ravel_status plan_micros(job *j, const mix *m, int64_t budget, int64_t vocab, ravel_error *err) {
    ravel_plan_options options;
    ravel_plan *plan;
    uint64_t seed = 7;
    ravel_plan_options_default(&options);
    options.budget = budget;
    ravel_plan_input input = {.size = sizeof input, .count = m->count, .lengths = m->lengths};
    ravel_status s = ravel_plan_create(&input, &options, &plan, err);
    if (s) return s;
    j->micros = plan->bins;
    j->micro = calloc((size_t)j->micros, sizeof *j->micro);
    for (int64_t i = 0; i < j->micros; i++) {
        int64_t lengths[MOST_SAMPLES] = {0};
        int32_t count = 0;
        for (int64_t k = plan->bin_offsets[i]; k < plan->bin_offsets[i + 1]; k++)
            lengths[count++] = m->lengths[plan->samples[k]];
        fill_micro(&j->micro[i], lengths, count, vocab, &seed);
    }
    ravel_plan_free(plan);
    return RAVEL_OK;
}

static void job_close(job *j) {
    train_optimizer_free(j->optimizer);
    train_model_free(j->model);
    if (j->device) j->kernels->close(j->device);
    for (int64_t i = 0; i < j->micros; i++) {
        free(j->micro[i].tokens);
        free(j->micro[i].cu_seqlens);
    }
    free(j->micro);
}

/* What is measured: a shape, a micro-batch size, a choice of what to keep. */
typedef struct bench_kind {
    const char *name, *shape;
    int64_t budget;
    int32_t recompute, any_order, steps;
} bench_kind;

static train_model_options options_of(const bench_kind *kind) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = kind->budget;
    o.longest = 8192;
    o.recompute = kind->recompute;
    o.graphs = TRAIN_GRAPHS_OFF; /* parts of a step can be left out of calls only; bench_gpu_graphs.c compares both */
    return o;
}

/* Bytes on the GPU, as the estimate before a run says. */
static double memory_of(const job *j, const bench_kind *kind) {
    ravel_shape shape;
    ravel_error err;
    train_memory memory;
    train_model_options o = options_of(kind);
    if (ravel_shape_named(kind->shape, &shape, &err) || train_model_memory(j->kernels, 1, &shape, &o, &memory, &err))
        return 0;
    return (double)(memory.total +
                    train_optimizer_bytes(j->kernels, train_optimizer_shares(j->optimizer), TRAIN_MOMENTS_F32));
}

static ravel_status job_open(job *j, const bench_kind *kind, const mix *m, ravel_error *err) {
    ravel_shape shape;
    train_model_options model;
    train_optimizer_options optimizer;
    memset(j, 0, sizeof *j);
    ravel_status s = ravel_shape_named(kind->shape, &shape, err);
    if (!s) s = train_kernels_find("cuda", &j->kernels, err);
    if (!s) j->kernels = parts_of(j->kernels, shape.vocab);
    if (!s) s = j->kernels->open(&(train_device_options){.threads = 1, .any_order = kind->any_order}, &j->device, err);
    model = options_of(kind);
    if (!s) s = train_model_create(j->kernels, j->device, &shape, &model, &j->model, err);
    if (!s) s = train_model_init(j->model, 1, 0, err);
    train_optimizer_options_default(&optimizer);
    if (!s) s = train_optimizer_create(j->model, &optimizer, NULL, &j->optimizer, err);
    if (!s) s = plan_micros(j, m, kind->budget, shape.vocab, err);
    if (s) job_close(j);
    return s;
}

/* One optimiser step; the loss per token. */
static ravel_status step(job *j, double *loss, ravel_error *err) {
    train_update update;
    int64_t spans;
    ravel_status s = RAVEL_OK;
    train_model_clear_grads(j->model);
    for (int64_t i = 0; i < j->micros && !s; i++) s = train_model_learn(j->model, &j->micro[i].batch, NULL, NULL, err);
    if (s) return s;
    (void)train_optimizer_squares(j->optimizer, &spans);
    train_optimizer_clip(j->optimizer, NULL, 0, 1);
    train_optimizer_step(j->optimizer, 1e-5);
    s = train_model_read(j->model, &update, err);
    if (!s) *loss = update.sums.loss / update.sums.tokens;
    return s;
}

static double flops_of(const mix *m, const char *shape_name) {
    ravel_shape shape;
    ravel_error err;
    if (ravel_shape_named(shape_name, &shape, &err)) return 0;
    return train_model_flops(&shape, 0, m->count, m->lengths, m->total - m->count);
}

static void report_phases(const char *name, const double *seconds, int steps) {
    static const char *const phases[] = {"clear_and_optimizer", "forward", "head",
                                         "backward"}; /* step() names no other */
    for (int i = 0; i < TRAIN_PHASE_OPTIMIZER; i++) {
        char figure[64];
        (void)snprintf(figure, sizeof figure, "gpu.step_ms_%s_%s", name, phases[i]);
        bench_report(figure, seconds[i] * 1e3 / steps, "ms", LOWER, "of one optimiser step, by events");
    }
}

/* What CUDA graphs could save at most: the host's time for the calls of one micro-batch, on an idle device, beside the
 * device's time for them. Calls are asynchronous, so the device waits for the host only where the first is longer. A
 * stream takes about a thousand calls before the host must wait for the device, so both halves begin on an idle one. */
static void report_issue(job *j, const char *name, double step_seconds) {
    ravel_error err = {0};
    double loss = 0, device = step_seconds / (double)j->micros, halves[2];
    char figure[64];
    if (j->kernels->sync(j->device, &err)) return;
    double begin = bench_seconds();
    if (train_model_stage_forward(j->model, 0, &j->micro[0].batch, NULL, &err)) return;
    halves[0] = bench_seconds() - begin;
    if (j->kernels->sync(j->device, &err)) return;
    begin = bench_seconds();
    if (train_model_stage_backward(j->model, 0, &err)) return;
    halves[1] = bench_seconds() - begin;
    (void)snprintf(figure, sizeof figure, "gpu.issue_ms_%s", name);
    bench_report(figure, (halves[0] + halves[1]) * 1e3, "ms", LOWER,
                 "host time of the calls of one micro-batch (staging and forward %.1f ms, the rest %.1f ms), which the "
                 "device works on for %.1f ms",
                 halves[0] * 1e3, halves[1] * 1e3, device * 1e3);
    (void)step(j, &loss, &err); /* clears the gradients that it left */
}

/* Seconds on the device of one step with these parts alone, by events. */
static double step_with(job *j, uint32_t parts, ravel_error *err) {
    double loss = 0, phases[TRAIN_PHASES], sum = 0;
    parts_keep(parts);
    j->kernels->phase_seconds(j->device, phases);
    if (step(j, &loss, err)) return 0;
    j->kernels->phase_seconds(j->device, phases);
    for (int i = 0; i < TRAIN_PHASES; i++) sum += phases[i];
    parts_keep(PART_ALL);
    return sum;
}

/* Elementwise work per 16,384 tokens of 0.6B at the card's copy rate. */
static const double ELEMENTWISE_MS = 16.4;

/* Whole steps beside steps of products and attention alone, in turn; then each part alone, beside what the card's
 * measured rates give for it (milliseconds per 16,384 tokens, 0.6B at 32k; the same bits on every run). A step without
 * its elementwise kernels reads what the whole step before it left, so it works on real numbers. */
static void report_parts(job *j, const mix *m, const char *name) {
    static const struct {
        const char *name;
        uint32_t parts;
        double budget;
    } rows[] = {{"layer_products", PART_LAYERS, 64.4}, {"head_products", PART_HEAD, 22.4},
                {"attention", PART_ATTENTION, 41.4},   {"elementwise", PART_ROWS | PART_LOSS, ELEMENTWISE_MS},
                {"optimizer", PART_OPTIMIZER, 1.2},    {"everything", PART_ALL, 145.8}};
    ravel_error err = {0};
    double whole = 0, skeleton = 0;
    char figure[64];
    for (int i = 0; i < 3; i++) {
        whole += step_with(j, PART_ALL, &err);
        skeleton += step_with(j, PART_SKELETON, &err);
    }
    if (err.status) return bench_note("parts of a step: %s", err.message);
    (void)snprintf(figure, sizeof figure, "gpu.mfu_vs_skeleton_%s", name);
    bench_report(figure, skeleton / whole, "", HIGHER,
                 "a step's products and attention alone (%.0f ms) over the whole step (%.0f ms), in turn, by events",
                 skeleton / 3 * 1e3, whole / 3 * 1e3);
    /* The skeleton with its elementwise work at memory speed: what the step would take if no own kernel lost a byte. */
    double traffic = skeleton + 3 * ELEMENTWISE_MS * 1e-3 * (double)m->total / 16384;
    (void)snprintf(figure, sizeof figure, "gpu.mfu_vs_skeleton_with_rows_%s", name);
    bench_report(figure, traffic / whole, "", HIGHER,
                 "the same with elementwise work at memory speed, %.1f ms per 16,384 tokens: %.0f ms", ELEMENTWISE_MS,
                 traffic / 3 * 1e3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)step_with(j, PART_ALL, &err);
        double seconds = step_with(j, rows[i].parts, &err);
        (void)snprintf(figure, sizeof figure, "gpu.budget_ms_%s", rows[i].name);
        bench_report(figure, seconds * 1e3 * 16384 / (double)m->total, "ms", LOWER,
                     "per 16,384 tokens, alone, by events; the budget is %.1f", rows[i].budget);
    }
}

/* Copies of large blocks reach this on an H200, bytes read and written together. */
static const double COPY_RATE = 4.0e12;

/* Each kind of elementwise call inside whole steps, by events: its time, beside that of its bytes at the card's copy
 * rate.
 */
static void report_rows(job *j, const mix *m) {
    static const struct {
        const char *name;
        uint32_t part;
    } rows[] = {{"norm", PART_NORM},          {"norm_backward", PART_NORM_BACK},
                {"rope", PART_ROPE},          {"rope_backward", PART_ROPE_BACK},
                {"swiglu", PART_SWIGLU},      {"swiglu_backward", PART_SWIGLU_BACK},
                {"softmax_loss", PART_LOSS},  {"embedding", PART_EMBED},
                {"optimizer", PART_OPTIMIZER}};
    ravel_error err = {0};
    double loss = 0, phases[TRAIN_PHASES], per = 16384 / (double)m->total;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char figure[64];
        parts_watch(rows[i].part);
        j->kernels->phase_seconds(j->device, phases);
        ravel_status s = step(j, &loss, &err);
        j->kernels->phase_seconds(j->device, phases);
        parts_traffic t = parts_watched();
        parts_watch(0);
        if (s) return bench_note("kinds of calls: %s", err.message);
        double ms = phases[TRAIN_PHASE_OPTIMIZER] * 1e3;
        (void)snprintf(figure, sizeof figure, "gpu.rows_ms_%s", rows[i].name);
        bench_report(
            figure, ms * per, "ms", LOWER,
            "per 16,384 tokens, inside a whole step, by events: %.0f calls, %.2f GB, %.2f ms at 4.0 TB/s; %.0f "
            "GB/s",
            (double)t.calls * per, t.bytes * per * 1e-9, t.bytes * per / COPY_RATE * 1e3, t.bytes / ms * 1e-6);
    }
}

/* Bytes of the GPU that are free. */
static double free_bytes(void) {
    ravel_device *device = NULL;
    ravel_device_info info = {.size = sizeof info};
    if (ravel_device_open("cuda:0", &device, NULL)) return 0;
    (void)ravel_device_get_info(device, &info, NULL);
    ravel_device_free(device);
    return (double)info.free_bytes;
}

/* Tokens per second over optimiser steps without a pause; *peak: the most bytes in blocks. */
static double run_kind(const bench_kind *kind, double *peak) {
    mix m;
    job j;
    ravel_error err = {0};
    double loss = 0, phases[TRAIN_PHASES], unused[TRAIN_PHASES];
    if (!read_mix(&m)) return bench_note("%s: bench/gpu/lengths.txt cannot be read", kind->name), 0;
    double unused_bytes = free_bytes(), opened = bench_seconds();
    ravel_status s = job_open(&j, kind, &m, &err);
    if (s) return bench_note("%s: %s", kind->name, err.message), 0;
    for (int i = 0; i < WARM_STEPS && !s; i++) s = step(&j, &loss, &err);
    if (!s) j.kernels->phase_seconds(j.device, unused);
    double begin = bench_seconds();
    for (int i = 0; i < kind->steps && !s; i++) s = step(&j, &loss, &err);
    double took = (bench_seconds() - begin) / kind->steps, rate = (double)m.total / took;
    if (!s) {
        static const char *const keeps[] = {"keeps all", "makes norms, rotation and swiglu again",
                                            "makes layers again"};
        char figure[64];
        j.kernels->phase_seconds(j.device, phases);
        (void)snprintf(figure, sizeof figure, "gpu.train_%s", kind->name);
        bench_report(figure, rate, "tok/s", HIGHER,
                     "%s, %lld-token micro-batches (%lld), %s, %d steps, loss %.3f, warm-up %.0f s", kind->shape,
                     (long long)kind->budget, (long long)j.micros, keeps[kind->recompute], kind->steps, loss,
                     begin - opened);
        (void)snprintf(figure, sizeof figure, "gpu.mfu_%s", kind->name);
        bench_report(figure, flops_of(&m, kind->shape) / took / PEAK, "", HIGHER,
                     "of 989.4 TFLOP/s, whole optimiser steps%s",
                     kind->any_order ? ", sums in any order" : ", the same bits on every run");
        (void)snprintf(figure, sizeof figure, "gpu.memory_gib_%s", kind->name);
        bench_report(figure, memory_of(&j, kind) / 1073741824.0, "GiB", LOWER,
                     "weights, gradients, master weights, moments, activations, logits and scratch");
        (void)snprintf(figure, sizeof figure, "gpu.memory_told_vs_card_%s", kind->name);
        bench_report(figure, memory_of(&j, kind) / (unused_bytes - free_bytes()), "", HIGHER,
                     "the estimate before the run over what the card says is taken, libraries included");
        train_gpu_state state;
        j.kernels->gpu_state(j.device, &state);
        *peak = (double)state.peak_bytes;
        (void)snprintf(figure, sizeof figure, "gpu.memory_peak_gib_%s", kind->name);
        bench_report(figure, *peak / 1073741824.0, "GiB", LOWER, "the most that was allocated, counted as it was");
        report_phases(kind->name, phases, kind->steps);
        report_issue(&j, kind->name, took);
        if (strcmp(kind->name, "0_6b_32k") == 0) {
            report_rows(&j, &m);
            report_parts(&j, &m, kind->name);
        }
    } else
        bench_note("%s: %s", kind->name, err.message);
    job_close(&j);
    return s ? 0 : rate;
}

/* PyTorch's tokens per second and peak bytes for a shape; 0 where it could not be run. */
typedef struct torch_figures {
    double rate, peak;
} torch_figures;

static double figure_in(const char *line, const char *name) {
    const char *at = strstr(line, name);
    return at ? strtod(at + strlen(name), NULL) : 0;
}

static torch_figures run_torch(const char *shape, const char *variant, int budget, const char *more) {
    char command[512], line[1024];
    torch_figures found = {0, 0};
    const char *liger = getenv("RAVEL_LIGER");
    (void)snprintf(
        command, sizeof command,
        "timeout 170 python3 bench/gpu/train_torch.py --shape %s --variant %s --budget %d %s %s%s 2>/dev/null", shape,
        variant, budget, more, liger ? "--liger " : "", liger ? liger : "");
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!strstr(line, "tokens_per_second")) continue;
        found.rate = figure_in(line, "\"tokens_per_second\": ");
        found.peak = figure_in(line, "\"peak_gib\": ") * 1073741824.0;
        bench_note("%.300s", line);
    }
    if (f) (void)pclose(f);
    return found;
}

/* Both with float32 master weights and moments, at the same micro-batch; PyTorch in the variant that needs least. */
static void compare_memory(double ours) {
    static const char *const variants[] = {"liger", "eager"}; /* eager holds all logits: where Liger is not there */
    torch_figures torch = {0, 0};
    for (int i = 0; i < 2 && torch.peak == 0; i++) torch = run_torch("0.6B", variants[i], 16384, "--master --steps 1");
    if (torch.peak > 0 && ours > 0)
        bench_report("gpu.memory_vs_torch", ours / torch.peak, "", LOWER,
                     "0.6B, 16,384-token micro-batches: %.1f GiB at the peak, PyTorch with float32 master weights %.1f",
                     ours / 1073741824.0, torch.peak / 1073741824.0);
}

BENCH(gpu_train) {
    static const bench_kind kinds[] = {
        {"0_6b_16k", "qwen3-0.6b", 16384, TRAIN_RECOMPUTE_NONE, 0, 6},
        {"0_6b_32k", "qwen3-0.6b", 32768, TRAIN_RECOMPUTE_NONE, 0, 6},
        {"0_6b_32k_light", "qwen3-0.6b", 32768, TRAIN_RECOMPUTE_LIGHT, 0, 4},
        {"0_6b_32k_any_order", "qwen3-0.6b", 32768, TRAIN_RECOMPUTE_NONE, 1, 4},
        {"1_7b_16k", "qwen3-1.7b", 16384, TRAIN_RECOMPUTE_NONE, 0, 4},
    };
    const char *only = getenv("RAVEL_GPU_ONLY"); /* one of the names above: a run within a short lease of a GPU */
    double best = 0, peak_16k = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (only && strcmp(only, kinds[i].name) != 0) continue;
        double peak = 0, rate = run_kind(&kinds[i], &peak);
        if (i == 0) peak_16k = peak;
        if (i < 3 && rate > best) best = rate;
    }
    double torch = 0;
    static const struct {
        const char *variant;
        int budget;
    } rows[] = {{"compiled", 32768}, {"liger", 32768}, {"eager", 16384}};
    for (int i = 0; i < 3 && best > 0 && !getenv("RAVEL_GPU_NO_TORCH"); i++) {
        torch_figures found = run_torch("0.6B", rows[i].variant, rows[i].budget, "");
        if (found.rate > torch) torch = found.rate;
    }
    if (peak_16k > 0 && !getenv("RAVEL_GPU_NO_TORCH")) compare_memory(peak_16k);
    if (torch > 0 && best > 0)
        bench_report("gpu.train_vs_torch_best", best / torch, "", HIGHER,
                     "0.6B, the best of three PyTorch variants in the same run");
}
