/* The loader: from frames to the stage. Frames of a stream arrive in the order of its slices, so a cursor determines
 * what every entry must be; any other entry, and every wrong checksum, is a failure. After the first failure frames are
 * only counted: the stream runs to its end, so that the communicator stays usable.
 *
 * A team loads several entries of a frame at once; callbacks get theirs one by one. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/xxh3.h"

#include <string.h>

enum { HASH_STEP = 64 * 1024 };

ravel_status ravel__loader_init(ravel__loader *l, ravel_refit *refit, ravel_error *err) {
    size_t count = (size_t)refit->streams.in_count;
    *l = (ravel__loader){.refit = refit};
    ravel__slot_queue_init(&l->arrived);
    ravel__slot_queue_init(&l->loaded);
    l->cursors = ravel__calloc(&refit->memory.allocator, count, sizeof *l->cursors);
    l->takings = count > 0 ? ravel__calloc(&refit->memory.allocator, RAVEL__BATCH_MOST, sizeof *l->takings) : NULL;
    if (count > 0 && (!l->cursors || !l->takings)) return ravel__no_memory(err, count * sizeof *l->cursors, "streams");
    if (count == 0 || !refit->data) return RAVEL_OK;
    return ravel__payload_create(refit->sink_holding.carrier, &refit->memory.allocator, &l->payload, err);
}

void ravel__loader_free(ravel__loader *l) {
    if (!l->refit) return;
    ravel__release(&l->refit->memory.allocator, l->cursors, (size_t)l->refit->streams.in_count * sizeof *l->cursors);
    ravel__release(&l->refit->memory.allocator, l->takings, RAVEL__BATCH_MOST * sizeof *l->takings);
    ravel__payload_free(l->payload);
    ravel__slot_queue_free(&l->arrived);
    ravel__slot_queue_free(&l->loaded);
    memset(l, 0, sizeof *l);
}

void ravel__loader_begin(ravel__loader *l, int64_t version, const char *active) {
    RAVEL_ASSERT(version > 0);
    l->version = version;
    l->status = RAVEL_OK;
    atomic_store(&l->failed, RAVEL_OK);
    ravel_error_clear(&l->why);
    l->taking = 0;
    l->verify_ns = l->load_ns = l->kept_bytes = 0;
    for (int32_t i = 0; i < l->refit->streams.in_count; i++) l->cursors[i] = (ravel__in_cursor){.active = active[i]};
    ravel__slot_queue_reset(&l->arrived);
    ravel__slot_queue_reset(&l->loaded);
}

/* ---- one entry ------------------------------------------------------------------------------------------ */

static ravel_status out_of_place(ravel__loader *l, int32_t sender, const char *what) {
    return ravel_error_set(&l->why, RAVEL_E_DATA, "a frame from rank %d %s", sender, what);
}

/* The entry must continue where the last one ended; 0, with a sentence in l->why, where it does not. */
static int expect(ravel__loader *l, int32_t stream, const ravel__frame_entry *e, ravel__taking *t) {
    RAVEL_ASSERT(stream >= 0 && stream < l->refit->streams.in_count);
    const ravel__streams *plan = &l->refit->streams;
    const ravel__stream *s = &plan->in[stream];
    const ravel__in_cursor *cursor = &l->cursors[stream];
    if (cursor->slice == s->slices || e->slice != (uint64_t)cursor->slice || e->first != (uint64_t)cursor->first) {
        (void)out_of_place(l, s->sender, "does not continue the one before");
        return 0;
    }
    t->slice = &plan->slices[s->first + cursor->slice];
    t->item = &l->refit->sink_holding.items[t->slice->item];
    RAVEL_ASSERT(t->slice->item >= 0 && t->slice->item < l->refit->sink_holding.count &&
                 cursor->first < t->slice->count);
    if (e->tensor != (uint32_t)t->slice->tensor || e->dtype != t->slice->dtype ||
        e->count > (uint64_t)(t->slice->count - cursor->first)) {
        (void)out_of_place(l, s->sender, "has another slice than was planned");
        return 0;
    }
    t->box = ravel__slice_box(plan, t->slice, t->item->ndim);
    t->entry = *e;
    t->sender = s->sender;
    t->payload = NULL;
    t->verify_ns = t->load_ns = 0;
    return 1;
}

static ravel_status changed(const ravel__taking *t, ravel_error *err) {
    const ravel__frame_entry *e = &t->entry;
    return ravel_error_set(err, RAVEL_E_CHECKSUM,
                           "\"%s\": elements %llu to %llu of its slice from rank %d arrived changed", t->item->name,
                           (unsigned long long)e->first, (unsigned long long)(e->first + e->count - 1), t->sender);
}

/* A whole entry to its place, hashed on the way. */
static ravel_status take_at_once(ravel__taking *t, void *place, ravel_error *err) {
    RAVEL_ASSERT(t->payload && t->entry.kind == RAVEL__ENTRY_DATA);
    int64_t begin = ravel__clock_ns();
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add_copy(&state, place, t->payload, (size_t)t->entry.count * (size_t)ravel_dtype_bytes(t->entry.dtype));
    uint64_t checksum = ravel__xxh3_end(&state);
    t->load_ns += ravel__clock_ns() - begin;
    return checksum == t->entry.checksum ? RAVEL_OK : changed(t, err);
}

/* Hash and load step by step while the bytes are in the cache: bytes that fail the check are discarded with the stage. For
 * callbacks the whole entry is hashed first, since they are promised verified bytes. */
static ravel_status take_data(ravel_refit *refit, ravel__taking *t, ravel_error *err) {
    RAVEL_ASSERT(t->payload && refit->stage.active);
    const ravel__frame_entry *e = &t->entry;
    int64_t each = ravel_dtype_bytes(e->dtype), count = (int64_t)e->count, step = HASH_STEP / each;
    int careful = refit->sink->load != NULL;
    ravel_status status = RAVEL_OK;
    ravel__xxh3 state;
    ravel__span span = {t->slice->item, &t->box, (int64_t)e->first, count};
    void *place = ravel__stage_place(&refit->stage, &span, e->dtype);
    if (place) return take_at_once(t, place, err);
    int64_t clock = ravel__clock_ns(), later;
    if (careful && ravel__xxh3_of(t->payload, (size_t)(count * each)) != e->checksum) return changed(t, err);
    ravel__xxh3_begin(&state);
    for (int64_t done = 0; done < count && status == RAVEL_OK; done += step) {
        int64_t n = count - done < step ? count - done : step;
        const unsigned char *from = t->payload + done * each;
        if (!careful) ravel__xxh3_add(&state, from, (size_t)(n * each));
        later = ravel__clock_ns();
        t->verify_ns += later - clock;
        clock = later;
        span.first = (int64_t)e->first + done;
        span.count = n;
        status = ravel__stage_write(&refit->stage, &span, e->dtype, from, err);
        later = ravel__clock_ns();
        t->load_ns += later - clock;
        clock = later;
    }
    if (status == RAVEL_OK && !careful && ravel__xxh3_end(&state) != e->checksum) return changed(t, err);
    return status;
}

static ravel_status keep(ravel_refit *refit, ravel__taking *t, ravel_error *err) {
    RAVEL_ASSERT(t->entry.kind == RAVEL__ENTRY_KEEP && !t->payload);
    int64_t begin = ravel__clock_ns();
    ravel__span span = {t->slice->item, &t->box, (int64_t)t->entry.first, (int64_t)t->entry.count};
    ravel_status status = ravel__stage_keep(&refit->stage, &span, err);
    t->load_ns += ravel__clock_ns() - begin;
    return status;
}

static void take_one(void *user, int64_t index) {
    RAVEL_ASSERT(index >= 0 && index < ((ravel__loader *)user)->taking);
    ravel__loader *l = user;
    ravel__taking *t = &l->takings[index];
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t none = RAVEL_OK;
    if (atomic_load(&l->failed) != RAVEL_OK) return;
    ravel_status status = t->payload ? take_data(l->refit, t, &why) : keep(l->refit, t, &why);
    if (status != RAVEL_OK && atomic_compare_exchange_strong(&l->failed, &none, (int32_t)status)) l->why = why;
}

/* Loads the queued entries. Splits the elapsed time into verify and load as the threads spent theirs. */
static ravel_status take_waiting(ravel__loader *l, int64_t *covered) {
    RAVEL_ASSERT(l->taking > 0 && l->taking <= RAVEL__BATCH_MOST);
    int64_t begin = ravel__clock_ns(), verify = 0, load = 0;
    ravel__team_run(&l->team, l->taking, take_one, l);
    int64_t passed = ravel__clock_ns() - begin;
    RAVEL_ASSERT(passed >= 0);
    for (int32_t i = 0; i < l->taking; i++) {
        const ravel__taking *t = &l->takings[i];
        int64_t bytes = (int64_t)t->entry.count * ravel_dtype_bytes(t->entry.dtype);
        verify += t->verify_ns;
        load += t->load_ns;
        *covered += bytes;
        if (!t->payload) l->kept_bytes += bytes;
    }
    double share = verify + load > 0 ? (double)verify / (double)(verify + load) : 0;
    l->verify_ns += (int64_t)((double)passed * share);
    l->load_ns += passed - (int64_t)((double)passed * share);
    l->taking = 0;
    return (ravel_status)atomic_load(&l->failed);
}

/* The same for payloads in device memory, in two steps: adds the entry to the next kernel, which hashes and scatters. */
static ravel_status take_apart(ravel__loader *l, const ravel__taking *t) {
    RAVEL_ASSERT(l->payload && l->refit->stage.now->direct);
    const ravel__stage *stage = &l->refit->stage;
    const ravel__view *view = &t->item->view;
    const ravel__frame_entry *e = &t->entry;
    if (e->kind == RAVEL__ENTRY_KEEP)
        return out_of_place(l, t->sender, "keeps elements, which frames over this wire cannot");
    if (e->count * (uint64_t)ravel_dtype_bytes(e->dtype) > RAVEL__PAYLOAD_BLOCK)
        return out_of_place(l, t->sender, "has a larger entry than the wire allows");
    return ravel__payload_add(l->payload, view, stage->now->target(stage, view->tensor), &t->box, (int64_t)e->first,
                              (int64_t)e->count, e->dtype, (int64_t)e->offset, &l->why);
}

/* Runs that kernel: entries l->settled on are in their place, or arrived changed. */
static ravel_status settle(ravel__loader *l, const ravel__refit_buffer *slot, int32_t stream,
                           const ravel__frame_head *head) {
    const ravel__streams *plan = &l->refit->streams;
    const uint64_t *hashes = NULL;
    int64_t count = 0, begin = ravel__clock_ns();
    ravel__frame_entry e;
    ravel_status status =
        ravel__payload_run(l->payload, slot->payload, l->refit->terms.buffer_bytes, 1, &hashes, &count, &l->why);
    l->load_ns += ravel__clock_ns() - begin;
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++) {
        status = ravel__frame_entry_at(slot->data, head, l->settled++, &e, &l->why);
        if (status != RAVEL_OK || hashes[i] == e.checksum) continue;
        ravel__taking t = {.entry = e, .slice = &plan->slices[plan->in[stream].first + e.slice]};
        t.item = &l->refit->sink_holding.items[t.slice->item];
        t.sender = plan->in[stream].sender;
        status = changed(&t, &l->why);
    }
    return status;
}

/* Takes an entry, or leaves it for take_waiting. */
static ravel_status take_entry(ravel__loader *l, int32_t stream, const ravel__refit_buffer *slot,
                               const ravel__frame_entry *e, int64_t *covered) {
    ravel__in_cursor *cursor = &l->cursors[stream];
    ravel__taking *t = &l->takings[l->taking];
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(l->taking < RAVEL__BATCH_MOST);
    if (!expect(l, stream, e, t)) return RAVEL_E_DATA;
    cursor->first += (int64_t)e->count;
    RAVEL_ASSERT(cursor->first <= t->slice->count); /* see expect */
    if (cursor->first == t->slice->count) {
        cursor->slice++;
        cursor->first = 0;
    }
    if (l->payload) {
        status = take_apart(l, t);
        if (status == RAVEL_OK) *covered += (int64_t)e->count * ravel_dtype_bytes(e->dtype);
        return status;
    }
    t->payload = e->kind == RAVEL__ENTRY_KEEP ? NULL : slot->data + e->offset;
    l->taking++;
    return l->taking == (l->team.others > 0 ? RAVEL__BATCH_MOST : 1) ? take_waiting(l, covered) : RAVEL_OK;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

static ravel_status open_frame(ravel__loader *l, const ravel__refit_buffer *slot, int32_t stream,
                               ravel__frame_head *head) {
    int32_t sender = l->refit->streams.in[stream].sender;
    if (slot->torn) return out_of_place(l, sender, "did not arrive whole");
    size_t bytes = (size_t)slot->notice.bytes;
    ravel_status status = l->payload ? ravel__frame_open_apart(slot->data, bytes, head, &l->why)
                                     : ravel__frame_open(slot->data, bytes, head, &l->why);
    if (status != RAVEL_OK) {
        ravel_error_prefix(&l->why, "from rank %d", sender);
        return status;
    }
    if (head->sequence != l->cursors[stream].sequence || head->sender != (uint32_t)sender ||
        head->flags != slot->notice.flags || head->window != slot->notice.window)
        return out_of_place(l, sender, "is not the one that was announced");
    if (head->version != (uint64_t)l->version)
        return ravel_error_set(&l->why, RAVEL_E_DATA, "a frame from rank %d is of version %llu, not %lld", sender,
                               (unsigned long long)head->version, (long long)l->version);
    if (head->flags & RAVEL__FRAME_ABORT)
        return ravel_error_set(&l->why, RAVEL_E_END, "rank %d failed and ended its stream", sender);
    return RAVEL_OK;
}

void ravel__loader_take(ravel__loader *l, ravel__refit_buffer *slot, int32_t stream, int32_t index) {
    ravel__frame_head head = {0};
    ravel__frame_entry entry;
    int64_t begin = ravel__clock_ns();
    RAVEL_ASSERT(stream >= 0 && stream < l->refit->streams.in_count);
    slot->covered = 0;
    l->settled = 0;
    if (l->status == RAVEL_OK) l->status = open_frame(l, slot, stream, &head);
    l->cursors[stream].sequence++;
    for (uint32_t i = 0; l->status == RAVEL_OK && i < head.entries; i++) {
        l->status = ravel__frame_entry_at(slot->data, &head, i, &entry, &l->why);
        if (l->status == RAVEL_OK) l->status = take_entry(l, stream, slot, &entry, &slot->covered);
        if (l->status == RAVEL_OK && l->payload && ravel__payload_full(l->payload))
            l->status = settle(l, slot, stream, &head);
    }
    if (l->payload && l->status == RAVEL_OK) l->status = settle(l, slot, stream, &head);
    if (l->payload) ravel__payload_drop(l->payload);
    if (l->status == RAVEL_OK && l->taking > 0) l->status = take_waiting(l, &slot->covered);
    l->taking = 0;
    ravel__trace_add(&l->refit->trace, RAVEL_REFIT_LOAD, index, slot->number, begin, ravel__clock_ns(),
                     (int64_t)slot->notice.bytes + slot->payload_bytes);
}

ravel_status ravel__loader_end(ravel__loader *l) {
    const ravel__streams *plan = &l->refit->streams;
    for (int32_t i = 0; i < plan->in_count && l->status == RAVEL_OK; i++)
        if (l->cursors[i].active && l->cursors[i].slice != plan->in[i].slices)
            l->status = ravel_error_set(&l->why, RAVEL_E_DATA, "rank %d ended its stream before everything was sent",
                                        plan->in[i].sender);
    return l->status;
}
