/* train/model/ranks/shares.h: how flat arrays of parameters are shared out over ranks that have the same part of a
 * model. Pure.
 *
 * Every unit (params.h) is cut into one run per rank, so that a unit can be gathered and reduced by itself:
 *
 *     flat array      | embedding          | layer 0            | layer 1            | norm, head         |
 *     of rank         | 0   | 1   | 2   |  | 0   | 1   | 2   |  | 0   | 1   | 2   |  | 0   | 1   | 2   |
 *     rank 1's array  embedding's 1, layer 0's 1, layer 1's 1, head's 1: one after the other
 *
 * A run begins at a multiple of train_tensor_span in a tensor: at whole rows, so that a rank's part of a tensor is a
 * box (refit, checkpoints), and where a sum of squares begins, so that the norm does not depend on the ranks.
 *
 * Experts that are shared out over ep of the ranks (train_slice.ep) are a unit, of which every ep-th rank has a run and
 * the others nothing: those have other experts there.
 *
 * With one rank the share is the flat array itself. */
#ifndef TRAIN_SHARES_H
#define TRAIN_SHARES_H

#include "train/model/params.h"

typedef struct train_shares {
    const train_params *params;
    int32_t ranks, rank;
    int64_t most;          /* elements of the largest share of all ranks */
    int64_t most_of_unit;  /* elements of the largest run of all units and ranks */
    const int64_t *counts; /* [units, ranks] elements of each run */
    const int64_t *places; /* [units + 1] where this rank's runs begin in its array */
    size_t bytes;          /* of this struct and its lists */
    const ravel_allocator *allocator;
} train_shares;

/* Elements whose squares are summed into one number: rows of at least one and about TRAIN_SPAN elements. */
int64_t train_tensor_span(const train_tensor *tensor);

/* The params must outlive it. ranks 0 means 1. */
ravel_status train_shares_create(const train_params *params, int32_t ranks, int32_t rank,
                                 const ravel_allocator *allocator, train_shares **shares, ravel_error *err);
void train_shares_free(train_shares *shares);

/* Elements of a unit's runs on the ranks that have it: all of them or, of experts, every ep-th (params.h); and this
 * rank among them. counts[ranks] is room for them. */
typedef struct train_runs {
    const int64_t *counts; /* [ranks] */
    int32_t ranks, rank;
} train_runs;
train_runs train_shares_runs(const train_shares *shares, int64_t unit, int64_t *counts);

/* The first element of a rank's run of a unit, in the flat array; rank `ranks`: the unit's end. */
int64_t train_shares_begin(const train_shares *shares, int64_t unit, int32_t rank);
/* Cuts elements *begin .. *end - 1, which one unit has, to those of `rank`; 0 if none is left. */
int train_shares_cut(const train_shares *shares, int32_t rank, int64_t *begin, int64_t *end);
/* Where an element of this rank's share is in its array. */
int64_t train_shares_local(const train_shares *shares, int64_t element);
/* An element of this rank's share in an array. */
void *train_array_at(const train_array *array, int64_t element);

#endif
