/* The device of the fast CPU sets.
 *
 * Scratch is one block:   | thread n-1 | ... | thread 0 | shared |
 *                                                       ^ device->shared
 *
 * The pool: workers sleep on `start`. A job is published under the lock with a new `ticket`; every worker, and the
 * caller, takes task numbers from one counter until there are none; the last worker to stop wakes the caller. */
#include "train/kernels/cpu/cpu.h"

#include <pthread.h>

typedef struct worker {
    train__pool *pool;
    pthread_t id;
    int32_t thread;
} worker;

struct train__pool {
    const ravel_allocator *allocator;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    worker *workers;
    int32_t count;   /* workers that run */
    int32_t busy;    /* workers that have not finished the job */
    uint64_t ticket; /* number of the job */
    int32_t leaving;
    train__task *task;
    void *user;
    int64_t tasks;
    int64_t next; /* atomic */
};

static void take_tasks(train__pool *p, int32_t thread) {
    for (int64_t i; (i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->tasks;) p->task(p->user, i, thread);
}

static void *work(void *argument) {
    const worker *me = argument;
    train__pool *p = me->pool;
    uint64_t seen = 0;
    (void)pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->ticket == seen && !p->leaving) (void)pthread_cond_wait(&p->start, &p->lock);
        if (p->leaving) break;
        seen = p->ticket;
        (void)pthread_mutex_unlock(&p->lock);
        take_tasks(p, me->thread);
        (void)pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) (void)pthread_cond_signal(&p->done);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

void train__cpu_run(train_device *device, int64_t count, train__task *task, void *user) {
    train__pool *p = device->pool;
    if (!p || count < 2) {
        for (int64_t i = 0; i < count; i++) task(user, i, 0);
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->task = task;
    p->user = user;
    p->tasks = count;
    __atomic_store_n(&p->next, 0, __ATOMIC_RELAXED);
    p->busy = p->count;
    p->ticket++;
    (void)pthread_cond_broadcast(&p->start);
    (void)pthread_mutex_unlock(&p->lock);
    take_tasks(p, 0);
    (void)pthread_mutex_lock(&p->lock);
    while (p->busy) (void)pthread_cond_wait(&p->done, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
}

static void pool_free(train__pool *p, int32_t room) {
    if (!p) return;
    (void)pthread_mutex_lock(&p->lock);
    p->leaving = 1;
    (void)pthread_cond_broadcast(&p->start);
    (void)pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->count; i++) (void)pthread_join(p->workers[i].id, NULL);
    (void)pthread_cond_destroy(&p->start);
    (void)pthread_cond_destroy(&p->done);
    (void)pthread_mutex_destroy(&p->lock);
    train__release(p->allocator, p->workers, (size_t)room * sizeof *p->workers);
    train__release(p->allocator, p, sizeof *p);
}

static int pool_add(train__pool *p) {
    worker *w = p->workers + p->count;
    w->pool = p;
    w->thread = p->count + 1;
    if (pthread_create(&w->id, NULL, work, w) != 0) return 0;
    p->count++;
    return 1;
}

/* NULL where memory or threads are short. */
static train__pool *pool_create(const ravel_allocator *allocator, int32_t workers) {
    train__pool *p = train__calloc(allocator, 1, sizeof *p);
    if (!p) return NULL;
    p->allocator = allocator;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->start, NULL);
    (void)pthread_cond_init(&p->done, NULL);
    p->workers = train__calloc(allocator, (size_t)workers, sizeof *p->workers);
    for (int32_t i = 0; p->workers && i < workers; i++)
        if (!pool_add(p)) break;
    if (p->workers && p->count == workers) return p;
    pool_free(p, workers);
    return NULL;
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

ravel_status train__cpu_open(const train_device_options *options, int wide, train_device **device, ravel_error *err) {
    train_device_options o = options ? *options : (train_device_options){0};
    ravel_status status = check_options(&o, err);
    if (status) return status;
    train_device *d = train__calloc(o.allocator, 1, sizeof *d);
    if (!d) return train__no_memory(err, sizeof *d, "a device");
    train__host_device_init(&d->host, o.allocator);
    d->threads = o.threads > 0 ? o.threads : 1;
    d->blas =
        o.products == TRAIN_PRODUCTS_OPENBLAS || (o.products == TRAIN_PRODUCTS_BEST && !wide && train__blas_open());
    if (d->threads > 1) d->pool = pool_create(o.allocator, d->threads - 1);
    if (d->threads > 1 && !d->pool) {
        status = ravel_error_set(err, RAVEL_E_MEMORY, "there is no memory for %d threads, or the system allows no more",
                                 d->threads);
        train__release(o.allocator, d, sizeof *d);
        return status;
    }
    *device = d;
    return RAVEL_OK;
}

void train__cpu_close(train_device *d) {
    if (!d) return;
    pool_free(d->pool, d->threads - 1);
    const ravel_allocator *allocator = d->host.allocator;
    train__release_aligned(allocator, d->scratch, d->scratch_bytes);
    train__release(allocator, d, sizeof *d);
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
    if (!scratch) return train__no_memory(err, bytes, "scratch of the kernels");
    train__release_aligned(d->host.allocator, d->scratch, d->scratch_bytes);
    d->scratch = scratch;
    d->scratch_bytes = bytes;
    d->private_elements = whole_lines(private_each);
    d->shared = scratch + d->private_elements * (size_t)d->threads;
    return RAVEL_OK;
}
