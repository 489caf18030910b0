/* Shared by the files of metrics: the object, and how an update flows through it.
 *
 *     add.c, phase.c      cells and phase clocks of this rank      (hot path: no allocation, no lock)
 *        |
 *     reduce.c            cells -> lanes -> all-reduce (SUM, MAX) -> reduced cells
 *        |
 *     derive.c            reduced cells -> values of every row, totals
 *        |
 *     metrics.c           publishes the values (lock), calls the sinks, clears the cells
 *        |
 *     sink.c, sink_*.c    files, sockets; read.c answers other threads
 */
#ifndef RAVEL_METRICS_STATE_H
#define RAVEL_METRICS_STATE_H

#include <ravel/metrics.h>

#include "metrics/fixed.h"

#include <pthread.h>

enum { RAVEL__PHASE_DEPTH = 16, RAVEL__SINKS_MAX = 16 };

/* Values added to one row since the last update. Which fields are used depends on its rule and kind. */
typedef struct ravel__cell {
    ravel__fixed value, square, weight;
    int64_t integer; /* COUNTER */
    double extreme;  /* MIN, MAX */
    int64_t used;
} ravel__cell;

/* One row's value in an update. */
typedef struct ravel__value {
    double real;
    int64_t integer; /* COUNTER */
    int32_t present;
    int32_t reserved;
} ravel__value;

typedef struct ravel__phase_time {
    int64_t total_ns; /* nested phases included */
    int64_t self_ns;
    int64_t used;
} ravel__phase_time;

typedef struct ravel__open_phase {
    int32_t phase;
    int32_t again;    /* the same phase is open further out: its total is counted there */
    int64_t begun_ns; /* since then for the total */
    int64_t inner_ns; /* of phases nested in it */
} ravel__open_phase;

/* A closed phase, kept for the trace. */
typedef struct ravel__span {
    int64_t begin_ns, end_ns;
    int32_t phase, depth;
} ravel__span;

/* Figures of one rank. */
typedef struct ravel__rank_value {
    int64_t busy_ns, padded;
} ravel__rank_value;

/* A whole update, reduced over ranks: what sinks and readers see. */
typedef struct ravel__snapshot {
    int64_t step;
    int64_t updates; /* how many there have been in this process; 0: none yet */
    int64_t time_ns; /* since 1970 */
    ravel_flops flops;
    int32_t has_flops;
    int32_t rank_count;       /* 0, or as many as `ranks` holds */
    ravel__value *values;     /* [rows] */
    ravel__rank_value *ranks; /* [rank_count] */
    int64_t busiest_ns;
} ravel__snapshot;

typedef struct ravel__sink ravel__sink;

struct ravel_metrics {
    ravel_metrics_options options; /* with `shape` and `reducer` pointing at the copies below, strings copied */
    ravel_shape shape;
    ravel_metrics_reducer reducer;
    double peak; /* of one GPU; 0: unknown */
    int64_t world;

    int32_t rows;
    ravel_metric *row; /* [rows] */
    uint8_t *enabled;  /* [rows] */
    char *strings;     /* of the caller's rows, and the GPU's name */
    size_t strings_bytes;
    int32_t *by_name; /* [rows] ids in the order of their names */

    ravel__cell *cells; /* [rows] */
    ravel_lengths_sum lengths;
    int64_t head_tokens;
    ravel__phase_time phases[RAVEL_PHASES];
    ravel__open_phase open[RAVEL__PHASE_DEPTH];
    int32_t depth;
    int64_t begun_ns;  /* the update */
    int64_t row_ns;    /* since then for time/wall_sec; -1: nothing has been timed yet */
    int32_t no_update; /* the row under way is none */
    int64_t aside_ns;  /* since begun_ns, in phases that are no part of the update */

    int64_t *sums, *maxima; /* lanes */
    int64_t sum_lanes, max_lanes;
    int32_t shown_ranks;
    uint8_t phase_seen[RAVEL_PHASES]; /* on any rank, at any time: its rows are shown from then on */

    ravel__snapshot next, last;
    pthread_mutex_t lock; /* of `last` */
    ravel_metrics_totals totals;

    ravel__span *spans; /* [span_room], NULL without a trace sink */
    int64_t span_count, span_room, spans_lost;
    int64_t clock_offset_ns; /* monotonic to wall clock */
    int64_t rss_peak;        /* bytes, since the object was made */
    int32_t statm;           /* file descriptor of /proc/self/statm, -1 without */
    int32_t clear_refs;      /* of /proc/self/clear_refs, -1 without */

    ravel__sink *sinks[RAVEL__SINKS_MAX];
    int32_t sink_count;
    int32_t sinks_failed;
};

/* table.c */
extern const ravel_metric ravel__metric_table[RAVEL_METRICS];
/* The shorter name, where one is the path prefix of the other; `a` where both are the same but for punctuation; else
 * NULL. */
const char *ravel__metric_clash(const char *a, const char *b);

/* phase.c */
void ravel__phases_cut(ravel_metrics *m, int64_t now);

/* reduce.c */
void ravel__lanes_count(const ravel_metrics *m, int64_t *sums, int64_t *maxima);
ravel_status ravel__metrics_reduce(ravel_metrics *m, int64_t step, ravel_error *err);

/* derive.c: m->next from the reduced cells and phases. */
typedef struct ravel__reduced_phase {
    int64_t total_ns, self_ns; /* sums over ranks */
    int64_t used;              /* ranks that were in it */
    int64_t slow;              /* ravel__slow_code */
} ravel__reduced_phase;

typedef struct ravel__reduced {
    int64_t ranks;
    ravel__reduced_phase phases[RAVEL_PHASES];
    int64_t busy_ns, busiest_ns;
    int64_t padded_ranks, most_padded; /* ranks with a batch; the most on one of them */
    ravel_lengths_sum lengths;
    int64_t head_tokens;
} ravel__reduced;
void ravel__derive(ravel_metrics *m, const ravel__reduced *reduced);

/* memory.c */
void ravel__memory_open(ravel_metrics *m);
void ravel__memory_sample(ravel_metrics *m);
void ravel__memory_close(ravel_metrics *m);

/* sink.c */
void ravel__sinks_write(ravel_metrics *m);
void ravel__sinks_close(ravel_metrics *m);

static inline void ravel__cell_max(ravel__cell *cell, double x) {
    if (!cell->used++ || x > cell->extreme || isnan(x)) cell->extreme = x;
}
static inline void ravel__cell_min(ravel__cell *cell, double x) {
    if (!cell->used++ || x < cell->extreme || isnan(x)) cell->extreme = x;
}

#endif
