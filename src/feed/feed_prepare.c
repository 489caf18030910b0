/* Preparing a batch: the steps in order, their times, and the handling of failures.
 *
 *     read gather plan meta room        a rank that fails here still takes part, and reports it at
 *     agree                             where it becomes an error on all ranks; after it
 *     exchange pack share               only the communicator can fail
 *
 * A failure behind the agreement that is not the communicator's own (it would be a bug, or a test) aborts it: the
 * others then get an error instead of waiting. */
#include "comm/agree.h"
#include "feed/pack.h"

#include "base/assert.h"
#include "feed/source/source.h"
#include "base/system/clock.h"
#include "base/hash.h"

#include <string.h>

/* ---- the clock and the fault hook ----------------------------------------------------------------------- */

typedef struct lap {
    int64_t began, last;
} lap;

static void end_phase(ravel__prepared *slot, lap *l, ravel_feed_phase phase) {
    int64_t now = ravel__clock_ns();
    RAVEL_ASSERT(now >= l->last && phase < RAVEL_FEED_PHASES);
    slot->update.phase_sec[phase] += 1e-9 * (double)(now - l->last);
    l->last = now;
}

/* Calls the test's fault hook at the beginning of a phase. */
static ravel_status fault(ravel_feed *feed, ravel_feed_phase phase, ravel_error *err) {
    return feed->fault.at ? feed->fault.at(feed->fault.user, (int32_t)phase, err) : RAVEL_OK;
}

static int is_lost(ravel_status status) {
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT || status == RAVEL_E_DEAD;
}

/* ---- before the agreement ------------------------------------------------------------------------------- */

static void reset(ravel_feed *feed, ravel__prepared *slot) {
    ravel_words words = slot->words;
    ravel__buffer index = slot->index, block = slot->block;
    memset(slot, 0, sizeof *slot);
    slot->words = words;
    slot->words.count = 0;
    slot->index = index;
    slot->block = block;
    ravel_plan_free(feed->work.plan_made);
    ravel_exchange_free(feed->work.exchange);
    feed->work.plan_made = NULL;
    feed->work.exchange = NULL;
    feed->work.next = slot->begin = feed->work.cursor;
    feed->work.end = 0;
    feed->work.digest = 0;
}

/* Read, gather and plan, on owners. *failed: this rank or another of its dp group. */
static ravel_status decide(ravel_feed *feed, ravel__prepared *slot, lap *l, ravel_error *err) {
    int failed = 0;
    ravel_status status = fault(feed, RAVEL_FEED_READ, err);
    if (!status) status = ravel__feed_read(feed, err);
    end_phase(slot, l, RAVEL_FEED_READ);
    if (feed->work.end && !status) return RAVEL_OK;
    if (!status) status = fault(feed, RAVEL_FEED_GATHER, err);
    status = ravel__feed_gather(feed, status, &failed, err);
    if (!status && !failed && feed->place.owner && feed->options.share_prefix != RAVEL_SHARE_OFF)
        status = ravel__feed_tree(feed, err);
    slot->update.sent_bytes += feed->work.gathered_bytes;
    end_phase(slot, l, RAVEL_FEED_GATHER);
    if (status || failed || !feed->place.owner) return status;
    status = fault(feed, RAVEL_FEED_PLAN, err);
    if (!status) status = ravel__feed_plan(feed, slot, err);
    end_phase(slot, l, RAVEL_FEED_PLAN);
    return status;
}

static ravel_status make_room(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->place.owner || !slot->planned);
    if (slot->meta.flags & (RAVEL_META_END | RAVEL_META_FAILED)) return RAVEL_OK;
    ravel_status status = ravel__feed_room(feed, slot, err);
    if (!status && feed->place.owner)
        status = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY ? ravel__root_reserve(feed, err)
                                                                : ravel__feed_reserve(feed, err);
    return status;
}

/* Status and digest of all ranks. A rank that planned compares its plan, one that saw the end the end. */
static ravel_status agree(ravel_feed *feed, const ravel__prepared *slot, ravel_status mine, ravel_error *err) {
    RAVEL_ASSERT(!slot->planned || (feed->work.plan_made && feed->place.owner));
    ravel__hash end = ravel__hash_begin(3);
    uint64_t digest = slot->planned ? feed->work.digest : ravel__hash_end(end);
    int compares = feed->place.owner && (slot->planned || feed->work.end);
    ravel_status status =
        ravel__agree(feed->place.world, mine, compares ? &digest : NULL, "another plan", feed->allocator, err);
    if (status || !(slot->meta.flags & RAVEL_META_FAILED)) return status;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "a batch is marked as failed, but no rank reported an error");
}

static ravel_status before(ravel_feed *feed, ravel__prepared *slot, lap *l, ravel_error *err) {
    ravel_status status = decide(feed, slot, l, err);
    if (is_lost(status)) return status;
    if (!status) status = fault(feed, RAVEL_FEED_META, err);
    status = ravel__feed_meta(feed, slot, status, err);
    end_phase(slot, l, RAVEL_FEED_META);
    if (is_lost(status)) return status;
    if (!status) status = fault(feed, RAVEL_FEED_AGREE, err);
    if (!status) status = make_room(feed, slot, err);
    status = agree(feed, slot, status, err);
    end_phase(slot, l, RAVEL_FEED_AGREE);
    return status;
}

/* ---- after the agreement ----------------------------------------------------------------------------------------- */

static ravel_status behind(ravel_feed *feed, ravel__prepared *slot, lap *l, ravel_error *err) {
    static const struct {
        ravel_feed_phase phase;
        ravel_status (*run)(ravel_feed *, ravel__prepared *, ravel_error *);
    } steps[] = {{RAVEL_FEED_EXCHANGE, ravel__feed_exchange},
                 {RAVEL_FEED_PACK, ravel__feed_pack},
                 {RAVEL_FEED_SHARE, ravel__feed_share}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        ravel_status status = fault(feed, steps[i].phase, err);
        if (!status) status = steps[i].run(feed, slot, err);
        end_phase(slot, l, steps[i].phase);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* An error that the other ranks do not know of. */
static void give_up(ravel_feed *feed, ravel_status status, const ravel_error *err) {
    RAVEL_ASSERT(status != RAVEL_OK);
    if (!is_lost(status)) ravel_comm_abort(feed->place.world, err);
    feed->dead = 1;
}

/* Memory that the feed holds. The slot that the consumer uses does not change meanwhile. */
static int64_t memory_held(const ravel_feed *feed) {
    const ravel__buffer *buffers[] = {&feed->work.rows,
                                      &feed->work.planning.input,
                                      &feed->work.planning.expanded,
                                      &feed->work.result,
                                      &feed->work.scratch,
                                      &feed->work.staging,
                                      &feed->work.weight_values,
                                      &feed->work.columns.mine,
                                      &feed->work.columns.all,
                                      &feed->work.columns.columns,
                                      &feed->work.columns.tree,
                                      &feed->work.places,
                                      NULL};
    size_t bytes = sizeof *feed;
    for (const ravel__buffer **buffer = buffers; *buffer; buffer++) bytes += (*buffer)->room;
    for (int32_t i = 0; i < RAVEL__SLOTS; i++)
        bytes += feed->slots[i].index.room + feed->slots[i].block.room + feed->slots[i].words.room;
    return (int64_t)bytes;
}

static void finish(ravel_feed *feed, ravel__prepared *slot, const lap *l) {
    RAVEL_ASSERT(slot->status == RAVEL_OK && l->last >= l->began);
    ravel_feed_update *u = &slot->update;
    u->prepare_sec = 1e-9 * (double)(l->last - l->began);
    u->batch = slot->meta.batch;
    u->cursor = (ravel_cursor){slot->meta.epoch, slot->meta.position};
    RAVEL_ASSERT(!feed->place.owner || slot->meta.batch == feed->work.batch); /* all count the same batches */
    u->plan = slot->planned ? &slot->stats : NULL;
    feed->work.cursor = u->cursor;
    feed->work.batch++;
    slot->memory_bytes = memory_held(feed);
    if (feed->reader) ravel__reader_read_stats(feed->reader, &slot->reader);
}

void ravel__feed_prepare(ravel_feed *feed, ravel__prepared *slot) {
    reset(feed, slot);
    lap l = {ravel__clock_ns(), 0};
    l.last = l.began;
    ravel_status status = before(feed, slot, &l, &slot->err);
    if (is_lost(status)) {
        give_up(feed, status, &slot->err);
    } else if (!status && (slot->meta.flags & RAVEL_META_END)) {
        status = RAVEL_E_END;
    } else if (!status) {
        status = behind(feed, slot, &l, &slot->err);
        if (status) give_up(feed, status, &slot->err);
    }
    slot->status = status;
    if (!status) finish(feed, slot, &l);
}
