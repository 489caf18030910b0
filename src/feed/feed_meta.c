/* Metadata to every rank: from the first stage's tp rank 0 over pp, and on every stage from tp rank 0 over tp; or from
 * the root to all. A rank that failed sends a message with its failure, and all ranks still reach the agreement. */
#include "feed/feed.h"

#include "base/assert.h"

#include <inttypes.h>

static ravel_status pass_on(ravel_feed *feed, ravel__prepared *slot, ravel_comm *comm, int *received,
                            ravel_error *err) {
    if (ravel_comm_size(comm) == 1) return RAVEL_OK;
    if (ravel_comm_rank(comm) != 0)
        *received = 1;
    else
        slot->update.sent_bytes += (slot->words.count + 1) * (int64_t)sizeof(int64_t) * (ravel_comm_size(comm) - 1);
    ravel_status status = ravel_share_words(comm, &slot->words, 0, err);
    if (status == RAVEL_E_MEMORY) ravel_comm_abort(feed->place.world, err);
    return status;
}

/* A message without samples: the stream is over, or this rank failed. */
static ravel_status empty_message(ravel_feed *feed, ravel__prepared *slot, int64_t flags, ravel_error *err) {
    RAVEL_ASSERT(flags == RAVEL_META_END || flags == RAVEL_META_FAILED);
    ravel_meta meta = {.size = sizeof meta,
                       .flags = flags,
                       .epoch = feed->work.next.epoch,
                       .position = feed->work.next.position,
                       .batch = feed->work.batch};
    int32_t copies = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY ? feed->plan.dp : 1;
    int64_t each = ravel_meta_words(&meta);
    RAVEL_ASSERT(each == RAVEL_META_HEAD + 1 && copies > 0);
    ravel_status status = ravel_words_resize(&slot->words, each * copies, err);
    for (int32_t i = 0; i < copies && !status; i++)
        status = ravel_meta_encode(&meta, slot->words.at + i * each, each, err);
    return status;
}

/* The message of this dp rank among those of the root. */
static ravel_status find_message(const ravel_feed *feed, const ravel__prepared *slot, int64_t *begin, int64_t *count,
                                 ravel_error *err) {
    const ravel_words *words = &slot->words;
    *begin = 0;
    *count = words->count;
    if (feed->options.owners != RAVEL_OWNERS_ROOT_ONLY) return RAVEL_OK;
    for (int32_t dp = 0;; dp++) {
        int64_t left = words->count - *begin;
        *count = left > 2 ? words->at[*begin + 2] : 0; /* the word that says how many there are */
        if (*count < 1 || *count > left)
            return ravel_error_set(err, RAVEL_E_DATA, "the metadata of dp rank %d is not in the root's message", dp);
        if (dp == feed->place.at.dp) return RAVEL_OK;
        *begin += *count;
    }
}

/* Every group is one that this rank is in. */
static ravel_status check_groups(const ravel_feed *feed, const ravel_meta *meta, ravel_error *err) {
    if (!(meta->flags & (RAVEL_META_END | RAVEL_META_FAILED)) && !meta->group_width != !feed->plan.cp_pool)
        return ravel_error_set(err, RAVEL_E_DATA, "the metadata is not of a feed with these widths");
    for (int64_t s = 0; meta->group_width && s < meta->micro_steps; s++) {
        int64_t first = meta->group_first[s], end = first + meta->group_width[s];
        if (feed->place.at.dp < first || feed->place.at.dp >= end || end > feed->plan.cp_pool)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "the metadata of rank %d of a pool of %d has a group of ranks %" PRId64
                                   " to %" PRId64,
                                   feed->place.at.dp, feed->plan.cp_pool, first, end - 1);
    }
    return RAVEL_OK;
}

ravel_status ravel__feed_meta(ravel_feed *feed, ravel__prepared *slot, ravel_status mine, ravel_error *err) {
    RAVEL_ASSERT(!slot->planned || feed->place.owner);
    int64_t begin, count;
    int received = 0;
    ravel_error lost = RAVEL_ERROR_INIT;
    ravel_status status = RAVEL_OK;
    if (feed->place.owner && (mine || feed->work.end || !slot->planned))
        status = empty_message(feed, slot, feed->work.end && !mine ? RAVEL_META_END : RAVEL_META_FAILED, &lost);
    if (status) ravel_comm_abort(feed->place.world, &lost);
    if (!status && feed->options.owners == RAVEL_OWNERS_ROOT_ONLY)
        status = pass_on(feed, slot, feed->place.world, &received, &lost);
    if (!status && feed->options.owners == RAVEL_OWNERS_TP0_FIRST_LAST) {
        if (feed->place.at.tp == 0) status = pass_on(feed, slot, feed->place.pp, &received, &lost);
        if (!status) status = pass_on(feed, slot, feed->place.tp, &received, &lost);
    }
    if (!status) status = find_message(feed, slot, &begin, &count, &lost);
    if (!status && received) status = ravel_meta_decode(slot->words.at + begin, count, &slot->meta, &lost);
    if (!status && !received) slot->meta = ravel__meta_view(slot->words.at + begin); /* its own: nothing to check */
    if (!status) status = check_groups(feed, &slot->meta, &lost);
    if (status && !mine) return ravel_error_set(err, status, "%s", lost.message);
    return mine;
}
