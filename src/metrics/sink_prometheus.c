/* Prometheus text (exposition format 0.0.4): rendering, and the file for the node exporter's textfile collector.
 *
 * Names become Prometheus names: "ravel_" in front, '/' to '_', units spelled out ("_sec" to "_seconds", "per_sec" to
 * "per_second"), "_total" behind what only grows. The collector may read at any moment, so the file is written beside
 * and renamed over the old one. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/system/file.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* ---- text ----------------------------------------------------------------------------------------------- */

/* run/ and time_total/ rows only grow; all others are of one update. */
static int only_grows(const char *name) {
    return (strncmp(name, "run/", 4) == 0 && strcmp(name, "run/tokens_per_sec") != 0) ||
           strncmp(name, "time_total/", 11) == 0;
}

static const char *word_for(const char *word, size_t length, int after_per) {
    if (length == 3 && memcmp(word, "sec", 3) == 0) return after_per ? "second" : "seconds";
    if (length == 2 && memcmp(word, "gb", 2) == 0) return "gigabytes";
    return NULL;
}

/* Word by word; a word ends at anything that is neither letter nor digit. */
static void put_name(ravel__text *t, const char *name) {
    int after_per = 0, grows = only_grows(name);
    if (strncmp(name, "time_total/", 11) == 0) { /* the suffix says it */
        ravel__text_puts(t, "ravel_time");
        name += 10;
    } else {
        ravel__text_puts(t, "ravel_");
    }
    while (*name) {
        size_t length = 0;
        while (isalnum((unsigned char)name[length])) length++;
        const char *other = word_for(name, length, after_per);
        if (other)
            ravel__text_puts(t, other);
        else
            ravel__text_put(t, name, length);
        after_per = length == 3 && memcmp(name, "per", 3) == 0;
        name += length;
        if (*name) {
            ravel__text_puts(t, "_");
            name++;
        }
    }
    if (grows) ravel__text_puts(t, "_total");
}

static void put_help(ravel__text *t, const char *doc) {
    for (; *doc; doc++) {
        if (*doc == '\\')
            ravel__text_puts(t, "\\\\");
        else if (*doc == '\n')
            ravel__text_puts(t, "\\n");
        else
            ravel__text_put(t, doc, 1);
    }
}

static void put_real(ravel__text *t, double x) {
    if (isnan(x))
        ravel__text_puts(t, "NaN");
    else if (isinf(x))
        ravel__text_puts(t, x > 0 ? "+Inf" : "-Inf");
    else
        ravel__text_real(t, x);
}

static void put_row(ravel__text *t, const ravel_metrics *m, const ravel__snapshot *u, int32_t id) {
    RAVEL_ASSERT(id >= 0 && id < m->rows && u->values[id].present);
    const ravel_metric *row = &m->row[id];
    ravel__text_puts(t, "# HELP ");
    put_name(t, row->name);
    ravel__text_puts(t, " ");
    put_help(t, row->doc);
    ravel__text_puts(t, "\n# TYPE ");
    put_name(t, row->name);
    ravel__text_puts(t, only_grows(row->name) ? " counter\n" : " gauge\n");
    put_name(t, row->name);
    ravel__text_puts(t, " ");
    if (row->kind == RAVEL_KIND_COUNTER)
        ravel__text_integer(t, u->values[id].integer);
    else
        put_real(t, u->values[id].real);
    ravel__text_puts(t, "\n");
}

static void put_ranks(ravel__text *t, const ravel__snapshot *u) {
    RAVEL_ASSERT(u->ranks && u->rank_count > 0);
    ravel__text_puts(t, "# HELP ravel_rank_busy_seconds forward and backward time of a rank in the last update\n"
                        "# TYPE ravel_rank_busy_seconds gauge\n");
    for (int32_t i = 0; i < u->rank_count; i++) {
        ravel__text_printf(t, "ravel_rank_busy_seconds{rank=\"%d\"} ", (int)i);
        ravel__text_real(t, (double)u->ranks[i].busy_ns / 1e9);
        ravel__text_puts(t, "\n");
    }
}

void ravel__prometheus_text(const ravel_metrics *m, const ravel__snapshot *u, ravel__text *t) {
    ravel__text_puts(t, "# HELP ravel_step number of the last update\n# TYPE ravel_step gauge\nravel_step ");
    ravel__text_integer(t, u->step);
    ravel__text_puts(t, "\n");
    for (int32_t id = 0; id < m->rows; id++)
        if (ravel__shown(m, u, id)) put_row(t, m, u, id);
    if (u->rank_count) put_ranks(t, u);
}

/* A name may grow by prefix, suffix and spelled-out units: at most five times itself ("gb" to "gigabytes"). */
size_t ravel__prometheus_bytes(const ravel_metrics *m) {
    size_t bytes = 512 + (size_t)m->shown_ranks * (64 + RAVEL__NUMBER_BYTES);
    for (int32_t id = 0; id < m->rows; id++)
        bytes += 3 * (5 * strlen(m->row[id].name) + 16) + 2 * strlen(m->row[id].doc) + RAVEL__NUMBER_BYTES + 32;
    return bytes;
}

/* ---- the file ------------------------------------------------------------------------------------------- */

typedef struct prometheus_sink {
    ravel__sink sink;
    int replace; /* a file beside is renamed to the target; else that is a device or a pipe */
    char target[4096];
} prometheus_sink;

static ravel_status replace(const prometheus_sink *s, const char *data, size_t bytes, ravel_error *err) {
    char beside[4096 + 64];
    RAVEL_ASSERT(data || !bytes);
    int fd =
        s->replace ? ravel__temporary_open(s->target, beside, sizeof beside) : open(s->target, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ravel__file_error(err, s->replace ? beside : s->target, "cannot create", errno);
    int number = ravel__write_all(fd, data, bytes, NULL);
    if (close(fd) != 0 && !number) number = errno;
    if (!number && s->replace && rename(beside, s->target) != 0) number = errno;
    if (!number) return RAVEL_OK;
    if (s->replace) (void)unlink(beside);
    return ravel__file_error(err, s->sink.target, "cannot write", number);
}

static ravel_status write_file(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    ravel__text t = ravel__text_begin(sink->text, sink->text_room);
    ravel__prometheus_text(sink->metrics, u, &t);
    RAVEL_ASSERT(!t.cut);
    return replace((prometheus_sink *)sink, t.data, t.used, err);
}

static ravel_status open_file(ravel__sink *sink, const char *target, ravel_error *err) {
    prometheus_sink *s = (prometheus_sink *)sink;
    if (!*target || strcmp(target, "-") == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "it needs a file: prometheus:FOLDER/ravel.prom");
    ravel_status status = ravel__file_resolve(target, s->target, sizeof s->target, &s->replace, err);
    if (status) return status;
    status = ravel__sink_room(sink, ravel__prometheus_bytes(sink->metrics), err);
    return status ? status : replace(s, "", 0, err); /* an empty exposition: a bad path is found now */
}

static void close_file(ravel__sink *sink) {
    (void)sink;
}

const ravel__sink_type ravel__sink_prometheus = {"prometheus", 0,          sizeof(prometheus_sink),
                                                 open_file,    write_file, close_file};
