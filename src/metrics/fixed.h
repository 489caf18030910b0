/* Sums of doubles that do not depend on the order of adding.
 *
 * A double is cut into a whole part and a fraction and added as an integer of units of 2^-63:
 *
 *     fine     |x| < 2^40: x itself
 *     coarse   larger, up to 2^104: x / 2^64
 *     nan, positive, negative: whether a NaN or an infinity (or more than 2^104) was added
 *
 * 128 bits hold 2^24 of the largest fine numbers. Integer addition has no rounding, so any order and any tree of ranks
 * gives the same bits. For the all-reduce a sum is split into limbs of 42 bits, one per 64-bit lane: up to 2^18 ranks
 * can be added lane by lane. */
#ifndef RAVEL_METRICS_FIXED_H
#define RAVEL_METRICS_FIXED_H

#include "base/assert.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef __int128 ravel__i128;

typedef struct ravel__fixed {
    ravel__i128 fine, coarse;
    int32_t nan, positive, negative, reserved;
} ravel__fixed;

enum { RAVEL__LIMB_BITS = 42, RAVEL__WIDE_LANES = 3, RAVEL__FIXED_LANES = 2 * RAVEL__WIDE_LANES + 1 };

/* |x| < 2^62. The fraction is exact before it is cut: both parts of a double are doubles. */
static inline ravel__i128 ravel__fixed_units(double x) {
    RAVEL_ASSERT(fabs(x) < 0x1p62);
    int64_t whole = (int64_t)x;
    int64_t fraction = (int64_t)((x - (double)whole) * 0x1p63);
    return (ravel__i128)whole * ((ravel__i128)1 << 63) + fraction;
}

static inline void ravel__fixed_add_rare(ravel__fixed *sum, double x) {
    if (isnan(x))
        sum->nan = 1;
    else if (fabs(x) < 0x1p104)
        sum->coarse += ravel__fixed_units(x * 0x1p-64);
    else if (x > 0)
        sum->positive = 1;
    else
        sum->negative = 1;
}

static inline void ravel__fixed_add(ravel__fixed *sum, double x) {
    if (fabs(x) < 0x1p40)
        sum->fine += ravel__fixed_units(x);
    else
        ravel__fixed_add_rare(sum, x);
}

/* Sums of many small numbers in 64 bits: hi in units of 2^-32, lo in units of 2^-63, the same bits as adding one by
 * one. A block of RAVEL__BLOCK numbers below RAVEL__BLOCK_LIMIT fits; what is larger goes to `sum` directly. */
enum { RAVEL__BLOCK = 4096 };
#define RAVEL__BLOCK_LIMIT 0x1p18

typedef struct ravel__fixed_block {
    int64_t hi, lo;
} ravel__fixed_block;

static inline void ravel__block_add(ravel__fixed_block *block, ravel__fixed *sum, double x) {
    if (fabs(x) < RAVEL__BLOCK_LIMIT) {
        double scaled = x * 0x1p32;
        int64_t hi = (int64_t)scaled;
        block->hi += hi;
        block->lo += (int64_t)((scaled - (double)hi) * 0x1p31);
    } else {
        ravel__fixed_add(sum, x);
    }
}

static inline void ravel__block_end(ravel__fixed_block *block, ravel__fixed *sum) {
    RAVEL_ASSERT(llabs(block->hi) <= INT64_C(1) << 62); /* RAVEL__BLOCK numbers below the limit */
    sum->fine += (ravel__i128)block->hi * ((ravel__i128)1 << 31) + block->lo;
    block->hi = block->lo = 0;
}

static inline void ravel__fixed_merge(ravel__fixed *sum, const ravel__fixed *other) {
    sum->fine += other->fine;
    sum->coarse += other->coarse;
    sum->nan |= other->nan;
    sum->positive |= other->positive;
    sum->negative |= other->negative;
}

static inline double ravel__fixed_real(const ravel__fixed *sum) {
    if (sum->nan || (sum->positive && sum->negative)) return NAN;
    if (sum->positive) return INFINITY;
    if (sum->negative) return -INFINITY;
    return (double)sum->fine * 0x1p-63 + (double)sum->coarse * 2;
}

/* ---- lanes ---- */

static inline void ravel__wide_pack(ravel__i128 x, int64_t *lanes) {
    const ravel__i128 mask = ((ravel__i128)1 << RAVEL__LIMB_BITS) - 1;
    lanes[0] = (int64_t)(x & mask);
    lanes[1] = (int64_t)((x >> RAVEL__LIMB_BITS) & mask);
    lanes[2] = (int64_t)(x >> (2 * RAVEL__LIMB_BITS));
    RAVEL_ASSERT(lanes[0] >= 0 && lanes[1] >= 0 && (x >> (2 * RAVEL__LIMB_BITS)) == lanes[2]);
}

static inline ravel__i128 ravel__wide_unpack(const int64_t *lanes) {
    const ravel__i128 base = (ravel__i128)1 << RAVEL__LIMB_BITS;
    return ((ravel__i128)lanes[2] * base + lanes[1]) * base + lanes[0];
}

static inline int64_t *ravel__fixed_pack(const ravel__fixed *sum, int64_t *lanes) {
    ravel__wide_pack(sum->fine, lanes);
    ravel__wide_pack(sum->coarse, lanes + RAVEL__WIDE_LANES);
    lanes[2 * RAVEL__WIDE_LANES] = (int64_t)sum->nan | (int64_t)sum->positive << 20 | (int64_t)sum->negative << 40;
    return lanes + RAVEL__FIXED_LANES;
}

static inline const int64_t *ravel__fixed_unpack(ravel__fixed *sum, const int64_t *lanes) {
    const int64_t mask = (1 << 20) - 1, flags = lanes[2 * RAVEL__WIDE_LANES];
    sum->fine = ravel__wide_unpack(lanes);
    sum->coarse = ravel__wide_unpack(lanes + RAVEL__WIDE_LANES);
    sum->nan = (flags & mask) != 0;
    sum->positive = (flags >> 20 & mask) != 0;
    sum->negative = (flags >> 40 & mask) != 0;
    return lanes + RAVEL__FIXED_LANES;
}

/* ---- doubles as integers of the same order, for MAX ---- */

#define RAVEL__NOTHING INT64_MIN

static inline int64_t ravel__order_code(double x) {
    int64_t bits;
    if (isnan(x)) return INT64_MAX; /* decodes to a NaN, and wins */
    memcpy(&bits, &x, sizeof bits);
    bits = bits < 0 ? bits ^ INT64_MAX : bits;
    RAVEL_ASSERT(bits != RAVEL__NOTHING && bits != INT64_MAX);
    return bits;
}

static inline double ravel__order_real(int64_t code) {
    int64_t bits = code < 0 ? code ^ INT64_MAX : code;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A time and who took it: the longest wins, the lowest rank on a tie. Times beyond 9 hours count as 9.7. */
enum { RAVEL__RANK_BITS = 18 };
#define RAVEL__MAX_RANKS (1 << RAVEL__RANK_BITS)

static inline int64_t ravel__slow_code(int64_t ns, int32_t rank) {
    const int64_t most = (INT64_C(1) << (63 - RAVEL__RANK_BITS)) - 1;
    RAVEL_ASSERT(ns >= 0 && rank >= 0 && rank < RAVEL__MAX_RANKS);
    return (ns > most ? most : ns) << RAVEL__RANK_BITS | (RAVEL__MAX_RANKS - 1 - rank);
}
static inline int64_t ravel__slow_ns(int64_t code) {
    return code >> RAVEL__RANK_BITS;
}
static inline int32_t ravel__slow_rank(int64_t code) {
    return (int32_t)(RAVEL__MAX_RANKS - 1 - (code & (RAVEL__MAX_RANKS - 1)));
}

#endif
