/* train/run/sft/answers.h: what the model answers to a few prompts of the evaluation's rows, after each evaluation of
 * sft and dpo.
 *
 *     train_answers_open(&options, comm, &answers, &err);    reads the prompts: what a row has before its first loss token
 *     train_answers_show(answers, &run, learner, &err);      greedy answers, to the log and to samples.jsonl
 *
 *     {"step": 40, "sample": 0, "prompt": "37+58=", "response": "95", "answer": "95"}
 *
 * "answer" is the row's own. A row without a prompt, such as plain text, is left out. What fails on rank 0 alone (no
 * memory for a cache) is a warning, and ends the answers, not the run. */
#ifndef TRAIN_ANSWERS_H
#define TRAIN_ANSWERS_H

#include "train/run/run.h"

typedef struct train_answers train_answers;

typedef struct train_answers_options {
    const train_config *config; /* of the run: model, chat format, sft.eval_samples, sft.eval_tokens */
    const ravel_source *source; /* the evaluation's rows */
    const ravel_shape *shape;
} train_answers_options;

/* Collective over the trainers. *answers is NULL if there is nothing to ask, on every rank. */
ravel_status train_answers_open(const train_answers_options *options, ravel_comm *comm, train_answers **answers,
                                ravel_error *err);
void train_answers_free(train_answers *answers);
/* Collective; NULL does nothing. An error is one of the communicator. */
ravel_status train_answers_show(train_answers *answers, const train_run *run, train_learner *learner, ravel_error *err);

#endif
