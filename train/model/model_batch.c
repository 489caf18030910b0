/* Staging a batch: it is checked, laid out in one block and copied to the device.
 *
 *     tokens      t0 t1 t2 | . | u0 u1        . is alignment
 *     positions    0  1  2 | 0 |  0  1
 *     scored         t1 t2 |   |    u1        (where their weight is not 0)
 *     rows            0  1 |   |     4        whose output predicts them
 *
 * Two blocks are used in turn, so that the host fills one while the device still works on the other. */
#include "train/model/ring.h"

#include "base/assert.h"

#include <string.h>

static int32_t padded_start(const train_batch *b, int64_t i) {
    RAVEL_ASSERT(i >= 0 && i <= b->samples);
    return (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[i];
}

/* ---- checks --------------------------------------------------------------------------------------------- */

static ravel_status check_tokens(const train_model *m, const train_batch *b, int64_t i, ravel_error *err) {
    int32_t start = padded_start(b, i), length = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    for (int32_t t = start; b->tokens && t < start + length; t++)
        if (b->tokens[t] < 0 || b->tokens[t] >= m->vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "token %d of sample %lld is %d; the vocabulary is 0 to %lld",
                                   t - start, (long long)i, b->tokens[t], (long long)m->vocab - 1);
    for (int32_t t = start; b->positions && t < start + length; t++)
        if (b->positions[t] < 0 || b->positions[t] >= m->sizes.positions)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "token %d of sample %lld has position %d; there are %lld (option longest)",
                                   t - start, (long long)i, b->positions[t], (long long)m->sizes.positions);
    for (int32_t t = start; b->targets && t < start + length; t++)
        if (b->weights[t] != 0 && (b->targets[t] < 0 || b->targets[t] >= m->vocab))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "token %d of sample %lld has target %d; the vocabulary is 0 to %lld", t - start,
                                   (long long)i, b->targets[t], (long long)m->vocab - 1);
    return RAVEL_OK;
}

static ravel_status check_sample(const train_model *m, const train_batch *b, int64_t i, int32_t ranks,
                                 ravel_error *err) {
    int64_t length = (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    int64_t slot = (int64_t)padded_start(b, i + 1) - padded_start(b, i);
    if (length < 1)
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has %lld tokens; it needs at least 1", (long long)i,
                               (long long)length);
    if (slot < length)
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has %lld tokens in a slot of %lld", (long long)i,
                               (long long)length, (long long)slot);
    if (length > m->sizes.positions)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "sample %lld has %lld tokens; the model was made for %lld at most (option longest)",
                               (long long)i, (long long)length, (long long)m->sizes.positions);
    if (ranks > 1 && !b->shared && length % 2)
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has %lld tokens; a context-parallel shard is two chunks",
                               (long long)i, (long long)length);
    return check_tokens(m, b, i, err);
}

static ravel_status check_batch(train_model *m, const train_batch *b, ravel_error *err) {
    const train_slice *part = &m->params->part;
    int first = part->first_layer == 0, last = part->last_layer == m->net.shape.layers;
    ravel_comm *ring = b->cp ? b->cp : m->options.cp;
    int32_t ranks = ring ? ravel_comm_size(ring) : 1;
    if (ranks > m->cp_most)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the batch has %d context-parallel ranks; the model was made for %d at most (option "
                               "cp_ranks)",
                               ranks, m->cp_most);
    if (b->samples < 1 || !b->cu_seqlens || (first && !b->tokens) || (last && !b->tokens && !b->targets))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a batch needs tokens, cu_seqlens and at least one sample");
    if (b->cu_seqlens[0] != 0 || padded_start(b, 0) != 0)
        return ravel_error_set(err, RAVEL_E_DATA, "cu_seqlens must begin with 0");
    if (b->temperature < 0 || b->temperature != b->temperature)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "temperature is %g; it must be above 0", b->temperature);
    if (b->samples > m->sizes.flat || padded_start(b, b->samples) > (b->shared ? m->sizes.flat : m->sizes.tokens))
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "the batch has %d tokens in %d samples; the budget is %lld tokens",
                               padded_start(b, b->samples), b->samples, (long long)m->sizes.tokens);
    int cut = ranks > 1 && !b->shared;
    if ((cut && !b->positions) || (last && cut && !b->targets) || (b->targets && !b->weights))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a context-parallel batch needs positions, targets and weights");
    for (int64_t i = 0; i < b->samples; i++) {
        ravel_status status = check_sample(m, b, i, ranks, err);
        if (status) return status;
    }
    return b->shared ? train__tree_check(m, b, err) : RAVEL_OK;
}

/* ---- layout --------------------------------------------------------------------------------------------- */

/* The next array of 4-byte elements: returns where the host writes it, and sets where the device will read it. */
static void *next_array(train_model *m, int64_t count, const void *there) {
    RAVEL_ASSERT(count >= 0 && count <= 2 * m->sizes.flat);
    return train__staging_take(&m->staging, count, 4, there);
}

/* Scored tokens of sample i, appended. */
static void score_sample(train__micro *mb, const train_batch *b, int32_t i, int32_t *rows, int32_t *targets) {
    int32_t start = padded_start(b, i), end = start + b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    for (int32_t t = start; b->targets && t < end; t++) {
        if (b->weights[t] == 0) continue;
        rows[mb->losses] = t;
        targets[mb->losses] = b->targets[t];
        mb->places[mb->losses++] = t;
    }
    for (int32_t t = start + 1; !b->targets && t < end; t++) {
        if (b->weights && b->weights[t] == 0) continue;
        rows[mb->losses] = t - 1;
        targets[mb->losses] = b->tokens[t];
        mb->places[mb->losses++] = t;
    }
}

/* Rows sorted by their tokens, stable: a counting sort per byte of the ids. */
static void sort_by_token(int32_t *order, int32_t *spare, int64_t count, const int32_t *tokens, int64_t vocab) {
    for (int shift = 0; shift < 32 && vocab >> shift; shift += 8) {
        int64_t at[257] = {0};
        for (int64_t i = 0; i < count; i++) at[((uint32_t)tokens[order[i]] >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) at[d + 1] += at[d];
        for (int64_t i = 0; i < count; i++) spare[at[(uint32_t)tokens[order[i]] >> shift & 255]++] = order[i];
        RAVEL_ASSERT(at[255] == count);
        memcpy(order, spare, (size_t)count * sizeof *order);
    }
}

static void lay_out_tokens(train_model *m, train__micro *mb, const train_batch *b) {
    train__staged *s = &mb->staged;
    int32_t tokens = mb->ragged.tokens, longest = 0;
    int32_t *ids = next_array(m, tokens, &s->tokens), *positions = next_array(m, tokens, &s->positions);
    int32_t *starts = next_array(m, b->samples, &s->starts), *lengths = next_array(m, b->samples, &s->lengths);
    memset(ids, 0, (size_t)tokens * sizeof *ids);
    memset(positions, 0, (size_t)tokens * sizeof *positions);
    if (b->shared) train__tree_lay_out(m, mb, b, ids, positions);
    for (int32_t i = 0; i < b->samples; i++) {
        starts[i] = padded_start(b, i);
        lengths[i] = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
        if (b->shared) continue;
        if (b->tokens) memcpy(ids + starts[i], b->tokens + starts[i], (size_t)lengths[i] * sizeof *ids);
        int32_t first = train__net_first_position(&m->net, b->wholes ? b->wholes[i] : lengths[i]);
        for (int32_t t = 0; t < lengths[i]; t++)
            positions[starts[i] + t] = first + (b->positions ? b->positions[starts[i] + t] : t);
        if (lengths[i] > longest) longest = lengths[i];
    }
    if (b->shared) {
        train__tree_stage_attention(m, mb);
        longest = (int32_t)m->tree.batch.longest;
    }
    mb->ragged.longest = longest;
    mb->ragged.starts = s->starts;
    mb->ragged.lengths = s->lengths;
    mb->ragged.host_lengths = lengths;
    RAVEL_ASSERT(longest >= 1 && longest <= m->sizes.positions && mb->ragged.tokens <= m->sizes.tokens);
    if (m->options.inference || m->params->part.first_layer > 0) return;
    int32_t *order = next_array(m, mb->ordered, &s->order);
    if (b->shared) mb->ordered = train__tree_list_rows(m, mb, order);
    for (int32_t i = 0, n = 0; i < b->samples && !b->shared; i++)
        for (int32_t t = 0; t < lengths[i]; t++) order[n++] = starts[i] + t;
    RAVEL_ASSERT(mb->ordered <= m->sizes.tokens);
    sort_by_token(order, (int32_t *)(void *)m->numbers, mb->ordered, ids, m->vocab);
}

/* By place in the batch, to the order of losses. */
static void gather(train_model *m, const train__micro *mb, const float *by_place, const float **device) {
    if (!by_place) return;
    float *to = next_array(m, mb->losses, device);
    for (int64_t i = 0; i < mb->losses; i++) to[i] = by_place[mb->places[i]];
}

/* The same, added up over the losses of each scored row. */
static void gather_rows(train_model *m, const train__micro *mb, const float *by_place, float scale,
                        const float **device) {
    float *to = next_array(m, mb->scored, device);
    for (int64_t i = 0; i < mb->scored; i++) to[i] = 0;
    for (int64_t i = 0; i < mb->losses; i++)
        to[train__micro_row_of(mb, i)] += scale * (by_place ? by_place[mb->places[i]] : 1);
}

/* Context parallel: see ring.h. */
static void lay_out_halves(train_model *m, train__micro *mb, const train_batch *b) {
    train__halves *h = &mb->staged.halves;
    int32_t *lengths = next_array(m, b->samples, &h->lengths), *seconds = next_array(m, b->samples, &h->seconds);
    for (int32_t i = 0; i < b->samples; i++) {
        lengths[i] = (b->cu_seqlens[i + 1] - b->cu_seqlens[i]) / 2;
        RAVEL_ASSERT(lengths[i] > 0);
        seconds[i] = padded_start(b, i) + lengths[i];
        h->shortest = i ? (int32_t)train__min(h->shortest, lengths[i]) : lengths[i];
        h->longest = i ? (int32_t)train__max(h->longest, lengths[i]) : lengths[i];
    }
    h->host_lengths = lengths;
    if (train__model_by_chunk(m)) train__ring_lay_out(m, mb);
}

static ravel_status lay_out_scored(train_model *m, train__micro *mb, const train_batch *b, const train__extra *x,
                                   ravel_error *err) {
    train__staged *s = &mb->staged;
    int64_t most = b->shared ? padded_start(b, b->samples) : mb->ordered; /* each token of each sample */
    int32_t *rows = next_array(m, most, &s->rows), *targets = next_array(m, most, &s->targets);
    mb->losses = 0;
    for (int32_t i = 0; i < b->samples && (b->targets || b->tokens); i++) score_sample(mb, b, i, rows, targets);
    mb->scored = mb->losses;
    if (b->shared) {
        ravel_status status = train__tree_stage_scored(m, mb, b, rows, targets, err);
        if (status) return status;
    }
    RAVEL_ASSERT(mb->scored >= 0 && mb->scored <= m->sizes.scored);
    float *weights = next_array(m, mb->losses, &s->weights);
    for (int64_t i = 0; i < mb->losses; i++) weights[i] = b->weights ? b->weights[mb->places[i]] : 1;
    if (x->negative_weights) gather_rows(m, mb, b->weights, -1, &s->coef);
    gather(m, mb, x->old, &s->old);
    gather(m, mb, x->generator, &s->generator);
    gather(m, mb, x->reference, &s->reference);
    if (!x->advantages) return RAVEL_OK;
    float *advantages = next_array(m, mb->losses, &s->advantages);
    int32_t *samples_of = next_array(m, mb->losses, &s->samples_of), sample = 0;
    for (int64_t i = 0; i < mb->losses; i++) {
        while (sample + 1 < b->samples && mb->places[i] >= padded_start(b, sample + 1)) sample++;
        samples_of[i] = sample;
        RAVEL_ASSERT(mb->places[i] >= padded_start(b, sample) && mb->places[i] < padded_start(b, sample + 1));
        advantages[i] = x->advantages[sample];
    }
    return RAVEL_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

ravel_status train__model_stage(train_model *m, train__micro *mb, const train_batch *b, const train__extra *extra,
                                ravel_error *err) {
    ravel_status status = check_batch(m, b, err);
    if (status) return status;
    if (mb->learn_begun) /* its backward was never called */
        train__staging_release(&m->staging, mb->staged.block);
    train__staging_begin(&m->staging);
    mb->learn_begun = mb->counts = 0;
    mb->record = NULL;
    mb->staged = (train__staged){.block = m->staging.turn};
    mb->batch = *b;
    train__link_set(&mb->cp, b->cp ? b->cp : m->options.cp);
    RAVEL_ASSERT(mb->cp.ranks <= m->cp_most);
    mb->ragged = (train_ragged){.tokens = padded_start(b, b->samples)};
    mb->ordered = b->cu_seqlens[b->samples];
    mb->gaps = mb->ragged.tokens != mb->ordered;
    if (b->shared) { /* checking the batch has measured the tree */
        mb->ragged.tokens = (int32_t)train__tree_rows(m, mb);
        mb->ordered = mb->ragged.tokens;
        mb->gaps = m->tree.batch.tokens != m->tree.batch.unique;
    }
    mb->logit_scale = (train_real)(m->net.logits_scale / (b->temperature > 0 ? b->temperature : 1));
    lay_out_tokens(m, mb, b);
    if (mb->cp.ranks > 1 && !b->shared) lay_out_halves(m, mb, b);
    status = lay_out_scored(m, mb, b, extra, err);
    if (!status) status = train__load_stage(m, mb, b, err);
    if (status) {
        train__staging_release(&m->staging, mb->staged.block);
        return status;
    }
    RAVEL_ASSERT(mb->staged.positions && mb->staged.starts && mb->staged.block == m->staging.turn);
    train__staging_send(&m->staging);
    return RAVEL_OK;
}

void train__model_stage_coefs(train_model *m, train__micro *mb, const float *coef) {
    RAVEL_ASSERT(coef && mb->scored >= 0);
    train__staging_begin(&m->staging);
    gather_rows(m, mb, coef, 1, &mb->staged.coef);
    train__staging_send(&m->staging);
}
