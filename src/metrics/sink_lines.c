/* JSONL and CSV: one line per update.
 *
 *     {"step":12,"time":1760000000.25,"tokens/capacity":65536,...,"ranks":{"busy_sec":[...],"padded":[...]}}
 *
 * A metric that has no value in an update is left out of the object, and is an empty cell of the table. A value that
 * is not finite is null in JSON, which knows no NaN. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>

typedef struct line_sink {
    ravel__sink sink;
    ravel__appender file;
    char *keys; /* JSONL: every name as ,"name": one after the other */
    size_t keys_bytes;
    size_t *key_ends; /* [rows] */
} line_sink;

static void close_lines(ravel__sink *sink) {
    line_sink *s = (line_sink *)sink;
    const ravel_allocator *a = sink->metrics->options.allocator;
    ravel__appender_close(&s->file);
    ravel__release(a, s->keys, s->keys_bytes);
    ravel__release(a, s->key_ends, (size_t)sink->metrics->rows * sizeof *s->key_ends);
}

/* Names with every byte escaped, a number each, and the punctuation around them. */
static size_t line_bytes(const ravel_metrics *m) {
    size_t bytes = 256 + (size_t)m->shown_ranks * 2 * RAVEL__NUMBER_BYTES;
    for (int32_t id = 0; id < m->rows; id++) bytes += 6 * strlen(m->row[id].name) + RAVEL__NUMBER_BYTES + 8;
    return bytes;
}

/* ---- JSONL ---------------------------------------------------------------------------------------------- */

static void put_json_real(ravel__text *t, double x) {
    if (isfinite(x))
        ravel__text_real(t, x);
    else
        ravel__text_puts(t, "null");
}

static void put_ranks(ravel__text *t, const ravel__snapshot *u) {
    ravel__text_puts(t, ",\"ranks\":{\"busy_sec\":[");
    for (int32_t i = 0; i < u->rank_count; i++) {
        if (i) ravel__text_puts(t, ",");
        ravel__text_real(t, (double)u->ranks[i].busy_ns / 1e9);
    }
    ravel__text_puts(t, "],\"padded\":[");
    for (int32_t i = 0; i < u->rank_count; i++) {
        if (i) ravel__text_puts(t, ",");
        ravel__text_integer(t, u->ranks[i].padded);
    }
    ravel__text_puts(t, "]}");
}

static ravel_status write_jsonl(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    const ravel_metrics *m = sink->metrics;
    const line_sink *s = (const line_sink *)sink;
    ravel__text t = ravel__text_begin(sink->text, sink->text_room);
    ravel__text_puts(&t, "{\"step\":");
    ravel__text_integer(&t, u->step);
    ravel__text_printf(&t, ",\"time\":%.3f", (double)u->time_ns / 1e9);
    for (int32_t id = 0; id < m->rows; id++) {
        if (!ravel__shown(m, u, id)) continue;
        size_t key = id ? s->key_ends[id - 1] : 0;
        RAVEL_ASSERT(key < s->key_ends[id] && s->key_ends[id] <= s->keys_bytes);
        ravel__text_put(&t, s->keys + key, s->key_ends[id] - key);
        if (m->row[id].kind == RAVEL_KIND_COUNTER)
            ravel__text_integer(&t, u->values[id].integer);
        else
            put_json_real(&t, u->values[id].real);
    }
    RAVEL_ASSERT(u->rank_count <= m->shown_ranks);
    if (u->rank_count) put_ranks(&t, u);
    ravel__text_puts(&t, "}\n");
    return ravel__appender_put(&((line_sink *)sink)->file, t.data, t.used, err);
}

/* Names are quoted once. */
static ravel_status quote_keys(line_sink *s, ravel_error *err) {
    const ravel_metrics *m = s->sink.metrics;
    s->keys_bytes = line_bytes(m);
    s->keys = ravel__alloc(m->options.allocator, s->keys_bytes);
    s->key_ends = ravel__calloc(m->options.allocator, (size_t)m->rows, sizeof *s->key_ends);
    if (!s->keys || !s->key_ends) return ravel__no_memory(err, s->keys_bytes, "the names of metrics");
    ravel__text t = ravel__text_begin(s->keys, s->keys_bytes);
    for (int32_t id = 0; id < m->rows; id++) {
        ravel__text_puts(&t, ",");
        ravel__text_quote(&t, m->row[id].name);
        ravel__text_puts(&t, ":");
        RAVEL_ASSERT(!t.cut);
        s->key_ends[id] = t.used;
    }
    return RAVEL_OK;
}

static ravel_status open_jsonl(ravel__sink *sink, const char *target, ravel_error *err) {
    line_sink *s = (line_sink *)sink;
    s->file.fd = -1;
    ravel_status status = ravel__sink_room(sink, line_bytes(sink->metrics), err);
    if (!status) status = quote_keys(s, err);
    return status ? status : ravel__appender_open(&s->file, target, -1, err);
}

/* ---- CSV ------------------------------------------------------------------------------------------------ */

static void put_csv_name(ravel__text *t, const char *name) {
    if (!strpbrk(name, ",\"\r\n")) {
        ravel__text_puts(t, name);
        return;
    }
    ravel__text_puts(t, "\"");
    for (; *name; name++) ravel__text_put(t, *name == '"' ? "\"\"" : name, *name == '"' ? 2 : 1);
    ravel__text_puts(t, "\"");
}

static void put_csv_header(const ravel_metrics *m, ravel__text *t) {
    ravel__text_puts(t, "step,time");
    for (int32_t id = 0; id < m->rows; id++) {
        if (!m->enabled[id]) continue;
        ravel__text_puts(t, ",");
        put_csv_name(t, m->row[id].name);
    }
    ravel__text_puts(t, "\n");
}

static ravel_status write_csv(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    const ravel_metrics *m = sink->metrics;
    ravel__text t = ravel__text_begin(sink->text, sink->text_room);
    ravel__text_integer(&t, u->step);
    ravel__text_printf(&t, ",%.3f", (double)u->time_ns / 1e9);
    for (int32_t id = 0; id < m->rows; id++) {
        if (!m->enabled[id]) continue;
        ravel__text_puts(&t, ",");
        if (u->values[id].present) ravel__put_value(&t, m, u, id);
    }
    ravel__text_puts(&t, "\n");
    return ravel__appender_put(&((line_sink *)sink)->file, t.data, t.used, err);
}

/* Whether the file begins with exactly this header. */
static int has_header(int fd, const ravel__text *header) {
    RAVEL_ASSERT(fd >= 0 && header->used <= header->room);
    char block[4096];
    for (size_t at = 0; at < header->used;) {
        size_t want = header->used - at < sizeof block ? header->used - at : sizeof block;
        ssize_t got = pread(fd, block, want, (off_t)at);
        if (got <= 0 || memcmp(block, header->data + at, (size_t)got) != 0) return 0;
        at += (size_t)got;
    }
    return 1;
}

/* A file with other columns (an older version, another kind of run) is left alone: FILE.2, FILE.3, ... take over. */
static ravel_status open_csv(ravel__sink *sink, const char *target, ravel_error *err) {
    line_sink *s = (line_sink *)sink;
    s->file.fd = -1;
    ravel_status status = ravel__sink_room(sink, line_bytes(sink->metrics), err);
    if (status) return status;
    ravel__text header = ravel__text_begin(sink->text, sink->text_room);
    put_csv_header(sink->metrics, &header);
    RAVEL_ASSERT(!header.cut && header.used > 0);
    for (int number = 1; number < 1000; number++) {
        char path[4096];
        char suffix[8] = "";
        if (number > 1) (void)snprintf(suffix, sizeof suffix, ".%d", number);
        (void)snprintf(path, sizeof path, "%s%s", target, suffix);
        status = ravel__appender_open(&s->file, path, -1, err);
        if (status) return status;
        if (!s->file.regular || s->file.end == 0) return ravel__appender_put(&s->file, header.data, header.used, err);
        if (has_header(s->file.fd, &header)) return RAVEL_OK;
        ravel__log(sink->metrics->options.logger, RAVEL_LOG_INFO, "%s has other columns and is left alone", path);
        ravel__appender_close(&s->file);
    }
    return ravel_error_set(err, RAVEL_E_IO, "%s and 998 files beside it have other columns", target);
}

const ravel__sink_type ravel__sink_jsonl = {"jsonl", 0, sizeof(line_sink), open_jsonl, write_jsonl, close_lines};
const ravel__sink_type ravel__sink_csv = {"csv", 0, sizeof(line_sink), open_csv, write_csv, close_lines};
