/* A run in a few figures, and runs side by side. Rates and shares are over the whole run: sums divided by sums, not
 * means of ratios. */
#include "cli/report/report.h"

#include "train/run/config/machine.h"

#include <ravel/metrics.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- figures -------------------------------------------------------------------------------------------- */

static double over(double a, double b) {
    return b > 0 ? a / b : NAN;
}

static double seconds(const report_table *t) {
    return report_sum(t, "time/update_sec", NULL);
}
static double updates(const report_table *t, const char *name) {
    int64_t before = 0; /* rows of an evaluation before training */
    (void)name;
    const report_series *time = report_find(t, "time/update_sec");
    while (time && before < t->rows && t->steps[before] <= 0 && isnan(time->values[before])) before++;
    return (double)(t->rows - before);
}
static double wall(const report_table *t, const char *name) {
    double whole = report_last(t, name);
    return isnan(whole) ? seconds(t) : whole;
}
/* Shown if there are any. */
static double skipped(const report_table *t, const char *name) {
    double sum = report_sum(t, name, NULL);
    return sum > 0 ? sum : NAN;
}
static double rate(const report_table *t, const char *name) {
    return over(report_sum(t, name, NULL), seconds(t));
}
/* The share of one GPU is the same in every row. */
static double rate_per_gpu(const report_table *t, const char *name) {
    return rate(t, name) * over(report_last(t, "throughput/actual_tokens_per_sec_per_gpu"),
                                report_last(t, "throughput/actual_tokens_per_sec"));
}
/* Tokens that samples share are in their slots once. */
static double packing(const report_table *t, const char *name) {
    return over(report_sum(t, "tokens/actual", NULL) - report_sum(t, "tokens/shared", NULL), report_sum(t, name, NULL));
}
static double padding(const report_table *t, const char *name) {
    return 1 - packing(t, name);
}
static double over_time(const report_table *t, const char *name) {
    return report_find(t, name) ? over(report_sum(t, name, "time/update_sec"), seconds(t)) : NAN;
}
static double exposed(const report_table *t, const char *name) {
    return report_find(t, name) ? over(report_sum(t, name, NULL), seconds(t)) : NAN;
}
static double mean_of(const report_table *t, const char *name) {
    const report_series *s = report_find(t, name);
    double sum = 0, count = 0;
    for (int64_t i = 0; s && i < t->rows; i++)
        if (!isnan(s->values[i])) sum += s->values[i], count++;
    return over(sum, count);
}

static const report_figure figures[] = {
    {"updates", "in metrics.jsonl", updates, "", REPORT_COUNT, 0},
    {"time", "sum of the updates' wall times", wall, "run/elapsed_sec", REPORT_SECONDS, 0},
    {"tokens", "actual tokens trained on", report_last, "run/consumed_tokens", REPORT_COUNT, 0},
    {"loss, first", "train/loss of the first update", report_first, "train/loss", REPORT_REAL, 0},
    {"loss, last", "train/loss of the last update", report_last, "train/loss", REPORT_REAL, -1},
    {"eval loss, first", "eval/loss when it was first measured", report_first, "eval/loss", REPORT_REAL, 0},
    {"eval loss, last", "eval/loss when it was last measured", report_last, "eval/loss", REPORT_REAL, -1},
    {"eval reward, first", "eval/reward when it was first measured", report_first, "eval/reward", REPORT_REAL, 0},
    {"eval reward, last", "eval/reward when it was last measured", report_last, "eval/reward", REPORT_REAL, 1},
    {"reward, first", "reward/mean of the first update", report_first, "reward/mean", REPORT_REAL, 0},
    {"reward, last", "reward/mean of the last update", report_last, "reward/mean", REPORT_REAL, 1},
    {"accuracy, first", "dpo/accuracy of the first update", report_first, "dpo/accuracy", REPORT_SHARE, 0},
    {"accuracy, last", "dpo/accuracy of the last update: pairs whose chosen answer is preferred", report_last,
     "dpo/accuracy", REPORT_SHARE, 1},
    {"margin, last", "dpo/margin of the last update: reward of chosen over rejected answers", report_last, "dpo/margin",
     REPORT_REAL, 1},
    {"dropped answers", "that could not be scored and were left out, mean of the updates", mean_of,
     "reward/dropped_share", REPORT_SHARE, -1},
    {"skipped updates", "skipped, because the gradient was not finite", skipped, "train/skipped", REPORT_COUNT, -1},
    {"tokens/s", "actual tokens over time, whole run", rate, "tokens/actual", REPORT_COUNT, 1},
    {"tokens/s/GPU", "the same over the ranks of the job", rate_per_gpu, "tokens/actual", REPORT_COUNT, 1},
    {"MFU", "model FLOP/s over the GPU's peak", over_time, "throughput/mfu", REPORT_SHARE, 1},
    {"packing", "computed tokens over capacity, whole run", packing, "tokens/capacity", REPORT_SHARE, 1},
    {"padding", "padded tokens that are not computed for a sample", padding, "tokens/padded", REPORT_SHARE, -1},
    {"idle", "share of rank time spent waiting in forward and backward", over_time, "balance/idle_share", REPORT_SHARE,
     -1},
    {"imbalance", "busiest rank over the mean", over_time, "balance/imbalance", REPORT_RATIO, -1},
    {"exposed feed", "share of the time that training waited for batches", exposed, "feed/exposed_sec", REPORT_SHARE,
     -1},
    {"mult prob error", "token_mult_prob_error of the last update; 1 is perfect", report_last, "token_mult_prob_error",
     REPORT_REAL, -1},
    {"refit", "mean seconds per refit", mean_of, "refit/total_sec", REPORT_SECONDS, -1},
    {"refit overlap", "share of the smaller phases hidden behind the largest", mean_of, "refit/overlap_share",
     REPORT_SHARE, 1},
    {"memory", "resident memory at its highest, largest rank", report_last, "memory/rss_peak_bytes", REPORT_BYTES, -1},
    {"device memory", "at its highest, fullest device", report_last, "memory/device_peak_bytes", REPORT_BYTES, -1},
};

const report_figure *report_figure_at(int index) {
    return index >= 0 && index < (int)(sizeof figures / sizeof *figures) ? &figures[index] : NULL;
}

const report_figure *report_figure_find(const char *label) {
    for (int i = 0; report_figure_at(i); i++)
        if (strcmp(report_figure_at(i)->label, label) == 0) return report_figure_at(i);
    return NULL;
}

const char *report_label(const report_figure *f, int gpu) {
    return !gpu && f->of == rate_per_gpu ? "tokens/s/rank" : f->label;
}

static void format_seconds(double x, char *text, size_t bytes) {
    long long s = (long long)(x + 0.5);
    if (x < 0.1)
        (void)snprintf(text, bytes, "%.3g ms", 1e3 * x);
    else if (x < 60)
        (void)snprintf(text, bytes, "%.3g s", x);
    else if (s < 3600)
        (void)snprintf(text, bytes, "%lldm%02llds", s / 60, s % 60);
    else
        (void)snprintf(text, bytes, "%lldh%02lldm", s / 3600, s / 60 % 60);
}

const char *report_format(report_style style, double x, char *text, size_t bytes) {
    char whole[TRAIN_BYTES_TEXT];
    text[0] = '\0';
    if (isnan(x)) return text;
    switch (style) {
    case REPORT_COUNT:
        if (fabs(x) < 1e10)
            (void)snprintf(text, bytes, "%s", ravel__thousands((int64_t)(x + 0.5)).text);
        else
            (void)snprintf(text, bytes, fabs(x) < 1e13 ? "%.4g G" : "%.4g T", fabs(x) < 1e13 ? x / 1e9 : x / 1e12);
        break;
    case REPORT_REAL: (void)snprintf(text, bytes, "%.4g", x); break;
    case REPORT_SHARE: (void)snprintf(text, bytes, "%.1f %%", 100 * x); break;
    case REPORT_SECONDS: format_seconds(x, text, bytes); break;
    case REPORT_BYTES: (void)snprintf(text, bytes, "%s", train_bytes_text((int64_t)x, whole)); break;
    case REPORT_RATIO: (void)snprintf(text, bytes, "%.3f", x); break;
    }
    return text;
}

/* ---- printing ------------------------------------------------------------------------------------------- */

enum { LABEL_WIDTH = 18, VALUE_WIDTH = 16 };

/* A line that is put together piece by piece; spaces at its end are dropped. */
typedef struct line {
    char text[1024];
    size_t used;
} line;

static void add(line *l, const char *format, ...) RAVEL_PRINTF(2, 3);
static void add(line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(l->text + l->used, sizeof l->text - l->used, format, args);
    va_end(args);
    if (length > 0) l->used += (size_t)length;
    if (l->used >= sizeof l->text) l->used = sizeof l->text - 1;
    RAVEL_ASSERT(l->text[l->used] == '\0');
}

static void end_line(line *l, ravel__printer *out) {
    while (l->used && l->text[l->used - 1] == ' ') l->used--;
    ravel__printer_put(out, l->text, l->used);
    ravel__printer_string(out, "\n");
}

double report_relation(const report_figure *f, double value, double first) {
    return f->better && first > 0 && value >= 0 ? value / first : NAN;
}

/* One row: the figure in every run, and, for a second run and further, how it relates to the first. */
static void print_figure(const report_figure *f, const report_run *runs, int count, ravel__printer *out) {
    double first = report_value(f, &runs[0].metrics);
    line l = {.used = 0};
    int any = 0, gpu = 0;
    for (int i = 0; i < count; i++) any |= !isnan(report_value(f, &runs[i].metrics)), gpu |= runs[i].gpu;
    if (!any) return;
    add(&l, "%-*s", LABEL_WIDTH, report_label(f, gpu));
    for (int i = 0; i < count; i++) {
        char text[64], relation[32] = "";
        double x = report_value(f, &runs[i].metrics), ratio = report_relation(f, x, first);
        add(&l, " %*s", VALUE_WIDTH, report_format(f->style, x, text, sizeof text));
        if (i > 0 && !isnan(ratio)) (void)snprintf(relation, sizeof relation, "x %.3g", ratio);
        if (i > 0) add(&l, " %9s", relation);
    }
    end_line(&l, out);
}

/* Seconds of a phase without the phases inside it; index RAVEL_PHASES: what is left of the updates. */
static double phase_seconds(const report_table *t, int phase) {
    char name[80];
    (void)snprintf(name, sizeof name, phase < RAVEL_PHASES ? "time/%s_self_sec" : "time/other_sec",
                   phase < RAVEL_PHASES ? ravel_phase_name(phase) : "");
    return report_sum(t, name, NULL);
}

const char *report_phase_label(int phase) {
    RAVEL_ASSERT(phase >= 0 && phase < REPORT_PHASES);
    return phase < RAVEL_PHASES ? ravel_phase_name(phase) : "other";
}

/* Each is rounded down to a tenth of a percent; the tenths that are then missing go to those with the largest rest. */
void report_phase_shares(const report_table *t, int tenths[REPORT_PHASES]) {
    double exact[REPORT_PHASES], total = 0;
    int sum = 0;
    for (int i = 0; i < REPORT_PHASES; i++) total += exact[i] = phase_seconds(t, i);
    for (int i = 0; i < REPORT_PHASES; i++) {
        exact[i] = total > 0 ? 1000 * exact[i] / total : 0;
        sum += tenths[i] = (int)exact[i];
    }
    for (; total > 0 && sum < 1000; sum++) {
        int most = 0;
        for (int i = 1; i < REPORT_PHASES; i++)
            if (exact[i] - tenths[i] > exact[most] - tenths[most]) most = i;
        tenths[most]++;
    }
}

/* Where the time went, in the order of an update. */
static void print_phases(const report_run *runs, int count, ravel__printer *out) {
    int shares[REPORT_RUNS_MAX][REPORT_PHASES];
    RAVEL_ASSERT(count > 0 && count <= REPORT_RUNS_MAX);
    for (int i = 0; i < count; i++) report_phase_shares(&runs[i].metrics, shares[i]);
    for (int phase = 0; phase < REPORT_PHASES; phase++) {
        line l = {.used = 0};
        int any = 0;
        for (int i = 0; i < count; i++) any |= phase_seconds(&runs[i].metrics, phase) > 0;
        if (!any) continue;
        add(&l, "  %-*s", LABEL_WIDTH - 2, report_phase_label(phase));
        for (int i = 0; i < count; i++) {
            char text[32];
            (void)snprintf(text, sizeof text, "%d.%d %%", shares[i][phase] / 10, shares[i][phase] % 10);
            add(&l, i ? " %*s          " : " %*s", VALUE_WIDTH, text);
        }
        end_line(&l, out);
    }
}

static void print_notes(const report_run *run, ravel__printer *out) {
    const report_table *t = &run->metrics;
    if (t->bad_lines)
        ravel__printer_format(out, "%s: %lld lines of metrics.jsonl were left out, the first is line %lld\n", run->name,
                              (long long)t->bad_lines, (long long)t->first_bad);
    if (t->lost_loss)
        ravel__printer_format(out,
                              "%s: WARNING: the loss was not a finite number, first in update %lld; figures are of the "
                              "updates that have one\n",
                              run->name, (long long)t->lost_loss);
    if (t->again)
        ravel__printer_format(out,
                              "%s: resumed from an earlier update; %lld updates of the attempt before are left out\n",
                              run->name, (long long)t->again);
}

static void print_last_answer(const report_run *run, ravel__printer *out) {
    char text[1200];
    report_samples_last(&run->samples, text, sizeof text);
    if (!text[0]) return;
    ravel__printer_format(out, "last answer of %s: ", run->name);
    ravel__printer_string(out, text);
    ravel__printer_string(out, "\n");
}

static void print_head(const report_run *run, ravel__printer *out) {
    report_headline head;
    report_head(run, &head);
    cli_make_printable(head.what);
    cli_make_printable(head.change);
    ravel__printer_format(out, "%s: %s", run->name, head.what);
    ravel__printer_format(out, "%s%s\n", head.change[0] ? ". " : "", head.change);
}

typedef struct option_list {
    ravel__printer *out;
    int runs, lines;
} option_list;

static void print_option(void *user, const char *name, const char (*values)[REPORT_OPTION]) {
    option_list *list = user;
    line l = {.used = 0};
    if (!list->lines++) ravel__printer_string(list->out, "options that differ\n");
    add(&l, "  %-*.*s", LABEL_WIDTH - 2, LABEL_WIDTH - 2, name);
    for (int i = 0; i < list->runs; i++) add(&l, i ? " %*.24s          " : " %*.24s", VALUE_WIDTH, values[i]);
    cli_make_printable(l.text); /* config.json may be anyone's */
    end_line(&l, list->out);
}

void report_print(const report_run *runs, int count, ravel__printer *out) {
    line l = {.used = 0};
    int timed = 0;
    for (int i = 0; i < count; i++) print_head(&runs[i], out);
    add(&l, "%-*s", LABEL_WIDTH, "run");
    for (int i = 0; i < count; i++) add(&l, i ? " %*.16s          " : " %*.16s", VALUE_WIDTH, runs[i].name);
    end_line(&l, out);
    for (int i = 0; report_figure_at(i); i++) print_figure(report_figure_at(i), runs, count, out);
    option_list list = {out, count, 0};
    if (count > 1) report_options(runs, count, print_option, &list);
    for (int i = 0; i < count; i++) timed |= report_find(&runs[i].metrics, "time/other_sec") != NULL;
    if (timed) ravel__printer_string(out, "time by phase\n");
    print_phases(runs, count, out);
    for (int i = 0; i < count; i++) report_timeline_print(&runs[i], out);
    for (int i = 0; i < count; i++) print_last_answer(&runs[i], out);
    for (int i = 0; i < count; i++) print_notes(&runs[i], out);
}
