#include "bench/plan_job.h"

#include "bench/bench.h"

#include <string.h>

void plan_job_begin(plan_job *j, const int64_t *lengths, int64_t count, int64_t budget) {
    memset(j, 0, sizeof *j);
    j->input = (ravel_plan_input){.size = sizeof j->input, .count = count, .lengths = lengths};
    ravel_plan_options_default(&j->options);
    j->options.budget = budget;
    j->options.cost = (ravel_cost){24576, 1, 0};
}

void plan_job_run(void *user) {
    plan_job *j = user;
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    j->status = ravel_plan_create(&j->input, &j->options, &plan, &err);
    if (j->status != RAVEL_OK) {
        bench_note("%s", err.message);
        return;
    }
    j->stats = plan->stats;
    ravel_plan_free(plan);
}
