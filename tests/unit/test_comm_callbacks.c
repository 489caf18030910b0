/* The callbacks back end: tables of different richness over a communicator of threads, the body that every back end
 * runs, and callbacks that fail. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"

#include <stdlib.h>

enum { HAS_ALL = 1, HAS_MESSAGES = 4, HAS_SPLIT = 8, HAS_REDUCE = 16 };

/* ---- a table over another communicator ------------------------------------------------------------------ */

static ravel_status on_barrier(void *user, double timeout, ravel_error *err) {
    (void)timeout;
    return ravel_comm_barrier(user, err);
}

static ravel_status on_broadcast(void *user, void *data, int64_t bytes, int32_t root, double timeout,
                                 ravel_error *err) {
    (void)timeout;
    return ravel_comm_broadcast(user, data, bytes, RAVEL_U8, root, err);
}

static ravel_status on_allgatherv(void *user, const void *send, int64_t send_bytes, void *recv,
                                  const int64_t *recv_bytes, const int64_t *recv_offsets, double timeout,
                                  ravel_error *err) {
    (void)timeout;
    if (send_bytes != recv_bytes[ravel_comm_rank(user)]) return RAVEL_E_INTERNAL;
    return ravel_comm_allgatherv(user, send, recv, recv_bytes, recv_offsets, RAVEL_U8, err);
}

static ravel_status on_alltoallv(void *user, const void *send, const int64_t *send_bytes, const int64_t *send_offsets,
                                 void *recv, const int64_t *recv_bytes, const int64_t *recv_offsets, double timeout,
                                 ravel_error *err) {
    (void)timeout;
    return ravel_comm_alltoallv(user, send, send_bytes, send_offsets, recv, recv_bytes, recv_offsets, RAVEL_U8, err);
}

static ravel_status on_allreduce(void *user, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                                 double timeout, ravel_error *err) {
    (void)timeout;
    return ravel_comm_allreduce(user, send, recv, count, dtype, reduce, err);
}

/* The inner communicator has 2^15 tags only: what differs modulo that still meets in the right order here, since the
 * body's ranks use their communicators one after the other. */
static ravel_status on_send(void *user, const void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                            ravel_error *err) {
    (void)timeout;
    return ravel_comm_send(user, data, bytes, RAVEL_U8, peer, tag % RAVEL_TAG_MAX, err);
}

static ravel_status on_recv(void *user, void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                            ravel_error *err) {
    (void)timeout;
    return ravel_comm_recv(user, data, bytes, RAVEL_U8, peer, tag % RAVEL_TAG_MAX, err);
}

static void on_abort(void *user, const char *why) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_error_set(&err, RAVEL_E_CALLBACK, "%s", why);
    ravel_comm_abort(user, &err);
}

static void on_close(void *user) {
    ravel_comm_free(user);
}

static ravel_status on_split(void *user, const int32_t *members, int32_t count, int32_t index, ravel_comm_hooks *child,
                             double timeout, ravel_error *err);

static ravel_comm_hooks hooks_of(ravel_comm *inner, int32_t has) {
    ravel_comm_hooks h;
    memset(&h, 0, sizeof h);
    h.size = sizeof h;
    h.user = inner;
    h.rank = ravel_comm_rank(inner);
    h.ranks = ravel_comm_size(inner);
    if (has & HAS_ALL) h.barrier = on_barrier, h.broadcast = on_broadcast, h.alltoallv = on_alltoallv;
    if (has & HAS_ALL) h.allgatherv = on_allgatherv;
    if (has & (HAS_ALL | HAS_MESSAGES)) h.send = on_send, h.recv = on_recv;
    if (has & HAS_REDUCE) h.allreduce = on_allreduce;
    if (has & HAS_SPLIT) h.split = on_split;
    h.abort = on_abort;
    return h;
}

/* The child's inner communicator is made by messages of the parent's, which has no such call: here by a split of its
 * inner one, with every rank taking part. The body splits with all colours at once, so that works. */
static ravel_status on_split(void *user, const int32_t *members, int32_t count, int32_t index, ravel_comm_hooks *child,
                             double timeout, ravel_error *err) {
    ravel_comm *inner = NULL;
    ravel_comm *parent = user;
    (void)timeout, (void)count;
    /* All members know members[0]: it is the colour. Ranks without a colour do not come here, so the test uses this
     * only where every rank has one. */
    ravel_status status = ravel_comm_split(parent, members[0], index, &inner, err);
    if (status) return status;
    *child = hooks_of(inner, HAS_ALL | HAS_REDUCE | HAS_SPLIT);
    child->close = on_close;
    return RAVEL_OK;
}

/* ---- the body ------------------------------------------------------------------------------------------- */

typedef struct table_job {
    comm_job job;
    int32_t has;
    const comm_body *body;
    int64_t chunk;
} table_job;

static ravel_status run_over_table(ravel_comm *inner, void *user, ravel_error *err) {
    table_job *t = user;
    ravel_comm_hooks hooks = hooks_of(inner, t->has);
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    ravel_comm_options_default(&options);
    options.chunk_bytes = t->chunk;
    ravel_status status = ravel_comm_callbacks(&hooks, &options, &comm, err);
    if (status) return status;
    status = t->body->run(comm, &t->job, err);
    ravel_comm_free(comm);
    return status;
}

static void run_tables(int32_t has, int64_t chunk, const char *skip) {
    static const int32_t sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < 4; i++)
        for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1)) {
            table_job t = {{check_seed(), (int32_t)check_rounds(60, 1000), 700, 0, 1}, has, body, chunk};
            ravel_error err = RAVEL_ERROR_INIT;
            if (skip && strstr(skip, body->name)) continue;
            ravel_status status = ravel_threads_run(sizes[i], NULL, run_over_table, &t, &err);
            if (status)
                check_fail(__FILE__, __LINE__, "%d ranks, table %d, %s: %s: %s", sizes[i], has, body->name,
                           ravel_status_name(status), err.message);
        }
}

TEST(comm_callbacks_with_a_full_table_run_the_body) {
    run_tables(HAS_ALL, 1 << 30, NULL);
    run_tables(HAS_ALL | HAS_REDUCE, 1000, "large arrays");
}

TEST(comm_callbacks_with_messages_only_run_the_body) {
    run_tables(HAS_MESSAGES, 1 << 30, "large arrays");
    run_tables(HAS_MESSAGES, 77, "large arrays");
}

static ravel_status split_by_table(ravel_comm *inner, void *user, ravel_error *err) {
    ravel_comm_hooks hooks = hooks_of(inner, HAS_ALL | HAS_SPLIT);
    ravel_comm *comm = NULL, *half = NULL, *again = NULL;
    int64_t x = 1, sum = 0;
    (void)user;
    ravel_status status = ravel_comm_callbacks(&hooks, NULL, &comm, err);
    if (!status) status = ravel_comm_split(comm, ravel_comm_rank(comm) % 2, 0, &half, err);
    if (!status) status = ravel_comm_dup(half, &again, err);
    if (!status) status = ravel_comm_allreduce(again, &x, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
    if (!status && sum != ravel_comm_size(half)) status = ravel_error_set(err, RAVEL_E_INTERNAL, "sum %d", (int)sum);
    ravel_comm_free(again);
    ravel_comm_free(half);
    ravel_comm_free(comm);
    return status;
}

TEST(comm_callbacks_split_by_the_table) {
    for (int32_t n = 1; n <= 6; n++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_threads_run(n, NULL, split_by_table, NULL, &err), &err);
    }
}

/* A child that speaks through its parent's table does not close it, also where its making fails. */
static void count_close(void *user) {
    ++*(int *)user;
}

static ravel_status close_once(const ravel_allocator *allocator, void *user) {
    int closed = 0;
    ravel_comm_hooks h;
    ravel_comm_options options;
    ravel_comm *comm = NULL, *child = NULL;
    (void)user;
    memset(&h, 0, sizeof h);
    h.size = sizeof h, h.user = &closed, h.ranks = 1;
    h.send = on_send, h.recv = on_recv, h.close = count_close;
    ravel_comm_options_default(&options);
    options.allocator = allocator;
    ravel_status status = ravel_comm_callbacks(&h, &options, &comm, NULL);
    if (status) return status;
    status = ravel_comm_dup(comm, &child, NULL);
    ravel_comm_free(child);
    EXPECT(closed == 0);
    ravel_comm_free(comm);
    EXPECT(closed == 1);
    return status ? RAVEL_E_MEMORY : RAVEL_OK; /* inside of a collective it is E_CALLBACK */
}

TEST(comm_callbacks_close_a_table_once) {
    CHECK(check_every_allocation(close_once, NULL) > 5);
}

/* ---- failures ------------------------------------------------------------------------------------------- */

static ravel_status failing_gather(void *user, const void *send, int64_t send_bytes, void *recv,
                                   const int64_t *recv_bytes, const int64_t *recv_offsets, double timeout,
                                   ravel_error *err) {
    (void)user, (void)send, (void)send_bytes, (void)recv, (void)recv_bytes, (void)recv_offsets;
    if (!(timeout > 0 && timeout <= 5)) return RAVEL_E_INTERNAL;
    return ravel_error_set(err, RAVEL_E_IO, "the cable is out");
}

TEST(comm_callbacks_that_fail_make_it_dead) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_comm_options options;
    ravel_comm_hooks h;
    memset(&h, 0, sizeof h);
    CHECK_EQ(ravel_comm_callbacks(&h, NULL, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "sizeof(ravel_comm_hooks)");
    ravel_error_clear(&err);
    h.size = sizeof h;
    CHECK_EQ(ravel_comm_callbacks(&h, NULL, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "ranks count from 0");
    ravel_error_clear(&err);
    h.ranks = 2, h.rank = 1;
    CHECK_EQ(ravel_comm_callbacks(&h, NULL, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs both send and recv; send is NULL");
    ravel_error_clear(&err);
    h.send = on_send, h.recv = on_recv, h.allgatherv = failing_gather;
    ravel_comm_options_default(&options);
    options.timeout = 5;
    CHECK_OK(ravel_comm_callbacks(&h, &options, &comm, &err), &err);
    CHECK_EQ(ravel_comm_barrier(comm, &err), RAVEL_E_CALLBACK);
    CHECK_HAS(err.message, "the cable is out");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_comm_barrier(comm, &err), RAVEL_E_DEAD);
    CHECK_HAS(err.message, "the cable is out");
    ravel_comm_free(comm);
}

/* ---- messages to oneself, and messages that fail ---------------------------------------------------------- */

TEST(comm_callbacks_messages_to_oneself_keep_their_order) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_comm_hooks h;
    memset(&h, 0, sizeof h);
    h.size = sizeof h, h.ranks = 1, h.send = on_send, h.recv = on_recv;
    CHECK_OK(ravel_comm_callbacks(&h, NULL, &comm, &err), &err);
    for (int receives_first = 0; receives_first < 2; receives_first++) {
        int32_t out[3] = {7, 8, 9}, in[3] = {0};
        ravel_request *sends[3], *recvs[3];
        for (int turn = 0; turn < 2; turn++)
            for (int i = 0; i < 3; i++)
                if ((turn == 0) == receives_first)
                    CHECK_OK(ravel_comm_irecv(comm, &in[i], 1, RAVEL_I32, 0, 5, &recvs[i], &err), &err);
                else
                    CHECK_OK(ravel_comm_isend(comm, &out[i], 1, RAVEL_I32, 0, 5, &sends[i], &err), &err);
        CHECK_OK(ravel_request_wait_all(sends, 3, &err), &err);
        CHECK_OK(ravel_request_wait_all(recvs, 3, &err), &err);
        CHECK(in[0] == 7 && in[1] == 8 && in[2] == 9);
    }
    int32_t one = 1;
    ravel_request *send = NULL, *recv = NULL;
    CHECK_OK(ravel_comm_isend(comm, &one, 1, RAVEL_I32, 0, 5, &send, &err), &err);
    CHECK_OK(ravel_comm_irecv(comm, &one, 2, RAVEL_U8, 0, 5, &recv, &err), &err);
    CHECK_EQ(ravel_request_wait(send, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "receive of 2 u8");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_request_wait(recv, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "send of 1 i32");
    ravel_comm_free(comm);
}

typedef struct failing_table {
    int32_t calls;
    double longest; /* that a callback was given */
} failing_table;

static ravel_status failing_recv(void *user, void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                                 ravel_error *err) {
    failing_table *t = user;
    (void)data, (void)bytes, (void)peer, (void)tag;
    t->calls++;
    if (timeout > t->longest) t->longest = timeout;
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "nobody sent");
}

/* One deadline for all messages that a wait runs, and no callback after one has failed. */
TEST(comm_callbacks_messages_end_with_the_first_failure) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_comm_hooks h;
    failing_table table = {0};
    ravel_request *requests[4];
    int32_t in[4];
    memset(&h, 0, sizeof h);
    h.size = sizeof h, h.user = &table, h.ranks = 2, h.send = on_send, h.recv = failing_recv;
    CHECK_OK(ravel_comm_callbacks(&h, NULL, &comm, &err), &err);
    for (int i = 0; i < 4; i++) CHECK_OK(ravel_comm_irecv(comm, &in[i], 1, RAVEL_I32, 1, i, &requests[i], &err), &err);
    ravel_comm_set_timeout(comm, 5);
    CHECK_EQ(ravel_request_wait(requests[3], &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "nobody sent");
    CHECK_EQ(table.calls, 1);
    CHECK(table.longest > 0 && table.longest <= 5);
    for (int i = 0; i < 3; i++) CHECK_EQ(ravel_request_wait(requests[i], NULL), RAVEL_E_TIMEOUT);
    ravel_comm_free(comm);
}
