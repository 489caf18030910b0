/* The server: connections under one poll(), each a small machine.
 *
 *     accept -> READING --request whole--> BUSY --answer complete--> SENDING --all sent--> READING (kept open), or
 *                  |  408, 413, 431, 400     |  client gone: `gone`      |                    LINGER, closed
 *                  +-------------------------|-------------------------->+
 *
 * READING   in[0, used) grows until a head and its body are there. Chunks are taken apart in place, so that the body lies right
 *           after the head, and what follows it (a pipelined request) stays where it is until the answer is sent.
 * BUSY      the handler has the exchange. Pieces of an answer are put into `out` and sent by the next step.
 * SENDING   the answer is complete in `out`.
 * LINGER    after an error: the rest of what the client sends is dropped for a second, because closing at once would reset the
 *           connection, and the client would lose the answer.
 *
 * An id is (serial of the connection's exchange, index + 1): an old one finds another serial and does nothing. */
#include "http/server.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 65536, SMALL = 4096, GRACE_MS = 200, LINGER_MS = 1000, ACCEPTS = 64 };

typedef enum state { FREE, READING, BUSY, SENDING, LINGER } state;

typedef struct connection {
    int fd;
    state state;
    uint32_t serial;
    int32_t keep, head_only, chunked, failed; /* of the exchange: stay open; no body is sent; in chunks; to be closed */
    int32_t begun, served;                    /* exchanges of this connection */
    int64_t since_ns;                         /* waits for a request since */
    int64_t progress_ns;                      /* the client took something, or sent its first byte */
    char *in, *out;
    size_t used, in_room, seen, head, body, raw; /* raw: where undecoded chunks begin */
    int64_t length;                              /* of the body; -1: chunks */
    ravel__http_chunks chunks;
    size_t out_at, out_used, out_room;
} connection;

struct ravel__http_server {
    ravel__http_server_options options;
    int listener, wake[2];
    int32_t port, draining, open;
    int64_t accept_after_ns; /* after an accept that failed for want of memory or descriptors */
    size_t memory;           /* of all buffers */
    ravel__http_head head;   /* of the request that is looked at */
    const char *text;        /* its bytes */
    connection *connections; /* [options.connections] */
    struct pollfd *fds;      /* [options.connections + 2] */
};

static int64_t ns(double seconds) {
    return seconds < 0 ? INT64_MAX / 4 : seconds > 1e9 ? INT64_MAX / 4 : (int64_t)(seconds * 1e9);
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

/* Room for `need` bytes; 0 if memory is short. */
static int grow(ravel__http_server *s, char **data, size_t *room, size_t need) {
    size_t wanted = *room ? *room : SMALL;
    if (need <= *room) return 1;
    while (wanted < need) wanted *= 2;
    char *grown = ravel__resize(s->options.allocator, *data, *room, wanted);
    if (!grown) return 0;
    s->memory += wanted - *room;
    *data = grown;
    *room = wanted;
    return 1;
}

static void give_back(ravel__http_server *s, char **data, size_t *room) {
    ravel__release(s->options.allocator, *data, *room);
    s->memory -= *room;
    *data = NULL;
    *room = 0;
}

static int put(ravel__http_server *s, connection *c, const char *data, size_t bytes) {
    if (c->out_at == c->out_used) c->out_at = c->out_used = 0;
    if (!grow(s, &c->out, &c->out_room, c->out_used + bytes)) return 0;
    if (bytes) memcpy(c->out + c->out_used, data, bytes);
    c->out_used += bytes;
    return 1;
}

/* ---- the state of a connection --------------------------------------------------------------------------- */

static void close_connection(ravel__http_server *s, connection *c) {
    RAVEL_ASSERT(c->state != FREE && c->fd >= 0);
    (void)close(c->fd);
    give_back(s, &c->in, &c->in_room);
    give_back(s, &c->out, &c->out_room);
    *c = (connection){.fd = -1, .state = FREE, .serial = c->serial + 1};
    s->open--;
    RAVEL_ASSERT(s->open >= 0);
}

static uint64_t id_of(const ravel__http_server *s, const connection *c) {
    return (uint64_t)c->serial << 32 | (uint64_t)(c - s->connections + 1);
}

/* The client of a connection is gone, or its answer is given up. */
static void lose(ravel__http_server *s, connection *c) {
    uint64_t id = c->state == BUSY ? id_of(s, c) : 0;
    close_connection(s, c);
    if (id && s->options.gone) s->options.gone(s->options.user, id);
}

static connection *find(ravel__http_server *s, uint64_t id) {
    uint64_t index = (id & UINT32_MAX) - 1;
    if (index >= (uint64_t)s->options.connections) return NULL;
    connection *c = &s->connections[index];
    return c->state == BUSY && c->serial == (uint32_t)(id >> 32) ? c : NULL;
}

static int64_t waits_since(const connection *c) {
    return c->used ? c->progress_ns : c->since_ns;
}

/* INT64_MAX: it has all the time. */
static int64_t deadline(const ravel__http_server *s, const connection *c) {
    const ravel__http_server_options *o = &s->options;
    int first = c->served == 0;
    switch (c->state) {
    case READING:
        return waits_since(c) + ns(c->used || first || o->idle_seconds <= 0 ? o->request_seconds : o->idle_seconds);
    case LINGER: return c->since_ns + (int64_t)LINGER_MS * 1000000;
    case SENDING: return c->progress_ns + ns(o->send_seconds);
    case BUSY: return c->out_at < c->out_used ? c->progress_ns + ns(o->send_seconds) : INT64_MAX;
    case FREE: break;
    }
    return INT64_MAX;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static int put_head(ravel__http_server *s, connection *c, int code, const char *type, const char *headers,
                    int64_t length) {
    char head[1024], body[64] = "";
    int has_body = code != 204; /* without one there is neither a length nor a coding */
    if (!headers) headers = "";
    if (has_body && length >= 0)
        (void)snprintf(body, sizeof body, "Content-Length: %lld\r\n", (long long)length);
    else if (has_body && c->chunked)
        (void)snprintf(body, sizeof body, "Transfer-Encoding: chunked\r\n");
    int used = snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n%s%s%s%s%sConnection: %s\r\n\r\n", code,
                        ravel__http_reason(code), type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "",
                        body, headers, c->keep ? "keep-alive" : "close");
    RAVEL_ASSERT(used > 0 && (size_t)used < sizeof head);
    return used > 0 && (size_t)used < sizeof head && put(s, c, head, (size_t)used);
}

static void finish(connection *c) {
    RAVEL_ASSERT(c->state == BUSY);
    if (c->out_at == c->out_used) c->failed = 1; /* nothing to send: memory was short */
    c->state = SENDING;
    c->progress_ns = ravel__clock_ns();
}

static ravel_status failed(connection *c) {
    c->failed = 1;
    return RAVEL_E_MEMORY;
}

ravel_status ravel__http_server_answer(ravel__http_server *s, uint64_t id, int32_t code, const char *type,
                                       const char *headers, const char *body, size_t bytes) {
    connection *c = find(s, id);
    if (!c || c->begun) return RAVEL_OK;
    if (s->draining || s->options.idle_seconds <= 0) c->keep = 0;
    int made = put_head(s, c, code, type, headers, (int64_t)bytes);
    if (made && bytes && !c->head_only) made = put(s, c, body, bytes);
    finish(c);
    return made ? RAVEL_OK : failed(c);
}

ravel_status ravel__http_server_begin(ravel__http_server *s, uint64_t id, int32_t code, const char *type,
                                      const char *headers) {
    connection *c = find(s, id);
    if (!c || c->begun) return RAVEL_OK;
    c->begun = 1;
    if (s->draining || s->options.idle_seconds <= 0 || !c->chunked) c->keep = 0;
    c->progress_ns = ravel__clock_ns();
    return put_head(s, c, code, type, headers, -1) ? RAVEL_OK : failed(c);
}

ravel_status ravel__http_server_write(ravel__http_server *s, uint64_t id, const char *data, size_t bytes) {
    connection *c = find(s, id);
    char size[24];
    if (!c || !c->begun || c->head_only || c->failed || bytes == 0) return RAVEL_OK;
    if (c->out_at == c->out_used)
        c->progress_ns = ravel__clock_ns();
    else if (c->out_used - c->out_at + bytes > (size_t)s->options.unread_bytes)
        return failed(c);
    int used = c->chunked ? snprintf(size, sizeof size, "%zx\r\n", bytes) : 0;
    int made = put(s, c, size, (size_t)used) && put(s, c, data, bytes) && put(s, c, "\r\n", c->chunked ? 2 : 0);
    return made ? RAVEL_OK : failed(c);
}

void ravel__http_server_end(ravel__http_server *s, uint64_t id) {
    connection *c = find(s, id);
    if (!c) return;
    if (c->chunked && !c->head_only && !put(s, c, "0\r\n\r\n", 5)) c->failed = 1;
    c->state = SENDING;
    c->progress_ns = ravel__clock_ns();
}

/* ---- requests ------------------------------------------------------------------------------------------- */

/* The server's own answer to a request that it cannot take. */
static void refuse(ravel__http_server *s, connection *c, int code) {
    char body[256];
    int used = snprintf(body, sizeof body,
                        s->options.json ? "{\"error\": {\"message\": \"%s\", \"type\": \"invalid_request_error\", "
                                          "\"param\": null, \"code\": %d}}\n"
                                        : "%2$d %1$s\n",
                        ravel__http_reason(code), code);
    RAVEL_ASSERT(c->state == READING);
    c->state = BUSY;
    c->keep = c->head_only = 0;
    (void)ravel__http_server_answer(s, id_of(s, c), code, s->options.json ? "application/json" : "text/plain", NULL,
                                    body, (size_t)used);
}

static const char *terminated(char *in, ravel__http_span span) {
    in[span.at + span.bytes] = '\0';
    return in + span.at;
}

/* Hands the whole request to the handler. The bytes after each word of a head are blanks or ends of lines, so that each
 * can be ended with a NUL in place. */
static void dispatch(ravel__http_server *s, connection *c, size_t body, size_t end) {
    ravel__http_head *h = &s->head;
    RAVEL_ASSERT(c->state == READING && c->head <= end && end <= c->used);
    c->raw = end;
    c->state = BUSY;
    c->begun = 0;
    c->keep = h->keep && !s->draining;
    c->chunked = h->minor > 0;
    s->text = c->in;
    ravel__http_request r = {.id = id_of(s, c), .bytes = body, .body = c->in + c->head, .head = s};
    r.query = h->query.bytes ? terminated(c->in, h->query) : "";
    r.path = terminated(c->in, h->path);
    r.method = terminated(c->in, h->method);
    for (int32_t i = 0; i < h->count; i++) (void)terminated(c->in, h->fields[i].value);
    c->head_only = strcmp(r.method, "HEAD") == 0;
    s->options.handle(s->options.user, s, &r);
    s->text = NULL;
}

const char *ravel__http_header(const ravel__http_request *request, const char *name) {
    const ravel__http_server *s = request->head;
    const ravel__http_field *f = s && s->text ? ravel__http_find(&s->head, s->text, name) : NULL;
    return f ? s->text + f->value.at : NULL;
}

/* A head that is whole: 0, or the code to refuse it with. */
static int take_head(ravel__http_server *s, connection *c, size_t head) {
    int code = ravel__http_parse_request(c->in, head, &s->head);
    if (code) return code;
    if (s->head.length > s->options.body_bytes) return 413;
    c->head = c->raw = head;
    c->length = s->head.chunked ? -1 : s->head.length < 0 ? 0 : s->head.length;
    c->body = 0;
    c->chunks = (ravel__http_chunks){0};
    if (s->head.expects && c->used == head && c->length != 0) (void)put(s, c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 0;
}

/* Whether the body is whole: 0, 1, or the code to refuse it with. *end: where the request ends. */
static int take_body(ravel__http_server *s, connection *c, size_t *end) {
    size_t used, made;
    if (c->length >= 0) {
        c->body = (size_t)c->length;
        *end = c->head + c->body;
        return c->used >= *end;
    }
    int done =
        ravel__http_unchunk(&c->chunks, c->in + c->raw, c->used - c->raw, c->in + c->head + c->body, &used, &made);
    if (done < 0) return 400;
    c->body += made;
    c->raw += used;
    if (c->body > (size_t)s->options.body_bytes) return 413;
    if (!done) { /* room for the next chunks */
        memmove(c->in + c->head + c->body, c->in + c->raw, c->used - c->raw);
        c->used -= c->raw - (c->head + c->body);
        c->raw = c->head + c->body;
    }
    *end = c->raw;
    return done;
}

/* Looks at what has come. */
static void look(ravel__http_server *s, connection *c) {
    size_t end = 0;
    RAVEL_ASSERT(c->state == READING);
    if (!c->head) {
        size_t most = c->used < (size_t)s->options.head_bytes ? c->used : (size_t)s->options.head_bytes;
        size_t head = ravel__http_head_bytes(c->in, most, &c->seen);
        int code = head ? take_head(s, c, head) : most == (size_t)s->options.head_bytes ? 431 : 0;
        if (code) refuse(s, c, code);
        if (code || !head) return;
    }
    int whole = take_body(s, c, &end);
    if (whole > 1) refuse(s, c, whole);
    if (whole != 1) return;
    (void)ravel__http_parse_request(c->in, c->head, &s->head);
    dispatch(s, c, c->body, end);
}

/* The answer is sent: what has come meanwhile is the beginning of the next request. */
static void next_exchange(ravel__http_server *s, connection *c) {
    size_t rest = c->used - c->raw;
    int linger = !c->keep && (c->head == 0 || c->length < 0 || c->head + (size_t)c->length > c->used);
    RAVEL_ASSERT(c->state == SENDING && c->raw <= c->used);
    c->serial++;
    c->served++;
    c->since_ns = c->progress_ns = ravel__clock_ns();
    if (!c->keep || c->failed || (s->draining && rest == 0)) {
        if (!linger || c->failed) {
            close_connection(s, c);
            return;
        }
        (void)shutdown(c->fd, SHUT_WR);
        c->state = LINGER;
        return;
    }
    memmove(c->in, c->in + c->raw, rest);
    if (rest == 0) give_back(s, &c->in, &c->in_room);
    if (c->out_room > PIECE) give_back(s, &c->out, &c->out_room);
    c->out_at = c->out_used = 0;
    c->used = rest;
    c->seen = c->head = c->body = c->raw = 0;
    c->begun = 0;
    c->state = READING;
    if (rest) look(s, c);
}

/* ---- sockets -------------------------------------------------------------------------------------------- */

static int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static void receive(ravel__http_server *s, connection *c) {
    char dropped[SMALL];
    if (c->state == LINGER) {
        ssize_t got = recv(c->fd, dropped, sizeof dropped, 0);
        if (got == 0 || (got < 0 && !would_block())) close_connection(s, c);
        return;
    }
    size_t most = (size_t)(s->options.head_bytes + s->options.body_bytes) + PIECE, want = c->used + SMALL;
    if (c->head && c->length > 0) want = c->head + (size_t)c->length;
    if (want > c->used + PIECE) want = c->used + PIECE;
    if (want <= c->used) want = c->used + 1;
    if (want > most || s->memory > (size_t)s->options.memory_bytes || !grow(s, &c->in, &c->in_room, want)) {
        refuse(s, c, want > most ? 413 : 503);
        return;
    }
    ssize_t got = recv(c->fd, c->in + c->used, c->in_room - c->used, 0);
    if (got < 0 && would_block()) return;
    if (got <= 0) {
        close_connection(s, c);
        return;
    }
    if (c->used == 0) c->progress_ns = ravel__clock_ns();
    c->used += (size_t)got;
    look(s, c);
}

static void transmit(ravel__http_server *s, connection *c) {
    while (c->out_at < c->out_used && !c->failed) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_used - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && would_block()) return;
        if (sent < 0) c->failed = 1;
        if (sent < 0) break;
        c->out_at += (size_t)sent;
        c->progress_ns = ravel__clock_ns();
    }
    if (c->failed)
        lose(s, c);
    else if (c->state == SENDING)
        next_exchange(s, c);
}

static int will_send(const connection *c) {
    return c->state != FREE && c->state != LINGER && (c->out_at < c->out_used || c->state == SENDING || c->failed);
}

/* The place for the next client: a free one, that of a connection that has its error, or of the one that has waited
 * longest for a request. NULL: every one has a request. */
static connection *next_place(ravel__http_server *s) {
    connection *oldest = NULL, *lingers = NULL;
    for (int32_t i = 0; i < s->options.connections; i++) {
        connection *c = &s->connections[i];
        if (c->state == FREE) return c;
        if (c->state == LINGER) lingers = c;
        if (c->state == READING && (!oldest || waits_since(c) < waits_since(oldest))) oldest = c;
    }
    return lingers ? lingers : oldest;
}

/* When the next client can be let in: 0 now, INT64_MAX: not before something is answered. */
static int64_t opens_at(ravel__http_server *s, int64_t now) {
    if (s->draining) return INT64_MAX;
    if (s->accept_after_ns > now) return s->accept_after_ns;
    if (s->open < s->options.connections) return 0;
    const connection *c = next_place(s);
    if (!c) return INT64_MAX;
    if (c->state == LINGER) return 0;
    int64_t at = waits_since(c) + (int64_t)GRACE_MS * 1000000;
    return at > now ? at : 0;
}

static void make_place(ravel__http_server *s, connection *c) {
    if (c->state == READING && (c->used || c->served == 0)) {
        refuse(s, c, 408);
        transmit(s, c);
    }
    if (c->state != FREE) close_connection(s, c);
}

static void set_up(ravel__http_server *s, connection *c, int fd) {
    int yes = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *c = (connection){.fd = fd, .state = READING, .serial = c->serial};
    c->since_ns = c->progress_ns = ravel__clock_ns();
    s->open++;
}

static void accept_all(ravel__http_server *s) {
    for (int i = 0; i < ACCEPTS && opens_at(s, ravel__clock_ns()) == 0; i++) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                s->accept_after_ns =
                    ravel__clock_ns() + (int64_t)GRACE_MS * 1000000; /* the client stays in the backlog */
            return;
        }
        connection *c = next_place(s);
        RAVEL_ASSERT(c);
        if (c->state != FREE) make_place(s, c);
        set_up(s, c, fd);
    }
}

/* ---- the step ------------------------------------------------------------------------------------------- */

static void expire(ravel__http_server *s, connection *c) {
    if (c->state == READING && (c->used || c->served == 0)) {
        refuse(s, c, 408);
        transmit(s, c);
    } else {
        lose(s, c);
    }
}

static void serve(ravel__http_server *s, connection *c, short events) {
    int reads = c->state == READING || c->state == LINGER;
    if (reads && (events & (POLLIN | POLLHUP | POLLERR))) receive(s, c);
    if (!reads && (events & (POLLHUP | POLLERR))) c->failed = 1;
    if (c->state == BUSY && (events & POLLRDHUP)) c->failed = 1;
    if (will_send(c)) transmit(s, c);
}

/* Fills the poll set; returns when something is due. */
static int64_t prepare(ravel__http_server *s, int64_t now) {
    int64_t door = opens_at(s, now), due = door > 0 ? door : INT64_MAX;
    for (int32_t i = 0; i < s->options.connections; i++) {
        connection *c = &s->connections[i];
        int64_t until = deadline(s, c);
        short events = (short)(c->state == READING || c->state == LINGER ? POLLIN : c->state == BUSY ? POLLRDHUP : 0);
        if (will_send(c)) events |= POLLOUT;
        s->fds[i] = (struct pollfd){c->state == FREE ? -1 : c->fd, events, 0};
        if (until < due) due = until;
    }
    s->fds[s->options.connections] = (struct pollfd){s->wake[0], POLLIN, 0};
    s->fds[s->options.connections + 1] = (struct pollfd){door == 0 ? s->listener : -1, POLLIN, 0};
    return due;
}

static int wait_ms(int64_t due, int64_t now, double seconds) {
    int64_t most = ns(seconds), left = due == INT64_MAX ? INT64_MAX / 4 : due - now;
    int64_t wait = left < most ? left : most;
    if (wait <= 0) return 0;
    int64_t ms = (wait + 999999) / 1000000;
    return ms > INT_MAX || wait >= INT64_MAX / 4 ? -1 : (int)ms;
}

ravel_status ravel__http_server_step(ravel__http_server *s, double seconds, ravel_error *err) {
    char drained[64];
    for (int32_t i = 0; i < s->options.connections; i++)
        if (will_send(&s->connections[i])) transmit(s, &s->connections[i]);
    int64_t now = ravel__clock_ns();
    int wait = wait_ms(prepare(s, now), now, seconds);
    if (poll(s->fds, (nfds_t)s->options.connections + 2, wait) < 0) {
        if (errno == EINTR) return RAVEL_OK;
        return ravel_error_set(err, RAVEL_E_IO, "poll: %s", strerror(errno));
    }
    if (s->fds[s->options.connections].revents)
        while (read(s->wake[0], drained, sizeof drained) > 0) {}
    for (int32_t i = 0; i < s->options.connections; i++)
        if (s->connections[i].state != FREE && s->fds[i].revents) serve(s, &s->connections[i], s->fds[i].revents);
    now = ravel__clock_ns();
    for (int32_t i = 0; i < s->options.connections; i++)
        if (deadline(s, &s->connections[i]) <= now) expire(s, &s->connections[i]);
    if (s->fds[s->options.connections + 1].revents) accept_all(s);
    return RAVEL_OK;
}

void ravel__http_server_wake(ravel__http_server *s) {
    ssize_t wrote = write(s->wake[1], "x", 1); /* a full pipe wakes too */
    (void)wrote;
}

void ravel__http_server_drain(ravel__http_server *s) {
    s->draining = 1;
    for (int32_t i = 0; i < s->options.connections; i++)
        if (s->connections[i].state == READING && !s->connections[i].used) close_connection(s, &s->connections[i]);
}

void ravel__http_server_count(const ravel__http_server *s, int32_t *open, int32_t *busy) {
    *open = s->open;
    *busy = 0;
    for (int32_t i = 0; i < s->options.connections; i++)
        *busy += s->connections[i].state == BUSY || s->connections[i].state == SENDING;
}

/* ---- opening and closing -------------------------------------------------------------------------------- */

void ravel__http_server_options_default(ravel__http_server_options *o) {
    *o = (ravel__http_server_options){.size = sizeof *o,
                                      .listen = "0",
                                      .connections = 1024,
                                      .head_bytes = 16384,
                                      .unread_bytes = 4 << 20,
                                      .memory_bytes = (int64_t)1 << 30,
                                      .request_seconds = 10,
                                      .idle_seconds = 60,
                                      .send_seconds = 30};
}

static ravel_status allocate(ravel__http_server *s, ravel_error *err) {
    size_t count = (size_t)s->options.connections;
    s->connections = ravel__calloc(s->options.allocator, count, sizeof *s->connections);
    s->fds = ravel__calloc(s->options.allocator, count + 2, sizeof *s->fds);
    if (!s->connections || !s->fds) return ravel__no_memory(err, count * sizeof *s->connections, "connections");
    for (size_t i = 0; i < count; i++) s->connections[i].fd = -1;
    return RAVEL_OK;
}

ravel_status ravel__http_server_create(const ravel__http_server_options *options, ravel__http_server **server,
                                       ravel_error *err) {
    if (options->connections < 1 || options->head_bytes < 64 || options->body_bytes < 0 || !options->handle)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "an HTTP server needs at least 1 connection, 64 bytes for a head, and a handler");
    ravel__http_server *s = ravel__calloc(options->allocator, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "an HTTP server");
    s->options = *options;
    if (s->options.connections > ravel__connections_most())
        s->options.connections = (int32_t)ravel__connections_most(); /* poll() refuses more */
    s->listener = s->wake[0] = s->wake[1] = -1;
    ravel_status status = allocate(s, err);
    if (!status) status = ravel__http_listen(options->listen, &s->listener, &s->port, err);
    if (!status) status = ravel__http_pipe(s->wake, err);
    if (status) {
        ravel__http_server_free(s);
        return status;
    }
    *server = s;
    return RAVEL_OK;
}

void ravel__http_server_free(ravel__http_server *s) {
    if (!s) return;
    for (int32_t i = 0; s->connections && i < s->options.connections; i++)
        if (s->connections[i].state != FREE) close_connection(s, &s->connections[i]);
    const int fds[] = {s->listener, s->wake[0], s->wake[1]};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) (void)close(fds[i]);
    const ravel_allocator *allocator = s->options.allocator;
    size_t count = (size_t)s->options.connections;
    ravel__release(allocator, s->connections, count * sizeof *s->connections);
    ravel__release(allocator, s->fds, (count + 2) * sizeof *s->fds);
    ravel__release(allocator, s, sizeof *s);
}

int32_t ravel__http_server_port(const ravel__http_server *s) {
    return s->port;
}
