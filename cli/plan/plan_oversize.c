/* Samples that fit no bin: how many, the longest, and where they stand in their file. */
#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 5 };

static int64_t length_of(const plan_data *data, int64_t row) {
    const ravel_plan_input *in = &data->input;
    RAVEL_ASSERT(row >= 0 && row < in->count);
    return in->prompts ? in->prompts[row] + in->responses[row] : in->lengths[row];
}

static const char *place(const plan_data *data, int64_t row, char *out, size_t room) {
    const int64_t *lines = data->text_lines ? data->text_lines : data->lengths->lines;
    if (lines)
        (void)snprintf(out, room, "%.200s:%lld", data->file, (long long)lines[row]);
    else
        (void)snprintf(out, room, "sample %lld", (long long)row);
    return out;
}

/* "lengths.csv:3 (9,000 tokens), lengths.csv:5 (9,001 tokens) and 7 more" */
static void list(const plan_data *data, const ravel_plan *plan, char *out, size_t room) {
    char where[280];
    size_t used = 0;
    for (int64_t i = 0; i < plan->stats.skipped && i < MOST && used < room; i++) {
        int32_t row = plan->skipped[i];
        int n = snprintf(out + used, room - used, "%s%s (%s tokens)", i ? ", " : "",
                         place(data, row, where, sizeof where), ravel__thousands(length_of(data, row)).text);
        used += n > 0 ? (size_t)n : 0;
    }
    if (plan->stats.skipped > MOST && used < room)
        (void)snprintf(out + used, room - used, " and %s more", ravel__thousands(plan->stats.skipped - MOST).text);
}

plan_left_out plan_count_left_out(const plan_data *data, const ravel_plan *plan) {
    plan_left_out left = {.samples = plan->stats.skipped};
    RAVEL_ASSERT(left.samples >= 0 && left.samples <= data->input.count);
    for (int64_t i = 0; i < plan->stats.skipped; i++) {
        int64_t length = length_of(data, plan->skipped[i]);
        left.tokens += length;
        if (length > left.longest) left.longest = length;
    }
    return left;
}

/* "2 of 4 samples fit no bin of 8,192 tokens (longest 9,001)" */
static void count(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan, char *out,
                  size_t room) {
    (void)snprintf(out, room, "%s of %s samples fit no bin of %s tokens (the longest has %s)",
                   ravel__thousands(plan->stats.skipped).text, ravel__thousands(data->input.count).text,
                   ravel__thousands(options->cp * options->budget).text,
                   ravel__thousands(plan_count_left_out(data, plan).longest).text);
}

void plan_warn_skipped(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan) {
    char counted[200], listed[800];
    if (!plan->stats.skipped) return;
    count(data, options, plan, counted, sizeof counted);
    list(data, plan, listed, sizeof listed);
    (void)fprintf(stderr, "ravel plan: WARNING: %s and were left out: %s%s\n", counted, listed,
                  plan->stats.skipped > MOST ? " (all of them: --json, stats.skipped_samples)" : "");
}

/* The planner stops at the first one; planning again without them counts them all. */
void plan_explain_oversize(const plan_data *data, const ravel_plan_options *options, ravel_error *err) {
    char counted[200], listed[700];
    ravel_plan *plan = NULL;
    ravel_plan_options without = *options;
    without.oversize = RAVEL_OVERSIZE_SKIP;
    if (err->status != RAVEL_E_OVERSIZE || ravel_plan_create(&data->input, &without, &plan, NULL)) return;
    if (plan->stats.skipped) {
        count(data, options, plan, counted, sizeof counted);
        list(data, plan, listed, sizeof listed);
        ravel_error_clear(err);
        (void)ravel_error_set(
            err, RAVEL_E_OVERSIZE,
            "%s: %s; raise --budget or --cp, leave them out: --oversize skip, or give each a bin of its own: "
            "--oversize alone",
            counted, listed);
    }
    ravel_plan_free(plan);
}
