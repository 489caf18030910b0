#include "train/rl/outside/teacher.h"
#include "train/run/config/cost.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"
#include "base/log.h"

#include <ravel/exchange.h>
#include <ravel/flops.h>
#include <ravel/report.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIT_SAMPLES = 128 }; /* of a rank: the last ones */

/* Of each rank, gathered as doubles. */
typedef struct block {
    double count;
    ravel_cost_sample samples[FIT_SAMPLES];
} block;
enum { BLOCK = sizeof(block) / sizeof(double) };
_Static_assert(sizeof(block) % sizeof(double) == 0, "sent as doubles");

/* ---- the cost to begin with ------------------------------------------------------------------------------ */

static int is_model(const char *word) {
    return !word || strcmp(word, "model") == 0 || strcmp(word, "fit") == 0;
}

static int has_reference(const train_config *c, train_kind kind) {
    return kind == TRAIN_DPO || (kind == TRAIN_GRPO && c->policy.kl > 0 && !train_servers_are(c->grpo.teacher));
}

/* Passes over the tokens beside the update's own: of the reference, and for old log-probs (train__grpo_prepare). */
static int32_t extra_passes(const train_config *c, train_kind kind) {
    int32_t passes = has_reference(c, kind) ? 100 : 0, updates = c->grpo.updates;
    if (kind == TRAIN_GRPO && updates > 1 && c->grpo.old != TRAIN_OLD_GENERATOR)
        passes += 100 * (updates - 1) / updates;
    RAVEL_ASSERT(passes >= 0 && passes <= 200);
    return passes;
}

/* The products of an adapter, as a share of those of the layers. */
static int32_t adapter_passes(const train_config *c, const ravel_shape *shape, int32_t passes) {
    const ravel_lengths_sum one = {.samples = 1, .tokens = 1};
    ravel_flops flops = {.forward = {0, 0}};
    if (!c->model.lora.rank || ravel_flops_count(shape, &one, 0, RAVEL_RECOMPUTE_NONE, &flops, NULL)) return 0;
    double weights = (double)train_trained_parameters(shape, &c->model.lora, 1);
    return (int32_t)(passes * 2 * weights / ravel_flops_real(flops.forward));
}

ravel_status train_cost_of_model(const train_config *c, train_kind kind, const ravel_shape *shape, double scored,
                                 ravel_cost *result, ravel_error *err) {
    int32_t again = c->model.recompute == TRAIN_RECOMPUTE_FULL ? 100 : 0, extra = extra_passes(c, kind);
    int32_t trained = c->model.lora.rank ? 200 : 300; /* frozen weights have no gradient */
    double aux = c->learn.router_aux < 0 ? shape->router_aux : c->learn.router_aux;
    int32_t counted = shape->experts && aux > 0 ? 100 : 0; /* a pass for the load of experts (train/learn/balance.c) */
    again += counted;
    ravel_passes passes = {trained + again + extra, trained + extra, 350 + again + extra};
    RAVEL_ASSERT(scored >= 0 && scored <= 1);
    passes.layers += adapter_passes(c, shape, 300 + again);
    passes.head = (int32_t)(passes.head * scored);
    return ravel_cost_from_passes(shape, &passes, result, err);
}

ravel_status train_cost_check(const char *word, ravel_error *err) {
    ravel_cost cost;
    char prices[TRAIN_COST_PRICES];
    if (is_model(word)) return RAVEL_OK;
    return ravel_cost_read(word, &cost, prices, sizeof prices, err);
}

/* Sent by rank 0, as bytes. */
typedef struct choice {
    ravel_cost cost;
    char prices[TRAIN_COST_PRICES];
} choice;

ravel_status train_cost_open(train_cost *cost, train_config *own, train_kind kind, const ravel_shape *shape,
                             double scored, ravel_comm *comm, ravel_error *err) {
    const char *word = own->run.cost;
    choice chosen = {{0, 0, 0}, ""};
    ravel_status status = RAVEL_OK;
    *cost = (train_cost){.fits = word && strcmp(word, "fit") == 0};
    if (is_model(word))
        status = train_cost_of_model(own, kind, shape, scored, &chosen.cost, err);
    else if (ravel_comm_rank(comm) == 0)
        status = ravel_cost_read(word, &chosen.cost, chosen.prices, sizeof chosen.prices, err);
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_comm_broadcast(comm, &chosen, sizeof chosen, RAVEL_U8, 0, err);
    if (status) return status;
    own->plan.cost = chosen.cost;
    memcpy(cost->prices, chosen.prices, sizeof cost->prices);
    if (cost->prices[0] && !own->plan.cp_price) own->plan.cp_price = cost->prices;
    return RAVEL_OK;
}

void train_cost_resume(train_cost *cost, train_config *own, const train_state *state) {
    if (!cost->fits || state->cost_linear + state->cost_quadratic == 0) return;
    own->plan.cost = (ravel_cost){state->cost_linear, state->cost_quadratic, state->cost_overhead};
    cost->fits = 0;
}

void train_cost_close(train_cost *cost) {
    ravel__release(NULL, cost->seconds, (size_t)cost->seconds_room * sizeof *cost->seconds);
    ravel__release(NULL, cost->blocks, cost->blocks ? cost->block_count * sizeof(block) : 0);
    *cost = (train_cost){.fits = 0};
}

/* ---- what was measured ----------------------------------------------------------------------------------- */

double train_idle_share(const double *seconds, int32_t ranks, int64_t steps, int32_t every_step) {
    double busy = 0, longest = 0, most_of_all = 0;
    RAVEL_ASSERT(ranks > 0 && steps >= 0);
    for (int64_t m = 0; m < steps; m++) {
        double most = 0;
        for (int32_t r = 0; r < ranks; r++) {
            busy += seconds[r * steps + m];
            most = fmax(most, seconds[r * steps + m]);
        }
        longest += most;
    }
    for (int32_t r = 0; r < ranks; r++) {
        double total = 0;
        for (int64_t m = 0; m < steps; m++) total += seconds[r * steps + m];
        most_of_all = fmax(most_of_all, total);
    }
    double wall = ranks * (every_step ? longest : most_of_all);
    return wall > 0 ? fmax(1 - busy / wall, 0) : 0;
}

/* What a rank measured of an update: the seconds of each micro-batch, or, on a GPU, of all of them together. */
typedef struct measured {
    const double *seconds; /* [steps] */
    int64_t steps, micros;
} measured;

static measured measure(const train_run *run, const train_parts *parts) {
    measured m = {.seconds = &run->gpu_seconds, .steps = 1};
    const double *each = train_parts_micro_seconds(parts, &m.micros);
    if (run->gpu_seconds > 0) return m;
    m.seconds = each;
    m.steps = m.micros;
    return m;
}

/* How long ranks that learn from different samples waited for one another, beside what the plan predicted. */
static ravel_status add_idle(train_cost *cost, const train_config *own, train_run *run, ravel_comm *replicas,
                             measured m, ravel_error *err) {
    int32_t ranks = ravel_comm_size(replicas), every = train_config_sync(own) == RAVEL_SYNC_MICRO_STEP;
    int64_t count = every ? m.steps : 1;
    double total = 0;
    if (ranks == 1 || m.micros == 0 || (every && m.steps < m.micros)) return RAVEL_OK;
    for (int64_t i = 0; i < m.steps; i++) total += m.seconds[i];
    double *grown = train__grown(NULL, cost->seconds, &cost->seconds_room, 0, ranks * count, sizeof *grown);
    if (grown) cost->seconds = grown;
    ravel_status status =
        grown ? RAVEL_OK : ravel__no_memory(err, (size_t)(ranks * count) * sizeof *grown, "times of micro-batches");
    status = ravel_agree(replicas, status, err);
    if (!status)
        status = ravel_comm_allgather(replicas, every ? m.seconds : &total, cost->seconds, count, RAVEL_F64, err);
    if (!status)
        (void)ravel_metrics_add(run->metrics, TRAIN_METRIC_IDLE_MEASURED,
                                train_idle_share(cost->seconds, ranks, count, every), 1);
    return status;
}

/* ---- fitting ---------------------------------------------------------------------------------------------- */

/* After the first update, which touches memory for the first time. */
static int is_time_to_fit(int64_t updates) {
    return updates == 5 || updates == 9 || updates == 17 || updates == 33;
}

void train_cost_add_sizes(ravel_cost_sample *s, const ravel_micro_batch *micro) {
    for (int64_t i = 0; i < micro->thd->samples_count; i++) {
        double length = (double)micro->lengths[i], shared = micro->shared ? (double)micro->shared[i] : 0;
        s->tokens += length - shared;
        s->squares += length * length - shared * shared;
    }
    s->micro_steps += 1;
    s->width = micro->cp;
}

static void keep(train_cost *cost, const ravel_cost_sample *s) {
    block *b = cost->blocks;
    if (!(s->tokens > 0) || !(s->seconds > 0)) return; /* fillers alone */
    b->samples[cost->count++ % FIT_SAMPLES] = *s;
    b->count = (double)train__min(cost->count, FIT_SAMPLES);
}

/* The micro-batches of the update; times of pipeline stages are added up. */
static ravel_status collect(train_cost *cost, const ravel_mesh *mesh, const ravel_feed *feed, measured m,
                            ravel_error *err) {
    ravel_comm *pp = ravel_mesh_comm(mesh, RAVEL_AXIS_PP);
    ravel_cost_sample all = {.width = 1};
    RAVEL_ASSERT(m.steps == 1 || m.steps == m.micros);
    for (int64_t i = 0; i < m.micros; i++) {
        ravel_micro_batch micro;
        ravel_cost_sample one = {.seconds = m.steps == m.micros ? m.seconds[i] : 0};
        ravel_status status = ravel_feed_micro(feed, 0, i, &micro, err);
        if (!status && m.steps == m.micros)
            status = ravel_comm_allreduce(pp, &one.seconds, &one.seconds, 1, RAVEL_F64, RAVEL_SUM, err);
        if (status) return status;
        if (!micro.filler) train_cost_add_sizes(m.steps == m.micros ? &one : &all, &micro);
        if (m.steps == m.micros) keep(cost, &one);
    }
    if (m.steps == m.micros) return RAVEL_OK;
    all.seconds = m.seconds[0];
    ravel_status status = ravel_comm_allreduce(pp, &all.seconds, &all.seconds, 1, RAVEL_F64, RAVEL_SUM, err);
    if (!status) keep(cost, &all);
    return status;
}

/* On rank 0, from the samples of all its replicas. 0: they are too few or too much alike. */
static int make_fit(const block *all, int32_t ranks, ravel_cost_fit *fit, ravel_error *err) {
    ravel_cost_sample *list = ravel__calloc(NULL, (size_t)ranks * FIT_SAMPLES, sizeof *list);
    int64_t count = 0;
    if (!list) return 0;
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t i = 0; i < (int64_t)all[r].count; i++) list[count++] = all[r].samples[i];
    *fit = (ravel_cost_fit){.size = sizeof *fit};
    int good = count >= 16 && ravel_cost_fit_make(list, count, fit, err) == RAVEL_OK && fit->cost.linear > 0;
    ravel__release(NULL, list, (size_t)ranks * FIT_SAMPLES * sizeof *list);
    return good;
}

static void log_fit(const train_run *run, const ravel_cost_fit *fit) {
    ravel__log(run->hooks.logger, RAVEL_LOG_INFO,
               "the cost of samples is fitted from %lld measurements: --cost %lld:%lld:%lld, mean error %.1f %%",
               (long long)fit->samples, (long long)fit->cost.linear, (long long)fit->cost.quadratic,
               (long long)fit->cost.overhead, 100 * fit->error);
}

/* Every rank gets what rank 0 found. */
static ravel_status decide(train_cost *cost, train_config *own, train_run *run, ravel_comm *replicas, int *changed,
                           ravel_error *err) {
    block *mine = cost->blocks, *all = mine + 1;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_cost_fit fit = {.size = sizeof fit};
    int64_t found[4] = {0, 0, 0, 0};
    ravel_status status = ravel_comm_allgather(replicas, mine, all, BLOCK, RAVEL_F64, err);
    if (!status && run->rank == 0 && make_fit(all, ravel_comm_size(replicas), &fit, &why)) {
        memcpy(found, (int64_t[]){1, fit.cost.linear, fit.cost.quadratic, fit.cost.overhead}, sizeof found);
        log_fit(run, &fit);
    }
    if (!status) status = ravel_comm_broadcast(run->comm, found, 4, RAVEL_I64, 0, err);
    if (status) return status;
    cost->fits = !found[0] && cost->updates < 33;
    if (!found[0] && !cost->fits && run->rank == 0)
        ravel__log(run->hooks.logger, RAVEL_LOG_WARN,
                   "no cost could be fitted from %lld updates (%s); --cost stays model", (long long)cost->updates,
                   why.message[0] ? why.message : "too few micro-batches");
    if (!found[0]) return RAVEL_OK;
    own->plan.cost = (ravel_cost){run->state.cost_linear = found[1], run->state.cost_quadratic = found[2],
                                  run->state.cost_overhead = found[3]};
    *changed = 1;
    return RAVEL_OK;
}

static ravel_status fit_more(train_cost *cost, train_config *own, train_run *run, const ravel_mesh *mesh,
                             const ravel_feed *feed, measured m, int *changed, ravel_error *err) {
    ravel_comm *replicas = ravel_mesh_comm(mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
    ravel_status status = RAVEL_OK;
    if (!cost->blocks) {
        cost->block_count = 1 + (size_t)ravel_comm_size(replicas);
        cost->blocks = ravel__calloc(NULL, cost->block_count, sizeof(block));
        if (!cost->blocks) status = ravel__no_memory(err, cost->block_count * sizeof(block), "measurements");
    }
    status = ravel_agree(run->comm, status, err);
    if (!status && cost->updates++ > 0) status = collect(cost, mesh, feed, m, err);
    if (status || !is_time_to_fit(cost->updates)) return status;
    return decide(cost, own, run, replicas, changed, err);
}

ravel_status train_cost_add(train_cost *cost, train_config *own, train_run *run, const ravel_mesh *mesh,
                            const ravel_feed *feed, const train_parts *parts, int *changed, ravel_error *err) {
    measured m = measure(run, parts);
    *changed = 0;
    ravel_status status = add_idle(cost, own, run, ravel_mesh_comm(mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP), m, err);
    if (status || !cost->fits) return status;
    return fit_more(cost, own, run, mesh, feed, m, changed, err);
}
