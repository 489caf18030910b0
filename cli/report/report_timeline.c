/* timeline.jsonl: where each rank's time goes, as bars.
 *
 *     timeline: seconds per update, mean of 20; bubble 31.2 % (predicted 27.3 %), exposed communication 12.1 %
 *       rank  tp cp dp pp  forward  backward  tp wait  cp wait  pp wait  finish
 *          0   0  0  0  0    0.112     0.231    0.021        0    0.101   0.031  FFFFFFFBBBBBBBBBBBBBBttpppppppoo
 *
 * Rows after a change of the number of ranks (a run that was resumed on another mesh) replace those before. */
#include "cli/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 40, RANKS_SHOWN = 64 };

/* Key in the file, heading, letter of the bar, colour of the page. */
static const struct {
    const char *key, *title;
    char letter;
    const char *colour;
} spans[REPORT_SPANS] = {{"forward", "forward", 'F', "--p5"},   {"backward", "backward", 'B', "--p6"},
                         {"tp_wait", "tp wait", 't', "--warn"}, {"cp_wait", "cp wait", 'c', "--p11"},
                         {"pp_wait", "pp wait", 'p', "--p10"},  {"finish", "finish", 'o', "--p7"}};

/* ---- reading -------------------------------------------------------------------------------------------- */

static int count_members(const ravel__json *doc, const ravel__json_node *list) {
    int count = 0;
    for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n)) count++;
    return count;
}

static double number(const ravel__json *doc, const ravel__json_node *object, const char *key) {
    double value = 0;
    return ravel__json_real(ravel__json_get(doc, object, key), &value) ? value : 0;
}

static int32_t coordinate(const ravel__json *doc, const ravel__json_node *object, const char *key) {
    int64_t value = 0;
    return ravel__json_integer(ravel__json_get(doc, object, key), &value) && value >= 0 && value < 1 << 20
               ? (int32_t)value
               : 0;
}

static int make_room(report_timeline *t, int32_t ranks) {
    if (ranks == t->ranks) return 1;
    RAVEL_ASSERT(ranks > 0);
    report_rank_time *items = calloc((size_t)ranks, sizeof *items);
    if (!items) return 0;
    free(t->items);
    *t = (report_timeline){.ranks = ranks};
    t->items = items;
    return 1;
}

static int take_row(void *user, const ravel__json *doc, const char *line, size_t bytes) {
    report_timeline *t = user;
    (void)line, (void)bytes;
    if (!doc) return 1;
    const ravel__json_node *root = ravel__json_root(doc), *list = ravel__json_get(doc, root, "ranks");
    int ranks = list && list->kind == RAVEL__JSON_ARRAY ? count_members(doc, list) : 0, r = 0;
    if (ranks == 0) return 1;
    if (!make_room(t, ranks)) return 0;
    for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n)) {
        report_rank_time *item = &t->items[r++];
        RAVEL_ASSERT(r <= t->ranks);
        if (n->kind != RAVEL__JSON_OBJECT) continue;
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
    *t = (report_timeline){0};
    ravel_status status = report_slurp_any(folder, "timeline.jsonl", &text, &bytes, err);
    int ok = status || report_lines(text, bytes, take_row, t);
    free(text);
    divide(t);
    return ok ? status : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory: the timeline has too many ranks");
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
    RAVEL_ASSERT(at <= BAR && most > 0);
    bar[at] = '\0';
}

static void describe(const report_timeline *t, char *text, size_t bytes) {
    int used = snprintf(text, bytes, "seconds per update, mean of %lld; exposed communication %.1f %%",
                        (long long)t->updates, 100 * t->exposed);
    if ((t->bubble > 0 || t->predicted > 0) && used > 0 && (size_t)used < bytes)
        (void)snprintf(text + used, bytes - (size_t)used, "; bubble %.1f %%, predicted %.1f %%", 100 * t->bubble,
                       100 * t->predicted);
}

static double mean_phase(const report_run *run, const char *phase) {
    char name[64];
    const report_series *time = report_find(&run->metrics, "time/update_sec");
    int64_t rows = 0;
    for (int64_t i = 0; time && i < run->metrics.rows; i++) rows += time->values[i] > 0;
    (void)snprintf(name, sizeof name, "time/%s_self_sec", phase);
    double sum = report_sum(&run->metrics, name, NULL);
    RAVEL_ASSERT(rows >= 0);
    return rows > 0 && sum > 0 ? sum / (double)rows : 0;
}

/* They answer while the trainers wait, or beside them. */
static void print_generators(const report_run *run, ravel__printer *out) {
    double count = report_number(run->options, "generators"), answering = mean_phase(run, "rollout");
    if (!report_is_rl(run) || !(count >= 1)) return;
    const char *many = count == 1 ? "" : "s";
    if (report_number(run->options, "async") > 0)
        ravel__printer_format(out, "  %.0f generator%s answer%s beside the trainers (--async)\n", count, many,
                              count == 1 ? "s" : "");
    else
        ravel__printer_format(out, "  %.0f generator%s: %.4f s per update answering, while trainers wait\n", count,
                              many, answering);
}

void report_timeline_print(const report_run *run, ravel__printer *out) {
    const report_timeline *t = &run->timeline;
    char text[200], bar[BAR + 1];
    if (!t->updates) return;
    describe(t, text, sizeof text);
    ravel__printer_format(out, "timeline of %s: %s\n  rank  tp  cp  dp  pp", run->name, text);
    for (int i = 0; i < REPORT_SPANS; i++) ravel__printer_format(out, " %9s", spans[i].title);
    ravel__printer_string(out, "\n");
    for (int32_t r = 0; r < t->ranks && r < RANKS_SHOWN; r++) {
        const report_rank_time *item = &t->items[r];
        ravel__printer_format(out, "  %4d %3d %3d %3d %3d", r, item->tp, item->cp, item->dp, item->pp);
        for (int i = 0; i < REPORT_SPANS; i++) ravel__printer_format(out, " %9.4f", item->seconds[i]);
        draw(item, longest(t), bar);
        ravel__printer_format(out, "  %s\n", bar);
    }
    if (t->ranks > RANKS_SHOWN) ravel__printer_format(out, "  ... and %d ranks more\n", t->ranks - RANKS_SHOWN);
    print_generators(run, out);
}

/* ---- the page: a lane per rank over an axis of seconds --------------------------------------------------- */

/* What a lane has beside the spans of the file: phases of the metrics, which are means over the trainers. */
enum { BEFORE = 4, AFTER = 1 };
static const struct {
    const char *phase, *title, *colour;
} phases[BEFORE + AFTER] = {{"rollout", "waiting for answers", "--p0"},
                            {"reward", "rewards", "--p1"},
                            {"advantage", "old log-probs", "--p2"},
                            {"reference", "reference model", "--p3"},
                            {"refit", "refit", "--p9"}};

typedef struct lanes {
    const report_run *run;
    double phase[BEFORE + AFTER];
    double end; /* of the longest lane */
    int rl;
} lanes;

/* 1, 2 or 5 times a power of ten: four to eight of them in `end`. */
static double tick_of(double end) {
    double step = 1;
    while (step > end) step /= 10;
    while (step * 10 <= end) step *= 10;
    return step * 4 <= end ? step : step * 2 <= end ? step / 2 : step / 5;
}

static void put_axis(const lanes *l, ravel__printer *out) {
    double step = tick_of(l->end), unit = l->end < 0.1 ? 1e3 : 1;
    ravel__printer_string(out, "<div class=\"lane axis\"><span></span><span></span><span class=\"ticks\">");
    for (int i = 0; i * step <= l->end * 1.0001; i++)
        ravel__printer_format(out, "<i style=\"left:%.3f%%\"><b>%.4g%s</b></i>", 100 * i * step / l->end,
                              unit * i * step,
                              i          ? ""
                              : unit > 1 ? " ms"
                                         : " s");
    ravel__printer_string(out, "</span></div>\n");
}

static void put_span(const lanes *l, const char *title, const char *colour, double seconds, ravel__printer *out) {
    if (seconds > 0)
        ravel__printer_format(out, "<i style=\"width:%.3f%%;background:var(%s)\" title=\"%s %.4f s\"></i>",
                              100 * seconds / l->end, colour, title, seconds);
}

static void put_phase(const lanes *l, int i, ravel__printer *out) {
    put_span(l, phases[i].title, phases[i].colour, l->phase[i], out);
}

static void put_trainer(const lanes *l, const report_rank_time *item, int32_t rank, ravel__printer *out) {
    ravel__printer_format(
        out,
        "<div class=\"lane\"><b>%s %d</b><span class=\"soft\">tp %d cp %d dp %d pp %d</span><span class=\"spans\">",
        l->rl ? "trainer" : "rank", rank, item->tp, item->cp, item->dp, item->pp);
    for (int i = 0; i < BEFORE; i++) put_phase(l, i, out);
    for (int i = 0; i < REPORT_SPANS; i++) put_span(l, spans[i].title, spans[i].colour, item->seconds[i], out);
    put_phase(l, BEFORE, out);
    ravel__printer_string(out, "</span></div>\n");
}

/* Trainers and generators of a run without --async take turns: these answer while those wait. */
static void put_generators(const lanes *l, const char *who, ravel__printer *out) {
    double learn = longest(&l->run->timeline);
    for (int i = 1; i < BEFORE; i++) learn += l->phase[i];
    ravel__printer_format(out,
                          "<div class=\"lane\"><b>%s</b><span class=\"soft\">idle while trainers learn</span>"
                          "<span class=\"spans\">",
                          who);
    put_span(l, "generating", "--c2", l->phase[0], out);
    put_span(l, "idle", "--grid", learn, out);
    put_phase(l, BEFORE, out);
    ravel__printer_string(out, "</span></div>\n");
}

static void put_key(const char *title, const char *colour, ravel__printer *out) {
    ravel__printer_format(out, "<span><i style=\"background:var(%s)\"></i>%s</span> ", colour, title);
}

static void put_keys(const lanes *l, ravel__printer *out) {
    const report_timeline *t = &l->run->timeline;
    ravel__printer_string(out, "<p class=\"keys\">");
    for (int i = 0; i < BEFORE + AFTER; i++)
        if (l->phase[i] > 0) put_key(phases[i].title, phases[i].colour, out);
    for (int i = 0; i < REPORT_SPANS; i++) {
        double sum = 0;
        for (int32_t r = 0; r < t->ranks; r++) sum += t->items[r].seconds[i];
        if (sum > 0) put_key(spans[i].title, spans[i].colour, out);
    }
    if (l->phase[0] > 0) put_key("generating", "--c2", out);
    ravel__printer_string(out, "</p>\n");
}

/* One trainer writes no timeline: its phases are those of the metrics. */
static int lone_trainer(const report_run *run, report_rank_time *item) {
    static const char *const names[REPORT_SPANS] = {"forward", "backward", NULL, NULL, NULL, "optimizer"};
    for (int i = 0; i < REPORT_SPANS; i++) item->seconds[i] = names[i] ? mean_phase(run, names[i]) : 0;
    return total(item) > 0;
}

void report_timeline_html(const report_run *run, const char *title, int async, int32_t generators,
                          ravel__printer *out) {
    report_rank_time alone = {0};
    report_run with = *run;
    report_timeline *t = &with.timeline;
    char text[200] = "seconds per update, mean of all", who[48] = "generator";
    lanes l = {.run = &with, .rl = report_is_rl(run)};
    if (!t->updates && !(l.rl && lone_trainer(run, &alone))) return;
    if (t->updates)
        describe(t, text, sizeof text);
    else
        *t = (report_timeline){.updates = 1, .ranks = 1, .items = &alone};
    double sum = 0;
    for (int i = 0; i < BEFORE + AFTER; i++) sum += l.phase[i] = l.rl ? mean_phase(run, phases[i].phase) : 0;
    l.end = longest(t) + sum;
    RAVEL_ASSERT(l.end > 0);
    ravel__printer_format(out,
                          "<figure class=\"panel timeline\" data-chart=\"timeline\"><figcaption><b>%s</b><span>%s"
                          "</span></figcaption>\n",
                          title, text);
    put_keys(&l, out);
    put_axis(&l, out);
    for (int32_t r = 0; r < t->ranks && r < RANKS_SHOWN; r++) put_trainer(&l, &t->items[r], r, out);
    if (t->ranks > RANKS_SHOWN)
        ravel__printer_format(out, "<p class=\"soft\">... and %d ranks more</p>", t->ranks - RANKS_SHOWN);
    if (generators > 1) (void)snprintf(who, sizeof who, "%d generators", generators);
    if (l.rl && l.phase[0] > 0 && !async) put_generators(&l, who, out);
    if (l.rl && async)
        ravel__printer_string(out, "<p class=\"soft\">Generators answer beside the trainers (--async).</p>");
    ravel__printer_string(out, "</figure>\n");
}
