/* Mapped files. Reading a page that another process has cut off raises SIGBUS, so a program that lives on needs a
 * handler, and must know afterwards that it has read zeros:
 *
 *     list[i]   address, size, path, and what the file was when it was mapped. The handler only reads it: an entry is complete
 *               before its address is set, and nobody unmaps what a thread is just reading. */
#include "base/assert.h"
#include "base/memory.h"
#include "base/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPS = 1024, CLOSED = 1 }; /* more are mapped, and not watched */

typedef struct mapped {
    atomic_uintptr_t at; /* 0: free; CLOSED: nothing is mapped, and what was read of it may be zeros */
    size_t bytes, path_bytes;
    char *path;
    struct stat was;
    atomic_int cut; /* zeros stand in for pages that are gone */
} mapped;

static mapped list[MAPS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of writers */
static atomic_int guards;

static void note(const ravel__map *map, const char *path, const struct stat *was) {
    size_t bytes = strlen(path) + 1;
    char *copy = ravel__alloc(NULL, bytes);
    (void)pthread_mutex_lock(&lock);
    for (mapped *m = list; copy && m < list + MAPS; m++) {
        if (atomic_load(&m->at)) continue;
        m->bytes = map->bytes, m->path = memcpy(copy, path, bytes), m->path_bytes = bytes, m->was = *was, copy = NULL;
        atomic_store(&m->cut, 0);
        atomic_store(&m->at, (uintptr_t)map->data);
    }
    (void)pthread_mutex_unlock(&lock);
    ravel__release(NULL, copy, bytes);
}

static void forget(const ravel__map *map) {
    (void)pthread_mutex_lock(&lock);
    for (mapped *m = list; m < list + MAPS; m++) {
        if (atomic_load(&m->at) != (uintptr_t)map->data) continue;
        if (!atomic_load(&m->cut)) ravel__release(NULL, m->path, m->path_bytes);
        atomic_store(&m->at, atomic_load(&m->cut) ? CLOSED : 0);
    }
    (void)pthread_mutex_unlock(&lock);
}

static ravel_status map_fd(int fd, const char *path, ravel__map *map, ravel_error *err) {
    struct stat info = {0};
    ravel_status status = ravel__file_look(fd, path, &info, err);
    if (status) return status;
    ravel__map fresh = {NULL, (size_t)info.st_size};
    if (fresh.bytes) {
        void *at = mmap(NULL, fresh.bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return ravel__file_error(err, path, "cannot map it", errno);
        fresh.data = at;
        note(&fresh, path, &info);
    }
    *map = fresh;
    return RAVEL_OK;
}

/* Without O_NONBLOCK the open of a pipe that nobody writes would wait for ever, before it can be refused. */
ravel_status ravel__map_open(const char *path, ravel__map *map, ravel_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ravel__file_error(err, path, "cannot open it", errno);
    ravel_status status = map_fd(fd, path, map, err);
    (void)close(fd);
    return status;
}

void ravel__map_close(ravel__map *map) {
    RAVEL_ASSERT(!map->data || map->bytes > 0);
    if (map->data) {
        forget(map);
        (void)munmap(map->data, map->bytes);
    }
    map->data = NULL;
    map->bytes = 0;
}

/* ---- files that change under it -------------------------------------------------------------------------- */

void ravel__maps_guard(int more) {
    (void)atomic_fetch_add(&guards, more);
}

const char *ravel__maps_patch(void *address, int *patched) {
    uintptr_t at = (uintptr_t)address, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    *patched = 0;
    for (mapped *m = list; m < list + MAPS; m++) {
        uintptr_t from = atomic_load(&m->at);
        if (from <= CLOSED || at < from || at - from >= m->bytes) continue;
        if (atomic_load(&guards) <= 0) return m->path;
        atomic_store(&m->cut, 1);
        size_t back = (at - from) % page; /* to the beginning of the page */
        void *zeros = mmap((char *)address - back, from + m->bytes - at + back, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        *patched = zeros != MAP_FAILED;
        return m->path;
    }
    return NULL;
}

/* A path that names another file by now, or none, is no change: what is mapped is the file of then. */
static int has_changed(const mapped *m) {
    struct stat now;
    if (atomic_load(&m->cut)) return 1;
    if (stat(m->path, &now) != 0 || now.st_ino != m->was.st_ino || now.st_dev != m->was.st_dev) return 0;
    return now.st_size != m->was.st_size || now.st_mtim.tv_sec != m->was.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != m->was.st_mtim.tv_nsec;
}

int ravel__maps_changed(char *path, size_t room) {
    int changed = 0;
    (void)pthread_mutex_lock(&lock);
    for (const mapped *m = list; m < list + MAPS && !changed; m++) {
        if (!atomic_load(&m->at) || !has_changed(m)) continue;
        changed = 1;
        (void)snprintf(path, room, "%s", m->path);
    }
    (void)pthread_mutex_unlock(&lock);
    return changed;
}
