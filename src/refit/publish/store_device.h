/* Versions of a store in device memory. One kernel packs, casts and hashes a whole version into memory that other
 * processes of this machine can map.
 *
 *     fill      [tensors] --kernel--> slot's shared memory, and the hash of every block
 *     map       generators on the same device read the slot where it is (handout.h)
 *     bring     for all others it is copied to page-locked memory, chunk by chunk; the first one that asks starts it
 *
 * Threads: bring and arrived may be called by several server threads at once for a slot that they use; fill by the
 * trainer's thread for an unused slot. */
#ifndef RAVEL_REFIT_STORE_DEVICE_H
#define RAVEL_REFIT_STORE_DEVICE_H

#include "refit/publish/store.h"
#include "device/shared.h"

#include <ravel/device.h>

/* *made is NULL where the source is not on a device, has iterate, or lies in a way that the kernel does not read: then
 * it is gathered to the host. */
ravel_status ravel__device_store_open(const ravel__store *store, const ravel_refit_source *source,
                                      ravel__device_store **made, ravel_error *err);
void ravel__device_store_free(ravel__device_store *device_store);

/* After what is now in the tensors' streams; waits until it is done. hashes: [store->blocks]. */
ravel_status ravel__device_store_fill(ravel__device_store *device_store, int32_t slot, uint64_t *hashes,
                                      ravel_error *err);
/* Starts the copy of a slot to the host; *bytes is where it will be. */
ravel_status ravel__device_store_bring(ravel__device_store *device_store, int32_t slot, unsigned char **bytes,
                                       ravel_error *err);
/* Waits until the slot's first `end` bytes are on the host. */
ravel_status ravel__device_store_arrived(ravel__device_store *device_store, int32_t slot, int64_t end,
                                         ravel_error *err);

ravel_device *ravel__device_store_device(const ravel__device_store *device_store);
ravel__shared *ravel__device_store_slot(const ravel__device_store *device_store, int32_t slot);

#endif
