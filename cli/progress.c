/* The progress line: quiet for the first second, then at most ten times per second. */
#include "cli/cli.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    double started, shown;
    int active, printed;
} line;

double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_live_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(2) && term && *term && strcmp(term, "dumb") != 0;
}

static void show_share(double share, double elapsed) {
    int width = 30, full = (int)(share * width);
    RAVEL_ASSERT(share >= 0 && share <= 1);
    (void)fputs(" [", stderr);
    for (int i = 0; i < width; i++) (void)fputc(i < full ? '#' : '.', stderr);
    (void)fprintf(stderr, "] %3.0f %%, %.0f s left", 100 * share, share > 0 ? elapsed * (1 - share) / share : 0);
}

void cli_progress(const char *what, double done, double total) {
    double t = cli_now();
    RAVEL_ASSERT(what && done >= 0);
    if (!line.active) {
        line.active = 1;
        line.printed = 0;
        line.started = line.shown = t;
    }
    if (t - line.started < 1 || t - line.shown < 0.1 || !cli_live_terminal()) return;
    line.shown = t;
    line.printed = 1;
    (void)fprintf(stderr, "\r\033[K%s", what);
    if (total > 0)
        show_share(done < total ? done / total : 1, t - line.started);
    else
        (void)fprintf(stderr, ", %.1f M so far", done / 1e6);
    (void)fflush(stderr);
}

void cli_progress_end(void) {
    if (line.printed) (void)fprintf(stderr, "\r\033[K");
    line.active = line.printed = 0;
}

void cli_log(void *user, ravel_log_level level, const char *said) {
    const cli_voice *voice = user;
    char text[2048];
    int warns = level >= RAVEL_LOG_WARN;
    if (!warns && (voice->quiet || level != RAVEL_LOG_INFO)) return;
    (void)snprintf(text, sizeof text, "%s", said);
    cli_make_printable(text);
    cli_progress_end();
    if (warns || !voice->plain) (void)fprintf(stderr, "ravel %s: ", voice->command);
    (void)fprintf(stderr, "%s\n", text);
}

void cli_show_progress(void *user, const char *what, double done, double total) {
    const cli_voice *voice = user;
    if (!voice->quiet) cli_progress(what, done, total);
}

/* ---- one long call -------------------------------------------------------------------------------------- */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    const char *what;
    int running, stopped;
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER};

/* Sleeps on `stop` rather than on the clock, so that the end never waits for it. */
static void *tick(void *unused) {
    double started = cli_now();
    int printed = 0;
    (void)unused;
    (void)pthread_mutex_lock(&busy.lock);
    while (!busy.stopped) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 250000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&busy.stop, &busy.lock, &until);
        if (busy.stopped || cli_now() - started < 1) continue;
        (void)fprintf(stderr, "\r\033[K%s, %.0f s", busy.what, cli_now() - started);
        (void)fflush(stderr);
        printed = 1;
    }
    (void)pthread_mutex_unlock(&busy.lock);
    if (printed) (void)fprintf(stderr, "\r\033[K");
    return NULL;
}

void cli_busy(const char *what) {
    if (!cli_live_terminal()) return;
    RAVEL_ASSERT(!busy.running && what);
    busy.what = what;
    busy.stopped = 0;
    busy.running = pthread_create(&busy.thread, NULL, tick, NULL) == 0;
}

void cli_busy_end(void) {
    if (!busy.running) return;
    (void)pthread_mutex_lock(&busy.lock);
    busy.stopped = 1;
    (void)pthread_cond_signal(&busy.stop);
    (void)pthread_mutex_unlock(&busy.lock);
    (void)pthread_join(busy.thread, NULL);
    busy.running = 0;
}
