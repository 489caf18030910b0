/* Operations of the MPI module: issuing them, and what happens until they are over. See mpi.c for the phases. */
#include "comm/mpi_parts.h"

#include <stdio.h>
#include <string.h>

/* ---- jobs and their requests ---------------------------------------------------------------------------- */

static mpi_job *take_job(mpi_rank *me) {
    mpi_job *j = me->idle;
    if (j)
        me->idle = j->next;
    else
        j = S->calloc(NULL, 1, sizeof *j);
    if (!j) return NULL;
    j->next = NULL;
    j->status = RAVEL_OK;
    j->count = j->disagree = j->message = j->announced = 0;
    j->grace_ns = 0;
    return j;
}

static size_t block_bytes(int32_t room) {
    return (size_t)room * (sizeof(MPI_Request) + sizeof(MPI_Status) + sizeof(int32_t));
}

void ravel__mpi_free_job(mpi_job *j, int32_t size) {
    S->release(NULL, j->statuses, block_bytes(j->room));
    S->release(NULL, j->cards, (size_t)size * sizeof *j->cards);
    S->release(NULL, j->arriving, (size_t)size * sizeof *j->arriving);
    S->release(NULL, j->counts, 2 * (size_t)size * sizeof *j->counts);
    S->release(NULL, j->gathered, (size_t)j->gathered_bytes);
    S->release(NULL, j, sizeof *j);
}

/* Room for `more` further requests: one block, statuses first. */
static int make_room(mpi_job *j, int64_t more) {
    int64_t need = j->count + more;
    if (need <= j->room) return 1;
    int32_t room = need < INT32_MAX / 4 ? (int32_t)(need + need / 2 + 4) : 0;
    MPI_Status *statuses = room ? S->calloc(NULL, 1, block_bytes(room)) : NULL;
    if (!statuses) return 0;
    MPI_Request *requests = (MPI_Request *)(void *)(statuses + room);
    int32_t *expect = (int32_t *)(void *)(requests + room);
    if (j->count) {
        memcpy(requests, j->requests, (size_t)j->count * sizeof(MPI_Request));
        memcpy(expect, j->expect, (size_t)j->count * sizeof *expect);
    }
    S->release(NULL, j->statuses, block_bytes(j->room));
    j->statuses = statuses, j->requests = requests, j->expect = expect, j->room = room;
    return 1;
}

/* The next request's place; `expect` is what a receive must bring, -1: anything. make_room was called. */
static MPI_Request *next_request(mpi_job *j, int32_t expect) {
    j->expect[j->count] = expect;
    j->requests[j->count] = MPI_REQUEST_NULL;
    return &j->requests[j->count++];
}

/* Sends or receives `bytes` in pieces; at least one message, also for nothing, where `always`. */
static int post(mpi_rank *me, mpi_job *j, int sends, const char *data, int64_t bytes, int32_t peer, int tag,
                MPI_Comm where, int always) {
    int64_t chunk = me->comm->chunk_bytes, at = 0;
    if (!bytes && !always) return MPI_SUCCESS;
    if (!make_room(j, bytes / chunk + 1)) return MPI_ERR_NO_MEM;
    do {
        int part = (int)(bytes - at < chunk ? bytes - at : chunk), code;
        char *piece = (char *)data + at;
        if (sends)
            code = MPI_Isend(piece, part, MPI_BYTE, peer, tag, where, next_request(j, -1));
        else
            code = MPI_Irecv(piece, part, MPI_BYTE, peer, tag, where, next_request(j, part));
        if (code) return code;
        at += part;
    } while (at < bytes);
    return MPI_SUCCESS;
}

/* ---- issuing -------------------------------------------------------------------------------------------- */

static int issue_broadcast(mpi_rank *me, mpi_job *j, const ravel__op *op) {
    int64_t chunk = me->comm->chunk_bytes;
    if (!make_room(j, op->bytes / chunk + 1)) return MPI_ERR_NO_MEM;
    for (int64_t at = 0; at < op->bytes; at += chunk) {
        int part = (int)(op->bytes - at < chunk ? op->bytes - at : chunk);
        int code = MPI_Ibcast(op->recv + at, part, MPI_BYTE, op->root, me->data, next_request(j, -1));
        if (code) return code;
    }
    return MPI_SUCCESS;
}

/* Everybody with everybody, starting with the neighbours so that not all send to rank 0 first. `same`: the whole of send
 * to each (all-gather). */
static int issue_exchange(mpi_rank *me, mpi_job *j, const ravel__op *op, int same) {
    int32_t n = me->comm->size, my = me->comm->rank;
    int tag = (int)(j->serial % TAGS);
    const char *mine = op->send + (same ? 0 : op->send_offsets[my]);
    char *home = op->recv + op->recv_offsets[my];
    if (op->recv_sizes[my] > 0 && home != mine) memcpy(home, mine, (size_t)op->recv_sizes[my]);
    for (int32_t i = 1; i < n; i++) {
        int32_t from = (my + n - i) % n;
        int code = post(me, j, 0, op->recv + op->recv_offsets[from], op->recv_sizes[from], from, tag, me->data, 0);
        if (code) return code;
    }
    for (int32_t i = 1; i < n; i++) {
        int32_t to = (my + i) % n;
        int64_t bytes = same ? op->recv_sizes[my] : op->send_sizes[to];
        int code = post(me, j, 1, op->send + (same ? 0 : op->send_offsets[to]), bytes, to, tag, me->data, 0);
        if (code) return code;
    }
    return MPI_SUCCESS;
}

/* A small all-gather by MPI's own; into a room of ours where the caller's offsets do not fit an int. */
static int issue_gather(mpi_rank *me, mpi_job *j, const ravel__op *op, int64_t total) {
    int32_t n = me->comm->size, fits = 1;
    if (!j->counts) j->counts = S->calloc(NULL, 2 * (size_t)n, sizeof *j->counts);
    for (int32_t r = 0; r < n; r++) fits &= op->recv_offsets[r] <= INT32_MAX;
    if (!fits) {
        j->gathered = S->calloc(NULL, 1, (size_t)total + 1);
        j->gathered_bytes = total + 1;
    }
    if (!j->counts || (!fits && !j->gathered) || !make_room(j, 1)) return MPI_ERR_NO_MEM;
    for (int32_t r = 0, at = 0; r < n; r++) {
        j->counts[r] = (int)op->recv_sizes[r];
        j->counts[n + r] = fits ? (int)op->recv_offsets[r] : at;
        at += j->counts[r];
    }
    int my = me->comm->rank, in_place = fits && op->send == op->recv + op->recv_offsets[my];
    return MPI_Iallgatherv(in_place ? MPI_IN_PLACE : op->send, j->counts[my], MPI_BYTE, fits ? op->recv : j->gathered,
                           j->counts, j->counts + n, MPI_BYTE, me->data, next_request(j, -1));
}

static int issue_move(mpi_rank *me, mpi_job *j) {
    const ravel__op *op = &j->request->op;
    int64_t total = 0, small = me->comm->chunk_bytes < SMALL_GATHER ? me->comm->chunk_bytes : SMALL_GATHER;
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__BROADCAST: return issue_broadcast(me, j, op);
    case RAVEL__ALLTOALL: return issue_exchange(me, j, op, 0);
    case RAVEL__ALLGATHER: /* by the total, which is the same everywhere, so that all take the same way */
        for (int32_t r = 0; r < me->comm->size && total <= small; r++) total += op->recv_sizes[r];
        return total <= small ? issue_gather(me, j, op, total) : issue_exchange(me, j, op, 1);
    default: /* a barrier; the head was one */
        if (me->comm->check) return MPI_SUCCESS;
        return make_room(j, 1) ? MPI_Ibarrier(me->data, next_request(j, -1)) : MPI_ERR_NO_MEM;
    }
}

static int issue_head(mpi_rank *me, mpi_job *j) {
    ravel_comm *comm = me->comm;
    uint64_t first = 0;
    S->card_fill(comm, &j->request->op, &j->mine);
    /* Weights that add up to 0, so that equal signatures do too. */
    for (int32_t r = 1; r < comm->size; r++) first -= ((uint64_t)r * 0x9e3779b97f4a7c15u) | 1;
    uint64_t weight = comm->rank ? ((uint64_t)comm->rank * 0x9e3779b97f4a7c15u) | 1 : first;
    j->sums[0] = j->mine.signature * weight;
    j->sums[1] = j->mine.pairs;
    if (!make_room(j, 1)) return MPI_ERR_NO_MEM;
    return MPI_Iallreduce(j->sums, j->totals, 2, MPI_UINT64_T, MPI_SUM, me->head, next_request(j, -1));
}

static int issue_sizes(mpi_rank *me, mpi_job *j) {
    if (!j->arriving) j->arriving = S->calloc(NULL, (size_t)me->comm->size, sizeof *j->arriving);
    if (!j->arriving) return MPI_ERR_NO_MEM;
    return MPI_Ialltoall(j->request->op.send_sizes, 1, MPI_INT64_T, j->arriving, 1, MPI_INT64_T, me->data,
                         next_request(j, -1));
}

static int issue_cards(mpi_rank *me, mpi_job *j) {
    if (!j->cards) j->cards = S->calloc(NULL, (size_t)me->comm->size, sizeof *j->cards);
    if (!j->cards) return MPI_ERR_NO_MEM;
    return MPI_Iallgather(&j->mine, sizeof j->mine, MPI_BYTE, j->cards, sizeof j->mine, MPI_BYTE, me->data,
                          next_request(j, -1));
}

/* ---- progress ------------------------------------------------------------------------------------------- */

/* Whether a receive brought what it should have; 0: it did not. */
static int is_whole(const MPI_Status *status, int32_t expect) {
    int got = 0;
    return expect < 0 || (MPI_Get_count(status, MPI_BYTE, &got) == MPI_SUCCESS && got == expect);
}

/* What the status of one finished request means: RAVEL_OK, E_MISMATCH where the receive was not what it should be, or
 * E_PEER_LOST, which is the communicator's death. */
static ravel_status judge(mpi_rank *me, const MPI_Status *status, int error, int32_t expect) {
    int class = MPI_SUCCESS;
    if (error != MPI_SUCCESS) (void)MPI_Error_class(error, &class);
    if (class == MPI_SUCCESS && is_whole(status, expect)) return RAVEL_OK;
    if (class == MPI_SUCCESS || class == MPI_ERR_TRUNCATE) return RAVEL_E_MISMATCH;
    ravel__mpi_fail_code(me, error, "a request");
    return RAVEL_E_PEER_LOST;
}

/* 1: all requests of the job are done. Errors become the job's status, or the communicator's death. */
static int is_done(mpi_rank *me, mpi_job *j) {
    int flag = 0, class = MPI_SUCCESS, pending = 0, lost = 0;
    if (j->count == 0) return 1;
    int code = MPI_Testall(j->count, j->requests, &flag, j->statuses);
    if (code == MPI_SUCCESS && !flag) return 0;
    if (code != MPI_SUCCESS) (void)MPI_Error_class(code, &class);
    if (class != MPI_SUCCESS && class != MPI_ERR_IN_STATUS) {
        ravel__mpi_fail_code(me, code, "MPI_Testall");
        return 0;
    }
    for (int32_t i = 0; i < j->count; i++) {
        int error = code == MPI_SUCCESS ? MPI_SUCCESS : j->statuses[i].MPI_ERROR;
        ravel_status verdict = error == MPI_ERR_PENDING ? RAVEL_OK : judge(me, &j->statuses[i], error, j->expect[i]);
        pending |= error == MPI_ERR_PENDING;
        lost |= verdict == RAVEL_E_PEER_LOST;
        if (verdict) j->status = (int32_t)verdict;
    }
    if (pending) ravel__mpi_fail(me, -1, "the pieces of a message were not those that its receiver expected");
    if (pending || lost) return 0;
    j->count = 0;
    return 1;
}

static void over(mpi_job *j, ravel_status status) {
    j->phase = OVER;
    j->status = status;
}

static void end_move(mpi_rank *me, mpi_job *j) {
    ravel_request *r = j->request;
    if (j->gathered) {
        int64_t at = 0;
        for (int32_t i = 0; i < me->comm->size; at += r->op.recv_sizes[i], i++)
            if (r->op.recv_sizes[i])
                memcpy(r->op.recv + r->op.recv_offsets[i], j->gathered + at, (size_t)r->op.recv_sizes[i]);
        S->release(NULL, j->gathered, (size_t)j->gathered_bytes);
        j->gathered = NULL;
        j->gathered_bytes = 0;
    }
    if (j->status && !r->why.message[0])
        S->error_set(&r->why, RAVEL_E_MISMATCH, "a peer sent another number of bytes than was expected");
    j->phase = OVER;
}

static int64_t pieces_of(const mpi_rank *me, int64_t bytes) {
    int64_t chunk = me->comm->chunk_bytes;
    return bytes > 0 ? (bytes + chunk - 1) / chunk : 1;
}

/* The header of a message has come: is it the one that the receiver expects? With another number of pieces the two ranks
 * are out of step for good. */
static void read_header(mpi_rank *me, mpi_job *j) {
    int flag = 0;
    char name[64], text[256];
    if (MPI_Test(&j->requests[0], &flag, &j->statuses[0]) || !flag) return;
    j->announced = 1;
    j->expect[0] = -1;
    if (memcmp(j->heard, j->header, sizeof j->heard) == 0) return;
    ravel__mpi_name(me->comm, j->request->op.root, name, sizeof name);
    (void)snprintf(text, sizeof text, "%s sends %lld bytes of dtype %d, and %lld of dtype %d are expected", name,
                   (long long)j->heard[0], (int)j->heard[1], (long long)j->header[0], (int)j->header[1]);
    j->status = RAVEL_E_MISMATCH;
    S->error_set(&j->request->why, RAVEL_E_MISMATCH, "%s", text);
    if (pieces_of(me, j->heard[0]) != pieces_of(me, j->header[0])) ravel__mpi_fail(me, -1, text);
}

/* Issues what the phase needs; a failure is the communicator's death. */
static void enter(mpi_rank *me, mpi_job *j, int phase) {
    int code = phase == HEAD    ? issue_head(me, j)
               : phase == SIZES ? issue_sizes(me, j)
               : phase == CARDS ? issue_cards(me, j)
                                : issue_move(me, j);
    j->phase = phase;
    if (code == MPI_ERR_NO_MEM)
        ravel__mpi_fail(me, me->comm->rank, "out of memory");
    else if (code)
        ravel__mpi_fail_code(me, code, "starting an operation");
}

/* Whether a death leaves the collective as it is. */
static int is_alive(const mpi_rank *me, const mpi_job *j) {
    return !me->dead || (!j->message && j->serial < me->dead_from);
}

void ravel__mpi_step(mpi_rank *me, mpi_job *j) {
    if (j->phase == TURN || j->phase == OVER) return;
    if (j->message && me->comm->check && j->request->op.kind == RAVEL__RECV && !j->announced) read_header(me, j);
    if ((j->phase != MOVE && !is_alive(me, j)) || !is_done(me, j)) return;
    switch (j->phase) {
    case HEAD:
        j->disagree = j->totals[0] != 0 ? 1 : j->totals[1] != 0 ? 2 : 0;
        j->phase = TURN;
        break;
    case SIZES:
        S->card_complain(me->comm, &j->request->op, j->arriving, &j->mine);
        enter(me, j, CARDS);
        break;
    case CARDS:
        if (j->disagree == 2)
            S->cards_complaint(me->comm, j->cards, &j->request->why);
        else if (S->cards_agree(me->comm, j->cards, &j->request->why))
            S->error_set(&j->request->why, RAVEL_E_MISMATCH, "the ranks disagree");
        over(j, RAVEL_E_MISMATCH);
        break;
    default: end_move(me, j); break;
    }
}

static void unlink_job(mpi_rank *me, mpi_job *j) {
    mpi_job **link = &me->first, *before = NULL;
    while (*link && *link != j) before = *link, link = &(*link)->next;
    if (!*link) return;
    *link = j->next;
    if (me->last == j) me->last = before;
}

/* Everything that can be done on this communicator without waiting. Data goes out in the order of the starts, and a
 * disagreement is settled before anything behind it is issued. */
void ravel__mpi_progress(mpi_rank *me) {
    int32_t behind = 0;
    ravel__mpi_hear(me->world);
    for (mpi_job *j = me->first, *next; j && is_alive(me, j) && !ravel__mpi.hopeless; j = next) {
        next = j->next;
        if (j->phase == HEAD) ravel__mpi_step(me, j);
        if (j->phase == TURN && !behind && is_alive(me, j))
            enter(me, j, j->disagree == 0 ? MOVE : j->disagree == 2 ? SIZES : CARDS);
        if (j->phase > TURN && is_alive(me, j)) ravel__mpi_step(me, j);
        behind |= j->phase != MOVE && j->phase != OVER;
        if (j->phase == OVER) unlink_job(me, j);
    }
}

/* The job is over as far as the caller is concerned; MPI may think otherwise. */
void ravel__mpi_let_go(mpi_rank *me, ravel_request *r) {
    mpi_job *j = *mpi_job_of(r);
    int flag = 1, callers = j->phase == MOVE && j->count > 0; /* the caller's memory */
    *mpi_job_of(r) = NULL;
    if (!j->message) unlink_job(me, j);
    if (j->phase == OVER) j->count = 0;
    for (int32_t i = 0; i < j->count && !ravel__mpi.hopeless; i++)
        if (j->message && j->expect[i] >= 0 && j->requests[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&j->requests[i]);
    if (j->count && !ravel__mpi.hopeless) (void)MPI_Testall(j->count, j->requests, &flag, j->statuses);
    if (j->count == 0 || flag) {
        j->next = me->idle;
        me->idle = j;
        return;
    }
    j->request = NULL;
    j->next = me->world->orphans;
    me->world->orphans = j;
    if (!callers) return;
    ravel__mpi.hopeless = ravel__mpi.broken = 1;
    ravel__mpi_kill_all(me->world, me->dead ? me->reason : "an operation was given up in the middle");
}

static void begin_message(mpi_rank *me, mpi_job *j) {
    const ravel__op *op = &j->request->op;
    int32_t sends = op->kind == RAVEL__SEND;
    int64_t *counters = me->lists + (sends ? 3 : 4) * me->comm->size;
    int code = MPI_SUCCESS;
    j->message = 1;
    j->phase = MOVE;
    j->index = counters[op->root]++;
    j->header[0] = op->bytes, j->header[1] = op->dtype;
    if (me->comm->check) {
        code = make_room(j, 1) ? MPI_SUCCESS : MPI_ERR_NO_MEM;
        if (!code && sends)
            code = MPI_Isend(j->header, 2, MPI_INT64_T, op->root, op->tag, me->head, next_request(j, -1));
        else if (!code)
            code = MPI_Irecv(j->heard, 2, MPI_INT64_T, op->root, op->tag, me->head, next_request(j, sizeof j->heard));
    }
    if (!code) code = post(me, j, sends, sends ? op->send : op->recv, op->bytes, op->root, op->tag, me->head, 1);
    if (code == MPI_ERR_NO_MEM)
        ravel__mpi_fail(me, me->comm->rank, "out of memory");
    else if (code)
        ravel__mpi_fail_code(me, code, sends ? "MPI_Isend" : "MPI_Irecv");
}

mpi_job *ravel__mpi_begin(mpi_rank *me, ravel_request *r) {
    mpi_job *j = take_job(me);
    if (!j) return NULL;
    j->request = r;
    if (r->op.kind == RAVEL__SEND || r->op.kind == RAVEL__RECV) {
        begin_message(me, j);
        return j;
    }
    j->serial = me->serial++;
    if (me->last)
        me->last->next = j;
    else
        me->first = j;
    me->last = j;
    if (me->comm->check && me->comm->size > 1)
        enter(me, j, HEAD);
    else
        j->phase = TURN;
    ravel__mpi_progress(me);
    return j;
}
