/* The page: report.html, with text put in where it says <!--@name-->. Everything is in the one file: style,
 * script and the runs' numbers as JSON. A long run is thinned to POINTS buckets of updates; each keeps mean, least and
 * greatest, so that spikes stay visible. */
#include "cli/report/report.h"

#include "train/model/out.h"

#include <ravel/metrics.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 1000, RANK_POINTS = 240 };

static void put_number(ravel__printer *out, double x) {
    if (isfinite(x))
        ravel__printer_format(out, "%.6g", x);
    else
        ravel__printer_string(out, "null");
}

/* ---- buckets -------------------------------------------------------------------------------------------- */

typedef struct bucket {
    double mean, least, most;
} bucket;

/* Rows of a table from `from` on, in buckets: of a whole table at most `most`, of what is new one each. */
typedef struct part {
    int64_t from, rows, points;
} part;

static part part_of(const report_table *t, int64_t from, int64_t most) {
    RAVEL_ASSERT(from >= 0 && from <= t->rows);
    int64_t rows = t->rows - from;
    return (part){from, rows, from || rows < most ? rows : most};
}

static int64_t row_at(const part *p, int64_t point) {
    return p->from + point * p->rows / (p->points ? p->points : 1);
}

static bucket fill_bucket(const double *values, int64_t stride, int64_t from, int64_t to) {
    bucket b = {0, INFINITY, -INFINITY};
    int64_t count = 0;
    for (int64_t i = from; i < to; i++) {
        double x = values[i * stride];
        if (!isfinite(x)) continue;
        b.mean += x;
        b.least = x < b.least ? x : b.least;
        b.most = x > b.most ? x : b.most;
        count++;
    }
    if (!count) return (bucket){NAN, NAN, NAN};
    b.mean /= (double)count;
    return b;
}

/* One array of the buckets' means (0), least (1) or greatest (2). */
static void put_column(ravel__printer *out, part rows, const double *values, int64_t stride, int which) {
    ravel__printer_string(out, "[");
    for (int64_t p = 0; p < rows.points; p++) {
        bucket b = fill_bucket(values, stride, row_at(&rows, p), row_at(&rows, p + 1));
        if (p) ravel__printer_string(out, ",");
        put_number(out, which == 0 ? b.mean : which == 1 ? b.least : b.most);
    }
    ravel__printer_string(out, "]");
}

/* {"v":[...],"lo":[...],"hi":[...]}; the last two only if buckets hold more than one row. */
static void put_series(ravel__printer *out, part rows, const report_series *s) {
    static const char *const names[] = {":{\"v\":", ",\"lo\":", ",\"hi\":"};
    ravel__printer_quote(out, s->name);
    for (int which = 0; which < (rows.points < rows.rows ? 3 : 1); which++) {
        ravel__printer_string(out, names[which]);
        put_column(out, rows, s->values, 1, which);
    }
    ravel__printer_string(out, "}");
}

static void put_steps(ravel__printer *out, const report_table *t, part rows) {
    ravel__printer_string(out, "[");
    for (int64_t p = 0; p < rows.points; p++) { /* a bucket stands at its last update */
        if (p) ravel__printer_string(out, ",");
        ravel__printer_integer(out, t->steps[row_at(&rows, p + 1) - 1]);
    }
    ravel__printer_string(out, "]");
}

static void put_table(ravel__printer *out, const report_table *t, int64_t from) {
    part rows = part_of(t, from, POINTS);
    ravel__printer_format(out, "{\"rows\":%lld,\"step\":", (long long)t->rows);
    put_steps(out, t, rows);
    ravel__printer_string(out, ",\"series\":{");
    for (int64_t i = 0; i < t->count; i++) {
        if (i) ravel__printer_string(out, ",\n");
        put_series(out, rows, &t->series[i]);
    }
    ravel__printer_string(out, "}}");
}

/* [rank][bucket]: busy seconds. The page divides by the busiest. */
static void put_ranks(ravel__printer *out, const report_table *t, int64_t from) {
    part rows = part_of(t, from, RANK_POINTS);
    ravel__printer_string(out, "{\"step\":");
    put_steps(out, t, rows);
    ravel__printer_string(out, ",\"busy\":[");
    for (int32_t r = 0; r < t->ranks; r++) {
        if (r) ravel__printer_string(out, ",\n");
        put_column(out, rows, t->busy + r, t->ranks, 0);
    }
    ravel__printer_string(out, "]}");
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

typedef struct page_data {
    const report_run *runs;
    int count, live;
} page_data;

static void put_title(ravel__printer *out, const void *page) {
    const page_data *d = page;
    for (int i = 0; i < d->count; i++) {
        if (i) ravel__printer_string(out, i + 1 < d->count ? ", " : " and ");
        ravel__printer_html(out, d->runs[i].name);
    }
    ravel__printer_string(out, " - Ravel report");
}

/* One run's headline; of several a line each, in the run's colour. */
static void put_headline(const page_data *d, int i, ravel__printer *out) {
    report_headline head;
    report_head(&d->runs[i], &head);
    if (d->count == 1) {
        ravel__printer_string(out, "<h1>");
    } else {
        ravel__printer_format(out, "<p class=\"lead\"><b class=\"run%d\">", i % 8);
        ravel__printer_html(out, d->runs[i].name);
        ravel__printer_string(out, "</b> ");
    }
    ravel__printer_html(out, head.what);
    ravel__printer_string(out, d->count == 1 ? "</h1>\n<p class=\"lead\">" : ". ");
    ravel__printer_html(out, head.change);
    ravel__printer_string(out, "</p>\n");
}

static void put_head(ravel__printer *out, const void *page) {
    const page_data *d = page;
    if (d->count > 1) ravel__printer_format(out, "<h1>%d runs side by side</h1>\n", d->count);
    for (int i = 0; i < d->count; i++) put_headline(d, i, out);
}

/* The script that follows the run, of a page that is served. */
static void put_follow(ravel__printer *out, const void *page) {
    const page_data *d = page;
    if (!d->live) return;
    ravel__printer_string(out, "<script>\n");
    ravel__printer_string(out, report_live);
    ravel__printer_string(out, "</script>\n");
}

static int on_gpu(const page_data *d) {
    int gpu = 0;
    for (int i = 0; i < d->count; i++) gpu |= d->runs[i].gpu;
    return gpu;
}

/* " x 1.03" against the first run, green where that is better, neither where three digits show no difference. */
static const char *relate(const report_figure *f, const page_data *d, int i, char *text, size_t bytes) {
    double first = i ? report_value(f, &d->runs[0].metrics) : NAN;
    double ratio = report_relation(f, report_value(f, &d->runs[i].metrics), first);
    const char *colour = fabs(ratio - 1) < 0.005 ? "soft" : (ratio > 1) == (f->better > 0) ? "good" : "bad";
    text[0] = '\0';
    if (isfinite(ratio)) (void)snprintf(text, bytes, "<small class=\"ratio %s\">&times; %.3g</small>", colour, ratio);
    return text;
}

/* "-" where the run has no such figure. */
static const char *format_value(const report_figure *f, const page_data *d, int i, char *text, size_t bytes) {
    double x = report_value(f, &d->runs[i].metrics);
    return isnan(x) ? "-" : report_format(f->style, x, text, bytes);
}

static int is_known(const report_figure *f, const page_data *d) {
    for (int i = 0; i < d->count; i++)
        if (!isnan(report_value(f, &d->runs[i].metrics))) return 1;
    return 0;
}

/* The tiles of a page, by weight: the first six that the runs have. `from`: the figure that it began with. */
enum { TILES = 6 };
typedef struct tile {
    const char *label, *from, *to; /* label NULL: the figure's own */
    const char *curve;             /* metric of the little curve; NULL: none */
    int if_any;                    /* only if it is above 0 */
} tile;

static const tile rl_tiles[] = {{"skipped updates", NULL, "skipped updates", NULL, 1},
                                {"evaluated reward", "eval reward, first", "eval reward, last", "eval/reward", 0},
                                {"sampled reward", "reward, first", "reward, last", "reward/mean", 0},
                                {NULL, NULL, "dropped answers", "reward/dropped_share", 1},
                                {NULL, NULL, "time", NULL, 0},
                                {NULL, NULL, "tokens/s", "throughput/actual_tokens_per_sec", 0},
                                {NULL, NULL, "MFU", "throughput/mfu", 0},
                                {NULL, NULL, "idle", "balance/idle_share", 0},
                                {NULL, NULL, "packing", "throughput/packing_efficiency", 0},
                                {"loss", "loss, first", "loss, last", "train/loss", 0},
                                {NULL, NULL, "memory", NULL, 0},
                                {0}};
static const tile tune_tiles[] = {{"skipped updates", NULL, "skipped updates", NULL, 1},
                                  {"evaluated loss", "eval loss, first", "eval loss, last", "eval/loss", 0},
                                  {"accuracy", "accuracy, first", "accuracy, last", "dpo/accuracy", 0},
                                  {"margin", NULL, "margin, last", "dpo/margin", 0},
                                  {"loss", "loss, first", "loss, last", "train/loss", 0},
                                  {NULL, NULL, "time", NULL, 0},
                                  {NULL, NULL, "tokens/s", "throughput/actual_tokens_per_sec", 0},
                                  {NULL, NULL, "MFU", "throughput/mfu", 0},
                                  {NULL, NULL, "packing", "throughput/packing_efficiency", 0},
                                  {NULL, NULL, "idle", "balance/idle_share", 0},
                                  {NULL, NULL, "memory", NULL, 0},
                                  {0}};

/* Three digits are enough for a tile. */
static const char *format_short(const report_figure *f, double x, char *text, size_t bytes) {
    if (f->style != REPORT_REAL || isnan(x)) return report_format(f->style, x, text, bytes);
    (void)snprintf(text, bytes, "%.3g", x);
    return text;
}

/* Of one run from what to what; of several a value per run, in its colour, and how it relates to the first run's. */
static void put_tile(const tile *t, const page_data *d, ravel__printer *out) {
    const report_figure *f = report_figure_find(t->to), *from = t->from ? report_figure_find(t->from) : NULL;
    char text[64], relation[96];
    RAVEL_ASSERT(f); /* the tiles' names are figures */
    double first = from ? report_value(from, &d->runs[0].metrics) : NAN;
    ravel__printer_format(out, "<div class=\"card\" data-curve=\"%s\"><dt>%s</dt><dd%s>", t->curve ? t->curve : "",
                          t->label ? t->label : report_label(f, on_gpu(d)), d->count > 1 ? " class=\"runs\"" : "");
    if (d->count == 1 && !isnan(first))
        ravel__printer_format(out, "<span class=\"from\">%s</span> ", format_short(from, first, text, sizeof text));
    if (d->count == 1)
        ravel__printer_string(out, format_short(f, report_value(f, &d->runs[0].metrics), text, sizeof text));
    for (int i = 0; d->count > 1 && i < d->count; i++)
        ravel__printer_format(out, "<span class=\"run%d\">%s</span>%s", i % 8, format_value(f, d, i, text, sizeof text),
                              relate(f, d, i, relation, sizeof relation)[0] ? relation : "<small></small>");
    ravel__printer_format(out, "</dd><small>%s</small></div>\n", f->note);
}

/* The tiles, which are there without a script. */
static void put_tiles(const page_data *d, ravel__printer *out) {
    int rl = 0, shown = 0;
    for (int i = 0; i < d->count; i++) rl |= report_is_rl(&d->runs[i]);
    ravel__printer_string(out, "<dl class=\"cards\">\n");
    for (const tile *t = rl ? rl_tiles : tune_tiles; t->to && shown < TILES; t++) {
        const report_figure *f = report_figure_find(t->to);
        int any = 0;
        for (int i = 0; i < d->count; i++) any |= report_value(f, &d->runs[i].metrics) > 0;
        if (!is_known(f, d) || (t->if_any && !any)) continue;
        put_tile(t, d, out);
        shown++;
    }
    ravel__printer_string(out, "</dl>");
}

/* The runs' names above their columns. `between` stands after all but the first. */
static void put_names(const page_data *d, const char *between, ravel__printer *out) {
    ravel__printer_string(out, "<thead><tr><th></th>");
    for (int i = 0; i < d->count; i++) {
        ravel__printer_format(out, "<th class=\"n run%d\">", i % 8);
        ravel__printer_html(out, d->runs[i].name);
        ravel__printer_format(out, "</th>%s", i ? between : "");
    }
    ravel__printer_string(out, "</tr></thead><tbody>\n");
}

typedef struct option_rows {
    ravel__printer *out;
    const page_data *page;
    int rows;
} option_rows;

static void put_option(void *user, const char *name, const char (*values)[REPORT_OPTION]) {
    option_rows *o = user;
    if (!o->rows++) {
        ravel__printer_string(o->out, "<details class=\"panel\" id=\"options\" open><summary>Options that differ"
                                      "</summary><div class=\"wide\"><table>");
        put_names(o->page, "", o->out);
    }
    ravel__printer_string(o->out, "<tr><td class=\"soft\">");
    ravel__printer_html(o->out, name); /* a key of config.json, which may be anyone's */
    ravel__printer_string(o->out, "</td>");
    for (int i = 0; i < o->page->count; i++) {
        ravel__printer_format(o->out, "<td class=\"n run%d\">", i % 8);
        ravel__printer_html(o->out, values[i]);
        ravel__printer_string(o->out, "</td>");
    }
    ravel__printer_string(o->out, "</tr>\n");
}

static void put_figure_row(const report_figure *f, const page_data *d, ravel__printer *out) {
    char relation[96], text[64];
    ravel__printer_format(out, "<tr><th>%s</th>", report_label(f, on_gpu(d)));
    for (int i = 0; i < d->count; i++) {
        ravel__printer_format(out, "<td class=\"n run%d\">%s</td>", i % 8, format_value(f, d, i, text, sizeof text));
        if (i) ravel__printer_format(out, "<td class=\"n\">%s</td>", relate(f, d, i, relation, sizeof relation));
    }
    ravel__printer_format(out, "<td class=\"soft\">%s</td></tr>\n", f->note);
}

/* The tiles, the options that differ, and all figures as a table, a column per run; open where runs are compared. */
static void put_figures(ravel__printer *out, const void *page) {
    const page_data *d = page;
    option_rows o = {out, d, 0};
    put_tiles(d, out);
    if (d->count > 1) report_options(d->runs, d->count, put_option, &o);
    if (o.rows) ravel__printer_string(out, "</tbody></table></div></details>\n");
    ravel__printer_format(
        out, "<details class=\"panel\" id=\"all\"%s><summary>All figures</summary><div class=\"wide\"><table>",
        d->count > 1 ? " open" : "");
    if (d->count > 1)
        put_names(d, "<th></th>", out);
    else
        ravel__printer_string(out, "<tbody>\n");
    for (int k = 0; report_figure_at(k); k++)
        if (is_known(report_figure_at(k), d)) put_figure_row(report_figure_at(k), d, out);
    ravel__printer_string(out, "</tbody></table></div></details>");
}

static void put_notes(ravel__printer *out, const void *page) {
    const page_data *d = page;
    for (int i = 0; i < d->count; i++) {
        const report_table *t = &d->runs[i].metrics;
        if (t->bad_lines)
            ravel__printer_format(out,
                                  "<p class=\"warn\">%lld lines of run %d's metrics.jsonl were left out because they "
                                  "are no update; the first is line %lld.</p>\n",
                                  (long long)t->bad_lines, i + 1, (long long)t->first_bad);
        if (t->lost_loss)
            ravel__printer_format(out,
                                  "<p class=\"warn\">The loss of run %d was not a finite number, first in update %lld; "
                                  "figures are of the updates that have one.</p>\n",
                                  i + 1, (long long)t->lost_loss);
        if (t->again)
            ravel__printer_format(out,
                                  "<p class=\"warn\">Run %d was resumed from an earlier update: %lld updates of the "
                                  "attempt before are left out.</p>\n",
                                  i + 1, (long long)t->again);
    }
}

/* Names, units and sentences of the metrics that the runs have. */
static void put_docs(ravel__printer *out) {
    for (int32_t id = 0; id < RAVEL_METRICS; id++) {
        const ravel_metric *row = ravel_metric_row(id);
        ravel__printer_string(out, id ? ",\n" : "{");
        ravel__printer_quote(out, row->name);
        ravel__printer_string(out, ":[");
        ravel__printer_quote(out, row->unit);
        ravel__printer_string(out, ",");
        ravel__printer_quote(out, row->doc);
        ravel__printer_string(out, "]");
    }
    ravel__printer_string(out, "}");
}

/* The lines as they are: objects, checked when they were read. Those of updates above `after`. */
static void put_samples(ravel__printer *out, const report_samples *samples, int64_t after) {
    int put = 0;
    ravel__printer_string(out, ",\"samples\":[");
    for (int64_t i = 0; i < report_samples_shown(samples); i++) {
        const report_sample *s = report_samples_at(samples, i);
        if (s->step <= after) continue;
        if (put++) ravel__printer_string(out, ",\n");
        ravel__printer_json(out, s->line, s->bytes);
    }
    ravel__printer_format(out, "],\"answers\":%lld", (long long)samples->count);
}

static void put_file(ravel__printer *out, const char *name, const char *json) {
    ravel__printer_string(out, name);
    ravel__printer_json(out, json ? json : "null", json ? strlen(json) : 4);
}

/* `from`: rows of its metrics that the reader has. */
static void put_run(const report_run *run, int64_t from, ravel__printer *out) {
    int shares[REPORT_PHASES];
    report_phase_shares(&run->metrics, shares);
    ravel__printer_string(out, "{\"name\":");
    ravel__printer_quote(out, run->name);
    ravel__printer_string(out, ",\"folder\":");
    ravel__printer_quote(out, run->folder);
    ravel__printer_string(out, ",\"shares\":{");
    for (int i = 0; i < REPORT_PHASES; i++)
        ravel__printer_format(out, "%s\"%s\":%d.%d", i ? "," : "", report_phase_label(i), shares[i] / 10,
                              shares[i] % 10);
    ravel__printer_string(out, "},\"metrics\":");
    put_table(out, &run->metrics, from);
    if (run->refit.rows && !from) { /* these come as a whole or not at all */
        ravel__printer_string(out, ",\"refit\":");
        put_table(out, &run->refit, 0);
    }
    if (run->metrics.ranks) {
        ravel__printer_string(out, ",\"ranks\":");
        put_ranks(out, &run->metrics, from);
    }
    put_samples(out, &run->samples, from ? run->metrics.steps[from - 1] : INT64_MIN);
    if (!from) put_file(out, ",\"config\":", run->config);
    if (!from) put_file(out, ",\"environment\":", run->environment);
    ravel__printer_string(out, "}");
}

/* known NULL: whole runs. */
static void put_runs(const page_data *d, const int64_t *known, ravel__printer *out) {
    ravel__printer_string(out, "\"runs\":[");
    for (int i = 0; i < d->count; i++) {
        if (i) ravel__printer_string(out, ",\n");
        put_run(&d->runs[i], known ? known[i] : 0, out);
    }
    ravel__printer_string(out, "]}");
}

static void put_timelines(ravel__printer *out, const void *page) {
    const page_data *d = page;
    for (int i = 0; i < d->count; i++) {
        char title[64] = "An update, rank by rank";
        double async = report_number(d->runs[i].options, "async"),
               count = report_number(d->runs[i].options, "generators");
        if (d->count > 1) (void)snprintf(title, sizeof title, "An update of run %d, rank by rank", i + 1);
        report_timeline_html(&d->runs[i], title, async > 0, count > 1 && count < 1e6 ? (int32_t)count : 1, out);
    }
}

static void put_data(ravel__printer *out, const void *page) {
    const page_data *d = page;
    ravel__printer_format(out, "{\"gpu\":%d,\"phases\":[", on_gpu(d));
    for (int32_t i = 0; i < RAVEL_PHASES; i++)
        ravel__printer_format(out, "%s\"%s\"", i ? "," : "", ravel_phase_name(i));
    ravel__printer_string(out, "],\"docs\":");
    put_docs(out);
    ravel__printer_string(out, ",");
    put_runs(d, NULL, out);
}

/* ---- the template --------------------------------------------------------------------------------------- */

static const cli_mark pieces[] = {{"<!--@title-->", put_title},     {"<!--@head-->", put_head},
                                  {"<!--@follow-->", put_follow},   {"<!--@notes-->", put_notes},
                                  {"<!--@figures-->", put_figures}, {"<!--@timelines-->", put_timelines},
                                  {"<!--@data-->", put_data},       {0}};

void report_html(const report_run *runs, int count, int live, ravel__printer *out) {
    cli_fill(out, report_page, pieces, &(const page_data){runs, count, live});
}

/* A piece of the page as a JSON string. */
static void put_piece(const page_data *d, const char *name, void (*put)(ravel__printer *, const void *),
                      ravel__printer *out) {
    train_out text = {0};
    ravel__printer piece;
    ravel__printer_begin(&piece, cli_output_keep, &text, out->err);
    put(&piece, d);
    ravel__printer_put(&piece, "", 1);
    ravel_status status = ravel__printer_end(&piece);
    if (!out->status) out->status = status;
    ravel__printer_format(out, "\"%s\":", name);
    ravel__printer_quote(out, status ? "" : text.data);
    ravel__printer_string(out, ",\n");
    train_out_free(&text);
}

void report_news(const report_run *runs, int count, const int64_t *known, ravel__printer *out) {
    page_data d = {runs, count, 1};
    ravel__printer_string(out, "{");
    for (int i = 0; i < count; i++)
        if (known[i] < 1 || known[i] > runs[i].metrics.rows) {
            ravel__printer_string(out, "\"whole\":true}");
            return;
        }
    put_piece(&d, "head", put_head, out);
    put_piece(&d, "notes", put_notes, out);
    put_piece(&d, "figures", put_figures, out);
    put_piece(&d, "timelines", put_timelines, out);
    put_runs(&d, known, out);
    ravel__printer_string(out, "\n");
}
