/* Evening out ranks whose totals matter, not their micro-steps: sync = update and pipeline.
 *
 *     hand[r]   the bins of rank r, dearest first: its micro-steps
 *
 * Bins are dealt dearest first to the rank with the least total that has a micro-step left; then the dearest rank gives
 * to the cheapest: by swapping two bins, or by a trade of samples between two bins, whichever comes nearer to half the
 * difference. */
#ifndef RAVEL_PLAN_TOTALS_H
#define RAVEL_PLAN_TOTALS_H

#include "plan/table.h"

/* `table` holds all bins, dearest first; bins = micro-steps * dp. Fills seat_bin[step * dp + rank] with the bin that
 * sits there. */
ravel_status ravel__totals_even(const ravel__job *job, ravel__table *table, ravel__care care, int32_t *seat_bin);

#endif
