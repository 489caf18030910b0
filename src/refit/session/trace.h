/* Events of one update: what happened to which buffer when. A list of fixed size, filled from three threads. */
#ifndef RAVEL_REFIT_TRACE_H
#define RAVEL_REFIT_TRACE_H

#include <ravel/refit.h>

#include <stdatomic.h>

enum { RAVEL__TRACE_EVENTS = 4096 };

typedef struct ravel__event {
    int64_t begin_ns, end_ns;
    int64_t bytes;
    int32_t frame;  /* number of the frame on this rank */
    int16_t phase;  /* ravel_refit_phase */
    int16_t buffer; /* -1: none */
} ravel__event;

typedef struct ravel__trace {
    ravel__event *events;  /* [RAVEL__TRACE_EVENTS]; NULL: off */
    _Atomic int64_t count; /* also of those that had no room */
} ravel__trace;

void ravel__trace_add(ravel__trace *trace, int32_t phase, int32_t buffer, int64_t frame, int64_t begin_ns,
                      int64_t end_ns, int64_t bytes);

#endif
