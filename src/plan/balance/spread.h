/* Spreading samples evenly over a known number of bins: the first start of the default method.
 *
 * Every micro-step gets a level, the cost that its bins should come to: the largest sample that it must hold, or one
 * common level for all micro-steps without such dominant samples:
 *
 *     |#                       level of the first micro-step: its dominant sample
 *     |#  =  =  =
 *     |#  #  =  =  =  =  =  =  the common level
 *      step 0   step 1  ...
 *
 * Samples go heaviest first to the bin that is furthest below its level and has room (a heap by what is missing; bins
 * without room wait in another, by room, until a sample is short enough). A sample that fits no bin goes to the bin
 * with most room; overfull bins are repaired afterwards by trades with roomy ones. */
#ifndef RAVEL_PLAN_BALANCE_SPREAD_H
#define RAVEL_PLAN_BALANCE_SPREAD_H

#include "plan/internal.h"

/* A bin of `bins` (a whole number of micro-steps) for every sample. Weights are slots where `by_slots`, else costs.
 * *over: how many bins are over the cap, to be repaired; INT32_MAX when max_samples left no place. */
ravel_status ravel__spread(const ravel__job *job, int32_t bins, int by_slots, int32_t *bin, int32_t *over);

/* Trades slots between the *over overfull bins of the lists and roomy ones. *over: how many stay overfull. */
ravel_status ravel__repair(const ravel__job *job, const ravel__lists *lists, int32_t passes, int32_t partners,
                           int32_t *over);

#endif
