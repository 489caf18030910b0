/* A table: a few bins laid out for exchanges of samples between them.
 *
 *     bin 0                bin 1
 *     [ 900 400 100 . . ]  [ 700 650 . . ]      costs, largest cost first; slots and samples lie beside them
 *
 * Each list has a little room, so that a sample can move without anything else moving. The same code balances the bins
 * of a micro-step, repairs bins that are over their cap (there a sample's weight is its slot) and balances ranks.
 *
 * A trade gives one or two samples of one bin for none, one or two of another. The search looks for a trade that moves
 * `want` of cost as nearly as possible, with every bin under its cap. Packed layout only. */
#ifndef RAVEL_PLAN_BALANCE_TRADE_H
#define RAVEL_PLAN_BALANCE_TRADE_H

#include "plan/internal.h"

enum { RAVEL__TRADE_ROOM = 4 };

typedef struct ravel__trading {
    int64_t cap, most;
    int64_t tries_left; /* limit on trades examined from here on; a count, so the same on every machine */
    int32_t bins;
    int32_t *start; /* [bins + 1] */
    int32_t *rows;
    int64_t *size; /* sum of slots */
    int64_t *sum;  /* of costs */
    int32_t *item; /* by place: pool index, slot, cost */
    uint32_t *slot;
    int64_t *cost;
} ravel__trading;

typedef struct ravel__trade {
    int32_t give[2], take[2]; /* places in the two lists */
    int32_t gives, takes;
    int64_t moved; /* cost that changes sides */
} ravel__trade;

/* Room for `bins` bins of `samples` samples in all. */
ravel_status ravel__trade_make(const ravel__job *job, int32_t bins, int64_t samples, ravel__trading *table);
/* Takes the next bin's samples; bins are loaded one after another from 0. */
void ravel__trade_load(ravel__trading *table, const ravel__pool *pool, int32_t bin, const int32_t *items, int32_t rows);

/* The trade between bins x and y that moves as nearly `want` > 0 of cost from x to y as can be, and more than 0 and
 * less than 2 * want, so that the larger of two bins that differ by 2 * want shrinks. `depth` 1: one sample for none or
 * one; 2: also one for two and two for one; 3: also two for two. Returns 0 when there is none. */
int ravel__trade_find(ravel__trading *table, int32_t x, int32_t y, int64_t want, int depth, ravel__trade *trade);
void ravel__trade_apply(ravel__trading *table, int32_t x, int32_t y, const ravel__trade *trade);

/* Makes the largest of `count` bins from `first` on cheaper until nothing helps. `order`: scratch of count. */
void ravel__trade_balance(ravel__trading *table, int32_t first, int32_t count, ravel__trade_limits limits,
                          int32_t *order);

#endif
