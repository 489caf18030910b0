/* The `mpi` back end, compiled once against Open MPI and once against MPICH into a module that libravel loads.
 *
 * Nothing here blocks inside MPI (but for making communicators, when all members are known to be there): every
 * operation is a job of non-blocking calls that is polled until it is done or its deadline has passed.
 *
 *     a collective      HEAD   two words are summed over all ranks: 0 where all agree (see card.c). Also a barrier
 *                       TURN   data is issued in the order of the starts, so that all ranks issue in the same order
 *                       MOVE   Ibcast, Iallgatherv, or Isend and Irecv to all peers, in pieces of chunk_bytes
 *                       OVER
 *                 or:   SIZES, CARDS   the ranks disagree: who has what is gathered for the sentence, then OVER
 *     a message         MOVE   16 bytes of header, and the data; the receiver compares
 *
 * Death. MPI has no word for "that rank is gone", so there is one: an obituary, a small message on a communicator of its
 * own, which everybody who waits listens for. A rank sends one when it leaves (with how many operations it took part in,
 * so that those still complete), raises an error, or gives up. Processes on this machine are also looked at by number.
 * What remains is found by the deadline.
 *
 * After a failure MPI may still hold buffers. Those of ours are kept for ever; where they are the caller's, no further
 * call into MPI is made by any communicator of this process. */
#include "comm/mpi_parts.h"

#include "base/futex.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC visibility push(default)
ravel_status ravel_comm_module(const ravel__services *services, const ravel_comm_options *options, int32_t expected,
                               ravel_comm **comm, ravel_error *err);
#pragma GCC visibility pop

mpi_module ravel__mpi = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- ends of operations --------------------------------------------------------------------------------- */

static ravel_status lost(mpi_rank *me, ravel_request *r) {
    me->comm->lost_rank = me->lost;
    ravel__mpi_let_go(me, r);
    return S->error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
}

static ravel_status give_up(mpi_rank *me, ravel_request *r) {
    char what[160], name[64], reason[400];
    ravel__mpi.broken = 1;
    double seconds = (double)me->comm->timeout_ns / 1e9;
    S->op_describe(&r->op, what, sizeof what);
    ravel__mpi_name(me->comm, me->comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s gave up after %.3g s in %s", name, seconds, what);
    ravel__mpi_fail(me, -1, reason);
    ravel__mpi_let_go(me, r);
    return S->error_set(&r->why, RAVEL_E_TIMEOUT,
                        "not all ranks came within %.3g s; one may be dead, stuck, or somewhere else", seconds);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static ravel_status mpi_start(ravel_comm *comm, ravel_request *r) {
    mpi_rank *me = mpi_rank_of(comm);
    ravel_status status = RAVEL_OK;
    pthread_mutex_lock(&ravel__mpi.lock);
    if (!ravel__mpi.hopeless) ravel__mpi_hear(me->world);
    *mpi_job_of(r) = NULL;
    if (me->dead) {
        comm->lost_rank = me->lost;
        status = S->error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
    } else {
        *mpi_job_of(r) = ravel__mpi_begin(me, r);
        if (!*mpi_job_of(r)) status = S->no_memory(&r->why, sizeof(mpi_job), "an operation");
    }
    pthread_mutex_unlock(&ravel__mpi.lock);
    return status;
}

/* All ranks have joined an operation whose data moves, or that whoever failed has completed, so it can well be completed
 * after a death of the communicator, and should: MPI holds the caller's memory, and gives it back in no other way. A
 * receive can be taken back. */
static int is_worth_waiting(mpi_rank *me, mpi_job *j, int64_t grace_ns) {
    int64_t now = S->clock_ns();
    int whole = !j->message && j->serial < me->dead_from;
    if ((j->phase != MOVE && !whole) || ravel__mpi.hopeless || ravel__mpi.broken) return 0;
    if (j->message && j->request->op.kind == RAVEL__RECV) return 0;
    if (!j->grace_ns) j->grace_ns = now + grace_ns;
    if (!j->message) ravel__mpi_progress(me);
    ravel__mpi_step(me, j);
    return j->phase != OVER && now < j->grace_ns;
}

/* One look. *done: the operation is over, in whichever way. */
static ravel_status look(mpi_rank *me, ravel_request *r, int patient, int32_t *done) {
    mpi_job *j = *mpi_job_of(r);
    ravel_status status = RAVEL_OK;
    if (!ravel__mpi.hopeless) {
        ravel__mpi_progress(me);
        if (j->message) ravel__mpi_step(me, j);
        if (j->phase != OVER && !me->dead) ravel__mpi_look_for_leavers(me, j);
        if (j->phase != OVER && !me->dead && patient) ravel__mpi_look_at_processes(me);
    }
    if (j->phase != OVER && me->dead && is_worth_waiting(me, j, 1000000000)) return RAVEL_OK;
    if (j->phase == OVER && !ravel__mpi.hopeless) ravel__mpi_hear(me->world); /* of some who gave up on this one? */
    if (j->phase == OVER && !(me->dead && !j->message && j->serial >= me->dead_from)) {
        status = (ravel_status)j->status;
        *done = 1;
        ravel__mpi_let_go(me, r);
    } else if (me->dead) {
        status = lost(me, r);
        *done = 1;
    }
    return status;
}

static ravel_status mpi_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    pthread_mutex_lock(&ravel__mpi.lock);
    ravel_status status = look(mpi_rank_of(comm), r, 1, done);
    pthread_mutex_unlock(&ravel__mpi.lock);
    return status;
}

/* Busy for a moment, then polite: with more ranks than cores the one that is waited for needs this core. */
static void pause_for(int32_t round) {
    struct timespec nap = {0, round < 20000 ? 20000 : 200000};
    if (round < 30)
        ravel__cpu_relax();
    else if (round < 2000)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

static ravel_status mpi_wait(ravel_comm *comm, ravel_request *r) {
    for (int32_t round = 0;; round += round < 1 << 30) {
        int32_t done = 0;
        pthread_mutex_lock(&ravel__mpi.lock);
        ravel_status status = look(mpi_rank_of(comm), r, round > 2000, &done);
        if (!done && S->clock_ns() > r->deadline_ns) {
            status = give_up(mpi_rank_of(comm), r);
            done = 1;
        }
        pthread_mutex_unlock(&ravel__mpi.lock);
        if (done) return status;
        pause_for(round);
    }
}

static void mpi_cancel(ravel_comm *comm, ravel_request *r) {
    mpi_rank *me = mpi_rank_of(comm);
    pthread_mutex_lock(&ravel__mpi.lock);
    mpi_job *j = *mpi_job_of(r);
    if (!ravel__mpi.hopeless) ravel__mpi_progress(me);
    for (int32_t round = 0; j && is_worth_waiting(me, j, 50000000); round++) pause_for(round);
    if (j && !j->message && j->phase != OVER && j->serial < me->serial) me->serial = j->serial; /* joined no more */
    if (j) ravel__mpi_let_go(me, r);
    pthread_mutex_unlock(&ravel__mpi.lock);
}

static void mpi_abort(ravel_comm *comm, const char *why) {
    mpi_rank *me = mpi_rank_of(comm);
    char name[64], reason[400];
    ravel__mpi_name(comm, comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s raised an error: %.300s", name, why);
    pthread_mutex_lock(&ravel__mpi.lock);
    ravel__mpi_fail(me, comm->rank, reason);
    pthread_mutex_unlock(&ravel__mpi.lock);
}

static ravel_status mpi_alive(ravel_comm *comm, ravel_error *err) {
    mpi_rank *me = mpi_rank_of(comm);
    pthread_mutex_lock(&ravel__mpi.lock);
    if (!ravel__mpi.hopeless) ravel__mpi_hear(me->world);
    int dead = me->dead;
    pthread_mutex_unlock(&ravel__mpi.lock);
    if (!dead) return RAVEL_OK;
    comm->lost_rank = me->lost;
    return S->error_set(err, RAVEL_E_PEER_LOST, "%s", me->reason);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static void free_world(mpi_world *w) {
    ravel__mpi_forget_graves(w);
    if (w->orphans || w->notices) return; /* MPI may still look at it */
    if (w->obit != MPI_COMM_NULL) (void)MPI_Comm_free(&w->obit);
    S->release(NULL, w->processes, (size_t)w->size * sizeof *w->processes);
    S->release(NULL, w, sizeof *w);
}

/* The last communicator of a world is gone, but obituaries may still be under way: the end of the process reads them,
 * where that is ours to see. */
static void close_world(mpi_world *w) {
    if (ravel__mpi.hopeless || ravel__mpi.ours) {
        w->next = ravel__mpi.closed;
        ravel__mpi.closed = w;
        return;
    }
    ravel__mpi_deafen(w);
    free_world(w);
}

static void free_rank(mpi_rank *me, int32_t size) {
    const ravel_allocator *a = me->comm->allocator;
    while (me->idle) {
        mpi_job *j = me->idle;
        me->idle = j->next;
        ravel__mpi_free_job(j, size);
    }
    S->release(a, me->lists, 5 * (size_t)size * sizeof *me->lists);
    S->release(a, me, sizeof *me);
}

static void mpi_close(ravel_comm *comm) {
    mpi_rank *me = mpi_rank_of(comm);
    mpi_world *w = me->world;
    pthread_mutex_lock(&ravel__mpi.lock);
    if (!me->dead && !ravel__mpi.hopeless) ravel__mpi_leave(me);
    mpi_rank **link = &w->ranks;
    while (*link != me) link = &(*link)->next;
    *link = me->next;
    if (!me->dead && !w->orphans && !ravel__mpi.hopeless) ravel__mpi_bury(me);
    ravel__mpi.patience_ns = comm->timeout_ns;
    free_rank(me, comm->size);
    if (--w->refs == 0) close_world(w);
    pthread_mutex_unlock(&ravel__mpi.lock);
}

static mpi_rank *new_rank(ravel_comm *comm, mpi_world *w, int32_t id, ravel_error *err) {
    mpi_rank *me = S->calloc(comm->allocator, 1, sizeof *me);
    int64_t *lists = me ? S->calloc(comm->allocator, 5 * (size_t)comm->size, sizeof *lists) : NULL;
    if (!lists) {
        S->release(comm->allocator, me, sizeof *me);
        (void)S->no_memory(err, sizeof *me, "a communicator");
        return NULL;
    }
    for (int32_t r = 0; r < comm->size; r++) lists[r] = -1;
    me->comm = comm, me->world = w, me->lists = lists, me->id = id, me->lost = -1;
    me->head = me->data = MPI_COMM_NULL;
    return me;
}

static void adopt(mpi_rank *me) {
    me->next = me->world->ranks;
    me->world->ranks = me;
    me->world->refs++;
    me->comm->state = me;
}

static int64_t mpi_serial(ravel_comm *comm) {
    return mpi_rank_of(comm)->world->next_id;
}

/* The two communicators of a rank, from the group of members. All members are in this call: they have agreed to split. */
static int make_pair(mpi_rank *parent, mpi_rank *me, const int32_t *members, int tag) {
    MPI_Group all, some;
    int code = MPI_Comm_group(parent->data, &all);
    if (code) return code;
    code = MPI_Group_incl(all, me->comm->size, members, &some);
    if (!code) {
        code = MPI_Comm_create_group(parent->data, some, tag % TAGS, &me->head);
        (void)MPI_Group_free(&some);
    }
    (void)MPI_Group_free(&all);
    if (!code) code = MPI_Comm_set_errhandler(me->head, MPI_ERRORS_RETURN);
    if (!code) code = MPI_Comm_dup(me->head, &me->data);
    return code ? code : MPI_Comm_set_errhandler(me->data, MPI_ERRORS_RETURN);
}

static ravel_status mpi_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                               int32_t colour, ravel_error *err) {
    mpi_rank *parent = mpi_rank_of(comm);
    ravel_status status = RAVEL_OK;
    (void)colour;
    pthread_mutex_lock(&ravel__mpi.lock);
    mpi_rank *me = new_rank(child, parent->world, (int32_t)serial, err);
    if (!me) status = RAVEL_E_MEMORY;
    if (me && parent->depth + 1 > DEPTH)
        status = S->error_set(err, RAVEL_E_UNSUPPORTED, "communicators can be split %d deep", DEPTH);
    if (!status) {
        int code = make_pair(parent, me, members, (int)serial);
        if (code) status = ravel__mpi_error(err, code, "MPI_Comm_create_group");
    }
    if (!status) {
        memcpy(me->ancestors, parent->ancestors, sizeof me->ancestors);
        me->ancestors[parent->depth] = parent->id;
        me->depth = parent->depth + 1;
        parent->world->next_id = (int32_t)serial + 1;
        adopt(me);
    } else if (me) {
        free_rank(me, child->size);
    }
    pthread_mutex_unlock(&ravel__mpi.lock);
    return status;
}

static const ravel__backend mpi_backend = {
    .name = "mpi",
    .request_bytes = sizeof(mpi_request),
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .cancel = mpi_cancel,
    .subset = mpi_subset,
    .serial = mpi_serial,
    .abort = mpi_abort,
    .alive = mpi_alive,
    .close = mpi_close,
};

/* ---- beginning and end ---------------------------------------------------------------------------------- */

/* Everybody meets once more; 0 where that does not happen. */
static int meet(void) {
    MPI_Request request;
    int done = 0;
    int64_t most = (int64_t)60 * 1000000000, wait = ravel__mpi.patience_ns < most ? ravel__mpi.patience_ns : most;
    int64_t deadline = S->clock_ns() + wait;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request)) return 0;
    for (int32_t round = 0; !done && S->clock_ns() < deadline; round += round < 1 << 30) {
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE)) return 0;
        pause_for(round);
    }
    return done;
}

/* At the end of the process. Where a rank is gone, MPI is left as it is: the launcher cleans up, and says so. */
static void finalise(void) {
    int done = 0;
    if (ravel__mpi.broken || MPI_Finalized(&done) || done || !meet()) return;
    while (ravel__mpi.closed) { /* all obituaries were sent before the meeting */
        mpi_world *w = ravel__mpi.closed;
        ravel__mpi.closed = w->next;
        for (int32_t round = 0; w->notices && round < 5000; round++) { /* ours that are not quite out */
            ravel__mpi_hear(w);
            pause_for(round);
        }
        ravel__mpi_deafen(w);
        free_world(w);
    }
    (void)MPI_Finalize();
}

static ravel_status initialise(ravel_error *err) {
    int flag = 0, provided = 0;
    if (MPI_Finalized(&flag) || flag)
        return S->error_set(err, RAVEL_E_STATE, "MPI has been finalised in this process; it cannot begin again");
    if (MPI_Initialized(&flag) || flag) return RAVEL_OK;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (code) return ravel__mpi_error(err, code, "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
        return S->error_set(err, RAVEL_E_UNSUPPORTED,
                            "this MPI gives thread level %d; at least MPI_THREAD_SERIALIZED is needed", provided);
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    ravel__mpi.ours = 1;
    (void)atexit(finalise);
    return RAVEL_OK;
}

static int dup_world(MPI_Comm *comm) {
    int code = MPI_Comm_dup(MPI_COMM_WORLD, comm);
    return code ? code : MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
}

static ravel_status open_world(const ravel_comm_options *options, int32_t expected, ravel_comm **comm,
                               ravel_error *err) {
    int rank = 0, size = 1, code = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (expected > 1 && size == 1)
        return S->error_set(err, RAVEL_E_UNSUPPORTED,
                            "the launcher started %d ranks, but this MPI sees only itself: launcher and MPI module are "
                            "of different kinds; set RAVEL_MPI_MODULE to the one that fits",
                            expected);
    ravel_comm *c;
    ravel_status status = S->comm_new(&mpi_backend, rank, size, options, &c, err);
    if (status) return status;
    mpi_world *w = S->calloc(NULL, 1, sizeof *w);
    mpi_rank *me = w ? new_rank(c, w, 0, err) : NULL;
    if (!me) {
        S->release(NULL, w, sizeof *w);
        S->comm_discard(c);
        return S->no_memory(err, sizeof *w, "a communicator");
    }
    w->rank = rank, w->size = size, w->next_id = 1;
    w->listen = MPI_REQUEST_NULL;
    w->obit = MPI_COMM_NULL;
    code = dup_world(&w->obit);
    if (!code) code = dup_world(&me->head);
    if (!code) code = dup_world(&me->data);
    status = code ? ravel__mpi_error(err, code, "MPI_Comm_dup") : ravel__mpi_exchange_processes(w, err);
    if (status) {
        free_rank(me, size);
        free_world(w);
        S->comm_discard(c);
        return status;
    }
    ravel__mpi_listen(w);
    adopt(me);
    *comm = c;
    return RAVEL_OK;
}

ravel_status ravel_comm_module(const ravel__services *services, const ravel_comm_options *options, int32_t expected,
                               ravel_comm **comm, ravel_error *err) {
    if (services->version != RAVEL__MODULE_VERSION || services->services_bytes != (int32_t)sizeof *services ||
        services->comm_bytes != (int32_t)sizeof(ravel_comm) ||
        services->request_bytes != (int32_t)sizeof(ravel_request))
        return services->error_set(err, RAVEL_E_UNSUPPORTED,
                                   "the MPI module and libravel are of different builds; install both again");
    pthread_mutex_lock(&ravel__mpi.lock);
    ravel__mpi.s = services;
    ravel_status status = ravel__mpi.hopeless
                              ? services->error_set(err, RAVEL_E_DEAD,
                                                    "an earlier communicator died in the middle of an operation; "
                                                    "MPI cannot be used any more in this process")
                              : initialise(err);
    if (!status) status = open_world(options, expected, comm, err);
    pthread_mutex_unlock(&ravel__mpi.lock);
    return status;
}
