/* Who is gone: obituaries between ranks, and a look at the processes of this machine. */
#include "comm/mpi_parts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LEFT = 1, FAILED };

/* ---- names ---------------------------------------------------------------------------------------------- */

void ravel__mpi_name(const ravel_comm *comm, int32_t rank, char *text, size_t bytes) {
    if (comm->world_ranks)
        (void)snprintf(text, bytes, "rank %d (world rank %d)", rank, comm->world_ranks[rank]);
    else
        (void)snprintf(text, bytes, "rank %d", rank);
}

static int32_t rank_in(const ravel_comm *comm, int32_t world) {
    for (int32_t r = 0; r < comm->size; r++)
        if (mpi_world_rank(comm, r) == world) return r;
    return -1;
}

static void describe_code(int code, char *text) { /* text [MPI_MAX_ERROR_STRING] */
    int length = 0;
    if (MPI_Error_string(code, text, &length)) text[0] = '\0';
}

ravel_status ravel__mpi_error(ravel_error *err, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    describe_code(code, text);
    return S->error_set(err, RAVEL_E_PEER_LOST, "%s failed: %.300s", what, text);
}

/* ---- death ---------------------------------------------------------------------------------------------- */

static void die(mpi_rank *me, int32_t lost, int64_t serial, const char *prefix, const char *reason) {
    if (me->dead) return;
    me->dead = 1;
    me->dead_from = serial;
    me->lost = lost;
    (void)snprintf(me->reason, sizeof me->reason, "%s%.400s", prefix, reason);
}

static int is_below(const mpi_rank *r, int32_t id) {
    for (int32_t i = 0; i < r->depth; i++)
        if (r->ancestors[i] == id) return 1;
    return 0;
}

/* The communicator `id` and all that was split from it. */
static void kill_family(mpi_world *w, int32_t id, int32_t world_rank, int64_t serial, const char *reason) {
    for (mpi_rank *r = w->ranks; r; r = r->next) {
        if (r->id == id) die(r, rank_in(r->comm, world_rank), serial, "", reason);
        if (is_below(r, id))
            die(r, rank_in(r->comm, world_rank), 0, "the communicator that this one was split from died: ", reason);
    }
}

void ravel__mpi_kill_all(mpi_world *w, const char *reason) {
    for (mpi_rank *r = w->ranks; r; r = r->next) die(r, -1, 0, "another communicator of this process died: ", reason);
}

/* ---- obituaries ----------------------------------------------------------------------------------------- */

/* To every other member. Best effort: what cannot be allocated or sent is found by deadlines. */
static void tell(mpi_rank *me, const obituary *body) {
    mpi_world *w = me->world;
    ravel_comm *comm = me->comm;
    for (int32_t r = 0; r < comm->size && !ravel__mpi.hopeless; r++) {
        if (r == comm->rank) continue;
        notice *n = S->calloc(NULL, 1, sizeof *n);
        if (!n) return;
        n->body = *body;
        n->body.id = me->id;
        n->body.rank = w->rank;
        n->body.sent = me->lists[3 * comm->size + r];
        n->body.received = me->lists[4 * comm->size + r];
        if (MPI_Isend(&n->body, sizeof n->body, MPI_BYTE, mpi_world_rank(comm, r), 0, w->obit, &n->request)) {
            S->release(NULL, n, sizeof *n);
            return;
        }
        n->next = w->notices;
        w->notices = n;
    }
}

void ravel__mpi_leave(mpi_rank *me) {
    obituary body = {.kind = LEFT, .serial = me->serial};
    tell(me, &body);
}

void ravel__mpi_fail(mpi_rank *me, int32_t lost, const char *reason) {
    obituary body = {.kind = FAILED};
    if (me->dead) return;
    (void)snprintf(body.text, sizeof body.text, "%s", reason);
    body.broken = ravel__mpi.broken;
    body.lost = lost < 0 ? -1 : mpi_world_rank(me->comm, lost);
    body.serial = me->first ? me->first->serial : me->serial;
    kill_family(me->world, me->id, body.lost, body.serial, reason);
    tell(me, &body);
}

void ravel__mpi_fail_code(mpi_rank *me, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING], reason[400];
    describe_code(code, text);
    (void)snprintf(reason, sizeof reason, "MPI failed in %s: %.300s", what, text);
    ravel__mpi.broken = 1;
    ravel__mpi_fail(me, -1, reason);
}

/* ---- graves --------------------------------------------------------------------------------------------- */

static size_t grave_bytes(int32_t size) {
    return sizeof(grave) + (size_t)size * (2 * sizeof(int64_t) + sizeof(int32_t));
}

/* Rank r of the grave has left too, after so many operations and messages. */
static void mourn(grave *g, int32_t r, int64_t serial, int64_t sent, int64_t received) {
    g->missing--;
    g->spoiled |= serial != g->serial || sent != g->received[r] || received != g->sent[r];
}

/* Takes out the grave that *link points at, if nobody is missing. */
static int close_grave(grave **link) {
    grave *g = *link;
    if (g->missing > 0) return 0;
    *link = g->next;
    if (!g->spoiled) {
        (void)MPI_Comm_free(&g->head);
        (void)MPI_Comm_free(&g->data);
    }
    S->release(NULL, g, grave_bytes(g->size));
    return 1;
}

void ravel__mpi_bury(mpi_rank *me) {
    ravel_comm *comm = me->comm;
    int32_t n = comm->size;
    size_t list = (size_t)n * sizeof(int64_t);
    grave *g = S->calloc(NULL, 1, grave_bytes(n));
    if (!g) return; /* then they are never freed */
    g->head = me->head, g->data = me->data, g->id = me->id, g->size = n, g->missing = n - 1, g->serial = me->serial;
    g->sent = (int64_t *)(void *)(g + 1);
    g->received = g->sent + n;
    g->members = (int32_t *)(void *)(g->received + n);
    memcpy(g->sent, me->lists + 3 * n, list);
    memcpy(g->received, me->lists + 4 * n, list);
    for (int32_t r = 0; r < n; r++) {
        g->members[r] = mpi_world_rank(comm, r);
        if (r != comm->rank && me->lists[r] >= 0) mourn(g, r, me->lists[r], me->lists[n + r], me->lists[2 * n + r]);
    }
    g->next = me->world->graves;
    me->world->graves = g;
    (void)close_grave(&me->world->graves);
}

static void read_at_graves(mpi_world *w, const obituary *o) {
    for (grave **link = &w->graves; *link;) {
        grave *g = *link;
        if (g->id == o->id)
            for (int32_t r = 0; r < g->size; r++)
                if (g->members[r] == o->rank) mourn(g, r, o->serial, o->sent, o->received);
        if (!close_grave(link)) link = &g->next;
    }
}

void ravel__mpi_forget_graves(mpi_world *w) {
    while (w->graves) {
        grave *g = w->graves;
        w->graves = g->next;
        S->release(NULL, g, grave_bytes(g->size));
    }
}

/* ---- listening ------------------------------------------------------------------------------------------ */

static void read_one(mpi_world *w, const obituary *o) {
    if (o->kind == FAILED) kill_family(w, o->id, o->lost, o->serial, o->text);
    if (o->kind == FAILED && o->broken) ravel__mpi.broken = 1;
    for (mpi_rank *r = w->ranks; r && o->kind == LEFT; r = r->next) {
        int32_t n = r->comm->size, gone = r->id == o->id ? rank_in(r->comm, o->rank) : -1;
        if (gone < 0) continue;
        r->lists[gone] = o->serial;
        r->lists[n + gone] = o->sent;
        r->lists[2 * n + gone] = o->received;
    }
    if (o->kind == LEFT) read_at_graves(w, o);
}

/* Those that have gone out free their memory. */
static void sweep(mpi_world *w) {
    for (notice **link = &w->notices; *link;) {
        notice *n = *link;
        int flag = 0;
        if (MPI_Test(&n->request, &flag, MPI_STATUS_IGNORE) || !flag) {
            link = &n->next;
            continue;
        }
        *link = n->next;
        S->release(NULL, n, sizeof *n);
    }
}

void ravel__mpi_listen(mpi_world *w) {
    if (MPI_Irecv(&w->heard, sizeof w->heard, MPI_BYTE, MPI_ANY_SOURCE, 0, w->obit, &w->listen))
        w->listen = MPI_REQUEST_NULL;
}

void ravel__mpi_hear(mpi_world *w) {
    int flag = 0;
    while (w->listen != MPI_REQUEST_NULL && MPI_Test(&w->listen, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag) {
        obituary o = w->heard;
        ravel__mpi_listen(w);
        read_one(w, &o);
    }
    if (w->notices) sweep(w);
}

void ravel__mpi_deafen(mpi_world *w) {
    ravel__mpi_hear(w);
    if (w->listen == MPI_REQUEST_NULL) return;
    (void)MPI_Cancel(&w->listen); /* a receive that matched nothing: this ends it at once */
    (void)MPI_Wait(&w->listen, MPI_STATUS_IGNORE);
}

/* Whether rank r, which left, is one that the job needs and did not serve before. */
static int is_needed(const mpi_rank *me, const mpi_job *j, int32_t r) {
    int32_t n = me->comm->size, receives = j->request->op.kind == RAVEL__RECV;
    if (!j->message) return j->serial >= me->lists[r];
    return r == j->request->op.root && j->index >= me->lists[(receives ? n : 2 * n) + r];
}

void ravel__mpi_look_for_leavers(mpi_rank *me, const mpi_job *j) {
    for (int32_t r = 0; r < me->comm->size && !me->dead; r++) {
        char name[64], reason[128];
        if (me->lists[r] < 0 || !is_needed(me, j, r)) continue;
        ravel__mpi_name(me->comm, r, name, sizeof name);
        (void)snprintf(reason, sizeof reason, "%s left: it freed its communicator", name);
        ravel__mpi_fail(me, r, reason);
    }
}

/* ---- processes on this machine -------------------------------------------------------------------------- */

/* State letter and start time of a process, from /proc; 0 where there is none. */
static int64_t started_at(int64_t pid, char *state) {
    char path[64], line[1024];
    long long start = 0;
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t got = fread(line, 1, sizeof line - 1, f);
    (void)fclose(f);
    line[got] = '\0';
    const char *end = strrchr(line, ')'); /* the name before it may hold anything */
    *state = '?';
    if (!end || sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
                       state, &start) != 2)
        return 0;
    return start;
}

/* The same number where two processes can see each other's numbers: same boot, same process namespace. */
static int64_t machine_number(void) {
    char text[256] = "";
    uint64_t hash = 1469598103934665603u;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t used = f ? fread(text, 1, 100, f) : 0;
    if (f) (void)fclose(f);
    ssize_t length = readlink("/proc/self/ns/pid", text + used, sizeof text - used - 1);
    if (length < 0 || used == 0) return 0;
    for (size_t i = 0; i < used + (size_t)length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return (int64_t)(hash | 1);
}

static int is_gone(const process *p) {
    char state = '?';
    return p->pid && (started_at(p->pid, &state) != p->started || state == 'Z' || state == 'X');
}

void ravel__mpi_look_at_processes(mpi_rank *me) {
    mpi_world *w = me->world;
    int64_t now = S->clock_ns();
    if (now - w->looked_ns < 250000000) return; /* a few times a second will do */
    w->looked_ns = now;
    for (int32_t r = 0; r < me->comm->size; r++) {
        char reason[128], name[64];
        if (r == me->comm->rank || me->lists[r] >= 0 || !is_gone(&w->processes[mpi_world_rank(me->comm, r)])) continue;
        ravel__mpi_name(me->comm, r, name, sizeof name);
        (void)snprintf(reason, sizeof reason, "%s died: its process is gone", name);
        ravel__mpi.broken = 1;
        ravel__mpi_fail(me, r, reason);
        return;
    }
}

ravel_status ravel__mpi_exchange_processes(mpi_world *w, ravel_error *err) {
    char state;
    process mine = {machine_number(), (int64_t)getpid(), 0};
    mine.started = started_at(mine.pid, &state);
    w->processes = S->calloc(NULL, (size_t)w->size, sizeof *w->processes);
    if (!w->processes) return S->no_memory(err, (size_t)w->size * sizeof *w->processes, "a communicator");
    int code = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, w->processes, sizeof mine, MPI_BYTE, w->obit);
    if (code) return ravel__mpi_error(err, code, "MPI_Allgather");
    for (int32_t r = 0; r < w->size; r++)
        if (!mine.machine || !w->processes[r].started || w->processes[r].machine != mine.machine)
            w->processes[r].pid = 0; /* elsewhere, or not to be seen */
    return RAVEL_OK;
}
