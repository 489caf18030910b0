/* Taking micro-steps from the waiting samples.
 *
 *     choose   the oldest samples whose slots fill a whole number of micro-steps; or, when a deadline has come, those
 *              that must go and the oldest beside them; or all of them (flush)
 *     plan     as a batch of its own, by the main solver
 *     judge    too many micro-steps and too much idle time: fewer samples, a few times; then wait for more
 *     emit     what was chosen leaves the waiting rows */
#include "plan/arrivals.h"
#include "plan/hybrid/hybrid.h"
#include "plan/tree/tree.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

/* PATIENCE: waiting slots, in micro-steps, from which emptier micro-steps are taken too. */
enum { SHRINKS = 4, PATIENCE = 3 };

typedef struct taking {
    ravel_planner *planner;
    ravel__arena *arena;
    ravel_error *err;
    int32_t *rows; /* chosen, ascending */
    int64_t count;
    int64_t want; /* micro-steps */
    int32_t flush, forced;
} taking;

static ravel_status no_memory(const taking *t, size_t bytes) {
    return ravel__no_memory(t->err, bytes, "taking micro-steps");
}

static int bound_to_ranks(const ravel_planner *p) {
    return p->options.group_rule == RAVEL_GROUPS_RANK && p->options.dp > 1;
}

/* ---- choosing ----------------------------------------------------------------------------------------------- */

static int must_go(const ravel_planner *p, int64_t row) {
    RAVEL_ASSERT(row >= 0 && row < p->waiting.count);
    const ravel__waiting *w = &p->waiting;
    return w->deadlines[row] <= p->now || (p->own.max_stale >= 0 && p->version - w->versions[row] >= p->own.max_stale);
}

static int any_must_go(const ravel_planner *p) {
    if (!p->waiting.count) return 0;
    return p->next_deadline <= p->now || (p->own.max_stale >= 0 && p->version - p->oldest_version >= p->own.max_stale);
}

/* Units that a bin is aimed at: half-way between the least fill and full. */
static int64_t aim(const ravel_planner *p) {
    RAVEL_ASSERT(p->own.fill > 0 && p->own.fill <= 1);
    int64_t units = (int64_t)((p->own.fill + 1) / 2 * (double)p->cap);
    return units > 0 ? units : 1;
}

/* Whole micro-steps that the waiting samples fill. */
static int64_t ready_steps(const ravel_planner *p) {
    if (p->volume < p->wait_for) return 0;
    if (!bound_to_ranks(p)) return p->volume / (aim(p) * p->options.dp);
    int64_t least = INT64_MAX;
    for (int32_t r = 0; r < p->options.dp; r++)
        if (p->rank_volume[r] / aim(p) < least) least = p->rank_volume[r] / aim(p);
    return least;
}

/* The oldest samples of at most `units` in all, or per rank where groups are bound to ranks; with those that must go,
 * and those that fit no bin. */
static ravel_status choose(taking *t, int64_t units) {
    const ravel_planner *p = t->planner;
    const ravel__waiting *w = &p->waiting;
    size_t ranks = bound_to_ranks(p) ? (size_t)p->options.dp : 1;
    ravel__mark mark = ravel__arena_mark(t->arena);
    int64_t *left = ravel__arena_push(t->arena, ranks, sizeof *left);
    if (!left) return no_memory(t, ranks * sizeof *left);
    for (size_t r = 0; r < ranks; r++) left[r] = units;
    t->count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t *here = &left[ranks > 1 ? w->ranks[i] : 0];
        int go = t->flush || !w->slots[i] || (t->forced && must_go(p, i));
        if (!go && w->slots[i] > *here) continue;
        RAVEL_ASSERT(t->count <= i); /* ascending */
        *here -= w->slots[i];
        t->rows[t->count++] = (int32_t)i;
    }
    ravel__arena_rewind(t->arena, mark);
    return RAVEL_OK;
}

/* ---- planning ----------------------------------------------------------------------------------------------- */

static ravel_status gather(const taking *t, ravel__waiting *w) {
    RAVEL_ASSERT(t->count >= 0 && t->count <= t->planner->waiting.count);
    const ravel__waiting *all = &t->planner->waiting;
    size_t n = (size_t)t->count;
    memset(w, 0, sizeof *w);
    w->count = t->count;
#define X(type, name)                                       \
    w->name = ravel__arena_push(t->arena, n, sizeof(type)); \
    if (!w->name) return no_memory(t, n * sizeof(type));    \
    for (size_t i = 0; i < n; i++) w->name[i] = all->name[t->rows[i]];
    RAVEL__WAITING_LIST(X)
#undef X
    ravel__waiting_share(all, t->rows, t->count, w->shared);
    return RAVEL_OK;
}

/* The multiple and the minimum are the update's, so they hold for the flush alone. */
static ravel_plan_options alone(const ravel_plan_options *options) {
    ravel_plan_options o = *options;
    o.multiple = 1;
    o.min_micro_steps = 0;
    return o;
}

/* Ranks that meet at the end of the update: the rank with the most cost so far takes the least of this plan. */
static ravel_status level_ranks(const taking *t, const ravel__job *job, int32_t *seat) {
    int32_t dp = job->dp;
    size_t n = (size_t)dp;
    uint64_t *key = ravel__arena_push(t->arena, n, 8), *spare = ravel__arena_push(t->arena, n, 8);
    int32_t *before = ravel__arena_push(t->arena, n, 4), *after = ravel__arena_push(t->arena, n, 4);
    int32_t *spare_ranks = ravel__arena_push(t->arena, n, 4), *to = ravel__arena_push(t->arena, n, 4);
    if (!key || !spare || !before || !after || !spare_ranks || !to) return no_memory(t, n * 32);
    int shift = 0;
    for (int32_t r = 0; r < dp; r++)
        while (t->planner->total[r] >> shift > UINT64_MAX / 2) shift++;
    for (int32_t r = 0; r < dp; r++) {
        before[r] = after[r] = r;
        key[r] = (uint64_t)(t->planner->total[r] >> shift);
    }
    ravel__sort_u64(key, before, spare, spare_ranks, n);
    memset(key, 0, n * sizeof *key);
    for (int32_t i = 0; i < job->pool->count; i++) key[seat[i] % dp] += (uint64_t)job->pool->cost[i];
    for (int32_t r = 0; r < dp; r++) key[r] = ~key[r];
    ravel__sort_u64(key, after, spare, spare_ranks, n);
    for (int32_t r = 0; r < dp; r++) to[after[r]] = before[r];
    for (int32_t i = 0; i < job->pool->count; i++) seat[i] = seat[i] / dp * dp + to[seat[i] % dp];
    return RAVEL_OK;
}

/* A taken plan is checked as a plan of its own. */
static ravel__rules rules_alone(const ravel__rules *rules) {
    ravel__rules own = *rules;
    own.options = alone(&rules->options);
    own.steps_done = 0;
    return own;
}

static ravel_status solve_bins(const taking *t, const ravel__rules *rules, const ravel_plan_input *input,
                               const ravel__waiting *w, const ravel__deal *deal, ravel__draft *draft) {
    ravel__pool pool;
    ravel__solution solution = {0, 0};
    int32_t *seat = ravel__arena_push(t->arena, (size_t)rules->placed, sizeof *seat);
    ravel_status status = seat ? RAVEL_OK : no_memory(t, (size_t)rules->placed * sizeof *seat);
    if (!status) status = ravel__pool_make(rules, input, deal->rows, rules->placed, t->arena, &pool, t->err);
    if (status) return status;
    ravel__job job = ravel__job_for(rules, input, &pool, t->arena, t->err);
    if (bound_to_ranks(t->planner)) job.ranks = w->ranks;
    if (pool.count || t->flush) status = ravel__solve(&job, seat, &solution);
    if (!status && rules->options.sync != RAVEL_SYNC_MICRO_STEP && !job.ranks && !input->homes)
        status = level_ranks(t, &job, seat);
    ravel__rules own = rules_alone(rules);
    ravel__bounds_add(&own, &pool, job.bound, &draft->bounds);
    for (int32_t i = 0; !status && i < pool.count; i++) {
        RAVEL_ASSERT(seat[i] >= 0 && seat[i] < solution.steps * job.dp);
        RAVEL_ASSERT(pool.row[i] >= 0 && pool.row[i] < input->count);
        draft->where[pool.row[i]] = seat[i];
    }
    draft->offsets[1] = solution.steps;
    draft->bounds.bins_packed = solution.bins_packed;
    return status;
}

/* Prefix trees. */
static ravel_status solve_trees(const taking *t, const ravel__rules *rules, const ravel_plan_input *input,
                                const ravel__waiting *w, const ravel__deal *deal, ravel__draft *draft) {
    ravel__solution solution = {0, 0};
    ravel__tree_bound bound = {0};
    ravel__tree_job job = {.rules = rules,
                           .input = input,
                           .rows = deal->rows,
                           .shared = deal->shared,
                           .count = rules->placed,
                           .ranks = bound_to_ranks(t->planner) ? w->ranks : NULL,
                           .arena = t->arena,
                           .err = t->err};
    int32_t *seat = ravel__arena_push(t->arena, (size_t)rules->placed, sizeof *seat);
    if (!seat) return no_memory(t, (size_t)rules->placed * sizeof *seat);
    ravel_status status = job.count || t->flush ? ravel__tree_solve(&job, seat, &solution, &bound) : RAVEL_OK;
    if (!status && rules->options.sync != RAVEL_SYNC_MICRO_STEP && !job.ranks && !input->homes) {
        ravel__pool pool;
        status = ravel__tree_pool(&job, seat, solution.steps * rules->options.dp, &pool);
        ravel__job level = {.pool = &pool, .dp = rules->options.dp};
        if (!status) status = level_ranks(t, &level, seat);
    }
    ravel__rules own = rules_alone(rules);
    ravel__tree_bound_add(&own, &bound, &draft->bounds);
    for (int32_t i = 0; !status && i < job.count; i++) draft->where[job.rows[i]] = seat[i];
    draft->offsets[1] = solution.steps;
    draft->bounds.bins_packed = solution.bins_packed;
    return status;
}

/* Groups of a pool: hybrid context parallelism. Fillers bring a flush to the multiple and the minimum. */
static ravel_status solve_groups(const taking *t, const ravel__rules *rules, const ravel_plan_input *input,
                                 const ravel__deal *deal, ravel__draft *draft) {
    ravel__rules own = rules_alone(rules);
    int64_t steps = 0, pool = rules->widths.pool;
    draft->width = ravel__arena_push(t->arena, (size_t)input->count, sizeof *draft->width);
    if (!draft->width) return no_memory(t, (size_t)input->count);
    ravel_status status =
        rules->trees ? ravel__hybrid_trees(&own, input, deal->rows, deal->shared, rules->placed, 0, t->arena, draft,
                                           &steps, t->err)
                     : ravel__hybrid_update(&own, input, deal->rows, rules->placed, 0, t->arena, draft, &steps, t->err);
    if (!rules->placed) steps = 0;
    if (rules->placed || t->flush) draft->offsets[1] = ravel__steps_for(rules, steps * pool, rules->widths.pool);
    RAVEL_ASSERT(status || draft->offsets[1] >= steps);
    return status;
}

static ravel_status solve(const taking *t, const ravel__rules *rules, const ravel_plan_input *input,
                          const ravel__waiting *w, ravel__draft *draft) {
    ravel__deal deal;
    ravel_status status = ravel__deal_make(rules, input, t->arena, &deal, t->err);
    if (!status)
        status = rules->widths.count ? solve_groups(t, rules, input, &deal, draft)
                 : rules->trees      ? solve_trees(t, rules, input, w, &deal, draft)
                                     : solve_bins(t, rules, input, w, &deal, draft);
    if (!status && draft->offsets[1] * rules->options.dp > RAVEL__MOST_BINS)
        return ravel_error_set(t->err, RAVEL_E_OVERFLOW, "a plan has at most 2^30 bins");
    return status;
}

/* A plan of the chosen rows; NULL if it would have no micro-steps and nothing to list. */
static ravel_status plan_rows(const taking *t, ravel_plan **plan) {
    ravel__waiting w;
    ravel__draft draft;
    int64_t offsets[2] = {0, 0};
    memset(&draft, 0, sizeof draft);
    *plan = NULL;
    ravel_status status = gather(t, &w);
    if (status) return status;
    ravel_plan_options options = t->flush ? t->planner->options : alone(&t->planner->options);
    ravel_plan_input input = ravel__waiting_input(t->planner, &w), own;
    ravel__rules rules;
    status = ravel__rules_make(&input, &options, &rules, &own, t->err);
    draft.where = ravel__arena_push(t->arena, (size_t)w.count, sizeof *draft.where);
    if (!draft.where) return no_memory(t, (size_t)w.count * sizeof *draft.where);
    if (status) return status;
    memset(draft.where, 0xff, (size_t)w.count * sizeof *draft.where);
    rules.steps_done = t->flush ? t->planner->steps : 0;
    draft.updates = 1;
    draft.offsets = offsets;
    draft.ids = w.ids;
    status = solve(t, &rules, &own, &w, &draft);
    if (status || (!offsets[1] && !(t->flush && rules.skipped))) return status;
    rules.options = alone(&rules.options);
    rules.steps_done = 0;
    return ravel__emit(&rules, &own, &draft, t->arena, plan, t->err);
}

/* ---- judging ------------------------------------------------------------------------------------------------- */

/* Full enough, or well balanced though emptier. */
static int is_good(const taking *t, const ravel_plan *plan) {
    RAVEL_ASSERT(plan->bins >= 1);
    const ravel_planner *p = t->planner;
    const ravel_plan_stats *s = &plan->stats;
    double idle = p->options.sync == RAVEL_SYNC_MICRO_STEP ? s->idle_micro_step : s->idle_update;
    double fill = (double)s->padded_tokens / ((double)p->cap * p->options.align * (double)plan->bins);
    return (s->micro_steps <= t->want && fill >= p->own.fill) || idle <= p->own.idle;
}

static ravel_status take_ready(taking *t, ravel_plan **plan) {
    RAVEL_ASSERT(!t->flush && t->want >= 1);
    ravel_planner *p = t->planner;
    int64_t step = aim(p) * (bound_to_ranks(p) ? 1 : p->options.dp), units = t->want * step;
    *plan = NULL;
    for (int32_t i = 0; i <= SHRINKS; i++) {
        ravel_status status = choose(t, units);
        if (!status && t->count) status = plan_rows(t, plan);
        if (status) return status;
        if (*plan && (t->forced || is_good(t, *plan) || p->volume >= PATIENCE * p->cap * p->options.dp))
            return RAVEL_OK;
        ravel_plan_free(*plan);
        *plan = NULL;
        units -= step / 16 + 1;
    }
    p->wait_for = p->volume + step / 4 + 1;
    return RAVEL_OK;
}

/* ---- finishing ------------------------------------------------------------------------------------------------ */

static int32_t class_of(int64_t length) {
    RAVEL_ASSERT(length >= 1);
    int32_t c = 0;
    for (int64_t limit = 128; c + 1 < RAVEL_WAIT_CLASSES && length > limit; limit *= 4) c++;
    return c;
}

static void add_mean(double *mean, int64_t count, double value) {
    RAVEL_ASSERT(count >= 1);
    *mean += (value - *mean) / (double)count;
}

static void note(ravel_planner *p, int64_t row) {
    const ravel__waiting *w = &p->waiting;
    ravel_planner_report *r = &p->report;
    int32_t c = class_of(w->lengths[row]);
    int64_t waited = p->now - w->arrived[row], stale = p->version - w->versions[row];
    int64_t steps = p->steps_ever - w->arrived_steps[row];
    RAVEL_ASSERT(waited >= 0 && steps >= 0);
    add_mean(&r->wait_mean[c], ++r->count[c], (double)waited);
    add_mean(&r->stale_mean, ++r->samples, (double)stale);
    if (waited > r->wait_max[c]) r->wait_max[c] = waited;
    if (stale > r->stale_max) r->stale_max = stale;
    if (steps > r->steps_max) r->steps_max = steps;
}

/* Removes the chosen samples; the rest moves to the front, in order. */
static void remove_rows(taking *t) {
    ravel__waiting *w = &t->planner->waiting;
    int64_t kept = 0, next = 0, low = 0;
    for (int64_t i = 0; i < w->count; i++) {
        if (w->shared[i] < low) low = w->shared[i];
        if (next < t->count && t->rows[next] == i) {
            next++;
            continue;
        }
        if (low < w->shared[i] && w->slots[i]) w->slots[i] = ravel__waiting_slot(t->planner, w->lengths[i], low);
        w->shared[i] = low;
        low = INT64_MAX;
#define X(type, name) w->name[kept] = w->name[i];
        RAVEL__WAITING_LIST(X)
#undef X
        kept++;
    }
    RAVEL_ASSERT(next == t->count && kept + t->count == w->count);
    w->count = kept;
    ravel__waiting_count(t->planner);
}

static void finish(taking *t, const ravel_plan *plan) {
    RAVEL_ASSERT(plan->dp >= 1 && t->count <= t->planner->waiting.count);
    ravel_planner *p = t->planner;
    for (int64_t i = 0; i < t->count; i++)
        if (p->waiting.slots[t->rows[i]]) note(p, t->rows[i]);
    remove_rows(t);
    p->steps += plan->micro_steps;
    p->steps_ever += plan->micro_steps;
    p->report.micro_steps += plan->micro_steps;
    if (t->forced) p->report.forced += plan->micro_steps;
    for (int64_t b = 0; p->options.group_rule != RAVEL_GROUPS_RANK && b < plan->bins; b++)
        p->total[b % plan->dp] += (ravel__u128)plan->bin_costs[b] << plan->stats.cost_shift;
}

/* A new update: no micro-steps, no totals, groups without ranks. */
static void begin_update(ravel_planner *p) {
    p->steps = 0;
    p->pushed = p->waiting.count > 0;
    p->has_trees = p->has_trees && p->pushed;
    memset(p->total, 0, (size_t)p->options.dp * sizeof *p->total);
    if (p->seats.room) memset(p->seats.rank, 0xff, (size_t)p->seats.room * sizeof *p->seats.rank);
    p->seats.count = 0;
}

/* ---- front ---------------------------------------------------------------------------------------------------- */

static ravel_status take(taking *t, ravel_plan **plan) {
    ravel_planner *p = t->planner;
    t->rows = ravel__arena_push(t->arena, (size_t)p->waiting.count, sizeof *t->rows);
    if (!t->rows) return no_memory(t, (size_t)p->waiting.count * sizeof *t->rows);
    ravel_status status = RAVEL_OK;
    if (t->flush) {
        status = choose(t, 0);
        if (!status) status = plan_rows(t, plan);
    } else {
        if (t->forced && t->want < 1) t->want = 1;
        status = take_ready(t, plan);
    }
    if (status || !*plan) return status ? status : RAVEL_E_END; /* no error: err stays as it was */
    finish(t, *plan);
    return RAVEL_OK;
}

ravel_status ravel_planner_take(ravel_planner *planner, int32_t flush, ravel_plan **plan, ravel_error *err) {
    if (!planner->pushed) return RAVEL_E_END;
    taking t = {.planner = planner, .err = err, .flush = flush, .forced = !flush && any_must_go(planner)};
    t.want = flush ? 0 : ready_steps(planner);
    if (!flush && !t.want && !t.forced) return RAVEL_E_END;
    ravel__arena arena;
    ravel__arena_init(&arena, planner->options.allocator, 4096);
    t.arena = &arena;
    ravel_plan *made = NULL;
    ravel_status status = take(&t, &made);
    ravel__arena_free(&arena);
    if (flush && (status == RAVEL_OK || status == RAVEL_E_END)) begin_update(planner);
    if (status == RAVEL_OK) *plan = made;
    return status;
}

void ravel_planner_get_report(const ravel_planner *planner, ravel_planner_report *report) {
    size_t size = report->size && report->size < sizeof *report ? report->size : sizeof *report;
    ravel_planner_report own = planner->report;
    own.size = report->size;
    memcpy(report, &own, size);
}
