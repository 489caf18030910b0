#include "train/run/run.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/learn/checkpoint.h"
#include "base/log.h"

#include "base/options.h"
#include "base/json.h"
#include "base/system/file.h"

#include <ravel/exchange.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double retry_seconds = 30; /* from a checkpoint that failed to the next, if they are further apart */

static void warn(const train_run *run, const char *what, const ravel_error *why) {
    if (run->rank == 0) ravel__log(run->hooks.logger, RAVEL_LOG_WARN, "%s: %s", what, why->message);
}

ravel_status train_hooks_stopped(const train_hooks *hooks, ravel_comm *comm, int32_t *stopped, ravel_error *err) {
    *stopped = hooks && hooks->stop && *hooks->stop;
    return comm ? ravel_comm_allreduce(comm, stopped, stopped, 1, RAVEL_I32, RAVEL_MAX, err) : RAVEL_OK;
}

ravel_status train_run_stopped_early(ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_STATE,
                           "stopped by a signal before the first update; nothing is left of the run");
}

/* ---- state.json ----------------------------------------------------------------------------------------- */

/* The state as an option table: reading and writing JSON come with it. */
/* clang-format off */
#define ROW(name, option, field) {name, RAVEL_OPTION_##option, offsetof(train_state, field), "0", 0, 0, NULL, ""}
#define X(type, option, name)    ROW(#name, option, name),
#define P(x, ID, word, sentence) ROW("time_" word, F64, totals.phases[RAVEL_PHASE_##ID]),
static const ravel_option state_table[] = {
    TRAIN_STATE_LIST(X)
    ROW("updates", I64, totals.updates), ROW("samples", I64, totals.samples), ROW("bins", I64, totals.bins),
    ROW("tokens", I64, totals.tokens), ROW("loss_tokens", I64, totals.loss_tokens),
    ROW("capacity", I64, totals.capacity), ROW("computed", I64, totals.computed), ROW("seconds", F64, totals.seconds),
    RAVEL_PHASE_LIST(P, )
    {0}};
#undef X
#undef P
/* clang-format on */

static void state_default(train_state *state) {
    ravel_options_default(state_table, state);
    state->reward_first = state->eval_first = state->best_value = NAN;
}

/* JSON has no NAN: what is not finite is left out. */
static void state_print(FILE *f, const train_state *state) {
    const char *before = "{";
    for (const ravel_option *row = state_table; row->name; row++) {
        char value[64];
        double real = 0;
        if (row->type == RAVEL_OPTION_F64) memcpy(&real, (const char *)state + row->offset, sizeof real);
        if (!isfinite(real)) continue;
        ravel_option_format(row, state, value, sizeof value);
        (void)fprintf(f, "%s\"%s\": %s", before, row->name, value);
        before = ",\n ";
    }
    (void)fputs("}\n", f);
}

static ravel_status state_read(const char *folder, train_state *state, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel__json *doc = NULL;
    state_default(state);
    ravel_status status = train_path_join(path, folder, "state.json", err);
    if (!status) status = train_json_read(path, &doc, err);
    if (status) return status;
    status = ravel__options_from_json(state_table, state, doc, ravel__json_root(doc), err);
    if (status) ravel_error_prefix(err, "%s", path);
    ravel__json_free(doc);
    return status;
}

/* ---- weights that stay in their files -------------------------------------------------------------------- */

static int has_adapter(const train_run *run) {
    return run->config->model.lora_rank || run->config->model.adapter;
}

static ravel_status mapped_changed(train_run *run, ravel_error *err) {
    if (!run->mapped[0]) (void)ravel__maps_changed(run->mapped, sizeof run->mapped); /* another rank was first */
    return ravel_error_set(err, RAVEL_E_MISMATCH,
                           "%s changed while the run was reading its weights; restore the file and resume",
                           run->mapped[0] ? run->mapped : run->config->model.model);
}

/* Before an update changes the weights: what was computed since the last one is of the files that were opened, on every rank. */
static ravel_status check_mapped(train_run *run, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (!has_adapter(run)) return status;
    if (ravel__maps_changed(run->mapped, sizeof run->mapped)) status = mapped_changed(run, err);
    return ravel_agree(run->comm, status, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

/* The folder that was named, or the first runs/KIND-N that is free (the last that is not, to resume). */
static void choose_folder(const train_run_options *options, train_kind kind, char *folder) {
    int last = 0;
    if (options->run) {
        (void)snprintf(folder, TRAIN_PATH, "%s", options->run);
        return;
    }
    for (int n = 1; n < 1000000; n++) {
        char config[TRAIN_PATH];
        (void)snprintf(config, sizeof config, "runs/%s-%d/config.json", train_kind_name(kind), n);
        if (!train_path_exists(config)) break;
        last = n;
    }
    if (!options->resume || last == 0) last++;
    (void)snprintf(folder, TRAIN_PATH, "runs/%s-%d", train_kind_name(kind), last);
}

/* The run whose name is nearest to a mistyped one. */
typedef struct neighbours {
    char names[64][128];
    const char *list[64];
    size_t count;
} neighbours;

static ravel_status note_run(const char *path, const char *name, void *user, ravel_error *err) {
    neighbours *n = user;
    char config[TRAIN_PATH];
    (void)err;
    if (n->count == 64 || strlen(name) >= sizeof n->names[0]) return RAVEL_OK;
    RAVEL_ASSERT(n->count < 64);
    if (train_path_join(config, path, "config.json", NULL) || !train_path_exists(config)) return RAVEL_OK;
    n->list[n->count] = memcpy(n->names[n->count], name, strlen(name) + 1);
    n->count++;
    return RAVEL_OK;
}

static ravel_status no_such_run(const char *folder, ravel_error *err) {
    neighbours n = {.count = 0};
    char parent[TRAIN_PATH];
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    (void)snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - folder) + 1 : 1, slash ? folder : ".");
    (void)train_folder_walk(parent, note_run, &n, NULL);
    const char *near = ravel__suggest(name, n.list, n.count);
    return ravel_error_set(err, RAVEL_E_STATE, "there is no run to resume in %s%s%.*s%s%s", folder,
                           near ? "; did you mean " : "", near && slash ? (int)(slash - folder) + 1 : 0, folder,
                           near ? near : "", near ? "?" : "");
}

ravel_status train_run_config(const train_config *config, train_kind kind, char *path, ravel_error *err) {
    char folder[TRAIN_PATH];
    choose_folder(&config->run, kind, folder);
    ravel_status status = train_path_join(path, folder, "config.json", err);
    if (status || train_path_exists(path)) return status;
    status = train_rundir_free_to_use(folder, err);
    return status ? status : no_such_run(folder, err);
}

ravel_status train_run_check(const train_run *run, ravel_error *err) {
    char folder[TRAIN_PATH];
    const train_run_options *o = &run->config->run;
    choose_folder(o, run->kind, folder);
    return train_rundir_check(folder, o->resume, err);
}

/* Rank 0 decides and broadcasts the result. */
static ravel_status open_folder(train_run *run, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int64_t step;
    if (run->rank == 0) {
        choose_folder(&run->config->run, run->kind, run->folder);
        status = train_rundir_open(&run->dir, run->folder, run->resumed, err);
        if (!status && run->resumed) status = train_checkpoint_latest(run->folder, &step, run->checkpoint, err);
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

/* A resumed run goes on with the data that it was started with. */
static ravel_status check_data(const train_run *run, ravel_error *err) {
    const train_state *s = &run->state;
    if (run->rank != 0 || !run->data.path) return RAVEL_OK;
    if (s->data_bytes == run->data.bytes && s->data_digest == run->data.digest) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_MISMATCH,
        "%s is not the file that %s was trained on (%lld bytes then, %lld now); restore the original file, or "
        "start a new run with --model %s",
        run->data.path, run->folder, (long long)s->data_bytes, (long long)run->data.bytes, run->checkpoint);
}

static ravel_status restore(train_run *run, ravel_error *err) {
    ravel_status status = state_read(run->checkpoint, &run->state, err);
    if (!status) status = check_data(run, err);
    if (!status && run->state.step > run->steps)
        status =
            ravel_error_set(err, RAVEL_E_ARGUMENT,
                            "%s has done %lld updates, and %lld in all are asked for (--steps, --epochs); ask for "
                            "more than %lld to train further",
                            run->folder, (long long)run->state.step, (long long)run->steps, (long long)run->state.step);
    status = ravel_agree(run->comm, status, err);
    run->saved = run->checked = run->state.step;
    ravel_metrics_set_totals(run->metrics, &run->state.totals);
    return status;
}

ravel_status train_run_open(train_run *run, const ravel_shape *shape, int32_t world, ravel_error *err) {
    const train_config *c = run->config;
    run->rank = ravel_comm_rank(run->comm);
    run->resumed = c->run.resume;
    run->dir.lock = -1;
    run->saved = -1;
    run->saved_at = train__now();
    state_default(&run->state);
    RAVEL_ASSERT(run->steps > 0 && world >= ravel_comm_size(run->comm));
    ravel_status status = train_interval_parse(c->run.checkpoint_every, &run->every, err);
    if (!status) status = open_folder(run, err);
    if (!status)
        status = train_metrics_create(c, run->kind, shape, run->comm, world, run->steps, run->hooks.logger,
                                      &run->metrics, err);
    if (!status && has_adapter(run)) ravel__maps_guard(1);
    if (!status && run->resumed) status = restore(run, err);
    if (!status && !run->resumed) status = open_sinks(run, err);
    if (!status) {
        run->state.data_bytes = run->data.bytes;
        run->state.data_digest = run->data.digest;
    }
    if (status) train_run_free(run);
    return status;
}

ravel_status train_run_continue(train_run *run, ravel_error *err) {
    RAVEL_ASSERT(run->resumed && run->metrics);
    return open_sinks(run, err);
}

void train_run_free(train_run *run) {
    if (run->metrics && has_adapter(run)) ravel__maps_guard(-1);
    ravel_metrics_free(run->metrics);
    run->metrics = NULL;
    if (!run->folder[0] || run->rank != 0) return;
    train_rundir_close(&run->dir, run->resumed || run->state.step > 0);
}

/* ---- an update ------------------------------------------------------------------------------------------ */

ravel_status train_run_apply(train_run *run, train_learner *learner, ravel_error *err) {
    const train_learn_options *o = &run->config->learn;
    const train_parts *parts = train_learner_parts(learner);
    ravel_metrics *m = run->metrics;
    int64_t step = run->state.step + 1;
    RAVEL_ASSERT(run->metrics && run->state.step < run->steps);
    int32_t skipped;
    double norm, lr = train_learning_rate((train_schedule)o->schedule, o->lr, o->min_lr, o->warmup, step, run->steps);
    double begun = train__now(), reduced;
    ravel_status status = train_learner_reduce(learner, m, err);
    reduced = train__now();
    if (!status && run->addition.settle) status = run->addition.settle(run->addition.user, err);
    if (!status) status = check_mapped(run, err);
    if (status) return status;
    double settled = train__now();
    status = train_learner_step(learner, lr, m, &norm, &skipped, err);
    if (status) return status;
    run->finish_seconds = reduced - begun + train__now() - settled;
    (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LEARNING_RATE, lr, 1);
    if (!skipped) (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, norm, 1);
    (void)ravel_metrics_count(m, RAVEL_METRIC_TRAIN_SKIPPED, skipped);
    run->gpu_seconds = train_metrics_add_gpu(m, train_parts_kernels(parts), train_parts_device(parts));
    run->state.step = step;
    run->state.skipped += skipped;
    run->skipped_in_row = skipped ? run->skipped_in_row + 1 : 0;
    if (run->skipped_in_row <= run->config->run.max_skipped) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_DATA,
        "the gradient of update %lld is not finite, nor are those of the %lld updates before it: the "
        "weights or the data hold NaN, or the learning rate (%g) is too high (--max-skipped)",
        (long long)step, (long long)run->skipped_in_row - 1, lr);
}

/* ---- checkpoints ---------------------------------------------------------------------------------------- */

/* Into the folder of a checkpoint, which is flushed to the disk as a whole. */
static ravel_status write_state(train_run *run, const char *folder, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_status status = train_path_join(path, folder, "state.json", err);
    if (status) return status;
    FILE *f = train_file_create(path, err);
    if (!f) return RAVEL_E_IO;
    ravel_metrics_get_totals(run->metrics, &run->state.totals);
    state_print(f, &run->state);
    status = train_file_close(f, path, err);
    if (!status && run->addition.write) status = run->addition.write(run->addition.user, folder, err);
    return status;
}

/* The checkpoint that is kept at any age; -1: none. */
static int64_t best_step(const train_run *run) {
    return run->config->run.keep_best && run->state.best_step > 0 ? run->state.best_step : -1;
}

/* Collective, or, with `alone`, on rank 0 by itself because its peers are lost. */
static ravel_status save(train_run *run, train_learner *learner, int alone, ravel_error *err) {
    char folder[TRAIN_PATH] = "";
    int first = run->rank == 0; /* it writes; the others send their parts */
    int64_t step = run->state.step;
    (void)ravel_metrics_phase_begin(run->metrics, RAVEL_PHASE_CHECKPOINT, NULL);
    ravel_status status = RAVEL_OK;
    if (run->addition.gather) status = run->addition.gather(run->addition.user, err);
    if (!status && first) status = train_checkpoint_begin(run->folder, step, folder, err);
    if (!alone) status = ravel_agree(run->comm, status, err);
    if (!status) status = train_learner_save(learner, folder, alone, err);
    if (!status && first) status = write_state(run, folder, err);
    if (!status && first)
        status = train_checkpoint_commit(run->folder, step, run->config->run.keep, best_step(run), err);
    if (status && first) train_checkpoint_abort(run->folder, step);
    if (!alone) status = ravel_agree(run->comm, status, err);
    if (!status) {
        run->saved = run->state.step;
        run->best_due = 0;
        (void)train_checkpoint_folder(run->folder, run->saved, run->checkpoint, NULL);
    }
    run->saved_at = train__now();
    if (status && run->every.seconds > retry_seconds) run->saved_at -= run->every.seconds - retry_seconds;
    (void)ravel_metrics_phase_end(run->metrics, RAVEL_PHASE_CHECKPOINT, NULL);
    return status;
}

/* Requests of rank 0 or of a signal; the same on every rank after the exchange. */
typedef enum want { STOP, SAVE, CHANGED, MAPPED, WANTS } want;

static ravel_status exchange_wants(train_run *run, int32_t *wants, ravel_error *err) {
    const train_interval *every = &run->every;
    RAVEL_ASSERT(every->updates >= 0 && every->seconds >= 0);
    int64_t step = run->state.step, before = run->checked;
    RAVEL_ASSERT(step >= before);
    wants[STOP] = run->hooks.stop && *run->hooks.stop;
    wants[SAVE] = run->hooks.save && *run->hooks.save;
    if (wants[SAVE]) *run->hooks.save = 0;
    wants[SAVE] |= every->updates > 0 && step / every->updates > before / every->updates;
    wants[SAVE] |= run->best_due && run->config->run.keep_best;
    wants[SAVE] |= run->rank == 0 && every->seconds > 0 && train__now() - run->saved_at >= every->seconds;
    wants[CHANGED] = train_data_changed(&run->data);
    wants[MAPPED] = ravel__maps_changed(run->mapped, sizeof run->mapped);
    run->checked = step;
    return ravel_comm_allreduce(run->comm, wants, wants, WANTS, RAVEL_I32, RAVEL_MAX, err);
}

void train_run_note_eval(train_run *run, double value, int higher_is_better) {
    double best = run->state.best_value;
    const char *what = run->kind == TRAIN_GRPO  ? "greedy reward"
                       : run->kind == TRAIN_DPO ? "loss per pair"
                                                : "loss per token";
    if (run->rank == 0 && !isnan(value) && run->state.step == 0)
        ravel__log(run->hooks.logger, RAVEL_LOG_INFO, "evaluation before training: %s %.4f", what, value);
    if (run->rank == 0 && !isnan(value) && run->state.step > 0)
        ravel__log(run->hooks.logger, RAVEL_LOG_INFO, "evaluation after update %lld: %s %.4f",
                   (long long)run->state.step, what, value);
    if (run->state.step == 0 || isnan(value) || (!isnan(best) && (higher_is_better ? value <= best : value >= best)))
        return;
    run->state.best_value = value;
    run->state.best_step = run->state.step;
    run->best_due = 1;
}

ravel_status train_run_report(train_run *run, ravel_error *err) {
    ravel_status status = ravel_metrics_update(run->metrics, run->state.step, err);
    if (!status) run->reported = run->state.step;
    RAVEL_ASSERT(run->reported <= run->state.step);
    return status;
}

ravel_status train_run_end_step(train_run *run, train_learner *learner, ravel_error *err) {
    int32_t wants[WANTS];
    RAVEL_ASSERT(run->metrics && run->state.step > 0);
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = train_run_report(run, err);
    if (!status) status = exchange_wants(run, wants, err);
    if (status) return status;
    run->stopped |= wants[STOP];
    if (wants[MAPPED]) return mapped_changed(run, err);
    if (wants[CHANGED]) /* what was read so far was read before: sources check it */
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "%s changed while the run was reading it; restore the file and resume, or start a new "
                               "run with --model CHECKPOINT",
                               run->data.path);
    if (!wants[SAVE] || run->stopped || run->saved == run->state.step) return RAVEL_OK;
    status = save(run, learner, 0, &why);
    if (train__is_lost(status)) return ravel_error_set(err, status, "%s", why.message);
    if (status) warn(run, "no checkpoint was written, training goes on and tries again", &why);
    return RAVEL_OK;
}

/* The last checkpoint of a run: what may pass (a full disk, no free descriptor) is given some seconds. */
static ravel_status save_last(train_run *run, train_learner *learner, int alone, ravel_error *err) {
    static const double pauses[] = {0.2, 1, 3};
    ravel_status status = save(run, learner, alone, err);
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses && status == RAVEL_E_IO; i++) {
        const struct timespec pause = {(time_t)pauses[i], (long)(fmod(pauses[i], 1) * 1e9)};
        (void)nanosleep(&pause, NULL);
        ravel_error_clear(err);
        status = save(run, learner, alone, err);
    }
    return status;
}

/* After an error: with all ranks if they are there, else with rank 0 alone, which has everything without --shard, --tp
 * and --pp. */
static void rescue(train_run *run, train_learner *learner, ravel_status status) {
    ravel_error why = RAVEL_ERROR_INIT;
    int alone = train__is_lost(status);
    RAVEL_ASSERT(status);
    if (run->state.step == 0 || run->saved == run->state.step) return;
    if (!alone) status = save_last(run, learner, 0, &why);
    if (!alone && !train__is_lost(status)) {
        if (status) warn(run, "the updates since the last checkpoint could not be saved", &why);
        return;
    }
    ravel_error_clear(&why);
    if (run->rank != 0) return;
    if (save_last(run, learner, 1, &why)) {
        warn(run, "the updates since the last checkpoint could not be saved", &why);
    } else if (run->reported < run->state.step) {
        (void)ravel_error_set(&why, RAVEL_E_PEER_LOST, "they are reduced over all ranks");
        warn(run, "the checkpoint has an update whose metrics are missing", &why);
    }
}

ravel_status train_run_finish(train_run *run, train_learner *learner, ravel_status status, ravel_error *err) {
    if (!run->metrics || !learner) return status;
    if (status) {
        rescue(run, learner, status);
        return status;
    }
    if ((!run->config->run.checkpoint_end && !run->stopped) || run->saved == run->state.step) return RAVEL_OK;
    return save_last(run, learner, 0, err);
}

void train_run_summarise(const train_run *run, train_summary *summary) {
    ravel_metrics_totals t;
    *summary = (train_summary){.steps = run->state.step,
                               .planned = run->steps,
                               .stopped = run->stopped,
                               .skipped = run->state.skipped,
                               .loss_first = NAN,
                               .loss_last = NAN,
                               .eval_first = NAN,
                               .eval_loss = NAN,
                               .reward_first = NAN,
                               .reward_last = NAN,
                               .dropped = NAN,
                               .sampled_first = NAN,
                               .sampled_last = NAN,
                               .tokens_per_sec = NAN,
                               .packing_efficiency = NAN};
    if (!run->metrics) return;
    if (run->state.step > 0) (void)snprintf(summary->folder, sizeof summary->folder, "%s", run->folder);
    (void)snprintf(summary->checkpoint, sizeof summary->checkpoint, "%s", run->checkpoint);
    if (best_step(run) > 0) (void)train_checkpoint_folder(run->folder, best_step(run), summary->best, NULL);
    summary->best_value = run->state.best_value;
    ravel_metrics_get_totals(run->metrics, &t);
    if (t.seconds > 0) summary->tokens_per_sec = (double)t.tokens / t.seconds;
    if (t.capacity > 0) summary->packing_efficiency = (double)t.computed / (double)t.capacity;
}
