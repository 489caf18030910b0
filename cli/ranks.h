/* What the commands that run a model on ranks (train, eval) share: --data with several words, threads, and the ranks
 * themselves. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "cli/cli.h"

#include "train/run/config/config.h"

#include <ravel/comm.h>

/* The value of --data and --eval-data may be several words, "--data a.jsonl:0.7 b.jsonl:0.3", up to the next option:
 * they become one, in which a space of a name is "\\ ". */
typedef struct cli_joined {
    char **words;
    char *texts[8];
    int count;
} cli_joined;

/* Returns the number of words, in j->words; 0: no memory. */
int cli_join_files(int argc, char **argv, cli_joined *j);
void cli_free_joined(cli_joined *j);

typedef struct cli_ranks {
    train_config *config; /* its threads and the timeout of `comm` are set */
    ravel_comm_options *comm;
    int32_t count, busy;    /* of threads: how many, and how many of them compute at one time */
    void (*met)(int first); /* called once in every process when its ranks have met; may be NULL */
    int first;              /* = whether this process has rank 0 */
    int32_t processes;      /* = 0: ranks are threads */
    char by[8];             /* = what joins the processes: "mpi", "tcp" */
} cli_ranks;

/* As one rank of several processes, or as all ranks of this one. */
ravel_status cli_ranks_run(cli_ranks *ranks, ravel_rank_fn work, void *user, ravel_error *err);

#endif
