#include "train/model/ranks/wires.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/ranks/stopwatch.h"

#include <stdio.h>
#include <string.h>

enum { WIRES = 64 };

typedef struct wire {
    ravel_comm *comm;
    ravel_stream *stream; /* the kernels', or its own */
    train__wire_use use;
} wire;

struct train__wires {
    const train_kernels *kernels;
    train_device *device;
    ravel_device *place;
    ravel_stream *stream; /* of the kernels */
    double timeout;       /* seconds */
    int32_t count;
    int32_t aborted;
    int32_t op;             /* that is measured: 0 forward, 1 backward, -1 none */
    int64_t marked;         /* start of the operation */
    int64_t entered, begun; /* start of the current call in the kernels' stream; of the measured interval */
    train__stopwatch watch;
    wire list[WIRES];
};

/* ---- lost ranks ------------------------------------------------------------------------------------------ */

void train__wires_abort(train__wires *w, const ravel_error *why) {
    if (!w || w->aborted) return;
    w->aborted = 1;
    for (int32_t i = 0; i < w->count; i++) ravel_comm_abort(w->list[i].comm, why);
}

static ravel_status look(void *user, double waited, ravel_error *err) {
    train__wires *w = user;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < w->count && !status; i++) status = ravel_comm_alive(w->list[i].comm, err);
    if (!status && waited > w->timeout)
        status =
            ravel_error_set(err, RAVEL_E_TIMEOUT, "timed out after %.0f s waiting for the GPUs of other ranks", waited);
    if (status) train__wires_abort(w, err);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

ravel_status train__wires_open(const train_kernels *kernels, train_device *device, int32_t gpu, ravel_comm *control,
                               train__wires **wires, ravel_error *err) {
    char name[64];
    train__wires *w = ravel__calloc(NULL, 1, sizeof *w);
    if (!w) return ravel__no_memory(err, sizeof *w, "communicators of a GPU");
    RAVEL_ASSERT(kernels->stream && kernels->watch);
    w->kernels = kernels;
    w->device = device;
    w->timeout = ravel_comm_timeout(control);
    (void)snprintf(name, sizeof name, "%s:%d", kernels->name, gpu);
    ravel_status status = ravel_device_open(name, &w->place, err);
    if (!status) status = ravel_stream_adopt(w->place, kernels->stream(device), &w->stream, err);
    w->op = -1;
    w->watch = (train__stopwatch){.place = w->place, .stream = w->stream};
    if (status) {
        train__wires_close(w);
        return status;
    }
    kernels->watch(device, look, w);
    *wires = w;
    return RAVEL_OK;
}

void train__wires_close(train__wires *w) {
    if (!w) return;
    for (int32_t i = 0; i < w->count && !w->aborted; i++) (void)train__wires_leave(w, w->list[i].comm, NULL);
    if (w->stream) (void)w->kernels->sync(w->device, NULL); /* looks, so that it ends where a rank is lost */
    for (int32_t i = 0; i < w->count; i++) {
        ravel_comm_free(w->list[i].comm);
        if (w->list[i].stream != w->stream) ravel_stream_free(w->list[i].stream);
    }
    w->kernels->watch(w->device, NULL, NULL);
    train__stopwatch_close(&w->watch);
    ravel_stream_free(w->stream);
    ravel_device_free(w->place);
    ravel__release(NULL, w, sizeof *w);
}

ravel_status train__wires_join(train__wires *w, ravel_comm *host, train__wire_stream stream, train__wire_use use,
                               ravel_comm **comm, ravel_error *err) {
    ravel_comm_options options;
    wire made = {.stream = w->stream, .use = use};
    ravel_comm_options_default(&options);
    options.timeout = ravel_comm_timeout(host);
    options.check = 0;
    options.queued = 1;
    RAVEL_ASSERT(w->count < WIRES);
    ravel_status status = stream == TRAIN__WIRE_OWN ? ravel_stream_create(w->place, &made.stream, err) : RAVEL_OK;
    status = ravel_agree(host, status, err);
    if (!status) status = ravel_comm_nccl(host, made.stream, &options, &made.comm, err);
    if (status) {
        if (made.stream != w->stream) ravel_stream_free(made.stream);
        return status;
    }
    ravel_comm_set_name(made.comm, ravel_comm_name(host));
    w->list[w->count++] = made;
    *comm = made.comm;
    return RAVEL_OK;
}

/* ---- time ------------------------------------------------------------------------------------------------ */

enum { TOTAL, BUSY, WAITED = BUSY + 2, KINDS = WAITED + 2 * TRAIN__WIRE_USES };

void train__wires_time_begin(train__wires *w) {
    w->begun = train__stopwatch_mark(&w->watch);
}

void train__wires_op_begin(train__wires *w, int backward) {
    RAVEL_ASSERT(w->op < 0);
    w->op = backward != 0;
    w->marked = train__stopwatch_mark(&w->watch);
}

void train__wires_op_end(train__wires *w) {
    RAVEL_ASSERT(w->op >= 0);
    train__stopwatch_add(&w->watch, BUSY + w->op, w->marked, train__stopwatch_mark(&w->watch));
    w->op = -1;
}

/* Before and after what kernels wait for. */
static int64_t wait_begins(train__wires *w) {
    return w->op >= 0 ? train__stopwatch_mark(&w->watch) : 0;
}

static void wait_ends(train__wires *w, train__wire_use use, int64_t from) {
    if (w->op < 0) return;
    train__stopwatch_add(&w->watch, WAITED + w->op * TRAIN__WIRE_USES + (int32_t)use, from,
                         train__stopwatch_mark(&w->watch));
}

ravel_status train__wires_time_end(train__wires *w, train__wire_times *times, ravel_error *err) {
    double seconds[KINDS];
    RAVEL_ASSERT(w->op < 0);
    train__stopwatch_add(&w->watch, TOTAL, w->begun, train__stopwatch_mark(&w->watch));
    ravel_status status = w->kernels->sync(w->device, err);
    if (status) return status;
    status = train__stopwatch_read(&w->watch, seconds, KINDS, err);
    times->seconds = seconds[TOTAL];
    memcpy(times->busy, seconds + BUSY, sizeof times->busy);
    memcpy(times->waited, seconds + WAITED, sizeof times->waited);
    return status;
}

/* ---- order ----------------------------------------------------------------------------------------------- */

static const wire *wire_of(const train__wires *w, const ravel_comm *comm) {
    for (int32_t i = 0; i < w->count; i++)
        if (w->list[i].comm == comm) return &w->list[i];
    RAVEL_ASSERT(0); /* a communicator that was not joined */
    return &w->list[0];
}

ravel_status train__wires_enter(train__wires *w, const ravel_comm *comm, ravel_error *err) {
    const wire *of = wire_of(w, comm);
    if (of->stream != w->stream) return ravel_stream_follow(of->stream, w->stream, err);
    w->entered = wait_begins(w); /* the operation itself is what the next kernel waits for */
    return RAVEL_OK;
}

ravel_status train__wires_leave(train__wires *w, const ravel_comm *comm, ravel_error *err) {
    const wire *of = wire_of(w, comm);
    int64_t from = of->stream == w->stream ? w->entered : wait_begins(w);
    ravel_status status = of->stream == w->stream ? RAVEL_OK : ravel_stream_follow(w->stream, of->stream, err);
    wait_ends(w, of->use, from);
    return status;
}

ravel_status train__wires_mark(train__wires *w, const ravel_comm *comm, ravel_event **event, ravel_error *err) {
    ravel_event *made = NULL;
    ravel_status status = ravel_event_create(w->place, &made, err);
    if (!status) status = ravel_event_record(made, wire_of(w, comm)->stream, err);
    if (status)
        ravel_event_free(made);
    else
        *event = made;
    return status;
}

ravel_status train__wires_order(train__wires *w, const ravel_comm *comm, ravel_event *event, ravel_error *err) {
    int64_t from = wait_begins(w);
    ravel_status status = ravel_event_order(event, w->stream, err);
    wait_ends(w, wire_of(w, comm)->use, from);
    ravel_event_free(event);
    return status;
}
