#include "refit/wire/pull_wire.h"

#include "base/assert.h"

#include "base/bytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ravel_status broken(ravel_error *err, const char *what, const char *why) {
    return ravel_error_set(err, RAVEL_E_DATA, "a %s message is broken: %s", what, why);
}

/* ---- versions ------------------------------------------------------------------------------------------- */

ravel_status ravel__versions_decode(const void *bytes, int64_t size, ravel__versions *v, ravel_error *err) {
    ravel__versions got = {0};
    if (size < RAVEL__VERSIONS_HEADER || size > (int64_t)sizeof got)
        return broken(err, "VERSIONS", "it is too short or too long");
    memcpy(&got, bytes, (size_t)size);
    if (got.count < 0 || size != ravel__versions_bytes(got.count))
        return broken(err, "VERSIONS", "its length is not what its count says");
    for (int32_t i = 0; i < got.count; i++)
        if (got.list[i].version < 1 || (i > 0 && got.list[i].version >= got.list[i - 1].version))
            return broken(err, "VERSIONS", "the versions are not above 0 and falling");
    *v = got;
    return RAVEL_OK;
}

/* ---- asking --------------------------------------------------------------------------------------------- */

static size_t slice_bytes(int32_t ndim) {
    return 8 + 16 * (size_t)ndim;
}

int64_t ravel__ask_wants_bytes(const ravel__refit_plan *plan, int64_t first, int64_t count) {
    int64_t bytes = 0;
    for (int64_t i = first; i < first + count; i++) bytes += (int64_t)slice_bytes(plan->wants[i].piece->box.ndim);
    return bytes;
}

void ravel__ask_put_wants(unsigned char *out, const ravel__refit_plan *plan, const ravel__holding *sink, int64_t first,
                          int64_t count, int sparse) {
    RAVEL_ASSERT(first >= 0 && count >= 0 && first + count <= plan->want_count);
    for (int64_t i = first; i < first + count; i++) {
        const ravel__want *want = &plan->wants[i];
        const ravel__box *box = &want->piece->box;
        int32_t dtype = plan->dtypes[want->item], held = sink->items[want->item].view.dtype;
        ravel__put32(out, (uint32_t)want->tensor);
        ravel__put16(out + 4, (uint16_t)dtype);
        out[6] = (unsigned char)box->ndim;
        out[7] =
            sparse && (dtype == held || ravel_dtype_bytes(dtype) < ravel_dtype_bytes(held)) ? RAVEL__ASK_SPARSE : 0;
        out += 8;
        for (int32_t d = 0; d < box->ndim; d++, out += 16) {
            ravel__put64(out, (uint64_t)box->start[d]);
            ravel__put64(out + 8, (uint64_t)box->extent[d]);
        }
    }
}

ravel_status ravel__ask_open(const void *bytes, int64_t size, ravel__pull_ask *ask, ravel_error *err) {
    ravel__pull_ask got;
    if (size < (int64_t)sizeof got) return broken(err, "PULL", "it is too short");
    memcpy(&got, bytes, sizeof got);
    if (got.identity.version < 1 || got.base.version < 0) return broken(err, "PULL", "a version is below 1");
    if (got.count < 0 || got.count > (size - (int64_t)sizeof got) / 8)
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
        int32_t dtype = ravel__get16(p + 4), ndim = p[6], flags = p[7];
        int32_t item = tensor < (uint64_t)tensors ? item_of[tensor] : -1;
        if (item < 0) return broken(err, "PULL", "it asks for a tensor that is not here");
        const ravel__view *its = view(owner, item);
        if (ndim != its->box.ndim || (size_t)(end - p) < slice_bytes(ndim))
            return broken(err, "PULL", "a slice is cut off or has other dimensions than its tensor");
        if (ravel_dtype_bytes(dtype) <= 0 || !can_become(its->dtype, dtype))
            return broken(err, "PULL", "it asks for a dtype that cannot be made");
        if (flags & ~RAVEL__ASK_FLAGS) return broken(err, "PULL", "it has unknown flags");
        asked[i] = (ravel__asked){.item = item, .tensor = (int32_t)tensor, .dtype = dtype, .flags = flags};
        if (!read_box(p + 8, &its->box, &asked[i].box)) return broken(err, "PULL", "a slice lies outside what is here");
        asked[i].count = ravel__box_count(&asked[i].box);
        p += slice_bytes(ndim);
    }
    return p == end ? RAVEL_OK : broken(err, "PULL", "bytes are left over");
}

/* ---- mapped --------------------------------------------------------------------------------------------- */

ravel_status ravel__mapped_open(const void *bytes, int64_t size, ravel__mapped *mapped, ravel_error *err) {
    ravel__mapped m;
    if (size < (int64_t)sizeof m) return broken(err, "MAPPED", "it is too short");
    memcpy(&m, bytes, sizeof m);
    if (m.slots < 1 || m.slots > RAVEL__STORE_KEEP_MOST || m.slot < 0 || m.slot >= m.slots)
        return broken(err, "MAPPED", "its slot is not among the slots");
    if (m.bytes < 1 || m.bytes > INT64_MAX / 2 || m.blocks < 0 || m.blocks > size / 8 || m.items < 0 ||
        (uint64_t)size != ravel__mapped_bytes(m.items, m.blocks))
        return broken(err, "MAPPED", "its length is not what its numbers say");
    if (m.name[RAVEL__SHARE_NAME - 1] != '\0') return broken(err, "MAPPED", "its name has no end");
    *mapped = m;
    return RAVEL_OK;
}

ravel_status ravel__mapped_item_at(const void *bytes, const ravel__mapped *mapped, int64_t index,
                                   ravel__mapped_item *item, ravel_error *err) {
    RAVEL_ASSERT(index >= 0 && index < mapped->items);
    memcpy(item, (const unsigned char *)bytes + sizeof *mapped + (size_t)index * sizeof *item, sizeof *item);
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

static int is_amount(double x) {
    return isfinite(x) && x >= 0;
}

ravel_status ravel__pull_report_decode(const void *bytes, int64_t size, ravel__pull_report *report, ravel_error *err) {
    ravel__pull_report r;
    if (size != sizeof r) return broken(err, "REPORT", "it has another length");
    memcpy(&r, bytes, sizeof r);
    if (r.held.version < 0 || r.ranks < 1 || r.bytes < 0 || r.commits < 0 || r.needed < 0)
        return broken(err, "REPORT", "a number is out of range");
    if (!is_amount(r.prepare_seconds) || !is_amount(r.pause_seconds) || !is_amount(r.tokens_per_second) ||
        !is_amount(r.changed_share))
        return broken(err, "REPORT", "a time or rate is not a number from 0");
    *report = r;
    return RAVEL_OK;
}
