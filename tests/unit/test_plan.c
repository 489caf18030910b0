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
    int64_t runs = check_scale(4000, 1000000);
    for (int64_t i = 0; i < runs; i++) {
        plan_case_draw(&c, &rng, i % 16 ? 60 : PLAN_CASE_SAMPLES);
        if (keeps_promises(&c)) continue;
        describe(&c, i);
        CHECK(!"a random case");
    }
}

/* ---- quality ------------------------------------------------------------------------------------------------ */

/* No method by name has fewer bins, and none is faster with as few micro-steps. */
static bool beats_methods(const plan_case *c) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *own = NULL, *other = NULL;
    ravel_plan_options options = c->options;
    options.method = RAVEL_METHOD_RAVEL;
    bool ok = ravel_plan_create(&c->input, &options, &own, &err) == RAVEL_OK;
    for (int32_t m = RAVEL_METHOD_RAVEL + 1; ok && ravel_method_name(m); m++) {
        options.method = m;
        ok = ravel_plan_create(&c->input, &options, &other, &err) == RAVEL_OK;
        if (!ok) break;
        const ravel_plan_stats *a = &own->stats, *b = &other->stats;
        /* count and as-is leave fillers where others split bins, and a rank of few groups has nothing to split */
        bool splits = m < RAVEL_METHOD_COUNT && options.group_rule != RAVEL_GROUPS_RANK;
        ok = a->bins_packed <= b->bins_packed && (a->bins <= b->bins || !splits) && a->micro_steps <= b->micro_steps &&
             (a->time <= b->time || a->micro_steps < b->micro_steps);
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
    int64_t runs = check_scale(600, 100000);
    for (int64_t i = 0; i < runs; i++) {
        plan_case_draw(&c, &rng, i % 8 ? 60 : PLAN_CASE_SAMPLES);
        if (c.options.effort == RAVEL_EFFORT_FAST) c.options.effort = RAVEL_EFFORT_DEFAULT;
        if (beats_methods(&c)) continue;
        describe(&c, i);
        CHECK(!"a random case");
    }
}
