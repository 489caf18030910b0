/* train/model/hf/arch.h: what a model's family (ravel/shape.h) means for a layer, and the config keys that the trainer
 * refuses.
 *
 * All families are the same transformer (net.h); a family's row and the shape say how it differs. A config whose
 * model_type has no row with an architecture, or that asks for what its row lacks, is refused by name: training it
 * would give another model's loss. */
#ifndef TRAIN_ARCH_H
#define TRAIN_ARCH_H

#include "base/model/family.h"
#include "base/json.h"
#include <ravel/shape.h>

/* Keys that a query of the layer sees, 0: all; whether the layer rotates queries and keys. */
int64_t train_arch_window(const ravel_shape *shape, int64_t layer);
int train_arch_has_rope(const ravel_shape *shape, int64_t layer);
/* E_UNSUPPORTED where no row with an architecture has the config's model_type. */
ravel_status train_arch_known(const ravel__json *config, ravel_error *err);
/* E_UNSUPPORTED names what of the config (already read into `shape`) the trainer lacks. */
ravel_status train_arch_check(const ravel__json *config, const ravel_shape *shape, ravel_error *err);

#endif
