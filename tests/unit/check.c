#include "tests/unit/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static check_test *first, **last = &first;
static int failures_here; /* of the running test */
static const char *skip_reason;

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

uint64_t check_seed(void) {
    const char *text = getenv("RAVEL_SEED");
    return text ? strtoull(text, NULL, 0) : 20260101;
}

int64_t check_scale(int64_t quick, int64_t soak) {
    return getenv("RAVEL_SOAK") ? soak : quick;
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { ROUNDS_SHARE = 4 };
#else
enum { ROUNDS_SHARE = 1 };
#endif

bool check_sanitized(void) {
    return ROUNDS_SHARE > 1;
}

int64_t check_rounds(int64_t quick, int64_t soak) {
    return check_scale((quick + ROUNDS_SHARE - 1) / ROUNDS_SHARE, soak);
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

int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0, part = 1, parts = 1, number = 0;
    if (argc > 2 && strcmp(argv[1], "--part") == 0) {
        if (!parse_part(argv[2], &part, &parts)) return 2;
        argc -= 2;
        argv += 2;
    }
    bool times = argc > 1 && strcmp(argv[1], "--times") == 0;
    if (times) argc--, argv++;
    bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const check_test *t = first; t; t = t->next) {
        if (list) {
            puts(t->name);
            continue;
        }
        if (!wanted(t, argc - 1, argv + 1) || number++ % parts != part - 1) continue;
        failures_here = 0;
        skip_reason = NULL;
        double began = wall_seconds(), spent = processor_seconds();
        t->run();
        if (times) printf("%8.2f s %8.2f s wall", processor_seconds() - spent, wall_seconds() - began);
        const char *word = failures_here ? "FAIL" : skip_reason ? "skip" : "ok";
        printf("  %-4s  %s%s%s\n", word, t->name, skip_reason ? ": " : "", skip_reason ? skip_reason : "");
        if (failures_here)
            failed++;
        else if (skip_reason)
            skipped++;
        else
            passed++;
    }
    if (list) return 0;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0 || passed + skipped == 0;
}
