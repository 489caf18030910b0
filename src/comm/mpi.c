/* MPI as a wire (comm/wire.h): the only file that sees <mpi.h>. It is compiled once against Open MPI and once against
 * MPICH, into a module that libravel loads. Matching, collectives, deadlines and lost ranks are remote.c's; of MPI it
 * needs Isend, Irecv and Test.
 *
 *     frames      tag 0, into a ring of receives from any source; looked at in the order in which they were
 *                 posted, so that one peer's frames stay in order
 *     transfers   tag 1 + low bits of the token, in pieces of chunk_bytes; the receive is posted before the sender knows
 *                 the token
 *
 * A net is one duplicate of MPI_COMM_WORLD, made by a nonblocking call, so that opening has a deadline. It is never
 * freed: MPI_Comm_free is collective, and other ranks may be lost. Memory that MPI may still use comes from malloc. */
#include <mpi.h>

#include "comm/wire.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING = 16, FRAME_MOST = 8192 + 64, SLOT_MASK = (1 << 14) - 1 };

typedef struct outgoing {
    struct outgoing *next;
    MPI_Request request;
    int64_t number;
    char data[];
} outgoing;

typedef struct moving { /* a transfer */
    struct moving *next;
    ravel__transfer *t;
    int count, sends;
    MPI_Request requests[];
} moving;

struct ravel__net {
    ravel__net *next; /* in the list of closed ones */
    MPI_Comm comm;
    ravel__wire_events events;
    int rank, size;
    int64_t chunk;
    MPI_Request ring[RING];
    char *frames; /* [RING * FRAME_MOST] */
    int head;
    outgoing *sent, **sent_end;
    int64_t given; /* frames so far */
    moving *moving;
};

static struct {
    int ours, broken; /* MPI was initialised here; a rank is lost, or a transfer cannot end */
    int64_t patience_ns;
    ravel__net *closed; /* still receive, until MPI ends: MPI_Finalize needs every message received */
} process;

#pragma GCC visibility push(default)
const ravel__wire *ravel_wire(void);
#pragma GCC visibility pop

static int64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void nap(int64_t ns) {
    struct timespec t = {0, (long)(ns < 50000 ? ns : 50000)};
    (void)nanosleep(&t, NULL);
}

static int say(int code, char *why) {
    int length = 0;
    char words[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS) return 0;
    if (MPI_Error_string(code, words, &length)) length = snprintf(words, sizeof words, "code %d", code);
    (void)snprintf(why, 480, "%.*s", length < 400 ? length : 400, words);
    return RAVEL__WIRE_BROKEN;
}

/* Waits until the request is complete; 0: the deadline passed first. */
static int wait_until(MPI_Request *request, int64_t deadline_ns, int *code) {
    int flag = 0;
    for (int64_t round = 0;; round++) {
        *code = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
        if (*code || flag) return 1;
        if (now_ns() > deadline_ns) return 0;
        if (round > 200) nap(20000);
    }
}

/* *flag: all of them are over. */
static int test_all(MPI_Request *requests, int count, int *flag) {
    *flag = 1;
    for (int i = 0; i < count; i++) {
        int one = 0, code = MPI_Test(&requests[i], &one, MPI_STATUS_IGNORE);
        if (code) return code;
        *flag &= one;
    }
    return MPI_SUCCESS;
}

/* ---- beginning and end ---------------------------------------------------------------------------------- */

static void finalise(void);

static int begin(ravel__wire_open *how) {
    int flag = 0, level = MPI_THREAD_SINGLE;
    if (MPI_Finalized(&flag) || flag) return RAVEL__WIRE_OVER;
    if (MPI_Initialized(&flag) == MPI_SUCCESS && flag) { /* initialised by the program: with which thread level? */
        (void)MPI_Query_thread(&level);
        how->one_thread = level < MPI_THREAD_SERIALIZED;
        return 0;
    }
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (code) return say(code, how->why);
    if (level < MPI_THREAD_SERIALIZED) return RAVEL__WIRE_THREADS;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    process.ours = 1;
    (void)atexit(finalise);
    return 0;
}

static int post_ring(ravel__net *net, int i) {
    return MPI_Irecv(net->frames + (size_t)i * FRAME_MOST, FRAME_MOST, MPI_BYTE, MPI_ANY_SOURCE, 0, net->comm,
                     &net->ring[i]);
}

/* Makes the duplicate by the deadline. After the deadline, memory that MPI still uses is kept. */
static int duplicate(ravel__net *net, ravel__wire_open *how) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(MPI_COMM_WORLD, &net->comm, &request), test = 0;
    double seconds = (double)(how->deadline_ns - now_ns()) / 1e9;
    if (code) return say(code, how->why);
    if (!wait_until(&request, how->deadline_ns, &test)) {
        (void)snprintf(how->why, sizeof how->why, "not all ranks came to the first meeting within %.3g s", seconds);
        return RAVEL__WIRE_TIMEOUT;
    }
    if (test) return say(test, how->why);
    (void)MPI_Comm_set_errhandler(net->comm, MPI_ERRORS_RETURN);
    for (int i = 0; i < RING && !code; i++) code = post_ring(net, i);
    return say(code, how->why);
}

static int wire_open(ravel__wire_open *how, ravel__net **out, int32_t *rank, int32_t *size) {
    int code = begin(how);
    if (code) return code;
    ravel__net *net = calloc(1, sizeof *net);
    char *frames = calloc(RING, FRAME_MOST);
    if (!net || !frames) {
        free(net);
        free(frames);
        return RAVEL__WIRE_MEMORY;
    }
    net->events = how->events, net->chunk = how->chunk_bytes, net->frames = frames;
    net->sent_end = &net->sent;
    process.patience_ns = how->deadline_ns - now_ns();
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &net->rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &net->size);
    code = duplicate(net, how);
    if (code == RAVEL__WIRE_TIMEOUT) process.broken = 1; /* and the net is MPI's */
    if (code) return code;
    *out = net, *rank = net->rank, *size = net->size;
    return 0;
}

/* ---- frames --------------------------------------------------------------------------------------------- */

static int wire_frame(ravel__net *net, int32_t peer, const void *head, int32_t head_bytes, const void *body,
                      int32_t body_bytes) {
    RAVEL_ASSERT(head_bytes > 0 && body_bytes >= 0 && head_bytes + body_bytes <= FRAME_MOST);
    RAVEL_ASSERT(peer >= 0 && peer < net->size && peer != net->rank);
    outgoing *o = malloc(sizeof *o + (size_t)head_bytes + (size_t)body_bytes);
    if (!o) return RAVEL__WIRE_MEMORY;
    memcpy(o->data, head, (size_t)head_bytes);
    if (body_bytes > 0) memcpy(o->data + head_bytes, body, (size_t)body_bytes);
    o->next = NULL;
    o->request = MPI_REQUEST_NULL; /* also if MPI does not take it */
    o->number = ++net->given;
    *net->sent_end = o;
    net->sent_end = &o->next;
    return MPI_Isend(o->data, head_bytes + body_bytes, MPI_BYTE, peer, 0, net->comm, &o->request) ? RAVEL__WIRE_BROKEN
                                                                                                  : 0;
}

/* Sends to all peers in one queue: MPI completes them in about this order. */
static int64_t wire_given(const ravel__net *net, int32_t peer) {
    (void)peer;
    return net->given;
}

static int64_t wire_gone(const ravel__net *net, int32_t peer) {
    (void)peer;
    RAVEL_ASSERT(!net->sent || (net->sent->number > 0 && net->sent->number <= net->given));
    return net->sent ? net->sent->number - 1 : net->given;
}

/* Frees completed sends; tests only a few per call, since most are complete. */
static int sweep(ravel__net *net, char *why) {
    outgoing **link = &net->sent;
    for (int looks = 0; *link && looks < 8; looks++) {
        outgoing *o = *link;
        int flag = 0, code = MPI_Test(&o->request, &flag, MPI_STATUS_IGNORE);
        if (code) return say(code, why);
        if (!flag) {
            link = &o->next;
            continue;
        }
        *link = o->next;
        RAVEL_ASSERT(!o->next || o->next->number > o->number); /* oldest first */
        if (!o->next) net->sent_end = link;
        free(o);
    }
    return 0;
}

static int take_frames(ravel__net *net, char *why) {
    for (int taken = 0; taken < 4 * RING; taken++) {
        RAVEL_ASSERT(net->head >= 0 && net->head < RING);
        MPI_Status status;
        int flag = 0, bytes = 0, i = net->head, code = MPI_Test(&net->ring[i], &flag, &status);
        if (code) return say(code, why);
        if (!flag) return 0;
        (void)MPI_Get_count(&status, MPI_BYTE, &bytes);
        RAVEL_ASSERT(bytes >= 0 && bytes <= FRAME_MOST);
        net->head = (i + 1) % RING;
        net->events.frame(net->events.user, status.MPI_SOURCE, net->frames + (size_t)i * FRAME_MOST, bytes);
        code = post_ring(net, i);
        if (code) return say(code, why);
    }
    return 0;
}

/* ---- transfers ------------------------------------------------------------------------------------------ */

static int begin_transfer(ravel__net *net, ravel__transfer *t, int sends) {
    RAVEL_ASSERT(t->state == RAVEL__TRANSFER_IDLE && t->bytes > 0 && net->chunk > 0 && net->chunk <= INT32_MAX);
    RAVEL_ASSERT(t->peer >= 0 && t->peer < net->size && t->peer != net->rank);
    int tag = 1 + (int)(t->token & SLOT_MASK);
    int64_t count = (t->bytes + net->chunk - 1) / net->chunk;
    moving *m = malloc(sizeof *m + (size_t)count * sizeof(MPI_Request));
    if (!m) return RAVEL__WIRE_MEMORY;
    *m = (moving){net->moving, t, 0, sends};
    net->moving = m;
    t->state = RAVEL__TRANSFER_RUNS;
    t->inside = m;
    for (int64_t at = 0; at < t->bytes; at += net->chunk, m->count++) {
        int part = (int)(t->bytes - at < net->chunk ? t->bytes - at : net->chunk);
        char *piece = (char *)t->data + at;
        MPI_Request *r = &m->requests[m->count];
        int code = sends ? MPI_Isend(piece, part, MPI_BYTE, t->peer, tag, net->comm, r)
                         : MPI_Irecv(piece, part, MPI_BYTE, t->peer, tag, net->comm, r);
        if (code) return RAVEL__WIRE_BROKEN;
    }
    RAVEL_ASSERT(m->count == count);
    return 0;
}

static int wire_send(ravel__net *net, ravel__transfer *t) {
    return begin_transfer(net, t, 1);
}

static int wire_recv(ravel__net *net, ravel__transfer *t) {
    return begin_transfer(net, t, 0);
}

static void forget(ravel__net *net, moving *m) {
    moving **link = &net->moving;
    while (*link && *link != m) link = &(*link)->next;
    RAVEL_ASSERT(*link == m);
    if (*link) *link = m->next;
    free(m);
}

static int wire_cancel(ravel__net *net, ravel__transfer *t) {
    moving *m = t->inside;
    int flag = 0;
    if (t->state != RAVEL__TRANSFER_RUNS) return 1;
    RAVEL_ASSERT(m && m->t == t);
    for (int i = 0; i < m->count && !m->sends; i++)
        if (m->requests[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&m->requests[i]);
    for (int tries = 0; tries < 1000 && !flag; tries++)
        if (test_all(m->requests, m->count, &flag)) break;
    if (!flag) { /* its peer is gone: so no meeting at the end, even if the net is never closed */
        process.broken = 1;
        return 0;
    }
    forget(net, m);
    *t = (ravel__transfer){0};
    return 1;
}

static int test_transfers(ravel__net *net, char *why) {
    for (moving *m = net->moving, *next; m; m = next) {
        int flag = 0, code = test_all(m->requests, m->count, &flag);
        next = m->next;
        if (code) return say(code, why);
        if (!flag) continue;
        RAVEL_ASSERT(m->t->inside == m && m->t->state == RAVEL__TRANSFER_RUNS);
        m->t->state = RAVEL__TRANSFER_DONE;
        forget(net, m);
    }
    return 0;
}

static int wire_poll(ravel__net *net, char *why) {
    int code = take_frames(net, why);
    if (!code) code = test_transfers(net, why);
    return code ? code : sweep(net, why);
}

static void wire_sleep(ravel__net *net, int32_t aimed, int64_t ns) {
    (void)net, (void)aimed;
    nap(ns);
}

/* ---- closing -------------------------------------------------------------------------------------------- */

/* Cancels receives and frees the net, unless MPI still uses a part of it. */
static void end_net(ravel__net *net) {
    int flag = 0;
    for (int i = 0; i < RING; i++) (void)MPI_Cancel(&net->ring[i]);
    for (int round = 0; round < 2000 && !flag; round++)
        if (test_all(net->ring, RING, &flag)) break;
    if (!flag || net->sent || net->moving) return;
    free(net->frames);
    free(net);
}

static void drop_frame(void *user, int32_t peer, const void *data, int32_t bytes) {
    (void)user, (void)peer, (void)data, (void)bytes;
}

/* Waits a while for frames that are still being sent. */
static void wire_close(ravel__net *net, int32_t broken) {
    char why[480];
    process.broken |= broken;
    for (int round = 0; net->sent && round < 2000; round++) {
        if (sweep(net, why)) break;
        if (net->sent && round > 100) nap(20000);
    }
    net->events.frame = drop_frame;
    if (process.ours)
        net->next = process.closed, process.closed = net;
    else
        end_net(net);
}

/* When a process ends that initialised MPI here: a barrier, then the last frames are received, then MPI_Finalize. With
 * a lost rank MPI is not finalised: the launcher cleans up. */
static void finalise(void) {
    int flag = 0, code = 0;
    char why[480];
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t most = (int64_t)60 * 1000000000, patience = process.patience_ns < most ? process.patience_ns : most;
    if (process.broken || MPI_Finalized(&flag) || flag) return;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) || !wait_until(&request, now_ns() + patience, &code) || code) return;
    while (process.closed) {
        ravel__net *net = process.closed;
        process.closed = net->next;
        for (int round = 0; round < 20; round++) {
            if (take_frames(net, why)) break;
            nap(20000);
        }
        end_net(net);
    }
    (void)MPI_Finalize();
}

const ravel__wire *ravel_wire(void) {
    static const ravel__wire wire = {
        .version = RAVEL__WIRE_VERSION,
        .bytes = sizeof wire,
        .name = "mpi",
        .frame_most = FRAME_MOST,
        .serial = 1,
        .open = wire_open,
        .close = wire_close,
        .frame = wire_frame,
        .given = wire_given,
        .gone = wire_gone,
        .send = wire_send,
        .recv = wire_recv,
        .cancel = wire_cancel,
        .poll = wire_poll,
        .sleep = wire_sleep,
    };
    return &wire;
}
