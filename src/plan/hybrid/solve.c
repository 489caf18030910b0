/* An update of hybrid micro-steps.
 *
 * Micro-steps are made one after another. Each begins with the longest remaining sample and is tried at several times
 * (shelf.c): from what that sample takes on the widest group to what it takes on the narrowest. The one that does most
 * work per rank and time is kept. When all that remains could fit one micro-step, the least time that holds it is found
 * by halving, and the plan that ends there is a candidate too. The whole is done in several ways, which differ in how
 * far wide groups are filled with short samples and in what a micro-step is expected to take; the best is kept, after
 * its groups have traded samples (balance.c). */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"

#include <string.h>

/* A way: how far wide groups are filled, in sixteenths of the micro-step's time, and what a micro-step is expected to
 * take, in sixteenths of the bound's mean. */
typedef struct way {
    int32_t fill, scale;
} way;

static const way ways[] = {{16, 20}, {16, 6}, {15, 18}, {14, 17}, {16, 16}, {15, 14},
                           {13, 18}, {11, 8}, {16, 11}, {15, 8},  {16, 26}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Search limits. Work is counted in samples examined, never by a clock. */
typedef struct hybrid_limits {
    int32_t effort;
    int32_t most_samples; /* the row is for updates of at most this many samples */
    int32_t ways;         /* tried */
    int32_t times;        /* per micro-step */
    int32_t halvings;     /* for the last micro-step */
    int32_t trades_per_sample;
} hybrid_limits;

static const hybrid_limits limits_table[] = {
    {RAVEL_EFFORT_FAST, INT32_MAX, 1, 5, 6, 16},
    {RAVEL_EFFORT_DEFAULT, 300, WAYS, 16, 12, 256},
    {RAVEL_EFFORT_DEFAULT, INT32_MAX, 2, 6, 6, 24},
    {RAVEL_EFFORT_MAX, INT32_MAX, WAYS, 24, 16, 1024},
};

static const hybrid_limits *limits_for(int32_t effort, int32_t samples) {
    const hybrid_limits *row = limits_table;
    while (row->effort != effort || samples > row->most_samples) row++;
    return row;
}

typedef struct search {
    ravel__tasks *tasks;
    const hybrid_limits *limits;
    ravel__rest rest;
    ravel__shelf best_shelf, shelf;
    ravel__layout now, trial, best;
    int64_t expected; /* time of a micro-step */
    int64_t slots;    /* of what remains, at the narrowest width */
    int32_t fill;
} search;

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static void make_shelf(const ravel__tasks *t, ravel__shelf *s) {
    memset(s, 0, sizeof *s);
    RAVEL__PUSH(t->arena, s->group, (size_t)t->widths->pool);
    RAVEL__PUSH(t->arena, s->member, (size_t)t->count);
}

static ravel_status make_layout(const ravel__tasks *t, ravel__layout *l) {
    memset(l, 0, sizeof *l);
    l->time = INT64_MAX;
    RAVEL__PUSH(t->arena, l->group, (size_t)t->count);
    RAVEL__PUSH(t->arena, l->of, (size_t)t->count);
    return ravel__arena_status(t->arena, "hybrid planning", t->err);
}

static ravel_status make_search(search *s) {
    const ravel__tasks *t = s->tasks;
    size_t n = (size_t)t->count;
    s->rest.tasks = t;
    RAVEL__PUSH(t->arena, s->rest.left, n);
    RAVEL__PUSH(t->arena, s->rest.cost, n);
    RAVEL__PUSH(t->arena, s->rest.length, n);
    RAVEL__PUSH(t->arena, s->rest.skip, n + 1);
    make_shelf(t, &s->shelf);
    make_shelf(t, &s->best_shelf);
    ravel_status status = make_layout(t, &s->now);
    if (!status) status = make_layout(t, &s->trial);
    for (int32_t i = 0; !status && i <= t->count; i++) s->rest.skip[i] = i;
    return status;
}

/* ---- layouts ---------------------------------------------------------------------------------------------------- */

/* Groups stand in order of their micro-step. */
int64_t ravel__layout_time(const ravel__tasks *t, ravel__layout *l, int64_t *step_time) {
    int64_t total = l->steps * t->rules->overhead, slowest = 0;
    for (int32_t g = 0; g < l->groups; g++) {
        int64_t time = ravel__group_time(t->widths, l->group[g].cost, l->group[g].width);
        if (time > slowest) slowest = time;
        RAVEL_ASSERT(g == 0 || l->group[g].step >= l->group[g - 1].step);
        if (g + 1 < l->groups && l->group[g + 1].step == l->group[g].step) continue;
        if (step_time) step_time[l->group[g].step] = slowest;
        total += slowest;
        slowest = 0;
    }
    l->time = total;
    return total;
}

/* The shelf becomes the layout's next micro-step. */
static void append(const search *s, const ravel__shelf *shelf, ravel__layout *l) {
    for (int32_t g = 0; g < shelf->groups; g++) {
        ravel__group *group = &l->group[l->groups];
        *group = shelf->group[g];
        group->step = l->steps;
        for (int32_t i = group->first; i < group->first + group->count; i++)
            l->of[s->rest.left[shelf->member[i]]] = l->groups;
        l->groups++;
    }
    RAVEL_ASSERT(shelf->groups > 0 && l->groups <= s->tasks->count);
    l->steps++;
    l->time += shelf->time + s->tasks->rules->overhead;
}

static void copy_layout(const search *s, const ravel__layout *from, ravel__layout *to) {
    memcpy(to->group, from->group, (size_t)from->groups * sizeof *to->group);
    memcpy(to->of, from->of, (size_t)s->tasks->count * sizeof *to->of);
    to->groups = from->groups;
    to->steps = from->steps;
    to->time = from->time;
}

/* Balances the trial and keeps it if it is better. A trial that is far behind is skipped. */
static ravel_status offer(search *s) {
    if (s->best.time < INT64_MAX && s->trial.time - s->trial.time / 24 > s->best.time) return RAVEL_OK;
    ravel_status status = RAVEL_OK;
    if (RAVEL__PART_ON(HYBRID_BALANCE))
        status = ravel__layout_balance(s->tasks, &s->trial, s->limits->trades_per_sample);
    if (status || s->trial.time >= s->best.time) return status;
    ravel__layout swap = s->best;
    s->best = s->trial;
    s->trial = swap;
    return RAVEL_OK;
}

/* ---- a micro-step ------------------------------------------------------------------------------------------------ */

static void swap_shelves(search *s) {
    ravel__shelf swap = s->best_shelf;
    s->best_shelf = s->shelf;
    s->shelf = swap;
}

/* Whether the shelf does more work per time than the best so far. */
static int does_more(const search *s) {
    int64_t overhead = s->tasks->rules->overhead;
    return (ravel__i128)s->shelf.value * (s->best_shelf.time + overhead) >
           (ravel__i128)s->best_shelf.value * (s->shelf.time + overhead);
}

static void try_time(search *s, int64_t time) {
    ravel__shelf_fill(&s->rest, time, s->fill, &s->shelf);
    if (s->shelf.groups && (!s->best_shelf.groups || does_more(s))) swap_shelves(s);
}

static void choose_shelf(search *s) {
    const ravel__widths *widths = s->tasks->widths;
    int32_t longest = s->rest.left[0], times = s->limits->times - 1;
    int64_t cost = s->tasks->cost[longest], low = ravel__group_time(widths, cost, widths->count - 1);
    int64_t high = ravel__group_time(widths, cost, s->tasks->fit[longest]);
    if (low < s->expected / 10 * 7) low = s->expected / 10 * 7;
    if (high < s->expected / 10 * 13) high = s->expected / 10 * 13;
    if (low > high) low = high;
    RAVEL_ASSERT(low >= 0 && times > 0);
    s->best_shelf.groups = 0;
    for (int32_t w = widths->count - 1; w >= s->tasks->fit[longest]; w--) {
        int64_t time = ravel__group_time(widths, cost, w);
        if (time >= low) try_time(s, time);
    }
    for (int32_t i = 0; i <= times; i++)
        try_time(s, low + (int64_t)((ravel__i128)(high - low) * i * i / (times * times)) + 1);
    RAVEL_ASSERT(s->best_shelf.groups > 0);
}

static int holds_all(search *s, int64_t time) {
    ravel__shelf_fill(&s->rest, time, s->fill, &s->shelf);
    return s->shelf.members == s->rest.count;
}

/* The least time in which one micro-step holds all that remains, into best_shelf; 0: none was found. */
static int find_last(search *s) {
    const ravel__tasks *t = s->tasks;
    ravel__i128 work = 0;
    for (int32_t i = 0; i < s->rest.count; i++) work += s->rest.cost[i];
    int64_t low = (int64_t)(work / t->widths->pool), high = low;
    int64_t least = ravel__group_time(t->widths, t->cost[s->rest.left[0]], t->widths->count - 1);
    if (low < least) low = high = least;
    int32_t found = holds_all(s, high);
    for (int32_t i = 0; i < 8 && !found; i++) {
        low = high;
        high += high / 4 + 1;
        found = holds_all(s, high);
    }
    if (!found) return 0;
    RAVEL_ASSERT(low <= high);
    swap_shelves(s);
    for (int32_t i = 0; i < s->limits->halvings && high - low > high / 512; i++) {
        int64_t middle = low + (high - low) / 2;
        if (!holds_all(s, middle)) {
            low = middle;
            continue;
        }
        high = middle;
        if (s->shelf.time <= s->best_shelf.time) swap_shelves(s);
    }
    return 1;
}

/* ---- an update --------------------------------------------------------------------------------------------------- */

static void start_over(search *s) {
    const ravel__tasks *t = s->tasks;
    s->now.steps = s->now.groups = 0;
    s->now.time = 0;
    s->rest.count = t->count;
    s->slots = 0;
    memcpy(s->rest.cost, t->cost, (size_t)t->count * sizeof *t->cost);
    memcpy(s->rest.length, t->length, (size_t)t->count * sizeof *t->length);
    for (int32_t i = 0; i < t->count; i++) {
        s->rest.left[i] = i;
        s->slots += ravel__width_slot(t->widths, t->length[i], 0);
    }
}

/* Removes the samples of the chosen shelf from the remaining ones. */
static void remove_members(search *s, const ravel__shelf *shelf) {
    const ravel__tasks *t = s->tasks;
    int32_t kept = 0;
    for (int32_t i = 0; i < shelf->members; i++) {
        int32_t *task = &s->rest.left[shelf->member[i]];
        s->slots -= ravel__width_slot(t->widths, t->length[*task], 0);
        *task = -1;
    }
    for (int32_t i = 0; i < s->rest.count; i++) {
        if (s->rest.left[i] < 0) continue;
        s->rest.left[kept] = s->rest.left[i];
        s->rest.cost[kept] = s->rest.cost[i];
        s->rest.length[kept++] = s->rest.length[i];
    }
    RAVEL_ASSERT(kept + shelf->members == s->rest.count && s->slots >= 0);
    s->rest.count = kept;
}

/* The micro-steps so far, and one more that holds all that remains. */
static ravel_status offer_last(search *s) {
    if (!RAVEL__PART_ON(HYBRID_LAST) || s->slots > s->tasks->rules->options.budget * s->tasks->widths->pool ||
        !find_last(s))
        return RAVEL_OK;
    copy_layout(s, &s->now, &s->trial);
    append(s, &s->best_shelf, &s->trial);
    return offer(s);
}

static ravel_status solve_way(search *s, way how, int64_t mean) {
    ravel_status status = RAVEL_OK;
    s->fill = how.fill;
    s->expected = mean / 16 * how.scale + 1;
    ravel__tasks_value(s->tasks, s->expected);
    start_over(s);
    while (!status && s->rest.count) {
        status = offer_last(s);
        choose_shelf(s);
        append(s, &s->best_shelf, &s->now);
        remove_members(s, &s->best_shelf);
    }
    if (status) return status;
    copy_layout(s, &s->now, &s->trial);
    return offer(s);
}

static ravel_status solve_part(ravel__tasks *tasks, int64_t mean, ravel__layout *layout) {
    search s = {.tasks = tasks, .limits = limits_for(tasks->rules->options.effort, tasks->count)};
    ravel__mark mark = ravel__arena_mark(tasks->arena);
    s.best = *layout;
    s.best.time = INT64_MAX;
    ravel_status status = make_search(&s);
    for (int32_t i = 0; !status && i < s.limits->ways; i++) status = solve_way(&s, ways[i], mean);
    if (!status && s.best.group != layout->group) copy_layout(&s, &s.best, layout);
    for (int32_t i = 0; !status && i < tasks->count; i++)
        RAVEL_ASSERT(s.best.of[i] >= 0 && s.best.of[i] < s.best.groups);
    layout->groups = s.best.groups;
    layout->steps = s.best.steps;
    layout->time = s.best.time;
    ravel__arena_rewind(tasks->arena, mark);
    return status;
}

/* ---- parts
 * -------------------------------------------------------------------------------------------------------- */

enum { PART = 4096, PART_PER_RANK = 64 };

/* Every parts-th task from `first` on. */
static ravel_status make_part(const ravel__tasks *t, int32_t parts, int32_t first, ravel__tasks *part) {
    size_t n = (size_t)((t->count - first + parts - 1) / parts);
    *part = *t;
    part->count = (int32_t)n;
    RAVEL__PUSH(t->arena, part->length, n);
    RAVEL__PUSH(t->arena, part->cost, n);
    RAVEL__PUSH(t->arena, part->worth, n);
    RAVEL__PUSH(t->arena, part->fit, n);
    ravel_status status = ravel__arena_status(t->arena, "a part", t->err);
    for (int32_t i = 0; !status && i < part->count; i++) {
        part->length[i] = t->length[first + i * parts];
        part->cost[i] = t->cost[first + i * parts];
        part->fit[i] = t->fit[first + i * parts];
    }
    return status;
}

static ravel_status add_part(const ravel__tasks *t, int32_t parts, int32_t first, int64_t mean, ravel__layout *layout) {
    ravel__mark mark = ravel__arena_mark(t->arena);
    ravel__tasks part;
    ravel__layout own = {0};
    ravel_status status = make_part(t, parts, first, &part);
    if (!status) status = make_layout(&part, &own);
    if (!status) status = solve_part(&part, mean, &own);
    for (int32_t i = 0; !status && i < part.count; i++) layout->of[first + i * parts] = layout->groups + own.of[i];
    for (int32_t g = 0; !status && g < own.groups; g++) {
        layout->group[layout->groups] = own.group[g];
        layout->group[layout->groups++].step += layout->steps;
    }
    if (!status) layout->steps += own.steps;
    ravel__arena_rewind(t->arena, mark);
    return status;
}

/* A long update is cut into parts of the same distribution, so that time stays linear in the number of samples. */
ravel_status ravel__hybrid_solve(ravel__tasks *tasks, int64_t bound_time, int64_t bound_steps, ravel__layout *layout) {
    int32_t size = PART_PER_RANK * tasks->widths->pool > PART ? PART_PER_RANK * tasks->widths->pool : PART;
    int32_t parts = (tasks->count + size - 1) / size;
    int64_t mean = bound_time / (bound_steps ? bound_steps : 1);
    ravel_status status = make_layout(tasks, layout);
    if (!status && parts == 1) return solve_part(tasks, mean, layout);
    for (int32_t i = 0; !status && i < parts; i++) status = add_part(tasks, parts, i, mean, layout);
    return status;
}
