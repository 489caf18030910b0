/* The default method in the padded layouts.
 *
 * A bin is a rectangle, rows x width, so similar lengths belong together: bins are runs of an order in which neighbours
 * have similar lengths. Longest first, for rows x longest; with prompts and responses padded apart, also orders that
 * sweep through bands of one part while the other goes up and down:
 *
 *     prompt   long  | <- response falls | -> rises | <- falls |  short
 *
 * For a given order and a limit on a bin's cost, cutting greedily (a run goes on while it fits) takes the fewest bins,
 * so bisection finds the least limit for which micro-steps * dp bins are enough. Then every micro-step, dp runs, is cut
 * again with its own limit. */
#include "plan/balance/balance.h"

#include "base/assert.h"
#include "base/heap.h"
#include "base/sort.h"

#include <string.h>

typedef struct runs {
    const ravel__job *job;
    const int32_t *order; /* samples; NULL: the pool's own order */
    int plain;            /* longest first and cost by the model: a run's first sample gives its width and cost */
} runs;

static int32_t nth(const runs *r, int32_t i) {
    return r->order ? r->order[i] : i;
}

/* ---- cutting ------------------------------------------------------------------------------------------------ */

/* Where the run that begins at `from` ends, at most at `to`: under the cap, and of cost `limit` at most (one sample
 * always goes in). */
static int32_t plain_end(const runs *r, int32_t from, int32_t to, int64_t limit) {
    const ravel__rules *rules = r->job->rules;
    RAVEL_ASSERT(from < to && r->job->pool->slot[from] > 0);
    int64_t rows = rules->cap / r->job->pool->slot[from], cost = r->job->pool->cost[from];
    if (rows > rules->most) rows = rules->most;
    if (cost && rows > limit / cost) rows = limit / cost;
    if (rows > to - from) rows = to - from;
    return from + (rows > 1 ? (int32_t)rows : 1);
}

static int32_t run_end(const runs *r, int32_t from, int32_t to, int64_t limit) {
    if (r->plain) return plain_end(r, from, to, limit);
    const ravel__rules *rules = r->job->rules;
    ravel__bin bin = {0};
    for (int32_t i = from; i < to; i++) {
        ravel__bin_add(rules, r->job->pool, &bin, nth(r, i));
        if (i > from && (bin.size > rules->cap || bin.rows > rules->most || bin.cost > limit)) return i;
    }
    return to;
}

/* How many runs there are from `from` to `to`; counting stops after `most`. Writes their ends if `ends` is not
 * NULL. */
static int32_t cut(const runs *r, int32_t from, int32_t to, int64_t limit, int32_t most, int32_t *ends) {
    int32_t count = 0;
    while (from < to && count <= most) {
        int32_t end = run_end(r, from, to, limit);
        RAVEL_ASSERT(end > from && end <= to); /* one sample at least */
        from = end;
        if (ends && count < most) ends[count] = from;
        count++;
    }
    return count;
}

/* The least limit, to within 2^-fine, with which `most` runs are enough; INT64_MAX if none is. */
static int64_t least_limit(const runs *r, int32_t from, int32_t to, int32_t most, int fine) {
    int64_t low = 0, high = 0;
    for (int32_t i = from; i < to; i++)
        if (r->job->pool->cost[nth(r, i)] > low) low = r->job->pool->cost[nth(r, i)];
    if (cut(r, from, to, low, most, NULL) <= most) return low;
    if (cut(r, from, to, INT64_MAX, most, NULL) > most) return INT64_MAX;
    for (high = low ? low : 1; cut(r, from, to, high, most, NULL) > most;
         high = high > INT64_MAX / 2 ? INT64_MAX : 2 * high)
        low = high;
    while (high - low > (low >> fine) + 1) {
        int64_t middle = low + (high - low) / 2;
        if (cut(r, from, to, middle, most, NULL) <= most)
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* ---- orders ------------------------------------------------------------------------------------------------- */

/* Bands of prompts (or, with `turned`, of responses), longest first; inside a band the other part falls and rises in
 * turn. */
static ravel_status sweep(const ravel__job *job, int32_t bands, int turned, int32_t *order) {
    const ravel__pool *pool = job->pool;
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t n = (size_t)pool->count;
    uint64_t *key = ravel__arena_push(job->arena, n, 8), *spare = ravel__arena_push(job->arena, n, 8);
    int32_t *spare_order = ravel__arena_push(job->arena, n, 4);
    if (!key || !spare || !spare_order) {
        ravel__arena_rewind(job->arena, mark);
        return ravel__no_memory(job->err, n * 20, "ordering samples");
    }
    for (int32_t i = 0; i < pool->count; i++) {
        uint32_t prompt = pool->prompt[i], major = turned ? pool->slot[i] - prompt : prompt;
        key[i] = ~(uint64_t)major;
        order[i] = i;
    }
    ravel__sort_u64(key, order, spare, spare_order, n);
    for (int32_t i = 0; i < pool->count; i++) {
        uint32_t prompt = pool->prompt[order[i]], minor = turned ? prompt : pool->slot[order[i]] - prompt;
        uint64_t band = (uint64_t)i * (uint64_t)bands / n;
        key[i] = band << 32 | (band & 1 ? minor : ~minor);
    }
    ravel__sort_u64(key, order, spare, spare_order, n);
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- seats -------------------------------------------------------------------------------------------------- */

/* In every micro-step, a bin without samples takes half of the largest one that can be split. */
static void fill_empty(const ravel__job *job, ravel__lists *lists, ravel__node *nodes, int64_t *scratch) {
    for (int32_t first = 0; first < lists->bins; first += job->dp) {
        ravel__heap largest = {nodes, 0};
        for (int32_t b = first; b < first + job->dp; b++)
            if (lists->bin[b].rows > 1) ravel__heap_push(&largest, lists->bin[b].cost, b);
        for (int32_t b = first; b < first + job->dp && largest.count; b++) {
            if (lists->bin[b].rows) continue;
            int32_t from = ravel__heap_pop(&largest);
            ravel__lists_halve(job, lists, from, b, scratch);
            if (lists->bin[from].rows > 1) ravel__heap_push(&largest, lists->bin[from].cost, from);
            if (lists->bin[b].rows > 1) ravel__heap_push(&largest, lists->bin[b].cost, b);
        }
    }
}

/* Ranks that meet only at the end: the bins are dealt by cost. */
static ravel_status deal_bins(const ravel__job *job, const ravel__lists *lists, int32_t *seat) {
    int32_t *order = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *order);
    int32_t *seat_bin = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *seat_bin);
    ravel__trading table;
    ravel_status status = ravel__trade_make(job, lists->bins, 0, &table);
    if (status || !order || !seat_bin) return ravel__no_memory(job->err, (size_t)lists->bins * 8, "dealing bins");
    status = ravel__lists_order(job, lists, order);
    for (int32_t b = 0; !status && b < lists->bins; b++) { /* whole bins: no samples on the table */
        ravel__trade_load(&table, job->pool, b, NULL, 0);
        table.sum[b] = lists->bin[order[b]].cost;
    }
    if (!status) status = ravel__totals_balance(job, &table, (ravel__trade_limits){32, 0, 1, 22}, seat_bin);
    for (int32_t b = 0; !status && b < lists->bins; b++) {
        RAVEL_ASSERT(seat_bin[b] >= 0 && seat_bin[b] < lists->bins);
        int32_t bin = order[seat_bin[b]];
        for (int32_t i = 0; i < lists->bin[bin].rows; i++) seat[lists->items[lists->start[bin] + i]] = b;
    }
    return status;
}

/* Cuts micro-step by micro-step: `ends` holds the runs of the common limit, dp to a micro-step. */
static void cut_steps(const runs *r, int32_t *ends, int32_t count, int fine, int32_t *seat) {
    int32_t dp = r->job->dp, from = 0;
    for (int32_t first = 0; first < count; first += dp) {
        int32_t last = first + dp < count ? first + dp : count, to = ends[last - 1];
        int64_t limit = least_limit(r, from, to, dp, fine);
        for (int32_t b = first; from < to; b++) {
            int32_t end = run_end(r, from, to, limit);
            RAVEL_ASSERT(b < last || b < first + dp);
            for (; from < end; from++) seat[nth(r, from)] = b;
        }
    }
}

static ravel_status seat_runs(const runs *r, int64_t steps, int fine, int32_t *seat) {
    const ravel__job *job = r->job;
    int32_t bins = (int32_t)(steps * job->dp), count = job->pool->count;
    int32_t *ends = ravel__arena_push(job->arena, (size_t)bins, sizeof *ends);
    int64_t *scratch = ravel__arena_push(job->arena, (size_t)count, sizeof *scratch);
    ravel__node *nodes = ravel__arena_push(job->arena, (size_t)job->dp, sizeof *nodes);
    if (!ends || !scratch || !nodes) return ravel__no_memory(job->err, (size_t)count * sizeof *scratch, "cutting runs");
    int32_t made = cut(r, 0, count, least_limit(r, 0, count, bins, fine), bins, ends);
    RAVEL_ASSERT(made <= bins);
    cut_steps(r, ends, made, fine, seat);
    ravel__lists lists;
    ravel_status status = ravel__lists_make(job, seat, bins, bins, &lists);
    if (status) return status;
    fill_empty(job, &lists, nodes, scratch);
    ravel__lists_bins(&lists, seat);
    return job->rules->options.sync == RAVEL_SYNC_MICRO_STEP ? RAVEL_OK : deal_bins(job, &lists, seat);
}

/* ---- front -------------------------------------------------------------------------------------------------- */

static ravel_status enter_order(const ravel__job *job, const int32_t *order, ravel__candidates *c) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    runs r = {job, order, !order && !job->rules->own_costs && !job->pool->prompt};
    int32_t packed = cut(&r, 0, job->pool->count, INT64_MAX, INT32_MAX - 1, NULL);
    ravel__solution solution = {ravel__steps_for(job->rules, packed, job->dp), packed};
    ravel_status status = RAVEL_OK;
    if (!c->solution.steps || job->rules->by_time || solution.steps <= c->solution.steps) {
        status = seat_runs(&r, solution.steps, job->rules->options.effort == RAVEL_EFFORT_MAX ? 20 : 10, c->trial);
        if (!status) status = ravel__candidates_offer(job, c, solution);
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}

static ravel_status enter_sweeps(const ravel__job *job, ravel__candidates *c) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t n = (size_t)job->pool->count;
    int32_t *order = ravel__arena_push(job->arena, n, sizeof *order);
    ravel_status status = order ? RAVEL_OK : ravel__no_memory(job->err, n * sizeof *order, "ordering samples");
    for (int32_t bands = 1; !status && bands <= 256 && (size_t)bands <= n; bands *= 4)
        for (int turned = 0; !status && turned < 2; turned++) {
            status = sweep(job, bands, turned, order);
            if (!status) status = enter_order(job, order, c);
        }
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* Several orders are compared even if the effort is small, so a second array of seats is needed here. */
ravel_status ravel__solve_padded(const ravel__job *job, ravel__candidates *candidates) {
    size_t n = (size_t)job->pool->count;
    int32_t *only = candidates->trial == candidates->best ? candidates->best : NULL;
    if (only && job->pool->prompt) candidates->trial = ravel__arena_push(job->arena, n, sizeof *candidates->trial);
    if (!candidates->trial) return ravel__no_memory(job->err, n * sizeof *candidates->trial, "ordering samples");
    ravel_status status = enter_order(job, NULL, candidates);
    if (!status && job->pool->prompt && job->rules->options.effort != RAVEL_EFFORT_FAST)
        status = enter_sweeps(job, candidates);
    return status;
}
