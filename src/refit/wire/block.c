#include "refit/wire/block.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/xxh3.h"

/* Bytes that are hashed, and changed, while they are in the cache; of a device, what is worth a transfer. */
enum { STEP = 64 * 1024, PATCH = 16 * 1024 };

/* ---- encode --------------------------------------------------------------------------------------------- */

/* One pass over memory: bytes of a device, and bytes that need no conversion, go straight to `out`; others are
 * assembled in scratch memory first, since `out` is written past the cache. */
ravel_status ravel__block_encode(const ravel__view *view, const void *data, const ravel__box *box, int64_t first,
                                 int64_t count, int32_t dtype, void *out, uint64_t *hash, ravel_error *err) {
    unsigned char scratch[STEP], *to = out;
    int64_t each = ravel_dtype_bytes(dtype), step = STEP / each;
    ravel_status status = RAVEL_OK;
    ravel__xxh3 state;
    RAVEL_ASSERT(data && out && count > 0 && each > 0 && each <= STEP);
    if (view->carrier) {
        status = ravel__view_gather(view, data, box, first, count, dtype, out, err);
        *hash = status == RAVEL_OK ? ravel__xxh3_of(out, (size_t)(count * each)) : 0;
        return status;
    }
    const void *direct = ravel__view_direct(view, data, box, first, dtype);
    ravel__xxh3_begin(&state);
    if (direct) ravel__xxh3_add_copy(&state, out, direct, (size_t)(count * each));
    for (int64_t done = 0; done < count && !direct && status == RAVEL_OK; done += step) {
        int64_t n = count - done < step ? count - done : step;
        status = ravel__view_gather(view, data, box, first + done, n, dtype, scratch, err);
        ravel__xxh3_add_copy(&state, to + done * each, scratch, (size_t)(n * each));
    }
    *hash = ravel__xxh3_end(&state);
    return status;
}

/* ---- tally ---------------------------------------------------------------------------------------------- */

void ravel__tally_add(ravel__tally *t, int32_t kind, int64_t count, int64_t each, int64_t moved, int64_t changed) {
    RAVEL_ASSERT(kind >= 0 && kind < RAVEL__BLOCK_KINDS && changed >= -1 && changed <= count);
    atomic_fetch_add(&t->blocks[kind], 1);
    atomic_fetch_add(&t->bytes[kind], count * each);
    atomic_fetch_add(&t->moved[kind], moved);
    atomic_fetch_add(&t->elements, count);
    if (changed < 0) return;
    atomic_fetch_add(&t->compared, count);
    atomic_fetch_add(&t->changed, changed);
}

void ravel__tally_clear(ravel__tally *t) {
    for (int32_t k = 0; k < RAVEL__BLOCK_KINDS; k++) {
        atomic_store(&t->blocks[k], 0);
        atomic_store(&t->bytes[k], 0);
        atomic_store(&t->moved[k], 0);
    }
    atomic_store(&t->elements, 0);
    atomic_store(&t->compared, 0);
    atomic_store(&t->changed, 0);
}

/* ---- decode --------------------------------------------------------------------------------------------- */

static ravel_status changed(const ravel__stage *stage, const ravel__refit_block *b, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_CHECKSUM,
                           "\"%s\": elements %lld to %lld of its slice from %s %d arrived changed",
                           stage->holding->items[b->span.item].name, (long long)b->span.first,
                           (long long)(b->span.first + b->span.count - 1), b->role, b->sender);
}

static ravel_status keep(ravel__stage *stage, ravel__refit_block *b, ravel_error *err) {
    int64_t begin = ravel__clock_ns();
    ravel_status status = ravel__stage_keep(stage, &b->span, err);
    b->load_ns += ravel__clock_ns() - begin;
    return status;
}

/* All of it is hashed before any of it is written. */
static ravel_status verify_first(ravel__stage *stage, ravel__refit_block *b, int written, ravel_error *err) {
    int64_t begin = ravel__clock_ns();
    uint64_t hash = ravel__xxh3_of(b->bytes, (size_t)b->span.count * (size_t)ravel_dtype_bytes(b->dtype));
    int64_t between = ravel__clock_ns();
    b->verify_ns += between - begin;
    if (hash != b->hash) return changed(stage, b, err);
    ravel_status status = written ? RAVEL_OK : ravel__stage_write(stage, &b->span, b->dtype, b->bytes, err);
    b->load_ns += ravel__clock_ns() - between;
    return status;
}

/* Step by step, while the bytes are in the cache: elements that came, or the live version's with the changes that came;
 * hashed, and to the stage, straight to their place past the cache if there is one. */
static ravel_status write_hashed(ravel__stage *stage, ravel__refit_block *b, ravel__sparse *changes,
                                 unsigned char *place, ravel_error *err) {
    unsigned char scratch[STEP];
    int small = changes && !stage->holding->carrier;
    int64_t each = ravel_dtype_bytes(b->dtype), step = (small ? PATCH : STEP) / each, clock = ravel__clock_ns(), later;
    ravel_status status = RAVEL_OK;
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    for (int64_t done = 0, n; done < b->span.count && status == RAVEL_OK; done += n, clock = later) {
        n = b->span.count - done < step ? b->span.count - done : step;
        ravel__refit_span part = {b->span.item, b->span.box, b->span.first + done, n};
        const unsigned char *from = changes ? scratch : (const unsigned char *)b->bytes + done * each;
        if (changes) status = ravel__stage_read_live(stage, &part, b->dtype, scratch, err);
        if (changes && status == RAVEL_OK) status = ravel__sparse_apply(changes, scratch, (size_t)done, (size_t)n, err);
        later = clock;
        if (status == RAVEL_OK && place) {
            ravel__xxh3_add_copy(&state, place + done * each, from, (size_t)(n * each));
        } else if (status == RAVEL_OK) {
            ravel__xxh3_add(&state, from, (size_t)(n * each));
            if (!changes) later = ravel__clock_ns();
            status = ravel__stage_write(stage, &part, b->dtype, from, err);
        }
        b->verify_ns += later - clock;
        clock = later;
        later = ravel__clock_ns();
        b->load_ns += later - clock;
    }
    if (status == RAVEL_OK && changes) status = ravel__sparse_end(changes, err);
    if (status != RAVEL_OK) return status;
    return ravel__xxh3_end(&state) == b->hash ? RAVEL_OK : changed(stage, b, err);
}

static ravel_status patch(ravel__stage *stage, ravel__refit_block *b, ravel_error *err) {
    ravel__sparse changes;
    if (stage->held.version == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "%s %d changes elements that were never received", b->role,
                               b->sender);
    unsigned char *place = stage->far ? ravel__stage_address(stage, &b->span, b->dtype) : NULL;
    ravel_status status = ravel__sparse_open(&changes, b->bytes, b->size, (size_t)b->span.count,
                                             (size_t)ravel_dtype_bytes(b->dtype), err);
    if (status == RAVEL_OK) status = write_hashed(stage, b, &changes, place, err);
    if (status != RAVEL_OK && status != RAVEL_E_CHECKSUM) ravel_error_prefix(err, "%s %d", b->role, b->sender);
    return status;
}

ravel_status ravel__block_decode(ravel__stage *stage, ravel__refit_block *b, ravel_error *err) {
    RAVEL_ASSERT(stage->active && b->span.count > 0 && b->kind >= 0 && b->kind < RAVEL__BLOCK_KINDS);
    if (b->kind == RAVEL__BLOCK_KEEP) return keep(stage, b, err);
    if (b->kind == RAVEL__BLOCK_SPARSE) return patch(stage, b, err);
    void *place = ravel__stage_address(stage, &b->span, b->dtype);
    if (place && place == b->bytes) return verify_first(stage, b, 1, err);
    if (stage->now == &ravel__stage_callbacks) return verify_first(stage, b, 0, err);
    return write_hashed(stage, b, NULL, stage->far ? place : NULL, err);
}
