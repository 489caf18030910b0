#include "train/model/parallel.h"

#include <time.h>

enum { TAG_RING = 31 }; /* and the tag after it */

train__link train__link_over(ravel_comm *comm) {
    train__link link = {0};
    train__link_set(&link, comm);
    return link;
}

void train__link_set(train__link *link, ravel_comm *comm) {
    link->comm = comm;
    link->ranks = comm ? ravel_comm_size(comm) : 1;
    link->rank = comm ? ravel_comm_rank(comm) : 0;
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype) {
    if (link->ranks == 1 || link->status) return;
    double begun = now();
    link->status = ravel_comm_allreduce(link->comm, x, x, count, dtype, RAVEL_SUM, &link->error);
    link->seconds += now() - begun;
}

void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype) {
    if (link->ranks == 1 || link->status) return;
    double begun = now();
    link->status = ravel_comm_allgather(link->comm, mine, all, count, dtype, &link->error);
    link->seconds += now() - begun;
}

void train__link_scatter(train__link *link, const void *all, void *mine, int64_t count, int32_t dtype) {
    if (link->ranks == 1 || link->status) return;
    double begun = now();
    link->status = ravel_comm_reduce_scatter(link->comm, all, mine, count, dtype, RAVEL_SUM, &link->error);
    link->seconds += now() - begun;
}

void train__link_begin(train__link *link, train__shift *shift, int32_t tag, const void *out, void *in, int64_t count,
                       int32_t dtype) {
    int32_t next = (link->rank + 1) % link->ranks, last = (link->rank + link->ranks - 1) % link->ranks;
    *shift = (train__shift){0};
    if (link->ranks == 1 || link->status) return;
    double begun = now();
    link->status =
        ravel_comm_irecv(link->comm, in, count, dtype, last, TAG_RING + tag, &shift->requests[0], &link->error);
    if (!link->status)
        link->status =
            ravel_comm_isend(link->comm, out, count, dtype, next, TAG_RING + tag, &shift->requests[1], &link->error);
    link->seconds += now() - begun;
}

void train__link_finish(train__link *link, train__shift *shift) {
    double begun = now();
    ravel_status waited = ravel_request_wait_all(shift->requests, 2, link->status ? NULL : &link->error);
    if (!link->status) link->status = waited;
    *shift = (train__shift){0};
    link->seconds += now() - begun;
}

ravel_status train__link_status(train__link *link, ravel_error *err) {
    ravel_status status = link->status;
    if (status) (void)ravel_error_set(err, status, "%s", link->error.message);
    return status;
}
