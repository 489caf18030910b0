/* Checks of an order with shared prefixes (ravel/tree.h). */
#ifndef RAVEL_PLAN_TREE_CHECK_H
#define RAVEL_PLAN_TREE_CHECK_H

#include <ravel/tree.h>

/* Whether order and shared are those of some trees: order is a permutation (NULL: 0, 1, 2, ...), shared[0] is 0, and no
 * place shares more than its own sample or the one before has. E_DATA names the first fault. */
ravel_status ravel__tree_check(int64_t count, const int64_t *lengths, const int32_t *order, const int64_t *shared,
                               const ravel_allocator *allocator, ravel_error *err);

#endif
