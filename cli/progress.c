/* The progress line: quiet for the first second, then at most ten times a second. */
#include "cli/cli.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
    double started, shown;
    int active, printed;
} line;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress(const char *what, double done, double total) {
    double t = now();
    if (!line.active) {
        line.active = 1;
        line.printed = 0;
        line.started = line.shown = t;
    }
    if (!isatty(2) || t - line.started < 1 || t - line.shown < 0.1) return;
    line.shown = t;
    line.printed = 1;
    double share = total > 0 ? done / total : 0, left = share > 0 ? (t - line.started) * (1 - share) / share : 0;
    int width = 30, full = (int)(share * width);
    (void)fprintf(stderr, "\r\033[K%s [", what);
    for (int i = 0; i < width; i++) (void)fputc(i < full ? '#' : '.', stderr);
    (void)fprintf(stderr, "] %3.0f %%, %.0f s left", 100 * share, left);
    (void)fflush(stderr);
}

void cli_progress_end(void) {
    if (line.printed) (void)fprintf(stderr, "\r\033[K");
    line.active = 0;
}
