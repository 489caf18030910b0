/* ravel refit: the parts that its files share. */
#ifndef CLI_REFIT_H
#define CLI_REFIT_H

#include "cli/cli.h"

#include <ravel/refit.h>
#include <ravel/safetensors.h>

typedef struct refit_flags {
    const char *from, *to, *dtype;
    const char *json, *trace;
    int32_t ranks, senders, send_tp, receive_tp, updates;
    int32_t quiet;
} refit_flags;

/* Shared by all ranks of this process. */
typedef struct refit_job {
    refit_flags flags;
    ravel_refit_options options;
    ravel_comm_options comm;
    const ravel_safetensors *file; /* --from */
    int32_t dtype;                 /* that the receivers hold; -1: the file's */
    int32_t receivers;
    int to_stdout; /* JSON goes there, and nothing else */
} refit_job;

/* ---- refit_model.c: roles of ranks, and one rank's tensors ---- */

typedef struct refit_set {
    ravel_refit_tensor *tensors;
    char *names; /* of a shape's tensors */
    int64_t count, bytes;
    char *block, *spare; /* memory of a receiver */
} refit_set;

/* The piece of the file that a sender has: views of the mapped bytes. */
ravel_status refit_set_of_file(const ravel_safetensors *file, int32_t tp, int32_t index, refit_set *set,
                               ravel_error *err);
/* Memory for the same cut; dtype -1: the file's own. spare: a second set. */
ravel_status refit_set_like_file(const ravel_safetensors *file, int32_t dtype, int32_t tp, int32_t index, int spare,
                                 refit_set *set, ravel_error *err);
/* Memory for a model's shape, filled for senders. */
ravel_status refit_set_of_shape(const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index, int spare,
                                refit_set *set, ravel_error *err);
void refit_set_free(refit_set *set);

/* Compares a receiver's live set (`live`) with the file, element by element. E_CHECKSUM names the first difference. */
ravel_status refit_set_compare(const refit_set *set, const void *(*live)(const void *owner, int64_t tensor),
                               const void *owner, const ravel_safetensors *file, ravel_error *err);
/* Writes whole tensors (tp 1) with the file's metadata. */
ravel_status refit_set_write(const refit_set *set, const ravel_safetensors *file, const char *path, ravel_error *err);

/* Receivers and cuts, from the number of ranks; E_ARGUMENT if they do not go together. */
ravel_status refit_settle(refit_job *job, int32_t ranks, ravel_error *err);

/* Where a rank stands: side 0 sends, side 1 receives; tp of that side, and its place in it. */
typedef struct refit_place {
    int32_t side, tp, index, replica;
} refit_place;
refit_place refit_place_of(const refit_job *job, int32_t rank);

/* ---- refit_print.c ---- */

void refit_print_bytes(double bytes, char *text, size_t room);
void refit_print_report(const ravel_refit_report *report, int64_t update);
typedef struct refit_result {
    const refit_job *job;
    const ravel_refit_report *reports; /* [updates] */
    int64_t compared;                  /* receivers */
} refit_result;
/* As JSON. */
void refit_print_json(ravel__printer *out, const void *result);
/* Collective: all ranks' traces into one file, by rank 0. */
ravel_status refit_write_trace(ravel_comm *comm, const ravel_refit *refit, const char *path, ravel_error *err);

/* ---- refit_publish.c: --publish and --pull, commands with options of their own ---- */

int refit_publish(int argc, char **argv);
int refit_pull(int argc, char **argv);

/* A run's folder becomes that of its newest checkpoint; anything else stays. */
ravel_status refit_from(const char **from, ravel_error *err);

#endif
