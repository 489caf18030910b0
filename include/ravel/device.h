/* ravel/device.h: where memory is, and how it is moved. The host and CUDA behind the same calls.
 *
 * Nouns
 *   device   a processor with memory of its own: "host", or "cuda:0". A handle; every other object belongs to one.
 *   kind     where an array lies: RAVEL_HOST (plain memory), RAVEL_PINNED (host memory that the device reads and writes
 *            at full speed) or RAVEL_DEVICE.
 *   stream   a queue of operations on a device. Those of one stream run in order; those of two run at once.
 *   event    a mark in a stream: other streams, or the host, can wait until the stream has come that far.
 *   place    a kind and a stream: how public structs say where an array is and when it is ready.
 *
 *     ravel_device *device = NULL;
 *     ravel_stream *stream = NULL;
 *     if (ravel_device_open("cuda:0", &device, &err)) ...           or "host", or "auto": cuda:0 if there is one
 *     ravel_stream_create(device, &stream, &err);
 *     ravel_device_alloc(device, RAVEL_DEVICE, bytes, stream, &array, &err);
 *     ravel_device_copy(device, array, source, bytes, stream, &err);           returns at once
 *     ravel_stream_wait(stream, 10.0, &err);                                   ... until the copy is done, or 10 s
 *     ravel_device_release(device, array, stream);
 *     ravel_stream_free(stream);
 *     ravel_device_free(device);
 *
 * libravel links no CUDA: opening "cuda" loads libravel_cuda.so from beside libravel or the program, from the library
 * folder, or the file that RAVEL_CUDA_MODULE names. E_UNSUPPORTED lists the files that were tried, or holds CUDA's
 * message about the missing device.
 *
 * On the host every operation is done when the call returns: streams and events exist and have nothing to wait for.
 *
 * Failures. Every call of the driver is checked. E_MEMORY: the device's memory is short (the cache was emptied first).
 * E_DEVICE: the driver returned an error; the sentence holds its message. Some failures (an illegal address in a
 * kernel, a lost GPU) make every later call on that GPU fail in this process: the handle is then dead. The first call
 * returns E_DEVICE, every further one E_DEAD with the first reason. The process can continue; free the handle.
 *
 * Threads: a device handle may be used from several threads at once; a stream or an event by one thread at a time.
 * Calls leave the thread's current CUDA device as they found it.
 */
#ifndef RAVEL_DEVICE_H
#define RAVEL_DEVICE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_device ravel_device;
typedef struct ravel_stream ravel_stream;
typedef struct ravel_event ravel_event;

typedef enum ravel_memory { RAVEL_HOST, RAVEL_PINNED, RAVEL_DEVICE } ravel_memory;
#define RAVEL_MEMORY_CHOICES "host|pinned|device"

/* Where an array is. All zero: plain host memory, ready now.
 *   HOST    the stream is ignored.
 *   PINNED  host code may read it at any time; operations of `stream` that write it are the caller's to wait for.
 *   DEVICE  what reads the array is ordered after what was in `stream` before the call, and what writes it is ordered
 *           before what comes later. The stream says which device it is. */
typedef struct ravel_place {
    int32_t kind;     /* ravel_memory */
    int32_t reserved; /* 0 */
    ravel_stream *stream;
} ravel_place;

/* ---- devices -------------------------------------------------------------------------------------------- */

/* "host", "cuda" (the same as "cuda:0"), "cuda:N", or "auto": cuda:0 if it can be opened, else host. */
RAVEL_API ravel_status ravel_device_open(const char *name, ravel_device **device, ravel_error *err);
/* Frees the cache and the handle. Its streams, events and shared memory must have been freed before; arrays that were
 * not released are freed too. */
RAVEL_API void ravel_device_free(ravel_device *device);

typedef struct ravel_device_info {
    size_t size;           /* sizeof(ravel_device_info) */
    char name[32];         /* "cuda:0" */
    char model[96];        /* "NVIDIA H200" */
    int32_t index;         /* of the device among those of its kind */
    int32_t processors;    /* multiprocessors; on the host: threads */
    int64_t total_bytes;   /* memory of the device */
    int64_t free_bytes;    /* of it, now */
    int64_t used_bytes;    /* in arrays that ravel_device_alloc gave out */
    int64_t cached_bytes;  /* kept for the next allocation */
    int64_t driver_allocs; /* allocations that went to the driver so far: constant once a loop has warmed up */
    uint8_t uuid[16];      /* the same in every process that sees this device */
} ravel_device_info;
RAVEL_API ravel_status ravel_device_get_info(ravel_device *device, ravel_device_info *info, ravel_error *err);

/* ---- memory --------------------------------------------------------------------------------------------- */

/* At least `bytes`, aligned to 256, not zeroed, from the handle's cache if it has a block of that size. The block
 * may be used by operations of `stream` (NULL: the device's default stream) without further waiting. A size of 0 gives
 * NULL. */
RAVEL_API ravel_status ravel_device_alloc(ravel_device *device, int32_t kind, size_t bytes, ravel_stream *stream,
                                          void **array, ravel_error *err);
/* Back to the cache. `stream`: the one that used it last; operations that are queued there may still use it. NULL
 * array: nothing. */
RAVEL_API void ravel_device_release(ravel_device *device, void *array, ravel_stream *stream);

/* Any kind to any kind; the arrays must not overlap. Ordered in `stream`. From plain host memory the source has been
 * read when the call returns. */
RAVEL_API ravel_status ravel_device_copy(ravel_device *device, void *to, const void *from, size_t bytes,
                                         ravel_stream *stream, ravel_error *err);
/* Sets every byte. */
RAVEL_API ravel_status ravel_device_fill(ravel_device *device, void *to, uint8_t value, size_t bytes,
                                         ravel_stream *stream, ravel_error *err);

/* ---- streams and events --------------------------------------------------------------------------------- */

RAVEL_API ravel_status ravel_stream_create(ravel_device *device, ravel_stream **stream, ravel_error *err);
/* The caller's own stream (a cudaStream_t, or PyTorch's stream.cuda_stream); it stays the caller's. NULL: the default
 * stream. */
RAVEL_API ravel_status ravel_stream_adopt(ravel_device *device, void *native, ravel_stream **stream, ravel_error *err);
RAVEL_API void ravel_stream_free(ravel_stream *stream);
RAVEL_API ravel_device *ravel_stream_device(const ravel_stream *stream);
/* Until everything in the stream is done, or `seconds` have passed (E_TIMEOUT; the stream goes on). */
RAVEL_API ravel_status ravel_stream_wait(ravel_stream *stream, double seconds, ravel_error *err);
/* Later operations of `stream` wait for all operations that are now in `other`. */
RAVEL_API ravel_status ravel_stream_follow(ravel_stream *stream, ravel_stream *other, ravel_error *err);

/* An event is done before it is recorded for the first time. */
RAVEL_API ravel_status ravel_event_create(ravel_device *device, ravel_event **event, ravel_error *err);
RAVEL_API void ravel_event_free(ravel_event *event);
RAVEL_API ravel_status ravel_event_record(ravel_event *event, ravel_stream *stream, ravel_error *err);
/* Later operations of `stream` wait for the event. */
RAVEL_API ravel_status ravel_event_order(ravel_event *event, ravel_stream *stream, ravel_error *err);
RAVEL_API ravel_status ravel_event_test(ravel_event *event, int32_t *done, ravel_error *err);
RAVEL_API ravel_status ravel_event_wait(ravel_event *event, double seconds, ravel_error *err);
/* Seconds between two events that are done. */
RAVEL_API ravel_status ravel_event_elapsed(ravel_event *from, ravel_event *to, double *seconds, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
