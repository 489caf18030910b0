/* Parts of the JSON of a plan, for reports on several plans. */
#ifndef RAVEL_REPORT_PLAN_JSON_H
#define RAVEL_REPORT_PLAN_JSON_H

#include <ravel/report.h>

/* The members of "options" and of "stats" of the JSON, as objects of their own: for reports on several plans. */
ravel_status ravel__plan_options_json(const ravel_plan_options *options, ravel_write write, void *user,
                                      ravel_error *err);
ravel_status ravel__plan_stats_json(const ravel_plan *plan, ravel_write write, void *user, ravel_error *err);

#endif
