/* The planner's input and options: bad ones get a sentence that names them; large numbers are safe; memory may fail. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include "base/rng.h"
#include "base/options.h"
#include "plan/internal.h"

#include <stdlib.h>

/* ---- bad input ---------------------------------------------------------------------------------------------- */

typedef struct wrong {
    const char *option, *value;
    ravel_status status;
    const char *says;
} wrong;

/* Count-based bins need no budget: it is as if there were one that nothing reaches. */
TEST(plan_by_count_needs_no_budget) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_scale(50, 1000); round++) {
        int64_t lengths[64], prompts[64], responses[64];
        ravel_plan_input in = {.size = sizeof in, .count = 1 + (int64_t)ravel__rng_below(&r, 64)};
        ravel_plan *plans[2] = {NULL, NULL};
        ravel_error err = RAVEL_ERROR_INIT;
        for (int64_t i = 0; i < in.count; i++) {
            prompts[i] = (int64_t)ravel__rng_below(&r, 100);
            responses[i] = 1 + (int64_t)ravel__rng_below(&r, 100);
            lengths[i] = prompts[i] + responses[i];
        }
        int32_t layout = (int32_t)ravel__rng_below(&r, 3);
        in.lengths = layout == RAVEL_LAYOUT_PADDED_2D ? NULL : lengths;
        in.prompts = in.lengths ? NULL : prompts;
        in.responses = in.lengths ? NULL : responses;
        for (int k = 0; k < 2; k++) {
            ravel_plan_options o;
            ravel_plan_options_default(&o);
            o.method = RAVEL_METHOD_FIXED_COUNT;
            o.count = 1 + round % 7;
            o.dp = 1 + (int32_t)(round % 3);
            o.layout = layout;
            o.align = 1 + (int32_t)(round % 5);
            o.budget = k ? 1 << 20 : 0;
            CHECK_OK(ravel_plan_create(&in, &o, &plans[k], &err), &err);
        }
        CHECK(plans[0]->bins == plans[1]->bins && plans[0]->stats.padded_tokens == plans[1]->stats.padded_tokens);
        CHECK(memcmp(plans[0]->samples, plans[1]->samples, (size_t)in.count * sizeof *plans[0]->samples) == 0);
        CHECK(plans[0]->stats.over_budget == 0);
        for (int k = 0; k < 2; k++) ravel_plan_free(plans[k]);
    }
}

TEST(plan_bad_options_are_named) {
    static const wrong cases[] = {
        {"budget", "0", RAVEL_E_ARGUMENT, "budget is 0"},
        {"dp", "0", RAVEL_E_ARGUMENT, "dp is 0; it must be from 1"},
        {"dp", "-4", RAVEL_E_ARGUMENT, "dp is -4"},
        {"cp", "0", RAVEL_E_ARGUMENT, "cp is 0"},
        {"align", "0", RAVEL_E_ARGUMENT, "align is 0"},
        {"align", "128", RAVEL_E_ARGUMENT, "cp * budget is 100, below align 128"},
        {"max-samples", "-1", RAVEL_E_ARGUMENT, "max-samples is -1"},
        {"multiple", "0", RAVEL_E_ARGUMENT, "multiple is 0"},
        {"min-micro-steps", "2147483648", RAVEL_E_OVERFLOW, "min-micro-steps 2147483648"},
        {"updates", "0", RAVEL_E_ARGUMENT, "updates is 0"},
        {"count", "0", RAVEL_E_ARGUMENT, "count is 0"},
        {"budget", "2", RAVEL_E_OVERSIZE, "sample 0 has 10 tokens, a slot of 10; a bin holds 2"},
        {"layout", "padded-2d", RAVEL_E_ARGUMENT, "padded-2d needs prompts and responses"},
        {"group-rule", "rank", RAVEL_E_ARGUMENT, "the input has no groups"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t lengths[] = {10, 20};
        ravel_plan_input in = {.size = sizeof in, .count = 2, .lengths = lengths};
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = 100;
        /* set without the table's own check, as a program would */
        const ravel_option *row = ravel_option_find(ravel_plan_option_table(), cases[i].option);
        int64_t value = strtoll(cases[i].value, NULL, 10);
        int32_t narrow =
            row->type == RAVEL_OPTION_ENUM ? ravel__choice_index(row->choices, cases[i].value) : (int32_t)value;
        if (row->type == RAVEL_OPTION_I64)
            memcpy((char *)&o + row->offset, &value, sizeof value);
        else
            memcpy((char *)&o + row->offset, &narrow, sizeof narrow);
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_EQ(ravel_plan_create(&in, &o, &plan, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(plan == NULL);
    }
}

/* Plans what `spoil` leaves of a good case of three samples. */
static bool refuses(void (*spoil)(plan_case *), ravel_status status, const char *says) {
    static plan_case c;
    memset(&c, 0, sizeof c);
    ravel_plan_options_default(&c.options);
    c.options.budget = 100;
    c.options.dp = 2;
    c.input = (ravel_plan_input){.size = sizeof c.input, .count = 3, .lengths = c.lengths};
    for (int i = 0; i < 3; i++) {
        c.lengths[i] = 10 * (i + 1);
        c.prompts[i] = 3;
        c.responses[i] = c.lengths[i] - 3;
    }
    spoil(&c);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_status got = ravel_plan_create(&c.input, &c.options, &plan, &err);
    if (got == status && strstr(err.message, says) && !plan) return true;
    printf("    %s: %s\n", ravel_status_name(got), err.message);
    ravel_plan_free(plan);
    return EXPECT(!"refused in these words");
}

static void zero_length(plan_case *c) {
    c->lengths[1] = 0;
}
static void negative_length(plan_case *c) {
    c->lengths[2] = -7;
}
static void huge_length(plan_case *c) {
    c->lengths[0] = (INT64_C(1) << 31) + 1;
}
static void negative_prompt(plan_case *c) {
    c->input.prompts = c->prompts;
    c->input.responses = c->responses;
    c->prompts[1] = -1;
}
static void wrong_sum(plan_case *c) {
    c->input.prompts = c->prompts;
    c->input.responses = c->responses;
    c->responses[2]++;
}
static void lone_prompts(plan_case *c) {
    c->input.prompts = c->prompts;
}
static void nothing_given(plan_case *c) {
    c->input.lengths = NULL;
}
static void negative_count(plan_case *c) {
    c->input.count = -1;
}
static void absurd_count(plan_case *c) {
    c->input.count = INT64_C(1) << 40;
}
static void no_size(plan_case *c) {
    c->input.size = 0;
}
static void negative_cost(plan_case *c) {
    c->input.costs = c->costs;
    c->costs[1] = -5;
}
static void home_outside(plan_case *c) {
    c->input.homes = c->homes;
    c->homes[2] = 2;
}
static void update_outside(plan_case *c) {
    c->input.updates = c->updates;
    c->updates[1] = 9;
}
static void update_beyond_option(plan_case *c) {
    c->input.updates = c->updates;
    c->options.updates = 2;
    c->updates[0] = 2;
}
static void torn_group(plan_case *c) {
    c->input.updates = c->updates;
    c->input.groups = c->groups;
    c->updates[2] = 1;
    c->groups[0] = c->groups[2] = 77;
    c->options.group_rule = RAVEL_GROUPS_UPDATE;
}
static void two_ways_to_cut(plan_case *c) {
    c->options.updates = 2;
    c->options.samples_per_update = 2;
}
static void ids_and_cuts(plan_case *c) {
    c->input.updates = c->updates;
    c->options.samples_per_update = 2;
}
static void oversize_slot(plan_case *c) {
    c->options.align = 64;
    c->lengths[1] = 65;
}
static void negative_model(plan_case *c) {
    c->options.cost.quadratic = -1;
}
static void absurd_fillers(plan_case *c) {
    c->options.min_micro_steps = 1 << 20;
    c->options.dp = 1 << 20;
}

TEST(plan_bad_input_is_named) {
    static const struct {
        void (*spoil)(plan_case *);
        ravel_status status;
        const char *says;
    } cases[] = {
        {zero_length, RAVEL_E_DATA, "sample 1 has length 0"},
        {negative_length, RAVEL_E_DATA, "sample 2 has length -7"},
        {huge_length, RAVEL_E_DATA, "sample 0 has length 2147483649"},
        {negative_prompt, RAVEL_E_DATA, "sample 1 has a prompt of -1"},
        {wrong_sum, RAVEL_E_DATA, "sample 2 has length 30, but its prompt and response have 31"},
        {lone_prompts, RAVEL_E_ARGUMENT, "prompts but no responses"},
        {nothing_given, RAVEL_E_ARGUMENT, "neither lengths nor"},
        {negative_count, RAVEL_E_ARGUMENT, "count -1"},
        {absurd_count, RAVEL_E_ARGUMENT, "count 1099511627776"},
        {no_size, RAVEL_E_ARGUMENT, "size 0"},
        {negative_cost, RAVEL_E_DATA, "sample 1 has cost -5"},
        {home_outside, RAVEL_E_DATA, "sample 2 has home rank 2; it must be from 0 to 1"},
        {update_outside, RAVEL_E_DATA, "sample 1 has update 9"},
        {update_beyond_option, RAVEL_E_DATA, "sample 0 has update 2; it must be from 0 to 1"},
        {torn_group, RAVEL_E_DATA, "samples 0 and 2 are of group 77"},
        {two_ways_to_cut, RAVEL_E_ARGUMENT, "give one of them"},
        {ids_and_cuts, RAVEL_E_ARGUMENT, "samples-per-update must be 0"},
        {oversize_slot, RAVEL_E_OVERSIZE, "sample 1 has 65 tokens, a slot of 128; a bin holds 64"},
        {negative_model, RAVEL_E_ARGUMENT, "cost.quadratic is -1"},
        {absurd_fillers, RAVEL_E_OVERFLOW, "2^30 bins"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(refuses(cases[i].spoil, cases[i].status, cases[i].says));
}

TEST(plan_older_callers_get_defaults) {
    const int64_t lengths[] = {5, 6, 7};
    ravel_plan_options o, older;
    ravel_plan_options_default(&o);
    o.budget = 10;
    older = o;
    older.size = offsetof(ravel_plan_options, cost); /* as if cost and what follows did not exist yet */
    memset(&older.cost, 0xee, sizeof older - offsetof(ravel_plan_options, cost));
    ravel_plan_input in = {.size = offsetof(ravel_plan_input, costs), .count = 3, .lengths = lengths};
    in.costs = (const int64_t *)(uintptr_t)8; /* beyond its size: not looked at */
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL, *again = NULL;
    CHECK_OK(ravel_plan_create(&in, &older, &plan, &err), &err);
    in.size = sizeof in;
    in.costs = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &again, &err), &err);
    CHECK(plan->digest == again->digest);
    ravel_plan_free(plan);
    ravel_plan_free(again);
}

/* ---- large numbers ------------------------------------------------------------------------------------------ */

TEST(plan_large_numbers_are_safe) {
    enum { COUNT = 1000 };
    static int64_t lengths[COUNT];
    for (int i = 0; i < COUNT; i++) lengths[i] = (INT64_C(1) << 31) - i % 7;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = INT64_C(1) << 40;
    o.dp = 7;
    o.cost = (ravel_cost){INT64_C(1) << 53, INT64_C(1) << 30, INT64_C(1) << 53};
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    for (int32_t layout = 0; layout < 2; layout++)
        for (int32_t sync = 0; sync < 3; sync++) {
            ravel_error err = RAVEL_ERROR_INIT;
            ravel_plan *plan = NULL;
            o.layout = layout;
            o.sync = sync;
            CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
            CHECK_OK(ravel_plan_check(&in, &o, plan, &err), &err);
            CHECK(plan->stats.cost_shift > 0 && plan->stats.cost > 0 && plan->stats.time > 0);
            CHECK(plan->stats.slowdown < 1.02);
            CHECK(plan->stats.actual_tokens > INT64_C(2000000000000));
            ravel_plan_free(plan);
        }
}

/* A shift changes units, not ratios: the plan is the one of the same costs in small numbers. */
TEST(plan_shifted_costs_plan_alike) {
    enum { COUNT = 300 };
    static int64_t lengths[COUNT], small[COUNT], large[COUNT];
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < COUNT; i++) {
        lengths[i] = 1 + (int64_t)ravel__rng_below(&rng, 4096);
        small[i] = 1 + (int64_t)ravel__rng_below(&rng, 1 << 20);
        large[i] = small[i] << 42;
    }
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = 4;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths, .costs = small};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *a = NULL, *b = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &a, &err), &err);
    in.costs = large;
    CHECK_OK(ravel_plan_create(&in, &o, &b, &err), &err);
    CHECK(a->stats.cost_shift == 0 && b->stats.cost_shift > 0);
    CHECK(b->stats.slowdown < a->stats.slowdown * 1.001 && a->stats.slowdown < b->stats.slowdown * 1.001);
    ravel_plan_free(a);
    ravel_plan_free(b);
}

/* Totals of 10^8 samples of 2^31 tokens, without the memory: the rules are worked out from sums. */
TEST(plan_cost_of_a_length_never_overflows) {
    ravel__rules rules;
    memset(&rules, 0, sizeof rules);
    rules.options.cost = (ravel_cost){INT64_C(1) << 53, INT64_C(1) << 30, 0};
    rules.shift = 70;
    rules.wide = 1;
    int64_t cost = ravel__cost_of(&rules, INT64_C(1) << 31);
    CHECK(cost == (INT64_C(1) << 14) + (INT64_C(1) << 22));
    CHECK(ravel__cost_of(&rules, 1) == 1); /* rounded up: nothing becomes free */
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static ravel_status plan_and_check(const ravel_allocator *allocator, void *user) {
    plan_case *c = user;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    c->options.allocator = allocator;
    ravel_status status = ravel_plan_create(&c->input, &c->options, &plan, &err);
    if (!status) status = ravel_plan_check(&c->input, &c->options, plan, &err);
    if (status) EXPECT(err.message[0] != '\0');
    ravel_plan_free(plan);
    return status;
}

TEST(plan_every_allocation_may_fail) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 4);
    static plan_case c;
    for (int64_t i = 0, runs = check_rounds(40, 1000); i < runs; i++) {
        plan_case_draw(&c, &rng, 60);
        if (i % 4 == 0) c.options.method = RAVEL_METHOD_RAVEL;
        CHECK(check_every_allocation(plan_and_check, &c) >= 0);
    }
}

TEST(plan_memory_stays_below_64_bytes_a_sample) {
    enum { COUNT = 40000 };
    int64_t *lengths = malloc(COUNT * sizeof *lengths);
    CHECK(lengths);
    plan_lognormal(lengths, COUNT, 4096, 1.1, 1024, 8192, 1);
    check_memory memory;
    check_memory_init(&memory);
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = 16;
    o.cost = (ravel_cost){24576, 1, 0};
    o.allocator = &memory.allocator;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    ravel_plan_free(plan);
    CHECK_EQ(memory.blocks, 0);
    CHECK(memory.peak < 64 * COUNT);
    free(lengths);
}
