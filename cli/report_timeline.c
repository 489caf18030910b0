/* timeline.jsonl: where each rank's time goes, as bars.
 *
 *     timeline: seconds per update, mean of 20; bubble 31.2 % (predicted 27.3 %), exposed communication 12.1 %
 *       rank  tp cp dp pp  forward  backward  tp wait  cp wait  pp wait  finish
 *          0   0  0  0  0    0.112     0.231    0.021        0    0.101   0.031  FFFFFFFBBBBBBBBBBBBBBttpppppppoo
 *
 * Rows after a change of the number of ranks (a run that was resumed on another mesh) replace those before. */
#include "cli/report.h"

#include <ravel/json.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 40, RANKS_SHOWN = 64 };

/* Key in the file, heading, letter of the bar, colour of the page. */
static const struct {
    const char *key, *title;
    char letter;
    const char *colour;
} spans[REPORT_SPANS] = {{"forward", "forward", 'F', "--p4"},  {"backward", "backward", 'B', "--p5"},
                         {"tp_wait", "tp wait", 't', "--p3"},  {"cp_wait", "cp wait", 'c', "--p6"},
                         {"pp_wait", "pp wait", 'p', "--p11"}, {"finish", "finish", 'o', "--p7"}};

/* ---- reading -------------------------------------------------------------------------------------------- */

static int count_members(const ravel_json *doc, const ravel_json_node *list) {
    int count = 0;
    for (const ravel_json_node *n = ravel_json_first(doc, list); n; n = ravel_json_next(doc, n)) count++;
    return count;
}

static double number(const ravel_json *doc, const ravel_json_node *object, const char *key) {
    double value = 0;
    return ravel_json_real(ravel_json_get(doc, object, key), &value) ? value : 0;
}

static int32_t coordinate(const ravel_json *doc, const ravel_json_node *object, const char *key) {
    int64_t value = 0;
    return ravel_json_integer(ravel_json_get(doc, object, key), &value) && value >= 0 && value < 1 << 20
               ? (int32_t)value
               : 0;
}

static int make_room(report_timeline *t, int32_t ranks) {
    if (ranks == t->ranks) return 1;
    TRAIN_ASSERT(ranks > 0);
    report_rank_time *items = calloc((size_t)ranks, sizeof *items);
    if (!items) return 0;
    free(t->items);
    *t = (report_timeline){.ranks = ranks};
    t->items = items;
    return 1;
}

static int take_row(report_timeline *t, const ravel_json *doc) {
    const ravel_json_node *root = ravel_json_root(doc), *list = ravel_json_get(doc, root, "ranks");
    int ranks = list && list->kind == RAVEL_JSON_ARRAY ? count_members(doc, list) : 0, r = 0;
    if (ranks == 0) return 1;
    if (!make_room(t, ranks)) return 0;
    for (const ravel_json_node *n = ravel_json_first(doc, list); n; n = ravel_json_next(doc, n)) {
        report_rank_time *item = &t->items[r++];
        TRAIN_ASSERT(r <= t->ranks);
        if (n->kind != RAVEL_JSON_OBJECT) continue;
        item->tp = coordinate(doc, n, "tp"), item->cp = coordinate(doc, n, "cp");
        item->dp = coordinate(doc, n, "dp"), item->pp = coordinate(doc, n, "pp");
        for (int i = 0; i < REPORT_SPANS; i++) item->seconds[i] += number(doc, n, spans[i].key);
    }
    t->bubble += number(doc, root, "bubble");
    t->predicted += number(doc, root, "bubble_predicted");
    t->exposed += number(doc, root, "exposed");
    t->updates++;
    return 1;
}

/* Sums to means. */
static void divide(report_timeline *t) {
    double n = t->updates > 0 ? (double)t->updates : 1;
    for (int32_t r = 0; r < t->ranks; r++)
        for (int i = 0; i < REPORT_SPANS; i++) t->items[r].seconds[i] /= n;
    t->bubble /= n;
    t->predicted /= n;
    t->exposed /= n;
}

ravel_status report_timeline_read(const char *folder, report_timeline *t, ravel_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    ravel_json *doc = NULL;
    ravel_error missing = RAVEL_ERROR_INIT;
    int ok = 1;
    *t = (report_timeline){0};
    ravel_status status = report_slurp(folder, "timeline.jsonl", &text, &bytes, &missing);
    if (status == RAVEL_E_END) return RAVEL_OK;
    if (status) return ravel_error_set(err, status, "%s", missing.message);
    for (const char *at = text, *newline; ok && at < text + bytes; at = newline + 1) {
        newline = memchr(at, '\n', (size_t)(text + bytes - at));
        if (!newline) break; /* not whole yet */
        if (ravel_json_parse(at, (size_t)(newline - at), NULL, &doc, NULL) == RAVEL_OK &&
            ravel_json_root(doc)->kind == RAVEL_JSON_OBJECT)
            ok = take_row(t, doc);
    }
    ravel_json_free(doc);
    free(text);
    divide(t);
    return ok ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory: the timeline has too many ranks");
}

void report_timeline_free(report_timeline *t) {
    free(t->items);
    *t = (report_timeline){0};
}

/* ---- text and page --------------------------------------------------------------------------------------- */

static double total(const report_rank_time *item) {
    double sum = 0;
    for (int i = 0; i < REPORT_SPANS; i++) sum += item->seconds[i];
    return sum;
}

static double longest(const report_timeline *t) {
    double most = 1e-12;
    for (int32_t r = 0; r < t->ranks; r++) most = total(&t->items[r]) > most ? total(&t->items[r]) : most;
    return most;
}

static void draw(const report_rank_time *item, double most, char bar[BAR + 1]) {
    double until = 0;
    int at = 0;
    for (int i = 0; i < REPORT_SPANS; i++) {
        until += item->seconds[i];
        for (; at < BAR && at + 0.5 < until / most * BAR; at++) bar[at] = spans[i].letter;
    }
    TRAIN_ASSERT(at <= BAR && most > 0);
    bar[at] = '\0';
}

static void describe(const report_timeline *t, char *text, size_t bytes) {
    int used = snprintf(text, bytes, "seconds per update, mean of %lld; exposed communication %.1f %%",
                        (long long)t->updates, 100 * t->exposed);
    if ((t->bubble > 0 || t->predicted > 0) && used > 0 && (size_t)used < bytes)
        (void)snprintf(text + used, bytes - (size_t)used, "; bubble %.1f %%, predicted %.1f %%", 100 * t->bubble,
                       100 * t->predicted);
}

ravel_status report_timeline_print(const report_run *run, cli_output *out, ravel_error *err) {
    const report_timeline *t = &run->timeline;
    char text[200], bar[BAR + 1];
    if (!t->updates) return RAVEL_OK;
    describe(t, text, sizeof text);
    ravel_status status = report_put(out, err, "timeline of %s: %s\n  rank  tp  cp  dp  pp", run->name, text);
    for (int i = 0; i < REPORT_SPANS && !status; i++) status = report_put(out, err, " %9s", spans[i].title);
    if (!status) status = report_put(out, err, "\n");
    for (int32_t r = 0; r < t->ranks && r < RANKS_SHOWN && !status; r++) {
        const report_rank_time *item = &t->items[r];
        status = report_put(out, err, "  %4d %3d %3d %3d %3d", r, item->tp, item->cp, item->dp, item->pp);
        for (int i = 0; i < REPORT_SPANS && !status; i++) status = report_put(out, err, " %9.4f", item->seconds[i]);
        draw(item, longest(t), bar);
        if (!status) status = report_put(out, err, "  %s\n", bar);
    }
    if (!status && t->ranks > RANKS_SHOWN)
        status = report_put(out, err, "  ... and %d ranks more\n", t->ranks - RANKS_SHOWN);
    return status;
}

static ravel_status put_bar(const report_rank_time *item, int32_t rank, double most, cli_output *out,
                            ravel_error *err) {
    ravel_status status =
        report_put(out, err, "<tr><th>%d</th><td class=\"soft\">tp %d cp %d dp %d pp %d</td><td><span class=\"spans\">",
                   rank, item->tp, item->cp, item->dp, item->pp);
    for (int i = 0; i < REPORT_SPANS && !status; i++)
        if (item->seconds[i] > 0)
            status = report_put(out, err, "<i style=\"width:%.2f%%;background:var(%s)\" title=\"%s %.4f s\"></i>",
                                100 * item->seconds[i] / most, spans[i].colour, spans[i].title, item->seconds[i]);
    return status ? status : report_put(out, err, "</span></td></tr>\n");
}

ravel_status report_timeline_html(const report_run *run, int number_of_run, cli_output *out, ravel_error *err) {
    const report_timeline *t = &run->timeline;
    char text[200];
    if (!t->updates) return RAVEL_OK;
    describe(t, text, sizeof text);
    ravel_status status = report_put(
        out, err,
        "<section class=\"panel timeline\"><h2>Timeline of run %d</h2><p class=\"soft\">%s</p><p class=\"soft\">",
        number_of_run, text);
    for (int i = 0; i < REPORT_SPANS && !status; i++)
        status = report_put(out, err, "<span class=\"spans\"><i style=\"width:1em;background:var(%s)\"></i></span> %s ",
                            spans[i].colour, spans[i].title);
    if (!status) status = report_put(out, err, "</p><table>\n");
    for (int32_t r = 0; r < t->ranks && r < RANKS_SHOWN && !status; r++)
        status = put_bar(&t->items[r], r, longest(t), out, err);
    return status ? status : report_put(out, err, "</table></section>\n");
}
