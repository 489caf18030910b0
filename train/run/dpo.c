#include "train/run/dpo.h"

#include "train/kernels/host.h"

#include <string.h>

struct train_pairs {
    double beta;
    int64_t budget;
    train_reference *reference;
    float *now, *before, *coef; /* [budget] log-probs of the model and of the reference; d(loss)/d(log-prob) */
    int32_t *lengths, *starts;  /* [2 * budget + 1] cu_seqlens of the answers */
};

ravel_status train_pairs_create(const train_learner_options *options, const ravel_shape *shape, double beta,
                                train_pairs **pairs, ravel_error *err) {
    train_pairs *p = train__calloc(NULL, 1, sizeof *p);
    size_t floats = (size_t)options->budget * sizeof(float), ends = (size_t)(2 * options->budget + 1) * sizeof(int32_t);
    if (!p) return train__no_memory(err, sizeof *p, "pairs");
    p->beta = beta;
    p->budget = options->budget;
    p->now = train__alloc(NULL, floats);
    p->before = train__alloc(NULL, floats);
    p->coef = train__alloc(NULL, floats);
    p->lengths = train__alloc(NULL, ends);
    p->starts = train__alloc(NULL, ends);
    ravel_status status = RAVEL_OK;
    if (!p->now || !p->before || !p->coef || !p->lengths || !p->starts)
        status = train__no_memory(err, 3 * floats + 2 * ends, "pairs");
    if (!status) status = train_reference_create(options, shape, &p->reference, err);
    if (status)
        train_pairs_free(p);
    else
        *pairs = p;
    return status;
}

void train_pairs_free(train_pairs *p) {
    if (!p) return;
    size_t floats = (size_t)p->budget * sizeof(float), ends = (size_t)(2 * p->budget + 1) * sizeof(int32_t);
    train_reference_free(p->reference);
    train__release(NULL, p->now, floats);
    train__release(NULL, p->before, floats);
    train__release(NULL, p->coef, floats);
    train__release(NULL, p->lengths, ends);
    train__release(NULL, p->starts, ends);
    train__release(NULL, p, sizeof *p);
}

/* The pairs of a batch as twice as many sequences. */
static train_batch part_pairs(train_pairs *p, const train_batch *batch, const int32_t *chosen) {
    train_batch parted = *batch;
    int32_t n = 0, sum = 0;
    for (int32_t i = 0; i < batch->samples; i++) {
        int32_t whole = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i], start = batch->cu_seqlens_padded[i];
        int32_t both[] = {chosen[i], whole - chosen[i]};
        for (int k = 0; k < 2; k++, n++) {
            p->lengths[n] = sum;
            p->starts[n] = start;
            sum += both[k];
            start += both[k];
        }
    }
    p->lengths[n] = sum;
    p->starts[n] = batch->cu_seqlens_padded[batch->samples];
    parted.samples = n;
    parted.cu_seqlens = p->lengths;
    parted.cu_seqlens_padded = p->starts;
    return parted;
}

/* Sum over an answer of model - reference; *weight is that of its tokens, which all have the same. */
static double advantage_of(const train_pairs *p, const train_batch *b, int32_t i, double *weight) {
    double sum = 0;
    int32_t from = b->cu_seqlens_padded[i], to = from + b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    for (int32_t t = from; t < to; t++) {
        if (b->weights[t] == 0) continue;
        sum += (double)p->now[t] - (double)p->before[t];
        *weight = b->weights[t];
    }
    return sum;
}

static void set_coef(train_pairs *p, const train_batch *b, int32_t i, double coef) {
    int32_t from = b->cu_seqlens_padded[i], to = from + b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    for (int32_t t = from; t < to; t++) p->coef[t] = b->weights[t] != 0 ? (float)coef : 0;
}

static void one_pair(train_pairs *p, const train_batch *b, int32_t pair, train_dpo_sums *sums) {
    double weight = 0, slope;
    double chosen = advantage_of(p, b, 2 * pair, &weight), rejected = advantage_of(p, b, 2 * pair + 1, &weight);
    double margin = p->beta * (chosen - rejected), loss = train_dpo_loss(margin, &slope);
    set_coef(p, b, 2 * pair, weight * slope * p->beta);
    set_coef(p, b, 2 * pair + 1, -weight * slope * p->beta);
    sums->loss += weight * loss;
    sums->plain += loss;
    sums->pairs += 1;
    sums->right += margin > 0;
    sums->margin += margin;
}

ravel_status train_pairs_run(train_pairs *p, train_model *model, const train_batch *batch, const int32_t *chosen,
                             int learn, ravel_metrics *metrics, train_dpo_sums *sums, ravel_error *err) {
    train_batch parted = part_pairs(p, batch, chosen);
    train_result before = {.logprob = p->before}, now = {.logprob = p->now};
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_FORWARD, NULL);
    ravel_status status = train_model_score(train_reference_model(p->reference), &parted, &before, err);
    if (!status)
        status = learn ? train_model_forward(model, &parted, &now, err) : train_model_score(model, &parted, &now, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_FORWARD, NULL);
    if (status) return status;
    memset(p->coef, 0, (size_t)p->budget * sizeof *p->coef);
    for (int32_t i = 0; i < batch->samples; i++) one_pair(p, &parted, i, sums);
    if (!learn) return RAVEL_OK;
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_BACKWARD, NULL);
    status = train_model_backward(model, p->coef, NULL, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_BACKWARD, NULL);
    return status;
}
