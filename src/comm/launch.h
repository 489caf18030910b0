/* Who started this process, and as which rank: what `auto` looks at. */
#ifndef RAVEL_COMM_LAUNCH_H
#define RAVEL_COMM_LAUNCH_H

#include <ravel/comm.h>

enum { RAVEL__LAUNCH_TEXT = 320 };

/* Where the ranks of a TCP world meet, and which one this is. */
typedef struct ravel__launch {
    const char *by;                      /* "option", "slurm", "torchrun" */
    int32_t rank, ranks;                 /* rank -1: whichever is free */
    char rendezvous[RAVEL__LAUNCH_TEXT]; /* host:port, unix:..., file:/path */
} ravel__launch;

/* The kind that `auto` means: "self", "mpi" or "tcp". */
const char *ravel__launch_kind(const ravel_comm_options *options);
/* From the options, else from the launcher's environment. E_ARGUMENT says what is missing. */
ravel_status ravel__launch_find(const ravel_comm_options *options, ravel__launch *launch, ravel_error *err);
/* Whether an MPI launcher's mark is in the environment. */
int ravel__launch_has_mpi(void);

#endif
