#include "train/learn/pipeline.h"

#include "train/kernels/arena.h"

ravel_status train_pipeline_check(const train_pipeline *p, ravel_error *err) {
    if (p->pp < 1 || p->vpp < 1 || p->micros < 0 || (p->vpp > 1 && p->pp == 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "pp %d with vpp %d; virtual stages need a pipeline of 2 or more",
                               p->pp, p->vpp);
    if (p->vpp > 1 && p->micros % p->pp)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%lld micro-batches; the interleaved schedule needs a multiple of pp, %d",
                               (long long)p->micros, p->pp);
    return RAVEL_OK;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

int64_t train_pipeline_ops(const train_pipeline *p) {
    return 2 * p->micros * p->vpp;
}

/* Forwards of a stage before its first backward. */
static int64_t warmup(const train_pipeline *p, int32_t stage) {
    int64_t all = p->micros * p->vpp, behind = p->pp - stage - 1;
    int64_t most = p->vpp == 1 ? behind : 2 * behind + (int64_t)(p->vpp - 1) * p->pp;
    return most < all ? most : all;
}

/* The k-th forward; the k-th backward is the same with the chunks in reverse order. */
static train_op nth(const train_pipeline *p, int64_t k, int32_t backward) {
    if (p->vpp == 1) return (train_op){k, 0, backward};
    int64_t group = (int64_t)p->pp * p->vpp, in = k % group;
    int32_t chunk = (int32_t)(in / p->pp);
    return (train_op){k / group * p->pp + in % p->pp, backward ? p->vpp - 1 - chunk : chunk, backward};
}

train_op train_pipeline_op(const train_pipeline *p, int32_t stage, int64_t index) {
    int64_t all = p->micros * p->vpp, first = warmup(p, stage), i = index - first;
    if (i < 0) return nth(p, index, 0);
    if (i < 2 * (all - first))
        return i % 2 ? nth(p, i / 2, 1) : nth(p, first + i / 2, 0); /* one forward, one backward */
    return nth(p, index - all, 1);
}

int32_t train_pipeline_flights(int32_t pp, int32_t vpp, int32_t stage, int32_t chunk) {
    train_pipeline p = {pp, vpp, 4 * (int64_t)pp};
    int32_t now = 0, most = 0;
    for (int64_t i = 0; i < train_pipeline_ops(&p); i++) {
        train_op op = train_pipeline_op(&p, stage, i);
        if (op.chunk != chunk) continue;
        now += op.backward ? -1 : 1;
        if (now > most) most = now;
    }
    return most;
}

/* ---- simulation of all stages --------------------------------------------------------------------------- */

typedef struct simulation {
    const train_pipeline *p;
    int64_t *next;    /* [pp] operation that a stage runs next */
    double *clock;    /* [pp] when it ended the one before */
    double *ends[2];  /* [parts * micros] when forward and backward ended; -1: not yet */
    int32_t *flights; /* [parts] in flight now, and */
    int32_t *most;    /* [parts] at most; */
    int32_t *room;    /* [parts] places */
} simulation;

/* When the inputs of the operation are available; -1: not yet. */
static double ready(const simulation *s, int32_t stage, train_op op) {
    const train_pipeline *p = s->p;
    int64_t parts = (int64_t)p->pp * p->vpp, part = (int64_t)op.chunk * p->pp + stage, at = part * p->micros + op.micro;
    if (op.backward) {
        if (part + 1 == parts) return s->ends[0][at];
        return s->ends[0][at] < 0 ? -1 : s->ends[1][at + p->micros];
    }
    double input = part ? s->ends[0][at - p->micros] : 0;
    int64_t held = op.micro - s->room[part];
    if (input < 0 || held < 0 || part == 0) return input;
    /* the place's last gradient must have been taken by the stage before, when that began its own backward */
    int32_t before = (stage + p->pp - 1) % p->pp;
    train_op taking = train_pipeline_op(p, before, s->next[before]);
    int takes = s->next[before] < train_pipeline_ops(p) && taking.backward && taking.micro == held &&
                taking.chunk == (int32_t)((part - 1) / p->pp);
    return takes || s->ends[1][(part - 1) * p->micros + held] >= 0 ? input : -1;
}

static int advance(simulation *s, int32_t stage, const double *forward, const double *backward) {
    const train_pipeline *p = s->p;
    if (s->next[stage] == train_pipeline_ops(p)) return 0;
    train_op op = train_pipeline_op(p, stage, s->next[stage]);
    int64_t part = (int64_t)op.chunk * p->pp + stage;
    double from = ready(s, stage, op), cost = op.backward ? 2 : 1;
    const double *costs = op.backward ? backward : forward;
    if (from < 0) return 0;
    if (costs) cost = costs[op.micro];
    s->clock[stage] = (from > s->clock[stage] ? from : s->clock[stage]) + cost;
    s->ends[op.backward][part * p->micros + op.micro] = s->clock[stage];
    s->flights[part] += op.backward ? -1 : 1;
    if (s->flights[part] > s->most[part]) s->most[part] = s->flights[part];
    s->next[stage]++;
    return 1;
}

static ravel_status stuck(const simulation *s, int32_t stage, ravel_error *err) {
    train_op op = train_pipeline_op(s->p, stage, s->next[stage]);
    return ravel_error_set(err, RAVEL_E_STATE, "stage %d waits without end before the %s of micro-batch %lld, chunk %d",
                           stage, op.backward ? "backward" : "forward", (long long)op.micro, op.chunk);
}

static ravel_status simulate(simulation *s, const double *forward, const double *backward, ravel_error *err) {
    for (int moved = 1; moved;) {
        moved = 0;
        for (int32_t stage = 0; stage < s->p->pp; stage++)
            while (advance(s, stage, forward, backward)) moved = 1;
    }
    for (int32_t stage = 0; stage < s->p->pp; stage++)
        if (s->next[stage] < train_pipeline_ops(s->p)) return stuck(s, stage, err);
    return RAVEL_OK;
}

ravel_status train_pipeline_run(const train_pipeline *p, const double *forward, const double *backward,
                                int32_t *flights, double *time, double *bubble, ravel_error *err) {
    int64_t parts = (int64_t)p->pp * p->vpp, cells = parts * p->micros;
    train__arena arena = {0};
    simulation s = {.p = p};
    ravel_status status = train_pipeline_check(p, err);
    if (status) return status;
    TRAIN__TAKE(&arena, s.next, p->pp);
    TRAIN__TAKE(&arena, s.clock, p->pp);
    for (int i = 0; i < 2; i++) TRAIN__TAKE(&arena, s.ends[i], cells + 1);
    TRAIN__TAKE(&arena, s.flights, parts);
    TRAIN__TAKE(&arena, s.most, parts);
    TRAIN__TAKE(&arena, s.room, parts);
    status = train__arena_status(&arena, "a pipeline's schedule", err);
    if (status) goto free;
    for (int64_t i = 0; i < cells; i++) s.ends[0][i] = s.ends[1][i] = -1;
    for (int32_t i = 0; i < parts; i++) s.room[i] = train_pipeline_flights(p->pp, p->vpp, i % p->pp, i / p->pp);
    status = simulate(&s, forward, backward, err);
    if (status) goto free;
    double busy = 0;
    *time = 0;
    for (int32_t i = 0; i < p->pp; i++) *time = s.clock[i] > *time ? s.clock[i] : *time;
    for (int64_t m = 0; m < p->micros; m++)
        busy += (double)parts * ((forward ? forward[m] : 1) + (backward ? backward[m] : 2));
    *bubble = *time > 0 ? 1 - busy / (*time * p->pp) : 0;
    for (int64_t i = 0; flights && i < parts; i++) flights[i] = s.most[i];
free:
    train__arena_free(&arena);
    return status;
}
