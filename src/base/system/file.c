#include "base/assert.h"
#include "base/system/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

ravel_status ravel__file_error(ravel_error *err, const char *path, const char *verb, int number) {
    RAVEL_ASSERT(path && verb);
    char text[128];
    const char *says = strerror_r(number, text, sizeof text); /* GNU's, which returns the text */
    return ravel_error_set(err, RAVEL_E_IO, "%s: %s: %s", path, verb, says);
}

int64_t ravel__connections_most(void) {
    enum { FILES_RESERVE = 128 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT64_MAX) return INT64_MAX;
    return (int64_t)(limit.rlim_cur - (limit.rlim_cur / 4 < FILES_RESERVE ? limit.rlim_cur / 4 : FILES_RESERVE));
}

/* ---- reading -------------------------------------------------------------------------------------------- */

enum { FIRST_ROOM = 4096 };

typedef struct text_buffer {
    const ravel_allocator *allocator;
    char *data;
    size_t room, used;
} text_buffer;

static ravel_status grow(text_buffer *b, size_t room, const char *name, ravel_error *err) {
    RAVEL_ASSERT(b->used <= b->room && room > b->used);
    char *data = ravel__resize(b->allocator, b->data, b->room, room);
    if (!data) return ravel__no_memory(err, room, name);
    b->data = data;
    b->room = room;
    return RAVEL_OK;
}

/* Reads to the end; one byte of room is always kept for the NUL. */
static ravel_status read_all(int fd, const char *name, size_t most, text_buffer *b, ravel_error *err) {
    for (;;) {
        ravel_status status =
            b->room - b->used >= 2 ? RAVEL_OK : grow(b, b->room ? b->room * 2 : FIRST_ROOM, name, err);
        if (status) return status;
        RAVEL_ASSERT(b->room - b->used >= 2);
        ssize_t got = read(fd, b->data + b->used, b->room - b->used - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ravel__file_error(err, name, "cannot read it", errno);
        if (got == 0) return grow(b, b->used + 1, name, err);
        b->used += (size_t)got;
        if (b->used > most)
            return ravel_error_set(err, RAVEL_E_DATA, "%s: more than %zu bytes; is it the right file?", name, most);
    }
}

ravel_status ravel__file_read(const char *path, size_t most, const ravel_allocator *allocator, char **text,
                              size_t *bytes, ravel_error *err) {
    int standard = strcmp(path, "-") == 0, fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ravel__file_error(err, path, "cannot open it", errno);
    text_buffer b = {.allocator = allocator};
    ravel_status status = read_all(fd, standard ? "standard input" : path, most, &b, err);
    if (!standard) (void)close(fd);
    if (status) {
        ravel__release(allocator, b.data, b.room);
        return status;
    }
    RAVEL_ASSERT(b.room == b.used + 1);
    b.data[b.used] = '\0';
    *text = b.data;
    *bytes = b.used;
    return RAVEL_OK;
}

void ravel__file_free(const ravel_allocator *allocator, char *text, size_t bytes) {
    if (text) ravel__release(allocator, text, bytes + 1);
}

ravel_status ravel__file_look(int fd, const char *path, struct stat *info, ravel_error *err) {
    RAVEL_ASSERT(fd >= 0);
    struct stat st;
    if (fstat(fd, &st) != 0) return ravel__file_error(err, path, "cannot look at it", errno);
    if (S_ISDIR(st.st_mode)) return ravel_error_set(err, RAVEL_E_IO, "%s is a folder, not a file", path);
    if (!S_ISREG(st.st_mode)) return ravel_error_set(err, RAVEL_E_IO, "%s is not a regular file", path);
    if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "%s: its size does not fit the address space", path);
    *info = st;
    return RAVEL_OK;
}

ravel_status ravel__reading_open(const char *path, ravel__reading *reading, ravel_error *err) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *reading = (ravel__reading){.path = path, .fd = -1};
    if (fd < 0) return ravel__file_error(err, path, "cannot open it", errno);
    ravel_status status = ravel__file_look(fd, path, &info, err);
    if (status) {
        (void)close(fd);
        return status;
    }
    *reading =
        (ravel__reading){path, fd, (size_t)info.st_size, (int64_t)info.st_mtim.tv_sec, (int64_t)info.st_mtim.tv_nsec};
    return RAVEL_OK;
}

ravel_status ravel__reading_get(const ravel__reading *reading, size_t offset, void *at, size_t bytes,
                                ravel_error *err) {
    RAVEL_ASSERT(reading->fd >= 0 && offset <= reading->bytes && bytes <= reading->bytes - offset);
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(reading->fd, (char *)at + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ravel__file_error(err, reading->path, "cannot read it", errno);
        if (got == 0)
            return ravel_error_set(err, RAVEL_E_IO,
                                   "%s: it was cut short while it was being read: it had %zu bytes, and ends before "
                                   "byte %zu now",
                                   reading->path, reading->bytes, offset + done + 1);
        done += (size_t)got;
    }
    return RAVEL_OK;
}

ravel_status ravel__reading_check(const ravel__reading *reading, ravel_error *err) {
    struct stat now = {0};
    ravel_status status = ravel__file_look(reading->fd, reading->path, &now, err);
    if (status) return status;
    if ((size_t)now.st_size == reading->bytes && now.st_mtim.tv_sec == reading->seconds &&
        now.st_mtim.tv_nsec == reading->nanoseconds)
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_IO,
                           "%s: it was changed while it was being read (%zu bytes when it was opened, %lld now)",
                           reading->path, reading->bytes, (long long)now.st_size);
}

void ravel__reading_close(ravel__reading *reading) {
    if (reading->fd >= 0) (void)close(reading->fd);
    reading->fd = -1;
}

/* ---- where an output goes -------------------------------------------------------------------------------- */

enum { LINKS = 40 };

/* Replaces the path in `target` by what the link there says; a relative text is relative to the link's folder. */
static ravel_status follow(char *target, size_t room, ravel_error *err) {
    char text[4096], joined[8200];
    ssize_t length = readlink(target, text, sizeof text - 1);
    if (length < 0) return ravel__file_error(err, target, "cannot read the link", errno);
    RAVEL_ASSERT((size_t)length < sizeof text);
    text[length] = '\0';
    const char *slash = strrchr(target, '/');
    int folder = text[0] == '/' || !slash ? 0 : (int)(slash - target) + 1;
    if (snprintf(joined, sizeof joined, "%.*s%s", folder, target, text) >= (int)room)
        return ravel__file_error(err, target, "cannot follow the link", ENAMETOOLONG);
    RAVEL_ASSERT(strlen(joined) < room);
    memcpy(target, joined, strlen(joined) + 1);
    return RAVEL_OK;
}

ravel_status ravel__file_resolve(const char *path, char *target, size_t room, int *replace, ravel_error *err) {
    struct stat info;
    size_t bytes = strlen(path) + 1;
    if (bytes > room || bytes > 4096) return ravel__file_error(err, path, "cannot use the path", ENAMETOOLONG);
    memcpy(target, path, bytes);
    for (int links = 0; lstat(target, &info) == 0; links++) {
        if (S_ISDIR(info.st_mode)) return ravel_error_set(err, RAVEL_E_IO, "%s: is a folder, not a file", path);
        *replace = S_ISREG(info.st_mode);
        if (!S_ISLNK(info.st_mode)) return RAVEL_OK;
        if (links == LINKS) return ravel__file_error(err, path, "cannot follow the link", ELOOP);
        ravel_status status = follow(target, room, err);
        if (status) return status;
    }
    *replace = 1;
    return RAVEL_OK;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

ravel_status ravel__folder_make(const char *path, ravel_error *err) {
    char part[4096];
    struct stat info;
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a folder needs a path of 1 to %zu bytes, not %zu",
                               sizeof part - 1, length);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        RAVEL_ASSERT(i < sizeof part);
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return ravel__file_error(err, part, "cannot make the folder", errno);
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_IO, "%s: cannot make the folder: a file has that name", path);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

enum { SUFFIX_ROOM = 64, ATTEMPTS = 1000 };

int ravel__temporary_open(const char *path, char *temporary, size_t room) {
    for (int n = 0; n < ATTEMPTS; n++) {
        if (snprintf(temporary, room, "%s.tmp.%ld.%d", path, (long)getpid(), n) >= (int)room)
            return errno = ENAMETOOLONG, -1;
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static ravel_status open_temporary(ravel__writing *w, ravel_error *err) {
    RAVEL_ASSERT(w->fd < 0 && w->temporary && w->temporary_room >= w->path_room + SUFFIX_ROOM);
    w->fd = ravel__temporary_open(w->path, w->temporary, w->temporary_room);
    if (w->fd >= 0) return RAVEL_OK;
    ravel_status status = ravel__file_error(err, w->temporary, "cannot create it", errno);
    w->temporary[0] = '\0';
    return status;
}

static ravel_status not_in_order(const ravel__writing *w, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_IO, "%s: a pipe or terminal takes bytes in order only; give a file", w->path);
}

ravel_status ravel__writing_open(ravel__writing *w, const char *path, int beside, const ravel_allocator *allocator,
                                 ravel_error *err) {
    char target[4096];
    int replace = 1;
    memset(w, 0, sizeof *w);
    w->fd = -1;
    w->allocator = allocator;
    ravel_status status = ravel__file_resolve(path, target, sizeof target, &replace, err);
    if (status) return status;
    size_t bytes = strlen(target) + 1;
    w->path = ravel__alloc(allocator, bytes);
    if (!w->path) return ravel__no_memory(err, bytes, "a path");
    w->path_room = bytes;
    memcpy(w->path, target, bytes);
    w->special = !replace;
    struct stat info;
    if (w->special && stat(target, &info) == 0 && S_ISFIFO(info.st_mode)) return not_in_order(w, err);
    if (!beside || !replace) {
        w->fd = open(target, O_WRONLY | O_CREAT | (replace ? O_TRUNC : 0) | O_CLOEXEC, 0666);
        return w->fd >= 0 ? RAVEL_OK : ravel__file_error(err, path, "cannot create it", errno);
    }
    w->temporary = ravel__alloc(allocator, bytes + SUFFIX_ROOM);
    if (!w->temporary) return ravel__no_memory(err, bytes + SUFFIX_ROOM, "a path");
    w->temporary_room = bytes + SUFFIX_ROOM;
    return open_temporary(w, err);
}

ravel_status ravel__writing_put(ravel__writing *w, int64_t offset, const void *data, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(w->fd >= 0 && offset >= 0 && (data || !bytes));
    const char *at = data;
    while (bytes > 0) {
        size_t piece = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        ssize_t wrote = pwrite(w->fd, at, piece, (off_t)offset);
        if (wrote < 0 && errno == ESPIPE) return not_in_order(w, err);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return ravel__file_error(err, w->path, "cannot write it", wrote < 0 ? errno : ENOSPC);
        RAVEL_ASSERT((size_t)wrote <= piece);
        at += wrote;
        offset += wrote;
        bytes -= (size_t)wrote;
    }
    return RAVEL_OK;
}

/* A rename is durable only after its folder has been synced. */
static ravel_status sync_folder(const ravel__writing *w, ravel_error *err) {
    RAVEL_ASSERT(w->path && w->fd < 0);
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
    RAVEL_ASSERT(w->fd >= 0 && w->path && (!w->temporary || w->temporary[0]));
    durable = durable && !w->special; /* a device has nothing to sync */
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
