/* The handle: options, creation, failure, splitting. See ravel/comm.h for what callers may rely on, comm/backend.h for
 * what back ends must do.
 *
 * A failure is recorded in two places. The back end records that the group is dead (all ranks see the same first
 * reason). The handle records whether it has reported this (comm->failure): the first failing call returns E_PEER_LOST
 * or E_TIMEOUT, every later one E_DEAD. */
#include "comm/backend.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/number.h"
#include "base/options.h"
#include "comm/launch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_comm_options, __VA_ARGS__)

static const ravel_option option_table[] = {
    ROW("comm-timeout", F64, timeout, "0", 0, 1e9, NULL,
        "seconds that a communication call may wait for its peers; 0: RAVEL_COMM_TIMEOUT, else 600"),
    ROW("comm-chunk", I64, chunk_bytes, "1G", 1, 2147483647, NULL, "size limit of one message to the transport"),
    ROW("comm-check", BOOL, check, "true", 0, 0, NULL, "compare the ranks' operations and sizes before any data moves"),
    ROW("mpi-module", STRING, module, NULL, 0, 0, NULL,
        "file of the MPI module; by default RAVEL_MPI_MODULE, else the one that fits the launcher"),
    ROW("comm", STRING, comm, "auto", 0, 0, NULL, "transport between processes: auto, self, mpi or tcp"),
    ROW("rendezvous", STRING, rendezvous, NULL, 0, 0, NULL,
        "tcp: where the ranks meet: host:port, unix:/path or file:/path; by default as srun or torchrun say"),
    ROW("comm-rank", I32, rank, "-1", -1, 1 << 20, NULL,
        "tcp: this process's rank; -1: the launcher's, else any that is free"),
    ROW("comm-ranks", I32, ranks, "0", 0, 1 << 20, NULL, "tcp: number of ranks; 0: the launcher's"),
    ROW("comm-listen", STRING, listen, NULL, 0, 0, NULL,
        "tcp: the only address to listen at, like 10.0.0.5:0; by default a Unix socket, and the one that leads to the "
        "rendezvous"),
    ROW("comm-allow", STRING, allow, NULL, 0, 0, NULL,
        "tcp: networks that may connect, like 10.0.0.0/8,fd00::/8; by default any peer with the token"),
    ROW("comm-token-file", STRING, token_file, NULL, 0, 0, NULL,
        "tcp: file with the shared token; by default RAVEL_TOKEN or RAVEL_TOKEN_FILE"),
    ROW("comm-tls", BOOL, tls, "false", 0, 0, NULL,
        "tcp: encrypt connections (TLS 1.3, with the token as key, or RAVEL_TLS_CERT, RAVEL_TLS_KEY, RAVEL_TLS_CA); also RAVEL_TLS=1"),
    ROW("comm-shared", BOOL, shared, "true", 0, 0, NULL,
        "tcp: long messages between processes of one machine go through shared memory if it is available"),
    {NULL, 0, 0, NULL, 0, 0, NULL, NULL},
};

ravel_option_table ravel_comm_option_table(void) {
    return option_table;
}

void ravel_comm_options_default(ravel_comm_options *options) {
    ravel__options_preset(option_table, options, sizeof *options);
}

static ravel_status timeout_from_environment(double *timeout, ravel_error *err) {
    const char *text = getenv("RAVEL_COMM_TIMEOUT");
    *timeout = 600;
    if (!text || !*text) return RAVEL_OK;
    char *end;
    double seconds = ravel__number_read(text, &end);
    if (end == text || *end || !(seconds > 0) || seconds > 1e9)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "the environment's RAVEL_COMM_TIMEOUT is \"%.40s\"; it must be a number of seconds above "
            "0 and at most 1e9, like 600",
            text);
    *timeout = seconds;
    return RAVEL_OK;
}

ravel_status ravel__comm_options_take(const ravel_comm_options *from, ravel_comm_options *options, ravel_error *err) {
    ravel_comm_options_default(options);
    ravel_status status =
        from ? ravel__take_options(option_table, "comm", from, options, sizeof *options, err) : RAVEL_OK;
    if (status || options->timeout > 0) return status;
    return timeout_from_environment(&options->timeout, err);
}

static int64_t to_ns(double seconds) {
    return (int64_t)(seconds * 1e9 + 0.5);
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

static ravel_comm *new_handle(const ravel__backend *backend, int32_t rank, int32_t size,
                              const ravel_allocator *allocator, ravel_error *err) {
    ravel_comm *c = ravel__calloc(allocator, 1, sizeof *c);
    if (!c) {
        ravel__no_memory(err, sizeof *c, "a communicator");
        return NULL;
    }
    RAVEL_ASSERT(size >= 1 && rank >= 0 && rank < size);
    c->backend = backend;
    c->rank = rank;
    c->size = size;
    c->lost_rank = -1;
    c->allocator = allocator;
    return c;
}

ravel_status ravel__comm_new(const ravel__backend *backend, int32_t rank, int32_t size,
                             const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    ravel_comm_options o;
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (status) return status;
    ravel_comm *c = new_handle(backend, rank, size, o.allocator, err);
    if (!c) return RAVEL_E_MEMORY;
    c->timeout_ns = to_ns(o.timeout);
    c->chunk_bytes = o.chunk_bytes;
    c->check = o.check;
    ravel_comm_set_name(c, "world");
    RAVEL_ASSERT(c->timeout_ns > 0 && c->chunk_bytes > 0);
    *comm = c;
    return RAVEL_OK;
}

static size_t request_bytes(const ravel_comm *c) {
    return sizeof(ravel_request) + c->backend->request_bytes;
}

/* The list of open requests is linked both ways, and as long as its count. */
static bool requests_ok(const ravel_comm *c) {
    int32_t count = 0;
    for (const ravel_request *r = c->open, *before = NULL; r; before = r, r = r->next, count++)
        if (r->comm != c || r->prev != before || count >= RAVEL_REQUESTS_MAX) return false;
    return count == c->open_count;
}

void ravel__comm_discard(ravel_comm *c) {
    RAVEL_ASSERT(!c->open && c->open_count == 0);
    while (c->idle) {
        ravel_request *r = c->idle;
        c->idle = r->next;
        ravel__release(c->allocator, r->lists, 4 * (size_t)c->size * sizeof *r->lists);
        ravel__release(c->allocator, r, request_bytes(c));
    }
    ravel__release(c->allocator, c->world_ranks, (size_t)c->size * sizeof *c->world_ranks);
    ravel__release(c->allocator, c->spare, c->spare_bytes);
    ravel__release(c->allocator, c, sizeof *c);
}

void ravel_comm_free(ravel_comm *comm) {
    if (!comm) return;
    RAVEL_ASSERT(requests_ok(comm));
    while (comm->open) {
        ravel_request *r = comm->open;
        comm->backend->cancel(comm, r);
        ravel__request_give(comm, r);
    }
    RAVEL_ASSERT(comm->open_count == 0);
    comm->backend->close(comm);
    ravel__comm_discard(comm);
}

void *ravel__comm_spare(ravel_comm *comm, size_t bytes) {
    if (bytes <= comm->spare_bytes) return comm->spare;
    ravel__release(comm->allocator, comm->spare, comm->spare_bytes);
    comm->spare = ravel__alloc(comm->allocator, bytes);
    comm->spare_bytes = comm->spare ? bytes : 0;
    RAVEL_ASSERT(comm->spare_bytes == 0 || comm->spare);
    return comm->spare;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static ravel_request *new_request(ravel_comm *c) {
    ravel_request *r = ravel__calloc(c->allocator, 1, request_bytes(c));
    if (!r) return NULL;
    r->comm = c;
    r->lists = ravel__calloc(c->allocator, 4 * (size_t)c->size, sizeof *r->lists);
    if (r->lists) return r;
    ravel__release(c->allocator, r, request_bytes(c));
    return NULL;
}

ravel_status ravel__request_take(ravel_comm *comm, ravel_request **request, ravel_error *err) {
    RAVEL_ASSERT((comm->open == NULL) == (comm->open_count == 0));
    if (comm->open_count >= RAVEL_REQUESTS_MAX)
        return ravel_error_set(err, RAVEL_E_STATE,
                               "limit of %d open operations on one communicator reached; wait for one of them",
                               comm->open_count);
    ravel_request *r = comm->idle;
    if (r)
        comm->idle = r->next;
    else if (!(r = new_request(comm)))
        return ravel__no_memory(err, request_bytes(comm), "a communication request");
    RAVEL_ASSERT(r->comm == comm);
    RAVEL_ASSERT(!comm->open || !comm->open->prev);
    r->prev = NULL;
    r->next = comm->open;
    if (r->next) r->next->prev = r;
    comm->open = r;
    comm->open_count++;
    r->deadline_ns = 0;
    r->why.status = RAVEL_OK;
    r->why.message[0] = '\0';
    *request = r;
    return RAVEL_OK;
}

void ravel__request_give(ravel_comm *comm, ravel_request *r) {
    RAVEL_ASSERT(r->comm == comm && comm->open_count > 0 && (r->prev || comm->open == r));
    if (r->prev)
        r->prev->next = r->next;
    else
        comm->open = r->next;
    if (r->next) r->next->prev = r->prev;
    comm->open_count--;
    r->next = comm->idle;
    comm->idle = r;
}

/* ---- failure ----------------------------------------------------------------------------------------------- */

/* After these statuses the state of the group is unknown; a mismatch or a bad argument leaves it usable. */
static int is_fatal(ravel_status status) {
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT || status == RAVEL_E_DEAD ||
           status == RAVEL_E_CALLBACK || status == RAVEL_E_INTERNAL;
}

ravel_status ravel__comm_fail(ravel_comm *comm, const char *what, ravel_status status, const ravel_error *why,
                              ravel_error *err) {
    RAVEL_ASSERT(status != RAVEL_OK && what);
    char me[96];
    ravel_error full = RAVEL_ERROR_INIT;
    ravel__rank_describe(comm, comm->rank, me, sizeof me);
    ravel_error_set(&full, status, "%s, %s: %s", me, what, why->message[0] ? why->message : ravel_status_text(status));
    if (is_fatal(status) && !comm->failure.status) comm->failure = full;
    return ravel_error_set(err, status, "%s", full.message);
}

ravel_status ravel__comm_usable(ravel_comm *comm, ravel_error *err) {
    if (comm->failure.status)
        return ravel_error_set(err, RAVEL_E_DEAD, "communicator \"%s\" is dead since: %s", comm->name,
                               comm->failure.message);
    return RAVEL_OK;
}

ravel_status ravel_comm_alive(ravel_comm *comm, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel__comm_usable(comm, err);
    if (status) return status;
    status = comm->backend->alive(comm, &why);
    return status ? ravel__comm_fail(comm, "looking", status, &why, err) : RAVEL_OK;
}

void ravel_comm_abort(ravel_comm *comm, const ravel_error *why) {
    ravel_error mine = RAVEL_ERROR_INIT;
    const char *reason = why && why->message[0] ? why->message : "it gave no reason";
    comm->backend->abort(comm, reason);
    ravel_error_set(&mine, RAVEL_E_DEAD, "this rank raised an error: %s", reason);
    if (!comm->failure.status) comm->failure = mine;
}

/* ---- properties of a handle ----------------------------------------------------------------------------------- */

int32_t ravel_comm_rank(const ravel_comm *comm) {
    return comm->rank;
}
int32_t ravel_comm_size(const ravel_comm *comm) {
    return comm->size;
}
const char *ravel_comm_kind(const ravel_comm *comm) {
    return comm->backend->name;
}
const char *ravel_comm_name(const ravel_comm *comm) {
    return comm->name;
}
int32_t ravel_comm_lost_rank(const ravel_comm *comm) {
    return comm->lost_rank;
}
double ravel_comm_timeout(const ravel_comm *comm) {
    return (double)comm->timeout_ns / 1e9;
}

int32_t ravel__comm_world_rank(const ravel_comm *comm, int32_t rank) {
    if (rank < 0 || rank >= comm->size) return -1;
    return comm->world_ranks ? comm->world_ranks[rank] : rank;
}

void ravel_comm_set_name(ravel_comm *comm, const char *name) {
    (void)snprintf(comm->name, sizeof comm->name, "%s", name);
}

/* Of the communicator below it too, over which NCCL's ranks meet before an operation. */
void ravel_comm_set_timeout(ravel_comm *comm, double seconds) {
    if (!(seconds > 0)) return;
    comm->timeout_ns = to_ns(fmin(seconds, 1e9));
    ravel_comm_host(comm)->timeout_ns = comm->timeout_ns;
}

void ravel__rank_describe(const ravel_comm *comm, int32_t rank, char *text, size_t bytes) {
    if (comm->world_ranks)
        (void)snprintf(text, bytes, "rank %d of \"%s\" (world rank %d)", rank, comm->name,
                       ravel__comm_world_rank(comm, rank));
    else
        (void)snprintf(text, bytes, "rank %d", rank);
}

/* ---- split ---------------------------------------------------------------------------------------------- */

typedef struct member {
    int32_t colour, key, rank, serial;
} member;

static int by_key(const void *a, const void *b) {
    const member *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int32_t next_serial(ravel_comm *comm) {
    return (int32_t)(comm->backend->serial ? comm->backend->serial(comm) : comm->splits);
}

static int32_t largest_serial(const member *all, int32_t size) {
    int32_t largest = 0;
    for (int32_t i = 0; i < size; i++) largest = all[i].serial > largest ? all[i].serial : largest;
    return largest;
}

/* Keeps the members of one colour, in the child's order; returns how many. */
static int32_t keep_colour(member *all, int32_t size, int32_t colour) {
    int32_t count = 0;
    for (int32_t i = 0; i < size; i++)
        if (all[i].colour == colour) all[count++] = all[i];
    RAVEL_ASSERT(count >= 1); /* this rank is one of them */
    qsort(all, (size_t)count, sizeof *all, by_key);
    return count;
}

/* The child's handle and state; `ranks` [count] becomes its world ranks. */
static ravel_status make_child(ravel_comm *comm, int32_t *members, int32_t count, int32_t serial, int32_t colour,
                               ravel_comm **child, ravel_error *err) {
    int32_t index = 0;
    while (members[index] != comm->rank) index++;
    RAVEL_ASSERT(index < count);
    ravel_comm *c = new_handle(comm->backend, index, count, comm->allocator, err);
    if (!c) return RAVEL_E_MEMORY;
    c->timeout_ns = comm->timeout_ns;
    c->chunk_bytes = comm->chunk_bytes;
    c->check = comm->check;
    ravel_comm_set_name(c, "sub");
    c->world_ranks = ravel__alloc(c->allocator, (size_t)count * sizeof *c->world_ranks);
    ravel_status status = c->world_ranks ? RAVEL_OK : ravel__no_memory(err, 4 * (size_t)count, "a communicator");
    for (int32_t i = 0; i < count && !status; i++) c->world_ranks[i] = ravel__comm_world_rank(comm, members[i]);
    if (!status) status = comm->backend->subset(comm, c, members, serial, colour, err);
    if (status)
        ravel__comm_discard(c);
    else
        *child = c;
    return status;
}

ravel_status ravel_comm_split(ravel_comm *comm, int32_t colour, int32_t key, ravel_comm **child, ravel_error *err) {
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_comm *made = NULL;
    size_t bytes = (size_t)comm->size * (sizeof(member) + sizeof(int32_t));
    member mine = {colour < 0 ? -1 : colour, key, comm->rank, next_serial(comm)};
    ravel_status status = ravel__comm_usable(comm, err);
    if (status) return status;
    member *all = ravel__alloc(comm->allocator, bytes);
    if (!all) return ravel__no_memory(err, bytes, "a split");
    int32_t *members = (int32_t *)(void *)(all + comm->size);
    ravel_comm *control = ravel_comm_host(comm);
    status = ravel_comm_allgather(control, &mine, all, sizeof mine, RAVEL_U8, err);
    if (status) goto free_all;
    if (colour >= 0) {
        int32_t serial = largest_serial(all, comm->size), count = keep_colour(all, comm->size, colour);
        for (int32_t i = 0; i < count; i++) members[i] = all[i].rank;
        status = make_child(comm, members, count, serial, colour, &made, &inner);
        RAVEL_ASSERT(status || (made->state && made->size == count));
    }
    comm->splits++;
    status = ravel_agree(control, status, &inner);
    if (status) {
        ravel_comm_free(made);
        ravel_error_set(err, status, "%s", inner.message);
    } else {
        *child = made;
    }
free_all:
    ravel__release(comm->allocator, all, bytes);
    return status;
}

ravel_status ravel_comm_dup(ravel_comm *comm, ravel_comm **child, ravel_error *err) {
    ravel_status status = ravel_comm_split(comm, 0, comm->rank, child, err);
    if (status == RAVEL_OK) ravel_comm_set_name(*child, comm->name);
    return status;
}

/* ---- opening by name ------------------------------------------------------------------------------------ */

const char *ravel_comm_auto_kind(const ravel_comm_options *options) {
    return ravel__launch_kind(options);
}

ravel_status ravel_comm_open(const char *kind, const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    static const struct {
        const char *name;
        ravel_status (*open)(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);
    } kinds[] = {{"self", ravel_comm_self}, {"mpi", ravel_comm_mpi}, {"tcp", ravel_comm_tcp}};
    ravel_comm_options o;
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (status) return status;
    if (!kind || strcmp(kind, "auto") == 0) kind = ravel__launch_kind(&o);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i].name) == 0) return kinds[i].open(&o, comm, err);
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "there is no communicator \"%.40s\"; it must be auto, self, mpi or tcp", kind);
}
