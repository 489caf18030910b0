/* ravel_plan_create: updates one after another, then the plan's arrays, figures and digest. */
#include "plan/hybrid/hybrid.h"
#include "plan/tree/tree.h"

#include "base/assert.h"
#include "base/rng.h"

#include <string.h>

/* ---- emitting ----------------------------------------------------------------------------------------------- */

/* Samples stand in their bin in the order of their rows. */
static void emit_samples(const ravel_plan_input *input, const int32_t *where, ravel__plan *plan) {
    int64_t *offsets = plan->bin_offsets, bins = plan->api.bins, skipped = 0;
    memset(offsets, 0, (size_t)(bins + 1) * sizeof *offsets);
    for (int64_t i = 0; i < input->count; i++) {
        RAVEL_ASSERT(where[i] < bins);
        if (where[i] >= 0)
            offsets[where[i] + 1]++;
        else
            plan->skipped[skipped++] = (int32_t)i;
    }
    for (int64_t bin = 0; bin < bins; bin++) offsets[bin + 1] += offsets[bin];
    RAVEL_ASSERT(offsets[bins] + skipped == input->count); /* each sample once: in a bin or left out */
    for (int64_t i = 0; i < input->count; i++)
        if (where[i] >= 0) plan->samples[offsets[where[i]]++] = (int32_t)i;
    for (int64_t bin = 1; bin < bins; bin++) RAVEL_ASSERT(offsets[bin - 1] <= offsets[bin]);
    memmove(offsets + 1, offsets, (size_t)bins * sizeof *offsets);
    offsets[0] = 0;
}

ravel_status ravel__emit(const ravel__rules *rules, const ravel_plan_input *input, const ravel__draft *draft,
                         ravel__arena *arena, ravel_plan **out, ravel_error *err) {
    int64_t *totals = ravel__arena_push(arena, (size_t)rules->options.dp, sizeof *totals);
    if (!totals) return ravel__no_memory(err, (size_t)rules->options.dp * sizeof *totals, "rank totals");
    ravel__plan_size size = {.count = input->count,
                             .updates = draft->updates,
                             .micro_steps = draft->offsets[draft->updates],
                             .dp = rules->options.dp,
                             .samples = rules->placed,
                             .skipped = rules->skipped,
                             .has_ids = draft->ids != NULL,
                             .hybrid = rules->widths.count > 0,
                             .trees = rules->trees,
                             .groups = rules->widths.count ? rules->placed : 0};
    ravel__plan *plan = ravel__plan_alloc(&size, rules->options.allocator, err);
    if (!plan) return RAVEL_E_MEMORY;
    memcpy(plan->update_offsets, draft->offsets, ((size_t)draft->updates + 1) * sizeof *draft->offsets);
    if (draft->ids) memcpy(plan->ids, draft->ids, (size_t)input->count * sizeof *plan->ids);
    emit_samples(input, draft->where, plan);
    ravel_status status = RAVEL_OK;
    if (rules->trees)
        status = ravel__tree_list(input, draft->where, plan->api.bins, plan->bin_offsets, arena, plan->samples,
                                  plan->shared, err);
    if (status) {
        ravel_plan_free(&plan->api);
        return status;
    }
    if (rules->widths.count) ravel__hybrid_emit(rules, draft, plan);
    ravel_plan_stats *s = &plan->api.stats;
    ravel__plan_measure(rules, input, &plan->api, plan->bin_tokens, plan->bin_slots, plan->bin_costs, totals, s);
    const ravel_plan_stats *bounds = &draft->bounds;
    s->bins_packed = bounds->bins_packed < s->bins ? bounds->bins_packed : s->bins; /* the plan is a packing too */
    s->bins_lower_bound = bounds->bins_lower_bound;
    s->micro_steps_lower_bound = bounds->micro_steps_lower_bound;
    s->time_lower_bound = bounds->time_lower_bound;
    plan->api.digest = ravel__plan_digest(rules, input, &plan->api);
    RAVEL_ASSERT((s->over_budget == 0 || rules->options.oversize == RAVEL_OVERSIZE_ALONE) &&
                 s->samples == rules->placed && s->time >= s->time_lower_bound);
    *out = &plan->api;
    return RAVEL_OK;
}

/* ---- solving ------------------------------------------------------------------------------------------------ */

typedef struct build {
    const ravel__rules *rules;
    const ravel_plan_input *input;
    ravel__arena *arena;
    ravel_error *err;
    ravel__draft draft;
    const int32_t *rows; /* of all updates, and with trees what each shares with the one before in its update */
    const int64_t *shared;
} build;

static ravel_status too_wide(const build *b, int64_t update, int64_t steps) {
    return ravel_error_set(b->err, RAVEL_E_OVERFLOW,
                           "update %lld needs %lld micro-steps on %d ranks; a plan has at most 2^30 bins",
                           (long long)update, (long long)steps, b->rules->options.dp);
}

static ravel_status solve_hybrid(build *b, int64_t update, const int32_t *rows, int32_t count) {
    ravel__mark mark = ravel__arena_mark(b->arena);
    int64_t steps = 0, first = b->draft.offsets[update];
    ravel_status status = b->rules->trees ? ravel__hybrid_trees(b->rules, b->input, rows, b->shared + (rows - b->rows),
                                                                count, first, b->arena, &b->draft, &steps, b->err)
                                          : ravel__hybrid_update(b->rules, b->input, rows, count, first, b->arena,
                                                                 &b->draft, &steps, b->err);
    RAVEL_ASSERT(status || steps >= 0);
    if (!status && (first + steps) * b->rules->widths.pool > RAVEL__MOST_BINS) status = too_wide(b, update, steps);
    b->draft.offsets[update + 1] = first + steps;
    ravel__arena_rewind(b->arena, mark);
    return status;
}

enum { ONE_BLOCK_SAMPLES = 65536, ONE_BLOCK_BYTES = 52 };

/* The pool of an update. Up to ONE_BLOCK_SAMPLES it begins a block that holds all that the default effort needs: an
 * allocator that gets many blocks back returns them to the system, and the next plan pays for the pages again. In
 * longer updates each array is a block, so that fewer bytes are held at one time. */
static ravel_status make_pool(const build *b, const int32_t *rows, int32_t count, ravel__pool *pool) {
    size_t grow = b->arena->grow, block = (size_t)count * ONE_BLOCK_BYTES;
    if (count <= ONE_BLOCK_SAMPLES && block > grow) b->arena->grow = block;
    ravel_status status = ravel__pool_make(b->rules, b->input, rows, count, b->arena, pool, b->err);
    b->arena->grow = grow;
    return status;
}

static ravel_status solve_update(build *b, int64_t update, const int32_t *rows, int32_t count) {
    ravel__mark mark = ravel__arena_mark(b->arena);
    ravel__draft *d = &b->draft;
    ravel__pool pool;
    ravel__solution solution = {0, 0};
    ravel_status status = make_pool(b, rows, count, &pool);
    int32_t *seat = ravel__arena_push(b->arena, (size_t)count, sizeof *seat);
    if (!status && !seat) status = ravel__no_memory(b->err, (size_t)count * sizeof *seat, "an update");
    if (!status) {
        ravel__job job = ravel__job_for(b->rules, b->input, &pool, b->arena, b->err);
        ravel__bounds_add(b->rules, &pool, job.bound, &d->bounds);
        status = ravel__solve(&job, seat, &solution);
    }
    int64_t first = d->offsets[update], dp = b->rules->options.dp;
    if (!status && (first + solution.steps) * dp > RAVEL__MOST_BINS) status = too_wide(b, update, solution.steps);
    for (int32_t i = 0; !status && i < count; i++) {
        RAVEL_ASSERT(seat[i] >= 0 && seat[i] < solution.steps * dp && d->where[pool.row[i]] < 0);
        d->where[pool.row[i]] = (int32_t)(first * dp) + seat[i];
    }
    d->offsets[update + 1] = first + solution.steps;
    d->bounds.bins_packed += solution.bins_packed;
    RAVEL_ASSERT(status || solution.bins_packed <= count);
    ravel__arena_rewind(b->arena, mark);
    return status;
}

/* Prefix trees. */
static ravel_status solve_tree(build *b, int64_t update, const int32_t *rows, int32_t count) {
    ravel__mark mark = ravel__arena_mark(b->arena);
    ravel__draft *d = &b->draft;
    ravel__solution solution = {0, 0};
    ravel__tree_bound bound = {0};
    ravel__tree_job job = {.rules = b->rules,
                           .input = b->input,
                           .rows = rows,
                           .count = count,
                           .arena = b->arena,
                           .err = b->err,
                           .shared = b->shared + (rows - b->rows)};
    int32_t *seat = ravel__arena_push(b->arena, (size_t)count, sizeof *seat);
    ravel_status status = seat ? ravel__tree_solve(&job, seat, &solution, &bound)
                               : ravel__no_memory(b->err, (size_t)count * sizeof *seat, "an update");
    int64_t first = d->offsets[update], dp = b->rules->options.dp;
    if (!status && (first + solution.steps) * dp > RAVEL__MOST_BINS) status = too_wide(b, update, solution.steps);
    for (int32_t i = 0; !status && i < count; i++) {
        RAVEL_ASSERT(seat[i] >= 0 && seat[i] < solution.steps * dp && d->where[rows[i]] < 0);
        d->where[rows[i]] = (int32_t)(first * dp) + seat[i];
    }
    d->offsets[update + 1] = first + solution.steps;
    d->bounds.bins_packed += solution.bins_packed;
    ravel__tree_bound_add(b->rules, &bound, &d->bounds);
    ravel__arena_rewind(b->arena, mark);
    return status;
}

static ravel_status create(const ravel__rules *rules, const ravel_plan_input *input, ravel__arena *arena,
                           ravel_plan **plan, ravel_error *err) {
    build b = {.rules = rules, .input = input, .arena = arena, .err = err};
    ravel__deal deal;
    ravel_status (*solve)(build *, int64_t, const int32_t *, int32_t) = rules->widths.count ? solve_hybrid
                                                                        : rules->trees      ? solve_tree
                                                                                            : solve_update;
    b.draft.where = ravel__arena_push(arena, (size_t)input->count, sizeof *b.draft.where);
    b.draft.offsets = ravel__arena_push(arena, (size_t)rules->updates + 1, sizeof *b.draft.offsets);
    if (rules->widths.count) b.draft.width = ravel__arena_push(arena, (size_t)input->count, 1);
    if (!b.draft.where || !b.draft.offsets || (rules->widths.count && !b.draft.width))
        return ravel__no_memory(err, (size_t)input->count * sizeof *b.draft.where, "planning");
    ravel_status status = ravel__deal_make(rules, input, arena, &deal, err);
    if (status) return status;
    memset(b.draft.where, 0xff, (size_t)input->count * sizeof *b.draft.where);
    b.draft.offsets[0] = 0;
    b.draft.updates = deal.updates;
    b.rows = deal.rows;
    b.shared = deal.shared;
    for (int32_t u = 0; !status && u < deal.updates; u++)
        status = solve(&b, u, deal.rows + deal.start[u], deal.start[u + 1] - deal.start[u]);
    return status ? status : ravel__emit(rules, input, &b.draft, arena, plan, err);
}

ravel_status ravel_plan_create(const ravel_plan_input *input, const ravel_plan_options *options, ravel_plan **plan,
                               ravel_error *err) {
    ravel__rules rules;
    ravel_plan_input own;
    ravel_status status = ravel__rules_make(input, options, &rules, &own, err);
    if (status) return status;
    ravel__arena arena;
    /* at max, many short-lived pieces are taken and given back; larger blocks keep them from the allocator */
    size_t grow = rules.options.effort == RAVEL_EFFORT_MAX ? 8 * (size_t)own.count : 0;
    ravel__arena_init(&arena, rules.options.allocator, 4096 + grow);
    status = create(&rules, &own, &arena, plan, err);
    ravel__arena_free(&arena);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

ravel_group ravel_plan_group(const ravel_plan *plan, int64_t micro_step, int32_t rank) {
    if (micro_step < 0 || micro_step >= plan->micro_steps || rank < 0 || rank >= plan->dp) return (ravel_group){0};
    int64_t bin = micro_step * plan->dp + rank;
    ravel_group group = {.first = rank, .width = 1};
    if (plan->hybrid && plan->hybrid->rank_group[bin] >= 0) {
        int32_t g = plan->hybrid->rank_group[bin];
        group.first = plan->hybrid->group_first[g];
        group.width = plan->hybrid->group_width[g];
    }
    RAVEL_ASSERT(rank >= group.first && rank < group.first + group.width);
    bin += group.first - rank;
    group.samples = plan->samples + plan->bin_offsets[bin];
    group.count = plan->bin_offsets[bin + 1] - plan->bin_offsets[bin];
    return group;
}

/* ---- replay ------------------------------------------------------------------------------------------------- */

ravel_status ravel_plan_replay(const ravel_plan *plan, uint64_t seed, int64_t epoch, int64_t *order, ravel_error *err) {
    if (epoch < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the epoch is %lld; epochs are counted from 0", (long long)epoch);
    for (int64_t i = 0; i < plan->micro_steps; i++) order[i] = i;
    if (epoch == 0) return RAVEL_OK;
    ravel__rng rng = ravel__rng_seed(ravel__mix64(seed) ^ (uint64_t)epoch);
    for (int64_t u = 0; u < plan->updates; u++) {
        int64_t *part = order + plan->update_offsets[u];
        for (int64_t i = plan->update_offsets[u + 1] - plan->update_offsets[u] - 1; i > 0; i--) {
            int64_t j = (int64_t)ravel__rng_below(&rng, (uint64_t)i + 1), swap = part[i];
            part[i] = part[j];
            part[j] = swap;
        }
    }
    return RAVEL_OK;
}
