/* Prefix trees: predicted time over the proven bound by family of batches, planning time, and the order of ids against
 * a memcpy of the same bytes. The batches are made here: sizes as in RL, no data of others. */
#include "bench/bench.h"
#include "bench/tree_families.h"

#include <ravel/plan.h>
#include <ravel/tree.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- planning --------------------------------------------------------------------------------------------------- */

typedef struct job {
    ravel_plan_input input;
    ravel_plan_options options;
    ravel_plan_stats stats;
    int failed;
} job;

static void run(void *user) {
    job *j = user;
    ravel_plan *plan = NULL;
    j->failed = ravel_plan_create(&j->input, &j->options, &plan, NULL) != RAVEL_OK;
    if (!j->failed) j->stats = plan->stats;
    ravel_plan_free(plan);
}

static void begin(job *j, const batch *b, int64_t budget, int32_t dp) {
    memset(j, 0, sizeof *j);
    j->input =
        (ravel_plan_input){.size = sizeof j->input, .count = b->count, .lengths = b->lengths, .shared = b->shared};
    ravel_plan_options_default(&j->options);
    j->options.budget = budget;
    j->options.dp = dp;
    j->options.cost = (ravel_cost){24576, 1, 0};
}

static void report_family(int family, batch *b) {
    static const int32_t ranks[] = {1, 8, 64};
    char name[64];
    draw_family(b, family);
    for (int k = 0; k < 3; k++) {
        job j;
        begin(&j, b, families[family].budget, ranks[k]);
        run(&j);
        if (j.failed) continue;
        (void)snprintf(name, sizeof name, "plan.tree_%s_dp%d", families[family].name, ranks[k]);
        bench_report(name, (double)j.stats.time / (double)j.stats.time_lower_bound, "x bound", LOWER,
                     "%lld samples, %.0f %% of tokens shared, budget %lld, cost 24576:1, default", (long long)b->count,
                     100 * (1 - (double)j.stats.unique_tokens / (double)j.stats.flat_tokens),
                     (long long)families[family].budget);
    }
}

static double least_processor_time(int repeats, job *j) {
    double best = 0;
    for (int i = 0; i < repeats; i++) {
        clock_t began = clock();
        run(j);
        double took = (double)(clock() - began) / CLOCKS_PER_SEC;
        if (!i || took < best) best = took;
    }
    return best;
}

BENCH(plan_tree) {
    batch *b = calloc(1, sizeof *b);
    for (int f = 0; b && f < FAMILIES; f++) report_family(f, b);
    if (b) {
        static const int32_t ranks[] = {1, 8, 64};
        draw_family(b, GRPO_N4096);
        for (int k = 0; k < 6; k++) {
            job j;
            char name[64];
            begin(&j, b, 16384, ranks[k % 3]);
            j.options.effort = k < 3 ? RAVEL_EFFORT_FAST : RAVEL_EFFORT_DEFAULT;
            double best = least_processor_time(7, &j);
            (void)snprintf(name, sizeof name, "plan.tree_n4096_%s_dp%d_ms", k < 3 ? "fast" : "default", ranks[k % 3]);
            bench_report(name, best * 1e3, "ms", LOWER,
                         "256 prompts with 16 answers each, budget 16384, processor time");
        }
    }
    free(b);
}

/* ---- the order -------------------------------------------------------------------------------------------------- */

typedef struct texts {
    ravel_tree_input in;
    int64_t *offsets, *shared;
    int32_t *ids, *order;
    int32_t *copy;
    int failed;
} texts;

static void order(void *user) {
    texts *t = user;
    t->failed |= ravel_tree_order(&t->in, t->order, t->shared, NULL) != RAVEL_OK;
}

static void copy(void *user) {
    texts *t = user;
    memcpy(t->copy, t->ids, (size_t)t->offsets[t->in.count] * sizeof *t->ids);
}

/* Ids of a batch: a sample repeats what it shares with the one before it, in an order in which they do not stand
 * together. */
static int fill_texts(texts *t, const batch *b) {
    int64_t total = 0;
    memset(t, 0, sizeof *t);
    if (b->count < 1 || b->count > MOST) return 0;
    for (int64_t i = 0; i < b->count; i++) total += b->lengths[i];
    t->offsets = calloc((size_t)b->count + 1, sizeof *t->offsets);
    t->shared = calloc((size_t)b->count, sizeof *t->shared);
    t->order = calloc((size_t)b->count, sizeof *t->order);
    t->ids = malloc((size_t)total * sizeof *t->ids);
    t->copy = malloc((size_t)total * sizeof(int32_t));
    if (!t->offsets || !t->shared || !t->order || !t->ids || !t->copy) return 0;
    for (int64_t i = 0, at = 0; i < b->count; i++) {
        if (i) memcpy(t->ids + at, t->ids + t->offsets[i - 1], (size_t)b->shared[i] * sizeof *t->ids);
        for (int64_t k = b->shared[i]; k < b->lengths[i]; k++) t->ids[at + k] = (int32_t)between(0, 150000);
        t->offsets[i + 1] = at += b->lengths[i];
    }
    t->in = (ravel_tree_input){.size = sizeof t->in, .count = b->count, .offsets = t->offsets, .ids = t->ids};
    return 1;
}

static void report_order(const char *name, const batch *b) {
    texts t;
    if (fill_texts(&t, b)) {
        double bytes = (double)t.offsets[b->count] * sizeof *t.ids, moved = bench_best(7, copy, &t);
        double took = bench_best(7, order, &t);
        if (!t.failed)
            bench_report(name, moved / took, "x", HIGHER, "%.0f MB of ids, %.1f GB/s; memcpy %.1f GB/s, one core",
                         bytes / 1e6, bytes / took / 1e9, bytes / moved / 1e9);
    }
    free(t.offsets);
    free(t.shared);
    free(t.order);
    free(t.ids);
    free(t.copy);
}

BENCH(tree_order) {
    batch *b = calloc(1, sizeof *b);
    if (!b) return;
    draw_family(b, CALLS);
    report_order("tree_order.vs_memcpy", b);
    draw_family(b, GRPO_LONG);
    report_order("tree_order.grpo_vs_memcpy", b);
    free(b);
}
