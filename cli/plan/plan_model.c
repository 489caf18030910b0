/* --shape: a model. Its cost, unless --cost is given, and the memory that a rank of `ravel train` needs with each
 * budget.
 *
 * The overhead of a micro-step is the time in which its weights are read twice (forward, backward) and the sums of
 * gradients are read and written: 2 + 2 + 8 bytes per parameter, against 6 FLOPs per parameter and token. A GPU does
 * about 170 dense bf16 operations in the time of one byte (H200: 800 TFLOP/s, 4.8 TB/s), so this takes as long as 12 *
 * 170 / 6 = 340 tokens. */
#include "cli/plan/plan.h"

#include "train/learn/layout.h"
#include "train/run/config/footprint.h"
#include "train/run/config/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OVERHEAD_TOKENS = 340 };

#define ROW(...) RAVEL__ROW(plan_flags, __VA_ARGS__)
const ravel_option plan_model_table[] = {
    ROW("shape", STRING, shape, NULL, 0, 0, "SHAPE",
        "a model: a known shape, a config.json, a model folder or a run. The cost is that of training it unless --cost is given, and "
        "the memory of a rank is shown"),
    ROW("memory", I64, memory, "0", 0, 0x1p60, NULL,
        "bytes that a rank has, such as 80G: rows of a sweep that need more are not recommended; 0: any"),
    ROW("tp", I32, tp, "1", 1, 4096, NULL, "tensor-parallel ranks, for the memory"),
    ROW("recompute", ENUM, recompute, "light", 0, 0, TRAIN_RECOMPUTE_CHOICES, "as of ravel train"),
    ROW("shard", ENUM, shard, "none", 0, 0, TRAIN_SHARD_CHOICES, "as of ravel train"),
    ROW("kernels", STRING, kernels, "cpu", 0, 0, NULL,
        "as of ravel train: cpu keeps everything in f32, cpu-bf16 weights in bf16, cuda activations too"),
    {0}};

struct plan_model {
    train_config config;
    train_model_path path;
    ravel_shape shape;
    int32_t pp, vpp;
    int64_t limit;
    char text[160];
};

static ravel_status read_shape(plan_model *m, const plan_flags *flags, ravel_error *err) {
    struct stat info;
    train_model_choice *choice = &m->config.model;
    ravel_status status = train_model_resolve(flags->shape, &m->path, err);
    int is_folder = stat(m->path.model, &info) == 0 && S_ISDIR(info.st_mode);
    *(is_folder ? &choice->model : &choice->shape) = m->path.model;
    if (!status) status = train_shape(choice, &m->shape, err);
    if (status) ravel_error_prefix(err, "shape");
    return status;
}

static ravel_status set_cost(const plan_model *m, ravel_plan_options *options, ravel_error *err) {
    ravel_status status = ravel_cost_from_shape(&m->shape, &options->cost, err);
    if (!status) options->cost.overhead = OVERHEAD_TOKENS * options->cost.linear;
    return status;
}

ravel_status plan_model_open(const plan_flags *flags, ravel_plan_options *options, plan_model **model,
                             ravel_error *err) {
    char recompute[16], shard[16];
    const train_kernels *kernels;
    *model = NULL;
    if (!flags->shape && flags->memory)
        return CLI_REFUSE(err, "--memory is that of a rank that trains --shape; give it too");
    if (!flags->shape) return RAVEL_OK;
    plan_model *m = calloc(1, sizeof *m);
    if (!m) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    train_config_default(&m->config);
    m->config.model.kernels = flags->kernels;
    m->config.model.recompute = flags->recompute;
    m->config.model.threads = 1;
    m->config.learn.shard = flags->shard;
    m->config.mesh.tp = flags->tp;
    m->config.mesh.pp = flags->pp;
    m->config.mesh.vpp = flags->vpp;
    m->limit = flags->memory;
    (void)ravel__choice_word(TRAIN_RECOMPUTE_CHOICES, flags->recompute, recompute, sizeof recompute);
    (void)ravel__choice_word(TRAIN_SHARD_CHOICES, flags->shard, shard, sizeof shard);
    (void)snprintf(m->text, sizeof m->text, "%.60s, kernels %.20s, recompute %s, shard %s", flags->shape,
                   flags->kernels, recompute, shard);
    ravel_status status = train_kernels_find(flags->kernels, &kernels, err);
    if (!status) status = read_shape(m, flags, err);
    if (!status && !flags->cost && !flags->costs) status = set_cost(m, options, err);
    if (status)
        plan_model_free(m);
    else
        *model = m;
    return status;
}

void plan_model_free(plan_model *model) {
    free(model);
}

int64_t plan_model_limit(const plan_model *model) {
    return model->limit;
}

const char *plan_model_text(const plan_model *model) {
    return model->text;
}

static int64_t memory_of(const plan_model *model, train_config c, const ravel_plan_options *options) {
    train_footprint footprint;
    ravel_mesh_layout layout;
    c.plan = *options;
    c.mesh.cp = options->cp;
    c.mesh.dp = options->cp_pool ? options->cp_pool : options->dp;
    int64_t ranks = (int64_t)c.mesh.tp * c.mesh.cp * c.mesh.pp * c.mesh.dp;
    if (options->budget <= 0 || ranks > 1 << 20) return -1;
    if (train_layout_plan(&c.mesh, (int32_t)ranks, &model->shape, &layout, NULL)) return -1;
    if (train_footprint_of(&c, TRAIN_SFT, &model->shape, &layout, 0, &footprint, NULL)) return -1;
    return footprint.trainer;
}

int64_t plan_model_memory(const plan_model *model, const ravel_plan_options *options) {
    return memory_of(model, model->config, options);
}

/* Combination `i` of what saves memory, the cheapest first: it changes `c` and names the changes. 0: it changes
 * nothing, or there are no more (-1). */
static int apply_remedies(int i, const train_config *given, train_config *c, char *text, size_t size) {
    int shards = i & 1, full = i >> 1 & 1, narrow = i >> 2 & 1, tp = i >> 3;
    int used = 0;
    *c = *given;
    if (tp > 3) return -1;
    if (shards) c->learn.shard = TRAIN_SHARD_PARAMS;
    if (full) c->model.recompute = TRAIN_RECOMPUTE_FULL;
    if (narrow) c->model.kernels = "cpu-bf16";
    c->mesh.tp <<= tp;
    int same = (shards && given->learn.shard == TRAIN_SHARD_PARAMS) ||
               (full && given->model.recompute == TRAIN_RECOMPUTE_FULL) ||
               (narrow && strcmp(given->model.kernels, "cpu") != 0);
    if (same || i == 0) return 0;
    if (tp) used += snprintf(text + used, size - (size_t)used, " --tp %d", c->mesh.tp);
    if (shards) used += snprintf(text + used, size - (size_t)used, " --shard params");
    if (full) used += snprintf(text + used, size - (size_t)used, " --recompute full");
    if (narrow) (void)snprintf(text + used, size - (size_t)used, " --kernels cpu-bf16");
    return 1;
}

int64_t plan_model_remedy(const plan_model *model, const ravel_plan_options *options, char *text, size_t size) {
    train_config c;
    for (int i = 0, is; (is = apply_remedies(i, &model->config, &c, text, size)) >= 0; i++) {
        int64_t bytes = is ? memory_of(model, c, options) : -1;
        if (bytes >= 0 && bytes <= model->limit) return bytes;
    }
    return -1;
}

void plan_warn_memory(const plan_data *data, const ravel_plan_options *options) {
    const plan_model *m = data->model;
    char a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT], c[TRAIN_BYTES_TEXT], words[96];
    int64_t needed = plan_model_memory(m, options);
    if (m->limit <= 0 || needed <= m->limit) return;
    int64_t less = plan_model_remedy(m, options, words, sizeof words);
    (void)fprintf(stderr, "ravel plan: WARNING: a rank needs %s, over --memory %s", train_bytes_text(needed, a),
                  train_bytes_text(m->limit, b));
    if (less >= 0)
        (void)fprintf(stderr, "; it needs %s with%s\n", train_bytes_text(less, c), words);
    else
        (void)fprintf(stderr, "; try a smaller --budget, or more ranks: --sweep compares budgets\n");
}
