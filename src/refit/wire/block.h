/* Blocks: how the elements of a slice travel. A block is a run of elements of one slice, in the order of the slice's
 * box; it is encoded by one function and decoded by one, whatever carries it (a link of publish and pull, or the ranks'
 * communicator).
 *
 *     sender      view of the source, or of the store --encode: gather, cast, hash--> bytes and their hash
 *     receiver    kind, bytes, hash                   --decode: verify, cast, scatter--> stage
 *
 *     kind    travels              the receiver's elements become
 *     DATA    count * size bytes   what travelled; the hash is XXH3 of these bytes
 *     KEEP    nothing              those of the live version: the sender has found the block unchanged since the version that
 *                                  the receiver holds
 *     SPARSE  changes (sparse.h)   those of the live version with the changes; the hash is XXH3 of the bytes that DATA would
 *                                  have had, so changes of another version than the live one are found out
 *
 * The sender chooses the kind; SPARSE only for receivers that can read their live version (ravel__stage_patches). */
#ifndef RAVEL_REFIT_BLOCK_H
#define RAVEL_REFIT_BLOCK_H

#include "refit/stage/stage.h"
#include "base/sparse.h"

typedef enum ravel__block_kind {
    RAVEL__BLOCK_DATA,
    RAVEL__BLOCK_KEEP,
    RAVEL__BLOCK_SPARSE,
    RAVEL__BLOCK_KINDS
} ravel__block_kind;

/* Elements first .. first+count of `box` (inside view->box) as `dtype`, into `out`, with the hash of what was
 * written. */
ravel_status ravel__block_encode(const ravel__view *view, const void *data, const ravel__box *box, int64_t first,
                                 int64_t count, int32_t dtype, void *out, uint64_t *hash, ravel_error *err);

/* A block that came. */
typedef struct ravel__refit_block {
    ravel__refit_span span;
    int32_t kind;
    int32_t dtype;     /* of the elements */
    size_t size;       /* SPARSE: of the bytes */
    const void *bytes; /* any alignment; DATA: ravel__stage_address of the span: they were received in their place */
    uint64_t hash;
    const char *role; /* with `sender`, who sent it, for sentences: "trainer rank", 3 */
    int32_t sender;
    int64_t verify_ns, load_ns; /* out: added to */
} ravel__refit_block;

/* What went by, by kind; from any thread. */
typedef struct ravel__tally {
    _Atomic int64_t blocks[RAVEL__BLOCK_KINDS], bytes[RAVEL__BLOCK_KINDS]; /* of the elements */
    _Atomic int64_t moved[RAVEL__BLOCK_KINDS];                             /* bytes that travelled for them */
    _Atomic int64_t elements, compared,
        changed; /* all; of blocks that were compared with the base; of these, that differ */
} ravel__tally;

/* One block more, of `count` elements of `each` bytes, for which `moved` bytes travelled. `changed`: elements that
 * differ; -1: it was not compared, or only the sender knows. */
void ravel__tally_add(ravel__tally *tally, int32_t kind, int64_t count, int64_t each, int64_t moved, int64_t changed);
void ravel__tally_clear(ravel__tally *tally);

/* Into the stage. Callbacks get verified bytes only; other kinds of stage may hold wrong bytes after E_CHECKSUM, and
 * are aborted then. From several threads at once for different elements. */
ravel_status ravel__block_decode(ravel__stage *stage, ravel__refit_block *block, ravel_error *err);

#endif
