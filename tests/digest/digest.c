/* Digests of many random plans, one per line. Built by several compilers; the lists must be the same. Only integers are
 * drawn here, so that the inputs do not depend on the mathematical library. */
#include "base/rng.h"

#include <ravel/plan.h>

#include <stdio.h>
#include <stdlib.h>

enum { PLANS = 400, MOST = 3000 };

static int64_t below(ravel__rng *rng, int64_t bound) {
    return (int64_t)ravel__rng_below(rng, (uint64_t)bound);
}

static void draw(ravel__rng *rng, ravel_plan_options *o, int64_t *lengths, int64_t *prompts, int64_t *responses,
                 int64_t *groups, int32_t *homes, int64_t count) {
    ravel_plan_options_default(o);
    o->budget = 4096 + below(rng, 30000);
    o->dp = (int32_t)(1 + below(rng, 20));
    o->align = (int32_t)(1 + below(rng, 16));
    o->multiple = (int32_t)(1 + below(rng, 3));
    o->updates = (int32_t)(1 + below(rng, 2));
    o->sync = (int32_t)below(rng, 3);
    o->layout = (int32_t)below(rng, 3);
    o->method = below(rng, 2) ? RAVEL_METHOD_RAVEL : (int32_t)below(rng, 10);
    o->effort = (int32_t)below(rng, 3);
    o->group_rule = (int32_t)below(rng, 3);
    o->shuffle = (int32_t)below(rng, 2);
    o->cost = (ravel_cost){24576, below(rng, 3), below(rng, 1 << 20)};
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = 1 + below(rng, 1 + below(rng, 4096));
        prompts[i] = below(rng, lengths[i] + 1);
        responses[i] = lengths[i] - prompts[i];
        groups[i] = i / 8;
        homes[i] = (int32_t)(below(rng, o->dp + 1) - 1);
    }
}

int main(void) {
    static int64_t lengths[MOST], prompts[MOST], responses[MOST], groups[MOST];
    static int32_t homes[MOST];
    ravel__rng rng = ravel__rng_seed(20260101); /* fixed: the digests of two machines are compared */
    for (int run = 0; run < PLANS; run++) {
        ravel_plan_options o;
        int64_t count = below(&rng, run % 8 ? 300 : MOST);
        draw(&rng, &o, lengths, prompts, responses, groups, homes, count);
        ravel_plan_input in = {.size = sizeof in,
                               .count = count,
                               .lengths = lengths,
                               .prompts = prompts,
                               .responses = responses,
                               .groups = groups,
                               .homes = run % 2 ? homes : NULL};
        ravel_plan *plan = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        if (ravel_plan_create(&in, &o, &plan, &err) != RAVEL_OK) return (void)fprintf(stderr, "%s\n", err.message), 1;
        printf("%d %016llx %lld %.17g\n", run, (unsigned long long)plan->digest, (long long)plan->stats.time,
               plan->stats.slowdown);
        ravel_plan_free(plan);
    }
    return 0;
}
