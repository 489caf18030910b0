#include "tests/unit/comm_ranks.h"

#include "tests/unit/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_job {
    pthread_t thread;
    rank_open_fn open;
    void *world;
    int32_t rank;
    ravel_rank_fn work;
    void *user;
    ravel_status status;
    ravel_error err;
} rank_job;

static void *run_rank(void *at) {
    rank_job *r = at;
    ravel_comm *comm = NULL;
    r->status = r->open(r->world, r->rank, &comm, &r->err);
    if (!r->status) r->status = r->work(comm, r->user, &r->err);
    if (r->status && comm) ravel_comm_abort(comm, &r->err);
    ravel_comm_free(comm);
    return NULL;
}

ravel_status comm_ranks_run(int32_t count, rank_open_fn open, void *world, ravel_rank_fn work, void *user,
                            ravel_error *err) {
    rank_job *ranks = calloc((size_t)count, sizeof *ranks);
    ravel_status status = RAVEL_OK;
    pthread_attr_t small;
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, 256 << 10);
    for (int32_t i = 0; i < count; i++) {
        ranks[i] = (rank_job){.open = open, .world = world, .rank = i, .work = work, .user = user};
        (void)pthread_create(&ranks[i].thread, &small, run_rank, &ranks[i]);
    }
    for (int32_t i = 0; i < count; i++) (void)pthread_join(ranks[i].thread, NULL);
    for (int32_t i = 0; i < count; i++)
        if (ranks[i].status && (!status || status == RAVEL_E_PEER_LOST)) status = ranks[i].status, *err = ranks[i].err;
    (void)pthread_attr_destroy(&small);
    free(ranks);
    return status;
}

ravel_status comm_body_run(ravel_comm *comm, void *user, ravel_error *err) {
    body_job *b = user;
    return b->body->run(comm, &b->job, err);
}

const comm_body *comm_body_next(const comm_body *body) {
    while (check_repeated() && body->name && strcmp(body->name, "random operations") != 0) body++;
    return body;
}
