/* Plans as text: a summary of one, a table of many. */
#include "cli/plan.h"

#include <stdio.h>
#include <string.h>

/* ---- heading -------------------------------------------------------------------------------------------- */

static void print_samples(const plan_data *data, const ravel_plan *plan) {
    char a[32], b[32], c[32];
    plan_left_out left = {0};
    if (plan) left = plan_count_left_out(data, plan);
    printf("%s samples%s, %s tokens, longest %s", cli_thousands(data->input.count - left.samples, a, sizeof a),
           left.samples ? " planned" : "", cli_thousands(data->total - left.tokens, b, sizeof b),
           cli_thousands(left.samples ? plan->stats.longest : data->longest, c, sizeof c));
    if (left.samples)
        printf("; %s left out (%s tokens, longest %s)", cli_thousands(left.samples, a, sizeof a),
               cli_thousands(left.tokens, b, sizeof b), cli_thousands(left.longest, c, sizeof c));
    printf("  (%s)\n", data->source);
}

void plan_print_heading(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan, int many) {
    char a[32], b[32], sync[32], layout[32];
    (void)ravel_choice_word(RAVEL_SYNC_CHOICES, options->sync, sync, sizeof sync);
    (void)ravel_choice_word(RAVEL_LAYOUT_CHOICES, options->layout, layout, sizeof layout);
    print_samples(data, plan);
    if (many) return; /* the table says the rest */
    int32_t ranks = options->cp_pool ? options->cp_pool : options->dp;
    printf("%s%s rank%s x %s tokens", options->cp_pool ? "a pool of " : "", cli_thousands(ranks, a, sizeof a),
           ranks == 1 ? "" : "s", cli_thousands(options->budget, b, sizeof b));
    if (options->cp > 1) printf(" x cp %d", options->cp);
    if (ravel_plan_align(options) > 1) printf(", align %d", ravel_plan_align(options));
    printf(", %s, sync %s", layout, sync);
    if (data->costs)
        printf(", own costs");
    else
        printf(", cost %lld:%lld", (long long)options->cost.linear, (long long)options->cost.quadratic);
    if (options->cost.overhead) printf(" + %lld per micro-step", (long long)options->cost.overhead);
}

/* ---- summary -------------------------------------------------------------------------------------------- */

static void share_line(const char *name, double share, const char *note) {
    printf("  %-15s %12.2f %%   %s\n", name, 100 * share, note);
}

/* Of prefix trees: what sharing saves, and what cutting trees between bins costs of it. */
static void print_sharing(const ravel_plan_stats *s) {
    char a[32], b[32], note[96];
    double flat = s->flat_tokens > 0 ? (double)s->flat_tokens : 1;
    (void)snprintf(note, sizeof note, "%s of %s tokens are computed", cli_thousands(s->actual_tokens, a, sizeof a),
                   cli_thousands(s->flat_tokens, b, sizeof b));
    share_line("shared", 1 - (double)s->actual_tokens / flat, note);
    (void)snprintf(note, sizeof note, "%s tokens are computed again, because bins cut trees",
                   cli_thousands(s->actual_tokens - s->unique_tokens, a, sizeof a));
    share_line("cuts", s->actual_tokens ? (double)(s->actual_tokens - s->unique_tokens) / (double)s->actual_tokens : 0,
               note);
}

/* Bins are raised to a whole number of micro-steps by splitting some. */
static void print_bins(const ravel_plan_stats *s) {
    char a[32], b[32], c[32];
    printf("  %-15s %14s   lower bound %s", "bins", cli_thousands(s->bins, a, sizeof a),
           cli_thousands(s->bins_lower_bound, b, sizeof b));
    if (s->bins_packed < s->bins)
        printf("; the samples fit into %s, some are split so that all ranks have work",
               cli_thousands(s->bins_packed, c, sizeof c));
    printf("\n");
}

static void print_micro_steps(const ravel_plan *plan, const ravel_plan_options *options) {
    const ravel_plan_stats *s = &plan->stats;
    char a[32], b[32], c[32];
    printf("  %-15s %14s   lower bound %s", "micro-steps", cli_thousands(s->micro_steps, a, sizeof a),
           cli_thousands(s->micro_steps_lower_bound, b, sizeof b));
    if (plan->updates > 1) printf("; %s updates", cli_thousands(plan->updates, c, sizeof c));
    if (options->multiple > 1) printf("; a multiple of %d", options->multiple);
    if (s->fillers) printf("; %s filler bin%s", cli_thousands(s->fillers, c, sizeof c), s->fillers == 1 ? "" : "s");
    printf("\n");
}

static void print_padding(const ravel_plan_stats *s) {
    char note[80], a[32], b[32];
    (void)snprintf(note, sizeof note, "%s of %s slot tokens",
                   cli_thousands(s->padded_tokens - s->actual_tokens, a, sizeof a),
                   cli_thousands(s->padded_tokens, b, sizeof b));
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
    TRAIN_ASSERT(h->pool > 0 && h->groups >= 0);
    char text[32];
    printf("  %-15s %14s   ", "groups", cli_thousands(h->groups, text, sizeof text));
    int first = 1;
    for (int32_t width = 1; width <= h->pool; width++) {
        int64_t count = 0;
        for (int64_t g = 0; g < h->groups; g++) count += h->group_width[g] == width;
        if (!count) continue;
        printf("%s%s of width %d", first ? "" : ", ", cli_thousands(count, text, sizeof text), width);
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
    char effort[32], text[32];
    (void)ravel_choice_word(RAVEL_EFFORT_CHOICES, options->effort, effort, sizeof effort);
    plan_print_heading(data, options, plan, 0);
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
        (void)snprintf(note, sizeof note, "%s tokens leave their home rank",
                       cli_thousands(s->tokens_moved, text, sizeof text));
        share_line("moved", s->actual_tokens ? (double)s->tokens_moved / (double)s->actual_tokens : 0, note);
    }
    printf("  %-15s %14s   always 0\n", "over budget", cli_thousands(s->over_budget, text, sizeof text));
    printf("  %-15s %016llx\n", "digest", (unsigned long long)plan->digest);
}

void plan_print_bubble(const plan_flags *flags, const ravel_bubble *bubble) {
    char note[96];
    (void)snprintf(note, sizeof note, "predicted for pp %d, vpp %d: share of the stages' time that they wait",
                   flags->pp, flags->vpp);
    share_line("bubble", bubble->share, note);
}

/* ---- tables --------------------------------------------------------------------------------------------- */

/* A column of figures: how it is called for people and for machines, how it is worked out, how it is written, and
 * whether less (-1) or more (1) of it is better. */
typedef struct column {
    const char *head, *name;
    double (*value)(const plan_result *r);
    enum { COUNT, SHARE, RATIO, MILLISECONDS } kind;
    int better;
    enum { ALWAYS, WITH_HOMES, WITH_SKIPPED, WITH_TREES } shown;
} column;

static double perfect(const plan_result *r) {
    TRAIN_ASSERT(r->options.dp > 0);
    return r->stats.cost > 0 ? (double)r->stats.cost / r->options.dp : 1;
}
static double get_bins(const plan_result *r) {
    return (double)r->stats.bins;
}
static double get_packed(const plan_result *r) {
    return (double)r->stats.bins_packed;
}
static double get_steps(const plan_result *r) {
    return (double)r->stats.micro_steps;
}
static double get_bound(const plan_result *r) {
    return (double)r->stats.micro_steps_lower_bound;
}
static double get_fill(const plan_result *r) {
    return r->stats.fill;
}
static double get_padding(const plan_result *r) {
    return r->stats.padding;
}
static double get_idle(const plan_result *r) {
    return r->options.sync == RAVEL_SYNC_MICRO_STEP ? r->stats.idle_micro_step : r->stats.idle_update;
}
static double get_time(const plan_result *r) {
    return (double)r->stats.time / perfect(r);
}
static double get_speed(const plan_result *r) {
    return r->speed;
}
static double get_imbalance(const plan_result *r) {
    return r->stats.imbalance;
}
static double get_moved(const plan_result *r) {
    return r->stats.actual_tokens ? (double)r->stats.tokens_moved / (double)r->stats.actual_tokens : 0;
}
static double get_skipped(const plan_result *r) {
    return (double)r->stats.skipped;
}
static double get_shared(const plan_result *r) {
    return r->stats.flat_tokens ? 1 - (double)r->stats.actual_tokens / (double)r->stats.flat_tokens : 0;
}
static double get_milliseconds(const plan_result *r) {
    return 1e3 * r->seconds;
}

static const column columns[] = {
    {"packed", "bins_packed", get_packed, COUNT, -1, ALWAYS},
    {"bins", "bins", get_bins, COUNT, -1, ALWAYS},
    {"micro-steps", "micro_steps", get_steps, COUNT, -1, ALWAYS},
    {"bound", "micro_steps_lower_bound", get_bound, COUNT, 0, ALWAYS},
    {"fill", "fill", get_fill, SHARE, 1, ALWAYS},
    {"padding", "padding", get_padding, SHARE, -1, ALWAYS},
    {"idle", "idle", get_idle, SHARE, -1, ALWAYS},
    {"time", "time_over_perfect", get_time, RATIO, -1, ALWAYS},
    {"speed", "relative_speed", get_speed, SHARE, 1, ALWAYS},
    {"shared", "shared", get_shared, SHARE, 1, WITH_TREES},
    {"imbalance", "imbalance", get_imbalance, RATIO, -1, ALWAYS},
    {"moved", "moved", get_moved, SHARE, -1, WITH_HOMES},
    {"left out", "skipped", get_skipped, COUNT, -1, WITH_SKIPPED},
    {"plan ms", "plan_ms", get_milliseconds, MILLISECONDS, 0, ALWAYS},
};
enum { FIGURES = sizeof columns / sizeof *columns, WIDEST = 48 };

static void write_cell(const column *c, double value, char *out, size_t room) {
    char text[32];
    switch (c->kind) {
    case COUNT: (void)snprintf(out, room, "%s", cli_thousands((int64_t)value, text, sizeof text)); break;
    case SHARE: (void)snprintf(out, room, "%.2f %%", 100 * value); break;
    case RATIO: (void)snprintf(out, room, "%.4f", value); break;
    case MILLISECONDS: (void)snprintf(out, room, value < 100 ? "%.2f" : "%.0f", value); break;
    }
}

/* The best figure of the column, as it is written: what looks equal is equally good. */
static void best_cell(const column *c, const plan_result *results, int count, char *out, size_t room) {
    double best = 0;
    int seen = 0;
    out[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (results[i].err.status || !c->better) continue;
        double value = c->value(&results[i]);
        if (!seen || (value - best) * c->better > 0) best = value;
        seen = 1;
    }
    if (seen) write_cell(c, best, out, room);
}

static int label_width(const plan_result *results, int count, const char *head, int label) {
    size_t width = strlen(head);
    for (int i = 0; i < count; i++)
        if (strlen(results[i].label[label]) > width) width = strlen(results[i].label[label]);
    return (int)width;
}

static int figure_width(const column *c, const plan_result *results, int count) {
    char text[WIDEST];
    size_t width = strlen(c->head);
    for (int i = 0; i < count; i++) {
        if (results[i].err.status) continue;
        write_cell(c, c->value(&results[i]), text, sizeof text);
        if (strlen(text) > width) width = strlen(text);
    }
    return (int)width;
}

static int is_shown(const column *c, const plan_result *results, int count, int with_homes) {
    int skipped = 0, trees = 0;
    for (int i = 0; i < count; i++) {
        skipped |= !results[i].err.status && results[i].stats.skipped > 0;
        trees |= !results[i].err.status && results[i].stats.actual_tokens < results[i].stats.flat_tokens;
    }
    if (c->shown == WITH_TREES) return trees;
    return c->shown == ALWAYS || (c->shown == WITH_HOMES ? with_homes : skipped);
}

/* A width of 0: the column is not shown. */
static void print_figures(const plan_result *r, const int *widths, char best[FIGURES][WIDEST]) {
    char text[WIDEST];
    for (int c = 0; c < FIGURES; c++) {
        if (!widths[c]) continue;
        write_cell(&columns[c], columns[c].value(r), text, sizeof text);
        printf("  %*s%s", widths[c], text, strcmp(text, best[c]) == 0 ? "*" : " ");
    }
    printf("\n");
}

void plan_print_table(const plan_result *results, int count, const char *const *heads, int labels, int with_homes) {
    int widths[FIGURES], label_widths[8];
    char best[FIGURES][WIDEST];
    TRAIN_ASSERT(count > 0 && labels > 0 && labels <= 8);
    printf("\n");
    for (int l = 0; l < labels; l++) {
        label_widths[l] = label_width(results, count, heads[l], l);
        printf("%s%-*s", l ? "  " : "", label_widths[l], heads[l]);
    }
    for (int c = 0; c < FIGURES; c++) {
        widths[c] = is_shown(&columns[c], results, count, with_homes) ? figure_width(&columns[c], results, count) : 0;
        best_cell(&columns[c], results, count, best[c], sizeof best[c]);
        if (widths[c]) printf("  %*s ", widths[c], columns[c].head);
    }
    printf("\n");
    for (int i = 0; i < count; i++) {
        for (int l = 0; l < labels; l++) printf("%s%-*s", l ? "  " : "", label_widths[l], results[i].label[l]);
        if (results[i].err.status)
            printf("  %s\n", results[i].err.message);
        else
            print_figures(&results[i], widths, best);
    }
    printf(
        "\n* the best of its column; packed: bins before some are split so that all ranks have work; time is predicted time "
        "over perfect balance;\n  speed is predicted tokens per second and rank, relative to the best row with the same "
        "cost\n");
}

static void put(cli_output *output, const char *text, ravel_status *status, ravel_error *err) {
    if (!*status) *status = cli_output_write(output, text, strlen(text), err);
}

/* A sentence between quotes, its own quotes doubled. */
static void put_quoted(cli_output *output, const char *text, ravel_status *status, ravel_error *err) {
    put(output, "\"", status, err);
    for (; *text && !*status; text++) {
        char piece[3] = {*text, *text == '"' ? '"' : '\0', '\0'};
        put(output, piece, status, err);
    }
    put(output, "\"", status, err);
}

ravel_status plan_table_csv(const plan_result *results, int count, const char *const *heads, int labels,
                            cli_output *output, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    char text[64];
    for (int l = 0; l < labels; l++) {
        put(output, heads[l], &status, err);
        put(output, ",", &status, err);
    }
    for (int c = 0; c < FIGURES; c++) {
        put(output, columns[c].name, &status, err);
        put(output, ",", &status, err);
    }
    put(output, "error\n", &status, err);
    for (int i = 0; i < count; i++) {
        for (int l = 0; l < labels; l++) {
            put(output, results[i].label[l], &status, err);
            put(output, ",", &status, err);
        }
        for (int c = 0; c < FIGURES; c++) {
            (void)snprintf(text, sizeof text, columns[c].kind == COUNT ? "%.0f," : "%.9g,",
                           results[i].err.status ? 0 : columns[c].value(&results[i]));
            put(output, results[i].err.status ? "," : text, &status, err);
        }
        if (results[i].err.status) put_quoted(output, results[i].err.message, &status, err);
        put(output, "\n", &status, err);
    }
    return status;
}

/* ---- page ----------------------------------------------------------------------------------------------- */

static const char page_head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    "<style>body{font:15px system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}"
    "div{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.3em .7em;text-align:right;white-space:nowrap}"
    "th{border-bottom:1px solid #999}.best{font-weight:600}.bar{background:#3f78b8;height:.7em;display:inline-block}"
    ".error{text-align:left;color:#a33}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}.bar{background:#6ea6e0}}</style>";

/* Text with <, > and & as entities. */
static void put_text(cli_output *output, const char *text, ravel_status *status, ravel_error *err) {
    for (; *text; text++) {
        char plain[2] = {*text, '\0'};
        put(output, *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : plain, status, err);
    }
}

static void put_cell(cli_output *output, const char *tag, const char *text, ravel_status *status, ravel_error *err) {
    char open[64], close[16];
    (void)snprintf(open, sizeof open, "<%s>", tag);
    (void)snprintf(close, sizeof close, "</%.*s>", (int)strcspn(tag, " "), tag);
    put(output, open, status, err);
    put_text(output, text, status, err);
    put(output, close, status, err);
}

static void put_row(const plan_result *r, int labels, const int *shown, char best[FIGURES][WIDEST], cli_output *output,
                    ravel_status *status, ravel_error *err) {
    char text[128];
    put(output, "<tr>", status, err);
    for (int l = 0; l < labels; l++) put_cell(output, "td", r->label[l], status, err);
    for (int c = 0; c < FIGURES && !r->err.status; c++) {
        if (!shown[c]) continue;
        write_cell(&columns[c], columns[c].value(r), text, sizeof text);
        put_cell(output, strcmp(text, best[c]) == 0 ? "td class=best" : "td", text, status, err);
    }
    if (r->err.status) {
        put(output, "<td class=error colspan=20>", status, err);
        put_text(output, r->err.message, status, err);
    } else {
        (void)snprintf(text, sizeof text, "<td><span class=bar style=\"width:%.1fem\"></span>", 12 * r->speed);
        put(output, text, status, err);
    }
    put(output, "</tr>\n", status, err);
}

ravel_status plan_table_html(const plan_result *results, int count, const char *const *heads, int labels,
                             const char *title, int with_homes, cli_output *output, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int shown[FIGURES];
    TRAIN_ASSERT(count > 0 && labels > 0);
    char best[FIGURES][WIDEST];
    put(output, page_head, &status, err);
    put_cell(output, "title", title, &status, err);
    put_cell(output, "h1", title, &status, err);
    put(output, "<div><table><tr>", &status, err);
    for (int l = 0; l < labels; l++) put_cell(output, "th", heads[l], &status, err);
    for (int c = 0; c < FIGURES; c++) {
        shown[c] = is_shown(&columns[c], results, count, with_homes);
        best_cell(&columns[c], results, count, best[c], sizeof best[c]);
        if (shown[c]) put_cell(output, "th", columns[c].head, &status, err);
    }
    put(output, "<th>relative speed</th></tr>\n", &status, err);
    for (int i = 0; i < count; i++) put_row(&results[i], labels, shown, best, output, &status, err);
    put(output,
        "</table></div><p>Bold: the best of its column. Time is predicted time over perfect balance; speed is predicted "
        "tokens per second and rank, relative to the best row with the same cost.</p></html>\n",
        &status, err);
    return status;
}
