/* The device of the fast CPU sets: threads, and scratch that kernels share. Internal to them. */
#ifndef TRAIN_CPU_H
#define TRAIN_CPU_H

#include "base/system/team.h"
#include "train/kernels/checks.h"
#include "train/kernels/host.h"
#include "train/kernels/host_device.h"
#include "train/kernels/ref/ref.h"

struct train_device {
    train__host_device host; /* first */
    ravel__team team;
    int32_t threads;
    int32_t blas;   /* products by OpenBLAS */
    int32_t narrow; /* weights are bf16 */
    int32_t pairs;  /* products with them by AVX512-BF16 */
    float *scratch; /* shared, then one private part per thread */
    size_t scratch_bytes;
    float *shared;           /* for one kernel at a time: packed panels, partial sums */
    size_t private_elements; /* of each thread */
};

/* Task i of a loop, on thread 0 .. threads-1; thread 0 is the caller. */
typedef void train__task(const void *user, int64_t task, int32_t thread);
/* Runs tasks 0 .. count-1, in any order and at the same time; returns when all are done. */
void train__cpu_run(train_device *device, int64_t count, train__task *task, const void *user);

static inline float *train__cpu_private(const train_device *device, int32_t thread) {
    RAVEL_ASSERT(thread >= 0 && thread < device->threads);
    return device->shared - (size_t)(thread + 1) * device->private_elements;
}

/* What `shared` has room for. */
static inline int64_t train__cpu_shared_elements(const train_device *device) {
    return (int64_t)(device->scratch_bytes / sizeof(float) - device->private_elements * (size_t)device->threads);
}

/* Slots of every set's table. */
/* from NULL: zeros. */
void train__cpu_copy(train_device *device, void *to, const void *from, size_t bytes);
void train__cpu_zero(train_device *device, void *block, size_t bytes);
/* `fused`: use the set's own products unless the options ask for OpenBLAS. */
ravel_status train__cpu_open(const train_device_options *options, int fused, train_device **device, ravel_error *err);
void train__cpu_close(train_device *device);
ravel_status train__cpu_reserve(train_device *device, size_t shared, size_t private_each, ravel_error *err);

/* OpenBLAS: 0 if the build has none; and a product by it. */
int train__blas_open(void);
void train__blas_matmul(train_device *device, const train_matmul *filled);

/* Bytes that train__cpu_reserve takes for these sizes (in elements). */
size_t train__cpu_scratch_bytes(size_t shared, size_t private_each, int32_t threads);

#endif
