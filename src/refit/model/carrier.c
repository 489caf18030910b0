#include "refit/model/carrier.h"

#include "base/assert.h"
#include "base/memory.h"
#include "device/handle.h"
#include "refit/model/casts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20, PIECES = 4096 };

typedef struct lane {
    struct lane *next; /* of those that are idle */
    ravel__casts *casts;
    char *packed, *page; /* [CHUNK] on the device, and page-locked */
} lane;

struct ravel__carrier {
    ravel_device *device;
    const ravel_refit_tensor *tensors;
    int64_t count;
    ravel_stream *gate; /* follows the tensors' streams */
    ravel_event *ready; /* recorded there */
    pthread_mutex_t lock;
    lane *idle;
};

/* ---- create and free --------------------------------------------------------------------------------------------- */

static ravel_status check_places(const ravel_refit_tensor *tensors, int64_t count, const char *what,
                                 ravel_device **device, ravel_error *err) {
    *device = NULL;
    for (int64_t i = 0; i < count; i++) {
        const ravel_place *place = &tensors[i].place;
        char name[128];
        (void)snprintf(name, sizeof name, "%s tensor \"%.80s\"", what, tensors[i].name ? tensors[i].name : "");
        ravel_status status = ravel__place_check(place, RAVEL__ALL_KINDS, name, err);
        if (status != RAVEL_OK) return status;
        ravel_device *here = place->kind == RAVEL_DEVICE ? ravel_stream_device(place->stream) : NULL;
        if (i > 0 && here != *device)
            return ravel_error_set(
                err, RAVEL_E_ARGUMENT,
                "%s is elsewhere than tensor \"%s\"; the tensors of a %s are all in host memory or all "
                "on one device",
                name, tensors[0].name, what);
        *device = here;
    }
    return RAVEL_OK;
}

ravel_status ravel__carrier_open(const ravel_refit_tensor *tensors, int64_t count, const char *what,
                                 ravel__holding *holding, ravel_error *err) {
    RAVEL_ASSERT(!holding->carrier);
    ravel_device *device = NULL;
    ravel_status status = check_places(tensors, count, what, &device, err);
    if (status != RAVEL_OK || !device) return status;
    ravel__carrier *c = ravel__calloc(NULL, 1, sizeof *c);
    if (!c) return ravel__no_memory(err, sizeof *c, "a carrier");
    *c = (ravel__carrier){.device = device, .tensors = tensors, .count = count};
    pthread_mutex_init(&c->lock, NULL);
    status = ravel_stream_create(device, &c->gate, err);
    if (status == RAVEL_OK) status = ravel_event_create(device, &c->ready, err);
    if (status != RAVEL_OK) {
        ravel__carrier_free(c);
        return status;
    }
    for (int64_t i = 0; i < holding->count; i++) holding->items[i].view.carrier = c;
    holding->carrier = c;
    return RAVEL_OK;
}

static void free_lane(const ravel__carrier *c, lane *l) {
    if (l->packed) ravel_device_release(c->device, l->packed, ravel__casts_stream(l->casts));
    if (l->page) ravel_device_release(c->device, l->page, ravel__casts_stream(l->casts));
    ravel__casts_free(l->casts);
    ravel__release(NULL, l, sizeof *l);
}

void ravel__carrier_free(ravel__carrier *c) {
    if (!c) return;
    while (c->idle) {
        lane *l = c->idle;
        c->idle = l->next;
        free_lane(c, l);
    }
    ravel_event_free(c->ready);
    ravel_stream_free(c->gate);
    pthread_mutex_destroy(&c->lock);
    ravel__release(NULL, c, sizeof *c);
}

ravel_device *ravel__carrier_device(const ravel__carrier *c) {
    return c->device;
}

void *ravel__carrier_alloc(ravel__carrier *c, size_t bytes) {
    void *array = NULL;
    return ravel_device_alloc(c->device, RAVEL_DEVICE, bytes, c->gate, &array, NULL) == RAVEL_OK ? array : NULL;
}

void ravel__carrier_release(ravel__carrier *c, void *array) {
    ravel_device_release(c->device, array, c->gate);
}

/* ---- order ---------------------------------------------------------------------------------------------- */

ravel_status ravel__carrier_follow(ravel__carrier *c, ravel_error *err) {
    const ravel_stream *last = NULL;
    ravel_status status = RAVEL_OK;
    if (!c) return RAVEL_OK;
    for (int64_t i = 0; i < c->count && status == RAVEL_OK; i++) { /* most often they are one and the same */
        ravel_stream *stream = c->tensors[i].place.stream;
        if (stream != last) status = ravel_stream_follow(c->gate, stream, err);
        last = stream;
    }
    return status == RAVEL_OK ? ravel_event_record(c->ready, c->gate, err) : status;
}

ravel_status ravel__carrier_order(ravel__carrier *c, ravel_stream *stream, ravel_error *err) {
    return ravel_event_order(c->ready, stream, err);
}

/* ---- lanes ---------------------------------------------------------------------------------------------- */

static ravel_status make_lane(ravel__carrier *c, lane **made, ravel_error *err) {
    lane *l = ravel__calloc(NULL, 1, sizeof *l);
    void *packed = NULL, *page = NULL;
    if (!l) return ravel__no_memory(err, sizeof *l, "a carrier's lane");
    ravel_status status = ravel__casts_create(c, NULL, &l->casts, err);
    if (status == RAVEL_OK)
        status = ravel_device_alloc(c->device, RAVEL_DEVICE, CHUNK, ravel__casts_stream(l->casts), &packed, err);
    if (status == RAVEL_OK)
        status = ravel_device_alloc(c->device, RAVEL_PINNED, CHUNK, ravel__casts_stream(l->casts), &page, err);
    l->packed = packed;
    l->page = page;
    if (status == RAVEL_OK)
        *made = l;
    else
        free_lane(c, l);
    return status;
}

static ravel_status take_lane(ravel__carrier *c, lane **taken, ravel_error *err) {
    pthread_mutex_lock(&c->lock);
    lane *l = c->idle;
    if (l) c->idle = l->next;
    pthread_mutex_unlock(&c->lock);
    ravel_status status = l ? RAVEL_OK : make_lane(c, &l, err);
    if (status == RAVEL_OK) status = ravel__carrier_order(c, ravel__casts_stream(l->casts), err);
    *taken = l;
    return status;
}

static void give_lane(ravel__carrier *c, lane *l) {
    if (!l) return;
    pthread_mutex_lock(&c->lock);
    l->next = c->idle;
    c->idle = l;
    pthread_mutex_unlock(&c->lock);
}

/* ---- chunks --------------------------------------------------------------------------------------------- */

/* One call on its way. */
typedef struct trip {
    ravel__carrier *carrier;
    const ravel__view *view;
    const ravel__box *piece;
    enum { GATHER, SCATTER, COPY } way;
    char *tensor;   /* that is read, or written by SCATTER */
    char *other;    /* COPY: that is written */
    char *bytes;    /* the caller's, packed */
    int32_t packed; /* that the kernel makes of it */
    int32_t wire;   /* of the caller's bytes */
} trip;

static ravel_status list_chunk(const trip *t, const lane *l, const void *tensor, int64_t first, int64_t count,
                               ravel_error *err) {
    ravel__casts_drop(l->casts);
    return ravel__casts_add(l->casts, t->view, tensor, t->piece, first, count, t->packed, 0, err);
}

static ravel_status run(const lane *l, size_t bytes, int unpack, ravel_error *err) {
    return ravel__casts_run(l->casts, l->packed, (int64_t)bytes, unpack, NULL, err);
}

/* A run that fills the chunk and needs no cast is copied without a kernel. */
static ravel_status move_chunk(const trip *t, const lane *l, int64_t first, int64_t count, ravel_error *err) {
    ravel_device *device = t->carrier->device;
    ravel_stream *stream = ravel__casts_stream(l->casts);
    size_t bytes = (size_t)(count * ravel_dtype_bytes(t->packed));
    RAVEL_ASSERT(bytes > 0 && bytes <= CHUNK);
    ravel_status status = list_chunk(t, l, t->tensor, first, count, err);
    void *only = ravel__casts_only(l->casts), *at = only ? only : l->packed;
    if (t->way == SCATTER) {
        if (status == RAVEL_OK) status = ravel_dtype_convert(t->wire, t->bytes, t->packed, l->page, count, err);
        if (status == RAVEL_OK) status = ravel_device_copy(device, at, l->page, bytes, stream, err);
        if (status == RAVEL_OK && !only) return run(l, bytes, 1, err);
        return status == RAVEL_OK ? ravel_stream_wait(stream, RAVEL__CARRY_SECONDS, err) : status;
    }
    if (status == RAVEL_OK && (!only || t->way == COPY)) status = run(l, bytes, 0, err);
    if (t->way == COPY) {
        if (status == RAVEL_OK) status = list_chunk(t, l, t->other, first, count, err);
        return status == RAVEL_OK ? run(l, bytes, 1, err) : status;
    }
    if (status == RAVEL_OK) status = ravel_device_copy(device, l->page, at, bytes, stream, err);
    if (status == RAVEL_OK) status = ravel_stream_wait(stream, RAVEL__CARRY_SECONDS, err);
    return status == RAVEL_OK ? ravel_dtype_convert(t->packed, l->page, t->wire, t->bytes, count, err) : status;
}

static ravel_status go(trip *t, int64_t first, int64_t count, ravel_error *err) {
    int can = ravel__casts_can(t->view->dtype, t->wire); /* else the host casts */
    t->packed = can ? t->wire : t->view->dtype;
    int64_t most = CHUNK / ravel_dtype_bytes(t->packed), run_length = ravel__view_run(t->view, t->piece);
    if (run_length < most / PIECES) most = run_length * PIECES;
    lane *l = NULL;
    ravel_status status = take_lane(t->carrier, &l, err);
    for (int64_t done = 0, n; done < count && status == RAVEL_OK; done += n) {
        n = count - done < most ? count - done : most;
        status = move_chunk(t, l, first + done, n, err);
        if (t->bytes) t->bytes += n * ravel_dtype_bytes(t->wire);
    }
    give_lane(t->carrier, l);
    return status;
}

ravel_status ravel__carrier_gather(ravel__carrier *c, const ravel__view *view, const void *data,
                                   const ravel__box *piece, int64_t first, int64_t count, int32_t dtype, void *out,
                                   ravel_error *err) {
    trip t = {.carrier = c, .view = view, .piece = piece, .way = GATHER, .bytes = out, .wire = dtype};
    memcpy(&t.tensor, &data, sizeof t.tensor); /* is only read */
    return go(&t, first, count, err);
}

ravel_status ravel__carrier_scatter(ravel__carrier *c, const ravel__view *view, void *data, const ravel__box *piece,
                                    int64_t first, int64_t count, int32_t dtype, const void *in, ravel_error *err) {
    trip t = {.carrier = c, .view = view, .piece = piece, .way = SCATTER, .tensor = data, .wire = dtype};
    memcpy(&t.bytes, &in, sizeof t.bytes); /* is only read */
    return go(&t, first, count, err);
}

ravel_status ravel__carrier_copy(ravel__carrier *c, const ravel__view *view, const void *from, void *to,
                                 const ravel__box *piece, int64_t first, int64_t count, ravel_error *err) {
    trip t = {.carrier = c, .view = view, .piece = piece, .way = COPY, .other = to, .wire = view->dtype};
    memcpy(&t.tensor, &from, sizeof t.tensor); /* is only read */
    return go(&t, first, count, err);
}
