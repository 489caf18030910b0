/* What the feed and refit say about themselves, as metrics count it. */
#include "tests/unit/metrics_values.h"

#include <ravel/feed.h>
#include <ravel/refit.h>

TEST(metrics_of_a_feed_are_its_counts) {
    const ravel_update_counts counts = {.micro_steps = 3,
                                        .samples = 5,
                                        .tokens = 700,
                                        .squares_low = UINT64_C(123456),
                                        .squares_high = 1,
                                        .loss_tokens = 650,
                                        .loss_samples = 4,
                                        .padded_tokens = 720,
                                        .capacity_tokens = 1024,
                                        .bins = 2,
                                        .fillers = 1,
                                        .shortest = 17,
                                        .longest = 300};
    ravel_lengths_sum sum;
    ravel_metrics_batch batch;
    ravel_feed_batch(&counts, &sum, &batch);
    CHECK(batch.sum == &sum && sum.squares.low == 123456 && sum.squares.high == 1);
    ravel_metrics *m = make(NULL);
    ravel_metrics_add_batch(m, &batch);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    static const struct {
        int32_t row;
        int64_t value;
    } rows[] = {{RAVEL_METRIC_TOKENS_CAPACITY, 1024}, {RAVEL_METRIC_TOKENS_PADDED, 720},
                {RAVEL_METRIC_TOKENS_ACTUAL, 700},    {RAVEL_METRIC_TOKENS_LOSS, 650},
                {RAVEL_METRIC_BATCH_SAMPLES, 5},      {RAVEL_METRIC_BATCH_BINS, 2},
                {RAVEL_METRIC_BATCH_FILLERS, 1},      {RAVEL_METRIC_BATCH_MICRO_STEPS, 3},
                {RAVEL_METRIC_MIN_SEQ_LENGTH, 17},    {RAVEL_METRIC_MAX_SEQ_LENGTH, 300}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK_EQ(integer(m, rows[i].row), rows[i].value);
    ravel_metrics_free(m);
}

TEST(metrics_of_a_refit_are_its_report) {
    const ravel_refit_report report = {.size = sizeof report,
                                       .bytes_needed = 1000,
                                       .bytes_moved = 1010,
                                       .seconds = 2,
                                       .phase = {9, 9, 9, 9, 9, 9, 9},
                                       .phase_most = {0.5, 0.25, 1, 1.5, 0.125, 0.375, 0.0625},
                                       .overlap = 0.75,
                                       .gb_per_second = 0.5};
    ravel_metrics *m = make(NULL);
    ravel_refit_count(&report, m);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    static const struct {
        const char *name;
        double value;
    } rows[] = {{"refit/bytes_needed", 1000},  {"refit/bytes_moved", 1010}, {"refit/total_sec", 2},
                {"refit/iterate_sec", 0.5},    {"refit/pack_sec", 0.25},    {"refit/send_sec", 1},
                {"refit/receive_sec", 1.5},    {"refit/load_sec", 0.5},     {"refit/commit_sec", 0.0625},
                {"refit/overlap_share", 0.75}, {"refit/gb_per_sec", 0.5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK(value(m, rows[i].name) == rows[i].value);
    ravel_metrics_free(m);
}
