/* The head: log-probs of the scored tokens, and gradients of a loss in them, without ever holding the logits of all.
 *
 *     rows       [scored, C]    last hidden rows that predict a scored token, and only those
 *     chunk      [n, C] x [V, C]' = logits [n, V] ── softmax ── log-probs ── loss ── coefficients
 *                                        └──────────── becomes d(logits) in place ──────┘
 *                d_rows = d(logits) W        dW += d(logits)' rows
 *
 * In LEARN a chunk's logits are made once. In BACK they are made again, from the rows and log-sum-exps that forward
 * left, because the caller had to see all log-probs first. */
#include "train/model/model_internal.h"

#include "train/kernels/host.h"

static train_softmax softmax_of(const train_model *m, const train__head *head, int64_t first, int64_t rows) {
    const train__tables *t = &m->tables;
    return (train_softmax){.rows = rows,
                           .vocab = m->net.shape.vocab,
                           .logits = m->logits,
                           .scale = m->logit_scale,
                           .targets = t->targets + first,
                           .logprob = t->logprob + first,
                           .lse = t->lse + first,
                           .entropy = head->entropy ? t->entropy + first : NULL,
                           .coef = t->coef + first,
                           .entropy_coef = NULL};
}

static void download(const train_model *m, float *host, const train_real *block, int64_t first, int64_t count) {
    m->net.kernels->download(m->net.device, host + first, block + first, (size_t)count * sizeof *host);
}

static void upload(const train_model *m, train_real *block, const float *host, int64_t first, int64_t count) {
    m->net.kernels->upload(m->net.device, block + first, host + first, (size_t)count * sizeof *host);
}

/* Asks the hook for the coefficients of a chunk. */
static ravel_status ask_loss(train_model *m, const train__head *head, int64_t first, int64_t count, ravel_error *err) {
    const train__staging *s = &m->staging;
    download(m, s->logprob, m->tables.logprob, first, count);
    if (head->entropy) download(m, s->entropy, m->tables.entropy, first, count);
    int wants = head->loss->entropy;
    train_scored scored = {.count = count,
                           .places = s->places + first,
                           .logprob = s->logprob + first,
                           .entropy = wants ? s->entropy + first : NULL,
                           .coef = s->coef + first,
                           .entropy_coef = wants ? s->entropy_coef + first : NULL};
    ravel_status status = head->loss->call(head->loss->user, &scored, err);
    if (status) return status;
    upload(m, m->tables.coef, s->coef, first, count);
    if (wants) upload(m, m->tables.entropy_coef, s->entropy_coef, first, count);
    return RAVEL_OK;
}

/* d(logits) of the chunk to d_rows and dW. */
static void chunk_backward(train_model *m, int64_t first, int64_t count) {
    const train__net *n = &m->net;
    int64_t at = train_params_head(m->params), vocab = n->shape.vocab;
    train_real *d_rows = m->working + m->layout.shared + first * n->hidden;
    const train_real *rows = m->kept + m->layout.head_xn + first * n->hidden;
    train__net_linear_input(n, d_rows, m->logits, m->weights + at, count, vocab, n->hidden);
    train__net_linear_weight(n, m->grads + at, m->logits, rows, count, vocab, n->hidden);
}

static ravel_status run_chunk(train_model *m, const train__head *head, int64_t first, int64_t count, ravel_error *err) {
    const train__net *n = &m->net;
    const train_real *rows = m->kept + m->layout.head_xn + first * n->hidden;
    train_softmax softmax = softmax_of(m, head, first, count);
    train__net_linear(n, m->logits, rows, m->weights + train_params_head(m->params), count, n->shape.vocab, n->hidden);
    if (head->mode != TRAIN__HEAD_BACK) n->kernels->softmax(n->device, &softmax);
    if (head->mode == TRAIN__HEAD_SCORE) return RAVEL_OK;
    if (head->mode == TRAIN__HEAD_LEARN && head->loss) {
        ravel_status status = ask_loss(m, head, first, count, err);
        if (status) return status;
    }
    if (head->entropy_coef || (head->loss && head->loss->entropy))
        softmax.entropy_coef = m->tables.entropy_coef + first;
    n->kernels->softmax_backward(n->device, &softmax);
    chunk_backward(m, first, count);
    return RAVEL_OK;
}

/* From d_rows (after the last norm) to d_x of the last layer: the norm of those rows, spread to their places. */
static void spread(train_model *m) {
    const train__net *n = &m->net;
    int64_t at = train_params_norm(m->params);
    size_t rows_bytes = (size_t)(m->scored * n->hidden) * sizeof(train_real);
    size_t all_bytes = (size_t)(m->ragged.tokens * n->hidden) * sizeof(train_real);
    train_real *d_x = m->working + m->layout.d_x, *d_rows = m->working + m->layout.y;
    n->kernels->zero(n->device, d_rows, rows_bytes);
    n->kernels->rmsnorm_backward(n->device, d_rows, m->grads + at, m->working + m->layout.shared,
                                 m->kept + m->layout.head_x, m->weights + at, n->eps, m->scored, n->hidden);
    n->kernels->zero(n->device, d_x, all_bytes);
    n->kernels->copy_rows(
        n->device,
        &(train_rows){.rows = m->scored, .width = n->hidden, .to = d_x, .from = d_rows, .to_ids = m->tables.rows});
}

/* The caller's arrays and sums, from what the device found. */
static void report(train_model *m, const train__head *head) {
    const train__staging *s = &m->staging;
    train_result *r = head->result;
    download(m, s->logprob, m->tables.logprob, 0, m->scored);
    if (head->entropy) download(m, s->entropy, m->tables.entropy, 0, m->scored);
    for (int64_t t = 0; t < m->ragged.tokens; t++) {
        if (r->logprob) r->logprob[t] = 0;
        if (r->entropy) r->entropy[t] = 0;
    }
    double loss = 0;
    for (int64_t i = 0; i < m->scored; i++) {
        int32_t place = s->places[i];
        loss -= (m->batch.weights ? m->batch.weights[place] : 1.0) * s->logprob[i];
        if (r->logprob) r->logprob[place] = s->logprob[i];
        if (r->entropy) r->entropy[place] = s->entropy[i];
    }
    r->loss = loss;
    r->scored = m->scored;
}

ravel_status train__model_head(train_model *m, const train__head *head, ravel_error *err) {
    for (int64_t first = 0; first < m->scored; first += m->layout.logits_rows) {
        int64_t count = train__min(m->layout.logits_rows, m->scored - first);
        ravel_status status = run_chunk(m, head, first, count, err);
        if (status) return status;
    }
    if (head->mode != TRAIN__HEAD_SCORE) spread(m);
    if (head->mode != TRAIN__HEAD_BACK) report(m, head);
    return RAVEL_OK;
}
