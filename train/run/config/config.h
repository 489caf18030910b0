/* train/run/config/config.h: the options of a training run, as option tables.
 *
 * A run's configuration is one struct made of parts; each part has a table (ravel/options.h), and flags, the keys of
 * --config FILE, `--help`, and config.json of the run directory are all made from the tables:
 *
 *     run      where, how long, how often it saves and prints            all commands
 *     model    train/learn/choice.h: which model, on which kernels       all
 *     adapter  the same: a low-rank adapter beside it (lora.h)           all
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
#include "train/model/generate/generator.h"
#include "train/rl/experience.h"
#include "train/rl/policy.h"
#include "train/rl/outside/remote.h"

#include "base/json.h"

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
    const char *cost;    /* of a sample (train/run/config/cost.h); NULL: model */
    int32_t single;      /* one sample per micro-batch: for comparisons */
} train_run_options;

typedef struct train_sft_options {
    int64_t batch;         /* samples in an update */
    int64_t eval_every;    /* updates; 0: never */
    double eval_share;     /* of the rows of each file, that are never trained on */
    int32_t eval_shuffle;  /* those are chosen at random; else the last ones */
    const char *eval_data; /* rows that are evaluated, in files of their own; NULL: none */
    const char *task;      /* questions and answers of a verifiable task instead of data */
    int32_t level;         /* how hard */
    int64_t epochs;        /* 0: until `steps` */
    int64_t eval_samples;  /* prompts that are answered after each evaluation */
    int64_t eval_tokens;   /* of such an answer, at most */
} train_sft_options;

/* Whose log-probs of an answer are the old ones. auto: the trainer's at the start of the batch, so that the first ratio
 * is exactly 1; the generator's with --async and no --correction, and with cispo, where the ratio must correct for its
 * older weights. */
typedef enum train_old { TRAIN_OLD_AUTO, TRAIN_OLD_TRAINER, TRAIN_OLD_GENERATOR } train_old;
#define TRAIN_OLD_CHOICES "auto|trainer|generator"

/* Experts of a token when it is learnt: the model's choice; that of the pass that scored its old log-prob; the
 * generator's. */
typedef enum train_replay { TRAIN_REPLAY_OFF, TRAIN_REPLAY_FIRST, TRAIN_REPLAY_ROLLOUT } train_replay;
#define TRAIN_REPLAY_CHOICES "off|first|rollout"

/* How weights go to the run's own generators (train/run/grpo/pull.h). */
typedef enum train_refit_way { TRAIN_REFIT_AUTO, TRAIN_REFIT_COLLECTIVE, TRAIN_REFIT_PULL } train_refit_way;
#define TRAIN_REFIT_CHOICES "auto|collective|pull"

/* What a collective refit sends of what changed; auto is settled when the ranks know their machines. */
typedef enum train_delta { TRAIN_DELTA_AUTO, TRAIN_DELTA_NO, TRAIN_DELTA_BLOCKS, TRAIN_DELTA_ELEMENTS } train_delta;
#define TRAIN_DELTA_CHOICES "auto|no|blocks|elements"

enum { TRAIN_ASYNC_MOST = 64 };

typedef struct train_grpo_options {
    const char *task, *data, *reward_command;
    const char *reward;      /* parts and weights (train/rl/mix.h); NULL: the command's reward, or right and wrong */
    const char *teacher;     /* a model folder: the reference is this one, and distillation the aim; NULL: none */
    int32_t teacher_topk;    /* the teacher's likeliest tokens that are learnt; 0: the drawn one's log-prob */
    const char *chat_format; /* NULL: as the model's template says */
    const char *chat_args;   /* variables of the template; NULL: none */
    int32_t bad_rows;        /* ravel_bad_rows */
    int32_t max_flat;        /* consecutive batches whose rewards are all equal before the run fails; 0: no limit */
    const char *stop;        /* tokens that end an answer, "257,151645"; NULL: the model's own */
    int32_t level;
    int32_t generators;   /* ranks that generate */
    int32_t generator_tp; /* ranks that share the layers of each generator; divides `generators` */
    double reward_seconds;
    int32_t reward_retries;        /* of a command that fails, before answers are left out */
    double max_dropped;            /* share of a batch's answers that may be left out */
    const char *env_command, *env; /* a command or a server's URL that answers turn by turn (rl/outside/env.h) */
    int32_t env_processes;         /* of each generator */
    int32_t env_retries;           /* of an episode that was lost, before its rollout is left out */
    double env_seconds;
    int32_t service_slots; /* requests at once to a server of rewards or of an environment */
    double service_wait;   /* seconds that helpers may be away */
    int32_t max_turns;     /* answers in a rollout */
    int64_t env_tokens;    /* after the prompt of a rollout, answers and observations; 0: 2 * max_turns * max_tokens */
    int32_t show_every;    /* batches between answers on the terminal; 0: never */
    train_scoring scoring;
    int64_t prompts;    /* in a batch */
    int32_t group_size; /* answers to each */
    int32_t updates;    /* optimiser steps on each batch */
    double temperature, top_p;
    int32_t top_k;
    int32_t preset;           /* index into TRAIN_PRESET_CHOICES */
    int32_t async;            /* generate with weights at most this many versions old */
    int32_t dynamic_sampling; /* DAPO: groups whose rewards are all equal are replaced */
    int32_t dynamic_rounds;   /* further rounds of prompts, at most */
    int32_t old;              /* train_old: whose log-probs the ratio is against */
    int32_t replay;           /* train_replay */
    int32_t reserved;         /* 0 */
    int64_t slots;            /* concurrent sequences per generator */
    int64_t eval_prompts;     /* greedy, before and after training, and every eval_every steps */
    double eval_share;        /* of the rows of `data`, from the end, that are never trained on */
    int64_t eval_every;
    double entropy;            /* bonus */
    const char *eval_data;     /* rows to evaluate on instead of those of `data`; NULL: none */
    const char *publish;       /* address at which every version is published for generators that pull; NULL: nowhere */
    const char *publish_allow; /* networks that may connect; NULL: any */
    const char *publish_host;  /* name under which generators reach a trainer; NULL: the address's */
    int32_t publish_keep;      /* versions that are kept */
    int32_t publish_sparse;    /* 1: changed elements may be sent instead of blocks */
    int32_t publish_open;      /* 1: listen beyond this machine without a token */
    int32_t publish_tls;       /* 1: generators' connections are encrypted */
    int32_t refit;             /* train_refit_way */
    int32_t refit_buffers;     /* of a collective refit, per rank; 0: RAVEL_REFIT_NUM_BUFFERS, else 2 */
    int64_t refit_buffer_size; /* bytes of one; 0: RAVEL_REFIT_BUFFER_BYTES, else from refit_memory */
    /* share of memory that all of a rank take; 0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else a default */
    double refit_memory;
    const char *generator_devices; /* GPUs of generators, as model.devices; NULL: they follow the trainers there */
    const char *rollout;           /* servers that generate instead of ranks; NULL: ranks do */
    const char *rollout_model, *rollout_key, *rollout_command;
    int32_t rollout_kind; /* TRAIN_REMOTE_CHOICES */
    int32_t rollout_slots, rollout_retries;
    double rollout_seconds;
    double publish_linger; /* seconds to wait at the end until connected generators have the last version */
    int32_t refit_delta;   /* train_delta */
    int32_t publish_dtype; /* 0: auto; 1: as they are trained; else the dtype is train__grpo_published_dtype's */
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
    int64_t alone; /* with oversize alone: tokens per rank of the longest sample (train_config_set_budget) */
} train_config;

typedef enum train_kind { TRAIN_SFT, TRAIN_DPO, TRAIN_GRPO, TRAIN_KINDS } train_kind;
/* "sft", "dpo", "grpo". */
const char *train_kind_name(train_kind kind);

enum { TRAIN_STEPS = 100 }; /* updates where neither steps nor epochs are given */

/* The parts that a command has, in the order of its help: at most TRAIN_SECTIONS. */
enum { TRAIN_SECTIONS = 12 };
typedef struct train_section {
    const char *title;
    ravel_option_table table;
    void *options; /* inside the config */
} train_section;
/* Whether the old log-probs of GRPO are the trainer's (train_old). */
int train_config_old_by_trainer(const train_config *config);
/* The options for train_learner_create; they point into `config`. */
/* ravel_share_prefix: whether runs share prefixes. auto: on CPU sets, without --single; train_config_check refuses what
 * is impossible with on. */
int32_t train_config_share(const train_config *config, train_kind kind);
train_learner_options train_config_learner(const train_config *config, train_kind kind);
/* Whether rollouts have an environment. */
int train_config_has_env(const train_config *config);
/* Whether a teacher is all that is learnt from: nothing gives rewards. */
int train_config_distils(const train_config *config);
/* The model that log-probs are compared with (--kl) is not the one that training began with. */
train_model_choice train_config_teacher(const train_config *config);
/* Whether generators work on rollouts one by one (train/run/grpo/episodes.h), and not on a whole batch at a time. */
int train_config_episodes(const train_config *config);
/* Tokens after the prompt of a rollout, at most. */
int64_t train_config_rollout_tokens(const train_config *config);
/* The run's generators. */
void train_config_generator(const train_config *config, int64_t longest_prompt, train_generator_options *options);
/* Whether an adapter is trained, not the model. */
int train_config_adapts(const train_config *config);
/* Trainer ranks: run.ranks, or as many as the mesh has. */
int32_t train_config_ranks(const train_config *config);
/* With --budget 0: that of --count samples as long as the longest, of `longest` tokens. E_OVERSIZE above 2^31. */
ravel_status train_config_set_budget(train_config *config, int64_t longest, ravel_error *err);
/* The plan's options of a run's feeds. */
ravel_plan_options train_config_plan(const train_config *config);
/* When ranks wait for one another, for the planner. */
ravel_sync train_config_sync(const train_config *config);

int train_config_sections(train_config *config, train_kind kind, train_section *parts);
/* The one of parts[count] that has an option of this name, or NULL. */
const train_section *train_config_section(const train_section *parts, int count, const char *name);

void train_config_default(train_config *config);

/* A configuration as it was read. */
typedef struct train_config_file {
    ravel__json *doc;
    char *text;       /* what doc was parsed from, with the lines of the file; NULL: errors name no line */
    int32_t of_a_run; /* it is the config.json of a run's folder */
    char *lists[8];   /* options that were given as lists, as the text that they are */
} train_config_file;
/* `path`: a file of JSON or YAML (base/yaml.h), or the folder of a run. Close it also after an error. */
ravel_status train_config_file_read(const char *path, train_config_file *file, ravel_error *err);
void train_config_file_close(train_config_file *file);
/* Sets options of any part from it. An unknown key is an error with its line and a suggestion, or what it is called here
 * (words.h). Texts point into the file. A list is what the command takes: files as several words, anything else with
 * commas. */
ravel_status train_config_json(train_config *config, train_kind kind, train_config_file *file, ravel_error *err);

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

/* The whole configuration as a JSON object, keys as the flags; the caller frees it. NULL: out of memory. */
char *train_config_text(const train_config *config, train_kind kind);

#endif
