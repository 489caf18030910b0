#include "tests/unit/tree_cases.h"

#include <string.h>

static int64_t below(ravel__rng *rng, int64_t n) {
    return (int64_t)ravel__rng_below(rng, (uint64_t)(n > 0 ? n : 1));
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What sample i shares with the one before, at most `most`. */
static int64_t draw_shared(ravel__rng *rng, int kind, int64_t prompt, int64_t most) {
    switch (kind) {
    case 0: return smaller(prompt, most); /* answers to prompts */
    case 1: return below(rng, most + 1);  /* any tree */
    case 2: return most;                  /* chains and equal samples */
    case 3: return below(rng, 3) ? most - below(rng, most + 1) / 4 : below(rng, most + 1); /* deep */
    default: return 0;
    }
}

void tree_case_draw(tree_case *c, ravel__rng *rng, int32_t most) {
    int kind = (int)below(rng, 5), mixed = below(rng, 4) == 0;
    int32_t count = (int32_t)below(rng, most + 1), group = 1 + (int32_t)below(rng, 20);
    int64_t longest = 1 + below(rng, 1 << below(rng, 14)), prompt = 1;
    for (int32_t i = 0; i < count; i++) {
        int fresh = i % group == 0;
        if (mixed) kind = (int)below(rng, 5);
        if (fresh) prompt = 1 + below(rng, longest);
        c->lengths[i] = 1 + below(rng, longest);
        if (kind == 0) c->lengths[i] = smaller(prompt + below(rng, longest / 2 + 1), longest);
        if (kind == 2 && i && below(rng, 2)) c->lengths[i] = c->lengths[i - 1];
        c->shared[i] =
            i && (!fresh || kind == 1) ? draw_shared(rng, kind, prompt, smaller(c->lengths[i], c->lengths[i - 1])) : 0;
    }
    memset(&c->input, 0, sizeof c->input);
    c->input.size = sizeof c->input;
    c->input.count = count;
    c->input.lengths = c->lengths;
    c->input.shared = c->shared;
    ravel_plan_options_default(&c->options);
    c->options.budget = longest + below(rng, 4 * longest);
    c->options.dp = 1 + (int32_t)below(rng, 1 << below(rng, 5));
    c->options.cost = (ravel_cost){1 + below(rng, 30000), below(rng, 3), 0};
}

/* Rows in any order: place i of the trees is row order[i]. */
static void mix_rows(tree_case *c, ravel__rng *rng) {
    int64_t lengths[TREE_CASE_SAMPLES];
    memcpy(lengths, c->lengths, sizeof lengths);
    for (int32_t i = 0; i < c->input.count; i++) c->order[i] = i;
    for (int32_t i = (int32_t)c->input.count - 1; i > 0; i--) {
        int32_t j = (int32_t)below(rng, i + 1), swap = c->order[i];
        c->order[i] = c->order[j];
        c->order[j] = swap;
    }
    for (int32_t i = 0; i < c->input.count; i++) c->lengths[c->order[i]] = lengths[i];
    c->input.order = c->order;
}

/* Groups of different widths instead of dp ranks. */
static void make_pool(tree_case *c, ravel__rng *rng) {
    ravel_plan_options *o = &c->options;
    o->cp_pool = 1 + (int32_t)below(rng, 8);
    o->cp = o->dp = 1;
    o->sync = RAVEL_SYNC_MICRO_STEP;
    o->method = RAVEL_METHOD_RAVEL;
    o->tree_method = RAVEL_TREE_RAVEL;
    o->cp_empty = (int32_t)below(rng, 2);
    if (o->group_rule == RAVEL_GROUPS_RANK) o->group_rule = RAVEL_GROUPS_FREE;
    if (o->budget < 4 * o->align) o->budget = 4 * o->align;
    for (int64_t i = 0; i < c->input.count; i++) c->homes[i] = (int32_t)below(rng, o->cp_pool + 1) - 1;
}

/* Costs of samples: what each shares by the model, and anything for its own tokens. */
static void make_costs(tree_case *c, ravel__rng *rng) {
    const ravel_cost *cost = &c->options.cost;
    for (int64_t k = 0; k < c->input.count; k++) {
        int64_t next = k + 1 < c->input.count ? c->shared[k + 1] : 0, most = next > c->shared[k] ? next : c->shared[k];
        c->costs[c->input.order ? c->order[k] : k] =
            cost->linear * most + cost->quadratic * most * most + below(rng, 1 << 20);
    }
    c->input.costs = c->costs;
}

void tree_case_options(tree_case *c, ravel__rng *rng) {
    ravel_plan_options *o = &c->options;
    int32_t count = (int32_t)c->input.count;
    if (below(rng, 2)) mix_rows(c, rng);
    for (int32_t i = 0; i < count; i++) {
        c->groups[i] = below(rng, 6) - 3;
        c->updates[i] = (int32_t)below(rng, 3);
        c->homes[i] = (int32_t)below(rng, o->dp + 1) - 1;
    }
    if (below(rng, 3) == 0) o->cp = 1 << below(rng, 3);
    if (below(rng, 3) == 0) o->align = 1 + (int32_t)below(rng, 8);
    if (below(rng, 3) == 0) o->max_samples = 1 + below(rng, 12);
    if (below(rng, 3) == 0) o->multiple = 1 + (int32_t)below(rng, 3);
    if (below(rng, 4) == 0) o->min_micro_steps = below(rng, 4);
    if (below(rng, 3) == 0) o->cost.overhead = below(rng, 1 << 20);
    if (below(rng, 3) == 0) c->input.homes = c->homes;
    o->sync = (int32_t)below(rng, 3);
    o->effort = (int32_t)below(rng, 3);
    o->method = below(rng, 3) ? RAVEL_METHOD_RAVEL : (int32_t)below(rng, RAVEL_METHODS);
    o->oversize = below(rng, 4) ? RAVEL_OVERSIZE_SKIP : RAVEL_OVERSIZE_ERROR;
    if (o->oversize == RAVEL_OVERSIZE_ERROR) o->budget += 16 * (int64_t)o->cp * o->align; /* slots round up */
    if (o->oversize == RAVEL_OVERSIZE_SKIP && below(rng, 3) == 0)
        o->budget = o->budget / 2 + 16 * (int64_t)o->align * o->cp;
    if (o->cp * o->budget < 2 * (int64_t)o->cp * o->align) o->budget = 2 * o->align;
    int cut = (int)below(rng, 5);
    if (cut == 0) o->updates = 1 + (int32_t)below(rng, 4);
    if (cut == 1) o->samples_per_update = 1 + below(rng, 40);
    if (cut == 2) {
        c->input.updates = c->updates;
        o->updates = 3;
    }
    o->shuffle = (int32_t)below(rng, 2);
    if (below(rng, 4) == 0) o->tree_method = (int32_t)below(rng, 4);
    if (cut != 2 && below(rng, 2)) {
        c->input.groups = c->groups;
        o->group_rule = (int32_t)below(rng, o->tree_method ? 2 : 3);
    }
    if (below(rng, 5) == 0) make_pool(c, rng);
    if (below(rng, 6) == 0) make_costs(c, rng);
}
