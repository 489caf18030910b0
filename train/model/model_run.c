/* The four ways to run a batch. */
#include "train/model/model_internal.h"

#include <stddef.h>

static int wants_entropy(const train_result *result) {
    return result->entropy != NULL;
}

static ravel_status training_only(const train_model *m, const char *call, ravel_error *err) {
    if (!m->options.inference) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "%s needs gradients, and this model was made with `inference`", call);
}

static ravel_status finish(train_model *m, ravel_error *err) {
    return m->net.kernels->sync(m->net.device, err);
}

ravel_status train_model_score(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    train__head head = {.mode = TRAIN__HEAD_SCORE, .entropy = wants_entropy(result), .result = result};
    ravel_status status = train__model_prepare(m, batch, err);
    if (status) return status;
    if (m->scored) train__model_layers(m);
    status = train__model_head(m, &head, err);
    return status ? status : finish(m, err);
}

/* Without a hook the coefficients are known beforehand: d(-weight * logprob). */
static void upload_weights(train_model *m) {
    float *coef = m->staging.coef;
    for (int64_t i = 0; i < m->scored; i++) coef[i] = m->batch.weights ? -m->batch.weights[m->staging.places[i]] : -1;
    m->net.kernels->upload(m->net.device, m->tables.coef, coef, (size_t)m->scored * sizeof *coef);
}

ravel_status train_model_learn(train_model *m, const train_batch *batch, const train_loss *loss, train_result *result,
                               ravel_error *err) {
    ravel_status status = training_only(m, "train_model_learn", err);
    if (!status) status = train__model_prepare(m, batch, err);
    if (status) return status;
    train__head head = {.mode = TRAIN__HEAD_LEARN, .loss = loss, .result = result};
    head.entropy = wants_entropy(result) || (loss && loss->entropy);
    if (m->scored == 0) head.mode = TRAIN__HEAD_SCORE; /* a filler: only the empty report */
    if (m->scored) train__model_layers(m);
    if (!loss) upload_weights(m);
    status = train__model_head(m, &head, err);
    if (!status && m->scored) train__model_layers_backward(m);
    return status ? status : finish(m, err);
}

ravel_status train_model_forward(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    ravel_status status = training_only(m, "train_model_forward", err);
    if (!status) status = train_model_score(m, batch, result, err);
    if (status) return status;
    m->forward_kept = 1;
    m->entropy_kept = wants_entropy(result);
    return RAVEL_OK;
}

/* The caller's coefficients, by place, to the order of scored rows. */
static void upload_coefs(train_model *m, train_real *block, const float *by_place) {
    float *coef = m->staging.coef;
    for (int64_t i = 0; i < m->scored; i++) coef[i] = by_place[m->staging.places[i]];
    m->net.kernels->upload(m->net.device, block, coef, (size_t)m->scored * sizeof *coef);
}

ravel_status train_model_backward(train_model *m, const float *coef, const float *entropy_coef, ravel_error *err) {
    if (!m->forward_kept)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "train_model_backward needs a train_model_forward just before it, once for each");
    if (entropy_coef && !m->entropy_kept)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "entropy coefficients need entropies: set result.entropy in train_model_forward");
    m->forward_kept = 0;
    if (m->scored == 0) return RAVEL_OK;
    train__head head = {
        .mode = TRAIN__HEAD_BACK, .entropy = entropy_coef != NULL, .entropy_coef = entropy_coef != NULL};
    upload_coefs(m, m->tables.coef, coef);
    if (entropy_coef) upload_coefs(m, m->tables.entropy_coef, entropy_coef);
    ravel_status status = train__model_head(m, &head, err);
    if (status) return status;
    train__model_layers_backward(m);
    return finish(m, err);
}
