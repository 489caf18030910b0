#include "tests/unit/check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static check_test *first, **last = &first;
static int failures_here; /* of the running test */
static const char *skip_reason;
static bool asked_seed; /* the running test is random */
static bool two_passes;
static const uint64_t *forced; /* the seed of the second pass */

void check_register(check_test *test) {
    *last = test;
    last = &test->next;
}

void check_fail(const char *file, int line, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (__atomic_fetch_add(&failures_here, 1, __ATOMIC_SEQ_CST) < 20) printf("    %s:%d: %s\n", file, line, text);
}

void check_skip(const char *reason) {
    skip_reason = reason;
}

static uint64_t seed_now(void) {
    const char *text = getenv("RAVEL_SEED");
    return forced ? *forced : text ? strtoull(text, NULL, 0) : 20260101;
}

uint64_t check_seed(void) {
    __atomic_store_n(&asked_seed, true, __ATOMIC_RELAXED);
    return seed_now();
}

int64_t check_scale(int64_t quick, int64_t soak) {
    return getenv("RAVEL_SOAK") && !forced ? soak : quick;
}

bool check_sanitized(void) {
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return true;
#else
    return false;
#endif
}

bool check_repeated(void) {
    return forced;
}

/* A half in the first of two passes, a quarter in the second and in sanitizer builds, all in those of a soak. */
int64_t check_rounds(int64_t quick, int64_t soak) {
    int64_t share = check_sanitized() ? 4 : getenv("RAVEL_SOAK") ? 1 : forced ? 4 : two_passes ? 2 : 1;
    return check_scale((quick + share - 1) / share, soak);
}

static void *counting_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    check_memory *m = user;
    if (new_bytes > old_bytes && ++m->calls == m->fail_at) return NULL;
    void *result = NULL;
    if (new_bytes == 0) {
        free(ptr);
    } else {
        result = realloc(ptr, new_bytes);
        if (!result) return NULL;
    }
    m->live += (int64_t)new_bytes - (int64_t)old_bytes;
    m->blocks += (ptr == NULL) - (new_bytes == 0);
    if (m->live > m->peak) m->peak = m->live;
    return result;
}

void check_memory_init(check_memory *memory) {
    memset(memory, 0, sizeof *memory);
    memory->allocator.resize = counting_resize;
    memory->allocator.user = memory;
}

int64_t check_every_allocation(ravel_status (*body)(const ravel_allocator *, void *), void *user) {
    for (int64_t n = 1;; n++) {
        check_memory memory;
        check_memory_init(&memory);
        memory.fail_at = n;
        ravel_status status = body(&memory.allocator, user);
        if (!EXPECT(memory.blocks == 0 && memory.live == 0)) return -1;
        if (status == RAVEL_OK && memory.calls < n) return n - 1;
        if (!EXPECT(status == RAVEL_E_MEMORY)) {
            printf("    allocation %lld failed, and the status was %s\n", (long long)n, ravel_status_name(status));
            return -1;
        }
    }
}

/* --part I/N: of the tests that are wanted, number I, I + N, I + 2N, ...; I from 1. 0 where the text is not that. */
static int parse_part(const char *text, int *part, int *parts) {
    return sscanf(text, "%d/%d", part, parts) == 2 && *part >= 1 && *part <= *parts;
}

static int wanted(const check_test *test, int count, char **prefixes) {
    for (int i = 0; i < count; i++)
        if (strncmp(test->name, prefixes[i], strlen(prefixes[i])) == 0) return 1;
    return count == 0;
}

static double seconds_of(const struct timeval *t) {
    return (double)t->tv_sec + 1e-6 * (double)t->tv_usec;
}

/* Of this process and of those that it waited for. */
static double processor_seconds(void) {
    struct rusage self, children;
    (void)getrusage(RUSAGE_SELF, &self);
    (void)getrusage(RUSAGE_CHILDREN, &children);
    return seconds_of(&self.ru_utime) + seconds_of(&self.ru_stime) + seconds_of(&children.ru_utime) +
           seconds_of(&children.ru_stime);
}

static double wall_seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --again SEED or SEED+COUNT: the seeds of the second pass. */
static int parse_again(const char *text, uint64_t *seed, int *count) {
    unsigned long long number = 0;
    *count = 1;
    int fields = sscanf(text, "%llu+%d", &number, count);
    *seed = number;
    return fields >= 1 && *count >= 1;
}

static const check_test *running;
static pid_t runner;

/* How to repeat the running test, prepared before it begins: a signal handler may not format text. */
static char repeat[80];

static void prepare_repeat(void) {
    (void)snprintf(repeat, sizeof repeat, " (RAVEL_SEED=%llu make test SUITES=unit)", (unsigned long long)seed_now());
}

static void put(const char *text) {
    if (write(STDOUT_FILENO, text, strlen(text)) < 0) _exit(1);
}

/* A test that crashes is named, with its seed, before the process ends. Not for processes that a test made. */
static void crashed(int number) {
    if (getpid() == runner && running) {
        put("  FAIL  ");
        put(running->name);
        put(": crashed");
        put(asked_seed ? repeat : "");
        put("\n");
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void watch_crashes(void) {
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    runner = getpid();
    for (size_t i = 0; !check_sanitized() && i < sizeof numbers / sizeof *numbers; i++)
        (void)signal(numbers[i], crashed);
}

enum { PASSED, FAILED, SKIPPED, RESULTS };

/* Runs one test; a second pass prints a line only for what failed. */
static int run_test(const check_test *t, bool times) {
    static const char *const words[] = {"ok", "FAIL", "skip"};
    failures_here = 0;
    skip_reason = NULL;
    asked_seed = false;
    running = t;
    prepare_repeat();
    double began = wall_seconds(), spent = processor_seconds();
    t->run();
    int result = failures_here ? FAILED : skip_reason ? SKIPPED : PASSED;
    if (forced && result != FAILED && !times) return result;
    if (times) printf("%8.2f s %8.2f s wall", processor_seconds() - spent, wall_seconds() - began);
    const char *seed = asked_seed && (result == FAILED || forced) ? repeat : "";
    printf("  %-4s  %s%s%s%s\n", words[result], t->name, skip_reason ? ": " : "", skip_reason ? skip_reason : "", seed);
    return result;
}

typedef struct second_pass {
    uint64_t seed;
    int seeds, tests; /* seeds: 0: no second pass */
} second_pass;

/* Runs a test that passed again if it is random; returns how many seeds failed. */
static int run_again(const check_test *t, second_pass *again, bool times) {
    int failed = 0;
    if (!asked_seed || !again->seeds) return 0;
    again->tests++;
    for (int i = 0; i < again->seeds; i++) {
        uint64_t seed = again->seed + (uint64_t)i;
        forced = &seed;
        failed += run_test(t, times) == FAILED;
        forced = NULL;
    }
    return failed;
}

/* Takes one option with a value from the front of the arguments; false if they do not begin with it. */
static bool take(int *argc, char ***argv, const char *name) {
    if (*argc < 3 || strcmp((*argv)[1], name) != 0) return false;
    *argc -= 2, *argv += 2;
    return true;
}

int main(int argc, char **argv) {
    int totals[RESULTS] = {0}, part = 1, parts = 1, number = 0;
    second_pass again = {0, 0, 0};
    if (take(&argc, &argv, "--part") && !parse_part(argv[0], &part, &parts)) return 2;
    if (take(&argc, &argv, "--again") && !parse_again(argv[0], &again.seed, &again.seeds)) return 2;
    two_passes = again.seeds > 0;
    bool times = argc > 1 && strcmp(argv[1], "--times") == 0;
    if (times) argc--, argv++;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (const check_test *t = first; t; t = t->next) puts(t->name);
        return 0;
    }
    watch_crashes();
    for (const check_test *t = first; t; t = t->next) {
        if (!wanted(t, argc - 1, argv + 1) || number++ % parts != part - 1) continue;
        int result = run_test(t, times);
        totals[result]++;
        if (result == PASSED) totals[FAILED] += run_again(t, &again, times);
    }
    if (again.seeds)
        printf("%d random tests ran again with %d seed%s from %llu on\n", again.tests, again.seeds,
               again.seeds > 1 ? "s" : "", (unsigned long long)again.seed);
    printf("%d passed, %d failed, %d skipped\n", totals[PASSED], totals[FAILED], totals[SKIPPED]);
    return totals[FAILED] > 0 || totals[PASSED] + totals[SKIPPED] == 0;
}
