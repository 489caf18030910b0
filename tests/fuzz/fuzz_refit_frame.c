/* The frame and notice decoders on any bytes. The checksum stops nearly everything, so the input is tried as it is and
 * with the right checksum put in: whatever is then accepted must lie inside of the bytes, and every payload is read to
 * its end. */
#include "refit/model/bytes.h"
#include "base/xxh3.h"
#include "refit/wire/frame.h"

#include <ravel/dtype.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile unsigned char eye;

static void look(const unsigned char *frame, size_t bytes) {
    ravel__frame_head head;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__frame_open(frame, bytes, &head, &err) != RAVEL_OK) {
        if (!err.message[0]) abort();
        return;
    }
    if (head.bytes != bytes) abort();
    for (uint32_t i = 0; i < head.entries; i++) {
        ravel__frame_entry e;
        if (ravel__frame_entry_at(frame, &head, i, &e, NULL) != RAVEL_OK) continue;
        if (e.kind == RAVEL__ENTRY_KEEP) continue;
        uint64_t size = e.count * (uint64_t)ravel_dtype_bytes(e.dtype);
        if (e.offset > bytes || size > bytes - e.offset) abort();
        eye ^= (unsigned char)ravel__xxh3_of(frame + e.offset, (size_t)size);
    }
    ravel__frame_entry e;
    if (ravel__frame_entry_at(frame, &head, head.entries, &e, NULL) == RAVEL_OK) abort();
}

/* The same bytes with a header that says their length and has the right checksum. */
static void look_mended(unsigned char *frame, size_t bytes) {
    if (bytes < RAVEL__FRAME_HEADER) return;
    memcpy(frame, "RVLF", 4);
    ravel__put16(frame + 4, RAVEL__FRAME_FORMAT);
    ravel__put16(frame + 6, RAVEL__FRAME_HEADER);
    ravel__put32(frame + 8, ravel__get32(frame + 8) & RAVEL__FRAME_FLAGS);
    ravel__put64(frame + 40, bytes);
    uint32_t entries = ravel__get32(frame + 36) % 8;
    uint64_t table = bytes - (uint64_t)entries * RAVEL__FRAME_ENTRY;
    if (table < RAVEL__FRAME_HEADER || table > bytes) return;
    ravel__put32(frame + 36, entries);
    ravel__put64(frame + 48, table);
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, frame, 56);
    ravel__xxh3_add(&state, frame + table, bytes - table);
    ravel__put64(frame + 56, ravel__xxh3_end(&state));
    look(frame, bytes);
}

/* As header and entries of a frame whose payloads are apart: nothing of those may be read here. */
static void look_apart(unsigned char *frame, size_t bytes) {
    ravel__frame_head head;
    ravel__frame_entry e;
    size_t entries = bytes < RAVEL__FRAME_HEADER ? 0 : (bytes - RAVEL__FRAME_HEADER) / RAVEL__FRAME_ENTRY;
    size_t size = RAVEL__FRAME_HEADER + entries * RAVEL__FRAME_ENTRY;
    ravel__xxh3 state;
    (void)ravel__frame_open_apart(frame, bytes, &head, NULL);
    if (bytes < RAVEL__FRAME_HEADER) return;
    ravel__put32(frame + 36, (uint32_t)entries);
    ravel__put64(frame + 40, ravel__get64(frame + 48) + entries * RAVEL__FRAME_ENTRY);
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, frame, 56);
    ravel__xxh3_add(&state, frame + RAVEL__FRAME_HEADER, size - RAVEL__FRAME_HEADER);
    ravel__put64(frame + 56, ravel__xxh3_end(&state));
    if (ravel__frame_open_apart(frame, size, &head, NULL) != RAVEL_OK) return;
    for (uint32_t i = 0; i < head.entries; i++)
        if (ravel__frame_entry_at(frame, &head, i, &e, NULL) == RAVEL_OK && e.kind == RAVEL__ENTRY_DATA &&
            (e.offset > head.table || e.count * (uint64_t)ravel_dtype_bytes(e.dtype) > head.table - e.offset))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    unsigned char *copy = calloc(1, bytes ? bytes : 1);
    if (!copy) return 0;
    if (bytes > 0) memcpy(copy, data, bytes);
    look(copy, bytes);
    look_mended(copy, bytes);
    look_apart(copy, bytes);
    if (bytes >= RAVEL__NOTICE_BYTES) {
        ravel__notice notice;
        (void)ravel__notice_decode(data, &notice, NULL);
        memcpy(copy, "RVLN", 4);
        ravel__put32(copy + 12, RAVEL__FRAME_FORMAT);
        ravel__put64(copy + 32, ravel__xxh3_of(copy, 32));
        if (ravel__notice_decode(copy, &notice, NULL) != RAVEL_OK) abort();
    }
    free(copy);
    return 0;
}
