/* The feed's counts as metrics. */
#include <ravel/feed.h>

#include <string.h>

void ravel_feed_batch(const ravel_update_counts *counts, ravel_lengths_sum *sum, ravel_metrics_batch *batch) {
    memset(batch, 0, sizeof *batch);
    memset(sum, 0, sizeof *sum);
    sum->samples = counts->samples;
    sum->tokens = counts->tokens;
    sum->squares.low = counts->squares_low;
    sum->squares.high = (uint64_t)counts->squares_high;
    sum->shortest = counts->shortest;
    sum->longest = counts->longest;
    batch->size = sizeof *batch;
    batch->sum = sum;
    batch->samples = counts->samples;
    batch->capacity = counts->capacity_tokens;
    batch->padded = counts->padded_tokens;
    batch->loss = counts->loss_tokens;
    batch->bins = counts->bins;
    batch->fillers = counts->fillers;
    batch->micro_steps = counts->micro_steps;
    batch->shared = counts->shared_tokens;
}
