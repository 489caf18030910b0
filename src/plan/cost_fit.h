/* What a fit predicts (ravel/plan.h). */
#ifndef RAVEL_PLAN_COST_FIT_H
#define RAVEL_PLAN_COST_FIT_H

#include <ravel/plan.h>

/* The predicted seconds of a sample, whose own seconds are ignored; a width that was not measured has the widest one's
 * price. */
double ravel__cost_fit_seconds(const ravel_cost_fit *fit, const ravel_cost_sample *sample);

#endif
