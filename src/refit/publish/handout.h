/* How generators on the same device access a trainer's versions: descriptors of the slots (ravel__shared_fd) over a
 * Unix socket with an abstract name, and the layout in a MAPPED message. A thread hands the descriptors to every
 * process of the same user that connects: all slots, once per connection. */
#ifndef RAVEL_REFIT_HANDOUT_H
#define RAVEL_REFIT_HANDOUT_H

#include "refit/wire/pull_wire.h"
#include "refit/publish/store_device.h"
#include "device/shared.h"

typedef struct ravel__handout ravel__handout;

ravel_status ravel__handout_open(const ravel__store *store, ravel__handout **handout, ravel_error *err);
void ravel__handout_close(ravel__handout *handout);
/* The body of a MAPPED message: ravel__mapped_bytes of the store's items and blocks. item_of: [tensors] of the
 * directory. */
void ravel__handout_describe(const ravel__handout *handout, const ravel__store *store, const ravel__kept *kept,
                             const int32_t *item_of, int64_t tensors, unsigned char *out);

/* The generator's side: maps slots[mapped->slots], read-only. On failure none is left. */
ravel_status ravel__handout_fetch(const ravel__mapped *mapped, ravel_device *device, double seconds,
                                  ravel__shared **slots, ravel_error *err);

#endif
