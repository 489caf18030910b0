/* Updates, groups, layouts, homes, pipelines, replays, costs: what the options promise beyond the cap. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include "base/options.h"
#include "base/model/shape.h"

#include <stdlib.h>

static ravel_plan *plan_of(const ravel_plan_input *in, const ravel_plan_options *o) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(in, o, &plan, &err) != RAVEL_OK) printf("    %s\n", err.message);
    if (plan && ravel_plan_check(in, o, plan, &err) != RAVEL_OK) {
        printf("    %s\n", err.message);
        ravel_plan_free(plan);
        return NULL;
    }
    return plan;
}

static ravel_plan_options options_for(int64_t budget, int32_t dp) {
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = budget;
    o.dp = dp;
    o.cost = (ravel_cost){24576, 1, 0};
    return o;
}

/* The update of every sample. */
static void find_updates(const ravel_plan *plan, int32_t *update) {
    for (int64_t u = 0; u < plan->updates; u++)
        for (int64_t b = plan->update_offsets[u] * plan->dp; b < plan->update_offsets[u + 1] * plan->dp; b++)
            for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++)
                update[plan->samples[i]] = (int32_t)u;
}

/* ---- updates ------------------------------------------------------------------------------------------------ */

TEST(plan_updates_are_cut_in_order_and_evenly) {
    enum { COUNT = 103 };
    int64_t x[COUNT];
    int32_t update[COUNT], sizes[4] = {0};
    for (int i = 0; i < COUNT; i++) x[i] = 1 + i % 10;
    ravel_plan_options o = options_for(20, 2);
    o.updates = 4;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan && plan->updates == 4);
    find_updates(plan, update);
    for (int i = 0; i < COUNT; i++) sizes[update[i]]++;
    for (int i = 1; i < COUNT; i++) CHECK(update[i] >= update[i - 1]);
    for (int u = 0; u < 4; u++) CHECK(sizes[u] == 25 || sizes[u] == 26);
    ravel_plan_free(plan);
    o.updates = 1;
    o.samples_per_update = 40;
    plan = plan_of(&in, &o);
    CHECK(plan && plan->updates == 3);
    find_updates(plan, update);
    for (int i = 0; i < COUNT; i++) CHECK_EQ(update[i], i / 40);
    ravel_plan_free(plan);
}

TEST(plan_shuffle_deals_by_seed) {
    enum { COUNT = 200 };
    int64_t x[COUNT];
    int32_t first[COUNT], second[COUNT], sizes[2] = {0};
    for (int i = 0; i < COUNT; i++) x[i] = 5;
    ravel_plan_options o = options_for(20, 2);
    o.updates = 2;
    o.shuffle = 1;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    find_updates(plan, first);
    ravel_plan_free(plan);
    o.seed = 1;
    plan = plan_of(&in, &o);
    CHECK(plan);
    find_updates(plan, second);
    ravel_plan_free(plan);
    int same = 0, ordered = 0;
    for (int i = 0; i < COUNT; i++) {
        sizes[first[i]]++;
        same += first[i] == second[i];
        ordered += first[i] == (i >= COUNT / 2);
    }
    CHECK(sizes[0] == COUNT / 2 && same < 150 && ordered < 150);
}

TEST(plan_update_ids_are_obeyed_and_gaps_are_filled) {
    const int64_t x[] = {5, 5, 5};
    const int32_t ids[] = {2, 0, 2};
    int32_t update[3];
    ravel_plan_options o = options_for(20, 2);
    ravel_plan_input in = {.size = sizeof in, .count = 3, .lengths = x, .updates = ids};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan && plan->updates == 3);
    find_updates(plan, update);
    CHECK(update[0] == 2 && update[1] == 0 && update[2] == 2);
    CHECK_EQ(plan->update_offsets[2] - plan->update_offsets[1], 1); /* nothing but fillers */
    CHECK_EQ(plan->stats.fillers, 3);
    ravel_plan_free(plan);
}

TEST(plan_groups_stay_together) {
    enum { COUNT = 240, SIZE = 8 };
    int64_t x[COUNT], group[COUNT];
    int32_t update[COUNT];
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < COUNT; i++) {
        x[i] = 1 + (int64_t)ravel__rng_below(&rng, 1000);
        group[i] = 1000 - i / SIZE;
    }
    ravel_plan_options o = options_for(4000, 4);
    o.samples_per_update = 64;
    o.shuffle = 1;
    o.group_rule = RAVEL_GROUPS_UPDATE;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x, .groups = group};
    ravel_plan *plan = plan_of(&in, &o); /* the check looks at the groups */
    CHECK(plan && plan->updates == 4);
    find_updates(plan, update);
    ravel_plan_free(plan);
    o.group_rule = RAVEL_GROUPS_RANK;
    o.samples_per_update = 0; /* thirty groups on four ranks */
    for (int32_t sync = 0; sync < 3; sync++) {
        o.sync = sync;
        plan = plan_of(&in, &o);
        CHECK(plan);
        CHECK(plan->stats.imbalance < 1.1);
        ravel_plan_free(plan);
    }
}

/* ---- layouts ------------------------------------------------------------------------------------------------ */

TEST(plan_padded_bins_are_rectangles_of_like_lengths) {
    enum { COUNT = 2000 };
    static int64_t x[COUNT];
    plan_lognormal(x, COUNT, 2000, 1.1, 16, 8192, 3);
    ravel_plan_options o = options_for(16384, 8);
    o.layout = RAVEL_LAYOUT_PADDED;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *own = plan_of(&in, &o);
    CHECK(own);
    CHECK_EQ(own->stats.bins_packed, own->stats.bins_lower_bound); /* longest first is optimal here */
    for (int64_t b = 0; b < own->bins; b++) {
        int64_t longest = 0, rows = own->bin_offsets[b + 1] - own->bin_offsets[b];
        for (int64_t i = own->bin_offsets[b]; i < own->bin_offsets[b + 1]; i++)
            if (x[own->samples[i]] > longest) longest = x[own->samples[i]];
        CHECK_EQ(own->bin_slots[b], rows * longest);
        CHECK_EQ(own->bin_costs[b], rows * (24576 * longest + longest * longest));
    }
    CHECK(own->stats.padding < 0.05);
    o.method = RAVEL_METHOD_NEXT_FIT;
    ravel_plan *naive = plan_of(&in, &o);
    CHECK(naive && naive->stats.padding > 0.3);
    CHECK(own->stats.time * 3 < naive->stats.time * 2);
    ravel_plan_free(own);
    ravel_plan_free(naive);
}

TEST(plan_padded_2d_pads_prompts_and_responses_apart) {
    enum { COUNT = 1500 };
    static int64_t p[COUNT], r[COUNT];
    plan_lognormal(p, COUNT, 500, 1, 1, 4096, 5);
    plan_lognormal(r, COUNT, 900, 1, 0, 4096, 6);
    ravel_plan_options o = options_for(16384, 8);
    o.layout = RAVEL_LAYOUT_PADDED_2D;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .prompts = p, .responses = r};
    ravel_plan *own = plan_of(&in, &o);
    CHECK(own);
    for (int64_t b = 0; b < own->bins; b++) {
        int64_t prompt = 0, response = 0, rows = own->bin_offsets[b + 1] - own->bin_offsets[b];
        for (int64_t i = own->bin_offsets[b]; i < own->bin_offsets[b + 1]; i++) {
            if (p[own->samples[i]] > prompt) prompt = p[own->samples[i]];
            if (r[own->samples[i]] > response) response = r[own->samples[i]];
        }
        CHECK_EQ(own->bin_slots[b], rows * (prompt + response));
    }
    o.method = RAVEL_METHOD_FFD;
    ravel_plan *fit = plan_of(&in, &o);
    CHECK(fit && own->stats.time < fit->stats.time && own->stats.micro_steps <= fit->stats.micro_steps);
    ravel_plan_free(own);
    ravel_plan_free(fit);
}

TEST(plan_slots_are_aligned_and_cp_widens_bins) {
    const int64_t x[] = {1, 16, 17, 64};
    ravel_plan_options o = options_for(32, 1);
    o.align = 16;
    o.cp = 4; /* 128 a bin: 16 + 16 + 32 + 64 */
    ravel_plan_input in = {.size = sizeof in, .count = 4, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan && plan->bins == 1);
    CHECK_EQ(plan->bin_slots[0], 128);
    CHECK_EQ(plan->bin_tokens[0], 98);
    CHECK_EQ(plan->stats.capacity_tokens, 128);
    ravel_plan_free(plan);
}

/* ---- parity ------------------------------------------------------------------------------------------------- */

TEST(plan_micro_steps_obey_multiple_and_minimum) {
    int64_t x[10];
    for (int i = 0; i < 10; i++) x[i] = 10;
    ravel_plan_options o = options_for(20, 2); /* five bins: three micro-steps */
    ravel_plan_input in = {.size = sizeof in, .count = 10, .lengths = x};
    static const struct {
        int32_t multiple;
        int64_t least, steps, bins;
    } cases[] = {{1, 0, 3, 6}, {2, 0, 4, 8}, {4, 0, 4, 8}, {5, 0, 5, 10}, {1, 7, 7, 10}, {3, 7, 9, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.multiple = cases[i].multiple;
        o.min_micro_steps = cases[i].least;
        ravel_plan *plan = plan_of(&in, &o);
        CHECK(plan);
        CHECK_EQ(plan->micro_steps, cases[i].steps);
        CHECK_EQ(plan->stats.bins, cases[i].bins); /* split rather than filled, as long as there are samples */
        CHECK_EQ(plan->stats.fillers, plan->bins - cases[i].bins);
        ravel_plan_free(plan);
    }
}

TEST(plan_of_nothing_is_fillers) {
    ravel_plan_options o = options_for(20, 3);
    o.min_micro_steps = 2;
    ravel_plan_input in = {.size = sizeof in, .count = 0};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    CHECK(plan->bins == 6 && plan->stats.fillers == 6 && plan->stats.bins == 0 && plan->stats.slowdown == 1);
    ravel_plan_free(plan);
}

TEST(plan_skips_loudly) {
    const int64_t x[] = {5, 50, 7, 21};
    ravel_plan_options o = options_for(20, 1);
    o.oversize = RAVEL_OVERSIZE_SKIP;
    ravel_plan_input in = {.size = sizeof in, .count = 4, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    CHECK(plan->stats.skipped == 2 && plan->skipped[0] == 1 && plan->skipped[1] == 3 && plan->stats.samples == 2);
    ravel_plan_free(plan);
}

/* ---- homes and pipelines ------------------------------------------------------------------------------------ */

TEST(plan_homes_are_kept_where_time_allows) {
    enum { COUNT = 640, DP = 8 };
    static int64_t x[COUNT];
    static int32_t home[COUNT];
    plan_lognormal(x, COUNT, 2000, 1, 100, 8192, 9);
    for (int i = 0; i < COUNT; i++) home[i] = i % 10 == 9 ? -1 : i % DP;
    for (int32_t sync = 0; sync < 3; sync++)
        for (int32_t effort = 1; effort < 3; effort++) {
            ravel_plan_options o = options_for(16384, DP);
            o.sync = sync;
            o.effort = effort;
            ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
            ravel_plan *plain = plan_of(&in, &o);
            CHECK(plain);
            int64_t away = 0; /* tokens that would move without regard to homes */
            for (int64_t b = 0; b < plain->bins; b++)
                for (int64_t i = plain->bin_offsets[b]; i < plain->bin_offsets[b + 1]; i++)
                    if (home[plain->samples[i]] >= 0 && home[plain->samples[i]] != b % DP) away += x[plain->samples[i]];
            in.homes = home;
            ravel_plan *near = plan_of(&in, &o);
            CHECK(near);
            CHECK(near->stats.time <= plain->stats.time);
            CHECK(near->stats.tokens_moved < away);
            if (sync == RAVEL_SYNC_MICRO_STEP) CHECK(near->stats.tokens_moved * 10 < away * 9);
            ravel_plan_free(plain);
            ravel_plan_free(near);
        }
}

/* With one sample per bin and enough ranks, everything can stay at home: the assignment finds it. */
TEST(plan_homes_assignment_is_exact) {
    enum { DP = 12 };
    int64_t x[DP];
    int32_t home[DP];
    for (int i = 0; i < DP; i++) {
        x[i] = 100 - i;
        home[i] = (i * 5 + 3) % DP;
    }
    ravel_plan_options o = options_for(100, DP);
    ravel_plan_input in = {.size = sizeof in, .count = DP, .lengths = x, .homes = home};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    CHECK_EQ(plan->stats.tokens_moved, 0);
    ravel_plan_free(plan);
    o.dp = 300; /* too many for the exact way */
    plan = plan_of(&in, &o);
    CHECK(plan);
    CHECK_EQ(plan->stats.tokens_moved, 0);
    ravel_plan_free(plan);
}

static int64_t step_cost(const ravel_plan *plan, int64_t step) {
    int64_t most = 0;
    for (int32_t r = 0; r < plan->dp; r++)
        if (plan->bin_costs[step * plan->dp + r] > most) most = plan->bin_costs[step * plan->dp + r];
    return most;
}

TEST(plan_pipelines_rise_to_the_middle) {
    enum { COUNT = 700 };
    static int64_t x[COUNT];
    plan_lognormal(x, COUNT, 2000, 1.3, 100, 8192, 11);
    ravel_plan_options o = options_for(8192, 4);
    o.sync = RAVEL_SYNC_PIPELINE;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan && plan->micro_steps > 4);
    int64_t falls = 0;
    for (int64_t s = 1; s < plan->micro_steps; s++) {
        int64_t change = step_cost(plan, s) - step_cost(plan, s - 1);
        if (change < 0) falls = 1;
        CHECK(!(falls && change > 0)); /* once it falls it never rises again */
    }
    CHECK(falls);
    CHECK(plan->stats.imbalance < 1.001);
    ravel_plan_free(plan);
}

/* ---- replay ------------------------------------------------------------------------------------------------- */

TEST(plan_replay_shuffles_inside_updates) {
    enum { COUNT = 300, MOST = 200 };
    int64_t x[COUNT], order[MOST], again[MOST];
    for (int i = 0; i < COUNT; i++) x[i] = 1 + i % 50;
    ravel_plan_options o = options_for(60, 2);
    o.updates = 3;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan && plan->micro_steps <= MOST);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_plan_replay(plan, 7, 0, order, &err), &err);
    for (int64_t i = 0; i < plan->micro_steps; i++) CHECK_EQ(order[i], i);
    int moved = 0;
    for (int64_t epoch = 1; epoch < 4; epoch++) {
        unsigned char seen[MOST] = {0};
        CHECK_OK(ravel_plan_replay(plan, 7, epoch, order, &err), &err);
        CHECK_OK(ravel_plan_replay(plan, 7, epoch, again, &err), &err);
        CHECK(memcmp(order, again, (size_t)plan->micro_steps * sizeof *order) == 0);
        for (int64_t u = 0; u < plan->updates; u++)
            for (int64_t i = plan->update_offsets[u]; i < plan->update_offsets[u + 1]; i++) {
                CHECK(order[i] >= plan->update_offsets[u] && order[i] < plan->update_offsets[u + 1]);
                CHECK(!seen[order[i]]++);
                moved += order[i] != i;
            }
    }
    CHECK(moved > plan->micro_steps);
    CHECK_EQ(ravel_plan_replay(plan, 7, -1, order, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "epoch is -1");
    ravel_plan_free(plan);
}

/* ---- digest and check --------------------------------------------------------------------------------------- */

TEST(plan_digest_depends_on_everything_that_matters) {
    int64_t x[] = {5, 9, 4, 8, 7, 3}, costs[] = {1, 2, 3, 4, 5, 6};
    const int32_t homes[] = {0, 1, 0, 1, 0, 1};
    ravel_plan_options o = options_for(16, 2), other;
    ravel_plan_input in = {.size = sizeof in, .count = 6, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    uint64_t base = plan->digest, digests[6];
    ravel_plan_free(plan);
    for (int i = 0; i < 6; i++) {
        other = o;
        ravel_plan_input input = in;
        if (i == 0) x[3]--;
        if (i == 1) other.seed = 5;
        if (i == 2) other.cost.linear++;
        if (i == 3) input.costs = costs;
        if (i == 4) input.homes = homes;
        if (i == 5) input.count = 5;
        plan = plan_of(&input, &other);
        CHECK(plan);
        digests[i] = plan->digest;
        ravel_plan_free(plan);
        if (i == 0) x[3]++;
        CHECK(digests[i] != base);
        for (int j = 0; j < i; j++) CHECK(digests[i] != digests[j]);
    }
}

/* Whatever is changed in a plan, the check sees it. */
TEST(plan_check_sees_every_change) {
    enum { COUNT = 40 };
    int64_t x[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = 1 + (i * 37) % 90;
    ravel_plan_options o = options_for(100, 4);
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = x};
    ravel_plan *plan = plan_of(&in, &o);
    CHECK(plan);
    ravel_plan broken;
    ravel_error err = RAVEL_ERROR_INIT;
#define BREAK(change, words)                                              \
    do {                                                                  \
        broken = *plan;                                                   \
        ravel_error_clear(&err);                                          \
        change;                                                           \
        CHECK_EQ(ravel_plan_check(&in, &o, &broken, &err), RAVEL_E_DATA); \
        CHECK_HAS(err.message, words);                                    \
    } while (0)
    int32_t samples[COUNT];
    int64_t numbers[64];
    memcpy(samples, plan->samples, sizeof samples);
    broken.samples = samples;
    BREAK((samples[0] = plan->samples[1], broken.samples = samples), "is in bins");
    BREAK((samples[0] = COUNT, broken.samples = samples), "holds sample 40");
    memcpy(samples, plan->samples, sizeof samples);
    int64_t last = COUNT - 1;
    samples[0] = plan->samples[last];
    samples[last] = plan->samples[0];
    BREAK(broken.samples = samples, "");
    memcpy(numbers, plan->bin_costs, (size_t)plan->bins * sizeof *numbers);
    numbers[2]++;
    BREAK(broken.bin_costs = numbers, "bin 2 has");
    BREAK(broken.digest++, "digest");
    BREAK(broken.stats.time--, "time");
    BREAK(broken.stats.fill += 0.1, "fill");
    BREAK(broken.stats.bins_packed = 1, "bins_packed");
    BREAK(broken.dp = 3, "do not agree");
#undef BREAK
    ravel_plan_free(plan);
}

/* ---- costs -------------------------------------------------------------------------------------------------- */

TEST(plan_cost_reads_texts) {
    static const struct {
        const char *text;
        int64_t linear, quadratic, overhead;
    } good[] = {{"tokens", 1, 0, 0}, {"24576:1", 24576, 1, 0}, {"3:0:7", 3, 0, 7}, {"16k:2:1M", 16384, 2, 1 << 20}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ravel_cost cost = {-1, -1, -1};
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_cost_parse(good[i].text, &cost, &err), &err);
        CHECK(cost.linear == good[i].linear && cost.quadratic == good[i].quadratic &&
              cost.overhead == good[i].overhead);
    }
    static const char *const bad[] = {"",    "1",    "1:",   ":1",      "1:2:3:4",
                                      "a:b", "-1:2", "1:2:", "tokens ", "1:99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_cost cost = {-1, -1, -1};
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(ravel_cost_parse(bad[i], &cost, &err) != RAVEL_OK);
        CHECK_HAS(err.message, "cost");
        CHECK_EQ(cost.linear, -1);
    }
}

/* Qwen3-0.6B by hand: matrices 2 * (28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) + 1024 * 151936), attention
 * 2 * 28 * 2048. */
TEST(plan_cost_of_a_shape_is_its_flops) {
    ravel_shape shape = {.hidden = 1024,
                         .layers = 28,
                         .heads = 16,
                         .kv_heads = 8,
                         .head_dim = 128,
                         .ffn = 3072,
                         .vocab = 151936,
                         .gated = 1};
    ravel_cost cost;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_cost_from_shape(&shape, &cost, &err), &err);
    double linear = 2.0 * (28.0 * (1024.0 * (4096 + 2048) + 3.0 * 1024 * 3072) + 1024.0 * 151936);
    double ratio = linear / (2.0 * 28 * 2048);
    CHECK((double)cost.linear / (double)cost.quadratic > ratio * 0.9999 &&
          (double)cost.linear / (double)cost.quadratic < ratio * 1.0001);
    CHECK(cost.overhead == 0);
    ravel_shape sparse = shape;
    sparse.experts = 64;
    sparse.experts_active = 4;
    sparse.expert_ffn = 768; /* four of them: one dense block */
    ravel_cost more;
    CHECK_OK(ravel_cost_from_shape(&sparse, &more, &err), &err);
    double router = 2.0 * 28 * 1024 * 64 / (2.0 * 28 * 2048);
    double there = (double)more.linear / (double)more.quadratic;
    CHECK(there > (ratio + router) * 0.9999 && there < (ratio + router) * 1.0001);
    ravel_shape latent; /* scores and values of different widths, queries and keys through low ranks */
    CHECK_OK(ravel_shape_named("deepseek-v3", &latent, &err), &err);
    CHECK_OK(ravel_cost_from_shape(&latent, &more, &err), &err);
    ratio = 2.0 * (double)ravel__shape_matmul_weights(&latent) / (61.0 * 128 * (192 + 128));
    there = (double)more.linear / (double)more.quadratic;
    CHECK(there > ratio * 0.9999 && there < ratio * 1.0001);
    shape.heads = 0;
    CHECK_EQ(ravel_cost_from_shape(&shape, &cost, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "heads is 0");
}

TEST(plan_methods_have_names_and_docs) {
    int32_t count = 0;
    char word[32];
    for (; ravel_method_name(count); count++) {
        CHECK(ravel__choice_word(RAVEL_METHOD_CHOICES, count, word, sizeof word));
        CHECK_STR(ravel_method_name(count), word);
        CHECK(strlen(ravel_method_doc(count)) > 20);
    }
    CHECK(!ravel__choice_word(RAVEL_METHOD_CHOICES, count, word, sizeof word));
    CHECK(!ravel_method_name(-1) && !ravel_method_doc(count));
}

/* oversize = alone: each sample over the budget has a bin of its own and is counted; all others keep the cap. */
TEST(plan_oversize_samples_run_alone) {
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0xa10e);
    int64_t over = 0;
    for (int64_t round = 0; round < check_rounds(300, 20000); round++) {
        int64_t prompts[60], responses[60], alone = 0;
        ravel_plan_options o;
        ravel_plan *plan = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan_options_default(&o);
        o.budget = 20 + (int64_t)ravel__rng_below(&rng, 100);
        o.oversize = RAVEL_OVERSIZE_ALONE;
        o.layout = (int32_t)ravel__rng_below(&rng, 3);
        o.align = 1 + (int32_t)ravel__rng_below(&rng, 5);
        o.dp = 1 + (int32_t)ravel__rng_below(&rng, 4);
        o.cp = o.layout == RAVEL_LAYOUT_PACKED ? 1 + (int32_t)ravel__rng_below(&rng, 2) : 1;
        o.effort = (int32_t)ravel__rng_below(&rng, 3);
        o.cost.overhead = (int64_t)ravel__rng_below(&rng, 2) * 1000;
        ravel_plan_input in = {.size = sizeof in, .count = (int64_t)ravel__rng_below(&rng, 60)};
        in.prompts = prompts, in.responses = responses;
        for (int64_t i = 0; i < in.count; i++) {
            prompts[i] = (int64_t)ravel__rng_below(&rng, 60);
            responses[i] = 1 + (int64_t)ravel__rng_below(&rng, ravel__rng_below(&rng, 8) ? 20 : 300);
        }
        CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
        CHECK_OK(ravel_plan_check(&in, &o, plan, &err), &err);
        for (int64_t b = 0; b < plan->bins; b++) {
            int64_t rows = plan->bin_offsets[b + 1] - plan->bin_offsets[b];
            if (plan->bin_slots[b] <= o.cp * o.budget) continue;
            CHECK(rows == 1);
            alone++;
        }
        CHECK(plan->stats.over_budget == alone && plan->stats.skipped == 0 && plan->stats.samples == in.count);
        over += alone;
        ravel_plan_free(plan);
    }
    CHECK(over > 100);
}
