/* Send and receive of the `threads` back end.
 *
 * Each rank has a box with two lists: messages that others want to send to it, and its own receives, both in the order
 * in which they came. The second of the two finds its partner there, takes it out, copies from array to array without
 * holding the lock, marks both requests done and rings the partner's bell. A request in a list belongs to its owner,
 * which may remove it (deadline, lost rank). A request that a partner removed will complete shortly.
 *
 * A receive that borrows gets the sender's array instead of a copy: it is done at once, the send when the receiver has
 * given the array back. */
#include "comm/threads/threads.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static int32_t receiver_of(const ravel_comm *comm, const ravel__op *op) {
    RAVEL_ASSERT((op->kind == RAVEL__SEND || op->kind == RAVEL__RECV) && op->root >= 0 && op->root < comm->size);
    return op->kind == RAVEL__SEND ? op->root : comm->rank;
}

static void append(ravel_request ***end, ravel_request *r) {
    RAVEL_ASSERT(!threads_state(r)->queued && !**end);
    threads_state(r)->behind = NULL;
    threads_state(r)->queued = 1;
    **end = r;
    *end = &threads_state(r)->behind;
}

static void unlink_at(ravel_request **link, ravel_request ***end) {
    ravel_request *r = *link;
    RAVEL_ASSERT(threads_state(r)->queued);
    *link = threads_state(r)->behind;
    if (!*link) *end = link;
    threads_state(r)->queued = 0;
    RAVEL_ASSERT(!**end);
}

/* The oldest request of the list that is `owner`'s (or for `peer`), with the tag; taken out. */
static ravel_request *take(ravel_request **first, ravel_request ***end, int32_t owner, int32_t peer, int32_t tag) {
    for (ravel_request **link = first; *link; link = &threads_state(*link)->behind) {
        ravel_request *r = *link;
        if (threads_state(r)->rank != owner || r->op.root != peer || r->op.tag != tag) continue;
        unlink_at(link, end);
        return r;
    }
    return NULL;
}

static ravel_request *take_partner(threads_box *box, const ravel_request *r, int32_t me) {
    if (r->op.kind == RAVEL__SEND) return take(&box->recvs, &box->recvs_end, r->op.root, me, r->op.tag);
    return take(&box->sends, &box->sends_end, r->op.root, me, r->op.tag);
}

static void ring(threads_bell *bell) {
    atomic_fetch_add(&bell->word, 1);
    if (atomic_load(&bell->sleepers)) ravel__futex_wake(&bell->word);
}

static void say_mismatch(const threads_group *g, ravel_request *r, const ravel_request *other) {
    char what[160], name[48];
    ravel__op_describe(&other->op, what, sizeof what);
    ravel__threads_name(g, threads_state((ravel_request *)other)->rank, name, sizeof name);
    ravel_error_set(&r->why, RAVEL_E_MISMATCH, "%s calls %s; nothing was moved", name, what);
    threads_state(r)->status = RAVEL_E_MISMATCH;
}

static void finish(threads_group *g, ravel_request *r) {
    RAVEL_ASSERT(!atomic_load(&threads_state(r)->done) && !threads_state(r)->queued);
    threads_bell *bell = &g->bells[threads_state(r)->rank];
    atomic_store(&threads_state(r)->done, 1); /* its owner may take it away from here on */
    ring(bell);
}

/* Moves or lends the message. */
static void transfer(threads_group *g, ravel_request *mine, ravel_request *partner) {
    ravel_request *send = mine->op.kind == RAVEL__SEND ? mine : partner, *recv = send == mine ? partner : mine;
    int lent = 0;
    RAVEL_ASSERT(send->op.kind == RAVEL__SEND && recv->op.kind == RAVEL__RECV && send->op.tag == recv->op.tag);
    RAVEL_ASSERT(!threads_state(send)->queued && !threads_state(recv)->queued);
    threads_state(mine)->status = threads_state(partner)->status = RAVEL_OK;
    if (send->op.bytes != recv->op.bytes || send->op.dtype != recv->op.dtype) {
        say_mismatch(g, mine, partner);
        say_mismatch(g, partner, mine);
    } else if (recv->op.borrows) {
        *(ravel__loan *)(void *)recv->op.recv = (ravel__loan){send->op.send, send};
        lent = 1;
    } else if (send->op.bytes > 0 && recv->op.recv != send->op.send) {
        memcpy(recv->op.recv, send->op.send, (size_t)send->op.bytes);
    }
    finish(g, recv);
    if (!lent) finish(g, send);
}

void ravel__threads_give_back(ravel_comm *comm, ravel_request *lender) {
    RAVEL_ASSERT(lender->op.kind == RAVEL__SEND);
    finish(threads_of(comm)->group, lender);
}

ravel_status ravel__threads_post(ravel_comm *comm, ravel_request *r) {
    threads_group *g = threads_of(comm)->group;
    threads_box *box = &g->boxes[receiver_of(comm, &r->op)];
    threads_state(r)->rank = comm->rank;
    RAVEL_ASSERT(!threads_state(r)->queued);
    atomic_store_explicit(&threads_state(r)->done, 0, memory_order_relaxed);
    if (atomic_load(&g->dead)) return ravel__threads_lost(comm, &r->why);
    pthread_mutex_lock(&box->lock);
    ravel_request *partner = take_partner(box, r, comm->rank);
    int gone = !partner && atomic_load(&g->bells[r->op.root].left);
    if (!partner && !gone && r->op.kind == RAVEL__SEND) append(&box->sends_end, r);
    if (!partner && !gone && r->op.kind == RAVEL__RECV) append(&box->recvs_end, r);
    pthread_mutex_unlock(&box->lock);
    if (partner) transfer(g, r, partner);
    if (gone) {
        char name[48];
        ravel__threads_name(g, r->op.root, name, sizeof name);
        ravel__threads_kill(g, r->op.root, "%s left: it freed its communicator", name);
        return ravel__threads_lost(comm, &r->why);
    }
    return RAVEL_OK;
}

/* Takes the request out of its list; 0 if a partner has it already. */
static int take_back(threads_group *g, ravel_comm *comm, ravel_request *r) {
    threads_box *box = &g->boxes[receiver_of(comm, &r->op)];
    int found = 0;
    pthread_mutex_lock(&box->lock);
    if (threads_state(r)->queued) {
        ravel_request **link = r->op.kind == RAVEL__SEND ? &box->sends : &box->recvs;
        RAVEL_ASSERT(*link); /* it is in there */
        while (*link != r) link = &threads_state(*link)->behind;
        unlink_at(link, r->op.kind == RAVEL__SEND ? &box->sends_end : &box->recvs_end);
        found = 1;
    }
    pthread_mutex_unlock(&box->lock);
    return found;
}

ravel_status ravel__threads_look_message(ravel_comm *comm, ravel_request *r, int32_t *done) {
    threads_group *g = threads_of(comm)->group;
    *done = atomic_load(&threads_state(r)->done);
    if (*done) return (ravel_status)threads_state(r)->status;
    if (atomic_load(&g->dead) && take_back(g, comm, r)) return ravel__threads_lost(comm, &r->why);
    return RAVEL_OK;
}

static ravel_status give_up(ravel_comm *comm, threads_group *g, ravel_request *r) {
    char me[48], peer[48], what[160];
    ravel__threads_name(g, comm->rank, me, sizeof me);
    ravel__threads_name(g, r->op.root, peer, sizeof peer);
    ravel__op_describe(&r->op, what, sizeof what);
    ravel__threads_kill(g, -1, "%s gave up after %.3g s in %s", me, ravel_comm_timeout(comm), what);
    return ravel_error_set(&r->why, RAVEL_E_TIMEOUT, "%s did not come within %.3g s", peer, ravel_comm_timeout(comm));
}

/* Sleeps until the bell rings; not at all where the request is done, or the group failed and this has not been reported
 * yet. */
static void nap(threads_bell *bell, threads_group *g, ravel_request *r, int taken) {
    atomic_fetch_add(&bell->sleepers, 1);
    RAVEL_ASSERT(atomic_load(&bell->sleepers) > 0);
    uint32_t seen = atomic_load(&bell->word);
    int settled = atomic_load(&threads_state(r)->done) || (!taken && atomic_load(&g->dead));
    if (!settled) ravel__futex_wait(&bell->word, seen, taken ? INT64_MAX : r->deadline_ns);
    atomic_fetch_sub(&bell->sleepers, 1);
}

ravel_status ravel__threads_await_message(ravel_comm *comm, ravel_request *r) {
    threads_group *g = threads_of(comm)->group;
    int taken = 0; /* a partner has it, copies now and will ring the bell */
    for (int32_t round = 0;; round++) {
        if (atomic_load(&threads_state(r)->done)) return (ravel_status)threads_state(r)->status;
        int dead = atomic_load(&g->dead);
        if (round < g->spins + YIELDS && !dead) {
            if (round < g->spins)
                ravel__cpu_relax();
            else
                (void)sched_yield();
            continue;
        }
        if (!taken && (dead || ravel__clock_ns() > r->deadline_ns)) {
            if (take_back(g, comm, r)) return dead ? ravel__threads_lost(comm, &r->why) : give_up(comm, g, r);
            taken = 1;
        }
        nap(&g->bells[comm->rank], g, r, taken);
    }
}

void ravel__threads_unpost(ravel_comm *comm, ravel_request *r) {
    threads_group *g = threads_of(comm)->group;
    if (!atomic_load(&threads_state(r)->done)) {
        if (take_back(g, comm, r)) return;
        r->deadline_ns = INT64_MAX;
        (void)ravel__threads_await_message(comm, r);
    }
    if (r->op.borrows) ravel__comm_give_back(comm, (ravel__loan *)(void *)r->op.recv);
}

void ravel__threads_ring_all(threads_group *g) {
    for (int32_t i = 0; i < g->size; i++) ring(&g->bells[i]);
}

int ravel__threads_has_partner(threads_group *g, int32_t rank) {
    int found = 0;
    for (int32_t i = 0; i < g->size && !found; i++) {
        threads_box *box = &g->boxes[i];
        pthread_mutex_lock(&box->lock);
        for (ravel_request *r = box->recvs; r && !found; r = threads_state(r)->behind) found = r->op.root == rank;
        for (ravel_request *r = box->sends; r && !found; r = threads_state(r)->behind) found = i == rank;
        pthread_mutex_unlock(&box->lock);
    }
    return found;
}
