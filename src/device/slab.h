/* Shared by slabs and refit: casts by dtype, and the list of each block's first piece. */
#ifndef RAVEL_DEVICE_SLAB_H
#define RAVEL_DEVICE_SLAB_H

#include "device/handle.h"

#include <ravel/slab.h>

/* ravel__cast_kind; -1: there is no kernel for it. */
int32_t ravel__slab_cast(int32_t dtype, int32_t packed);
/* first[blocks] of a ravel__cast_job; spans NULL: block b begins at b * block. */
void ravel__slab_first(const ravel__cast_piece *pieces, int64_t count, const ravel__cast_span *spans, int64_t blocks,
                       int64_t block, int32_t *first);

#endif
