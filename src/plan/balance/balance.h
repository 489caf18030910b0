/* Balancing, from the bottom: tables of bins that trade samples, totals of ranks, spreads, starts, and micro-steps that
 * are dealt again. solve.c puts them together. */
#ifndef RAVEL_PLAN_BALANCE_H
#define RAVEL_PLAN_BALANCE_H

#include "plan/internal.h"

/* ---- trade ----------------------------------------------------------------------------------------------------- */

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

/* ---- totals ---------------------------------------------------------------------------------------------------- */

/* Evening out ranks whose totals matter, not their micro-steps: sync = update and pipeline.
 *
 *     rank_bins[r]   the bins of rank r, largest cost first: its micro-steps
 *
 * Bins are dealt largest cost first to the rank with the least total that has a micro-step left; then the largest rank
 * gives to the cheapest: by swapping two bins, or by a trade of samples between two bins, whichever comes nearer to
 * half the difference. */

/* `table` holds all bins, largest cost first; bins = micro-steps * dp. Fills seat_bin[step * dp + rank] with the bin of
 * that micro-step and rank. */
ravel_status ravel__totals_balance(const ravel__job *job, ravel__trading *table, ravel__trade_limits limits,
                                   int32_t *seat_bin);

/* ---- spread ---------------------------------------------------------------------------------------------------- */

/* Spreading samples evenly over a known number of bins: the first start of the default method.
 *
 * Every micro-step gets a level, the cost that its bins should come to: the largest sample that it must hold, or one
 * common level for all micro-steps without such dominant samples:
 *
 *     |#                       level of the first micro-step: its dominant sample
 *     |#  =  =  =
 *     |#  #  =  =  =  =  =  =  the common level
 *      step 0   step 1  ...
 *
 * Samples go heaviest first to the bin that is furthest below its level and has room (a heap by what is missing; bins
 * without room wait in another, by room, until a sample is short enough). A sample that fits no bin goes to the bin
 * with most room; overfull bins are repaired afterwards by trades with roomy ones. */

/* A bin of `bins` (a whole number of micro-steps) for every sample. Weights are slots if `by_slots`, else costs.
 * *over: how many bins are over the cap, to be repaired; INT32_MAX when max_samples left no place. */
ravel_status ravel__spread(const ravel__job *job, int32_t bins, int by_slots, int32_t *bin, int32_t *over);

/* Trades slots between the *over overfull bins of the lists and roomy ones. *over: how many stay overfull. */
ravel_status ravel__repair(const ravel__job *job, const ravel__lists *lists, int32_t passes, int32_t partners,
                           int32_t *over);

/* ---- starts ---------------------------------------------------------------------------------------------------- */

/* Starts of the default method: all samples of an update in micro-steps * dp bins, under the cap. */

typedef enum ravel__start {
    RAVEL__START_COSTS,  /* spread by cost over all bins */
    RAVEL__START_SLOTS,  /* spread by slots over all bins */
    RAVEL__START_PARTS,  /* Karmarkar-Karp over all bins */
    RAVEL__START_MIXED,  /* the longer samples spread by cost, the shorter ones best-fit into what room that leaves */
    RAVEL__START_SHRUNK, /* best-fit into bins a little below the cap, so that each has room for trades */
    RAVEL__START_PACKED  /* the packed bins; what is in the last micro-step is spread over its ranks */
} ravel__start;

typedef struct ravel__basis {
    const ravel__job *job;
    const int32_t *packed; /* the bin of every sample in the packing with the fewest bins */
    int32_t packed_bins;
    int32_t bins;             /* micro-steps * dp */
    int32_t passes, partners; /* limits on repairing overfull bins */
} ravel__basis;

/* Makes the start, as lists of basis->bins bins in the job's arena, or reports that it is impossible. PACKED is always
 * possible. */
ravel_status ravel__start_make(const ravel__basis *basis, ravel__start start, ravel__lists *lists, int *made);

/* ---- redeal ---------------------------------------------------------------------------------------------------- */

/* Repacking micro-steps, two at a time: their samples are spread over their bins as if there were nothing else,
 * balanced, and kept if the two together became faster. A partner micro-step may have what one micro-step lacks: room
 * under the cap, or a dominant sample beside which ranks are idle. */

/* `tries`: limit on trades examined. */
ravel_status ravel__redeal(const ravel__job *job, int64_t steps, ravel__trade_limits limits, int64_t tries,
                           int32_t *seat);

#endif
