/* Phase clocks: nesting, cutting, misuse. */
#include "tests/unit/metrics_values.h"

#include "base/rng.h"

#include <math.h>
#include <time.h>

static void spend(double seconds) {
    struct timespec t = {0, (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

TEST(metrics_phases_nest_and_add_up) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_begin(m);
    CHECK_OK(ravel_metrics_phase_begin(m, RAVEL_PHASE_BACKWARD, &err), &err);
    spend(0.004);
    CHECK_OK(ravel_metrics_phase_begin(m, RAVEL_PHASE_ALL_REDUCE, &err), &err);
    CHECK_OK(ravel_metrics_phase_begin(m, RAVEL_PHASE_BACKWARD, &err), &err); /* again, inside itself */
    spend(0.003);
    CHECK_EQ(ravel_metrics_phase_end(m, RAVEL_PHASE_ALL_REDUCE, NULL), RAVEL_E_STATE);
    CHECK_OK(ravel_metrics_phase_end(m, RAVEL_PHASE_BACKWARD, &err), &err);
    CHECK_OK(ravel_metrics_phase_end(m, RAVEL_PHASE_ALL_REDUCE, &err), &err);
    CHECK_OK(ravel_metrics_phase_end(m, RAVEL_PHASE_BACKWARD, &err), &err);
    spend(0.002);
    ravel_metrics_phase_add(m, RAVEL_PHASE_REFIT, 1.5);
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    double backward = value(m, "time/backward_mean_sec"), self = value(m, "time/backward_self_sec");
    double reduce = value(m, "time/all_reduce_mean_sec");
    CHECK(backward >= 0.007 && reduce >= 0.003 && backward >= reduce);
    CHECK(value(m, "time/backward_max_sec") == backward && value(m, "time/backward_slowest_rank") == 0);
    CHECK(fabs(self + value(m, "time/all_reduce_self_sec") - backward) < 1e-6);
    CHECK(value(m, "time/refit_mean_sec") == 1.5);
    CHECK(value(m, "time_total/backward_sec") == backward);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err); /* a phase that was seen is shown as 0 from then on */
    CHECK(value(m, "time/backward_mean_sec") == 0 && value(m, "time_total/backward_sec") == backward);
    CHECK(absent(m, "time/backward_slowest_rank") && absent(m, "time/forward_mean_sec"));
    ravel_metrics_free(m);
}

TEST(metrics_self_times_and_the_rest_add_up_to_the_update) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_begin(m);
    for (int i = 0; i < RAVEL_PHASES; i++) {
        CHECK_OK(ravel_metrics_phase_begin(m, (ravel_phase)i, &err), &err);
        spend(0.0005);
        if (i % 2) CHECK_OK(ravel_metrics_phase_end(m, (ravel_phase)i, &err), &err);
        spend(0.0005);
    }
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err); /* six phases are still open: they are cut here */
    double sum = value(m, "time/other_sec");
    for (int i = 0; i < RAVEL_PHASES; i++) {
        char name[64];
        snprintf(name, sizeof name, "time/%s_self_sec", ravel_phase_name(i));
        sum += value(m, name);
    }
    CHECK(fabs(sum - value(m, "time/wall_sec")) < 1e-7);
    spend(0.001);
    for (int i = (RAVEL_PHASES - 1) / 2 * 2; i >= 0; i -= 2)
        CHECK_OK(ravel_metrics_phase_end(m, (ravel_phase)i, &err), &err);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err);
    CHECK(value(m, "time/checkpoint_mean_sec") >= 0.001 && value(m, "time/eval_mean_sec") == 0);
    ravel_metrics_free(m);
}

static double sum_of(ravel_metrics *m, const char *kind) {
    double sum = 0;
    for (int i = 0; i < RAVEL_PHASES; i++) {
        char name[64];
        snprintf(name, sizeof name, "time/%s_%s_sec", ravel_phase_name(i), kind);
        if (!absent(m, name)) sum += value(m, name);
    }
    return sum;
}

/* Phases in any nesting, left open over rows or not, with ravel_metrics_begin anywhere: a row's phases and the rest add up to
 * the time since the row before, and evaluation and checkpoints are no part of the update. */
TEST(metrics_phases_are_a_partition_of_the_time) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_metrics *m = make(NULL);
    int32_t open[16], depth = 0;
    double update = 0;
    CHECK(m);
    for (int64_t row = 1; row <= check_scale(200, 4000); row++) {
        int eval = 0;
        for (uint64_t n = ravel__rng_below(&r, 12); n > 0; n--) {
            int32_t phase = (int32_t)ravel__rng_below(&r, RAVEL_PHASES);
            if (depth < 16 && ravel__rng_below(&r, 2)) {
                if (!ravel_metrics_phase_begin(m, (ravel_phase)phase, NULL)) open[depth++] = phase;
            } else if (depth > 0) {
                CHECK_EQ(ravel_metrics_phase_end(m, (ravel_phase)open[--depth], NULL), RAVEL_OK);
            }
            for (uint64_t k = ravel__rng_below(&r, 2000); k > 0; k--) update += (double)k;
            if (ravel__rng_below(&r, 20) == 0) ravel_metrics_begin(m);
        }
        CHECK_EQ(ravel_metrics_update(m, row, NULL), RAVEL_OK);
        double wall = value(m, "time/wall_sec"), other = value(m, "time/other_sec"),
               inside = value(m, "time/update_sec");
        if (!EXPECT(fabs(sum_of(m, "self") + other - wall) < 1e-9 && other >= 0 && inside >= 0 &&
                    inside <= wall + 1e-9))
            printf("    row %lld: wall %.9f, other %.9f, update %.9f\n", (long long)row, wall, other, inside);
        for (int i = 0; i < depth; i++) eval |= open[i] == RAVEL_PHASE_EVAL;
        if (eval) { /* the row to come lies in it as a whole, but for a beginning */
            CHECK_EQ(ravel_metrics_update(m, ++row, NULL), RAVEL_OK);
            CHECK(value(m, "time/update_sec") == 0 && value(m, "time/eval_mean_sec") > 0);
        }
    }
    CHECK(update > 0);
    ravel_metrics_free(m);
}

TEST(metrics_phases_misused) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_metrics_phase_end(m, RAVEL_PHASE_FEED, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "phase feed cannot end: the innermost open phase is none");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_metrics_phase_begin(m, (ravel_phase)99, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    for (int i = 0; i < 16; i++) CHECK_OK(ravel_metrics_phase_begin(m, RAVEL_PHASE_FEED, &err), &err);
    CHECK_EQ(ravel_metrics_phase_begin(m, RAVEL_PHASE_FEED, &err), RAVEL_E_STATE);
    ravel_metrics_phase_add(m, (ravel_phase)-1, 1);
    ravel_metrics_phase_add(m, RAVEL_PHASE_FEED, NAN);
    ravel_metrics_phase_add(m, RAVEL_PHASE_FEED, -1);
    ravel_metrics_free(m);
}
