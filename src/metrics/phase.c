/* Phase clocks. A stack of open phases; each knows when it began and how much of it belonged to phases inside:
 *
 *     backward  |--------------------------|         total 26, self 26 - 9
 *     all_reduce          |-------|                  total 9, self 9
 *
 * The same phase may be open twice (a function that calls itself): then only the outermost adds to the total. */
#include "base/assert.h"
#include "metrics/state.h"

#include "base/system/clock.h"

static int is_phase(int32_t phase) {
    return phase >= 0 && phase < RAVEL_PHASES;
}

static int is_open(const ravel_metrics *m, int32_t phase) {
    RAVEL_ASSERT(m->depth >= 0 && m->depth <= RAVEL__PHASE_DEPTH);
    for (int32_t i = 0; i < m->depth; i++)
        if (m->open[i].phase == phase) return 1;
    return 0;
}

static void keep_span(ravel_metrics *m, const ravel__open_phase *open, int64_t now) {
    if (!m->spans) return;
    RAVEL_ASSERT(m->span_count <= m->span_room && open->begun_ns <= now);
    if (m->span_count == m->span_room) {
        m->spans_lost++;
        return;
    }
    ravel__span span = {open->begun_ns, now, open->phase, (int32_t)(open - m->open)};
    m->spans[m->span_count++] = span;
}

/* Phases that are no part of the update. */
static int is_aside(int32_t phase) {
    return phase == RAVEL_PHASE_CHECKPOINT || phase == RAVEL_PHASE_EVAL;
}

/* The outermost phase of that kind; of it what lies after the update's beginning. */
static void account_aside(ravel_metrics *m, const ravel__open_phase *open, int64_t now) {
    if (!is_aside(open->phase)) return;
    for (const ravel__open_phase *outer = m->open; outer < open; outer++)
        if (is_aside(outer->phase)) return;
    RAVEL_ASSERT(m->aside_ns >= 0 && m->begun_ns <= now);
    m->aside_ns += now - (open->begun_ns > m->begun_ns ? open->begun_ns : m->begun_ns);
}

/* Accounts for the open phase up to `now`. */
static void account(ravel_metrics *m, ravel__open_phase *open, int64_t now) {
    ravel__phase_time *time = &m->phases[open->phase];
    int64_t took = now - open->begun_ns;
    RAVEL_ASSERT(open >= m->open && open < m->open + m->depth && took >= open->inner_ns);
    if (!open->again) time->total_ns += took;
    time->self_ns += took - open->inner_ns;
    time->used = 1;
    account_aside(m, open, now);
    if (open > m->open) open[-1].inner_ns += took;
    keep_span(m, open, now);
}

ravel_status ravel_metrics_phase_begin(ravel_metrics *m, ravel_phase phase, ravel_error *err) {
    if (!is_phase((int32_t)phase))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no phase %d; they go from 0 to %d", (int)phase,
                               RAVEL_PHASES - 1);
    if (m->depth == RAVEL__PHASE_DEPTH)
        return ravel_error_set(err, RAVEL_E_STATE, "phase %s cannot begin: %d phases are open already",
                               ravel_phase_name((int32_t)phase), RAVEL__PHASE_DEPTH);
    ravel__open_phase open = {(int32_t)phase, is_open(m, (int32_t)phase), ravel__clock_ns(), 0};
    RAVEL_ASSERT(m->depth == 0 || m->open[m->depth - 1].begun_ns <= open.begun_ns);
    if (m->row_ns < 0) m->row_ns = open.begun_ns;
    m->open[m->depth++] = open;
    return RAVEL_OK;
}

ravel_status ravel_metrics_phase_end(ravel_metrics *m, ravel_phase phase, ravel_error *err) {
    const char *inner = m->depth ? ravel_phase_name(m->open[m->depth - 1].phase) : "none";
    if (!is_phase((int32_t)phase) || !m->depth || m->open[m->depth - 1].phase != (int32_t)phase)
        return ravel_error_set(err, RAVEL_E_STATE, "phase %s cannot end: the innermost open phase is %s",
                               is_phase((int32_t)phase) ? ravel_phase_name((int32_t)phase) : "(unknown)", inner);
    account(m, &m->open[m->depth - 1], ravel__clock_ns());
    m->depth--;
    return RAVEL_OK;
}

void ravel_metrics_phase_add(ravel_metrics *m, ravel_phase phase, double seconds) {
    if (!is_phase((int32_t)phase) || !(seconds >= 0) || seconds > 1e9) return;
    ravel__phase_time *time = &m->phases[phase];
    time->total_ns += (int64_t)(seconds * 1e9);
    time->self_ns += (int64_t)(seconds * 1e9);
    time->used = 1;
}

/* Innermost first, so that the outer phase knows the time of the inner one. */
void ravel__phases_cut(ravel_metrics *m, int64_t now) {
    RAVEL_ASSERT(m->depth >= 0 && m->depth <= RAVEL__PHASE_DEPTH);
    for (int32_t i = m->depth - 1; i >= 0; i--) account(m, &m->open[i], now);
    for (int32_t i = 0; i < m->depth; i++) {
        m->open[i].begun_ns = now;
        m->open[i].inner_ns = 0;
    }
}
