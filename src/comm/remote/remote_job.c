/* Operations between processes, as rounds of messages.
 *
 *     a collective   HEAD   two words are summed over all ranks: 0 if all agree (see card.c). Also a barrier
 *                    MOVE   the data
 *                    OVER
 *              or:   SIZES, CARDS   the ranks disagree: who has what is gathered for the sentence, then OVER
 *     a message      MOVE   one parcel
 *
 * A round is a few parcels (remote_match.c) that are under way together; when all are done the next round begins. Each
 * collective and phase has its own tag, so operations may complete in any order.
 *
 *     sum, small reductions   recursive doubling                     log2 n rounds
 *     broadcast               binomial tree, in pieces of PIECE      log2 n, then a round per piece
 *     all-gather, small       Bruck: twice as many pieces per round  log2 n
 *     all-gather, large       ring                                   n - 1, neighbours only
 *     all-to-all              pairs at distance 1, 2, 3, ...; REMOTE_WINDOW of them under way; empty ones are
 * skipped */
#include "comm/remote/remote.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

enum {
    SMALL_GATHER = 256 << 10, /* bytes in all, up to which an all-gather takes log2 n rounds; ... */
    SMALL_PIECE = 1024,       /* ... or this number of bytes per rank on average */
    PIECE = 4 << 20           /* of a broadcast */
};
#define COLLECTIVE_TAG 0x80000000u

/* ---- jobs ----------------------------------------------------------------------------------------------- */

static remote_job *take_job(remote_rank *me) {
    remote_job *j = me->idle;
    if (j)
        me->idle = j->next;
    else
        j = ravel__calloc(NULL, 1, sizeof *j);
    if (!j) return NULL;
    RAVEL_ASSERT(!j->request); /* nobody's, as when it was given back */
    j->next = NULL;
    j->status = RAVEL_OK;
    j->disagree = j->message = j->used = j->asked = 0;
    j->grace_ns = j->round = j->next_send = 0;
    return j;
}

void ravel__remote_free_job(remote_job *j, int32_t size) {
    size_t n = (size_t)size;
    ravel__release(NULL, j->cards, n * sizeof *j->cards);
    ravel__release(NULL, j->sizes, (2 * n + 1) * sizeof *j->sizes);
    ravel__release(NULL, j->room, (size_t)j->room_bytes);
    ravel__release(NULL, j, sizeof *j);
}

static int make_sizes(remote_rank *me, remote_job *j) {
    if (!j->sizes) j->sizes = ravel__calloc(NULL, 2 * (size_t)me->comm->size + 1, sizeof *j->sizes);
    return j->sizes != NULL;
}

static int make_room(remote_job *j, int64_t bytes) {
    RAVEL_ASSERT(bytes > 0 && j->room_bytes >= 0);
    if (bytes <= j->room_bytes) return 1;
    char *room = ravel__resize(NULL, j->room, (size_t)j->room_bytes, (size_t)bytes);
    if (!room) return 0;
    j->room = room;
    j->room_bytes = bytes;
    return 1;
}

/* ---- parcels of a round --------------------------------------------------------------------------------- */

static uint32_t tag_of(const remote_job *j) {
    return COLLECTIVE_TAG | (((uint32_t)j->serial << 2) + (uint32_t)j->phase) % COLLECTIVE_TAG;
}

/* Fills and begins the parcel; a failure is the communicator's. */
static void post_at(remote_rank *me, remote_job *j, remote_parcel *p, int sends, int32_t member, const void *data,
                    int64_t bytes, uint32_t tag, uint32_t note) {
    RAVEL_ASSERT(ravel__match_done(p) && member >= 0 && member < me->comm->size && bytes >= 0);
    p->port = me, p->sends = sends, p->member = member, p->tag = tag, p->note = note;
    p->data = (char *)data, p->bytes = bytes;
    int code = ravel__match_begin(p);
    (void)j;
    if (code) ravel__remote_fail_code(me, code, sends ? "a send" : "a receive", "it could not begin");
}

static void post(remote_rank *me, remote_job *j, int sends, int32_t member, const void *data, int64_t bytes) {
    RAVEL_ASSERT(j->used < 2 * REMOTE_WINDOW);
    post_at(me, j, &j->parcels[j->used++], sends, member, data, bytes, tag_of(j), 0);
}

static void note_mismatch(remote_job *j, remote_parcel *p) {
    if (!p->mismatch) return;
    p->mismatch = 0;
    j->status = RAVEL_E_MISMATCH;
}

/* Whether the round is over. */
static int is_round_done(remote_job *j) {
    for (int32_t i = 0; i < j->used; i++)
        if (!ravel__match_done(&j->parcels[i])) return 0;
    for (int32_t i = 0; i < j->used && !j->message; i++) note_mismatch(j, &j->parcels[i]);
    return 1;
}

/* ---- sums and small reductions: recursive doubling ------------------------------------------------------ */

/* Ranks beyond the largest power of two first send their words to a partner, and receive the result from it at the end.
*/
static int sum_round(remote_rank *me, remote_job *j, char *words, char *heard, int64_t bytes) {
    int32_t n = me->comm->size, my = me->comm->rank, log = 31 - __builtin_clz((unsigned)n), power = 1 << log,
            extra = n - power;
    RAVEL_ASSERT(power <= n && extra < power && j->round >= 0);
    if (j->round > log + 1) return 1;
    if (j->round == 0 && my >= power) post(me, j, 1, my - power, words, bytes);
    if (j->round == 0 && my < extra) post(me, j, 0, my + power, heard, bytes);
    if (j->round > 0 && j->round <= log && my < power) {
        int32_t partner = my ^ 1 << (j->round - 1);
        post(me, j, 0, partner, heard, bytes);
        post(me, j, 1, partner, words, bytes);
    }
    if (j->round == log + 1 && my < extra) post(me, j, 1, my + power, words, bytes);
    if (j->round == log + 1 && my >= power) post(me, j, 0, my - power, words, bytes);
    return 0;
}

/* Whether the last round brought words that are to be combined. */
static int has_heard(const remote_rank *me, const remote_job *j) {
    int32_t n = me->comm->size, my = me->comm->rank, log = 31 - __builtin_clz((unsigned)n), power = 1 << log;
    if (j->round == 1) return my < n - power;
    return j->round > 1 && j->round <= log + 1 && my < power;
}

static int step_head(remote_rank *me, remote_job *j) {
    if (has_heard(me, j)) j->sums[0] += j->heard[0], j->sums[1] += j->heard[1];
    return sum_round(me, j, (char *)j->sums, (char *)j->heard, sizeof j->sums);
}

static void begin_head(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(me->comm->size > 1 && !j->message);
    ravel_comm *comm = me->comm;
    uint64_t first = 0;
    ravel__card_fill(comm, &j->request->op, &j->mine);
    /* Weights that add up to 0, so that equal signatures do too. */
    for (int32_t r = 1; r < comm->size; r++) first -= ((uint64_t)r * 0x9e3779b97f4a7c15u) | 1;
    uint64_t weight = comm->rank ? ((uint64_t)comm->rank * 0x9e3779b97f4a7c15u) | 1 : first;
    j->sums[0] = j->mine.signature * weight;
    j->sums[1] = j->mine.pairs;
}

static int step_reduce(remote_rank *me, remote_job *j) {
    const ravel__op *op = &j->request->op;
    const char *sources[2] = {op->recv, j->room};
    RAVEL_ASSERT(ravel__can_reduce(op->dtype) && (op->bytes == 0 || j->room));
    if (j->round == 0 && op->recv != op->send) memcpy(op->recv, op->send, (size_t)op->bytes);
    if (has_heard(me, j)) ravel__reduce(op->dtype, op->reduce, sources, 2, 0, op->bytes, op->recv);
    return sum_round(me, j, op->recv, j->room, op->bytes);
}

/* ---- broadcast ------------------------------------------------------------------------------------------ */

/* Round k: piece k comes from the parent while piece k - 1 goes to the children. */
static int step_broadcast(remote_rank *me, remote_job *j) {
    const ravel__op *op = &j->request->op;
    int32_t n = me->comm->size, shifted = (me->comm->rank - op->root + n) % n, low = shifted & -shifted;
    int64_t pieces = (op->bytes + PIECE - 1) / PIECE, in = j->round, out = shifted ? j->round - 1 : j->round;
    RAVEL_ASSERT(in >= 0 && (shifted == 0 || (shifted - low >= 0 && low > 0)));
    if (out >= pieces) return 1;
    if (shifted && in < pieces) {
        int64_t bytes = op->bytes - in * PIECE < PIECE ? op->bytes - in * PIECE : PIECE;
        post(me, j, 0, (shifted - low + op->root) % n, op->recv + in * PIECE, bytes);
    }
    int32_t span = shifted ? low : 1 << (n > 1 ? 32 - __builtin_clz((unsigned)n - 1) : 0);
    for (int32_t d = span / 2; d > 0 && out >= 0; d /= 2) {
        int64_t bytes = op->bytes - out * PIECE < PIECE ? op->bytes - out * PIECE : PIECE;
        if (shifted + d < n) post(me, j, 1, (shifted + d + op->root) % n, op->recv + out * PIECE, bytes);
    }
    return 0;
}

/* ---- all-gather ----------------------------------------------------------------------------------------- */

/* Depends only on the total, which is equal on all ranks, so that all choose the same algorithm. */
static int is_small_gather(const remote_rank *me, const ravel__op *op) {
    int64_t total = 0, pieces = (int64_t)SMALL_PIECE * me->comm->size,
            most = pieces > SMALL_GATHER ? pieces : SMALL_GATHER;
    for (int32_t r = 0; r < me->comm->size && total <= most; r++) total += op->recv_sizes[r];
    return total <= most;
}

/* sizes[i] becomes where block i, the piece of rank (my + i) % n, lies in the room; [n]: the end. `each` < 0: by op. */
static int begin_bruck(remote_rank *me, remote_job *j, const void *mine, int64_t each) {
    const ravel__op *op = &j->request->op;
    int32_t n = me->comm->size, my = me->comm->rank;
    int64_t at = 0;
    if (!make_sizes(me, j)) return 0;
    for (int32_t i = 0; i <= n; i++) {
        j->sizes[i] = at;
        at += i == n ? 0 : each < 0 ? op->recv_sizes[(my + i) % n] : each;
    }
    RAVEL_ASSERT(j->sizes[n] == at);
    if (!make_room(j, at ? at : 1)) return 0;
    RAVEL_ASSERT(j->room_bytes >= at);
    if (j->sizes[1] > 0) memcpy(j->room, mine, (size_t)j->sizes[1]);
    return 1;
}

static int step_bruck(remote_rank *me, remote_job *j) {
    int64_t n = me->comm->size, my = me->comm->rank, have = (int64_t)1 << j->round;
    if (have >= n) return 1;
    int64_t count = have < n - have ? have : n - have;
    RAVEL_ASSERT(count > 0 && have + count <= n);
    post(me, j, 0, (int32_t)((my + have) % n), j->room + j->sizes[have], j->sizes[have + count] - j->sizes[have]);
    post(me, j, 1, (int32_t)((my - have + n) % n), j->room, j->sizes[count]);
    return 0;
}

static void end_bruck(const remote_rank *me, const remote_job *j) {
    const ravel__op *op = &j->request->op;
    int32_t n = me->comm->size, my = me->comm->rank;
    RAVEL_ASSERT(j->sizes[0] == 0 && j->sizes[n] <= j->room_bytes);
    for (int32_t i = 0; i < n; i++)
        if (j->sizes[i + 1] > j->sizes[i])
            memcpy(op->recv + op->recv_offsets[(my + i) % n], j->room + j->sizes[i],
                   (size_t)(j->sizes[i + 1] - j->sizes[i]));
}

static int step_ring(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(j->round >= 0 && j->used == 0);
    const ravel__op *op = &j->request->op;
    int64_t n = me->comm->size, my = me->comm->rank;
    char *home = op->recv + op->recv_offsets[my];
    if (j->round == 0 && op->recv_sizes[my] > 0 && home != op->send) memcpy(home, op->send, (size_t)op->recv_sizes[my]);
    for (; j->round < n - 1; j->round++) {
        int64_t out = (my - j->round + n) % n, in = (out + n - 1) % n;
        if (op->recv_sizes[in])
            post(me, j, 0, (int32_t)((my + n - 1) % n), op->recv + op->recv_offsets[in], op->recv_sizes[in]);
        if (op->recv_sizes[out])
            post(me, j, 1, (int32_t)((my + 1) % n), op->recv + op->recv_offsets[out], op->recv_sizes[out]);
        if (j->used) return 0;
    }
    return 1;
}

/* ---- all-to-all ----------------------------------------------------------------------------------------- */

/* Piece for or from rank r: of the operation, or (SIZES) one word. */
static char *piece_of(const remote_job *j, int sends, int32_t r, int64_t *bytes) {
    RAVEL_ASSERT(r >= 0 && (j->phase == SIZES || j->phase == MOVE));
    const ravel__op *op = &j->request->op;
    *bytes = j->phase == SIZES ? (int64_t)sizeof(int64_t) : sends ? op->send_sizes[r] : op->recv_sizes[r];
    if (j->phase == SIZES) return sends ? (char *)&op->send_sizes[r] : (char *)&j->sizes[r];
    return sends ? (char *)op->send + op->send_offsets[r] : op->recv + op->recv_offsets[r];
}

/* Begins the next pieces, in all parcels of this direction that are free. */
static int64_t pump(remote_rank *me, remote_job *j, int sends, int64_t distance) {
    RAVEL_ASSERT(distance >= 1 && distance <= me->comm->size);
    int64_t n = me->comm->size, my = me->comm->rank, bytes;
    for (int32_t i = 0; i < REMOTE_WINDOW && distance < n; i++) {
        remote_parcel *p = &j->parcels[2 * i + sends];
        if (!ravel__match_done(p)) continue;
        note_mismatch(j, p);
        for (; distance < n; distance++) {
            int32_t r = (int32_t)((sends ? my + distance : my - distance + n) % n);
            char *piece = piece_of(j, sends, r, &bytes);
            if (!bytes) continue;
            post_at(me, j, p, sends, r, piece, bytes, tag_of(j), 0);
            distance++;
            break;
        }
    }
    return distance;
}

/* It has no rounds: round and next_send are the distances of the next pieces. */
static int step_exchange(remote_rank *me, remote_job *j) {
    int32_t my = me->comm->rank;
    int64_t bytes;
    RAVEL_ASSERT(j->round >= 0 && j->round <= me->comm->size && j->next_send <= me->comm->size);
    if (j->round == 0) {
        char *mine = piece_of(j, 1, my, &bytes), *home = piece_of(j, 0, my, &bytes);
        if (bytes > 0 && home != mine) memcpy(home, mine, (size_t)bytes);
        for (int32_t i = 0; i < 2 * REMOTE_WINDOW; i++) j->parcels[i].state = PARCEL_IDLE;
        j->round = j->next_send = 1;
        j->used = 2 * REMOTE_WINDOW;
    }
    j->round = pump(me, j, 0, j->round);
    j->next_send = pump(me, j, 1, j->next_send);
    return j->round >= me->comm->size && j->next_send >= me->comm->size && is_round_done(j);
}

/* ---- phases --------------------------------------------------------------------------------------------- */

static int is_exchange(const remote_job *j) {
    return j->phase == SIZES || (j->phase == MOVE && j->request->op.kind == RAVEL__ALLTOALL);
}

static int begin_move(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(!j->message && j->used == 0);
    const ravel__op *op = &j->request->op;
    if (op->kind == RAVEL__ALLGATHER && is_small_gather(me, op)) return begin_bruck(me, j, op->send, -1);
    if (op->kind == RAVEL__ALLREDUCE) return make_room(j, op->bytes ? op->bytes : 1);
    return 1;
}

static int step_move(remote_rank *me, remote_job *j) {
    const ravel__op *op = &j->request->op;
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__BROADCAST: return step_broadcast(me, j);
    case RAVEL__ALLTOALL: return step_exchange(me, j);
    case RAVEL__ALLGATHER: return is_small_gather(me, op) ? step_bruck(me, j) : step_ring(me, j);
    case RAVEL__ALLREDUCE: return step_reduce(me, j);
    default: /* a barrier; the head was one, if there was a head */ return me->comm->check || step_head(me, j);
    }
}

static void enter(remote_rank *me, remote_job *j, remote_phase phase) {
    RAVEL_ASSERT(j->request && !j->message);
    int ok = 1;
    j->phase = phase;
    j->round = j->next_send = 0;
    j->used = 0;
    if (phase == HEAD) begin_head(me, j);
    if (phase == MOVE) ok = begin_move(me, j);
    if (phase == SIZES) ok = make_sizes(me, j);
    if (phase == SIZES && ok) j->sizes[me->comm->rank] = j->request->op.send_sizes[me->comm->rank];
    if (phase == CARDS) ok = begin_bruck(me, j, &j->mine, sizeof j->mine);
    if (!ok) ravel__remote_fail_code(me, RAVEL__WIRE_MEMORY, "an operation", "");
}

static void end_cards(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(j->disagree && j->room);
    int32_t n = me->comm->size, my = me->comm->rank;
    ravel_error *why = &j->request->why;
    if (!j->cards) j->cards = ravel__calloc(NULL, (size_t)n, sizeof *j->cards);
    for (int32_t i = 0; i < n && j->cards; i++)
        memcpy(&j->cards[(my + i) % n], j->room + (size_t)i * sizeof *j->cards, sizeof *j->cards);
    for (int32_t i = 0; i < n && j->cards; i++) j->cards[i].text[sizeof j->cards[i].text - 1] = '\0';
    if (!j->cards)
        (void)ravel__no_memory(why, (size_t)n * sizeof *j->cards, "a comparison");
    else if (j->disagree == 2)
        ravel__cards_complaint(me->comm, j->cards, why);
    else if (ravel__cards_agree(me->comm, j->cards, why))
        ravel_error_set(why, RAVEL_E_MISMATCH, "the ranks disagree");
    j->status = RAVEL_E_MISMATCH;
}

static void end_move(const remote_rank *me, remote_job *j) {
    ravel_request *r = j->request;
    if (r->op.kind == RAVEL__ALLGATHER && is_small_gather(me, &r->op)) end_bruck(me, j);
    if (j->status && !r->why.message[0])
        ravel_error_set(&r->why, RAVEL_E_MISMATCH, "a peer sent another number of bytes than was expected");
}

/* The phase is over. */
static void end_phase(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(j->phase != OVER && !j->message);
    switch (j->phase) {
    case HEAD:
        j->disagree = j->sums[0] != 0 ? 1 : j->sums[1] != 0 ? 2 : 0;
        enter(me, j, j->disagree == 0 ? MOVE : j->disagree == 2 ? SIZES : CARDS);
        return;
    case SIZES:
        ravel__card_complain(me->comm, &j->request->op, j->sizes, &j->mine);
        enter(me, j, CARDS);
        return;
    case CARDS: end_cards(me, j); break;
    default: end_move(me, j); break;
    }
    j->phase = OVER;
}

static void end_message(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(j->used == 1 && (j->parcels[0].state == PARCEL_DONE || j->parcels[0].state == PARCEL_IDLE));
    const remote_parcel *p = &j->parcels[0];
    char name[64];
    j->phase = OVER;
    if (!p->mismatch) return;
    ravel__remote_name(me->comm, p->member, name, sizeof name);
    j->status = RAVEL_E_MISMATCH;
    ravel_error_set(&j->request->why, RAVEL_E_MISMATCH,
                    "%s sends %lld bytes of dtype %d, and %lld of dtype %d are expected", name, (long long)p->got_bytes,
                    (int)p->got_note - 1, (long long)p->bytes, (int)p->note - 1);
}

int ravel__remote_is_alive(const remote_rank *me, const remote_job *j) {
    return !me->dead || (!j->message && j->serial < me->dead_from);
}

/* Advances the job as far as possible without waiting. After a failure, started transfers go on, and no others start.
*/
static void step(remote_rank *me, remote_job *j) {
    while (j->phase != OVER && !me->world->stuck) {
        RAVEL_ASSERT(j->used >= 0 && j->used <= 2 * REMOTE_WINDOW && j->request && j->request->comm == me->comm);
        if (j->message) {
            if (is_round_done(j)) end_message(me, j);
            return;
        }
        if (!is_exchange(j) && !is_round_done(j)) return;
        if (!ravel__remote_is_alive(me, j)) return;
        int exchange = is_exchange(j);
        if (!exchange) j->used = 0;
        int over = j->phase == HEAD    ? step_head(me, j)
                   : j->phase == SIZES ? step_exchange(me, j)
                   : j->phase == CARDS ? step_bruck(me, j)
                                       : step_move(me, j);
        if (over)
            end_phase(me, j);
        else if (exchange)
            return;
        else
            j->round++;
    }
}

void ravel__remote_progress(remote_rank *me) {
    for (remote_job *j = me->jobs; j; j = j->next) step(me, j);
}

/* ---- beginning and end ---------------------------------------------------------------------------------- */

static void unlink_job(remote_rank *me, const remote_job *j) {
    remote_job **link = &me->jobs;
    while (*link && *link != j) link = &(*link)->next;
    RAVEL_ASSERT(*link == j);
    if (*link) *link = j->next;
}

void ravel__remote_let_go(remote_rank *me, ravel_request *r) {
    remote_job *j = *remote_job_of(r);
    int clear = 1;
    RAVEL_ASSERT(j && j->request == r);
    *remote_job_of(r) = NULL;
    unlink_job(me, j);
    for (int32_t i = 0; i < j->used; i++) clear &= ravel__match_cancel(&j->parcels[i]);
    j->request = NULL;
    if (clear) {
        j->next = me->idle;
        me->idle = j;
        return;
    }
    j->next = me->world->orphans;
    me->world->orphans = j;
    me->world->stuck = me->world->broken = 1;
    ravel__remote_fail_all(me->world, me->dead ? me->reason : "an operation was given up in the middle");
}

remote_job *ravel__remote_begin(remote_rank *me, ravel_request *r) {
    RAVEL_ASSERT(!me->dead);
    remote_job *j = take_job(me);
    const ravel__op *op = &r->op;
    if (!j) return NULL;
    remote_job **end = &me->jobs;
    while (*end) end = &(*end)->next;
    *end = j;
    j->request = r;
    if (op->kind == RAVEL__SEND || op->kind == RAVEL__RECV) {
        int sends = op->kind == RAVEL__SEND;
        j->message = j->used = 1;
        j->phase = MOVE;
        post_at(me, j, &j->parcels[0], sends, op->root, sends ? op->send : op->recv, op->bytes, (uint32_t)op->tag,
                me->comm->check ? (uint32_t)op->dtype + 1 : 0);
        step(me, j);
        return j;
    }
    j->serial = me->serial++;
    enter(me, j, me->comm->check && me->comm->size > 1 ? HEAD : MOVE);
    step(me, j);
    return j;
}
