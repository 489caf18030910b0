/* The test body of communicators, under mpirun. One process is one rank.
 *
 *     mpirun -n 4 mpi-ranks body [short]     every body, in three ways
 *     mpirun -n 4 mpi-ranks FAULT            one rank (the last) is lost in some way; see the table in main
 *
 * A rank that saw what it should prints "ok ..."; one that did not prints "FAIL ..." and returns 1. A world that lost a
 * rank cannot be used again, so that faults are runs of their own, and the suite counts the lines.
 *
 * RANKS_MARKS names an empty folder, in which ranks that have lost their world still wait for one another. */
#include "tests/unit/comm_body.h"

#include "base/rng.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failed(const char *what, int rank, ravel_status status, const ravel_error *err) {
    printf("FAIL %s: rank %d: %s: %s\n", what, rank, ravel_status_name(status), err->message);
    return 1;
}

/* The same on every rank. */
static uint64_t seed(void) {
    const char *text = getenv("RAVEL_SEED");
    return text && *text ? strtoull(text, NULL, 0) : 20260101;
}

/* ---- the body ------------------------------------------------------------------------------------------- */

/* `only`: a word that the bodies' names must hold. */
static int run_bodies(ravel_comm *comm, const char *how, int32_t check, const char *only) {
    int bad = 0, rank = ravel_comm_rank(comm);
    for (const comm_body *body = comm_bodies; body->name; body++) {
        if (only && !strstr(body->name, only)) continue;
        comm_job job = {seed(), 40, 2000, !check, 0};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = body->run(comm, &job, &err);
        if (status)
            bad |= failed(body->name, rank, status, &err);
        else if (rank == 0)
            printf("ok %s, %s, %d ranks\n", body->name, how, ravel_comm_size(comm));
        if (status) break; /* the ranks are no longer in step */
    }
    return bad;
}

static int body(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : NULL;
    static const struct {
        const char *how;
        int64_t chunk;
        int32_t check;
    } ways[] = {{"plain", 1 << 30, 1}, {"in chunks of 1000 bytes", 1000, 1}, {"unchecked", 1 << 30, 0}};
    int bad = 0;
    for (int i = 0; i < 3 && !bad; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm_options options;
        ravel_comm *comm = NULL;
        ravel_comm_options_default(&options);
        options.chunk_bytes = ways[i].chunk;
        options.check = ways[i].check;
        ravel_status status = ravel_comm_open("auto", &options, &comm, &err);
        if (status) return failed("open", -1, status, &err);
        if (strcmp(ravel_comm_kind(comm), ravel_comm_auto_kind(NULL)) != 0)
            return failed("kind", -1, RAVEL_E_INTERNAL, &err);
        bad = run_bodies(comm, ways[i].how, ways[i].check, i > 0 ? only : NULL);
        ravel_comm_free(comm);
    }
    return bad;
}

/* ---- waiting without a world ---------------------------------------------------------------------------- */

enum { PATIENCE = 60 }; /* seconds: for peers that are only slow */

static int32_t world_rank, world_last;

static void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static int mark_path(int32_t rank, char *path, size_t bytes) {
    const char *folder = getenv("RANKS_MARKS");
    return folder && snprintf(path, bytes, "%s/said.%d", folder, rank) < (int)bytes;
}

/* This rank has said its line. */
static void mark(void) {
    char path[1000];
    FILE *f = mark_path(world_rank, path, sizeof path) ? fopen(path, "w") : NULL;
    if (f) (void)fclose(f);
}

/* Until ranks `first` to `last` have said theirs. */
static void await_marks(int32_t first, int32_t last) {
    char path[1000];
    for (int64_t waited = 0; first <= last && waited < PATIENCE * 1000; waited += 20) {
        if (!mark_path(first, path, sizeof path)) return sleep_ms(3000);
        if (access(path, F_OK) == 0)
            first++, waited -= 20;
        else
            sleep_ms(20);
    }
}

/* ---- faults --------------------------------------------------------------------------------------------- */

static ravel_comm *open_with(double timeout) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    ravel_comm_options_default(&options);
    options.timeout = timeout;
    if (ravel_comm_open("auto", &options, &comm, &err)) {
        (void)failed("open", -1, (ravel_status)err.status, &err);
        exit(1);
    }
    world_rank = ravel_comm_rank(comm);
    world_last = ravel_comm_size(comm) - 1;
    return comm;
}

/* A survivor's verdict: the status, the words in its sentence, and E_DEAD with the same words afterwards. Waits for the
 * other survivors, since launchers end the job with the first process that goes without a farewell; and a moment longer,
 * for the launcher to pass on what they said. */
static int expect(ravel_comm *comm, ravel_status status, ravel_status want, const ravel_error *seen,
                  const char *words) {
    ravel_error again = RAVEL_ERROR_INIT;
    int rank = ravel_comm_rank(comm);
    if (status != want || !strstr(seen->message, words)) return failed("fault", rank, status, seen);
    if (ravel_comm_barrier(comm, &again) != RAVEL_E_DEAD || !strstr(again.message, words))
        return failed("afterwards", rank, (ravel_status)again.status, &again);
    printf("ok %s\n", seen->message);
    ravel_comm_free(comm);
    mark();
    await_marks(0, world_last - 1);
    sleep_ms(1000);
    return 0;
}

static int is_victim(const ravel_comm *comm) {
    return ravel_comm_rank(comm) == ravel_comm_size(comm) - 1;
}

/* Many operations, until one fails. */
static ravel_status work_on(ravel_comm *comm, ravel_error *err) {
    enum { WORDS = 30000 };
    int64_t *data = calloc(WORDS, 16);
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < 1000000 && !status; i++) {
        status = ravel_comm_allreduce(comm, data, data, i % 3 ? 10 : WORDS, RAVEL_I64, RAVEL_MAX, err);
        if (!status) status = ravel_comm_broadcast(comm, data, i % 5 ? 10 : WORDS, RAVEL_I64, 0, err);
        if (!status) status = ravel_comm_alltoall(comm, data, data + WORDS, 100, RAVEL_I64, err);
    }
    free(data);
    return status;
}

static int leaves(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    (void)argc, (void)argv;
    if (is_victim(comm)) {
        (void)ravel_comm_barrier(comm, &err);
        ravel_comm_free(comm);
        return 0;
    }
    int64_t x = 0;
    ravel_status status = ravel_comm_barrier(comm, &err);
    if (!status) status = ravel_comm_broadcast(comm, &x, 1, RAVEL_I64, 0, &err);
    return expect(comm, status, RAVEL_E_PEER_LOST, &err, " left");
}

/* As leaves, with requests open; the others wait for a message that it never sends, and in a collective. */
static int leaves_open(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    static int64_t a[1000], b[1000]; /* they outlive the communicator */
    ravel_request *r;
    int32_t last = ravel_comm_size(comm) - 1;
    (void)argc, (void)argv;
    ravel_status status = ravel_comm_barrier(comm, &err);
    if (is_victim(comm)) {
        (void)ravel_comm_irecv(comm, a, 1000, RAVEL_I64, 0, 5, &r, NULL);
        (void)ravel_comm_ibroadcast(comm, b, 1000, RAVEL_I64, 0, &r, NULL);
        sleep_ms(50);
        ravel_comm_free(comm);
        return 0;
    }
    if (!status && ravel_comm_rank(comm) == 0) status = ravel_comm_recv(comm, a, 3, RAVEL_I64, last, 7, &err);
    if (!status) status = ravel_comm_barrier(comm, &err);
    return expect(comm, status, RAVEL_E_PEER_LOST, &err, " left");
}

static int aborts(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT, why = RAVEL_ERROR_INIT;
    (void)argc, (void)argv;
    ravel_error_set(&why, RAVEL_E_DATA, "out of soap");
    if (is_victim(comm)) {
        (void)ravel_comm_barrier(comm, &err);
        sleep_ms(20);
        ravel_comm_abort(comm, &why);
        ravel_comm_free(comm);
        return 0;
    }
    ravel_status status = ravel_comm_barrier(comm, &err);
    if (!status) status = ravel_comm_barrier(comm, &err);
    return expect(comm, status, RAVEL_E_PEER_LOST, &err, "raised an error: out of soap");
}

/* The others are in parts, which the death of the whole must reach. */
static int aborts_above_parts(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE), *part = NULL;
    ravel_error err = RAVEL_ERROR_INIT, why = RAVEL_ERROR_INIT;
    int32_t rank = ravel_comm_rank(comm), last = ravel_comm_size(comm) - 1;
    (void)argc, (void)argv;
    ravel_error_set(&why, RAVEL_E_DATA, "out of soap");
    ravel_status status = ravel_comm_split(comm, rank == last || rank == 0, rank, &part, &err);
    if (!status && rank == last) {
        ravel_comm_abort(comm, &why);
    } else if (!status) {
        while (!status) status = ravel_comm_barrier(part, &err); /* most wait only for one another, and never end */
        if (expect(part, status, RAVEL_E_PEER_LOST, &err, "out of soap")) return 1;
        part = NULL;
    }
    ravel_comm_free(part);
    ravel_comm_free(comm);
    return 0;
}

static int is_late(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    (void)argc, (void)argv;
    ravel_status status = ravel_comm_barrier(comm, &err);
    ravel_comm_set_timeout(comm, 0.5);
    if (!status && is_victim(comm)) {
        await_marks(0, world_last - 1);
        status = ravel_comm_barrier(comm, &err);
        return expect(comm, status, RAVEL_E_PEER_LOST, &err, "gave up after 0.5 s");
    }
    if (!status) status = ravel_comm_barrier(comm, &err);
    if (status == RAVEL_E_TIMEOUT)
        status = expect(comm, status, RAVEL_E_TIMEOUT, &err, "within 0.5 s");
    else
        status = expect(comm, status, RAVEL_E_PEER_LOST, &err, "gave up after 0.5 s");
    await_marks(world_last, world_last); /* the late one must find them here */
    return (int)status;
}

/* Work for some seconds, as rank 0 counts them: what a network that is slow, loses packets or is cut for a while must not
 * end. */
static int steady(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    enum { WORDS = 40000 };
    int64_t *data = calloc(WORDS, sizeof *data), goes = 1, rounds = 0;
    double seconds = argc > 1 ? atof(argv[1]) : 3;
    time_t end = time(NULL) + (time_t)seconds;
    ravel_status status = RAVEL_OK;
    for (; goes && !status; rounds++) {
        for (int64_t i = 0; i < WORDS; i++) data[i] = rounds + i;
        status = ravel_comm_allreduce(comm, data, data, WORDS, RAVEL_I64, RAVEL_SUM, &err);
        for (int64_t i = 0; i < WORDS && !status; i++)
            if (data[i] != ravel_comm_size(comm) * (rounds + i)) status = RAVEL_E_INTERNAL;
        goes = time(NULL) < end;
        if (!status) status = ravel_comm_broadcast(comm, &goes, 1, RAVEL_I64, 0, &err);
    }
    free(data);
    if (status) return failed("steady", world_rank, status, &err);
    printf("ok steady, %lld rounds\n", (long long)rounds);
    ravel_comm_free(comm);
    return 0;
}

/* A process that sends kill -9 to this one, 0.1 s after a byte comes through the pipe whose end is returned. It is made
 * before MPI starts, since a fork of a process with MPI's threads may hang. */
static int make_killer(void) {
    int ends[2];
    char byte;
    pid_t victim = getpid();
    if (pipe(ends)) return -1;
    if (fork() == 0) {
        (void)close(ends[1]);
        if (read(ends[0], &byte, 1) == 1) sleep_ms(100), (void)kill(victim, SIGKILL);
        _exit(0);
    }
    (void)close(ends[0]);
    return ends[1];
}

/* kill -9 in the middle of the work, at no particular point. */
static int is_killed(int argc, char **argv) {
    int killer = make_killer();
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    (void)argc, (void)argv;
    ravel_status status = ravel_comm_barrier(comm, &err);
    if (is_victim(comm) && write(killer, "", 1) != 1) return failed("the killer", world_rank, status, &err);
    if (!status) status = work_on(comm, &err);
    return expect(comm, status, RAVEL_E_PEER_LOST, &err, " is lost: ");
}

/* A message that is not the one which is expected: the receiver is told. */
static int disagrees(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE);
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t data[16] = {0};
    int32_t rank = ravel_comm_rank(comm);
    (void)argc, (void)argv;
    for (int32_t how = 0; how < 3; how++) {
        ravel_error seen = RAVEL_ERROR_INIT;
        ravel_status status = RAVEL_OK;
        if (rank == 0)
            status = ravel_comm_send(comm, data, how == 1 ? 4 : 8, how == 2 ? RAVEL_F64 : RAVEL_I64, 1, 3, &err);
        if (rank == 0 && status) return failed("send", rank, status, &err);
        if (rank == 1) status = ravel_comm_recv(comm, data, how == 0 ? 4 : 8, RAVEL_I64, 0, 3, &seen);
        if (rank == 1 && (status != RAVEL_E_MISMATCH || !strstr(seen.message, "rank 0 sends")))
            return failed("recv", rank, status, &seen);
    }
    if (ravel_comm_barrier(comm, &err)) return failed("barrier", rank, (ravel_status)err.status, &err);
    printf("ok disagrees\n");
    ravel_comm_free(comm);
    return 0;
}

/* A program that is through frees its communicator while others still work on what they have in common. */
static int leaves_in_order(int argc, char **argv) {
    ravel_comm *comm = open_with(PATIENCE), *part = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    int32_t rank = ravel_comm_rank(comm), last = ravel_comm_size(comm) - 1;
    int64_t x = 7, y = 0;
    (void)argc, (void)argv;
    ravel_status status = ravel_comm_split(comm, rank == last ? -1 : 0, rank, &part, &err);
    if (!status && rank == last) status = ravel_comm_send(comm, &x, 1, RAVEL_I64, 0, 1, &err);
    if (!status && rank != last) sleep_ms(100);
    if (!status && rank == 0) status = ravel_comm_recv(comm, &y, 1, RAVEL_I64, last, 1, &err); /* it has left by now */
    if (!status && part) status = ravel_comm_allreduce(part, &y, &x, 1, RAVEL_I64, RAVEL_MAX, &err);
    if (status || x != 7) return failed("in order", rank, status, &err);
    printf("ok leaves in order\n");
    ravel_comm_free(part);
    ravel_comm_free(comm);
    return 0;
}

/* ---- long arrays ---------------------------------------------------------------------------------------- */

/* What make soak does more of. */
static int64_t scale(int64_t usual, int64_t soak) {
    const char *text = getenv("RAVEL_SOAK");
    return text && *text ? soak : usual;
}

/* More bytes than an int can count, in make soak; at all times more than one message can hold here. From rank 0 to the
 * last one by broadcast, by message and by all-gather, to its last element. */
static int is_long(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    int64_t count = scale(5 << 20, (int64_t)1 << 31) + 4099, counts[8] = {count};
    (void)argc, (void)argv;
    ravel_comm_options_default(&options);
    if (count < 1 << 30) options.chunk_bytes = 1 << 20;
    ravel_status status = ravel_comm_open("auto", &options, &comm, &err);
    if (status) return failed("open", -1, status, &err);
    int32_t rank = ravel_comm_rank(comm), last = ravel_comm_size(comm) - 1;
    uint8_t *data = calloc(1, (size_t)count), want = 0;
    for (int how = 0; data && how < 3 && !status; how++) {
        want = (uint8_t)(how + 40);
        if (rank == 0) data[count - 1] = want;
        if (how == 0) status = ravel_comm_broadcast(comm, data, count, RAVEL_U8, 0, &err);
        if (how == 1 && rank == 0) status = ravel_comm_send(comm, data, count, RAVEL_U8, last, 1, &err);
        if (how == 1 && rank == last) status = ravel_comm_recv(comm, data, count, RAVEL_U8, 0, 1, &err);
        if (how == 2) status = ravel_comm_allgatherv(comm, data, data, counts, NULL, RAVEL_U8, &err);
        if (!status && (rank == last || rank == 0) && data[count - 1] != want) status = RAVEL_E_INTERNAL;
    }
    free(data);
    if (!data || status) return failed("long", rank, status, &err);
    printf("ok long\n");
    ravel_comm_free(comm);
    return 0;
}

/* ---- many small losses in one run ----------------------------------------------------------------------- */

static ravel_status one_operation(ravel_comm *comm, uint64_t which, int64_t *a, int64_t *b, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    ravel_request *r[2] = {NULL, NULL};
    ravel_comm *child = NULL;
    ravel_status status;
    switch (which % 7) {
    case 0: return ravel_comm_barrier(comm, err);
    case 1: return ravel_comm_broadcast(comm, a, 20, RAVEL_I64, n / 2, err);
    case 2: return ravel_comm_allgather(comm, a, b, 20, RAVEL_I64, err);
    case 3: return ravel_comm_alltoall(comm, a, b, 20, RAVEL_I64, err);
    case 4: return ravel_comm_allreduce(comm, a, b, 20, RAVEL_I64, RAVEL_SUM, err);
    case 5:
        status = ravel_comm_isend(comm, a, 3, RAVEL_I64, (me + 1) % n, 1, &r[0], err);
        if (!status) status = ravel_comm_irecv(comm, b, 3, RAVEL_I64, (me + n - 1) % n, 1, &r[1], err);
        if (!status) return ravel_request_wait_all(r, 2, err);
        (void)ravel_request_wait_all(r, 2, NULL);
        return status;
    default:
        status = ravel_comm_split(comm, me % 2, me, &child, err);
        if (!status) status = ravel_comm_barrier(child, err);
        ravel_comm_free(child);
        return status;
    }
}

/* On a communicator of its own: after some operations one rank leaves it or raises an error, the others go on until they
 * are told. The world they all came from must not mind. */
static int one_trial(ravel_comm *world, ravel__rng *rng, int64_t *a, int64_t *b) {
    ravel_comm *comm = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    uint64_t steps = ravel__rng_below(rng, 6), victim = ravel__rng_below(rng, (uint64_t)ravel_comm_size(world));
    uint64_t aborts_it = ravel__rng_below(rng, 2);
    int32_t me = ravel_comm_rank(world);
    ravel_status status = ravel_comm_dup(world, &comm, &err);
    if (status) return failed("dup", me, status, &err);
    for (uint64_t i = 0; i < steps && !status; i++) status = one_operation(comm, ravel__rng_next(rng), a, b, &err);
    /* The news may overtake the end of an operation that others have completed. */
    if (status && (me == (int32_t)victim || status != RAVEL_E_PEER_LOST)) return failed("before", me, status, &err);
    if (me == (int32_t)victim && aborts_it) ravel_comm_abort(comm, NULL);
    for (uint64_t i = 0; i < 20 && !status; i++) {
        uint64_t which = ravel__rng_next(rng);
        if (me != (int32_t)victim) status = one_operation(comm, which, a, b, &err);
    }
    ravel_comm_free(comm);
    if (me != (int32_t)victim && status != RAVEL_E_PEER_LOST) return failed("after", me, status, &err);
    ravel_error_clear(&err);
    status = ravel_comm_barrier(world, &err);
    return status ? failed("world", me, status, &err) : 0;
}

static int trials(int argc, char **argv) {
    ravel_comm *world = open_with(PATIENCE);
    int64_t *a = calloc(64, 20 * sizeof *a), *b = calloc(64, 20 * sizeof *b);
    int bad = 0;
    (void)argc, (void)argv;
    for (uint64_t i = 0; i < (uint64_t)scale(30, 500) && !bad; i++) {
        ravel__rng rng = ravel__rng_seed(seed() + i); /* the same on every rank, wherever it stopped the last time */
        bad = one_trial(world, &rng, a, b);
    }
    if (!bad) printf("ok trials\n");
    ravel_comm_free(world);
    free(a), free(b);
    return bad;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } tests[] = {{"body", body},
                 {"leaves", leaves},
                 {"leaves-open", leaves_open},
                 {"leaves-in-order", leaves_in_order},
                 {"aborts", aborts},
                 {"aborts-above-parts", aborts_above_parts},
                 {"late", is_late},
                 {"killed", is_killed},
                 {"trials", trials},
                 {"steady", steady},
                 {"disagrees", disagrees},
                 {"long", is_long}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc > 1 && strcmp(argv[1], tests[i].name) == 0) return tests[i].run(argc - 1, argv + 1);
    (void)fprintf(stderr, "usage: mpirun -n RANKS mpi-ranks TEST\n");
    return 2;
}
