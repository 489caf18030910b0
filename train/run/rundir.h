/* train/run/rundir.h: the folder of a run, and checkpoints that survive a crash at any instant.
 *
 *     RUN/
 *       config.json              the effective configuration
 *       metrics.jsonl, ...       written by the metrics sinks
 *       .lock                    held (flock) by the process that runs in it
 *       checkpoints/
 *         step-00000100/         a whole checkpoint: a Hugging Face model folder plus the trainer's state
 *         step-00000200/
 *         writing-00000300/      under way, or left by a crash; never read, removed by the next one
 *
 * A checkpoint is written aside, every file and the folder are flushed to the disk, and then it gets its name by one
 * rename. So a folder called step-N is complete, and the newest step-N is where a run goes on after any crash.
 *
 *     train_rundir_open(&dir, run, resume, &err);
 *     train_checkpoint_begin(run, step, path, &err);
 *     ... write files into the folder `path` ...
 *     train_checkpoint_commit(run, step, keep, best, &err);           or train_checkpoint_abort(run, step)
 *     train_rundir_close(&dir, worked);
 */
#ifndef TRAIN_RUNDIR_H
#define TRAIN_RUNDIR_H

#include "train/model/hf/files.h"

typedef struct train_rundir {
    char path[TRAIN_PATH];
    int lock;  /* descriptor, -1: closed */
    int fresh; /* 1: it did not exist, or was empty, before this process */
} train_rundir;

/* Makes the folder, or, to resume, finds it, and locks it. E_STATE if
 *     resume 0   it holds a run already: a run is never written over by accident
 *     resume 1   it holds no run, or a run without a checkpoint
 *     both       another process runs in it: the sentence names the process */
ravel_status train_rundir_open(train_rundir *dir, const char *path, int resume, ravel_error *err);
/* The process that runs in a folder, as it has written itself into the lock. */
typedef struct train_holder {
    long long process; /* 0: none runs; -1: not known */
    int visible;       /* it has the lock open, seen from here: its number means the same here */
    char host[128];    /* where it runs */
} train_holder;

ravel_status train_rundir_holder(const char *path, train_holder *holder, ravel_error *err);
/* E_STATE, with that sentence, where another process runs in it. */
ravel_status train_rundir_free_to_use(const char *path, ravel_error *err);
/* Whether train_rundir_open would take the folder, as far as can be said without making it. */
ravel_status train_rundir_check(const char *path, int resume, ravel_error *err);
/* Unlocks. keep 0: the run made nothing, so a folder that was made for it is removed. */
void train_rundir_close(train_rundir *dir, int keep);

/* Makes the folder to write into: path[TRAIN_PATH]. */
ravel_status train_checkpoint_begin(const char *run, int64_t step, char *path, ravel_error *err);
/* Flushes, renames, and removes all but the newest `keep` (0: keep all) and `best` (-1: none), a step that is kept
 * whatever its age. On an error, the earlier checkpoints are untouched. */
ravel_status train_checkpoint_commit(const char *run, int64_t step, int64_t keep, int64_t best, ravel_error *err);
/* After an error: removes the folder, where it is there. */
void train_checkpoint_abort(const char *run, int64_t step);

/* The newest complete checkpoint: its step and folder (TRAIN_PATH bytes). E_END when there is none. */
ravel_status train_checkpoint_latest(const char *run, int64_t *step, char *path, ravel_error *err);
int64_t train_checkpoint_count(const char *run);
/* The folder of a step's checkpoint, whether it exists or not. */
ravel_status train_checkpoint_folder(const char *run, int64_t step, char *path, ravel_error *err);

#endif
