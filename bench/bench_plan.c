/* The planner: speed and memory of the default method and of the others, idle time, and the results of other
 * frameworks' methods on real request lengths (when RAVEL_TRACES names the folder that holds them and
 * peers-to-beat.csv). */
#include "bench/bench.h"

#include "io/mock.h"
#include "bench/plan_job.h"

#include <ravel/mock.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const lognormal =
    "{\"mode\": \"distribution\", \"type\": \"lognormal\", \"min_seq_len\": 1024, \"max_seq_len\": 8192,"
    " \"mean_seq_len\": 4096, \"lognormal_sigma\": 1.1}";

static int64_t *draw(int64_t count) {
    ravel_mock *mock = NULL;
    if (ravel__mock_parse(lognormal, strlen(lognormal), NULL, &mock, NULL) != RAVEL_OK) return NULL;
    int64_t *lengths = malloc((size_t)count * sizeof *lengths);
    for (int64_t i = 0; lengths && i < count; i++) lengths[i] = ravel_mock_length(mock, i);
    ravel_mock_free(mock);
    return lengths;
}

static void begin(plan_job *j, const int64_t *lengths, int64_t count, int32_t dp, int64_t budget) {
    plan_job_begin(j, lengths, count, budget);
    j->options.dp = dp;
}

/* ---- speed and memory --------------------------------------------------------------------------------------- */

static void report_speed(const char *name, int64_t count, int repeats) {
    int64_t *lengths = draw(count);
    plan_job j;
    begin(&j, lengths, count, 16, 16384);
    double best = bench_best(repeats, plan_job_run, &j);
    bench_report(name, best * 1e3, "ms", LOWER, "n %lld, dp 16, budget 16384, lognormal mock, cost 24576:1, default",
                 (long long)count);
    free(lengths);
}

/* Long updates of the kinds that are easily quadratic: costs that oppose lengths, groups on ranks, padded rows. */
BENCH(plan_long) {
    enum { MANY = 320000 };
    static const char *const names[] = {"plan.n320k_costs_ms", "plan.n320k_groups_ms", "plan.n320k_padded_ms",
                                        "plan.n320k_padded_costs_ms"};
    int64_t *lengths = malloc(MANY * sizeof *lengths), *costs = malloc(MANY * sizeof *costs);
    int64_t *groups = malloc(MANY * sizeof *groups);
    for (int64_t i = 0; lengths && costs && groups && i < MANY; i++) {
        lengths[i] = 1 + i % 1000;
        costs[i] = 1000 - i % 1000;
        groups[i] = i % 100000;
    }
    for (int i = 0; lengths && costs && groups && i < 4; i++) {
        plan_job j;
        begin(&j, lengths, MANY, 4, 1 << 30);
        j.options.effort = RAVEL_EFFORT_FAST;
        if (i != 2) j.input.costs = costs;
        if (i == 1) j.input.groups = groups;
        if (i == 1) j.options.group_rule = RAVEL_GROUPS_RANK;
        if (i >= 2) j.options.layout = RAVEL_LAYOUT_PADDED;
        double best = bench_best(3, plan_job_run, &j);
        bench_report(names[i], best * 1e3, "ms", LOWER, "n 320,000, dp 4, effort fast%s%s%s",
                     i == 2 ? "" : ", costs in the opposite order of lengths",
                     i == 1 ? ", 100,000 groups on ranks" : "", i >= 2 ? ", layout padded" : "");
    }
    free(lengths);
    free(costs);
    free(groups);
}

BENCH(plan_speed) {
    report_speed("plan.n4096_ms", 4096, 200);
    report_speed("plan.n200k_ms", 200000, 7);
    report_speed("plan.n1m_ms", 1000000, 5);
}

BENCH(plan_effort) {
    static const char *const names[] = {"plan.n4096_fast_ms", "plan.n4096_update_ms", "plan.n4096_max_ms"};
    int64_t *lengths = draw(4096);
    for (int i = 0; i < 3; i++) {
        plan_job j;
        begin(&j, lengths, 4096, 16, 16384);
        j.options.effort = i == 0 ? RAVEL_EFFORT_FAST : i == 1 ? RAVEL_EFFORT_DEFAULT : RAVEL_EFFORT_MAX;
        if (i == 1) j.options.sync = RAVEL_SYNC_UPDATE;
        double best = bench_best(i == 2 ? 7 : 100, plan_job_run, &j);
        bench_report(names[i], best * 1e3, "ms", LOWER, "as plan.n4096_ms, %s",
                     i == 0   ? "effort fast"
                     : i == 1 ? "sync update"
                              : "effort max");
    }
    free(lengths);
}

BENCH(plan_methods) {
    int64_t *lengths = draw(4096);
    for (int32_t m = RAVEL_METHOD_RAVEL + 1; m < RAVEL_METHOD_FIXED_COUNT; m++) {
        char name[64];
        plan_job j;
        begin(&j, lengths, 4096, 16, 16384);
        j.options.method = m;
        double best = bench_best(50, plan_job_run, &j);
        (void)snprintf(name, sizeof name, "plan.%s_ms", ravel_method_name(m));
        bench_report(name, best * 1e3, "ms", LOWER, "as plan.n4096_ms, method %s: %lld bins, slowdown %.5f",
                     ravel_method_name(m), (long long)j.stats.bins_packed, j.stats.slowdown);
    }
    free(lengths);
}

typedef struct meter {
    int64_t live, peak;
} meter;

static void *metered(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    meter *m = user;
    void *result = NULL;
    if (new_bytes) {
        result = realloc(ptr, new_bytes);
        if (!result) return NULL;
    } else {
        free(ptr);
    }
    m->live += (int64_t)new_bytes - (int64_t)old_bytes;
    if (m->live > m->peak) m->peak = m->live;
    return result;
}

BENCH(plan_memory) {
    static const int64_t counts[] = {4096, 1000000};
    double most = 0;
    for (int i = 0; i < 2; i++) {
        int64_t *lengths = draw(counts[i]);
        meter m = {0, 0};
        ravel_allocator allocator = {metered, &m};
        plan_job j;
        begin(&j, lengths, counts[i], 16, 16384);
        j.options.allocator = &allocator;
        plan_job_run(&j);
        if ((double)m.peak / (double)counts[i] > most) most = (double)m.peak / (double)counts[i];
        free(lengths);
    }
    bench_report("plan.bytes_per_sample", most, "bytes", LOWER,
                 "peak of all that is allocated, the plan included; the worse of n 4096 and n 1000000");
}

/* ---- idle time ---------------------------------------------------------------------------------------------- */

static void report_idle(const char *name, int64_t count) {
    int64_t *lengths = draw(count);
    plan_job j;
    begin(&j, lengths, count, 16, 16384);
    plan_job_run(&j);
    bench_report(name, 100 * j.stats.idle_micro_step, "%", LOWER,
                 "n %lld, dp 16, budget 16384, lognormal mock, default", (long long)count);
    free(lengths);
}

BENCH(plan_idle) {
    report_idle("plan.idle_n1024", 1024);
    report_idle("plan.idle_n8192", 8192);
}

/* ---- methods of other frameworks ----------------------------------------------------------------------------------
 * */

typedef struct peer {
    char trace[64];
    int64_t n, budget, bound, bins, steps;
    int32_t dp;
    double slowdown, imbalance;
} peer;

static int read_peer(const char *line, peer *p) {
    long long n, budget, dp, bound, bins, steps, steps_bound;
    double pack_ms, place_ms;
    char slow[64], even[64];
    int fields = sscanf(line, "%lld,%lld,%63[^,],%lld,%lld,%lld,%lld,%lld,%63[^,],%lf,%lf,%lf,%63[^,],%lf", &n, &budget,
                        p->trace, &dp, &bound, &bins, &steps, &steps_bound, slow, &p->slowdown, &pack_ms, &place_ms,
                        even, &p->imbalance);
    p->n = n;
    p->budget = budget;
    p->dp = (int32_t)dp;
    p->bound = bound;
    p->bins = bins;
    p->steps = steps;
    return fields == 14;
}

/* The first n rows that fit the budget. */
static int64_t load_trace(const char *folder, const peer *p, int64_t *lengths) {
    char path[1024];
    ravel_lengths *all = NULL;
    (void)snprintf(path, sizeof path, "%s/%s.csv", folder, p->trace);
    if (ravel_lengths_read(path, NULL, &all, NULL) != RAVEL_OK) return 0;
    int64_t count = 0;
    for (int64_t i = 0; i < all->count && count < p->n; i++) {
        int64_t length = all->lengths ? all->lengths[i] : all->prompts[i] + all->responses[i];
        if (length <= p->budget) lengths[count++] = length;
    }
    ravel_lengths_free(all);
    return count;
}

/* The table's figures have five decimals. */
static int at_most(double value, double figure) {
    return round(value * 1e5) <= round(figure * 1e5);
}

typedef struct score {
    int rows, beaten[2];
    double worst; /* of the rows that are not beaten at default: by how much, relative */
} score;

static double excess(double value, double figure) {
    return value / figure - 1;
}

/* Plans a row for ranks that meet in every micro-step and for ranks that meet once per update. */
static void try_row(const peer *p, const int64_t *lengths, int64_t count, int32_t effort, score *s) {
    plan_job step, update;
    begin(&step, lengths, count, p->dp, p->budget);
    step.options.effort = effort;
    update = step;
    update.options.sync = RAVEL_SYNC_UPDATE;
    plan_job_run(&step);
    plan_job_run(&update);
    const ravel_plan_stats *a = &step.stats, *b = &update.stats;
    int bins = a->bins_packed <= p->bins && b->bins_packed <= p->bins;
    int steps = a->micro_steps <= p->steps && b->micro_steps <= p->steps;
    int fast = at_most(a->slowdown, p->slowdown), even = at_most(b->imbalance, p->imbalance);
    if (a->bins_lower_bound != p->bound)
        bench_note("%s n %lld: the lower bound is %lld, not %lld as in the table", p->trace, (long long)p->n,
                   (long long)a->bins_lower_bound, (long long)p->bound);
    if (bins && steps && fast && even && !a->over_budget && !b->over_budget) {
        s->beaten[effort == RAVEL_EFFORT_MAX]++;
        return;
    }
    double worst = excess(a->slowdown, p->slowdown);
    if (excess(b->imbalance, p->imbalance) > worst) worst = excess(b->imbalance, p->imbalance);
    if (excess((double)a->bins_packed, (double)p->bins) > worst)
        worst = excess((double)a->bins_packed, (double)p->bins);
    if (effort == RAVEL_EFFORT_DEFAULT && worst > s->worst) s->worst = worst;
    bench_note("%s: n %lld, budget %lld, %s, dp %d: bins %lld (%lld), micro-steps %lld (%lld), slowdown %.5f (%.5f), "
               "imbalance %.5f (%.5f)",
               effort == RAVEL_EFFORT_MAX ? "max" : "default", (long long)p->n, (long long)p->budget, p->trace, p->dp,
               (long long)a->bins_packed, (long long)p->bins, (long long)a->micro_steps, (long long)p->steps,
               a->slowdown, p->slowdown, b->imbalance, p->imbalance);
}

static void try_rows(const char *folder, FILE *table, score *s) {
    char line[512];
    int64_t *lengths = malloc((size_t)1000000 * sizeof *lengths);
    while (lengths && fgets(line, sizeof line, table)) {
        peer p;
        if (!read_peer(line, &p) || p.n > 1000000) continue; /* the heading */
        int64_t count = load_trace(folder, &p, lengths);
        if (!count) continue;
        s->rows++;
        try_row(&p, lengths, count, RAVEL_EFFORT_DEFAULT, s);
        try_row(&p, lengths, count, RAVEL_EFFORT_MAX, s);
    }
    free(lengths);
}

BENCH(plan_peers) {
    const char *folder = getenv("RAVEL_TRACES");
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/peers-to-beat.csv", folder ? folder : ".");
    FILE *table = folder ? fopen(path, "r") : NULL;
    if (!table) {
        bench_note("plan.rows_beaten_*: set RAVEL_TRACES to the folder of peers-to-beat.csv and its traces");
        return;
    }
    score s = {0, {0, 0}, 0};
    try_rows(folder, table, &s);
    (void)fclose(table);
    const char *how = "never over budget, and bins, micro-steps, slowdown and rank imbalance no worse than any peer's";
    bench_report("plan.rows_total", s.rows, "rows", HIGHER, "rows of peers-to-beat.csv");
    bench_report("plan.rows_beaten_default", s.beaten[0], "rows", HIGHER, "%s; effort default", how);
    bench_report("plan.rows_beaten_max", s.beaten[1], "rows", HIGHER, "%s; effort max", how);
    bench_report("plan.rows_worst_default", 100 * s.worst, "%", LOWER,
                 "the most by which a row that is not beaten at the default effort is missed");
}
