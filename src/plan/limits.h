/* Search limits per effort. One table (limits.c), one row per case, so that every threshold is in one place. All limits
 * are counts, never a clock, so that every machine makes the same plan. */
#ifndef RAVEL_PLAN_LIMITS_H
#define RAVEL_PLAN_LIMITS_H

#include <stdint.h>

/* Limits of trading samples between bins (balance/balance.h). */
typedef struct ravel__trade_limits {
    int32_t rounds; /* rounds in which all bins trade in pairs */
    int32_t cuts;   /* trades of the largest bin alone, in quarters of the number of bins */
    int32_t depth;  /* samples that a trade may move: 1: one for one; 2: also two for one; 3: also two for two */
    int32_t fine;   /* a bin within 2^-fine of the mean is good enough */
} ravel__trade_limits;

typedef struct ravel__search_limits {
    int32_t effort;                   /* ravel_effort */
    int32_t thorough;                 /* try every way to pack and to start */
    int64_t most_samples;             /* the row is for updates of at most this many samples */
    int64_t least_per_bin;            /* ... with at least this many samples per bin */
    ravel__trade_limits steps;        /* between the bins of a micro-step */
    ravel__trade_limits ranks;        /* between ranks, where only totals matter */
    ravel__trade_limits groups;       /* of whole groups between ranks */
    int32_t repair_passes;            /* over bins that a start filled above the cap */
    int32_t repair_partners;          /* bins that one of them trades with per pass */
    int32_t starts;                   /* starts that are compared */
    int32_t trades_per_sample;        /* trades looked at per sample and start */
    int32_t redeal_trades_per_sample; /* ... when two micro-steps are dealt again; 0: never */
    int32_t group_trades_per_sample;  /* ... when groups are moved between ranks */
    int64_t pack_samples;    /* more packings than best-fit, and all starts far from the bound, up to this many */
    int64_t compare_samples; /* other methods are compared up to this many samples */
    int64_t compare_always_samples; /* ... even if the plan is within 1/512 of its bound */
    int64_t assignment_work;        /* homes: exact assignment where dp^3 * micro-steps is at most this */
} ravel__search_limits;

/* Parts of the solver that the ablation tool (tests/ablate) turns off one by one, to measure what each gains. In every
 * other build all of them are on. X(NAME, "name"). */
#define RAVEL__PART_LIST(X)             \
    X(START_SLOTS, "start slots")       \
    X(START_PARTS, "start parts")       \
    X(START_MIXED, "start mixed")       \
    X(START_SHRUNK, "start shrunk")     \
    X(RANKS_FIRST, "ranks first")       \
    X(REDEAL, "redeal of micro-steps")  \
    X(COMPARE, "methods by name")       \
    X(HYBRID_BALANCE, "hybrid: trades") \
    X(HYBRID_LAST, "hybrid: last micro-step")
enum {
#define X(NAME, name) RAVEL__PART_##NAME,
    RAVEL__PART_LIST(X)
#undef X
        RAVEL__PARTS
};
#ifdef RAVEL_ABLATE
extern uint32_t ravel__parts_off;
#define RAVEL__PART_ON(NAME) (!(ravel__parts_off >> RAVEL__PART_##NAME & 1))
#else
#define RAVEL__PART_ON(NAME) 1
#endif

/* The first row that fits. `per_bin`: samples per bin of the lower bound. */
const ravel__search_limits *ravel__search_limits_for(int32_t effort, int64_t samples, int64_t per_bin);

#endif
