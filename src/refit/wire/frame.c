#include "refit/wire/frame.h"

#include "refit/model/bytes.h"
#include "base/assert.h"
#include "base/xxh3.h"

#include <ravel/dtype.h>

static const unsigned char frame_magic[4] = {'R', 'V', 'L', 'F'};
static const unsigned char notice_magic[4] = {'R', 'V', 'L', 'N'};

enum { CHECKSUM_AT = 56, HEADER_USED = 64 };

static size_t align(size_t bytes) {
    return (bytes + RAVEL__FRAME_ALIGN - 1) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

void ravel__frame_begin(ravel__frame_writer *writer, void *buffer, size_t bytes) {
    RAVEL_ASSERT(buffer && bytes >= RAVEL__FRAME_HEADER);
    *writer = (ravel__frame_writer){.buffer = buffer, .bytes = bytes, .end = RAVEL__FRAME_HEADER};
}

void ravel__frame_begin_apart(ravel__frame_writer *writer, void *buffer, size_t bytes, size_t most) {
    ravel__frame_begin(writer, buffer, bytes);
    writer->apart = most;
}

/* Entry i, counted from the first, at the back of the buffer. */
static unsigned char *entry_place(const ravel__frame_writer *w, size_t i) {
    RAVEL_ASSERT((i + 1) * RAVEL__FRAME_ENTRY <= w->bytes - RAVEL__FRAME_HEADER);
    return w->buffer + w->bytes - (i + 1) * RAVEL__FRAME_ENTRY;
}

size_t ravel__frame_room(const ravel__frame_writer *w, unsigned char **room) {
    size_t table = (w->entries + 1) * RAVEL__FRAME_ENTRY, taken = w->end + table;
    *room = w->apart ? NULL : w->buffer + w->end;
    if (w->apart)
        return RAVEL__FRAME_HEADER + table > w->bytes || w->end > w->apart
                   ? 0
                   : (w->apart - w->end) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
    /* Whole steps of the alignment, so that a payload and its padding both fit. */
    return taken >= w->bytes ? 0 : (w->bytes - taken) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
}

static void put_entry(unsigned char *p, const ravel__frame_entry *e) {
    ravel__put32(p, e->tensor);
    ravel__put32(p + 4, e->slice);
    ravel__put16(p + 8, e->kind);
    ravel__put16(p + 10, e->dtype);
    ravel__put32(p + 12, 0);
    ravel__put64(p + 16, e->first);
    ravel__put64(p + 24, e->count);
    ravel__put64(p + 32, e->offset);
    ravel__put64(p + 40, e->checksum);
}

static void get_entry(const unsigned char *p, ravel__frame_entry *e) {
    *e = (ravel__frame_entry){
        .tensor = ravel__get32(p),
        .slice = ravel__get32(p + 4),
        .kind = ravel__get16(p + 8),
        .dtype = ravel__get16(p + 10),
        .first = ravel__get64(p + 16),
        .count = ravel__get64(p + 24),
        .offset = ravel__get64(p + 32),
        .checksum = ravel__get64(p + 40),
    };
}

void ravel__frame_add(ravel__frame_writer *w, const ravel__frame_entry *entry, size_t payload) {
    RAVEL_ASSERT(entry->kind <= RAVEL__ENTRY_KEEP && (entry->kind == RAVEL__ENTRY_DATA || payload == 0));
    ravel__frame_entry e = *entry;
    e.offset = w->end;
    size_t end = align(w->end + payload);
    RAVEL_ASSERT(w->end % RAVEL__FRAME_ALIGN == 0 && (!w->apart || end <= w->apart));
    RAVEL_ASSERT((w->apart ? RAVEL__FRAME_HEADER : end) + (w->entries + 1) * RAVEL__FRAME_ENTRY <= w->bytes);
    if (!w->apart) memset(w->buffer + w->end + payload, 0, end - w->end - payload);
    w->end = end;
    put_entry(entry_place(w, w->entries++), &e);
}

int ravel__frame_last(const ravel__frame_writer *w, ravel__frame_entry *entry) {
    if (w->entries == 0) return 0;
    get_entry(entry_place(w, w->entries - 1), entry);
    return 1;
}

void ravel__frame_set_checksum(ravel__frame_writer *w, size_t index, uint64_t checksum) {
    RAVEL_ASSERT(index < w->entries);
    ravel__put64(entry_place(w, index) + 40, checksum);
}

void ravel__frame_keep_more(ravel__frame_writer *w, uint64_t count) {
    RAVEL_ASSERT(w->entries > 0);
    unsigned char *p = entry_place(w, w->entries - 1);
    RAVEL_ASSERT(ravel__get16(p + 8) == RAVEL__ENTRY_KEEP && count > 0);
    ravel__put64(p + 24, ravel__get64(p + 24) + count);
}

/* Where a closed frame has its entries. */
static size_t entries_at(const ravel__frame_writer *w) {
    return w->apart ? RAVEL__FRAME_HEADER : w->end;
}

/* Entries were written towards the front; in the frame they are in order. */
static void turn_entries(ravel__frame_writer *w) {
    unsigned char swap[RAVEL__FRAME_ENTRY];
    for (size_t i = 0, j = w->entries; i + 1 < j; i++) {
        unsigned char *a = entry_place(w, i), *b = entry_place(w, --j);
        if (a <= b) break;
        memcpy(swap, a, sizeof swap);
        memcpy(a, b, sizeof swap);
        memcpy(b, swap, sizeof swap);
    }
    if (w->entries > 0)
        memmove(w->buffer + entries_at(w), entry_place(w, w->entries - 1), w->entries * RAVEL__FRAME_ENTRY);
}

/* Over the header (its checksum aside) and the entries. */
static uint64_t sum_of(const unsigned char *frame, size_t at, size_t size) {
    RAVEL_ASSERT(at >= RAVEL__FRAME_HEADER && at <= size);
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, frame, CHECKSUM_AT);
    ravel__xxh3_add(&state, frame + at, size - at);
    return ravel__xxh3_end(&state);
}

size_t ravel__frame_end(ravel__frame_writer *w, ravel__frame_head *head) {
    RAVEL_ASSERT(w->entries <= UINT32_MAX && w->end >= RAVEL__FRAME_HEADER && w->end % RAVEL__FRAME_ALIGN == 0);
    unsigned char *p = w->buffer;
    size_t at = entries_at(w), used = at + w->entries * RAVEL__FRAME_ENTRY;
    turn_entries(w);
    head->entries = (uint32_t)w->entries;
    head->bytes = w->end + w->entries * RAVEL__FRAME_ENTRY;
    head->table = w->end;
    head->at = at;
    RAVEL_ASSERT(used <= w->bytes);
    memset(p, 0, RAVEL__FRAME_HEADER);
    memcpy(p, frame_magic, 4);
    ravel__put16(p + 4, RAVEL__FRAME_FORMAT);
    ravel__put16(p + 6, RAVEL__FRAME_HEADER);
    ravel__put32(p + 8, head->flags);
    ravel__put32(p + 12, head->window);
    ravel__put64(p + 16, head->sequence);
    ravel__put64(p + 24, head->version);
    ravel__put32(p + 32, head->sender);
    ravel__put32(p + 36, head->entries);
    ravel__put64(p + 40, head->bytes);
    ravel__put64(p + 48, w->end);
    ravel__put64(p + CHECKSUM_AT, sum_of(p, at, used));
    return used;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static ravel_status broken(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_DATA, "a refit frame is broken: %s", what);
}

static ravel_status open_frame(const unsigned char *p, size_t size, int apart, ravel__frame_head *head,
                               ravel_error *err) {
    if (size < RAVEL__FRAME_HEADER) return broken(err, "it is shorter than its header");
    if (memcmp(p, frame_magic, 4) != 0) return broken(err, "it does not begin with RVLF");
    if (ravel__get16(p + 4) != RAVEL__FRAME_FORMAT || ravel__get16(p + 6) != RAVEL__FRAME_HEADER)
        return broken(err, "it has another format");
    ravel__frame_head h = {
        .flags = ravel__get32(p + 8),
        .window = ravel__get32(p + 12),
        .sequence = ravel__get64(p + 16),
        .version = ravel__get64(p + 24),
        .sender = ravel__get32(p + 32),
        .entries = ravel__get32(p + 36),
        .bytes = ravel__get64(p + 40),
        .table = ravel__get64(p + 48),
    };
    if (h.table < RAVEL__FRAME_HEADER || h.table > h.bytes) return broken(err, "its entries do not fit");
    h.at = apart ? RAVEL__FRAME_HEADER : h.table;
    if (h.bytes - h.table + h.at != size) return broken(err, "it is not as long as its header says");
    if ((size - h.at) / RAVEL__FRAME_ENTRY != h.entries || (size - h.at) % RAVEL__FRAME_ENTRY != 0)
        return broken(err, "its entries do not fit");
    if (h.flags & ~(uint32_t)RAVEL__FRAME_FLAGS) return broken(err, "it has unknown flags");
    if (ravel__get64(p + CHECKSUM_AT) != sum_of(p, (size_t)h.at, size))
        return ravel_error_set(err, RAVEL_E_CHECKSUM,
                               "a refit frame arrived changed: the checksum of its header is wrong");
    *head = h;
    return RAVEL_OK;
}

ravel_status ravel__frame_open(const void *bytes, size_t size, ravel__frame_head *head, ravel_error *err) {
    return open_frame(bytes, size, 0, head, err);
}

ravel_status ravel__frame_open_apart(const void *bytes, size_t size, ravel__frame_head *head, ravel_error *err) {
    return open_frame(bytes, size, 1, head, err);
}

ravel_status ravel__frame_entry_at(const void *bytes, const ravel__frame_head *head, uint32_t index,
                                   ravel__frame_entry *entry, ravel_error *err) {
    const unsigned char *p = bytes;
    uint64_t table = head->table;
    ravel__frame_entry e;
    if (index >= head->entries) return broken(err, "it has fewer entries than asked for");
    get_entry(p + head->at + (uint64_t)index * RAVEL__FRAME_ENTRY, &e);
    uint64_t each = (uint64_t)ravel_dtype_bytes(e.dtype), most = (uint64_t)INT64_MAX / 16;
    if (each == 0) return broken(err, "an entry has an unknown dtype");
    if (e.kind > RAVEL__ENTRY_KEEP) return broken(err, "an entry is of an unknown kind");
    if (e.count == 0 || e.count > most || e.first > most) return broken(err, "an entry counts wrongly");
    if (e.kind == RAVEL__ENTRY_DATA && (e.offset < RAVEL__FRAME_HEADER || e.offset % RAVEL__FRAME_ALIGN != 0 ||
                                        e.offset > table || e.count > (table - e.offset) / each))
        return broken(err, "a payload lies outside of it");
    *entry = e;
    return RAVEL_OK;
}

/* ---- notices -------------------------------------------------------------------------------------------- */

void ravel__notice_encode(const ravel__notice *notice, unsigned char out[RAVEL__NOTICE_BYTES]) {
    memcpy(out, notice_magic, 4);
    ravel__put32(out + 4, notice->flags);
    ravel__put32(out + 8, notice->window);
    ravel__put32(out + 12, RAVEL__FRAME_FORMAT);
    ravel__put64(out + 16, notice->sequence);
    ravel__put64(out + 24, notice->bytes);
    ravel__put64(out + 32, ravel__xxh3_of(out, 32));
}

ravel_status ravel__notice_decode(const unsigned char in[RAVEL__NOTICE_BYTES], ravel__notice *notice,
                                  ravel_error *err) {
    if (memcmp(in, notice_magic, 4) != 0 || ravel__get32(in + 12) != RAVEL__FRAME_FORMAT)
        return ravel_error_set(err, RAVEL_E_DATA, "the message before a refit frame is not a notice");
    if (ravel__get64(in + 32) != ravel__xxh3_of(in, 32))
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "the notice of a refit frame arrived changed");
    *notice = (ravel__notice){
        .flags = ravel__get32(in + 4),
        .window = ravel__get32(in + 8),
        .sequence = ravel__get64(in + 16),
        .bytes = ravel__get64(in + 24),
    };
    return RAVEL_OK;
}
