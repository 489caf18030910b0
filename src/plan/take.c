/* Taking micro-steps from what waits. */
#include "plan/arrivals.h"

#include "plan/balance/trade.h"

#include <string.h>

typedef struct taking {
    ravel_planner *planner;
    ravel__arena *arena;
    ravel_error *err;
    ravel__rules rules; /* for all that waits */
    ravel_plan_input input;
    ravel__pool pool;
    int32_t *seat; /* by pool index; -1: goes on waiting */
    int64_t steps, packed;
    int64_t *total; /* the ranks' costs after this; NULL: as before */
} taking;

static ravel_status no_memory(const taking *t, size_t bytes) {
    return ravel__no_memory(t->err, bytes, "taking micro-steps");
}

static ravel__job job_for(const taking *t) {
    ravel__job job = ravel__job_for(&t->rules, &t->input, &t->pool, t->arena, t->err);
    if (t->rules.options.group_rule == RAVEL_GROUPS_RANK) job.ranks = t->planner->waiting.ranks;
    return job;
}

/* All that waits and fits, as a pool. */
static ravel_status make_pool(taking *t) {
    size_t n = (size_t)t->rules.placed;
    int32_t *rows = ravel__arena_push(t->arena, n, sizeof *rows), placed = 0;
    t->seat = ravel__arena_push(t->arena, n, sizeof *t->seat);
    if (!rows || !t->seat) return no_memory(t, n * 8);
    for (int64_t i = 0; i < t->input.count; i++)
        if (!t->rules.skipped || !ravel__is_oversize(&t->rules, &t->input, i)) rows[placed++] = (int32_t)i;
    return ravel__pool_make(&t->rules, &t->input, rows, placed, t->arena, &t->pool, t->err);
}

/* ---- full bins ---------------------------------------------------------------------------------------------- */

/* Packs some of the pool and numbers the bins that are full enough from 0, largest cost first; samples of others get -1. */
static ravel_status pack_full(const taking *t, const ravel__job *job, int32_t *bin, int32_t *full) {
    int32_t bins, *order, *number;
    ravel__lists lists;
    ravel_status status = ravel__pack_bfd(job, bin, &bins);
    if (!status) status = ravel__lists_make(job, bin, bins, bins, &lists);
    order = ravel__arena_push(job->arena, (size_t)bins, sizeof *order);
    number = ravel__arena_push(job->arena, (size_t)bins, sizeof *number);
    if (!status && (!order || !number)) status = no_memory(t, (size_t)bins * 8);
    if (!status) status = ravel__lists_order(job, &lists, order);
    *full = 0;
    for (int32_t i = 0; !status && i < bins; i++) {
        const ravel__bin *b = &lists.bin[order[i]];
        number[order[i]] = b->size >= t->planner->full || b->rows >= t->rules.most ? (*full)++ : -1;
    }
    for (int32_t i = 0; !status && i < job->pool->count; i++) bin[i] = number[bin[i]];
    return status;
}

/* Balances a micro-step by trades, and takes that back where a bin is no longer full enough. */
static void balance_step(const taking *t, ravel__trading *table, const ravel__lists *lists, int32_t first,
                         int32_t *scratch) {
    int32_t dp = t->rules.options.dp, good = 1;
    for (int32_t r = 0; r < dp; r++)
        ravel__trade_load(table, &t->pool, r, lists->items + lists->start[first + r], lists->bin[first + r].rows);
    ravel__trade_balance(table, 0, dp, (ravel__trade_limits){4, 8, 1, 16}, scratch);
    for (int32_t r = 0; r < dp; r++)
        good = good && (table->size[r] >= t->planner->full || table->rows[r] >= t->rules.most);
    for (int32_t r = 0; good && r < dp; r++)
        for (int32_t i = 0; i < table->rows[r]; i++) t->seat[table->item[table->start[r] + i]] = first + r;
}

static ravel_status balance_steps(const taking *t, const ravel__job *job) {
    int32_t bins = (int32_t)(t->steps * job->dp), longest = 0;
    int32_t *scratch = ravel__arena_push(t->arena, (size_t)job->dp, sizeof *scratch);
    int32_t *bin = ravel__arena_push(t->arena, (size_t)t->pool.count, sizeof *bin);
    ravel__lists lists;
    ravel__trading table;
    if (!scratch || !bin) return no_memory(t, (size_t)t->pool.count * sizeof *bin);
    for (int32_t i = 0; i < t->pool.count; i++) bin[i] = t->seat[i] < 0 ? bins : t->seat[i]; /* the rest: one more */
    ravel_status status = ravel__lists_make(job, bin, bins + 1, bins + 1, &lists);
    for (int32_t b = 0; !status && b < bins; b += job->dp) {
        int32_t rows = 0;
        for (int32_t r = 0; r < job->dp; r++) rows += lists.bin[b + r].rows;
        if (rows > longest) longest = rows;
    }
    if (!status) status = ravel__trade_make(job, job->dp, longest, &table);
    for (int32_t b = 0; !status && b < bins; b += job->dp) balance_step(t, &table, &lists, b, scratch);
    return status;
}

/* Ranks that meet at the end of the update: the largest bin of a micro-step goes to the rank with the least so far. */
static ravel_status deal_ranks(taking *t, const ravel__job *job) {
    int32_t dp = job->dp, bins = (int32_t)(t->steps * dp);
    int64_t *cost = ravel__arena_push(t->arena, (size_t)bins, sizeof *cost);
    int64_t *total = ravel__arena_push(t->arena, (size_t)dp, sizeof *total);
    int32_t *to = ravel__arena_push(t->arena, (size_t)bins, sizeof *to);
    uint8_t *taken = ravel__arena_push(t->arena, (size_t)dp, 1);
    if (!cost || !total || !to || !taken) return no_memory(t, (size_t)bins * 12);
    memcpy(total, t->planner->total, (size_t)dp * sizeof *total);
    memset(cost, 0, (size_t)bins * sizeof *cost);
    for (int32_t i = 0; i < t->pool.count; i++)
        if (t->seat[i] >= 0) cost[t->seat[i]] += t->pool.cost[i];
    for (int32_t first = 0; first < bins; first += dp) {
        memset(taken, 0, (size_t)dp);
        for (int32_t b = first; b < first + dp; b++) { /* largest cost first already */
            int32_t best = -1;
            for (int32_t r = 0; r < dp; r++)
                if (!taken[r] && (best < 0 || total[r] < total[best])) best = r;
            taken[best] = 1;
            total[best] += cost[b] >> 8;
            to[b] = first + best;
        }
    }
    for (int32_t i = 0; i < t->pool.count; i++)
        if (t->seat[i] >= 0) t->seat[i] = to[t->seat[i]];
    t->total = total;
    return RAVEL_OK;
}

static ravel_status take_free(taking *t) {
    ravel__job job = job_for(t);
    int32_t full, dp = job.dp;
    ravel_status status = pack_full(t, &job, t->seat, &full);
    if (status) return status;
    t->steps = full / dp;
    t->packed = t->steps * dp;
    for (int32_t i = 0; i < t->pool.count; i++)
        if (t->seat[i] >= t->steps * dp) t->seat[i] = -1;
    if (!t->steps) return RAVEL_OK;
    if (t->rules.options.sync != RAVEL_SYNC_MICRO_STEP) return deal_ranks(t, &job);
    return t->rules.options.layout == RAVEL_LAYOUT_PACKED ? balance_steps(t, &job) : RAVEL_OK;
}

/* Every rank packs its own groups; as many micro-steps as the rank with the fewest full bins has. */
static ravel_status take_ranks(taking *t) {
    int32_t dp = t->rules.options.dp, *bin = ravel__arena_push(t->arena, (size_t)t->pool.count, sizeof *bin);
    int32_t *from = ravel__arena_push(t->arena, (size_t)t->pool.count, sizeof *from);
    ravel_status status = bin && from ? RAVEL_OK : no_memory(t, (size_t)t->pool.count * 8);
    t->steps = INT64_MAX;
    for (int32_t r = 0; !status && r < dp; r++) {
        ravel__mark mark = ravel__arena_mark(t->arena);
        int32_t full, count = 0;
        for (int32_t i = 0; i < t->pool.count; i++)
            if (t->planner->waiting.ranks[t->pool.row[i]] == r) from[count++] = i;
        int32_t *rows = ravel__arena_push(t->arena, (size_t)count, sizeof *rows);
        if (!rows) return no_memory(t, (size_t)count * sizeof *rows);
        for (int32_t i = 0; i < count; i++) rows[i] = t->pool.row[from[i]];
        ravel__pool pool;
        status = ravel__pool_make(&t->rules, &t->input, rows, count, t->arena, &pool, t->err);
        if (status) return status;
        ravel__job job = ravel__job_for(&t->rules, &t->input, &pool, t->arena, t->err);
        job.dp = 1;
        status = pack_full(t, &job, bin, &full);
        for (int32_t i = 0; !status && i < count; i++) t->seat[from[i]] = bin[i] < 0 ? -1 : bin[i] * dp + r;
        if (!status && full < t->steps) t->steps = full;
        ravel__arena_rewind(t->arena, mark);
    }
    t->packed = t->steps * dp;
    for (int32_t i = 0; !status && i < t->pool.count; i++)
        if (t->seat[i] >= t->steps * dp) t->seat[i] = -1;
    return status;
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

/* The rows that are taken, and those that fit no bin, as an input of their own. */
static ravel_status gather(const taking *t, const int32_t *where, ravel__waiting *w, int32_t *taken_where) {
    const ravel__waiting *all = &t->planner->waiting;
    int64_t count = 0;
    for (int64_t i = 0; i < all->count; i++) count += where[i] != -2;
    size_t n = (size_t)count;
#define X(type, name) w->name = ravel__arena_push(t->arena, n, sizeof(type));
    RAVEL__WAITING_LIST(X)
#undef X
#define X(type, name) || !w->name
    if (0 RAVEL__WAITING_LIST(X)) return no_memory(t, n * 56);
#undef X
    for (int64_t i = 0; i < all->count; i++) {
        if (where[i] == -2) continue;
        taken_where[w->count] = where[i];
#define X(type, name) w->name[w->count] = all->name[i];
        RAVEL__WAITING_LIST(X)
#undef X
        w->count++;
    }
    return RAVEL_OK;
}

/* What was not taken moves to the front, in order. */
static void keep_rest(ravel__waiting *w, const int32_t *where) {
    int64_t kept = 0;
    for (int64_t i = 0; i < w->count; i++) {
        if (where[i] != -2) continue;
#define X(type, name) w->name[kept] = w->name[i];
        RAVEL__WAITING_LIST(X)
#undef X
        kept++;
    }
    w->count = kept;
}

/* The options by which a taken plan can be checked on its own: the multiple and the minimum are the update's. */
static ravel_plan_options alone(const ravel_plan_options *options) {
    ravel_plan_options o = *options;
    o.multiple = 1;
    o.min_micro_steps = 0;
    return o;
}

static ravel_status add_bounds(const taking *t, const ravel__rules *rules, const ravel_plan_input *input,
                               ravel_plan_stats *bounds) {
    ravel__deal deal;
    ravel__pool pool;
    ravel_status status = ravel__deal_make(rules, input, t->arena, &deal, t->err);
    if (!status) status = ravel__pool_make(rules, input, deal.rows, rules->placed, t->arena, &pool, t->err);
    if (!status) ravel__bounds_add(rules, &pool, ravel__bins_bound(rules, &pool), bounds);
    return status;
}

/* `where` by waiting row: its bin, -1: fits none, -2: goes on waiting. */
static ravel_status emit(const taking *t, const int32_t *where, ravel_plan **plan) {
    ravel_planner taken = *t->planner;
    ravel__draft draft;
    int64_t offsets[2] = {0, t->steps};
    memset(&taken.waiting, 0, sizeof taken.waiting);
    memset(&draft, 0, sizeof draft);
    draft.where = ravel__arena_push(t->arena, (size_t)t->planner->waiting.count, sizeof *draft.where);
    if (!draft.where) return no_memory(t, (size_t)t->planner->waiting.count * sizeof *draft.where);
    ravel_status status = gather(t, where, &taken.waiting, draft.where);
    if (status) return status;
    ravel_plan_options options = alone(&t->planner->options);
    ravel_plan_input input = ravel__waiting_input(&taken), own;
    ravel__rules rules;
    status = ravel__rules_make(&input, &options, &rules, &own, t->err);
    if (!status) status = add_bounds(t, &rules, &own, &draft.bounds);
    draft.updates = 1;
    draft.offsets = offsets;
    draft.ids = taken.waiting.ids;
    draft.bounds.bins_packed = t->packed;
    return status ? status : ravel__emit(&rules, &own, &draft, t->arena, plan, t->err);
}

static ravel_status finish(const taking *t, ravel_plan **plan) {
    ravel_planner *p = t->planner;
    int32_t *where = ravel__arena_push(t->arena, (size_t)p->waiting.count, sizeof *where);
    if (!where) return no_memory(t, (size_t)p->waiting.count * sizeof *where);
    memset(where, 0xff, (size_t)p->waiting.count * sizeof *where);
    for (int32_t i = 0; i < t->pool.count; i++) where[t->pool.row[i]] = t->seat[i] < 0 ? -2 : t->seat[i];
    ravel_status status = emit(t, where, plan);
    if (status) return status;
    keep_rest(&p->waiting, where);
    p->steps += t->steps;
    if (t->total) memcpy(p->total, t->total, (size_t)p->options.dp * sizeof *p->total);
    return RAVEL_OK;
}

/* ---- front -------------------------------------------------------------------------------------------------- */

static ravel_status take_some(taking *t) {
    return t->rules.options.group_rule == RAVEL_GROUPS_RANK && t->rules.options.dp > 1 ? take_ranks(t) : take_free(t);
}

static ravel_status take_all(taking *t) {
    ravel__job job = job_for(t);
    ravel__solution solution = {0, 0};
    t->rules.steps_done = t->planner->steps;
    ravel_status status = ravel__solve(&job, t->seat, &solution);
    t->steps = solution.steps;
    t->packed = solution.bins_packed;
    return status;
}

static ravel_status take(taking *t, int32_t flush, ravel_plan **plan) {
    ravel_plan_input input = ravel__waiting_input(t->planner);
    ravel_status status = ravel__rules_make(&input, &t->planner->options, &t->rules, &t->input, t->err);
    if (!status) status = make_pool(t);
    if (!status) status = flush ? take_all(t) : take_some(t);
    if (status) return status;
    if (t->steps * t->rules.options.dp > RAVEL__MOST_BINS)
        return ravel_error_set(t->err, RAVEL_E_OVERFLOW, "a plan has at most 2^30 bins");
    if (t->steps || (flush && t->rules.skipped)) return finish(t, plan); /* the latter only lists what fits no bin */
    return RAVEL_E_END; /* no error: err stays as it was, so that the next call can use it */
}

/* A new update: no micro-steps, no totals, groups without ranks. */
static void begin_update(ravel_planner *p) {
    p->steps = 0;
    p->pushed = p->waiting.count > 0;
    memset(p->total, 0, (size_t)p->options.dp * sizeof *p->total);
    if (p->seats.room) memset(p->seats.rank, 0xff, (size_t)p->seats.room * sizeof *p->seats.rank);
    p->seats.count = 0;
}

ravel_status ravel_planner_take(ravel_planner *planner, int32_t flush, ravel_plan **plan, ravel_error *err) {
    if (!planner->pushed) return RAVEL_E_END;
    ravel__arena arena;
    ravel__arena_init(&arena, planner->options.allocator, 4096);
    taking t;
    memset(&t, 0, sizeof t);
    t.planner = planner;
    t.arena = &arena;
    t.err = err;
    ravel_status status = take(&t, flush, plan);
    ravel__arena_free(&arena);
    if (flush && (status == RAVEL_OK || status == RAVEL_E_END)) begin_update(planner);
    return status;
}
