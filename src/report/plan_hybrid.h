/* The additions of a hybrid plan to the JSON and to the picture. */
#ifndef RAVEL_REPORT_PLAN_HYBRID_H
#define RAVEL_REPORT_PLAN_HYBRID_H

#include "report/printer.h"

/* ,"hybrid":{...}; nothing for other plans. */
void ravel__hybrid_json(ravel__printer *text, const ravel_plan *plan);
/* A box around the ranks of each group; cells are `width` x `height` from (left, top), a column per micro-step and a
 * row per rank. */
void ravel__hybrid_boxes(ravel__printer *text, const ravel_plan *plan, double left, double top, double width,
                         double height);

#endif
