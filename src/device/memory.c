/* The cache: a block that is released waits for the next allocation of its size.
 *
 *     sizes are rounded up to eight steps per power of two      256, 512, ... 2048, 2304, 2560, ... 4096, 4608, ...
 *     free[kind][class]     released blocks of one size, a list
 *     known[address]        all blocks, so that an address alone can be released
 *
 * A block that was released in a stream may still be used by what is queued there. So a release records an event; an
 * allocation for the same stream takes the block at once, one for another stream takes a block whose event is done, or
 * lets the stream wait for it. After its first round a loop makes no driver allocation. */
#include "device/handle.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdbool.h>

struct ravel__memory_block {
    ravel__memory_block *next_free, *next_known;
    void *array;
    size_t bytes;
    int32_t kind;
    int32_t used;
    void *stream; /* the one that used it last */
    void *event;  /* recorded there; NULL: new, or the driver had none: no other stream may use the block */
};

enum { LEAST = 256, STEPS_LOG = 3 };

static int top_bit(size_t bytes) {
    RAVEL_ASSERT(bytes > 0);
    return 63 - __builtin_clzll((unsigned long long)bytes);
}

static size_t step_of(size_t bytes) {
    int bit = top_bit(bytes) - STEPS_LOG;
    size_t step = bit > 0 ? (size_t)1 << bit : 1;
    RAVEL_ASSERT((step & (step - 1)) == 0);
    return step > LEAST ? step : LEAST;
}

static size_t rounded(size_t bytes) {
    size_t size = ravel__round_up(bytes, step_of(bytes));
    RAVEL_ASSERT(size % LEAST == 0 && step_of(size) >= step_of(bytes));
    RAVEL_ASSERT(size >= bytes && (size <= LEAST * 8 || size - bytes <= bytes / 8)); /* at most 12.5 % more */
    return size;
}

/* Of a rounded size: the power of two, and which of its eight steps. */
static int class_of(size_t bytes) {
    RAVEL_ASSERT(bytes >= LEAST && bytes % LEAST == 0);
    int bit = top_bit(bytes);
    int index = bit * (1 << STEPS_LOG) + (int)(bytes >> (bit - STEPS_LOG) & ((1 << STEPS_LOG) - 1));
    RAVEL_ASSERT(index >= 0 && index < RAVEL__SIZE_CLASSES);
    return index;
}

static ravel__memory_block **bucket(ravel__cache *cache, const void *array) {
    uint64_t hash = (uint64_t)(uintptr_t)array / LEAST * UINT64_C(0x9e3779b97f4a7c15);
    RAVEL_ASSERT(hash >> 54 < RAVEL__BLOCK_BUCKETS);
    return &cache->known[hash >> 54];
}

/* What holds between two calls: each block is in the bucket of its address, and is used or in the free list of its
 * size; the sums are those of the blocks. Looks at all of them: for the slow ways only. The caller holds the lock. */
static bool cache_ok(ravel__cache *cache) {
    int64_t used = 0, unused = 0, listed = 0;
    for (int i = 0; i < RAVEL__BLOCK_BUCKETS; i++)
        for (const ravel__memory_block *b = cache->known[i]; b; b = b->next_known) {
            if (bucket(cache, b->array) != &cache->known[i] || b->bytes != rounded(b->bytes)) return false;
            *(b->used ? &used : &unused) += (int64_t)b->bytes;
        }
    for (int i = 0; i < RAVEL__KINDS * RAVEL__SIZE_CLASSES; i++)
        for (const ravel__memory_block *b = cache->free[i / RAVEL__SIZE_CLASSES][i % RAVEL__SIZE_CLASSES]; b;
             b = b->next_free) {
            if (b->used || b->kind != i / RAVEL__SIZE_CLASSES || class_of(b->bytes) != i % RAVEL__SIZE_CLASSES)
                return false;
            listed += (int64_t)b->bytes;
        }
    return used == cache->used_bytes && unused == cache->cached_bytes && listed == unused;
}

/* ---- taking and giving ---------------------------------------------------------------------------------- */

/* Takes the block out of its list and lets the stream use it. */
static ravel__memory_block *take(ravel_device *d, ravel__memory_block **link, void *stream, int *code) {
    ravel__memory_block *block = *link;
    RAVEL_ASSERT(block && !block->used);
    RAVEL_ASSERT(block->stream == stream || block->event); /* else nothing says when that stream is done with it */
    if (block->stream != stream && block->event) *code = d->driver->event_order(d->inside, block->event, stream);
    if (*code) return NULL;
    *link = block->next_free;
    d->cache.cached_bytes -= (int64_t)block->bytes;
    RAVEL_ASSERT(d->cache.cached_bytes >= 0);
    return block;
}

/* The best block of the class: of this stream, else one that is idle, else any that the stream can wait for. */
static ravel__memory_block *find_free(ravel_device *d, int32_t kind, size_t bytes, void *stream, int *code) {
    RAVEL_ASSERT(kind >= 0 && kind < RAVEL__KINDS && bytes == rounded(bytes));
    ravel__memory_block **list = &d->cache.free[kind][class_of(bytes)], **idle = NULL, **busy = NULL;
    for (ravel__memory_block **link = list; *link; link = &(*link)->next_free) {
        if ((*link)->stream == stream) return take(d, link, stream, code);
        if (idle || !(*link)->event) continue;
        if (d->driver->event_test(d->inside, (*link)->event) == 0)
            idle = link;
        else if (!busy)
            busy = link;
    }
    if (idle) return take(d, idle, stream, code);
    return busy ? take(d, busy, stream, code) : NULL;
}

static void drop_block(ravel_device *d, ravel__memory_block *block) {
    ravel__memory_block **link = bucket(&d->cache, block->array);
    for (; *link != block; link = &(*link)->next_known) RAVEL_ASSERT(*link); /* every block is known by its address */
    *link = block->next_known;
    RAVEL_ASSERT(block->array && block->kind >= 0 && block->kind < RAVEL__KINDS);
    if (block->event) d->driver->event_free(d->inside, block->event);
    (void)d->driver->release(d->inside, block->kind, block->array);
    ravel__release(NULL, block, sizeof *block);
}

static void trim(ravel_device *d) {
    for (int i = 0; i < RAVEL__KINDS * RAVEL__SIZE_CLASSES; i++) {
        ravel__memory_block **link = &d->cache.free[i / RAVEL__SIZE_CLASSES][i % RAVEL__SIZE_CLASSES];
        while (*link) {
            ravel__memory_block *block = *link;
            if (block->event && d->driver->event_test(d->inside, block->event) != 0) {
                link = &block->next_free;
                continue;
            }
            RAVEL_ASSERT(!block->used);
            *link = block->next_free;
            d->cache.cached_bytes -= (int64_t)block->bytes;
            drop_block(d, block);
            RAVEL_ASSERT(d->cache.cached_bytes >= 0);
        }
    }
}

/* A new block; where memory is short, once more with an empty cache. */
static ravel__memory_block *make_block(ravel_device *d, int32_t kind, size_t bytes, int *code) {
    RAVEL_ASSERT(cache_ok(&d->cache) && bytes == rounded(bytes));
    char text[64];
    ravel__memory_block *block = ravel__calloc(NULL, 1, sizeof *block);
    if (!block) return NULL;
    *code = d->driver->alloc(d->inside, kind, bytes, &block->array);
    if (*code && d->driver->describe(*code, text, sizeof text) == RAVEL_E_MEMORY) {
        trim(d);
        *code = d->driver->alloc(d->inside, kind, bytes, &block->array);
    }
    if (*code) {
        ravel__release(NULL, block, sizeof *block);
        return NULL;
    }
    block->bytes = bytes;
    RAVEL_ASSERT(block->array && (uintptr_t)block->array % LEAST == 0); /* as the header promises */
    block->kind = kind;
    ravel__memory_block **link = bucket(&d->cache, block->array);
    block->next_known = *link;
    *link = block;
    d->cache.driver_allocs++;
    return block;
}

static ravel_status get_block(ravel_device *d, int32_t kind, size_t bytes, void *stream, ravel__memory_block **out,
                              ravel_error *err) {
    RAVEL_ASSERT(kind >= 0 && kind < RAVEL__KINDS && bytes > 0);
    int code = 0;
    (void)pthread_mutex_lock(&d->lock);
    ravel__memory_block *block = find_free(d, kind, bytes, stream, &code);
    if (!block && !code) block = make_block(d, kind, bytes, &code);
    if (block) {
        RAVEL_ASSERT(block->array && block->bytes == bytes && block->kind == kind && !block->used);
        block->used = 1;
        d->cache.used_bytes += (int64_t)block->bytes;
    }
    (void)pthread_mutex_unlock(&d->lock);
    RAVEL_ASSERT(!block || !code);
    if (code) {
        ravel_status status = ravel__device_check(d, code, "allocating memory", err);
        ravel_error_prefix(err, "%zu bytes", bytes);
        return status;
    }
    if (!block) return ravel__no_memory(err, sizeof *block, "a block of the cache");
    *out = block;
    return RAVEL_OK;
}

ravel_status ravel_device_alloc(ravel_device *device, int32_t kind, size_t bytes, ravel_stream *stream, void **array,
                                ravel_error *err) {
    ravel__memory_block *block = NULL;
    if (kind < RAVEL_HOST || kind > RAVEL_DEVICE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "memory kind %d is none of " RAVEL_MEMORY_CHOICES, kind);
    if (bytes > SIZE_MAX / 4)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "%zu bytes are more than any device has", bytes);
    ravel_status status = ravel__device_usable(device, err);
    if (!status && bytes == 0) *array = NULL;
    if (status || bytes == 0) return status;
    status = get_block(device, kind, rounded(bytes), ravel__native(stream), &block, err);
    RAVEL_ASSERT((status == RAVEL_OK) == (block != NULL));
    if (block) *array = block->array;
    return status;
}

/* The event after which another stream may use the block; without one the block may only be used by this stream. */
static void mark_use(ravel_device *d, ravel__memory_block *block, void *stream) {
    RAVEL_ASSERT(block->used);
    block->stream = stream;
    if (!block->event && d->driver->event_create(d->inside, &block->event) != 0) block->event = NULL;
    if (block->event && d->driver->event_record(d->inside, block->event, stream) != 0) {
        d->driver->event_free(d->inside, block->event);
        block->event = NULL;
    }
}

void ravel_device_release(ravel_device *device, void *array, ravel_stream *stream) {
    if (!array) return;
    (void)pthread_mutex_lock(&device->lock);
    ravel__memory_block *block = *bucket(&device->cache, array);
    while (block && block->array != array) block = block->next_known;
    RAVEL_ASSERT(block && block->used);
    if (block && block->used) {
        RAVEL_ASSERT(block->kind >= 0 && block->kind < RAVEL__KINDS);
        ravel__memory_block **list = &device->cache.free[block->kind][class_of(block->bytes)];
        RAVEL_ASSERT(*list != block);
        mark_use(device, block, ravel__native(stream));
        block->used = 0;
        block->next_free = *list;
        *list = block;
        device->cache.used_bytes -= (int64_t)block->bytes;
        device->cache.cached_bytes += (int64_t)block->bytes;
        RAVEL_ASSERT(device->cache.used_bytes >= 0);
    }
    (void)pthread_mutex_unlock(&device->lock);
}

void ravel__cache_free(ravel_device *device) {
    RAVEL_ASSERT(cache_ok(&device->cache));
    for (int i = 0; i < RAVEL__BLOCK_BUCKETS; i++)
        while (device->cache.known[i]) {
            const ravel__memory_block *block = device->cache.known[i];
            *(block->used ? &device->cache.used_bytes : &device->cache.cached_bytes) -= (int64_t)block->bytes;
            drop_block(device, device->cache.known[i]);
        }
}

/* ---- copies --------------------------------------------------------------------------------------------- */

ravel_status ravel_device_copy(ravel_device *device, void *to, const void *from, size_t bytes, ravel_stream *stream,
                               ravel_error *err) {
    ravel_status status = ravel__device_usable(device, err);
    if (status || bytes == 0) return status;
    return ravel__device_check(device, device->driver->copy(device->inside, to, from, bytes, ravel__native(stream)),
                               "copying", err);
}

ravel_status ravel_device_fill(ravel_device *device, void *to, uint8_t value, size_t bytes, ravel_stream *stream,
                               ravel_error *err) {
    ravel_status status = ravel__device_usable(device, err);
    if (status || bytes == 0) return status;
    return ravel__device_check(device, device->driver->fill(device->inside, to, value, bytes, ravel__native(stream)),
                               "filling", err);
}
