/* The CUDA kernel set: opening the device, setting scratch aside, and the table. libravel_train_cuda.so exports the one
 * function `train_cuda_set`; train/kernels/kernels.c loads it when a run asks for "cuda".
 *
 *     set.c              the device, limits, the table
 *     memory.c           blocks, copies, staging, phases, graphs
 *     products.c         matrix products by cuBLASLt, algorithms by timing
 *     attention.c        attention: cuDNN's plans (attention_graph.c) or our own kernels (attention_own.cu)
 *     norm.cu rope.cu flat.cu head.cu loss.cu sample.cu decode.cu      our kernels; launch.h lists their launchers
 *     kept.c             the disk cache */
#include "train/kernels/cuda/device.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuda_ok(train_device *d, cudaError_t code, const char *what) {
    if (code == cudaSuccess) return 1;
    cuda_fail(d, RAVEL_E_DEVICE, "GPU %d, %s: %s", d->index, what, cudaGetErrorString(code));
    return 0;
}

void cuda_fail(train_device *d, ravel_status status, const char *format, ...) {
    char sentence[400];
    va_list arguments;
    if (d->failed) return;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    d->failed = ravel_error_set(&d->error, status, "%s", sentence);
}

/* A launch, unless the device `d` has failed. A failed launch is found here, a kernel that fails by `sync`. */
#define RUN(what, launch)                         \
    do {                                          \
        if (!d->failed) {                         \
            launch;                               \
            cuda_ok(d, cudaGetLastError(), what); \
        }                                         \
    } while (0)

/* ---- the device ------------------------------------------------------------------------------------------ */

static void close_device(train_device *d) {
    if (!d) return;
    cudaSetDevice(d->index);
    if (d->stream) cudaStreamSynchronize(d->stream);
    cuda_attention_close(d);
    cuda_products_close(d);
    if (d->scratch) cudaFree(d->scratch);
    for (int i = 0; i < TRAIN_STAGES; i++) {
        if (d->staged[i]) cudaEventDestroy(d->staged[i]);
        if (d->released[i]) cudaEventDestroy(d->released[i]);
        if (d->fetched[i]) cudaEventDestroy(d->fetched[i]);
    }
    for (int i = 0; i < CUDA_MARKS; i++)
        if (d->marks[i]) cudaEventDestroy(d->marks[i]);
    if (d->made) cudaEventDestroy(d->made);
    if (d->downloads) cudaStreamDestroy(d->downloads);
    if (d->uploads) cudaStreamDestroy(d->uploads);
    if (d->stream) cudaStreamDestroy(d->stream);
    free(d);
}

static void open_streams(train_device *d) {
    cuda_ok(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "making a stream");
    cuda_ok(d, cudaStreamCreateWithFlags(&d->uploads, cudaStreamNonBlocking), "making a stream");
    cuda_ok(d, cudaStreamCreateWithFlags(&d->downloads, cudaStreamNonBlocking), "making a stream");
    cuda_ok(d, cudaEventCreateWithFlags(&d->made, cudaEventDisableTiming), "making an event");
    for (int i = 0; i < TRAIN_STAGES && !d->failed; i++) {
        cuda_ok(d, cudaEventCreateWithFlags(&d->fetched[i], cudaEventDisableTiming), "making an event");
        cuda_ok(d, cudaEventCreateWithFlags(&d->staged[i], cudaEventDisableTiming), "making an event");
        cuda_ok(d, cudaEventCreateWithFlags(&d->released[i], cudaEventDisableTiming), "making an event");
    }
    for (int i = 0; i < CUDA_MARKS && !d->failed; i++) cuda_ok(d, cudaEventCreate(&d->marks[i]), "making an event");
}

static ravel_status count_gpus(int32_t most, uint8_t (*uuids)[16], int32_t *count, ravel_error *err) {
    struct cudaDeviceProp properties;
    int seen = 0;
    cudaError_t code = cudaGetDeviceCount(&seen);
    for (int i = 0; i < seen && i < most && code == cudaSuccess; i++) {
        code = cudaGetDeviceProperties(&properties, i);
        memcpy(uuids[i], properties.uuid.bytes, 16);
    }
    if (code != cudaSuccess)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "kernels \"cuda\": no GPU can be used here: %s",
                               cudaGetErrorString(code));
    *count = seen;
    return RAVEL_OK;
}

enum { OLDEST = 8, PLAIN_SHARED = 99 << 10 }; /* Ampere; what a block has on the smallest GPUs since then */

cuda_forms cuda_forms_here(void) {
    int gpu = 0, major = 0, shared = 0;
    const char *plain = getenv("RAVEL_CUDA_PLAIN");
    if ((plain && *plain == '1') || cudaGetDevice(&gpu) ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) ||
        cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu))
        return (cuda_forms){0, PLAIN_SHARED};
    return (cuda_forms){major >= 9, (size_t)shared};
}

static ravel_status open_device(const train_device_options *options, train_device **device, ravel_error *err) {
    int count = 0;
    struct cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "kernels \"cuda\": no GPU can be used here: %s",
                               cudaGetErrorString(code));
    if (options->gpu < 0 || options->gpu >= count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "GPU %d: this machine has GPUs 0 to %d", options->gpu, count - 1);
    if (cudaGetDeviceProperties(&properties, options->gpu) || properties.major < OLDEST)
        return ravel_error_set(
            err, RAVEL_E_UNSUPPORTED,
            "kernels \"cuda\": GPU %d is a %s (compute capability %d.%d); 8.0 (Ampere) or later is needed",
            options->gpu, properties.name, properties.major, properties.minor);
    train_device *d = calloc(1, sizeof *d);
    if (!d) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for a device");
    d->allocator = options->allocator;
    d->cache = options->cache;
    d->index = options->gpu;
    d->multiprocessors = properties.multiProcessorCount;
    d->deterministic = !options->any_order;
    cuda_ok(d, cudaSetDevice(d->index), "opening it");
    open_streams(d);
    ravel_status s = d->failed ? ravel_error_set(err, d->failed, "%s", d->error.message) : cuda_products_open(d, err);
    if (!s) s = cuda_attention_open(d, err);
    if (s) {
        close_device(d);
        return s;
    }
    *device = d;
    return RAVEL_OK;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t ticket_bytes(const train_limits *l) {
    int64_t blocks = l->kv_heads + (l->heads + CUDA_DECODE_HEADS - 1) / CUDA_DECODE_HEADS; /* of a row, at least */
    return l->cached > 0 ? (size_t)(l->tokens * blocks) * sizeof(unsigned) : 0;
}

/* One block serves every kernel in turn, so it is as large as the largest need; and the tickets. */
static size_t scratch_bytes(const train_limits *l, int32_t threads) {
    (void)threads;
    size_t bytes = cuda_products_scratch();
    bytes = larger(bytes, (size_t)(cuda_norm_parts(l->tokens) * l->width) * sizeof(float));
    bytes = larger(bytes, (size_t)(cuda_rope_parts(l->tokens) * 2 * l->head_dim) * sizeof(float));
    bytes = larger(bytes, cuda_attention_scratch(l));
    if (l->cached > 0) bytes = larger(bytes, cuda_decode_scratch(l->tokens, l->heads, l->head_dim, l->cached));
    return (bytes + 255) / 256 * 256 + ticket_bytes(l);
}

static ravel_status check_limits(const train_limits *l, ravel_error *err) {
    int64_t dim = l->head_dim;
    if (dim && dim != 8 && dim != 16 && dim != 32 && dim != 64 && dim != 96 && dim != 128 && dim != 256)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "kernels \"cuda\": head size %lld; 8, 16, 32, 64, 96, 128 and 256 are supported",
                               (long long)dim);
    if (l->rotated % 8)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "kernels \"cuda\": %lld elements of a head turn; their number must be a multiple of 8",
                               (long long)l->rotated);
    if (l->hidden % 8 || l->width % 8)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "kernels \"cuda\": hidden size %lld and row width %lld must be multiples of 8",
                               (long long)l->hidden, (long long)l->width);
    if (l->hidden > 16384)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "kernels \"cuda\": hidden size %lld is above 16384",
                               (long long)l->hidden);
    return RAVEL_OK;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Limits only grow: several models may share a device. */
static train_limits joined(const train_limits *a, const train_limits *b) {
    return (train_limits){.tokens = most(a->tokens, b->tokens),
                          .longest = most(a->longest, b->longest),
                          .samples = most(a->samples, b->samples),
                          .width = most(a->width, b->width),
                          .hidden = most(a->hidden, b->hidden),
                          .heads = most(a->heads, b->heads),
                          .kv_heads = most(a->kv_heads, b->kv_heads),
                          .head_dim = most(a->head_dim, b->head_dim),
                          .vocab = most(a->vocab, b->vocab),
                          .cached = most(a->cached, b->cached),
                          .pairs = most(a->pairs, b->pairs),
                          .inference = a->inference && b->inference};
}

static ravel_status reserve(train_device *d, const train_limits *limits, ravel_error *err) {
    ravel_status s = check_limits(limits, err);
    if (s) return s;
    train_limits all = d->scratch ? joined(&d->limits, limits) : *limits;
    size_t bytes = scratch_bytes(&all, 1);
    if (bytes > d->scratch_bytes) {
        void *block;
        s = cuda_alloc(d, bytes, &block, err);
        if (s) return s;
        if (d->scratch) cudaStreamSynchronize(d->stream);
        cuda_release(d, d->scratch, d->scratch_bytes);
        d->scratch = block;
        d->scratch_bytes = bytes;
        cuda_zero(d, d->scratch + bytes - ticket_bytes(&all), ticket_bytes(&all));
    }
    d->limits = all;
    RAVEL_ASSERT(bytes == d->scratch_bytes); /* limits only grow, so the bytes do too */
    return RAVEL_OK;
}

/* All rows at once where their logits take at most 8 GiB: every further chunk reads and writes the whole gradient of
 * the head once more. */
static int64_t head_rows(const train_limits *l) {
    int64_t rows = ((int64_t)8 << 30) / (2 * (l->vocab > 0 ? l->vocab : 1));
    if (rows >= l->tokens) return l->tokens;
    return rows > 128 ? rows / 128 * 128 : 128;
}

static ravel_status sync_device(train_device *d, ravel_error *err) {
    if (!d->failed) cuda_wait(d, NULL, "running kernels");
    if (!d->failed) cuda_ok(d, cudaGetLastError(), "running kernels");
    if (!d->failed) return RAVEL_OK;
    return ravel_error_set(err, d->failed, "%s", d->error.message);
}

/* ---- kernels --------------------------------------------------------------------------------------------- */

static float *parts(const train_device *d) {
    return (float *)(void *)d->scratch;
}

static int parts_fit(const train_device *d, int64_t floats) {
    return (size_t)floats * sizeof(float) <= d->scratch_bytes;
}

static void copy_rows(train_device *d, const train_rows *r) {
    int64_t ld_to = r->ld_to ? r->ld_to : r->width, ld_from = r->ld_from ? r->ld_from : r->width;
    if (r->first)
        RUN("adding rows", cuda_sum_rows(d->stream, r->to, r->from, r->to_ids, r->first, r->from_ids, r->rows, r->width,
                                         ld_to, ld_from));
    else
        RUN("copying rows", cuda_copy_rows(d->stream, r->to, r->from, r->to_ids, r->from_ids, r->rows, r->width * 2,
                                           ld_to * 2, ld_from * 2));
}

static void embed(train_device *d, const train_embedding *e) {
    RUN("the embedding",
        cuda_embed(d->stream, e->y, e->table, e->ids, e->picks, e->rows, e->width, e->first, e->count));
}

static void embed_backward(train_device *d, const train_embedding *e) {
    RUN("the embedding's gradient",
        cuda_embed_backward(d->stream, e->d_table, e->d_y, e->ids, e->order, e->ordered, e->width, e->first, e->count));
}

static void bias(train_device *d, void *x, const void *b, int64_t rows, int64_t width, int64_t ld) {
    RUN("biases", cuda_bias(d->stream, x, b, rows, width, ld ? ld : width));
}

static void bias_backward(train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld) {
    RAVEL_ASSERT(parts_fit(d, cuda_norm_parts(rows) * width));
    RUN("gradients of biases", cuda_bias_backward(d->stream, d_bias, d_x, rows, width, ld ? ld : width, parts(d)));
}

static void scale(train_device *d, void *y, const void *x, double by, int64_t n) {
    RUN("scaling", cuda_scale(d->stream, y, x, (float)by, n));
}

static train_norm filled(const train_norm *n) {
    train_norm a = *n;
    if (!a.ld_x) a.ld_x = a.width;
    if (!a.ld_y) a.ld_y = a.width;
    return a;
}

static void rmsnorm(train_device *d, const train_norm *n) {
    train_norm a = filled(n);
    RUN("a norm", cuda_rmsnorm(d->stream, &a));
}

static void rmsnorm_backward(train_device *d, const train_norm *n) {
    RAVEL_ASSERT(parts_fit(d, cuda_norm_parts(n->rows) * n->width));
    train_norm a = filled(n);
    RUN("a norm's gradient", cuda_rmsnorm_backward(d->stream, &a, parts(d)));
}

static train_rope turned(const train_rope *r) {
    train_rope a = *r;
    if (!a.rotated) a.rotated = a.head_dim;
    return a;
}

static void rope(train_device *d, const train_rope *r) {
    train_rope a = turned(r);
    RUN("rotation", cuda_rope(d->stream, &a));
}

static void rope_backward(train_device *d, const train_rope *r) {
    RAVEL_ASSERT(parts_fit(d, cuda_rope_parts(r->tokens) * 2 * r->head_dim));
    train_rope a = turned(r);
    RUN("rotation's gradient", cuda_rope_backward(d->stream, &a, parts(d)));
}

static void attention_merge(train_device *d, const train_merge *m) {
    cuda_rows rows = {m->queries.starts, m->queries.lengths, m->samples, m->queries.tokens};
    RUN("merging attention",
        cuda_attention_merge(d->stream, m->o, m->lse, m->other_o, m->other_lse, rows, m->heads, m->head_dim));
}

static void cache_write(train_device *d, const train_cache_write *w) {
    RUN("writing the cache", cuda_cache_write(d->stream, w));
}

static void attention_cached(train_device *d, const train_cached *c) {
    cuda_decode_args a = {.k = c->cache.k,
                          .v = c->cache.v,
                          .table = c->cache.table,
                          .pages_per_slot = c->cache.pages_per_slot,
                          .rows = c->rows,
                          .heads = c->heads,
                          .kv_heads = c->cache.kv_heads,
                          .head_dim = c->cache.head_dim,
                          .window = c->window,
                          .longest = (int32_t)c->longest,
                          .scale = c->scale,
                          .q = c->q,
                          .ld_q = c->ld_q ? c->ld_q : (int64_t)c->heads * c->cache.head_dim,
                          .slots = c->slots,
                          .lengths = c->lengths,
                          .o = c->o,
                          .partial = parts(d),
                          .tickets = (unsigned *)(void *)(d->scratch + d->scratch_bytes - ticket_bytes(&d->limits))};
    RAVEL_ASSERT(c->rows <= d->limits.tokens && c->longest <= d->limits.cached); /* what scratch was made for */
    RUN("attention over the cache", cuda_decode(d->stream, &a));
}

static void gated(train_device *d, const train_gated *x) {
    RUN("gated units", cuda_gated(d->stream, x));
}

static void gated_backward(train_device *d, const train_gated *x) {
    RUN("gated units' gradient", cuda_gated_backward(d->stream, x));
}

static void route(train_device *d, const train_route *x) {
    RUN("routing", cuda_route(d->stream, x));
}

static void route_backward(train_device *d, const train_route *x) {
    RUN("routing's gradient", cuda_route_backward(d->stream, x));
}

static void weigh(train_device *d, const train_weigh *x) {
    RUN("weights of experts", cuda_weigh(d->stream, x));
}

static void softmax_parts(train_device *d, const train_softmax *x) {
    RUN("softmax", cuda_softmax_parts(d->stream, x));
}

static void softmax_combine(train_device *d, const train_softmax *x) {
    RUN("softmax", cuda_softmax_combine(d->stream, x));
}

static void softmax_backward(train_device *d, const train_softmax *x) {
    RUN("softmax's gradient", cuda_softmax_backward(d->stream, x));
}

static void softmax_fused(train_device *d, const train_softmax *x) {
    RUN("softmax with its gradient", cuda_softmax_fused(d->stream, x, d->multiprocessors));
}

static cuda_loss_args loss_args(const train_loss_rows *l) {
    cuda_loss_args a = {.rows = *l, .has_policy = l->policy != NULL};
    if (l->policy) a.policy = *l->policy;
    return a;
}

static void loss(train_device *d, const train_loss_rows *l) {
    cuda_loss_args a = loss_args(l);
    RUN("the loss", cuda_loss(d->stream, &a));
}

static void sequence_sums(train_device *d, const train_loss_rows *l, train_sequence_sums *sequences) {
    cuda_loss_args a = loss_args(l);
    RUN("sums per sample", cuda_sequence_sums(d->stream, &a, sequences));
}

static void sample(train_device *d, const train_sample *s) {
    RUN("sampling", cuda_sample(d->stream, s));
}

static void add(train_device *d, void *to, const void *from, int64_t n) {
    RUN("adding", cuda_add(d->stream, to, from, n));
}

static void sum_squares(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    RUN("the gradient's norm", cuda_sum_squares(d->stream, sums, grads, n, span));
}

static void clip(train_device *d, const double *sums, int64_t count, double limit, train_clip *to) {
    RUN("clipping", cuda_clip_norm(d->stream, to, sums, count, limit));
}

static double power(double x, int64_t n) {
    double y = 1;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) y *= x;
    return y;
}

static void adamw(train_device *d, const train_adamw *x) {
    cuda_adamw_args a = {.n = x->n,
                         .master = x->master,
                         .weight = x->weight,
                         .grad = x->grad,
                         .m = x->m,
                         .v = x->v,
                         .clip = x->clip,
                         .lr = (float)x->lr,
                         .beta1 = (float)x->beta1,
                         .beta2 = (float)x->beta2,
                         .eps = (float)x->eps,
                         .decay = (float)x->decay,
                         .correct1 = (float)(1 - power(x->beta1, x->step)),
                         .correct2 = (float)(1 - power(x->beta2, x->step)),
                         .bf16_moments = x->moment_type == RAVEL_BF16};
    RUN("AdamW", cuda_adamw(d->stream, &a));
}

static const train_kernels table = {
    .name = "cuda",
    .doc = "one GPU: bf16 with f32 sums and master weights (cuBLASLt, cuDNN, own kernels)",
    .types =
        {.weight = RAVEL_BF16, .activation = RAVEL_BF16, .grad = RAVEL_F32, .master = RAVEL_F32, .moment = RAVEL_F32},
    .open = open_device,
    .close = close_device,
    .scratch_bytes = scratch_bytes,
    .reserve = reserve,
    .head_rows = head_rows,
    .sync = sync_device,
    .phase = cuda_phase,
    .phase_seconds = cuda_phase_seconds,
    .gpu_state = cuda_gpu_state,
    .gpus = count_gpus,
    .stream = cuda_stream,
    .watch = cuda_watch,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .convert = cuda_convert,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .stage = cuda_stage,
    .stage_wait = cuda_stage_wait,
    .stage_release = cuda_stage_release,
    .fetch = cuda_fetch,
    .fetch_wait = cuda_fetch_wait,
    .matmul = cuda_matmul,
    .copy_rows = copy_rows,
    .embed = embed,
    .embed_backward = embed_backward,
    .bias = bias,
    .bias_backward = bias_backward,
    .scale = scale,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .rope_backward = rope_backward,
    .attention = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .attention_merge = attention_merge,
    .cache_write = cache_write,
    .attention_cached = attention_cached,
    .gated = gated,
    .gated_backward = gated_backward,
    .route = route,
    .route_backward = route_backward,
    .weigh = weigh,
    .weigh_backward = weigh,
    .softmax_parts = softmax_parts,
    .softmax_combine = softmax_combine,
    .softmax_backward = softmax_backward,
    .softmax_fused = softmax_fused,
    .loss = loss,
    .sequence_sums = sequence_sums,
    .sample = sample,
    .add = add,
    .sum_squares = sum_squares,
    .clip = clip,
    .adamw = adamw,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_valid = cuda_graph_valid,
    .graph_run = cuda_graph_run,
    .graph_free = cuda_graph_free,
    .attention_shape = cuda_attention_shape,
};

__attribute__((visibility("default"))) const train_kernels *train_cuda_set(void);
const train_kernels *train_cuda_set(void) {
    return &table;
}
