/* train/run/config.h: the options of a training run, as option tables.
 *
 * A run's configuration is one struct made of parts; each part has a table (ravel/options.h), and flags, the keys of
 * --config FILE, `--help`, and config.json of the run directory are all made from the tables:
 *
 *     run      where, how long, how often it saves and prints            all commands
 *     model    train/learn/choice.h: which model, on which kernels       all
 *     learn    train/learn/learner.h: learning rate, schedule, ...       all
 *     mesh     ravel/mesh.h: tp, cp, dp, pp, vpp                         all
 *     sft      data, eval                                                sft, dpo
 *     dpo      beta                                                      dpo
 *     grpo     prompts, groups, rewards, sampling, generators            grpo
 *     policy   train/rl/policy.h                                         grpo
 *     plan     ravel/plan.h: budget, max-samples, effort, ...            all
 *     source   ravel/source.h: data, mock, ...                           sft, dpo
 */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include <ravel/plan.h>
#include <ravel/source.h>

#include "train/learn/learner.h"
#include "train/rl/experience.h"
#include "train/rl/policy.h"

typedef struct train_run_options {
    const char *run; /* folder; NULL: runs/sft-1, runs/sft-2, ... whichever is free */
    int32_t resume;
    int32_t ranks;                /* trainer ranks; 0: as many as the mesh has */
    int64_t steps;                /* updates; 0: 100, or with epochs as many as they take */
    const char *checkpoint_every; /* an interval: "10m", "500"; see train_interval */
    int64_t keep;
    int32_t keep_best;      /* the checkpoint with the best evaluation stays */
    int32_t checkpoint_end; /* one at the end, too */
    int32_t save_dtype;     /* of the exported model: 0 f32, 1 bf16 */
    int64_t save_shard;     /* the most bytes of one of its files; 0: 5 GiB */
    const char *sinks;      /* of the run folder: jsonl,tensorboard,trace,csv */
    const char *http;       /* [address:]port for Prometheus */
    int32_t quiet;
    uint64_t seed;
    int64_t max_skipped; /* updates in a row without a finite gradient before the run fails */
    double timeout;      /* seconds that a rank waits for another; 0: the communicator's default */
    const char *gpu;     /* for MFU */
    const char *cost;    /* of a sample (train/run/cost.h); NULL: model */
    int32_t single;      /* one sample per micro-batch: for comparisons */
} train_run_options;

typedef struct train_sft_options {
    int64_t batch;      /* samples in an update */
    int64_t eval_every; /* updates; 0: never */
    double eval_share;  /* of the rows, taken from the end, that are never trained on */
    const char *task;   /* questions and answers of a verifiable task instead of data */
    int32_t level;      /* how hard */
    int64_t epochs;     /* 0: until `steps` */
} train_sft_options;

/* Whose log-probs of an answer are the old ones. auto: the trainer's at the start of the batch, so that the first ratio is
 * exactly 1; the generator's with --async 1 and no --tis, where the ratio must correct for its older weights. */
typedef enum train_old { TRAIN_OLD_AUTO, TRAIN_OLD_TRAINER, TRAIN_OLD_GENERATOR } train_old;
#define TRAIN_OLD_CHOICES "auto|trainer|generator"

/* How weights go to the run's own generators (train/run/grpo_pull.h). */
typedef enum train_refit_way { TRAIN_REFIT_AUTO, TRAIN_REFIT_COLLECTIVE, TRAIN_REFIT_PULL } train_refit_way;
#define TRAIN_REFIT_CHOICES "auto|collective|pull"

typedef struct train_grpo_options {
    const char *task, *data, *reward_command;
    const char *chat_format; /* NULL: as the model's template says */
    const char *chat_args;   /* variables of the template; NULL: none */
    int32_t bad_rows;        /* ravel_bad_rows */
    int32_t max_flat;        /* batches in a row whose rewards are all equal before the run fails; 0: any number */
    const char *stop;        /* tokens that end an answer, "257,151645"; NULL: the model's own */
    int32_t level;
    int32_t generators;   /* ranks that generate */
    int32_t generator_tp; /* ranks that share the layers of each generator; divides `generators` */
    double reward_seconds;
    int32_t reward_retries; /* of a command that fails, before answers are left out */
    double max_dropped;     /* share of a batch's answers that may be left out */
    int32_t show_every;     /* batches between answers on the terminal; 0: never */
    train_scoring scoring;
    int64_t prompts;    /* in a batch */
    int32_t group_size; /* answers to each */
    int32_t updates;    /* optimiser steps on each batch */
    double temperature, top_p;
    int32_t top_k;
    int32_t preset;           /* index into TRAIN_PRESET_CHOICES */
    int32_t async;            /* generate with weights at most this many versions old: 0 or 1 */
    int32_t dynamic_sampling; /* DAPO: groups whose rewards are all equal are replaced */
    int32_t dynamic_rounds;   /* further rounds of prompts, at most */
    int32_t old;              /* train_old: whose log-probs the ratio is against */
    int64_t slots;            /* sequences that a generator runs at once */
    int64_t eval_prompts;     /* greedy, before and after training, and every eval_every steps */
    double eval_share;        /* of the rows of `data`, from the end, that are never trained on */
    int64_t eval_every;
    double entropy;            /* bonus */
    const char *publish;       /* address at which every version is published for generators that pull; NULL: nowhere */
    const char *publish_allow; /* networks that may connect; NULL: any */
    const char *publish_host;  /* name under which generators reach a trainer; NULL: the address's */
    int32_t publish_keep;      /* versions that are kept */
    int32_t publish_open;      /* 1: listen beyond this machine without a token */
    int32_t publish_tls;       /* 1: generators' connections are encrypted */
    int32_t refit;             /* train_refit_way */
    int32_t refit_buffers;     /* of a collective refit, per rank; 0: RAVEL_REFIT_NUM_BUFFERS, else 2 */
    int64_t refit_buffer_size; /* bytes of one; 0: RAVEL_REFIT_BUFFER_BYTES, else from refit_memory */
    double
        refit_memory; /* share of memory that all of a rank take; 0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else a default */
    const char *generator_devices; /* GPUs of generators, as model.devices; NULL: they follow the trainers there */
    double publish_linger;         /* seconds to wait at the end until connected generators have the last version */
} train_grpo_options;

typedef struct train_dpo_options {
    double beta; /* of the loss, train/rl/dpo.h */
} train_dpo_options;

typedef struct train_config {
    train_run_options run;
    train_model_choice model;
    train_learn_options learn;
    ravel_mesh_options mesh;
    train_sft_options sft; /* of dpo too */
    train_dpo_options dpo;
    train_grpo_options grpo;
    train_policy policy;
    ravel_plan_options plan;
    ravel_source_options source;
} train_config;

typedef enum train_kind { TRAIN_SFT, TRAIN_DPO, TRAIN_GRPO, TRAIN_KINDS } train_kind;
/* "sft", "dpo", "grpo". */
const char *train_kind_name(train_kind kind);

enum { TRAIN_STEPS = 100 }; /* updates where neither steps nor epochs are given */

/* The parts that a command has, in the order of its help: at most TRAIN_PARTS. */
enum { TRAIN_PARTS = 10 };
typedef struct train_part {
    const char *title;
    ravel_option_table table;
    void *options; /* inside the config */
} train_part;
/* The options for train_learner_create; they point into `config`. */
/* ravel_share_prefix: whether runs of this model share prefixes. auto: on CPU sets, without cp, cp-pool, --single or a window; never
 * in dpo with pp, which train_config_check refuses with on. */
int32_t train_config_share(const train_config *config, train_kind kind, const ravel_shape *shape);
train_learner_options train_config_learner(const train_config *config, train_kind kind, const ravel_shape *shape);
/* Trainer ranks: run.ranks, or as many as the mesh has. */
int32_t train_config_ranks(const train_config *config);
/* With --budget 0: that of --count samples as long as the longest, of `longest` tokens. E_OVERSIZE above 2^31. */
ravel_status train_config_set_budget(train_config *config, int64_t longest, ravel_error *err);
/* The plan's options of a run's feeds. */
ravel_plan_options train_config_plan(const train_config *config);
/* When ranks wait for one another, for the planner. */
ravel_sync train_config_sync(const train_config *config);

int train_config_parts(train_config *config, train_kind kind, train_part *parts);
/* The one of parts[count] that has an option of this name, or NULL. */
const train_part *train_config_part(const train_part *parts, int count, const char *name);

void train_config_default(train_config *config);

/* Sets options of any part from a JSON object; an unknown key is an error with a suggestion. Texts point into `doc`. */
ravel_status train_config_json(train_config *config, train_kind kind, const ravel_json *doc, ravel_error *err);

/* How often something is done: "500" is updates, "90s", "10m" and "2h" are time, "0" is never. */
typedef struct train_interval {
    int64_t updates;
    double seconds;
} train_interval;
ravel_status train_interval_parse(const char *text, train_interval *interval, ravel_error *err);

/* A named set of options of GRPO, as a paper has them (docs/train-command.md lists each with its source). */
#define TRAIN_PRESET_CHOICES "none|grpo|dr-grpo|dapo|gspo"
/* Sets what config->grpo.preset says, before a file and flags override it. */
ravel_status train_config_preset(train_config *config, ravel_error *err);

/* Fills in defaults that depend on other options: the learning rate, the task of GRPO. Call it before check. */
void train_config_settle(train_config *config, train_kind kind);

/* Checks options that depend on one another: a task or data, a model or a shape, numbers of ranks. */
ravel_status train_config_check(const train_config *config, train_kind kind, ravel_error *err);

/* The whole configuration as a JSON object, keys as the flags. Returns the length needed, like snprintf; `text`
 * may be NULL when `bytes` is 0. */
size_t train_config_text(const train_config *config, train_kind kind, char *text, size_t bytes);

#endif
