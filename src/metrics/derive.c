/* Rows computed from other rows after the reduction over ranks. A row is set only if its inputs exist: no throughput
 * without time, no MFU without a known peak. */
#include "metrics/state.h"

#include "base/assert.h"

static void set(ravel_metrics *m, int32_t id, double real) {
    RAVEL_ASSERT(id >= 0 && id < RAVEL_METRICS && m->row[id].kind != RAVEL_KIND_COUNTER);
    ravel__value value = {.real = real, .present = 1};
    if (m->enabled[id]) m->next.values[id] = value;
}

static void set_integer(ravel_metrics *m, int32_t id, int64_t integer) {
    RAVEL_ASSERT(id >= 0 && id < RAVEL_METRICS && m->row[id].kind == RAVEL_KIND_COUNTER);
    ravel__value value = {.integer = integer, .present = 1};
    m->next.values[id] = value;
}

static int64_t count_of(const ravel_metrics *m, int32_t id) {
    RAVEL_ASSERT(m->row[id].kind == RAVEL_KIND_COUNTER);
    return m->next.values[id].integer;
}

/* a / b into row `id`, where b is not 0. */
static void set_ratio(ravel_metrics *m, int32_t id, double a, double b) {
    if (b > 0) set(m, id, a / b);
}

static void derive_batch(ravel_metrics *m, const ravel__reduced *r) {
    int64_t actual = count_of(m, RAVEL_METRIC_TOKENS_ACTUAL), padded = count_of(m, RAVEL_METRIC_TOKENS_PADDED);
    int64_t capacity = count_of(m, RAVEL_METRIC_TOKENS_CAPACITY), samples = count_of(m, RAVEL_METRIC_BATCH_SAMPLES);
    int64_t computed = actual - count_of(m, RAVEL_METRIC_TOKENS_SHARED);
    RAVEL_ASSERT(r->ranks >= 1);
    set_ratio(m, RAVEL_METRIC_PACKING_EFFICIENCY, (double)computed, (double)capacity);
    set_ratio(m, RAVEL_METRIC_PADDING_SHARE, (double)(padded - computed), (double)padded);
    set_ratio(m, RAVEL_METRIC_AVG_SEQ_LENGTH, (double)actual, (double)samples);
    set_ratio(m, RAVEL_METRIC_TOKEN_IMBALANCE, (double)r->most_padded * (double)r->padded_ranks, (double)padded);
}

/* A rate, and the same for one GPU. */
static void set_rate(ravel_metrics *m, int32_t id, int32_t per_gpu, double amount, double seconds) {
    if (!(seconds > 0)) return;
    RAVEL_ASSERT(m->world >= 1);
    set(m, id, amount / seconds);
    set(m, per_gpu, amount / seconds / (double)m->world);
}

static void derive_throughput(ravel_metrics *m, double seconds) {
    if (!m->next.values[RAVEL_METRIC_TOKENS_ACTUAL].present) return;
    double actual = (double)count_of(m, RAVEL_METRIC_TOKENS_ACTUAL);
    double samples = (double)count_of(m, RAVEL_METRIC_BATCH_SAMPLES);
    double nominal = m->options.seq_length ? samples * (double)m->options.seq_length : actual;
    double computed = (double)count_of(m, m->options.compute == RAVEL_COMPUTE_CAPACITY ? RAVEL_METRIC_TOKENS_CAPACITY
                                                                                       : RAVEL_METRIC_TOKENS_PADDED);
    set_rate(m, RAVEL_METRIC_TOKENS_PER_SEC, RAVEL_METRIC_TOKENS_PER_SEC_PER_GPU, nominal, seconds);
    set_rate(m, RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC, RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC_PER_GPU, computed, seconds);
    set_rate(m, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC_PER_GPU, actual, seconds);
    set_ratio(m, RAVEL_METRIC_SAMPLES_PER_SEC, samples, seconds);
}

static void derive_flops(ravel_metrics *m, const ravel__reduced *r, double seconds) {
    m->next.has_flops = m->options.shape && r->lengths.tokens > 0 &&
                        ravel_flops_adapted(&m->shape, &r->lengths, r->head_tokens, m->options.adapter,
                                            (ravel_recompute)m->options.recompute, &m->next.flops, NULL) == RAVEL_OK;
    if (!m->next.has_flops) return;
    double model = ravel_flops_real(m->next.flops.model), hardware = ravel_flops_real(m->next.flops.hardware);
    RAVEL_ASSERT(model > 0 && hardware >= model);
    set(m, RAVEL_METRIC_FLOPS_MODEL, model);
    set(m, RAVEL_METRIC_FLOPS_HARDWARE, hardware);
    set_rate(m, RAVEL_METRIC_TFLOPS, RAVEL_METRIC_TFLOPS_PER_GPU, model / 1e12, seconds);
    double most = m->peak * seconds * (double)m->world;
    set_ratio(m, RAVEL_METRIC_MFU, model, most);
    if (m->options.recompute) set_ratio(m, RAVEL_METRIC_HFU, hardware, most);
}

/* The five rows of a phase stand side by side in the table, in this order. */
enum { MEAN, MAX, SLOWEST, SELF, TOTAL, ROWS_PER_PHASE };
_Static_assert(RAVEL_METRIC_TIME_EVAL_TOTAL - RAVEL_METRIC_TIME_ROLLOUT_MEAN + 1 == RAVEL_PHASES * ROWS_PER_PHASE,
               "the rows of the phases are contiguous");

static void derive_phase(ravel_metrics *m, int32_t phase, const ravel__reduced_phase *p, int64_t ranks) {
    int32_t row = RAVEL_METRIC_TIME_ROLLOUT_MEAN + phase * ROWS_PER_PHASE;
    RAVEL_ASSERT(phase >= 0 && phase < RAVEL_PHASES && ranks > 0);
    double mean = (double)p->total_ns / 1e9 / (double)ranks;
    m->totals.phases[phase] += mean;
    m->phase_seen[phase] |= p->used > 0 || m->totals.phases[phase] > 0;
    if (!m->phase_seen[phase]) return;
    set(m, row + MEAN, mean);
    set(m, row + SELF, (double)p->self_ns / 1e9 / (double)ranks);
    set(m, row + TOTAL, m->totals.phases[phase]);
    if (!p->used) {
        set(m, row + MAX, 0);
        return;
    }
    set(m, row + MAX, (double)ravel__slow_ns(p->slow) / 1e9);
    set(m, row + SLOWEST, ravel__slow_rank(p->slow));
}

static void set_per_step(ravel_metrics *m, int32_t id, int32_t total, double steps) {
    if (m->next.values[total].present) set_ratio(m, id, m->next.values[total].real, steps);
}

static void derive_time(ravel_metrics *m, const ravel__reduced *r, double seconds) {
    RAVEL_ASSERT(r->ranks == m->reducer.size);
    double other = m->next.values[RAVEL_METRIC_TIME_WALL]
                       .real; /* ranks that were faster waited for the slowest: that is in here too */
    for (int32_t i = 0; i < RAVEL_PHASES; i++) {
        derive_phase(m, i, &r->phases[i], r->ranks);
        other -= (double)r->phases[i].self_ns / 1e9 / (double)r->ranks;
    }
    set(m, RAVEL_METRIC_TIME_OTHER, other > 0 ? other : 0);
    double steps = (double)count_of(m, RAVEL_METRIC_BATCH_MICRO_STEPS);
    set_per_step(m, RAVEL_METRIC_TIME_FORWARD_MICRO, RAVEL_METRIC_TIME_FORWARD_MEAN, steps);
    set_per_step(m, RAVEL_METRIC_TIME_BACKWARD_MICRO, RAVEL_METRIC_TIME_BACKWARD_MEAN, steps);
    double busy = (double)r->busy_ns / (double)r->ranks;
    if (r->busiest_ns > 0) set(m, RAVEL_METRIC_IDLE_SHARE, 1 - busy / (double)r->busiest_ns);
    set_ratio(m, RAVEL_METRIC_IMBALANCE, (double)r->busiest_ns, busy);
    if (m->phase_seen[RAVEL_PHASE_FEED]) {
        double exposed = (double)r->phases[RAVEL_PHASE_FEED].total_ns / 1e9 / (double)r->ranks;
        set(m, RAVEL_METRIC_FEED_EXPOSED_SEC, exposed);
        set_ratio(m, RAVEL_METRIC_FEED_EXPOSED_SHARE, exposed, seconds);
    }
    double rollout = m->next.values[RAVEL_METRIC_TIME_ROLLOUT_MAX].real;
    if (m->next.values[RAVEL_METRIC_ROLLOUT_TOKENS].present)
        set_ratio(m, RAVEL_METRIC_ROLLOUT_TOKENS_PER_SEC, (double)count_of(m, RAVEL_METRIC_ROLLOUT_TOKENS), rollout);
}

static void derive_totals(ravel_metrics *m, double seconds) {
    ravel_metrics_totals *t = &m->totals;
    t->updates += !m->no_update;
    t->samples += count_of(m, RAVEL_METRIC_BATCH_SAMPLES);
    t->bins += count_of(m, RAVEL_METRIC_BATCH_BINS);
    t->capacity += count_of(m, RAVEL_METRIC_TOKENS_CAPACITY);
    t->computed += count_of(m, RAVEL_METRIC_TOKENS_ACTUAL) - count_of(m, RAVEL_METRIC_TOKENS_SHARED);
    t->tokens += count_of(m, RAVEL_METRIC_TOKENS_ACTUAL);
    t->loss_tokens += count_of(m, RAVEL_METRIC_TOKENS_LOSS);
    t->seconds += seconds;
    set_integer(m, RAVEL_METRIC_RUN_UPDATES, t->updates);
    set_integer(m, RAVEL_METRIC_RUN_CONSUMED_SAMPLES, t->samples);
    set_integer(m, RAVEL_METRIC_RUN_CONSUMED_BINS, t->bins);
    set_integer(m, RAVEL_METRIC_RUN_CONSUMED_TOKENS, t->tokens);
    set_integer(m, RAVEL_METRIC_RUN_CONSUMED_LOSS_TOKENS, t->loss_tokens);
    set(m, RAVEL_METRIC_RUN_ELAPSED_SEC, t->seconds);
    set_ratio(m, RAVEL_METRIC_RUN_TOKENS_PER_SEC, (double)t->tokens, t->seconds);
}

void ravel__derive(ravel_metrics *m, const ravel__reduced *reduced) {
    double seconds = m->next.values[RAVEL_METRIC_TIME_UPDATE].real;
    derive_batch(m, reduced);
    derive_throughput(m, seconds);
    derive_flops(m, reduced, seconds);
    derive_time(m, reduced, seconds);
    derive_totals(m, seconds);
}
