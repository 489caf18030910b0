/* Who is gone: leave messages between ranks, and a look at the processes of this machine. */
#include "comm/remote.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum { LEFT = 1, FAILED };

/* ---- names ---------------------------------------------------------------------------------------------- */

void ravel__remote_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes) {
    if (comm->world_ranks)
        (void)snprintf(text, bytes, "rank %d (world rank %d)", rank, comm->world_ranks[rank]);
    else
        (void)snprintf(text, bytes, "rank %d", rank);
}

static int32_t rank_in(const ravel_comm *comm, int32_t world) {
    for (int32_t r = 0; r < comm->size; r++)
        if (remote_world_rank(comm, r) == world) return r;
    return -1;
}

ravel_status ravel__remote_error(ravel_error *err, int code, const char *what) {
    char text[320];
    if (code == RAVEL__WIRE_MEMORY) return ravel__no_memory(err, 0, "a communicator");
    ravel__remote.wire->describe(code, text, sizeof text);
    return ravel_error_set(err, RAVEL_E_PEER_LOST, "%s failed: %s", what, text);
}

/* ---- death ---------------------------------------------------------------------------------------------- */

static void die(remote_rank *me, int32_t lost, int64_t serial, const char *prefix, const char *reason) {
    if (me->dead) return;
    me->dead = 1;
    me->dead_from = serial;
    me->lost = lost;
    (void)snprintf(me->reason, sizeof me->reason, "%s%.400s", prefix, reason);
}

static int is_below(const remote_rank *r, int32_t id) {
    for (int32_t i = 0; i < r->depth; i++)
        if (r->ancestors[i] == id) return 1;
    return 0;
}

/* The communicator `id` and all that was split from it. */
static void kill_family(remote_world *w, int32_t id, int32_t world_rank, int64_t serial, const char *reason) {
    for (remote_rank *r = w->ranks; r; r = r->next) {
        if (r->id == id) die(r, rank_in(r->comm, world_rank), serial, "", reason);
        if (is_below(r, id))
            die(r, rank_in(r->comm, world_rank), 0, "the communicator that this one was split from died: ", reason);
    }
}

void ravel__remote_kill_all(remote_world *w, const char *reason) {
    for (remote_rank *r = w->ranks; r; r = r->next)
        die(r, -1, 0, "another communicator of this process died: ", reason);
}

/* ---- leave messages ----------------------------------------------------------------------------------------- */

static void free_notice(notice *n) {
    ravel__remote.wire->discard(&n->bundle);
    ravel__release(NULL, n, sizeof *n);
}

/* To every other member. Best effort: what cannot be allocated or sent is found by deadlines. */
static void tell(remote_rank *me, const leave_message *body) {
    remote_world *w = me->world;
    ravel_comm *comm = me->comm;
    for (int32_t r = 0; r < comm->size && !ravel__remote.hopeless; r++) {
        if (r == comm->rank) continue;
        notice *n = ravel__calloc(NULL, 1, sizeof *n);
        if (!n) return;
        n->body = *body;
        n->body.id = me->id;
        n->body.rank = w->rank;
        n->body.sent = me->sent[r];
        n->body.received = me->received[r];
        if (ravel__remote.wire->send(w->leave_channel, &n->bundle, &n->body, sizeof n->body, remote_world_rank(comm, r),
                                     0)) {
            free_notice(n);
            return;
        }
        n->next = w->notices;
        w->notices = n;
    }
}

void ravel__remote_leave(remote_rank *me) {
    leave_message body = {.kind = LEFT, .serial = me->serial};
    tell(me, &body);
}

void ravel__remote_fail(remote_rank *me, int32_t lost, const char *reason) {
    leave_message body = {.kind = FAILED};
    if (me->dead) return;
    (void)snprintf(body.text, sizeof body.text, "%s", reason);
    body.broken = ravel__remote.broken;
    body.lost = lost < 0 ? -1 : remote_world_rank(me->comm, lost);
    body.serial = me->first ? me->first->serial : me->serial;
    kill_family(me->world, me->id, body.lost, body.serial, reason);
    tell(me, &body);
}

void ravel__remote_fail_code(remote_rank *me, int code, const char *what) {
    char text[320], reason[400];
    if (code == RAVEL__WIRE_MEMORY) {
        ravel__remote_fail(me, me->comm->rank, "out of memory");
        return;
    }
    ravel__remote.wire->describe(code, text, sizeof text);
    (void)snprintf(reason, sizeof reason, "MPI failed in %s: %s", what, text);
    ravel__remote.broken = 1;
    ravel__remote_fail(me, -1, reason);
}

/* ---- left --------------------------------------------------------------------------------------------- */

static size_t left_bytes(int32_t size) {
    return sizeof(left_comm) + (size_t)size * (2 * sizeof(int64_t) + sizeof(int32_t));
}

/* Rank r of the left_comm has left too, after so many operations and messages. */
static void mark_left(left_comm *g, int32_t r, int64_t serial, int64_t sent, int64_t received) {
    g->missing--;
    g->spoiled |= serial != g->serial || sent != g->received[r] || received != g->sent[r];
}

void ravel__remote_abandon(ravel__channel *head, ravel__channel *data) {
    ravel__remote.wire->abandon(head);
    ravel__remote.wire->abandon(data);
}

/* Takes out the left_comm that *link points at, if nobody is missing. */
static int close_left(left_comm **link) {
    left_comm *g = *link;
    if (g->missing > 0) return 0;
    *link = g->next;
    if (g->spoiled) {
        ravel__remote_abandon(g->head, g->data);
    } else {
        ravel__remote.wire->drop(g->head);
        ravel__remote.wire->drop(g->data);
    }
    ravel__release(NULL, g, left_bytes(g->size));
    return 1;
}

void ravel__remote_release(remote_rank *me) {
    ravel_comm *comm = me->comm;
    int32_t n = comm->size;
    size_t list = (size_t)n * sizeof(int64_t);
    left_comm *g = ravel__calloc(NULL, 1, left_bytes(n));
    if (!g) {
        ravel__remote_abandon(me->head, me->data);
        return;
    }
    g->head = me->head, g->data = me->data, g->id = me->id, g->size = n, g->missing = n - 1, g->serial = me->serial;
    g->sent = (int64_t *)(void *)(g + 1);
    g->received = g->sent + n;
    g->members = (int32_t *)(void *)(g->received + n);
    memcpy(g->sent, me->sent, list);
    memcpy(g->received, me->received, list);
    for (int32_t r = 0; r < n; r++) {
        g->members[r] = remote_world_rank(comm, r);
        if (r != comm->rank && me->left_at[r] >= 0)
            mark_left(g, r, me->left_at[r], me->left_sent[r], me->left_received[r]);
    }
    g->next = me->world->left;
    me->world->left = g;
    (void)close_left(&me->world->left);
}

static void note_left(remote_world *w, const leave_message *o) {
    for (left_comm **link = &w->left; *link;) {
        left_comm *g = *link;
        if (g->id == o->id)
            for (int32_t r = 0; r < g->size; r++)
                if (g->members[r] == o->rank) mark_left(g, r, o->serial, o->sent, o->received);
        if (!close_left(link)) link = &g->next;
    }
}

void ravel__remote_drop_left(remote_world *w) {
    while (w->left) {
        left_comm *g = w->left;
        w->left = g->next;
        ravel__remote_abandon(g->head, g->data);
        ravel__release(NULL, g, left_bytes(g->size));
    }
}

/* ---- listening ------------------------------------------------------------------------------------------ */

static void read_one(remote_world *w, const leave_message *o) {
    if (o->kind == FAILED) kill_family(w, o->id, o->lost, o->serial, o->text);
    if (o->kind == FAILED && o->broken) ravel__remote.broken = 1;
    for (remote_rank *r = w->ranks; r && o->kind == LEFT; r = r->next) {
        int32_t gone = r->id == o->id ? rank_in(r->comm, o->rank) : -1;
        if (gone < 0) continue;
        r->left_at[gone] = o->serial;
        r->left_sent[gone] = o->sent;
        r->left_received[gone] = o->received;
    }
    if (o->kind == LEFT) note_left(w, o);
}

/* Those that have gone out free their memory. */
static void sweep(remote_world *w) {
    for (notice **link = &w->notices; *link;) {
        notice *n = *link;
        int code;
        if (ravel__remote.wire->test(&n->bundle, &code) != RAVEL__WIRE_DONE) {
            link = &n->next;
            continue;
        }
        *link = n->next;
        free_notice(n);
    }
}

void ravel__remote_listen(remote_world *w) {
    (void)ravel__remote.wire->recv(w->leave_channel, &w->listening, &w->heard, sizeof w->heard, -1, 0);
}

void ravel__remote_hear(remote_world *w) {
    int code;
    while (w->listening.count && ravel__remote.wire->test(&w->listening, &code) == RAVEL__WIRE_DONE) {
        leave_message o = w->heard;
        ravel__remote_listen(w);
        read_one(w, &o);
    }
    if (w->notices) sweep(w);
}

/* A receive that nothing has come for is taken back at once; one that something has come for, in a moment. */
void ravel__remote_stop_listening(remote_world *w) {
    int code;
    ravel__remote_hear(w);
    ravel__remote.wire->cancel(&w->listening);
    for (int32_t round = 0; w->listening.count && round < 5000; round++) {
        (void)ravel__remote.wire->test(&w->listening, &code);
        ravel__remote_pause(round);
    }
}

/* Whether rank r, which left, is one that the job needs and did not serve before. */
static int is_needed(const remote_rank *me, const remote_job *j, int32_t r) {
    int receives = j->request->op.kind == RAVEL__RECV;
    if (!j->message) return j->serial >= me->left_at[r];
    return r == j->request->op.root && j->index >= (receives ? me->left_sent : me->left_received)[r];
}

void ravel__remote_look_for_leavers(remote_rank *me, const remote_job *j) {
    for (int32_t r = 0; r < me->comm->size && !me->dead; r++) {
        char name[64], reason[128];
        if (me->left_at[r] < 0 || !is_needed(me, j, r)) continue;
        ravel__remote_name(me->comm, r, name, sizeof name);
        (void)snprintf(reason, sizeof reason, "%s left: it freed its communicator", name);
        ravel__remote_fail(me, r, reason);
    }
}

/* ---- processes on this machine -------------------------------------------------------------------------- */

void ravel__remote_look_at_processes(remote_rank *me) {
    remote_world *w = me->world;
    int64_t now = ravel__clock_ns();
    if (now - w->looked_ns < 250000000) return; /* a few times a second will do */
    w->looked_ns = now;
    for (int32_t r = 0; r < me->comm->size; r++) {
        char reason[128], name[64];
        if (r == me->comm->rank || me->left_at[r] >= 0 ||
            !ravel__process_is_gone(&w->processes[remote_world_rank(me->comm, r)]))
            continue;
        ravel__remote_name(me->comm, r, name, sizeof name);
        (void)snprintf(reason, sizeof reason, "%s died: its process is gone", name);
        ravel__remote.broken = 1;
        ravel__remote_fail(me, r, reason);
        return;
    }
}

/* Everybody's, in the order of the world. */
static ravel_status gather_processes(remote_world *w, const ravel__process *mine, const int64_t *sizes,
                                     int64_t timeout_ns, ravel_error *err) {
    const ravel__wire *wire = ravel__remote.wire;
    ravel__bundle bundle = {0};
    int64_t deadline = ravel__clock_ns() + timeout_ns;
    ravel__wire_verdict verdict = RAVEL__WIRE_PENDING;
    int code = wire->gather(w->leave_channel, &bundle, mine, sizes, w->processes);
    for (int32_t round = 0; !code && verdict == RAVEL__WIRE_PENDING && ravel__clock_ns() < deadline; round++) {
        verdict = wire->test(&bundle, &code);
        ravel__remote_pause(round);
    }
    if (bundle.count) ravel__remote.hopeless = ravel__remote.broken = 1; /* it is under way for ever */
    if (!bundle.count) wire->discard(&bundle);
    if (code) return ravel__remote_error(err, code, "the first meeting of all ranks");
    if (verdict == RAVEL__WIRE_DONE) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "not all ranks came to the first meeting within %.3g s",
                           (double)timeout_ns / 1e9);
}

ravel_status ravel__remote_exchange_processes(remote_world *w, int64_t timeout_ns, ravel_error *err) {
    size_t n = (size_t)w->size;
    int64_t *sizes = ravel__calloc(NULL, n, sizeof *sizes);
    w->own = ravel__process_self();
    w->processes = sizes ? ravel__calloc(NULL, n, sizeof *w->processes) : NULL;
    for (int32_t r = 0; sizes && r < w->size; r++) sizes[r] = sizeof w->own;
    ravel_status status = w->processes ? gather_processes(w, &w->own, sizes, timeout_ns, err)
                                       : ravel__no_memory(err, n * sizeof *w->processes, "a communicator");
    ravel__release(NULL, sizes, n * sizeof *sizes);
    if (status) return status;
    for (int32_t r = 0; r < w->size; r++)
        if (!w->own.machine || !w->processes[r].started || w->processes[r].machine != w->own.machine)
            w->processes[r].pid = 0; /* elsewhere, or not to be seen */
    return RAVEL_OK;
}
