/* The whole plan in one small still picture: a row per rank (or a few ranks), a column per micro-step (or a few), and
 * in each cell how much of the column's time is work, padding and waiting.
 *
 *     rank 0  |#######-...|####-.....|      # work   - padding   . idle   (with trees: shared work comes first)
 *     rank 1  |##########-|######-...|
 *
 * Cells are added up so that there are never more than COLUMNS x ROWS of them, and each kind of area is one path. */
#include "base/assert.h"
#include "base/number.h"
#include "report/plan_svg.h"

#include "report/plan_hybrid.h"

enum { COLUMNS = 96, ROWS = 32, LEFT = 46, TOP = 46, WIDTH = 960 };

typedef struct grid {
    const ravel_plan *plan;
    const ravel_cost *cost;
    int64_t columns, rows;
    double cell_width, cell_height;
    double times[COLUMNS]; /* of each column: the sum of its micro-steps' slowest bins */
} grid;

/* The first micro-step of a column, or rank of a row: `count` things dealt to `parts` parts. */
static int64_t first_of(int64_t part, int64_t parts, int64_t count) {
    RAVEL_ASSERT(part >= 0 && part <= parts && parts >= 1 && count >= 0);
    return part * count / parts;
}

/* One cell: time of work on tokens that samples of the bin share, of other work, of padding inside it, and of the whole
 * column. */
typedef struct cell {
    double shared, work, padding, all;
} cell;

static double path_cost(const grid *g, int64_t tokens) {
    double n = (double)tokens;
    return (double)g->cost->linear * n + (double)g->cost->quadratic * n * n;
}

/* Tokens of a sample that the next one has too are shared; what the one before had is not this sample's. */
static double cost_shared(const grid *g, int64_t bin) {
    const ravel_plan *plan = g->plan;
    double sum = 0;
    for (int64_t i = plan->bin_offsets[bin]; plan->shared && i + 1 < plan->bin_offsets[bin + 1]; i++)
        if (plan->shared[i + 1] > plan->shared[i])
            sum += path_cost(g, plan->shared[i + 1]) - path_cost(g, plan->shared[i]);
    for (int64_t k = plan->stats.cost_shift; k > 0; k--) sum /= 2;
    return sum;
}

static double slowest(const ravel_plan *plan, int64_t step) {
    RAVEL_ASSERT(step >= 0 && step < plan->micro_steps);
    int64_t most = 0;
    for (int32_t r = 0; r < plan->dp; r++)
        if (plan->bin_costs[step * plan->dp + r] > most) most = plan->bin_costs[step * plan->dp + r];
    return (double)most;
}

static void time_columns(grid *g) {
    for (int64_t column = 0; column < g->columns; column++) {
        RAVEL_ASSERT(column < COLUMNS);
        g->times[column] = 0;
        for (int64_t s = first_of(column, g->columns, g->plan->micro_steps);
             s < first_of(column + 1, g->columns, g->plan->micro_steps); s++)
            g->times[column] += slowest(g->plan, s);
    }
}

static cell add_up(const grid *g, int64_t column, int64_t row) {
    RAVEL_ASSERT(column >= 0 && column < g->columns && row >= 0 && row < g->rows);
    const ravel_plan *plan = g->plan;
    int64_t from = first_of(row, g->rows, plan->dp), to = first_of(row + 1, g->rows, plan->dp);
    cell c = {0, 0, 0, g->times[column] * (double)(to - from)};
    for (int64_t s = first_of(column, g->columns, plan->micro_steps);
         s < first_of(column + 1, g->columns, plan->micro_steps); s++)
        for (int64_t b = s * plan->dp + from; b < s * plan->dp + to; b++) {
            double cost = (double)plan->bin_costs[b], slots = (double)plan->bin_slots[b];
            RAVEL_ASSERT(plan->bin_tokens[b] <= plan->bin_slots[b] || !plan->bin_slots[b]);
            double padding = slots > 0 ? cost * (1 - (double)plan->bin_tokens[b] / slots) : 0;
            double shared = cost_shared(g, b);
            if (shared > cost - padding) shared = cost - padding;
            c.shared += shared;
            c.work += cost - padding - shared;
            c.padding += padding;
        }
    return c;
}

enum { SHARED, WORK, PADDING, IDLE };

static void put_cell(ravel__printer *t, const grid *g, int64_t column, int64_t row, int kind) {
    RAVEL_ASSERT(kind >= SHARED && kind <= IDLE);
    cell c = add_up(g, column, row);
    if (c.all <= 0) return;
    double width = g->cell_width - (g->cell_width > 6 ? 1.5 : 0.3);
    double starts[] = {0, c.shared / c.all, (c.shared + c.work) / c.all, (c.shared + c.work + c.padding) / c.all, 1};
    RAVEL_ASSERT(starts[1] >= 0 && starts[2] >= starts[1] && starts[3] >= starts[2] && starts[3] < 1 + 1e-9);
    double share = starts[kind + 1] - starts[kind];
    if (share * width < 0.05) return;
    ravel__printer_format(t, "M%.1f %.1fh%.1fv%.1fh%.1fz", LEFT + (double)column * g->cell_width + starts[kind] * width,
                          TOP + (double)row * g->cell_height, share * width,
                          g->cell_height - (g->cell_height > 4 ? 1 : 0), -share * width);
}

static void put_kind(ravel__printer *t, const grid *g, int kind, const char *name) {
    ravel__printer_format(t, "<path class=\"rv-%s\" d=\"", name);
    for (int64_t row = 0; row < g->rows && !t->status; row++)
        for (int64_t column = 0; column < g->columns; column++) put_cell(t, g, column, row, kind);
    ravel__printer_string(t, "\"/>\n");
}

static void put_words(ravel__printer *t, const ravel_plan_options *options, const grid *g, double height) {
    const ravel_plan_stats *s = &g->plan->stats;
    ravel__printer_format(
        t,
        "<text x=\"%d\" y=\"17\" class=\"rv-title\">%s samples in %s bins, %s micro-steps: fill %.1f %%, "
        "padding %.2f %%, idle %.2f %%</text>\n",
        LEFT, ravel__thousands(s->samples).text, ravel__thousands(s->bins).text, ravel__thousands(s->micro_steps).text,
        100 * s->fill, 100 * s->padding,
        100 * (options->sync == RAVEL_SYNC_MICRO_STEP ? s->idle_micro_step : s->idle_update));
    ravel__printer_format(
        t,
        "<text x=\"%d\" y=\"37\">work</text><rect class=\"rv-work\" x=\"%d\" y=\"29\" width=\"14\" "
        "height=\"9\"/><text x=\"%d\" y=\"37\">padding</text><rect class=\"rv-padding\" x=\"%d\" y=\"29\" "
        "width=\"14\" height=\"9\"/><text x=\"%d\" y=\"37\">idle in the micro-step</text><rect "
        "class=\"rv-idle\" x=\"%d\" y=\"29\" width=\"14\" height=\"9\"/>\n",
        LEFT + 20, LEFT, LEFT + 90, LEFT + 70, LEFT + 180, LEFT + 160);
    if (s->actual_tokens < s->flat_tokens)
        ravel__printer_format(
            t,
            "<text x=\"%d\" y=\"37\">work on tokens that samples share: %s of %s tokens are computed, "
            "%s again because of cuts</text><rect class=\"rv-shared\" x=\"%d\" y=\"29\" width=\"14\" "
            "height=\"9\"/>\n",
            LEFT + 345, ravel__thousands(s->actual_tokens).text, ravel__thousands(s->flat_tokens).text,
            ravel__thousands(s->actual_tokens - s->unique_tokens).text, LEFT + 325);
    ravel__printer_format(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank 0</text>", LEFT - 6, TOP + 9);
    if (g->plan->dp > 1)
        ravel__printer_format(t, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%d</text>", LEFT - 6, height - 21,
                              g->plan->dp - 1);
    ravel__printer_format(t,
                          "<text x=\"%d\" y=\"%.0f\">micro-step 0</text><text x=\"%d\" y=\"%.0f\" "
                          "text-anchor=\"end\">%lld</text>\n",
                          LEFT, height - 6, WIDTH - 10, height - 6, (long long)g->plan->micro_steps - 1);
}

static const char style[] =
    "<style>.rv text,.rv{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#6a6e76}.rv .rv-title{font-size:13px;"
    "font-weight:600}.rv .rv-work{fill:#3f78b8}.rv .rv-shared{fill:#17477f}.rv .rv-padding{fill:#f0a13a}.rv .rv-idle{fill:#eec3ba}"
    "@media (prefers-color-scheme:dark){.rv text,.rv{fill:#9aa0aa}.rv .rv-work{fill:#6ea6e0}.rv .rv-shared{fill:#bfdcff}.rv .rv-idle{fill:#5a3534}}"
    "</style>\n";

void ravel__picture_svg(ravel__printer *t, const ravel_plan_options *options, const ravel_plan *plan) {
    grid g = {.plan = plan,
              .cost = &options->cost,
              .columns = plan->micro_steps < 1         ? 1
                         : plan->micro_steps < COLUMNS ? plan->micro_steps
                                                       : COLUMNS,
              .rows = plan->dp < ROWS || (plan->hybrid && plan->dp <= 4 * ROWS) ? plan->dp : ROWS};
    RAVEL_ASSERT(g.columns >= 1 && g.columns <= COLUMNS && g.rows >= 1 && g.rows <= plan->dp);
    time_columns(&g);
    g.cell_width = (double)(WIDTH - LEFT - 10) / (double)g.columns;
    g.cell_height = g.rows <= 8 ? 20 : g.rows <= 16 ? 13 : 8;
    double height = TOP + (double)g.rows * g.cell_height + 22;
    ravel__printer_format(t,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"rv\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
                          "height=\"%.0f\" style=\"max-width:100%%;height:auto\" role=\"img\" aria-label=\"a plan\">\n",
                          WIDTH, height, WIDTH, height);
    ravel__printer_string(t, style);
    put_words(t, options, &g, height);
    if (plan->micro_steps) {
        if (plan->shared) put_kind(t, &g, SHARED, "shared");
        put_kind(t, &g, WORK, "work");
        put_kind(t, &g, PADDING, "padding");
        put_kind(t, &g, IDLE, "idle");
        if (plan->hybrid && g.columns == plan->micro_steps && g.rows == plan->dp) /* nothing was added up */
            ravel__hybrid_boxes(t, plan, LEFT, TOP, g.cell_width, g.cell_height);
    }
    ravel__printer_string(t, "</svg>\n");
}

ravel_status ravel_plan_svg(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                            ravel_write write, void *user, ravel_error *err) {
    ravel__printer t;
    (void)input;
    ravel__printer_begin(&t, write, user, err);
    ravel__picture_svg(&t, options, plan);
    return ravel__printer_end(&t);
}
