#include "base/system/team.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/system/futex.h"

#include <sched.h>

enum { LOOKS = 4000, NAP_NS = 10 * 1000 * 1000 };

/* Claims a task of the current run: its index, or -1. `task`, `user` and `count` change only while none is left to be
 * claimed and all are over, so a thread that has claimed one may read them. */
static int64_t claim(ravel__team *t) {
    uint64_t ticket = atomic_load(&t->ticket);
    while ((uint32_t)ticket > 0)
        if (atomic_compare_exchange_weak(&t->ticket, &ticket, ticket - 1)) return t->count - (int64_t)(uint32_t)ticket;
    return -1;
}

/* Works while there are tasks. */
static void work(ravel__team *t, int32_t thread) {
    for (int64_t index; (index = claim(t)) >= 0;) {
        t->task(t->user, index, thread);
        atomic_fetch_add(&t->done, 1);
    }
}

static void wait_for_tasks(ravel__team *t) {
    for (int32_t i = 0; i < t->looks; i++) {
        if ((uint32_t)atomic_load(&t->ticket) > 0 || atomic_load(&t->ending)) return;
        ravel__cpu_relax();
    }
    atomic_fetch_add(&t->sleepers, 1);
    uint32_t seen = atomic_load(&t->bell);
    if ((uint32_t)atomic_load(&t->ticket) == 0 && !atomic_load(&t->ending))
        ravel__futex_wait(&t->bell, seen, ravel__clock_ns() + NAP_NS);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void *body(void *argument) {
    ravel__team *t = argument;
    int32_t thread = (int32_t)atomic_fetch_add(&t->seated, 1) + 1;
    while (!atomic_load(&t->ending)) {
        work(t, thread);
        if (atomic_load(&t->waits)) ravel__futex_wake(&t->done);
        wait_for_tasks(t);
    }
    return NULL;
}

static void ring(ravel__team *t) {
    atomic_fetch_add(&t->bell, 1);
    if (atomic_load(&t->sleepers) > 0) ravel__futex_wake(&t->bell);
}

void ravel__team_start(ravel__team *t, int32_t threads) {
    RAVEL_ASSERT(threads >= 1);
    if (threads > RAVEL__TEAM_MOST) threads = RAVEL__TEAM_MOST;
    t->others = 0;
    t->looks = threads <= ravel__processors(threads) ? LOOKS : 0;
    atomic_store(&t->ticket, 0);
    atomic_store(&t->seated, 0);
    atomic_store(&t->done, 0);
    atomic_store(&t->waits, 0);
    atomic_store(&t->bell, 0);
    atomic_store(&t->sleepers, 0);
    atomic_store(&t->ending, 0);
    while (t->others + 1 < threads && pthread_create(&t->threads[t->others], NULL, body, t) == 0) t->others++;
    RAVEL_ASSERT(t->others < threads);
}

/* The last tasks are other threads' now. */
static void wait_for_others(ravel__team *t, uint32_t count) {
    for (int32_t i = 0; i < t->looks; i++) {
        if (atomic_load(&t->done) == count) return;
        ravel__cpu_relax();
    }
    atomic_store(&t->waits, 1);
    for (uint32_t done; (done = atomic_load(&t->done)) != count;)
        ravel__futex_wait(&t->done, done, ravel__clock_ns() + NAP_NS);
    atomic_store(&t->waits, 0);
}

void ravel__team_run(ravel__team *t, int64_t count, void (*task)(void *user, int64_t index, int32_t thread),
                     void *user) {
    RAVEL_ASSERT(count >= 0 && count <= INT32_MAX && (uint32_t)atomic_load(&t->ticket) == 0);
    if (t->others == 0 || count == 1) {
        for (int64_t i = 0; i < count; i++) task(user, i, 0);
        return;
    }
    uint64_t run = (atomic_load(&t->ticket) >> 32) + 1;
    t->task = task;
    t->user = user;
    t->count = count;
    atomic_store(&t->done, 0);
    atomic_store(&t->ticket, run << 32 | (uint64_t)count);
    ring(t);
    work(t, 0);
    wait_for_others(t, (uint32_t)count);
}

void ravel__team_stop(ravel__team *t) {
    atomic_store(&t->ending, 1);
    atomic_fetch_add(&t->bell, 1);
    ravel__futex_wake(&t->bell);
    while (t->others > 0) (void)pthread_join(t->threads[--t->others], NULL);
    RAVEL_ASSERT((uint32_t)atomic_load(&t->ticket) == 0); /* no task was left behind */
}

void ravel__team_once(int32_t threads, int64_t count, void (*task)(void *user, int64_t index, int32_t thread),
                      void *user) {
    ravel__team t;
    ravel__team_start(&t, count < threads ? (count > 0 ? (int32_t)count : 1) : threads);
    ravel__team_run(&t, count, task, user);
    ravel__team_stop(&t);
}

int32_t ravel__processors(int32_t most) {
    cpu_set_t set;
    int32_t count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > most ? most : count;
}
