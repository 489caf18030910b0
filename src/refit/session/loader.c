/* The loader: from frames to the stage. Frames of a stream arrive in the order of its slices, so a cursor determines
 * what every entry must be; any other entry, and every wrong checksum, is a failure. After the first failure frames are
 * only counted: the stream runs to its end, so that the communicator stays usable.
 *
 * A team loads several entries of a frame at once; callbacks get theirs one by one. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <string.h>

ravel_status ravel__loader_init(ravel__loader *l, ravel_refit *refit, ravel_error *err) {
    size_t count = (size_t)refit->streams.in_count;
    *l = (ravel__loader){.refit = refit};
    l->intakes = ravel__calloc(&refit->memory.allocator, count, sizeof *l->intakes);
    l->blocks = count > 0 ? ravel__calloc(&refit->memory.allocator, RAVEL__BATCH_MOST, sizeof *l->blocks) : NULL;
    if (count > 0 && (!l->intakes || !l->blocks)) return ravel__no_memory(err, count * sizeof *l->intakes, "streams");
    if (count == 0 || !refit->data) return RAVEL_OK;
    return ravel__casts_create(refit->sink_holding.carrier, &refit->memory.allocator, &l->casts, err);
}

void ravel__loader_free(ravel__loader *l) {
    if (!l->refit) return;
    ravel__release(&l->refit->memory.allocator, l->intakes, (size_t)l->refit->streams.in_count * sizeof *l->intakes);
    ravel__release(&l->refit->memory.allocator, l->blocks, RAVEL__BATCH_MOST * sizeof *l->blocks);
    ravel__casts_free(l->casts);
    memset(l, 0, sizeof *l);
}

void ravel__loader_begin(ravel__loader *l, int64_t version, const char *active) {
    RAVEL_ASSERT(version > 0);
    l->version = version;
    l->status = RAVEL_OK;
    atomic_store(&l->failed, RAVEL_OK);
    ravel_error_clear(&l->why);
    l->waiting = 0;
    l->verify_ns = l->load_ns = l->kept_bytes = l->sparse_bytes = 0;
    for (int32_t i = 0; i < l->refit->streams.in_count; i++) {
        const ravel__stream *s = &l->refit->streams.in[i];
        l->intakes[i] = (ravel__intake){&l->refit->plan, s->first, active[i] ? s->count : 0, .role = "rank"};
        l->intakes[i].sender = s->sender;
        l->intakes[i].based = l->refit->stage.held.version > 0;
    }
}

/* ---- one entry ------------------------------------------------------------------------------------------ */

static ravel_status out_of_place(ravel__loader *l, int32_t sender, const char *what) {
    return ravel_error_set(&l->why, RAVEL_E_DATA, "a frame from rank %d %s", sender, what);
}

/* The block of an entry, which must continue where the last one ended. */
static ravel_status expect(ravel__loader *l, int32_t stream, const ravel__frame_entry *e, ravel__refit_block *b) {
    ravel__intake *in = &l->intakes[stream];
    if (ravel__intake_is_over(in) || e->slice != (uint64_t)in->at)
        return out_of_place(l, in->sender, "does not continue the one before");
    ravel_status status = ravel__intake_next(in, (int32_t)e->kind, e->count, e->size, e->hash, b, &l->why);
    if (status != RAVEL_OK || b->span.count == (int64_t)e->count) return status;
    return out_of_place(l, in->sender, "has another slice than was planned");
}

static int64_t bytes_of(const ravel__refit_block *b) {
    return b->span.count * ravel_dtype_bytes(b->dtype);
}

static void take_one(void *user, int64_t index, int32_t thread) {
    ravel__loader *l = user;
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t none = RAVEL_OK;
    (void)thread;
    RAVEL_ASSERT(index >= 0 && index < l->waiting);
    if (atomic_load(&l->failed) != RAVEL_OK) return;
    ravel_status status = ravel__block_decode(&l->refit->stage, &l->blocks[index], &why);
    if (status != RAVEL_OK && atomic_compare_exchange_strong(&l->failed, &none, (int32_t)status)) l->why = why;
}

/* Loads the queued blocks. Splits the elapsed time into verify and load as the threads spent theirs. */
static ravel_status take_waiting(ravel__loader *l, int64_t *covered) {
    RAVEL_ASSERT(l->waiting > 0 && l->waiting <= RAVEL__BATCH_MOST);
    int64_t begin = ravel__clock_ns(), verify = 0, load = 0;
    ravel__team_run(&l->team, l->waiting, take_one, l);
    int64_t passed = ravel__clock_ns() - begin;
    for (int32_t i = 0; i < l->waiting; i++) {
        const ravel__refit_block *b = &l->blocks[i];
        verify += b->verify_ns;
        load += b->load_ns;
        *covered += bytes_of(b);
        if (b->kind == RAVEL__BLOCK_KEEP) l->kept_bytes += bytes_of(b);
        if (b->kind == RAVEL__BLOCK_SPARSE) l->sparse_bytes += bytes_of(b);
    }
    double share = verify + load > 0 ? (double)verify / (double)(verify + load) : 0;
    l->verify_ns += (int64_t)((double)passed * share);
    l->load_ns += passed - (int64_t)((double)passed * share);
    l->waiting = 0;
    return (ravel_status)atomic_load(&l->failed);
}

/* The same for payloads in device memory, in two steps: adds the block, which is at byte `at`, to the next kernel,
 * which hashes and scatters. */
static ravel_status take_apart(ravel__loader *l, const ravel__refit_block *b, size_t at) {
    const ravel__stage *stage = &l->refit->stage;
    const ravel__view *view = &l->refit->sink_holding.items[b->span.item].view;
    RAVEL_ASSERT(l->casts && stage->now->direct);
    if (b->kind != RAVEL__BLOCK_DATA)
        return out_of_place(l, b->sender, "keeps elements, which frames over this wire cannot");
    if (b->size > RAVEL__CASTS_SPAN) return out_of_place(l, b->sender, "has a larger entry than the wire allows");
    ravel_status status = ravel__casts_span(l->casts, (int64_t)at, (int64_t)b->size, &l->why);
    if (status != RAVEL_OK) return status;
    return ravel__casts_add(l->casts, view, stage->now->target(stage, view->tensor), b->span.box, b->span.first,
                            b->span.count, b->dtype, (int64_t)at, &l->why);
}

/* Runs that kernel: entries l->settled on are in their place, or arrived changed. */
static ravel_status settle(ravel__loader *l, const ravel__refit_buffer *slot, int32_t stream, uint32_t entries) {
    const ravel__stream *s = &l->refit->streams.in[stream];
    const uint64_t *hashes = NULL;
    int64_t begin = ravel__clock_ns();
    ravel_status status =
        ravel__casts_run(l->casts, slot->buffer, (int64_t)ravel__frame_capacity(l->refit), 1, &hashes, &l->why);
    l->load_ns += ravel__clock_ns() - begin;
    ravel__casts_drop(l->casts);
    for (int64_t i = 0; l->settled < entries && status == RAVEL_OK; i++) {
        const ravel__frame_entry *e = &slot->head->entry[l->settled++];
        const ravel__want *want = &l->refit->plan.wants[s->first + e->slice];
        if (hashes[i] != e->hash)
            status =
                ravel_error_set(&l->why, RAVEL_E_CHECKSUM, "\"%s\": elements of its slice from rank %d arrived changed",
                                l->refit->sink_holding.items[want->item].name, s->sender);
    }
    return status;
}

/* Takes an entry whose payload is at byte `at`, or leaves it for take_waiting. */
static ravel_status take_entry(ravel__loader *l, int32_t stream, ravel__refit_buffer *slot, const ravel__frame_entry *e,
                               size_t at) {
    ravel__refit_block *b = &l->blocks[l->waiting];
    RAVEL_ASSERT(l->waiting < RAVEL__BATCH_MOST);
    ravel_status status = expect(l, stream, e, b);
    if (status != RAVEL_OK) return status;
    if (l->casts) {
        slot->covered += bytes_of(b);
        return take_apart(l, b, at);
    }
    b->bytes = e->size > 0 ? slot->data + at : NULL;
    l->waiting++;
    return l->waiting == (l->team.others > 0 ? RAVEL__BATCH_MOST : 1) ? take_waiting(l, &slot->covered) : RAVEL_OK;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

static ravel_status open_frame(ravel__loader *l, const ravel__refit_buffer *slot, int32_t stream) {
    const ravel__frame *f = slot->head;
    int32_t sender = l->refit->streams.in[stream].sender;
    if (slot->torn) return out_of_place(l, sender, "did not arrive whole");
    ravel_status status = ravel__frame_check_entries(f, l->refit->head_bytes, &l->why);
    if (status != RAVEL_OK) {
        ravel_error_prefix(&l->why, "from rank %d", sender);
        return status;
    }
    if (f->version != (uint64_t)l->version)
        return ravel_error_set(&l->why, RAVEL_E_DATA, "a frame from rank %d is of version %llu, not %lld", sender,
                               (unsigned long long)f->version, (long long)l->version);
    if (f->flags & RAVEL__FRAME_ABORT)
        return ravel_error_set(&l->why, RAVEL_E_END, "rank %d failed and ended its stream", sender);
    return RAVEL_OK;
}

void ravel__loader_take(ravel__loader *l, ravel__refit_buffer *slot, int32_t stream, int32_t index) {
    int64_t begin = ravel__clock_ns();
    size_t at = 0;
    RAVEL_ASSERT(stream >= 0 && stream < l->refit->streams.in_count);
    slot->covered = 0;
    l->settled = 0;
    if (l->status == RAVEL_OK) l->status = open_frame(l, slot, stream);
    for (uint32_t i = 0; l->status == RAVEL_OK && i < slot->head->entries; i++) {
        const ravel__frame_entry *e = &slot->head->entry[i];
        l->status = take_entry(l, stream, slot, e, at);
        at += ravel__frame_align((size_t)e->size);
        if (l->status == RAVEL_OK && l->casts && ravel__casts_full(l->casts))
            l->status = settle(l, slot, stream, i + 1);
    }
    if (l->casts && l->status == RAVEL_OK) l->status = settle(l, slot, stream, slot->head->entries);
    if (l->casts) ravel__casts_drop(l->casts);
    if (l->status == RAVEL_OK && l->waiting > 0) l->status = take_waiting(l, &slot->covered);
    l->waiting = 0;
    ravel__trace_add(&l->refit->trace, RAVEL_REFIT_LOAD, index, slot->number, begin, ravel__clock_ns(),
                     (int64_t)slot->head->bytes);
}

ravel_status ravel__loader_end(ravel__loader *l) {
    const ravel__streams *plan = &l->refit->streams;
    for (int32_t i = 0; i < plan->in_count && l->status == RAVEL_OK; i++)
        if (!ravel__intake_is_over(&l->intakes[i]))
            l->status = ravel_error_set(&l->why, RAVEL_E_DATA, "rank %d ended its stream before everything was sent",
                                        plan->in[i].sender);
    return l->status;
}
