/* Communicators over TCP, against a plain loop of send and recv on two sockets: two threads each, loopback, sockets
 * only. Then long messages through shared memory, against memcpy. Both sides of a ratio take turns within one run, and
 * the best of several timings counts on each. */
#include "bench/bench.h"
#include "src/comm/link/mac.h"

#include <ravel/comm.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LONG_BYTES = 32 << 20, LONG_COUNT = 4, SMALL_BYTES = 64, SMALL_COUNT = 3000, TIMINGS = 7 };

/* ---- plain sockets -------------------------------------------------------------------------------------- */

typedef struct plain {
    int fd[2];
    char *data[2]; /* [LONG_BYTES] */
} plain;

static int is_moved(int fd, char *data, int64_t bytes, int sends) {
    while (bytes > 0) {
        ssize_t n = sends ? send(fd, data, (size_t)bytes, MSG_NOSIGNAL) : recv(fd, data, (size_t)bytes, 0);
        if (n <= 0) return 0;
        data += n, bytes -= n;
    }
    return 1;
}

static int plain_open(plain *p) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &bytes))
        return 0;
    p->fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (p->fd[0] < 0 || connect(p->fd[0], (struct sockaddr *)&at, sizeof at)) return 0;
    p->fd[1] = accept(listener, NULL, NULL);
    (void)close(listener);
    for (int i = 0; i < 2; i++) (void)setsockopt(p->fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return p->fd[1] >= 0;
}

/* ---- both, as one of two ends --------------------------------------------------------------------------- */

typedef struct pair {
    plain plain;
    ravel_comm *comm[2];
    char address[2][32];
    pthread_barrier_t barrier;
    double best[4], cpu[4]; /* long and small: ravel, plain; seconds, and those that the process computed */
    int failed;
} pair;

typedef struct side {
    pair *pair;
    int which;
} side;

static int move(pair *p, int me, int is_plain, int64_t bytes, int sends) {
    if (is_plain) return is_moved(p->plain.fd[me], p->plain.data[me], bytes, sends);
    return !(sends ? ravel_comm_send(p->comm[me], p->plain.data[me], bytes, RAVEL_U8, 1 - me, 0, NULL)
                   : ravel_comm_recv(p->comm[me], p->plain.data[me], bytes, RAVEL_U8, 1 - me, 0, NULL));
}

/* Long messages from rank 0 to 1, and an answer; small ones as round trips. */
static int play(pair *p, int me, int is_plain, int small) {
    int ok = 1;
    for (int i = 0; i < SMALL_COUNT && small && ok; i++)
        ok = move(p, me, is_plain, SMALL_BYTES, me == 0) && move(p, me, is_plain, SMALL_BYTES, me == 1);
    for (int i = 0; i < LONG_COUNT && !small && ok; i++) ok = move(p, me, is_plain, LONG_BYTES, me == 0);
    return ok && move(p, me, is_plain, 1, me == 1);
}

static double cpu_seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *run_side(void *at) {
    side *s = at;
    pair *p = s->pair;
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.rendezvous = p->address[0], o.listen = p->address[s->which], o.ranks = 2, o.rank = s->which, o.timeout = 30;
    if (ravel_comm_tcp(&o, &p->comm[s->which], NULL)) p->failed = 1;
    (void)pthread_barrier_wait(&p->barrier);
    for (int t = 0; t < 4 * TIMINGS && !p->failed; t++) {
        (void)pthread_barrier_wait(&p->barrier);
        double start = bench_seconds(), before = cpu_seconds();
        if (!play(p, s->which, t % 2, t / 2 % 2)) p->failed = 1;
        double seconds = bench_seconds() - start, *best = &p->best[t % 4];
        if (s->which == 0 && seconds < *best) *best = seconds;
        (void)pthread_barrier_wait(&p->barrier);
        double computed = cpu_seconds() - before;
        if (s->which == 0 && computed < p->cpu[t % 4]) p->cpu[t % 4] = computed;
    }
    ravel_comm_free(p->comm[s->which]);
    return NULL;
}

BENCH(tcp) {
    pair p = {.best = {1e9, 1e9, 1e9, 1e9}, .cpu = {1e9, 1e9, 1e9, 1e9}};
    side sides[2] = {{&p, 0}, {&p, 1}};
    pthread_t threads[2];
    (void)snprintf(p.address[0], sizeof p.address[0], "127.0.0.1:%d", 10000 + (int)getpid() % 20000);
    (void)snprintf(p.address[1], sizeof p.address[1], "127.0.0.1:0");
    for (int i = 0; i < 2; i++) p.plain.data[i] = calloc(1, LONG_BYTES);
    (void)pthread_barrier_init(&p.barrier, NULL, 2);
    if (!plain_open(&p.plain) || !p.plain.data[0] || !p.plain.data[1]) {
        bench_note("tcp: no sockets here");
        return;
    }
    for (int i = 0; i < 2; i++) (void)pthread_create(&threads[i], NULL, run_side, &sides[i]);
    for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    double bandwidth = p.best[1] / p.best[0], rate = p.best[3] / p.best[2];
    if (p.failed) {
        bench_note("tcp: failed");
    } else {
        bench_report(
            "tcp.vs_loopback", bandwidth < rate ? bandwidth : rate, "x", HIGHER,
            "the smaller of bandwidth %.2f (32 MiB messages, checksums, %.2f GB/s) and rate %.2f (64 bytes to and "
            "fro, %.1f us) against send and recv on two plain sockets; by the CPU time of both sides: %.2f and %.2f",
            bandwidth, (double)LONG_BYTES * LONG_COUNT / p.best[0] / 1e9, rate, p.best[2] / SMALL_COUNT * 1e6,
            p.cpu[1] / p.cpu[0], p.cpu[3] / p.cpu[2]);
    }
    for (int i = 0; i < 2; i++) (void)close(p.plain.fd[i]), free(p.plain.data[i]);
    (void)pthread_barrier_destroy(&p.barrier);
}

/* ---- TLS ------------------------------------------------------------------------------------------------ */

/* Processor seconds that both ends spend on the keyed tags of these messages: what a link without them would save. */
static double tag_seconds(const void *body) {
    uint8_t secret[RAVEL__MAC_SECRET] = {1};
    ravel__mac_key key;
    ravel__mac_key_make(&key, secret);
    double best = 1e9;
    for (int t = 0; t < TIMINGS; t++) {
        double before = cpu_seconds();
        ravel__mac mac;
        ravel__mac_begin(&mac, &key, (uint64_t)t);
        ravel__mac_add(&mac, body, LONG_BYTES);
        if (ravel__mac_end(&mac) == 0) best = 1e9; /* the tag is used, so that it is computed */
        double seconds = cpu_seconds() - before;
        if (seconds < best) best = seconds;
    }
    return 2 * LONG_COUNT * best;
}

/* Long messages from rank 0 to rank 1 over two worlds in turn: with tags alone, and with TLS, too. best[], cpu[]: of
 * each. */
static void *run_tls(void *at) {
    side *s = at;
    pair *p = s->pair;
    ravel_comm *worlds[2] = {NULL, NULL};
    for (int tls = 0; tls < 2; tls++) {
        ravel_comm_options o;
        ravel_comm_options_default(&o);
        o.rendezvous = p->address[tls], o.listen = s->which ? "127.0.0.1:0" : p->address[tls];
        o.ranks = 2, o.rank = s->which, o.timeout = 30, o.tls = tls;
        if (ravel_comm_tcp(&o, &worlds[tls], NULL)) p->failed = 1;
    }
    (void)pthread_barrier_wait(&p->barrier);
    for (int t = 0; t < 2 * TIMINGS && !p->failed; t++) {
        p->comm[s->which] = worlds[t % 2];
        (void)pthread_barrier_wait(&p->barrier);
        double start = bench_seconds(), before = cpu_seconds();
        if (!play(p, s->which, 0, 0)) p->failed = 1;
        double seconds = bench_seconds() - start;
        (void)pthread_barrier_wait(&p->barrier);
        double computed = cpu_seconds() - before;
        if (s->which == 0 && seconds < p->best[t % 2]) p->best[t % 2] = seconds;
        if (s->which == 0 && computed < p->cpu[t % 2]) p->cpu[t % 2] = computed;
    }
    for (int tls = 0; tls < 2; tls++) ravel_comm_free(worlds[tls]);
    return NULL;
}

BENCH(tcp_tls) {
    pair p = {.best = {1e9, 1e9}, .cpu = {1e9, 1e9}};
    side sides[2] = {{&p, 0}, {&p, 1}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        (void)snprintf(p.address[i], sizeof p.address[i], "127.0.0.1:%d", 10000 + ((int)getpid() + 7 + i) % 20000);
    for (int i = 0; i < 2; i++) p.plain.data[i] = calloc(1, LONG_BYTES);
    (void)pthread_barrier_init(&p.barrier, NULL, 2);
    for (int i = 0; i < 2; i++) (void)pthread_create(&threads[i], NULL, run_tls, &sides[i]);
    for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    double bytes = (double)LONG_BYTES * LONG_COUNT;
    if (p.failed)
        bench_note("tcp_tls: failed, or no TLS module");
    else {
        double tags = tag_seconds(p.plain.data[0]);
        bench_report(
            "tcp.keyed_vs_unkeyed", (p.cpu[0] - tags) / p.cpu[0], "x", HIGHER,
            "32 MiB messages over TCP: CPU time of both sides without the keyed tags of both ends (%.2f GB/s per end) "
            "against all of it",
            2 * bytes / tags / 1e9);
        bench_report(
            "tcp.tls_vs_plain", p.best[0] / p.best[1], "x", HIGHER,
            "32 MiB messages over TCP with TLS 1.3 (%.2f GB/s) against the same without (%.2f GB/s), both with keyed "
            "tags; by the CPU time of both sides: %.2f",
            bytes / p.best[1] / 1e9, bytes / p.best[0] / 1e9, p.cpu[0] / p.cpu[1]);
    }
    for (int i = 0; i < 2; i++) free(p.plain.data[i]);
    (void)pthread_barrier_destroy(&p.barrier);
}

/* ---- shared memory -------------------------------------------------------------------------------------- */

/* Long messages from rank 0 to rank 1, and the same bytes with memcpy while rank 1 waits. best[0], best[1]: seconds. */
static void *run_shared(void *at) {
    side *s = at;
    pair *p = s->pair;
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.rendezvous = p->address[0], o.ranks = 2, o.rank = s->which, o.timeout = 30;
    if (ravel_comm_tcp(&o, &p->comm[s->which], NULL)) p->failed = 1;
    (void)pthread_barrier_wait(&p->barrier);
    for (int t = 0; t < 2 * TIMINGS && !p->failed; t++) {
        (void)pthread_barrier_wait(&p->barrier);
        double start = bench_seconds();
        if (t % 2 == 0 && !play(p, s->which, 0, 0)) p->failed = 1;
        for (int i = 0; i < LONG_COUNT && t % 2 && s->which == 0; i++)
            memcpy(p->plain.data[1], p->plain.data[0], LONG_BYTES);
        double seconds = bench_seconds() - start;
        if (s->which == 0 && seconds < p->best[t % 2]) p->best[t % 2] = seconds;
        (void)pthread_barrier_wait(&p->barrier);
    }
    ravel_comm_free(p->comm[s->which]);
    return NULL;
}

BENCH(tcp_shared) {
    pair p = {.best = {1e9, 1e9}};
    side sides[2] = {{&p, 0}, {&p, 1}};
    pthread_t threads[2];
    (void)snprintf(p.address[0], sizeof p.address[0], "unix:@ravel-bench-%d", (int)getpid());
    for (int i = 0; i < 2; i++) p.plain.data[i] = calloc(1, LONG_BYTES);
    (void)pthread_barrier_init(&p.barrier, NULL, 2);
    for (int i = 0; i < 2; i++) (void)pthread_create(&threads[i], NULL, run_shared, &sides[i]);
    for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    if (p.failed)
        bench_note("tcp_shared: failed");
    else
        bench_report("tcp.shared_vs_memcpy", p.best[1] / p.best[0], "x", HIGHER,
                     "32 MiB messages with checksums between two threads, through a Unix socket and shared memory "
                     "(%.2f GB/s), against one memcpy of the same bytes on one core (%.2f GB/s)",
                     (double)LONG_BYTES * LONG_COUNT / p.best[0] / 1e9,
                     (double)LONG_BYTES * LONG_COUNT / p.best[1] / 1e9);
    for (int i = 0; i < 2; i++) free(p.plain.data[i]);
    (void)pthread_barrier_destroy(&p.barrier);
}
