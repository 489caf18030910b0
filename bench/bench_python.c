/* What `ravel.plan` costs on top of the C call. A Python script times both in one process, in turns, and prints the
 * seconds of the C call and two ratios; this file only runs it and reports. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *script = "python/bench/plan_overhead.py";

/* The first Python that has numpy; NULL: none. */
static const char *find_python(void) {
    static const char *const candidates[] = {"/usr/bin/python3", "python3"};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        char command[128];
        snprintf(command, sizeof command, "%s -c 'import numpy' >/dev/null 2>&1", candidates[i]);
        if (system(command) == 0) return candidates[i];
    }
    return NULL;
}

/* 1 where the script printed its three numbers. */
static int measure(const char *python, double numbers[3]) {
    const char *build = getenv("BUILD");
    char command[1024], line[256] = "";
    snprintf(command, sizeof command, "RAVEL_LIBRARY=\"%s/libravel.so\" %s %s 2>&1", build ? build : "build", python,
             script);
    FILE *pipe = popen(command, "r");
    if (!pipe) return 0;
    char last[256] = "";
    while (fgets(line, sizeof line, pipe)) memcpy(last, line, sizeof last);
    int code = pclose(pipe);
    if (code == 0 && sscanf(last, "%lf %lf %lf", &numbers[0], &numbers[1], &numbers[2]) == 3) return 1;
    last[strcspn(last, "\n")] = 0;
    bench_note("python.plan_overhead: the script failed: %s", last);
    return 0;
}

BENCH(python) {
    const char *python = find_python();
    double numbers[3];
    if (access(script, R_OK) != 0) {
        bench_note("python.plan_overhead: %s is not here; run the bench from the top of the tree", script);
    } else if (!python) {
        bench_note("python.plan_overhead: there is no python3 with numpy (Debian: python3-numpy)");
    } else if (measure(python, numbers)) {
        bench_report("python.plan_overhead", numbers[1], "x", LOWER,
                     "ravel.plan(numpy int64) / C call of %.3f ms, n 4096, dp 16; target 1.10", numbers[0] * 1e3);
        bench_report("python.plan_overhead_list", numbers[2], "x", LOWER,
                     "ravel.plan(list) / C call, n 4096, dp 16; target 2");
    }
}
