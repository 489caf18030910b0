/* Columns of integers from files, as commands take them: lengths (ravel/lengths.h) from memory, and any one column. */
#ifndef RAVEL_IO_COLUMNS_H
#define RAVEL_IO_COLUMNS_H

#include <ravel/lengths.h>

/* One column of any integers: home ranks, group ids, update ids. `name` is the column or member that is looked for
 * ("home" also finds "home_rank"), and stands in the sentences; a file with one column needs no name. */
typedef struct ravel__column {
    int64_t count;
    const int64_t *values; /* [count], min .. max as asked for */
} ravel__column;

/* ravel_lengths_read from memory; `name` stands in the sentences (NULL: "lengths"). */
ravel_status ravel__lengths_parse(const char *name, const void *data, size_t bytes, const ravel_read_options *options,
                                  ravel_lengths **lengths, ravel_error *err);
ravel_status ravel__column_read(const char *path, const char *name, int64_t min, int64_t max,
                                const ravel_read_options *options, ravel__column **column, ravel_error *err);
void ravel__column_free(ravel__column *column);

#endif
