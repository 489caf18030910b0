/* The phases as a Chrome trace (chrome://tracing, Perfetto): FOLDER/trace-RANK.json, a JSON array of events.
 *
 *     [
 *     {"name":"process_name","ph":"M","pid":3,"args":{"name":"rank 3"}},
 *     {"name":"forward","cat":"phase","ph":"X","ts":...,"dur":...,"pid":3,"tid":0,"args":{"step":12}},
 *     ...
 *     {...}
 *     ]
 *
 * One event per line. The file is a whole JSON document after every update: an update writes over the closing bracket
 * and puts a new one behind. After a crash in the middle of a write, or for a resumed run, what follows the last whole
 * line is cut off first. Times are microseconds since the beginning of 2025: the files of all ranks fit together, and a
 * double holds them to 10 nanoseconds. `ravel report RUN --trace FILE` joins the files. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/system/file.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define EPOCH_NS (INT64_C(1735689600) * 1000000000) /* 2025-01-01 00:00 UTC */
enum { SPANS = 16384, EVENT_BYTES = 200, TAIL_BYTES = 3 };
static const char tail[] = "\n]\n";

typedef struct trace_sink {
    ravel__sink sink;
    int fd;
    int64_t end; /* where the tail begins */
    int any;     /* an event stands before it */
    int lost_said;
} trace_sink;

/* ---- events --------------------------------------------------------------------------------------------- */

static void put_time(ravel__text *t, int64_t ns) {
    if (ns < 0) ns = 0; /* a clock that is years behind */
    ravel__text_integer(t, ns / 1000);
    ravel__text_printf(t, ".%03d", (int)(ns % 1000));
}

static void begin_event(trace_sink *s, ravel__text *t) {
    ravel__text_puts(t, s->any ? ",\n" : "[\n");
    s->any = 1;
}

static void put_span(trace_sink *s, ravel__text *t, const char *name, const char *category, int64_t begin_ns,
                     int64_t end_ns, int64_t step) {
    RAVEL_ASSERT(name && begin_ns <= end_ns);
    const ravel_metrics *m = s->sink.metrics;
    begin_event(s, t);
    ravel__text_printf(t, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":", name, category);
    put_time(t, begin_ns + m->clock_offset_ns - EPOCH_NS);
    ravel__text_puts(t, ",\"dur\":");
    put_time(t, end_ns - begin_ns);
    ravel__text_printf(t, ",\"pid\":%d,\"tid\":0,\"args\":{\"step\":%lld}}", (int)m->reducer.rank, (long long)step);
}

/* A counter track, on rank 0 only since the values are the whole job's. */
static void put_counter(trace_sink *s, ravel__text *t, const ravel__snapshot *u, int32_t id) {
    const ravel_metrics *m = s->sink.metrics;
    if (m->reducer.rank != 0 || !ravel__shown(m, u, id) || !isfinite(ravel__real(m, u, id))) return;
    begin_event(s, t);
    ravel__text_printf(t, "{\"name\":\"%s\",\"ph\":\"C\",\"ts\":", m->row[id].name);
    put_time(t, u->time_ns - EPOCH_NS);
    ravel__text_puts(t, ",\"pid\":0,\"args\":{\"value\":");
    ravel__put_value(t, m, u, id);
    ravel__text_puts(t, "}}");
}

static void put_process_name(trace_sink *s, ravel__text *t) {
    int rank = (int)s->sink.metrics->reducer.rank;
    begin_event(s, t);
    ravel__text_printf(
        t, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d\"}}", rank, rank);
}

/* ---- the file ------------------------------------------------------------------------------------------- */

/* Writes the text over the old tail and a new tail behind it. On failure the old tail is put back. */
static ravel_status put_events(trace_sink *s, ravel__text *t, ravel_error *err) {
    RAVEL_ASSERT(s->fd >= 0 && s->end >= 0 && t->used + TAIL_BYTES <= t->room && !t->cut);
    int64_t end = s->end + (int64_t)t->used;
    ravel__text_put(t, tail, TAIL_BYTES);
    int number = lseek(s->fd, (off_t)s->end, SEEK_SET) < 0 ? errno : ravel__write_all(s->fd, t->data, t->used, NULL);
    if (!number) {
        s->end = end;
        return RAVEL_OK;
    }
    if (s->end > 0 && ftruncate(s->fd, (off_t)(s->end + TAIL_BYTES)) == 0)
        (void)!pwrite(s->fd, tail, TAIL_BYTES, (off_t)s->end);
    char what[160];
    return ravel_error_set(err, RAVEL_E_IO, "cannot write: %s", strerror_r(number, what, sizeof what));
}

static void say_lost(trace_sink *s) {
    ravel_metrics *m = s->sink.metrics;
    if (!m->spans_lost || s->lost_said) return;
    s->lost_said = 1;
    ravel__log(m->options.logger, RAVEL_LOG_WARN,
               "metrics sink trace:%s: more than %d phases in an update; the rest is left out", s->sink.target, SPANS);
}

static ravel_status write_trace(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    trace_sink *s = (trace_sink *)sink;
    ravel_metrics *m = sink->metrics;
    ravel__text t = ravel__text_begin(sink->text, sink->text_room);
    char name[48];
    (void)snprintf(name, sizeof name, "update %lld", (long long)u->step);
    int64_t now = u->time_ns - m->clock_offset_ns;
    put_span(s, &t, name, "update", m->begun_ns, now > m->begun_ns ? now : m->begun_ns, u->step);
    RAVEL_ASSERT(m->span_count <= m->span_room);
    for (int64_t i = 0; i < m->span_count; i++)
        put_span(s, &t, ravel_phase_name(m->spans[i].phase), "phase", m->spans[i].begin_ns, m->spans[i].end_ns,
                 u->step);
    put_counter(s, &t, u, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC);
    put_counter(s, &t, u, RAVEL_METRIC_IDLE_SHARE);
    say_lost(s);
    return put_events(s, &t, err);
}

/* The offset after the last event that has its newline: "}\n" or "},\n"; 0 when there is none. */
static int64_t last_event_end(int fd, int64_t size) {
    RAVEL_ASSERT(fd >= 0 && size >= 0);
    char block[4096];
    for (int64_t at = size; at > 0;) {
        int64_t from = at > (int64_t)sizeof block ? at - (int64_t)sizeof block : 0;
        ssize_t got = pread(fd, block, (size_t)(at - from), from);
        if (got != at - from) return -1;
        for (ssize_t i = got - 1; i > 0; i--)
            if (block[i] == '\n' && block[i - 1] == '}')
                return from + i;
            else if (i > 1 && block[i] == '\n' && block[i - 1] == ',' && block[i - 2] == '}')
                return from + i - 1;
        if (from == 0) return 0;
        at = from + 2; /* the blocks overlap, so that no ending is missed */
    }
    return 0;
}

static ravel_status begin_file(trace_sink *s, const char *path, ravel_error *err) {
    struct stat info;
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->fd < 0 || fstat(s->fd, &info) != 0) return ravel__file_error(err, path, "cannot open", errno);
    s->end = last_event_end(s->fd, (int64_t)info.st_size);
    if (s->end < 0 || ftruncate(s->fd, (off_t)s->end) != 0)
        return ravel__file_error(err, path, "cannot continue", errno);
    RAVEL_ASSERT(s->end >= 0 && s->end <= (int64_t)info.st_size);
    s->any = s->end > 0;
    ravel__text t = ravel__text_begin(s->sink.text, s->sink.text_room);
    if (!s->any) put_process_name(s, &t);
    return put_events(s, &t, err);
}

static ravel_status open_trace(ravel__sink *sink, const char *target, ravel_error *err) {
    trace_sink *s = (trace_sink *)sink;
    ravel_metrics *m = sink->metrics;
    s->fd = -1;
    if (!*target) return ravel_error_set(err, RAVEL_E_ARGUMENT, "it needs a folder: trace:FOLDER");
    if (m->spans) return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is a trace already");
    ravel_status status = ravel__sink_room(sink, (size_t)(SPANS + 8) * EVENT_BYTES, err);
    if (status) return status;
    if (mkdir(target, 0777) != 0 && errno != EEXIST)
        return ravel__file_error(err, target, "cannot make the folder", errno);
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/trace-%d.json", target, (int)m->reducer.rank);
    if (length < 0 || (size_t)length >= sizeof path) return ravel__file_error(err, target, "cannot use", ENAMETOOLONG);
    status = begin_file(s, path, err);
    if (status) return status;
    m->spans = ravel__calloc(m->options.allocator, SPANS, sizeof *m->spans);
    if (!m->spans) return ravel__no_memory(err, SPANS * sizeof *m->spans, "the trace");
    m->span_room = SPANS;
    return RAVEL_OK;
}

static void close_trace(ravel__sink *sink) {
    trace_sink *s = (trace_sink *)sink;
    if (s->fd >= 0) (void)close(s->fd);
}

const ravel__sink_type ravel__sink_trace = {"trace", 1, sizeof(trace_sink), open_trace, write_trace, close_trace};
