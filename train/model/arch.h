/* train/model/arch.h: the architectures that the trainer supports, one row each, and the config keys that it refuses.
 *
 * All are the same transformer (net.h); a row says how it differs. A config whose model_type is not in the table, or
 * that asks for what its row lacks, is refused by name: training it would give another model's loss. */
#ifndef TRAIN_ARCH_H
#define TRAIN_ARCH_H

#include <ravel/json.h>
#include <ravel/shape.h>

typedef struct train_arch {
    const char *model_type; /* of config.json */
    const char *name;       /* of transformers' class, for config.json and messages */
    int32_t qk_norm;        /* RMSNorm on queries and keys */
    int32_t bias;           /* biases on q, k and v (and on nothing else) */
    int32_t window;         /* every layer may have a sliding window */
    const char *models;     /* published models of this architecture */
} train_arch;

/* The i-th row, or NULL after the last. */
const train_arch *train_arch_row(int32_t index);
/* The row that has these layers: what a new model of the shape is saved as. */
const train_arch *train_arch_of(const ravel_shape *shape);
/* E_UNSUPPORTED names what of the config (already read into `shape`) the trainer lacks. */
ravel_status train_arch_check(const ravel_json *config, const ravel_shape *shape, ravel_error *err);

#endif
