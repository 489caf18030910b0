/* Reading the last update by name or id, from any thread: a lock around a copy of one value. */
#include "metrics/state.h"

#include "base/assert.h"

#include <stdlib.h>

static int32_t find(const ravel_metrics *m, const char *name) {
    int32_t low = 0, high = m->rows - 1;
    while (low <= high) {
        int32_t middle = low + (high - low) / 2;
        RAVEL_ASSERT(!middle || strcmp(m->row[m->by_name[middle - 1]].name, m->row[m->by_name[middle]].name) < 0);
        int order = strcmp(name, m->row[m->by_name[middle]].name);
        if (order == 0) return m->by_name[middle];
        if (order < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return -1;
}

static int copy_value(ravel_metrics *m, int32_t id, ravel__value *value) {
    if (id < 0 || id >= m->rows) return 0;
    pthread_mutex_lock(&m->lock);
    *value = m->last.values[id];
    pthread_mutex_unlock(&m->lock);
    return value->present;
}

int ravel_metrics_value(ravel_metrics *m, int32_t id, double *value) {
    ravel__value found;
    if (!copy_value(m, id, &found)) return 0;
    *value = m->row[id].kind == RAVEL_KIND_COUNTER ? (double)found.integer : found.real;
    return 1;
}

int ravel_metrics_integer(ravel_metrics *m, int32_t id, int64_t *value) {
    ravel__value found;
    if (!copy_value(m, id, &found) || m->row[id].kind != RAVEL_KIND_COUNTER) return 0;
    *value = found.integer;
    return 1;
}

int ravel_metrics_get(ravel_metrics *m, const char *name, double *value) {
    return ravel_metrics_value(m, find(m, name), value);
}

int32_t ravel_metrics_rows(const ravel_metrics *m) {
    return m->rows;
}

const ravel_metric *ravel_metrics_row(const ravel_metrics *m, int32_t id) {
    return id >= 0 && id < m->rows ? &m->row[id] : NULL;
}

int ravel_metrics_enabled(const ravel_metrics *m, int32_t id) {
    return id >= 0 && id < m->rows && m->enabled[id];
}

int ravel_metrics_flops(ravel_metrics *m, ravel_flops *flops) {
    pthread_mutex_lock(&m->lock);
    int has = m->last.has_flops;
    if (has) *flops = m->last.flops;
    pthread_mutex_unlock(&m->lock);
    return has;
}

int ravel_metrics_rank(ravel_metrics *m, int32_t rank, double *busy_sec, double *idle_share, int64_t *padded) {
    pthread_mutex_lock(&m->lock);
    int has = rank >= 0 && rank < m->last.rank_count;
    if (has) {
        RAVEL_ASSERT(m->last.rank_count == m->shown_ranks);
        const ravel__rank_value *value = &m->last.ranks[rank];
        double most = (double)m->last.busiest_ns;
        if (busy_sec) *busy_sec = (double)value->busy_ns / 1e9;
        if (idle_share) *idle_share = most > 0 ? 1 - (double)value->busy_ns / most : 0;
        if (padded) *padded = value->padded;
    }
    pthread_mutex_unlock(&m->lock);
    return has;
}
