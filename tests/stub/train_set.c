/* A kernel set in place of CUDA's, for machines without a GPU: RAVEL_TRAIN_CUDA_MODULE names this file, and `--kernels cuda`
 * then runs the CPU's kernels on memory that the host can't touch.
 *
 *     block        pages of one region, which are open while a kernel or a copy runs and closed otherwise
 *     new block    every byte is 0xff (f32: NaN), as memory of a GPU holds anything
 *
 * So host code that looks inside a block, or a kernel that reads what nobody wrote, fails here as it would on a GPU, though
 * not for bf16: the types are those of the CPU. Calls of all devices take turns. */
#include "train/kernels/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
static const train_kernels *cpu;
static const size_t region_bytes = (size_t)1 << 34; /* of addresses; pages come when they are touched */

static struct {
    pthread_mutex_t lock;
    char *base;
    size_t used, live, peak;
} region = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void enter(void) {
    (void)pthread_mutex_lock(&region.lock);
    if (region.used) (void)mprotect(region.base, region.used, PROT_READ | PROT_WRITE);
}

static void leave(void) {
    if (region.used) (void)mprotect(region.base, region.used, PROT_NONE);
    (void)pthread_mutex_unlock(&region.lock);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Addresses are used once, so that a block is closed after its release too, until nothing is live. */
static void *take(size_t bytes) {
    if (!region.base) {
        void *base = mmap(NULL, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) return NULL;
        region.base = base;
    }
    if (bytes > region_bytes - region.used) return NULL;
    char *block = region.base + region.used;
    region.used += bytes;
    region.live += bytes;
    if (region.live > region.peak) region.peak = region.live;
    return block;
}

static ravel_status alloc(train_device *d, size_t bytes, void **block, ravel_error *err) {
    (void)d;
    enter();
    *block = take(pages(bytes));
    if (*block) {
        (void)mprotect(*block, pages(bytes), PROT_READ | PROT_WRITE);
        memset(*block, 0xff, bytes);
    }
    leave();
    return *block ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "no room for %zu bytes in the stub", bytes);
}

static void release(train_device *d, void *block, size_t bytes) {
    (void)d;
    if (!block) return;
    enter();
    (void)madvise(block, pages(bytes), MADV_DONTNEED);
    region.live -= pages(bytes);
    if (!region.live) {
        (void)mprotect(region.base, region.used, PROT_NONE);
        region.used = 0;
    }
    leave();
}

static void gpu_state(train_device *d, train_gpu_state *s) {
    (void)d;
    enter();
    *s = (train_gpu_state){.total_bytes = (int64_t)region_bytes,
                           .used_bytes = (int64_t)region.live,
                           .block_bytes = (int64_t)region.live,
                           .peak_bytes = (int64_t)region.peak};
    (void)snprintf(s->model, sizeof s->model, "stub");
    leave();
}

/* ---- every other slot: the CPU's, with the region open ------------------------------------------------ */

#define INSIDE(slot, arguments, ...) \
    static void slot arguments {     \
        enter();                     \
        cpu->slot(__VA_ARGS__);      \
        leave();                     \
    }

/* clang-format off */
INSIDE(upload, (train_device *d, void *block, const void *host, size_t bytes), d, block, host, bytes)
INSIDE(download, (train_device *d, void *host, const void *block, size_t bytes), d, host, block, bytes)
INSIDE(copy, (train_device *d, void *to, const void *from, size_t bytes), d, to, from, bytes)
INSIDE(zero, (train_device *d, void *block, size_t bytes), d, block, bytes)
INSIDE(convert, (train_device *d, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n),
       d, to, to_type, from, from_type, n)
INSIDE(stage, (train_device *d, int32_t slot, void *block, const void *host, size_t bytes), d, slot, block, host, bytes)
INSIDE(fetch, (train_device *d, int32_t slot, void *host, const void *block, size_t bytes), d, slot, host, block, bytes)
INSIDE(bias, (train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld),
       d, x, bias, rows, width, ld)
INSIDE(bias_backward, (train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld),
       d, d_bias, d_x, rows, width, ld)
INSIDE(swiglu, (train_device *d, void *h, const void *gate_up, int64_t rows, int64_t ffn), d, h, gate_up, rows, ffn)
INSIDE(swiglu_backward,
       (train_device *d, void *d_gate_up, void *h, const void *d_h, const void *gate_up, int64_t rows, int64_t ffn),
       d, d_gate_up, h, d_h, gate_up, rows, ffn)
INSIDE(sequence_sums, (train_device *d, const train_loss_rows *loss, train_sequence_sums *sequences), d, loss, sequences)
INSIDE(sum_squares, (train_device *d, const void *grads, int64_t n, int64_t span, double *sums), d, grads, n, span, sums)
INSIDE(clip, (train_device *d, const double *sums, int64_t count, double most, train_clip *clip), d, sums, count, most, clip)

#define KERNEL(slot, type) INSIDE(slot, (train_device *d, const type *arguments), d, arguments)
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
    set.alloc = alloc;
    set.release = release;
#define SLOT(slot) set.slot = slot
    SLOT(upload), SLOT(download), SLOT(copy), SLOT(zero), SLOT(convert), SLOT(stage), SLOT(fetch);
    SLOT(matmul), SLOT(copy_rows), SLOT(embed), SLOT(embed_backward), SLOT(bias), SLOT(bias_backward);
    SLOT(rmsnorm), SLOT(rmsnorm_backward), SLOT(rope), SLOT(rope_backward);
    SLOT(attention), SLOT(attention_backward), SLOT(attention_merge), SLOT(cache_write), SLOT(attention_cached);
    SLOT(swiglu), SLOT(swiglu_backward), SLOT(softmax_parts), SLOT(softmax_combine), SLOT(softmax_backward);
    if (cpu->softmax_fused) SLOT(softmax_fused);
    SLOT(loss), SLOT(sequence_sums), SLOT(sample), SLOT(sum_squares), SLOT(clip), SLOT(adamw);
    return &set;
}
