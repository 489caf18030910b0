#include "bench/bench.h"

#include "base/json.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COPIERS_MOST = 64 };

static bench_case *first, **last = &first;
static FILE *json;
static int rows;

void bench_register(bench_case *bench) {
    *last = bench;
    last = &bench->next;
}

double bench_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int bench_cores(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > COPIERS_MOST ? COPIERS_MOST : (int)cores;
}

typedef struct part {
    char *to;
    const char *from;
    size_t bytes;
} part;

static void *copy_part(void *argument) {
    const part *p = argument;
    memcpy(p->to, p->from, p->bytes);
    return NULL;
}

double bench_copy(int threads, char *to, const char *from, size_t bytes) {
    part parts[COPIERS_MOST] = {{0}};
    pthread_t made[COPIERS_MOST];
    double began = bench_seconds();
    if (threads < 1) return 0;
    for (int i = 0; i < threads; i++) {
        size_t at = bytes / (size_t)threads * (size_t)i;
        parts[i] = (part){to + at, from + at, (i + 1 == threads ? bytes : at + bytes / (size_t)threads) - at};
        if (i > 0 && pthread_create(&made[i], NULL, copy_part, &parts[i]) != 0) exit(1);
    }
    (void)copy_part(&parts[0]);
    for (int i = 1; i < threads; i++) (void)pthread_join(made[i], NULL);
    return bench_seconds() - began;
}

double bench_best(int repeats, void (*body)(void *user), void *user) {
    double best = 1e300;
    for (int i = 0; i < repeats; i++) {
        double start = bench_seconds();
        body(user);
        double took = bench_seconds() - start;
        if (took < best) best = took;
    }
    return best;
}

void bench_report(const char *name, double value, const char *unit, bench_better better, const char *conditions, ...) {
    char text[512], quoted[1200];
    va_list args;
    va_start(args, conditions);
    (void)vsnprintf(text, sizeof text, conditions, args);
    va_end(args);
    printf("  %-32s %12.6g %-10s %-6s  %s\n", name, value, unit, better == LOWER ? "lower" : "higher", text);
    (void)fflush(stdout);
    if (!json) return;
    ravel__json_quote(text, strlen(text), quoted, sizeof quoted);
    (void)fprintf(json,
                  "%s\n {\"name\": \"%s\", \"value\": %.9g, \"unit\": \"%s\", \"better\": \"%s\", \"conditions\": %s}",
                  rows++ ? "," : "", name, value, unit, better == LOWER ? "lower" : "higher", quoted);
}

void bench_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)printf("    ");
    (void)vprintf(format, args);
    (void)printf("\n");
    va_end(args);
}

static void print_machine(void) {
    char line[256], model[256] = "unknown processor";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            (void)snprintf(model, sizeof model, "%s", strchr(line, ':') + 2);
            model[strcspn(model, "\n")] = '\0';
            break;
        }
    if (f) (void)fclose(f);
    printf("Ravel %s on %s, %ld cores. Best of several repeats, one core unless said.\n", ravel_version(), model,
           sysconf(_SC_NPROCESSORS_ONLN));
    printf("  %-32s %12s %-10s %-6s  %s\n", "name", "value", "unit", "better", "conditions");
}

int main(int argc, char **argv) {
    const char *filter = "", *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0) {
            for (const bench_case *b = first; b; b = b->next) puts(b->name);
            return 0;
        }
        if (i + 1 < argc && strcmp(argv[i], "--json") == 0)
            path = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--filter") == 0)
            filter = argv[++i];
        else
            return (void)fprintf(stderr, "usage: ravel-bench [--json FILE] [--filter PREFIX] [--list]\n"), 2;
    }
    json = path ? fopen(path, "w") : NULL;
    if (path && !json) return (void)fprintf(stderr, "ravel-bench: cannot write %s\n", path), 1;
    if (json) (void)fprintf(json, "[");
    print_machine();
    for (const bench_case *b = first; b; b = b->next)
        if (strncmp(b->name, filter, strlen(filter)) == 0) b->run();
    if (json) (void)fprintf(json, "\n]\n");
    if (json && fclose(json) != 0) return (void)fprintf(stderr, "ravel-bench: cannot write %s\n", path), 1;
    return 0;
}
