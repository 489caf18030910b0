/* The slots that are the same for every set on the host: memory, staging, phases. A set's own `struct train_device`
 * begins with a train__host_device, and its table takes these functions as they are. */
#ifndef TRAIN_HOST_DEVICE_H
#define TRAIN_HOST_DEVICE_H

#include "train/kernels/kernels.h"

typedef struct train__host_device {
    const ravel_allocator *allocator;
    int32_t phase; /* that is open */
    double began;  /* when */
    double seconds[TRAIN_PHASES];
} train__host_device;

void train__host_device_init(train__host_device *device, const ravel_allocator *allocator);

ravel_status train__host_sync(train_device *device, ravel_error *err);
void train__host_phase(train_device *device, int32_t phase);
void train__host_phase_seconds(train_device *device, double *seconds);
ravel_status train__host_alloc(train_device *device, size_t bytes, void **block, ravel_error *err);
void train__host_release(train_device *device, void *block, size_t bytes);
/* Also upload and download: all memory is the host's. */
void train__host_copy(train_device *device, void *to, const void *from, size_t bytes);
void train__host_zero(train_device *device, void *block, size_t bytes);
void train__host_convert(train_device *device, void *to, int32_t to_type, const void *from, int32_t from_type,
                         int64_t n);
/* Staging and fetching: nothing runs beside the host, so a copy is done at once and there is nothing to wait for. */
void train__host_stage(train_device *device, int32_t slot, void *to, const void *from, size_t bytes);
void train__host_staged(train_device *device, int32_t slot);

/* Rows of a table, .sync = ..., for a set on the host; all but .copy and .zero. */
#define TRAIN__HOST_SLOTS                                                                                   \
    .host_memory = 1, .sync = train__host_sync, .phase = train__host_phase,                                 \
    .phase_seconds = train__host_phase_seconds, .alloc = train__host_alloc, .release = train__host_release, \
    .upload = train__host_copy, .download = train__host_copy, .convert = train__host_convert,               \
    .alloc_host = train__host_alloc, .release_host = train__host_release, .stage = train__host_stage,       \
    .stage_wait = train__host_staged, .stage_release = train__host_staged, .fetch = train__host_stage,      \
    .fetch_wait = train__host_staged

#endif
