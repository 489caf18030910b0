/* From answers to optimiser steps. */
#include "train/run/grpo_internal.h"

#include "train/kernels/host.h"

#include <math.h>
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

/* The arrays of a micro-batch as the loss wants them, all at the tokens themselves. */
typedef struct view {
    train__grpo *g;
    const float *weights, *generator, *old, *reference, *advantage;
    const int32_t *starts; /* [samples + 1] slots */
    int32_t samples, at;   /* sample that the hook has come to */
    int32_t phase;
    double entropy, entropy_tokens;
} view;

static const void *field(const train__grpo *g, const ravel_micro_batch *micro, const char *name) {
    int64_t index = ravel_feed_find(g->feed, name);
    return index < 0 ? NULL : micro->thd->fields[index];
}

/* From forward to backward, for the phase timers. */
static void begin_backward(view *v) {
    ravel_metrics *m = v->g->run.metrics;
    if (v->phase != RAVEL_PHASE_FORWARD) return;
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_FORWARD, NULL);
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_BACKWARD, NULL);
    v->phase = RAVEL_PHASE_BACKWARD;
}

/* The trainer's log-probs under the weights that generated: worked out before the batch, or those of its first update
 * where generation was not ahead. */
static const float *trainer_of(const train__grpo *g, const float *now, const float *old) {
    if (g->recompute_old) return old;
    return g->first_update && !g->config->grpo.async ? now : NULL;
}

/* Counts a token's entropy; returns d(loss)/d(entropy), the bonus being minus a loss. */
static float add_entropy(view *v, double entropy, double weight) {
    v->entropy += entropy;
    v->entropy_tokens += 1;
    return (float)(-v->g->config->grpo.entropy * weight);
}

/* Scored tokens i .. j-1 are all of sample v->at: gather, and let the policy say. */
static void one_run(view *v, const train_scored *s, int64_t i, int64_t j) {
    enum { MOST = 256 };
    const train_policy *policy = &v->g->config->policy;
    float old[MOST], generator[MOST], reference[MOST], weights[MOST];
    for (; i < j; i += MOST) {
        int64_t n = train__min(MOST, j - i);
        for (int64_t k = 0; k < n; k++) {
            int32_t place = s->places[i + k];
            old[k] = v->old[place];
            generator[k] = v->generator[place];
            reference[k] = v->reference[place];
            weights[k] = v->weights[place];
        }
        train_policy_loss(policy, n, (double)v->advantage[v->at], s->logprob + i, old, generator,
                          trainer_of(v->g, s->logprob + i, old), v->g->reference ? reference : NULL, weights,
                          s->coef + i, &v->g->sums);
    }
}

static ravel_status token_hook(void *user, const train_scored *s, ravel_error *err) {
    view *v = user;
    (void)err;
    begin_backward(v);
    for (int64_t i = 0, j; i < s->count; i = j) {
        while (v->at + 1 < v->samples && s->places[i] >= v->starts[v->at + 1]) v->at++;
        int32_t end = v->starts[v->at + 1];
        for (j = i + 1; j < s->count && s->places[j] < end;) j++;
        one_run(v, s, i, j);
    }
    for (int64_t i = 0; i < s->count; i++)
        s->entropy_coef[i] = add_entropy(v, (double)s->entropy[i], (double)v->weights[s->places[i]]);
    return RAVEL_OK;
}

/* One ratio a sample needs all its log-probs first: forward, loss, backward. */
static ravel_status by_sequence(train__grpo *g, view *v, const train_batch *batch, const ravel_micro_batch *micro,
                                ravel_error *err) {
    const train__rows *rows = &g->rows;
    train_result result = {.logprob = rows->logprob, .entropy = rows->entropy};
    train_model *model = train_learner_model(g->learner);
    ravel_status status = train_model_forward(model, batch, &result, err);
    if (status) return status;
    begin_backward(v);
    memset(rows->coef, 0, (size_t)micro->thd->local_tokens * sizeof *rows->coef);
    for (int32_t i = 0; i < v->samples; i++) {
        int64_t at = v->starts[i], n = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
        train_policy_loss(&g->config->policy, n, (double)v->advantage[i], rows->logprob + at, v->old + at,
                          v->generator + at, trainer_of(g, rows->logprob + at, v->old + at),
                          g->reference ? v->reference + at : NULL, v->weights + at, rows->coef + at, &g->sums);
    }
    for (int64_t t = 0; t < micro->thd->local_tokens; t++)
        rows->entropy_coef[t] =
            v->weights[t] != 0 ? add_entropy(v, (double)rows->entropy[t], (double)v->weights[t]) : 0;
    return train_model_backward(model, rows->coef, g->config->grpo.entropy > 0 ? rows->entropy_coef : NULL, err);
}

static ravel_status learn_micro(train__grpo *g, const ravel_micro_batch *micro, view *v, ravel_error *err) {
    train_batch batch;
    if (micro->filler) return RAVEL_OK;
    ravel_status status = train_learner_batch(g->learner, micro, &batch, err);
    if (status) return status;
    batch.temperature = g->config->grpo.temperature;
    v->weights = batch.weights;
    v->generator = field(g, micro, "generator");
    v->old = field(g, micro, "old");
    v->reference = field(g, micro, "reference");
    v->advantage = field(g, micro, "advantage");
    v->starts = batch.cu_seqlens_padded;
    v->samples = batch.samples;
    v->at = 0;
    v->phase = RAVEL_PHASE_FORWARD;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FORWARD, NULL);
    if (g->config->policy.ratio == TRAIN_RATIO_SEQUENCE) {
        status = by_sequence(g, v, &batch, micro, err);
    } else {
        train_result result = {0};
        train_loss loss = {.call = token_hook, .user = v, .entropy = 1};
        status = train_model_learn(train_learner_model(g->learner), &batch, &loss, &result, err);
    }
    (void)ravel_metrics_phase_end(g->run.metrics, (ravel_phase)v->phase, NULL);
    return status;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static void add_figures(train__grpo *g, const view *v) {
    ravel_metrics *m = g->run.metrics;
    const train_policy_sums *s = &g->sums;
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
    if (v->entropy_tokens > 0)
        (void)ravel_metrics_add(m, RAVEL_METRIC_POLICY_ENTROPY, v->entropy / v->entropy_tokens, v->entropy_tokens);
}

ravel_status train__grpo_update(train__grpo *g, ravel_error *err) {
    const ravel_feed_update *update;
    ravel_micro_batch micro;
    view v = {.g = g};
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    ravel_status status = ravel_feed_next(g->feed, &update, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_FEED, NULL);
    if (status) return status;
    train_metrics_add_update(g->run.metrics, update);
    g->first_update = update->update_in_batch == 0;
    memset(&g->sums, 0, sizeof g->sums);
    train_learner_begin(g->learner);
    ravel_feed_iter iter = ravel_feed_iterate(g->feed, 0);
    while (!status && ravel_feed_iter_next(&iter, &micro)) status = learn_micro(g, &micro, &v, err);
    status = ravel_agree(g->trainers, status, err);
    if (!status) status = train_run_apply(&g->run, g->learner, err);
    if (!status) add_figures(g, &v);
    return status;
}
