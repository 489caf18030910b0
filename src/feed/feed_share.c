/* Arrays to the ranks that did not read: first cut for cp, then sent, so that less is sent.
 *
 *     tp0-first-last    last stage --> middle stages that asked (pp)     then tp rank 0 --> its tp peers, each stage
 *     root-only         root --> tp rank 0 of every stage with data      then the same
 *     every-rank        nothing
 */
#include "feed/pack.h"

#include "base/assert.h"

enum { TAG_SHARDS = 1 };

static void note_sent(ravel__prepared *slot, int64_t receivers) {
    RAVEL_ASSERT(receivers > 0 && slot->element_bytes <= (int64_t)slot->shared_bytes);
    slot->update.sent_bytes += (int64_t)slot->shared_bytes * receivers;
    slot->update.needed_bytes += slot->element_bytes * receivers;
}

/* A middle stage that asks has no owner of its own: the last stage, which then has everything, sends to it. */
static ravel_status over_pp(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->place.at.tp == 0);
    int32_t stages = feed->place.layout.sizes[3];
    const int32_t *asks = feed->place.stage_asks;
    for (int32_t p = 0; feed->place.at.pp == stages - 1 && p < stages; p++)
        if (asks[p]) note_sent(slot, 1);
    return ravel_share_bytes(feed->place.pp, slot->shared, (int64_t)slot->shared_bytes, asks, stages - 1, err);
}

static ravel_status over_tp(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    if (feed->place.have == 0 || ravel_comm_size(feed->place.tp) == 1 || slot->shared_bytes == 0) return RAVEL_OK;
    if (feed->place.at.tp == 0) note_sent(slot, ravel_comm_size(feed->place.tp) - 1);
    return ravel_share_bytes(feed->place.tp, slot->shared, (int64_t)slot->shared_bytes, NULL, 0, err);
}

static ravel_status from_root(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->options.owners == RAVEL_OWNERS_ROOT_ONLY);
    if (feed->place.owner) return ravel__root_send(feed, slot, err);
    if (feed->place.at.tp != 0 || feed->place.have == 0) return RAVEL_OK;
    return ravel_comm_recv(feed->place.world, slot->shared, (int64_t)slot->shared_bytes, RAVEL_U8, 0, TAG_SHARDS, err);
}

ravel_status ravel__feed_share(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (feed->options.owners == RAVEL_OWNERS_EVERY_RANK) return RAVEL_OK;
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY)
        status = from_root(feed, slot, err);
    else if (feed->place.at.tp == 0)
        status = over_pp(feed, slot, err);
    return status ? status : over_tp(feed, slot, err);
}
