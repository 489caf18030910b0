#include <ravel/ravel.h>
#include <assert.h>
#include <stdio.h>

static int64_t used;
static void use(int32_t sample) {
    used += sample >= 0;
}
static const int64_t lengths[] = {5, 300, 16384, 700, 20, 9000, 8000, 1};
enum { n = 8, my_rank = 0 };

static int base(const ravel_plan_input input, const ravel_plan_options options) {
    //@ include/ravel/base.h 1
    return 0;
}

static int plan_header(void) {
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    //@ include/ravel/plan.h 1
    assert(used >= 1 && plan->dp == 16);
    ravel_plan_free(plan);
    return base(input, options);
}

static int manual(void) {
    //@ docs/plan.md 1
    assert(plan->stats.samples == n);
    ravel_plan_free(plan);
    return 0;
}

static int tree(void) {
    static const int32_t ids[] = {1, 2, 3, 1, 2, 4, 5, 1, 2};
    static const int64_t offsets[] = {0, 3, 7, 9}, lengths[] = {3, 4, 2};
    enum { n = 3 };
    int32_t order[n];
    int64_t shared[n];
    ravel_error err = RAVEL_ERROR_INIT;
    //@ include/ravel/tree.h 1
    assert(!err.status && order[2] == 2 && shared[1] == 2 && shared[2] == 2 && input.count == n);
    return 0;
}

static int arrived;
static int rollouts_arrive(const int64_t **ids, ravel_plan_input *input) {
    static const int64_t names[n] = {0, 1, 2, 3, 4, 5, 6, 7};
    *ids = names;
    *input = (ravel_plan_input){.size = sizeof *input, .count = n, .lengths = lengths};
    return arrived++ < 1;
}
static void run(const ravel_plan *plan) {
    used += plan->stats.samples;
}

static int planner(void) {
    ravel_plan_options options;
    ravel_plan_options_default(&options);
    options.budget = 16384;
    ravel_plan_input input;
    const int64_t *ids;
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    used = 0;
    //@ include/ravel/plan.h 2
    if (plan) run(plan);
    assert(used == n);
    return 0;
}

static int option(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    //@ include/ravel/options.h 1
    assert(options.budget == 16384 && !err.status);
    return 0;
}

//@ include/ravel/report.h 1 :functions

static int report(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options options;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&options);
    options.budget = 16384;
    const ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = lengths};
    FILE *file = fopen("plan.html", "w");
    if (!file || ravel_plan_create(&input, &options, &plan, &err)) return 1;
    //@ include/ravel/report.h 1 :statements
    assert(!err.status && ftell(file) > 1000);
    ravel_plan_free(plan);
    return fclose(file);
}

int main(void) {
    return plan_header() || manual() || planner() || tree() || option() || report();
}
