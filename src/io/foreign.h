/* Files that are not text: recognised by their first bytes, so that the error names the format and the command that
 * converts it to text. */
#ifndef RAVEL_IO_FOREIGN_H
#define RAVEL_IO_FOREIGN_H

#include <ravel/base.h>

enum { RAVEL__FOREIGN_BYTES = 16 }; /* how many of the first bytes are looked at */

typedef enum ravel__wanted {
    RAVEL__WANTED_TEXT,  /* of lengths */
    RAVEL__WANTED_ARRAY, /* the same, or NPY */
    RAVEL__WANTED_ROWS   /* JSON lines */
} ravel__wanted;

/* RAVEL_OK for text; E_DATA for gzip, zstd, xz, bzip2, zip (npz), Parquet, Arrow, HDF5, NPY, UTF-16 and other binary
 * data. */
ravel_status ravel__foreign_check(const char *name, const char *bytes, size_t count, ravel__wanted wanted,
                                  ravel_error *err);

#endif
