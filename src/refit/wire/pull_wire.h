/* The messages between generators and trainers, as bodies of comm/link.h's messages (docs/refit-wire.md, "Publish and
 * pull"). A reader checks every number before it is used.
 *
 *     generator                                  trainer rank
 *     DIRECTORY                            -->
 *                                          <--   DIRECTORY        the directory (directory.h)
 *     WATCH      newest that it knows      -->
 *                                          <--   VERSIONS         when there is a newer one, or after a while
 *     PULL       version, base, slices     -->
 *                                          <--   HASHES, BLOCK ..., FRAME ...   in the order of the slices
 *                                          <--   END, or FAILED with a status and a sentence
 *     MAP        version                   -->          a generator on the same device
 *                                          <--   MAPPED           where its blocks lie, and their hashes
 *     READ                                 -->
 *                                          <--   END, where the version was kept all the while
 *     REPORT     what it holds, how fast   -->
 */
#ifndef RAVEL_REFIT_PULL_WIRE_H
#define RAVEL_REFIT_PULL_WIRE_H

#include "refit/model/view.h"

typedef enum ravel__pull_kind {
    RAVEL__PULL_DIRECTORY = 1,
    RAVEL__PULL_WATCH,
    RAVEL__PULL_VERSIONS,
    RAVEL__PULL_PULL,
    RAVEL__PULL_HASHES, /* id: slice. Header, then a hash per block */
    RAVEL__PULL_BLOCK,  /* id: slice << 32 | number of the block in the slice. The bytes alone; none: unchanged */
    RAVEL__PULL_FRAME,  /* id: number of the frame. A frame (frame.h) of slices that are small, cast or strided */
    RAVEL__PULL_END,
    RAVEL__PULL_FAILED,
    RAVEL__PULL_REPORT,
    RAVEL__PULL_MAP,    /* as the header of a PULL without slices: where is this version in device memory? */
    RAVEL__PULL_MAPPED, /* the answer; no bytes: it is not in device memory */
    RAVEL__PULL_READ,   /* it was read; the answer is END where it had not been replaced meanwhile */
    RAVEL__PULL_KINDS
} ravel__pull_kind;

enum {
    RAVEL__STORE_KEEP_MOST = 64, /* versions that are kept */
    RAVEL__IDENTITY_BYTES = 24,
    RAVEL__VERSIONS_HEADER = 16,
    RAVEL__ASK_HEADER = 64,
    RAVEL__HASHES_HEADER = 16,
    RAVEL__FAILED_BYTES = 4 + RAVEL_ERROR_MESSAGE_BYTES,
    RAVEL__REPORT_BYTES = 96,
    RAVEL__PULL_FRAME_BYTES = 1 << 20 /* of a FRAME at most */
};

#define RAVEL__ASK_MOST ((int64_t)1 << 28) /* bytes of a PULL */

void ravel__identity_put(unsigned char *to, ravel_refit_identity identity);
ravel_refit_identity ravel__identity_get(const unsigned char *from);

/* ---- VERSIONS: digest of the directory u64, count u32, 0 u32, identities newest first ---- */

typedef struct ravel__versions {
    uint64_t session; /* digest of the directory */
    int32_t count;
    ravel_refit_identity list[RAVEL__STORE_KEEP_MOST];
} ravel__versions;

size_t ravel__versions_encode(const ravel__versions *versions,
                              unsigned char out[RAVEL__VERSIONS_HEADER + 24 * RAVEL__STORE_KEEP_MOST]);
ravel_status ravel__versions_decode(const void *bytes, int64_t size, ravel__versions *versions, ravel_error *err);

/* ---- PULL: session u64, identity, base, count u32, 0 u32; then per slice tensor u32, dtype u16, ndim u16, box ---- */

typedef struct ravel__asked {
    int32_t item;   /* of the store */
    int32_t tensor; /* of the directory */
    int32_t dtype;  /* that travels */
    ravel__box box;
    int64_t count; /* elements */
} ravel__asked;

typedef struct ravel__ask {
    uint64_t session;
    ravel_refit_identity identity, base; /* base version 0: none */
    int64_t count;
} ravel__ask;

static inline size_t ravel__ask_slice_bytes(int32_t ndim) {
    return 8 + 16 * (size_t)ndim;
}
void ravel__ask_put_header(unsigned char *out, const ravel__ask *ask);
unsigned char *ravel__ask_put_slice(unsigned char *out, int32_t tensor, int32_t dtype, const ravel__box *box);
/* The header alone. */
ravel_status ravel__ask_open(const void *bytes, int64_t size, ravel__ask *ask, ravel_error *err);
/* `count` slices, in exactly these bytes. `view`: of an item of `owner`; `item_of`: [tensors] of the directory, this rank's
 * items, -1: it has none. */
ravel_status ravel__ask_slices(const unsigned char *bytes, int64_t size, int64_t count,
                               const ravel__view *(*view)(const void *owner, int32_t item), const void *owner,
                               const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err);
/* ---- HASHES: elements per block u64, elements of the slice in the first block u64, then hashes u64 ---- */

typedef struct ravel__hashes {
    int64_t per_block, first; /* elements */
    int64_t blocks;
} ravel__hashes;

/* Blocks of a slice of `count` elements; -1 where the numbers make no sense. */
int64_t ravel__hashes_blocks(int64_t count, int64_t per_block, int64_t first);
/* `count`: elements of the slice, `each`: their bytes; blocks are at most `most` bytes long. */
ravel_status ravel__hashes_decode(const void *bytes, int64_t size, int64_t count, int64_t each, int64_t most,
                                  ravel__hashes *hashes, ravel_error *err);

/* ---- MAPPED: uuid, slot u32, slots u32, items u32, 0 u32, bytes u64, blocks u64, name; then items; then hashes u64 ---- */

enum { RAVEL__SHARE_NAME = 64, RAVEL__MAPPED_HEADER = 48 + RAVEL__SHARE_NAME, RAVEL__MAPPED_ITEM = 32 };

/* An item of the sender's store: tensor u32, dtype u32, at u64, first block u64, elements per block u64. */
typedef struct ravel__mapped_item {
    int32_t tensor; /* of the directory */
    int32_t dtype;
    int64_t at, first_block, per_block;
} ravel__mapped_item;

typedef struct ravel__mapped {
    uint8_t uuid[16]; /* of the device */
    int32_t slot, slots, items;
    int64_t bytes; /* of a slot */
    int64_t blocks;
    char name[RAVEL__SHARE_NAME]; /* where the descriptors are handed out (handout.h) */
} ravel__mapped;

static inline size_t ravel__mapped_bytes(int64_t items, int64_t blocks) {
    return RAVEL__MAPPED_HEADER + (size_t)items * RAVEL__MAPPED_ITEM + (size_t)blocks * 8;
}
void ravel__mapped_put(unsigned char *out, const ravel__mapped *mapped);
void ravel__mapped_put_item(unsigned char *out, int64_t index, const ravel__mapped_item *item);
/* The header; the size is that of its items and blocks. */
ravel_status ravel__mapped_open(const void *bytes, int64_t size, ravel__mapped *mapped, ravel_error *err);
/* Item `index`: its numbers are not negative, its dtype is known. */
ravel_status ravel__mapped_item_at(const void *bytes, const ravel__mapped *mapped, int64_t index,
                                   ravel__mapped_item *item, ravel_error *err);
/* Whether `elements` of the item lie inside the slot and its blocks. */
int ravel__mapped_holds(const ravel__mapped *mapped, const ravel__mapped_item *item, int64_t elements);
static inline const unsigned char *ravel__mapped_hashes(const void *bytes, const ravel__mapped *mapped) {
    return (const unsigned char *)bytes + RAVEL__MAPPED_HEADER + (size_t)mapped->items * RAVEL__MAPPED_ITEM;
}

/* ---- FAILED ---- */

void ravel__failed_encode(ravel_status status, const char *message, unsigned char out[RAVEL__FAILED_BYTES]);
/* Returns the peer's status, with its sentence. */
ravel_status ravel__failed_decode(const void *bytes, int64_t size, ravel_error *err);

/* ---- REPORT ---- */

typedef struct ravel__pull_report {
    uint64_t generator; /* random, drawn when it connected */
    ravel_refit_identity held;
    int32_t ranks;
    double prepare_seconds, pause_seconds; /* of the last commit */
    double tokens_per_second;              /* as the generator said */
    int64_t bytes;                         /* pulled for the last commit, all ranks */
    int64_t commits;
} ravel__pull_report;

void ravel__pull_report_encode(const ravel__pull_report *report, unsigned char out[RAVEL__REPORT_BYTES]);
ravel_status ravel__pull_report_decode(const void *bytes, int64_t size, ravel__pull_report *report, ravel_error *err);

#endif
