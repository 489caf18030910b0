/* One slot: which sequence is in it, and how a field is written there or read back.
 *
 *     slot        |- - t t t t t - - -|          lead 2, length 5: rows that are padded on the left have a lead,
 *                      ^ lead                    THD slots have none
 *
 * Whatever the run, the positions of it that hold something are one span, so that writing is fill, copy, fill.
 *
 *     sequence    the content of a slot: a sample, a filler, or padding only
 *     track       how one field is copied: source, target, bytes per position, pad pattern
 *     derived     arrays that are computed, not copied: positions, segments, masks
 */
#ifndef RAVEL_BATCH_SLOT_H
#define RAVEL_BATCH_SLOT_H

#include "batch/writer.h"
#include "batch/run.h"

/* index -1: no sample. A filler has one unlabelled token, which attention sees; padding has length 0. */
typedef struct ravel__sequence {
    int64_t index, offset, length, prompt;
    int64_t lead; /* position of its first token in the slot */
} ravel__sequence;

static inline ravel__sequence ravel__no_sample(int64_t length) {
    ravel__sequence seq = {-1, 0, length, length, 0};
    return seq;
}

/* ---- fields --------------------------------------------------------------------------------------------- */

typedef struct ravel__track {
    int32_t kind;       /* ravel_field_kind */
    int32_t element;    /* bytes of the dtype */
    int64_t width;      /* elements of one position */
    size_t each;        /* element * width */
    const char *source; /* the store's data */
    unsigned char pad[8];
    ravel__writer writer; /* over the packed array */
} ravel__track;

/* Checks the field and sets everything but the writer. */
ravel_status ravel__track_init(const ravel_field *field, ravel__track *track, ravel_error *err);

/* How many positions hold an element, from the sequence's first token on, and which element of the data the first
 * is. */
int64_t ravel__field_held(int32_t kind, const ravel__sequence *seq);
int64_t ravel__field_first(int32_t kind, const ravel__sequence *seq);

/* Writes the next run of a field. */
void ravel__track_pack(ravel__track *track, const ravel__sequence *seq, const ravel__run *run);
/* Prefetches the beginning of a sequence that is packed soon. */
void ravel__track_soon(const ravel__track *track, const ravel__sequence *seq);
/* Reads a run that begins at position `at` of the packed array. */
void ravel__track_unpack(const ravel__track *track, const ravel__sequence *seq, const ravel__run *run,
                         const char *packed, int64_t at, char *out);
/* The one element of a RAVEL_FIELD_SAMPLE: the next, and that of sequence `at`. */
void ravel__track_pack_sample(ravel__track *track, const ravel__sequence *seq);
void ravel__track_unpack_sample(const ravel__track *track, const ravel__sequence *seq, const char *packed, int64_t at,
                                char *out);

/* ---- derived arrays ------------------------------------------------------------------------------------- */

typedef enum ravel__derived_kind {
    RAVEL__POSITIONS, /* int32_t from the sequence's first token; 0 in padding */
    RAVEL__SEGMENTS,  /* int32_t the sequence's number; 0 in padding */
    RAVEL__HIDDEN,    /* uint8_t 1 in padding */
    RAVEL__SHOWN,     /* uint8_t 1 at tokens */
    RAVEL__LOSS,      /* float 1 if a token of the response is predicted */
    RAVEL__DERIVED_COUNT
} ravel__derived_kind;

typedef struct ravel__derived {
    int wanted[RAVEL__DERIVED_COUNT];
    ravel__writer writers[RAVEL__DERIVED_COUNT];
} ravel__derived;

/* An array that is NULL is not wanted. */
void ravel__derived_add(ravel__derived *derived, ravel__derived_kind kind, void *array, int stream);
void ravel__derived_pack(ravel__derived *derived, const ravel__sequence *seq, int32_t segment, const ravel__run *run);
void ravel__derived_close(ravel__derived *derived);

/* ---- records of older callers ---------------------------------------------------------------------------- */

/* Copies a record whose `size` says how much of it the caller has into `own`, which is of this library's size; what an
 * older caller lacks is 0. E_ARGUMENT below `least`, the size of the first release, and above ours. */
ravel_status ravel__record_read(const char *name, const void *record, size_t size, size_t least, void *own,
                                size_t own_size, ravel_error *err);

/* ---- the store ------------------------------------------------------------------------------------------ */

ravel_status ravel__bin_valid(const ravel_ragged *ragged, const ravel_bin *bin, ravel_error *err);
/* Sample `index` of the store; E_ARGUMENT for an index out of range, E_DATA for a sample that is wrong. */
ravel_status ravel__sequence_get(const ravel_ragged *ragged, int64_t index, ravel__sequence *seq, ravel_error *err);

static inline int64_t ravel__multiple_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

/* ---- one block, many arrays ----------------------------------------------------------------------------- */

enum { RAVEL__PIECE_ALIGN = 256 };

/* Hands out aligned pieces of a block; where the block is NULL it only counts. */
typedef struct ravel__cutter {
    char *block;
    size_t used; /* SIZE_MAX: it overflowed */
} ravel__cutter;

ravel__cutter ravel__cutter_begin(void *block);
void *ravel__cutter_take(ravel__cutter *cutter, int64_t count, size_t each);

#endif
