#include "train/run/dpo.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/run/scores.h"

struct train_pairs {
    double beta;
    int64_t budget;
    int32_t tp_rank;
    train_parts *reference;
    train_scores before;       /* log-probs of the reference, by micro-batch */
    int32_t *lengths, *starts; /* [2 * budget + 1] cu_seqlens of the answers */
    const ravel_feed *feed;    /* of the update that is run */
    int32_t chunk;             /* the last one of this rank */
    train_dpo_sums sums;
};

ravel_status train_pairs_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                double beta, train_pairs **pairs, ravel_error *err) {
    train_parts_options reference = *options;
    TRAIN_ASSERT(options->budget > 0 && beta > 0);
    size_t ends = (size_t)(2 * options->budget + 1) * sizeof(int32_t);
    train_pairs *p = train__calloc(NULL, 1, sizeof *p);
    ravel_status status = p ? RAVEL_OK : train__no_memory(err, sizeof *p, "pairs");
    if (p) {
        p->beta = beta;
        p->budget = options->budget;
        p->tp_rank = ravel_mesh_coords(mesh).tp;
        p->lengths = train__alloc(NULL, ends);
        p->starts = train__alloc(NULL, ends);
        if (!p->lengths || !p->starts) status = train__no_memory(err, 2 * ends, "pairs");
    }
    reference.inference = 1;
    if (!status && train_layout_cp(ravel_mesh_get_layout(mesh)) > 1)
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED, "preference pairs have no context parallelism; use cp 1");
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (!status) status = train_parts_create(&reference, shape, mesh, &p->reference, err);
    if (status)
        train_pairs_free(p);
    else
        *pairs = p;
    return status;
}

void train_pairs_free(train_pairs *p) {
    if (!p) return;
    size_t ends = (size_t)(2 * p->budget + 1) * sizeof(int32_t);
    train_parts_free(p->reference);
    train_scores_free(&p->before);
    train__release(NULL, p->lengths, ends);
    train__release(NULL, p->starts, ends);
    train__release(NULL, p, sizeof *p);
}

static const int32_t *chosen_of(const train_pairs *p, const ravel_micro_batch *micro) {
    return micro->thd->fields[ravel_feed_find(p->feed, "chosen")];
}

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* An answer's places in a micro-batch, and its log-probs by the model and by the reference. */
typedef struct answer {
    int32_t from, to;
} answer;

/* Sum over an answer of model - reference; *weight is that of its tokens, which all have the same. */
static double gain_of(answer a, const float *weights, const float *now, const float *before, double *weight) {
    double sum = 0;
    TRAIN_ASSERT(a.from >= 0 && a.from < a.to && weights && now && before);
    for (int32_t t = a.from; t < a.to; t++) {
        if (weights[t] == 0) continue;
        sum += (double)now[t] - (double)before[t];
        *weight = weights[t];
    }
    return sum;
}

static void set_coef(answer a, const float *weights, double value, float *coef) {
    TRAIN_ASSERT(a.from <= a.to && weights);
    for (int32_t t = a.from; coef && t < a.to; t++) coef[t] = weights[t] != 0 ? (float)value : 0;
}

/* The loss of every pair of a micro-batch; coef [tokens] = its derivative, or NULL. */
static void weigh_pairs(train_pairs *p, const ravel_micro_batch *micro, const float *now, float *coef) {
    const int32_t *chosen = chosen_of(p, micro), *cu = micro->thd->cu_seqlens, *padded = micro->thd->cu_seqlens_padded;
    const float *before = train_scores_at(&p->before, 0, micro->step), *w = micro->weights;
    for (int64_t i = 0; i < micro->thd->samples_count; i++) {
        double weight = 0, slope;
        answer first = {padded[i], padded[i] + chosen[i]}, second = {first.to, padded[i] + cu[i + 1] - cu[i]};
        TRAIN_ASSERT(first.from < first.to && second.from < second.to);
        double margin = p->beta * (gain_of(first, w, now, before, &weight) - gain_of(second, w, now, before, &weight));
        double loss = train_dpo_loss(margin, &slope);
        TRAIN_ASSERT(!(loss < 0) && !(slope > 0));
        set_coef(first, w, weight * slope * p->beta, coef);
        set_coef(second, w, -weight * slope * p->beta, coef);
        p->sums.loss += weight * loss;
        p->sums.plain += loss;
        p->sums.pairs += 1;
        p->sums.right += margin > 0;
        p->sums.margin += margin;
    }
}

static ravel_status couple(void *user, int64_t step, const float *logprob, float *coef, ravel_error *err) {
    train_pairs *p = user;
    ravel_micro_batch micro;
    ravel_status status = ravel_feed_micro(p->feed, p->chunk, step, &micro, err);
    if (!status && !micro.filler) weigh_pairs(p, &micro, logprob, coef);
    return status;
}

/* ---- batches -------------------------------------------------------------------------------------------- */

/* The pairs of a batch as twice as many sequences, and the loss where it is learnt. */
static ravel_status begin_pairs(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                                ravel_error *err) {
    train_pairs *p = user;
    const int32_t *chosen = chosen_of(p, micro), *cu = micro->thd->cu_seqlens, *padded = micro->thd->cu_seqlens_padded;
    int32_t n = 0, sum = 0;
    TRAIN_ASSERT(batch->samples <= p->budget || micro->filler);
    (void)err;
    if (loss) *loss = (train_loss){.couple = couple, .user = user, .tag = micro->step};
    if (micro->filler) return RAVEL_OK;
    for (int32_t i = 0; i < batch->samples; i++) {
        int32_t start = padded[i], both[] = {chosen[i], cu[i + 1] - cu[i] - chosen[i]};
        for (int k = 0; k < 2; k++, n++) {
            p->lengths[n] = sum;
            p->starts[n] = start;
            sum += both[k];
            TRAIN_ASSERT(both[k] > 0);
            start += both[k];
        }
    }
    p->lengths[n] = sum;
    p->starts[n] = padded[batch->samples];
    batch->samples = n;
    batch->cu_seqlens = p->lengths;
    batch->cu_seqlens_padded = p->starts;
    return RAVEL_OK;
}

static ravel_status keep_before(void *user, const ravel_micro_batch *micro, const train_batch *batch,
                                const float *logprob, ravel_error *err) {
    return train_scores_take(&((train_pairs *)user)->before, micro, batch, logprob, err);
}

static ravel_status take_now(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                             ravel_error *err) {
    (void)batch, (void)err;
    weigh_pairs(user, micro, logprob, NULL);
    return RAVEL_OK;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

static ravel_status score_reference(train_pairs *p, train_parts *parts, const ravel_feed *feed, int64_t micros,
                                    ravel_error *err) {
    train_work work = {.begin = begin_pairs, .take = keep_before, .user = p};
    p->feed = feed;
    p->chunk = train_parts_count(parts) - 1;
    TRAIN_ASSERT(p->chunk >= 0 && micros >= 0);
    p->sums = (train_dpo_sums){0};
    train_scores_clear(&p->before);
    return train_parts_score(p->reference, feed, micros, &work, err);
}

/* Tensor-parallel ranks have the same pairs: only the first counts them. */
static void tell(const train_pairs *p, train_dpo_sums *sums) {
    TRAIN_ASSERT(p->sums.right <= p->sums.pairs);
    *sums = p->tp_rank == 0 ? p->sums : (train_dpo_sums){0};
}

ravel_status train_pairs_learn(train_pairs *p, train_parts *parts, const ravel_feed *feed, int64_t micros,
                               ravel_metrics *metrics, train_parts_time *time, train_dpo_sums *sums, ravel_error *err) {
    train_work work = {.begin = begin_pairs, .user = p};
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_FORWARD, NULL);
    ravel_status status = score_reference(p, parts, feed, micros, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_FORWARD, NULL);
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
