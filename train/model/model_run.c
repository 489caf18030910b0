/* The ways to run a batch. */
#include "train/model/model_internal.h"

#include "train/kernels/assert.h"

#include <string.h>

static ravel_status training_only(const train_model *m, const char *call, ravel_error *err) {
    if (!m->options.inference) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "%s needs gradients, and this model was made with `inference`", call);
}

static ravel_status links_status(train_model *m, ravel_error *err) {
    ravel_status status = train__link_status(&m->tp, err);
    if (!status) status = train__link_status(&m->cp_link, err);
    return status ? status : train__units_status(&m->units, err);
}

/* Releases the staged batch, whose last kernel has been called; reports a failure of a communicator. */
static ravel_status done(train_model *m, ravel_error *err) {
    TRAIN_ASSERT(m->now.staged.block >= 0 && m->now.staged.block < m->staging.count);
    train__staging_release(&m->staging, m->now.staged.block);
    m->net.kernels->phase(m->net.device, TRAIN_PHASE_OTHER);
    return links_status(m, err);
}

static int is_first(const train_model *m) {
    return m->params->part.first_layer == 0;
}

static int is_last(const train_model *m) {
    return m->params->part.last_layer == m->net.shape.layers;
}

/* A batch without scored tokens is a filler and is not run, unless other ranks need its results. */
static int runs(const train_model *m) {
    return m->now.scored > 0 || m->cp || train__model_sharded(m) || !is_first(m) || !is_last(m);
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* Numbers of scored rows, on the device, to the caller's array by place. */
static void download(train_model *m, float *by_place, const train_real *numbers) {
    const train_batch *b = &m->now.batch;
    int64_t places = (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[b->samples];
    TRAIN_ASSERT(m->now.scored <= m->sizes.tokens && numbers && places <= m->sizes.flat);
    for (int64_t t = 0; t < places; t++) by_place[t] = 0;
    m->net.kernels->download(m->net.device, m->numbers, numbers, (size_t)m->now.scored * sizeof *numbers);
    for (int64_t i = 0; i < m->now.losses; i++) by_place[m->now.places[i]] = m->numbers[train__model_row_of(m, i)];
}

static ravel_status report(train_model *m, train_result *r, ravel_error *err) {
    double loss = 0;
    TRAIN_ASSERT(is_last(m) && m->now.scored <= m->now.ragged.tokens);
    if (r->entropy) download(m, r->entropy, m->now.kept.entropy);
    m->net.kernels->download(m->net.device, m->numbers, m->now.kept.logprob,
                             (size_t)m->now.scored * sizeof(train_real));
    for (int64_t i = 0; i < m->now.losses; i++)
        loss -= (m->now.batch.weights ? (double)m->now.batch.weights[m->now.places[i]] : 1) *
                (double)m->numbers[train__model_row_of(m, i)];
    if (r->logprob) download(m, r->logprob, m->now.kept.logprob);
    r->loss = loss;
    r->scored = m->now.losses;
    return m->net.kernels->sync(m->net.device, err);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static ravel_status check_flight(const train_model *m, int32_t flight, ravel_error *err) {
    if (flight >= 0 && flight < m->options.in_flight) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "flight %d; the model was made for %d (option in_flight)", flight,
                           m->options.in_flight);
}

static ravel_status score(train_model *m, int32_t flight, const train_batch *batch, train_result *result,
                          ravel_error *err) {
    train__head head = {.mode = TRAIN__HEAD_SCORE, .entropy = result->entropy != NULL};
    ravel_status status = check_flight(m, flight, err);
    if (status) return status;
    train__model_use(m, flight);
    status = train__model_stage(m, batch, &(train__extra){0}, err);
    if (status) return status;
    if (runs(m)) train__model_layers(m);
    if (is_last(m)) train__model_head(m, &head);
    return RAVEL_OK;
}

ravel_status train_model_stage_score(train_model *m, int32_t flight, const train_batch *batch, train_result *result,
                                     ravel_error *err) {
    ravel_status status = score(m, flight, batch, result, err);
    if (!status) status = done(m, err);
    return status || !is_last(m) ? status : report(m, result, err);
}

ravel_status train_model_score(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    return train_model_stage_score(m, 0, batch, result, err);
}

/* One ratio per sample needs all its log-probs first: they are made, reduced, and the logits made again. */
static void learn_by_sequence(train_model *m, const train__head *learn) {
    const train__net *n = &m->net;
    train__head head = *learn;
    TRAIN_ASSERT(learn->policy && learn->policy->sequence && m->now.staged.samples_of);
    head.mode = TRAIN__HEAD_SCORE;
    train__model_head(m, &head);
    train_loss_rows rows = train__model_loss_rows(m, &head, 0, m->now.scored);
    n->kernels->zero(n->device, m->now.kept.sequences, (size_t)m->now.batch.samples * sizeof *m->now.kept.sequences);
    n->kernels->sequence_sums(n->device, &rows, m->now.kept.sequences);
    if (m->cp) /* a sample's tokens are on several ranks */
        train__link_sum(m->cp, m->now.kept.sequences, 3 * (int64_t)m->now.batch.samples, RAVEL_F64);
    n->kernels->loss(n->device, &rows);
    head.mode = TRAIN__HEAD_BACK;
    train__model_head(m, &head);
}

/* The caller turns log-probs into coefficients; then the logits are recomputed. */
static ravel_status learn_coupled(train_model *m, const train_loss *loss, ravel_error *err) {
    float *logprob = m->by_place, *coef = m->by_place + m->sizes.flat;
    TRAIN_ASSERT(loss->couple && m->now.ragged.tokens <= m->sizes.tokens);
    train__head head = {.mode = TRAIN__HEAD_SCORE};
    train__model_head(m, &head);
    download(m, logprob, m->now.kept.logprob);
    memset(coef, 0, (size_t)m->sizes.flat * sizeof *coef);
    ravel_status status = m->net.kernels->sync(m->net.device, err);
    if (!status) status = loss->couple(loss->user, loss->tag, logprob, coef, err);
    if (status) return status;
    train__model_stage_coefs(m, coef);
    head.mode = TRAIN__HEAD_BACK;
    head.coef = m->now.staged.coef;
    train__model_head(m, &head);
    train__staging_release(&m->staging, m->staging.turn);
    return RAVEL_OK;
}

/* ---- runs of kernels, which may be graphs --------------------------------------------------------------- */

typedef struct run_of {
    train_model *m;
    int32_t entropy; /* is asked for */
} run_of;

/* All that the kernels of a run depend on, beside the contents of device memory. */
static train__graph_key key_of(const run_of *run, int32_t phase) {
    const train_model *m = run->m;
    const train__flight *now = &m->now;
    const train__staged *s = &now->staged;
    const void *arrays[] = {s->tokens,    s->positions,  s->starts,   s->lengths,     s->order, s->rows,
                            s->targets,   s->samples_of, s->weights,  s->coef,        s->old,   s->generator,
                            s->reference, s->advantages, now->kept.x, m->net.weights, m->grads};
    const int64_t sizes[] = {phase,
                             run->entropy,
                             now->ragged.tokens,
                             now->batch.samples,
                             now->scored,
                             now->ordered,
                             now->gaps,
                             now->loss ? 1 + now->loss->entropy : 0,
                             (int64_t)train__model_attention_shape(m)};
    double scale = (double)now->logit_scale;
    train__graph_key key = {.count = 0};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) train__key_add_pointer(&key, arrays[i]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) train__key_add(&key, sizes[i]);
    train__key_add_struct(&key, &scale, sizeof scale);
    if (now->loss) train__key_add_struct(&key, &now->loss->policy, sizeof now->loss->policy);
    return key;
}

static void run_kernels(run_of *run, int32_t phase, void (*kernels)(void *user)) {
    if (!run->m->graphs.kernels) {
        kernels(run);
        return;
    }
    train__graph_key key = key_of(run, phase);
    train__graphs_run(&run->m->graphs, &key, phase, kernels, run);
}

static void forward_kernels(void *user) {
    train__model_layers(((run_of *)user)->m);
}

static void backward_kernels(void *user) {
    train__model_layers_backward(((run_of *)user)->m);
}

/* The head with its gradient; d_x of the last layer is left in the working block. */
static void head_kernels(void *user) {
    train_model *m = ((run_of *)user)->m;
    TRAIN_ASSERT(is_last(m) && !m->options.inference);
    const train_loss *loss = m->now.loss;
    train__head head = {.mode = TRAIN__HEAD_LEARN,
                        .entropy = ((run_of *)user)->entropy,
                        .coef = m->now.kept.coef,
                        .entropy_coefs = m->now.kept.entropy_coef};
    if (loss) {
        head.policy = &loss->policy;
        head.entropy_coef = loss->policy.entropy != 0;
        head.entropy |= loss->entropy || head.entropy_coef;
    }
    if (loss && loss->policy.sequence)
        learn_by_sequence(m, &head);
    else
        train__model_head(m, &head);
}

/* Where samples are coupled, the host waits inside. */
static ravel_status learn_head(run_of *run, ravel_error *err) {
    const train_loss *loss = run->m->now.loss;
    if (loss && loss->couple) return learn_coupled(run->m, loss, err);
    run_kernels(run, TRAIN_PHASE_HEAD, head_kernels);
    return RAVEL_OK;
}

ravel_status train_model_stage_forward(train_model *m, int32_t flight, const train_batch *batch, const train_loss *loss,
                                       ravel_error *err) {
    train__extra extra = {.negative_weights = !loss};
    if (loss) extra = (train__extra){loss->old, loss->generator, loss->reference, loss->advantages, 0};
    ravel_status status = check_flight(m, flight, err);
    if (!status) status = training_only(m, "train_model_learn", err);
    if (status) return status;
    train__model_use(m, flight);
    status = train__model_stage(m, batch, &extra, err);
    if (status) return status;
    m->now.loss = loss;
    m->now.learn_begun = 1;
    TRAIN_ASSERT(m->grads);
    if (runs(m)) run_kernels(&(run_of){.m = m}, TRAIN_PHASE_FORWARD, forward_kernels);
    return links_status(m, err);
}

static ravel_status stage_backward(train_model *m, int32_t flight, int entropy, ravel_error *err) {
    ravel_status status = check_flight(m, flight, err);
    if (status) return status;
    train__model_use(m, flight);
    if (!m->now.learn_begun)
        return ravel_error_set(
            err, RAVEL_E_STATE,
            "train_model_stage_backward needs the forward call of its batch before it, once for each");
    m->now.learn_begun = 0;
    if (runs(m)) {
        run_of run = {m, entropy};
        if (is_last(m)) status = learn_head(&run, err);
        if (!status) run_kernels(&run, TRAIN_PHASE_BACKWARD, backward_kernels);
    }
    ravel_status finished = done(m, err);
    return status ? status : finished;
}

ravel_status train_model_stage_backward(train_model *m, int32_t flight, ravel_error *err) {
    return stage_backward(m, flight, 0, err);
}

void *train_model_stage_input(const train_model *m, int32_t flight) {
    return train__model_x(m, flight, m->params->part.first_layer);
}

void *train_model_stage_output(const train_model *m, int32_t flight) {
    return train__model_x(m, flight, m->params->part.last_layer);
}

int64_t train_model_stage_elements(const train_model *m, int64_t tokens) {
    TRAIN_ASSERT(tokens >= 0 && tokens <= m->sizes.tokens);
    return train__net_share(&m->net, tokens) * m->net.hidden;
}

ravel_status train_model_learn(train_model *m, const train_batch *batch, const train_loss *loss, train_result *result,
                               ravel_error *err) {
    ravel_status status = train_model_stage_forward(m, 0, batch, loss, err);
    if (!status) status = stage_backward(m, 0, result && result->entropy, err);
    return status || !result ? status : report(m, result, err);
}
