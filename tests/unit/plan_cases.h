/* Random inputs and options for the planner's property tests: ordinary ones, and hostile ones. */
#ifndef TESTS_PLAN_CASES_H
#define TESTS_PLAN_CASES_H

#include "base/rng.h"

#include <ravel/plan.h>

enum { PLAN_CASE_SAMPLES = 400 };

typedef struct plan_case {
    ravel_plan_input input;
    ravel_plan_options options;
    int64_t lengths[PLAN_CASE_SAMPLES], prompts[PLAN_CASE_SAMPLES], responses[PLAN_CASE_SAMPLES];
    int64_t costs[PLAN_CASE_SAMPLES], groups[PLAN_CASE_SAMPLES];
    int32_t updates[PLAN_CASE_SAMPLES], homes[PLAN_CASE_SAMPLES];
} plan_case;

/* A valid case: every sample fits or is skipped. The struct points into itself. */
void plan_case_draw(plan_case *c, ravel__rng *rng, int32_t most);

/* A planner whose micro-steps are taken when they are this full. */
ravel_status planner_with_fill(const ravel_plan_options *options, double fill, ravel_planner **planner,
                               ravel_error *err);

/* The lognormal mock set: mu = ln(mean) - sigma^2 / 2, clipped. */
void plan_lognormal(int64_t *lengths, int64_t count, double mean, double sigma, int64_t low, int64_t high,
                    uint64_t seed);

#endif
