/* A table of plans as a page: what was planned, the advice, and a row per plan with a bar for its speed. It looks like
 * the page of one plan (src/report/page.html). */
#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><link rel=\"icon\" href=\"data:,\">\n";

/* Where the page goes. */
typedef struct page {
    ravel__printer *out;
    int advised; /* lines of advice */
} page;

static void put(const page *p, const char *text) {
    ravel__printer_string(p->out, text);
}

static void put_text(const page *p, const char *text) {
    ravel__printer_html(p->out, text);
}

static void put_between(const page *p, const char *open, const char *text, const char *close) {
    put(p, open);
    put_text(p, text);
    put(p, close);
}

static void put_tile(const page *p, const char *name, int64_t value) {
    put_between(p, "<div class=card><dt>", name, "</dt><dd>");
    put_between(p, "", ravel__thousands(value).text, "</dd></div>");
}

static int is_swept(const plan_table *t, const char *name) {
    for (int l = 0; l < t->labels; l++)
        if (strcmp(t->heads[l], name) == 0) return 1;
    return 0;
}

static void put_tiles(const page *p, const plan_table *t) {
    const ravel_plan_options *o = t->options;
    put(p, "<dl class=cards>");
    put_tile(p, "samples", t->data->input.count);
    put_tile(p, "tokens", t->data->total);
    put_tile(p, "longest sample", t->data->longest);
    if (!is_swept(t, "dp") && !is_swept(t, "cp-pool"))
        put_tile(p, o->cp_pool ? "ranks of the pool" : "data-parallel ranks", o->cp_pool ? o->cp_pool : o->dp);
    if (!is_swept(t, "cp") && o->cp > 1) put_tile(p, "context-parallel ranks", o->cp);
    if (!is_swept(t, "budget")) put_tile(p, "budget, tokens per bin and rank", o->budget);
    put_tile(p, "plans", t->count);
    put(p, "</dl>\n");
}

static void put_advice(void *user, const char *line, int bad) {
    page *p = user;
    if (!p->advised++) put(p, "<section class=advice>");
    put_between(p, bad ? "<p class=bad>" : "<p>", line, "</p>");
}

/* Left out where a page is narrow. */
static int is_minor(const plan_column *c) {
    static const char *const major[] = {"idle", "speed", "memory"};
    for (size_t i = 0; i < sizeof major / sizeof *major; i++)
        if (strcmp(c->head, major[i]) == 0) return 0;
    return 1;
}

static void put_cells(const page *p, const plan_table *t, const plan_result *r, char best[][PLAN_LABEL]) {
    char text[PLAN_LABEL];
    const plan_column *column;
    for (int c = 0; (column = plan_column_at(t, c)); c++) {
        plan_column_cell(column, r, text);
        int is_best = strcmp(text, best[c]) == 0, is_speed = strcmp(column->head, "speed") == 0;
        ravel__printer_format(p->out, "<td class=\"%s%s%s\"", is_best ? "best " : "", is_speed ? "speed " : "",
                              is_minor(column) ? "minor" : "");
        if (is_speed) ravel__printer_format(p->out, " style=\"--share:%.1f%%\"", 100 * r->speed);
        put_between(p, ">", text, "</td>");
    }
}

/* What is wrong; where it is and what helps is shown on demand. */
static void put_error(const page *p, const char *message, int columns) {
    char open[96], first[160];
    size_t length = strcspn(message, ":");
    (void)snprintf(open, sizeof open, "<td class=error colspan=%d><details><summary>", columns);
    (void)snprintf(first, sizeof first, "%.*s", (int)length, message);
    put_between(p, open, first, "</summary>");
    put_between(p, "", message[length] ? message + length + 2 : "", "</details></td>");
}

static void put_rows(const page *p, const plan_table *t) {
    enum { MOST = 32 };
    char best[MOST][PLAN_LABEL], label[PLAN_LABEL];
    const plan_column *column;
    int columns = 0;
    put(p, "<div class=panel><table><tr>");
    for (int l = 0; l < t->labels; l++) put_between(p, "<th class=l>", t->heads[l], "</th>");
    for (; columns < MOST && (column = plan_column_at(t, columns)); columns++) {
        plan_column_best(t, column, best[columns]);
        put_between(p, is_minor(column) ? "<th class=minor>" : "<th>", column->head, "</th>");
    }
    put(p, "</tr>\n");
    for (int i = 0; i < t->count; i++) {
        const plan_result *r = &t->results[i];
        put(p, r->taken ? "<tr class=taken>" : "<tr>");
        for (int l = 0; l < t->labels; l++) {
            plan_label(t, r, l, label);
            put_between(p, "<td class=l>", label, "</td>");
        }
        if (r->err.status)
            put_error(p, r->err.message, columns);
        else
            put_cells(p, t, r, best);
        put(p, "</tr>\n");
    }
    put(p, "</table></div>\n");
}

void plan_table_html(ravel__printer *out, const void *table) {
    const plan_table *t = table;
    page p = {out, 0};
    char heading[PLAN_HEADING];
    int sweep = strcmp(t->name, "sweep") == 0;
    put(&p, head);
    put(&p, "<style>\n");
    put(&p, cli_table_style);
    put(&p, "</style>");
    put_between(&p, "<title>", t->data->title, "</title></head>\n<body><main><header><h1>");
    put_between(&p, "", t->data->title, "</h1><div class=soft>");
    plan_heading_options(t->data, t->options, heading);
    put_text(&p, sweep ? "every combination of the values below, method " : heading);
    if (sweep) put_text(&p, is_swept(t, "method") ? "by row" : ravel_method_name(t->options->method));
    put(&p, "</div></header>\n");
    plan_advise(t, put_advice, &p);
    if (p.advised) put(&p, "</section>\n");
    put_tiles(&p, t);
    put_rows(&p, t);
    put(&p,
        "<p class=soft>Green: the best of its column. packed: bins before some are split so that all ranks have work; time: "
        "predicted time over perfect balance; speed: predicted tokens per second and rank, relative to the best row with "
        "the same cost, with the price of context parallelism.</p></main></body></html>\n");
}
