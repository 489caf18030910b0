/* Advantages and policy losses. With one ratio per sample every token of it moves that ratio, so two passes add up,
 * per sample, the steps l - o and the tokens, then the derivatives by the ratio; the last pass is token by token. */
#include <ravel/policy.h>

#include "base/assert.h"
#include "batch/policy_terms.h"
#include "base/options.h"
#include "base/memory.h"

#include <math.h>
#include <stddef.h>

#define ROW(...) RAVEL__ROW(ravel_policy_options, __VA_ARGS__)

ravel_option_table ravel_policy_option_table(void) {
    static const ravel_option table[] = {
        ROW("ratio", ENUM, ratio, "token", 0, 0, RAVEL_RATIO_CHOICES,
            "importance ratio of each token, or of the sample"),
        ROW("kl-kind", ENUM, kl_kind, "k3", 0, 0, RAVEL_KL_CHOICES, "estimator of the divergence"),
        ROW("clip-low", F64, clip_low, "0.2", 0, 1, NULL, "the ratio is clipped at 1 - this"),
        ROW("clip-high", F64, clip_high, "0.2", 0, 1e6, NULL, "the ratio is clipped at 1 + this (DAPO: 0.28)"),
        ROW("dual-clip", F64, dual_clip, "0", 0, 1e6, NULL, "bound of the loss for negative advantages; 0: none"),
        ROW("kl", F64, kl, "0", 0, 1e6, NULL, "weight of the divergence from the reference model"),
        ROW("correction", ENUM, correction, "none", 0, 0, RAVEL_CORRECTION_CHOICES,
            "how tokens or samples are weighed by trainer / generator"),
        ROW("correction-low", F64, correction_low, "0", 0, 1, NULL,
            "lower limit of that weight; 0: the correction's own"),
        ROW("correction-high", F64, correction_high, "0", 0, 1e6, NULL, "upper limit; 0: the correction's own"),
        {0}};
    return table;
}

void ravel_policy_options_default(ravel_policy_options *options) {
    ravel__options_preset(ravel_policy_option_table(), options, sizeof *options);
}

/* ---- advantages ----------------------------------------------------------------------------------------- */

/* Merges runs of 1, 2, 4, ... samples: stable, and without the context that qsort has no argument for. */
static void sort_by_group(const int64_t *groups, int64_t *order, int64_t *spare, int64_t count) {
    RAVEL_ASSERT(count == 0 || order != spare);
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t low = 0; low < count; low += 2 * width) {
            int64_t middle = low + width < count ? low + width : count, high = low + 2 * width;
            if (high > count) high = count;
            RAVEL_ASSERT(low < middle && middle <= high && high <= count);
            for (int64_t i = low, j = middle, k = low; k < high; k++)
                spare[k] = j >= high || (i < middle && groups[order[i]] <= groups[order[j]]) ? order[i++] : order[j++];
        }
        for (int64_t i = 0; i < count; i++) order[i] = spare[i];
    }
}

static double advantage_of(int32_t kind, double reward, double mean, double deviation, double size) {
    if (kind == RAVEL_ADVANTAGE_NONE) return reward;
    if (size < 2) return 0;
    if (kind == RAVEL_ADVANTAGE_GRPO) return (reward - mean) / (deviation + 1e-6);
    return kind == RAVEL_ADVANTAGE_RLOO ? (reward - mean) * size / (size - 1) : reward - mean;
}

/* One group: members order[0 .. size-1]. */
static void one_group(int32_t kind, const double *rewards, const int64_t *order, int64_t size, double *advantages) {
    RAVEL_ASSERT(size >= 1);
    double sum = 0, square = 0;
    int flat = 1;
    for (int64_t i = 0; i < size; i++) {
        sum += rewards[order[i]];
        flat &= rewards[order[i]] == rewards[order[0]];
    }
    double mean = sum / (double)size;
    for (int64_t i = 0; i < size; i++) square += (rewards[order[i]] - mean) * (rewards[order[i]] - mean);
    double deviation = size > 1 ? sqrt(square / (double)(size - 1)) : 0;
    for (int64_t i = 0; i < size; i++) {
        double a = advantage_of(kind, rewards[order[i]], mean, deviation, (double)size);
        advantages[order[i]] = flat && kind != RAVEL_ADVANTAGE_NONE ? 0 : a;
    }
}

ravel_status ravel_advantages(int32_t kind, const double *rewards, const int64_t *groups, int64_t count,
                              double *advantages, int64_t *scratch, ravel_error *err) {
    if (kind < 0 || kind > RAVEL_ADVANTAGE_NONE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "advantage is %d; it must be one of %s", kind,
                               RAVEL_ADVANTAGE_CHOICES);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(rewards[i]))
            return ravel_error_set(err, RAVEL_E_DATA, "the reward of sample %lld is %g; it must be a finite number",
                                   (long long)i, rewards[i]);
    int64_t *spare = scratch + count;
    for (int64_t i = 0; i < count; i++) scratch[i] = i;
    sort_by_group(groups, scratch, spare, count);
    for (int64_t i = 1; i < count; i++) RAVEL_ASSERT(groups[scratch[i - 1]] <= groups[scratch[i]]);
    for (int64_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && groups[scratch[to]] == groups[scratch[from]];) to++;
        one_group(kind, rewards, scratch + from, to - from, advantages);
    }
    return RAVEL_OK;
}

/* ---- the loss ------------------------------------------------------------------------------------------- */

double ravel__policy_surrogate(double ratio, double advantage, double clip_low, double clip_high, double dual_clip,
                               double *slope) {
    double low = 1 - clip_low, high = 1 + clip_high, clipped = ratio < low ? low : ratio > high ? high : ratio;
    double loss = -ratio * advantage;
    *slope = -ratio * advantage;
    if (-clipped * advantage > loss) {
        loss = -clipped * advantage;
        *slope = 0;
    }
    if (dual_clip > 0 && advantage < 0 && loss > -dual_clip * advantage) {
        loss = -dual_clip * advantage;
        *slope = 0;
    }
    return loss;
}

double ravel__policy_divergence(int32_t kind, double logprob, double reference, double *slope) {
    double d = logprob - reference;
    switch (kind) {
    case RAVEL_KL_K1: *slope = 1; return d;
    case RAVEL_KL_K2: *slope = d; return d * d / 2;
    default: *slope = 1 - exp(-d); return exp(-d) + d - 1;
    }
}

ravel_status ravel_policy_get_correction(int32_t kind, double low, double high, ravel_correction *correction,
                                         ravel_error *err) {
    static const ravel_correction rows[] = {
#define X(NAME, title, whole, zero, current, from, to, source) \
    {.kind = RAVEL_CORRECTION_##NAME,                          \
     .sequence = whole,                                        \
     .masked = zero,                                           \
     .now = current,                                           \
     .low = from,                                              \
     .high = to,                                               \
     .name = title,                                            \
     .paper = source},
        RAVEL_CORRECTION_LIST(X)
#undef X
    };
    _Static_assert(sizeof rows / sizeof *rows == RAVEL_CORRECTIONS, "a row for each");
    if (kind < 0 || kind >= RAVEL_CORRECTIONS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "correction is %d; it must be one of %s", kind,
                               RAVEL_CORRECTION_CHOICES);
    ravel_correction found = rows[kind];
    if (kind == RAVEL_CORRECTION_NONE && (low != 0 || high != 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "correction-low %g and correction-high %g are limits of a correction; say which", low,
                               high);
    if (low != 0) found.low = low;
    if (high != 0) found.high = high;
    if (kind != RAVEL_CORRECTION_NONE && !(found.low >= 0 && found.low <= found.high))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "correction-low %g and correction-high %g are no range",
                               found.low, found.high);
    *correction = found;
    return RAVEL_OK;
}

double ravel__policy_weight(const ravel_correction *c, double log_ratio, double *raw) {
    double x = exp(log_ratio < -20 ? -20 : log_ratio > 20 ? 20 : log_ratio);
    *raw = x;
    if (c->kind == RAVEL_CORRECTION_NONE) return 1;
    if (c->masked) return x >= c->low && x <= c->high ? x : 0;
    return x < c->low ? c->low : x > c->high ? c->high : x;
}

/* Of one sample: with one ratio or one correction per sample. */
typedef struct sequence {
    double step, tokens, gap, pull;
} sequence;

/* The options, and the correction that they name. */
typedef struct terms {
    const ravel_policy_options *p;
    ravel_correction c;
} terms;

static double old_of(const ravel_policy_rows *x, int64_t r) {
    return x->old ? (double)x->old[r] : (double)x->logprobs[r];
}

/* The weight of a token by the correction; *raw is what it was before the limits. */
static double importance(const ravel_correction *c, const ravel_policy_rows *x, int64_t r, const sequence *q,
                         double *raw) {
    *raw = 0;
    if (c->kind == RAVEL_CORRECTION_NONE) return 1;
    RAVEL_ASSERT(x->generator && (q || !c->sequence));
    double trainer = c->now ? (double)x->logprobs[r] : old_of(x, r);
    return ravel__policy_weight(c, c->sequence ? q->gap : trainer - (double)x->generator[r], raw);
}

/* The policy's loss of a token by its ratio, and the derivative by the ratio's logarithm. */
static double surrogate(const terms *t, double ratio, double advantage, double now, double *slope) {
    const ravel_policy_options *p = t->p;
    if (!t->c.now) return ravel__policy_surrogate(ratio, advantage, p->clip_low, p->clip_high, p->dual_clip, slope);
    *slope = -advantage;
    return -advantage * now;
}

static ravel_status check(const terms *t, const ravel_policy_rows *x, ravel_error *err) {
    const ravel_policy_options *p = t->p;
    int whole = p->ratio == RAVEL_RATIO_SEQUENCE || t->c.sequence;
    ravel_status status = ravel__check_options(ravel_policy_option_table(), p, err);
    if (status) return status;
    if (!p->size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "policy options: size is 0; fill them with ravel_policy_options_default");
    if (p->dual_clip != 0 && !(p->dual_clip > 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "dual-clip is %g; it must be 0 (off) or above 1", p->dual_clip);
    if (t->c.now && p->ratio == RAVEL_RATIO_SEQUENCE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "correction cispo has no ratio of samples: it needs ratio = token");
    if (x->count < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "count is below 0");
    const struct {
        const void *array;
        int needed;
        const char *name, *why;
    } needs[] = {{x->logprobs, 1, "logprobs", "always"},
                 {x->advantages, 1, "advantages", "always"},
                 {x->weights, 1, "weights", "always"},
                 {x->generator, t->c.kind != RAVEL_CORRECTION_NONE, "generator", "with a correction"},
                 {x->reference, p->kl > 0, "reference", "with kl"},
                 {x->samples, whole, "samples", "with a ratio or correction of samples"}};
    for (size_t i = 0; x->count && i < sizeof needs / sizeof *needs; i++)
        if (needs[i].needed && !needs[i].array)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is NULL; it is needed %s", needs[i].name, needs[i].why);
    for (int64_t r = 0; whole && r < x->count; r++)
        if (x->samples[r] < 0 || x->samples[r] >= x->sample_count)
            return ravel_error_set(err, RAVEL_E_DATA, "token %lld is of sample %d; there are %lld", (long long)r,
                                   x->samples[r], (long long)x->sample_count);
    return RAVEL_OK;
}

/* First the ratios, then per sample the sum of its tokens' derivatives by the ratio. */
static void add_sequences(const terms *t, const ravel_policy_rows *x, sequence *sequences) {
    RAVEL_ASSERT(x->samples && sequences);
    double raw, slope;
    for (int64_t r = 0; r < x->count; r++) {
        if (x->weights[r] == 0) continue;
        sequences[x->samples[r]].step += (double)x->logprobs[r] - old_of(x, r);
        sequences[x->samples[r]].tokens += 1;
        if (t->c.sequence) sequences[x->samples[r]].gap += old_of(x, r) - (double)x->generator[r];
    }
    for (int64_t r = 0; r < x->count; r++) {
        sequence *s = sequences + x->samples[r];
        if (x->weights[r] == 0) continue;
        RAVEL_ASSERT(s->tokens >= 1);
        (void)surrogate(t, exp(s->step / s->tokens), x->advantages[r], x->logprobs[r], &slope);
        s->pull += (double)x->weights[r] * importance(&t->c, x, r, s, &raw) * slope;
    }
}

/* A sample's one weight counts once, shared out over its tokens. */
static void count_weight(const ravel_correction *c, const sequence *q, double weight, double raw,
                         ravel_policy_sums *s) {
    if (c->kind == RAVEL_CORRECTION_NONE) return;
    RAVEL_ASSERT(q || !c->sequence);
    double unit = c->sequence ? 1 / q->tokens : 1;
    s->corrected += unit;
    s->weight += unit * weight;
    s->weight_square += unit * weight * weight;
    s->raw_square += unit * raw * raw;
    s->outside += raw < c->low || raw > c->high ? unit : 0;
}

static void one_token(const terms *t, const ravel_policy_rows *x, int64_t r, const sequence *q, float *loss,
                      float *slope_out, ravel_policy_sums *s) {
    const ravel_policy_options *p = t->p;
    int whole = p->ratio == RAVEL_RATIO_SEQUENCE;
    RAVEL_ASSERT(r >= 0 && r < x->count && (!q || q->tokens >= 1));
    double w = x->weights[r], now = x->logprobs[r], a = x->advantages[r], step = now - old_of(x, r);
    double ratio = exp(whole ? q->step / q->tokens : step), slope, kl_slope = 0, kl = 0, raw;
    double value = surrogate(t, ratio, a, now, &slope), weight = importance(&t->c, x, r, q, &raw);
    if (p->kl > 0) kl = ravel__policy_divergence(p->kl_kind, now, x->reference[r], &kl_slope);
    double own = w * (weight * value + p->kl * kl);
    double derivative = w * p->kl * kl_slope + (whole ? q->pull / q->tokens : w * weight * slope);
    if (loss) *loss = (float)own;
    if (slope_out) *slope_out = (float)derivative;
    s->loss += own;
    s->tokens += 1;
    s->ratio += ratio;
    s->ratio_max = fmax(s->ratio_max, ratio);
    s->clipped += slope == 0 && a != 0;
    s->approx_kl += exp(step) - step - 1;
    s->kl += kl;
    count_weight(&t->c, q, weight, raw, s);
}

ravel_status ravel_policy_loss(const ravel_policy_options *options, const ravel_policy_rows *rows, float *losses,
                               float *slopes, ravel_policy_sums *sums, ravel_error *err) {
    ravel_policy_options preset;
    ravel_policy_options_default(&preset);
    terms t = {.p = options ? options : &preset};
    ravel_status status =
        ravel_policy_get_correction(t.p->correction, t.p->correction_low, t.p->correction_high, &t.c, err);
    if (!status) status = check(&t, rows, err);
    if (status) return status;
    sequence *sequences = NULL;
    if ((t.p->ratio == RAVEL_RATIO_SEQUENCE || t.c.sequence) && rows->sample_count > 0) {
        sequences = ravel__calloc(NULL, (size_t)rows->sample_count, sizeof *sequences);
        if (!sequences)
            return ravel__no_memory(err, (size_t)rows->sample_count * sizeof *sequences, "ratios of samples");
        add_sequences(&t, rows, sequences);
    }
    *sums = (ravel_policy_sums){0};
    for (int64_t r = 0; r < rows->count; r++) {
        float *loss = losses ? losses + r : NULL, *slope = slopes ? slopes + r : NULL;
        if (rows->weights[r] == 0) { /* whatever its log-probs are, they may be NaN */
            if (loss) *loss = 0;
            if (slope) *slope = 0;
            continue;
        }
        one_token(&t, rows, r, sequences ? sequences + rows->samples[r] : NULL, loss, slope, sums);
    }
    ravel__release(NULL, sequences, (size_t)rows->sample_count * sizeof *sequences);
    return RAVEL_OK;
}
