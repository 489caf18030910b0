/* From answers to optimiser steps. */
#include "train/run/grpo_internal.h"

/* ---- the batch ------------------------------------------------------------------------------------------ */

static void count_rollouts(train__grpo *g) {
    const train_experience *x = &g->batch;
    ravel_metrics_rollouts rollouts = {.size = sizeof rollouts,
                                       .count = x->count,
                                       .rewards = x->rewards,
                                       .groups = x->groups,
                                       .responses = x->responses,
                                       .truncated = x->truncated,
                                       .staleness = x->staleness};
    int64_t tokens = 0;
    for (int64_t i = 0; i < x->count; i++) tokens += x->responses[i];
    ravel_metrics_add_rollouts(g->run.metrics, &rollouts);
    (void)ravel_metrics_count(g->run.metrics, RAVEL_METRIC_ROLLOUT_TOKENS, tokens);
}

static ravel_status old_and_reference(train__grpo *g, ravel_error *err) {
    const train_config *c = g->config;
    double temperature = c->grpo.temperature;
    ravel_status status = RAVEL_OK;
    if (g->recompute_old)
        status = train_experience_logprobs(&g->batch, train_learner_model(g->learner), c->plan.budget, temperature,
                                           g->batch.old, err);
    if (!status && g->reference)
        status = train_experience_logprobs(&g->batch, train_reference_model(g->reference), c->plan.budget, temperature,
                                           g->batch.reference, err);
    return status;
}

ravel_status train__grpo_prepare(train__grpo *g, ravel_error *err) {
    ravel_metrics *m = g->run.metrics;
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ADVANTAGE, NULL);
    train_experience_advantages(&g->batch, &g->config->policy);
    count_rollouts(g);
    ravel_status status = ravel_agree(g->trainers, old_and_reference(g, err), err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_ADVANTAGE, NULL);
    if (!status) status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    return status;
}

/* ---- a micro-batch -------------------------------------------------------------------------------------- */

static const void *field(const train__grpo *g, const ravel_micro_batch *micro, const char *name) {
    int64_t index = ravel_feed_find(g->feed, name);
    return index < 0 ? NULL : micro->thd->fields[index];
}

/* Which log-probs are the trainer's under the weights that generated: worked out before the batch, or those of its first
 * update where generation was not ahead. */
static train_gap gap_of(const train__grpo *g) {
    if (g->recompute_old) return TRAIN_GAP_OLD;
    return g->first_update && !g->config->grpo.async ? TRAIN_GAP_NOW : TRAIN_GAP_NONE;
}

static ravel_status learn_micro(train__grpo *g, const ravel_micro_batch *micro, ravel_error *err) {
    train_batch batch;
    train_model *model = train_learner_model(g->learner);
    if (micro->filler) return RAVEL_OK;
    ravel_status status = train_learner_batch(g->learner, micro, &batch, err);
    if (status) return status;
    batch.temperature = g->config->grpo.temperature;
    train_loss loss = {.policy = train_policy_terms_of(&g->config->policy, gap_of(g), g->config->grpo.entropy),
                       .old = field(g, micro, "old"),
                       .generator = field(g, micro, "generator"),
                       .reference = g->reference ? field(g, micro, "reference") : NULL,
                       .advantages = field(g, micro, "advantage"),
                       .entropy = 1};
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FORWARD, NULL);
    status = train_model_learn_forward(model, &batch, &loss, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_FORWARD, NULL);
    if (status) return status;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_BACKWARD, NULL);
    status = train_model_learn_backward(model, NULL, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_BACKWARD, NULL);
    return status;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static void add_figures(train__grpo *g) {
    ravel_metrics *m = g->run.metrics;
    const train_loss_sums *s = train_learner_sums(g->learner);
    double n = s->tokens;
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
    ravel_micro_batch micro;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    ravel_status status = ravel_feed_next(g->feed, &update, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    if (status) return status;
    train_metrics_add_update(g->run.metrics, update);
    g->first_update = update->update_in_batch == 0;
    train_learner_begin(g->learner);
    ravel_feed_iter iter = ravel_feed_iterate(g->feed, 0);
    while (!status && ravel_feed_iter_next(&iter, &micro)) status = learn_micro(g, &micro, err);
    status = ravel_agree(g->trainers, status, err);
    if (!status) status = train_run_apply(&g->run, g->learner, err);
    if (!status) add_figures(g);
    return status;
}
