/* Frames: a buffer's worth of slices (docs/refit-wire.md, "Frame" and "Notice").
 *
 *     0        256                                    table      bytes
 *     [header ][payload 0 ][payload 1 ] ... [payload n][entries   ]
 *              each begins at a multiple of 256          48 bytes each
 *
 * A writer fills a buffer of the caller: payloads grow from the front, entries from the back; closing moves the entries
 * next to the last payload. A reader checks every size and offset against the buffer before it uses it, so untrusted
 * bytes are safe to read.
 *
 * Payloads may also travel separately, in device memory (payload.h). Offsets then count as if they were in the frame;
 * the frame's own bytes are the header followed by the entries.
 *
 * A notice precedes each frame and holds its length; for a frame with separate payloads, the length of header and
 * entries. */
#ifndef RAVEL_REFIT_FRAME_H
#define RAVEL_REFIT_FRAME_H

#include <ravel/base.h>

enum {
    RAVEL__FRAME_FORMAT = 1,
    RAVEL__FRAME_HEADER = 256,
    RAVEL__FRAME_ALIGN = 256,
    RAVEL__FRAME_ENTRY = 48,
    RAVEL__NOTICE_BYTES = 40
};

/* flags of frames and notices */
enum {
    RAVEL__FRAME_LAST_OF_WINDOW = 1,
    RAVEL__FRAME_LAST = 2,  /* of the stream */
    RAVEL__FRAME_ABORT = 4, /* the sender failed: no more frames follow, and received ones are invalid */
    RAVEL__FRAME_FLAGS = 7
};

/* Kind of an entry. */
enum {
    RAVEL__ENTRY_DATA = 0,
    RAVEL__ENTRY_KEEP = 1 /* these elements are as in the version before: no payload */
};

typedef struct ravel__frame_head {
    uint32_t flags;
    uint32_t window;
    uint64_t sequence; /* of the frame in its stream, from 0 */
    uint64_t version;  /* of the weights */
    uint32_t sender;   /* rank */
    uint32_t entries;
    uint64_t bytes; /* of the frame, payloads included */
    uint64_t table; /* where its payloads end */
    uint64_t at;    /* of the entries in the bytes that were opened */
} ravel__frame_head;

typedef struct ravel__frame_entry {
    uint32_t tensor; /* of the directory */
    uint32_t slice;  /* of the stream */
    uint16_t kind;
    uint16_t dtype;
    uint64_t first, count; /* elements of the slice */
    uint64_t offset;       /* of the payload in the frame */
    uint64_t checksum;     /* XXH3 of the payload; KEEP: 0 */
} ravel__frame_entry;

typedef struct ravel__frame_writer {
    unsigned char *buffer;
    size_t bytes;   /* of the buffer */
    size_t end;     /* of the last payload, rounded up */
    size_t entries; /* so far, at the back of the buffer */
    size_t apart;   /* payloads are elsewhere, and end at most here; 0: they are in the buffer */
} ravel__frame_writer;

void ravel__frame_begin(ravel__frame_writer *writer, void *buffer, size_t bytes);
/* The same for a frame of up to `most` bytes whose payloads are not in the buffer: the caller puts them elsewhere, at the
 * same offsets, beginning with RAVEL__FRAME_HEADER. */
void ravel__frame_begin_apart(ravel__frame_writer *writer, void *buffer, size_t bytes, size_t most);
/* Bytes of payload that one more entry could have; 0: not even an entry without payload fits. `room` is set to the
 * payload's place; of payloads that are apart, to NULL. */
size_t ravel__frame_room(const ravel__frame_writer *writer, unsigned char **room);
/* Adds an entry whose payload of `payload` bytes was written at the room's place (offset is set here). */
void ravel__frame_add(ravel__frame_writer *writer, const ravel__frame_entry *entry, size_t payload);
/* The checksum of entry `index`, where it was not known when the entry was added. */
void ravel__frame_set_checksum(ravel__frame_writer *writer, size_t index, uint64_t checksum);
/* Lengthens the last entry, which is KEEP, instead of adding one. */
void ravel__frame_keep_more(ravel__frame_writer *writer, uint64_t count);
/* The last entry, or 0 where there is none. */
int ravel__frame_last(const ravel__frame_writer *writer, ravel__frame_entry *entry);
/* Writes the header; returns how many bytes of the buffer are the frame. head->entries and head->bytes are set. */
size_t ravel__frame_end(ravel__frame_writer *writer, ravel__frame_head *head);

/* Checks header, sizes and the checksum over header and entries. E_DATA or E_CHECKSUM says what is wrong. */
ravel_status ravel__frame_open(const void *bytes, size_t size, ravel__frame_head *head, ravel_error *err);
/* The same for a frame whose payloads are apart: they have head->table - RAVEL__FRAME_HEADER bytes. */
ravel_status ravel__frame_open_apart(const void *bytes, size_t size, ravel__frame_head *head, ravel_error *err);
/* Entry `index` of an opened frame: its payload, of count * bytes of the dtype, lies inside the frame. */
ravel_status ravel__frame_entry_at(const void *bytes, const ravel__frame_head *head, uint32_t index,
                                   ravel__frame_entry *entry, ravel_error *err);

typedef struct ravel__notice {
    uint32_t flags;
    uint32_t window;
    uint64_t sequence;
    uint64_t bytes; /* of the frame that follows; 0: none does */
} ravel__notice;

void ravel__notice_encode(const ravel__notice *notice, unsigned char out[RAVEL__NOTICE_BYTES]);
ravel_status ravel__notice_decode(const unsigned char in[RAVEL__NOTICE_BYTES], ravel__notice *notice, ravel_error *err);

#endif
