#include "refit/publish/store_device.h"

#include "base/assert.h"
#include "base/sparse.h"
#include "base/xxh3.h"
#include "refit/model/carrier.h"
#include "refit/wire/block.h"
#include "base/system/team.h"

#include <stdatomic.h>
#include <string.h>

/* ---- create and free ------------------------------------------------------------------------------------ */

static ravel_status make_slots(ravel__store *s, ravel_error *err) {
    s->kept = ravel__calloc(s->allocator, (size_t)s->keep, sizeof *s->kept);
    if (!s->kept) return ravel__no_memory(err, (size_t)s->keep * sizeof *s->kept, "the kept versions");
    for (int32_t k = 0; k < s->keep; k++)
        if (!ravel__packed_make(&s->tiles, !s->on_device, s->allocator, &s->kept[k].packed))
            return ravel_error_set(
                err, RAVEL_E_MEMORY,
                "out of memory: %d versions of %lld bytes each are kept for the generators; keep fewer", s->keep,
                (long long)s->tiles.bytes);
    return RAVEL_OK;
}

ravel_status ravel__store_init(ravel__store *s, const ravel__holding *holding, const ravel_refit_source *source,
                               int32_t keep, int64_t block_bytes, int32_t dtype, int lists,
                               const ravel_allocator *allocator, ravel_error *err) {
    memset(s, 0, sizeof *s);
    s->allocator = allocator;
    s->holding = holding;
    s->keep = keep;
    RAVEL_ASSERT(keep >= 1 && keep <= RAVEL__STORE_KEEP_MOST);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    ravel_status status = ravel__tiles_make(&s->tiles, holding->count, block_bytes, allocator, err);
    for (int64_t i = 0; i < holding->count && status == RAVEL_OK; i++)
        ravel__tiles_add(&s->tiles, &holding->items[i].view.box, ravel__narrowed(holding->items[i].dtype, dtype));
    if (status == RAVEL_OK && source) status = ravel__device_store_open(s, source, &s->on_device, err);
    s->lists_on = lists && keep > 1 && !s->on_device;
    return status == RAVEL_OK ? make_slots(s, err) : status;
}

static size_t gaps_bytes(const ravel__store *s) {
    return (size_t)(s->tiles.block_bytes / RAVEL__LIST_SHARE * s->tiles.blocks);
}

static void free_list(const ravel__store *s, ravel__change_list *l) {
    ravel__release(s->allocator, l->gaps, gaps_bytes(s));
    ravel__release(s->allocator, l->sizes, (size_t)s->tiles.blocks * sizeof *l->sizes);
    *l = (ravel__change_list){0};
}

void ravel__store_free(ravel__store *s) {
    if (!s->holding) return;
    for (int32_t k = 0; s->kept && k < s->keep; k++) {
        if (s->on_device) s->kept[k].packed.bytes = NULL; /* its own */
        ravel__packed_free(&s->tiles, s->allocator, &s->kept[k].packed);
    }
    ravel__device_store_free(s->on_device);
    for (int32_t p = 0; p < RAVEL__STORE_PAST; p++) ravel__packed_free(&s->tiles, s->allocator, &s->past[p].packed);
    for (int32_t i = 0; i < RAVEL__STORE_LISTS; i++) free_list(s, &s->lists[i]);
    ravel__release(s->allocator, s->kept, (size_t)s->keep * sizeof *s->kept);
    ravel__tiles_free(&s->tiles, s->allocator);
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
    ravel__change_list *l = &s->lists[s->list_next];
    k->identity = l->from = l->to = (ravel_refit_identity){0};
    k->revoked = l->revoked = 1;
    if (k->users + l->users > 0) wake(s);
    while (k->users + l->users > 0) pthread_cond_wait(&s->changed, &s->lock);
    RAVEL_ASSERT(k->users == 0 && k->identity.version == 0);
    RAVEL_ASSERT(k->revoked && k->packed.hashes);
    k->revoked = l->revoked = 0;
    pthread_mutex_unlock(&s->lock);
    return slot;
}

/* Under the lock. Without memory for the hashes, a generator that holds this version gets all blocks next time. */
static void remember(ravel__store *s, const ravel__kept *k) {
    RAVEL_ASSERT(s->past_next >= 0 && s->past_next < RAVEL__STORE_PAST && k->identity.version > 0);
    ravel__past *p = &s->past[s->past_next];
    p->identity = (ravel_refit_identity){0};
    if (!p->packed.hashes && !ravel__packed_make(&s->tiles, 0, s->allocator, &p->packed)) return;
    memcpy(p->packed.hashes, k->packed.hashes, (size_t)s->tiles.blocks * sizeof(uint64_t));
    p->identity = k->identity;
    s->past_next = (s->past_next + 1) % RAVEL__STORE_PAST;
}

void ravel__store_show(ravel__store *s, int32_t slot, ravel_refit_identity identity) {
    RAVEL_ASSERT(slot >= 0 && slot < s->keep && identity.version > 0);
    pthread_mutex_lock(&s->lock);
    RAVEL_ASSERT(s->kept[slot].identity.version == 0 && s->kept[slot].users == 0);
    s->kept[slot].identity = identity;
    remember(s, &s->kept[slot]);
    if (s->lists[s->list_next].from.version > 0) {
        s->lists[s->list_next].to = identity;
        s->list_next = (s->list_next + 1) % RAVEL__STORE_LISTS;
    }
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

ravel__kept *ravel__store_use(ravel__store *s, ravel_refit_identity identity) {
    ravel__kept *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int32_t k = 0; k < s->keep && identity.version > 0 && !found; k++)
        if (ravel__identity_equal(s->kept[k].identity, identity)) found = &s->kept[k];
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
    return ravel__device_store_bring(s->on_device, (int32_t)(kept - s->kept), &kept->packed.bytes, err);
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
        const uint64_t *hashes = s->past[p].packed.hashes;
        if (!hashes || !ravel__identity_equal(s->past[p].identity, base)) continue;
        for (int64_t b = 0; b < s->tiles.blocks; b++) same[b] = hashes[b] == kept->packed.hashes[b];
        known = 1;
    }
    pthread_mutex_unlock(&s->lock);
    return known;
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

/* Under the lock. */
static ravel__change_list *list_to(ravel__store *s, ravel_refit_identity to) {
    for (int32_t i = 0; i < RAVEL__STORE_LISTS; i++)
        if (to.version > 0 && ravel__identity_equal(s->lists[i].to, to)) return &s->lists[i];
    return NULL;
}

ravel__trail ravel__store_trail(ravel__store *s, ravel_refit_identity base, const ravel__kept *kept) {
    ravel__trail t = {.count = 0};
    pthread_mutex_lock(&s->lock);
    ravel_refit_identity at = kept->identity;
    for (ravel__change_list *l; !ravel__identity_equal(at, base) && (l = list_to(s, at)); at = l->from)
        t.lists[t.count++] = l;
    if (!ravel__identity_equal(at, base)) t.count = 0;
    for (int32_t i = 0; i < t.count; i++) t.lists[i]->users++;
    pthread_mutex_unlock(&s->lock);
    return t;
}

void ravel__store_trail_end(ravel__store *s, ravel__trail *t) {
    if (t->count == 0) return;
    pthread_mutex_lock(&s->lock);
    while (t->count > 0) t->lists[--t->count]->users--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int ravel__store_trail_is_revoked(ravel__store *s, const ravel__trail *t) {
    int revoked = 0;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < t->count; i++) revoked |= t->lists[i]->revoked;
    pthread_mutex_unlock(&s->lock);
    return revoked;
}

/* The newest version, from which the list of the next one begins; NULL: there is none, or no memory for a list. */
static const ravel__kept *begin_list(ravel__store *s) {
    ravel__change_list *l = &s->lists[s->list_next];
    const ravel__kept *newest = NULL;
    for (int32_t k = 0; s->lists_on && k < s->keep; k++)
        if (s->kept[k].identity.version > 0 && (!newest || s->kept[k].identity.version > newest->identity.version))
            newest = &s->kept[k];
    if (!newest) return NULL;
    if (!l->gaps) l->gaps = ravel__alloc(s->allocator, gaps_bytes(s));
    if (!l->sizes) l->sizes = ravel__alloc(s->allocator, (size_t)s->tiles.blocks * sizeof *l->sizes);
    if (!l->gaps || !l->sizes) return NULL;
    l->from = newest->identity;
    return newest;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static const ravel__view *stored(const void *store, int32_t item) {
    RAVEL_ASSERT(item < ((const ravel__store *)store)->holding->count);
    return &((const ravel__store *)store)->tiles.items[item].view;
}

ravel_status ravel__ask_read(const void *bytes, int64_t size, const ravel__pull_ask *ask, const ravel__store *store,
                             const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err) {
    return ravel__ask_slices((const unsigned char *)bytes + sizeof *ask, size - (int64_t)sizeof *ask, ask->count,
                             stored, store, item_of, tensors, asked, err);
}

/* ---- filling -------------------------------------------------------------------------------------------- */

typedef struct filling {
    const ravel__store *s;
    ravel__kept *k;
    const void *data; /* of the tensor that is being packed */
    int64_t item;     /* the first one, and the block that the loop's index 0 is */
    int64_t first_block;
    const ravel__kept *before; /* the newest version, from which the list begins; NULL: there is no list */
    ravel__change_list *list;
    const ravel_refit_source *source; /* plain sources: every item has data of its own */
    _Atomic int32_t status;           /* of the first failure, whose thread writes `err` */
    ravel_error *err;
} filling;

/* What the block, which is filled, changed. `fresh`: where it was filled from, which is in the cache; NULL: it was
 * gathered. */
static void list_changes(const filling *f, const ravel__tile_item *item, int64_t block, int64_t at, int64_t count,
                         const void *fresh) {
    size_t each = (size_t)ravel_dtype_bytes(item->view.dtype);
    const unsigned char *base = f->before->packed.bytes + at;
    int64_t room = f->s->tiles.block_bytes / RAVEL__LIST_SHARE;
    int32_t *size = &f->list->sizes[block];
    *size = f->k->packed.hashes[block] == f->before->packed.hashes[block] ? 0 : -1;
    if (!fresh) fresh = f->k->packed.bytes + at;
    if (*size < 0 && ravel__sparse_pays(base, fresh, (size_t)count, each))
        *size = (int32_t)ravel__sparse_positions(base, fresh, (size_t)count, each, f->list->gaps + room * block,
                                                 (size_t)room);
}

static void fill_block(void *user, int64_t index, int32_t thread) {
    filling *f = user;
    (void)thread;
    const ravel__store *s = f->s;
    int64_t block = f->first_block + index, i = ravel__tiles_find(&s->tiles, block);
    const ravel__tile_item *item = &s->tiles.items[i];
    const ravel__view *view = &s->holding->items[i].view;
    const void *data = f->source ? f->source->tensors[view->tensor].data : f->data;
    int64_t first = (block - item->first_block) * item->per_block, count = ravel__tile_count(item, block);
    RAVEL_ASSERT(first >= 0 && count > 0 && f->k->users == 0); /* nobody reads a slot that is being filled */
    ravel_error err = RAVEL_ERROR_INIT;
    int32_t none = RAVEL_OK;
    int64_t at = item->at + first * ravel_dtype_bytes(item->view.dtype);
    ravel_status status = ravel__block_encode(view, data, &view->box, first, count, item->view.dtype,
                                              f->k->packed.bytes + at, &f->k->packed.hashes[block], &err);
    if (status != RAVEL_OK && atomic_compare_exchange_strong(&f->status, &none, (int32_t)status))
        ravel_error_set(f->err, status, "%s", err.message);
    if (status == RAVEL_OK && f->before)
        list_changes(f, item, block, at, count, ravel__view_direct(view, data, &view->box, first, item->view.dtype));
}

/* Sources that make their tensors one by one: a tensor at a time, its items together. */
static ravel_status fill_by_tensor(filling *f, const ravel_refit_source *source, int32_t threads) {
    const ravel__store *s = f->s;
    for (int64_t i = 0; i < s->holding->count && atomic_load(&f->status) == RAVEL_OK;) {
        int64_t tensor = s->holding->items[i].view.tensor, next = i;
        while (next < s->holding->count && s->holding->items[next].view.tensor == tensor) next++;
        const ravel__tile_item *items = s->tiles.items;
        int64_t end = next < s->holding->count ? items[next].first_block : s->tiles.blocks;
        f->data = NULL;
        ravel_status status = source->iterate(source->user, tensor, &f->data, f->err);
        if (status != RAVEL_OK || (!f->data && end > items[i].first_block))
            return ravel_error_set(f->err, RAVEL_E_CALLBACK, "the source's iterate failed for \"%s\"",
                                   source->tensors[tensor].name);
        f->first_block = items[i].first_block;
        ravel__team_once(threads, end - f->first_block, fill_block, f);
        i = next;
    }
    return (ravel_status)atomic_load(&f->status);
}

ravel_status ravel__store_fill(ravel__store *s, int32_t slot, const ravel_refit_source *source, int32_t threads,
                               uint64_t *digest, ravel_error *err) {
    RAVEL_ASSERT(slot >= 0 && slot < s->keep && s->kept[slot].identity.version == 0);
    ravel_error own = RAVEL_ERROR_INIT;
    filling f = {.s = s, .k = &s->kept[slot], .before = begin_list(s), .list = &s->lists[s->list_next], .err = &own};
    ravel_status status = s->on_device ? RAVEL_OK : ravel__carrier_follow(s->holding->carrier, err);
    if (status != RAVEL_OK) return status;
    atomic_init(&f.status, RAVEL_OK);
    if (s->on_device) {
        status = ravel__device_store_fill(s->on_device, slot, f.k->packed.hashes, &own);
    } else if (source->iterate) {
        status = fill_by_tensor(&f, source, threads);
    } else {
        f.source = source;
        ravel__team_once(threads, s->tiles.blocks, fill_block, &f);
        status = (ravel_status)atomic_load(&f.status);
    }
    if (status != RAVEL_OK) return ravel_error_set(err, status, "%s", own.message);
    *digest = ravel__xxh3_of(f.k->packed.hashes, (size_t)s->tiles.blocks * sizeof(uint64_t));
    return RAVEL_OK;
}
