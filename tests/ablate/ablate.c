/* Which parts of the solver earn their keep: the mean of time over bound, and processor time, over many plans with each
 * part turned off in turn.
 *
 *     sh tests/ablate/run.sh
 *
 * Plans: six distributions (one with a sample that outweighs a rank), 128 to 8192 samples, 8 and 64 ranks, both syncs;
 * packed at default and max, padded, groups on ranks, the caller's costs, and hybrid pools. A part whose removal changes nothing should be removed. */
#include "base/rng.h"
#include "plan/limits.h"

#include <ravel/plan.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint32_t ravel__parts_off;

enum { MOST = 8192, KINDS = 6 };

static const char *const kinds[KINDS] = {"packed", "max", "padded", "groups", "costs", "hybrid"};

static double uniform(ravel__rng *rng) {
    return (double)ravel__rng_below(rng, 1 << 30) / (1 << 30);
}

static int64_t draw(ravel__rng *rng, int distribution) {
    double u = uniform(rng), z = -6; /* nearly normal: twelve uniform numbers */
    for (int i = 0; i < 12; i++) z += uniform(rng);
    double x = distribution == 0   ? 1 + u * 8191
               : distribution == 1 ? exp(7.5 + 1.1 * z)
               : distribution == 2 ? exp(6.0 + 0.8 * z)
               : distribution == 3 ? (u < 0.03 ? 8192 : exp(6.5 + 0.7 * z))
               : distribution == 5 ? exp(4.0 + 0.5 * z)
                                   : 4096 * (0.5 + u / 2);
    return x < 16 ? 16 : x > 8192 ? 8192 : (int64_t)x;
}

/* Time over bound less 1, in percent; and seconds. */
static double plan_one(int kind, int distribution, int64_t count, int32_t dp, int32_t sync, double *seconds) {
    static int64_t lengths[MOST], costs[MOST], groups[MOST];
    ravel__rng rng = ravel__rng_seed((uint64_t)(distribution * 1000 + count));
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = draw(&rng, distribution);
        costs[i] = lengths[i] * (1 + (int64_t)ravel__rng_below(&rng, 3));
        groups[i] = i / 4;
    }
    if (distribution == 5) lengths[count / 2] = 16384;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = dp;
    o.sync = sync;
    o.cost = (ravel_cost){24576, 1, 0};
    if (distribution == 5) o.min_micro_steps = 3; /* the rank of that sample gets fillers */
    ravel_plan_input in = {.size = sizeof in, .count = count, .lengths = lengths};
    if (kind == 1) o.effort = RAVEL_EFFORT_MAX;
    if (kind == 2) o.layout = RAVEL_LAYOUT_PADDED;
    if (kind == 3) o.group_rule = RAVEL_GROUPS_RANK;
    if (kind == 3) in.groups = groups;
    if (kind == 4) in.costs = costs;
    if (kind == 5) {
        o.cp_pool = dp;
        o.dp = 1;
        o.sync = 0;
        o.budget = 2048;
        o.cost.overhead = 24576 * 256;
    }
    ravel_plan *plan = NULL;
    clock_t begin = clock();
    if (ravel_plan_create(&in, &o, &plan, NULL) != RAVEL_OK) exit(1);
    *seconds += (double)(clock() - begin) / CLOCKS_PER_SEC;
    double over = 100 * ((double)plan->stats.time / (double)plan->stats.time_lower_bound - 1);
    ravel_plan_free(plan);
    return over;
}

static double run_kind(int kind, double *seconds) {
    static const int64_t counts[] = {128, 512, 2048, 8192};
    double sum = 0;
    int plans = 0;
    for (int d = 0; d < 6; d++)
        for (int c = 0; c < (kind == 1 ? 3 : 4); c++)
            for (int32_t dp = 8; dp <= 64; dp *= 8)
                for (int32_t sync = 0; sync < 2; sync++, plans++)
                    sum += plan_one(kind, d, counts[c], dp, sync, seconds);
    return sum / plans;
}

int main(void) {
#define X(NAME, name) name,
    static const char *const parts[] = {RAVEL__PART_LIST(X)};
#undef X
    double base[KINDS];
    printf("%-26s", "percent over the bound");
    for (int k = 0; k < KINDS; k++) printf("%10s", kinds[k]);
    printf("%10s\n", "seconds");
    for (int part = -1; part < RAVEL__PARTS; part++) {
        double seconds = 0;
        ravel__parts_off = part < 0 ? 0 : 1u << part;
        printf("%-26s", part < 0 ? "all parts" : parts[part]);
        for (int k = 0; k < KINDS; k++) {
            double over = run_kind(k, &seconds);
            if (part < 0) base[k] = over;
            printf(part < 0 ? "%10.4f" : "%+10.4f", part < 0 ? over : over - base[k]);
        }
        printf("%10.2f\n", seconds);
        (void)fflush(stdout);
    }
    return 0;
}
