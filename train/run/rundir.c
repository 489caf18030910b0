/* The run folder. The order matters: data before names, flush before rename, rename before removing what is old. */
#include "train/run/rundir.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include "base/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static ravel_status step_path(char *out, const char *run, const char *word, int64_t step, ravel_error *err) {
    RAVEL_ASSERT(step >= 0 && word[0]);
    char name[64];
    (void)snprintf(name, sizeof name, "checkpoints/%s-%08lld", word, (long long)step);
    return train_path_join(out, run, name, err);
}

static ravel_status flush_entry(const char *path, const char *name, void *user, ravel_error *err) {
    (void)name, (void)user;
    return train_file_flush(path, err);
}

/* ---- the lock ------------------------------------------------------------------------------------------- */

/* One line that identifies a process: boot id, process id, and the host's name for the message. */
static void describe_process(char *text, size_t room) {
    char boot[64] = "unknown", host[128] = "this machine";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
    if (fd >= 0) close(fd);
    if (got > 0) boot[got] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(text, room, "%s %lld %s\n", boot, (long long)getpid(), host);
}

typedef struct opened {
    struct stat file;
    int found;
} opened;

static ravel_status compare_file(const char *path, const char *name, void *user, ravel_error *err) {
    opened *o = user;
    struct stat info;
    (void)name, (void)err;
    if (stat(path, &info) == 0) o->found |= info.st_dev == o->file.st_dev && info.st_ino == o->file.st_ino;
    return RAVEL_OK;
}

/* Who holds a lock. A number of another machine or container means another process here, or none. */
static train_holder holder_of(int fd) {
    char theirs[256] = "", own[256], boot[64] = "", folder[64];
    train_holder h = {.process = -1};
    opened o = {.found = 0};
    ssize_t got = pread(fd, theirs, sizeof theirs - 1, 0);
    if (got > 0) theirs[got] = '\0';
    describe_process(own, sizeof own);
    if (sscanf(theirs, "%63s %lld %127s", boot, &h.process, h.host) != 3) return (train_holder){.process = -1};
    (void)snprintf(folder, sizeof folder, "/proc/%lld/fd", h.process);
    if (fstat(fd, &o.file) == 0) (void)train_folder_walk(folder, compare_file, &o, NULL);
    h.visible = o.found;
    if (strncmp(own, boot, strlen(boot)) == 0) (void)snprintf(h.host, sizeof h.host, "this machine");
    return h;
}

ravel_status train_rundir_holder(const char *run, train_holder *holder, ravel_error *err) {
    char path[TRAIN_PATH];
    *holder = (train_holder){0};
    ravel_status status = train_path_join(path, run, ".lock", err);
    int fd = status ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) *holder = holder_of(fd);
    close(fd);
    return RAVEL_OK;
}

static ravel_status in_use(const char *run, const train_holder *h, ravel_error *err) {
    if (h->process < 0) return ravel_error_set(err, RAVEL_E_STATE, "%s is in use by another process", run);
    return ravel_error_set(err, RAVEL_E_STATE,
                           "%s is in use by process %lld on %s; wait for it, or end it with ravel stop %s, and then "
                           "resume",
                           run, h->process, h->host, run);
}

ravel_status train_rundir_free_to_use(const char *run, ravel_error *err) {
    train_holder h;
    ravel_status status = train_rundir_holder(run, &h, err);
    return status || h.process == 0 ? status : in_use(run, &h, err);
}

static ravel_status take_lock(train_rundir *dir, ravel_error *err) {
    char path[TRAIN_PATH], text[256];
    ravel_status status = train_path_join(path, dir->path, ".lock", err);
    if (status) return status;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return train_file_error(err, "made", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const train_holder h = errno == EWOULDBLOCK ? holder_of(fd) : (train_holder){0};
        status = h.process ? in_use(dir->path, &h, err) : train_file_error(err, "locked", path);
        close(fd);
        return status;
    }
    describe_process(text, sizeof text);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, strlen(text), 0) < 0) { /* the flock is the lock */
    }
    RAVEL_ASSERT(fd >= 0 && dir->lock == -1);
    dir->lock = fd;
    return RAVEL_OK;
}

/* ---- the run -------------------------------------------------------------------------------------------- */

/* Whether the folder holds a run to resume, or none. */
static ravel_status check_folder(const char *path, const char *config, int resume, ravel_error *err) {
    int64_t step;
    char newest[TRAIN_PATH];
    int is_run = train_path_exists(config), saved = !train_checkpoint_latest(path, &step, newest, NULL);
    if (resume ? is_run && saved : !is_run) return RAVEL_OK;
    const char *why = "holds a run already; resume it, or choose another folder";
    if (!saved) why = "holds a run already, without a checkpoint; choose another folder, or remove it first";
    if (resume) why = "has no checkpoint to resume from; remove it, and start again without --resume";
    if (!is_run) why = "is not a run that can be resumed: it has no config.json";
    return ravel_error_set(err, RAVEL_E_STATE, "%s %s", path, why);
}

ravel_status train_rundir_check(const char *path, int resume, ravel_error *err) {
    char config[TRAIN_PATH];
    ravel_status status = train_path_join(config, path, "config.json", err);
    if (!status) status = train_rundir_free_to_use(path, err);
    return status ? status : check_folder(path, config, resume, err);
}

ravel_status train_rundir_open(train_rundir *dir, const char *path, int resume, ravel_error *err) {
    char config[TRAIN_PATH], checkpoints[TRAIN_PATH];
    *dir = (train_rundir){.lock = -1};
    ravel_status status = train_path_join(checkpoints, path, "checkpoints", err);
    if (!status) status = train_path_join(config, path, "config.json", err);
    if (status) return status;
    (void)snprintf(dir->path, sizeof dir->path, "%s", path);
    dir->fresh = !train_path_exists(path) || train_folder_is_empty(path);
    if (resume && !train_path_exists(config)) /* a run that is only just starting has no config.json yet */
        status = train_rundir_check(path, 1, err);
    else if (!resume)
        status = ravel__folder_make(path, err);
    if (!status)
        status = take_lock(dir, err); /* before a missing checkpoint is an error: another process may work at it */
    if (!status) status = check_folder(path, config, resume, err);
    if (!status) status = ravel__folder_make(checkpoints, err);
    if (status) train_rundir_close(dir, 0);
    return status;
}

void train_rundir_close(train_rundir *dir, int keep) {
    if (dir->lock < 0) return;
    RAVEL_ASSERT(dir->path[0]);
    if (!keep && dir->fresh && !train_folder_remove(dir->path, NULL) && strncmp(dir->path, "runs/", 5) == 0)
        (void)rmdir("runs"); /* of a run without a name; it stays if it holds others */
    close(dir->lock);
    dir->lock = -1;
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
    return step_of(name, "writing") < 0 ? RAVEL_OK : train_folder_remove(path, err);
}

ravel_status train_checkpoint_begin(const char *run, int64_t step, char *path, ravel_error *err) {
    char folder[TRAIN_PATH];
    ravel_status status = train_path_join(folder, run, "checkpoints", err);
    if (!status) status = step_path(path, run, "writing", step, err);
    if (!status) status = ravel__folder_make(folder, err);
    if (!status) status = train_folder_walk(folder, remove_unfinished, NULL, err);
    if (!status && mkdir(path, 0777) != 0) status = train_file_error(err, "made", path);
    return status;
}

void train_checkpoint_abort(const char *run, int64_t step) {
    char path[TRAIN_PATH];
    if (step_path(path, run, "writing", step, NULL) == RAVEL_OK) (void)train_folder_remove(path, NULL);
}

/* The checkpoints of a run: the newest, how many there are, and the oldest of them, both without `best`. */
typedef struct found {
    int64_t count, oldest, newest, best;
} found;

static ravel_status note_step(const char *path, const char *name, void *user, ravel_error *err) {
    found *f = user;
    (void)path, (void)err;
    int64_t step = step_of(name, "step");
    if (step < 0) return RAVEL_OK;
    f->newest = train__max(f->newest, step);
    RAVEL_ASSERT(f->count >= 0 && f->newest >= step);
    if (step == f->best) return RAVEL_OK;
    if (f->count == 0 || step < f->oldest) f->oldest = step;
    f->count++;
    return RAVEL_OK;
}

static ravel_status find_steps(const char *run, int64_t best, found *f, ravel_error *err) {
    char folder[TRAIN_PATH];
    *f = (found){.newest = -1, .best = best};
    RAVEL_ASSERT(best >= -1);
    ravel_status status = train_path_join(folder, run, "checkpoints", err);
    return status ? status : train_folder_walk(folder, note_step, f, err);
}

static ravel_status remove_step(const char *run, int64_t step, ravel_error *err) {
    char path[TRAIN_PATH], aside[TRAIN_PATH];
    ravel_status status = step_path(path, run, "step", step, err);
    if (!status) status = step_path(aside, run, "writing", step, err);
    /* Renamed first: a crash in the middle of removing leaves nothing that looks complete. */
    if (!status && rename(path, aside) != 0) status = train_file_error(err, "renamed", path);
    return status ? status : train_folder_remove(aside, err);
}

/* Removes the oldest until `keep` are left: one, as a rule, since this is called after every checkpoint. */
static ravel_status prune(const char *run, int64_t keep, int64_t best, ravel_error *err) {
    found f;
    ravel_status status = find_steps(run, best, &f, err);
    while (!status && keep > 0 && f.count > keep) {
        status = remove_step(run, f.oldest, err);
        RAVEL_ASSERT(f.oldest != best);
        if (!status) status = find_steps(run, best, &f, err);
    }
    return status;
}

static ravel_status publish(const char *run, int64_t step, ravel_error *err) {
    char path[TRAIN_PATH], final[TRAIN_PATH], folder[TRAIN_PATH];
    ravel_status status = step_path(path, run, "writing", step, err);
    if (!status) status = train_folder_walk(path, flush_entry, NULL, err);
    if (!status) status = train_file_flush(path, err);
    if (!status) status = step_path(final, run, "step", step, err);
    if (!status) status = train_path_join(folder, run, "checkpoints", err);
    if (status) return status;
    if (rename(path, final) != 0) {
        /* The same step again, after a resume: old and new are exchanged by one rename, then the old one is removed. */
        if (renameat2(AT_FDCWD, path, AT_FDCWD, final, RENAME_EXCHANGE) != 0)
            return train_file_error(err, "renamed", path);
        status = train_folder_remove(path, err);
    }
    return status ? status : train_file_flush(folder, err);
}

ravel_status train_checkpoint_commit(const char *run, int64_t step, int64_t keep, int64_t best, ravel_error *err) {
    RAVEL_ASSERT(step >= 0 && keep >= 0);
    ravel_status status = publish(run, step, err);
    return status ? status : prune(run, keep, best, err);
}

ravel_status train_checkpoint_folder(const char *run, int64_t step, char *path, ravel_error *err) {
    return step_path(path, run, "step", step, err);
}

int64_t train_checkpoint_count(const char *run) {
    found f;
    return find_steps(run, -1, &f, NULL) ? 0 : f.count;
}

ravel_status train_checkpoint_latest(const char *run, int64_t *step, char *path, ravel_error *err) {
    found f;
    ravel_status status = find_steps(run, -1, &f, err);
    if (status) return status;
    if (f.newest < 0) return ravel_error_set(err, RAVEL_E_END, "%s has no checkpoint", run);
    status = step_path(path, run, "step", f.newest, err);
    if (!status) *step = f.newest;
    return status;
}
