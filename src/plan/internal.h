/* Shared by the files of the planner.
 *
 *     input, options
 *        |  input.c      check everything once, name what is wrong, derive the rules
 *        |  updates.c    cut the batch into updates
 *        v
 *     pool               the samples of one update, longest slot first (pool.c)
 *        |  pack/        a bin for each sample, under the cap: few bins; the methods by name
 *        |  balance/     a micro-step and a rank for each bin; samples traded between bins
 *        |  tree/        all of this for samples that share prefixes: a bin is a set of subtrees (tree/tree.h)
 *        v
 *     where[row]         the global bin of every sample
 *        |  create.c     CSR arrays;  measure.c  figures and digest
 *        v
 *     ravel_plan
 *
 *     cost.c   the cost model and what a bin of samples comes to      bounds.c lower bounds
 *     limits.c search limits per effort                            arrivals.c, take.c   samples that come over time
 *
 * Sizes inside are in units of `align`, so that a slot fits 32 bits and the tables over residual room stay small. Costs
 * are already shifted to fit (rules.shift). Everything is an integer and every tie is broken by index. */
#ifndef RAVEL_PLAN_INTERNAL_H
#define RAVEL_PLAN_INTERNAL_H

#include <ravel/plan.h>

#include "base/assert.h"
#include "base/memory.h"
#include "plan/limits.h"

__extension__ typedef __int128 ravel__i128;
__extension__ typedef unsigned __int128 ravel__u128;

#define RAVEL__LONGEST      (INT64_C(1) << 31)
#define RAVEL__MOST_SAMPLES (INT64_C(1) << 29)
#define RAVEL__MOST_BINS    (INT64_C(1) << 30)

/* ---- rules derived from the options ---------------------------------------------------------------------- */

/* Hybrid context parallelism: the widths that groups may have, narrowest first. */
enum { RAVEL__MOST_WIDTHS = 14 };
typedef struct ravel__widths {
    int32_t count; /* 0: no hybrid plan */
    int32_t pool;
    int32_t rising; /* no width has a lower price than a narrower one */
    int32_t reserved;
    int32_t width[RAVEL__MOST_WIDTHS];
    int64_t price[RAVEL__MOST_WIDTHS];    /* per mille */
    int64_t multiple[RAVEL__MOST_WIDTHS]; /* of slots, tokens */
    int64_t room[RAVEL__MOST_WIDTHS];     /* slot tokens that a group holds, a multiple of `multiple` */
} ravel__widths;

typedef struct ravel__rules {
    ravel_plan_options options; /* a full copy, defaults where an older caller has no field */
    int64_t cap;                /* units in a bin */
    int64_t most;               /* samples in a bin */
    int64_t overhead;           /* of a bin, shifted */
    int32_t shift;              /* costs are divided by 2^shift */
    int32_t wide;               /* costs need 128 bits before the shift */
    int32_t own_costs;          /* the caller gave costs */
    int32_t by_time;            /* predicted time is minimised, not the number of micro-steps */
    int32_t updates;            /* at most */
    int64_t steps_done;         /* micro-steps that the update has already: they count towards multiple and minimum */
    int32_t placed;             /* samples that fit */
    int32_t skipped;            /* samples that do not */
    int32_t trees;              /* samples share prefixes */
    ravel__widths widths;
} ravel__rules;

/* Checks options and input, and derives the rules. Names what is wrong. */
ravel_status ravel__rules_make(const ravel_plan_input *input, const ravel_plan_options *options, ravel__rules *rules,
                               ravel_plan_input *own, ravel_error *err);
ravel_status ravel__options_read(const ravel_plan_options *options, ravel_plan_options *own, ravel_error *err);

static inline int64_t ravel__length(const ravel_plan_input *input, int64_t row) {
    return input->lengths ? input->lengths[row] : input->prompts[row] + input->responses[row];
}

/* Without a division where align is a power of two, as nearly always. */
static inline int64_t ravel__units(int64_t tokens, int64_t align) {
    int64_t up = tokens + align - 1;
    return align & (align - 1) ? up / align : up >> __builtin_ctzll((uint64_t)align);
}

/* A sample's slot in units, and the prompt's part of it (padded-2d; elsewhere 0), whatever a bin holds. */
static inline int64_t ravel__slot_whole(const ravel__rules *rules, const ravel_plan_input *input, int64_t row,
                                        int64_t *prompt) {
    int64_t align = rules->options.align;
    *prompt = 0;
    if (rules->options.layout != RAVEL_LAYOUT_PADDED_2D) return ravel__units(ravel__length(input, row), align);
    RAVEL_ASSERT(input->prompts && input->responses); /* checked with the input */
    *prompt = ravel__units(input->prompts[row], align);
    return *prompt + ravel__units(input->responses[row], align);
}

/* The same as the planner sees it: with oversize = alone a larger sample fills a bin, so that nothing joins it. */
static inline int64_t ravel__slot(const ravel__rules *rules, const ravel_plan_input *input, int64_t row,
                                  int64_t *prompt) {
    int64_t slot = ravel__slot_whole(rules, input, row, prompt);
    if (rules->options.oversize != RAVEL_OVERSIZE_ALONE || slot <= rules->cap) return slot;
    if (*prompt > rules->cap) *prompt = rules->cap;
    return rules->cap;
}

/* The cost of a length by the model, where it needs 128 bits before the shift. */
int64_t ravel__cost_of_wide(const ravel__rules *rules, int64_t length);
/* The cost of a length by the model, shifted. */
static inline int64_t ravel__cost_of(const ravel__rules *rules, int64_t length) {
    const ravel_cost *cost = &rules->options.cost;
    if (rules->wide) return ravel__cost_of_wide(rules, length);
    return cost->linear * length + cost->quadratic * length * length;
}

/* The cost of one sample: by the model, of its slot in the padded layouts; or the caller's. */
static inline int64_t ravel__sample_cost(const ravel__rules *rules, const ravel_plan_input *input, int64_t row) {
    int64_t prompt;
    if (input->costs)
        return (int64_t)(((uint64_t)input->costs[row] + ((UINT64_C(1) << rules->shift) - 1)) >> rules->shift);
    if (rules->options.layout == RAVEL_LAYOUT_PACKED) return ravel__cost_of(rules, ravel__length(input, row));
    return ravel__cost_of(rules, ravel__slot_whole(rules, input, row, &prompt) * rules->options.align);
}

/* Whether a sample fits no bin at all. */
int ravel__is_oversize(const ravel__rules *rules, const ravel_plan_input *input, int64_t row);

/* ---- updates ------------------------------------------------------------------------------------------------- */

typedef struct ravel__deal {
    int32_t updates;
    int32_t *rows;   /* placed rows, by update; ascending inside, with trees in tree order */
    int32_t *start;  /* [updates + 1] into rows */
    int64_t *shared; /* with trees: what each shares with the one before it in its update; else NULL */
} ravel__deal;

/* Numbers groups from 0 in order of first appearance among `rows`; `group` gets one number per row. */
ravel_status ravel__groups_number(const ravel_plan_input *input, const int32_t *rows, int32_t count,
                                  ravel__arena *arena, int32_t *group, int32_t *groups, ravel_error *err);
ravel_status ravel__deal_make(const ravel__rules *rules, const ravel_plan_input *input, ravel__arena *arena,
                              ravel__deal *deal, ravel_error *err);

/* ---- pool: the samples of one problem, longest slot first, ties by row --------------------------------------- */

typedef struct ravel__pool {
    int32_t count;
    int32_t *row;
    uint32_t *slot;   /* units */
    uint32_t *prompt; /* padded-2d: the prompt's part of the slot; else NULL */
    int64_t *cost;
} ravel__pool;

ravel_status ravel__pool_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                              int32_t count, ravel__arena *arena, ravel__pool *pool, ravel_error *err);

/* ---- bins ----------------------------------------------------------------------------------------------------- */

/* Running sums of a bin. Packed: size and cost are sums. Padded: size is rows * (prompt + rest), the rectangle, and
 * cost is rows * the cost of one row of it. */
typedef struct ravel__bin {
    int64_t size;
    int64_t cost;          /* without overhead */
    int64_t row_cost;      /* padded: the cost of one row */
    uint32_t prompt, rest; /* padded: the longest parts; prompt is 0 except in padded-2d */
    int32_t rows;
    int32_t reserved;
} ravel__bin;

/* The rectangle rule, in this one place (cost.c). */
void ravel__bin_put_padded(const ravel__rules *rules, ravel__bin *bin, uint32_t slot, uint32_t prompt, int64_t cost);

static inline void ravel__bin_put(const ravel__rules *rules, ravel__bin *bin, uint32_t slot, uint32_t prompt,
                                  int64_t cost) {
    if (rules->options.layout != RAVEL_LAYOUT_PACKED) {
        ravel__bin_put_padded(rules, bin, slot, prompt, cost);
        return;
    }
    bin->rows++;
    bin->size += slot;
    bin->cost += cost;
}

static inline void ravel__bin_add(const ravel__rules *rules, const ravel__pool *pool, ravel__bin *bin, int32_t sample) {
    ravel__bin_put(rules, bin, pool->slot[sample], pool->prompt ? pool->prompt[sample] : 0, pool->cost[sample]);
}

/* The size that the bin would have with the sample in. */
int64_t ravel__bin_size_with(const ravel__rules *rules, const ravel__pool *pool, const ravel__bin *bin, int32_t sample);
int ravel__bin_fits(const ravel__rules *rules, const ravel__pool *pool, const ravel__bin *bin, int32_t sample);
void ravel__bin_collect(const ravel__rules *rules, const ravel__pool *pool, const int32_t *samples, int32_t count,
                        ravel__bin *bin);

/* ---- packing -------------------------------------------------------------------------------------------------- */

/* One problem being solved, and where scratch and errors go. */
typedef struct ravel__job {
    const ravel__rules *rules;
    const ravel__pool *pool;
    const ravel_plan_input *input;
    ravel__arena *arena;
    ravel_error *err;
    int32_t method;
    int32_t dp;    /* 1 if a rank is planned on its own */
    int64_t bound; /* of bins: ravel__bins_bound of the pool */
    const ravel__search_limits *limits;
    const int32_t *ranks; /* by row: the rank of its group, if that is decided already; else NULL */
} ravel__job;

/* A job for the options' method and dp, with its bound and its search limits. */
ravel__job ravel__job_for(const ravel__rules *rules, const ravel_plan_input *input, const ravel__pool *pool,
                          ravel__arena *arena, ravel_error *err);
/* Sets the bound and the limits that follow from the job's pool. */
void ravel__job_bound(ravel__job *job);

/* Whether the pool, which is in order of slots, is in order of cost too: largest first. */
int ravel__pool_ordered(const ravel__pool *pool);
/* The pool's samples by cost, largest cost first. */
ravel_status ravel__pool_order(const ravel__job *job, int32_t *order);

/* A method: a bin for every sample of the pool, under the cap. `bin` holds pool->count entries; *bins is the number of
 * bins. Adding one: a file in pack/ with ravel__pack_NAME, a row of RAVEL_METHOD_LIST in ravel/plan.h. */
typedef ravel_status ravel__pack_fn(const ravel__job *job, int32_t *bin, int32_t *bins);

typedef struct ravel__method {
    const char *name, *doc;
    ravel__pack_fn *pack; /* NULL: the default method */
    int32_t splits;       /* bins may be split to give every rank work */
} ravel__method;

extern const ravel__method ravel__methods[];

#define X(NAME, function, name, splits, doc) ravel__pack_fn ravel__pack_##function;
RAVEL_METHOD_LIST(X)
#undef X

/* The default method's packing; `thorough` tries everything. */
ravel_status ravel__pack_fewest(const ravel__job *job, int thorough, int32_t *bin, int32_t *bins);
ravel_status ravel__pack_best_fit(const ravel__job *job, int64_t cap, int32_t *bin, int32_t *bins);
/* Packed layout: fills bin by bin, trying `seconds` second samples per bin; `lookups`: limit per sample. */
ravel_status ravel__pack_complete(const ravel__job *job, int32_t seconds, int32_t lookups, int32_t *bin, int32_t *bins);

/* Target number of bins of the balancing methods: the least that bound and parity allow, at most one per sample. */
int32_t ravel__wanted_bins(const ravel__job *job);
/* Karmarkar-Karp into at most k bins, whatever their size. */
ravel_status ravel__difference(const ravel__job *job, int32_t k, int32_t *bin, int32_t *bins);

/* Micro-steps for the given number of bins: at least the minimum, a multiple of the multiple. */
int64_t ravel__steps_for(const ravel__rules *rules, int64_t bins, int32_t dp);

/* Bins as lists: the samples of bin b are items[start[b]] .. items[start[b] + bin[b].rows]. */
typedef struct ravel__lists {
    int32_t bins;
    int32_t *start;
    int32_t *items; /* pool indices */
    ravel__bin *bin;
} ravel__lists;

/* Room for `most` bins. */
ravel_status ravel__lists_make(const ravel__job *job, const int32_t *bin, int32_t bins, int32_t most,
                               ravel__lists *lists);
/* The bin of every listed sample. */
void ravel__lists_bins(const ravel__lists *lists, int32_t *bin);
/* The bins by cost, largest cost first, ties by number. */
ravel_status ravel__lists_order(const ravel__job *job, const ravel__lists *lists, int32_t *order);
/* Splits bin `from` in two; the other half goes to bin `to`, which is empty. `scratch`: 8 bytes per sample of the
 * bin. */
void ravel__lists_halve(const ravel__job *job, ravel__lists *lists, int32_t from, int32_t to, void *scratch);
/* Splits the largest bins of two or more samples until there are `target` or all are single. */
ravel_status ravel__lists_split(const ravel__job *job, ravel__lists *lists, int32_t target);

/* ---- solving one update ---------------------------------------------------------------------------------- */

typedef struct ravel__solution {
    int64_t steps;
    int64_t bins_packed;
} ravel__solution;

/* Candidates for an update. A candidate is a seat, micro_step * dp + rank, for every sample of the pool. It is made in
 * `trial` and entered; the best (fewer micro-steps, then less predicted time) is kept. Where only one will be made,
 * `trial` is `best` and nothing is compared. */
typedef struct ravel__candidates {
    int32_t *best, *trial;
    int64_t time; /* of the best, overheads aside */
    ravel__solution solution;
} ravel__candidates;

ravel_status ravel__candidates_offer(const ravel__job *job, ravel__candidates *candidates, ravel__solution solution);

/* The default method by layout; each enters what it makes. */
ravel_status ravel__solve_packed(const ravel__job *job, ravel__candidates *candidates);
ravel_status ravel__solve_padded(const ravel__job *job, ravel__candidates *candidates);
/* Any method with groups on ranks; or with single samples dealt to ranks, if there are no such groups. */
ravel_status ravel__solve_ranks(const ravel__job *job, int32_t *seat, ravel__solution *solution);
/* Solves one update: fills `seat` for every sample of the pool. */
ravel_status ravel__solve(const ravel__job *job, int32_t *seat, ravel__solution *solution);

/* Orders micro-steps for pipelines, and permutes ranks so that samples stay at home; the time does not grow. */
ravel_status ravel__place(const ravel__job *job, int64_t steps, int32_t *seat);

/* ---- bounds ---------------------------------------------------------------------------------------------- */

/* Martello and Toth's L2 over slots in units, longest first; at least `volume`. */
int64_t ravel__martello_toth(const ravel__pool *pool, int64_t cap, int64_t volume);
int64_t ravel__bins_bound(const ravel__rules *rules, const ravel__pool *pool);
/* The least predicted time of an update with these samples in at least `steps` micro-steps. */
int64_t ravel__time_bound(const ravel__rules *rules, const ravel__pool *pool, int64_t steps);

/* Adds the three bounds of an update with these samples; `bins`: ravel__bins_bound of the pool. */
void ravel__bounds_add(const ravel__rules *rules, const ravel__pool *pool, int64_t bins, ravel_plan_stats *stats);

/* ---- the plan -------------------------------------------------------------------------------------------- */

typedef struct ravel__plan {
    ravel_plan api; /* first: it is what the caller holds */
    /* the same arrays, to be written */
    int64_t *update_offsets, *bin_offsets, *bin_tokens, *bin_slots, *bin_costs;
    int32_t *samples, *skipped;
    int64_t *ids;    /* of arrivals; else NULL */
    int64_t *shared; /* of trees; else NULL */
    ravel_hybrid hybrid;
    int64_t *group_offsets, *group_sample_offsets;
    int32_t *group_first, *group_width, *rank_group;
    const ravel_allocator *allocator;
    size_t bytes; /* of this block, arrays included */
} ravel__plan;

/* Sizes of a plan's arrays. `groups`: an upper bound. */
typedef struct ravel__plan_size {
    int64_t count, updates, micro_steps, dp, samples, skipped, groups;
    int32_t has_ids, hybrid, trees;
} ravel__plan_size;

/* One block; the figures and the contents of the arrays are to be written. */
ravel__plan *ravel__plan_alloc(const ravel__plan_size *size, const ravel_allocator *allocator, ravel_error *err);

/* The result of solving, before the plan's arrays are made. */
typedef struct ravel__draft {
    int64_t updates;
    int64_t *offsets;        /* [updates + 1] first micro-step of each update */
    int32_t *where;          /* [count] the bin of every row, -1: left out */
    const int64_t *ids;      /* [count] of arrivals; else NULL */
    uint8_t *width;          /* hybrid: [count] index of the width of each row's group; else NULL */
    ravel_plan_stats bounds; /* the bounds and bins_packed */
    ravel_hybrid hybrid;     /* its bounds */
} ravel__draft;

ravel_status ravel__emit(const ravel__rules *rules, const ravel_plan_input *input, const ravel__draft *draft,
                         ravel__arena *arena, ravel_plan **out, ravel_error *err);
/* Bin figures and stats from update_offsets, bin_offsets and samples; all but the bounds and bins_packed. `totals` is
 * scratch of dp. */
void ravel__plan_measure(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                         int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, int64_t *totals,
                         ravel_plan_stats *stats);
uint64_t ravel__plan_digest(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan);

#endif
