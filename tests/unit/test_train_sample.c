/* Drawing tokens: the reference against its definition and its statistics, the fast sets against the reference. */
#include "tests/unit/train_support.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <math.h>
#include <stdlib.h>

static ravel__rng rng;

typedef struct drawer {
    const train_kernels *kernels;
    train_device *device;
} drawer;

static bool drawer_open(drawer *d, const char *set) {
    train_limits limits = {.tokens = 64, .width = 64, .vocab = 5000};
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_kernels_find(set, &d->kernels, &err) || d->kernels->open(NULL, &d->device, &err) ||
        d->kernels->reserve(d->device, &limits, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    return true;
}

static int32_t draw(const drawer *d, const float *logits, int64_t vocab, train_choice choice, float *logprob,
                    float *kept) {
    int32_t token = -1;
    train_sample x = {.rows = 1,
                      .vocab = vocab,
                      .logits = logits,
                      .choices = &choice,
                      .tokens = &token,
                      .logprob = logprob,
                      .kept_logprob = kept};
    d->kernels->sample(d->device, &x);
    return token;
}

static const char *const sets[] = {"ref", "cpu-avx512", "cpu-avx2", "cpu-base"};
enum { SETS = sizeof sets / sizeof *sets };

static void each_set(void (*body)(const drawer *d)) {
    for (int i = 0; i < SETS; i++) {
        drawer d;
        if (!rig_can(sets[i])) continue;
        rng = ravel__rng_seed(check_seed());
        if (!drawer_open(&d, sets[i])) continue;
        body(&d);
        d.kernels->close(d.device);
    }
}

/* p = .5 .25 .125 .0625 .0625, tokens shuffled: 3 1 4 0 2 */
static const float logits[5] = {-2.7725887f, -1.3862944f, -2.7725887f, -0.6931472f, -2.0794415f};

static void by_hand(const drawer *d) {
    float lp, kept;
    /* In the order of ids: 0 has [0, .0625), 1 to .3125, 2 to .375, 3 to .875, 4 to 1. */
    const float at[] = {0, 0.06f, 0.07f, 0.32f, 0.38f, 0.87f, 0.88f, 0.999f};
    const int32_t want[] = {0, 0, 1, 2, 3, 3, 4, 4};
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 1, .uniform = at[i]}, &lp, &kept),
                 want[i]);
        CHECK(fabsf(lp - logits[want[i]]) < 1e-6f && fabsf(kept - lp) < 1e-6f);
    }
    /* top-k 2 keeps 1 and 3, a third and two thirds of what is left. */
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 1, .top_k = 2, .uniform = 0.33f}, &lp, &kept),
             1);
    CHECK(fabsf(lp - logf(0.25f)) < 1e-6f && fabsf(kept - logf(1 / 3.0f)) < 1e-6f);
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 1, .top_k = 2, .uniform = 0.34f}, &lp, &kept),
             3);
    /* top-p .6 keeps 3 and 1; .5 keeps 3 alone. */
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 0.6f, .uniform = 0.33f}, &lp, &kept), 1);
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 0.5f, .uniform = 0}, &lp, &kept), 3);
    CHECK(fabsf(kept) < 1e-6f);
    /* Both: top-k 3 first leaves 4/7, 2/7, 1/7, of which .8 takes two. */
    CHECK_EQ(
        draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 0.8f, .top_k = 3, .uniform = 0.99f}, &lp, &kept),
        3);
    CHECK(fabsf(kept - logf(2 / 3.0f)) < 1e-6f);
    /* Of two equals at the edge the lower token stays. */
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 1, .top_k = 4, .uniform = 0}, &lp, &kept), 0);
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 1, .top_p = 0, .uniform = 0.5f}, &lp, &kept), 3);
    /* Temperature 0 and the convention for its log-probs. */
    CHECK_EQ(draw(d, logits, 5, (train_choice){.temperature = 0, .top_p = 1, .uniform = 0.9f}, &lp, &kept), 3);
    CHECK(fabsf(lp - logf(0.5f)) < 1e-6f && kept == 0);
    CHECK_EQ(
        draw(d, logits, 1, (train_choice){.temperature = 0.5f, .top_p = 0.3f, .top_k = 7, .uniform = 0.9f}, &lp, &kept),
        0);
}

TEST(train_sample_by_hand) {
    each_set(by_hand);
}

/* Frequencies of 20000 draws at temperature 2 against the distribution that top-k and top-p leave. */
static void frequencies(const drawer *d) {
    double p[5], total = 0;
    int counts[5] = {0};
    const int draws = 20000;
    for (int i = 0; i < 5; i++) total += p[i] = i == 0 || i == 2 ? 0 : exp(logits[i] / 2.0); /* top-k 3 drops 0 and 2 */
    for (int i = 0; i < draws; i++) {
        float lp, kept, u = (float)ravel__rng_below(&rng, 1 << 24) * 0x1p-24f;
        counts[draw(d, logits, 5, (train_choice){.temperature = 2, .top_p = 1, .top_k = 3, .uniform = u}, &lp,
                    &kept)]++;
    }
    for (int i = 0; i < 5; i++) CHECK(fabs(counts[i] - draws * p[i] / total) <= 5 * sqrt(draws * p[i] / total) + 0.5);
}

TEST(train_sample_frequencies) {
    each_set(frequencies);
}

/* Random rows: the fast sets draw what the reference draws. Sums differ in their last digits, so a uniform that falls
 * on an edge may go to the neighbour: rarely. */
TEST(train_sample_fast_against_reference) {
    drawer ref;
    CHECK(drawer_open(&ref, "ref"));
    for (int s = 1; s < SETS; s++) {
        drawer fast;
        if (!rig_can(sets[s])) continue;
        CHECK(drawer_open(&fast, sets[s]));
        rng = ravel__rng_seed(check_seed());
        int differ = 0, trials = (int)check_scale(300, 5000);
        for (int i = 0; i < trials; i++) {
            int64_t vocab = 1 + (int64_t)ravel__rng_below(&rng, i % 10 ? 200 : 3000);
            float *row = malloc((size_t)vocab * sizeof *row), lp[2], kept[2];
            for (int64_t e = 0; e < vocab; e++) row[e] = (float)(4 * ravel__rng_normal(&rng));
            if (i % 7 == 0) /* many equals */
                for (int64_t e = 0; e < vocab; e++) row[e] = roundf(row[e]);
            train_choice c = {.temperature = i % 5 ? 0.3f + (float)ravel__rng_unit(&rng) : 0,
                              .top_p = i % 3 ? (float)ravel__rng_unit(&rng) : 1,
                              .top_k = i % 4 ? (int32_t)ravel__rng_below(&rng, 60) : 0,
                              .uniform = (float)ravel__rng_below(&rng, 1 << 24) * 0x1p-24f};
            int32_t a = draw(&ref, row, vocab, c, lp, kept), b = draw(&fast, row, vocab, c, lp + 1, kept + 1);
            differ += a != b;
            if (a == b) CHECK(fabsf(lp[0] - lp[1]) <= 2e-5f && fabsf(kept[0] - kept[1]) <= 2e-5f);
            free(row);
        }
        CHECK(differ <= trials / 200);
        fast.kernels->close(fast.device);
    }
    ref.kernels->close(ref.device);
}
