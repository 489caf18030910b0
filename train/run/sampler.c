#include "train/run/sampler.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf.h"

struct train_sampler {
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    void *weights; /* of the folder */
    size_t weight_bytes;
    train_weight_sets sets; /* that are pulled */
    train_place place;      /* of the sets, where the device floor can use the GPU */
    train_pulled *pulled;
};

static ravel_status load_weights(train_sampler *s, const char *folder, ravel_error *err) {
    const train_params *params = train_generator_params(s->generator);
    s->weight_bytes = (size_t)(params->elements * ravel_dtype_bytes(s->kernels->types.weight));
    TRAIN_ASSERT(!s->weights && s->weight_bytes > 0);
    ravel_status status = s->kernels->alloc(s->device, s->weight_bytes, &s->weights, err);
    train_array weights = {s->kernels, s->device, s->weights, s->kernels->types.weight, NULL};
    if (!status) status = train_tensors_load(params, &weights, folder, err);
    if (!status) train_generator_set_weights(s->generator, s->weights, 1);
    return status;
}

static ravel_status pull_weights(train_sampler *s, const train_sampler_options *options, ravel_error *err) {
    (void)train_place_open(&s->place, s->kernels, options->model->gpu, NULL); /* else through host memory */
    ravel_status status = train_weight_sets_open(&s->sets, s->kernels, s->device, &s->place, s->generator, err);
    return status ? status : train_pulled_open(options->pull, &s->sets, &s->pulled, err);
}

ravel_status train_sampler_open(const train_sampler_options *options, train_sampler **sampler, ravel_error *err) {
    ravel_shape shape;
    train_generator_options generator;
    train_sampler *s = train__calloc(NULL, 1, sizeof *s);
    if (!s) return train__no_memory(err, sizeof *s, "a sampler");
    train_generator_options_default(&generator);
    generator.slots = options->slots;
    generator.slot_tokens = options->slot_tokens;
    generator.graphs = options->model->graphs;
    ravel_status status = train_shape(options->model, &shape, err);
    if (!status) status = train_device_open(options->model, NULL, &s->kernels, &s->device, err);
    if (!status) status = train_generator_create(s->kernels, s->device, &shape, &generator, &s->generator, err);
    if (!status) status = options->pull ? pull_weights(s, options, err) : load_weights(s, options->model->model, err);
    if (status) {
        train_sampler_free(s);
        return status;
    }
    *sampler = s;
    return RAVEL_OK;
}

void train_sampler_free(train_sampler *s) {
    if (!s) return;
    train_pulled_free(s->pulled);
    train_generator_free(s->generator);
    train_weight_sets_close(&s->sets);
    train_place_close(&s->place);
    if (s->weights) s->kernels->release(s->device, s->weights, s->weight_bytes);
    if (s->device) s->kernels->close(s->device);
    train__release(NULL, s, sizeof *s);
}

static ravel_status show_partial(train_sampler *s, const train_sampler_hooks *hooks, ravel_error *err) {
    int64_t count;
    const int32_t *tokens = hooks->partial ? train_generator_partial(s->generator, 0, 0, &count) : NULL;
    return tokens ? hooks->partial(hooks->user, tokens, count, err) : RAVEL_OK;
}

/* Between two steps. */
static ravel_status pull(train_sampler *s, int idle, ravel_error *err) {
    TRAIN_ASSERT(s->generator);
    if (!s->pulled) return RAVEL_OK;
    return train_pulled_step(s->pulled, idle, train_generator_counts(s->generator).tokens, err);
}

train_pulled_stats train_sampler_pulled(const train_sampler *s) {
    return s->pulled ? train_pulled_counts(s->pulled) : (train_pulled_stats){.version = 1};
}

ravel_status train_sampler_run(train_sampler *s, const train_request *requests, int64_t count,
                               const train_sampler_hooks *hooks, ravel_error *err) {
    ravel_status status = pull(s, 1, err);
    TRAIN_ASSERT(hooks->answer && count >= 0);
    if (!status) status = train_generator_begin(s->generator, requests, count, err);
    while (!status && train_generator_busy(s->generator) && !(hooks->stop && *hooks->stop)) {
        status = train_generator_step(s->generator, hooks->answer, hooks->user, err);
        if (!status) status = show_partial(s, hooks, err);
        if (!status) status = pull(s, 0, err);
    }
    return status;
}
