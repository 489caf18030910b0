#include "train/run/weight_sets.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/model/shares.h"

#include <string.h>

void train_refit_tensors(const train_params *params, const train_array *array, void *spare, ravel_refit_tensor *tensors,
                         int64_t *count) {
    const train_shares *shares = array->shares;
    TRAIN_ASSERT(tensors || params->count == 0);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = &params->tensors[i];
        int64_t begin = t->offset, end = begin + t->count;
        if (shares && !train_shares_cut(shares, shares->rank, &begin, &end)) continue;
        ravel_refit_tensor *to = &tensors[(*count)++];
        to->name = t->name;
        to->dtype = array->dtype;
        to->ndim = t->rank;
        for (int32_t d = 0; d < t->rank; d++) {
            to->dims[d] = t->whole[d];
            to->start[d] = t->first[d];
            to->extent[d] = t->dims[d];
        }
        TRAIN_ASSERT(t->rank >= 1 && t->offset >= 0 && t->offset < params->elements);
        for (int32_t d = 0; d < t->rank; d++) TRAIN_ASSERT(t->first[d] + t->dims[d] <= t->whole[d]);
        to->start[0] += (begin - t->offset) / t->dims[1]; /* a share has whole rows */
        to->extent[0] = (end - begin) / t->dims[1];
        to->data = train_array_at(array, begin);
        to->spare = train__at(spare, array->dtype, begin);
    }
}

ravel_status train_weight_sets_open(train_weight_sets *s, const train_kernels *kernels, train_device *device,
                                    train_generator *generator, ravel_error *err) {
    const train_params *params = train_generator_params(generator);
    int in_host = kernels->host_memory;
    ravel_status status = RAVEL_OK;
    *s = (train_weight_sets){.kernels = kernels, .device = device, .generator = generator};
    s->bytes = (size_t)(params->elements * ravel_dtype_bytes(kernels->types.weight));
    for (int i = 0; i < (in_host ? 2 : 1) && !status; i++) {
        status = kernels->alloc(device, s->bytes, &s->weights[i], err);
        if (!status) kernels->zero(device, s->weights[i], s->bytes);
    }
    for (int i = 0; i < 2 && !in_host && !status; i++) {
        status = kernels->alloc_host(device, s->bytes, &s->host[i], err);
        if (!status) memset(s->host[i], 0, s->bytes);
    }
    void **to = in_host ? s->weights : s->host;
    if (!status) {
        s->tensors = train__calloc(NULL, (size_t)params->count, sizeof *s->tensors);
        if (!s->tensors)
            status = train__no_memory(err, (size_t)params->count * sizeof *s->tensors, "the list of tensors");
    }
    const train_array first = {kernels, device, to[0], kernels->types.weight, NULL};
    if (!status && s->tensors) train_refit_tensors(params, &first, to[1], s->tensors, &s->tensor_count);
    TRAIN_ASSERT(status || s->tensor_count == params->count);
    s->sink = (ravel_refit_sink){.size = sizeof s->sink, .tensors = s->tensors, .count = s->tensor_count};
    return status;
}

void train_weight_sets_close(train_weight_sets *s) {
    train__release(NULL, s->tensors, (size_t)s->tensor_count * sizeof *s->tensors);
    for (int i = 0; i < 2; i++) {
        if (s->weights[i]) s->kernels->release(s->device, s->weights[i], s->bytes);
        if (s->host[i]) s->kernels->release_host(s->device, s->host[i], s->bytes);
    }
    *s = (train_weight_sets){0};
}

ravel_status train_weight_sets_switch(train_weight_sets *s, int32_t live, int64_t version, ravel_error *err) {
    int in_host = s->kernels->host_memory;
    TRAIN_ASSERT((live == 0 || live == 1) && version >= 0);
    if (!in_host) s->kernels->upload(s->device, s->weights[0], s->host[live], s->bytes);
    train_generator_set_weights(s->generator, s->weights[in_host ? live : 0], version);
    return s->kernels->sync(s->device, err);
}
