/* The still picture inside the page. */
#ifndef RAVEL_IO_PICTURE_H
#define RAVEL_IO_PICTURE_H

#include "io/pen.h"

void ravel__picture_svg(ravel__pen *text, const ravel_plan_options *options, const ravel_plan *plan);

#endif
