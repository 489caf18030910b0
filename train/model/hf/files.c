#include "train/model/hf/files.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include "base/json.h"
#include "base/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ravel_status train_file_error(ravel_error *err, const char *doing, const char *path) {
    return ravel_error_set(err, RAVEL_E_IO, "%s cannot be %s: %s", path, doing, strerror(errno));
}

ravel_status train_path_join(char *out, const char *folder, const char *name, ravel_error *err) {
    if ((size_t)snprintf(out, TRAIN_PATH, "%s/%s", folder, name) < TRAIN_PATH) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.100s.../%s is over %d bytes", folder, name, TRAIN_PATH);
}

int train_path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

static int is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

ravel_status train_folder_walk(const char *folder, train_entry_fn each, void *user, ravel_error *err) {
    DIR *dir = opendir(folder);
    RAVEL_ASSERT(each);
    if (!dir) return train_file_error(err, "read", folder);
    ravel_status status = RAVEL_OK;
    char path[TRAIN_PATH];
    for (struct dirent *e; !status && (e = readdir(dir));) {
        if (is_dots(e->d_name)) continue;
        status = train_path_join(path, folder, e->d_name, err);
        if (!status) status = each(path, e->d_name, user, err);
    }
    closedir(dir);
    return status;
}

static ravel_status stop_walk(const char *path, const char *name, void *user, ravel_error *err) {
    (void)path, (void)name, (void)user, (void)err;
    return RAVEL_E_STATE;
}

int train_folder_is_empty(const char *path) {
    return train_folder_walk(path, stop_walk, NULL, NULL) == RAVEL_OK;
}

static ravel_status remove_entry(const char *path, const char *name, void *user, ravel_error *err) {
    struct stat s;
    (void)name, (void)user;
    if (lstat(path, &s) == 0 && S_ISDIR(s.st_mode)) return train_folder_remove(path, err);
    return unlink(path) == 0 ? RAVEL_OK : train_file_error(err, "removed", path);
}

ravel_status train_folder_remove(const char *path, ravel_error *err) {
    ravel_status status = train_folder_walk(path, remove_entry, NULL, err);
    if (!status && rmdir(path) != 0) status = train_file_error(err, "removed", path);
    return status;
}

/* ---- files ---------------------------------------------------------------------------------------------- */

ravel_status train_file_flush(const char *path, ravel_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return train_file_error(err, "opened", path);
    int failed = fsync(fd);
    close(fd);
    return failed ? train_file_error(err, "flushed to the disk", path) : RAVEL_OK;
}

ravel_status train_json_read(const char *path, ravel__json **doc, ravel_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    ravel_status status = ravel__file_read(path, 16 << 20, NULL, &text, &bytes, err);
    if (status) return status;
    *doc = NULL;
    status = ravel__json_parse(text, bytes, NULL, doc, err);
    ravel__file_free(NULL, text, bytes);
    if (!status) return RAVEL_OK;
    if (err) ravel_error_prefix(err, "%s", path);
    ravel__json_free(*doc);
    *doc = NULL;
    return status;
}

FILE *train_file_create(const char *path, ravel_error *err) {
    FILE *f = fopen(path, "wb");
    if (!f) (void)train_file_error(err, "written", path);
    return f;
}

ravel_status train_file_close(FILE *f, const char *path, ravel_error *err) {
    int failed = ferror(f);
    failed |= fclose(f) != 0;
    return failed ? train_file_error(err, "written", path) : RAVEL_OK;
}

int train_file_quote(FILE *f, const char *text, size_t bytes) {
    char small[512], *quoted = small;
    size_t need = ravel__json_quote(text, bytes, small, sizeof small) + 1;
    if (need > sizeof small) {
        quoted = ravel__alloc(NULL, need);
        if (quoted) (void)ravel__json_quote(text, bytes, quoted, need);
    }
    (void)fputs(quoted ? quoted : "\"\"", f);
    if (quoted != small) ravel__release(NULL, quoted, need);
    return quoted != NULL;
}
