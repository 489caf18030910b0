/* Parts of the JSON of a plan, for reports on several plans. */
#ifndef RAVEL_REPORT_PLAN_JSON_H
#define RAVEL_REPORT_PLAN_JSON_H

#include "report/printer.h"

/* The members of "options" and of "stats" of the JSON, as objects of their own: for reports on several plans. */
void ravel__plan_options_json(ravel__printer *out, const ravel_plan_options *options);
void ravel__plan_stats_json(ravel__printer *out, const ravel_plan *plan);

#endif
