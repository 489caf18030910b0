#include "refit/publish/store_device.h"

#include "base/assert.h"
#include "device/slab.h"
#include "refit/model/carrier.h"

#include <string.h>

enum { PIECES_MOST = 1 << 22 };
static const int64_t chunk_bytes = 64 << 20; /* that are waited for at once */

typedef struct kept_slot {
    ravel_shared *shared;
    unsigned char *page;   /* page-locked, [bytes]; NULL: not asked for yet */
    ravel_event **arrived; /* [chunks] */
    int32_t brought;       /* the copy of this version was started */
} kept_slot;

struct ravel__device_store {
    ravel__carrier *carrier;
    ravel_device *device;
    ravel_stream *pack, *back; /* to the slots; to the host */
    int64_t bytes, blocks, pieces, chunks;
    void *lists;          /* on the device: spans, first, pieces */
    const int32_t *first; /* in it */
    const ravel__cast_piece *list;
    uint64_t *hashes;     /* page-locked, [blocks] */
    pthread_mutex_t lock; /* of `back` and the slots' pages */
    int32_t keep;
    kept_slot *slots;
};

/* ---- lists ---------------------------------------------------------------------------------------------- */

/* Walks all items; fills the list where there is one. */
typedef struct walk {
    ravel__cast_piece *list;
    int64_t count;
    int64_t at; /* of the next run in a version */
    char *tensor;
    int32_t kind;
    int64_t each, packed; /* bytes of an element of the tensor, and of its packed form */
} walk;

static ravel_status add_piece(void *user, int64_t at, int64_t count, ravel_error *err) {
    RAVEL_ASSERT(at >= 0 && count > 0);
    walk *w = user;
    if (w->count == PIECES_MOST) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the tensors lie too scattered");
    if (w->list)
        w->list[w->count] = (ravel__cast_piece){
            .at = w->at, .bytes = count * w->packed, .tensor = w->tensor + at * w->each, .scale = 1, .kind = w->kind};
    w->count++;
    w->at += count * w->packed;
    return RAVEL_OK;
}

static ravel_status walk_items(const ravel__store *s, const ravel_refit_source *source, walk *w, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    w->count = 0;
    for (int64_t i = 0; i < s->holding->count && status == RAVEL_OK; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        const ravel__store_item *item = &s->items[i];
        w->kind = ravel__slab_cast(view->dtype, item->view.dtype);
        if (w->kind < 0) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "no kernel casts this");
        w->at = item->at;
        w->tensor = source->tensors[view->tensor].data;
        w->each = ravel_dtype_bytes(view->dtype);
        w->packed = ravel_dtype_bytes(item->view.dtype);
        status = ravel__view_pieces(view, &view->box, 0, item->elements, add_piece, w, err);
    }
    return status;
}

static void list_spans(const ravel__store *s, ravel__cast_span *spans) {
    int64_t b = 0;
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__store_item *item = &s->items[i];
        int64_t each = ravel_dtype_bytes(item->view.dtype);
        for (int64_t done = 0; done < item->elements; done += item->per_block) {
            int64_t left = item->elements - done, count = left < item->per_block ? left : item->per_block;
            spans[b++] = (ravel__cast_span){item->at + done * each, count * each};
        }
    }
    RAVEL_ASSERT(b == s->blocks);
}

/* Makes the three lists on the host and sends them to the device. */
static ravel_status send_lists(ravel__device_store *d, const ravel__store *s, const ravel_refit_source *source,
                               ravel_error *err) {
    RAVEL_ASSERT(!d->lists && d->blocks > 0 && d->pieces > 0);
    size_t spans_bytes = (size_t)d->blocks * sizeof(ravel__cast_span);
    size_t pieces_bytes = (size_t)d->pieces * sizeof(ravel__cast_piece), first_bytes = (size_t)d->blocks * 4;
    size_t all = spans_bytes + pieces_bytes + first_bytes;
    char *lists = ravel__alloc(s->allocator, all);
    if (!lists) return ravel__no_memory(err, all, "the lists of a version's pieces");
    ravel__cast_span *spans = (ravel__cast_span *)(void *)lists;
    walk w = {.list = (ravel__cast_piece *)(void *)(lists + spans_bytes)};
    list_spans(s, spans);
    ravel_status status = walk_items(s, source, &w, err);
    RAVEL_ASSERT(status != RAVEL_OK || w.count == d->pieces); /* the lists are as long as they were counted */
    ravel__slab_first(w.list, d->pieces, spans, d->blocks, 0, (int32_t *)(void *)(lists + spans_bytes + pieces_bytes));
    if (status == RAVEL_OK) status = ravel_device_alloc(d->device, RAVEL_DEVICE, all, d->pack, &d->lists, err);
    if (status == RAVEL_OK) status = ravel_device_copy(d->device, d->lists, lists, all, d->pack, err);
    if (status == RAVEL_OK) status = ravel_stream_wait(d->pack, RAVEL__CARRY_SECONDS, err);
    ravel__release(s->allocator, lists, all);
    d->list = (const ravel__cast_piece *)(const void *)((const char *)d->lists + spans_bytes);
    d->first = (const int32_t *)(const void *)((const char *)d->lists + spans_bytes + pieces_bytes);
    return status;
}

/* ---- create and free -----------------------------------------------------------------------------------------------
*/

static ravel_status make_slots(ravel__device_store *d, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t k = 0; k < d->keep && status == RAVEL_OK; k++)
        status = ravel_shared_create(d->device, (size_t)d->bytes, &d->slots[k].shared, err);
    if (status == RAVEL_E_MEMORY)
        ravel_error_prefix(err, "%d versions of %lld bytes each are kept on the device", d->keep, (long long)d->bytes);
    return status;
}

static ravel_status prepare(ravel__device_store *d, const ravel__store *s, const ravel_refit_source *source,
                            ravel_error *err) {
    void *hashes = NULL;
    ravel_status status = ravel_stream_create(d->device, &d->pack, err);
    if (status == RAVEL_OK) status = ravel_stream_create(d->device, &d->back, err);
    if (status == RAVEL_OK) status = send_lists(d, s, source, err);
    if (status == RAVEL_OK)
        status = ravel_device_alloc(d->device, RAVEL_PINNED, (size_t)d->blocks * 8, d->pack, &hashes, err);
    d->hashes = hashes;
    return status == RAVEL_OK ? make_slots(d, err) : status;
}

ravel_status ravel__device_store_open(const ravel__store *s, const ravel_refit_source *source,
                                      ravel__device_store **made, ravel_error *err) {
    walk w = {0};
    *made = NULL;
    if (!s->holding->carrier || source->iterate || s->blocks == 0 || s->blocks > INT32_MAX ||
        s->block_bytes % 1024 != 0 || walk_items(s, source, &w, NULL) != RAVEL_OK)
        return RAVEL_OK;
    ravel__device_store *d = ravel__calloc(NULL, 1, sizeof *d);
    if (!d) return ravel__no_memory(err, sizeof *d, "a store on a device");
    *d = (ravel__device_store){.carrier = s->holding->carrier, .keep = s->keep, .bytes = s->bytes};
    d->device = ravel__carrier_device(d->carrier);
    d->blocks = s->blocks;
    d->pieces = w.count;
    d->chunks = (s->bytes + chunk_bytes - 1) / chunk_bytes;
    pthread_mutex_init(&d->lock, NULL);
    d->slots = ravel__calloc(NULL, (size_t)s->keep, sizeof *d->slots);
    ravel_status status = d->slots ? prepare(d, s, source, err) : ravel__no_memory(err, 0, "the kept versions");
    if (status == RAVEL_OK)
        *made = d;
    else
        ravel__device_store_free(d);
    return status;
}

static void free_slot(const ravel__device_store *d, kept_slot *s) {
    for (int64_t c = 0; s->arrived && c < d->chunks; c++) ravel_event_free(s->arrived[c]);
    ravel__release(NULL, (void *)s->arrived, (size_t)d->chunks * sizeof(void *));
    ravel_device_release(d->device, s->page, d->back);
    ravel_shared_free(s->shared);
}

void ravel__device_store_free(ravel__device_store *d) {
    if (!d) return;
    if (d->back) (void)ravel_stream_wait(d->back, RAVEL__CARRY_SECONDS, NULL);
    for (int32_t k = 0; d->slots && k < d->keep; k++) free_slot(d, &d->slots[k]);
    ravel__release(NULL, d->slots, (size_t)d->keep * sizeof *d->slots);
    ravel_device_release(d->device, d->lists, d->pack);
    ravel_device_release(d->device, d->hashes, d->pack);
    ravel_stream_free(d->pack);
    ravel_stream_free(d->back);
    pthread_mutex_destroy(&d->lock);
    ravel__release(NULL, d, sizeof *d);
}

ravel_device *ravel__device_store_device(const ravel__device_store *d) {
    return d->device;
}

ravel_shared *ravel__device_store_slot(const ravel__device_store *d, int32_t slot) {
    RAVEL_ASSERT(slot >= 0 && slot < d->keep);
    return d->slots[slot].shared;
}

/* ---- a version ------------------------------------------------------------------------------------------ */

ravel_status ravel__device_store_fill(ravel__device_store *d, int32_t slot, uint64_t *hashes, ravel_error *err) {
    RAVEL_ASSERT(slot >= 0 && slot < d->keep && d->slots[slot].shared && d->list && d->first);
    const ravel__cast_job job = {.pieces = d->list,
                                 .first = d->first,
                                 .spans = d->lists,
                                 .count = d->pieces,
                                 .blocks = d->blocks,
                                 .packed = ravel_shared_data(d->slots[slot].shared),
                                 .bytes = d->bytes,
                                 .hashes = d->hashes};
    pthread_mutex_lock(&d->lock);
    d->slots[slot].brought = 0;
    ravel_status status = ravel_stream_follow(d->pack, d->back, err); /* a copy of the version before may still run */
    pthread_mutex_unlock(&d->lock);
    if (status == RAVEL_OK) status = ravel__carrier_follow(d->carrier, err);
    if (status == RAVEL_OK) status = ravel__carrier_order(d->carrier, d->pack, err);
    if (status == RAVEL_OK) status = ravel__launch_cast(d->pack, &job, err);
    if (status == RAVEL_OK) status = ravel_stream_wait(d->pack, RAVEL__CARRY_SECONDS, err);
    if (status == RAVEL_OK) memcpy(hashes, d->hashes, (size_t)d->blocks * sizeof *hashes);
    return status;
}

/* Under the lock. */
static ravel_status make_page(ravel__device_store *d, kept_slot *s, ravel_error *err) {
    void *page = NULL;
    ravel_status status = RAVEL_OK;
    if (!s->arrived) s->arrived = ravel__calloc(NULL, (size_t)d->chunks, sizeof(void *));
    if (!s->arrived) return ravel__no_memory(err, (size_t)d->chunks * sizeof(void *), "a version's chunks");
    for (int64_t c = 0; c < d->chunks && status == RAVEL_OK; c++)
        if (!s->arrived[c]) status = ravel_event_create(d->device, &s->arrived[c], err);
    if (status == RAVEL_OK && !s->page) {
        status = ravel_device_alloc(d->device, RAVEL_PINNED, (size_t)d->bytes, d->back, &page, err);
        s->page = page;
    }
    return status;
}

static ravel_status start_copy(ravel__device_store *d, kept_slot *s, ravel_error *err) {
    RAVEL_ASSERT(!s->brought && s->shared);
    const char *from = ravel_shared_data(s->shared);
    ravel_status status = make_page(d, s, err);
    for (int64_t c = 0; c < d->chunks && status == RAVEL_OK; c++) {
        int64_t at = c * chunk_bytes, left = d->bytes - at, bytes = left < chunk_bytes ? left : chunk_bytes;
        status = ravel_device_copy(d->device, s->page + at, from + at, (size_t)bytes, d->back, err);
        if (status == RAVEL_OK) status = ravel_event_record(s->arrived[c], d->back, err);
    }
    s->brought = status == RAVEL_OK;
    return status;
}

ravel_status ravel__device_store_bring(ravel__device_store *d, int32_t slot, unsigned char **bytes, ravel_error *err) {
    RAVEL_ASSERT(slot >= 0 && slot < d->keep);
    pthread_mutex_lock(&d->lock);
    ravel_status status = d->slots[slot].brought ? RAVEL_OK : start_copy(d, &d->slots[slot], err);
    *bytes = d->slots[slot].page;
    pthread_mutex_unlock(&d->lock);
    return status;
}

ravel_status ravel__device_store_arrived(ravel__device_store *d, int32_t slot, int64_t end, ravel_error *err) {
    RAVEL_ASSERT(end > 0 && end <= d->bytes && d->slots[slot].brought);
    return ravel_event_wait(d->slots[slot].arrived[(end - 1) / chunk_bytes], RAVEL__CARRY_SECONDS, err);
}
