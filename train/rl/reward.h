/* train/rl/reward.h: rewards from the user's command, JSON lines over pipes.
 *
 * The command is started once (`sh -c COMMAND`) and kept. For every batch Ravel writes one line per rollout to its
 * standard input and reads one line per rollout from its standard output, in any order:
 *
 *     {"id": 17, "prompt": "2+2=", "response": "4", "answer": "4", "prompt_ids": [256, 50, 43, 50, 61],
 *      "response_ids": [52, 257], "tokens": 2, "ended": true, "row": {...}}                               (one line)
 *     {"id": 17, "reward": 0.5}                       and optionally "accuracy": 1 right, 0 wrong
 *
 * A command that begins with http:// is the URL of a server: the lines of a batch are the body of one POST, and its answer
 * is the lines with the rewards. Time limit and failures are as for a command.
 *
 * "row" is the whole row of the data file, for further input of the reward, such as test cases. Prompts of a task have
 * none.
 * Texts are decoded by the model's tokenizer, without special tokens. One trainer per data-parallel rank starts a
 * command, for the groups that it holds. The command inherits standard error. A batch has a time limit. It is an error,
 * which quotes the line, if a command ends, closes its output, writes anything else, answers an id twice, or is late.
 * The command is then killed, and started again for the next call. */
#ifndef TRAIN_REWARD_H
#define TRAIN_REWARD_H

#include <ravel/base.h>

typedef struct train_reward train_reward;

typedef struct train_rollout_text {
    const char *prompt, *response, *answer; /* bytes; answer may be NULL */
    const char *row;                        /* one line of JSON, or NULL */
    size_t prompt_bytes, response_bytes, answer_bytes;
    const int32_t *prompt_ids, *response_ids;
    int64_t prompt_tokens, tokens; /* of the prompt; of the response, its end token included */
    int32_t ended;                 /* with the end token, rather than at the length limit */
} train_rollout_text;

/* Nothing is started before the first batch. `seconds` is the time limit of a batch. */
ravel_status train_reward_create(const char *command, double seconds, train_reward **reward, ravel_error *err);
/* Closes the command's input, gives it a second to leave, then kills it. */
void train_reward_free(train_reward *reward);

/* The score of a rollout. */
typedef struct train_score {
    double reward;   /* NAN: not scored yet */
    double accuracy; /* as the command says, else the reward */
} train_score;

/* Sets scores[i] for rollouts[i]; skips those whose reward is not NAN. On an error, received scores are set and the
 * others are NAN: call it again for the rest. One thread at a time. */
/* While *stop is not 0, scoring ends with E_STATE. NULL: never. */
void train_reward_set_stop(train_reward *reward, const volatile int *stop);
ravel_status train_reward_score(train_reward *reward, const train_rollout_text *rollouts, int64_t count,
                                train_score *scores, ravel_error *err);

#endif
