/* A writer fills one array from front to back.
 *
 * Packed arrays are written once, in order, in many small pieces. While an array fits the caches a piece is just a
 * memcpy. A large one is streamed: pieces collect in a line of 64 bytes, and full lines go straight to memory, past the
 * caches. That saves reading the old content of every line first, which is a third of a copy's traffic.
 *
 *     pieces      |aaaaa|bbbbbbbbbbbbbbbbbbbbbbbbb|cc|
 *     lines   |...aaaaabb|bbbbbbbbbb|bbbbbbbbbb|bbb cc ...
 *                  stored   streamed   streamed   waiting in writer->line
 */
#ifndef RAVEL_BATCH_WRITER_H
#define RAVEL_BATCH_WRITER_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__LINE = 64 };

typedef struct ravel__writer {
    char *at;                            /* where the next byte belongs */
    size_t plain;                        /* bytes up to the array's first whole line: stored as they come */
    int stream;                          /* collect lines; else store at once */
    _Alignas(64) char line[RAVEL__LINE]; /* the bytes of the line before `at`, where streaming */
} ravel__writer;

/* Whether arrays of `bytes` in total are worth streaming on this machine. */
int ravel__writer_streams(size_t bytes);

void ravel__writer_open(ravel__writer *writer, void *array, int stream);
/* Stores the last partial line, and makes all of it visible to other threads. */
void ravel__writer_close(ravel__writer *writer);

void ravel__writer_copy(ravel__writer *writer, const void *source, size_t bytes);
/* Every step-th piece of `each` bytes. */
void ravel__writer_take(ravel__writer *writer, const char *source, int64_t count, int64_t step, size_t each);
/* `count` times a pattern of 1, 2, 4 or 8 bytes. */
void ravel__writer_fill(ravel__writer *writer, const void *pattern, int32_t bytes, int64_t count);
/* first, first + step, ... as int32_t. */
void ravel__writer_count_up(ravel__writer *writer, int64_t first, int64_t step, int64_t count);

#endif
