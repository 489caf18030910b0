/* The `threads` back end: groups and their tree, failures, the table, ravel_threads_run. See threads.h for the
 * design. */
#include "comm/threads/threads.h"

#include "base/assert.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- names ---------------------------------------------------------------------------------------------- */

void ravel__threads_name(const threads_group *group, int32_t rank, char *text, size_t bytes) {
    RAVEL_ASSERT(rank >= 0 && rank < group->size);
    if (group->ranks)
        (void)snprintf(text, bytes, "rank %d (world rank %d)", rank, group->ranks[rank]);
    else
        (void)snprintf(text, bytes, "rank %d", rank);
}

static int32_t world_rank(const threads_group *g, int32_t rank) {
    RAVEL_ASSERT(rank >= -1 && rank < g->size);
    return rank >= 0 && g->ranks ? g->ranks[rank] : rank;
}

static int32_t rank_in(const threads_group *g, int32_t world) {
    if (!g->ranks) return world;
    for (int32_t i = 0; i < g->size; i++)
        if (g->ranks[i] == world) return i;
    return -1;
}

/* ---- groups --------------------------------------------------------------------------------------------- */

/* One block holds a group and its arrays. The layout is walked twice: to measure (block NULL), and to point. */
static size_t lay_out(threads_group *g, char *block, int32_t size) {
    size_t n = (size_t)size, at = ravel__round_up(sizeof(threads_group), 64);
#define PIECE(pointer, count, type)                            \
    do {                                                       \
        if (g) (pointer) = (type *)(void *)(block + at);       \
        at = ravel__round_up(at + (count) * sizeof(type), 64); \
    } while (0)
    PIECE(g->bells, n, threads_bell);
    PIECE(g->boxes, n, threads_box);
    PIECE(g->slots, SLOTS, threads_slot);
    for (size_t i = 0; i < SLOTS; i++) {
        PIECE(g->slots[i].posted, n, _Atomic(ravel_request *));
        PIECE(g->slots[i].claims, n, _Atomic uint64_t);
        PIECE(g->slots[i].sources, n, const char *);
    }
    PIECE(g->ranks, n, int32_t);
#undef PIECE
    return at + 64; /* room to align the whole */
}

static int32_t spins_for(int32_t size) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return size <= cores ? 500 : 0; /* with more ranks than cores, the awaited rank needs this core */
}

/* Under the world's lock, or before another thread knows the world. */
static threads_group *new_group(threads_world *world, int32_t size) {
    size_t bytes = lay_out(NULL, NULL, size);
    char *block = ravel__calloc(world->allocator, 1, bytes);
    if (!block) return NULL;
    char *aligned = block + (64 - (uintptr_t)block % 64) % 64;
    threads_group *g = (threads_group *)(void *)aligned;
    (void)lay_out(g, aligned, size);
    RAVEL_ASSERT(size > 0 && (uintptr_t)g % 64 == 0 && (char *)(g->ranks + size) <= block + bytes);
    g->world = world;
    g->size = size;
    g->expected = size;
    g->block = block;
    g->bytes = bytes;
    g->lost = -1;
    g->spins = spins_for(size);
    for (int32_t i = 0; i < size; i++) {
        pthread_mutex_init(&g->boxes[i].lock, NULL);
        g->boxes[i].sends_end = &g->boxes[i].sends;
        g->boxes[i].recvs_end = &g->boxes[i].recvs;
    }
    for (uint64_t i = 0; i < SLOTS; i++) atomic_store(&g->slots[i].turn, i * 4 + TURN_OPEN);
    world->groups++;
    return g;
}

static void hang_under(threads_group *parent, threads_group *child) {
    child->parent = parent;
    child->sibling = parent ? parent->children : NULL;
    if (parent) parent->children = child;
}

/* Under the world's lock. Children go to the grandparent, whose failure is still theirs. */
static void free_group(threads_group *g) {
    RAVEL_ASSERT(g->handles == 0 && g->world->groups > 0);
    threads_world *world = g->world;
    while (g->children) {
        threads_group *child = g->children;
        g->children = child->sibling;
        hang_under(g->parent, child);
    }
    if (g->parent) {
        threads_group **link = &g->parent->children;
        while (*link != g) link = &(*link)->sibling;
        *link = g->sibling;
    }
    for (int32_t i = 0; i < g->size; i++)
        RAVEL_ASSERT(!g->boxes[i].sends && !g->boxes[i].recvs); /* no message is left */
    for (int32_t i = 0; i < g->size; i++) pthread_mutex_destroy(&g->boxes[i].lock);
    world->groups--;
    ravel__release(world->allocator, g->block, g->bytes);
}

static threads_world *new_world(const ravel_allocator *allocator) {
    threads_world *world = ravel__calloc(allocator, 1, sizeof *world);
    if (!world) return NULL;
    world->allocator = allocator;
    pthread_mutex_init(&world->lock, NULL);
    return world;
}

static void free_world(threads_world *world) {
    RAVEL_ASSERT(world->groups == 0);
    pthread_mutex_destroy(&world->lock);
    ravel__release(world->allocator, world, sizeof *world);
}

/* ---- failures -------------------------------------------------------------------------------------------- */

static void die(threads_group *g, int32_t lost, const char *prefix, const char *reason) {
    if (atomic_load(&g->dead)) return;
    RAVEL_ASSERT(lost >= -1 && lost < g->size);
    g->lost = lost;
    (void)snprintf(g->reason, sizeof g->reason, "%s%s", prefix, reason);
    atomic_store(&g->dead, 1);
    ravel__threads_fail_slots(g);
    ravel__threads_ring_all(g);
}

static void die_below(threads_group *g, int32_t lost_world, const char *reason) {
    for (threads_group *child = g->children; child; child = child->sibling) {
        die(child, rank_in(child, lost_world), "the communicator that this one was split from failed: ", reason);
        die_below(child, lost_world, reason);
    }
}

void ravel__threads_kill(threads_group *group, int32_t lost, const char *format, ...) {
    char reason[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    pthread_mutex_lock(&group->world->lock);
    if (!atomic_load(&group->dead)) {
        die(group, lost, "", reason);
        die_below(group, world_rank(group, lost), reason);
    }
    pthread_mutex_unlock(&group->world->lock);
}

ravel_status ravel__threads_lost(ravel_comm *comm, ravel_error *why) {
    threads_group *g = threads_of(comm)->group;
    while (!atomic_load(&g->dead)) (void)sched_yield(); /* the rank that failed a slot is about to say why */
    comm->lost_rank = g->lost;
    return ravel_error_set(why, RAVEL_E_PEER_LOST, "%s", g->reason);
}

int32_t ravel__threads_leaver(threads_group *g) {
    for (int32_t i = 0; i < g->size; i++)
        if (atomic_load(&g->bells[i].left)) return i;
    return -1;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static int is_message(const ravel_request *r) {
    return r->op.kind == RAVEL__SEND || r->op.kind == RAVEL__RECV;
}

static ravel_status threads_start(ravel_comm *comm, ravel_request *r) {
    return is_message(r) ? ravel__threads_post(comm, r) : ravel__threads_join(comm, r);
}

static ravel_status threads_test(ravel_comm *comm, ravel_request *r, int32_t *done) {
    return is_message(r) ? ravel__threads_look_message(comm, r, done) : ravel__threads_look(comm, r, done);
}

static ravel_status threads_wait(ravel_comm *comm, ravel_request *r) {
    return is_message(r) ? ravel__threads_await_message(comm, r) : ravel__threads_await(comm, r);
}

static void threads_cancel(ravel_comm *comm, ravel_request *r) {
    if (is_message(r))
        ravel__threads_unpost(comm, r);
    else
        ravel__threads_withdraw(comm, r);
}

static ravel_status attach(ravel_comm *comm, threads_group *g, ravel_error *err) {
    RAVEL_ASSERT(!comm->state && comm->size == g->size && g->expected > 0 && g->handles + g->expected <= g->size);
    threads_rank *mine = ravel__calloc(comm->allocator, 1, sizeof *mine);
    if (!mine) return ravel__no_memory(err, sizeof *mine, "a communicator");
    mine->group = g;
    comm->state = mine;
    g->handles++;
    g->expected--;
    return RAVEL_OK;
}

/* The child that another member has made already, or a new one. */
static threads_group *find_child(threads_group *parent, const ravel_comm *child, int64_t serial, int32_t colour) {
    for (threads_group *g = parent->children; g; g = g->sibling)
        if (g->serial == serial && g->colour == colour && g->expected > 0) return g;
    threads_group *g = new_group(parent->world, child->size);
    if (!g) return NULL;
    g->serial = serial;
    g->colour = colour;
    memcpy(g->ranks, child->world_ranks, (size_t)child->size * sizeof *g->ranks);
    hang_under(parent, g);
    if (atomic_load(&parent->dead)) die(g, rank_in(g, world_rank(parent, parent->lost)), "", parent->reason);
    return g;
}

static ravel_status threads_subset(ravel_comm *comm, ravel_comm *child, const int32_t *members, int64_t serial,
                                   int32_t colour, ravel_error *err) {
    threads_group *parent = threads_of(comm)->group;
    (void)members;
    pthread_mutex_lock(&parent->world->lock);
    threads_group *g = find_child(parent, child, serial, colour);
    ravel_status status = g ? attach(child, g, err) : ravel__no_memory(err, sizeof *g, "a communicator");
    if (g && g->handles == 0) free_group(g);
    pthread_mutex_unlock(&parent->world->lock);
    return status;
}

static void threads_abort(ravel_comm *comm, const char *why) {
    threads_group *g = threads_of(comm)->group;
    char name[48];
    ravel__threads_name(g, comm->rank, name, sizeof name);
    ravel__threads_kill(g, comm->rank, "%s raised an error: %s", name, why);
}

static ravel_status threads_alive(ravel_comm *comm, ravel_error *err) {
    return atomic_load(&threads_of(comm)->group->dead) ? ravel__threads_lost(comm, err) : RAVEL_OK;
}

/* Sets the mark before it looks for waiting ranks; ranks that come later check the mark. */
static void threads_close(ravel_comm *comm) {
    threads_rank *mine = threads_of(comm);
    threads_group *g = mine->group;
    threads_world *world = g->world;
    RAVEL_ASSERT(!atomic_load(&g->bells[comm->rank].left)); /* a handle is freed once */
    char name[48];
    atomic_store(&g->bells[comm->rank].left, 1);
    atomic_fetch_add(&g->leavers, 1);
    if (ravel__threads_is_awaited(g) || ravel__threads_has_partner(g, comm->rank)) {
        ravel__threads_name(g, comm->rank, name, sizeof name);
        ravel__threads_kill(g, comm->rank, "%s left: it freed its communicator", name);
    }
    pthread_mutex_lock(&world->lock);
    RAVEL_ASSERT(g->handles > 0);
    if (--g->handles == 0) free_group(g);
    int last = world->groups == 0;
    pthread_mutex_unlock(&world->lock);
    if (last) free_world(world);
    ravel__release(comm->allocator, mine, sizeof *mine);
}

static const ravel__backend threads_backend = {
    .name = "threads",
    .request_bytes = sizeof(threads_request),
    .reduces = RAVEL__ALL_REDUCTIONS,
    .start = threads_start,
    .test = threads_test,
    .wait = threads_wait,
    .cancel = threads_cancel,
    .subset = threads_subset,
    .abort = threads_abort,
    .alive = threads_alive,
    .close = threads_close,
    .give_back = ravel__threads_give_back,
};

/* ---- making them ---------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 4096 };

static ravel_status make_handles(threads_group *g, int32_t count, const ravel_comm_options *options, ravel_comm **comms,
                                 ravel_error *err) {
    for (int32_t i = 0; i < count; i++) {
        ravel_status status = ravel__comm_new(&threads_backend, i, count, options, &comms[i], err);
        if (status) return status;
        status = attach(comms[i], g, err);
        if (status) {
            ravel__comm_discard(comms[i]);
            comms[i] = NULL;
            return status;
        }
    }
    return RAVEL_OK;
}

/* comms [count] is NULLs, and on failure has what was made so far. */
static ravel_status make_world(int32_t count, const ravel_comm_options *options, ravel_comm **comms,
                               const ravel_allocator *allocator, ravel_error *err) {
    threads_world *world = new_world(allocator);
    if (!world) return ravel__no_memory(err, sizeof *world, "a communicator");
    threads_group *g = new_group(world, count);
    if (!g) {
        free_world(world);
        return ravel__no_memory(err, lay_out(NULL, NULL, count), "a communicator");
    }
    g->ranks = NULL;
    ravel_status status = make_handles(g, count, options, comms, err);
    if (g->handles == 0) {
        free_group(g);
        free_world(world);
    }
    return status;
}

ravel_status ravel_comm_threads(int32_t count, const ravel_comm_options *options, ravel_comm **comms,
                                ravel_error *err) {
    ravel_comm_options o;
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (status) return status;
    if (count < 1 || count > MOST_THREADS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%d ranks cannot be made; it must be from 1 to %d", count,
                               MOST_THREADS);
    size_t bytes = (size_t)count * sizeof(ravel_comm *);
    ravel_comm **made = ravel__calloc(o.allocator, 1, bytes);
    if (!made) return ravel__no_memory(err, bytes, "communicators");
    status = make_world(count, &o, made, o.allocator, err);
    for (int32_t i = 0; i < count && status; i++) ravel_comm_free(made[i]);
    if (!status) memcpy(comms, made, bytes);
    ravel__release(o.allocator, made, bytes);
    return status;
}

/* ---- one thread per rank ------------------------------------------------------------------------------------ */

typedef struct run {
    ravel_rank_fn work;
    void *user;
    _Atomic int32_t failures; /* number of failures so far, to know the first */
} run;

typedef struct run_rank {
    run *shared;
    ravel_comm *comm;
    pthread_t thread;
    int32_t started;
    ravel_status status;
    int32_t order; /* of its failure */
    ravel_error err;
} run_rank;

/* Also runs if `work` ends its thread (pthread_exit): the rank then leaves without an error. */
static void end_rank(void *argument) {
    run_rank *me = argument;
    if (me->status) {
        me->order = atomic_fetch_add(&me->shared->failures, 1);
        ravel_comm_abort(me->comm, &me->err);
    }
    ravel_comm_free(me->comm);
}

static void *run_one(void *argument) {
    run_rank *me = argument;
    me->status = RAVEL_E_PEER_LOST;
    ravel_error_set(&me->err, RAVEL_E_PEER_LOST, "the thread ended before its work returned");
    pthread_cleanup_push(end_rank, me);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = me->shared->work(me->comm, me->shared->user, &err);
    me->status = status;
    me->err = err;
    pthread_cleanup_pop(1);
    return NULL;
}

/* A rank's own failure takes precedence over one that follows from another rank's; among equals, the first. */
static int is_worse(const run_rank *a, const run_rank *b) {
    int a_follows = a->status == RAVEL_E_PEER_LOST || a->status == RAVEL_E_DEAD;
    int b_follows = b->status == RAVEL_E_PEER_LOST || b->status == RAVEL_E_DEAD;
    if (a_follows != b_follows) return b_follows;
    return a->order < b->order;
}

static ravel_status report(const run_rank *ranks, int32_t count, ravel_error *err) {
    int32_t worst = -1;
    for (int32_t i = 0; i < count; i++)
        if (ranks[i].status && (worst < 0 || is_worse(&ranks[i], &ranks[worst]))) worst = i;
    if (worst < 0) return RAVEL_OK;
    const run_rank *r = &ranks[worst];
    RAVEL_ASSERT(worst < count && r->status != RAVEL_OK);
    const char *text = r->err.message[0] ? r->err.message : ravel_status_text(r->status);
    if (count == 1 || strncmp(text, "rank ", 5) == 0) return ravel_error_set(err, r->status, "%s", text);
    return ravel_error_set(err, r->status, "rank %d: %s", worst, text);
}

static void start_one(run_rank *r) {
    int code = pthread_create(&r->thread, NULL, run_one, r);
    r->started = code == 0;
    if (r->started) return;
    r->status = ravel_error_set(&r->err, RAVEL_E_MEMORY, "no thread could be started: %s", strerror(code));
    end_rank(r);
}

ravel_status ravel_threads_run(int32_t count, const ravel_comm_options *options, ravel_rank_fn work, void *user,
                               ravel_error *err) {
    ravel_comm_options o;
    run shared = {work, user, 0};
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (status) return status;
    size_t many = count > 0 ? (size_t)count : 1, bytes = many * (sizeof(run_rank) + sizeof(ravel_comm *));
    run_rank *ranks = ravel__calloc(o.allocator, 1, bytes);
    if (!ranks) return ravel__no_memory(err, bytes, "ranks");
    ravel_comm **comms = (ravel_comm **)(void *)(ranks + many);
    status = ravel_comm_threads(count, &o, comms, err);
    if (!status) {
        for (int32_t i = 0; i < count; i++) {
            ranks[i].shared = &shared;
            ranks[i].comm = comms[i];
            start_one(&ranks[i]);
        }
        for (int32_t i = 0; i < count; i++)
            if (ranks[i].started) pthread_join(ranks[i].thread, NULL);
        status = report(ranks, count, err);
    }
    ravel__release(o.allocator, ranks, bytes);
    return status;
}
