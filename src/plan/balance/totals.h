/* Evening out ranks whose totals matter, not their micro-steps: sync = update and pipeline.
 *
 *     rank_bins[r]   the bins of rank r, largest cost first: its micro-steps
 *
 * Bins are dealt largest cost first to the rank with the least total that has a micro-step left; then the largest rank
 * gives to the cheapest: by swapping two bins, or by a trade of samples between two bins, whichever comes nearer to
 * half the difference. */
#ifndef RAVEL_PLAN_BALANCE_TOTALS_H
#define RAVEL_PLAN_BALANCE_TOTALS_H

#include "plan/balance/trade.h"

/* `table` holds all bins, largest cost first; bins = micro-steps * dp. Fills seat_bin[step * dp + rank] with the bin of
 * that micro-step and rank. */
ravel_status ravel__totals_balance(const ravel__job *job, ravel__trading *table, ravel__trade_limits limits,
                                   int32_t *seat_bin);

#endif
