/* The samples of an update as tasks, and lower bounds on any plan of them.
 *
 *   micro-steps   slots / (pool * budget), and L2: two samples of more than half the pool share no micro-step
 *   area          the least work of every sample, over the pool
 *   longest       the sample that takes longest at its fastest width
 *   canonical     in a plan of time T a sample runs at a width with t <= T, so its work is at least the least work among
 *                 those widths. The works add up to at most pool * T. The least T for which they do is a bound, and not
 *                 below the two before it.
 *
 * Each but the first is a bound of the time without overheads; the least number of micro-steps adds its overhead. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

/* ---- tasks ---------------------------------------------------------------------------------------------------- */

static uint8_t narrowest(const ravel__widths *w, int64_t length) {
    int32_t i = 0;
    while (i + 1 < w->count && length > w->room[i]) i++;
    RAVEL_ASSERT(length <= w->room[i]);
    return (uint8_t)i;
}

static ravel_status alloc_tasks(ravel__tasks *t, int32_t count) {
    size_t n = (size_t)count;
    t->count = count;
    RAVEL__PUSH(t->arena, t->row, n);
    RAVEL__PUSH(t->arena, t->length, n);
    RAVEL__PUSH(t->arena, t->cost, n);
    RAVEL__PUSH(t->arena, t->worth, n);
    RAVEL__PUSH(t->arena, t->fit, n);
    return ravel__arena_status(t->arena, "tasks", t->err);
}

/* Tasks from samples (rows of the input) or from a list. */
static ravel_status make_tasks(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                               const ravel__task_list *list, int32_t count, ravel__arena *arena, ravel__tasks *t,
                               ravel_error *err) {
    memset(t, 0, sizeof *t);
    t->rules = rules;
    t->widths = &rules->widths;
    t->arena = arena;
    t->err = err;
    ravel_status status = alloc_tasks(t, count);
    if (status) return status;
    ravel__mark mark = ravel__arena_mark(arena);
    int32_t *spare_rows = ravel__arena_push(arena, (size_t)count, sizeof *spare_rows);
    if (!spare_rows) return ravel__no_memory(err, (size_t)count * sizeof *spare_rows, "tasks");
    RAVEL_ASSERT(list || rows || !count);
    uint64_t *key = (uint64_t *)t->cost, *spare = (uint64_t *)t->worth;
    for (int32_t i = 0; i < count; i++) {
        t->row[i] = list ? i : rows[i];
        key[i] = ~(uint64_t)(list ? list->cost[i] : ravel__sample_cost(rules, input, rows[i]));
    }
    ravel__sort_u64(key, t->row, spare, spare_rows, (size_t)count);
    ravel__arena_rewind(arena, mark);
    t->by_length = 1;
    for (int32_t i = 0; i < count; i++) {
        t->cost[i] = (int64_t)~key[i];
        t->length[i] = list ? list->length[t->row[i]] : ravel__length(input, t->row[i]);
        t->fit[i] = narrowest(t->widths, list ? list->whole[t->row[i]] : t->length[i]);
        RAVEL_ASSERT(t->cost[i] >= 0 && (i == 0 || t->cost[i] <= t->cost[i - 1]));
        if (i && t->length[i] > t->length[i - 1]) t->by_length = 0;
    }
    return RAVEL_OK;
}

ravel_status ravel__tasks_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                               int32_t count, ravel__arena *arena, ravel__tasks *t, ravel_error *err) {
    return make_tasks(rules, input, rows, NULL, count, arena, t, err);
}

ravel_status ravel__tasks_of(const ravel__rules *rules, const ravel__task_list *list, int32_t count,
                             ravel__arena *arena, ravel__tasks *t, ravel_error *err) {
    return make_tasks(rules, NULL, NULL, list, count, arena, t, err);
}

void ravel__time_limits(const ravel__widths *widths, int64_t time, int64_t *limit) {
    for (int32_t w = 0; w < widths->count; w++) limit[w] = ravel__group_cost(widths, time, w);
}

int32_t ravel__task_width(const ravel__tasks *t, int32_t task, const int64_t *limit) {
    const ravel__widths *widths = t->widths;
    int32_t best = -1;
    for (int32_t w = t->fit[task]; w < widths->count; w++) {
        if (t->cost[task] > limit[w]) continue;
        if (best < 0 || widths->price[w] < widths->price[best]) best = w;
        if (widths->rising) break; /* the narrowest is the cheapest */
    }
    RAVEL_ASSERT(best < 0 || t->length[task] <= widths->room[best]);
    return best;
}

void ravel__tasks_value(ravel__tasks *t, int64_t time) {
    int64_t limit[RAVEL__MOST_WIDTHS], overhead = t->rules->overhead, budget = t->rules->options.budget;
    ravel__time_limits(t->widths, time, limit);
    for (int32_t i = 0; i < t->count; i++) {
        int32_t w = ravel__task_width(t, i, limit);
        int64_t price = t->widths->price[w < 0 ? t->widths->count - 1 : w];
        t->worth[i] = t->cost[i] * (1000 + price) / 1000 + ravel__scale(overhead, t->length[i], budget);
    }
}

/* ---- micro-steps ----------------------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* Slots at the narrowest width, which are the shortest, in units of its multiple. */
static ravel_status bound_steps(const ravel__tasks *t, int64_t *steps) {
    ravel__mark mark = ravel__arena_mark(t->arena);
    size_t n = (size_t)t->count;
    int64_t multiple = t->widths->multiple[0], cap = t->rules->options.budget * t->widths->pool / multiple, sum = 0;
    for (size_t i = 0; i < n && t->one_slot; i++) sum += t->length[i];
    if (t->one_slot) {
        *steps = divide_up(sum, t->rules->options.budget * t->widths->pool);
        return RAVEL_OK;
    }
    uint32_t *slot = ravel__arena_push(t->arena, n, 4), *spare = ravel__arena_push(t->arena, n, 4);
    int32_t *order = ravel__arena_push(t->arena, n, 4), *spare_order = ravel__arena_push(t->arena, n, 4);
    if (!slot || !spare || !order || !spare_order) return ravel__no_memory(t->err, n * 16, "bounds");
    for (int32_t i = 0; i < t->count; i++) {
        int64_t units = divide_up(t->length[i], multiple);
        slot[i] = ~(uint32_t)units;
        order[i] = i;
        sum += units;
    }
    if (!t->by_length) ravel__sort_u32(slot, order, spare, spare_order, n);
    for (size_t i = 0; i < n; i++) slot[i] = ~slot[i];
    ravel__pool pool = {.count = t->count, .slot = slot};
    *steps = ravel__martello_toth(&pool, cap, divide_up(sum, cap));
    if (t->count && *steps < 1) *steps = 1;
    ravel__arena_rewind(t->arena, mark);
    return RAVEL_OK;
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

/* The least work of a task in thousandths, whatever its time; and its least time. */
static int64_t least_work(const ravel__tasks *t, int32_t task) {
    int64_t best = INT64_MAX;
    for (int32_t w = t->fit[task]; w < t->widths->count; w++)
        if (1000 + t->widths->price[w] < best) best = 1000 + t->widths->price[w];
    return best * t->cost[task];
}

static int64_t least_time(const ravel__tasks *t, int32_t task) {
    int64_t best = INT64_MAX;
    for (int32_t w = t->fit[task]; w < t->widths->count; w++) {
        int64_t time = ravel__group_time(t->widths, t->cost[task], w);
        if (time < best) best = time;
    }
    return best;
}

/* Whether all work of tasks 0 .. count-1 at widths of at most `time`, and `rest`, is at most pool * time. */
static int fits(const ravel__tasks *t, int32_t count, ravel__u128 rest, int64_t time) {
    int64_t limit[RAVEL__MOST_WIDTHS];
    ravel__u128 work = rest;
    ravel__time_limits(t->widths, time, limit);
    for (int32_t i = 0; i < count; i++) {
        int32_t w = ravel__task_width(t, i, limit);
        if (w < 0) return 0;
        work += (ravel__u128)(t->cost[i] * (1000 + t->widths->price[w]));
    }
    return work <= (ravel__u128)time * 1000 * (ravel__u128)t->widths->pool;
}

static int64_t to_time(const ravel__tasks *t, ravel__u128 work) {
    ravel__u128 per = (ravel__u128)1000 * (ravel__u128)t->widths->pool;
    return (int64_t)((work + per - 1) / per);
}

/* Tasks whose width of least work is fast enough for `low` keep it; only the first `open`, of larger cost, may
 * change. */
static int64_t canonical(const ravel__tasks *t, int64_t low) {
    ravel__u128 rest = 0;
    int64_t limit[RAVEL__MOST_WIDTHS], high = low ? low : 1;
    int32_t open = t->count;
    ravel__time_limits(t->widths, low, limit);
    while (open > 0) {
        int32_t w = ravel__task_width(t, open - 1, limit);
        if (w < 0 || t->cost[open - 1] * (1000 + t->widths->price[w]) != least_work(t, open - 1)) break;
        rest += (ravel__u128)least_work(t, --open);
    }
    if (fits(t, open, rest, low)) return low;
    while (!fits(t, open, rest, high)) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (fits(t, open, rest, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

ravel_status ravel__hybrid_bounds(const ravel__tasks *t, ravel_hybrid *bounds, ravel_plan_stats *stats, int64_t *time,
                                  int64_t *steps) {
    ravel__u128 work = 0;
    int64_t longest = t->longest, tokens = 0;
    ravel_status status = bound_steps(t, steps);
    if (status) return status;
    for (int32_t i = 0; i < t->count; i++) {
        work += (ravel__u128)least_work(t, i);
        tokens += t->length[i];
        int64_t least = least_time(t, i);
        if (least > longest) longest = least;
    }
    int64_t area = to_time(t, work), all = ravel__steps_for(t->rules, *steps * t->widths->pool, t->widths->pool);
    if (!t->count && !t->rules->options.min_micro_steps) all = 0;
    *time = canonical(t, area > longest ? area : longest);
    *steps = all;
    RAVEL_ASSERT(*time >= area && *time >= longest && all >= 0);
    bounds->bound_micro_steps += all;
    bounds->bound_area += area + all * t->rules->overhead;
    bounds->bound_longest += longest + (all > 0) * t->rules->overhead;
    bounds->bound_canonical += *time + all * t->rules->overhead;
    stats->bins_lower_bound += divide_up(tokens, t->widths->room[t->widths->count - 1]);
    stats->micro_steps_lower_bound += all;
    stats->time_lower_bound += *time + all * t->rules->overhead;
    return RAVEL_OK;
}
