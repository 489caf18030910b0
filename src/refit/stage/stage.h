/* The stage: where a new version is assembled beside the live one, and how it becomes live.
 *
 * One row of a table per kind (stage_kinds.c); stage.c is the front that all callers use.
 *
 *     kind        written while staging       commit                    abort
 *     spare       the set that is not live    the two sets swap roles   nothing to do
 *     copy        a staging set               copied to `data`, whose   nothing to do
 *                                             addresses never change
 *     undo        the live set, old bytes     the log is dropped        the log is written back
 *                 go to a log first
 *     in place    `data`, first version only: there is nothing to keep
 *     callbacks   the caller's                sink.commit               sink.abort
 *
 *     begin -> write, keep ... -> seal -> commit
 *                    \-> abort       \-> abort, or doubt (kinds that survive it): kept until the next connection
 *
 * ravel__stage_write, _keep and _address may be called from several threads at once for different elements. */
#ifndef RAVEL_REFIT_STAGE_H
#define RAVEL_REFIT_STAGE_H

#include "base/memory.h"
#include "refit/model/holding.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct ravel__stage ravel__stage;
typedef struct ravel__undo_block ravel__undo_block;

/* Elements first .. first+count of a box of one item, counted row-major. */
typedef struct ravel__refit_span {
    int32_t item;
    const ravel__box *box; /* inside the item's box */
    int64_t first, count;
} ravel__refit_span;

typedef struct ravel__stage_kind {
    const char *name;
    /* Makes room for a version. */
    ravel_status (*begin)(ravel__stage *stage, ravel_error *err);
    /* `data` holds the span's elements as `dtype`. */
    ravel_status (*write)(ravel__stage *stage, const ravel__refit_span *span, int32_t dtype, const void *data,
                          ravel_error *err);
    /* The span's elements are those of the live version. */
    ravel_status (*keep)(ravel__stage *stage, const ravel__refit_span *span, ravel_error *err);
    /* The memory of a tensor that is being written; NULL: the caller's callbacks have it. */
    void *(*target)(const ravel__stage *stage, int64_t tensor);
    /* The staged version becomes live. Only a copy on a device can fail: E_DEVICE, E_DEAD. */
    ravel_status (*commit)(ravel__stage *stage, ravel_error *err);
    /* After a failure nothing whole is left. */
    ravel_status (*abort)(ravel__stage *stage, ravel_error *err);
    int32_t direct;   /* bytes may be written to `target` without calling `write` */
    int32_t survives; /* a staged version stays whole without a commit */
} ravel__stage_kind;

extern const ravel__stage_kind ravel__stage_spare, ravel__stage_copy, ravel__stage_undo, ravel__stage_in_place,
    ravel__stage_callbacks;

struct ravel__stage {
    const ravel_refit_sink *sink; /* NULL: this rank receives nothing */
    const ravel__holding *holding;
    const ravel_allocator *allocator; /* of second sets and log */
    const ravel__stage_kind *kind;    /* as configured */
    const ravel__stage_kind *now;     /* of the version that is being staged: `kind`, or in place for the first */
    int32_t far;                      /* the tensors together are larger than a cache */
    int32_t active;                   /* between begin and commit or abort */
    _Atomic int32_t live;             /* 0: data, 1: spare; readers on other threads ask for it */
    ravel_refit_identity held, next;
    ravel_refit_identity prepared; /* complete, but the vote's result is not known; version 0: none */
    void **spares;                 /* [sink->count] second sets that the stage allocated; NULL: none yet */
    size_t *spare_bytes;
    pthread_mutex_t lock;           /* of the undo log, and of sink.load: one call at a time */
    ravel__undo_block *log;         /* newest first */
    uint64_t *hashes, *next_hashes; /* [holding->count] of the live and the staged tensors; NULL: no audit */
};

ravel_status ravel__stage_init(ravel__stage *stage, const ravel_refit_sink *sink, const ravel__holding *holding,
                               const ravel_refit_options *options, const ravel_allocator *allocator, ravel_error *err);
void ravel__stage_free(ravel__stage *stage);

ravel_status ravel__stage_begin(ravel__stage *stage, ravel_refit_identity next, ravel_error *err);
ravel_status ravel__stage_write(ravel__stage *stage, const ravel__refit_span *span, int32_t dtype, const void *data,
                                ravel_error *err);
ravel_status ravel__stage_keep(ravel__stage *stage, const ravel__refit_span *span, ravel_error *err);
/* Where the span may be written instead of by ravel__stage_write. NULL: it is not contiguous there as `dtype`, or the
 * kind does not allow it. */
void *ravel__stage_address(const ravel__stage *stage, const ravel__refit_span *span, int32_t dtype);
/* Whether the live version can be read, so that changes of it may come: it is not the callbacks'. */
int ravel__stage_patches(const ravel__stage *stage);
/* The span's elements of the live version. */
ravel_status ravel__stage_read_live(const ravel__stage *stage, const ravel__refit_span *span, int32_t dtype, void *out,
                                    ravel_error *err);
/* All elements have been written: hashes them, where audit is on. */
void ravel__stage_seal(ravel__stage *stage);
/* E_DEVICE, E_DEAD: the device failed in the copy; then the held version is 0. */
ravel_status ravel__stage_commit(ravel__stage *stage, ravel_error *err);
/* Back to the version before. If that fails, the held version is 0. */
ravel_status ravel__stage_abort(ravel__stage *stage, ravel_error *err);
/* The same after the failure `why` (may be NULL), which says if it did. */
void ravel__stage_give_up(ravel__stage *stage, ravel_error *why);
/* The vote's result is not known: keeps the staged version where the kind survives that, else aborts. */
ravel_status ravel__stage_doubt(ravel__stage *stage, ravel_error *err);
/* If a peer committed the prepared version, commits it here too; otherwise drops it. */
void ravel__stage_resolve(ravel__stage *stage, int committed);

/* While the first version comes: makes the second set and writes to it, so that the next version finds it mapped. Ends
 * early if *stop. By one thread, beside those that write. */
void ravel__stage_prepare(ravel__stage *stage, const _Atomic int32_t *stop);

void *ravel__stage_data(const ravel__stage *stage, int64_t tensor);
ravel_status ravel__stage_audit(const ravel__stage *stage, ravel_error *err);

/* stage_kinds.c: memory of a tensor in set 0 (data) or 1 (spare). */
void *ravel__stage_set(const ravel__stage *stage, int64_t tensor, int32_t set);
/* Frees allocated second sets; a live one is first copied to `data`. */
void ravel__stage_free_sets(ravel__stage *stage);
void ravel__stage_free_log(ravel__stage *stage);

#endif
