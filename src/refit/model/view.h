/* Views: where the elements of a box are in this rank's memory, and copies between memory and packed bytes.
 *
 * Most views are strided arrays. One dimension may also be blocked, for fused tensors that interleave: its index i
 * lies at (i / block) * block_stride + (i % block) * stride.
 *
 *     grouped qkv, 2 query heads per group:    memory: [q0 q1 k0 v0][q2 q3 k1 v1] ...
 *     the view of q:                           block 2 heads, block_stride 4 heads
 *
 * gather and scatter take a range of a box's elements, so a tensor can be cut anywhere to fill a buffer. */
#ifndef RAVEL_REFIT_VIEW_H
#define RAVEL_REFIT_VIEW_H

#include "refit/model/box.h"

typedef struct ravel__carrier ravel__carrier; /* carrier.h */

typedef struct ravel__view {
    ravel__box box;                    /* of the wire tensor: what is here */
    int64_t tensor;                    /* index into the caller's tensors */
    int64_t offset;                    /* elements from the tensor's data to the box's first */
    int64_t strides[RAVEL_REFIT_DIMS]; /* elements */
    int64_t block, block_stride;       /* of dimension block_dim; block 0: none is blocked */
    int32_t block_dim;
    int32_t dtype;           /* of the memory */
    ravel__carrier *carrier; /* of device memory; NULL: it is the host's */
} ravel__view;

/* Elements first .. first+count of `piece` (a box inside view->box), from data to `out` as `dtype`. */
ravel_status ravel__view_gather(const ravel__view *view, const void *data, const ravel__box *piece, int64_t first,
                                int64_t count, int32_t dtype, void *out, ravel_error *err);
/* Where the elements of `piece` are from `first` on, if they lie in host memory one after the other as `dtype`; else
 * NULL. */
const void *ravel__view_direct(const ravel__view *view, const void *data, const ravel__box *piece, int64_t first,
                               int32_t dtype);
/* Elements that lie one after the other at most (the blocks of a blocked dimension may join two); 1: none do. */
int64_t ravel__view_run(const ravel__view *view, const ravel__box *piece);
/* The way back: from `in`, of `dtype`, into data. `far`: data is not read again soon, so long runs
 * bypass the cache. */
ravel_status ravel__view_scatter(const ravel__view *view, void *data, const ravel__box *piece, int64_t first,
                                 int64_t count, int32_t dtype, const void *in, int far, ravel_error *err);
/* From one set of tensors to another with the same view. */
ravel_status ravel__view_copy(const ravel__view *view, const void *from, void *to, const ravel__box *piece,
                              int64_t first, int64_t count, ravel_error *err);

/* Calls run for each stretch of elements with one stride, in order; `at` counts elements from the tensor's data. A
 * status other than RAVEL_OK ends it. */
typedef ravel_status (*ravel__run_fn)(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err);
ravel_status ravel__view_walk(const ravel__view *view, const ravel__box *piece, int64_t first, int64_t count,
                              ravel__run_fn run, void *user, ravel_error *err);
/* The same with stretches of adjacent elements only: a stretch with another stride comes element by element. */
typedef ravel_status (*ravel__piece_fn)(void *user, int64_t at, int64_t count, ravel_error *err);
ravel_status ravel__view_pieces(const ravel__view *view, const ravel__box *piece, int64_t first, int64_t count,
                                ravel__piece_fn each, void *user, ravel_error *err);

#endif
