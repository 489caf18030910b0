/* Runs the schedule: receive, compute, send.
 *
 *     forward     receive into the place's input    compute    its output is sent     until its backward
 *     backward    receive into the place's output   compute    its input is sent      until the place is used again
 *
 * Sends do not wait: a place is written again only after its rows have been sent. Sizes need no messages, since every
 * stage has the metadata of every micro-batch. */
#include "train/learn/parts_internal.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/learn/pipeline.h"

#include <math.h>
#include <string.h>

enum { TAG_ROWS = 41 }; /* and the tags after it: two per chunk */

typedef struct run {
    train_parts *p;
    const ravel_feed *feed;
    const train_work *work;
    ravel_metrics *metrics;
    train_parts_time time;
} run;

/* ---- batches -------------------------------------------------------------------------------------------- */

/* The ring of a group of the pool; NULL: the mesh's. */
static ravel_comm *ring_of(const train_parts *p, const ravel_micro_batch *micro) {
    for (int32_t i = 0; i < p->width_count; i++)
        if (p->widths[i] == micro->cp) return p->rings[i];
    return NULL;
}

/* The feed's arrays as the model takes them. A filler is one sample of one token. */
static train_batch batch_of(train_parts *p, const ravel_micro_batch *micro, double temperature) {
    const ravel_thd *thd = micro->thd;
    int32_t cp = micro->cp, samples = (int32_t)train__max(thd->samples_count, 1);
    TRAIN_ASSERT(cp >= 1 && (micro->shared || samples <= p->options.budget));
    train_batch b = {.samples = samples,
                     .tokens = micro->tokens,
                     .cu_seqlens = thd->cu_seqlens,
                     .cu_seqlens_padded = thd->cu_seqlens_padded,
                     .weights = micro->labels ? micro->weights : NULL,
                     .targets = micro->labels,
                     .temperature = temperature,
                     .shared = micro->shared,
                     .cp = ring_of(p, micro)};
    if (cp == 1) return b;
    for (int32_t i = 0; i <= samples; i++) p->cu[i] = thd->cu_seqlens_padded[i] / cp;
    b.cu_seqlens = p->cu;
    b.cu_seqlens_padded = NULL;
    b.positions = thd->positions;
    return b;
}

/* Rows of a micro-batch: its tokens, those that samples share counted once. */
static int64_t rows_of(const ravel_micro_batch *micro) {
    int64_t rows = micro->thd->local_tokens;
    if (!micro->shared) return rows;
    rows = 0;
    for (int64_t i = 0; i < micro->thd->samples_count; i++) rows += micro->lengths[i] - micro->shared[i];
    return rows;
}

static ravel_status get_batch(const run *r, train_op op, ravel_micro_batch *micro, train_batch *batch,
                              ravel_error *err) {
    train_parts *p = r->p;
    ravel_status status = ravel_feed_micro(r->feed, op.chunk, op.micro, micro, err);
    if (status) return status;
    if (rows_of(micro) > p->options.budget)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "a micro-batch of %lld tokens is over the budget of %lld",
                               (long long)rows_of(micro), (long long)p->options.budget);
    *batch = batch_of(p, micro, r->work->temperature);
    return RAVEL_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* Which of its chunk's places a micro-batch has. */
static int32_t flight_of(const train_parts *p, train_op op) {
    TRAIN_ASSERT(op.chunk >= 0 && op.chunk < p->count && op.micro >= 0);
    TRAIN_ASSERT(p->flights[op.chunk] >= 1 && p->flights[op.chunk] <= TRAIN_FLIGHTS);
    return (int32_t)(op.micro % p->flights[op.chunk]);
}

static int32_t tag_of(int32_t chunk, int backward) {
    TRAIN_ASSERT(chunk >= 0 && chunk < TRAIN_CHUNKS && (backward == 0 || backward == 1));
    return TAG_ROWS + 2 * chunk + backward;
}

/* Rows of a micro-batch on their way between two parts. */
typedef struct edge {
    const train__exchange *exchange;
    ravel_comm *comm;
    void *rows; /* on this rank */
    train__parcel parcel;
} edge;

/* The edge over which an operation gets its rows (in forward its input, in backward its output) or, `sent`, over which those go
 * that it made, with the tag of the part that needs them. 0: there is none. */
static int edge_of(const run *r, train_op op, int sent, const ravel_micro_batch *micro, edge *e) {
    train_parts *p = r->p;
    train_model *model = p->models[op.chunk];
    int32_t pp = train_layout_pp(&p->layout), part = train__parts_number(p, op.chunk), flight = flight_of(p, op);
    int32_t other = sent == op.backward ? part - 1 : part + 1;
    if (other < 0 || other == train_layout_parts(&p->layout)) return 0;
    *e = (edge){.exchange = train_model_exchange(model), .comm = p->wires ? p->edges[op.backward][sent] : p->pp};
    e->rows = sent == op.backward ? train_model_stage_input(model, flight) : train_model_stage_output(model, flight);
    e->parcel = train_model_stage_parcel(model, rows_of(micro), sent ? 1 + 2 * flight + op.backward : 0);
    e->parcel.peer = p->wires ? sent : other % pp;
    e->parcel.tag = tag_of(sent ? other / pp : op.chunk, op.backward);
    return 1;
}

static ravel_status receive(const run *r, train_op op, const ravel_micro_batch *micro, ravel_error *err) {
    edge e;
    train__message message;
    if (!edge_of(r, op, 0, micro, &e)) return RAVEL_OK;
    ravel_status status = train__exchange_receive(e.exchange, e.comm, e.rows, &e.parcel, &message, err);
    return status ? status : train__exchange_end(e.exchange, &message, err);
}

static ravel_status send(const run *r, train_op op, const ravel_micro_batch *micro, ravel_error *err) {
    edge e;
    if (!edge_of(r, op, 1, micro, &e)) return RAVEL_OK;
    train__place *place = &r->p->places[op.chunk][flight_of(r->p, op)];
    train__message *message = op.backward ? &place->back : &place->forth;
    TRAIN_ASSERT(!message->request && !message->event); /* the rows before have been sent */
    ravel_status status = train__exchange_send(e.exchange, e.comm, e.rows, &e.parcel, message, err);
    return status ? status : train__exchange_launch(e.exchange, message, err);
}

static ravel_status wait_for(const train_parts *p, int32_t chunk, train__message *message, ravel_error *err) {
    return train__exchange_end(train_model_exchange(p->models[chunk]), message, err);
}

static void test(train_parts *p, train__message *message) {
    ravel_error error = RAVEL_ERROR_INIT;
    ravel_status status = train__exchange_progress(message, &error);
    if (!status || p->sent) return;
    p->sent = status;
    p->sent_error = error;
}

void train__parts_progress(void *user) {
    train_parts *p = user;
    for (int32_t chunk = 0; chunk < p->count; chunk++)
        for (int32_t f = 0; f < p->flights[chunk]; f++) {
            test(p, &p->places[chunk][f].forth);
            test(p, &p->places[chunk][f].back);
        }
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static ravel_status forward(run *r, train_op op, train__place *place, const ravel_micro_batch *micro,
                            train_batch *batch, ravel_error *err) {
    train_parts *p = r->p;
    place->loss = (train_loss){0};
    ravel_status status = RAVEL_OK;
    if (r->work->begin) status = r->work->begin(r->work->user, micro, batch, &place->loss, err);
    if (status) return status;
    return train_model_stage_forward(p->models[op.chunk], flight_of(p, op), batch, r->work->begin ? &place->loss : NULL,
                                     err);
}

/* Fillers keep stages, and ranks that share out the weights, in step; a whole model needs no filler. */
static int is_skipped(const run *r, const ravel_micro_batch *micro) {
    return micro->filler && train_layout_parts(&r->p->layout) == 1 && !r->p->options.shard;
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
    TRAIN_ASSERT(elapsed >= 0 && tp >= 0 && cp >= 0 && op.micro < r->p->micro_count);
    r->p->micro_seconds[op.micro] += fmax(elapsed - tp - cp - (now.shard - s->shard), 0);
    *(op.backward ? &r->time.backward : &r->time.forward) += elapsed - tp - cp;
    r->time.busy += elapsed;
    r->time.tp += tp;
    r->time.cp += cp;
}

/* Over NCCL the host only puts operations into streams: the GPU's time is read when all are done. */
static void end_op(run *r, train_op op, const start *s) {
    if (r->p->wires)
        train__wires_op_end(r->p->wires);
    else
        count_time(r, op, s);
}

static ravel_status learn_op(run *r, train_op op, ravel_error *err) {
    train_parts *p = r->p;
    int32_t flight = flight_of(p, op);
    train__place *place = &p->places[op.chunk][flight];
    ravel_phase phase = op.backward ? RAVEL_PHASE_BACKWARD : RAVEL_PHASE_FORWARD;
    ravel_micro_batch micro;
    train_batch batch;
    ravel_status status = get_batch(r, op, &micro, &batch, err);
    if (status || is_skipped(r, &micro)) return status;
    status = wait_for(p, op.chunk, op.backward ? &place->forth : &place->back, err);
    if (!status) status = receive(r, op, &micro, err);
    if (status) return status;
    start begun = start_of(r, op);
    if (p->wires) train__wires_op_begin(p->wires, op.backward);
    if (r->metrics) (void)ravel_metrics_phase_begin(r->metrics, phase, NULL);
    status = op.backward ? train_model_stage_backward(p->models[op.chunk], flight, err)
                         : forward(r, op, place, &micro, &batch, err);
    if (r->metrics) (void)ravel_metrics_phase_end(r->metrics, phase, NULL);
    end_op(r, op, &begun);
    return status ? status : send(r, op, &micro, err);
}

static ravel_status score_op(run *r, train_op op, ravel_error *err) {
    train_parts *p = r->p;
    int32_t flight = flight_of(p, op);
    train__place *place = &p->places[op.chunk][flight];
    ravel_micro_batch micro;
    train_batch batch;
    train_result result = {.logprob = p->logprob};
    TRAIN_ASSERT(p->logprob);
    if (op.backward) return RAVEL_OK;
    ravel_status status = get_batch(r, op, &micro, &batch, err);
    if (status || is_skipped(r, &micro)) return status;
    if (r->work->begin) status = r->work->begin(r->work->user, &micro, &batch, NULL, err);
    if (!status) status = wait_for(p, op.chunk, &place->forth, err);
    if (!status) status = receive(r, op, &micro, err);
    if (!status) status = train_model_stage_score(p->models[op.chunk], flight, &batch, &result, err);
    if (!status) status = send(r, op, &micro, err);
    if (status || !r->work->take || !micro.last || micro.filler) return status;
    return r->work->take(r->work->user, &micro, &batch, p->logprob, err);
}

/* Waits for all sends, also after a failure, so that no transfer reads a place afterwards. */
static ravel_status finish_sends(train_parts *p, ravel_error *err) {
    ravel_status first = RAVEL_OK;
    for (int32_t chunk = 0; chunk < p->count; chunk++)
        for (int32_t f = 0; f < p->flights[chunk]; f++) {
            train__place *place = &p->places[chunk][f];
            ravel_status forth = wait_for(p, chunk, &place->forth, first ? NULL : err);
            if (!first) first = forth;
            ravel_status back = wait_for(p, chunk, &place->back, first ? NULL : err);
            if (!first) first = back;
            TRAIN_ASSERT(!place->forth.request && !place->back.request);
        }
    return first;
}

static ravel_status clear_times(train_parts *p, int64_t micros, ravel_error *err) {
    double *grown = train__grown(p->options.allocator, p->micro_seconds, &p->micro_room, 0, micros + 1, sizeof *grown);
    if (!grown) return train__no_memory(err, (size_t)(micros + 1) * sizeof *grown, "times of micro-batches");
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
    if (status && !train__is_lost(status) && p->options.shard)
        ravel_comm_abort(ravel_mesh_comm(p->mesh, RAVEL_AXIS_DP | RAVEL_AXIS_CP), err);
    if (status) train__wires_abort(p->wires, err); /* the GPUs of other ranks may wait for this one */
    ravel_status sent = finish_sends(p, status ? NULL : err);
    return status ? status : sent;
}

static train_pipeline table_of(const train_parts *p, int64_t micros) {
    TRAIN_ASSERT(micros >= 0 && p->layout.vpp == p->count);
    return (train_pipeline){train_layout_pp(&p->layout), p->layout.vpp, micros};
}

/* The share of the stages' time that they will wait, for micro-batches of these lengths. */
static ravel_status predict(const run *r, const train_pipeline *table, double *share, ravel_error *err) {
    ravel_bubble bubble;
    double most = 1;
    if (table->pp == 1 || table->micros == 0) return RAVEL_OK;
    size_t bytes = (size_t)table->micros * (sizeof(double) + sizeof(int64_t));
    double *flops = train__alloc(NULL, bytes);
    if (!flops) return train__no_memory(err, bytes, "costs of micro-batches");
    int64_t *costs = (int64_t *)(void *)(flops + table->micros);
    TRAIN_ASSERT(table->micros > 0 && table->pp > 1);
    for (int64_t m = 0; m < table->micros; m++) {
        ravel_micro_batch micro;
        (void)ravel_feed_micro(r->feed, 0, m, &micro, NULL);
        flops[m] = train_model_flops(&r->p->shape, micro.thd->samples_count, micro.lengths, 0) / micro.cp;
        if (flops[m] > most) most = flops[m];
    }
    for (int64_t m = 0; m < table->micros; m++) costs[m] = (int64_t)(flops[m] / most * 1e9);
    ravel_status status = ravel_pipeline_bubble(costs, table->micros, table->pp, table->vpp, &bubble, err);
    if (!status) *share = bubble.share;
    train__release(NULL, flops, bytes);
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

ravel_status train_parts_learn(train_parts *p, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_metrics *metrics, train_parts_time *time, ravel_error *err) {
    run r = {.p = p, .feed = feed, .work = work, .metrics = metrics};
    TRAIN_ASSERT(feed && work && !p->options.inference);
    train_pipeline table = table_of(p, micros);
    double begun = train__now(), before = waited(p);
    if (p->wires) train__wires_time_begin(p->wires);
    ravel_status status = run_table(&r, &table, learn_op, err);
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
