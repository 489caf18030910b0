/* The queue of prepared batches, and the thread that fills it.
 *
 *     slots   | used by the consumer | ready | ready | being prepared |        a ring of prefetch + 1
 *                                      head            tail
 *
 * The consumer asks for `prefetch` batches at first and for one more whenever it takes one, so that every rank requests
 * the same number in the end, at any speed: all ranks prepare the same batches in the same order. A failed batch, or
 * the end of the stream, halts the queue until the consumer has taken it; later requests are dropped, on every rank.
 * Without a thread a batch is prepared when it is taken. */
#include "feed/feed.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdbool.h>
#include <string.h>

static int32_t ring(const ravel_feed *feed) {
    return feed->queue.depth + 1;
}

/* Whether all requested updates are prepared. */
static int enough(const ravel_feed *feed) {
    return feed->options.updates && feed->queue.prepared_updates >= feed->options.updates;
}

/* The ready slots are those from head to tail. With the lock, or without a thread. */
static bool queue_ok(const ravel_feed *feed) {
    const ravel__queue *q = &feed->queue;
    int32_t n = ring(feed);
    return q->head >= 0 && q->head < n && q->tail >= 0 && q->tail < n && q->wanted >= 0 && q->ready >= 0 &&
           q->ready <= q->depth && (q->tail - q->head + n) % n == q->ready;
}

static void put_ready(ravel_feed *feed, const ravel__prepared *slot) {
    RAVEL_ASSERT(queue_ok(feed) && !feed->queue.halted);
    feed->queue.ready++;
    RAVEL_ASSERT(feed->queue.ready <= feed->queue.depth);
    feed->queue.tail = (feed->queue.tail + 1) % ring(feed);
    if (slot->status)
        feed->queue.halted = 1, feed->queue.wanted = 0;
    else
        feed->queue.prepared_updates += slot->meta.updates;
    RAVEL_ASSERT(queue_ok(feed));
}

static void *work(void *user) {
    ravel_feed *feed = user;
    (void)pthread_mutex_lock(&feed->queue.lock);
    for (;;) {
        while (!feed->queue.wanted && !feed->queue.stop)
            (void)pthread_cond_wait(&feed->queue.changed, &feed->queue.lock);
        if (!feed->queue.wanted) break;
        feed->queue.wanted = enough(feed) ? 0 : feed->queue.wanted - 1;
        if (enough(feed)) continue;
        ravel__prepared *slot = &feed->slots[feed->queue.tail];
        RAVEL_ASSERT(!feed->queue.busy && !feed->queue.halted && feed->queue.tail < ring(feed));
        feed->queue.busy = 1;
        (void)pthread_mutex_unlock(&feed->queue.lock);
        ravel__feed_prepare(feed, slot);
        (void)pthread_mutex_lock(&feed->queue.lock);
        feed->queue.busy = 0;
        put_ready(feed, slot);
        (void)pthread_cond_broadcast(&feed->queue.changed);
    }
    (void)pthread_mutex_unlock(&feed->queue.lock);
    return NULL;
}

/* If no thread can be created, a batch is prepared when it is taken. */
void ravel__queue_start(ravel_feed *feed) {
    RAVEL_ASSERT(!feed->queue.running && feed->options.prefetch <= RAVEL__PREFETCH_MOST);
    feed->queue.depth = feed->options.prefetch > 1 && feed->by_rows ? feed->options.prefetch : 1;
    RAVEL_ASSERT(ring(feed) <= RAVEL__SLOTS);
    if (!feed->options.prefetch) return;
    feed->queue.running = pthread_create(&feed->queue.thread, NULL, work, feed) == 0;
    if (!feed->queue.running)
        ravel__log(feed->logger, RAVEL_LOG_WARN, "no thread could be started: the feed does not prefetch");
}

/* Batches that were asked for are prepared first, since the other ranks take part in them. */
void ravel__queue_stop(ravel_feed *feed) {
    (void)pthread_mutex_lock(&feed->queue.lock);
    feed->queue.stop = 1;
    (void)pthread_cond_broadcast(&feed->queue.changed);
    (void)pthread_mutex_unlock(&feed->queue.lock);
    if (feed->queue.running) (void)pthread_join(feed->queue.thread, NULL);
    feed->queue.running = 0;
}

void ravel__queue_ask(ravel_feed *feed, int32_t batches) {
    RAVEL_ASSERT(batches > 0);
    (void)pthread_mutex_lock(&feed->queue.lock);
    feed->consumer.started = 1;
    if (!feed->queue.halted) feed->queue.wanted += batches;
    RAVEL_ASSERT(queue_ok(feed));
    (void)pthread_cond_broadcast(&feed->queue.changed);
    (void)pthread_mutex_unlock(&feed->queue.lock);
}

int ravel__queue_is_empty(ravel_feed *feed) {
    (void)pthread_mutex_lock(&feed->queue.lock);
    int empty = feed->queue.wanted == 0 && feed->queue.ready == 0 && !feed->queue.busy;
    (void)pthread_mutex_unlock(&feed->queue.lock);
    return empty;
}

/* Waits for the slot at the head. */
static void wait_ready(ravel_feed *feed) {
    (void)pthread_mutex_lock(&feed->queue.lock);
    while (!feed->queue.ready) (void)pthread_cond_wait(&feed->queue.changed, &feed->queue.lock);
    (void)pthread_mutex_unlock(&feed->queue.lock);
}

static void prepare_now(ravel_feed *feed) {
    RAVEL_ASSERT(!feed->queue.running && feed->queue.ready == 0);
    feed->queue.wanted = 0;
    ravel__feed_prepare(feed, &feed->slots[feed->queue.tail]);
    put_ready(feed, &feed->slots[feed->queue.tail]);
}

int32_t ravel__queue_take(ravel_feed *feed) {
    if (ravel__queue_is_empty(feed)) ravel__queue_ask(feed, feed->queue.depth);
    if (feed->queue.running)
        wait_ready(feed);
    else
        prepare_now(feed);
    (void)pthread_mutex_lock(&feed->queue.lock);
    int32_t index = feed->queue.head;
    RAVEL_ASSERT(feed->queue.ready > 0 && index < ring(feed));
    feed->queue.head = (feed->queue.head + 1) % ring(feed);
    feed->queue.ready--;
    RAVEL_ASSERT(feed->queue.ready >= 0 && feed->queue.ready <= feed->queue.depth);
    if (feed->slots[index].status) {                               /* its place is free again; the slot in use is not */
        RAVEL_ASSERT(feed->queue.ready == 0 && !feed->queue.busy); /* nothing is prepared behind a failure */
        feed->queue.head = feed->queue.tail = index;
        feed->queue.halted = 0;
    }
    RAVEL_ASSERT(queue_ok(feed));
    (void)pthread_mutex_unlock(&feed->queue.lock);
    return index;
}
