/* From one rank's cells to the job's: two all-reduces of integers.
 *
 *     SUM   rank count | each row that sums (2 to 22 lanes) | phases (3 each) | times, busy, lengths | ranks (2 each)
 *     MAX   step, -step | each MIN and MAX row (1 lane) | phases (1 each) | busiest, most padded
 *
 * Of the slots per rank at the end, each rank fills its own and leaves the others zero, so that their sum is a gather.
 * The order of lanes follows from rows and options, which are the same on every rank; a rank with other rows or options
 * has another number of lanes, which the communicator reports as a mismatch. */
#include "metrics/state.h"

#include "base/assert.h"

enum { HEAD_LANES = 1, PHASE_LANES = 3, TAIL_LANES = 4 + RAVEL__WIDE_LANES, MAX_HEAD = 2, MAX_TAIL = 2 };

static int is_integer(const ravel_metric *row) {
    return row->kind == RAVEL_KIND_COUNTER;
}

static int is_extreme(const ravel_metric *row) {
    return row->rule == RAVEL_RULE_MIN || row->rule == RAVEL_RULE_MAX;
}

/* Lanes of one row in the SUM. */
static int64_t row_lanes(const ravel_metric *row) {
    switch (row->rule) {
    case RAVEL_RULE_SUM: return 1 + (is_integer(row) ? 1 : RAVEL__FIXED_LANES);
    case RAVEL_RULE_MEAN: return 2 * RAVEL__FIXED_LANES;
    case RAVEL_RULE_STD: return 3 * RAVEL__FIXED_LANES;
    default: return 0;
    }
}

void ravel__lanes_count(const ravel_metrics *m, int64_t *sums, int64_t *maxima) {
    *sums = HEAD_LANES + PHASE_LANES * RAVEL_PHASES + TAIL_LANES + 2 * m->shown_ranks;
    *maxima = MAX_HEAD + RAVEL_PHASES + MAX_TAIL;
    for (int32_t id = 0; id < m->rows; id++) {
        if (!m->enabled[id]) continue;
        *sums += row_lanes(&m->row[id]);
        *maxima += is_extreme(&m->row[id]);
    }
}

/* ---- cells to lanes ------------------------------------------------------------------------------------- */

static int64_t *pack_row(const ravel_metric *row, const ravel__cell *cell, int64_t *lane) {
    RAVEL_ASSERT(row_lanes(row) > 0 && cell->used >= 0);
    if (row->rule == RAVEL_RULE_SUM) {
        *lane++ = cell->used;
        if (is_integer(row)) {
            *lane++ = cell->integer;
            return lane;
        }
    }
    lane = ravel__fixed_pack(&cell->value, lane);
    if (row->rule == RAVEL_RULE_STD) lane = ravel__fixed_pack(&cell->square, lane);
    return row->rule == RAVEL_RULE_SUM ? lane : ravel__fixed_pack(&cell->weight, lane);
}

static int64_t pack_extreme(const ravel_metric *row, const ravel__cell *cell) {
    RAVEL_ASSERT(is_extreme(row) && cell->used >= 0);
    int negate = row->rule == RAVEL_RULE_MIN;
    if (!cell->used) return RAVEL__NOTHING;
    if (!is_integer(row)) return ravel__order_code(negate ? -cell->extreme : cell->extreme);
    int64_t x = cell->integer == RAVEL__NOTHING ? RAVEL__NOTHING + 1 : cell->integer;
    return negate ? -x : x;
}

static int64_t busy_ns(const ravel_metrics *m) {
    RAVEL_ASSERT(m->phases[RAVEL_PHASE_FORWARD].self_ns >= 0 && m->phases[RAVEL_PHASE_BACKWARD].self_ns >= 0);
    return m->phases[RAVEL_PHASE_FORWARD].self_ns + m->phases[RAVEL_PHASE_BACKWARD].self_ns;
}

static void pack_sums(const ravel_metrics *m, int64_t *lane) {
    *lane++ = 1;
    for (int32_t id = 0; id < m->rows; id++)
        if (m->enabled[id] && row_lanes(&m->row[id])) lane = pack_row(&m->row[id], &m->cells[id], lane);
    for (int i = 0; i < RAVEL_PHASES; i++) {
        *lane++ = m->phases[i].total_ns;
        *lane++ = m->phases[i].self_ns;
        *lane++ = m->phases[i].used != 0;
    }
    int64_t padded = m->cells[RAVEL_METRIC_TOKENS_PADDED].integer;
    *lane++ = busy_ns(m);
    *lane++ = m->cells[RAVEL_METRIC_TOKENS_PADDED].used > 0;
    *lane++ = m->lengths.tokens;
    *lane++ = m->head_tokens;
    ravel__wide_pack((ravel__i128)m->lengths.squares.high << 64 | m->lengths.squares.low, lane);
    lane += RAVEL__WIDE_LANES;
    RAVEL_ASSERT(lane + 2 * (int64_t)m->shown_ranks == m->sums + m->sum_lanes); /* as ravel__lanes_count has counted */
    if (!m->shown_ranks) return;
    RAVEL_ASSERT(m->reducer.rank < m->shown_ranks);
    memset(lane, 0, (size_t)m->shown_ranks * 2 * sizeof *lane);
    lane[2 * m->reducer.rank] = busy_ns(m);
    lane[2 * m->reducer.rank + 1] = padded;
}

static void pack_maxima(const ravel_metrics *m, int64_t step, int64_t *lane) {
    *lane++ = step;
    *lane++ = -step;
    for (int32_t id = 0; id < m->rows; id++)
        if (m->enabled[id] && is_extreme(&m->row[id])) *lane++ = pack_extreme(&m->row[id], &m->cells[id]);
    for (int i = 0; i < RAVEL_PHASES; i++)
        *lane++ = m->phases[i].used ? ravel__slow_code(m->phases[i].total_ns, m->reducer.rank) : RAVEL__NOTHING;
    *lane++ = busy_ns(m);
    *lane++ = m->cells[RAVEL_METRIC_TOKENS_PADDED].integer;
    RAVEL_ASSERT(lane == m->maxima + m->max_lanes);
}

/* ---- lanes to values ------------------------------------------------------------------------------------ */

static double deviation(double sum, double squares, double weight) {
    RAVEL_ASSERT(weight > 0);
    double mean = sum / weight, variance = squares / weight - mean * mean;
    if (isnan(variance)) return variance;
    return variance > mean * mean * 1e-14 ? sqrt(variance) : 0; /* below that it is rounding */
}

static const int64_t *unpack_row(const ravel_metric *row, ravel__value *value, const int64_t *lane) {
    RAVEL_ASSERT(row_lanes(row) > 0);
    ravel__fixed sum = {0}, square = {0}, weight = {0};
    if (row->rule == RAVEL_RULE_SUM) {
        value->present = *lane++ > 0;
        if (is_integer(row)) {
            value->integer = *lane++;
            return lane;
        }
        lane = ravel__fixed_unpack(&sum, lane);
        value->real = ravel__fixed_real(&sum);
        return lane;
    }
    lane = ravel__fixed_unpack(&sum, lane);
    if (row->rule == RAVEL_RULE_STD) lane = ravel__fixed_unpack(&square, lane);
    lane = ravel__fixed_unpack(&weight, lane);
    double total = ravel__fixed_real(&weight);
    value->present = total > 0;
    if (!value->present) return lane;
    value->real = row->rule == RAVEL_RULE_STD ? deviation(ravel__fixed_real(&sum), ravel__fixed_real(&square), total)
                                              : ravel__fixed_real(&sum) / total;
    return lane;
}

static void unpack_extreme(const ravel_metric *row, ravel__value *value, int64_t code) {
    RAVEL_ASSERT(is_extreme(row));
    int negate = row->rule == RAVEL_RULE_MIN;
    value->present = code != RAVEL__NOTHING;
    if (!value->present) return;
    if (is_integer(row))
        value->integer = negate ? -code : code;
    else
        value->real = negate ? -ravel__order_real(code) : ravel__order_real(code);
}

static const int64_t *unpack_sums(ravel_metrics *m, ravel__reduced *r) {
    const int64_t *lane = m->sums;
    RAVEL_ASSERT(*lane == m->reducer.size);
    r->ranks = *lane++;
    for (int32_t id = 0; id < m->rows; id++)
        if (m->enabled[id] && row_lanes(&m->row[id])) lane = unpack_row(&m->row[id], &m->next.values[id], lane);
    for (int i = 0; i < RAVEL_PHASES; i++) {
        r->phases[i].total_ns = *lane++;
        r->phases[i].self_ns = *lane++;
        r->phases[i].used = *lane++;
    }
    r->busy_ns = *lane++;
    r->padded_ranks = *lane++;
    r->lengths.tokens = *lane++;
    r->head_tokens = *lane++;
    ravel__i128 squares = ravel__wide_unpack(lane);
    r->lengths.squares.high = (uint64_t)(squares >> 64);
    r->lengths.squares.low = (uint64_t)squares;
    RAVEL_ASSERT(lane + RAVEL__WIDE_LANES + 2 * (int64_t)m->shown_ranks == m->sums + m->sum_lanes);
    return lane + RAVEL__WIDE_LANES;
}

static void unpack_maxima(ravel_metrics *m, ravel__reduced *r) {
    const int64_t *lane = m->maxima + MAX_HEAD;
    for (int32_t id = 0; id < m->rows; id++)
        if (m->enabled[id] && is_extreme(&m->row[id])) unpack_extreme(&m->row[id], &m->next.values[id], *lane++);
    for (int i = 0; i < RAVEL_PHASES; i++) r->phases[i].slow = *lane++;
    r->busiest_ns = *lane++;
    r->most_padded = *lane++;
    RAVEL_ASSERT(lane == m->maxima + m->max_lanes);
}

static void unpack_ranks(ravel_metrics *m, const int64_t *lane) {
    RAVEL_ASSERT(lane + 2 * (int64_t)m->shown_ranks == m->sums + m->sum_lanes);
    m->next.rank_count = m->shown_ranks;
    for (int32_t rank = 0; rank < m->shown_ranks; rank++) {
        m->next.ranks[rank].busy_ns = *lane++;
        m->next.ranks[rank].padded = *lane++;
    }
}

ravel_status ravel__metrics_reduce(ravel_metrics *m, int64_t step, ravel_error *err) {
    pack_sums(m, m->sums);
    pack_maxima(m, step, m->maxima);
    const ravel_metrics_reducer *reducer = &m->reducer;
    if (reducer->all_reduce) {
        ravel_status status = reducer->all_reduce(reducer->user, m->sums, m->sum_lanes, RAVEL_METRICS_SUM, err);
        if (!status) status = reducer->all_reduce(reducer->user, m->maxima, m->max_lanes, RAVEL_METRICS_MAX, err);
        if (status) return status;
    }
    if (m->maxima[0] != -m->maxima[1])
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "the ranks are not at the same update: steps from %lld to %lld; every rank must call "
                               "ravel_metrics_update with the same step",
                               (long long)-m->maxima[1], (long long)m->maxima[0]);
    if (m->sums[0] != reducer->size)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "the reducer summed over %lld ranks; its size says %d",
                               (long long)m->sums[0], (int)reducer->size);
    ravel__reduced reduced = {0};
    memset(m->next.values, 0, (size_t)m->rows * sizeof *m->next.values);
    const int64_t *ranks = unpack_sums(m, &reduced);
    unpack_maxima(m, &reduced);
    unpack_ranks(m, ranks);
    m->next.step = step;
    m->next.busiest_ns = reduced.busiest_ns;
    ravel__derive(m, &reduced);
    return RAVEL_OK;
}
