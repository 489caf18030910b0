/* One slot: who stands in it, and how a field is written there or read back.
 *
 *     slot        |- - t t t t t - - -|          lead 2, length 5: rows that are padded on the left have a lead,
 *                      ^ lead                    THD slots have none
 *
 * Whatever the run, the positions of it that hold something are one span, so that writing is fill, copy, fill.
 *
 *     guest       the sample in a slot, or nobody (a filler, a ghost)
 *     track       a field on its way: where from, where to, bytes of one position, pad pattern
 *     derived     the arrays that are worked out rather than copied
 */
#ifndef RAVEL_BATCH_SLOT_H
#define RAVEL_BATCH_SLOT_H

#include "batch/pen.h"
#include "batch/run.h"

/* index -1: nobody. A filler is nobody with a length: its one token is shown to attention, and nothing else. */
typedef struct ravel__guest {
    int64_t index, offset, length, prompt;
    int64_t lead; /* position of its first token in the slot */
} ravel__guest;

static inline ravel__guest ravel__nobody(int64_t length) {
    ravel__guest guest = {-1, 0, length, length, 0};
    return guest;
}

/* ---- fields --------------------------------------------------------------------------------------------- */

typedef struct ravel__track {
    int32_t kind;       /* ravel_field_kind */
    int32_t element;    /* bytes of the dtype */
    int64_t width;      /* elements of one position */
    size_t each;        /* element * width */
    const char *source; /* the store's data */
    unsigned char pad[8];
    ravel__pen pen; /* over the packed array */
} ravel__track;

/* Checks the field and prepares it, but for the pen. */
ravel_status ravel__track_init(const ravel_field *field, ravel__track *track, ravel_error *err);

/* How many positions hold an element, from the guest's first token on, and which element of the data the first is. */
int64_t ravel__field_held(int32_t kind, const ravel__guest *guest);
int64_t ravel__field_first(int32_t kind, const ravel__guest *guest);

/* Writes the next run of a field. */
void ravel__track_pack(ravel__track *track, const ravel__guest *guest, const ravel__run *run);
/* Asks for the beginning of a guest that will be packed soon. */
void ravel__track_soon(const ravel__track *track, const ravel__guest *guest);
/* Reads a run that begins at position `at` of the packed array. */
void ravel__track_unpack(const ravel__track *track, const ravel__guest *guest, const ravel__run *run,
                         const char *packed, int64_t at, char *out);
/* The one element of a RAVEL_FIELD_SAMPLE: the next, and that of sequence `at`. */
void ravel__track_pack_sample(ravel__track *track, const ravel__guest *guest);
void ravel__track_unpack_sample(const ravel__track *track, const ravel__guest *guest, const char *packed, int64_t at,
                                char *out);

/* ---- derived arrays ------------------------------------------------------------------------------------- */

typedef enum ravel__derived_kind {
    RAVEL__POSITIONS, /* int32_t from the guest's first token; 0 in padding */
    RAVEL__SEGMENTS,  /* int32_t the guest's number; 0 in padding */
    RAVEL__HIDDEN,    /* uint8_t 1 in padding */
    RAVEL__SHOWN,     /* uint8_t 1 at tokens */
    RAVEL__LOSS,      /* float 1 where a token of the response is predicted */
    RAVEL__DERIVED_COUNT
} ravel__derived_kind;

typedef struct ravel__derived {
    int wanted[RAVEL__DERIVED_COUNT];
    ravel__pen pens[RAVEL__DERIVED_COUNT];
} ravel__derived;

/* An array that is NULL is not wanted. */
void ravel__derived_add(ravel__derived *derived, ravel__derived_kind kind, void *array, int stream);
void ravel__derived_pack(ravel__derived *derived, const ravel__guest *guest, int32_t segment, const ravel__run *run);
void ravel__derived_close(ravel__derived *derived);

/* ---- records of older callers ---------------------------------------------------------------------------- */

/* Copies a record whose `size` says how much of it the caller has into `own`, which is of this library's size; what an
 * older caller lacks is 0. E_ARGUMENT below `least`, the size of the first release, and above ours. */
ravel_status ravel__record_read(const char *name, const void *record, size_t size, size_t least, void *own,
                                size_t own_size, ravel_error *err);

/* ---- the store ------------------------------------------------------------------------------------------ */

ravel_status ravel__bin_valid(const ravel_ragged *ragged, const ravel_bin *bin, ravel_error *err);
/* Sample `index` of the store; E_ARGUMENT for an index out of range, E_DATA for a sample that is wrong. */
ravel_status ravel__guest_get(const ravel_ragged *ragged, int64_t index, ravel__guest *guest, ravel_error *err);

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
