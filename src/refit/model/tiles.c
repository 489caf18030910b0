#include "refit/model/tiles.h"

#include "base/assert.h"

#include <string.h>

ravel_status ravel__tiles_make(ravel__tiles *t, int64_t room, int64_t block_bytes, const ravel_allocator *allocator,
                               ravel_error *err) {
    RAVEL_ASSERT(room >= 0 && block_bytes >= 8 && block_bytes % 8 == 0);
    *t = (ravel__tiles){.room = room + 1, .block_bytes = block_bytes};
    t->items = ravel__calloc(allocator, (size_t)t->room, sizeof *t->items);
    return t->items ? RAVEL_OK : ravel__no_memory(err, (size_t)t->room * sizeof *t->items, "the blocks of a version");
}

void ravel__tiles_free(ravel__tiles *t, const ravel_allocator *allocator) {
    ravel__release(allocator, t->items, (size_t)t->room * sizeof *t->items);
    *t = (ravel__tiles){0};
}

void ravel__tiles_add(ravel__tiles *t, const ravel__box *box, int32_t dtype) {
    RAVEL_ASSERT(t->count < t->room && t->bytes % RAVEL__TILE_ALIGN == 0);
    ravel__tile_item *item = &t->items[t->count++];
    int64_t each = ravel_dtype_bytes(dtype), stride = 1;
    *item = (ravel__tile_item){.at = t->bytes, .first_block = t->blocks, .per_block = t->block_bytes / each};
    item->view = (ravel__view){.box = *box, .dtype = dtype};
    for (int32_t d = box->ndim - 1; d >= 0; d--) {
        item->view.strides[d] = stride;
        stride *= box->extent[d];
    }
    item->elements = stride;
    t->blocks += (stride + item->per_block - 1) / item->per_block;
    t->bytes += (stride * each + RAVEL__TILE_ALIGN - 1) / RAVEL__TILE_ALIGN * RAVEL__TILE_ALIGN;
}

int64_t ravel__tiles_find(const ravel__tiles *t, int64_t block) {
    RAVEL_ASSERT(block >= 0 && block < t->blocks);
    int64_t low = 0, high = t->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (t->items[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    RAVEL_ASSERT(t->items[low].first_block <= block);
    return low;
}

static size_t hashes_of(const ravel__tiles *t) {
    return (size_t)t->blocks * sizeof(uint64_t) + 8;
}

int ravel__packed_make(const ravel__tiles *t, int bytes, const ravel_allocator *allocator, ravel__packed *p) {
    if (bytes) p->bytes = ravel__alloc(allocator, (size_t)t->bytes + RAVEL__TILE_ALIGN);
    p->hashes = ravel__alloc(allocator, hashes_of(t));
    if (p->hashes && (p->bytes || !bytes)) return 1;
    ravel__packed_free(t, allocator, p);
    return 0;
}

void ravel__packed_free(const ravel__tiles *t, const ravel_allocator *allocator, ravel__packed *p) {
    ravel__release(allocator, p->bytes, p->bytes ? (size_t)t->bytes + RAVEL__TILE_ALIGN : 0);
    ravel__release(allocator, p->hashes, p->hashes ? hashes_of(t) : 0);
    *p = (ravel__packed){0};
}
