/* Plans as bytes: the same plan comes back, and every broken byte is seen. What planning may allocate. */
#include "tests/unit/check.h"
#include "tests/unit/plan_cases.h"

#include "base/hash.h"

#include <stdlib.h>

static bool returns(const ravel_plan_input *in, const ravel_plan_options *o, const ravel_plan *plan) {
    ravel_error err = RAVEL_ERROR_INIT;
    size_t size = ravel_plan_packed_bytes(plan);
    int64_t *bytes = malloc(size), *again = malloc(size);
    ravel_plan *copy = NULL;
    bool ok = bytes && again && ravel_plan_pack(plan, bytes, size, &err) == RAVEL_OK &&
              ravel_plan_unpack(bytes, size, NULL, &copy, &err) == RAVEL_OK && copy->digest == plan->digest &&
              ravel_plan_check(in, o, copy, &err) == RAVEL_OK && ravel_plan_packed_bytes(copy) == size &&
              ravel_plan_pack(copy, again, size, &err) == RAVEL_OK && memcmp(bytes, again, size) == 0;
    if (!ok) printf("    %s\n", err.message);
    ravel_plan_free(copy);
    free(bytes);
    free(again);
    return ok;
}

TEST(plan_pack_returns_the_same_plan) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 41);
    static plan_case c;
    for (int64_t i = 0; i < check_rounds(500, 50000); i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_plan *plan = NULL;
        plan_case_draw(&c, &rng, 60);
        if (i % 3 == 0) { /* hybrid */
            c.options.cp_pool = 8;
            c.options.dp = c.options.cp = 1;
            c.options.sync = c.options.layout = c.options.method = c.options.group_rule = 0;
            c.input.homes = NULL;
            if (c.options.budget < 2000) c.options.budget = 2000;
        }
        CHECK_OK(ravel_plan_create(&c.input, &c.options, &plan, &err), &err);
        CHECK(returns(&c.input, &c.options, plan));
        ravel_plan_free(plan);
    }
}

TEST(plan_unpack_sees_every_broken_byte) {
    int64_t lengths[40];
    for (int i = 0; i < 40; i++) lengths[i] = 10 + i * 17 % 90;
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 100;
    o.cp_pool = 4;
    ravel_plan_input in = {.size = sizeof in, .count = 40, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL, *copy = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    size_t size = ravel_plan_packed_bytes(plan);
    char *bytes = malloc(size);
    CHECK(bytes);
    CHECK_OK(ravel_plan_pack(plan, bytes, size, &err), &err);
    CHECK_EQ(ravel_plan_pack(plan, bytes, size - 8, NULL), RAVEL_E_ARGUMENT);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x10;
        CHECK_EQ(ravel_plan_unpack(bytes, size, NULL, &copy, NULL), RAVEL_E_DATA);
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < size; cut += 8) CHECK_EQ(ravel_plan_unpack(bytes, cut, NULL, &copy, NULL), RAVEL_E_DATA);
    CHECK_EQ(ravel_plan_unpack(bytes, size - 1, NULL, &copy, NULL), RAVEL_E_DATA);
    CHECK_OK(ravel_plan_unpack(bytes, size, NULL, &copy, &err), &err);
    ravel_plan_free(copy);
    ravel_plan_free(plan);
    free(bytes);
}

/* Counts whose sum is over 2^63, and a right hash: with the undefined-behaviour sanitizer the sum was an error. */
TEST(plan_unpack_refuses_counts_that_overflow) {
    enum { SAMPLES = 7, SKIPPED = 8, MOST = 128 };
    const int64_t lengths[] = {3, 4};
    int64_t words[MOST];
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 8;
    ravel_plan_input in = {.size = sizeof in, .count = 2, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL, *copy = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    size_t size = ravel_plan_packed_bytes(plan), count = size / sizeof *words;
    CHECK(size <= sizeof words);
    CHECK_OK(ravel_plan_pack(plan, words, size, &err), &err);
    CHECK_EQ(words[SAMPLES], 2);
    words[SAMPLES] = INT64_MAX;
    words[SKIPPED] = 7;
    ravel__hash h = ravel__hash_begin((uint64_t)words[0]);
    ravel__hash_i64s(&h, words, count - 1);
    words[count - 1] = (int64_t)ravel__hash_end(h);
    CHECK_EQ(ravel_plan_unpack(words, size, NULL, &copy, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "their sizes do not agree");
    ravel_plan_free(plan);
}

/* ---- workspace ---------------------------------------------------------------------------------------------- */

typedef struct meter {
    int64_t live, peak, calls;
} meter;

static void *metered(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    meter *m = user;
    m->calls++;
    m->live += (int64_t)new_bytes - (int64_t)old_bytes;
    if (m->live > m->peak) m->peak = m->live;
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

TEST(plan_workspace_bounds_what_planning_allocates) {
    ravel__rng rng = ravel__rng_seed(check_seed() + 42);
    static plan_case c;
    for (int64_t i = 0; i < check_rounds(1500, 100000); i++) {
        meter m = {0, 0, 0};
        ravel_allocator allocator = {metered, &m};
        ravel_plan *plan = NULL;
        plan_case_draw(&c, &rng, i % 8 ? 60 : PLAN_CASE_SAMPLES);
        if (c.input.updates) c.options.updates = c.options.updates > 3 ? c.options.updates : 3;
        if (c.input.updates && c.input.count < 4) c.input.updates = NULL;
        if (i % 4 == 0) {
            c.options.cp_pool = 1 + (int32_t)ravel__rng_below(&rng, 64);
            c.options.dp = c.options.cp = 1;
            c.options.sync = c.options.layout = c.options.method = c.options.group_rule = 0;
            c.input.homes = NULL;
        }
        c.options.allocator = &allocator;
        (void)ravel_plan_create(&c.input, &c.options, &plan, NULL);
        size_t most = ravel_plan_workspace(c.input.count, &c.options);
        if (m.peak > (int64_t)most)
            printf("    %lld samples, dp %d, effort %d: %lld bytes, not %zu\n", (long long)c.input.count, c.options.dp,
                   c.options.effort, (long long)m.peak, most);
        CHECK(m.peak <= (int64_t)most);
        ravel_plan_free(plan);
        CHECK_EQ(m.live, 0);
    }
}

TEST(plan_max_makes_few_allocations) {
    enum { COUNT = 20000 };
    static int64_t lengths[COUNT];
    ravel__rng rng = ravel__rng_seed(7);
    for (int i = 0; i < COUNT; i++) lengths[i] = 1 + (int64_t)ravel__rng_below(&rng, 8192);
    meter m = {0, 0, 0};
    ravel_allocator allocator = {metered, &m};
    ravel_plan_options o;
    ravel_plan_options_default(&o);
    o.budget = 16384;
    o.dp = 8;
    o.effort = RAVEL_EFFORT_MAX;
    o.allocator = &allocator;
    ravel_plan_input in = {.size = sizeof in, .count = COUNT, .lengths = lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&in, &o, &plan, &err), &err);
    CHECK(m.calls < 1000);
    CHECK(m.peak <= (int64_t)ravel_plan_workspace(COUNT, &o) / 2);
    ravel_plan_free(plan);
}
