/* Supervised fine-tuning and preference pairs: one loop, two losses. The feed prepares the next update while this one
 * is learnt. */
#include "train/run/sft/sft.h"

#include "base/assert.h"
#include "train/learn/checkpoint.h"
#include "train/run/config/cost.h"
#include "train/run/sft/answers.h"
#include "train/run/sft/dpo.h"
#include "train/run/config/footprint.h"
#include "base/log.h"
#include "train/run/timeline.h"
#include "train/kernels/host.h"
#include "train/rl/prompts.h"

#include <ravel/exchange.h>
#include <ravel/tokenizer.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct sft {
    train_config *config; /* this rank's own: its GPU, its cost of samples */
    train_devices devices;
    train_cost cost;
    double scored;      /* share of tokens that are learnt */
    train_pairs *pairs; /* dpo: the reference, and the loss */
    train_dpo_sums sums;
    train_run run; /* its kind is TRAIN_SFT or TRAIN_DPO */
    ravel_mesh *mesh;
    ravel_source *source, *eval;
    ravel_feed *feed;
    train_learner *learner;
    train_answers *answers; /* to prompts of the evaluation; NULL: none */
    ravel_shape shape;
    int64_t flat_tokens; /* 0: prefixes are not shared */
    double loss_first, loss_last, eval_loss;
} sft;

/* ---- data ----------------------------------------------------------------------------------------------- */

enum { EVAL_QUESTIONS = 256 };

/* Rows of a run: a * b, or 2^60 where that is less. */
static int64_t rows_of(int64_t a, int64_t b) {
    const int64_t most = INT64_C(1) << 60;
    RAVEL_ASSERT(a >= 0 && b > 0);
    return a > most / b ? most : a * b;
}

static ravel_status open_task(sft *s, ravel_error *err) {
    const train_sft_options *o = &s->config->sft;
    uint64_t seed = s->config->run.seed;
    RAVEL_ASSERT(s->run.steps > 0 && o->batch > 0);
    ravel_status status =
        train_task_source(o->task, seed, o->level, 0, rows_of(o->batch, s->run.steps), &s->source, err);
    if (!status) status = train_task_source(o->task, seed, o->level, TRAIN_EVAL_FIRST, EVAL_QUESTIONS, &s->eval, err);
    return status;
}

/* How rows are read: with the model's tokenizer where it has one. */
ravel_source_options train_tune_rows(const train_config *config, train_kind kind, const ravel_shape *shape) {
    ravel_source_options options = config->source;
    const char *model = config->model.model;
    char path[TRAIN_PATH];
    options.vocab = shape->vocab;
    options.no_pairs = kind == TRAIN_SFT;
    if (!model) return options;
    if (!ravel_tokenizer_file(model, path, sizeof path) && shape->vocab <= TRAIN_BYTE_VOCAB) return options; /* bytes */
    options.tokenizer = model;
    if (options.bos == TRAIN_TOKEN_BOS) options.bos = -1; /* the defaults are for bytes */
    if (options.eos == TRAIN_TOKEN_EOS) options.eos = -1;
    return options;
}

/* --eval-data, or the rows that --eval-share keeps apart. */
static ravel_status open_rows(sft *s, const ravel_shape *shape, ravel_error *err) {
    ravel_source_options source = train_tune_rows(s->config, s->run.kind, shape);
    const train_sft_options *o = &s->config->sft;
    train_rows_options rows = {&source, s->run.kind == TRAIN_DPO, o->eval_share, o->eval_shuffle};
    ravel_status status = train_rows_open(&rows, TRAIN_ROWS_LEARN, &s->source, err);
    if (o->eval_data) source.data = o->eval_data;
    if (status || (!o->eval_data && o->eval_share <= 0)) return status;
    return train_rows_open(&rows, o->eval_data ? TRAIN_ROWS_ALL : TRAIN_ROWS_EVAL, &s->eval, err);
}

/* Opens the data and sets the number of updates: that of the epochs, at most --steps. */
static ravel_status open_data(sft *s, const ravel_shape *shape, ravel_error *err) {
    const train_config *c = s->config;
    s->run.steps = c->run.steps ? c->run.steps : TRAIN_STEPS;
    if (c->sft.task) return open_task(s, err);
    ravel_status status = open_rows(s, shape, err);
    if (status || c->sft.epochs == 0) return status;
    int64_t rows = rows_of(ravel_source_count(s->source), c->sft.epochs),
            needed = (rows + c->sft.batch - 1) / c->sft.batch;
    s->run.steps = c->run.steps ? train__min(c->run.steps, needed) : needed;
    RAVEL_ASSERT(s->run.steps >= 0 && rows >= 0);
    return RAVEL_OK;
}

static ravel_status make_feed(sft *s, const ravel_source *source, int evaluation, ravel_feed **feed, ravel_error *err) {
    const train_config *c = s->config;
    ravel_feed_options options;
    ravel_weights_options weights;
    ravel_plan_options plan = train_config_plan(c);
    ravel_feed_options_default(&options);
    ravel_weights_options_default(&weights);
    weights.mode = evaluation ? RAVEL_TOKEN_MEAN : c->learn.aggregation;
    if (s->run.kind == TRAIN_DPO) weights.mode = RAVEL_SEQ_MEAN_TOKEN_SUM; /* each token of a pair has 1 / pairs */
    weights.divisor = c->learn.norm > 0 ? c->learn.norm : c->plan.budget;
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.plan = &plan;
    options.weights = &weights;
    options.samples = c->sft.batch;
    options.shuffle = !evaluation && !c->sft.task;
    options.shuffle_seed = c->run.seed;
    options.updates = evaluation ? 0 : s->run.steps - s->run.state.step;
    options.epochs = evaluation ? 1 : c->sft.epochs;
    options.prefetch = !evaluation;
    options.pad_token = 0;
    RAVEL_ASSERT(source && options.samples > 0 && plan.budget > 0);
    options.logger = s->run.hooks.logger;
    options.keep_rows = s->run.kind == TRAIN_DPO; /* both answers of a pair in one micro-batch */
    options.share_prefix = s->flat_tokens ? c->learn.share_prefix : RAVEL_SHARE_OFF;
    options.share_limit = s->flat_tokens;
    return ravel_feed_create(s->mesh, source, &options, feed, err);
}

/* ---- learning ------------------------------------------------------------------------------------------- */

static void add_figures(ravel_metrics *m, const train_loss_sums *sums) {
    (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, sums->loss, 1);
    if (sums->tokens > 0)
        (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_TOKEN_NLL, sums->nll / sums->tokens, sums->tokens);
}

static void add_pair_figures(ravel_metrics *m, const train_dpo_sums *sums) {
    double n = sums->pairs;
    (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, sums->loss, 1);
    if (n <= 0) return;
    (void)ravel_metrics_add(m, TRAIN_METRIC_DPO_ACCURACY, sums->right / n, n);
    (void)ravel_metrics_add(m, TRAIN_METRIC_DPO_MARGIN, (sums->chosen - sums->rejected) / n, n);
    (void)ravel_metrics_add(m, TRAIN_METRIC_DPO_CHOSEN, sums->chosen / n, n);
    (void)ravel_metrics_add(m, TRAIN_METRIC_DPO_REJECTED, sums->rejected / n, n);
}

static ravel_status learn_update(sft *s, int64_t micros, int *new_cost, ravel_error *err) {
    train_work work = {0};
    train_parts *parts = train_learner_parts(s->learner);
    train_parts_time time;
    ravel_metrics *m = s->run.metrics;
    RAVEL_ASSERT(micros >= 0 && !s->pairs == (s->run.kind != TRAIN_DPO));
    train_learner_begin(s->learner);
    ravel_status status = s->run.kind == TRAIN_DPO
                              ? train_pairs_learn(s->pairs, parts, s->feed, micros, m, &time, &s->sums, err)
                              : train_parts_learn(parts, s->feed, micros, &work, m, &time, err);
    if (!status) status = train_run_apply(&s->run, s->learner, err);
    if (!status) status = train_timeline_add(&s->run, s->mesh, &time, err);
    if (!status) status = train_cost_add(&s->cost, s->config, &s->run, s->mesh, s->feed, parts, new_cost, err);
    if (status) return status;
    train_metrics_add_time(m, s->mesh, &time);
    train_metrics_add_router(m, parts);
    if (s->run.kind == TRAIN_DPO)
        add_pair_figures(m, &s->sums);
    else
        add_figures(m, train_learner_sums(s->learner));
    return RAVEL_OK;
}

/* ---- evaluating ----------------------------------------------------------------------------------------- */

/* Sum of -log-prob, and how many. */
static ravel_status take_scores(void *user, const ravel_micro_batch *micro, const train_batch *batch,
                                const float *logprob, ravel_error *err) {
    double *sums = user;
    RAVEL_ASSERT(batch->weights && logprob);
    (void)err;
    for (int64_t t = 0; t < micro->thd->local_tokens; t++) {
        if (batch->weights[t] == 0) continue;
        sums[0] -= (double)logprob[t];
        sums[1] += !micro->shared || micro->cp_rank == 0; /* of a tree each of these ranks has all tokens */
    }
    return RAVEL_OK;
}

/* Of the feed's current update: sum of losses and number of tokens (pairs), on ranks that have the last part. */
static ravel_status score_update(sft *s, const ravel_feed *feed, int64_t micros, double *sums, ravel_error *err) {
    train_parts *parts = train_learner_parts(s->learner);
    if (s->run.kind == TRAIN_DPO) {
        ravel_status status = train_pairs_score(s->pairs, parts, feed, micros, &s->sums, err);
        sums[0] += s->sums.plain;
        sums[1] += s->sums.pairs;
        return status;
    }
    double mine[2] = {0, 0};
    train_work work = {.take = take_scores, .user = mine};
    ravel_status status = train_parts_score(parts, feed, micros, &work, err);
    for (int i = 0; i < 2 && ravel_mesh_coords(s->mesh).tp == 0; i++) sums[i] += mine[i];
    return status;
}

static ravel_status ask_stop(sft *s, ravel_error *err) {
    return train_hooks_stopped(&s->run.hooks, s->run.comm, &s->run.stopped, err);
}

/* The mean loss of the rows that are kept apart; *loss stays as it is if there are none, or if a signal ends it. */
static ravel_status evaluate(sft *s, double *loss, ravel_error *err) {
    ravel_feed *feed = NULL;
    RAVEL_ASSERT(loss && s->learner);
    const ravel_feed_update *update;
    double sums[2] = {0, 0};
    if (!s->eval) return RAVEL_OK;
    (void)ravel_metrics_phase_begin(s->run.metrics, RAVEL_PHASE_EVAL, NULL);
    ravel_status status = make_feed(s, s->eval, 1, &feed, err);
    if (!status) status = ask_stop(s, err);
    while (!status && !s->run.stopped && (status = ravel_feed_next(feed, &update, err)) == RAVEL_OK) {
        status = score_update(s, feed, update->mine.micro_steps, sums, err);
        if (!status) status = ask_stop(s, err);
    }
    ravel_feed_free(feed);
    if (status == RAVEL_E_END) status = RAVEL_OK;
    if (!status) status = ravel_comm_allreduce(s->run.comm, sums, sums, 2, RAVEL_F64, RAVEL_SUM, err);
    if (!status && !s->run.stopped && sums[1] > 0) *loss = sums[0] / sums[1];
    (void)ravel_metrics_phase_end(s->run.metrics, RAVEL_PHASE_EVAL, NULL);
    return status;
}

static ravel_status evaluate_step(sft *s, double *loss, ravel_error *err) {
    ravel_status status = evaluate(s, loss, err);
    if (status || s->run.stopped || isnan(*loss)) return status;
    (void)ravel_metrics_add(s->run.metrics, RAVEL_METRIC_EVAL_LOSS, *loss, 1);
    train_run_note_eval(&s->run, *loss, 0);
    (void)ravel_metrics_phase_begin(s->run.metrics, RAVEL_PHASE_EVAL, NULL);
    status = train_answers_show(s->answers, &s->run, s->learner, err);
    (void)ravel_metrics_phase_end(s->run.metrics, RAVEL_PHASE_EVAL, NULL);
    return status ? status : ask_stop(s, err);
}

/* Of the weights that training begins with, as a row of its own. */
static ravel_status evaluate_first(sft *s, ravel_error *err) {
    double *loss = &s->run.state.eval_first;
    ravel_status status = evaluate_step(s, loss, err);
    if (!status && s->run.stopped) return train_run_stopped_early(err);
    return status || isnan(*loss) ? status : ravel_metrics_report(s->run.metrics, 0, err);
}

static int eval_is_due(const sft *s) {
    int64_t every = s->config->sft.eval_every, step = s->run.state.step;
    RAVEL_ASSERT(every >= 0 && step <= s->run.steps);
    return step == s->run.steps || (every > 0 && step % every == 0);
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

/* Batches that are to be planned with another cost: a feed that begins where this one is. */
static ravel_status renew_feed(sft *s, ravel_error *err) {
    ravel_feed_free(s->feed);
    s->feed = NULL;
    ravel_status status = make_feed(s, s->source, 0, &s->feed, err);
    return status ? status : ravel_feed_seek(s->feed, (ravel_cursor){s->run.state.epoch, s->run.state.position}, err);
}

static ravel_status one_step(sft *s, ravel_error *err) {
    const ravel_feed_update *update;
    int new_cost = 0;
    ravel_metrics *m = s->run.metrics;
    ravel_metrics_begin(m);
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_FEED, NULL);
    ravel_status status = ravel_feed_next(s->feed, &update, err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_FEED, NULL);
    if (status) return status;
    train_metrics_add_update(m, s->mesh, update, train_config_sync(s->config));
    status = learn_update(s, update->mine.micro_steps, &new_cost, err);
    if (status) return status;
    s->run.state.epoch = update->cursor.epoch;
    s->run.state.position = update->cursor.position;
    if (new_cost && s->run.state.step < s->run.steps) status = renew_feed(s, err);
    if (!status && eval_is_due(s)) status = evaluate_step(s, &s->eval_loss, err);
    if (!status) status = train_run_end_step(&s->run, s->learner, err);
    double nll;
    int32_t shown = s->run.kind == TRAIN_DPO ? RAVEL_METRIC_TRAIN_LOSS : RAVEL_METRIC_TRAIN_TOKEN_NLL;
    if (!status && ravel_metrics_value(m, shown, &nll)) {
        if (isnan(s->loss_first)) s->loss_first = nll;
        s->loss_last = nll;
    }
    return status;
}

/* Every row is read once before anything is made; tasks have nothing to check. */
static ravel_status check_data(sft *s, const ravel_shape *shape, const ravel_mesh_layout *layout, ravel_error *err) {
    const train_config *c = s->config;
    const train_hooks *hooks = &s->run.hooks;
    ravel_plan_options plan = c->plan;
    ravel_source_options source = train_tune_rows(c, s->run.kind, shape);
    train_data_rules rules = {.source = &source, .pairs = s->run.kind == TRAIN_DPO, .plan = &plan};
    train_data_found found = {0};
    plan.cp = train_layout_cp(layout);
    if (plan.budget == 0) plan.budget = INT32_MAX;
    rules.widest = train_parts_widest(&plan, layout);
    if (c->sft.task) return RAVEL_OK;
    if (!source.data) rules.most = rows_of(s->run.steps, c->sft.batch);
    ravel_status status = train_data_open(source.data, s->run.comm, &hooks->progress, &s->run.data, err);
    if (!status) status = train_data_check(&rules, s->run.comm, &hooks->progress, hooks->logger, &found, err);
    if (!status && found.tokens > 0) s->scored = (double)found.loss_tokens / (double)found.tokens;
    int64_t longest = found.longest, sequence = found.sequence;
    if (!status && c->sft.eval_data) {
        source.data = c->sft.eval_data;
        rules.most = 0;
        status = train_data_check(&rules, s->run.comm, &hooks->progress, hooks->logger, &found, err);
        longest = train__max(longest, found.longest);
        sequence = train__max(sequence, found.sequence);
    }
    if (status || longest == 0) return status;
    if (ravel_comm_rank(s->run.comm) == 0) train_data_warn_long(shape, sequence, hooks->logger);
    return train_config_set_budget(s->config, longest, err);
}

/* Sequences of other lengths have other rotary factors, so `auto` shares no prefixes. */
static void settle_sharing(train_config *c, const ravel_shape *shape) {
    if (shape->rope == RAVEL_ROPE_LONG && c->learn.share_prefix == RAVEL_SHARE_AUTO)
        c->learn.share_prefix = RAVEL_SHARE_OFF;
}

static ravel_status open_all(sft *s, ravel_error *err) {
    ravel_shape shape;
    ravel_mesh_layout layout = {0};
    ravel_comm *comm = s->run.comm;
    ravel_status status = train_shape(&s->config->model, &shape, err);
    if (!status) settle_sharing(s->config, &shape);
    if (!status && ravel_comm_rank(comm) == 0) status = train_run_check(&s->run, err);
    if (!status) status = train_layout_plan(&s->config->mesh, ravel_comm_size(comm), &shape, &layout, err);
    if (!status) status = open_data(s, &shape, err);
    status = ravel_agree(comm, status, err);
    int first = s->config->plan.budget == 0 || /* the data says how long samples are */
                s->config->plan.oversize == RAVEL_OVERSIZE_ALONE;
    if (!status && first) status = check_data(s, &shape, &layout, err);
    train_learner_options options = train_config_learner(s->config, s->run.kind);
    s->flat_tokens = options.flat_tokens;
    train_parts_options reference = train_learner_parts_options(&options, 1);
    int32_t local = 1;
    if (!status) status = ravel_comm_neighbours(comm, &local, err);
    if (!status && ravel_comm_rank(comm) == 0)
        status = train_footprint_log(s->config, s->run.kind, &shape, &layout, 0, s->run.steps, local, &s->devices,
                                     s->run.hooks.logger, err);
    status = ravel_agree(comm, status, err);
    if (!status && !first) status = check_data(s, &shape, &layout, err);
    if (!status) status = train_run_open(&s->run, &shape, ravel_comm_size(comm), err);
    if (!status) status = train_cost_open(&s->cost, s->config, s->run.kind, &shape, s->scored, comm, err);
    if (!status) train_cost_resume(&s->cost, s->config, &s->run.state);
    if (!status) status = ravel_mesh_create(comm, &s->config->mesh, &s->mesh, err);
    if (!status) status = make_feed(s, s->source, 0, &s->feed, err);
    if (!status) status = train_learner_create(&options, &shape, s->mesh, &s->learner, err);
    if (!status && s->run.kind == TRAIN_DPO)
        status = train_pairs_create(&reference, &shape, s->mesh, s->config->dpo.beta, &s->pairs, err);
    s->shape = shape;
    const train_answers_options answers = {.config = s->config, .source = s->eval, .shape = &s->shape};
    if (!status) status = train_answers_open(&answers, comm, &s->answers, err);
    if (!status && s->run.resumed) {
        ravel_cursor cursor = {s->run.state.epoch, s->run.state.position};
        status = ravel_agree(comm, train_learner_load(s->learner, s->run.checkpoint, err), err);
        if (!status) status = ravel_feed_seek(s->feed, cursor, err);
        if (!status) status = train_run_continue(&s->run, err);
    }
    return status;
}

static void summarise(const sft *s, train_summary *summary) {
    train_run_summarise(&s->run, summary);
    summary->loss_first = s->loss_first;
    summary->loss_last = s->loss_last;
    summary->eval_first = s->run.state.eval_first;
    summary->eval_loss = s->eval_loss;
}

ravel_status train_tune(train_kind kind, const train_config *config, ravel_comm *comm, const train_hooks *hooks,
                        train_summary *summary, ravel_error *err) {
    train_config own = *config;
    sft s = {.config = &own,
             .scored = 1,
             .run = {.config = &own, .kind = kind, .comm = comm},
             .loss_first = NAN,
             .loss_last = NAN,
             .eval_loss = NAN};
    if (hooks) s.run.hooks = *hooks;
    ravel_status status = ravel_agree(comm, train_choice_settle(&own.model, 0, err), err);
    if (!status) status = train_devices_assign(&own, ravel_comm_size(comm), comm, &s.devices, err);
    if (!status) status = open_all(&s, err);
    if (!status && s.run.state.step == 0) status = evaluate_first(&s, err);
    while (!status && s.run.state.step < s.run.steps && !s.run.stopped) status = one_step(&s, err);
    if (status == RAVEL_E_END) status = RAVEL_OK; /* the data is over */
    status = train_run_finish(&s.run, s.learner, status, err);
    if (summary) summarise(&s, summary);
    train_learner_disconnect(s.learner);
    ravel_feed_free(s.feed);
    train_cost_close(&s.cost);
    train_pairs_free(s.pairs);
    train_answers_free(s.answers);
    train_learner_free(s.learner);
    ravel_source_free(s.source);
    ravel_source_free(s.eval);
    ravel_mesh_free(s.mesh);
    train_run_free(&s.run);
    return status;
}
