/* train/run/footprint.h: the memory of a run, estimated and printed before it is allocated. */
#ifndef TRAIN_FOOTPRINT_H
#define TRAIN_FOOTPRINT_H

#include "train/run/devices.h"

/* Bytes of the largest rank of each kind. The feed's batches, rollouts and refit's buffers come on top: they grow with the
 * batch, not with the model. */
typedef struct train_footprint {
    int64_t fixed;       /* weights, gradients, optimiser */
    int64_t activations; /* kept from forward to backward: these grow with the budget */
    int64_t working;     /* within a layer, a chunk of logits, tables, scratch */
    int64_t reference;   /* the model that --kl measures against */
    int64_t published;   /* the version that the run's generators pull (--refit) */
    int64_t trainer;     /* all of the above */
    int64_t generator;   /* 0 in SFT */
} train_footprint;

/* A pure function. longest_prompt: tokens, for GRPO. */
ravel_status train_footprint_of(const train_config *config, train_kind kind, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int64_t longest_prompt, train_footprint *footprint,
                                ravel_error *err);

/* The same as text, to the logger (NULL: nothing is printed), and the sum of the ranks that share a GPU. */
ravel_status train_footprint_log(const train_config *config, train_kind kind, const ravel_shape *shape,
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, const train_devices *devices,
                                 const ravel_logger *logger, ravel_error *err);

#endif
