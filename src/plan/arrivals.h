/* Arrivals: the samples that the planner holds between pushes and takes.
 *
 *     push ->  waiting: one row per sample, in order of arrival; slots, deadlines and versions are added up on the way
 *     take ->  as many micro-steps as the waiting slots fill: the oldest samples, planned by the main solver
 *     flush -> all waiting samples, and fillers up to the multiple and the minimum of the update
 *
 * A take only compares sums, unless there is enough for a micro-step or a deadline has come; then it plans the taken
 * samples. So the cost per arrival does not grow with the number of waiting samples.
 *
 * Groups that are to stay on one rank get it when their first sample arrives, the one with the least cost so far, and
 * keep it to the end of the update. */
#ifndef RAVEL_PLAN_ARRIVALS_H
#define RAVEL_PLAN_ARRIVALS_H

#include "plan/internal.h"

/* The columns of waiting samples. X(type, name). */
#define RAVEL__WAITING_LIST(X) \
    X(int64_t, lengths)        \
    X(int64_t, prompts)        \
    X(int64_t, responses)      \
    X(int64_t, costs)          \
    X(int64_t, groups)         \
    X(int64_t, ids)            \
    X(int64_t, versions)       \
    X(int64_t, deadlines)      \
    X(int64_t, arrived)        \
    X(int64_t, arrived_steps)  \
    X(int64_t, slots)          \
    X(int64_t, shared)         \
    X(int32_t, homes)          \
    X(int32_t, ranks)

typedef struct ravel__waiting {
#define X(type, name) type *name;
    RAVEL__WAITING_LIST(X)
#undef X
    int64_t count, room;
} ravel__waiting;

/* Group -> rank, open addressing. */
typedef struct ravel__seats {
    int64_t *group;
    int32_t *rank; /* -1: free */
    int64_t count, room;
} ravel__seats;

struct ravel_planner {
    ravel_plan_options options;
    char *widths, *prices; /* texts of the options */
    ravel_planner_options own;
    int64_t cap; /* units in a bin */
    ravel__waiting waiting;
    int64_t volume;                           /* units of all waiting samples that fit */
    int64_t *rank_volume;                     /* [dp] the same by rank, where groups are bound to ranks */
    int64_t wait_for;                         /* a take that failed is not tried again below this volume */
    int64_t now, version;                     /* ravel_planner_advance */
    int64_t next_deadline;                    /* the earliest of the waiting samples */
    int64_t oldest_version;                   /* the lowest of the waiting samples */
    int32_t has_costs, has_groups, has_homes; /* which columns are in use, by the first push */
    int32_t has_trees;                        /* some push of the update shares prefixes */
    int32_t pushed;                           /* anything since the last flush */
    int64_t next_id, steps;                   /* micro-steps of the update so far */
    int64_t steps_ever;
    ravel__seats seats;
    ravel__u128 *total; /* [dp] cost that went to each rank in this update; a group's cost counts when it arrives */
    ravel_planner_report report;
};

/* Prefix trees: waiting rows are in tree order, push after push. What a row shares with the last of those before it
 * that are still there is the least of what was between them. `rows`: the ones that are, rising; shared[count] is
 * theirs, and may be w->shared. */
void ravel__waiting_share(const ravel__waiting *w, const int32_t *rows, int64_t count, int64_t *shared);
/* The slot that a waiting row takes, in units: with trees that of its own tokens, at least one. */
int64_t ravel__waiting_slot(const ravel_planner *planner, int64_t length, int64_t shared);

/* Rows as an input. */
ravel_plan_input ravel__waiting_input(const ravel_planner *planner, const ravel__waiting *waiting);
/* Recounts sums, deadlines and versions of the waiting samples. */
void ravel__waiting_count(ravel_planner *planner);

#endif
