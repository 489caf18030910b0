/* Resident memory of this process: now (from /proc, kept open) and at its highest (from the kernel's own mark). */
#include "metrics/state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

void ravel__memory_open(ravel_metrics *m) {
    m->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
}

void ravel__memory_sample(ravel_metrics *m) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        ravel_metrics_count(m, RAVEL_METRIC_MEMORY_RSS_PEAK, (int64_t)usage.ru_maxrss * 1024);
    char text[128];
    ssize_t got = m->statm >= 0 ? pread(m->statm, text, sizeof text - 1, 0) : -1;
    if (got <= 0) return;
    text[got] = '\0';
    const char *resident = strchr(text, ' '); /* "size resident shared ..." in pages */
    if (resident) ravel_metrics_count(m, RAVEL_METRIC_MEMORY_RSS, strtoll(resident, NULL, 10) * sysconf(_SC_PAGESIZE));
}
