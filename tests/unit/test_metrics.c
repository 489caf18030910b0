/* The table, counting, reduction over ranks, derived values, phases, totals. */
#include "tests/unit/check.h"
#include "tests/unit/metrics_ranks.h"

#include "base/rng.h"
#include "metrics/fixed.h"
#include "metrics/state.h"

#include <stdlib.h>
#include <time.h>

static ravel_metrics *make(const ravel_metrics_options *options) {
    ravel_metrics *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_metrics_create(options, &m, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return m;
}

static double value(ravel_metrics *m, const char *name) {
    double x = -12345;
    if (!ravel_metrics_get(m, name, &x)) check_fail(__FILE__, __LINE__, "%s has no value", name);
    return x;
}

static int64_t integer(ravel_metrics *m, int32_t id) {
    int64_t x = -12345;
    if (!ravel_metrics_integer(m, id, &x)) check_fail(__FILE__, __LINE__, "row %d has no integer", (int)id);
    return x;
}

static int absent(ravel_metrics *m, const char *name) {
    double x;
    return !ravel_metrics_get(m, name, &x);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

TEST(metrics_names_are_no_prefixes_of_others) {
    for (int32_t a = 0; a < RAVEL_METRICS; a++) {
        const ravel_metric *row = ravel_metric_row(a);
        CHECK(row->name[0] && row->doc[0]);
        CHECK(strlen(row->doc) > 5 && row->doc[strlen(row->doc) - 1] != '.');
        CHECK_EQ(ravel_metric_find(row->name), a);
        for (int32_t b = 0; b < RAVEL_METRICS; b++)
            if (a != b && ravel__metric_clash(row->name, ravel_metric_row(b)->name)) {
                check_fail(__FILE__, __LINE__, "%s and %s clash", row->name, ravel_metric_row(b)->name);
                return;
            }
    }
    CHECK_STR(ravel__metric_clash("a/b", "a/b/c"), "a/b");
    CHECK_STR(ravel__metric_clash("a/b/c", "a/b"), "a/b");
    CHECK_STR(ravel__metric_clash("a", "a"), "a");
    CHECK(!ravel__metric_clash("a/b", "a/bc"));
    CHECK(!ravel__metric_clash("a/b", "a/c"));
    CHECK(!ravel_metric_row(-1) && !ravel_metric_row(RAVEL_METRICS) && ravel_metric_find("no") == -1);
    CHECK_STR(ravel_phase_name(RAVEL_PHASE_ALL_REDUCE), "all_reduce");
    CHECK(!ravel_phase_name(RAVEL_PHASES));
}

TEST(metrics_names_that_frameworks_compare_are_there) {
    static const char *const names[] = {"throughput/tokens_per_sec",
                                        "throughput/tokens_per_sec_per_gpu",
                                        "throughput/compute_tokens_per_sec",
                                        "throughput/compute_tokens_per_sec_per_gpu",
                                        "throughput/actual_tokens_per_sec",
                                        "throughput/actual_tokens_per_sec_per_gpu",
                                        "throughput/packing_efficiency",
                                        "throughput/avg_seq_length",
                                        "token_mult_prob_error"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) CHECK(ravel_metric_find(names[i]) >= 0);
}

/* ---- fixed-point sums ----------------------------------------------------------------------------------- */

TEST(metrics_fixed_sums_do_not_depend_on_order) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int trial = 0; trial < 200; trial++) {
        double x[100];
        ravel__fixed forward = {0}, backward = {0}, halves[2] = {{0}, {0}};
        for (int i = 0; i < 100; i++)
            x[i] = ldexp(ravel__rng_unit(&r) - 0.5, (int)ravel__rng_below(&r, trial % 2 ? 120 : 20) - 15);
        for (int i = 0; i < 100; i++) ravel__fixed_add(&forward, x[i]);
        for (int i = 99; i >= 0; i--) ravel__fixed_add(&backward, x[i]);
        for (int i = 0; i < 100; i++) ravel__fixed_add(&halves[i % 2], x[i]);
        int64_t lanes[2][RAVEL__FIXED_LANES];
        ravel__fixed_pack(&halves[0], lanes[0]);
        ravel__fixed_pack(&halves[1], lanes[1]);
        for (int i = 0; i < RAVEL__FIXED_LANES; i++) lanes[0][i] += lanes[1][i];
        ravel__fixed joined;
        ravel__fixed_unpack(&joined, lanes[0]);
        CHECK(forward.fine == backward.fine && forward.coarse == backward.coarse);
        CHECK(forward.fine == joined.fine && forward.coarse == joined.coarse);
        long double exact = 0, size = 0;
        for (int i = 0; i < 100; i++) exact += x[i], size += fabsl((long double)x[i]);
        CHECK(fabsl(exact - ravel__fixed_real(&forward)) <= size * 1e-11L + 1e-15L);
    }
}

TEST(metrics_fixed_blocks_give_the_same_bits_as_single_sums) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int trial = 0; trial < 50; trial++) {
        ravel__fixed one_by_one = {0}, blocks = {0};
        ravel__fixed_block block = {0, 0};
        for (int i = 0; i < RAVEL__BLOCK; i++) {
            double x = trial == 0 ? -0x1.fffffffffffffp17
                                  : ldexp(ravel__rng_unit(&r) - 0.5, (int)ravel__rng_below(&r, 80) - 55);
            ravel__fixed_add(&one_by_one, x);
            ravel__block_add(&block, &blocks, x);
        }
        ravel__block_end(&block, &blocks);
        CHECK(one_by_one.fine == blocks.fine && one_by_one.coarse == blocks.coarse);
    }
}

TEST(metrics_fixed_sums_keep_what_is_not_finite) {
    static const double given[][3] = {{1, NAN, 2}, {INFINITY, 1, 1}, {-INFINITY, 1, 0}, {INFINITY, -INFINITY, 0}};
    for (int i = 0; i < 4; i++) {
        ravel__fixed sum = {0};
        int64_t lanes[RAVEL__FIXED_LANES];
        for (int j = 0; j < 3; j++) ravel__fixed_add(&sum, given[i][j]);
        ravel__fixed_pack(&sum, lanes);
        for (int k = 0; k < RAVEL__FIXED_LANES; k++) lanes[k] *= 3; /* three ranks of the same */
        ravel__fixed_unpack(&sum, lanes);
        double x = ravel__fixed_real(&sum);
        CHECK(i == 1 ? x == INFINITY : i == 2 ? x == -INFINITY : isnan(x));
    }
}

TEST(metrics_order_codes_keep_the_order_of_doubles) {
    static const double x[] = {-INFINITY, -1e300, -2, -1, -1e-300, 0, 1e-300, 0.5, 1, 1e300, INFINITY};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        CHECK(ravel__order_real(ravel__order_code(x[i])) == x[i]);
        CHECK(ravel__order_code(x[i]) > RAVEL__NOTHING);
        if (i) CHECK(ravel__order_code(x[i - 1]) < ravel__order_code(x[i]));
    }
    CHECK(isnan(ravel__order_real(ravel__order_code(NAN))) && ravel__order_code(-NAN) > ravel__order_code(INFINITY));
    int64_t code = ravel__slow_code(123456789012, 77);
    CHECK(ravel__slow_ns(code) == 123456789012 && ravel__slow_rank(code) == 77);
    CHECK(ravel__slow_code(5, 3) > ravel__slow_code(5, 4) && ravel__slow_code(6, 9) > ravel__slow_code(5, 0));
    CHECK(ravel__slow_rank(ravel__slow_code(INT64_MAX, RAVEL__MAX_RANKS - 1)) == RAVEL__MAX_RANKS - 1);
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

TEST(metrics_count_a_batch) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.seq_length = 64;
    o.world = 4;
    ravel_metrics *m = make(&o);
    CHECK(m);
    const int64_t lengths[] = {10, 30, 20};
    ravel_metrics_batch b = {.size = sizeof b,
                             .lengths = lengths,
                             .samples = 3,
                             .capacity = 128,
                             .padded = 64,
                             .loss = 41,
                             .bins = 2,
                             .micro_steps = 2};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_add_batch(m, &b);
    ravel_metrics_batch filler = {.size = sizeof filler, .capacity = 64, .padded = 1, .fillers = 1, .micro_steps = 1};
    ravel_metrics_add_batch(m, &filler);
    CHECK_OK(ravel_metrics_update(m, 7, &err), &err);
    CHECK_EQ(integer(m, RAVEL_METRIC_TOKENS_CAPACITY), 192);
    CHECK_EQ(integer(m, RAVEL_METRIC_TOKENS_PADDED), 65);
    CHECK_EQ(integer(m, RAVEL_METRIC_TOKENS_ACTUAL), 60);
    CHECK_EQ(integer(m, RAVEL_METRIC_TOKENS_LOSS), 41);
    CHECK_EQ(integer(m, RAVEL_METRIC_BATCH_SAMPLES), 3);
    CHECK_EQ(integer(m, RAVEL_METRIC_BATCH_BINS), 2);
    CHECK_EQ(integer(m, RAVEL_METRIC_BATCH_FILLERS), 1);
    CHECK_EQ(integer(m, RAVEL_METRIC_BATCH_MICRO_STEPS), 3);
    CHECK_EQ(integer(m, RAVEL_METRIC_MIN_SEQ_LENGTH), 10);
    CHECK_EQ(integer(m, RAVEL_METRIC_MAX_SEQ_LENGTH), 30);
    CHECK(value(m, "throughput/packing_efficiency") == 60.0 / 192);
    CHECK(value(m, "throughput/padding_share") == 5.0 / 65);
    CHECK(value(m, "throughput/avg_seq_length") == 20);
    double seconds = value(m, "time/update_sec");
    CHECK(seconds > 0);
    CHECK(value(m, "throughput/tokens_per_sec") == 3 * 64 / seconds);
    CHECK(value(m, "throughput/tokens_per_sec_per_gpu") == 3 * 64 / seconds / 4);
    CHECK(value(m, "throughput/compute_tokens_per_sec") == 65 / seconds);
    CHECK(value(m, "throughput/actual_tokens_per_sec_per_gpu") == 60 / seconds / 4);
    CHECK(absent(m, "train/loss") && absent(m, "throughput/mfu") && absent(m, "flops/model") && absent(m, "nothing"));
    CHECK(absent(m, "time/forward_mean_sec") && absent(m, "reward/mean"));
    CHECK(value(m, "memory/rss_peak_bytes") >= value(m, "memory/rss_bytes") && value(m, "memory/rss_bytes") > 4096);
    CHECK_OK(ravel_metrics_update(m, 8, &err), &err); /* an update without a batch has no throughput */
    CHECK(absent(m, "throughput/tokens_per_sec") && absent(m, "tokens/actual"));
    CHECK_EQ(integer(m, RAVEL_METRIC_RUN_CONSUMED_TOKENS), 60);
    CHECK_EQ(integer(m, RAVEL_METRIC_RUN_UPDATES), 2);
    ravel_metrics_free(m);
}

TEST(metrics_compute_tokens_are_padded_or_capacity) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.compute = RAVEL_COMPUTE_CAPACITY;
    ravel_metrics *m = make(&o);
    CHECK(m);
    const int64_t length = 10;
    ravel_metrics_batch b = {.size = sizeof b, .lengths = &length, .samples = 1, .capacity = 128, .padded = 16};
    ravel_metrics_add_batch(m, &b);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    double seconds = value(m, "time/update_sec");
    CHECK(value(m, "throughput/compute_tokens_per_sec") == 128 / seconds);
    CHECK(value(m, "throughput/tokens_per_sec") == 10 / seconds);
    ravel_metrics_free(m);
}

TEST(metrics_rl_rows_are_off_by_default) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    const double rewards[] = {1, 0};
    ravel_metrics_rollouts r = {.size = sizeof r, .count = 2, .rewards = rewards};
    ravel_metrics_add_rollouts(m, &r);
    CHECK(!ravel_metrics_add(m, RAVEL_METRIC_REWARD_MEAN, 1, 1));
    CHECK(!ravel_metrics_enabled(m, RAVEL_METRIC_REWARD_MEAN) && ravel_metrics_enabled(m, RAVEL_METRIC_TRAIN_LOSS));
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    for (int32_t id = 0; id < ravel_metrics_rows(m); id++)
        if (ravel_metrics_row(m, id)->show == RAVEL_SHOW_RL) CHECK(absent(m, ravel_metrics_row(m, id)->name));
    ravel_metrics_free(m);
}

TEST(metrics_rl_figures_have_their_definitions) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.rl = 1;
    ravel_metrics *m = make(&o);
    CHECK(m);
    const double rewards[] = {1, 1, 0, 1, 0.5, 0.5};
    const int64_t groups[] = {7, 7, 9, 9, 3, 3}, responses[] = {4, 8, 15, 16, 23, 42};
    const uint8_t cut[] = {0, 0, 0, 0, 1, 1};
    ravel_metrics_rollouts r = {
        .size = sizeof r, .count = 6, .rewards = rewards, .groups = groups, .responses = responses, .truncated = cut};
    ravel_metrics_add_rollouts(m, &r);
    ravel_metrics_count(m, RAVEL_METRIC_ROLLOUT_TOKENS, 108);
    ravel_metrics_phase_add(m, RAVEL_PHASE_ROLLOUT, 2);
    /* four loss tokens and one that does not count */
    const float weights[] = {0.5F, 0.25F, 1, 0, 1}, now[] = {-1, -2, -0.5F, 100, -1},
                old[] = {-1, -2.5F, -0.25F, -1, -3}, generator[] = {-1, -2, -0.75F, 9, -3},
                entropy[] = {1, 2, 3, 99, 2}, advantage[] = {1, 1, -1, 1, -1}, reference[] = {-1, -1, -1, 50, -1};
    ravel_metrics_tokens t = {.size = sizeof t,
                              .count = 5,
                              .weights = weights,
                              .logprobs = now,
                              .old = old,
                              .generator = generator,
                              .entropy = entropy,
                              .advantages = advantage,
                              .reference = reference,
                              .clip_low = 0.2,
                              .clip_high = 0.2};
    ravel_metrics_add_tokens(m, &t);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    const double mean = 4.0 / 6;
    CHECK(fabs(value(m, "reward/mean") - mean) < 1e-15);
    CHECK(fabs(value(m, "reward/std") - sqrt((1 + 1 + 1 + 0.25 + 0.25) / 6 - mean * mean)) < 1e-14);
    CHECK(value(m, "reward/min") == 0 && value(m, "reward/max") == 1);
    CHECK(fabs(value(m, "reward/zero_variance_group_share") - 2.0 / 3) < 1e-15);
    CHECK(value(m, "response/length_mean") == 18);
    CHECK(integer(m, RAVEL_METRIC_RESPONSE_LENGTH_MIN) == 4 && integer(m, RAVEL_METRIC_RESPONSE_LENGTH_MAX) == 42);
    CHECK(fabs(value(m, "response/truncated_share") - 1.0 / 3) < 1e-15);
    CHECK_EQ(integer(m, RAVEL_METRIC_ROLLOUT_TOKENS), 108);
    CHECK(value(m, "rollout/tokens_per_sec") == 54);
    double ratios[] = {1, exp(0.5), exp(-0.25), exp(2)}, sum = 0, kl = 0;
    for (int i = 0; i < 4; i++) sum += ratios[i], kl += ratios[i] - 1 - log(ratios[i]);
    CHECK(fabs(value(m, "policy/ratio_mean") - sum / 4) < 1e-14);
    CHECK(value(m, "policy/ratio_max") == exp(2));
    CHECK(fabs(value(m, "policy/approx_kl") - kl / 4) < 1e-14);
    CHECK(fabs(value(m, "policy/entropy") - 2) < 1e-15);
    /* token 1: above, advantage 1; token 2: below, advantage -1; token 4: above, but its advantage is negative */
    CHECK(fabs(value(m, "policy/clip_share") - 0.5) < 1e-15);
    /* old against generator: 0, 0.5, 0.5, 0 */
    CHECK(fabs(value(m, "policy/logprob_gap_mean") - 0.25) < 1e-15 && value(m, "policy/logprob_gap_max") == 0.5);
    CHECK(fabs(value(m, "token_mult_prob_error") - (2 + 2 * exp(0.5)) / 4) < 1e-15);
    double ref = 0; /* reference - now: 0, 1, -0.5, 0 */
    ref = (exp(1) - 1 - 1) + (exp(-0.5) - 1 + 0.5);
    CHECK(fabs(value(m, "policy/kl_ref") - ref / 4) < 1e-14);
    ravel_metrics_free(m);
}

TEST(metrics_large_rewards_keep_their_mean_and_deviation) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.rl = 1;
    ravel_metrics *m = make(&o);
    CHECK(m);
    const double rewards[] = {3e13, 1e13, -1e13, 1e13};
    ravel_metrics_rollouts r = {.size = sizeof r, .count = 4, .rewards = rewards};
    ravel_metrics_add_rollouts(m, &r);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    CHECK(fabs(value(m, "reward/mean") / 1e13 - 1) < 1e-12);
    CHECK(fabs(value(m, "reward/std") / (sqrt(2) * 1e13) - 1) < 1e-12);
    CHECK(value(m, "reward/max") == 3e13);
    ravel_metrics_free(m);
}

TEST(metrics_weights_and_wrong_ids) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    CHECK(ravel_metrics_add(m, RAVEL_METRIC_TRAIN_TOKEN_NLL, 2, 30));
    CHECK(ravel_metrics_add(m, RAVEL_METRIC_TRAIN_TOKEN_NLL, 5, 10));
    CHECK(ravel_metrics_add(m, RAVEL_METRIC_TRAIN_TOKEN_NLL, INFINITY, 0)); /* weighs nothing */
    CHECK(ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, 0.25, 1) &&
          ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, 0.5, 1));
    CHECK(!ravel_metrics_add(m, RAVEL_METRIC_MFU, 0.5, 1) && !ravel_metrics_add(m, -1, 0, 1));
    CHECK(!ravel_metrics_add(m, RAVEL_METRICS, 0, 1) && !ravel_metrics_count(m, RAVEL_METRIC_IDLE_SHARE, 1));
    CHECK(ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LEARNING_RATE, 1e-30, 1));
    CHECK(ravel_metrics_count(m, RAVEL_METRIC_MEMORY_DEVICE, 5) &&
          ravel_metrics_count(m, RAVEL_METRIC_MEMORY_DEVICE, 3));
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    CHECK(value(m, "train/token_nll") == 2.75 && value(m, "train/loss") == 0.75);
    CHECK(value(m, "train/learning_rate") == 1e-30); /* MAX keeps every bit */
    CHECK_EQ(integer(m, RAVEL_METRIC_MEMORY_DEVICE), 5);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, NAN, 1);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, 3, 1);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, NAN, 1);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, 4, 1);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err);
    CHECK(isnan(value(m, "train/loss")) && isnan(value(m, "train/grad_norm"))); /* a diverged run is not hidden */
    ravel_metrics_free(m);
}

TEST(metrics_take_rows_of_the_callers_own) {
    static const ravel_metric extra[] = {{"my/score", "points", "a score", RAVEL_KIND_GAUGE, RAVEL_RULE_MEAN, 0, 0},
                                         {"my/hits", NULL, NULL, RAVEL_KIND_COUNTER, RAVEL_RULE_SUM, 0, 0}};
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.extra = extra;
    o.extra_count = 2;
    ravel_metrics *m = make(&o);
    CHECK(m);
    CHECK_EQ(ravel_metrics_rows(m), RAVEL_METRICS + 2);
    ravel_metrics_add(m, RAVEL_METRICS, 3, 1);
    ravel_metrics_add(m, RAVEL_METRICS, 6, 2);
    ravel_metrics_count(m, RAVEL_METRICS + 1, 11);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    CHECK(value(m, "my/score") == 5 && value(m, "my/hits") == 11);
    ravel_metrics_free(m);
}

TEST(metrics_refuse_bad_options_with_a_sentence) {
    static const ravel_metric clash = {"throughput", "", "x", RAVEL_KIND_GAUGE, RAVEL_RULE_MAX, 0, 0};
    static const ravel_metric derived = {"x", "", "x", RAVEL_KIND_GAUGE, RAVEL_RULE_DERIVED, 0, 0};
    static const ravel_shape shape = {0};
    static const ravel_metrics_reducer lonely = {0, 2, NULL, NULL}, outside = {3, 2, NULL, NULL};
    for (int i = 0; i < 7; i++) {
        ravel_metrics_options o;
        ravel_metrics_options_default(&o);
        const char *says = "";
        if (i == 0) o.extra = &clash, o.extra_count = 1, says = "\"throughput\" is taken";
        if (i == 1) o.extra = &derived, o.extra_count = 1, says = "a rule of sum|mean";
        if (i == 2) o.shape = &shape, says = "shape";
        if (i == 3) o.reducer = &lonely, says = "needs all_reduce";
        if (i == 4) o.reducer = &outside, says = "rank 3 of 2";
        if (i == 5) o.recompute = 9, says = "recompute";
        if (i == 6) o.updates = -1, says = "updates";
        ravel_metrics *m = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(ravel_metrics_create(&o, &m, &err) != RAVEL_OK && !m);
        CHECK_HAS(err.message, says);
    }
}

/* ---- phases --------------------------------------------------------------------------------------------- */

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
    CHECK(fabs(sum - value(m, "time/update_sec")) < 1e-7);
    spend(0.001);
    for (int i = RAVEL_PHASES - 1; i >= 0; i -= 2) CHECK_OK(ravel_metrics_phase_end(m, (ravel_phase)i, &err), &err);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err);
    CHECK(value(m, "time/eval_mean_sec") >= 0.001 && value(m, "time/checkpoint_mean_sec") == 0);
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

/* ---- ranks ---------------------------------------------------------------------------------------------- */

enum { UPDATES = 3 };

typedef struct recount {
    ravel_shape shape;
    int32_t split;    /* ranks that have samples; the rest have none */
    int64_t count;    /* samples of each update */
    int64_t *lengths; /* [UPDATES * count] */
    double *rewards;  /* likewise */
    int32_t *owner;   /* likewise */
    int64_t integers[UPDATES][RAVEL_METRICS];
    double reals[UPDATES][RAVEL_METRICS];
    uint8_t present[UPDATES][RAVEL_METRICS];
    ravel_u128 flops[UPDATES];
} recount;

/* A rank takes the samples that are its own (all of them, when it is alone), one bin a sample, in pieces. */
static void count_ranks(rank_seat *seat) {
    recount *all = seat->user;
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.reducer = &seat->reducer;
    o.shape = &all->shape;
    o.rl = 1;
    ravel_metrics *m = make(&o);
    if (!m) return;
    ravel_error err = RAVEL_ERROR_INIT;
    for (int u = 0; u < UPDATES; u++) {
        ravel_metrics_begin(m);
        for (int64_t i = 0; i < all->count; i++) {
            int64_t at = u * all->count + i, length = all->lengths[at];
            if (seat->group->size > 1 && all->owner[at] % seat->group->size != seat->rank) continue;
            ravel_metrics_batch b = {.size = sizeof b,
                                     .lengths = &length,
                                     .samples = 1,
                                     .capacity = 8192,
                                     .padded = (length + 15) / 16 * 16,
                                     .loss = length - 1,
                                     .bins = 1,
                                     .micro_steps = 1};
            ravel_metrics_add_batch(m, &b);
            int64_t response = length / 2;
            ravel_metrics_rollouts r = {
                .size = sizeof r, .count = 1, .rewards = &all->rewards[at], .responses = &response};
            ravel_metrics_add_rollouts(m, &r);
            ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, all->rewards[at] / 3, 1);
            ravel_metrics_add(m, RAVEL_METRIC_TRAIN_TOKEN_NLL, sqrt((double)length), (double)(length - 1));
        }
        if (ravel_metrics_update(m, u + 1, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
        if (seat->rank != seat->group->size - 1) continue; /* any rank must know: the last one is asked */
        ravel_flops flops;
        if (!ravel_metrics_flops(m, &flops)) check_fail(__FILE__, __LINE__, "no FLOPs");
        all->flops[u] = flops.model;
        for (int32_t id = 0; id < RAVEL_METRICS; id++) {
            all->present[u][id] = (uint8_t)ravel_metrics_value(m, id, &all->reals[u][id]);
            (void)ravel_metrics_integer(m, id, &all->integers[u][id]);
        }
    }
    ravel_metrics_free(m);
}

static int is_about_time_or_ranks(int32_t id) {
    const char *name = ravel_metric_row(id)->name;
    return strstr(name, "_sec") || strstr(name, "memory/") || strstr(name, "tflops") || strstr(name, "balance/") ||
           id == RAVEL_METRIC_BATCH_MICRO_STEPS;
}

TEST(metrics_ranks_with_unequal_tokens_equal_a_recount) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng r = ravel__rng_seed(check_seed());
    static recount alone, many;
    alone.count = 97;
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &alone.shape, &err), &err);
    size_t total = (size_t)(UPDATES * alone.count);
    alone.lengths = malloc(total * sizeof *alone.lengths);
    alone.rewards = malloc(total * sizeof *alone.rewards);
    alone.owner = malloc(total * sizeof *alone.owner);
    CHECK(alone.lengths && alone.rewards && alone.owner);
    for (size_t i = 0; i < total; i++) {
        alone.lengths[i] = 2 + (int64_t)ravel__rng_below(&r, 8000);
        alone.rewards[i] = ravel__rng_normal(&r);
        uint64_t draw = ravel__rng_below(&r, 100); /* rank 0 has most, rank 1 none, the others some */
        alone.owner[i] = draw < 60 ? 0 : 2 + (int32_t)ravel__rng_below(&r, 62);
    }
    rank_group group = {0};
    ranks_run(1, count_ranks, &alone, &group);
    CHECK_EQ(group.calls[RAVEL_METRICS_SUM], UPDATES); /* one all-reduce of sums an update, one of maxima */
    CHECK_EQ(group.calls[RAVEL_METRICS_MAX], UPDATES);
    static const int32_t sizes[] = {2, 3, 8, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int reversed = 0; reversed < 2; reversed++) {
            many = alone;
            memset(many.present, 0, sizeof many.present);
            group.reversed = reversed;
            ranks_run(sizes[s], count_ranks, &many, &group);
            for (int u = 0; u < UPDATES; u++) {
                int64_t tokens = 0;
                for (int64_t i = 0; i < alone.count; i++) tokens += alone.lengths[u * alone.count + i];
                CHECK_EQ(many.integers[u][RAVEL_METRIC_TOKENS_ACTUAL], tokens);
                CHECK(many.flops[u].high == alone.flops[u].high && many.flops[u].low == alone.flops[u].low);
                for (int32_t id = 0; id < RAVEL_METRICS; id++) {
                    if (is_about_time_or_ranks(id)) continue;
                    int same =
                        many.present[u][id] == alone.present[u][id] &&
                        (!many.present[u][id] || memcmp(&many.reals[u][id], &alone.reals[u][id], sizeof(double)) == 0);
                    if (!same)
                        check_fail(__FILE__, __LINE__, "%s is %.17g on %d ranks, %.17g on one",
                                   ravel_metric_row(id)->name, many.reals[u][id], (int)sizes[s], alone.reals[u][id]);
                }
            }
        }
    free(alone.lengths);
    free(alone.rewards);
    free(alone.owner);
}

typedef struct rank_times {
    double idle[4], busy[4];
    int64_t padded[4];
    double mean, most, slowest, share, imbalance, token_imbalance, update, reward_min;
    int ok;
} rank_times;

/* Rank 2 is the slowest; rank 3 counts no tokens, being the tensor-parallel partner of rank 2. */
static void time_ranks(rank_seat *seat) {
    rank_times *t = seat->user;
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.reducer = &seat->reducer;
    o.counts = seat->rank != 3;
    ravel_metrics *m = make(&o);
    if (!m) return;
    static const double forward[] = {1, 2, 4, 3}, backward[] = {1, 2, 4, 3};
    ravel_metrics_phase_add(m, RAVEL_PHASE_FORWARD, forward[seat->rank]);
    ravel_metrics_phase_add(m, RAVEL_PHASE_BACKWARD, backward[seat->rank]);
    const int64_t length = 10 * (seat->rank + 1);
    ravel_metrics_batch b = {
        .size = sizeof b, .lengths = &length, .samples = 1, .capacity = 64, .padded = length, .bins = 1};
    ravel_metrics_add_batch(m, &b);
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_metrics_update(m, 1, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    if (seat->rank == 1) {
        t->ok = 1;
        for (int i = 0; i < 4; i++) t->ok &= ravel_metrics_rank(m, i, &t->busy[i], &t->idle[i], &t->padded[i]);
        t->ok &= !ravel_metrics_rank(m, 4, NULL, NULL, NULL) && !ravel_metrics_rank(m, -1, NULL, NULL, NULL);
        t->mean = value(m, "time/forward_mean_sec");
        t->most = value(m, "time/forward_max_sec");
        t->slowest = value(m, "time/forward_slowest_rank");
        t->share = value(m, "balance/idle_share");
        t->imbalance = value(m, "balance/imbalance");
        t->token_imbalance = value(m, "balance/token_imbalance");
        t->ok &= integer(m, RAVEL_METRIC_TOKENS_ACTUAL) == 60 && integer(m, RAVEL_METRIC_BATCH_SAMPLES) == 3;
    }
    ravel_metrics_free(m);
}

TEST(metrics_ranks_name_the_slowest) {
    rank_group group = {0};
    rank_times t = {0};
    ranks_run(4, time_ranks, &t, &group);
    CHECK(t.ok);
    CHECK(t.mean == 2.5 && t.most == 4 && t.slowest == 2);
    CHECK(fabs(t.share - (1 - 5.0 / 8)) < 1e-15 && fabs(t.imbalance - 8.0 / 5) < 1e-15);
    CHECK(t.busy[0] == 2 && t.idle[0] == 0.75 && t.idle[2] == 0 && t.padded[2] == 30 && t.padded[3] == 0);
    CHECK(fabs(t.token_imbalance - 30.0 / 20) < 1e-15);
}

static void diverge(rank_seat *seat) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.reducer = &seat->reducer;
    ravel_metrics *m = make(&o);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_metrics_update(m, seat->rank == 1 ? 5 : 4, &err);
    if (status != RAVEL_E_MISMATCH || !strstr(err.message, "steps from 4 to 5"))
        check_fail(__FILE__, __LINE__, "rank %d: %s", (int)seat->rank, err.message);
    ravel_metrics_free(m);
}

TEST(metrics_ranks_at_different_steps_are_told) {
    rank_group group = {0};
    ranks_run(3, diverge, NULL, &group);
}

static ravel_status broken(void *user, int64_t *values, int64_t count, ravel_metrics_op op, ravel_error *err) {
    (void)user, (void)values, (void)count, (void)op;
    return ravel_error_set(err, RAVEL_E_PEER_LOST, "rank 1 left");
}

TEST(metrics_a_broken_reducer_is_an_error_of_the_update) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    ravel_metrics_reducer reducer = {0, 2, broken, NULL};
    o.reducer = &reducer;
    ravel_metrics *m = make(&o);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_metrics_update(m, 1, &err), RAVEL_E_PEER_LOST);
    CHECK_STR(err.message, "rank 1 left");
    ravel_metrics_free(m);
}

static ravel_status lazy(void *user, int64_t *values, int64_t count, ravel_metrics_op op, ravel_error *err) {
    (void)user, (void)values, (void)count, (void)op, (void)err;
    return RAVEL_OK; /* and adds nothing up */
}

TEST(metrics_a_reducer_that_reduces_nothing_is_found_out) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    ravel_metrics_reducer reducer = {0, 2, lazy, NULL};
    o.reducer = &reducer;
    ravel_metrics *m = make(&o);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_metrics_update(m, 1, &err), RAVEL_E_CALLBACK);
    CHECK_HAS(err.message, "the reducer summed over 1 ranks; its size says 2");
    ravel_metrics_free(m);
}

/* ---- totals and memory ---------------------------------------------------------------------------------- */

TEST(metrics_totals_go_on_after_a_resume) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    const int64_t length = 100;
    ravel_metrics_batch b = {.size = sizeof b, .lengths = &length, .samples = 1, .loss = 99, .bins = 1};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_totals totals;
    ravel_metrics_add_batch(m, &b);
    ravel_metrics_phase_add(m, RAVEL_PHASE_EVAL, 2);
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    ravel_metrics_totals_get(m, &totals);
    ravel_metrics_free(m);
    m = make(NULL);
    CHECK(m);
    ravel_metrics_totals_set(m, &totals);
    ravel_metrics_add_batch(m, &b);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err);
    CHECK_EQ(integer(m, RAVEL_METRIC_RUN_UPDATES), 2);
    CHECK_EQ(integer(m, RAVEL_METRIC_RUN_CONSUMED_TOKENS), 200);
    CHECK_EQ(integer(m, RAVEL_METRIC_RUN_CONSUMED_LOSS_TOKENS), 198);
    CHECK(value(m, "time_total/eval_sec") == 2 && value(m, "run/elapsed_sec") > totals.seconds);
    ravel_metrics_free(m);
}

static ravel_status make_and_free(const ravel_allocator *allocator, void *user) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.allocator = allocator;
    o.gpu = "H100";
    ravel_metrics *m = NULL;
    ravel_status status = ravel_metrics_create(&o, &m, user);
    ravel_metrics_free(m);
    return status;
}

TEST(metrics_survive_every_failed_allocation) {
    CHECK(check_every_allocation(make_and_free, NULL) >= 8);
}

TEST(metrics_hot_path_does_not_allocate) {
    check_memory memory;
    check_memory_init(&memory);
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_shape_named("llama-8b", &shape, &err), &err);
    o.allocator = &memory.allocator;
    o.shape = &shape;
    o.rl = 1;
    ravel_metrics *m = make(&o);
    CHECK(m);
    int64_t before = memory.calls;
    int64_t lengths[64], groups[64];
    double rewards[64];
    for (int i = 0; i < 64; i++) lengths[i] = i + 1, groups[i] = i / 8, rewards[i] = i % 3;
    for (int step = 1; step <= 10; step++) {
        ravel_metrics_begin(m);
        ravel_metrics_batch b = {.size = sizeof b, .lengths = lengths, .samples = 64};
        ravel_metrics_rollouts r = {
            .size = sizeof r, .count = 64, .rewards = rewards, .groups = groups, .responses = lengths};
        ravel_metrics_add_batch(m, &b);
        ravel_metrics_add_rollouts(m, &r);
        (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_FORWARD, &err);
        (void)ravel_metrics_phase_end(m, RAVEL_PHASE_FORWARD, &err);
        CHECK_OK(ravel_metrics_update(m, step, &err), &err);
        (void)value(m, "reward/mean");
    }
    CHECK_EQ(memory.calls, before);
    ravel_metrics_free(m);
    CHECK_EQ(memory.blocks, 0);
}

TEST(metrics_mfu_needs_a_known_peak) {
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &shape, &err), &err);
    const int64_t lengths[] = {1000, 24};
    static const struct {
        const char *gpu;
        double given, peak;
    } cases[] = {{"NVIDIA H100 80GB HBM3", 0, 989.4e12}, {"mystery", 0, 0}, {NULL, 1e12, 1e12}, {"A100", 5e12, 5e12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_metrics_options o;
        ravel_metrics_options_default(&o);
        o.shape = &shape;
        o.gpu = cases[i].gpu;
        o.peak_flops = cases[i].given;
        o.recompute = RAVEL_RECOMPUTE_FULL;
        o.world = 8;
        ravel_metrics *m = make(&o);
        CHECK(m);
        ravel_metrics_batch b = {.size = sizeof b, .lengths = lengths, .samples = 2};
        ravel_metrics_add_batch(m, &b);
        CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
        double seconds = value(m, "time/update_sec"), model = 3 * 1335447519232.0;
        CHECK(value(m, "flops/model") == model);
        CHECK(fabs(value(m, "throughput/tflops_per_gpu") / (model / 1e12 / seconds / 8) - 1) < 1e-12);
        if (cases[i].peak > 0) {
            CHECK(fabs(value(m, "throughput/mfu") / (model / (cases[i].peak * seconds * 8)) - 1) < 1e-12);
            CHECK(value(m, "throughput/hfu") > value(m, "throughput/mfu"));
        } else {
            CHECK(absent(m, "throughput/mfu") && absent(m, "throughput/hfu"));
        }
        ravel_metrics_free(m);
    }
}

TEST(metrics_the_head_may_see_fewer_tokens) {
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &shape, &err), &err);
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.shape = &shape;
    o.gpu = "H100";
    ravel_metrics *m = make(&o);
    CHECK(m);
    const int64_t lengths[] = {1000, 24};
    static const int64_t heads[] = {0, 100, -1}, tokens[] = {1024, 100, 0};
    for (int i = 0; i < 3; i++) {
        ravel_metrics_batch b = {.size = sizeof b, .lengths = lengths, .samples = 2, .head = heads[i]};
        ravel_metrics_add_batch(m, &b);
        CHECK_OK(ravel_metrics_update(m, i, &err), &err);
        CHECK(value(m, "flops/model") == 3 * (1335447519232.0 - 2.0 * 155582464 * (double)(1024 - tokens[i])));
        CHECK(value(m, "throughput/mfu") > 0 && absent(m, "throughput/hfu")); /* nothing was recomputed */
    }
    ravel_metrics_free(m);
}
