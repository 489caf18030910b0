/* The planner's input from the columns, and rows of several samples that stay together: packed rows (method as-is),
 * and with keep_rows rows such as pairs of answers. The planner is then given rows, and its bins are taken apart:
 *
 *     samples   0 1 2 | 3 | 4 5          rows 0, 1, 2
 *     plan      bin 0: row 0, row 2      bin 1: row 1
 *     routed    bin 0: 0 1 2 4 5         bin 1: 3
 *
 * A row is as long as the slots of its samples together, and costs what they cost. Where prefixes are shared it is as
 * long as its different tokens: each sample adds what the one before it in the row does not have. A row shares with
 * another one what all samples of both have in common. */
#include "feed/feed.h"

#include "base/assert.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide;

ravel_status ravel__rows_room(const ravel_feed *feed, int64_t count, ravel__plan_scratch *scratch, ravel_error *err) {
    ravel__given *g = &scratch->given;
    ravel_status status = ravel__buffer_reserve(&scratch->input, feed->allocator, count + 1, 9 * sizeof(int64_t),
                                                "the planner's input", err);
    if (status) return status;
    int64_t *at = scratch->input.at;
    g->lengths = at;
    g->groups = at += count;
    g->costs = at += count;
    g->responses = at += count;
    g->shared = at += count;
    g->row_starts = at += count;
    g->homes = (int32_t *)(void *)(at + count + 1);
    g->updates = g->homes + count;
    g->order = g->updates + count;
    g->places = g->order + count;
    g->row_of = g->places + count;
    return RAVEL_OK;
}

/* ---- columns of samples --------------------------------------------------------------------------------- */

static void set_homes(const ravel_feed *feed, const ravel__columns *c, int32_t *homes) {
    int64_t i = 0;
    for (int32_t r = 0; r < feed->plan.dp; r++)
        for (int64_t k = 0; k < c->counts[r]; k++) homes[i++] = r;
    RAVEL_ASSERT(i == c->count); /* every sample has one home */
}

static void set_updates(const ravel__columns *c, int32_t *updates) {
    for (int64_t i = 0; c->at[COLUMN_UPDATE] && i < c->count; i++) {
        int64_t u = c->at[COLUMN_UPDATE][i];
        updates[i] = u < 0 || u > INT32_MAX ? -1 : (int32_t)u;
    }
}

int64_t ravel__rows_slot(const ravel_feed *feed, int64_t length) {
    int32_t widths[RAVEL_FIT_WIDTHS], count = ravel_plan_widths(&feed->plan, widths);
    return ravel_plan_slot(&feed->plan, length, count ? widths[count - 1] : 0);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static int64_t cost_of(const ravel_feed *feed, int64_t length) {
    const ravel_cost *cost = &feed->plan.cost;
    wide n = (wide)length, sum = n * (wide)cost->linear + n * n * (wide)cost->quadratic;
    return sum > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)sum;
}

static void add_cost(ravel__given *g, int64_t row, int64_t cost) {
    if (__builtin_add_overflow(g->costs[row], cost, &g->costs[row])) g->costs[row] = INT64_MAX;
}

/* What the samples at two places of the tree order have in common. */
static int64_t common(const ravel__columns *c, int32_t a, int32_t b) {
    int64_t least = INT64_MAX;
    for (int32_t k = (a < b ? a : b) + 1; least && k <= (a < b ? b : a); k++)
        if (c->shared[k] < least) least = c->shared[k];
    return least;
}

/* A sample whose part number is not 0 belongs to the row of the one before it; homes, updates and groups are those of
 * a row's first sample. `trees`: what a sample shares with the one before it in its row counts once. */
static void fold(const ravel_feed *feed, const ravel__columns *c, int trees, ravel__given *g) {
    int priced = c->at[COLUMN_COST] != NULL;
    g->rows = 0;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t row = g->rows - 1, length = c->at[COLUMN_LENGTH][i], same = 0;
        if (c->at[COLUMN_PART][i] == 0 || i == 0) {
            row = g->rows++;
            g->row_starts[row] = i;
            g->lengths[row] = g->costs[row] = 0;
            g->homes[row] = g->homes[i];
            g->updates[row] = g->updates[i];
            g->groups[row] = c->at[COLUMN_GROUP] ? c->at[COLUMN_GROUP][i] : 0;
        } else if (trees) {
            same = common(c, g->places[i - 1], g->places[i]);
        }
        g->lengths[row] += trees ? length - same : ravel__rows_slot(feed, length);
        add_cost(g, row, priced ? c->at[COLUMN_COST][i] : cost_of(feed, length) - cost_of(feed, same));
    }
    g->row_starts[g->rows] = c->count;
    RAVEL_ASSERT(g->rows <= c->count && (c->count == 0 || g->row_starts[0] == 0));
}

/* What all samples of a row have in common. */
static int64_t common_of_row(const ravel__columns *c, const ravel__given *g, int64_t row) {
    int64_t least = c->at[COLUMN_LENGTH][g->row_starts[row]];
    for (int64_t i = g->row_starts[row] + 1; i < g->row_starts[row + 1]; i++) {
        int64_t same = common(c, g->places[i - 1], g->places[i]);
        if (same < least) least = same;
    }
    return least;
}

/* Rows in the tree order of their first samples. */
static void order_rows(const ravel__columns *c, ravel__given *g) {
    int64_t at = 0, least = 0, before = 0; /* least: what has been shared since the row before */
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t i = g->row_starts[row]; i < g->row_starts[row + 1]; i++)
            g->row_of[i] = i == g->row_starts[row] ? (int32_t)row : -1;
    for (int64_t k = 0; k < c->count; k++) {
        int32_t row = g->row_of[c->order[k]];
        if (c->shared[k] < least) least = c->shared[k];
        if (row < 0) continue;
        int64_t own = common_of_row(c, g, row), both = own < before ? own : before;
        g->order[at] = row;
        g->shared[at++] = least < both ? least : both;
        before = own;
        least = INT64_MAX;
    }
    RAVEL_ASSERT(at == g->rows);
}

/* ---- the input ------------------------------------------------------------------------------------------ */

int ravel__rows_stay(const ravel_feed *feed, const ravel__columns *c) {
    return feed->plan.method == RAVEL_METHOD_AS_IS || (feed->options.keep_rows && c->has_parts);
}

void ravel__rows_input(const ravel_feed *feed, const ravel__columns *c, int trees, ravel__given *g,
                       ravel_plan_input *input) {
    g->rows = -1;
    g->trees = trees;
    set_homes(feed, c, g->homes);
    set_updates(c, g->updates);
    *input = (ravel_plan_input){.size = sizeof *input,
                                .count = c->count,
                                .lengths = c->at[COLUMN_LENGTH],
                                .groups = c->at[COLUMN_GROUP],
                                .costs = c->at[COLUMN_COST],
                                .homes = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY ? NULL : g->homes,
                                .updates = c->at[COLUMN_UPDATE] ? g->updates : NULL,
                                .shared = trees ? c->shared : NULL,
                                .order = trees ? c->order : NULL};
    for (int64_t i = 0; c->at[COLUMN_PROMPT] && i < c->count; i++)
        g->responses[i] = c->at[COLUMN_LENGTH][i] - c->at[COLUMN_PROMPT][i];
    if (c->at[COLUMN_PROMPT]) {
        input->prompts = c->at[COLUMN_PROMPT];
        input->responses = g->responses;
    }
    if (!ravel__rows_stay(feed, c)) return;
    for (int64_t k = 0; trees && k < c->count; k++) g->places[c->order[k]] = (int32_t)k;
    fold(feed, c, trees, g);
    input->count = g->rows;
    input->lengths = g->lengths;
    if (input->groups) input->groups = g->groups;
    if (input->costs || feed->plan.method != RAVEL_METHOD_AS_IS) input->costs = g->costs;
    if (!trees) return;
    order_rows(c, g);
    input->shared = g->shared;
    input->order = g->order;
}

int ravel__rows_share(const ravel__columns *c, const ravel__given *g) {
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t i = g->row_starts[row] + 1; i < g->row_starts[row + 1]; i++)
            if (common(c, g->places[i - 1], g->places[i]) > 0) return 1;
    return 0;
}

int64_t ravel__rows_sample(const ravel__given *g, int64_t row) {
    return g->rows < 0 ? row : g->row_starts[row];
}

/* ---- the plan ------------------------------------------------------------------------------------------- */

/* The samples of a bin; what the first one of a row shares is the row's. */
static int64_t unfold_bin(const ravel__columns *c, const ravel__given *g, const ravel_plan *plan, int64_t bin,
                          int64_t at, int32_t *samples, int64_t *shared) {
    for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++) {
        int64_t first = g->row_starts[plan->samples[i]], end = g->row_starts[plan->samples[i] + 1];
        for (int64_t s = first; s < end; s++, at++) {
            samples[at] = (int32_t)s;
            if (!g->trees) continue;
            shared[at] = s > first ? common(c, g->places[s - 1], g->places[s]) : plan->shared ? plan->shared[i] : 0;
        }
    }
    return at;
}

/* Where the samples of each group begin, as far as the groups' rows say so. */
static void unfold_groups(const ravel_plan *plan, const int64_t *offsets, ravel__plan_scratch *scratch,
                          int64_t *group_offsets) {
    scratch->hybrid = *plan->hybrid;
    for (int64_t step = 0; step < plan->micro_steps; step++)
        for (int64_t g = plan->hybrid->group_offsets[step]; g < plan->hybrid->group_offsets[step + 1]; g++)
            group_offsets[g] = offsets[step * plan->dp + plan->hybrid->group_first[g]];
    group_offsets[plan->hybrid->groups] = offsets[plan->bins];
    scratch->hybrid.group_sample_offsets = group_offsets;
}

ravel_status ravel__rows_unfold(const ravel_feed *feed, const ravel__columns *c, ravel__plan_scratch *scratch,
                                ravel_plan *plan, ravel_error *err) {
    int64_t groups = plan->hybrid ? plan->hybrid->groups + 1 : 0, at = 0;
    if (scratch->given.rows < 0) return RAVEL_OK;
    ravel_status status = ravel__buffer_reserve(&scratch->expanded, feed->allocator,
                                                plan->bins + 1 + groups + c->count + (c->count + 1) / 2,
                                                sizeof(int64_t), "the samples of rows", err);
    if (status) return status;
    int64_t *offsets = scratch->expanded.at, *group_offsets = offsets + plan->bins + 1,
            *shared = group_offsets + groups;
    int32_t *samples = (int32_t *)(void *)(shared + c->count);
    for (int64_t bin = 0; bin < plan->bins; bin++) {
        offsets[bin] = at;
        at = unfold_bin(c, &scratch->given, plan, bin, at, samples, shared);
    }
    offsets[plan->bins] = at;
    RAVEL_ASSERT(at <= c->count && (plan->stats.skipped || at == c->count)); /* no sample twice, none lost */
    if (plan->hybrid) {
        unfold_groups(plan, offsets, scratch, group_offsets);
        plan->hybrid = &scratch->hybrid;
    }
    plan->count = c->count;
    plan->bin_offsets = offsets;
    plan->samples = samples;
    if (scratch->given.trees) plan->shared = shared; /* rows that share with no other row have trees of their own */
    return RAVEL_OK;
}
