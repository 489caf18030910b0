/* Hybrid context parallelism: promises over random pools, counted here independently of the library. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include <stdlib.h>

enum { MOST = 400 };

typedef struct hybrid_case {
    ravel_plan_input input;
    ravel_plan_options options;
    int64_t lengths[MOST], costs[MOST], groups[MOST];
    char widths[64], prices[256];
} hybrid_case;

static int64_t between(ravel__rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)ravel__rng_below(rng, (uint64_t)(high - low) + 1);
}

static int one_in(ravel__rng *rng, uint64_t n) {
    return ravel__rng_below(rng, n) == 0;
}

/* Widths that divide one another, and a price for each. */
static void draw_lists(hybrid_case *c, ravel__rng *rng) {
    int32_t width = (int32_t)between(rng, 1, 3);
    char *at = c->widths, *price = c->prices;
    for (int i = 0; i < 5 && width <= c->options.cp_pool; i++, width *= (int32_t)between(rng, 2, 3)) {
        at += sprintf(at, "%s%d", i ? "," : "", width);
        price += sprintf(price, "%s%d:%d", i ? "," : "", width, (int)between(rng, 0, 500));
    }
    if (c->widths[0]) c->options.cp_widths = c->widths;
    if (c->widths[0] && one_in(rng, 2)) c->options.cp_price = c->prices;
}

static void draw_options(hybrid_case *c, ravel__rng *rng) {
    static const int32_t pools[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 64};
    ravel_plan_options *o = &c->options;
    ravel_plan_options_default(o);
    o->cp_pool = one_in(rng, 3) ? (int32_t)between(rng, 1, 40) : pools[ravel__rng_below(rng, 10)];
    o->budget = one_in(rng, 3) ? between(rng, 1, 200) : between(rng, 500, 9000);
    o->align = one_in(rng, 2) ? 1 : (int32_t)between(rng, 1, 40);
    o->cp_tp = one_in(rng, 3) ? (int32_t)between(rng, 1, 4) : 1;
    o->cp_split = one_in(rng, 2);
    o->cp_empty = one_in(rng, 2);
    o->cp_node = (int32_t)between(rng, 1, 16);
    if (one_in(rng, 4)) o->min_cp = (int32_t)between(rng, 1, o->cp_pool);
    if (one_in(rng, 4)) o->max_samples = between(rng, 1, 6);
    if (one_in(rng, 4)) o->multiple = (int32_t)between(rng, 1, 4);
    if (one_in(rng, 4)) o->min_micro_steps = between(rng, 0, 6);
    if (one_in(rng, 4)) o->updates = (int32_t)between(rng, 1, 3);
    o->effort = (int32_t)ravel__rng_below(rng, 8) / 3;
    o->oversize = RAVEL_OVERSIZE_SKIP;
    o->cost = (ravel_cost){24576, between(rng, 0, 2), one_in(rng, 2) ? 0 : between(rng, 0, 1 << 24)};
    if (one_in(rng, 4)) draw_lists(c, rng);
}

static void draw(hybrid_case *c, ravel__rng *rng) {
    memset(c, 0, sizeof *c);
    draw_options(c, rng);
    int64_t count = one_in(rng, 8) ? between(rng, 0, MOST) : between(rng, 0, 40), widest = c->options.budget;
    widest *= c->options.cp_pool;
    for (int64_t i = 0; i < count; i++) {
        c->lengths[i] = one_in(rng, 5) ? between(rng, 1, widest) : between(rng, 1, 1 + c->options.budget / 2);
        c->costs[i] = between(rng, 0, 1000);
        c->groups[i] = i / 4;
    }
    c->input = (ravel_plan_input){.size = sizeof c->input, .count = count, .lengths = c->lengths};
    if (one_in(rng, 6)) c->input.costs = c->costs;
    if (one_in(rng, 6)) {
        c->input.groups = c->groups;
        c->options.group_rule = RAVEL_GROUPS_UPDATE;
    }
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

static int64_t multiple_of(const ravel_plan_options *o, int64_t width) {
    int64_t parts = (width == 1 ? 1 : o->cp_split ? width : 2 * width) * o->cp_tp, m = o->align;
    while (m % parts) m += o->align;
    return m;
}

static bool count_groups(const hybrid_case *c, const ravel_plan *plan, int *seen) {
    const ravel_hybrid *h = plan->hybrid;
    const ravel_plan_options *o = &c->options;
    bool ok = h && h->pool == o->cp_pool && plan->dp == o->cp_pool;
    for (int64_t s = 0; ok && s < plan->micro_steps; s++) {
        int taken[64] = {0};
        for (int64_t g = h->group_offsets[s]; ok && g < h->group_offsets[s + 1]; g++) {
            int64_t width = h->group_width[g], multiple = multiple_of(o, width), slots = 0;
            ok = width >= o->min_cp && h->group_first[g] % width == 0 && h->group_first[g] + width <= h->pool;
            for (int64_t r = 0; ok && r < width; r++) ok = !taken[h->group_first[g] + r]++;
            for (int64_t i = h->group_sample_offsets[g]; i < h->group_sample_offsets[g + 1]; i++) {
                slots += (c->lengths[plan->samples[i]] + multiple - 1) / multiple * multiple;
                seen[plan->samples[i]]++;
            }
            int64_t rows = h->group_sample_offsets[g + 1] - h->group_sample_offsets[g];
            ok = ok && slots <= width * o->budget && rows > 0 && (!o->max_samples || rows <= o->max_samples);
        }
        for (int32_t r = 0; ok && r < h->pool; r++) ok = (h->rank_group[s * h->pool + r] >= 0) == (taken[r] == 1);
    }
    for (int64_t u = 0; ok && u < plan->updates; u++)
        ok = (plan->update_offsets[u + 1] - plan->update_offsets[u]) % o->multiple == 0;
    return ok;
}

static bool keeps_promises(const hybrid_case *c) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL, *again = NULL;
    int seen[MOST] = {0};
    ravel_status status = ravel_plan_create(&c->input, &c->options, &plan, &err);
    if (status == RAVEL_E_ARGUMENT) return strstr(err.message, "min-cp") || strstr(err.message, "holds no slot");
    bool ok = status == RAVEL_OK && ravel_plan_check(&c->input, &c->options, plan, &err) == RAVEL_OK &&
              ravel_plan_create(&c->input, &c->options, &again, &err) == RAVEL_OK && plan->digest == again->digest &&
              count_groups(c, plan, seen);
    for (int64_t i = 0; ok && i < plan->stats.skipped; i++) seen[plan->skipped[i]]++;
    for (int64_t i = 0; ok && i < c->input.count; i++) ok = seen[i] == 1;
    ok = ok && plan->stats.time >= plan->hybrid->bound_canonical &&
         plan->hybrid->bound_canonical >= plan->hybrid->bound_area &&
         plan->micro_steps >= plan->hybrid->bound_micro_steps;
    if (!ok) printf("    %s: %s\n", ravel_status_name((ravel_status)err.status), err.message);
    ravel_plan_free(plan);
    ravel_plan_free(again);
    return ok;
}

TEST(plan_hybrid_random_pools_keep_the_promises) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 31);
    static hybrid_case c;
    int64_t runs = check_rounds(6000, 1000000);
    for (int64_t i = 0; i < runs; i++) {
        draw(&c, &rng);
        if (keeps_promises(&c)) continue;
        printf("    case %lld: %lld samples, pool %d, budget %lld, align %d, widths %s, min %d, effort %d\n",
               (long long)i, (long long)c.input.count, c.options.cp_pool, (long long)c.options.budget, c.options.align,
               c.options.cp_widths ? c.options.cp_widths : "", c.options.min_cp, c.options.effort);
        CHECK(!"a random pool");
    }
}

/* ---- arrivals --------------------------------------------------------------------------------------------------- */

/* What was taken of a case, by id: ids are row numbers. */
typedef struct taken {
    int seen[MOST];
    int64_t steps;
} taken;

/* A taken plan is a hybrid plan of its own samples: groups, cap and widths are counted here again. */
static bool check_taken(const hybrid_case *c, const ravel_plan *plan, taken *t) {
    static hybrid_case own;
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t *ids = ravel_planner_ids(plan);
    int seen[MOST] = {0};
    own.options = c->options;
    own.options.multiple = 1;
    own.options.min_micro_steps = 0;
    own.input = (ravel_plan_input){.size = sizeof own.input, .count = plan->count, .lengths = own.lengths};
    for (int64_t i = 0; i < plan->count; i++) {
        own.lengths[i] = c->lengths[ids[i]];
        own.costs[i] = c->costs[ids[i]];
        own.groups[i] = c->groups[ids[i]];
        t->seen[ids[i]]++;
    }
    if (c->input.costs) own.input.costs = own.costs;
    if (c->input.groups) own.input.groups = own.groups;
    bool ok = ravel_plan_check(&own.input, &own.options, plan, &err) == RAVEL_OK && count_groups(&own, plan, seen);
    if (!ok) printf("    %s\n", err.message);
    for (int64_t i = 0; ok && i < plan->stats.skipped; i++) seen[plan->skipped[i]]++;
    for (int64_t i = 0; ok && i < plan->count; i++) ok = seen[i] == 1;
    t->steps += plan->micro_steps;
    return EXPECT(ok);
}

static bool take_all(const hybrid_case *c, ravel_planner *p, int flush, taken *t) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_status status = RAVEL_OK;
    bool ok = true;
    while (ok && (status = ravel_planner_take(p, flush, &plan, &err)) == RAVEL_OK) {
        ok = check_taken(c, plan, t);
        ravel_plan_free(plan);
    }
    return ok && EXPECT(status == RAVEL_E_END);
}

/* Pushes a case a few samples at a time, takes what is ready, and flushes: each sample once, the update's micro-steps
 * at the multiple and the minimum. The widths and prices are the planner's own once it is open. */
static bool arrive(hybrid_case *c, ravel__rng *rng) {
    static const double fills[] = {1, 0.95, 0.7, 0.1};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    static taken t;
    int64_t ids[MOST], count = c->input.count;
    memset(&t, 0, sizeof t);
    ravel_status status = planner_with_fill(&c->options, fills[ravel__rng_below(rng, 4)], &p, &err);
    if (status == RAVEL_E_ARGUMENT) return strstr(err.message, "min-cp") || strstr(err.message, "holds no slot");
    char widths[64], prices[256];
    memcpy(widths, c->widths, sizeof widths);
    memcpy(prices, c->prices, sizeof prices);
    memset(c->widths, 'x', sizeof c->widths - 1);
    memset(c->prices, 'x', sizeof c->prices - 1);
    bool ok = EXPECT(status == RAVEL_OK);
    for (int64_t i = 0; i < count; i++) ids[i] = i;
    for (int64_t from = 0, n; ok && from < count; from += n) {
        ravel_plan_input in = c->input;
        n = between(rng, 1, count - from);
        in.count = n;
        in.lengths += from;
        if (in.costs) in.costs += from;
        if (in.groups) in.groups += from;
        ok = EXPECT(ravel_planner_push(p, &in, ids + from, &err) == RAVEL_OK);
        memcpy(c->widths, widths, sizeof widths); /* for the check */
        memcpy(c->prices, prices, sizeof prices);
        if (ok && one_in(rng, 2)) ok = take_all(c, p, 0, &t);
    }
    memcpy(c->widths, widths, sizeof widths);
    memcpy(c->prices, prices, sizeof prices);
    ok = ok && take_all(c, p, 1, &t) && EXPECT(ravel_planner_waiting(p) == 0);
    for (int64_t i = 0; ok && i < count; i++) ok = EXPECT(t.seen[i] == 1);
    if (ok && count) ok = EXPECT(t.steps % c->options.multiple == 0 && t.steps >= c->options.min_micro_steps);
    ravel_planner_free(p);
    return ok;
}

TEST(plan_hybrid_arrivals_keep_the_promises) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 35);
    static hybrid_case c;
    for (int64_t i = 0, runs = check_rounds(1500, 100000); i < runs; i++) {
        draw(&c, &rng);
        c.options.updates = 1;
        if (arrive(&c, &rng)) continue;
        printf("    case %lld: %lld samples, pool %d, budget %lld\n", (long long)i, (long long)c.input.count,
               c.options.cp_pool, (long long)c.options.budget);
        CHECK(!"arrivals of a random pool");
    }
}

/* As a stream, ranks of a pool wait little longer than as one batch, and nothing waits for long. */
TEST(plan_hybrid_arrivals_are_nearly_as_fast_as_a_batch) {
    enum { COUNT = 2048, EACH = 16 };
    static int64_t lengths[COUNT];
    plan_lognormal(lengths, COUNT, 3000, 1.2, 64, 60000, 5);
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 8192;
    o.cp_pool = 16;
    o.cost = (ravel_cost){24576, 1, 24576 * 64};
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_planner *p = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    double batch = (double)plan->stats.time, stream = 0;
    ravel_plan_free(plan);
    CHECK_OK(ravel_planner_create(&o, NULL, &p, &err), &err);
    for (int64_t i = 0; i < COUNT; i += EACH) {
        ravel_plan_input some = {.size = sizeof some, .count = EACH, .lengths = lengths + i};
        CHECK_OK(ravel_planner_push(p, &some, NULL, &err), &err);
        while (ravel_planner_take(p, 0, &plan, &err) == RAVEL_OK) {
            stream += (double)plan->stats.time;
            ravel_plan_free(plan);
        }
    }
    while (ravel_planner_take(p, 1, &plan, &err) == RAVEL_OK) {
        stream += (double)plan->stats.time;
        ravel_plan_free(plan);
    }
    ravel_planner_report report = {.size = sizeof report};
    ravel_planner_get_report(p, &report);
    ravel_planner_free(p);
    printf("    as a stream %.4f of the batch's time, at most %lld micro-steps of waiting\n", stream / batch,
           (long long)report.steps_max);
    CHECK(report.samples == COUNT && stream < 1.2 * batch);
}

/* ---- the bound -------------------------------------------------------------------------------------------------- */

/* The least time over all ways to give up to four samples a width and a micro-step of a pool of 4. */
typedef struct tiny {
    int64_t cost[4], length[4], budget;
    int count, step[4], width[4], group[4];
    double best;
} tiny;

static const int tiny_width[] = {1, 2, 4};
static const double tiny_price[] = {0, 30, 60};

/* Samples with the same (step, group) share a group, whose width is that of its first. */
static void time_tiny(tiny *t) {
    double total = 0;
    for (int s = 0; s < t->count; s++) {
        double slowest = 0;
        int ranks = 0, used = 0;
        for (int g = 0; g < t->count; g++) {
            int64_t slots = 0;
            double cost = 0;
            int w = -1;
            for (int i = 0; i < t->count; i++) {
                if (t->step[i] != s || t->group[i] != g) continue;
                if (w >= 0 && w != t->width[i]) return;
                w = t->width[i];
                slots += t->length[i];
                cost += (double)t->cost[i];
            }
            if (w < 0) continue;
            used = 1;
            ranks += tiny_width[w];
            if (slots > tiny_width[w] * t->budget) return;
            double time = cost * (1000 + tiny_price[w]) / (1000 * tiny_width[w]);
            if (time > slowest) slowest = time;
        }
        if (ranks > 4) return;
        total += slowest + used * 1000;
    }
    if (total < t->best) t->best = total;
}

static void try_all(tiny *t, int i) {
    if (i == t->count) {
        time_tiny(t);
        return;
    }
    for (t->step[i] = 0; t->step[i] < t->count; t->step[i]++)
        for (t->group[i] = 0; t->group[i] < t->count; t->group[i]++)
            for (t->width[i] = 0; t->width[i] < 3; t->width[i]++) try_all(t, i + 1);
}

TEST(plan_hybrid_bound_is_below_the_optimum_and_the_plan_is_near_it) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 32);
    int64_t runs = check_rounds(60, 1000);
    double sum = 0;
    for (int64_t r = 0; r < runs; r++) {
        tiny t = {.budget = 100, .count = 2 + (int)ravel__rng_below(&rng, 2), .best = 1e300};
        for (int i = 0; i < t.count; i++) {
            t.length[i] = between(&rng, 1, ravel__rng_below(&rng, 2) ? 400 : 100);
            t.length[i] = (t.length[i] + 3) / 4 * 4; /* slots of every width agree */
            t.cost[i] = 100 * t.length[i] + t.length[i] * t.length[i];
        }
        try_all(&t, 0);
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = t.budget;
        o.cp_pool = 4;
        o.cp_split = RAVEL_CP_SPLIT_CONTIGUOUS;
        o.cp_widths = "1,2,4";
        o.cp_price = "2:30,4:60";
        o.cost = (ravel_cost){100, 1, 1000};
        ravel_plan_input in = {.size = sizeof in, .count = t.count, .lengths = t.length};
        ravel_plan *plan = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        CHECK((double)plan->stats.time_lower_bound <= t.best + 2);
        CHECK((double)plan->stats.time >= t.best - 2);
        sum += (double)plan->stats.time / t.best;
        ravel_plan_free(plan);
    }
    CHECK(sum / (double)runs < 1.05);
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

TEST(plan_hybrid_gives_a_long_sample_the_narrowest_width_that_holds_it_or_a_wider_one) {
    const int64_t lengths[] = {7000, 100, 100, 100, 100, 100, 100};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1024;
    o.cp_pool = 16;
    ravel_plan_input in = {.size = sizeof in, .count = 7, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK_EQ(plan->stats.over_budget, 0);
    for (int64_t g = 0; g < plan->hybrid->groups; g++)
        if (plan->samples[plan->hybrid->group_sample_offsets[g]] == 0) CHECK(plan->hybrid->group_width[g] >= 8);
    ravel_plan_free(plan);
    o.cp_pool = 4;
    CHECK_EQ(ravel_plan_create(&in, &o, &plan, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "the widest group");
}

TEST(plan_hybrid_widens_groups_until_no_rank_is_empty) {
    const int64_t lengths[] = {500, 400, 300};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1024;
    o.cp_pool = 16;
    o.cp_empty = RAVEL_CP_EMPTY_WIDEN;
    o.cp_price = "2:900,4:1900,8:3900,16:7900"; /* nothing would be widened for speed */
    ravel_plan_input in = {.size = sizeof in, .count = 3, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK_EQ(plan->stats.fillers, 0);
    ravel_plan_free(plan);
}

TEST(plan_hybrid_says_what_is_wrong_with_the_options) {
    static const struct {
        const char *widths, *price, *words;
        int32_t pool, cp, sync, method;
    } rows[] = {
        {"1,3,4", NULL, "each a divisor of the next", 8, 1, 0, 0},
        {"1,2,16", NULL, "up to cp-pool 8", 8, 1, 0, 0},
        {"", NULL, "cp-widths", 8, 1, 0, 0},
        {"2,1", NULL, "cp-widths", 8, 1, 0, 0},
        {"1,2", "2:x", "cannot be read", 8, 1, 0, 0},
        {"1,2", "1:5", "lacks a width", 8, 1, 0, 0},
        {NULL, NULL, "cp must then be 1", 8, 2, 0, 0},
        {NULL, NULL, "sync must then be micro-step", 8, 1, 1, 0},
        {NULL, NULL, "method must then be ravel", 8, 1, 0, RAVEL_METHOD_FFD},
    };
    const int64_t lengths[] = {5};
    ravel_plan_input in = {.size = sizeof in, .count = 1, .lengths = lengths};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = 1000;
        o.cp_pool = rows[i].pool;
        o.cp = rows[i].cp;
        o.sync = rows[i].sync;
        o.method = rows[i].method;
        o.cp_widths = rows[i].widths;
        o.cp_price = rows[i].price;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_EQ(ravel_plan_create(&in, &o, &plan, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, rows[i].words);
    }
}

TEST(plan_hybrid_check_sees_every_change) {
    int64_t lengths[40];
    for (int i = 0; i < 40; i++) lengths[i] = 100 + 37 * i + (i % 9 == 0) * 3000;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1024;
    o.cp_pool = 8;
    ravel_plan_input in = {.size = sizeof in, .count = 40, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK_OK(ravel_plan_check(&in, &o, plan, &err), &err);
    int32_t first[64], width[64], ranks[1024];
    CHECK(plan->hybrid->groups <= 64 && plan->bins <= 1024);
    size_t groups = (size_t)plan->hybrid->groups;
    for (int change = 0; change < 5; change++) {
        ravel_plan broken = *plan;
        ravel_hybrid hybrid = *plan->hybrid;
        memcpy(first, hybrid.group_first, groups * 4);
        memcpy(width, hybrid.group_width, groups * 4);
        memcpy(ranks, hybrid.rank_group, (size_t)plan->bins * 4);
        hybrid.group_first = first;
        hybrid.group_width = width;
        hybrid.rank_group = ranks;
        broken.hybrid = change == 4 ? NULL : &hybrid;
        if (change == 0) width[0] = 3;
        if (change == 1) first[groups - 1]++;
        if (change == 2) ranks[0] = (int32_t)groups - 1;
        if (change == 3) hybrid.groups--;
        ravel_error_clear(&err);
        CHECK_EQ(ravel_plan_check(&in, &o, &broken, &err), RAVEL_E_DATA);
    }
    ravel_plan_free(plan);
}

/* Prices of fixed context parallelism are those of a pool's groups. */
TEST(plan_hybrid_prices_of_widths) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    CHECK_EQ(ravel_plan_cp_price(&o, 1), 0);
    CHECK_EQ(ravel_plan_cp_price(&o, 2), 30);
    CHECK_EQ(ravel_plan_cp_price(&o, 8), 90);
    CHECK_EQ(ravel_plan_cp_price(&o, 16), 120 + 150); /* beyond a node of 8 */
    CHECK_EQ(ravel_plan_cp_price(&o, 0), -1);
    o.cp_price = "2:70,4:90";
    CHECK_EQ(ravel_plan_cp_price(&o, 1), 0);
    CHECK_EQ(ravel_plan_cp_price(&o, 4), 90);
    CHECK_EQ(ravel_plan_cp_price(&o, 8), -1);
    o.cp_price = "2:x";
    CHECK_EQ(ravel_plan_cp_price(&o, 2), -1);
}
