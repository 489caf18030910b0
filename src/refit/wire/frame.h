/* Frames: a buffer's worth of blocks (block.h), as two messages (docs/refit-wire.md, "Frame").
 *
 *     head         0 [header] 64 [entry 0][entry 1] ... 32 bytes each, then zeros: always as long as the ranks agreed
 *     payloads     0 [payload 0    ][payload 1 ] ...    each begins at a multiple of 256; as long as the head says
 *
 * The head is in host memory; payloads may be on a device (casts.h), or be read in the sender's buffer. The packer
 * writes the struct in place and seals it. A reader checks header and entries before it uses them, so untrusted bytes
 * are safe to read: a wrong header ends the communicator, since the length of what follows is not known, wrong entries
 * only the update. */
#ifndef RAVEL_REFIT_FRAME_H
#define RAVEL_REFIT_FRAME_H

#include <ravel/base.h>

enum { RAVEL__FRAME_FORMAT = 2, RAVEL__FRAME_HEADER = 64, RAVEL__FRAME_ALIGN = 256 };

enum {
    RAVEL__FRAME_LAST_OF_WINDOW = 1,
    RAVEL__FRAME_LAST = 2,  /* of the stream */
    RAVEL__FRAME_ABORT = 4, /* the sender failed: no more frames follow, and received ones are invalid */
    RAVEL__FRAME_FLAGS = 7
};

/* The next elements of a slice; slices come in their order. */
typedef struct ravel__frame_entry {
    uint32_t kind;  /* ravel__block_kind */
    uint32_t slice; /* of the stream */
    uint64_t count; /* elements */
    uint64_t size;  /* of its payload; KEEP: 0 */
    uint64_t hash;  /* as the block's; KEEP: 0 */
} ravel__frame_entry;

typedef struct ravel__frame {
    uint64_t sum; /* XXH3 of the rest of the header */
    char magic[4];
    uint32_t format, flags, window;
    uint64_t sequence; /* of the frame in its stream, from 0 */
    uint64_t version;  /* of the weights */
    uint32_t sender;   /* rank */
    uint32_t entries;
    uint64_t bytes;       /* of the payloads; 0: there is no second message */
    uint64_t entries_sum; /* XXH3 of all of the head that follows */
    ravel__frame_entry entry[];
} ravel__frame;
_Static_assert(sizeof(ravel__frame) == RAVEL__FRAME_HEADER && sizeof(ravel__frame_entry) == 32, "docs/refit-wire.md");

static inline size_t ravel__frame_align(size_t bytes) {
    return (bytes + RAVEL__FRAME_ALIGN - 1) / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN;
}
/* Of a buffer of `bytes`, what its head takes: room for many small tensors, and a small part. */
static inline size_t ravel__frame_head_bytes(int64_t bytes) {
    int64_t head = bytes / 256 < 2048 ? 2048 : bytes / 256 > 16384 ? 16384 : bytes / 256;
    if (head > bytes / 8) head = bytes / 8;
    return (size_t)(head / RAVEL__FRAME_ALIGN * RAVEL__FRAME_ALIGN);
}
/* Entries that a head of `head_bytes` has room for. */
static inline uint32_t ravel__frame_entries_most(size_t head_bytes) {
    return (uint32_t)((head_bytes - RAVEL__FRAME_HEADER) / sizeof(ravel__frame_entry));
}

/* Sets magic, format and sums, and zeros behind the entries. */
void ravel__frame_seal(ravel__frame *frame, size_t head_bytes);
/* The header: E_DATA or E_CHECKSUM says what is wrong. `most`: bytes that the payloads may have. */
ravel_status ravel__frame_check(const ravel__frame *frame, size_t head_bytes, uint64_t most, ravel_error *err);
/* The entries, after the header: counts are above 0, and the payloads have together the header's bytes. */
ravel_status ravel__frame_check_entries(const ravel__frame *frame, size_t head_bytes, ravel_error *err);

#endif
