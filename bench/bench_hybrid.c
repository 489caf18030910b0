/* Hybrid context parallelism: time over the bound on given lengths, the result of Megatron's dynamic-CP scheduler on
 * them
 * (when RAVEL_TRACES names the folder that holds hybrid/to-beat.csv and its lengths), and speed. */
#include "bench/bench.h"
#include "bench/plan_job.h"

#include <ravel/lengths.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void begin(plan_job *j, const int64_t *lengths, int64_t count, int32_t pool, int64_t budget) {
    plan_job_begin(j, lengths, count, budget);
    j->options.cp_pool = pool;
    j->options.cp_split = RAVEL_CP_SPLIT_CONTIGUOUS; /* the lengths are multiples of 128, and so are all slots */
    j->options.align = 128;
    j->options.cost.overhead = 24576 * 256;
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

typedef struct row {
    char file[64];
    int32_t pool;
    int64_t samples, budget, bound, time;
} row;

static int read_row(const char *line, row *r) {
    long long samples, budget, bound, time;
    int pool;
    int fields = sscanf(line, "%63[^,],%d,%lld,%lld,%lld,%lld", r->file, &pool, &samples, &budget, &bound, &time);
    if (fields != 6) return 0;
    *r = (row){{0}, pool, samples, budget, bound, time};
    return sscanf(line, "%63[^,]", r->file) == 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct score {
    int rows, beaten;
    double ratio[256], ms;
} score;

static void try_row(const char *folder, const row *r, score *s) {
    char path[1024];
    ravel_lengths *all = NULL;
    (void)snprintf(path, sizeof path, "%s/hybrid/%s", folder, r->file);
    if (ravel_lengths_read(path, NULL, &all, NULL) != RAVEL_OK) return;
    plan_job j;
    begin(&j, all->lengths, all->count, r->pool, r->budget);
    double seconds = bench_best(5, plan_job_run, &j);
    ravel_lengths_free(all);
    if (j.status != RAVEL_OK) return;
    if (r->samples == 1024 && r->pool == 64 && seconds * 1e3 > s->ms) s->ms = seconds * 1e3;
    double ratio = (double)j.stats.time / (double)r->bound;
    int beaten = j.stats.time <= r->time && !j.stats.over_budget;
    s->beaten += beaten;
    s->ratio[s->rows++] = ratio;
    if (!beaten || getenv("RAVEL_BENCH_ROWS"))
        bench_note("%s: %.4f of the bound, Megatron %.4f, %lld micro-steps, %.2f ms%s", r->file, ratio,
                   (double)r->time / (double)r->bound, (long long)j.stats.micro_steps, seconds * 1e3,
                   beaten ? "" : " (not beaten)");
    if (llabs(j.stats.time_lower_bound - r->bound) > 2)
        bench_note("%s: the bound is %lld, not %lld as in the table", r->file, (long long)j.stats.time_lower_bound,
                   (long long)r->bound);
}

BENCH(hybrid_rows) {
    const char *folder = getenv("RAVEL_TRACES");
    char line[512];
    (void)snprintf(line, sizeof line, "%s/hybrid/to-beat.csv", folder ? folder : ".");
    FILE *table = folder ? fopen(line, "r") : NULL;
    if (!table) {
        bench_note("hybrid.*: set RAVEL_TRACES to the folder of hybrid/to-beat.csv and its lengths");
        return;
    }
    static score s;
    row r;
    while (s.rows < 256 && fgets(line, sizeof line, table))
        if (read_row(line, &r)) try_row(folder, &r, &s);
    (void)fclose(table);
    if (!s.rows) return;
    qsort(s.ratio, (size_t)s.rows, sizeof *s.ratio, by_value);
    bench_report("hybrid.rows_total", s.rows, "rows", HIGHER, "rows of hybrid/to-beat.csv");
    bench_report("hybrid.rows_beaten", s.beaten, "rows", HIGHER, "time at or below Megatron's, never over budget");
    bench_report("hybrid.median", (s.ratio[s.rows / 2] + s.ratio[(s.rows - 1) / 2]) / 2, "x", LOWER,
                 "time / bound, overhead per micro-step counted on both sides");
    bench_report("hybrid.worst", s.ratio[s.rows - 1], "x", LOWER, "time / bound");
    bench_report("hybrid.n1024_ms", s.ms, "ms", LOWER, "n 1024, pool 64, the slower of the rows; default effort");
}
