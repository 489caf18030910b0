/* Prefix trees: the order from ids, and plans that compute a shared token once per bin. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include "plan/tree/check.h"
#include "tests/unit/tree_cases.h"
#include "bench/tree_families.h"

#include <math.h>
#include <stdlib.h>

/* ---- the order -------------------------------------------------------------------------------------------------- */

typedef struct texts {
    ravel_tree_input in;
    int64_t offsets[TREE_CASE_SAMPLES + 1];
    int32_t ids[TREE_CASE_TOKENS];
    uint64_t token_keys[TREE_CASE_TOKENS], sample_keys[TREE_CASE_SAMPLES];
} texts;

/* Each sample begins with a piece of an earlier one; few different ids, so that branches meet by chance too. */
static void draw_texts(texts *t, ravel__rng *rng) {
    int32_t count = (int32_t)ravel__rng_below(rng, 40), letters = 1 + (int32_t)ravel__rng_below(rng, 4);
    int keyed = (int)ravel__rng_below(rng, 3) == 0, trees = (int)ravel__rng_below(rng, 3) == 0;
    t->offsets[0] = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t from = i ? (int32_t)ravel__rng_below(rng, (uint64_t)i) : 0;
        int64_t begin = t->offsets[i], n = 0, whole = i ? t->offsets[from + 1] - t->offsets[from] : 0;
        int64_t copy = (int64_t)ravel__rng_below(rng, (uint64_t)whole + 1), more = (int64_t)ravel__rng_below(rng, 90);
        if (ravel__rng_below(rng, 6) == 0) more = 0;
        if (copy > 600) copy = 600;
        for (; n < copy + more; n++) {
            int64_t at = begin + n, old = t->offsets[from] + n;
            t->ids[at] = n < copy ? t->ids[old] : (int32_t)ravel__rng_below(rng, (uint64_t)letters) - 1;
            t->token_keys[at] = n < copy ? t->token_keys[old] : ravel__rng_below(rng, 40) == 0;
        }
        t->offsets[i + 1] = begin + n;
        t->sample_keys[i] = ravel__rng_below(rng, 2);
    }
    t->in = (ravel_tree_input){.size = sizeof t->in, .count = count, .offsets = t->offsets, .ids = t->ids};
    if (keyed) t->in.token_keys = t->token_keys;
    if (trees) t->in.sample_keys = t->sample_keys;
}

static int64_t common(const texts *t, int32_t a, int32_t b) {
    int64_t x = t->offsets[a + 1] - t->offsets[a], y = t->offsets[b + 1] - t->offsets[b], n = 0;
    if (t->in.sample_keys && t->sample_keys[a] != t->sample_keys[b]) return 0;
    while (n < x && n < y && t->ids[t->offsets[a] + n] == t->ids[t->offsets[b] + n] &&
           (!t->in.token_keys || t->token_keys[t->offsets[a] + n] == t->token_keys[t->offsets[b] + n]))
        n++;
    return n;
}

/* Every pair shares the least `shared` between them, so the order has every subtree in one run. */
static bool check_order_of(const texts *t, const int32_t *order, const int64_t *shared) {
    int64_t lengths[TREE_CASE_SAMPLES];
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t i = 0; i < t->in.count; i++) lengths[i] = t->offsets[i + 1] - t->offsets[i];
    if (!EXPECT(ravel__tree_check(t->in.count, lengths, order, shared, NULL, &err) == RAVEL_OK)) return false;
    for (int64_t i = 0; i < t->in.count; i++) {
        int64_t least = INT64_MAX;
        for (int64_t j = i + 1; j < t->in.count; j++) {
            if (shared[j] < least) least = shared[j];
            if (!EXPECT(common(t, order[i], order[j]) == least)) return false;
            /* a prefix comes after what it is a prefix of, equal samples by index */
            if (least == lengths[order[i]] && !EXPECT(lengths[order[j]] == least && order[i] < order[j])) return false;
        }
    }
    return true;
}

TEST(tree_order_puts_what_begins_alike_side_by_side) {
    static texts t;
    int32_t order[TREE_CASE_SAMPLES];
    int64_t shared[TREE_CASE_SAMPLES];
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0x7ee5);
    for (int64_t round = 0; round < check_rounds(400, 40000); round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        draw_texts(&t, &rng);
        CHECK_OK(ravel_tree_order(&t.in, order, shared, &err), &err);
        CHECK(check_order_of(&t, order, shared));
    }
}

TEST(tree_order_is_by_the_first_sample) {
    const int32_t ids[] = {9, 1, 5, 9, 1, 7, 1, 9, 1};
    const int64_t offsets[] = {0, 1, 3, 5, 6, 7, 9};
    /* 0: 9 | 1: 1 5 | 2: 9 1 | 3: 7 | 4: 1 | 5: 9 1 */
    ravel_tree_input in = {.size = sizeof in, .count = 6, .offsets = offsets, .ids = ids};
    const int32_t expected[] = {2, 5, 0, 1, 4, 3};
    const int64_t expected_shared[] = {0, 2, 1, 0, 1, 0};
    int32_t order[6];
    int64_t shared[6];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_tree_order(&in, order, shared, &err), &err);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(order[i], expected[i]);
        CHECK_EQ(shared[i], expected_shared[i]);
    }
}

TEST(tree_order_names_offsets_that_fall) {
    const int64_t offsets[] = {0, 4, 3};
    const int32_t ids[4] = {0};
    int32_t order[2];
    int64_t shared[2];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_tree_input in = {.size = sizeof in, .count = 2, .offsets = offsets, .ids = ids};
    CHECK_EQ(ravel_tree_order(&in, order, shared, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "sample 1 begins at 4 and ends at 3");
}

static ravel_status order_with(const ravel_allocator *allocator, void *user) {
    texts *t = user;
    int32_t order[TREE_CASE_SAMPLES];
    int64_t shared[TREE_CASE_SAMPLES];
    ravel_error err = RAVEL_ERROR_INIT;
    t->in.allocator = allocator;
    return ravel_tree_order(&t->in, order, shared, &err);
}

TEST(tree_order_survives_short_memory) {
    static texts t;
    ravel__rng rng = ravel__rng_seed(check_seed());
    do draw_texts(&t, &rng);
    while (!t.in.count);
    CHECK(check_every_allocation(order_with, &t) > 0);
}

TEST(tree_from_groups_is_the_order_of_their_ids) {
    enum { COUNT = 60 };
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0x6209);
    for (int64_t round = 0; round < check_rounds(200, 5000); round++) {
        static texts t;
        int64_t lengths[COUNT], prompts[COUNT], groups[COUNT], shared[COUNT], other[COUNT];
        int32_t order[COUNT], by_ids[COUNT], next = 100;
        ravel_error err = RAVEL_ERROR_INIT;
        t.offsets[0] = 0;
        for (int i = 0; i < COUNT; i++) { /* no two answers begin alike, nor two prompts */
            groups[i] = (int64_t)ravel__rng_below(&rng, 9);
            prompts[i] = 1 + groups[i] % 5;
            lengths[i] = prompts[i] + (int64_t)ravel__rng_below(&rng, 5);
            for (int64_t k = 0; k < lengths[i]; k++)
                t.ids[t.offsets[i] + k] = k < prompts[i] ? (int32_t)(groups[i] * 10 + k) : next++;
            t.offsets[i + 1] = t.offsets[i] + lengths[i];
        }
        t.in = (ravel_tree_input){.size = sizeof t.in, .count = COUNT, .offsets = t.offsets, .ids = t.ids};
        CHECK_OK(ravel_tree_order(&t.in, by_ids, other, &err), &err);
        CHECK_OK(ravel_tree_from_groups(COUNT, lengths, prompts, groups, NULL, order, shared, &err), &err);
        for (int i = 0; i < COUNT; i++) {
            CHECK_EQ(order[i], by_ids[i]);
            CHECK_EQ(shared[i], other[i]);
        }
    }
}

TEST(tree_from_groups_names_what_does_not_agree) {
    const int64_t lengths[] = {5, 6}, same[] = {1, 1};
    int64_t prompts[] = {2, 3}, shared[2];
    int32_t order[2];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_tree_from_groups(2, lengths, prompts, same, NULL, order, shared, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "samples 0 and 1 are of group 1, but their prompts have 2 and 3 tokens");
    prompts[1] = 7;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_tree_from_groups(2, lengths, prompts, same, NULL, order, shared, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "sample 1 has a prompt of 7 tokens, and 6 in all");
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

TEST(tree_plans_keep_the_promises) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0x91a2);
    int64_t planned = 0, rounds = check_rounds(3000, 1000000);
    for (int64_t round = 0; round < rounds; round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL, *again = NULL;
        tree_case_draw(&c, &rng, round % 50 ? 40 : TREE_CASE_SAMPLES);
        tree_case_options(&c, &rng);
        ravel_status status = ravel_plan_create(&c.input, &c.options, &plan, &err);
        if (status == RAVEL_E_OVERSIZE) continue;
        if (status) printf("    round %lld: %s\n", (long long)round, err.message);
        CHECK(status == RAVEL_OK);
        status = ravel_plan_check(&c.input, &c.options, plan, &err);
        if (status) printf("    round %lld: %s\n", (long long)round, err.message);
        CHECK(status == RAVEL_OK);
        CHECK(plan->stats.time >= plan->stats.time_lower_bound && plan->stats.bins >= plan->stats.bins_lower_bound);
        CHECK(plan->stats.unique_tokens <= plan->stats.actual_tokens);
        CHECK(plan->stats.actual_tokens <= plan->stats.flat_tokens);
        CHECK_OK(ravel_plan_create(&c.input, &c.options, &again, &err), &err);
        CHECK(again->digest == plan->digest);
        planned += plan->stats.samples > 0;
        ravel_plan_free(plan);
        ravel_plan_free(again);
    }
    CHECK(planned > rounds / 2);
}

/* Samples of a bin that no other one in it begins with. */
static int64_t leaves_of(const tree_case *c, const ravel_plan *plan, int64_t bin) {
    int64_t leaves = 0, end = plan->bin_offsets[bin + 1];
    for (int64_t i = plan->bin_offsets[bin]; i < end; i++) {
        int64_t length = c->lengths[plan->samples[i]];
        leaves += length > plan->shared[i] && (i + 1 == end || length > plan->shared[i + 1]);
    }
    return leaves;
}

/* Where a rank has a filler, there is nothing left to split: no bin of its update (of the rank's, where groups stay on
 * ranks) has two samples that are no prefixes. */
TEST(tree_plans_have_no_fillers_while_samples_remain) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0xf177);
    int64_t fillers = 0, split = 0;
    for (int64_t round = 0; round < check_rounds(1500, 100000); round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        do {
            tree_case_draw(&c, &rng, round % 20 ? 40 : TREE_CASE_SAMPLES);
            tree_case_options(&c, &rng);
        } while (c.options.cp_pool);
        c.options.method = RAVEL_METHOD_RAVEL;
        c.options.tree_method = RAVEL_TREE_RAVEL;
        c.options.oversize = RAVEL_OVERSIZE_SKIP;
        c.options.multiple = 1 + (int32_t)ravel__rng_below(&rng, 4);
        c.options.min_micro_steps = (int64_t)ravel__rng_below(&rng, 12);
        CHECK_OK(ravel_plan_create(&c.input, &c.options, &plan, &err), &err);
        CHECK_OK(ravel_plan_check(&c.input, &c.options, plan, &err), &err);
        for (int64_t u = 0; plan->shared && u < plan->updates; u++) {
            int64_t begin = plan->update_offsets[u] * plan->dp, end = plan->update_offsets[u + 1] * plan->dp;
            for (int64_t a = begin; a < end; a++) {
                if (plan->bin_offsets[a] < plan->bin_offsets[a + 1]) continue;
                fillers++;
                for (int64_t b = begin; b < end; b++)
                    if (c.options.group_rule != RAVEL_GROUPS_RANK || a % plan->dp == b % plan->dp)
                        CHECK(leaves_of(&c, plan, b) < 2);
            }
            split += end - begin > 0;
        }
        ravel_plan_free(plan);
    }
    CHECK(fillers > 100 && split > 500);
}

TEST(tree_plans_without_sharing_are_flat_plans) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0xf1a7);
    for (int64_t round = 0; round < check_rounds(300, 20000); round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL, *flat = NULL;
        tree_case_draw(&c, &rng, 60);
        tree_case_options(&c, &rng);
        memset(c.shared, 0, sizeof c.shared);
        ravel_status status = ravel_plan_create(&c.input, &c.options, &plan, &err);
        c.input.shared = NULL;
        c.input.order = NULL;
        CHECK_EQ(ravel_plan_create(&c.input, &c.options, &flat, &err), status);
        if (status) continue;
        CHECK(plan->digest == flat->digest && !plan->shared);
        CHECK_EQ(plan->stats.unique_tokens, plan->stats.flat_tokens);
        ravel_plan_free(plan);
        ravel_plan_free(flat);
    }
}

TEST(tree_plans_list_what_each_sample_adds) {
    /* two prompts of 10 with answers, one sample a prefix of another; one bin */
    const int64_t lengths[] = {15, 13, 12, 20, 20, 10}, shared[] = {0, 10, 12, 0, 10, 10};
    ravel_plan_input in = {.size = sizeof in, .count = 6, .lengths = lengths, .shared = shared};
    ravel_plan_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&o);
    o.budget = 48;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK_EQ(plan->bins, 1);
    CHECK_EQ(plan->bin_tokens[0], 15 + 3 + 0 + 20 + 10 + 0);
    CHECK_EQ(plan->stats.flat_tokens, 90);
    CHECK_EQ(plan->stats.unique_tokens, 48);
    for (int i = 0; i < 6; i++) CHECK(plan->samples[i] == i && plan->shared[i] == shared[i]);
    ravel_plan_free(plan);
}

TEST(tree_plans_name_what_cannot_be) {
    const int64_t lengths[] = {5, 6}, good[] = {0, 3}, bad[] = {0, 6}, costs[] = {1, 1};
    const int32_t twice[] = {1, 1};
    ravel_plan_input in = {.size = sizeof in, .count = 2, .lengths = lengths, .shared = bad};
    ravel_plan_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&o);
    o.budget = 48;
#define SAYS(status, words)                                                  \
    do {                                                                     \
        ravel_error_clear(&err);                                             \
        CHECK_EQ(ravel_plan_create(&in, &o, &plan, &err), RAVEL_E_##status); \
        CHECK_HAS(err.message, words);                                       \
    } while (0)
    SAYS(DATA, "place 1 of the tree order shares 6 tokens with the place before; its sample has 6 tokens and the one "
               "before 5");
    in.shared = good;
    in.order = twice;
    SAYS(DATA, "sample 1 has two places in the tree order");
    in.order = NULL;
    in.costs = costs;
    SAYS(DATA, "sample 0 has cost 1, less than the 3 tokens that it shares");
    in.costs = NULL;
    o.layout = RAVEL_LAYOUT_PADDED;
    SAYS(ARGUMENT, "set layout to packed");
    o.layout = RAVEL_LAYOUT_PACKED;
    in.shared = NULL;
    in.order = twice;
    SAYS(ARGUMENT, "a tree order but no shared tokens");
}

TEST(tree_plans_that_were_changed_are_found) {
    const int64_t lengths[] = {15, 13, 12, 20}, shared[] = {0, 10, 12, 9};
    ravel_plan_input in = {.size = sizeof in, .count = 4, .lengths = lengths, .shared = shared};
    ravel_plan_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&o);
    o.budget = 100;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    int64_t *own = (int64_t *)(uintptr_t)plan->shared;
    own[1]--;
    CHECK_EQ(ravel_plan_check(&in, &o, plan, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "sample 1 shares 10 tokens with the one before it in its bin; the plan says 9");
    own[1]++;
    int32_t *samples = (int32_t *)(uintptr_t)plan->samples;
    samples[0] = 1;
    samples[1] = 0;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_plan_check(&in, &o, plan, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "tree order");
    ravel_plan_free(plan);
}

static ravel_status plan_with(const ravel_allocator *allocator, void *user) {
    tree_case *c = user;
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    c->options.allocator = allocator;
    ravel_status status = ravel_plan_create(&c->input, &c->options, &plan, &err);
    ravel_plan_free(plan);
    return status;
}

TEST(tree_plans_survive_short_memory) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int round = 0; round < 20; round++) {
        do {
            tree_case_draw(&c, &rng, 60);
            tree_case_options(&c, &rng);
            c.options.oversize = RAVEL_OVERSIZE_SKIP;
        } while (c.input.count < 10);
        CHECK(check_every_allocation(plan_with, &c) > 0);
    }
}

/* ---- brute force ------------------------------------------------------------------------------------------------- */

enum { SMALL = 7 };

typedef struct brute {
    const tree_case *c;
    int32_t bin[SMALL];
    int64_t best;
} brute;

static int64_t path_cost(const tree_case *c, int64_t tokens) {
    return c->options.cost.linear * tokens + c->options.cost.quadratic * tokens * tokens;
}

/* The time of a partition: bins sorted by cost, dp in each micro-step; INT64_MAX if a bin is too full. */
static int64_t time_of(const brute *b, int32_t bins) {
    int64_t cost[SMALL] = {0}, time = 0;
    for (int32_t k = 0; k < bins; k++) {
        int64_t tokens = 0, least = 0;
        for (int32_t i = 0; i < b->c->input.count; i++) {
            if (b->c->shared[i] < least) least = b->c->shared[i];
            if (b->bin[i] != k) continue;
            tokens += b->c->lengths[i] - least;
            cost[k] += path_cost(b->c, b->c->lengths[i]) - path_cost(b->c, least);
            least = INT64_MAX;
        }
        if (tokens > b->c->options.budget) return INT64_MAX;
    }
    for (int32_t i = 0; i < bins; i++)
        for (int32_t j = i + 1; j < bins; j++)
            if (cost[j] > cost[i]) {
                int64_t swap = cost[i];
                cost[i] = cost[j];
                cost[j] = swap;
            }
    for (int32_t k = 0; k < bins; k += b->c->options.dp) time += cost[k];
    return time;
}

/* Every way to put samples i and on into the bins so far or a new one. */
static void try_all(brute *b, int32_t i, int32_t bins) {
    if (i == b->c->input.count) {
        int64_t time = time_of(b, bins);
        if (time < b->best) b->best = time;
        return;
    }
    for (int32_t k = 0; k <= bins; k++) {
        b->bin[i] = k;
        try_all(b, i + 1, k == bins ? bins + 1 : bins);
    }
}

TEST(tree_plans_of_few_samples_against_all_plans) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0xb407);
    int64_t rounds = check_rounds(1000, 10000), counted = 0, optimal = 0;
    double sum = 0, bound = 0;
    for (int64_t round = 0; round < rounds; round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        do tree_case_draw(&c, &rng, SMALL);
        while (c.input.count < 2);
        c.options.dp = 1 + (int32_t)ravel__rng_below(&rng, 4);
        CHECK_OK(ravel_plan_create(&c.input, &c.options, &plan, &err), &err);
        brute b = {.c = &c, .best = INT64_MAX};
        try_all(&b, 0, 0);
        CHECK(plan->stats.time_lower_bound <= b.best);
        if (plan->shared) { /* the plan without sharing takes as few micro-steps as it can first, and then time */
            CHECK(plan->stats.time_micro_step >= b.best);
            sum += (double)plan->stats.time_micro_step / (double)b.best;
            bound += (double)plan->stats.time_lower_bound / (double)b.best;
            optimal += plan->stats.time_micro_step == b.best;
            counted++;
        }
        ravel_plan_free(plan);
    }
    printf("    %lld of %lld optimal, time %.4f and bound %.4f of the optimum in the mean\n", (long long)optimal,
           (long long)counted, sum / (double)counted, bound / (double)counted);
    CHECK(sum <= 1.005 * (double)counted && optimal * 10 >= counted * 9);
}

/* ---- arrivals --------------------------------------------------------------------------------------------------- */

/* The taken samples as an input of their own: in order of arrival, with what is shared over those in between. */
static void gather_taken(const tree_case *c, const ravel_plan *plan, int64_t pieces, tree_case *own) {
    const int64_t *ids = ravel_planner_ids(plan);
    own->input = (ravel_plan_input){
        .size = sizeof own->input, .count = plan->count, .lengths = own->lengths, .shared = own->shared};
    for (int64_t i = 0; i < plan->count; i++) {
        int64_t least = i ? INT64_MAX : 0;
        for (int64_t k = i ? ids[i - 1] + 1 : 0; k <= ids[i]; k++) {
            int64_t shared = k % pieces ? c->shared[k] : 0; /* each push begins anew */
            if (shared < least) least = shared;
        }
        own->lengths[i] = c->lengths[ids[i]];
        own->shared[i] = least;
        own->groups[i] = c->groups[ids[i]];
        own->homes[i] = c->homes[ids[i]];
        own->costs[i] = c->costs[ids[i]];
    }
    if (c->input.groups) own->input.groups = own->groups;
    if (c->input.homes) own->input.homes = own->homes;
    if (c->input.costs) own->input.costs = own->costs;
}

static bool check_taken(const tree_case *c, const ravel_plan *plan, int64_t pieces, int32_t *taken) {
    static tree_case own;
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t *ids = ravel_planner_ids(plan);
    ravel_plan_options options = c->options;
    options.multiple = 1;
    options.min_micro_steps = 0;
    gather_taken(c, plan, pieces, &own);
    for (int64_t i = 0; i < plan->count; i++) taken[ids[i]]++;
    if (ravel_plan_check(&own.input, &options, plan, &err) == RAVEL_OK) return true;
    printf("    %s\n", err.message);
    return EXPECT(!"a taken plan passes its check");
}

TEST(tree_arrivals_keep_the_promises) {
    static tree_case c;
    ravel__rng rng = ravel__rng_seed(check_seed() ^ 0xa221);
    for (int64_t round = 0; round < check_rounds(500, 50000); round++) {
        ravel_planner *planner = NULL;
        ravel_plan *plan = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        int32_t taken[TREE_CASE_SAMPLES] = {0};
        int64_t pieces = 1 + (int64_t)ravel__rng_below(&rng, 30);
        tree_case_draw(&c, &rng, 80);
        tree_case_options(&c, &rng);
        c.options.updates = 1;
        c.options.samples_per_update = 0;
        c.options.oversize = RAVEL_OVERSIZE_SKIP;
        c.input.updates = NULL;
        for (int64_t i = 0; c.input.order && i < c.input.count; i++)
            c.shared[i] = 0; /* pushes are in tree order here */
        CHECK_OK(planner_with_fill(&c.options, 0.9, &planner, &err), &err);
        for (int64_t i = 0; i < c.input.count; i += pieces) {
            ravel_plan_input in = c.input;
            int64_t keep = c.shared[i];
            in.count = c.input.count - i < pieces ? c.input.count - i : pieces;
            in.lengths = c.lengths + i;
            in.shared = c.shared + i;
            in.order = NULL;
            if (in.groups) in.groups += i;
            if (in.homes) in.homes += i;
            if (in.costs) in.costs += i;
            c.shared[i] = 0;
            CHECK_OK(ravel_planner_push(planner, &in, NULL, &err), &err);
            c.shared[i] = keep;
            while (ravel_planner_take(planner, 0, &plan, &err) == RAVEL_OK) {
                CHECK(check_taken(&c, plan, pieces, taken));
                ravel_plan_free(plan);
            }
        }
        while (ravel_planner_take(planner, 1, &plan, &err) == RAVEL_OK) {
            CHECK(check_taken(&c, plan, pieces, taken));
            ravel_plan_free(plan);
        }
        CHECK_EQ(err.status, RAVEL_OK);
        for (int64_t i = 0; i < c.input.count; i++) CHECK_EQ(taken[i], 1);
        ravel_planner_free(planner);
    }
}

/* ---- how good plans are ----------------------------------------------------------------------------------------- */

/* Geometric mean over the families of time over the proven bound, at this effort; and no plan is slower than what other
 * frameworks do. */
static double mean_over_bound(int32_t dp, int32_t effort, int32_t sync) {
    static batch b;
    double logs = 0;
    for (int f = 0; f < FAMILIES; f++) {
        ravel_plan *plan = NULL, *other = NULL;
        ravel_plan_options o;
        draw_family(&b, f);
        ravel_plan_input in = {.size = sizeof in, .count = b.count, .lengths = b.lengths, .shared = b.shared};
        ravel_plan_options_default(&o);
        o.budget = families[f].budget;
        o.dp = dp;
        o.cost = (ravel_cost){24576, 1, 0};
        o.effort = effort;
        o.sync = sync;
        if (!EXPECT(ravel_plan_create(&in, &o, &plan, NULL) == RAVEL_OK)) return 99;
        logs += log((double)plan->stats.time / (double)plan->stats.time_lower_bound);
        for (o.tree_method = RAVEL_TREE_GROUPS; o.tree_method <= RAVEL_TREE_CUT; o.tree_method++) {
            if (!EXPECT(ravel_plan_create(&in, &o, &other, NULL) == RAVEL_OK)) break;
            if (!EXPECT(plan->stats.time <= other->stats.time))
                printf("    %s, dp %d, effort %d, method %d: %.4f of its time\n", families[f].name, dp, effort,
                       o.tree_method, (double)plan->stats.time / (double)other->stats.time);
            ravel_plan_free(other);
        }
        if (getenv("RAVEL_VERBOSE"))
            printf("    %s, dp %d, effort %d: %.4f\n", families[f].name, dp, effort,
                   (double)plan->stats.time / (double)plan->stats.time_lower_bound);
        ravel_plan_free(plan);
    }
    return exp(logs / FAMILIES);
}

TEST(tree_plans_are_near_the_bound) {
    static const int32_t ranks[] = {1, 8, 64};
    static const double most[3][3] = {{1.004, 1.004, 1.004}, {1.058, 1.056, 1.055}, {1.085, 1.067, 1.067}};
    static const double update[3] = {1.004, 1.039, 1.03}; /* ranks meet once: default */
    for (int i = 0; i < 3; i++)
        for (int32_t effort = RAVEL_EFFORT_FAST; effort <= RAVEL_EFFORT_MAX - (getenv("RAVEL_SOAK") ? 0 : 1);
             effort++) {
            double mean = mean_over_bound(ranks[i], effort, RAVEL_SYNC_MICRO_STEP);
            double once = effort == RAVEL_EFFORT_DEFAULT ? mean_over_bound(ranks[i], effort, RAVEL_SYNC_UPDATE) : 1;
            if (getenv("RAVEL_VERBOSE"))
                printf("    dp %d, effort %d: mean %.4f, %.4f\n", ranks[i], effort, mean, once);
            CHECK(mean >= 1 && mean <= most[i][effort]);
            CHECK(once >= 1 && once <= update[i]);
        }
}
