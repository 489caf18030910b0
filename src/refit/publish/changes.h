/* What changed between two versions of a store on a device, found there: the changes go to the host, not the versions.
 *
 *     want, want, ... -> find -> of, of, ...        up to RAVEL__CHANGES_MOST blocks at a time
 *
 * By one thread at a time, for versions that it uses. */
#ifndef RAVEL_REFIT_CHANGES_H
#define RAVEL_REFIT_CHANGES_H

#include "refit/publish/store_device.h"

enum { RAVEL__CHANGES_MOST = 64 };

typedef struct ravel__changes ravel__changes;

/* For blocks of at most `block_bytes`. */
ravel_status ravel__changes_create(const ravel__device_store *device_store, int64_t block_bytes,
                                   ravel__changes **changes, ravel_error *err);
void ravel__changes_free(ravel__changes *changes); /* NULL: nothing */

/* Forgets what was found, and has no blocks. */
void ravel__changes_clear(ravel__changes *changes);
/* One block more: its number, bytes at .. at+bytes of both versions, elements of `each` bytes. 0: no more fit. */
int ravel__changes_want(ravel__changes *changes, int64_t block, int64_t at, int64_t bytes, int64_t each);
/* Compares them in two slots, and waits. After a failure nothing was found. */
ravel_status ravel__changes_find(ravel__changes *changes, int32_t fresh, int32_t base, ravel_error *err);
/* A block's changes (base/sparse.h), or all of it if *size is the block's, and how many elements differ; NULL: it was
 * not compared. */
const unsigned char *ravel__changes_of(const ravel__changes *changes, int64_t block, size_t *size, int64_t *changed);

#endif
