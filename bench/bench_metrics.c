/* The time that the metrics of one update take on a rank. */
#include "bench/bench.h"

#include <ravel/metrics.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 4096, BINS = 64, ROUNDS = 50 };

typedef struct job {
    ravel_metrics *metrics;
    int64_t step;
    int64_t lengths[SAMPLES], groups[SAMPLES], responses[SAMPLES];
    double rewards[SAMPLES];
    uint8_t truncated[SAMPLES];
} job;

/* All counts of a GRPO update: 64 bins of 64 samples, phases around each, rewards, lengths, sums over tokens. */
static void one_update(job *j) {
    ravel_metrics *m = j->metrics;
    ravel_metrics_begin(m);
    for (int bin = 0; bin < BINS; bin++) {
        const int64_t *lengths = j->lengths + bin * (SAMPLES / BINS);
        ravel_metrics_batch batch = {.size = sizeof batch,
                                     .lengths = lengths,
                                     .samples = SAMPLES / BINS,
                                     .capacity = 131072,
                                     .padded = 130000,
                                     .loss = 100000,
                                     .bins = 1,
                                     .micro_steps = 1};
        (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_FORWARD, NULL);
        ravel_metrics_add_batch(m, &batch);
        (void)ravel_metrics_phase_end(m, RAVEL_PHASE_FORWARD, NULL);
        (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_BACKWARD, NULL);
        ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, 0.01, 1);
        ravel_metrics_add(m, RAVEL_METRIC_POLICY_ENTROPY, 1.5, 1000);
        ravel_metrics_add(m, RAVEL_METRIC_TOKEN_MULT_PROB_ERROR, 1.01, 1000);
        (void)ravel_metrics_phase_end(m, RAVEL_PHASE_BACKWARD, NULL);
    }
    ravel_metrics_rollouts rollouts = {.size = sizeof rollouts,
                                       .count = SAMPLES,
                                       .rewards = j->rewards,
                                       .groups = j->groups,
                                       .responses = j->responses,
                                       .truncated = j->truncated};
    ravel_metrics_add_rollouts(m, &rollouts);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, 1.25, 1);
    (void)ravel_metrics_update(m, ++j->step, NULL);
}

static void rounds(void *user) {
    for (int i = 0; i < ROUNDS; i++) one_update(user);
}

static job *make_job(void) {
    job *j = calloc(1, sizeof *j);
    ravel_metrics_options options;
    ravel_shape shape;
    ravel_metrics_options_default(&options);
    options.rl = 1;
    options.gpu = "H100";
    if (ravel_shape_named("llama-8b", &shape, NULL) == RAVEL_OK) options.shape = &shape;
    if (!j || ravel_metrics_create(&options, &j->metrics, NULL) != RAVEL_OK) {
        free(j);
        return NULL;
    }
    uint64_t x = 88172645463325252U;
    for (int i = 0; i < SAMPLES; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        j->lengths[i] = 1 + (int64_t)(x % 4000);
        j->responses[i] = j->lengths[i] / 2;
        j->groups[i] = i / 8;
        j->rewards[i] = (double)(x >> 40) * 0x1p-24;
        j->truncated[i] = x % 10 == 0;
    }
    return j;
}

/* The time that a sink adds to an update, on rank 0. */
static double with_sink(const char *kind, const char *folder, double without) {
    job *j = make_job();
    if (!j) return 0;
    char spec[128];
    (void)snprintf(spec, sizeof spec, "%s:%s/%s", kind, folder, kind);
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_metrics_sink(j->metrics, spec, &err)) bench_note("%s", err.message);
    rounds(j);
    double best = bench_best(5, rounds, j) / ROUNDS;
    ravel_metrics_free(j->metrics);
    free(j);
    return (best - without) * 1e6;
}

BENCH(metrics) {
    job *j = make_job();
    if (!j) return;
    rounds(j);
    double best = bench_best(9, rounds, j) / ROUNDS;
    ravel_metrics_free(j->metrics);
    free(j);
    bench_report("metrics.update_us", best * 1e6, "us", LOWER,
                 "all metrics of an update a rank: %d samples in %d bins, RL and FLOPs on, no sinks", SAMPLES, BINS);
    char folder[] = "/tmp/ravel-bench-XXXXXX", command[64];
    if (!mkdtemp(folder)) return;
    bench_report("metrics.jsonl_us", with_sink("jsonl", folder, best), "us", LOWER, "what a JSONL line adds on rank 0");
    bench_report("metrics.tensorboard_us", with_sink("tensorboard", folder, best), "us", LOWER,
                 "what a TensorBoard record adds on rank 0");
    bench_report("metrics.trace_us", with_sink("trace", folder, best), "us", LOWER,
                 "what a trace of %d phases an update adds on every rank", 2 * BINS);
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) bench_note("%s is left behind", folder); /* NOLINT: a name of our own making */
}
