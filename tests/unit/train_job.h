/* Whole training runs for tests: a small configuration, a run on threads, and the curves that it wrote. */
#ifndef TESTS_TRAIN_JOB_H
#define TESTS_TRAIN_JOB_H

#include "tests/unit/check.h"

#include "train/run/grpo/grpo.h"
#include "train/run/sft/sft.h"

#include <ravel/comm.h>

enum { JOB_STEPS = 50 };

/* A metric, update by update. */
typedef struct curve {
    double values[4 * JOB_STEPS];
    int count;
} curve;

typedef struct job {
    train_kind kind;
    const train_config *config;
    train_summary summary;
    const volatile int *stop;
} job;

/* A small model on the sorting task, SFT or GRPO. */
void job_config(train_config *config, const char *folder);
/* A folder of its own under /tmp, and its end. */
void job_folder(char path[64]);
void job_wipe(const char *path);

/* A file of preference pairs, as token ids of a byte model. */
enum { JOB_PAIRS = 24 };
void job_pairs(char path[64]);

/* What every rank runs: a ravel_threads_run function over a job. */
ravel_status job_work(ravel_comm *comm, void *user, ravel_error *err);
/* The whole run on `ranks` ranks, and one of its metrics; false where it failed. */
bool job_run(const train_config *config, train_kind kind, int32_t ranks, const char *metric, curve *c);
/* A metric of every update, from metrics.jsonl; a step that is there twice (after a resume) counts once, the last. */
void job_curve(const char *folder, const char *metric, curve *c);
/* The greatest relative difference; infinite where the lengths differ or there is nothing. */
double curve_distance(const curve *a, const curve *b);

#endif
