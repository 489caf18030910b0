#include "train/run/footprint.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/model/files.h"
#include "train/model/generator.h"
#include "train/run/grpo_pull.h"
#include "train/run/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

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

/* ---- what the machine has -------------------------------------------------------------------------------- */

/* The first number of a file; INT64_MAX where there is none. */
static int64_t number_in(const char *path, const char *format, int64_t unit) {
    long long value = 0;
    char line[256];
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) found = sscanf(line, format, &value) == 1;
    if (f) (void)fclose(f);
    return found && value > 0 && value < INT64_MAX / unit ? value * unit : INT64_MAX;
}

int64_t train_machine_memory(void) {
    int64_t all = number_in("/proc/meminfo", "MemTotal: %lld kB", 1024);
    int64_t group = number_in("/sys/fs/cgroup/memory.max", "%lld", 1);
    return train__min(all, train__min(group, number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%lld", 1)));
}

int64_t train_machine_disk(const char *folder) {
    char path[TRAIN_PATH];
    struct statvfs info;
    (void)snprintf(path, sizeof path, "%s", folder);
    while (statvfs(path, &info) != 0) { /* the nearest folder above it that exists */
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            if (statvfs(slash ? "/" : ".", &info) != 0) return INT64_MAX;
            break;
        }
        *slash = '\0';
    }
    if (info.f_blocks == 0) return INT64_MAX; /* no disk: /proc and the like */
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

/* ---- whether it fits -------------------------------------------------------------------------------------- */

/* Bytes of `local` ranks, in proportion of trainers and generators. */
static ravel_status needed(const train_config *c, train_kind kind, const ravel_shape *shape,
                           const ravel_mesh_layout *layout, int64_t longest, int32_t local, int64_t *bytes,
                           ravel_error *err) {
    train_footprint p;
    int64_t trainers = layout->ranks, generators = kind == TRAIN_GRPO ? c->grpo.generators : 0,
            all = trainers + generators;
    ravel_status status = train_footprint_of(c, kind, shape, layout, longest, &p, err);
    if (status) return status;
    int64_t train = (trainers * local + all - 1) / all, generate = (generators * local + all - 1) / all;
    TRAIN_ASSERT(train >= 0 && generate >= 0);
    double sum = (double)train * (double)p.trainer + (double)generate * (double)p.generator;
    *bytes = sum < 9e18 ? (int64_t)sum : INT64_MAX;
    return RAVEL_OK;
}

/* One option after the other, each kept, until it fits: 1, and `text` says which. */
static int find_options(const train_config *from, train_kind kind, const ravel_shape *shape,
                        const ravel_mesh_layout *layout, int64_t longest, int32_t local, int64_t memory, char *text,
                        size_t room) {
    train_config c = *from;
    int64_t bytes = INT64_MAX;
    size_t used = 0;
    int shards = ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP) > 1;
    for (int way = 0; way < 12 && used < room; way++) {
        if (way == 0 && c.model.recompute != TRAIN_RECOMPUTE_FULL) {
            c.model.recompute = TRAIN_RECOMPUTE_FULL;
            used += (size_t)snprintf(text + used, room - used, " --recompute full");
        } else if (way == 1 && shards && c.learn.shard != TRAIN_SHARD_PARAMS) {
            c.learn.shard = TRAIN_SHARD_PARAMS;
            used += (size_t)snprintf(text + used, room - used, " --shard params");
        } else if (way > 1 && c.plan.budget >= 1024) {
            size_t before = way > 2 ? (size_t)(strstr(text, " --budget") - text) : used;
            c.plan.budget /= 2;
            used = before + (size_t)snprintf(text + before, room - before, " --budget %lld", (long long)c.plan.budget);
        } else {
            continue;
        }
        if (needed(&c, kind, shape, layout, longest, local, &bytes, NULL) == RAVEL_OK && bytes <= memory) return 1;
    }
    return 0;
}

ravel_status train_footprint_fits(const train_config *c, train_kind kind, const ravel_shape *shape,
                                  const ravel_mesh_layout *layout, int64_t longest, int32_t local, int64_t memory,
                                  ravel_error *err) {
    char a[32], b[32], options[200] = "";
    const train_kernels *kernels;
    int64_t bytes = 0;
    ravel_status status = train_kernels_find(c->model.kernels, &kernels, err);
    if (status || !kernels->host_memory) return status;
    status = needed(c, kind, shape, layout, longest, local, &bytes, err);
    if (status || bytes <= memory) return status;
    int found = find_options(c, kind, shape, layout, longest, local, memory, options, sizeof options);
    in_units(bytes, a, sizeof a);
    in_units(memory, b, sizeof b);
    if (found)
        return ravel_error_set(err, RAVEL_E_MEMORY,
                               "this run needs %s on this machine (%d rank%s), which has %s; try%s", a, local,
                               local == 1 ? "" : "s", b, options);
    return ravel_error_set(
        err, RAVEL_E_MEMORY,
        "this run needs %s on this machine (%d rank%s), which has %s, and does not fit with%s either: take "
        "fewer ranks, more machines (--shard params, --tp, --pp) or a smaller model",
        a, local, local == 1 ? "" : "s", b, options[0] ? options : " a smaller budget");
}

ravel_status train_checkpoints_fit(const train_config *c, const ravel_shape *shape, int64_t disk, ravel_error *err) {
    char a[32], b[32];
    int64_t weights = ravel_shape_parameters(shape), each = weights < INT64_MAX / 16 ? weights * 12 : INT64_MAX;
    int64_t count = c->run.keep > 0 ? c->run.keep + 1 + c->run.keep_best : 2;
    if (c->run.save_dtype == 1 && each < INT64_MAX) each += 2 * weights; /* and the weights as they are */
    if (!c->run.checkpoint_end && strcmp(c->run.checkpoint_every, "0") == 0) return RAVEL_OK;
    TRAIN_ASSERT(each > 0 && count > 0);
    if (each <= disk / count) return RAVEL_OK;
    in_units(each, a, sizeof a);
    in_units(disk, b, sizeof b);
    return ravel_error_set(
        err, RAVEL_E_IO,
        "a checkpoint takes %s, and up to %lld are there at a time (--keep %lld, and the one that is being "
        "written); the disk of the run's folder has %s: free some, lower --keep, or choose another --run",
        a, (long long)count, (long long)c->run.keep, b);
}

/* ---- as text ---------------------------------------------------------------------------------------------- */

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
                                 const ravel_mesh_layout *layout, int64_t longest_prompt, int32_t local,
                                 const train_devices *devices, const ravel_logger *logger, ravel_error *err) {
    char extra[128] = "", mesh[96] = "", a[32], b[32], d[32], f[32];
    train_footprint p;
    ravel_status status =
        train_footprint_fits(c, kind, shape, layout, longest_prompt, local, train_machine_memory(), err);
    if (!status) status = train_checkpoints_fit(c, shape, train_machine_disk(c->run.run ? c->run.run : "runs"), err);
    if (!status) status = train_footprint_of(c, kind, shape, layout, longest_prompt, &p, err);
    if (status || !logger) return status;
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
