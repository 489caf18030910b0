#include "refit/model/carrier.h"

#include "base/assert.h"
#include "base/memory.h"
#include "device/cast.h"

#include <stdlib.h>
#include <string.h>

enum { FULL = 1 << 16, ITEMS_MOST = 1 << 22, BLOCK = 16 * 1024 };

/* A list that grows. */
typedef struct list {
    void *items;
    int64_t count, room;
} list;

struct ravel__casts {
    ravel__carrier *carrier;
    ravel_device *device;
    const ravel_allocator *allocator;
    ravel_stream *stream;
    list pieces, spans; /* of ravel__cast_piece and ravel__cast_span, on the host */
    int32_t unsorted, sent;
    ravel__cast_job job; /* of the lists that were sent */
    void *page, *there;  /* [room] bytes of spans, pieces and first pieces: page-locked, and on the device */
    size_t room;
    uint64_t *hashes; /* page-locked, [hash_room] */
    int64_t hash_room;
};

/* ---- create and free ------------------------------------------------------------------------------------ */

ravel_status ravel__casts_create(ravel__carrier *carrier, const ravel_allocator *allocator, ravel__casts **casts,
                                 ravel_error *err) {
    ravel__casts *c = ravel__calloc(allocator, 1, sizeof *c);
    if (!c) return ravel__no_memory(err, sizeof *c, "a list of casts");
    *c = (ravel__casts){.carrier = carrier, .device = ravel__carrier_device(carrier), .allocator = allocator};
    ravel_status status = ravel_stream_create(c->device, &c->stream, err);
    if (status == RAVEL_OK)
        *casts = c;
    else
        ravel__casts_free(c);
    return status;
}

void ravel__casts_free(ravel__casts *c) {
    if (!c) return;
    ravel_device_release(c->device, c->page, c->stream);
    ravel_device_release(c->device, c->there, c->stream);
    ravel_device_release(c->device, c->hashes, c->stream);
    ravel_stream_free(c->stream);
    ravel__release(c->allocator, c->pieces.items, (size_t)c->pieces.room * sizeof(ravel__cast_piece));
    ravel__release(c->allocator, c->spans.items, (size_t)c->spans.room * sizeof(ravel__cast_span));
    ravel__release(c->allocator, c, sizeof *c);
}

ravel_stream *ravel__casts_stream(const ravel__casts *c) {
    return c->stream;
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

static ravel_status append(ravel__casts *c, list *l, const void *item, size_t each, ravel_error *err) {
    if (l->count == l->room) {
        int64_t room = l->room > 0 ? 2 * l->room : 1024;
        if (room > ITEMS_MOST) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the tensors lie too scattered");
        void *more = ravel__resize(c->allocator, l->items, (size_t)l->room * each, (size_t)room * each);
        if (!more) return ravel__no_memory(err, (size_t)room * each, "a list of casts");
        l->items = more;
        l->room = room;
    }
    RAVEL_ASSERT(l->count < l->room);
    memcpy((char *)l->items + (size_t)l->count++ * each, item, each);
    c->sent = 0;
    return RAVEL_OK;
}

ravel_status ravel__casts_span(ravel__casts *c, int64_t at, int64_t bytes, ravel_error *err) {
    RAVEL_ASSERT(at >= 0 && at % 16 == 0 && bytes > 0);
    return append(c, &c->spans, &(ravel__cast_span){at, bytes}, sizeof(ravel__cast_span), err);
}

ravel_status ravel__casts_add_run(ravel__casts *c, void *elements, int32_t kind, int64_t at, int64_t bytes,
                                  ravel_error *err) {
    const ravel__cast_piece piece = {.at = at, .bytes = bytes, .tensor = elements, .kind = kind},
                            *before = c->pieces.items;
    RAVEL_ASSERT(at >= 0 && bytes > 0 && kind >= 0);
    if (c->pieces.count > 0 && before[c->pieces.count - 1].at > at) c->unsorted = 1;
    return append(c, &c->pieces, &piece, sizeof piece, err);
}

/* One addition on its way through the view. */
typedef struct walk {
    ravel__casts *casts;
    char *tensor;
    int64_t at, each, packed; /* bytes of an element of the tensor, and packed */
    int32_t kind;
} walk;

static ravel_status add_piece(void *user, int64_t at, int64_t count, ravel_error *err) {
    walk *w = user;
    ravel_status status =
        ravel__casts_add_run(w->casts, w->tensor + at * w->each, w->kind, w->at, count * w->packed, err);
    w->at += count * w->packed;
    return status;
}

int ravel__casts_can(int32_t dtype, int32_t wire) {
    return ravel__cast_of(dtype, wire) >= 0;
}

ravel_status ravel__casts_add(ravel__casts *c, const ravel__view *view, const void *tensor, const ravel__box *piece,
                              int64_t first, int64_t count, int32_t wire, int64_t at, ravel_error *err) {
    walk w = {.casts = c, .at = at, .each = ravel_dtype_bytes(view->dtype), .packed = ravel_dtype_bytes(wire)};
    w.kind = ravel__cast_of(view->dtype, wire);
    if (w.kind < 0)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "no kernel casts between %s and %s on the device",
                               ravel_dtype_name(view->dtype), ravel_dtype_name(wire));
    memcpy(&w.tensor, &tensor, sizeof w.tensor); /* is only read where it is packed */
    return ravel__view_pieces(view, piece, first, count, add_piece, &w, err);
}

void *ravel__casts_only(const ravel__casts *c) {
    const ravel__cast_piece *piece = c->pieces.items;
    return c->pieces.count == 1 && piece->kind == RAVEL__CAST_COPY ? piece->tensor : NULL;
}

int ravel__casts_full(const ravel__casts *c) {
    return c->pieces.count >= FULL;
}

void ravel__casts_drop(ravel__casts *c) {
    c->pieces.count = c->spans.count = 0;
    c->unsorted = c->sent = 0;
}

/* ---- running -------------------------------------------------------------------------------------------- */

static ravel_status grow(ravel__casts *c, int32_t kind, size_t bytes, void **array, ravel_error *err) {
    ravel_device_release(c->device, *array, c->stream);
    *array = NULL;
    return ravel_device_alloc(c->device, kind, bytes, c->stream, array, err);
}

static ravel_status make_room(ravel__casts *c, size_t bytes, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (bytes > c->room) {
        c->room = 0;
        status = grow(c, RAVEL_PINNED, 2 * bytes, &c->page, err);
        if (status == RAVEL_OK) status = grow(c, RAVEL_DEVICE, 2 * bytes, &c->there, err);
        if (status == RAVEL_OK) c->room = 2 * bytes;
    }
    if (status == RAVEL_OK && c->spans.count > c->hash_room) {
        void *hashes = c->hashes;
        c->hash_room = 0;
        status = grow(c, RAVEL_PINNED, 2 * (size_t)c->spans.count * sizeof *c->hashes, &hashes, err);
        c->hashes = hashes;
        if (status == RAVEL_OK) c->hash_room = 2 * c->spans.count;
    }
    return status;
}

static int by_place(const void *a, const void *b) {
    const ravel__cast_piece *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The three lists one after the other, to the device. */
static ravel_status send_lists(ravel__casts *c, int64_t bytes, ravel_error *err) {
    size_t spans = (size_t)c->spans.count * sizeof(ravel__cast_span), pieces_at = (spans + 63) / 64 * 64;
    size_t first_at = pieces_at + (size_t)c->pieces.count * sizeof(ravel__cast_piece);
    int64_t blocks = spans > 0 ? c->spans.count : (bytes + BLOCK - 1) / BLOCK;
    size_t all = first_at + (size_t)blocks * sizeof(int32_t);
    ravel_status status = make_room(c, all, err);
    if (status != RAVEL_OK) return status;
    if (c->unsorted) qsort(c->pieces.items, (size_t)c->pieces.count, sizeof(ravel__cast_piece), by_place);
    c->unsorted = 0;
    char *page = c->page, *there = c->there;
    if (spans > 0) memcpy(page, c->spans.items, spans);
    memcpy(page + pieces_at, c->pieces.items, first_at - pieces_at);
    ravel__cast_first(c->pieces.items, c->pieces.count, spans > 0 ? c->spans.items : NULL, blocks, BLOCK,
                      (int32_t *)(void *)(page + first_at));
    c->job = (ravel__cast_job){.pieces = (const ravel__cast_piece *)(const void *)(there + pieces_at),
                               .first = (const int32_t *)(const void *)(there + first_at),
                               .spans = spans > 0 ? (const ravel__cast_span *)(const void *)there : NULL,
                               .count = c->pieces.count,
                               .blocks = blocks,
                               .block = BLOCK};
    status = ravel_device_copy(c->device, there, page, all, c->stream, err);
    c->sent = status == RAVEL_OK;
    return status;
}

ravel_status ravel__casts_run(ravel__casts *c, void *buffer, int64_t bytes, int unpack, const uint64_t **hashes,
                              ravel_error *err) {
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT((uintptr_t)buffer % 16 == 0 && bytes >= 0 && (!hashes || c->pieces.count == 0 || c->spans.count > 0));
    if (hashes) *hashes = c->hashes;
    if (c->pieces.count == 0) return RAVEL_OK;
    bytes = (bytes + 15) / 16 * 16;
    if (!c->sent) status = send_lists(c, bytes, err);
    c->job.packed = buffer;
    c->job.bytes = bytes;
    c->job.unpack = unpack;
    c->job.hashes = hashes ? c->hashes : NULL;
    if (status == RAVEL_OK) status = ravel__carrier_order(c->carrier, c->stream, err);
    if (status == RAVEL_OK) status = ravel__launch_cast(c->stream, &c->job, err);
    if (status == RAVEL_OK) status = ravel_stream_wait(c->stream, RAVEL__CARRY_SECONDS, err);
    if (hashes) *hashes = c->hashes;
    return status;
}
