/* Tests that hold on every device: the unit tests run them on the host and on the stub, `make test-gpu` on CUDA. Each
 * reports by EXPECT and returns. */
#ifndef TESTS_DEVICE_BODY_H
#define TESTS_DEVICE_BODY_H

#include <ravel/device.h>

/* Copies of all kinds, fills, an order between two streams, events. */
void device_body_moves(ravel_device *device);
/* A loop of allocations asks the driver for nothing after its first round; blocks are aligned and do not overlap. */
void device_body_cache(ravel_device *device);
/* Memory that a child process maps by descriptor, read-only, and still reads after the parent has freed it. `name` is
 * what the child opens. */
void device_body_share(const char *name);
/* What changed between two buffers, block by block: the host encoder's bytes, for elements of all sizes, shares of changes from
 * none to all, and blocks of any length. */
void device_body_compare(ravel_device *device, int64_t rounds);

#endif
