#include "train/kernels/host_device.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <string.h>

static train__host_device *host_of(train_device *device) {
    return (train__host_device *)(void *)device; /* its first member */
}

void train__host_device_init(train__host_device *d, const ravel_allocator *allocator) {
    *d = (train__host_device){.allocator = allocator, .phase = TRAIN_PHASE_OTHER, .began = train__now()};
}

/* ---- time ----------------------------------------------------------------------------------------------- */

ravel_status train__host_sync(train_device *device, ravel_error *err) {
    (void)device, (void)err; /* a kernel is done when its call returns, and cannot fail */
    return RAVEL_OK;
}

void train__host_phase(train_device *device, int32_t phase) {
    train__host_device *d = host_of(device);
    double t = train__now();
    RAVEL_ASSERT(t >= d->began && d->phase >= 0 && d->phase < TRAIN_PHASES);
    RAVEL_ASSERT(phase >= 0 && phase < TRAIN_PHASES);
    d->seconds[d->phase] += t - d->began;
    d->phase = phase;
    d->began = t;
}

void train__host_phase_seconds(train_device *device, double *seconds) {
    train__host_device *d = host_of(device);
    train__host_phase(device, d->phase);
    memcpy(seconds, d->seconds, sizeof d->seconds);
    memset(d->seconds, 0, sizeof d->seconds);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

ravel_status train__host_alloc(train_device *device, size_t bytes, void **block, ravel_error *err) {
    void *ptr = train__alloc_aligned(host_of(device)->allocator, bytes);
    if (!ptr) return ravel__no_memory(err, bytes, "a device block");
    RAVEL_ASSERT((uintptr_t)ptr % TRAIN_ALIGN == 0);
    *block = ptr;
    return RAVEL_OK;
}

void train__host_release(train_device *device, void *block, size_t bytes) {
    train__release_aligned(host_of(device)->allocator, block, bytes);
}

void train__host_copy(train_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    RAVEL_ASSERT(bytes == 0 || (to && from));
    if (bytes) memcpy(to, from, bytes);
}

void train__host_zero(train_device *device, void *block, size_t bytes) {
    (void)device;
    RAVEL_ASSERT(bytes == 0 || block);
    if (bytes) memset(block, 0, bytes);
}

void train__host_convert(train_device *device, void *to, int32_t to_type, const void *from, int32_t from_type,
                         int64_t n) {
    ravel_status status = ravel_dtype_convert(from_type, from, to_type, to, n, NULL);
    (void)device, (void)status;
    RAVEL_ASSERT(!status);
}

/* ---- staging -------------------------------------------------------------------------------------------- */

void train__host_stage(train_device *device, int32_t slot, void *to, const void *from, size_t bytes) {
    RAVEL_ASSERT(slot >= 0 && slot < TRAIN_STAGES);
    (void)slot;
    train__host_copy(device, to, from, bytes);
}

void train__host_staged(train_device *device, int32_t slot) {
    RAVEL_ASSERT(device && slot >= 0 && slot < TRAIN_STAGES);
    (void)device, (void)slot;
}
