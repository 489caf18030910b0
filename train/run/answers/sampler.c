#include "train/run/answers/sampler.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/base.h"
#include "train/model/hf/lora.h"
#include "train/run/answers/published.h"
#include "train/run/config/footprint.h"

#include <stdio.h>

struct train_sampler {
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    train_base base;            /* the folder's weights */
    train_adapter *adapters;    /* [adapter_count] of folders */
    int32_t adapter_count, own; /* own 1: the last one is the model's */
    train_published *published; /* an adapter that is pulled */
    train_weight_sets sets;     /* of a model that is pulled */
    train_place place;          /* of the sets, where the device floor can use the GPU */
    train_pulled *pulled;
};

/* ---- opening --------------------------------------------------------------------------------------------- */

static ravel_status load_weights(train_sampler *s, const train_model_choice *m, ravel_error *err) {
    const train_params *params = train_generator_params(s->generator);
    ravel_status status =
        train_base_open(&s->base, s->kernels, s->device, params, m->model, m->init_seed, m->init_std, err);
    if (!status) train_generator_set_base(s->generator, s->base.frozen);
    return status;
}

static ravel_status pull_weights(train_sampler *s, const train_sampler_options *options, ravel_error *err) {
    (void)train_place_open(&s->place, s->kernels, options->model->gpu, NULL); /* else through host memory */
    ravel_status status = train_weight_sets_open(&s->sets, s->kernels, s->device, &s->place, s->generator, err);
    const train_pulled_to to = train_pulled_sets(&s->sets);
    return status ? status : train_pulled_open(options->pull, &to, &s->pulled, err);
}

/* What is published: an adapter's first version is pulled, because it says how the generator must be made. */
static ravel_status look(train_sampler *s, const train_sampler_options *options, ravel_error *err) {
    if (!options->pull) return RAVEL_OK;
    ravel_status status = train_published_look(options->pull, &s->published, err);
    if (status) return status;
    if (s->published) return train_published_open(s->published, options->pull, &s->pulled, err);
    if (!options->model->lora.rank) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s publishes a whole model: give --model alone, without an adapter",
                           options->pull->address);
}

/* Adapter i + 1 of the generator: those of options->adapters, then the model's own. */
static const char *folder_of(const train_sampler *s, const train_sampler_options *options, int32_t i) {
    return i < s->adapter_count - s->own ? options->adapters[i] : options->model->adapter;
}

static ravel_status open_adapters(train_sampler *s, const train_sampler_options *options, const ravel_shape *shape,
                                  int32_t *rank, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    s->own = options->model->adapter && !options->pull;
    int32_t count = options->adapter_count + s->own;
    *rank = s->published ? train_published_lora(s->published)->rank : 0;
    if (count == 0) return RAVEL_OK;
    s->adapters = ravel__calloc(NULL, (size_t)count, sizeof *s->adapters);
    if (!s->adapters) return ravel__no_memory(err, (size_t)count * sizeof *s->adapters, "adapters");
    s->adapter_count = count;
    for (int32_t i = 0; i < count && !status; i++) {
        const char *folder = folder_of(s, options, i);
        train_adapter *a = &s->adapters[i];
        train_lora lora;
        status = train_adapter_read(folder, &lora, err);
        if (!status) status = train_adapter_open(a, s->kernels, s->device, shape, &lora, err);
        if (status) break;
        const train_array to = {s->kernels, s->device, a->weights, s->kernels->types.weight, NULL};
        status = train_adapter_load(a->params, &to, folder, err);
        if (lora.rank > *rank) *rank = lora.rank;
    }
    return status;
}

static ravel_status use_adapters(train_sampler *s, const ravel_shape *shape, ravel_error *err) {
    for (int32_t i = 0; i < s->adapter_count; i++)
        train_generator_set_adapter(s->generator, i + 1, s->adapters[i].params, s->adapters[i].weights, 1);
    if (s->own) train_generator_use_adapter(s->generator, s->adapter_count);
    if (!s->published) return RAVEL_OK;
    return train_published_attach(s->published, s->kernels, s->device, s->generator, shape, s->adapter_count + 1, err);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

typedef struct need {
    train_model_choice choice;
    const ravel_shape *shape;
    train_generator_options options;
    int pulls; /* a whole model, of which there are two sets then */
    int64_t bytes, mapped;
} need;

static ravel_status measure(need *n, ravel_error *err) {
    const train_kernels *kernels;
    n->mapped = n->pulls ? 0 : train_mapped_bytes(&n->choice, n->shape);
    ravel_status status = train_choice_kernels(&n->choice, &kernels, err);
    if (!status) status = train_generator_memory(kernels, n->choice.threads, n->shape, &n->options, &n->bytes, err);
    if (!status && !n->mapped)
        n->bytes += (1 + n->pulls) * ravel_shape_parameters(n->shape) * ravel_dtype_bytes(kernels->types.weight);
    if (!status && !kernels->host_memory) n->bytes = n->mapped = 0; /* the GPU's allocations say it */
    return status;
}

/* What would fit: weights in bf16, or fewer sequences at once. */
static void advise(need n, int64_t memory, char *text, size_t size) {
    need narrow = n;
    (void)snprintf(text, size, "try shorter answers or a smaller model");
    narrow.choice.set = "cpu-bf16";
    for (; n.options.slots > 1; n.options.slots /= 2, n.options.keep = 0)
        if (!measure(&n, NULL) && n.bytes <= memory) {
            (void)snprintf(text, size, "try --slots %lld", (long long)n.options.slots);
            return;
        }
    if (!measure(&narrow, NULL) && narrow.bytes <= memory) (void)snprintf(text, size, "try --kernels cpu-bf16");
}

static ravel_status check_memory(const train_model_choice *choice, const ravel_shape *shape, int pulls,
                                 const train_generator_options *options, const ravel_logger *logger, ravel_error *err) {
    char advice[64];
    const train_machine machine = train_machine_look("");
    need n = {.choice = *choice, .shape = shape, .options = *options, .pulls = pulls};
    ravel_status status = measure(&n, err);
    if (!status && n.bytes > machine.memory) advise(n, machine.memory, advice, sizeof advice);
    if (!status) status = train_machine_fits(&machine, n.bytes, "the model with its cache", advice, err);
    if (!status) train_machine_warn(&machine, n.bytes, n.mapped, logger);
    return status;
}

ravel_status train_sampler_open(const train_sampler_options *options, train_sampler **sampler, ravel_error *err) {
    ravel_shape shape;
    train_generator_options generator;
    train_sampler *s = ravel__calloc(NULL, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "a sampler");
    train_generator_options_default(&generator);
    generator.slots = options->slots;
    generator.slot_tokens = options->slot_tokens;
    generator.keep = options->keep;
    generator.prefill_rows = options->prefill_rows;
    generator.top = options->top;
    generator.graphs = options->model->graphs;
    ravel_status status = train_shape(options->model, &shape, err);
    if (!status) status = look(s, options, err);
    train_model_choice choice = *options->model;
    if (!status && options->pull && !s->published) /* what comes is not what the folder has */
        status = train_choice_settle(&choice, 0, err);
    if (!status) status = train_device_open(&choice, NULL, &s->kernels, &s->device, err);
    if (!status) status = open_adapters(s, options, &shape, &generator.adapter_rank, err);
    generator.adapters = s->adapter_count + (s->published ? train_published_versions(s->published) : 0);
    int pulls = options->pull && !s->published;
    if (!status) status = check_memory(&choice, &shape, pulls, &generator, options->logger, err);
    if (!status) status = train_generator_create(s->kernels, s->device, &shape, &generator, &s->generator, err);
    if (!status) status = pulls ? pull_weights(s, options, err) : load_weights(s, options->model, err);
    if (!status) status = use_adapters(s, &shape, err);
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
    train_published_free(s->published);
    for (int32_t i = 0; i < s->adapter_count; i++) train_adapter_close(&s->adapters[i]);
    ravel__release(NULL, s->adapters, (size_t)s->adapter_count * sizeof *s->adapters);
    train_weight_sets_close(&s->sets);
    train_place_close(&s->place);
    train_base_close(&s->base);
    if (s->device) s->kernels->close(s->device);
    ravel__release(NULL, s, sizeof *s);
}

/* ---- running --------------------------------------------------------------------------------------------- */

static ravel_status show_partial(train_sampler *s, const train_sampler_hooks *hooks, ravel_error *err) {
    int64_t count;
    const int32_t *tokens = hooks->partial ? train_generator_partial(s->generator, 0, 0, &count) : NULL;
    return tokens ? hooks->partial(hooks->user, tokens, count, err) : RAVEL_OK;
}

train_generator *train_sampler_generator(train_sampler *s) {
    return s->generator;
}

ravel_status train_sampler_pull(train_sampler *s, int idle, ravel_error *err) {
    RAVEL_ASSERT(s->generator);
    if (!s->pulled) return RAVEL_OK;
    return train_pulled_step(s->pulled, idle, train_generator_counts(s->generator).tokens, err);
}

train_pulled_stats train_sampler_pulled(const train_sampler *s) {
    return s->pulled ? train_pulled_counts(s->pulled) : (train_pulled_stats){.version = 1};
}

ravel_status train_sampler_run(train_sampler *s, const train_request *requests, int64_t count,
                               const train_sampler_hooks *hooks, ravel_error *err) {
    ravel_status status = train_sampler_pull(s, 1, err);
    RAVEL_ASSERT(hooks->answer && count >= 0);
    if (!status) status = train_generator_begin(s->generator, requests, count, err);
    while (!status && train_generator_busy(s->generator) && !(hooks->stop && *hooks->stop)) {
        status = train_generator_step(s->generator, hooks->answer, hooks->user, err);
        if (!status) status = show_partial(s, hooks, err);
        if (!status) status = train_sampler_pull(s, 0, err);
    }
    return status;
}
