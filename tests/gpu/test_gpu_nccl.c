/* NCCL itself, with the one rank that one GPU holds: every operation on device memory, a split, and the end. */
#include "tests/unit/check.h"

#include <ravel/comm.h>

#include <stdlib.h>

enum { COUNT = 100000, SECONDS = 60 };

typedef struct rank {
    ravel_device *device;
    ravel_stream *stream;
    ravel_comm *host, *comm;
    float *from, *to, *data; /* on the device twice, and on the host; [COUNT] */
    ravel_error err;
} rank;

static bool rank_open(rank *r) {
    void *from = NULL, *to = NULL;
    memset(r, 0, sizeof *r);
    r->data = malloc(COUNT * sizeof *r->data);
    bool good = r->data && EXPECT(ravel_device_open("cuda:0", &r->device, &r->err) == RAVEL_OK) &&
                EXPECT(ravel_stream_create(r->device, &r->stream, &r->err) == RAVEL_OK) &&
                EXPECT(ravel_comm_self(NULL, &r->host, &r->err) == RAVEL_OK) &&
                EXPECT(ravel_comm_nccl(r->host, r->stream, NULL, &r->comm, &r->err) == RAVEL_OK) &&
                EXPECT(ravel_device_alloc(r->device, RAVEL_DEVICE, COUNT * 4, r->stream, &from, &r->err) == RAVEL_OK) &&
                EXPECT(ravel_device_alloc(r->device, RAVEL_DEVICE, COUNT * 4, r->stream, &to, &r->err) == RAVEL_OK);
    r->from = from;
    r->to = to;
    if (!good) fprintf(stderr, "    %s\n", r->err.message);
    return good;
}

static void rank_close(rank *r) {
    ravel_comm_free(r->comm);
    ravel_comm_free(r->host);
    ravel_device_release(r->device, r->from, r->stream);
    ravel_device_release(r->device, r->to, r->stream);
    ravel_stream_free(r->stream);
    ravel_device_free(r->device);
    free(r->data);
}

/* Queues `from` = seed, seed + 1, ... and `to` = 0: the operation that follows must come after it in the stream. */
static void fill(rank *r, float seed) {
    for (int i = 0; i < COUNT; i++) r->data[i] = seed + (float)(i % 1000);
    EXPECT(ravel_device_copy(r->device, r->from, r->data, COUNT * 4, r->stream, &r->err) == RAVEL_OK);
    EXPECT(ravel_device_fill(r->device, r->to, 0, COUNT * 4, r->stream, &r->err) == RAVEL_OK);
}

static void expect_in(rank *r, const float *array, float seed, int64_t first, int64_t count, const char *what) {
    EXPECT(ravel_device_copy(r->device, r->data, array, COUNT * 4, r->stream, &r->err) == RAVEL_OK);
    EXPECT(ravel_stream_wait(r->stream, SECONDS, &r->err) == RAVEL_OK);
    for (int64_t i = 0; i < count; i++)
        if (r->data[i] != seed + (float)((first + i) % 1000)) {
            check_fail(__FILE__, __LINE__, "%s: element %lld is %g", what, (long long)i, (double)r->data[i]);
            return;
        }
}

static void run_all(rank *r, ravel_comm *c) {
    const int64_t count = COUNT, some = 777, from = 33, zero = 0;
    ravel_request *request = NULL;
    CHECK_OK(ravel_comm_barrier(c, &r->err), &r->err);
    fill(r, 1);
    CHECK_OK(ravel_comm_allreduce(c, r->from, r->to, COUNT, RAVEL_F32, RAVEL_SUM, &r->err), &r->err);
    expect_in(r, r->to, 1, 0, COUNT, "all-reduce");
    fill(r, 2);
    CHECK_OK(ravel_comm_broadcast(c, r->from, COUNT, RAVEL_F32, 0, &r->err), &r->err);
    expect_in(r, r->from, 2, 0, COUNT, "broadcast");
    fill(r, 3);
    CHECK_OK(ravel_comm_allgather(c, r->from, r->to, COUNT, RAVEL_F32, &r->err), &r->err);
    expect_in(r, r->to, 3, 0, COUNT, "all-gather");
    fill(r, 4);
    CHECK_OK(ravel_comm_alltoallv(c, r->from, &some, &from, r->to, &some, &zero, RAVEL_F32, &r->err), &r->err);
    expect_in(r, r->to, 4, from, some, "ragged all-to-all");
    fill(r, 5);
    CHECK_OK(ravel_comm_reduce_scatter(c, r->from, r->to, COUNT, RAVEL_F32, RAVEL_SUM, &r->err), &r->err);
    expect_in(r, r->to, 5, 0, COUNT, "reduce-scatter");
    fill(r, 6);
    CHECK_OK(ravel_comm_ialltoallv(c, r->from, &count, &zero, r->to, &count, &zero, RAVEL_F32, &request, &r->err),
             &r->err);
    CHECK_OK(ravel_request_wait(request, &r->err), &r->err);
    expect_in(r, r->to, 6, 0, COUNT, "non-blocking all-to-all");
}

TEST(gpu_nccl_one_rank) {
    rank r;
    ravel_comm *part = NULL;
    if (!rank_open(&r)) return;
    run_all(&r, r.comm);
    ravel_place place = {RAVEL_DEVICE, 0, r.stream};
    CHECK_OK(ravel_comm_place_check(r.comm, &place, &r.err), &r.err);
    CHECK_OK(ravel_comm_split(r.comm, 0, 0, &part, &r.err), &r.err);
    if (part) run_all(&r, part);
    ravel_comm_free(part);
    rank_close(&r);
}
