/* Devices: opening one by name, its properties, and its failure.
 *
 *     "cuda:1"  ->  row "cuda" of the table  ->  its module is loaded once  ->  driver->open(1)
 */
#include "device/handle.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/system/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- drivers -------------------------------------------------------------------------------------------- */

static ravel_status load_host(const ravel__driver **driver, ravel_error *err) {
    (void)err;
    *driver = &ravel__host_driver;
    return RAVEL_OK;
}

static ravel_status load_cuda(const ravel__driver **driver, ravel_error *err) {
    static const ravel__module module = {.what = "CUDA",
                                         .variable = "RAVEL_CUDA_MODULE",
                                         .advice = "build with NVIDIA's nvcc installed",
                                         .names = {"libravel_cuda.so", NULL}};
    void *handle = NULL;
    ravel_status status = ravel__module_load(&module, &handle, err);
    if (status) return status;
    ravel__driver_fn get = (ravel__driver_fn)ravel__module_find(handle, "ravel_driver");
    if (!get)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the CUDA module exports no ravel_driver; is it Ravel's, and of this version?");
    *driver = get();
    if ((*driver)->version != RAVEL__DRIVER_VERSION || (*driver)->bytes != (int32_t)sizeof **driver)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the CUDA module and libravel are of different builds; install both again");
    return RAVEL_OK;
}

static const struct kind {
    const char *name;
    ravel_status (*load)(const ravel__driver **driver, ravel_error *err);
} kinds[] = {{"host", load_host}, {"cuda", load_cuda}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* "cuda:12" is kind 1, index 12; the index may be left out. */
static int parse_name(const char *name, const struct kind **kind, int32_t *index) {
    for (int i = 0; i < KINDS; i++) {
        size_t n = strlen(kinds[i].name);
        if (strncmp(name, kinds[i].name, n) != 0) continue;
        *kind = &kinds[i];
        *index = 0;
        if (name[n] == '\0') return 1;
        char *end = NULL;
        long value = name[n] == ':' && name[n + 1] >= '0' && name[n + 1] <= '9' ? strtol(name + n + 1, &end, 10) : -1;
        if (value < 0 || value > 1023 || *end) return 0;
        *index = (int32_t)value;
        RAVEL_ASSERT(*kind >= kinds && *kind < kinds + KINDS && *index >= 0);
        return 1;
    }
    return 0;
}

ravel_status ravel_device_open(const char *name, ravel_device **device, ravel_error *err) {
    const struct kind *kind = NULL;
    const ravel__driver *driver = NULL;
    int32_t index = 0;
    if (name && strcmp(name, "auto") == 0) {
        if (ravel_device_open("cuda:0", device, NULL) == RAVEL_OK) return RAVEL_OK;
        name = "host";
    }
    if (!name || !parse_name(name, &kind, &index))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "device \"%.100s\" is none of auto, host, cuda and cuda:N",
                               name ? name : "");
    ravel_status status = kind->load(&driver, err);
    return status ? status : ravel__device_make(driver, index, device, err);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

ravel_status ravel__device_make(const ravel__driver *driver, int32_t index, ravel_device **device, ravel_error *err) {
    char text[256];
    RAVEL_ASSERT(driver && index >= 0);
    RAVEL_ASSERT(driver->open && driver->close && driver->describe && driver->kind);
    ravel_device *d = ravel__calloc(NULL, 1, sizeof *d);
    if (!d) return ravel__no_memory(err, sizeof *d, "a device");
    d->driver = driver;
    d->info.size = sizeof d->info;
    d->info.index = index;
    (void)snprintf(d->info.name, sizeof d->info.name, driver->kind[0] == 'h' ? "%s" : "%s:%d", driver->kind, index);
    int code = driver->open(index, &d->inside, &d->info);
    if (code) {
        (void)driver->describe(code, text, sizeof text);
        ravel_status status =
            ravel_error_set(err, RAVEL_E_UNSUPPORTED, "device %s cannot be opened: %s", d->info.name, text);
        ravel__release(NULL, d, sizeof *d);
        return status;
    }
    (void)pthread_mutex_init(&d->lock, NULL);
    RAVEL_ASSERT(d->info.index == index && d->info.size == sizeof d->info); /* the driver fills the rest */
    *device = d;
    return RAVEL_OK;
}

void ravel_device_free(ravel_device *device) {
    if (!device) return;
    ravel__cache_free(device);
    RAVEL_ASSERT(device->cache.cached_bytes == 0 && device->cache.used_bytes == 0);
    device->driver->close(device->inside);
    (void)pthread_mutex_destroy(&device->lock);
    ravel__release(NULL, device, sizeof *device);
}

ravel_status ravel_device_get_info(ravel_device *device, ravel_device_info *info, ravel_error *err) {
    ravel_device_info now = device->info;
    size_t room = info->size;
    if (room == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "device info: size is 0; set it to sizeof(ravel_device_info)");
    ravel_status status = ravel__device_usable(device, err);
    if (!status)
        status = ravel__device_check(device, device->driver->free_bytes(device->inside, &now.free_bytes),
                                     "asking for free memory", err);
    if (status) return status;
    (void)pthread_mutex_lock(&device->lock);
    now.used_bytes = device->cache.used_bytes;
    RAVEL_ASSERT(device->cache.used_bytes >= 0 && device->cache.cached_bytes >= 0 && device->cache.driver_allocs >= 0);
    now.cached_bytes = device->cache.cached_bytes;
    now.driver_allocs = device->cache.driver_allocs;
    (void)pthread_mutex_unlock(&device->lock);
    memcpy(info, &now, room < sizeof now ? room : sizeof now);
    info->size = room;
    return RAVEL_OK;
}

/* ---- failures ------------------------------------------------------------------------------------------- */

ravel_status ravel__device_usable(ravel_device *device, ravel_error *err) {
    if (!atomic_load(&device->dead)) return RAVEL_OK;
    RAVEL_ASSERT(device->failure.status == RAVEL_E_DEVICE && device->failure.message[0]); /* written before `dead` */
    return ravel_error_set(err, RAVEL_E_DEAD, "%s failed earlier and cannot be used in this process: %s",
                           device->info.name, device->failure.message);
}

/* Keeps the first unrecoverable failure. */
static void note_failure(ravel_device *device, const char *what, const char *text) {
    (void)pthread_mutex_lock(&device->lock);
    if (!atomic_load(&device->dead)) {
        RAVEL_ASSERT(device->failure.status == RAVEL_OK);
        (void)ravel_error_set(&device->failure, RAVEL_E_DEVICE, "%s: %s", what, text);
        atomic_store(&device->dead, 1);
    }
    (void)pthread_mutex_unlock(&device->lock);
}

ravel_status ravel__device_check(ravel_device *device, int code, const char *what, ravel_error *err) {
    char text[256];
    if (code == 0) return RAVEL_OK;
    RAVEL_ASSERT(code != RAVEL__DRIVER_PENDING); /* not an error: event_test handles it */
    ravel_status status = device->driver->describe(code, text, sizeof text);
    RAVEL_ASSERT(status != RAVEL_OK);
    if (status == RAVEL_E_DEAD) {
        note_failure(device, what, text);
        status = RAVEL_E_DEVICE;
    }
    return ravel_error_set(err, status, "%s: %s: %s", device->info.name, what, text);
}
