/* What is minimised, what align comes to, and inputs that must not take quadratic time. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include <stdlib.h>

static ravel_plan *make(const ravel_plan_input *in, const ravel_plan_options *o) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(in, o, &plan, &err) == RAVEL_OK && ravel_plan_check(in, o, plan, &err) == RAVEL_OK)
        return plan;
    printf("    %s\n", err.message);
    ravel_plan_free(plan);
    return NULL;
}

/* ---- objective ---------------------------------------------------------------------------------------------- */

/* Short, long and middling samples that fill their bins: where one more micro-step often balances better. */
static void draw_small(ravel__rng *rng, int64_t *lengths, int64_t count, ravel_plan_options *o) {
    ravel_plan_options_default(o);
    o->budget = 1000;
    o->dp = 2 + (int32_t)ravel__rng_below(rng, 3);
    o->sync = (int32_t)ravel__rng_below(rng, 2);
    o->cost = (ravel_cost){1, 1, 1 + (int64_t)ravel__rng_below(rng, 100000)};
    for (int64_t i = 0; i < count; i++)
        lengths[i] = ravel__rng_below(rng, 3) ? 1 + (int64_t)ravel__rng_below(rng, 300)
                                              : 600 + (int64_t)ravel__rng_below(rng, 400);
}

TEST(plan_takes_another_micro_step_where_that_is_faster) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 21);
    int64_t runs = check_scale(600, 30000), longer = 0;
    for (int64_t i = 0; i < runs; i++) {
        int64_t lengths[24], count = 4 + (int64_t)ravel__rng_below(&rng, 20);
        ravel_plan_options o;
        draw_small(&rng, lengths, count, &o);
        ravel_plan_input in = {.size = sizeof in, .count = count, .lengths = lengths};
        ravel_plan *plan = make(&in, &o), *fewest, *forced;
        o.objective = RAVEL_OBJECTIVE_STEPS;
        fewest = make(&in, &o);
        CHECK(plan && fewest);
        o.min_micro_steps = fewest->micro_steps + 1;
        forced = make(&in, &o);
        CHECK(forced);
        CHECK(plan->stats.time <= fewest->stats.time && plan->stats.time <= forced->stats.time);
        CHECK(fewest->micro_steps <= plan->micro_steps);
        longer += plan->micro_steps > fewest->micro_steps;
        ravel_plan_free(plan);
        ravel_plan_free(fewest);
        ravel_plan_free(forced);
    }
    CHECK(longer > 0); /* about one in 60 */
}

TEST(plan_without_an_overhead_minimises_micro_steps_first) {
    const int64_t lengths[] = {900, 500, 500, 100};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1000;
    o.dp = 2;
    o.cost = (ravel_cost){1, 1, 0};
    ravel_plan_input in = {.size = sizeof in, .count = 4, .lengths = lengths};
    ravel_plan *plan = make(&in, &o);
    CHECK(plan);
    CHECK_EQ(plan->micro_steps, 1);
    ravel_plan_free(plan);
}

/* ---- align -------------------------------------------------------------------------------------------------- */

/* With cp 8 packing deals slots in multiples of 16; the plan must have left room for that. */
TEST(plan_raises_align_to_what_context_parallel_packing_needs) {
    int64_t lengths[640];
    for (int i = 0; i < 640; i++) lengths[i] = 1 + i % 25;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1024;
    o.cp = 8;
    ravel_plan_input in = {.size = sizeof in, .count = 640, .lengths = lengths};
    for (int32_t split = 0; split < 2; split++) {
        o.cp_split = split;
        int64_t multiple = split == RAVEL_CP_SPLIT_ZIGZAG ? 16 : 8;
        CHECK_EQ(ravel_plan_align(&o), multiple);
        ravel_plan *plan = make(&in, &o);
        CHECK(plan);
        for (int64_t b = 0; b < plan->bins; b++) {
            int64_t slots = 0;
            for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++)
                slots += (lengths[plan->samples[i]] + multiple - 1) / multiple * multiple;
            CHECK(slots <= 8192);
            CHECK_EQ(slots, plan->bin_slots[b]);
        }
        ravel_plan_free(plan);
    }
    o.cp_split = RAVEL_CP_SPLIT_ZIGZAG;
    o.align = 24;
    CHECK_EQ(ravel_plan_align(&o), 48);
    o.align = (1 << 30) - 1;
    CHECK_EQ(ravel_plan_align(&o), 0);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_EQ(ravel_plan_create(&in, &o, &plan, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "common multiple");
}

/* ---- size --------------------------------------------------------------------------------------------------- */

enum { MANY = 320000 };

/* Costs in the opposite order of lengths, few bins with very many samples; groups of any cost on ranks; the same in
 * padded rows. These took minutes when lists were sorted by insertion. (make bench has the times.) */
TEST(plan_opposed_costs_and_many_groups_are_not_quadratic) {
    int64_t *lengths = malloc(MANY * sizeof *lengths), *costs = malloc(MANY * sizeof *costs);
    int64_t *groups = malloc(MANY * sizeof *groups);
    CHECK(lengths && costs && groups);
    for (int64_t i = 0; i < MANY; i++) {
        lengths[i] = 1 + i % 1000;
        costs[i] = 1000 - i % 1000;
        groups[i] = i % 100000;
    }
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1 << 30;
    o.dp = 4;
    o.effort = RAVEL_EFFORT_FAST;
    ravel_plan_input in = {.size = sizeof in, .count = MANY, .lengths = lengths, .costs = costs};
    for (int i = 0; i < 16; i++) {
        o.sync = i & 1;
        o.group_rule = i & 2 ? RAVEL_GROUPS_RANK : RAVEL_GROUPS_FREE;
        o.layout = i & 4 ? RAVEL_LAYOUT_PADDED : RAVEL_LAYOUT_PACKED;
        in.groups = i & 2 ? groups : NULL;
        in.costs = i & 8 ? NULL : costs;
        ravel_plan *plan = make(&in, &o);
        CHECK(plan);
        CHECK(plan->stats.imbalance < (i & 4 ? 1.1 : 1.001));
        ravel_plan_free(plan);
    }
    free(lengths);
    free(costs);
    free(groups);
}
