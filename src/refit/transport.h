/* How a refit reaches its peers: a table over a communicator, so that tests can put a faulty one in between.
 *
 * Every message and every agreement of the protocol goes through one of these slots. `user` is the first argument of
 * all of them. A request may come back as NULL: it is done already. */
#ifndef RAVEL_REFIT_TRANSPORT_H
#define RAVEL_REFIT_TRANSPORT_H

#include "comm/backend.h"

/* Where the protocol is; told to the transport before each step. */
typedef enum ravel__step {
    RAVEL__STEP_HELLO,
    RAVEL__STEP_MANIFEST,
    RAVEL__STEP_READY,
    RAVEL__STEP_BEGIN,
    RAVEL__STEP_STREAM,
    RAVEL__STEP_TOTALS,
    RAVEL__STEP_VOTE,
    RAVEL__STEP_COMMIT,
    RAVEL__STEPS
} ravel__step;

/* What a message is, for transports that treat them differently. */
typedef enum ravel__message { RAVEL__MESSAGE_NOTICE, RAVEL__MESSAGE_FRAME } ravel__message;

typedef struct ravel__transport {
    void *user;
    /* Must not wait. `data` belongs to the operation until it is done. */
    ravel_status (*isend)(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer, int32_t tag,
                          int32_t message, ravel_request **request, ravel_error *err);
    ravel_status (*irecv)(void *user, ravel_comm *comm, void *data, int64_t bytes, int32_t peer, int32_t tag,
                          int32_t message, ravel_request **request, ravel_error *err);
    /* As irecv, without a copy (ravel__comm_iborrow). NULL: the transport does not lend. */
    ravel_status (*iborrow)(void *user, ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer, int32_t tag,
                            ravel_request **request, ravel_error *err);
    /* As ravel_request_test. */
    ravel_status (*test)(void *user, ravel_request *request, int32_t *done, ravel_error *err);
    /* As ravel_request_wait. */
    ravel_status (*wait)(void *user, ravel_request *request, ravel_error *err);
    /* Collectives; they wait. */
    ravel_status (*allgather)(void *user, ravel_comm *comm, const void *send, void *recv, int64_t bytes,
                              ravel_error *err);
    ravel_status (*broadcast)(void *user, ravel_comm *comm, void *data, int64_t bytes, int32_t root, ravel_error *err);
    ravel_status (*allreduce)(void *user, ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t reduce,
                              ravel_error *err);
    /* A step is about to be taken; a failure ends this rank's part in the protocol. */
    ravel_status (*step)(void *user, ravel_comm *comm, int32_t step, ravel_error *err);
} ravel__transport;

/* Straight to the communicator. */
extern const ravel__transport ravel__transport_plain;

#endif
