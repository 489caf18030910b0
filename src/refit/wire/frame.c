#include "refit/wire/frame.h"

#include "base/assert.h"
#include "base/xxh3.h"
#include "refit/wire/block.h"

#include <string.h>

static uint64_t sum_of(const ravel__frame *f) {
    return ravel__xxh3_of((const char *)f + sizeof f->sum, sizeof *f - sizeof f->sum);
}

static uint64_t entries_sum_of(const ravel__frame *f, size_t head_bytes) {
    return ravel__xxh3_of(f->entry, head_bytes - sizeof *f);
}

void ravel__frame_seal(ravel__frame *f, size_t head_bytes) {
    RAVEL_ASSERT(f->entries <= ravel__frame_entries_most(head_bytes));
    size_t used = sizeof *f + f->entries * sizeof *f->entry;
    memset((char *)f + used, 0, head_bytes - used);
    memcpy(f->magic, "RVLF", 4);
    f->format = RAVEL__FRAME_FORMAT;
    f->entries_sum = entries_sum_of(f, head_bytes);
    f->sum = sum_of(f);
}

static ravel_status broken(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_DATA, "a refit frame is broken: %s", what);
}

ravel_status ravel__frame_check(const ravel__frame *f, size_t head_bytes, uint64_t most, ravel_error *err) {
    if (memcmp(f->magic, "RVLF", 4) != 0) return broken(err, "it does not begin with RVLF");
    if (f->format != RAVEL__FRAME_FORMAT) return broken(err, "it has another format");
    if (f->sum != sum_of(f))
        return ravel_error_set(err, RAVEL_E_CHECKSUM,
                               "a refit frame arrived changed: the checksum of its header is wrong");
    if (f->flags & ~(uint32_t)RAVEL__FRAME_FLAGS) return broken(err, "it has unknown flags");
    if (f->entries > ravel__frame_entries_most(head_bytes)) return broken(err, "its entries do not fit");
    return f->bytes <= most ? RAVEL_OK : broken(err, "its payloads are larger than a buffer");
}

ravel_status ravel__frame_check_entries(const ravel__frame *f, size_t head_bytes, ravel_error *err) {
    uint64_t end = 0;
    if (f->entries_sum != entries_sum_of(f, head_bytes))
        return ravel_error_set(err, RAVEL_E_CHECKSUM,
                               "a refit frame arrived changed: the checksum of its entries is wrong");
    for (uint32_t i = 0; i < f->entries; i++) {
        const ravel__frame_entry *e = &f->entry[i];
        if (e->kind >= RAVEL__BLOCK_KINDS) return broken(err, "an entry is of an unknown kind");
        if (e->count == 0 || e->count > (uint64_t)INT64_MAX / 16) return broken(err, "an entry counts wrongly");
        if (e->size > f->bytes - end || (e->kind == RAVEL__BLOCK_KEEP) != (e->size == 0))
            return broken(err, "a payload lies outside of it");
        end += ravel__frame_align((size_t)e->size);
        if (end > f->bytes) return broken(err, "a payload lies outside of it");
    }
    return end == f->bytes ? RAVEL_OK : broken(err, "its payloads are not as long as its header says");
}
