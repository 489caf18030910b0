/* Bytes from a file, a pipe or memory, and lines from bytes.
 *
 *   ravel__source   read(2) with retries, or a block of memory (fuzzing, tests, callers who hold the bytes).
 *   ravel__lines    one line at a time in a buffer that is as long as the longest of them:
 *
 *       buffer  ....[line......\n][next ...
 *                   ^ start      ^ scanned
 *
 *                   A line can be lengthened by the one after it, for CSV records with quoted line ends. */
#ifndef RAVEL_IO_SOURCE_H
#define RAVEL_IO_SOURCE_H

#include <ravel/base.h>

typedef struct ravel__source {
    const char *name;   /* for sentences; borrowed */
    int fd;             /* -1: memory */
    int owned;          /* close it at the end */
    const char *memory; /* what is left of it */
    size_t left;
    char ahead[16]; /* peeked bytes, not yet read */
    size_t ahead_bytes;
    int64_t done, total; /* bytes; total 0: unknown */
    void (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} ravel__source;

/* "-" is standard input. E_IO with the system's reason. */
ravel_status ravel__source_open(ravel__source *source, const char *path, ravel_error *err);
void ravel__source_memory(ravel__source *source, const char *name, const void *data, size_t bytes);
void ravel__source_close(ravel__source *source);
/* As many bytes as there are, up to `room`; *got is 0 at the end only. */
ravel_status ravel__source_read(ravel__source *source, void *buffer, size_t room, size_t *got, ravel_error *err);
/* Peeks at up to 16 of the first bytes, before anything was read. */
ravel_status ravel__source_peek(ravel__source *source, const char **bytes, size_t *count, ravel_error *err);

typedef struct ravel__lines {
    ravel__source *source;
    const ravel_allocator *allocator;
    char *buffer;
    size_t room, start, scanned, end;
    int64_t number; /* of the line that was returned last, from 1; of a lengthened one, where it begins */
    int64_t passed; /* line ends so far */
    int finished;
} ravel__lines;

void ravel__lines_init(ravel__lines *lines, ravel__source *source, const ravel_allocator *allocator);
void ravel__lines_free(ravel__lines *lines);
/* The next line, without its end (\n or \r\n) and without a byte-order mark; valid until the next call. E_END, with
 * nothing in `err`, after the last. */
ravel_status ravel__lines_next(ravel__lines *lines, const char **line, size_t *bytes, ravel_error *err);
/* The same line again with the following one, the line end between them. E_END if there is none. */
ravel_status ravel__lines_more(ravel__lines *lines, const char **line, size_t *bytes, ravel_error *err);

#endif
