/* train/rl/task.h: verifiable tasks over bytes. A task makes questions with one right answer each, and scores what a
 * model answers, so that reinforcement learning has exact rewards without a data set.
 *
 *     arithmetic   "37+58="        "95"
 *     sort         "sort 4718:"    "1478"
 *     reverse      "rev hvkq:"     "qkvh"
 *     copy         "copy hvkq:"    "hvkq"
 *     upper        "up hvkq:"      "HVKQ"
 *     count        "count a in bacab:"   "2"
 *
 * Question number i of (task, seed, level) is a pure function: every rank, epoch and resumed run sees the same one.
 * Text is bytes, as a byte model has them (train/learn/choice.h). */
#ifndef TRAIN_TASK_H
#define TRAIN_TASK_H

#include "train/learn/choice.h"

enum {
    TRAIN_TASK_TEXT = 128,
    TRAIN_TASK_TOKENS = 2 * TRAIN_TASK_TEXT + 2, /* the most of a question and its answer */
    TRAIN_TASK_PROMPT = 32                       /* the most tokens of a prompt, the begin token included */
};

/* Questions from here on are for evaluation: training never reaches them. */
#define TRAIN_EVAL_FIRST (INT64_C(1) << 40)

typedef struct train_question {
    char prompt[TRAIN_TASK_TEXT]; /* NUL-terminated, printable */
    char answer[TRAIN_TASK_TEXT]; /* without the end token */
} train_question;

typedef struct train_task train_task;

/* The task called `name`; E_ARGUMENT lists the names and suggests one. */
ravel_status train_task_find(const char *name, const train_task **task, ravel_error *err);
/* The i-th task's name and one line about it; NULL after the last. */
const char *train_task_name(int32_t index);
const char *train_task_doc(int32_t index);

/* Question `index`. `level` (1 .. 12) is how hard: digits of a number, length of a word. */
void train_task_make(const train_task *task, uint64_t seed, int64_t index, int32_t level, train_question *question);

/* 1 for the right answer. Else `partial` (0 .. 1) times the share of positions that are right, so that a model that
 * gets nothing right yet still sees different rewards. `response` is what came before the end token; `ended` whether
 * there was one: an answer that never ends is not right. */
double train_task_score(const train_question *question, const char *response, size_t bytes, int ended, double partial);

/* Prompt (with the begin token) and, where `answer` is set, the answer with its end token, as tokens. Returns how many
 * there are; *prompt_tokens of them are the prompt. tokens[TRAIN_TASK_TOKENS]. */
int64_t train_task_tokens(const train_question *question, int answer, int32_t *tokens, int64_t *prompt_tokens);

#endif
