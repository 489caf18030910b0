/* The object: made once, updated often. Everything that an update needs is allocated in ravel_metrics_create. */
#include "metrics/state.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/memory.h"
#include "base/options.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_metrics_options, __VA_ARGS__)
static const ravel_option option_table[] = {
    ROW("world", I64, world, "0", 0, 1e9, NULL, "ranks of the whole job for per-GPU figures; 0: all"),
    ROW("updates", I64, updates, "0", 0, 1e15, NULL, "updates that are planned; 0: unknown"),
    ROW("seq-length", I64, seq_length, "0", 0, 1e12, NULL,
        "what a sample would be padded to without packing, for tokens_per_sec; 0: count actual tokens"),
    ROW("peak-flops", F64, peak_flops, "0", 0, 1e20, NULL, "FLOP/s of one GPU, for MFU; 0: by its name"),
    ROW("gpu", STRING, gpu, NULL, 0, 0, NULL, "the GPU's name, for MFU"),
    ROW("rl", BOOL, rl, "false", 0, 0, NULL, "show the RL figures"),
    ROW("counts", BOOL, counts, "true", 0, 0, NULL,
        "whether this rank counts its batches, or another rank of its data-parallel group does"),
    ROW("compute", ENUM, compute, "padded", 0, 0, "padded|capacity",
        "tokens that a bin computes: its slots, or its capacity"),
    ROW("recompute", ENUM, recompute, "none", 0, 0, RAVEL_RECOMPUTE_CHOICES, "what the backward pass recomputes"),
    ROW("adapter", I64, adapter, "0", 0, 1e15, NULL,
        "weights of an adapter that is trained beside the frozen model; 0: the model is trained"),
    ROW("per-rank", I32, per_rank, "64", 0, RAVEL__MAX_RANKS, NULL,
        "show figures per rank for up to this number of ranks"),
    ROW("update-peaks", BOOL, update_peaks, "false", 0, 0, NULL,
        "memory/rss_update_peak_bytes: reset the process's high-water mark with every row"),
    {0}};
#undef AT

ravel_option_table ravel_metrics_option_table(void) {
    return option_table;
}

void ravel_metrics_options_default(ravel_metrics_options *options) {
    ravel__options_preset(option_table, options, sizeof *options);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static ravel_status check_extra(const ravel_metrics_options *o, ravel_error *err) {
    for (int64_t i = 0; i < o->extra_count; i++) {
        const ravel_metric *row = &o->extra[i];
        if (!row->name || !row->name[0] || row->name[0] == '/' || row->rule < RAVEL_RULE_SUM ||
            row->rule >= RAVEL_RULE_DERIVED || row->kind < RAVEL_KIND_COUNTER || row->kind > RAVEL_KIND_TIMER ||
            (row->kind == RAVEL_KIND_COUNTER && (row->rule == RAVEL_RULE_MEAN || row->rule == RAVEL_RULE_STD)))
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "metric %lld (\"%.60s\"): it needs a name, a kind of " RAVEL_METRIC_KIND_CHOICES
                                   " and a rule of sum|mean|std|min|max; a counter has no mean and no std",
                                   (long long)i, row->name ? row->name : "");
        const char *clash = strcmp(row->name, "step") == 0 || strcmp(row->name, "ranks") == 0 ? row->name : NULL;
        for (int32_t id = 0; id < RAVEL_METRICS && !clash; id++)
            clash = ravel__metric_clash(ravel__metric_table[id].name, row->name);
        for (int64_t j = 0; j < i && !clash; j++) clash = ravel__metric_clash(o->extra[j].name, row->name);
        if (clash)
            return ravel_error_set(
                err, RAVEL_E_ARGUMENT,
                "metric \"%.80s\": no name may be the path prefix of another or differ from it in punctuation alone, and "
                "\"%.80s\" is taken",
                row->name, clash);
    }
    return RAVEL_OK;
}

static size_t text_bytes(const char *text) {
    return text ? strlen(text) + 1 : 0;
}

static const char *copy_text(char **at, const char *text) {
    if (!text) return NULL;
    size_t bytes = strlen(text) + 1;
    RAVEL_ASSERT(*at);
    char *copy = memcpy(*at, text, bytes);
    *at += bytes;
    return copy;
}

static void copy_rows(ravel_metrics *m, const ravel_metrics_options *o) {
    char *at = m->strings;
    m->options.gpu = copy_text(&at, o->gpu);
    memcpy(m->row, ravel__metric_table, sizeof ravel__metric_table);
    for (int32_t i = 0; i < (int32_t)o->extra_count; i++) {
        ravel_metric *row = &m->row[RAVEL_METRICS + i];
        *row = o->extra[i];
        row->name = copy_text(&at, o->extra[i].name);
        row->unit = o->extra[i].unit ? copy_text(&at, o->extra[i].unit) : "";
        row->doc = o->extra[i].doc ? copy_text(&at, o->extra[i].doc) : "";
    }
    RAVEL_ASSERT((size_t)(at - m->strings) == m->strings_bytes);
    for (int32_t id = 0; id < m->rows; id++) {
        m->enabled[id] = m->row[id].show != RAVEL_SHOW_RL || o->rl;
        m->by_name[id] = id;
    }
}

static int compare_names(const void *a, const void *b, void *user) {
    const ravel_metric *row = user;
    return strcmp(row[*(const int32_t *)a].name, row[*(const int32_t *)b].name);
}

static size_t strings_needed(const ravel_metrics_options *o) {
    size_t bytes = text_bytes(o->gpu);
    for (int64_t i = 0; i < o->extra_count; i++)
        bytes += text_bytes(o->extra[i].name) + text_bytes(o->extra[i].unit) + text_bytes(o->extra[i].doc);
    return bytes;
}

/* ---- create and free ------------------------------------------------------------------------------------ */

static ravel_status check_options(const ravel_metrics_options *o, ravel_error *err) {
    ravel_status status = ravel__check_options(option_table, o, err);
    if (status) return status;
    const ravel_metrics_reducer *r = o->reducer;
    if (r && (r->size < 1 || r->size > RAVEL__MAX_RANKS || r->rank < 0 || r->rank >= r->size ||
              (r->size > 1 && !r->all_reduce)))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the reducer says rank %d of %d: a rank must be below the size, the size from 1 to %d, "
                               "and more than one rank needs all_reduce",
                               (int)r->rank, (int)r->size, RAVEL__MAX_RANKS);
    if (o->extra_count < 0 || o->extra_count > 100000 || (o->extra_count && !o->extra))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%lld metrics of the caller's own; at most 100000 are taken",
                               (long long)o->extra_count);
    status = check_extra(o, err);
    if (!status && o->shape) status = ravel_shape_check(o->shape, err);
    return status;
}

static int64_t clock_offset(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - ravel__clock_ns();
}

/* One array of the object: X(field, count). Allocated, freed and counted from one list. */
#define ARRAYS(X)                 \
    X(row, m->rows)               \
    X(enabled, m->rows)           \
    X(by_name, m->rows)           \
    X(cells, m->rows)             \
    X(next.values, m->rows)       \
    X(last.values, m->rows)       \
    X(next.ranks, m->shown_ranks) \
    X(last.ranks, m->shown_ranks) \
    X(strings, m->strings_bytes)

static void free_arrays(ravel_metrics *m) {
    const ravel_allocator *a = m->options.allocator;
#define X(field, count) ravel__release(a, m->field, (size_t)(count) * sizeof *m->field);
    ARRAYS(X)
    X(sums, m->sum_lanes)
    X(maxima, m->max_lanes)
#undef X
}

static ravel_status allocate_arrays(ravel_metrics *m, ravel_error *err) {
    const ravel_allocator *a = m->options.allocator;
#define X(field, count)                                                                   \
    if ((count) > 0 && !(m->field = ravel__calloc(a, (size_t)(count), sizeof *m->field))) \
        return ravel__no_memory(err, (size_t)(count) * sizeof *m->field, "metrics");
    ARRAYS(X)
#undef X
    return RAVEL_OK;
}

static ravel_status allocate_lanes(ravel_metrics *m, ravel_error *err) {
    RAVEL_ASSERT(m->rows >= RAVEL_METRICS && !m->sums && !m->maxima);
    ravel__lanes_count(m, &m->sum_lanes, &m->max_lanes);
    m->sums = ravel__calloc(m->options.allocator, (size_t)m->sum_lanes, sizeof *m->sums);
    m->maxima = ravel__calloc(m->options.allocator, (size_t)m->max_lanes, sizeof *m->maxima);
    return m->sums && m->maxima ? RAVEL_OK : ravel__no_memory(err, (size_t)m->sum_lanes * 8, "metrics");
}

static void take_options(ravel_metrics *m, const ravel_metrics_options *o) {
    m->options = *o;
    if (o->shape) {
        m->shape = *o->shape;
        m->options.shape = &m->shape;
    }
    m->reducer.size = 1;
    if (o->reducer) m->reducer = *o->reducer;
    m->options.reducer = &m->reducer;
    m->options.extra = NULL;
    m->world = o->world ? o->world : m->reducer.size;
    m->peak = o->peak_flops > 0 ? o->peak_flops : ravel_gpu_peak(o->gpu);
    m->rows = RAVEL_METRICS + (int32_t)o->extra_count;
    m->shown_ranks = m->reducer.size <= o->per_rank ? m->reducer.size : 0;
    RAVEL_ASSERT(m->world >= 1 && m->peak >= 0 && m->rows >= RAVEL_METRICS && m->reducer.rank < m->reducer.size);
    m->strings_bytes = strings_needed(o);
    m->statm = m->clear_refs = -1;
}

ravel_status ravel_metrics_create(const ravel_metrics_options *given, ravel_metrics **metrics, ravel_error *err) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    if (given) memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
    o.size = sizeof o;
    ravel_status status = check_options(&o, err);
    if (status) return status;
    ravel_metrics *m = ravel__calloc(o.allocator, 1, sizeof *m);
    if (!m) return ravel__no_memory(err, sizeof *m, "metrics");
    take_options(m, &o);
    pthread_mutex_init(&m->lock, NULL);
    status = allocate_arrays(m, err);
    if (!status) {
        copy_rows(m, &o);
        qsort_r(m->by_name, (size_t)m->rows, sizeof *m->by_name, compare_names, m->row);
        status = allocate_lanes(m, err);
    }
    if (status) {
        ravel_metrics_free(m);
        return status;
    }
    ravel__memory_open(m);
    m->clock_offset_ns = clock_offset();
    m->begun_ns = ravel__clock_ns();
    m->row_ns = -1;
    *metrics = m;
    return RAVEL_OK;
}

void ravel_metrics_free(ravel_metrics *m) {
    if (!m) return;
    ravel__sinks_close(m);
    ravel__memory_close(m);
    ravel__release(m->options.allocator, m->spans, (size_t)m->span_room * sizeof *m->spans);
    free_arrays(m);
    pthread_mutex_destroy(&m->lock);
    ravel__release(m->options.allocator, m, sizeof *m);
}

/* ---- the update ----------------------------------------------------------------------------------------- */

void ravel_metrics_begin(ravel_metrics *m) {
    m->begun_ns = ravel__clock_ns();
    m->aside_ns = 0;
    if (m->row_ns < 0) m->row_ns = m->begun_ns;
}

/* `last` becomes a copy of `next`, arrays by content. */
static void publish(ravel_metrics *m) {
    RAVEL_ASSERT(m->next.rank_count == m->shown_ranks && m->next.updates >= 1);
    pthread_mutex_lock(&m->lock);
    ravel__snapshot *to = &m->last;
    ravel__value *values = to->values;
    ravel__rank_value *ranks = to->ranks;
    *to = m->next;
    to->values = values;
    to->ranks = ranks;
    memcpy(to->values, m->next.values, (size_t)m->rows * sizeof *to->values);
    if (m->shown_ranks) memcpy(to->ranks, m->next.ranks, (size_t)m->shown_ranks * sizeof *to->ranks);
    pthread_mutex_unlock(&m->lock);
}

static void start_anew(ravel_metrics *m, int64_t now) {
    RAVEL_ASSERT(now >= m->begun_ns && m->span_count <= m->span_room);
    memset(m->cells, 0, (size_t)m->rows * sizeof *m->cells);
    memset(m->phases, 0, sizeof m->phases);
    memset(&m->lengths, 0, sizeof m->lengths);
    m->head_tokens = 0;
    m->span_count = 0;
    m->begun_ns = m->row_ns = now;
    m->aside_ns = 0;
}

static ravel_status end_row(ravel_metrics *m, int64_t step, ravel_error *err) {
    int64_t now = ravel__clock_ns();
    ravel__phases_cut(m, now);
    int64_t row_ns = m->row_ns < 0 || m->row_ns > m->begun_ns ? m->begun_ns : m->row_ns;
    RAVEL_ASSERT(m->aside_ns >= 0 && m->aside_ns <= now - m->begun_ns);
    if (!m->no_update)
        ravel_metrics_add(m, RAVEL_METRIC_TIME_UPDATE, (double)(now - m->begun_ns - m->aside_ns) / 1e9, 1);
    ravel_metrics_add(m, RAVEL_METRIC_TIME_WALL, (double)(now - row_ns) / 1e9, 1);
    ravel__memory_sample(m);
    ravel_status status = ravel__metrics_reduce(m, step, err);
    if (status) return status;
    m->next.time_ns = now + m->clock_offset_ns;
    m->next.updates++;
    publish(m);
    ravel__sinks_write(m);
    start_anew(m, now);
    return RAVEL_OK;
}

ravel_status ravel_metrics_update(ravel_metrics *m, int64_t step, ravel_error *err) {
    m->no_update = 0;
    return end_row(m, step, err);
}

ravel_status ravel_metrics_report(ravel_metrics *m, int64_t step, ravel_error *err) {
    m->no_update = 1;
    ravel_status status = end_row(m, step, err);
    m->no_update = 0;
    return status;
}

void ravel_metrics_get_totals(ravel_metrics *m, ravel_metrics_totals *totals) {
    *totals = m->totals;
}

void ravel_metrics_set_totals(ravel_metrics *m, const ravel_metrics_totals *totals) {
    m->totals = *totals;
}
