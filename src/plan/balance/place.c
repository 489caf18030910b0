/* Placement, after the bins are made and timed: the order of micro-steps, and which rank runs which bin.
 *
 * Pipelines: small micro-steps at both ends shorten warm-up and drain, so micro-steps rise to the middle and fall
 * again.
 *
 * Homes: if ranks meet in every micro-step its bins may be permuted freely; that is an assignment problem, dp bins
 * to dp ranks, the gain being the tokens that need not move. It is solved exactly (shortest augmenting paths) if
 * that is cheap, else greedily. If ranks meet only at the end, ranks are relabelled as a whole, and bins of one
 * micro-step change ranks only if no rank's total grows beyond the slowest's. Groups on ranks allow only the
 * relabelling. */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

typedef struct place {
    const ravel__job *job;
    int64_t steps;
    int32_t dp;
    int exact; /* dp is small enough for a table of gains */
    int32_t *seat;
    int32_t *head, *next;       /* samples of a micro-step, linked */
    int32_t *to;                /* [dp] the rank that bin (or rank) i goes to */
    int64_t *gain;              /* [dp][dp] if exact:    tokens that stay if bin (or rank) i goes to rank j */
    uint64_t *key, *spare;      /* [samples] pairs (bin, home), then gains */
    int32_t *item, *spare_item; /* [samples] */
    int64_t *tokens;            /* [samples] of pairs */
    int64_t *u, *v, *least;     /* [dp + 1] the assignment's scratch */
    int32_t *match, *way;
    uint8_t *done;
} place;

static ravel_status memory_of(const ravel__job *job) {
    return ravel__arena_status(job->arena, "placing bins", job->err);
}

static ravel_status cost_bins(const ravel__job *job, const int32_t *seat, int64_t bins, int64_t *cost) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__bin *bin = ravel__arena_push(job->arena, (size_t)bins, sizeof *bin);
    if (!bin) return memory_of(job);
    memset(bin, 0, (size_t)bins * sizeof *bin);
    for (int32_t i = 0; i < job->pool->count; i++) ravel__bin_add(job->rules, job->pool, &bin[seat[i]], i);
    for (int64_t b = 0; b < bins; b++) cost[b] = bin[b].cost;
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- pipelines ---------------------------------------------------------------------------------------------- */

/* Smallest first and last, the next ones inside them, and so on. */
static ravel_status order_steps(const ravel__job *job, int64_t steps, int32_t *seat) {
    size_t m = (size_t)steps;
    int64_t *cost = ravel__arena_push(job->arena, m * (size_t)job->dp, sizeof *cost);
    uint64_t *key = ravel__arena_push(job->arena, m, 8), *spare = ravel__arena_push(job->arena, m, 8);
    int32_t *order = ravel__arena_push(job->arena, m, 4), *to = ravel__arena_push(job->arena, m, 4);
    ravel_status status = memory_of(job);
    if (!status) status = cost_bins(job, seat, steps * job->dp, cost);
    if (status) return status;
    for (int64_t s = 0; s < steps; s++) {
        key[s] = 0;
        order[s] = (int32_t)s;
        for (int32_t r = 0; r < job->dp; r++)
            if ((uint64_t)cost[s * job->dp + r] > key[s]) key[s] = (uint64_t)cost[s * job->dp + r];
    }
    ravel__sort_u64(key, order, spare, to, m);
    for (int64_t i = 0; i < steps; i++) to[order[i]] = (int32_t)(i % 2 ? steps - 1 - i / 2 : i / 2);
    for (int32_t i = 0; i < job->pool->count; i++) seat[i] = to[seat[i] / job->dp] * job->dp + seat[i] % job->dp;
    return RAVEL_OK;
}

/* ---- assignment --------------------------------------------------------------------------------------------- */

/* One row is added after another, along the cheapest augmenting path; u and v are the dual prices (all counted from 1).
 * Costs are -gain. */
static void assign_exactly(place *p) {
    int32_t n = p->dp;
    size_t bytes = (size_t)n + 1;
    memset(p->u, 0, bytes * sizeof *p->u);
    memset(p->v, 0, bytes * sizeof *p->v);
    memset(p->match, 0, bytes * sizeof *p->match);
    for (int32_t row = 1; row <= n; row++) {
        int32_t column = 0;
        p->match[0] = row;
        for (int32_t j = 0; j <= n; j++) p->least[j] = INT64_MAX;
        memset(p->done, 0, bytes);
        do {
            int32_t i = p->match[column], nearest = 0;
            int64_t delta = INT64_MAX;
            p->done[column] = 1;
            for (int32_t j = 1; j <= n; j++) {
                if (p->done[j]) continue;
                int64_t slack = -p->gain[(size_t)(i - 1) * (size_t)n + (size_t)(j - 1)] - p->u[i] - p->v[j];
                if (slack < p->least[j]) {
                    p->least[j] = slack;
                    p->way[j] = column;
                }
                if (p->least[j] < delta) {
                    delta = p->least[j];
                    nearest = j;
                }
            }
            for (int32_t j = 0; j <= n; j++) {
                if (p->done[j]) {
                    p->u[p->match[j]] += delta;
                    p->v[j] -= delta;
                } else {
                    p->least[j] -= delta;
                }
            }
            RAVEL_ASSERT(nearest > 0); /* some column is always left */
            column = nearest;
        } while (p->match[column]);
        for (; column; column = p->way[column]) p->match[column] = p->match[p->way[column]];
    }
    for (int32_t j = 1; j <= n; j++) {
        RAVEL_ASSERT(p->match[j] >= 1 && p->match[j] <= n);
        p->to[p->match[j] - 1] = j - 1;
    }
}

/* The largest gain first; bins without gain go to the remaining ranks, in order. `pairs` entries of key and tokens. */
static void assign_greedily(place *p, int32_t pairs) {
    memset(p->done, 0, (size_t)p->dp);
    for (int32_t i = 0; i < p->dp; i++) p->to[i] = -1;
    for (int32_t i = 0; i < pairs; i++) {
        p->item[i] = i;
        p->spare[i] = ~(uint64_t)p->tokens[i];
    }
    uint64_t *other = p->spare + pairs;
    ravel__sort_u64(p->spare, p->item, other, p->spare_item, (size_t)pairs);
    for (int32_t i = 0; i < pairs; i++) {
        int32_t bin = (int32_t)(p->key[p->item[i]] >> 32), home = (int32_t)(p->key[p->item[i]] & UINT32_MAX);
        RAVEL_ASSERT(bin < p->dp && home < p->dp);
        if (p->to[bin] >= 0 || p->done[home]) continue;
        p->to[bin] = home;
        p->done[home] = 1;
    }
    for (int32_t bin = 0, rank = 0; bin < p->dp; bin++) {
        if (p->to[bin] >= 0) continue;
        while (p->done[rank]) rank++;
        RAVEL_ASSERT(rank < p->dp);
        p->to[bin] = rank;
        p->done[rank] = 1;
    }
}

/* ---- homes -------------------------------------------------------------------------------------------------- */

/* Sorts the `count` samples that were put into key (bin, home) and item, and adds up each pair's tokens. */
static int32_t merge_pairs(place *p, int32_t count) {
    int32_t pairs = 0;
    ravel__sort_u64(p->key, p->item, p->spare, p->spare_item, (size_t)count);
    for (int32_t i = 0; i < count; i++) {
        int64_t length = ravel__length(p->job->input, p->job->pool->row[p->item[i]]);
        if (i && p->key[i] == p->key[pairs - 1]) {
            p->tokens[pairs - 1] += length;
            continue;
        }
        p->key[pairs] = p->key[i];
        p->tokens[pairs++] = length;
    }
    RAVEL_ASSERT(pairs <= count);
    for (int32_t i = 1; i < pairs; i++) RAVEL_ASSERT(p->key[i - 1] < p->key[i]);
    return pairs;
}

static void fill_gains(place *p, int32_t pairs) {
    memset(p->gain, 0, (size_t)p->dp * (size_t)p->dp * sizeof *p->gain);
    for (int32_t i = 0; i < pairs; i++)
        p->gain[(p->key[i] >> 32) * (uint64_t)p->dp + (p->key[i] & UINT32_MAX)] = p->tokens[i];
}

static void assign(place *p, int32_t count) {
    int32_t pairs = merge_pairs(p, count);
    if (p->exact) {
        fill_gains(p, pairs);
        assign_exactly(p);
    } else {
        assign_greedily(p, pairs);
    }
}

static int32_t home_of(const place *p, int32_t sample) {
    return p->job->input->homes[p->job->pool->row[sample]];
}

static void add_pair(place *p, int32_t sample, int32_t *count) {
    int32_t home = home_of(p, sample);
    RAVEL_ASSERT(home < p->dp);
    if (home < 0) return;
    p->key[*count] = (uint64_t)(uint32_t)(p->seat[sample] % p->dp) << 32 | (uint32_t)home;
    p->item[(*count)++] = sample;
}

static void link_steps(place *p) {
    for (int64_t s = 0; s < p->steps; s++) p->head[s] = -1;
    for (int32_t i = p->job->pool->count; i-- > 0;) {
        int32_t step = p->seat[i] / p->dp;
        RAVEL_ASSERT(p->seat[i] >= 0 && step < p->steps);
        p->next[i] = p->head[step];
        p->head[step] = i;
    }
}

/* Every micro-step on its own. */
static void permute_steps(place *p) {
    for (int64_t s = 0; s < p->steps; s++) {
        int32_t count = 0;
        for (int32_t i = p->head[s]; i >= 0; i = p->next[i]) add_pair(p, i, &count);
        if (!count) continue;
        assign(p, count);
        for (int32_t i = p->head[s]; i >= 0; i = p->next[i])
            p->seat[i] = (int32_t)(s * p->dp) + p->to[p->seat[i] % p->dp];
    }
}

/* All micro-steps alike. */
static void relabel_ranks(place *p) {
    int32_t count = 0;
    for (int32_t i = 0; i < p->job->pool->count; i++) add_pair(p, i, &count);
    if (!count) return;
    assign(p, count);
    for (int32_t i = 0; i < p->job->pool->count; i++)
        p->seat[i] = p->seat[i] / p->dp * p->dp + p->to[p->seat[i] % p->dp];
}

/* Two bins of a micro-step change ranks if that keeps more tokens at home and neither rank's total passes `limit`. */
static void swap_in_step(place *p, int64_t step, const int64_t *cost, int64_t *total, int64_t limit) {
    const int64_t *g = p->gain;
    int32_t n = p->dp, *holder = p->match; /* the bin that is on a rank */
    for (int32_t r = 0; r < n; r++) holder[r] = r;
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a + 1; b < n; b++) {
            int32_t x = holder[a], y = holder[b];
            int64_t more = g[x * n + b] + g[y * n + a] - g[x * n + a] - g[y * n + b];
            int64_t change = cost[step * n + y] - cost[step * n + x];
            if (more <= 0 || total[a] + change > limit || total[b] - change > limit) continue;
            total[a] += change;
            total[b] -= change;
            RAVEL_ASSERT(total[a] <= limit && total[b] <= limit); /* the time does not grow */
            holder[a] = y;
            holder[b] = x;
        }
    for (int32_t r = 0; r < n; r++) p->to[holder[r]] = r;
}

static ravel_status swap_within_totals(place *p) {
    int64_t *cost = ravel__arena_push(p->job->arena, (size_t)(p->steps * p->dp), sizeof *cost), limit = 0;
    int64_t *total = ravel__arena_push(p->job->arena, (size_t)p->dp, sizeof *total);
    if (!cost || !total) return memory_of(p->job);
    ravel_status status = cost_bins(p->job, p->seat, p->steps * p->dp, cost);
    if (status) return status;
    memset(total, 0, (size_t)p->dp * sizeof *total);
    for (int64_t b = 0; b < p->steps * p->dp; b++) total[b % p->dp] += cost[b];
    for (int32_t r = 0; r < p->dp; r++)
        if (total[r] > limit) limit = total[r];
    for (int64_t s = 0; s < p->steps; s++) {
        int32_t count = 0;
        for (int32_t i = p->head[s]; i >= 0; i = p->next[i]) add_pair(p, i, &count);
        if (!count) continue;
        fill_gains(p, merge_pairs(p, count));
        swap_in_step(p, s, cost, total, limit);
        for (int32_t i = p->head[s]; i >= 0; i = p->next[i])
            p->seat[i] = (int32_t)(s * p->dp) + p->to[p->seat[i] % p->dp];
    }
    return RAVEL_OK;
}

static ravel_status make_place(const ravel__job *job, int64_t steps, int32_t *seat, place *p) {
    size_t n = (size_t)job->pool->count, dp = (size_t)job->dp;
    ravel__arena *arena = job->arena;
    memset(p, 0, sizeof *p);
    p->job = job;
    p->steps = steps;
    p->dp = job->dp;
    p->seat = seat;
    p->exact = dp <= 128 && (int64_t)(dp * dp * dp) * steps <= job->limits->assignment_work;
    RAVEL__PUSH(arena, p->head, (size_t)steps);
    RAVEL__PUSH(arena, p->next, n);
    RAVEL__PUSH(arena, p->to, dp);
    RAVEL__PUSH(arena, p->gain, p->exact ? dp * dp : 0);
    RAVEL__PUSH(arena, p->key, n);
    RAVEL__PUSH(arena, p->spare, 2 * n);
    RAVEL__PUSH(arena, p->item, n);
    RAVEL__PUSH(arena, p->spare_item, n);
    RAVEL__PUSH(arena, p->tokens, n);
    RAVEL__PUSH(arena, p->u, dp + 1);
    RAVEL__PUSH(arena, p->v, dp + 1);
    RAVEL__PUSH(arena, p->least, dp + 1);
    RAVEL__PUSH(arena, p->match, dp + 1);
    RAVEL__PUSH(arena, p->way, dp + 1);
    RAVEL__PUSH(arena, p->done, dp + 1);
    return memory_of(job);
}

static ravel_status stay_home(const ravel__job *job, int64_t steps, int32_t *seat) {
    place p;
    int bound = job->rules->options.group_rule == RAVEL_GROUPS_RANK;
    ravel_status status = make_place(job, steps, seat, &p);
    if (status) return status;
    if (!bound && job->rules->options.sync == RAVEL_SYNC_MICRO_STEP) {
        link_steps(&p);
        permute_steps(&p);
        return RAVEL_OK;
    }
    relabel_ranks(&p);
    if (bound || !p.exact) return RAVEL_OK;
    link_steps(&p);
    return swap_within_totals(&p);
}

/* ---- front -------------------------------------------------------------------------------------------------- */

ravel_status ravel__place(const ravel__job *job, int64_t steps, int32_t *seat) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status = RAVEL_OK;
    if (job->rules->options.sync == RAVEL_SYNC_PIPELINE && steps > 2) status = order_steps(job, steps, seat);
    if (!status && job->input->homes && job->dp > 1 && !job->ranks) status = stay_home(job, steps, seat);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
