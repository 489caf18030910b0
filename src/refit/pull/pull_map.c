/* Pulling from a trainer on the same device. No bytes are sent: a kernel reads the version in the trainer's memory.
 *
 *     MAP -> MAPPED: slot, layout, hashes -> [kernel: cast, scatter, hash of every block that is touched] -> compare -> READ -> END
 *
 * The trainer may replace the version while it is read. It then closes the link first, so that READ is not answered by END;
 * what was staged is dropped. */
#include "refit/model/carrier.h"
#include "refit/pull/dial.h"
#include "refit/pull/pull.h"
#include "refit/publish/handout.h"

#include "base/assert.h"
#include "comm/machine.h"
#include "device/slab.h"
#include "refit/model/bytes.h"

#include <stdlib.h>
#include <string.h>

/* A trainer's slots, mapped once per session. */
struct ravel__mapping {
    ravel__mapping *next;
    int32_t sender, slots;
    char name[RAVEL__SHARE_NAME]; /* that the slots were handed out under */
    ravel_shared *slot[RAVEL__STORE_KEEP_MOST];
};

typedef struct reading {
    ravel_puller *puller;
    const ravel__pull_task *task;
    ravel__dial dial;
    unsigned char *body;
    size_t size;
    ravel__mapped mapped;
    int32_t came, ended;
    int32_t *item_of; /* [directory.count] items of the layout; -1: the sender does not have the tensor */
    /* lists of the kernel */
    ravel__cast_piece *pieces;
    int64_t count, room;
    int32_t *block_of; /* [blocks touched] in the slot */
    ravel__cast_span *spans;
    char *touched; /* [mapped.blocks] */
    int64_t blocks;
    ravel_status status;
    ravel_error *err;
} reading;

int ravel__pull_may_map(const ravel_puller *p, int32_t sender) {
    RAVEL_ASSERT(sender >= 0 && sender < p->directory.senders);
    uint64_t here = ravel__machine_number();
    return p->holding.carrier && here != 0 && p->directory.machines[sender] == here &&
           p->stage.now != &ravel__stage_undo;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static void *place(void *user, const ravel__message *head) {
    reading *r = user;
    if ((head->kind != RAVEL__PULL_MAPPED && head->kind != RAVEL__PULL_FAILED) || r->body) return NULL;
    r->size = (size_t)head->bytes;
    r->body = ravel__alloc(&r->puller->memory.allocator, r->size);
    return r->body;
}

static void message(void *user, const ravel__message *head, void *body) {
    reading *r = user;
    r->came = 1;
    if (head->kind == RAVEL__PULL_END)
        r->ended = 1;
    else if (head->bytes > 0 && !body)
        r->status = ravel__no_memory(r->err, (size_t)head->bytes, "the layout of a version");
    else if (head->kind == RAVEL__PULL_FAILED)
        r->status = ravel__failed_decode(body, head->bytes, r->err);
    else if (head->kind != RAVEL__PULL_MAPPED)
        r->status = ravel_error_set(r->err, RAVEL_E_DATA, "the trainer sent another message than MAPPED");
}

static ravel_status ask(reading *r, uint32_t kind) {
    const ravel_puller *p = r->puller;
    unsigned char body[RAVEL__ASK_HEADER];
    RAVEL_ASSERT(p->next.version > 0);
    ravel__ask head = {.session = p->session, .identity = p->next};
    ravel__ask_put_header(body, &head);
    r->came = 0;
    ravel_status status = ravel__dial_send(&r->dial, kind, 0, body, sizeof body, r->err);
    if (status == RAVEL_OK) status = ravel__dial_run(&r->dial, &r->came, p->options.timeout, r->err);
    return status == RAVEL_OK ? r->status : status;
}

/* ---- mappings ------------------------------------------------------------------------------------------- */

static void free_mapping(ravel__mapping *m) {
    for (int32_t k = 0; k < m->slots; k++) ravel_shared_free(m->slot[k]);
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

/* Names are never reused: a restarted trainer has another name and other memory. E_UNSUPPORTED: the memory is not to be had
 * (another user, another container, a device that cannot), so the version must be pulled over the link. */
static ravel_status map(reading *r, const void **data) {
    ravel__mapping *m = take_mapping(r->puller, r->task->sender);
    RAVEL_ASSERT(!m || m->sender == r->task->sender);
    if (m && memcmp(m->name, r->mapped.name, sizeof m->name) != 0) {
        free_mapping(m);
        m = NULL;
    }
    ravel_status status = m ? RAVEL_OK : new_mapping(r, &m);
    if (status != RAVEL_OK) return status == RAVEL_E_DEAD ? status : RAVEL_E_UNSUPPORTED;
    if (r->mapped.slots == m->slots && (size_t)r->mapped.bytes <= ravel_shared_bytes(m->slot[r->mapped.slot]))
        *data = ravel_shared_data(m->slot[r->mapped.slot]);
    else
        status = ravel_error_set(r->err, RAVEL_E_DATA, "the trainer's slots are not what they were");
    put_mapping(r->puller, m);
    return status;
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

static ravel_status more_pieces(reading *r) {
    int64_t room = 2 * r->room + 256;
    size_t each = sizeof *r->pieces;
    ravel__cast_piece *more =
        ravel__resize(&r->puller->memory.allocator, r->pieces, (size_t)r->room * each, (size_t)room * each);
    if (!more) return ravel__no_memory(r->err, (size_t)room * each, "the pieces of a version");
    r->pieces = more;
    r->room = room;
    return RAVEL_OK;
}

/* Runs of the sink and runs of the store, side by side: a piece is what lies together in both. */
typedef struct pairing {
    reading *r;
    const ravel__mapped_item *item;
    const ravel__view *store;
    const ravel__box *box;
    int64_t done; /* elements of the box */
    char *tensor;
    int64_t each, packed;
    int32_t kind;
} pairing;

static ravel_status add_stored(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    pairing *p = user;
    reading *r = p->r;
    (void)err;
    for (int64_t i = 0; i < count; i += stride == 1 ? count : 1) {
        int64_t n = stride == 1 ? count : 1, from = at + i * stride;
        ravel_status status = r->count == r->room ? more_pieces(r) : RAVEL_OK;
        RAVEL_ASSERT(from >= 0 && (from + n - 1) / p->item->per_block < r->mapped.blocks - p->item->first_block);
        if (status != RAVEL_OK) return status;
        r->pieces[r->count++] = (ravel__cast_piece){.at = p->item->at + from * p->packed,
                                                    .bytes = n * p->packed,
                                                    .tensor = p->tensor,
                                                    .scale = 1,
                                                    .kind = p->kind};
        p->tensor += n * p->each;
        for (int64_t b = from / p->item->per_block; b <= (from + n - 1) / p->item->per_block; b++)
            r->touched[p->item->first_block + b] = 1;
    }
    return RAVEL_OK;
}

static ravel_status add_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    pairing *p = user;
    char *data = p->tensor;
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < count && status == RAVEL_OK;) {
        int64_t n = stride == 1 ? count : 1;
        p->tensor = data + (at + i * stride) * p->each;
        status = ravel__view_walk(p->store, p->box, p->done, n, add_stored, p, err);
        p->done += n;
        i += n;
    }
    p->tensor = data;
    return status;
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
    const ravel__piece *piece = ravel__want_piece(&p->plan, want);
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
    pair.kind = ravel__slab_cast(view->dtype, item.dtype);
    if (pair.kind < 0 || pair.kind == RAVEL__CAST_F32_F8_E4M3 || item.dtype != p->plan.dtypes[want->item])
        return RAVEL_E_UNSUPPORTED;
    pair.each = ravel_dtype_bytes(view->dtype);
    pair.packed = ravel_dtype_bytes(item.dtype);
    pair.tensor = p->stage.now->target(&p->stage, view->tensor);
    return ravel__view_walk(view, &piece->box, 0, piece->count, add_run, &pair, r->err);
}

static int by_place(const void *a, const void *b) {
    const ravel__cast_piece *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Blocks of one item that are touched; 0: they do not come after the ones before. */
static int add_blocks(reading *r, const ravel__mapped_item *item, int64_t elements, int64_t *n) {
    RAVEL_ASSERT(elements >= 0 && *n >= 0 && *n <= r->blocks);
    int64_t each = ravel_dtype_bytes(item->dtype);
    for (int64_t done = 0, b = item->first_block; done < elements; done += item->per_block, b++) {
        int64_t left = elements - done, count = left < item->per_block ? left : item->per_block;
        ravel__cast_span span = {item->at + done * each, count * each};
        if (!r->touched[b]) continue;
        if (*n == r->blocks || (*n > 0 && span.at < r->spans[*n - 1].at + r->spans[*n - 1].bytes)) return 0;
        r->block_of[*n] = (int32_t)b;
        r->spans[(*n)++] = span;
    }
    return 1;
}

static ravel_status list_blocks(reading *r) {
    const ravel_allocator *allocator = &r->puller->memory.allocator;
    for (int64_t b = 0; b < r->mapped.blocks; b++) r->blocks += r->touched[b] != 0;
    r->spans = ravel__alloc(allocator, (size_t)r->blocks * sizeof *r->spans + 1);
    r->block_of = ravel__alloc(allocator, (size_t)r->blocks * sizeof *r->block_of + 1);
    if (!r->spans || !r->block_of) return ravel__no_memory(r->err, (size_t)r->blocks * 20, "the blocks of a version");
    int64_t n = 0;
    for (int64_t i = 0; i < r->mapped.items; i++) {
        ravel__mapped_item item;
        ravel__view store;
        ravel_status status = item_at(r, i, &item, &store);
        if (status != RAVEL_OK) return status;
        if (!add_blocks(r, &item, ravel__box_count(&store.box), &n)) break;
    }
    return n == r->blocks
               ? RAVEL_OK
               : ravel_error_set(r->err, RAVEL_E_DATA, "the layout of trainer rank %d overlaps", r->task->sender);
}

/* ---- the kernel ----------------------------------------------------------------------------------------- */

static ravel_status compare(const reading *r, const uint64_t *hashes) {
    const unsigned char *theirs = ravel__mapped_hashes(r->body, &r->mapped);
    for (int64_t i = 0; i < r->blocks; i++)
        if (hashes[i] != ravel__get64(theirs + 8 * (int64_t)r->block_of[i]))
            return ravel_error_set(r->err, RAVEL_E_CHECKSUM,
                                   "block %d of version %lld was read changed from the memory of trainer rank %d",
                                   r->block_of[i], (long long)r->puller->next.version, r->task->sender);
    return RAVEL_OK;
}

static ravel_status load(reading *r, const void *data, ravel_stream *stream) {
    RAVEL_ASSERT(r->count > 0 && r->blocks > 0 && data);
    ravel_puller *p = r->puller;
    ravel_device *device = ravel__carrier_device(p->holding.carrier);
    size_t spans = (size_t)r->blocks * sizeof *r->spans, pieces = (size_t)r->count * sizeof *r->pieces;
    size_t first = (size_t)r->blocks * sizeof(int32_t);
    void *lists = NULL, *hashes = NULL;
    int32_t *list = ravel__alloc(&p->memory.allocator, first + 1);
    if (!list) return ravel__no_memory(r->err, first, "the blocks of a version");
    ravel__slab_first(r->pieces, r->count, r->spans, r->blocks, 0, list);
    ravel_status status = ravel_device_alloc(device, RAVEL_DEVICE, spans + pieces + first, stream, &lists, r->err);
    if (status == RAVEL_OK)
        status = ravel_device_alloc(device, RAVEL_PINNED, (size_t)r->blocks * 8, stream, &hashes, r->err);
    if (status == RAVEL_OK) status = ravel_device_copy(device, lists, r->spans, spans, stream, r->err);
    if (status == RAVEL_OK)
        status = ravel_device_copy(device, (char *)lists + spans, r->pieces, pieces, stream, r->err);
    if (status == RAVEL_OK)
        status = ravel_device_copy(device, (char *)lists + spans + pieces, list, first, stream, r->err);
    ravel__cast_job job = {.spans = lists, .count = r->count, .blocks = r->blocks, .unpack = 1, .hashes = hashes};
    job.pieces = (const ravel__cast_piece *)(const void *)((const char *)lists + spans);
    job.first = (const int32_t *)(const void *)((const char *)lists + spans + pieces);
    job.bytes = (r->mapped.bytes + 15) / 16 * 16;
    memcpy(&job.packed, &data, sizeof data); /* is only read */
    if (status == RAVEL_OK) status = ravel__carrier_order(p->holding.carrier, stream, r->err);
    if (status == RAVEL_OK) status = ravel__launch_cast(stream, &job, r->err);
    if (status == RAVEL_OK) status = ravel_stream_wait(stream, p->options.timeout, r->err);
    if (status == RAVEL_OK) status = compare(r, hashes);
    ravel_device_release(device, lists, stream);
    ravel_device_release(device, hashes, stream);
    ravel__release(&p->memory.allocator, list, first + 1);
    return status;
}

/* Lists, kernel, comparison. E_UNSUPPORTED: it must be pulled over the link. */
static ravel_status read_version(reading *r) {
    ravel_puller *p = r->puller;
    ravel_device *device = ravel__carrier_device(p->holding.carrier);
    ravel_stream *stream = NULL;
    const void *data = NULL;
    r->touched = ravel__calloc(&p->memory.allocator, (size_t)r->mapped.blocks + 1, 1);
    if (!r->touched) return ravel__no_memory(r->err, (size_t)r->mapped.blocks + 1, "the blocks of a version");
    ravel_status status = index_items(r);
    for (int64_t i = 0; i < r->task->count && status == RAVEL_OK; i++)
        status = list_want(r, &p->plan.wants[r->task->first + i]);
    if (status == RAVEL_OK) status = list_blocks(r);
    if (status == RAVEL_OK && r->count > 0) qsort(r->pieces, (size_t)r->count, sizeof *r->pieces, by_place);
    if (status == RAVEL_OK) status = map(r, &data);
    if (status == RAVEL_OK && r->blocks > 0) {
        status = ravel_stream_create(device, &stream, r->err);
        if (status == RAVEL_OK) status = load(r, data, stream);
        ravel_stream_free(stream);
    }
    return status;
}

static int same_device(const reading *r) {
    ravel_device_info info = {.size = sizeof info};
    return ravel_device_info_get(ravel__carrier_device(r->puller->holding.carrier), &info, NULL) == RAVEL_OK &&
           memcmp(info.uuid, r->mapped.uuid, sizeof info.uuid) == 0;
}

static void count_bytes(const reading *r) {
    const ravel_puller *p = r->puller;
    int64_t bytes = 0;
    for (int64_t i = 0; i < r->task->count; i++)
        bytes += ravel__want_bytes(&p->plan, &p->plan.wants[r->task->first + i]);
    atomic_fetch_add(&r->puller->pulled, bytes);
    atomic_fetch_add(&r->puller->mapped, 1);
}

static ravel_status talk(reading *r, int *done) {
    ravel_status status = ask(r, RAVEL__PULL_MAP);
    if (status != RAVEL_OK || r->size == 0) return status; /* it is not in device memory */
    status = ravel__mapped_open(r->body, (int64_t)r->size, &r->mapped, r->err);
    if (status != RAVEL_OK || !same_device(r)) return status;
    status = read_version(r);
    if (status == RAVEL_E_UNSUPPORTED) {
        ravel_error_clear(r->err);
        return RAVEL_OK;
    }
    if (status == RAVEL_OK) status = ask(r, RAVEL__PULL_READ);
    if (status == RAVEL_OK && !r->ended)
        status = ravel_error_set(r->err, RAVEL_E_DATA, "the trainer did not confirm that the version was kept");
    if (status == RAVEL_OK) count_bytes(r);
    *done = status == RAVEL_OK;
    return status;
}

ravel_status ravel__pull_map(ravel_puller *p, const ravel__pull_task *task, const char *address, int *done,
                             ravel_error *err) {
    const ravel_allocator *allocator = &p->memory.allocator;
    reading r = {.puller = p, .task = task, .err = err};
    r.dial = (ravel__dial){
        .token = p->token, .tls = p->options.tls, .allocator = allocator, .max_body = RAVEL__ASK_MOST, .user = &r};
    r.dial.place = place;
    r.dial.message = message;
    r.dial.stop = &p->stop;
    *done = 0;
    ravel_status status = ravel__dial_open(&r.dial, address, p->options.timeout, err);
    if (status == RAVEL_OK) status = talk(&r, done);
    ravel__dial_close(&r.dial);
    ravel__release(allocator, r.body, r.body ? r.size : 0);
    ravel__release(allocator, r.pieces, (size_t)r.room * sizeof *r.pieces);
    ravel__release(allocator, r.block_of, r.block_of ? (size_t)r.blocks * sizeof *r.block_of + 1 : 0);
    ravel__release(allocator, r.spans, r.spans ? (size_t)r.blocks * sizeof *r.spans + 1 : 0);
    ravel__release(allocator, r.item_of, r.item_of ? (size_t)p->directory.count * sizeof *r.item_of + 1 : 0);
    ravel__release(allocator, r.touched, r.touched ? (size_t)r.mapped.blocks + 1 : 0);
    return status;
}
