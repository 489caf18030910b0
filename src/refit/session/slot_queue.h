/* A queue of buffer numbers from one thread to another. One side may block, the other only polls. */
#ifndef RAVEL_REFIT_SLOT_QUEUE_H
#define RAVEL_REFIT_SLOT_QUEUE_H

#include <pthread.h>
#include <stdint.h>

enum { RAVEL__SLOT_QUEUE_MOST = 64 }; /* more than there are buffers, so it is never full */

typedef struct ravel__slot_queue {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    uint32_t head, tail; /* taken, put */
    int32_t closed;
    int32_t slots[RAVEL__SLOT_QUEUE_MOST];
} ravel__slot_queue;

void ravel__slot_queue_init(ravel__slot_queue *queue);
void ravel__slot_queue_free(ravel__slot_queue *queue);
/* Empty and open again; no thread may be waiting. */
void ravel__slot_queue_reset(ravel__slot_queue *queue);
void ravel__slot_queue_put(ravel__slot_queue *queue, int32_t slot);
/* -1: there is none now. */
int32_t ravel__slot_queue_look(ravel__slot_queue *queue);
int ravel__slot_queue_is_empty(ravel__slot_queue *queue);
/* Waits for one; -1: the lane was closed and is empty. */
int32_t ravel__slot_queue_take(ravel__slot_queue *queue);
/* No more numbers will be put. */
void ravel__slot_queue_close(ravel__slot_queue *queue);

#endif
