/* The page: report.html, with text put in where it says <!--@name-->. Everything is in the one file: style,
 * script and the runs' numbers as JSON. A long run is thinned to POINTS buckets of updates; each keeps mean, least and
 * greatest, so that spikes stay visible. */
#include "cli/report.h"

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
    size_t need = ravel_json_quote(text, strlen(text), NULL, 0);
    char *quoted = malloc(need + 1);
    if (!quoted) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    (void)ravel_json_quote(text, strlen(text), quoted, need + 1);
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

static int64_t bucket_count(const report_table *t, int64_t most) {
    return t->rows < most ? t->rows : most;
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
static ravel_status put_column(cli_output *out, const report_table *t, const double *values, int64_t stride,
                               int64_t points, int which, ravel_error *err) {
    ravel_status status = cli_output_write(out, "[", 1, err);
    for (int64_t p = 0; p < points && !status; p++) {
        bucket b = fill_bucket(values, stride, p * t->rows / points, (p + 1) * t->rows / points);
        if (p) status = cli_output_write(out, ",", 1, err);
        if (!status) status = put_number(out, which == 0 ? b.mean : which == 1 ? b.least : b.most, err);
    }
    return status ? status : cli_output_write(out, "]", 1, err);
}

/* {"v":[...],"lo":[...],"hi":[...]}; the last two only where buckets hold more than one row. */
static ravel_status put_series(cli_output *out, const report_table *t, const report_series *s, ravel_error *err) {
    int64_t points = bucket_count(t, POINTS);
    ravel_status status = put_quoted(out, s->name, err);
    if (!status) status = report_put(out, err, ":{\"v\":");
    if (!status) status = put_column(out, t, s->values, 1, points, 0, err);
    if (!status && points < t->rows) {
        status = report_put(out, err, ",\"lo\":");
        if (!status) status = put_column(out, t, s->values, 1, points, 1, err);
        if (!status) status = report_put(out, err, ",\"hi\":");
        if (!status) status = put_column(out, t, s->values, 1, points, 2, err);
    }
    return status ? status : cli_output_write(out, "}", 1, err);
}

static ravel_status put_steps(cli_output *out, const report_table *t, int64_t most, ravel_error *err) {
    int64_t points = bucket_count(t, most);
    ravel_status status = cli_output_write(out, "[", 1, err);
    for (int64_t p = 0; p < points && !status; p++) /* a bucket stands at its last update */
        status = report_put(out, err, p ? ",%lld" : "%lld", (long long)t->steps[(p + 1) * t->rows / points - 1]);
    return status ? status : cli_output_write(out, "]", 1, err);
}

static ravel_status put_table(cli_output *out, const report_table *t, ravel_error *err) {
    ravel_status status = report_put(out, err, "{\"rows\":%lld,\"step\":", (long long)t->rows);
    if (!status) status = put_steps(out, t, POINTS, err);
    if (!status) status = report_put(out, err, ",\"series\":{");
    for (int64_t i = 0; i < t->count && !status; i++) {
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_series(out, t, &t->series[i], err);
    }
    return status ? status : report_put(out, err, "}}");
}

/* [rank][bucket]: busy seconds. The page divides by the busiest. */
static ravel_status put_ranks(cli_output *out, const report_table *t, ravel_error *err) {
    int64_t points = bucket_count(t, RANK_POINTS);
    ravel_status status = report_put(out, err, "{\"step\":");
    if (!status) status = put_steps(out, t, RANK_POINTS, err);
    if (!status) status = report_put(out, err, ",\"busy\":[");
    for (int32_t r = 0; r < t->ranks && !status; r++) {
        if (r) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_column(out, t, t->busy + r, t->ranks, points, 0, err);
    }
    return status ? status : report_put(out, err, "]}");
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

typedef struct page_data {
    const report_run *runs;
    int count;
} page_data;

static ravel_status put_title(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < d->count && !status; i++) {
        if (i) status = put_text(out, i + 1 < d->count ? ", " : " and ", err);
        if (!status) status = put_text(out, d->runs[i].name, err);
    }
    return status ? status : put_text(out, " - Ravel report", err);
}

/* " x 1.03" against the first run, green where that is better, neither where three digits show no difference. */
static void relate(const report_figure *f, double x, double first, char *text, size_t bytes) {
    double ratio = report_relation(f, x, first);
    const char *colour = fabs(ratio - 1) < 0.005 ? "soft" : (ratio > 1) == (f->better > 0) ? "good" : "bad";
    text[0] = '\0';
    if (isfinite(ratio)) (void)snprintf(text, bytes, "<small class=\"ratio %s\">&times; %.3g</small>", colour, ratio);
}

static ravel_status put_card(const report_figure *f, const page_data *d, cli_output *out, ravel_error *err) {
    char text[64], relation[96];
    double first = report_value(f, &d->runs[0].metrics);
    ravel_status status = report_put(out, err, "<div class=\"card\"><dt>%s</dt>", f->label);
    if (!status && d->count == 1)
        status = report_put(out, err, "<dd>%s</dd>", report_format(f->style, first, text, sizeof text));
    if (!status && d->count > 1) status = report_put(out, err, "<dd class=\"runs\">");
    for (int i = 0; d->count > 1 && i < d->count && !status; i++) {
        double x = report_value(f, &d->runs[i].metrics);
        relate(f, x, i ? first : NAN, relation, sizeof relation);
        status = report_put(out, err, "<span class=\"run%d\">%s</span>%s", i % 8,
                            isnan(x) ? "-" : report_format(f->style, x, text, sizeof text),
                            relation[0] ? relation : "<small></small>");
    }
    if (!status && d->count > 1) status = report_put(out, err, "</dd>");
    return status ? status : report_put(out, err, "<small>%s</small></div>\n", f->note);
}

/* The figures as cards, which are there without a script: a value per run, in the run's colour. */
static ravel_status put_figures(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(out, err, "<dl class=\"cards\" id=\"figures\">\n");
    for (int k = 0; !status && report_figure_at(k); k++) {
        const report_figure *f = report_figure_at(k);
        int any = 0;
        for (int i = 0; i < d->count; i++) any |= !isnan(report_value(f, &d->runs[i].metrics));
        if (any) status = put_card(f, d, out, err);
    }
    return status ? status : report_put(out, err, "</dl>");
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

/* The lines as they are: objects, checked when they were read. */
static ravel_status put_samples(cli_output *out, const report_samples *samples, ravel_error *err) {
    ravel_status status = report_put(out, err, ",\"samples\":[");
    for (int64_t i = 0; i < report_samples_shown(samples) && !status; i++) {
        const report_sample *s = report_samples_at(samples, i);
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_json(out, s->line, s->bytes, err);
    }
    return status ? status : report_put(out, err, "],\"answers\":%lld", (long long)samples->count);
}

static ravel_status put_run(const report_run *run, cli_output *out, ravel_error *err) {
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
    if (!status) status = put_table(out, &run->metrics, err);
    if (!status && run->refit.rows) status = report_put(out, err, ",\"refit\":");
    if (!status && run->refit.rows) status = put_table(out, &run->refit, err);
    if (!status && run->metrics.ranks) status = report_put(out, err, ",\"ranks\":");
    if (!status && run->metrics.ranks) status = put_ranks(out, &run->metrics, err);
    if (!status) status = put_samples(out, &run->samples, err);
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
    for (int i = 0; i < d->count && !status; i++) status = report_timeline_html(&d->runs[i], i + 1, out, err);
    return status;
}

static ravel_status put_data(const page_data *d, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(out, err, "{\"phases\":[");
    for (int32_t i = 0; i < RAVEL_PHASES && !status; i++)
        status = report_put(out, err, "%s\"%s\"", i ? "," : "", ravel_phase_name(i));
    if (!status) status = report_put(out, err, "],\"docs\":");
    if (!status) status = put_docs(out, err);
    if (!status) status = report_put(out, err, ",\"runs\":[");
    for (int i = 0; i < d->count && !status; i++) {
        if (i) status = cli_output_write(out, ",\n", 2, err);
        if (!status) status = put_run(&d->runs[i], out, err);
    }
    return status ? status : report_put(out, err, "]}");
}

/* ---- the template --------------------------------------------------------------------------------------- */

static const struct {
    const char *mark;
    ravel_status (*put)(const page_data *, cli_output *, ravel_error *);
} pieces[] = {{"<!--@title-->", put_title},
              {"<!--@figures-->", put_figures},
              {"<!--@notes-->", put_notes},
              {"<!--@timelines-->", put_timelines},
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

ravel_status report_html(const report_run *runs, int count, cli_output *out, ravel_error *err) {
    page_data data = {runs, count};
    ravel_status status = RAVEL_OK;
    const char *at = report_page;
    size_t which = 0;
    for (const char *mark; !status && (mark = next_mark(at, &which)); at = mark + strlen(pieces[which].mark)) {
        status = cli_output_write(out, at, (size_t)(mark - at), err);
        if (!status) status = pieces[which].put(&data, out, err);
    }
    return status ? status : cli_output_write(out, at, strlen(at), err);
}
