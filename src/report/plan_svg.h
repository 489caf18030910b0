/* The still picture inside the page. */
#ifndef RAVEL_REPORT_PLAN_SVG_H
#define RAVEL_REPORT_PLAN_SVG_H

#include "report/printer.h"

void ravel__picture_svg(ravel__printer *text, const ravel_plan_options *options, const ravel_plan *plan);

#endif
