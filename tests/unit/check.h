/* A small test runner.
 *
 *     TEST(plan_keeps_the_cap) {
 *         CHECK(bins <= cap);
 *         CHECK_EQ(total, 42);
 *         CHECK_OK(ravel_plan_create(&input, &options, &plan, &err), &err);
 *     }
 *
 * TEST registers itself; a failed CHECK says where and what, and ends the test (by return, so tests are void functions;
 * in helpers that return bool or int, use EXPECT, which counts the failure and goes on). Random tests draw from
 * check_seed(), which is fixed unless RAVEL_SEED is set, and scale with check_scale() and check_rounds(): more in
 * `make soak` than in `make test`. What a test draws must not depend on which other tests ran, nor on the machine.
 *
 *     ravel-unit [--part I/N] [--again SEED[+COUNT]] [--times] [PREFIX ...]
 *     ravel-unit --list
 *
 * runs the tests whose names begin so, and ends with "N passed, N failed". --again runs each test that asked for its
 * seed again, with seeds SEED .. SEED + COUNT - 1. --part runs every N-th test, --times puts
 * processor and wall seconds before each line.
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <ravel/base.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
} check_test;

void check_register(check_test *test);
void check_fail(const char *file, int line, const char *format, ...) RAVEL_PRINTF(3, 4);
/* Marks the running test as skipped, with a reason that is printed. */
void check_skip(const char *reason);
uint64_t check_seed(void);
/* `quick` in `make test`, `soak` in `make soak`. */
int64_t check_scale(int64_t quick, int64_t soak);
/* The same for rounds of a random test. Of two passes (--again) the first does half of the quick ones and the second a
 * quarter; so do sanitizer builds, which are 10 times as slow and look for errors of memory and threads that show in
 * few rounds. Only rounds may depend on it: then RAVEL_SEED, which does all of them, repeats what failed. */
int64_t check_rounds(int64_t quick, int64_t soak);
bool check_sanitized(void); /* in such a build */
/* In the second pass: what does not depend on the seed need not run again. */
bool check_repeated(void);

#define TEST(test_name)                                                   \
    static void test_name(void);                                          \
    static check_test test_name##_test = {#test_name, test_name, NULL};   \
    __attribute__((constructor)) static void test_name##_register(void) { \
        check_register(&test_name##_test);                                \
    }                                                                     \
    static void test_name(void)

#define EXPECT(condition) ((condition) ? true : (check_fail(__FILE__, __LINE__, "%s", #condition), false))

#define CHECK(condition)                \
    do {                                \
        if (!EXPECT(condition)) return; \
    } while (0)

#define CHECK_EQ(a, b)                                                                          \
    do {                                                                                        \
        long long check_a = (long long)(a), check_b = (long long)(b);                           \
        if (check_a != check_b) {                                                               \
            check_fail(__FILE__, __LINE__, "%s is %lld, %s is %lld", #a, check_a, #b, check_b); \
            return;                                                                             \
        }                                                                                       \
    } while (0)

#define CHECK_STR(a, b)                                                                       \
    do {                                                                                      \
        const char *check_a = (a), *check_b = (b);                                            \
        if (strcmp(check_a, check_b) != 0) {                                                  \
            check_fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #a, check_a, check_b); \
            return;                                                                           \
        }                                                                                     \
    } while (0)

/* The text must contain the words: for error sentences. */
#define CHECK_HAS(text, words)                                                                 \
    do {                                                                                       \
        const char *check_text = (text);                                                       \
        if (!strstr(check_text, (words))) {                                                    \
            check_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", check_text, (words)); \
            return;                                                                            \
        }                                                                                      \
    } while (0)

#define CHECK_OK(call, err)                                                                                       \
    do {                                                                                                          \
        ravel_status check_status = (call);                                                                       \
        if (check_status != RAVEL_OK) {                                                                           \
            check_fail(__FILE__, __LINE__, "%s: %s: %s", #call, ravel_status_name(check_status), (err)->message); \
            return;                                                                                               \
        }                                                                                                         \
    } while (0)

/* ---- an allocator that counts, and fails when told to ---- */

typedef struct check_memory {
    ravel_allocator allocator;
    int64_t live, peak; /* bytes */
    int64_t calls;      /* that allocated or grew */
    int64_t fail_at;    /* the call that fails (from 1); 0: none */
    int64_t blocks;     /* live allocations */
} check_memory;

/* Not for several threads at once. */
void check_memory_init(check_memory *memory);

/* Runs `body` again and again, the 1st, 2nd, ... allocation failing, until it succeeds. Each failing run must return
 * E_MEMORY and leave nothing allocated. Returns how many allocations there are, or -1 after a failed check. */
int64_t check_every_allocation(ravel_status (*body)(const ravel_allocator *allocator, void *user), void *user);

#endif
