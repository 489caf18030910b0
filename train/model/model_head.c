/* The head: log-probs of the scored tokens, and gradients of a loss in them, without ever holding the logits of all.
 *
 *     rows       [scored, C]    last hidden rows that predict a scored token, and only those
 *     chunk      [n, C] x [V, C]' = logits [n, V] ── softmax ── log-probs ── loss ── coefficients
 *                                        └──────────── becomes d(logits) in place ──────┘
 *                d_rows = d(logits) W        dW += d(logits)' rows
 *
 * In LEARN a chunk's logits are made once. In BACK they are made again, from the rows and log-sum-exps that SCORE left,
 * because all log-probs had to be known first.
 *
 * With sequence parallelism the rows are normalised by share and gathered before the first chunk, and d_rows, which
 * each rank has for its part of the vocabulary, are summed by share after the last. */
#include "train/model/model_internal.h"

#include "base/assert.h"

static train_softmax softmax_of(const train_model *m, const train__micro *mb, const train__head *head, int64_t first,
                                int64_t rows) {
    const train__kept *k = &mb->kept;
    RAVEL_ASSERT(first >= 0 && rows > 0 && first + rows <= mb->scored && rows <= m->sizes.logits_rows);
    return (train_softmax){.rows = rows,
                           .columns = m->net.shape.vocab,
                           .first = m->net.first_token,
                           .logits = m->logits,
                           .scale = mb->logit_scale,
                           .targets = mb->staged.targets + first,
                           .parts = m->parts,
                           .ranks = m->tp.ranks,
                           .logprob = k->logprob + first,
                           .lse = k->lse + first,
                           .entropy = head->entropy ? k->entropy + first : NULL,
                           .right = head->right ? k->entropy + first : NULL};
}

train_loss_rows train__model_loss_rows(const train_model *m, const train__micro *mb, const train__head *head,
                                       int64_t first, int64_t count) {
    const train__kept *k = &mb->kept;
    const train__staged *s = &mb->staged;
    RAVEL_ASSERT(first >= 0 && count >= 0 && first + count <= mb->scored && s->weights);
    RAVEL_ASSERT(!head->policy || (s->advantages && s->samples_of));
    int tree = train__micro_has_tree(mb);
    int64_t at = tree ? 0 : first; /* `list` says where the losses are */
    return (train_loss_rows){.rows = count,
                             .losses = mb->losses,
                             .first = tree ? s->first + first : NULL,
                             .list = s->list,
                             .row_of = s->row_of,
                             .policy = head->policy,
                             .logprob = k->logprob + first,
                             .entropy = head->entropy ? k->entropy + first : NULL,
                             .weights = s->weights + at,
                             .old = s->old ? s->old + at : NULL,
                             .generator = s->generator ? s->generator + at : NULL,
                             .reference = s->reference ? s->reference + at : NULL,
                             .advantages = s->advantages ? s->advantages + at : NULL,
                             .samples = s->samples_of ? s->samples_of + at : NULL,
                             .sequences = k->sequences,
                             .coef = k->coef + first,
                             .entropy_coef = head->entropy_coef ? k->entropy_coef + first : NULL,
                             .sums = &m->update->sums};
}

/* d(logits) of the chunk to d_rows and dW. */
static void chunk_backward(train_model *m, int64_t first, int64_t count, const void *rows) {
    const train__net *n = &m->net;
    int64_t at = m->params->head, vocab = n->shape.vocab;
    RAVEL_ASSERT(at >= 0 && !m->options.inference);
    void *d_rows = train__net_at(n, m->working.d_rows, first * n->hidden);
    train__net_linear_input(n, d_rows, m->logits, at, count, vocab, n->hidden);
    if (!n->sequence) train__net_sum(n, d_rows, count * n->hidden);
    if (!train__model_frozen(m))
        train__net_linear_weight(n, train__model_grad(m, at), m->logits, rows, count, vocab, n->hidden);
}

/* Log-probs of the chunk; with `fused`, its gradient too. */
static int forward_chunk(train_model *m, const train__head *head, train_softmax *softmax, const float *coef) {
    const train__net *n = &m->net;
    int fused = n->kernels->softmax_fused && head->mode == TRAIN__HEAD_LEARN && !head->policy && !head->entropy && coef;
    if (m->tp.ranks > 1) fused = 0;
    if (fused) {
        softmax->coef = coef;
        n->kernels->softmax_fused(n->device, softmax);
        return 1;
    }
    if (m->tp.ranks > 1) { /* this rank's parts lie behind those of all */
        train_real *all = softmax->parts, *mine = all + m->tp.ranks * 4 * softmax->rows;
        RAVEL_ASSERT(softmax->rows <= m->sizes.logits_rows);
        softmax->parts = mine;
        n->kernels->softmax_parts(n->device, softmax);
        train__link_gather(&m->tp, mine, all, 4 * softmax->rows, TRAIN__REAL);
        softmax->parts = all;
    } else {
        n->kernels->softmax_parts(n->device, softmax);
    }
    n->kernels->softmax_combine(n->device, softmax);
    return 0;
}

/* Rows of scored tokens after the last norm. */
static const void *head_rows(const train_model *m, const train__micro *mb) {
    return m->net.sequence ? m->working.head_xn : mb->kept.head_xn;
}

static void *last_x(const train_model *m, const train__micro *mb) {
    return train__model_x(m, mb, m->params->part.last_layer);
}

/* Sequence parallel: makes the head rows from this rank's share of the last layer's output. */
static void gather_rows(train_model *m, const train__micro *mb) {
    const train__net *n = &m->net;
    int64_t tokens = mb->ragged.tokens;
    train__net_norm(n, m->working.xn, NULL, last_x(m, mb), NULL, n->shape.layers, TRAIN_NORM_IN,
                    train__net_share(n, tokens));
    const void *xn = train__net_enter(n, m->working.whole, m->working.xn, tokens);
    train__model_copy_scored(m, mb, m->working.head_xn, xn, NULL, mb->staged.rows);
}

static train_top_rows top_of(const train_model *m, const train__micro *mb, const train__head *head,
                             const train_softmax *softmax, int64_t first) {
    RAVEL_ASSERT(m->options.top > 0 && !mb->rows_of && head->top_logprob);
    return (train_top_rows){.rows = softmax->rows,
                            .columns = softmax->columns,
                            .first = softmax->first,
                            .logits = softmax->logits,
                            .scale = softmax->scale,
                            .count = m->options.top,
                            .ranks = m->tp.ranks,
                            .parts = m->top_parts,
                            .lse = softmax->lse,
                            .targets = softmax->targets,
                            .places = mb->places + first,
                            .ids = head->top_ids,
                            .logprob = head->top_logprob,
                            .weights = mb->staged.weights + first,
                            .weight = head->top_weight,
                            .coef = mb->kept.coef + first,
                            .rest = m->top_rest,
                            .sums = &m->update->sums};
}

/* The likeliest tokens of the chunk's rows, to the caller's arrays. */
static void pick_top(train_model *m, train_top_rows top) {
    const train_kernels *k = m->net.kernels;
    int64_t each = 2 * top.rows * top.count;
    top.parts += m->tp.ranks > 1 ? m->tp.ranks * each : 0; /* this rank's behind those of all */
    k->top_parts(m->net.device, &top);
    if (m->tp.ranks > 1) train__link_gather(&m->tp, top.parts, m->top_parts, each, TRAIN__REAL);
    top.parts = m->top_parts;
    k->top_combine(m->net.device, &top);
}

/* Adds the divergence from a teacher's likeliest tokens to the loss that the chunk has. */
static void add_top(train_model *m, const train_top_rows *top) {
    m->net.kernels->top_gather(m->net.device, top);
    if (m->tp.ranks > 1) train__link_sum(&m->tp, top->parts, top->rows * top->count, TRAIN__REAL);
    m->net.kernels->top_loss(m->net.device, top);
}

static void run_chunk(train_model *m, train__micro *mb, const train__head *head, int64_t first, int64_t count) {
    RAVEL_ASSERT(head->mode == TRAIN__HEAD_SCORE || head->coef);
    const train__net *n = &m->net;
    const void *rows = train__net_at(n, head_rows(m, mb), first * n->hidden);
    train_softmax softmax = softmax_of(m, mb, head, first, count);
    int done = 0;
    train__net_linear(n, m->logits, rows, m->params->head, count, n->shape.vocab, n->hidden);
    if (head->mode != TRAIN__HEAD_BACK)
        done = forward_chunk(m, head, &softmax, mb->staged.coef ? mb->staged.coef + first : NULL);
    train_top_rows top = {0};
    if (head->top_ids) top = top_of(m, mb, head, &softmax, first);
    if (head->top_ids && head->mode == TRAIN__HEAD_SCORE) pick_top(m, top);
    if (head->mode == TRAIN__HEAD_SCORE) return;
    softmax.coef = head->coef + first;
    softmax.entropy_coef = head->entropy_coef ? head->entropy_coefs + first : NULL;
    if (head->mode == TRAIN__HEAD_LEARN) {
        train_loss_rows loss = train__model_loss_rows(m, mb, head, first, count);
        n->kernels->loss(n->device, &loss);
    }
    if (top.count) add_top(m, &top);
    if (!done) n->kernels->softmax_backward(n->device, &softmax);
    if (top.count) n->kernels->top_backward(n->device, &top);
    chunk_backward(m, first, count, rows);
}

/* From d_rows (after the last norm) to d_x of the last layer: the norm of those rows, spread to their places. */
static void spread(train_model *m, train__micro *mb) {
    const train__net *n = &m->net;
    void *d_x = m->working.d_x, *d_rows = m->working.y;
    RAVEL_ASSERT(mb->scored <= m->sizes.scored);
    n->kernels->zero(n->device, d_rows, train__net_bytes(n, mb->scored * n->hidden));
    train__model_norm_backward(m, m->params->norm, mb->kept.head_x, m->working.d_rows, d_rows, mb->scored);
    n->kernels->zero(n->device, d_x, train__net_bytes(n, mb->ragged.tokens * n->hidden));
    train__model_spread_scored(m, mb, d_x, d_rows);
}

/* Sharded weights and gradients of the last norm and the head, which may be the embedding; the last layer's weights are
 * used next. */
static void prepare_head(train_model *m, int gradients) {
    int64_t last = m->params->unit_count - 1;
    RAVEL_ASSERT(last >= 0 && (!gradients || !m->options.inference));
    int tied = m->params->head == m->params->embedding;
    if (!train__model_sharded(m)) return;
    train__units_need(&m->units, last, gradients ? last - 1 : -1);
    if (tied) train__units_need(&m->units, 0, -1);
    if (train__model_frozen(m)) return;
    if (gradients) train__units_open_grads(&m->units, last);
    if (gradients && tied) train__units_open_grads(&m->units, 0);
}

/* Gradients of the embedding stay where its rows are still to be added. */
static void reduce_head(train_model *m) {
    int tied = m->params->head == m->params->embedding;
    if (!train__model_sharded(m) || train__model_frozen(m)) return;
    train__units_reduce(&m->units, m->params->unit_count - 1);
    if (tied && m->params->part.first_layer > 0) train__units_reduce(&m->units, 0);
}

/* The same with sequence parallelism: the rows are spread and summed, and the norm is of this rank's share. */
static void spread_shares(train_model *m, train__micro *mb) {
    const train__net *n = &m->net;
    const train__working *w = &m->working;
    int64_t tokens = mb->ragged.tokens, share = train__net_share(n, tokens);
    RAVEL_ASSERT(n->sequence && share * m->tp.ranks >= tokens);
    n->kernels->zero(n->device, w->whole, train__net_bytes(n, tokens * n->hidden));
    train__model_spread_scored(m, mb, w->whole, w->d_rows);
    train__net_leave(n, w->y, w->whole, tokens);
    n->kernels->zero(n->device, w->d_x, train__net_bytes(n, share * n->hidden));
    train__model_norm_backward(m, m->params->norm, last_x(m, mb), w->y, w->d_x, share);
}

void train__model_head(train_model *m, train__micro *mb, const train__head *head) {
    RAVEL_ASSERT(m->params->head >= 0 && m->params->norm >= 0);
    RAVEL_ASSERT(head->mode == TRAIN__HEAD_SCORE || !m->options.inference);
    RAVEL_ASSERT(!head->entropy_coef || (head->entropy && head->entropy_coefs));
    RAVEL_ASSERT(!head->right || (head->mode == TRAIN__HEAD_SCORE && !head->entropy));
    m->net.kernels->phase(m->net.device, TRAIN_PHASE_HEAD);
    prepare_head(m, head->mode != TRAIN__HEAD_SCORE);
    if (m->net.sequence && mb->scored > 0) gather_rows(m, mb);
    for (int64_t first = 0; first < mb->scored; first += m->sizes.logits_rows)
        run_chunk(m, mb, head, first, train__min(m->sizes.logits_rows, mb->scored - first));
    if (head->mode == TRAIN__HEAD_SCORE) return;
    if (m->net.sequence)
        spread_shares(m, mb);
    else
        spread(m, mb);
    reduce_head(m);
}
