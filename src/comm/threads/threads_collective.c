/* Collectives of the `threads` back end.
 *
 * Each rank puts its request into the slot of its next serial number. The last to arrive compares all of them: they
 * agree, and the slot becomes READY, or every request is finished with E_MISMATCH and nothing moves. READY means that
 * the operation is a list of `size` copies, one per receiving rank (or, in a reduction, one per part of
 * the result), straight from array to array. They are claimed one by one: a rank that waits takes its own first and
 * then whatever is unclaimed, so an operation finishes as soon as one rank waits for it, and parallel when several do.
 * Small operations are copied by the last rank to arrive, before it wakes the others: they wake once instead of twice.
 *
 * The rank that makes the last copy marks all requests done and opens the slot for a later serial. */
#include "comm/threads/threads.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { LITTLE = 64 * 1024 }; /* bytes moved in all */

/* ---- copies --------------------------------------------------------------------------------------------- */

static void copy(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to != from) memcpy(to, from, (size_t)bytes);
}

static const ravel__op *op_of(threads_slot *slot, int32_t rank) {
    RAVEL_ASSERT(atomic_load_explicit(&slot->posted[rank], memory_order_relaxed)); /* all have come */
    return &atomic_load_explicit(&slot->posted[rank], memory_order_relaxed)->op;
}

static void copy_gathered(threads_slot *slot, int32_t size, int32_t me) {
    const ravel__op *mine = op_of(slot, me);
    for (int32_t i = 0; i < size; i++) { /* each begins with itself, so that not all read rank 0 first */
        int32_t from = me + i < size ? me + i : me + i - size;
        copy(mine->recv + mine->recv_offsets[from], op_of(slot, from)->send, mine->recv_sizes[from]);
    }
}

static void copy_exchanged(threads_slot *slot, int32_t size, int32_t me) {
    const ravel__op *mine = op_of(slot, me);
    for (int32_t i = 0; i < size; i++) {
        int32_t from = me + i < size ? me + i : me + i - size;
        const ravel__op *other = op_of(slot, from);
        copy(mine->recv + mine->recv_offsets[from], other->send + other->send_offsets[me], mine->recv_sizes[from]);
    }
}

/* Part `part` of all sends, combined in rank order, for the root or for all. A block at a time: no other copy
 * touches these bytes, so an array may be reduced in place. */
static void reduce_part(threads_slot *slot, int32_t size, int32_t part) {
    enum { BLOCK = 4096 };
    _Alignas(64) char block[BLOCK];
    const ravel__op *op = op_of(slot, part);
    int64_t each = (int64_t)ravel__round_up((size_t)((op->bytes + size - 1) / size), 64);
    int64_t from = each * part, to = from + each < op->bytes ? from + each : op->bytes;
    RAVEL_ASSERT(each * size >= op->bytes && each % op->each == 0);
    for (; from < to; from += BLOCK) {
        int64_t bytes = to - from < BLOCK ? to - from : BLOCK;
        ravel__reduce(op->dtype, op->reduce, slot->sources, size, from, bytes, block);
        for (int32_t r = 0; r < size; r++)
            if (op->kind == RAVEL__ALLREDUCE || r == op->root) copy(op_of(slot, r)->recv + from, block, bytes);
    }
}

/* What rank `part` receives, or its part of a reduction. */
static void run_copy(threads_slot *slot, int32_t size, int32_t part) {
    const ravel__op *op = op_of(slot, part);
    RAVEL_ASSERT(part >= 0 && part < size);
    switch ((ravel__op_kind)op->kind) {
    case RAVEL__BROADCAST:
        if (part != op->root) copy(op->recv, op_of(slot, op->root)->send, op->bytes);
        break;
    case RAVEL__ALLGATHER: copy_gathered(slot, size, part); break;
    case RAVEL__ALLTOALL: copy_exchanged(slot, size, part); break;
    case RAVEL__ALLREDUCE:
    case RAVEL__REDUCE: reduce_part(slot, size, part); break;
    case RAVEL__REDUCE_SCATTER:
        ravel__reduce(op->dtype, op->reduce, slot->sources, size, op->send_offsets[part], op->recv_sizes[part],
                      op->recv);
        break;
    default: break;
    }
}

/* ---- the slot ------------------------------------------------------------------------------------------- */

static threads_slot *slot_of(threads_group *g, uint64_t serial) {
    return &g->slots[serial % SLOTS];
}

static uint64_t turn_of(uint64_t serial, int state) {
    return serial * 4 + (uint64_t)state;
}

static void wake(threads_slot *slot) {
    atomic_fetch_add(&slot->word, 1);
    if (atomic_load(&slot->sleepers)) ravel__futex_wake(&slot->word);
}

/* From OPEN to another state; 0 if it was not OPEN. */
static int turn_to(threads_slot *slot, uint64_t serial, int state) {
    RAVEL_ASSERT(state != TURN_OPEN && state <= TURN_FAILED);
    uint64_t open = turn_of(serial, TURN_OPEN);
    return atomic_compare_exchange_strong(&slot->turn, &open, turn_of(serial, state));
}

static void finish_request(ravel_request *r, ravel_status status, const char *sentence) {
    threads_request *state = threads_state(r);
    RAVEL_ASSERT(!atomic_load(&state->done));
    if (status) ravel_error_set(&r->why, status, "%s", sentence);
    state->status = status;
    atomic_store(&state->done, 1); /* the owner may go on and reuse it from here */
}

/* The operation is complete: marks the owners' requests done, and opens the slot for the collective SLOTS later. */
static void complete(threads_group *g, threads_slot *slot, uint64_t serial, ravel_status status, const char *sentence) {
    RAVEL_ASSERT(atomic_load(&slot->turn) / 4 == serial && atomic_load(&slot->turn) % 4 != TURN_OPEN);
    atomic_store(&slot->arrived, 0);
    atomic_store(&slot->finished, 0);
    for (int32_t i = 0; i < g->size; i++) {
        ravel_request *r = atomic_exchange(&slot->posted[i], NULL);
        RAVEL_ASSERT(r && threads_state(r)->serial == serial);
        finish_request(r, status, sentence);
    }
    atomic_store(&slot->turn, turn_of(serial + SLOTS, TURN_OPEN));
    wake(slot);
}

/* Makes the copy of one rank, if it is unclaimed. */
static void claim_copy(threads_group *g, threads_slot *slot, uint64_t serial, int32_t part) {
    uint64_t last = atomic_load(&slot->claims[part]);
    if (last > serial || !atomic_compare_exchange_strong(&slot->claims[part], &last, serial + 1)) return;
    RAVEL_ASSERT(part >= 0 && part < g->size && atomic_load(&slot->turn) == turn_of(serial, TURN_READY));
    run_copy(slot, g->size, part);
    if (atomic_fetch_add(&slot->finished, 1) + 1 == g->size) complete(g, slot, serial, RAVEL_OK, NULL);
}

static void claim_copies(threads_group *g, threads_slot *slot, uint64_t serial, int32_t first) {
    for (int32_t i = 0; i < g->size; i++) claim_copy(g, slot, serial, (first + i) % g->size);
}

/* ---- agreement ------------------------------------------------------------------------------------------ */

static void say_disagree(threads_group *g, threads_slot *slot, int32_t a, int32_t b, char *text, size_t bytes) {
    char first[160], second[160], rank_a[48], rank_b[48];
    ravel__op_describe(op_of(slot, a), first, sizeof first);
    ravel__op_describe(op_of(slot, b), second, sizeof second);
    ravel__threads_name(g, a, rank_a, sizeof rank_a);
    ravel__threads_name(g, b, rank_b, sizeof rank_b);
    (void)snprintf(text, bytes, "the ranks disagree: %s calls %s, %s calls %s%s; nothing was moved", rank_a, first,
                   rank_b, second, strcmp(first, second) == 0 ? " with other counts" : "");
}

/* The size that a rank sends must be the size that the receiver expects. */
static int agree_on_pairs(threads_group *g, threads_slot *slot, char *text, size_t bytes) {
    for (int32_t to = 0; to < g->size; to++)
        for (int32_t from = 0; from < g->size; from++) {
            int64_t sent = op_of(slot, from)->send_sizes[to], wanted = op_of(slot, to)->recv_sizes[from];
            if (sent == wanted) continue;
            char a[48], b[48];
            ravel__threads_name(g, from, a, sizeof a);
            ravel__threads_name(g, to, b, sizeof b);
            (void)snprintf(text, bytes,
                           "the ranks disagree: %s sends %lld bytes to %s, which expects %lld; nothing was moved", a,
                           (long long)sent, b, (long long)wanted);
            return 0;
        }
    return 1;
}

static int agree(threads_group *g, threads_slot *slot, char *text, size_t bytes) {
    const ravel__op *first = op_of(slot, 0);
    for (int32_t r = 1; r < g->size; r++)
        if (!ravel__op_same(first, op_of(slot, r), g->size)) {
            say_disagree(g, slot, 0, r, text, bytes);
            return 0;
        }
    return first->kind != RAVEL__ALLTOALL || agree_on_pairs(g, slot, text, bytes);
}

/* Bytes that will be moved, about; also lists all sends. */
static int64_t weigh(threads_group *g, threads_slot *slot) {
    int64_t bytes = 0;
    for (int32_t r = 0; r < g->size; r++) {
        const ravel__op *op = op_of(slot, r);
        slot->sources[r] = op->send;
        if (op->bytes > INT64_MAX / 2 - bytes) return INT64_MAX / 2;
        RAVEL_ASSERT(op->bytes >= 0);
        bytes += op->bytes;
    }
    return op_of(slot, 0)->kind == RAVEL__ALLGATHER ? bytes * g->size : bytes;
}

/* The last rank has come. */
static void all_arrived(threads_group *g, threads_slot *slot, uint64_t serial, int32_t me) {
    char text[600];
    if (!turn_to(slot, serial, TURN_FULL)) return; /* it has just failed; the wait reports it */
    if (!agree(g, slot, text, sizeof text)) {
        complete(g, slot, serial, RAVEL_E_MISMATCH, text);
        return;
    }
    int64_t bytes = weigh(g, slot);
    RAVEL_ASSERT(bytes >= 0 && atomic_load(&slot->arrived) == g->size);
    if (bytes == 0) {
        complete(g, slot, serial, RAVEL_OK, NULL);
        return;
    }
    atomic_store(&slot->turn, turn_of(serial, TURN_READY));
    if (bytes <= LITTLE)
        claim_copies(g, slot, serial, me);
    else
        wake(slot);
}

/* ---- what the table calls ------------------------------------------------------------------------------- */

ravel_status ravel__threads_join(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(r->op.kind < RAVEL__SEND && comm->rank < threads_of(comm)->group->size);
    threads_rank *mine = threads_of(comm);
    threads_group *g = mine->group;
    threads_request *state = threads_state(r);
    threads_slot *slot = slot_of(g, mine->serial);
    state->serial = mine->serial;
    atomic_store_explicit(&state->done, 0, memory_order_relaxed);
    /* The rank that completes the slot's last collective may still be about to open it. */
    while (atomic_load(&slot->turn) != turn_of(mine->serial, TURN_OPEN)) {
        if (atomic_load(&g->dead)) return ravel__threads_lost(comm, &r->why);
        (void)sched_yield();
    }
    if (atomic_load(&g->dead)) return ravel__threads_lost(comm, &r->why);
    mine->serial++;
    RAVEL_ASSERT(!atomic_load(&slot->posted[comm->rank]));
    atomic_store(&slot->posted[comm->rank], r);
    if (atomic_fetch_add(&slot->arrived, 1) + 1 == g->size) {
        all_arrived(g, slot, state->serial, comm->rank);
    } else if (atomic_load(&g->leavers)) { /* a rank that left has not posted, so this can never be full */
        int32_t gone = ravel__threads_leaver(g);
        char name[48];
        ravel__threads_name(g, gone, name, sizeof name);
        ravel__threads_kill(g, gone, "%s left: it freed its communicator", name);
    }
    return RAVEL_OK;
}

ravel_status ravel__threads_look(ravel_comm *comm, ravel_request *r, int32_t *done) {
    threads_group *g = threads_of(comm)->group;
    threads_request *state = threads_state(r);
    RAVEL_ASSERT(state->serial < threads_of(comm)->serial); /* it was joined */
    threads_slot *slot = slot_of(g, state->serial);
    uint64_t turn = atomic_load(&slot->turn);
    if (turn == turn_of(state->serial, TURN_READY)) claim_copy(g, slot, state->serial, comm->rank);
    *done = atomic_load(&state->done);
    if (*done) return (ravel_status)state->status;
    if (atomic_load(&g->dead) &&
        (turn_to(slot, state->serial, TURN_FAILED) || atomic_load(&slot->turn) == turn_of(state->serial, TURN_FAILED)))
        return ravel__threads_lost(comm, &r->why);
    return RAVEL_OK;
}

/* "rank 3" or "ranks 3, 5"; at most eight of them. */
static void list_missing(threads_group *g, threads_slot *slot, char *text, size_t bytes) {
    int32_t missing = 0;
    size_t used = 0;
    for (int32_t i = 0; i < g->size; i++) missing += !atomic_load(&slot->posted[i]);
    used += (size_t)snprintf(text, bytes, missing == 1 ? "rank" : "ranks");
    for (int32_t i = 0, shown = 0; i < g->size && shown < 8; i++)
        if (!atomic_load(&slot->posted[i]))
            used += (size_t)snprintf(text + used, bytes - used, "%s %d", shown++ ? "," : "", i);
    if (missing > 8) (void)snprintf(text + used, bytes - used, " and %d more", missing - 8);
}

static ravel_status give_up(ravel_comm *comm, threads_group *g, threads_slot *slot, ravel_request *r) {
    char missing[160] = "", me[48], what[160];
    list_missing(g, slot, missing, sizeof missing);
    ravel__threads_name(g, comm->rank, me, sizeof me);
    ravel__op_describe(&r->op, what, sizeof what);
    ravel__threads_kill(g, -1, "%s gave up after %.3g s in %s, waiting for %s", me, ravel_comm_timeout(comm), what,
                        missing);
    return ravel_error_set(&r->why, RAVEL_E_TIMEOUT, "%s did not come within %.3g s", missing,
                           ravel_comm_timeout(comm));
}

/* Sleeps until something about the slot changed. */
static void nap(threads_slot *slot, threads_group *g, threads_request *state, uint64_t turn, int64_t deadline_ns) {
    atomic_fetch_add(&slot->sleepers, 1);
    RAVEL_ASSERT(atomic_load(&slot->sleepers) > 0);
    uint32_t seen = atomic_load(&slot->word);
    int dead_and_open = atomic_load(&g->dead) && turn == turn_of(state->serial, TURN_OPEN);
    if (!atomic_load(&state->done) && atomic_load(&slot->turn) == turn && !dead_and_open)
        ravel__futex_wait(&slot->word, seen, deadline_ns);
    atomic_fetch_sub(&slot->sleepers, 1);
}

ravel_status ravel__threads_await(ravel_comm *comm, ravel_request *r) {
    threads_group *g = threads_of(comm)->group;
    threads_request *state = threads_state(r);
    threads_slot *slot = slot_of(g, state->serial);
    uint64_t serial = state->serial;
    for (int32_t round = 0;; round++) {
        if (atomic_load(&state->done)) return (ravel_status)state->status;
        uint64_t turn = atomic_load(&slot->turn);
        if (turn == turn_of(serial, TURN_FAILED)) return ravel__threads_lost(comm, &r->why);
        if (turn == turn_of(serial, TURN_READY)) claim_copies(g, slot, serial, comm->rank);
        if (turn == turn_of(serial, TURN_OPEN)) {
            if (atomic_load(&g->dead) && turn_to(slot, serial, TURN_FAILED)) continue;
            if (round > g->spins && ravel__clock_ns() > r->deadline_ns && turn_to(slot, serial, TURN_FAILED))
                return give_up(comm, g, slot, r);
        }
        if (round < g->spins)
            ravel__cpu_relax();
        else if (round < g->spins + YIELDS)
            (void)sched_yield();
        else
            nap(slot, g, state, turn, turn == turn_of(serial, TURN_OPEN) ? r->deadline_ns : INT64_MAX);
    }
}

void ravel__threads_withdraw(ravel_comm *comm, ravel_request *r) {
    threads_group *g = threads_of(comm)->group;
    threads_request *state = threads_state(r);
    RAVEL_ASSERT(state->serial < threads_of(comm)->serial);
    threads_slot *slot = slot_of(g, state->serial);
    char name[48];
    if (atomic_load(&state->done)) return;
    if (turn_to(slot, state->serial, TURN_FAILED)) {
        ravel__threads_name(g, comm->rank, name, sizeof name);
        ravel__threads_kill(g, comm->rank, "%s left: it freed its communicator in the middle of a %s", name,
                            ravel__op_names[r->op.label]);
        return;
    }
    r->deadline_ns = INT64_MAX; /* READY or FAILED: this rank makes the remaining copies; no other rank is needed */
    (void)ravel__threads_await(comm, r);
}

void ravel__threads_fail_slots(threads_group *g) {
    for (int32_t i = 0; i < SLOTS; i++) {
        threads_slot *slot = &g->slots[i];
        uint64_t turn = atomic_load(&slot->turn);
        if (turn % 4 == TURN_OPEN) (void)turn_to(slot, turn / 4, TURN_FAILED);
        wake(slot);
    }
}

int ravel__threads_is_awaited(threads_group *g) {
    for (int32_t i = 0; i < SLOTS; i++) {
        int32_t arrived = atomic_load(&g->slots[i].arrived);
        if (arrived > 0 && arrived < g->size && atomic_load(&g->slots[i].turn) % 4 == TURN_OPEN) return 1;
    }
    return 0;
}
