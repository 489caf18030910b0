/* The page: report.html, with text put in where it says <!--@name-->. Everything is in the one file: style,
 * script and the runs' numbers as JSON. A long run is thinned to POINTS buckets of updates; each keeps mean, least and
 * greatest, so that spikes stay visible. */
#include "cli/report/report.h"

#include "base/json.h"

#include <ravel/metrics.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 1000, RANK_POINTS = 240 };

/* ---- text ----------------------------------------------------------------------------------------------- */

/* HTML text: & < > and quotes. */
static ravel_status put_text(cli_output *out, const char *text, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (; *text && !status; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        status = entity ? cli_output_write(out, entity, strlen(entity), err) : cli_output_write(out, text, 1, err);
    }
    return status;
}

/* JSON that stands inside a script: "</script>" must not appear in it, so '<' is escaped. It only stands in strings. */
static ravel_status put_json(cli_output *out, const char *text, size_t bytes, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (size_t at = 0; at < bytes && !status;) {
        const char *angle = memchr(text + at, '<', bytes - at);
        size_t length = angle ? (size_t)(angle - text) - at : bytes - at;
        status = cli_output_write(out, text + at, length, err);
        if (angle && !status) status = cli_output_write(out, "\\u003c", 6, err);
        at += length + (angle != NULL);
    }
    return status;
}

static ravel_status put_quoted(cli_output *out, const char *text, ravel_error *err) {
    size_t need = ravel__json_quote(text, strlen(text), NULL, 0);
    char *quoted = malloc(need + 1);
    if (!quoted) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    (void)ravel__json_quote(text, strlen(text), quoted, need + 1);
    ravel_status status = put_json(out, quoted, need, err);
    free(quoted);
    return status;
}

static ravel_status put_number(cli_output *out, double x, ravel_error *err) {
    return isfinite(x) ? report_put(out, err, "%.6g", x) : cli_output_write(out, "null", 4, err);
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
static ravel_status put_column(cli_output *out, part rows, const double *values, int64_t stride, int which,
                               ravel_error *err) {
    ravel_status status = cli_output_write(out, "[", 1, err);
    for (int64_t p = 0; p < rows.points && !status; p++) {
        bucket b = fill_bucket(values, stride, row_at(&rows, p), row_at(&rows, p + 1));
        if (p) status = cli_output_write(out, ",", 1, err);
        if (!status) status = put_number(out, which == 0 ? b.mean : which == 1 ? b.least : b.most, err);
    }
    return status ? status : cli_output_write(out, "]", 1, err);
}

/* {"v":[...],"lo":[...],"hi":[...]}; the last two only if buckets hold more than one row. */
static ravel_status put_series(cli_output *out, part rows, const report_series *s, ravel_error *err) {
    ravel_status status = put_quoted(out, s->name, err);
    if (!status) status = report_put(out, err, ":{\"v\":");
    if (!status) status = put_column(out, rows, s->values, 1, 0, err);
    if (!status && rows.points < rows.rows) {
        status = report_put(out, err, ",\"lo\":");
        if (!status) status = put_column(out, rows, s->values, 1, 1, err);
        if (!status) status = report_put(out, err, ",\"hi\":");
        if (!status) status = put_column(out, rows, s->values, 1, 2, err);
    }
    return status ? status : cli_output_write(out, "}", 1, err);
}

static ravel_status put_steps(cli_output *out, const report_table *t, part rows, ravel_error *err) {
    ravel_status status = cli_output_write(out, "[", 1, err);
    for (int64_t p = 0; p < rows.points && !status; p++) /* a bucket stands at its last update */
        status = report_put(out, err, p ? ",%lld" : "%lld", (long long)t->steps[row_at(&rows, p + 1) - 1]);
    return status ? status : cli_output_write(out, "]", 1, err);
}

static ravel_status put_table(cli_output *out, const report_table *t, int64_t from, ravel_error *err) {
    part rows = part_of(t, from, POINTS);
    ravel_status status = report_put(out, err, "{\"rows\":%lld,\"step\":", (long long)t->rows);
    if (!status) status = put_steps(out, t, rows, err);
    if (!status) status = report_put(out, err, ",\"series\":{");
    for (int64_t i = 0; i < t->count && !status; i++) {
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_series(out, rows, &t->series[i], err);
    }
    return status ? status : report_put(out, err, "}}");
}

/* [rank][bucket]: busy seconds. The page divides by the busiest. */
static ravel_status put_ranks(cli_output *out, const report_table *t, int64_t from, ravel_error *err) {
    part rows = part_of(t, from, RANK_POINTS);
    ravel_status status = report_put(out, err, "{\"step\":");
    if (!status) status = put_steps(out, t, rows, err);
    if (!status) status = report_put(out, err, ",\"busy\":[");
    for (int32_t r = 0; r < t->ranks && !status; r++) {
        if (r) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_column(out, rows, t->busy + r, t->ranks, 0, err);
    }
    return status ? status : report_put(out, err, "]}");
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

typedef struct page_data {
    const report_run *runs;
    int count, live;
} page_data;

static ravel_status put_title(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < d->count && !status; i++) {
        if (i) status = put_text(out, i + 1 < d->count ? ", " : " and ", err);
        if (!status) status = put_text(out, d->runs[i].name, err);
    }
    return status ? status : put_text(out, " - Ravel report", err);
}

/* One run's headline; of several a line each, in the run's colour. */
static ravel_status put_headline(const page_data *d, int i, cli_output *out, ravel_error *err) {
    report_headline head;
    report_head(&d->runs[i], &head);
    ravel_status status = d->count == 1 ? report_put(out, err, "<h1>")
                                        : report_put(out, err, "<p class=\"lead\"><b class=\"run%d\">", i % 8);
    if (!status && d->count > 1) status = put_text(out, d->runs[i].name, err);
    if (!status && d->count > 1) status = report_put(out, err, "</b> ");
    if (!status) status = put_text(out, head.what, err);
    if (!status) status = report_put(out, err, d->count == 1 ? "</h1>\n<p class=\"lead\">" : ". ");
    if (!status) status = put_text(out, head.change, err);
    return status ? status : report_put(out, err, "</p>\n");
}

static ravel_status put_head(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = d->count > 1 ? report_put(out, err, "<h1>%d runs side by side</h1>\n", d->count) : RAVEL_OK;
    for (int i = 0; i < d->count && !status; i++) status = put_headline(d, i, out, err);
    return status;
}

/* The script that follows the run, of a page that is served. */
static ravel_status put_follow(const page_data *d, cli_output *out, ravel_error *err) {
    if (!d->live) return RAVEL_OK;
    ravel_status status = report_put(out, err, "<script>\n");
    if (!status) status = cli_output_write(out, report_live, strlen(report_live), err);
    return status ? status : report_put(out, err, "</script>\n");
}

static int on_gpu(const page_data *d) {
    int gpu = 0;
    for (int i = 0; i < d->count; i++) gpu |= d->runs[i].gpu;
    return gpu;
}

/* " x 1.03" against the first run, green where that is better, neither where three digits show no difference. */
static void relate(const report_figure *f, double x, double first, char *text, size_t bytes) {
    double ratio = report_relation(f, x, first);
    const char *colour = fabs(ratio - 1) < 0.005 ? "soft" : (ratio > 1) == (f->better > 0) ? "good" : "bad";
    text[0] = '\0';
    if (isfinite(ratio)) (void)snprintf(text, bytes, "<small class=\"ratio %s\">&times; %.3g</small>", colour, ratio);
}

/* A value per run, in the run's colour, and beside it how it relates to the first run's. */
static ravel_status put_value(const report_figure *f, const page_data *d, int i, cli_output *out, ravel_error *err) {
    char text[64], relation[96];
    double first = report_value(f, &d->runs[0].metrics), x = report_value(f, &d->runs[i].metrics);
    relate(f, x, i ? first : NAN, relation, sizeof relation);
    return report_put(out, err, "<span class=\"run%d\">%s</span>%s", i % 8,
                      isnan(x) ? "-" : report_format(f->style, x, text, sizeof text),
                      relation[0] ? relation : "<small></small>");
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
                                {NULL, NULL, "memory", NULL, 0}};
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
                                  {NULL, NULL, "memory", NULL, 0}};

/* Three digits are enough for a tile. */
static const char *format_short(const report_figure *f, double x, char *text, size_t bytes) {
    if (f->style != REPORT_REAL || isnan(x)) return report_format(f->style, x, text, bytes);
    (void)snprintf(text, bytes, "%.3g", x);
    return text;
}

static ravel_status put_tile(const tile *t, const page_data *d, cli_output *out, ravel_error *err) {
    const report_figure *f = report_figure_find(t->to), *from = t->from ? report_figure_find(t->from) : NULL;
    char text[64];
    RAVEL_ASSERT(f); /* the tiles' names are figures */
    ravel_status status = report_put(out, err, "<div class=\"card\" data-curve=\"%s\"><dt>%s</dt>",
                                     t->curve ? t->curve : "", t->label ? t->label : report_label(f, on_gpu(d)));
    if (!status) status = report_put(out, err, d->count > 1 ? "<dd class=\"runs\">" : "<dd>");
    double first = d->count == 1 && from ? report_value(from, &d->runs[0].metrics) : NAN;
    if (!status && from && !isnan(first))
        status = report_put(out, err, "<span class=\"from\">%s</span> ", format_short(from, first, text, sizeof text));
    for (int i = 0; d->count > 1 && i < d->count && !status; i++) status = put_value(f, d, i, out, err);
    if (!status && d->count == 1)
        status = report_put(out, err, "%s", format_short(f, report_value(f, &d->runs[0].metrics), text, sizeof text));
    return status ? status : report_put(out, err, "</dd><small>%s</small></div>\n", f->note);
}

/* The tiles, which are there without a script. */
static ravel_status put_tiles(const page_data *d, cli_output *out, ravel_error *err) {
    int rl = 0, shown = 0;
    for (int i = 0; i < d->count; i++) rl |= report_is_rl(&d->runs[i]);
    const tile *tiles = rl ? rl_tiles : tune_tiles;
    size_t count = rl ? sizeof rl_tiles / sizeof *rl_tiles : sizeof tune_tiles / sizeof *tune_tiles;
    ravel_status status = report_put(out, err, "<dl class=\"cards\">\n");
    for (size_t k = 0; k < count && shown < TILES && !status; k++) {
        const report_figure *f = report_figure_find(tiles[k].to);
        int any = 0;
        for (int i = 0; i < d->count; i++) any |= report_value(f, &d->runs[i].metrics) > 0;
        if (!is_known(f, d) || (tiles[k].if_any && !any)) continue;
        status = put_tile(&tiles[k], d, out, err);
        shown++;
    }
    return status ? status : report_put(out, err, "</dl>");
}

static ravel_status put_figure_row(const report_figure *f, const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(out, err, "<tr><th>%s</th>", report_label(f, on_gpu(d)));
    for (int i = 0; i < d->count && !status; i++) {
        char relation[96], text[64];
        double x = report_value(f, &d->runs[i].metrics);
        relate(f, x, i ? report_value(f, &d->runs[0].metrics) : NAN, relation, sizeof relation);
        status = report_put(out, err, "<td class=\"n run%d\">%s</td>", i % 8,
                            isnan(x) ? "-" : report_format(f->style, x, text, sizeof text));
        if (!status && i) status = report_put(out, err, "<td class=\"n\">%s</td>", relation);
    }
    return status ? status : report_put(out, err, "<td class=\"soft\">%s</td></tr>\n", f->note);
}

typedef struct option_rows {
    cli_output *out;
    const page_data *page;
    int rows;
} option_rows;

/* The runs' names above their columns. `between` stands after all but the first. */
static ravel_status put_names(const page_data *d, const char *between, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(out, err, "<thead><tr><th></th>");
    for (int i = 0; i < d->count && !status; i++) {
        status = report_put(out, err, "<th class=\"n run%d\">", i % 8);
        if (!status) status = put_text(out, d->runs[i].name, err);
        if (!status) status = report_put(out, err, "</th>%s", i ? between : "");
    }
    return status;
}

static ravel_status put_option(void *user, const char *name, const char (*values)[REPORT_OPTION], ravel_error *err) {
    option_rows *o = user;
    ravel_status status = RAVEL_OK;
    if (!o->rows++) {
        status = report_put(o->out, err,
                            "<details class=\"panel\" id=\"options\" open><summary>Options that differ</summary>"
                            "<div class=\"wide\"><table>");
        if (!status) status = put_names(o->page, "", o->out, err);
        if (!status) status = report_put(o->out, err, "</tr></thead><tbody>\n");
    }
    if (!status) status = report_put(o->out, err, "<tr><td class=\"soft\">%s</td>", name);
    for (int i = 0; i < o->page->count && !status; i++) {
        status = report_put(o->out, err, "<td class=\"n run%d\">", i % 8);
        if (!status) status = put_text(o->out, values[i], err);
        if (!status) status = report_put(o->out, err, "</td>");
    }
    return status ? status : report_put(o->out, err, "</tr>\n");
}

static ravel_status put_options(const page_data *d, cli_output *out, ravel_error *err) {
    option_rows o = {out, d, 0};
    ravel_status status = d->count > 1 ? report_options(d->runs, d->count, put_option, &o, err) : RAVEL_OK;
    return !status && o.rows ? report_put(out, err, "</tbody></table></div></details>\n") : status;
}

/* All figures as a table, a column per run; open where runs are compared. */
static ravel_status put_figures(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = put_tiles(d, out, err);
    if (!status) status = put_options(d, out, err);
    if (!status)
        status = report_put(
            out, err, "<details class=\"panel\" id=\"all\"%s><summary>All figures</summary><div class=\"wide\"><table>",
            d->count > 1 ? " open" : "");
    if (!status && d->count > 1) status = put_names(d, "<th></th>", out, err);
    if (!status && d->count > 1) status = report_put(out, err, "<th></th></tr></thead>");
    if (!status) status = report_put(out, err, "<tbody>\n");
    for (int k = 0; !status && report_figure_at(k); k++)
        if (is_known(report_figure_at(k), d)) status = put_figure_row(report_figure_at(k), d, out, err);
    return status ? status : report_put(out, err, "</tbody></table></div></details>");
}

static ravel_status put_notes(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < d->count && !status; i++) {
        const report_table *t = &d->runs[i].metrics;
        if (t->bad_lines)
            status =
                report_put(out, err,
                           "<p class=\"warn\">%lld lines of run %d's metrics.jsonl were left out because they are no "
                           "update; the first is line %lld.</p>\n",
                           (long long)t->bad_lines, i + 1, (long long)t->first_bad);
        if (!status && t->lost_loss)
            status = report_put(out, err,
                                "<p class=\"warn\">The loss of run %d was not a finite number, first in update %lld; "
                                "figures are of the updates that have one.</p>\n",
                                i + 1, (long long)t->lost_loss);
        if (!status && t->again)
            status = report_put(out, err,
                                "<p class=\"warn\">Run %d was resumed from an earlier update: %lld updates of the "
                                "attempt before are left out.</p>\n",
                                i + 1, (long long)t->again);
    }
    return status;
}

/* Names, units and sentences of the metrics that the runs have. */
static ravel_status put_docs(cli_output *out, ravel_error *err) {
    ravel_status status = cli_output_write(out, "{", 1, err);
    for (int32_t id = 0; id < RAVEL_METRICS && !status; id++) {
        const ravel_metric *row = ravel_metric_row(id);
        if (id) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_quoted(out, row->name, err);
        if (!status) status = cli_output_write(out, ":[", 2, err);
        if (!status) status = put_quoted(out, row->unit, err);
        if (!status) status = cli_output_write(out, ",", 1, err);
        if (!status) status = put_quoted(out, row->doc, err);
        if (!status) status = cli_output_write(out, "]", 1, err);
    }
    return status ? status : cli_output_write(out, "}", 1, err);
}

/* The lines as they are: objects, checked when they were read. Those of updates above `after`. */
static ravel_status put_samples(cli_output *out, const report_samples *samples, int64_t after, ravel_error *err) {
    ravel_status status = report_put(out, err, ",\"samples\":[");
    int put = 0;
    for (int64_t i = 0; i < report_samples_shown(samples) && !status; i++) {
        const report_sample *s = report_samples_at(samples, i);
        if (s->step <= after) continue;
        if (put++) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_json(out, s->line, s->bytes, err);
    }
    return status ? status : report_put(out, err, "],\"answers\":%lld", (long long)samples->count);
}

/* `from`: rows of its metrics that the reader has. */
static ravel_status put_run(const report_run *run, int64_t from, cli_output *out, ravel_error *err) {
    int64_t refits = from && run->refit.rows ? run->refit.rows : 0; /* these come as a whole or not at all */
    ravel_status status = report_put(out, err, "{\"name\":");
    if (!status) status = put_quoted(out, run->name, err);
    if (!status) status = report_put(out, err, ",\"folder\":");
    if (!status) status = put_quoted(out, run->folder, err);
    int shares[REPORT_PHASES];
    report_phase_shares(&run->metrics, shares);
    if (!status) status = report_put(out, err, ",\"shares\":{");
    for (int i = 0; i < REPORT_PHASES && !status; i++)
        status =
            report_put(out, err, "%s\"%s\":%d.%d", i ? "," : "", report_phase_label(i), shares[i] / 10, shares[i] % 10);
    if (!status) status = report_put(out, err, "},\"metrics\":");
    if (!status) status = put_table(out, &run->metrics, from, err);
    if (!status && run->refit.rows && !refits) status = report_put(out, err, ",\"refit\":");
    if (!status && run->refit.rows && !refits) status = put_table(out, &run->refit, 0, err);
    if (!status && run->metrics.ranks) status = report_put(out, err, ",\"ranks\":");
    if (!status && run->metrics.ranks) status = put_ranks(out, &run->metrics, from, err);
    if (!status) status = put_samples(out, &run->samples, from ? run->metrics.steps[from - 1] : INT64_MIN, err);
    if (from) return status ? status : report_put(out, err, "}");
    if (!status) status = report_put(out, err, ",\"config\":");
    if (!status) status = put_json(out, run->config ? run->config : "null", run->config ? strlen(run->config) : 4, err);
    if (!status) status = report_put(out, err, ",\"environment\":");
    if (!status)
        status = put_json(out, run->environment ? run->environment : "null",
                          run->environment ? strlen(run->environment) : 4, err);
    return status ? status : report_put(out, err, "}");
}

static ravel_status put_timelines(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < d->count && !status; i++) {
        char title[64] = "An update, rank by rank";
        double async = report_config_number(&d->runs[i], "async"),
               count = report_config_number(&d->runs[i], "generators");
        if (d->count > 1) (void)snprintf(title, sizeof title, "An update of run %d, rank by rank", i + 1);
        status = report_timeline_html(&d->runs[i], title, async > 0, count > 1 && count < 1e6 ? (int32_t)count : 1, out,
                                      err);
    }
    return status;
}

static ravel_status put_data(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(out, err, "{\"gpu\":%d,\"phases\":[", on_gpu(d));
    for (int32_t i = 0; i < RAVEL_PHASES && !status; i++)
        status = report_put(out, err, "%s\"%s\"", i ? "," : "", ravel_phase_name(i));
    if (!status) status = report_put(out, err, "],\"docs\":");
    if (!status) status = put_docs(out, err);
    if (!status) status = report_put(out, err, ",\"runs\":[");
    for (int i = 0; i < d->count && !status; i++) {
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_run(&d->runs[i], 0, out, err);
    }
    return status ? status : report_put(out, err, "]}");
}

/* ---- the template --------------------------------------------------------------------------------------- */

static const struct {
    const char *mark;
    ravel_status (*put)(const page_data *, cli_output *, ravel_error *);
} pieces[] = {{"<!--@title-->", put_title},     {"<!--@head-->", put_head},   {"<!--@follow-->", put_follow},
              {"<!--@figures-->", put_figures}, {"<!--@notes-->", put_notes}, {"<!--@timelines-->", put_timelines},
              {"<!--@data-->", put_data}};

/* The next mark at or after `at`, and which one it is. */
static const char *next_mark(const char *at, size_t *which) {
    const char *nearest = NULL;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const char *found = strstr(at, pieces[i].mark);
        if (found && (!nearest || found < nearest)) {
            nearest = found;
            *which = i;
        }
    }
    return nearest;
}

ravel_status report_html(const report_run *runs, int count, int live, cli_output *out, ravel_error *err) {
    page_data data = {runs, count, live};
    ravel_status status = RAVEL_OK;
    const char *at = report_page;
    size_t which = 0;
    for (const char *mark; !status && (mark = next_mark(at, &which)); at = mark + strlen(pieces[which].mark)) {
        status = cli_output_write(out, at, (size_t)(mark - at), err);
        if (!status) status = pieces[which].put(&data, out, err);
    }
    return status ? status : cli_output_write(out, at, strlen(at), err);
}

/* A piece of the page as a JSON string. */
static ravel_status put_piece(const page_data *d, const char *name, const char *mark, cli_output *out,
                              ravel_error *err) {
    char *text = NULL;
    size_t bytes = 0, k = 0;
    cli_output piece = {.path = "-"};
    while (strcmp(pieces[k].mark, mark) != 0) k++;
    piece.file = open_memstream(&text, &bytes);
    ravel_status status = piece.file ? pieces[k].put(d, &piece, err) : RAVEL_E_MEMORY;
    if (!piece.file || fclose(piece.file) != 0) status = ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    if (!status) status = report_put(out, err, "\"%s\":", name);
    if (!status) status = put_quoted(out, text, err);
    free(text);
    return status ? status : report_put(out, err, ",\n");
}

ravel_status report_news(const report_run *runs, int count, const int64_t *known, cli_output *out, ravel_error *err) {
    page_data d = {runs, count, 1};
    ravel_status status = report_put(out, err, "{");
    for (int i = 0; i < count; i++)
        if (known[i] < 1 || known[i] > runs[i].metrics.rows) return report_put(out, err, "\"whole\":true}");
    if (!status) status = put_piece(&d, "head", "<!--@head-->", out, err);
    if (!status) status = put_piece(&d, "notes", "<!--@notes-->", out, err);
    if (!status) status = put_piece(&d, "figures", "<!--@figures-->", out, err);
    if (!status) status = put_piece(&d, "timelines", "<!--@timelines-->", out, err);
    if (!status) status = report_put(out, err, "\"runs\":[");
    for (int i = 0; i < count && !status; i++) {
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_run(&runs[i], known[i], out, err);
    }
    return status ? status : report_put(out, err, "]}\n");
}
