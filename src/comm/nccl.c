/* NCCL as the table of nccl.h: the one file that sees nccl.h. Communicators are non-blocking, so that a missing peer
 * ends in our deadline and not in a hang. */
#include "comm/nccl.h"

#include "base/assert.h"

#include <ravel/comm.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

enum { CUDA_CODE = 1 << 20 };

RAVEL_API const ravel__nccl *ravel_nccl(void);

static int of(ncclResult_t result) {
    return result == ncclSuccess ? 0 : result == ncclInProgress ? RAVEL__NCCL_PENDING : (int)result;
}

static int nccl_id(unsigned char *id) {
    ncclUniqueId unique;
    int code = of(ncclGetUniqueId(&unique));
    _Static_assert(sizeof unique == RAVEL__NCCL_ID, "an id has 128 bytes");
    if (!code) memcpy(id, &unique, sizeof unique);
    return code;
}

static int nccl_begin(int32_t device, int32_t ranks, int32_t rank, const unsigned char *id, void **comm) {
    RAVEL_ASSERT(device >= 0 && rank >= 0 && rank < ranks);
    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int before = device;
    memcpy(&unique, id, sizeof unique);
    config.blocking = 0;
    cudaError_t cuda = cudaGetDevice(&before);
    if (cuda == cudaSuccess) cuda = cudaSetDevice(device);
    if (cuda != cudaSuccess) return CUDA_CODE + (int)cuda;
    int code = of(ncclCommInitRankConfig((ncclComm_t *)comm, ranks, unique, rank, &config));
    if (before != device) (void)cudaSetDevice(before);
    return code;
}

static int nccl_state(void *comm) {
    ncclResult_t result = ncclSuccess;
    int code = of(ncclCommGetAsyncError(comm, &result));
    return code ? code : of(result);
}

static void nccl_abort(void *comm) {
    (void)ncclCommAbort(comm);
}

static void nccl_describe(int code, char *text, size_t bytes) {
    if (code >= CUDA_CODE)
        (void)snprintf(text, bytes, "%s", cudaGetErrorString((cudaError_t)(code - CUDA_CODE)));
    else
        (void)snprintf(text, bytes, "%s: %s", ncclGetErrorString((ncclResult_t)code), ncclGetLastError(NULL));
}

static int nccl_group_begin(void *comm) {
    (void)comm;
    return of(ncclGroupStart());
}

static int nccl_group_end(void *comm) {
    (void)comm;
    return of(ncclGroupEnd());
}

static int nccl_send(void *comm, const void *data, int64_t bytes, int32_t peer, void *stream) {
    RAVEL_ASSERT(comm && bytes > 0 && peer >= 0);
    return of(ncclSend(data, (size_t)bytes, ncclUint8, peer, comm, (cudaStream_t)stream));
}

static int nccl_recv(void *comm, void *data, int64_t bytes, int32_t peer, void *stream) {
    RAVEL_ASSERT(comm && bytes > 0 && peer >= 0);
    return of(ncclRecv(data, (size_t)bytes, ncclUint8, peer, comm, (cudaStream_t)stream));
}

static int nccl_broadcast(void *comm, void *data, int64_t bytes, int32_t root, void *stream) {
    return of(ncclBroadcast(data, data, (size_t)bytes, ncclUint8, root, comm, (cudaStream_t)stream));
}

/* NCCL's element types; a 16-bit integer has none. */
static int find_type(int32_t dtype, ncclDataType_t *type) {
    static const struct row {
        int32_t dtype;
        ncclDataType_t type;
    } rows[] = {{RAVEL_U8, ncclUint8},    {RAVEL_I8, ncclInt8},    {RAVEL_I32, ncclInt32},   {RAVEL_U32, ncclUint32},
                {RAVEL_I64, ncclInt64},   {RAVEL_U64, ncclUint64}, {RAVEL_F16, ncclFloat16}, {RAVEL_BF16, ncclBfloat16},
                {RAVEL_F32, ncclFloat32}, {RAVEL_F64, ncclFloat64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].dtype == dtype) {
            *type = rows[i].type;
            return 1;
        }
    return 0;
}

static ncclRedOp_t operator_of(int32_t reduce) {
    static const ncclRedOp_t operators[] = {ncclSum, ncclMin, ncclMax}; /* in the order of ravel_reduce */
    RAVEL_ASSERT(reduce >= 0 && (size_t)reduce < sizeof operators / sizeof *operators);
    return operators[reduce];
}

static int nccl_allreduce(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                          void *stream) {
    ncclDataType_t type;
    if (!find_type(dtype, &type)) return RAVEL__NCCL_UNSUPPORTED;
    return of(ncclAllReduce(send, recv, (size_t)count, type, operator_of(reduce), comm, (cudaStream_t)stream));
}

static int nccl_reduce(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                       int32_t root, void *stream) {
    ncclDataType_t type;
    if (!find_type(dtype, &type)) return RAVEL__NCCL_UNSUPPORTED;
    return of(ncclReduce(send, recv, (size_t)count, type, operator_of(reduce), root, comm, (cudaStream_t)stream));
}

static int nccl_allgather(void *comm, const void *send, void *recv, int64_t bytes, void *stream) {
    RAVEL_ASSERT(comm && bytes > 0);
    return of(ncclAllGather(send, recv, (size_t)bytes, ncclUint8, comm, (cudaStream_t)stream));
}

static int nccl_reduce_scatter(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                               void *stream) {
    ncclDataType_t type;
    if (!find_type(dtype, &type)) return RAVEL__NCCL_UNSUPPORTED;
    return of(ncclReduceScatter(send, recv, (size_t)count, type, operator_of(reduce), comm, (cudaStream_t)stream));
}

const ravel__nccl *ravel_nccl(void) {
    static const ravel__nccl table = {.version = RAVEL__NCCL_VERSION,
                                      .bytes = sizeof(ravel__nccl),
                                      .id = nccl_id,
                                      .begin = nccl_begin,
                                      .state = nccl_state,
                                      .abort = nccl_abort,
                                      .describe = nccl_describe,
                                      .group_begin = nccl_group_begin,
                                      .group_end = nccl_group_end,
                                      .send = nccl_send,
                                      .recv = nccl_recv,
                                      .broadcast = nccl_broadcast,
                                      .allreduce = nccl_allreduce,
                                      .reduce = nccl_reduce,
                                      .allgather = nccl_allgather,
                                      .reduce_scatter = nccl_reduce_scatter};
    return &table;
}
