/* Updates on a device: arrays are packed into page-locked memory, and one copy takes all of a batch's to the device.
 *
 *     preparing thread   [pack batch 1] [copy] [pack batch 2] [copy] ...        the copy runs on a stream of the feed
 *     consumer           event `ready` of each micro-batch: its stream waits for the copy, not the host
 *
 * Each prepared batch has its own device memory. It is written again only after the work that the consumer's stream
 * held when the consumer took the next batch (event `used`). */
#include "feed/feed.h"

#include "base/assert.h"

#include "device/handle.h"

enum { WAIT_SECONDS = 120 };

static void *resize_pages(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    const ravel_feed *feed = user;
    ravel_stream *stream = feed->uploads; /* only the upload reads them */
    ravel_device *device = ravel_stream_device(stream);
    void *made = NULL;
    (void)old_bytes; /* buffers are refilled: no old content is kept */
    if (new_bytes > 0 && ravel_device_alloc(device, RAVEL_PINNED, new_bytes, stream, &made, NULL) != RAVEL_OK)
        return NULL;
    ravel_device_release(device, ptr, stream);
    return made;
}

ravel_status ravel__upload_open(ravel_feed *feed, ravel_error *err) {
    const ravel_place *place = &feed->options.place;
    ravel_status status = ravel__place_check(place, 1u << RAVEL_HOST | 1u << RAVEL_DEVICE, "the feed's place", err);
    if (status || place->kind == RAVEL_HOST) return status;
    ravel_device *device = ravel_stream_device(place->stream);
    feed->pages = (ravel_allocator){resize_pages, feed};
    status = ravel_stream_create(device, &feed->uploads, err);
    for (int32_t i = 0; i < RAVEL__SLOTS && !status; i++) {
        status = ravel_event_create(device, &feed->slots[i].upload.ready, err);
        if (!status) status = ravel_event_create(device, &feed->slots[i].upload.used, err);
    }
    return status;
}

const ravel_allocator *ravel__upload_allocator(const ravel_feed *feed) {
    return feed->uploads ? &feed->pages : feed->allocator;
}

void ravel__upload_free(ravel_feed *feed, ravel__prepared *slot) {
    ravel__upload *u = &slot->upload;
    if (!feed->uploads) return;
    (void)ravel__upload_wait(feed, slot, NULL);
    ravel_device_release(ravel_stream_device(feed->uploads), u->there, feed->options.place.stream);
    ravel_event_free(u->ready);
    ravel_event_free(u->used);
    *u = (ravel__upload){0};
}

ravel_status ravel__upload_wait(const ravel_feed *feed, const ravel__prepared *slot, ravel_error *err) {
    return feed->uploads && slot->upload.ready ? ravel_event_wait(slot->upload.ready, WAIT_SECONDS, err) : RAVEL_OK;
}

/* More memory where the batch needs it. `uploads` already waits for the readers of the old memory. */
static ravel_status make_room(const ravel_feed *feed, ravel__upload *u, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT((u->room == 0) == (u->there == NULL));
    ravel_device *device = ravel_stream_device(feed->uploads);
    if (bytes <= u->room) return RAVEL_OK;
    ravel_device_release(device, u->there, feed->uploads);
    u->there = NULL;
    u->room = 0;
    ravel_status status = ravel_device_alloc(device, RAVEL_DEVICE, bytes + bytes / 8, feed->uploads, &u->there, err);
    if (!status) u->room = bytes + bytes / 8;
    return status;
}

ravel_status ravel__upload_send(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    ravel__upload *u = &slot->upload;
    if (!feed->uploads || slot->block_bytes == 0) return RAVEL_OK;
    RAVEL_ASSERT(u->ready && u->used && slot->block_bytes <= slot->block.room);
    ravel_status status = ravel_event_order(u->used, feed->uploads, err);
    if (!status) status = make_room(feed, u, slot->block_bytes, err);
    if (!status)
        status = ravel_device_copy(ravel_stream_device(feed->uploads), u->there, slot->block.at, slot->block_bytes,
                                   feed->uploads, err);
    return status ? status : ravel_event_record(u->ready, feed->uploads, err);
}

ravel_status ravel__upload_used(ravel_feed *feed, ravel_error *err) {
    int32_t current = feed->consumer.current;
    if (!feed->uploads || current < 0) return RAVEL_OK;
    return ravel_event_record(feed->slots[current].upload.used, feed->options.place.stream, err);
}

const void *ravel_feed_device(const ravel_feed *feed, const void *array) {
    if (!feed->uploads || feed->consumer.current < 0 || !array) return NULL;
    const ravel__prepared *slot = &feed->slots[feed->consumer.current];
    const char *base = slot->block.at, *at = array;
    if (at < base || at >= base + slot->block_bytes) return NULL;
    RAVEL_ASSERT((size_t)(at - base) < slot->upload.room);
    return (const char *)slot->upload.there + (at - base);
}
