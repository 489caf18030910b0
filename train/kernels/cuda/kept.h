/* The disk cache of the CUDA set: algorithm choices and attention plans. Internal to the set.
 * A missing or unwritable folder is no error: its content is computed again. */
#ifndef TRAIN_CUDA_KEPT_H
#define TRAIN_CUDA_KEPT_H

#include <stddef.h>

/* path = FOLDER/NAME-GPU.EXTENSION, the folder being made if needed; "" if there is none. A folder that is NULL is
 * $RAVEL_CACHE_DIR, else $XDG_CACHE_HOME/ravel, else $HOME/.cache/ravel; "" keeps nothing. */
void kept_path(const char *folder, int gpu, const char *name, const char *extension, char *path, size_t size);
/* Adds a line in one write, so that several processes may add at once. */
void kept_append(const char *path, const char *line, size_t bytes);
/* The file's whole content with a 0 behind it, to be freed; NULL if it can't be read. */
char *kept_read(const char *path, size_t *bytes);
/* Replaces the file, whole or not at all. */
void kept_write(const char *path, const void *content, size_t bytes);

#endif
