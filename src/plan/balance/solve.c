/* One update: from a pool of samples to a seat (micro-step, rank) for each. */
#include "plan/internal.h"

#include "base/assert.h"

#include <string.h>

/* ---- time --------------------------------------------------------------------------------------------------- */

/* The largest bin of each micro-step, or the largest rank. */
static int64_t time_of(const ravel__bin *bin, int64_t steps, int32_t dp, int32_t sync) {
    int64_t time = 0;
    if (sync == RAVEL_SYNC_MICRO_STEP) {
        for (int64_t s = 0; s < steps; s++) {
            int64_t most = 0;
            for (int32_t r = 0; r < dp; r++)
                if (bin[s * dp + r].cost > most) most = bin[s * dp + r].cost;
            time += most;
        }
        return time;
    }
    for (int32_t r = 0; r < dp; r++) {
        int64_t total = 0;
        for (int64_t s = 0; s < steps; s++) total += bin[s * dp + r].cost;
        if (total > time) time = total;
    }
    return time;
}

static ravel_status seat_time(const ravel__job *job, const int32_t *seat, int64_t steps, int64_t *time) {
    size_t bins = (size_t)(steps * job->dp);
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__bin *bin = ravel__arena_push(job->arena, bins, sizeof *bin);
    if (!bin) return ravel__no_memory(job->err, bins * sizeof *bin, "timing a plan");
    memset(bin, 0, bins * sizeof *bin);
    for (int32_t i = 0; i < job->pool->count; i++) {
        RAVEL_ASSERT(seat[i] >= 0 && (size_t)seat[i] < bins);
        ravel__bin_add(job->rules, job->pool, &bin[seat[i]], i);
    }
    for (size_t b = 0; b < bins; b++) RAVEL_ASSERT(bin[b].size <= job->rules->cap && bin[b].rows <= job->rules->most);
    *time = time_of(bin, steps, job->dp, job->rules->options.sync);
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* Every micro-step adds its overhead to the time, whatever the ranks wait for. */
static int is_better(const ravel__job *job, int64_t steps, int64_t time, const ravel__candidates *c) {
    int64_t best = c->solution.steps, overhead = job->rules->overhead;
    if (job->rules->by_time) return time + steps * overhead < c->time + best * overhead;
    return steps < best || (steps == best && time < c->time);
}

/* Keeps the fewest packed bins of any candidate: the samples fit into that number of bins. */
ravel_status ravel__candidates_offer(const ravel__job *job, ravel__candidates *c, ravel__solution solution) {
    int64_t time = 0, steps = solution.steps, best = c->solution.steps, packed = c->solution.bins_packed;
    RAVEL_ASSERT(steps >= 0 && solution.bins_packed <= job->pool->count);
    if (best && packed < solution.bins_packed) solution.bins_packed = packed;
    c->solution.bins_packed = solution.bins_packed;
    if (c->trial != c->best) {
        ravel_status status = seat_time(job, c->trial, steps, &time);
        if (status || (best && !is_better(job, steps, time, c))) return status;
    }
    int32_t *swap = c->best;
    c->best = c->trial;
    c->trial = swap;
    c->time = time;
    c->solution = solution;
    return RAVEL_OK;
}

/* ---- methods by name ---------------------------------------------------------------------------------------- */

/* Bins in the order in which the method made them: bin b is micro-step b / dp of rank b % dp. */
static ravel_status pack_and_split(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    const ravel__method *method = &ravel__methods[job->method];
    ravel__lists lists;
    int32_t bins;
    ravel_status status = method->pack(job, seat, &bins);
    if (status) return status;
    solution->bins_packed = bins;
    solution->steps = ravel__steps_for(job->rules, bins, job->dp);
    int32_t target = (int32_t)(solution->steps * job->dp);
    RAVEL_ASSERT(bins <= target && bins >= job->bound);
    status = ravel__lists_make(job, seat, bins, target, &lists);
    if (!status && method->splits) status = ravel__lists_split(job, &lists, target);
    if (!status) ravel__lists_bins(&lists, seat);
    return status;
}

static int on_ranks(const ravel__job *job) {
    return job->rules->options.group_rule == RAVEL_GROUPS_RANK && job->dp > 1;
}

static ravel_status solve_named(const ravel__job *job, int32_t method, int32_t *seat, ravel__solution *solution) {
    ravel__job named = *job;
    named.method = method;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status =
        on_ranks(job) ? ravel__solve_ranks(&named, seat, solution) : pack_and_split(&named, seat, solution);
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- the default method ------------------------------------------------------------------------------------- */

enum { MANY = 12 }; /* samples per bin from which differencing (kk) gives the best balance */

/* Whether the update is of the kind that the default method was made for. */
static int is_plain(const ravel__job *job) {
    return job->rules->options.layout == RAVEL_LAYOUT_PACKED && !on_ranks(job) && !job->rules->own_costs;
}

/* Whether the methods by name may be tried too: not if time matters more. */
static int may_compare(const ravel__job *job) {
    return RAVEL__PART_ON(COMPARE) && job->pool->count <= job->limits->compare_samples;
}

/* ... and whether they could be better. For a long plain update within 1/512 of its lower bound, and within 1/64 of
 * that on micro-steps if those come first, they are not tried, unless bins hold many samples, where differencing gives
 * the best balance. `bound`: on time without overheads; `steps`: on micro-steps. */
static int should_compare(const ravel__job *job, const ravel__candidates *c, int64_t bound, int64_t steps) {
    int32_t count = job->pool->count;
    int64_t overhead = job->rules->overhead, best = c->solution.steps, time = c->time + best * overhead;
    if (job->limits->thorough || count <= job->limits->compare_always_samples || count / MANY >= job->bound ||
        !is_plain(job))
        return 1;
    if (!job->rules->by_time && best > steps + steps / 64) return 1;
    if (count <= job->limits->pack_samples) return 0; /* for less time all starts were tried instead (packed.c) */
    bound += steps * overhead;
    return time > bound + bound / 512;
}

static ravel_status enter_own(const ravel__job *job, ravel__candidates *c) {
    if (!on_ranks(job))
        return job->rules->options.layout == RAVEL_LAYOUT_PACKED ? ravel__solve_packed(job, c)
                                                                 : ravel__solve_padded(job, c);
    ravel__solution solution;
    ravel_status status = solve_named(job, RAVEL_METHOD_RAVEL, c->trial, &solution);
    return status ? status : ravel__candidates_offer(job, c, solution);
}

/* If plans are not compared, packings still are: mffd may need a bin less than best-fit, seldom a micro-step
 * less. */
static ravel_status enter_fewest(const ravel__job *job, ravel__candidates *c) {
    ravel__solution solution;
    int32_t bins = 0;
    if (job->rules->options.layout != RAVEL_LAYOUT_PACKED || on_ranks(job) || c->solution.bins_packed <= job->bound)
        return RAVEL_OK;
    ravel_status status = ravel__methods[RAVEL_METHOD_MFFD].pack(job, c->trial, &bins);
    if (status || bins >= c->solution.bins_packed) return status;
    c->solution.bins_packed = bins;
    if (ravel__steps_for(job->rules, bins, job->dp) >= c->solution.steps) return RAVEL_OK;
    status = solve_named(job, RAVEL_METHOD_MFFD, c->trial, &solution);
    return status ? status : ravel__candidates_offer(job, c, solution);
}

/* Enters the plans of the named methods; the best plan is kept. */
static ravel_status enter_others(const ravel__job *job, ravel__candidates *c) {
    int64_t bound = ravel__time_bound(job->rules, job->pool, 0);
    int64_t steps = ravel__steps_for(job->rules, job->bound, job->dp);
    ravel_status status = RAVEL_OK;
    if (!should_compare(job, c, bound, steps)) return enter_fewest(job, c);
    for (int32_t m = RAVEL_METHOD_RAVEL + 1; !status && ravel_method_name(m); m++) {
        ravel__solution solution;
        if (m == RAVEL_METHOD_MFFD && job->rules->options.layout != RAVEL_LAYOUT_PACKED) continue; /* it is ffd there */
        if (c->time <= bound && c->solution.steps <= steps && c->solution.bins_packed <= job->bound) break;
        status = solve_named(job, m, c->trial, &solution);
        if (!status) status = ravel__candidates_offer(job, c, solution);
    }
    return status;
}

static ravel_status enter_all(const ravel__job *job, ravel__candidates *c) {
    ravel_status status = enter_own(job, c);
    return status || !may_compare(job) ? status : enter_others(job, c);
}

enum { MORE_STEPS = 4 };

/* The best plan of at least `least` micro-steps, offered to the others. */
static ravel_status enter_at_least(const ravel__job *job, int64_t least, ravel__candidates *c) {
    size_t n = (size_t)job->pool->count;
    ravel__rules rules = *job->rules;
    ravel__job longer = *job;
    longer.rules = &rules;
    rules.options.min_micro_steps = least;
    ravel__candidates own = {ravel__arena_push(job->arena, n, sizeof *own.best),
                             ravel__arena_push(job->arena, n, sizeof *own.trial),
                             0,
                             {0, 0}};
    if (!own.best || !own.trial) return ravel__no_memory(job->err, n * 8, "planning an update");
    ravel_status status = job->limits->thorough ? enter_all(&longer, &own) : enter_own(&longer, &own);
    if (status) return status;
    memcpy(c->trial, own.best, n * sizeof *c->trial);
    return ravel__candidates_offer(job, c, own.solution);
}

/* If time is minimised: one more micro-step (or group of `multiple`), and again while that was faster. */
static ravel_status enter_longer(const ravel__job *job, ravel__candidates *c) {
    int64_t bound = ravel__time_bound(job->rules, job->pool, 0), multiple = job->rules->options.multiple;
    int64_t least = ravel__steps_for(job->rules, c->solution.bins_packed, job->dp) + job->rules->steps_done;
    ravel_status status = RAVEL_OK;
    for (int32_t more = 0; !status && job->rules->by_time && more < MORE_STEPS && c->time > bound; more++) {
        int64_t steps = c->solution.steps;
        least += multiple;
        if (least * job->dp > RAVEL__MOST_BINS) break;
        ravel__mark mark = ravel__arena_mark(job->arena);
        status = enter_at_least(job, least, c);
        ravel__arena_rewind(job->arena, mark);
        if (c->solution.steps == steps) break;
    }
    return status;
}

static ravel_status solve_ravel(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    size_t n = (size_t)job->pool->count;
    int compare = may_compare(job);
    ravel__candidates c = {seat, seat, 0, {0, 0}};
    if (compare || job->limits->thorough || job->rules->by_time)
        c.trial = ravel__arena_push(job->arena, n, sizeof *c.trial);
    if (!c.trial) return ravel__no_memory(job->err, n * sizeof *c.trial, "planning an update");
    ravel_status status = enter_all(job, &c);
    if (!status) status = enter_longer(job, &c);
    *solution = c.solution;
    if (!status && c.best != seat) memcpy(seat, c.best, n * sizeof *seat);
    return status ? status : ravel__place(job, solution->steps, seat);
}

ravel_status ravel__solve(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    if (job->pool->count == 0) { /* only fillers */
        *solution = (ravel__solution){ravel__steps_for(job->rules, 0, job->dp), 0};
        return RAVEL_OK;
    }
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status = job->method == RAVEL_METHOD_RAVEL ? solve_ravel(job, seat, solution)
                                                            : solve_named(job, job->method, seat, solution);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
