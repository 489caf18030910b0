/* Trades of samples between the groups of a micro-step: the slowest group gives a sample to a faster one, or swaps it
 * for a smaller one, whichever leaves the slower of the two fastest. Groups differ in width, so moving cost d from x to
 * y takes d * f(x) off the time of x and adds d * f(y) to that of y; the times are equal at
 *
 *     d = (time x - time y) / (f(x) + f(y))
 *
 * which is the target of a trade. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

enum { SPARE = 4, PARTNERS = 8 };

typedef struct side {
    ravel__group *group;
    int32_t *task; /* largest cost first */
    int32_t count, room;
    int64_t time;
} side;

typedef struct trades {
    const ravel__tasks *tasks;
    ravel__layout *layout;
    int32_t *start;   /* [groups + 1] into task */
    int32_t *task;    /* members of all groups, each list with SPARE places more */
    int32_t *by_step; /* [groups] groups by micro-step */
    int32_t *step_start;
    side *side; /* [groups of the step] */
    int64_t tries;
} trades;

typedef struct trade {
    int32_t with, give, take; /* partner, place in the slowest, place in the partner or -1 */
    int64_t time;             /* of the slower of the two */
} trade;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- finding --------------------------------------------------------------------------------------------------- */

/* Whether both groups keep their room. `take` -1: nothing comes back. */
static int is_possible(const trades *t, const side *x, const side *y, int32_t give, int32_t take) {
    const ravel__widths *widths = t->tasks->widths;
    const int64_t *length = t->tasks->length;
    int32_t a = x->task[give], b = take < 0 ? -1 : y->task[take], wx = x->group->width, wy = y->group->width;
    int64_t gained = ravel__width_slot(widths, length[a], wy) - (b < 0 ? 0 : ravel__width_slot(widths, length[b], wy));
    int64_t freed = ravel__width_slot(widths, length[a], wx) - (b < 0 ? 0 : ravel__width_slot(widths, length[b], wx));
    if (y->count >= y->room) return 0; /* the incoming sample needs a free place before the outgoing one leaves */
    if (y->group->slots + gained > widths->room[wy] || x->group->slots - freed > widths->room[wx]) return 0;
    return b >= 0 || (y->count < t->tasks->rules->most && x->count > 1);
}

/* The cost that x must give to y for both to take the same time. */
static int64_t wanted(const trades *t, const side *x, const side *y) {
    const ravel__widths *widths = t->tasks->widths;
    int64_t kx = widths->width[x->group->width], ky = widths->width[y->group->width];
    int64_t fx = (1000 + widths->price[x->group->width]) * ky, fy = (1000 + widths->price[y->group->width]) * kx;
    return ravel__scale(x->time - y->time, 1000 * kx * ky, fx + fy);
}

/* Costs fall in both lists, so the place in y whose cost is nearest to (x's cost - want) only moves down. */
static void find(trades *t, const side *x, const side *y, int32_t with, trade *best) {
    const ravel__widths *widths = t->tasks->widths;
    const int64_t *cost = t->tasks->cost;
    int64_t want = wanted(t, x, y), nearest = want, moved = 0;
    int32_t near = 0, give = -1, take = -1;
    if (want < 1 || ravel__group_time(widths, x->group->cost - want, x->group->width) >= best->time) return;
    for (int32_t i = 0; i < x->count; i++) {
        int64_t here = cost[x->task[i]], target = here - want;
        if (llabs(target) < nearest && is_possible(t, x, y, i, -1)) {
            nearest = llabs(target);
            moved = here;
            give = i;
            take = -1;
        }
        while (near < y->count && cost[y->task[near]] > target) near++;
        for (int32_t j = near > 1 ? near - 2 : 0; j < near + 2 && j < y->count; j++) {
            int64_t off = llabs(target - cost[y->task[j]]);
            if (off >= nearest || !is_possible(t, x, y, i, j)) continue;
            nearest = off;
            moved = here - cost[y->task[j]];
            give = i;
            take = j;
        }
    }
    t->tries -= x->count + y->count;
    if (give < 0) return;
    int64_t time = larger(ravel__group_time(widths, x->group->cost - moved, x->group->width),
                          ravel__group_time(widths, y->group->cost + moved, y->group->width));
    if (time < best->time) *best = (trade){with, give, take, time};
}

/* ---- applying -------------------------------------------------------------------------------------------------- */

static void drop(side *s, int32_t place) {
    RAVEL_ASSERT(place >= 0 && place < s->count);
    memmove(s->task + place, s->task + place + 1, (size_t)(--s->count - place) * sizeof *s->task);
}

static void put(side *s, int32_t task) {
    int32_t at = s->count++;
    RAVEL_ASSERT(at < s->room);
    for (; at > 0 && s->task[at - 1] > task; at--) s->task[at] = s->task[at - 1];
    s->task[at] = task;
}

static void add(const trades *t, side *s, int32_t task, int32_t sign) {
    s->group->cost += sign * t->tasks->cost[task];
    s->group->slots += sign * ravel__width_slot(t->tasks->widths, t->tasks->length[task], s->group->width);
    s->group->count += sign;
}

static void move(const trades *t, side *from, side *to, int32_t place) {
    int32_t task = from->task[place];
    drop(from, place);
    put(to, task);
    add(t, from, task, -1);
    add(t, to, task, 1);
    RAVEL_ASSERT(from->count == from->group->count && to->count == to->group->count);
    t->layout->of[task] = (int32_t)(to->group - t->layout->group);
}

static void apply(const trades *t, side *x, side *y, const trade *best) {
    int32_t back = best->take < 0 ? -1 : y->task[best->take];
    move(t, x, y, best->give);
    for (int32_t i = 0; back >= 0 && i < y->count; i++)
        if (y->task[i] == back) {
            move(t, y, x, i);
            break;
        }
    x->time = ravel__group_time(t->tasks->widths, x->group->cost, x->group->width);
    y->time = ravel__group_time(t->tasks->widths, y->group->cost, y->group->width);
    RAVEL_ASSERT(x->time <= best->time && y->time <= best->time && x->count > 0);
    RAVEL_ASSERT(x->group->slots <= t->tasks->widths->room[x->group->width]);
    RAVEL_ASSERT(y->group->slots <= t->tasks->widths->room[y->group->width]);
}

/* ---- a micro-step ---------------------------------------------------------------------------------------------- */

/* The fastest groups that were not tried yet, one after another. */
static int32_t next_partner(const side *sides, int32_t count, int32_t slowest, int64_t after, int32_t after_index) {
    int32_t best = -1;
    for (int32_t g = 0; g < count; g++) {
        if (g == slowest || sides[g].time < after || (g <= after_index && sides[g].time == after)) continue;
        if (best < 0 || sides[g].time < sides[best].time) best = g;
    }
    return best;
}

static int balance_once(trades *t, side *sides, int32_t count) {
    int32_t slowest = 0, with = -1;
    int64_t after = -1;
    for (int32_t g = 1; g < count; g++)
        if (sides[g].time > sides[slowest].time) slowest = g;
    trade best = {-1, 0, 0, sides[slowest].time};
    for (int32_t i = 0; i < PARTNERS; i++) {
        with = next_partner(sides, count, slowest, after, with);
        if (with < 0) break;
        after = sides[with].time;
        find(t, &sides[slowest], &sides[with], with, &best);
    }
    if (best.with < 0) return 0;
    apply(t, &sides[slowest], &sides[best.with], &best);
    return 1;
}

static void balance_step(trades *t, int32_t step) {
    int32_t count = 0;
    for (int32_t i = t->step_start[step]; i < t->step_start[step + 1]; i++) {
        int32_t g = t->by_step[i];
        ravel__group *group = &t->layout->group[g];
        t->side[count++] = (side){group, t->task + t->start[g], group->count, group->count + SPARE,
                                  ravel__group_time(t->tasks->widths, group->cost, group->width)};
    }
    if (count < 2) return;
    for (int32_t rounds = 2 * count; rounds > 0 && t->tries > 0; rounds--)
        if (!balance_once(t, t->side, count)) return;
}

/* ---- lists ------------------------------------------------------------------------------------------------------ */

static ravel_status make_lists(trades *t) {
    ravel__layout *l = t->layout;
    ravel__arena *arena = t->tasks->arena;
    size_t groups = (size_t)l->groups, n = (size_t)t->tasks->count;
    RAVEL__PUSH(arena, t->start, groups + 1);
    RAVEL__PUSH(arena, t->task, n + groups * SPARE);
    RAVEL__PUSH(arena, t->by_step, groups);
    RAVEL__PUSH(arena, t->step_start, (size_t)l->steps + 2);
    RAVEL__PUSH(arena, t->side, (size_t)t->tasks->widths->pool);
    ravel_status status = ravel__arena_status(arena, "balancing groups", t->tasks->err);
    if (status) return status;
    t->start[0] = 0;
    for (size_t g = 0; g < groups; g++) t->start[g + 1] = t->start[g] + l->group[g].count + SPARE;
    RAVEL_ASSERT((size_t)t->start[groups] == n + groups * SPARE); /* counts of the groups add up to the tasks */
    for (size_t i = 0; i < n; i++) t->task[t->start[l->of[i]]++] = (int32_t)i;
    for (size_t g = 0; g < groups; g++) t->start[g] -= l->group[g].count;
    memset(t->step_start, 0, ((size_t)l->steps + 2) * sizeof *t->step_start);
    for (size_t g = 0; g < groups; g++) t->step_start[l->group[g].step + 2]++;
    for (int32_t s = 0; s < l->steps; s++) t->step_start[s + 2] += t->step_start[s + 1];
    for (size_t g = 0; g < groups; g++) t->by_step[t->step_start[l->group[g].step + 1]++] = (int32_t)g;
    return RAVEL_OK;
}

ravel_status ravel__layout_balance(const ravel__tasks *tasks, ravel__layout *layout, int64_t tries_per_task) {
    ravel__mark mark = ravel__arena_mark(tasks->arena);
    trades t = {.tasks = tasks, .layout = layout};
    ravel_status status = make_lists(&t);
    if (!status) {
        t.tries = 0;
        for (int32_t step = 0; step < layout->steps; step++) {
            t.tries += tries_per_task * tasks->count / layout->steps;
            balance_step(&t, step);
        }
        (void)ravel__layout_time(tasks, layout, NULL);
    }
    ravel__arena_rewind(tasks->arena, mark);
    return status;
}
