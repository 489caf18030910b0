/* The order of reading, cursors, and every kind of source. */
#include "tests/unit/check.h"

#include "base/memory.h"
#include "base/rng.h"

#include <ravel/order.h>

#include <stdlib.h>

/* ---- order ---------------------------------------------------------------------------------------------- */

static ravel_order order_of(int64_t count, uint64_t seed) {
    ravel_order order = {.size = sizeof order, .count = count, .seed = seed, .shuffle = 1};
    return order;
}

TEST(order_is_a_permutation_for_every_count) {
    static unsigned char seen[5000];
    for (int64_t count = 1; count < check_scale(600, 5000); count++) {
        ravel_order order = order_of(count, (uint64_t)count * 7);
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < count; i++) {
            int64_t row = ravel_order_row(&order, 3, i);
            CHECK(row >= 0 && row < count && !seen[row]);
            seen[row] = 1;
        }
    }
}

TEST(order_mixes_and_depends_on_seed_and_epoch) {
    enum { N = 4096 };
    int64_t fixed = 0, same_epoch = 0, same_seed = 0, neighbours = 0;
    ravel_order order = order_of(N, 1), other = order_of(N, 2);
    for (int64_t i = 0; i < N; i++) {
        int64_t row = ravel_order_row(&order, 0, i);
        fixed += row == i;
        same_epoch += row == ravel_order_row(&order, 1, i);
        same_seed += row == ravel_order_row(&other, 0, i);
        neighbours += i > 0 && row == ravel_order_row(&order, 0, i - 1) + 1;
    }
    CHECK(fixed < 12 && same_epoch < 12 && same_seed < 12 && neighbours < 12); /* each is 1 on average */
    order.shuffle = 0;
    for (int64_t i = 0; i < N; i++) CHECK_EQ(ravel_order_row(&order, 5, i), i);
}

TEST(order_stays_what_it_is) {
    ravel_order order = order_of(1000000007, 42); /* a change here changes what every resumed run reads next */
    CHECK_EQ(ravel_order_row(&order, 0, 0), 582124572);
    CHECK_EQ(ravel_order_row(&order, 9, 999999999), 31018964);
}

TEST(order_first_place_is_even_over_seeds) {
    int counts[5] = {0};
    for (uint64_t seed = 0; seed < 5000; seed++) {
        ravel_order order = order_of(5, seed);
        counts[ravel_order_row(&order, 0, 0)]++;
    }
    for (int i = 0; i < 5; i++) CHECK(counts[i] > 850 && counts[i] < 1150);
}

/* The stream by its definition: epoch after epoch. */
static int64_t reference_row(const ravel_order *order, ravel_cursor cursor, int64_t i) {
    int64_t at = cursor.epoch * order->count + cursor.position + i;
    return ravel_order_row(order, at / order->count, at % order->count);
}

TEST(order_updates_are_the_same_rows_for_any_number_of_ranks) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t trial = 0; trial < check_scale(400, 20000); trial++) {
        ravel_order order = order_of(1 + (int64_t)ravel__rng_below(&r, 60), ravel__rng_next(&r));
        order.shuffle = (int32_t)ravel__rng_below(&r, 2);
        order.epochs = (int64_t)ravel__rng_below(&r, 4);
        order.drop_last = (int32_t)ravel__rng_below(&r, 2);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_order_check(&order, &err), &err);
        int64_t wanted = 1 + (int64_t)ravel__rng_below(&r, 100), dp = 1 + (int64_t)ravel__rng_below(&r, 9), total = 0;
        ravel_cursor cursor = {0, 0}, next;
        for (int update = 0; update < 8; update++) {
            int64_t n = ravel_order_take(&order, cursor, wanted, &next), rows[100], at = 0;
            for (int64_t rank = 0; rank < dp; rank++) {
                int64_t begin = ravel_share(n, dp, rank), end = ravel_share(n, dp, rank + 1);
                CHECK_EQ(begin, at);
                CHECK(end - begin >= n / dp && end - begin <= n / dp + 1);
                ravel_order_rows(&order, cursor, begin, end - begin, rows + at);
                at = end;
            }
            CHECK_EQ(at, n);
            for (int64_t i = 0; i < n; i++) CHECK_EQ(rows[i], reference_row(&order, cursor, i));
            total += n;
            CHECK_EQ(next.epoch * order.count + next.position, total);
            CHECK(next.position >= 0 && next.position < order.count);
            cursor = next;
        }
        int64_t all = order.epochs * order.count;
        if (order.drop_last) all -= all % wanted;
        if (order.epochs) CHECK_EQ(total, all < 8 * wanted ? all : 8 * wanted);
    }
    ravel_order empty = order_of(0, 1);
    ravel_cursor next;
    CHECK_EQ(ravel_order_take(&empty, (ravel_cursor){0, 0}, 5, &next), 0);
}

TEST(order_refuses_what_it_cannot_count) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_order order = order_of(-1, 0);
    CHECK_EQ(ravel_order_check(&order, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "-1 rows");
    order = order_of(INT64_C(1) << 60, 0);
    order.epochs = 1 << 20;
    CHECK_EQ(ravel_order_check(&order, NULL), RAVEL_E_ARGUMENT);
    order.epochs = -2;
    CHECK_EQ(ravel_order_check(&order, NULL), RAVEL_E_ARGUMENT);
}

TEST(cursor_goes_through_json_and_knows_its_stream) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_order order = order_of(100, UINT64_MAX - 3), other = order;
    char text[200];
    size_t bytes = ravel_cursor_format(&order, (ravel_cursor){4, 17}, text, sizeof text);
    CHECK_STR(text, "{\"epoch\":4,\"position\":17,\"count\":100,\"seed\":\"18446744073709551612\",\"shuffle\":true}");
    ravel_cursor cursor = {0, 0};
    CHECK_OK(ravel_cursor_parse(&order, text, bytes, &cursor, &err), &err);
    CHECK(cursor.epoch == 4 && cursor.position == 17);
    other.seed = 1844674407370955161; /* a prefix of the other */
    CHECK_EQ(ravel_cursor_parse(&other, text, bytes, &cursor, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "seed");
    other = order;
    other.count = 99;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_cursor_parse(&other, text, bytes, &cursor, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "100 rows, this one has 99");
    static const char *const bad[] = {
        "", "[]", "{\"epoch\":1}", "{\"epoch\":1,\"position\":-1,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
        "{\"epoch\":1,\"position\":100,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
        "{\"epoch\":1.5,\"position\":0,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
        "{\"epoch\":1,\"position\":0,\"count\":100,\"seed\":\"5\"}"};
    order.seed = 5;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error_clear(&err);
        CHECK_EQ(ravel_cursor_parse(&order, bad[i], strlen(bad[i]), &cursor, &err), RAVEL_E_DATA);
        CHECK(err.message[0]);
    }
}
