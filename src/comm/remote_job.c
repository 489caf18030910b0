/* Operations between processes: issuing them, and what happens until they are over. See remote.c for the phases. */
#include "comm/remote.h"

#include <stdio.h>
#include <string.h>

enum { SMALL_GATHER = 1 << 20 }; /* bytes in all, up to which the wire's own all-gather is used */

/* ---- jobs ----------------------------------------------------------------------------------------------- */

static remote_job *take_job(remote_rank *me) {
    remote_job *j = me->idle;
    if (j)
        me->idle = j->next;
    else
        j = ravel__calloc(NULL, 1, sizeof *j);
    if (!j) return NULL;
    j->next = NULL;
    j->status = RAVEL_OK;
    j->disagree = j->message = j->announced = 0;
    j->grace_ns = 0;
    return j;
}

void ravel__remote_free_job(remote_job *j, int32_t size) {
    ravel__remote.wire->discard(&j->bundle);
    ravel__remote.wire->discard(&j->header_bundle);
    ravel__release(NULL, j->cards, (size_t)size * sizeof *j->cards);
    ravel__release(NULL, j->arriving, (size_t)size * sizeof *j->arriving);
    ravel__release(NULL, j->gathered, (size_t)j->gathered_room);
    ravel__release(NULL, j, sizeof *j);
}

/* ---- issuing: a code of the wire's, 0 where all went out ------------------------------------------------ */

/* Sends or receives `bytes` in pieces; at least one message, also for nothing, where `always`. */
static int post(remote_rank *me, remote_job *j, int sends, const char *data, int64_t bytes, int32_t peer, int32_t tag,
                ravel__channel *where, int always) {
    const ravel__wire *wire = ravel__remote.wire;
    int64_t chunk = me->comm->chunk_bytes, at = 0;
    if (!bytes && !always) return 0;
    do {
        int32_t part = (int32_t)(bytes - at < chunk ? bytes - at : chunk);
        char *piece = (char *)data + at;
        int code = sends ? wire->send(where, &j->bundle, piece, part, peer, tag)
                         : wire->recv(where, &j->bundle, piece, part, peer, tag);
        if (code) return code;
        at += part;
    } while (at < bytes);
    return 0;
}

static int issue_broadcast(remote_rank *me, remote_job *j, const ravel__op *op) {
    int64_t chunk = me->comm->chunk_bytes;
    for (int64_t at = 0; at < op->bytes; at += chunk) {
        int32_t part = (int32_t)(op->bytes - at < chunk ? op->bytes - at : chunk);
        int code = ravel__remote.wire->broadcast(me->data, &j->bundle, op->recv + at, part, op->root);
        if (code) return code;
    }
    return 0;
}

/* Everybody with everybody, starting with the neighbours so that not all send to rank 0 first. `same`: the whole of send
 * to each (all-gather). */
static int issue_exchange(remote_rank *me, remote_job *j, const ravel__op *op, int same) {
    int32_t n = me->comm->size, my = me->comm->rank, tag = (int32_t)(j->serial % REMOTE_TAGS);
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
    return 0;
}

/* A small all-gather by the wire's own, into a room of ours: the caller's places may be anywhere. */
static int issue_gather(remote_rank *me, remote_job *j, const ravel__op *op, int64_t total) {
    if (total > j->gathered_room) {
        char *gathered = ravel__resize(NULL, j->gathered, (size_t)j->gathered_room, (size_t)total);
        if (!gathered) return RAVEL__WIRE_MEMORY;
        j->gathered = gathered;
        j->gathered_room = total;
    }
    return ravel__remote.wire->gather(me->data, &j->bundle, op->send, op->recv_sizes, j->gathered);
}

/* By the total, which is the same everywhere, so that all take the same way. */
static int is_small_gather(const remote_rank *me, const ravel__op *op, int64_t *total) {
    int64_t small = me->comm->chunk_bytes < SMALL_GATHER ? me->comm->chunk_bytes : SMALL_GATHER;
    *total = 0;
    for (int32_t r = 0; op->kind == RAVEL__ALLGATHER && r < me->comm->size && *total <= small; r++)
        *total += op->recv_sizes[r];
    return op->kind == RAVEL__ALLGATHER && *total <= small;
}

static int issue_move(remote_rank *me, remote_job *j) {
    const ravel__op *op = &j->request->op;
    int64_t total;
    if (is_small_gather(me, op, &total)) return issue_gather(me, j, op, total);
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__BROADCAST: return issue_broadcast(me, j, op);
    case RAVEL__ALLTOALL: return issue_exchange(me, j, op, 0);
    case RAVEL__ALLGATHER: return issue_exchange(me, j, op, 1);
    default: /* a barrier; the head was one, where there was a head */
        return me->comm->check ? 0 : ravel__remote.wire->sum(me->data, &j->bundle, j->sums, j->totals, 1);
    }
}

static int issue_head(remote_rank *me, remote_job *j) {
    ravel_comm *comm = me->comm;
    uint64_t first = 0;
    ravel__card_fill(comm, &j->request->op, &j->mine);
    /* Weights that add up to 0, so that equal signatures do too. */
    for (int32_t r = 1; r < comm->size; r++) first -= ((uint64_t)r * 0x9e3779b97f4a7c15u) | 1;
    uint64_t weight = comm->rank ? ((uint64_t)comm->rank * 0x9e3779b97f4a7c15u) | 1 : first;
    j->sums[0] = j->mine.signature * weight;
    j->sums[1] = j->mine.pairs;
    return ravel__remote.wire->sum(me->head, &j->bundle, j->sums, j->totals, 2);
}

static int make_arriving(remote_rank *me, remote_job *j) {
    if (!j->arriving) j->arriving = ravel__calloc(NULL, (size_t)me->comm->size, sizeof *j->arriving);
    return j->arriving != NULL;
}

/* What every rank sends to every other, word by word. */
static int issue_sizes(remote_rank *me, remote_job *j) {
    const int64_t *sizes = j->request->op.send_sizes;
    int32_t n = me->comm->size, my = me->comm->rank, tag = (int32_t)(j->serial % REMOTE_TAGS);
    int code = make_arriving(me, j) ? 0 : RAVEL__WIRE_MEMORY;
    if (!code) j->arriving[my] = sizes[my];
    for (int32_t i = 1; i < n && !code; i++) {
        int32_t from = (my + n - i) % n, to = (my + i) % n;
        code = post(me, j, 0, (char *)&j->arriving[from], sizeof *sizes, from, tag, me->data, 1);
        if (!code) code = post(me, j, 1, (const char *)&sizes[to], sizeof *sizes, to, tag, me->data, 1);
    }
    return code;
}

static int issue_cards(remote_rank *me, remote_job *j) {
    if (!j->cards) j->cards = ravel__calloc(NULL, (size_t)me->comm->size, sizeof *j->cards);
    if (!j->cards || !make_arriving(me, j)) return RAVEL__WIRE_MEMORY;
    for (int32_t r = 0; r < me->comm->size; r++) j->arriving[r] = sizeof j->mine;
    return ravel__remote.wire->gather(me->data, &j->bundle, &j->mine, j->arriving, j->cards);
}

/* ---- progress ------------------------------------------------------------------------------------------- */

/* 1: all that was issued is done. Errors become the job's status, or the communicator's death. */
static int is_done(remote_rank *me, remote_job *j) {
    int code = 0;
    switch (ravel__remote.wire->test(&j->bundle, &code)) {
    case RAVEL__WIRE_PENDING: return 0;
    case RAVEL__WIRE_DONE: return 1;
    case RAVEL__WIRE_MISMATCH: j->status = RAVEL_E_MISMATCH; return 1;
    case RAVEL__WIRE_TORN:
        ravel__remote_fail(me, -1, "the pieces of a message were not those that its receiver expected");
        return 0;
    case RAVEL__WIRE_BROKEN:
    default: ravel__remote_fail_code(me, code, "an operation"); return 0;
    }
}

static void over(remote_job *j, ravel_status status) {
    j->phase = OVER;
    j->status = status;
}

static void end_move(remote_rank *me, remote_job *j) {
    ravel_request *r = j->request;
    int64_t at = 0;
    if (is_small_gather(me, &r->op, &at)) {
        at = 0;
        for (int32_t i = 0; i < me->comm->size; at += r->op.recv_sizes[i], i++)
            if (r->op.recv_sizes[i])
                memcpy(r->op.recv + r->op.recv_offsets[i], j->gathered + at, (size_t)r->op.recv_sizes[i]);
    }
    if (j->status && !r->why.message[0])
        ravel_error_set(&r->why, RAVEL_E_MISMATCH, "a peer sent another number of bytes than was expected");
    j->phase = OVER;
}

static int64_t pieces_of(const remote_rank *me, int64_t bytes) {
    int64_t chunk = me->comm->chunk_bytes;
    return bytes > 0 ? (bytes + chunk - 1) / chunk : 1;
}

/* The header of a message has come: is it the one that the receiver expects? With another number of pieces the two ranks
 * are out of step for good. */
static void read_header(remote_rank *me, remote_job *j) {
    int code = 0;
    char name[64], text[256];
    ravel__wire_verdict verdict = ravel__remote.wire->test(&j->header_bundle, &code);
    if (verdict == RAVEL__WIRE_PENDING) return;
    if (verdict == RAVEL__WIRE_BROKEN) {
        ravel__remote_fail_code(me, code, "a receive");
        return;
    }
    j->announced = 1;
    if (verdict == RAVEL__WIRE_MISMATCH) j->status = RAVEL_E_MISMATCH; /* no header: the sender does not check */
    if (verdict == RAVEL__WIRE_MISMATCH || memcmp(j->heard, j->header, sizeof j->heard) == 0) return;
    ravel__remote_name(me->comm, j->request->op.root, name, sizeof name);
    (void)snprintf(text, sizeof text, "%s sends %lld bytes of dtype %d, and %lld of dtype %d are expected", name,
                   (long long)j->heard[0], (int)j->heard[1], (long long)j->header[0], (int)j->header[1]);
    j->status = RAVEL_E_MISMATCH;
    ravel_error_set(&j->request->why, RAVEL_E_MISMATCH, "%s", text);
    if (pieces_of(me, j->heard[0]) != pieces_of(me, j->header[0])) ravel__remote_fail(me, -1, text);
}

/* Issues what the phase needs; a failure is the communicator's death. */
static void enter(remote_rank *me, remote_job *j, remote_phase phase) {
    int code = phase == HEAD    ? issue_head(me, j)
               : phase == SIZES ? issue_sizes(me, j)
               : phase == CARDS ? issue_cards(me, j)
                                : issue_move(me, j);
    j->phase = phase;
    if (code) ravel__remote_fail_code(me, code, "starting an operation");
}

/* Whether a death leaves the collective as it is. */
static int is_alive(const remote_rank *me, const remote_job *j) {
    return !me->dead || (!j->message && j->serial < me->dead_from);
}

void ravel__remote_step(remote_rank *me, remote_job *j) {
    if (j->phase == TURN || j->phase == OVER) return;
    if (j->message && !j->announced) read_header(me, j);
    if ((j->phase != MOVE && !is_alive(me, j)) || !is_done(me, j) || (j->message && !j->announced)) return;
    switch (j->phase) {
    case HEAD:
        j->disagree = j->totals[0] != 0 ? 1 : j->totals[1] != 0 ? 2 : 0;
        j->phase = TURN;
        break;
    case SIZES:
        ravel__card_complain(me->comm, &j->request->op, j->arriving, &j->mine);
        enter(me, j, CARDS);
        break;
    case CARDS:
        if (j->disagree == 2)
            ravel__cards_complaint(me->comm, j->cards, &j->request->why);
        else if (ravel__cards_agree(me->comm, j->cards, &j->request->why))
            ravel_error_set(&j->request->why, RAVEL_E_MISMATCH, "the ranks disagree");
        over(j, RAVEL_E_MISMATCH);
        break;
    default: end_move(me, j); break;
    }
}

static void unlink_job(remote_rank *me, remote_job *j) {
    remote_job **link = &me->first, *before = NULL;
    while (*link && *link != j) before = *link, link = &(*link)->next;
    if (!*link) return;
    *link = j->next;
    if (me->last == j) me->last = before;
}

/* Data goes out in the order of the starts, and a disagreement is settled before anything behind it is issued. */
void ravel__remote_progress(remote_rank *me) {
    int32_t behind = 0;
    ravel__remote_hear(me->world);
    for (remote_job *j = me->first, *next; j && is_alive(me, j) && !ravel__remote.hopeless; j = next) {
        next = j->next;
        if (j->phase == HEAD) ravel__remote_step(me, j);
        if (j->phase == TURN && !behind && is_alive(me, j))
            enter(me, j, j->disagree == 0 ? MOVE : j->disagree == 2 ? SIZES : CARDS);
        if (j->phase > TURN && is_alive(me, j)) ravel__remote_step(me, j);
        behind |= j->phase != MOVE && j->phase != OVER;
        if (j->phase == OVER) unlink_job(me, j);
    }
}

/* Whether nothing of the job is under way; receives of messages can be taken back. */
static int is_clear(remote_job *j) {
    int code;
    if (!ravel__remote.hopeless && j->message) {
        ravel__remote.wire->cancel(&j->header_bundle);
        ravel__remote.wire->cancel(&j->bundle);
    } else if (!ravel__remote.hopeless) {
        (void)ravel__remote.wire->test(&j->bundle, &code);
    }
    return j->bundle.count == 0 && j->header_bundle.count == 0;
}

void ravel__remote_let_go(remote_rank *me, ravel_request *r) {
    remote_job *j = *remote_job_of(r);
    *remote_job_of(r) = NULL;
    if (!j->message) unlink_job(me, j);
    if (is_clear(j)) {
        j->next = me->idle;
        me->idle = j;
        return;
    }
    j->request = NULL;
    j->next = me->world->orphans;
    me->world->orphans = j;
    if (j->phase != MOVE) return; /* what is under way is memory of ours, not the caller's */
    ravel__remote.hopeless = ravel__remote.broken = 1;
    ravel__remote_kill_all(me->world, me->dead ? me->reason : "an operation was given up in the middle");
}

static int post_header(remote_rank *me, remote_job *j, const ravel__op *op, int sends) {
    const ravel__wire *wire = ravel__remote.wire;
    if (sends) return wire->send(me->head, &j->bundle, j->header, sizeof j->header, op->root, op->tag);
    return wire->recv(me->head, &j->header_bundle, j->heard, sizeof j->heard, op->root, op->tag);
}

static void begin_message(remote_rank *me, remote_job *j) {
    const ravel__op *op = &j->request->op;
    int sends = op->kind == RAVEL__SEND;
    j->message = 1;
    j->phase = MOVE;
    j->index = (sends ? me->sent : me->received)[op->root]++;
    j->header[0] = op->bytes, j->header[1] = op->dtype;
    j->announced = sends || !me->comm->check;
    int code = me->comm->check ? post_header(me, j, op, sends) : 0;
    if (!code) code = post(me, j, sends, sends ? op->send : op->recv, op->bytes, op->root, op->tag, me->head, 1);
    if (code) ravel__remote_fail_code(me, code, sends ? "a send" : "a receive");
}

remote_job *ravel__remote_begin(remote_rank *me, ravel_request *r) {
    remote_job *j = take_job(me);
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
    ravel__remote_progress(me);
    return j;
}
