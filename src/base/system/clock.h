/* Monotonic time in nanoseconds, for deadlines and phase timers. */
#ifndef RAVEL_BASE_CLOCK_H
#define RAVEL_BASE_CLOCK_H

#include <stdint.h>

int64_t ravel__clock_ns(void);

#endif
