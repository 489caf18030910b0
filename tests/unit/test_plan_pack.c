/* What planning may allocate. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include <stdlib.h>

typedef struct meter {
    int64_t live, peak, calls;
} meter;

static void *metered(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    meter *m = user;
    m->calls++;
    m->live += (int64_t)new_bytes - (int64_t)old_bytes;
    if (m->live > m->peak) m->peak = m->live;
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

TEST(plan_workspace_bounds_what_planning_allocates) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 42);
    static plan_case c;
    for (int64_t i = 0; i < check_rounds(1500, 100000); i++) {
        meter m = {0, 0, 0};
        ravel_allocator allocator = {metered, &m};
        ravel_plan *plan = NULL;
        plan_case_draw(&c, &rng, i % 8 ? 60 : PLAN_CASE_SAMPLES);
        if (c.input.updates) c.options.updates = c.options.updates > 3 ? c.options.updates : 3;
        if (c.input.updates && c.input.count < 4) c.input.updates = NULL;
        if (i % 4 == 0) {
            c.options.cp_pool = 1 + (int32_t)ravel__rng_below(&rng, 64);
            c.options.dp = c.options.cp = 1;
            c.options.sync = c.options.layout = c.options.method = c.options.group_rule = 0;
            c.input.homes = NULL;
        }
        c.options.allocator = &allocator;
        (void)ravel_plan_create(&c.input, &c.options, &plan, NULL);
        size_t most = ravel_plan_workspace(c.input.count, &c.options);
        if (m.peak > (int64_t)most)
            printf("    %lld samples, dp %d, effort %d: %lld bytes, not %zu\n", (long long)c.input.count, c.options.dp,
                   c.options.effort, (long long)m.peak, most);
        CHECK(m.peak <= (int64_t)most);
        ravel_plan_free(plan);
        CHECK_EQ(m.live, 0);
    }
}

TEST(plan_max_makes_few_allocations) {
    enum { COUNT = 20000 };
    static int64_t lengths[COUNT];
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < COUNT; i++) lengths[i] = 1 + (int64_t)ravel__rng_below(&rng, 8192);
    meter m = {0, 0, 0};
    ravel_allocator allocator = {metered, &m};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = 8;
    o.effort = RAVEL_EFFORT_MAX;
    o.allocator = &allocator;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK(m.calls < 1000);
    CHECK(m.peak <= (int64_t)ravel_plan_workspace(COUNT, &o) / 2);
    ravel_plan_free(plan);
}
