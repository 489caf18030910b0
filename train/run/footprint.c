#include "train/run/footprint.h"

#include "train/kernels/assert.h"
#include "train/model/generator.h"
#include "train/run/grpo_pull.h"
#include "train/run/log.h"

#include <stdio.h>
#include <string.h>

static const char *in_units(int64_t bytes, char *text, size_t room) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    TRAIN_ASSERT(bytes >= 0 && unit < (int)(sizeof units / sizeof *units));
    (void)snprintf(text, room, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return text;
}

/* The model that training begins with, on the same mesh. */
static ravel_status reference_bytes(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, int32_t stage, int64_t *bytes, ravel_error *err) {
    train_memory memory;
    train_parts_options parts = train_learner_parts_options(options, 1);
    ravel_status status = train_parts_memory(&parts, shape, layout, stage, &memory, err);
    *bytes = memory.total;
    return status;
}

/* Two sets of weights, one to answer with and one for refit to fill, and the cache. */
static ravel_status generator_bytes(const train_config *c, const ravel_shape *shape, const train_kernels *kernels,
                                    int64_t longest_prompt, int64_t *bytes, ravel_error *err) {
    train_generator_options options;
    train_params *params = NULL;
    train_generator_options_default(&options);
    options.slots = c->grpo.slots;
    options.tp_ranks = c->grpo.generator_tp;
    options.graphs = c->model.graphs;
    train_slice part = {.tp = c->grpo.generator_tp};
    options.slot_tokens = longest_prompt + c->grpo.scoring.max_tokens;
    TRAIN_ASSERT(longest_prompt >= 0 && options.slots > 0);
    ravel_status status = train_generator_memory(kernels, c->model.threads, shape, &options, bytes, err);
    if (!status) status = train_params_create(shape, &part, NULL, &params, err);
    if (!status) *bytes += 2 * params->elements * ravel_dtype_bytes(kernels->types.weight);
    train_params_free(params);
    return status;
}

ravel_status train_footprint_of(const train_config *c, train_kind kind, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int64_t longest_prompt, train_footprint *footprint,
                                ravel_error *err) {
    train_estimate e;
    const train_kernels *kernels;
    train_learner_options options = train_config_learner(c, kind, shape);
    options.pairs = kind == TRAIN_DPO;
    *footprint = (train_footprint){0};
    ravel_status status = train_kernels_find(c->model.kernels, &kernels, err);
    if (!status) status = train_learner_estimate(&options, shape, layout, &e, err);
    if (status) return status;
    footprint->fixed = e.model.weights + e.model.grads + e.optimizer;
    footprint->activations = e.model.activations;
    footprint->working = e.total - footprint->fixed - e.model.activations;
    TRAIN_ASSERT(footprint->fixed >= 0 && footprint->working >= 0);
    if (kind == TRAIN_DPO || (kind == TRAIN_GRPO && c->policy.kl > 0))
        status = reference_bytes(&options, shape, layout, e.stage, &footprint->reference, err);
    if (kind == TRAIN_GRPO && train__grpo_pulls(c, kernels)) footprint->published = e.model.weights;
    if (!status && kind == TRAIN_GRPO)
        status = generator_bytes(c, shape, kernels, longest_prompt, &footprint->generator, err);
    footprint->trainer = e.total + footprint->reference + footprint->published;
    return status;
}

static void log_generators(const train_config *c, const train_footprint *p, int64_t longest_prompt,
                           const ravel_logger *logger) {
    char bytes[32];
    train_log(logger, RAVEL_LOG_INFO,
              "memory per generator rank: %s = two sets of weights and a cache of %lld slots of %lld tokens",
              in_units(p->generator, bytes, sizeof bytes), (long long)c->grpo.slots,
              (long long)longest_prompt + c->grpo.scoring.max_tokens);
}

/* One line where ranks share a GPU. */
static void log_sharing(const train_footprint *p, const train_devices *d, const ravel_logger *logger) {
    char who[96] = "", bytes[32];
    if (d->trainers + d->generators < 2) return;
    if (d->generators)
        (void)snprintf(who, sizeof who, ", of which %d generate%s", d->generators, d->generators == 1 ? "s" : "");
    train_log(logger, RAVEL_LOG_INFO, "GPU %d is shared by %d ranks%s: %s of its memory together", d->crowded,
              d->trainers + d->generators, who,
              in_units(d->trainers * p->trainer + d->generators * p->generator, bytes, sizeof bytes));
}

ravel_status train_footprint_log(const train_config *c, train_kind kind, const ravel_shape *shape,
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, const train_devices *devices,
                                 const ravel_logger *logger, ravel_error *err) {
    char extra[128] = "", mesh[96] = "", a[32], b[32], d[32], f[32];
    train_footprint p;
    if (!logger) return RAVEL_OK;
    ravel_status status = train_footprint_of(c, kind, shape, layout, longest_prompt, &p, err);
    if (status) return status;
    if (p.reference) (void)snprintf(extra, sizeof extra, " + %s reference model", in_units(p.reference, a, sizeof a));
    size_t said = strlen(extra);
    if (p.published)
        (void)snprintf(extra + said, sizeof extra - said, " + %s published", in_units(p.published, a, sizeof a));
    if (layout->ranks > 1) {
        char sizes[80];
        train_layout_text(layout, sizes, sizeof sizes);
        (void)snprintf(mesh, sizeof mesh, " (%s)", sizes);
    }
    train_log(logger, RAVEL_LOG_INFO,
              "%.1f M parameters, trainer ranks: %d%s, threads per rank: %d\n"
              "  memory per trainer: %s = %s weights, gradients and optimiser + %s activations (budget %lld) + %s "
              "working%s",
              (double)ravel_shape_parameters(shape) / 1e6, layout->ranks, mesh, c->model.threads ? c->model.threads : 1,
              in_units(p.trainer, a, sizeof a), in_units(p.fixed, b, sizeof b), in_units(p.activations, d, sizeof d),
              (long long)c->plan.budget, in_units(p.working, f, sizeof f), extra);
    if (kind == TRAIN_GRPO) log_generators(c, &p, longest_prompt, logger);
    log_sharing(&p, devices, logger);
    if (devices->wire[0]) train_log(logger, RAVEL_LOG_INFO, "%s", devices->wire);
    return RAVEL_OK;
}
