#include "plan/balance/balance.h"

#include "base/assert.h"
#include "base/heap.h"
#include "base/sort.h"

#include <string.h>

/* ---- levels ------------------------------------------------------------------------------------------------- */

typedef struct level {
    int64_t missing; /* level - weight of the bin */
    int64_t room;    /* units left, negative if overfull */
    int64_t rows;
} level;

typedef struct spread {
    const ravel__job *job;
    const int32_t *order; /* samples by weight, heaviest first; NULL: as in the pool */
    int by_slots;
    int32_t bins;
    level *bin;
    ravel__heap open, shut; /* by what is missing; by room */
} spread;

static int32_t nth(const spread *s, int32_t i) {
    RAVEL_ASSERT(i >= 0 && i < s->job->pool->count);
    return s->order ? s->order[i] : i;
}

static int64_t weight(const spread *s, int32_t sample) {
    RAVEL_ASSERT(sample >= 0 && sample < s->job->pool->count);
    return s->by_slots ? (int64_t)s->job->pool->slot[sample] : s->job->pool->cost[sample];
}

/* The heaviest sample that a micro-step must hold if the heavier ones fill the steps before it. */
static int64_t dominant(const spread *s, int64_t step) {
    RAVEL_ASSERT(step >= 0);
    int64_t first = step * s->job->dp;
    return first < s->job->pool->count ? weight(s, nth(s, (int32_t)first)) : 0;
}

/* The common level: the total less the first micro-steps' levels (their dominant samples), divided by the remaining
 * bins. */
static int64_t common_level(const spread *s) {
    int64_t total = 0, steps = s->bins / s->job->dp;
    for (int32_t i = 0; i < s->job->pool->count; i++) total += weight(s, i);
    for (int64_t step = 0; step < steps; step++) {
        int64_t each = total / (s->job->dp * (steps - step)) + 1, here = dominant(s, step);
        if (here <= each || total <= 0) return each;
        if (__builtin_mul_overflow(here, (int64_t)s->job->dp, &here)) return 1;
        total -= here;
    }
    return 1;
}

/* Empty bins at their levels, fullest level first, which is a heap as it is. */
static void set_levels(spread *s) {
    int64_t common = common_level(s);
    for (int32_t b = 0; b < s->bins; b++) {
        int64_t here = dominant(s, b / s->job->dp);
        s->bin[b] = (level){here > common ? here : common, s->job->rules->cap, 0};
        s->open.at[b] = (ravel__node){s->bin[b].missing, b};
    }
    s->open.count = s->bins;
}

/* ---- dealing ------------------------------------------------------------------------------------------------ */

static void put(const spread *s, int32_t bin, int32_t sample) {
    RAVEL_ASSERT(bin >= 0 && bin < s->bins);
    level *b = &s->bin[bin];
    b->missing -= weight(s, sample);
    b->room -= s->job->pool->slot[sample];
    b->rows++;
}

/* Puts the sample into the heap's first bin and returns that. */
static int32_t give(spread *s, ravel__heap *from, int32_t sample) {
    RAVEL_ASSERT(from->count > 0);
    int32_t bin = from->at[0].id;
    const level *b = &s->bin[bin];
    put(s, bin, sample);
    if (b->rows >= s->job->rules->most) return ravel__heap_pop(from);
    from->at[0].key = from == &s->open ? b->missing : b->room;
    ravel__heap_sink(from);
    return bin;
}

/* Where all levels are the same, the first samples have a bin each: the lightest of them leaves the most missing, so in
 * reverse the bins are a heap again. Returns how many samples that were. */
static int32_t deal_first(spread *s, int32_t *bin) {
    int32_t count = s->bins;
    if (count > s->job->pool->count || s->job->rules->most < 2 || s->bin[0].missing != s->bin[count - 1].missing)
        return 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t sample = nth(s, i);
        bin[sample] = i;
        put(s, i, sample);
        s->open.at[count - 1 - i] = (ravel__node){s->bin[i].missing, i};
    }
    return count;
}

static int deal(spread *s, int32_t *bin) {
    for (int32_t i = deal_first(s, bin); i < s->job->pool->count; i++) {
        int32_t sample = nth(s, i);
        int64_t slot = s->job->pool->slot[sample];
        while (s->shut.count && s->shut.at[0].key >= slot) {
            int32_t back = ravel__heap_pop(&s->shut);
            ravel__heap_push(&s->open, s->bin[back].missing, back);
        }
        while (s->open.count && s->bin[s->open.at[0].id].room < slot) {
            int32_t full = ravel__heap_pop(&s->open);
            ravel__heap_push(&s->shut, s->bin[full].room, full);
        }
        ravel__heap *from = s->open.count ? &s->open : &s->shut;
        if (!from->count) return 0;
        bin[sample] = give(s, from, sample);
        RAVEL_ASSERT(s->bin[bin[sample]].rows <= s->job->rules->most);
    }
    return 1;
}

/* The pool is in order of slots; the caller's own costs may have another one. */
static ravel_status set_order(spread *s) {
    const ravel__pool *pool = s->job->pool;
    if (s->by_slots || ravel__pool_ordered(pool)) return RAVEL_OK;
    int32_t *order = ravel__arena_push(s->job->arena, (size_t)pool->count, sizeof *order);
    if (!order) return ravel__no_memory(s->job->err, (size_t)pool->count * sizeof *order, "spreading samples");
    s->order = order;
    return ravel__pool_order(s->job, order);
}

ravel_status ravel__spread(const ravel__job *job, int32_t bins, int by_slots, int32_t *bin, int32_t *over) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t k = (size_t)bins;
    spread s = {job, NULL, by_slots, bins, NULL, {NULL, 0}, {NULL, 0}};
    ravel_status status = set_order(&s);
    RAVEL__PUSH(job->arena, s.bin, k);
    RAVEL__PUSH(job->arena, s.open.at, k);
    RAVEL__PUSH(job->arena, s.shut.at, k);
    if (!status) status = ravel__arena_status(job->arena, "spreading samples", job->err);
    if (status) {
        ravel__arena_rewind(job->arena, mark);
        return status;
    }
    RAVEL_ASSERT(bins % job->dp == 0);
    set_levels(&s);
    *over = deal(&s, bin) ? 0 : INT32_MAX;
    for (int32_t b = 0; *over < INT32_MAX && b < bins; b++) *over += s.bin[b].room < 0;
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- repairing ------------------------------------------------------------------------------------------------ */

enum { SWAPS = 4096 }; /* looked at between two bins */

typedef struct repair {
    const ravel__job *job;
    const ravel__lists *lists;
    int64_t cap;
} repair;

/* The swap of one sample each that takes most of the excess from x without filling y over its cap. */
static int64_t best_swap(const repair *m, int32_t x, int32_t y, int32_t *x_place, int32_t *y_place) {
    RAVEL_ASSERT(x != y && m->lists->bin[x].size > m->cap);
    const ravel__lists *l = m->lists;
    const uint32_t *slot = m->job->pool->slot;
    const int32_t *xs = l->items + l->start[x], *ys = l->items + l->start[y];
    int64_t excess = l->bin[x].size - m->cap, room = m->cap - l->bin[y].size, best = 0;
    int32_t tries = SWAPS;
    for (int32_t i = 0; i < l->bin[x].rows; i++)
        for (int32_t j = 0; j < l->bin[y].rows && tries-- > 0; j++) {
            int64_t moved = (int64_t)slot[xs[i]] - slot[ys[j]];
            if (moved <= best || moved > room) continue;
            best = moved;
            *x_place = i;
            *y_place = j;
            if (best >= excess) return best;
        }
    return best;
}

static void swap(const repair *m, int32_t x, int32_t y, int32_t x_place, int32_t y_place) {
    const ravel__lists *l = m->lists;
    int32_t *p = &l->items[l->start[x] + x_place], *q = &l->items[l->start[y] + y_place], sample = *p;
    int64_t slots = (int64_t)m->job->pool->slot[*p] - m->job->pool->slot[*q];
    int64_t cost = m->job->pool->cost[*p] - m->job->pool->cost[*q];
    RAVEL_ASSERT(x != y && slots > 0 && l->bin[y].size + slots <= m->cap);
    l->bin[x].size -= slots;
    l->bin[y].size += slots;
    l->bin[x].cost -= cost;
    l->bin[y].cost += cost;
    *p = *q;
    *q = sample;
}

/* Whether too many of the bins seen so far stay overfull for the rest to be worth trying: all must be repaired. */
static int give_up(int32_t seen, int32_t left, int32_t passes) {
    if (seen == 16) return left > 12;
    if (passes > 3) return 0;
    return (seen == 64 && left > 32) || (seen == 256 && left > 96);
}

/* One pass over the overfull bins, fullest first, each against some roomy ones. */
static int32_t repair_pass(const repair *m, const int32_t *order, int32_t passes, int32_t partners) {
    RAVEL_ASSERT(m->lists->bins >= 1 && partners >= 0);
    const ravel__lists *l = m->lists;
    int32_t left = 0, from = 0, seen = 0;
    for (int32_t q = l->bins - 1; q >= 0 && l->bin[order[q]].size > m->cap; q--) {
        int32_t x = order[q], i, j;
        for (int32_t c = 0; c < partners && c < l->bins && l->bin[x].size > m->cap; c++) {
            int32_t y = order[(from + c) % l->bins];
            if (y == x || l->bin[y].size >= m->cap) continue;
            if (best_swap(m, x, y, &i, &j) > 0) swap(m, x, y, i, j);
        }
        left += l->bin[x].size > m->cap;
        from = (from + 7) % l->bins;
        if (give_up(++seen, left, passes)) return INT32_MAX;
    }
    return left;
}

ravel_status ravel__repair(const ravel__job *job, const ravel__lists *lists, int32_t passes, int32_t partners,
                           int32_t *over) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t k = (size_t)lists->bins;
    repair m = {job, lists, job->rules->cap};
    uint64_t *key = ravel__arena_push(job->arena, k, 8), *spare = ravel__arena_push(job->arena, k, 8);
    int32_t *order = ravel__arena_push(job->arena, k, 4), *spare_order = ravel__arena_push(job->arena, k, 4);
    if (!key || !spare || !order || !spare_order) {
        ravel__arena_rewind(job->arena, mark);
        return ravel__no_memory(job->err, k * 24, "repairing bins");
    }
    for (int32_t pass = 0; pass < passes && *over && *over < INT32_MAX; pass++) {
        for (int32_t b = 0; b < lists->bins; b++) {
            key[b] = (uint64_t)lists->bin[b].size;
            order[b] = b;
        }
        ravel__sort_u64(key, order, spare, spare_order, k);
        *over = repair_pass(&m, order, passes, partners);
    }
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}
