#include "train/run/run.h"

#include "train/learn/checkpoint.h"

#include <ravel/exchange.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- state.json ----------------------------------------------------------------------------------------- */

/* The state as an option table: reading and writing JSON come with it. */
static const ravel_option state_table[] = {
#define X(type, option, name) {#name, RAVEL_OPTION_##option, offsetof(train_state, name), "0", 0, 0, NULL, ""},
    TRAIN_STATE_LIST(X)
#undef X
        {0}};

static size_t state_text(const train_state *state, char *text, size_t bytes) {
    size_t used = 0;
    for (const ravel_option *row = state_table; row->name; row++) {
        char value[64];
        ravel_option_format(row, state, value, sizeof value);
        used += (size_t)snprintf(text + used, bytes - used, "%s\"%s\": %s", used ? ",\n " : "{", row->name, value);
    }
    used += (size_t)snprintf(text + used, bytes - used, "}\n");
    return used;
}

static ravel_status read_text(const char *path, char *text, size_t bytes, size_t *used, ravel_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return ravel_error_set(err, RAVEL_E_IO, "%s cannot be read", path);
    *used = fread(text, 1, bytes, f);
    int whole = feof(f) && !ferror(f);
    (void)fclose(f);
    return whole ? RAVEL_OK : ravel_error_set(err, RAVEL_E_DATA, "%s is not what a checkpoint holds", path);
}

static ravel_status state_read(const char *folder, train_state *state, ravel_error *err) {
    char path[TRAIN_PATH + 16], text[4096];
    size_t bytes = 0;
    ravel_json *doc = NULL;
    (void)snprintf(path, sizeof path, "%s/state.json", folder);
    ravel_status status = read_text(path, text, sizeof text, &bytes, err);
    if (!status) status = ravel_json_parse(text, bytes, NULL, &doc, err);
    ravel_options_default(state_table, state);
    if (!status) status = ravel_options_from_json(state_table, state, doc, ravel_json_root(doc), err);
    if (status) ravel_error_prefix(err, "%s", path);
    ravel_json_free(doc);
    return status;
}

/* ---- opening -------------------------------------------------------------------------------------------- */

/* The folder that was named, or the first runs/KIND-N that is free (the last that is not, to resume). */
static void choose_folder(const train_run_options *options, train_kind kind, char *folder) {
    const char *name = kind == TRAIN_SFT ? "sft" : "grpo";
    int last = 0;
    if (options->run) {
        (void)snprintf(folder, TRAIN_PATH, "%s", options->run);
        return;
    }
    for (int n = 1; n < 1000000; n++) {
        char config[TRAIN_PATH];
        (void)snprintf(config, sizeof config, "runs/%s-%d/config.json", name, n);
        if (access(config, F_OK) != 0) break;
        last = n;
    }
    if (!options->resume || last == 0) last++;
    (void)snprintf(folder, TRAIN_PATH, "runs/%s-%d", name, last);
}

int train_run_config(const train_config *config, train_kind kind, char *path) {
    char folder[TRAIN_PATH];
    choose_folder(&config->run, kind, folder);
    (void)snprintf(path, TRAIN_PATH, "%.4000s/config.json", folder);
    return access(path, F_OK) == 0;
}

/* Rank 0 looks and decides; the others are told. */
static ravel_status open_folder(train_run *run, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (run->rank == 0) {
        choose_folder(&run->config->run, run->kind, run->folder);
        status = train_rundir_open(run->folder, run->config->run.resume, err);
        if (!status && run->config->run.resume) {
            int64_t step; /* a run that died before its first checkpoint begins again */
            if (train_checkpoint_latest(run->folder, &step, run->checkpoint, NULL)) run->checkpoint[0] = '\0';
        }
    }
    status = ravel_agree(run->comm, status, err);
    if (!status) status = ravel_comm_broadcast(run->comm, run->folder, TRAIN_PATH, RAVEL_U8, 0, err);
    if (!status) status = ravel_comm_broadcast(run->comm, run->checkpoint, TRAIN_PATH, RAVEL_U8, 0, err);
    return status;
}

static ravel_status open_sinks(train_run *run, ravel_error *err) {
    const train_run_options *o = &run->config->run;
    ravel_status status = ravel_metrics_run(run->metrics, run->folder, run->hooks.config_text, o->sinks, err);
    if (!status && !o->quiet) status = ravel_metrics_sink(run->metrics, "progress", err);
    if (!status && o->http) {
        char spec[128];
        (void)snprintf(spec, sizeof spec, "http:%s", o->http);
        status = ravel_metrics_sink(run->metrics, spec, err);
    }
    return ravel_agree(run->comm, status, err);
}

static void restore_totals(train_run *run) {
    const train_state *s = &run->state;
    ravel_metrics_totals totals = {.updates = s->updates,
                                   .samples = s->samples,
                                   .bins = s->bins,
                                   .tokens = s->tokens,
                                   .loss_tokens = s->loss_tokens,
                                   .seconds = s->seconds};
    ravel_metrics_totals_set(run->metrics, &totals);
}

ravel_status train_run_open(train_run *run, const train_config *config, train_kind kind, const ravel_shape *shape,
                            ravel_comm *comm, int32_t world, int64_t steps, const train_hooks *hooks,
                            ravel_error *err) {
    memset(run, 0, sizeof *run);
    run->steps = steps;
    run->config = config;
    run->kind = kind;
    run->comm = comm;
    run->rank = ravel_comm_rank(comm);
    run->shape = *shape;
    run->saved = -1;
    if (hooks) run->hooks = *hooks;
    ravel_status status = open_folder(run, err);
    if (!status)
        status = train_metrics_create(config, kind, shape, comm, world, steps, run->hooks.logger, &run->metrics, err);
    if (!status) status = open_sinks(run, err);
    if (!status && run->checkpoint[0]) {
        status = ravel_agree(comm, state_read(run->checkpoint, &run->state, err), err);
        run->saved = run->checked = run->state.step;
        restore_totals(run);
    }
    if (status) train_run_free(run);
    return status;
}

void train_run_free(train_run *run) {
    ravel_metrics_free(run->metrics);
    run->metrics = NULL;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

ravel_status train_run_apply(train_run *run, train_learner *learner, ravel_error *err) {
    const train_learn_options *o = &run->config->learn;
    ravel_metrics *m = run->metrics;
    int64_t step = run->state.step + 1;
    int32_t skipped;
    double norm, lr = train_learning_rate((train_schedule)o->schedule, o->lr, o->min_lr, o->warmup, step, run->steps);
    ravel_status status = train_learner_finish(learner, lr, m, &norm, &skipped, err);
    if (status) return status;
    (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LEARNING_RATE, lr, 1);
    if (!skipped) (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, norm, 1);
    (void)ravel_metrics_count(m, RAVEL_METRIC_TRAIN_SKIPPED, skipped);
    run->state.step = step;
    return RAVEL_OK;
}

/* ---- checkpoints ---------------------------------------------------------------------------------------- */

static void keep_totals(train_run *run) {
    ravel_metrics_totals totals;
    ravel_metrics_totals_get(run->metrics, &totals);
    run->state.updates = totals.updates;
    run->state.samples = totals.samples;
    run->state.bins = totals.bins;
    run->state.tokens = totals.tokens;
    run->state.loss_tokens = totals.loss_tokens;
    run->state.seconds = totals.seconds;
}

static ravel_status write_state(train_run *run, const char *folder, ravel_error *err) {
    char text[4096];
    keep_totals(run);
    size_t bytes = state_text(&run->state, text, sizeof text);
    ravel_status status = train_rundir_write(folder, "state.json", text, bytes, err);
    if (!status && run->addition.write) status = run->addition.write(run->addition.user, folder, err);
    return status;
}

/* What is rank 0's alone: the folder to write into, and, when the learner's files are in it, the state and the name. */
static ravel_status begin_checkpoint(const train_run *run, train_checkpoint **checkpoint, char *folder,
                                     ravel_error *err) {
    if (run->rank != 0) return RAVEL_OK;
    ravel_status status = train_checkpoint_begin(run->folder, run->state.step, NULL, checkpoint, err);
    if (!status) (void)snprintf(folder, TRAIN_PATH, "%s", train_checkpoint_path(*checkpoint));
    return status;
}

static ravel_status end_checkpoint(train_run *run, train_checkpoint *checkpoint, const char *folder, ravel_error *err) {
    if (!checkpoint) return RAVEL_OK;
    ravel_status status = write_state(run, folder, err);
    if (!status) return train_checkpoint_commit(checkpoint, run->config->run.keep, err);
    train_checkpoint_abort(checkpoint);
    return status;
}

ravel_status train_run_checkpoint(train_run *run, train_learner *learner, ravel_error *err) {
    train_checkpoint *checkpoint = NULL;
    char folder[TRAIN_PATH] = "";
    (void)ravel_metrics_phase_begin(run->metrics, RAVEL_PHASE_CHECKPOINT, NULL);
    ravel_status status = RAVEL_OK;
    if (run->addition.gather) status = run->addition.gather(run->addition.user, err);
    if (!status) status = begin_checkpoint(run, &checkpoint, folder, err);
    status = ravel_agree(run->comm, status, err);
    if (!status) status = train_learner_save(learner, folder, err);
    if (status)
        train_checkpoint_abort(checkpoint);
    else
        status = ravel_agree(run->comm, end_checkpoint(run, checkpoint, folder, err), err);
    if (!status) run->saved = run->state.step;
    (void)ravel_metrics_phase_end(run->metrics, RAVEL_PHASE_CHECKPOINT, NULL);
    return status;
}

ravel_status train_run_check_stop(train_run *run, ravel_error *err) {
    int32_t stop = run->hooks.stop && *run->hooks.stop;
    ravel_status status = ravel_comm_allreduce(run->comm, &stop, &stop, 1, RAVEL_I32, RAVEL_MAX, err);
    if (!status) run->stopped = stop;
    return status;
}

/* A checkpoint is due when a multiple of `every` was reached since the last look: updates may come in batches. */
static int checkpoint_due(train_run *run) {
    int64_t every = run->config->run.checkpoint_every, before = run->checked;
    run->checked = run->state.step;
    return run->stopped || (every > 0 && run->state.step / every > before / every);
}

ravel_status train_run_end_step(train_run *run, train_learner *learner, ravel_error *err) {
    ravel_status status = ravel_metrics_update(run->metrics, run->state.step, err);
    if (!status) status = train_run_check_stop(run, err);
    if (!status && checkpoint_due(run)) status = train_run_checkpoint(run, learner, err);
    return status;
}

ravel_status train_run_finish(train_run *run, train_learner *learner, ravel_error *err) {
    if (!run->config->run.checkpoint_end || run->saved == run->state.step) return RAVEL_OK;
    return train_run_checkpoint(run, learner, err);
}

void train_run_summarise(const train_run *run, train_summary *summary) {
    ravel_metrics_totals t;
    ravel_metrics_totals_get(run->metrics, &t);
    *summary = (train_summary){.steps = run->state.step, .stopped = run->stopped};
    (void)snprintf(summary->folder, sizeof summary->folder, "%s", run->folder);
    summary->tokens_per_sec = t.seconds > 0 ? (double)t.tokens / t.seconds : NAN;
    summary->packing_efficiency =
        t.bins > 0 ? (double)t.tokens / ((double)t.bins * (double)run->config->plan.budget) : NAN;
}
