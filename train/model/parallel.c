#include "train/model/parallel.h"

#include <string.h>

enum { TAG_RING = 31 };

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

void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype) {
    if (link->ranks == 1 || link->status) return;
    link->status = ravel_comm_allreduce(link->comm, x, x, count, dtype, RAVEL_SUM, &link->error);
}

void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype) {
    if (link->ranks == 1 || link->status) return;
    link->status = ravel_comm_allgather(link->comm, mine, all, count, dtype, &link->error);
}

void train__link_shift(train__link *link, const void *out, void *in, int64_t count, int32_t dtype) {
    ravel_request *requests[2] = {NULL, NULL};
    int32_t next = (link->rank + 1) % link->ranks, last = (link->rank + link->ranks - 1) % link->ranks;
    if (link->ranks == 1 || link->status) return;
    link->status = ravel_comm_irecv(link->comm, in, count, dtype, last, TAG_RING, &requests[0], &link->error);
    if (!link->status)
        link->status = ravel_comm_isend(link->comm, out, count, dtype, next, TAG_RING, &requests[1], &link->error);
    ravel_status waited = ravel_request_wait_all(requests, 2, link->status ? NULL : &link->error);
    if (!link->status) link->status = waited;
}

ravel_status train__link_status(train__link *link, ravel_error *err) {
    ravel_status status = link->status;
    if (status) (void)ravel_error_set(err, status, "%s", link->error.message);
    return status;
}
