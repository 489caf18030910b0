/* Reference: attention. A row of scores is walked three times rather than stored: its maximum, its sum, its output. */
#include "train/kernels/ref/ref.h"

#include <math.h>

static double dot(const train_real *a, const train_real *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* One query over `count` >= 1 keys and values, ld apart. Returns the log-sum-exp of its scores. */
static double attend(train_real *o, const train_real *q, const train_real *k, const train_real *v, int64_t ld_k,
                     int64_t ld_v, int64_t count, int64_t dim, double scale) {
    double first = scale * dot(q, k, dim), most = first;
    for (int64_t j = 1; j < count; j++) most = fmax(most, scale * dot(q, k + j * ld_k, dim));
    double sum = exp(first - most);
    for (int64_t j = 1; j < count; j++) sum += exp(scale * dot(q, k + j * ld_k, dim) - most);
    double lse = most + log(sum);
    for (int64_t i = 0; i < dim; i++) o[i] = 0;
    for (int64_t j = 0; j < count; j++) {
        double p = exp(scale * dot(q, k + j * ld_k, dim) - lse);
        for (int64_t i = 0; i < dim; i++) o[i] += (train_real)(p * v[j * ld_v + i]);
    }
    return lse;
}

void REF(attention)(train_device *d, const train_attention *x) {
    (void)d;
    int64_t dim = x->head_dim, group = x->heads / x->kv_heads;
    for (int32_t s = 0; s < x->batch.samples; s++)
        for (int64_t i = 0; i < x->batch.lengths[s]; i++)
            for (int64_t h = 0; h < x->heads; h++) {
                int64_t first = x->batch.starts[s], t = first + i, at = h / group * dim;
                double lse =
                    attend(x->o + (t * x->heads + h) * dim, x->q + t * x->ld_q + h * dim, x->k + first * x->ld_k + at,
                           x->v + first * x->ld_v + at, x->ld_k, x->ld_v, i + 1, dim, x->scale);
                x->lse[t * x->heads + h] = (train_real)lse;
            }
}

/* With p = exp(scale * q k - lse), d_p = d_o v, delta = d_o o:
 *     d_s = p * (d_p - delta) * scale;   d_v += p d_o,  d_q += d_s k,  d_k += d_s q */
static void attend_backward(const train_attention *x, int64_t first, int64_t i, int64_t h) {
    int64_t dim = x->head_dim, t = first + i, at = h / (x->heads / x->kv_heads) * dim;
    const train_real *q = x->q + t * x->ld_q + h * dim, *d_o = x->d_o + (t * x->heads + h) * dim;
    train_real *d_q = x->d_q + t * x->ld_dq + h * dim;
    double delta = dot(d_o, x->o + (t * x->heads + h) * dim, dim), lse = x->lse[t * x->heads + h];
    for (int64_t j = 0; j <= i; j++) {
        const train_real *k = x->k + (first + j) * x->ld_k + at, *v = x->v + (first + j) * x->ld_v + at;
        train_real *d_k = x->d_k + (first + j) * x->ld_dk + at, *d_v = x->d_v + (first + j) * x->ld_dv + at;
        double p = exp(x->scale * dot(q, k, dim) - lse), d_s = p * (dot(d_o, v, dim) - delta) * x->scale;
        for (int64_t e = 0; e < dim; e++) {
            d_v[e] += (train_real)(p * d_o[e]);
            d_q[e] += (train_real)(d_s * k[e]);
            d_k[e] += (train_real)(d_s * q[e]);
        }
    }
}

static void clear_row(train_real *row, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] = 0;
}

void REF(attention_backward)(train_device *d, const train_attention *x) {
    (void)d;
    for (int32_t s = 0; s < x->batch.samples; s++) {
        int64_t first = x->batch.starts[s], count = x->batch.lengths[s];
        for (int64_t t = first; t < first + count; t++) {
            clear_row(x->d_q + t * x->ld_dq, x->heads * x->head_dim);
            clear_row(x->d_k + t * x->ld_dk, x->kv_heads * x->head_dim);
            clear_row(x->d_v + t * x->ld_dv, x->kv_heads * x->head_dim);
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t h = 0; h < x->heads; h++) attend_backward(x, first, i, h);
    }
}

void REF(attention_cached)(train_device *d, const train_cached *x) {
    (void)d;
    int64_t dim = x->head_dim, group = x->heads / x->kv_heads, ld = x->kv_heads * dim;
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t h = 0; h < x->heads; h++) {
            int64_t at = x->slots[r] * x->slot_tokens * ld + h / group * dim;
            attend(x->o + (r * x->heads + h) * dim, x->q + r * x->ld_q + h * dim, x->k_cache + at, x->v_cache + at, ld,
                   ld, x->lengths[r], dim, x->scale);
        }
}
