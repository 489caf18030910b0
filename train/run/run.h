/* train/run/run.h: what the training loops share: the run folder, metrics and their sinks, the state that a checkpoint keeps,
 * and leaving in good order.
 *
 *     train_run_open(&run, &config, TRAIN_SFT, &shape, comm, world, steps, hooks, &err);
 *                                                           folder, config.json, metrics, the newest checkpoint's state
 *     while (run.state.step < run.steps && !run.stopped) {
 *         ... forward and backward of an update's micro-batches ...
 *         train_run_apply(&run, learner, &err);             sum over ranks, clip, learning rate, optimiser
 *         train_run_end_step(&run, learner, &err);          metrics, and a checkpoint when it is time
 *     }
 *     train_run_finish(&run, learner, &err);                the last checkpoint
 *     train_run_free(&run);
 *
 * Every rank of the communicator calls these together. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "train/run/config.h"
#include "train/run/metrics.h"
#include "train/run/rundir.h"

/* What the program around the trainer gives it. */
typedef struct train_hooks {
    const volatile int *stop;   /* not 0: write a checkpoint and leave after this update; may be NULL */
    const ravel_logger *logger; /* remarks; may be NULL */
    const char *config_text;    /* effective configuration, for config.json */
} train_hooks;

/* X(type, option type, name): what continues after a restart, besides weights and moments. state.json holds these. */
#define TRAIN_STATE_LIST(X)                                                   \
    X(int64_t, I64, step)     /* updates */                                   \
    X(int64_t, I64, batch)    /* of prompts: the next one */                  \
    X(int64_t, I64, question) /* the next one that was never asked */         \
    X(int64_t, I64, version)  /* of the weights */                            \
    X(int64_t, I64, epoch)    /* of the data */                               \
    X(int64_t, I64, position)                                                 \
    X(int64_t, I64, updates) /* the run's totals, see ravel_metrics_totals */ \
    X(int64_t, I64, samples)                                                  \
    X(int64_t, I64, bins)                                                     \
    X(int64_t, I64, tokens)                                                   \
    X(int64_t, I64, loss_tokens)                                              \
    X(double, F64, seconds)                                                   \
    X(double, F64, reward_first) /* greedy reward before training */

typedef struct train_state {
#define X(type, option, name) type name;
    TRAIN_STATE_LIST(X)
#undef X
} train_state;

/* What a loop adds to a checkpoint: rollouts that wait, for instance. `gather` is called on every rank before anything is
 * written, `write` then on rank 0 with the folder. Either may be NULL. */
typedef struct train_addition {
    ravel_status (*gather)(void *user, ravel_error *err);
    ravel_status (*write)(void *user, const char *folder, ravel_error *err);
    void *user;
} train_addition;

typedef struct train_run {
    const train_config *config;
    train_kind kind;
    ravel_comm *comm; /* trainer ranks */
    train_hooks hooks;
    ravel_shape shape;
    ravel_metrics *metrics;
    char folder[TRAIN_PATH];
    char checkpoint[TRAIN_PATH]; /* to go on from; "" where there is none */
    train_state state;
    int64_t steps; /* updates to run in all */
    int32_t rank;
    int32_t stopped;
    int64_t saved;   /* step of the newest checkpoint, -1: none */
    int64_t checked; /* step at which it was last looked whether one is due */
    train_addition addition;
} train_run;

/* The configuration that the run which `config` would resume was started with: its path (TRAIN_PATH bytes), or 0 where
 * there is none yet. */
int train_run_config(const train_config *config, train_kind kind, char *path);

/* world: ranks of the whole job, for per-GPU figures; steps: updates to run in all. */
ravel_status train_run_open(train_run *run, const train_config *config, train_kind kind, const ravel_shape *shape,
                            ravel_comm *comm, int32_t world, int64_t steps, const train_hooks *hooks, ravel_error *err);
/* The optimiser step of an update whose gradients are complete on this rank, with the learning rate that the schedule
 * has for it; counts the step and adds its figures to the metrics. */
ravel_status train_run_apply(train_run *run, train_learner *learner, ravel_error *err);
/* After an update: its metrics go out, and a checkpoint is written where the configuration says. */
ravel_status train_run_end_step(train_run *run, train_learner *learner, ravel_error *err);
/* Collective: whether any rank was told to stop. */
ravel_status train_run_check_stop(train_run *run, ravel_error *err);
ravel_status train_run_checkpoint(train_run *run, train_learner *learner, ravel_error *err);
/* The last checkpoint, where it is wanted and not there yet. */
ravel_status train_run_finish(train_run *run, train_learner *learner, ravel_error *err);
void train_run_free(train_run *run);

/* What a run came to, the same on every trainer rank. */
typedef struct train_summary {
    char folder[TRAIN_PATH];
    int64_t steps;
    double loss_first, loss_last;       /* per token, of the first and the last update that this process ran */
    double eval_loss;                   /* NAN where there was no evaluation */
    double reward_first, reward_last;   /* greedy, on the evaluation's questions; NAN without */
    int32_t reward_apart;               /* which are never trained on */
    double sampled_first, sampled_last; /* mean reward of the sampled answers, first and last five batches */
    double tokens_per_sec, packing_efficiency;
    double refit_overlap, refit_gb_per_sec; /* means over the refits of this process */
    int32_t stopped;                        /* by a signal, before all steps were done */
} train_summary;

/* What every kind of run can say: folder, steps, and speed and packing of the whole run; the rest is 0. */
void train_run_summarise(const train_run *run, train_summary *summary);

#endif
