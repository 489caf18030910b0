/* What the methods and bounds come to, against exhaustive search and against what they are by definition. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include "plan/pack/fit.h"

#include <stdlib.h>

/* ---- exhaustive search -------------------------------------------------------------------------------------- */

/* The fewest bins for up to ten samples: each goes into one of the bins so far or opens the next. */
typedef struct tiny {
    int64_t length[10], room[10], cap;
    int rows[10], most, count, best;
} tiny;

static void try_all(tiny *t, int sample, int bins) {
    if (bins >= t->best) return;
    if (sample == t->count) {
        t->best = bins;
        return;
    }
    for (int b = 0; b <= bins && b < t->count; b++) {
        if (b == bins) {
            t->room[b] = t->cap;
            t->rows[b] = 0;
        }
        if (t->room[b] < t->length[sample] || t->rows[b] >= t->most) continue;
        t->room[b] -= t->length[sample];
        t->rows[b]++;
        try_all(t, sample + 1, bins + (b == bins));
        t->room[b] += t->length[sample];
        t->rows[b]--;
    }
}

static void draw_tiny(tiny *t, ravel__rng *rng) {
    memset(t, 0, sizeof *t);
    t->cap = 2 + (int64_t)ravel__rng_below(rng, 60);
    t->count = 1 + (int)ravel__rng_below(rng, 9);
    t->most = ravel__rng_below(rng, 3) ? 99 : 1 + (int)ravel__rng_below(rng, 4);
    for (int i = 0; i < t->count; i++) t->length[i] = 1 + (int64_t)ravel__rng_below(rng, (uint64_t)t->cap);
    t->best = t->count + 1;
}

TEST(plan_bin_bound_is_below_the_optimum_and_max_reaches_it_on_tiny_inputs) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 5);
    int64_t reached = 0, tight = 0, runs = check_scale(2000, 100000);
    for (int64_t i = 0; i < runs; i++) {
        tiny t;
        draw_tiny(&t, &rng);
        try_all(&t, 0, 0);
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = t.cap;
        o.max_samples = t.most == 99 ? 0 : t.most;
        o.effort = RAVEL_EFFORT_MAX;
        ravel_plan_input in = {.size = sizeof in, .count = t.count, .lengths = t.length};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        CHECK(plan->stats.bins_lower_bound <= t.best);
        CHECK(plan->stats.bins_packed >= t.best);
        reached += plan->stats.bins_packed == t.best;
        tight += plan->stats.bins_lower_bound == t.best;
        ravel_plan_free(plan);
    }
    CHECK(reached * 100 >= runs * 98);
    CHECK(tight * 100 >= runs * 80);
}

/* The least time over all ways to seat the samples on `seats` bins, dp to a micro-step. */
typedef struct seating {
    const tiny *t;
    int64_t cost[10], sum[12], best;
    int seats, dp;
    int32_t sync;
} seating;

static int64_t time_of(const seating *s) {
    int64_t time = 0;
    if (s->sync == RAVEL_SYNC_MICRO_STEP) {
        for (int first = 0; first < s->seats; first += s->dp) {
            int64_t most = 0;
            for (int r = 0; r < s->dp; r++)
                if (s->sum[first + r] > most) most = s->sum[first + r];
            time += most;
        }
        return time;
    }
    for (int r = 0; r < s->dp; r++) {
        int64_t total = 0;
        for (int b = r; b < s->seats; b += s->dp) total += s->sum[b];
        if (total > time) time = total;
    }
    return time;
}

static void seat_all(seating *s, tiny *t, int sample) {
    if (sample == t->count) {
        int64_t time = time_of(s);
        if (time < s->best) s->best = time;
        return;
    }
    for (int b = 0; b < s->seats; b++) {
        if (t->room[b] < t->length[sample]) continue;
        t->room[b] -= t->length[sample];
        s->sum[b] += s->cost[sample];
        seat_all(s, t, sample + 1);
        t->room[b] += t->length[sample];
        s->sum[b] -= s->cost[sample];
    }
}

TEST(plan_time_bound_is_below_the_optimum_and_max_is_near_it_on_tiny_inputs) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 9);
    int64_t runs = check_rounds(60, 2000), optimal = 0, seen = 0;
    for (int64_t i = 0; i < runs; i++) {
        tiny t;
        draw_tiny(&t, &rng);
        if (t.count > 7) t.count = 7;
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = t.cap;
        o.dp = 2 + (int32_t)ravel__rng_below(&rng, 2);
        o.sync = (int32_t)ravel__rng_below(&rng, 2);
        o.cost = (ravel_cost){10, 1, 0};
        o.effort = RAVEL_EFFORT_MAX;
        ravel_plan_input in = {.size = sizeof in, .count = t.count, .lengths = t.length};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        if (plan->bins <= 6) {
            seating s = {&t, {0}, {0}, INT64_MAX, (int)plan->bins, o.dp, o.sync};
            for (int b = 0; b < s.seats; b++) t.room[b] = t.cap;
            for (int k = 0; k < t.count; k++) s.cost[k] = 10 * t.length[k] + t.length[k] * t.length[k];
            seat_all(&s, &t, 0);
            CHECK(plan->stats.time_lower_bound <= s.best);
            CHECK(plan->stats.time >= s.best);
            CHECK(plan->stats.time <= s.best + s.best / 4);
            optimal += plan->stats.time == s.best;
            seen++;
        }
        ravel_plan_free(plan);
    }
    CHECK(seen > runs / 4);
    CHECK(optimal * 10 >= seen * 8);
}

/* ---- Martello and Toth, by definition ----------------------------------------------------------------------- */

static int64_t plain_l2(const int64_t *x, int n, int64_t cap) {
    int64_t best = 0;
    for (int64_t a = 0; a <= cap / 2; a++) {
        int64_t n1 = 0, n2 = 0, room = 0, small = 0;
        for (int i = 0; i < n; i++) {
            if (x[i] > cap - a) {
                n1++;
            } else if (2 * x[i] > cap) {
                n2++;
                room += cap - x[i];
            } else if (x[i] >= a) {
                small += x[i];
            }
        }
        int64_t more = small > room ? (small - room + cap - 1) / cap : 0;
        if (n1 + n2 + more > best) best = n1 + n2 + more;
    }
    return best;
}

TEST(plan_bin_bound_is_l2) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 6);
    for (int run = 0; run < 3000; run++) {
        int64_t x[40], cap = 2 + (int64_t)ravel__rng_below(&rng, 100);
        int n = 1 + (int)ravel__rng_below(&rng, 39);
        for (int i = 0; i < n; i++) x[i] = 1 + (int64_t)ravel__rng_below(&rng, (uint64_t)cap);
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = cap;
        o.method = RAVEL_METHOD_FFD;
        ravel_plan_input in = {.size = sizeof in, .count = n, .lengths = x};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        int64_t bound = plan->stats.bins_lower_bound;
        ravel_plan_free(plan);
        CHECK_EQ(bound, plain_l2(x, n, cap));
    }
}

/* ---- methods by definition ---------------------------------------------------------------------------------- */

static int longer_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Bins of the textbook's first fit or best fit over lengths that are sorted. */
static int64_t plain_fit(const int64_t *x, int n, int64_t cap, bool best) {
    int64_t room[PLAN_CASE_SAMPLES];
    int bins = 0;
    for (int i = 0; i < n; i++) {
        int choice = -1;
        for (int b = 0; b < bins; b++) {
            if (room[b] < x[i]) continue;
            if (choice < 0 || (best && room[b] < room[choice])) choice = b;
        }
        if (choice < 0) {
            choice = bins++;
            room[choice] = cap;
        }
        room[choice] -= x[i];
    }
    return bins;
}

static int64_t plain_next_fit(const int64_t *x, int n, int64_t cap) {
    int64_t bins = 1, room = cap;
    for (int i = 0; i < n; i++) {
        if (x[i] > room) {
            bins++;
            room = cap;
        }
        room -= x[i];
    }
    return bins;
}

static int64_t packed_bins(const int64_t *x, int n, int64_t cap, int32_t method) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = cap;
    o.method = method;
    ravel_plan_input in = {.size = sizeof in, .count = n, .lengths = x};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(&in, &o, &plan, &err) != RAVEL_OK) return -1;
    int64_t bins = plan->stats.bins_packed;
    ravel_plan_free(plan);
    return bins;
}

TEST(plan_fits_are_the_textbooks) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 7);
    for (int run = 0; run < 300; run++) {
        int64_t x[PLAN_CASE_SAMPLES], sorted[PLAN_CASE_SAMPLES];
        int64_t cap = run % 3 ? 2 + (int64_t)ravel__rng_below(&rng, 5000) : INT64_C(1) << 34; /* both indexes */
        int64_t longest = cap < INT64_C(1) << 31 ? cap : INT64_C(1) << 31;
        int n = 1 + (int)ravel__rng_below(&rng, PLAN_CASE_SAMPLES);
        for (int i = 0; i < n; i++) sorted[i] = x[i] = 1 + (int64_t)ravel__rng_below(&rng, (uint64_t)longest);
        qsort(sorted, (size_t)n, sizeof *sorted, longer_first);
        CHECK_EQ(packed_bins(x, n, cap, RAVEL_METHOD_NEXT_FIT), plain_next_fit(x, n, cap));
        CHECK_EQ(packed_bins(x, n, cap, RAVEL_METHOD_NEXT_FIT_DECREASING), plain_next_fit(sorted, n, cap));
        CHECK_EQ(packed_bins(x, n, cap, RAVEL_METHOD_FFD), plain_fit(sorted, n, cap, false));
        CHECK_EQ(packed_bins(x, n, cap, RAVEL_METHOD_BFD), plain_fit(sorted, n, cap, true));
    }
}

/* 6/11 of first-fit's worst case: modified first-fit pairs the large with the middling. */
TEST(plan_mffd_beats_ffd_on_its_bad_case) {
    int64_t x[60];
    for (int i = 0; i < 60; i++) x[i] = i < 12 ? 510 : i < 24 ? 270 : i < 36 ? 260 : 230;
    CHECK(packed_bins(x, 60, 1000, RAVEL_METHOD_MFFD) <= packed_bins(x, 60, 1000, RAVEL_METHOD_FFD));
}

/* Karmarkar and Karp's own example: 8 7 6 5 4 into two parts ends with a difference of 2, three parts of 8 7 6 5 4 with
 * 11 11 8. */
/* One of .4 and two of .3 fill a bin; fitting them one by one, longest first, leaves a fifth of every bin empty. */
TEST(plan_default_finds_lengths_that_go_together) {
    enum { BINS = 400 };
    static int64_t lengths[3 * BINS];
    for (int i = 0; i < 3 * BINS; i++) lengths[i] = i < BINS ? 4000 : 3000;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 10000;
    ravel_plan_input in = {.size = sizeof in, .count = 3 * BINS, .lengths = lengths};
    for (o.effort = RAVEL_EFFORT_DEFAULT; o.effort <= RAVEL_EFFORT_MAX; o.effort++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        CHECK_EQ(plan->stats.bins, BINS);
        ravel_plan_free(plan);
    }
}

/* A sample that costs more than all that the other ranks have: its rank gets nothing else, though that leaves
 * fillers. */
TEST(plan_default_leaves_a_giant_alone) {
    enum { SAMPLES = 3000 };
    static int64_t lengths[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) lengths[i] = i ? 20 + i % 50 : 32768;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 32768;
    o.dp = 4;
    o.min_micro_steps = 3;
    o.cost = (ravel_cost){24576, 1, 0};
    ravel_plan_input in = {.size = sizeof in, .count = SAMPLES, .lengths = lengths};
    for (o.sync = RAVEL_SYNC_UPDATE; o.sync <= RAVEL_SYNC_PIPELINE; o.sync++) {
        for (o.effort = RAVEL_EFFORT_DEFAULT; o.effort <= RAVEL_EFFORT_MAX; o.effort++) {
            ravel_error err = RAVEL_ERROR_INIT;
            ravel_plan *plan = NULL;
            CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
            CHECK_EQ(plan->stats.time, plan->stats.time_lower_bound);
            ravel_plan_free(plan);
        }
    }
}

TEST(plan_kk_is_differencing) {
    const int64_t x[] = {4, 5, 6, 7, 8};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 100;
    o.dp = 2;
    o.method = RAVEL_METHOD_KK;
    ravel_plan_input in = {.size = sizeof in, .count = 5, .lengths = x};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK(plan->bin_tokens[0] + plan->bin_tokens[1] == 30);
    CHECK_EQ(llabs(plan->bin_tokens[0] - plan->bin_tokens[1]), 2);
    ravel_plan_free(plan);
    o.dp = 3;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    int64_t most = 0, least = 99;
    for (int b = 0; b < 3; b++) {
        if (plan->bin_tokens[b] > most) most = plan->bin_tokens[b];
        if (plan->bin_tokens[b] < least) least = plan->bin_tokens[b];
    }
    CHECK(most == 11 && least == 8);
    ravel_plan_free(plan);
}

TEST(plan_count_and_as_is_keep_the_order) {
    const int64_t x[] = {5, 9, 1, 1, 1, 1, 9};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 10;
    o.method = RAVEL_METHOD_FIXED_COUNT;
    o.count = 3;
    ravel_plan_input in = {.size = sizeof in, .count = 7, .lengths = x};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    static const int64_t offsets[] = {0, 1, 3, 6, 7}; /* 5 | 9 1 | 1 1 1 | 9: three, fewer where the budget says so */
    CHECK_EQ(plan->bins, 4);
    for (int i = 0; i < 5; i++) CHECK_EQ(plan->bin_offsets[i], offsets[i]);
    for (int i = 0; i < 7; i++) CHECK_EQ(plan->samples[i], i);
    ravel_plan_free(plan);
    o.method = RAVEL_METHOD_AS_IS;
    o.dp = 4;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK_EQ(plan->micro_steps, 2);
    CHECK_EQ(plan->stats.fillers, 1);
    for (int i = 0; i < 7; i++) CHECK(plan->samples[i] == i && plan->bin_offsets[i] == i);
    ravel_plan_free(plan);
}

/* ---- the index of open bins --------------------------------------------------------------------------------- */

TEST(plan_fit_index_finds_the_least_room) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 8);
    static const int64_t caps[] = {1, 63, 64, 4095, 65536, INT64_C(1) << 40};
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        enum { BINS = 300 };
        int64_t room[BINS], cap = caps[c];
        ravel__arena arena;
        ravel__arena_init(&arena, NULL, 4096);
        ravel__fit fit;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel__fit_make(&fit, &arena, cap, BINS, &err), &err);
        for (int b = 0; b < BINS; b++) room[b] = -1;
        for (int step = 0; step < 5000; step++) {
            int b = (int)ravel__rng_below(&rng, BINS);
            if (room[b] < 0) {
                room[b] = (int64_t)ravel__rng_below(&rng, (uint64_t)cap + 1);
                ravel__fit_put(&fit, b, room[b]);
                continue;
            }
            int64_t need = (int64_t)ravel__rng_below(&rng, (uint64_t)cap + 1), least = INT64_MAX, found = -1;
            for (int i = 0; i < BINS; i++)
                if (room[i] >= need && room[i] < least) least = room[i];
            int32_t got = ravel__fit_take(&fit, need, &found);
            CHECK(got < 0 ? least == INT64_MAX : found == least && room[got] == least);
            if (got >= 0) room[got] = -1;
        }
        ravel__arena_free(&arena);
    }
}

/* Samples that cost nothing: full bins are as cheap as empty ones, and must not hide them. */
TEST(plan_lpt_finds_empty_bins_among_full_ones_of_no_cost) {
    enum { COUNT = 400 };
    static int64_t lengths[COUNT], costs[COUNT];
    for (int64_t i = 0; i < COUNT; i++) lengths[i] = 4 + i % 4;
    for (int64_t most = 0; most <= 1; most++) {
        ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths, .costs = costs};
        ravel_plan_options o;
        ravel_plan *plan = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan_options_default(&o);
        o.budget = 7;
        o.max_samples = most;
        o.method = RAVEL_METHOD_LPT;
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        CHECK_EQ(plan->stats.bins_packed, COUNT);
        CHECK_OK(ravel_plan_check(&in, &o, plan, &err), &err);
        ravel_plan_free(plan);
    }
}
