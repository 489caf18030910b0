/* Layouts become bins of a plan, bins become groups, and groups are measured and checked. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"

#include <string.h>

/* ---- an update
 * ---------------------------------------------------------------------------------------------------- */

/* Widens the narrowest groups of a micro-step until no rank is left over, where that can be. */
static void use_all_ranks(const ravel__tasks *t, ravel__layout *l, int32_t from, int32_t to) {
    const ravel__widths *widths = t->widths;
    int32_t left = widths->pool;
    for (int32_t g = from; g < to; g++) left -= widths->width[l->group[g].width];
    while (left > 0) {
        int32_t narrowest = -1;
        for (int32_t g = from; g < to; g++) {
            int32_t w = l->group[g].width;
            if (w + 1 >= widths->count || widths->width[w + 1] - widths->width[w] > left) continue;
            int64_t most = l->group[g].slots + l->group[g].count * (widths->multiple[w + 1] - widths->multiple[w]);
            if (most > widths->room[w + 1]) continue;
            if (narrowest < 0 || w < l->group[narrowest].width) narrowest = g;
        }
        if (narrowest < 0) return;
        ravel__group *group = &l->group[narrowest];
        left -= widths->width[group->width + 1] - widths->width[group->width];
        group->slots += group->count * (widths->multiple[group->width + 1] - widths->multiple[group->width]);
        group->width++;
    }
}

/* First ranks of the groups of a micro-step, widest first, so that each begins at a multiple of its width. */
static void place_groups(const ravel__tasks *t, const ravel__layout *l, int32_t from, int32_t to, int32_t *first) {
    int32_t rank = 0;
    for (int32_t w = t->widths->count; w-- > 0;)
        for (int32_t g = from; g < to; g++) {
            if (l->group[g].width != w) continue;
            RAVEL_ASSERT(rank % t->widths->width[w] == 0);
            first[g] = rank;
            rank += t->widths->width[w];
        }
    RAVEL_ASSERT(rank <= t->widths->pool);
}

/* One micro-step after another. `first` by group. */
void ravel__layout_place(const ravel__tasks *t, ravel__layout *l, int32_t *first) {
    for (int32_t from = 0, to = 0; from < l->groups; from = to) {
        while (to < l->groups && l->group[to].step == l->group[from].step) to++;
        if (t->rules->options.cp_empty == RAVEL_CP_EMPTY_WIDEN) use_all_ranks(t, l, from, to);
        place_groups(t, l, from, to, first);
    }
}

static ravel_status write_update(const ravel__tasks *t, ravel__layout *l, int64_t first_step, ravel__draft *draft) {
    int32_t *first = ravel__arena_push(t->arena, (size_t)l->groups, sizeof *first);
    if (!first) return ravel__no_memory(t->err, (size_t)l->groups * sizeof *first, "placing groups");
    ravel__layout_place(t, l, first);
    for (int32_t i = 0; i < t->count; i++) {
        const ravel__group *group = &l->group[l->of[i]];
        RAVEL_ASSERT(group->step < l->steps && first[l->of[i]] % t->widths->width[group->width] == 0);
        draft->where[t->row[i]] = (int32_t)((first_step + group->step) * t->widths->pool + first[l->of[i]]);
        draft->width[t->row[i]] = (uint8_t)group->width;
    }
    return RAVEL_OK;
}

ravel_status ravel__hybrid_update(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                  int32_t count, int64_t first_step, ravel__arena *arena, ravel__draft *draft,
                                  int64_t *steps, ravel_error *err) {
    ravel__tasks tasks;
    ravel__layout layout;
    int64_t time = 0, bound = 0;
    ravel_status status = ravel__tasks_make(rules, input, rows, count, arena, &tasks, err);
    if (!status) status = ravel__hybrid_bounds(&tasks, &draft->hybrid, &draft->bounds, &time, &bound);
    if (!status) status = ravel__hybrid_solve(&tasks, time, bound, &layout);
    if (status) return status;
    *steps = ravel__steps_for(rules, (int64_t)layout.steps * rules->widths.pool, rules->widths.pool);
    int64_t all_steps = first_step + *steps;
    if (all_steps * rules->widths.pool > RAVEL__MOST_BINS)
        return ravel_error_set(err, RAVEL_E_OVERFLOW,
                               "%lld micro-steps on a pool of %d ranks; a plan has at most 2^30 bins",
                               (long long)all_steps, rules->widths.pool);
    draft->bounds.bins_packed += layout.groups;
    return write_update(&tasks, &layout, first_step, draft);
}

/* ---- the plan
 * ------------------------------------------------------------------------------------------------------ */

void ravel__hybrid_emit(const ravel__rules *rules, const ravel__draft *draft, ravel__plan *plan) {
    const ravel__widths *widths = &rules->widths;
    const ravel_plan *p = &plan->api;
    int64_t group = 0;
    for (int64_t b = 0; b < p->bins; b++) plan->rank_group[b] = -1;
    for (int64_t s = 0; s < p->micro_steps; s++) {
        plan->group_offsets[s] = group;
        for (int32_t r = 0; r < widths->pool; r++) {
            int64_t bin = s * widths->pool + r;
            if (p->bin_offsets[bin] == p->bin_offsets[bin + 1]) continue;
            plan->group_first[group] = r;
            plan->group_width[group] = widths->width[draft->width[p->samples[p->bin_offsets[bin]]]];
            plan->group_sample_offsets[group] = p->bin_offsets[bin];
            for (int32_t k = 0; k < plan->group_width[group]; k++) {
                RAVEL_ASSERT(r + k < widths->pool && plan->rank_group[bin + k] < 0); /* groups do not overlap */
                plan->rank_group[bin + k] = (int32_t)group;
            }
            group++;
        }
    }
    RAVEL_ASSERT(group <= rules->placed);
    plan->group_offsets[p->micro_steps] = group;
    plan->group_sample_offsets[group] = p->bin_offsets[p->bins];
    plan->hybrid.groups = group;
    plan->hybrid.bound_micro_steps = draft->hybrid.bound_micro_steps;
    plan->hybrid.bound_area = draft->hybrid.bound_area;
    plan->hybrid.bound_longest = draft->hybrid.bound_longest;
    plan->hybrid.bound_canonical = draft->hybrid.bound_canonical;
}

static int32_t width_index(const ravel__widths *widths, int32_t width) {
    int32_t w = 0;
    while (w < widths->count && widths->width[w] != width) w++;
    return w;
}

void ravel__hybrid_measure(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                           int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, ravel_plan_stats *s) {
    const ravel__widths *widths = &rules->widths;
    const ravel_hybrid *h = plan->hybrid;
    for (int64_t b = 0; b < plan->bins; b++) {
        bin_tokens[b] = bin_slots[b] = 0;
        bin_costs[b] = rules->overhead;
        s->fillers += h->rank_group[b] < 0;
    }
    for (int64_t step = 0; step < plan->micro_steps; step++)
        for (int64_t g = h->group_offsets[step]; g < h->group_offsets[step + 1]; g++) {
            int64_t bin = step * h->pool + h->group_first[g], cost = 0;
            int32_t w = width_index(widths, h->group_width[g]);
            for (int64_t i = h->group_sample_offsets[g]; i < h->group_sample_offsets[g + 1]; i++) {
                int64_t length = ravel__length(input, plan->samples[i]), shared = plan->shared ? plan->shared[i] : 0;
                bin_tokens[bin] += length - shared;
                bin_slots[bin] += ravel__width_slot(widths, length, w);
                cost += ravel__sample_cost(rules, input, plan->samples[i]) - ravel__cost_of(rules, shared);
            }
            if (plan->shared) bin_slots[bin] = ravel__width_slot(widths, bin_tokens[bin], w); /* one slot */
            for (int32_t k = 0; k < h->group_width[g]; k++) bin_costs[bin + k] += ravel__group_time(widths, cost, w);
            s->bins++;
            s->actual_tokens += bin_tokens[bin];
            s->padded_tokens += bin_slots[bin];
            s->over_budget += bin_slots[bin] > h->group_width[g] * rules->options.budget ||
                              h->group_sample_offsets[g + 1] - h->group_sample_offsets[g] > rules->most;
        }
    for (int64_t b = 0; b < plan->bins; b++) s->cost += bin_costs[b];
}

/* ---- check
 * --------------------------------------------------------------------------------------------------------- */

#define BROKEN(...) ravel_error_set(err, RAVEL_E_DATA, __VA_ARGS__)

static ravel_status check_group(const ravel__rules *rules, const ravel_plan *p, int64_t step, int64_t g,
                                ravel_error *err) {
    const ravel_hybrid *h = p->hybrid;
    int32_t first = h->group_first[g], width = h->group_width[g];
    if (width < 1 || width_index(&rules->widths, width) == rules->widths.count)
        return BROKEN("group %lld has width %d, which is none of the pool's", (long long)g, width);
    if (first < 0 || first % width || first + width > h->pool)
        return BROKEN("group %lld of width %d begins at rank %d; it must be a multiple of its width inside the pool of "
                      "%d",
                      (long long)g, width, first, h->pool);
    for (int32_t k = 0; k < width; k++)
        if (h->rank_group[step * h->pool + first + k] != g)
            return BROKEN("rank %d is a member of group %lld, but its group is %d", first + k, (long long)g,
                          h->rank_group[step * h->pool + first + k]);
    int64_t bin = step * h->pool + first;
    if (h->group_sample_offsets[g] != p->bin_offsets[bin] || h->group_sample_offsets[g + 1] != p->bin_offsets[bin + 1])
        return BROKEN("group %lld does not hold the samples of its first rank's bin", (long long)g);
    if (h->group_sample_offsets[g] == h->group_sample_offsets[g + 1])
        return BROKEN("group %lld holds no sample", (long long)g);
    return RAVEL_OK;
}

static ravel_status check_ranks(const ravel_plan *p, int64_t step, ravel_error *err) {
    const ravel_hybrid *h = p->hybrid;
    for (int32_t r = 0; r < h->pool; r++) {
        int64_t g = h->rank_group[step * h->pool + r];
        if (g < -1 || (g >= 0 && (g < h->group_offsets[step] || g >= h->group_offsets[step + 1])))
            return BROKEN("rank %d has group %lld, which is not of its micro-step", r, (long long)g);
        if (g >= 0 && (r < h->group_first[g] || r >= h->group_first[g] + h->group_width[g]))
            return BROKEN("rank %d is no member of its group %lld", r, (long long)g);
    }
    return RAVEL_OK;
}

ravel_status ravel__hybrid_check(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *p,
                                 ravel_error *err) {
    const ravel_hybrid *h = p->hybrid;
    (void)input;
    if (!h || h->pool != rules->widths.pool)
        return BROKEN("the plan has no groups for a pool of %d", rules->widths.pool);
    if (h->group_offsets[0] != 0 || h->group_offsets[p->micro_steps] != h->groups)
        return BROKEN("the plan's groups do not cover its micro-steps");
    for (int64_t s = 0; s < p->micro_steps; s++)
        if (h->group_offsets[s] > h->group_offsets[s + 1])
            return BROKEN("micro-step %lld ends before it begins", (long long)s);
    ravel_status status = RAVEL_OK;
    for (int64_t s = 0; !status && s < p->micro_steps; s++) {
        for (int64_t g = h->group_offsets[s]; !status && g < h->group_offsets[s + 1]; g++)
            status = check_group(rules, p, s, g, err);
        if (!status) status = check_ranks(p, s, err);
    }
    return status;
}
