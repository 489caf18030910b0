/* The time of `ravel.plan` over that of the C call, packing a data set compared with TRL, and `ravel serve` beside
 * `ravel generate`. Python scripts time both sides in turns and print a line of numbers; this file only runs them and
 * reports. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* 1 where the script printed as many numbers as were asked for. */
static int run_script(const char *row, const char *python, const char *script, double *numbers, int wanted) {
    const char *build = getenv("BUILD");
    char command[1024], line[256] = "", last[256] = "";
    snprintf(command, sizeof command, "RAVEL_LIBRARY=\"%s/libravel.so\" %s %s 2>&1", build ? build : "build", python,
             script);
    FILE *pipe = popen(command, "r");
    if (!pipe) return 0;
    while (fgets(line, sizeof line, pipe)) memcpy(last, line, sizeof last);
    int code = pclose(pipe), found = 0;
    char *at = last;
    for (char *end; code == 0 && found < wanted; found++, at = end) {
        numbers[found] = strtod(at, &end);
        if (end == at) break;
    }
    if (found == wanted) return 1;
    last[strcspn(last, "\n")] = 0;
    bench_note("%s: the script failed: %s", row, last);
    return 0;
}

static int measure(const char *row, const char *python, const char *script, double *numbers, int wanted) {
    if (access(script, R_OK) == 0) return run_script(row, python, script, numbers, wanted);
    bench_note("%s: %s is not here; run the bench from the top of the tree", row, script);
    return 0;
}

static void plan_overhead(void) {
    const char *python = find_python();
    double numbers[3];
    if (!python) {
        bench_note("python.plan_overhead: there is no python3 with numpy (Debian: python3-numpy)");
    } else if (measure("python.plan_overhead", python, "python/bench/plan_overhead.py", numbers, 3)) {
        bench_report("python.plan_overhead", numbers[1], "x", LOWER,
                     "ravel.plan(numpy int64) / C call of %.3f ms, n 4096, dp 16; target 1.10", numbers[0] * 1e3);
        bench_report("python.plan_overhead_list", numbers[2], "x", LOWER,
                     "ravel.plan(list) / C call, n 4096, dp 16; target 2");
    }
}

static void beside_trl(void) {
    const char *build = getenv("BUILD");
    char python[512];
    double numbers[8];
    snprintf(python, sizeof python, "%s/frameworks/bin/python", build ? build : "build");
    if (access(python, X_OK) != 0) {
        bench_note("python.trl_vs_trl: %s is not here; make test-frameworks installs it", python);
    } else if (measure("python.trl_vs_trl", python, "python/bench/trl_vs_trl.py", numbers, 8)) {
        bench_report("python.trl_vs_trl", numbers[0], "x", HIGHER,
                     "TRL's bfd / ours (%.1f ms), 4,096 Arrow rows, 5 M tokens in two columns; target 5", numbers[4]);
        bench_report("python.trl_vs_trl_wrapped", numbers[1], "x", HIGHER,
                     "TRL's wrapped / ours (%.3f ms), the same; target 1", numbers[5]);
        bench_report("python.trl_call_vs_trl", numbers[2], "x", HIGHER,
                     "TRL's pack_dataset(bfd) / ours (%.1f ms), a data set in memory; target 5", numbers[6]);
        bench_report("python.trl_call_vs_trl_wrapped", numbers[3], "x", HIGHER,
                     "TRL's pack_dataset(wrapped) / ours (%.3f ms), the same; target 1", numbers[7]);
    }
}

/* Needs no packages. */
static void serve_beside_generate(void) {
    const char *build = getenv("BUILD");
    char script[512];
    double numbers[3];
    snprintf(script, sizeof script, "bench/serve_gain.py %s/ravel", build ? build : "build");
    if (access("bench/serve_gain.py", R_OK) != 0) {
        bench_note("serve.vs_generate: bench/serve_gain.py is not here; run the bench from the top of the tree");
    } else if (run_script("serve.vs_generate", "python3", script, numbers, 3)) {
        bench_report("serve.vs_generate", numbers[0], "x", HIGHER,
                     "tokens/s of ravel serve at 64 clients (%.0f) over ravel generate on the same prompts; target 0.9",
                     numbers[1]);
    }
}

BENCH(serve) {
    serve_beside_generate();
}

BENCH(python) {
    plan_overhead();
    beside_trl();
}
