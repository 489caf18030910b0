/* RAVEL_ASSERT: invariants inside the library, which hold for any input. Bad input is never asserted: it gets a
 * status and a sentence. On in sanitizer builds and with `make ASSERT=1`, as the tests are built; a release build
 * compiles the condition and does not run it. */
#ifndef RAVEL_BASE_ASSERT_H
#define RAVEL_BASE_ASSERT_H

#ifdef RAVEL_ASSERT_ON
#include <stdio.h>
#include <stdlib.h>
#define RAVEL_ASSERT(condition) \
    ((condition)                \
         ? (void)0              \
         : (fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", __FILE__, __LINE__, __func__, #condition), abort()))
#else
#define RAVEL_ASSERT(condition) ((void)(0 && (condition)))
#endif

#endif
