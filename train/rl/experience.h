/* train/rl/experience.h: from rollouts to training samples: rewards, advantages within each group, and the samples that
 * the feed takes.
 *
 *     rollouts -> rewards -> advantages -> samples {tokens, loss_mask, generator, advantage, update}
 *
 * All of it happens on the trainer rank that received the group; the feed then plans, exchanges and packs the samples
 * like any others. */
#ifndef TRAIN_EXPERIENCE_H
#define TRAIN_EXPERIENCE_H

#include <ravel/comm.h>
#include <ravel/source.h>

#include "train/model/model.h"
#include "train/rl/policy.h"
#include "train/rl/prompts.h"
#include "train/rl/outside/reward.h"

/* X(NAME, name, kind, dtype, C type): the fields of a sample. Packed, log-probs stand at the token that predicts. */
#define TRAIN_FIELD_LIST(X)                       \
    X(TOKENS, "tokens", TOKEN, I32, int32_t)      \
    X(LOSS_MASK, "loss_mask", NEXT, U8, uint8_t)  \
    X(GENERATOR, "generator", NEXT, F32, float)   \
    X(ADVANTAGE, "advantage", SAMPLE, F32, float) \
    X(UPDATE, "update", SAMPLE, I32, int32_t)

typedef enum train_field {
#define X(NAME, name, kind, dtype, type) TRAIN_FIELD_##NAME,
    TRAIN_FIELD_LIST(X)
#undef X
        TRAIN_FIELDS
} train_field;

/* The declaration of the fields, for ravel_feed_options; their data is NULL. */
extern const ravel_field train_fields[TRAIN_FIELDS];
/* fields[TRAIN_FIELDS + 2] = these, a teacher's log-probs if there are any, and routes if they have a width; returns
 * how many. */
int64_t train_fields_list(int32_t with_teacher, int64_t route_width, ravel_field *fields);

/* How answers are scored. */
typedef struct train_scoring {
    double partial;          /* largest reward of an answer that is partly right */
    int64_t max_tokens;      /* of an answer */
    int32_t overlong_filter; /* answers cut off at max_tokens carry no loss */
} train_scoring;

typedef struct train_experience {
    int64_t count, tokens; /* in use */
    int64_t room, token_room;
    int64_t *offsets;     /* [count + 1] */
    int64_t *groups;      /* [count] */
    int64_t *responses;   /* [count] tokens of the answer */
    uint8_t *truncated;   /* [count] */
    double *staleness;    /* [count] versions between generation and training */
    double *rewards;      /* [count] */
    double *advantages;   /* [count] */
    uint8_t *last;        /* [count] 1: the last part of its rollout (train_rollout.part) */
    int64_t rollouts;     /* with their parts as one, after train_experience_advantages: */
    double *once_rewards; /* [rollouts] */
    int64_t *once_groups; /* [rollouts] */
    int64_t *scratch;     /* [2 * count] */
    int32_t *ids;         /* [tokens] */
    uint8_t *mask;        /* [tokens] */
    float *generator;     /* [tokens] its log-probs */
    float *advantage;     /* [count] */
    int32_t *update;      /* [count] of the batch that learns from it */
    int16_t *routes;      /* [tokens, route_width] */
    float *taught;        /* [tokens] log-probs of the teacher, with_teacher only */
    int32_t with_teacher; /* set beforehand */
    int64_t route_width;  /* set beforehand; 0: samples have no routes */
    void *block;          /* that the arrays above are cut from */
    size_t block_bytes;
    ravel_field fields[TRAIN_FIELDS + 2];
    ravel_samples samples;
} train_experience;

/* All zero is an empty one. */
void train_experience_free(train_experience *x);

/* Takes the rollouts, in their order. `version` is that of the weights that will be trained. */
ravel_status train_experience_load(train_experience *x, const train_rollouts *rollouts, int64_t version,
                                   ravel_error *err);

/* How answers are scored: by the parts of the mix. */
typedef struct train_scorer {
    const train_prompts *prompts;
    const train_text *text;
    const train_mix *mix;
    train_mix_sums *sums;  /* what was scored is added; may be NULL */
    int64_t max_tokens;    /* of an answer */
    train_reward *command; /* may be NULL; of the same mix */
    int32_t env;           /* the environment has scored; what it has not is left out */
    double partial;        /* largest reward of an answer that is partly right */
} train_scorer;

/* Scores the rollouts that have no reward yet. Answers that the command has not scored after all retries are left out,
 * and counted in *dropped; the status is that of other errors. The sentence of the last failure is in `why`. */
ravel_status train_rollouts_score(train_rollouts *rollouts, const train_scorer *scorer, int64_t *dropped,
                                  ravel_error *why, ravel_error *err);

/* Length rules on top of the rewards: the penalty of long answers, and no loss for those that were cut off. */
void train_experience_length_rules(train_experience *x, const train_scoring *scoring, const train_policy *policy);

/* Advantages within groups, of rollouts: all parts of one have that of its last. */
void train_experience_advantages(train_experience *x, const train_policy *policy);

/* Nothing is learnt from rewards. */
void train_experience_forget_advantages(train_experience *x);

/* The groups of all ranks' samples, sorted; the caller releases `*total` of them. Collective. */
ravel_status train_groups_gather(ravel_comm *comm, const int64_t *mine, int64_t count, int64_t **sorted, int64_t *total,
                                 ravel_error *err);

/* Cuts the batch into `updates` runs of equal length, in the order of groups over all ranks: which rank has a group
 * does not change what an update learns from. `comm` holds one rank per share of the batch. Collective. */
ravel_status train_experience_cut(train_experience *x, ravel_comm *comm, int32_t updates, ravel_error *err);

/* The samples as the feed takes them; they point into x. */
const ravel_samples *train_experience_samples(train_experience *x);

#endif
