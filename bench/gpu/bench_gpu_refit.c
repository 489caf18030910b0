/* Refit on one GPU between two processes: a trainer packs f32 master weights as bf16 into memory that it shares, a
 * generator maps it read-only, unpacks it into the set of parameters that is not in use, compares the hashes of all
 * blocks, and switches sets. Beside it PyTorch's way (refit_torch.py), which checks nothing.
 *
 * The generator is this program again, with RAVEL_BENCH_GENERATOR set: a process that has used CUDA cannot be forked. */
#include "bench/gpu/gpu.h"

#include <ravel/slab.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HIDDEN = 2048, LAYERS = 28, HEADS = 16, KV_HEADS = 8, HEAD = 128, FFN = 6144, VOCAB = 151936 }; /* Qwen3-1.7B */
enum { TENSORS = 2 + LAYERS * 11, ROUNDS = 12, WAIT_SECONDS = 60 };
static const int64_t block_bytes = 256 << 10;

static int64_t sizes[TENSORS];

static int64_t list_sizes(void) {
    static const int64_t layer[11] = {HEADS * HEAD * HIDDEN,
                                      KV_HEADS * HEAD * HIDDEN,
                                      KV_HEADS * HEAD * HIDDEN,
                                      HIDDEN * HEADS * HEAD,
                                      FFN * HIDDEN,
                                      FFN * HIDDEN,
                                      HIDDEN * FFN,
                                      HIDDEN,
                                      HIDDEN,
                                      HEAD,
                                      HEAD};
    int64_t n = 0, sum = 0;
    sizes[n++] = (int64_t)VOCAB * HIDDEN;
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < 11; k++) sizes[n++] = layer[k];
    sizes[n++] = HIDDEN;
    for (int64_t i = 0; i < n; i++) sum += sizes[i];
    return sum;
}

/* All tensors in one piece of memory, each aligned to 256 bytes. */
static ravel_slab *make_slab(gpu *g, char *memory, int32_t dtype) {
    static ravel_slab_tensor tensors[TENSORS];
    ravel_slab *slab = NULL;
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = (ravel_slab_tensor){memory, sizes[i], dtype, RAVEL_BF16, 0};
        memory += (sizes[i] * ravel_dtype_bytes(dtype) + 255) / 256 * 256;
    }
    return ravel_slab_create(g->device, tensors, TENSORS, block_bytes, &slab, &g->err) ? NULL : slab;
}

static int read_all(int fd, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = read(fd, (char *)data + at, bytes - at);
        if (n <= 0) return 0;
        at += (size_t)n;
    }
    return 1;
}

static int write_all(int fd, const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = write(fd, (const char *)data + at, bytes - at);
        if (n <= 0) return 0;
        at += (size_t)n;
    }
    return 1;
}

/* ---- the generator -------------------------------------------------------------------------------------- */

typedef struct answer {
    int32_t same;   /* all hashes agree, and the sets were switched */
    int32_t unused; /* 0 */
    double load, pause;
} answer;

static int generate(int socket) {
    gpu g;
    int fd = -1;
    size_t bytes = 0, size = sizeof bytes;
    ravel_shared *shared = NULL;
    ravel_slab *sets[2] = {NULL, NULL};
    void *hashes = NULL;
    int32_t version = 0, live = 0;
    if (!gpu_open(&g)) return 1;
    int64_t elements = list_sizes();
    if (ravel_fd_recv(socket, &fd, &bytes, &size, WAIT_SECONDS, &g.err)) return 2;
    if (ravel_shared_import(g.device, fd, bytes, 0, &shared, &g.err)) return 3;
    for (int i = 0; i < 2; i++) sets[i] = make_slab(&g, gpu_room(&g, (size_t)elements * 2 + TENSORS * 256), RAVEL_BF16);
    if (!sets[0] || !sets[1]) return 4;
    size_t words = (size_t)ravel_slab_blocks(sets[0]) * sizeof(uint64_t);
    uint64_t *published = malloc(words);
    if (ravel_device_alloc(g.device, RAVEL_PINNED, words, g.stream, &hashes, &g.err) || !published) return 5;
    if (ravel_stream_wait(g.stream, WAIT_SECONDS, &g.err) || !write_all(socket, &version, sizeof version)) return 6;
    while (read_all(socket, &version, sizeof version) && read_all(socket, published, words)) {
        answer a = {0};
        double begin = bench_seconds();
        if (ravel_slab_unpack(sets[1 - live], ravel_shared_data(shared), hashes, g.stream, &g.err)) return 7;
        if (ravel_stream_wait(g.stream, WAIT_SECONDS, &g.err)) return 8;
        a.load = bench_seconds() - begin;
        a.same = memcmp(hashes, published, words) == 0;
        begin = bench_seconds();
        if (a.same) live = 1 - live;
        a.pause = bench_seconds() - begin;
        if (!write_all(socket, &a, sizeof a)) return 9;
    }
    free(published);
    return 0;
}

__attribute__((constructor)) static void be_the_generator(void) {
    const char *socket = getenv("RAVEL_BENCH_GENERATOR");
    if (!socket) return;
    int code = generate(atoi(socket));
    if (code) (void)fprintf(stderr, "generator: step %d failed\n", code);
    _exit(code);
}

static pid_t start_generator(int socket) {
    char number[16];
    (void)fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    (void)snprintf(number, sizeof number, "%d", socket);
    if (setenv("RAVEL_BENCH_GENERATOR", number, 1) == 0) (void)execl("/proc/self/exe", "ravel-bench-gpu", (char *)NULL);
    _exit(127);
}

/* ---- the trainer ---------------------------------------------------------------------------------------- */

typedef struct figures {
    double total, pack, load, pause; /* of the best round */
    int wrong;                       /* rounds whose hashes did not agree */
} figures;

static int one_round(gpu *g, const ravel_slab *slab, void *packed, uint64_t *hashes, int socket, int32_t version,
                     figures *best) {
    answer a;
    double begin = bench_seconds();
    if (ravel_slab_pack(slab, packed, hashes, g->stream, &g->err)) return 0;
    if (ravel_stream_wait(g->stream, WAIT_SECONDS, &g->err)) return 0;
    double pack = bench_seconds() - begin;
    if (!write_all(socket, &version, sizeof version) ||
        !write_all(socket, hashes, (size_t)ravel_slab_blocks(slab) * sizeof *hashes) || !read_all(socket, &a, sizeof a))
        return 0;
    double total = bench_seconds() - begin;
    best->wrong += !a.same;
    if (total < best->total) *best = (figures){total, pack, a.load, a.pause, best->wrong};
    return 1;
}

static int run_rounds(gpu *g, int64_t elements, int socket, figures *best) {
    ravel_shared *shared = NULL;
    void *hashes = NULL;
    int32_t ready = 0;
    char *master = gpu_room(g, (size_t)elements * 4 + TENSORS * 256);
    ravel_slab *slab = master ? make_slab(g, master, RAVEL_F32) : NULL;
    if (!slab || ravel_shared_create(g->device, (size_t)ravel_slab_bytes(slab), &shared, &g->err)) return 0;
    size_t words = (size_t)ravel_slab_blocks(slab) * sizeof(uint64_t), bytes = ravel_shared_bytes(shared);
    int good =
        ravel_device_alloc(g->device, RAVEL_PINNED, words, g->stream, &hashes, &g->err) == RAVEL_OK &&
        ravel_fd_send(socket, ravel_shared_fd(shared), &bytes, sizeof bytes, WAIT_SECONDS, &g->err) == RAVEL_OK &&
        read_all(socket, &ready, sizeof ready);
    for (int32_t version = 1; good && version <= ROUNDS; version++) {
        /* other weights each time: a stale buffer would be found out */
        (void)ravel_device_fill(g->device, master, (uint8_t)version, (size_t)elements * 4, g->stream, &g->err);
        good = ravel_stream_wait(g->stream, WAIT_SECONDS, &g->err) == RAVEL_OK &&
               one_round(g, slab, ravel_shared_data(shared), hashes, socket, version, best);
    }
    ravel_slab_free(slab);
    ravel_shared_free(shared);
    ravel_device_release(g->device, hashes, g->stream);
    ravel_device_release(g->device, master, g->stream);
    ravel_device_trim(g->device);
    return good;
}

/* Milliseconds of PyTorch's best way, 0 where there is no PyTorch. */
static double torch_ms(void) {
    double ms = 0;
    char line[256];
    FILE *f = popen("python3 bench/gpu/refit_torch.py 2>/dev/null", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "best_ms %lf", &ms) == 1) {
            line[strcspn(line, "\n")] = '\0';
            bench_note("PyTorch: %s", line);
        }
    if (f) (void)pclose(f);
    return ms;
}

static void report(const figures *f, int64_t elements, double copy_seconds) {
    double bytes = (double)elements * 2, least = (3 * bytes + 2 * bytes) / (2 * (double)(1 << 30)) * copy_seconds;
    bench_report("gpu.refit_ms", f->total * 1e3, "ms", LOWER,
                 "%.2f GB as bf16 from f32 master, two processes: pack %.2f ms, load %.2f ms", bytes / 1e9,
                 f->pack * 1e3, f->load * 1e3);
    bench_report("gpu.refit_vs_copy", least / f->total, "x", HIGHER,
                 "what its bytes take at the copy rate (%.2f ms) by the time; checksums and switch included",
                 least * 1e3);
    double torch = torch_ms(); /* last: importing it can take a minute on a cold machine */
    if (torch > 0)
        bench_report("gpu.refit_vs_torch", torch / (f->total * 1e3), "x", HIGHER,
                     "PyTorch's cast, cat, copy, copy_ at its best takes %.2f ms and checks nothing", torch);
}

BENCH(gpu_refit) {
    gpu g;
    int pair[2], status = 0;
    figures best = {.total = 1e300};
    int64_t elements = list_sizes();
    if (!gpu_open(&g)) return;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
    (void)fcntl(pair[0], F_SETFD, FD_CLOEXEC); /* else the generator holds this end open, and never sees its end */
    pid_t child = start_generator(pair[1]);
    (void)close(pair[1]);
    int good = run_rounds(&g, elements, pair[0], &best);
    (void)close(pair[0]);
    (void)waitpid(child, &status, 0);
    if (!good || best.wrong || status)
        bench_note("FAILED: %d rounds with other hashes, the generator ended with %d", best.wrong, status);
    else
        report(&best, elements, gpu_copy_seconds(&g, (size_t)1 << 30));
    gpu_close(&g);
}

/* ---- hashes --------------------------------------------------------------------------------------------- */

typedef struct hashing {
    gpu *g;
    char *data;
    uint64_t *hashes;
    int64_t bytes;
} hashing;

static void hash_once(void *user, int i) {
    hashing *h = user;
    (void)i;
    (void)ravel_slab_hash(h->data, h->bytes, block_bytes, h->hashes, h->g->stream, &h->g->err);
}

BENCH(gpu_hash) {
    gpu g;
    if (!gpu_open(&g)) return;
    hashing h = {.g = &g, .bytes = INT64_C(4577) * block_bytes};
    h.data = gpu_room(&g, (size_t)h.bytes);
    h.hashes = gpu_room(&g, 4577 * sizeof *h.hashes);
    double seconds = gpu_seconds(&g, 20, hash_once, &h);
    bench_report("gpu.hash_gbs", (double)h.bytes / seconds / 1e9, "GB/s", HIGHER,
                 "XXH3 of %.2f GB in blocks of 256 KiB, read", (double)h.bytes / 1e9);
    gpu_close(&g);
}
