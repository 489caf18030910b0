/* The messages between generators and trainers, as bodies of comm/link/link.h's messages (docs/refit-wire.md, "Publish
 * and pull"). They are these structs, of little-endian machines. A reader checks every number before it is used.
 *
 *     generator                                  trainer rank
 *     DIRECTORY                            -->
 *                                          <--   DIRECTORY        the directory (directory.h)
 *     WATCH      newest that it knows      -->
 *                                          <--   VERSIONS         when there is a newer one, or after a while
 *     PULL       version, base, slices     -->
 *                                          <--   BLOCK, KEEP, SPARSE ...  in the order of the slices
 *                                          <--   END, or FAILED with a status and a sentence
 *     MAP        version                   -->          a generator on the same device
 *                                          <--   MAPPED           where its blocks lie, and their hashes
 *     READ                                 -->
 *                                          <--   END, where the version was kept all the while
 *     REPORT     what it holds, how fast   -->
 */
#ifndef RAVEL_REFIT_PULL_WIRE_H
#define RAVEL_REFIT_PULL_WIRE_H

#include "refit/model/plan.h"

typedef enum ravel__pull_kind {
    RAVEL__PULL_DIRECTORY = 1,
    RAVEL__PULL_WATCH,
    RAVEL__PULL_VERSIONS,
    RAVEL__PULL_PULL,
    RAVEL__PULL_BLOCK, /* id: hash of the bytes, which are the next elements of the slice, as many as they are (block.h) */
    RAVEL__PULL_KEEP, /* id: elements that did not change since the base. No bytes */
    RAVEL__PULL_END,
    RAVEL__PULL_FAILED,
    RAVEL__PULL_REPORT,
    RAVEL__PULL_MAP,    /* as the header of a PULL without slices: where is this version in device memory? */
    RAVEL__PULL_MAPPED, /* the answer; no bytes: it is not in device memory */
    RAVEL__PULL_READ,   /* it was read; the answer is END if it had not been replaced meanwhile */
    RAVEL__PULL_SPARSE, /* id: hash of the next elements of the slice as they become; changes since the base (sparse.h) */
    RAVEL__PULL_KINDS
} ravel__pull_kind;

enum {
    RAVEL__STORE_KEEP_MOST = 64, /* versions that are kept */
    RAVEL__VERSIONS_HEADER = 16,
    RAVEL__FAILED_BYTES = 4 + RAVEL_ERROR_MESSAGE_BYTES
};
_Static_assert(sizeof(ravel_refit_identity) == 24, "as it travels");

#define RAVEL__ASK_MOST ((int64_t)1 << 28) /* bytes of a PULL */

/* ---- VERSIONS ---- */

typedef struct ravel__versions {
    uint64_t session; /* digest of the directory */
    int32_t count;
    int32_t reserved;                                  /* 0 */
    ravel_refit_identity list[RAVEL__STORE_KEEP_MOST]; /* newest first; only [count] travel */
} ravel__versions;

static inline int64_t ravel__versions_bytes(int32_t count) {
    return RAVEL__VERSIONS_HEADER + count * (int64_t)sizeof(ravel_refit_identity);
}
ravel_status ravel__versions_decode(const void *bytes, int64_t size, ravel__versions *versions, ravel_error *err);

/* ---- PULL: the struct; then per slice tensor u32, dtype u16, ndim u8, flags u8, box ---- */

enum { RAVEL__ASK_SPARSE = 1, RAVEL__ASK_FLAGS = 1 }; /* of a slice: it may come as SPARSE */

typedef struct ravel__asked {
    int32_t item;   /* of the store */
    int32_t tensor; /* of the directory */
    int32_t dtype;  /* that travels */
    int32_t flags;
    ravel__box box;
    int64_t count; /* elements */
} ravel__asked;

typedef struct ravel__pull_ask {
    uint64_t session;
    ravel_refit_identity identity, base; /* base version 0: none */
    int64_t count;                       /* of slices */
} ravel__pull_ask;
_Static_assert(sizeof(ravel__pull_ask) == 64, "as it travels");

/* The slices of wants first .. first+count of a plan: their bytes, and writing them. `sparse`: what is held as it
 * travels, or wider and so without a change, may come as SPARSE. */
int64_t ravel__ask_wants_bytes(const ravel__refit_plan *plan, int64_t first, int64_t count);
void ravel__ask_put_wants(unsigned char *out, const ravel__refit_plan *plan, const ravel__holding *sink, int64_t first,
                          int64_t count, int sparse);
/* The header alone. */
ravel_status ravel__ask_open(const void *bytes, int64_t size, ravel__pull_ask *ask, ravel_error *err);
/* `count` slices, in exactly these bytes. `view`: of an item of `owner`; `item_of`: [tensors] of the directory, this
 * rank's items, -1: it has none. */
ravel_status ravel__ask_slices(const unsigned char *bytes, int64_t size, int64_t count,
                               const ravel__view *(*view)(const void *owner, int32_t item), const void *owner,
                               const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err);

/* ---- MAPPED: the struct; then items, [items]; then hashes u64, [blocks] ---- */

enum { RAVEL__SHARE_NAME = 64 };

/* An item of the sender's store. */
typedef struct ravel__mapped_item {
    int32_t tensor; /* of the directory */
    int32_t dtype;
    int64_t at, first_block, per_block; /* byte; of all blocks; elements */
} ravel__mapped_item;

typedef struct ravel__mapped {
    uint8_t uuid[16]; /* of the device */
    int32_t slot, slots, items, reserved;
    int64_t bytes; /* of a slot */
    int64_t blocks;
    char name[RAVEL__SHARE_NAME]; /* where the descriptors are handed out (handout.h) */
} ravel__mapped;
_Static_assert(sizeof(ravel__mapped_item) == 32 && sizeof(ravel__mapped) == 112, "as they travel");

static inline size_t ravel__mapped_bytes(int64_t items, int64_t blocks) {
    return sizeof(ravel__mapped) + (size_t)items * sizeof(ravel__mapped_item) + (size_t)blocks * 8;
}
/* The header; the size is that of its items and blocks. */
ravel_status ravel__mapped_open(const void *bytes, int64_t size, ravel__mapped *mapped, ravel_error *err);
/* Item `index`: its numbers are not negative, its dtype is known. */
ravel_status ravel__mapped_item_at(const void *bytes, const ravel__mapped *mapped, int64_t index,
                                   ravel__mapped_item *item, ravel_error *err);
/* Whether `elements` of the item lie inside the slot and its blocks. */
int ravel__mapped_holds(const ravel__mapped *mapped, const ravel__mapped_item *item, int64_t elements);
static inline const unsigned char *ravel__mapped_hashes(const void *bytes, const ravel__mapped *mapped) {
    return (const unsigned char *)bytes + sizeof *mapped + (size_t)mapped->items * sizeof(ravel__mapped_item);
}

/* ---- FAILED ---- */

void ravel__failed_encode(ravel_status status, const char *message, unsigned char out[RAVEL__FAILED_BYTES]);
/* Returns the peer's status, with its sentence. */
ravel_status ravel__failed_decode(const void *bytes, int64_t size, ravel_error *err);

/* ---- REPORT ---- */

typedef struct ravel__pull_report {
    uint64_t generator; /* random, drawn when it connected */
    ravel_refit_identity held;
    int32_t ranks, reserved;
    double prepare_seconds, pause_seconds; /* of the last commit */
    double tokens_per_second;              /* as the generator said */
    int64_t bytes;                         /* pulled for the last commit, all ranks */
    int64_t commits;
    int64_t needed; /* bytes of rank 0's pieces; of these elements, the share that changed */
    double changed_share;
} ravel__pull_report;
_Static_assert(sizeof(ravel__pull_report) == 96, "as it travels");

ravel_status ravel__pull_report_decode(const void *bytes, int64_t size, ravel__pull_report *report, ravel_error *err);

#endif
