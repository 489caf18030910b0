#include "refit/workers.h"

#include "base/assert.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { THREADS_MOST = 64 };

typedef struct loop {
    void (*task)(void *user, int64_t index);
    void *user;
    int64_t count;
    _Atomic int64_t next;
} loop;

static void *work(void *argument) {
    loop *l = argument;
    for (int64_t i; (i = atomic_fetch_add(&l->next, 1)) < l->count;) l->task(l->user, i);
    return NULL;
}

void ravel__workers_run(int32_t threads, int64_t count, void (*task)(void *user, int64_t index), void *user) {
    loop l = {.task = task, .user = user, .count = count};
    pthread_t made[THREADS_MOST];
    int32_t others = 0;
    RAVEL_ASSERT(threads >= 1 && count >= 0 && task);
    atomic_init(&l.next, 0);
    while (others < THREADS_MOST && others + 1 < threads && others + 1 < count &&
           pthread_create(&made[others], NULL, work, &l) == 0)
        others++;
    (void)work(&l);
    while (others > 0) (void)pthread_join(made[--others], NULL);
}

int32_t ravel__workers_default(int32_t most) {
    cpu_set_t cores;
    int32_t count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return count < 1 ? 1 : count > most ? most : count;
}
