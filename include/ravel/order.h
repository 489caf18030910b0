/* ravel/order.h: in which order the rows of a data set are read, and where one is.
 *
 * Nouns
 *   row      one record of a data set, named by its number in 0 .. count-1.
 *   epoch    every row once: shuffled by (seed, epoch), or in file order.
 *   stream   epoch 0, epoch 1, ... one after the other, without end or for `epochs` epochs.
 *   cursor   a place in the stream: two integers, which a checkpoint keeps.
 *
 * The order is a pure function of (order, cursor): a keyed permutation that is computed, not stored, so a data set of
 * any size takes no memory, any position is computed directly, and the rows of an update do not depend on the number of
 * ranks.
 *
 *     ravel_order order = {.size = sizeof order, .count = ravel_source_count(source), .shuffle = 1, .seed = 7};
 *     ravel_cursor cursor = {0, 0}, next;
 *     int64_t n = ravel_order_take(&order, cursor, 512, &next);          the update's rows, fewer at the very end
 *     int64_t begin = ravel_share(n, dp, rank), end = ravel_share(n, dp, rank + 1);
 *     ravel_order_rows(&order, cursor, begin, end - begin, rows);         this rank's share of them
 *     cursor = next;
 */
#ifndef RAVEL_ORDER_H
#define RAVEL_ORDER_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_order {
    size_t size;       /* sizeof(ravel_order) */
    int64_t count;     /* rows of the data set; 0 gives an empty stream */
    int64_t epochs;    /* 0: without end */
    uint64_t seed;     /* of the shuffle */
    int32_t shuffle;   /* else file order in every epoch */
    int32_t drop_last; /* the stream ends before an update that could not be filled */
} ravel_order;

typedef struct ravel_cursor {
    int64_t epoch;    /* from 0 */
    int64_t position; /* rows of this epoch that were taken: 0 .. count-1 */
} ravel_cursor;

/* The row at `position` (0 .. count-1) of an epoch. For one seed and epoch it is a permutation of 0 .. count-1. */
RAVEL_API int64_t ravel_order_row(const ravel_order *order, int64_t epoch, int64_t position);

/* How many rows an update that wants `wanted` gets from `cursor` on: `wanted`, less at the end of the last epoch, 0
 * when the stream is over. An update may run over the end of an epoch. *next is the cursor after it. */
RAVEL_API int64_t ravel_order_take(const ravel_order *order, ravel_cursor cursor, int64_t wanted, ravel_cursor *next);

/* The rows first .. first+count-1 after the cursor, into rows[count]. */
RAVEL_API void ravel_order_rows(const ravel_order *order, ravel_cursor cursor, int64_t first, int64_t count,
                                int64_t *rows);

/* Where part `part` of `parts` begins when `total` things are dealt in runs of nearly equal length: its own run is
 * ravel_share(total, parts, part) .. ravel_share(total, parts, part + 1) - 1. */
RAVEL_API int64_t ravel_share(int64_t total, int64_t parts, int64_t part);

/* The cursor with what it is a cursor of, as one JSON object:
 *     {"epoch":2,"position":512,"count":10000,"seed":"7","shuffle":true}
 * Returns the length that it needs, like snprintf. */
RAVEL_API size_t ravel_cursor_format(const ravel_order *order, ravel_cursor cursor, char *text, size_t bytes);

/* The reverse. E_DATA if it is no such object or the place is not in the stream; E_MISMATCH if it was made with
 * another count, seed or shuffle, since the stream would not be the same. */
RAVEL_API ravel_status ravel_cursor_parse(const ravel_order *order, const char *text, size_t bytes,
                                          ravel_cursor *cursor, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
