/* The run folder. All the care is in the order of things: data, then names; flush before rename, rename before removing
 * what is old. */
#include "train/run/rundir.h"

#include "train/kernels/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct train_checkpoint {
    const ravel_allocator *allocator;
    int64_t step;
    char run[TRAIN_PATH], path[TRAIN_PATH];
};

static ravel_status system_error(ravel_error *err, const char *doing, const char *path) {
    return ravel_error_set(err, RAVEL_E_IO, "%s cannot be %s: %s", path, doing, strerror(errno));
}

static ravel_status join(char *out, const char *a, const char *b, ravel_error *err) {
    if ((size_t)snprintf(out, TRAIN_PATH, "%s/%s", a, b) < TRAIN_PATH) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.100s.../%s is over %d bytes", a, b, TRAIN_PATH);
}

static ravel_status step_path(char *out, const char *run, const char *word, int64_t step, ravel_error *err) {
    char name[64];
    (void)snprintf(name, sizeof name, "checkpoints/%s-%08lld", word, (long long)step);
    return join(out, run, name, err);
}

/* mkdir -p */
static ravel_status make_folder(const char *path, ravel_error *err) {
    char part[TRAIN_PATH];
    size_t n = strlen(path);
    if (n >= sizeof part) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.100s... is too long", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return system_error(err, "made", part);
    }
    struct stat s;
    if (stat(path, &s) != 0 || !S_ISDIR(s.st_mode)) {
        errno = ENOTDIR;
        return system_error(err, "used as a folder", path);
    }
    return RAVEL_OK;
}

/* Flushes a file or a folder. */
static ravel_status flush(const char *path, ravel_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return system_error(err, "opened", path);
    int failed = fsync(fd);
    close(fd);
    return failed ? system_error(err, "flushed to the disk", path) : RAVEL_OK;
}

/* Calls `each` for every entry of a folder; its own error ends the walk. */
static ravel_status walk(const char *folder,
                         ravel_status (*each)(const char *path, const char *name, void *user, ravel_error *err),
                         void *user, ravel_error *err) {
    DIR *dir = opendir(folder);
    if (!dir) return system_error(err, "read", folder);
    ravel_status status = RAVEL_OK;
    char path[TRAIN_PATH];
    for (struct dirent *e; !status && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        status = join(path, folder, e->d_name, err);
        if (!status) status = each(path, e->d_name, user, err);
    }
    closedir(dir);
    return status;
}

static ravel_status flush_entry(const char *path, const char *name, void *user, ravel_error *err) {
    (void)name;
    (void)user;
    return flush(path, err);
}

static ravel_status unlink_entry(const char *path, const char *name, void *user, ravel_error *err) {
    (void)name;
    (void)user;
    return unlink(path) == 0 ? RAVEL_OK : system_error(err, "removed", path);
}

/* A checkpoint folder holds files only. */
static ravel_status remove_folder(const char *path, ravel_error *err) {
    ravel_status status = walk(path, unlink_entry, NULL, err);
    if (!status && rmdir(path) != 0) status = system_error(err, "removed", path);
    return status;
}

/* ---- the run -------------------------------------------------------------------------------------------- */

ravel_status train_rundir_open(const char *run, int resume, ravel_error *err) {
    char path[TRAIN_PATH], config[TRAIN_PATH];
    ravel_status status = join(path, run, "checkpoints", err);
    if (!status) status = join(config, run, "config.json", err);
    if (status) return status;
    if (!resume && access(config, F_OK) == 0)
        return ravel_error_set(err, RAVEL_E_STATE, "%s holds a run already; resume it, or choose another folder", run);
    return make_folder(path, err);
}

static ravel_status write_all(const char *path, const char *text, size_t bytes, ravel_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(err, "made", path);
    int failed = 0;
    while (bytes > 0 && !failed) {
        ssize_t put = write(fd, text, bytes);
        if (put < 0 && errno == EINTR) continue;
        failed = put <= 0;
        if (!failed) {
            text += put;
            bytes -= (size_t)put;
        }
    }
    failed |= fsync(fd) != 0;
    failed |= close(fd) != 0;
    return failed ? system_error(err, "written", path) : RAVEL_OK;
}

ravel_status train_rundir_write(const char *run, const char *name, const char *text, size_t bytes, ravel_error *err) {
    char path[TRAIN_PATH], aside[TRAIN_PATH], aside_name[256];
    (void)snprintf(aside_name, sizeof aside_name, ".%s.new", name);
    ravel_status status = join(path, run, name, err);
    if (!status) status = join(aside, run, aside_name, err);
    if (!status) status = write_all(aside, text, bytes, err);
    if (status) return status;
    if (rename(aside, path) != 0) return system_error(err, "renamed", aside);
    return flush(run, err);
}

/* ---- checkpoints ---------------------------------------------------------------------------------------- */

/* The number of "WORD-00000100", or -1 when the name is something else. */
static int64_t step_of(const char *name, const char *word) {
    size_t n = strlen(word);
    char *end;
    if (strncmp(name, word, n) != 0 || name[n] != '-' || name[n + 1] < '0' || name[n + 1] > '9') return -1;
    long long step = strtoll(name + n + 1, &end, 10);
    return *end ? -1 : step;
}

static ravel_status remove_unfinished(const char *path, const char *name, void *user, ravel_error *err) {
    (void)user;
    return step_of(name, "writing") < 0 ? RAVEL_OK : remove_folder(path, err);
}

ravel_status train_checkpoint_begin(const char *run, int64_t step, const ravel_allocator *allocator,
                                    train_checkpoint **checkpoint, ravel_error *err) {
    train_checkpoint *c = train__calloc(allocator, 1, sizeof *c);
    if (!c) return train__no_memory(err, sizeof *c, "a checkpoint");
    char folder[TRAIN_PATH];
    c->allocator = allocator;
    c->step = step;
    ravel_status status = join(folder, run, "checkpoints", err);
    if (!status) status = step_path(c->path, run, "writing", step, err);
    if (!status) status = make_folder(folder, err);
    if (!status) status = walk(folder, remove_unfinished, NULL, err);
    if (!status && mkdir(c->path, 0777) != 0) status = system_error(err, "made", c->path);
    if (status) {
        train__release(allocator, c, sizeof *c);
        return status;
    }
    (void)snprintf(c->run, sizeof c->run, "%s", run);
    *checkpoint = c;
    return RAVEL_OK;
}

const char *train_checkpoint_path(const train_checkpoint *checkpoint) {
    return checkpoint->path;
}

void train_checkpoint_abort(train_checkpoint *c) {
    if (!c) return;
    (void)remove_folder(c->path, NULL);
    train__release(c->allocator, c, sizeof *c);
}

/* How many checkpoints there are, the oldest and the newest. */
typedef struct found {
    int64_t count, oldest, newest;
} found;

static ravel_status note_step(const char *path, const char *name, void *user, ravel_error *err) {
    (void)path;
    (void)err;
    found *f = user;
    int64_t step = step_of(name, "step");
    if (step < 0) return RAVEL_OK;
    if (f->count == 0 || step < f->oldest) f->oldest = step;
    if (f->count == 0 || step > f->newest) f->newest = step;
    f->count++;
    return RAVEL_OK;
}

static ravel_status find_steps(const char *run, found *f, ravel_error *err) {
    char folder[TRAIN_PATH];
    *f = (found){0};
    ravel_status status = join(folder, run, "checkpoints", err);
    return status ? status : walk(folder, note_step, f, err);
}

static ravel_status remove_step(const char *run, int64_t step, ravel_error *err) {
    char path[TRAIN_PATH], doomed[TRAIN_PATH];
    ravel_status status = step_path(path, run, "step", step, err);
    if (!status) status = step_path(doomed, run, "writing", step, err);
    /* It loses its name first: a crash in the middle of removing leaves nothing that looks complete. */
    if (!status && rename(path, doomed) != 0) status = system_error(err, "renamed", path);
    return status ? status : remove_folder(doomed, err);
}

/* The oldest goes until `keep` are left: one, as a rule, since this is called after every checkpoint. */
static ravel_status prune(const char *run, int64_t keep, ravel_error *err) {
    found f;
    ravel_status status = find_steps(run, &f, err);
    while (!status && keep > 0 && f.count > keep) {
        status = remove_step(run, f.oldest, err);
        if (!status) status = find_steps(run, &f, err);
    }
    return status;
}

static ravel_status publish(train_checkpoint *c, ravel_error *err) {
    char final[TRAIN_PATH], folder[TRAIN_PATH];
    ravel_status status = walk(c->path, flush_entry, NULL, err);
    if (!status) status = flush(c->path, err);
    if (!status) status = step_path(final, c->run, "step", c->step, err);
    if (!status) status = join(folder, c->run, "checkpoints", err);
    if (status) return status;
    if (rename(c->path, final) != 0) {
        /* The same step again, after a resume: old and new change places in one go, then the old one is removed. */
        if (renameat2(AT_FDCWD, c->path, AT_FDCWD, final, RENAME_EXCHANGE) != 0)
            return system_error(err, "renamed", c->path);
        status = remove_folder(c->path, err);
    }
    return status ? status : flush(folder, err);
}

ravel_status train_checkpoint_commit(train_checkpoint *c, int64_t keep, ravel_error *err) {
    ravel_status status = publish(c, err);
    if (status) {
        train_checkpoint_abort(c);
        return status;
    }
    status = prune(c->run, keep, err);
    train__release(c->allocator, c, sizeof *c);
    return status;
}

ravel_status train_checkpoint_latest(const char *run, int64_t *step, char *path, ravel_error *err) {
    found f;
    ravel_status status = find_steps(run, &f, err);
    if (status) return status;
    if (f.count == 0) return ravel_error_set(err, RAVEL_E_END, "%s has no checkpoint", run);
    status = step_path(path, run, "step", f.newest, err);
    if (!status) *step = f.newest;
    return status;
}
