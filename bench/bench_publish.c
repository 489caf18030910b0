/* Publish and pull: over TCP against a plain copy loop between two sockets, publishing against a copy on all cores, and
 * the planning of a large pull. */
#include "bench/bench.h"
#include "refit/wire/block.h"

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

/* ---- changed elements ----------------------------------------------------------------------------------- */

enum { SPARSE_BYTES = 128 << 20, BLOCK_BYTES = 256 << 10, BLOCKS = SPARSE_BYTES / BLOCK_BYTES, EACH = BLOCK_BYTES / 2 };

/* One tensor in three versions: the live one, the trainer's weights, and what the trainer sends. */
typedef struct versions {
    char *base, *fresh, *packed, *spare;
    unsigned char *changes;
    size_t sizes[BLOCKS], total;
    uint64_t hashes[BLOCKS];
    ravel_refit_tensor tensor;
    ravel_refit_sink sink;
    ravel__arena arena;
    ravel__holding holding;
    ravel__stage stage;
} versions;

/* One element of two bytes in a hundred, scattered. */
static void make_versions(versions *v) {
    uint64_t x = 20261119;
    for (size_t i = 0; i < SPARSE_BYTES / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(v->base + 8 * i, &x, 8);
    }
    memcpy(v->fresh, v->base, SPARSE_BYTES);
    for (size_t i = 0; i < SPARSE_BYTES / 2; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (x % 100 == 0) v->fresh[2 * i] ^= 1;
    }
}

/* As a trainer does: the new version packed and hashed, and compared with the one before. */
static void encode_all(void *user) {
    versions *v = user;
    const ravel__view *view = &v->holding.items[0].view;
    size_t changed;
    v->total = 0;
    for (size_t b = 0; b < BLOCKS; b++) {
        size_t at = b * BLOCK_BYTES;
        if (ravel__block_encode(view, v->fresh, &view->box, (int64_t)b * EACH, EACH, RAVEL_BF16, v->packed + at,
                                &v->hashes[b], NULL) != RAVEL_OK)
            exit(1);
        v->sizes[b] = ravel__sparse_encode(v->base + at, v->fresh + at, EACH, 2, v->changes + at, &changed);
        v->total += v->sizes[b];
    }
}

/* As a generator does: the live version with the changes, hashed, compared, and staged. */
static void apply_all(void *user) {
    versions *v = user;
    const ravel__box *box = &v->holding.items[0].view.box;
    if (ravel__stage_begin(&v->stage, (ravel_refit_identity){2, 1, 0}, NULL) != RAVEL_OK) exit(1);
    for (size_t b = 0; b < BLOCKS; b++) {
        ravel__refit_block block = {.span = {0, box, (int64_t)b * EACH, EACH}, .kind = RAVEL__BLOCK_SPARSE};
        block.dtype = RAVEL_BF16;
        block.bytes = v->changes + b * BLOCK_BYTES;
        block.size = v->sizes[b];
        block.hash = v->hashes[b];
        if (ravel__block_decode(&v->stage, &block, NULL) != RAVEL_OK) exit(1);
    }
    (void)ravel__stage_abort(&v->stage, NULL);
}

static void copy_all(void *user) {
    versions *v = user;
    memcpy(v->spare, v->base, SPARSE_BYTES);
}

static void open_stage(versions *v) {
    ravel_refit_options o;
    ravel_refit_options_default(&o);
    v->tensor = (ravel_refit_tensor){.name = "w", .dtype = RAVEL_BF16, .ndim = 1, .dims = {SPARSE_BYTES / 2}};
    v->tensor.data = v->base, v->tensor.spare = v->spare;
    v->sink = (ravel_refit_sink){.size = sizeof v->sink, .tensors = &v->tensor, .count = 1, .version = 1};
    ravel__arena_init(&v->arena, NULL, 4096);
    if (ravel__holding_make(&v->tensor, 1, NULL, 0, 0, "sink", &v->arena, &v->holding, NULL) != RAVEL_OK ||
        ravel__stage_init(&v->stage, &v->sink, &v->holding, &o, NULL, NULL) != RAVEL_OK)
        exit(1);
}

BENCH(refit_sparse) {
    static versions v;
    v.base = aligned_alloc(64, SPARSE_BYTES), v.fresh = aligned_alloc(64, SPARSE_BYTES);
    v.packed = aligned_alloc(64, SPARSE_BYTES), v.spare = aligned_alloc(64, SPARSE_BYTES);
    v.changes = aligned_alloc(64, SPARSE_BYTES);
    if (!v.base || !v.fresh || !v.packed || !v.spare || !v.changes) exit(1);
    memset(v.spare, 1, SPARSE_BYTES);
    memset(v.packed, 1, SPARSE_BYTES);
    memset(v.changes, 1, SPARSE_BYTES);
    make_versions(&v);
    open_stage(&v);
    double copy = 0, encode = 0, apply = 0, gb = SPARSE_BYTES * 1e-9;
    for (int i = 0; i < 3 * REPEATS; i++) { /* in turn: other jobs come and go */
        copy = least(copy, bench_best(1, copy_all, &v));
        encode = least(encode, bench_best(1, encode_all, &v));
        apply = least(apply, bench_best(1, apply_all, &v));
    }
    if (memcmp(v.spare, v.fresh, SPARSE_BYTES) != 0) exit(1);
    bench_report("refit.sparse_encode_vs_memcpy", copy / encode, "x", HIGHER,
                 "1 %% of bf16 elements of 134 MB changed: packed, hashed, compared, one core, %.1f GB/s; wanted .5",
                 gb / encode);
    bench_report("refit.sparse_apply_vs_memcpy", copy / apply, "x", HIGHER,
                 "read, changed, hashed, staged, %.1f GB/s; memcpy %.1f; wanted .5", gb / apply, gb / copy);
    bench_report("refit.sparse_share", (double)v.total / SPARSE_BYTES, "of the bytes", LOWER,
                 "changes at 1 %% of the elements; wanted .03");
    ravel__stage_free(&v.stage);
    ravel__holding_free(&v.holding, NULL);
    ravel__arena_free(&v.arena);
    free(v.base), free(v.fresh), free(v.packed), free(v.spare), free(v.changes);
}
