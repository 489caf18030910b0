/* The planner: promises over random cases. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

static void describe(const plan_case *c, int64_t number) {
    char word[64];
    printf("    case %lld: %lld samples;", (long long)number, (long long)c->input.count);
    for (const ravel_option *row = ravel_plan_option_table(); row->name; row++) {
        ravel_option_format(row, &c->options, word, sizeof word);
        if (strcmp(word, row->preset) != 0) printf(" --%s %s", row->name, word);
    }
    printf(" --cost %lld:%lld:%lld%s%s%s\n", (long long)c->options.cost.linear, (long long)c->options.cost.quadratic,
           (long long)c->options.cost.overhead, c->input.costs ? " costs" : "", c->input.homes ? " homes" : "",
           c->input.updates ? " updates" : "");
}

/* Promises 1 to 3 by ravel_plan_check; 4 by planning twice. */
static bool keeps_promises(const plan_case *c) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL, *again = NULL;
    bool ok = ravel_plan_create(&c->input, &c->options, &plan, &err) == RAVEL_OK &&
              ravel_plan_check(&c->input, &c->options, plan, &err) == RAVEL_OK &&
              ravel_plan_create(&c->input, &c->options, &again, &err) == RAVEL_OK && plan->digest == again->digest;
    if (!ok) printf("    %s: %s\n", ravel_status_name((ravel_status)err.status), err.message);
    ravel_plan_free(plan);
    ravel_plan_free(again);
    return ok;
}

TEST(plan_random_cases_keep_the_promises) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    static plan_case c;
    int64_t runs = check_rounds(4000, 1000000);
    for (int64_t i = 0; i < runs; i++) {
        plan_case_draw(&c, &rng, i % 16 ? 60 : PLAN_CASE_SAMPLES);
        if (keeps_promises(&c)) continue;
        describe(&c, i);
        CHECK(!"a random case");
    }
}

/* ---- quality ------------------------------------------------------------------------------------------------ */

/* Whether a long update is so near its lower bounds that other methods were not tried (docs/plan.md): within 1/64 of
 * the micro-steps, if those come first, and within 1/512 of the time. Of the updates of a plan all must be. */
static bool is_near_bound(const ravel_plan_stats *s, const ravel_plan_options *o, bool by_time) {
    if (o->layout != RAVEL_LAYOUT_PACKED || o->effort == RAVEL_EFFORT_MAX) return false;
    return (by_time || s->micro_steps <= s->micro_steps_lower_bound + s->micro_steps_lower_bound / 64) &&
           s->time <= s->time_lower_bound + s->time_lower_bound / 512;
}

/* No method by name has fewer bins, and none is faster with as few micro-steps; or, where time is the objective, none
 * is faster. `longer`: than the updates for which that holds to the last bin. */
static bool beats(const ravel_plan_stats *a, const ravel_plan_stats *b, const ravel_plan_options *o, bool longer) {
    /* count and as-is leave fillers where others split bins, and a rank of few groups has nothing to split */
    bool splits = o->method < RAVEL_METHOD_FIXED_COUNT && o->group_rule != RAVEL_GROUPS_RANK;
    bool by_time = o->objective == RAVEL_OBJECTIVE_TIME || (o->objective == RAVEL_OBJECTIVE_AUTO && o->cost.overhead);
    if (longer && is_near_bound(a, o, by_time)) return true;
    if (a->bins_packed > b->bins_packed) return false;
    if (by_time) return a->time <= b->time;
    return (a->bins <= b->bins || !splits) && a->micro_steps <= b->micro_steps &&
           (a->time <= b->time || a->micro_steps < b->micro_steps);
}

static bool beats_methods(const ravel_plan_input *input, ravel_plan_options options, bool longer) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *own = NULL, *other = NULL;
    options.method = RAVEL_METHOD_RAVEL;
    bool ok = ravel_plan_create(input, &options, &own, &err) == RAVEL_OK;
    for (int32_t m = RAVEL_METHOD_RAVEL + 1; ok && ravel_method_name(m); m++) {
        options.method = m;
        ok = ravel_plan_create(input, &options, &other, &err) == RAVEL_OK;
        if (!ok) break;
        const ravel_plan_stats *a = &own->stats, *b = &other->stats;
        ok = beats(a, b, &options, longer);
        if (!ok)
            printf("    %s: packed %lld of %lld, bins %lld of %lld, micro-steps %lld of %lld, time %lld of %lld\n",
                   ravel_method_name(m), (long long)a->bins_packed, (long long)b->bins_packed, (long long)a->bins,
                   (long long)b->bins, (long long)a->micro_steps, (long long)b->micro_steps, (long long)a->time,
                   (long long)b->time);
        ravel_plan_free(other);
    }
    ravel_plan_free(own);
    return ok;
}

TEST(plan_default_is_never_worse_than_a_method_by_name) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 1);
    static plan_case c;
    int64_t runs = check_rounds(600, 100000);
    for (int64_t i = 0; i < runs; i++) {
        plan_case_draw(&c, &rng, i % 8 ? 60 : PLAN_CASE_SAMPLES);
        if (c.options.effort == RAVEL_EFFORT_FAST) c.options.effort = RAVEL_EFFORT_DEFAULT;
        if (beats_methods(&c.input, c.options, false)) continue;
        describe(&c, i);
        CHECK(!"a random case");
    }
}

/* Four or eight samples to a bin, with a little room: best-fit decreasing leaves more of it than others do, and no start
 * from its bins can have fewer micro-steps. */
TEST(plan_default_finds_the_fewest_micro_steps_of_long_updates) {
    enum { MOST = 4000 };
    static int64_t lengths[MOST];
    ravel__rng rng = ravel__rng_seed(7); /* fixed: updates in which other methods had fewer micro-steps */
    for (int32_t run = 0; run < 12; run++) {
        ravel_plan_input in = {.size = sizeof in, .count = 2100 + 150 * run, .lengths = lengths};
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = INT64_C(1000) << run % 4;
        o.dp = 1 + run % 3;
        o.sync = run % 2;
        int64_t mean = o.budget / (4 + run % 5);
        for (int64_t i = 0; i < in.count; i++)
            lengths[i] = mean - mean / 5 + (int64_t)ravel__rng_below(&rng, (uint64_t)(mean * 2 / 5));
        CHECK(beats_methods(&in, o, true));
    }
}

/* Lengths of the kinds that methods find hard: near a third or half of a bin, two sizes, heavy tails, many short. */
static int64_t draw_length(ravel__rng *rng, int kind, int64_t cap) {
    int64_t any = (int64_t)ravel__rng_below(rng, (uint64_t)cap);
    switch (kind) {
    case 0: return 1 + any;
    case 1: return cap / 3 - cap / 30 + any / 15;
    case 2: return any % 2 ? cap * 4 / 10 : cap * 3 / 10;
    case 3: return cap / 2 - cap / 20 + any / 10;
    case 4: return 1 + any / 20;
    case 5: return any % 10 ? 1 + any / 50 : cap - any / 8;
    default: return 50 + cap / (1 + any / 2);
    }
}

/* Longer updates than the random cases have: there the default method must be quick, and is no worse all the same,
 * unless the plan is near its bounds. */
TEST(plan_default_is_never_worse_in_long_updates) {
    enum { MOST = 3000 };
    static int64_t prompts[MOST], responses[MOST], costs[MOST], groups[MOST];
    ravel__rng rng = ravel__rng_seed(check_seed() + 2);
    for (int64_t run = check_rounds(40, 2000); run > 0; run--) {
        int64_t count = 513 + (int64_t)ravel__rng_below(&rng, MOST - 513);
        int kind = (int)ravel__rng_below(&rng, 7);
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = INT64_C(1024) << ravel__rng_below(&rng, 5);
        o.dp = 1 + (int32_t)ravel__rng_below(&rng, 40);
        o.layout = (int32_t)ravel__rng_below(&rng, 3);
        o.sync = (int32_t)ravel__rng_below(&rng, 3);
        o.max_samples = ravel__rng_below(&rng, 3) ? 0 : 1 + (int64_t)ravel__rng_below(&rng, 20);
        o.group_rule = ravel__rng_below(&rng, 4) ? RAVEL_GROUPS_FREE : RAVEL_GROUPS_RANK;
        o.updates = 1 + (int32_t)ravel__rng_below(&rng, 2);
        o.cost = (ravel_cost){24576, (int64_t)ravel__rng_below(&rng, 2), 0};
        for (int64_t i = 0; i < count; i++) {
            int64_t length = draw_length(&rng, kind, o.budget);
            if (length > o.budget) length = o.budget;
            prompts[i] = (int64_t)ravel__rng_below(&rng, (uint64_t)length);
            responses[i] = length - prompts[i];
            costs[i] = (int64_t)ravel__rng_below(&rng, 100000);
            groups[i] = i / 8;
        }
        ravel_plan_input in = {.size = sizeof in, .count = count, .prompts = prompts, .responses = responses};
        in.groups = groups;
        if (ravel__rng_below(&rng, 5) == 0) in.costs = costs;
        if (beats_methods(&in, o, count / o.updates >= 2048)) continue;
        printf("    %lld samples of kind %d, budget %lld, dp %d, layout %d, sync %d, groups %d%s\n", (long long)count,
               kind, (long long)o.budget, o.dp, o.layout, o.sync, o.group_rule, in.costs ? ", costs" : "");
        CHECK(!"a long update");
    }
}
