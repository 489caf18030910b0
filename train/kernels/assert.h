/* TRAIN_ASSERT: invariants inside the trainer, which hold for any input. Bad input is never asserted: it gets a
 * status and a sentence. On in sanitizer builds and with `make ASSERT=1`; a release build compiles the condition and
 * does not run it. */
#ifndef TRAIN_ASSERT_H
#define TRAIN_ASSERT_H

#ifdef RAVEL_ASSERT_ON
#include <stdio.h>
#include <stdlib.h>
#define TRAIN_ASSERT(condition) \
    ((condition)                \
         ? (void)0              \
         : (fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", __FILE__, __LINE__, __func__, #condition), abort()))
#else
#define TRAIN_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

#endif
