/* Ranks that leave, fail, come late or run out of memory, over threads: nobody hangs, everybody learns why, nothing
 * leaks. Deadlines are long (30 s) where a fault must be noticed at once: a missed one shows as E_TIMEOUT, not as a
 * slow test that passes. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/comm.h>

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static void sleep_ms(int64_t ms) {
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};
    (void)nanosleep(&t, NULL);
}

/* ---- one operation of each kind ------------------------------------------------------------------------- */

enum { OPERATIONS = 13 };

/* Operation `which` with arrays of `count` elements at `room` (room for 2 * 64 * count). Ranks that take no part in a
 * message do nothing. */
static ravel_status operate(ravel_comm *comm, int32_t which, int64_t count, int64_t *room, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), right = (me + 1) % n, left = (me + n - 1) % n;
    int64_t *a = room, *b = room + 64 * count, counts[64];
    ravel_request *r[2] = {NULL, NULL};
    ravel_comm *child = NULL;
    ravel_status status;
    for (int32_t i = 0; i < n; i++) counts[i] = count;
    switch (which) {
    case 0: return ravel_comm_barrier(comm, err);
    case 1: return ravel_comm_broadcast(comm, a, count, RAVEL_I64, n / 2, err);
    case 2: return ravel_comm_allgather(comm, a, b, count, RAVEL_I64, err);
    case 3: return ravel_comm_allgatherv(comm, a, b, counts, NULL, RAVEL_I64, err);
    case 4: return ravel_comm_alltoall(comm, a, b, count, RAVEL_I64, err);
    case 5: return ravel_comm_alltoallv(comm, a, counts, NULL, b, counts, NULL, RAVEL_I64, err);
    case 6: return ravel_comm_allreduce(comm, a, b, count, RAVEL_I64, RAVEL_SUM, err);
    case 7: return ravel_comm_reduce(comm, a, b, count, RAVEL_I64, RAVEL_MAX, 0, err);
    case 8: return ravel_comm_reduce_scatter(comm, a, b, count, RAVEL_I64, RAVEL_MIN, err);
    case 9:
        status = ravel_comm_isend(comm, a, count, RAVEL_I64, right, 1, &r[0], err);
        if (!status) status = ravel_comm_irecv(comm, b, count, RAVEL_I64, left, 1, &r[1], err);
        if (!status) return ravel_request_wait_all(r, 2, err);
        (void)ravel_request_wait_all(r, 2, NULL);
        return status;
    case 10:
        status = ravel_comm_ibroadcast(comm, a, count, RAVEL_I64, 0, &r[0], err);
        return status ? status : ravel_request_wait(r[0], err);
    case 11:
        status = ravel_comm_ialltoallv(comm, a, counts, NULL, b, counts, NULL, RAVEL_I64, &r[0], err);
        for (int32_t done = 0; !status && !done;) status = ravel_request_test(r[0], &done, err);
        return status;
    default:
        status = ravel_comm_split(comm, me % 2, me, &child, err);
        if (!status) status = ravel_comm_barrier(child, err);
        ravel_comm_free(child);
        return status;
    }
}

static int64_t *make_room(int64_t count) {
    return calloc((size_t)count, 2 * 64 * sizeof(int64_t));
}

/* ---- one rank is lost, at each operation ---------------------------------------------------------------- */

enum { LEAVES, FAILS, ABORTS, LEAVES_IN_PART, FAULTS };

typedef struct loss {
    int32_t victim, which, fault;
    int64_t count;
} loss;

/* What a survivor must see: E_PEER_LOST that names the victim, then E_DEAD with the same reason. */
static ravel_status expect_lost(ravel_comm *comm, ravel_status status, const ravel_error *seen, const loss *job,
                                ravel_error *err) {
    char name[32];
    ravel_error again = RAVEL_ERROR_INIT;
    (void)snprintf(name, sizeof name, "rank %d", job->victim);
    if (status != RAVEL_E_PEER_LOST || !strstr(seen->message, name))
        return ravel_error_set(err, RAVEL_E_INTERNAL, "operation %d, fault %d: %s: %s", job->which, job->fault,
                               ravel_status_name(status), seen->message);
    if (job->fault != LEAVES && job->fault != LEAVES_IN_PART && !strstr(seen->message, "out of soap"))
        return ravel_error_set(err, RAVEL_E_INTERNAL, "the reason is not in \"%s\"", seen->message);
    if (ravel_comm_lost_rank(comm) != job->victim)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "the lost rank is %d", ravel_comm_lost_rank(comm));
    if (ravel_comm_barrier(comm, &again) != RAVEL_E_DEAD || !strstr(again.message, name))
        return ravel_error_set(err, RAVEL_E_INTERNAL, "a further call says %s", again.message);
    ravel_error_clear(&again);
    if (ravel_comm_alive(comm, &again) != RAVEL_E_DEAD)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "a dead communicator says that it is alive");
    return RAVEL_OK;
}

static void lose(ravel_comm *comm, int32_t fault) {
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_error_set(&why, RAVEL_E_DATA, "out of soap");
    if (fault == FAILS || fault == ABORTS) ravel_comm_abort(comm, &why);
}

/* Each survivor has its verdict in `err` of the thread. */
typedef struct party {
    ravel_comm *comm;
    const loss *job;
    ravel_error err;
} party;

static void *survive(void *argument) {
    party *p = argument;
    const loss *job = p->job;
    int32_t me = ravel_comm_rank(p->comm);
    int64_t *room = make_room(job->count);
    ravel_error seen = RAVEL_ERROR_INIT;
    ravel_status status = operate(p->comm, 0, 1, room, &p->err);
    if (!status && me == job->victim) {
        sleep_ms(job->which % 3); /* sometimes the others wait already, sometimes they come later */
        lose(p->comm, job->fault);
    } else if (!status) {
        status = operate(p->comm, job->which, job->count, room, &seen);
        if (!status) status = ravel_comm_barrier(p->comm, &seen); /* a message between others may well succeed */
        (void)expect_lost(p->comm, status, &seen, job, &p->err);
    }
    ravel_comm_free(p->comm);
    free(room);
    return NULL;
}

static void run_parties(int32_t ranks, const loss *job) {
    ravel_comm *comms[64];
    party parties[64];
    pthread_t threads[64];
    ravel_comm_options options;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    CHECK_OK(ravel_comm_threads(ranks, &options, comms, &err), &err);
    for (int32_t i = 0; i < ranks; i++) {
        memset(&parties[i], 0, sizeof parties[i]);
        parties[i].comm = comms[i];
        parties[i].job = job;
        pthread_create(&threads[i], NULL, survive, &parties[i]);
    }
    for (int32_t i = 0; i < ranks; i++) {
        pthread_join(threads[i], NULL);
        if (parties[i].err.status)
            check_fail(__FILE__, __LINE__, "rank %d of %d: %s", i, ranks, parties[i].err.message);
    }
}

TEST(comm_a_lost_rank_is_named_in_every_operation) {
    static const int32_t sizes[] = {2, 3, 8};
    for (int32_t s = 0; s < 3; s++)
        for (int32_t which = 0; which < OPERATIONS; which++)
            for (int32_t fault = 0; fault < LEAVES_IN_PART; fault++) {
                loss job = {which % sizes[s], which, fault, which % 2 ? 40000 : 5};
                run_parties(sizes[s], &job);
            }
}

/* ---- the same through ravel_threads_run ----------------------------------------------------------------- */

static ravel_status one_returns(ravel_comm *comm, void *user, ravel_error *err) {
    const loss *job = user;
    if (ravel_comm_rank(comm) != job->victim) {
        ravel_status status = ravel_comm_barrier(comm, err);
        return status == RAVEL_E_PEER_LOST ? RAVEL_E_PEER_LOST : RAVEL_E_INTERNAL;
    }
    if (job->fault == LEAVES) return RAVEL_OK;
    if (job->fault == ABORTS) pthread_exit(NULL);
    return ravel_error_set(err, RAVEL_E_DATA, "out of soap");
}

TEST(comm_run_returns_the_first_failure) {
    loss fails = {2, 0, FAILS, 0}, leaves = {1, 0, LEAVES, 0}, exits = {3, 0, ABORTS, 0};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_threads_run(5, NULL, one_returns, &fails, &err), RAVEL_E_DATA);
    CHECK_STR(err.message, "rank 2: out of soap");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_threads_run(5, NULL, one_returns, &leaves, &err), RAVEL_E_PEER_LOST);
    CHECK_HAS(err.message, "rank 1 left");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_threads_run(5, NULL, one_returns, &exits, &err), RAVEL_E_PEER_LOST);
    CHECK_HAS(err.message, "rank 3");
    CHECK_HAS(err.message, "ended before its work returned");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_threads_run(0, NULL, one_returns, &exits, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "from 1 to");
}

/* ---- down the tree -------------------------------------------------------------------------------------- */

/* Ranks wait in a part, and in a part of a part, when one fails in the whole. */
static ravel_status wait_in_parts(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_comm *half = NULL, *quarter = NULL;
    ravel_error seen = RAVEL_ERROR_INIT;
    int32_t me = ravel_comm_rank(comm);
    (void)user;
    ravel_status status = ravel_comm_split(comm, me / 4, me, &half, err);
    if (!status) status = ravel_comm_split(half, me % 4 / 2, me, &quarter, err);
    if (!status) status = ravel_comm_barrier(comm, err);
    if (status) goto done;
    if (me == 6) {
        sleep_ms(2);
        lose(comm, ABORTS);
        goto done;
    }
    int64_t x = 0;
    /* 7 would wait for 6 anyway; 0 to 3 wait for one another in a loop that nobody ends */
    do
        status = me == 7 ? ravel_comm_barrier(quarter, &seen)
                         : ravel_comm_allreduce(me % 2 ? half : quarter, &x, &x, 1, RAVEL_I64, RAVEL_SUM, &seen);
    while (!status && me != 4);
    if (me != 4 && (status != RAVEL_E_PEER_LOST || !strstr(seen.message, "out of soap")))
        status = ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d: %s: %s", me, ravel_status_name(status), seen.message);
    else
        status = RAVEL_OK;
done:
    ravel_comm_free(me % 2 ? quarter : half);
    ravel_comm_free(me % 2 ? half : quarter);
    return status;
}

TEST(comm_death_goes_down_to_the_parts) {
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    for (int i = 0; i < 20; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_threads_run(8, &options, wait_in_parts, NULL, &err), &err);
    }
}

/* A part that died leaves the whole alive; a freed whole leaves its parts alive. */
static ravel_status part_dies(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_comm *half = NULL;
    ravel_error seen = RAVEL_ERROR_INIT;
    int32_t me = ravel_comm_rank(comm);
    (void)user;
    ravel_status status = ravel_comm_split(comm, me % 2, me, &half, err);
    if (status) return status;
    if (me == 0) {
        ravel_comm_free(half);
        half = NULL;
    } else {
        status = ravel_comm_barrier(half, &seen);
        if (status != (me % 2 ? RAVEL_OK : RAVEL_E_PEER_LOST)) return RAVEL_E_INTERNAL;
        if (me == 2 && (!strstr(seen.message, "rank 0 (world rank 0) left") || !strstr(seen.message, "world rank 2")))
            return ravel_error_set(err, RAVEL_E_INTERNAL, "%s", seen.message);
    }
    ravel_comm_free(half);
    return ravel_comm_barrier(comm, err);
}

TEST(comm_a_dead_part_leaves_the_whole_alive) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(6, NULL, part_dies, NULL, &err), &err);
}

TEST(comm_parts_outlive_the_whole) {
    ravel_comm *comms[2], *parts[2] = {NULL, NULL};
    ravel_error err = RAVEL_ERROR_INIT;
    /* Both ranks in one thread: only what does not wait works here, so the parts are made of one rank each. */
    CHECK_OK(ravel_comm_threads(1, NULL, comms, &err), &err);
    CHECK_OK(ravel_comm_split(comms[0], 0, 0, &parts[0], &err), &err);
    CHECK_OK(ravel_comm_split(parts[0], 0, 0, &parts[1], &err), &err);
    ravel_comm_free(comms[0]);
    CHECK_OK(ravel_comm_barrier(parts[0], &err), &err);
    ravel_comm_free(parts[0]);
    CHECK_OK(ravel_comm_barrier(parts[1], &err), &err);
    ravel_comm_free(parts[1]);
    ravel_comm_free(NULL);
}

/* ---- deadlines ------------------------------------------------------------------------------------------ */

/* The late rank comes only when all others have given up, so nothing here depends on how fast this machine is. */
typedef struct lateness {
    loss job;
    _Atomic int32_t given_up, timeouts;
} lateness;

static ravel_status one_is_late(ravel_comm *comm, void *user, ravel_error *err) {
    lateness *l = user;
    const loss *job = &l->job;
    int64_t *room = make_room(job->count);
    ravel_error seen = RAVEL_ERROR_INIT;
    int late = ravel_comm_rank(comm) == job->victim;
    while (late && l->given_up < ravel_comm_size(comm) - 1) sleep_ms(1);
    ravel_status status = operate(comm, job->which, job->count, room, &seen);
    if (!status) status = ravel_comm_barrier(comm, &seen);
    free(room);
    l->given_up++;
    l->timeouts += status == RAVEL_E_TIMEOUT && strstr(seen.message, "within 0.05 s");
    if (late ? status == RAVEL_E_PEER_LOST && strstr(seen.message, "gave up after 0.05 s") != NULL
             : status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT)
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "operation %d, rank %d: %s: %s", job->which, ravel_comm_rank(comm),
                           ravel_status_name(status), seen.message);
}

TEST(comm_a_deadline_that_passes_is_an_error_everywhere) {
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 0.05;
    for (int32_t which = 0; which < OPERATIONS; which++) {
        ravel_error err = RAVEL_ERROR_INIT;
        lateness l = {{which % 4, which, 0, which % 2 ? 20000 : 3}, 0, 0};
        CHECK_OK(ravel_threads_run(4, &options, one_is_late, &l, &err), &err);
        CHECK(l.timeouts >= 1);
    }
}

TEST(comm_a_deadline_names_who_did_not_come) {
    ravel_comm *comms[3];
    ravel_comm_options options;
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t x = 0;
    ravel_comm_options_default(&options);
    options.timeout = 0.01;
    CHECK_OK(ravel_comm_threads(3, &options, comms, &err), &err);
    CHECK_EQ(ravel_comm_allreduce(comms[1], &x, &x, 1, RAVEL_I64, RAVEL_SUM, &err), RAVEL_E_TIMEOUT);
    CHECK_STR(err.message, "rank 1, all-reduce sum of 1 i64: ranks 0, 2 did not come within 0.01 s");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_comm_recv(comms[0], &x, 1, RAVEL_I64, 1, 0, &err), RAVEL_E_PEER_LOST);
    CHECK_STR(err.message, "rank 0, receive of 1 i64 from rank 1 with tag 0: rank 1 gave up after 0.01 s in all-reduce "
                           "sum of 1 i64, waiting for ranks 0, 2");
    for (int i = 0; i < 3; i++) ravel_comm_free(comms[i]);
    ravel_error_clear(&err);
    CHECK_OK(ravel_comm_threads(2, &options, comms, &err), &err);
    CHECK_EQ(ravel_comm_recv(comms[0], &x, 1, RAVEL_I64, 1, 4, &err), RAVEL_E_TIMEOUT);
    CHECK_STR(err.message, "rank 0, receive of 1 i64 from rank 1 with tag 4: rank 1 did not come within 0.01 s");
    for (int i = 0; i < 2; i++) ravel_comm_free(comms[i]);
}

TEST(comm_timeouts_come_from_options_and_environment) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_comm_options options;
    static const char *const bad[] = {"0", "-3", "abc", "1e99", "5x", "nan"};
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK(ravel_comm_timeout(comm) == 600);
    ravel_comm_set_timeout(comm, 2.5);
    CHECK(ravel_comm_timeout(comm) == 2.5);
    ravel_comm_set_timeout(comm, -1);
    CHECK(ravel_comm_timeout(comm) == 2.5);
    ravel_comm_free(comm);
    setenv("RAVEL_COMM_TIMEOUT", "7.5", 1);
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK(ravel_comm_timeout(comm) == 7.5);
    ravel_comm_free(comm);
    ravel_comm_options_default(&options);
    options.timeout = 3;
    CHECK_OK(ravel_comm_self(&options, &comm, &err), &err);
    CHECK(ravel_comm_timeout(comm) == 3);
    ravel_comm_free(comm);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("RAVEL_COMM_TIMEOUT", bad[i], 1);
        ravel_error_clear(&err);
        CHECK_EQ(ravel_comm_self(NULL, &comm, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, bad[i]);
        CHECK_HAS(err.message, "RAVEL_COMM_TIMEOUT");
    }
    unsetenv("RAVEL_COMM_TIMEOUT");
    options.timeout = -1;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_comm_self(&options, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "comm-timeout is -1");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_comm_open("nccl", NULL, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "auto, self, mpi or tcp");
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static ravel_status messages_disagree(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t me = ravel_comm_rank(comm), data[16] = {0};
    (void)user;
    for (int32_t how = 0; how < 2; how++) {
        ravel_error seen = RAVEL_ERROR_INIT;
        int32_t dtype = how ? RAVEL_F32 : RAVEL_I32;
        ravel_status status = me == 0 ? ravel_comm_send(comm, data, 8, RAVEL_I32, 1, 3, &seen)
                                      : ravel_comm_recv(comm, data, how ? 8 : 10, dtype, 0, 3, &seen);
        if (status != RAVEL_E_MISMATCH ||
            !strstr(seen.message, me ? "rank 0 calls send of 8 i32" : "rank 1 calls receive"))
            return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
    }
    return ravel_comm_barrier(comm, err);
}

TEST(comm_messages_that_disagree_are_refused_on_both_sides) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, messages_disagree, NULL, &err), &err);
}

TEST(comm_a_message_to_oneself_needs_both_halves) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_request *request = NULL;
    int32_t sent = 42, got = 0;
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK_EQ(ravel_comm_send(comm, &sent, 1, RAVEL_I32, 0, 0, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "waits for itself");
    ravel_error_clear(&err);
    CHECK_OK(ravel_comm_irecv(comm, &got, 1, RAVEL_I32, 0, 0, &request, &err), &err);
    CHECK_OK(ravel_comm_send(comm, &sent, 1, RAVEL_I32, 0, 0, &err), &err);
    CHECK_OK(ravel_request_wait(request, &err), &err);
    CHECK_EQ(got, 42);
    for (int i = 0; i < RAVEL_REQUESTS_MAX; i++)
        CHECK_OK(ravel_comm_irecv(comm, &got, 1, RAVEL_I32, 0, 1, &request, &err), &err);
    CHECK_EQ(ravel_comm_irecv(comm, &got, 1, RAVEL_I32, 0, 1, &request, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "wait for one of them");
    ravel_comm_free(comm); /* with all of them open */
}

/* ---- random trials -------------------------------------------------------------------------------------- */

typedef struct trial {
    uint64_t seed;
    int32_t ranks, steps, victim, when, fault;
} trial;

/* Leaves requests open that nobody will ever meet. */
static void leave_open(ravel_comm *comm, int64_t *room, uint64_t draw) {
    ravel_request *r;
    int32_t n = ravel_comm_size(comm);
    if (draw & 1) (void)ravel_comm_irecv(comm, room, 1, RAVEL_I64, (int32_t)(draw % (uint64_t)n), 99, &r, NULL);
    if (draw & 2) (void)ravel_comm_isend(comm, room, 1, RAVEL_I64, (int32_t)(draw % (uint64_t)n), 98, &r, NULL);
    if (draw & 4) (void)ravel_comm_ibroadcast(comm, room, 100, RAVEL_I64, 0, &r, NULL);
}

static ravel_status play(ravel_comm *comm, void *user, ravel_error *err) {
    const trial *t = user;
    ravel__rng rng = ravel__rng_seed(t->seed);
    int32_t me = ravel_comm_rank(comm);
    int64_t *room = make_room(3000);
    ravel_status status = RAVEL_OK;
    ravel_error seen = RAVEL_ERROR_INIT;
    for (int32_t i = 0; i < t->steps && !status; i++) {
        int32_t which = (int32_t)ravel__rng_below(&rng, OPERATIONS);
        int64_t count = (int64_t)ravel__rng_below(&rng, 3) * 1500;
        if (me == t->victim && i == t->when) {
            if (t->fault == FAILS) status = ravel_error_set(err, RAVEL_E_DATA, "out of soap");
            if (t->fault == ABORTS) lose(comm, ABORTS);
            if (t->fault >= LEAVES_IN_PART || t->fault == LEAVES) leave_open(comm, room, t->seed);
            goto done;
        }
        status = operate(comm, which, count, room, &seen);
    }
    if (!status) status = ravel_comm_barrier(comm, &seen);
    /* Its open broadcast may meet another operation before it is withdrawn. */
    if (t->when < t->steps && (status == RAVEL_E_PEER_LOST || status == RAVEL_E_MISMATCH))
        status = RAVEL_OK;
    else if (t->when < t->steps || status)
        status = ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d: %s: %s", me, ravel_status_name(status), seen.message);
done:
    /* The run frees comm with whatever is open; room must outlive that, so it is the trial's to free. */
    ((int64_t **)(void *)(uintptr_t)(t + 1))[me] = room;
    return status;
}

TEST(comm_500_random_losses_and_nobody_hangs) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    for (int64_t i = 0; i < check_rounds(500, 20000); i++) {
        struct {
            trial t;
            int64_t *rooms[16];
        } job = {.t = {.seed = ravel__rng_next(&rng)}};
        job.t.ranks = 2 + (int32_t)ravel__rng_below(&rng, 7);
        job.t.steps = 1 + (int32_t)ravel__rng_below(&rng, 8);
        job.t.victim = (int32_t)ravel__rng_below(&rng, (uint64_t)job.t.ranks);
        job.t.when = (int32_t)ravel__rng_below(&rng, (uint64_t)job.t.steps + 1); /* steps: nobody is lost */
        job.t.fault = (int32_t)ravel__rng_below(&rng, FAULTS);
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = ravel_threads_run(job.t.ranks, &options, play, &job, &err);
        for (int32_t r = 0; r < job.t.ranks; r++) free(job.rooms[r]);
        if (status == RAVEL_E_DATA && job.t.fault == FAILS) continue;
        if (status)
            check_fail(__FILE__, __LINE__, "trial %lld: %s: %s", (long long)i, ravel_status_name(status), err.message);
        if (status) return;
    }
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* As check_memory, for several threads. */
typedef struct shared_memory {
    ravel_allocator allocator;
    pthread_mutex_t lock;
    check_memory inner;
} shared_memory;

static void *shared_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    shared_memory *m = user;
    pthread_mutex_lock(&m->lock);
    void *result = m->inner.allocator.resize(m->inner.allocator.user, ptr, old_bytes, new_bytes);
    pthread_mutex_unlock(&m->lock);
    return result;
}

static ravel_status small_job(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t *room = make_room(8);
    ravel_status status = RAVEL_OK;
    (void)user;
    for (int32_t which = 0; which < OPERATIONS && !status; which++) status = operate(comm, which, 8, room, err);
    free(room);
    return status;
}

TEST(comm_every_allocation_may_fail) {
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    int64_t fail_at = 1;
    for (;; fail_at++) {
        shared_memory memory = {.allocator = {shared_resize, &memory}};
        pthread_mutex_init(&memory.lock, NULL);
        check_memory_init(&memory.inner);
        memory.inner.fail_at = fail_at;
        options.allocator = &memory.allocator;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = ravel_threads_run(3, &options, small_job, NULL, &err);
        pthread_mutex_destroy(&memory.lock);
        CHECK_EQ(memory.inner.blocks, 0);
        CHECK_EQ(memory.inner.live, 0);
        if (memory.inner.calls < fail_at) {
            CHECK_OK(status, &err);
            break;
        }
        if (status != RAVEL_E_MEMORY)
            check_fail(__FILE__, __LINE__, "allocation %lld: %s", (long long)fail_at, err.message);
    }
    CHECK(fail_at > 20);
}

static ravel_status self_job(const ravel_allocator *allocator, void *user) {
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options_default(&options);
    options.allocator = allocator;
    ravel_status status = ravel_comm_self(&options, &comm, &err);
    if (!status) status = small_job(comm, user, &err);
    ravel_comm_free(comm);
    return status;
}

TEST(comm_self_every_allocation_may_fail) {
    CHECK(check_every_allocation(self_job, NULL) > 5);
}
