/* One update of prefix trees: from samples in tree order to a seat (micro-step, rank) for each. */
#include "plan/tree/tree.h"

#include "base/assert.h"

#include <string.h>

static ravel_status no_memory(const ravel__tree_job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "planning trees");
}

/* ---- methods by name -------------------------------------------------------------------------------------------- */

/* A method that knows no trees makes its bins as if nothing were shared. They hold less than they could. */
static ravel_status solve_flat(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__pool pool;
    size_t n = (size_t)job->count;
    int32_t *local =
        ravel__arena_push(job->arena, (size_t)job->input->count, sizeof *local); /* only rows are written */
    int32_t *own = ravel__arena_push(job->arena, n, sizeof *own);
    if (!local || !own) return no_memory(job, (size_t)job->input->count * 4 + n * 4);
    ravel_status status = ravel__pool_make(job->rules, job->input, job->rows, job->count, job->arena, &pool, job->err);
    if (status) return status;
    ravel__job flat = ravel__job_for(job->rules, job->input, &pool, job->arena, job->err);
    flat.ranks = job->ranks;
    status = ravel__solve(&flat, own, solution);
    for (int32_t i = 0; i < job->count; i++) local[job->rows[i]] = i;
    for (int32_t i = 0; !status && i < job->count; i++) seat[local[pool.row[i]]] = own[i];
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- the order, cut --------------------------------------------------------------------------------------------- */

/* As few micro-steps as the cut allows, then the least largest cost. */
static ravel_status solve_cut(const ravel__tree_job *job, const ravel__forest *f, int32_t *bin,
                              ravel__solution *solution) {
    int32_t dp = job->rules->options.dp;
    solution->bins_packed = ravel__tree_cut(f, INT64_MAX, INT32_MAX - 1, NULL);
    solution->steps = ravel__steps_for(job->rules, solution->bins_packed, dp);
    if (solution->steps * dp > RAVEL__MOST_BINS) return RAVEL_OK; /* the caller says so */
    int32_t bins = (int32_t)(solution->steps * dp);
    int64_t low = 0, high = 0;
    for (int32_t i = 0; i < f->count; i++) {
        high += f->cost[i] - f->twice[i];
        if (f->cost[i] > low) low = f->cost[i];
    }
    high = high * 2 + low;
    while (ravel__tree_cut(f, high, bins, NULL) > bins) high *= 2;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (ravel__tree_cut(f, mid, bins, NULL) <= bins)
            high = mid;
        else
            low = mid + 1;
    }
    (void)ravel__tree_cut(f, high, bins, bin);
    return RAVEL_OK;
}

/* ---- front ------------------------------------------------------------------------------------------------------ */

ravel_status ravel__tree_solve(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution,
                               ravel__tree_bound *bound) {
    const ravel__rules *rules = job->rules;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__forest forest;
    ravel_status status =
        ravel__forest_make(rules, job->input, job->rows, job->shared, job->count, job->arena, &forest, job->err);
    if (!status) status = ravel__forest_bound(&forest, rules->options.dp, job->arena, bound, job->err);
    if (status) return status;
    int32_t *bin = ravel__arena_push(job->arena, (size_t)forest.count, sizeof *bin);
    if (!bin) return no_memory(job, (size_t)forest.count * sizeof *bin);
    if (rules->options.method != RAVEL_METHOD_RAVEL || rules->options.group_rule == RAVEL_GROUPS_RANK || !job->count) {
        status = solve_flat(job, seat, solution);
    } else {
        status = solve_cut(job, &forest, bin, solution);
        for (int32_t i = 0; i < job->count; i++) seat[i] = bin[forest.leaf[i]];
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}
