/* Pulling from a trainer on the same device. No bytes are sent: a kernel reads the version in the trainer's memory.
 *
 *     MAP -> MAPPED: slot, layout, hashes -> [kernel: cast, scatter, hash of every block that is touched] -> compare -> READ -> END
 *
 * The trainer may replace the version while it is read. It then closes the link first, so that READ is not answered by
 * END; what was staged is dropped. */
#include "refit/model/carrier.h"
#include "refit/pull/dial.h"
#include "refit/pull/pull.h"
#include "refit/publish/handout.h"

#include "base/assert.h"
#include "device/shared.h"
#include "comm/machine.h"
#include "device/cast.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* A trainer's slots, mapped once per session. */
struct ravel__mapping {
    ravel__mapping *next;
    int32_t sender, slots;
    char name[RAVEL__SHARE_NAME]; /* that the slots were handed out under */
    ravel__shared *slot[RAVEL__STORE_KEEP_MOST];
};

typedef struct reading {
    ravel_puller *puller;
    const ravel__pull_task *task;
    ravel__dial dial;
    const unsigned char *body; /* of MAPPED */
    ravel__mapped mapped;
    int32_t *item_of; /* [directory.count] items of the layout; -1: the sender does not have the tensor */
    ravel__casts *casts;
    char *touched;  /* [mapped.blocks] */
    int64_t blocks; /* that are */
    ravel_error *err;
} reading;

int ravel__pull_may_map(const ravel_puller *p, int32_t sender) {
    RAVEL_ASSERT(sender >= 0 && sender < p->directory.senders);
    uint64_t here = ravel__machine_number();
    return p->holding.carrier && here != 0 && p->directory.machines[sender] == here &&
           p->stage.now != &ravel__stage_undo;
}

static ravel_status ask(reading *r, uint32_t kind, uint32_t answer) {
    const ravel_puller *p = r->puller;
    const ravel__pull_ask head = {.session = p->session, .identity = p->next};
    RAVEL_ASSERT(p->next.version > 0);
    return ravel__dial_ask(&r->dial, kind, &head, sizeof head, answer, p->options.timeout, r->err);
}

/* ---- mappings ------------------------------------------------------------------------------------------- */

static void free_mapping(ravel__mapping *m) {
    for (int32_t k = 0; k < m->slots; k++) ravel__shared_free(m->slot[k]);
    free(m);
}

void ravel__pull_unmap(ravel_puller *p) {
    while (p->mappings) {
        ravel__mapping *m = p->mappings;
        p->mappings = m->next;
        free_mapping(m);
    }
}

/* Takes the mapping of a sender out of the list; NULL: there is none. Only one task at a time is about one sender. */
static ravel__mapping *take_mapping(ravel_puller *p, int32_t sender) {
    pthread_mutex_lock(&p->lock);
    ravel__mapping **link = &p->mappings;
    while (*link && (*link)->sender != sender) link = &(*link)->next;
    ravel__mapping *m = *link;
    if (m) *link = m->next;
    pthread_mutex_unlock(&p->lock);
    return m;
}

static void put_mapping(ravel_puller *p, ravel__mapping *m) {
    pthread_mutex_lock(&p->lock);
    m->next = p->mappings;
    p->mappings = m;
    pthread_mutex_unlock(&p->lock);
}

static ravel_status new_mapping(const reading *r, ravel__mapping **made) {
    RAVEL_ASSERT(r->mapped.slots >= 1 && r->mapped.slots <= RAVEL__STORE_KEEP_MOST);
    ravel__mapping *m = calloc(1, sizeof *m);
    if (!m) return ravel__no_memory(r->err, sizeof *m, "a mapping");
    m->sender = r->task->sender;
    m->slots = r->mapped.slots;
    memcpy(m->name, r->mapped.name, sizeof m->name);
    ravel_status status = ravel__handout_fetch(&r->mapped, ravel__carrier_device(r->puller->holding.carrier),
                                               r->puller->options.timeout, m->slot, r->err);
    if (status == RAVEL_OK)
        *made = m;
    else
        free(m);
    return status;
}

/* Names are never reused: a restarted trainer has another name and other memory. E_UNSUPPORTED: the memory is not to be
 * had (another user, another container, a device that cannot), so the version must be pulled over the link. */
static ravel_status map(reading *r, const void **data) {
    ravel__mapping *m = take_mapping(r->puller, r->task->sender);
    RAVEL_ASSERT(!m || m->sender == r->task->sender);
    if (m && memcmp(m->name, r->mapped.name, sizeof m->name) != 0) {
        free_mapping(m);
        m = NULL;
    }
    ravel_status status = m ? RAVEL_OK : new_mapping(r, &m);
    if (status != RAVEL_OK) return status == RAVEL_E_DEAD ? status : RAVEL_E_UNSUPPORTED;
    if (r->mapped.slots == m->slots && (size_t)r->mapped.bytes <= ravel__shared_bytes(m->slot[r->mapped.slot]))
        *data = ravel__shared_data(m->slot[r->mapped.slot]);
    else
        status = ravel_error_set(r->err, RAVEL_E_DATA, "the trainer's slots are not what they were");
    put_mapping(r->puller, m);
    return status;
}

/* ---- the list ---------------------------------------------------------------------------------------------- */

/* Runs of the sink and runs of the store, side by side: a piece is what lies together in both. */
typedef struct pairing {
    reading *r;
    const ravel__mapped_item *item;
    const ravel__view *store;
    const ravel__box *box;
    int64_t done; /* elements of the box */
    char *data, *tensor;
    int64_t each, packed;
    int32_t kind;
} pairing;

static ravel_status add_stored(void *user, int64_t at, int64_t count, ravel_error *err) {
    pairing *p = user;
    reading *r = p->r;
    int64_t last = at + count - 1;
    RAVEL_ASSERT(at >= 0 && last / p->item->per_block < r->mapped.blocks - p->item->first_block);
    ravel_status status =
        ravel__casts_add_run(r->casts, p->tensor, p->kind, p->item->at + at * p->packed, count * p->packed, err);
    p->tensor += count * p->each;
    for (int64_t b = at / p->item->per_block; b <= last / p->item->per_block; b++)
        r->touched[p->item->first_block + b] = 1;
    return status;
}

static ravel_status add_run(void *user, int64_t at, int64_t count, ravel_error *err) {
    pairing *p = user;
    p->tensor = p->data + at * p->each;
    p->done += count;
    return ravel__view_pieces(p->store, p->box, p->done - count, count, add_stored, p, err);
}

/* The sender's box of a tensor, from the directory. */
static int box_of(const ravel__directory *d, int32_t tensor, int32_t sender, ravel__box *box) {
    RAVEL_ASSERT(tensor >= 0 && tensor < d->count);
    const ravel__cut *cut = &d->cuts[d->tensors[tensor].cut];
    for (int32_t h = 0; h < cut->holders; h++)
        if (cut->senders[h] == sender) {
            *box = ravel__cut_box(cut, h);
            return 1;
        }
    return 0;
}

/* Item `index` of the layout, and the view of it in the slot. Everything is checked. */
static ravel_status item_at(const reading *r, int64_t index, ravel__mapped_item *item, ravel__view *store) {
    ravel_status status = ravel__mapped_item_at(r->body, &r->mapped, index, item, r->err);
    if (status != RAVEL_OK) return status;
    *store = (ravel__view){.dtype = item->dtype};
    if (item->tensor >= r->puller->directory.count ||
        !box_of(&r->puller->directory, item->tensor, r->task->sender, &store->box) ||
        !ravel__mapped_holds(&r->mapped, item, ravel__box_count(&store->box)))
        return ravel_error_set(r->err, RAVEL_E_DATA, "the layout of trainer rank %d is not that of its directory",
                               r->task->sender);
    int64_t stride = 1;
    for (int32_t d = store->box.ndim - 1; d >= 0; d--) {
        store->strides[d] = stride;
        stride *= store->box.extent[d];
    }
    return RAVEL_OK;
}

static ravel_status index_items(reading *r) {
    size_t bytes = (size_t)r->puller->directory.count * sizeof *r->item_of;
    ravel__mapped_item item;
    ravel__view store;
    r->item_of = ravel__alloc(&r->puller->memory.allocator, bytes + 1);
    if (!r->item_of) return ravel__no_memory(r->err, bytes, "the layout of a version");
    memset(r->item_of, 0xff, bytes);
    for (int64_t i = 0; i < r->mapped.items; i++) {
        ravel_status status = item_at(r, i, &item, &store);
        if (status != RAVEL_OK) return status;
        r->item_of[item.tensor] = (int32_t)i;
    }
    return RAVEL_OK;
}

/* E_UNSUPPORTED: no kernel casts what is stored to what is wanted. */
static ravel_status list_want(reading *r, const ravel__want *want) {
    RAVEL_ASSERT(want->tensor >= 0 && want->tensor < r->puller->directory.count);
    const ravel_puller *p = r->puller;
    const ravel__view *view = &p->holding.items[want->item].view;
    const ravel__piece *piece = want->piece;
    ravel__mapped_item item;
    ravel__view store;
    if (r->item_of[want->tensor] < 0)
        return ravel_error_set(r->err, RAVEL_E_DATA, "the layout of trainer rank %d lacks \"%s\"", r->task->sender,
                               p->holding.items[want->item].name);
    ravel_status status = item_at(r, r->item_of[want->tensor], &item, &store);
    if (status != RAVEL_OK) return status;
    ravel__box both;
    if (!ravel__box_meet(&store.box, &piece->box, &both) || !ravel__box_equal(&both, &piece->box))
        return ravel_error_set(r->err, RAVEL_E_DATA, "the directory lists trainer rank %d twice for \"%s\"",
                               r->task->sender, p->holding.items[want->item].name);
    pairing pair = {.r = r, .item = &item, .store = &store, .box = &piece->box};
    pair.kind = ravel__cast_of(view->dtype, item.dtype);
    if (pair.kind < 0 || item.dtype != p->plan.dtypes[want->item]) return RAVEL_E_UNSUPPORTED;
    pair.each = ravel_dtype_bytes(view->dtype);
    pair.packed = ravel_dtype_bytes(item.dtype);
    pair.data = p->stage.now->target(&p->stage, view->tensor);
    return ravel__view_pieces(view, &piece->box, 0, piece->count, add_run, &pair, r->err);
}

/* The blocks that are touched, in the order of the layout. */
static ravel_status list_blocks(reading *r) {
    int64_t end = 0, last = -1;
    for (int64_t i = 0; i < r->mapped.items; i++) {
        ravel__mapped_item item;
        ravel__view store;
        ravel_status status = item_at(r, i, &item, &store);
        int64_t each = ravel_dtype_bytes(item.dtype), elements = ravel__box_count(&store.box);
        for (int64_t done = 0, b = item.first_block; done < elements && status == RAVEL_OK;
             done += item.per_block, b++) {
            int64_t left = elements - done, count = left < item.per_block ? left : item.per_block;
            int64_t at = item.at + done * each;
            if (!r->touched[b]) continue;
            if (at < end || b <= last)
                return ravel_error_set(r->err, RAVEL_E_DATA, "the layout of trainer rank %d overlaps", r->task->sender);
            end = at + count * each;
            last = b;
            status = ravel__casts_span(r->casts, at, count * each, r->err);
            r->blocks++;
        }
        if (status != RAVEL_OK) return status;
    }
    return RAVEL_OK;
}

/* ---- the kernel ----------------------------------------------------------------------------------------- */

static ravel_status compare(const reading *r, const uint64_t *hashes) {
    const unsigned char *theirs = ravel__mapped_hashes(r->body, &r->mapped);
    for (int64_t b = 0; b < r->mapped.blocks; b++)
        if (r->touched[b] && *hashes++ != ravel__get64(theirs + 8 * b))
            return ravel_error_set(r->err, RAVEL_E_CHECKSUM,
                                   "block %lld of version %lld was read changed from the memory of trainer rank %d",
                                   (long long)b, (long long)r->puller->next.version, r->task->sender);
    return RAVEL_OK;
}

static ravel_status load(reading *r, const void *data) {
    const uint64_t *hashes = NULL;
    void *packed;
    memcpy(&packed, &data, sizeof packed); /* is only read */
    ravel_status status = ravel__casts_run(r->casts, packed, r->mapped.bytes, 1, &hashes, r->err);
    return status == RAVEL_OK ? compare(r, hashes) : status;
}

/* List, kernel, comparison. E_UNSUPPORTED: it must be pulled over the link. */
static ravel_status read_version(reading *r) {
    ravel_puller *p = r->puller;
    const void *data = NULL;
    r->touched = ravel__calloc(&p->memory.allocator, (size_t)r->mapped.blocks + 1, 1);
    if (!r->touched) return ravel__no_memory(r->err, (size_t)r->mapped.blocks + 1, "the blocks of a version");
    ravel_status status = ravel__casts_create(p->holding.carrier, &p->memory.allocator, &r->casts, r->err);
    if (status == RAVEL_OK) status = index_items(r);
    for (int64_t i = 0; i < r->task->count && status == RAVEL_OK; i++)
        status = list_want(r, &p->plan.wants[r->task->first + i]);
    if (status == RAVEL_OK) status = list_blocks(r);
    if (status == RAVEL_OK) status = map(r, &data);
    return status == RAVEL_OK && r->blocks > 0 ? load(r, data) : status;
}

static int same_device(const reading *r) {
    ravel_device_info info = {.size = sizeof info};
    return ravel_device_get_info(ravel__carrier_device(r->puller->holding.carrier), &info, NULL) == RAVEL_OK &&
           memcmp(info.uuid, r->mapped.uuid, sizeof info.uuid) == 0;
}

static void count_bytes(const reading *r) {
    const ravel_puller *p = r->puller;
    for (int64_t i = 0; i < r->task->count; i++) {
        const ravel__want *want = &p->plan.wants[r->task->first + i];
        int64_t bytes = ravel__want_bytes(&p->plan, want), count = want->piece->count;
        ravel__tally_add(&r->puller->tally, RAVEL__BLOCK_DATA, count, count > 0 ? bytes / count : 0, bytes, -1);
    }
    atomic_fetch_add(&r->puller->mapped, 1);
}

static ravel_status talk(reading *r, int *done) {
    ravel_status status = ask(r, RAVEL__PULL_MAP, RAVEL__PULL_MAPPED);
    r->body = r->dial.reply.body;
    if (status != RAVEL_OK || !r->body) return status; /* it is not in device memory */
    status = ravel__mapped_open(r->body, (int64_t)r->dial.reply.bytes, &r->mapped, r->err);
    if (status != RAVEL_OK || !same_device(r)) return status;
    status = read_version(r);
    if (status == RAVEL_E_UNSUPPORTED) {
        ravel_error_clear(r->err);
        return RAVEL_OK;
    }
    if (status == RAVEL_OK) status = ask(r, RAVEL__PULL_READ, RAVEL__PULL_END); /* the version was kept all the while */
    if (status == RAVEL_OK) count_bytes(r);
    *done = status == RAVEL_OK;
    return status;
}

ravel_status ravel__pull_map(ravel_puller *p, const ravel__pull_task *task, const char *address, int *done,
                             ravel_error *err) {
    const ravel_allocator *allocator = &p->memory.allocator;
    reading r = {.puller = p, .task = task, .err = err};
    r.dial = (ravel__dial){.token = p->token, .tls = p->options.tls, .allocator = allocator, .stop = &p->stop};
    r.dial.max_body = RAVEL__ASK_MOST;
    *done = 0;
    ravel_status status = ravel__dial_open(&r.dial, address, p->options.timeout, err);
    if (status == RAVEL_OK) status = talk(&r, done);
    ravel__dial_close(&r.dial);
    ravel__casts_free(r.casts);
    ravel__release(allocator, r.item_of, r.item_of ? (size_t)p->directory.count * sizeof *r.item_of + 1 : 0);
    ravel__release(allocator, r.touched, r.touched ? (size_t)r.mapped.blocks + 1 : 0);
    return status;
}
