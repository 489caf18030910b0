/* One or two columns of integers, and the request to the readers that fill them.
 *
 *     source --> csv.c   \
 *     source --> jsonl.c  > ravel__integers_push --> two growing arrays
 *     source --> npy.c   /
 *
 * A reader is a function and a row of the table in lengths.c. It finds out which columns to take (from the ask and the
 * file's own names), says so with ravel__integers_choose, and pushes row by row; range checks are here. */
#ifndef RAVEL_IO_INTEGERS_H
#define RAVEL_IO_INTEGERS_H

#include "io/source.h"

#include "base/json.h"

#include <ravel/base.h>

typedef struct ravel__ask {
    const char *what;              /* "length", "home": for sentences */
    const char *field;             /* the caller's choice: "a" or "a,b"; NULL: by `names` */
    const char *const (*names)[2]; /* well-known names, best first, second NULL for one column; {NULL} ends */
    int64_t min, max;              /* of one column */
    int32_t pairs;                 /* two columns may be taken: each from 0, their sum within min .. max */
    int32_t reserved;
    int64_t limit; /* rows; 0: all */
    const ravel_allocator *allocator;
} ravel__ask;

typedef struct ravel__integers {
    const ravel__ask *ask;
    int64_t *columns[2], *lines; /* lines: of each row in its file, from 1; NULL if the format has none */
    int64_t rooms[2], line_room, count;
    int64_t line;  /* of the row that is pushed next, set by the reader; 0: the format has no lines */
    int32_t width; /* 1 or 2, after ravel__integers_choose */
    int32_t reserved;
    char label[96];
} ravel__integers;

void ravel__integers_init(ravel__integers *table, const ravel__ask *ask);
void ravel__integers_free(ravel__integers *table);
/* One column (second NULL) or two, with their names in the file. */
void ravel__integers_choose(ravel__integers *table, const char *first, const char *second);
/* `second` is not looked at with one column. The E_DATA message has no file and line; the reader prepends them. */
ravel_status ravel__integers_push(ravel__integers *table, int64_t first, int64_t second, ravel_error *err);
static inline int ravel__integers_full(const ravel__integers *table) {
    return table->ask->limit > 0 && table->count >= table->ask->limit;
}

/* Whether two names are equal when case and all characters other than letters and digits are ignored: "Prompt Len" and
 * "prompt_len". */
int ravel__same_name(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* "a,b" into parts: 1 or 2, 0 if the text is neither. Parts are views into `field`. */
int ravel__field_parts(const char *field, const char *parts[2], size_t bytes[2]);

/* A whole number, possibly written as 12.0; the whole text must be it. */
int ravel__parse_integer(const char *text, size_t bytes, int64_t *value);

ravel_status ravel__csv_read(ravel__source *source, ravel__integers *table, ravel_error *err);
ravel_status ravel__jsonl_read(ravel__source *source, ravel__integers *table, ravel_error *err);
ravel_status ravel__npy_read(ravel__source *source, ravel__integers *table, ravel_error *err);

#endif
