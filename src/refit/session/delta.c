/* Delta: hashes of the blocks that a stream sent last, and with options.sparse their elements.
 *
 * They are kept across connections: when ranks join or leave, a stream with the same slices reuses its hashes, and
 * receivers that hold its base version get only changed blocks. The signature identifies the slices. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <string.h>

size_t ravel__frame_capacity(const ravel_refit *refit) {
    RAVEL_ASSERT((size_t)refit->terms.buffer_bytes > refit->head_bytes + RAVEL__FRAME_ALIGN);
    return ((size_t)refit->terms.buffer_bytes - refit->head_bytes) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
}

/* Block size: as configured, limited by a frame, and large enough to bound the number of hashes. */
static int64_t block_bytes(const ravel_refit *refit, const ravel__stream *s) {
    enum { HASHES_MOST = 32768, DEFAULT = 256 * 1024 };
    int64_t bytes = refit->options.delta_block > 0 ? refit->options.delta_block : DEFAULT;
    int64_t most = (int64_t)ravel__frame_capacity(refit);
    if (refit->options.delta_block == 0 && s->bytes / HASHES_MOST > bytes) bytes = s->bytes / HASHES_MOST;
    if (bytes > most) bytes = most;
    bytes -= bytes % RAVEL__FRAME_ALIGN;
    RAVEL_ASSERT(bytes >= 0 && bytes % RAVEL__FRAME_ALIGN == 0 && bytes <= most);
    return bytes < RAVEL__FRAME_ALIGN ? RAVEL__FRAME_ALIGN : bytes;
}

/* Hash of everything that determines the bytes of a block. */
static uint64_t signature_of(const ravel_refit *refit, const ravel__stream *s, int64_t block) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, &block, sizeof block);
    for (int64_t i = 0; i < s->count; i++) {
        const ravel__asked *slice = &s->asked[i];
        const ravel__item *item = &refit->source_holding.items[slice->item];
        size_t dims = (size_t)item->ndim * sizeof slice->box.start[0];
        int64_t numbers[3] = {slice->count, slice->dtype, item->ndim};
        ravel__xxh3_add(&state, item->name, strlen(item->name) + 1);
        ravel__xxh3_add(&state, numbers, sizeof numbers);
        ravel__xxh3_add(&state, slice->box.start, dims);
        ravel__xxh3_add(&state, slice->box.extent, dims);
    }
    return ravel__xxh3_end(&state);
}

static void drop(const ravel_refit *refit, ravel__delta *deltas, int32_t count) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    for (int32_t i = 0; i < count; i++) {
        ravel__packed_free(&deltas[i].tiles, allocator, &deltas[i].sent);
        ravel__packed_free(&deltas[i].tiles, allocator, &deltas[i].fresh);
        ravel__tiles_free(&deltas[i].tiles, allocator);
    }
    ravel__release(allocator, deltas, (size_t)count * sizeof *deltas);
}

void ravel__deltas_forget(ravel_refit *refit) {
    if (refit->kept_deltas) drop(refit, refit->kept_deltas, refit->kept_count);
    refit->kept_deltas = NULL;
    refit->kept_count = 0;
}

void ravel__deltas_keep(ravel_refit *refit, ravel__delta *deltas, int32_t count) {
    RAVEL_ASSERT(count >= 0 && deltas != refit->kept_deltas);
    ravel__deltas_forget(refit);
    refit->kept_deltas = deltas;
    refit->kept_count = deltas ? count : 0;
}

/* The newest kept one of the same slices moves to `d`; 0: there is none. */
static int find_kept(ravel_refit *refit, uint64_t signature, ravel__delta *d) {
    ravel__delta *found = NULL;
    for (int32_t i = 0; i < refit->kept_count; i++) {
        ravel__delta *k = &refit->kept_deltas[i];
        if (!k->tiles.items || k->signature != signature) continue;
        if (!found || k->base.version > found->base.version) found = k;
    }
    if (!found) return 0;
    *d = *found;
    *found = (ravel__delta){0};
    return 1;
}

static ravel_status make_one(ravel_refit *refit, const ravel__stream *s, ravel__delta *d, ravel_error *err) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    int64_t bytes = block_bytes(refit, s);
    uint64_t signature = signature_of(refit, s, bytes);
    RAVEL_ASSERT(!d->tiles.items && bytes >= RAVEL__FRAME_ALIGN);
    if (find_kept(refit, signature, d)) return RAVEL_OK;
    d->signature = signature;
    ravel_status status = ravel__tiles_make(&d->tiles, s->count, bytes, allocator, err);
    for (int64_t i = 0; i < s->count && status == RAVEL_OK; i++)
        ravel__tiles_add(&d->tiles, &s->asked[i].box, s->asked[i].dtype);
    int all = refit->options.sparse;
    if (status == RAVEL_OK && (!ravel__packed_make(&d->tiles, all, allocator, &d->sent) ||
                               !ravel__packed_make(&d->tiles, all, allocator, &d->fresh)))
        status =
            ravel__no_memory(err, (size_t)(all ? 2 * d->tiles.bytes : d->tiles.blocks), "what was sent, for delta");
    return status;
}

ravel_status ravel__deltas_make(ravel_refit *refit, ravel__delta *deltas, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < refit->streams.out_count && refit->options.delta && status == RAVEL_OK; i++)
        status = make_one(refit, &refit->streams.out[i], &deltas[i], err);
    ravel__deltas_forget(refit);
    return status;
}
