/* Ranks as threads, each with a world of its own, as processes would have: for back ends between processes. */
#ifndef TESTS_COMM_RANKS_H
#define TESTS_COMM_RANKS_H

#include "tests/unit/comm_body.h"

/* Opens rank `rank` of a world. */
typedef ravel_status (*rank_open_fn)(void *world, int32_t rank, ravel_comm **comm, ravel_error *err);

/* As ravel_threads_run over `count` worlds. The first failure that is not another rank's is the result. */
ravel_status comm_ranks_run(int32_t count, rank_open_fn open, void *world, ravel_rank_fn work, void *user,
                            ravel_error *err);

/* One of comm_bodies as the work of a rank: `user` is a body_job. */
typedef struct body_job {
    comm_job job;
    const comm_body *body;
} body_job;

/* The first row of comm_bodies at or after `body` that the running test wants: in a second pass, with another seed, only
 * the random operations. */
const comm_body *comm_body_next(const comm_body *body);

ravel_status comm_body_run(ravel_comm *comm, void *user, ravel_error *err);

#endif
