/* train/model/hf/base.h: the weights of a model that are only read, by generators and beside an adapter.
 *
 * Where the folder's files hold them as the kernels want them (the same dtype; kernels in host memory; not cut by
 * columns), they are mapped: nothing is copied, ranks and processes of a machine share the pages, and what is not in
 * use may leave memory. Otherwise they are a flat array of the device. */
#ifndef TRAIN_BASE_H
#define TRAIN_BASE_H

#include <ravel/safetensors.h>

#include "train/model/params.h"

typedef struct train_base {
    const train_kernels *kernels;
    train_device *device;
    train_frozen frozen; /* what the others hold */
    void *weights;       /* [params->elements] of kernels->types.weight, or of a map its vectors */
    size_t bytes;
    ravel_safetensors *file; /* that is mapped; NULL: none */
    const void **places;     /* [count] */
    int64_t count;
} train_base;

/* Whether train_base_open maps the folder for these kernels and this part of the model. */
int train_base_maps(const train_kernels *kernels, const train_params *params, const char *folder);
/* From the folder of a model, or (NULL) new ones by seed and deviation, as train_model_init makes them. */
ravel_status train_base_open(train_base *base, const train_kernels *kernels, train_device *device,
                             const train_params *params, const char *folder, uint64_t seed, double deviation,
                             ravel_error *err);
void train_base_close(train_base *base);

#endif
