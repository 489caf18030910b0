#include "train/run/sft/eval.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/run/config/devices.h"
#include "train/run/config/footprint.h"
#include "train/run/sft/dpo.h"
#include "train/run/sft/sft.h"

#include <ravel/exchange.h>

#include <string.h>

typedef struct eval {
    train_kind kind;
    train_config *config; /* this rank's own */
    const train_eval_options *options;
    const train_hooks *hooks;
    ravel_comm *comm;
    ravel_mesh *mesh;
    ravel_shape shape;
    int64_t sequence; /* tokens of the longest that the model sees at once */
    train_parts *parts;
    train_pairs *pairs;
    train_model_choice reference;
    float *right; /* [room] of a micro-batch */
    size_t room;
} eval;

/* One file's name as --data takes it: a space is "\ ". */
static void quote_path(const char *path, char *out, size_t room) {
    size_t used = 0;
    for (; *path && used + 3 < room; path++) {
        if (*path == ' ' || *path == '\\') out[used++] = '\\';
        out[used++] = *path;
    }
    out[used] = '\0';
}

/* Every row is read once, so that the budget holds the longest; *rows is their number. */
static ravel_status check_file(eval *e, const ravel_mesh_layout *layout, const char *data, int64_t *longest,
                               int64_t *rows, ravel_error *err) {
    ravel_plan_options plan = e->config->plan;
    ravel_source_options source = train_tune_rows(e->config, e->kind, &e->shape);
    train_data_rules rules = {.source = &source, .pairs = e->kind == TRAIN_DPO, .plan = &plan};
    train_data_found found = {0};
    source.data = data;
    plan.cp = train_layout_cp(layout);
    if (plan.budget == 0) plan.budget = INT32_MAX;
    rules.widest = train_parts_widest(&plan, layout);
    ravel_status status = train_data_check(&rules, e->comm, &e->hooks->progress, e->hooks->logger, &found, err);
    *longest = train__max(*longest, found.longest);
    e->sequence = train__max(e->sequence, found.sequence);
    *rows = found.rows - found.bad;
    return status;
}

/* The model, and the reference of pairs, on each of this machine's ranks. */
static ravel_status check_memory(const eval *e, const train_parts_options *options, ravel_error *err) {
    train_memory memory = {0};
    int32_t local = 1, models = 1 + (e->kind == TRAIN_DPO && e->options->reference);
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(e->mesh);
    const train_machine machine = train_machine_look("");
    ravel_status status = ravel_comm_neighbours(e->comm, &local, err);
    const train_kernels *kernels = NULL;
    if (!status) status = train_choice_kernels(options->model, &kernels, err);
    if (!status) status = train_parts_memory(options, &e->shape, layout, 0, &memory, err);
    if (!status && kernels && kernels->host_memory)
        status = train_machine_fits(&machine, local * models * memory.total, "the evaluation",
                                    "try a smaller --budget, fewer ranks or --kernels cpu-bf16", err);
    return ravel_agree(e->comm, status, err);
}

static ravel_status open_model(eval *e, ravel_error *err) {
    train_learner_options learner = train_config_learner(e->config, e->kind);
    learner.flat_tokens = 0;
    train_parts_options options = train_learner_parts_options(&learner, 1), reference = options;
    ravel_status status = check_memory(e, &options, err);
    if (!status) status = train_parts_create(&options, &e->shape, e->mesh, &e->parts, err);
    e->room = (size_t)options.budget;
    e->right = status ? NULL : ravel__alloc(NULL, e->room * sizeof *e->right);
    if (!status && !e->right) status = ravel__no_memory(err, e->room * sizeof *e->right, "an evaluation");
    status = ravel_agree(e->comm, status, err);
    if (status || e->kind != TRAIN_DPO) return status;
    if (!e->options->reference && !e->config->model.lora.rank)
        return train_pairs_create_alone(&reference, e->mesh, e->config->dpo.beta, &e->pairs, err);
    if (e->options->reference) {
        e->reference = e->config->model;
        e->reference.model = e->options->reference;
        e->reference.adapter = NULL;
        e->reference.lora = (train_lora){0};
        reference.model = &e->reference;
    }
    return train_pairs_create(&reference, &e->shape, e->mesh, e->config->dpo.beta, &e->pairs, err);
}

static ravel_status make_feed(const eval *e, const ravel_source *source, ravel_feed **feed, ravel_error *err) {
    ravel_feed_options options;
    ravel_weights_options weights;
    ravel_plan_options plan = train_config_plan(e->config);
    ravel_feed_options_default(&options);
    ravel_weights_options_default(&weights);
    weights.mode = e->kind == TRAIN_DPO ? RAVEL_SEQ_MEAN_TOKEN_SUM : RAVEL_TOKEN_MEAN;
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.plan = &plan;
    options.weights = &weights;
    options.samples = e->config->sft.batch;
    options.epochs = 1;
    options.pad_token = 0;
    options.logger = e->hooks->logger;
    options.keep_rows = e->kind == TRAIN_DPO;
    return ravel_feed_create(e->mesh, source, &options, feed, err);
}

/* ---- scoring ------------------------------------------------------------------------------------------------- */

enum { LOSS, TOKENS, RIGHT, CHOSEN, REJECTED, SUMS };

typedef struct taking {
    const float *right;
    double *sums;
} taking;

static ravel_status take(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                         ravel_error *err) {
    taking *t = user;
    (void)err;
    for (int64_t i = 0; i < micro->thd->local_tokens; i++) {
        if (batch->weights[i] == 0) continue;
        t->sums[LOSS] -= (double)logprob[i];
        t->sums[TOKENS] += 1;
        t->sums[RIGHT] += (double)t->right[i];
    }
    return RAVEL_OK;
}

static ravel_status score_update(eval *e, const ravel_feed *feed, int64_t micros, double *sums, ravel_error *err) {
    double mine[SUMS] = {0};
    taking t = {e->right, mine};
    train_work work = {.take = take, .user = &t, .right = e->right};
    if (e->kind == TRAIN_DPO) {
        train_dpo_sums s = {0};
        ravel_status status = train_pairs_score(e->pairs, e->parts, feed, micros, &s, err);
        const double all[SUMS] = {s.plain, s.pairs, s.right, s.chosen, s.rejected};
        for (int i = 0; i < SUMS; i++) sums[i] += all[i];
        return status;
    }
    ravel_status status = train_parts_score(e->parts, feed, micros, &work, err);
    for (int i = 0; i < SUMS && ravel_mesh_coords(e->mesh).tp == 0; i++) sums[i] += mine[i];
    return status;
}

static ravel_status score_file(eval *e, const char *data, train_eval_figures *figures, ravel_error *err) {
    ravel_source_options source = train_tune_rows(e->config, e->kind, &e->shape);
    const train_rows_options rows = {.source = &source, .pairs = e->kind == TRAIN_DPO};
    ravel_source *opened = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *update;
    double sums[SUMS] = {0}, done = 0;
    source.data = data;
    ravel_status status = ravel_agree(e->comm, train_rows_open(&rows, TRAIN_ROWS_ALL, &opened, err), err);
    double total = status ? 0 : (double)ravel_source_count(opened);
    if (!status) status = make_feed(e, opened, &feed, err);
    while (!status && (status = ravel_feed_next(feed, &update, err)) == RAVEL_OK) {
        status = score_update(e, feed, update->mine.micro_steps, sums, err);
        done += (double)e->config->sft.batch;
        if (!status && ravel_comm_rank(e->comm) == 0)
            status = train_progress_tell(&e->hooks->progress, data, done < total ? done : total, total, err);
    }
    ravel_feed_free(feed);
    ravel_source_free(opened);
    if (status == RAVEL_E_END) status = RAVEL_OK;
    if (!status) status = ravel_comm_allreduce(e->comm, sums, sums, SUMS, RAVEL_F64, RAVEL_SUM, err);
    if (status) return status;
    double n = sums[TOKENS] > 0 ? sums[TOKENS] : 1;
    *figures = (train_eval_figures){figures->rows,   sums[TOKENS],     sums[LOSS] / n,
                                    sums[RIGHT] / n, sums[CHOSEN] / n, sums[REJECTED] / n};
    return RAVEL_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static ravel_status check_reference(const eval *e, ravel_error *err) {
    ravel_shape shape;
    train_model_choice choice = {.model = e->options->reference};
    if (!e->options->reference) return RAVEL_OK;
    ravel_status status = train_shape(&choice, &shape, err);
    if (!status &&
        (shape.vocab != e->shape.vocab || shape.layers != e->shape.layers || shape.hidden != e->shape.hidden))
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "--reference %s has another shape than the model",
                                 e->options->reference);
    return status;
}

static ravel_status run(eval *e, train_eval_figures *figures, ravel_error *err) {
    char data[TRAIN_PATH * 2];
    train_devices devices;
    ravel_mesh_layout layout = {0};
    int64_t longest = 0;
    const train_files *files = &e->options->files;
    ravel_status status = ravel_agree(e->comm, train_choice_settle(&e->config->model, 1, err), err);
    if (!status) status = train_devices_assign(e->config, ravel_comm_size(e->comm), e->comm, &devices, err);
    if (!status) status = train_shape(&e->config->model, &e->shape, err);
    if (!status) status = check_reference(e, err);
    if (!status) status = train_layout_plan(&e->config->mesh, ravel_comm_size(e->comm), &e->shape, &layout, err);
    status = ravel_agree(e->comm, status, err);
    for (int32_t i = 0; i < files->count && !status; i++) {
        quote_path(files->paths[i], data, sizeof data);
        status = check_file(e, &layout, data, &longest, &figures[i].rows, err);
    }
    if (!status && ravel_comm_rank(e->comm) == 0) train_data_warn_long(&e->shape, e->sequence, e->hooks->logger);
    if (!status && longest > 0) status = train_config_set_budget(e->config, longest, err);
    if (!status) status = ravel_mesh_create(e->comm, &e->config->mesh, &e->mesh, err);
    if (!status) status = open_model(e, err);
    for (int32_t i = 0; i < files->count && !status; i++) {
        quote_path(files->paths[i], data, sizeof data);
        status = score_file(e, data, &figures[i], err);
    }
    return status;
}

ravel_status train_evaluate(train_kind kind, const train_config *config, const train_eval_options *options,
                            ravel_comm *comm, const train_hooks *hooks, train_eval_figures *figures, ravel_error *err) {
    train_config own = *config;
    static const train_hooks none = {0};
    eval e = {.kind = kind, .config = &own, .options = options, .hooks = hooks ? hooks : &none, .comm = comm};
    RAVEL_ASSERT(kind == TRAIN_SFT || kind == TRAIN_DPO);
    ravel_status status = run(&e, figures, err);
    if (e.parts) train_parts_disconnect(e.parts, status ? err : NULL);
    train_pairs_free(e.pairs);
    train_parts_free(e.parts);
    ravel__release(NULL, e.right, e.room * sizeof *e.right);
    ravel_mesh_free(e.mesh);
    return status;
}
