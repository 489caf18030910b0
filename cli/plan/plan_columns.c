/* A table of plans: its columns, as text and as CSV. */
#include "cli/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double perfect(const plan_result *r) {
    RAVEL_ASSERT(r->options.dp > 0);
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
static double get_memory(const plan_result *r) {
    return (double)r->memory;
}
static double get_milliseconds(const plan_result *r) {
    return 1e3 * r->seconds;
}

static const plan_column columns[] = {
    {"packed", "bins_packed", get_packed, PLAN_COUNT, -1, PLAN_ALWAYS},
    {"bins", "bins", get_bins, PLAN_COUNT, -1, PLAN_ALWAYS},
    {"micro-steps", "micro_steps", get_steps, PLAN_COUNT, -1, PLAN_ALWAYS},
    {"bound", "micro_steps_lower_bound", get_bound, PLAN_COUNT, 0, PLAN_ALWAYS},
    {"fill", "fill", get_fill, PLAN_SHARE, 1, PLAN_ALWAYS},
    {"padding", "padding", get_padding, PLAN_SHARE, -1, PLAN_ALWAYS},
    {"idle", "idle", get_idle, PLAN_SHARE, -1, PLAN_ALWAYS},
    {"time", "time_over_perfect", get_time, PLAN_RATIO, -1, PLAN_ALWAYS},
    {"speed", "relative_speed", get_speed, PLAN_SHARE, 1, PLAN_ALWAYS},
    {"shared", "shared", get_shared, PLAN_SHARE, 1, PLAN_WITH_TREES},
    {"imbalance", "imbalance", get_imbalance, PLAN_RATIO, -1, PLAN_ALWAYS},
    {"moved", "moved", get_moved, PLAN_SHARE, -1, PLAN_WITH_HOMES},
    {"left out", "skipped", get_skipped, PLAN_COUNT, -1, PLAN_WITH_SKIPPED},
    {"plan ms", "plan_ms", get_milliseconds, PLAN_MILLISECONDS, 0, PLAN_ALWAYS},
    {"memory", "memory_bytes", get_memory, PLAN_MEMORY, -1, PLAN_WITH_MODEL},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static int is_shown(const plan_table *t, const plan_column *c) {
    int shown[] = {[PLAN_ALWAYS] = 1,
                   [PLAN_WITH_HOMES] = t->data->homes != NULL,
                   [PLAN_WITH_SKIPPED] = 0,
                   [PLAN_WITH_TREES] = 0,
                   [PLAN_WITH_MODEL] = t->data->model != NULL};
    for (int i = 0; i < t->count; i++) {
        const plan_result *r = &t->results[i];
        shown[PLAN_WITH_SKIPPED] |= !r->err.status && r->stats.skipped > 0;
        shown[PLAN_WITH_TREES] |= !r->err.status && r->stats.actual_tokens < r->stats.flat_tokens;
    }
    return shown[c->shown];
}

const plan_column *plan_column_at(const plan_table *table, int index) {
    for (int c = 0; c < COLUMNS; c++)
        if (is_shown(table, &columns[c]) && index-- == 0) return &columns[c];
    return NULL;
}

static void write_cell(const plan_column *c, double value, char text[PLAN_LABEL]) {
    char number[TRAIN_BYTES_TEXT];
    switch (c->kind) {
    case PLAN_COUNT: (void)snprintf(text, PLAN_LABEL, "%s", ravel__thousands((int64_t)value).text); break;
    case PLAN_SHARE: (void)snprintf(text, PLAN_LABEL, "%.2f %%", 100 * value); break;
    case PLAN_RATIO: (void)snprintf(text, PLAN_LABEL, "%.4f", value); break;
    case PLAN_MILLISECONDS: (void)snprintf(text, PLAN_LABEL, value < 100 ? "%.2f" : "%.0f", value); break;
    case PLAN_MEMORY:
        (void)snprintf(text, PLAN_LABEL, "%s", value < 0 ? "-" : train_bytes_text((int64_t)value, number));
        break;
    }
}

void plan_column_cell(const plan_column *column, const plan_result *result, char text[PLAN_LABEL]) {
    write_cell(column, column->value(result), text);
}

void plan_column_best(const plan_table *table, const plan_column *column, char text[PLAN_LABEL]) {
    double best = 0;
    int seen = 0;
    text[0] = '\0';
    for (int i = 0; i < table->count; i++) {
        const plan_result *r = &table->results[i];
        double value = column->value(r);
        if (r->err.status || !column->better || (column->kind == PLAN_MEMORY && value < 0)) continue;
        if (!seen || (value - best) * column->better > 0) best = value;
        seen = 1;
    }
    if (seen) write_cell(column, best, text);
}

/* ---- text ----------------------------------------------------------------------------------------------- */

static int label_width(const plan_table *t, int label) {
    char text[PLAN_LABEL];
    size_t width = strlen(t->heads[label]);
    for (int i = 0; i < t->count; i++) {
        plan_label(t, &t->results[i], label, text);
        if (strlen(text) > width) width = strlen(text);
    }
    return (int)width;
}

static int figure_width(const plan_table *t, const plan_column *c) {
    char text[PLAN_LABEL];
    size_t width = strlen(c->head);
    for (int i = 0; i < t->count; i++) {
        if (t->results[i].err.status) continue;
        plan_column_cell(c, &t->results[i], text);
        if (strlen(text) > width) width = strlen(text);
    }
    return (int)width;
}

static void print_figures(const plan_table *t, const plan_result *r, const int *widths, char best[][PLAN_LABEL]) {
    char text[PLAN_LABEL];
    const plan_column *column;
    for (int c = 0; (column = plan_column_at(t, c)); c++) {
        plan_column_cell(column, r, text);
        printf("  %*s%s", widths[c], text, strcmp(text, best[c]) == 0 ? "*" : " ");
    }
    printf(r->taken ? " <-\n" : "\n");
}

void plan_table_print(const plan_table *t) {
    int widths[COLUMNS] = {0}, label_widths[PLAN_KEYS] = {0};
    char best[COLUMNS][PLAN_LABEL], label[PLAN_LABEL];
    const plan_column *column;
    int taken = 0;
    RAVEL_ASSERT(t->count > 0 && t->labels > 0 && t->labels <= PLAN_KEYS);
    printf("\n");
    for (int l = 0; l < t->labels; l++) {
        label_widths[l] = label_width(t, l);
        printf("%s%-*s", l ? "  " : "", label_widths[l], t->heads[l]);
    }
    for (int c = 0; (column = plan_column_at(t, c)); c++) {
        widths[c] = figure_width(t, column);
        plan_column_best(t, column, best[c]);
        printf("  %*s ", widths[c], column->head);
    }
    printf("\n");
    for (int i = 0; i < t->count; i++) {
        const plan_result *r = &t->results[i];
        for (int l = 0; l < t->labels; l++) {
            plan_label(t, r, l, label);
            printf("%s%-*s", l ? "  " : "", label_widths[l], label);
        }
        taken |= r->taken;
        if (r->err.status) /* without the advice, which is the same in all rows */
            printf("  %.*s\n", (int)strcspn(r->err.message, ";"), r->err.message);
        else
            print_figures(t, r, widths, best);
    }
    printf(
        "\n* the best of its column; packed: bins before some are split so that all ranks have work; time is predicted time "
        "over perfect balance;\n  speed is predicted tokens per second and rank, relative to the best row with the same "
        "cost%s\n",
        taken ? "; <- the row to take" : "");
}

/* ---- CSV ------------------------------------------------------------------------------------------------ */

/* A sentence between quotes, its own quotes doubled. */
static void put_quoted(ravel__printer *out, const char *text) {
    ravel__printer_string(out, "\"");
    for (; *text; text++) {
        if (*text == '"') ravel__printer_string(out, "\"");
        ravel__printer_put(out, text, 1);
    }
    ravel__printer_string(out, "\"");
}

/* All columns, whether the text shows them or not; memory with --shape. */
void plan_table_csv(ravel__printer *out, const void *user) {
    const plan_table *t = user;
    int last = t->data->model ? COLUMNS : COLUMNS - 1;
    for (int l = 0; l < t->labels; l++) ravel__printer_format(out, "%s,", t->heads[l]);
    for (int c = 0; c < last; c++) ravel__printer_format(out, "%s,", columns[c].name);
    ravel__printer_string(out, "error\n");
    for (int i = 0; i < t->count; i++) {
        const plan_result *r = &t->results[i];
        for (int l = 0; l < t->labels; l++) ravel__printer_format(out, "%s,", r->label[l]);
        for (int c = 0; c < last; c++) {
            int whole = columns[c].kind == PLAN_COUNT || columns[c].kind == PLAN_MEMORY;
            double value = r->err.status ? -1 : columns[c].value(r);
            if (r->err.status || (columns[c].kind == PLAN_MEMORY && value < 0))
                ravel__printer_string(out, ",");
            else
                ravel__printer_format(out, whole ? "%.0f," : "%.9g,", value);
        }
        if (r->err.status) put_quoted(out, r->err.message);
        ravel__printer_string(out, "\n");
    }
}
