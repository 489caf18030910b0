/* Tiles: how elements are kept packed, in blocks that are hashed one by one. A publication keeps the pieces of a rank,
 * a collective refit with delta the slices of a stream.
 *
 *     item 0                  item 1                        each item is packed row-major, from a multiple of 256 bytes
 *     [block 0][block 1][b 2] [block 3][block 4] ...        a block is block_bytes long, the last one of an item
 * shorter */
#ifndef RAVEL_REFIT_TILES_H
#define RAVEL_REFIT_TILES_H

#include "base/memory.h"
#include "refit/model/view.h"

enum { RAVEL__TILE_ALIGN = 256 };

typedef struct ravel__tile_item {
    ravel__view view;    /* of the packed bytes: offset 0, row-major, in the dtype that is kept */
    int64_t at;          /* bytes into a version */
    int64_t first_block; /* of all blocks */
    int64_t elements, per_block;
} ravel__tile_item;

typedef struct ravel__tiles {
    ravel__tile_item *items; /* [room] */
    int64_t count, room;
    int64_t bytes, blocks;
    int64_t block_bytes;
} ravel__tiles;

/* One version. */
typedef struct ravel__packed {
    unsigned char *bytes; /* [tiles->bytes]; NULL: only hashes are kept */
    uint64_t *hashes;     /* [tiles->blocks] */
} ravel__packed;

/* Room for `room` items; block_bytes is a multiple of 8. */
ravel_status ravel__tiles_make(ravel__tiles *tiles, int64_t room, int64_t block_bytes, const ravel_allocator *allocator,
                               ravel_error *err);
void ravel__tiles_free(ravel__tiles *tiles, const ravel_allocator *allocator);
/* The next item: the elements of a box as `dtype`. */
void ravel__tiles_add(ravel__tiles *tiles, const ravel__box *box, int32_t dtype);
/* The item that a block belongs to. */
int64_t ravel__tiles_find(const ravel__tiles *tiles, int64_t block);

/* Memory for a version, on failure none; `bytes` 0: for its hashes alone. */
int ravel__packed_make(const ravel__tiles *tiles, int bytes, const ravel_allocator *allocator, ravel__packed *packed);
void ravel__packed_free(const ravel__tiles *tiles, const ravel_allocator *allocator, ravel__packed *packed);

/* Elements of the item that its block `block` has. */
static inline int64_t ravel__tile_count(const ravel__tile_item *item, int64_t block) {
    int64_t left = item->elements - (block - item->first_block) * item->per_block;
    return left < item->per_block ? left : item->per_block;
}

#endif
