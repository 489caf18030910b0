#include "base/assert.h"
#include "base/system/futex.h"

#include <limits.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void ravel__futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns) {
    RAVEL_ASSERT(deadline_ns >= 0);
    struct timespec until = {(time_t)(deadline_ns / 1000000000), (long)(deadline_ns % 1000000000)};
    (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen, &until, NULL,
                  FUTEX_BITSET_MATCH_ANY); /* an absolute time on the monotonic clock */
}

void ravel__futex_wake(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

#else /* no such call: look again every 50 microseconds */

void ravel__futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns) {
    (void)deadline_ns;
    struct timespec pause = {0, 50000};
    if (atomic_load(word) == seen) (void)nanosleep(&pause, NULL);
}

void ravel__futex_wake(_Atomic uint32_t *word) {
    (void)word;
}
#endif
