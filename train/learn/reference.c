#include "train/learn/reference.h"

#include "train/learn/learner_internal.h"
#include "train/kernels/host.h"

struct train_reference {
    const ravel_allocator *allocator;
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
};

static void model_options(const train_learner_options *from, train_model_options *options) {
    train_model_options_default(options);
    options->budget = from->budget;
    options->inference = 1;
    options->allocator = from->allocator;
}

ravel_status train_reference_create(const train_learner_options *options, const ravel_shape *shape,
                                    train_reference **reference, ravel_error *err) {
    train_model_options model;
    train_reference *r = train__calloc(options->allocator, 1, sizeof *r);
    if (!r) return train__no_memory(err, sizeof *r, "a reference model");
    r->allocator = options->allocator;
    model_options(options, &model);
    ravel_status status = train_device_open(options->model, options->allocator, &r->kernels, &r->device, err);
    if (!status) status = train_model_create(r->kernels, r->device, shape, &model, &r->model, err);
    if (!status) status = train__set_weights(r->model, options->model, err);
    if (status) {
        train_reference_free(r);
        return status;
    }
    *reference = r;
    return RAVEL_OK;
}

void train_reference_free(train_reference *r) {
    if (!r) return;
    train_model_free(r->model);
    if (r->device) r->kernels->close(r->device);
    train__release(r->allocator, r, sizeof *r);
}

train_model *train_reference_model(train_reference *r) {
    return r->model;
}

ravel_status train_reference_bytes(const train_learner_options *options, const ravel_shape *shape, int64_t *bytes,
                                   ravel_error *err) {
    const train_kernels *kernels;
    train_memory memory = {0};
    train_model_options model;
    model_options(options, &model);
    ravel_status status = train_kernels_find(options->model->kernels, &kernels, err);
    if (!status) status = train_model_memory(kernels, options->model->threads, shape, &model, &memory, err);
    if (!status) *bytes = memory.total;
    return status;
}
