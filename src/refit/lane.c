#include "refit/lane.h"

#include "base/assert.h"

void ravel__lane_init(ravel__lane *lane) {
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->bell, NULL);
    lane->head = lane->tail = 0;
    lane->closed = 0;
}

void ravel__lane_free(ravel__lane *lane) {
    pthread_cond_destroy(&lane->bell);
    pthread_mutex_destroy(&lane->lock);
}

void ravel__lane_reset(ravel__lane *lane) {
    pthread_mutex_lock(&lane->lock);
    lane->head = lane->tail = 0;
    lane->closed = 0;
    pthread_mutex_unlock(&lane->lock);
}

void ravel__lane_put(ravel__lane *lane, int32_t slot) {
    pthread_mutex_lock(&lane->lock);
    RAVEL_ASSERT(slot >= 0 && lane->tail - lane->head < RAVEL__LANE_MOST);
    RAVEL_ASSERT(lane->head <= lane->tail);
    lane->slots[lane->tail++ % RAVEL__LANE_MOST] = slot;
    pthread_cond_signal(&lane->bell);
    pthread_mutex_unlock(&lane->lock);
}

/* Under the lock. */
static int32_t take_first(ravel__lane *lane) {
    RAVEL_ASSERT(lane->head <= lane->tail && lane->tail - lane->head <= RAVEL__LANE_MOST);
    return lane->head == lane->tail ? -1 : lane->slots[lane->head++ % RAVEL__LANE_MOST];
}

int32_t ravel__lane_look(ravel__lane *lane) {
    pthread_mutex_lock(&lane->lock);
    int32_t slot = take_first(lane);
    RAVEL_ASSERT(lane->tail - lane->head <= RAVEL__LANE_MOST);
    pthread_mutex_unlock(&lane->lock);
    return slot;
}

int ravel__lane_is_empty(ravel__lane *lane) {
    pthread_mutex_lock(&lane->lock);
    int empty = lane->head == lane->tail;
    pthread_mutex_unlock(&lane->lock);
    return empty;
}

int32_t ravel__lane_take(ravel__lane *lane) {
    pthread_mutex_lock(&lane->lock);
    while (lane->head == lane->tail && !lane->closed) pthread_cond_wait(&lane->bell, &lane->lock);
    int32_t slot = take_first(lane);
    pthread_mutex_unlock(&lane->lock);
    return slot;
}

void ravel__lane_close(ravel__lane *lane) {
    pthread_mutex_lock(&lane->lock);
    lane->closed = 1;
    pthread_cond_broadcast(&lane->bell);
    pthread_mutex_unlock(&lane->lock);
}
