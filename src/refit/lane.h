/* A lane: a queue of buffer numbers from one thread to another. One side may block, the other only polls. */
#ifndef RAVEL_REFIT_LANE_H
#define RAVEL_REFIT_LANE_H

#include <pthread.h>
#include <stdint.h>

enum { RAVEL__LANE_MOST = 64 }; /* more than there are buffers, so a lane is never full */

typedef struct ravel__lane {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    uint32_t head, tail; /* taken, put */
    int32_t closed;
    int32_t slots[RAVEL__LANE_MOST];
} ravel__lane;

void ravel__lane_init(ravel__lane *lane);
void ravel__lane_free(ravel__lane *lane);
/* Empty and open again; no thread may be waiting. */
void ravel__lane_reset(ravel__lane *lane);
void ravel__lane_put(ravel__lane *lane, int32_t slot);
/* -1: there is none now. */
int32_t ravel__lane_look(ravel__lane *lane);
int ravel__lane_is_empty(ravel__lane *lane);
/* Waits for one; -1: the lane was closed and is empty. */
int32_t ravel__lane_take(ravel__lane *lane);
/* No more numbers will be put. */
void ravel__lane_close(ravel__lane *lane);

#endif
