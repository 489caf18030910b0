/* The receiving end of what one sender sends: the slices that were asked of it, in their order, each from its first
 * element to its last. The cursor says what the next block must be; any other block is an error, whatever carries it.
 *
 *     next: kind, elements, bytes, hash --> a block for ravel__block_decode
 */
#ifndef RAVEL_REFIT_INTAKE_H
#define RAVEL_REFIT_INTAKE_H

#include "refit/model/plan.h"
#include "refit/wire/block.h"

typedef struct ravel__intake {
    const ravel__refit_plan *plan;
    int64_t first, count; /* of plan->wants */
    int32_t based;        /* the sender knows what is held here: it may keep and change it */
    int32_t sender;
    const char *role; /* of the sender, for sentences: "rank" */
    int64_t at;       /* the next want, from 0, and its next element */
    int64_t element;
} ravel__intake;

static inline int ravel__intake_is_over(const ravel__intake *in) {
    return in->at == in->count;
}
static inline const ravel__want *ravel__intake_want(const ravel__intake *in) {
    return &in->plan->wants[in->first + in->at];
}
/* That the next elements travel in; not at the end. */
static inline int32_t ravel__intake_dtype(const ravel__intake *in) {
    return in->plan->dtypes[ravel__intake_want(in)->item];
}
/* The next `count` elements. */
static inline ravel__refit_span ravel__intake_span(const ravel__intake *in, int64_t count) {
    const ravel__want *want = ravel__intake_want(in);
    return (ravel__refit_span){want->item, &want->piece->box, in->element, count};
}
/* Elements that DATA of `bytes` brings; 0: it does not continue what came. */
int64_t ravel__intake_elements(const ravel__intake *in, int64_t bytes);
/* The block, without its bytes, and goes past it. `elements`: KEEP and SPARSE; E_DATA says what is wrong with it. */
ravel_status ravel__intake_next(ravel__intake *in, int32_t kind, uint64_t elements, uint64_t bytes, uint64_t hash,
                                ravel__refit_block *block, ravel_error *err);

#endif
