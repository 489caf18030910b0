/* The board: bins on their seats, open for exchanges. Bin b is micro-step b / dp of rank b % dp; each bin's list has a
 * little room, so that a sample can move without anything else moving.
 *
 *     items   [ 4 9 2 . . | 7 1 . . | 3 8 5 6 . . | ... ]
 *               ^start[0]   ^start[1]
 *
 * Packed layout only. */
#ifndef RAVEL_PLAN_BOARD_H
#define RAVEL_PLAN_BOARD_H

#include "plan/internal.h"

enum { RAVEL__BOARD_ROOM = 3 };

typedef struct ravel__board {
    const ravel__rules *rules;
    const ravel__pool *pool;
    int32_t dp, bins;
    int32_t *start; /* [bins + 1] */
    int32_t *rows;
    int32_t *items;
    int64_t *size;
    int64_t *cost;
} ravel__board;

/* Bin order[b] of the lists takes seat b. */
ravel_status ravel__board_make(const ravel__job *job, const ravel__lists *lists, const int32_t *order, int32_t bins,
                               ravel__board *board);
void ravel__board_seats(const ravel__board *board, int32_t *seat);
/* Sum over micro-steps of the dearest bin. */
int64_t ravel__board_time(const ravel__board *board);

#endif
