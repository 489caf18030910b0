#include "refit/publish/store_device.h"

#include "base/assert.h"
#include "base/xxh3.h"
#include "refit/model/carrier.h"
#include "refit/wire/team.h"

#include <stdatomic.h>
#include <string.h>

/* ---- layout --------------------------------------------------------------------------------------------- */

static int32_t stored_dtype(int32_t own, int32_t wanted) {
    int is_float = ravel_dtype_kind(own) == 'f' && ravel_dtype_bytes(own) >= 2;
    return wanted >= 0 && is_float && ravel_dtype_bytes(wanted) < ravel_dtype_bytes(own) ? wanted : own;
}

static void lay_out_item(ravel__store *s, int64_t index, int32_t dtype) {
    const ravel__item *from = &s->holding->items[index];
    ravel__store_item *item = &s->items[index];
    int32_t stored = stored_dtype(from->dtype, dtype);
    *item =
        (ravel__store_item){.at = s->bytes, .first_block = s->blocks, .elements = ravel__box_count(&from->view.box)};
    item->view = (ravel__view){.box = from->view.box, .dtype = stored};
    int64_t stride = 1;
    for (int32_t d = from->ndim - 1; d >= 0; d--) {
        item->view.strides[d] = stride;
        stride *= from->view.box.extent[d];
    }
    item->per_block = s->block_bytes / ravel_dtype_bytes(stored);
    RAVEL_ASSERT(item->at % RAVEL__STORE_ALIGN == 0 && item->per_block > 0 && stride == item->elements);
    s->blocks += (item->elements + item->per_block - 1) / item->per_block;
    int64_t bytes = ravel__store_item_bytes(item);
    s->bytes += (bytes + RAVEL__STORE_ALIGN - 1) / RAVEL__STORE_ALIGN * RAVEL__STORE_ALIGN;
}

static ravel_status make_slots(ravel__store *s, ravel_error *err) {
    size_t bytes = (size_t)s->bytes + RAVEL__STORE_ALIGN, hashes = (size_t)s->blocks * sizeof(uint64_t);
    s->kept = ravel__calloc(s->allocator, (size_t)s->keep, sizeof *s->kept);
    if (!s->kept) return ravel__no_memory(err, (size_t)s->keep * sizeof *s->kept, "the kept versions");
    for (int32_t k = 0; k < s->keep; k++) {
        if (!s->on_device) s->kept[k].bytes = ravel__alloc(s->allocator, bytes);
        s->kept[k].hashes = ravel__alloc(s->allocator, hashes + 8);
        if ((!s->on_device && !s->kept[k].bytes) || !s->kept[k].hashes)
            return ravel_error_set(
                err, RAVEL_E_MEMORY,
                "out of memory: %d versions of %zu bytes each are kept for the generators; keep fewer", s->keep, bytes);
    }
    return RAVEL_OK;
}

ravel_status ravel__store_init(ravel__store *s, const ravel__holding *holding, const ravel_refit_source *source,
                               int32_t keep, int64_t block_bytes, int32_t dtype, const ravel_allocator *allocator,
                               ravel_error *err) {
    memset(s, 0, sizeof *s);
    s->allocator = allocator;
    s->holding = holding;
    s->keep = keep;
    s->block_bytes = block_bytes;
    RAVEL_ASSERT(keep >= 1 && keep <= RAVEL__STORE_KEEP_MOST && block_bytes >= 8 && block_bytes % 8 == 0);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->items = ravel__calloc(allocator, (size_t)holding->count + 1, sizeof *s->items);
    if (!s->items) return ravel__no_memory(err, (size_t)holding->count * sizeof *s->items, "the store's items");
    for (int64_t i = 0; i < holding->count; i++) lay_out_item(s, i, dtype);
    ravel_status status = source ? ravel__device_store_open(s, source, &s->on_device, err) : RAVEL_OK;
    return status == RAVEL_OK ? make_slots(s, err) : status;
}

void ravel__store_free(ravel__store *s) {
    if (!s->holding) return;
    size_t bytes = (size_t)s->bytes + RAVEL__STORE_ALIGN, hashes = (size_t)s->blocks * sizeof(uint64_t) + 8;
    for (int32_t k = 0; s->kept && k < s->keep; k++) {
        if (!s->on_device) ravel__release(s->allocator, s->kept[k].bytes, bytes);
        ravel__release(s->allocator, s->kept[k].hashes, hashes);
    }
    ravel__device_store_free(s->on_device);
    for (int32_t p = 0; p < RAVEL__STORE_PAST; p++) ravel__release(s->allocator, s->past[p].hashes, hashes);
    ravel__release(s->allocator, s->kept, (size_t)s->keep * sizeof *s->kept);
    ravel__release(s->allocator, s->items, ((size_t)s->holding->count + 1) * sizeof *s->items);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    memset(s, 0, sizeof *s);
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

static void wake(const ravel__store *s) {
    if (s->wake) s->wake(s->wake_user);
}

/* An empty slot, else the one with the lowest version. */
static int32_t oldest(const ravel__store *s) {
    int32_t best = 0;
    for (int32_t k = 1; k < s->keep; k++)
        if (s->kept[k].identity.version < s->kept[best].identity.version) best = k;
    RAVEL_ASSERT(best >= 0 && best < s->keep);
    return best;
}

int32_t ravel__store_claim(ravel__store *s) {
    pthread_mutex_lock(&s->lock);
    int32_t slot = oldest(s);
    ravel__kept *k = &s->kept[slot];
    k->identity = (ravel_refit_identity){0};
    k->revoked = 1;
    if (k->users > 0) wake(s);
    while (k->users > 0) pthread_cond_wait(&s->changed, &s->lock);
    RAVEL_ASSERT(k->users == 0 && k->identity.version == 0);
    RAVEL_ASSERT(k->revoked && k->hashes);
    k->revoked = 0;
    pthread_mutex_unlock(&s->lock);
    return slot;
}

/* Under the lock. Without memory for the hashes, a generator that holds this version gets all blocks next time. */
static void remember(ravel__store *s, const ravel__kept *k) {
    RAVEL_ASSERT(s->past_next >= 0 && s->past_next < RAVEL__STORE_PAST && k->identity.version > 0);
    ravel__past *p = &s->past[s->past_next];
    size_t bytes = (size_t)s->blocks * sizeof(uint64_t);
    if (!p->hashes) p->hashes = ravel__alloc(s->allocator, bytes + 8);
    p->identity = (ravel_refit_identity){0};
    if (!p->hashes) return;
    memcpy(p->hashes, k->hashes, bytes);
    p->identity = k->identity;
    s->past_next = (s->past_next + 1) % RAVEL__STORE_PAST;
}

void ravel__store_show(ravel__store *s, int32_t slot, ravel_refit_identity identity) {
    RAVEL_ASSERT(slot >= 0 && slot < s->keep && identity.version > 0);
    pthread_mutex_lock(&s->lock);
    RAVEL_ASSERT(s->kept[slot].identity.version == 0 && s->kept[slot].users == 0);
    s->kept[slot].identity = identity;
    remember(s, &s->kept[slot]);
    pthread_cond_broadcast(&s->changed);
    wake(s);
    pthread_mutex_unlock(&s->lock);
}

int64_t ravel__store_newer(ravel__store *s, int64_t version) {
    int64_t count = 0;
    pthread_mutex_lock(&s->lock);
    for (int32_t p = 0; p < RAVEL__STORE_PAST; p++) count += s->past[p].identity.version > version;
    pthread_mutex_unlock(&s->lock);
    return count;
}

int32_t ravel__store_list(ravel__store *s, ravel_refit_identity list[RAVEL__STORE_KEEP_MOST]) {
    int32_t count = 0;
    pthread_mutex_lock(&s->lock);
    for (int32_t k = 0; k < s->keep; k++) {
        ravel_refit_identity x = s->kept[k].identity;
        int32_t i = count;
        if (x.version == 0) continue;
        for (; i > 0 && list[i - 1].version < x.version; i--) list[i] = list[i - 1];
        list[i] = x;
        RAVEL_ASSERT((i == 0 || list[i - 1].version >= x.version) && count < s->keep); /* newest first */
        count++;
    }
    pthread_mutex_unlock(&s->lock);
    return count;
}

static int equal(ravel_refit_identity a, ravel_refit_identity b) {
    return a.version == b.version && a.nonce == b.nonce && a.digest == b.digest;
}

ravel__kept *ravel__store_use(ravel__store *s, ravel_refit_identity identity) {
    ravel__kept *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int32_t k = 0; k < s->keep && identity.version > 0 && !found; k++)
        if (equal(s->kept[k].identity, identity)) found = &s->kept[k];
    if (found) found->users++;
    pthread_mutex_unlock(&s->lock);
    return found;
}

void ravel__store_release(ravel__store *s, ravel__kept *kept) {
    if (!kept) return;
    RAVEL_ASSERT(kept >= s->kept && kept < s->kept + s->keep);
    pthread_mutex_lock(&s->lock);
    RAVEL_ASSERT(kept->users > 0);
    kept->users--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

ravel_status ravel__store_bring(ravel__store *s, ravel__kept *kept, ravel_error *err) {
    RAVEL_ASSERT(kept >= s->kept && kept < s->kept + s->keep);
    if (!s->on_device) return RAVEL_OK;
    return ravel__device_store_bring(s->on_device, (int32_t)(kept - s->kept), &kept->bytes, err);
}

ravel_status ravel__store_arrived(ravel__store *s, const ravel__kept *kept, int64_t end, ravel_error *err) {
    RAVEL_ASSERT(kept >= s->kept && kept < s->kept + s->keep && end >= 0);
    if (!s->on_device) return RAVEL_OK;
    return ravel__device_store_arrived(s->on_device, (int32_t)(kept - s->kept), end, err);
}

int ravel__store_is_revoked(ravel__store *s, const ravel__kept *kept) {
    pthread_mutex_lock(&s->lock);
    int revoked = kept->revoked;
    pthread_mutex_unlock(&s->lock);
    return revoked;
}

int ravel__store_compare(ravel__store *s, const ravel__kept *kept, ravel_refit_identity base, char *same) {
    int known = 0;
    pthread_mutex_lock(&s->lock);
    for (int32_t p = 0; p < RAVEL__STORE_PAST && base.version > 0 && !known; p++) {
        if (!s->past[p].hashes || !equal(s->past[p].identity, base)) continue;
        for (int64_t b = 0; b < s->blocks; b++) same[b] = s->past[p].hashes[b] == kept->hashes[b];
        known = 1;
    }
    pthread_mutex_unlock(&s->lock);
    return known;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static const ravel__view *stored(const void *store, int32_t item) {
    RAVEL_ASSERT(item < ((const ravel__store *)store)->holding->count);
    return &((const ravel__store *)store)->items[item].view;
}

ravel_status ravel__ask_read(const void *bytes, int64_t size, const ravel__ask *ask, const ravel__store *store,
                             const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err) {
    return ravel__ask_slices((const unsigned char *)bytes + RAVEL__ASK_HEADER, size - RAVEL__ASK_HEADER, ask->count,
                             stored, store, item_of, tensors, asked, err);
}

/* ---- filling -------------------------------------------------------------------------------------------- */

typedef struct filling {
    const ravel__store *s;
    ravel__kept *k;
    const void *data; /* of the tensor that is being packed */
    int64_t item;     /* the first one, and the block that the loop's index 0 is */
    int64_t first_block;
    const ravel_refit_source *source; /* plain sources: every item has data of its own */
    _Atomic int32_t status;
    ravel_error *err;
    pthread_mutex_t *err_lock;
} filling;

/* The item that a block belongs to. */
static int64_t item_of(const ravel__store *s, int64_t block) {
    RAVEL_ASSERT(block >= 0 && block < s->blocks);
    int64_t low = 0, high = s->holding->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->items[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    RAVEL_ASSERT(s->items[low].first_block <= block);
    return low;
}

/* Packs one block and hashes it, in one pass over memory where the piece lies as it is stored. */
static ravel_status pack_block(const ravel__view *view, const void *data, const ravel__store_item *item, int64_t first,
                               int64_t count, unsigned char *out, uint64_t *hash, ravel_error *err) {
    size_t bytes = (size_t)(count * ravel_dtype_bytes(item->view.dtype));
    const void *direct = ravel__view_direct(view, data, &view->box, first, item->view.dtype);
    ravel__xxh3 state;
    if (direct) {
        ravel__xxh3_begin(&state);
        ravel__xxh3_add_copy(&state, out, direct, bytes);
        *hash = ravel__xxh3_end(&state);
        return RAVEL_OK;
    }
    ravel_status status = ravel__view_gather(view, data, &view->box, first, count, item->view.dtype, out, err);
    *hash = ravel__xxh3_of(out, bytes);
    return status;
}

static void fill_block(void *user, int64_t index) {
    filling *f = user;
    const ravel__store *s = f->s;
    int64_t block = f->first_block + index, i = item_of(s, block);
    const ravel__store_item *item = &s->items[i];
    const ravel__view *view = &s->holding->items[i].view;
    const void *data = f->source ? f->source->tensors[view->tensor].data : f->data;
    int64_t first = (block - item->first_block) * item->per_block, left = item->elements - first;
    int64_t count = left < item->per_block ? left : item->per_block;
    RAVEL_ASSERT(first >= 0 && count > 0 && f->k->users == 0); /* nobody reads a slot that is being filled */
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status =
        pack_block(view, data, item, first, count, f->k->bytes + item->at + first * ravel_dtype_bytes(item->view.dtype),
                   &f->k->hashes[block], &err);
    if (status == RAVEL_OK) return;
    pthread_mutex_lock(f->err_lock);
    if (atomic_load(&f->status) == RAVEL_OK) ravel_error_set(f->err, status, "%s", err.message);
    atomic_store(&f->status, (int32_t)status);
    pthread_mutex_unlock(f->err_lock);
}

/* Sources that make their tensors one by one: a tensor at a time, its items together. */
static ravel_status fill_by_tensor(filling *f, const ravel_refit_source *source, int32_t threads) {
    const ravel__store *s = f->s;
    for (int64_t i = 0; i < s->holding->count && atomic_load(&f->status) == RAVEL_OK;) {
        int64_t tensor = s->holding->items[i].view.tensor, next = i;
        while (next < s->holding->count && s->holding->items[next].view.tensor == tensor) next++;
        int64_t end = next < s->holding->count ? s->items[next].first_block : s->blocks;
        f->data = NULL;
        ravel_status status = source->iterate(source->user, tensor, &f->data, f->err);
        if (status != RAVEL_OK || (!f->data && end > s->items[i].first_block))
            return ravel_error_set(f->err, RAVEL_E_CALLBACK, "the source's iterate failed for \"%s\"",
                                   source->tensors[tensor].name);
        f->first_block = s->items[i].first_block;
        ravel__team_once(threads, end - f->first_block, fill_block, f);
        i = next;
    }
    return (ravel_status)atomic_load(&f->status);
}

ravel_status ravel__store_fill(ravel__store *s, int32_t slot, const ravel_refit_source *source, int32_t threads,
                               uint64_t *digest, ravel_error *err) {
    RAVEL_ASSERT(slot >= 0 && slot < s->keep && s->kept[slot].identity.version == 0);
    pthread_mutex_t err_lock = PTHREAD_MUTEX_INITIALIZER;
    ravel_error own = RAVEL_ERROR_INIT;
    filling f = {.s = s, .k = &s->kept[slot], .err = &own, .err_lock = &err_lock};
    ravel_status status = s->on_device ? RAVEL_OK : ravel__carrier_follow(s->holding->carrier, err);
    if (status != RAVEL_OK) return status;
    atomic_init(&f.status, RAVEL_OK);
    if (s->on_device) {
        status = ravel__device_store_fill(s->on_device, slot, s->kept[slot].hashes, &own);
    } else if (source->iterate) {
        status = fill_by_tensor(&f, source, threads);
    } else {
        f.source = source;
        ravel__team_once(threads, s->blocks, fill_block, &f);
        status = (ravel_status)atomic_load(&f.status);
    }
    if (status != RAVEL_OK) return ravel_error_set(err, status, "%s", own.message);
    *digest = ravel__xxh3_of(s->kept[slot].hashes, (size_t)s->blocks * sizeof(uint64_t));
    return RAVEL_OK;
}
