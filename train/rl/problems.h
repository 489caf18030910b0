/* train/rl/problems.h: all problems of a data file in one error: the number of bad rows, and the first few
 * sentences. */
#ifndef TRAIN_PROBLEMS_H
#define TRAIN_PROBLEMS_H

#include <ravel/base.h>

enum { TRAIN_PROBLEMS_SHOWN = 5, TRAIN_PROBLEM_BYTES = 400 };

typedef struct train_problems {
    int64_t count;
    char first[TRAIN_PROBLEMS_SHOWN][TRAIN_PROBLEM_BYTES]; /* "train.jsonl:17: ..." */
} train_problems;

/* Takes the sentence and leaves `err` empty. */
void train_problems_add(train_problems *problems, ravel_error *err);
/* Adds those of a later part of the file. */
void train_problems_merge(train_problems *problems, const train_problems *later);
/* The list, one sentence per line; a sentence that is longer than its share of text[bytes] ends with "...". Returns the
 * length. */
size_t train_problems_text(const train_problems *problems, char *text, size_t bytes);
/* E_DATA with the list where there are problems, else RAVEL_OK. */
ravel_status train_problems_error(const train_problems *problems, const char *path, int64_t rows, ravel_error *err);

#endif
