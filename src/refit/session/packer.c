/* The packer: from tensors to frames. It goes through its streams in turn (streams.h), one frame each:
 *
 *     window 0                        window 1
 *     A0 B0 C0 | A1 B1 | A2           A0 B0 ...          B had two frames in the window, C one
 *
 * A frame takes slices until it is full, the window ends or the stream does. With delta, entries also end at block
 * boundaries, and a block whose hash is the one that was sent last becomes KEEP.
 *
 * A team packs several entries at once: offsets are planned as if none were KEEP, the team gathers and hashes, then the
 * entries are added in order, and those behind a KEEP move forward. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/xxh3.h"

#include <string.h>

enum {
    ROOM_LEAST = 2048, /* do not begin a slice in less room than this at the end of a frame */
    SAMPLE_BLOCKS = 16
};

static const double delta_most = 0.9; /* changed share of the sample above which comparing ends */

/* ---- create and free -----------------------------------------------------------------------------------------------
*/

ravel_status ravel__packer_init(ravel__packer *p, ravel_refit *refit, ravel_error *err) {
    size_t count = (size_t)refit->streams.out_count;
    ravel_status status = RAVEL_OK;
    *p = (ravel__packer){.refit = refit};
    ravel__slot_queue_init(&p->free);
    ravel__slot_queue_init(&p->ready);
    p->cursors = ravel__calloc(&refit->memory.allocator, count, sizeof *p->cursors);
    p->deltas = ravel__calloc(&refit->memory.allocator, count, sizeof *p->deltas);
    p->cuts = count > 0 ? ravel__calloc(&refit->memory.allocator, RAVEL__BATCH_MOST, sizeof *p->cuts) : NULL;
    if (count > 0 && (!p->cursors || !p->deltas || !p->cuts))
        return ravel__no_memory(err, count * sizeof *p->cursors, "streams");
    if (count > 0 && refit->data)
        status = ravel__payload_create(refit->source_holding.carrier, &refit->memory.allocator, &p->payload, err);
    return status == RAVEL_OK && count > 0 ? ravel__deltas_make(refit, p->deltas, err) : status;
}

void ravel__packer_free(ravel__packer *p) {
    if (!p->refit) return;
    const ravel_allocator *allocator = &p->refit->memory.allocator;
    size_t count = (size_t)p->refit->streams.out_count;
    ravel__release(allocator, p->cursors, count * sizeof *p->cursors);
    if (p->deltas) ravel__deltas_keep(p->refit, p->deltas, p->refit->streams.out_count);
    ravel__release(allocator, p->cuts, RAVEL__BATCH_MOST * sizeof *p->cuts);
    ravel__payload_free(p->payload);
    ravel__slot_queue_free(&p->free);
    ravel__slot_queue_free(&p->ready);
    memset(p, 0, sizeof *p);
}

void ravel__packer_begin(ravel__packer *p, ravel_refit_identity next, const char *active, const char *has_base) {
    RAVEL_ASSERT(next.version > 0);
    p->window = p->turn = 0;
    p->tensor = -1;
    p->next = next;
    p->status = RAVEL_OK;
    atomic_store(&p->failed, RAVEL_OK);
    ravel_error_clear(&p->why);
    p->iterate_ns = p->pack_ns = p->frames = 0;
    p->gave_up = 0;
    for (int32_t i = 0; i < p->refit->streams.out_count; i++) {
        p->cursors[i] = (ravel__out_cursor){.active = active[i], .ended = !active[i]};
        p->cursors[i].comparing = active[i] && p->deltas[i].sent && p->deltas[i].base.version > 0 && has_base[i];
    }
    ravel__slot_queue_reset(&p->free);
    ravel__slot_queue_reset(&p->ready);
}

void ravel__packer_end(ravel__packer *p, int committed) {
    for (int32_t i = 0; i < p->refit->streams.out_count && committed; i++) {
        ravel__delta *d = &p->deltas[i];
        if (!d->sent || !p->cursors[i].active) continue;
        uint64_t *swap = d->sent;
        d->sent = d->sending;
        d->sending = swap;
        d->base = p->next;
    }
}

/* ---- one entry ------------------------------------------------------------------------------------------ */

static ravel_status current_data(ravel__packer *p, int64_t tensor, const void **data) {
    RAVEL_ASSERT(tensor >= 0 && tensor < p->refit->source->count);
    const ravel_refit_source *source = p->refit->source;
    if (!source->iterate) {
        *data = source->tensors[tensor].data;
        return RAVEL_OK;
    }
    if (p->tensor != tensor) {
        int64_t begin = ravel__clock_ns();
        const void *made = NULL;
        ravel_status status = source->iterate(source->user, tensor, &made, &p->why);
        int64_t end = ravel__clock_ns();
        p->iterate_ns += end - begin;
        ravel__trace_add(&p->refit->trace, RAVEL_REFIT_ITERATE, -1, p->frames, begin, end, 0);
        if (status == RAVEL_OK && !made) status = RAVEL_E_CALLBACK;
        if (status != RAVEL_OK)
            return ravel_error_set(&p->why, RAVEL_E_CALLBACK, "the source's iterate failed for \"%s\"",
                                   source->tensors[tensor].name);
        p->tensor = tensor;
        p->data = made;
    }
    *data = p->data;
    return RAVEL_OK;
}

/* Bytes of a device, and bytes that need no conversion, go straight to the frame; others are assembled in scratch
 * memory first, since the frame is written past the cache. */
static ravel_status gather(ravel__packing *c, ravel_error *err) {
    RAVEL_ASSERT(c->place && c->data && c->count > 0 && c->each > 0 && c->each <= RAVEL__PACK_STEP);
    unsigned char scratch[RAVEL__PACK_STEP];
    const ravel__view *view = &c->item->view;
    ravel_status status = RAVEL_OK;
    ravel__xxh3 state;
    if (view->carrier) {
        status = ravel__view_gather(view, c->data, &c->box, c->first, c->count, c->slice->dtype, c->place, err);
        c->checksum = status == RAVEL_OK ? ravel__xxh3_of(c->place, (size_t)(c->count * c->each)) : 0;
        return status;
    }
    const void *direct = ravel__view_direct(view, c->data, &c->box, c->first, c->slice->dtype);
    int64_t step = RAVEL__PACK_STEP / c->each;
    ravel__xxh3_begin(&state);
    if (direct) ravel__xxh3_add_copy(&state, c->place, direct, (size_t)(c->count * c->each));
    for (int64_t done = 0; done < c->count && !direct && status == RAVEL_OK; done += step) {
        int64_t n = c->count - done < step ? c->count - done : step;
        status = ravel__view_gather(view, c->data, &c->box, c->first + done, n, c->slice->dtype, scratch, err);
        ravel__xxh3_add_copy(&state, c->place + done * c->each, scratch, (size_t)(n * c->each));
    }
    c->checksum = ravel__xxh3_end(&state);
    return status;
}

static void gather_one(void *user, int64_t index) {
    ravel__packer *p = user;
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t none = RAVEL_OK;
    ravel_status status = gather(&p->cuts[index], &why);
    if (status != RAVEL_OK && atomic_compare_exchange_strong(&p->failed, &none, (int32_t)status)) p->why = why;
}

/* Packs the payloads of the entries that were added since the last time. */
static ravel_status settle(ravel__packer *p, ravel__frame_writer *writer, const ravel__refit_buffer *slot) {
    RAVEL_ASSERT(slot->payload && p->settled <= writer->entries);
    const uint64_t *hashes = NULL;
    int64_t count = 0;
    ravel_status status =
        ravel__payload_run(p->payload, slot->payload, p->refit->terms.buffer_bytes, 0, &hashes, &count, &p->why);
    RAVEL_ASSERT(p->settled + (size_t)count == writer->entries);
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++)
        ravel__frame_set_checksum(writer, p->settled++, hashes[i]);
    return status;
}

/* Deferred gather: one kernel packs all entries of a frame. With source.iterate, a tensor is packed before the next one
 * is requested. */
static ravel_status gather_apart(ravel__packer *p, const ravel__packing *c, int64_t at) {
    return ravel__payload_add(p->payload, &c->item->view, c->data, &c->box, c->first, c->count, c->slice->dtype, at,
                              &p->why);
}

/* Whether the block is what was sent last; remembers it for the next time. */
static int unchanged(ravel__packer *p, int32_t stream, int64_t bytes, uint64_t checksum) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__delta *d = &p->deltas[stream];
    if (!d->sent) return 0;
    int64_t block = cursor->block++;
    RAVEL_ASSERT(block >= 0 && bytes > 0 && bytes <= d->block_bytes);
    RAVEL_ASSERT(block < d->blocks);
    int same = cursor->comparing && d->sent[block] == checksum;
    d->sending[block] = checksum;
    if (!cursor->comparing) return 0;
    cursor->compared += bytes;
    cursor->changed += same ? 0 : bytes;
    int64_t sample = d->blocks / 16 > SAMPLE_BLOCKS ? d->blocks / 16 : SAMPLE_BLOCKS;
    if (cursor->block == sample && (double)cursor->changed > delta_most * (double)cursor->compared) {
        cursor->comparing = 0;
        p->gave_up = 1;
    }
    return same;
}

/* Bytes of an entry, so that the whole team has work in each frame. */
static int64_t share_of(const ravel__packer *p) {
    int64_t share =
        (int64_t)ravel__frame_capacity(p->refit) / (2 * (p->team.others + 1)) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
    return share < RAVEL__SHARE_LEAST ? RAVEL__SHARE_LEAST : share;
}

/* How much of the cursor's slice goes into the frame: 0 where it is full. */
static int64_t choose_count(const ravel__packer *p, int32_t stream, const ravel__packing *c, size_t room, int begun) {
    const ravel__delta *d = &p->deltas[stream];
    int64_t left = (c->slice->count - c->first) * c->each, bytes = (int64_t)room;
    RAVEL_ASSERT(left > 0 && c->each > 0);
    if (p->payload && bytes > RAVEL__PAYLOAD_BLOCK) bytes = RAVEL__PAYLOAD_BLOCK;
    if (d->sent) {
        int64_t block = d->block_bytes - c->first * c->each % d->block_bytes;
        if (block > left) block = left;
        return block <= bytes ? block / c->each : 0;
    }
    if (left > bytes && begun && bytes < ROOM_LEAST) return 0;
    if (p->team.others > 0 && bytes > share_of(p)) bytes = share_of(p);
    return (left < bytes ? left : bytes) / c->each;
}

static ravel__packing cut_at(const ravel__packer *p, int32_t stream, const ravel__out_cursor *cursor) {
    const ravel_refit *refit = p->refit;
    RAVEL_ASSERT(cursor->slice < refit->streams.out[stream].slices);
    ravel__packing c = {.slice = &refit->streams.slices[refit->streams.out[stream].first + cursor->slice]};
    c.item = &refit->source_holding.items[c.slice->item];
    RAVEL_ASSERT(c.slice->item >= 0 && c.slice->item < refit->source_holding.count && cursor->first < c.slice->count);
    c.box = ravel__slice_box(&refit->streams, c.slice, c.item->ndim);
    c.each = ravel_dtype_bytes(c.slice->dtype);
    c.first = cursor->first;
    return c;
}

static void advance(ravel__out_cursor *cursor, const ravel__packing *c) {
    cursor->first += c->count;
    RAVEL_ASSERT(c->count > 0 && cursor->first <= c->slice->count);
    if (cursor->first < c->slice->count) return;
    cursor->slice++;
    cursor->first = 0;
}

static int has_more_at(const ravel__packer *p, int32_t stream, const ravel__out_cursor *cursor, int32_t window) {
    const ravel__stream *s = &p->refit->streams.out[stream];
    if (cursor->ended || cursor->slice == s->slices) return 0;
    return window < 0 || p->refit->streams.slices[s->first + cursor->slice].window == window;
}

static int has_more(const ravel__packer *p, int32_t stream, int32_t window) {
    return has_more_at(p, stream, &p->cursors[stream], window);
}

/* Plans the next entries of the frame, one where there is no team; 0: the frame is full, or the source failed. With
 * source.iterate, only entries of one tensor. */
static int32_t plan_cuts(ravel__packer *p, int32_t stream, const ravel__frame_writer *writer) {
    ravel__frame_writer w = *writer;
    ravel__out_cursor cursor = p->cursors[stream];
    int32_t count = 0, most = p->team.others > 0 && !p->payload ? RAVEL__BATCH_MOST : 1;
    while (count < most && has_more_at(p, stream, &cursor, p->window)) {
        ravel__packing c = cut_at(p, stream, &cursor);
        size_t room = ravel__frame_room(&w, &c.place);
        if (count > 0 && p->refit->source->iterate && c.item->view.tensor != p->tensor) break;
        c.count = choose_count(p, stream, &c, room, w.entries > 0);
        RAVEL_ASSERT(c.count >= 0 && c.first + c.count <= c.slice->count && (size_t)(c.count * c.each) <= room);
        if (c.count == 0) break;
        p->status = current_data(p, c.item->view.tensor, &c.data);
        if (p->status != RAVEL_OK) return 0;
        p->cuts[count++] = c;
        advance(&cursor, &c);
        w.end += ravel__round_up((size_t)(c.count * c.each), RAVEL__FRAME_ALIGN);
        w.entries++;
    }
    return count;
}

static void add_entry(ravel__packer *p, int32_t stream, const ravel__packing *c, ravel__frame_writer *writer) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    size_t bytes = (size_t)(c->count * c->each);
    ravel__frame_entry last, entry = {.tensor = (uint32_t)c->slice->tensor,
                                      .slice = (uint32_t)cursor->slice,
                                      .dtype = (uint16_t)c->slice->dtype,
                                      .first = (uint64_t)c->first,
                                      .count = (uint64_t)c->count,
                                      .checksum = c->checksum};
    if (!unchanged(p, stream, (int64_t)bytes, c->checksum)) {
        unsigned char *place;
        size_t room = ravel__frame_room(writer, &place);
        RAVEL_ASSERT(bytes <= room && place <= c->place);
        (void)room;
        if (place != c->place) memmove(place, c->place, bytes);
        ravel__frame_add(writer, &entry, bytes);
    } else {
        entry.kind = RAVEL__ENTRY_KEEP;
        entry.checksum = 0;
        if (ravel__frame_last(writer, &last) && last.kind == RAVEL__ENTRY_KEEP && last.slice == entry.slice)
            ravel__frame_keep_more(writer, entry.count);
        else
            ravel__frame_add(writer, &entry, 0);
    }
    RAVEL_ASSERT(cursor->first == c->first);
    advance(cursor, c);
}

/* Puts the next entries into the frame; 0: the frame is full, or packing failed. */
static int pack_entries(ravel__packer *p, int32_t stream, ravel__frame_writer *writer, int64_t *covered) {
    RAVEL_ASSERT(stream >= 0 && stream < p->refit->streams.out_count && p->cursors[stream].active);
    int32_t count = plan_cuts(p, stream, writer);
    if (count == 0) return 0;
    if (p->payload) {
        p->status = gather_apart(p, &p->cuts[0], (int64_t)writer->end);
    } else {
        ravel__team_run(&p->team, count, gather_one, p);
        p->status = (ravel_status)atomic_load(&p->failed);
    }
    for (int32_t i = 0; i < count && p->status == RAVEL_OK; i++) {
        add_entry(p, stream, &p->cuts[i], writer);
        *covered += p->cuts[i].count * p->cuts[i].each;
    }
    return p->status == RAVEL_OK;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

static void begin_frame(ravel__packer *p, ravel__frame_writer *writer, ravel__refit_buffer *slot) {
    RAVEL_ASSERT(slot->buffer && (!p->payload || slot->payload));
    size_t bytes = (size_t)p->refit->terms.buffer_bytes;
    slot->covered = slot->payload_bytes = 0;
    p->settled = 0;
    if (p->payload)
        ravel__frame_begin_apart(writer, slot->buffer, RAVEL__APART_BYTES, bytes);
    else
        ravel__frame_begin(writer, slot->buffer, bytes);
}

/* The stream that packs next, or -1 at the end. After a failure the order continues, so that receivers get ABORT frames
 * where they expect frames. */
static int32_t next_stream(ravel__packer *p) {
    int32_t count = p->refit->streams.out_count;
    RAVEL_ASSERT(p->window >= 0 && p->turn >= 0 && (count == 0 || p->turn < count));
    for (; p->window < p->refit->streams.windows; p->window++, p->turn = 0)
        for (int32_t tried = 0; tried < count; tried++) {
            int32_t stream = (p->turn + tried) % count;
            if (!has_more(p, stream, p->window)) continue;
            p->turn = (stream + 1) % count;
            return stream;
        }
    return -1;
}

static void close_frame(ravel__packer *p, int32_t stream, ravel__frame_writer *writer, ravel__refit_buffer *slot) {
    RAVEL_ASSERT(p->cursors[stream].active && !p->cursors[stream].ended);
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__frame_head head = {.window = (uint32_t)p->window,
                              .sequence = cursor->sequence++,
                              .version = (uint64_t)p->next.version,
                              .sender = (uint32_t)p->refit->rank};
    if (p->status != RAVEL_OK) head.flags = RAVEL__FRAME_FLAGS;
    if (!has_more(p, stream, p->window)) head.flags |= RAVEL__FRAME_LAST_OF_WINDOW;
    if (!has_more(p, stream, -1)) head.flags |= RAVEL__FRAME_LAST;
    cursor->ended = (head.flags & RAVEL__FRAME_LAST) != 0;
    RAVEL_ASSERT(!cursor->ended || (head.flags & RAVEL__FRAME_LAST_OF_WINDOW));
    slot->notice = (ravel__notice){head.flags, head.window, head.sequence, ravel__frame_end(writer, &head)};
    RAVEL_ASSERT(slot->notice.bytes <= (uint64_t)p->refit->terms.buffer_bytes);
    slot->stream = stream;
    slot->number = p->frames++;
    slot->data = slot->buffer;
    slot->torn = 0;
}

int ravel__packer_next(ravel__packer *p, ravel__refit_buffer *slot, int32_t index) {
    ravel__frame_writer writer;
    int64_t begin = ravel__clock_ns(), before = p->iterate_ns;
    int32_t stream = next_stream(p);
    if (stream < 0) return 0;
    begin_frame(p, &writer, slot);
    while (p->status == RAVEL_OK && has_more(p, stream, p->window) && pack_entries(p, stream, &writer, &slot->covered))
        if (p->payload && (p->refit->source->iterate || ravel__payload_full(p->payload)))
            p->status = settle(p, &writer, slot);
    if (p->payload && p->status == RAVEL_OK) p->status = settle(p, &writer, slot);
    if (p->payload) ravel__payload_drop(p->payload);
    if (p->status != RAVEL_OK) writer.entries = 0, writer.end = RAVEL__FRAME_HEADER;
    if (p->payload) slot->payload_bytes = (int64_t)writer.end - RAVEL__FRAME_HEADER;
    close_frame(p, stream, &writer, slot);
    int64_t end = ravel__clock_ns();
    p->pack_ns += end - begin - (p->iterate_ns - before);
    ravel__trace_add(&p->refit->trace, RAVEL_REFIT_PACK, index, slot->number, begin, end,
                     (int64_t)slot->notice.bytes + slot->payload_bytes);
    return 1;
}
