#include "refit/model/carrier.h"

#include "base/assert.h"
#include "base/memory.h"
#include "device/slab.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20, BLOCK = 16 * 1024, BLOCKS = CHUNK / BLOCK, PIECES = 4096 };

/* The lists of one kernel, as they are uploaded. */
typedef struct list {
    int32_t first[BLOCKS];
    ravel__cast_piece pieces[PIECES];
} list;

typedef struct lane {
    struct lane *next; /* of those that are idle */
    ravel_stream *stream;
    char *packed, *page; /* [CHUNK] on the device, and page-locked */
    list *lists, *there; /* page-locked, and on the device */
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

/* ---- create and free -----------------------------------------------------------------------------------------------
*/

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
    ravel_device_release(c->device, l->packed, l->stream);
    ravel_device_release(c->device, l->page, l->stream);
    ravel_device_release(c->device, l->lists, l->stream);
    ravel_device_release(c->device, l->there, l->stream);
    ravel_stream_free(l->stream);
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
    void *arrays[4] = {0};
    static const int32_t kinds[4] = {RAVEL_DEVICE, RAVEL_PINNED, RAVEL_PINNED, RAVEL_DEVICE};
    static const size_t sizes[4] = {CHUNK, CHUNK, sizeof(list), sizeof(list)};
    if (!l) return ravel__no_memory(err, sizeof *l, "a carrier's lane");
    ravel_status status = ravel_stream_create(c->device, &l->stream, err);
    for (int i = 0; i < 4 && status == RAVEL_OK; i++)
        status = ravel_device_alloc(c->device, kinds[i], sizes[i], l->stream, &arrays[i], err);
    l->packed = arrays[0];
    l->page = arrays[1];
    l->lists = arrays[2];
    l->there = arrays[3];
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
    if (status == RAVEL_OK) status = ravel__carrier_order(c, l->stream, err);
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
    lane *lane;
    enum { GATHER, SCATTER, COPY } way;
    char *tensor;       /* that is read, or written by SCATTER */
    char *other;        /* COPY: that is written */
    char *bytes;        /* the caller's, packed */
    int32_t dtype;      /* of the tensor */
    int32_t packed;     /* that the kernel makes of it */
    int32_t wire;       /* of the caller's bytes */
    int32_t kind;       /* ravel__cast_kind */
    int64_t each;       /* bytes of a packed element */
    int64_t used, list; /* of the chunk: bytes and pieces */
} trip;

static ravel_status launch(const trip *t, int unpack, ravel_error *err) {
    RAVEL_ASSERT(t->list > 0 && t->list <= PIECES && t->used > 0 && t->used <= CHUNK);
    const lane *l = t->lane;
    ravel__cast_job job = {.pieces = l->there->pieces,
                           .first = l->there->first,
                           .count = t->list,
                           .blocks = (t->used + BLOCK - 1) / BLOCK,
                           .packed = l->packed,
                           .bytes = (t->used + 15) / 16 * 16,
                           .block = BLOCK,
                           .unpack = unpack};
    size_t bytes = offsetof(list, pieces) + (size_t)t->list * sizeof(ravel__cast_piece);
    ravel__slab_first(l->lists->pieces, t->list, NULL, job.blocks, BLOCK, l->lists->first);
    ravel_status status = ravel_device_copy(t->carrier->device, l->there, l->lists, bytes, l->stream, err);
    return status == RAVEL_OK ? ravel__launch_cast(l->stream, &job, err) : status;
}

/* Between the caller's bytes and the page-locked buffer. */
static ravel_status pass(const trip *t, int in, ravel_error *err) {
    RAVEL_ASSERT(t->used % t->each == 0 && t->bytes);
    int64_t count = t->used / t->each;
    return in ? ravel_dtype_convert(t->wire, t->bytes, t->packed, t->lane->page, count, err)
              : ravel_dtype_convert(t->packed, t->lane->page, t->wire, t->bytes, count, err);
}

static ravel_status wait(const trip *t, ravel_error *err) {
    return ravel_stream_wait(t->lane->stream, RAVEL__CARRY_SECONDS, err);
}

static ravel_status gather_chunk(const trip *t, ravel_error *err) {
    ravel_device *device = t->carrier->device;
    const lane *l = t->lane;
    int direct = t->list == 1 && t->kind == RAVEL__CAST_COPY;
    const void *from = direct ? l->lists->pieces[0].tensor : l->packed;
    ravel_status status = direct ? RAVEL_OK : launch(t, 0, err);
    if (status == RAVEL_OK) status = ravel_device_copy(device, l->page, from, (size_t)t->used, l->stream, err);
    if (status == RAVEL_OK) status = wait(t, err);
    return status == RAVEL_OK ? pass(t, 0, err) : status;
}

static ravel_status scatter_chunk(const trip *t, ravel_error *err) {
    ravel_device *device = t->carrier->device;
    const lane *l = t->lane;
    int direct = t->list == 1 && t->kind == RAVEL__CAST_COPY;
    void *to = direct ? l->lists->pieces[0].tensor : l->packed;
    ravel_status status = pass(t, 1, err);
    if (status == RAVEL_OK) status = ravel_device_copy(device, to, l->page, (size_t)t->used, l->stream, err);
    if (status == RAVEL_OK && !direct) status = launch(t, 1, err);
    return status == RAVEL_OK ? wait(t, err) : status;
}

static ravel_status copy_chunk(const trip *t, ravel_error *err) {
    RAVEL_ASSERT(t->way == COPY && t->other && !t->bytes);
    const lane *l = t->lane;
    ravel_status status = launch(t, 0, err);
    if (status == RAVEL_OK) status = wait(t, err); /* the list is used again */
    for (int64_t i = 0; i < t->list; i++)
        l->lists->pieces[i].tensor = t->other + ((char *)l->lists->pieces[i].tensor - t->tensor);
    if (status == RAVEL_OK) status = launch(t, 1, err);
    return status == RAVEL_OK ? wait(t, err) : status;
}

static ravel_status flush(trip *t, ravel_error *err) {
    static ravel_status (*const ways[])(const trip *, ravel_error *) = {gather_chunk, scatter_chunk, copy_chunk};
    if (t->used == 0) return RAVEL_OK;
    RAVEL_ASSERT(t->way >= GATHER && t->way <= COPY && t->list > 0);
    ravel_status status = ways[t->way](t, err);
    if (t->bytes) t->bytes += t->used / t->each * ravel_dtype_bytes(t->wire);
    t->used = t->list = 0;
    return status;
}

static ravel_status add_piece(trip *t, int64_t at, int64_t count, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    while (count > 0 && status == RAVEL_OK) {
        int64_t room = (CHUNK - t->used) / t->each, n = count < room ? count : room;
        if (n == 0 || t->list == PIECES) {
            status = flush(t, err);
            continue;
        }
        t->lane->lists->pieces[t->list++] = (ravel__cast_piece){.at = t->used,
                                                                .bytes = n * t->each,
                                                                .tensor = t->tensor + at * ravel_dtype_bytes(t->dtype),
                                                                .scale = 1,
                                                                .kind = t->kind};
        t->used += n * t->each;
        RAVEL_ASSERT(t->used <= CHUNK && t->list <= PIECES);
        at += n;
        count -= n;
    }
    return status;
}

static ravel_status add_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    if (stride == 1) return add_piece(user, at, count, err);
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++) status = add_piece(user, at + i * stride, 1, err);
    return status;
}

static ravel_status go(trip *t, const ravel__view *view, const ravel__box *piece, int64_t first, int64_t count,
                       ravel_error *err) {
    t->kind = ravel__slab_cast(view->dtype, t->wire);
    if (t->kind < 0 || t->kind == RAVEL__CAST_F32_F8_E4M3) t->kind = RAVEL__CAST_COPY; /* the host casts */
    t->dtype = view->dtype;
    t->packed = t->kind == RAVEL__CAST_COPY ? view->dtype : t->wire;
    t->each = ravel_dtype_bytes(t->packed);
    RAVEL_ASSERT(t->each > 0 && t->each <= CHUNK && !t->lane && t->used == 0);
    ravel_status status = take_lane(t->carrier, &t->lane, err);
    if (status == RAVEL_OK) status = ravel__view_walk(view, piece, first, count, add_run, t, err);
    if (status == RAVEL_OK) status = flush(t, err);
    RAVEL_ASSERT(status != RAVEL_OK || t->used == 0);
    give_lane(t->carrier, t->lane);
    return status;
}

ravel_status ravel__carrier_gather(ravel__carrier *c, const ravel__view *view, const void *data,
                                   const ravel__box *piece, int64_t first, int64_t count, int32_t dtype, void *out,
                                   ravel_error *err) {
    trip t = {.carrier = c, .way = GATHER, .bytes = out, .wire = dtype};
    memcpy(&t.tensor, &data, sizeof t.tensor); /* is only read */
    return go(&t, view, piece, first, count, err);
}

ravel_status ravel__carrier_scatter(ravel__carrier *c, const ravel__view *view, void *data, const ravel__box *piece,
                                    int64_t first, int64_t count, int32_t dtype, const void *in, ravel_error *err) {
    trip t = {.carrier = c, .way = SCATTER, .tensor = data, .wire = dtype};
    memcpy(&t.bytes, &in, sizeof t.bytes); /* is only read */
    return go(&t, view, piece, first, count, err);
}

ravel_status ravel__carrier_copy(ravel__carrier *c, const ravel__view *view, const void *from, void *to,
                                 const ravel__box *piece, int64_t first, int64_t count, ravel_error *err) {
    trip t = {.carrier = c, .way = COPY, .other = to, .wire = view->dtype};
    memcpy(&t.tensor, &from, sizeof t.tensor); /* is only read */
    return go(&t, view, piece, first, count, err);
}
