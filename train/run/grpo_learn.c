/* From answers to optimiser steps. */
#include "train/run/grpo_internal.h"

#include "train/kernels/host.h"

#include <string.h>

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
    ravel_metrics_add_rollouts(g->run.metrics, &rollouts);
}

static const void *field(const train__grpo *g, const ravel_micro_batch *micro, const char *name) {
    int64_t index = ravel_feed_find(g->feed, name);
    return index < 0 ? NULL : micro->thd->fields[index];
}

static ravel_status make_batch(train__grpo *g, const ravel_micro_batch *micro, train_batch *batch, ravel_error *err) {
    ravel_status status = train_learner_batch(g->learner, micro, batch, err);
    batch->temperature = g->config->grpo.temperature;
    return status;
}

static ravel_status grow_old(train__grpo *g, int64_t more, ravel_error *err) {
    if (g->old_used + more <= g->old_room) return RAVEL_OK;
    int64_t room = 2 * (g->old_used + more);
    float *grown = train__alloc(NULL, (size_t)room * sizeof *grown);
    if (!grown) return train__no_memory(err, (size_t)room * sizeof *grown, "old log-probs");
    if (g->old_used) memcpy(grown, g->old, (size_t)g->old_used * sizeof *grown);
    train__release(NULL, g->old, (size_t)g->old_room * sizeof *g->old);
    g->old = grown;
    g->old_room = room;
    return RAVEL_OK;
}

static ravel_status score_micro(train__grpo *g, const ravel_micro_batch *micro, ravel_error *err) {
    train_batch batch;
    int64_t tokens = micro->thd->local_tokens;
    if (micro->filler) return RAVEL_OK;
    ravel_status status = make_batch(g, micro, &batch, err);
    if (!status) status = grow_old(g, tokens, err);
    if (status) return status;
    train_result result = {.logprob = g->old + g->old_used};
    g->old_used += tokens;
    return train_model_score(train_learner_model(g->learner), &batch, &result, err);
}

/* The log-probs of all updates of the batch but the first, before any of them is applied. The feed plans the same samples
 * twice, and so gives the same micro-batches in the same order when they are learnt. The first update needs nothing: its
 * old log-probs are those of its own pass. */
static ravel_status score_later_updates(train__grpo *g, ravel_error *err) {
    const ravel_feed_update *update;
    ravel_micro_batch micro;
    ravel_status status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    g->old_used = 0;
    for (int32_t u = 0; u < g->config->grpo.updates && !status; u++) {
        status = ravel_feed_next(g->feed, &update, err);
        if (status || u == 0) continue;
        ravel_feed_iter iter = ravel_feed_iterate(g->feed, 0);
        while (!status && ravel_feed_iter_next(&iter, &micro)) status = score_micro(g, &micro, err);
        status = ravel_agree(g->trainers, status, err);
    }
    g->old_used = 0; /* read from the beginning */
    return status;
}

ravel_status train__grpo_prepare(train__grpo *g, ravel_error *err) {
    ravel_metrics *m = g->run.metrics;
    ravel_status status = RAVEL_OK;
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ADVANTAGE, NULL);
    train_experience_advantages(&g->batch, &g->config->policy);
    count_rollouts(g);
    if (g->old_by_trainer && g->config->grpo.updates > 1) status = score_later_updates(g, err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_ADVANTAGE, NULL);
    if (!status) status = ravel_feed_submit(g->feed, train_experience_samples(&g->batch), err);
    return status;
}

/* ---- a micro-batch -------------------------------------------------------------------------------------- */

/* Which log-probs are the trainer's under the weights that generated: the old ones, or those of the first update where
 * generation was not ahead. */
static train_gap gap_of(const train__grpo *g) {
    if (g->old_by_trainer) return TRAIN_GAP_OLD;
    return g->first_update && !g->config->grpo.async ? TRAIN_GAP_NOW : TRAIN_GAP_NONE;
}

/* The reference's log-probs of the same batch; NULL without a reference. */
static ravel_status score_reference(train__grpo *g, const train_batch *batch, const float **logprobs,
                                    ravel_error *err) {
    size_t bytes = (size_t)g->config->plan.budget * sizeof *g->reference_logprobs;
    *logprobs = NULL;
    if (!g->reference) return RAVEL_OK;
    if (!g->reference_logprobs) g->reference_logprobs = train__alloc(NULL, bytes);
    if (!g->reference_logprobs) return train__no_memory(err, bytes, "log-probs of the reference");
    train_result result = {.logprob = g->reference_logprobs};
    *logprobs = g->reference_logprobs;
    return train_model_score(train_reference_model(g->reference), batch, &result, err);
}

/* The ratio is against these; NULL: against the pass itself, so it is exactly 1. */
static const float *old_of(train__grpo *g, const ravel_micro_batch *micro) {
    if (!g->old_by_trainer) return field(g, micro, "generator");
    if (g->first_update) return NULL;
    const float *old = g->old + g->old_used;
    g->old_used += micro->thd->local_tokens;
    return old;
}

static ravel_status learn_micro(train__grpo *g, const ravel_micro_batch *micro, ravel_error *err) {
    train_batch batch;
    const float *reference;
    train_model *model = train_learner_model(g->learner);
    if (micro->filler) return RAVEL_OK;
    ravel_status status = make_batch(g, micro, &batch, err);
    if (status) return status;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FORWARD, NULL);
    status = score_reference(g, &batch, &reference, err);
    train_loss loss = {.policy = train_policy_terms_of(&g->config->policy, gap_of(g), g->config->grpo.entropy),
                       .old = old_of(g, micro),
                       .generator = field(g, micro, "generator"),
                       .reference = reference,
                       .advantages = field(g, micro, "advantage"),
                       .entropy = 1};
    if (!status) status = train_model_learn_forward(model, &batch, &loss, err);
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
