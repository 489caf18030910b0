/* The metrics endpoint: one thread, at most 8 connections, each with a fixed buffer and a deadline.
 *
 *     listener --accept--> slot: READING --request whole--> WRITING --all sent--> closed
 *                                   |  2 s                     |  5 s
 *                                   +--> 408                   +--> closed
 *
 * Everything is non-blocking under one poll(), so that a client that sends or reads nothing only holds one slot until
 * its deadline. When all slots are taken, further clients wait in the backlog for one that is done, or for one that has
 * been READING for 200 ms, which then gets its 408 early: many silent clients do not keep a scraper out. The text is
 * made when a request is whole, from a copy of the last update. It listens on 127.0.0.1 unless told otherwise; it
 * answers GET and HEAD only, and never looks at a path on disk. */
#include "metrics/sink.h"
#include "metrics/http.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/memory.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 8, HEAD_BYTES = 256, READ_MS = 2000, WRITE_MS = 5000, GRACE_MS = 200 };

typedef struct slot {
    int fd; /* -1: free */
    int writing;
    int64_t deadline_ns;
    size_t got;         /* of the request */
    size_t sent, bytes; /* of the answer */
    char in[RAVEL__HTTP_REQUEST_BYTES];
    char *out; /* [out_room] */
} slot;

typedef struct http_sink {
    ravel__sink sink;
    int listener, wake[2]; /* a byte in wake[1] ends the thread */
    int running;
    int32_t port;
    pthread_t thread;
    ravel__snapshot copy; /* the thread's own */
    size_t out_room;
    slot slots[SLOTS];
} http_sink;

/* ---- answers -------------------------------------------------------------------------------------------- */

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

/* The body is written behind room for the head, and the head put right in front of it. */
static void make_answer(http_sink *s, slot *c, int code, int head_only) {
    RAVEL_ASSERT(c->fd >= 0 && !c->writing && s->out_room > HEAD_BYTES);
    ravel__text body = ravel__text_begin(c->out + HEAD_BYTES, s->out_room - HEAD_BYTES);
    if (code == 200) {
        copy_last(s);
        if (s->copy.updates) ravel__prometheus_text(s->sink.metrics, &s->copy, &body);
    } else if (code != 204) {
        ravel__text_printf(&body, "%d %s\n", code, ravel__http_reason(code));
    }
    char head[HEAD_BYTES];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                          "Content-Length: %zu\r\n%sConnection: close\r\n\r\n",
                          code, ravel__http_reason(code), body.used,
                          code == 302   ? "Location: /metrics\r\n"
                          : code == 405 ? "Allow: GET, HEAD\r\n"
                                        : "");
    RAVEL_ASSERT(length > 0 && length < HEAD_BYTES && body.used <= s->out_room - HEAD_BYTES);
    size_t start = HEAD_BYTES - (size_t)length;
    memcpy(c->out + start, head, (size_t)length);
    c->sent = start;
    c->bytes = HEAD_BYTES + (head_only ? 0 : body.used);
    c->writing = 1;
    c->deadline_ns = ravel__clock_ns() + (int64_t)WRITE_MS * 1000000;
}

/* ---- connections ---------------------------------------------------------------------------------------- */

static void drop(slot *c) {
    RAVEL_ASSERT(c->fd >= 0);
    (void)shutdown(c->fd, SHUT_WR);
    (void)close(c->fd);
    c->fd = -1;
}

static void take_request(http_sink *s, slot *c) {
    RAVEL_ASSERT(c->fd >= 0 && !c->writing && c->got < sizeof c->in);
    ssize_t got = recv(c->fd, c->in + c->got, sizeof c->in - c->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        drop(c);
        return;
    }
    c->got += (size_t)got;
    int head_only, code = ravel__http_answer(c->in, c->got, &head_only);
    if (code) make_answer(s, c, code, head_only);
}

static void send_answer(slot *c) {
    RAVEL_ASSERT(c->fd >= 0 && c->writing && c->sent < c->bytes);
    ssize_t sent = send(c->fd, c->out + c->sent, c->bytes - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) c->sent += (size_t)sent;
    if (sent < 0 || c->sent == c->bytes) drop(c);
}

static int is_reading(const slot *c) {
    return c->fd >= 0 && !c->writing;
}

/* The slot for the next client: one that is free, or else the one that has been reading longest. NULL: all write. */
static slot *next_slot(http_sink *s) {
    slot *oldest = NULL;
    for (int i = 0; i < SLOTS; i++) {
        slot *c = &s->slots[i];
        if (c->fd < 0) return c;
        if (is_reading(c) && (!oldest || c->deadline_ns < oldest->deadline_ns)) oldest = c;
    }
    return oldest;
}

/* Milliseconds until a client can be let in: 0 now, -1 when a slot has been written out. */
static int door_opens(http_sink *s, int64_t now) {
    const slot *c = next_slot(s);
    if (!c) return -1;
    if (c->fd < 0) return 0;
    int64_t left = (c->deadline_ns - now) / 1000000 - (READ_MS - GRACE_MS) + 1;
    return left > 0 ? (int)left : 0;
}

static void accept_one(http_sink *s) {
    slot *c = next_slot(s);
    if (!c) return;
    if (c->fd >= 0) { /* its time was up when others came */
        make_answer(s, c, 408, 0);
        send_answer(c);
        if (c->fd >= 0) drop(c);
    }
    RAVEL_ASSERT(c->fd < 0);
    c->fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (c->fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        (void)poll(NULL, 0, GRACE_MS); /* the client stays in the backlog, and poll would return at once */
    c->writing = 0;
    c->got = 0;
    c->deadline_ns = ravel__clock_ns() + (int64_t)READ_MS * 1000000;
}

static void serve_slot(http_sink *s, slot *c, short events, int64_t now) {
    if (c->fd < 0) return;
    if (now > c->deadline_ns) {
        if (c->writing)
            drop(c);
        else
            make_answer(s, c, 408, 0);
    }
    if (c->fd >= 0 && !c->writing && events) take_request(s, c);
    if (c->fd >= 0 && c->writing) send_answer(c);
}

/* The shorter of two waits in milliseconds; -1: no limit. */
static int sooner(int a, int b) {
    return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

/* Fills the poll set; returns the milliseconds until something is due, -1 for nothing. */
static int prepare(http_sink *s, struct pollfd *fds, int64_t now) {
    int door = door_opens(s, now), wait = door > 0 ? door : -1;
    for (int i = 0; i < SLOTS; i++) {
        const slot *c = &s->slots[i];
        struct pollfd row = {c->fd, c->writing ? POLLOUT : POLLIN, 0};
        fds[i] = row;
        int64_t left = (c->deadline_ns - now) / 1000000 + 1;
        if (c->fd >= 0) wait = sooner(wait, left > 0 ? (int)left : 0);
    }
    struct pollfd end = {s->wake[0], POLLIN, 0}, listener = {door == 0 ? s->listener : -1, POLLIN, 0};
    fds[SLOTS] = end;
    fds[SLOTS + 1] = listener;
    return wait;
}

static void *serve(void *user) {
    http_sink *s = user;
    struct pollfd fds[SLOTS + 2];
    for (;;) {
        int wait = prepare(s, fds, ravel__clock_ns());
        if (poll(fds, SLOTS + 2, wait) < 0 && errno != EINTR) break;
        if (fds[SLOTS].revents) break;
        int64_t now = ravel__clock_ns();
        for (int i = 0; i < SLOTS; i++) serve_slot(s, &s->slots[i], fds[i].revents, now);
        if (fds[SLOTS + 1].revents) accept_one(s);
    }
    return NULL;
}

/* ---- opening and closing -------------------------------------------------------------------------------- */

/* "9464", "127.0.0.1:9464", "0.0.0.0:9464". */
static ravel_status parse_address(const char *target, struct sockaddr_in *address, ravel_error *err) {
    char host[64] = "127.0.0.1";
    const char *colon = strrchr(target, ':'), *digits = colon ? colon + 1 : target;
    if (colon && (size_t)(colon - target) < sizeof host) {
        memcpy(host, target, (size_t)(colon - target));
        host[colon - target] = '\0';
    }
    char *end;
    long port = strtol(digits, &end, 10);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    if (*digits < '0' || *digits > '9' || *end || port > 65535 || inet_pton(AF_INET, host, &address->sin_addr) != 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "\"%s\" is not a port from 0 to 65535, nor an IPv4 address and a port: http:9464 or "
                               "http:0.0.0.0:9464",
                               target);
    address->sin_port = htons((uint16_t)port);
    return RAVEL_OK;
}

static ravel_status start_listening(http_sink *s, const char *target, ravel_error *err) {
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    ravel_status status = parse_address(target, &address, err);
    if (status) return status;
    int yes = 1;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0 || setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(s->listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(s->listener, 64) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&address, &bytes) != 0 || pipe2(s->wake, O_CLOEXEC) != 0) {
        char what[160];
        return ravel_error_set(err, RAVEL_E_IO, "cannot listen on %s: %s", target,
                               strerror_r(errno, what, sizeof what));
    }
    RAVEL_ASSERT(s->listener >= 0 && s->wake[0] >= 0 && s->wake[1] >= 0);
    s->port = ntohs(address.sin_port);
    return RAVEL_OK;
}

static ravel_status allocate(http_sink *s, ravel_error *err) {
    ravel_metrics *m = s->sink.metrics;
    s->out_room = HEAD_BYTES + ravel__prometheus_bytes(m);
    s->copy.values = ravel__calloc(m->options.allocator, (size_t)m->rows, sizeof *s->copy.values);
    if (m->shown_ranks)
        s->copy.ranks = ravel__calloc(m->options.allocator, (size_t)m->shown_ranks, sizeof *s->copy.ranks);
    if (!s->copy.values || (m->shown_ranks && !s->copy.ranks))
        return ravel__no_memory(err, (size_t)m->rows * sizeof *s->copy.values, "the metrics endpoint");
    ravel_status status = ravel__sink_room(&s->sink, SLOTS * s->out_room, err);
    for (int i = 0; !status && i < SLOTS; i++) s->slots[i].out = s->sink.text + (size_t)i * s->out_room;
    return status;
}

static ravel_status open_http(ravel__sink *sink, const char *target, ravel_error *err) {
    http_sink *s = (http_sink *)sink;
    s->listener = s->wake[0] = s->wake[1] = -1;
    for (int i = 0; i < SLOTS; i++) s->slots[i].fd = -1;
    ravel_status status = allocate(s, err);
    if (!status) status = start_listening(s, target, err);
    if (status) return status;
    RAVEL_ASSERT(!s->running && s->port > 0);
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

static void close_fd(int fd) {
    if (fd >= 0) (void)close(fd);
}

static void close_http(ravel__sink *sink) {
    http_sink *s = (http_sink *)sink;
    if (s->running) {
        (void)ravel__write_all(s->wake[1], "x", 1, NULL);
        (void)pthread_join(s->thread, NULL);
    }
    for (int i = 0; i < SLOTS; i++) close_fd(s->slots[i].fd);
    close_fd(s->listener);
    close_fd(s->wake[0]);
    close_fd(s->wake[1]);
    const ravel_metrics *m = sink->metrics;
    ravel__release(m->options.allocator, s->copy.values, (size_t)m->rows * sizeof *s->copy.values);
    ravel__release(m->options.allocator, s->copy.ranks, (size_t)m->shown_ranks * sizeof *s->copy.ranks);
}

int32_t ravel__http_sink_port(const ravel__sink *sink) {
    return ((const http_sink *)sink)->port;
}

const ravel__sink_type ravel__sink_http = {"http", 0, sizeof(http_sink), open_http, write_http, close_http};
