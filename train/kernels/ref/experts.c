/* Reference: which experts a token goes to, and the weights of what they give. */
#include "train/kernels/ref/ref.h"

#include <math.h>

/* log of the sum of exp(row) */
static double log_sum(const train_real *row, int32_t experts) {
    double most = row[0];
    for (int32_t e = 1; e < experts; e++) most = fmax(most, row[e]);
    double sum = exp(row[0] - most);
    for (int32_t e = 1; e < experts; e++) sum += exp(row[e] - most);
    return most + log(sum);
}

static int is_taken(const int32_t *ids, int32_t count, int32_t expert) {
    for (int32_t i = 0; i < count; i++)
        if (ids[i] == expert) return 1;
    return 0;
}

/* The largest logits, the first of equal ones. */
static void choose(const train_route *x, const train_real *row, int32_t *ids) {
    for (int32_t i = 0; i < x->active; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < x->experts; e++)
            if (!is_taken(ids, i, e) && (best < 0 || row[e] > row[best])) best = e;
        RAVEL_ASSERT(best >= 0);
        ids[i] = best;
    }
}

void REF(route_rows)(const train_route *x, int64_t first, int64_t last) {
    RAVEL_ASSERT(first >= 0 && last <= x->rows);
    for (int64_t r = first; r < last; r++) {
        const train_real *row = (const train_real *)x->logits + r * x->experts;
        train_real *weights = x->weights + r * x->active;
        int32_t *ids = x->ids + r * x->active;
        double log_total = log_sum(row, x->experts), sum = 0;
        if (!x->given || ids[0] < 0) choose(x, row, ids);
        for (int32_t i = 0; i < x->active; i++) sum += exp(row[ids[i]] - log_total);
        for (int32_t i = 0; i < x->active; i++)
            weights[i] = (train_real)(exp(row[ids[i]] - log_total) / (x->normalise ? sum : 1));
    }
}

/* With p the probabilities and g their gradient: the gradient of a logit is p (g - sum of p g). Of a normalised weight
 * w = p / s, where s is the sum of the chosen p: g = (d_w - sum of w d_w) / s. */
void REF(route_rows_backward)(const train_route *x, int64_t first, int64_t last) {
    RAVEL_ASSERT(first >= 0 && last <= x->rows);
    for (int64_t r = first; r < last; r++) {
        const train_real *row = (const train_real *)x->logits + r * x->experts, *d_w = x->d_weights + r * x->active;
        const int32_t *ids = x->ids + r * x->active;
        train_real *to = (train_real *)x->d_logits + r * x->experts;
        int32_t times = !x->balance ? 0 : x->counted ? x->counted[r] : 1;
        double log_total = log_sum(row, x->experts), sum = 0, pull = 0, mean = 0, loss = 0;
        for (int32_t i = 0; i < x->active; i++) sum += exp(row[ids[i]] - log_total);
        for (int32_t i = 0; i < x->active && x->normalise; i++) pull += exp(row[ids[i]] - log_total) / sum * d_w[i];
        for (int32_t i = 0; i < x->active; i++)
            mean += exp(row[ids[i]] - log_total) * (d_w[i] - pull) / (x->normalise ? sum : 1);
        for (int32_t e = 0; e < x->experts && times; e++) loss += times * exp(row[e] - log_total) * x->balance[e];
        for (int32_t e = 0; e < x->experts; e++)
            to[e] = (train_real)(exp(row[e] - log_total) * ((times ? times * x->balance[e] : 0) - mean - loss));
        for (int32_t i = 0; i < x->active; i++)
            to[ids[i]] += (train_real)(exp(row[ids[i]] - log_total) * (d_w[i] - pull) / (x->normalise ? sum : 1));
        if (x->row_loss) x->row_loss[r] += (train_real)loss;
    }
}

void REF(route)(train_device *d, const train_route *x) {
    (void)d;
    RAVEL_ASSERT(train__route_ok(x));
    REF(route_rows)(x, 0, x->rows);
}

void REF(route_backward)(train_device *d, const train_route *x) {
    (void)d;
    RAVEL_ASSERT(train__route_backward_ok(x));
    REF(route_rows_backward)(x, 0, x->rows);
}

void REF(weigh)(train_device *d, const train_weigh *x) {
    (void)d;
    RAVEL_ASSERT(train__weigh_ok(x));
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t i = 0; i < x->width; i++)
            ((train_real *)x->x)[r * x->width + i] *= x->weights[train__weigh_place(x, r)];
}

void REF(weigh_backward)(train_device *d, const train_weigh *x) {
    (void)d;
    RAVEL_ASSERT(train__weigh_ok(x) && x->d_y);
    for (int64_t r = 0; r < x->rows; r++) {
        train_real *row = (train_real *)x->x + r * x->width, *d_row = (train_real *)x->d_y + r * x->width;
        train_real weight = x->weights[train__weigh_place(x, r)];
        double dot = 0;
        for (int64_t i = 0; i < x->width; i++) {
            dot += (double)row[i] * d_row[i];
            row[i] *= weight;
            d_row[i] *= weight;
        }
        x->d_weights[train__weigh_place(x, r)] = (train_real)dot;
    }
}
