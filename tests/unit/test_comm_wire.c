/* The back end between processes over a wire that is made up (fake_wire.h): the body that every back end runs, a transport
 * that fails, worlds side by side, and thousands of ranks whose frames are counted. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/fake_wire.h"

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
        for (const comm_body *body = comm_bodies; body->name; body++) {
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
    CHECK_OK(run_ranks(&world, 20, lose_rank_two, &world, &err), &err);
    fake_world_free(&world);
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
    CHECK_OK(run_ranks(&world, 30, split_in_two_threads, NULL, &err), &err);
    fake_world_free(&world);
}

/* ---- many ranks ----------------------------------------------------------------------------------------- */

typedef struct counted {
    int64_t frames, bytes, most; /* of one rank, by the operation */
} counted;

static int32_t log2_up(int32_t n) {
    int32_t log = 0;
    while (1 << log < n) log++;
    return log;
}

/* One operation on every rank, all ranks in this thread: each is started, then all are tested until done. */
static ravel_status count_operation(ravel_comm **comms, int32_t n, int kind, counted *c, ravel_error *err) {
    ravel_request **requests = calloc((size_t)n, sizeof(void *));
    int64_t *words = calloc((size_t)n, 2 * sizeof *words), *counts = calloc((size_t)n, sizeof *counts);
    int64_t *all = kind == 2 ? calloc((size_t)n * (size_t)n, sizeof *all) : NULL;
    ravel_status status = RAVEL_OK;
    *c = (counted){0};
    for (int32_t r = 0; r < n; r++) {
        c->frames -= ravel__remote_world(comms[r])->frames;
        c->bytes -= ravel__remote_world(comms[r])->bytes;
        words[2 * r] = r, words[2 * r + 1] = -1, counts[r] = 1;
    }
    for (int32_t r = 0; r < n && !status; r++) {
        int64_t before = ravel__remote_world(comms[r])->frames;
        (void)before;
        if (kind == 0) status = ravel_comm_ibarrier(comms[r], &requests[r], err);
        if (kind == 1) status = ravel_comm_ibroadcast(comms[r], &words[2 * r], 1, RAVEL_I64, 3, &requests[r], err);
        if (kind == 2)
            status = ravel_comm_iallgatherv(comms[r], &words[2 * r], all + (size_t)r * (size_t)n, counts, NULL,
                                            RAVEL_I64, &requests[r], err);
    }
    for (int32_t left = n; left > 0 && !status;)
        for (int32_t r = 0; r < n && !status; r++) {
            int32_t done = 0;
            if (!requests[r]) continue;
            status = ravel_request_test(requests[r], &done, err);
            if (done) requests[r] = NULL, left--;
        }
    for (int32_t r = 0; r < n && !status; r++) {
        c->frames += ravel__remote_world(comms[r])->frames;
        c->bytes += ravel__remote_world(comms[r])->bytes;
        if (kind == 1 && words[2 * r] != 3) status = RAVEL_E_INTERNAL;
        for (int32_t k = 0; kind == 2 && k < n; k += 97)
            if (all[(size_t)r * (size_t)n + (size_t)k] != k) status = RAVEL_E_INTERNAL;
    }
    c->frames = (c->frames + n - 1) / n, c->bytes /= n;
    free(requests), free(words), free(counts), free(all);
    return status;
}

/* Opening takes a meeting of all, so that needs a thread per rank; afterwards one thread drives them all. */
typedef struct opener {
    pthread_t thread;
    fake_world *world;
    int32_t rank;
    ravel_comm **comm;
    ravel_status status;
} opener;

static void *open_one(void *at) {
    opener *o = at;
    o->status = fake_open(o->world, o->rank, 300, o->comm, NULL);
    return NULL;
}

static int open_all(fake_world *world, ravel_comm **comms) {
    opener *openers = calloc((size_t)world->size, sizeof *openers);
    pthread_attr_t small;
    int ok = 1;
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, 128 << 10);
    for (int32_t i = 0; i < world->size; i++) {
        openers[i] = (opener){.world = world, .rank = i, .comm = &comms[i]};
        ok &= pthread_create(&openers[i].thread, &small, open_one, &openers[i]) == 0;
    }
    for (int32_t i = 0; i < world->size; i++) (void)pthread_join(openers[i].thread, NULL), ok &= !openers[i].status;
    (void)pthread_attr_destroy(&small);
    free(openers);
    return ok;
}

/* What a small agreement, a broadcast, an all-gather of a word and the end cost each rank, in frames and bytes. */
TEST(comm_wire_costs_grow_with_the_logarithm_of_the_ranks) {
    int32_t n = (int32_t)check_scale(200, 4096), log = log2_up(n);
    ravel_comm **comms = calloc((size_t)n, sizeof(void *));
    ravel_error err = RAVEL_ERROR_INIT;
    fake_world world;
    counted barrier, broadcast, gather;
    fake_world_init(&world, n);
    CHECK(open_all(&world, comms));
    CHECK_OK(count_operation(comms, n, 0, &barrier, &err), &err);
    CHECK_OK(count_operation(comms, n, 1, &broadcast, &err), &err);
    CHECK_OK(count_operation(comms, n, 2, &gather, &err), &err);
    int64_t before = world.frames;
    for (int32_t r = 0; r < n; r++) ravel_comm_free(comms[r]);
    int64_t freed = (world.frames - before) / n;
    printf(
        "    %d ranks, per rank: barrier %lld frames, %lld bytes; broadcast %lld, %lld; all-gather of a word %lld, %lld; "
        "free %lld frames\n",
        n, (long long)barrier.frames, (long long)barrier.bytes, (long long)broadcast.frames, (long long)broadcast.bytes,
        (long long)gather.frames, (long long)gather.bytes, (long long)freed);
    CHECK(barrier.frames <= log + 2 && barrier.bytes <= 100 * (log + 2));
    CHECK(broadcast.frames <= log + 4);
    CHECK(gather.frames <= 3 * log + 4 && gather.bytes <= 8 * n + 100 * (3 * log + 4)); /* long rounds are offered */
    CHECK(freed <= 4 * log + 4);
    free(comms);
    fake_world_free(&world);
}
