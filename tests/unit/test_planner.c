/* Arrivals: pushes and takes keep the promises of a plan. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include <stdlib.h>

/* What was pushed, found again by id: ids are running numbers from `base`. */
typedef struct ledger {
    const plan_case *c;
    int32_t taken[PLAN_CASE_SAMPLES]; /* how often */
    int32_t rank[PLAN_CASE_SAMPLES];
    int64_t steps, samples, skipped, base;
    double fill;
} ledger;

/* The taken samples as an input of their own. */
static void gather(const ledger *l, const ravel_plan *plan, plan_case *out) {
    const plan_case *c = l->c;
    const int64_t *ids = ravel_planner_ids(plan);
    out->input = c->input;
    out->input.count = plan->count;
    for (int64_t i = 0; i < plan->count; i++) {
        int64_t row = ids[i] - l->base;
        out->lengths[i] = c->lengths[row];
        out->prompts[i] = c->prompts[row];
        out->responses[i] = c->responses[row];
        out->costs[i] = c->costs[row];
        out->groups[i] = c->groups[row];
        out->homes[i] = c->homes[row];
    }
    int apart = c->options.layout == RAVEL_LAYOUT_PADDED_2D;
    out->input.lengths = out->lengths;
    out->input.prompts = apart ? out->prompts : NULL;
    out->input.responses = apart ? out->responses : NULL;
    if (c->input.costs) out->input.costs = out->costs;
    if (c->input.groups) out->input.groups = out->groups;
    if (c->input.homes) out->input.homes = out->homes;
}

static bool note_taken(ledger *l, const ravel_plan *plan) {
    const int64_t *ids = ravel_planner_ids(plan);
    for (int64_t b = 0; b < plan->bins; b++)
        for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++) {
            int64_t row = ids[plan->samples[i]] - l->base;
            l->taken[row]++;
            l->rank[row] = (int32_t)(b % plan->dp);
        }
    for (int64_t i = 0; i < plan->stats.skipped; i++) l->taken[ids[plan->skipped[i]] - l->base]++;
    l->steps += plan->micro_steps;
    l->samples += plan->stats.samples;
    l->skipped += plan->stats.skipped;
    return true;
}

/* A taken plan is a plan: it passes the check of its own samples. */
static bool check_taken(ledger *l, const ravel_plan *plan) {
    static plan_case own;
    ravel_error err = RAVEL_ERROR_INIT;
    gather(l, plan, &own);
    ravel_plan_options options = l->c->options;
    options.multiple = 1;
    options.min_micro_steps = 0;
    if (ravel_plan_check(&own.input, &options, plan, &err) != RAVEL_OK) {
        printf("    %s\n", err.message);
        return EXPECT(!"a taken plan passes its check");
    }
    return note_taken(l, plan);
}

static bool take_ready(ravel_planner *p, ledger *l) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_status status;
    while ((status = ravel_planner_take(p, 0, &plan, &err)) == RAVEL_OK) {
        bool good = check_taken(l, plan);
        ravel_plan_free(plan);
        if (!good) return false;
    }
    return EXPECT(status == RAVEL_E_END);
}

/* Some rows of a case as a push. */
static ravel_plan_input slice(const plan_case *c, int64_t from, int64_t count) {
    ravel_plan_input in = c->input;
    in.count = count;
    if (in.lengths) in.lengths += from;
    if (in.prompts) in.prompts += from;
    if (in.responses) in.responses += from;
    if (in.costs) in.costs += from;
    if (in.groups) in.groups += from;
    if (in.homes) in.homes += from;
    return in;
}

static bool flush_update(ravel_planner *p, ledger *l) {
    const ravel_plan_options *o = &l->c->options;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_status status = ravel_planner_take(p, 1, &plan, &err);
    if (status == RAVEL_OK) {
        bool good = check_taken(l, plan);
        ravel_plan_free(plan);
        if (!good) return false;
    } else if (!EXPECT(status == RAVEL_E_END)) {
        return false;
    }
    int64_t count = l->c->input.count;
    for (int64_t i = 0; i < count; i++)
        if (!EXPECT(l->taken[i] == 1)) return false;
    if (!EXPECT(ravel_planner_waiting(p) == 0)) return false;
    if (count && !EXPECT(l->steps % o->multiple == 0 && l->steps >= o->min_micro_steps)) return false;
    for (int64_t i = 0; o->group_rule == RAVEL_GROUPS_RANK && i < count; i++)
        for (int64_t j = 0; j < i; j++)
            if (l->c->groups[i] == l->c->groups[j] && l->rank[i] >= 0 && l->rank[j] >= 0 &&
                !EXPECT(l->rank[i] == l->rank[j]))
                return false;
    return EXPECT(ravel_planner_take(p, 1, &plan, NULL) == RAVEL_E_END);
}

static bool one_update(ravel_planner *p, ledger *l, ravel__rng *rng) {
    ravel_error err = RAVEL_ERROR_INIT;
    memset(l->taken, 0, sizeof l->taken);
    memset(l->rank, 0xff, sizeof l->rank);
    l->steps = l->samples = l->skipped = 0;
    for (int64_t from = 0; from < l->c->input.count;) {
        int64_t left = l->c->input.count - from, count = 1 + (int64_t)ravel__rng_below(rng, (uint64_t)left);
        ravel_plan_input in = slice(l->c, from, count);
        if (ravel_planner_push(p, &in, NULL, &err) != RAVEL_OK) {
            printf("    %s\n", err.message);
            return EXPECT(!"a push");
        }
        from += count;
        if (ravel__rng_below(rng, 3) && !take_ready(p, l)) return false;
    }
    bool good = flush_update(p, l);
    l->base += l->c->input.count;
    return good;
}

static void for_arrivals(plan_case *c) {
    c->options.updates = 1;
    c->options.samples_per_update = 0;
    c->input.updates = NULL;
}

TEST(planner_random_arrivals_keep_the_promises) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 2);
    static plan_case c;
    static ledger l;
    static const double fills[] = {1, 0.95, 0.8, 0.5, 1e-9};
    for (int64_t i = 0, runs = check_rounds(1000, 100000); i < runs; i++) {
        plan_case_draw(&c, &rng, i % 16 ? 60 : PLAN_CASE_SAMPLES);
        for_arrivals(&c);
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_planner *p = NULL;
        memset(&l, 0, sizeof l);
        l.c = &c;
        l.fill = fills[ravel__rng_below(&rng, 5)];
        CHECK_OK(planner_with_fill(&c.options, l.fill, &p, &err), &err);
        bool good = one_update(p, &l, &rng) && one_update(p, &l, &rng);
        ravel_planner_free(p);
        if (!good) printf("    arrivals %lld\n", (long long)i);
        CHECK(good);
    }
}

TEST(planner_takes_what_is_full_and_keeps_the_rest) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 100;
    o.dp = 2;
    o.multiple = 2;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    ravel_plan *plan = NULL;
    CHECK_OK(planner_with_fill(&o, 0.9, &p, &err), &err);
    CHECK_EQ(ravel_planner_take(p, 1, &plan, NULL), RAVEL_E_END);
    const int64_t lengths[] = {60, 35, 95, 50}, ids[] = {7, 8, 9, 10};
    ravel_plan_input in = {.size = sizeof in, .count = 4, .lengths = lengths};
    CHECK_OK(ravel_planner_push(p, &in, ids, &err), &err);
    CHECK_OK(ravel_planner_take(p, 0, &plan, &err), &err);
    CHECK_EQ(plan->micro_steps, 1);
    CHECK_EQ(plan->stats.samples, 3);
    CHECK_EQ(ravel_planner_waiting(p), 1);
    const int64_t *taken = ravel_planner_ids(plan);
    CHECK(taken[0] == 7 && taken[1] == 8 && taken[2] == 9);
    ravel_plan_free(plan);
    CHECK_EQ(ravel_planner_take(p, 0, &plan, &err), RAVEL_E_END);
    CHECK_EQ(err.status, RAVEL_OK); /* nothing went wrong, and the next error must find the record empty */
    in.count = -1;
    CHECK_EQ(ravel_planner_push(p, &in, ids, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "count -1");
    ravel_error_clear(&err);
    CHECK_OK(ravel_planner_take(p, 1, &plan, &err), &err);
    CHECK_EQ(plan->micro_steps, 1); /* the second of a multiple of two */
    CHECK_EQ(plan->stats.samples, 1);
    CHECK_EQ(plan->stats.fillers, 1);
    CHECK_EQ(ravel_planner_ids(plan)[0], 10);
    ravel_plan_free(plan);
    CHECK_EQ(ravel_planner_take(p, 1, &plan, &err), RAVEL_E_END);
    ravel_planner_free(p);
}

TEST(planner_flushes_fillers_alone_where_the_multiple_asks_for_them) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 10;
    o.dp = 1;
    o.multiple = 3;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    ravel_plan *plan = NULL;
    CHECK_OK(planner_with_fill(&o, 1, &p, &err), &err);
    const int64_t length = 10;
    ravel_plan_input in = {.size = sizeof in, .count = 1, .lengths = &length};
    CHECK_OK(ravel_planner_push(p, &in, NULL, &err), &err);
    CHECK_OK(ravel_planner_take(p, 0, &plan, &err), &err);
    ravel_plan_free(plan);
    CHECK_OK(ravel_planner_take(p, 1, &plan, &err), &err);
    CHECK_EQ(plan->micro_steps, 2);
    CHECK_EQ(plan->stats.fillers, 2);
    ravel_plan_free(plan);
    ravel_planner_free(p);
}

TEST(planner_says_what_is_wrong_and_takes_nothing_in) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 10;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    CHECK_EQ(planner_with_fill(&o, 0, &p, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "fill is 0");
    ravel_error_clear(&err);
    o.updates = 2;
    CHECK_EQ(planner_with_fill(&o, 1, &p, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "flushing");
    ravel_error_clear(&err);
    o.updates = 1;
    CHECK_OK(planner_with_fill(&o, 1, &p, &err), &err);
    const int64_t lengths[] = {1, 11};
    const int32_t homes[] = {0, 0};
    ravel_plan_input in = {.size = sizeof in, .count = 2, .lengths = lengths};
    CHECK_EQ(ravel_planner_push(p, &in, NULL, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "sample 1 has 11 tokens");
    CHECK_EQ(ravel_planner_waiting(p), 0);
    ravel_error_clear(&err);
    in.count = 1;
    CHECK_OK(ravel_planner_push(p, &in, NULL, &err), &err);
    in.homes = homes;
    CHECK_EQ(ravel_planner_push(p, &in, NULL, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "has homes and earlier ones of the update had none");
    CHECK_EQ(ravel_planner_waiting(p), 1);
    ravel_planner_free(p);
}

static ravel_status arrive(const ravel_allocator *allocator, void *user) {
    plan_case *c = user;
    c->options.allocator = allocator;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    ravel_plan *plan = NULL;
    ravel_status status = planner_with_fill(&c->options, 0.9, &p, &err);
    for (int64_t from = 0; !status && from < c->input.count; from += 40) {
        int64_t left = c->input.count - from;
        ravel_plan_input in = slice(c, from, left < 40 ? left : 40);
        status = ravel_planner_push(p, &in, NULL, &err);
        if (!status) status = ravel_planner_take(p, 0, &plan, &err);
        if (!status) ravel_plan_free(plan);
        if (status == RAVEL_E_END) status = RAVEL_OK;
    }
    if (!status) {
        ravel_error_clear(&err);
        status = ravel_planner_take(p, 1, &plan, &err);
        if (!status) ravel_plan_free(plan);
    }
    ravel_planner_free(p);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

TEST(planner_every_allocation_may_fail) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 3);
    static plan_case c;
    for (int i = 0; i < 6; i++) {
        plan_case_draw(&c, &rng, 100);
        for_arrivals(&c);
        c.options.effort = RAVEL_EFFORT_DEFAULT;
        if (i == 5) {
            c.input.groups = c.groups;
            c.options.group_rule = RAVEL_GROUPS_RANK;
        }
        CHECK(check_every_allocation(arrive, &c) >= 0);
    }
}

/* ---- quality ------------------------------------------------------------------------------------------------ */

/* Pushes samples a few at a time and takes what is ready; adds up times and costs over all that was taken. */
typedef struct stream {
    double time, cost;
    int64_t taken, steps, fillers;
    double rank[64];
} stream;

static void add_plan(stream *s, ravel_plan *plan) {
    for (int64_t b = 0; b < plan->bins; b++) s->rank[b % plan->dp] += (double)plan->bin_costs[b];
    s->time += (double)plan->stats.time_micro_step * plan->dp;
    s->cost += (double)plan->stats.cost;
    s->taken += plan->stats.samples;
    s->steps += plan->micro_steps;
    s->fillers += plan->stats.fillers;
    ravel_plan_free(plan);
}

static bool run_stream(ravel_planner *p, const ravel_plan_input *all, int64_t each, stream *s) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    memset(s, 0, sizeof *s);
    for (int64_t i = 0; i < all->count; i += each) {
        ravel_plan_input in = *all;
        in.count = all->count - i < each ? all->count - i : each;
        in.lengths += i;
        if (in.groups) in.groups += i;
        ravel_planner_advance(p, i, i / 512);
        if (!EXPECT(ravel_planner_push(p, &in, NULL, &err) == RAVEL_OK)) return false;
        while (ravel_planner_take(p, 0, &plan, &err) == RAVEL_OK) add_plan(s, plan);
    }
    while (ravel_planner_take(p, 1, &plan, &err) == RAVEL_OK) add_plan(s, plan);
    return EXPECT(err.status == RAVEL_OK) && EXPECT(s->taken == all->count);
}

TEST(planner_is_nearly_as_balanced_as_a_batch) {
    static int64_t lengths[4096];
    plan_lognormal(lengths, 4096, 4096, 1.1, 1024, 8192, 11);
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = 16;
    o.cost = (ravel_cost){24576, 1, 0};
    ravel_plan_input in = {.size = sizeof in, .count = 4096, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    stream s;
    CHECK_OK(planner_with_fill(&o, 0.95, &p, &err), &err);
    CHECK(run_stream(p, &in, 8, &s));
    ravel_planner_report r = {.size = sizeof r};
    ravel_planner_get_report(p, &r);
    CHECK(1 - s.cost / s.time < 0.015); /* one batch: 0.001 */
    CHECK(r.steps_max <= 2);
    CHECK_EQ(r.samples, 4096);
    double least = 1e9, most = 0;
    for (int c = 0; c < RAVEL_WAIT_CLASSES; c++) {
        if (r.count[c] < 100) continue;
        if (r.wait_mean[c] < least) least = r.wait_mean[c];
        if (r.wait_mean[c] > most) most = r.wait_mean[c];
    }
    CHECK(most <= 2 * least + 16); /* long samples do not wait longer */
    ravel_planner_free(p);
}

/* Costs of a few hundred: each rank's share used to be rounded down to nothing, so that all groups went to rank 0. */
TEST(planner_spreads_groups_of_small_cost_over_all_ranks) {
    static int64_t lengths[1024], groups[1024];
    for (int i = 0; i < 1024; i++) {
        lengths[i] = 200;
        groups[i] = i / 4;
    }
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 1000;
    o.dp = 4;
    o.group_rule = RAVEL_GROUPS_RANK;
    ravel_plan_input in = {.size = sizeof in, .count = 1024, .lengths = lengths, .groups = groups};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    stream s;
    CHECK_OK(planner_with_fill(&o, 0.95, &p, &err), &err);
    CHECK(run_stream(p, &in, 16, &s));
    for (int r = 0; r < 4; r++) CHECK(s.rank[r] > 0.98 * s.cost / 4 && s.rank[r] < 1.02 * s.cost / 4);
    CHECK(s.fillers <= 4);
    ravel_planner_free(p);
}

TEST(planner_takes_what_a_deadline_or_the_version_forces) {
    const int64_t lengths[] = {30, 20, 10}, deadlines[] = {100, 50, 100}, versions[] = {1, 1, 3};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 100;
    o.dp = 2;
    ravel_planner_options how;
    ravel_planner_options_default(&how);
    how.max_stale = 2;
    how.idle = 0;
    ravel_plan_input in = {
        .size = sizeof in, .count = 3, .lengths = lengths, .deadlines = deadlines, .versions = versions};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_planner *p = NULL;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_planner_create(&o, &how, &p, &err), &err);
    ravel_planner_advance(p, 10, 2);
    CHECK_OK(ravel_planner_push(p, &in, NULL, &err), &err);
    CHECK_EQ(ravel_planner_take(p, 0, &plan, &err), RAVEL_E_END);
    ravel_planner_advance(p, 50, 2); /* the second one's deadline */
    CHECK_OK(ravel_planner_take(p, 0, &plan, &err), &err);
    ravel_plan_free(plan);
    CHECK_EQ(ravel_planner_waiting(p), 0); /* the others fit beside it */
    in.deadlines = NULL;
    CHECK_OK(ravel_planner_push(p, &in, NULL, &err), &err);
    CHECK_EQ(ravel_planner_take(p, 0, &plan, &err), RAVEL_E_END);
    ravel_planner_advance(p, 60, 3); /* version 1 is two behind: it must not wait for version 4 */
    CHECK_OK(ravel_planner_take(p, 0, &plan, &err), &err);
    ravel_plan_free(plan);
    ravel_planner_report r = {.size = sizeof r};
    ravel_planner_get_report(p, &r);
    CHECK(r.stale_max <= 2);
    CHECK_EQ(r.forced, 2);
    ravel_planner_free(p);
    how.max_wait = INT64_MAX; /* as good as no limit, whatever the time is */
    CHECK_OK(ravel_planner_create(&o, &how, &p, &err), &err);
    ravel_planner_advance(p, 60, 3);
    in.versions = NULL;
    CHECK_OK(ravel_planner_push(p, &in, NULL, &err), &err);
    CHECK_EQ(ravel_planner_take(p, 0, &plan, &err), RAVEL_E_END);
    ravel_planner_free(p);
    how.fill = 2;
    CHECK_EQ(ravel_planner_create(&o, &how, &p, &err), RAVEL_E_ARGUMENT);
}
