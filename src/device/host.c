/* The host as a device. Every operation is done when its call returns, so streams have no state, and an event only
 * stores its time. Shared memory is an anonymous file (memfd). The kernels are the reference that the device's are
 * compared with. */
#include "device/driver.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "device/host_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGN = 256 };

static int host_open(int32_t index, void **inside, ravel_device_info *info) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (index != 0) return ENODEV;
    *inside = NULL;
    (void)snprintf(info->model, sizeof info->model, "host");
    info->processors = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    info->total_bytes = (int64_t)pages * page;
    return 0;
}

static void host_close(void *inside) {
    (void)inside;
}

static int host_free_bytes(void *inside, int64_t *bytes) {
    (void)inside;
    *bytes = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    RAVEL_ASSERT(*bytes >= 0);
    return 0;
}

static ravel_status host_describe(int code, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "%s", strerror(code));
    return code == ENOMEM ? RAVEL_E_MEMORY : RAVEL_E_DEVICE;
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static int host_alloc(void *inside, int32_t kind, size_t bytes, void **array) {
    RAVEL_ASSERT(bytes > 0 && kind >= RAVEL_HOST && kind <= RAVEL_DEVICE);
    (void)inside, (void)kind;
    return posix_memalign(array, ALIGN, bytes);
}

static int host_release(void *inside, int32_t kind, void *array) {
    (void)inside, (void)kind;
    free(array);
    return 0;
}

static int host_copy(void *inside, void *to, const void *from, size_t bytes, void *stream) {
    (void)inside, (void)stream;
    memcpy(to, from, bytes);
    return 0;
}

static int host_fill(void *inside, void *to, uint8_t value, size_t bytes, void *stream) {
    (void)inside, (void)stream;
    memset(to, value, bytes);
    return 0;
}

/* ---- streams and events --------------------------------------------------------------------------------- */

static int host_stream_create(void *inside, void **stream) {
    (void)inside;
    *stream = malloc(1); /* an address of its own: the cache tells streams apart by it */
    return *stream ? 0 : ENOMEM;
}

static void host_stream_free(void *inside, void *stream) {
    (void)inside;
    free(stream);
}

static int host_stream_test(void *inside, void *stream) {
    (void)inside, (void)stream;
    return 0;
}

static int host_event_create(void *inside, void **event) {
    (void)inside;
    *event = calloc(1, sizeof(int64_t));
    return *event ? 0 : ENOMEM;
}

static void host_event_free(void *inside, void *event) {
    (void)inside;
    free(event);
}

static int host_event_record(void *inside, void *event, void *stream) {
    RAVEL_ASSERT(event);
    (void)inside, (void)stream;
    *(int64_t *)event = ravel__clock_ns();
    return 0;
}

static int host_event_order(void *inside, void *event, void *stream) {
    (void)inside, (void)event, (void)stream;
    return 0;
}

static int host_event_test(void *inside, void *event) {
    (void)inside, (void)event;
    return 0;
}

static int host_event_elapsed(void *inside, void *from, void *to, double *seconds) {
    (void)inside;
    *seconds = (double)(*(int64_t *)to - *(int64_t *)from) * 1e-9;
    return 0;
}

/* ---- sharing -------------------------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    RAVEL_ASSERT(page > 0 && (page & (page - 1)) == 0);
    return (bytes + page - 1) / page * page;
}

static int host_share(void *inside, size_t *bytes, int *fd, void **array, void **handle) {
    (void)inside;
    size_t size = whole_pages(*bytes);
    int file = memfd_create("ravel", MFD_CLOEXEC);
    RAVEL_ASSERT(*bytes > 0 && size >= *bytes);
    if (file < 0) return errno;
    void *data =
        ftruncate(file, (off_t)size) == 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (data == MAP_FAILED) {
        int code = errno;
        (void)close(file);
        return code;
    }
    *bytes = size;
    *fd = file;
    *array = data;
    *handle = NULL;
    return 0;
}

static int host_import(void *inside, int fd, size_t *bytes, int32_t writable, void **array, void **handle) {
    (void)inside;
    struct stat status;
    size_t size = whole_pages(*bytes);
    if (fstat(fd, &status) != 0) return errno;
    if ((size_t)status.st_size < size) return EINVAL; /* access beyond the file would raise SIGBUS */
    void *data = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    RAVEL_ASSERT(*bytes > 0 && size >= *bytes && size <= (size_t)status.st_size);
    if (data == MAP_FAILED) return errno;
    *bytes = size;
    *array = data;
    *handle = NULL;
    return 0;
}

static void host_unshare(void *inside, void *array, size_t bytes, void *handle) {
    RAVEL_ASSERT(array && bytes > 0);
    (void)inside, (void)handle;
    (void)munmap(array, bytes);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static int host_rows(void *inside, const ravel__rows *rows, void *stream) {
    (void)inside, (void)stream;
    ravel__host_rows(rows->block);
    return 0;
}

static int host_count_mask(void *inside, const ravel__mask_job *job, void *stream) {
    (void)inside, (void)stream;
    ravel__host_count_mask(job);
    return 0;
}

static int host_cast(void *inside, const ravel__cast_job *job, void *stream) {
    (void)inside, (void)stream;
    ravel__host_cast(job);
    return 0;
}

static int host_compare(void *inside, const ravel__compare_job *job, void *stream) {
    (void)inside, (void)stream;
    ravel__host_compare(job);
    return 0;
}

const ravel__driver ravel__host_driver = {
    .version = RAVEL__DRIVER_VERSION,
    .bytes = sizeof(ravel__driver),
    .kind = "host",
    .open = host_open,
    .close = host_close,
    .free_bytes = host_free_bytes,
    .describe = host_describe,
    .alloc = host_alloc,
    .release = host_release,
    .copy = host_copy,
    .fill = host_fill,
    .stream_create = host_stream_create,
    .stream_free = host_stream_free,
    .stream_test = host_stream_test,
    .event_create = host_event_create,
    .event_free = host_event_free,
    .event_record = host_event_record,
    .event_order = host_event_order,
    .event_test = host_event_test,
    .event_elapsed = host_event_elapsed,
    .share = host_share,
    .import = host_import,
    .unshare = host_unshare,
    .rows = host_rows,
    .count_mask = host_count_mask,
    .cast = host_cast,
    .compare = host_compare,
};
