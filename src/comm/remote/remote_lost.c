/* Lost ranks: which ranks left, failed or ended, and which ranks are notified.
 *
 * A rank that frees a communicator sends LEFT; one that times out or raises an error sends FAILED, with a sentence. In
 * a communicator of up to REMOTE_TELL_ALL ranks all ranks get it; in a larger one (and a LEFT over TCP, which detects
 * closed peers itself) only the contacts do: ranks with which frames were exchanged, about 2 log2(n), since
 * collectives go along trees. So freeing costs O(log n) frames per rank. Every rank that receives a FAILED forwards it
 * once, to the ranks that its own LEFT would go to. The rank frees its communicator next, and a peer that only received
 * this LEFT would report it instead of the failure. A rank that waits for long ASKs those it waits for. The ranks that
 * need a rank that left detect it: an operation fails when one of its messages can never arrive, and the other ranks
 * are notified of that failure.
 *
 * The wire reports lost peers. MPI does not, so processes of this machine are also checked by process id (machine.h).
 * The deadline finds the rest. */
#include "comm/remote/remote.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <stdio.h>
#include <string.h>

enum { REASON_MOST = 400, GRACE_NS = 1000000000 };

/* ---- names ---------------------------------------------------------------------------------------------- */

void ravel__remote_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes) {
    RAVEL_ASSERT(rank >= 0 && rank < comm->size);
    if (comm->world_ranks)
        (void)snprintf(text, bytes, "rank %d (world rank %d)", rank, comm->world_ranks[rank]);
    else
        (void)snprintf(text, bytes, "rank %d", rank);
}

static int32_t rank_in(const ravel_comm *comm, int32_t world) {
    if (!comm->world_ranks) return world < comm->size ? world : -1;
    for (int32_t r = 0; r < comm->size; r++)
        if (comm->world_ranks[r] == world) return r;
    return -1;
}

ravel_status ravel__remote_error(ravel_error *err, const remote_world *w, int code, const char *what, const char *why) {
    const char *name = w->wire->name;
    switch (code) {
    case RAVEL__WIRE_MEMORY: return ravel__no_memory(err, 0, "a communicator");
    case RAVEL__WIRE_OVER:
        return ravel_error_set(err, RAVEL_E_STATE, "MPI has been finalised in this process; it cannot begin again");
    case RAVEL__WIRE_THREADS:
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "this MPI cannot be used from several threads; MPI_THREAD_SERIALIZED is needed");
    case RAVEL__WIRE_TIMEOUT: return ravel_error_set(err, RAVEL_E_TIMEOUT, "%s: %s", name, why);
    case RAVEL__WIRE_ARGUMENT: return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: %s", name, why);
    default: return ravel_error_set(err, RAVEL_E_PEER_LOST, "%s failed in %s: %s", name, what, why);
    }
}

/* ---- failures ------------------------------------------------------------------------------------------- */

static void mark_dead(remote_rank *me, int32_t lost, int64_t serial, const char *prefix, const char *reason) {
    RAVEL_ASSERT(lost >= -1 && lost < me->comm->size);
    if (me->dead) return;
    me->dead = 1;
    me->dead_from = serial;
    me->lost = lost;
    (void)snprintf(me->reason, sizeof me->reason, "%s%.*s", prefix, REASON_MOST, reason);
}

static int is_below(const remote_rank *r, uint64_t id) {
    RAVEL_ASSERT(r->depth >= 0 && r->depth <= REMOTE_DEPTH);
    for (int32_t i = 0; i < r->depth; i++)
        if (r->ancestors[i] == id) return 1;
    return 0;
}

/* Marks the communicator `id` and all that was split from it. Returns how many were usable before. */
static int32_t fail_family(remote_world *w, uint64_t id, int32_t world_rank, int64_t serial, const char *reason) {
    int32_t alive = 0;
    for (remote_rank *r = w->ranks; r; r = r->next) {
        int below = is_below(r, id);
        if (r->id != id && !below) continue;
        int32_t lost = world_rank < 0 ? -1 : rank_in(r->comm, world_rank);
        alive += !r->dead;
        mark_dead(r, lost, below ? 0 : serial, below ? "the communicator that this one was split from failed: " : "",
                  reason);
    }
    return alive;
}

void ravel__remote_fail_all(remote_world *w, const char *reason) {
    for (remote_rank *r = w->ranks; r; r = r->next)
        mark_dead(r, -1, 0, "another communicator of this world failed: ", reason);
}

static int is_large(const remote_rank *me) {
    return me->comm->size > REMOTE_TELL_ALL;
}

/* Whether only contacts are notified that this rank leaves, or of a failure that it received. */
static int tells_contacts_only(const remote_rank *me) {
    return is_large(me) || me->world->wire->tells_lost;
}

/* To every other member, or to those that are contacts. What cannot be sent is found by deadlines. */
static void tell_members(remote_rank *me, const remote_head *head, const char *body, int contacts_only) {
    RAVEL_ASSERT(!body || (head->bytes >= 0 && head->bytes <= REASON_MOST));
    const ravel_comm *comm = me->comm;
    for (int32_t r = 0; r < comm->size; r++) {
        int32_t peer = remote_world_rank(comm, r);
        if (r == comm->rank || (contacts_only && !me->world->contact[peer])) continue;
        (void)ravel__match_tell(me->world, peer, head, body, body ? (int32_t)head->bytes : 0);
    }
}

void ravel__remote_leave(remote_rank *me) {
    remote_head h = {.kind = FRAME_LEFT, .port = me->id};
    if (me->comm->size > 1) tell_members(me, &h, NULL, tells_contacts_only(me));
}

void ravel__remote_fail(remote_rank *me, int32_t lost, const char *reason) {
    remote_head h = {.kind = FRAME_FAILED, .port = me->id, .note = (uint32_t)me->world->broken};
    if (me->dead) return;
    RAVEL_ASSERT(lost >= -1 && lost < me->comm->size);
    int32_t world_rank = lost < 0 ? -1 : remote_world_rank(me->comm, lost);
    h.lost = (uint32_t)world_rank;
    h.serial = me->serial;
    for (remote_job *j = me->jobs; j; j = j->next)
        if (!j->message && j->phase != OVER && j->serial < h.serial) h.serial = j->serial;
    h.bytes = (int64_t)strnlen(reason, REASON_MOST);
    (void)fail_family(me->world, me->id, world_rank, h.serial, reason);
    RAVEL_ASSERT(me->dead);
    tell_members(me, &h, reason, is_large(me));
}

void ravel__remote_fail_code(remote_rank *me, int code, const char *what, const char *why) {
    char reason[REASON_MOST];
    me->world->broken |= code != RAVEL__WIRE_MEMORY;
    if (code == RAVEL__WIRE_MEMORY)
        (void)snprintf(reason, sizeof reason, "out of memory");
    else
        (void)snprintf(reason, sizeof reason, "%s failed in %s: %.300s", me->world->wire->name, what, why);
    ravel__remote_fail(me, code == RAVEL__WIRE_MEMORY ? me->comm->rank : -1, reason);
}

/* ---- frames from other ranks ----------------------------------------------------------------------------- */

static void hear_failed(remote_world *w, const remote_head *h, const char *body) {
    char reason[REASON_MOST + 1];
    int32_t lost = (int32_t)h->lost < w->size ? (int32_t)h->lost : -1;
    size_t bytes = h->bytes > 0 && h->bytes < REASON_MOST ? (size_t)h->bytes : 0;
    memcpy(reason, bytes ? body : "", bytes);
    reason[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)reason[i] < ' ') reason[i] = ' ';
    remote_rank *me = ravel__match_find(w, h->port);
    int passes_on = me && !me->dead;
    w->broken |= h->note != 0;
    (void)fail_family(w, h->port, lost < 0 ? -1 : lost, h->serial, reason);
    if (!passes_on) return;
    remote_head again = *h;
    again.bytes = (int64_t)bytes;
    tell_members(me, &again, reason, tells_contacts_only(me));
}

static int is_known(const remote_world *w, uint64_t id) {
    for (const remote_rank *r = w->ranks; r; r = r->next)
        if (r->id == id || is_below(r, id)) return 1;
    return 0;
}

static void answer(remote_world *w, int32_t peer, uint64_t id) {
    remote_head h = {.kind = FRAME_LEFT, .port = id};
    if (!ravel__match_find(w, id) && ravel__match_has_left(w, id)) (void)ravel__match_tell(w, peer, &h, NULL, 0);
}

void ravel__remote_notice(remote_world *w, int32_t peer, const remote_head *h, const char *body) {
    if (h->kind == FRAME_ASK) {
        answer(w, peer, h->port);
        return;
    }
    if (!is_known(w, h->port)) { /* not made here yet, or left */
        if (!ravel__match_has_left(w, h->port))
            ravel__match_keep(&w->strays[h->port % REMOTE_WORLD_BUCKETS], peer, h, body);
        return;
    }
    if (h->kind == FRAME_FAILED) {
        hear_failed(w, h, body);
        return;
    }
    remote_rank *me = ravel__match_find(w, h->port);
    int32_t gone = me ? rank_in(me->comm, peer) : -1;
    if (gone < 0) return;
    me->left[gone] = 1;
    w->any_gone = 1;
}

void ravel__remote_ask(remote_rank *me, remote_job *j) {
    RAVEL_ASSERT(j->phase != OVER && j->used <= 2 * REMOTE_WINDOW);
    remote_head h = {.kind = FRAME_ASK, .port = me->id};
    for (int32_t i = 0; i < j->used && !j->asked; i++)
        if (j->parcels[i].state == PARCEL_POSTED || j->parcels[i].state == PARCEL_OFFERED)
            (void)ravel__match_tell(me->world, j->parcels[i].peer, &h, NULL, 0);
    j->asked = 1;
}

void ravel__remote_peer_lost(remote_world *w, int32_t peer, const char *why) {
    RAVEL_ASSERT(peer >= 0 && peer < w->size);
    if (w->lost[peer]) return;
    w->lost[peer] = why ? 1 : 2;
    w->any_gone = 1;
    w->broken |= why != NULL;
    if (!why) return;
    if (!w->lost_ns) w->lost_rank = peer, w->lost_ns = ravel__clock_ns();
    (void)snprintf(w->lost_why, sizeof w->lost_why, "%.250s", why);
}

/* A process that is killed while it writes into MPI's shared memory may leave a receiver's queue cut: frames of ranks
 * that live no longer arrive there, and no message that the receiver waits for is the lost rank's. So over MPI a
 * collective of a lost member ends soon, whatever it waits for. -1: it may go on. */
static int32_t cuts_queues(const remote_rank *me, const remote_job *j) {
    const remote_world *w = me->world;
    if (j->message || w->wire->tells_lost || !w->lost_ns || ravel__clock_ns() - w->lost_ns < GRACE_NS) return -1;
    return rank_in(me->comm, w->lost_rank);
}

void ravel__remote_look_for_lost(remote_rank *me, const remote_job *j) {
    char name[64], reason[REASON_MOST];
    if (!me->world->any_gone) return;
    for (int32_t i = 0; i < j->used && !me->dead; i++) {
        const remote_parcel *p = &j->parcels[i];
        if (!ravel__match_is_hopeless(p)) continue;
        ravel__remote_name(me->comm, p->member, name, sizeof name);
        if (me->left[p->member] || me->world->lost[p->peer] == 2)
            (void)snprintf(reason, sizeof reason, "%s left: it freed its communicator", name);
        else
            (void)snprintf(reason, sizeof reason, "%s is lost: %s", name, me->world->lost_why);
        ravel__remote_fail(me, p->member, reason);
    }
    int32_t member = me->dead ? -1 : cuts_queues(me, j);
    if (member < 0) return;
    ravel__remote_name(me->comm, member, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s is lost: %s", name, me->world->lost_why);
    ravel__remote_fail(me, member, reason);
}

/* ---- processes on this machine -------------------------------------------------------------------------- */

void ravel__remote_look_at_processes(remote_world *w) {
    int64_t now = ravel__clock_ns();
    if (now - w->looked_ns < 250000000) return; /* a few times per second are enough */
    w->looked_ns = now;
    for (int32_t i = 0; i < w->neighbour_count; i++) {
        int32_t r = w->neighbours[i];
        RAVEL_ASSERT(r >= 0 && r < w->size && r != w->rank);
        if (!w->lost[r] && ravel__process_is_gone(&w->processes[r]))
            ravel__remote_peer_lost(w, r, "its process is gone");
    }
}

ravel_status ravel__remote_exchange_processes(remote_rank *me, ravel_error *err) {
    remote_world *w = me->world;
    size_t n = (size_t)w->size;
    w->own = ravel__process_self();
    w->processes = ravel__calloc(NULL, n, sizeof *w->processes);
    w->neighbours = ravel__calloc(NULL, n, sizeof *w->neighbours);
    if (!w->processes || !w->neighbours) return ravel__no_memory(err, n * sizeof *w->processes, "a communicator");
    ravel_status status = ravel_comm_allgather(me->comm, &w->own, w->processes, sizeof w->own, RAVEL_U8, err);
    for (int32_t r = 0; r < w->size && !status; r++)
        if (w->processes[r].pid != w->own.pid && w->own.machine && w->processes[r].started &&
            w->processes[r].machine == w->own.machine)
            w->neighbours[w->neighbour_count++] = r;
    return status;
}
