/* The four ways to run a batch. */
#include "train/model/model_internal.h"

static ravel_status training_only(const train_model *m, const char *call, ravel_error *err) {
    if (!m->options.inference) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "%s needs gradients, and this model was made with `inference`", call);
}

/* Everything that reads the staged batch has been called; says whether a communicator failed meanwhile. */
static ravel_status done(train_model *m, ravel_error *err) {
    train__staging_release(&m->staging);
    m->net.kernels->phase(m->net.device, TRAIN_PHASE_OTHER);
    return train__link_status(&m->tp, err);
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* Numbers of scored rows, on the device, to the caller's array by place. */
static void download(train_model *m, float *by_place, const train_real *numbers) {
    for (int64_t t = 0; t < m->ragged.tokens; t++) by_place[t] = 0;
    m->net.kernels->download(m->net.device, m->numbers, numbers, (size_t)m->scored * sizeof *numbers);
    for (int64_t i = 0; i < m->scored; i++) by_place[m->places[i]] = m->numbers[i];
}

static ravel_status report(train_model *m, train_result *r, ravel_error *err) {
    double loss = 0;
    if (r->entropy) download(m, r->entropy, m->kept.entropy);
    m->net.kernels->download(m->net.device, m->numbers, m->kept.logprob, (size_t)m->scored * sizeof(train_real));
    for (int64_t i = 0; i < m->scored; i++)
        loss -= (m->batch.weights ? (double)m->batch.weights[m->places[i]] : 1) * (double)m->numbers[i];
    if (r->logprob) download(m, r->logprob, m->kept.logprob);
    r->loss = loss;
    r->scored = m->scored;
    return m->net.kernels->sync(m->net.device, err);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static ravel_status score(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    train__head head = {.mode = TRAIN__HEAD_SCORE, .entropy = result->entropy != NULL};
    ravel_status status = train__model_stage(m, batch, &(train__extra){0}, err);
    if (status) return status;
    if (m->scored) train__model_layers(m);
    train__model_head(m, &head);
    return RAVEL_OK;
}

ravel_status train_model_score(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    ravel_status status = score(m, batch, result, err);
    if (!status) status = done(m, err);
    return status ? status : report(m, result, err);
}

/* One ratio per sample needs all its log-probs first: they are made, reduced, and the logits made again. */
static void learn_by_sequence(train_model *m, const train__head *learn) {
    const train__net *n = &m->net;
    train__head head = *learn;
    head.mode = TRAIN__HEAD_SCORE;
    train__model_head(m, &head);
    train_loss_rows rows = train__model_loss_rows(m, &head, 0, m->scored);
    n->kernels->zero(n->device, m->kept.sequences, (size_t)m->batch.samples * sizeof *m->kept.sequences);
    n->kernels->sequence_sums(n->device, &rows, m->kept.sequences);
    n->kernels->loss(n->device, &rows);
    head.mode = TRAIN__HEAD_BACK;
    train__model_head(m, &head);
}

ravel_status train_model_learn_forward(train_model *m, const train_batch *batch, const train_loss *loss,
                                       ravel_error *err) {
    train__extra extra = {.negative_weights = !loss};
    if (loss) extra = (train__extra){loss->old, loss->generator, loss->reference, loss->advantages, 0};
    ravel_status status = training_only(m, "train_model_learn", err);
    if (!status) status = train__model_stage(m, batch, &extra, err);
    if (status) return status;
    m->loss = loss;
    m->learn_begun = 1;
    if (m->scored) train__model_layers(m); /* else a filler */
    return RAVEL_OK;
}

ravel_status train_model_learn_backward(train_model *m, train_result *result, ravel_error *err) {
    const train_loss *loss = m->loss;
    train__head head = {.mode = TRAIN__HEAD_LEARN,
                        .entropy = result && result->entropy,
                        .coef = m->kept.coef,
                        .entropy_coefs = m->kept.entropy_coef};
    if (!m->learn_begun)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "train_model_learn_backward needs a train_model_learn_forward just before it");
    m->learn_begun = 0;
    if (loss) {
        head.policy = &loss->policy;
        head.entropy_coef = loss->policy.entropy != 0;
        head.entropy |= loss->entropy || head.entropy_coef;
    }
    if (m->scored) {
        if (loss && loss->policy.sequence)
            learn_by_sequence(m, &head);
        else
            train__model_head(m, &head);
        train__model_layers_backward(m);
    }
    ravel_status status = done(m, err);
    return status || !result ? status : report(m, result, err);
}

ravel_status train_model_learn(train_model *m, const train_batch *batch, const train_loss *loss, train_result *result,
                               ravel_error *err) {
    ravel_status status = train_model_learn_forward(m, batch, loss, err);
    return status ? status : train_model_learn_backward(m, result, err);
}

ravel_status train_model_forward(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    ravel_status status = training_only(m, "train_model_forward", err);
    if (!status) status = score(m, batch, result, err);
    if (!status) status = train__link_status(&m->tp, err);
    if (!status) status = report(m, result, err);
    if (status) return status;
    m->forward_kept = 1;
    m->entropy_kept = result->entropy != NULL;
    return RAVEL_OK;
}

ravel_status train_model_backward(train_model *m, const float *coef, const float *entropy_coef, ravel_error *err) {
    if (!m->forward_kept)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "train_model_backward needs a train_model_forward just before it, once for each");
    if (entropy_coef && !m->entropy_kept)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "entropy coefficients need entropies: set result.entropy in train_model_forward");
    m->forward_kept = 0;
    if (m->scored) {
        train__model_stage_coefs(m, coef, entropy_coef);
        train__head head = {.mode = TRAIN__HEAD_BACK,
                            .entropy = entropy_coef != NULL,
                            .entropy_coef = entropy_coef != NULL,
                            .coef = m->staged.coef,
                            .entropy_coefs = m->staged.entropy_coef};
        train__model_head(m, &head);
        train__model_layers_backward(m);
    }
    ravel_status status = done(m, err);
    return status ? status : m->net.kernels->sync(m->net.device, err);
}
