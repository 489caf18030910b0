/* ravel/plan.h: lengths in, plan out.
 *
 * Nouns
 *   sample      one sequence: its length and, if given, its cost, group, update and home rank.
 *   slot        the place of a sample in a bin: its length rounded up to `align`.
 *   bin         a micro-batch: what one data-parallel rank runs forward and backward in one go. At most cp * budget
 *               slot tokens and max_samples samples, always.
 *   micro-step  the bins that all dp ranks run at the same time: one bin per rank.
 *   update      one optimiser step: a whole number of micro-steps, the same on every rank.
 *   filler      a bin without samples, there only so that every rank has the same number of micro-steps.
 *
 *               micro-step 0     micro-step 1         |  update 1 ...
 *     rank 0    [ 7 | 3 | 9 ]    [ 1 | 4 ]            |
 *     rank 1    [ 2 | 8     ]    [ 6 | 0 | 5 ]        |
 *
 * A plan is a pure function of lengths and options: no I/O, no communication, no global state, integers only. The
 * same input gives the same plan, bit for bit, on every rank and machine, and a digest that ranks can compare.
 *
 * Three rungs
 *   ravel_plan_create     one call, one plan (below).
 *   ravel_planner_*       samples that arrive over time: push lengths, take micro-steps as they fill.
 *   ravel_plan_replay     the same plan again, its micro-steps in another order (PPO epochs).
 *
 *     ravel_plan_options options;
 *     ravel_plan_options_default(&options);
 *     options.budget = 16384;
 *     options.dp = 16;
 *     ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = lengths};
 *     if (ravel_plan_create(&input, &options, &plan, &err)) ...
 *     for (int64_t step = 0; step < plan->micro_steps; step++) {
 *         int64_t bin = step * plan->dp + my_rank;
 *         for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++)
 *             use(plan->samples[i]);
 *     }
 */
#ifndef RAVEL_PLAN_H
#define RAVEL_PLAN_H

#include <ravel/options.h>
#include <ravel/shape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- options -------------------------------------------------------------------------------------------- */

/* When ranks wait for one another, which defines "time". */
typedef enum ravel_sync {
    RAVEL_SYNC_MICRO_STEP, /* every micro-step (FSDP, ZeRO-3, experts): sum over micro-steps of the slowest rank */
    RAVEL_SYNC_UPDATE,     /* once per update (DDP, ZeRO-1): the slowest rank's total */
    RAVEL_SYNC_PIPELINE    /* pp > 1: as update, and small micro-steps at both ends */
} ravel_sync;
#define RAVEL_SYNC_CHOICES "micro-step|update|pipeline"

/* What counts against the budget. */
typedef enum ravel_layout {
    RAVEL_LAYOUT_PACKED,   /* slots side by side: the sum of slots */
    RAVEL_LAYOUT_PADDED,   /* rows x longest slot */
    RAVEL_LAYOUT_PADDED_2D /* rows x (longest prompt slot + longest response slot) */
} ravel_layout;
#define RAVEL_LAYOUT_CHOICES "packed|padded|padded-2d"

/* The methods of other frameworks. X(ENUM, function, "name", bins may be split, "sentence"). */
#define RAVEL_METHOD_LIST(X)                                                                                         \
    X(NEXT_FIT, next_fit, "next-fit", 1, "original order, a new bin when the next sample does not fit (Megatron)")   \
    X(NEXT_FIT_DECREASING, next_fit_decreasing, "next-fit-decreasing", 1,                                            \
      "longest first, a new bin when the next sample does not fit")                                                  \
    X(FFD, ffd, "ffd", 1, "longest first, each into the first bin with room (NeMo-RL, AReaL)")                       \
    X(BFD, bfd, "bfd", 1, "longest first, each into the fullest bin with room (TRL)")                                \
    X(MFFD, mffd, "mffd", 1, "first-fit decreasing that completes half-full bins with middling samples (NeMo-RL)")   \
    X(KK, kk, "kk", 1, "Karmarkar-Karp differencing by cost, then repaired to keep the cap (verl, slime)")           \
    X(LPT, lpt, "lpt", 1, "largest cost first, each into the bin with the least cost that has room")                 \
    X(FIXED_COUNT, fixed_count, "count", 0, "`count` samples per bin (fewer if the budget says so), original order") \
    X(AS_IS, as_is, "as-is", 0, "every sample is a bin of its own, original order: rows that are packed already")

typedef enum ravel_method {
    RAVEL_METHOD_RAVEL, /* the default: few bins, balanced for what the ranks wait for, near home */
#define X(NAME, function, name, splits, doc) RAVEL_METHOD_##NAME,
    RAVEL_METHOD_LIST(X)
#undef X
        RAVEL_METHODS /* the number of methods */
} ravel_method;
#define RAVEL__METHOD_CHOICE(NAME, function, name, splits, doc) "|" name
#define RAVEL_METHOD_CHOICES                                    "ravel" RAVEL_METHOD_LIST(RAVEL__METHOD_CHOICE)

/* What becomes of prefix trees (input.shared) under the default method. All but the first are what other frameworks do,
 * to compare; `groups` of the input are the groups, else each tree is one. They want group-rule free or update. */
typedef enum ravel_tree_method {
    RAVEL_TREE_RAVEL,     /* few bins, few cuts, balanced for what the ranks wait for */
    RAVEL_TREE_GROUPS,    /* whole groups, in their order, to the rank that has the least (TRL) */
    RAVEL_TREE_FIRST_FIT, /* samples in tree order, each into the first bin with room for what it adds (AReaL) */
    RAVEL_TREE_CUT        /* the tree order cut into a run for each rank, and each run into bins (AReaL-DTA) */
} ravel_tree_method;
#define RAVEL_TREE_METHOD_CHOICES "ravel|groups|first-fit|cut"

/* How much the default method searches for a better plan; like compression levels. */
typedef enum ravel_effort { RAVEL_EFFORT_FAST, RAVEL_EFFORT_DEFAULT, RAVEL_EFFORT_MAX } ravel_effort;
#define RAVEL_EFFORT_CHOICES "fast|default|max"

/* How the plan treats `groups`. */
typedef enum ravel_group_rule {
    RAVEL_GROUPS_FREE,   /* nothing */
    RAVEL_GROUPS_UPDATE, /* all samples of a group are in one update */
    RAVEL_GROUPS_RANK    /* ... and on one data-parallel rank */
} ravel_group_rule;
#define RAVEL_GROUP_CHOICES "free|update|rank"

/* What is minimised first. Every micro-step costs `cost.overhead`; an extra micro-step can still reduce the time if
 * it balances the ranks better. */
typedef enum ravel_objective {
    RAVEL_OBJECTIVE_AUTO, /* time if an overhead is given or prefixes are shared, else steps */
    RAVEL_OBJECTIVE_TIME, /* predicted time, overheads included */
    RAVEL_OBJECTIVE_STEPS /* micro-steps, then predicted time */
} ravel_objective;
#define RAVEL_OBJECTIVE_CHOICES "auto|time|steps"

/* How context-parallel ranks split a slot: zig-zag needs a multiple of 2 * cp, contiguous (and striped) of cp. */
typedef enum ravel_cp_split { RAVEL_CP_SPLIT_ZIGZAG, RAVEL_CP_SPLIT_CONTIGUOUS } ravel_cp_split;
#define RAVEL_CP_SPLIT_CHOICES "zig-zag|contiguous"

/* Ranks of a pool that have no work in a micro-step. */
typedef enum ravel_cp_empty {
    RAVEL_CP_EMPTY_FILLER, /* they run a filler */
    RAVEL_CP_EMPTY_WIDEN   /* groups are widened until no rank is left over, if the widths allow it */
} ravel_cp_empty;
#define RAVEL_CP_EMPTY_CHOICES "filler|widen"

/* A sample that fits no bin. */
typedef enum ravel_oversize {
    RAVEL_OVERSIZE_ERROR, /* E_OVERSIZE names it */
    RAVEL_OVERSIZE_SKIP,  /* it is left out and listed in plan->skipped */
    RAVEL_OVERSIZE_ALONE  /* it has a bin of its own, over the budget: stats.over_budget counts these. Not with shared
                             prefixes and hybrid plans */
} ravel_oversize;
#define RAVEL_OVERSIZE_CHOICES "error|skip|alone"

/* The cost of a sample: linear * length + quadratic * length^2, of a bin: `overhead` + its samples' costs. In the
 * padded layouts every row is computed as wide as the rectangle, so a bin costs overhead + rows * the cost of its width
 * (or, with the caller's own costs, rows * its largest cost). A filler costs the overhead. Integers, so that every
 * machine agrees. Only ratios matter. */
typedef struct ravel_cost {
    int64_t linear;    /* 0 .. 2^53 */
    int64_t quadratic; /* 0 .. 2^30 */
    int64_t overhead;  /* 0 .. 2^53: of running one more micro-step at all */
} ravel_cost;

typedef struct ravel_plan_options {
    size_t size;         /* sizeof(ravel_plan_options), set by ravel_plan_options_default */
    int64_t budget;      /* slot tokens in one bin, per context-parallel rank; required. With method = count, 0 is no
                                   cap: bins have room for `count` of the longest sample */
    int32_t cp;          /* context-parallel ranks: a bin holds cp * budget */
    int32_t align;       /* a slot is a multiple of this, and of what cp_split needs: see ravel_plan_align */
    int64_t max_samples; /* in one bin; 0: no cap */
    int32_t dp;          /* data-parallel ranks */
    int32_t multiple;    /* micro-steps of an update are a multiple of this (vpp) */
    int64_t min_micro_steps;    /* of an update */
    int32_t updates;            /* cut the batch into this many; 1 unless `input.updates` says more */
    int32_t sync;               /* ravel_sync */
    int64_t samples_per_update; /* instead of `updates`: cut after this many samples; 0: off */
    int32_t layout;             /* ravel_layout */
    int32_t method;             /* ravel_method */
    int32_t effort;             /* ravel_effort */
    int32_t group_rule;         /* ravel_group_rule */
    int64_t count;              /* samples per bin for method = count */
    int32_t oversize;           /* ravel_oversize */
    int32_t shuffle;            /* deal samples to updates in an order shuffled by `seed`, else in input order */
    uint64_t seed;
    ravel_cost cost;
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the plan */
    int32_t objective;                /* ravel_objective */
    int32_t cp_split;                 /* ravel_cp_split */
    /* hybrid context parallelism, see below */
    int32_t cp_pool; /* ranks of the pool (dp * cp); 0: off, every bin has `cp` ranks */
    int32_t min_cp;  /* no group is narrower */
    /* "1,2,4": widths that exist, each a divisor of the next; NULL: powers of two and the pool */
    const char *cp_widths;
    const char *cp_price; /* "2:30,4:60": extra time per mille by width; NULL: 30 per doubling, 150 beyond a node */
    int32_t cp_node;      /* ranks of a node, for the default price */
    int32_t cp_tp;        /* tensor-parallel ranks that split sequences too: part of the slot multiple */
    int32_t cp_empty;     /* ravel_cp_empty */
    int32_t tree_method;  /* ravel_tree_method */
} ravel_plan_options;

RAVEL_API void ravel_plan_options_default(ravel_plan_options *options);
/* The table behind `ravel plan --help`: everything above but cost and allocator. */
RAVEL_API ravel_option_table ravel_plan_option_table(void);

/* The multiple that slots have: the least common multiple of `align` and what cp_split needs (2 * cp or cp if
 * cp > 1). Packing with this align fits every bin of the plan. 0 if it is above 2^30, which planning refuses. */
RAVEL_API int32_t ravel_plan_align(const ravel_plan_options *options);

/* The slot of a sample on a group of `width` ranks of a hybrid plan: its length rounded up to what cp_split, cp_tp and
 * align ask for. Width 0: on a bin of a plan that is not hybrid. 0 if ravel_plan_align is 0. */
RAVEL_API int64_t ravel_plan_slot(const ravel_plan_options *options, int64_t length, int32_t width);

/* The widths that groups of a hybrid plan may have, rising, at most RAVEL_FIT_WIDTHS of them; returns their number. A
 * trainer makes its rings from it before the first plan: for each width k one communicator of ranks k * i .. k * i + k
 * - 1 of the pool. 0 if cp_pool is 0, or if planning refuses the options. */
RAVEL_API int32_t ravel_plan_widths(const ravel_plan_options *options, int32_t *widths);
/* Extra time per mille of `width` context-parallel ranks, by cp_price or the default. -1: cp_price has none for it. */
RAVEL_API int64_t ravel_plan_cp_price(const ravel_plan_options *options, int32_t width);

/* "24576:1", "24576:1:OVERHEAD", or "tokens" (1:0). Model files go through ravel_shape_read and ravel_cost_from_shape.
 */
RAVEL_API ravel_status ravel_cost_parse(const char *text, ravel_cost *cost, ravel_error *err);

/* Forward-and-backward FLOPs of the shape, scaled to small integers: matrix work and LM head are linear, causal
 * attention is quadratic. */
RAVEL_API ravel_status ravel_cost_from_shape(const ravel_shape *shape, ravel_cost *cost, ravel_error *err);

/* The same for other work than forward and backward, in per cent of a forward pass. {300, 300, 300} is
 * ravel_cost_from_shape. Frozen layers (adapters) take 200: their weights have no gradient. Recomputing the layers adds
 * 100 to layers and attention, a reference model 100 to all three; flash attention's backward takes 250, so 350 with
 * forward; if only answers are scored, the head has their share of the tokens. */
typedef struct ravel_passes {
    int32_t layers;    /* products of the layers */
    int32_t head;      /* and of the LM head */
    int32_t attention; /* scores and weighted values */
} ravel_passes;
RAVEL_API ravel_status ravel_cost_from_passes(const ravel_shape *shape, const ravel_passes *passes, ravel_cost *cost,
                                              ravel_error *err);

/* ---- costs from measurement ----------------------------------------------------------------------------- */

/* One measured micro-batch, or the sum of several. */
typedef struct ravel_cost_sample {
    double tokens, squares; /* sum of lengths, and of their squares */
    double micro_steps;     /* overheads in it: 1 for one micro-batch */
    double seconds;
    int32_t width; /* context-parallel ranks that ran it; 1 or more */
    int32_t reserved;
} ravel_cost_sample;

#define RAVEL_FIT_WIDTHS 14

/* A cost model that fits them: seconds = unit * (linear * tokens + quadratic * squares) / width * (1 + price / 1000) +
 * unit * overhead * micro_steps. */
typedef struct ravel_cost_fit {
    size_t size;
    ravel_cost cost;
    double unit;        /* seconds per unit of cost */
    double error;       /* mean of |predicted - measured| / measured, of the samples that are not `far` */
    double worst_error; /* the largest */
    int64_t samples;
    int32_t widths;
    int32_t width[RAVEL_FIT_WIDTHS],
        price[RAVEL_FIT_WIDTHS]; /* per mille, against the narrowest width that was measured */
    /* the same errors by five-fold cross-validation: every fifth sample is predicted by a fit of the others; 0 with
     * fewer than 20 samples */
    double apart_error, apart_worst;
    int64_t far; /* outliers, more than 25 % off: they have little weight in the fit, and are in no error */
} ravel_cost_fit;

/* Least squares of relative errors, weighted so that outliers have little influence; no coefficient below 0. The
 * narrowest width gives linear, quadratic and overhead; the others their price. E_DATA if there are too few samples,
 * or all alike. */
RAVEL_API ravel_status ravel_cost_fit_make(const ravel_cost_sample *samples, int64_t count, ravel_cost_fit *fit,
                                           ravel_error *err);

/* ---- input ---------------------------------------------------------------------------------------------- */

/* Arrays of `count`, borrowed for the call. Give `lengths`, or `prompts` and `responses` (a sample's length is their
 * sum; both count towards the budget; a prompt or a response may be 0, the sum may not). The rest is optional.
 *
 * Prefix trees: with `shared`, samples that begin alike and are in one bin compute what they share once (ravel/tree.h).
 * The tokens of a bin are then its different tokens: each sample's length minus what it shares with the one before it
 * in the bin, and the whole bin is one slot, rounded up to `align` once. Its cost is the sum of cost(length) -
 * cost(shared). Bins list their samples in tree order. Samples stay whole: a prefix that two bins need is computed in
 * both. All shared 0: the plan is the one without `shared`, bit for bit. Needs layout packed. With `costs` a sample
 * costs what they say, and what it shares by the model, which may not be more. */
typedef struct ravel_plan_input {
    size_t size; /* sizeof(ravel_plan_input) */
    int64_t count;
    const int64_t *lengths; /* 1 .. 2^31 */
    const int64_t *prompts; /* needed, with responses, for padded-2d */
    const int64_t *responses;
    const int64_t *costs;   /* instead of the cost model; >= 0 */
    const int64_t *groups;  /* any ids */
    const int32_t *updates; /* 0 .. updates-1: which update a sample belongs to */
    const int32_t *homes;   /* 0 .. dp-1: the rank that holds the sample now; -1: none in particular */
    /* of arrivals only, see ravel_planner_push */
    const int64_t *versions;  /* of the weights that generated the sample */
    const int64_t *deadlines; /* when the sample must be taken at the latest */
    /* prefix trees; NULL: nothing is shared */
    const int64_t *shared; /* per place of the tree order: tokens shared with the sample of the place before */
    const int32_t *order;  /* the sample of each place; NULL: samples are given in tree order */
} ravel_plan_input;

/* ---- the plan ------------------------------------------------------------------------------------------- */

/* X(type, name, sentence): the figures of a plan. All are over the whole plan. */
#define RAVEL_PLAN_STATS_LIST(X)                                                                                   \
    X(int64_t, samples, "samples placed")                                                                          \
    X(int64_t, skipped, "samples left out because they fit no bin")                                                \
    X(int64_t, bins, "bins that hold samples")                                                                     \
    X(int64_t, bins_packed, "bins that the samples fit into, before some were split to give every rank work")      \
    X(int64_t, bins_lower_bound, "no plan under these options can have fewer: max of volume and Martello-Toth L2") \
    X(int64_t, fillers, "empty bins that keep the ranks in step")                                                  \
    X(int64_t, micro_steps, "micro-steps over all updates")                                                        \
    X(int64_t, micro_steps_lower_bound, "no plan can have fewer")                                                  \
    X(int64_t, capacity_tokens, "(bins + fillers) * cp * budget")                                                  \
    X(int64_t, padded_tokens, "sum of slots, or of rectangles in the padded layouts")                              \
    X(int64_t, actual_tokens, "sum of lengths; of tokens that are computed, if prefixes are shared")               \
    X(int64_t, longest, "longest sample")                                                                          \
    X(int64_t, over_budget, "bins over their budget: samples of oversize alone, else 0")                           \
    X(int64_t, cost, "sum of costs, overheads included")                                                           \
    X(int64_t, cost_shift, "costs were divided by 2^this to fit 64 bits; 0 in any ordinary case")                  \
    X(int64_t, time, "predicted time in cost units, for the sync kind that was asked for")                         \
    X(int64_t, time_lower_bound, "no plan under these options can be faster")                                      \
    X(int64_t, time_micro_step, "sum over micro-steps of the slowest rank")                                        \
    X(int64_t, time_update, "sum over updates of the slowest rank's total")                                        \
    X(int64_t, tokens_moved, "tokens of samples that leave their home rank")                                       \
    X(double, fill, "actual tokens / capacity")                                                                    \
    X(double, padding, "padded tokens that are not actual / padded tokens")                                        \
    X(double, idle_micro_step, "share of rank time spent waiting if ranks meet in every micro-step")               \
    X(double, idle_update, "share of rank time spent waiting if ranks meet once per update")                       \
    X(double, slowdown, "time_micro_step / perfect balance (total cost / dp)")                                     \
    X(double, imbalance, "slowest rank's total / mean rank's total, worst update")                                 \
    X(int64_t, flat_tokens, "sum of lengths, whatever is shared")                                                  \
    X(int64_t, unique_tokens, "tokens that a single bin would compute: actual_tokens less what cuts repeat")

typedef struct ravel_plan_stats {
#define X(type, name, doc) type name;
    RAVEL_PLAN_STATS_LIST(X)
#undef X
} ravel_plan_stats;

/* Hybrid context parallelism: each group of ranks has its own width inside one micro-step, so a long sample gets a wide
 * group and short ones stay on one rank.
 *
 *     pool of 8     micro-step 0                    micro-step 1
 *     rank 0..3     [ 90k tokens, width 4       ]   [ 3 | 9 ] [ 4     ] [ 12 7 ] [ 5 6 ]     width 1 each
 *     rank 4..7     [ 40k, width 2 ][ 2 | 8 ][ 1 ]  [ 30k, width 2    ] [ 20k, width 2 ]
 *
 * Set cp_pool to the number of ranks (dp * cp); dp must be 1 or the same number, cp must be 1.
 *
 * A group of width k holds at most k * budget slot tokens, a slot being a multiple of lcm(align, 2 * k * cp_tp) for
 * k > 1 (k * cp_tp if cp_split is contiguous) and of lcm(align, cp_tp) for k = 1. Its first rank is a multiple of
 * its width, and groups do not overlap. A sample that is over the budget takes the narrowest width that holds it or a
 * wider one. Time of a group: its samples' cost / k, times 1 + price(k) / 1000; a micro-step takes as long as its
 * slowest group, plus cost.overhead. Homes (ranks of the pool) do not change such a plan; stats.tokens_moved counts by
 * them.
 *
 * In such a plan `dp` is the pool. The bin (micro-step, first rank of a group) holds the group's samples, all members
 * run them in that order; the bins of the other members are empty, but have the group's cost in bin_costs. */
typedef struct ravel_hybrid {
    int32_t pool;
    int32_t reserved;
    int64_t groups;
    const int64_t *group_offsets;        /* [micro_steps + 1] into the groups, in order of their first rank */
    const int32_t *group_first;          /* [groups] first rank */
    const int32_t *group_width;          /* [groups] ranks */
    const int64_t *group_sample_offsets; /* [groups + 1] into plan->samples */
    const int32_t *rank_group;           /* [micro_steps * pool] the group of each rank; -1: a filler */
    /* bounds over all updates: no plan can do with less */
    int64_t bound_micro_steps; /* slots / (pool * budget), Martello-Toth L2 with the widest group */
    int64_t bound_area;        /* least work of all samples / pool, and the overhead of those micro-steps */
    int64_t bound_longest;     /* the sample that takes longest at its fastest width, and one overhead per update */
    int64_t bound_canonical;   /* every sample at a width that is fast enough for the whole: stats.time_lower_bound */
} ravel_hybrid;

/* Read-only; owned by the library until ravel_plan_free. Bins are in order of (update, micro-step, rank), fillers
 * included, so bin = micro_step * dp + rank, micro-steps being counted through the whole plan. */
typedef struct ravel_plan {
    int64_t count; /* samples that were given */
    int64_t updates;
    int64_t micro_steps;
    int64_t bins; /* micro_steps * dp */
    int32_t dp;
    int32_t reserved;
    const int64_t *update_offsets; /* [updates + 1] first micro-step of each update */
    const int64_t *bin_offsets;    /* [bins + 1] into `samples` */
    const int32_t *samples;        /* [bin_offsets[bins]] row indices, in the order of their bin */
    const int64_t *bin_tokens;     /* [bins] actual tokens: with trees those that are computed, shared ones once */
    const int64_t *bin_slots;      /* [bins] slot tokens (the rectangle in padded layouts) */
    const int64_t *bin_costs;      /* [bins] */
    const int32_t *skipped;        /* [stats.skipped] row indices */
    uint64_t digest;               /* of inputs, options and plan */
    ravel_plan_stats stats;
    const ravel_hybrid *hybrid; /* NULL unless cp_pool was set */
    const int64_t *shared; /* [bin_offsets[bins]] tokens that samples[i] shares with the one before it in its bin; */
                           /* 0 for the first. NULL if nothing is shared */
} ravel_plan;

RAVEL_API ravel_status ravel_plan_create(const ravel_plan_input *input, const ravel_plan_options *options,
                                         ravel_plan **plan, ravel_error *err);
RAVEL_API void ravel_plan_free(ravel_plan *plan);

/* The most bytes that ravel_plan_create takes from the allocator at one time for `count` samples under these options,
 * the plan included. It is a bound, not an estimate: ordinary plans need a third of it. input.updates counts as
 * options.updates; with groups on ranks one rank may need every micro-step, so the bound grows with count * dp. */
RAVEL_API size_t ravel_plan_workspace(int64_t count, const ravel_plan_options *options);

/* What one rank runs in a micro-step: its bin, or the samples of its group if the plan is hybrid. */
typedef struct ravel_group {
    const int32_t *samples; /* [count] row indices in the order of the bin, the same on all members */
    int64_t count;          /* 0: a filler */
    int32_t first, width;   /* members are ranks first .. first + width - 1; `rank` and 1 if the plan is not hybrid */
} ravel_group;

/* micro_step: 0 .. plan->micro_steps-1, rank: 0 .. plan->dp-1. Outside: no samples, width 0. */
RAVEL_API ravel_group ravel_plan_group(const ravel_plan *plan, int64_t micro_step, int32_t rank);

/* Recounts everything from the lengths and checks promises 1 to 3 (partition, hard cap, parity) and the plan's own
 * figures: E_DATA and a sentence if one is broken. */
RAVEL_API ravel_status ravel_plan_check(const ravel_plan_input *input, const ravel_plan_options *options,
                                        const ravel_plan *plan, ravel_error *err);

/* Another epoch over the same plan: the global micro-step indices in the order to run them. Micro-steps stay inside
 * their update; epoch 0 is the plan's own order, later epochs are shuffled by (seed, epoch). `order` holds
 * plan->micro_steps entries. */
RAVEL_API ravel_status ravel_plan_replay(const ravel_plan *plan, uint64_t seed, int64_t epoch, int64_t *order,
                                         ravel_error *err);

/* The i-th method's name and one sentence about it, for tables; NULL after the last. */
RAVEL_API const char *ravel_method_name(int32_t method);
RAVEL_API const char *ravel_method_doc(int32_t method);

/* ---- pipelines ------------------------------------------------------------------------------------------ */

/* The predicted time of micro-steps with known costs on a pipeline of `pp` stages. The model is cut into pp * vpp equal
 * parts; part c * pp + p is chunk c of stage p, and takes 1 / (pp * vpp) of a micro-step's cost, a third of it forward
 * and two thirds backward. With vpp 1 the schedule is 1F1B, with more the interleaved one (groups of pp micro-steps
 * through chunk 0, then chunk 1, ...; backward through the last chunk first). Messages cost nothing.
 *
 *     pp 2, vpp 1      stage 0   F0 F1 B0 F2 B1 F3 B2 B3
 *                      stage 1      F0 B0 F1 B1 F2 B2 F3 B3 */
typedef struct ravel_bubble {
    double time;  /* from the first forward to the last backward, in units of cost */
    double busy;  /* the part of it that a stage works: the sum of costs / pp */
    double share; /* that it waits: 1 - busy / time; (pp - 1) / (vpp * n + pp - 1) for n micro-steps of one cost */
} ravel_bubble;

/* One update of one data-parallel rank: costs[count], each from 0, in the order of its micro-steps. E_ARGUMENT if
 * vpp is above 1 and pp is 1, or count is no multiple of pp (`multiple` = pp makes it one). */
RAVEL_API ravel_status ravel_pipeline_bubble(const int64_t *costs, int64_t count, int32_t pp, int32_t vpp,
                                             ravel_bubble *bubble, ravel_error *err);
/* A whole plan: the data-parallel ranks meet at the end of each update, so its time is that of the rank whose pipeline
 * takes longest. `busy` is the mean of the ranks, so that the share has both kinds of waiting in it. A hybrid plan has
 * no pipeline of its own for each rank: E_ARGUMENT. */
RAVEL_API ravel_status ravel_plan_bubble(const ravel_plan *plan, int32_t pp, int32_t vpp, ravel_bubble *bubble,
                                         ravel_error *err);

/* ---- arrivals ------------------------------------------------------------------------------------------- */

/* Samples that come one by one (asynchronous rollouts). Push what has arrived; take whole micro-steps as soon as they
 * can be filled; flush at the end of an update to get the rest, fillers included. Every promise of a plan holds for
 * what is taken. Samples are named by the caller's ids.
 *
 *     ravel_planner *p;
 *     ravel_planner_create(&options, NULL, &p, &err);
 *     while (rollouts_arrive(&ids, &input)) {
 *         ravel_planner_push(p, &input, ids, &err);
 *         while (ravel_planner_take(p, 0, &plan, &err) == RAVEL_OK) { run(plan); ravel_plan_free(plan); }
 *     }
 *     ravel_planner_take(p, 1, &plan, &err);      the rest of the update
 *     ravel_planner_free(p);
 *
 * Taken micro-steps are planned by the same solver as a whole batch: method, homes, groups, layout and sync count; with
 * cp_pool a taken plan has groups of different widths (plan->hybrid). The oldest samples go first, at any length,
 * so that long ones do not wait longer than short ones. The options are copied, texts included. */
typedef struct ravel_planner ravel_planner;

/* When micro-steps are taken. Times and versions are the caller's numbers: see ravel_planner_advance. */
typedef struct ravel_planner_options {
    size_t size;      /* sizeof(ravel_planner_options) */
    double fill;      /* 0 .. 1: micro-steps are taken when what waits fills this share of them */
    double idle;      /* 0 .. 1: ... or when they are emptier, but ranks wait for no more than this share of the time */
    int64_t max_wait; /* a sample is taken at most this long after it was pushed; -1: no limit */
    int64_t max_stale; /* a sample is taken before the version is more than this ahead of its own; -1: no limit */
} ravel_planner_options;

RAVEL_API void ravel_planner_options_default(ravel_planner_options *options);
/* `how` NULL: defaults. */
RAVEL_API ravel_status ravel_planner_create(const ravel_plan_options *options, const ravel_planner_options *how,
                                            ravel_planner **planner, ravel_error *err);
RAVEL_API void ravel_planner_free(ravel_planner *planner);

/* All or nothing: on an error none of the samples is taken in. `ids` may be NULL: running numbers from 0. A sample's
 * version is the planner's unless input.versions says it; its deadline is input.deadlines and max_wait, whichever comes
 * first. Time per sample does not depend on how many wait.
 * Samples of one push may share prefixes (`shared`, `order`), those of different pushes share nothing. A taken plan's
 * ids are in the order of arrival, in each push that of the trees; two of them share the least `shared` of the samples
 * between. */
RAVEL_API ravel_status ravel_planner_push(ravel_planner *planner, const ravel_plan_input *input, const int64_t *ids,
                                          ravel_error *err);
/* The time now and the version of the weights, in the caller's units; neither goes back. A sample whose deadline has
 * come, or that would be too stale at the next version, is taken by the next take, in a micro-step that may be less
 * full. */
RAVEL_API void ravel_planner_advance(ravel_planner *planner, int64_t now, int64_t version);
/* One plan of the micro-steps that are ready (flush = 0: E_END when there are none yet) or of everything that is
 * left (flush = 1: the end of an update; the micro-steps of the update so far are brought to the multiple and the
 * minimum; E_END when nothing is left, which ends the update as well). E_END is no error and leaves `err` as it was.
 * plan->samples index the array of ids that ravel_planner_ids returns, which lives as long as the plan. Samples that
 * fit no bin (oversize = skip) are listed in the next plan that is taken; a flush may return a plan without micro-steps
 * for their sake. Groups on ranks keep the rank of their first sample to the end of the update. For ravel_plan_check a
 * taken plan is a plan of its own samples, with multiple 1 and min_micro_steps 0. */
RAVEL_API ravel_status ravel_planner_take(ravel_planner *planner, int32_t flush, ravel_plan **plan, ravel_error *err);
/* The caller's id of each of the plan's samples: [plan->count]; NULL for a plan of ravel_plan_create. */
RAVEL_API const int64_t *ravel_planner_ids(const ravel_plan *plan);
/* Samples pushed and not yet taken. */
RAVEL_API int64_t ravel_planner_waiting(const ravel_planner *planner);

/* Figures of all takes so far. Waiting times are by length: long samples should wait no longer than short ones. */
#define RAVEL_WAIT_CLASSES 8
typedef struct ravel_planner_report {
    size_t size;
    int64_t samples, micro_steps;
    int64_t forced;                       /* micro-steps that a deadline or the version forced */
    int64_t count[RAVEL_WAIT_CLASSES];    /* samples of up to 128, 512, 2k, 8k, 32k, 128k, 512k tokens, and longer */
    double wait_mean[RAVEL_WAIT_CLASSES]; /* time from push to take */
    int64_t wait_max[RAVEL_WAIT_CLASSES];
    int64_t steps_max; /* micro-steps that were taken while a sample waited, at most */
    double stale_mean; /* versions by which a sample was behind when it was taken */
    int64_t stale_max;
} ravel_planner_report;
RAVEL_API void ravel_planner_get_report(const ravel_planner *planner, ravel_planner_report *report);

#ifdef __cplusplus
}
#endif
#endif
