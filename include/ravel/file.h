/* ravel/file.h: whole small files, and folders.
 *
 * For configurations, cursors and other text that fits memory. Data sets are read through lengths.h and source.h,
 * weights through safetensors.h.
 *
 *     char *text = NULL;
 *     size_t bytes = 0;
 *     if (ravel_file_read("config.json", 1 << 20, NULL, &text, &bytes, &err)) ...
 *     ...
 *     ravel_file_free(NULL, text, bytes);
 */
#ifndef RAVEL_FILE_H
#define RAVEL_FILE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `path` ("-": standard input) into fresh memory, with a NUL behind the last byte that *bytes does not count.
 * `most`: the largest size that is accepted, in bytes; a larger file is E_DATA. A file that cannot be opened or read is
 * E_IO with the system's reason; a folder is E_IO too. Pipes and files of unknown size are read to their end. */
RAVEL_API ravel_status ravel_file_read(const char *path, size_t most, const ravel_allocator *allocator, char **text,
                                       size_t *bytes, ravel_error *err);
/* Frees what ravel_file_read returned; the same allocator and size. NULL does nothing. With a NULL allocator it is what
 * free() does. */
RAVEL_API void ravel_file_free(const ravel_allocator *allocator, char *text, size_t bytes);

/* Where a new version of `path` belongs. Symbolic links are followed, also those whose target does not exist yet, so
 * that a link stays a link. *replace is 1 where there is a regular file or nothing: write a file beside `target` and
 * rename it. It is 0 for a device, a pipe or a socket, which must be opened and written to and never replaced. A folder
 * is E_IO. */
RAVEL_API ravel_status ravel_file_resolve(const char *path, char *target, size_t room, int *replace, ravel_error *err);

/* Makes the folder and all folders above it, like mkdir -p. A folder that exists is no error; a file of that name, or
 * an empty name, is. */
RAVEL_API ravel_status ravel_folder_make(const char *path, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
