/* Dealing micro-steps anew, two at a time: their samples are spread over their bins as if there were nothing else,
 * evened out, and kept if the two together became faster. What cannot be had inside one micro-step (room under the cap,
 * a giant whose micro-step has time to spare) is found in another. */
#ifndef RAVEL_PLAN_SETTLE_H
#define RAVEL_PLAN_SETTLE_H

#include "plan/table.h"

/* `fuel`: trades that may be looked at. */
ravel_status ravel__settle(const ravel__job *job, int64_t steps, ravel__care care, int64_t fuel, int32_t *seat);

#endif
