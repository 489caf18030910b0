/* N ranks as threads, with a reducer between them: for tests of metrics. */
#ifndef TESTS_METRICS_RANKS_H
#define TESTS_METRICS_RANKS_H

#include <ravel/metrics.h>

#include <pthread.h>

enum { RANKS_MAX = 64 };

typedef struct rank_group {
    int32_t size;
    pthread_barrier_t barrier;
    int64_t *values[RANKS_MAX];
    int64_t calls[2]; /* of rank 0: SUM, MAX */
    int reversed;     /* add the ranks up from last to first */
} rank_group;

typedef struct rank_seat {
    rank_group *group;
    int32_t rank;
    ravel_metrics_reducer reducer; /* to be put into options */
    void *user;
    void (*body)(struct rank_seat *seat);
} rank_seat;

/* Runs `body` once per rank, each on a thread of its own, and waits for all. */
void ranks_run(int32_t size, void (*body)(rank_seat *seat), void *user, rank_group *group);

#endif
