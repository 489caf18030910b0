/* Files: mapped for reading, and written so that a reader sees the old content or the new one. Reading a small file
 * whole is public: ravel/file.h.
 *
 *   ravel__map      a read-only view of a whole regular file; an empty file is a view of 0 bytes.
 *   ravel__reading  the same file in pieces, which may be cut short meanwhile.
 *   ravel__writing  path.tmp.PID.N -> write at offsets -> commit (fsync, rename, fsync of the folder), or discard. */
#ifndef RAVEL_BASE_FILE_H
#define RAVEL_BASE_FILE_H

#include <ravel/file.h>

/* "PATH: VERB: what the system says about `number`" as E_IO, e.g. ("model.st", "cannot open", errno). */
ravel_status ravel__file_error(ravel_error *err, const char *path, const char *verb, int number);

typedef struct ravel__map {
    void *data; /* read-only; NULL where bytes is 0 */
    size_t bytes;
} ravel__map;

ravel_status ravel__map_open(const char *path, ravel__map *map, ravel_error *err);
void ravel__map_close(ravel__map *map);

/* A file that is read in pieces while others may change it: where a mapping would end the process with SIGBUS, this is an
 * error. From any thread. */
typedef struct ravel__reading {
    const char *path;             /* the caller's, who keeps it */
    int fd;                       /* -1: closed */
    size_t bytes;                 /* when it was opened, */
    int64_t seconds, nanoseconds; /* and its time of change */
} ravel__reading;

ravel_status ravel__reading_open(const char *path, ravel__reading *reading, ravel_error *err);
/* `bytes` from `offset` on; E_IO where the file does not have them any more. */
ravel_status ravel__reading_get(const ravel__reading *reading, size_t offset, void *at, size_t bytes, ravel_error *err);
/* E_IO where the file has changed since it was opened: what was got before this call may be of neither content. */
ravel_status ravel__reading_check(const ravel__reading *reading, ravel_error *err);
void ravel__reading_close(ravel__reading *reading);

typedef struct ravel__writing {
    const ravel_allocator *allocator;
    char *path;      /* the final name */
    char *temporary; /* the name during writing; NULL when written in place */
    size_t path_room, temporary_room;
    int fd;      /* -1 when nothing is open */
    int special; /* a device or a pipe: written in place, nothing to sync or to rename */
} ravel__writing;

/* `beside`: into a temporary file in the same folder, else straight into the path. Links are followed, and a device or a
 * pipe is written to, not replaced (ravel_file_resolve). */
ravel_status ravel__writing_open(ravel__writing *w, const char *path, int beside, const ravel_allocator *allocator,
                                 ravel_error *err);
/* Writes all of it: retries short writes and EINTR. */
ravel_status ravel__writing_put(ravel__writing *w, int64_t offset, const void *data, size_t bytes, ravel_error *err);
/* Makes the path hold the file. `durable`: only after it has reached the disk. On an error the writing is still to be
 * discarded. */
ravel_status ravel__writing_commit(ravel__writing *w, int durable, ravel_error *err);
/* Closes, removes a temporary file that was not committed, frees. Does nothing to a zeroed writing with fd -1. */
void ravel__writing_discard(ravel__writing *w);

#endif
