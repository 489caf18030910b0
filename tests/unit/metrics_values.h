/* An object, and the values of its last update, which must be there: for tests of metrics. */
#ifndef TESTS_METRICS_VALUES_H
#define TESTS_METRICS_VALUES_H

#include "tests/unit/check.h"

#include <ravel/metrics.h>

static inline ravel_metrics *make(const ravel_metrics_options *options) {
    ravel_metrics *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_metrics_create(options, &m, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return m;
}

static inline double value(ravel_metrics *m, const char *name) {
    double x = -12345;
    if (!ravel_metrics_get(m, name, &x)) check_fail(__FILE__, __LINE__, "%s has no value", name);
    return x;
}

static inline int64_t integer(ravel_metrics *m, int32_t id) {
    int64_t x = -12345;
    if (!ravel_metrics_integer(m, id, &x)) check_fail(__FILE__, __LINE__, "row %d has no integer", (int)id);
    return x;
}

static inline int absent(ravel_metrics *m, const char *name) {
    double x;
    return !ravel_metrics_get(m, name, &x);
}

#endif
