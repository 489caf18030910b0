#include "refit/model/manifest.h"

#include "refit/model/bytes.h"
#include "base/assert.h"
#include "base/xxh3.h"

static const unsigned char magic[4] = {'R', 'V', 'L', 'M'};

enum { CHECKSUM_AT = 24 };

static size_t entry_bytes(size_t name, int32_t ndim) {
    return 4 + name + 24 * (size_t)ndim;
}

size_t ravel__manifest_bytes(const ravel__holding *holding) {
    size_t bytes = RAVEL__MANIFEST_HEADER;
    for (int64_t i = 0; i < holding->count; i++)
        bytes += entry_bytes(strlen(holding->items[i].name), holding->items[i].ndim);
    return bytes;
}

static unsigned char *put_item(unsigned char *p, const ravel__item *item) {
    size_t length = strlen(item->name);
    RAVEL_ASSERT(length > 0 && length <= UINT16_MAX && item->ndim >= 0 && item->ndim <= RAVEL_REFIT_DIMS);
    ravel__put16(p, (uint16_t)length);
    p[2] = (unsigned char)item->dtype;
    p[3] = (unsigned char)item->ndim;
    memcpy(p + 4, item->name, length);
    p += 4 + length;
    for (int32_t d = 0; d < item->ndim; d++, p += 24) {
        ravel__put64(p, (uint64_t)item->dims[d]);
        ravel__put64(p + 8, (uint64_t)item->view.box.start[d]);
        ravel__put64(p + 16, (uint64_t)item->view.box.extent[d]);
    }
    return p;
}

/* Checksum of all bytes except the checksum field. */
static uint64_t sum_of(const unsigned char *bytes, size_t size) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, CHECKSUM_AT);
    ravel__xxh3_add(&state, bytes + RAVEL__MANIFEST_HEADER, size - RAVEL__MANIFEST_HEADER);
    return ravel__xxh3_end(&state);
}

void ravel__manifest_encode(const ravel__holding *holding, int32_t side, unsigned char *out) {
    RAVEL_ASSERT(side == RAVEL__SOURCE || side == RAVEL__SINK);
    unsigned char *p = out + RAVEL__MANIFEST_HEADER;
    for (int64_t i = 0; i < holding->count; i++) p = put_item(p, &holding->items[i]);
    RAVEL_ASSERT((size_t)(p - out) == ravel__manifest_bytes(holding));
    memcpy(out, magic, 4);
    ravel__put16(out + 4, RAVEL__MANIFEST_FORMAT);
    ravel__put16(out + 6, (uint16_t)side);
    ravel__put64(out + 8, (uint64_t)holding->count);
    ravel__put64(out + 16, (uint64_t)(p - out));
    ravel__put64(out + CHECKSUM_AT, sum_of(out, (size_t)(p - out)));
}

static ravel_status broken(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_DATA, "a refit manifest is broken: %s", what);
}

ravel_status ravel__manifest_open(const void *bytes, size_t size, ravel__manifest_reader *reader, ravel_error *err) {
    const unsigned char *p = bytes;
    if (size < RAVEL__MANIFEST_HEADER) return broken(err, "it is shorter than its header");
    if (memcmp(p, magic, 4) != 0) return broken(err, "it does not begin with RVLM");
    if (ravel__get16(p + 4) != RAVEL__MANIFEST_FORMAT)
        return ravel_error_set(err, RAVEL_E_MISMATCH, "a refit manifest has format %u, this library knows %d",
                               (unsigned)ravel__get16(p + 4), RAVEL__MANIFEST_FORMAT);
    uint16_t side = ravel__get16(p + 6);
    uint64_t count = ravel__get64(p + 8);
    if (side != RAVEL__SOURCE && side != RAVEL__SINK) return broken(err, "it is of neither side");
    if (ravel__get64(p + 16) != size) return broken(err, "its size is not what its header says");
    if (count > (size - RAVEL__MANIFEST_HEADER) / 5) return broken(err, "it cannot hold as many entries as it says");
    if (ravel__get64(p + CHECKSUM_AT) != sum_of(p, size))
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "a refit manifest arrived changed: its checksum is wrong");
    *reader = (ravel__manifest_reader){p + RAVEL__MANIFEST_HEADER, p + size, side, (int64_t)count, 0};
    return RAVEL_OK;
}

/* The three numbers of a dimension; bytes is the running product. */
static ravel_status take_dim(const unsigned char *p, ravel__entry *entry, int32_t d, int64_t *bytes, ravel_error *err) {
    uint64_t dim = ravel__get64(p), start = ravel__get64(p + 8), extent = ravel__get64(p + 16);
    if (dim > INT64_MAX || __builtin_mul_overflow(*bytes, dim > 0 ? (int64_t)dim : 1, bytes))
        return broken(err, "a tensor is too large");
    if (extent > dim || start > dim - extent) return broken(err, "a piece lies outside its tensor");
    entry->dims[d] = (int64_t)dim;
    entry->box.start[d] = (int64_t)start;
    entry->box.extent[d] = (int64_t)extent;
    return RAVEL_OK;
}

ravel_status ravel__manifest_next(ravel__manifest_reader *r, ravel__entry *entry, ravel_error *err) {
    if (r->next == r->count) return r->at == r->end ? RAVEL_E_END : broken(err, "there are bytes after the last entry");
    RAVEL_ASSERT(r->next < r->count && r->at <= r->end);
    size_t left = (size_t)(r->end - r->at);
    if (left < 4) return broken(err, "an entry is cut short");
    size_t length = ravel__get16(r->at);
    int32_t dtype = r->at[2], ndim = r->at[3];
    if (length == 0 || length >= sizeof entry->name) return broken(err, "a name is empty or too long");
    if (ndim > RAVEL_REFIT_DIMS || entry_bytes(length, ndim) > left) return broken(err, "an entry is cut short");
    if (memchr(r->at + 4, '\0', length)) return broken(err, "a name has a NUL in it");
    int64_t bytes = ravel_dtype_bytes(dtype);
    if (bytes == 0) return broken(err, "a tensor has an unknown dtype");
    memcpy(entry->name, r->at + 4, length);
    entry->name[length] = '\0';
    entry->dtype = dtype;
    entry->ndim = entry->box.ndim = ndim;
    for (int32_t d = 0; d < ndim; d++) {
        ravel_status status = take_dim(r->at + 4 + length + 24 * (size_t)d, entry, d, &bytes, err);
        if (status != RAVEL_OK) return status;
    }
    r->at += entry_bytes(length, ndim);
    RAVEL_ASSERT(r->at <= r->end);
    r->next++;
    return RAVEL_OK;
}
