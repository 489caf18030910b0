#include "base/assert.h"
#include "io/source.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A longer line means a file without line ends. */
enum { LONGEST_LINE = 1 << 30, FIRST_ROOM = 1 << 16 };

ravel_status ravel__source_open(ravel__source *source, const char *path, ravel_error *err) {
    struct stat info;
    int fd = 0, standard = strcmp(path, "-") == 0;
    if (!standard) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return ravel_error_set(err, RAVEL_E_IO, "%s: cannot open it: %s", path, strerror(errno));
    }
    memset(source, 0, sizeof *source);
    source->name = standard ? "standard input" : path;
    source->fd = fd;
    source->owned = !standard;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) source->total = (int64_t)info.st_size;
    return RAVEL_OK;
}

void ravel__source_memory(ravel__source *source, const char *name, const void *data, size_t bytes) {
    RAVEL_ASSERT(name);
    memset(source, 0, sizeof *source);
    source->name = name;
    source->fd = -1;
    source->memory = data;
    source->left = bytes;
    source->total = (int64_t)bytes;
}

void ravel__source_close(ravel__source *source) {
    RAVEL_ASSERT(!source->owned || source->fd >= 0);
    if (source->owned) (void)close(source->fd);
    source->owned = 0;
}

static size_t read_memory(ravel__source *source, void *buffer, size_t room) {
    RAVEL_ASSERT(source->fd < 0 && (buffer || !room));
    size_t bytes = source->left < room ? source->left : room;
    if (bytes) memcpy(buffer, source->memory, bytes);
    source->memory += bytes;
    source->left -= bytes;
    return bytes;
}

static ravel_status read_some(ravel__source *source, void *buffer, size_t room, size_t *got, ravel_error *err) {
    ssize_t bytes;
    *got = 0;
    if (source->fd < 0) {
        *got = read_memory(source, buffer, room);
        return RAVEL_OK;
    }
    do bytes = read(source->fd, buffer, room);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0) return ravel_error_set(err, RAVEL_E_IO, "%s: reading failed: %s", source->name, strerror(errno));
    *got = (size_t)bytes;
    return RAVEL_OK;
}

ravel_status ravel__source_peek(ravel__source *source, const char **bytes, size_t *count, ravel_error *err) {
    RAVEL_ASSERT(source->done == 0);
    for (size_t got = 1; got && source->ahead_bytes < sizeof source->ahead; source->ahead_bytes += got) {
        ravel_status status = read_some(source, source->ahead + source->ahead_bytes,
                                        sizeof source->ahead - source->ahead_bytes, &got, err);
        if (status) return status;
    }
    RAVEL_ASSERT(source->ahead_bytes <= sizeof source->ahead);
    *bytes = source->ahead;
    *count = source->ahead_bytes;
    return RAVEL_OK;
}

ravel_status ravel__source_read(ravel__source *source, void *buffer, size_t room, size_t *got, ravel_error *err) {
    if (source->ahead_bytes) {
        *got = source->ahead_bytes < room ? source->ahead_bytes : room;
        memcpy(buffer, source->ahead, *got);
        source->ahead_bytes -= *got;
        memmove(source->ahead, source->ahead + *got, source->ahead_bytes);
    } else {
        ravel_status status = read_some(source, buffer, room, got, err);
        if (status) return status;
    }
    RAVEL_ASSERT(*got <= room);
    source->done += (int64_t)*got;
    if (source->progress) source->progress(source->user, source->done, source->total);
    return RAVEL_OK;
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

void ravel__lines_init(ravel__lines *lines, ravel__source *source, const ravel_allocator *allocator) {
    memset(lines, 0, sizeof *lines);
    lines->source = source;
    lines->allocator = allocator;
}

void ravel__lines_free(ravel__lines *lines) {
    RAVEL_ASSERT((lines->buffer == NULL) == (lines->room == 0));
    ravel__release(lines->allocator, lines->buffer, lines->room);
    lines->buffer = NULL;
    lines->room = 0;
}

/* Makes room behind `end`: by moving the current line to the front, or else by growing. */
static ravel_status make_room(ravel__lines *l, ravel_error *err) {
    RAVEL_ASSERT(l->start <= l->scanned && l->end == l->room);
    if (l->start > 0 && l->start >= l->room / 2) {
        memmove(l->buffer, l->buffer + l->start, l->end - l->start);
        l->scanned -= l->start;
        l->end -= l->start;
        l->start = 0;
        return RAVEL_OK;
    }
    size_t room = l->room ? l->room * 2 : FIRST_ROOM;
    if (room > 2 * (size_t)LONGEST_LINE)
        return ravel_error_set(err, RAVEL_E_DATA, "%s:%lld: a line of more than %d bytes", l->source->name,
                               (long long)l->passed + 1, LONGEST_LINE);
    char *grown = ravel__resize(l->allocator, l->buffer, l->room, room);
    if (!grown) return ravel__no_memory(err, room, "a line of text");
    l->buffer = grown;
    l->room = room;
    return RAVEL_OK;
}

/* Scans on to the next line end; E_END if no byte is left. */
static ravel_status scan(ravel__lines *l, ravel_error *err) {
    size_t from = l->scanned, got;
    RAVEL_ASSERT(l->start <= from && from <= l->end);
    for (;;) {
        const char *found = l->end > from ? memchr(l->buffer + from, '\n', l->end - from) : NULL;
        if (found) {
            l->scanned = (size_t)(found - l->buffer) + 1;
            return RAVEL_OK;
        }
        from = l->end;
        if (l->finished) break;
        if (l->end == l->room) {
            size_t start = l->start;
            ravel_status status = make_room(l, err);
            if (status) return status;
            from -= start - l->start;
        }
        RAVEL_ASSERT(from <= l->end && l->end < l->room);
        ravel_status status = ravel__source_read(l->source, l->buffer + l->end, l->room - l->end, &got, err);
        if (status) return status;
        l->end += got;
        l->finished = got == 0;
    }
    if (l->scanned == l->end) return RAVEL_E_END;
    l->scanned = l->end;
    return RAVEL_OK;
}

static void give(const ravel__lines *l, const char **line, size_t *bytes) {
    RAVEL_ASSERT(l->start <= l->scanned && l->scanned <= l->end && l->end <= l->room);
    size_t stop = l->scanned;
    if (stop > l->start && l->buffer[stop - 1] == '\n') stop--;
    if (stop > l->start && l->buffer[stop - 1] == '\r') stop--;
    *line = l->buffer + l->start;
    *bytes = stop - l->start;
    if (l->number == 1 && *bytes >= 3 && memcmp(*line, "\xef\xbb\xbf", 3) == 0) {
        *line += 3;
        *bytes -= 3;
    }
}

ravel_status ravel__lines_next(ravel__lines *lines, const char **line, size_t *bytes, ravel_error *err) {
    RAVEL_ASSERT(lines->scanned <= lines->end);
    lines->start = lines->scanned;
    ravel_status status = scan(lines, err);
    if (status) return status;
    lines->number = ++lines->passed;
    RAVEL_ASSERT(lines->number >= 1 && lines->start < lines->scanned);
    give(lines, line, bytes);
    return RAVEL_OK;
}

ravel_status ravel__lines_more(ravel__lines *lines, const char **line, size_t *bytes, ravel_error *err) {
    RAVEL_ASSERT(lines->number >= 1);
    ravel_status status = scan(lines, err);
    if (status) return status;
    lines->passed++;
    give(lines, line, bytes);
    return RAVEL_OK;
}
