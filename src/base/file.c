#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ravel_status ravel__file_error(ravel_error *err, const char *path, const char *verb, int number) {
    char text[128];
    const char *says = strerror_r(number, text, sizeof text); /* GNU's, which returns the text */
    return ravel_error_set(err, RAVEL_E_IO, "%s: %s: %s", path, verb, says);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static ravel_status map_fd(int fd, const char *path, ravel__map *map, ravel_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ravel__file_error(err, path, "cannot look at it", errno);
    if (S_ISDIR(st.st_mode)) return ravel_error_set(err, RAVEL_E_IO, "%s is a folder, not a file", path);
    if (!S_ISREG(st.st_mode)) return ravel_error_set(err, RAVEL_E_IO, "%s is not a regular file", path);
    if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "%s: its size does not fit the address space", path);
    ravel__map fresh = {NULL, (size_t)st.st_size};
    if (fresh.bytes) {
        void *at = mmap(NULL, fresh.bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return ravel__file_error(err, path, "cannot map it", errno);
        fresh.data = at;
    }
    *map = fresh;
    return RAVEL_OK;
}

ravel_status ravel__map_open(const char *path, ravel__map *map, ravel_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ravel__file_error(err, path, "cannot open it", errno);
    ravel_status status = map_fd(fd, path, map, err);
    (void)close(fd);
    return status;
}

void ravel__map_close(ravel__map *map) {
    if (map->data) (void)munmap(map->data, map->bytes);
    map->data = NULL;
    map->bytes = 0;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

enum { SUFFIX_ROOM = 64, ATTEMPTS = 1000 };

/* A name that nobody has; a file that a killed process left behind is stepped over. */
static ravel_status open_temporary(ravel__writing *w, ravel_error *err) {
    for (int n = 0; n < ATTEMPTS; n++) {
        (void)snprintf(w->temporary, w->temporary_room, "%s.tmp.%ld.%d", w->path, (long)getpid(), n);
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) return RAVEL_OK;
        if (errno != EEXIST) break;
    }
    ravel_status status = ravel__file_error(err, w->temporary, "cannot create it", errno);
    w->temporary[0] = '\0';
    return status;
}

ravel_status ravel__writing_open(ravel__writing *w, const char *path, int beside, const ravel_allocator *allocator,
                                 ravel_error *err) {
    memset(w, 0, sizeof *w);
    w->fd = -1;
    w->allocator = allocator;
    size_t bytes = strlen(path) + 1;
    w->path = ravel__alloc(allocator, bytes);
    if (!w->path) return ravel__no_memory(err, bytes, "a path");
    w->path_room = bytes;
    memcpy(w->path, path, bytes);
    if (!beside) {
        w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        return w->fd >= 0 ? RAVEL_OK : ravel__file_error(err, path, "cannot create it", errno);
    }
    w->temporary = ravel__alloc(allocator, bytes + SUFFIX_ROOM);
    if (!w->temporary) return ravel__no_memory(err, bytes + SUFFIX_ROOM, "a path");
    w->temporary_room = bytes + SUFFIX_ROOM;
    return open_temporary(w, err);
}

ravel_status ravel__writing_put(ravel__writing *w, int64_t offset, const void *data, size_t bytes, ravel_error *err) {
    const char *at = data;
    while (bytes > 0) {
        size_t piece = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        ssize_t wrote = pwrite(w->fd, at, piece, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return ravel__file_error(err, w->path, "cannot write it", wrote < 0 ? errno : ENOSPC);
        at += wrote;
        offset += wrote;
        bytes -= (size_t)wrote;
    }
    return RAVEL_OK;
}

/* A rename is on the disk only when its folder is. */
static ravel_status sync_folder(const ravel__writing *w, ravel_error *err) {
    char folder[4096] = ".";
    const char *slash = strrchr(w->path, '/');
    if (slash) (void)snprintf(folder, sizeof folder, "%.*s", slash == w->path ? 1 : (int)(slash - w->path), w->path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ravel__file_error(err, folder, "cannot open it", errno);
    int failed = fsync(fd) != 0 && errno != EINVAL; /* some file systems have nothing to sync there */
    ravel_status status = failed ? ravel__file_error(err, folder, "cannot sync it", errno) : RAVEL_OK;
    (void)close(fd);
    return status;
}

ravel_status ravel__writing_commit(ravel__writing *w, int durable, ravel_error *err) {
    if (durable && fsync(w->fd) != 0) return ravel__file_error(err, w->path, "cannot sync it", errno);
    int closed = close(w->fd);
    w->fd = -1;
    if (closed != 0) return ravel__file_error(err, w->path, "cannot write it", errno);
    if (w->temporary) {
        if (rename(w->temporary, w->path) != 0) return ravel__file_error(err, w->path, "cannot replace it", errno);
        w->temporary[0] = '\0';
    }
    return durable ? sync_folder(w, err) : RAVEL_OK;
}

void ravel__writing_discard(ravel__writing *w) {
    if (w->fd >= 0) (void)close(w->fd);
    w->fd = -1;
    if (w->temporary && w->temporary[0]) (void)unlink(w->temporary);
    ravel__release(w->allocator, w->temporary, w->temporary_room);
    ravel__release(w->allocator, w->path, w->path_room);
    w->temporary = w->path = NULL;
}
