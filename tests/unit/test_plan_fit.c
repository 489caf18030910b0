/* A cost model from measurements: known coefficients come back, noise gives a small error, nonsense a sentence. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "plan/cost_fit.h"

#include <ravel/plan.h>

#include <math.h>
#include <stdlib.h>

static double uniform(ravel__rng *rng) {
    return (double)ravel__rng_below(rng, 1 << 30) / (1 << 30);
}

static void measure(ravel__rng *rng, double noise, ravel_cost_sample *s, int count) {
    static const int32_t widths[] = {1, 2, 4, 8};
    static const double prices[] = {0, 50, 120, 300};
    for (int i = 0; i < count; i++) {
        int w = i % 4, samples = 1 + (int)ravel__rng_below(rng, 20);
        s[i] = (ravel_cost_sample){.micro_steps = 1, .width = widths[w]};
        for (int k = 0; k < samples; k++) {
            double length = 100 + 20000 * uniform(rng) * uniform(rng);
            s[i].tokens += length;
            s[i].squares += length * length;
        }
        double work = (3e-6 * s[i].tokens + 2e-10 * s[i].squares) / widths[w] * (1 + prices[w] / 1000);
        s[i].seconds = (work + 0.004) * (1 + noise * (2 * uniform(rng) - 1));
    }
}

TEST(plan_fit_finds_the_coefficients) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 51);
    ravel_cost_sample s[200];
    ravel_cost_fit f;
    ravel_error err = RAVEL_ERROR_INIT;
    measure(&rng, 0, s, 200);
    CHECK_OK(ravel_cost_fit_make(s, 200, &f, &err), &err);
    CHECK(fabs(f.unit * (double)f.cost.linear / 3e-6 - 1) < 0.01);
    CHECK(fabs(f.unit * (double)f.cost.quadratic / 2e-10 - 1) < 0.01);
    CHECK(fabs(f.unit * (double)f.cost.overhead / 0.004 - 1) < 0.02);
    CHECK_EQ(f.widths, 4);
    CHECK(f.price[0] == 0 && abs(f.price[1] - 50) <= 3 && abs(f.price[2] - 120) <= 3 && abs(f.price[3] - 300) <= 3);
    CHECK(f.worst_error < 0.01);
    measure(&rng, 0.05, s, 200);
    CHECK_OK(ravel_cost_fit_make(s, 200, &f, &err), &err);
    CHECK(f.error > 0.005 && f.error < 0.05);
    CHECK(f.apart_error > 0.005 && f.apart_error < 0.05 && f.apart_worst >= f.apart_error);
}

/* Three wild times of 40 change no coefficient; they are counted, and are in no error. */
TEST(plan_fit_is_not_led_by_single_wild_samples) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 52);
    ravel_cost_sample all[160], s[40];
    ravel_cost_fit f;
    ravel_error err = RAVEL_ERROR_INIT;
    measure(&rng, 0.01, all, 160);
    for (int i = 0; i < 40; i++) s[i] = all[4 * i]; /* of one width */
    s[3].seconds *= 20;
    s[17].seconds *= 4;
    s[34].seconds *= 1.6;
    CHECK_OK(ravel_cost_fit_make(s, 40, &f, &err), &err);
    CHECK_EQ(f.far, 3);
    CHECK(f.error < 0.02 && f.apart_error < 0.03 && f.apart_error >= f.error / 2 && f.apart_worst >= f.apart_error);
    for (int i = 1; i < 40; i++) /* what it predicts is the formula that the times were made of */
        CHECK(fabs(ravel__cost_fit_seconds(&f, &s[i]) / (3e-6 * s[i].tokens + 2e-10 * s[i].squares + 0.004) - 1) <
              0.03);
    CHECK_OK(ravel_cost_fit_make(s, 19, &f, &err), &err); /* too few to keep any apart */
    CHECK(f.apart_error == 0 && f.apart_worst == 0);
}

TEST(plan_fit_leaves_out_what_cannot_be_seen) {
    ravel_cost_sample s[8];
    ravel_cost_fit f;
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < 8; i++) /* no quadratic part, no overhead */
        s[i] = (ravel_cost_sample){1000.0 * (i + 1), 1e6 * (i + 1) * (i + 1), 1, 0.001 * (i + 1), 1, 0};
    CHECK_OK(ravel_cost_fit_make(s, 8, &f, &err), &err);
    CHECK(f.cost.linear > 0 && f.error < 1e-3);
    CHECK_EQ(ravel_cost_fit_make(s, 3, &f, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "at least 4");
    ravel_error_clear(&err);
    s[2].seconds = 0;
    CHECK_EQ(ravel_cost_fit_make(s, 8, &f, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "measurement 2");
}
