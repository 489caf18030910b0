/* Shared by the benches on a GPU: a device, and timing on the device itself. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "bench/bench.h"

#include <ravel/device.h>

typedef struct gpu {
    ravel_device *device;
    ravel_stream *stream;
    ravel_error err; /* the first thing that failed */
} gpu;

/* 0 where there is no GPU, with a note in the table. */
int gpu_open(gpu *g);
void gpu_close(gpu *g);
void *gpu_room(gpu *g, size_t bytes);

/* Seconds of one call of `body` on the device: `count` calls between two events, queued behind work that keeps the
 * device busy meanwhile, so that what the host needs to launch them does not count. The best of three. */
double gpu_seconds(gpu *g, int count, void (*body)(void *user, int i), void *user);
/* Seconds that a device copy of `bytes` takes, measured the same way, over memory that is too large for the cache. */
double gpu_copy_seconds(gpu *g, size_t bytes);

#endif
