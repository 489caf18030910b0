/* Whole small files, for configs. */
#ifndef RAVEL_IO_FILE_H
#define RAVEL_IO_FILE_H

#include <ravel/base.h>

/* Reads `path` ("-": standard input) into fresh memory of *bytes + 1, NUL-terminated; free it with ravel__release. A
 * file of more than `most` bytes is E_DATA; one that cannot be read is E_IO, with the system's reason. */
ravel_status ravel__file_read(const char *path, size_t most, const ravel_allocator *allocator, char **data,
                              size_t *bytes, ravel_error *err);

#endif
