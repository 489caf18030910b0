#include "tests/unit/plan_cases.h"

#include "tests/unit/normal.h"

#include <math.h>
#include <string.h>

static int64_t between(ravel__rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)ravel__rng_below(rng, (uint64_t)(high - low) + 1);
}

static int one_in(ravel__rng *rng, uint64_t n) {
    return ravel__rng_below(rng, n) == 0;
}

void plan_lognormal(int64_t *lengths, int64_t count, double mean, double sigma, int64_t low, int64_t high,
                    uint64_t seed) {
    ravel__rng rng = ravel__rng_seed(seed);
    for (int64_t i = 0; i < count; i++) {
        double x = exp(log(mean) - sigma * sigma / 2 + sigma * ravel__rng_normal(&rng));
        lengths[i] = (int64_t)fmin(fmax(x, (double)low), (double)high);
    }
}

/* Lengths of at most `cap`: even, equal, halves and thirds of the cap and their neighbours, one giant, powers of two.
 */
static void draw_lengths(plan_case *c, ravel__rng *rng, int64_t cap) {
    int kind = (int)ravel__rng_below(rng, 8);
    int64_t fixed = between(rng, 1, cap), small = between(rng, 1, cap < 20 ? cap : cap / 16 + 1);
    for (int64_t i = 0; i < c->input.count; i++) {
        int64_t x;
        switch (kind) {
        case 0: x = between(rng, 1, cap); break;
        case 1: x = fixed; break;
        case 2: x = cap / between(rng, 1, 6) + between(rng, -1, 1); break;
        case 3: x = i == 0 ? cap : between(rng, 1, small); break;
        case 4: x = INT64_C(1) << ravel__rng_below(rng, 31); break;
        case 5: x = one_in(rng, 3) ? cap - between(rng, 0, 3) : between(rng, 1, 4); break;
        case 6: x = between(rng, cap / 4, cap / 2 + 1); break;
        default: x = (int64_t)exp(ravel__rng_normal(rng) + log((double)small)); break;
        }
        c->lengths[i] = x < 1 ? 1 : x > cap ? cap : x;
    }
}

static void draw_budget(plan_case *c, ravel__rng *rng) {
    static const int64_t budgets[] = {1, 7, 100, 4096, 16384, 100003, INT64_C(1) << 31, INT64_C(1) << 40};
    ravel_plan_options *o = &c->options;
    o->budget = one_in(rng, 3) ? between(rng, 1, 300) : budgets[ravel__rng_below(rng, 8)];
    o->cp = one_in(rng, 3) ? (int32_t)between(rng, 1, 8) : 1;
    o->cp_split = one_in(rng, 2);
    if (o->budget < 2) o->cp_split = RAVEL_CP_SPLIT_CONTIGUOUS;
    if (one_in(rng, 3)) o->align = (int32_t)between(rng, 1, o->cp * o->budget < 128 ? o->cp * o->budget : 128);
    if (ravel_plan_align(o) > o->cp * o->budget) o->align = 1;
    if (one_in(rng, 4)) o->max_samples = between(rng, 1, 9);
}

static void draw_options(plan_case *c, ravel__rng *rng) {
    ravel_plan_options *o = &c->options;
    o->dp = one_in(rng, 6) ? (int32_t)between(rng, 1, 100) : (int32_t)between(rng, 1, 8);
    o->multiple = one_in(rng, 4) ? (int32_t)between(rng, 1, 5) : 1;
    o->min_micro_steps = one_in(rng, 4) ? between(rng, 0, 9) : 1;
    o->updates = one_in(rng, 4) ? (int32_t)between(rng, 1, 5) : 1;
    if (o->updates == 1 && one_in(rng, 5)) o->samples_per_update = between(rng, 20, 60);
    o->sync = (int32_t)ravel__rng_below(rng, 3);
    o->layout = one_in(rng, 3) ? (int32_t)ravel__rng_below(rng, 3) : 0;
    o->method = one_in(rng, 2) ? (int32_t)ravel__rng_below(rng, RAVEL_METHODS) : RAVEL_METHOD_RAVEL;
    o->effort = (int32_t)ravel__rng_below(rng, 8) / 3;
    o->objective = one_in(rng, 4) ? (int32_t)ravel__rng_below(rng, 3) : 0;
    o->count = between(rng, 1, 9);
    o->oversize = RAVEL_OVERSIZE_SKIP;
    o->shuffle = one_in(rng, 2);
    o->seed = ravel__rng_next(rng);
    o->cost.linear = one_in(rng, 4) ? between(rng, 0, INT64_C(1) << 53) : 24576;
    o->cost.quadratic = one_in(rng, 4) ? between(rng, 0, INT64_C(1) << 30) : 1;
    o->cost.overhead = one_in(rng, 4) ? between(rng, 0, INT64_C(1) << 40) : 0;
}

static void draw_extras(plan_case *c, ravel__rng *rng) {
    ravel_plan_options *o = &c->options;
    int groups = one_in(rng, 4), homes = one_in(rng, 4), ids = !o->samples_per_update && one_in(rng, 6);
    int costs = one_in(rng, 8), apart = one_in(rng, 3) || o->layout == RAVEL_LAYOUT_PADDED_2D;
    int64_t largest = one_in(rng, 2) ? INT64_MAX : 1000, kinds = between(rng, 1, 50);
    for (int64_t i = 0; i < c->input.count; i++) {
        c->groups[i] = between(rng, 0, kinds) * (one_in(rng, 2) ? 1 : -1);
        c->homes[i] = (int32_t)between(rng, -1, o->dp - 1);
        c->costs[i] = between(rng, 0, largest);
        c->prompts[i] = one_in(rng, 8) ? 0 : between(rng, 0, c->lengths[i]);
        c->responses[i] = c->lengths[i] - c->prompts[i];
        c->updates[i] = (int32_t)(((uint64_t)c->groups[i] * 7) % (uint64_t)(o->updates > 1 ? o->updates : 3));
        if (c->updates[i] >= c->input.count) c->updates[i] = 0;
    }
    if (groups) {
        c->input.groups = c->groups;
        o->group_rule = (int32_t)ravel__rng_below(rng, 3);
    }
    if (homes) c->input.homes = c->homes;
    if (ids) c->input.updates = c->updates;
    if (costs) c->input.costs = c->costs;
    if (apart) {
        c->input.prompts = c->prompts;
        c->input.responses = c->responses;
    }
    if (!apart || one_in(rng, 2)) c->input.lengths = c->lengths;
}

void plan_case_draw(plan_case *c, ravel__rng *rng, int32_t most) {
    memset(&c->input, 0, sizeof c->input);
    c->input.size = sizeof c->input;
    ravel_plan_options_default(&c->options);
    c->input.count = one_in(rng, 3) ? between(rng, 0, 12) : between(rng, 0, most);
    draw_budget(c, rng);
    draw_options(c, rng);
    int64_t cap = c->options.cp * c->options.budget;
    if (!one_in(rng, 10))
        cap = cap / ravel_plan_align(&c->options) * ravel_plan_align(&c->options); /* else some are left out */
    draw_lengths(c, rng, cap < INT64_C(1) << 31 ? cap : INT64_C(1) << 31);
    draw_extras(c, rng);
}

ravel_status planner_with_fill(const ravel_plan_options *options, double fill, ravel_planner **planner,
                               ravel_error *err) {
    ravel_planner_options how;
    ravel_planner_options_default(&how);
    how.fill = fill;
    return ravel_planner_create(options, &how, planner, err);
}
