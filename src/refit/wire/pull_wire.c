#include "refit/wire/pull_wire.h"

#include "base/assert.h"

#include "refit/model/bytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void ravel__identity_put(unsigned char *to, ravel_refit_identity identity) {
    ravel__put64(to, (uint64_t)identity.version);
    ravel__put64(to + 8, identity.nonce);
    ravel__put64(to + 16, identity.digest);
}

ravel_refit_identity ravel__identity_get(const unsigned char *from) {
    return (ravel_refit_identity){(int64_t)ravel__get64(from), ravel__get64(from + 8), ravel__get64(from + 16)};
}

static ravel_status broken(ravel_error *err, const char *what, const char *why) {
    return ravel_error_set(err, RAVEL_E_DATA, "a %s message is broken: %s", what, why);
}

/* ---- versions ------------------------------------------------------------------------------------------- */

size_t ravel__versions_encode(const ravel__versions *v,
                              unsigned char out[RAVEL__VERSIONS_HEADER + 24 * RAVEL__STORE_KEEP_MOST]) {
    memset(out, 0, RAVEL__VERSIONS_HEADER);
    RAVEL_ASSERT(v->count >= 0 && v->count <= RAVEL__STORE_KEEP_MOST);
    ravel__put64(out, v->session);
    ravel__put32(out + 8, (uint32_t)v->count);
    unsigned char *p = out + RAVEL__VERSIONS_HEADER;
    for (int32_t i = 0; i < v->count; i++, p += RAVEL__IDENTITY_BYTES) ravel__identity_put(p, v->list[i]);
    return (size_t)(p - out);
}

ravel_status ravel__versions_decode(const void *bytes, int64_t size, ravel__versions *v, ravel_error *err) {
    const unsigned char *p = bytes;
    ravel__versions got = {0};
    if (size < RAVEL__VERSIONS_HEADER) return broken(err, "VERSIONS", "it is too short");
    uint32_t count = ravel__get32(p + 8);
    if (count > RAVEL__STORE_KEEP_MOST || size != RAVEL__VERSIONS_HEADER + (int64_t)count * RAVEL__IDENTITY_BYTES)
        return broken(err, "VERSIONS", "its length is not what its count says");
    got.session = ravel__get64(p);
    got.count = (int32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        got.list[i] = ravel__identity_get(p + RAVEL__VERSIONS_HEADER + i * RAVEL__IDENTITY_BYTES);
        if (got.list[i].version < 1 || (i > 0 && got.list[i].version >= got.list[i - 1].version))
            return broken(err, "VERSIONS", "the versions are not above 0 and falling");
    }
    *v = got;
    return RAVEL_OK;
}

/* ---- asking --------------------------------------------------------------------------------------------- */

void ravel__ask_put_header(unsigned char *out, const ravel__ask *ask) {
    RAVEL_ASSERT(ask->identity.version > 0 && ask->count >= 0);
    memset(out, 0, RAVEL__ASK_HEADER);
    ravel__put64(out, ask->session);
    ravel__identity_put(out + 8, ask->identity);
    ravel__identity_put(out + 32, ask->base);
    ravel__put32(out + 56, (uint32_t)ask->count);
}

unsigned char *ravel__ask_put_slice(unsigned char *out, int32_t tensor, int32_t dtype, const ravel__box *box) {
    RAVEL_ASSERT(tensor >= 0 && dtype >= 0 && box->ndim >= 0 && box->ndim <= RAVEL_REFIT_DIMS);
    ravel__put32(out, (uint32_t)tensor);
    ravel__put16(out + 4, (uint16_t)dtype);
    ravel__put16(out + 6, (uint16_t)box->ndim);
    out += 8;
    for (int32_t d = 0; d < box->ndim; d++, out += 16) {
        ravel__put64(out, (uint64_t)box->start[d]);
        ravel__put64(out + 8, (uint64_t)box->extent[d]);
    }
    return out;
}

ravel_status ravel__ask_open(const void *bytes, int64_t size, ravel__ask *ask, ravel_error *err) {
    const unsigned char *p = bytes;
    if (size < RAVEL__ASK_HEADER) return broken(err, "PULL", "it is too short");
    ravel__ask got = {.session = ravel__get64(p),
                      .identity = ravel__identity_get(p + 8),
                      .base = ravel__identity_get(p + 32),
                      .count = ravel__get32(p + 56)};
    if (got.identity.version < 1 || got.base.version < 0) return broken(err, "PULL", "a version is below 1");
    if (got.count > (size - RAVEL__ASK_HEADER) / 8)
        return broken(err, "PULL", "it cannot hold as many slices as it says");
    *ask = got;
    return RAVEL_OK;
}

/* A box inside the item's. */
static int read_box(const unsigned char *p, const ravel__box *of, ravel__box *box) {
    *box = (ravel__box){.ndim = of->ndim};
    for (int32_t d = 0; d < of->ndim; d++, p += 16) {
        uint64_t start = ravel__get64(p), extent = ravel__get64(p + 8);
        if (start > INT64_MAX || extent > INT64_MAX) return 0;
        box->start[d] = (int64_t)start;
        box->extent[d] = (int64_t)extent;
        int64_t from = box->start[d] - of->start[d];
        if (from < 0 || from > of->extent[d] || box->extent[d] > of->extent[d] - from) return 0;
    }
    return 1;
}

static int can_become(int32_t stored, int32_t wanted) {
    int floats = ravel_dtype_kind(stored) == 'f' && ravel_dtype_kind(wanted) == 'f';
    return stored == wanted || (floats && ravel_dtype_bytes(wanted) >= 2 && ravel_dtype_bytes(stored) >= 2);
}

ravel_status ravel__ask_slices(const unsigned char *p, int64_t size, int64_t count,
                               const ravel__view *(*view)(const void *owner, int32_t item), const void *owner,
                               const int32_t *item_of, int64_t tensors, ravel__asked *asked, ravel_error *err) {
    const unsigned char *end = p + size;
    for (int64_t i = 0; i < count; i++) {
        if (end - p < 8) return broken(err, "PULL", "it is cut off");
        uint32_t tensor = ravel__get32(p);
        int32_t dtype = ravel__get16(p + 4), ndim = ravel__get16(p + 6);
        int32_t item = tensor < (uint64_t)tensors ? item_of[tensor] : -1;
        if (item < 0) return broken(err, "PULL", "it asks for a tensor that is not here");
        const ravel__view *its = view(owner, item);
        if (ndim != its->box.ndim || (size_t)(end - p) < ravel__ask_slice_bytes(ndim))
            return broken(err, "PULL", "a slice is cut off or has other dimensions than its tensor");
        if (ravel_dtype_bytes(dtype) <= 0 || !can_become(its->dtype, dtype))
            return broken(err, "PULL", "it asks for a dtype that cannot be made");
        asked[i] = (ravel__asked){.item = item, .tensor = (int32_t)tensor, .dtype = dtype};
        if (!read_box(p + 8, &its->box, &asked[i].box)) return broken(err, "PULL", "a slice lies outside what is here");
        asked[i].count = ravel__box_count(&asked[i].box);
        p += ravel__ask_slice_bytes(ndim);
    }
    return p == end ? RAVEL_OK : broken(err, "PULL", "bytes are left over");
}

/* ---- hashes --------------------------------------------------------------------------------------------- */

int64_t ravel__hashes_blocks(int64_t count, int64_t per_block, int64_t first) {
    if (count < 1 || per_block < 1 || first < 1 || first > per_block || first > count) return -1;
    return 1 + (count - first + per_block - 1) / per_block;
}

ravel_status ravel__hashes_decode(const void *bytes, int64_t size, int64_t count, int64_t each, int64_t most,
                                  ravel__hashes *hashes, ravel_error *err) {
    const unsigned char *p = bytes;
    if (size < RAVEL__HASHES_HEADER) return broken(err, "HASHES", "it is too short");
    uint64_t per_block = ravel__get64(p), first = ravel__get64(p + 8);
    if (per_block > (uint64_t)(most / each) || first > (uint64_t)(most / each))
        return broken(err, "HASHES", "its blocks are too long");
    int64_t blocks = ravel__hashes_blocks(count, (int64_t)per_block, (int64_t)first);
    if (blocks < 0 || blocks != (size - RAVEL__HASHES_HEADER) / 8 || size % 8 != 0)
        return broken(err, "HASHES", "its length is not what its blocks say");
    *hashes = (ravel__hashes){(int64_t)per_block, (int64_t)first, blocks};
    return RAVEL_OK;
}

/* ---- mapped --------------------------------------------------------------------------------------------- */

void ravel__mapped_put(unsigned char *out, const ravel__mapped *m) {
    memset(out, 0, RAVEL__MAPPED_HEADER);
    memcpy(out, m->uuid, 16);
    ravel__put32(out + 16, (uint32_t)m->slot);
    ravel__put32(out + 20, (uint32_t)m->slots);
    ravel__put32(out + 24, (uint32_t)m->items);
    ravel__put64(out + 32, (uint64_t)m->bytes);
    ravel__put64(out + 40, (uint64_t)m->blocks);
    memcpy(out + 48, m->name, RAVEL__SHARE_NAME);
}

void ravel__mapped_put_item(unsigned char *out, int64_t index, const ravel__mapped_item *item) {
    RAVEL_ASSERT(index >= 0);
    unsigned char *p = out + RAVEL__MAPPED_HEADER + index * RAVEL__MAPPED_ITEM;
    ravel__put32(p, (uint32_t)item->tensor);
    ravel__put32(p + 4, (uint32_t)item->dtype);
    ravel__put64(p + 8, (uint64_t)item->at);
    ravel__put64(p + 16, (uint64_t)item->first_block);
    ravel__put64(p + 24, (uint64_t)item->per_block);
}

ravel_status ravel__mapped_open(const void *bytes, int64_t size, ravel__mapped *mapped, ravel_error *err) {
    const unsigned char *p = bytes;
    if (size < RAVEL__MAPPED_HEADER) return broken(err, "MAPPED", "it is too short");
    uint64_t slot_bytes = ravel__get64(p + 32), blocks = ravel__get64(p + 40);
    uint32_t slot = ravel__get32(p + 16), slots = ravel__get32(p + 20), items = ravel__get32(p + 24);
    if (slots < 1 || slots > RAVEL__STORE_KEEP_MOST || slot >= slots)
        return broken(err, "MAPPED", "its slot is not among the slots");
    if (slot_bytes < 1 || slot_bytes > INT64_MAX / 2 || blocks > (uint64_t)size / 8 ||
        items > (uint64_t)size / RAVEL__MAPPED_ITEM || (uint64_t)size != ravel__mapped_bytes(items, (int64_t)blocks))
        return broken(err, "MAPPED", "its length is not what its numbers say");
    *mapped = (ravel__mapped){.slot = (int32_t)slot,
                              .slots = (int32_t)slots,
                              .items = (int32_t)items,
                              .bytes = (int64_t)slot_bytes,
                              .blocks = (int64_t)blocks};
    memcpy(mapped->uuid, p, 16);
    memcpy(mapped->name, p + 48, RAVEL__SHARE_NAME);
    if (mapped->name[RAVEL__SHARE_NAME - 1] != '\0') return broken(err, "MAPPED", "its name has no end");
    return RAVEL_OK;
}

ravel_status ravel__mapped_item_at(const void *bytes, const ravel__mapped *mapped, int64_t index,
                                   ravel__mapped_item *item, ravel_error *err) {
    RAVEL_ASSERT(index >= 0 && index < mapped->items);
    const unsigned char *p = (const unsigned char *)bytes + RAVEL__MAPPED_HEADER + index * RAVEL__MAPPED_ITEM;
    *item = (ravel__mapped_item){.tensor = (int32_t)ravel__get32(p),
                                 .dtype = (int32_t)ravel__get32(p + 4),
                                 .at = (int64_t)ravel__get64(p + 8),
                                 .first_block = (int64_t)ravel__get64(p + 16),
                                 .per_block = (int64_t)ravel__get64(p + 24)};
    int32_t each = item->dtype >= 0 ? ravel_dtype_bytes(item->dtype) : 0;
    if (item->tensor < 0 || each < 1 || item->at < 0 || item->at % 16 != 0 || item->first_block < 0 ||
        item->per_block < 1 || item->per_block > INT64_MAX / 16 || item->per_block * each % 1024 != 0)
        return broken(err, "MAPPED", "a number of an item is out of range");
    return item->at <= mapped->bytes && item->first_block <= mapped->blocks
               ? RAVEL_OK
               : broken(err, "MAPPED", "an item lies outside");
}

int ravel__mapped_holds(const ravel__mapped *m, const ravel__mapped_item *item, int64_t elements) {
    int64_t each = ravel_dtype_bytes(item->dtype);
    if (elements < 0 || elements > INT64_MAX / 16 || item->at > m->bytes || elements * each > m->bytes - item->at)
        return 0;
    int64_t blocks = elements / item->per_block + (elements % item->per_block > 0);
    return item->first_block <= m->blocks && blocks <= m->blocks - item->first_block;
}

/* ---- failed --------------------------------------------------------------------------------------------- */

void ravel__failed_encode(ravel_status status, const char *message, unsigned char out[RAVEL__FAILED_BYTES]) {
    memset(out, 0, RAVEL__FAILED_BYTES);
    ravel__put32(out, (uint32_t)status);
    (void)snprintf((char *)out + 4, RAVEL_ERROR_MESSAGE_BYTES, "%s", message);
}

ravel_status ravel__failed_decode(const void *bytes, int64_t size, ravel_error *err) {
    const unsigned char *p = bytes;
    char message[RAVEL_ERROR_MESSAGE_BYTES];
    if (size != RAVEL__FAILED_BYTES) return broken(err, "FAILED", "it has another length");
    ravel_status status = (ravel_status)ravel__get32(p);
    memcpy(message, p + 4, sizeof message);
    message[sizeof message - 1] = '\0';
    /* Accept only statuses that a trainer may report; any other would describe this side. */
    if (status != RAVEL_E_STATE && status != RAVEL_E_MISMATCH && status != RAVEL_E_MEMORY) status = RAVEL_E_DATA;
    return ravel_error_set(err, status, "%s", message);
}

/* ---- report --------------------------------------------------------------------------------------------- */

static void put_double(unsigned char *to, double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    ravel__put64(to, bits);
}

static double get_double(const unsigned char *from) {
    uint64_t bits = ravel__get64(from);
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

void ravel__pull_report_encode(const ravel__pull_report *r, unsigned char out[RAVEL__REPORT_BYTES]) {
    memset(out, 0, RAVEL__REPORT_BYTES);
    ravel__put64(out, r->generator);
    ravel__identity_put(out + 8, r->held);
    ravel__put32(out + 32, (uint32_t)r->ranks);
    put_double(out + 40, r->prepare_seconds);
    put_double(out + 48, r->pause_seconds);
    put_double(out + 56, r->tokens_per_second);
    ravel__put64(out + 64, (uint64_t)r->bytes);
    ravel__put64(out + 72, (uint64_t)r->commits);
}

static int is_amount(double x) {
    return isfinite(x) && x >= 0;
}

ravel_status ravel__pull_report_decode(const void *bytes, int64_t size, ravel__pull_report *report, ravel_error *err) {
    const unsigned char *p = bytes;
    if (size != RAVEL__REPORT_BYTES) return broken(err, "REPORT", "it has another length");
    ravel__pull_report r = {.generator = ravel__get64(p),
                            .held = ravel__identity_get(p + 8),
                            .ranks = (int32_t)ravel__get32(p + 32),
                            .prepare_seconds = get_double(p + 40),
                            .pause_seconds = get_double(p + 48),
                            .tokens_per_second = get_double(p + 56),
                            .bytes = (int64_t)ravel__get64(p + 64),
                            .commits = (int64_t)ravel__get64(p + 72)};
    if (r.held.version < 0 || r.ranks < 1 || r.bytes < 0 || r.commits < 0)
        return broken(err, "REPORT", "a number is out of range");
    if (!is_amount(r.prepare_seconds) || !is_amount(r.pause_seconds) || !is_amount(r.tokens_per_second))
        return broken(err, "REPORT", "a time or rate is not a number from 0");
    *report = r;
    return RAVEL_OK;
}
