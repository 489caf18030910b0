#include "refit/publish/serve_job.h"

#include "base/assert.h"
#include "refit/model/bytes.h"
#include "base/xxh3.h"
#include "refit/wire/frame.h"
#include "refit/publish/handout.h"

#include <string.h>

enum { BLOCKS_FROM = 64 * 1024 /* bytes: shorter slices travel in frames */, STEP_ELEMENTS = 64 * 1024 };

/* The token of blocks, which are sent from where they lie. */
static char block_token;

static void say_failed(ravel__client *c, uint64_t id, ravel_status status, const char *message) {
    unsigned char body[RAVEL__FAILED_BYTES];
    ravel__message head = {.kind = RAVEL__PULL_FAILED, .id = id, .bytes = sizeof body};
    ravel__failed_encode(status, message, body);
    (void)ravel__link_send(c->link, &head, body, NULL, NULL);
}

void ravel__job_end(ravel__client *c) {
    ravel__job *j = &c->job;
    ravel__server *s = c->lane->server;
    if (!j->active) return;
    RAVEL_ASSERT(j->kept && j->slice <= j->count && j->in_flight >= 0);
    ravel__store_release(s->store, j->kept);
    ravel__release(s->allocator, j->asked, ((size_t)j->count + 1) * sizeof *j->asked);
    ravel__release(s->allocator, j->same, (size_t)s->store->blocks + 1);
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++)
        ravel__release(s->allocator, j->buffers[i].bytes, RAVEL__PULL_FRAME_BYTES);
    int32_t serving = j->serving;
    memset(j, 0, sizeof *j);
    j->serving = serving;
}

/* Ends the job with FAILED once the link has sent what it still reads from the buffers and the version. */
static void fail(ravel__job *j, ravel_status status, const char *message) {
    RAVEL_ASSERT(j->active && !j->mapped && status != RAVEL_OK);
    ravel_error_set(&j->why, status, "%s", message);
    j->slice = j->count;
}

int ravel__job_is_revoked(const ravel__client *c) {
    return c->job.active && ravel__store_is_revoked(c->lane->server->store, c->job.kept);
}

/* ---- whole blocks --------------------------------------------------------------------------------------- */

/* Where a slice that lies in the store as it travels begins: its first element in the item, -1: it does not. */
static int64_t place_of(const ravel__server *s, const ravel__asked *a) {
    const ravel__store_item *item = &s->store->items[a->item];
    static const char origin;
    const char *at = ravel__view_direct(&item->view, &origin, &a->box, 0, a->dtype);
    return at ? (at - &origin) / ravel_dtype_bytes(a->dtype) : -1;
}

/* The elements of block `number` of the slice: they never cross a block of the store. */
typedef struct block {
    int64_t first, count; /* in the slice */
    int64_t at;           /* in the item */
    int64_t index;        /* of the store */
    int whole;            /* all of the store's block */
} block;

static block block_of(const ravel__store_item *item, const ravel__asked *a, int64_t start, int64_t number) {
    RAVEL_ASSERT(start >= 0 && number >= 0 && item->per_block > 0);
    int64_t lead = item->per_block - start % item->per_block;
    block b = {.first = number == 0 ? 0 : lead + (number - 1) * item->per_block};
    int64_t most = number == 0 ? lead : item->per_block, left = a->count - b.first;
    b.count = left < most ? left : most;
    b.at = start + b.first;
    int64_t in_item = b.at / item->per_block, end = (in_item + 1) * item->per_block;
    b.index = item->first_block + in_item;
    RAVEL_ASSERT(b.count > 0 && b.at + b.count <= item->elements);
    b.whole = b.at % item->per_block == 0 && b.at + b.count == (end < item->elements ? end : item->elements);
    return b;
}

static const unsigned char *block_bytes(const ravel__job *j, const ravel__store_item *item, const block *b) {
    RAVEL_ASSERT(j->kept && b->at >= 0 && b->at + b->count <= item->elements);
    return j->kept->bytes + item->at + b->at * ravel_dtype_bytes(item->view.dtype);
}

static uint64_t block_hash(const ravel__job *j, const ravel__store_item *item, const block *b) {
    RAVEL_ASSERT(!b->whole || b->index >= item->first_block);
    if (b->whole) return j->kept->hashes[b->index];
    return ravel__xxh3_of(block_bytes(j, item, b), (size_t)(b->count * ravel_dtype_bytes(item->view.dtype)));
}

static int send_hashes(ravel__client *c, const ravel__asked *a, int64_t start) {
    ravel__job *j = &c->job;
    const ravel__server *s = c->lane->server;
    const ravel__store_item *item = &s->store->items[a->item];
    int64_t lead = item->per_block - start % item->per_block, first = lead < a->count ? lead : a->count;
    int64_t blocks = ravel__hashes_blocks(a->count, item->per_block, first);
    size_t bytes = RAVEL__HASHES_HEADER + 8 * (size_t)blocks;
    unsigned char *body = ravel__alloc(s->allocator, bytes);
    if (!body) {
        fail(j, RAVEL_E_MEMORY, "the trainer has no memory for the hashes of a slice");
        return 1;
    }
    RAVEL_ASSERT(blocks > 0 && first > 0);
    ravel__put64(body, (uint64_t)item->per_block);
    ravel__put64(body + 8, (uint64_t)first);
    for (int64_t i = 0; i < blocks; i++) {
        block b = block_of(item, a, start, i);
        ravel__put64(body + RAVEL__HASHES_HEADER + 8 * i, block_hash(j, item, &b));
    }
    ravel__message head = {.kind = RAVEL__PULL_HASHES, .id = (uint64_t)j->slice, .bytes = (int64_t)bytes};
    ravel_status status = ravel__link_send(c->link, &head, body, NULL, NULL);
    ravel__release(s->allocator, body, bytes);
    return status == RAVEL_OK;
}

/* One message of a slice that goes by blocks; 0: the link cannot take it. */
static int send_block(ravel__client *c, const ravel__asked *a, int64_t start) {
    ravel__job *j = &c->job;
    const ravel__store_item *item = &c->lane->server->store->items[a->item];
    if (!j->hashed) {
        j->hashed = 1;
        return send_hashes(c, a, start);
    }
    RAVEL_ASSERT(j->active && j->kept && j->slice < j->count);
    block b = block_of(item, a, start, j->block);
    ravel__message head = {.kind = RAVEL__PULL_BLOCK,
                           .id = (uint64_t)j->slice << 32 | (uint64_t)j->block,
                           .bytes = b.count * ravel_dtype_bytes(item->view.dtype)};
    int keeps = j->same && j->same[b.index];
    j->block++;
    if (b.first + b.count == a->count) {
        j->slice++;
        j->block = 0;
        j->hashed = 0;
    }
    if (keeps) { /* an empty block: the receiver's is right already */
        head.bytes = 0;
        return ravel__link_send(c->link, &head, NULL, NULL, NULL) == RAVEL_OK;
    }
    j->in_flight++;
    /* The receiver compares its hash. */
    return ravel__link_send_raw(c->link, &head, block_bytes(j, item, &b), &block_token, NULL) == RAVEL_OK;
}

/* ---- frames --------------------------------------------------------------------------------------------- */

/* Whether elements first .. first+count of the slice lie in blocks that did not change. */
static int is_same(const ravel__server *s, const ravel__job *j, const ravel__asked *a, int64_t first, int64_t count) {
    RAVEL_ASSERT(first >= 0 && count > 0 && first + count <= a->count);
    const ravel__store_item *item = &s->store->items[a->item];
    int64_t index[2] = {first, first + count - 1}, at[2];
    if (!j->same) return 0;
    for (int end = 0; end < 2; end++) { /* the item is row-major, so all between lies between */
        int64_t rest = index[end];
        at[end] = 0;
        for (int32_t d = a->box.ndim - 1; d >= 0; d--) {
            at[end] += (a->box.start[d] - item->view.box.start[d] + rest % a->box.extent[d]) * item->view.strides[d];
            rest /= a->box.extent[d];
        }
    }
    for (int64_t b = at[0] / item->per_block; b <= at[1] / item->per_block; b++)
        if (!j->same[item->first_block + b]) return 0;
    return 1;
}

/* Packs the next entry of the slice at hand; 0: the frame is full. */
static int pack_entry(const ravel__server *s, ravel__job *j, ravel__frame_writer *writer) {
    RAVEL_ASSERT(j->slice < j->count && j->first < j->asked[j->slice].count);
    const ravel__asked *a = &j->asked[j->slice];
    const ravel__store_item *item = &s->store->items[a->item];
    int64_t each = ravel_dtype_bytes(a->dtype), left = a->count - j->first;
    unsigned char *place;
    size_t room = ravel__frame_room(writer, &place);
    int64_t count = left < STEP_ELEMENTS ? left : STEP_ELEMENTS;
    int keeps = is_same(s, j, a, j->first, count);
    if (!keeps && count > (int64_t)room / each) count = (int64_t)room / each;
    if (room == 0 || count == 0) return 0;
    ravel__frame_entry last, entry = {.tensor = (uint32_t)a->tensor,
                                      .slice = (uint32_t)j->slice,
                                      .dtype = (uint16_t)a->dtype,
                                      .first = (uint64_t)j->first,
                                      .count = (uint64_t)count};
    if (keeps) {
        entry.kind = RAVEL__ENTRY_KEEP;
        if (ravel__frame_last(writer, &last) && last.kind == RAVEL__ENTRY_KEEP && last.slice == entry.slice)
            ravel__frame_keep_more(writer, entry.count);
        else
            ravel__frame_add(writer, &entry, 0);
    } else {
        (void)ravel__view_gather(&item->view, j->kept->bytes + item->at, &a->box, j->first, count, a->dtype, place,
                                 NULL);
        entry.checksum = ravel__xxh3_of(place, (size_t)(count * each));
        ravel__frame_add(writer, &entry, (size_t)(count * each));
    }
    j->first += count;
    RAVEL_ASSERT(j->first <= a->count);
    if (j->first == a->count) {
        j->slice++;
        j->first = 0;
    }
    return 1;
}

/* Slices that lie in the store as they travel, and are long, go by blocks. */
static int64_t by_blocks(const ravel__server *s, const ravel__job *j) {
    RAVEL_ASSERT(j->slice < j->count);
    const ravel__asked *a = &j->asked[j->slice];
    if (j->first > 0 || a->count * ravel_dtype_bytes(a->dtype) < BLOCKS_FROM) return -1;
    return place_of(s, a);
}

static ravel__job_buffer *free_buffer(ravel__client *c) {
    ravel__job *j = &c->job;
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++) {
        ravel__job_buffer *b = &j->buffers[i];
        if (b->busy) continue;
        if (!b->bytes) b->bytes = ravel__alloc(c->lane->server->allocator, RAVEL__PULL_FRAME_BYTES);
        return b->bytes ? b : NULL;
    }
    return NULL;
}

/* Bytes of a version up to the end of the items that the next message needs. */
static int64_t needed(const ravel__server *s, const ravel__job *j) {
    int64_t end = 0, sum = 0;
    for (int64_t i = j->slice; i < j->count && sum < RAVEL__PULL_FRAME_BYTES; i++) {
        const ravel__asked *a = &j->asked[i];
        const ravel__store_item *item = &s->store->items[a->item];
        int64_t item_end = item->at + ravel__store_item_bytes(item);
        sum += a->count * ravel_dtype_bytes(a->dtype);
        if (item_end > end) end = item_end;
    }
    return end;
}

static int wait_for_device(ravel__client *c) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__server *s = c->lane->server;
    if (!s->store->on_device || ravel__store_arrived(s->store, c->job.kept, needed(s, &c->job), &err) == RAVEL_OK)
        return 1;
    fail(&c->job, RAVEL_E_STATE, err.message);
    return 0;
}

static void skip_empty(ravel__job *j) {
    while (j->slice < j->count && j->asked[j->slice].count == 0) j->slice++;
}

/* Fills and sends a frame; 0: there is no buffer now, or the link is lost. */
static int send_frame(ravel__client *c) {
    RAVEL_ASSERT(c->job.active && !c->job.mapped && c->job.slice < c->job.count);
    ravel__job *j = &c->job;
    const ravel__server *s = c->lane->server;
    ravel__job_buffer *buffer = free_buffer(c);
    ravel__frame_writer writer;
    if (!buffer) {
        if (j->in_flight > 0) return 0; /* one will be free when the system has taken a frame */
        fail(j, RAVEL_E_MEMORY, "the trainer has no memory to pack a frame");
        return 1;
    }
    ravel__frame_begin(&writer, buffer->bytes, RAVEL__PULL_FRAME_BYTES);
    while (j->slice < j->count && by_blocks(s, j) < 0 && pack_entry(s, j, &writer)) skip_empty(j);
    ravel__frame_head head = {.sequence = j->frames, .version = (uint64_t)j->identity.version};
    size_t bytes = ravel__frame_end(&writer, &head);
    ravel__message message = {.kind = RAVEL__PULL_FRAME, .id = j->frames++, .bytes = (int64_t)bytes};
    RAVEL_ASSERT(!buffer->busy && bytes <= RAVEL__PULL_FRAME_BYTES);
    RAVEL_ASSERT(writer.entries == 0 || head.entries == writer.entries);
    buffer->busy = 1;
    j->in_flight++;
    return ravel__link_send(c->link, &message, buffer->bytes, buffer, NULL) == RAVEL_OK;
}

/* ---- a pull --------------------------------------------------------------------------------------------- */

static void send_end(ravel__client *c) {
    RAVEL_ASSERT(c->job.active && c->job.in_flight == 0);
    ravel__message head = {.kind = RAVEL__PULL_END, .id = c->job.id};
    ravel_error why = c->job.why;
    ravel__job_end(c);
    if (why.status != RAVEL_OK) return say_failed(c, head.id, why.status, why.message);
    (void)ravel__link_send(c->link, &head, NULL, NULL, NULL);
}

static void serve_more(ravel__client *c) {
    ravel__job *j = &c->job;
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
        if (!wait_for_device(c)) continue;
        int64_t start = by_blocks(c->lane->server, j);
        going = start >= 0 ? send_block(c, &j->asked[j->slice], start) : send_frame(c);
    }
    j->serving = 0;
}

/* ---- a version that the generator reads where it is ------------------------------------------------------ */

static ravel_status open_map(ravel__client *c, const unsigned char *body, int64_t bytes, ravel_error *err) {
    ravel__server *s = c->lane->server;
    ravel__job *j = &c->job;
    ravel__ask ask;
    ravel_status status = ravel__ask_open(body, bytes, &ask, err);
    if (status != RAVEL_OK) return status;
    if (ask.session != s->session) /* a generator may have begun to stage before it heard of the restart */
        return ravel_error_set(err, RAVEL_E_STATE, "the trainers were restarted; stage again");
    RAVEL_ASSERT(!j->kept && !j->active);
    j->kept = ravel__store_use(s->store, ask.identity);
    if (!j->kept)
        return ravel_error_set(err, RAVEL_E_STATE, "version %lld is not kept (any more)",
                               (long long)ask.identity.version);
    j->identity = ask.identity;
    j->active = j->mapped = 1;
    return RAVEL_OK;
}

/* Says where the version lies, with the hashes of its blocks; an empty message: it is not shared. */
static ravel_status send_mapped(ravel__client *c, ravel_error *err) {
    RAVEL_ASSERT(c->job.active && c->job.mapped && c->job.kept);
    ravel__server *s = c->lane->server;
    ravel__message head = {.kind = RAVEL__PULL_MAPPED, .id = c->job.id};
    if (!s->handout) {
        ravel__job_end(c);
        return ravel__link_send(c->link, &head, NULL, NULL, err);
    }
    size_t size = ravel__mapped_bytes(s->store->holding->count, s->store->blocks);
    unsigned char *body = ravel__alloc(s->allocator, size);
    if (!body) return ravel__no_memory(err, size, "the layout of a version");
    ravel__handout_describe(s->handout, s->store, c->job.kept, s->item_of, s->tensors, body);
    head.bytes = (int64_t)size;
    ravel_status status = ravel__link_send(c->link, &head, body, NULL, err);
    ravel__release(s->allocator, body, size);
    return status;
}

void ravel__job_map(ravel__client *c, uint64_t id, const unsigned char *body, int64_t bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (c->job.active) return say_failed(c, id, RAVEL_E_DATA, "a MAP came before the job before it ended");
    memset(&c->job, 0, sizeof c->job);
    c->job.id = id;
    ravel_status status = open_map(c, body, bytes, &err);
    if (status == RAVEL_OK) status = send_mapped(c, &err);
    if (status == RAVEL_OK) return;
    ravel__job_end(c);
    say_failed(c, id, status, err.message);
}

void ravel__job_read(ravel__client *c, uint64_t id) {
    if (!c->job.active || !c->job.mapped)
        return say_failed(c, id, RAVEL_E_STATE, "the version was replaced while it was read; stage again");
    send_end(c);
}

void ravel__job_sent(ravel__client *c, void *token) {
    ravel__job *j = &c->job;
    if (!j->active || j->mapped) return;
    for (int32_t i = 0; i < RAVEL__JOB_BUFFERS; i++)
        if (token == &j->buffers[i]) j->buffers[i].busy = 0;
    RAVEL_ASSERT(j->in_flight > 0);
    j->in_flight--;
    serve_more(c);
}

static ravel_status open_job(ravel__client *c, const unsigned char *body, int64_t bytes, ravel_error *err) {
    RAVEL_ASSERT(!c->job.active && !c->job.kept && !c->job.asked);
    ravel__server *s = c->lane->server;
    ravel__job *j = &c->job;
    ravel__ask ask;
    ravel_status status = ravel__ask_open(body, bytes, &ask, err);
    if (status != RAVEL_OK) return status;
    if (ask.session != s->session) /* a generator may have begun to stage before it heard of the restart */
        return ravel_error_set(err, RAVEL_E_STATE, "the trainers were restarted; stage again");
    j->identity = ask.identity;
    j->kept = ravel__store_use(s->store, ask.identity);
    if (!j->kept)
        return ravel_error_set(err, RAVEL_E_STATE, "version %lld is not kept (any more)",
                               (long long)ask.identity.version);
    j->active = 1;
    j->asked = ravel__calloc(s->allocator, (size_t)ask.count + 1, sizeof *j->asked);
    j->count = j->asked ? ask.count : 0;
    if (!j->asked) return ravel__no_memory(err, (size_t)ask.count * sizeof *j->asked, "a pull");
    status = ravel__ask_read(body, bytes, &ask, s->store, s->item_of, s->tensors, j->asked, err);
    if (status == RAVEL_OK) status = ravel__store_bring(s->store, j->kept, err);
    if (status != RAVEL_OK || ask.base.version == 0) return status;
    j->same = ravel__alloc(s->allocator, (size_t)s->store->blocks + 1);
    if (j->same && !ravel__store_compare(s->store, j->kept, ask.base, j->same)) {
        ravel__release(s->allocator, j->same, (size_t)s->store->blocks + 1);
        j->same = NULL;
    }
    return RAVEL_OK;
}

void ravel__job_begin(ravel__client *c, uint64_t id, const unsigned char *body, int64_t bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (c->job.active) return say_failed(c, id, RAVEL_E_DATA, "a second PULL came before the first one ended");
    memset(&c->job, 0, sizeof c->job);
    c->job.id = id;
    ravel_status status = open_job(c, body, bytes, &err);
    if (status == RAVEL_OK) return serve_more(c);
    ravel__job_end(c);
    say_failed(c, id, status, err.message);
}
