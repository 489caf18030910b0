/* Communicators of threads, against memcpy of the same bytes by the same threads, and latencies. */
#include "bench/bench.h"

#include <ravel/comm.h>

#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

typedef struct job {
    int64_t bytes;   /* that one rank receives */
    int32_t repeats; /* inside one timing */
    int32_t timings; /* of which the best counts */
    double times[2]; /* of the operation, of memcpy; seconds per repeat */
    ravel_status (*operate)(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err);
    int32_t from_root; /* the bytes come from rank 0, else a piece from each */
    char *sources[MOST];
    double starts[MOST], ends[MOST];
} job;

static ravel_status run_exchange(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    return ravel_comm_alltoall(comm, a, b, bytes / ravel_comm_size(comm), RAVEL_U8, err);
}
static ravel_status run_broadcast(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    (void)b;
    return ravel_comm_broadcast(comm, a, bytes, RAVEL_U8, 0, err);
}
static ravel_status run_gather(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    return ravel_comm_allgather(comm, a, b, bytes / ravel_comm_size(comm), RAVEL_U8, err);
}
static ravel_status run_allreduce(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    return ravel_comm_allreduce(comm, a, b, bytes / 4, RAVEL_F32, RAVEL_SUM, err);
}
static ravel_status run_barrier(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    (void)a, (void)b, (void)bytes;
    return ravel_comm_barrier(comm, err);
}
static ravel_status run_ping_pong(ravel_comm *comm, void *a, void *b, int64_t bytes, ravel_error *err) {
    int32_t me = ravel_comm_rank(comm);
    ravel_status status = me == 0 ? ravel_comm_send(comm, a, bytes, RAVEL_U8, 1, 0, err)
                                  : ravel_comm_recv(comm, b, bytes, RAVEL_U8, 0, 0, err);
    if (status) return status;
    return me == 0 ? ravel_comm_recv(comm, b, bytes, RAVEL_U8, 1, 0, err)
                   : ravel_comm_send(comm, a, bytes, RAVEL_U8, 0, 0, err);
}

/* The yardstick: every rank copies the bytes that it receives with memcpy. */
static void run_copy(const job *j, int32_t me, int32_t ranks, char *to) {
    int64_t piece = j->bytes / ranks;
    for (int32_t r = 0; r < ranks && !j->from_root; r++)
        memcpy(to + r * piece, j->sources[(me + r) % ranks] + me * piece, (size_t)piece);
    if (j->from_root && me != 0) memcpy(to, j->sources[0], (size_t)j->bytes);
}

/* From the first rank's start to the last one's end: with more threads than cores no single rank sees it all. */
static ravel_status time_one(ravel_comm *comm, job *j, int which, char *a, char *b, ravel_error *err) {
    int32_t me = ravel_comm_rank(comm), n = ravel_comm_size(comm);
    ravel_status status = ravel_comm_barrier(comm, err);
    j->starts[me] = bench_seconds();
    for (int32_t i = 0; i < j->repeats && !status; i++)
        if (which)
            run_copy(j, me, n, j->from_root ? a : b);
        else
            status = j->operate(comm, a, b, j->bytes, err);
    j->ends[me] = bench_seconds();
    if (!status) status = ravel_comm_barrier(comm, err);
    double start = j->starts[0], end = j->ends[0];
    for (int32_t r = 0; r < n && me == 0; r++) {
        start = j->starts[r] < start ? j->starts[r] : start;
        end = j->ends[r] > end ? j->ends[r] : end;
    }
    if (me == 0 && (end - start) / j->repeats < j->times[which]) j->times[which] = (end - start) / j->repeats;
    return status ? status : ravel_comm_barrier(comm, err);
}

static ravel_status on_rank(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    size_t bytes = (size_t)j->bytes + 64;
    char *a = malloc(bytes), *b = malloc(bytes);
    ravel_status status = a && b ? RAVEL_OK : RAVEL_E_MEMORY;
    if (!status) memset(a, 0, bytes), memset(b, 0, bytes);
    j->sources[ravel_comm_rank(comm)] = a;
    for (int32_t t = 0; t < j->timings && !status; t++) {
        status = time_one(comm, j, 0, a, b, err);
        if (!status && j->bytes) status = time_one(comm, j, 1, a, b, err);
    }
    if (!status) status = ravel_comm_barrier(comm, err); /* others may still copy from here */
    free(a), free(b);
    return status;
}

static job measure(int32_t ranks, ravel_status (*operate)(ravel_comm *, void *, void *, int64_t, ravel_error *),
                   int64_t bytes, int32_t repeats, int32_t timings) {
    ravel_error err = RAVEL_ERROR_INIT;
    job j = {bytes, repeats, timings, {1e9, 1e9}, operate, operate == run_broadcast, {NULL}, {0}, {0}};
    if (ravel_threads_run(ranks, NULL, on_rank, &j, &err)) bench_note("comm: %s", err.message);
    return j;
}

static void report_ratio(const char *name,
                         ravel_status (*operate)(ravel_comm *, void *, void *, int64_t, ravel_error *), int32_t ranks,
                         int64_t bytes) {
    job j = measure(ranks, operate, bytes, 2, 15);
    double ratio = j.times[0] / j.times[1];
    bench_report(name, ratio, "x", LOWER,
                 "%d threads, %lld MiB to each; memcpy of the same bytes by the same threads is 1", ranks,
                 (long long)(bytes >> 20));
}

BENCH(comm) {
    enum { MIB = 1 << 20 };
    report_ratio("comm.alltoallv_vs_memcpy", run_exchange, 8, 16 * MIB);
    report_ratio("comm.allgather_vs_memcpy", run_gather, 8, 16 * MIB);
    report_ratio("comm.broadcast_vs_memcpy", run_broadcast, 8, 16 * MIB);
    report_ratio("comm.allreduce_vs_memcpy", run_allreduce, 8, 16 * MIB);
    bench_report("comm.allreduce_us_8", measure(8, run_allreduce, 4096, 200, 9).times[0] * 1e6, "us", LOWER,
                 "8 threads, 1024 f32");
    bench_report("comm.barrier_us_8", measure(8, run_barrier, 0, 300, 9).times[0] * 1e6, "us", LOWER, "8 threads");
    bench_report("comm.barrier_us_64", measure(64, run_barrier, 0, 100, 9).times[0] * 1e6, "us", LOWER, "64 threads");
    bench_report("comm.message_us", measure(2, run_ping_pong, 8, 1000, 9).times[0] / 2 * 1e6, "us", LOWER,
                 "2 threads, 8 bytes, one way");
}
