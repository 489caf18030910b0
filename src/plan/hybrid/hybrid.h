/* Hybrid context parallelism: groups of different widths in one micro-step.
 *
 *     widths.c    from the options: widths, prices, slot multiples
 *     bounds.c    four lower bounds; the canonical one is the strongest
 *     shelf.c     one micro-step: groups of remaining samples that all take at most a given time
 *     balance.c   trades of samples between the groups of a micro-step
 *     solve.c     an update: micro-steps one after another, several ways, the best is kept
 *     trees.c     an update of prefix trees: pieces of trees are placed like samples
 *     emit.c      a finished plan's groups, its figures, and their check
 *
 * A sample of cost c on a group of width k takes c / k * (1 + price(k) / 1000); a group takes the sum of its samples, a
 * micro-step as long as its slowest group plus the overhead. Widths divide one another, so that groups placed widest
 * first begin at multiples of their width: "sum of widths <= pool" is all that has to be kept. */
#ifndef RAVEL_PLAN_HYBRID_H
#define RAVEL_PLAN_HYBRID_H

#include "plan/internal.h"

enum { RAVEL__PRICE_MOST = 1000000 }; /* per mille */

/* ---- options ------------------------------------------------------------------------------------------------- */

/* Checks the options of a hybrid plan that do not depend on the input, and sets dp to the pool. */
ravel_status ravel__hybrid_options_check(ravel_plan_options *options, ravel_error *err);
ravel_status ravel__widths_make(const ravel_plan_options *options, ravel__widths *widths, ravel_error *err);

/* Time of a group of width index w that holds samples of this cost. */
static inline int64_t ravel__group_time(const ravel__widths *widths, int64_t cost, int32_t w) {
    int64_t per = 1000 * (int64_t)widths->width[w];
    return (cost * (1000 + widths->price[w]) + per - 1) / per;
}

/* The most cost that a group of width index w can hold in the given time. */
static inline int64_t ravel__group_cost(const ravel__widths *widths, int64_t time, int32_t w) {
    ravel__i128 cost = (ravel__i128)time * 1000 * widths->width[w] / (1000 + widths->price[w]);
    return cost > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)cost;
}

static inline int64_t ravel__width_slot(const ravel__widths *widths, int64_t length, int32_t w) {
    int64_t multiple = widths->multiple[w], mask = multiple - 1;
    if (!(multiple & mask)) return (length + mask) & ~mask; /* a power of two, as nearly always */
    return (length + mask) / multiple * multiple;
}

/* a * b / c; without a division of 128 bits where it can be. */
static inline int64_t ravel__scale(int64_t a, int64_t b, int64_t c) {
    int64_t product;
    if (!__builtin_mul_overflow(a, b, &product)) return product / c;
    return (int64_t)((ravel__i128)a * b / c);
}

/* ---- the samples of an update -------------------------------------------------------------------------------- */

/* Largest cost first, ties by row. */
typedef struct ravel__tasks {
    const ravel__rules *rules;
    const ravel__widths *widths;
    ravel__arena *arena;
    ravel_error *err;
    int32_t count;
    int32_t *row;
    int64_t *length, *cost;
    int64_t *worth;    /* cost at a good width, and the share of a micro-step's overhead: what placing it is worth */
    uint8_t *fit;      /* index of the narrowest width that holds the sample */
    int32_t by_length; /* lengths fall with costs, as with every cost model */
    int32_t one_slot;  /* a group is one slot: lengths are rounded together (trees) */
    int64_t longest;   /* a time that some task is known to need */
} ravel__tasks;

/* Tasks that are no samples: rows count from 0. A width must hold `whole` tokens. */
typedef struct ravel__task_list {
    const int64_t *length, *cost, *whole;
} ravel__task_list;
ravel_status ravel__tasks_of(const ravel__rules *rules, const ravel__task_list *list, int32_t count,
                             ravel__arena *arena, ravel__tasks *tasks, ravel_error *err);

ravel_status ravel__tasks_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                               int32_t count, ravel__arena *arena, ravel__tasks *tasks, ravel_error *err);

/* Index of the width of least work whose group cost fits limit[w]; -1: none. */
int32_t ravel__task_width(const ravel__tasks *tasks, int32_t task, const int64_t *limit);
/* limit[w]: the most cost of a group of width index w within `time`. */
void ravel__time_limits(const ravel__widths *widths, int64_t time, int64_t *limit);
/* Sets `worth` for micro-steps of about this time. */
void ravel__tasks_value(ravel__tasks *tasks, int64_t time);

/* ---- bounds ---------------------------------------------------------------------------------------------------- */

/* Adds the bounds of an update. *time: the canonical bound without overheads; *steps: of micro-steps. */
ravel_status ravel__hybrid_bounds(const ravel__tasks *tasks, ravel_hybrid *bounds, ravel_plan_stats *stats,
                                  int64_t *time, int64_t *steps);

/* ---- one micro-step -------------------------------------------------------------------------------------------- */

typedef struct ravel__group {
    int64_t cost, slots;
    int32_t width; /* index */
    int32_t first; /* of its members, in the shelf's list */
    int32_t count;
    int32_t step;
} ravel__group;

typedef struct ravel__shelf {
    int64_t time;  /* of the slowest group */
    int64_t value; /* cost of all that it holds, and its share of the overhead */
    int32_t groups, members;
    int32_t ranks_free;
    int32_t reserved;
    ravel__group *group; /* [pool] */
    int32_t *member;     /* [tasks] places in the list of remaining tasks */
} ravel__shelf;

/* The remaining tasks: `left` lists them, largest cost first, their costs and lengths beside them. */
typedef struct ravel__rest {
    const ravel__tasks *tasks;
    int32_t count;
    int32_t *left;
    int64_t *cost, *length;
    int32_t *skip; /* [count + 1] skip[i] leads to the first remaining place at or after i; i itself between fills */
} ravel__rest;

/* Fills a micro-step with groups that take at most `time`, longest samples first. Groups of more than one rank take
 * short samples only up to fill / 16 of `time`, since those cost less on one rank. */
void ravel__shelf_fill(ravel__rest *rest, int64_t time, int32_t fill, ravel__shelf *shelf);

/* ---- a plan of an update --------------------------------------------------------------------------------------- */

typedef struct ravel__layout {
    int64_t time; /* overheads included */
    int32_t steps, groups;
    ravel__group *group; /* [tasks] */
    int32_t *of;         /* [tasks] group of each task */
} ravel__layout;

/* Trades samples between the groups of each micro-step, so that its slowest group becomes faster. */
ravel_status ravel__layout_balance(const ravel__tasks *tasks, ravel__layout *layout, int64_t tries_per_task);
/* The time of each group, micro-step and of all; updates layout->time. */
int64_t ravel__layout_time(const ravel__tasks *tasks, ravel__layout *layout, int64_t *step_time);

/* First ranks of all groups, widest first in each micro-step; widens groups if cp-empty says so. `first` by group. */
void ravel__layout_place(const ravel__tasks *tasks, ravel__layout *layout, int32_t *first);

/* Solves one update into `layout`. */
ravel_status ravel__hybrid_solve(ravel__tasks *tasks, int64_t bound_time, int64_t bound_steps, ravel__layout *layout);

/* ---- the plan --------------------------------------------------------------------------------------------------- */

/* The same two of prefix trees: bounds of a forest, and its update. `shared`: what each row shares with the one
 * before. */
typedef struct ravel__forest ravel__forest;
ravel_status ravel__tree_tasks_bound(const ravel__rules *rules, const ravel__forest *forest, ravel__arena *arena,
                                     ravel_hybrid *bounds, ravel_plan_stats *stats, int64_t *time, int64_t *steps,
                                     ravel_error *err);
ravel_status ravel__hybrid_trees(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                 const int64_t *shared, int32_t count, int64_t first_step, ravel__arena *arena,
                                 ravel__draft *draft, int64_t *steps, ravel_error *err);

/* A hybrid update: bins and group widths into the draft; returns the micro-steps in *steps. */
ravel_status ravel__hybrid_update(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                  int32_t count, int64_t first_step, ravel__arena *arena, ravel__draft *draft,
                                  int64_t *steps, ravel_error *err);
/* Group arrays of a plan whose bins are known. */
void ravel__hybrid_emit(const ravel__rules *rules, const ravel__draft *draft, ravel__plan *plan);
/* The group's figures at bin b: slots and time of its samples. */
void ravel__hybrid_measure(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                           int64_t *bin_tokens, int64_t *bin_slots, int64_t *bin_costs, ravel_plan_stats *stats);
ravel_status ravel__hybrid_check(const ravel__rules *rules, const ravel_plan_input *input, const ravel_plan *plan,
                                 ravel_error *err);

#endif
