/* Packing on a device against packing on the host, over random stores: every array byte by byte. The unit tests run it on
 * the host driver and on the stub, `make test-gpu` on CUDA. */
#ifndef TESTS_BATCH_DEVICE_BODY_H
#define TESTS_BATCH_DEVICE_BODY_H

#include <ravel/device.h>

void batch_device_body_thd(ravel_device *device, int64_t rounds);
void batch_device_body_padded(ravel_device *device, int64_t rounds);
void batch_device_body_weights(ravel_device *device, int64_t rounds);
void batch_device_body_tree(ravel_device *device, int64_t rounds);
void batch_device_body_refusals(ravel_device *device);

#endif
