/* One update: from a pool of samples to a seat (micro-step, rank) for each. */
#include "plan/internal.h"

#include <string.h>

/* ---- time ------------------------------------------------------------------------------------------------------ */

/* Bins of all samples, then the dearest of each micro-step, or the dearest rank. */
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

ravel_status ravel__seat_time(const ravel__job *job, const int32_t *seat, int64_t steps, int64_t *time) {
    size_t bins = (size_t)(steps * job->dp);
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__bin *bin = ravel__arena_push(job->arena, bins, sizeof *bin);
    if (!bin) return ravel__no_memory(job->err, bins * sizeof *bin, "timing a plan");
    memset(bin, 0, bins * sizeof *bin);
    for (int32_t i = 0; i < job->pool->count; i++) ravel__bin_add(job->rules, job->pool, &bin[seat[i]], i);
    *time = time_of(bin, steps, job->dp, job->rules->options.sync);
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- methods by name --------------------------------------------------------------------------------------------- */

/* Bins in the order in which the method made them: bin b is micro-step b / dp of rank b % dp. */
static ravel_status pack_and_split(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    const ravel__method *method = &ravel__methods[job->method];
    ravel__lists lists;
    int32_t bins;
    ravel_status status = (method->pack ? method->pack : ravel__pack_bfd)(job, seat, &bins);
    if (status) return status;
    solution->bins_packed = bins;
    solution->steps = ravel__steps_for(job->rules, bins, job->dp);
    int32_t target = (int32_t)(solution->steps * job->dp);
    status = ravel__lists_make(job, seat, bins, target, &lists);
    if (!status && method->splits) status = ravel__lists_split(job, &lists, target);
    if (!status) ravel__lists_bins(&lists, seat);
    return status;
}

ravel_status ravel__solve(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status;
    if (job->rules->options.group_rule == RAVEL_GROUPS_RANK && job->dp > 1)
        status = ravel__solve_ranks(job, seat, solution);
    else if (job->method == RAVEL_METHOD_RAVEL && job->rules->options.layout == RAVEL_LAYOUT_PACKED)
        status = ravel__solve_packed(job, seat, solution);
    else
        status = pack_and_split(job, seat, solution);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
