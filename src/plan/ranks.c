/* Groups that stay on one rank: groups are dealt to ranks by cost, then every rank is planned on its own, all with the
 * same number of micro-steps.
 *
 *     pool  ->  [ samples of rank 0 | rank 1 | ... ]   each slice a pool of its own, longest first */
#include "plan/internal.h"

#include "base/sort.h"

#include <string.h>

typedef struct slices {
    ravel__pool all; /* the pool again, rank by rank */
    int32_t *from;   /* index in the pool it came from */
    int32_t *bin;    /* inside the rank */
    int32_t *rank_bins;
    int32_t *start; /* [dp + 1] */
} slices;

static ravel_status short_of(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "planning groups on ranks");
}

/* ---- groups to ranks ---------------------------------------------------------------------------------------- */

/* Dearest group first to the cheapest rank; `group` becomes the rank of each sample. */
static ravel_status deal_groups(const ravel__job *job, int32_t *group, int32_t groups) {
    size_t n = (size_t)groups, dp = (size_t)job->dp;
    uint64_t *key = ravel__arena_push(job->arena, n, 8), *spare = ravel__arena_push(job->arena, n, 8);
    int32_t *order = ravel__arena_push(job->arena, n, 4), *spare_order = ravel__arena_push(job->arena, n, 4);
    int64_t *total = ravel__arena_push(job->arena, dp, 8), *cost = ravel__arena_push(job->arena, n, 8);
    int32_t *rank_of = ravel__arena_push(job->arena, n, 4);
    if (!key || !spare || !order || !spare_order || !total || !cost || !rank_of) return short_of(job, n * 36);
    memset(cost, 0, n * sizeof *cost);
    memset(total, 0, dp * sizeof *total);
    for (int32_t i = 0; i < job->pool->count; i++) cost[group[i]] += job->pool->cost[i];
    for (int32_t g = 0; g < groups; g++) {
        key[g] = ~(uint64_t)cost[g];
        order[g] = g;
    }
    ravel__sort_u64(key, order, spare, spare_order, n);
    for (int32_t i = 0; i < groups; i++) {
        int32_t best = 0;
        for (int32_t r = 1; r < job->dp; r++)
            if (total[r] < total[best]) best = r;
        total[best] += cost[order[i]] + 1;
        rank_of[order[i]] = best;
    }
    for (int32_t i = 0; i < job->pool->count; i++) group[i] = rank_of[group[i]];
    return RAVEL_OK;
}

static ravel_status choose_ranks(const ravel__job *job, int32_t *rank) {
    int32_t groups;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status =
        ravel__groups_number(job->input, job->pool->row, job->pool->count, job->arena, rank, &groups, job->err);
    if (!status) status = deal_groups(job, rank, groups);
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- a pool a rank ------------------------------------------------------------------------------------------ */

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
        return short_of(job, n * 28);
    memset(s->start, 0, (dp + 2) * sizeof *s->start);
    for (int32_t i = 0; i < pool->count; i++) s->start[rank[i] + 2]++;
    for (size_t r = 0; r < dp; r++) s->start[r + 2] += s->start[r + 1];
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
    ravel__pool pool = {s->start[rank + 1] - at, s->all.row + at, s->all.slot + at,
                        s->all.prompt ? s->all.prompt + at : NULL, s->all.cost + at};
    return pool;
}

/* Dearest bin first, so that a micro-step's bins are alike over the ranks; other methods keep their order. */
static ravel_status order_bins(const ravel__job *job, const ravel__lists *lists, int32_t *step) {
    int32_t *order = ravel__arena_push(job->arena, (size_t)lists->bins, sizeof *order);
    if (!order) return short_of(job, (size_t)lists->bins * sizeof *order);
    for (int32_t i = 0; i < lists->bins; i++) order[i] = i;
    ravel_status status = job->method == RAVEL_METHOD_RAVEL ? ravel__lists_order(job, lists, order) : RAVEL_OK;
    for (int32_t i = 0; !status && i < lists->bins; i++) step[order[i]] = i;
    return status;
}

static ravel_status seat_rank(const ravel__job *job, slices *s, int32_t rank, int32_t steps, int32_t *seat) {
    ravel__pool pool = slice(s, rank);
    ravel__job one = *job;
    one.pool = &pool;
    one.dp = 1;
    ravel__lists lists;
    int32_t *step = ravel__arena_push(job->arena, (size_t)steps, sizeof *step);
    if (!step) return short_of(job, (size_t)steps * sizeof *step);
    ravel_status status = ravel__lists_make(&one, s->bin + s->start[rank], s->rank_bins[rank], steps, &lists);
    if (!status && ravel__methods[job->method].splits) status = ravel__lists_split(&one, &lists, steps);
    if (!status) status = order_bins(&one, &lists, step);
    for (int32_t b = 0; !status && b < lists.bins; b++)
        for (int32_t i = 0; i < lists.bin[b].rows; i++)
            seat[s->from[s->start[rank] + lists.items[lists.start[b] + i]]] = step[b] * job->dp + rank;
    return status;
}

/* ---- front -------------------------------------------------------------------------------------------------- */

static ravel_status pack_ranks(const ravel__job *job, slices *s, ravel__solution *solution) {
    ravel__pack_fn *pack = ravel__methods[job->method].pack ? ravel__methods[job->method].pack : ravel__pack_bfd;
    ravel_status status = RAVEL_OK;
    for (int32_t r = 0; !status && r < job->dp; r++) {
        ravel__pool pool = slice(s, r);
        ravel__job one = *job;
        one.pool = &pool;
        one.dp = 1;
        one.bound = ravel__bins_bound(job->rules, &pool);
        s->rank_bins[r] = 0;
        if (pool.count) status = pack(&one, s->bin + s->start[r], &s->rank_bins[r]);
        int64_t steps = ravel__steps_for(job->rules, s->rank_bins[r], 1);
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
