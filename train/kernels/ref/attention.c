/* Reference: attention. A row of scores is walked three times rather than stored: its maximum, its sum, its output. */
#include "train/kernels/ref/ref.h"

#include <math.h>
#include <string.h>

static double dot(const train_real *a, const train_real *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Where a row's keys and values are. */
typedef struct keys {
    const train_real *k, *v; /* of the first key seen */
    int64_t ld_k, ld_v, count;
} keys;

/* One query over its keys. Returns the log-sum-exp of its scores. */
static double attend(train_real *o, const train_real *q, const keys *x, int64_t dim, double scale) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < dim; i++) o[i] = 0;
    for (int64_t j = 0; j < x->count; j++) most = fmax(most, scale * dot(q, x->k + j * x->ld_k, dim));
    for (int64_t j = 0; j < x->count; j++) sum += exp(scale * dot(q, x->k + j * x->ld_k, dim) - most);
    double lse = x->count ? most + log(sum) : -INFINITY;
    for (int64_t j = 0; j < x->count; j++) {
        double p = exp(scale * dot(q, x->k + j * x->ld_k, dim) - lse);
        for (int64_t i = 0; i < dim; i++) o[i] += (train_real)(p * x->v[j * x->ld_v + i]);
    }
    return lse;
}

static int64_t shift_of(const train_attention *x, int32_t sample) {
    return x->shifts ? x->shifts[sample] : 0;
}

/* Keys first .. end - 1 are what query row `row` of the sample sees. */
static void seen(const train_attention *x, int32_t sample, int64_t row, int64_t *first, int64_t *end) {
    int64_t last = row + shift_of(x, sample), count = x->keys.lengths[sample];
    *end = last + 1 < count ? last + 1 : count;
    *first = x->window && last - x->window + 1 > 0 ? last - x->window + 1 : 0;
    if (*end < *first) *end = *first;
}

void REF(attention)(train_device *d, const train_attention *x) {
    (void)d;
    RAVEL_ASSERT(train__attention_ok(x));
    const train_real *q = x->q, *k = x->k, *v = x->v;
    train_real *o = x->o;
    int64_t dim = x->head_dim, group = x->heads / x->kv_heads, first, end;
    for (int32_t s = 0; s < x->samples; s++)
        for (int64_t i = 0; i < x->queries.lengths[s]; i++)
            for (int64_t h = 0; h < x->heads; h++) {
                seen(x, s, i, &first, &end);
                int64_t t = x->queries.starts[s] + i, row = x->keys.starts[s] + first, at = h / group * dim;
                keys mine = {k + row * x->ld_k + at, v + row * x->ld_v + at, x->ld_k, x->ld_v, end - first};
                x->lse[t * x->heads + h] =
                    (train_real)attend(o + (t * x->heads + h) * dim, q + t * x->ld_q + h * dim, &mine, dim, x->scale);
            }
}

/* With p = exp(scale * q k - lse), d_p = d_o v, delta = d_o o:
 *     d_s = p * (d_p - delta) * scale;   d_v += p d_o,  d_q += d_s k,  d_k += d_s q */
static void attend_backward(const train_attention *x, int32_t s, int64_t i, int64_t h) {
    int64_t dim = x->head_dim, t = x->queries.starts[s] + i, at = h / (x->heads / x->kv_heads) * dim, first, end;
    const train_real *q = (const train_real *)x->q + t * x->ld_q + h * dim;
    const train_real *o = (const train_real *)x->o + (t * x->heads + h) * dim;
    const train_real *d_o = (const train_real *)x->d_o + (t * x->heads + h) * dim;
    train_real *d_q = (train_real *)x->d_q + t * x->ld_dq + h * dim;
    double delta = dot(d_o, o, dim), lse = x->lse[t * x->heads + h];
    seen(x, s, i, &first, &end);
    for (int64_t row = x->keys.starts[s] + first; row < x->keys.starts[s] + end; row++) {
        const train_real *k = (const train_real *)x->k + row * x->ld_k + at;
        const train_real *v = (const train_real *)x->v + row * x->ld_v + at;
        train_real *d_k = (train_real *)x->d_k + row * x->ld_dk + at, *d_v = (train_real *)x->d_v + row * x->ld_dv + at;
        double p = exp(x->scale * dot(q, k, dim) - lse), d_s = p * (dot(d_o, v, dim) - delta) * x->scale;
        for (int64_t e = 0; e < dim; e++) {
            d_v[e] += (train_real)(p * d_o[e]);
            d_q[e] += (train_real)(d_s * k[e]);
            d_k[e] += (train_real)(d_s * q[e]);
        }
    }
}

static void clear_rows(void *block, int64_t first, int64_t rows, int64_t ld, int64_t width) {
    train_real *x = block;
    for (int64_t r = first; r < first + rows; r++)
        for (int64_t i = 0; i < width; i++) x[r * ld + i] = 0;
}

/* Sets that work on samples side by side add to a key's gradient without a lock. */
static int keys_apart(const train_ragged *of, int32_t samples) {
    for (int32_t a = 0; a < samples; a++)
        for (int32_t b = 0; b < a; b++)
            if (of->lengths[a] && of->lengths[b] && of->starts[a] < of->starts[b] + of->lengths[b] &&
                of->starts[b] < of->starts[a] + of->lengths[a])
                return 0;
    return 1;
}

void REF(attention_backward)(train_device *d, const train_attention *x) {
    (void)d;
    RAVEL_ASSERT(train__attention_backward_ok(x));
    RAVEL_ASSERT(keys_apart(&x->keys, x->samples));
    int64_t kv_width = x->kv_heads * x->head_dim;
    for (int32_t s = 0; s < x->samples; s++) {
        if (!x->add) clear_rows(x->d_q, x->queries.starts[s], x->queries.lengths[s], x->ld_dq, x->heads * x->head_dim);
        clear_rows(x->d_k, x->keys.starts[s], x->keys.lengths[s], x->ld_dk, kv_width);
        clear_rows(x->d_v, x->keys.starts[s], x->keys.lengths[s], x->ld_dv, kv_width);
    }
    for (int32_t s = 0; s < x->samples; s++)
        for (int64_t i = 0; i < x->queries.lengths[s]; i++)
            for (int64_t h = 0; h < x->heads; h++) attend_backward(x, s, i, h);
}

/* With m = log(e^a + e^b): the two outputs weigh e^(a - m) and e^(b - m). */
static void merge_head(const train_merge *x, int64_t place) {
    train_real *o = (train_real *)x->o + place * x->head_dim;
    const train_real *other = (const train_real *)x->other_o + place * x->head_dim;
    double a = x->lse[place], b = x->other_lse[place], most = fmax(a, b);
    if (b == -INFINITY) return;
    double both = most + log(exp(a - most) + exp(b - most)), mine = exp(a - both), theirs = exp(b - both);
    for (int64_t i = 0; i < x->head_dim; i++) o[i] = (train_real)(mine * o[i] + theirs * other[i]);
    x->lse[place] = (train_real)both;
}

void REF(attention_merge)(train_device *d, const train_merge *x) {
    (void)d;
    RAVEL_ASSERT(train__merge_ok(x));
    for (int32_t s = 0; s < x->samples; s++) {
        int64_t first = x->queries.starts[s], end = first + x->queries.lengths[s];
        RAVEL_ASSERT(first >= 0 && end <= x->queries.tokens);
        for (int64_t place = first * x->heads; place < end * x->heads; place++) merge_head(x, place);
    }
}

/* ---- the cache ------------------------------------------------------------------------------------------ */

/* The row of a slot's token, a page being [TRAIN_PAGE, kv_heads * head_dim]. */
static int64_t cache_row(const train_cache *c, int64_t slot, int64_t token) {
    RAVEL_ASSERT(slot >= 0 && token >= 0 && token < c->pages_per_slot * TRAIN_PAGE);
    return (int64_t)c->table[slot * c->pages_per_slot + token / TRAIN_PAGE] * TRAIN_PAGE + token % TRAIN_PAGE;
}

void REF(cache_write)(train_device *d, const train_cache_write *x) {
    (void)d;
    RAVEL_ASSERT(train__cache_write_ok(x));
    int64_t width = x->cache.kv_heads * x->cache.head_dim;
    for (int64_t r = 0; r < x->rows; r++) {
        if (!x->back && x->slots[r] < 0) continue;
        int64_t row = x->from ? x->from[r] : r,
                at = x->back ? cache_row(&x->cache, 0, r) : cache_row(&x->cache, x->slots[r], x->positions[r]);
        train_real *k = (train_real *)x->k + row * x->ld_k, *v = (train_real *)x->v + row * x->ld_v;
        train_real *k_there = (train_real *)x->cache.k + at * width, *v_there = (train_real *)x->cache.v + at * width;
        memcpy(x->back ? k : k_there, x->back ? k_there : k, (size_t)width * sizeof *k);
        memcpy(x->back ? v : v_there, x->back ? v_there : v, (size_t)width * sizeof *v);
    }
}

/* A running maximum and sum, as pages are not next to one another. */
static void attend_cached(const train_cached *x, int64_t r, int64_t h) {
    const train_cache *c = &x->cache;
    int64_t dim = c->head_dim, width = c->kv_heads * dim, at = h / (x->heads / c->kv_heads) * dim;
    int64_t length = x->lengths[r], first = x->window && length > x->window ? length - x->window : 0;
    const train_real *q = (const train_real *)x->q + r * x->ld_q + h * dim, *k = c->k, *v = c->v;
    train_real *o = (train_real *)x->o + (r * x->heads + h) * dim;
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < dim; i++) o[i] = 0;
    for (int64_t j = first; j < length; j++)
        most = fmax(most, x->scale * dot(q, k + cache_row(c, x->slots[r], j) * width + at, dim));
    for (int64_t j = first; j < length; j++)
        sum += exp(x->scale * dot(q, k + cache_row(c, x->slots[r], j) * width + at, dim) - most);
    for (int64_t j = first; j < length; j++) {
        int64_t row = cache_row(c, x->slots[r], j) * width + at;
        double p = exp(x->scale * dot(q, k + row, dim) - most) / sum;
        for (int64_t i = 0; i < dim; i++) o[i] += (train_real)(p * v[row + i]);
    }
}

void REF(attention_cached)(train_device *d, const train_cached *x) {
    (void)d;
    RAVEL_ASSERT(train__cached_ok(x));
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t h = 0; h < x->heads; h++) attend_cached(x, r, h);
}
