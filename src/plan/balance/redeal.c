#include "plan/balance/balance.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

enum { DEAL = 64 }; /* cost of dealing a sample again, in trades examined */

typedef struct redeal {
    const ravel__job *job;
    ravel__trade_limits limits;
    int64_t tries_left;
    int32_t steps, dp;
    int32_t *seat;
    int32_t *head, *next; /* samples of a micro-step, linked */
    int32_t *count;       /* of a micro-step */
    int64_t *time, *idle; /* of a micro-step: its largest bin, and that less the mean */
    int64_t *sums;        /* scratch: costs of the bins of one micro-step */
} redeal;

static ravel_status no_memory(const redeal *s, size_t bytes) {
    return ravel__no_memory(s->job->err, bytes, "settling micro-steps");
}

static void clock_step(redeal *s, int32_t step) {
    int64_t most = 0, sum = 0;
    memset(s->sums, 0, (size_t)s->dp * sizeof *s->sums);
    for (int32_t i = s->head[step]; i >= 0; i = s->next[i]) s->sums[s->seat[i] % s->dp] += s->job->pool->cost[i];
    for (int32_t r = 0; r < s->dp; r++) {
        sum += s->sums[r];
        if (s->sums[r] > most) most = s->sums[r];
    }
    RAVEL_ASSERT(most <= sum && most >= sum / s->dp);
    s->time[step] = most;
    s->idle[step] = most - sum / s->dp;
}

static void link_all(redeal *s) {
    for (int32_t t = 0; t < s->steps; t++) {
        s->head[t] = -1;
        s->count[t] = 0;
    }
    for (int32_t i = s->job->pool->count; i-- > 0;) {
        int32_t t = s->seat[i] / s->dp;
        RAVEL_ASSERT(s->seat[i] >= 0 && t < s->steps);
        s->next[i] = s->head[t];
        s->head[t] = i;
        s->count[t]++;
    }
    for (int32_t t = 0; t < s->steps; t++) clock_step(s, t);
}

/* ---- one pair ----------------------------------------------------------------------------------------------- */

typedef struct pair {
    ravel__pool pool;
    int32_t *from; /* pool index in the job's pool */
    int32_t *bin, *spare;
    uint32_t *key, *spare_key;
} pair;

/* The samples of both micro-steps, longest first: their indices in order. */
static ravel_status gather(const redeal *s, int32_t a, int32_t b, pair *p) {
    ravel__arena *arena = s->job->arena;
    size_t n = (size_t)s->count[a] + (size_t)s->count[b];
    memset(p, 0, sizeof *p);
    p->pool.slot = ravel__arena_push(arena, n, 4);
    p->pool.cost = ravel__arena_push(arena, n, 8);
    p->from = ravel__arena_push(arena, n, 4);
    p->bin = ravel__arena_push(arena, n, 4);
    if (!p->pool.slot || !p->pool.cost || !p->from || !p->bin) return no_memory(s, n * 20);
    int32_t i = s->head[a], j = s->head[b], at = 0; /* both lists are in order of index */
    while (i >= 0 || j >= 0) {
        int32_t *least = i >= 0 && (j < 0 || i < j) ? &i : &j;
        p->from[at] = *least;
        p->pool.slot[at] = s->job->pool->slot[*least];
        p->pool.cost[at++] = s->job->pool->cost[*least];
        *least = s->next[*least];
    }
    RAVEL_ASSERT((size_t)at == n);
    p->pool.count = at;
    return RAVEL_OK;
}

static int64_t largest_sum(const ravel__trading *t, int32_t first, int32_t count) {
    int64_t most = 0;
    for (int32_t b = first; b < first + count; b++)
        if (t->sum[b] > most) most = t->sum[b];
    return most;
}

/* Writes the table's bins back as micro-steps a and b. */
static void relink(redeal *s, int32_t a, int32_t b, const pair *p, const ravel__trading *t) {
    RAVEL_ASSERT(a != b && t->bins == 2 * s->dp);
    for (int32_t bin = 0; bin < t->bins; bin++) {
        int32_t step = bin < s->dp ? a : b;
        for (int32_t i = 0; i < t->rows[bin]; i++)
            s->seat[p->from[t->item[t->start[bin] + i]]] = step * s->dp + bin % s->dp;
    }
    s->head[a] = s->head[b] = -1;
    s->count[a] = s->count[b] = 0;
    for (int32_t i = p->pool.count; i-- > 0;) {
        int32_t sample = p->from[i], step = s->seat[sample] / s->dp;
        s->next[sample] = s->head[step];
        s->head[step] = sample;
        s->count[step]++;
    }
    RAVEL_ASSERT(s->count[a] + s->count[b] == p->pool.count);
    clock_step(s, a);
    clock_step(s, b);
}

static ravel_status balance_pair(redeal *s, const ravel__job *job, const pair *p, ravel__trading *table) {
    int32_t bins = 2 * s->dp;
    ravel__lists lists;
    int32_t *order = ravel__arena_push(job->arena, (size_t)bins, sizeof *order);
    if (!order) return no_memory(s, (size_t)bins * sizeof *order);
    ravel_status status = ravel__lists_make(job, p->bin, bins, bins, &lists);
    if (!status) status = ravel__lists_order(job, &lists, order);
    if (!status) status = ravel__trade_make(job, bins, p->pool.count, table);
    if (status) return status;
    for (int32_t b = 0; b < bins; b++)
        ravel__trade_load(table, job->pool, b, lists.items + lists.start[order[b]], lists.bin[order[b]].rows);
    table->tries_left = s->tries_left;
    ravel__trade_balance(table, 0, s->dp, s->limits, order);
    ravel__trade_balance(table, s->dp, s->dp, s->limits, order);
    s->tries_left = table->tries_left;
    return RAVEL_OK;
}

static ravel_status deal_again(redeal *s, int32_t a, int32_t b, int by_slots) {
    ravel__job job = *s->job;
    pair p;
    ravel__trading table;
    int32_t over = 0;
    ravel_status status = gather(s, a, b, &p);
    if (status) return status;
    job.pool = &p.pool;
    s->tries_left -= (int64_t)p.pool.count * DEAL;
    status = ravel__spread(&job, 2 * s->dp, by_slots, p.bin, &over);
    if (!status && over && over < INT32_MAX) {
        ravel__lists lists;
        status = ravel__lists_make(&job, p.bin, 2 * s->dp, 2 * s->dp, &lists);
        if (!status) status = ravel__repair(&job, &lists, 3, 32, &over);
        if (!status) ravel__lists_bins(&lists, p.bin);
    }
    if (status || over) return status;
    memset(&table, 0, sizeof table);
    status = balance_pair(s, &job, &p, &table);
    if (!status && largest_sum(&table, 0, s->dp) + largest_sum(&table, s->dp, s->dp) < s->time[a] + s->time[b])
        relink(s, a, b, &p, &table);
    return status;
}

/* ---- all pairs ---------------------------------------------------------------------------------------------- */

/* Micro-steps by idle time, most first. */
static void order_steps(const redeal *s, uint64_t *key, int32_t *order, uint64_t *spare, int32_t *spare_order) {
    for (int32_t t = 0; t < s->steps; t++) {
        key[t] = ~(uint64_t)s->idle[t];
        order[t] = t;
    }
    ravel__sort_u64(key, order, spare, spare_order, (size_t)s->steps);
}

static int worth(const redeal *s, int32_t a, int32_t b) {
    return s->idle[a] + s->idle[b] > (s->time[a] + s->time[b]) >> 16;
}

/* Rounds over the micro-steps with most idle time, each with another partner. */
static ravel_status run(redeal *s, uint64_t *key, int32_t *order, uint64_t *spare, int32_t *spare_order) {
    ravel_status status = RAVEL_OK;
    for (int32_t round = 1; !status && round < s->steps && s->tries_left > 0; round++) {
        int32_t tried = 0;
        order_steps(s, key, order, spare, spare_order);
        for (int32_t i = 0; !status && i < s->steps && s->tries_left > 0; i++) {
            int32_t a = order[i], b = order[(i + round) % s->steps];
            if (!worth(s, a, b)) continue;
            ravel__mark mark = ravel__arena_mark(s->job->arena);
            status = deal_again(s, a, b, round & 1 ? 0 : 1);
            ravel__arena_rewind(s->job->arena, mark);
            tried++;
        }
        if (!tried) break;
    }
    return status;
}

ravel_status ravel__redeal(const ravel__job *job, int64_t steps, ravel__trade_limits limits, int64_t tries,
                           int32_t *seat) {
    if (steps < 2) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__arena *arena = job->arena;
    size_t m = (size_t)steps, n = (size_t)job->pool->count;
    redeal s = {job, limits, tries, (int32_t)steps, job->dp, seat, NULL, NULL, NULL, NULL, NULL, NULL};
    s.head = ravel__arena_push(arena, m, 4);
    s.next = ravel__arena_push(arena, n, 4);
    s.count = ravel__arena_push(arena, m, 4);
    s.time = ravel__arena_push(arena, m, 8);
    s.idle = ravel__arena_push(arena, m, 8);
    s.sums = ravel__arena_push(arena, (size_t)job->dp, 8);
    uint64_t *key = ravel__arena_push(arena, m, 8), *spare = ravel__arena_push(arena, m, 8);
    int32_t *order = ravel__arena_push(arena, m, 4), *spare_order = ravel__arena_push(arena, m, 4);
    ravel_status status = RAVEL_OK;
    if (!s.head || !s.next || !s.count || !s.time || !s.idle || !s.sums || !key || !spare || !order || !spare_order)
        status = no_memory(&s, n * 4 + m * 48);
    if (!status) {
        link_all(&s);
        status = run(&s, key, order, spare, spare_order);
    }
    ravel__arena_rewind(arena, mark);
    return status;
}
