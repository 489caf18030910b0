#include "refit/publish/store_device.h"

#include "base/assert.h"
#include "refit/model/carrier.h"

#include <string.h>

static const int64_t chunk_bytes = 64 << 20; /* that are waited for at once */

typedef struct kept_slot {
    ravel__shared *shared;
    unsigned char *page;   /* page-locked, [bytes]; NULL: not asked for yet */
    ravel_event **arrived; /* [chunks] */
    int32_t brought;       /* the copy of this version was started */
} kept_slot;

struct ravel__device_store {
    ravel__carrier *carrier;
    ravel_device *device;
    ravel__casts *casts; /* from the tensors to a slot */
    ravel_stream *back;  /* to the host */
    int64_t bytes, blocks, chunks;
    pthread_mutex_t lock; /* of `back` and the slots' pages */
    int32_t keep;
    kept_slot *slots;
};

/* ---- the list ------------------------------------------------------------------------------------------- */

/* All items of a version. E_UNSUPPORTED: the kernel does not read the tensors as they lie. */
static ravel_status list_version(ravel__casts *casts, const ravel__store *s, const ravel_refit_source *source,
                                 ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < s->holding->count && status == RAVEL_OK; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        const ravel__tile_item *item = &s->tiles.items[i];
        int64_t each = ravel_dtype_bytes(item->view.dtype);
        for (int64_t done = 0; done < item->elements && status == RAVEL_OK; done += item->per_block) {
            int64_t left = item->elements - done, count = left < item->per_block ? left : item->per_block;
            status = ravel__casts_span(casts, item->at + done * each, count * each, err);
        }
        if (status == RAVEL_OK && item->elements > 0)
            status = ravel__casts_add(casts, view, source->tensors[view->tensor].data, &view->box, 0, item->elements,
                                      item->view.dtype, item->at, err);
    }
    return status;
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

static ravel_status make_slots(ravel__device_store *d, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t k = 0; k < d->keep && status == RAVEL_OK; k++)
        status = ravel__shared_create(d->device, (size_t)d->bytes, &d->slots[k].shared, err);
    if (status == RAVEL_E_MEMORY)
        ravel_error_prefix(err, "%d versions of %lld bytes each are kept on the device", d->keep, (long long)d->bytes);
    return status;
}

static ravel_status prepare(ravel__device_store *d, const ravel__store *s, const ravel_refit_source *source,
                            ravel_error *err) {
    ravel_status status = ravel__casts_create(d->carrier, s->allocator, &d->casts, err);
    if (status == RAVEL_OK) status = list_version(d->casts, s, source, err);
    if (status == RAVEL_OK) status = ravel_stream_create(d->device, &d->back, err);
    return status == RAVEL_OK ? make_slots(d, err) : status;
}

ravel_status ravel__device_store_open(const ravel__store *s, const ravel_refit_source *source,
                                      ravel__device_store **made, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    *made = NULL;
    if (!s->holding->carrier || source->iterate || s->tiles.blocks == 0 || s->tiles.block_bytes % 1024 != 0)
        return RAVEL_OK;
    ravel__device_store *d = ravel__calloc(NULL, 1, sizeof *d);
    if (!d) return ravel__no_memory(err, sizeof *d, "a store on a device");
    *d = (ravel__device_store){.carrier = s->holding->carrier, .keep = s->keep, .bytes = s->tiles.bytes};
    d->device = ravel__carrier_device(d->carrier);
    d->blocks = s->tiles.blocks;
    d->chunks = (s->tiles.bytes + chunk_bytes - 1) / chunk_bytes;
    pthread_mutex_init(&d->lock, NULL);
    d->slots = ravel__calloc(NULL, (size_t)s->keep, sizeof *d->slots);
    ravel_status status = d->slots ? prepare(d, s, source, &why) : ravel__no_memory(&why, 0, "the kept versions");
    if (status == RAVEL_OK)
        *made = d;
    else
        ravel__device_store_free(d);
    return status == RAVEL_OK || status == RAVEL_E_UNSUPPORTED ? RAVEL_OK
                                                               : ravel_error_set(err, status, "%s", why.message);
}

static void free_slot(const ravel__device_store *d, kept_slot *s) {
    for (int64_t c = 0; s->arrived && c < d->chunks; c++) ravel_event_free(s->arrived[c]);
    ravel__release(NULL, (void *)s->arrived, (size_t)d->chunks * sizeof(void *));
    ravel_device_release(d->device, s->page, d->back);
    ravel__shared_free(s->shared);
}

void ravel__device_store_free(ravel__device_store *d) {
    if (!d) return;
    if (d->back) (void)ravel_stream_wait(d->back, RAVEL__CARRY_SECONDS, NULL);
    for (int32_t k = 0; d->slots && k < d->keep; k++) free_slot(d, &d->slots[k]);
    ravel__release(NULL, d->slots, (size_t)d->keep * sizeof *d->slots);
    ravel__casts_free(d->casts);
    ravel_stream_free(d->back);
    pthread_mutex_destroy(&d->lock);
    ravel__release(NULL, d, sizeof *d);
}

ravel_device *ravel__device_store_device(const ravel__device_store *d) {
    return d->device;
}

ravel__shared *ravel__device_store_slot(const ravel__device_store *d, int32_t slot) {
    RAVEL_ASSERT(slot >= 0 && slot < d->keep);
    return d->slots[slot].shared;
}

/* ---- a version ------------------------------------------------------------------------------------------ */

ravel_status ravel__device_store_fill(ravel__device_store *d, int32_t slot, uint64_t *hashes, ravel_error *err) {
    const uint64_t *made = NULL;
    RAVEL_ASSERT(slot >= 0 && slot < d->keep && d->slots[slot].shared);
    pthread_mutex_lock(&d->lock);
    d->slots[slot].brought = 0;
    ravel_status status = ravel_stream_follow(ravel__casts_stream(d->casts), d->back,
                                              err); /* a copy of the version before may still run */
    pthread_mutex_unlock(&d->lock);
    if (status == RAVEL_OK) status = ravel__carrier_follow(d->carrier, err);
    if (status == RAVEL_OK)
        status = ravel__casts_run(d->casts, ravel__shared_data(d->slots[slot].shared), d->bytes, 0, &made, err);
    if (status == RAVEL_OK) memcpy(hashes, made, (size_t)d->blocks * sizeof *hashes);
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
    const char *from = ravel__shared_data(s->shared);
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
