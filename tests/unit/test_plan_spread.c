/* Spreading samples by cost, whatever the order of the pool: the largest cost first, each to the bin that has the
 * least. */
#include "tests/unit/check.h"

#include "base/memory.h"
#include "base/rng.h"
#include "plan/balance/balance.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 400, BINS = 24 };

static int largest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The sums of the bins, largest first, if every cost goes to the bin with the smallest sum. */
static void deal_plainly(const int64_t *cost, int64_t *sum) {
    int64_t sorted[SAMPLES];
    memcpy(sorted, cost, sizeof sorted);
    qsort(sorted, SAMPLES, sizeof *sorted, largest_first);
    memset(sum, 0, BINS * sizeof *sum);
    for (int i = 0; i < SAMPLES; i++) {
        int least = 0;
        for (int b = 1; b < BINS; b++)
            if (sum[b] < sum[least]) least = b;
        sum[least] += sorted[i];
    }
    qsort(sum, BINS, sizeof *sum, largest_first);
}

TEST(plan_spread_takes_costs_in_any_order) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0, rounds = check_rounds(200, 20000); round < rounds; round++) {
        static uint32_t slot[SAMPLES];
        static int64_t cost[SAMPLES];
        static int32_t bin[SAMPLES];
        int64_t wanted[BINS], sum[BINS] = {0};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__arena arena;
        int32_t over = 0;
        for (int i = 0; i < SAMPLES; i++) {
            slot[i] = (uint32_t)(SAMPLES - i);
            cost[i] = round % 2 ? 1 + i : 1 + (int64_t)ravel__rng_below(&rng, 1000);
        }
        ravel__pool pool = {.count = SAMPLES, .slot = slot, .cost = cost};
        ravel__rules rules = {.cap = INT64_C(1) << 40, .most = INT32_MAX};
        ravel__arena_init(&arena, NULL, 1 << 16);
        ravel__job job = {.rules = &rules, .pool = &pool, .arena = &arena, .err = &err, .dp = 1 + (int32_t)(round % 8)};
        while (BINS % job.dp) job.dp--;
        CHECK_OK(ravel__spread(&job, BINS, 0, bin, &over), &err);
        CHECK_EQ(over, 0);
        for (int i = 0; i < SAMPLES; i++) sum[bin[i]] += cost[i];
        qsort(sum, BINS, sizeof *sum, largest_first);
        deal_plainly(cost, wanted);
        CHECK(memcmp(sum, wanted, sizeof sum) == 0);
        ravel__arena_free(&arena);
    }
}
