/* Ranks first: groups that stay on one rank are dealt to ranks by cost, then every rank is planned on its own, all with
 * the same number of micro-steps.
 *
 *     pool  ->  [ samples of rank 0 | rank 1 | ... ]   each slice a pool of its own, longest first
 *
 * If ranks meet only at the end of an update, that is a way to deal single samples too: a rank that has a dominant
 * sample gets nothing else, which exchanges between evenly filled bins do not find. */
#include "plan/balance/balance.h"

#include "base/assert.h"

#include <string.h>

typedef struct slices {
    ravel__pool all; /* the pool again, rank by rank */
    int32_t *from;   /* index in the pool it came from */
    int32_t *bin;    /* inside the rank */
    int32_t *rank_bins;
    int32_t *start; /* [dp + 1] */
} slices;

static ravel_status no_memory(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "planning groups on ranks");
}

/* ---- groups to ranks ---------------------------------------------------------------------------------------- */

/* Each group as one item: summed cost and slots, scaled to fit. A rank is then a bin for groups. */
typedef struct group_items {
    ravel__pool pool;
    ravel__rules rules;
    ravel__job job;
    int32_t *rank;
} group_items;

static ravel_status make_group_items(const ravel__job *job, const int32_t *group, int32_t groups, group_items *c) {
    size_t n = (size_t)groups;
    memset(c, 0, sizeof *c);
    int64_t *slots = ravel__arena_push(job->arena, n, sizeof *slots), most = 0;
    c->pool.count = groups;
    c->pool.cost = ravel__arena_push(job->arena, n, sizeof *c->pool.cost);
    c->pool.slot = ravel__arena_push(job->arena, n, sizeof *c->pool.slot);
    c->rank = ravel__arena_push(job->arena, n, sizeof *c->rank);
    if (!slots || !c->pool.cost || !c->pool.slot || !c->rank) return no_memory(job, n * 24);
    memset(slots, 0, n * sizeof *slots);
    memset(c->pool.cost, 0, n * sizeof *c->pool.cost);
    for (int32_t i = 0; i < job->pool->count; i++) {
        slots[group[i]] += job->pool->slot[i];
        c->pool.cost[group[i]] += job->pool->cost[i];
    }
    for (int32_t g = 0; g < groups; g++)
        if (slots[g] > most) most = slots[g];
    int shift = 0;
    while (most >> shift > UINT32_MAX / 2) shift++;
    RAVEL_ASSERT(most >> shift <= UINT32_MAX / 2);
    for (int32_t g = 0; g < groups; g++) c->pool.slot[g] = (uint32_t)(slots[g] >> shift);
    c->rules = *job->rules;
    int64_t steps = ravel__steps_for(job->rules, job->bound, job->dp);
    if (__builtin_mul_overflow(steps, job->rules->cap, &c->rules.cap)) c->rules.cap = INT64_MAX / 4;
    c->rules.cap >>= shift;
    c->rules.most = INT32_MAX;
    c->job = *job;
    c->job.rules = &c->rules;
    c->job.pool = &c->pool;
    return RAVEL_OK;
}

/* The default method evens ranks out by trading groups. */
static ravel_status balance_groups(group_items *c) {
    ravel__lists lists;
    ravel__trading table;
    int32_t dp = c->job.dp, *scratch = ravel__arena_push(c->job.arena, (size_t)dp, sizeof *scratch);
    ravel_status status = ravel__lists_make(&c->job, c->rank, dp, dp, &lists);
    if (!status) status = ravel__trade_make(&c->job, dp, c->pool.count, &table);
    if (status || !scratch) return no_memory(&c->job, (size_t)dp * sizeof *scratch);
    for (int32_t r = 0; r < dp; r++)
        ravel__trade_load(&table, &c->pool, r, lists.items + lists.start[r], lists.bin[r].rows);
    table.tries_left = (int64_t)c->pool.count * c->job.limits->group_trades_per_sample;
    ravel__trade_balance(&table, 0, dp, c->job.limits->groups, scratch);
    for (int32_t r = 0; r < dp; r++)
        for (int32_t i = 0; i < table.rows[r]; i++) c->rank[table.item[table.start[r] + i]] = r;
    return RAVEL_OK;
}

/* Without groups on ranks every sample is a group. */
static ravel_status number_groups(const ravel__job *job, int32_t *group, int32_t *groups) {
    const ravel__pool *pool = job->pool;
    if (job->rules->options.group_rule == RAVEL_GROUPS_RANK)
        return ravel__groups_number(job->input, pool->row, pool->count, job->arena, group, groups, job->err);
    for (int32_t i = 0; i < pool->count; i++) group[i] = i;
    *groups = pool->count;
    return RAVEL_OK;
}

static ravel_status choose_ranks(const ravel__job *job, int32_t *rank) {
    int32_t groups, over;
    group_items c;
    if (job->ranks) {
        for (int32_t i = 0; i < job->pool->count; i++) rank[i] = job->ranks[job->pool->row[i]];
        return RAVEL_OK;
    }
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status = number_groups(job, rank, &groups);
    if (!status) status = make_group_items(job, rank, groups, &c);
    if (!status) status = ravel__spread(&c.job, job->dp, 0, c.rank, &over);
    if (!status && job->method == RAVEL_METHOD_RAVEL) status = balance_groups(&c);
    for (int32_t i = 0; !status && i < job->pool->count; i++) {
        RAVEL_ASSERT(rank[i] >= 0 && rank[i] < groups);
        rank[i] = c.rank[rank[i]];
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- a pool per rank ------------------------------------------------------------------------------------------ */

static ravel_status make_slices(const ravel__job *job, const int32_t *rank, slices *s) {
    const ravel__pool *pool = job->pool;
    size_t n = (size_t)pool->count, dp = (size_t)job->dp;
    ravel__arena *arena = job->arena;
    memset(s, 0, sizeof *s);
    s->all.row = ravel__arena_push(arena, n, sizeof *s->all.row);
    s->all.slot = ravel__arena_push(arena, n, sizeof *s->all.slot);
    s->all.cost = ravel__arena_push(arena, n, sizeof *s->all.cost);
    if (pool->prompt) s->all.prompt = ravel__arena_push(arena, n, sizeof *s->all.prompt);
    s->from = ravel__arena_push(arena, n, sizeof *s->from);
    s->bin = ravel__arena_push(arena, n, sizeof *s->bin);
    s->start = ravel__arena_push(arena, dp + 2, sizeof *s->start);
    s->rank_bins = ravel__arena_push(arena, dp, sizeof *s->rank_bins);
    if (!s->all.row || !s->all.slot || !s->all.cost || (pool->prompt && !s->all.prompt) || !s->from || !s->bin ||
        !s->start || !s->rank_bins)
        return no_memory(job, n * 28);
    memset(s->start, 0, (dp + 2) * sizeof *s->start);
    for (int32_t i = 0; i < pool->count; i++) {
        RAVEL_ASSERT(rank[i] >= 0 && rank[i] < job->dp);
        s->start[rank[i] + 2]++;
    }
    for (size_t r = 0; r < dp; r++) s->start[r + 2] += s->start[r + 1];
    RAVEL_ASSERT(s->start[dp + 1] == pool->count);
    for (int32_t i = 0; i < pool->count; i++) {
        int32_t at = s->start[rank[i] + 1]++;
        s->from[at] = i;
        s->all.row[at] = pool->row[i];
        s->all.slot[at] = pool->slot[i];
        s->all.cost[at] = pool->cost[i];
        if (pool->prompt) s->all.prompt[at] = pool->prompt[i];
    }
    return RAVEL_OK;
}

static ravel__pool slice(const slices *s, int32_t rank) {
    int32_t at = s->start[rank];
    RAVEL_ASSERT(at <= s->start[rank + 1]);
    ravel__pool pool = {s->start[rank + 1] - at, s->all.row + at, s->all.slot + at,
                        s->all.prompt ? s->all.prompt + at : NULL, s->all.cost + at};
    return pool;
}

/* The default method: the rank's samples spread evenly over its micro-steps where the cap allows, largest bin first, so
 * that a micro-step's bins are alike over the ranks. */
static ravel_status fill_evenly(const ravel__job *job, const slices *s, int32_t rank, int32_t steps,
                                ravel__lists *lists) {
    ravel__basis basis = {job, s->bin + s->start[rank], s->rank_bins[rank], steps, 3, 48};
    int made = 0;
    ravel_status status = RAVEL_OK;
    if (job->rules->options.layout == RAVEL_LAYOUT_PACKED)
        status = ravel__start_make(&basis, RAVEL__START_COSTS, lists, &made);
    if (status || made) return status;
    status = ravel__lists_make(job, basis.packed, basis.packed_bins, steps, lists);
    return status ? status : ravel__lists_split(job, lists, steps);
}

static ravel_status fill_rank(const ravel__job *job, const slices *s, int32_t rank, int32_t steps, int32_t *step_of,
                              ravel__lists *lists) {
    ravel_status status;
    for (int32_t i = 0; i < steps; i++) step_of[i] = i;
    if (job->method != RAVEL_METHOD_RAVEL) {
        status = ravel__lists_make(job, s->bin + s->start[rank], s->rank_bins[rank], steps, lists);
        return status || !ravel__methods[job->method].splits ? status : ravel__lists_split(job, lists, steps);
    }
    status = fill_evenly(job, s, rank, steps, lists);
    int32_t *order = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *order);
    if (status || !order) return no_memory(job, (size_t)steps * sizeof *order);
    status = ravel__lists_order(job, lists, order);
    for (int32_t i = 0; !status && i < lists->bins; i++) step_of[order[i]] = i;
    return status;
}

static ravel_status seat_rank(const ravel__job *job, const slices *s, int32_t rank, int32_t steps, int32_t *seat) {
    ravel__pool pool = slice(s, rank);
    ravel__job one = *job;
    one.pool = &pool;
    one.dp = 1;
    ravel__lists lists = {0, NULL, NULL, NULL};
    int32_t *step_of = ravel__arena_push(job->arena, (size_t)steps, sizeof *step_of);
    if (!step_of) return no_memory(job, (size_t)steps * sizeof *step_of);
    ravel_status status = fill_rank(&one, s, rank, steps, step_of, &lists);
    RAVEL_ASSERT(status || lists.bins <= steps);
    for (int32_t b = 0; !status && b < lists.bins; b++)
        for (int32_t i = 0; i < lists.bin[b].rows; i++)
            seat[s->from[s->start[rank] + lists.items[lists.start[b] + i]]] = step_of[b] * job->dp + rank;
    return status;
}

/* ---- front -------------------------------------------------------------------------------------------------- */

static ravel_status pack_rank(const ravel__job *job, int32_t *bin, int32_t *bins) {
    if (job->method != RAVEL_METHOD_RAVEL) return ravel__methods[job->method].pack(job, bin, bins);
    if (job->rules->options.layout != RAVEL_LAYOUT_PACKED) return ravel__pack_bfd(job, bin, bins);
    return ravel__pack_fewest(job, job->limits->thorough, bin, bins);
}

static ravel_status pack_ranks(const ravel__job *job, slices *s, ravel__solution *solution) {
    ravel_status status = RAVEL_OK;
    for (int32_t r = 0; !status && r < job->dp; r++) {
        ravel__pool pool = slice(s, r);
        ravel__job one = *job;
        one.pool = &pool;
        one.dp = 1;
        ravel__job_bound(&one);
        s->rank_bins[r] = 0;
        if (pool.count) status = pack_rank(&one, s->bin + s->start[r], &s->rank_bins[r]);
        int64_t steps = ravel__steps_for(job->rules, s->rank_bins[r], 1);
        RAVEL_ASSERT(status || s->rank_bins[r] <= pool.count);
        if (steps > solution->steps) solution->steps = steps;
        solution->bins_packed += s->rank_bins[r];
    }
    if (!status && solution->steps * job->dp > RAVEL__MOST_BINS)
        return ravel_error_set(job->err, RAVEL_E_OVERFLOW,
                               "groups on ranks need %lld micro-steps on %d ranks; a plan has at most 2^30 bins",
                               (long long)solution->steps, job->dp);
    return status;
}

ravel_status ravel__solve_ranks(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    slices s;
    solution->steps = 0;
    solution->bins_packed = 0;
    ravel_status status = choose_ranks(job, seat);
    if (!status) status = make_slices(job, seat, &s);
    if (!status) status = pack_ranks(job, &s, solution);
    for (int32_t r = 0; !status && r < job->dp; r++) {
        ravel__mark mark = ravel__arena_mark(job->arena);
        status = seat_rank(job, &s, r, (int32_t)solution->steps, seat);
        ravel__arena_rewind(job->arena, mark);
    }
    return status;
}
