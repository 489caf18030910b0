/* The checks of a frame's head on any bytes. The checksums stop nearly everything, so the input is tried as it is and with the
 * right ones put in: payloads of what is then accepted must lie inside of what the header says. */
#include "base/memory.h"
#include "refit/wire/block.h"
#include "refit/wire/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MOST = 1 << 20 };

static void look(const ravel__frame *f, size_t head_bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__frame_check(f, head_bytes, MOST, &err) != RAVEL_OK ||
        ravel__frame_check_entries(f, head_bytes, &err) != RAVEL_OK) {
        if (!err.message[0]) abort();
        return;
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < f->entries; i++) {
        const ravel__frame_entry *e = &f->entry[i];
        if (e->kind >= RAVEL__BLOCK_KINDS || e->count == 0 || at + e->size > f->bytes || at + e->size < at) abort();
        at += ravel__frame_align(e->size);
    }
    if (at != f->bytes || f->bytes > MOST) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    size_t head_bytes = bytes < 512 ? 512 : bytes;
    ravel__frame *f = calloc(1, head_bytes);
    if (!f) return 0;
    if (bytes > 0) memcpy(f, data, bytes);
    look(f, head_bytes);
    f->entries %= ravel__frame_entries_most(head_bytes) + 1;
    f->flags &= RAVEL__FRAME_FLAGS;
    ravel__frame_seal(f, head_bytes);
    look(f, head_bytes);
    f->bytes = 0;
    for (uint32_t i = 0; i < f->entries; i++) {
        ravel__frame_entry *e = &f->entry[i];
        e->kind %= RAVEL__BLOCK_KINDS;
        e->size = e->kind == RAVEL__BLOCK_KEEP ? 0 : e->size % 4096 + 1;
        f->bytes += ravel__frame_align(e->size);
    }
    ravel__frame_seal(f, head_bytes);
    look(f, head_bytes);
    free(f);
    return 0;
}
