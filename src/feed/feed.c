/* The consumer's side of a feed: next, submit, micro-batches, the cursor. */
#include "feed/pack.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

static const char *const phase_names[] = {
#define X(id, name, sentence) name,
    RAVEL_FEED_PHASE_LIST(X)
#undef X
};

const char *ravel_feed_phase_name(int32_t phase) {
    return phase >= 0 && phase < RAVEL_FEED_PHASES ? phase_names[phase] : NULL;
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

static void free_slot(ravel_feed *feed, ravel__prepared *slot) {
    ravel_words_free(&slot->words);
    ravel__buffer_free(&slot->index, feed->allocator);
    ravel__buffer_free(&slot->block, feed->allocator);
}

void ravel_feed_free(ravel_feed *feed) {
    if (!feed) return;
    const ravel_allocator *a = feed->allocator;
    ravel__queue_stop(feed);
    RAVEL_ASSERT(!feed->queue.running && !feed->queue.busy);
    (void)pthread_cond_destroy(&feed->queue.changed);
    (void)pthread_mutex_destroy(&feed->queue.lock);
    ravel_mesh_free(feed->place.mesh);
    ravel_comm_free(feed->place.world);
    ravel_reader_free(feed->reader);
    ravel_plan_free(feed->work.plan_made);
    ravel_exchange_free(feed->work.exchange);
    ravel__columns_free(&feed->work.columns, a);
    ravel__buffer *buffers[] = {&feed->work.rows,          &feed->work.planning.input, &feed->work.planning.expanded,
                                &feed->work.result,        &feed->work.scratch,        &feed->work.staging,
                                &feed->work.weight_values, &feed->work.places,         NULL};
    for (ravel__buffer **buffer = buffers; *buffer; buffer++) ravel__buffer_free(*buffer, a);
    for (int32_t i = 0; i < RAVEL__SLOTS; i++) free_slot(feed, &feed->slots[i]);
    ravel__release(a, feed->place.stage_roles,
                   2 * (size_t)feed->place.layout.sizes[3] * sizeof *feed->place.stage_roles);
    ravel__release(a, feed, sizeof *feed);
}

/* ---- next ----------------------------------------------------------------------------------------------- */

static void show(ravel_feed *feed, double exposed, const ravel_feed_update **update) {
    RAVEL_ASSERT(feed->consumer.current >= 0 && feed->consumer.current < RAVEL__SLOTS);
    const ravel__prepared *slot = &feed->slots[feed->consumer.current];
    ravel_feed_update *view = &feed->consumer.view;
    RAVEL_ASSERT(feed->consumer.update >= 0 && feed->consumer.update < slot->meta.updates);
    *view = slot->update;
    view->number = feed->consumer.handed_out++;
    view->update_in_batch = feed->consumer.update;
    view->last_in_batch = feed->consumer.update + 1 == slot->meta.updates;
    view->counts = slot->meta.counts[feed->consumer.update];
    view->loss_counts = slot->meta.loss_counts[feed->consumer.update];
    view->weights = ravel__weights_of(feed, &slot->meta, feed->consumer.update);
    view->exposed_sec = exposed;
    ravel__count_mine(feed, slot, feed->consumer.update, &view->mine);
    feed->consumer.stats.updates++;
    feed->consumer.stats.exposed_sec += exposed;
    *update = view;
}

static void add_stats(ravel_feed *feed, const ravel__prepared *slot) {
    RAVEL_ASSERT(slot->status == RAVEL_OK && slot->update.sent_bytes >= 0 && slot->update.needed_bytes >= 0);
    const ravel_feed_update *u = &slot->update;
    ravel_feed_stats *s = &feed->consumer.stats;
    s->batches++;
    s->prepare_sec += u->prepare_sec;
    for (int p = 0; p < RAVEL_FEED_PHASES; p++) s->phase_sec[p] += u->phase_sec[p];
    s->sent_bytes += u->sent_bytes;
    s->needed_bytes += u->needed_bytes;
    s->kept_bytes += u->kept_bytes;
    s->memory_bytes = slot->memory_bytes;
    s->reader = slot->reader;
}

/* The steps of the updates and the samples of the micro-batches follow one another without gaps. */
static bool slot_ok(const ravel__prepared *slot) {
    const ravel_meta *m = &slot->meta;
    int64_t sample = 0, token = 0, step = 0;
    for (int64_t u = 0; u < m->updates; step += m->counts[u++].micro_steps)
        if (slot->update_steps[u] != step) return false;
    for (int64_t s = 0; s < m->micro_steps; s++) {
        const ravel__micro *micro = &slot->micros[s];
        if (micro->first != sample || micro->token != token || micro->offsets[0] != 0 || micro->cp < 1) return false;
        sample += m->bin_samples[s];
        token += micro->offsets[m->bin_samples[s]];
    }
    return step == m->micro_steps && slot->update_steps[m->updates] == step && sample == m->samples;
}

/* The next batch becomes the current one. */
static ravel_status take(ravel_feed *feed, ravel_error *err) {
    int32_t index = ravel__queue_take(feed);
    RAVEL_ASSERT(index >= 0 && index < RAVEL__SLOTS && index != feed->consumer.current);
    const ravel__prepared *slot = &feed->slots[index];
    feed->submission.pending = 0;
    if (slot->status == RAVEL_E_END) feed->consumer.over = 1;
    if (slot->status == RAVEL_E_END) return RAVEL_E_END;
    if (slot->status) return ravel_error_set(err, slot->status, "%s", slot->err.message);
    RAVEL_ASSERT(slot_ok(slot));
    feed->consumer.current = index;
    feed->consumer.update = 0;
    feed->consumer.reached = slot->update.cursor;
    add_stats(feed, slot);
    if (feed->queue.running && feed->by_rows) ravel__queue_ask(feed, 1);
    return RAVEL_OK;
}

ravel_status ravel_feed_next(ravel_feed *feed, const ravel_feed_update **update, ravel_error *err) {
    int64_t began = ravel__clock_ns();
    if (feed->consumer.over || (feed->options.updates && feed->consumer.handed_out >= feed->options.updates))
        return RAVEL_E_END;
    if (ravel__queue_is_empty(feed) && feed->dead)
        return ravel_error_set(err, RAVEL_E_DEAD, "the feed's communicator failed earlier; free the feed");
    if (feed->consumer.current >= 0 && feed->consumer.update + 1 < feed->slots[feed->consumer.current].meta.updates) {
        feed->consumer.update++;
    } else {
        ravel_status status;
        do status = take(feed, err);
        while (!status && feed->slots[feed->consumer.current].meta.updates == 0);
        if (status) return status;
    }
    show(feed, 1e-9 * (double)(ravel__clock_ns() - began), update);
    return RAVEL_OK;
}

ravel_status ravel_feed_submit(ravel_feed *feed, const ravel_samples *samples, ravel_error *err) {
    if (feed->by_rows)
        return ravel_error_set(err, RAVEL_E_STATE, "the feed reads from a source; samples cannot be submitted to it");
    if (!ravel__queue_is_empty(feed))
        return ravel_error_set(err, RAVEL_E_STATE, "a batch was submitted already; call ravel_feed_next for it first");
    RAVEL_ASSERT(!feed->submission.pending);
    memset(&feed->submission.samples, 0, sizeof feed->submission.samples);
    if (samples) feed->submission.samples = *samples;
    feed->submission.pending = 1;
    ravel__queue_ask(feed, 1);
    return RAVEL_OK;
}

/* ---- micro-batches -------------------------------------------------------------------------------------- */

static ravel_micro_batch micro_at(const ravel_feed *feed, const ravel__prepared *slot, int32_t chunk, int64_t step) {
    int64_t s = slot->update_steps[feed->consumer.update] + step, first = slot->micros[s].first;
    int32_t cp_first = slot->micros[s].cp_first;
    RAVEL_ASSERT(s < slot->update_steps[feed->consumer.update + 1] && chunk < feed->place.layout.vpp);
    RAVEL_ASSERT(cp_first < 0 || (feed->place.at.dp >= cp_first && feed->place.at.dp < cp_first + slot->micros[s].cp));
    const ravel_thd *thd = &slot->views[chunk * slot->meta.micro_steps + s];
    return (ravel_micro_batch){.step = step,
                               .chunk = chunk,
                               .filler = thd->samples_count == 0,
                               .first = (feed->place.chunk_roles[chunk] & ROLE_FIRST) != 0,
                               .last = (feed->place.chunk_roles[chunk] & ROLE_LAST) != 0,
                               .thd = thd,
                               .fields = feed->fields.list,
                               .field_count = feed->fields.count,
                               .tokens = feed->fields.fixed ? NULL : thd->fields[feed->fields.tokens],
                               .labels = feed->fields.labels < 0 ? NULL : thd->fields[feed->fields.labels],
                               .weights = thd->fields[feed->fields.weights],
                               .offsets = slot->micros[s].offsets,
                               .lengths = slot->meta.lengths + first,
                               .shared = slot->prefixes && thd->samples_count ? slot->prefixes + first : NULL,
                               .prompts = slot->meta.prompts ? slot->meta.prompts + first : NULL,
                               .ids = slot->meta.ids + first,
                               .parts = slot->meta.parts + first,
                               .loss_tokens = slot->meta.loss_tokens + first,
                               .cp = slot->micros[s].cp,
                               .cp_rank = cp_first < 0 ? feed->place.at.cp : feed->place.at.dp - cp_first,
                               .cp_first = cp_first};
}

ravel_status ravel_feed_micro(const ravel_feed *feed, int32_t chunk, int64_t step, ravel_micro_batch *micro,
                              ravel_error *err) {
    if (feed->consumer.current < 0)
        return ravel_error_set(err, RAVEL_E_STATE, "the feed has no update; call ravel_feed_next");
    const ravel__prepared *slot = &feed->slots[feed->consumer.current];
    int64_t steps = slot->update_steps[feed->consumer.update + 1] - slot->update_steps[feed->consumer.update];
    if (chunk < 0 || chunk >= feed->place.layout.vpp || step < 0 || step >= steps)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "chunk %d, micro-step %" PRId64 " of an update with %d chunks and %" PRId64
                               " micro-steps",
                               chunk, step, feed->place.layout.vpp, steps);
    *micro = micro_at(feed, slot, chunk, step);
    return RAVEL_OK;
}

ravel_feed_iter ravel_feed_iterate(const ravel_feed *feed, int32_t chunk) {
    return (ravel_feed_iter){feed, 0, chunk, 0};
}

int ravel_feed_iter_next(ravel_feed_iter *iter, ravel_micro_batch *micro) {
    if (ravel_feed_micro(iter->feed, iter->chunk, iter->step, micro, NULL)) return 0;
    iter->step++;
    return 1;
}

int64_t ravel_feed_find(const ravel_feed *feed, const char *name) {
    for (int64_t f = 0; f < feed->fields.count; f++)
        if (strcmp(feed->fields.list[f].name, name) == 0) return f;
    return -1;
}

/* ---- cursor ---------------------------------------------------------------------------------------------- */

int32_t ravel_feed_is_owner(const ravel_feed *feed) {
    return feed->place.owner;
}

const ravel_order *ravel_feed_order(const ravel_feed *feed) {
    return &feed->order;
}

ravel_cursor ravel_feed_cursor(const ravel_feed *feed) {
    return feed->consumer.reached;
}

ravel_status ravel_feed_seek(ravel_feed *feed, ravel_cursor cursor, ravel_error *err) {
    if (feed->consumer.started)
        return ravel_error_set(err, RAVEL_E_STATE, "a feed can be moved only before its first update");
    if (!ravel__cursor_is_in(&feed->order, cursor))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "epoch %" PRId64 ", position %" PRId64 " is not in a stream of %" PRId64 " rows",
                               cursor.epoch, cursor.position, feed->order.count);
    feed->work.cursor = feed->consumer.reached = cursor;
    return RAVEL_OK;
}

void ravel_feed_read_stats(const ravel_feed *feed, ravel_feed_stats *stats) {
    *stats = feed->consumer.stats;
}
