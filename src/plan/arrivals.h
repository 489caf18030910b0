/* Arrivals: what the planner holds between pushes and takes.
 *
 *     push ->  waiting: rows of (length, prompt, response, cost, group, home, rank, id), in order of arrival
 *     take ->  pack all that waits; bins that are full enough make micro-steps, the rest goes on waiting
 *     flush -> all that waits, and fillers up to the multiple and the minimum of the update
 *
 * Groups that are to stay on one rank get it when their first sample arrives, the one with the least cost so far, and
 * keep it to the end of the update. */
#ifndef RAVEL_PLAN_ARRIVALS_H
#define RAVEL_PLAN_ARRIVALS_H

#include "plan/internal.h"

/* The columns of what waits. X(type, name). */
#define RAVEL__WAITING_LIST(X) \
    X(int64_t, lengths)        \
    X(int64_t, prompts)        \
    X(int64_t, responses)      \
    X(int64_t, costs)          \
    X(int64_t, groups)         \
    X(int64_t, ids)            \
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
    int64_t full; /* units from which a bin is full enough */
    ravel__waiting waiting;
    int32_t has_costs, has_groups, has_homes; /* which columns are in use, by the first push */
    int32_t pushed;                           /* anything since the last flush */
    int64_t next_id, steps;                   /* micro-steps of the update so far */
    ravel__seats seats;
    int64_t *total; /* [dp] cost that went to each rank in this update; a new group's cost counts when it is seated */
};

/* What waits, as an input. */
ravel_plan_input ravel__waiting_input(const ravel_planner *planner);

#endif
