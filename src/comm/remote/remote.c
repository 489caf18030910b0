/* The back end whose ranks are processes: `mpi` and `tcp`, over the wires that mpi.c and tcp.c make of them.
 *
 * Only the opening of a world waits inside the wire. Every operation is a job of messages (remote_job.c), polled until
 * it is done or its deadline has passed. Splitting makes no call into the wire at all: a child is an id, which
 * every member computes by itself from its parent's id, the number of the split and the colour, so that two threads may
 * split two communicators at once.
 *
 * State belongs to a world: the communicator that ravel_comm_mpi or ravel_comm_tcp opened, and all that were split from
 * it. Worlds of one process share nothing, except a lock around MPI calls. A world that fails does not affect another.
 *
 * After a failure TCP returns every buffer. MPI cannot cancel a send that has begun. A world with such a send is stuck:
 * its memory is kept, and no further MPI call is made for it. */
#include "comm/remote/remote.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/system/futex.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum { SPINS_MOST = 48, NAP_NS = 50000000, SHORT_NAP_NS = 500000, SHORT_LEFT_NS = 20000000, PATIENT = SPINS_MOST + 5 };

static pthread_mutex_t serial_lock = PTHREAD_MUTEX_INITIALIZER; /* of wires that are `serial` */
static remote_world *kept; /* under it: worlds that a wire may still use; not freed */

remote_world *ravel__remote_world(ravel_comm *comm) {
    return remote_rank_of(comm)->world;
}

/* ---- the wire's calls ----------------------------------------------------------------------------------- */

static void on_frame(void *user, int32_t peer, const void *data, int32_t bytes) {
    remote_world *w = user;
    remote_head h;
    if (bytes < (int32_t)sizeof h || peer < 0 || peer >= w->size) return;
    memcpy(&h, data, sizeof h);
    int64_t body = bytes - (int32_t)sizeof h;
    int carries = h.kind == FRAME_EAGER || h.kind == FRAME_FAILED;
    if (h.magic != REMOTE_MAGIC || h.kind == 0 || h.kind >= FRAME_KINDS || body != (carries ? h.bytes : 0)) return;
    w->contact[peer] = 1;
    if (h.kind >= FRAME_LEFT)
        ravel__remote_notice(w, peer, &h, (const char *)data + sizeof h);
    else
        ravel__match_frame(w, peer, &h, (const char *)data + sizeof h);
}

static void on_lost(void *user, int32_t peer, const char *why) {
    remote_world *w = user;
    if (peer >= 0 && peer < w->size) ravel__remote_peer_lost(w, peer, why);
}

void ravel__remote_poll(remote_world *w) {
    char why[480];
    why[0] = '\0';
    int code = w->stuck ? 0 : w->wire->poll(w->net, why);
    if (!code) return;
    w->broken = 1;
    for (remote_rank *r = w->ranks; r; r = r->next) ravel__remote_fail_code(r, code, "polling", why);
}

/* ---- finished operations --------------------------------------------------------------------------------- */

static ravel_status lost(remote_rank *me, ravel_request *r) {
    RAVEL_ASSERT(me->dead && me->reason[0]);
    me->comm->lost_rank = me->lost;
    ravel__remote_let_go(me, r);
    return ravel_error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
}

static ravel_status give_up(remote_rank *me, ravel_request *r) {
    char what[160], name[64], reason[400];
    me->world->broken = 1;
    double seconds = (double)me->comm->timeout_ns / 1e9;
    ravel__op_describe(&r->op, what, sizeof what);
    ravel__remote_name(me->comm, me->comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s gave up after %.3g s in %s", name, seconds, what);
    ravel__remote_fail(me, -1, reason);
    ravel__remote_let_go(me, r);
    return ravel_error_set(&r->why, RAVEL_E_TIMEOUT,
                           "not all ranks came within %.3g s; one may have ended, be stuck, or be in another call",
                           seconds);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

/* MPI that the program initialised for one thread may be called from that thread only. */
static ravel_status enter(remote_world *w, ravel_error *err) {
    if (w->one_thread && !pthread_equal(w->thread, pthread_self()))
        return ravel_error_set(
            err, RAVEL_E_STATE,
            "MPI was initialised for one thread (MPI_THREAD_SINGLE or FUNNELED), so this communicator "
            "can be used only by the thread that opened it; initialise MPI with "
            "MPI_THREAD_SERIALIZED");
    pthread_mutex_lock(w->lock);
    return RAVEL_OK;
}

static void leave(remote_world *w) {
    pthread_mutex_unlock(w->lock);
}

static ravel_status remote_start(ravel_comm *comm, ravel_request *r) {
    remote_rank *me = remote_rank_of(comm);
    ravel_status status = enter(me->world, &r->why);
    if (status) return status;
    RAVEL_ASSERT(me->world->refs > 0 && !*remote_job_of(r)); /* the request's last operation let go of its job */
    *remote_job_of(r) = NULL;
    if (me->dead) {
        comm->lost_rank = me->lost;
        status = ravel_error_set(&r->why, RAVEL_E_PEER_LOST, "%s", me->reason);
    } else {
        *remote_job_of(r) = ravel__remote_begin(me, r);
        if (!*remote_job_of(r)) status = ravel__no_memory(&r->why, sizeof(remote_job), "an operation");
    }
    leave(me->world);
    return status;
}

/* After a failure, data of operations that the failing rank had completed still arrives, and started transfers (which
 * MPI cannot cancel) may complete: wait up to `grace_ns`. A receive can be cancelled. */
static int is_worth_waiting(remote_rank *me, remote_job *j, int64_t grace_ns) {
    RAVEL_ASSERT(j->phase != OVER && j->request);
    int64_t now = ravel__clock_ns();
    int moves = 0;
    if (j->message && j->request->op.kind == RAVEL__RECV) return 0;
    for (int32_t i = 0; i < j->used; i++) moves |= j->parcels[i].state == PARCEL_MOVES;
    if (me->world->stuck || (!moves && !(ravel__remote_is_alive(me, j)))) return 0;
    for (int32_t i = 0; i < j->used; i++)
        if (ravel__match_is_hopeless(&j->parcels[i])) return 0;
    if (!j->grace_ns) j->grace_ns = now + grace_ns;
    return now < j->grace_ns;
}

/* Polls once. *done: the operation has completed or failed. */
static ravel_status look(remote_rank *me, ravel_request *r, int polls, int patient, int32_t *done) {
    remote_job *j = *remote_job_of(r);
    remote_world *w = me->world;
    RAVEL_ASSERT(j && j->request == r && me->comm == r->comm);
    if (polls && (j->phase != OVER || !j->message)) ravel__remote_poll(w); /* a message may complete when it starts */
    if (!w->stuck) ravel__remote_progress(me);
    if (j->phase != OVER && !me->dead && patient) {
        ravel__remote_look_at_processes(w);
        ravel__remote_ask(me, j);
    }
    if (j->phase != OVER && !me->dead) ravel__remote_look_for_lost(me, j);
    if (j->phase != OVER && me->dead && is_worth_waiting(me, j, 1000000000)) return RAVEL_OK;
    *done = 1;
    if (j->phase == OVER && !(me->dead && !j->message && j->serial >= me->dead_from)) {
        ravel_status status = (ravel_status)j->status;
        ravel__remote_let_go(me, r);
        return status;
    }
    if (me->dead) return lost(me, r);
    *done = 0;
    return RAVEL_OK;
}

static ravel_status remote_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    remote_rank *me = remote_rank_of(comm);
    ravel_status status = enter(me->world, &r->why);
    if (status) return status;
    status = look(me, r, 1, 1, done);
    leave(me->world);
    return status;
}

/* Spins briefly, then yields: with more ranks than cores the awaited rank needs this core. Returns the number of the
 * next round. */
static int32_t pause_outside(remote_world *w, int32_t round, int32_t aimed, int64_t left_ns) {
    RAVEL_ASSERT(round >= 0 && left_ns >= 0);
    if (!aimed && round < __atomic_load_n(&w->spins, __ATOMIC_RELAXED)) { /* aimed: the link is lent */
        ravel__cpu_relax();
        return round + 1;
    }
    int64_t nap = __atomic_add_fetch(&w->sleepers, 1, __ATOMIC_RELAXED) > 1 ? SHORT_NAP_NS : NAP_NS;
    w->wire->sleep(w->net, aimed, nap < left_ns ? nap : left_ns);
    (void)__atomic_sub_fetch(&w->sleepers, 1, __ATOMIC_RELAXED);
    return round <= SPINS_MOST ? SPINS_MOST + 1 : round < 1 << 30 ? round + 1 : round;
}

/* Spinning helps if answers come during it. It stops after MISSES waits that had to sleep anyway, and is tried again in
 * one of RETRY waits. A message does not end MPI's sleep, so MPI always spins. The caller holds the lock. */
static void learn_to_spin(remote_world *w, int slept) {
    RAVEL_ASSERT(w->misses >= 0 && (w->spins == 0 || w->spins == SPINS_MOST));
    enum { MISSES = 4, RETRY = 256 };
    int spins = w->spins > 0, tries = !spins && ++w->unspun % RETRY == 0;
    if (w->wire->serial) return;
    if (spins) w->misses = slept ? w->misses + 1 : 0;
    if (tries) w->misses = MISSES - 1;
    if (tries || w->misses >= MISSES) __atomic_store_n(&w->spins, tries ? SPINS_MOST : 0, __ATOMIC_RELAXED);
}

/* The world rank that this job waits for, where it is the only job of its world and waits for one rank; else -1. */
static int32_t only_peer(const remote_rank *me, const remote_job *j) {
    int32_t peer = -1;
    for (const remote_rank *r = me->world->ranks; r; r = r->next)
        if (r->jobs && (r->jobs != j || j->next)) return -1;
    for (int32_t i = 0; i < j->used; i++) {
        const remote_parcel *p = &j->parcels[i];
        if (p->state == PARCEL_DONE || p->state == PARCEL_IDLE) continue;
        if (peer >= 0 && p->peer != peer) return -1;
        peer = p->peer;
    }
    return peer;
}

/* The first sleep of a wait may be for one peer alone, which is cheaper. */
static int32_t aim(const remote_rank *me, const remote_job *j, int32_t round, int64_t left_ns) {
    const remote_world *w = me->world;
    int sleeps = round >= __atomic_load_n(&w->spins, __ATOMIC_RELAXED) && round <= SPINS_MOST;
    if (!sleeps || !w->wire->aim || me->dead || left_ns < SHORT_LEFT_NS) return 0;
    int32_t peer = only_peer(me, j);
    RAVEL_ASSERT(peer < w->size);
    return peer >= 0 && peer != w->rank && w->wire->aim(w->net, peer);
}

/* If answers take long and an arriving message ends the wire's sleep, a wait sleeps first. */
static int polls_first(const remote_world *w) {
    return !w->wire->aim || __atomic_load_n(&w->spins, __ATOMIC_RELAXED) > 0;
}

static ravel_status remote_wait(ravel_comm *comm, ravel_request *r) {
    remote_rank *me = remote_rank_of(comm);
    for (int32_t round = 0;;) {
        int32_t done = 0, aimed = 0;
        ravel_status status = enter(me->world, &r->why);
        if (status) return status;
        status = look(me, r, round > 0 || polls_first(me->world), round > PATIENT, &done);
        int64_t left = done ? 0 : r->deadline_ns - ravel__clock_ns();
        if (!done && left < 0) {
            status = give_up(me, r);
            done = 1;
        }
        if (!done) aimed = aim(me, *remote_job_of(r), round, left);
        if (done && round > 0) learn_to_spin(me->world, round > SPINS_MOST);
        leave(me->world);
        if (done) return status;
        round = pause_outside(me->world, round, aimed, left);
    }
}

static void remote_cancel(ravel_comm *comm, ravel_request *r) {
    remote_rank *me = remote_rank_of(comm);
    pthread_mutex_lock(me->world->lock);
    remote_job *j = *remote_job_of(r);
    ravel__remote_poll(me->world);
    if (!me->world->stuck) ravel__remote_progress(me);
    for (int32_t round = 0; j && j->phase != OVER && me->world->wire->serial && is_worth_waiting(me, j, 50000000);
         round++) {
        ravel__remote_poll(me->world);
        ravel__remote_progress(me);
        ravel__cpu_relax();
    }
    if (j) ravel__remote_let_go(me, r);
    leave(me->world);
}

static void remote_abort(ravel_comm *comm, const char *why) {
    remote_rank *me = remote_rank_of(comm);
    char name[64], reason[400];
    ravel__remote_name(comm, comm->rank, name, sizeof name);
    (void)snprintf(reason, sizeof reason, "%s raised an error: %.300s", name, why);
    pthread_mutex_lock(me->world->lock);
    ravel__remote_fail(me, comm->rank, reason);
    ravel__remote_poll(me->world);
    leave(me->world);
}

static ravel_status remote_alive(ravel_comm *comm, ravel_error *err) {
    remote_rank *me = remote_rank_of(comm);
    ravel_status status = enter(me->world, err);
    if (status) return status;
    ravel__remote_poll(me->world);
    if (me->dead) comm->lost_rank = me->lost, status = ravel_error_set(err, RAVEL_E_PEER_LOST, "%s", me->reason);
    leave(me->world);
    return status;
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

/* The lock is not held: no other thread has the world any more. */
static void free_world(remote_world *w) {
    RAVEL_ASSERT(w->refs == 0 && !w->ranks && (w->stuck || !w->orphans));
    size_t n = (size_t)w->size;
    if (w->stuck) { /* the wire may still use it */
        pthread_mutex_lock(&serial_lock);
        w->kept = kept;
        kept = w;
        pthread_mutex_unlock(&serial_lock);
        return;
    }
    pthread_mutex_lock(w->lock);
    if (w->net) w->wire->close(w->net, w->broken);
    pthread_mutex_unlock(w->lock);
    ravel__match_free(w);
    ravel__release(NULL, w->processes, n * sizeof *w->processes);
    ravel__release(NULL, w->neighbours, n * sizeof *w->neighbours);
    pthread_mutex_destroy(&w->own_lock);
    ravel__release(NULL, w, sizeof *w);
}

static void free_rank(remote_rank *me) {
    RAVEL_ASSERT(!me->jobs && !me->next_port);
    const ravel_allocator *a = me->comm->allocator;
    while (me->idle) {
        remote_job *j = me->idle;
        me->idle = j->next;
        ravel__remote_free_job(j, me->comm->size);
    }
    ravel__release(a, me->left, (size_t)me->comm->size);
    ravel__release(a, me, sizeof *me);
}

static void remote_close(ravel_comm *comm) {
    remote_rank *me = remote_rank_of(comm);
    remote_world *w = me->world;
    pthread_mutex_lock(w->lock);
    int last = --w->refs == 0;
    RAVEL_ASSERT(w->refs >= 0);
    if (!me->dead && !w->stuck) ravel__remote_leave(me);
    remote_rank **link = &w->ranks;
    while (*link != me) link = &(*link)->next;
    RAVEL_ASSERT(*link == me);
    *link = me->next;
    ravel__match_close(me);
    RAVEL_ASSERT(!me->jobs);
    free_rank(me);
    pthread_mutex_unlock(w->lock);
    if (last) free_world(w);
}

static remote_rank *new_rank(ravel_comm *comm, remote_world *w, uint64_t id, ravel_error *err) {
    RAVEL_ASSERT(id & 1);
    remote_rank *me = ravel__calloc(comm->allocator, 1, sizeof *me);
    uint8_t *left = me ? ravel__calloc(comm->allocator, (size_t)comm->size, 1) : NULL;
    if (!left) {
        ravel__release(comm->allocator, me, sizeof *me);
        (void)ravel__no_memory(err, sizeof *me, "a communicator");
        return NULL;
    }
    me->comm = comm, me->world = w, me->id = id, me->lost = -1, me->left = left;
    return me;
}

static void adopt(remote_rank *me) {
    RAVEL_ASSERT(me->world->refs >= 0 && !me->comm->state);
    me->next = me->world->ranks;
    me->world->ranks = me;
    me->world->refs++;
    me->comm->state = me;
    ravel__match_adopt(me);
}

/* The same on all members, and of no other communicator: 64 mixed bits of the whole path from the world. */
static uint64_t child_id(uint64_t parent, int64_t serial, int32_t colour) {
    return ravel__mix64(ravel__mix64(parent ^ 0x5a17u) + ravel__mix64((uint64_t)serial << 32 ^ (uint32_t)colour)) | 1;
}

static ravel_status remote_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                  int32_t colour, ravel_error *err) {
    remote_rank *parent = remote_rank_of(comm);
    (void)members;
    if (parent->depth + 1 > REMOTE_DEPTH)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "communicators can be split %d deep", REMOTE_DEPTH);
    remote_rank *me = new_rank(child, parent->world, child_id(parent->id, serial, colour), err);
    if (!me) return RAVEL_E_MEMORY;
    memcpy(me->ancestors, parent->ancestors, sizeof me->ancestors);
    RAVEL_ASSERT(parent->depth >= 0 && parent->depth < REMOTE_DEPTH);
    me->ancestors[parent->depth] = parent->id;
    me->depth = parent->depth + 1;
    RAVEL_ASSERT(me->id != parent->id);
    pthread_mutex_lock(parent->world->lock);
    adopt(me);
    leave(parent->world);
    return RAVEL_OK;
}

/* clang-format off */
#define TABLE(wire_name)                                                                                          \
    {                                                                                                             \
        .name = (wire_name), .request_bytes = sizeof(remote_request), .exact_bytes = 4096, .start = remote_start, \
        .test = remote_test, .wait = remote_wait, .cancel = remote_cancel, .subset = remote_subset,               \
        .abort = remote_abort, .alive = remote_alive, .close = remote_close                                       \
    }
/* clang-format on */
static const ravel__backend backends[] = {TABLE("mpi"), TABLE("tcp"), TABLE("wire")};

static const ravel__backend *backend_of(const ravel__wire *wire) {
    size_t i = 0;
    while (i + 1 < sizeof backends / sizeof *backends && strcmp(backends[i].name, wire->name) != 0) i++;
    return &backends[i];
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static ravel_status open_net(remote_world *w, const ravel_comm_options *o, int32_t expected, ravel_error *err) {
    ravel__wire_open how = {.options = o, .events = {w, on_frame, on_lost}, .chunk_bytes = o->chunk_bytes};
    how.deadline_ns = ravel__clock_ns() + (int64_t)(o->timeout * 1e9);
    pthread_mutex_lock(w->lock);
    int code = w->wire->open(&how, &w->net, &w->rank, &w->size);
    pthread_mutex_unlock(w->lock);
    w->one_thread = how.one_thread;
    w->thread = pthread_self();
    if (code) return ravel__remote_error(err, w, code, "the first meeting of all ranks", how.why);
    if (expected > 1 && w->size == 1)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the launcher started %d ranks, but this MPI sees only itself: launcher and MPI module "
                               "are of different kinds; set RAVEL_MPI_MODULE to the one that fits",
                               expected);
    RAVEL_ASSERT(w->net && w->rank >= 0 && w->rank < w->size);
    return ravel__match_init(w) ? RAVEL_OK : ravel__no_memory(err, 6 * (size_t)w->size, "a communicator");
}

/* The communicator of the whole world, which the ranks first use to tell one another where they run. */
static ravel_status open_comm(remote_world *w, const ravel_comm_options *o, int meets, ravel_comm **comm,
                              ravel_error *err) {
    ravel_comm *c = NULL;
    ravel_status status = ravel__comm_new(backend_of(w->wire), w->rank, w->size, o, &c, err);
    if (status) return status;
    remote_rank *me = new_rank(c, w, 1, err);
    if (!me) {
        ravel__comm_discard(c);
        return RAVEL_E_MEMORY;
    }
    w->refs = 1; /* the opener's, so that the world outlives a failure here */
    pthread_mutex_lock(w->lock);
    adopt(me);
    leave(w);
    if (meets) status = ravel__remote_exchange_processes(me, err);
    pthread_mutex_lock(w->lock);
    w->refs--;
    leave(w);
    if (status) {
        w->refs++;
        ravel_comm_free(c);
        w->refs--;
    } else {
        *comm = c;
    }
    return status;
}

ravel_status ravel__remote_open(const ravel__wire *wire, const ravel_comm_options *options, int32_t expected,
                                ravel_comm **comm, ravel_error *err) {
    remote_world *w = ravel__calloc(NULL, 1, sizeof *w);
    if (!w) return ravel__no_memory(err, sizeof *w, "a communicator");
    w->wire = wire;
    w->size = 1;
    w->spins = SPINS_MOST;
    pthread_mutex_init(&w->own_lock, NULL);
    w->lock = wire->serial ? &serial_lock : &w->own_lock;
    ravel_status status = open_net(w, options, expected, err);
    if (!status) status = open_comm(w, options, expected >= 0, comm, err);
    if (status) free_world(w);
    return status;
}
