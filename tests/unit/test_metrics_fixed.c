/* Sums of doubles in fixed point, and doubles as integers of the same order. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "metrics/fixed.h"

TEST(metrics_fixed_sums_do_not_depend_on_order) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int trial = 0; trial < 200; trial++) {
        double x[100];
        ravel__fixed forward = {0}, backward = {0}, halves[2] = {{0}, {0}};
        for (int i = 0; i < 100; i++)
            x[i] = ldexp(ravel__rng_unit(&r) - 0.5, (int)ravel__rng_below(&r, trial % 2 ? 120 : 20) - 15);
        for (int i = 0; i < 100; i++) ravel__fixed_add(&forward, x[i]);
        for (int i = 99; i >= 0; i--) ravel__fixed_add(&backward, x[i]);
        for (int i = 0; i < 100; i++) ravel__fixed_add(&halves[i % 2], x[i]);
        int64_t lanes[2][RAVEL__FIXED_LANES];
        ravel__fixed_pack(&halves[0], lanes[0]);
        ravel__fixed_pack(&halves[1], lanes[1]);
        for (int i = 0; i < RAVEL__FIXED_LANES; i++) lanes[0][i] += lanes[1][i];
        ravel__fixed joined;
        ravel__fixed_unpack(&joined, lanes[0]);
        CHECK(forward.fine == backward.fine && forward.coarse == backward.coarse);
        CHECK(forward.fine == joined.fine && forward.coarse == joined.coarse);
        long double exact = 0, size = 0;
        for (int i = 0; i < 100; i++) exact += x[i], size += fabsl((long double)x[i]);
        CHECK(fabsl(exact - ravel__fixed_real(&forward)) <= size * 1e-11L + 1e-15L);
    }
}

TEST(metrics_fixed_blocks_give_the_same_bits_as_single_sums) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int trial = 0; trial < 50; trial++) {
        ravel__fixed one_by_one = {0}, blocks = {0};
        ravel__fixed_block block = {0, 0};
        for (int i = 0; i < RAVEL__BLOCK; i++) {
            double x = trial == 0 ? -0x1.fffffffffffffp17
                                  : ldexp(ravel__rng_unit(&r) - 0.5, (int)ravel__rng_below(&r, 80) - 55);
            ravel__fixed_add(&one_by_one, x);
            ravel__block_add(&block, &blocks, x);
        }
        ravel__block_end(&block, &blocks);
        CHECK(one_by_one.fine == blocks.fine && one_by_one.coarse == blocks.coarse);
    }
}

TEST(metrics_fixed_sums_keep_what_is_not_finite) {
    static const double given[][3] = {{1, NAN, 2}, {INFINITY, 1, 1}, {-INFINITY, 1, 0}, {INFINITY, -INFINITY, 0}};
    for (int i = 0; i < 4; i++) {
        ravel__fixed sum = {0};
        int64_t lanes[RAVEL__FIXED_LANES];
        for (int j = 0; j < 3; j++) ravel__fixed_add(&sum, given[i][j]);
        ravel__fixed_pack(&sum, lanes);
        for (int k = 0; k < RAVEL__FIXED_LANES; k++) lanes[k] *= 3; /* three ranks of the same */
        ravel__fixed_unpack(&sum, lanes);
        double x = ravel__fixed_real(&sum);
        CHECK(i == 1 ? x == INFINITY : i == 2 ? x == -INFINITY : isnan(x));
    }
}

TEST(metrics_order_codes_keep_the_order_of_doubles) {
    static const double x[] = {-INFINITY, -1e300, -2, -1, -1e-300, 0, 1e-300, 0.5, 1, 1e300, INFINITY};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        CHECK(ravel__order_real(ravel__order_code(x[i])) == x[i]);
        CHECK(ravel__order_code(x[i]) > RAVEL__NOTHING);
        if (i) CHECK(ravel__order_code(x[i - 1]) < ravel__order_code(x[i]));
    }
    CHECK(isnan(ravel__order_real(ravel__order_code(NAN))) && ravel__order_code(-NAN) > ravel__order_code(INFINITY));
    int64_t code = ravel__slow_code(123456789012, 77);
    CHECK(ravel__slow_ns(code) == 123456789012 && ravel__slow_rank(code) == 77);
    CHECK(ravel__slow_code(5, 3) > ravel__slow_code(5, 4) && ravel__slow_code(6, 9) > ravel__slow_code(5, 0));
    CHECK(ravel__slow_rank(ravel__slow_code(INT64_MAX, RAVEL__MAX_RANKS - 1)) == RAVEL__MAX_RANKS - 1);
}
