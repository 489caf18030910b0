/* Dealing micro-steps anew, two at a time: their samples are spread over their bins as if there were nothing else,
 * balanced, and kept if the two together became faster. What cannot be had inside one micro-step (room under the cap,
 * a dominant sample whose micro-step has time to spare) is found in another. */
#ifndef RAVEL_PLAN_BALANCE_REDEAL_H
#define RAVEL_PLAN_BALANCE_REDEAL_H

#include "plan/balance/trade.h"

/* `tries`: trades that may be looked at. */
ravel_status ravel__redeal(const ravel__job *job, int64_t steps, ravel__trade_limits limits, int64_t tries,
                           int32_t *seat);

#endif
