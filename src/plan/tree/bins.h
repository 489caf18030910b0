/* Bins of a forest as spans of leaves: subtrees are runs, so a bin is a few spans, and what it computes follows from
 * sums over each span and from what the neighbouring ends share. Moving a run of leaves costs a few minima, whatever
 * its length.
 *
 *     bin     [ 3 .. 8 )   [ 12 .. 13 )   [ 40 .. 61 )        tokens = own tokens of each span
 *                      ^ shares ^     ^ shares ^                      - what neighbouring spans share */
#ifndef RAVEL_PLAN_TREE_BINS_H
#define RAVEL_PLAN_TREE_BINS_H

#include "plan/tree/tree.h"

typedef struct ravel__span {
    int32_t from, to; /* leaves from .. to - 1 */
} ravel__span;

typedef struct ravel__tree_bin {
    ravel__span *spans; /* rising, apart from one another */
    int32_t count, room;
    int64_t rows; /* leaves */
    int64_t tokens, cost;
} ravel__tree_bin;

/* What a set of leaves adds to a bin, or comes to by itself. */
typedef struct ravel__weight {
    int64_t tokens, cost, rows;
} ravel__weight;

typedef struct ravel__yard {
    const ravel__forest *f;
    ravel__arena *arena; /* of the tables, and of scratch */
    ravel__arena spans;  /* of the bins, which grow while scratch comes and goes */
    uint32_t **least;    /* [level][leaf] the least shared of 2^level leaves from this one on */
    uint8_t *level;      /* [count + 1] of a number of leaves */
    int64_t *own_tokens; /* [count + 1] sums of length - shared, and of their cost */
    int64_t *own_cost;
    ravel__tree_bin *bin; /* [bins] */
    int32_t bins, room;
    int64_t work; /* weighings left: what the effort buys */
} ravel__yard;

/* Free it, whatever came back. */
ravel_status ravel__yard_make(const ravel__forest *forest, int64_t work, ravel__arena *arena, ravel__yard *yard,
                              ravel_error *err);
void ravel__yard_free(ravel__yard *yard);

/* Memory was short: nothing is to be trusted after that. */
static inline int ravel__yard_failed(const ravel__yard *y) {
    return y->arena->missing || y->spans.missing;
}
static inline ravel_status ravel__yard_status(const ravel__yard *y, ravel_error *err) {
    ravel_status status = ravel__arena_status(&y->spans, "the bins of trees", err);
    return status ? status : ravel__arena_status(y->arena, "planning trees", err);
}

/* Tokens that leaves i < j share. */
static inline int64_t ravel__leaves_share(const ravel__yard *y, int32_t i, int32_t j) {
    int32_t k = y->level[j - i];
    uint32_t a = y->least[k][i + 1], b = y->least[k][j - (1 << k) + 1];
    return a < b ? a : b;
}

/* A span by itself. */
static inline ravel__weight ravel__span_weight(const ravel__yard *y, ravel__span s) {
    return (ravel__weight){y->own_tokens[s.to] - y->own_tokens[s.from] + y->f->shared[s.from],
                           y->own_cost[s.to] - y->own_cost[s.from] + y->f->twice[s.from], s.to - s.from};
}

/* The least that a span adds to any bin: next to a span that shares as much with it as any leaf outside does. */
static inline ravel__weight ravel__span_least(const ravel__yard *y, ravel__span s) {
    ravel__weight w = ravel__span_weight(y, s);
    int64_t left = y->f->shared[s.from], right = y->f->shared[s.to];
    w.tokens -= left > right ? left : right;
    w.cost -= left > right ? y->f->twice[s.from] : y->f->twice[s.to];
    return w;
}

/* A span between two leaves of a bin; -1: there is none. */
ravel__weight ravel__span_between(const ravel__yard *y, ravel__span s, int32_t left, int32_t right);
/* What the spans would add to a bin that has none of their leaves; they rise. */
ravel__weight ravel__weigh(ravel__yard *y, const ravel__tree_bin *bin, const ravel__span *spans, int32_t count);
/* Adds a span to a bin that has none of its leaves; takes a piece of one span out of it. */
void ravel__bin_take(ravel__yard *y, ravel__tree_bin *bin, ravel__span span);
void ravel__bin_give(ravel__yard *y, ravel__tree_bin *bin, ravel__span span);
/* A new, empty bin at the end; NULL if memory is short. The others may move. */
ravel__tree_bin *ravel__yard_open(ravel__yard *y);
/* Forgets all bins, or brings them from, or to, a bin for each leaf. */
void ravel__yard_clear(ravel__yard *y);
void ravel__yard_load(ravel__yard *y, const int32_t *bin, int32_t bins);
void ravel__yard_store(const ravel__yard *y, int32_t *bin);

/* ---- pack.c ----------------------------------------------------------------------------------------------------- */

/* From here on a limit of cost means none. */
#define RAVEL__NO_LIMIT (INT64_MAX / 4)

/* Packs the forest into few bins of at most `limit` cost each. Subtrees stay whole if they fit one; `rests`: the
 * emptiest bin of a subtree that does not is packed again, higher up. */
void ravel__tree_pack(ravel__yard *y, int64_t limit, int rests);
/* Empties the bin of least cost into the others: 1 if it is gone. They keep to `limit`, or where it is 0 only to the
 * cap. */
int ravel__tree_dissolve(ravel__yard *y, int64_t limit);

/* ---- balance.c -------------------------------------------------------------------------------------------------- */

/* Sorts bins, largest cost first: micro-step s is then bins s * dp .. s * dp + dp - 1. Returns the sum of their
 * largest. */
int64_t ravel__tree_sort(ravel__yard *y, int32_t dp);
/* Reduces that sum by moves and swaps of subtrees; at most `rounds` per micro-step and pass. */
int64_t ravel__tree_balance(ravel__yard *y, int32_t dp, int32_t rounds);
/* The same where ranks meet only at the end of an update: bins are dealt to ranks, bin s * dp + r to rank r, and what
 * the largest rank has is reduced, and returned. */
int64_t ravel__tree_balance_ranks(ravel__yard *y, int32_t dp, int32_t rounds);
/* Splits the largest bins at subtrees until none is empty, or each has one leaf. 0: there was nothing to do, else they
 * are out of order. */
int ravel__tree_fill(ravel__yard *y, int32_t dp);

#endif
