/* Metrics by example: four ranks pretend to train, and leave a run directory that `ravel report` can show.
 *
 *     build/examples/04_metrics runs/demo            40 updates of simulated GRPO
 *     build/examples/04_metrics runs/demo 40 7       another number of updates, another seed
 *     ravel report runs/demo --html demo.html
 *     ravel report runs/demo runs/other --html both.html
 *
 * A real trainer needs the same parts: the reducer (metrics do not depend on a communicator; these six lines connect
 * the two), the
 * phases around the work, one call for a batch, one for the rollouts, one at the end of the update. */
#include <ravel/comm.h>
#include <ravel/metrics.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 4, SAMPLES = 64, BUDGET = 8192 };

typedef struct pretend {
    const char *folder;
    int64_t updates;
    uint64_t seed;
} pretend;

/* ---- the reducer: a communicator as metrics want it ----------------------------------------------------- */

static ravel_status reduce(void *user, int64_t *values, int64_t count, ravel_metrics_op op, ravel_error *err) {
    return ravel_comm_allreduce(user, values, values, count, RAVEL_I64, op == RAVEL_METRICS_SUM ? RAVEL_SUM : RAVEL_MAX,
                                err);
}

/* ---- simulated training --------------------------------------------------------------------------------------- */

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (double)(*state >> 11) * 0x1p-53;
}

static void work_for(double milliseconds) {
    struct timespec t = {0, (long)(milliseconds * 1e6)};
    (void)nanosleep(&t, NULL);
}

/* A phase with some work in it. */
static void phase(ravel_metrics *m, ravel_phase which, double milliseconds) {
    (void)ravel_metrics_phase_begin(m, which, NULL);
    work_for(milliseconds);
    (void)ravel_metrics_phase_end(m, which, NULL);
}

static void pretend_rollouts(ravel_metrics *m, double progress, uint64_t *random) {
    double rewards[SAMPLES];
    int64_t groups[SAMPLES], responses[SAMPLES];
    uint8_t truncated[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        rewards[i] = draw(random) < 0.15 + 0.7 * progress ? 1 : 0;
        groups[i] = i / 8;
        responses[i] = 50 + (int64_t)(draw(random) * (300 + 500 * progress));
        truncated[i] = responses[i] > 750;
        (void)ravel_metrics_count(m, RAVEL_METRIC_ROLLOUT_TOKENS, responses[i]);
    }
    ravel_metrics_rollouts rollouts = {.size = sizeof rollouts,
                                       .count = SAMPLES,
                                       .rewards = rewards,
                                       .groups = groups,
                                       .responses = responses,
                                       .truncated = truncated};
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ROLLOUT, NULL);
    work_for(3 + 2 * progress);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_ROLLOUT, NULL);
    phase(m, RAVEL_PHASE_REWARD, 0.4);
    ravel_metrics_add_rollouts(m, &rollouts);
}

/* One bin: its samples, forward, backward. */
static void pretend_bin(ravel_metrics *m, int rank, uint64_t *random) {
    int64_t lengths[16], padded = 0, actual = 0, samples = 0;
    while (samples < 16) {
        int64_t length = 100 + (int64_t)(draw(random) * draw(random) * 2400), slot = (length + 15) / 16 * 16;
        if (padded + slot > BUDGET) break;
        lengths[samples++] = length;
        padded += slot;
        actual += length;
    }
    ravel_metrics_batch batch = {.size = sizeof batch,
                                 .lengths = lengths,
                                 .samples = samples,
                                 .capacity = BUDGET,
                                 .padded = padded,
                                 .loss = actual * 3 / 4,
                                 .bins = 1,
                                 .micro_steps = 1};
    ravel_metrics_add_batch(m, &batch);
    phase(m, RAVEL_PHASE_FORWARD, 0.4 + 0.1 * rank + 0.2 * draw(random));
    phase(m, RAVEL_PHASE_BACKWARD, 0.8 + 0.2 * rank + 0.4 * draw(random));
}

static void pretend_refit(ravel_metrics *m) {
    phase(m, RAVEL_PHASE_REFIT, 1.5);
    ravel_metrics_count(m, RAVEL_METRIC_REFIT_BYTES_NEEDED, INT64_C(1200) << 20);
    ravel_metrics_count(m, RAVEL_METRIC_REFIT_BYTES_MOVED, INT64_C(1204) << 20);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_TOTAL, 0.0015, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_ITERATE, 0.0002, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_PACK, 0.0008, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_SEND, 0.0012, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_RECEIVE, 0.0012, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_LOAD, 0.0005, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_COMMIT, 0.0001, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REFIT_OVERLAP, 0.9, 1);
}

static ravel_status one_update(ravel_metrics *m, int rank, int64_t step, double progress, uint64_t *random,
                               ravel_error *err) {
    ravel_metrics_begin(m);
    pretend_rollouts(m, progress, random);
    phase(m, RAVEL_PHASE_FEED, 0.2 + 0.2 * draw(random));
    for (int bin = 0; bin < 2; bin++) pretend_bin(m, rank, random);
    phase(m, RAVEL_PHASE_ALL_REDUCE, 0.3);
    phase(m, RAVEL_PHASE_OPTIMIZER, 0.5);
    if (step % 2 == 0) pretend_refit(m);
    /* The loss is a sum over ranks of weight * token loss: each adds its part. */
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, (2.2 * exp(-2.5 * progress) + 0.3 + 0.15 * draw(random)) / RANKS, 1);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, 0.5 + draw(random) * exp(-progress), 1);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LEARNING_RATE, 1e-5 * (1 - 0.9 * progress), 1);
    ravel_metrics_add(m, RAVEL_METRIC_POLICY_RATIO_MEAN, 1 + 0.002 * (draw(random) - 0.5), 1000);
    ravel_metrics_add(m, RAVEL_METRIC_POLICY_APPROX_KL, 1e-4 * (1 + 5 * progress), 1000);
    ravel_metrics_add(m, RAVEL_METRIC_POLICY_ENTROPY, 1.4 - 0.8 * progress, 1000);
    ravel_metrics_add(m, RAVEL_METRIC_POLICY_CLIP_SHARE, 0.01 + 0.02 * draw(random), 1000);
    ravel_metrics_add(m, RAVEL_METRIC_TOKEN_MULT_PROB_ERROR, 1.01 + 0.01 * draw(random), 1000);
    if (step % 10 == 0) ravel_metrics_add(m, RAVEL_METRIC_EVAL_LOSS, 2.2 * exp(-2.3 * progress) + 0.4, 1000);
    return ravel_metrics_update(m, step, err);
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

static ravel_status train(ravel_comm *comm, void *user, ravel_error *err) {
    const pretend *p = user;
    int rank = ravel_comm_rank(comm);
    ravel_metrics_reducer reducer = {rank, ravel_comm_size(comm), reduce, comm};
    ravel_metrics_options options;
    ravel_metrics_options_default(&options);
    ravel_shape shape;
    ravel_status status = ravel_shape_named("qwen3-0.6b", &shape, err);
    if (status) return status;
    options.reducer = &reducer;
    options.shape = &shape;
    options.updates = p->updates;
    options.rl = 1;
    options.peak_flops = 2e16; /* an invented peak; for a real GPU set options.gpu = "NVIDIA H200" */
    ravel_metrics *m = NULL;
    char config[256];
    (void)snprintf(config, sizeof config,
                   "{\"algorithm\": \"grpo\", \"model\": \"qwen3-0.6b\", \"seed\": %llu, \"updates\": %lld,\n"
                   " \"data\": {\"budget\": %d, \"align\": 16}, \"optimizer\": {\"lr\": 1e-05, \"clip\": 1.0}}\n",
                   (unsigned long long)p->seed, (long long)p->updates, BUDGET);
    status = ravel_metrics_create(&options, &m, err);
    if (!status) status = ravel_metrics_run(m, p->folder, config, "jsonl,csv,tensorboard,trace,log,prometheus", err);
    if (!status) status = ravel_metrics_sink(m, "progress", err);
    uint64_t random = p->seed * 1000 + (uint64_t)rank;
    for (int64_t step = 1; step <= p->updates && !status; step++)
        status = one_update(m, rank, step, (double)step / (double)p->updates, &random, err);
    double mean;
    if (!status && rank == 0 && ravel_metrics_get(m, "reward/mean", &mean))
        printf("last reward %.3f; the run is in %s\n", mean, p->folder);
    ravel_metrics_free(m);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        (void)fprintf(stderr, "usage: 04_metrics RUN_DIR [UPDATES [SEED]]\n");
        return 2;
    }
    pretend p = {argv[1], argc > 2 ? strtoll(argv[2], NULL, 10) : 40, argc > 3 ? strtoull(argv[3], NULL, 10) : 1};
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_threads_run(RANKS, NULL, train, &p, &err) != RAVEL_OK) {
        (void)fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    return 0;
}
