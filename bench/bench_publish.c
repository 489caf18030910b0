/* Publish and pull: over TCP against a plain copy loop between two sockets, publishing against a copy on all cores, and the
 * planning of a large pull. */
#include "bench/bench.h"

#include <ravel/publish.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TENSORS = 32, TENSOR_BYTES = 8 << 20, REPEATS = 7 };

typedef struct model {
    ravel_refit_tensor tensors[TENSORS];
    char names[TENSORS][16];
    char *block;
} model;

static int make_model(model *m) {
    m->block = malloc((size_t)TENSORS * TENSOR_BYTES);
    if (!m->block) return 0;
    memset(m->block, 1, (size_t)TENSORS * TENSOR_BYTES);
    for (int i = 0; i < TENSORS; i++) {
        (void)snprintf(m->names[i], sizeof m->names[i], "layers.%d.w", i);
        m->tensors[i] = (ravel_refit_tensor){.name = m->names[i],
                                             .dtype = RAVEL_BF16,
                                             .ndim = 2,
                                             .dims = {TENSOR_BYTES / 2048, 1024},
                                             .data = m->block + (size_t)i * TENSOR_BYTES};
    }
    return 1;
}

/* ---- two sockets ---------------------------------------------------------------------------------------- */

typedef struct copying {
    int from, to;
    char *bytes;
} copying;

static void *send_all(void *argument) {
    const copying *c = argument;
    size_t total = (size_t)TENSORS * TENSOR_BYTES, done = 0;
    while (done < total) {
        size_t step = total - done < (1 << 20) ? total - done : 1 << 20;
        ssize_t n = send(c->from, c->bytes + done, step, 0);
        if (n <= 0) break;
        done += (size_t)n;
    }
    return NULL;
}

/* Seconds of one plain copy through a TCP connection on this machine; 0: it could not be made. */
static double plain_copy(char *from, char *to) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0), in = -1;
    double seconds = 0;
    pthread_t thread;
    if (listener >= 0 && out >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&at, &length) == 0 &&
        connect(out, (struct sockaddr *)&at, sizeof at) == 0 && (in = accept(listener, NULL, NULL)) >= 0) {
        copying c = {.from = out, .to = in, .bytes = from};
        double began = bench_seconds();
        size_t total = (size_t)TENSORS * TENSOR_BYTES, done = 0;
        if (pthread_create(&thread, NULL, send_all, &c) == 0) {
            for (ssize_t n; done < total && (n = recv(in, to + done, total - done, 0)) > 0;) done += (size_t)n;
            (void)pthread_join(thread, NULL);
            if (done == total) seconds = bench_seconds() - began;
        }
    }
    close(listener);
    close(out);
    if (in >= 0) close(in);
    return seconds;
}

static double least(double a, double b) {
    return a == 0 || b < a ? b : a;
}

BENCH(refit_tcp) {
    model from, to;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *self = NULL;
    ravel_publisher *publisher = NULL;
    ravel_puller *puller = NULL;
    ravel_publish_options po;
    ravel_pull_options go;
    double plain = 0, pull = 0, pause = 0, publish = 0;
    char *copy_to = malloc((size_t)TENSORS * TENSOR_BYTES);
    if (!make_model(&from) || !make_model(&to) || !copy_to) exit(1);
    ravel_publish_options_default(&po);
    ravel_pull_options_default(&go);
    po.threads = go.threads = 1;
    go.delta = 0;
    ravel_refit_source source = {.size = sizeof source, .tensors = from.tensors, .count = TENSORS};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to.tensors, .count = TENSORS};
    ravel_status status = ravel_comm_self(NULL, &self, &err);
    if (status == RAVEL_OK) status = ravel_publisher_create(self, "127.0.0.1:0", &source, &po, &publisher, &err);
    if (status == RAVEL_OK)
        status = ravel_puller_create(self, ravel_publisher_address(publisher), &sink, &go, &puller, &err);
    for (int64_t v = 1; v <= REPEATS && status == RAVEL_OK; v++) {
        ravel_pull_report report = {.size = sizeof report};
        double total, copy;
        status = ravel_publisher_publish(publisher, v, &err);
        if (status == RAVEL_OK) status = ravel_puller_wait(puller, 60, &err);
        if (status == RAVEL_OK) status = ravel_puller_commit(puller, &report, &err);
        double once = plain_copy(from.block, copy_to);
        if (v < 3 || status != RAVEL_OK) continue; /* these touch new memory */
        ravel_publisher_seconds(publisher, &total, &copy);
        pull = least(pull, report.prepare_seconds);
        plain = least(plain, once);
        pause = least(pause, report.pause_seconds);
        publish = least(publish, total);
    }
    if (status != RAVEL_OK) {
        (void)fprintf(stderr, "refit_tcp: %s\n", err.message);
        exit(1);
    }
    double gb = (double)TENSORS * TENSOR_BYTES * 1e-9;
    bench_report("refit.tcp_vs_loopback", plain / pull, "x", HIGHER,
                 "one connection, 268 MB with checksums, %.2f GB/s; plain sockets %.2f; wanted .6", gb / pull,
                 gb / plain);
    bench_report("refit.pause_ms", pause * 1e3, "ms", LOWER,
                 "the commit of 268 MB staged beside the live set; prepared in %.0f ms", pull * 1e3);
    bench_report("refit.publish_ms", publish * 1e3, "ms", LOWER, "268 MB copied and hashed on one core");
    ravel_puller_free(puller);
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
    free(from.block);
    free(to.block);
    free(copy_to);
}

/* ---- all cores ------------------------------------------------------------------------------------------ */

BENCH(refit_cores) {
    model from;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *self = NULL;
    ravel_publisher *publisher = NULL;
    ravel_publish_options po;
    int cores = bench_cores();
    double copy = 0, publish = 0;
    char *to = malloc((size_t)TENSORS * TENSOR_BYTES);
    if (!make_model(&from) || !to) exit(1);
    memset(to, 1, (size_t)TENSORS * TENSOR_BYTES);
    ravel_publish_options_default(&po);
    po.threads = cores;
    ravel_refit_source source = {.size = sizeof source, .tensors = from.tensors, .count = TENSORS};
    ravel_status status = ravel_comm_self(NULL, &self, &err);
    if (status == RAVEL_OK) status = ravel_publisher_create(self, "127.0.0.1:0", &source, &po, &publisher, &err);
    for (int64_t v = 1; v <= REPEATS && status == RAVEL_OK; v++) {
        double total, once;
        status = ravel_publisher_publish(publisher, v, &err);
        double plain = bench_copy(cores, to, from.block, (size_t)TENSORS * TENSOR_BYTES);
        if (v < 3 || status != RAVEL_OK) continue;
        ravel_publisher_seconds(publisher, &total, &once);
        publish = least(publish, once);
        copy = least(copy, plain);
    }
    if (status != RAVEL_OK) {
        (void)fprintf(stderr, "refit_cores: %s\n", err.message);
        exit(1);
    }
    double gb = (double)TENSORS * TENSOR_BYTES * 1e-9;
    bench_report("refit.cores_vs_copy", copy / publish, "x", HIGHER,
                 "packing and hashing on %d cores, %.1f GB/s; memcpy on as many %.1f; wanted .5", cores, gb / publish,
                 gb / copy);
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
    free(from.block);
    free(to);
}
