#include "train/run/dpo.h"

#include "train/kernels/arena.h"
#include "train/run/scores.h"

/* A pair's answers: sums over their tokens of model - reference, and of the tokens' weights, which are all the same. */
typedef struct pair {
    double chosen, rejected;
    double weight, tokens;
} pair;

struct train_pairs {
    double beta;
    int64_t budget;
    int32_t tp_rank;
    train__arena arena; /* of the arrays */
    train_parts *reference;
    train_scores before;       /* log-probs of the reference, by micro-batch */
    int32_t *lengths, *starts; /* [2 * budget + 1] cu_seqlens of the answers */
    int32_t *positions;        /* [budget] of tokens in their answers */
    int32_t *shared;           /* [2 * budget] tokens that both answers of a pair begin with; NULL: computed for each */
    pair *pairs;               /* [budget] of a micro-batch */
    const ravel_feed *feed;    /* of the update that is run */
    int32_t chunk;             /* the last one of this rank */
    train_dpo_sums sums;
};

ravel_status train_pairs_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                double beta, train_pairs **pairs, ravel_error *err) {
    TRAIN_ASSERT(options->budget > 0 && options->inference && beta > 0);
    train_pairs *p = train__calloc(NULL, 1, sizeof *p);
    ravel_status status = p ? RAVEL_OK : train__no_memory(err, sizeof *p, "pairs");
    if (p) {
        p->beta = beta;
        p->budget = options->budget;
        p->tp_rank = ravel_mesh_coords(mesh).tp;
        TRAIN__TAKE(&p->arena, p->lengths, 2 * p->budget + 1);
        TRAIN__TAKE(&p->arena, p->starts, 2 * p->budget + 1);
        TRAIN__TAKE(&p->arena, p->positions, p->budget);
        TRAIN__TAKE(&p->arena, p->pairs, p->budget);
        if (options->flat_tokens) TRAIN__TAKE(&p->arena, p->shared, 2 * p->budget);
        status = train__arena_status(&p->arena, "pairs", err);
    }
    status = ravel_agree(ravel_mesh_world(mesh), status, err);
    if (!status) status = train_parts_create(options, shape, mesh, &p->reference, err);
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
    train__arena_free(&p->arena);
    train__release(NULL, p, sizeof *p);
}

static const int32_t *chosen_of(const train_pairs *p, const ravel_micro_batch *micro) {
    return micro->thd->fields[ravel_feed_find(p->feed, "chosen")];
}

/* A token's place in its pair. */
static int32_t place_of(const ravel_micro_batch *micro, int64_t sample, int32_t t) {
    return micro->cp > 1 ? micro->thd->positions[t] : t - micro->thd->cu_seqlens_padded[sample];
}

/* This rank's tokens of a pair. */
typedef struct span {
    int32_t from, to;
} span;

static span span_of(const ravel_micro_batch *micro, int64_t sample) {
    const int32_t *cu = micro->thd->cu_seqlens, *padded = micro->thd->cu_seqlens_padded;
    if (micro->cp > 1) return (span){padded[sample] / micro->cp, padded[sample + 1] / micro->cp};
    return (span){padded[sample], padded[sample] + cu[sample + 1] - cu[sample]};
}

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* This rank's part of a pair's sums. */
static pair sum_pair(const ravel_micro_batch *micro, int64_t i, int32_t chosen, const float *now, const float *before) {
    const float *w = micro->weights;
    pair sums = {0};
    TRAIN_ASSERT(w && now && before && chosen > 0);
    for (int32_t t = span_of(micro, i).from; t < span_of(micro, i).to; t++) {
        if (w[t] == 0) continue;
        *(place_of(micro, i, t) < chosen ? &sums.chosen : &sums.rejected) += (double)now[t] - (double)before[t];
        sums.weight += w[t];
        sums.tokens += 1;
    }
    return sums;
}

/* Derivatives by the log-probs of this rank's tokens of a pair. */
static void set_coefs(const ravel_micro_batch *micro, int64_t i, int32_t chosen, double value, float *coef) {
    for (int32_t t = span_of(micro, i).from; coef && t < span_of(micro, i).to; t++)
        coef[t] = (float)(micro->weights[t] == 0 ? 0 : place_of(micro, i, t) < chosen ? value : -value);
}

/* Adds the loss of a pair to the figures; returns its derivative by the sum of the chosen answer's log-probs. */
static double weigh_pair(train_pairs *p, const pair *sums, int counted) {
    double slope, weight = sums->tokens > 0 ? sums->weight / sums->tokens : 0;
    double margin = p->beta * (sums->chosen - sums->rejected), loss = train_dpo_loss(margin, &slope);
    TRAIN_ASSERT(!(loss < 0) && !(slope > 0));
    if (counted) {
        p->sums.loss += weight * loss;
        p->sums.plain += loss;
        p->sums.pairs += 1;
        p->sums.right += margin > 0;
        p->sums.chosen += p->beta * sums->chosen;
        p->sums.rejected += p->beta * sums->rejected;
    }
    return weight * slope * p->beta;
}

/* The loss of every pair of a micro-batch; coef [tokens] = its derivative, or NULL. Ranks that share the pairs sum them up
 * first, and the first of these ranks counts them. */
static ravel_status weigh_pairs(train_pairs *p, const ravel_micro_batch *micro, const float *now, float *coef,
                                ravel_error *err) {
    const int32_t *chosen = chosen_of(p, micro);
    const float *before = train_scores_at(&p->before, 0, micro->step);
    int64_t count = micro->thd->samples_count;
    ravel_comm *ring = train_parts_ring(p->reference, micro->cp);
    TRAIN_ASSERT(count <= p->budget);
    for (int64_t i = 0; i < count; i++) p->pairs[i] = sum_pair(micro, i, chosen[i], now, before);
    ravel_status status = RAVEL_OK;
    if (ring)
        status = ravel_comm_allreduce(ring, p->pairs, p->pairs, count * (int64_t)(sizeof *p->pairs / sizeof(double)),
                                      RAVEL_F64, RAVEL_SUM, err);
    for (int64_t i = 0; i < count && !status; i++)
        set_coefs(micro, i, chosen[i], weigh_pair(p, &p->pairs[i], micro->cp_rank == 0), coef);
    return status;
}

static ravel_status couple(void *user, int64_t step, const float *logprob, float *coef, ravel_error *err) {
    train_pairs *p = user;
    ravel_micro_batch micro;
    ravel_status status = ravel_feed_micro(p->feed, p->chunk, step, &micro, err);
    return status || micro.filler ? status : weigh_pairs(p, &micro, logprob, coef, err);
}

/* ---- batches -------------------------------------------------------------------------------------------- */

/* Context parallel: pairs are cut whole, and the model is told where the second answer begins. */
static void split_pairs(train_pairs *p, const ravel_micro_batch *micro, train_batch *batch) {
    const int32_t *chosen = chosen_of(p, micro);
    TRAIN_ASSERT(micro->thd->local_tokens <= p->budget);
    for (int32_t i = 0; i < batch->samples; i++)
        for (int32_t t = span_of(micro, i).from; t < span_of(micro, i).to; t++) {
            int32_t place = place_of(micro, i, t);
            p->positions[t] = place < chosen[i] ? place : place - chosen[i];
        }
    batch->positions = p->positions;
    batch->splits = chosen;
}

/* How many tokens two sequences begin with in common. */
static int32_t common(const int32_t *a, int32_t a_length, const int32_t *b, int32_t b_length) {
    int32_t n = 0;
    while (n < a_length && n < b_length && a[n] == b[n]) n++;
    return n;
}

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
    if (micro->cp > 1) {
        split_pairs(p, micro, batch);
        return RAVEL_OK;
    }
    for (int32_t i = 0; i < batch->samples; i++) {
        int32_t start = padded[i], both[] = {chosen[i], cu[i + 1] - cu[i] - chosen[i]};
        if (p->shared) {
            const int32_t *tokens = batch->tokens + start;
            p->shared[n] = 0;
            p->shared[n + 1] = common(tokens, both[0], tokens + both[0], both[1]);
        }
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
    batch->shared = p->shared;
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
