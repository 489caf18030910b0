/* The bubble of a pipeline: the schedule's tables of all stages are run with the costs of the micro-steps.
 *
 *     table of a stage    `warmup` forwards, then one forward and one backward in turn, then the remaining backwards
 *     an operation waits  for the one before it in its stage's table; forward for the same micro-step in the part before
 *                         it; backward for its own forward and for the same micro-step in the part after it
 *
 * Each stage runs as far as it can, then the next one does, until all tables are done: every operation is visited once,
 * and the order of visits does not change when it ends. */
#include "plan/internal.h"

#include "base/assert.h"

#include <string.h>

typedef struct operation {
    int64_t step;
    int32_t chunk;
    int32_t backward;
} operation;

typedef struct pipeline {
    int32_t pp, vpp;
    int64_t count;
    const int64_t *costs; /* costs[i * stride]: of micro-step i */
    int64_t stride;
    int64_t *next;   /* [pp] the operation that a stage runs next */
    double *clock;   /* [pp] when it ended the one before */
    double *ends[2]; /* [pp * vpp * count] by part: when forward and backward ended; -1: not yet */
} pipeline;

/* ---- the table -------------------------------------------------------------------------------------------------- */

static int64_t warmup(const pipeline *p, int32_t stage) {
    int64_t all = p->count * p->vpp, behind = p->pp - 1 - stage;
    int64_t most = p->vpp == 1 ? behind : 2 * behind + (int64_t)(p->vpp - 1) * p->pp;
    return most < all ? most : all;
}

/* The n-th forward or backward of any stage. */
static operation nth(const pipeline *p, int64_t n, int32_t backward) {
    int64_t round = (int64_t)p->pp * p->vpp, in = n % round;
    if (p->vpp == 1) return (operation){n, 0, backward};
    int32_t chunk = (int32_t)(in / p->pp);
    return (operation){n / round * p->pp + in % p->pp, backward ? p->vpp - 1 - chunk : chunk, backward};
}

static operation operation_at(const pipeline *p, int32_t stage, int64_t index) {
    int64_t all = p->count * p->vpp, first = warmup(p, stage), after = index - first;
    RAVEL_ASSERT(index >= 0 && index < 2 * all);
    if (after < 0) return nth(p, index, 0);
    if (after >= 2 * (all - first)) return nth(p, index - all, 1);
    return after % 2 ? nth(p, after / 2, 1) : nth(p, first + after / 2, 0);
}

/* ---- running it ------------------------------------------------------------------------------------------------- */

/* When the inputs of an operation are there; negative: not yet. */
static double ready(const pipeline *p, int64_t part, const operation *o) {
    int64_t at = part * p->count + o->step, parts = (int64_t)p->pp * p->vpp;
    if (!o->backward) return part ? p->ends[0][at - p->count] : 0;
    if (part + 1 == parts || p->ends[0][at] < 0) return p->ends[0][at];
    return p->ends[1][at + p->count];
}

/* Runs the stage's next operation, if it can. */
static int advance(pipeline *p, int32_t stage) {
    if (p->next[stage] == 2 * p->count * p->vpp) return 0;
    operation o = operation_at(p, stage, p->next[stage]);
    int64_t part = (int64_t)o.chunk * p->pp + stage;
    double from = ready(p, part, &o), cost = (double)p->costs[o.step * p->stride];
    if (from < 0) return 0;
    if (p->clock[stage] > from) from = p->clock[stage];
    RAVEL_ASSERT(p->ends[o.backward][part * p->count + o.step] < 0); /* each once */
    p->clock[stage] = from + cost * (o.backward ? 2 : 1) / (3.0 * p->pp * p->vpp);
    p->ends[o.backward][part * p->count + o.step] = p->clock[stage];
    p->next[stage]++;
    return 1;
}

static double run(pipeline *p) {
    double time = 0;
    size_t cells = (size_t)(p->count * p->pp * p->vpp);
    memset(p->next, 0, (size_t)p->pp * sizeof *p->next);
    memset(p->clock, 0, (size_t)p->pp * sizeof *p->clock);
    for (size_t i = 0; i < cells; i++) p->ends[0][i] = p->ends[1][i] = -1;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int32_t stage = 0; stage < p->pp; stage++)
            while (advance(p, stage)) moved = 1;
    }
    for (int32_t stage = 0; stage < p->pp; stage++) {
        RAVEL_ASSERT(p->next[stage] == 2 * p->count * p->vpp); /* the tables have no deadlock */
        if (p->clock[stage] > time) time = p->clock[stage];
    }
    return time;
}

/* ---- front ------------------------------------------------------------------------------------------------------ */

static ravel_status check(int32_t pp, int32_t vpp, int64_t count, ravel_error *err) {
    if (pp < 1 || vpp < 1 || count < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "pp is %d and vpp %d, for %lld micro-steps; pp and vpp begin at 1", pp, vpp,
                               (long long)count);
    if (vpp > 1 && pp == 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "vpp is %d and pp 1; chunks of a stage need pp of 2 or more",
                               vpp);
    if (vpp > 1 && count % pp)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "an update has %lld micro-steps; the interleaved schedule (vpp %d) needs a multiple of pp, "
            "%d: set multiple to %d",
            (long long)count, vpp, pp, pp);
    return RAVEL_OK;
}

static ravel_status make(pipeline *p, int64_t most, ravel__arena *arena, ravel_error *err) {
    size_t stages = (size_t)p->pp, parts = stages * (size_t)p->vpp, cells = 0;
    p->next = ravel__arena_push(arena, stages, sizeof *p->next);
    p->clock = ravel__arena_push(arena, stages, sizeof *p->clock);
    for (int i = 0; i < 2; i++)
        p->ends[i] =
            ravel__size_mul(parts, (size_t)most, &cells) ? ravel__arena_push(arena, cells, sizeof(double)) : NULL;
    if (p->next && p->clock && p->ends[0] && p->ends[1]) return RAVEL_OK;
    return ravel__no_memory(err, cells * 2 * sizeof(double), "a pipeline's schedule");
}

static void finish(ravel_bubble *bubble) {
    bubble->share = bubble->time > 0 ? 1 - bubble->busy / bubble->time : 0;
}

ravel_status ravel_pipeline_bubble(const int64_t *costs, int64_t count, int32_t pp, int32_t vpp, ravel_bubble *bubble,
                                   ravel_error *err) {
    pipeline p = {.pp = pp, .vpp = vpp, .count = count, .costs = costs, .stride = 1};
    ravel__arena arena;
    ravel_status status = check(pp, vpp, count, err);
    for (int64_t i = 0; !status && i < count; i++)
        if (costs[i] < 0)
            status = ravel_error_set(err, RAVEL_E_DATA, "micro-step %lld has cost %lld; it must not be negative",
                                     (long long)i, (long long)costs[i]);
    if (status) return status;
    ravel__arena_init(&arena, NULL, 4096);
    status = make(&p, count, &arena, err);
    if (!status) {
        *bubble = (ravel_bubble){.time = run(&p)};
        for (int64_t i = 0; i < count; i++) bubble->busy += (double)costs[i] / pp;
        finish(bubble);
    }
    ravel__arena_free(&arena);
    return status;
}

/* The rank of an update whose pipeline takes longest; adds it and the mean work. */
static void add_update(pipeline *p, const ravel_plan *plan, int64_t update, ravel_bubble *bubble) {
    int64_t first = plan->update_offsets[update];
    double slowest = 0;
    p->count = plan->update_offsets[update + 1] - first;
    p->stride = plan->dp;
    for (int32_t rank = 0; rank < plan->dp; rank++) {
        p->costs = plan->bin_costs + first * plan->dp + rank;
        double time = run(p);
        if (time > slowest) slowest = time;
        for (int64_t i = 0; i < p->count; i++) bubble->busy += (double)p->costs[i * p->stride] / p->pp / plan->dp;
    }
    bubble->time += slowest;
}

ravel_status ravel_plan_bubble(const ravel_plan *plan, int32_t pp, int32_t vpp, ravel_bubble *bubble,
                               ravel_error *err) {
    pipeline p = {.pp = pp, .vpp = vpp};
    ravel__arena arena;
    ravel_bubble sum = {0, 0, 0};
    int64_t most = 0;
    ravel_status status = RAVEL_OK;
    if (plan->hybrid)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a hybrid plan's ranks change their groups, so no rank has a pipeline of its own");
    for (int64_t u = 0; !status && u < plan->updates; u++) {
        int64_t count = plan->update_offsets[u + 1] - plan->update_offsets[u];
        status = check(pp, vpp, count, err);
        if (count > most) most = count;
    }
    if (status) return status;
    ravel__arena_init(&arena, NULL, 4096);
    status = make(&p, most, &arena, err);
    for (int64_t u = 0; !status && u < plan->updates; u++) add_update(&p, plan, u, &sum);
    ravel__arena_free(&arena);
    if (status) return status;
    finish(&sum);
    *bubble = sum;
    return RAVEL_OK;
}
