/* The packer: from tensors to frames. It goes through its streams in turn (streams.h), one frame each:
 *
 *     window 0                        window 1
 *     A0 B0 C0 | A1 B1 | A2           A0 B0 ...          B had two frames in the window, C one
 *
 * A frame takes slices until it is full, the window ends or the stream does. With delta, entries also end at block
 * boundaries, and a block whose hash is the one that was sent last becomes KEEP; a sender that keeps the elements of
 * what it sent sends those that changed (SPARSE), if that is less.
 *
 * A team packs several entries at once: offsets are planned as if all were whole, the team gathers, hashes and
 * compares, then the entries are added in order, and those behind a shorter one move forward. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <string.h>

enum { ROOM_LEAST = 2048 /* do not begin a slice in less room than this at the end of a frame */ };

/* ---- create and free --------------------------------------------------------------------------------------------- */

ravel_status ravel__packer_init(ravel__packer *p, ravel_refit *refit, ravel_error *err) {
    size_t count = (size_t)refit->streams.out_count;
    ravel_status status = RAVEL_OK;
    *p = (ravel__packer){.refit = refit};
    p->cursors = ravel__calloc(&refit->memory.allocator, count, sizeof *p->cursors);
    p->deltas = ravel__calloc(&refit->memory.allocator, count, sizeof *p->deltas);
    p->cuts = count > 0 ? ravel__calloc(&refit->memory.allocator, RAVEL__BATCH_MOST, sizeof *p->cuts) : NULL;
    if (count > 0 && (!p->cursors || !p->deltas || !p->cuts))
        return ravel__no_memory(err, count * sizeof *p->cursors, "streams");
    if (count > 0 && refit->data)
        status = ravel__casts_create(refit->source_holding.carrier, &refit->memory.allocator, &p->casts, err);
    return status == RAVEL_OK && count > 0 ? ravel__deltas_make(refit, p->deltas, err) : status;
}

void ravel__packer_free(ravel__packer *p) {
    if (!p->refit) return;
    const ravel_allocator *allocator = &p->refit->memory.allocator;
    size_t count = (size_t)p->refit->streams.out_count;
    ravel__release(allocator, p->cursors, count * sizeof *p->cursors);
    if (p->deltas) ravel__deltas_keep(p->refit, p->deltas, p->refit->streams.out_count);
    ravel__release(allocator, p->cuts, RAVEL__BATCH_MOST * sizeof *p->cuts);
    ravel__casts_free(p->casts);
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
    atomic_store(&p->ended, p->refit->streams.out_count == 0);
    for (int32_t i = 0; i < p->refit->streams.out_count; i++) {
        p->cursors[i] = (ravel__out_cursor){.active = active[i], .ended = !active[i]};
        p->cursors[i].comparing = active[i] && p->deltas[i].base.version > 0 && has_base[i];
    }
}

void ravel__packer_end(ravel__packer *p, int committed) {
    for (int32_t i = 0; i < p->refit->streams.out_count && committed; i++) {
        ravel__delta *d = &p->deltas[i];
        const ravel__packed swap = d->sent;
        if (!d->tiles.items || !p->cursors[i].active) continue;
        d->sent = d->fresh;
        d->fresh = swap;
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

/* With delta: what of an entry has to be sent, which is in d->fresh, if elements are kept, or in its place. */
static void choose_kind(ravel__packing *c) {
    const ravel__delta *d = c->delta;
    size_t bytes = (size_t)(c->count * c->each), count = (size_t)c->count, each = (size_t)c->each, less = 0, changed;
    d->fresh.hashes[c->block] = c->hash;
    if (c->comparing && d->sent.hashes[c->block] == c->hash) {
        c->kind = RAVEL__BLOCK_KEEP;
        c->size = 0;
        return;
    }
    if (!d->fresh.bytes) return;
    const unsigned char *fresh = d->fresh.bytes + c->at, *sent = d->sent.bytes + c->at;
    const unsigned char *read = /* in the cache, if it lies as it travels */
        ravel__view_direct(&c->item->view, c->data, &c->slice->box, c->first, c->slice->dtype);
    if (!read) read = fresh;
    if (c->comparing && c->slice->flags & RAVEL__ASK_SPARSE && ravel__sparse_pays(sent, read, count, each))
        less = ravel__sparse_encode(sent, read, count, each, c->place, &changed);
    if (less > 0)
        c->kind = RAVEL__BLOCK_SPARSE, c->size = less;
    else
        memcpy(c->place, fresh, bytes);
}

/* One entry of the frame: gathers, casts and hashes it. */
static void gather_one(void *user, int64_t index, int32_t thread) {
    ravel__packer *p = user;
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t none = RAVEL_OK;
    (void)thread;
    ravel__packing *c = &p->cuts[index];
    unsigned char *to = c->delta->fresh.bytes ? c->delta->fresh.bytes + c->at : c->place;
    ravel_status status = ravel__block_encode(&c->item->view, c->data, &c->slice->box, c->first, c->count,
                                              c->slice->dtype, to, &c->hash, &why);
    if (status != RAVEL_OK && atomic_compare_exchange_strong(&p->failed, &none, (int32_t)status)) p->why = why;
    c->kind = RAVEL__BLOCK_DATA;
    c->size = (size_t)(c->count * c->each);
    if (status == RAVEL_OK && c->delta->tiles.items) choose_kind(c);
}

/* Packs the payloads of the entries that were added since the last time. */
static ravel_status settle(ravel__packer *p, const ravel__refit_buffer *slot) {
    RAVEL_ASSERT(slot->buffer && p->settled <= slot->head->entries);
    const uint64_t *hashes = NULL;
    ravel_status status =
        ravel__casts_run(p->casts, slot->buffer, (int64_t)ravel__frame_capacity(p->refit), 0, &hashes, &p->why);
    while (status == RAVEL_OK && p->settled < slot->head->entries) slot->head->entry[p->settled++].hash = *hashes++;
    ravel__casts_drop(p->casts);
    return status;
}

/* Deferred gather: one kernel packs all entries of a frame. With source.iterate, a tensor is packed before the next one
 * is requested. */
static ravel_status gather_apart(ravel__packer *p, ravel__packing *c) {
    c->kind = RAVEL__BLOCK_DATA;
    c->size = (size_t)(c->count * c->each);
    ravel_status status = ravel__casts_span(p->casts, (int64_t)p->end, (int64_t)c->size, &p->why);
    if (status != RAVEL_OK) return status;
    return ravel__casts_add(p->casts, &c->item->view, c->data, &c->slice->box, c->first, c->count, c->slice->dtype,
                            (int64_t)p->end, &p->why);
}

/* Bytes of an entry, so that the whole team has work in each frame. */
static int64_t share_of(const ravel__packer *p) {
    int64_t share =
        (int64_t)ravel__frame_capacity(p->refit) / (2 * (p->team.others + 1)) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
    return share < RAVEL__SHARE_LEAST ? RAVEL__SHARE_LEAST : share;
}

/* How much of the cursor's slice goes into the frame: 0 where it is full. */
static int64_t choose_count(const ravel__packer *p, const ravel__packing *c, size_t room, int begun) {
    const ravel__delta *d = c->delta;
    int64_t left = (c->slice->count - c->first) * c->each, bytes = (int64_t)room;
    RAVEL_ASSERT(left > 0 && c->each > 0);
    if (p->casts && bytes > RAVEL__CASTS_SPAN) bytes = RAVEL__CASTS_SPAN;
    if (bytes < c->each) return 0;
    if (d->tiles.items) {
        int64_t count = ravel__tile_count(&d->tiles.items[c->number], c->block);
        return count * c->each <= bytes ? count : 0;
    }
    if (left > bytes && begun && bytes < ROOM_LEAST) return 0;
    if (p->team.others > 0 && bytes > share_of(p)) bytes = share_of(p);
    return (left < bytes ? left : bytes) / c->each;
}

static ravel__packing cut_at(const ravel__packer *p, int32_t stream, const ravel__out_cursor *cursor) {
    const ravel_refit *refit = p->refit;
    RAVEL_ASSERT(cursor->slice < refit->streams.out[stream].count);
    ravel__packing c = {.slice = &refit->streams.out[stream].asked[cursor->slice], .delta = &p->deltas[stream]};
    c.item = &refit->source_holding.items[c.slice->item];
    RAVEL_ASSERT(c.slice->item >= 0 && c.slice->item < refit->source_holding.count && cursor->first < c.slice->count);
    c.each = ravel_dtype_bytes(c.slice->dtype);
    c.first = cursor->first;
    c.number = cursor->slice;
    c.comparing = cursor->comparing;
    if (!c.delta->tiles.items) return c;
    const ravel__tile_item *tile = &c.delta->tiles.items[cursor->slice];
    c.block = tile->first_block + c.first / tile->per_block;
    c.at = tile->at + c.first * c.each;
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
    if (cursor->ended || cursor->slice == s->count) return 0;
    return window < 0 || p->refit->streams.window_of[s->asked[cursor->slice].tensor] == window;
}

static int has_more(const ravel__packer *p, int32_t stream, int32_t window) {
    return has_more_at(p, stream, &p->cursors[stream], window);
}

/* Plans the next entries of the frame, one where there is no team; 0: the frame is full, or the source failed. With
 * source.iterate, only entries of one tensor. */
static int32_t plan_cuts(ravel__packer *p, int32_t stream, const ravel__refit_buffer *slot) {
    ravel__out_cursor cursor = p->cursors[stream];
    size_t end = p->end, capacity = ravel__frame_capacity(p->refit);
    int32_t count = 0, most = p->team.others > 0 && !p->casts ? RAVEL__BATCH_MOST : 1;
    int32_t left = (int32_t)(ravel__frame_entries_most(p->refit->head_bytes) - slot->head->entries);
    while (count < most && count < left && has_more_at(p, stream, &cursor, p->window)) {
        ravel__packing c = cut_at(p, stream, &cursor);
        if (count > 0 && p->refit->source->iterate && c.item->view.tensor != p->tensor) break;
        c.place = slot->buffer + end;
        c.count = choose_count(p, &c, capacity - end, end > 0);
        RAVEL_ASSERT(c.count >= 0 && c.first + c.count <= c.slice->count);
        if (c.count == 0) break;
        p->status = current_data(p, c.item->view.tensor, &c.data);
        if (p->status != RAVEL_OK) return 0;
        p->cuts[count++] = c;
        advance(&cursor, &c);
        end += ravel__frame_align((size_t)(c.count * c.each));
        RAVEL_ASSERT(end <= capacity);
    }
    return count;
}

static void add_entry(ravel__packer *p, int32_t stream, const ravel__packing *c, const ravel__refit_buffer *slot) {
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__frame *f = slot->head;
    ravel__frame_entry *last = f->entries > 0 ? &f->entry[f->entries - 1] : NULL;
    const ravel__frame_entry e = {(uint32_t)c->kind, (uint32_t)cursor->slice, (uint64_t)c->count, c->size,
                                  c->kind == RAVEL__BLOCK_KEEP ? 0 : c->hash};
    RAVEL_ASSERT(cursor->first == c->first && f->entries < ravel__frame_entries_most(p->refit->head_bytes));
    if (!p->casts && slot->buffer + p->end != c->place) memmove(slot->buffer + p->end, c->place, c->size);
    p->end += ravel__frame_align(c->size);
    if (e.kind == RAVEL__BLOCK_KEEP && last && last->kind == RAVEL__BLOCK_KEEP && last->slice == e.slice)
        last->count += e.count;
    else
        f->entry[f->entries++] = e;
    advance(cursor, c);
}

/* Puts the next entries into the frame; 0: the frame is full, or packing failed. */
static int pack_entries(ravel__packer *p, int32_t stream, ravel__refit_buffer *slot) {
    RAVEL_ASSERT(stream >= 0 && stream < p->refit->streams.out_count && p->cursors[stream].active);
    int32_t count = plan_cuts(p, stream, slot);
    if (count == 0) return 0;
    if (p->casts) {
        p->status = gather_apart(p, &p->cuts[0]);
    } else {
        ravel__team_run(&p->team, count, gather_one, p);
        p->status = (ravel_status)atomic_load(&p->failed);
    }
    for (int32_t i = 0; i < count && p->status == RAVEL_OK; i++) {
        add_entry(p, stream, &p->cuts[i], slot);
        slot->covered += p->cuts[i].count * p->cuts[i].each;
    }
    return p->status == RAVEL_OK;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

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

static void close_frame(ravel__packer *p, int32_t stream, ravel__refit_buffer *slot) {
    RAVEL_ASSERT(p->cursors[stream].active && !p->cursors[stream].ended);
    ravel__out_cursor *cursor = &p->cursors[stream];
    ravel__frame *f = slot->head;
    f->window = (uint32_t)p->window;
    f->sequence = cursor->sequence++;
    f->version = (uint64_t)p->next.version;
    f->sender = (uint32_t)p->refit->rank;
    f->flags = p->status != RAVEL_OK ? RAVEL__FRAME_FLAGS : 0;
    if (p->status != RAVEL_OK) f->entries = 0, p->end = 0;
    if (!has_more(p, stream, p->window)) f->flags |= RAVEL__FRAME_LAST_OF_WINDOW;
    if (!has_more(p, stream, -1)) f->flags |= RAVEL__FRAME_LAST;
    f->bytes = p->end;
    cursor->ended = (f->flags & RAVEL__FRAME_LAST) != 0;
    RAVEL_ASSERT(!cursor->ended || (f->flags & RAVEL__FRAME_LAST_OF_WINDOW));
    ravel__frame_seal(f, p->refit->head_bytes);
    slot->stream = stream;
    slot->number = p->frames++;
    slot->data = slot->buffer;
    slot->torn = 0;
}

int ravel__packer_next(ravel__packer *p, ravel__refit_buffer *slot, int32_t index) {
    int64_t begin = ravel__clock_ns(), before = p->iterate_ns;
    int32_t stream = next_stream(p);
    if (stream < 0) return 0;
    slot->covered = 0;
    slot->head->entries = p->settled = 0;
    p->end = 0;
    while (p->status == RAVEL_OK && has_more(p, stream, p->window) && pack_entries(p, stream, slot))
        if (p->casts && (p->refit->source->iterate || ravel__casts_full(p->casts))) p->status = settle(p, slot);
    if (p->casts && p->status == RAVEL_OK) p->status = settle(p, slot);
    if (p->casts) ravel__casts_drop(p->casts);
    close_frame(p, stream, slot);
    int64_t end = ravel__clock_ns();
    p->pack_ns += end - begin - (p->iterate_ns - before);
    ravel__trace_add(&p->refit->trace, RAVEL_REFIT_PACK, index, slot->number, begin, end, (int64_t)slot->head->bytes);
    return 1;
}
