/* The Prometheus text, and the endpoint over real sockets. */
#include "tests/unit/check.h"

#include <ravel/metrics.h>

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- over sockets --------------------------------------------------------------------------------------- */

static int connect_to(int32_t port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) (void)close(fd);
    return -1;
}

/* Sends the request, `piece` bytes at a time, and reads to the end; returns the bytes, at most room - 1. */
static size_t ask_once(int32_t port, const char *request, size_t piece, char *text, size_t room) {
    int fd = connect_to(port);
    size_t used = 0, bytes = strlen(request);
    if (fd < 0) return 0;
    for (size_t at = 0; at < bytes; at += piece)
        if (send(fd, request + at, bytes - at < piece ? bytes - at : piece, MSG_NOSIGNAL) < 0) break;
    for (ssize_t got; used + 1 < room && (got = recv(fd, text + used, room - 1 - used, 0)) > 0;) used += (size_t)got;
    text[used] = '\0';
    (void)close(fd);
    return used;
}

/* The same, once more where a busy machine stopped this thread until the server's patience was over: 408, or a connection
 * that is closed. */
static size_t ask_in_pieces(int32_t port, const char *request, size_t piece, char *text, size_t room) {
    size_t used = 0;
    for (int i = 0; i < 8 && (used == 0 || strncmp(text, "HTTP/1.1 408 ", 13) == 0); i++)
        used = ask_once(port, request, piece, text, room);
    return used;
}

static size_t ask(int32_t port, const char *request, char *text, size_t room) {
    return ask_in_pieces(port, request, strlen(request), text, room);
}

static ravel_metrics *serve(int32_t *port) {
    ravel_metrics *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.rl = 1;
    if (ravel_metrics_create(&o, &m, &err) || ravel_metrics_sink(m, "http:0", &err))
        check_fail(__FILE__, __LINE__, "%s", err.message);
    *port = ravel_metrics_http_port(m);
    return m;
}

TEST(http_endpoint_serves_the_last_update) {
    enum { ROOM = 1 << 17 };
    char *text = malloc(ROOM);
    int32_t port;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = serve(&port);
    CHECK(m && text && port > 0);
    CHECK(ask(port, "GET /metrics HTTP/1.1\r\n\r\n", text, ROOM) > 0);
    CHECK_HAS(text, "HTTP/1.1 200 OK\r\n"); /* nothing yet: an empty exposition */
    CHECK_HAS(text, "Content-Length: 0\r\n");
    const int64_t lengths[] = {100, 28};
    ravel_metrics_batch b = {.size = sizeof b, .lengths = lengths, .samples = 2, .capacity = 256, .padded = 128};
    ravel_metrics_add_batch(m, &b);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, NAN, 1);
    CHECK_OK(ravel_metrics_update(m, 42, &err), &err);
    size_t bytes = ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", text, ROOM);
    const char *body = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
    CHECK(body && length);
    body += 4;
    CHECK_EQ(strtoul(length + 16, NULL, 10), bytes - (size_t)(body - text));
    CHECK_HAS(body, "\nravel_step 42\n");
    CHECK_HAS(body, "# TYPE ravel_tokens_actual gauge\nravel_tokens_actual 128\n");
    CHECK_HAS(body, "# TYPE ravel_run_consumed_tokens_total counter\nravel_run_consumed_tokens_total 128\n");
    CHECK_HAS(body, "\nravel_train_loss NaN\n");
    CHECK_HAS(body, "\nravel_throughput_packing_efficiency 0.5\n");
    CHECK_HAS(body, "\nravel_throughput_tokens_per_second ");
    CHECK_HAS(body, "\nravel_time_update_seconds ");
    CHECK_HAS(body, "\nravel_rank_busy_seconds{rank=\"0\"} 0\n");
    CHECK(!strstr(body, "reward"));
    (void)ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n", text, ROOM);
    body = strstr(text, "\r\n\r\n");
    CHECK(body && body[4] == '\0' && !strstr(text, "Content-Length: 0"));
    (void)ask(port, "GET /x HTTP/1.1\r\n\r\n", text, ROOM);
    CHECK_HAS(text, "HTTP/1.1 404 Not Found\r\n");
    (void)ask(port, "GET / HTTP/1.1\r\n\r\n", text, ROOM);
    CHECK_HAS(text, "Location: /metrics\r\n");
    ravel_metrics_free(m);
    free(text);
}

TEST(http_endpoint_survives_rude_clients) {
    int32_t port;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = serve(&port);
    CHECK(m);
    CHECK_OK(ravel_metrics_update(m, 1, &err), &err);
    int silent[7], unread[20];
    for (int i = 0; i < 7; i++) silent[i] = connect_to(port); /* seven that say nothing; one place is left */
    for (int i = 0; i < 20; i++) {                            /* twenty that ask and go */
        unread[i] = connect_to(port);
        CHECK(unread[i] >= 0);
        (void)send(unread[i], "GET /metrics HTTP/1.1\r\n\r\n", 26, MSG_NOSIGNAL);
        struct linger hard = {1, 0};
        (void)setsockopt(unread[i], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        (void)close(unread[i]);
    }
    char text[512], flood[8192];
    CHECK(ask(port, "GET /healthz HTTP/1.1\r\n\r\n", text, sizeof text) > 0);
    CHECK_HAS(text, "204 No Content");
    int fd = connect_to(port);
    memset(flood, 'x', sizeof flood);
    (void)send(fd, flood, sizeof flood, MSG_NOSIGNAL);
    ssize_t got = recv(fd, text, sizeof text - 1, 0);
    CHECK(got <= 0 || strncmp(text, "HTTP/1.1 431 ", 13) == 0);
    (void)close(fd);
    CHECK(ask_in_pieces(port, "GET /healthz HTTP/1.1\r\n\r\n", 1, text, sizeof text) > 0);
    CHECK_HAS(text, "HTTP/1.1 204 ");                /* also where it comes letter by letter */
    got = recv(silent[0], text, sizeof text - 1, 0); /* waits for the deadline of two seconds */
    CHECK(got > 0 && strncmp(text, "HTTP/1.1 408 ", 13) == 0);
    for (int i = 0; i < 7; i++) (void)close(silent[i]);
    ravel_metrics_free(m); /* with clients in the middle of things */
}

TEST(http_silent_clients_do_not_keep_a_scraper_out) {
    enum { SILENT = 24 };
    int32_t port;
    ravel_metrics *m = serve(&port);
    CHECK(m);
    int silent[SILENT], told = 0;
    for (int i = 0; i < SILENT; i++) {
        silent[i] = connect_to(port);
        CHECK(silent[i] >= 0 && send(silent[i], "GET /metr", 9, MSG_NOSIGNAL) == 9);
    }
    char text[512];
    CHECK(ask(port, "GET /healthz HTTP/1.1\r\n\r\n", text, sizeof text) > 0);
    CHECK_HAS(text, "204 No Content");
    for (int i = 0; i < SILENT; i++) { /* whoever had to make room was told, and the last ones are still waited for */
        ssize_t got = recv(silent[i], text, sizeof text, MSG_DONTWAIT);
        told += got > 13 && strncmp(text, "HTTP/1.1 408 ", 13) == 0;
        (void)close(silent[i]);
    }
    CHECK(told >= SILENT - 8);
    ravel_metrics_free(m);
}

typedef struct reader {
    ravel_metrics *metrics;
    int32_t port;
    int stop, reads;
} reader;

/* A profiler in another thread: values by name, and scrapes. Every value it sees belongs to one update. */
static void *read_all_the_time(void *user) {
    reader *r = user;
    char *text = malloc(1 << 17);
    while (text && !__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
        double x;
        if (ravel_metrics_get(r->metrics, "train/learning_rate", &x) && (x < 1 || x > 1e6))
            check_fail(__FILE__, __LINE__, "a torn value: %g", x);
        (void)ravel_metrics_line(r->metrics, text, 1 << 17);
        (void)ask(r->port, "GET /metrics HTTP/1.1\r\n\r\n", text, 1 << 17);
        const char *step = strstr(text, "\nravel_step "), *rate = strstr(text, "\nravel_train_learning_rate ");
        if (step && (!rate || strtod(step + 12, NULL) != strtod(rate + 27, NULL)))
            check_fail(__FILE__, __LINE__, "values of two updates in one answer");
        __atomic_add_fetch(&r->reads, 1, __ATOMIC_RELAXED);
    }
    free(text);
    return NULL;
}

TEST(http_and_readers_in_other_threads_see_whole_updates) {
    reader r = {0};
    r.metrics = serve(&r.port);
    CHECK(r.metrics);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, read_all_the_time, &r) == 0);
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t step = 1; step < 100000 && __atomic_load_n(&r.reads, __ATOMIC_RELAXED) < 50; step++) {
        ravel_metrics_add(r.metrics, RAVEL_METRIC_TRAIN_LEARNING_RATE, (double)step, 1);
        CHECK_OK(ravel_metrics_update(r.metrics, step, &err), &err);
    }
    __atomic_store_n(&r.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CHECK(r.reads >= 50);
    ravel_metrics_free(r.metrics);
}

TEST(http_port_taken_is_an_error) {
    int32_t port;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = serve(&port), *other = NULL;
    CHECK(m);
    char spec[64];
    (void)snprintf(spec, sizeof spec, "http:127.0.0.1:%d", (int)port);
    CHECK_OK(ravel_metrics_create(NULL, &other, &err), &err);
    CHECK_EQ(ravel_metrics_http_port(other), 0);
    CHECK_EQ(ravel_metrics_sink(other, spec, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "cannot listen on 127.0.0.1:");
    ravel_metrics_free(other);
    ravel_metrics_free(m);
}
