/* train/model/hf/files.h: paths, folders and small files of models and runs, beside those of ravel/file.h. Every error
 * names the path. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include "base/system/file.h"
#include "base/json.h"

#include <stdio.h>

enum { TRAIN_PATH = 4096 };

/* out[TRAIN_PATH] = folder/name. */
ravel_status train_path_join(char *out, const char *folder, const char *name, ravel_error *err);
int train_path_exists(const char *path);

int train_folder_is_empty(const char *path);
/* Calls `each` for every entry; its error ends the walk. */
typedef ravel_status (*train_entry_fn)(const char *path, const char *name, void *user, ravel_error *err);
ravel_status train_folder_walk(const char *folder, train_entry_fn each, void *user, ravel_error *err);
/* rm -r, without following links. */
ravel_status train_folder_remove(const char *path, ravel_error *err);

/* A file to write, or NULL with E_IO; closed, E_IO if not all of it was written. */
FILE *train_file_create(const char *path, ravel_error *err);
ravel_status train_file_close(FILE *file, const char *path, ravel_error *err);
/* The document of a JSON file of up to 16 MiB. */
ravel_status train_json_read(const char *path, ravel__json **doc, ravel_error *err);
/* Prints text[bytes] as a JSON string; 0: memory was short, and it printed an empty one. */
int train_file_quote(FILE *file, const char *text, size_t bytes);
/* fsync of a file or a folder. */
ravel_status train_file_flush(const char *path, ravel_error *err);

/* E_IO: "PATH cannot be DOING: why", from errno. */
ravel_status train_file_error(ravel_error *err, const char *doing, const char *path);

#endif
