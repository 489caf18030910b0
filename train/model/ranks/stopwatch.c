#include "train/model/ranks/stopwatch.h"

#include "base/assert.h"
#include "train/kernels/host.h"

static void fail(train__stopwatch *s, ravel_status status) {
    if (!s->status) s->status = status;
}

/* One more event; 0: there is no memory for it. */
static int make_event(train__stopwatch *s) {
    ravel_event **grown = train__grown(NULL, s->events, &s->room, s->made, s->made + 1, sizeof(ravel_event *));
    if (!grown) {
        fail(s, ravel__no_memory(&s->error, sizeof(ravel_event *), "marks of time"));
        return 0;
    }
    s->events = grown;
    fail(s, ravel_event_create(s->place, &s->events[s->made], &s->error));
    s->made += !s->status;
    return !s->status;
}

int64_t train__stopwatch_mark(train__stopwatch *s) {
    RAVEL_ASSERT(s->marks <= s->made && s->made <= s->room);
    if (s->status || (s->marks == s->made && !make_event(s))) return 0;
    fail(s, ravel_event_record(s->events[s->marks], s->stream, &s->error));
    return s->marks++;
}

void train__stopwatch_add(train__stopwatch *s, int32_t kind, int64_t from, int64_t to) {
    if (s->status) return;
    RAVEL_ASSERT(kind >= 0 && from >= 0 && from <= to && to < s->marks);
    train__span *grown =
        train__grown(NULL, s->spans, &s->span_room, s->span_count, s->span_count + 1, sizeof(train__span));
    if (!grown) {
        fail(s, ravel__no_memory(&s->error, sizeof(train__span), "spans of time"));
        return;
    }
    s->spans = grown;
    s->spans[s->span_count++] = (train__span){.kind = kind, .from = from, .to = to};
}

ravel_status train__stopwatch_read(train__stopwatch *s, double *seconds, int32_t kinds, ravel_error *err) {
    for (int32_t k = 0; k < kinds; k++) seconds[k] = 0;
    for (int64_t i = 0; i < s->span_count && !s->status; i++) {
        const train__span *span = &s->spans[i];
        double elapsed = 0;
        RAVEL_ASSERT(span->kind < kinds);
        fail(s, ravel_event_elapsed(s->events[span->from], s->events[span->to], &elapsed, &s->error));
        seconds[span->kind] += elapsed;
    }
    s->marks = s->span_count = 0;
    return s->status ? ravel_error_set(err, s->status, "%s", s->error.message) : RAVEL_OK;
}

void train__stopwatch_close(train__stopwatch *s) {
    for (int64_t i = 0; i < s->made; i++) ravel_event_free(s->events[i]);
    ravel__release(NULL, s->events, (size_t)s->room * sizeof(ravel_event *));
    ravel__release(NULL, s->spans, (size_t)s->span_room * sizeof *s->spans);
    *s = (train__stopwatch){0};
}
