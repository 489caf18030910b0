/* Advantages against hand-worked ones; the loss's derivative against finite differences, for every variant. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "tests/unit/normal.h"
#include "train/kernels/kernels.h"
#include "train/rl/policy.h"

#include <math.h>

static int near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * (1 + fabs(a) + fabs(b));
}

TEST(policy_advantages_by_hand) {
    const double rewards[] = {1, 0, 5, 0, 1, 5, 2};
    const int64_t groups[] = {7, 7, -3, 7, 7, -3, 99};
    double a[7];
    int64_t scratch[14];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_advantages(RAVEL_ADVANTAGE_GRPO, rewards, groups, 7, a, scratch, &err), &err);
    double std = sqrt(1.0 / 3); /* of 1 0 0 1 with G - 1 */
    CHECK(near(a[0], 0.5 / (std + 1e-6), 1e-12) && near(a[1], -0.5 / (std + 1e-6), 1e-12));
    CHECK(a[2] == 0 && a[5] == 0 && a[6] == 0); /* the equal pair, and the group of one */
    CHECK_OK(ravel_advantages(RAVEL_ADVANTAGE_DR_GRPO, rewards, groups, 7, a, scratch, &err), &err);
    CHECK(near(a[0], 0.5, 1e-12) && near(a[3], -0.5, 1e-12));
    CHECK_OK(ravel_advantages(RAVEL_ADVANTAGE_RLOO, rewards, groups, 7, a, scratch, &err), &err);
    CHECK(near(a[0], 1 - 1.0 / 3, 1e-12) && near(a[1], 0 - 2.0 / 3, 1e-12));
    CHECK_OK(ravel_advantages(RAVEL_ADVANTAGE_NONE, rewards, groups, 7, a, scratch, &err), &err);
    CHECK(a[2] == 5 && a[6] == 2);
}

TEST(policy_overlong_punishment_is_linear) {
    train_policy p = {.overlong_buffer = 4, .overlong_penalty = 2};
    CHECK(train_overlong(&p, 16, 20) == 0 && train_overlong(&p, 17, 20) == -0.5 && train_overlong(&p, 20, 20) == -2);
    CHECK(train_overlong(&p, 25, 20) == -2);
    p.overlong_buffer = 0;
    CHECK(train_overlong(&p, 20, 20) == 0);
}

enum { TOKENS = 9 };

/* One sample's loss by the reference kernels: rows are its tokens with weight. */
static void train_policy_loss(const train_policy *policy, int64_t count, double advantage, const float *now,
                              const float *old, const float *generator, const float *trainer, const float *reference,
                              const float *weights, float *coef, train_loss_sums *sums) {
    const train_kernels *k = NULL;
    train_policy_terms terms = train_policy_terms_of(policy, trainer ? TRAIN_GAP_OLD : TRAIN_GAP_NONE, 0);
    float l[TOKENS], o[TOKENS], g[TOKENS], f[TOKENS], w[TOKENS], a[TOKENS], c[TOKENS];
    int32_t samples[TOKENS] = {0};
    train_sequence_sums sequence = {0};
    int64_t rows = 0;
    for (int64_t t = 0; t < count; t++) {
        if (weights[t] == 0) continue;
        l[rows] = now[t], o[rows] = old[t], g[rows] = generator[t], f[rows] = reference ? reference[t] : 0;
        a[rows] = (float)advantage, w[rows++] = weights[t];
    }
    train_loss_rows x = {rows, &terms, l,    NULL, w,    o,    g,   reference ? f : NULL, a, samples, &sequence,
                         c,    NULL,   sums, 0,    NULL, NULL, NULL};
    if (train_kernels_find("ref", &k, NULL)) return;
    if (train__terms_couple(&terms)) k->sequence_sums(NULL, &x, &sequence);
    k->loss(NULL, &x);
    for (int64_t t = 0, row = 0; t < count; t++) coef[t] = weights[t] != 0 ? c[row++] : 0;
}

static double loss_at(const train_policy *p, double advantage, const float *now, const float *old, const float *gen,
                      const float *ref, const float *weights) {
    float coef[TOKENS];
    train_loss_sums sums = {0};
    train_policy_loss(p, TOKENS, advantage, now, old, gen, old, ref, weights, coef, &sums);
    return sums.loss;
}

TEST(policy_derivative_is_that_of_the_loss) {
    ravel__rng r = ravel__rng_seed(check_seed());
    int moved = 0;
    for (int trial = 0; trial < 2000; trial++) {
        train_policy p;
        ravel_options_default(train_policy_option_table(), &p);
        p.ratio = trial & 1;
        p.kl_kind = trial / 2 % 3;
        p.kl = trial & 8 ? 0.3 : 0;
        p.correction = trial & 16 ? trial / 128 % RAVEL_CORRECTION_CISPO : RAVEL_CORRECTION_NONE;
        p.dual_clip = trial & 32 ? 3 : 0;
        p.clip_high = trial & 64 ? 0.28 : 0.2;
        float now[TOKENS], old[TOKENS], gen[TOKENS], ref[TOKENS], weights[TOKENS], coef[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
            now[t] = -(float)ravel__rng_unit(&r) * 3;
            old[t] = now[t] + (float)ravel__rng_normal(&r) * 0.4f;
            gen[t] = old[t] + (float)ravel__rng_normal(&r) * 0.3f;
            ref[t] = now[t] + (float)ravel__rng_normal(&r) * 0.5f;
            weights[t] = t % 4 == 1 ? 0 : (float)ravel__rng_unit(&r);
        }
        double advantage = ravel__rng_normal(&r);
        train_loss_sums sums = {0};
        train_policy_loss(&p, TOKENS, advantage, now, old, gen, old, ref, weights, coef, &sums);
        CHECK_EQ((int64_t)sums.tokens, 7);
        for (int t = 0; t < TOKENS; t++) {
            float saved = now[t], h = 0x1p-9f;
            now[t] = saved + h;
            double up = loss_at(&p, advantage, now, old, gen, ref, weights);
            now[t] = saved - h;
            double down = loss_at(&p, advantage, now, old, gen, ref, weights);
            now[t] = saved;
            double slope = (up - down) / (2.0 * (double)h),
                   middle = loss_at(&p, advantage, now, old, gen, ref, weights);
            /* How much the slope changes over the step: large only where a clip begins inside it. */
            double bend = fabs(up - 2 * middle + down) / (double)h;
            if (bend > 0.02) continue;
            CHECK(fabs(slope - (double)coef[t]) < 1e-3 * (1 + fabs(slope)) + bend);
            moved += coef[t] != 0;
        }
    }
    CHECK(moved > 4000);
}

TEST(policy_on_policy_is_plain_policy_gradient) {
    train_policy p;
    ravel_options_default(train_policy_option_table(), &p);
    float logp[3] = {-1, -2, -3}, weights[3] = {0.5f, 0, 0.25f}, coef[3];
    train_loss_sums sums = {0};
    train_policy_loss(&p, 3, 2.0, logp, logp, logp, logp, NULL, weights, coef, &sums);
    CHECK(coef[0] == -1.0f && coef[1] == 0 && coef[2] == -0.5f);
    CHECK(sums.ratio == 2 && sums.ratio_max == 1 && sums.clipped == 0 && sums.gap_exp == 2 && sums.approx_kl == 0);
    CHECK(near(sums.loss, -2 * 0.75, 1e-12));
}

/* The loss and derivative of one token by hand, where ratio, advantage and clips are chosen. */
static float slope_of(const train_policy *p, double ratio, double advantage, double generator, train_loss_sums *sums) {
    float now = -1, old = -1 - (float)log(ratio), gen = (float)generator, weight = 1, coef;
    train_policy_loss(p, 1, advantage, &now, &old, &gen, NULL, NULL, &weight, &coef, sums);
    return coef;
}

TEST(policy_clips_act_on_their_own_side) {
    static const struct {
        double ratio, advantage;
        int clipped;
    } cases[] = {{1.3, 1, 1}, {1.3, -1, 0}, {0.5, 1, 0}, {0.5, -1, 1}, {1.15, 1, 0}, {0.75, -1, 0}, {4, -1, 0}};
    train_policy p;
    ravel_options_default(train_policy_option_table(), &p);
    p.clip_low = 0.3; /* [0.7, 1.25] */
    p.clip_high = 0.25;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_loss_sums sums = {0};
        double slope = slope_of(&p, cases[i].ratio, cases[i].advantage, -1, &sums);
        CHECK(near(slope, cases[i].clipped ? 0 : -cases[i].ratio * cases[i].advantage, 1e-6));
        CHECK(sums.clipped == cases[i].clipped);
    }
    p.clip_high = 0.35; /* only what it bounds changes */
    CHECK(slope_of(&p, 1.3, 1, -1, &(train_loss_sums){0}) != 0);
    CHECK(slope_of(&p, 0.5, -1, -1, &(train_loss_sums){0}) == 0);
    p.dual_clip = 3; /* a negative advantage costs three times as much at most */
    train_loss_sums sums = {0};
    CHECK(slope_of(&p, 4, -1, -1, &sums) == 0 && sums.loss == 3);
}

TEST(policy_importance_weights_are_constants_up_to_the_cap) {
    train_policy p;
    ravel_options_default(train_policy_option_table(), &p);
    p.correction = RAVEL_CORRECTION_TIS;
    for (int i = 0; i < 2; i++) { /* the trainer finds a token 1.5 and 5 times as likely as the generator did */
        double factor = i ? 5 : 1.5, used = i ? 2 : 1.5;
        train_loss_sums sums = {0};
        double slope = slope_of(&p, 1, 1, -1 - log(factor), &sums);
        CHECK(near(slope, -used, 1e-6) && near(sums.weight, used, 1e-6) && sums.outside == i);
    }
}

/* The kernels against the library's function, over one sample: every correction, both ratios. */
TEST(policy_kernels_correct_as_the_library_does) {
    ravel__rng r = ravel__rng_seed(check_seed());
    int32_t samples[TOKENS] = {0};
    for (int trial = 0; trial < 40 * RAVEL_CORRECTIONS; trial++) {
        ravel_policy_options options;
        train_policy p;
        float now[TOKENS], old[TOKENS], gen[TOKENS], weights[TOKENS], advantages[TOKENS], coef[TOKENS], slopes[TOKENS];
        ravel_options_default(train_policy_option_table(), &p);
        ravel_policy_options_default(&options);
        options.correction = p.correction = trial % RAVEL_CORRECTIONS;
        if (p.correction && trial & 16) options.correction_high = p.correction_high = 1.2;
        options.ratio = p.ratio = p.correction != RAVEL_CORRECTION_CISPO && trial & 32 ? 1 : 0;
        float advantage = (float)ravel__rng_normal(&r);
        for (int t = 0; t < TOKENS; t++) {
            now[t] = -(float)ravel__rng_unit(&r) * 3;
            old[t] = now[t] + (float)ravel__rng_normal(&r) * 0.2f;
            gen[t] = old[t] + (float)ravel__rng_normal(&r) * 0.2f;
            weights[t] = t % 4 == 1 ? 0 : (float)ravel__rng_unit(&r);
            advantages[t] = advantage;
        }
        ravel_policy_rows rows = {.size = sizeof rows,
                                  .count = TOKENS,
                                  .logprobs = now,
                                  .old = old,
                                  .generator = gen,
                                  .advantages = advantages,
                                  .weights = weights,
                                  .samples = samples,
                                  .sample_count = 1};
        ravel_policy_sums want;
        train_loss_sums sums = {0};
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_policy_loss(&options, &rows, NULL, slopes, &want, &err), &err);
        train_policy_loss(&p, TOKENS, (double)advantage, now, old, gen, old, NULL, weights, coef, &sums);
        for (int t = 0; t < TOKENS; t++) CHECK(near(coef[t], slopes[t], 1e-5));
        CHECK(near(sums.loss, want.loss, 1e-9) && near(sums.corrected, want.corrected, 1e-12));
        CHECK(near(sums.weight, want.weight, 1e-9) && near(sums.weight_square, want.weight_square, 1e-9));
        CHECK(near(sums.raw_square, want.raw_square, 1e-9) && near(sums.outside, want.outside, 1e-12));
    }
}
