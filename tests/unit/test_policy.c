/* Policy losses: slopes against finite differences over random options, one ratio per sample, and what is refused. */
#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/policy.h>

#include <math.h>
#include <string.h>

enum { TOKENS = 24, SAMPLES = 5 };

typedef struct policy_case {
    float now[TOKENS], old[TOKENS], generator[TOKENS], reference[TOKENS], advantages[TOKENS], weights[TOKENS];
    int32_t samples[TOKENS];
    ravel_policy_rows rows;
    ravel_policy_options options;
} policy_case;

static double uniform(ravel__rng *rng, double low, double high) {
    return low + (high - low) * ravel__rng_unit(rng);
}

static void make(policy_case *c, uint64_t seed) {
    ravel__rng rng = ravel__rng_seed(seed);
    for (int i = 0; i < TOKENS; i++) {
        c->now[i] = (float)uniform(&rng, -3, -0.1);
        c->old[i] = c->now[i] + (float)uniform(&rng, -0.5, 0.5);
        c->generator[i] = c->now[i] + (float)uniform(&rng, -0.5, 0.5);
        c->reference[i] = c->now[i] + (float)uniform(&rng, -0.5, 0.5);
        c->samples[i] = i % SAMPLES;
        c->weights[i] = i % 7 == 3 ? 0 : (float)uniform(&rng, 0.1, 1);
    }
    for (int i = 0; i < TOKENS; i++) c->advantages[i] = (float)(c->samples[i] % 2 ? -1.3 : 0.8);
    ravel_policy_options_default(&c->options);
    c->options.ratio = seed % 2 ? RAVEL_RATIO_SEQUENCE : RAVEL_RATIO_TOKEN;
    c->options.kl_kind = (int32_t)(seed / 2 % 3);
    c->options.kl = seed % 3 ? 0.1 : 0;
    c->options.tis = seed % 5 ? 0 : 1.1;
    c->options.dual_clip = seed % 4 ? 0 : 3;
    c->rows = (ravel_policy_rows){sizeof c->rows, TOKENS,        c->now,     c->old,     c->generator,
                                  c->reference,   c->advantages, c->weights, c->samples, SAMPLES};
}

static double loss_of(policy_case *c) {
    ravel_policy_sums sums;
    ravel_error err = RAVEL_ERROR_INIT;
    return ravel_policy_loss(&c->options, &c->rows, NULL, NULL, &sums, &err) ? NAN : sums.loss;
}

/* The importance weight moves with o alone, so moving l leaves it as it is. Near a corner of the clip the difference is none. */
TEST(policy_slopes_are_derivatives) {
    policy_case c;
    for (uint64_t seed = 0; seed < 60; seed++) {
        float losses[TOKENS], slopes[TOKENS];
        double total = 0;
        int wrong = 0;
        ravel_policy_sums sums;
        ravel_error err = RAVEL_ERROR_INIT;
        make(&c, seed);
        CHECK(ravel_policy_loss(&c.options, &c.rows, losses, slopes, &sums, &err) == RAVEL_OK);
        for (int i = 0; i < TOKENS; i++) {
            const float was = c.now[i], step = 1e-3f;
            total += (double)losses[i];
            c.now[i] = was + step;
            const double high = loss_of(&c), width = (double)c.now[i];
            c.now[i] = was - step;
            const double difference = (high - loss_of(&c)) / (width - (double)c.now[i]);
            c.now[i] = was;
            wrong += fabs(difference - (double)slopes[i]) > 2e-3 * (1 + fabs(difference));
        }
        CHECK(wrong <= 2);
        CHECK(fabs(total - sums.loss) < 1e-5 * (1 + fabs(total)));
        CHECK(sums.tokens == 21 && losses[3] == 0 && slopes[3] == 0);
    }
}

TEST(policy_first_step_is_plain_policy_gradient) {
    policy_case c;
    float slopes[TOKENS];
    ravel_policy_sums sums;
    ravel_error err = RAVEL_ERROR_INIT;
    make(&c, 6); /* token ratios, no kl, no cap */
    c.options.dual_clip = 0;
    c.rows.old = NULL;
    c.now[3] = NAN; /* its weight is 0 */
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_OK);
    CHECK(sums.ratio == sums.tokens && sums.clipped == 0 && sums.approx_kl == 0);
    for (int i = 0; i < TOKENS; i++) CHECK(fabsf(slopes[i] + c.weights[i] * c.advantages[i]) < 1e-6f);
}

TEST(policy_refuses) {
    policy_case c;
    float slopes[TOKENS];
    double advantage = 0, reward = 1;
    int64_t group = 1, scratch[2];
    ravel_policy_sums sums;
    ravel_error err = RAVEL_ERROR_INIT;
    make(&c, 5);
    c.rows.generator = NULL;
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
    CHECK(strstr(err.message, "generator") && strstr(err.message, "tis"));
    err = (ravel_error)RAVEL_ERROR_INIT;
    make(&c, 1);
    c.samples[2] = SAMPLES;
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_DATA);
    CHECK(strstr(err.message, "token 2 is of sample 5"));
    err = (ravel_error)RAVEL_ERROR_INIT;
    c.options.clip_low = 2;
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK(ravel_advantages(9, &reward, &group, 1, &advantage, scratch, &err) == RAVEL_E_ARGUMENT);
    err = (ravel_error)RAVEL_ERROR_INIT;
    reward = NAN;
    CHECK(ravel_advantages(RAVEL_ADVANTAGE_GRPO, &reward, &group, 1, &advantage, scratch, &err) == RAVEL_E_DATA);
    CHECK_HAS(err.message, "sample 0");
    err = (ravel_error)RAVEL_ERROR_INIT;
    make(&c, 1);
    c.options.dual_clip = 0.5;
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "above 1");
    err = (ravel_error)RAVEL_ERROR_INIT;
    memset(&c.options, 0, sizeof c.options);
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "size is 0");
    c.rows.count = 0;
    ravel_policy_options_default(&c.options);
    CHECK(ravel_policy_loss(NULL, &c.rows, NULL, NULL, &sums, &err) == RAVEL_OK && sums.loss == 0);
}
