/* Prefix trees in the planner.
 *
 *     input.shared      updates.c deals samples to updates; walk.c lists each update's in tree order
 *        v
 *     forest            the leaves of one problem: samples that no other one covers, in tree order (forest.c)
 *        |  pack.c      few bins, few cuts;  cut.c  the order cut into runs;  bins.c  bins as spans of leaves
 *        |  balance.c   subtrees moved between bins
 *        v
 *     seat              a bin for each leaf, and so for each sample (solve.c)
 *
 * No nodes are kept. With L the lengths and H what each leaf shares with the one before it, what i < j share is the
 * least H of i + 1 .. j; a set of leaves in order computes sum(L - s) tokens and costs sum(c(L) - c(s)), s being what
 * each shares with the one before it in the set. bounds.c has what no plan can be below. */
#ifndef RAVEL_PLAN_TREE_H
#define RAVEL_PLAN_TREE_H

#include "plan/internal.h"

/* ---- walk.c --------------------------------------------------------------------------------------------------- */

typedef struct ravel__tree_order {
    int32_t count;
    const int64_t *shared; /* [count] by place */
    const int32_t *order;  /* [count] the row of each place; NULL: 0, 1, 2, ... */
} ravel__tree_order;

/* Lists the rows of every bin in tree order, and what each shares with the one before it in its bin. bin[count] by row,
 * -1: in none. Bin b's begin at next[b], which is advanced to its end. */
ravel_status ravel__tree_walk(const ravel__tree_order *tree, const int32_t *bin, int32_t bins, int32_t *next,
                              ravel__arena *arena, int32_t *samples, int64_t *shared, ravel_error *err);
/* The same for bins whose offsets are given, by the input's order. */
ravel_status ravel__tree_list(const ravel_plan_input *input, const int32_t *bin, int64_t bins, const int64_t *offsets,
                              ravel__arena *arena, int32_t *samples, int64_t *shared, ravel_error *err);

/* ---- forest.c ------------------------------------------------------------------------------------------------- */

/* A fork, a leaf, or the top. Nodes are listed children first, a subtree being one run: the last child of node v is v -
 * 1, the one before a child c is c - size(c). */
typedef struct ravel__tree_node {
    int64_t depth, path; /* tokens of the way from the top to the node's end, and their cost */
    int32_t from, to;    /* its leaves: from .. to - 1 */
    int32_t parent;      /* -1: the top, which is the last */
    int32_t size;        /* nodes of the subtree */
} ravel__tree_node;

typedef struct ravel__forest {
    const ravel__rules *rules;
    int64_t cap;     /* tokens in a bin */
    int64_t most;    /* leaves in a bin: max_samples, where that may bind */
    int32_t samples; /* of the problem */
    int32_t count;   /* leaves */
    int32_t *leaf;   /* [samples] the leaf that covers each sample */
    /* [count + 1], a 0 at the end */
    int64_t *length, *shared; /* shared: with the leaf before, 0 for the first */
    int64_t *cost, *twice;    /* of length tokens, and of shared tokens */
    ravel__tree_node *node;   /* [nodes] */
    int32_t nodes;
} ravel__forest;

/* Samples in tree order, each of rows[i], sharing shared[i] with the one before. */
ravel_status ravel__forest_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                const int64_t *shared, int32_t count, ravel__arena *arena, ravel__forest *forest,
                                ravel_error *err);

/* ---- bounds.c ------------------------------------------------------------------------------------------------- */

typedef struct ravel__tree_bound {
    int64_t bins, steps;
    int64_t time; /* of `dp` ranks, overheads aside */
} ravel__tree_bound;

ravel_status ravel__forest_bound(const ravel__forest *forest, int32_t dp, ravel__arena *arena, ravel__tree_bound *bound,
                                 ravel_error *err);
/* Adds them to the figures of a plan. */
void ravel__tree_bound_add(const ravel__rules *rules, const ravel__tree_bound *bound, ravel_plan_stats *stats);

/* ---- cut.c ---------------------------------------------------------------------------------------------------- */

/* The order cut into at most `bins` runs under the cap, each of at most `limit` cost. Returns the number of runs, or
 * bins + 1 if they are not enough. bin[count] by leaf; NULL: only count. */
int32_t ravel__tree_cut(const ravel__forest *forest, int64_t limit, int32_t bins, int32_t *bin);

/* ---- solve.c -------------------------------------------------------------------------------------------------- */

/* The samples of an update in tree order, and where scratch and errors go. */
typedef struct ravel__tree_job {
    const ravel__rules *rules;
    const ravel_plan_input *input;
    const int32_t *rows;   /* [count] */
    const int64_t *shared; /* [count] with the one before in the update */
    int32_t count;
    const int32_t *ranks; /* by row: the rank of its group, if that is decided already; else NULL */
    ravel__arena *arena;
    ravel_error *err;
} ravel__tree_job;

/* ranks.c: each sample with its cost in its bin; ranks for bins; and the whole, where groups stay on ranks. */
ravel_status ravel__tree_pool(const ravel__tree_job *job, const int32_t *seat, int64_t bins, ravel__pool *pool);
ravel_status ravel__tree_place(const ravel__tree_job *job, int64_t steps, int32_t *seat);
/* named.c: what others do, options.tree_method. */
ravel_status ravel__tree_solve_named(const ravel__tree_job *job, const ravel__forest *forest, int32_t *seat,
                                     ravel__solution *solution);
ravel_status ravel__tree_solve_ranks(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution);
/* solve.c: the bins of one rank split until there are `bins`, as far as there are leaves. bin[count] by sample. */
ravel_status ravel__tree_fill_rank(const ravel__tree_job *job, int64_t bins, int32_t *bin);

/* Solves an update: seat[count] (micro-step * dp + rank), with its bounds. */
ravel_status ravel__tree_solve(const ravel__tree_job *job, int32_t *seat, ravel__solution *solution,
                               ravel__tree_bound *bound);

#endif
