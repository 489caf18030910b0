/* The default method, packed layout.
 *
 *   1. pack       best-fit decreasing (and others, where that leaves a micro-step too many): the fewest bins, and with
 *                 them the number of micro-steps.
 *   2. start      the samples in micro-steps * dp bins: spread evenly where the cap allows, else as packed (starts.h).
 *   3. order      bins by cost, so that a micro-step holds bins of like cost.
 *   4. even out   micro-step by micro-step, by trades (table.h); or rank by rank (totals.h) where the ranks meet only
 * at the end of an update.
 *   5. at effort max: every start, then two micro-steps at a time are dealt anew (settle.h), and the methods by name
 * are tried as well; the best is kept. Short updates get that at the default effort too.
 *
 * "Best" is fewer micro-steps, then less predicted time. */
#include "plan/settle.h"
#include "plan/starts.h"
#include "plan/totals.h"

#include <string.h>

/* What an effort buys. Bounded by counts, never by the clock, so that every machine does the same. */
typedef struct purse {
    ravel__care steps, ranks;
    int32_t passes, partners; /* for mending */
    int32_t all;              /* every start, and the methods by name */
    int32_t fuel, anew;       /* trades that may be looked at, a sample: in each start; in dealing anew */
} purse;

static purse open_purse(const ravel__job *job) {
    static const purse purses[] = {
        {{1, 0, 1, 12}, {2, 2, 1, 14}, 1, 16, 0, 64, 0},         /* fast */
        {{3, 2, 1, 17}, {16, 16, 1, 20}, 3, 48, 0, 128, 0},      /* default */
        {{6, 16, 2, 18}, {32, 32, 2, 21}, 3, 64, 1, 256, 256},   /* default, short */
        {{6, 16, 3, 20}, {64, 64, 3, 22}, 8, 128, 1, 512, 1024}, /* max */
    };
    if (job->rules->options.effort == RAVEL_EFFORT_FAST) return purses[0];
    if (job->rules->options.effort == RAVEL_EFFORT_MAX) return purses[3];
    return purses[job->pool->count <= 1024 ? 2 : 1];
}

typedef struct method {
    const ravel__job *job;
    purse purse;
    ravel__basis basis;
    int32_t *packed;
    int32_t *seat;  /* the best so far */
    int32_t *trial; /* the one being made; the same array where only one is made */
    int64_t steps, time;
} method;

static ravel_status short_of(const method *m, size_t bytes) {
    return ravel__no_memory(m->job->err, bytes, "the default method");
}

/* ---- evening out -------------------------------------------------------------------------------------------- */

static ravel_status even_steps(const method *m, const ravel__lists *lists, const int32_t *order, int32_t *seat) {
    const ravel__job *job = m->job;
    int32_t dp = job->dp, *scratch = ravel__arena_push(job->arena, (size_t)dp, sizeof *scratch);
    int64_t most = 0;
    for (int32_t b = 0; b < lists->bins; b += dp) {
        int64_t rows = 0;
        for (int32_t r = 0; r < dp; r++) rows += lists->bin[order[b + r]].rows;
        if (rows > most) most = rows;
    }
    ravel__table table;
    ravel_status status = ravel__table_make(job, dp, most, &table);
    if (status || !scratch) return short_of(m, (size_t)dp * sizeof *scratch);
    table.fuel = (int64_t)job->pool->count * m->purse.fuel;
    for (int32_t b = 0; b < lists->bins; b += dp) {
        for (int32_t r = 0; r < dp; r++) {
            int32_t from = order[b + r];
            ravel__table_load(&table, job->pool, r, lists->items + lists->start[from], lists->bin[from].rows);
        }
        ravel__table_even(&table, 0, dp, m->purse.steps, scratch);
        for (int32_t r = 0; r < dp; r++)
            for (int32_t i = 0; i < table.rows[r]; i++) seat[table.item[table.start[r] + i]] = b + r;
    }
    return RAVEL_OK;
}

static ravel_status even_ranks(const method *m, const ravel__lists *lists, const int32_t *order, int32_t *seat) {
    const ravel__job *job = m->job;
    int32_t *seat_bin = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *seat_bin);
    ravel__table table;
    ravel_status status = ravel__table_make(job, lists->bins, job->pool->count, &table);
    if (status || !seat_bin) return short_of(m, (size_t)lists->bins * sizeof *seat_bin);
    table.fuel = (int64_t)job->pool->count * m->purse.fuel;
    for (int32_t b = 0; b < lists->bins; b++)
        ravel__table_load(&table, job->pool, b, lists->items + lists->start[order[b]], lists->bin[order[b]].rows);
    status = ravel__totals_even(job, &table, m->purse.ranks, seat_bin);
    for (int32_t b = 0; !status && b < lists->bins; b++) {
        int32_t bin = seat_bin[b];
        for (int32_t i = 0; i < table.rows[bin]; i++) seat[table.item[table.start[bin] + i]] = b;
    }
    return status;
}

static ravel_status arrange(const method *m, const ravel__lists *lists, int32_t *seat) {
    int32_t *order = ravel__arena_push(m->job->arena, (size_t)lists->bins, sizeof *order);
    if (!order) return short_of(m, (size_t)lists->bins * sizeof *order);
    ravel_status status = ravel__lists_order(m->job, lists, order);
    if (status) return status;
    return m->job->rules->options.sync == RAVEL_SYNC_MICRO_STEP ? even_steps(m, lists, order, seat)
                                                                : even_ranks(m, lists, order, seat);
}

/* ---- choosing ----------------------------------------------------------------------------------------------- */

/* Keeps the trial if it is better than the best. */
static ravel_status judge(method *m, int64_t steps) {
    int64_t time;
    ravel_status status = ravel__seat_time(m->job, m->trial, steps, &time);
    if (status || (m->steps && (steps > m->steps || (steps == m->steps && time >= m->time)))) return status;
    int32_t *swap = m->seat;
    m->seat = m->trial;
    m->trial = swap;
    m->steps = steps;
    m->time = time;
    return RAVEL_OK;
}

static ravel_status try_start(method *m, ravel__start start, int *made) {
    ravel__mark mark = ravel__arena_mark(m->job->arena);
    ravel__lists lists;
    ravel_status status = ravel__start_make(&m->basis, start, &lists, made);
    if (!status && *made) status = arrange(m, &lists, m->trial);
    ravel__arena_rewind(m->job->arena, mark);
    if (!status && *made) {
        if (m->purse.all)
            status = judge(m, m->basis.bins / m->job->dp);
        else
            m->steps = m->basis.bins / m->job->dp;
    }
    return status;
}

/* The first start that can be had; or all of them. */
static ravel_status try_starts(method *m) {
    int64_t rows = m->job->pool->count / m->basis.bins;
    for (int32_t start = RAVEL__START_COSTS; start <= RAVEL__START_PACKED; start++) {
        int made = 0;
        if (!m->purse.all && (start == RAVEL__START_SLOTS || (start == RAVEL__START_SHRUNK && rows < 5))) continue;
        ravel_status status = try_start(m, (ravel__start)start, &made);
        if (status || (made && !m->purse.all)) return status;
    }
    return RAVEL_OK;
}

/* ---- packing ------------------------------------------------------------------------------------------------ */

static ravel_status pack(method *m) {
    const ravel__job *job = m->job;
    size_t n = (size_t)job->pool->count;
    m->packed = ravel__arena_push(job->arena, n, sizeof *m->packed);
    if (!m->packed) return short_of(m, n * sizeof *m->packed);
    ravel_status status = ravel__pack_fewest(job, m->purse.all, m->packed, &m->basis.packed_bins);
    m->basis.packed = m->packed;
    return status;
}

static int64_t volume(const ravel__pool *pool) {
    int64_t sum = 0;
    for (int32_t i = 0; i < pool->count; i++) sum += pool->slot[i];
    return sum;
}

ravel_status ravel__solve_packed(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    size_t n = (size_t)job->pool->count;
    method m = {job, open_purse(job), {job, NULL, 0, 0, NULL, 0, 0, volume(job->pool)}, NULL, seat, seat, 0, 0};
    m.basis.passes = m.purse.passes;
    m.basis.partners = m.purse.partners;
    ravel_status status = pack(&m);
    if (status) return status;
    solution->bins_packed = m.basis.packed_bins;
    m.basis.bins = (int32_t)(ravel__steps_for(job->rules, m.basis.packed_bins, job->dp) * job->dp);
    if (m.purse.all) m.trial = ravel__arena_push(job->arena, n, sizeof *m.trial);
    if (!m.trial) return short_of(&m, n * sizeof *m.trial);
    status = try_starts(&m);
    if (!status && m.purse.all && job->rules->options.sync == RAVEL_SYNC_MICRO_STEP)
        status = ravel__settle(job, m.steps, m.purse.steps, (int64_t)n * m.purse.anew, m.seat);
    solution->steps = m.steps;
    if (!status && m.seat != seat) memcpy(seat, m.seat, n * sizeof *seat);
    return status;
}
