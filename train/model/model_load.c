/* Experts' load and routes of a batch: what is staged for them, and what is read back.
 *
 * The load loss of N tokens is experts * sum over experts of f * P, as transformers' load_balancing_loss_func has it: f
 * is the share of the tokens that went to the expert, P the mean of its probability. Its derivative by a probability,
 * experts * f / N, is the same for every token: `balance`. It is known when all tokens of the update have been routed,
 * so whoever runs the update counts first (train/learn/balance.c), and says over what N goes: a layer, or all of
 * them. */
#include "train/model/model_internal.h"

#include "base/assert.h"

#include <string.h>

static int64_t layers_of(const train_model *m) {
    return m->params->part.last_layer - m->params->part.first_layer;
}

size_t train__load_staged(const train_model *m) {
    int64_t t = m->sizes.tokens, active = m->net.shape.experts_active;
    size_t bytes = (size_t)t * sizeof(int32_t) + 2 * TRAIN_ALIGN;
    if (!m->net.shape.experts) return 0;
    return m->options.replay ? bytes + (size_t)layers_of(m) * ((size_t)(t * active) * sizeof(int32_t) + 2 * TRAIN_ALIGN)
                             : bytes;
}

/* ---- staging -------------------------------------------------------------------------------------------- */

static void stage_counted(train_model *m, train__micro *mb, const train_batch *b) {
    int64_t rows = mb->ragged.tokens;
    int32_t *times = train__staging_take(&m->staging, rows, sizeof *times, &mb->staged.counted);
    memset(times, 0, (size_t)rows * sizeof *times);
    mb->staged.times = times;
    if (b->filler) return;
    if (b->shared) {
        train__tree_count_rows(m, mb, b, times);
        return;
    }
    for (int32_t i = 0; i < b->samples; i++) {
        int32_t start = (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[i];
        for (int32_t t = start; t < start + b->cu_seqlens[i + 1] - b->cu_seqlens[i]; t++)
            times[t] = b->counted ? b->counted[t] : 1;
    }
}

/* Whether a row of routes is `active` experts, none of them twice, or -1 throughout. */
static int row_ok(const int16_t *row, int64_t active, int64_t experts) {
    for (int64_t i = 0; i < active; i++) {
        if ((row[i] < 0) != (row[0] < 0) || row[i] < -1 || row[i] >= experts) return 0;
        for (int64_t k = 0; k < i && row[0] >= 0; k++)
            if (row[k] == row[i]) return 0;
    }
    return 1;
}

static ravel_status stage_given(train_model *m, train__micro *mb, const train_batch *b, ravel_error *err) {
    int64_t active = m->net.shape.experts_active, first = m->params->part.first_layer, rows = mb->ragged.tokens;
    RAVEL_ASSERT(b->routes_layer <= first && b->routes_stride >= (first - b->routes_layer + layers_of(m)) * active);
    int32_t *to = train__staging_take(&m->staging, layers_of(m) * rows * active, sizeof *to, &mb->staged.given);
    for (int64_t layer = 0; layer < layers_of(m); layer++)
        for (int64_t r = 0; r < rows; r++) {
            const int16_t *row = b->routes + r * b->routes_stride + (first - b->routes_layer + layer) * active;
            if (!row_ok(row, active, m->net.shape.experts))
                return ravel_error_set(err, RAVEL_E_DATA,
                                       "the route of row %lld in layer %lld is not %lld of %lld experts", (long long)r,
                                       (long long)first + layer, (long long)active, (long long)m->net.shape.experts);
            for (int64_t i = 0; i < active; i++) *to++ = row[i];
        }
    return RAVEL_OK;
}

ravel_status train__load_stage(train_model *m, train__micro *mb, const train_batch *b, ravel_error *err) {
    if (!m->net.shape.experts) return RAVEL_OK;
    stage_counted(m, mb, b);
    if (!b->routes) return RAVEL_OK;
    if (!m->options.replay)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the batch has routes; the model was made without replay");
    return stage_given(m, mb, b, err);
}

void train__load_routes(const train_model *m, const train__micro *mb, int64_t layer, train__routes *r) {
    int64_t active = m->net.shape.experts_active, local = layer - m->params->part.first_layer;
    RAVEL_ASSERT(local >= 0 && local < layers_of(m));
    r->counted = mb->staged.counted;
    r->times = mb->staged.times;
    if (mb->staged.given) r->given = mb->staged.given + local * mb->ragged.tokens * active;
    if (mb->counts) r->load = m->load + local * m->net.shape.experts;
    if (mb->record) r->record = mb->record + local * active;
    r->record_stride = layers_of(m) * active;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

const int64_t *train_model_load(const train_model *m) {
    return m->load;
}

void train_model_set_balance(train_model *m, const float *balance) {
    RAVEL_ASSERT(m->options.load_loss && m->balance);
    m->balanced = 1;
    m->net.kernels->upload(m->net.device, m->balance, balance,
                           (size_t)(layers_of(m) * m->net.shape.experts) * sizeof *balance);
}

void train__load_clear(train_model *m) {
    m->balanced = 0;
    if (m->load) memset(m->load, 0, (size_t)(layers_of(m) * m->net.shape.experts) * sizeof *m->load);
    if (m->row_loss) m->net.kernels->zero(m->net.device, m->row_loss, (size_t)m->sizes.tokens * sizeof *m->row_loss);
}

ravel_status train_model_balance_sum(train_model *m, double *sum, ravel_error *err) {
    *sum = 0;
    if (!m->balanced || m->tp.rank > 0) return RAVEL_OK;
    m->net.kernels->download(m->net.device, m->row_sums, m->row_loss, (size_t)m->sizes.tokens * sizeof *m->row_sums);
    for (int64_t r = 0; r < m->sizes.tokens; r++) *sum += (double)m->row_sums[r];
    return m->net.kernels->sync(m->net.device, err);
}
