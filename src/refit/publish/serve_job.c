#include "refit/publish/serve_job.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/xxh3.h"
#include "refit/wire/block.h"
#include "refit/publish/changes.h"
#include "refit/publish/handout.h"

#include <string.h>

/* The token of blocks that are sent from where they lie. */
static char stored_token;

void ravel__job_end(ravel__client *c) {
    ravel__pull_job *j = &c->job;
    ravel__server *s = c->lane->server;
    if (!j->active) return;
    RAVEL_ASSERT(j->kept && j->slice <= j->count && j->in_flight >= 0);
    ravel__changes_free(j->changes); /* it reads the versions */
    ravel__store_release(s->store, j->kept);
    ravel__store_release(s->store, j->base);
    ravel__store_trail_end(s->store, &j->trail);
    ravel__release(s->allocator, j->asked, ((size_t)j->count + 1) * sizeof *j->asked);
    ravel__release(s->allocator, j->same, (size_t)s->store->tiles.blocks + 1);
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++)
        ravel__release(s->allocator, j->buffers[i].bytes, RAVEL__JOB_BUFFER_BYTES);
    int32_t serving = j->serving;
    memset(j, 0, sizeof *j);
    j->serving = serving;
}

/* Ends the job with FAILED once the link has sent what it still reads from the buffers and the version. */
static void fail(ravel__pull_job *j, ravel_status status, const char *message) {
    RAVEL_ASSERT(j->active && !j->mapped && status != RAVEL_OK);
    ravel_error_set(&j->why, status, "%s", message);
    j->slice = j->count;
}

int ravel__job_is_revoked(const ravel__client *c) {
    return c->job.active && ravel__store_is_revoked(c->lane->server->store, c->job.kept);
}

/* Its base is not there (any more). */
static void drop_base(ravel__pull_job *j, ravel__store *store) {
    if (j->base) ravel__store_release(store, j->base);
    j->base = NULL;
    j->trail = ravel__store_trail(store, j->held, j->kept);
}

void ravel__job_check_base(ravel__client *c) {
    ravel__pull_job *j = &c->job;
    ravel__store *store = c->lane->server->store;
    if (ravel__store_trail_is_revoked(store, &j->trail)) ravel__store_trail_end(store, &j->trail);
    if (j->base && ravel__store_is_revoked(store, j->base)) drop_base(j, store);
}

/* ---- one block ------------------------------------------------------------------------------------------ */

/* Elements of a slice that are sent as one block. */
typedef struct cut {
    int64_t count;
    int64_t at;    /* in the item, where the slice lies there as it travels; -1: it is gathered */
    int64_t block; /* of the store, if at >= 0 */
    int whole;     /* all of the store's block */
    int same;      /* nothing of it changed since the base */
} cut;

/* Where a slice that lies in the store as it travels begins: its first element in the item, -1: it does not. */
static int64_t place_of(const ravel__tile_item *item, const ravel__asked *a) {
    static const char origin;
    const char *at = ravel__view_direct(&item->view, &origin, &a->box, 0, a->dtype);
    return at ? (at - &origin) / ravel_dtype_bytes(a->dtype) : -1;
}

/* The element of the item that is element `index` of the slice. */
static int64_t element_of(const ravel__tile_item *item, const ravel__asked *a, int64_t index) {
    int64_t at = 0;
    for (int32_t d = a->box.ndim - 1; d >= 0; d--) {
        at += (a->box.start[d] - item->view.box.start[d] + index % a->box.extent[d]) * item->view.strides[d];
        index /= a->box.extent[d];
    }
    return at;
}

/* Whether the store's blocks from that of element `from` of the item to that of `to` did not change. */
static int are_same(const ravel__pull_job *j, const ravel__tile_item *item, int64_t from, int64_t to) {
    if (!j->same) return 0;
    for (int64_t b = from / item->per_block; b <= to / item->per_block; b++)
        if (!j->same[item->first_block + b]) return 0;
    return 1;
}

/* Whether changes may be sent. */
static int is_compared(const ravel__pull_job *j, const ravel__asked *a) {
    return (j->base || j->trail.count > 0) && a->flags & RAVEL__ASK_SPARSE;
}

/* What is cut off a slice from element `first` on: up to the end of the store's block, whose hash is known; of a slice
 * that is gathered or compared, up to a buffer. The item is row-major, so all between two elements of a slice lies
 * between them. */
static cut cut_at(const ravel__pull_job *j, const ravel__tile_item *item, const ravel__asked *a, int64_t first) {
    RAVEL_ASSERT(first >= 0 && first < a->count && item->per_block > 0);
    int64_t start = place_of(item, a), left = a->count - first;
    cut c = {.count = RAVEL__JOB_BUFFER_BYTES / ravel_dtype_bytes(a->dtype), .at = start < 0 ? -1 : start + first};
    int64_t block = c.at >= 0 ? item->per_block - c.at % item->per_block : 0;
    if (c.at >= 0 && (!is_compared(j, a) || block < c.count)) c.count = block;
    if (c.count > left) c.count = left;
    if (c.at < 0) {
        c.same = are_same(j, item, element_of(item, a, first), element_of(item, a, first + c.count - 1));
        return c;
    }
    int64_t in_item = c.at / item->per_block, end = (in_item + 1) * item->per_block;
    c.block = item->first_block + in_item;
    c.whole = c.at % item->per_block == 0 && c.at + c.count == (end < item->elements ? end : item->elements);
    c.same = are_same(j, item, c.at, c.at);
    RAVEL_ASSERT(c.at + c.count <= item->elements);
    return c;
}

static void advance(ravel__pull_job *j, int64_t count) {
    j->first += count;
    RAVEL_ASSERT(count > 0 && j->first <= j->asked[j->slice].count);
    if (j->first < j->asked[j->slice].count) return;
    j->slice++;
    j->first = 0;
}

static void tally(ravel__client *c, int32_t kind, const ravel__asked *a, int64_t count, int64_t moved,
                  int64_t changed) {
    ravel__tally_add(&c->lane->server->tally, kind, count, ravel_dtype_bytes(a->dtype), moved, changed);
}

/* One message for all that follows and did not change. */
static int send_keep(ravel__client *c, const ravel__tile_item *item, const ravel__asked *a) {
    ravel__pull_job *j = &c->job;
    int64_t count = 0;
    for (cut next; j->first + count < a->count; count += next.count) {
        next = cut_at(j, item, a, j->first + count);
        if (!next.same) break;
        tally(c, RAVEL__BLOCK_KEEP, a, next.count, 0, 0);
    }
    ravel__message head = {.kind = RAVEL__PULL_KEEP, .id = (uint64_t)count};
    advance(j, count);
    return ravel__link_send(c->link, &head, NULL, NULL, NULL) == RAVEL_OK;
}

static ravel__job_buffer *free_buffer(ravel__client *c) {
    ravel__pull_job *j = &c->job;
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++) {
        ravel__job_buffer *b = &j->buffers[i];
        if (b->busy) continue;
        if (!b->bytes) b->bytes = ravel__alloc(c->lane->server->allocator, RAVEL__JOB_BUFFER_BYTES);
        return b->bytes ? b : NULL;
    }
    return NULL;
}

/* The versions' bytes on the host, up to the end of the item; `compares`: those of the base, too. */
static int bring(ravel__client *c, const ravel__tile_item *item, int compares) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__store *store = c->lane->server->store;
    ravel__pull_job *j = &c->job;
    int64_t end = item->at + item->elements * ravel_dtype_bytes(item->view.dtype);
    ravel_status status = ravel__store_bring(store, j->kept, &err);
    if (status == RAVEL_OK && compares && j->base && ravel__store_bring(store, j->base, NULL) != RAVEL_OK)
        drop_base(j, store);
    if (status == RAVEL_OK && ravel__store_arrived(store, j->kept, end, &err) != RAVEL_OK) status = RAVEL_E_STATE;
    if (status == RAVEL_OK && compares && j->base && ravel__store_arrived(store, j->base, end, &err) != RAVEL_OK)
        status = RAVEL_E_STATE;
    if (status != RAVEL_OK) fail(j, status, err.message);
    return status == RAVEL_OK;
}

static void skip_empty(ravel__pull_job *j) {
    while (j->slice < j->count && j->asked[j->slice].count == 0) j->slice++;
}

/* ---- changes --------------------------------------------------------------------------------------------- */

/* A block's elements as they travel: where they lie in a version, or gathered into `scratch`. */
static const unsigned char *elements_of(const ravel__client *c, const ravel__kept *kept, const ravel__tile_item *item,
                                        const ravel__asked *a, const cut *b, unsigned char *scratch) {
    const unsigned char *bytes = kept->packed.bytes + item->at;
    if (b->at >= 0) return bytes + b->at * ravel_dtype_bytes(a->dtype);
    (void)ravel__view_gather(&item->view, bytes, &a->box, c->job.first, b->count, a->dtype, scratch,
                             NULL); /* host memory, and a cast that was checked */
    return scratch;
}

/* The element of the slice that the item's element `at` is; -1: it is not in the slice. */
static int64_t index_of(const ravel__tile_item *item, const ravel__asked *a, int64_t at) {
    int64_t index = 0;
    for (int32_t d = 0; d < a->box.ndim; d++) {
        int64_t i = at / item->view.strides[d] + item->view.box.start[d] - a->box.start[d];
        if (i < 0 || i >= a->box.extent[d]) return -1;
        index = index * a->box.extent[d] + i;
        at %= item->view.strides[d];
    }
    return index;
}

/* Marks what a list says of one of the store's blocks; 0: it has not all of it. */
static int mark_list(const ravel__client *c, const ravel__change_list *list, const ravel__tile_item *item,
                     int64_t block, const ravel__asked *a, const cut *b, uint64_t *bits) {
    const unsigned char *at = ravel__list_gaps(c->lane->server->store, list, block), *end = at + list->sizes[block];
    const int64_t begin = (block - item->first_block) * item->per_block;
    if (list->sizes[block] < 0) return 0;
    for (size_t position = SIZE_MAX; ravel__sparse_next(&at, end, &position);) {
        int64_t element = begin + (int64_t)position;
        int64_t index = b->at >= 0 ? element - b->at : index_of(item, a, element) - c->job.first;
        if (index >= 0 && index < b->count) bits[index / 64] |= (uint64_t)1 << index % 64;
    }
    return 1;
}

/* Marks the block's elements that changed since the base. */
static int mark_changes(const ravel__client *c, const ravel__tile_item *item, const ravel__asked *a, const cut *b,
                        uint64_t *bits) {
    const ravel__pull_job *j = &c->job;
    int64_t from = b->at >= 0 ? b->at : element_of(item, a, j->first);
    int64_t to = b->at >= 0 ? b->at + b->count - 1 : element_of(item, a, j->first + b->count - 1);
    int all = 1;
    memset(bits, 0, (size_t)(b->count + 63) / 64 * sizeof *bits);
    for (int64_t n = from / item->per_block; all && n <= to / item->per_block; n++)
        for (int32_t i = 0; all && i < j->trail.count; i++)
            all = mark_list(c, j->trail.lists[i], item, item->first_block + n, a, b, bits);
    return all;
}

/* The changes of a block since the base into `out`; 0: they are not less than the elements. *hash: of the elements;
 * *changed: elements that differ, -1: not counted. */
static size_t find_changes(ravel__client *c, const ravel__tile_item *item, const ravel__asked *a, const cut *b,
                           unsigned char *out, uint64_t *hash, int64_t *changed) {
    ravel__serve_lane *lane = c->lane;
    ravel__pull_job *j = &c->job;
    size_t count = (size_t)b->count, each = (size_t)ravel_dtype_bytes(a->dtype), size = 0, differ = 0;
    if (!lane->scratch) lane->scratch = ravel__alloc(lane->server->allocator, RAVEL__LANE_SCRATCH);
    if (!lane->scratch) return 0;
    unsigned char *other = lane->scratch + RAVEL__JOB_BUFFER_BYTES;
    uint64_t *bits = (uint64_t *)(void *)(other + RAVEL__JOB_BUFFER_BYTES);
    const unsigned char *fresh = elements_of(c, j->kept, item, a, b, lane->scratch);
    const unsigned char *base = j->base ? elements_of(c, j->base, item, a, b, other) : NULL;
    int looks = base ? ravel__sparse_pays(base, fresh, count, each) : mark_changes(c, item, a, b, bits);
    if (looks && base) size = ravel__sparse_encode(base, fresh, count, each, out, &differ);
    if (looks && !base) size = ravel__sparse_encode_marked(bits, fresh, count, each, out, &differ);
    if (looks) *changed = (int64_t)differ;
    if (size > 0) *hash = b->whole ? j->kept->packed.hashes[b->block] : ravel__xxh3_of(fresh, count * each);
    return size;
}

/* ---- changes that the device finds ----------------------------------------------------------------------- */

/* Whether a block's changes are found where the versions are. Blocks of the store alone: slices that are gathered or
 * cast, and parts of blocks, are compared on the host. */
static int is_found_there(const ravel__client *c, const ravel__asked *a, const cut *b) {
    const ravel__store *store = c->lane->server->store;
    return store->on_device && !c->job.on_host && c->job.base && a->flags & RAVEL__ASK_SPARSE && b->whole && !b->same &&
           store->tiles.block_bytes <= RAVEL__JOB_BUFFER_BYTES;
}

/* The blocks that come next, from the one at hand on, as far as they fit. */
static void want_next(const ravel__client *c) {
    const ravel__pull_job *j = &c->job;
    ravel__changes_clear(j->changes);
    int64_t slice = j->slice, first = j->first;
    for (int more = 1; more && slice < j->count;) {
        const ravel__asked *a = &j->asked[slice];
        const ravel__tile_item *item = &c->lane->server->store->tiles.items[a->item];
        if (first < a->count) {
            const cut next = cut_at(j, item, a, first);
            int64_t each = ravel_dtype_bytes(item->view.dtype);
            first += next.count;
            if (is_found_there(c, a, &next))
                more = ravel__changes_want(j->changes, next.block, item->at + next.at * each, next.count * each, each);
        }
        if (first >= a->count) slice++, first = 0;
    }
}

/* The device's changes of a block; NULL: it cannot find any, and the host shall. */
static const unsigned char *changes_of(ravel__client *c, const cut *b, size_t *size, int64_t *changed) {
    ravel__store *store = c->lane->server->store;
    ravel__pull_job *j = &c->job;
    const unsigned char *found = j->changes ? ravel__changes_of(j->changes, b->block, size, changed) : NULL;
    if (found) return found;
    ravel_status status =
        j->changes ? RAVEL_OK : ravel__changes_create(store->on_device, store->tiles.block_bytes, &j->changes, NULL);
    if (status == RAVEL_OK) want_next(c);
    if (status == RAVEL_OK)
        status =
            ravel__changes_find(j->changes, (int32_t)(j->kept - store->kept), (int32_t)(j->base - store->kept), NULL);
    j->on_host = status != RAVEL_OK;
    return j->on_host ? NULL : ravel__changes_of(j->changes, b->block, size, changed);
}

/* ---- a block ---------------------------------------------------------------------------------------------- */

/* Its message, whose bytes are in the store or in a buffer. */
typedef struct outgoing {
    int32_t kind;
    uint64_t hash;
    const unsigned char *bytes;
    size_t size;
    int64_t changed; /* -1: it was not compared */
} outgoing;

/* From the versions' bytes on the host. */
static void make_from_host(ravel__client *c, const ravel__tile_item *item, const ravel__asked *a, const cut *b,
                           unsigned char *room, outgoing *o) {
    const ravel__kept *kept = c->job.kept;
    if (is_compared(&c->job, a)) o->size = find_changes(c, item, a, b, room, &o->hash, &o->changed);
    if (o->size > 0) {
        o->kind = RAVEL__BLOCK_SPARSE;
        o->bytes = room;
        return;
    }
    o->size = (size_t)(b->count * ravel_dtype_bytes(a->dtype));
    o->bytes = b->at >= 0 ? elements_of(c, kept, item, a, b, NULL) : room;
    if (b->at < 0)
        (void)ravel__block_encode(&item->view, kept->packed.bytes + item->at, &a->box, c->job.first, b->count, a->dtype,
                                  room, &o->hash, NULL);
    else
        o->hash = b->whole ? kept->packed.hashes[b->block] : ravel__xxh3_of(o->bytes, o->size);
}

/* As the device has found it; 0: it has not. */
static int make_from_device(ravel__client *c, const ravel__asked *a, const cut *b, unsigned char *room, outgoing *o) {
    const unsigned char *found = is_found_there(c, a, b) ? changes_of(c, b, &o->size, &o->changed) : NULL;
    if (!found) return 0;
    memcpy(room, found, o->size);
    o->bytes = room;
    o->hash = c->job.kept->packed.hashes[b->block];
    o->kind = (int64_t)o->size < b->count * ravel_dtype_bytes(a->dtype) ? RAVEL__BLOCK_SPARSE : RAVEL__BLOCK_DATA;
    return 1;
}

/* The next block of the slice at hand; 0: the link cannot take it now, or is lost. */
static int send_block(ravel__client *c) {
    ravel__pull_job *j = &c->job;
    RAVEL_ASSERT(j->active && !j->mapped && j->slice < j->count);
    const ravel__asked *a = &j->asked[j->slice];
    const ravel__tile_item *item = &c->lane->server->store->tiles.items[a->item];
    const cut b = cut_at(j, item, a, j->first);
    outgoing o = {.kind = RAVEL__BLOCK_DATA, .changed = -1};
    if (b.same) return send_keep(c, item, a);
    ravel__job_buffer *buffer = b.at < 0 || is_compared(j, a) ? free_buffer(c) : NULL;
    if (!buffer && (b.at < 0 || is_compared(j, a))) {
        if (j->in_flight > 0) return 0; /* one will be free when the system has taken a block */
        fail(j, RAVEL_E_MEMORY, "the trainer has no memory to gather a block");
        return 1;
    }
    unsigned char *room = buffer ? buffer->bytes : NULL;
    if (!make_from_device(c, a, &b, room, &o)) {
        if (!bring(c, item, is_compared(j, a))) return 1;
        make_from_host(c, item, a, &b, room, &o);
    }
    ravel__message head = {.kind = o.kind == RAVEL__BLOCK_SPARSE ? RAVEL__PULL_SPARSE : RAVEL__PULL_BLOCK,
                           .id = o.hash};
    head.bytes = (int64_t)o.size;
    tally(c, o.kind, a, b.count, head.bytes, o.changed);
    void *token = o.bytes == room ? (void *)buffer : &stored_token;
    if (o.bytes == room) buffer->busy = 1;
    j->in_flight++;
    advance(j, b.count);
    return ravel__link_send_raw(c->link, &head, o.bytes, token, NULL) == RAVEL_OK; /* the receiver compares */
}

/* ---- a pull --------------------------------------------------------------------------------------------- */

static void send_end(ravel__client *c) {
    RAVEL_ASSERT(c->job.active && c->job.in_flight == 0);
    ravel__message head = {.kind = RAVEL__PULL_END, .id = c->job.id};
    ravel_error why = c->job.why;
    ravel__job_end(c);
    if (why.status != RAVEL_OK) return ravel__client_fail(c, head.id, why.status, why.message);
    (void)ravel__link_send(c->link, &head, NULL, NULL, NULL);
}

static void serve_more(ravel__client *c) {
    ravel__pull_job *j = &c->job;
    if (j->serving) return;
    j->serving = 1;
    int going = 1;
    while (going && j->active && j->in_flight < RAVEL__JOB_BLOCKS) {
        RAVEL_ASSERT(!j->mapped && j->kept && j->in_flight >= 0);
        skip_empty(j);
        if (j->slice == j->count) {
            /* The version may go only when the system has taken all of it. */
            if (j->in_flight == 0) send_end(c);
            break;
        }
        going = send_block(c);
    }
    j->serving = 0;
}

/* ---- a version that the generator reads where it is ------------------------------------------------------ */

/* Says where the version lies, with the hashes of its blocks; an empty message: it is not shared. */
static ravel_status send_mapped(ravel__client *c, ravel_error *err) {
    RAVEL_ASSERT(c->job.active && c->job.mapped && c->job.kept);
    ravel__server *s = c->lane->server;
    ravel__message head = {.kind = RAVEL__PULL_MAPPED, .id = c->job.id};
    if (!s->handout) {
        ravel__job_end(c);
        return ravel__link_send(c->link, &head, NULL, NULL, err);
    }
    size_t size = ravel__mapped_bytes(s->store->holding->count, s->store->tiles.blocks);
    unsigned char *body = ravel__alloc(s->allocator, size);
    if (!body) return ravel__no_memory(err, size, "the layout of a version");
    ravel__handout_describe(s->handout, s->store, c->job.kept, s->item_of, s->tensors, body);
    head.bytes = (int64_t)size;
    ravel_status status = ravel__link_send(c->link, &head, body, NULL, err);
    ravel__release(s->allocator, body, size);
    return status;
}

void ravel__job_read(ravel__client *c, uint64_t id) {
    if (!c->job.active || !c->job.mapped)
        return ravel__client_fail(c, id, RAVEL_E_STATE, "the version was replaced while it was read; stage again");
    send_end(c);
}

void ravel__job_sent(ravel__client *c, void *token) {
    ravel__pull_job *j = &c->job;
    if (!j->active || j->mapped) return;
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++)
        if (token == &j->buffers[i]) j->buffers[i].busy = 0;
    RAVEL_ASSERT(j->in_flight > 0);
    j->in_flight--;
    serve_more(c);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static ravel_status use_version(ravel__client *c, const ravel__pull_ask *ask, ravel_error *err) {
    ravel__server *s = c->lane->server;
    ravel__pull_job *j = &c->job;
    if (ask->session != s->session) /* a generator may have begun to stage before it heard of the restart */
        return ravel_error_set(err, RAVEL_E_STATE, "the trainers were restarted; stage again");
    RAVEL_ASSERT(!j->kept && !j->active);
    j->identity = ask->identity;
    j->kept = ravel__store_use(s->store, ask->identity);
    if (!j->kept)
        return ravel_error_set(err, RAVEL_E_STATE, "version %lld is not kept (any more)",
                               (long long)ask->identity.version);
    j->active = 1;
    return RAVEL_OK;
}

static ravel_status open_pull(ravel__client *c, const unsigned char *body, int64_t bytes, const ravel__pull_ask *ask,
                              ravel_error *err) {
    ravel__server *s = c->lane->server;
    ravel__pull_job *j = &c->job;
    j->asked = ravel__calloc(s->allocator, (size_t)ask->count + 1, sizeof *j->asked);
    j->count = j->asked ? ask->count : 0;
    if (!j->asked) return ravel__no_memory(err, (size_t)ask->count * sizeof *j->asked, "a pull");
    ravel_status status = ravel__ask_read(body, bytes, ask, s->store, s->item_of, s->tensors, j->asked, err);
    if (status != RAVEL_OK || ask->base.version == 0) return status;
    j->held = ask->base;
    if (s->sparse) j->base = ravel__store_use(s->store, ask->base);
    if (s->sparse && !j->base) drop_base(j, s->store);
    j->same = ravel__alloc(s->allocator, (size_t)s->store->tiles.blocks + 1);
    if (j->same && !ravel__store_compare(s->store, j->kept, ask->base, j->same)) {
        ravel__release(s->allocator, j->same, (size_t)s->store->tiles.blocks + 1);
        j->same = NULL;
    }
    return RAVEL_OK;
}

void ravel__job_begin(ravel__client *c, uint64_t id, const unsigned char *body, int64_t bytes, int mapped) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__pull_ask ask;
    if (c->job.active)
        return ravel__client_fail(c, id, RAVEL_E_DATA, "it asks for a version before it has the last one");
    memset(&c->job, 0, sizeof c->job);
    c->job.id = id;
    ravel_status status = ravel__ask_open(body, bytes, &ask, &err);
    if (status == RAVEL_OK) status = use_version(c, &ask, &err);
    c->job.mapped = mapped;
    if (status == RAVEL_OK) status = mapped ? send_mapped(c, &err) : open_pull(c, body, bytes, &ask, &err);
    if (status == RAVEL_OK && !mapped) return serve_more(c);
    if (status == RAVEL_OK) return;
    ravel__job_end(c);
    ravel__client_fail(c, id, status, err.message);
}
