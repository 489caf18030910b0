#include "train/model/hf/base.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/hf.h"
#include "train/model/model.h"

/* The open file where it can be mapped, else NULL. */
static ravel_safetensors *mappable(const train_kernels *kernels, const train_params *params, const char *folder) {
    ravel_safetensors *file = NULL;
    if (!folder || !kernels->host_memory || train_weights_open(folder, &file, NULL)) return NULL;
    if (train_tensors_mappable(params, kernels->types.weight, file)) return file;
    ravel_safetensors_free(file);
    return NULL;
}

int train_base_maps(const train_kernels *kernels, const train_params *params, const char *folder) {
    ravel_safetensors *file = mappable(kernels, params, folder);
    ravel_safetensors_free(file);
    return file != NULL;
}

static ravel_status map(train_base *b, const train_params *params, const char *folder, ravel_error *err) {
    const int32_t type = b->kernels->types.weight;
    b->count = params->count;
    b->places = ravel__calloc(NULL, (size_t)b->count, sizeof *b->places);
    if (!b->places) return ravel__no_memory(err, (size_t)b->count * sizeof *b->places, "the places of tensors");
    ravel_status status = train_tensors_map(params, type, b->file, b->places, b->weights, err);
    if (status && err) ravel_error_prefix(err, "%s", folder);
    b->frozen.places = b->places;
    return status;
}

ravel_status train_base_open(train_base *b, const train_kernels *kernels, train_device *device,
                             const train_params *params, const char *folder, uint64_t seed, double deviation,
                             ravel_error *err) {
    *b = (train_base){.kernels = kernels, .device = device, .file = mappable(kernels, params, folder)};
    int64_t elements = b->file ? train__max(train_vectors(params), 1) : params->elements;
    b->bytes = (size_t)(elements * ravel_dtype_bytes(kernels->types.weight));
    RAVEL_ASSERT(!params->lora.rank && b->bytes > 0);
    ravel_status status = kernels->alloc(device, b->bytes, &b->weights, err);
    if (status) return status;
    kernels->zero(device, b->weights, b->bytes);
    if (b->file) return map(b, params, folder, err);
    b->frozen.flat = b->weights;
    const train_array to = {kernels, device, b->weights, kernels->types.weight, NULL};
    return folder ? train_tensors_load(params, &to, folder, err) : train_params_init(params, &to, seed, deviation, err);
}

void train_base_close(train_base *b) {
    if (b->weights) b->kernels->release(b->device, b->weights, b->bytes);
    ravel__release(NULL, b->places, (size_t)b->count * sizeof *b->places);
    ravel_safetensors_free(b->file);
    *b = (train_base){0};
}
