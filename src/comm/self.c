/* One rank: every collective is a local copy. A message to the own rank is matched in the handle's list of open
 * requests. The shortest back end, and the one to read first. */
#include "comm/backend.h"

#include "base/assert.h"

#include <string.h>

typedef struct self_request {
    int32_t done;
    int32_t failed; /* ravel_status */
    int64_t order;  /* of its start, so that the oldest matching message is taken */
} self_request;

static self_request *state_of(ravel_request *r) {
    return (self_request *)(void *)r->state;
}

static void copy(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to != from) memcpy(to, from, (size_t)bytes);
}

static void run_collective(const ravel__op *op) {
    RAVEL_ASSERT(op->kind >= 0 && op->kind < RAVEL__SEND);
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__ALLGATHER: copy(op->recv + op->recv_offsets[0], op->send, op->recv_sizes[0]); break;
    case RAVEL__ALLTOALL:
        copy(op->recv + op->recv_offsets[0], op->send + op->send_offsets[0], op->recv_sizes[0]);
        break;
    case RAVEL__ALLREDUCE:
    case RAVEL__REDUCE: copy(op->recv, op->send, op->bytes); break;
    case RAVEL__REDUCE_SCATTER: copy(op->recv, op->send, op->recv_sizes[0]); break;
    default: break;
    }
}

static ravel_status fail(ravel_request *r, const ravel__op *other) {
    RAVEL_ASSERT(!state_of(r)->done);
    char text[160];
    ravel__op_describe(other, text, sizeof text);
    state_of(r)->done = 1;
    state_of(r)->failed = RAVEL_E_MISMATCH;
    return ravel_error_set(&r->why, RAVEL_E_MISMATCH, "it met a %s", text);
}

/* The oldest open message of the other kind with the same tag. */
static ravel_request *partner_of(ravel_comm *comm, ravel_request *r) {
    int32_t wanted = r->op.kind == RAVEL__SEND ? RAVEL__RECV : RAVEL__SEND;
    ravel_request *best = NULL;
    for (ravel_request *p = comm->open; p; p = p->next)
        if (p != r && p->op.kind == wanted && p->op.tag == r->op.tag && !state_of(p)->done &&
            (!best || state_of(p)->order < state_of(best)->order))
            best = p;
    return best;
}

static void run_message(ravel_comm *comm, ravel_request *r) {
    ravel_request *p = partner_of(comm, r);
    if (!p) return;
    RAVEL_ASSERT(!state_of(p)->done && state_of(p)->order < state_of(r)->order);
    ravel_request *send = r->op.kind == RAVEL__SEND ? r : p, *recv = send == r ? p : r;
    if (send->op.bytes != recv->op.bytes || send->op.dtype != recv->op.dtype) {
        (void)fail(send, &recv->op);
        (void)fail(recv, &send->op);
        return;
    }
    RAVEL_ASSERT(send->op.kind == RAVEL__SEND && recv->op.kind == RAVEL__RECV);
    copy(recv->op.recv, send->op.send, send->op.bytes);
    state_of(send)->done = state_of(recv)->done = 1;
}

static ravel_status self_start(ravel_comm *comm, ravel_request *r) {
    self_request *s = state_of(r);
    int64_t *serial = comm->state;
    RAVEL_ASSERT(comm->size == 1 && comm->rank == 0);
    s->done = s->failed = 0;
    s->order = ++*serial;
    if (r->op.kind == RAVEL__SEND || r->op.kind == RAVEL__RECV) {
        run_message(comm, r);
        return RAVEL_OK;
    }
    if (r->op.kind == RAVEL__ALLTOALL && r->op.send_sizes[0] != r->op.recv_sizes[0])
        return ravel_error_set(&r->why, RAVEL_E_MISMATCH, "rank 0 sends %lld bytes to itself and expects %lld",
                               (long long)r->op.send_sizes[0], (long long)r->op.recv_sizes[0]);
    run_collective(&r->op);
    s->done = 1;
    return RAVEL_OK;
}

static ravel_status self_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    (void)comm;
    *done = state_of(r)->done;
    return (ravel_status)state_of(r)->failed;
}

/* There is no other rank: a message without a partner by now would never complete. */
static ravel_status self_wait(ravel_comm *comm, ravel_request *r) {
    (void)comm;
    if (!state_of(r)->done)
        return ravel_error_set(&r->why, RAVEL_E_STATE,
                               "the only rank waits for itself; start the other half with isend or irecv first");
    return (ravel_status)state_of(r)->failed;
}

static void self_cancel(ravel_comm *comm, ravel_request *r) {
    (void)comm;
    state_of(r)->done = 1;
}

static ravel_status make_state(ravel_comm *comm, ravel_error *err) {
    comm->state = ravel__calloc(comm->allocator, 1, sizeof(int64_t));
    return comm->state ? RAVEL_OK : ravel__no_memory(err, sizeof(int64_t), "a communicator");
}

static ravel_status self_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                int32_t colour, ravel_error *err) {
    (void)comm, (void)members, (void)serial, (void)colour;
    return make_state(child, err);
}

static void self_abort(ravel_comm *comm, const char *why) {
    (void)comm, (void)why;
}

static ravel_status self_alive(ravel_comm *comm, ravel_error *err) {
    (void)comm, (void)err;
    return RAVEL_OK;
}

static void self_close(ravel_comm *comm) {
    ravel__release(comm->allocator, comm->state, sizeof(int64_t));
}

static const ravel__backend self_backend = {
    .name = "self",
    .request_bytes = sizeof(self_request),
    .reduces = RAVEL__ALL_REDUCTIONS,
    .start = self_start,
    .test = self_test,
    .wait = self_wait,
    .cancel = self_cancel,
    .subset = self_subset,
    .abort = self_abort,
    .alive = self_alive,
    .close = self_close,
};

ravel_status ravel_comm_self(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    ravel_comm *c;
    ravel_status status = ravel__comm_new(&self_backend, 0, 1, options, &c, err);
    if (status) return status;
    status = make_state(c, err);
    if (status)
        ravel__comm_discard(c);
    else
        *comm = c;
    return status;
}
