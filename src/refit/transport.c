#include "refit/transport.h"

static ravel_status plain_isend(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer,
                                int32_t tag, int32_t message, ravel_request **request, ravel_error *err) {
    (void)user;
    (void)message;
    return ravel_comm_isend(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

static ravel_status plain_irecv(void *user, ravel_comm *comm, void *data, int64_t bytes, int32_t peer, int32_t tag,
                                int32_t message, ravel_request **request, ravel_error *err) {
    (void)user;
    (void)message;
    return ravel_comm_irecv(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

static ravel_status plain_iborrow(void *user, ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer,
                                  int32_t tag, ravel_request **request, ravel_error *err) {
    (void)user;
    return ravel__comm_iborrow(comm, loan, bytes, peer, tag, request, err);
}

static ravel_status plain_test(void *user, ravel_request *request, int32_t *done, ravel_error *err) {
    (void)user;
    return ravel_request_test(request, done, err);
}

static ravel_status plain_wait(void *user, ravel_request *request, ravel_error *err) {
    (void)user;
    return ravel_request_wait(request, err);
}

static ravel_status plain_allgather(void *user, ravel_comm *comm, const void *send, void *recv, int64_t bytes,
                                    ravel_error *err) {
    (void)user;
    return ravel_comm_allgather(comm, send, recv, bytes, RAVEL_U8, err);
}

static ravel_status plain_broadcast(void *user, ravel_comm *comm, void *data, int64_t bytes, int32_t root,
                                    ravel_error *err) {
    (void)user;
    return ravel_comm_broadcast(comm, data, bytes, RAVEL_U8, root, err);
}

static ravel_status plain_allreduce(void *user, ravel_comm *comm, void *data, int64_t count, int32_t dtype,
                                    int32_t reduce, ravel_error *err) {
    (void)user;
    return ravel_comm_allreduce(comm, data, data, count, dtype, reduce, err);
}

static ravel_status plain_step(void *user, ravel_comm *comm, int32_t step, ravel_error *err) {
    (void)user;
    (void)comm;
    (void)step;
    (void)err;
    return RAVEL_OK;
}

const ravel__transport ravel__transport_plain = {
    .isend = plain_isend,
    .irecv = plain_irecv,
    .iborrow = plain_iborrow,
    .test = plain_test,
    .wait = plain_wait,
    .allgather = plain_allgather,
    .broadcast = plain_broadcast,
    .allreduce = plain_allreduce,
    .step = plain_step,
};
