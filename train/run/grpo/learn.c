/* From answers to optimiser steps. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/run/timeline.h"

/* ---- the batch ------------------------------------------------------------------------------------------ */

static void count_rollouts(train__grpo *g) {
    const train_experience *x = &g->batch;
    RAVEL_ASSERT(x->count >= 0 && (x->count == 0 || (x->rewards && x->groups)));
    const ravel_metrics_rollouts rollouts = {.size = sizeof rollouts,
                                             .count = x->rollouts,
                                             .rewards = x->once_rewards,
                                             .groups = x->once_groups},
                                 samples = {.size = sizeof samples,
                                            .count = x->count,
                                            .responses = x->responses,
                                            .truncated = x->truncated,
                                            .staleness = x->staleness};
    ravel_metrics_add_rollouts(g->run.metrics, &rollouts);
    ravel_metrics_add_rollouts(g->run.metrics, &samples);
}

/* How old the weights are that drew the batch's tokens, what was left out, and who waited for whom. */
static void count_ages(train__grpo *g) {
    enum { KINDS = 5 };
    const train_rollouts *x = &g->answers;
    ravel_metrics *m = g->run.metrics;
    double by_age[KINDS] = {0}, sum = 0, worst = 0, tokens = 0, continued = 0, continued_tokens = 0;
    for (int64_t i = 0; i < x->count; i++) {
        const train_rollout *r = &x->items[i];
        int32_t first = 0, last = 0;
        double drawn = 0;
        for (int64_t t = r->first + r->prompt; t < r->first + r->length; t++) {
            if (x->versions[t] <= 0) continue;
            int64_t age = train__max(g->run.state.version - x->versions[t], 0);
            by_age[train__min(age, KINDS - 1)] += 1;
            sum += (double)age;
            worst = train__max(worst, (double)age);
            if (drawn == 0) first = x->versions[t];
            last = x->versions[t];
            drawn += 1;
        }
        tokens += drawn;
        continued += first != last;
        continued_tokens += first != last ? drawn : 0;
    }
    double waited = 1e-6 * (double)g->waited * g->config->grpo.generator_tp / g->generators;
    g->waited = 0;
    (void)ravel_metrics_add(m, TRAIN_METRIC_GENERATOR_WAIT, waited, 1);
    if (g->drawn > 0)
        (void)ravel_metrics_add(m, TRAIN_METRIC_DROPPED_TOKENS, train__max(1 - tokens / (double)g->drawn, 0),
                                (double)g->drawn);
    if (tokens <= 0) return;
    (void)ravel_metrics_add(m, TRAIN_METRIC_TOKEN_STALENESS, sum / tokens, tokens);
    (void)ravel_metrics_add(m, TRAIN_METRIC_TOKEN_STALENESS_MAX, worst, 1);
    for (int32_t k = 0; k < KINDS; k++)
        (void)ravel_metrics_add(m, TRAIN_METRIC_TOKEN_STALENESS_0 + k, by_age[k] / tokens, tokens);
    double n = (double)x->count;
    (void)ravel_metrics_add(m, TRAIN_METRIC_CONTINUED, continued / n, n);
    if (continued > 0)
        (void)ravel_metrics_add(m, TRAIN_METRIC_CONTINUED_TOKENS, continued_tokens / continued, continued);
}

static const void *field(const train__grpo *g, const ravel_micro_batch *micro, const char *name) {
    int64_t index = ravel_feed_find(g->feed, name);
    RAVEL_ASSERT(index <= TRAIN_FIELDS + 1);
    return index < 0 ? NULL : micro->thd->fields[index];
}

static ravel_status begin_old(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                              ravel_error *err) {
    const train__grpo *g = user;
    (void)loss, (void)err;
    if (g->config->grpo.replay == TRAIN_REPLAY_ROLLOUT) train__grpo_routes_give(g, micro, batch);
    return RAVEL_OK;
}

static ravel_status take_old(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                             ravel_error *err) {
    train__grpo *g = user;
    return train_scores_take(&g->old, micro, batch, logprob, err);
}

/* The log-probs of all updates of the batch but the first, before any of them is applied. The feed plans the same
 * samples twice, and so gives the same micro-batches when they are learnt. The first update needs nothing: its old
 * log-probs are those of its own pass. */
static ravel_status score_later_updates(train__grpo *g, ravel_error *err) {
    const ravel_feed_update *update;
    train_work work = {.begin = begin_old, .take = take_old, .user = g, .temperature = g->config->grpo.temperature};
    if (g->config->grpo.replay == TRAIN_REPLAY_FIRST) work.routed = train__grpo_routes_take;
    g->routes.used = g->routes.count = 0;
    ravel_status status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    train_scores_clear(&g->old);
    RAVEL_ASSERT(g->config->grpo.updates > 1 && g->old_by_trainer);
    for (int32_t u = 0; u < g->config->grpo.updates && !status; u++) {
        status = ravel_feed_next(g->feed, &update, err);
        if (status || u == 0) continue;
        g->old.update = update->update_in_batch;
        status = train_parts_score(train_learner_parts(g->learner), g->feed, update->mine.micro_steps, &work, err);
    }
    return status;
}

/* A teacher behind a server scores the batch: on leaders, for the ranks that learn from the same samples. */
static ravel_status ask_teacher(train__grpo *g, ravel_error *err) {
    if (!g->batch.with_teacher) return RAVEL_OK;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_REFERENCE, NULL);
    ravel_status status = g->leaders ? train_teacher_score(g->taught, &g->batch, err) : RAVEL_OK;
    status = ravel_agree(g->trainers, status, err);
    if (!status && g->batch.tokens)
        status = ravel_comm_broadcast(g->replica, g->batch.taught, g->batch.tokens, RAVEL_F32, 0, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_REFERENCE, NULL);
    return status;
}

ravel_status train__grpo_prepare(train__grpo *g, ravel_error *err) {
    ravel_metrics *m = g->run.metrics;
    ravel_status taught = ask_teacher(g, err);
    if (taught) return taught;
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ADVANTAGE, NULL);
    train_experience_advantages(&g->batch, &g->config->policy);
    if (train_config_distils(g->config)) train_experience_forget_advantages(&g->batch);
    if (g->leaders) {
        count_rollouts(g);
        count_ages(g);
    }
    ravel_status status =
        train_experience_cut(&g->batch, ravel_mesh_comm(g->mesh, RAVEL_AXIS_DP), g->config->grpo.updates, err);
    if (!status && g->old_by_trainer && g->config->grpo.updates > 1) status = score_later_updates(g, err);
    if (!status) status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_ADVANTAGE, NULL);
    return status;
}

/* ---- a micro-batch -------------------------------------------------------------------------------------- */

/* Which log-probs are the trainer's under the weights that generated: the old ones, or those of the first update where
 * generation was not ahead. */
static train_gap gap_of(const train__grpo *g) {
    if (g->old_by_trainer) return TRAIN_GAP_OLD;
    return g->update == 0 && !g->config->grpo.async ? TRAIN_GAP_NOW : TRAIN_GAP_NONE;
}

static int has_reference(const train__grpo *g) {
    return g->config->policy.kl > 0;
}

/* The teacher's likeliest tokens of a micro-batch, beside its log-probs. */
static ravel_status take_top(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                             ravel_error *err) {
    train__grpo *g = user;
    int64_t count = micro->thd->local_tokens * g->config->grpo.teacher_topk;
    RAVEL_ASSERT(count <= g->picked_room);
    ravel_status status = train_scores_take(&g->reference_scores, micro, batch, logprob, err);
    if (!status) status = train_scores_keep(&g->top_ids, micro->step, g->picked_ids, count, err);
    return status ? status : train_scores_keep(&g->top_logprob, micro->step, g->picked_logprob, count, err);
}

/* The reference's log-probs of the update's micro-batches. */
static ravel_status score_reference(train__grpo *g, int64_t micros, ravel_error *err) {
    train_work work = {
        .take = train_scores_take, .user = &g->reference_scores, .temperature = g->config->grpo.temperature};
    if (!has_reference(g) || g->batch.with_teacher) return RAVEL_OK;
    train_parts *trained = train_learner_parts(g->learner);
    train_scores_clear(&g->reference_scores);
    train_scores_clear(&g->top_ids);
    train_scores_clear(&g->top_logprob);
    if (g->config->grpo.teacher_topk) {
        work.take = take_top;
        work.user = g;
        work.top_ids = g->picked_ids;
        work.top_logprob = g->picked_logprob;
    }
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_REFERENCE, NULL);
    if (!g->reference) train_parts_set_adapter(trained, 0);
    ravel_status status = train_parts_score(g->reference ? g->reference : trained, g->feed, micros, &work, err);
    if (!g->reference) train_parts_set_adapter(trained, 1);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_REFERENCE, NULL);
    return status;
}

/* The ratio is against these; NULL: against the pass itself, so it is exactly 1. */
static const float *old_of(const train__grpo *g, const ravel_micro_batch *micro) {
    if (!g->old_by_trainer) return field(g, micro, "generator");
    return g->update == 0 ? NULL : train_scores_at(&g->old, g->update, micro->step);
}

static ravel_status begin_micro(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                                ravel_error *err) {
    train__grpo *g = user;
    (void)err;
    train__grpo_routes_give(g, micro, batch);
    if (!loss) return RAVEL_OK; /* it is counted */
    *loss = (train_loss){.policy = train_policy_terms_of(&g->config->policy, gap_of(g), g->config->grpo.entropy),
                         .old = old_of(g, micro),
                         .generator = field(g, micro, "generator"),
                         .reference = g->batch.with_teacher ? field(g, micro, "teacher")
                                      : has_reference(g)    ? train_scores_at(&g->reference_scores, 0, micro->step)
                                                            : NULL,
                         .advantages = field(g, micro, "advantage"),
                         .entropy = 1};
    if (g->config->grpo.teacher_topk) { /* in the place of the estimate from the drawn token */
        loss->reference = NULL;
        loss->policy.kl = 0;
        loss->top_ids = (int32_t *)(void *)train_scores_at(&g->top_ids, 0, micro->step);
        loss->top_logprob = (float *)(void *)train_scores_at(&g->top_logprob, 0, micro->step);
        loss->top_weight = g->config->policy.kl;
    }
    return RAVEL_OK;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static void add_correction(train__grpo *g, const train_loss_sums *s) {
    ravel_metrics *m = g->run.metrics;
    double n = s->corrected;
    int masked = train_policy_terms_of(&g->config->policy, TRAIN_GAP_NONE, 0).correction.masked;
    if (n <= 0) return;
    RAVEL_ASSERT(s->outside <= n * (1 + 1e-9));
    (void)ravel_metrics_add(m, TRAIN_METRIC_CORRECTION_MEAN, s->weight / n, n);
    double square = s->weight * s->weight;
    (void)ravel_metrics_add(m, TRAIN_METRIC_CORRECTION_ESS, square > 0 ? square / (n * s->weight_square) : 0, n);
    (void)ravel_metrics_add(m, TRAIN_METRIC_CORRECTION_CHI2, s->raw_square / n - 1, n);
    (void)ravel_metrics_add(m, masked ? TRAIN_METRIC_CORRECTION_DROPPED : TRAIN_METRIC_CORRECTION_TRUNCATED,
                            s->outside / n, n);
}

static void add_figures(train__grpo *g) {
    ravel_metrics *m = g->run.metrics;
    const train_loss_sums *s = train_learner_sums(g->learner);
    double n = s->tokens;
    RAVEL_ASSERT(n >= 0 && s->gap_tokens <= n && s->clipped <= n);
    (void)ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, s->loss, 1);
    if (n <= 0) return;
    (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_RATIO_MEAN, s->ratio / n, n);
    (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_RATIO_MAX, s->ratio_max, 1);
    (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_APPROX_KL, s->approx_kl / n, n);
    (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_CLIP_SHARE, s->clipped / n, n);
    if (s->gap_tokens > 0) {
        (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_GAP_MEAN, s->gap / s->gap_tokens, s->gap_tokens);
        (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_GAP_MAX, s->gap_max, 1);
        (void)ravel_metrics_add(m, RAVEL_METRIC_TOKEN_MULT_PROB_ERROR, s->gap_exp / s->gap_tokens, s->gap_tokens);
    }
    add_correction(g, s);
    if (has_reference(g)) (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_KL_REF, s->kl / n, n);
    (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_ENTROPY, s->entropy / n, n);
}

ravel_status train__grpo_update(train__grpo *g, ravel_error *err) {
    const ravel_feed_update *update;
    train_work work = {.begin = begin_micro, .user = g, .temperature = g->config->grpo.temperature};
    train_parts_time time;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    ravel_status status = ravel_feed_next(g->feed, &update, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    if (status) return status;
    train_metrics_add_update(g->run.metrics, g->mesh, update, train_config_sync(g->config));
    g->update = update->update_in_batch;
    RAVEL_ASSERT(g->update >= 0 && g->update < g->config->grpo.updates);
    train_learner_begin(g->learner);
    status = score_reference(g, update->mine.micro_steps, err);
    if (!status)
        status = train_parts_learn(train_learner_parts(g->learner), g->feed, update->mine.micro_steps, &work,
                                   g->run.metrics, &time, err);
    if (!status) status = train_run_apply(&g->run, g->learner, err);
    int changed = 0;
    if (!status) status = train_timeline_add(&g->run, g->mesh, &time, err);
    if (!status)
        status = train_cost_add(&g->cost, g->config, &g->run, g->mesh, g->feed, train_learner_parts(g->learner),
                                &changed, err);
    if (status) return status;
    g->new_cost |= changed;
    train_metrics_add_time(g->run.metrics, g->mesh, &time);
    train_metrics_add_router(g->run.metrics, train_learner_parts(g->learner));
    add_figures(g);
    return RAVEL_OK;
}
