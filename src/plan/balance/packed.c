/* The default method, packed layout.
 *
 *   1. pack       best-fit decreasing, and others if that is not the fewest possible (fewest.c): the fewest bins,
 *                 and with them the number of micro-steps.
 *   2. start      the samples in micro-steps * dp bins: spread evenly where the cap allows, else as packed (starts.c).
 *   3. order      bins by cost, so that a micro-step holds bins of like cost.
 *   4. balance    micro-step by micro-step, by trades (trade.c); or rank by rank (totals.c) where the ranks meet only
 *                 at the end of an update. There, where one sample dominates its rank, ranks are also tried first and
 *                 bins after (ranks.c).
 *   5. at max     every start; then two micro-steps at a time are dealt again (redeal.c). Very short updates get that
 *                 at the default effort too.
 *
 * The best is kept: fewer micro-steps, then less predicted time. Plans of the named methods are compared too, if
 * they could be better (solve.c). */
#include "plan/balance/balance.h"

#include "base/assert.h"

#include <string.h>

typedef struct method {
    const ravel__job *job;
    const ravel__search_limits *limits;
    ravel__basis basis;
    ravel__candidates *candidates;
    int ranks_first; /* try ranks first, bins after (ranks.c) */
} method;

static ravel_status no_memory(const method *m, size_t bytes) {
    return ravel__no_memory(m->job->err, bytes, "the default method");
}

/* ---- balancing out -------------------------------------------------------------------------------------------- */

static ravel_status balance_steps(const method *m, const ravel__lists *lists, const int32_t *order, int32_t *seat) {
    const ravel__job *job = m->job;
    int32_t dp = job->dp, *scratch = ravel__arena_push(job->arena, (size_t)dp, sizeof *scratch);
    int64_t most = 0;
    for (int32_t b = 0; b < lists->bins; b += dp) {
        int64_t rows = 0;
        for (int32_t r = 0; r < dp; r++) rows += lists->bin[order[b + r]].rows;
        if (rows > most) most = rows;
    }
    ravel__trading table;
    ravel_status status = ravel__trade_make(job, dp, most, &table);
    if (status || !scratch) return no_memory(m, (size_t)dp * sizeof *scratch);
    table.tries_left = 0;
    RAVEL_ASSERT(lists->bins % dp == 0);
    for (int32_t b = 0; b < lists->bins; b += dp) {
        for (int32_t r = 0; r < dp; r++) {
            int32_t from = order[b + r];
            table.tries_left += (int64_t)lists->bin[from].rows *
                                m->limits->trades_per_sample; /* unused trades are left to the next micro-step */
            ravel__trade_load(&table, job->pool, r, lists->items + lists->start[from], lists->bin[from].rows);
        }
        ravel__trade_balance(&table, 0, dp, m->limits->steps, scratch);
        for (int32_t r = 0; r < dp; r++) RAVEL_ASSERT(table.size[r] <= table.cap && table.rows[r] <= table.most);
        for (int32_t r = 0; r < dp; r++)
            for (int32_t i = 0; i < table.rows[r]; i++) seat[table.item[table.start[r] + i]] = b + r;
    }
    return RAVEL_OK;
}

static ravel_status balance_ranks(const method *m, const ravel__lists *lists, const int32_t *order, int32_t *seat) {
    const ravel__job *job = m->job;
    int32_t *seat_bin = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *seat_bin);
    ravel__trading table;
    ravel_status status = ravel__trade_make(job, lists->bins, job->pool->count, &table);
    if (status || !seat_bin) return no_memory(m, (size_t)lists->bins * sizeof *seat_bin);
    table.tries_left = (int64_t)job->pool->count * m->limits->trades_per_sample;
    for (int32_t b = 0; b < lists->bins; b++)
        ravel__trade_load(&table, job->pool, b, lists->items + lists->start[order[b]], lists->bin[order[b]].rows);
    status = ravel__totals_balance(job, &table, m->limits->ranks, seat_bin);
    for (int32_t b = 0; !status && b < lists->bins; b++) {
        int32_t bin = seat_bin[b];
        RAVEL_ASSERT(bin >= 0 && bin < lists->bins && table.size[bin] <= table.cap);
        for (int32_t i = 0; i < table.rows[bin]; i++) seat[table.item[table.start[bin] + i]] = b;
    }
    return status;
}

static ravel_status arrange(const method *m, const ravel__lists *lists, int32_t *seat) {
    int32_t *order = ravel__arena_push(m->job->arena, (size_t)lists->bins, sizeof *order);
    if (!order) return no_memory(m, (size_t)lists->bins * sizeof *order);
    ravel_status status = ravel__lists_order(m->job, lists, order);
    if (status) return status;
    return m->job->rules->options.sync == RAVEL_SYNC_MICRO_STEP ? balance_steps(m, lists, order, seat)
                                                                : balance_ranks(m, lists, order, seat);
}

/* ---- starts ------------------------------------------------------------------------------------------------- */

static ravel_status try_start(const method *m, ravel__start start, int *made) {
    ravel__mark mark = ravel__arena_mark(m->job->arena);
    ravel__solution solution = {m->basis.bins / m->job->dp, m->basis.packed_bins};
    ravel__lists lists;
    ravel_status status = ravel__start_make(&m->basis, start, &lists, made);
    if (!status && *made) status = arrange(m, &lists, m->candidates->trial);
    ravel__arena_rewind(m->job->arena, mark);
    return status || !*made ? status : ravel__candidates_offer(m->job, m->candidates, solution);
}

/* Whether a start is likely to be the best, if only a few are tried. */
static int promising(const method *m, ravel__start start) {
    int32_t count = m->job->pool->count, many = count / m->basis.bins >= 8;
    if (m->job->rules->options.effort == RAVEL_EFFORT_FAST)
        return start == RAVEL__START_COSTS || start == RAVEL__START_PACKED;
    switch (start) {
    case RAVEL__START_SLOTS: return m->limits->repair_passes > 4;
    case RAVEL__START_PARTS: return many && count <= 16384;
    case RAVEL__START_MIXED: return m->job->pool->slot[count - 1 - count / 16] < m->job->rules->cap / 32;
    case RAVEL__START_SHRUNK: return many;
    default: return 1;
    }
}

static int is_on(ravel__start start) {
    return (start != RAVEL__START_SLOTS || RAVEL__PART_ON(START_SLOTS)) &&
           (start != RAVEL__START_PARTS || RAVEL__PART_ON(START_PARTS)) &&
           (start != RAVEL__START_MIXED || RAVEL__PART_ON(START_MIXED)) &&
           (start != RAVEL__START_SHRUNK || RAVEL__PART_ON(START_SHRUNK));
}

/* Whether the best plan so far is further from its lower bound than 1/512: then the other starts are tried too. They
 * take less time than the methods by name (solve.c), and are better more often; fewer micro-steps they cannot find. */
static int is_far(const method *m) {
    const ravel__candidates *c = m->candidates;
    int64_t bound = ravel__time_bound(m->job->rules, m->job->pool, 0);
    return c->trial != c->best && c->time > bound + bound / 512 && m->job->pool->count <= m->limits->pack_samples;
}

/* The first few starts that are possible, or all of them. */
static ravel_status try_starts(const method *m) {
    int32_t left = m->limits->starts, all = left > RAVEL__START_PACKED, tried = 0;
    for (int pass = 0; pass < 2 && (!pass || (!all && is_far(m))); pass++, left = RAVEL__START_PACKED)
        for (int32_t start = RAVEL__START_COSTS; start <= RAVEL__START_PACKED && left > 0; start++) {
            int made = 0, second = left < m->limits->starts && start != RAVEL__START_SLOTS;
            if (tried >> start & 1 || (!pass && !all && !second && !promising(m, (ravel__start)start))) continue;
            if (!is_on((ravel__start)start)) continue;
            ravel_status status = try_start(m, (ravel__start)start, &made);
            if (status) return status;
            tried |= 1 << start;
            left -= made;
        }
    return RAVEL_OK;
}

/* Ranks first: their samples, then their bins. */
static ravel_status try_ranks(const method *m) {
    const ravel__job *job = m->job;
    ravel__solution solution;
    if (!m->ranks_first || !RAVEL__PART_ON(RANKS_FIRST)) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status = ravel__solve_ranks(job, m->candidates->trial, &solution);
    ravel__arena_rewind(job->arena, mark);
    return status ? status : ravel__candidates_offer(job, m->candidates, solution);
}

/* The best start once more, two micro-steps at a time. */
static ravel_status try_redeal(const method *m) {
    ravel__candidates *c = m->candidates;
    if (!RAVEL__PART_ON(REDEAL) || !m->limits->redeal_trades_per_sample ||
        m->job->rules->options.sync != RAVEL_SYNC_MICRO_STEP)
        return RAVEL_OK;
    int64_t tries = (int64_t)m->job->pool->count * m->limits->redeal_trades_per_sample;
    memcpy(c->trial, c->best, (size_t)m->job->pool->count * sizeof *c->trial);
    ravel_status status = ravel__redeal(m->job, c->solution.steps, m->limits->steps, tries, c->trial);
    return status ? status : ravel__candidates_offer(m->job, c, c->solution);
}

/* ---- front -------------------------------------------------------------------------------------------------- */

/* Whether one sample costs more than half of a rank's mean: its rank must then have little else. */
static int has_dominant_sample(const ravel__job *job) {
    const ravel__pool *pool = job->pool;
    int64_t total = 0, most = 0;
    if (job->dp == 1 || job->rules->options.sync == RAVEL_SYNC_MICRO_STEP) return 0;
    for (int32_t i = 0; i < pool->count; i++) {
        total += pool->cost[i];
        if (pool->cost[i] > most) most = pool->cost[i];
    }
    return most > total / job->dp / 2;
}

/* Comparing needs a second array of seats, which exists where the caller compares too. */
static ravel_status own_trial(const method *m) {
    size_t n = (size_t)m->job->pool->count;
    if ((m->limits->starts == 1 && !m->ranks_first) || m->candidates->trial != m->candidates->best) return RAVEL_OK;
    m->candidates->trial = ravel__arena_push(m->job->arena, n, sizeof *m->candidates->trial);
    return m->candidates->trial ? RAVEL_OK : no_memory(m, n * sizeof *m->candidates->trial);
}

ravel_status ravel__solve_packed(const ravel__job *job, ravel__candidates *candidates) {
    size_t n = (size_t)job->pool->count;
    method m = {job, job->limits, {job, NULL, 0, 0, 0, 0}, candidates, 0};
    if (job->rules->options.effort != RAVEL_EFFORT_FAST) m.ranks_first = has_dominant_sample(job);
    int32_t *packed = ravel__arena_push(job->arena, n, sizeof *packed);
    if (!packed) return no_memory(&m, n * sizeof *packed);
    ravel_status status = ravel__pack_fewest(job, job->limits->thorough, packed, &m.basis.packed_bins);
    if (!status) status = own_trial(&m);
    if (status) return status;
    m.basis.packed = packed;
    m.basis.passes = m.limits->repair_passes;
    m.basis.partners = m.limits->repair_partners;
    RAVEL_ASSERT(m.basis.packed_bins >= job->bound && m.basis.packed_bins <= job->pool->count);
    m.basis.bins = (int32_t)(ravel__steps_for(job->rules, m.basis.packed_bins, job->dp) * job->dp);
    status = try_starts(&m);
    if (!status) status = try_ranks(&m);
    return status ? status : try_redeal(&m);
}
