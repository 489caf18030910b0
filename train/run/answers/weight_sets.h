/* train/run/answers/weight_sets.h: a generator's weights: two flat sets, one live, one that refit writes.
 *
 *     weights where refit can write     weights[0], weights[1]: refit writes the one that is not live; a switch of pointers.
 *                                       Host memory, or memory of a GPU with a train_place
 *     other kernels on a device         host[0], host[1] for refit, and one set on the device: a copy at the switch
 */
#ifndef TRAIN_WEIGHT_SETS_H
#define TRAIN_WEIGHT_SETS_H

#include <ravel/refit.h>

#include "train/model/generate/generator.h"

/* Where the blocks of a kernel set are, as refit asks (ravel/device.h). All zero: host memory. */
typedef struct train_place {
    ravel_device *device;
    ravel_stream *stream;
} train_place;

/* The device floor's handle of the GPU that the kernels run on, or nothing for kernels in host memory. E_UNSUPPORTED:
 * the device floor can't use that GPU (its module is not there, for one). */
ravel_status train_place_open(train_place *place, const train_kernels *kernels, int32_t gpu, ravel_error *err);
void train_place_close(train_place *place);
ravel_place train_place_of(const train_place *place);
/* Waits until refit's work on the arrays is complete. */
ravel_status train_place_wait(const train_place *place, ravel_error *err);

typedef struct train_weight_sets {
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    const train_place *place;
    void *weights[2]; /* on the device; one set where refit writes host memory */
    void *host[2];    /* two sets for refit, where the kernels' memory is not the host's; else NULL */
    size_t bytes;     /* of a set */
    ravel_refit_tensor *tensors;
    int64_t tensor_count;
    ravel_refit_sink sink; /* of both sets: for ravel_refit_create or ravel_puller_create */
} train_weight_sets;

/* Sets of zeros. `kernels`, `device`, `place` (NULL: none) and `generator` must outlive them. After a failure, close it
 * too. */
ravel_status train_weight_sets_open(train_weight_sets *sets, const train_kernels *kernels, train_device *device,
                                    const train_place *place, train_generator *generator, ravel_error *err);
void train_weight_sets_close(train_weight_sets *sets);
/* The generator's next step uses set `live` (of the report of a refit), which holds `version`. */
ravel_status train_weight_sets_switch(train_weight_sets *sets, int32_t live, int64_t version, ravel_error *err);

/* The parameters of a model, or of a part of one, as refit sees them, over a flat array or a share of it and, for a
 * sink, a second one. They are added at tensors[*count], if there is room for params->count of them; a tensor of
 * which the share has no rows is left out. */
void train_refit_tensors(const train_params *params, const train_array *array, void *spare, ravel_place place,
                         ravel_refit_tensor *tensors, int64_t *count);

#endif
