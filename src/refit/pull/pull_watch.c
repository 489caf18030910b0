#include "refit/pull/dial.h"

#include "base/assert.h"
#include "refit/pull/pull.h"

#include <string.h>
#include <time.h>

static const double connect_seconds = 2, silence_seconds = 10;

static ravel_status send_report(ravel__watch *w, ravel__dial *dial) {
    pthread_mutex_lock(&w->lock);
    const ravel__pull_report report = w->report;
    int due = w->report_due;
    w->report_due = 0;
    pthread_mutex_unlock(&w->lock);
    return due ? ravel__dial_send(dial, RAVEL__PULL_REPORT, 0, &report, sizeof report, NULL) : RAVEL_OK;
}

static void set_connected(ravel__watch *w, int32_t connected) {
    pthread_mutex_lock(&w->lock);
    w->connected = connected;
    if (connected) w->report_due = 1; /* restarted trainers do not have this generator's report yet */
    pthread_mutex_unlock(&w->lock);
}

/* One connection, until it is lost or the puller ends. */
static void listen(ravel__watch *w) {
    ravel__versions v;
    ravel__dial dial = {.token = w->token, .tls = w->tls, .allocator = w->allocator, .stop = &w->stop};
    dial.max_body = sizeof v;
    ravel_status status = ravel__dial_open(&dial, w->address, connect_seconds, NULL);
    if (status == RAVEL_OK) set_connected(w, 1);
    while (status == RAVEL_OK) {
        v = ravel__watch_versions(w); /* list[0] is 0 if there is none */
        status = send_report(w, &dial);
        if (status == RAVEL_OK)
            status = ravel__dial_ask(&dial, RAVEL__PULL_WATCH, &v.list[0], sizeof v.list[0], RAVEL__PULL_VERSIONS,
                                     silence_seconds, NULL);
        if (status == RAVEL_OK) status = ravel__versions_decode(dial.reply.body, (int64_t)dial.reply.bytes, &v, NULL);
        if (status != RAVEL_OK) break;
        pthread_mutex_lock(&w->lock);
        w->versions = v;
        pthread_mutex_unlock(&w->lock);
    }
    ravel__dial_close(&dial);
    set_connected(w, 0);
}

static void *run(void *argument) {
    ravel__watch *w = argument;
    while (!atomic_load(&w->stop)) {
        listen(w);
        struct timespec pause = {0, 50 * 1000 * 1000};
        if (!atomic_load(&w->stop)) (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

ravel_status ravel__watch_start(ravel__watch *w, ravel_error *err) {
    RAVEL_ASSERT(!w->running && w->address);
    pthread_mutex_init(&w->lock, NULL);
    atomic_init(&w->stop, 0);
    w->running = pthread_create(&w->thread, NULL, run, w) == 0;
    if (w->running) return RAVEL_OK;
    pthread_mutex_destroy(&w->lock);
    return ravel_error_set(err, RAVEL_E_MEMORY, "no thread could be made to watch for versions");
}

void ravel__watch_stop(ravel__watch *w) {
    if (!w->running) return;
    atomic_store(&w->stop, 1);
    (void)pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    w->running = 0;
}

ravel__versions ravel__watch_versions(ravel__watch *w) {
    pthread_mutex_lock(&w->lock);
    ravel__versions v = w->versions;
    pthread_mutex_unlock(&w->lock);
    return v;
}

void ravel__watch_report(ravel__watch *w, const ravel__pull_report *report) {
    RAVEL_ASSERT(w->running && report->ranks > 0);
    pthread_mutex_lock(&w->lock);
    w->report = *report;
    w->report_due = 1;
    pthread_mutex_unlock(&w->lock);
}

void ravel__watch_speed(ravel__watch *w, double tokens_per_second) {
    pthread_mutex_lock(&w->lock);
    w->report.tokens_per_second = tokens_per_second;
    w->report_due = 1;
    pthread_mutex_unlock(&w->lock);
}
