/* Checks of an order of rows (ravel/order.h). */
#ifndef RAVEL_FEED_SOURCE_ORDER_H
#define RAVEL_FEED_SOURCE_ORDER_H

#include <ravel/order.h>

/* E_ARGUMENT if a number is negative or epochs * count does not fit 63 bits. */
ravel_status ravel__order_check(const ravel_order *order, ravel_error *err);

#endif
