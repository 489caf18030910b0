/* Casts by dtype, and the list of each block's first piece. */
#ifndef RAVEL_DEVICE_CAST_H
#define RAVEL_DEVICE_CAST_H

#include "device/handle.h"

#include <ravel/dtype.h>

/* ravel__cast_kind; -1: there is no kernel for it. */
int32_t ravel__cast_of(int32_t dtype, int32_t packed);
/* first[blocks] of a ravel__cast_job; spans NULL: block b begins at b * block. */
void ravel__cast_first(const ravel__cast_piece *pieces, int64_t count, const ravel__cast_span *spans, int64_t blocks,
                       int64_t block, int32_t *first);

#endif
