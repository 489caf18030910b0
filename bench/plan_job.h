/* One plan of given lengths, as the planner's benches time it. */
#ifndef BENCH_PLAN_JOB_H
#define BENCH_PLAN_JOB_H

#include <ravel/plan.h>

typedef struct plan_job {
    ravel_plan_input input;
    ravel_plan_options options; /* cost 24576:1 without overhead; the rest are defaults */
    ravel_plan_stats stats;     /* of the last run */
    ravel_status status;
} plan_job;

/* `lengths` is borrowed. */
void plan_job_begin(plan_job *job, const int64_t *lengths, int64_t count, int64_t budget);
/* For bench_best: `user` is a plan_job. A failure is a note under the table. */
void plan_job_run(void *user);

#endif
