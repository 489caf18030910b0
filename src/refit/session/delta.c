/* Delta: hashes of the blocks that a stream sent last.
 *
 * Hashes are kept across connections: when ranks join or leave, a stream with the same slices reuses its hashes, and
 * receivers that hold its base version get only changed blocks. The signature identifies the slices. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <string.h>

size_t ravel__frame_capacity(const ravel_refit *refit) {
    RAVEL_ASSERT(refit->terms.buffer_bytes > RAVEL__FRAME_HEADER + RAVEL__FRAME_ENTRY + RAVEL__FRAME_ALIGN);
    return ((size_t)refit->terms.buffer_bytes - RAVEL__FRAME_HEADER - RAVEL__FRAME_ENTRY) / RAVEL__FRAME_ALIGN *
           RAVEL__FRAME_ALIGN;
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
    for (int64_t i = 0; i < s->slices; i++) {
        const ravel__slice *slice = &refit->streams.slices[s->first + i];
        const ravel__item *item = &refit->source_holding.items[slice->item];
        const ravel__box box = ravel__slice_box(&refit->streams, slice, item->ndim);
        size_t dims = (size_t)item->ndim * sizeof box.start[0];
        int64_t numbers[3] = {slice->count, slice->dtype, item->ndim};
        ravel__xxh3_add(&state, item->name, strlen(item->name) + 1);
        ravel__xxh3_add(&state, numbers, sizeof numbers);
        ravel__xxh3_add(&state, box.start, dims);
        ravel__xxh3_add(&state, box.extent, dims);
    }
    return ravel__xxh3_end(&state);
}

static void release(const ravel_allocator *allocator, ravel__delta *deltas, int32_t count) {
    for (int32_t i = 0; deltas && i < count; i++) {
        const ravel__delta *d = &deltas[i];
        RAVEL_ASSERT(!d->sent == !d->sending &&
                     (!d->sent || d->sent - d->sending == d->blocks || d->sending - d->sent == d->blocks));
        uint64_t *first = d->sent < d->sending ? d->sent : d->sending;
        if (d->sent) ravel__release(allocator, first, (size_t)d->blocks * 2 * sizeof *first);
    }
    ravel__release(allocator, deltas, (size_t)count * sizeof *deltas);
}

void ravel__deltas_forget(ravel_refit *refit) {
    release(&refit->memory.allocator, refit->kept_deltas, refit->kept_count);
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
static int find_kept(ravel_refit *refit, ravel__delta *d) {
    ravel__delta *found = NULL;
    for (int32_t i = 0; i < refit->kept_count; i++) {
        ravel__delta *k = &refit->kept_deltas[i];
        if (!k->sent || k->signature != d->signature || k->blocks != d->blocks) continue;
        if (!found || k->base.version > found->base.version) found = k;
    }
    if (!found) return 0;
    RAVEL_ASSERT(found->block_bytes == d->block_bytes);
    *d = *found;
    found->sent = found->sending = NULL;
    return 1;
}

static ravel_status init_one(ravel_refit *refit, int32_t stream, ravel__delta *d, ravel_error *err) {
    const ravel__stream *s = &refit->streams.out[stream];
    RAVEL_ASSERT(stream >= 0 && stream < refit->streams.out_count && !d->sent && d->blocks == 0);
    d->block_bytes = block_bytes(refit, s);
    for (int64_t i = 0; i < s->slices; i++) {
        const ravel__slice *slice = &refit->streams.slices[s->first + i];
        int64_t bytes = slice->count * ravel_dtype_bytes(slice->dtype);
        d->blocks += (bytes + d->block_bytes - 1) / d->block_bytes;
    }
    RAVEL_ASSERT(d->block_bytes >= RAVEL__FRAME_ALIGN && d->blocks >= 0);
    d->signature = signature_of(refit, s, d->block_bytes);
    if (find_kept(refit, d)) return RAVEL_OK;
    d->sent = ravel__calloc(&refit->memory.allocator, (size_t)d->blocks * 2, sizeof *d->sent);
    if (!d->sent) return ravel__no_memory(err, (size_t)d->blocks * 2 * sizeof *d->sent, "the hashes of sent blocks");
    d->sending = d->sent + d->blocks;
    return RAVEL_OK;
}

ravel_status ravel__deltas_make(ravel_refit *refit, ravel__delta *deltas, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < refit->streams.out_count && refit->options.delta && status == RAVEL_OK; i++)
        status = init_one(refit, i, &deltas[i], err);
    ravel__deltas_forget(refit);
    return status;
}
