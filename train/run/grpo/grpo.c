/* The loop of a trainer rank, and the split of ranks into trainers and generators. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "train/learn/checkpoint.h"
#include "train/run/config/footprint.h"
#include "train/run/answers/weight_sets.h"
#include "train/kernels/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
    weights.divisor = c->learn.norm > 0 ? c->learn.norm : train_config_rollout_tokens(c);
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.plan = &plan;
    options.weights = &weights;
    options.prefetch = 0;
    ravel_field fields[TRAIN_FIELDS + 2];
    options.fields = fields;
    options.field_count = train_fields_list(g->batch.with_teacher, g->batch.route_width, fields);
    if (g->batch.route_width) options.ask = (UINT64_C(1) << c->mesh.vpp) - 1; /* every part has layers with routes */
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
    RAVEL_ASSERT(status || g->replica);
    if (!at.tp && !at.cp && !at.pp) g->leaders = ravel_mesh_comm(g->mesh, RAVEL_AXIS_DP);
    return status;
}

/* The budget is of each context-parallel rank. */
static int64_t longest_sample(const train__grpo *g, const ravel_mesh_layout *layout) {
    if (g->config->plan.budget == 0) return INT32_MAX;
    return g->config->plan.budget * train_parts_widest(&g->config->plan, layout);
}

ravel_status train__grpo_open_prompts(const train_config *c, int64_t vocab, int64_t longest, train_text **text,
                                      train_prompts **out, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    train_mix mix;
    ravel_status parsed = train_mix_parse(o->reward, o->reward_command != NULL, &mix, err);
    if (parsed) return parsed;
    int compared = train_mix_has(&mix, TRAIN_MIX_EXACT) && !train_config_distils(c); /* with the right answer */
    train_prompts_options prompts = {.data = o->data,
                                     .task = o->task,
                                     .level = o->level,
                                     .vocab = vocab,
                                     .bad_rows = o->bad_rows,
                                     .numbers = !o->data && !o->task,
                                     .need_answers = compared && !train_config_has_env(c),
                                     .keep_lines = o->reward_command || train_config_has_env(c),
                                     .longest = longest,
                                     .eval_share = o->eval_share,
                                     .eval_data = o->eval_data,
                                     .seed = c->run.seed};
    /* Tasks are of bytes; what an environment says is text of the model. */
    const char *folder = o->data || train_config_has_env(c) ? c->model.model : NULL;
    ravel_status status = train_text_open(folder, vocab, o->chat_format, o->chat_args, text, err);
    prompts.text = *text;
    if (!status && train_text_missing(*text) && (compared || train_config_has_env(c)))
        status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                 train_config_has_env(c)
                                     ? "an environment speaks to the model in text. %s"
                                     : "answers are compared as text; --reward-command can score their ids instead. %s",
                                 train_text_missing(*text));
    return status ? status : train_prompts_open(&prompts, out, err);
}

static ravel_status open_prompts(train__grpo *g, const ravel_shape *shape, int64_t most, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    int64_t answer = train_config_rollout_tokens(g->config);
    ravel_status status = train__grpo_open_prompts(g->config, shape->vocab, most - answer, &g->text, &g->prompts, err);
    if (status) return status;
    int64_t longest = train_prompts_longest(g->prompts);
    if (longest + answer > most)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "prompts of up to %lld tokens and answers of up to %lld (%s) do not fit a budget of %lld",
            (long long)longest, (long long)answer, train_config_has_env(g->config) ? "env-tokens" : "max-tokens",
            (long long)most);
    const train_peer_options peer = {.target = o->reward_command,
                                     .processes = 1,
                                     .slots = o->service_slots,
                                     .seconds = o->reward_seconds,
                                     .wait = o->service_wait,
                                     .logger = g->run.hooks.logger};
    if (o->reward_command) status = train_reward_create(&peer, o->reward_retries, g->run.hooks.stop, &g->command, err);
    if (!status) status = train_mix_parse(o->reward, o->reward_command != NULL, &g->mix, err);
    if (status || !g->command) return status;
    train_reward_set_mix(g->command, &g->mix);
    return status;
}

static void log_left_out(const train__grpo *g) {
    const train_problems *p = train_prompts_left_out(g->prompts);
    char list[1000];
    if (p->count == 0) return;
    (void)train_problems_text(p, list, sizeof list);
    ravel__log(g->run.hooks.logger, RAVEL_LOG_WARN, "%lld bad row%s skipped:%s", (long long)p->count,
               p->count == 1 ? " is" : "s are", list);
}

static void warn_of_model(const train__grpo *g, const ravel_shape *shape, int64_t longest) {
    int64_t answer = train_config_rollout_tokens(g->config), most = shape->max_positions;
    if (most <= 0 || longest + answer <= most) return;
    ravel__log(g->run.hooks.logger, RAVEL_LOG_WARN,
               "prompts have up to %lld tokens and answers up to %lld, and the model is made for %lld together "
               "(max_position_embeddings): lower --%s%s",
               (long long)longest, (long long)answer, (long long)most,
               train_config_has_env(g->config) ? "env-tokens" : "max-tokens",
               longest < most ? "" : ", shorten prompts");
}

/* Room for the likeliest tokens of a micro-batch. */
static ravel_status open_picked(train__grpo *g, int64_t budget, ravel_error *err) {
    size_t bytes = (size_t)(budget * g->config->grpo.teacher_topk) * sizeof(float);
    if (!bytes) return RAVEL_OK;
    g->picked_room = budget * g->config->grpo.teacher_topk;
    g->picked_ids = ravel__calloc(NULL, (size_t)g->picked_room, sizeof *g->picked_ids);
    g->picked_logprob = ravel__calloc(NULL, (size_t)g->picked_room, sizeof *g->picked_logprob);
    return g->picked_ids && g->picked_logprob ? RAVEL_OK : ravel__no_memory(err, bytes, "a teacher's likeliest tokens");
}

static ravel_status ask_teacher(train__grpo *g, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    const train_servers_options servers = {.urls = o->teacher,
                                           .key = getenv("RAVEL_TEACHER_KEY"),
                                           .slots = o->rollout_slots,
                                           .seconds = o->rollout_seconds,
                                           .wait = o->service_wait,
                                           .logger = g->run.hooks.logger};
    return g->leaders ? train_teacher_open(&servers, o->rollout_retries, g->run.hooks.stop, &g->taught, err) : RAVEL_OK;
}

/* The model that log-probs are compared with: the one that training begins with, or the teacher, which may have any
 * shape that the mesh can hold. It scores the same micro-batches. */
static ravel_status open_reference(train__grpo *g, const train_learner_options *options, const ravel_shape *shape,
                                   ravel_error *err) {
    const train_config *c = g->config;
    train_parts_options parts = train_learner_parts_options(options, 1);
    ravel_shape teacher = *shape;
    ravel_mesh_layout layout;
    if (train_servers_are(c->grpo.teacher)) return ask_teacher(g, err);
    if (c->policy.kl <= 0 || (c->model.lora.rank && !c->grpo.teacher)) return RAVEL_OK;
    if (!c->grpo.teacher) return train_parts_create(&parts, shape, g->mesh, &g->reference, err);
    g->teacher = train_config_teacher(c);
    parts.model = &g->teacher;
    ravel_status status = train_shape(&g->teacher, &teacher, err);
    if (!status && teacher.vocab < shape->vocab)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "it has %lld tokens and the model %lld: they must be the same",
                                 (long long)teacher.vocab, (long long)shape->vocab);
    if (!status && c->grpo.teacher_topk && teacher.vocab != shape->vocab)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                 "it has %lld tokens and the model %lld: --teacher-topk needs the same number",
                                 (long long)teacher.vocab, (long long)shape->vocab);
    if (!status) status = open_picked(g, parts.budget, err);
    if (!status) status = train_layout_plan(&c->mesh, g->count, &teacher, &layout, err);
    if (status) ravel_error_prefix(err, "--teacher");
    status = ravel_agree(g->trainers, status, err);
    return status ? status : train_parts_create(&parts, &teacher, g->mesh, &g->reference, err);
}

/* The share of a sample's tokens that are learnt, if answers are as long as they may be. */
static double scored_share(const train_config *c, int64_t longest_prompt) {
    int64_t all = train_config_rollout_tokens(c), drawn = c->grpo.scoring.max_tokens;
    if (train_config_has_env(c)) drawn = train__min(all, drawn * c->grpo.max_turns);
    return all > 0 ? (double)drawn / (double)(longest_prompt + all) : 1;
}

/* The generators wait for the length of the longest prompt before they allocate. */
static ravel_status open_trainer(train__grpo *g, ravel_shape *shape, ravel_error *err) {
    train_config *c = g->config;
    ravel_mesh_layout layout;
    ravel_status status = train_layout_plan(&c->mesh, g->count, shape, &layout, err);
    g->shape = *shape;
    if (!status && g->rank == 0) status = train_run_check(&g->run, err);
    if (!status && c->grpo.replay && !shape->experts)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "--router-replay: the model has no experts");
    g->batch.with_teacher = train_servers_are(c->grpo.teacher);
    if (c->grpo.replay == TRAIN_REPLAY_ROLLOUT) g->batch.route_width = shape->layers * shape->experts_active;
    if (!status) status = open_prompts(g, shape, longest_sample(g, &layout), err);
    int64_t longest = status ? 0 : train_prompts_longest(g->prompts);
    ravel__shape_settle_rope(shape, longest + train_config_rollout_tokens(c)); /* as generators do */
    if (!status) status = train_config_set_budget(c, longest + train_config_rollout_tokens(c), err);
    train_learner_options options = train_config_learner(c, TRAIN_GRPO);
    g->flat_tokens = options.flat_tokens;
    if (!status && g->rank == 0) log_left_out(g);
    if (!status && g->rank == 0) warn_of_model(g, shape, longest);
    if (!status && g->rank == 0)
        status = train_footprint_log(c, TRAIN_GRPO, shape, &layout, longest, g->run.steps, g->local, &g->devices,
                                     g->run.hooks.logger, err);
    status = ravel_agree(g->trainers, status, err);
    if (!status) status = ravel_comm_broadcast(g->world, &longest, 1, RAVEL_I64, 0, err);
    if (!status) status = train_data_open(c->grpo.data, g->trainers, &g->run.hooks.progress, &g->run.data, err);
    if (!status) status = train_run_open(&g->run, shape, ravel_comm_size(g->world), err);
    if (!status) status = ravel_mesh_create(g->trainers, &c->mesh, &g->mesh, err);
    if (!status) status = join_groups(g, err);
    if (!status) status = train_cost_open(&g->cost, c, TRAIN_GRPO, shape, scored_share(c, longest), g->trainers, err);
    if (!status) train_cost_resume(&g->cost, g->config, &g->run.state);
    if (!status) status = make_feed(g, err);
    if (!status) status = train_learner_create(&options, shape, g->mesh, &g->learner, err);
    if (!status) status = open_reference(g, &options, shape, err);
    g->admitted = g->run.state.batch - 1;
    if (!status && g->run.resumed) {
        status = train_learner_load(g->learner, g->run.checkpoint, err);
        if (!status) status = train__grpo_read_waiting(g, g->run.checkpoint, shape->vocab, err);
        status = ravel_agree(g->trainers, status, err);
    }
    g->run.addition = (train_addition){train__grpo_settle, train__grpo_gather_waiting, train__grpo_write_waiting, g};
    RAVEL_ASSERT(status || (g->learner && g->feed && g->mesh));
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
    train_scores_free(&g->top_ids);
    train_scores_free(&g->top_logprob);
    ravel__release(NULL, g->picked_ids, (size_t)g->picked_room * sizeof *g->picked_ids);
    ravel__release(NULL, g->picked_logprob, (size_t)g->picked_room * sizeof *g->picked_logprob);
    train_scores_free(&g->old);
    train__grpo_routes_free(&g->routes);
    train_learner_free(g->learner);
    ravel_mesh_free(g->mesh);
    train_reward_free(g->command);
    train_teacher_free(g->taught);
    train_prompts_free(g->prompts);
    train_text_free(g->text);
    train_rollouts *lists[7] = {&g->answers, &g->waiting, &g->asking, &g->gathered, &g->kept, &g->more, &g->begun};
    for (int i = 0; i < 7; i++) train_rollouts_free(lists[i]);
    train_experience_free(&g->batch);
    train_run_free(&g->run);
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static int eval_is_due(const train__grpo *g, int64_t before) {
    int64_t every = g->config->grpo.eval_every, step = g->run.state.step;
    RAVEL_ASSERT(step >= before);
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
    RAVEL_ASSERT(g->batches >= 0 && g->flat_in_row >= 0);
    g->sampled[1][g->batches++ % 5] = mean;
    (void)ravel_metrics_value(g->run.metrics, RAVEL_METRIC_REWARD_ZERO_VARIANCE, &flat);
    g->flat_in_row = flat >= 1 ? g->flat_in_row + 1 : 0;
    if (most == 0 || g->flat_in_row < most || g->config->grpo.teacher) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA,
                           "the rewards of the last %d batches are all equal within their groups (mean %g): there is "
                           "nothing to learn. Look at the answers, the rewards and --temperature; --max-flat 0 goes on",
                           most, mean);
}

static double mean_of(const double *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count && i < 5; i++) sum += values[i];
    RAVEL_ASSERT(count >= 0);
    return count > 0 ? sum / (double)train__min(count, 5) : NAN;
}

static ravel_status one_batch(train__grpo *g, ravel_error *err) {
    const train_config *c = g->config;
    int64_t before = g->run.state.step;
    int more = before + c->grpo.updates < g->run.steps;
    RAVEL_ASSERT(g->run.state.step < g->run.steps && !g->run.stopped);
    g->boundary = g->run.state;
    g->boundary_admitted = g->admitted;
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

/* A signal that ended the wait for answers is an end like that after an update. */
static ravel_status take_stop(train__grpo *g, ravel_status status, ravel_error *err) {
    ravel_error why = *err;
    if (train_hooks_stopped(&g->run.hooks, g->trainers, &g->run.stopped, err)) return (ravel_status)err->status;
    if (g->run.stopped) ravel_error_clear(err);
    if (g->run.stopped && g->rank == 0) ravel__log(g->run.hooks.logger, RAVEL_LOG_INFO, "%s", why.message);
    return g->run.stopped ? RAVEL_OK : status;
}

static ravel_status train(train__grpo *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int fresh = g->run.state.step == 0;
    g->boundary = g->run.state;
    g->boundary_admitted = g->admitted;
    /* Generators start without weights: a resumed run sends them the version that it stopped with. */
    status = train__grpo_refit(g, fresh ? 1 : g->run.state.version, err);
    if (!status) status = train__grpo_return_begun(g, err);
    if (!status && fresh) status = train__grpo_evaluate(g, &g->run.state.reward_first, err);
    if (!status && fresh && g->run.stopped) status = train_run_stopped_early(err);
    if (!status && fresh && !isnan(g->run.state.reward_first)) status = ravel_metrics_report(g->run.metrics, 0, err);
    while (!status && g->run.state.step < g->run.steps && !g->run.stopped) status = one_batch(g, err);
    if (status) train__grpo_step_back(g);
    if (status == RAVEL_E_STATE && g->run.state.step > 0) status = take_stop(g, status, err);
    status = train_run_finish(&g->run, g->learner, status, err);
    if (!status && !g->stepped_back) status = train__grpo_drain(g, err);
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

static ravel_status trainer(train__grpo *g, ravel_shape *shape, const train_hooks *hooks, train_summary *summary,
                            ravel_error *err) {
    const train_config *c = g->config;
    g->waiting_batch = g->kept_batch = g->admitted = -1;
    g->reward_last = NAN;
    g->old_by_trainer = train_config_old_by_trainer(c);
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
    RAVEL_ASSERT(g.generators >= 1 && rank < ranks);
    g.rank = rank;
    ravel_status status = RAVEL_OK;
    if (g.count < 1)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "%d ranks are too few for %d generators and a trainer", ranks,
                                 g.generators);
    if (!status) status = train_shape(&config->model, &shape, err);
    if (!status) status = train_choice_settle(&own.model, 0, err);
    train_slice part = {.tp = config->grpo.generator_tp};
    if (!status && (status = train_slice_shape(&shape, &part, &(ravel_shape){0}, err)))
        ravel_error_prefix(err, "--generator-tp");
    status = ravel_agree(comm, status, err);
    if (!status) status = train_devices_assign(&own, g.count, comm, &g.devices, err);
    if (!status) status = ravel_comm_neighbours(comm, &g.local, err);
    if (!status) train__grpo_settle_delta(&own, g.local == ranks);
    if (!status) status = ravel_comm_split(comm, rank >= g.count, rank, &g.trainers, err);
    if (status) return status;
    if (rank < g.count) {
        ravel_comm_set_name(g.trainers, "trainers");
        status = trainer(&g, &shape, hooks, summary, err);
    } else {
        ravel_comm_set_name(g.trainers, "generators");
        status = train_grpo_generate(&own, &shape, comm, g.trainers, hooks, err);
    }
    if (status && rank < g.count) ravel_comm_abort(comm, err); /* generators wait for orders, not for the trainers */
    ravel_comm_free(g.trainers);
    return status;
}
