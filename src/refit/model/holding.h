/* The tensors that a rank holds, as wire tensors: the caller's, after the mapping rules.
 *
 * A fused tensor becomes one item per tensor that it is made of; a plain one is one item. Every item has the
 * name, dtype and dims of a wire tensor, the box of it that is here, and the view that finds the box in memory.
 *
 * Tied weights: a second item of the same name, dtype and box. It is not sent; a source takes the first, a sink loads
 * what comes into both. */
#ifndef RAVEL_REFIT_HOLDING_H
#define RAVEL_REFIT_HOLDING_H

#include "base/memory.h"
#include "refit/model/view.h"

typedef struct ravel__item {
    const char *name; /* in the arena, or the caller's */
    int32_t ndim;
    int32_t dtype;
    int64_t dims[RAVEL_REFIT_DIMS]; /* of the whole wire tensor */
    ravel__view view;
    int64_t tied; /* index of the next item that is tied to this one; 0: none */
} ravel__item;

typedef struct ravel__holding {
    ravel__item *items;
    int64_t count;
    int64_t ties;            /* items behind those: the tied ones */
    int64_t room;            /* items that there is memory for */
    ravel__carrier *carrier; /* of tensors on a device (carrier.h); NULL: they are in host memory */
} ravel__holding;

/* Checks the tensors and rules and makes the items, in the order of the tensors. `dense`: the strides are ignored and
 * offsets count as if the piece had no holes (sinks with callbacks). Names come from the arena, the list from its
 * allocator. E_ARGUMENT names the tensor or rule. Tensors on a device are refused if `dense`. `what` is "source" or
 * "sink". */
ravel_status ravel__holding_make(const ravel_refit_tensor *tensors, int64_t count, const ravel_refit_rule *rules,
                                 int64_t rule_count, int dense, const char *what, ravel__arena *arena,
                                 ravel__holding *holding, ravel_error *err);
/* The first non-empty tensor with NULL data; NULL: none. */
const ravel_refit_tensor *ravel__holding_without_data(const ravel__holding *holding, const ravel_refit_tensor *tensors);
void ravel__holding_free(ravel__holding *holding, const ravel_allocator *allocator);

/* The dtype in which elements are kept that shall be no wider than `wanted`, a float; -1: as they are. */
static inline int32_t ravel__narrowed(int32_t dtype, int32_t wanted) {
    int is_float = ravel_dtype_kind(dtype) == 'f' && ravel_dtype_bytes(dtype) >= 2;
    return wanted >= 0 && is_float && ravel_dtype_bytes(wanted) < ravel_dtype_bytes(dtype) ? wanted : dtype;
}

#endif
