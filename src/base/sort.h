/* Stable radix sorts of keys with a 32-bit payload: the same order on every machine, linear time, no recursion. */
#ifndef RAVEL_BASE_SORT_H
#define RAVEL_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

/* Sorts by key, smallest first; equal keys keep their order. `spare_keys` and `spare_values` are scratch of the same
 * size. Passes over digits that are the same in all keys are left out. For largest first, sort ~key. */
void ravel__sort_u32(uint32_t *keys, int32_t *values, uint32_t *spare_keys, int32_t *spare_values, size_t count);
void ravel__sort_u64(uint64_t *keys, int32_t *values, uint64_t *spare_keys, int32_t *spare_values, size_t count);

#endif
