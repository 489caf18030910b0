/* The ways to run a batch. */
#include "train/model/model_internal.h"

#include "base/assert.h"

#include <string.h>

static ravel_status training_only(const train_model *m, const char *call, ravel_error *err) {
    if (!m->options.inference) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "%s needs gradients, and this model was made with `inference`", call);
}

static ravel_status links_status(train_model *m, train__micro *mb, ravel_error *err) {
    ravel_status status = train__link_status(&m->tp, err);
    if (!status) status = train__link_status(&mb->cp, err);
    if (!status) status = train__link_status(&m->exchange.link, err);
    if (!status) status = train__link_status(&m->units.experts, err);
    return status ? status : train__link_status(&m->units.link, err);
}

/* Releases the staged batch, whose last kernel has been called; reports a failure of a communicator. */
static ravel_status done(train_model *m, train__micro *mb, ravel_error *err) {
    RAVEL_ASSERT(mb->staged.block >= 0 && mb->staged.block < m->staging.count);
    train__staging_release(&m->staging, mb->staged.block);
    m->net.kernels->phase(m->net.device, TRAIN_PHASE_OTHER);
    return links_status(m, mb, err);
}

static int is_first(const train_model *m) {
    return m->params->part.first_layer == 0;
}

static int is_last(const train_model *m) {
    return m->params->part.last_layer == m->net.shape.layers;
}

/* A batch without scored tokens is a filler and is not run, unless other ranks need its results. */
static int runs(const train_model *m, train__micro *mb) {
    return mb->scored > 0 || mb->cp.ranks > 1 || train__model_sharded(m) || !is_first(m) || !is_last(m) ||
           m->options.load_loss || m->net.exchange;
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* Numbers of scored rows, on the device, to the caller's array by place. */
static void download(train_model *m, train__micro *mb, float *by_place, const train_real *numbers) {
    const train_batch *b = &mb->batch;
    int64_t places = (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[b->samples];
    RAVEL_ASSERT(mb->scored <= m->sizes.scored && numbers && places <= m->sizes.flat);
    for (int64_t t = 0; t < places; t++) by_place[t] = 0;
    m->net.kernels->download(m->net.device, m->numbers, numbers, (size_t)mb->scored * sizeof *numbers);
    for (int64_t i = 0; i < mb->losses; i++) by_place[mb->places[i]] = m->numbers[train__micro_row_of(mb, i)];
}

static ravel_status report(train_model *m, train__micro *mb, train_result *r, ravel_error *err) {
    double loss = 0;
    RAVEL_ASSERT(is_last(m) && mb->scored <= m->sizes.scored);
    if (r->entropy) download(m, mb, r->entropy, mb->kept.entropy);
    if (r->right) download(m, mb, r->right, mb->kept.entropy);
    m->net.kernels->download(m->net.device, m->numbers, mb->kept.logprob, (size_t)mb->scored * sizeof(train_real));
    for (int64_t i = 0; i < mb->losses; i++)
        loss -= (mb->batch.weights ? (double)mb->batch.weights[mb->places[i]] : 1) *
                (double)m->numbers[train__micro_row_of(mb, i)];
    if (r->logprob) download(m, mb, r->logprob, mb->kept.logprob);
    r->loss = loss;
    r->scored = mb->losses;
    return m->net.kernels->sync(m->net.device, err);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

/* NULL: no such micro-batch, which is RAVEL_E_ARGUMENT. */
static train__micro *find_flight(train_model *m, int32_t flight, ravel_error *err) {
    if (flight >= 0 && flight < m->options.in_flight) return &m->flights[flight];
    ravel_error_set(err, RAVEL_E_ARGUMENT, "flight %d; the model was made for %d (option in_flight)", flight,
                    m->options.in_flight);
    return NULL;
}

/* Layers without experts, and what is not run, have no routes. */
static void clear_routes(train_model *m, train__micro *mb, int16_t *routes) {
    int64_t layers = m->params->part.last_layer - m->params->part.first_layer;
    int64_t count = mb->ragged.tokens * layers * m->net.shape.experts_active;
    for (int64_t i = 0; i < count; i++) routes[i] = -1;
    mb->record = routes;
}

static ravel_status score(train_model *m, train__micro *mb, const train_batch *batch, const train_result *result,
                          ravel_error *err) {
    train__head head = {.mode = TRAIN__HEAD_SCORE,
                        .entropy = result->entropy != NULL,
                        .right = result->right != NULL,
                        .top_ids = result->top_ids,
                        .top_logprob = result->top_logprob};
    ravel_status status = train__model_stage(m, mb, batch, &(train__extra){0}, err);
    if (status) return status;
    if (result->routes) clear_routes(m, mb, result->routes);
    if (runs(m, mb)) train__model_layers(m, mb);
    if (is_last(m)) train__model_head(m, mb, &head);
    return RAVEL_OK;
}

ravel_status train_model_stage_score(train_model *m, int32_t flight, const train_batch *batch, train_result *result,
                                     ravel_error *err) {
    train__micro *mb = find_flight(m, flight, err);
    if (!mb) return RAVEL_E_ARGUMENT;
    ravel_status status = score(m, mb, batch, result, err);
    if (!status) status = done(m, mb, err);
    return status || !is_last(m) ? status : report(m, mb, result, err);
}

ravel_status train_model_stage_count(train_model *m, int32_t flight, const train_batch *batch, ravel_error *err) {
    train__micro *mb = find_flight(m, flight, err);
    if (!mb) return RAVEL_E_ARGUMENT;
    ravel_status status = train__model_stage(m, mb, batch, &(train__extra){0}, err);
    if (status) return status;
    mb->counts = 1;
    train__model_layers(m, mb);
    return done(m, mb, err);
}

ravel_status train_model_score(train_model *m, const train_batch *batch, train_result *result, ravel_error *err) {
    return train_model_stage_score(m, 0, batch, result, err);
}

/* One ratio or one correction per sample needs all its log-probs first: they are made, reduced, and the logits made
 * again. */
static void learn_by_sequence(train_model *m, train__micro *mb, const train__head *learn) {
    const train__net *n = &m->net;
    train__head head = *learn;
    RAVEL_ASSERT(learn->policy && train__terms_couple(learn->policy) && mb->staged.samples_of);
    head.mode = TRAIN__HEAD_SCORE;
    train__model_head(m, mb, &head);
    train_loss_rows rows = train__model_loss_rows(m, mb, &head, 0, mb->scored);
    n->kernels->zero(n->device, mb->kept.sequences, (size_t)mb->batch.samples * sizeof *mb->kept.sequences);
    n->kernels->sequence_sums(n->device, &rows, mb->kept.sequences);
    if (mb->cp.ranks > 1) /* a sample's tokens are on several ranks */
        train__link_sum(&mb->cp, mb->kept.sequences,
                        (int64_t)(sizeof *mb->kept.sequences / sizeof(double)) * mb->batch.samples, RAVEL_F64);
    n->kernels->loss(n->device, &rows);
    head.mode = TRAIN__HEAD_BACK;
    train__model_head(m, mb, &head);
}

/* The caller turns log-probs into coefficients; then the logits are recomputed. */
static ravel_status learn_coupled(train_model *m, train__micro *mb, const train_loss *loss, ravel_error *err) {
    float *logprob = m->by_place, *coef = m->by_place + m->sizes.flat;
    RAVEL_ASSERT(loss->couple && mb->ragged.tokens <= m->sizes.tokens);
    train__head head = {.mode = TRAIN__HEAD_SCORE};
    train__model_head(m, mb, &head);
    download(m, mb, logprob, mb->kept.logprob);
    memset(coef, 0, (size_t)m->sizes.flat * sizeof *coef);
    ravel_status status = m->net.kernels->sync(m->net.device, err);
    if (!status) status = loss->couple(loss->user, loss->tag, logprob, coef, err);
    if (status) return status;
    train__model_stage_coefs(m, mb, coef);
    head.mode = TRAIN__HEAD_BACK;
    head.coef = mb->staged.coef;
    train__model_head(m, mb, &head);
    train__staging_release(&m->staging, m->staging.turn);
    return RAVEL_OK;
}

/* ---- runs of kernels, which may be graphs --------------------------------------------------------------- */

typedef struct run_of {
    train_model *m;
    train__micro *mb;
    int32_t entropy; /* is asked for */
} run_of;

/* All that the kernels of a run depend on, beside the contents of device memory. */
static train__graph_key key_of(const run_of *run, int32_t phase) {
    const train_model *m = run->m;
    const train__micro *mb = run->mb;
    const train__staged *s = &mb->staged;
    const void *arrays[] = {s->tokens,    s->positions,  s->starts,  s->lengths,     s->order, s->rows,
                            s->targets,   s->samples_of, s->weights, s->coef,        s->old,   s->generator,
                            s->reference, s->advantages, mb->kept.x, m->net.weights, m->grads, m->net.adapter.weights};
    const int64_t sizes[] = {phase,
                             run->entropy,
                             mb->ragged.tokens,
                             mb->batch.samples,
                             mb->scored,
                             mb->ordered,
                             mb->gaps,
                             mb->loss ? 1 + mb->loss->entropy : 0,
                             (int64_t)train__model_attention_shape(m, mb)};
    double scale = (double)mb->logit_scale;
    train__graph_key key = {.count = 0};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) train__key_add_pointer(&key, arrays[i]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) train__key_add(&key, sizes[i]);
    train__key_add_struct(&key, &scale, sizeof scale);
    if (mb->loss) train__key_add_struct(&key, &mb->loss->policy, sizeof mb->loss->policy);
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
    const run_of *run = user;
    train__model_layers(run->m, run->mb);
}

static void backward_kernels(void *user) {
    const run_of *run = user;
    train__model_layers_backward(run->m, run->mb);
}

/* The head with its gradient; d_x of the last layer is left in the working block. */
static void head_kernels(void *user) {
    const run_of *run = user;
    train_model *m = run->m;
    train__micro *mb = run->mb;
    RAVEL_ASSERT(is_last(m) && !m->options.inference);
    const train_loss *loss = mb->loss;
    train__head head = {.mode = TRAIN__HEAD_LEARN,
                        .entropy = run->entropy,
                        .coef = mb->kept.coef,
                        .entropy_coefs = mb->kept.entropy_coef};
    if (loss) {
        head.policy = &loss->policy;
        head.top_ids = loss->top_ids;
        head.top_logprob = loss->top_logprob;
        head.top_weight = loss->top_weight;
        RAVEL_ASSERT(!head.top_ids || !train__terms_couple(&loss->policy));
        head.entropy_coef = loss->policy.entropy != 0;
        head.entropy |= loss->entropy || head.entropy_coef;
    }
    if (loss && train__terms_couple(&loss->policy))
        learn_by_sequence(m, mb, &head);
    else
        train__model_head(m, mb, &head);
}

/* Where samples are coupled, the host waits inside. */
static ravel_status learn_head(run_of *run, ravel_error *err) {
    const train_loss *loss = run->mb->loss;
    if (loss && loss->couple) return learn_coupled(run->m, run->mb, loss, err);
    run_kernels(run, TRAIN_PHASE_HEAD, head_kernels);
    return RAVEL_OK;
}

ravel_status train_model_stage_forward(train_model *m, int32_t flight, const train_batch *batch, const train_loss *loss,
                                       ravel_error *err) {
    train__extra extra = {.negative_weights = !loss};
    if (loss) extra = (train__extra){loss->old, loss->generator, loss->reference, loss->advantages, 0};
    train__micro *mb = find_flight(m, flight, err);
    if (!mb) return RAVEL_E_ARGUMENT;
    ravel_status status = training_only(m, "train_model_learn", err);
    if (!status) status = train__model_stage(m, mb, batch, &extra, err);
    if (status) return status;
    mb->loss = loss;
    mb->learn_begun = 1;
    mb->counts = !m->balanced; /* else it has been counted */
    RAVEL_ASSERT(m->grads);
    if (runs(m, mb)) run_kernels(&(run_of){m, mb, 0}, TRAIN_PHASE_FORWARD, forward_kernels);
    return links_status(m, mb, err);
}

static ravel_status stage_backward(train_model *m, train__micro *mb, int entropy, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (!mb->learn_begun)
        return ravel_error_set(
            err, RAVEL_E_STATE,
            "train_model_stage_backward needs the forward call of its batch before it, once for each");
    mb->learn_begun = 0;
    if (runs(m, mb)) {
        run_of run = {m, mb, entropy};
        if (is_last(m)) status = learn_head(&run, err);
        if (!status) run_kernels(&run, TRAIN_PHASE_BACKWARD, backward_kernels);
    }
    ravel_status finished = done(m, mb, err);
    return status ? status : finished;
}

ravel_status train_model_stage_backward(train_model *m, int32_t flight, ravel_error *err) {
    train__micro *mb = find_flight(m, flight, err);
    return mb ? stage_backward(m, mb, 0, err) : RAVEL_E_ARGUMENT;
}

void *train_model_stage_input(const train_model *m, int32_t flight) {
    RAVEL_ASSERT(flight >= 0 && flight < m->options.in_flight);
    return train__model_x(m, &m->flights[flight], m->params->part.first_layer);
}

void *train_model_stage_output(const train_model *m, int32_t flight) {
    RAVEL_ASSERT(flight >= 0 && flight < m->options.in_flight);
    return train__model_x(m, &m->flights[flight], m->params->part.last_layer);
}

int64_t train_model_stage_elements(const train_model *m, int64_t tokens) {
    RAVEL_ASSERT(tokens >= 0 && tokens <= m->sizes.tokens);
    return train__net_share(&m->net, tokens) * m->net.hidden;
}

ravel_status train_model_learn(train_model *m, const train_batch *batch, const train_loss *loss, train_result *result,
                               ravel_error *err) {
    ravel_status status = train_model_stage_forward(m, 0, batch, loss, err);
    if (!status) status = stage_backward(m, &m->flights[0], result && result->entropy, err);
    return status || !result ? status : report(m, &m->flights[0], result, err);
}
