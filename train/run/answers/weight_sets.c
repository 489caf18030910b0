#include "train/run/answers/weight_sets.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/ranks/shares.h"

#include <stdio.h>
#include <string.h>

/* ---- places --------------------------------------------------------------------------------------------- */

static const double wait_seconds = 60; /* for copies that are queued */

ravel_status train_place_open(train_place *p, const train_kernels *kernels, int32_t gpu, ravel_error *err) {
    char name[64];
    *p = (train_place){0};
    if (kernels->host_memory) return RAVEL_OK;
    (void)snprintf(name, sizeof name, "%s:%d", kernels->name, gpu);
    ravel_status status = ravel_device_open(name, &p->device, err);
    if (!status) status = ravel_stream_create(p->device, &p->stream, err);
    if (status) train_place_close(p);
    return status;
}

void train_place_close(train_place *p) {
    RAVEL_ASSERT(p->device || !p->stream);
    ravel_stream_free(p->stream);
    ravel_device_free(p->device);
    *p = (train_place){0};
}

ravel_place train_place_of(const train_place *p) {
    return p && p->stream ? (ravel_place){.kind = RAVEL_DEVICE, .stream = p->stream} : (ravel_place){0};
}

ravel_status train_place_wait(const train_place *p, ravel_error *err) {
    return p && p->stream ? ravel_stream_wait(p->stream, wait_seconds, err) : RAVEL_OK;
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

void train_refit_tensors(const train_params *params, const train_array *array, void *spare, ravel_place place,
                         ravel_refit_tensor *tensors, int64_t *count) {
    const train_shares *shares = array->shares;
    RAVEL_ASSERT(tensors || params->count == 0);
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
        RAVEL_ASSERT(t->rank >= 1 && t->offset >= 0 && t->offset < params->elements);
        for (int32_t d = 0; d < t->rank; d++) RAVEL_ASSERT(t->first[d] + t->dims[d] <= t->whole[d]);
        to->start[0] += (begin - t->offset) / t->dims[1]; /* a share has whole rows */
        to->extent[0] = (end - begin) / t->dims[1];
        to->place = place;
        to->data = train_array_at(array, begin);
        to->spare = train__at(spare, array->dtype, begin);
    }
}

/* ---- sets ----------------------------------------------------------------------------------------------- */

/* Whether refit writes the sets that the generator reads. */
static int is_direct(const train_weight_sets *s) {
    return s->kernels->host_memory || (s->place && s->place->stream);
}

ravel_status train_weight_sets_open(train_weight_sets *s, const train_kernels *kernels, train_device *device,
                                    const train_place *place, train_generator *generator, ravel_error *err) {
    const train_params *params = train_generator_params(generator);
    ravel_status status = RAVEL_OK;
    *s = (train_weight_sets){.kernels = kernels, .device = device, .generator = generator, .place = place};
    int direct = is_direct(s);
    s->bytes = (size_t)(params->elements * ravel_dtype_bytes(kernels->types.weight));
    RAVEL_ASSERT(s->bytes > 0);
    for (int i = 0; i < (direct ? 2 : 1) && !status; i++) {
        status = kernels->alloc(device, s->bytes, &s->weights[i], err);
        if (!status) kernels->zero(device, s->weights[i], s->bytes);
    }
    for (int i = 0; i < 2 && !direct && !status; i++) {
        status = kernels->alloc_host(device, s->bytes, &s->host[i], err);
        if (!status) memset(s->host[i], 0, s->bytes);
    }
    void **to = direct ? s->weights : s->host;
    RAVEL_ASSERT(status || (to[0] && to[1]));
    if (!status) status = kernels->sync(device, err); /* refit has streams of its own */
    if (!status) {
        s->tensors = ravel__calloc(NULL, (size_t)params->count, sizeof *s->tensors);
        if (!s->tensors)
            status = ravel__no_memory(err, (size_t)params->count * sizeof *s->tensors, "the list of tensors");
    }
    const train_array first = {kernels, device, to[0], kernels->types.weight, NULL};
    if (!status && s->tensors)
        train_refit_tensors(params, &first, to[1], train_place_of(place), s->tensors, &s->tensor_count);
    RAVEL_ASSERT(status || s->tensor_count == params->count);
    s->sink = (ravel_refit_sink){.size = sizeof s->sink, .tensors = s->tensors, .count = s->tensor_count};
    return status;
}

void train_weight_sets_close(train_weight_sets *s) {
    ravel__release(NULL, s->tensors, (size_t)s->tensor_count * sizeof *s->tensors);
    for (int i = 0; i < 2; i++) {
        if (s->weights[i]) s->kernels->release(s->device, s->weights[i], s->bytes);
        if (s->host[i]) s->kernels->release_host(s->device, s->host[i], s->bytes);
    }
    *s = (train_weight_sets){0};
}

ravel_status train_weight_sets_switch(train_weight_sets *s, int32_t live, int64_t version, ravel_error *err) {
    int direct = is_direct(s);
    RAVEL_ASSERT((live == 0 || live == 1) && version >= 0);
    ravel_status status = train_place_wait(s->place, err);
    if (status) return status;
    if (!direct) s->kernels->upload(s->device, s->weights[0], s->host[live], s->bytes);
    train_generator_set_weights(s->generator, s->weights[direct ? live : 0], version);
    return s->kernels->sync(s->device, err); /* no step that reads the other set is running any more */
}
