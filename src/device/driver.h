/* A driver: the functions that a kind of device implements. host.c is one; cuda.c, in the module libravel_cuda.so, is
 * the other; the tests have a third that fails on demand.
 *
 *     ravel_device_*  ->  device.c, memory.c, stream.c, shared.c  ->  the table below  ->  host.c | cuda.c
 *
 * The front does what all drivers share: handles, the cache, deadlines, sentences, failures. Each function of
 * a driver is one call of the device. It exports one function, ravel_driver, and needs nothing of libravel. Library and
 * module come from the same build; version and size of the table are compared before anything else.
 *
 * The contract. Functions return 0, RAVEL__DRIVER_PENDING where said, or a code of the driver's own, which `describe`
 * puts into words. They may be called from any thread. Only alloc, release, close and the sharing functions wait for
 * the device. Streams and events are the driver's own handles; stream NULL is the default stream. */
#ifndef RAVEL_DEVICE_DRIVER_H
#define RAVEL_DEVICE_DRIVER_H

#include <ravel/device.h>

#include "device/kernels.h"

enum { RAVEL__DRIVER_VERSION = 4, RAVEL__DRIVER_PENDING = -1 };

typedef struct ravel__driver {
    int32_t version, bytes; /* RAVEL__DRIVER_VERSION, sizeof(ravel__driver) */
    const char *kind;       /* "cuda" */

    /* Device `index`; fills model, processors, total_bytes and uuid. */
    int (*open)(int32_t index, void **inside, ravel_device_info *info);
    void (*close)(void *inside);
    int (*free_bytes)(void *inside, int64_t *bytes);
    /* The class of a failure, and its words: E_MEMORY, E_UNSUPPORTED, E_DEVICE; E_DEAD if nothing can succeed any
     * more on this device in this process. */
    ravel_status (*describe)(int code, char *text, size_t bytes);

    int (*alloc)(void *inside, int32_t kind, size_t bytes, void **array);
    int (*release)(void *inside, int32_t kind, void *array);
    int (*copy)(void *inside, void *to, const void *from, size_t bytes, void *stream);
    int (*fill)(void *inside, void *to, uint8_t value, size_t bytes, void *stream);

    int (*stream_create)(void *inside, void **stream);
    void (*stream_free)(void *inside, void *stream);
    int (*stream_test)(void *inside, void *stream); /* 0: it is empty; or PENDING */
    int (*event_create)(void *inside, void **event);
    void (*event_free)(void *inside, void *event);
    int (*event_record)(void *inside, void *event, void *stream);
    int (*event_order)(void *inside, void *event, void *stream); /* the stream waits */
    int (*event_test)(void *inside, void *event);                /* 0: done; or PENDING */
    int (*event_elapsed)(void *inside, void *from, void *to, double *seconds);

    /* Memory of at least *bytes, which is rounded up, with a descriptor for other processes. */
    int (*share)(void *inside, size_t *bytes, int *fd, void **array, void **handle);
    int (*import)(void *inside, int fd, size_t *bytes, int32_t writable, void **array, void **handle);
    void (*unshare)(void *inside, void *array, size_t bytes, void *handle);

    /* See kernels.h. */
    int (*rows)(void *inside, const ravel__rows *rows, void *stream);
    int (*count_mask)(void *inside, const ravel__mask_job *job, void *stream);
    int (*cast)(void *inside, const ravel__cast_job *job, void *stream);
    int (*compare)(void *inside, const ravel__compare_job *job, void *stream);
} ravel__driver;

typedef const ravel__driver *(*ravel__driver_fn)(void);
extern const ravel__driver ravel__host_driver;

#endif
