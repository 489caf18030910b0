#include "train/run/sft/dpo.h"

#include "train/kernels/host.h"
#include "train/run/scores.h"

/* An answer: sums over its tokens of model - reference, and of the tokens' weights, which are all the same. */
typedef struct answer {
    double sum, weight, tokens;
} answer;

struct train_pairs {
    double beta;
    int64_t most; /* samples of a micro-batch */
    int32_t tp_rank;
    train_parts *reference;   /* NULL: the model that is trained, without its adapter */
    int alone;                /* there is no reference */
    train_scores before;      /* log-probs of the reference, by micro-batch */
    answer *answers;          /* [most] of a micro-batch: chosen, rejected, chosen, ... */
    const train_parts *parts; /* that learn */
    const ravel_feed *feed;   /* of the update that is run */
    int32_t chunk;            /* the last one of this rank */
    train_dpo_sums sums;
};

ravel_status train_pairs_create_alone(const train_parts_options *options, ravel_mesh *mesh, double beta,
                                      train_pairs **pairs, ravel_error *err) {
    RAVEL_ASSERT(options->budget > 0 && options->inference && beta > 0);
    train_pairs *p = ravel__calloc(NULL, 1, sizeof *p);
    ravel_status status = p ? RAVEL_OK : ravel__no_memory(err, sizeof *p, "pairs");
    if (p) {
        p->beta = beta;
        p->most = train__max(options->budget, options->flat_tokens);
        p->tp_rank = ravel_mesh_coords(mesh).tp;
        p->answers = ravel__alloc(NULL, (size_t)p->most * sizeof *p->answers);
        if (!p->answers) status = ravel__no_memory(err, (size_t)p->most * sizeof *p->answers, "pairs");
    }
    if (p) p->alone = 1;
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (status)
        train_pairs_free(p);
    else
        *pairs = p;
    return status;
}

ravel_status train_pairs_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                double beta, train_pairs **pairs, ravel_error *err) {
    train_pairs *p = NULL;
    ravel_status status = train_pairs_create_alone(options, mesh, beta, &p, err);
    if (status) return status;
    p->alone = 0;
    if (!options->model->lora.rank) status = train_parts_create(options, shape, mesh, &p->reference, err);
    if (status)
        train_pairs_free(p);
    else
        *pairs = p;
    return status;
}

void train_pairs_free(train_pairs *p) {
    if (!p) return;
    train_parts_free(p->reference);
    train_scores_free(&p->before);
    ravel__release(NULL, p->answers, (size_t)p->most * sizeof *p->answers);
    ravel__release(NULL, p, sizeof *p);
}

/* This rank's tokens of a sample. */
typedef struct span {
    int32_t from, to;
} span;

static span span_of(const ravel_micro_batch *micro, int64_t sample) {
    const int32_t *cu = micro->thd->cu_seqlens, *padded = micro->thd->cu_seqlens_padded;
    if (micro->cp > 1 && !micro->shared) return (span){padded[sample] / micro->cp, padded[sample + 1] / micro->cp};
    return (span){padded[sample], padded[sample] + cu[sample + 1] - cu[sample]};
}

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* This rank's part of an answer's sums. */
static answer sum_answer(const ravel_micro_batch *micro, int64_t i, const float *now, const float *before) {
    const float *w = micro->weights;
    answer sums = {0};
    RAVEL_ASSERT(w && now && micro->parts[i] == i % 2); /* the feed keeps rows, which are pairs */
    for (int32_t t = span_of(micro, i).from; t < span_of(micro, i).to; t++) {
        if (w[t] == 0) continue;
        sums.sum += (double)now[t] - (before ? (double)before[t] : 0);
        sums.weight += w[t];
        sums.tokens += 1;
    }
    return sums;
}

/* Derivatives by the log-probs of this rank's tokens of an answer. */
static void set_coefs(const ravel_micro_batch *micro, int64_t i, double value, float *coef) {
    for (int32_t t = span_of(micro, i).from; coef && t < span_of(micro, i).to; t++)
        coef[t] = micro->weights[t] == 0 ? 0 : (float)value;
}

/* Adds the loss of a pair to the figures; returns its derivative by the sum of the chosen answer's log-probs. */
static double weigh_pair(train_pairs *p, const answer *chosen, const answer *rejected, int counted) {
    double tokens = chosen->tokens + rejected->tokens, slope;
    double weight = tokens > 0 ? 2 * (chosen->weight + rejected->weight) / tokens : 0; /* 1 / pairs: of both samples */
    double margin = p->beta * (chosen->sum - rejected->sum), loss = train_dpo_loss(margin, &slope);
    RAVEL_ASSERT(!(loss < 0) && !(slope > 0));
    if (counted) {
        p->sums.loss += weight * loss;
        p->sums.plain += loss;
        p->sums.pairs += 1;
        p->sums.right += margin > 0;
        p->sums.chosen += p->beta * chosen->sum;
        p->sums.rejected += p->beta * rejected->sum;
    }
    return weight * slope * p->beta;
}

/* The loss of every pair of a micro-batch; coef [tokens] = its derivative, or NULL. Ranks that share the pairs sum them
 * up first, and the first of these ranks counts them. */
static ravel_status weigh_pairs(train_pairs *p, const ravel_micro_batch *micro, const float *now, float *coef,
                                ravel_error *err) {
    const float *before = p->alone ? NULL : train_scores_at(&p->before, 0, micro->step);
    int64_t count = micro->thd->samples_count;
    ravel_comm *ring = train_parts_ring(p->parts, micro->cp);
    answer *of = p->answers;
    RAVEL_ASSERT(count <= p->most && count % 2 == 0);
    for (int64_t i = 0; i < count; i++) of[i] = sum_answer(micro, i, now, before);
    ravel_status status = RAVEL_OK;
    if (ring)
        status = ravel_comm_allreduce(ring, of, of, count * (int64_t)(sizeof *of / sizeof(double)), RAVEL_F64,
                                      RAVEL_SUM, err);
    for (int64_t i = 0; i < count && !status; i += 2) {
        double slope = weigh_pair(p, &of[i], &of[i + 1], micro->cp_rank == 0);
        set_coefs(micro, i, slope, coef);
        set_coefs(micro, i + 1, -slope, coef);
    }
    return status;
}

static ravel_status couple(void *user, int64_t step, const float *logprob, float *coef, ravel_error *err) {
    train_pairs *p = user;
    ravel_micro_batch micro;
    ravel_status status = ravel_feed_micro(p->feed, p->chunk, step, &micro, err);
    return status || micro.filler ? status : weigh_pairs(p, &micro, logprob, coef, err);
}

/* ---- work ------------------------------------------------------------------------------------------------ */

static ravel_status begin_pairs(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                                ravel_error *err) {
    (void)batch, (void)err;
    if (loss) *loss = (train_loss){.couple = couple, .user = user, .tag = micro->step};
    return RAVEL_OK;
}

static ravel_status keep_before(void *user, const ravel_micro_batch *micro, const train_batch *batch,
                                const float *logprob, ravel_error *err) {
    return train_scores_take(&((train_pairs *)user)->before, micro, batch, logprob, err);
}

static ravel_status take_now(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                             ravel_error *err) {
    (void)batch;
    return weigh_pairs(user, micro, logprob, NULL, err);
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static ravel_status score_reference(train_pairs *p, train_parts *parts, const ravel_feed *feed, int64_t micros,
                                    ravel_error *err) {
    train_work work = {.begin = begin_pairs, .take = keep_before, .user = p};
    p->parts = parts;
    p->feed = feed;
    p->chunk = train_parts_count(parts) - 1;
    RAVEL_ASSERT(p->chunk >= 0 && micros >= 0);
    p->sums = (train_dpo_sums){0};
    train_scores_clear(&p->before);
    if (p->alone) return RAVEL_OK;
    if (p->reference) return train_parts_score(p->reference, feed, micros, &work, err);
    train_parts_set_adapter(parts, 0);
    ravel_status status = train_parts_score(parts, feed, micros, &work, err);
    train_parts_set_adapter(parts, 1);
    return status;
}

/* Tensor-parallel ranks have the same pairs: only the first counts them. */
static void tell(const train_pairs *p, train_dpo_sums *sums) {
    RAVEL_ASSERT(p->sums.right <= p->sums.pairs);
    *sums = p->tp_rank == 0 ? p->sums : (train_dpo_sums){0};
}

ravel_status train_pairs_learn(train_pairs *p, train_parts *parts, const ravel_feed *feed, int64_t micros,
                               ravel_metrics *metrics, train_parts_time *time, train_dpo_sums *sums, ravel_error *err) {
    train_work work = {.begin = begin_pairs, .user = p};
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_REFERENCE, NULL);
    ravel_status status = score_reference(p, parts, feed, micros, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_REFERENCE, NULL);
    if (!status) status = train_parts_learn(parts, feed, micros, &work, metrics, time, err);
    tell(p, sums);
    return status;
}

ravel_status train_pairs_score(train_pairs *p, train_parts *parts, const ravel_feed *feed, int64_t micros,
                               train_dpo_sums *sums, ravel_error *err) {
    train_work work = {.begin = begin_pairs, .take = take_now, .user = p};
    ravel_status status = score_reference(p, parts, feed, micros, err);
    if (!status) status = train_parts_score(parts, feed, micros, &work, err);
    tell(p, sums);
    return status;
}
