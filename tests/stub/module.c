/* The stub driver and the mock of NCCL as a module: RAVEL_CUDA_MODULE and RAVEL_NCCL_MODULE name this file in tests of what is
 * above libravel, such as the Python package. Devices "cuda:0" and "cuda:1" are host memory with lazy streams. */
#include "tests/unit/mock_nccl.h"
#include "tests/unit/stub_driver.h"

RAVEL_API const ravel__driver *ravel_driver(void);
RAVEL_API const ravel__nccl *ravel_nccl(void);
/* What was counted; see stub_driver.h. */
RAVEL_API int64_t stub_live(void);
RAVEL_API int64_t stub_count(int32_t call);
RAVEL_API void stub_fail_next(int32_t call, int32_t code);
/* Streams never move from now on, or move again. */
RAVEL_API void stub_hold(int32_t stuck);

static ravel__driver driver;
static ravel__nccl nccl;

const ravel__driver *ravel_driver(void) {
    return &driver;
}

const ravel__nccl *ravel_nccl(void) {
    return &nccl;
}

/* NCCL runs an operation after what is in its stream; the mock moves bytes at once, so the stream is emptied first. */
static void drain(void *stream) {
    while (stub_driver.stream_test(NULL, stream) == RAVEL__DRIVER_PENDING && !stub.stuck) {}
}

static int send_after(void *comm, const void *data, int64_t bytes, int32_t peer, void *stream) {
    drain(stream);
    return mock_nccl_table.send(comm, data, bytes, peer, stream);
}

static int recv_after(void *comm, void *data, int64_t bytes, int32_t peer, void *stream) {
    drain(stream);
    return mock_nccl_table.recv(comm, data, bytes, peer, stream);
}

static int broadcast_after(void *comm, void *data, int64_t bytes, int32_t root, void *stream) {
    drain(stream);
    return mock_nccl_table.broadcast(comm, data, bytes, root, stream);
}

static int allreduce_after(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                           void *stream) {
    drain(stream);
    return mock_nccl_table.allreduce(comm, send, recv, count, dtype, reduce, stream);
}

static int reduce_after(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                        int32_t root, void *stream) {
    drain(stream);
    return mock_nccl_table.reduce(comm, send, recv, count, dtype, reduce, root, stream);
}

static int allgather_after(void *comm, const void *send, void *recv, int64_t bytes, void *stream) {
    drain(stream);
    return mock_nccl_table.allgather(comm, send, recv, bytes, stream);
}

static int reduce_scatter_after(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                                void *stream) {
    drain(stream);
    return mock_nccl_table.reduce_scatter(comm, send, recv, count, dtype, reduce, stream);
}

__attribute__((constructor)) static void fill_tables(void) {
    driver = stub_driver;
    driver.kind = "cuda";
    nccl = mock_nccl_table;
    nccl.send = send_after;
    nccl.recv = recv_after;
    nccl.broadcast = broadcast_after;
    nccl.allreduce = allreduce_after;
    nccl.reduce = reduce_after;
    nccl.allgather = allgather_after;
    nccl.reduce_scatter = reduce_scatter_after;
}

int64_t stub_live(void) {
    return stub.live;
}

int64_t stub_count(int32_t call) {
    return stub.calls[call];
}

void stub_fail_next(int32_t call, int32_t code) {
    stub_fail((stub_call)call, 0, code);
}

void stub_hold(int32_t stuck) {
    stub.stuck = stuck;
}
