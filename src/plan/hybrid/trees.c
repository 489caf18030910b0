/* Prefix trees on groups of different widths: a tree has a width as a sample has one.
 *
 *     leaves    a b c d | e f | g h i j k        in tree order, cut where a tree ends,
 *     pieces    [a b c d] [e f] [g h i] [j k]    and where a limit of cost or the widest group is full
 *
 * A piece has the tokens and the cost of its leaves, shared ones once, and is placed like a sample (solve.c). Pieces of
 * one tree that meet in a group share again what was cut, so the time of a layout is worked out anew from its groups.
 * Several limits are tried, from whole trees down to single leaves; the last is what could be done without trees, and
 * less. */
#include "plan/hybrid/hybrid.h"
#include "plan/tree/tree.h"

#include "base/assert.h"

#include <string.h>

typedef struct trees {
    const ravel__rules *rules;
    const ravel_plan_input *input;
    const int32_t *rows;   /* [count] in tree order */
    const int64_t *shared; /* [count] with the sample before in the update */
    int32_t count;
    ravel__arena *arena;
    ravel_error *err;
    ravel__forest forest;
    int32_t *piece;         /* [leaves] */
    int64_t *length, *cost; /* [leaves] of pieces */
    int32_t *task_of;       /* [leaves] the task of each piece */
    int32_t *group;         /* [count] of the layout that is being tried */
    int32_t *seat;          /* [count] of the best: micro-step * pool + first rank of the group, */
    uint8_t *width;         /* and its width's index */
    int64_t steps, time;    /* 0 steps: none yet */
    int32_t groups;
} trees;

static ravel_status memory_of(const trees *x) {
    return ravel__arena_status(x->arena, "trees on groups", x->err);
}

/* ---- bounds --------------------------------------------------------------------------------------------------- */

/* Each leaf computes at least what no leaf before it has, on a group that holds it whole. */
ravel_status ravel__tree_tasks_bound(const ravel__rules *rules, const ravel__forest *f, ravel__arena *arena,
                                     ravel_hybrid *bounds, ravel_plan_stats *stats, int64_t *time, int64_t *steps,
                                     ravel_error *err) {
    size_t n = (size_t)f->count;
    ravel__tasks tasks;
    int64_t *length = ravel__arena_push(arena, n, sizeof *length), *cost = ravel__arena_push(arena, n, sizeof *cost);
    if (!length || !cost) return ravel__arena_status(arena, "bounds of trees", err);
    for (size_t i = 0; i < n; i++) {
        length[i] = f->length[i] - f->shared[i];
        cost[i] = f->cost[i] - f->twice[i];
    }
    ravel_status status =
        ravel__tasks_of(rules, &(ravel__task_list){length, cost, f->length}, f->count, arena, &tasks, err);
    if (status) return status;
    tasks.one_slot = 1;
    for (size_t i = 0; i < n; i++) {
        int64_t least = INT64_MAX;
        for (int32_t w = 0; w < rules->widths.count; w++)
            if (f->length[i] <= rules->widths.room[w] && ravel__group_time(&rules->widths, f->cost[i], w) < least)
                least = ravel__group_time(&rules->widths, f->cost[i], w);
        if (least > tasks.longest) tasks.longest = least;
    }
    return ravel__hybrid_bounds(&tasks, bounds, stats, time, steps);
}

/* ---- pieces --------------------------------------------------------------------------------------------------- */

static int32_t cut(trees *x, int64_t limit) {
    const ravel__forest *f = &x->forest;
    int32_t made = 0;
    for (int32_t i = 0; i < f->count; i++) {
        int64_t more = f->length[i] - f->shared[i], price = f->cost[i] - f->twice[i];
        if (!made || !f->shared[i] || x->length[made - 1] + more > f->cap || x->cost[made - 1] + price > limit) {
            x->length[made] = f->length[i];
            x->cost[made++] = f->cost[i];
        } else {
            x->length[made - 1] += more;
            x->cost[made - 1] += price;
        }
        x->piece[i] = made - 1;
    }
    return made;
}

/* ---- a layout -------------------------------------------------------------------------------------------------- */

/* The cost of each group, what its samples share counted once. */
static ravel_status recount(trees *x, ravel__layout *l) {
    size_t n = (size_t)x->count;
    int32_t *next = ravel__arena_push(x->arena, (size_t)l->groups + 1, sizeof *next);
    int32_t *samples = ravel__arena_push(x->arena, n, sizeof *samples);
    int64_t *shared = ravel__arena_push(x->arena, n, sizeof *shared);
    const ravel__tree_order tree = {x->count, x->shared, NULL};
    if (!next || !samples || !shared) return memory_of(x);
    memset(next, 0, ((size_t)l->groups + 1) * sizeof *next);
    for (size_t i = 0; i < n; i++) next[x->group[i] + 1]++;
    for (int32_t g = 0; g < l->groups; g++) next[g + 1] += next[g];
    ravel_status status =
        ravel__tree_walk(&tree, x->group, l->groups, next, x->arena, samples, shared, x->err); /* next: the ends */
    for (int32_t g = 0, i = 0; !status && g < l->groups; g++)
        for (l->group[g].cost = 0; i < next[g]; i++)
            l->group[g].cost +=
                ravel__sample_cost(x->rules, x->input, x->rows[samples[i]]) - ravel__cost_of(x->rules, shared[i]);
    return status;
}

static void keep(trees *x, const ravel__layout *l, const int32_t *first) {
    int32_t pool = x->rules->widths.pool;
    for (int32_t i = 0; i < x->count; i++) {
        const ravel__group *group = &l->group[x->group[i]];
        x->seat[i] = group->step * pool + first[x->group[i]];
        x->width[i] = (uint8_t)group->width;
    }
    x->steps = l->steps;
    x->time = l->time;
    x->groups = l->groups;
}

/* Pieces of at most this cost, on groups. */
static ravel_status try_limit(trees *x, int64_t limit, int64_t bound_time, int64_t bound_steps) {
    ravel__mark mark = ravel__arena_mark(x->arena);
    int32_t pieces = cut(x, limit);
    const ravel__task_list list = {x->length, x->cost, x->length};
    ravel__tasks tasks;
    ravel__layout layout;
    ravel_status status = ravel__tasks_of(x->rules, &list, pieces, x->arena, &tasks, x->err);
    if (!status) status = ravel__hybrid_solve(&tasks, bound_time, bound_steps, &layout);
    if (status) return status;
    int32_t *first = ravel__arena_push(x->arena, (size_t)layout.groups, sizeof *first);
    if (!first) return memory_of(x);
    for (int32_t i = 0; i < pieces; i++) x->task_of[tasks.row[i]] = i;
    for (int32_t i = 0; i < x->count; i++) x->group[i] = layout.of[x->task_of[x->piece[x->forest.leaf[i]]]];
    ravel__layout_place(&tasks, &layout, first);
    status = recount(x, &layout);
    if (!status && (ravel__layout_time(&tasks, &layout, NULL) < x->time || !x->steps)) keep(x, &layout, first);
    ravel__arena_rewind(x->arena, mark);
    return status;
}

/* Limits as parts of the bound: whole trees, ..., single leaves. */
static ravel_status try_all(trees *x, int64_t time, int64_t steps) {
    static const int32_t parts[] = {2, 0, 4, 1, 8, 16};
    int64_t mean = time / (steps ? steps : 1), good = time + steps * x->rules->overhead;
    size_t count = x->rules->options.effort == RAVEL_EFFORT_FAST ? 2 : sizeof parts / sizeof *parts;
    ravel_status status = try_limit(x, -1, time, steps);
    if (x->rules->most < x->forest.samples) return status; /* groups count samples: a piece must be one */
    for (size_t i = 0; i < count && !status && x->time > good + (good >> 10); i++)
        status = try_limit(x, parts[i] ? mean / parts[i] : INT64_MAX / 4, time, steps);
    return status;
}

static ravel_status make(trees *x) {
    size_t n = (size_t)x->forest.count, all = (size_t)x->count;
    RAVEL__PUSH(x->arena, x->piece, n);
    RAVEL__PUSH(x->arena, x->length, n);
    RAVEL__PUSH(x->arena, x->cost, n);
    RAVEL__PUSH(x->arena, x->task_of, n);
    RAVEL__PUSH(x->arena, x->group, all);
    RAVEL__PUSH(x->arena, x->seat, all);
    RAVEL__PUSH(x->arena, x->width, all);
    return memory_of(x);
}

ravel_status ravel__hybrid_trees(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                 const int64_t *shared, int32_t count, int64_t first_step, ravel__arena *arena,
                                 ravel__draft *draft, int64_t *steps, ravel_error *err) {
    trees x = {
        .rules = rules, .input = input, .rows = rows, .shared = shared, .count = count, .arena = arena, .err = err};
    int64_t time = 0, bound = 0;
    ravel_status status = ravel__forest_make(rules, input, rows, shared, count, arena, &x.forest, err);
    if (!status)
        status = ravel__tree_tasks_bound(rules, &x.forest, arena, &draft->hybrid, &draft->bounds, &time, &bound, err);
    if (!status) status = make(&x);
    if (!status && count) status = try_all(&x, time, bound);
    if (status) return status;
    *steps = ravel__steps_for(rules, x.steps * rules->widths.pool, rules->widths.pool);
    draft->bounds.bins_packed += x.groups;
    for (int32_t i = 0; i < count; i++) {
        draft->where[rows[i]] = (int32_t)(first_step * rules->widths.pool) + x.seat[i];
        draft->width[rows[i]] = x.width[i];
    }
    return RAVEL_OK;
}
