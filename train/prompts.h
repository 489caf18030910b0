/* train/prompts.h: where prompts and their right answers come from: a verifiable task, or a JSON-lines file.
 *
 *     {"prompt": "37+58=", "answer": "95"}          text, a byte a token; the answer may be missing
 *     {"input_ids": [256, 51, 55], "answer": "95"}  tokens
 *
 * Question number i is the same on every rank and in every run. A file is gone through again and again. */
#ifndef TRAIN_PROMPTS_H
#define TRAIN_PROMPTS_H

#include "train/rollout.h"
#include "train/task.h"

typedef struct train_prompts train_prompts;

/* One of `task` and `data` is NULL. */
ravel_status train_prompts_open(const char *task, uint64_t seed, int32_t level, const char *data, int64_t vocab,
                                train_prompts **prompts, ravel_error *err);
void train_prompts_free(train_prompts *prompts);

/* Adds question `index` to the pile, as a rollout without an answer; its group is `index`. */
ravel_status train_prompts_add(const train_prompts *prompts, int64_t index, train_pile *pile, ravel_error *err);

/* The right answer to question `index`: its bytes, or NULL where there is none. Valid until the next call with the same
 * `question`. */
const char *train_prompts_answer(const train_prompts *prompts, int64_t index, train_question *question, size_t *bytes);

#endif
