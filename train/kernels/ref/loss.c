/* Reference: losses of scored rows (train/kernels/loss.h), gradient norm and AdamW. The fast CPU sets use the losses
 * and the clip as they are: a few numbers per token. */
#include "train/kernels/ref/ref.h"

#include "batch/policy_terms.h"

#include <ravel/policy.h>

#include <math.h>

#include "base/assert.h"

/* The old log-prob of loss j: the log-prob now, where the policy has not moved yet. */
static double old_of(const train_loss_rows *x, int64_t j, double now) {
    return x->old ? (double)x->old[j] : now;
}

/* The correction of a token by itself, or of its sample q. */
static double importance(const train_loss_rows *x, int64_t j, double now, const train_sequence_sums *q, double *raw) {
    const ravel_correction *c = &x->policy->correction;
    *raw = 0;
    if (!x->generator || c->kind == RAVEL_CORRECTION_NONE) return 1;
    RAVEL_ASSERT(q || !c->sequence);
    double trainer = c->now ? now : old_of(x, j, now);
    return ravel__policy_weight(c, c->sequence ? q->gap : trainer - (double)x->generator[j], raw);
}

/* A sample's one weight counts once, shared out over its tokens. */
static void add_weight(const train_loss_rows *x, const train_sequence_sums *q, double weight, double raw) {
    const ravel_correction *c = &x->policy->correction;
    train_loss_sums *s = x->sums;
    if (!x->generator || c->kind == RAVEL_CORRECTION_NONE) return;
    RAVEL_ASSERT(q || !c->sequence);
    double unit = c->sequence ? 1 / q->tokens : 1;
    s->corrected += unit;
    s->weight += unit * weight;
    s->weight_square += unit * weight * weight;
    s->raw_square += unit * raw * raw;
    s->outside += raw < c->low || raw > c->high ? unit : 0;
}

static void add_gap(const train_loss_rows *x, int64_t j, double now) {
    train_loss_sums *s = x->sums;
    if (!x->generator || x->policy->gap == TRAIN_GAP_NONE) return;
    double trainer = x->policy->gap == TRAIN_GAP_NOW ? now : old_of(x, j, now);
    double gap = fabs(trainer - (double)x->generator[j]);
    s->gap += gap;
    s->gap_exp += exp(gap);
    s->gap_tokens += 1;
    s->gap_max = fmax(s->gap_max, gap);
}

/* Loss j of row r; returns its derivative by the row's log-prob. */
static double policy_loss(const train_loss_rows *x, int64_t r, int64_t j) {
    const train_policy_terms *p = x->policy;
    RAVEL_ASSERT(!train__terms_couple(p) || x->sequences[x->samples[j]].tokens > 0);
    const train_sequence_sums *all = train__terms_couple(p) ? x->sequences + x->samples[j] : NULL,
                              *q = p->sequence ? all : NULL;
    train_loss_sums *s = x->sums;
    double w = x->weights[j], now = x->logprob[r], a = x->advantages[j], step = now - old_of(x, j, now);
    double ratio = exp(q ? q->step / q->tokens : step), slope, kl_slope = 0, kl = 0, raw, coef;
    double loss = ravel__policy_surrogate(ratio, a, p->clip_low, p->clip_high, p->dual_clip, &slope),
           weight = importance(x, j, now, all, &raw);
    if (p->correction.now) loss = -a * now, slope = -a;
    if (x->reference && p->kl > 0) kl = ravel__policy_divergence(p->kl_kind, now, x->reference[j], &kl_slope);
    coef = w * p->kl * kl_slope;
    if (q) /* every token moves the sample's one ratio */
        coef += slope * q->weight * (p->correction.sequence ? weight : 1) / q->tokens;
    else
        coef += w * weight * slope;
    s->loss += w * (weight * loss + p->kl * kl - (x->entropy ? p->entropy * (double)x->entropy[r] : 0));
    s->ratio += ratio;
    s->ratio_max = fmax(s->ratio_max, ratio);
    s->clipped += slope == 0 && a != 0;
    s->approx_kl += exp(step) - step - 1;
    s->kl += kl;
    add_weight(x, all, weight, raw);
    add_gap(x, j, now);
    return coef;
}

/* Loss j of row r: adds to the sums and to the row's derivatives. */
static void add_loss(const train_loss_rows *x, int64_t r, int64_t j, double *coef, double *entropy_coef) {
    double w = x->weights[j];
    x->sums->tokens += 1;
    x->sums->nll -= (double)x->logprob[r];
    if (x->entropy) x->sums->entropy += (double)x->entropy[r];
    *coef += x->policy ? policy_loss(x, r, j) : -w;
    if (x->policy) *entropy_coef -= x->policy->entropy * w;
    if (!x->policy) x->sums->loss -= w * (double)x->logprob[r];
}

void REF(loss)(train_device *d, const train_loss_rows *x) {
    (void)d;
    RAVEL_ASSERT(train__loss_ok(x) && x->sums && (x->rows == 0 || x->coef));
    for (int64_t r = 0; r < x->rows; r++) {
        double coef = 0, entropy_coef = 0;
        if (!x->first) add_loss(x, r, r, &coef, &entropy_coef);
        for (int64_t k = x->first ? x->first[r] : 0, end = x->first ? x->first[r + 1] : 0; k < end; k++)
            add_loss(x, r, x->list[k], &coef, &entropy_coef);
        x->coef[r] = (train_real)coef;
        if (x->entropy_coef) x->entropy_coef[r] = (train_real)entropy_coef;
    }
}

void REF(sequence_sums)(train_device *d, const train_loss_rows *x, train_sequence_sums *sequences) {
    (void)d;
    RAVEL_ASSERT(train__loss_ok(x) && x->policy && (x->rows == 0 || (x->samples && sequences)));
    for (int64_t j = 0; j < (x->first ? x->losses : x->rows); j++) {
        train_sequence_sums *s = sequences + x->samples[j];
        double raw, now = x->logprob[x->first ? x->row_of[j] : j];
        int whole = x->policy->correction.sequence && x->generator;
        s->step += now - old_of(x, j, now);
        s->tokens += 1;
        if (whole) s->gap += old_of(x, j, now) - (double)x->generator[j];
        s->weight += (double)x->weights[j] * (whole ? 1 : importance(x, j, now, NULL, &raw));
    }
}

/* ---- an update ------------------------------------------------------------------------------------------ */

void REF(add)(train_device *d, void *to, const void *from, int64_t n) {
    (void)d;
    RAVEL_ASSERT(n == 0 || (to && from));
    for (int64_t i = 0; i < n; i++) ((train_real *)to)[i] += ((const train_real *)from)[i];
}

void REF(sum_squares)(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    (void)d;
    RAVEL_ASSERT(n >= 0 && span > 0 && (n == 0 || sums));
    const train_real *x = grads;
    for (int64_t i = 0; i < n; i++) {
        if (i % span == 0) sums[i / span] = 0;
        sums[i / span] += (double)x[i] * (double)x[i];
    }
}

void REF(clip)(train_device *d, const double *sums, int64_t count, double most, train_clip *clip) {
    (void)d;
    RAVEL_ASSERT(count >= 0 && most >= 0 && clip);
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += sums[i];
    double norm = sqrt(total);
    *clip = (train_clip){.norm = norm, .scale = most > 0 && norm > most ? most / (norm + 1e-6) : 1};
    clip->finite = isfinite(norm);
}

static double moment_at(const void *moments, int32_t type, int64_t i) {
    float value;
    if (type != RAVEL_BF16) return (double)((const train_real *)moments)[i];
    (void)ravel_dtype_convert(RAVEL_BF16, (const uint16_t *)moments + i, RAVEL_F32, &value, 1, NULL);
    return (double)value;
}

static void set_moment(void *moments, int32_t type, int64_t i, double x) {
    float value = (float)x;
    if (type != RAVEL_BF16)
        ((train_real *)moments)[i] = (train_real)x;
    else
        (void)ravel_dtype_convert(RAVEL_F32, &value, RAVEL_BF16, (uint16_t *)moments + i, 1, NULL);
}

void REF(adamw)(train_device *d, const train_adamw *x) {
    (void)d;
    RAVEL_ASSERT(train__adamw_ok(x));
    train_real *w = x->master, *copy = x->weight;
    const train_real *grad = x->grad;
    double fix1 = 1 - pow(x->beta1, (double)x->step), fix2 = 1 - pow(x->beta2, (double)x->step);
    if (!(x->clip->finite > 0)) return;
    for (int64_t i = 0; i < x->n; i++) {
        double g = x->clip->scale * (double)grad[i];
        double m = x->beta1 * moment_at(x->m, x->moment_type, i) + (1 - x->beta1) * g;
        double v = x->beta2 * moment_at(x->v, x->moment_type, i) + (1 - x->beta2) * g * g;
        set_moment(x->m, x->moment_type, i, m);
        set_moment(x->v, x->moment_type, i, v);
        double step = m / fix1 / (sqrt(v / fix2) + x->eps) + x->decay * (double)w[i];
        w[i] = (train_real)((double)w[i] - x->lr * step);
        copy[i] = w[i];
    }
}
