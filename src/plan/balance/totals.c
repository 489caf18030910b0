#include "plan/balance/balance.h"

#include "base/assert.h"
#include "base/heap.h"

#include <string.h>

typedef struct totals {
    ravel__trading *table;
    int32_t dp, steps;
    int32_t *rank_bins; /* [dp][steps] bins, largest cost first */
    int32_t *dealt;     /* bins on each rank */
    int64_t *total;     /* by rank */
    int32_t *order;     /* ranks, largest cost first */
    ravel__node *open;
    ravel__trade_limits limits;
} totals;

static int32_t *bins_of(const totals *t, int32_t rank) {
    return t->rank_bins + (size_t)rank * (size_t)t->steps;
}

/* ---- dealing bins ------------------------------------------------------------------------------------------- */

static void deal(totals *t) {
    ravel__heap open = {t->open, 0}; /* ranks with a micro-step left, by -total */
    for (int32_t r = 0; r < t->dp; r++) {
        ravel__heap_push(&open, 0, r);
        t->dealt[r] = 0;
        t->total[r] = 0;
    }
    for (int32_t bin = 0; bin < t->table->bins; bin++) {
        int32_t rank = ravel__heap_pop(&open);
        bins_of(t, rank)[t->dealt[rank]++] = bin;
        t->total[rank] += t->table->sum[bin];
        if (t->dealt[rank] < t->steps) ravel__heap_push(&open, -t->total[rank], rank);
    }
    for (int32_t r = 0; r < t->dp; r++) RAVEL_ASSERT(t->dealt[r] == t->steps);
}

/* ---- improving ---------------------------------------------------------------------------------------------- */

/* The best known way to move cost from rank x to rank y. */
typedef struct step {
    int64_t off, moved;
    int32_t x_place, y_place; /* in the ranks' bins */
    int whole;                /* the bins themselves change ranks */
    ravel__trade trade;
} step;

/* A rank's bins are largest cost first, so the window of bins that would move about `want` slides down. */
static void find_swap(const totals *t, int32_t x, int32_t y, int64_t want, step *best) {
    const int64_t *sum = t->table->sum;
    const int32_t *xs = bins_of(t, x), *ys = bins_of(t, y);
    int32_t low = 0;
    for (int32_t i = 0; i < t->steps; i++) {
        while (low < t->steps && sum[xs[i]] - sum[ys[low]] <= want - best->off) low++;
        for (int32_t j = low; j < t->steps; j++) {
            int64_t moved = sum[xs[i]] - sum[ys[j]], off = moved > want ? moved - want : want - moved;
            if (moved >= want + best->off) break;
            *best = (step){off, moved, i, j, 1, {{0, 0}, {0, 0}, 0, 0, 0}};
        }
    }
}

/* Bins that stand alike in both ranks' bins, largest cost first, until a trade is near enough. */
static void find_trade(const totals *t, int32_t x, int32_t y, int64_t want, step *best) {
    int32_t pairs = t->limits.cuts < t->steps ? t->limits.cuts : t->steps;
    ravel__trade trade;
    for (int32_t i = 0; i < pairs && best->off > want >> 6; i++) {
        int32_t place = (int32_t)((int64_t)i * t->steps / pairs);
        if (!ravel__trade_find(t->table, bins_of(t, x)[place], bins_of(t, y)[place], want, t->limits.depth, &trade))
            continue;
        int64_t off = trade.moved > want ? trade.moved - want : want - trade.moved;
        if (off < best->off) *best = (step){off, trade.moved, place, place, 0, trade};
    }
}

/* Puts rank_bins[place], whose sum has changed, where it belongs. */
static void redeal(const totals *t, int32_t rank, int32_t place) {
    int32_t *rank_bins = bins_of(t, rank), bin = rank_bins[place];
    const int64_t *sum = t->table->sum;
    for (; place > 0 && sum[rank_bins[place - 1]] < sum[bin]; place--) rank_bins[place] = rank_bins[place - 1];
    for (; place + 1 < t->steps && sum[rank_bins[place + 1]] > sum[bin]; place++)
        rank_bins[place] = rank_bins[place + 1];
    rank_bins[place] = bin;
    RAVEL_ASSERT(place == 0 || sum[rank_bins[place - 1]] >= sum[bin]);
    RAVEL_ASSERT(place + 1 == t->steps || sum[rank_bins[place + 1]] <= sum[bin]);
}

static void take(totals *t, int32_t x, int32_t y, const step *s) {
    int32_t *p = &bins_of(t, x)[s->x_place], *q = &bins_of(t, y)[s->y_place], bin = *p;
    if (s->whole) {
        *p = *q;
        *q = bin;
    } else {
        ravel__trade_apply(t->table, *p, *q, &s->trade);
    }
    RAVEL_ASSERT(s->moved > 0 && t->total[y] + s->moved < t->total[x]); /* the larger of the two shrinks */
    t->total[x] -= s->moved;
    t->total[y] += s->moved;
    redeal(t, x, s->x_place);
    redeal(t, y, s->y_place);
}

/* ---- ranks in order ----------------------------------------------------------------------------------------- */

/* Inserts a rank among the first `count`, which are in order, largest cost first; behind its equals. */
static void seat_rank(const totals *t, int32_t count, int32_t rank) {
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (t->total[t->order[middle]] < t->total[rank])
            high = middle;
        else
            low = middle + 1;
    }
    memmove(t->order + low + 1, t->order + low, (size_t)(count - low) * sizeof *t->order);
    t->order[low] = rank;
    RAVEL_ASSERT(low == 0 || t->total[t->order[low - 1]] >= t->total[rank]);
    RAVEL_ASSERT(low == count || t->total[t->order[low + 1]] <= t->total[rank]);
}

/* The first rank and the one at `with` have changed: takes both out and puts each where it belongs. */
static void reseat(const totals *t, int32_t with) {
    int32_t x = t->order[0], y = t->order[with];
    memmove(t->order, t->order + 1, (size_t)(with - 1) * sizeof *t->order);
    memmove(t->order + with - 1, t->order + with + 1, (size_t)(t->dp - with - 1) * sizeof *t->order);
    seat_rank(t, t->dp - 2, y);
    seat_rank(t, t->dp - 1, x);
}

/* The largest rank trades with the cheapest rank that makes it smaller; returns 0 when there is none. */
static int reduce_largest(totals *t) {
    int32_t x = t->order[0];
    for (int32_t i = t->dp - 1; i > 0; i--) {
        int32_t y = t->order[i];
        int64_t want = (t->total[x] - t->total[y]) / 2;
        if (want < 1) return 0;
        step best = {want, 0, 0, 0, 0, {{0, 0}, {0, 0}, 0, 0, 0}};
        find_swap(t, x, y, want, &best);
        if (best.off > want >> 4) find_trade(t, x, y, want, &best);
        if (best.off == want) continue;
        take(t, x, y, &best);
        reseat(t, i);
        return 1;
    }
    return 0;
}

static void improve(totals *t) {
    int64_t sum = 0;
    for (int32_t r = 0; r < t->dp; r++) {
        sum += t->total[r];
        seat_rank(t, r, r);
    }
    int64_t enough = sum / t->dp + (sum / t->dp >> t->limits.fine);
    for (int64_t round = 0; round < (int64_t)t->limits.rounds * t->dp; round++) {
        if (t->total[t->order[0]] <= enough || t->table->tries_left < 0 || !reduce_largest(t)) return;
    }
}

ravel_status ravel__totals_balance(const ravel__job *job, ravel__trading *table, ravel__trade_limits limits,
                                   int32_t *seat_bin) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t dp = (size_t)job->dp;
    RAVEL_ASSERT(table->bins % job->dp == 0);
    totals t = {table, job->dp, table->bins / job->dp, NULL, NULL, NULL, NULL, NULL, limits};
    RAVEL__PUSH(job->arena, t.rank_bins, (size_t)table->bins);
    RAVEL__PUSH(job->arena, t.dealt, dp);
    RAVEL__PUSH(job->arena, t.total, dp);
    RAVEL__PUSH(job->arena, t.order, dp);
    RAVEL__PUSH(job->arena, t.open, dp);
    ravel_status status = ravel__arena_status(job->arena, "balancing out ranks", job->err);
    if (!status) {
        deal(&t);
        improve(&t);
    }
    for (int32_t r = 0; !status && r < t.dp; r++)
        for (int32_t s = 0; s < t.steps; s++) seat_bin[(size_t)s * dp + (size_t)r] = bins_of(&t, r)[s];
    ravel__arena_rewind(job->arena, mark);
    return status;
}
