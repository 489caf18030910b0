#include "plan/balance/balance.h"

#include "base/assert.h"

#include <string.h>

/* ---- layout ------------------------------------------------------------------------------------------------- */

ravel_status ravel__trade_make(const ravel__job *job, int32_t bins, int64_t samples, ravel__trading *table) {
    size_t k = (size_t)bins, n = (size_t)samples + k * RAVEL__TRADE_ROOM;
    ravel__arena *arena = job->arena;
    memset(table, 0, sizeof *table);
    table->cap = job->rules->cap;
    table->most = job->rules->most;
    table->bins = bins;
    table->tries_left = INT64_MAX;
    RAVEL__PUSH(arena, table->start, k + 1);
    RAVEL__PUSH(arena, table->rows, k);
    RAVEL__PUSH(arena, table->size, k);
    RAVEL__PUSH(arena, table->sum, k);
    RAVEL__PUSH(arena, table->item, n);
    RAVEL__PUSH(arena, table->slot, n);
    RAVEL__PUSH(arena, table->cost, n);
    if (table->start) table->start[0] = 0;
    return ravel__arena_status(arena, "a table of bins", job->err);
}

/* Puts a sample into its place by cost; the list has room. */
static void insert(ravel__trading *t, int32_t bin, int32_t item, uint32_t slot, int64_t cost) {
    int32_t first = t->start[bin], at = first + t->rows[bin]++;
    RAVEL_ASSERT(at < t->start[bin + 1]);
    for (; at > first && t->cost[at - 1] < cost; at--) {
        t->item[at] = t->item[at - 1];
        t->slot[at] = t->slot[at - 1];
        t->cost[at] = t->cost[at - 1];
    }
    t->item[at] = item;
    t->slot[at] = slot;
    t->cost[at] = cost;
    t->size[bin] += slot;
    t->sum[bin] += cost;
    RAVEL_ASSERT(at == first || t->cost[at - 1] >= cost); /* largest cost first */
}

static void extract(ravel__trading *t, int32_t bin, int32_t place) {
    int32_t at = t->start[bin] + place, last = t->start[bin] + --t->rows[bin];
    RAVEL_ASSERT(at <= last);
    t->size[bin] -= t->slot[at];
    t->sum[bin] -= t->cost[at];
    for (; at < last; at++) {
        t->item[at] = t->item[at + 1];
        t->slot[at] = t->slot[at + 1];
        t->cost[at] = t->cost[at + 1];
    }
}

/* ---- loading ------------------------------------------------------------------------------------------------ */

/* The order of a list: largest cost first, ties by sample. */
static int comes_before(const ravel__trading *t, int32_t a, int32_t b) {
    return t->cost[a] != t->cost[b] ? t->cost[a] > t->cost[b] : t->item[a] < t->item[b];
}

static void swap_places(ravel__trading *t, int32_t a, int32_t b) {
    int32_t item = t->item[a];
    uint32_t slot = t->slot[a];
    int64_t cost = t->cost[a];
    t->item[a] = t->item[b];
    t->slot[a] = t->slot[b];
    t->cost[a] = t->cost[b];
    t->item[b] = item;
    t->slot[b] = slot;
    t->cost[b] = cost;
}

/* A heap whose top comes last; `at` moves down to its level. */
static void sink(ravel__trading *t, int32_t first, int32_t rows, int32_t at) {
    for (int32_t child = 2 * at + 1; child < rows; child = 2 * at + 1) {
        if (child + 1 < rows && comes_before(t, first + child, first + child + 1)) child++;
        if (!comes_before(t, first + at, first + child)) return;
        swap_places(t, first + at, first + child);
        at = child;
    }
}

/* Heap sort: in place, and never quadratic. Costs that follow the slots are in order already. */
static void sort_list(ravel__trading *t, int32_t bin) {
    int32_t first = t->start[bin], rows = t->rows[bin], sorted = 1;
    while (sorted < rows && comes_before(t, first + sorted - 1, first + sorted)) sorted++;
    if (sorted >= rows) return;
    for (int32_t at = rows / 2; at-- > 0;) sink(t, first, rows, at);
    for (int32_t left = rows; --left > 0;) {
        swap_places(t, first, first + left);
        sink(t, first, left, 0);
    }
}

void ravel__trade_load(ravel__trading *t, const ravel__pool *pool, int32_t bin, const int32_t *items, int32_t rows) {
    int32_t first = t->start[bin];
    t->start[bin + 1] = first + rows + RAVEL__TRADE_ROOM;
    t->rows[bin] = rows;
    t->size[bin] = 0;
    t->sum[bin] = 0;
    for (int32_t i = 0; i < rows; i++) {
        t->item[first + i] = items[i];
        t->slot[first + i] = pool->slot[items[i]];
        t->cost[first + i] = pool->cost[items[i]];
        t->size[bin] += pool->slot[items[i]];
        t->sum[bin] += pool->cost[items[i]];
    }
    sort_list(t, bin);
    for (int32_t i = 1; i < rows; i++) RAVEL_ASSERT(t->cost[first + i - 1] >= t->cost[first + i]);
}

/* ---- finding a trade ---------------------------------------------------------------------------------------- */

/* One bin's side, as the search sees it. */
typedef struct side {
    const int64_t *cost;
    const uint32_t *slot;
    int32_t rows;
    int32_t free; /* samples that it may gain */
    int64_t room; /* slots that it may gain */
} side;

enum { TRIES = 1024 };

typedef struct search {
    side x, y;
    int64_t want, best; /* distance of the best trade from want */
    int64_t enough;     /* a distance that is near enough */
    int32_t tries;      /* left: a bound on the work that long lists can make */
    ravel__trade *trade;
} search;

static side look(const ravel__trading *t, int32_t bin) {
    side s = {t->cost + t->start[bin], t->slot + t->start[bin], t->rows[bin], 0, t->cap - t->size[bin]};
    int64_t places = t->start[bin + 1] - t->start[bin], most = t->most < places ? t->most : places;
    s.free = (int32_t)(most - s.rows);
    return s;
}

/* Considers x giving `cost` and `slots` net to y. */
static inline int consider(search *s, int64_t cost, int64_t slots) {
    int64_t off = cost > s->want ? cost - s->want : s->want - cost;
    if (off >= s->best || slots > s->y.room || -slots > s->x.room) return 0;
    RAVEL_ASSERT(slots <= s->y.room && -slots <= s->x.room);
    s->best = off;
    s->trade->moved = cost;
    return 1;
}

static void note(ravel__trade *t, int32_t g0, int32_t g1, int32_t t0, int32_t t1) {
    t->give[0] = g0;
    t->give[1] = g1;
    t->take[0] = t0;
    t->take[1] = t1;
    t->gives = (g0 >= 0) + (g1 >= 0);
    t->takes = (t0 >= 0) + (t1 >= 0);
}

static void one_for_none(search *s) {
    if (s->y.free < 1) return;
    for (int32_t i = 0; i < s->x.rows; i++) {
        if (s->x.cost[i] >= s->want + s->best) continue;
        if (s->x.cost[i] <= s->want - s->best) break;
        if (consider(s, s->x.cost[i], s->x.slot[i])) note(s->trade, i, -1, -1, -1);
    }
}

/* Both lists are largest cost first, so the window of y's samples that would move about `want` slides down with x's.
 * `give` and `take`: what goes along (a second sample, or nothing). */
static void one_for_one(search *s, int32_t x_from, int32_t y_from, int64_t more, int64_t more_slots, int32_t x_with,
                        int32_t y_with) {
    int32_t low = y_from;
    for (int32_t i = x_from; i < s->x.rows && s->tries-- > 0; i++) {
        int64_t give = s->x.cost[i] + more;
        while (low < s->y.rows && give - s->y.cost[low] <= s->want - s->best) low++;
        for (int32_t j = low; j < s->y.rows; j++) {
            int64_t moved = give - s->y.cost[j];
            if (moved >= s->want + s->best || --s->tries < 0) break;
            if (consider(s, moved, (int64_t)s->x.slot[i] - s->y.slot[j] + more_slots)) {
                if (x_with >= 0)
                    note(s->trade, x_with, i, j, -1);
                else if (y_with >= 0)
                    note(s->trade, i, -1, y_with, j);
                else
                    note(s->trade, i, -1, j, -1);
                s->trade->moved = moved;
            }
        }
    }
}

static void two_for_one(search *s) {
    if (s->y.free < 1) return;
    for (int32_t k = 0; k + 1 < s->x.rows && s->tries-- > 0 && s->best > s->enough; k++)
        one_for_one(s, k + 1, 0, s->x.cost[k], s->x.slot[k], k, -1);
}

static void one_for_two(search *s) {
    if (s->x.free < 1) return;
    for (int32_t l = 0; l + 1 < s->y.rows && s->tries-- > 0 && s->best > s->enough; l++)
        one_for_one(s, 0, l + 1, -s->y.cost[l], -(int64_t)s->y.slot[l], -1, l);
}

static void two_for_two(search *s) {
    for (int32_t k = 0; k + 1 < s->x.rows && s->best > s->enough; k++)
        for (int32_t l = 0; l + 1 < s->y.rows && s->tries-- > 0 && s->best > s->enough; l++) {
            int64_t more = s->x.cost[k] - s->y.cost[l], slots = (int64_t)s->x.slot[k] - s->y.slot[l];
            int64_t before = s->best;
            one_for_one(s, k + 1, l + 1, more, slots, k, -1);
            if (s->best < before) note(s->trade, k, s->trade->give[1], l, s->trade->take[0]);
        }
}

int ravel__trade_find(ravel__trading *table, int32_t x, int32_t y, int64_t want, int depth, ravel__trade *trade) {
    RAVEL_ASSERT(x != y && want > 0);
    search s = {look(table, x), look(table, y), want, want, want >> 5, TRIES << (2 * depth), trade};
    trade->gives = 0;
    one_for_none(&s);
    one_for_one(&s, 0, 0, 0, 0, -1, -1);
    if (depth > 1 && s.best > s.enough) two_for_one(&s);
    if (depth > 1 && s.best > s.enough) one_for_two(&s);
    if (depth > 2 && s.best > s.enough) two_for_two(&s);
    RAVEL_ASSERT(!trade->gives || (trade->moved > 0 && trade->moved < 2 * want));
    table->tries_left -= (TRIES << (2 * depth)) - s.tries + s.x.rows + s.y.rows;
    return trade->gives > 0;
}

void ravel__trade_apply(ravel__trading *t, int32_t x, int32_t y, const ravel__trade *trade) {
    struct {
        int32_t item;
        uint32_t slot;
        int64_t cost;
    } gone[2], got[2];
    for (int32_t i = 0; i < trade->gives; i++) {
        int32_t at = t->start[x] + trade->give[i];
        gone[i].item = t->item[at];
        gone[i].slot = t->slot[at];
        gone[i].cost = t->cost[at];
    }
    for (int32_t i = 0; i < trade->takes; i++) {
        int32_t at = t->start[y] + trade->take[i];
        got[i].item = t->item[at];
        got[i].slot = t->slot[at];
        got[i].cost = t->cost[at];
    }
    for (int32_t i = trade->gives; i-- > 0;) extract(t, x, trade->give[i]);
    for (int32_t i = trade->takes; i-- > 0;) extract(t, y, trade->take[i]);
    for (int32_t i = 0; i < trade->gives; i++) insert(t, y, gone[i].item, gone[i].slot, gone[i].cost);
    for (int32_t i = 0; i < trade->takes; i++) insert(t, x, got[i].item, got[i].slot, got[i].cost);
    RAVEL_ASSERT(t->rows[x] <= t->most && t->rows[y] <= t->most);
    RAVEL_ASSERT(t->start[x] + t->rows[x] <= t->start[x + 1] && t->start[y] + t->rows[y] <= t->start[y + 1]);
}

/* ---- balancing out -------------------------------------------------------------------------------------------- */

typedef struct balancing {
    ravel__trading *table;
    int32_t *order; /* bins, largest cost first; ties keep their order */
    int32_t count;
    int depth;
    int64_t enough;
} balancing;

/* Inserts a bin among the first `count`, which are in order. */
static void seat_bin(const balancing *e, int32_t count, int32_t bin) {
    const int64_t *sum = e->table->sum;
    for (; count > 0 && sum[e->order[count - 1]] < sum[bin]; count--) e->order[count] = e->order[count - 1];
    e->order[count] = bin;
    RAVEL_ASSERT(count == 0 || sum[e->order[count - 1]] >= sum[bin]);
}

static void sort_bins(const balancing *e) {
    for (int32_t i = 1; i < e->count; i++) seat_bin(e, i, e->order[i]);
}

/* The first bin and the one at `with` have changed: takes both out and puts each where it belongs. */
static void reseat(const balancing *e, int32_t with) {
    int32_t x = e->order[0], y = e->order[with];
    memmove(e->order, e->order + 1, (size_t)(with - 1) * sizeof *e->order);
    memmove(e->order + with - 1, e->order + with + 1, (size_t)(e->count - with - 1) * sizeof *e->order);
    seat_bin(e, e->count - 2, y);
    seat_bin(e, e->count - 1, x);
}

/* The largest bin trades with the cheapest, the second with the second, and so on. */
static int32_t pair_off(const balancing *e) {
    ravel__trading *t = e->table;
    ravel__trade trade;
    int32_t done = 0;
    for (int32_t i = 0; i < e->count / 2; i++) {
        int32_t x = e->order[i], y = e->order[e->count - 1 - i];
        int64_t want = (t->sum[x] - t->sum[y]) / 2;
        if (want < 1 || t->sum[x] <= e->enough) break;
        if (!ravel__trade_find(t, x, y, want, e->depth > 1 ? 2 : 1, &trade)) continue;
        ravel__trade_apply(t, x, y, &trade);
        done++;
    }
    return done;
}

/* The largest bin alone, against the others, cheapest first, while a better trade is possible. */
static int reduce_largest(const balancing *e, int depth) {
    ravel__trading *t = e->table;
    ravel__trade trade, best;
    int32_t x = e->order[0], with = 0;
    int64_t least = t->sum[x];
    for (int32_t i = e->count - 1; i > 0; i--) {
        int32_t y = e->order[i];
        int64_t want = (t->sum[x] - t->sum[y]) / 2;
        if (t->sum[x] - want >= least || want < 1) break;
        if (!ravel__trade_find(t, x, y, want, depth, &trade)) continue;
        int64_t left = t->sum[x] - trade.moved, right = t->sum[y] + trade.moved, most = left > right ? left : right;
        if (most >= least) continue;
        least = most;
        best = trade;
        with = i;
    }
    if (!with) return 0;
    int64_t before = t->sum[x] + t->sum[e->order[with]];
    ravel__trade_apply(t, x, e->order[with], &best);
    RAVEL_ASSERT(t->sum[x] + t->sum[e->order[with]] == before && t->sum[x] <= least);
    (void)before;
    reseat(e, with);
    return 1;
}

void ravel__trade_balance(ravel__trading *t, int32_t first, int32_t count, ravel__trade_limits limits, int32_t *order) {
    balancing e = {t, order, count, limits.depth, 0};
    int64_t total = 0;
    for (int32_t b = 0; b < count; b++) {
        total += t->sum[first + b];
        order[b] = first + b;
    }
    e.enough = total / count + (total / count >> limits.fine);
    for (int32_t round = 0; round < limits.rounds; round++) {
        sort_bins(&e);
        if (t->sum[order[0]] <= e.enough || t->tries_left < 0 || !pair_off(&e)) break;
    }
    sort_bins(&e);
    int depth = 1; /* deeper only when nothing simpler helps */
    for (int64_t round = 0; round < (int64_t)limits.cuts * count / 4 && depth <= limits.depth;) {
        if (t->sum[order[0]] <= e.enough || t->tries_left < 0) break;
        if (reduce_largest(&e, depth))
            round++;
        else
            depth++;
    }
}
