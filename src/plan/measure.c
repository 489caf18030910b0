/* Figures of a plan: per bin, quality, digest. All of it is worked out from the finished arrays, by the
 * same code for a new plan and for one that is being checked. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"
#include "base/hash.h"

#include <string.h>

/* ---- bins --------------------------------------------------------------------------------------------------- */

static void add_sample(const ravel__rules *rules, const ravel_plan_input *input, int64_t row, ravel__bin *bin) {
    int64_t prompt, slot = ravel__slot(rules, input, row, &prompt);
    ravel__bin_put(rules, bin, (uint32_t)slot, (uint32_t)prompt, ravel__sample_cost(rules, input, row));
}

/* With trees a bin is one slot, of the tokens that are computed. */
static void measure_tree_bins(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                              int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, ravel_plan_stats *s) {
    int64_t align = rules->options.align;
    for (int64_t b = 0; b < plan->bins; b++) {
        int64_t rows = plan->bin_offsets[b + 1] - plan->bin_offsets[b];
        bin_tokens[b] = 0;
        bin_costs[b] = rules->overhead;
        for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++) {
            int64_t length = ravel__length(input, plan->samples[i]);
            bin_tokens[b] += length - plan->shared[i];
            bin_costs[b] += ravel__sample_cost(rules, input, plan->samples[i]) - ravel__cost_of(rules, plan->shared[i]);
        }
        bin_slots[b] = ravel__units(bin_tokens[b], align) * align;
        *(rows ? &s->bins : &s->fillers) += 1;
        s->actual_tokens += bin_tokens[b];
        s->padded_tokens += bin_slots[b];
        s->cost += bin_costs[b];
        s->over_budget += bin_slots[b] > rules->cap * align || rows > rules->most;
    }
    RAVEL_ASSERT(s->bins + s->fillers == plan->bins && s->actual_tokens <= s->padded_tokens);
}

/* Each sample is counted by its tokens that no placed sample before it has. */
static int64_t count_unique(const ravel__rules *rules, const ravel_plan_input *input) {
    int64_t unique = 0, low = 0;
    for (int64_t i = 0; i < input->count; i++) {
        int64_t row = input->order ? input->order[i] : i;
        if (input->shared[i] < low) low = input->shared[i];
        if (rules->skipped && ravel__is_oversize(rules, input, row)) continue;
        unique += ravel__length(input, row) - low;
        low = INT64_MAX;
    }
    return unique;
}

/* Slot tokens of a bin, those of a sample that is over the budget and alone included. */
static int64_t slots_of(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan, int64_t b,
                        const ravel__bin *bin) {
    int64_t prompt, row = bin->rows ? plan->samples[plan->bin_offsets[b]] : -1;
    if (rules->options.oversize != RAVEL_OVERSIZE_ALONE || bin->rows != 1) return bin->size * rules->options.align;
    return ravel__slot_whole(rules, input, row, &prompt) * rules->options.align;
}

static void measure_bins(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                         int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, ravel_plan_stats *s) {
    int64_t capacity = rules->options.cp * rules->options.budget;
    for (int64_t b = 0; b < plan->bins; b++) {
        ravel__bin bin = {0};
        bin_tokens[b] = 0;
        for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++) {
            add_sample(rules, input, plan->samples[i], &bin);
            bin_tokens[b] += ravel__length(input, plan->samples[i]);
        }
        bin_slots[b] = slots_of(rules, input, plan, b, &bin);
        bin_costs[b] = bin.cost + rules->overhead;
        *(bin.rows ? &s->bins : &s->fillers) += 1;
        s->actual_tokens += bin_tokens[b];
        s->padded_tokens += bin_slots[b];
        s->cost += bin_costs[b];
        s->over_budget += bin_slots[b] > capacity || bin.rows > rules->most;
    }
    RAVEL_ASSERT(s->bins + s->fillers == plan->bins && s->actual_tokens <= s->padded_tokens);
}

/* ---- quality ------------------------------------------------------------------------------------------------ */

static double ratio(double a, double b, double otherwise) {
    return b > 0 ? a / b : otherwise;
}

/* Times of one update; `totals` collects its ranks. */
static void time_update(const ravel_plan *plan, int64_t update, const int64_t *bin_costs, int64_t *totals,
                        ravel_plan_stats *s) {
    int64_t slowest = 0, sum = 0;
    memset(totals, 0, (size_t)plan->dp * sizeof *totals);
    for (int64_t step = plan->update_offsets[update]; step < plan->update_offsets[update + 1]; step++) {
        int64_t longest = 0;
        for (int32_t rank = 0; rank < plan->dp; rank++) {
            int64_t cost = bin_costs[step * plan->dp + rank];
            totals[rank] += cost;
            if (cost > longest) longest = cost;
        }
        s->time_micro_step += longest;
    }
    for (int32_t rank = 0; rank < plan->dp; rank++) {
        sum += totals[rank];
        if (totals[rank] > slowest) slowest = totals[rank];
    }
    RAVEL_ASSERT(slowest <= sum && slowest >= sum / plan->dp);
    s->time_update += slowest;
    double imbalance = ratio((double)slowest * plan->dp, (double)sum, 1);
    if (imbalance > s->imbalance) s->imbalance = imbalance;
}

static int64_t count_moved(const ravel_plan_input *input, const ravel_plan *plan) {
    int64_t moved = 0;
    for (int64_t b = 0; input->homes && b < plan->bins; b++)
        for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++) {
            int32_t home = input->homes[plan->samples[i]];
            if (home >= 0 && home != b % plan->dp)
                moved += ravel__length(input, plan->samples[i]) - (plan->shared ? plan->shared[i] : 0);
        }
    return moved;
}

void ravel__plan_measure(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                         int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, int64_t *totals,
                         ravel_plan_stats *s) {
    memset(s, 0, sizeof *s);
    s->samples = plan->bin_offsets[plan->bins];
    s->skipped = rules->skipped;
    s->micro_steps = plan->micro_steps;
    s->cost_shift = rules->shift;
    if (__builtin_mul_overflow(plan->bins, rules->options.cp * rules->options.budget, &s->capacity_tokens))
        s->capacity_tokens = INT64_MAX; /* a budget far above every bin */
    (rules->widths.count ? ravel__hybrid_measure
     : rules->trees      ? measure_tree_bins
                         : measure_bins)(rules, input, plan, bin_tokens, bin_slots, bin_costs, s);
    for (int64_t i = 0; i < s->samples; i++) {
        int64_t length = ravel__length(input, plan->samples[i]);
        if (length > s->longest) s->longest = length;
        s->flat_tokens += length;
    }
    s->unique_tokens = rules->trees ? count_unique(rules, input) : s->flat_tokens;
    s->imbalance = 1;
    for (int64_t u = 0; u < plan->updates; u++) time_update(plan, u, bin_costs, totals, s);
    s->time = rules->options.sync == RAVEL_SYNC_MICRO_STEP ? s->time_micro_step : s->time_update;
    RAVEL_ASSERT(s->time_update <= s->time_micro_step && s->longest <= s->actual_tokens);
    s->tokens_moved = count_moved(input, plan);
    RAVEL_ASSERT(s->tokens_moved >= 0 && s->tokens_moved <= s->actual_tokens);
    double cost = (double)s->cost, dp = plan->dp;
    s->fill = ratio((double)s->actual_tokens, (double)s->capacity_tokens, 0);
    s->padding = ratio((double)(s->padded_tokens - s->actual_tokens), (double)s->padded_tokens, 0);
    s->idle_micro_step = 1 - ratio(cost, (double)s->time_micro_step * dp, 1);
    s->idle_update = 1 - ratio(cost, (double)s->time_update * dp, 1);
    s->slowdown = ratio((double)s->time_micro_step * dp, cost, 1);
}

/* ---- digest ------------------------------------------------------------------------------------------------- */

static void hash_options(ravel__hash *h, const ravel_plan_options *o) {
    const int64_t fields[] = {o->budget,
                              o->cp,
                              o->align,
                              o->max_samples,
                              o->dp,
                              o->multiple,
                              o->min_micro_steps,
                              o->updates,
                              o->samples_per_update,
                              o->sync,
                              o->layout,
                              o->method,
                              o->effort,
                              o->group_rule,
                              o->count,
                              o->oversize,
                              o->shuffle,
                              o->objective,
                              o->cp_split,
                              (int64_t)o->seed,
                              o->cost.linear,
                              o->cost.quadratic,
                              o->cost.overhead};
    ravel__hash_i64s(h, fields, sizeof fields / sizeof *fields);
}

static void hash_wide(ravel__hash *h, uint64_t kind, const int64_t *x, int64_t count) {
    if (!x) return;
    ravel__hash_u64(h, kind);
    ravel__hash_i64s(h, x, (size_t)count);
}

static void hash_narrow(ravel__hash *h, uint64_t kind, const int32_t *x, int64_t count) {
    if (!x) return;
    ravel__hash_u64(h, kind);
    ravel__hash_i32s(h, x, (size_t)count);
}

uint64_t ravel__plan_digest(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan) {
    ravel__hash h = ravel__hash_begin(0x706c616e); /* "plan" */
    hash_options(&h, &rules->options);
    for (int32_t w = 0; w < rules->widths.count; w++) {
        const int64_t fields[] = {rules->widths.pool, rules->widths.width[w], rules->widths.price[w],
                                  rules->widths.multiple[w], rules->options.cp_empty};
        ravel__hash_i64s(&h, fields, sizeof fields / sizeof *fields);
    }
    if (!input->prompts) hash_wide(&h, 1, input->lengths, input->count);
    hash_wide(&h, 2, input->prompts, input->count);
    hash_wide(&h, 3, input->responses, input->count);
    hash_wide(&h, 4, input->costs, input->count);
    hash_wide(&h, 5, input->groups, input->count);
    hash_narrow(&h, 6, input->updates, input->count);
    hash_narrow(&h, 7, input->homes, input->count);
    hash_wide(&h, 8, plan->update_offsets, plan->updates + 1);
    hash_wide(&h, 9, plan->bin_offsets, plan->bins + 1);
    hash_narrow(&h, 10, plan->samples, plan->bin_offsets[plan->bins]);
    hash_narrow(&h, 11, plan->skipped, rules->skipped);
    if (plan->hybrid) {
        hash_wide(&h, 12, plan->hybrid->group_offsets, plan->micro_steps + 1);
        hash_narrow(&h, 13, plan->hybrid->group_first, plan->hybrid->groups);
        hash_narrow(&h, 14, plan->hybrid->group_width, plan->hybrid->groups);
    }
    if (rules->trees) ravel__hash_u64(&h, (uint64_t)rules->options.tree_method);
    hash_wide(&h, 15, input->shared, input->count);
    hash_narrow(&h, 16, input->order, input->count);
    return ravel__hash_end(h);
}
