/* The loop of a trainer rank, and the split of ranks into trainers and generators. */
#include "train/run/grpo_internal.h"

#include "train/kernels/assert.h"
#include "train/learn/checkpoint.h"
#include "train/run/footprint.h"
#include "train/run/weight_sets.h"
#include "train/kernels/host.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- opening -------------------------------------------------------------------------------------------- */

static ravel_status make_feed(train__grpo *g, ravel_error *err) {
    const train_config *c = g->config;
    ravel_feed_options options;
    ravel_weights_options weights;
    ravel_plan_options plan = train_config_plan(c);
    ravel_feed_options_default(&options);
    ravel_weights_options_default(&weights);
    plan.updates = c->grpo.updates;
    weights.mode = c->learn.aggregation;
    weights.divisor = c->learn.norm > 0 ? c->learn.norm : c->grpo.scoring.max_tokens;
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.plan = &plan;
    options.weights = &weights;
    options.prefetch = 0;
    options.fields = train_fields;
    options.field_count = TRAIN_FIELDS;
    options.logger = g->run.hooks.logger;
    options.share_prefix = g->flat_tokens ? c->learn.share_prefix : RAVEL_SHARE_OFF;
    options.share_limit = g->flat_tokens;
    return ravel_feed_create(g->mesh, NULL, &options, &g->feed, err);
}

/* The communicator of the ranks that receive answers, and that of the ranks that learn from the same ones. */
static ravel_status join_groups(train__grpo *g, ravel_error *err) {
    const int32_t same = RAVEL_AXIS_TP | RAVEL_AXIS_CP | RAVEL_AXIS_PP;
    ravel_mesh_coord at = ravel_mesh_coords(g->mesh);
    ravel_status status = ravel_mesh_add(g->mesh, same, err);
    g->replica = ravel_mesh_comm(g->mesh, same);
    TRAIN_ASSERT(status || g->replica);
    if (!at.tp && !at.cp && !at.pp) g->leaders = ravel_mesh_comm(g->mesh, RAVEL_AXIS_DP);
    return status;
}

/* The budget is of each context-parallel rank. */
static int64_t longest_sample(const train__grpo *g, const ravel_mesh_layout *layout) {
    if (g->config->plan.budget == 0) return INT32_MAX;
    return g->config->plan.budget * train_parts_widest(&g->config->plan, layout);
}

static ravel_status open_prompts(train__grpo *g, const ravel_shape *shape, int64_t most, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    train_prompts_options prompts = {.data = o->data,
                                     .task = o->task,
                                     .level = o->level,
                                     .vocab = shape->vocab,
                                     .bad_rows = o->bad_rows,
                                     .need_answers = !o->reward_command,
                                     .keep_lines = o->reward_command != NULL,
                                     .longest = most - o->scoring.max_tokens,
                                     .eval_share = o->eval_share,
                                     .seed = g->config->run.seed};
    const char *folder = o->data ? g->config->model.model : NULL; /* tasks are of bytes */
    ravel_status status = train_text_open(folder, shape->vocab, o->chat_format, o->chat_args, &g->text, err);
    prompts.text = g->text;
    if (!status && train_text_missing(g->text) && !o->reward_command)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                 "answers are compared as text; --reward-command can score their ids instead. %s",
                                 train_text_missing(g->text));
    if (!status) status = train_prompts_open(&prompts, &g->prompts, err);
    if (status) return status;
    int64_t longest = train_prompts_longest(g->prompts);
    if (longest + o->scoring.max_tokens > most)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "prompts of up to %lld tokens and answers of up to %lld (max-tokens) do not fit a "
                               "budget of %lld",
                               (long long)longest, (long long)o->scoring.max_tokens, (long long)most);
    if (o->reward_command) status = train_reward_create(o->reward_command, o->reward_seconds, &g->command, err);
    if (g->command) train_reward_set_stop(g->command, g->run.hooks.stop);
    return status;
}

static void log_left_out(const train__grpo *g) {
    const train_problems *p = train_prompts_left_out(g->prompts);
    char list[1000];
    if (p->count == 0) return;
    (void)train_problems_text(p, list, sizeof list);
    train_log(g->run.hooks.logger, RAVEL_LOG_WARN, "%lld bad rows are skipped:%s", (long long)p->count, list);
}

/* The generators wait for the length of the longest prompt before they allocate. */
static ravel_status open_trainer(train__grpo *g, const ravel_shape *shape, ravel_error *err) {
    train_config *c = g->config;
    ravel_mesh_layout layout;
    ravel_status status = train_layout_plan(&c->mesh, g->count, shape, &layout, err);
    if (!status) status = open_prompts(g, shape, longest_sample(g, &layout), err);
    int64_t longest = status ? 0 : train_prompts_longest(g->prompts);
    if (!status) status = train_config_set_budget(c, longest + c->grpo.scoring.max_tokens, err);
    train_learner_options options = train_config_learner(c, TRAIN_GRPO, shape);
    g->flat_tokens = options.flat_tokens;
    train_parts_options reference = train_learner_parts_options(&options, 1);
    if (!status && g->rank == 0) log_left_out(g);
    if (!status && g->rank == 0)
        status = train_footprint_log(c, TRAIN_GRPO, shape, &layout, longest, g->local, &g->devices, g->run.hooks.logger,
                                     err);
    status = ravel_agree(g->trainers, status, err);
    if (!status) status = ravel_comm_broadcast(g->world, &longest, 1, RAVEL_I64, 0, err);
    if (!status) status = train_data_open(c->grpo.data, g->trainers, &g->run.hooks.progress, &g->run.data, err);
    if (!status) status = train_run_open(&g->run, shape, ravel_comm_size(g->world), err);
    if (!status) status = ravel_mesh_create(g->trainers, &c->mesh, &g->mesh, err);
    if (!status) status = join_groups(g, err);
    if (!status) status = train_cost_open(&g->cost, g->config, TRAIN_GRPO, shape, 1, g->trainers, err);
    if (!status) train_cost_resume(&g->cost, g->config, &g->run.state);
    if (!status) status = make_feed(g, err);
    if (!status) status = train_learner_create(&options, shape, g->mesh, &g->learner, err);
    if (!status && c->policy.kl > 0) status = train_parts_create(&reference, shape, g->mesh, &g->reference, err);
    if (!status && g->run.resumed) {
        status = train_learner_load(g->learner, g->run.checkpoint, err);
        if (!status) status = train__grpo_read_waiting(g, g->run.checkpoint, shape->vocab, err);
        status = ravel_agree(g->trainers, status, err);
    }
    g->run.addition = (train_addition){train__grpo_settle, train__grpo_gather_waiting, train__grpo_write_waiting, g};
    TRAIN_ASSERT(status || (g->learner && g->feed && g->mesh));
    return status;
}

static void close_trainer(train__grpo *g) {
    train_parts_disconnect(g->reference, NULL);
    train_learner_disconnect(g->learner);
    train__grpo_refit_close(g);
    ravel_feed_free(g->feed);
    train_cost_close(&g->cost);
    train_parts_free(g->reference);
    train_scores_free(&g->reference_scores);
    train_scores_free(&g->old);
    train_learner_free(g->learner);
    ravel_mesh_free(g->mesh);
    train_reward_free(g->command);
    train_prompts_free(g->prompts);
    train_text_free(g->text);
    train_rollouts *lists[6] = {&g->answers, &g->waiting, &g->asking, &g->gathered, &g->kept, &g->more};
    for (int i = 0; i < 6; i++) train_rollouts_free(lists[i]);
    train_experience_free(&g->batch);
    train_run_free(&g->run);
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static int eval_is_due(const train__grpo *g, int64_t before) {
    int64_t every = g->config->grpo.eval_every, step = g->run.state.step;
    TRAIN_ASSERT(step >= before);
    return step == g->run.steps || (every > 0 && step / every > before / every);
}

/* All updates of a batch but the last end here; the last one ends with the refit behind it. */
static ravel_status learn_batch(train__grpo *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t u = 0; u < g->config->grpo.updates && !status; u++) {
        if (u > 0) {
            status = train_run_report(&g->run, err);
            ravel_metrics_begin(g->run.metrics);
        }
        if (!status) status = train__grpo_update(g, err);
        if (g->run.state.step == g->run.steps) break;
    }
    return status;
}

/* Keeps the mean for the summary. A run whose rewards do not differ within any group cannot learn. */
static ravel_status note_reward(train__grpo *g, ravel_error *err) {
    double mean = NAN, flat = 1;
    int32_t most = g->config->grpo.max_flat;
    (void)ravel_metrics_value(g->run.metrics, RAVEL_METRIC_REWARD_MEAN, &mean);
    if (g->batches < 5) g->sampled[0][g->batches] = mean;
    TRAIN_ASSERT(g->batches >= 0 && g->flat_in_row >= 0);
    g->sampled[1][g->batches++ % 5] = mean;
    (void)ravel_metrics_value(g->run.metrics, RAVEL_METRIC_REWARD_ZERO_VARIANCE, &flat);
    g->flat_in_row = flat >= 1 ? g->flat_in_row + 1 : 0;
    if (most == 0 || g->flat_in_row < most) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA,
                           "the rewards of the last %d batches are all equal within their groups (mean %g): there is "
                           "nothing to learn. Look at the answers, the rewards and --temperature; --max-flat 0 goes on",
                           most, mean);
}

static double mean_of(const double *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count && i < 5; i++) sum += values[i];
    TRAIN_ASSERT(count >= 0);
    return count > 0 ? sum / (double)train__min(count, 5) : NAN;
}

static ravel_status one_batch(train__grpo *g, ravel_error *err) {
    const train_config *c = g->config;
    int64_t before = g->run.state.step;
    int more = before + c->grpo.updates < g->run.steps;
    TRAIN_ASSERT(g->run.state.step < g->run.steps && !g->run.stopped);
    g->boundary = g->run.state;
    ravel_metrics_begin(g->run.metrics);
    ravel_status status = RAVEL_OK;
    if (g->new_cost) {
        ravel_feed_free(g->feed);
        g->feed = NULL;
        status = make_feed(g, err);
        g->new_cost = 0;
    }
    if (!status && g->waiting_batch < 0) status = train__grpo_order(g, g->run.state.batch, err);
    if (!status) status = train__grpo_collect(g, err);
    if (!status) status = train__grpo_prepare(g, err);
    if (!status && c->grpo.async && more) status = train__grpo_order(g, g->run.state.batch + 1, err);
    if (!status) status = learn_batch(g, err);
    g->run.state.batch++;
    if (!status) status = train__grpo_refit(g, g->run.state.version + 1, err);
    if (!status && eval_is_due(g, before)) status = train__grpo_evaluate(g, &g->reward_last, err);
    if (!status) status = train_run_end_step(&g->run, g->learner, err);
    return status ? status : note_reward(g, err);
}

static ravel_status train(train__grpo *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int fresh = g->run.state.step == 0;
    g->boundary = g->run.state;
    /* Generators start without weights: a resumed run sends them the version that it stopped with. */
    status = train__grpo_refit(g, fresh ? 1 : g->run.state.version, err);
    if (!status && fresh) status = train__grpo_evaluate(g, &g->run.state.reward_first, err);
    if (!status && fresh && !isnan(g->run.state.reward_first)) status = ravel_metrics_report(g->run.metrics, 0, err);
    while (!status && g->run.state.step < g->run.steps && !g->run.stopped) status = one_batch(g, err);
    if (status) train__grpo_step_back(g);
    status = train_run_finish(&g->run, g->learner, status, err);
    if (!status) status = train__grpo_drain(g, err);
    if (!status) status = train__grpo_send(g, (train_order){.kind = TRAIN_ORDER_STOP}, 0, 0, err);
    if (!status) status = train__grpo_linger(g, err);
    return status;
}

static void summarise(const train__grpo *g, train_summary *s) {
    train_run_summarise(&g->run, s);
    s->reward_first = g->run.state.reward_first;
    s->reward_last = g->reward_last;
    s->reward_apart = g->prompts && train_prompts_eval_apart(g->prompts);
    s->sampled_first = mean_of(g->sampled[0], g->batches);
    s->sampled_last = mean_of(g->sampled[1], g->batches);
    if (g->scored + g->dropped > 0) s->dropped = (double)g->dropped / (double)(g->scored + g->dropped);
    s->refit_overlap = g->refits > 0 ? g->overlap / g->refits : NAN;
    s->refit_gb_per_sec = g->refits > 0 ? g->gb_per_sec / g->refits : NAN;
}

static int old_by_trainer(const train_config *c) {
    if (c->grpo.old == TRAIN_OLD_AUTO) return !c->grpo.async || c->policy.tis > 0;
    return c->grpo.old == TRAIN_OLD_TRAINER;
}

static ravel_status trainer(train__grpo *g, const ravel_shape *shape, const train_hooks *hooks, train_summary *summary,
                            ravel_error *err) {
    const train_config *c = g->config;
    g->waiting_batch = g->kept_batch = -1;
    g->reward_last = NAN;
    g->old_by_trainer = old_by_trainer(c);
    g->run = (train_run){.config = c, .kind = TRAIN_GRPO, .comm = g->trainers};
    g->run.steps = c->run.steps ? c->run.steps : TRAIN_STEPS;
    if (hooks) g->run.hooks = *hooks;
    ravel_status status = open_trainer(g, shape, err);
    if (!status) status = train__grpo_refit_open(g, err);
    if (!status && g->run.resumed) status = train_run_continue(&g->run, err);
    if (!status) status = train(g, err);
    if (summary) summarise(g, summary);
    close_trainer(g);
    return status;
}

ravel_status train_grpo(const train_config *config, ravel_comm *comm, const train_hooks *hooks, train_summary *summary,
                        ravel_error *err) {
    train_config own = *config;
    train__grpo g = {.config = &own, .world = comm, .generators = config->grpo.generators};
    ravel_shape shape = {0};
    int32_t rank = ravel_comm_rank(comm), ranks = ravel_comm_size(comm);
    g.count = ranks - g.generators;
    TRAIN_ASSERT(g.generators >= 1 && rank < ranks);
    g.rank = rank;
    ravel_status status = RAVEL_OK;
    if (g.count < 1)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "%d ranks are too few for %d generators and a trainer", ranks,
                                 g.generators);
    if (!status) status = train_shape(&config->model, &shape, err);
    train_slice part = {.tp = config->grpo.generator_tp};
    if (!status && (status = train_slice_shape(&shape, &part, &(ravel_shape){0}, err)))
        ravel_error_prefix(err, "--generator-tp");
    status = ravel_agree(comm, status, err);
    if (!status) status = train_devices_assign(&own, g.count, comm, &g.devices, err);
    if (!status) status = ravel_comm_neighbours(comm, &g.local, err);
    if (!status) status = ravel_comm_split(comm, rank >= g.count, rank, &g.trainers, err);
    if (status) return status;
    if (rank < g.count) {
        ravel_comm_set_name(g.trainers, "trainers");
        status = trainer(&g, &shape, hooks, summary, err);
    } else {
        ravel_comm_set_name(g.trainers, "generators");
        status = train_grpo_generate(&own, &shape, comm, g.trainers, err);
    }
    if (status && rank < g.count) ravel_comm_abort(comm, err); /* generators wait for orders, not for the trainers */
    ravel_comm_free(g.trainers);
    return status;
}
