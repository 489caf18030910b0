/* After the bins, or before them: which rank.
 *
 * Groups that stay on one rank are dealt to the ranks by what they cost with their own prefixes shared, largest first;
 * then each rank is planned by itself, all with the same number of micro-steps.
 *
 * Otherwise bins are made first, and dealt to ranks (balance.c). Then homes and pipelines are served as in any plan
 * (balance/place.c), which is told what each sample costs in its bin. */
#include "plan/tree/tree.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

static ravel_status memory_of(const ravel__tree_job *job) {
    return ravel__arena_status(job->arena, "placing trees on ranks", job->err);
}

/* ---- samples in their bins -------------------------------------------------------------------------------------- */

typedef struct lists {
    int32_t *start;  /* [bins + 1] */
    int32_t *sample; /* [count] by bin, in tree order */
    int64_t *shared; /* [count] with the one before in the bin */
} lists;

static ravel_status list_bins(const ravel__tree_job *job, const int32_t *bin, int32_t bins, lists *l) {
    size_t n = (size_t)job->count;
    RAVEL__PUSH(job->arena, l->start, (size_t)bins + 1);
    RAVEL__PUSH(job->arena, l->sample, n);
    RAVEL__PUSH(job->arena, l->shared, n);
    if (job->arena->missing) return memory_of(job);
    memset(l->start, 0, ((size_t)bins + 1) * sizeof *l->start);
    for (int32_t i = 0; i < job->count; i++) l->start[bin[i] + 1]++;
    for (int32_t b = 0; b < bins; b++) l->start[b + 1] += l->start[b];
    ravel__tree_order tree = {job->count, job->shared, NULL};
    ravel_status status = ravel__tree_walk(&tree, bin, bins, l->start, job->arena, l->sample, l->shared, job->err);
    for (int32_t b = bins; b > 0; b--) l->start[b] = l->start[b - 1]; /* the walk moved them on */
    l->start[0] = 0;
    return status;
}

static int64_t own_cost(const ravel__tree_job *job, const lists *l, int32_t at) {
    return ravel__sample_cost(job->rules, job->input, job->rows[l->sample[at]]) -
           ravel__cost_of(job->rules, l->shared[at]);
}

ravel_status ravel__tree_pool(const ravel__tree_job *job, const int32_t *seat, int64_t bins, ravel__pool *pool) {
    lists l;
    size_t n = (size_t)job->count;
    *pool = (ravel__pool){.count = job->count};
    RAVEL__PUSH(job->arena, pool->row, n);
    RAVEL__PUSH(job->arena, pool->slot, n);
    RAVEL__PUSH(job->arena, pool->cost, n);
    ravel_status status = list_bins(job, seat, (int32_t)bins, &l);
    for (int32_t at = 0; !status && at < job->count; at++) {
        int32_t i = l.sample[at];
        pool->row[i] = job->rows[i];
        pool->slot[i] = 0;
        pool->cost[i] = own_cost(job, &l, at);
    }
    return status;
}

/* ---- homes and pipelines ---------------------------------------------------------------------------------------- */

ravel_status ravel__tree_place(const ravel__tree_job *job, int64_t steps, int32_t *seat) {
    const ravel_plan_options *o = &job->rules->options;
    if (o->sync == RAVEL_SYNC_MICRO_STEP && !job->input->homes) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__pool pool;
    ravel_status status = ravel__tree_pool(job, seat, steps * o->dp, &pool);
    if (!status) {
        ravel__job place = {.rules = job->rules,
                            .pool = &pool,
                            .input = job->input,
                            .arena = job->arena,
                            .err = job->err,
                            .dp = o->dp,
                            .limits = ravel__search_limits_for(o->effort, job->count, 0),
                            .ranks = job->ranks};
        status = ravel__place(&place, steps, seat);
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- groups to ranks -------------------------------------------------------------------------------------------- */

/* Largest cost first, each to the rank with the least; ties by number. */
static ravel_status deal_groups(const ravel__tree_job *job, const int64_t *cost, int32_t groups, int32_t *rank_of) {
    int32_t dp = job->rules->options.dp;
    size_t n = (size_t)groups;
    int64_t *total = ravel__arena_push(job->arena, (size_t)dp, sizeof *total);
    uint64_t *key = ravel__arena_push(job->arena, n, 8), *spare = ravel__arena_push(job->arena, n, 8);
    int32_t *order = ravel__arena_push(job->arena, n, 4), *spare_order = ravel__arena_push(job->arena, n, 4);
    if (job->arena->missing) return memory_of(job);
    memset(total, 0, (size_t)dp * sizeof *total);
    for (int32_t g = 0; g < groups; g++) {
        key[g] = ~(uint64_t)cost[g];
        order[g] = g;
    }
    ravel__sort_u64(key, order, spare, spare_order, n);
    for (int32_t i = 0; i < groups; i++) {
        int32_t least = 0;
        for (int32_t r = 1; r < dp; r++)
            if (total[r] < total[least]) least = r;
        rank_of[order[i]] = least;
        total[least] += cost[order[i]];
    }
    return RAVEL_OK;
}

/* rank[count] of each sample. */
static ravel_status choose_ranks(const ravel__tree_job *job, int32_t *rank) {
    size_t n = (size_t)job->count;
    for (int32_t i = 0; job->ranks && i < job->count; i++) rank[i] = job->ranks[job->rows[i]];
    if (job->ranks) return RAVEL_OK;
    int32_t groups, *group = ravel__arena_push(job->arena, n, sizeof *group);
    if (!group) return memory_of(job);
    ravel_status status = ravel__groups_number(job->input, job->rows, job->count, job->arena, group, &groups, job->err);
    if (status) return status;
    lists l;
    int64_t *cost = ravel__arena_push(job->arena, (size_t)groups, sizeof *cost);
    int32_t *rank_of = ravel__arena_push(job->arena, (size_t)groups, sizeof *rank_of);
    status = list_bins(job, group, groups, &l);
    for (int32_t g = 0; !status && g < groups; g++) {
        cost[g] = 0;
        for (int32_t at = l.start[g]; at < l.start[g + 1]; at++) cost[g] += own_cost(job, &l, at);
    }
    if (!status) status = deal_groups(job, cost, groups, rank_of);
    for (int32_t i = 0; !status && i < job->count; i++) rank[i] = rank_of[group[i]];
    return status;
}

/* What a rank plans by itself. */
typedef struct rank_job {
    ravel__rules rules;
    ravel__tree_job job;
} rank_job;

static void set_rank(const ravel__tree_job *job, const lists *l, int32_t rank, int32_t *rows, rank_job *r) {
    r->rules = *job->rules;
    r->rules.options.dp = r->rules.options.multiple = 1;
    r->rules.options.min_micro_steps = 0;
    r->rules.options.group_rule = RAVEL_GROUPS_FREE;
    r->rules.steps_done = 0;
    r->rules.by_time = 0;
    r->job = *job;
    r->job.rules = &r->rules;
    r->job.rows = rows;
    r->job.shared = l->shared + l->start[rank];
    r->job.count = l->start[rank + 1] - l->start[rank];
    r->job.ranks = NULL;
    for (int32_t i = 0; i < r->job.count; i++) rows[i] = job->rows[l->sample[l->start[rank] + i]];
}

/* Each rank into as few bins as it can; own[] by the list. *most: of any rank. */
static ravel_status solve_each(const ravel__tree_job *job, const lists *l, int32_t *rows, int32_t *own, int64_t *most,
                               ravel__solution *solution) {
    int32_t dp = job->rules->options.dp;
    ravel_status status = RAVEL_OK;
    *most = solution->bins_packed = 0;
    for (int32_t r = 0; !status && r < dp && *most * dp <= RAVEL__MOST_BINS; r++) {
        rank_job one;
        ravel__solution found = {0, 0};
        ravel__tree_bound bound = {0};
        set_rank(job, l, r, rows, &one);
        if (one.job.count) status = ravel__tree_solve(&one.job, own + l->start[r], &found, &bound);
        solution->bins_packed += found.bins_packed;
        if (found.steps > *most) *most = found.steps;
    }
    return status;
}

ravel_status ravel__tree_solve_ranks(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution) {
    int32_t dp = job->rules->options.dp;
    size_t n = (size_t)job->count;
    lists l;
    int64_t most = 0;
    int32_t *rank = ravel__arena_push(job->arena, n, sizeof *rank);
    int32_t *rows = ravel__arena_push(job->arena, n, sizeof *rows),
            *own = ravel__arena_push(job->arena, n, sizeof *own);
    if (job->arena->missing) return memory_of(job);
    ravel_status status = choose_ranks(job, rank);
    if (!status) status = list_bins(job, rank, dp, &l);
    if (!status) status = solve_each(job, &l, rows, own, &most, solution);
    solution->steps = ravel__steps_for(job->rules, most * dp, dp);
    if (status || solution->steps * dp > RAVEL__MOST_BINS) return status; /* the caller says so */
    for (int32_t r = 0; !status && r < dp; r++) {
        rank_job one;
        set_rank(job, &l, r, rows, &one);
        if (one.job.count) status = ravel__tree_fill_rank(&one.job, solution->steps, own + l.start[r]);
        for (int32_t i = l.start[r]; !status && i < l.start[r + 1]; i++) seat[l.sample[i]] = own[i] * dp + r;
    }
    return status;
}
