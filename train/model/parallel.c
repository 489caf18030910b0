#include "train/model/parallel.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

enum { TAG_RING = 31 }; /* and the tag after it */

train__link train__link_over(ravel_comm *comm, const train__exchange *exchange) {
    train__link link = {.exchange = exchange};
    train__link_set(&link, comm);
    return link;
}

void train__link_set(train__link *link, ravel_comm *comm) {
    link->comm = comm;
    link->ranks = comm ? ravel_comm_size(comm) : 1;
    link->rank = comm ? ravel_comm_rank(comm) : 0;
    TRAIN_ASSERT(link->ranks >= 1 && link->rank >= 0 && link->rank < link->ranks);
}

void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype) {
    TRAIN_ASSERT(count >= 0 && (count == 0 || x));
    if (link->ranks == 1 || link->status) return;
    double begun = train__exchange_clock(link->exchange);
    link->status = train__exchange_sum(link->exchange, link->comm, x, count, dtype, &link->error);
    link->seconds += train__now() - begun;
}

void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype) {
    TRAIN_ASSERT(link->rank >= 0 && link->rank < link->ranks && count >= 0);
    if (link->ranks == 1 || link->status) return;
    double begun = train__exchange_clock(link->exchange);
    link->status = train__exchange_gather(link->exchange, link->comm, mine, all, (train__pieces){.each = count}, dtype,
                                          &link->error);
    link->seconds += train__now() - begun;
}

void train__link_scatter(train__link *link, const void *all, void *mine, int64_t count, int32_t dtype) {
    TRAIN_ASSERT(count >= 0 && (link->ranks == 1 || all != mine));
    if (link->ranks == 1 || link->status) return;
    double begun = train__exchange_clock(link->exchange);
    link->status = train__exchange_scatter(link->exchange, link->comm, all, mine, (train__pieces){.each = count}, dtype,
                                           &link->error);
    link->seconds += train__now() - begun;
}

void train__link_begin(train__link *link, train__shift *shift, int32_t tag, int32_t hop, const void *out, void *in,
                       int64_t count, int32_t dtype) {
    int32_t next = (link->rank + hop) % link->ranks, last = (link->rank + link->ranks - hop) % link->ranks;
    TRAIN_ASSERT(hop > 0 && hop < link->ranks && (count == 0 || out != in));
    TRAIN_ASSERT(tag >= 0 && 2 * tag + 1 < TRAIN__SHIFT_PLACES && count >= 0);
    *shift = (train__shift){0};
    if (link->ranks == 1 || link->status) return;
    double begun = train__exchange_clock(link->exchange);
    train__parcel parcel = {count, dtype, last, TAG_RING + tag, 2 * tag};
    link->status = train__exchange_receive(link->exchange, link->comm, in, &parcel, &shift->in, &link->error);
    parcel.peer = next;
    parcel.place++;
    if (!link->status)
        link->status = train__exchange_send(link->exchange, link->comm, out, &parcel, &shift->out, &link->error);
    if (!link->status) link->status = train__exchange_launch(link->exchange, &shift->in, &link->error);
    if (!link->status) link->status = train__exchange_launch(link->exchange, &shift->out, &link->error);
    link->seconds += train__now() - begun;
}

void train__link_finish(train__link *link, train__shift *shift) {
    double begun = train__now();
    train__message *messages[] = {&shift->in, &shift->out};
    for (int i = 0; i < 2; i++) {
        ravel_status ended = train__exchange_end(link->exchange, messages[i], link->status ? NULL : &link->error);
        if (!link->status) link->status = ended;
    }
    link->seconds += train__now() - begun;
}

ravel_status train__link_status(train__link *link, ravel_error *err) {
    ravel_status status = link->status;
    if (status) (void)ravel_error_set(err, status, "%s", link->error.message);
    return status;
}
