#include "refit/session/slot_queue.h"

#include "base/assert.h"

void ravel__slot_queue_init(ravel__slot_queue *queue) {
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->bell, NULL);
    queue->head = queue->tail = 0;
    queue->closed = 0;
}

void ravel__slot_queue_free(ravel__slot_queue *queue) {
    pthread_cond_destroy(&queue->bell);
    pthread_mutex_destroy(&queue->lock);
}

void ravel__slot_queue_reset(ravel__slot_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->head = queue->tail = 0;
    queue->closed = 0;
    pthread_mutex_unlock(&queue->lock);
}

void ravel__slot_queue_put(ravel__slot_queue *queue, int32_t slot) {
    pthread_mutex_lock(&queue->lock);
    RAVEL_ASSERT(slot >= 0 && queue->tail - queue->head < RAVEL__SLOT_QUEUE_MOST);
    RAVEL_ASSERT(queue->head <= queue->tail);
    queue->slots[queue->tail++ % RAVEL__SLOT_QUEUE_MOST] = slot;
    pthread_cond_signal(&queue->bell);
    pthread_mutex_unlock(&queue->lock);
}

/* Under the lock. */
static int32_t take_first(ravel__slot_queue *queue) {
    RAVEL_ASSERT(queue->head <= queue->tail && queue->tail - queue->head <= RAVEL__SLOT_QUEUE_MOST);
    return queue->head == queue->tail ? -1 : queue->slots[queue->head++ % RAVEL__SLOT_QUEUE_MOST];
}

int32_t ravel__slot_queue_look(ravel__slot_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    int32_t slot = take_first(queue);
    RAVEL_ASSERT(queue->tail - queue->head <= RAVEL__SLOT_QUEUE_MOST);
    pthread_mutex_unlock(&queue->lock);
    return slot;
}

int ravel__slot_queue_is_empty(ravel__slot_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    int empty = queue->head == queue->tail;
    pthread_mutex_unlock(&queue->lock);
    return empty;
}

int32_t ravel__slot_queue_take(ravel__slot_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    while (queue->head == queue->tail && !queue->closed) pthread_cond_wait(&queue->bell, &queue->lock);
    int32_t slot = take_first(queue);
    pthread_mutex_unlock(&queue->lock);
    return slot;
}

void ravel__slot_queue_close(ravel__slot_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    pthread_cond_broadcast(&queue->bell);
    pthread_mutex_unlock(&queue->lock);
}
