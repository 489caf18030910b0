/* Every message and agreement of a collective refit goes through one of these functions: straight to the communicator,
 * or, in tests, through a table of replacements that drop, change and delay.
 *
 * A slot that is NULL is not replaced. `user` is the first argument of all slots. A request may come back as NULL: it
 * is done already. */
#ifndef RAVEL_REFIT_TRANSPORT_H
#define RAVEL_REFIT_TRANSPORT_H

#include "comm/backend.h"

/* Steps of the protocol; `step` is called before each. */
typedef enum ravel__refit_step {
    RAVEL__REFIT_STEP_HELLO,
    RAVEL__REFIT_STEP_MANIFEST,
    RAVEL__REFIT_STEP_READY,
    RAVEL__REFIT_STEP_BEGIN,
    RAVEL__REFIT_STEP_STREAM,
    RAVEL__REFIT_STEP_TOTALS,
    RAVEL__REFIT_STEP_VOTE,
    RAVEL__REFIT_STEP_COMMIT,
    RAVEL__REFIT_STEPS
} ravel__refit_step;

typedef struct ravel__transport {
    void *user;
    int32_t no_loans;   /* frames are copied, not borrowed */
    int32_t no_helpers; /* as if no helper thread could be made */
    /* Must not wait. `data` belongs to the operation until it is done. */
    ravel_status (*isend)(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer, int32_t tag,
                          ravel_request **request, ravel_error *err);
    ravel_status (*iborrow)(void *user, ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer, int32_t tag,
                            ravel_request **request, ravel_error *err);
    ravel_status (*test)(void *user, ravel_request *request, int32_t *done, ravel_error *err);
    /* Collectives; they wait. */
    ravel_status (*allgather)(void *user, ravel_comm *comm, const void *send, void *recv, int64_t bytes,
                              ravel_error *err);
    /* A step is about to be taken; a failure ends this rank's part in the protocol. */
    ravel_status (*step)(void *user, ravel_comm *comm, int32_t step, ravel_error *err);
} ravel__transport;

static inline ravel_status ravel__isend(const ravel__transport *t, ravel_comm *comm, const void *data, int64_t bytes,
                                        int32_t peer, int32_t tag, ravel_request **request, ravel_error *err) {
    if (t && t->isend) return t->isend(t->user, comm, data, bytes, peer, tag, request, err);
    return ravel_comm_isend(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

static inline ravel_status ravel__iborrow(const ravel__transport *t, ravel_comm *comm, ravel__loan *loan, int64_t bytes,
                                          int32_t peer, int32_t tag, ravel_request **request, ravel_error *err) {
    if (t && t->iborrow) return t->iborrow(t->user, comm, loan, bytes, peer, tag, request, err);
    return ravel__comm_iborrow(comm, loan, bytes, peer, tag, request, err);
}

static inline ravel_status ravel__test(const ravel__transport *t, ravel_request *request, int32_t *done,
                                       ravel_error *err) {
    return t && t->test ? t->test(t->user, request, done, err) : ravel_request_test(request, done, err);
}

static inline ravel_status ravel__allgather(const ravel__transport *t, ravel_comm *comm, const void *send, void *recv,
                                            int64_t bytes, ravel_error *err) {
    if (t && t->allgather) return t->allgather(t->user, comm, send, recv, bytes, err);
    return ravel_comm_allgather(comm, send, recv, bytes, RAVEL_U8, err);
}

static inline ravel_status ravel__take_step(const ravel__transport *t, ravel_comm *comm, int32_t step,
                                            ravel_error *err) {
    return t && t->step ? t->step(t->user, comm, step, err) : RAVEL_OK;
}

#endif
