/* Predicted bubbles of pipelines: against the longest path through the schedule, built here from lists, and the
 * textbook. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include <ravel/plan.h>

#include <math.h>

enum { MOST_STEPS = 24, MOST_PP = 6, MOST_VPP = 3, MOST_OPS = 2 * MOST_STEPS * MOST_VPP };

typedef struct node {
    int step, chunk, backward;
    double end;
} node;

typedef struct schedule {
    int pp, vpp, count;
    int64_t costs[MOST_STEPS];
    node list[MOST_PP][MOST_OPS]; /* the operations of each stage, in order */
} schedule;

/* The order in which micro-steps and chunks go forward: by groups of pp, chunk after chunk. */
static int list_forwards(const schedule *s, node *list) {
    int n = 0, group = s->vpp > 1 ? s->pp : s->count;
    for (int first = 0; first < s->count; first += group)
        for (int chunk = 0; chunk < s->vpp; chunk++)
            for (int step = first; step < first + group; step++) list[n++] = (node){step, chunk, 0, 0};
    return n;
}

static void list_stage(schedule *s, int stage) {
    node forward[MOST_OPS];
    int n = list_forwards(s, forward), ahead = s->pp - stage - 1, f = 0, b = 0, at = 0;
    if (s->vpp > 1) ahead = 2 * ahead + (s->vpp - 1) * s->pp;
    while (b < n) {
        int is_forward = f < n && f - b <= ahead; /* at most `ahead` forwards without their backward, and one more */
        node o = forward[is_forward ? f++ : b++];
        if (!is_forward) o = (node){o.step, s->vpp - 1 - o.chunk, 1, 0};
        s->list[stage][at++] = o;
    }
}

static double end_of(const schedule *s, int part, int step, int backward) {
    int stage = part % s->pp, chunk = part / s->pp;
    for (int i = 0; i < 2 * s->count * s->vpp; i++) {
        const node *o = &s->list[stage][i];
        if (o->step == step && o->chunk == chunk && o->backward == backward) return o->end;
    }
    return -1;
}

/* Ends are raised until none changes: the longest path. */
static double longest_path(schedule *s) {
    double time = 0;
    for (int changed = 1; changed;) {
        changed = 0;
        for (int stage = 0; stage < s->pp; stage++)
            for (int i = 0; i < 2 * s->count * s->vpp; i++) {
                node *o = &s->list[stage][i];
                int part = o->chunk * s->pp + stage, last = s->pp * s->vpp - 1;
                double from = i ? s->list[stage][i - 1].end : 0, input = 0;
                if (!o->backward && part > 0) input = end_of(s, part - 1, o->step, 0);
                if (o->backward) input = end_of(s, part == last ? part : part + 1, o->step, part != last);
                if (input > from) from = input;
                double end = from + (double)s->costs[o->step] * (o->backward ? 2 : 1) / (3.0 * s->pp * s->vpp);
                if (end > o->end + 1e-9) changed = 1;
                if (end > o->end) o->end = end;
                if (o->end > time) time = o->end;
            }
    }
    return time;
}

TEST(plan_bubble_is_the_longest_path_of_the_schedule) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 41);
    static schedule s;
    for (int64_t round = 0; round < check_rounds(60, 3000); round++) {
        s.pp = 1 + (int)ravel__rng_below(&rng, MOST_PP);
        s.vpp = s.pp == 1 ? 1 : 1 + (int)ravel__rng_below(&rng, MOST_VPP);
        s.count = (int)ravel__rng_below(&rng, 9);
        if (s.vpp > 1) s.count = (1 + s.count % 3) * s.pp;
        double sum = 0;
        for (int i = 0; i < s.count; i++) {
            s.costs[i] = (int64_t)ravel__rng_below(&rng, 1000);
            sum += (double)s.costs[i];
        }
        for (int stage = 0; stage < s.pp; stage++) list_stage(&s, stage);
        ravel_bubble bubble;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_pipeline_bubble(s.costs, s.count, s.pp, s.vpp, &bubble, &err), &err);
        double time = longest_path(&s);
        if (!EXPECT(fabs(bubble.time - time) < 1e-6 * (1 + time)))
            printf("    pp %d, vpp %d, %d micro-steps: %g, not %g\n", s.pp, s.vpp, s.count, bubble.time, time);
        CHECK(fabs(bubble.busy - sum / s.pp) < 1e-6 * (1 + sum));
        CHECK(bubble.share >= -1e-12 && bubble.share <= 1);
    }
}

TEST(plan_bubble_of_equal_micro_steps_is_the_textbook_one) {
    int64_t costs[MOST_STEPS];
    for (int i = 0; i < MOST_STEPS; i++) costs[i] = 600;
    for (int32_t pp = 1; pp <= 6; pp++)
        for (int32_t vpp = 1; vpp <= (pp > 1 ? 4 : 1); vpp++)
            for (int32_t n = pp; n <= MOST_STEPS; n += pp) {
                ravel_bubble bubble;
                double ideal = (double)(pp - 1) / (double)(vpp * n + pp - 1);
                CHECK(ravel_pipeline_bubble(costs, n, pp, vpp, &bubble, NULL) == RAVEL_OK);
                if (!EXPECT(fabs(bubble.share - ideal) < 1e-9))
                    printf("    pp %d vpp %d n %d: %g, not %g\n", pp, vpp, n, bubble.share, ideal);
            }
}

/* A plan's bubble is that of its slowest rank in each update. */
TEST(plan_bubble_of_a_plan_is_that_of_its_slowest_rank) {
    enum { COUNT = 300 };
    int64_t lengths[COUNT], costs[COUNT];
    plan_lognormal(lengths, COUNT, 500, 1.0, 10, 2000, 3);
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 4000;
    o.dp = 3;
    o.updates = 2;
    o.multiple = 4;
    o.sync = RAVEL_SYNC_PIPELINE;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    for (int32_t vpp = 1; vpp <= 2; vpp++) {
        double time = 0;
        ravel_bubble whole, one;
        for (int64_t u = 0; u < plan->updates; u++) {
            double slowest = 0;
            int64_t first = plan->update_offsets[u], count = plan->update_offsets[u + 1] - first;
            for (int32_t rank = 0; rank < plan->dp; rank++) {
                for (int64_t i = 0; i < count; i++) costs[i] = plan->bin_costs[(first + i) * plan->dp + rank];
                CHECK_OK(ravel_pipeline_bubble(costs, count, 4, vpp, &one, &err), &err);
                if (one.time > slowest) slowest = one.time;
            }
            time += slowest;
        }
        CHECK_OK(ravel_plan_bubble(plan, 4, vpp, &whole, &err), &err);
        CHECK(fabs(whole.time - time) < 1e-6 * time);
        CHECK(fabs(whole.busy * 4 * 3 - (double)plan->stats.cost) < 1e-6 * (double)plan->stats.cost);
        CHECK(whole.share > 0 && whole.share < 0.5);
    }
    ravel_plan_free(plan);
}

TEST(plan_bubble_refuses_what_has_no_schedule) {
    int64_t costs[3] = {1, 2, 3};
    ravel_bubble bubble = {7, 7, 7};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_pipeline_bubble(costs, 3, 2, 2, &bubble, &err), RAVEL_E_ARGUMENT);
    CHECK(strstr(err.message, "set multiple to 2"));
    CHECK_EQ(ravel_pipeline_bubble(costs, 3, 1, 2, &bubble, NULL), RAVEL_E_ARGUMENT);
    CHECK_EQ(ravel_pipeline_bubble(costs, 3, 0, 1, &bubble, NULL), RAVEL_E_ARGUMENT);
    costs[1] = -1;
    CHECK_EQ(ravel_pipeline_bubble(costs, 3, 2, 1, &bubble, NULL), RAVEL_E_DATA);
    CHECK(bubble.time == 7); /* outputs are set only on success */
    costs[1] = 2;
    CHECK_EQ(ravel_pipeline_bubble(costs, 0, 4, 2, &bubble, NULL), RAVEL_OK);
    CHECK(bubble.time == 0 && bubble.share == 0);
}
