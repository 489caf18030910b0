/* The back end whose ranks are processes: `mpi`, over the wire that mpi.c makes of it.
 *
 * Nothing here waits inside the wire (but for making channels, when all members are known to be there): every operation
 * is a job of operations that the wire begins, polled until it is done or its deadline has passed.
 *
 *     a collective      HEAD   two words are summed over all ranks: 0 where all agree (see card.c). Also a barrier
 *                       TURN   data is issued in the order of the starts, so that all ranks issue in the same order
 *                       MOVE   broadcast, gather, or sends and receives between all pairs, in pieces of chunk_bytes
 *                       OVER
 *                 or:   SIZES, CARDS   the ranks disagree: who has what is gathered for the sentence, then OVER
 *     a message         MOVE   16 bytes of header, and the data; the receiver compares
 *
 * Death. MPI has no word for "that rank is gone", so there is one: a leave message, a small message on a channel of its own,
 * which everybody who waits listens for. A rank sends one when it leaves (with how many operations it took part in, so
 * that those still complete), raises an error, or gives up. Processes on this machine are also looked at by number. What
 * remains is found by the deadline.
 *
 * After a failure the wire may still hold buffers. Those of ours are kept for ever; where they are the caller's, no
 * further call into the wire is made by any communicator of this process. */
#include "comm/remote.h"

#include "base/clock.h"
#include "base/futex.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

remote_process ravel__remote = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- ends of operations --------------------------------------------------------------------------------- */

static ravel_status lost(remote_rank *me, ravel_request *r) {
    me->comm->lost_rank = me->lost;
    ravel__remote_let_go(me, r);
    return ravel_error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
}

static ravel_status give_up(remote_rank *me, ravel_request *r) {
    char what[160], name[64], reason[400];
    ravel__remote.broken = 1;
    double seconds = (double)me->comm->timeout_ns / 1e9;
    ravel__op_describe(&r->op, what, sizeof what);
    ravel__remote_name(me->comm, me->comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s gave up after %.3g s in %s", name, seconds, what);
    ravel__remote_fail(me, -1, reason);
    ravel__remote_let_go(me, r);
    return ravel_error_set(&r->why, RAVEL_E_TIMEOUT,
                           "not all ranks came within %.3g s; one may be dead, stuck, or somewhere else", seconds);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static ravel_status remote_start(ravel_comm *comm, ravel_request *r) {
    remote_rank *me = remote_rank_of(comm);
    ravel_status status = RAVEL_OK;
    pthread_mutex_lock(&ravel__remote.lock);
    if (!ravel__remote.hopeless) ravel__remote_hear(me->world);
    *remote_job_of(r) = NULL;
    if (me->dead) {
        comm->lost_rank = me->lost;
        status = ravel_error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
    } else {
        *remote_job_of(r) = ravel__remote_begin(me, r);
        if (!*remote_job_of(r)) status = ravel__no_memory(&r->why, sizeof(remote_job), "an operation");
    }
    pthread_mutex_unlock(&ravel__remote.lock);
    return status;
}

/* All ranks have joined an operation whose data moves, or that whoever failed has completed, so it can well be completed
 * after a death of the communicator, and should: the wire holds the caller's memory, and gives it back in no other way. A
 * receive can be taken back. */
static int is_worth_waiting(remote_rank *me, remote_job *j, int64_t grace_ns) {
    int64_t now = ravel__clock_ns();
    int whole = !j->message && j->serial < me->dead_from;
    if ((j->phase != MOVE && !whole) || ravel__remote.hopeless || ravel__remote.broken) return 0;
    if (j->message && j->request->op.kind == RAVEL__RECV) return 0;
    if (!j->grace_ns) j->grace_ns = now + grace_ns;
    if (!j->message) ravel__remote_progress(me);
    ravel__remote_step(me, j);
    return j->phase != OVER && now < j->grace_ns;
}

/* One look. *done: the operation is over, in whichever way. */
static ravel_status look(remote_rank *me, ravel_request *r, int patient, int32_t *done) {
    remote_job *j = *remote_job_of(r);
    ravel_status status = RAVEL_OK;
    if (!ravel__remote.hopeless) {
        ravel__remote_progress(me);
        if (j->message) ravel__remote_step(me, j);
        if (j->phase != OVER && !me->dead) ravel__remote_look_for_leavers(me, j);
        if (j->phase != OVER && !me->dead && patient) ravel__remote_look_at_processes(me);
    }
    if (j->phase != OVER && me->dead && is_worth_waiting(me, j, 1000000000)) return RAVEL_OK;
    if (j->phase == OVER && !ravel__remote.hopeless)
        ravel__remote_hear(me->world); /* of some who gave up on this one? */
    if (j->phase == OVER && !(me->dead && !j->message && j->serial >= me->dead_from)) {
        status = (ravel_status)j->status;
        *done = 1;
        ravel__remote_let_go(me, r);
    } else if (me->dead) {
        status = lost(me, r);
        *done = 1;
    }
    return status;
}

static ravel_status remote_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    pthread_mutex_lock(&ravel__remote.lock);
    ravel_status status = look(remote_rank_of(comm), r, 1, done);
    pthread_mutex_unlock(&ravel__remote.lock);
    return status;
}

/* With more ranks than cores the one that is waited for needs this core. */
void ravel__remote_pause(int32_t round) {
    struct timespec nap = {0, round < 20000 ? 20000 : 200000};
    if (round < 30)
        ravel__cpu_relax();
    else if (round < 2000)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

static ravel_status remote_wait(ravel_comm *comm, ravel_request *r) {
    for (int32_t round = 0;; round += round < 1 << 30) {
        int32_t done = 0;
        pthread_mutex_lock(&ravel__remote.lock);
        ravel_status status = look(remote_rank_of(comm), r, round > 2000, &done);
        if (!done && ravel__clock_ns() > r->deadline_ns) {
            status = give_up(remote_rank_of(comm), r);
            done = 1;
        }
        pthread_mutex_unlock(&ravel__remote.lock);
        if (done) return status;
        ravel__remote_pause(round);
    }
}

static void remote_cancel(ravel_comm *comm, ravel_request *r) {
    remote_rank *me = remote_rank_of(comm);
    pthread_mutex_lock(&ravel__remote.lock);
    remote_job *j = *remote_job_of(r);
    if (!ravel__remote.hopeless) ravel__remote_progress(me);
    for (int32_t round = 0; j && is_worth_waiting(me, j, 50000000); round++) ravel__remote_pause(round);
    if (j && !j->message && j->phase != OVER && j->serial < me->serial) me->serial = j->serial; /* joined no more */
    if (j) ravel__remote_let_go(me, r);
    pthread_mutex_unlock(&ravel__remote.lock);
}

static void remote_abort(ravel_comm *comm, const char *why) {
    remote_rank *me = remote_rank_of(comm);
    char name[64], reason[400];
    ravel__remote_name(comm, comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s raised an error: %.300s", name, why);
    pthread_mutex_lock(&ravel__remote.lock);
    ravel__remote_fail(me, comm->rank, reason);
    pthread_mutex_unlock(&ravel__remote.lock);
}

static ravel_status remote_alive(ravel_comm *comm, ravel_error *err) {
    remote_rank *me = remote_rank_of(comm);
    pthread_mutex_lock(&ravel__remote.lock);
    if (!ravel__remote.hopeless) ravel__remote_hear(me->world);
    int dead = me->dead;
    pthread_mutex_unlock(&ravel__remote.lock);
    if (!dead) return RAVEL_OK;
    comm->lost_rank = me->lost;
    return ravel_error_set(err, RAVEL_E_PEER_LOST, "%s", me->reason);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static void free_world(remote_world *w) {
    ravel__remote_drop_left(w);
    if (w->orphans || w->notices || w->listening.count || ravel__remote.hopeless) { /* the wire may still use it */
        w->next = ravel__remote.kept;
        ravel__remote.kept = w;
        return;
    }
    ravel__remote.wire->discard(&w->listening);
    if (w->leave_channel) ravel__remote.wire->drop(w->leave_channel);
    ravel__release(NULL, w->processes, (size_t)w->size * sizeof *w->processes);
    ravel__release(NULL, w, sizeof *w);
}

/* The last communicator of a world is gone, but leave messages may still be under way: the end of the process reads them,
 * where that is ours to see. */
static void close_world(remote_world *w) {
    if (ravel__remote.hopeless || ravel__remote.ours) {
        w->next = ravel__remote.closed;
        ravel__remote.closed = w;
        return;
    }
    ravel__remote_stop_listening(w);
    free_world(w);
}

static void free_rank(remote_rank *me, int32_t size) {
    const ravel_allocator *a = me->comm->allocator;
    while (me->idle) {
        remote_job *j = me->idle;
        me->idle = j->next;
        ravel__remote_free_job(j, size);
    }
    ravel__release(a, me->left_at, REMOTE_LISTS * (size_t)size * sizeof *me->left_at);
    ravel__release(a, me, sizeof *me);
}

static void remote_close(ravel_comm *comm) {
    remote_rank *me = remote_rank_of(comm);
    remote_world *w = me->world;
    pthread_mutex_lock(&ravel__remote.lock);
    if (!me->dead && !ravel__remote.hopeless) ravel__remote_leave(me);
    remote_rank **link = &w->ranks;
    while (*link != me) link = &(*link)->next;
    *link = me->next;
    if (!me->dead && !w->orphans && !ravel__remote.hopeless)
        ravel__remote_release(me);
    else
        ravel__remote_abandon(me->head, me->data);
    ravel__remote.patience_ns = comm->timeout_ns;
    free_rank(me, comm->size);
    if (--w->refs == 0) close_world(w);
    pthread_mutex_unlock(&ravel__remote.lock);
}

static remote_rank *new_rank(ravel_comm *comm, remote_world *w, int32_t id, ravel_error *err) {
    remote_rank *me = ravel__calloc(comm->allocator, 1, sizeof *me);
    size_t n = (size_t)comm->size;
    int64_t *lists = me ? ravel__calloc(comm->allocator, REMOTE_LISTS * n, sizeof *lists) : NULL;
    if (!lists) {
        ravel__release(comm->allocator, me, sizeof *me);
        (void)ravel__no_memory(err, sizeof *me, "a communicator");
        return NULL;
    }
    me->comm = comm, me->world = w, me->id = id, me->lost = -1;
    me->left_at = lists, me->left_sent = lists + n, me->left_received = lists + 2 * n;
    me->sent = lists + 3 * n, me->received = lists + 4 * n;
    for (size_t r = 0; r < n; r++) me->left_at[r] = -1;
    return me;
}

static void adopt(remote_rank *me) {
    me->next = me->world->ranks;
    me->world->ranks = me;
    me->world->refs++;
    me->comm->state = me;
}

static int64_t remote_serial(ravel_comm *comm) {
    return remote_rank_of(comm)->world->next_id;
}

/* The two channels of a rank, from the group of members. All members are in this call: they have agreed to split. */
static int make_pair(remote_rank *parent, remote_rank *me, const int32_t *members, int32_t tag) {
    const ravel__wire *wire = ravel__remote.wire;
    int code = wire->group(parent->data, members, me->comm->size, tag % REMOTE_TAGS, &me->head);
    return code ? code : wire->dup(me->head, &me->data);
}

static ravel_status remote_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                  int32_t colour, ravel_error *err) {
    remote_rank *parent = remote_rank_of(comm);
    ravel_status status = RAVEL_OK;
    (void)colour;
    pthread_mutex_lock(&ravel__remote.lock);
    remote_rank *me = new_rank(child, parent->world, (int32_t)serial, err);
    if (!me) status = RAVEL_E_MEMORY;
    if (me && parent->depth + 1 > REMOTE_DEPTH)
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED, "communicators can be split %d deep", REMOTE_DEPTH);
    if (!status) {
        int code = make_pair(parent, me, members, (int32_t)serial);
        if (code) status = ravel__remote_error(err, code, "making a communicator");
    }
    if (!status) {
        memcpy(me->ancestors, parent->ancestors, sizeof me->ancestors);
        me->ancestors[parent->depth] = parent->id;
        me->depth = parent->depth + 1;
        parent->world->next_id = (int32_t)serial + 1;
        adopt(me);
    } else if (me) {
        ravel__remote_abandon(me->head, me->data);
        free_rank(me, child->size);
    }
    pthread_mutex_unlock(&ravel__remote.lock);
    return status;
}

static const ravel__backend backend = {
    .name = "mpi",
    .request_bytes = sizeof(remote_request),
    .start = remote_start,
    .test = remote_test,
    .wait = remote_wait,
    .cancel = remote_cancel,
    .subset = remote_subset,
    .serial = remote_serial,
    .abort = remote_abort,
    .alive = remote_alive,
    .close = remote_close,
};

/* ---- beginning and end ---------------------------------------------------------------------------------- */

/* Everybody meets once more; 0 where that does not happen. */
static int meet(void) {
    static uint64_t in, out; /* the wire may have them for ever */
    const ravel__wire *wire = ravel__remote.wire;
    ravel__bundle bundle = {0};
    ravel__wire_verdict verdict = RAVEL__WIRE_PENDING;
    int64_t most = (int64_t)60 * 1000000000;
    int64_t wait = ravel__remote.patience_ns < most ? ravel__remote.patience_ns : most;
    int64_t deadline = ravel__clock_ns() + wait;
    int code = wire->sum(NULL, &bundle, &in, &out, 1);
    for (int32_t round = 0; !code && verdict == RAVEL__WIRE_PENDING && ravel__clock_ns() < deadline; round++) {
        verdict = wire->test(&bundle, &code);
        ravel__remote_pause(round);
    }
    if (!bundle.count) wire->discard(&bundle);
    return verdict == RAVEL__WIRE_DONE;
}

/* At the end of the process. Where a rank is gone, MPI is left as it is: the launcher cleans up, and says so. */
static void finalise(void) {
    if (ravel__remote.broken || ravel__remote.wire->is_over() || !meet()) return;
    while (ravel__remote.closed) { /* all leave messages were sent before the meeting */
        remote_world *w = ravel__remote.closed;
        ravel__remote.closed = w->next;
        for (int32_t round = 0; w->notices && round < 5000; round++) { /* ours that are not quite out */
            ravel__remote_hear(w);
            ravel__remote_pause(round);
        }
        ravel__remote_stop_listening(w);
        free_world(w);
    }
    ravel__remote.wire->end();
}

static ravel_status begin(const ravel__wire *wire, int32_t *rank, int32_t *size, ravel_error *err) {
    int32_t ours = 0;
    if (ravel__remote.hopeless)
        return ravel_error_set(
            err, RAVEL_E_DEAD,
            "an earlier communicator died in the middle of an operation; MPI cannot be used any more "
            "in this process");
    if (ravel__remote.wire && ravel__remote.wire != wire)
        return ravel_error_set(err, RAVEL_E_STATE, "another MPI module is in use in this process");
    ravel__remote.wire = wire;
    int code = wire->begin(rank, size, &ours);
    if (code == RAVEL__WIRE_OVER)
        return ravel_error_set(err, RAVEL_E_STATE, "MPI has been finalised in this process; it cannot begin again");
    if (code == RAVEL__WIRE_THREADS)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "this MPI cannot be used from several threads; MPI_THREAD_SERIALIZED is needed");
    if (code) return ravel__remote_error(err, code, "starting MPI");
    if (ours) (void)atexit(finalise);
    ravel__remote.ours |= ours;
    return RAVEL_OK;
}

/* The world's channels, and what all ranks must know of one another. */
static ravel_status make_world(remote_world *w, remote_rank *me, ravel_error *err) {
    const ravel__wire *wire = ravel__remote.wire;
    int code = wire->dup(NULL, &w->leave_channel);
    if (!code) code = wire->dup(NULL, &me->head);
    if (!code) code = wire->dup(NULL, &me->data);
    if (code) return ravel__remote_error(err, code, "making a communicator");
    return ravel__remote_exchange_processes(w, me->comm->timeout_ns, err);
}

static ravel_status open_world(const ravel_comm_options *options, int32_t rank, int32_t size, ravel_comm **comm,
                               ravel_error *err) {
    ravel_comm *c;
    ravel_status status = ravel__comm_new(&backend, rank, size, options, &c, err);
    if (status) return status;
    remote_world *w = ravel__calloc(NULL, 1, sizeof *w);
    remote_rank *me = w ? new_rank(c, w, 0, err) : NULL;
    if (!me) {
        ravel__release(NULL, w, sizeof *w);
        ravel__comm_discard(c);
        return ravel__no_memory(err, sizeof *w, "a communicator");
    }
    w->rank = rank, w->size = size, w->next_id = 1;
    status = make_world(w, me, err);
    if (status) {
        ravel__remote_abandon(me->head, me->data);
        free_rank(me, size);
        free_world(w);
        ravel__comm_discard(c);
        return status;
    }
    ravel__remote_listen(w);
    adopt(me);
    *comm = c;
    return RAVEL_OK;
}

ravel_status ravel__remote_open(const ravel__wire *wire, const ravel_comm_options *options, int32_t expected,
                                ravel_comm **comm, ravel_error *err) {
    int32_t rank = 0, size = 1;
    pthread_mutex_lock(&ravel__remote.lock);
    ravel_status status = begin(wire, &rank, &size, err);
    if (!status && expected > 1 && size == 1)
        status =
            ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                            "the launcher started %d ranks, but this MPI sees only itself: launcher and MPI module "
                            "are of different kinds; set RAVEL_MPI_MODULE to the one that fits",
                            expected);
    if (!status) status = open_world(options, rank, size, comm, err);
    pthread_mutex_unlock(&ravel__remote.lock);
    return status;
}
