#include "refit/publish/changes.h"

#include "base/assert.h"
#include "device/handle.h"
#include "refit/model/casts.h"

/* The lists of a job, as they go to the device and come back. */
typedef struct lists {
    uint64_t used, unused;
    ravel__compare_span spans[RAVEL__CHANGES_MOST];
} lists;

struct ravel__changes {
    const ravel__device_store *store;
    ravel_stream *stream;
    lists *here, *there;       /* page-locked, and on the device */
    unsigned char *out, *back; /* [room] on the device, and page-locked */
    int64_t room;
    int32_t count, found;
    int64_t blocks[RAVEL__CHANGES_MOST];
};

static ravel_status get_memory(ravel__changes *c, ravel_error *err) {
    ravel_device *d = ravel__device_store_device(c->store);
    void *here = NULL, *there = NULL, *out = NULL, *back = NULL;
    ravel_status status = ravel_stream_create(d, &c->stream, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_PINNED, sizeof(lists), c->stream, &here, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_DEVICE, sizeof(lists), c->stream, &there, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_DEVICE, (size_t)c->room, c->stream, &out, err);
    if (!status) status = ravel_device_alloc(d, RAVEL_PINNED, (size_t)c->room, c->stream, &back, err);
    c->here = here;
    c->there = there;
    c->out = out;
    c->back = back;
    return status;
}

ravel_status ravel__changes_create(const ravel__device_store *store, int64_t block_bytes, ravel__changes **changes,
                                   ravel_error *err) {
    RAVEL_ASSERT(block_bytes > 0 && block_bytes <= RAVEL__COMPARE_MOST && block_bytes % 16 == 0);
    *changes = NULL;
    ravel__changes *c = ravel__calloc(NULL, 1, sizeof *c);
    if (!c) return ravel__no_memory(err, sizeof *c, "the changes of a version");
    c->store = store;
    c->room = RAVEL__CHANGES_MOST * block_bytes;
    ravel_status status = get_memory(c, err);
    if (status == RAVEL_OK)
        *changes = c;
    else
        ravel__changes_free(c);
    return status;
}

void ravel__changes_free(ravel__changes *c) {
    if (!c) return;
    ravel_device *d = ravel__device_store_device(c->store);
    ravel_device_release(d, c->here, c->stream);
    ravel_device_release(d, c->there, c->stream);
    ravel_device_release(d, c->out, c->stream);
    ravel_device_release(d, c->back, c->stream);
    ravel_stream_free(c->stream);
    ravel__release(NULL, c, sizeof *c);
}

void ravel__changes_clear(ravel__changes *c) {
    c->count = c->found = 0;
}

int ravel__changes_want(ravel__changes *c, int64_t block, int64_t at, int64_t bytes, int64_t each) {
    RAVEL_ASSERT(!c->found && at % 16 == 0 && bytes > 0 && bytes <= c->room / RAVEL__CHANGES_MOST);
    if (c->count == RAVEL__CHANGES_MOST) return 0;
    c->blocks[c->count] = block;
    c->here->spans[c->count++] = (ravel__compare_span){.at = at, .bytes = (int32_t)bytes, .each = (int32_t)each};
    return 1;
}

static ravel_status bring_back(ravel__changes *c, ravel_device *d, size_t lists_bytes, ravel_error *err) {
    ravel_status status = ravel_device_copy(d, c->here, c->there, lists_bytes, c->stream, err);
    if (!status) status = ravel_stream_wait(c->stream, RAVEL__CARRY_SECONDS, err);
    if (status) return status;
    RAVEL_ASSERT(c->here->used <= (uint64_t)c->room);
    status = ravel_device_copy(d, c->back, c->out, (size_t)c->here->used, c->stream, err);
    return status ? status : ravel_stream_wait(c->stream, RAVEL__CARRY_SECONDS, err);
}

ravel_status ravel__changes_find(ravel__changes *c, int32_t fresh, int32_t base, ravel_error *err) {
    RAVEL_ASSERT(c->count > 0 && !c->found && fresh != base);
    ravel_device *d = ravel__device_store_device(c->store);
    size_t bytes = offsetof(lists, spans) + (size_t)c->count * sizeof *c->here->spans;
    const ravel__compare_job job = {.fresh = ravel__shared_data(ravel__device_store_slot(c->store, fresh)),
                                    .base = ravel__shared_data(ravel__device_store_slot(c->store, base)),
                                    .spans = c->there->spans,
                                    .blocks = c->count,
                                    .out = c->out,
                                    .used = &c->there->used};
    c->here->used = 0;
    ravel_status status = ravel_device_copy(d, c->there, c->here, bytes, c->stream, err);
    if (!status) status = ravel__launch_compare(c->stream, &job, err);
    if (!status) status = bring_back(c, d, bytes, err);
    c->found = status == RAVEL_OK;
    return status;
}

const unsigned char *ravel__changes_of(const ravel__changes *c, int64_t block, size_t *size, int64_t *changed) {
    for (int32_t i = 0; c->found && i < c->count; i++) {
        if (c->blocks[i] != block) continue;
        *size = (size_t)c->here->spans[i].size;
        *changed = c->here->spans[i].changed;
        return c->back + c->here->spans[i].found;
    }
    return NULL;
}
