/* Reference: softmax over the vocabulary, its gradient, and drawing a token. */
#include "train/kernels/ref/ref.h"

#include "train/kernels/ref/device.h"

#include <math.h>
#include <stdlib.h>

static double log_sum_exp(const train_real *x, int64_t n, double scale) {
    double most = scale * x[0];
    for (int64_t i = 1; i < n; i++) most = fmax(most, scale * x[i]);
    double sum = exp(scale * x[0] - most);
    for (int64_t i = 1; i < n; i++) sum += exp(scale * x[i] - most);
    return most + log(sum);
}

void REF(softmax_parts)(train_device *d, const train_softmax *x) {
    (void)d;
    RAVEL_ASSERT(train__softmax_ok(x) && x->parts);
    train_real *most = x->parts, *sum = most + x->rows, *mean = sum + x->rows, *target = mean + x->rows;
    for (int64_t r = 0; r < x->rows; r++) {
        const train_real *row = (const train_real *)x->logits + r * x->columns;
        int64_t here = x->targets[r] - x->first;
        double scale = x->scale, top = scale * row[0], total = 0, weighted = 0;
        for (int64_t i = 1; i < x->columns; i++) top = fmax(top, scale * row[i]);
        top = (train_real)top; /* as it is handed on */
        for (int64_t i = 0; i < x->columns; i++) {
            double z = scale * row[i] - top, e = exp(z);
            total += e;
            weighted += e * z;
        }
        most[r] = (train_real)top;
        sum[r] = (train_real)total;
        mean[r] = (train_real)weighted;
        target[r] = here >= 0 && here < x->columns ? (train_real)(scale * row[here] - top) : -(train_real)INFINITY;
    }
}

/* The parts relative to the largest of their maxima: with z' = z + (most - top), the sum of e^z' z' is
 * e^(most - top) * (mean + (most - top) * sum). */
void REF(softmax_combine)(train_device *d, const train_softmax *x) {
    (void)d;
    RAVEL_ASSERT(x->rows >= 0 && x->ranks >= 1 && x->parts && x->lse && x->logprob);
    for (int64_t r = 0; r < x->rows; r++) {
        const train_real *part = x->parts + r;
        double top = -INFINITY, sum = 0, mean = 0, target = -INFINITY;
        for (int64_t i = 0; i < x->ranks; i++) top = fmax(top, part[4 * i * x->rows]);
        for (int64_t i = 0; i < x->ranks; i++, part += 4 * x->rows) {
            double off = part[0] - top, share = exp(off);
            sum += share * part[x->rows];
            mean += share * (part[2 * x->rows] + off * part[x->rows]);
            target = fmax(target, part[3 * x->rows] + off);
        }
        if (sum == 0) continue; /* no part at all; there is always one */
        x->lse[r] = (train_real)(top + log(sum));
        x->logprob[r] = (train_real)(target - log(sum));
        if (x->entropy) x->entropy[r] = (train_real)(log(sum) - mean / sum);
        if (x->right) x->right[r] = target > -TRAIN_RIGHT_GAP * (1 + fabs(top));
    }
}

/* With p = exp(s x - lse):  d logprob / dx = s (onehot - p),   d entropy / dx = -s p (log p + entropy). */
void REF(softmax_backward)(train_device *d, const train_softmax *x) {
    (void)d;
    RAVEL_ASSERT(train__softmax_ok(x) && x->lse && x->coef);
    RAVEL_ASSERT(!x->entropy_coef || x->entropy);
    for (int64_t r = 0; r < x->rows; r++) {
        train_real *row = (train_real *)x->logits + r * x->columns;
        double bonus = x->entropy_coef ? x->entropy_coef[r] : 0;
        for (int64_t i = 0; i < x->columns; i++) {
            double log_p = (double)x->scale * row[i] - x->lse[r], p = exp(log_p);
            double g = x->coef[r] * ((x->first + i == x->targets[r]) - p);
            if (x->entropy_coef) g -= bonus * p * (log_p + x->entropy[r]);
            row[i] = (train_real)(x->scale * g);
        }
    }
}

void REF(softmax_fused)(train_device *d, const train_softmax *x) {
    train_softmax whole = *x;
    whole.ranks = 1;
    whole.entropy = NULL;
    whole.entropy_coef = NULL;
    REF(softmax_parts)(d, &whole);
    REF(softmax_combine)(d, &whole);
    REF(softmax_backward)(d, &whole);
}

/* ---- sampling ------------------------------------------------------------------------------------------- */

/* Likeliest first; of equals the lower token. */
static int by_weight(const void *a, const void *b) {
    const train__ranked *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int by_token(const void *a, const void *b) {
    const train__ranked *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* How many of the ranked tokens top_k and then top_p keep; at least one. */
static int64_t most_likely(const train__ranked *ranked, int64_t vocab, const train_choice *choice) {
    int64_t count = choice->top_k > 0 && choice->top_k < vocab ? choice->top_k : vocab, n = 0;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) total += ranked[i].weight;
    if (choice->top_p >= 1) return count;
    while (n < count && (n == 0 || sum < (double)choice->top_p * total)) sum += ranked[n++].weight;
    return n;
}

static int64_t kept(const train__ranked *ranked, int64_t vocab, const train_choice *choice) {
    int64_t count = most_likely(ranked, vocab, choice);
    while (count > 1 && ranked[count - 1].weight < (double)choice->min_p * ranked[0].weight) count--;
    return count;
}

/* Tokens that stay are walked in the order of their ids until the sum of their weights passes uniform * total. */
static void draw(train_device *d, const train_sample *x, int64_t r) {
    const train_real *row = (const train_real *)x->logits + r * x->vocab;
    const train_choice *choice = x->choices + r;
    double scale = 1 / (double)choice->temperature, lse = log_sum_exp(row, x->vocab, scale), sum = 0;
    for (int64_t i = 0; i < x->vocab; i++) d->ranked[i] = (train__ranked){exp(scale * row[i] - lse), (int32_t)i};
    qsort(d->ranked, (size_t)x->vocab, sizeof *d->ranked, by_weight);
    int64_t count = kept(d->ranked, x->vocab, choice), n = 0;
    RAVEL_ASSERT(count >= 1 && count <= x->vocab);
    qsort(d->ranked, (size_t)count, sizeof *d->ranked, by_token);
    double total = d->ranked[0].weight;
    for (int64_t i = 1; i < count; i++) total += d->ranked[i].weight;
    while (n < count - 1 && (sum += d->ranked[n].weight) <= (double)choice->uniform * total) n++;
    RAVEL_ASSERT(n < count && d->ranked[n].token >= 0 && d->ranked[n].token < x->vocab);
    x->tokens[r] = d->ranked[n].token;
    x->logprob[r] = (train_real)(scale * row[d->ranked[n].token] - lse);
    x->kept_logprob[r] = (train_real)(x->logprob[r] - log(total));
}

static void take_largest(const train_sample *x, int64_t r) {
    const train_real *row = (const train_real *)x->logits + r * x->vocab;
    int64_t best = 0;
    for (int64_t i = 1; i < x->vocab; i++)
        if (row[i] > row[best]) best = i;
    x->tokens[r] = (int32_t)best;
    x->logprob[r] = (train_real)(row[best] - log_sum_exp(row, x->vocab, 1));
    x->kept_logprob[r] = 0;
}

void REF(sample)(train_device *d, const train_sample *x) {
    RAVEL_ASSERT(train__sample_ok(x) && x->vocab <= d->vocab);
    for (int64_t r = 0; r < x->rows; r++)
        if (x->choices[r].temperature > 0)
            draw(d, x, r);
        else
            take_largest(x, r);
    for (int64_t r = 0; r < x->rows && x->last; r++) x->last[x->places[r]] = x->tokens[r];
}
