/* The stage: where a new version is put together beside the one that is in use, and the switch.
 *
 *     spare       two sets of tensors, data and spare; the one that is not live is written
 *     undo        the live set is written; what was there goes into a log first, and back after a failure
 *     first       there is no version yet that would have to be kept: the live set is written, without a log
 *     callbacks   the caller's business
 *
 *     begin -> write, keep ... -> prepared -> commit
 *                    \-> abort       \-> abort, or in doubt (spare only): kept until the next connection tells */
#ifndef RAVEL_REFIT_STAGE_H
#define RAVEL_REFIT_STAGE_H

#include "base/memory.h"
#include "refit/holding.h"

typedef struct ravel__undo_block ravel__undo_block;

typedef struct ravel__stage {
    const ravel_refit_sink *sink; /* NULL: this rank receives nothing */
    const ravel__holding *holding;
    const ravel_allocator *allocator; /* of spare sets and log */
    const char *undo_dir;
    int32_t mode;   /* ravel_refit_stage */
    int32_t far;    /* the tensors together are larger than a cache */
    int32_t active; /* between begin and commit or abort */
    int32_t first;  /* this one has no predecessor */
    int32_t live;   /* 0: data, 1: spare */
    int64_t version, next;
    int64_t prepared; /* complete, but the vote's result is not known; 0: none */
    uint64_t lineage, next_lineage, prepared_lineage;
    void **spares; /* [sink->count] sets that the stage allocated; NULL: none yet */
    size_t *spare_bytes;
    ravel__undo_block *log;         /* newest first */
    int undo_file;                  /* -1: none */
    int64_t undo_end;               /* bytes in the file */
    uint64_t *hashes, *next_hashes; /* [holding->count] of the live and the staged tensors; NULL: no audit */
} ravel__stage;

ravel_status ravel__stage_init(ravel__stage *stage, const ravel_refit_sink *sink, const ravel__holding *holding,
                               const ravel_refit_options *options, const ravel_allocator *allocator, ravel_error *err);
void ravel__stage_free(ravel__stage *stage);

ravel_status ravel__stage_begin(ravel__stage *stage, int64_t version, uint64_t lineage, ravel_error *err);
/* Elements first .. first+count of `piece` of an item, of `dtype`, in `data`. */
ravel_status ravel__stage_write(ravel__stage *stage, int32_t item, const ravel__box *piece, int64_t first,
                                int64_t count, int32_t dtype, const void *data, ravel_error *err);
/* Where the same elements may be written at once, past the cache, instead of by ravel__stage_write; NULL: they do not lie
 * there one after the other as `dtype`, must be logged first, are few, or go to a callback. */
void *ravel__stage_place(const ravel__stage *stage, int32_t item, const ravel__box *piece, int64_t first,
                         int32_t dtype);
/* The same elements as in the live version. */
ravel_status ravel__stage_keep(ravel__stage *stage, int32_t item, const ravel__box *piece, int64_t first, int64_t count,
                               ravel_error *err);
/* Everything is there: hashes it, where that is wanted. */
void ravel__stage_seal(ravel__stage *stage);
void ravel__stage_commit(ravel__stage *stage);
/* Back to the version before; E_IO where the undo log cannot be read: then nothing whole is left, and version is 0. */
ravel_status ravel__stage_abort(ravel__stage *stage, ravel_error *err);
/* The vote's result is not known: keeps what was staged where that costs nothing, else as abort. */
ravel_status ravel__stage_doubt(ravel__stage *stage, ravel_error *err);
/* Others have (or have not) switched to what is in doubt here. */
void ravel__stage_resolve(ravel__stage *stage, int switched);

void *ravel__stage_data(const ravel__stage *stage, int64_t tensor);
ravel_status ravel__stage_audit(const ravel__stage *stage, ravel_error *err);

#endif
