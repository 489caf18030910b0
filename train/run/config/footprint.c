#include "train/rl/outside/teacher.h"
#include "train/run/config/footprint.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/base.h"
#include "train/model/hf/files.h"
#include "train/model/generate/generator.h"
#include "train/model/hf/lora.h"
#include "train/run/grpo/pull.h"
#include "train/run/rundir.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

int64_t train_mapped_bytes(const train_model_choice *choice, const ravel_shape *shape) {
    const train_kernels *kernels;
    train_params *params = NULL;
    if (train_choice_kernels(choice, &kernels, NULL) || train_params_create(shape, NULL, NULL, &params, NULL)) return 0;
    int64_t bytes = params->parameters * ravel_dtype_bytes(kernels->types.weight);
    if (!train_base_maps(kernels, params, choice->model)) bytes = 0;
    train_params_free(params);
    return bytes;
}

/* The model that training begins with, or a teacher, on the same mesh. */
static ravel_status reference_bytes(const train_config *c, const train_learner_options *options,
                                    const ravel_shape *shape, const ravel_mesh_layout *layout, int32_t stage,
                                    train_footprint *footprint, ravel_error *err) {
    train_memory memory;
    ravel_shape teacher;
    train_model_choice choice;
    train_parts_options parts = train_learner_parts_options(options, 1);
    ravel_status status = RAVEL_OK;
    if (c->grpo.teacher) {
        parts.model = &choice;
        choice = train_config_teacher(c);
        status = train_shape(&choice, &teacher, err);
        shape = &teacher;
    }
    if (!status) status = train_parts_memory(&parts, shape, layout, stage, &memory, err);
    if (status) return status;
    footprint->reference = memory.total;
    if (!parts.shard) footprint->mapped += train_mapped_bytes(parts.model, shape);
    return RAVEL_OK;
}

/* Two sets of weights, one to answer with and one for refit to fill, and the cache; beside an adapter the model. */
static ravel_status generator_bytes(const train_config *c, const ravel_shape *shape, const train_kernels *kernels,
                                    int64_t longest_prompt, train_footprint *footprint, ravel_error *err) {
    train_generator_options options;
    train_params *params = NULL;
    const int64_t each = ravel_dtype_bytes(kernels->types.weight);
    train_config_generator(c, longest_prompt, &options);
    options.tp_ranks = c->grpo.generator_tp;
    train_slice part = {.tp = c->grpo.generator_tp};
    RAVEL_ASSERT(longest_prompt >= 0 && options.slots > 0);
    ravel_status status =
        train_generator_memory(kernels, c->model.threads, shape, &options, &footprint->generator, err);
    if (!status) status = train_trained_params(shape, &part, &c->model.lora, NULL, &params, err);
    if (!status) footprint->generator += 2 * params->elements * each;
    train_params_free(params);
    params = NULL;
    if (status || !c->model.lora.rank) return status;
    int64_t mapped = train_mapped_bytes(&c->model, shape);
    if (!footprint->mapped) footprint->mapped = mapped;
    if (mapped) return RAVEL_OK;
    status = train_params_create(shape, &part, NULL, &params, err);
    if (!status) footprint->generator += params->elements * each;
    train_params_free(params);
    return status;
}

/* Versions that are published, and what a collective refit compares with. */
static int64_t kept_bytes(const train_config *c, const ravel_shape *shape, const train_kernels *kernels,
                          int64_t weights) {
    int64_t each = ravel_dtype_bytes(kernels->types.weight);
    int32_t narrow = train__grpo_published_dtype(c, kernels);
    int pulls = train__grpo_pulls(c, kernels), compares = !pulls && c->grpo.refit_delta == TRAIN_DELTA_ELEMENTS;
    int64_t versions = c->grpo.publish ? c->grpo.publish_keep : pulls;
    if (c->model.lora.rank) weights = train_trained_parameters(shape, &c->model.lora, 0) * each;
    RAVEL_ASSERT(weights >= 0 && each > 0);
    int64_t version = weights / each * (narrow < 0 ? each : ravel_dtype_bytes(narrow));
    int64_t lists = versions > 1 && c->grpo.publish_sparse ? version / 8 : 0; /* of the last eight versions' changes */
    return version * versions + lists + 2 * compares * weights;
}

ravel_status train_footprint_of(const train_config *c, train_kind kind, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int64_t longest_prompt, train_footprint *footprint,
                                ravel_error *err) {
    train_estimate e;
    const train_kernels *kernels;
    train_learner_options options = train_config_learner(c, kind);
    *footprint = (train_footprint){0};
    ravel_status status = train_choice_kernels(&c->model, &kernels, err);
    if (!status) status = train_learner_estimate(&options, shape, layout, &e, err);
    if (status) return status;
    footprint->fixed = e.model.weights + e.model.grads + e.optimizer;
    footprint->activations = e.model.activations;
    footprint->working = e.total - footprint->fixed - e.model.activations;
    RAVEL_ASSERT(footprint->fixed >= 0 && footprint->working >= 0);
    if (c->model.lora.rank && c->learn.shard != TRAIN_SHARD_PARAMS)
        footprint->mapped = train_mapped_bytes(&c->model, shape);
    if ((kind == TRAIN_DPO || (kind == TRAIN_GRPO && c->policy.kl > 0)) && (!c->model.lora.rank || c->grpo.teacher) &&
        !train_servers_are(c->grpo.teacher))
        status = reference_bytes(c, &options, shape, layout, e.stage, footprint, err);
    if (kind == TRAIN_GRPO) footprint->published = kept_bytes(c, shape, kernels, e.model.weights);
    if (!status && kind == TRAIN_GRPO) status = generator_bytes(c, shape, kernels, longest_prompt, footprint, err);
    footprint->trainer = e.total + footprint->reference + footprint->published;
    return status;
}

/* ---- whether it fits -------------------------------------------------------------------------------------- */

/* Bytes of the room's ranks. */
static ravel_status needed(const train_config *c, train_kind kind, const ravel_shape *shape,
                           const ravel_mesh_layout *layout, int64_t longest, const train_room *room, double *bytes,
                           ravel_error *err) {
    train_footprint p;
    ravel_status status = train_footprint_of(c, kind, shape, layout, longest, &p, err);
    if (status) return status;
    RAVEL_ASSERT(room->trainers >= 0 && room->generators >= 0);
    *bytes = (double)room->trainers * (double)p.trainer + (double)room->generators * (double)p.generator;
    return RAVEL_OK;
}

typedef struct remedy {
    const char *text;
    int (*apply)(train_config *c, const ravel_mesh_layout *layout); /* 0: it is so already, or cannot be */
} remedy;

static int recompute(train_config *c, const ravel_mesh_layout *layout) {
    int changes = layout && c->model.recompute != TRAIN_RECOMPUTE_FULL;
    c->model.recompute = TRAIN_RECOMPUTE_FULL;
    return changes;
}

static int shard(train_config *c, const ravel_mesh_layout *layout) {
    int changes =
        c->learn.shard != TRAIN_SHARD_PARAMS && ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP) > 1;
    if (changes) c->learn.shard = TRAIN_SHARD_PARAMS;
    return changes;
}

/* Frozen weights in the dtype of their files, which are mapped then. */
static int narrow(train_config *c, const ravel_mesh_layout *layout) {
    const train_kernels *kernels;
    if (!layout || !c->model.lora.rank || train_choice_kernels(&c->model, &kernels, NULL)) return 0;
    if (!kernels->host_memory || kernels->types.weight != RAVEL_F32) return 0;
    c->model.kernels = "cpu-bf16";
    return train_choice_settle(&c->model, 0, NULL) == RAVEL_OK;
}

static int adapt(train_config *c, const ravel_mesh_layout *layout) {
    if (!layout || c->model.lora.rank || !c->model.model) return 0; /* new weights have nothing to adapt */
    c->model.lora_rank = 16;
    return train_choice_settle(&c->model, 0, NULL) == RAVEL_OK;
}

/* In the order in which they are tried; each is kept. */
static const remedy remedies[] = {{" --recompute full", recompute},
                                  {" --shard params", shard},
                                  {" --kernels cpu-bf16", narrow},
                                  {" --lora-rank 16", adapt},
                                  {" --kernels cpu-bf16", narrow}};
enum { REMEDIES = sizeof remedies / sizeof *remedies, FREE_OF_LOSS = 3 };

typedef struct search {
    train_kind kind;
    const ravel_shape *shape;
    const ravel_mesh_layout *layout;
    int64_t longest;
    const train_room *room;
} search;

static int fits(const search *s, const train_config *c) {
    double bytes = 0;
    return needed(c, s->kind, s->shape, s->layout, s->longest, s->room, &bytes, NULL) == RAVEL_OK &&
           bytes <= (double)s->room->bytes;
}

/* Halves the budget (1), the generators' slots (2), or both (3), until it fits. */
static int find_smaller(const search *s, train_config c, int which, char *text, size_t size) {
    for (;;) {
        if ((which & 1) && (c.plan.budget /= 2) < 256) return 0;
        if ((which & 2) && (s->room->generators == 0 || (c.grpo.slots /= 2) < 1)) return 0;
        if (!fits(s, &c)) continue;
        int used = which & 1 ? snprintf(text, size, " --budget %lld", (long long)c.plan.budget) : 0;
        if (which & 2) (void)snprintf(text + used, size - (size_t)used, " --slots %lld", (long long)c.grpo.slots);
        return 1;
    }
}

/* 1: it fits with the options that `text` names. A smaller budget comes before options that train something else. */
static int find_options(const search *s, train_config c, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i <= REMEDIES; i++) {
        for (int which = 1; which <= 3 && i >= FREE_OF_LOSS; which++)
            if (find_smaller(s, c, which, text + used, size - used)) return 1;
        if (i == REMEDIES || !remedies[i].apply(&c, s->layout)) continue;
        used += (size_t)snprintf(text + used, size - used, "%s", remedies[i].text);
        if (fits(s, &c)) return 1;
    }
    return 0;
}

/* Ranks that fit by themselves, where a rank is a copy of the model; "": none, or it is not. */
static void say_ranks(const search *s, const train_footprint *p, char *text, size_t size) {
    int64_t count = p->trainer > 0 ? s->room->bytes / p->trainer : 0;
    if (s->room->generators || s->layout->ranks == 1 ||
        ravel_mesh_group_size(s->layout, RAVEL_AXIS_DP) < s->layout->ranks)
        return;
    if (count > 0) (void)snprintf(text, size, "; %lld of them fit%s", (long long)count, count == 1 ? "s" : "");
}

ravel_status train_footprint_fits(const train_config *c, train_kind kind, const ravel_shape *shape,
                                  const ravel_mesh_layout *layout, int64_t longest, const train_room *room,
                                  ravel_error *err) {
    char a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT], options[200] = "", ranks[48] = "";
    double bytes = 0;
    train_footprint p = {0};
    const search s = {kind, shape, layout, longest, room};
    ravel_status status = needed(c, kind, shape, layout, longest, room, &bytes, err);
    if (status || bytes <= (double)room->bytes) return status;
    if (!train_footprint_of(c, kind, shape, layout, longest, &p, NULL)) say_ranks(&s, &p, ranks, sizeof ranks);
    int found = find_options(&s, *c, options, sizeof options);
    train_bytes_text(bytes < 9e18 ? (int64_t)bytes : INT64_MAX, a);
    train_bytes_text(room->bytes, b);
    int32_t count = room->trainers + room->generators;
    if (found)
        return ravel_error_set(err, RAVEL_E_MEMORY, "this run needs %s on %s (%d rank%s), which has %s; try%s%s", a,
                               room->of, count, count == 1 ? "" : "s", b, options, ranks);
    return ravel_error_set(err, RAVEL_E_MEMORY,
                           "this run needs %s on %s (%d rank%s), which has %s%s; it does not fit with%s and a smaller "
                           "budget either: take %smore machines (--shard params, --tp, --pp) or a smaller model",
                           a, room->of, count, count == 1 ? "" : "s", b, ranks, options,
                           count == 1 ? "" : "fewer ranks, ");
}

/* Checkpoints that will be written, at most. */
static int64_t checkpoints_to_come(const train_config *c, const train_disk *d, const train_interval *every) {
    int64_t left = d->steps - d->done;
    if (left <= 0) return 0;
    if (c->run.keep_best || every->seconds > 0) return left;
    return (every->updates > 0 ? left / every->updates : 0) + (c->run.checkpoint_end != 0);
}

/* The model, two moments and, where the model's file does not have all of their bits, f32 masters. */
static int64_t checkpoint_bytes(const train_config *c, const ravel_shape *shape) {
    const train_kernels *kernels;
    int64_t weights = train_trained_parameters(shape, &c->model.lora, 0), narrow = c->run.save_dtype == 1;
    if (train_choice_kernels(&c->model, &kernels, NULL)) return 0;
    int64_t each = 8 + (narrow ? 2 : 4) + (narrow || kernels->types.weight != RAVEL_F32 ? 4 : 0);
    return weights < INT64_MAX / each ? weights * each : INT64_MAX;
}

ravel_status train_checkpoints_fit(const train_config *c, const ravel_shape *shape, const train_disk *d,
                                   const ravel_logger *logger, ravel_error *err) {
    char a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT];
    train_interval every = {0};
    (void)train_interval_parse(c->run.checkpoint_every, &every, NULL); /* which was checked */
    int64_t come = checkpoints_to_come(c, d, &every), kept = c->run.keep + c->run.keep_best;
    int64_t each = checkpoint_bytes(c, shape);
    int64_t most = train__min(c->run.keep > 0 ? kept + 1 : 2, d->there + come); /* there at a time */
    int64_t more = train__max(most - d->there, come > 0);
    if (come == 0 || each == 0) return RAVEL_OK;
    train_bytes_text(each, a);
    train_bytes_text(d->bytes, b);
    if (each > d->bytes / more)
        return ravel_error_set(
            err, RAVEL_E_IO,
            "a checkpoint takes %s, and up to %lld are there at a time (--keep %lld, and the one that is being "
            "written), %lld of them already; the disk of the run's folder has %s: free some, lower --keep, or choose "
            "another --run",
            a, (long long)most, (long long)c->run.keep, (long long)d->there, b);
    if (c->run.keep == 0 && every.updates > 0 && each > d->bytes / come)
        ravel__log(
            logger, RAVEL_LOG_WARN,
            "a checkpoint takes %s, up to %lld will be written and all are kept (--keep 0); the disk of the run's "
            "folder has %s",
            a, (long long)come, b);
    return RAVEL_OK;
}

/* ---- as text ---------------------------------------------------------------------------------------------- */

static void log_generators(const train_config *c, const train_footprint *p, int64_t longest_prompt,
                           const ravel_logger *logger) {
    char bytes[TRAIN_BYTES_TEXT];
    ravel__log(logger, RAVEL_LOG_INFO,
               "memory per generator rank: %s = two sets of weights and a cache of %lld slots of %lld tokens",
               train_bytes_text(p->generator, bytes), (long long)c->grpo.slots,
               (long long)longest_prompt + train_config_rollout_tokens(c));
}

/* One line where ranks share a GPU. */
static void log_sharing(const train_footprint *p, const train_devices *d, const ravel_logger *logger) {
    char who[96] = "", bytes[TRAIN_BYTES_TEXT];
    if (d->trainers + d->generators < 2) return;
    if (d->generators)
        (void)snprintf(who, sizeof who, ", of which %d generate%s", d->generators, d->generators == 1 ? "s" : "");
    ravel__log(logger, RAVEL_LOG_INFO, "GPU %d is shared by %d ranks%s: %s of its memory together", d->crowded,
               d->trainers + d->generators, who,
               train_bytes_text(d->trainers * p->trainer + d->generators * p->generator, bytes));
}

/* Where weights that are only read are, and why not in their files. */
static void log_frozen(const train_config *c, const train_footprint *p, const train_kernels *kernels,
                       const ravel_logger *logger) {
    char bytes[TRAIN_BYTES_TEXT];
    if (p->mapped)
        ravel__log(logger, RAVEL_LOG_INFO, "  and %s of mapped files, which all ranks of a machine share",
                   train_bytes_text(p->mapped, bytes));
    if (p->mapped || !c->model.lora.rank || !c->model.model || !kernels->host_memory) return;
    int32_t dtype = train_weights_dtype(c->model.model);
    if (c->learn.shard == TRAIN_SHARD_PARAMS)
        ravel__log(logger, RAVEL_LOG_INFO, "  frozen weights are loaded and shared out, not mapped (--shard params)");
    else
        ravel__log(
            logger, RAVEL_LOG_INFO,
            "  every rank loads the frozen weights: they are not mapped, since %s holds %s and %s kernels read %s",
            c->model.model, dtype < 0 ? "no weights" : ravel_dtype_name(dtype), kernels->name,
            ravel_dtype_name(kernels->types.weight));
}

static void log_footprint(const train_config *c, const ravel_shape *shape, const ravel_mesh_layout *layout,
                          const train_footprint *p, const train_kernels *kernels, const ravel_logger *logger) {
    char extra[128] = "", mesh[96] = "", a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT], d[TRAIN_BYTES_TEXT],
         f[TRAIN_BYTES_TEXT];
    if (p->reference) (void)snprintf(extra, sizeof extra, " + %s reference model", train_bytes_text(p->reference, a));
    size_t said = strlen(extra);
    if (p->published)
        (void)snprintf(extra + said, sizeof extra - said, " + %s kept for generators",
                       train_bytes_text(p->published, a));
    if (layout->ranks > 1) {
        char sizes[80];
        train_layout_text(layout, sizes, sizeof sizes);
        (void)snprintf(mesh, sizeof mesh, " (%s)", sizes);
    }
    ravel__log(logger, RAVEL_LOG_INFO,
               "%.1f M parameters, kernels %s, trainer ranks: %d%s, threads per rank: %d\n"
               "  memory per trainer: %s = %s weights, gradients and optimiser + %s activations (budget %lld) + %s "
               "working%s",
               (double)ravel_shape_parameters(shape) / 1e6, kernels->name, layout->ranks, mesh,
               c->model.threads ? c->model.threads : 1, train_bytes_text(p->trainer, a), train_bytes_text(p->fixed, b),
               train_bytes_text(p->activations, d), (long long)c->plan.budget, train_bytes_text(p->working, f), extra);
}

/* What the ranks share: the machine, in proportion of trainers and generators, or the GPU with the most ranks. */
static train_room find_room(const train_config *c, train_kind kind, const ravel_mesh_layout *layout, int32_t local,
                            const train_devices *devices, int64_t memory, char *place, size_t size) {
    int64_t trainers = layout->ranks, generators = kind == TRAIN_GRPO && !c->grpo.rollout ? c->grpo.generators : 0,
            all = trainers + generators;
    (void)snprintf(place, size, "GPU %d", devices->crowded);
    if (devices->gpus > 0) return (train_room){devices->trainers, devices->generators, devices->free_bytes, place};
    return (train_room){(int32_t)((trainers * local + all - 1) / all), (int32_t)((generators * local + all - 1) / all),
                        memory, "this machine"};
}

static train_disk look_at_disk(const train_config *c, int64_t steps) {
    char path[TRAIN_PATH];
    train_disk d = {.bytes = train_machine_disk(c->run.run ? c->run.run : "runs"), .steps = steps};
    if (!c->run.resume || !c->run.run) return d;
    d.there = train_checkpoint_count(c->run.run);
    if (train_checkpoint_latest(c->run.run, &d.done, path, NULL)) d.done = 0;
    return d;
}

ravel_status train_footprint_log(const train_config *c, train_kind kind, const ravel_shape *shape,
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, int64_t steps, int32_t local,
                                 const train_devices *devices, const ravel_logger *logger, ravel_error *err) {
    char place[32];
    train_footprint p;
    const train_kernels *kernels;
    const train_machine machine = train_machine_look("");
    const train_disk disk = look_at_disk(c, steps);
    const train_room room = find_room(c, kind, layout, local, devices, machine.memory, place, sizeof place);
    ravel_status status = train_footprint_fits(c, kind, shape, layout, longest_prompt, &room, err);
    if (!status) status = train_checkpoints_fit(c, shape, &disk, logger, err);
    if (!status) status = train_footprint_of(c, kind, shape, layout, longest_prompt, &p, err);
    if (!status) status = train_choice_kernels(&c->model, &kernels, err);
    if (status || !logger) return status;
    log_footprint(c, shape, layout, &p, kernels, logger);
    log_frozen(c, &p, kernels, logger);
    if (kind == TRAIN_GRPO && !c->grpo.rollout) log_generators(c, &p, longest_prompt, logger);
    log_sharing(&p, devices, logger);
    if (devices->wire[0]) ravel__log(logger, RAVEL_LOG_INFO, "%s", devices->wire);
    if (devices->gpus == 0)
        train_machine_warn(&machine, room.trainers * p.trainer + room.generators * p.generator, p.mapped, logger);
    return RAVEL_OK;
}
