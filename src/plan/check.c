/* ravel_plan_check: everything is recounted from the lengths; no figure of the plan is trusted. */
#include "plan/hybrid/hybrid.h"
#include "plan/tree/tree.h"

#include <string.h>

typedef struct checker {
    const ravel__rules *rules;
    const ravel_plan_input *input;
    const ravel_plan *plan;
    ravel__arena *arena;
    ravel_error *err;
    int32_t *bin;          /* of every row, -1: in none */
    const int32_t *rows;   /* of all updates, in the order of ravel__deal */
    const int64_t *shared; /* with trees */
} checker;

/* The plan is the caller's, so a fault in it is E_DATA. */
#define BROKEN(c, ...) ravel_error_set((c)->err, RAVEL_E_DATA, __VA_ARGS__)

/* ---- shape and partition ------------------------------------------------------------------------------------ */

static ravel_status check_shape(const checker *c) {
    const ravel_plan *p = c->plan;
    if (p->dp != c->rules->options.dp || p->count != c->input->count || p->bins != p->micro_steps * p->dp ||
        p->updates < 1 || p->bins > RAVEL__MOST_BINS)
        return BROKEN(c, "the plan has dp %d, count %lld, %lld micro-steps and %lld bins, which do not agree", p->dp,
                      (long long)p->count, (long long)p->micro_steps, (long long)p->bins);
    if (p->update_offsets[0] != 0 || p->update_offsets[p->updates] != p->micro_steps)
        return BROKEN(c, "the plan's updates do not cover its micro-steps");
    for (int64_t u = 0; u < p->updates; u++) {
        int64_t steps = p->update_offsets[u + 1] - p->update_offsets[u], multiple = c->rules->options.multiple;
        int64_t least = c->rules->options.min_micro_steps;
        if (least < 1 && c->rules->placed) least = 1; /* an update without samples may be empty if the caller says 0 */
        if (steps < least || steps % multiple)
            return BROKEN(c, "update %lld has %lld micro-steps; it must be a multiple of %lld, at least %lld",
                          (long long)u, (long long)steps, (long long)multiple, (long long)least);
    }
    if (p->bin_offsets[0] != 0 || p->bin_offsets[p->bins] != c->rules->placed)
        return BROKEN(c, "the plan places %lld samples of %d", (long long)p->bin_offsets[p->bins], c->rules->placed);
    for (int64_t b = 0; b < p->bins; b++)
        if (p->bin_offsets[b] > p->bin_offsets[b + 1]) return BROKEN(c, "bin %lld ends before it begins", (long long)b);
    return RAVEL_OK;
}

static ravel_status check_partition(const checker *c) {
    const ravel_plan *p = c->plan;
    memset(c->bin, 0xff, (size_t)p->count * sizeof *c->bin);
    for (int64_t b = 0; b < p->bins; b++)
        for (int64_t i = p->bin_offsets[b]; i < p->bin_offsets[b + 1]; i++) {
            int32_t row = p->samples[i];
            if (row < 0 || row >= p->count)
                return BROKEN(c, "bin %lld holds sample %d of %lld", (long long)b, row, (long long)p->count);
            if (c->bin[row] >= 0) return BROKEN(c, "sample %d is in bins %d and %lld", row, c->bin[row], (long long)b);
            c->bin[row] = (int32_t)b;
        }
    if (p->stats.skipped != c->rules->skipped)
        return BROKEN(c, "the plan skips %lld samples; %d fit no bin", (long long)p->stats.skipped, c->rules->skipped);
    for (int64_t i = 0, at = 0; i < p->count; i++) {
        if (c->bin[i] >= 0) continue;
        if (at >= p->stats.skipped || p->skipped[at] != i || !ravel__is_oversize(c->rules, c->input, i))
            return BROKEN(c, "sample %lld is in no bin", (long long)i);
        at++;
    }
    return RAVEL_OK;
}

/* Samples of a bin in tree order, with what each shares with the one before it. */
static ravel_status check_trees(const checker *c) {
    const ravel_plan *p = c->plan;
    size_t placed = (size_t)c->rules->placed;
    if (!p->shared != !c->rules->trees)
        return BROKEN(c, p->shared ? "the plan shares prefixes; the input does not" : "the plan shares no prefixes");
    if (!c->rules->trees) return RAVEL_OK;
    int32_t *samples = ravel__arena_push(c->arena, placed, sizeof *samples);
    int64_t *shared = ravel__arena_push(c->arena, placed, sizeof *shared);
    if (!samples || !shared) return ravel__no_memory(c->err, placed * 12, "checking a plan");
    ravel_status status =
        ravel__tree_list(c->input, c->bin, p->bins, p->bin_offsets, c->arena, samples, shared, c->err);
    for (size_t i = 0; !status && i < placed; i++) {
        if (samples[i] != p->samples[i])
            return BROKEN(c, "sample %d is in bin %d at a place that is not its place in the tree order", p->samples[i],
                          c->bin[p->samples[i]]);
        if (shared[i] != p->shared[i])
            return BROKEN(c, "sample %d shares %lld tokens with the one before it in its bin; the plan says %lld",
                          samples[i], (long long)shared[i], (long long)p->shared[i]);
    }
    return status;
}

static ravel_status check_cap(const checker *c) {
    const ravel_plan_options *o = &c->rules->options;
    if (c->rules->widths.count) /* the figures are right by now */
        return c->plan->stats.over_budget ? BROKEN(c, "a group is over its budget or max-samples") : RAVEL_OK;
    for (int64_t b = 0; b < c->plan->bins; b++) {
        int64_t rows = c->plan->bin_offsets[b + 1] - c->plan->bin_offsets[b];
        int alone = rows == 1 && o->oversize == RAVEL_OVERSIZE_ALONE;
        if ((c->plan->bin_slots[b] > o->cp * o->budget && !alone) || rows > c->rules->most)
            return BROKEN(c, "bin %lld holds %lld slot tokens and %lld samples; its caps are %lld and %lld",
                          (long long)b, (long long)c->plan->bin_slots[b], (long long)rows,
                          (long long)(o->cp * o->budget), (long long)c->rules->most);
    }
    return RAVEL_OK;
}

/* ---- updates and groups ------------------------------------------------------------------------------------- */

/* `update_of` by micro-step. */
static ravel_status check_updates(const checker *c, const int32_t *update_of) {
    for (int64_t i = 0; c->input->updates && i < c->plan->count; i++)
        if (c->bin[i] >= 0 && update_of[c->bin[i] / c->plan->dp] != c->input->updates[i])
            return BROKEN(c, "sample %lld is in update %d, not in %d", (long long)i, update_of[c->bin[i] / c->plan->dp],
                          c->input->updates[i]);
    return RAVEL_OK;
}

static ravel_status check_groups(const checker *c, const int32_t *update_of) {
    int32_t rule = c->rules->options.group_rule, count = c->rules->placed, placed = 0, groups, dp = c->plan->dp;
    if (rule == RAVEL_GROUPS_FREE) return RAVEL_OK;
    int32_t *rows = ravel__arena_push(c->arena, (size_t)count, sizeof *rows);
    int32_t *group = ravel__arena_push(c->arena, (size_t)count, sizeof *group);
    int32_t *first = ravel__arena_push(c->arena, (size_t)count, sizeof *first);
    if (!rows || !group || !first) return ravel__no_memory(c->err, (size_t)count * 12, "checking groups");
    for (int64_t i = 0; i < c->plan->count; i++)
        if (c->bin[i] >= 0) rows[placed++] = (int32_t)i;
    ravel_status status = ravel__groups_number(c->input, rows, count, c->arena, group, &groups, c->err);
    if (status) return status;
    for (int32_t i = 0; i < count; i++) first[i] = -1;
    for (int32_t i = 0; i < count; i++) {
        int32_t *leader = &first[group[i]];
        if (*leader < 0) *leader = rows[i];
        int32_t a = c->bin[*leader], b = c->bin[rows[i]];
        if (update_of[a / dp] != update_of[b / dp] || (rule == RAVEL_GROUPS_RANK && a % dp != b % dp))
            return BROKEN(c, "samples %d and %d are of one group, but not in one update%s", *leader, rows[i],
                          rule == RAVEL_GROUPS_RANK ? " and on one rank" : "");
    }
    return RAVEL_OK;
}

static ravel_status check_rules(const checker *c) {
    const ravel_plan *p = c->plan;
    int32_t *update_of = ravel__arena_push(c->arena, (size_t)p->micro_steps, sizeof *update_of);
    if (!update_of) return ravel__no_memory(c->err, (size_t)p->micro_steps * sizeof *update_of, "checking a plan");
    for (int64_t u = 0; u < p->updates; u++)
        for (int64_t s = p->update_offsets[u]; s < p->update_offsets[u + 1]; s++) update_of[s] = (int32_t)u;
    ravel_status status = check_updates(c, update_of);
    return status ? status : check_groups(c, update_of);
}

/* ---- figures ------------------------------------------------------------------------------------------------ */

static ravel_status add_bounds(const checker *c, const int32_t *rows, int32_t count, ravel_plan_stats *s) {
    ravel__pool pool;
    ravel_status status = ravel__pool_make(c->rules, c->input, rows, count, c->arena, &pool, c->err);
    if (!status) ravel__bounds_add(c->rules, &pool, ravel__bins_bound(c->rules, &pool), s);
    return status;
}

static ravel_status add_tree_bounds(const checker *c, const int32_t *rows, int32_t count, ravel_plan_stats *s) {
    ravel__forest forest;
    ravel__tree_bound bound = {0};
    ravel_status status =
        ravel__forest_make(c->rules, c->input, rows, c->shared + (rows - c->rows), count, c->arena, &forest, c->err);
    if (!status) status = ravel__forest_bound(&forest, c->rules->options.dp, c->arena, &bound, c->err);
    ravel__tree_bound_add(c->rules, &bound, s);
    return status;
}

static ravel_status add_hybrid_bounds(const checker *c, const int32_t *rows, int32_t count, ravel_plan_stats *s) {
    ravel__tasks tasks;
    ravel__forest forest;
    ravel_hybrid bounds = {0};
    int64_t time, steps;
    if (c->rules->trees) {
        ravel_status made = ravel__forest_make(c->rules, c->input, rows, c->shared + (rows - c->rows), count, c->arena,
                                               &forest, c->err);
        return made ? made : ravel__tree_tasks_bound(c->rules, &forest, c->arena, &bounds, s, &time, &steps, c->err);
    }
    ravel_status status = ravel__tasks_make(c->rules, c->input, rows, count, c->arena, &tasks, c->err);
    return status ? status : ravel__hybrid_bounds(&tasks, &bounds, s, &time, &steps);
}

static ravel_status check_bounds(checker *c, ravel_plan_stats *s) {
    ravel__deal deal;
    ravel_status (*add)(const checker *, const int32_t *, int32_t, ravel_plan_stats *) =
        c->rules->widths.count ? add_hybrid_bounds
        : c->rules->trees      ? add_tree_bounds
                               : add_bounds;
    ravel_status status = ravel__deal_make(c->rules, c->input, c->arena, &deal, c->err);
    if (!status && deal.updates != c->plan->updates)
        return BROKEN(c, "the plan has %lld updates, not %d", (long long)c->plan->updates, deal.updates);
    c->rows = deal.rows;
    c->shared = deal.shared;
    for (int32_t u = 0; !status && u < deal.updates; u++) {
        ravel__mark mark = ravel__arena_mark(c->arena);
        status = add(c, deal.rows + deal.start[u], deal.start[u + 1] - deal.start[u], s);
        ravel__arena_rewind(c->arena, mark);
    }
    return status;
}

static ravel_status compare_stats(const checker *c, const ravel_plan_stats *s) {
    const ravel_plan_stats *p = &c->plan->stats;
#define X(type, name, doc)                      \
    if (s->name < p->name || s->name > p->name) \
        return BROKEN(c, "the plan says that its " #name " is %.17g; it is %.17g", (double)p->name, (double)s->name);
    RAVEL_PLAN_STATS_LIST(X)
#undef X
    return RAVEL_OK;
}

static ravel_status check_figures(checker *c) {
    const ravel_plan *p = c->plan;
    size_t bins = (size_t)p->bins;
    int64_t *tokens = ravel__arena_push(c->arena, bins, 8), *slots = ravel__arena_push(c->arena, bins, 8);
    int64_t *costs = ravel__arena_push(c->arena, bins, 8), *totals = ravel__arena_push(c->arena, (size_t)p->dp, 8);
    if (!tokens || !slots || !costs || !totals) return ravel__no_memory(c->err, bins * 24, "checking a plan");
    ravel_plan_stats s;
    ravel__plan_measure(c->rules, c->input, p, tokens, slots, costs, totals, &s);
    for (size_t b = 0; b < bins; b++)
        if (tokens[b] != p->bin_tokens[b] || slots[b] != p->bin_slots[b] || costs[b] != p->bin_costs[b])
            return BROKEN(c,
                          "bin %zu has %lld tokens, %lld slot tokens and cost %lld; the plan says %lld, %lld and %lld",
                          b, (long long)tokens[b], (long long)slots[b], (long long)costs[b],
                          (long long)p->bin_tokens[b], (long long)p->bin_slots[b], (long long)p->bin_costs[b]);
    ravel_status status = check_bounds(c, &s);
    if (status) return status;
    s.bins_packed = p->stats.bins_packed; /* the packing before splitting is not stored in the plan */
    if (s.bins_packed < s.bins_lower_bound || s.bins_packed > s.bins)
        return BROKEN(c, "bins_packed is %lld; it must be from the lower bound %lld to %lld bins",
                      (long long)s.bins_packed, (long long)s.bins_lower_bound, (long long)s.bins);
    if (s.time < s.time_lower_bound || s.micro_steps < s.micro_steps_lower_bound)
        return BROKEN(c, "the plan is better than its lower bounds");
    return compare_stats(c, &s);
}

static ravel_status run_checks(checker *c) {
    c->bin = ravel__arena_push(c->arena, (size_t)c->input->count, sizeof *c->bin);
    if (!c->bin) return ravel__no_memory(c->err, (size_t)c->input->count * sizeof *c->bin, "checking a plan");
    ravel_status status = check_shape(c);
    if (!status) status = check_partition(c);
    if (!status) status = check_trees(c);
    if (!status) status = check_rules(c);
    if (!status && c->rules->widths.count) status = ravel__hybrid_check(c->rules, c->input, c->plan, c->err);
    if (!status) status = check_figures(c);
    if (!status) status = check_cap(c);
    if (!status && ravel__plan_digest(c->rules, c->input, c->plan) != c->plan->digest)
        return BROKEN(c, "the plan's digest is of another input or plan");
    return status;
}

ravel_status ravel_plan_check(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                              ravel_error *err) {
    ravel__rules rules;
    ravel_plan_input own;
    ravel_status status = ravel__rules_make(input, options, &rules, &own, err);
    if (status) return status;
    ravel__arena arena;
    ravel__arena_init(&arena, rules.options.allocator, 4096);
    checker c = {.rules = &rules, .input = &own, .plan = plan, .arena = &arena, .err = err};
    status = run_checks(&c);
    ravel__arena_free(&arena);
    return status;
}
