/* The description of one launch (device/kernels.h): runs and tracks, written on the host into one block.
 *
 *     open (room for all)  ->  run, run, ...  ->  field, derived, list, ...  ->  launch  ->  close
 */
#ifndef RAVEL_BATCH_ROWS_H
#define RAVEL_BATCH_ROWS_H

#include "batch/slot.h"
#include "device/kernels.h"

typedef struct ravel__book {
    ravel__rows_head *head; /* the block */
    size_t room;            /* bytes of it */
    ravel__row_track *tracks;
    ravel__row_run *runs;
    int32_t *samples; /* [sequences] */
    double *values;   /* [runs], if there is room for them */
    char *lists;      /* what ravel__book_list hands out */
    int64_t positions;
} ravel__book;

typedef struct ravel__book_room {
    int64_t tracks, runs, sequences, values, list_words;
} ravel__book_room;

/* The most runs that sequences can have. */
static inline int64_t ravel__runs_most(const ravel_cp *cp, int32_t rank, int64_t sequences) {
    return rank >= 0 && cp->ranks > 1 && cp->kind == RAVEL_CP_ZIGZAG ? 2 * sequences : sequences;
}

/* An empty block with room for these counts, or E_MEMORY. */
ravel_status ravel__book_open(ravel__book *book, const ravel__book_room *room, ravel_error *err);
/* The next positions. Empty runs are left out. */
void ravel__book_run(ravel__book *book, const ravel__sequence *seq, const ravel__run *run, int32_t segment);
/* An array of the field's kind over the packed side. gather: data -> packed; scatter: packed -> data, see
 * head->scatter. */
void ravel__book_field(ravel__book *book, const ravel__track *track, const void *source, void *target,
                       int64_t positions);
/* A derived array (slot.h); NULL: not wanted. */
void ravel__book_derived(ravel__book *book, ravel__row_kind kind, void *target, int32_t bytes);
/* A list of words that the host writes (into the result) and the launch copies to `target`. */
int32_t *ravel__book_list(ravel__book *book, void *target, int64_t words);
/* Counts tiles, launches, and returns when the block may be closed. */
ravel_status ravel__book_launch(ravel__book *book, ravel_stream *stream, ravel_error *err);
void ravel__book_close(ravel__book *book);

/* Whether the field's data can be read by a launch in `stream`, which is ordered after the field's own stream. */
ravel_status ravel__book_source(const ravel_field *field, ravel_stream *stream, ravel_error *err);
/* Whether the field's data can be read by the host: the other half of it. */
ravel_status ravel__host_source(const ravel_field *field, ravel_error *err);

#endif
