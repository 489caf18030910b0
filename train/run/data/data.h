/* train/run/data/data.h: the data of a run: checked, all of it, before the first update, and watched for changes after.
 *
 *     train_data_open(data, comm, &progress, &file, &err);     sizes and digest, kept in checkpoints
 *     train_data_check(&rules, comm, &progress, &found, &err); every row is read once; all problems in one error
 *     ... after every update: train_data_changed(&file)
 */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <ravel/comm.h>
#include <ravel/plan.h>
#include <ravel/shape.h>
#include <ravel/source.h>

#include "train/model/hf/files.h"

/* Progress of a long step; `call` may be NULL. */
typedef struct train_progress {
    void (*call)(void *user, const char *what, double done, double total);
    void *user;
    const volatile int *stop; /* not 0: give up, nothing would be lost; may be NULL */
} train_progress;

/* Calls it; E_STATE if the user wants to stop. `progress` may be NULL. */
ravel_status train_progress_tell(const train_progress *progress, const char *what, double done, double total,
                                 ravel_error *err);

/* ---- files ---------------------------------------------------------------------------------------------- */

enum { TRAIN_FILES = 16 };

/* What --data names: "rows.jsonl", or several files, "a.jsonl b.jsonl", or "a.jsonl:0.7 b.jsonl:0.3" with the share
 * that each has of the samples. In a list "\ " is a space of a name. */
typedef struct train_files {
    char paths[TRAIN_FILES][TRAIN_PATH];
    double weights[TRAIN_FILES]; /* above 0, of any sum; 1 if none are given */
    int32_t count;
    int32_t weighted; /* weights are given, of several files */
} train_files;

/* Words as one text, malloc'ed, NULL: no memory. Between files, ' ', a space of a name is "\\ "; else `between` stands
 * between them. */
char *train_files_join(const char *const *words, int count, char between);
/* data NULL: no files. */
ravel_status train_files_parse(const char *data, train_files *files, ravel_error *err);

typedef struct train_file_state {
    int64_t bytes, inode, modified_ns;
} train_file_state;

/* The files as they were when the run opened them. */
typedef struct train_data_file {
    const char *path; /* as --data has it; NULL: the run has no data file */
    int64_t bytes;    /* of all */
    uint64_t digest;  /* of their content and weights */
    train_file_state files[TRAIN_FILES];
} train_data_file;

/* Collective: rank 0 reads the files, every rank gets the result. data NULL: no file. `data` must outlive *file. */
ravel_status train_data_open(const char *data, ravel_comm *comm, const train_progress *progress, train_data_file *file,
                             ravel_error *err);
/* Whether a file has changed. */
int train_data_changed(const train_data_file *file);

/* ---- rows ----------------------------------------------------------------------------------------------- */

typedef struct train_rows_options {
    const ravel_source_options *source; /* data: as train_files_parse takes it; or mock data */
    int32_t pairs;                      /* rows must be pairs: two samples, the chosen answer first (ravel/source.h) */
    double eval_share;                  /* of the rows of each file, that are evaluated and not learnt */
    int32_t eval_shuffle;               /* those are chosen at random, the same in every run; else the last ones */
} train_rows_options;

typedef enum train_rows_part {
    TRAIN_ROWS_ALL,   /* every row of every file once, in their order */
    TRAIN_ROWS_LEARN, /* with weights some rows several times, so that an epoch has the shares asked for */
    TRAIN_ROWS_EVAL
} train_rows_part;

/* Fields: tokens and loss_mask. With pairs, a row that is none, or whose answers are equal, is E_DATA. */
ravel_status train_rows_open(const train_rows_options *options, train_rows_part part, ravel_source **source,
                             ravel_error *err);

typedef struct train_data_rules {
    const ravel_source_options *source; /* its bad_rows and truncate are honoured */
    int32_t pairs;                      /* rows are pairs, as of train_rows_options */
    const ravel_plan_options *plan;     /* budget, align, cp, cp_pool, oversize */
    int32_t widest;                     /* the most ranks that share a sample: each has the budget; 0 means 1 */
    int64_t most;                       /* rows to check; 0: all */
} train_data_rules;

typedef struct train_data_found {
    int64_t rows, samples, tokens, loss_tokens; /* samples: a pair is one */
    int64_t longest;  /* sample; of pairs both answers together, as they are in one micro-batch */
    int64_t sequence; /* longest sequence */
    int64_t bad;      /* rows that cannot be used, with bad_rows = skip */
    int64_t oversize; /* samples over the budget, with oversize = skip */
    int64_t lossless; /* samples without a token to learn */
    int64_t inserted; /* answers that begin with text of the chat template's own */
} train_data_found;

/* Warns if sequences are longer than the model was made for. */
void train_data_warn_long(const ravel_shape *shape, int64_t longest, const ravel_logger *logger);

/* Collective: each rank reads a part of the rows, and every rank gets the same result. E_DATA lists what is wrong: rows
 * that cannot be read, samples over the budget, or nothing to learn in any of them. What is skipped by choice is
 * counted in *found and logged by rank 0. */
ravel_status train_data_check(const train_data_rules *rules, ravel_comm *comm, const train_progress *progress,
                              const ravel_logger *logger, train_data_found *found, ravel_error *err);

#endif
