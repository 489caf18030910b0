/* The order of reading: a keyed permutation of 0 .. count-1 without a table.
 *
 * A Feistel network over pairs (left, right) of numbers below `side`, side^2 >= count:
 *
 *     x = left * side + right
 *     left, right  <-  right, (left + mix(key, round, right)) mod side            eight times
 *
 * is a permutation of 0 .. side^2-1. Where it leaves 0 .. count-1 it is applied again until it is back ("cycle
 * walking"): still a permutation, of 0 .. count-1. The smallest side is taken, so few numbers have to walk. */
#include "base/json.h"
#include "feed/source/order.h"
#include <ravel/order.h>

#include "base/assert.h"
#include "base/rng.h"
#include "feed/feed.h"

#include <inttypes.h>
#include <stdio.h>

enum { ROUNDS = 8 };

/* The least side with side * side >= count; count < 2^62. */
static uint64_t side_of(uint64_t count) {
    uint64_t low = 1, high = UINT64_C(1) << 31;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (middle * middle >= count)
            high = middle;
        else
            low = middle + 1;
    }
    RAVEL_ASSERT(low * low >= count && (low == 1 || (low - 1) * (low - 1) < count));
    return low;
}

static uint64_t once(uint64_t key, uint64_t side, uint64_t x) {
    uint64_t left = x / side, right = x % side;
    RAVEL_ASSERT(left < side);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = (left + ravel__mix64(ravel__mix64(key + round) ^ right) % side) % side;
        left = right;
        right = next;
    }
    RAVEL_ASSERT(left < side && right < side);
    return left * side + right;
}

static uint64_t key_of(const ravel_order *order, int64_t epoch) {
    return ravel__mix64(order->seed) ^ ravel__mix64(~(uint64_t)epoch);
}

static int64_t permuted(uint64_t key, uint64_t side, uint64_t count, uint64_t x) {
    RAVEL_ASSERT(count > 0 && side * side >= count);
    do x = once(key, side, x);
    while (x >= count);
    return (int64_t)x;
}

ravel_status ravel__order_check(const ravel_order *order, ravel_error *err) {
    int64_t total;
    if (!order || order->size < sizeof *order)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "an order's size field must be sizeof(ravel_order)");
    if (order->count < 0 || order->count > INT64_C(1) << 61)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "an order over %" PRId64 " rows; 0 to 2^61 are possible",
                               order->count);
    if (order->epochs < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "epochs is %" PRId64 ", it must be 0 or more", order->epochs);
    if (__builtin_mul_overflow(order->count, order->epochs, &total))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%" PRId64 " epochs of %" PRId64 " rows do not fit 63 bits",
                               order->epochs, order->count);
    return RAVEL_OK;
}

int64_t ravel_order_row(const ravel_order *order, int64_t epoch, int64_t position) {
    if (!order->shuffle) return position;
    uint64_t count = (uint64_t)order->count;
    return permuted(key_of(order, epoch), side_of(count), count, (uint64_t)position);
}

/* Rows from the cursor to the end of the stream; INT64_MAX if there is no end. */
static int64_t rows_left(const ravel_order *order, ravel_cursor cursor) {
    if (order->count == 0) return 0;
    if (order->epochs == 0) return INT64_MAX;
    if (cursor.epoch >= order->epochs) return 0;
    return (order->epochs - cursor.epoch) * order->count - cursor.position;
}

int64_t ravel_order_take(const ravel_order *order, ravel_cursor cursor, int64_t wanted, ravel_cursor *next) {
    int64_t left = rows_left(order, cursor), taken = left < wanted ? left : wanted;
    if (taken < 0 || (order->drop_last && taken < wanted)) taken = 0;
    *next = cursor;
    if (taken > 0) {
        int64_t to_end = order->count - cursor.position;
        int64_t past = taken - to_end;
        next->epoch += past < 0 ? 0 : 1 + past / order->count;
        next->position = past < 0 ? cursor.position + taken : past % order->count;
        RAVEL_ASSERT(next->position >= 0 && next->position < order->count);
    }
    RAVEL_ASSERT(taken >= 0 && (taken <= wanted || wanted < 0));
    return taken;
}

void ravel_order_rows(const ravel_order *order, ravel_cursor cursor, int64_t first, int64_t count, int64_t *rows) {
    uint64_t n = (uint64_t)order->count, side = side_of(n);
    int64_t epoch = cursor.epoch + (cursor.position + first) / order->count;
    int64_t position = (cursor.position + first) % order->count;
    for (int64_t done = 0; done < count; epoch++, position = 0) {
        uint64_t key = key_of(order, epoch);
        for (; done < count && position < order->count; position++)
            rows[done++] = order->shuffle ? permuted(key, side, n, (uint64_t)position) : position;
    }
}

int64_t ravel_share(int64_t total, int64_t parts, int64_t part) {
    int64_t each = total / parts, more = total % parts;
    return part * each + (part < more ? part : more);
}

/* ---- the cursor as JSON --------------------------------------------------------------------------------- */

size_t ravel_cursor_format(const ravel_order *order, ravel_cursor cursor, char *text, size_t bytes) {
    int needed = snprintf(text, bytes,
                          "{\"epoch\":%" PRId64 ",\"position\":%" PRId64 ",\"count\":%" PRId64 ",\"seed\":\"%" PRIu64
                          "\",\"shuffle\":%s}",
                          cursor.epoch, cursor.position, order->count, order->seed, order->shuffle ? "true" : "false");
    return needed > 0 ? (size_t)needed : 0;
}

static ravel_status need_integer(const ravel__json *doc, const char *key, int64_t *value, ravel_error *err) {
    if (ravel__json_integer(ravel__json_get(doc, ravel__json_root(doc), key), value)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA, "a cursor needs a whole number \"%s\"", key);
}

static ravel_status same_stream(const ravel_order *order, const ravel__json *doc, ravel_error *err) {
    int64_t count;
    int shuffle;
    char seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, order->seed);
    if (need_integer(doc, "count", &count, err)) return RAVEL_E_DATA;
    if (!ravel__json_boolean(ravel__json_get(doc, ravel__json_root(doc), "shuffle"), &shuffle))
        return ravel_error_set(err, RAVEL_E_DATA, "a cursor needs \"shuffle\", true or false");
    int seeded = ravel__json_is(ravel__json_get(doc, ravel__json_root(doc), "seed"), seed);
    if (count != order->count)
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "the cursor is of a data set with %" PRId64 " rows, this one has %" PRId64, count,
                               order->count);
    if (!!shuffle != !!order->shuffle || (shuffle && !seeded))
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "the cursor was made with another seed or shuffle (now: seed %" PRIu64 ", shuffle %s)",
                               order->seed, order->shuffle ? "on" : "off");
    return RAVEL_OK;
}

/* An epoch leaves room to count on from it. */
int ravel__cursor_is_in(const ravel_order *order, ravel_cursor c) {
    return c.epoch >= 0 && c.epoch <= INT64_MAX / 2 && c.position >= 0 &&
           (c.position == 0 || c.position < order->count);
}

static ravel_status parse_place(const ravel_order *order, const ravel__json *doc, ravel_cursor *cursor,
                                ravel_error *err) {
    ravel_cursor c;
    ravel_status status = need_integer(doc, "epoch", &c.epoch, err);
    if (!status) status = need_integer(doc, "position", &c.position, err);
    if (!status) status = same_stream(order, doc, err);
    if (status) return status;
    if (!ravel__cursor_is_in(order, c))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the cursor's epoch %" PRId64 ", position %" PRId64 " is not in the stream", c.epoch,
                               c.position);
    *cursor = c;
    return RAVEL_OK;
}

ravel_status ravel_cursor_parse(const ravel_order *order, const char *text, size_t bytes, ravel_cursor *cursor,
                                ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(text, bytes, NULL, &doc, err);
    if (!status) status = parse_place(order, doc, cursor, err);
    ravel__json_free(doc);
    return status;
}
