/* The threads of a device of the fast CPU sets. Internal to them. */
#ifndef TRAIN_CPU_POOL_H
#define TRAIN_CPU_POOL_H

#include <ravel/base.h>

#include <stdint.h>

typedef struct train__pool train__pool;

/* Task i of a job, on thread 0 .. threads-1; thread 0 is the caller. */
typedef void train__task(const void *user, int64_t task, int32_t thread);

/* A pool of `threads` - 1 workers; NULL where memory or threads are short. */
train__pool *train__pool_create(const ravel_allocator *allocator, int32_t threads);
void train__pool_free(train__pool *pool);

/* Runs tasks 0 .. count-1, in any order and at the same time; returns when all are done. One job at a time. */
void train__pool_run(train__pool *pool, int64_t count, train__task *task, const void *user);

#endif
