/* Publish and pull of a 1.7B-parameter model whose trainer is on a GPU, between two processes:
 *
 *   mapped     the generator is on the same GPU: it reads the trainer's memory where it lies
 *   link       the generator's weights are in host memory: page-locked memory and a link
 *   wire       host memory on both sides: what the link alone takes, for comparison
 *
 * The generator is this program again, with RAVEL_BENCH_PULL set: a process that has used CUDA cannot be forked. It
 * writes a report per commit into a pipe. */
#include "bench/gpu/gpu.h"

#include <ravel/publish.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS_MOST = 512, ROUNDS = 6 };
static const double wait_seconds = 60;

typedef struct model {
    ravel_refit_tensor tensors[TENSORS_MOST];
    char names[TENSORS_MOST][RAVEL_REFIT_NAME_BYTES];
    int64_t count, bytes;
} model;

/* All tensors in one array, on the GPU or on the host. */
static int model_make(gpu *g, int32_t dtype, int on_host, model *m) {
    ravel_shape shape;
    if (ravel_shape_named("qwen3-1.7b", &shape, &g->err)) return 0;
    m->count = ravel_refit_shape_tensors(&shape, dtype, 1, 0, m->tensors, m->names[0], TENSORS_MOST);
    m->bytes = 0;
    for (int64_t i = 0; i < m->count; i++)
        m->bytes += (ravel_refit_tensor_elements(&m->tensors[i]) * ravel_dtype_bytes(dtype) + 255) / 256 * 256;
    char *memory = on_host ? calloc(1, (size_t)m->bytes) : gpu_room(g, (size_t)m->bytes);
    for (int64_t i = 0; i < m->count && memory; i++) {
        m->tensors[i].data = memory;
        if (!on_host) m->tensors[i].place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
        memory += (ravel_refit_tensor_elements(&m->tensors[i]) * ravel_dtype_bytes(dtype) + 255) / 256 * 256;
    }
    return memory != NULL && m->count <= TENSORS_MOST;
}

/* ---- the generator -------------------------------------------------------------------------------------- */

static int generate(const char *how, const char *address) {
    static model m;
    gpu g;
    ravel_comm *self = NULL;
    ravel_puller *puller = NULL;
    ravel_pull_options options;
    ravel_pull_options_default(&options);
    options.delta = 0;
    options.timeout = wait_seconds;
    if (!gpu_open(&g) || !model_make(&g, RAVEL_BF16, how[0] != 'm', &m) || ravel_comm_self(NULL, &self, &g.err))
        return 1;
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = m.tensors, .count = m.count};
    for (int i = 0; i < 600 && !puller; i++) { /* the trainer may not listen yet */
        ravel_error_clear(&g.err);
        if (ravel_puller_create(self, address, &sink, &options, &puller, &g.err)) (void)usleep(50000);
    }
    for (int i = 0; puller; i++) {
        ravel_pull_report report = {.size = sizeof report};
        if (ravel_puller_wait(puller, wait_seconds, &g.err) || ravel_puller_commit(puller, &report, &g.err)) break;
        if (write(STDOUT_FILENO, &report, sizeof report) != sizeof report) break;
        if (i == ROUNDS - 1) return 0;
    }
    (void)fprintf(stderr, "generator: %s\n", g.err.message);
    return 2;
}

__attribute__((constructor)) static void be_the_generator(void) {
    const char *how = getenv("RAVEL_BENCH_PULL"), *address = getenv("RAVEL_BENCH_PULL_ADDRESS");
    if (how && address) _exit(generate(how, address));
}

static FILE *start_generator(const char *how, const char *address) {
    char command[512], self[256] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 1) return NULL;
    (void)snprintf(command, sizeof command, "RAVEL_BENCH_PULL=%s RAVEL_BENCH_PULL_ADDRESS=%s exec %s", how, address,
                   self);
    return popen(command, "r");
}

/* ---- the trainer ---------------------------------------------------------------------------------------- */

typedef struct figures {
    double total, publish, prepare, pause; /* seconds, of the best round */
    int32_t mapped;
} figures;

static int one_round(gpu *g, const model *m, ravel_publisher *p, FILE *from, int64_t version, figures *best) {
    ravel_pull_report report = {0};
    double publish = 0, copy = 0;
    if (m->tensors[0].place.kind == RAVEL_DEVICE)
        (void)ravel_device_fill(g->device, m->tensors[0].data, (uint8_t)version, (size_t)m->bytes, g->stream, &g->err);
    else
        memset(m->tensors[0].data, (int)version, (size_t)m->bytes);
    (void)ravel_stream_wait(g->stream, wait_seconds, &g->err);
    double begin = bench_seconds();
    if (ravel_publisher_publish(p, version, &g->err)) return 0;
    ravel_publisher_seconds(p, &publish, &copy);
    if (fread(&report, sizeof report, 1, from) != 1 || report.identity.version != version) return 0;
    double total = bench_seconds() - begin;
    /* the first version goes straight into place, and maps */
    if (version > 1 && total < best->total)
        *best = (figures){total, publish, report.prepare_seconds, report.pause_seconds, report.mapped};
    return 1;
}

/* Milliseconds of PyTorch's best way, 0 if there is no PyTorch. */
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

static int run(const char *how, figures *best) {
    static model m;
    gpu g;
    char address[64];
    ravel_comm *self = NULL;
    ravel_publisher *p = NULL;
    ravel_publish_options options;
    ravel_publish_options_default(&options);
    options.dtype = RAVEL_BF16;
    options.keep = 1;
    memset(&m, 0, sizeof m);
    *best = (figures){.total = 1e300};
    (void)snprintf(address, sizeof address, "unix:@ravel-bench-%s-%d", how, (int)getpid());
    if (!gpu_open(&g)) return 0;
    int on_host = how[0] == 'w', good = model_make(&g, on_host ? RAVEL_BF16 : RAVEL_F32, on_host, &m);
    ravel_refit_source source = {.size = sizeof source, .tensors = m.tensors, .count = m.count};
    good = good && !ravel_comm_self(NULL, &self, &g.err) &&
           !ravel_publisher_create(self, address, &source, &options, &p, &g.err);
    FILE *from = good ? start_generator(how, address) : NULL;
    for (int64_t version = 1; good && version <= ROUNDS; version++)
        good = from && one_round(&g, &m, p, from, version, best);
    if (from) good = pclose(from) == 0 && good;
    if (!good) bench_note("gpu_pull, %s: FAILED: %s", how, g.err.message);
    ravel_publisher_free(p);
    ravel_comm_free(self);
    if (on_host)
        free(m.tensors[0].data);
    else
        ravel_device_release(g.device, m.tensors[0].data, g.stream);
    gpu_close(&g);
    return good;
}

BENCH(gpu_pull) {
    figures mapped, link, wire;
    if (run("mapped", &mapped)) {
        bench_report(
            "gpu.refit_pull_ms", mapped.total * 1e3, "ms", LOWER,
            "qwen3-1.7b, f32 on the GPU to bf16 on the same GPU in another process: publish %.2f ms, stage %.2f ms",
            mapped.publish * 1e3, mapped.prepare * 1e3);
        bench_report("gpu.refit_pause_ms", mapped.pause * 1e3, "ms", LOWER, "the generator's commit; %d trainer mapped",
                     mapped.mapped);
    }
    if (run("link", &link) && run("wire", &wire)) {
        double largest = wire.prepare > link.publish ? wire.prepare : link.publish;
        bench_report("gpu.refit_time_vs_largest_phase", (link.publish + link.prepare) / largest, "x", LOWER,
                     "f32 on the GPU to bf16 in host memory: publish %.1f ms, stage %.1f ms; the link alone %.1f ms",
                     link.publish * 1e3, link.prepare * 1e3, wire.prepare * 1e3);
    }
    double torch = mapped.total < 1e299 ? torch_ms() : 0; /* last: importing it can take a minute on a cold machine */
    if (torch > 0)
        bench_report("gpu.refit_vs_torch", torch / (mapped.total * 1e3), "x", HIGHER,
                     "PyTorch's cast, cat, copy, copy_ at its best takes %.2f ms and checks nothing", torch);
}
