/* Repacking micro-steps, two at a time: their samples are spread over their bins as if there were nothing else,
 * balanced, and kept if the two together became faster. A partner micro-step may have what one micro-step lacks: room
 * under the cap, or a dominant sample beside which ranks are idle. */
#ifndef RAVEL_PLAN_BALANCE_REDEAL_H
#define RAVEL_PLAN_BALANCE_REDEAL_H

#include "plan/balance/trade.h"

/* `tries`: limit on trades examined. */
ravel_status ravel__redeal(const ravel__job *job, int64_t steps, ravel__trade_limits limits, int64_t tries,
                           int32_t *seat);

#endif
