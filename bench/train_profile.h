/* Where the time of a training step goes: a table of kernels whose slots measure the slots of another one.
 *
 *     const train_kernels *timed = profile_wrap(kernels);     open, create and run a model with it
 *     profile_clear();  ... steps ...  profile_take(rows, ROWS, steps);
 *
 * One at a time: the sums are the process's. */
#ifndef BENCH_TRAIN_PROFILE_H
#define BENCH_TRAIN_PROFILE_H

#include "train/kernels/kernels.h"

typedef struct profile_row {
    char name[48]; /* "matmul 2048x512x1536 NT", "attention", ... */
    double seconds, flops;
    int64_t calls;
} profile_row;

enum { PROFILE_ROWS = 96 };

const train_kernels *profile_wrap(const train_kernels *kernels);
void profile_clear(void);
/* The rows since profile_clear, in the order of their first calls, as means over `steps`. Returns their number. */
int profile_take(profile_row rows[PROFILE_ROWS], int steps);

#endif
