/* train/rl/prompts.h: where prompts and their right answers come from: a verifiable task, or a JSON-lines file.
 *
 *     {"prompt": "37+58=", "answer": "95"}          text, as the model has it; an answer may be a number or a boolean
 *     {"input_ids": [256, 51, 55], "answer": "95"}  tokens
 *
 * Question number i is the same on every rank and in every run. A file is read in repeated passes, each in another
 * order. Numbers from TRAIN_EVAL_FIRST on are for evaluation: other questions of the task, or the rows that
 * eval_share keeps apart (without it, rows that are trained on too). */
#ifndef TRAIN_PROMPTS_H
#define TRAIN_PROMPTS_H

#include <ravel/source.h>

#include "train/rl/problems.h"
#include "train/rl/rollout.h"
#include "train/rl/task.h"
#include "train/rl/text.h"

typedef struct train_prompts train_prompts;

typedef struct train_prompts_options {
    const char *data;      /* a file, "-": standard input; NULL: */
    train_text *text;      /* of the model, for prompts that are text; used by train_prompts_open alone */
    const char *task;      /* a task */
    int32_t level;         /* of the task */
    int64_t vocab;         /* tokens are below this */
    int64_t longest;       /* tokens of a prompt at most; 0: any number */
    int32_t bad_rows;      /* ravel_bad_rows: rows that cannot be used are an error, or left out */
    int32_t numbers;       /* without data and task: questions are their numbers alone, and an environment makes them */
    int32_t need_answers;  /* a row without an answer cannot be used: nothing else can score it */
    int32_t keep_lines;    /* for train_prompts_line */
    int32_t raw;           /* a "prompt" is taken as it is, and not as a turn of the model's chat format */
    double eval_share;     /* of the rows, from the end */
    const char *eval_data; /* a file of rows for evaluation instead; NULL: none */
    uint64_t seed;         /* of the order, of the task */
} train_prompts_options;

/* Reads the whole file; E_DATA lists all that is wrong with it. */
ravel_status train_prompts_open(const train_prompts_options *options, train_prompts **prompts, ravel_error *err);
void train_prompts_free(train_prompts *prompts);

/* How many of the rows, from the end, `share` keeps for evaluation. E_ARGUMENT if it leaves none to one side. */
ravel_status train_eval_rows(int64_t rows, double share, int64_t *apart, ravel_error *err);

/* Rows that were left out. */
const train_problems *train_prompts_left_out(const train_prompts *prompts);
/* Rows of the file, and the tokens of one, in the order of the file. */
int64_t train_prompts_rows(const train_prompts *prompts);
const int32_t *train_prompts_row(const train_prompts *prompts, int64_t row, int64_t *count);
/* No prompt has more tokens. */
int64_t train_prompts_longest(const train_prompts *prompts);
/* How many questions there are for evaluation where `wanted` are asked for. */
int64_t train_prompts_eval_count(const train_prompts *prompts, int64_t wanted);
/* Whether those are never trained on. */
int train_prompts_eval_apart(const train_prompts *prompts);

/* Adds question `index` to the rollouts, as a rollout without an answer; its group is `index`. With `numbers` it is one
 * token, which stands for nothing. */
ravel_status train_prompts_add(const train_prompts *prompts, int64_t index, train_rollouts *rollouts, ravel_error *err);

/* The right answer to question `index`: its bytes, or NULL if there is none. Valid until the next call with the same
 * `question`. */
const char *train_prompts_answer(const train_prompts *prompts, int64_t index, train_question *question, size_t *bytes);
/* The row of question `index` as the file has it, one line of JSON with a NUL behind it; NULL for a task, or without
 * keep_lines. Valid until train_prompts_free. */
const char *train_prompts_line(const train_prompts *prompts, int64_t index);

#endif
