#include "refit/wire/payload.h"

#include "base/assert.h"
#include "device/slab.h"

#include <string.h>

enum { FULL = 1 << 16, PIECES_MOST = 1 << 24 };

/* A list that grows. */
typedef struct list {
    void *items;
    int64_t count, room;
} list;

struct ravel__payload {
    ravel__carrier *carrier;
    ravel_device *device;
    const ravel_allocator *allocator;
    ravel_stream *stream;
    list pieces, spans; /* of ravel__cast_piece and ravel__cast_span, on the host */
    void *page, *there; /* [room] spans, pieces and first pieces: page-locked, and on the device */
    int64_t room;       /* bytes */
    uint64_t *hashes;   /* page-locked, [hash_room] */
    int64_t hash_room;
};

/* ---- create and free -----------------------------------------------------------------------------------------------
*/

ravel_status ravel__payload_create(ravel__carrier *carrier, const ravel_allocator *allocator, ravel__payload **payload,
                                   ravel_error *err) {
    ravel__payload *p = ravel__calloc(allocator, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "the payloads of frames");
    *p = (ravel__payload){.carrier = carrier, .allocator = allocator, .device = ravel__carrier_device(carrier)};
    ravel_status status = ravel_stream_create(p->device, &p->stream, err);
    if (status == RAVEL_OK)
        *payload = p;
    else
        ravel__payload_free(p);
    return status;
}

void ravel__payload_free(ravel__payload *p) {
    if (!p) return;
    ravel_device_release(p->device, p->page, p->stream);
    ravel_device_release(p->device, p->there, p->stream);
    ravel_device_release(p->device, p->hashes, p->stream);
    ravel_stream_free(p->stream);
    ravel__release(p->allocator, p->pieces.items, (size_t)p->pieces.room * sizeof(ravel__cast_piece));
    ravel__release(p->allocator, p->spans.items, (size_t)p->spans.room * sizeof(ravel__cast_span));
    ravel__release(p->allocator, p, sizeof *p);
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

static ravel_status append(ravel__payload *p, list *l, const void *item, size_t each, ravel_error *err) {
    if (l->count == l->room) {
        int64_t room = l->room > 0 ? 2 * l->room : 1024;
        if (room > PIECES_MOST) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the tensors lie too scattered");
        void *more = ravel__resize(p->allocator, l->items, (size_t)l->room * each, (size_t)room * each);
        if (!more) return ravel__no_memory(err, (size_t)room * each, "the pieces of a frame");
        l->items = more;
        l->room = room;
    }
    RAVEL_ASSERT(l->count < l->room);
    memcpy((char *)l->items + (size_t)l->count++ * each, item, each);
    return RAVEL_OK;
}

/* One addition on its way through the view. */
typedef struct walk {
    ravel__payload *payload;
    ravel__cast_piece next;
    int64_t each, packed; /* bytes of an element of the tensor, and on the wire */
    char *tensor;
} walk;

static ravel_status add_piece(void *user, int64_t at, int64_t count, ravel_error *err) {
    walk *w = user;
    RAVEL_ASSERT(at >= 0 && count > 0 && w->packed > 0);
    w->next.tensor = w->tensor + at * w->each;
    w->next.bytes = count * w->packed;
    ravel_status status = append(w->payload, &w->payload->pieces, &w->next, sizeof w->next, err);
    w->next.at += w->next.bytes;
    return status;
}

int ravel__payload_can(int32_t dtype, int32_t wire, int unpack) {
    int32_t kind = ravel__slab_cast(dtype, wire);
    return kind >= 0 && !(unpack && kind == RAVEL__CAST_F32_F8_E4M3);
}

ravel_status ravel__payload_add(ravel__payload *p, const ravel__view *view, const void *tensor, const ravel__box *piece,
                                int64_t first, int64_t count, int32_t wire, int64_t at, ravel_error *err) {
    walk w = {.payload = p, .each = ravel_dtype_bytes(view->dtype), .packed = ravel_dtype_bytes(wire)};
    const ravel__cast_span span = {at, count * w.packed};
    w.next = (ravel__cast_piece){.at = at, .scale = 1, .kind = ravel__slab_cast(view->dtype, wire)};
    memcpy(&w.tensor, &tensor, sizeof w.tensor); /* is only read where it is packed */
    RAVEL_ASSERT(at % 16 == 0 && w.next.kind >= 0 && count > 0 && span.bytes <= RAVEL__PAYLOAD_BLOCK);
    ravel_status status = append(p, &p->spans, &span, sizeof span, err);
    return status == RAVEL_OK ? ravel__view_pieces(view, piece, first, count, add_piece, &w, err) : status;
}

int ravel__payload_full(const ravel__payload *p) {
    return p->pieces.count >= FULL;
}

void ravel__payload_drop(ravel__payload *p) {
    p->pieces.count = p->spans.count = 0;
}

/* ---- running -------------------------------------------------------------------------------------------- */

/* Where the three lists are in one array. */
typedef struct layout {
    size_t pieces_at, first_at, bytes;
} layout;

static layout lay_out(const ravel__payload *p) {
    layout l = {.pieces_at = (size_t)p->spans.count * sizeof(ravel__cast_span)};
    l.first_at = l.pieces_at + (size_t)p->pieces.count * sizeof(ravel__cast_piece);
    l.bytes = l.first_at + (size_t)p->spans.count * sizeof(int32_t);
    return l;
}

static ravel_status grow(ravel__payload *p, int32_t kind, size_t bytes, void **array, ravel_error *err) {
    ravel_device_release(p->device, *array, p->stream);
    *array = NULL;
    return ravel_device_alloc(p->device, kind, bytes, p->stream, array, err);
}

static ravel_status make_room(ravel__payload *p, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(bytes > 0 && p->room >= 0);
    ravel_status status = RAVEL_OK;
    if ((int64_t)bytes > p->room) {
        p->room = 0;
        status = grow(p, RAVEL_PINNED, 2 * bytes, &p->page, err);
        if (status == RAVEL_OK) status = grow(p, RAVEL_DEVICE, 2 * bytes, &p->there, err);
        if (status == RAVEL_OK) p->room = 2 * (int64_t)bytes;
    }
    if (status == RAVEL_OK && p->spans.count > p->hash_room) {
        void *hashes = p->hashes;
        p->hash_room = 0;
        status = grow(p, RAVEL_PINNED, 2 * (size_t)p->spans.count * sizeof *p->hashes, &hashes, err);
        p->hashes = hashes;
        if (status == RAVEL_OK) p->hash_room = 2 * p->spans.count;
    }
    return status;
}

static ravel_status launch(ravel__payload *p, const layout *l, void *buffer, int64_t bytes, int unpack,
                           ravel_error *err) {
    RAVEL_ASSERT(p->pieces.count > 0 && p->spans.count > 0 && (int64_t)l->bytes <= p->room &&
                 p->spans.count <= p->hash_room);
    char *page = p->page, *there = p->there;
    ravel__cast_job job = {.pieces = (const ravel__cast_piece *)(const void *)(there + l->pieces_at),
                           .first = (const int32_t *)(const void *)(there + l->first_at),
                           .spans = (const ravel__cast_span *)(const void *)there,
                           .count = p->pieces.count,
                           .blocks = p->spans.count,
                           .packed = buffer,
                           .bytes = bytes,
                           .unpack = unpack,
                           .hashes = p->hashes};
    memcpy(page, p->spans.items, l->pieces_at);
    memcpy(page + l->pieces_at, p->pieces.items, l->first_at - l->pieces_at);
    ravel__slab_first(p->pieces.items, p->pieces.count, p->spans.items, p->spans.count, 0,
                      (int32_t *)(void *)(page + l->first_at));
    ravel_status status = ravel__carrier_order(p->carrier, p->stream, err);
    if (status == RAVEL_OK) status = ravel_device_copy(p->device, there, page, l->bytes, p->stream, err);
    if (status == RAVEL_OK) status = ravel__launch_cast(p->stream, &job, err);
    return status == RAVEL_OK ? ravel_stream_wait(p->stream, RAVEL__CARRY_SECONDS, err) : status;
}

ravel_status ravel__payload_run(ravel__payload *p, void *buffer, int64_t bytes, int unpack, const uint64_t **hashes,
                                int64_t *count, ravel_error *err) {
    layout l = lay_out(p);
    *count = p->spans.count;
    ravel_status status = *count > 0 ? make_room(p, l.bytes, err) : RAVEL_OK;
    if (status == RAVEL_OK && *count > 0) status = launch(p, &l, buffer, bytes, unpack, err);
    *hashes = p->hashes;
    ravel__payload_drop(p);
    return status;
}
