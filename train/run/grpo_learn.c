/* From answers to optimiser steps. */
#include "train/run/grpo_internal.h"

#include "train/kernels/assert.h"
#include "train/run/timeline.h"

/* ---- the batch ------------------------------------------------------------------------------------------ */

static void count_rollouts(train__grpo *g) {
    const train_experience *x = &g->batch;
    TRAIN_ASSERT(x->count >= 0 && (x->count == 0 || (x->rewards && x->groups)));
    ravel_metrics_rollouts rollouts = {.size = sizeof rollouts,
                                       .count = x->count,
                                       .rewards = x->rewards,
                                       .groups = x->groups,
                                       .responses = x->responses,
                                       .truncated = x->truncated,
                                       .staleness = x->staleness};
    ravel_metrics_add_rollouts(g->run.metrics, &rollouts);
}

static const void *field(const train__grpo *g, const ravel_micro_batch *micro, const char *name) {
    int64_t index = ravel_feed_find(g->feed, name);
    TRAIN_ASSERT(index < TRAIN_FIELDS);
    return index < 0 ? NULL : micro->thd->fields[index];
}

/* The log-probs of all updates of the batch but the first, before any of them is applied. The feed plans the same samples
 * twice, and so gives the same micro-batches when they are learnt. The first update needs nothing: its old log-probs are
 * those of its own pass. */
static ravel_status score_later_updates(train__grpo *g, ravel_error *err) {
    const ravel_feed_update *update;
    train_work work = {.take = train_scores_take, .user = &g->old, .temperature = g->config->grpo.temperature};
    ravel_status status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    train_scores_clear(&g->old);
    TRAIN_ASSERT(g->config->grpo.updates > 1 && g->old_by_trainer);
    for (int32_t u = 0; u < g->config->grpo.updates && !status; u++) {
        status = ravel_feed_next(g->feed, &update, err);
        if (status || u == 0) continue;
        g->old.update = update->update_in_batch;
        status = train_parts_score(train_learner_parts(g->learner), g->feed, update->mine.micro_steps, &work, err);
    }
    return status;
}

ravel_status train__grpo_prepare(train__grpo *g, ravel_error *err) {
    ravel_metrics *m = g->run.metrics;
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ADVANTAGE, NULL);
    train_experience_advantages(&g->batch, &g->config->policy);
    if (g->leaders) count_rollouts(g);
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

/* The reference's log-probs of the update's micro-batches. */
static ravel_status score_reference(train__grpo *g, int64_t micros, ravel_error *err) {
    train_work work = {
        .take = train_scores_take, .user = &g->reference_scores, .temperature = g->config->grpo.temperature};
    if (!g->reference) return RAVEL_OK;
    train_scores_clear(&g->reference_scores);
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_REFERENCE, NULL);
    ravel_status status = train_parts_score(g->reference, g->feed, micros, &work, err);
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
    (void)batch, (void)err;
    *loss = (train_loss){.policy = train_policy_terms_of(&g->config->policy, gap_of(g), g->config->grpo.entropy),
                         .old = old_of(g, micro),
                         .generator = field(g, micro, "generator"),
                         .reference = g->reference ? train_scores_at(&g->reference_scores, 0, micro->step) : NULL,
                         .advantages = field(g, micro, "advantage"),
                         .entropy = 1};
    return RAVEL_OK;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static void add_figures(train__grpo *g) {
    ravel_metrics *m = g->run.metrics;
    const train_loss_sums *s = train_learner_sums(g->learner);
    double n = s->tokens;
    TRAIN_ASSERT(n >= 0 && s->gap_tokens <= n && s->clipped <= n);
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
    if (g->config->policy.tis > 0) {
        (void)ravel_metrics_add(m, TRAIN_METRIC_TIS_MEAN, s->tis / n, n);
        (void)ravel_metrics_add(m, TRAIN_METRIC_TIS_CAPPED, s->tis_capped / n, n);
    }
    if (g->reference) (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_KL_REF, s->kl / n, n);
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
    TRAIN_ASSERT(g->update >= 0 && g->update < g->config->grpo.updates);
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
    add_figures(g);
    return RAVEL_OK;
}
