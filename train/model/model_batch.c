/* A batch on its way to the device: checked, laid out by row, uploaded.
 *
 *     tokens      t0 t1 t2 | . | u0 u1        . is alignment
 *     positions    0  1  2 | 0 |  0  1
 *     scored         t1 t2 |   |    u1        (where their weight is not 0)
 *     rows            0  1 |   |     4        whose output predicts them */
#include "train/model/model_internal.h"

#include "train/kernels/host.h"

#include <string.h>

static int32_t padded_start(const train_batch *b, int64_t i) {
    return (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[i];
}

static ravel_status check_sample(const train_model *m, const train_batch *b, int64_t i, ravel_error *err) {
    int64_t length = (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    int64_t slot = (int64_t)padded_start(b, i + 1) - padded_start(b, i);
    if (length < 1)
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has %lld tokens; it needs at least 1", (long long)i,
                               (long long)length);
    if (slot < length)
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has %lld tokens in a slot of %lld", (long long)i,
                               (long long)length, (long long)slot);
    if (length > m->layout.positions)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "sample %lld has %lld tokens; the model was made for %lld at most (option longest)",
                               (long long)i, (long long)length, (long long)m->layout.positions);
    return RAVEL_OK;
}

static ravel_status check_batch(const train_model *m, const train_batch *b, ravel_error *err) {
    if (b->samples < 1 || !b->tokens || !b->cu_seqlens)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a batch needs tokens, cu_seqlens and at least one sample");
    if (b->cu_seqlens[0] != 0 || padded_start(b, 0) != 0)
        return ravel_error_set(err, RAVEL_E_DATA, "cu_seqlens must begin with 0");
    if (b->temperature < 0 || b->temperature != b->temperature)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "temperature is %g; it must be above 0", b->temperature);
    if (b->samples > m->layout.tokens || padded_start(b, b->samples) > m->layout.tokens)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "the batch has %d tokens in %d samples; the budget is %lld tokens",
                               padded_start(b, b->samples), b->samples, (long long)m->layout.tokens);
    for (int64_t i = 0; i < b->samples; i++) {
        ravel_status status = check_sample(m, b, i, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* Tokens, positions and scored rows of sample i. */
static ravel_status stage_sample(train_model *m, const train_batch *b, int32_t i, ravel_error *err) {
    train__staging *s = &m->staging;
    int32_t start = padded_start(b, i), length = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    s->starts[i] = start;
    s->lengths[i] = length;
    for (int32_t t = start; t < start + length; t++) {
        if (b->tokens[t] < 0 || b->tokens[t] >= m->net.shape.vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "token %d of sample %d is %d; the vocabulary is 0 to %lld",
                                   t - start, i, b->tokens[t], (long long)m->net.shape.vocab - 1);
        s->tokens[t] = b->tokens[t];
        s->positions[t] = t - start;
        if (t == start || (b->weights && b->weights[t] == 0)) continue;
        s->rows[m->scored] = t - 1;
        s->targets[m->scored] = b->tokens[t];
        s->places[m->scored++] = t;
    }
    return RAVEL_OK;
}

static void upload(train_model *m, void *block, const void *host, int64_t count) {
    m->net.kernels->upload(m->net.device, block, host, (size_t)count * sizeof(int32_t));
}

ravel_status train__model_prepare(train_model *m, const train_batch *b, ravel_error *err) {
    ravel_status status = check_batch(m, b, err);
    if (status) return status;
    train__staging *s = &m->staging;
    int32_t tokens = padded_start(b, b->samples), longest = 0;
    m->forward_kept = 0;
    m->scored = 0;
    memset(s->tokens, 0, (size_t)tokens * sizeof *s->tokens);
    memset(s->positions, 0, (size_t)tokens * sizeof *s->positions);
    for (int32_t i = 0; i < b->samples; i++) {
        status = stage_sample(m, b, i, err);
        if (status) return status;
        if (s->lengths[i] > longest) longest = s->lengths[i];
    }
    upload(m, m->tables.tokens, s->tokens, tokens);
    upload(m, m->tables.places, s->positions, tokens);
    upload(m, m->tables.starts, s->starts, b->samples);
    upload(m, m->tables.lengths, s->lengths, b->samples);
    upload(m, m->tables.rows, s->rows, m->scored);
    upload(m, m->tables.targets, s->targets, m->scored);
    m->batch = *b;
    m->ragged = (train_ragged){.tokens = tokens,
                               .samples = b->samples,
                               .longest = longest,
                               .starts = m->tables.starts,
                               .lengths = m->tables.lengths,
                               .positions = m->tables.places};
    m->gaps = tokens != b->cu_seqlens[b->samples];
    m->logit_scale = (train_real)(b->temperature > 0 ? 1 / b->temperature : 1);
    return RAVEL_OK;
}
