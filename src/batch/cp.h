/* Context-parallel shards (ravel/batch.h). */
#ifndef RAVEL_BATCH_CP_H
#define RAVEL_BATCH_CP_H

#include <ravel/batch.h>

/* Whether every slot can be divided evenly; E_ARGUMENT names the first that cannot, and a suitable align. */
ravel_status ravel__cp_check(const ravel_cp *cp, const int32_t *cu_slots, int64_t slots, const int32_t *samples,
                             ravel_error *err);

#endif
