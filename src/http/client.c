/* The client: one request on one connection, which never waits by itself. The answer ends after its length, its last
 * chunk, or with the connection.
 *
 *     CONNECTING -> SENDING -> RECEIVING -> over          each step goes on as far as the socket lets it */
#include "http/parse.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/memory.h"

#include "http/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 65536, URL = 2048, HEAD = 4096, INTERIM = 64 /* heads of 1xx */ };
static const int64_t connect_ns = (int64_t)10 * 1000000000;

typedef struct place {
    char host[256], port[8];
    const char *path;
} place;

typedef enum phase { CONNECTING, SENDING, RECEIVING } phase;

struct ravel__http_call {
    char url[URL], request[HEAD]; /* request: its head, [request_bytes] */
    ravel__http_call_options o;
    int64_t connect_until_ns, deadline_ns;
    phase phase;
    struct addrinfo *list, *next; /* addresses; the next one to try */
    int fd, why;                  /* why: errno of the last address */
    const char *content;          /* [bytes] of the request; borrowed */
    size_t bytes, request_bytes, sent;
    char *data; /* [room] what has come */
    size_t used, room, head, body, raw;
    int interim; /* heads of 1xx that came */
    ravel__http_head parsed;
    ravel__http_chunks chunks;
};
typedef ravel__http_call call;

/* ---- the address ---------------------------------------------------------------------------------------- */

static ravel_status parse(const char *url, place *p, ravel_error *err) {
    if (strncmp(url, "https://", 8) == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "\"%.100s\": servers are reached over plain http://; put a proxy before one with TLS",
                               url);
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : "", *end = host + strcspn(host, ":/?#");
    int literal = *host == '[';
    if (literal) {
        host++;
        end = host + strcspn(host, "]/");
    }
    const char *rest = literal && *end == ']' ? end + 1 : end;
    const char *port = *rest == ':' ? rest + 1 : "80", *after = *rest == ':' ? port + strspn(port, "0123456789") : rest;
    size_t digits = *rest == ':' ? (size_t)(after - port) : 2;
    int odd = literal && *end != ']';
    for (const char *c = url; *c; c++) odd |= (unsigned char)*c <= 32 || *c == 127;
    if (odd || end == host || (size_t)(end - host) >= sizeof p->host || digits == 0 || digits > 5 ||
        (*after && *after != '/') || strlen(url) >= URL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.100s\" is not a URL like http://host:8000/score", url);
    (void)snprintf(p->host, sizeof p->host, "%.*s", (int)(end - host), host);
    (void)snprintf(p->port, sizeof p->port, "%.*s", (int)digits, port);
    p->path = *after ? after : "/";
    RAVEL_ASSERT(p->host[0] && p->port[0] && p->path[0] == '/');
    return RAVEL_OK;
}

ravel_status ravel__http_check(const char *url, ravel_error *err) {
    place p;
    return parse(url, &p, err);
}

/* ---- the request ---------------------------------------------------------------------------------------- */

static ravel_status failed(const call *c, const char *what, int why, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_IO, "%s: %s: %s", c->url, what, strerror(why));
}

static int would_wait(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

/* A socket that is being connected to the next address. */
static void try_next(call *c) {
    int yes = 1;
    for (; c->fd < 0 && c->next; c->next = c->next->ai_next) {
        const struct addrinfo *a = c->next;
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) continue;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        c->why = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
        if (c->why == 0 || c->why == EINPROGRESS)
            c->fd = fd;
        else
            close(fd);
    }
}

static ravel_status go_on_connecting(call *c, int *moved, ravel_error *err) {
    struct pollfd p = {c->fd, POLLOUT, 0};
    socklen_t bytes = sizeof c->why;
    if (c->fd >= 0 && poll(&p, 1, 0) == 0) {
        if (ravel__clock_ns() < c->connect_until_ns) return RAVEL_OK;
        return failed(c, "no server answers", ETIMEDOUT, err);
    }
    if (c->fd >= 0 && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &c->why, &bytes) != 0) c->why = errno;
    *moved = 1;
    if (c->fd >= 0 && c->why == 0) {
        c->phase = SENDING;
        return RAVEL_OK;
    }
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    try_next(c);
    return c->fd < 0 ? failed(c, "no server answers", c->why, err) : RAVEL_OK;
}

/* The head, then the content. */
static ravel_status go_on_sending(call *c, int *moved, ravel_error *err) {
    size_t all = c->request_bytes + c->bytes;
    while (c->sent < all) {
        int head = c->sent < c->request_bytes;
        const char *from = head ? c->request + c->sent : c->content + (c->sent - c->request_bytes);
        ssize_t put = send(c->fd, from, (head ? c->request_bytes : all) - c->sent, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && would_wait()) return RAVEL_OK;
        if (put < 0 && (errno == EPIPE || errno == ECONNRESET)) break; /* it may have said why before it closed */
        if (put < 0) return failed(c, "it closed the connection", errno, err);
        c->sent += (size_t)put;
    }
    *moved = 1;
    c->phase = RECEIVING;
    return RAVEL_OK;
}

/* ---- the answer ----------------------------------------------------------------------------------------- */

static ravel_status malformed(const call *c, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA, "%s: the answer is not HTTP", c->url);
}

/* The head, if it is whole; heads of 1xx are left out. */
static ravel_status take_head(call *c, ravel_error *err) {
    size_t seen = 0;
    while (!c->head) {
        size_t head = ravel__http_head_bytes(c->data, c->used, &seen);
        if (!head && c->used > PIECE) return malformed(c, err);
        if (!head) return RAVEL_OK;
        if (ravel__http_parse_response(c->data, head, &c->parsed)) return malformed(c, err);
        if (c->parsed.code >= 200) c->head = c->raw = head;
        if (c->head) break;
        if (++c->interim > INTERIM) return malformed(c, err); /* a step ends, whatever comes */
        c->used -= head;
        memmove(c->data, c->data + head, c->used);
        seen = 0;
    }
    if (c->parsed.code == 204 || c->parsed.code == 304) c->parsed.length = c->parsed.chunked = 0;
    return RAVEL_OK;
}

/* *done: the body is whole. `closed`: nothing more will come. */
static ravel_status take_body(call *c, int closed, int *done, ravel_error *err) {
    size_t used, made, most = (size_t)c->o.answer_bytes;
    if (c->parsed.chunked) {
        int state = ravel__http_unchunk(&c->chunks, c->data + c->raw, c->used - c->raw, c->data + c->head + c->body,
                                        &used, &made);
        if (state < 0) return malformed(c, err);
        c->body += made;
        c->used = c->raw = c->head + c->body; /* chunks are taken whole: nothing is left over but after the end */
        *done = state;
    } else {
        c->body = c->used - c->head;
        if (c->parsed.length >= 0 && c->body >= (size_t)c->parsed.length) {
            c->body = (size_t)c->parsed.length;
            *done = 1;
        } else {
            *done = closed && c->parsed.length < 0;
        }
    }
    if (c->body > most) return ravel_error_set(err, RAVEL_E_DATA, "%s: the answer is too long", c->url);
    return RAVEL_OK;
}

/* *closed: nothing more will come. */
static ravel_status receive(call *c, int *moved, int *closed, ravel_error *err) {
    if (c->room - c->used < PIECE + 1) {
        size_t room = c->room ? 2 * c->room : 2 * PIECE;
        char *grown = ravel__resize(c->o.allocator, c->data, c->room, room);
        if (!grown) return ravel__no_memory(err, room, "an answer");
        c->data = grown;
        c->room = room;
    }
    ssize_t got = recv(c->fd, c->data + c->used, PIECE, 0);
    if (got < 0 && (errno == EINTR || would_wait())) return RAVEL_OK;
    if (got < 0) return failed(c, "reading the answer", errno, err);
    c->used += (size_t)got;
    *moved = 1;
    *closed = got == 0;
    return RAVEL_OK;
}

static ravel_status go_on_receiving(call *c, int *moved, int *done, ravel_error *err) {
    int closed = 0;
    ravel_status status = receive(c, moved, &closed, err);
    if (!status && *moved && !c->head) status = take_head(c, err);
    if (!status && *moved && c->head) status = take_body(c, closed, done, err);
    if (status || *done || !closed) return status;
    return ravel_error_set(err, RAVEL_E_IO, "%s: it closed the connection %s", c->url,
                           c->used ? "in the middle of its answer" : "without an answer");
}

/* The answer takes the memory. */
static ravel_status hand_over(call *c, ravel__http_answer *answer, ravel_error *err) {
    memmove(c->data, c->data + c->head, c->body);
    char *fitted = ravel__resize(c->o.allocator, c->data, c->room, c->body + 1);
    if (!fitted) return ravel__no_memory(err, c->body + 1, "an answer"); /* the old memory is there still */
    fitted[c->body] = '\0';
    *answer = (ravel__http_answer){c->parsed.code, fitted, c->body, c->o.allocator};
    c->data = NULL;
    c->room = 0;
    return RAVEL_OK;
}

/* ---- a call --------------------------------------------------------------------------------------------- */

static ravel_status write_head(call *c, const place *p, ravel_error *err) {
    char length[128] = "", key[1200] = "";
    int literal = strchr(p->host, ':') != NULL;
    if (c->o.key && strlen(c->o.key) > 1024) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a key of over 1024 bytes");
    if (c->o.key) (void)snprintf(key, sizeof key, "Authorization: Bearer %s\r\n", c->o.key);
    if (c->content)
        (void)snprintf(length, sizeof length, "Content-Type: %.60s\r\nContent-Length: %zu\r\n", c->o.type, c->bytes);
    int used = snprintf(
        c->request, sizeof c->request, "%s %s HTTP/1.1\r\nHost: %s%s%s:%s\r\n%s%sConnection: close\r\n\r\n",
        c->content ? "POST" : "GET", p->path, literal ? "[" : "", p->host, literal ? "]" : "", p->port, key, length);
    RAVEL_ASSERT(used > 0 && (size_t)used < sizeof c->request);
    c->request_bytes = (size_t)used;
    return RAVEL_OK;
}

static ravel_status begin(call *c, const char *url, ravel_error *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    double seconds = c->o.seconds < 1e9 ? c->o.seconds : 1e9;
    place p = {0};
    ravel_status status = parse(url, &p, err);
    if (status) return status;
    (void)snprintf(c->url, sizeof c->url, "%s", url);
    c->deadline_ns = ravel__clock_ns() + (int64_t)(seconds * 1e9);
    c->connect_until_ns = ravel__clock_ns() + connect_ns;
    if (c->connect_until_ns > c->deadline_ns) c->connect_until_ns = c->deadline_ns;
    status = write_head(c, &p, err);
    int found = status ? 0 : getaddrinfo(p.host, p.port, &hints, &c->list);
    if (found != 0) return ravel_error_set(err, RAVEL_E_IO, "%s: %s", url, gai_strerror(found));
    c->next = c->list;
    c->why = ECONNREFUSED;
    return status;
}

void ravel__http_call_options_default(ravel__http_call_options *o) {
    *o = (ravel__http_call_options){
        .size = sizeof *o, .type = "application/json", .seconds = 60, .answer_bytes = (int64_t)64 << 20};
}

ravel_status ravel__http_call_begin(const char *url, const char *body, size_t bytes, const ravel__http_call_options *o,
                                    ravel__http_call **out, ravel_error *err) {
    call *c = ravel__calloc(o->allocator, 1, sizeof *c);
    if (!c) return ravel__no_memory(err, sizeof *c, "a request");
    c->o = *o;
    c->fd = -1;
    c->content = body;
    c->bytes = body ? bytes : 0;
    ravel_status status = begin(c, url, err);
    if (status) {
        ravel__http_call_free(c);
        return status;
    }
    *out = c;
    return RAVEL_OK;
}

ravel_status ravel__http_call_step(ravel__http_call *c, int *done, ravel__http_answer *answer, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *done = 0;
    for (int moved = 1; moved && !status && !*done;) {
        moved = 0;
        status = c->phase == CONNECTING ? go_on_connecting(c, &moved, err)
                 : c->phase == SENDING  ? go_on_sending(c, &moved, err)
                                        : go_on_receiving(c, &moved, done, err);
    }
    if (!status && *done) return hand_over(c, answer, err);
    if (!status && ravel__clock_ns() >= c->deadline_ns)
        status = ravel_error_set(err, RAVEL_E_TIMEOUT, "%s did not answer in time", c->url);
    return status;
}

int ravel__http_call_fd(const ravel__http_call *c, short *events) {
    *events = c->phase == RECEIVING && c->sent == c->request_bytes + c->bytes ? POLLIN : POLLOUT;
    return c->fd;
}

void ravel__http_call_free(ravel__http_call *c) {
    if (!c) return;
    if (c->fd >= 0) close(c->fd);
    if (c->list) freeaddrinfo(c->list);
    ravel__release(c->o.allocator, c->data, c->room);
    ravel__release(c->o.allocator, c, sizeof *c);
}

void ravel__http_answer_free(ravel__http_answer *a) {
    if (a->body) ravel__release(a->allocator, a->body, a->bytes + 1);
    *a = (ravel__http_answer){0};
}
