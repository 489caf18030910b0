#include "train/model/wires.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <stdio.h>
#include <string.h>

enum { WIRES = 64 };

typedef struct wire {
    ravel_comm *comm;
    ravel_stream *stream; /* the kernels', or its own */
} wire;

struct train__wires {
    const train_kernels *kernels;
    train_device *device;
    ravel_device *place;
    ravel_stream *stream; /* of the kernels */
    double timeout;       /* seconds */
    int32_t count;
    int32_t aborted;
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
        status = ravel_error_set(err, RAVEL_E_TIMEOUT, "the GPU has waited %.0f s for other ranks, which is the most",
                                 waited);
    if (status) train__wires_abort(w, err);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

ravel_status train__wires_open(const train_kernels *kernels, train_device *device, int32_t gpu, ravel_comm *control,
                               train__wires **wires, ravel_error *err) {
    char name[64];
    train__wires *w = train__calloc(NULL, 1, sizeof *w);
    if (!w) return train__no_memory(err, sizeof *w, "communicators of a GPU");
    TRAIN_ASSERT(kernels->stream && kernels->watch);
    w->kernels = kernels;
    w->device = device;
    w->timeout = ravel_comm_timeout(control);
    (void)snprintf(name, sizeof name, "%s:%d", kernels->name, gpu);
    ravel_status status = ravel_device_open(name, &w->place, err);
    if (!status) status = ravel_stream_adopt(w->place, kernels->stream(device), &w->stream, err);
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
    ravel_stream_free(w->stream);
    ravel_device_free(w->place);
    train__release(NULL, w, sizeof *w);
}

ravel_status train__wires_join(train__wires *w, ravel_comm *host, train__wire_stream stream, ravel_comm **comm,
                               ravel_error *err) {
    ravel_comm_options options;
    wire made = {.stream = w->stream};
    ravel_comm_options_default(&options);
    options.timeout = ravel_comm_timeout(host);
    options.check = 0;
    options.queued = 1;
    TRAIN_ASSERT(w->count < WIRES);
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

/* ---- order ----------------------------------------------------------------------------------------------- */

static ravel_stream *stream_of(const train__wires *w, const ravel_comm *comm) {
    for (int32_t i = 0; i < w->count; i++)
        if (w->list[i].comm == comm) return w->list[i].stream;
    TRAIN_ASSERT(!"a communicator that was not joined");
    return w->stream;
}

ravel_status train__wires_enter(train__wires *w, const ravel_comm *comm, ravel_error *err) {
    ravel_stream *stream = stream_of(w, comm);
    return stream == w->stream ? RAVEL_OK : ravel_stream_follow(stream, w->stream, err);
}

ravel_status train__wires_leave(train__wires *w, const ravel_comm *comm, ravel_error *err) {
    ravel_stream *stream = stream_of(w, comm);
    return stream == w->stream ? RAVEL_OK : ravel_stream_follow(w->stream, stream, err);
}

ravel_status train__wires_mark(train__wires *w, const ravel_comm *comm, ravel_event **event, ravel_error *err) {
    ravel_event *made = NULL;
    ravel_status status = ravel_event_create(w->place, &made, err);
    if (!status) status = ravel_event_record(made, stream_of(w, comm), err);
    if (status)
        ravel_event_free(made);
    else
        *event = made;
    return status;
}

ravel_status train__wires_order(train__wires *w, ravel_event *event, ravel_error *err) {
    ravel_status status = ravel_event_order(event, w->stream, err);
    ravel_event_free(event);
    return status;
}
