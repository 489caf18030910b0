/* The reduction over ranks: unequal batches, the slowest rank, ranks that disagree. */
#include "tests/unit/metrics_ranks.h"
#include "tests/unit/metrics_values.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <math.h>
#include <stdlib.h>

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
