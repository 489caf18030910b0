/* One update: from a pool of samples to a seat (micro-step, rank) for each. */
#include "plan/internal.h"

#include "base/sort.h"

/* Bins in the order in which the method made them: bin b is micro-step b / dp of rank b % dp. */
static void seat_in_order(const ravel__lists *lists, int32_t *seat) {
    for (int32_t b = 0; b < lists->bins; b++)
        for (int32_t i = 0; i < lists->bin[b].rows; i++) seat[lists->items[lists->start[b] + i]] = b;
}

static ravel_status pack_and_split(const ravel__job *job, int32_t *bin, ravel__lists *lists,
                                   ravel__solution *solution) {
    const ravel__method *method = &ravel__methods[job->method];
    int32_t bins;
    ravel_status status = (method->pack ? method->pack : ravel__pack_bfd)(job, bin, &bins);
    if (status) return status;
    solution->bins_packed = bins;
    solution->steps = ravel__steps_for(job->rules, bins, job->dp);
    int32_t target = (int32_t)(solution->steps * job->dp);
    status = ravel__lists_make(job, bin, bins, target, lists);
    if (!status && method->splits) status = ravel__lists_split(job, lists, target);
    return status;
}

ravel_status ravel__solve(const ravel__job *job, int32_t *seat, ravel__solution *solution) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__lists lists;
    ravel_status status;
    if (job->rules->options.group_rule == RAVEL_GROUPS_RANK && job->dp > 1) {
        status = ravel__solve_ranks(job, seat, solution);
    } else {
        status = pack_and_split(job, seat, &lists, solution);
        if (!status) seat_in_order(&lists, seat);
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}
