/* The store: the last K versions of one trainer rank's pieces, as generators pull them, in tiles (tiles.h).
 *
 * Every block has its XXH3. The hash of all of a version's hashes is its digest on this rank, and the hashes are the
 * checksums with which whole blocks travel. Hashes of past versions are kept after their bytes were overwritten, so
 * that a generator which holds one of them gets only changed blocks; and of the last versions the positions of the
 * elements that they changed (a list: base/sparse.h, 1 byte per element). A generator that holds an older one gets the
 * new values at the positions of all lists since, so for that no old bytes are needed:
 *
 *     version   3      4      5      6      7              its bytes are kept: 6 and 7
 *     list            3>4    4>5    5>6    6>7             a generator at 4: the positions of 4>5, 5>6, 6>7 with values of 7
 *
 * A version is filled by the trainer's thread while server threads read other ones:
 *
 *     claim (takes the oldest slot and list; readers of them are asked to leave) -> fill -> show -> use, release ...
 *
 * claim waits only until server threads have noticed that a slot is revoked, never for a peer. */
#ifndef RAVEL_REFIT_STORE_H
#define RAVEL_REFIT_STORE_H

#include "base/memory.h"
#include "refit/model/holding.h"
#include "refit/model/tiles.h"
#include "refit/wire/pull_wire.h"

#include <pthread.h>

enum { RAVEL__STORE_PAST = 64, RAVEL__STORE_LISTS = 8, RAVEL__LIST_SHARE = 32 };

/* One version's bytes. */
typedef struct ravel__kept {
    ravel_refit_identity identity; /* version 0: nothing that may be read */
    ravel__packed packed;          /* bytes of a version on a device: after ravel__store_bring */
    int32_t users;                 /* server threads' jobs that read it */
    int32_t revoked;               /* users must stop */
} ravel__kept;

typedef struct ravel__past {
    ravel_refit_identity identity;
    ravel__packed packed; /* without bytes */
} ravel__past;

/* What a version changed since the one before. */
typedef struct ravel__change_list {
    ravel_refit_identity from, to;
    unsigned char *gaps; /* a block's are at tiles.block_bytes / RAVEL__LIST_SHARE * block */
    int32_t *sizes;      /* [tiles.blocks] bytes; -1: there are more than have room */
    int32_t users, revoked;
} ravel__change_list;

/* The lists from one version to another. */
typedef struct ravel__trail {
    ravel__change_list *lists[RAVEL__STORE_LISTS];
    int32_t count; /* 0: there is no trail */
} ravel__trail;

typedef struct ravel__device_store ravel__device_store; /* store_device.h */

typedef struct ravel__store {
    const ravel_allocator *allocator;
    const ravel__holding *holding;  /* of the source */
    ravel__tiles tiles;             /* of the holding's items */
    ravel__device_store *on_device; /* the versions are in device memory; NULL: on the host */
    int32_t keep;
    ravel__kept *kept; /* [keep] */
    ravel__past past[RAVEL__STORE_PAST];
    int32_t past_next;
    ravel__change_list lists[RAVEL__STORE_LISTS]; /* of versions on the host, if `lists_on` */
    int32_t lists_on, list_next;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a version was shown, a user left, the store closed */
    int32_t closed;
    void (*wake)(void *user); /* called when a version is shown or a slot revoked; may be NULL */
    void *wake_user;
} ravel__store;

/* `dtype`: floats wider than it are stored as it; -1: as they are. Versions of a source on a device are kept there
 * where its kernel can pack them; source NULL: on the host. `lists`: positions of changes are kept, where versions are
 * on the host and two or more. */
ravel_status ravel__store_init(ravel__store *store, const ravel__holding *holding, const ravel_refit_source *source,
                               int32_t keep, int64_t block_bytes, int32_t dtype, int lists,
                               const ravel_allocator *allocator, ravel_error *err);
/* Without users. */
void ravel__store_free(ravel__store *store);

/* The slot for the next version, empty; the oldest version is dropped. */
int32_t ravel__store_claim(ravel__store *store);
/* Packs and hashes the source on `threads` threads; *digest: of this rank. The first failure is returned. */
ravel_status ravel__store_fill(ravel__store *store, int32_t slot, const ravel_refit_source *source, int32_t threads,
                               uint64_t *digest, ravel_error *err);
/* The filled slot can be pulled from now on, as `identity`. */
void ravel__store_show(ravel__store *store, int32_t slot, ravel_refit_identity identity);

/* Versions above `version` among the last RAVEL__STORE_PAST. */
int64_t ravel__store_newer(ravel__store *store, int64_t version);
/* The kept identities, newest first; returns how many were written. */
int32_t ravel__store_list(ravel__store *store, ravel_refit_identity list[RAVEL__STORE_KEEP_MOST]);
/* The version's bytes, which stay until ravel__store_release or until `revoked` is seen; NULL: it is not kept. */
ravel__kept *ravel__store_use(ravel__store *store, ravel_refit_identity identity);
void ravel__store_release(ravel__store *store, ravel__kept *kept);
/* A user of a version on a device wants its bytes on the host; for others there is nothing to do. */
ravel_status ravel__store_bring(ravel__store *store, ravel__kept *kept, ravel_error *err);
/* Waits until the first `end` bytes that are being brought are there. */
ravel_status ravel__store_arrived(ravel__store *store, const ravel__kept *kept, int64_t end, ravel_error *err);
/* Whether the user of a version must stop. */
int ravel__store_is_revoked(ravel__store *store, const ravel__kept *kept);
/* The lists from `base` to a kept version, which stay until ravel__store_trail_end or until one is revoked. */
ravel__trail ravel__store_trail(ravel__store *store, ravel_refit_identity base, const ravel__kept *kept);
void ravel__store_trail_end(ravel__store *store, ravel__trail *trail);
int ravel__store_trail_is_revoked(ravel__store *store, const ravel__trail *trail);
static inline const unsigned char *ravel__list_gaps(const ravel__store *store, const ravel__change_list *list,
                                                    int64_t block) {
    return list->gaps + store->tiles.block_bytes / RAVEL__LIST_SHARE * block;
}
/* same[tiles.blocks]: 1 where a block of `kept` equals that of `base`. 0: the base's hashes are not known. */
int ravel__store_compare(ravel__store *store, const ravel__kept *kept, ravel_refit_identity base, char *same);

/* All slices into asked[ask->count], of the store's items. */
ravel_status ravel__ask_read(const void *bytes, int64_t size, const ravel__pull_ask *ask, const ravel__store *store,
                             const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err);

#endif
