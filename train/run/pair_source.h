/* train/run/pair_source.h: rows of two samples, the chosen answer first (ravel/source.h), as one sample each, so that
 * packing never parts a pair. Fields: tokens, loss_mask, and `chosen`, how many tokens are the chosen answer's. */
#ifndef TRAIN_PAIR_SOURCE_H
#define TRAIN_PAIR_SOURCE_H

#include <ravel/source.h>

/* Takes `inner` over, also on an error. A row that is not two samples is E_DATA. */
ravel_status train_pair_source(ravel_source *inner, ravel_source **source, ravel_error *err);

#endif
