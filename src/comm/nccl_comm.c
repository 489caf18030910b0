/* NCCL as a back end: arrays in device memory, one NCCL communicator beside a host communicator of the same ranks.
 *
 *     host communicator   the unique id, what the ranks ask for (cards, where `check` is on), headers of messages, splits,
 *                         and notices of lost ranks
 *     NCCL                the arrays. All-gathers and reduce-scatters of equal pieces are NCCL's own. With pieces of different
 *                         sizes they are one group, of sends and receives or of reductions; so is every all-to-all
 *
 * The states of a request
 *
 *     barrier      the host communicator's: MEETING  ->  DONE
 *     collective   start: [cards agree on the host, this waits]  ->  group into the stream  ->  LAUNCHED
 *     message      start: QUEUED, its header travels; the first wait or test of any message launches all that are queued,
 *                  as one group, once their headers have come and all of them are right (CHECKED)  ->  LAUNCHED
 *     LAUNCHED     NCCL has taken it  ->  event recorded in the stream, RUNNING  ->  event done, DONE
 *
 * With `queued`, collectives agree on nothing, messages have no headers, and LAUNCHED goes to DONE when NCCL has taken
 * it.
 *
 * NCCL has no tags: between two ranks messages are matched in the order in which they were sent. The headers carry tag
 * and number, so receives may be started in another order than the sends as long as they are launched together.
 *
 * Nothing here waits for the device without looking at the deadline and at the host communicator. A deadline, a lost
 * peer or an error of NCCL's aborts the NCCL communicator: what was in flight is undefined, the stream stays usable. */
#include "comm/nccl_comm.h"
#include "comm/backend.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "device/handle.h"

#include "base/system/module.h"

#include <string.h>
#include <time.h>

typedef struct group {
    const ravel__nccl *nccl;
    void *comm; /* NCCL's; NULL: aborted */
    ravel_comm *host;
    ravel_stream *stream;
    int32_t queued;           /* operations are over once they are in the stream */
    int64_t order;            /* of requests */
    int64_t *sent, *received; /* [size] messages to and from each rank so far */
} group;

typedef enum stage { DONE, MEETING, QUEUED, CHECKED, LAUNCHED, RUNNING } stage;

/* The header of a message. */
typedef struct header {
    int64_t bytes, number;
    int32_t dtype, tag;
} header;

typedef struct state {
    int32_t stage, failed;
    int64_t order;
    header mine;
    ravel_request *news; /* the header on its way, or the barrier; NULL: it has come */
    ravel_event *event;
} state;

static state *state_of(ravel_request *r) {
    return (state *)(void *)r->state;
}

static group *group_of(const ravel_comm *comm) {
    return comm->state;
}

static int is_message(const ravel_request *r) {
    return r->op.kind == RAVEL__SEND || r->op.kind == RAVEL__RECV;
}

/* ---- failures ------------------------------------------------------------------------------------------- */

static void give_up(group *g) {
    if (g->comm) g->nccl->abort(g->comm);
    g->comm = NULL;
}

/* A code of NCCL's as a status; the communicator cannot be used afterwards. */
static ravel_status check(ravel_comm *comm, int code, const char *what, ravel_error *why) {
    group *g = group_of(comm);
    char text[256];
    if (code == 0 || code == RAVEL__NCCL_PENDING) return RAVEL_OK;
    if (code == RAVEL__NCCL_UNSUPPORTED)
        return ravel_error_set(why, RAVEL_E_UNSUPPORTED, "NCCL cannot reduce elements of this type");
    g->nccl->describe(code, text, sizeof text);
    give_up(g);
    return ravel_error_set(why, RAVEL_E_PEER_LOST, "NCCL failed in %s: %s", what, text);
}

static ravel_status gone(ravel_error *why) {
    return ravel_error_set(why, RAVEL_E_PEER_LOST, "the NCCL communicator was aborted");
}

/* Until NCCL can take the next call. */
static ravel_status settle(ravel_comm *comm, int code, int64_t deadline, const char *what, ravel_error *why) {
    group *g = group_of(comm);
    const struct timespec pause = {0, 50 * 1000};
    while (code == RAVEL__NCCL_PENDING) {
        RAVEL_ASSERT(g->comm);
        if (ravel__clock_ns() > deadline) {
            give_up(g);
            return ravel_error_set(why, RAVEL_E_TIMEOUT, "NCCL did not finish %s in time", what);
        }
        ravel_status status = ravel_comm_alive(g->host, why);
        if (status) {
            give_up(g);
            return RAVEL_E_PEER_LOST;
        }
        code = g->nccl->state(g->comm);
        if (code == RAVEL__NCCL_PENDING) (void)nanosleep(&pause, NULL);
    }
    return check(comm, code, what, why);
}

static int64_t deadline_of(const ravel_comm *comm) {
    return ravel__clock_ns() + comm->timeout_ns;
}

/* ---- what the ranks ask for ----------------------------------------------------------------------------- */

static ravel_status gather_on_host(ravel_comm *comm, ravel_request *r, const void *send, void *recv, int64_t bytes) {
    return ravel_comm_allgather(group_of(comm)->host, send, recv, bytes, RAVEL_U8, &r->why);
}

/* ---- collectives ---------------------------------------------------------------------------------------- */

/* The bytes of each piece, where all have the same and lie in the order of ranks; 0: they do not. */
static int64_t even_piece(const ravel_comm *comm, const int64_t *sizes, const int64_t *offsets) {
    for (int32_t i = 0; i < comm->size; i++)
        if (sizes[i] != sizes[0] || offsets[i] != i * sizes[0]) return 0;
    return sizes[0];
}

/* The pieces of a ragged exchange, peers in the order me + 1, me + 2, ...; what goes to this rank itself is a copy. */
static ravel_status exchange(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(group_of(comm)->comm && (r->op.kind == RAVEL__ALLGATHER || r->op.kind == RAVEL__ALLTOALL));
    group *g = group_of(comm);
    const ravel__op *op = &r->op;
    int32_t n = comm->size, me = comm->rank, all = op->kind == RAVEL__ALLGATHER;
    const char *own = op->send + (all ? 0 : op->send_offsets[me]);
    char *there = op->recv + op->recv_offsets[me];
    if (own != there) {
        ravel_status status =
            ravel_device_copy(g->stream->device, there, own, (size_t)op->recv_sizes[me], g->stream, &r->why);
        if (status) return status;
    }
    int code = g->nccl->group_begin(g->comm);
    for (int32_t i = 1; i < n && code == 0; i++) {
        int32_t to = (me + i) % n, from = (me - i + n) % n;
        int64_t out = all ? op->recv_sizes[me] : op->send_sizes[to], in = op->recv_sizes[from];
        const char *piece = all ? op->send : op->send + op->send_offsets[to];
        if (out) code = g->nccl->send(g->comm, piece, out, to, g->stream->native);
        if (in && code == 0)
            code = g->nccl->recv(g->comm, op->recv + op->recv_offsets[from], in, from, g->stream->native);
    }
    int ended = g->nccl->group_end(g->comm);
    return check(comm, code ? code : ended, "an exchange", &r->why);
}

static ravel_status gather(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    const ravel__op *op = &r->op;
    int64_t piece = even_piece(comm, op->recv_sizes, op->recv_offsets);
    if (!piece) return exchange(comm, r);
    return check(comm, g->nccl->allgather(g->comm, op->send, op->recv, piece, g->stream->native), "an all-gather",
                 &r->why);
}

/* A piece for each rank, reduced there. */
static ravel_status reduce_pieces(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    const ravel__op *op = &r->op;
    int64_t piece = even_piece(comm, op->recv_sizes, op->send_offsets);
    RAVEL_ASSERT(op->each > 0);
    if (piece)
        return check(comm,
                     g->nccl->reduce_scatter(g->comm, op->send, op->recv, piece / op->each, op->dtype, op->reduce,
                                             g->stream->native),
                     "a reduce-scatter", &r->why);
    int code = g->nccl->group_begin(g->comm);
    for (int32_t i = 0; i < comm->size && code == 0; i++)
        if (op->recv_sizes[i])
            code = g->nccl->reduce(g->comm, op->send + op->send_offsets[i], i == comm->rank ? op->recv : NULL,
                                   op->recv_sizes[i] / op->each, op->dtype, op->reduce, i, g->stream->native);
    int ended = g->nccl->group_end(g->comm);
    return check(comm, code ? code : ended, "a reduce-scatter", &r->why);
}

static ravel_status launch_collective(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(!is_message(r) && r->op.kind != RAVEL__BARRIER && group_of(comm)->comm);
    group *g = group_of(comm);
    const ravel__op *op = &r->op;
    void *stream = g->stream->native;
    int64_t count = op->each ? op->bytes / op->each : 0;
    int code = 0;
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__ALLGATHER: return gather(comm, r);
    case RAVEL__ALLTOALL: return exchange(comm, r);
    case RAVEL__REDUCE_SCATTER: return reduce_pieces(comm, r);
    case RAVEL__BROADCAST:
        if (op->bytes) code = g->nccl->broadcast(g->comm, op->recv, op->bytes, op->root, stream); /* in place */
        break;
    case RAVEL__ALLREDUCE:
        if (count) code = g->nccl->allreduce(g->comm, op->send, op->recv, count, op->dtype, op->reduce, stream);
        break;
    case RAVEL__REDUCE:
        if (count) code = g->nccl->reduce(g->comm, op->send, op->recv, count, op->dtype, op->reduce, op->root, stream);
        break;
    default: break;
    }
    return check(comm, code, ravel__op_names[op->kind], &r->why);
}

static ravel_status start_collective(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    state *s = state_of(r);
    if (r->op.kind == RAVEL__BARRIER) { /* the host's; ranks that ask for something else are noticed there */
        s->stage = MEETING;
        return ravel_comm_ibarrier(g->host, &s->news, &r->why);
    }
    ravel_status status =
        comm->check && comm->size > 1 && !g->queued ? ravel__cards_compare(comm, r, gather_on_host) : RAVEL_OK;
    /* the call before may still be on its way into NCCL */
    if (!status) status = settle(comm, g->nccl->state(g->comm), deadline_of(comm), "the call before", &r->why);
    if (!status) status = launch_collective(comm, r);
    if (!status) s->stage = LAUNCHED;
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static ravel_status start_message(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(is_message(r) && r->op.root >= 0 && r->op.root < comm->size);
    group *g = group_of(comm);
    state *s = state_of(r);
    int32_t peer = r->op.root;
    s->stage = QUEUED;
    s->mine = (header){r->op.bytes, 0, r->op.dtype, r->op.tag};
    if (g->queued) {
        s->mine.number = s->order;
        return RAVEL_OK;
    }
    if (r->op.kind == RAVEL__SEND) {
        s->mine.number = g->sent[peer]++;
        return ravel_comm_isend(g->host, &s->mine, sizeof s->mine, RAVEL_U8, peer, r->op.tag, &s->news, &r->why);
    }
    return ravel_comm_irecv(g->host, &s->mine, sizeof s->mine, RAVEL_U8, peer, r->op.tag, &s->news, &r->why);
}

/* Whether every queued message's header has come. */
static ravel_status headers_done(ravel_comm *comm, ravel_request *r, int32_t *all) {
    *all = 1;
    for (ravel_request *q = comm->open; q; q = q->next) {
        state *s = state_of(q);
        int32_t done = 0;
        if (!is_message(q) || s->stage != QUEUED || !s->news) continue;
        ravel_status status = ravel_request_test(s->news, &done, &r->why);
        if (done) s->news = NULL;
        if (status) return status;
        *all &= done;
    }
    return RAVEL_OK;
}

/* The next message of a stage: sends and receives of one peer each in the order of their numbers. */
static ravel_request *next_message(ravel_comm *comm, stage wanted) {
    ravel_request *best = NULL;
    for (ravel_request *q = comm->open; q; q = q->next) {
        if (!is_message(q) || state_of(q)->stage != (int32_t)wanted) continue;
        if (!best || state_of(q)->mine.number < state_of(best)->mine.number) best = q;
    }
    return best;
}

static ravel_status check_header(ravel_comm *comm, ravel_request *q, ravel_error *why) {
    RAVEL_ASSERT(q->op.kind == RAVEL__RECV && !state_of(q)->news);
    group *g = group_of(comm);
    const header *h = &state_of(q)->mine;
    if (h->number != g->received[q->op.root])
        return ravel_error_set(why, RAVEL_E_PEER_LOST,
                               "rank %d sent another message first; NCCL has no tags: start the receives of messages "
                               "in the order in which they are sent, or together",
                               q->op.root);
    if (h->bytes != q->op.bytes || h->dtype != q->op.dtype)
        return ravel_error_set(why, RAVEL_E_PEER_LOST, "rank %d sends %lld bytes of %s, and %lld of %s are expected",
                               q->op.root, (long long)h->bytes, ravel_dtype_name(h->dtype), (long long)q->op.bytes,
                               ravel_dtype_name(q->op.dtype));
    g->received[q->op.root]++;
    return RAVEL_OK;
}

/* A wrong header is found before the group begins: a group that is not ended would take in whatever this thread asks of
 * NCCL later. */
static ravel_status check_queued(ravel_comm *comm, ravel_error *why) {
    ravel_status status = RAVEL_OK;
    for (ravel_request *q; !status && (q = next_message(comm, QUEUED));) {
        RAVEL_ASSERT(!state_of(q)->news); /* all headers have come */
        if (q->op.kind == RAVEL__RECV && !group_of(comm)->queued) status = check_header(comm, q, why);
        state_of(q)->stage = CHECKED;
    }
    return status;
}

/* All that are queued, in one group: two ranks that send to each other cannot wait for each other. */
static ravel_status launch_messages(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    ravel_status status = settle(comm, g->nccl->state(g->comm), deadline_of(comm), "the call before", &r->why);
    if (!status) status = check_queued(comm, &r->why);
    if (status) { /* other ranks do not know of this failure: abort for all */
        ravel_comm_abort(g->host, &r->why);
        give_up(g);
        return status;
    }
    int code = g->nccl->group_begin(g->comm);
    for (ravel_request *q; code == 0 && (q = next_message(comm, CHECKED));) {
        if (q->op.bytes && q->op.kind == RAVEL__SEND)
            code = g->nccl->send(g->comm, q->op.send, q->op.bytes, q->op.root, g->stream->native);
        else if (q->op.bytes)
            code = g->nccl->recv(g->comm, q->op.recv, q->op.bytes, q->op.root, g->stream->native);
        state_of(q)->stage = LAUNCHED;
    }
    int ended = g->nccl->group_end(g->comm);
    return check(comm, code ? code : ended, "messages", &r->why);
}

/* ---- progress ------------------------------------------------------------------------------------------- */

static void finish(ravel_request *r, ravel_status status) {
    RAVEL_ASSERT(state_of(r)->stage >= DONE && state_of(r)->stage <= RUNNING);
    state *s = state_of(r);
    ravel_event_free(s->event);
    s->event = NULL;
    s->stage = DONE;
    s->failed = (int32_t)status;
}

static ravel_status step(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(state_of(r)->stage != DONE && (state_of(r)->stage != RUNNING || state_of(r)->event));
    group *g = group_of(comm);
    state *s = state_of(r);
    int32_t done = 0;
    if (s->stage == MEETING) {
        RAVEL_ASSERT(s->news && r->op.kind == RAVEL__BARRIER);
        ravel_status status = ravel_request_test(s->news, &done, &r->why);
        if (done) s->news = NULL;
        if (done && !status) finish(r, RAVEL_OK);
        return status;
    }
    if (!g->comm) return gone(&r->why);
    if (s->stage == QUEUED) {
        ravel_status status = headers_done(comm, r, &done);
        if (!status && done) status = launch_messages(comm, r);
        if (status || s->stage == QUEUED) return status;
    }
    if (s->stage == LAUNCHED) {
        int code = g->nccl->state(g->comm);
        if (code == RAVEL__NCCL_PENDING) return RAVEL_OK;
        ravel_status status = check(comm, code, ravel__op_names[r->op.kind], &r->why);
        if (!status && g->queued) {
            finish(r, RAVEL_OK);
            return RAVEL_OK;
        }
        if (!status) status = ravel_event_create(g->stream->device, &s->event, &r->why);
        if (!status) status = ravel_event_record(s->event, g->stream, &r->why);
        if (status) return status;
        s->stage = RUNNING;
    }
    if (s->stage == RUNNING) {
        ravel_status status = ravel_event_test(s->event, &done, &r->why);
        if (status) return status;
        if (done) finish(r, RAVEL_OK);
    }
    return RAVEL_OK;
}

static ravel_status nccl_start(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    state *s = state_of(r);
    memset(s, 0, sizeof *s);
    s->order = g->order++;
    if (!g->comm) return gone(&r->why);
    return is_message(r) ? start_message(comm, r) : start_collective(comm, r);
}

static ravel_status nccl_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    state *s = state_of(r);
    ravel_status status = s->stage == DONE ? (ravel_status)s->failed : step(comm, r);
    if (status) finish(r, status);
    *done = s->stage == DONE;
    return status;
}

static ravel_status nccl_wait(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    const struct timespec pause = {0, 20 * 1000};
    int64_t begin = ravel__clock_ns();
    for (;;) {
        int32_t done = 0;
        ravel_status status = nccl_test(comm, r, &done);
        if (status || done) return status;
        int64_t now = ravel__clock_ns();
        if (now > r->deadline_ns) {
            give_up(g);
            finish(r, RAVEL_E_TIMEOUT);
            return ravel_error_set(&r->why, RAVEL_E_TIMEOUT, "the deadline passed");
        }
        status = ravel_comm_alive(g->host, &r->why);
        if (status) {
            give_up(g);
            finish(r, RAVEL_E_PEER_LOST);
            return RAVEL_E_PEER_LOST;
        }
        if (now - begin > 100 * 1000) (void)nanosleep(&pause, NULL);
    }
}

/* A launched operation would go on writing to the caller's memory, so the whole communicator is aborted. */
static void nccl_cancel(ravel_comm *comm, ravel_request *r) {
    group *g = group_of(comm);
    state *s = state_of(r);
    if (s->stage == LAUNCHED || s->stage == RUNNING) {
        give_up(g);
        (void)ravel_stream_wait(g->stream, 10, NULL);
    }
    finish(r, RAVEL_E_STATE); /* a header on its way is cancelled with the host communicator */
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

static void nccl_close(ravel_comm *comm) {
    RAVEL_ASSERT(!comm->open);
    group *g = group_of(comm);
    size_t bytes = 2 * (size_t)comm->size * sizeof *g->sent;
    give_up(g); /* destroying would wait for the others */
    ravel_comm_free(g->host);
    ravel__release(comm->allocator, g->sent, bytes);
    ravel__release(comm->allocator, g, sizeof *g);
    comm->state = NULL;
}

/* The NCCL communicator of comm's ranks, which have `host` in common. Owns host, also on failure. */
static ravel_status make_group(ravel_comm *comm, const ravel__nccl *nccl, ravel_comm *host, ravel_stream *stream,
                               int32_t queued, ravel_error *err) {
    unsigned char id[RAVEL__NCCL_ID] = {0};
    RAVEL_ASSERT(nccl && host && stream);
    RAVEL_ASSERT(!comm->state && host->size == comm->size && host->rank == comm->rank);
    ravel_comm_set_timeout(host, ravel_comm_timeout(comm));
    group *g = ravel__calloc(comm->allocator, 1, sizeof *g);
    int64_t *counts = ravel__calloc(comm->allocator, 2 * (size_t)comm->size, sizeof *counts);
    ravel_status status = g && counts ? RAVEL_OK : ravel__no_memory(err, sizeof *g, "a communicator");
    int code = !status && comm->rank == 0 ? nccl->id(id) : 0;
    if (g) {
        *g = (group){.nccl = nccl, .host = host, .stream = stream, .queued = queued, .sent = counts};
        g->received = counts ? counts + comm->size : NULL;
        comm->state = g;
        if (!status) status = check(comm, code, "making an id", err);
    }
    /* a rank without memory takes part, so that none waits for it */
    status = ravel_agree(host, status, err);
    if (!status) status = ravel_comm_broadcast(host, id, sizeof id, RAVEL_U8, 0, err);
    if (!status) {
        code = nccl->begin(stream->device->info.index, comm->size, comm->rank, id, &g->comm);
        status = settle(comm, code, deadline_of(comm), "meeting the other ranks", err);
    }
    if (!status) return RAVEL_OK;
    if (g)
        nccl_close(comm);
    else
        ravel_comm_free(host);
    if (!g) ravel__release(comm->allocator, counts, 2 * (size_t)comm->size * sizeof *counts);
    return status;
}

static int64_t nccl_serial(ravel_comm *comm) {
    ravel_comm *host = group_of(comm)->host;
    return host->backend->serial ? host->backend->serial(host) : host->splits;
}

/* The host's back end makes the child's host communicator in the same way as the front would. */
static ravel_status nccl_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                int32_t colour, ravel_error *err) {
    group *g = group_of(comm);
    ravel_comm *host = NULL;
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = (double)comm->timeout_ns * 1e-9;
    options.allocator = comm->allocator;
    options.check = comm->check;
    ravel_status status = ravel__comm_new(g->host->backend, child->rank, child->size, &options, &host, err);
    if (status) return status;
    host->world_ranks = ravel__alloc(host->allocator, (size_t)host->size * sizeof *host->world_ranks);
    if (!host->world_ranks)
        status = ravel__no_memory(err, (size_t)host->size * sizeof *host->world_ranks, "a communicator");
    for (int32_t i = 0; !status && i < host->size; i++)
        host->world_ranks[i] = ravel__comm_world_rank(g->host, members[i]);
    if (!status) status = g->host->backend->subset(g->host, host, members, serial, colour, err);
    g->host->splits++;
    if (status) {
        ravel__comm_discard(host);
        return status;
    }
    return make_group(child, g->nccl, host, g->stream, g->queued, err);
}

static void nccl_abort(ravel_comm *comm, const char *why) {
    ravel_error error = RAVEL_ERROR_INIT;
    (void)ravel_error_set(&error, RAVEL_E_PEER_LOST, "%s", why);
    ravel_comm_abort(group_of(comm)->host, &error);
    give_up(group_of(comm));
}

static ravel_status nccl_alive(ravel_comm *comm, ravel_error *err) {
    group *g = group_of(comm);
    ravel_status status = g->comm ? ravel_comm_alive(g->host, err) : gone(err);
    if (!status) status = check(comm, g->nccl->state(g->comm), "an operation", err);
    if (status) give_up(g); /* what is in the stream ends */
    return status ? RAVEL_E_PEER_LOST : RAVEL_OK;
}

static ravel_comm *nccl_control(ravel_comm *comm) {
    return group_of(comm)->host;
}

static const ravel__backend backend = {.name = "nccl",
                                       .request_bytes = sizeof(state),
                                       .reduces = RAVEL__ALL_REDUCTIONS,
                                       .start = nccl_start,
                                       .test = nccl_test,
                                       .wait = nccl_wait,
                                       .cancel = nccl_cancel,
                                       .subset = nccl_subset,
                                       .serial = nccl_serial,
                                       .abort = nccl_abort,
                                       .alive = nccl_alive,
                                       .close = nccl_close,
                                       .control = nccl_control};

ravel_status ravel__comm_nccl_with(const ravel__nccl *nccl, ravel_comm *host, ravel_stream *stream,
                                   const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    ravel_comm *own = NULL, *made = NULL;
    ravel_status status = ravel_comm_dup(host, &own, err);
    if (status) return status;
    status = ravel__comm_new(&backend, host->rank, host->size, options, &made, err);
    status = ravel_agree(own, status, err);
    if (status) {
        if (made) ravel__comm_discard(made);
        ravel_comm_free(own);
        return status;
    }
    status = make_group(made, nccl, own, stream, options && options->size >= sizeof *options && options->queued, err);
    if (status)
        ravel__comm_discard(made);
    else
        *comm = made;
    return status;
}

static ravel_status load(const ravel__nccl **nccl, ravel_error *err) {
    static const ravel__module module = {.what = "NCCL",
                                         .variable = "RAVEL_NCCL_MODULE",
                                         .advice = "build with nvcc and NCCL installed",
                                         .names = {"libravel_nccl.so", NULL}};
    void *handle = NULL;
    ravel_status status = ravel__module_load(&module, &handle, err);
    ravel__nccl_fn get = status ? NULL : (ravel__nccl_fn)ravel__module_find(handle, "ravel_nccl");
    if (status) return status;
    if (!get || get()->version != RAVEL__NCCL_VERSION || get()->bytes != (int32_t)sizeof **nccl)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the NCCL module and libravel are of different builds; install both again");
    *nccl = get();
    return RAVEL_OK;
}

ravel_status ravel_comm_nccl_find(ravel_error *err) {
    const ravel__nccl *nccl = NULL;
    return load(&nccl, err);
}

ravel_status ravel_comm_nccl(ravel_comm *host, ravel_stream *stream, const ravel_comm_options *options,
                             ravel_comm **comm, ravel_error *err) {
    const ravel__nccl *nccl = NULL;
    ravel_status status = RAVEL_OK;
    if (strncmp(stream->device->info.name, "cuda", 4) != 0)
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED, "NCCL needs a stream of a CUDA device, and this is of %s",
                                 stream->device->info.name);
    else
        status = load(&nccl, err);
    status = ravel_agree(host, status, err); /* a rank without NCCL takes part, so that none waits for it */
    return status ? status : ravel__comm_nccl_with(nccl, host, stream, options, comm, err);
}

/* ---- where arrays are ----------------------------------------------------------------------------------- */

ravel_status ravel_comm_place_check(const ravel_comm *comm, const ravel_place *place, ravel_error *err) {
    static const uint32_t host = 1u << RAVEL_HOST | 1u << RAVEL_PINNED,
                          device = 1u << RAVEL_DEVICE | 1u << RAVEL_PINNED;
    char what[64] = "an array";
    int nccl = comm->backend == &backend;
    ravel_status status = ravel__place_check(place, RAVEL__ALL_KINDS, what, err);
    if (status || (nccl ? device : host) >> place->kind & 1) return status;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "arrays in %s memory cannot travel over %s; %s",
                           ravel__memory_name(place->kind), comm->backend->name,
                           nccl ? "ravel_comm_host gives the communicator for those"
                                : "ravel_comm_nccl makes a communicator for those");
}

ravel_stream *ravel__comm_nccl_stream(const ravel_comm *comm) {
    return comm->backend == &backend ? group_of(comm)->stream : NULL;
}

ravel_comm *ravel_comm_host(ravel_comm *comm) {
    return comm->backend->control ? comm->backend->control(comm) : comm;
}
