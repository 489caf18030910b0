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

/* Memory and disk that this machine has for the run, in bytes; INT64_MAX: not known. */
int64_t train_machine_memory(void);
int64_t train_machine_disk(const char *folder);

/* Whether `local` ranks of the run, trainers and generators in proportion, fit `memory` bytes of this machine. E_MEMORY names
 * what is needed and options with which it would fit. Of kernels in host memory; a pure function. */
ravel_status train_footprint_fits(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  const ravel_mesh_layout *layout, int64_t longest_prompt, int32_t local,
                                  int64_t memory, ravel_error *err);
/* Whether the checkpoints that are kept, and the one that is being written, fit `disk` bytes. A pure function. */
ravel_status train_checkpoints_fit(const train_config *config, const ravel_shape *shape, int64_t disk,
                                   ravel_error *err);

/* Checks both, `local` being the ranks on this machine, and prints the footprint to the logger (NULL: nothing is printed), with
 * the sum of the ranks that share a GPU. */
ravel_status train_footprint_log(const train_config *config, train_kind kind, const ravel_shape *shape,
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, int32_t local,
                                 const train_devices *devices, const ravel_logger *logger, ravel_error *err);

#endif
