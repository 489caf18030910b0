/* train/run/answers/published.h: adapters (lora.h) that a generator has side by side: those of PEFT folders, and the
 * versions of one that trainers publish.
 *
 * An adapter is published as what a PEFT folder holds: its tensors by PEFT's names, and its configuration as one more
 * tensor of bytes, named TRAIN_ADAPTER_CONFIG. So a generator finds out at the address what it gets:
 *
 *     train_published_look(&options, &published, &err);            published NULL: it is a whole model
 *     train_published_open(published, &options, &pulled, &err);    waits for the first version; train_published_lora is known
 *     ... a generator with places for `versions` adapters of that rank ...
 *     train_published_attach(published, generator, &shape, first, &err);
 *     train_pulled_step(pulled, ...)                               as for a model
 *     train_pulled_free(pulled); train_published_free(published);
 *
 * Versions arrive in host memory and are copied into a place of the generator when they are committed: into one that no
 * running answer uses or, with TRAIN_COMMIT_STEP, over the one before. */
#ifndef TRAIN_PUBLISHED_H
#define TRAIN_PUBLISHED_H

#include "train/model/generate/generator.h"
#include "train/run/answers/pulled.h"

/* The weights of an adapter on a device. */
typedef struct train_adapter {
    const train_kernels *kernels;
    train_device *device;
    train_params *params;
    void *weights; /* [params->elements] of kernels->types.weight */
    size_t bytes;
} train_adapter;

/* Zeros. After a failure, close it too. */
ravel_status train_adapter_open(train_adapter *adapter, const train_kernels *kernels, train_device *device,
                                const ravel_shape *shape, const train_lora *lora, ravel_error *err);
void train_adapter_close(train_adapter *adapter);

typedef struct train_published train_published;

ravel_status train_published_look(const train_pulled_options *options, train_published **published, ravel_error *err);
ravel_status train_published_open(train_published *published, const train_pulled_options *options,
                                  train_pulled **pulled, ravel_error *err);
/* Valid after open. */
const train_lora *train_published_lora(const train_published *published);
/* Versions that are held at once. */
int32_t train_published_versions(const train_published *published);
/* Its versions are adapters `first`, `first` + 1, ... of the generator, which uses the one at hand from now on. */
ravel_status train_published_attach(train_published *published, const train_kernels *kernels, train_device *device,
                                    train_generator *generator, const ravel_shape *shape, int32_t first,
                                    ravel_error *err);
void train_published_free(train_published *published);

#endif
