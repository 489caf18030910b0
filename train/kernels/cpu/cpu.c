/* The device of the fast CPU sets.
 *
 * Scratch is one block:   | thread n-1 | ... | thread 0 | shared |
 *                                                       ^ device->shared
 */
#include "train/kernels/cpu/cpu.h"

#include <string.h>

typedef struct call {
    train__task *task;
    const void *user;
} call;

static void run_task(void *user, int64_t index, int32_t thread) {
    const call *c = user;
    c->task(c->user, index, thread);
}

void train__cpu_run(train_device *device, int64_t count, train__task *task, const void *user) {
    RAVEL_ASSERT(count >= 0 && task);
    ravel__team_run(&device->team, count, run_task, &(call){task, user});
}

/* ---- large blocks: several threads have more bandwidth than one, and touch new memory first where they run
 * --------- */

enum { PIECE = 1 << 20 }; /* bytes of one task */

typedef struct bytes_job {
    char *to;
    const char *from; /* NULL: zeros */
    size_t bytes;
} bytes_job;

static void bytes_task(const void *user, int64_t piece, int32_t thread) {
    const bytes_job *j = user;
    size_t at = (size_t)piece * PIECE, n = j->bytes - at < PIECE ? j->bytes - at : PIECE;
    (void)thread;
    if (j->from)
        memcpy(j->to + at, j->from + at, n);
    else
        memset(j->to + at, 0, n);
}

void train__cpu_copy(train_device *device, void *to, const void *from, size_t bytes) {
    bytes_job j = {.from = from, .bytes = bytes};
    j.to = to;
    RAVEL_ASSERT(bytes == 0 || to);
    train__cpu_run(device, (int64_t)((bytes + PIECE - 1) / PIECE), bytes_task, &j);
}

void train__cpu_zero(train_device *device, void *block, size_t bytes) {
    train__cpu_copy(device, block, NULL, bytes);
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

static ravel_status check_options(const train_device_options *o, ravel_error *err) {
    if (o->threads < 0 || o->threads > 1024)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "threads is %d; it must be 1 to 1024", o->threads);
    if (o->products < TRAIN_PRODUCTS_BEST || o->products > TRAIN_PRODUCTS_OPENBLAS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "products is %d; it must be one of train_products", o->products);
    if (o->products == TRAIN_PRODUCTS_OPENBLAS && !train__blas_open())
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "this build has no OpenBLAS (apt-get install libopenblas-dev)");
    return RAVEL_OK;
}

ravel_status train__cpu_open(const train_device_options *options, int fused, train_device **device, ravel_error *err) {
    train_device_options o = options ? *options : (train_device_options){0};
    ravel_status status = check_options(&o, err);
    if (status) return status;
    train_device *d = ravel__calloc(o.allocator, 1, sizeof *d);
    if (!d) return ravel__no_memory(err, sizeof *d, "a device");
    train__host_device_init(&d->host, o.allocator);
    d->threads = o.threads > 0 ? o.threads : 1;
    d->blas =
        o.products == TRAIN_PRODUCTS_OPENBLAS || (o.products == TRAIN_PRODUCTS_BEST && !fused && train__blas_open());
    ravel__team_start(&d->team, d->threads);
    if (d->team.others + 1 < d->threads) {
        ravel__team_stop(&d->team);
        status = ravel_error_set(err, RAVEL_E_MEMORY,
                                 "cannot create %d threads: out of memory, or over the system's limit", d->threads);
        ravel__release(o.allocator, d, sizeof *d);
        return status;
    }
    *device = d;
    return RAVEL_OK;
}

void train__cpu_close(train_device *d) {
    if (!d) return;
    ravel__team_stop(&d->team);
    const ravel_allocator *allocator = d->host.allocator;
    train__release_aligned(allocator, d->scratch, d->scratch_bytes);
    ravel__release(allocator, d, sizeof *d);
}

static size_t whole_lines(size_t elements) {
    return (elements + 15) / 16 * 16;
}

size_t train__cpu_scratch_bytes(size_t shared, size_t private_each, int32_t threads) {
    size_t count = threads > 0 ? (size_t)threads : 1;
    return (whole_lines(shared) + whole_lines(private_each) * count) * sizeof(float);
}

ravel_status train__cpu_reserve(train_device *d, size_t shared, size_t private_each, ravel_error *err) {
    size_t bytes = train__cpu_scratch_bytes(shared, private_each, d->threads);
    if (d->scratch && whole_lines(private_each) <= d->private_elements &&
        whole_lines(shared) <= d->scratch_bytes / sizeof(float) - d->private_elements * (size_t)d->threads)
        return RAVEL_OK;
    float *scratch = train__alloc_aligned(d->host.allocator, bytes);
    if (!scratch) return ravel__no_memory(err, bytes, "scratch of the kernels");
    train__release_aligned(d->host.allocator, d->scratch, d->scratch_bytes);
    d->scratch = scratch;
    d->scratch_bytes = bytes;
    d->private_elements = whole_lines(private_each);
    d->shared = scratch + d->private_elements * (size_t)d->threads;
    RAVEL_ASSERT((int64_t)shared <= train__cpu_shared_elements(d) && d->private_elements >= private_each);
    return RAVEL_OK;
}
