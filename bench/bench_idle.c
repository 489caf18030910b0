/* Idle time of eight ranks with long-tailed lengths, measured: ranks are threads, and a mock model takes as long for a
 * micro-batch as it costs (it sleeps, so two cores are enough). Planned by tokens, as a trainer without a cost model
 * does, and by the model's cost. */
#include "bench/bench.h"

#include "bench/plan_job.h"

#include <ravel/comm.h>

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { RANKS = 8, SAMPLES = 256, BUDGET = 32768, SECONDS = 2 };

typedef struct mock_run {
    const ravel_plan *plan;
    int64_t cost[SAMPLES], overhead;
    double unit; /* seconds per unit of cost */
    int32_t sync;
    double busy[RANKS], all[RANKS];
} mock_run;

static void sleep_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&t, &t) != 0) {}
}

static ravel_status train_rank(ravel_comm *comm, void *user, ravel_error *err) {
    mock_run *m = user;
    int32_t rank = ravel_comm_rank(comm);
    ravel_status status = ravel_comm_barrier(comm, err);
    double began = bench_seconds(), busy = 0;
    for (int64_t step = 0; !status && step < m->plan->micro_steps; step++) {
        ravel_group group = ravel_plan_group(m->plan, step, rank);
        int64_t cost = m->overhead;
        for (int64_t i = 0; i < group.count; i++) cost += m->cost[group.samples[i]];
        double from = bench_seconds();
        sleep_for((double)cost * m->unit);
        busy += bench_seconds() - from;
        if (m->sync == RAVEL_SYNC_MICRO_STEP) status = ravel_comm_barrier(comm, err);
    }
    if (!status) status = ravel_comm_barrier(comm, err);
    m->busy[rank] = busy;
    m->all[rank] = bench_seconds() - began;
    return status;
}

/* The share of rank time that is spent waiting. */
static double idle_of(const int64_t *lengths, const ravel_cost *planned, const ravel_cost *real, int32_t sync) {
    mock_run m = {.sync = sync, .overhead = real->overhead};
    plan_job j;
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    double busy = 0, all = 0, total = 0;
    plan_job_begin(&j, lengths, SAMPLES, BUDGET);
    j.options.cost = *planned;
    j.options.dp = RANKS;
    j.options.sync = sync;
    if (ravel_plan_create(&j.input, &j.options, &plan, &err)) {
        bench_note("failed: %s", err.message);
        return 0;
    }
    for (int i = 0; i < SAMPLES; i++) {
        m.cost[i] = real->linear * lengths[i] + real->quadratic * lengths[i] * lengths[i];
        total += (double)m.cost[i];
    }
    m.plan = plan;
    m.unit = SECONDS * RANKS / total;
    if (ravel_threads_run(RANKS, NULL, train_rank, &m, &err)) bench_note("failed: %s", err.message);
    for (int r = 0; r < RANKS; r++) {
        busy += m.busy[r];
        all += m.all[r];
    }
    ravel_plan_free(plan);
    return 100 * (1 - busy / all);
}

/* Lognormal, median 2,000, up to 30,000 tokens. */
static void draw_lengths(int64_t *lengths) {
    uint64_t state = 1;
    for (int i = 0; i < SAMPLES; i++) {
        double z = -6;
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            z += (double)(state >> 33) / 2147483648.0;
        }
        lengths[i] = (int64_t)fmin(30000, fmax(16, 2000 * exp(1.2 * z)));
    }
}

BENCH(idle) {
    static const char *const names[] = {[RAVEL_SYNC_MICRO_STEP] = "micro_step", [RAVEL_SYNC_UPDATE] = "update"};
    static const int32_t syncs[] = {RAVEL_SYNC_UPDATE, RAVEL_SYNC_MICRO_STEP};
    const ravel_cost tokens = {1, 0, 0};
    int64_t lengths[SAMPLES];
    ravel_shape shape;
    ravel_cost model;
    ravel_error err = RAVEL_ERROR_INIT;
    draw_lengths(lengths);
    if (ravel_shape_named("qwen3-0.6b", &shape, &err) || ravel_cost_from_shape(&shape, &model, &err)) {
        bench_note("failed: %s", err.message);
        return;
    }
    for (int i = 0; i < 2; i++) {
        char name[64];
        double before = idle_of(lengths, &tokens, &model, syncs[i]), after = idle_of(lengths, &model, &model, syncs[i]);
        (void)snprintf(name, sizeof name, "idle.%s_by_tokens", names[syncs[i]]);
        bench_report(
            name, before, "%", LOWER,
            "measured idle share of %d ranks (threads) that meet per %s; mock model with Qwen3-0.6B's cost, %d "
            "lognormal samples up to 30,000 tokens, budget %d; planned by tokens",
            RANKS, i ? "micro-step" : "update", SAMPLES, BUDGET);
        (void)snprintf(name, sizeof name, "idle.%s", names[syncs[i]]);
        bench_report(name, after, "%", LOWER, "the same, planned by the cost of the model");
    }
}
