/* Reference: rms-norm, rotation of queries and keys, gated units. */
#include "train/kernels/ref/ref.h"

#include <math.h>

/* 1 / sqrt(mean(x^2) + eps) */
static double inverse_rms(const train_real *x, int64_t width, double eps) {
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
    return 1 / sqrt(sum / (double)width + eps);
}

void REF(rmsnorm)(train_device *d, const train_norm *n) {
    (void)d;
    RAVEL_ASSERT(train__norm_ok(n));
    const train_real *x = n->x, *add = n->add, *weight = n->weight;
    train_real *y = n->y, *sum = n->sum;
    int64_t ld_y = n->ld_y ? n->ld_y : n->width;
    for (int64_t r = 0; r < n->rows; r++, x += n->ld_x ? n->ld_x : n->width) {
        const train_real *row = x;
        if (add) {
            for (int64_t i = 0; i < n->width; i++) sum[r * n->width + i] = x[i] + add[r * n->width + i];
            row = sum + r * n->width;
        }
        if (!y) continue;
        double inverse = inverse_rms(row, n->width, n->eps);
        for (int64_t i = 0; i < n->width; i++)
            y[r * ld_y + i] = (train_real)(row[i] * inverse * (weight[i] + n->shift));
    }
}

/* With n = x * inverse (the normalised row) and g = d_y * weight:
 *     d_x = inverse * (g - n * mean(g * n)),   d_weight = d_y * n
 *
 * Columns are taken in groups, so that their sums over the rows can be in double without memory of their own. */
enum { GROUP = 64 };

static void rmsnorm_weight_backward(const train_norm *n, int64_t ld_x, int64_t ld_y) {
    const train_real *x = n->x, *d_y = n->d_y;
    for (int64_t first = 0; first < n->width; first += GROUP) {
        double sums[GROUP] = {0};
        int64_t count = n->width - first < GROUP ? n->width - first : GROUP;
        for (int64_t r = 0; r < n->rows; r++) {
            double inverse = inverse_rms(x + r * ld_x, n->width, n->eps);
            for (int64_t i = 0; i < count; i++)
                sums[i] += d_y[r * ld_y + first + i] * (x[r * ld_x + first + i] * inverse);
        }
        for (int64_t i = 0; i < count; i++) ((train_real *)n->d_weight)[first + i] += (train_real)sums[i];
    }
}

void REF(rmsnorm_backward)(train_device *d, const train_norm *n) {
    (void)d;
    RAVEL_ASSERT(train__norm_backward_ok(n));
    const train_real *x = n->x, *d_y = n->d_y, *weight = n->weight;
    train_real *d_x = n->d_x;
    int64_t width = n->width, ld_x = n->ld_x ? n->ld_x : width, ld_y = n->ld_y ? n->ld_y : width;
    rmsnorm_weight_backward(n, ld_x, ld_y);
    for (int64_t r = 0; r < n->rows; r++, x += ld_x, d_x += width, d_y += ld_y) {
        double inverse = inverse_rms(x, width, n->eps), dot = 0;
        for (int64_t i = 0; i < width; i++) dot += (double)d_y[i] * (weight[i] + n->shift) * x[i] * inverse;
        dot /= (double)width;
        for (int64_t i = 0; i < width; i++)
            d_x[i] += (train_real)(inverse * ((double)d_y[i] * (weight[i] + n->shift) - x[i] * inverse * dot));
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------- */

/* The elements of pair i: of those that turn, or of those after them. */
typedef struct pair {
    int64_t a, b;
} pair;

static pair pair_at(const train_rope *x, int64_t i) {
    int64_t turns = (x->rotated ? x->rotated : x->head_dim) / 2, rest = x->head_dim / 2 - turns;
    return i < turns ? (pair){i, i + turns} : (pair){i + turns, i + turns + rest};
}

/* One head: y = rotate(x * inverse * weight), each pair turned by the angle of its frequency. */
static void rope_head(const train_rope *x, train_real *y, const train_real *head, const train_real *weight,
                      const train_real *cosine, const train_real *sine) {
    int64_t half = x->head_dim / 2;
    double inverse = weight ? inverse_rms(head, x->head_dim, x->eps) : 1;
    for (int64_t i = 0; i < half; i++) {
        const pair p = pair_at(x, i);
        double a = head[p.a] * inverse * (weight ? weight[p.a] + x->shift : 1);
        double b = head[p.b] * inverse * (weight ? weight[p.b] + x->shift : 1);
        y[p.a] = (train_real)(a * cosine[i] - b * sine[i]);
        y[p.b] = (train_real)(b * cosine[i] + a * sine[i]);
    }
}

void REF(rope)(train_device *d, const train_rope *x) {
    (void)d;
    RAVEL_ASSERT(train__rope_ok(x));
    int64_t dim = x->head_dim, half = dim / 2, width = (x->heads + 2 * x->kv_heads) * dim;
    for (int64_t t = 0; t < x->tokens; t++) {
        const train_real *row = (const train_real *)x->qkv + t * width;
        const train_real *cosine = x->cosine + x->positions[t] * half, *sine = x->sine + x->positions[t] * half;
        for (int64_t h = 0; h < x->heads; h++)
            rope_head(x, (train_real *)x->q + (t * x->heads + h) * dim, row + h * dim, x->q_weight, cosine, sine);
        for (int64_t h = 0; h < x->kv_heads; h++)
            rope_head(x, (train_real *)x->k + (t * x->kv_heads + h) * dim, row + (x->heads + h) * dim, x->k_weight,
                      cosine, sine);
    }
}

/* The rotation backwards is the rotation by the opposite angle; then the norm backwards, in place. */
static void rope_head_backward(const train_rope *x, train_real *d_head, train_real *d_weight, const train_real *d_y,
                               const train_real *head, const train_real *weight, const train_real *cosine,
                               const train_real *sine) {
    int64_t half = x->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const pair p = pair_at(x, i);
        double a = d_y[p.a], b = d_y[p.b];
        d_head[p.a] = (train_real)(a * cosine[i] + b * sine[i]);
        d_head[p.b] = (train_real)(b * cosine[i] - a * sine[i]);
    }
    if (!weight) return;
    double inverse = inverse_rms(head, x->head_dim, x->eps), dot = 0;
    for (int64_t i = 0; i < x->head_dim; i++) dot += (double)d_head[i] * (weight[i] + x->shift) * head[i] * inverse;
    dot /= (double)x->head_dim;
    for (int64_t i = 0; i < x->head_dim; i++) {
        double normal = head[i] * inverse, g = d_head[i];
        d_weight[i] += (train_real)(g * normal);
        d_head[i] = (train_real)(inverse * (g * (weight[i] + x->shift) - normal * dot));
    }
}

void REF(rope_backward)(train_device *d, const train_rope *x) {
    (void)d;
    RAVEL_ASSERT(train__rope_backward_ok(x));
    int64_t dim = x->head_dim, half = dim / 2, width = (x->heads + 2 * x->kv_heads) * dim;
    for (int64_t t = 0; t < x->tokens; t++) {
        const train_real *row = (const train_real *)x->qkv + t * width;
        train_real *d_row = (train_real *)x->d_qkv + t * width;
        const train_real *cosine = x->cosine + x->positions[t] * half, *sine = x->sine + x->positions[t] * half;
        for (int64_t h = 0; h < x->heads; h++)
            rope_head_backward(x, d_row + h * dim, x->d_q_weight, (const train_real *)x->d_q + (t * x->heads + h) * dim,
                               row + h * dim, x->q_weight, cosine, sine);
        for (int64_t h = 0; h < x->kv_heads; h++) {
            int64_t at = (x->heads + h) * dim;
            rope_head_backward(x, d_row + at, x->d_k_weight, (const train_real *)x->d_k + (t * x->kv_heads + h) * dim,
                               row + at, x->k_weight, cosine, sine);
        }
    }
}

/* ---- feed-forward --------------------------------------------------------------------------------------- */

/* Both activations are gate * sigmoid(s), with s = a gate + b gate^3: silu has s = gate, and gelu in its tanh form
 * twice the argument of its tanh, which is sqrt(2 / pi) (gate + .044715 gate^3). */
typedef struct curve {
    double a, b;
} curve;
static const curve silu = {1, 0}, gelu = {1.5957691216057308, .0713548162726009};

void REF(gated)(train_device *d, const train_gated *x) {
    const curve *c = x->gelu ? &gelu : &silu;
    const train_real *gate_up = x->gate_up;
    train_real *h = x->h;
    (void)d;
    RAVEL_ASSERT(train__gated_ok(x));
    for (int64_t r = 0; r < x->rows; r++, h += x->ffn, gate_up += 2 * x->ffn)
        for (int64_t i = 0; i < x->ffn; i++) {
            double gate = gate_up[i], up = gate_up[x->ffn + i], s = gate * (c->a + c->b * gate * gate);
            h[i] = (train_real)(gate * (1 / (1 + exp(-s))) * up);
        }
}

void REF(gated_backward)(train_device *d, const train_gated *x) {
    const curve *c = x->gelu ? &gelu : &silu;
    const train_real *gate_up = x->gate_up, *d_h = x->d_h;
    train_real *d_gate_up = x->d_gate_up, *h = x->h;
    (void)d;
    RAVEL_ASSERT(train__gated_ok(x));
    for (int64_t r = 0; r < x->rows; r++, d_h += x->ffn, gate_up += 2 * x->ffn, d_gate_up += 2 * x->ffn)
        for (int64_t i = 0; i < x->ffn; i++) {
            double gate = gate_up[i], up = gate_up[x->ffn + i], slope = c->a + 3 * c->b * gate * gate;
            double sigmoid = 1 / (1 + exp(-gate * (c->a + c->b * gate * gate))), out = gate * sigmoid;
            if (h) h[r * x->ffn + i] = (train_real)(out * up);
            d_gate_up[i] = (train_real)(d_h[i] * up * (sigmoid + out * (1 - sigmoid) * slope));
            d_gate_up[x->ffn + i] = (train_real)(d_h[i] * out);
        }
}
