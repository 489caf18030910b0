/* train/run/data.h: the data of a run: checked, all of it, before the first update, and watched for changes after.
 *
 *     train_data_open(path, comm, &progress, &file, &err);     size and digest, kept in checkpoints
 *     train_data_check(&rules, comm, &progress, &found, &err); every row is read once; all problems in one error
 *     ... after every update: train_data_changed(&file)
 */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <ravel/comm.h>
#include <ravel/plan.h>
#include <ravel/source.h>

/* Progress of a long step; `call` may be NULL. */
typedef struct train_progress {
    void (*call)(void *user, const char *what, double done, double total);
    void *user;
    const volatile int *stop; /* not 0: give up, nothing would be lost; may be NULL */
} train_progress;

/* A file as it was when the run opened it. */
typedef struct train_data_file {
    const char *path; /* NULL: the run has no data file */
    int64_t bytes;
    uint64_t digest; /* of its content */
    int64_t inode, modified_ns;
} train_data_file;

/* Collective: rank 0 reads the file, every rank gets the result. path NULL: no file. `path` must outlive *file. */
ravel_status train_data_open(const char *path, ravel_comm *comm, const train_progress *progress, train_data_file *file,
                             ravel_error *err);
/* Whether the file has changed. */
int train_data_changed(const train_data_file *file);

/* Rows of two samples, the chosen answer first (ravel/source.h), as one sample each, so that packing never parts a pair.
 * Fields: tokens, loss_mask, and `chosen`, how many tokens are the chosen answer's. Takes `inner` over, also on an error. A row
 * that is not two samples is E_DATA. */
ravel_status train_pair_source(ravel_source *inner, ravel_source **source, ravel_error *err);
/* Opens a data file or mock data, as pairs where asked. */
ravel_status train_data_source(const ravel_source_options *options, int pairs, ravel_source **source, ravel_error *err);

typedef struct train_data_rules {
    const ravel_source_options *source; /* its bad_rows and truncate are honoured */
    int32_t pairs;                      /* rows are pairs */
    const ravel_plan_options *plan;     /* budget, align, cp, cp_pool, oversize */
    int32_t widest;                     /* the most ranks that share a sample: each has the budget; 0 means 1 */
    int64_t most;                       /* rows to check; 0: all */
} train_data_rules;

typedef struct train_data_found {
    int64_t rows, samples, tokens, loss_tokens;
    int64_t longest;
    int64_t bad;      /* rows that cannot be used, with bad_rows = skip */
    int64_t oversize; /* samples over the budget, with oversize = skip */
    int64_t lossless; /* samples without a token to learn */
} train_data_found;

/* Collective: each rank reads a part of the rows, and every rank gets the same result. E_DATA lists what is wrong: rows
 * that cannot be read, samples over the budget, or nothing to learn in any of them. What is skipped by choice is
 * counted in *found and logged by rank 0. */
ravel_status train_data_check(const train_data_rules *rules, ravel_comm *comm, const train_progress *progress,
                              const ravel_logger *logger, train_data_found *found, ravel_error *err);

#endif
