/* Normally distributed test data, by Marsaglia's polar method. */
#ifndef TESTS_NORMAL_H
#define TESTS_NORMAL_H

#include "base/rng.h"

#include <math.h>

static inline double ravel__rng_normal(ravel__rng *r) {
    double u, v, s;
    do {
        u = 2 * ravel__rng_unit(r) - 1;
        v = 2 * ravel__rng_unit(r) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    return u * sqrt(-2 * log(s) / s);
}

#endif
