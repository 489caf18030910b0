/* Sockets and addresses, for server.c. */
#ifndef RAVEL_HTTP_SERVER_H
#define RAVEL_HTTP_SERVER_H

#include "http/http.h"

#include "http/parse.h"

/* Listens on "8000", "127.0.0.1:8000", "[::1]:8000" or "localhost:8000"; *port is the one that it got. */
ravel_status ravel__http_listen(const char *address, int *fd, int32_t *port, ravel_error *err);
/* A pipe whose ends do not block. */
ravel_status ravel__http_pipe(int fds[2], ravel_error *err);

#endif
