/* Runs the schedule: receive, compute, send.
 *
 *     forward     receive into the flight's input    compute    its output is sent     until its backward
 *     backward    receive into the flight's output   compute    its input is sent      until the flight is used again
 *
 * Sends do not wait: a flight is written again only after its rows have been sent. Sizes need no messages, since every
 * stage has the metadata of every micro-batch. */
#include "train/learn/parts_internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/learn/balance.h"
#include "train/learn/pipeline.h"
#include "train/model/hf/lora.h"

#include <ravel/tree_batch.h>

#include <math.h>
#include <string.h>

enum { TAG_ROWS = 41 }; /* and the tags after it: two per chunk */

typedef struct run {
    train_parts *p;
    const ravel_feed *feed;
    const train_work *work;
    ravel_metrics *metrics;
    train_parts_time time;
    int32_t balance_due; /* the load loss is set before the first backward */
    int32_t counting;    /* nothing is learnt yet: the load of experts is counted */
} run;

/* ---- batches -------------------------------------------------------------------------------------------- */

/* The ring of a group of the pool; NULL: the mesh's. */
static ravel_comm *ring_of(const train_parts *p, const ravel_micro_batch *micro) {
    for (int32_t i = 0; i < p->width_count; i++)
        if (p->widths[i] == micro->cp) return p->rings[i];
    return NULL;
}

/* Alignment of context-parallel samples is part of their shards, which are chunks cp_rank and 2 cp - 1 - cp_rank of 2
 * cp (ring.h); it is no load of experts. */
static const int32_t *counted_of(train_parts *p, const ravel_micro_batch *micro) {
    const int32_t *padded = micro->thd->cu_seqlens_padded, cp = micro->cp;
    if (!p->counted || cp == 1 || micro->shared || micro->filler) return NULL;
    for (int64_t i = 0; i < micro->thd->samples_count; i++) {
        int32_t first = padded[i] / cp, chunk = (padded[i + 1] - padded[i]) / cp / 2;
        for (int32_t t = 0; t < 2 * chunk; t++) {
            int32_t here = t < chunk ? micro->cp_rank : 2 * cp - 1 - micro->cp_rank;
            p->counted[first + t] = here * chunk + t % chunk < micro->lengths[i];
        }
    }
    return p->counted;
}

/* The feed's arrays as the model takes them. A filler is one sample of one token. */
static train_batch batch_of(train_parts *p, const ravel_micro_batch *micro, double temperature) {
    const ravel_thd *thd = micro->thd;
    int32_t cp = micro->cp, samples = (int32_t)train__max(thd->samples_count, 1);
    RAVEL_ASSERT(cp >= 1 && (micro->shared || samples <= p->options.budget));
    train_batch b = {.samples = samples,
                     .filler = micro->filler,
                     .counted = counted_of(p, micro),
                     .tokens = micro->tokens,
                     .cu_seqlens = thd->cu_seqlens,
                     .cu_seqlens_padded = thd->cu_seqlens_padded,
                     .weights = micro->labels ? micro->weights : NULL,
                     .positions = thd->positions,
                     .targets = micro->labels,
                     .temperature = temperature,
                     .shared = micro->shared,
                     .cp = ring_of(p, micro)};
    if (cp == 1 || micro->shared) return b; /* the model deals the places of a tree itself */
    if (!micro->filler) b.wholes = micro->lengths;
    for (int32_t i = 0; i <= samples; i++) p->cu[i] = thd->cu_seqlens_padded[i] / cp;
    b.cu_seqlens = p->cu;
    b.cu_seqlens_padded = NULL;
    return b;
}

/* Rows of a micro-batch on this rank: its tokens, those that samples share counted once. */
static int64_t rows_of(const ravel_micro_batch *micro, const train_batch *b) {
    int64_t rows = 0, chunks = micro->cp > 1 ? (int64_t)RAVEL_TREE_CHUNKS * micro->cp : 1;
    if (!b->shared) return micro->thd->local_tokens;
    for (int64_t i = 0; i < b->samples; i++) rows += b->cu_seqlens[i + 1] - b->cu_seqlens[i] - b->shared[i];
    return train__round_up(rows, chunks) / micro->cp;
}

/* The batch, and the rows that it has; `loss`: of learning, else NULL. */
static ravel_status get_batch(const run *r, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                              int64_t *rows, ravel_error *err) {
    train_parts *p = r->p;
    *batch = batch_of(p, micro, r->work->temperature);
    ravel_status status = r->work->begin ? r->work->begin(r->work->user, micro, batch, loss, err) : RAVEL_OK;
    *rows = rows_of(micro, batch);
    if (status || *rows <= p->options.budget) return status;
    return ravel_error_set(err, RAVEL_E_OVERSIZE, "a micro-batch of %lld tokens is over the budget of %lld",
                           (long long)*rows, (long long)p->options.budget);
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* Which of its chunk's flights a micro-batch is. */
static int32_t flight_of(const train_parts *p, train_op op) {
    RAVEL_ASSERT(op.chunk >= 0 && op.chunk < p->count && op.micro >= 0);
    RAVEL_ASSERT(p->flights[op.chunk] >= 1 && p->flights[op.chunk] <= TRAIN_FLIGHTS);
    return (int32_t)(op.micro % p->flights[op.chunk]);
}

static train__flight *flight_at(train_parts *p, train_op op) {
    return &p->running[op.chunk][flight_of(p, op)];
}

static int32_t tag_of(int32_t chunk, int backward) {
    RAVEL_ASSERT(chunk >= 0 && chunk < TRAIN_CHUNKS && (backward == 0 || backward == 1));
    return TAG_ROWS + 2 * chunk + backward;
}

/* Rows of a micro-batch on their way between two parts. */
typedef struct edge {
    const train__port *port;
    ravel_comm *comm;
    void *rows; /* on this rank */
    train__parcel parcel;
} edge;

/* The edge over which an operation gets its rows (in forward its input, in backward its output) or, `sent`, over which
 * those go that it made, with the tag of the part that needs them. 0: there is none. */
static int edge_of(const run *r, train_op op, int sent, edge *e) {
    train_parts *p = r->p;
    train_model *model = p->models[op.chunk];
    int32_t pp = train_layout_pp(&p->layout), part = train__parts_number(p, op.chunk), flight = flight_of(p, op);
    int64_t rows = p->running[op.chunk][flight].rows;
    int32_t other = sent == op.backward ? part - 1 : part + 1;
    if (other < 0 || other == train_layout_parts(&p->layout)) return 0;
    *e = (edge){.port = train_model_port(model), .comm = p->wires ? p->edges[op.backward][sent] : p->pp};
    e->rows = sent == op.backward ? train_model_stage_input(model, flight) : train_model_stage_output(model, flight);
    e->parcel = train_model_stage_parcel(model, rows, sent ? 1 + 2 * flight + op.backward : 0);
    e->parcel.peer = p->wires ? sent : other % pp;
    e->parcel.tag = tag_of(sent ? other / pp : op.chunk, op.backward);
    return 1;
}

static ravel_status receive(const run *r, train_op op, ravel_error *err) {
    edge e;
    train__message message;
    if (!edge_of(r, op, 0, &e)) return RAVEL_OK;
    ravel_status status = train__port_receive(e.port, e.comm, e.rows, &e.parcel, &message, err);
    return status ? status : train__port_end(e.port, &message, err);
}

static ravel_status send(const run *r, train_op op, ravel_error *err) {
    edge e;
    if (!edge_of(r, op, 1, &e)) return RAVEL_OK;
    train__flight *flight = flight_at(r->p, op);
    train__message *message = op.backward ? &flight->back : &flight->forth;
    RAVEL_ASSERT(!message->request && !message->event); /* the rows before have been sent */
    ravel_status status = train__port_send(e.port, e.comm, e.rows, &e.parcel, message, err);
    return status ? status : train__port_launch(e.port, message, err);
}

static ravel_status wait_for(const train_parts *p, int32_t chunk, train__message *message, ravel_error *err) {
    return train__port_end(train_model_port(p->models[chunk]), message, err);
}

static void test(train_parts *p, train__message *message) {
    ravel_error error = RAVEL_ERROR_INIT;
    ravel_status status = train__port_progress(message, &error);
    if (!status || p->sent) return;
    p->sent = status;
    p->sent_error = error;
}

void train__parts_progress(void *user) {
    train_parts *p = user;
    for (int32_t chunk = 0; chunk < p->count; chunk++)
        for (int32_t f = 0; f < p->flights[chunk]; f++) {
            test(p, &p->running[chunk][f].forth);
            test(p, &p->running[chunk][f].back);
        }
}

/* ---- operations ----------------------------------------------------------------------------------------- */

/* Fillers keep stages, and ranks that share out the weights, in step; a whole model needs no filler. */
static int is_skipped(const run *r, const ravel_micro_batch *micro) {
    return micro->filler && train_layout_parts(&r->p->layout) == 1 && !r->p->options.shard && r->p->options.ep <= 1;
}

/* When an operation began, and how long its model had waited for others by then. */
typedef struct start {
    double begun, shard;
    train_waits waits;
} start;

static start start_of(const run *r, train_op op) {
    const train_model *model = r->p->models[op.chunk];
    return (start){train__now(), train_model_waited(model), train_model_waits(model)};
}

/* Adds the time of an operation. */
static void count_time(run *r, train_op op, const start *s) {
    start now = start_of(r, op);
    double elapsed = now.begun - s->begun, tp = now.waits.tp - s->waits.tp, cp = now.waits.cp - s->waits.cp;
    double ep = now.waits.ep - s->waits.ep, waited = tp + cp + ep;
    RAVEL_ASSERT(elapsed >= 0 && tp >= 0 && cp >= 0 && ep >= 0 && op.micro < r->p->micro_count);
    r->p->micro_seconds[op.micro] += fmax(elapsed - waited - (now.shard - s->shard), 0);
    *(op.backward ? &r->time.backward : &r->time.forward) += elapsed - waited;
    r->time.busy += elapsed;
    r->time.tp += tp;
    r->time.cp += cp;
    r->time.ep += ep;
}

/* Over NCCL the host only puts operations into streams: the GPU's time is read when all are done. */
static void end_op(run *r, train_op op, const start *s) {
    if (r->p->wires)
        train__wires_op_end(r->p->wires);
    else
        count_time(r, op, s);
}

/* The load loss, where all micro-batches have been forward and none backward. A rank that failed says so instead. */
static ravel_status set_balance(run *r, ravel_status status, ravel_error *err) {
    if (!r->balance_due) return status;
    r->balance_due = 0;
    status = ravel_agree(ravel_mesh_world(r->p->mesh), status, err);
    return status ? status : train__balance_set(r->p, err);
}

/* The micro-batch of an operation and, in forward, its batch: the flight is free, and the rows that it needs are here.
 * `loss`: of learning, else NULL. *skipped: it has nothing to do. */
static ravel_status open_op(run *r, train_op op, train_loss *loss, ravel_micro_batch *micro, train_batch *batch,
                            int *skipped, ravel_error *err) {
    train_parts *p = r->p;
    train__flight *flight = flight_at(p, op);
    ravel_status status = ravel_feed_micro(r->feed, op.chunk, op.micro, micro, err);
    if (!status && op.backward) status = set_balance(r, RAVEL_OK, err);
    *skipped = !status && is_skipped(r, micro);
    if (status || *skipped) return status;
    status = wait_for(p, op.chunk, &flight->forth, err);
    if (!status && !op.backward) status = wait_for(p, op.chunk, &flight->back, err);
    if (!status && !op.backward) status = get_batch(r, micro, batch, loss, &flight->rows, err);
    return status ? status : receive(r, op, err);
}

/* Of an update: forward and backward or, where the load of experts is counted first, forward alone. */
static ravel_status learn_op(run *r, train_op op, ravel_error *err) {
    train_parts *p = r->p;
    train_model *model = p->models[op.chunk];
    train__flight *flight = flight_at(p, op);
    ravel_phase phase = op.backward ? RAVEL_PHASE_BACKWARD : RAVEL_PHASE_FORWARD;
    int32_t number = flight_of(p, op);
    ravel_micro_batch micro;
    train_batch batch;
    int skipped;
    if (r->counting && op.backward) return RAVEL_OK;
    if (!op.backward) flight->loss = (train_loss){0};
    ravel_status status = open_op(r, op, r->counting ? NULL : &flight->loss, &micro, &batch, &skipped, err);
    if (status || skipped) return status;
    start begun = start_of(r, op);
    if (p->wires) train__wires_op_begin(p->wires, op.backward);
    if (r->metrics) (void)ravel_metrics_phase_begin(r->metrics, phase, NULL);
    if (op.backward)
        status = train_model_stage_backward(model, number, err);
    else if (r->counting)
        status = train_model_stage_count(model, number, &batch, err);
    else
        status = train_model_stage_forward(model, number, &batch, r->work->begin ? &flight->loss : NULL, err);
    if (r->metrics) (void)ravel_metrics_phase_end(r->metrics, phase, NULL);
    end_op(r, op, &begun);
    return status ? status : send(r, op, err);
}

static ravel_status score_op(run *r, train_op op, ravel_error *err) {
    train_parts *p = r->p;
    ravel_micro_batch micro;
    train_batch batch;
    train_result result = {.logprob = p->logprob,
                           .right = r->work->right,
                           .top_ids = r->work->top_ids,
                           .top_logprob = r->work->top_logprob};
    int skipped;
    RAVEL_ASSERT(p->logprob && (!r->work->routed || p->routes));
    if (r->work->routed) result.routes = p->routes;
    if (op.backward) return RAVEL_OK;
    ravel_status status = open_op(r, op, NULL, &micro, &batch, &skipped, err);
    if (status || skipped) return status;
    status = train_model_stage_score(p->models[op.chunk], flight_of(p, op), &batch, &result, err);
    if (!status && r->work->routed && !micro.filler)
        status = r->work->routed(r->work->user, &micro, p->routes, flight_at(p, op)->rows, err);
    if (!status) status = send(r, op, err);
    if (status || !r->work->take || !micro.last || micro.filler) return status;
    return r->work->take(r->work->user, &micro, &batch, p->logprob, err);
}

/* Waits for all sends, also after a failure, so that no transfer reads a place afterwards. */
static ravel_status finish_sends(train_parts *p, ravel_error *err) {
    ravel_status first = RAVEL_OK;
    for (int32_t chunk = 0; chunk < p->count; chunk++)
        for (int32_t f = 0; f < p->flights[chunk]; f++) {
            train__flight *flight = &p->running[chunk][f];
            ravel_status forth = wait_for(p, chunk, &flight->forth, first ? NULL : err);
            if (!first) first = forth;
            ravel_status back = wait_for(p, chunk, &flight->back, first ? NULL : err);
            if (!first) first = back;
            RAVEL_ASSERT(!flight->forth.request && !flight->back.request);
        }
    return first;
}

static ravel_status clear_times(train_parts *p, int64_t micros, ravel_error *err) {
    double *grown = train__grown(p->options.allocator, p->micro_seconds, &p->micro_room, 0, micros + 1, sizeof *grown);
    if (!grown) return ravel__no_memory(err, (size_t)(micros + 1) * sizeof *grown, "times of micro-batches");
    p->micro_seconds = grown;
    p->micro_count = micros;
    memset(grown, 0, (size_t)micros * sizeof *grown);
    return RAVEL_OK;
}

/* All operations of this stage. A rank that fails aborts for the other stages, which would wait for its rows, and for
 * the ranks that would wait for its share of the weights. */
static ravel_status run_table(run *r, const train_pipeline *table,
                              ravel_status (*run_op)(run *, train_op, ravel_error *), ravel_error *err) {
    train_parts *p = r->p;
    ravel_status status = train_pipeline_check(table, err);
    if (!status) status = clear_times(p, table->micros, err);
    for (int64_t i = 0; i < train_pipeline_ops(table) && !status; i++) {
        status = run_op(r, train_pipeline_op(table, p->at.pp, i), err);
        if (!status && p->sent) status = ravel_error_set(err, p->sent, "%s", p->sent_error.message);
    }
    if (status && !train__is_lost(status) && table->pp > 1) ravel_comm_abort(p->pp, err);
    if (status && !train__is_lost(status) && p->ep_host) ravel_comm_abort(p->ep_host, err);
    if (status && !train__is_lost(status) && p->options.shard)
        ravel_comm_abort(ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP), err);
    if (status) train__wires_abort(p->wires, err); /* the GPUs of other ranks may wait for this one */
    if (status && !train__is_lost(status)) status = set_balance(r, status, err);
    ravel_status sent = finish_sends(p, status ? NULL : err);
    return status ? status : sent;
}

static train_pipeline table_of(const train_parts *p, int64_t micros) {
    RAVEL_ASSERT(micros >= 0 && p->layout.vpp == p->count);
    return (train_pipeline){train_layout_pp(&p->layout), p->layout.vpp, micros};
}

/* The share of the stages' time that they will wait, for micro-batches of these lengths. */
static ravel_status predict(const run *r, const train_pipeline *table, double *share, ravel_error *err) {
    ravel_bubble bubble;
    double most = 1;
    if (table->pp == 1 || table->micros == 0) return RAVEL_OK;
    size_t bytes = (size_t)table->micros * (sizeof(double) + sizeof(int64_t));
    double *flops = ravel__alloc(NULL, bytes);
    if (!flops) return ravel__no_memory(err, bytes, "costs of micro-batches");
    int64_t *costs = (int64_t *)(void *)(flops + table->micros);
    const train_lora *lora = &r->p->options.model->lora;
    int64_t adapter = lora->rank ? train_trained_parameters(&r->p->shape, lora, 1) : 0;
    RAVEL_ASSERT(table->micros > 0 && table->pp > 1);
    for (int64_t m = 0; m < table->micros; m++) {
        ravel_micro_batch micro;
        (void)ravel_feed_micro(r->feed, 0, m, &micro, NULL);
        flops[m] = train_model_flops(&r->p->shape, adapter, micro.thd->samples_count, micro.lengths, 0) / micro.cp;
        if (flops[m] > most) most = flops[m];
    }
    for (int64_t m = 0; m < table->micros; m++) costs[m] = (int64_t)(flops[m] / most * 1e9);
    ravel_status status = ravel_pipeline_bubble(costs, table->micros, table->pp, table->vpp, &bubble, err);
    if (!status) *share = bubble.share;
    ravel__release(NULL, flops, bytes);
    return status;
}

/* Seconds of all parts since they were made. */
static double waited(const train_parts *p) {
    double sum = 0;
    for (int32_t chunk = 0; chunk < p->count; chunk++) sum += train_model_waited(p->models[chunk]);
    return sum;
}

/* Over NCCL: the time of all operations, on the GPU. */
static ravel_status read_wires(run *r, ravel_error *err) {
    train__wire_times t;
    train_parts_time *time = &r->time;
    ravel_status status = train__wires_time_end(r->p->wires, &t, err);
    if (status) return status;
    for (int way = 0; way < 2; way++) {
        const double *waited = t.waited[way];
        *(way ? &time->backward : &time->forward) = t.busy[way] - waited[TRAIN__WIRE_TP] - waited[TRAIN__WIRE_CP];
        time->busy += t.busy[way];
        time->tp += waited[TRAIN__WIRE_TP];
        time->cp += waited[TRAIN__WIRE_CP];
        time->exposed += waited[TRAIN__WIRE_SHARD];
    }
    time->seconds = t.seconds;
    /* of the stage that took longest: the first begins first and ends last */
    return ravel_comm_allreduce(r->p->pp, &time->seconds, &time->seconds, 1, RAVEL_F64, RAVEL_MAX, err);
}

const double *train_parts_micro_seconds(const train_parts *p, int64_t *count) {
    *count = p->micro_count;
    return p->micro_seconds;
}

/* The load of the whole update, before anything is learnt: by a pass of its own unless all is forward before any
 * backward. */
static ravel_status count_load(run *r, const train_pipeline *table, ravel_error *err) {
    if (!(r->p->aux > 0)) return RAVEL_OK;
    r->balance_due = 1;
    if (table->micros <= 1) return RAVEL_OK;
    r->counting = 1;
    ravel_status status = run_table(r, table, learn_op, err);
    r->counting = 0;
    return status ? status : set_balance(r, RAVEL_OK, err);
}

ravel_status train_parts_learn(train_parts *p, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_metrics *metrics, train_parts_time *time, ravel_error *err) {
    run r = {.p = p, .feed = feed, .work = work, .metrics = metrics};
    RAVEL_ASSERT(feed && work && !p->options.inference);
    train_pipeline table = table_of(p, micros);
    double begun = train__now(), before = waited(p);
    if (p->wires) train__wires_time_begin(p->wires);
    p->router = (train_router_figures){0};
    ravel_status status = count_load(&r, &table, err);
    if (!status) status = run_table(&r, &table, learn_op, err);
    if (p->shape.experts) status = ravel_agree(ravel_mesh_world(p->mesh), status, err);
    if (!status && p->shape.experts) status = p->aux > 0 ? train__balance_end(p, err) : train__balance_count(p, err);
    if (!status && p->wires) {
        status = read_wires(&r, err);
    } else {
        if (!status && table.pp > 1) status = ravel_comm_barrier(p->pp, err);
        r.time.seconds = train__now() - begun;
        r.time.exposed = waited(p) - before;
    }
    if (!status && time) status = predict(&r, &table, &r.time.predicted, err);
    if (time) *time = r.time;
    return ravel_agree(ravel_mesh_world(p->mesh), status, err);
}

ravel_status train_parts_score(train_parts *p, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_error *err) {
    run r = {.p = p, .feed = feed, .work = work};
    train_pipeline table = table_of(p, micros);
    return ravel_agree(ravel_mesh_world(p->mesh), run_table(&r, &table, score_op, err), err);
}
