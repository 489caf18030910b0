/* Counting on one rank: nothing here allocates, locks or communicates. */
#include "metrics/state.h"

#include "base/assert.h"

/* ---- one value ------------------------------------------------------------------------------------------ */

static ravel__cell *open_cell(ravel_metrics *m, int32_t id) {
    if (id < 0 || id >= m->rows || !m->enabled[id] || m->row[id].rule == RAVEL_RULE_DERIVED) return NULL;
    return &m->cells[id];
}

static void add_weighted(ravel__cell *cell, int32_t rule, double value, double weight) {
    if (!(weight > 0) || isinf(weight)) return; /* a weight of 0 adds nothing: 0 * inf would be NaN */
    RAVEL_ASSERT(rule == RAVEL_RULE_SUM || rule == RAVEL_RULE_MEAN || rule == RAVEL_RULE_STD);
    ravel__fixed_add(&cell->value, value * weight);
    if (rule == RAVEL_RULE_STD) ravel__fixed_add(&cell->square, value * value * weight);
    ravel__fixed_add(&cell->weight, weight);
    cell->used++;
}

int ravel_metrics_add(ravel_metrics *m, int32_t id, double value, double weight) {
    ravel__cell *cell = open_cell(m, id);
    if (!cell) return 0;
    if (m->row[id].kind == RAVEL_KIND_COUNTER) {
        if (!(fabs(value) < 0x1p63)) return 0;
        return ravel_metrics_count(m, id, (int64_t)value);
    }
    switch (m->row[id].rule) {
    case RAVEL_RULE_MIN: ravel__cell_min(cell, value); break;
    case RAVEL_RULE_MAX: ravel__cell_max(cell, value); break;
    default: add_weighted(cell, m->row[id].rule, value, weight); break;
    }
    return 1;
}

int ravel_metrics_count(ravel_metrics *m, int32_t id, int64_t value) {
    ravel__cell *cell = open_cell(m, id);
    if (!cell) return 0;
    if (m->row[id].kind != RAVEL_KIND_COUNTER) return ravel_metrics_add(m, id, (double)value, 1);
    RAVEL_ASSERT(cell->used >= 0 && m->row[id].rule != RAVEL_RULE_MEAN && m->row[id].rule != RAVEL_RULE_STD);
    int first = cell->used++ == 0;
    switch (m->row[id].rule) {
    case RAVEL_RULE_MIN:
        if (first || value < cell->integer) cell->integer = value;
        break;
    case RAVEL_RULE_MAX:
        if (first || value > cell->integer) cell->integer = value;
        break;
    default: cell->integer += value; break;
    }
    return 1;
}

/* ---- batches -------------------------------------------------------------------------------------------- */

static int64_t squares_of(const ravel_lengths_sum *sum) {
    const uint64_t most = UINT64_C(1) << 62;
    return (int64_t)(sum->squares.high || sum->squares.low > most ? most : sum->squares.low);
}

void ravel_metrics_add_batch(ravel_metrics *m, const ravel_metrics_batch *given) {
    ravel_metrics_batch b = {0};
    memcpy(&b, given, given->size < sizeof b ? given->size : sizeof b);
    ravel_metrics_count(m, RAVEL_METRIC_BATCH_MICRO_STEPS, 0);
    m->cells[RAVEL_METRIC_BATCH_MICRO_STEPS].integer += b.micro_steps; /* a sum on the rank, a maximum over ranks */
    if (!m->options.counts) return;
    ravel_lengths_sum sum = {0};
    if (b.sum)
        sum = *b.sum;
    else
        ravel_lengths_add(&sum, b.lengths, b.lengths ? b.samples : 0);
    ravel_lengths_merge(&m->lengths, &sum);
    m->head_tokens += b.head ? (b.head > 0 ? b.head : 0) : sum.tokens;
    const struct {
        int32_t id;
        int64_t value;
    } counts[] = {{RAVEL_METRIC_TOKENS_CAPACITY, b.capacity}, {RAVEL_METRIC_TOKENS_PADDED, b.padded},
                  {RAVEL_METRIC_TOKENS_ACTUAL, sum.tokens},   {RAVEL_METRIC_TOKENS_LOSS, b.loss},
                  {RAVEL_METRIC_BATCH_SAMPLES, sum.samples},  {RAVEL_METRIC_BATCH_BINS, b.bins},
                  {RAVEL_METRIC_BATCH_FILLERS, b.fillers},    {RAVEL_METRIC_TOKENS_SQUARES, squares_of(&sum)},
                  {RAVEL_METRIC_TOKENS_SHARED, b.shared}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) ravel_metrics_count(m, counts[i].id, counts[i].value);
    if (!sum.samples) return;
    ravel_metrics_count(m, RAVEL_METRIC_MIN_SEQ_LENGTH, sum.shortest);
    ravel_metrics_count(m, RAVEL_METRIC_MAX_SEQ_LENGTH, sum.longest);
}

/* ---- rollouts ------------------------------------------------------------------------------------------- */

/* `count` samples of weight 1 that were summed outside. */
static void merge_samples(ravel_metrics *m, int32_t id, const ravel__fixed *value, int64_t count) {
    ravel__cell *cell = &m->cells[id];
    RAVEL_ASSERT(count > 0 && id >= 0 && id < m->rows && m->row[id].rule != RAVEL_RULE_DERIVED);
    ravel__fixed_merge(&cell->value, value);
    ravel__fixed_add(&cell->weight, (double)count);
    cell->used += count;
}

static void add_rewards(ravel_metrics *m, const double *rewards, int64_t count) {
    RAVEL_ASSERT(m->options.rl && count > 0);
    ravel__fixed sum = {0}, squares = {0};
    ravel__fixed_block block = {0, 0}, square_block = {0, 0};
    double least = INFINITY, most = -INFINITY;
    int any_nan = 0;
    for (int64_t i = 0; i < count;) {
        for (int64_t end = count - i < RAVEL__BLOCK ? count : i + RAVEL__BLOCK; i < end; i++) {
            double r = rewards[i];
            ravel__block_add(&block, &sum, r);
            ravel__block_add(&square_block, &squares, r * r);
            any_nan |= r != r;
            least = r < least ? r : least;
            most = r > most ? r : most;
        }
        ravel__block_end(&block, &sum);
        ravel__block_end(&square_block, &squares);
    }
    merge_samples(m, RAVEL_METRIC_REWARD_MEAN, &sum, count);
    merge_samples(m, RAVEL_METRIC_REWARD_STD, &sum, count);
    ravel__fixed_merge(&m->cells[RAVEL_METRIC_REWARD_STD].square, &squares);
    ravel__cell_min(&m->cells[RAVEL_METRIC_REWARD_MIN], any_nan ? NAN : least);
    ravel__cell_max(&m->cells[RAVEL_METRIC_REWARD_MAX], any_nan ? NAN : most);
}

static void add_group_runs(ravel_metrics *m, const int64_t *groups, const double *rewards, int64_t count) {
    RAVEL_ASSERT(groups && rewards && count > 0);
    int64_t total = 0, flat = 0;
    for (int64_t i = 0; i < count;) {
        int64_t first = i;
        int same = 1;
        for (; i < count && groups[i] == groups[first]; i++) same &= rewards[i] == rewards[first];
        total++;
        flat += same;
    }
    RAVEL_ASSERT(flat <= total && total <= count);
    ravel_metrics_add_groups(m, total, flat);
}

static void add_responses(ravel_metrics *m, const int64_t *lengths, int64_t count) {
    RAVEL_ASSERT(m->options.rl && count > 0);
    int64_t sum = 0, least = INT64_MAX, most = INT64_MIN;
    for (int64_t i = 0; i < count; i++) {
        sum += lengths[i];
        least = lengths[i] < least ? lengths[i] : least;
        most = lengths[i] > most ? lengths[i] : most;
    }
    ravel__fixed fixed = {0};
    fixed.fine = (ravel__i128)sum * ((ravel__i128)1 << 63);
    merge_samples(m, RAVEL_METRIC_RESPONSE_LENGTH_MEAN, &fixed, count);
    ravel_metrics_count(m, RAVEL_METRIC_RESPONSE_LENGTH_MIN, least);
    ravel_metrics_count(m, RAVEL_METRIC_RESPONSE_LENGTH_MAX, most);
}

static void add_truncated(ravel_metrics *m, const uint8_t *truncated, int64_t count) {
    RAVEL_ASSERT(m->options.rl && count > 0);
    int64_t cut = 0;
    for (int64_t i = 0; i < count; i++) cut += truncated[i] != 0;
    ravel__fixed fixed = {0};
    RAVEL_ASSERT(cut <= count);
    ravel__fixed_add(&fixed, (double)cut);
    merge_samples(m, RAVEL_METRIC_RESPONSE_TRUNCATED, &fixed, count);
}

static void add_staleness(ravel_metrics *m, const double *staleness, int64_t count) {
    RAVEL_ASSERT(m->options.rl && count > 0);
    ravel__fixed sum = {0};
    for (int64_t i = 0; i < count; i++) ravel__fixed_add(&sum, staleness[i]);
    merge_samples(m, RAVEL_METRIC_ROLLOUT_STALENESS, &sum, count);
}

void ravel_metrics_add_rollouts(ravel_metrics *m, const ravel_metrics_rollouts *given) {
    ravel_metrics_rollouts r = {0};
    memcpy(&r, given, given->size < sizeof r ? given->size : sizeof r);
    if (!m->options.rl || r.count <= 0) return;
    if (r.rewards) add_rewards(m, r.rewards, r.count);
    if (r.rewards && r.groups) add_group_runs(m, r.groups, r.rewards, r.count);
    if (r.responses) add_responses(m, r.responses, r.count);
    if (r.truncated) add_truncated(m, r.truncated, r.count);
    if (r.staleness) add_staleness(m, r.staleness, r.count);
}

void ravel_metrics_add_groups(ravel_metrics *m, int64_t groups, int64_t zero_variance) {
    if (!m->options.rl || groups <= 0) return;
    ravel__fixed flat = {0};
    ravel__fixed_add(&flat, (double)zero_variance);
    merge_samples(m, RAVEL_METRIC_REWARD_ZERO_VARIANCE, &flat, groups);
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

typedef struct token_sums {
    ravel__fixed ratio, kl, kl_ref, entropy, gap, mult;
    double ratio_max, gap_max;
    int64_t tokens, clipped;
} token_sums;

/* Schulman's third estimator of KL(p || q) from samples of p: r - 1 - log r with r = q / p; never negative. */
static double kl_estimate(double log_ratio) {
    return expm1(log_ratio) - log_ratio;
}

static int is_clipped(const ravel_metrics_tokens *t, int64_t i, double ratio) {
    int above = ratio > 1 + t->clip_high, below = ratio < 1 - t->clip_low;
    if (!t->advantages) return above || below;
    return (above && t->advantages[i] > 0) || (below && t->advantages[i] < 0);
}

static double nan_max(double a, double b) {
    return b > a || isnan(b) ? b : a;
}

static void add_token(token_sums *s, const ravel_metrics_tokens *t, const float *trainer, int64_t i) {
    RAVEL_ASSERT(i >= 0 && i < t->count && s->tokens <= i);
    s->tokens++;
    if (t->logprobs && t->old) {
        double log_ratio = (double)t->logprobs[i] - (double)t->old[i], ratio = exp(log_ratio);
        ravel__fixed_add(&s->ratio, ratio);
        ravel__fixed_add(&s->kl, kl_estimate(log_ratio));
        s->ratio_max = nan_max(s->ratio_max, ratio);
        s->clipped += is_clipped(t, i, ratio);
    }
    if (t->logprobs && t->reference)
        ravel__fixed_add(&s->kl_ref, kl_estimate((double)t->reference[i] - (double)t->logprobs[i]));
    if (t->entropy) ravel__fixed_add(&s->entropy, t->entropy[i]);
    if (trainer && t->generator) {
        double gap = fabs((double)trainer[i] - (double)t->generator[i]);
        ravel__fixed_add(&s->gap, gap);
        ravel__fixed_add(&s->mult, exp(gap));
        s->gap_max = nan_max(s->gap_max, gap);
    }
}

void ravel_metrics_add_tokens(ravel_metrics *m, const ravel_metrics_tokens *given) {
    ravel_metrics_tokens t = {0};
    memcpy(&t, given, given->size < sizeof t ? given->size : sizeof t);
    if (!m->options.rl || t.count <= 0) return;
    const float *trainer = t.trainer ? t.trainer : t.old ? t.old : t.logprobs;
    token_sums s = {.ratio_max = -INFINITY, .gap_max = -INFINITY};
    for (int64_t i = 0; i < t.count; i++)
        if (!t.weights || t.weights[i] != 0) add_token(&s, &t, trainer, i);
    RAVEL_ASSERT(s.tokens <= t.count && s.clipped <= s.tokens);
    if (!s.tokens) return;
    if (t.logprobs && t.old) {
        merge_samples(m, RAVEL_METRIC_POLICY_RATIO_MEAN, &s.ratio, s.tokens);
        merge_samples(m, RAVEL_METRIC_POLICY_APPROX_KL, &s.kl, s.tokens);
        ravel__cell_max(&m->cells[RAVEL_METRIC_POLICY_RATIO_MAX], s.ratio_max);
        ravel__fixed clipped = {0};
        ravel__fixed_add(&clipped, (double)s.clipped);
        if (t.clip_low > 0 || t.clip_high > 0) merge_samples(m, RAVEL_METRIC_POLICY_CLIP_SHARE, &clipped, s.tokens);
    }
    if (t.logprobs && t.reference) merge_samples(m, RAVEL_METRIC_POLICY_KL_REF, &s.kl_ref, s.tokens);
    if (t.entropy) merge_samples(m, RAVEL_METRIC_POLICY_ENTROPY, &s.entropy, s.tokens);
    if (trainer && t.generator) {
        merge_samples(m, RAVEL_METRIC_POLICY_GAP_MEAN, &s.gap, s.tokens);
        merge_samples(m, RAVEL_METRIC_TOKEN_MULT_PROB_ERROR, &s.mult, s.tokens);
        ravel__cell_max(&m->cells[RAVEL_METRIC_POLICY_GAP_MAX], s.gap_max);
    }
}
