/* train/rl/outside/reward.h: rewards from the user's command, or HTTP servers (peer.h), as lines of JSON.
 *
 * The command is started once and kept. For every batch Ravel sends one line per rollout and reads one line per rollout
 * back, in any order:
 *
 *     {"id": 17, "prompt": "2+2=", "response": "4", "answer": "4", "prompt_ids": [256, 50, 43, 50, 61],
 *      "response_ids": [52, 257], "tokens": 2, "ended": true, "row": {...}}                               (one line)
 *     {"id": 17, "reward": 0.5}                       and optionally "accuracy": 1 right, 0 wrong
 *     {"id": 17, "rewards": {"style": 0.5}}           if its parts are named (mix.h)
 *
 * "row" is the whole row of the data file, for further input of the reward, such as test cases. Prompts of a task have
 * none.
 * Texts are decoded by the model's tokenizer, without special tokens. One trainer per data-parallel rank starts a
 * command, for the groups that it holds. What is lost, wrong or late is asked again, `retries` times. */
#ifndef TRAIN_REWARD_H
#define TRAIN_REWARD_H

#include "train/rl/mix.h"
#include "train/rl/outside/peer.h"

typedef struct train_reward train_reward;

typedef struct train_rollout_text {
    const char *prompt, *response, *answer; /* bytes; answer may be NULL */
    const char *row;                        /* one line of JSON, or NULL */
    size_t prompt_bytes, response_bytes, answer_bytes;
    const int32_t *prompt_ids, *response_ids;
    int64_t prompt_tokens, tokens; /* of the prompt; of the response, its end token included */
    int32_t ended;                 /* with the end token, rather than at the length limit */
} train_rollout_text;

/* As train_peer_options; `what` is set here. Nothing is started before the first batch. *stop not 0: scoring ends with
 * E_STATE; NULL: never. */
ravel_status train_reward_create(const train_peer_options *options, int32_t retries, const volatile int *stop,
                                 train_reward **reward, ravel_error *err);
void train_reward_free(train_reward *reward);

/* The score of a rollout. */
typedef struct train_score {
    double reward;   /* weighted sum of the command's parts; NAN: not scored yet */
    double accuracy; /* as the command says, else the reward */
    int32_t judged;  /* the command has said it */
    double values[TRAIN_MIX_PARTS];
} train_score;

/* Which parts the command answers. Without this call: "reward". Copied. */
void train_reward_set_mix(train_reward *reward, const train_mix *mix);
/* Sets scores[i] for rollouts[i]; skips those whose reward is not NAN. Those that could not be scored stay NAN, and `why`
 * says how the last of them was lost. An error is one of the machine, or a stop. One thread at a time. */
ravel_status train_reward_score(train_reward *reward, const train_rollout_text *rollouts, int64_t count,
                                train_score *scores, ravel_error *why, ravel_error *err);

#endif
