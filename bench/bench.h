/* The bench table. A bench is a function that registers itself and reports named figures; ratios are taken inside one
 * run, timings are the best of several repeats.
 *
 *     BENCH(plan_speed) {
 *         double best = bench_best(7, run_once, &job);
 *         bench_report("plan.n4096_ms", best * 1e3, "ms", LOWER, "n 4096, dp 16, one core");
 *     }
 *
 *     ravel-bench [--json FILE] [--filter PREFIX] [--list]
 *
 * The filter is on the bench's name and on the figures' names' first part. */
#ifndef BENCH_H
#define BENCH_H

#include <ravel/base.h>

typedef enum bench_better { LOWER, HIGHER } bench_better;

typedef struct bench_case {
    const char *name;
    void (*run)(void);
    struct bench_case *next;
} bench_case;

void bench_register(bench_case *bench);
void bench_report(const char *name, double value, const char *unit, bench_better better, const char *conditions, ...)
    RAVEL_PRINTF(5, 6);
/* A note under the table's last row: skipped figures and the reason. */
void bench_note(const char *format, ...) RAVEL_PRINTF(1, 2);

double bench_seconds(void);
/* The least time of `repeats` calls, in seconds. */
double bench_best(int repeats, void (*body)(void *user), void *user);

/* Cores of this machine, at most 64. */
int bench_cores(void);
/* Seconds of one memcpy that `threads` threads share. */
double bench_copy(int threads, char *to, const char *from, size_t bytes);

#define BENCH(bench_name)                                                  \
    static void bench_name(void);                                          \
    static bench_case bench_name##_case = {#bench_name, bench_name, NULL}; \
    __attribute__((constructor)) static void bench_name##_register(void) { \
        bench_register(&bench_name##_case);                                \
    }                                                                      \
    static void bench_name(void)

#endif
