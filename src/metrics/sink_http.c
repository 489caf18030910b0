/* The metrics endpoint: a thread that steps a server of at most 8 connections (http/http.h). A page is made when it is
 * asked for, from a copy of the last update. It listens on 127.0.0.1 unless told otherwise, answers GET and HEAD only,
 * and never looks at a path on disk. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/memory.h"

#include "http/http.h"

#include <stdatomic.h>

static const char page_type[] = "text/plain; version=0.0.4; charset=utf-8";

typedef struct http_sink {
    ravel__sink sink;
    ravel__http_server *server;
    atomic_int stop;
    int running;
    pthread_t thread;
    ravel__snapshot copy; /* the thread's own */
} http_sink;

/* The values of the last update, copied under the lock; rendering happens outside it. */
static void copy_last(http_sink *s) {
    ravel_metrics *m = s->sink.metrics;
    ravel__value *values = s->copy.values;
    ravel__rank_value *ranks = s->copy.ranks;
    pthread_mutex_lock(&m->lock);
    RAVEL_ASSERT(values && m->last.rank_count <= m->shown_ranks);
    s->copy = m->last;
    memcpy(values, m->last.values, (size_t)m->rows * sizeof *values);
    if (m->shown_ranks) memcpy(ranks, m->last.ranks, (size_t)m->last.rank_count * sizeof *ranks);
    pthread_mutex_unlock(&m->lock);
    s->copy.values = values;
    s->copy.ranks = ranks;
}

static void answer_page(http_sink *s, ravel__http_server *server, uint64_t id) {
    ravel__text page = ravel__text_begin(s->sink.text, s->sink.text_room);
    copy_last(s);
    if (s->copy.updates) ravel__prometheus_text(s->sink.metrics, &s->copy, &page);
    (void)ravel__http_server_answer(server, id, 200, page_type, NULL, page.data, page.used);
}

static void handle(void *user, ravel__http_server *server, const ravel__http_request *r) {
    static const char not_found[] = "404 Not Found\n", not_allowed[] = "405 Method Not Allowed\n";
    if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0)
        (void)ravel__http_server_answer(server, r->id, 405, "text/plain", "Allow: GET, HEAD\r\n", not_allowed,
                                        sizeof not_allowed - 1);
    else if (strcmp(r->path, "/metrics") == 0)
        answer_page(user, server, r->id);
    else if (strcmp(r->path, "/healthz") == 0)
        (void)ravel__http_server_answer(server, r->id, 204, NULL, NULL, NULL, 0);
    else if (strcmp(r->path, "/") == 0)
        (void)ravel__http_server_answer(server, r->id, 302, NULL, "Location: /metrics\r\n", NULL, 0);
    else
        (void)ravel__http_server_answer(server, r->id, 404, "text/plain", NULL, not_found, sizeof not_found - 1);
}

static void *serve(void *user) {
    http_sink *s = user;
    while (!atomic_load(&s->stop) && ravel__http_server_step(s->server, -1, NULL) == RAVEL_OK) {}
    return NULL;
}

static ravel_status open_http(ravel__sink *sink, const char *target, ravel_error *err) {
    http_sink *s = (http_sink *)sink;
    ravel_metrics *m = sink->metrics;
    ravel__http_server_options o;
    ravel__http_server_options_default(&o);
    o.listen = target;
    o.connections = 8;
    o.head_bytes = 4096;
    o.request_seconds = 2;
    o.idle_seconds = 0;
    o.send_seconds = 5;
    o.handle = handle;
    o.user = s;
    o.allocator = m->options.allocator;
    s->copy.values = ravel__calloc(m->options.allocator, (size_t)m->rows, sizeof *s->copy.values);
    if (m->shown_ranks)
        s->copy.ranks = ravel__calloc(m->options.allocator, (size_t)m->shown_ranks, sizeof *s->copy.ranks);
    if (!s->copy.values || (m->shown_ranks && !s->copy.ranks))
        return ravel__no_memory(err, (size_t)m->rows * sizeof *s->copy.values, "the metrics endpoint");
    ravel_status status = ravel__sink_room(&s->sink, ravel__prometheus_bytes(m), err);
    if (!status) status = ravel__http_server_create(&o, &s->server, err);
    if (status) return status;
    if (pthread_create(&s->thread, NULL, serve, s) != 0)
        return ravel_error_set(err, RAVEL_E_IO, "cannot start a thread for http:%s", target);
    s->running = 1;
    return RAVEL_OK;
}

static ravel_status write_http(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    (void)sink;
    (void)u;
    (void)err;
    return RAVEL_OK; /* readers connect at any time */
}

static void close_http(ravel__sink *sink) {
    http_sink *s = (http_sink *)sink;
    if (s->running) {
        atomic_store(&s->stop, 1);
        ravel__http_server_wake(s->server);
        (void)pthread_join(s->thread, NULL);
    }
    ravel__http_server_free(s->server);
    const ravel_metrics *m = sink->metrics;
    ravel__release(m->options.allocator, s->copy.values, (size_t)m->rows * sizeof *s->copy.values);
    ravel__release(m->options.allocator, s->copy.ranks, (size_t)m->shown_ranks * sizeof *s->copy.ranks);
}

int32_t ravel__http_sink_port(const ravel__sink *sink) {
    const http_sink *s = (const http_sink *)sink;
    return s->server ? ravel__http_server_port(s->server) : 0;
}

const ravel__sink_type ravel__sink_http = {"http", 0, sizeof(http_sink), open_http, write_http, close_http};
