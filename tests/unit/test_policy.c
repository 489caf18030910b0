/* Policy losses: slopes against finite differences over random options, one ratio per sample, and what is refused. */
#include "base/rng.h"
#include "batch/policy_terms.h"
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
    c->options.correction = seed % 5 ? RAVEL_CORRECTION_NONE : (int32_t)(seed / 5 % RAVEL_CORRECTION_CISPO);
    c->options.correction_high = c->options.correction ? 1.1 : 0;
    c->options.dual_clip = seed % 4 ? 0 : 3;
    c->rows = (ravel_policy_rows){sizeof c->rows, TOKENS,        c->now,     c->old,     c->generator,
                                  c->reference,   c->advantages, c->weights, c->samples, SAMPLES};
}

static double loss_of(policy_case *c) {
    ravel_policy_sums sums;
    ravel_error err = RAVEL_ERROR_INIT;
    return ravel_policy_loss(&c->options, &c->rows, NULL, NULL, &sums, &err) ? NAN : sums.loss;
}

/* The importance weight moves with o alone, so moving l leaves it as it is. A corner of the clip lies between the differences to
 * both sides, and so does the slope. */
TEST(policy_slopes_are_derivatives) {
    policy_case c;
    for (uint64_t seed = 0; seed < 60; seed++) {
        float losses[TOKENS], slopes[TOKENS];
        double total = 0;
        ravel_policy_sums sums;
        ravel_error err = RAVEL_ERROR_INIT;
        make(&c, check_seed() + seed);
        CHECK(ravel_policy_loss(&c.options, &c.rows, losses, slopes, &sums, &err) == RAVEL_OK);
        for (int i = 0; i < TOKENS; i++) {
            const float was = c.now[i], above = was + 1e-3f, below = was - 1e-3f;
            total += (double)losses[i];
            c.now[i] = above;
            const double up = (loss_of(&c) - sums.loss) / ((double)above - (double)was);
            c.now[i] = below;
            const double down = (sums.loss - loss_of(&c)) / ((double)was - (double)below);
            c.now[i] = was;
            const double slope = (double)slopes[i], rounding = 1e-3 * (1 + fabs(slope));
            CHECK(slope >= fmin(up, down) - rounding && slope <= fmax(up, down) + rounding);
        }
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

/* The weight of every token by the definition of each correction, in double. */
static double weight_by_hand(const policy_case *c, int64_t r, double *raw) {
    double x = (double)c->old[r] - (double)c->generator[r], sum = 0;
    for (int i = 0; i < TOKENS; i++)
        if (c->samples[i] == c->samples[r] && c->weights[i] != 0) sum += (double)c->old[i] - (double)c->generator[i];
    *raw = exp(x);
    switch (c->options.correction) {
    case RAVEL_CORRECTION_TIS: return fmin(exp(x), 1.1);
    case RAVEL_CORRECTION_MIS: return exp(x) <= 1.1 ? exp(x) : 0;
    case RAVEL_CORRECTION_SEQ_TIS: return fmin(*raw = exp(sum), 1.1);
    case RAVEL_CORRECTION_SEQ_MIS: return (*raw = exp(sum)) <= 1.1 ? exp(sum) : 0;
    case RAVEL_CORRECTION_ICEPOP: return exp(x) >= 0.9 && exp(x) <= 1.1 ? exp(x) : 0;
    case RAVEL_CORRECTION_CISPO: return fmin(*raw = exp((double)c->now[r] - (double)c->generator[r]), 1.1);
    default: return 1;
    }
}

/* Loss and slopes of every correction against its formula: the clipped ratio without a correction, times the weight. */
TEST(policy_corrections_by_hand) {
    policy_case c;
    for (uint64_t seed = 0; seed < 4 * RAVEL_CORRECTIONS; seed++) {
        float losses[TOKENS], slopes[TOKENS];
        double n = 0, weights = 0, squares = 0, raws = 0, outside = 0;
        ravel_policy_sums sums;
        ravel_error err = RAVEL_ERROR_INIT;
        make(&c, check_seed() + seed);
        c.options = (ravel_policy_options){.size = sizeof c.options, .clip_low = 0.2, .clip_high = 0.2};
        c.options.correction = (int32_t)(seed % RAVEL_CORRECTIONS);
        if (c.options.correction) c.options.correction_high = 1.1;
        if (c.options.correction == RAVEL_CORRECTION_ICEPOP) c.options.correction_low = 0.9;
        CHECK_OK(ravel_policy_loss(&c.options, &c.rows, losses, slopes, &sums, &err), &err);
        for (int i = 0; i < TOKENS; i++) {
            double a = c.advantages[i], ratio = exp((double)c.now[i] - (double)c.old[i]), slope, raw, unit = 0;
            double value = ravel__policy_surrogate(ratio, a, 0.2, 0.2, 0, &slope), k = weight_by_hand(&c, i, &raw);
            if (c.weights[i] == 0) continue;
            if (c.options.correction == RAVEL_CORRECTION_CISPO) value = -a * (double)c.now[i], slope = -a;
            CHECK(fabs((double)losses[i] - (double)c.weights[i] * k * value) < 1e-5);
            CHECK(fabs((double)slopes[i] - (double)c.weights[i] * k * slope) < 1e-5);
            int whole =
                c.options.correction == RAVEL_CORRECTION_SEQ_TIS || c.options.correction == RAVEL_CORRECTION_SEQ_MIS;
            for (int j = 0; j < TOKENS; j++) unit += whole && c.samples[j] == c.samples[i] && c.weights[j] != 0;
            unit = whole ? 1 / unit : 1;
            n += unit, weights += unit * k, squares += unit * k * k, raws += unit * raw * raw;
            outside += raw > 1.1 || raw < c.options.correction_low ? unit : 0;
        }
        if (c.options.correction == RAVEL_CORRECTION_NONE) n = weights = squares = raws = outside = 0;
        CHECK(fabs(sums.corrected - n) < 1e-9 && fabs(sums.weight - weights) < 1e-6 * (1 + weights));
        CHECK(fabs(sums.weight_square - squares) < 1e-6 * (1 + squares));
        CHECK(fabs(sums.raw_square - raws) < 1e-6 * (1 + raws) && fabs(sums.outside - outside) < 1e-9);
    }
}

TEST(policy_refuses) {
    policy_case c;
    float slopes[TOKENS];
    double advantage = 0, reward = 1;
    int64_t group = 1, scratch[2];
    ravel_policy_sums sums;
    ravel_error err = RAVEL_ERROR_INIT;
    make(&c, 5);
    CHECK_EQ(c.options.correction, RAVEL_CORRECTION_TIS);
    c.rows.generator = NULL;
    CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
    CHECK(strstr(err.message, "generator") && strstr(err.message, "with a correction"));
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
    const struct {
        ravel_policy_options options;
        const char *says;
    } refused[] = {{{.correction = RAVEL_CORRECTIONS}, "correction is 7"},
                   {{.correction_high = 2}, "say which"},
                   {{.correction = RAVEL_CORRECTION_TIS, .correction_low = 0.9, .correction_high = 0.5}, "no range"},
                   {{.correction = RAVEL_CORRECTION_CISPO, .ratio = RAVEL_RATIO_SEQUENCE}, "ratio = token"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        err = (ravel_error)RAVEL_ERROR_INIT;
        c.options = refused[i].options;
        c.options.size = sizeof c.options;
        CHECK(ravel_policy_loss(&c.options, &c.rows, NULL, slopes, &sums, &err) == RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, refused[i].says);
    }
    c.rows.count = 0;
    ravel_policy_options_default(&c.options);
    CHECK(ravel_policy_loss(NULL, &c.rows, NULL, NULL, &sums, &err) == RAVEL_OK && sums.loss == 0);
}
