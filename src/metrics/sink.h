/* Shared by the sinks. A kind is a row of the table in sink.c: a word, and three functions.
 *
 * Sinks run on the training thread, after the values are published. They write with few system calls and return; none
 * waits for a reader, none allocates after `open`. sink.c reports an error once, and the sink tries again at each
 * update, so that later lines are written once the disk has room again. */
#ifndef RAVEL_METRICS_SINK_H
#define RAVEL_METRICS_SINK_H

#include "metrics/state.h"
#include "metrics/text.h"

typedef struct ravel__sink_type {
    const char *word;
    int every_rank; /* opened on every rank, else on rank 0 only */
    size_t bytes;   /* of the struct, which begins with a ravel__sink */
    /* `target` may be "". */
    ravel_status (*open)(ravel__sink *sink, const char *target, ravel_error *err);
    ravel_status (*write)(ravel__sink *sink, const ravel__snapshot *update, ravel_error *err);
    void (*close)(ravel__sink *sink); /* also after a failed open */
} ravel__sink_type;

struct ravel__sink {
    const ravel__sink_type *type;
    ravel_metrics *metrics;
    int64_t every;
    int64_t lost; /* updates that could not be written */
    int32_t failing, reported;
    char *target; /* as given */
    size_t target_bytes;
    char *text; /* [text_room] */
    size_t text_room;
};

/* A file that is appended to in whole pieces. */
typedef struct ravel__appender {
    int fd; /* -1: closed */
    int own;
    int regular;
    int torn;    /* a pipe got a part of a piece: the next one begins on a new line */
    int64_t end; /* bytes that are whole, in a regular file */
} ravel__appender;

/* Opens a file, "-" (standard output) or "" (`otherwise`, a file descriptor; -1: an error). An existing file is cut
 * after its last newline. */
ravel_status ravel__appender_open(ravel__appender *a, const char *path, int otherwise, ravel_error *err);
/* All of it or, in a regular file, nothing: what was written of a piece that failed is cut off again; in a pipe it is
 * ended with a newline before the next piece. A closed pipe is an error, not a signal. */
ravel_status ravel__appender_put(ravel__appender *a, const char *data, size_t bytes, ravel_error *err);
void ravel__appender_close(ravel__appender *a);
/* write(2) until done, SIGPIPE held back. Returns 0, or errno; *wrote (may be NULL): the bytes that went out. */
int ravel__write_all(int fd, const char *data, size_t bytes, size_t *wrote);

/* Room for the text of one update; E_MEMORY. */
ravel_status ravel__sink_room(ravel__sink *sink, size_t bytes, ravel_error *err);

/* Values as sinks want them. */
static inline int ravel__shown(const ravel_metrics *m, const ravel__snapshot *u, int32_t id) {
    return m->enabled[id] && u->values[id].present;
}
static inline double ravel__real(const ravel_metrics *m, const ravel__snapshot *u, int32_t id) {
    return m->row[id].kind == RAVEL_KIND_COUNTER ? (double)u->values[id].integer : u->values[id].real;
}
void ravel__put_value(ravel__text *t, const ravel_metrics *m, const ravel__snapshot *u, int32_t id);

/* sink_prometheus.c: at most this many bytes for this object's rows, and the text. */
size_t ravel__prometheus_bytes(const ravel_metrics *m);
void ravel__prometheus_text(const ravel_metrics *m, const ravel__snapshot *u, ravel__text *t);
/* sink_http.c */
int32_t ravel__http_sink_port(const ravel__sink *sink);

extern const ravel__sink_type ravel__sink_log, ravel__sink_progress, ravel__sink_jsonl, ravel__sink_csv,
    ravel__sink_tensorboard, ravel__sink_prometheus, ravel__sink_http, ravel__sink_trace;

#endif
