/* The back end between processes over a wire that is made up (fake_wire.h): the body that every back end runs, a transport
 * that fails, worlds side by side, and thousands of ranks whose frames are counted. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/fake_wire.h"

#include "comm/remote/remote.h"

#include <stdlib.h>

/* ---- ranks as threads ----------------------------------------------------------------------------------- */

typedef struct wire_world {
    fake_world *world;
    double timeout;
} wire_world;

static ravel_status open_rank(void *world, int32_t rank, ravel_comm **comm, ravel_error *err) {
    const wire_world *w = world;
    return fake_open(w->world, rank, w->timeout, comm, err);
}

static ravel_status run_ranks(fake_world *world, double timeout, ravel_rank_fn work, void *user, ravel_error *err) {
    wire_world w = {world, timeout};
    return comm_ranks_run(world->size, open_rank, &w, work, user, err);
}

TEST(comm_wire_whose_sends_wait_for_their_receives_runs_the_body) {
    static const int32_t sizes[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++)
        for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1)) {
            body_job b = {{check_seed(), (int32_t)check_rounds(60, 1000), 700, 0, 0}, body};
            fake_world world;
            ravel_error err = RAVEL_ERROR_INIT;
            fake_world_init(&world, sizes[i]);
            world.reorder = i % 2;
            ravel_status status = run_ranks(&world, 60, comm_body_run, &b, &err);
            if (status)
                check_fail(__FILE__, __LINE__, "%d ranks, %s: %s: %s", sizes[i], body->name, ravel_status_name(status),
                           err.message);
            CHECK_EQ(world.nets_open, 0);
            fake_world_free(&world);
        }
}

/* ---- a transport that fails ----------------------------------------------------------------------------- */

TEST(comm_wire_that_cannot_begin_is_said_and_leaves_nothing) {
    static const struct {
        int code;
        ravel_status status;
        const char *says;
    } cases[] = {
        {RAVEL__WIRE_OVER, RAVEL_E_STATE, "finalised"},
        {RAVEL__WIRE_THREADS, RAVEL_E_UNSUPPORTED, "MPI_THREAD_SERIALIZED"},
        {RAVEL__WIRE_BROKEN, RAVEL_E_PEER_LOST, "the first meeting of all ranks: the cable is out"},
        {RAVEL__WIRE_TIMEOUT, RAVEL_E_TIMEOUT, "the cable is out"},
        {RAVEL__WIRE_ARGUMENT, RAVEL_E_ARGUMENT, "the cable is out"},
        {RAVEL__WIRE_MEMORY, RAVEL_E_MEMORY, "out of memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL;
        fake_world world;
        fake_world_init(&world, 1);
        world.open_code = cases[i].code;
        CHECK_EQ(fake_open(&world, 0, 1, &comm, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!comm && world.nets_open == 0);
        fake_world_free(&world);
    }
}

TEST(comm_wire_that_breaks_makes_its_own_world_dead_and_no_other) {
    for (int how = 0; how < 2; how++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL, *child = NULL, *other = NULL;
        fake_world world, healthy;
        char byte = 0;
        fake_world_init(&world, 1);
        fake_world_init(&healthy, 1);
        CHECK_OK(fake_open(&world, 0, 1, &comm, &err), &err);
        CHECK_OK(fake_open(&healthy, 0, 1, &other, &err), &err);
        CHECK_OK(ravel_comm_dup(comm, &child, &err), &err);
        world.poll_code = RAVEL__WIRE_BROKEN;
        (void)ravel_comm_barrier(how ? child : comm, NULL); /* of one rank: over before the wire is looked at */
        CHECK_EQ(how ? ravel_comm_barrier(child, &err) : ravel_comm_broadcast(comm, &byte, 1, RAVEL_U8, 0, &err),
                 RAVEL_E_PEER_LOST);
        CHECK_HAS(err.message, "wire failed in polling: the cable is out");
        CHECK_EQ(ravel_comm_barrier(how ? child : comm, NULL), RAVEL_E_DEAD);
        CHECK_OK(ravel_comm_barrier(other, &err), &err);
        world.poll_code = 0;
        ravel_comm_free(child);
        ravel_comm_free(comm);
        CHECK_OK(ravel_comm_barrier(other, &err), &err);
        ravel_comm_free(other);
        CHECK(world.nets_open == 0 && healthy.nets_open == 0);
        fake_world_free(&world);
        fake_world_free(&healthy);
    }
}

/* A rank that the wire loses fails the operation that needs it, with its name; communicators without it live on. */
static ravel_status lose_rank_two(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_comm *pair = NULL, *again = NULL;
    ravel_error seen = RAVEL_ERROR_INIT;
    int32_t me = ravel_comm_rank(comm);
    int64_t x = 0;
    ravel_status status = ravel_comm_split(comm, me < 2 ? 0 : -1, me, &pair, err);
    if (!status) status = ravel_comm_dup(comm, &again, err);
    if (!status) status = ravel_comm_barrier(comm, err);
    if (me == 0) fake_lose(user, 2, "gone");
    if (!status && me < 2) status = ravel_comm_recv(again, &x, 1, RAVEL_I64, 2, 0, &seen);
    ravel_comm_free(again);
    if (me == 2) return status;
    if (status != RAVEL_E_PEER_LOST || !strstr(seen.message, "rank 2"))
        return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
    status = ravel_comm_allreduce(pair, &x, &x, 1, RAVEL_I64, RAVEL_SUM, err);
    ravel_comm_free(pair);
    return status;
}

TEST(comm_wire_that_loses_a_rank_names_it) {
    fake_world world;
    ravel_error err = RAVEL_ERROR_INIT;
    fake_world_init(&world, 3);
    CHECK_OK(run_ranks(&world, 60, lose_rank_two, &world, &err), &err);
    fake_world_free(&world);
}

/* Rank 0 fails, and rank 2 does not hear it from rank 0. Rank 1 does, and leaves: rank 2, which waits for rank 1, must be told of the
 * failure and not of the leaving. */
static ravel_status fail_behind_a_cut(ravel_comm *comm, void *user, ravel_error *err) {
    fake_world *w = user;
    ravel_error seen = RAVEL_ERROR_INIT, why = RAVEL_ERROR_INIT;
    int32_t me = ravel_comm_rank(comm);
    int64_t x = 0;
    ravel_status status = ravel_comm_barrier(comm, err);
    if (status) return status;
    if (me == 0) {
        pthread_mutex_lock(&w->lock);
        w->cut_from = 0, w->cut_to = 2;
        pthread_mutex_unlock(&w->lock);
        ravel_error_set(&why, RAVEL_E_DATA, "the first cause");
        ravel_comm_abort(comm, &why);
        return RAVEL_OK;
    }
    status = ravel_comm_recv(comm, &x, 1, RAVEL_I64, me - 1, 0, &seen);
    if (status == RAVEL_E_PEER_LOST && strstr(seen.message, "the first cause")) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d, %s: %s", me, ravel_status_name(status), seen.message);
}

TEST(comm_wire_tells_the_failure_and_not_who_left_because_of_it) {
    for (int quiet = 0; quiet < 2; quiet++) {
        fake_world world;
        ravel_error err = RAVEL_ERROR_INIT;
        fake_world_init(&world, 3);
        world.quiet = quiet;
        CHECK_OK(run_ranks(&world, 60, fail_behind_a_cut, &world, &err), &err);
        fake_world_free(&world);
    }
}

/* ---- two threads, two communicators --------------------------------------------------------------------- */

typedef struct splitter {
    pthread_t thread;
    ravel_comm *comm;
    int rounds;
    ravel_status status;
    ravel_error err;
} splitter;

static void *split_often(void *at) {
    splitter *s = at;
    for (int i = 0; i < s->rounds && !s->status; i++) {
        ravel_comm *child = NULL;
        int64_t x = 1, y = 0;
        s->status = ravel_comm_split(s->comm, 0, 0, &child, &s->err);
        for (int k = 0; k < 2 && !s->status; k++)
            s->status = ravel_comm_allreduce(child, &x, &y, 1, RAVEL_I64, RAVEL_SUM, &s->err);
        ravel_comm_free(child);
    }
    return NULL;
}

/* Each rank's threads reach their splits in an order of their own; children of different parents never meet, and freeing
 * one is no failure of another. */
static ravel_status split_in_two_threads(ravel_comm *comm, void *user, ravel_error *err) {
    splitter s[2] = {{.rounds = 40}, {.rounds = 40}};
    (void)user;
    ravel_status status = ravel_comm_dup(comm, &s[0].comm, err);
    if (!status) status = ravel_comm_dup(comm, &s[1].comm, err);
    for (int i = 0; i < 2 && !status; i++) (void)pthread_create(&s[i].thread, NULL, split_often, &s[i]);
    for (int i = 0; i < 2 && !status; i++) (void)pthread_join(s[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        if (!status && s[i].status) status = s[i].status, *err = s[i].err;
        ravel_comm_free(s[i].comm);
    }
    return status;
}

TEST(comm_wire_lets_two_threads_split_two_communicators_at_once) {
    fake_world world;
    ravel_error err = RAVEL_ERROR_INIT;
    fake_world_init(&world, 3);
    CHECK_OK(run_ranks(&world, 60, split_in_two_threads, NULL, &err), &err);
    fake_world_free(&world);
}

/* A peer may leave after its last byte has come and before the receive is collected. */
TEST(comm_wire_a_complete_transfer_outlives_its_peer) {
    uint8_t lost[] = {0, 2}, left[] = {0, 1};
    remote_world world = {.size = 2, .lost = lost};
    remote_rank me = {.world = &world, .left = left};
    remote_parcel parcel = {.port = &me, .peer = 1, .member = 1, .state = PARCEL_MOVES};
    parcel.transfer.state = RAVEL__TRANSFER_RUNS;
    CHECK(ravel__match_is_hopeless(&parcel));
    parcel.transfer.state = RAVEL__TRANSFER_DONE;
    CHECK(!ravel__match_is_hopeless(&parcel));
}
