/* MPI as a wire (comm/wire.h): the only file that sees <mpi.h>. It is compiled once against Open MPI and once against
 * MPICH, into a module that libravel loads. No thought is given here to ranks that die, to deadlines or to what ranks
 * disagree about: that is remote.c's.
 *
 * A bundle is an array of MPI requests with what each receive must bring. Whatever is in it may still be in MPI's hands
 * when remote.c gives it up, so it comes from malloc and is then never freed. */
#include <mpi.h>

#include "comm/wire.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ravel__channel {
    MPI_Comm comm;
};

typedef struct inside {
    MPI_Request *requests; /* [room] */
    MPI_Status *statuses;  /* [room] */
    int *expect;           /* [room] bytes that a receive must bring, -1: it is none */
    int32_t room, lists_room;
    int *lists; /* [lists_room] counts and places of a gather */
} inside;

#pragma GCC visibility push(default)
const ravel__wire *ravel_wire(void);
#pragma GCC visibility pop

/* ---- beginning and end ---------------------------------------------------------------------------------- */

static int wire_begin(int32_t *rank, int32_t *size, int32_t *ours) {
    int flag = 0, provided = 0, me = 0, all = 1;
    *ours = 0;
    if (MPI_Finalized(&flag) || flag) return RAVEL__WIRE_OVER;
    if (MPI_Initialized(&flag) == MPI_SUCCESS && !flag) {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
        if (code) return code;
        if (provided < MPI_THREAD_SERIALIZED) return RAVEL__WIRE_THREADS;
        (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        *ours = 1;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &me);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &all);
    *rank = me;
    *size = all;
    return 0;
}

static int wire_is_over(void) {
    int flag = 0;
    return MPI_Finalized(&flag) || flag;
}

static void wire_end(void) {
    (void)MPI_Finalize();
}

static void wire_describe(int code, char *text, size_t bytes) {
    char words[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code < 0 || MPI_Error_string(code, words, &length)) length = snprintf(words, sizeof words, "code %d", code);
    (void)snprintf(text, bytes, "%.*s", length, words);
}

/* ---- channels ------------------------------------------------------------------------------------------- */

/* Makes a channel of what MPI made, unless it failed. */
static int adopt(int code, MPI_Comm comm, ravel__channel **channel) {
    if (code) return code;
    code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    ravel__channel *made = code ? NULL : calloc(1, sizeof *made);
    if (!made) {
        (void)MPI_Comm_free(&comm);
        return code ? code : RAVEL__WIRE_MEMORY;
    }
    made->comm = comm;
    *channel = made;
    return 0;
}

static MPI_Comm comm_of(const ravel__channel *channel) {
    return channel ? channel->comm : MPI_COMM_WORLD;
}

static int wire_dup(ravel__channel *from, ravel__channel **channel) {
    MPI_Comm comm = MPI_COMM_NULL;
    int code = MPI_Comm_dup(comm_of(from), &comm);
    return adopt(code, comm, channel);
}

static int wire_group(ravel__channel *from, const int32_t *members, int32_t count, int32_t tag,
                      ravel__channel **channel) {
    MPI_Group all, some;
    MPI_Comm comm = MPI_COMM_NULL;
    int code = MPI_Comm_group(from->comm, &all);
    if (code) return code;
    code = MPI_Group_incl(all, count, members, &some);
    if (!code) {
        code = MPI_Comm_create_group(from->comm, some, tag, &comm);
        (void)MPI_Group_free(&some);
    }
    (void)MPI_Group_free(&all);
    return adopt(code, comm, channel);
}

static void wire_drop(ravel__channel *channel) {
    (void)MPI_Comm_free(&channel->comm);
    free(channel);
}

static void wire_abandon(ravel__channel *channel) {
    free(channel);
}

/* ---- bundles -------------------------------------------------------------------------------------------- */

/* Twice the room. Requests are handles: they can be moved while they are under way. */
static int grow(inside *in) {
    int32_t room = in->room ? 2 * in->room : 4;
    if (room > INT32_MAX / 4) return 0;
    MPI_Request *requests = realloc(in->requests, (size_t)room * sizeof(MPI_Request));
    if (requests) in->requests = requests;
    MPI_Status *statuses = requests ? realloc(in->statuses, (size_t)room * sizeof *statuses) : NULL;
    if (statuses) in->statuses = statuses;
    int *expect = statuses ? realloc(in->expect, (size_t)room * sizeof *expect) : NULL;
    if (!expect) return 0;
    in->expect = expect;
    in->room = room;
    return 1;
}

/* The place of the next request; NULL: no memory. */
static MPI_Request *next_request(ravel__bundle *bundle, int expect) {
    if (!bundle->inside) bundle->inside = calloc(1, sizeof(inside));
    inside *in = bundle->inside;
    if (!in || ((!in->expect || bundle->count == in->room) && !grow(in))) return NULL;
    in->expect[bundle->count] = expect;
    in->requests[bundle->count] = MPI_REQUEST_NULL;
    return &in->requests[bundle->count++];
}

static void wire_discard(ravel__bundle *bundle) {
    inside *in = bundle->inside;
    if (!in) return;
    free(in->requests);
    free(in->statuses);
    free(in->expect);
    free(in->lists);
    free(in);
    bundle->inside = NULL;
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static int wire_send(ravel__channel *channel, ravel__bundle *bundle, const void *data, int32_t bytes, int32_t peer,
                     int32_t tag) {
    MPI_Request *request = next_request(bundle, -1);
    if (!request) return RAVEL__WIRE_MEMORY;
    return MPI_Isend(data, bytes, MPI_BYTE, peer, tag, channel->comm, request);
}

static int wire_recv(ravel__channel *channel, ravel__bundle *bundle, void *data, int32_t bytes, int32_t peer,
                     int32_t tag) {
    MPI_Request *request = next_request(bundle, bytes);
    if (!request) return RAVEL__WIRE_MEMORY;
    return MPI_Irecv(data, bytes, MPI_BYTE, peer < 0 ? MPI_ANY_SOURCE : peer, tag, channel->comm, request);
}

static int wire_broadcast(ravel__channel *channel, ravel__bundle *bundle, void *data, int32_t bytes, int32_t root) {
    MPI_Request *request = next_request(bundle, -1);
    return request ? MPI_Ibcast(data, bytes, MPI_BYTE, root, channel->comm, request) : RAVEL__WIRE_MEMORY;
}

static int wire_gather(ravel__channel *channel, ravel__bundle *bundle, const void *send, const int64_t *sizes,
                       void *recv) {
    int rank = 0, ranks = 0, at = 0;
    (void)MPI_Comm_rank(channel->comm, &rank);
    (void)MPI_Comm_size(channel->comm, &ranks);
    MPI_Request *request = next_request(bundle, -1);
    inside *in = bundle->inside;
    if (request && (!in->lists || in->lists_room < 2 * ranks)) {
        int *lists = realloc(in->lists, 2 * (size_t)ranks * sizeof *lists);
        if (!lists) return RAVEL__WIRE_MEMORY;
        in->lists = lists;
        in->lists_room = 2 * ranks;
    }
    if (!request) return RAVEL__WIRE_MEMORY;
    for (int r = 0; r < ranks; at += in->lists[r++]) {
        in->lists[r] = (int)sizes[r];
        in->lists[ranks + r] = at;
    }
    return MPI_Iallgatherv(send, in->lists[rank], MPI_BYTE, recv, in->lists, in->lists + ranks, MPI_BYTE, channel->comm,
                           request);
}

static int wire_sum(ravel__channel *channel, ravel__bundle *bundle, const uint64_t *in, uint64_t *out, int32_t count) {
    MPI_Request *request = next_request(bundle, -1);
    if (!request) return RAVEL__WIRE_MEMORY;
    return MPI_Iallreduce(in, out, count, MPI_UINT64_T, MPI_SUM, comm_of(channel), request);
}

/* ---- how far it is -------------------------------------------------------------------------------------- */

static int class_of(int code) {
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) (void)MPI_Error_class(code, &class);
    return class;
}

/* One request of a bundle that is over, or was when MPI stopped looking. */
static ravel__wire_verdict judge(const MPI_Status *status, int error, int expect) {
    int got = 0, class = class_of(error);
    if (class == MPI_ERR_PENDING) return RAVEL__WIRE_PENDING;
    if (class == MPI_ERR_TRUNCATE) return RAVEL__WIRE_MISMATCH;
    if (class != MPI_SUCCESS) return RAVEL__WIRE_BROKEN;
    if (expect < 0) return RAVEL__WIRE_DONE;
    return MPI_Get_count(status, MPI_BYTE, &got) == MPI_SUCCESS && got == expect ? RAVEL__WIRE_DONE
                                                                                 : RAVEL__WIRE_MISMATCH;
}

static ravel__wire_verdict wire_test(ravel__bundle *bundle, int *code) {
    inside *in = bundle->inside;
    int flag = 0, saw[RAVEL__WIRE_BROKEN + 1] = {0};
    if (bundle->count == 0) return RAVEL__WIRE_DONE;
    int all = MPI_Testall(bundle->count, in->requests, &flag, in->statuses), class = class_of(all);
    if (all == MPI_SUCCESS && !flag) return RAVEL__WIRE_PENDING;
    *code = all;
    if (class != MPI_SUCCESS && class != MPI_ERR_IN_STATUS) return RAVEL__WIRE_BROKEN;
    for (int32_t i = 0; i < bundle->count; i++) {
        int error = all == MPI_SUCCESS ? MPI_SUCCESS : in->statuses[i].MPI_ERROR;
        ravel__wire_verdict verdict = judge(&in->statuses[i], error, in->expect[i]);
        if (verdict == RAVEL__WIRE_BROKEN) *code = error;
        saw[verdict] = 1;
    }
    if (saw[RAVEL__WIRE_BROKEN]) return RAVEL__WIRE_BROKEN;
    if (saw[RAVEL__WIRE_PENDING]) return RAVEL__WIRE_TORN;
    bundle->count = 0;
    return saw[RAVEL__WIRE_MISMATCH] ? RAVEL__WIRE_MISMATCH : RAVEL__WIRE_DONE;
}

static void wire_cancel(ravel__bundle *bundle) {
    inside *in = bundle->inside;
    int code;
    for (int32_t i = 0; i < bundle->count; i++)
        if (in->expect[i] >= 0 && in->requests[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&in->requests[i]);
    (void)wire_test(bundle, &code);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

const ravel__wire *ravel_wire(void) {
    static const ravel__wire wire = {
        .version = RAVEL__WIRE_VERSION,
        .bytes = sizeof wire,
        .begin = wire_begin,
        .is_over = wire_is_over,
        .end = wire_end,
        .describe = wire_describe,
        .dup = wire_dup,
        .group = wire_group,
        .drop = wire_drop,
        .abandon = wire_abandon,
        .send = wire_send,
        .recv = wire_recv,
        .broadcast = wire_broadcast,
        .gather = wire_gather,
        .sum = wire_sum,
        .test = wire_test,
        .cancel = wire_cancel,
        .discard = wire_discard,
    };
    return &wire;
}
