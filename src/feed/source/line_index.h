/* Where each row of a file of rows begins, found once per machine: the list is kept in a file beside the data. A row is
 * a line (JSON lines), or an element of the one array that the file is.
 *
 *     train.jsonl            {"text": ...}\n \n {"text": ...}\n {"text": ...}
 *     begins                 ^                  ^               ^                blank lines are no rows
 *     train.jsonl.rows       int64_t words, little-endian:
 *                            magic "RAVELROW" | version 2 | size of the data | its time of change: seconds, nanoseconds |
 *                            rows R | R times begin | checksum of all words before it
 *
 * The file is used only if the size and the time of change are the data's, the checksum holds, and the begins rise and
 * lie inside the data; otherwise the data is scanned and the file written again. Processes of one machine take a lock
 * on the data meanwhile, so that one scans and the others wait for its result. If the folder cannot be written, the
 * data is scanned each time. Small files (below RAVEL__INDEX_FROM) are always scanned: that is faster than reading an
 * index. */
#ifndef RAVEL_FEED_LINE_INDEX_H
#define RAVEL_FEED_LINE_INDEX_H

#include "base/system/file.h"

#include <ravel/source.h>

enum { RAVEL__INDEX_FROM = 16 << 20, RAVEL__INDEX_HEAD = 6 };

typedef struct ravel__line_index {
    int64_t rows;
    size_t bytes;        /* of the data */
    size_t first;        /* where its rows or its array begin */
    int32_t array;       /* rows are the elements of an array */
    ravel__reading file; /* that holds the begins; or, with fd -1, */
    int64_t *own;        /* memory of the allocator's, [own_room] */
    int64_t own_room;
    int made; /* this call scanned the data */
} ravel__line_index;

/* `keep`: ravel_row_index. E_DATA if there is no row. */
ravel_status ravel__line_index_open(ravel__line_index *index, const ravel__reading *data, int32_t keep,
                                    const ravel_allocator *allocator, ravel_error *err);
void ravel__line_index_close(ravel__line_index *index, const ravel_allocator *allocator);

/* Where a row begins, and where the next one does (or the data ends). E_IO if the file beside the data is damaged by
 * now. */
ravel_status ravel__line_index_find(const ravel__line_index *index, int64_t row, size_t *begin, size_t *end,
                                    ravel_error *err);

/* Of the bytes between two begins: how many are the row's. */
size_t ravel__line_index_text(const ravel__line_index *index, int64_t row, const char *text, size_t bytes);

/* Whether these words are a good index of data with this size and time of change; *rows is set where they are. */
int ravel__line_index_valid(const int64_t *words, size_t count, int64_t size, int64_t seconds, int64_t nanoseconds,
                            int64_t *rows);

#endif
