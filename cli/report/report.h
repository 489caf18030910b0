/* ravel report: what its files share.
 *
 *     report.c          the command: flags, what to do
 *     report_read.c     run directories into tables of numbers
 *     report_samples.c  prompts, answers and rewards of a run
 *     report_timeline.c where each rank's time goes
 *     report_summary.c  a run in a few figures; runs side by side, as text
 *     report_head.c     what was trained, from what to what, how long: a headline
 *     report_options.c  the options in which runs differ
 *     report_html.c     the page: report.html with the figures and the numbers put in
 *     report_serve.c    the page over HTTP, made again when a run goes on
 *     report_trace.c    the ranks' traces as one
 *     report_list.c     the table of metrics as Markdown
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli/cli.h"

#include "base/json.h"

#include <ravel/metrics.h>

enum { REPORT_RUNS_MAX = 16, REPORT_NAME_BYTES = 256 };

/* A column of numbers; NaN where a row has none. */
typedef struct report_series {
    char *name;
    double *values; /* [rows] */
} report_series;

/* A JSONL file of objects with a "step": one row per update, one column per name. */
typedef struct report_table {
    int64_t rows, room;
    int64_t *steps;
    report_series *series;
    int64_t count, series_room;
    int32_t ranks;     /* 0: nothing known about single ranks */
    double *busy;      /* [rows * ranks] seconds; NaN where unknown */
    int64_t lines;     /* of the file */
    int64_t bad_lines; /* left out because they are no JSON object with a step */
    int64_t first_bad; /* the first of them, from 1 */
    int64_t lost_loss; /* the first update whose loss was not a finite number (null); 0: none */
    int64_t again;     /* rows of an earlier attempt: the run was resumed from an update before them */
} report_table;

/* samples.jsonl: an answer per batch, {"step": 40, "reward": 1, "prompt": "37+58=", "response": "95", "answer": "95"};
 * or, after an evaluation, several without rewards, numbered by "sample". */
typedef struct report_sample {
    int64_t step, sample;
    const char *line; /* JSON object, in report_samples.text */
    size_t bytes;
} report_sample;
typedef struct report_samples {
    char *text; /* the file */
    report_sample *items;
    int64_t count, room;
} report_samples;

/* timeline.jsonl (train/run/timeline.h): means over the updates. */
enum { REPORT_SPANS = 6 }; /* forward, backward, waits for tp, cp and pp ranks, finish */
typedef struct report_rank_time {
    int32_t tp, cp, dp, pp;
    double seconds[REPORT_SPANS];
} report_rank_time;
typedef struct report_timeline {
    int64_t updates; /* 0: there is none */
    int32_t ranks;
    double bubble, predicted, exposed; /* shares of forward and backward */
    report_rank_time *items;           /* [ranks] */
} report_timeline;

typedef struct report_run {
    const char *folder;
    char name[REPORT_NAME_BYTES]; /* for legends: the folder's own name, made different where two are the same */
    report_table metrics, refit;
    report_samples samples;
    report_timeline timeline;
    char *config, *environment;   /* JSON text as it stands; NULL: there is none */
    ravel__json *options, *facts; /* the same, parsed */
    int32_t gpu;                  /* it ran on GPUs */
} report_run;

/* Reads FOLDER/metrics.jsonl (needed), refit.jsonl, samples.jsonl, timeline.jsonl, config.json and environment.json
 * (if there are any). */
ravel_status report_read(const char *folder, report_run *run, ravel_error *err);
void report_free(report_run *run);
/* Whether rewards were learnt from. */
int report_is_rl(const report_run *run);

/* Of config.json (`options`) or environment.json (`facts`): a number, NaN if there is none; a text that is not empty, or
 * NULL. */
double report_number(const ravel__json *doc, const char *key);
const char *report_text(const ravel__json *doc, const char *key);

/* "Fine-tuning of SmolLM2-135M on chat.jsonl" and "Loss 3.21 to 0.873 in 200 updates, 3m12s, on 2 ranks". */
typedef struct report_headline {
    char what[512], change[512];
} report_headline;
void report_head(const report_run *run, report_headline *head);

/* Calls `line` for each option in which the runs differ; "-": a run has no such option, or no value. */
enum { REPORT_OPTION = 96 };
typedef void (*report_option_line)(void *user, const char *name, const char (*values)[REPORT_OPTION]);
void report_options(const report_run *runs, int count, report_option_line line, void *user);

/* The column, or NULL. */
const report_series *report_find(const report_table *table, const char *name);
/* The n-th and the last number of a column that is not NaN; NaN if there is none. */
double report_first(const report_table *table, const char *name);
double report_last(const report_table *table, const char *name);
/* Sum over the rows that have both (weight NULL: 1); 0 when none has. */
double report_sum(const report_table *table, const char *name, const char *weight);

/* A line that is no object with a step is left out; a step and sample that are not above the last ones throw away the
 * samples from there on, since a resumed run wrote them again. No file: no samples. */
ravel_status report_samples_read(const char *folder, report_samples *samples, ravel_error *err);
void report_samples_free(report_samples *samples);
/* Number of samples that a page shows, and which the i-th of them is: spread over the run, first and last among
 * them. */
int64_t report_samples_shown(const report_samples *samples);
const report_sample *report_samples_at(const report_samples *samples, int64_t i);
/* `"37+58=" -> "95", reward 1` on one line without control characters, cut to fit; "" if there is no sample. */
void report_samples_last(const report_samples *samples, char *text, size_t bytes);

/* No file: no timeline. Lines that are no objects are left out. */
ravel_status report_timeline_read(const char *folder, report_timeline *timeline, ravel_error *err);
void report_timeline_free(report_timeline *timeline);
/* A table with a bar per rank, as text and for the page; nothing if there is none. */
void report_timeline_print(const report_run *run, ravel__printer *out);
void report_timeline_html(const report_run *run, const char *title, int async, int32_t generators, ravel__printer *out);

/* The share of each phase in the time, in tenths of a percent that sum to 1000 (all 0 if no time is known): the
 * phases of ravel/metrics.h without what is nested in them, then "other". */
enum { REPORT_PHASES = RAVEL_PHASES + 1 };
void report_phase_shares(const report_table *table, int tenths[REPORT_PHASES]);
const char *report_phase_label(int phase);

/* A figure of a run. */
typedef enum report_style {
    REPORT_COUNT,
    REPORT_REAL,
    REPORT_SHARE,
    REPORT_SECONDS,
    REPORT_BYTES,
    REPORT_RATIO
} report_style;
typedef struct report_figure {
    const char *label;
    const char *note;                                            /* one sentence */
    double (*of)(const report_table *metrics, const char *name); /* what it is of the metric called `name` */
    const char *name;
    report_style style;
    int better; /* 1: more is better, -1: less is better, 0: neither */
} report_figure;
static inline double report_value(const report_figure *figure, const report_table *metrics) {
    RAVEL_ASSERT(figure->of && figure->name);
    return figure->of(metrics, figure->name);
}
/* The i-th figure; NULL after the last. */
const report_figure *report_figure_at(int index);
/* The figure of this label, or NULL. */
const report_figure *report_figure_find(const char *label);
/* Its label where ranks are (`gpu`) or are not GPUs. */
const char *report_label(const report_figure *figure, int gpu);
/* "1,234", "97.3 %", "3m12s", "4.25 GiB"; "" for NaN. */
const char *report_format(report_style style, double value, char *text, size_t bytes);
/* value / first, for a figure of which more or less is better; NaN where a ratio has no meaning (a reward below 0). */
double report_relation(const report_figure *figure, double value, double first);

void report_print(const report_run *runs, int count, ravel__printer *out);
/* `live`: the page asks its server every few seconds whether the runs went on. */
void report_html(const report_run *runs, int count, int live, ravel__printer *out);
/* What a page lacks that has the first known[i] rows of each run, as JSON: rows, answers, and the pieces above the
 * curves. {"whole": true}: it must be read again. */
void report_news(const report_run *runs, int count, const int64_t *known, ravel__printer *out);
/* "735 of 1,500, 2m10s left"; "" if that is not known. */
void report_progress(const report_run *run, char *text, size_t bytes);
/* Reads all runs; names that are the same are made different. Free them with report_free_all, also after an error. */
ravel_status report_read_all(const char *const *folders, int count, report_run *runs, ravel_error *err);
void report_free_all(report_run *runs, int count);
/* Serves the page at [address:]port until a signal ends it. */
ravel_status report_serve(const char *const *folders, int count, const char *listen, int quiet, ravel_error *err);
/* One array of the events of all of them, in `path`. */
ravel_status report_trace(const char *const *folders, int count, const char *path, ravel_error *err);
void report_list(ravel__printer *out, const void *unused);

/* A whole file; *text is the caller's, NUL-terminated. E_IO, or E_END if there is no such file. */
ravel_status report_slurp(const char *folder, const char *name, char **text, size_t *bytes, ravel_error *err);
/* The same of a file that may be missing: *text is NULL then. */
ravel_status report_slurp_any(const char *folder, const char *name, char **text, size_t *bytes, ravel_error *err);
/* Calls `take` for each whole line: its object (NULL: it is none), until it returns 0. Returns what it did last, or
 * 1. */
typedef int (*report_line)(void *user, const ravel__json *doc, const char *line, size_t bytes);
int report_lines(const char *text, size_t bytes, report_line take, void *user);

/* report.html and report_live.js, put in by the assembler. */
extern const char report_page[], report_live[];

#endif
