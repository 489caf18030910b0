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
