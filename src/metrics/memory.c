/* Resident memory of this process: now (from /proc, kept open), at its highest (from the kernel's own mark), and at its
 * highest since the row before (the same mark, reset with every row: /proc/self/clear_refs takes a 5). */
#include "metrics/state.h"

#include "base/assert.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

void ravel__memory_open(ravel_metrics *m) {
    m->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    m->clear_refs = m->options.update_peaks ? open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC) : -1;
}

void ravel__memory_close(ravel_metrics *m) {
    if (m->statm >= 0) close(m->statm);
    if (m->clear_refs >= 0) close(m->clear_refs);
}

/* 0 if it cannot be known. */
static int64_t resident_now(const ravel_metrics *m) {
    char text[128];
    ssize_t got = m->statm >= 0 ? pread(m->statm, text, sizeof text - 1, 0) : -1;
    if (got <= 0) return 0;
    RAVEL_ASSERT((size_t)got < sizeof text);
    text[got] = '\0';
    const char *resident = strchr(text, ' '); /* "size resident shared ..." in pages */
    return resident ? strtoll(resident, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

/* The kernel's high-water mark lags behind its current figure: the higher of the two is reported. */
void ravel__memory_sample(ravel_metrics *m) {
    struct rusage usage;
    int64_t now = resident_now(m), marked = getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
    if (now > m->rss_peak) m->rss_peak = now;
    if (marked > m->rss_peak) m->rss_peak = marked;
    RAVEL_ASSERT(m->rss_peak >= now && m->rss_peak >= marked);
    if (now > 0) ravel_metrics_count(m, RAVEL_METRIC_MEMORY_RSS, now);
    if (m->rss_peak > 0) ravel_metrics_count(m, RAVEL_METRIC_MEMORY_RSS_PEAK, m->rss_peak);
    if (m->clear_refs < 0) return;
    int64_t since = now > marked ? now : marked;
    if (since > 0) ravel_metrics_count(m, RAVEL_METRIC_MEMORY_RSS_UPDATE_PEAK, since);
    if (pwrite(m->clear_refs, "5", 1, 0) != 1) { /* a system without it: rather no row than one that never falls */
        close(m->clear_refs);
        m->clear_refs = -1;
    }
}
