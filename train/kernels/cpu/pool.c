/* A job is published with a new `ticket`. Every worker, and the caller, takes task numbers from one counter until there
 * are none; `busy` counts the workers that have not finished.
 *
 *     caller    job, next = 0, busy = workers, ticket + 1 |  takes tasks  | waits for busy == 0
 *     worker    waits for a new ticket                    |  takes tasks  | busy - 1
 *
 * An update is thousands of jobs of a few microseconds to milliseconds, so both sides spin (SPINS) before they sleep.
 * With more threads than processors they sleep at once: the awaited thread may need the processor that the waiting
 * thread occupies. */
#include "train/kernels/cpu/pool.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <pthread.h>
#include <sched.h>

enum { LINE = 64, SPINS = 4000 }; /* about 50 microseconds */

typedef struct worker {
    train__pool *pool;
    pthread_t id;
    int32_t thread;
} worker;

/* Fields that several threads write are on cache lines of their own, hence the padding. */
/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct train__pool {
    const ravel_allocator *allocator;
    worker *workers;
    int32_t count; /* workers that run */
    int32_t room;
    int32_t spins;
    train__task *task;
    const void *user;
    int64_t tasks;
    pthread_mutex_t lock; /* of sleeping */
    pthread_cond_t start, done;
    int32_t asleep; /* workers that sleep */
    int32_t leaving, waiting;
    _Alignas(LINE) uint64_t ticket; /* number of the job; atomic, as the two below */
    _Alignas(LINE) int64_t next;
    _Alignas(LINE) int32_t busy;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_tasks(train__pool *p, int32_t thread) {
    for (int64_t i; (i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->tasks;) p->task(p->user, i, thread);
}

static uint64_t ticket_of(const train__pool *p) {
    return __atomic_load_n(&p->ticket, __ATOMIC_ACQUIRE);
}

/* Returns 0 when the pool is closed. */
static int await_job(train__pool *p, uint64_t seen) {
    for (int32_t i = 0; i < p->spins; i++) {
        if (ticket_of(p) != seen) return 1;
        relax();
    }
    (void)pthread_mutex_lock(&p->lock);
    p->asleep++;
    while (ticket_of(p) == seen && !p->leaving) (void)pthread_cond_wait(&p->start, &p->lock);
    p->asleep--;
    TRAIN_ASSERT(p->asleep >= 0);
    int go = ticket_of(p) != seen;
    (void)pthread_mutex_unlock(&p->lock);
    return go;
}

static void *work(void *argument) {
    const worker *me = argument;
    train__pool *p = me->pool;
    for (uint64_t seen = 0; await_job(p, seen); seen++) {
        take_tasks(p, me->thread);
        if (__atomic_sub_fetch(&p->busy, 1, __ATOMIC_ACQ_REL) > 0) continue;
        (void)pthread_mutex_lock(&p->lock);
        if (p->waiting) (void)pthread_cond_signal(&p->done);
        (void)pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static int is_busy(const train__pool *p) {
    return __atomic_load_n(&p->busy, __ATOMIC_ACQUIRE) > 0;
}

static void await_workers(train__pool *p) {
    for (int32_t i = 0; i < p->spins; i++) {
        if (!is_busy(p)) return;
        relax();
    }
    (void)pthread_mutex_lock(&p->lock);
    p->waiting = 1;
    while (is_busy(p)) (void)pthread_cond_wait(&p->done, &p->lock);
    p->waiting = 0;
    (void)pthread_mutex_unlock(&p->lock);
}

void train__pool_run(train__pool *p, int64_t count, train__task *task, const void *user) {
    TRAIN_ASSERT(task && count > 0 && !is_busy(p));
    p->task = task;
    p->user = user;
    p->tasks = count;
    __atomic_store_n(&p->next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&p->busy, p->count, __ATOMIC_RELAXED);
    (void)pthread_mutex_lock(&p->lock);
    (void)__atomic_add_fetch(&p->ticket, 1, __ATOMIC_RELEASE);
    if (p->asleep) (void)pthread_cond_broadcast(&p->start);
    (void)pthread_mutex_unlock(&p->lock);
    take_tasks(p, 0);
    await_workers(p);
    TRAIN_ASSERT(!is_busy(p) && p->next >= count);
}

/* ---- create and free ------------------------------------------------------------------------------------- */

static int32_t processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void train__pool_free(train__pool *p) {
    if (!p) return;
    (void)pthread_mutex_lock(&p->lock);
    p->leaving = 1;
    TRAIN_ASSERT(!is_busy(p) && p->asleep <= p->count);
    (void)pthread_cond_broadcast(&p->start);
    (void)pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->count; i++) (void)pthread_join(p->workers[i].id, NULL);
    (void)pthread_cond_destroy(&p->start);
    (void)pthread_cond_destroy(&p->done);
    (void)pthread_mutex_destroy(&p->lock);
    train__release(p->allocator, p->workers, (size_t)p->room * sizeof *p->workers);
    train__release_aligned(p->allocator, p, sizeof *p);
}

static int add_worker(train__pool *p) {
    worker *w = p->workers + p->count;
    TRAIN_ASSERT(p->count < p->room);
    w->pool = p;
    w->thread = p->count + 1;
    if (pthread_create(&w->id, NULL, work, w) != 0) return 0;
    p->count++;
    return 1;
}

train__pool *train__pool_create(const ravel_allocator *allocator, int32_t threads) {
    TRAIN_ASSERT(threads > 1);
    train__pool *p = train__alloc_aligned(allocator, sizeof *p);
    if (!p) return NULL;
    *p = (train__pool){.allocator = allocator, .room = threads - 1, .spins = threads <= processors() ? SPINS : 0};
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->start, NULL);
    (void)pthread_cond_init(&p->done, NULL);
    p->workers = train__calloc(allocator, (size_t)p->room, sizeof *p->workers);
    for (int32_t i = 0; p->workers && i < p->room; i++)
        if (!add_worker(p)) break;
    if (p->workers && p->count == p->room) return p;
    train__pool_free(p);
    return NULL;
}
