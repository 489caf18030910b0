/* train/run/rundir.h: the folder of a run, and checkpoints that survive a crash at any instant.
 *
 *     RUN/
 *       config.json              the effective configuration
 *       metrics.jsonl, ...       written by the metrics sinks
 *       checkpoints/
 *         step-00000100/         a whole checkpoint: a Hugging Face model folder plus the trainer's state
 *         step-00000200/
 *         writing-00000300/      under way, or left by a crash; never read, removed by the next one
 *
 * A checkpoint is written aside, every file and the folder are flushed to the disk, and then it gets its name by one
 * rename. So a folder called step-N is complete, and whatever dies when, the newest step-N is where to go on.
 *
 *     train_checkpoint *c;
 *     train_checkpoint_begin(run, step, NULL, &c, &err);
 *     ... write files under train_checkpoint_path(c) ...
 *     train_checkpoint_commit(c, keep, &err);           or train_checkpoint_abort(c)
 */
#ifndef TRAIN_RUNDIR_H
#define TRAIN_RUNDIR_H

#include <ravel/base.h>

enum { TRAIN_PATH = 4096 };

/* Makes the folder and its checkpoints folder where they are missing. E_STATE if it holds a run already and `resume` is
 * 0: a run is never written over by accident. */
ravel_status train_rundir_open(const char *run, int resume, ravel_error *err);

/* A file of the run, written aside, flushed and renamed: config.json, environment.json. */
ravel_status train_rundir_write(const char *run, const char *name, const char *text, size_t bytes, ravel_error *err);

typedef struct train_checkpoint train_checkpoint;

ravel_status train_checkpoint_begin(const char *run, int64_t step, const ravel_allocator *allocator,
                                    train_checkpoint **checkpoint, ravel_error *err);
/* The folder to write into; lives until commit or abort. */
const char *train_checkpoint_path(const train_checkpoint *checkpoint);
/* Flushes, renames, and removes all but the newest `keep` (0: keep all). Frees the handle, also on an error; the
 * earlier checkpoints are then untouched. */
ravel_status train_checkpoint_commit(train_checkpoint *checkpoint, int64_t keep, ravel_error *err);
void train_checkpoint_abort(train_checkpoint *checkpoint);

/* The newest complete checkpoint: its step and folder (TRAIN_PATH bytes). E_END when there is none. */
ravel_status train_checkpoint_latest(const char *run, int64_t *step, char *path, ravel_error *err);

#endif
