/* Files: mapped for reading, and written so that a reader sees the old content or the new one. Small files are
 * read whole.
 *
 *   ravel__map      a read-only view of a whole regular file; an empty file is a view of 0 bytes.
 *   ravel__reading  the same file in pieces, which may be cut short meanwhile.
 *   ravel__writing  path.tmp.PID.N -> write at offsets -> commit (fsync, rename, fsync of the folder), or discard. */
#ifndef RAVEL_BASE_FILE_H
#define RAVEL_BASE_FILE_H

#include <ravel/base.h>

/* Reads `path` ("-": standard input) into fresh memory, with a NUL behind the last byte that *bytes does not count.
 * `most`: the largest size that is accepted, in bytes; a larger file is E_DATA. A file that cannot be opened or read is
 * E_IO with the system's reason; a folder is E_IO too. Pipes and files of unknown size are read to their end. */
ravel_status ravel__file_read(const char *path, size_t most, const ravel_allocator *allocator, char **text,
                              size_t *bytes, ravel_error *err);
/* Frees what ravel__file_read returned; the same allocator and size. NULL does nothing. With a NULL allocator it is
 * what free() does. */
void ravel__file_free(const ravel_allocator *allocator, char *text, size_t bytes);

/* Where a new version of `path` belongs. Symbolic links are followed, also those whose target does not exist yet, so
 * that a link stays a link. *replace is 1 if there is a regular file or nothing: write a file beside `target` and
 * rename it. It is 0 for a device, a pipe or a socket, which must be opened and written to and never replaced. A folder
 * is E_IO. */
ravel_status ravel__file_resolve(const char *path, char *target, size_t room, int *replace, ravel_error *err);

/* Makes the folder and all folders above it, like mkdir -p. A folder that exists is no error; a file of that name, or
 * an empty name, is. */
ravel_status ravel__folder_make(const char *path, ravel_error *err);

/* "PATH: VERB: what the system says about `number`" as E_IO, e.g. ("model.st", "cannot open", errno). */
ravel_status ravel__file_error(ravel_error *err, const char *path, const char *verb, int number);

/* fstat of a file that is to be read; E_IO if it is no regular file. */
struct stat;
ravel_status ravel__file_look(int fd, const char *path, struct stat *info, ravel_error *err);

/* How many connections a process may have: its soft limit of descriptors, less 128 for files, or a quarter of a small
 * limit. */
int64_t ravel__connections_most(void);

typedef struct ravel__map {
    void *data; /* read-only; NULL if bytes is 0 */
    size_t bytes;
} ravel__map;

ravel_status ravel__map_open(const char *path, ravel__map *map, ravel_error *err);
void ravel__map_close(ravel__map *map);

/* For a handler of SIGBUS: the path of the mapped file that has the address, NULL: none. With a guard, *patched is 1,
 * and zeros stand where the file has been cut off; who set the guard throws away what was computed if
 * ravel__maps_changed. */
const char *ravel__maps_patch(void *address, int *patched);
void ravel__maps_guard(int more); /* 1: a guard more, -1: one less */
/* Whether a mapped file is not what it was when it was mapped, and the path of one. */
int ravel__maps_changed(char *path, size_t room);

/* A file that is read in pieces while others may change it: where a mapping would end the process with SIGBUS, this is
 * an error. From any thread. */
typedef struct ravel__reading {
    const char *path;             /* the caller's, who keeps it */
    int fd;                       /* -1: closed */
    size_t bytes;                 /* when it was opened, */
    int64_t seconds, nanoseconds; /* and its time of change */
} ravel__reading;

ravel_status ravel__reading_open(const char *path, ravel__reading *reading, ravel_error *err);
/* `bytes` from `offset` on; E_IO if the file does not have them any more. */
ravel_status ravel__reading_get(const ravel__reading *reading, size_t offset, void *at, size_t bytes, ravel_error *err);
/* E_IO if the file has changed since it was opened: what was got before this call may be of neither content. */
ravel_status ravel__reading_check(const ravel__reading *reading, ravel_error *err);
void ravel__reading_close(ravel__reading *reading);

/* Creates PATH.tmp.PID.N, a file that nobody else has made, nor a link that somebody has put there; names left by a
 * killed process are skipped. Its descriptor and its name, or -1 and errno. */
int ravel__temporary_open(const char *path, char *temporary, size_t room);

typedef struct ravel__writing {
    const ravel_allocator *allocator;
    char *path;      /* the final name */
    char *temporary; /* the name during writing; NULL when written in place */
    size_t path_room, temporary_room;
    int fd;      /* -1 when nothing is open */
    int special; /* a device or a pipe: written in place, nothing to sync or to rename */
} ravel__writing;

/* `beside`: into a temporary file in the same folder, else straight into the path. Links are followed, and a device or
 * a pipe is written to, not replaced (ravel__file_resolve). */
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
