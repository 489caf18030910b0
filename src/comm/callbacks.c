/* The `callbacks` back end: a framework's collectives behind a communicator.
 *
 * A table must have send and recv. A missing collective is composed from them in rounds of pairs (round-robin): every
 * rank is paired with every other once, and the lower rank of a pair sends first, so that no send needs a buffer. A
 * child of a table without `split` uses its parent's send and recv with its own tags.
 *
 * Before a collective the ranks exchange cards (card.c) unless options.check is off. */
#include "comm/backend.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <stdatomic.h>
#include <string.h>

/* One per table and rank: shared by the communicator of the table and all children that use its send and recv. Each has
 * its own range of tags; the next child's range must be free on all members. */
typedef struct callbacks_tags {
    _Atomic int32_t next, refs;
} callbacks_tags;

typedef struct callbacks_rank {
    ravel_comm_hooks hooks;
    int32_t *members; /* [size] ranks in the parent's table that this child sends through; NULL: the table is its own */
    int32_t tag_base; /* added to every tag */
    callbacks_tags *tags;
    int64_t starts;
} callbacks_rank;

typedef struct callbacks_request {
    int32_t done, status;
    int64_t order;
} callbacks_request;

enum { TAGS = RAVEL_TAG_MAX + 2, PAIR_TAG = RAVEL_TAG_MAX + 1, MOST_CHILDREN = 65000 };

_Static_assert((int64_t)MOST_CHILDREN *TAGS + PAIR_TAG <= INT32_MAX, "the tags of all children fit 32 bits");

static callbacks_rank *rank_of(ravel_comm *comm) {
    return comm->state;
}
static callbacks_request *state_of(ravel_request *r) {
    return (callbacks_request *)(void *)r->state;
}

static double seconds_left(const ravel_comm *comm, const ravel_request *r) {
    if (!r->deadline_ns) return ravel_comm_timeout(comm);
    double left = (double)(r->deadline_ns - ravel__clock_ns()) / 1e9;
    return left > 0.001 ? left : 0.001;
}

static void copy(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to && from && to != from) memcpy(to, from, (size_t)bytes);
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* In pieces of at most chunk_bytes, so that a framework with 32-bit sizes is safe. */
static ravel_status move(ravel_comm *comm, ravel_request *r, int sends, char *data, int64_t bytes, int32_t peer,
                         int32_t tag) {
    callbacks_rank *c = rank_of(comm);
    RAVEL_ASSERT(peer >= 0 && peer < comm->size && peer != comm->rank && bytes >= 0 && tag <= PAIR_TAG);
    int32_t there = c->members ? c->members[peer] : peer;
    RAVEL_ASSERT(there >= 0 && comm->chunk_bytes > 0);
    int64_t at = 0;
    do {
        int64_t part = bytes - at < comm->chunk_bytes ? bytes - at : comm->chunk_bytes;
        char *piece = part > 0 ? data + at : data;
        double left = seconds_left(comm, r);
        ravel_status status = sends
                                  ? c->hooks.send(c->hooks.user, piece, part, there, c->tag_base + tag, left, &r->why)
                                  : c->hooks.recv(c->hooks.user, piece, part, there, c->tag_base + tag, left, &r->why);
        if (status) return status;
        at += part;
        RAVEL_ASSERT(part >= 0 && at <= bytes);
    } while (at < bytes);
    return RAVEL_OK;
}

static int is_message(const ravel_request *r) {
    return r->op.kind == RAVEL__SEND || r->op.kind == RAVEL__RECV;
}

/* Edges (pairs of ranks) in one order that is the same everywhere; in an edge the lower rank sends first, tag by tag.
 */
static int goes_before(const ravel_comm *comm, ravel_request *a, ravel_request *b) {
    RAVEL_ASSERT(a != b && is_message(a) && is_message(b));
    int32_t me = comm->rank, pa = a->op.root, pb = b->op.root;
    int32_t low_a = pa < me ? pa : me, low_b = pb < me ? pb : me;
    if (low_a != low_b) return low_a < low_b;
    if (pa != pb) return pa < pb; /* the higher ends: one of both is me where the lower ends are not */
    int late_a = (a->op.kind == RAVEL__SEND) != (me < pa), late_b = (b->op.kind == RAVEL__SEND) != (me < pb);
    if (late_a != late_b) return late_b;
    if (a->op.tag != b->op.tag) return a->op.tag < b->op.tag;
    return state_of(a)->order < state_of(b)->order;
}

/* The oldest open message to oneself of the other kind with the same tag. */
static ravel_request *partner_of(ravel_comm *comm, const ravel_request *r) {
    ravel_request *best = NULL;
    for (ravel_request *p = comm->open; p; p = p->next) {
        if (p == r || !is_message(p) || state_of(p)->done || p->op.root != comm->rank || p->op.tag != r->op.tag ||
            p->op.kind == r->op.kind)
            continue;
        if (!best || state_of(p)->order < state_of(best)->order) best = p;
    }
    return best;
}

static void end_message(ravel_request *r, ravel_status status) {
    RAVEL_ASSERT(is_message(r) && !state_of(r)->done);
    state_of(r)->status = (int32_t)status;
    state_of(r)->done = 1;
}

static void end_mismatch(ravel_request *r, const ravel_request *other) {
    char what[160];
    ravel__op_describe(&other->op, what, sizeof what);
    end_message(r, ravel_error_set(&r->why, RAVEL_E_MISMATCH, "it met a %s", what));
}

/* A message to oneself: copied when both halves are open. */
static void meet_oneself(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(is_message(r) && r->op.root == comm->rank);
    ravel_request *p = partner_of(comm, r), *send = r->op.kind == RAVEL__SEND ? r : p, *recv = send == r ? p : r;
    if (!p) return;
    RAVEL_ASSERT(send->op.kind == RAVEL__SEND && recv->op.kind == RAVEL__RECV);
    if (send->op.bytes != recv->op.bytes || send->op.dtype != recv->op.dtype) {
        end_mismatch(send, recv);
        end_mismatch(recv, send);
        return;
    }
    copy(recv->op.recv, send->op.send, send->op.bytes);
    end_message(send, RAVEL_OK);
    end_message(recv, RAVEL_OK);
}

static ravel_request *next_message(const ravel_comm *comm) {
    ravel_request *next = NULL;
    for (ravel_request *r = comm->open; r; r = r->next)
        if (is_message(r) && !state_of(r)->done && r->op.root != comm->rank && (!next || goes_before(comm, r, next)))
            next = r;
    return next;
}

/* Runs all open messages, until the deadline of `waited`. The first failure is the failure of all that are left: the
 * state of the framework's group is unknown. */
static void run_messages(ravel_comm *comm, const ravel_request *waited) {
    ravel_error why = RAVEL_ERROR_INIT;
    for (ravel_request *r; (r = next_message(comm));) {
        int sends = r->op.kind == RAVEL__SEND;
        char *data = sends ? (char *)r->op.send : r->op.recv;
        r->deadline_ns = waited->deadline_ns;
        ravel_status status = (ravel_status)why.status;
        if (!status) status = move(comm, r, sends, data, r->op.bytes, r->op.root, r->op.tag);
        if (why.status) (void)ravel_error_set(&r->why, status, "%s", why.message);
        if (status) why = r->why, why.status = (int32_t)status;
        end_message(r, status);
    }
}

/* ---- composed from messages ---- ------------------------------------------------------------------------- */

/* The partner of `me` of n in a round of 0 .. rounds-1 (the circle method); -1: none. */
static int32_t opponent(int32_t me, int32_t n, int32_t round) {
    RAVEL_ASSERT(me >= 0 && me < n && round >= 0 && round < n + n % 2 - 1);
    int32_t even = n + n % 2, turning = even - 1, other;
    if (me == turning) {
        other = round % 2 == 0 ? round / 2 : (round + turning) / 2;
    } else {
        other = (round - me) % turning;
        if (other < 0) other += turning;
        if (other == me) other = turning;
    }
    RAVEL_ASSERT(other >= 0 && other != me);
    return other < n ? other : -1;
}

/* send + send_at[r], send_sizes[r] bytes, to every r; what comes into recv + recv_at[r]. Lists of NULL: `each` bytes,
 * at the beginning. */
typedef struct pieces {
    const char *send;
    char *recv;
    const int64_t *send_sizes, *send_at, *recv_sizes, *recv_at;
} pieces;

static ravel_status meet(ravel_comm *comm, ravel_request *r, const pieces *p, int32_t peer) {
    RAVEL_ASSERT(peer >= 0 && peer < comm->size && peer != comm->rank);
    for (int turn = 0; turn < 2; turn++) {
        int sends = (turn == 0) == (comm->rank < peer);
        int64_t bytes = sends ? p->send_sizes[peer] : p->recv_sizes[peer];
        char *data = sends ? (char *)p->send + p->send_at[peer] : p->recv + p->recv_at[peer];
        ravel_status status = bytes ? move(comm, r, sends, data, bytes, peer, PAIR_TAG) : RAVEL_OK;
        if (status) return status;
    }
    return RAVEL_OK;
}

static ravel_status tournament(ravel_comm *comm, ravel_request *r, const pieces *p) {
    int32_t n = comm->size, me = comm->rank, rounds = n + n % 2 - 1;
    copy(p->recv + p->recv_at[me], p->send + p->send_at[me], p->recv_sizes[me]);
    for (int32_t round = 0; round < rounds; round++) {
        int32_t peer = opponent(me, n, round);
        ravel_status status = peer < 0 ? RAVEL_OK : meet(comm, r, p, peer);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* ---- collectives, by the table's own or by send and recv ------------------------------------------------- */

static ravel_status gather(ravel_comm *comm, ravel_request *r, const void *send, void *recv, const int64_t *sizes,
                           const int64_t *places) {
    callbacks_rank *c = rank_of(comm);
    int32_t n = comm->size, me = comm->rank;
    if (c->hooks.allgatherv && !c->members)
        return c->hooks.allgatherv(c->hooks.user, send, sizes[me], recv, sizes, places, seconds_left(comm, r), &r->why);
    size_t bytes = 2 * (size_t)n * sizeof(int64_t);
    int64_t *lists = ravel__calloc(comm->allocator, 2 * (size_t)n, sizeof *lists);
    if (!lists) return ravel__no_memory(&r->why, bytes, "an all-gather");
    for (int32_t i = 0; i < n; i++) lists[i] = sizes[me]; /* the same piece to every rank */
    pieces p = {send, recv, lists, lists + n, sizes, places};
    ravel_status status = tournament(comm, r, &p);
    ravel__release(comm->allocator, lists, bytes);
    return status;
}

/* All-gather of `bytes` from each rank. */
static ravel_status gather_even(ravel_comm *comm, ravel_request *r, const void *send, void *recv, int64_t bytes) {
    int32_t n = comm->size;
    size_t need = 2 * (size_t)n * sizeof(int64_t);
    int64_t *lists = ravel__calloc(comm->allocator, 2 * (size_t)n, sizeof *lists);
    if (!lists) return ravel__no_memory(&r->why, need, "an all-gather");
    for (int32_t i = 0; i < n; i++) lists[i] = bytes, lists[n + i] = i * bytes;
    ravel_status status = gather(comm, r, send, recv, lists, lists + n);
    ravel__release(comm->allocator, lists, need);
    return status;
}

static ravel_status exchange(ravel_comm *comm, ravel_request *r, const pieces *p) {
    callbacks_rank *c = rank_of(comm);
    if (c->hooks.alltoallv && !c->members)
        return c->hooks.alltoallv(c->hooks.user, p->send, p->send_sizes, p->send_at, p->recv, p->recv_sizes, p->recv_at,
                                  seconds_left(comm, r), &r->why);
    return tournament(comm, r, p);
}

static ravel_status broadcast(ravel_comm *comm, ravel_request *r) {
    callbacks_rank *c = rank_of(comm);
    const ravel__op *op = &r->op;
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(op->root >= 0 && op->root < comm->size && comm->chunk_bytes > 0);
    if (c->hooks.broadcast && !c->members) {
        for (int64_t at = 0; at < op->bytes && !status; at += comm->chunk_bytes) {
            int64_t part = op->bytes - at < comm->chunk_bytes ? op->bytes - at : comm->chunk_bytes;
            status = c->hooks.broadcast(c->hooks.user, op->recv + at, part, op->root, seconds_left(comm, r), &r->why);
        }
        return status;
    }
    memset(r->lists, 0, 4 * (size_t)comm->size * sizeof *r->lists); /* not used by a broadcast */
    r->lists[op->root] = op->bytes;
    return gather(comm, r, op->recv, op->recv, r->lists, r->lists + comm->size);
}

static ravel_status barrier(ravel_comm *comm, ravel_request *r) {
    callbacks_rank *c = rank_of(comm);
    if (c->hooks.barrier && !c->members) return c->hooks.barrier(c->hooks.user, seconds_left(comm, r), &r->why);
    char mine = 0, *all = ravel__alloc(comm->allocator, (size_t)comm->size);
    if (!all) return ravel__no_memory(&r->why, (size_t)comm->size, "a barrier");
    ravel_status status = gather_even(comm, r, &mine, all, 1);
    ravel__release(comm->allocator, all, (size_t)comm->size);
    return status;
}

static ravel_status run_collective(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(!is_message(r) && r->op.kind < RAVEL__OP_KINDS);
    const ravel__op *op = &r->op;
    callbacks_rank *c = rank_of(comm);
    pieces p = {op->send, op->recv, op->send_sizes, op->send_offsets, op->recv_sizes, op->recv_offsets};
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__BARRIER: return barrier(comm, r);
    case RAVEL__BROADCAST: return broadcast(comm, r);
    case RAVEL__ALLGATHER: return gather(comm, r, op->send, op->recv, op->recv_sizes, op->recv_offsets);
    case RAVEL__ALLTOALL: return exchange(comm, r, &p);
    default:
        RAVEL_ASSERT(op->kind == RAVEL__ALLREDUCE && c->hooks.allreduce &&
                     op->each > 0); /* what the table said it takes */
        return c->hooks.allreduce(c->hooks.user, op->send, op->recv, op->bytes / op->each, op->dtype, op->reduce,
                                  seconds_left(comm, r), &r->why);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------ */

/* After any failure of a callback the state of the framework's group is unknown. */
static ravel_status as_fatal(ravel_status status) {
    if (status == RAVEL_OK || status == RAVEL_E_MISMATCH || status == RAVEL_E_TIMEOUT || status == RAVEL_E_PEER_LOST)
        return status;
    return RAVEL_E_CALLBACK;
}

static ravel_status callbacks_start(ravel_comm *comm, ravel_request *r) {
    callbacks_request *s = state_of(r);
    callbacks_rank *c = rank_of(comm);
    s->done = s->status = 0;
    s->order = ++c->starts;
    if (is_message(r)) {
        if (r->op.root == comm->rank) meet_oneself(comm, r);
        return RAVEL_OK;
    }
    ravel_status status = comm->check && comm->size > 1 ? ravel__cards_compare(comm, r, gather_even) : RAVEL_OK;
    if (!status) status = run_collective(comm, r);
    s->done = 1;
    s->status = (int32_t)as_fatal(status);
    return (ravel_status)s->status;
}

static ravel_status callbacks_wait(ravel_comm *comm, ravel_request *r) {
    if (!state_of(r)->done && is_message(r)) run_messages(comm, r);
    if (!state_of(r)->done)
        return ravel_error_set(&r->why, RAVEL_E_STATE,
                               "this rank waits for itself; start the other half with isend or irecv first");
    return as_fatal((ravel_status)state_of(r)->status);
}

/* The caller's functions wait, so nothing is begun here. */
static ravel_status callbacks_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    (void)comm;
    *done = state_of(r)->done;
    return *done ? as_fatal((ravel_status)state_of(r)->status) : RAVEL_OK;
}

static void callbacks_cancel(ravel_comm *comm, ravel_request *r) {
    (void)comm;
    state_of(r)->done = 1; /* what was not waited for never began */
}

static void callbacks_abort(ravel_comm *comm, const char *why) {
    callbacks_rank *c = rank_of(comm);
    if (c->hooks.abort) c->hooks.abort(c->hooks.user, why);
}

static ravel_status callbacks_alive(ravel_comm *comm, ravel_error *err) {
    (void)comm, (void)err;
    return RAVEL_OK;
}

static void callbacks_close(ravel_comm *comm) {
    RAVEL_ASSERT(atomic_load(&rank_of(comm)->tags->refs) > 0 && !comm->open);
    callbacks_rank *c = rank_of(comm);
    if (c->hooks.close) c->hooks.close(c->hooks.user);
    if (atomic_fetch_sub(&c->tags->refs, 1) == 1) ravel__release(comm->allocator, c->tags, sizeof *c->tags);
    ravel__release(comm->allocator, c->members, (size_t)comm->size * sizeof *c->members);
    ravel__release(comm->allocator, c, sizeof *c);
}

static int64_t callbacks_serial(ravel_comm *comm) {
    return atomic_load(&rank_of(comm)->tags->next);
}

static ravel_status callbacks_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                     int32_t colour, ravel_error *err);

/* clang-format off */
#define TABLE(kinds)                                                                                                \
    {                                                                                                               \
        .name = "callbacks", .request_bytes = sizeof(callbacks_request), .reduces = (kinds), .moves_in_wait = 1,    \
        .start = callbacks_start, .test = callbacks_test, .wait = callbacks_wait, .cancel = callbacks_cancel,       \
        .subset = callbacks_subset, .serial = callbacks_serial, .abort = callbacks_abort, .alive = callbacks_alive, \
        .close = callbacks_close                                                                                    \
    }
/* clang-format on */
static const ravel__backend plain_backend = TABLE(0), reducing_backend = TABLE(1u << RAVEL__ALLREDUCE);

/* ---- making them ---------------------------------------------------------------------------------------- */

static ravel_status check_hooks(const ravel_comm_hooks *h, ravel_error *err) {
    if (h->size < offsetof(ravel_comm_hooks, split) || h->size > 4096)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "ravel_comm_hooks.size is %zu; set it to sizeof(ravel_comm_hooks)", h->size);
    if (h->ranks < 1 || h->rank < 0 || h->rank >= h->ranks)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "rank %d is out of range for %d ranks; ranks count from 0",
                               h->rank, h->ranks);
    if (!h->send || !h->recv)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "ravel_comm_hooks needs both send and recv; %s is NULL",
                               h->send ? "recv" : "send");
    return RAVEL_OK;
}

static ravel_status make_state(ravel_comm *comm, const ravel_comm_hooks *hooks, callbacks_tags *tags,
                               ravel_error *err) {
    RAVEL_ASSERT(!comm->state);
    callbacks_rank *c = ravel__calloc(comm->allocator, 1, sizeof *c);
    callbacks_tags *t = tags ? tags : ravel__calloc(comm->allocator, 1, sizeof *t);
    if (!c || !t) {
        ravel__release(comm->allocator, c, sizeof *c);
        if (!tags) ravel__release(comm->allocator, t, sizeof *t);
        return ravel__no_memory(err, sizeof *c, "a communicator");
    }
    memcpy(&c->hooks, hooks, hooks->size < sizeof *hooks ? hooks->size : sizeof *hooks);
    if (!tags) atomic_store(&t->next, 1);
    atomic_fetch_add(&t->refs, 1);
    c->tags = t;
    comm->state = c;
    return RAVEL_OK;
}

/* A child with a table of its own, from the framework. */
static ravel_status subset_by_table(ravel_comm *comm, ravel_comm *child, const int32_t *members, ravel_error *err) {
    callbacks_rank *c = rank_of(comm);
    ravel_comm_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.size = sizeof hooks;
    ravel_status status =
        c->hooks.split(c->hooks.user, members, child->size, child->rank, &hooks, ravel_comm_timeout(comm), err);
    if (status) return status;
    status = check_hooks(&hooks, err);
    if (!status && (hooks.rank != child->rank || hooks.ranks != child->size))
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "split gave rank %d of %d, not rank %d of %d", hooks.rank,
                                 hooks.ranks, child->rank, child->size);
    if (!status) status = make_state(child, &hooks, NULL, err);
    if (status && hooks.close) hooks.close(hooks.user);
    child->backend = hooks.allreduce ? &reducing_backend : &plain_backend;
    return status;
}

/* A child that uses its parent's send and recv. */
static ravel_status subset_by_messages(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                       ravel_error *err) {
    callbacks_rank *c = rank_of(comm);
    RAVEL_ASSERT(serial >= atomic_load(&c->tags->next)); /* the largest of all members' */
    if (serial >= MOST_CHILDREN)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "limit of %d splits of one communicator reached", MOST_CHILDREN);
    ravel_status status = make_state(child, &c->hooks, c->tags, err);
    if (status) return status;
    callbacks_rank *made = rank_of(child);
    made->hooks.close = NULL; /* the table is the parent's */
    made->members = ravel__alloc(child->allocator, (size_t)child->size * sizeof *made->members);
    if (!made->members) {
        callbacks_close(child);
        return ravel__no_memory(err, (size_t)child->size * sizeof *made->members, "a communicator");
    }
    for (int32_t i = 0; i < child->size; i++) made->members[i] = c->members ? c->members[members[i]] : members[i];
    made->tag_base = (int32_t)serial * TAGS;
    child->backend = &plain_backend;
    atomic_store(&c->tags->next, (int32_t)serial + 1);
    return RAVEL_OK;
}

static ravel_status callbacks_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                     int32_t colour, ravel_error *err) {
    callbacks_rank *c = rank_of(comm);
    (void)colour;
    if (c->hooks.split && !c->members) return subset_by_table(comm, child, members, err);
    return subset_by_messages(comm, child, members, serial, err);
}

ravel_status ravel_comm_callbacks(const ravel_comm_hooks *hooks, const ravel_comm_options *options, ravel_comm **comm,
                                  ravel_error *err) {
    ravel_comm *c;
    ravel_status status = check_hooks(hooks, err);
    if (status) return status;
    int reduces = hooks->allreduce != NULL;
    status = ravel__comm_new(reduces ? &reducing_backend : &plain_backend, hooks->rank, hooks->ranks, options, &c, err);
    if (status) return status;
    status = make_state(c, hooks, NULL, err);
    if (status)
        ravel__comm_discard(c);
    else
        *comm = c;
    return status;
}
