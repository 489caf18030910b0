/* The structs behind ravel/device.h, and functions shared in this folder. */
#ifndef RAVEL_DEVICE_HANDLE_H
#define RAVEL_DEVICE_HANDLE_H

#include "device/driver.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct ravel__memory_block ravel__memory_block;

/* memory.c: released blocks, kept for the next allocation of their size. */
enum { RAVEL__KINDS = 3, RAVEL__SIZE_CLASSES = 512, RAVEL__BLOCK_BUCKETS = 1024 };
typedef struct ravel__cache {
    ravel__memory_block *free[RAVEL__KINDS][RAVEL__SIZE_CLASSES];
    ravel__memory_block *known[RAVEL__BLOCK_BUCKETS]; /* all blocks, by address */
    int64_t used_bytes, cached_bytes, driver_allocs;
} ravel__cache;

struct ravel_device {
    const ravel__driver *driver;
    void *inside; /* the driver's */
    ravel_device_info info;
    pthread_mutex_t lock; /* of everything below */
    ravel__cache cache;
    atomic_int dead;
    ravel_error failure;
};

struct ravel_stream {
    ravel_device *device;
    void *native;
    int owned;
};

struct ravel_event {
    ravel_device *device;
    void *native;
};

/* A handle over a driver. */
ravel_status ravel__device_make(const ravel__driver *driver, int32_t index, ravel_device **device, ravel_error *err);
/* RAVEL_OK, or E_DEAD with the reason. */
ravel_status ravel__device_usable(ravel_device *device, ravel_error *err);
/* A driver's code as a status with a sentence: "cuda:0: `what`: the driver's words". Notes where the device is dead. */
ravel_status ravel__device_check(ravel_device *device, int code, const char *what, ravel_error *err);
void ravel__cache_free(ravel_device *device);

/* Seconds to wait, in nanoseconds that can be added to a clock: none where they are not a number or below 0, 146 years
 * where they are more. */
static inline int64_t ravel__wait_ns(double seconds) {
    return !(seconds > 0) ? 0 : seconds < 4e9 ? (int64_t)(seconds * 1e9) : INT64_MAX / 2;
}

static inline void *ravel__native(const ravel_stream *stream) {
    return stream ? stream->native : NULL;
}

/* ---- launch.c: the jobs of kernels.h, for the floors above. All are ordered in `stream`. ---- */

/* `block` is host memory and may be used again when the call returns. */
ravel_status ravel__launch_rows(ravel_stream *stream, const ravel__rows_head *block, ravel_error *err);
/* Counts the loss tokens of runs [count] into counts [count], all in host memory, and waits for it (at most
 * `seconds`). */
ravel_status ravel__launch_count(ravel_stream *stream, const ravel__mask_job *job, double seconds, ravel_error *err);
/* job->pieces and job->hashes are what the device can reach. */
ravel_status ravel__launch_cast(ravel_stream *stream, const ravel__cast_job *job, ravel_error *err);
/* All of the job is what the device can reach. */
ravel_status ravel__launch_compare(ravel_stream *stream, const ravel__compare_job *job, ravel_error *err);

/* ---- place.c ---- */

/* Whether the place is well formed, and of a kind of `kinds` (1 << ravel_memory, ored); else a sentence that names
 * `what`. */
ravel_status ravel__place_check(const ravel_place *place, uint32_t kinds, const char *what, ravel_error *err);
#define RAVEL__ALL_KINDS (1u << RAVEL_HOST | 1u << RAVEL_PINNED | 1u << RAVEL_DEVICE)
const char *ravel__memory_name(int32_t kind);

#endif
