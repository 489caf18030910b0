/* The operations: from the caller's arguments, in elements, to the back end's request, in bytes.
 *
 *     ravel_comm_*(...)  ->  ravel__call  --prepare-->  request->op  --start, wait-->  result
 *
 * `rules` lists the arguments of each kind; prepare checks and converts by it, so that a check is written once. */
#include "comm/backend.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

const char *const ravel__op_names[RAVEL__OP_KINDS] = {
    "barrier", "broadcast", "all-gather", "all-to-all", "all-reduce", "reduce", "reduce-scatter", "send", "receive"};

enum { SEND_LIST = 1, RECV_LIST = 2, ROOT = 4, REDUCE = 8, TAG = 16, DATA = 32, PACKED_SEND = 64 };

static const int rules[RAVEL__OP_KINDS] = {
    [RAVEL__BARRIER] = 0,
    [RAVEL__BROADCAST] = ROOT | DATA,
    [RAVEL__ALLGATHER] = RECV_LIST,
    [RAVEL__ALLTOALL] = SEND_LIST | RECV_LIST,
    [RAVEL__ALLREDUCE] = REDUCE | DATA,
    [RAVEL__REDUCE] = REDUCE | ROOT | DATA,
    [RAVEL__REDUCE_SCATTER] = REDUCE | RECV_LIST | PACKED_SEND,
    [RAVEL__SEND] = ROOT | TAG | DATA,
    [RAVEL__RECV] = ROOT | TAG | DATA,
};

/* ---- sentences ------------------------------------------------------------------------------------------ */

void ravel__op_describe(const ravel__op *op, char *text, size_t bytes) {
    RAVEL_ASSERT(op->label >= 0 && op->label < RAVEL__OP_KINDS);
    const char *name = ravel__op_names[op->label];
    int rule = rules[op->label];
    char reduce[8] = "", where[48] = "";
    if (op->label == RAVEL__BARRIER) {
        (void)snprintf(text, bytes, "%s", name);
        return;
    }
    if (rule & REDUCE) (void)ravel__choice_word(RAVEL_REDUCE_CHOICES, op->reduce, reduce, sizeof reduce);
    if (rule & TAG)
        (void)snprintf(where, sizeof where, " %s rank %d with tag %d", op->label == RAVEL__SEND ? "to" : "from",
                       op->root, op->tag);
    else if (rule & ROOT)
        (void)snprintf(where, sizeof where, " %s rank %d", rule & REDUCE ? "to" : "from", op->root);
    const char *dtype = ravel_dtype_name(op->dtype);
    (void)snprintf(text, bytes, "%s%s%s of %lld %s%s", name, *reduce ? " " : "", reduce, (long long)op->total,
                   dtype ? dtype : "elements", where);
}

int ravel__op_same(const ravel__op *a, const ravel__op *b, int32_t size) {
    RAVEL_ASSERT(size > 0 && a->kind < RAVEL__OP_KINDS && b->kind < RAVEL__OP_KINDS);
    if (a->kind != b->kind || a->label != b->label || a->dtype != b->dtype || a->reduce != b->reduce ||
        a->root != b->root)
        return 0;
    if (rules[a->kind] & SEND_LIST) return 1;
    if (rules[a->kind] & RECV_LIST)
        return memcmp(a->recv_sizes, b->recv_sizes, (size_t)size * sizeof *a->recv_sizes) == 0;
    return a->bytes == b->bytes;
}

/* ---- checks --------------------------------------------------------------------------------------------- */

static ravel_status check_head(const ravel_comm *comm, const ravel__call *call, int rule, ravel_error *err) {
    if (ravel_dtype_bytes(call->dtype) == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "dtype %d is none of ravel/dtype.h", call->dtype);
    if ((rule & ROOT) && (call->root < 0 || call->root >= comm->size))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s %d does not exist; ranks are 0 to %d",
                               rule & TAG ? "peer" : "root", call->root, comm->size - 1);
    if ((rule & TAG) && (call->tag < 0 || call->tag > RAVEL_TAG_MAX))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "tag %d must be from 0 to %d", call->tag, RAVEL_TAG_MAX);
    if ((rule & REDUCE) && (call->reduce < RAVEL_SUM || call->reduce > RAVEL_MAX))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "reduction %d must be RAVEL_SUM, RAVEL_MIN or RAVEL_MAX",
                               call->reduce);
    if ((rule & REDUCE) && !ravel__can_reduce(call->dtype))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s cannot be reduced; integers, f16, bf16, f32 and f64 can",
                               ravel_dtype_name(call->dtype));
    return RAVEL_OK;
}

static ravel_status bad_count(const char *list, int32_t rank, int64_t count, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s[%d] is %lld; it must be 0 or more and fit memory", list, rank,
                           (long long)count);
}

static int to_bytes(int64_t count, int32_t each, int64_t *bytes) {
    return count >= 0 && !__builtin_mul_overflow(count, (int64_t)each, bytes);
}

/* counts and offsets (NULL: `count` each; one after the other) to sizes and places in bytes. *total: of all sizes, in
 * elements. */
static ravel_status convert_list(const char *name, int32_t size, int32_t each, int64_t count, const int64_t *counts,
                                 const int64_t *offsets, int64_t *sizes, int64_t *places, int64_t *total,
                                 ravel_error *err) {
    RAVEL_ASSERT(size > 0 && each > 0);
    int64_t sum = 0;
    for (int32_t r = 0; r < size; r++) {
        int64_t n = counts ? counts[r] : count, offset = offsets ? offsets[r] : sum;
        if (!to_bytes(n, each, &sizes[r])) return bad_count(name, r, n, err);
        if (!to_bytes(n ? offset : 0, each, &places[r])) return bad_count("offsets", r, offset, err);
        if (__builtin_add_overflow(sum, n, &sum))
            return ravel_error_set(err, RAVEL_E_OVERFLOW, "the sum of %s does not fit 64 bits", name);
    }
    if (!to_bytes(sum, each, &(int64_t){0}))
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the bytes of %s do not fit 64 bits", name);
    *total = sum;
    RAVEL_ASSERT(sum >= 0);
    return RAVEL_OK;
}

static ravel_status null_array(const char *name, int64_t count, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is NULL, but %lld elements are to be moved", name,
                           (long long)count);
}

/* Kinds with one count. */
static ravel_status prepare_data(ravel_comm *comm, const ravel__call *call, ravel__op *op, ravel_error *err) {
    if (!to_bytes(call->count, op->each, &op->bytes))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "count is %lld; it must be 0 or more and fit memory",
                               (long long)call->count);
    int sends = op->kind != RAVEL__RECV && (op->kind != RAVEL__BROADCAST || op->root == comm->rank);
    int receives = op->kind == RAVEL__RECV || op->kind == RAVEL__ALLREDUCE ||
                   (op->kind == RAVEL__BROADCAST && op->root != comm->rank) ||
                   (op->kind == RAVEL__REDUCE && op->root == comm->rank);
    if (call->count > 0 && sends && !call->send) return null_array("the array to send", call->count, err);
    if (call->count > 0 && receives && !call->recv) return null_array("the array to receive", call->count, err);
    op->total = call->count;
    return RAVEL_OK;
}

/* Kinds with a list per rank. */
static ravel_status prepare_lists(ravel_comm *comm, const ravel__call *call, int rule, ravel_request *r,
                                  ravel_error *err) {
    int32_t n = comm->size;
    ravel__op *op = &r->op;
    int64_t *sizes = r->lists, *places = r->lists + n, sent = 0, received = 0;
    ravel_status status = convert_list("receive counts", n, op->each, call->count, call->recv_counts,
                                       call->recv_offsets, sizes + 2 * n, places + 2 * n, &received, err);
    if (status) return status;
    op->send_sizes = sizes, op->send_offsets = places, op->recv_sizes = sizes + 2 * n,
    op->recv_offsets = places + 2 * n;
    op->total = received;
    if (rule & SEND_LIST) {
        status = convert_list("send counts", n, op->each, call->count, call->send_counts, call->send_offsets, sizes,
                              places, &sent, err);
        if (status) return status;
        op->total = sent;
    } else if (rule & PACKED_SEND) {
        for (int32_t i = 0; i < n; i++) places[i] = i ? places[i - 1] + op->recv_sizes[i - 1] : 0;
        sent = received;
        received = op->recv_sizes[comm->rank] / op->each;
    } else {
        sent = op->recv_sizes[comm->rank] / op->each;
    }
    RAVEL_ASSERT(sent >= 0 && received >= 0 && (sent == 0 || op->each <= INT64_MAX / sent));
    op->bytes = sent * op->each;
    if (sent > 0 && !call->send) return null_array("the array to send", sent, err);
    if (received > 0 && !call->recv) return null_array("the array to receive", received, err);
    return RAVEL_OK;
}

ravel_status ravel__op_prepare(ravel_comm *comm, const ravel__call *call, ravel_request *request, ravel_error *err) {
    RAVEL_ASSERT(call->kind >= 0 && call->kind < RAVEL__OP_KINDS && request->comm == comm);
    int rule = rules[call->kind];
    ravel__op *op = &request->op;
    ravel_status status = check_head(comm, call, rule, err);
    if (status) return status;
    memset(op, 0, sizeof *op);
    op->kind = call->kind;
    op->label = call->label ? call->label : call->kind;
    op->dtype = call->dtype;
    op->each = ravel_dtype_bytes(call->dtype);
    op->reduce = (rules[op->label] & REDUCE) ? call->reduce : -1;
    op->root = (rules[op->label] & ROOT) ? call->root : -1;
    op->tag = call->tag;
    op->borrows = call->borrows;
    op->send = call->send;
    op->recv = call->recv;
    if (rule & (SEND_LIST | RECV_LIST))
        status = prepare_lists(comm, call, rule, request, err);
    else if (rule & DATA)
        status = prepare_data(comm, call, op, err);
    RAVEL_ASSERT(status || op->bytes >= 0);
    if (call->total) op->total = call->total;
    return status;
}

/* ---- running -------------------------------------------------------------------------------------------- */

/* An open request with a prepared operation. */
static ravel_status begin(ravel_comm *comm, const ravel__call *call, ravel_request **request, ravel_error *err) {
    ravel_request *r = NULL;
    ravel_error inner;
    ravel_error_clear(&inner); /* cheaper per message than RAVEL_ERROR_INIT, which sets all its bytes */
    ravel_status status = ravel__comm_usable(comm, err);
    if (status) return status;
    status = ravel__request_take(comm, &r, &inner);
    if (!status) {
        status = ravel__op_prepare(comm, call, r, &inner);
        if (status) ravel__request_give(comm, r);
    }
    if (status) {
        const char *what = ravel__op_names[call->label ? call->label : call->kind];
        (void)ravel__comm_fail(comm, what, status, &inner, err);
        return status;
    }
    *request = r;
    return RAVEL_OK;
}

/* The request is over: its result, and back on the idle list. */
static ravel_status finish(ravel_request *r, ravel_status status, ravel_error *err) {
    ravel_comm *comm = r->comm;
    RAVEL_ASSERT(comm && comm->backend);
    if (status) {
        char what[160];
        ravel__op_describe(&r->op, what, sizeof what);
        status = ravel__comm_fail(comm, what, status, &r->why, err);
    }
    ravel__request_give(comm, r);
    return status;
}

static void set_deadline(ravel_request *r) {
    RAVEL_ASSERT(r->comm->timeout_ns > 0);
    if (!r->deadline_ns) r->deadline_ns = ravel__clock_ns() + r->comm->timeout_ns;
    RAVEL_ASSERT(r->deadline_ns > 0);
}

ravel_status ravel__comm_run(ravel_comm *comm, const ravel__call *call, ravel_error *err) {
    ravel_request *r = NULL;
    ravel_status status = begin(comm, call, &r, err);
    if (status) return status;
    r->op.blocking = 1;
    set_deadline(r);
    status = comm->backend->start(comm, r);
    RAVEL_ASSERT(r->comm == comm && comm->open_count > 0);
    if (!status) status = comm->backend->wait(comm, r);
    return finish(r, status, err);
}

ravel_status ravel__comm_launch(ravel_comm *comm, const ravel__call *call, ravel_request **request, ravel_error *err) {
    ravel_request *r = NULL;
    ravel_status status = begin(comm, call, &r, err);
    if (status) return status;
    status = comm->backend->start(comm, r);
    if (status) return finish(r, status, err);
    *request = r;
    return RAVEL_OK;
}

ravel_status ravel_request_wait(ravel_request *request, ravel_error *err) {
    if (!request) return RAVEL_OK;
    set_deadline(request);
    return finish(request, request->comm->backend->wait(request->comm, request), err);
}

ravel_status ravel_request_test(ravel_request *request, int32_t *done, ravel_error *err) {
    int32_t over = 0;
    set_deadline(request);
    ravel_status status = request->comm->backend->test(request->comm, request, &over);
    if (!status && !over && ravel__clock_ns() > request->deadline_ns) /* the wait sees that the deadline has passed, and
    reports it */
        status = request->comm->backend->wait(request->comm, request), over = 1;
    *done = over || status;
    return *done ? finish(request, status, err) : RAVEL_OK;
}

ravel_status ravel_request_wait_all(ravel_request **requests, int64_t count, ravel_error *err) {
    ravel_status first = RAVEL_OK;
    for (int64_t i = 0; i < count; i++) {
        ravel_status status = ravel_request_wait(requests[i], first ? NULL : err);
        if (!first) first = status;
        requests[i] = NULL;
    }
    return first;
}

/* ---- the public functions ------------------------------------------------------------------------------- */

ravel_status ravel_comm_barrier(ravel_comm *comm, ravel_error *err) {
    ravel__call call = {.kind = RAVEL__BARRIER};
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_ibarrier(ravel_comm *comm, ravel_request **request, ravel_error *err) {
    ravel__call call = {.kind = RAVEL__BARRIER};
    return ravel__comm_launch(comm, &call, request, err);
}

ravel_status ravel_comm_broadcast(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t root,
                                  ravel_error *err) {
    ravel__call call = {
        .kind = RAVEL__BROADCAST, .dtype = dtype, .root = root, .count = count, .send = data, .recv = data};
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_ibroadcast(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t root,
                                   ravel_request **request, ravel_error *err) {
    ravel__call call = {
        .kind = RAVEL__BROADCAST, .dtype = dtype, .root = root, .count = count, .send = data, .recv = data};
    return ravel__comm_launch(comm, &call, request, err);
}

ravel_status ravel_comm_allgather(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                  ravel_error *err) {
    ravel__call call = {.kind = RAVEL__ALLGATHER, .dtype = dtype, .count = count, .send = send, .recv = recv};
    return ravel__comm_run(comm, &call, err);
}

static ravel__call gather_call(const void *send, void *recv, const int64_t *counts, const int64_t *offsets,
                               int32_t dtype) {
    ravel__call call = {.kind = RAVEL__ALLGATHER,
                        .dtype = dtype,
                        .send = send,
                        .recv = recv,
                        .recv_counts = counts,
                        .recv_offsets = offsets};
    return call;
}

static ravel_status no_counts(ravel_comm *comm, const char *what, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_error_set(&why, RAVEL_E_ARGUMENT, "the counts are NULL; one per rank is needed, %d of them", comm->size);
    return ravel__comm_fail(comm, what, RAVEL_E_ARGUMENT, &why, err);
}

ravel_status ravel_comm_allgatherv(ravel_comm *comm, const void *send, void *recv, const int64_t *recv_counts,
                                   const int64_t *recv_offsets, int32_t dtype, ravel_error *err) {
    ravel__call call = gather_call(send, recv, recv_counts, recv_offsets, dtype);
    if (!recv_counts) return no_counts(comm, "all-gather", err);
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_iallgatherv(ravel_comm *comm, const void *send, void *recv, const int64_t *recv_counts,
                                    const int64_t *recv_offsets, int32_t dtype, ravel_request **request,
                                    ravel_error *err) {
    ravel__call call = gather_call(send, recv, recv_counts, recv_offsets, dtype);
    if (!recv_counts) return no_counts(comm, "all-gather", err);
    return ravel__comm_launch(comm, &call, request, err);
}

ravel_status ravel_comm_alltoall(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                 ravel_error *err) {
    ravel__call call = {.kind = RAVEL__ALLTOALL, .dtype = dtype, .count = count, .send = send, .recv = recv};
    return ravel__comm_run(comm, &call, err);
}

static ravel__call exchange_call(const void *send, const int64_t *send_counts, const int64_t *send_offsets, void *recv,
                                 const int64_t *recv_counts, const int64_t *recv_offsets, int32_t dtype) {
    ravel__call call = {.kind = RAVEL__ALLTOALL,
                        .dtype = dtype,
                        .send = send,
                        .recv = recv,
                        .send_counts = send_counts,
                        .send_offsets = send_offsets,
                        .recv_counts = recv_counts,
                        .recv_offsets = recv_offsets};
    return call;
}

ravel_status ravel_comm_alltoallv(ravel_comm *comm, const void *send, const int64_t *send_counts,
                                  const int64_t *send_offsets, void *recv, const int64_t *recv_counts,
                                  const int64_t *recv_offsets, int32_t dtype, ravel_error *err) {
    ravel__call call = exchange_call(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype);
    if (!send_counts || !recv_counts) return no_counts(comm, "all-to-all", err);
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_ialltoallv(ravel_comm *comm, const void *send, const int64_t *send_counts,
                                   const int64_t *send_offsets, void *recv, const int64_t *recv_counts,
                                   const int64_t *recv_offsets, int32_t dtype, ravel_request **request,
                                   ravel_error *err) {
    ravel__call call = exchange_call(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype);
    if (!send_counts || !recv_counts) return no_counts(comm, "all-to-all", err);
    return ravel__comm_launch(comm, &call, request, err);
}

/* Integers give the same bits in any order. */
static int is_exact(const ravel_comm *comm, const ravel__call *call) {
    char kind = ravel_dtype_bytes(call->dtype) ? ravel_dtype_kind(call->dtype) : '?';
    return call->kind == RAVEL__ALLREDUCE && comm->backend->exact_bytes > 0 && (kind == 'i' || kind == 'u') &&
           ravel__can_reduce(call->dtype) && call->count >= 0 &&
           call->count <= comm->backend->exact_bytes / ravel_dtype_bytes(call->dtype);
}

static ravel_status run_reduction(ravel_comm *comm, const ravel__call *call, ravel_error *err) {
    return comm->backend->reduces >> call->kind & 1 || is_exact(comm, call) ? ravel__comm_run(comm, call, err)
                                                                            : ravel__reduce_composite(comm, call, err);
}

ravel_status ravel_comm_allreduce(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                  int32_t reduce, ravel_error *err) {
    ravel__call call = {
        .kind = RAVEL__ALLREDUCE, .dtype = dtype, .reduce = reduce, .count = count, .send = send, .recv = recv};
    return run_reduction(comm, &call, err);
}

ravel_status ravel_comm_reduce(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                               int32_t reduce, int32_t root, ravel_error *err) {
    ravel__call call = {.kind = RAVEL__REDUCE,
                        .dtype = dtype,
                        .reduce = reduce,
                        .root = root,
                        .count = count,
                        .send = send,
                        .recv = recv};
    return run_reduction(comm, &call, err);
}

ravel_status ravel_comm_reduce_scatter(ravel_comm *comm, const void *send, void *recv, int64_t count, int32_t dtype,
                                       int32_t reduce, ravel_error *err) {
    ravel__call call = {
        .kind = RAVEL__REDUCE_SCATTER, .dtype = dtype, .reduce = reduce, .count = count, .send = send, .recv = recv};
    return run_reduction(comm, &call, err);
}

ravel_status ravel_comm_reduce_scatterv(ravel_comm *comm, const void *send, void *recv, const int64_t *counts,
                                        int32_t dtype, int32_t reduce, ravel_error *err) {
    ravel__call call = {.kind = RAVEL__REDUCE_SCATTER,
                        .dtype = dtype,
                        .reduce = reduce,
                        .send = send,
                        .recv = recv,
                        .recv_counts = counts};
    if (!counts) return no_counts(comm, "reduce-scatter", err);
    return run_reduction(comm, &call, err);
}

static ravel__call message_call(int32_t kind, const void *send, void *recv, int64_t count, int32_t dtype, int32_t peer,
                                int32_t tag) {
    ravel__call call = {
        .kind = kind, .dtype = dtype, .root = peer, .tag = tag, .count = count, .send = send, .recv = recv};
    return call;
}

ravel_status ravel_comm_send(ravel_comm *comm, const void *data, int64_t count, int32_t dtype, int32_t peer,
                             int32_t tag, ravel_error *err) {
    ravel__call call = message_call(RAVEL__SEND, data, NULL, count, dtype, peer, tag);
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_recv(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t peer, int32_t tag,
                             ravel_error *err) {
    ravel__call call = message_call(RAVEL__RECV, NULL, data, count, dtype, peer, tag);
    return ravel__comm_run(comm, &call, err);
}

ravel_status ravel_comm_isend(ravel_comm *comm, const void *data, int64_t count, int32_t dtype, int32_t peer,
                              int32_t tag, ravel_request **request, ravel_error *err) {
    ravel__call call = message_call(RAVEL__SEND, data, NULL, count, dtype, peer, tag);
    return ravel__comm_launch(comm, &call, request, err);
}

ravel_status ravel_comm_irecv(ravel_comm *comm, void *data, int64_t count, int32_t dtype, int32_t peer, int32_t tag,
                              ravel_request **request, ravel_error *err) {
    ravel__call call = message_call(RAVEL__RECV, NULL, data, count, dtype, peer, tag);
    return ravel__comm_launch(comm, &call, request, err);
}

/* ---- borrowing ------------------------------------------------------------------------------------------ */

int ravel__comm_lends(const ravel_comm *comm) {
    return comm->backend->give_back != NULL;
}

ravel_status ravel__comm_iborrow(ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer, int32_t tag,
                                 ravel_request **request, ravel_error *err) {
    ravel__call call = message_call(RAVEL__RECV, NULL, loan, bytes, RAVEL_U8, peer, tag);
    call.borrows = 1;
    *loan = (ravel__loan){0};
    if (!ravel__comm_lends(comm))
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "messages over %s cannot be borrowed", ravel_comm_kind(comm));
    return ravel__comm_launch(comm, &call, request, err);
}

void ravel__comm_give_back(ravel_comm *comm, ravel__loan *loan) {
    ravel_request *lender = loan->lender;
    *loan = (ravel__loan){0};
    RAVEL_ASSERT(!lender || (comm->backend->give_back && lender->op.kind == RAVEL__SEND));
    if (lender) comm->backend->give_back(comm, lender);
}
