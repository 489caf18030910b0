/* One small HTTP/1.1 server and one client, over plain TCP: metrics, serving, rewards.
 *
 * Nouns
 *   server       a listener and its connections, all of them non-blocking under one poll(): no thread per client. One thread
 *                steps it; ravel__http_server_wake alone may be called from others.
 *   exchange     a request and its answer, known by an id. A connection has one at a time; further requests that a client
 *                sent already wait in its buffer. The answer may be given inside the handler or at any later step: whole,
 *                or in pieces (chunked where the client speaks HTTP/1.1).
 *   gone         a client that closed, failed, or did not read in time before its answer was complete. The exchange's id
 *                then means nothing any more: calls with it do nothing.
 *
 *     ravel__http_server_options_default(&options);
 *     options.listen = "127.0.0.1:0";
 *     options.handle = handle;                                 calls ravel__http_server_answer, now or later
 *     if (ravel__http_server_create(&options, &server, &err)) ...
 *     while (!done && ravel__http_server_step(server, 0.01, &err) == RAVEL_OK)
 *         use(server);
 *     ravel__http_server_free(server);
 *
 * Limits: connections, bytes of a head and of a body, bytes that wait for a slow reader, seconds for a request to come,
 * for a connection without one, and for a reader to take something. If all connections are taken, the one that has
 * waited longest for a request, and for 200 ms at least, makes room. What breaks a limit gets 408, 413 or 431 and is
 * closed. Requests with two lengths, a length and chunks, or malformed lines are refused by 400: this server never
 * guesses where a request ends. A client that closes its sending side while it waits for an answer counts as gone.
 *
 * There is no TLS: put a proxy such as stunnel, nginx or caddy in front.
 */
#ifndef RAVEL_HTTP_HTTP_H
#define RAVEL_HTTP_HTTP_H

#include <ravel/base.h>

/* ---- server --------------------------------------------------------------------------------------------- */

typedef struct ravel__http_server ravel__http_server;

/* Valid during the handler only. */
typedef struct ravel__http_request {
    uint64_t id;        /* of the exchange; never 0 */
    const char *method; /* "GET" */
    const char *path;   /* "/metrics", percent signs as they came */
    const char *query;  /* after the question mark; "" */
    const char *body;   /* [bytes], without a NUL */
    size_t bytes;
    const void *head; /* for ravel__http_header */
} ravel__http_request;

typedef struct ravel__http_server_options {
    size_t size; /* sizeof(ravel__http_server_options), set by ravel__http_server_options_default */
    /* "8000", "0.0.0.0:8000", "[::1]:8000", "localhost:8000"; without an address 127.0.0.1; port 0: any */
    const char *listen;
    int32_t connections; /* at once; default 1024; at most ravel__connections_most() */
    int32_t json;       /* 1: the server's own errors are {"error": {"message", "type", "code"}}, else a line of text */
    int64_t head_bytes; /* of a request line and headers; default 16384 */
    int64_t body_bytes; /* of a request; default 0: none */
    /* of an answer in pieces that a client has not read yet; more, and it is gone; default 4 MiB */
    int64_t unread_bytes;
    int64_t memory_bytes; /* of the buffers of all connections; then requests get 503; default 1 GiB */
    double request_seconds;
    double idle_seconds; /* of an open connection without a request; 0: connections close after an answer */
    double send_seconds; /* without progress */
    void (*handle)(void *user, ravel__http_server *server, const ravel__http_request *request);
    void (*gone)(void *user, uint64_t id); /* may be NULL */
    void *user;
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the server */
} ravel__http_server_options;

/* 10 seconds for a request, 60 idle, 30 to send. */
void ravel__http_server_options_default(ravel__http_server_options *options);

/* E_ARGUMENT for an address that cannot be read, E_IO if it cannot listen. */
ravel_status ravel__http_server_create(const ravel__http_server_options *options, ravel__http_server **server,
                                       ravel_error *err);
/* Closes all connections; `gone` is not called. */
void ravel__http_server_free(ravel__http_server *server);
int32_t ravel__http_server_port(const ravel__http_server *server);

/* Sends what waits, receives, and calls the handler for whole requests. Waits up to `seconds` for something to happen;
 * below 0: without limit. E_IO only if poll itself fails. */
ravel_status ravel__http_server_step(ravel__http_server *server, double seconds, ravel_error *err);
/* From any thread, or a signal handler: the step that waits, or the next one, returns at once. */
void ravel__http_server_wake(ravel__http_server *server);
/* No further connection or request is taken; connections close after their answer. */
void ravel__http_server_drain(ravel__http_server *server);
/* Connections that are open, and those of them with a request that is not answered and read completely. */
void ravel__http_server_count(const ravel__http_server *server, int32_t *open, int32_t *busy);

/* The value of a header by its name in any case, NUL-terminated; NULL: none. Valid during the handler. */
const char *ravel__http_header(const ravel__http_request *request, const char *name);

/* The whole answer. `type`: the content type, NULL if there is no body. `headers`: further ones, each with its CRLF,
 * or NULL. E_MEMORY: the client is closed. */
ravel_status ravel__http_server_answer(ravel__http_server *server, uint64_t id, int32_t code, const char *type,
                                       const char *headers, const char *body, size_t bytes);
/* An answer in pieces: begin once, write as often as wanted, end. */
ravel_status ravel__http_server_begin(ravel__http_server *server, uint64_t id, int32_t code, const char *type,
                                      const char *headers);
ravel_status ravel__http_server_write(ravel__http_server *server, uint64_t id, const char *data, size_t bytes);
void ravel__http_server_end(ravel__http_server *server, uint64_t id);

/* ---- client --------------------------------------------------------------------------------------------- */

typedef struct ravel__http_call_options {
    size_t size;          /* sizeof(ravel__http_call_options), set by ravel__http_call_options_default */
    const char *type;     /* of the body; default "application/json" */
    const char *key;      /* "Authorization: Bearer KEY"; NULL: none */
    double seconds;       /* for all of it; default 60. To connect: 10 at most */
    int64_t answer_bytes; /* largest body of an answer; default 64 MiB */
    const ravel_allocator *allocator;
} ravel__http_call_options;

typedef struct ravel__http_answer {
    int32_t code; /* 200 */
    char *body;   /* [bytes] and a NUL; for ravel__http_answer_free */
    size_t bytes;
    const ravel_allocator *allocator;
} ravel__http_answer;

void ravel__http_call_options_default(ravel__http_call_options *options);

/* E_ARGUMENT if `url` is not http://host[:port][/path], with [::1] for IPv6. */
ravel_status ravel__http_check(const char *url, ravel_error *err);

/* One request on a connection of its own, one of many under a poll() of the caller's:
 *
 *     ravel__http_call_begin(url, body, bytes, &options, &call, &err);
 *     while (!(status = ravel__http_call_step(call, &done, &answer, &err)) && !done)
 *         fd.fd = ravel__http_call_fd(call, &fd.events), poll(&fd, 1, milliseconds);
 *     ravel__http_call_free(call);                                                      at any time
 */
typedef struct ravel__http_call ravel__http_call;

/* GET where `body` is NULL, which is borrowed otherwise. The system resolves the name, which may take a moment; nothing
 * else waits. */
ravel_status ravel__http_call_begin(const char *url, const char *body, size_t bytes,
                                    const ravel__http_call_options *options, ravel__http_call **call, ravel_error *err);
/* Goes on as far as it can. Any code is RAVEL_OK: look at answer->code. E_IO where no server answers or the answer is
 * cut, E_TIMEOUT after `seconds`, E_DATA if the answer is not HTTP or is too long. *done, or an error: only to be
 * freed. */
ravel_status ravel__http_call_step(ravel__http_call *call, int *done, ravel__http_answer *answer, ravel_error *err);
/* What to poll for; -1: step at once. POLLIN: all was sent. */
int ravel__http_call_fd(const ravel__http_call *call, short *events);
void ravel__http_call_free(ravel__http_call *call);
void ravel__http_answer_free(ravel__http_answer *answer);

#endif
