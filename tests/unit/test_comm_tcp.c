/* The tcp back end: ranks that meet at a rendezvous. They are threads here, each with a world of its own, which is what
 * processes would be; tests/suites/34-tcp.sh does it with processes. */
#include "tests/unit/check.h"
#include "tests/unit/comm_body.h"

#include "base/clock.h"
#include "comm/launch.h"
#include "comm/tcp.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- ranks as threads ----------------------------------------------------------------------------------- */

typedef struct tcp_rank {
    pthread_t thread;
    ravel_comm_options options;
    ravel_rank_fn work;
    void *user;
    ravel_status status;
    ravel_error err;
} tcp_rank;

static void *run_rank(void *at) {
    tcp_rank *r = at;
    ravel_comm *comm = NULL;
    r->status = ravel_comm_tcp(&r->options, &comm, &r->err);
    if (!r->status) r->status = r->work(comm, r->user, &r->err);
    if (r->status && comm) ravel_comm_abort(comm, &r->err);
    ravel_comm_free(comm);
    return NULL;
}

/* As ravel_threads_run, over TCP. The first failure of a rank is the result. */
static ravel_status run_ranks(int32_t count, const ravel_comm_options *options, ravel_rank_fn work, void *user,
                              ravel_error *err) {
    tcp_rank *ranks = calloc((size_t)count, sizeof *ranks);
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < count; i++) {
        ranks[i] = (tcp_rank){.options = *options, .work = work, .user = user};
        ranks[i].options.ranks = count, ranks[i].options.rank = options->rank < 0 && i > 0 ? -1 : i;
        (void)pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]);
    }
    for (int32_t i = 0; i < count; i++) (void)pthread_join(ranks[i].thread, NULL);
    for (int32_t i = 0; i < count; i++)
        if (ranks[i].status && (!status || status == RAVEL_E_PEER_LOST)) status = ranks[i].status, *err = ranks[i].err;
    if (getenv("SHOW"))
        for (int32_t i = 0; i < count; i++)
            if (ranks[i].status) printf("rank %d: %s\n", i, ranks[i].err.message);
    free(ranks);
    return status;
}

static ravel_comm_options options_at(const char *rendezvous, double timeout) {
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.rendezvous = rendezvous;
    o.timeout = timeout;
    o.rank = 0;
    return o;
}

/* A place that no other test uses. */
static const char *fresh_place(char *text, size_t bytes) {
    static int count;
    (void)snprintf(text, bytes, "unix:@ravel-test-%d-%d", (int)getpid(), ++count);
    return text;
}

typedef struct body_job {
    comm_job job;
    const comm_body *body;
} body_job;

static ravel_status run_body(ravel_comm *comm, void *user, ravel_error *err) {
    body_job *b = user;
    return b->body->run(comm, &b->job, err);
}

TEST(comm_tcp_runs_the_body) {
    static const int32_t sizes[] = {1, 2, 3, 5, 8};
    char place[64];
    for (int i = 0; i < 5; i++)
        for (const comm_body *body = comm_bodies; body->name; body++)
            for (int check = 1; check >= 0; check--) {
                body_job b = {{check_seed(), (int32_t)check_scale(60, 1000), 700, !check, 0}, body};
                ravel_error err = RAVEL_ERROR_INIT;
                ravel_comm_options o = options_at(fresh_place(place, sizeof place), 60);
                o.check = check;
                ravel_status status = run_ranks(sizes[i], &o, run_body, &b, &err);
                if (status)
                    check_fail(__FILE__, __LINE__, "%d ranks, %s: %s: %s", sizes[i], body->name,
                               ravel_status_name(status), err.message);
            }
}
