#include "http/server.h"

#include "base/assert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union place {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} place;

static socklen_t place_bytes(const place *p) {
    return p->any.sa_family == AF_INET6 ? sizeof p->v6 : sizeof p->v4;
}

/* host[0, bytes) without brackets; 0 if it is no address. */
static int parse_host(const char *host, size_t bytes, place *p) {
    char text[64];
    if (bytes == 0) return 0;
    int v6 = host[0] == '[' && host[bytes - 1] == ']';
    if (v6) host++, bytes -= 2;
    if (bytes >= sizeof text) return 0;
    memcpy(text, host, bytes);
    text[bytes] = '\0';
    p->any.sa_family = v6 ? AF_INET6 : AF_INET;
    if (strcmp(text, "localhost") == 0) strcpy(text, "127.0.0.1");
    return inet_pton(p->any.sa_family, text, v6 ? (void *)&p->v6.sin6_addr : (void *)&p->v4.sin_addr) == 1;
}

static ravel_status parse_address(const char *address, place *p, ravel_error *err) {
    static const char otherwise[] = "127.0.0.1";
    const char *colon = strrchr(address, ':'), *digits = colon ? colon + 1 : address;
    memset(p, 0, sizeof *p);
    int known =
        colon ? parse_host(address, (size_t)(colon - address), p) : parse_host(otherwise, sizeof otherwise - 1, p);
    char *end;
    long port = strtol(digits, &end, 10);
    if (!known || *digits < '0' || *digits > '9' || *end || port > 65535)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "\"%.100s\" is not a port from 0 to 65535, nor an address and a port: 9464, 0.0.0.0:9464 or "
            "[::]:9464",
            address);
    p->v4.sin_port = htons((uint16_t)port);
    RAVEL_ASSERT(p->v6.sin6_port == p->v4.sin_port);
    return RAVEL_OK;
}

ravel_status ravel__http_listen(const char *address, int *fd, int32_t *port, ravel_error *err) {
    place p;
    int yes = 1;
    ravel_status status = parse_address(address, &p, err);
    if (status) return status;
    socklen_t bytes = place_bytes(&p);
    *fd = socket(p.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 || bind(*fd, &p.any, bytes) != 0 ||
        listen(*fd, 1024) != 0 || getsockname(*fd, &p.any, &bytes) != 0)
        return ravel_error_set(err, RAVEL_E_IO, "cannot listen on %.100s: %s", address, strerror(errno));
    *port = ntohs(p.v4.sin_port);
    return RAVEL_OK;
}

ravel_status ravel__http_pipe(int fds[2], ravel_error *err) {
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_IO, "no pipe for a server: %s", strerror(errno));
}
