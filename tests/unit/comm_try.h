/* One operation of a communicator against a plain reference: each rank calls comm_try_... with the same `op`, from which it
 * computes what every other rank sends. E_INTERNAL and a sentence where a result is not what the reference says. `later`: the
 * non-blocking call and a wait. `most`: counts are drawn up to it. */
#ifndef TESTS_COMM_TRY_H
#define TESTS_COMM_TRY_H

#include <ravel/comm.h>

enum { MOVE_TYPES = 5, REDUCE_TYPES = 12 };
extern const int32_t comm_move_types[], comm_reduce_types[];

/* The bytes [first, first + count) of what `rank` sends in operation `op`, written and compared. */
void comm_fill(uint8_t *to, uint64_t op, int32_t rank, int64_t first, int64_t count);
ravel_status comm_same(const uint8_t *got, uint64_t op, int32_t rank, int64_t first, int64_t count, const char *what,
                       ravel_error *err);
/* A count that every rank can compute: often 0, mostly small. */
int64_t comm_count(uint64_t op, int32_t a, int32_t b, int64_t most);

ravel_status comm_try_broadcast(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t root,
                                int32_t later, ravel_error *err);
ravel_status comm_try_allgather(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t in_place,
                                ravel_error *err);
ravel_status comm_try_allgatherv(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t later,
                                 ravel_error *err);
ravel_status comm_try_alltoall(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, ravel_error *err);
ravel_status comm_try_alltoallv(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t later,
                                ravel_error *err);

ravel_status comm_try_allreduce(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t reduce,
                                int32_t in_place, ravel_error *err);
ravel_status comm_try_reduce(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t reduce, int32_t root,
                             ravel_error *err);
ravel_status comm_try_reduce_scatter(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t reduce,
                                     int32_t ragged, ravel_error *err);

ravel_status comm_try_ring(ravel_comm *comm, uint64_t op, int64_t most, ravel_error *err);
ravel_status comm_try_ping_pong(ravel_comm *comm, uint64_t op, int64_t most, ravel_error *err);
ravel_status comm_try_ibarrier(ravel_comm *comm, ravel_error *err);

#endif
