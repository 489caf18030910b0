/* train/run/run.h: shared by the training loops: the run folder, metrics and their sinks, the state that a checkpoint
 * keeps, and the end of a run.
 *
 *     train_run_open(&run, &shape, world, &err);            folder, config.json, metrics, the newest checkpoint's state
 *     while (run.state.step < run.steps && !run.stopped) {
 *         ... forward and backward of an update's micro-batches ...
 *         train_run_apply(&run, learner, &err);             sum over ranks, clip, learning rate, optimiser
 *         train_run_end_step(&run, learner, &err);          metrics, and a checkpoint when it is time
 *     }
 *     train_run_finish(&run, learner, status, &err);        the last checkpoint, also after an error
 *     train_run_free(&run);
 *
 * Every rank of the communicator calls these together.
 *
 * Every end of a run except kill -9 writes a checkpoint of the last whole update; a checkpoint that cannot be
 * written is a warning, and is tried again. A run that fails before its first update leaves no folder. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "train/learn/learner.h"
#include "train/run/config/config.h"
#include "train/run/data/data.h"
#include "train/run/metrics.h"
#include "train/run/rundir.h"

/* Given by the program around the trainer. */
typedef struct train_hooks {
    const volatile int *stop;   /* not 0: write a checkpoint and leave after this update; may be NULL */
    volatile int *save;         /* not 0: write a checkpoint after this update, and set it to 0; may be NULL */
    const ravel_logger *logger; /* remarks; may be NULL */
    const char *config_text;    /* effective configuration, for config.json */
    train_progress progress;    /* of long steps before the first update */
} train_hooks;

/* X(type, option type, name): the state of a run besides weights and moments. state.json holds these. */
#define TRAIN_STATE_LIST(X)                                                         \
    X(int64_t, I64, step)     /* updates */                                         \
    X(int64_t, I64, batch)    /* of prompts: the next one */                        \
    X(int64_t, I64, question) /* the next one that was never asked */               \
    X(int64_t, I64, version)  /* of the weights */                                  \
    X(int64_t, I64, epoch)    /* of the data */                                     \
    X(int64_t, I64, position)                                                       \
    X(int64_t, I64, skipped)    /* updates whose gradient was not finite */         \
    X(int64_t, I64, data_bytes) /* of the data file, 0: none */                     \
    X(uint64_t, U64, data_digest)                                                   \
    X(int64_t, I64, best_step)   /* with the best evaluation; 0: none */            \
    X(double, F64, best_value)   /* of it; NAN: none */                             \
    X(double, F64, reward_first) /* greedy reward before training; NAN: none */     \
    X(double, F64, eval_first)   /* evaluation's loss before training; NAN: none */ \
    X(int64_t, I64, cost_linear) /* fitted by --cost fit; all 0: not yet */         \
    X(int64_t, I64, cost_quadratic)                                                 \
    X(int64_t, I64, cost_overhead)

typedef struct train_state {
#define X(type, option, name) type name;
    TRAIN_STATE_LIST(X)
#undef X
    ravel_metrics_totals totals; /* "tokens" and so on; seconds of each phase are "time_" and its name */
} train_state;

/* Files that a loop adds to a checkpoint, such as waiting rollouts. `gather` is called on every rank before anything is
 * written, `write` then on rank 0 with the folder. `settle` is called on every rank before an update changes the
 * weights: what only the old weights could make again must be on the trainers by then. Each may be NULL. */
typedef struct train_addition {
    ravel_status (*settle)(void *user, ravel_error *err);
    ravel_status (*gather)(void *user, ravel_error *err);
    ravel_status (*write)(void *user, const char *folder, ravel_error *err);
    void *user;
} train_addition;

typedef struct train_run {
    /* set by the caller of train_run_open: */
    const train_config *config;
    train_kind kind;
    ravel_comm *comm;     /* trainer ranks */
    int64_t steps;        /* updates to run in all */
    train_data_file data; /* path NULL: none */
    train_hooks hooks;
    /* set by the functions below: */
    ravel_metrics *metrics;
    train_rundir dir; /* rank 0 holds its lock */
    char folder[TRAIN_PATH];
    char checkpoint[TRAIN_PATH]; /* the newest one; "" if there is none */
    train_state state;
    train_interval every;
    int32_t rank;
    int32_t stopped;
    int32_t resumed;
    int32_t best_due;        /* the current weights are the best so far and not saved */
    int64_t saved;           /* step of the newest checkpoint, -1: none */
    int64_t reported;        /* step whose metrics went out last */
    int64_t checked;         /* step at which a due checkpoint was last checked for */
    int64_t skipped_in_row;  /* updates */
    double finish_seconds;   /* of the last train_run_apply */
    double gpu_seconds;      /* of its update in forward and backward, by a GPU's events; 0: there is none */
    char mapped[TRAIN_PATH]; /* a file of weights that changed meanwhile */
    double saved_at;         /* clock of the newest checkpoint, or of the start */
    train_addition addition;
} train_run;

/* *stopped: whether a signal asks for an end, on any rank of `comm`; the same on all of them. NULL: one rank. */
ravel_status train_hooks_stopped(const train_hooks *hooks, ravel_comm *comm, int32_t *stopped, ravel_error *err);
/* The error of a run that such a signal ends before its first update. */
ravel_status train_run_stopped_early(ravel_error *err);

/* The configuration that the run which `config` would resume was started with: its path (TRAIN_PATH bytes). E_STATE
 * if there is no such run. */
ravel_status train_run_config(const train_config *config, train_kind kind, char *path, ravel_error *err);

/* On rank 0, before data is read: whether its folder can be the run's. */
ravel_status train_run_check(const train_run *run, ravel_error *err);

/* The caller has set the first fields of a run that is otherwise 0. `world`: ranks of the whole job, for per-GPU
 * figures. A resumed run must find the data that it was started with. */
ravel_status train_run_open(train_run *run, const ravel_shape *shape, int32_t world, ravel_error *err);
/* A resumed run whose checkpoint has been loaded: config.json and the metrics files are written from here on, so that
 * options which cannot resume the run leave its configuration as it was. Collective. */
ravel_status train_run_continue(train_run *run, ravel_error *err);
/* The optimiser step of an update whose gradients are complete on this rank, with the learning rate that the schedule
 * has for it; counts the step and adds its figures to the metrics. E_DATA after too many updates without a finite
 * gradient. */
ravel_status train_run_apply(train_run *run, train_learner *learner, ravel_error *err);
/* The figure of an evaluation of the current weights: it is logged, and after an update, with --keep-best, the best
 * one's checkpoint is written and kept. */
void train_run_note_eval(train_run *run, double value, int higher_is_better);
/* The metrics of the update go out. Collective. */
ravel_status train_run_report(train_run *run, ravel_error *err);
/* After an update: its metrics go out, and a checkpoint is written if the configuration or a signal asks for it. */
ravel_status train_run_end_step(train_run *run, train_learner *learner, ravel_error *err);
/* Writes the last checkpoint, if it is enabled and not written yet. If `status`, that of the loop, is an error, saves
 * the last whole update if possible, and returns the status. `learner` may be NULL. */
ravel_status train_run_finish(train_run *run, train_learner *learner, ravel_status status, ravel_error *err);
void train_run_free(train_run *run);

/* The result of a run, the same on every trainer rank. After an error: folder, checkpoint and steps. */
typedef struct train_summary {
    char folder[TRAIN_PATH];     /* "" where the run left none */
    char checkpoint[TRAIN_PATH]; /* the newest one, "": none */
    char best[TRAIN_PATH];       /* the one with the best evaluation, with --keep-best */
    double best_value;
    int64_t steps, planned;             /* updates done, and to do in all */
    int64_t skipped;                    /* of them, without a finite gradient */
    double loss_first, loss_last;       /* per token, of the first and the last update that this process ran */
    double eval_first, eval_loss;       /* before the first and after the last update; NAN if there was none */
    double reward_first, reward_last;   /* greedy, on the evaluation's questions; NAN without */
    int32_t reward_apart;               /* which are never trained on */
    double dropped;                     /* share of the answers that could not be scored; NAN without any */
    double sampled_first, sampled_last; /* mean reward of the sampled answers, first and last five batches */
    double tokens_per_sec, packing_efficiency;
    double refit_overlap, refit_gb_per_sec; /* means over the refits of this process */
    int32_t stopped;                        /* by a signal, before all steps were done */
} train_summary;

/* The fields that every kind of run has: folder, steps, speed and packing of the whole run; the rest is NAN or 0. */
void train_run_summarise(const train_run *run, train_summary *summary);

#endif
