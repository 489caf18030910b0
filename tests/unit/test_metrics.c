/* The table, counting on one rank, derived values, totals, memory. */
#include "tests/unit/metrics_values.h"

#include "metrics/state.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- the table ------------------------------------------------------------------------------------------ */

TEST(metrics_names_are_no_prefixes_of_others) {
    for (int32_t a = 0; a < RAVEL_METRICS; a++) {
        const ravel_metric *row = ravel_metric_row(a);
        CHECK(row->name[0] && row->doc[0]);
        CHECK(strlen(row->doc) > 5 && row->doc[strlen(row->doc) - 1] != '.');
        for (int32_t b = 0; b < RAVEL_METRICS; b++)
            if (a != b && ravel__metric_clash(row->name, ravel_metric_row(b)->name)) {
                check_fail(__FILE__, __LINE__, "%s and %s clash", row->name, ravel_metric_row(b)->name);
                return;
            }
    }
    CHECK_STR(ravel__metric_clash("a/b", "a/b/c"), "a/b");
    CHECK_STR(ravel__metric_clash("a/b/c", "a/b"), "a/b");
    CHECK_STR(ravel__metric_clash("a", "a"), "a");
    CHECK_STR(ravel__metric_clash("a/b", "a_b"), "a/b");
    CHECK(!ravel__metric_clash("a/b", "ab"));
    CHECK(!ravel__metric_clash("a/b", "a/bc"));
    CHECK(!ravel__metric_clash("a/b", "a/c"));
    CHECK(!ravel_metric_row(-1) && !ravel_metric_row(RAVEL_METRICS));
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
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = 0;
        while (id < RAVEL_METRICS && strcmp(ravel_metric_row(id)->name, names[i]) != 0) id++;
        if (id == RAVEL_METRICS) check_fail(__FILE__, __LINE__, "%s is gone", names[i]);
    }
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

TEST(metrics_time_of_a_micro_step_is_the_total_over_the_steps) {
    ravel_metrics *m = make(NULL);
    CHECK(m);
    const int64_t lengths[] = {10, 30, 20};
    ravel_metrics_batch b = {
        .size = sizeof b, .lengths = lengths, .samples = 3, .padded = 60, .bins = 3, .micro_steps = 3};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_add_batch(m, &b);
    ravel_metrics_phase_add(m, RAVEL_PHASE_FORWARD, 3);
    ravel_metrics_phase_add(m, RAVEL_PHASE_BACKWARD, 6);
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    CHECK(value(m, "time/forward_mean_sec") == 3 && value(m, "time/forward_micro_step_sec") == 1);
    CHECK(value(m, "time/backward_mean_sec") == 6 && value(m, "time/backward_micro_step_sec") == 2);
    ravel_metrics_free(m);
}

/* What an update took for a moment counts in that update, and in the mark of the run, and not in the next update. */
TEST(metrics_memory_mark_is_reset_with_every_row) {
    enum { MORE = 96 << 20 };
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.update_peaks = 1;
    ravel_metrics *m = make(&o);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(m);
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err); /* what was before the first row */
    char *more = mmap(NULL, MORE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 1, MORE);
    (void)munmap(more, MORE);
    CHECK_OK(ravel_metrics_update(m, 2, &err), &err);
    if (m->clear_refs < 0) { /* a kernel without the file: no row */
        ravel_metrics_free(m);
        return;
    }
    double high = value(m, "memory/rss_update_peak_bytes"), now = value(m, "memory/rss_bytes");
    CHECK(high > now + MORE / 2 && value(m, "memory/rss_peak_bytes") >= high);
    CHECK_OK(ravel_metrics_update(m, 3, &err), &err);
    CHECK(value(m, "memory/rss_update_peak_bytes") < high - MORE / 2 && value(m, "memory/rss_peak_bytes") >= high);
    ravel_metrics_free(m);
}

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
    CHECK(absent(m, "time/forward_micro_step_sec") && absent(m, "memory/rss_update_peak_bytes"));
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
    static const ravel_metric step = {"step", "", "x", RAVEL_KIND_GAUGE, RAVEL_RULE_MAX, 0, 0};
    static const ravel_metric alike = {"tokens_actual", "", "x", RAVEL_KIND_GAUGE, RAVEL_RULE_MAX, 0, 0};
    static const ravel_metric derived = {"x", "", "x", RAVEL_KIND_GAUGE, RAVEL_RULE_DERIVED, 0, 0};
    static const ravel_shape shape = {0};
    static const ravel_metrics_reducer lonely = {0, 2, NULL, NULL}, outside = {3, 2, NULL, NULL};
    for (int i = 0; i < 9; i++) {
        ravel_metrics_options o;
        ravel_metrics_options_default(&o);
        const char *says = "";
        if (i == 7) o.extra = &step, o.extra_count = 1, says = "\"step\" is taken";
        if (i == 8) o.extra = &alike, o.extra_count = 1, says = "\"tokens/actual\" is taken";
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
    ravel_metrics_get_totals(m, &totals);
    ravel_metrics_free(m);
    m = make(NULL);
    CHECK(m);
    ravel_metrics_set_totals(m, &totals);
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
