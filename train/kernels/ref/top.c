/* Reference: the likeliest tokens of a teacher, and the divergence of a model from them (train_top_rows). */
#include "train/kernels/ref/ref.h"

#include "base/assert.h"

#include <math.h>

/* Puts a token into values[*have], which has room for `most`, best first; of equal ones the lower token comes first. */
static void put(train_real *values, train_real *tokens, int32_t *have, int32_t most, double value, double token) {
    if (*have == most && !(value > (double)values[most - 1])) return;
    int32_t at = *have < most ? (*have)++ : most - 1;
    for (; at > 0 && value > (double)values[at - 1]; at--) {
        values[at] = values[at - 1];
        tokens[at] = tokens[at - 1];
    }
    values[at] = (train_real)value;
    tokens[at] = (train_real)token;
}

void REF(top_parts)(train_device *d, const train_top_rows *x) {
    (void)d;
    RAVEL_ASSERT(train__top_ok(x) && x->parts);
    for (int64_t r = 0; r < x->rows; r++) {
        const train_real *row = (const train_real *)x->logits + r * x->columns;
        train_real *values = x->parts + r * x->count, *tokens = values + x->rows * x->count;
        int32_t have = 0;
        for (int64_t i = 0; i < x->columns; i++)
            put(values, tokens, &have, x->count, (double)(x->scale * row[i]), (double)(x->first + i));
        for (; have < x->count; have++) values[have] = -(train_real)INFINITY, tokens[have] = 0;
    }
}

void REF(top_combine)(train_device *d, const train_top_rows *x) {
    (void)d;
    RAVEL_ASSERT(x->ranks >= 1 && x->parts && x->lse && x->places && x->ids && x->logprob);
    int64_t each = x->rows * x->count;
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t to = (int64_t)x->places[r] * x->count;
        for (int32_t k = 0; k < x->count; k++) {
            const train_real *best = NULL;
            for (int64_t rank = 0; rank < x->ranks; rank++) { /* the next one after those that were taken */
                const train_real *value = x->parts + 2 * rank * each + r * x->count;
                for (int32_t i = 0; i < x->count; i++, value++) {
                    int taken = 0;
                    for (int32_t j = 0; j < k; j++) taken |= x->ids[to + j] == (int32_t)value[each];
                    if (!taken && (!best || *value > *best)) best = value;
                }
            }
            RAVEL_ASSERT(best);
            x->ids[to + k] = (int32_t)best[each];
            x->logprob[to + k] = (float)(*best - x->lse[r]);
        }
    }
}

void REF(top_gather)(train_device *d, const train_top_rows *x) {
    (void)d;
    RAVEL_ASSERT(train__top_ok(x) && x->parts && x->lse && x->places && x->ids);
    for (int64_t r = 0; r < x->rows; r++)
        for (int32_t k = 0; k < x->count; k++) {
            int64_t here = x->ids[(int64_t)x->places[r] * x->count + k] - x->first;
            x->parts[r * x->count + k] =
                here >= 0 && here < x->columns
                    ? x->scale * ((const train_real *)x->logits)[r * x->columns + here] - x->lse[r]
                    : 0;
        }
}

/* The least that counts as the probability of the other tokens: below it rounding would decide, and it is a
 * constant. */
static const double least = 1e-4;

/* With q the model's probabilities, P those of the teacher and D the divergence, dD/dz is inside * q - P for the K
 * tokens and share * q for the others. `softmax_backward` gives share * q for all of them (coef) and `top_backward` the
 * rest. */
void REF(top_loss)(train_device *d, const train_top_rows *x) {
    (void)d;
    RAVEL_ASSERT(x->rows >= 0 && x->parts && x->logprob && x->weights && x->coef && x->rest && x->sums);
    for (int64_t r = 0; r < x->rows; r++) {
        const float *teacher = x->logprob + (int64_t)x->places[r] * x->count;
        train_real *mine = x->parts + r * x->count;
        double p_in = 0, q_in = 0, loss = 0, w = (double)x->weights[r] * x->weight;
        for (int32_t k = 0; k < x->count; k++) {
            double p = exp((double)teacher[k]);
            p_in += p;
            q_in += exp((double)mine[k]);
            loss += p * ((double)teacher[k] - (double)mine[k]);
        }
        double p_out = fmax(1 - p_in, 0), q_out = fmax(1 - q_in, least);
        int constant = 1 - q_in < least;
        double inside = constant ? p_in : 1, share = constant ? p_in : 1 - p_out / q_out;
        if (p_out > 0) loss += p_out * log(p_out / q_out);
        for (int32_t k = 0; k < x->count; k++)
            mine[k] = (train_real)(w * ((inside - share) * exp((double)mine[k]) - exp((double)teacher[k])));
        x->rest[r] = (train_real)(w * share);
        x->coef[r] -= x->rest[r];
        x->sums->kl += loss;
        x->sums->loss += w * loss;
    }
}

void REF(top_backward)(train_device *d, const train_top_rows *x) {
    (void)d;
    RAVEL_ASSERT(train__top_ok(x) && x->parts && x->rest && x->targets && x->places && x->ids);
    for (int64_t r = 0; r < x->rows; r++) {
        train_real *row = (train_real *)x->logits + r * x->columns;
        int64_t target = x->targets[r] - x->first;
        if (target >= 0 && target < x->columns) row[target] += x->scale * x->rest[r];
        for (int32_t k = 0; k < x->count; k++) {
            int64_t here = x->ids[(int64_t)x->places[r] * x->count + k] - x->first;
            if (here >= 0 && here < x->columns) row[here] += x->scale * x->parts[r * x->count + k];
        }
    }
}
