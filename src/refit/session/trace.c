/* The trace as Chrome's JSON: "b" and "e" events with the buffer as their id, so that every buffer has a track, on
 * which packing, sending, receiving and loading follow one another. Times are microseconds of the monotonic clock,
 * which ranks of one machine share. */
#include "refit/session/trace.h"

#include "base/assert.h"
#include "base/number.h"
#include "base/options.h"
#include "refit/session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ravel__trace_add(ravel__trace *trace, int32_t phase, int32_t buffer, int64_t frame, int64_t begin_ns,
                      int64_t end_ns, int64_t bytes) {
    if (!trace->events) return;
    RAVEL_ASSERT(phase >= 0 && phase < RAVEL_REFIT_PHASES && begin_ns <= end_ns);
    int64_t at = atomic_fetch_add(&trace->count, 1);
    if (at >= RAVEL__TRACE_EVENTS) return;
    trace->events[at] = (ravel__event){begin_ns, end_ns, bytes, (int32_t)frame, (int16_t)phase, (int16_t)buffer};
}

typedef struct writer {
    ravel_status (*write)(void *user, const char *text, size_t bytes, ravel_error *err);
    void *user;
    ravel_error *err;
} writer;

static ravel_status put(const writer *w, const char *text) {
    ravel_status status = w->write(w->user, text, strlen(text), w->err);
    if (status == RAVEL_OK) return RAVEL_OK;
    return ravel_error_set(w->err, status, "the trace could not be written");
}

static ravel_status put_event(const writer *w, const ravel__event *e, int32_t rank, int comma) {
    char name[16], text[512];
    (void)ravel__choice_word(RAVEL_REFIT_PHASE_NAMES, e->phase, name, sizeof name);
    int side = e->phase >= RAVEL_REFIT_RECEIVE && e->phase <= RAVEL_REFIT_LOAD;
    (void)ravel__number_print(
        text, sizeof text,
        "%s\n{\"ph\":\"b\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":\"%d.%d\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
        "\"args\":{\"frame\":%d,\"bytes\":%" PRId64 "}},\n"
        "{\"ph\":\"e\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":\"%d.%d\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
        comma ? "," : "", side ? "in" : "out", name, rank, e->buffer, rank, side, (double)e->begin_ns * 1e-3, e->frame,
        e->bytes, side ? "in" : "out", name, rank, e->buffer, rank, side, (double)e->end_ns * 1e-3);
    return put(w, text);
}

ravel_status ravel_refit_trace(const ravel_refit *refit, int32_t first, int32_t last,
                               ravel_status (*write)(void *user, const char *text, size_t bytes, ravel_error *err),
                               void *user, ravel_error *err) {
    writer w = {write, user, err};
    char text[160];
    int64_t count = atomic_load(&refit->trace.count);
    if (!refit->trace.events)
        return ravel_error_set(err, RAVEL_E_STATE, "there is no trace: it needs options.trace before the update");
    int64_t kept = count < RAVEL__TRACE_EVENTS ? count : RAVEL__TRACE_EVENTS;
    ravel_status status = put(&w, first ? "{\"traceEvents\":[" : ",");
    (void)snprintf(text, sizeof text,
                   "\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\","
                   "\"events_left_out\":%" PRId64 "}}",
                   refit->rank, refit->rank, ravel__role_name((refit->source ? 1 : 0) | (refit->sink ? 2 : 0)),
                   count - kept);
    if (status == RAVEL_OK) status = put(&w, text);
    for (int64_t i = 0; i < kept && status == RAVEL_OK; i++)
        status = put_event(&w, &refit->trace.events[i], refit->rank, 1);
    if (status == RAVEL_OK && last) status = put(&w, "\n]}\n");
    return status;
}
