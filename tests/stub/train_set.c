/* A kernel set in place of CUDA's, for machines without a GPU: RAVEL_TRAIN_CUDA_MODULE names this file, and `--kernels cuda`
 * then runs the CPU's kernels on memory that the host can't touch.
 *
 *     region       memory that is mapped twice: closed, where the addresses of blocks are, and open
 *     kernel       gets a copy of its arguments in which every address of the closed mapping is that of the open one
 *     new block    every byte is 0xff (f32: NaN), as memory of a GPU holds anything
 *
 * So host code that looks inside a block, or a kernel that reads what nobody wrote, fails here as it would on a GPU, though
 * not for bf16: the types are those of the CPU. */
#include "train/kernels/kernels.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const train_kernels *cpu;
static const size_t region_bytes = (size_t)1 << 34; /* of addresses; pages come when they are touched */

static struct {
    pthread_mutex_t lock;
    int file;
    char *closed, *open;
    size_t used, live, peak;
} region = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- memory ---------------------------------------------------------------------------------------------- */

static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *map(int protection) {
    void *base = mmap(NULL, region_bytes, protection, MAP_SHARED | MAP_NORESERVE, region.file, 0);
    return base == MAP_FAILED ? NULL : base;
}

static int make_region(void) {
    region.file = memfd_create("stub", MFD_CLOEXEC);
    if (region.file < 0 || ftruncate(region.file, (off_t)region_bytes)) return 0;
    region.open = map(PROT_READ | PROT_WRITE);
    region.closed = map(PROT_NONE);
    return region.open && region.closed;
}

/* Addresses are used once, so that a block is closed to later blocks' users after its release too, until nothing is live. */
static void *take(size_t bytes) {
    if (!region.closed && !make_region()) return NULL;
    if (bytes > region_bytes - region.used) return NULL;
    char *block = region.closed + region.used;
    region.used += bytes;
    region.live += bytes;
    if (region.live > region.peak) region.peak = region.live;
    return block;
}

/* The open address of a block; another address is that of the host, and stays. */
static void *in(const void *address) {
    union { /* the slot says whether it is written */
        const void *given;
        char *at;
    } u = {address};
    return u.at >= region.closed && u.at < region.closed + region_bytes ? u.at - region.closed + region.open : u.at;
}

/* The same for every address among a kernel's arguments. No other number looks like one. */
static void open_addresses(void *arguments, size_t bytes) {
    for (size_t i = 0; i + sizeof(void *) <= bytes; i += sizeof(void *)) {
        void *address;
        memcpy(&address, (char *)arguments + i, sizeof address);
        address = in(address);
        memcpy((char *)arguments + i, &address, sizeof address);
    }
}

static ravel_status alloc(train_device *d, size_t bytes, void **block, ravel_error *err) {
    (void)d;
    (void)pthread_mutex_lock(&region.lock);
    *block = take(pages(bytes));
    (void)pthread_mutex_unlock(&region.lock);
    if (!*block) return ravel_error_set(err, RAVEL_E_MEMORY, "no room for %zu bytes in the stub", bytes);
    memset(in(*block), 0xff, bytes);
    return RAVEL_OK;
}

static void release(train_device *d, void *block, size_t bytes) {
    (void)d;
    if (!block) return;
    (void)pthread_mutex_lock(&region.lock);
    (void)fallocate(region.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (char *)block - region.closed,
                    (off_t)pages(bytes));
    region.live -= pages(bytes);
    if (!region.live) region.used = 0;
    (void)pthread_mutex_unlock(&region.lock);
}

static void gpu_state(train_device *d, train_gpu_state *s) {
    (void)d;
    (void)pthread_mutex_lock(&region.lock);
    *s = (train_gpu_state){.total_bytes = (int64_t)region_bytes,
                           .used_bytes = (int64_t)region.live,
                           .block_bytes = (int64_t)region.live,
                           .peak_bytes = (int64_t)region.peak};
    (void)snprintf(s->model, sizeof s->model, "stub");
    (void)pthread_mutex_unlock(&region.lock);
}

/* As many GPUs as RAVEL_STUB_GPUS says, 1 by default. All of them are in one process's region. */
static ravel_status gpus(int32_t most, uint8_t (*uuids)[16], int32_t *count, ravel_error *err) {
    const char *text = getenv("RAVEL_STUB_GPUS");
    *count = text ? (int32_t)strtol(text, NULL, 10) : 1;
    if (*count < 1) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the stub has no GPU");
    for (int32_t i = 0; i < *count && i < most; i++) {
        memset(uuids[i], 0, 16);
        memcpy(uuids[i], &i, sizeof i);
    }
    return RAVEL_OK;
}

/* ---- every other slot: the CPU's, on open addresses ------------------------------------------------------ */

#define INSIDE(slot, arguments, ...) \
    static void slot arguments {     \
        cpu->slot(__VA_ARGS__);      \
    }

/* clang-format off */
INSIDE(upload, (train_device *d, void *block, const void *host, size_t bytes), d, in(block), host, bytes)
INSIDE(download, (train_device *d, void *host, const void *block, size_t bytes), d, host, in(block), bytes)
INSIDE(copy, (train_device *d, void *to, const void *from, size_t bytes), d, in(to), in(from), bytes)
INSIDE(zero, (train_device *d, void *block, size_t bytes), d, in(block), bytes)
INSIDE(convert, (train_device *d, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n),
       d, in(to), to_type, in(from), from_type, n)
INSIDE(add, (train_device *d, void *to, const void *from, int64_t n), d, in(to), in(from), n)
INSIDE(stage, (train_device *d, int32_t slot, void *block, const void *host, size_t bytes), d, slot, in(block), host, bytes)
INSIDE(fetch, (train_device *d, int32_t slot, void *host, const void *block, size_t bytes), d, slot, host, in(block), bytes)
INSIDE(bias, (train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld),
       d, in(x), in(bias), rows, width, ld)
INSIDE(bias_backward, (train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld),
       d, in(d_bias), in(d_x), rows, width, ld)
INSIDE(swiglu, (train_device *d, void *h, const void *gate_up, int64_t rows, int64_t ffn), d, in(h), in(gate_up), rows, ffn)
INSIDE(swiglu_backward,
       (train_device *d, void *d_gate_up, void *h, const void *d_h, const void *gate_up, int64_t rows, int64_t ffn),
       d, in(d_gate_up), in(h), in(d_h), in(gate_up), rows, ffn)
INSIDE(sum_squares, (train_device *d, const void *grads, int64_t n, int64_t span, double *sums), d, in(grads), n, span, in(sums))
INSIDE(clip, (train_device *d, const double *sums, int64_t count, double most, train_clip *clip),
       d, in(sums), count, most, in(clip))

static void sequence_sums(train_device *d, const train_loss_rows *loss, train_sequence_sums *sequences) {
    train_loss_rows rows = *loss;
    open_addresses(&rows, sizeof rows);
    cpu->sequence_sums(d, &rows, in(sequences));
}

#define KERNEL(slot, type)                                           \
    static void slot(train_device *d, const type *given) {           \
        type arguments = *given;                                     \
        open_addresses(&arguments, sizeof arguments);                \
        cpu->slot(d, &arguments);                                    \
    }
KERNEL(matmul, train_matmul)
KERNEL(copy_rows, train_rows)
KERNEL(embed, train_embedding)
KERNEL(embed_backward, train_embedding)
KERNEL(rmsnorm, train_norm)
KERNEL(rmsnorm_backward, train_norm)
KERNEL(rope, train_rope)
KERNEL(rope_backward, train_rope)
KERNEL(attention, train_attention)
KERNEL(attention_backward, train_attention)
KERNEL(attention_merge, train_merge)
KERNEL(cache_write, train_cache_write)
KERNEL(attention_cached, train_cached)
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
    set.alloc = alloc;
    set.release = release;
#define SLOT(slot) set.slot = slot
    SLOT(upload), SLOT(download), SLOT(copy), SLOT(zero), SLOT(convert), SLOT(add), SLOT(stage), SLOT(fetch);
    SLOT(matmul), SLOT(copy_rows), SLOT(embed), SLOT(embed_backward), SLOT(bias), SLOT(bias_backward);
    SLOT(rmsnorm), SLOT(rmsnorm_backward), SLOT(rope), SLOT(rope_backward);
    SLOT(attention), SLOT(attention_backward), SLOT(attention_merge), SLOT(cache_write), SLOT(attention_cached);
    SLOT(swiglu), SLOT(swiglu_backward), SLOT(softmax_parts), SLOT(softmax_combine), SLOT(softmax_backward);
    if (cpu->softmax_fused) SLOT(softmax_fused);
    SLOT(loss), SLOT(sequence_sums), SLOT(sample), SLOT(sum_squares), SLOT(clip), SLOT(adamw);
    return &set;
}
