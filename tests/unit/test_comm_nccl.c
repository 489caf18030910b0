/* The NCCL back end over a mock of NCCL: the body of all communicators on 1 to 8 ranks, and what goes wrong. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/mock_nccl.h"

#include "comm/nccl_comm.h"

#include <ravel/device.h>

typedef struct wrapped {
    const comm_body *body;
    comm_job job;
    ravel_comm_options options;
} wrapped;

/* A rank's device and NCCL communicator over its host communicator; then the body. */
static ravel_status with_nccl(ravel_comm *host, void *user, ravel_error *err) {
    wrapped *w = user;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_comm *comm = NULL;
    ravel_status status = ravel_device_open("host", &device, err);
    if (!status) status = ravel_stream_create(device, &stream, err);
    if (!status) status = ravel__comm_nccl_with(&mock_nccl_table, host, stream, &w->options, &comm, err);
    if (!status) status = w->body->run(comm, &w->job, err);
    ravel_comm_free(comm);
    ravel_stream_free(stream);
    ravel_device_free(device);
    return status;
}

static void run_bodies(int32_t ranks, int32_t rounds, int64_t most, int32_t check) {
    for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1)) {
        ravel_error err = RAVEL_ERROR_INIT;
        wrapped w = {body, {check_seed(), rounds, most, !check, 0}, {0}};
        ravel_comm_options_default(&w.options);
        w.options.check = check;
        w.options.timeout = 60;
        ravel_status status = ravel_threads_run(ranks, NULL, with_nccl, &w, &err);
        if (status)
            check_fail(__FILE__, __LINE__, "%d ranks, %s, check %d: %s: %s", ranks, body->name, check,
                       ravel_status_name(status), err.message);
    }
}

TEST(comm_nccl_mock_runs_the_body) {
    static const int32_t sizes[] = {1, 2, 3, 5, 8};
    mock_nccl_reset();
    for (int i = 0; i < 5; i++) run_bodies(sizes[i], (int32_t)check_rounds(30, 1000), 1000, 1);
    run_bodies(4, (int32_t)check_rounds(30, 1000), 1000, 0);
    CHECK_EQ(mock_nccl.violations, 0);
    CHECK_EQ(mock_nccl.live, 0);
    if (check_repeated()) return; /* few bodies ran */
    CHECK(mock_nccl.groups > 100 && mock_nccl.messages > mock_nccl.groups && mock_nccl.collectives > 100);
    CHECK(mock_nccl.gathers > 10 && mock_nccl.scatters > 10);
}

/* ---- queued --------------------------------------------------------------------------------------------- */

/* Sums and messages without tags: two to the next rank, received together with those that come, in their order. */
static ravel_status run_queued(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), next = (me + 1) % n, last = (me + n - 1) % n;
    const comm_job *job = user;
    ravel_status status = RAVEL_OK;
    for (int32_t round = 0; round < job->rounds && !status; round++) {
        int64_t out[2] = {me * 100 + round, me * 100 + round + 1}, in[2] = {-1, -1}, sum = me;
        ravel_request *requests[4] = {NULL};
        status = ravel_comm_allreduce(comm, &sum, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
        for (int i = 0; i < 2 && !status; i++) {
            status = ravel_comm_irecv(comm, &in[i], 1, RAVEL_I64, last, 1 - i, &requests[2 * i], err);
            if (!status) status = ravel_comm_isend(comm, &out[i], 1, RAVEL_I64, next, i, &requests[2 * i + 1], err);
        }
        if (!status) status = ravel_request_wait_all(requests, 4, err);
        if (!status && (sum != n * (n - 1) / 2 || in[0] != last * 100 + round || in[1] != in[0] + 1))
            status = ravel_error_set(err, RAVEL_E_INTERNAL, "%lld, %lld, %lld", (long long)sum, (long long)in[0],
                                     (long long)in[1]);
    }
    return status;
}

TEST(comm_nccl_mock_queued_operations_need_no_headers) {
    const comm_body body = {"queued", run_queued};
    ravel_error err = RAVEL_ERROR_INIT;
    wrapped w = {&body, {0, 50, 0, 0, 0}, {0}};
    mock_nccl_reset();
    ravel_comm_options_default(&w.options);
    w.options.queued = 1;
    w.options.timeout = 30;
    CHECK_OK(ravel_threads_run(4, NULL, with_nccl, &w, &err), &err);
    CHECK_EQ(mock_nccl.violations, 0);
    CHECK_EQ(mock_nccl.live, 0);
    CHECK_EQ(mock_nccl.groups, 4 * 50); /* all four messages of a round are one */
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

/* Equal pieces in the order of ranks, in the other order, and with a gap: only the first are NCCL's own all-gather. */
static ravel_status gather_pieces(ravel_comm *comm, void *user, ravel_error *err) {
    enum { PIECE = 5, MOST = 8 };
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), all[MOST * (PIECE + 1)], mine[PIECE];
    (void)user;
    for (int32_t i = 0; i < PIECE; i++) mine[i] = 100 * me + i;
    for (int kind = 0; kind < 3; kind++) {
        int64_t counts[MOST], offsets[MOST];
        for (int32_t r = 0; r < n; r++) {
            counts[r] = PIECE;
            offsets[r] = kind == 0 ? r * PIECE : kind == 1 ? (n - 1 - r) * PIECE : r * (PIECE + 1);
        }
        ravel_status status = ravel_comm_allgatherv(comm, mine, all, counts, offsets, RAVEL_I32, err);
        if (status) return status;
        for (int32_t r = 0; r < n; r++)
            for (int32_t i = 0; i < PIECE; i++)
                if (all[offsets[r] + i] != 100 * r + i) return ravel_error_set(err, RAVEL_E_INTERNAL, "kind %d", kind);
    }
    return RAVEL_OK;
}

TEST(comm_nccl_mock_pieces_in_another_order_are_messages) {
    const comm_body body = {"pieces", gather_pieces};
    ravel_error err = RAVEL_ERROR_INIT;
    wrapped w = {&body, {0, 0, 0, 0, 0}, {0}};
    mock_nccl_reset();
    ravel_comm_options_default(&w.options);
    w.options.check = 0;
    CHECK_OK(ravel_threads_run(4, NULL, with_nccl, &w, &err), &err);
    CHECK_EQ(mock_nccl.violations, 0);
    CHECK_EQ(mock_nccl.gathers, 4);
    CHECK_EQ(mock_nccl.groups, 2 * 4);
}

/* ---- what goes wrong ------------------------------------------------------------------------------------ */

static ravel_status sum_once(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t one = 1, sum = 0;
    (void)user;
    return ravel_comm_allreduce(comm, &one, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
}

static ravel_status expect_failure(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    ravel_error seen = RAVEL_ERROR_INIT;
    ravel_status met = ravel_comm_barrier(comm, err); /* all have their communicators */
    if (met) return met;
    if (job->seed == 1) ravel_comm_set_timeout(comm, 0.2); /* only now must a deadline pass */
    mock_nccl_break(job->seed == 1, job->seed == 2 ? 5 : 0);
    ravel_status status = sum_once(comm, NULL, &seen);
    ravel_status wanted = job->seed == 1 ? RAVEL_E_TIMEOUT : RAVEL_E_PEER_LOST;
    if (status != wanted && status != RAVEL_E_PEER_LOST)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
    ravel_error_clear(&seen);
    if (sum_once(comm, NULL, &seen) != RAVEL_E_DEAD) return ravel_error_set(err, RAVEL_E_INTERNAL, "it is not dead");
    return RAVEL_OK;
}

static void run_failure(int32_t ranks, uint64_t which) {
    const comm_body body = {"failure", expect_failure};
    ravel_error err = RAVEL_ERROR_INIT;
    wrapped w = {&body, {which, 0, 0, 0, 0}, {0}};
    mock_nccl_reset();
    ravel_comm_options_default(&w.options);
    w.options.timeout = 60;
    w.options.check = 0;
    CHECK_OK(ravel_threads_run(ranks, NULL, with_nccl, &w, &err), &err);
    CHECK_EQ(mock_nccl.live, 0);
}

TEST(comm_nccl_mock_deadline_and_errors) {
    run_failure(2, 1); /* NCCL never finishes */
    run_failure(3, 2); /* NCCL says that it is broken */
}

/* The last rank leaves: the others are told by the host communicator. */
static ravel_status leave_early(ravel_comm *comm, void *user, ravel_error *err) {
    (void)user;
    ravel_status met = ravel_comm_barrier(comm, NULL);
    if (met) return met == RAVEL_E_PEER_LOST ? RAVEL_OK : met;
    if (ravel_comm_rank(comm) == ravel_comm_size(comm) - 1) {
        ravel_comm_abort(comm, NULL);
        return RAVEL_OK;
    }
    ravel_error seen = RAVEL_ERROR_INIT;
    ravel_status status = sum_once(comm, NULL, &seen);
    if (status == RAVEL_E_PEER_LOST) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
}

TEST(comm_nccl_mock_lost_rank) {
    const comm_body body = {"leaving", leave_early};
    ravel_error err = RAVEL_ERROR_INIT;
    wrapped w = {&body, {0, 0, 0, 0, 0}, {0}};
    mock_nccl_reset();
    ravel_comm_options_default(&w.options);
    w.options.timeout = 30;
    CHECK_OK(ravel_threads_run(3, NULL, with_nccl, &w, &err), &err);
    CHECK_EQ(mock_nccl.live, 0);
}

/* Rank 0 sends more than rank 1 expects: no group is left open, and both get the error. */
static ravel_status send_too_much(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t data[2] = {1, 2};
    ravel_error seen = RAVEL_ERROR_INIT;
    (void)user;
    ravel_status status = ravel_comm_rank(comm) == 0 ? ravel_comm_send(comm, data, 2, RAVEL_I64, 1, 0, &seen)
                                                     : ravel_comm_recv(comm, data, 1, RAVEL_I64, 0, 0, &seen);
    if (status == RAVEL_E_PEER_LOST && strstr(seen.message, "16 bytes of i64, and 8 of i64 are expected"))
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
}

/* Only rank 0 comes: the deadline is the communicator's own, not the one below it. */
static ravel_status come_alone(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_error seen = RAVEL_ERROR_INIT;
    (void)user;
    ravel_status met = ravel_comm_barrier(comm, err);
    if (met || ravel_comm_timeout(ravel_comm_host(comm)) != 60)
        return met ? met : ravel_error_set(err, RAVEL_E_INTERNAL, "the timeout of the options is not used");
    ravel_comm_set_timeout(comm, 0.1);
    ravel_status status = RAVEL_E_PEER_LOST;
    if (ravel_comm_rank(comm) == 0)
        status = sum_once(comm, NULL, &seen);
    else
        while (ravel_comm_alive(comm, &seen) == RAVEL_OK) {}
    if (status == (ravel_comm_rank(comm) ? RAVEL_E_PEER_LOST : RAVEL_E_TIMEOUT)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
}

TEST(comm_nccl_mock_wrong_messages_and_missing_ranks) {
    static const comm_body bodies[] = {{"too much", send_too_much}, {"alone", come_alone}};
    for (int i = 0; i < 2; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        wrapped w = {&bodies[i], {0, 0, 0, 0, 0}, {0}};
        mock_nccl_reset();
        ravel_comm_options_default(&w.options);
        w.options.timeout = 60;
        CHECK_OK(ravel_threads_run(2, NULL, with_nccl, &w, &err), &err);
        CHECK_EQ(mock_nccl.violations, 0);
        CHECK_EQ(mock_nccl.live, 0);
    }
}

TEST(comm_nccl_says_what_is_missing) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_comm *host = NULL, *comm = NULL;
    CHECK_OK(ravel_comm_self(NULL, &host, &err), &err);
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    CHECK_EQ(ravel_comm_nccl(host, stream, NULL, &comm, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "a stream of a CUDA device");
    ravel_place place = {RAVEL_DEVICE, 0, stream};
    ravel_error_clear(&err);
    CHECK_EQ(ravel_comm_place_check(host, &place, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "device memory cannot travel over self; ravel_comm_nccl");
    place.kind = RAVEL_PINNED;
    ravel_error_clear(&err);
    CHECK_OK(ravel_comm_place_check(host, &place, &err), &err);
    CHECK(ravel_comm_host(host) == host);
    ravel_stream_free(stream);
    ravel_device_free(device);
    ravel_comm_free(host);
}

/* Rank 0 cannot have NCCL: the other ranks, which come to meet it, get its sentence at once. */
static ravel_status without_nccl(ravel_comm *host, void *user, ravel_error *err) {
    ravel_error seen = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_comm *comm = NULL;
    (void)user;
    ravel_status status = ravel_device_open("host", &device, err);
    if (!status) status = ravel_stream_create(device, &stream, err);
    if (status) return status;
    status = ravel_comm_rank(host) == 0 ? ravel_comm_nccl(host, stream, NULL, &comm, &seen)
                                        : ravel_agree(host, RAVEL_OK, &seen); /* what a rank with NCCL would do */
    ravel_stream_free(stream);
    ravel_device_free(device);
    if (status == RAVEL_E_UNSUPPORTED && strstr(seen.message, "rank 0: NCCL needs a stream")) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
}

TEST(comm_nccl_that_one_rank_lacks_is_an_error_of_all) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 60;
    CHECK_OK(ravel_threads_run(3, &options, without_nccl, NULL, &err), &err);
}
