/* HTTP/1.0: one connection per request, which the server closes after its answer; no chunked encoding, no keep-alive.
 * */
#include "train/rl/http.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 64 << 20 }; /* bytes of an answer */

typedef struct place {
    char host[256], port[8];
    const char *path;
} place;

static ravel_status parse(const char *url, place *p, ravel_error *err) {
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : "", *end = host + strcspn(host, ":/");
    const char *port = *end == ':' ? end + 1 : "80", *after = *end == ':' ? port + strspn(port, "0123456789") : end;
    size_t digits = *end == ':' ? (size_t)(after - port) : 2;
    if (end == host || (size_t)(end - host) >= sizeof p->host || digits == 0 || digits > 5 || (*after && *after != '/'))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.100s\" is not a URL like http://host:8000/score", url);
    (void)snprintf(p->host, sizeof p->host, "%.*s", (int)(end - host), host);
    (void)snprintf(p->port, sizeof p->port, "%.*s", (int)digits, port);
    p->path = *after ? after : "/";
    TRAIN_ASSERT(p->host[0] && p->port[0] && p->path[0] == '/');
    return RAVEL_OK;
}

ravel_status train_http_check(const char *url, ravel_error *err) {
    place p;
    return parse(url, &p, err);
}

/* Waits until the socket is ready, or the deadline passes. */
static ravel_status wait_for(int fd, short events, double deadline, const char *url, ravel_error *err) {
    for (;;) {
        struct pollfd p = {fd, events, 0};
        double left = deadline - train__now();
        if (left <= 0) return ravel_error_set(err, RAVEL_E_TIMEOUT, "%s did not answer in time", url);
        int ready = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        if (ready > 0) return RAVEL_OK;
    }
}

static ravel_status failed(const char *url, const char *what, int why, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_IO, "%s: %s: %s", url, what, strerror(why));
}

static ravel_status connect_to(const place *p, const char *url, double deadline, int *out, ravel_error *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int found = getaddrinfo(p->host, p->port, &hints, &list), why = ECONNREFUSED;
    if (found != 0) return ravel_error_set(err, RAVEL_E_IO, "%s: %s", url, gai_strerror(found));
    ravel_status status = RAVEL_OK;
    *out = -1;
    TRAIN_ASSERT(list);
    for (struct addrinfo *a = list; a && *out < 0 && !status; a = a->ai_next) {
        socklen_t bytes = sizeof why;
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) continue;
        why = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
        if (why == EINPROGRESS) {
            status = wait_for(fd, POLLOUT, deadline, url, err);
            if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) != 0) why = errno;
        }
        if (!status && why == 0)
            *out = fd;
        else
            close(fd);
    }
    freeaddrinfo(list);
    if (status || *out >= 0) return status;
    return failed(url, "no server answers", why, err);
}

static ravel_status send_all(int fd, const char *data, size_t bytes, double deadline, const char *url,
                             ravel_error *err) {
    TRAIN_ASSERT(fd >= 0);
    while (bytes > 0) {
        ssize_t put = send(fd, data, bytes, MSG_NOSIGNAL);
        if (put > 0) {
            data += put;
            bytes -= (size_t)put;
            continue;
        }
        if (put < 0 && errno != EAGAIN && errno != EINTR) return failed(url, "it closed the connection", errno, err);
        ravel_status status = wait_for(fd, POLLOUT, deadline, url, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

static ravel_status receive_all(int fd, FILE *to, double deadline, const char *url, ravel_error *err) {
    char piece[65536];
    for (size_t all = 0;;) {
        ssize_t got = recv(fd, piece, sizeof piece, 0);
        if (got == 0) return RAVEL_OK;
        if (got > 0) {
            all += (size_t)got;
            if (all > MOST || fwrite(piece, 1, (size_t)got, to) != (size_t)got)
                return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: the answer is too long", url);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR) return failed(url, "reading the answer", errno, err);
        ravel_status status = wait_for(fd, POLLIN, deadline, url, err);
        if (status) return status;
    }
}

/* Moves the body to the front; E_CALLBACK where the status line is not 200. */
static ravel_status take_body(char *data, size_t *bytes, const char *url, ravel_error *err) {
    if (!*bytes) return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it closed the connection without an answer", url);
    char *body = strstr(data, "\r\n\r\n"), *code = strchr(data, ' ');
    if (!body || strncmp(data, "HTTP/1.", 7) != 0 || !code)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: the answer is not HTTP", url);
    if (strncmp(code + 1, "200", 3) != 0)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it answered %.*s", url, (int)strcspn(code + 1, "\r\n"),
                               code + 1);
    body += 4;
    TRAIN_ASSERT(body <= data + *bytes);
    *bytes -= (size_t)(body - data);
    memmove(data, body, *bytes + 1);
    return RAVEL_OK;
}

ravel_status train_http_post(const char *url, const char *body, size_t bytes, double seconds, char **answer,
                             size_t *answer_bytes, ravel_error *err) {
    place p = {0};
    char head[2048];
    int fd = -1;
    char *data = NULL;
    size_t size = 0;
    double deadline = train__now() + seconds;
    ravel_status status = parse(url, &p, err);
    if (!status) status = connect_to(&p, url, deadline, &fd, err);
    if (status) return status;
    int used = snprintf(head, sizeof head,
                        "POST %.1500s HTTP/1.0\r\nHost: %s:%s\r\nContent-Type: application/x-ndjson\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        p.path, p.host, p.port, bytes);
    TRAIN_ASSERT(used > 0 && (size_t)used < sizeof head);
    status = send_all(fd, head, (size_t)used, deadline, url, err);
    if (!status) status = send_all(fd, body, bytes, deadline, url, err);
    FILE *f = status ? NULL : open_memstream(&data, &size);
    if (!status) status = f ? receive_all(fd, f, deadline, url, err) : train__no_memory(err, 1, "an answer");
    if (f && fclose(f) != 0 && !status) status = train__no_memory(err, size, "an answer");
    if (!status) status = take_body(data, &size, url, err);
    close(fd);
    if (status) {
        free(data);
        return status;
    }
    *answer = data;
    *answer_bytes = size;
    return RAVEL_OK;
}
