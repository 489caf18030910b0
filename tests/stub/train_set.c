/* A kernel set in place of CUDA's, for machines without a GPU: RAVEL_TRAIN_CUDA_MODULE names this file, and `--kernels cuda`
 * then runs the CPU's kernels on memory that the host can't touch, in a stream (gpu.h). A kernel gets a copy of its arguments in which
 * every address of the closed mapping is that of the open one.
 *
 * So host code that looks inside a block, a kernel that reads what nobody wrote, and a stream that does not wait for another fail
 * here as they would on a GPU, though not for bf16: the types are those of the CPU.
 *
 * The same file is the device driver and NCCL (RAVEL_CUDA_MODULE, RAVEL_NCCL_MODULE). */
#include "tests/stub/gpu.h"
#include "tests/stub/nccl.h"
#include "train/kernels/host.h"
#include "train/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const train_kernels *cpu;

struct train_device {
    train_device *inner; /* the CPU's */
    stub_stream *stream;
    int64_t staged[TRAIN_STAGES], fetched[TRAIN_STAGES]; /* the last copy of a slot */
    ravel_status (*look)(void *user, double waited, ravel_error *err);
    void *user;
    ravel_status failed;
    ravel_error error;
};

/* ---- waiting --------------------------------------------------------------------------------------------- */

static void wait_until(train_device *d, int64_t seq) {
    double begun = train__now();
    while (!stub_reached(d->stream, seq, 1))
        if (d->look && !d->failed) d->failed = d->look(d->user, train__now() - begun, &d->error);
}

static void drain(train_device *d) {
    wait_until(d, stub_pushed(d->stream));
}

static ravel_status sync_device(train_device *d, ravel_error *err) {
    drain(d);
    return d->failed ? ravel_error_set(err, d->failed, "%s", d->error.message) : RAVEL_OK;
}

static void watch(train_device *d, ravel_status (*look)(void *user, double waited, ravel_error *err), void *user) {
    d->look = look;
    d->user = user;
}

static void *stream_of(train_device *d) {
    return d->stream;
}

/* ---- the device ------------------------------------------------------------------------------------------ */

static ravel_status gpus(int32_t most, uint8_t (*uuids)[16], int32_t *count, ravel_error *err) {
    *count = stub_gpus();
    if (*count < 1) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the stub has no GPU");
    for (int32_t i = 0; i < *count && i < most; i++) {
        memset(uuids[i], 0, 16);
        memcpy(uuids[i], &i, sizeof i);
    }
    return RAVEL_OK;
}

static ravel_status open_device(const train_device_options *options, train_device **device, ravel_error *err) {
    if (options->gpu >= stub_gpus()) return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no GPU %d", options->gpu);
    train_device *d = calloc(1, sizeof *d);
    if (!d || !(d->stream = stub_stream_open())) abort();
    ravel_status status = cpu->open(options, &d->inner, err);
    *device = d;
    return status;
}

static void close_device(train_device *d) {
    if (!d) return;
    drain(d);
    stub_stream_close(d->stream);
    cpu->close(d->inner);
    free(d);
}

static ravel_status reserve(train_device *d, const train_limits *limits, ravel_error *err) {
    drain(d);
    return cpu->reserve(d->inner, limits, err);
}

static void phase_seconds(train_device *d, double *seconds) {
    drain(d);
    cpu->phase_seconds(d->inner, seconds);
}

static void gpu_state(train_device *d, train_gpu_state *s) {
    (void)d;
    *s = (train_gpu_state){0};
    stub_block_bytes(&s->total_bytes, &s->block_bytes, &s->peak_bytes);
    s->used_bytes = s->block_bytes;
    s->recent_bytes = s->peak_bytes;
    (void)snprintf(s->model, sizeof s->model, "stub");
}

static ravel_status alloc(train_device *d, size_t bytes, void **block, ravel_error *err) {
    (void)d;
    *block = stub_block(bytes);
    return *block ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "no room for %zu bytes in the stub", bytes);
}

static void release(train_device *d, void *block, size_t bytes) {
    drain(d);
    stub_block_free(block, bytes);
}

static ravel_status alloc_host(train_device *d, size_t bytes, void **host, ravel_error *err) {
    return cpu->alloc_host(d->inner, bytes, host, err);
}

static void release_host(train_device *d, void *host, size_t bytes) {
    drain(d);
    cpu->release_host(d->inner, host, bytes);
}

static void upload(train_device *d, void *block, const void *host, size_t bytes) {
    drain(d);
    if (bytes) memcpy(stub_inside(block), host, bytes);
}

static void download(train_device *d, void *host, const void *block, size_t bytes) {
    drain(d);
    if (bytes) memcpy(host, stub_inside(block), bytes);
}

/* ---- every other slot: the CPU's, in the stream and on open addresses ------------------------------------ */

/* The open address for every address among a kernel's arguments. No other number looks like one. */
static void open_addresses(void *arguments, size_t bytes) {
    for (size_t i = 0; i + sizeof(void *) <= bytes; i += sizeof(void *)) {
        void *address;
        memcpy(&address, (char *)arguments + i, sizeof address);
        address = stub_inside(address);
        memcpy((char *)arguments + i, &address, sizeof address);
    }
}

typedef struct plain {
    train_device *inner;
    union {
        const void *given;
        void *at;
    } p[4];
    int64_t n[3];
} plain;

static int64_t queue(train_device *d, void (*work)(void *), plain call) {
    call.inner = d->inner;
    for (int i = 0; i < 4; i++) call.p[i].at = stub_inside(call.p[i].given);
    stub_push(d->stream, work, &call, sizeof call);
    return stub_pushed(d->stream);
}

static plain keep(const void *p0, const void *p1, const void *p2, const void *p3, int64_t n0, int64_t n1, int64_t n2) {
    return (plain){.p = {{p0}, {p1}, {p2}, {p3}}, .n = {n0, n1, n2}};
}

/* Arguments of a slot, what of them is kept, and the call that is made later of it. */
#define PLAIN(slot, arguments, kept, ...)   \
    static void later_##slot(void *user) {  \
        plain *c = user;                    \
        cpu->slot(c->inner, __VA_ARGS__);   \
    }                                       \
    static void slot arguments {            \
        (void)queue(d, later_##slot, kept); \
    }
/* clang-format off */
#define KEEP(...) \
    { __VA_ARGS__ }
/* clang-format on */
#define P(i) c->p[i].at
#define N(i) c->n[i]

/* clang-format off */
PLAIN(copy, (train_device *d, void *to, const void *from, size_t bytes), keep(to, from, NULL, NULL, (int64_t)bytes, 0, 0), P(0), P(1), (size_t)N(0))
PLAIN(zero, (train_device *d, void *block, size_t bytes), keep(block, NULL, NULL, NULL, (int64_t)bytes, 0, 0), P(0), (size_t)N(0))
PLAIN(convert, (train_device *d, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n),
      keep(to, from, NULL, NULL, to_type, from_type, n), P(0), (int32_t)N(0), P(1), (int32_t)N(1), N(2))
PLAIN(add, (train_device *d, void *to, const void *from, int64_t n), keep(to, from, NULL, NULL, n, 0, 0), P(0), P(1), N(0))
PLAIN(bias, (train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld),
      keep(x, bias, NULL, NULL, rows, width, ld), P(0), P(1), N(0), N(1), N(2))
PLAIN(bias_backward, (train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld),
      keep(d_bias, d_x, NULL, NULL, rows, width, ld), P(0), P(1), N(0), N(1), N(2))
PLAIN(sum_squares, (train_device *d, const void *grads, int64_t n, int64_t span, double *sums), keep(grads, sums, NULL, NULL, n, span, 0),
      P(0), N(0), N(1), P(1))
PLAIN(phase, (train_device *d, int32_t phase), keep(NULL, NULL, NULL, NULL, phase, 0, 0), (int32_t)N(0))
/* clang-format on */

static void later_clip(void *user) {
    plain *c = user;
    double most;
    memcpy(&most, &c->n[1], sizeof most);
    cpu->clip(c->inner, P(0), N(0), most, P(1));
}

static void clip(train_device *d, const double *sums, int64_t count, double most, train_clip *to) {
    plain c = {.p = {{sums}, {to}}, .n = {count}};
    memcpy(&c.n[1], &most, sizeof most);
    (void)queue(d, later_clip, c);
}

static void later_scale(void *user) {
    plain *c = user;
    double by;
    memcpy(&by, &c->n[1], sizeof by);
    cpu->scale(c->inner, P(0), P(1), by, N(0));
}

static void scale(train_device *d, void *y, const void *x, double by, int64_t n) {
    plain c = {.p = {{y}, {x}}, .n = {n}};
    memcpy(&c.n[1], &by, sizeof by);
    (void)queue(d, later_scale, c);
}

static void later_move(void *user) {
    plain *c = user;
    memcpy(P(0), P(1), (size_t)N(0));
}

static void later_pause(void *user) {
    (void)user;
    stub_dawdle("kernels");
}

static void stage(train_device *d, int32_t slot, void *block, const void *host, size_t bytes) {
    d->staged[slot] = queue(d, later_move, (plain){.p = {{block}, {host}}, .n = {(int64_t)bytes}});
}

static void stage_wait(train_device *d, int32_t slot) {
    wait_until(d, d->staged[slot]);
}

static void stage_release(train_device *d, int32_t slot) {
    (void)d, (void)slot;
}

static void fetch(train_device *d, int32_t slot, void *host, const void *block, size_t bytes) {
    d->fetched[slot] = queue(d, later_move, (plain){.p = {{host}, {block}}, .n = {(int64_t)bytes}});
}

static void fetch_wait(train_device *d, int32_t slot) {
    wait_until(d, d->fetched[slot]);
}

typedef struct sums_call {
    train_device *inner;
    train_sequence_sums *sequences;
    train_loss_rows rows;
} sums_call;

static void later_sums(void *user) {
    sums_call *c = user;
    cpu->sequence_sums(c->inner, &c->rows, c->sequences);
}

static void sequence_sums(train_device *d, const train_loss_rows *loss, train_sequence_sums *sequences) {
    sums_call c = {d->inner, stub_inside(sequences), *loss};
    open_addresses(&c.rows, sizeof c.rows);
    stub_push(d->stream, later_sums, &c, sizeof c);
}

#define KERNEL(slot, type)                                 \
    typedef struct slot##_call {                           \
        train_device *inner;                               \
        type given;                                        \
    } slot##_call;                                         \
    static void later_##slot(void *user) {                 \
        slot##_call *c = user;                             \
        cpu->slot(c->inner, &c->given);                    \
    }                                                      \
    static void slot(train_device *d, const type *given) { \
        slot##_call c = {d->inner, *given};                \
        open_addresses(&c.given, sizeof c.given);          \
        stub_push(d->stream, later_pause, NULL, 0);        \
        stub_push(d->stream, later_##slot, &c, sizeof c);  \
    }
/* clang-format off */
KERNEL(matmul, train_matmul)
KERNEL(copy_rows, train_rows)
KERNEL(embed, train_embedding)
KERNEL(embed_backward, train_embedding)
KERNEL(rmsnorm, train_norm)
KERNEL(rmsnorm_backward, train_norm)
KERNEL(rope, train_rope)
KERNEL(rope_backward, train_rope)
KERNEL(gated, train_gated)
KERNEL(gated_backward, train_gated)
KERNEL(attention, train_attention)
KERNEL(attention_backward, train_attention)
KERNEL(attention_merge, train_merge)
KERNEL(cache_write, train_cache_write)
KERNEL(attention_cached, train_cached)
KERNEL(route, train_route)
KERNEL(route_backward, train_route)
KERNEL(weigh, train_weigh)
KERNEL(weigh_backward, train_weigh)
KERNEL(softmax_parts, train_softmax)
KERNEL(softmax_combine, train_softmax)
KERNEL(softmax_backward, train_softmax)
KERNEL(softmax_fused, train_softmax)
KERNEL(loss, train_loss_rows)
KERNEL(sample, train_sample)
KERNEL(adamw, train_adamw)
/* clang-format on */

RAVEL_API const train_kernels *train_cuda_set(void);

const train_kernels *train_cuda_set(void) {
    static train_kernels set; /* written with the same values by every call */
    if (train_kernels_find("cpu", &cpu, NULL)) return NULL;
    set = *cpu;
    set.name = "cuda";
    set.doc = "the CPU's kernels on memory that the host can't touch, in place of CUDA's";
    set.host_memory = 0;
    set.gpu_state = gpu_state;
    set.gpus = gpus;
    set.stream = stream_of;
    set.watch = watch;
    set.open = open_device;
    set.close = close_device;
    set.sync = sync_device;
#define SLOT(slot) set.slot = slot
    SLOT(reserve), SLOT(alloc), SLOT(release), SLOT(alloc_host), SLOT(release_host), SLOT(phase), SLOT(phase_seconds);
    SLOT(stage_wait), SLOT(stage_release), SLOT(fetch_wait);
    SLOT(upload), SLOT(download), SLOT(copy), SLOT(zero), SLOT(convert), SLOT(add), SLOT(stage), SLOT(fetch);
    SLOT(matmul), SLOT(copy_rows), SLOT(embed), SLOT(embed_backward), SLOT(bias), SLOT(bias_backward);
    SLOT(rmsnorm), SLOT(rmsnorm_backward), SLOT(rope), SLOT(rope_backward);
    SLOT(attention), SLOT(attention_backward), SLOT(attention_merge), SLOT(cache_write), SLOT(attention_cached);
    SLOT(scale), SLOT(gated), SLOT(gated_backward);
    SLOT(route), SLOT(route_backward), SLOT(weigh), SLOT(weigh_backward);
    SLOT(softmax_parts), SLOT(softmax_combine), SLOT(softmax_backward);
    if (cpu->softmax_fused) SLOT(softmax_fused);
    SLOT(loss), SLOT(sequence_sums), SLOT(sample), SLOT(sum_squares), SLOT(clip), SLOT(adamw);
    return &set;
}

RAVEL_API const ravel__driver *ravel_driver(void);
RAVEL_API const ravel__nccl *ravel_nccl(void);

const ravel__driver *ravel_driver(void) {
    return &stub_gpu_driver;
}

const ravel__nccl *ravel_nccl(void) {
    return &stub_nccl;
}
