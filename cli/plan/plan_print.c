/* A plan as text: its heading and summary. */
#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

/* ---- heading -------------------------------------------------------------------------------------------- */

void plan_heading_samples(const plan_data *data, const ravel_plan *plan, char text[PLAN_HEADING]) {
    char out[128] = "";
    plan_left_out left = {0};
    if (plan) left = plan_count_left_out(data, plan);
    if (left.samples)
        (void)snprintf(out, sizeof out, "; %s left out (%s tokens, longest %s)", ravel__thousands(left.samples).text,
                       ravel__thousands(left.tokens).text, ravel__thousands(left.longest).text);
    (void)snprintf(text, PLAN_HEADING, "%s samples%s, %s tokens, longest %s%s",
                   ravel__thousands(data->input.count - left.samples).text, left.samples ? " planned" : "",
                   ravel__thousands(data->total - left.tokens).text,
                   ravel__thousands(left.samples ? plan->stats.longest : data->longest).text, out);
}

void plan_heading_options(const plan_data *data, const ravel_plan_options *options, char text[PLAN_HEADING]) {
    char sync[32], layout[32], cp[32] = "", align[32] = "", cost[64] = "own costs", overhead[64] = "";
    (void)ravel__choice_word(RAVEL_SYNC_CHOICES, options->sync, sync, sizeof sync);
    (void)ravel__choice_word(RAVEL_LAYOUT_CHOICES, options->layout, layout, sizeof layout);
    int32_t ranks = options->cp_pool ? options->cp_pool : options->dp;
    if (options->cp > 1) (void)snprintf(cp, sizeof cp, " x cp %d", options->cp);
    if (ravel_plan_align(options) > 1) (void)snprintf(align, sizeof align, ", align %d", ravel_plan_align(options));
    if (!data->costs)
        (void)snprintf(cost, sizeof cost, "cost %lld:%lld", (long long)options->cost.linear,
                       (long long)options->cost.quadratic);
    if (options->cost.overhead)
        (void)snprintf(overhead, sizeof overhead, " + %lld per micro-step", (long long)options->cost.overhead);
    (void)snprintf(text, PLAN_HEADING, "%s%s rank%s x %s tokens%s%s, %s, sync %s, %s%s",
                   options->cp_pool ? "a pool of " : "", ravel__thousands(ranks).text, ranks == 1 ? "" : "s",
                   ravel__thousands(options->budget).text, cp, align, layout, sync, cost, overhead);
}

/* ---- summary -------------------------------------------------------------------------------------------- */

static void share_line(const char *name, double share, const char *note) {
    printf("  %-15s %12.2f %%   %s\n", name, 100 * share, note);
}

/* Of prefix trees: what sharing saves, and what cutting trees between bins costs of it. */
static void print_sharing(const ravel_plan_stats *s) {
    char note[96];
    double flat = s->flat_tokens > 0 ? (double)s->flat_tokens : 1;
    (void)snprintf(note, sizeof note, "%s of %s tokens are computed", ravel__thousands(s->actual_tokens).text,
                   ravel__thousands(s->flat_tokens).text);
    share_line("shared", 1 - (double)s->actual_tokens / flat, note);
    (void)snprintf(note, sizeof note, "%s tokens are computed again, because bins cut trees",
                   ravel__thousands(s->actual_tokens - s->unique_tokens).text);
    share_line("cuts", s->actual_tokens ? (double)(s->actual_tokens - s->unique_tokens) / (double)s->actual_tokens : 0,
               note);
}

/* Bins are raised to a whole number of micro-steps by splitting some. */
static void print_bins(const ravel_plan_stats *s) {
    printf("  %-15s %14s   lower bound %s", "bins", ravel__thousands(s->bins).text,
           ravel__thousands(s->bins_lower_bound).text);
    if (s->bins_packed < s->bins)
        printf("; the samples fit into %s, some are split so that all ranks have work",
               ravel__thousands(s->bins_packed).text);
    printf("\n");
}

static void print_micro_steps(const ravel_plan *plan, const ravel_plan_options *options) {
    const ravel_plan_stats *s = &plan->stats;
    printf("  %-15s %14s   lower bound %s", "micro-steps", ravel__thousands(s->micro_steps).text,
           ravel__thousands(s->micro_steps_lower_bound).text);
    if (plan->updates > 1) printf("; %s updates", ravel__thousands(plan->updates).text);
    if (options->multiple > 1) printf("; a multiple of %d", options->multiple);
    if (s->fillers) printf("; %s filler bin%s", ravel__thousands(s->fillers).text, s->fillers == 1 ? "" : "s");
    printf("\n");
}

static void print_padding(const ravel_plan_stats *s) {
    char note[80];
    (void)snprintf(note, sizeof note, "%s of %s slot tokens",
                   ravel__thousands(s->padded_tokens - s->actual_tokens).text, ravel__thousands(s->padded_tokens).text);
    share_line("padding", s->padding, note);
}

static void print_times(const ravel_plan *plan, const ravel_plan_options *options) {
    const ravel_plan_stats *s = &plan->stats;
    int per_step = options->sync == RAVEL_SYNC_MICRO_STEP;
    char note[96];
    double perfect = plan->dp > 0 ? (double)s->cost / plan->dp : 0;
    (void)snprintf(note, sizeof note, "per micro-step; %.2f %% per update",
                   100 * (per_step ? s->idle_update : s->idle_micro_step));
    if (!per_step)
        (void)snprintf(note, sizeof note, "per update; %.2f %% if ranks met in every micro-step",
                       100 * s->idle_micro_step);
    share_line("idle", per_step ? s->idle_micro_step : s->idle_update, note);
    printf("  %-15s %14.4f   x perfect balance; lower bound %.4f\n", "predicted time",
           perfect > 0 ? (double)s->time / perfect : 1, perfect > 0 ? (double)s->time_lower_bound / perfect : 1);
}

/* Groups by width: "1 x 80, 2 x 12, 8 x 3". */
static void print_groups(const ravel_plan *plan) {
    const ravel_hybrid *h = plan->hybrid;
    RAVEL_ASSERT(h->pool > 0 && h->groups >= 0);
    printf("  %-15s %14s   ", "groups", ravel__thousands(h->groups).text);
    int first = 1;
    for (int32_t width = 1; width <= h->pool; width++) {
        int64_t count = 0;
        for (int64_t g = 0; g < h->groups; g++) count += h->group_width[g] == width;
        if (!count) continue;
        printf("%s%s of width %d", first ? "" : ", ", ravel__thousands(count).text, width);
        first = 0;
    }
    printf("\n  %-15s %14.4f   x the canonical bound; area is %.4f of that, the longest sample %.4f\n",
           "time over bound", (double)plan->stats.time / (double)(h->bound_canonical ? h->bound_canonical : 1),
           (double)h->bound_area / (double)(h->bound_canonical ? h->bound_canonical : 1),
           (double)h->bound_longest / (double)(h->bound_canonical ? h->bound_canonical : 1));
}

void plan_print_summary(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan,
                        double seconds) {
    const ravel_plan_stats *s = &plan->stats;
    char effort[32], heading[PLAN_HEADING];
    (void)ravel__choice_word(RAVEL_EFFORT_CHOICES, options->effort, effort, sizeof effort);
    plan_heading_samples(data, plan, heading);
    printf("%s  (%s)\n", heading, data->source);
    plan_heading_options(data, options, heading);
    printf("%s", heading);
    printf("\nmethod %s, effort %s: planned in %.*f ms\n\n", ravel_method_name(options->method), effort,
           seconds < 0.01 ? 2 : 0, 1e3 * seconds);
    if (plan->hybrid)
        print_groups(plan);
    else
        print_bins(s);
    print_micro_steps(plan, options);
    if (plan->shared) print_sharing(s);
    share_line("fill", s->fill, "of the budget is real tokens");
    print_padding(s);
    print_times(plan, options);
    if (data->homes) {
        char note[64];
        (void)snprintf(note, sizeof note, "%s tokens leave their home rank", ravel__thousands(s->tokens_moved).text);
        share_line("moved", s->actual_tokens ? (double)s->tokens_moved / (double)s->actual_tokens : 0, note);
    }
    if (data->model) {
        int64_t bytes = plan_model_memory(data->model, options);
        char memory[TRAIN_BYTES_TEXT];
        printf("  %-15s %14s   per rank of ravel train: %s\n", "memory",
               bytes < 0 ? "-" : train_bytes_text(bytes, memory), plan_model_text(data->model));
    }
    printf("  %-15s %14s   %s\n", "over budget", ravel__thousands(s->over_budget).text,
           s->over_budget ? "samples in bins of their own" : "always 0");
    printf("  %-15s %016llx\n", "digest", (unsigned long long)plan->digest);
}

void plan_print_bubble(const plan_flags *flags, const ravel_bubble *bubble) {
    char note[96];
    (void)snprintf(note, sizeof note, "predicted for pp %d, vpp %d: share of the stages' time that they wait",
                   flags->pp, flags->vpp);
    share_line("bubble", bubble->share, note);
}
