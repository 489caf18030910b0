/* The packer: from tensors to frames. It goes through its streams in turn (plan.h), one frame each:
 *
 *     window 0                        window 1
 *     A0 B0 C0 | A1 B1 | A2           A0 B0 ...          B had two frames in the window, C one
 *
 * A frame takes slices until it is full, the window ends or the stream does. With delta, entries also end at block
 * boundaries, and a block whose hash is the one that was sent last becomes KEEP. */
#include "refit/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/xxh3.h"

#include <string.h>

enum {
    CRUMB = 2048, /* do not begin a slice in less room than this at the end of a frame */
    SAMPLE_BLOCKS = 16
};

/* ---- life ----------------------------------------------------------------------------------------------- */

static size_t capacity(const ravel_refit *refit) {
    return ((size_t)refit->terms.buffer_bytes - RAVEL__FRAME_HEADER - RAVEL__FRAME_ENTRY) / RAVEL__FRAME_ALIGN *
           RAVEL__FRAME_ALIGN;
}

/* Blocks are as large as wanted, as fits a frame, and as keeps their hashes few. */
static int64_t block_bytes(const ravel_refit *refit, const ravel__stream *s) {
    enum { HASHES_MOST = 32768, DEFAULT = 256 * 1024 };
    int64_t bytes = refit->options.delta_block > 0 ? refit->options.delta_block : DEFAULT;
    int64_t most = (int64_t)capacity(refit);
    if (refit->options.delta_block == 0 && s->bytes / HASHES_MOST > bytes) bytes = s->bytes / HASHES_MOST;
    if (bytes > most) bytes = most;
    bytes -= bytes % RAVEL__FRAME_ALIGN;
    return bytes < RAVEL__FRAME_ALIGN ? RAVEL__FRAME_ALIGN : bytes;
}

static ravel_status init_delta(ravel__packer *p, int32_t stream, ravel_error *err) {
    ravel_refit *refit = p->refit;
    const ravel__stream *s = &refit->plan.out[stream];
    ravel__delta *d = &p->deltas[stream];
    d->block_bytes = block_bytes(refit, s);
    for (int64_t i = 0; i < s->slices; i++) {
        const ravel__slice *slice = &refit->plan.slices[s->first + i];
        int64_t bytes = slice->count * ravel_dtype_bytes(slice->dtype);
        d->blocks += (bytes + d->block_bytes - 1) / d->block_bytes;
    }
    d->sent = ravel__calloc(&refit->memory.allocator, (size_t)d->blocks * 2, sizeof *d->sent);
    if (!d->sent) return ravel__no_memory(err, (size_t)d->blocks * 2 * sizeof *d->sent, "the hashes of sent blocks");
    d->sending = d->sent + d->blocks;
    return RAVEL_OK;
}

ravel_status ravel__packer_init(ravel__packer *p, ravel_refit *refit, ravel_error *err) {
    size_t count = (size_t)refit->plan.out_count;
    ravel_status status = RAVEL_OK;
    *p = (ravel__packer){.refit = refit};
    ravel__lane_init(&p->free);
    ravel__lane_init(&p->ready);
    p->cursors = ravel__calloc(&refit->memory.allocator, count, sizeof *p->cursors);
    p->deltas = ravel__calloc(&refit->memory.allocator, count, sizeof *p->deltas);
    p->scratch = count > 0 ? ravel__alloc(&refit->memory.allocator, RAVEL__PACK_STEP) : NULL;
    if (count > 0 && (!p->cursors || !p->deltas || !p->scratch))
        return ravel__no_memory(err, count * sizeof *p->cursors, "streams");
    if (count > 0 && refit->data)
        status = ravel__payload_create(refit->source_holding.carrier, &refit->memory.allocator, &p->payload, err);
    for (int32_t i = 0; i < refit->plan.out_count && refit->options.delta && status == RAVEL_OK; i++)
        status = init_delta(p, i, err);
    return status;
}

void ravel__packer_free(ravel__packer *p) {
    if (!p->refit) return;
    const ravel_allocator *allocator = &p->refit->memory.allocator;
    size_t count = (size_t)p->refit->plan.out_count;
    for (size_t i = 0; p->deltas && i < count; i++) {
        ravel__delta *d = &p->deltas[i];
        uint64_t *first = d->sent < d->sending ? d->sent : d->sending;
        if (d->sent) ravel__release(allocator, first, (size_t)d->blocks * 2 * sizeof *first);
    }
    ravel__release(allocator, p->cursors, count * sizeof *p->cursors);
    ravel__release(allocator, p->deltas, count * sizeof *p->deltas);
    ravel__release(allocator, p->scratch, RAVEL__PACK_STEP);
    ravel__payload_free(p->payload);
    ravel__lane_free(&p->free);
    ravel__lane_free(&p->ready);
    memset(p, 0, sizeof *p);
}

void ravel__packer_begin(ravel__packer *p, ravel_refit_identity next, const char *active, const char *has_base) {
    p->window = p->turn = 0;
    p->tensor = -1;
    p->next = next;
    p->status = RAVEL_OK;
    ravel_error_clear(&p->why);
    p->iterate_ns = p->pack_ns = p->frames = 0;
    p->gave_up = 0;
    for (int32_t i = 0; i < p->refit->plan.out_count; i++) {
        p->cursors[i] = (ravel__out_cursor){.active = active[i], .ended = !active[i]};
        p->cursors[i].comparing = active[i] && p->deltas[i].sent && p->deltas[i].base.version > 0 && has_base[i];
    }
    ravel__lane_reset(&p->free);
    ravel__lane_reset(&p->ready);
}

void ravel__packer_end(ravel__packer *p, int committed) {
    for (int32_t i = 0; i < p->refit->plan.out_count && committed; i++) {
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

typedef struct cut {
    const ravel__slice *slice;
    const ravel__item *item;
    ravel__box box;
    int64_t first, count, each; /* elements, and their bytes on the wire */
} cut;

/* Bytes of a device, and bytes that need no conversion, go straight to the frame; others are assembled in scratch
 * memory first, since the frame is written past the cache. */
static ravel_status gather(ravel__packer *p, const cut *c, unsigned char *out, uint64_t *checksum) {
    const void *data = NULL;
    ravel__xxh3 state;
    ravel_status status = current_data(p, c->item->view.tensor, &data);
    if (status != RAVEL_OK) return status;
    if (c->item->view.carrier) {
        status = ravel__view_gather(&c->item->view, data, &c->box, c->first, c->count, c->slice->dtype, out, &p->why);
        *checksum = status == RAVEL_OK ? ravel__xxh3_of(out, (size_t)(c->count * c->each)) : 0;
        return status;
    }
    const void *direct = ravel__view_direct(&c->item->view, data, &c->box, c->first, c->slice->dtype);
    int64_t step = RAVEL__PACK_STEP / c->each;
    ravel__xxh3_begin(&state);
    if (direct) ravel__xxh3_add_copy(&state, out, direct, (size_t)(c->count * c->each));
    for (int64_t done = 0; done < c->count && !direct && status == RAVEL_OK; done += step) {
        int64_t n = c->count - done < step ? c->count - done : step;
        status =
            ravel__view_gather(&c->item->view, data, &c->box, c->first + done, n, c->slice->dtype, p->scratch, &p->why);
        ravel__xxh3_add_copy(&state, out + done * c->each, p->scratch, (size_t)(n * c->each));
    }
    *checksum = ravel__xxh3_end(&state);
    return status;
}

/* Packs the payloads of the entries that were added since the last time. */
static ravel_status settle(ravel__packer *p, ravel__frame_writer *writer, const ravel__refit_buffer *slot) {
    const uint64_t *hashes = NULL;
    int64_t count = 0;
    ravel_status status =
        ravel__payload_run(p->payload, slot->payload, p->refit->terms.buffer_bytes, 0, &hashes, &count, &p->why);
    RAVEL_ASSERT(p->settled + (size_t)count == writer->entries);
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++)
        ravel__frame_set_checksum(writer, p->settled++, hashes[i]);
    return status;
}

/* The same as gather, later: one kernel takes all entries of a frame. What a source makes tensor by tensor is taken before it
 * makes the next. */
static ravel_status gather_apart(ravel__packer *p, const cut *c, int64_t at) {
    const void *data = NULL;
    ravel_status status = current_data(p, c->item->view.tensor, &data);
    if (status != RAVEL_OK) return status;
    return ravel__payload_add(p->payload, &c->item->view, data, &c->box, c->first, c->count, c->slice->dtype, at,
                              &p->why);
}

/* Whether the block is what was sent last; remembers it for the next time. */
static int unchanged(ravel__packer *p, int32_t stream, int64_t bytes, uint64_t checksum) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__delta *d = &p->deltas[stream];
    if (!d->sent) return 0;
    int64_t block = cursor->block++;
    RAVEL_ASSERT(block < d->blocks);
    int same = cursor->comparing && d->sent[block] == checksum;
    d->sending[block] = checksum;
    if (!cursor->comparing) return 0;
    cursor->compared += bytes;
    cursor->changed += same ? 0 : bytes;
    int64_t sample = d->blocks / 16 > SAMPLE_BLOCKS ? d->blocks / 16 : SAMPLE_BLOCKS;
    if (cursor->block == sample && (double)cursor->changed > p->refit->options.delta_most * (double)cursor->compared) {
        cursor->comparing = 0;
        p->gave_up = 1;
    }
    return same;
}

/* How much of the cursor's slice goes into the frame: 0 where it is full. */
static int64_t choose_count(const ravel__packer *p, int32_t stream, const cut *c, size_t room, int begun) {
    const ravel__delta *d = &p->deltas[stream];
    int64_t left = (c->slice->count - c->first) * c->each, bytes = (int64_t)room;
    if (p->payload && bytes > RAVEL__PAYLOAD_BLOCK) bytes = RAVEL__PAYLOAD_BLOCK;
    if (d->sent) {
        int64_t block = d->block_bytes - c->first * c->each % d->block_bytes;
        if (block > left) block = left;
        return block <= bytes ? block / c->each : 0;
    }
    if (left <= bytes) return left / c->each;
    return begun && bytes < CRUMB ? 0 : bytes / c->each;
}

static cut cut_at(const ravel__packer *p, int32_t stream) {
    const ravel_refit *refit = p->refit;
    const ravel__out_cursor *cursor = &p->cursors[stream];
    cut c = {.slice = &refit->plan.slices[refit->plan.out[stream].first + cursor->slice]};
    c.item = &refit->source_holding.items[c.slice->item];
    c.box = ravel__slice_box(&refit->plan, c.slice, c.item->ndim);
    c.each = ravel_dtype_bytes(c.slice->dtype);
    c.first = cursor->first;
    return c;
}

/* Puts the next entry into the frame; 0: the frame is full, or packing failed. */
static int pack_entry(ravel__packer *p, int32_t stream, ravel__frame_writer *writer, int64_t *covered) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    cut c = cut_at(p, stream);
    unsigned char *place;
    uint64_t checksum = 0;
    size_t room = ravel__frame_room(writer, &place);
    c.count = choose_count(p, stream, &c, room, writer->entries > 0);
    RAVEL_ASSERT(c.count >= 0 && c.first + c.count <= c.slice->count && (size_t)(c.count * c.each) <= room);
    if (c.count == 0) return 0;
    p->status = p->payload ? gather_apart(p, &c, (int64_t)writer->end) : gather(p, &c, place, &checksum);
    if (p->status != RAVEL_OK) return 0;
    ravel__frame_entry last, entry = {.tensor = (uint32_t)c.slice->tensor,
                                      .slice = (uint32_t)cursor->slice,
                                      .dtype = (uint16_t)c.slice->dtype,
                                      .first = (uint64_t)c.first,
                                      .count = (uint64_t)c.count,
                                      .checksum = checksum};
    if (!unchanged(p, stream, c.count * c.each, checksum)) {
        ravel__frame_add(writer, &entry, (size_t)(c.count * c.each));
    } else {
        entry.kind = RAVEL__ENTRY_KEEP;
        entry.checksum = 0;
        if (ravel__frame_last(writer, &last) && last.kind == RAVEL__ENTRY_KEEP && last.slice == entry.slice)
            ravel__frame_keep_more(writer, entry.count);
        else
            ravel__frame_add(writer, &entry, 0);
    }
    *covered += c.count * c.each;
    cursor->first += c.count;
    if (cursor->first == c.slice->count) {
        cursor->slice++;
        cursor->first = 0;
    }
    return 1;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

static void begin_frame(ravel__packer *p, ravel__frame_writer *writer, ravel__refit_buffer *slot) {
    size_t bytes = (size_t)p->refit->terms.buffer_bytes;
    slot->covered = slot->payload_bytes = 0;
    p->settled = 0;
    if (p->payload)
        ravel__frame_begin_apart(writer, slot->buffer, RAVEL__APART_BYTES, bytes);
    else
        ravel__frame_begin(writer, slot->buffer, bytes);
}

static int has_more(const ravel__packer *p, int32_t stream, int32_t window) {
    const ravel__stream *s = &p->refit->plan.out[stream];
    const ravel__out_cursor *cursor = &p->cursors[stream];
    if (cursor->ended || cursor->slice == s->slices) return 0;
    return window < 0 || p->refit->plan.slices[s->first + cursor->slice].window == window;
}

/* The stream whose turn it is, or -1 at the end of everything. After a failure the turns go on, so that the ABORT frames
 * come when the receivers expect frames. */
static int32_t next_stream(ravel__packer *p) {
    int32_t count = p->refit->plan.out_count;
    for (; p->window < p->refit->plan.windows; p->window++, p->turn = 0)
        for (int32_t tried = 0; tried < count; tried++) {
            int32_t stream = (p->turn + tried) % count;
            if (!has_more(p, stream, p->window)) continue;
            p->turn = (stream + 1) % count;
            return stream;
        }
    return -1;
}

static void close_frame(ravel__packer *p, int32_t stream, ravel__frame_writer *writer, ravel__refit_buffer *slot) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__frame_head head = {.window = (uint32_t)p->window,
                              .sequence = cursor->sequence++,
                              .version = (uint64_t)p->next.version,
                              .sender = (uint32_t)p->refit->rank};
    if (p->status != RAVEL_OK) head.flags = RAVEL__FRAME_FLAGS;
    if (!has_more(p, stream, p->window)) head.flags |= RAVEL__FRAME_LAST_OF_WINDOW;
    if (!has_more(p, stream, -1)) head.flags |= RAVEL__FRAME_LAST;
    cursor->ended = (head.flags & RAVEL__FRAME_LAST) != 0;
    slot->notice = (ravel__notice){head.flags, head.window, head.sequence, ravel__frame_end(writer, &head)};
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
    while (p->status == RAVEL_OK && has_more(p, stream, p->window) && pack_entry(p, stream, &writer, &slot->covered))
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
