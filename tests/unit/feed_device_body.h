/* A feed whose updates are uploaded to a device, for every device; see device_body.h. */
#ifndef TESTS_FEED_DEVICE_BODY_H
#define TESTS_FEED_DEVICE_BODY_H

#include <ravel/device.h>

/* What kernels of the consumer's stream would read is what the host has, also where the host is batches ahead of them. */
void feed_device_body(ravel_device *device);

#endif
