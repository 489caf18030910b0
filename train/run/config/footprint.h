/* train/run/config/footprint.h: the memory of a run, estimated and printed before it is allocated. */
#ifndef TRAIN_FOOTPRINT_H
#define TRAIN_FOOTPRINT_H

#include "train/run/config/devices.h"
#include "train/run/config/machine.h"

/* Bytes of the largest rank of each kind. The feed's batches, rollouts and refit's buffers come on top: they grow with
 * the batch, not with the model. */
typedef struct train_footprint {
    int64_t fixed;       /* weights, gradients, optimiser */
    int64_t activations; /* kept from forward to backward: these grow with the budget */
    int64_t working;     /* within a layer, a chunk of logits, tables, scratch */
    int64_t reference;   /* the model that --kl measures against */
    int64_t published;   /* versions for generators that pull, and those that a refit compares with */
    int64_t trainer;     /* all of the above */
    int64_t generator;   /* 0 in SFT */
    int64_t mapped;      /* of files (base.h), once per machine, whatever ranks it has: pages that may leave memory */
} train_footprint;

/* Bytes of a model's files where weights that are only read are mapped (base.h): every process of a machine has the same
 * pages. 0: they are loaded. */
int64_t train_mapped_bytes(const train_model_choice *choice, const ravel_shape *shape);
/* A pure function. longest_prompt: tokens, for GRPO. */
ravel_status train_footprint_of(const train_config *config, train_kind kind, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int64_t longest_prompt, train_footprint *footprint,
                                ravel_error *err);

/* Memory that ranks share: of this machine, or of one GPU. */
typedef struct train_room {
    int32_t trainers, generators; /* in it */
    int64_t bytes;                /* that they may take together; INT64_MAX: not known */
    const char *of;               /* "this machine", "GPU 0" */
} train_room;

/* Whether the ranks of a room fit it. E_MEMORY names what is needed and options with which it would fit. A pure
 * function. */
ravel_status train_footprint_fits(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  const ravel_mesh_layout *layout, int64_t longest_prompt, const train_room *room,
                                  ravel_error *err);
typedef struct train_disk {
    int64_t bytes;       /* that are free */
    int64_t there;       /* checkpoints that the run has already, where it is resumed, */
    int64_t done, steps; /* its updates, and those to do in all */
} train_disk;

/* Whether the checkpoints that are kept, and the one that is being written, fit what is free beside those that are there.
 * Where all are kept, one that is written is E_IO if it does not fit, and all of them a warning. A pure function. */
ravel_status train_checkpoints_fit(const train_config *config, const ravel_shape *shape, const train_disk *disk,
                                   const ravel_logger *logger, ravel_error *err);

/* Checks both, for `steps` updates in all, `local` being the ranks on this machine, whose memory counts if kernels run on the host, and prints the
 * footprint to the logger (NULL: nothing is printed), with the sum of the ranks that share a GPU. */
ravel_status train_footprint_log(const train_config *config, train_kind kind, const ravel_shape *shape,
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, int64_t steps, int32_t local,
                                 const train_devices *devices, const ravel_logger *logger, ravel_error *err);

#endif
