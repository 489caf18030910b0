/* One update of prefix trees: from samples in tree order to a seat (micro-step, rank) for each. */
#include "plan/tree/bins.h"

#include "base/assert.h"

#include <string.h>

static ravel_status memory_of(const ravel__tree_job *job) {
    return ravel__arena_status(job->arena, "planning trees", job->err);
}

/* ---- methods by name -------------------------------------------------------------------------------------------- */

/* A method that knows no trees makes its bins as if nothing were shared. They hold less than they could. */
static ravel_status solve_flat(const ravel__tree_job *job, int32_t method, int32_t *seat, ravel__solution *solution) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__pool pool;
    size_t n = (size_t)job->count;
    int32_t *local =
        ravel__arena_push(job->arena, (size_t)job->input->count, sizeof *local); /* only rows are written */
    int32_t *own = ravel__arena_push(job->arena, n, sizeof *own);
    if (!local || !own) return memory_of(job);
    ravel_status status = ravel__pool_make(job->rules, job->input, job->rows, job->count, job->arena, &pool, job->err);
    if (status) return status;
    ravel__job flat = ravel__job_for(job->rules, job->input, &pool, job->arena, job->err);
    flat.method = method;
    flat.ranks = job->ranks;
    status = ravel__solve(&flat, own, solution);
    for (int32_t i = 0; i < job->count; i++) local[job->rows[i]] = i;
    for (int32_t i = 0; !status && i < job->count; i++) seat[local[pool.row[i]]] = own[i];
    ravel__arena_rewind(job->arena, mark);
    return status;
}

/* ---- candidates ------------------------------------------------------------------------------------------------- */

/* What an effort buys. Candidates are balanced a little, so that they can be compared, and the best one thoroughly. */
typedef struct effort {
    int64_t work;   /* weighings of all candidates, and as many again for the best */
    int32_t tries;  /* limits that a packing tries */
    int32_t rounds; /* exchanges per micro-step and pass, of the best */
    int32_t quick;  /* ... of a candidate */
    int32_t more;   /* micro-steps beyond the fewest */
    int32_t wider;  /* limits above the least one are tried too */
} effort;

static const effort efforts[] = {
    [RAVEL_EFFORT_FAST] = {20000, 3, 8, 2, 0, 0},
    [RAVEL_EFFORT_DEFAULT] = {200000, 8, 64, 8, 2, 1},
    [RAVEL_EFFORT_MAX] = {20000000, 12, 400, 64, 4, 1},
};

typedef struct search {
    const ravel__tree_job *job;
    const ravel__forest *f;
    const ravel__tree_bound *bound;
    const effort *effort;
    ravel__yard yard;
    int32_t dp;
    int64_t longest, total;
    int32_t *best;       /* [leaves] bins */
    int64_t steps, time; /* of the best; 0 steps: none yet */
    int32_t fewest;      /* bins of any packing */
} search;

static int is_better(const search *s, int64_t steps, int64_t time) {
    const ravel__rules *rules = s->f->rules;
    if (!s->steps) return 1;
    if (rules->by_time) return time + steps * rules->overhead < s->time + s->steps * rules->overhead;
    return steps < s->steps || (steps == s->steps && time < s->time);
}

/* Ranks meet in every micro-step, or only at the end. */
static int64_t balance(ravel__yard *y, const ravel__rules *rules, int32_t dp, int32_t rounds) {
    return rules->options.sync == RAVEL_SYNC_MICRO_STEP || y->bins == dp || dp == 1
               ? ravel__tree_balance(y, dp, rounds)
               : ravel__tree_balance_ranks(y, dp, rounds);
}

/* Balances what is in the yard, and keeps it if it is the best. */
static void offer(search *s, int32_t rounds) {
    ravel__yard *y = &s->yard;
    if (ravel__yard_failed(y)) return;
    if (y->bins < s->fewest) s->fewest = y->bins;
    int64_t steps = ravel__steps_for(s->f->rules, y->bins, s->dp);
    while (y->bins < steps * s->dp && ravel__yard_open(y)) {}
    int64_t time = balance(y, s->f->rules, s->dp, rounds);
    if (ravel__yard_failed(y) || !is_better(s, steps, time)) return;
    s->steps = steps;
    s->time = time;
    ravel__yard_store(y, s->best);
}

static int good_enough(const search *s) {
    return s->steps && s->steps <= s->bound->steps && s->time <= s->bound->time + (s->bound->time >> 10);
}

/* Into `bins` bins of at most `limit`; 1 if they hold it. */
static int pack(search *s, int64_t limit, int32_t bins, int rests) {
    ravel__tree_pack(&s->yard, limit, rests);
    while (s->yard.bins > bins)
        if (!ravel__tree_dissolve(&s->yard, limit)) return 0;
    return !ravel__yard_failed(&s->yard);
}

enum { LIMITS = 12 }; /* limits that are tried until one is enough */

/* The least limit at which it packs. */
static void pack_steps(search *s, int64_t steps, int rests) {
    int32_t bins = (int32_t)(steps * s->dp), tries = 0;
    int64_t low = s->bound->time / steps;
    if (low < s->longest) low = s->longest;
    int64_t high = s->dp == 1 ? RAVEL__NO_LIMIT : low + low / 64;
    int ok = pack(s, high, bins, rests);
    for (; s->dp > 1 && tries < LIMITS && !ok; tries++) {
        low = high;
        high += (high >> 5) << tries / 2;
        ok = pack(s, high, bins, rests);
    }
    if (!ok) return;
    int packed = 1;
    for (tries = 0; s->dp > 1 && tries < s->effort->tries && high - low > low >> 9 && s->yard.work > 0; tries++) {
        int64_t mid = low + (high - low) / 2;
        packed = pack(s, mid, bins, rests);
        if (packed)
            high = mid;
        else
            low = mid;
    }
    if (packed || pack(s, high, bins, rests)) offer(s, s->effort->quick);
    for (int64_t more = high >> 5; more < high && s->dp > 1 && s->effort->wider && s->yard.work > 0; more *= 2)
        if (pack(s, high + more, bins, rests)) offer(s, s->effort->quick); /* where the cap decides, not the time */
}

/* The order, cut into runs of the least largest cost. */
static void cut_steps(search *s, int64_t steps, int32_t *bin) {
    int32_t bins = (int32_t)(steps * s->dp);
    int64_t low = s->longest, high = 2 * s->total + low;
    if (s->dp == 1) low = high;
    if (ravel__tree_cut(s->f, high, bins, NULL) > bins) return;
    while (high - low > low >> 12) {
        int64_t mid = low + (high - low) / 2;
        if (ravel__tree_cut(s->f, mid, bins, NULL) <= bins)
            high = mid;
        else
            low = mid + 1;
    }
    int32_t made = ravel__tree_cut(s->f, high, bins, bin);
    ravel__yard_load(&s->yard, bin, made);
    offer(s, s->effort->quick);
}

/* How few bins hold it all; returns how many do where nothing is cut that fits one. Both are candidates on one rank; on
 * more the first is, so that there always is one. */
static int32_t pack_few(search *s, int rests) {
    ravel__tree_pack(&s->yard, RAVEL__NO_LIMIT, rests);
    int32_t whole = s->yard.bins;
    if (!s->fewest || whole < s->fewest) s->fewest = whole;
    if (s->dp == 1 && s->f->rules->by_time) offer(s, 0);
    while (s->yard.bins > s->bound->bins && s->yard.work > 0 && ravel__tree_dissolve(&s->yard, RAVEL__NO_LIMIT)) {}
    offer(s, 0);
    return whole;
}

static void try_steps(search *s, int64_t steps, int64_t most, int32_t *bin) {
    const ravel__rules *rules = s->f->rules;
    for (int64_t m = steps; m <= most && !good_enough(s); m += rules->options.multiple) {
        if (m > steps && ((m - 1) * s->dp >= s->f->count || !rules->by_time)) break;
        s->yard.work = s->effort->work / 4; /* the first numbers of micro-steps are the best ones in most cases */
        pack_steps(s, m, 1);
        if (s->yard.work > 0 && !good_enough(s)) pack_steps(s, m, 0);
        if (!good_enough(s) || !s->steps) cut_steps(s, m, bin);
    }
}

/* Where next to nothing is shared, the plan without sharing is a candidate. */
static ravel_status try_flat(search *s, int32_t *bin) {
    const ravel__tree_job *job = s->job;
    int64_t flat = 0;
    for (int32_t i = 0; i < job->count; i++) flat += ravel__sample_cost(job->rules, job->input, job->rows[i]);
    if (flat - s->total > s->total / 16) return RAVEL_OK;
    ravel__solution solution = {0, 0};
    int32_t *seat = ravel__arena_push(job->arena, (size_t)job->count, sizeof *seat);
    if (!seat) return memory_of(job);
    ravel_status status = solve_flat(job, RAVEL_METHOD_RAVEL, seat, &solution);
    if (status || solution.steps * s->dp > RAVEL__MOST_BINS) return status;
    for (int32_t i = 0; i < job->count; i++) /* the sample that is the leaf, not those that it covers */
        if (ravel__length(job->input, job->rows[i]) == s->f->length[s->f->leaf[i]]) bin[s->f->leaf[i]] = seat[i];
    s->yard.work = s->effort->work / 4;
    ravel__yard_load(&s->yard, bin, (int32_t)(solution.steps * s->dp));
    offer(s, s->effort->quick);
    return RAVEL_OK;
}

static void try_all(search *s, int32_t *bin) {
    const ravel__rules *rules = s->f->rules;
    int32_t whole = pack_few(s, 1), cut = ravel__tree_cut(s->f, INT64_MAX, INT32_MAX - 1, NULL);
    if (s->dp == 1 && s->effort->more && !good_enough(s)) (void)pack_few(s, 0);
    if (cut < s->fewest) s->fewest = cut;
    int64_t steps = ravel__steps_for(rules, s->fewest, s->dp);
    int64_t most = ravel__steps_for(rules, whole, s->dp) + (s->dp > 1);
    if (most > steps + s->effort->more) most = steps + s->effort->more;
    if (s->dp == 1) {
        if (!good_enough(s)) cut_steps(s, ravel__steps_for(rules, cut, 1), bin);
        return;
    }
    try_steps(s, steps, most, bin);
    if (!s->steps || good_enough(s)) return;
    s->yard.work = s->effort->work;
    ravel__yard_load(&s->yard, s->best, (int32_t)(s->steps * s->dp));
    offer(s, s->effort->rounds);
}

/* A bin for every rank and micro-step, as far as there are leaves. Ranks that meet at the end of the update are evened
 * out over all bins if there is only one of them. */
static void fill(ravel__yard *y, const ravel__rules *rules, int32_t dp, int32_t *bin, int64_t bins) {
    const effort *e = &efforts[rules->options.effort];
    ravel__yard_load(y, bin, (int32_t)bins);
    if (ravel__yard_failed(y) || !ravel__tree_fill(y, dp)) return;
    y->work = e->work;
    if (dp == 1 && rules->options.sync != RAVEL_SYNC_MICRO_STEP) (void)ravel__tree_balance(y, y->bins, e->rounds);
    (void)balance(y, rules, dp, e->rounds);
    ravel__yard_store(y, bin);
}

ravel_status ravel__tree_fill_rank(const ravel__tree_job *job, int64_t bins, int32_t *bin) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__forest f;
    ravel__yard y = {0};
    ravel_status status =
        ravel__forest_make(job->rules, job->input, job->rows, job->shared, job->count, job->arena, &f, job->err);
    int32_t *leaves = status ? NULL : ravel__arena_push(job->arena, (size_t)f.count, sizeof *leaves);
    if (!status) status = ravel__yard_make(&f, 0, job->arena, &y, job->err);
    for (int32_t i = 0; !status && i < job->count; i++) leaves[f.leaf[i]] = bin[i];
    if (!status) fill(&y, job->rules, 1, leaves, bins);
    for (int32_t i = 0; !status && i < job->count; i++) bin[i] = leaves[f.leaf[i]];
    if (!status) status = ravel__yard_status(&y, job->err);
    ravel__yard_free(&y);
    ravel__arena_rewind(job->arena, mark);
    return status;
}

static ravel_status solve_trees(const ravel__tree_job *job, search *s) {
    size_t n = (size_t)s->f->count;
    int32_t *bin = ravel__arena_push(job->arena, n, sizeof *bin);
    s->best = ravel__arena_push(job->arena, n, sizeof *s->best);
    ravel_status status = ravel__yard_make(s->f, s->effort->work, job->arena, &s->yard, job->err);
    if (status) return status;
    for (int32_t i = 0; i < s->f->count; i++) {
        s->total += s->f->cost[i] - s->f->twice[i];
        if (s->f->cost[i] > s->longest) s->longest = s->f->cost[i];
    }
    status = try_flat(s, bin);
    if (status) return status;
    try_all(s, bin);
    if (s->steps) fill(&s->yard, s->f->rules, s->dp, s->best, s->steps * s->dp);
    return ravel__yard_status(&s->yard, job->err);
}

static ravel_status solve_forest(const ravel__tree_job *job, const ravel__forest *f, const ravel__tree_bound *bound,
                                 int32_t *seat, ravel__solution *solution) {
    const ravel_plan_options *o = &job->rules->options;
    search s = {.job = job, .f = f, .bound = bound, .effort = &efforts[o->effort], .dp = o->dp};
    ravel_status status = solve_trees(job, &s);
    ravel__yard_free(&s.yard);
    *solution = (ravel__solution){s.steps, s.fewest};
    for (int32_t i = 0; !status && i < job->count; i++) seat[i] = s.best[f->leaf[i]];
    return status;
}

/* ---- front ------------------------------------------------------------------------------------------------------ */

ravel_status ravel__tree_solve(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution,
                               ravel__tree_bound *bound) {
    const ravel__rules *rules = job->rules;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__forest forest;
    ravel_status status =
        ravel__forest_make(rules, job->input, job->rows, job->shared, job->count, job->arena, &forest, job->err);
    if (!status) status = ravel__forest_bound(&forest, rules->options.dp, job->arena, bound, job->err);
    if (status) return status;
    int flat = rules->options.method != RAVEL_METHOD_RAVEL || !job->count;
    int named = flat || rules->options.tree_method != RAVEL_TREE_RAVEL;
    int on_ranks = rules->options.group_rule == RAVEL_GROUPS_RANK && rules->options.dp > 1;
    if (flat)
        status = solve_flat(job, rules->options.method, seat, solution);
    else if (rules->options.tree_method != RAVEL_TREE_RAVEL)
        status = ravel__tree_solve_named(job, &forest, seat, solution);
    else if (on_ranks)
        status = ravel__tree_solve_ranks(job, seat, solution);
    else
        status = solve_forest(job, &forest, bound, seat, solution);
    if (!status && !named && solution->steps * rules->options.dp <= RAVEL__MOST_BINS)
        status = ravel__tree_place(job, solution->steps, seat);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
