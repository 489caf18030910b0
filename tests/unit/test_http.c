/* The HTTP server and client: heads and chunks as functions, and both ends over real sockets. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "http/parse.h"

#include "http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the parser ----------------------------------------------------------------------------------------- */

TEST(http_heads_are_taken_or_refused) {
    static const struct {
        const char *text;
        int code, keep, chunked;
        int64_t length;
    } cases[] = {{"GET /metrics HTTP/1.1\r\n\r\n", 0, 1, 0, -1},
                 {"GET /metrics HTTP/1.0\n\n", 0, 0, 0, -1},
                 {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 0, 1, 0, -1},
                 {"GET / HTTP/1.1\r\nConnection: x, Close \r\n\r\n", 0, 0, 0, -1},
                 {"POST / HTTP/1.1\r\ncontent-length:  12\r\n\r\n", 0, 1, 0, 12},
                 {"POST / HTTP/1.1\r\nContent-Length: 12\r\nContent-Length: 12\r\n\r\n", 0, 1, 0, 12},
                 {"POST / HTTP/1.1\r\nContent-Length: 12\r\nContent-Length: 13\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nContent-Length: 12, 12\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nContent-Length: 9999999999999999\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 0, 1, 1, -1},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, 0, 0, 0},
                 {"POST / HTTP/1.1\r\nExpect: magic\r\n\r\n", 417, 0, 0, 0},
                 {"GET / HTTP/1.1\r\nName : x\r\n\r\n", 400, 0, 0, 0},
                 {"GET / HTTP/1.1\r\n folded\r\n\r\n", 400, 0, 0, 0},
                 {"GET / HTTP/1.1\r\nName: a\rb\r\n\r\n", 400, 0, 0, 0},
                 {"GET / HTTP/1.1\r\nNo colon\r\n\r\n", 400, 0, 0, 0},
                 {"GET /metrics HTTP/2.0\r\n\r\n", 505, 0, 0, 0},
                 {"GET /metrics\r\n\r\n", 400, 0, 0, 0},
                 {"GET metrics HTTP/1.1\r\n\r\n", 400, 0, 0, 0},
                 {"get /metrics HTTP/1.1\r\n\r\n", 400, 0, 0, 0},
                 {"GET  /metrics HTTP/1.1\r\n\r\n", 400, 0, 0, 0},
                 {"GET /me\ttrics HTTP/1.1\r\n\r\n", 400, 0, 0, 0},
                 {"\r\n\r\n", 400, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel__http_head h;
        size_t seen = 0, bytes = ravel__http_head_bytes(cases[i].text, strlen(cases[i].text), &seen);
        CHECK(bytes > 0);
        int code = ravel__http_parse_request(cases[i].text, bytes, &h);
        if (code != cases[i].code ||
            (code == 0 && (h.keep != cases[i].keep || h.chunked != cases[i].chunked || h.length != cases[i].length)))
            check_fail(__FILE__, __LINE__, "case %zu: %d, keep %d, chunked %d, length %lld", i, code, h.keep, h.chunked,
                       (long long)h.length);
    }
    CHECK_STR(ravel__http_reason(404), "Not Found");
    CHECK_STR(ravel__http_reason(999), "Error");
}

/* A body cut into chunks, and the bytes cut into pieces, at random. */
TEST(http_chunks_in_any_pieces) {
    ravel__rng state = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(2000, 200000); round++) {
        char body[300], text[4000], out[4000];
        size_t bytes = ravel__rng_below(&state, sizeof body), used = 0, made = 0;
        for (size_t i = 0; i < bytes; i++) body[i] = (char)ravel__rng_below(&state, 256);
        for (size_t at = 0, n; at < bytes; at += n) {
            n = 1 + ravel__rng_below(&state, bytes - at);
            used += (size_t)sprintf(text + used, ravel__rng_below(&state, 2) ? "%zx\r\n" : "%zX; a=b\r\n", n);
            memcpy(text + used, body + at, n);
            used += n;
            used += (size_t)sprintf(text + used, "\r\n");
        }
        used += (size_t)sprintf(text + used, ravel__rng_below(&state, 2) ? "0\r\n\r\n" : "00\r\nX: y\r\n\r\n");
        ravel__http_chunks c = {0};
        int done = 0;
        size_t whole = used, at = 0;
        used += (size_t)sprintf(text + used, "GET");
        while (!done && at < used) {
            size_t n = 1 + ravel__rng_below(&state, used - at), took, gave;
            done = ravel__http_unchunk(&c, text + at, n, out + made, &took, &gave);
            CHECK(done >= 0);
            at += took;
            made += gave;
        }
        CHECK(done == 1 && at == whole && made == bytes && memcmp(out, body, bytes) == 0);
    }
}

/* The line ends of chunks do not count against the limit of extensions, which holds for the whole body. */
TEST(http_chunks_may_be_many_and_small) {
    ravel__http_chunks c = {0};
    char out[64];
    size_t used, made;
    for (int i = 0; i < 20000; i++) {
        CHECK_EQ(ravel__http_unchunk(&c, "1\r\na\r\n", 6, out, &used, &made), 0);
        CHECK(used == 6 && made == 1);
    }
    CHECK_EQ(ravel__http_unchunk(&c, "0\r\n\r\n", 5, out, &used, &made), 1);
    static const char *const lone[] = {"1\rx\na\r\n", "1;x\ry\na\r\n"}; /* a CR ends a line with an LF only */
    for (size_t i = 0; i < sizeof lone / sizeof *lone; i++) {
        c = (ravel__http_chunks){0};
        CHECK_EQ(ravel__http_unchunk(&c, lone[i], strlen(lone[i]), out, &used, &made), -1);
    }
    int state = 0;
    c = (ravel__http_chunks){0};
    for (int i = 0; i < 20000 && state == 0; i++) state = ravel__http_unchunk(&c, "1;x\r\na\r\n", 8, out, &used, &made);
    CHECK_EQ(state, -1);
}

/* ---- a server in a thread -------------------------------------------------------------------------------- */

enum { BODY = 100000 };

typedef struct host {
    ravel__http_server *server;
    pthread_t thread;
    atomic_int stop, gone, asked;
    uint64_t streaming; /* id of the answer that goes on for ever; 0: none */
    char big[200000];
} host;

static void handle(void *user, ravel__http_server *server, const ravel__http_request *r) {
    host *h = user;
    char text[256];
    atomic_fetch_add(&h->asked, 1);
    if (strcmp(r->path, "/echo") == 0) {
        (void)ravel__http_server_answer(server, r->id, 200, "text/plain", "X-Extra: 1\r\n", r->body, r->bytes);
    } else if (strcmp(r->path, "/pieces") == 0) {
        (void)ravel__http_server_begin(server, r->id, 200, "text/plain", NULL);
        for (size_t i = 0; i < r->bytes; i += 1000)
            (void)ravel__http_server_write(server, r->id, r->body + i, r->bytes - i < 1000 ? r->bytes - i : 1000);
        ravel__http_server_end(server, r->id);
    } else if (strcmp(r->path, "/forever") == 0) {
        h->streaming = r->id;
        (void)ravel__http_server_begin(server, r->id, 200, "text/plain", NULL);
    } else if (strcmp(r->path, "/nothing") == 0) {
        (void)ravel__http_server_answer(server, r->id, 204, NULL, NULL, NULL, 0);
    } else if (strcmp(r->path, "/never") != 0) {
        const char *x = ravel__http_header(r, "x-name");
        int used = snprintf(text, sizeof text, "%s %s %s %s", r->method, r->path, r->query, x ? x : "-");
        (void)ravel__http_server_answer(server, r->id, 200, "text/plain", NULL, text, (size_t)used);
    }
}

static void client_gone(void *user, uint64_t id) {
    host *h = user;
    if (h->streaming == id) h->streaming = 0;
    atomic_fetch_add(&h->gone, 1);
}

static void *run_host(void *user) {
    host *h = user;
    ravel_error err = RAVEL_ERROR_INIT;
    while (!atomic_load(&h->stop)) {
        if (ravel__http_server_step(h->server, h->streaming ? 0.001 : -1, &err)) check_fail(__FILE__, __LINE__, "step");
        if (h->streaming) (void)ravel__http_server_write(h->server, h->streaming, h->big, sizeof h->big);
    }
    return NULL;
}

static host *start_host(ravel__http_server_options *o) {
    ravel_error err = RAVEL_ERROR_INIT;
    host *h = calloc(1, sizeof *h);
    if (!h) abort();
    o->handle = handle;
    o->gone = client_gone;
    o->user = h;
    if (ravel__http_server_create(o, &h->server, &err) || pthread_create(&h->thread, NULL, run_host, h))
        check_fail(__FILE__, __LINE__, "%s", err.message);
    return h;
}

static ravel__http_server_options usual(void) {
    ravel__http_server_options o;
    ravel__http_server_options_default(&o);
    o.body_bytes = BODY;
    o.request_seconds = 60;
    return o;
}

static void stop_host(host *h) {
    atomic_store(&h->stop, 1);
    ravel__http_server_wake(h->server);
    pthread_join(h->thread, NULL);
    ravel__http_server_free(h->server);
    free(h);
}

static int connect_to(const host *h) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ravel__http_server_port(h->server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval limit = {60, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        check_fail(__FILE__, __LINE__, "connect: %s", strerror(errno));
    return fd;
}

static void say(int fd, const char *text) {
    (void)EXPECT(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text));
}

/* Reads until `text` has come, or the end. */
static int hears(int fd, const char *text, char *all, size_t room) {
    size_t used = 0;
    all[0] = '\0';
    while (used + 1 < room && !strstr(all, text)) {
        ssize_t got = recv(fd, all + used, 1, 0);
        if (got <= 0) break;
        used += (size_t)got;
        all[used] = '\0';
    }
    return strstr(all, text) != NULL;
}

static void wait_until(atomic_int *count, int wanted) {
    for (int i = 0; i < 60000 && atomic_load(count) < wanted; i++) (void)poll(NULL, 0, 1);
    (void)EXPECT(atomic_load(count) >= wanted);
}

TEST(http_server_keeps_connections_and_order) {
    ravel__http_server_options o = usual();
    host *h = start_host(&o);
    char all[1000];
    int fd = connect_to(h);
    say(fd,
        "GET /a?x=1 HTTP/1.1\r\nX-Name:  n \r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\n\r\n");
    CHECK(hears(fd, "GET /a x=1 n", all, sizeof all));
    CHECK(hears(fd, "abc", all, sizeof all));
    CHECK_HAS(all, "X-Extra: 1\r\n");
    CHECK(hears(fd, "GET /b  -", all, sizeof all));
    say(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
    CHECK(hears(fd, "100 Continue\r\n\r\n", all, sizeof all));
    say(fd, "4\r\nwild\r\n");
    say(fd, "3\r\n boa\r\n"); /* a size that is wrong by one */
    CHECK(hears(fd, "400 Bad Request", all, sizeof all));
    (void)close(fd);
    fd = connect_to(h);
    say(fd,
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwild\r\n5\r\n boar\r\n0\r\n\r\nHEAD /c HTTP/1.1\r\n"
        "Connection: close\r\n\r\n");
    CHECK(hears(fd, "wild boar", all, sizeof all));
    CHECK(!hears(fd, "HEAD /c", all, sizeof all)); /* to the end: no body */
    CHECK_HAS(all, "Content-Length: 10\r\n");
    (void)close(fd);
    stop_host(h);
}

TEST(http_server_answers_without_a_body) {
    ravel__http_server_options o = usual();
    host *h = start_host(&o);
    char all[1000];
    int fd = connect_to(h);
    say(fd, "GET /nothing HTTP/1.1\r\n\r\n");
    CHECK(hears(fd, "\r\n\r\n", all, sizeof all));
    CHECK_HAS(all, "204 No Content");
    CHECK(!strstr(all, "Transfer-Encoding") && !strstr(all, "Content-Length"));
    /* An error has its text also after an answer to HEAD. */
    say(fd, "HEAD /c HTTP/1.1\r\n\r\n");
    CHECK(hears(fd, "\r\n\r\n", all, sizeof all));
    say(fd, "banana\r\n\r\n");
    CHECK(hears(fd, "400 Bad Request\n", all, sizeof all));
    (void)close(fd);
    stop_host(h);
}

/* A client that still sends what was refused keeps its place while others are free: closed at once, it would lose the
 * answer. */
TEST(http_server_lets_refused_clients_read_why) {
    ravel__http_server_options o = usual();
    host *h = start_host(&o);
    char all[1000];
    int fd = connect_to(h);
    say(fd, "POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n");
    CHECK(hears(fd, "413 Content Too Large\n", all, sizeof all));
    int next = connect_to(h);
    say(next, "GET /x HTTP/1.1\r\n\r\n");
    CHECK(hears(next, "GET /x", all, sizeof all));
    int32_t open = 0, busy = 0;
    atomic_store(&h->stop, 1);
    ravel__http_server_wake(h->server);
    pthread_join(h->thread, NULL);
    ravel__http_server_count(h->server, &open, &busy);
    CHECK_EQ(open, 2);
    ravel__http_server_free(h->server);
    free(h);
    (void)close(fd);
    (void)close(next);
}

TEST(http_server_has_limits) {
    ravel__http_server_options o = usual();
    o.connections = 4;
    o.head_bytes = 1000;
    o.json = 1;
    o.unread_bytes = 1 << 20;
    host *h = start_host(&o);
    char all[1200];
    int fd = connect_to(h);
    say(fd, "POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n");
    CHECK(hears(fd, "\"code\": 413", all, sizeof all));
    (void)close(fd);
    fd = connect_to(h);
    memset(all, 'x', sizeof all);
    all[1100] = '\0';
    say(fd, all);
    CHECK(hears(fd, "\"code\": 431", all, sizeof all));
    (void)close(fd);
    /* A reader that takes nothing of an endless answer is dropped, and one that goes is noticed. */
    fd = connect_to(h);
    say(fd, "GET /forever HTTP/1.1\r\n\r\n");
    wait_until(&h->gone, 1);
    (void)close(fd);
    fd = connect_to(h);
    say(fd, "GET /never HTTP/1.1\r\n\r\n");
    wait_until(&h->asked, 2);
    (void)close(fd);
    wait_until(&h->gone, 2);
    fd = connect_to(h);
    say(fd, "GET /never HTTP/1.1\r\n\r\n");
    (void)shutdown(fd, SHUT_WR); /* half open: gone too */
    wait_until(&h->gone, 3);
    (void)close(fd);
    /* Silent connections make room. */
    int silent[10];
    for (int i = 0; i < 10; i++) silent[i] = connect_to(h);
    fd = connect_to(h);
    say(fd, "GET /x HTTP/1.1\r\n\r\n");
    CHECK(hears(fd, "GET /x", all, sizeof all));
    (void)close(fd);
    for (int i = 0; i < 10; i++) (void)close(silent[i]);
    stop_host(h);
}

TEST(http_server_drains) {
    ravel__http_server_options o = usual();
    o.handle = handle;
    ravel__http_server *server;
    host *h = calloc(1, sizeof *h);
    ravel_error err = RAVEL_ERROR_INIT;
    char all[1000];
    int32_t open = 1, busy = 1;
    o.user = h;
    CHECK(h != NULL);
    CHECK_OK(ravel__http_server_create(&o, &server, &err), &err);
    h->server = server;
    int idle = connect_to(h), fd = connect_to(h);
    say(fd, "GET /never HTTP/1.1\r\n\r\n");
    while (!atomic_load(&h->asked)) CHECK_OK(ravel__http_server_step(server, 1, &err), &err);
    ravel__http_server_drain(server);
    ravel__http_server_count(server, &open, &busy);
    CHECK(open == 1 && busy == 1);
    CHECK_EQ(recv(idle, all, sizeof all, 0), 0);
    (void)close(fd);
    while (busy) {
        CHECK_OK(ravel__http_server_step(server, 1, &err), &err);
        ravel__http_server_count(server, &open, &busy);
    }
    CHECK_EQ(open, 0);
    ravel__http_server_free(server);
    (void)close(idle);
    free(h);
}

TEST(http_addresses) {
    static const char *const bad[] = {"", "x", "99999", "banana:80", "12x", "127.0.0.1:", "[::1:80", "1.2.3:4"};
    ravel__http_server_options o = usual();
    ravel__http_server *server = NULL;
    o.handle = handle;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        o.listen = bad[i];
        CHECK_EQ(ravel__http_server_create(&o, &server, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, "is not a port");
    }
    static const char *const urls[] = {"https://x/",       "http://",        "http://:80/",  "http://a:/",
                                       "http://a:123456/", "http://a b/",    "http://[::1/", "http://a:80?x=1",
                                       "ftp://a",          "http://a/\nX: y"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_EQ(ravel__http_check(urls[i], &err), RAVEL_E_ARGUMENT);
    }
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel__http_check("http://[::1]:8000/v1", &err), &err);
}

/* ---- the client ----------------------------------------------------------------------------------------- */

static const char *url_of(const host *h, const char *path) {
    static char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d%s", (int)ravel__http_server_port(h->server), path);
    return url;
}

/* A call that is waited for. */
static ravel_status post(const char *url, const char *body, size_t bytes, const ravel__http_call_options *options,
                         ravel__http_answer *answer, ravel_error *err) {
    ravel__http_call *call = NULL;
    int done = 0;
    ravel_status status = ravel__http_call_begin(url, body, bytes, options, &call, err);
    while (!status && !(status = ravel__http_call_step(call, &done, answer, err)) && !done) {
        struct pollfd p;
        p.fd = ravel__http_call_fd(call, &p.events);
        (void)poll(&p, 1, 10);
    }
    ravel__http_call_free(call);
    return status;
}

TEST(http_client_gets_what_the_server_has) {
    ravel__http_server_options o = usual();
    ravel__http_call_options p;
    ravel__http_answer a;
    ravel_error err = RAVEL_ERROR_INIT;
    host *h = start_host(&o);
    ravel__rng state = ravel__rng_seed(check_seed());
    char *body = malloc(BODY);
    CHECK(body != NULL);
    ravel__http_call_options_default(&p);
    for (int i = 0; i < 8; i++) {
        size_t bytes = ravel__rng_below(&state, i % 2 ? BODY : 3000);
        for (size_t k = 0; k < bytes; k++) body[k] = (char)ravel__rng_below(&state, 256);
        CHECK_OK(post(url_of(h, i % 4 < 2 ? "/echo" : "/pieces"), body, bytes, &p, &a, &err), &err);
        CHECK(a.code == 200 && a.bytes == bytes && memcmp(a.body, body, bytes) == 0 && a.body[bytes] == '\0');
        ravel__http_answer_free(&a);
    }
    CHECK_OK(post(url_of(h, "/x?y"), NULL, 0, &p, &a, &err), &err);
    CHECK_STR(a.body, "GET /x y -");
    ravel__http_answer_free(&a);
    p.answer_bytes = 10;
    CHECK_EQ(post(url_of(h, "/echo"), body, 11, &p, &a, &err), RAVEL_E_DATA);
    ravel_error_clear(&err);
    p.seconds = 0.05;
    CHECK_EQ(post(url_of(h, "/never"), body, 1, &p, &a, &err), RAVEL_E_TIMEOUT);
    ravel_error_clear(&err);
    free(body);
    stop_host(h);
}

typedef struct peer {
    int listener;
    const char *says;
} peer;

static void *answer_once(void *user) {
    peer *p = user;
    char text[1000];
    size_t used = 0;
    int fd = accept(p->listener, NULL, NULL);
    /* The whole request: a close with bytes unread resets the connection, and the answer would be lost. */
    for (ssize_t n = 1; n > 0 && (used < 2 || memcmp(text + used - 2, "{}", 2) != 0); used += n > 0 ? (size_t)n : 0)
        n = recv(fd, text + used, sizeof text - used, 0);
    for (const char *c = p->says; *c; c++) (void)send(fd, c, 1, MSG_NOSIGNAL);
    (void)close(fd);
    return NULL;
}

/* Many calls under one poll, some given up in the middle: each gets its own answer. */
TEST(http_client_has_many_calls_at_once) {
    enum { CALLS = 40 };
    ravel__http_server_options o = usual();
    host *h = start_host(&o);
    ravel__rng state = ravel__rng_seed(check_seed());
    ravel__http_call_options p;
    ravel__http_call *calls[CALLS];
    static char bodies[CALLS][70000];
    int left = CALLS;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__http_call_options_default(&p);
    for (int i = 0; i < CALLS; i++) {
        memset(bodies[i], 'a' + i % 26, sizeof bodies[i]);
        size_t bytes = 1 + ravel__rng_below(&state, sizeof bodies[i]);
        bodies[i][0] = (char)i;
        CHECK_OK(ravel__http_call_begin(url_of(h, i % 2 ? "/echo" : "/pieces"), bodies[i], bytes, &p, &calls[i], &err),
                 &err);
    }
    for (int64_t rounds = 0; left && rounds < 1000000; rounds++) {
        struct pollfd fds[CALLS] = {0};
        for (int i = 0; i < CALLS; i++) fds[i].fd = calls[i] ? ravel__http_call_fd(calls[i], &fds[i].events) : -1;
        (void)poll(fds, CALLS, 10);
        for (int i = 0; i < CALLS; i++) {
            ravel__http_answer a;
            int done = 0;
            if (!calls[i]) continue;
            CHECK_OK(ravel__http_call_step(calls[i], &done, &a, &err), &err);
            int drop = !done && ravel__rng_below(&state, 500) == 0;
            if (done) CHECK(a.code == 200 && a.bytes > 0 && memcmp(a.body, bodies[i], a.bytes) == 0);
            if (done) ravel__http_answer_free(&a);
            if (!done && !drop) continue;
            ravel__http_call_free(calls[i]);
            calls[i] = NULL;
            left--;
        }
    }
    CHECK_EQ(left, 0);
    stop_host(h);
}

#define TEN(text) text text text text text text text text text text

/* Answers of servers that are not ours. */
TEST(http_client_reads_other_servers) {
    static const struct {
        const char *says, *body;
        ravel_status status;
    } cases[] = {{"HTTP/1.0 200 OK\r\n\r\nto the end", "to the end", RAVEL_OK},
                 {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nabc", "ab", RAVEL_OK},
                 {TEN(TEN("HTTP/1.1 102 Wait\r\n\r\n")) "HTTP/1.1 200 OK\r\n\r\n", NULL, RAVEL_E_DATA},
                 {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc", RAVEL_OK},
                 {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", NULL, RAVEL_E_IO},
                 {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", NULL, RAVEL_E_IO},
                 {"HTTP/1.1 204 No Content\r\n\r\n", "", RAVEL_OK},
                 {"SSH-2.0\r\n\r\n", NULL, RAVEL_E_DATA},
                 {"", NULL, RAVEL_E_IO}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", ntohs(at.sin_port));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel__http_call_options o;
        ravel__http_answer a;
        ravel_error err = RAVEL_ERROR_INIT;
        pthread_t thread;
        peer p = {fd, cases[i].says};
        ravel__http_call_options_default(&o);
        CHECK(pthread_create(&thread, NULL, answer_once, &p) == 0);
        ravel_status status = post(url, "{}", 2, &o, &a, &err);
        pthread_join(thread, NULL);
        if (status == RAVEL_E_IO && cases[i].status == RAVEL_E_IO) continue;
        CHECK_EQ(status, cases[i].status);
        if (status) continue;
        CHECK_STR(a.body, cases[i].body);
        ravel__http_answer_free(&a);
    }
    (void)close(fd);
}

/* Answers as soon as the head is there, and closes with the rest unread, which resets the connection. */
static void *refuse_early(void *user) {
    const peer *p = user;
    char text[16];
    int fd = accept(p->listener, NULL, NULL);
    (void)EXPECT(recv(fd, text, sizeof text, 0) > 0);
    (void)send(fd, p->says, strlen(p->says), MSG_NOSIGNAL);
    (void)close(fd);
    return NULL;
}

TEST(http_client_hears_why_its_request_is_too_long) {
    enum { LONG = 32 << 20 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    char url[64], *body = calloc(1, LONG);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", ntohs(at.sin_port));
    CHECK(body != NULL);
    ravel__http_call_options o;
    ravel__http_answer a;
    ravel_error err = RAVEL_ERROR_INIT;
    pthread_t thread;
    peer p = {fd, "HTTP/1.1 413 Too Long\r\nContent-Length: 8\r\n\r\ntoo long"};
    ravel__http_call_options_default(&o);
    CHECK(pthread_create(&thread, NULL, refuse_early, &p) == 0);
    CHECK_OK(post(url, body, LONG, &o, &a, &err), &err);
    pthread_join(thread, NULL);
    CHECK_EQ(a.code, 413);
    CHECK_STR(a.body, "too long");
    ravel__http_answer_free(&a);
    free(body);
    (void)close(fd);
}
