/* A driver without a device: host memory, streams that really are queues, calls that are counted and fail on demand.
 *
 * Nothing that was queued happens before somebody looks at the stream (stream_test, event_test), and then only that
 * stream moves, and what its events wait for: code that forgets to order two streams reads old bytes here. */
#ifndef TESTS_STUB_DRIVER_H
#define TESTS_STUB_DRIVER_H

#include "device/driver.h"

typedef enum stub_call {
    STUB_OPEN,
    STUB_ALLOC,
    STUB_RELEASE,
    STUB_COPY,
    STUB_FILL,
    STUB_STREAM,
    STUB_EVENT,
    STUB_RECORD,
    STUB_ORDER,
    STUB_SHARE,
    STUB_ROWS,
    STUB_COUNT,
    STUB_HASH,
    STUB_CAST,
    STUB_COMPARE,
    STUB_CALLS
} stub_call;

enum { STUB_REFUSED = 7, STUB_FULL = 8, STUB_FATAL = 9 }; /* E_DEVICE, E_MEMORY, E_DEAD */

typedef struct stub_state {
    int64_t calls[STUB_CALLS];
    int32_t fail_call;  /* the call that fails next */
    int32_t fail_after; /* so many of them succeed first; -1: none fails */
    int32_t fail_code;
    int32_t stuck;  /* streams never move */
    int64_t copied; /* bytes */
    int64_t live;   /* allocations that were not released */
} stub_state;

extern stub_state stub;
extern const ravel__driver stub_driver;
/* Counts from 0, nothing fails. */
void stub_reset(void);
void stub_fail(stub_call call, int32_t after, int32_t code);

#endif
