/* Boxes: the part of a tensor that a rank holds, and intersections of parts. Pure integer geometry.
 *
 * A box is a start and an extent in every dimension of the whole ("wire") tensor. Its elements are counted row-major:
 * the last dimension runs fastest. A scalar has no dimensions and one element. */
#ifndef RAVEL_REFIT_BOX_H
#define RAVEL_REFIT_BOX_H

#include <ravel/refit.h>

typedef struct ravel__box {
    int32_t ndim;
    int64_t start[RAVEL_REFIT_DIMS];
    int64_t extent[RAVEL_REFIT_DIMS];
} ravel__box;

/* The whole of a tensor. */
ravel__box ravel__box_whole(int32_t ndim, const int64_t *dims);
/* Elements; 0 where any extent is. The caller has made sure that the whole tensor's count fits. */
int64_t ravel__box_count(const ravel__box *box);
int ravel__box_equal(const ravel__box *a, const ravel__box *b);
/* 1 and the common part, or 0 where there is none. */
int ravel__box_meet(const ravel__box *a, const ravel__box *b, ravel__box *out);
/* `a` minus `b`, as at most 2 * ndim boxes that do not overlap, in a fixed order. Returns their number. */
int32_t ravel__box_without(const ravel__box *a, const ravel__box *b, ravel__box *out);
/* "[0:4, 128:256]" into text. */
void ravel__box_describe(const ravel__box *box, char *text, size_t bytes);
/* Part `index` of `parts` of a dimension. */
static inline int64_t ravel__part_start(int64_t dim, int64_t parts, int64_t index) {
    /* dim * index / parts without overflow */
    return dim / parts * index + dim % parts * index / parts;
}

static inline int ravel__identity_equal(ravel_refit_identity a, ravel_refit_identity b) {
    return a.version == b.version && a.nonce == b.nonce && a.digest == b.digest;
}

#endif
