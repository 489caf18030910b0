#include "train/model/ranks/link.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <string.h>

enum { CHUNK = 4 << 20, LINE = 64, EXCHANGED = 256 /* ranks of an exchange */ };

/* ---- the staging memory:  counts [ranks] | chunk | places ---------------------------------------------- */

static size_t counts_bytes(const train__port *x) {
    return ((size_t)x->ranks * sizeof(int64_t) + LINE - 1) / LINE * LINE;
}

static size_t chunk_bytes(const train__port *x) {
    return x->chunk_bytes ? x->chunk_bytes : CHUNK;
}

size_t train__port_bytes(const train__port *x) {
    if (x->kernels->host_memory || x->wires || x->ranks <= 1) return 0;
    return counts_bytes(x) + chunk_bytes(x) + (size_t)x->places * x->message_bytes;
}

static char *chunk_of(const train__port *x) {
    return (char *)x->host + counts_bytes(x);
}

static size_t bytes_of(int64_t count, int32_t dtype) {
    return (size_t)(count * ravel_dtype_bytes(dtype));
}

/* To and from the host. A device that has failed moves nothing: what waits for it here is found by the next sync. */
static void take(const train__port *x, void *host, const void *block, int64_t count, int32_t dtype) {
    if (count) x->kernels->download(x->device, host, block, bytes_of(count, dtype));
}

static void put(const train__port *x, void *block, const void *host, int64_t count, int32_t dtype) {
    if (count) x->kernels->upload(x->device, block, host, bytes_of(count, dtype));
}

/* ---- around an operation that goes straight to the communicator -------------------------------------------- */

static ravel_status enter(const train__port *x, const ravel_comm *comm, ravel_error *err) {
    RAVEL_ASSERT(!x->wires || strcmp(ravel_comm_kind(comm), "nccl") == 0);
    return x->wires ? train__wires_enter(x->wires, comm, err) : RAVEL_OK;
}

static ravel_status leave(const train__port *x, const ravel_comm *comm, ravel_status status, ravel_error *err) {
    return x->wires && !status ? train__wires_leave(x->wires, comm, err) : status;
}

static ravel_status mark(const train__port *x, const ravel_comm *comm, train__message *message, ravel_error *err) {
    message->comm = comm;
    return train__wires_mark(x->wires, comm, &message->event, err);
}

typedef ravel_status collective(ravel_comm *comm, const void *from, void *to, train__pieces pieces, int32_t dtype,
                                ravel_error *err);

static ravel_status sum(ravel_comm *comm, const void *from, void *to, train__pieces pieces, int32_t dtype,
                        ravel_error *err) {
    return ravel_comm_allreduce(comm, from, to, pieces.each, dtype, RAVEL_SUM, err);
}

static ravel_status gather(ravel_comm *comm, const void *from, void *to, train__pieces pieces, int32_t dtype,
                           ravel_error *err) {
    return pieces.counts ? ravel_comm_allgatherv(comm, from, to, pieces.counts, NULL, dtype, err)
                         : ravel_comm_allgather(comm, from, to, pieces.each, dtype, err);
}

static ravel_status scatter(ravel_comm *comm, const void *from, void *to, train__pieces pieces, int32_t dtype,
                            ravel_error *err) {
    return pieces.counts ? ravel_comm_reduce_scatterv(comm, from, to, pieces.counts, dtype, RAVEL_SUM, err)
                         : ravel_comm_reduce_scatter(comm, from, to, pieces.each, dtype, RAVEL_SUM, err);
}

/* Over NCCL it only queues: with a `message`, later kernels wait at its end, without one at once. */
static ravel_status straight(const train__port *x, ravel_comm *comm, collective *run, const void *from, void *to,
                             train__pieces pieces, int32_t dtype, train__message *message, ravel_error *err) {
    ravel_status status = enter(x, comm, err);
    if (!status) status = run(comm, from, to, pieces, dtype, err);
    return message && x->wires && !status ? mark(x, comm, message, err) : leave(x, comm, status, err);
}

/* ---- collectives ------------------------------------------------------------------------------------------ */

ravel_status train__port_sum(const train__port *x, ravel_comm *comm, void *data, int64_t count, int32_t dtype,
                             ravel_error *err) {
    if (!x->host) return straight(x, comm, sum, data, data, (train__pieces){.each = count}, dtype, NULL, err);
    char *chunk = chunk_of(x);
    int64_t most = (int64_t)chunk_bytes(x) / ravel_dtype_bytes(dtype);
    ravel_status status = RAVEL_OK;
    for (int64_t first = 0; first < count && !status; first += most) {
        int64_t n = train__min(most, count - first);
        take(x, chunk, train__at(data, dtype, first), n, dtype);
        status = ravel_comm_allreduce(comm, chunk, chunk, n, dtype, RAVEL_SUM, err);
        if (!status) put(x, train__at(data, dtype, first), chunk, n, dtype);
    }
    return status;
}

static int64_t piece_of(train__pieces pieces, int32_t rank) {
    return pieces.counts ? pieces.counts[rank] : pieces.each;
}

/* The part of every piece that is in the chunk: `most` elements of it from `first` on. */
typedef struct part {
    const train__port *x;
    train__pieces pieces;
    int32_t ranks, rank, dtype;
    int64_t first, most;
    int64_t *counts; /* [ranks] of this part */
} part;

static part parts_of(const train__port *x, const ravel_comm *comm, train__pieces pieces, int32_t dtype) {
    part p = {.x = x, .pieces = pieces, .dtype = dtype, .counts = x->host};
    p.ranks = ravel_comm_size(comm);
    p.rank = ravel_comm_rank(comm);
    RAVEL_ASSERT(p.ranks <= x->ranks);
    p.most = (int64_t)chunk_bytes(x) / ravel_dtype_bytes(dtype) / (p.ranks + 1); /* a sum lies behind them */
    RAVEL_ASSERT(p.most > 0);
    p.first = -p.most;
    return p;
}

/* The next part; 0: there is none. */
static int next_part(part *p) {
    int some = 0;
    p->first += p->most;
    for (int32_t r = 0; r < p->ranks; r++) {
        p->counts[r] = train__max(0, train__min(p->most, piece_of(p->pieces, r) - p->first));
        some |= p->counts[r] > 0;
    }
    return some;
}

/* Where the part of `rank` begins in the chunk; of `ranks`: where all of them end. */
static void *in_chunk(const part *p, int32_t rank) {
    int64_t before = 0;
    for (int32_t r = 0; r < rank; r++) before += p->counts[r];
    return train__at(chunk_of(p->x), p->dtype, before);
}

/* Where the part of `rank` begins in the whole array. */
static void *in_array(const part *p, const void *all, int32_t rank) {
    int64_t before = p->first;
    for (int32_t r = 0; r < rank; r++) before += piece_of(p->pieces, r);
    return train__at(all, p->dtype, before);
}

ravel_status train__port_gather(const train__port *x, ravel_comm *comm, const void *mine, void *all,
                                train__pieces pieces, int32_t dtype, ravel_error *err) {
    if (!x->host) return straight(x, comm, gather, mine, all, pieces, dtype, NULL, err);
    ravel_status status = RAVEL_OK;
    for (part p = parts_of(x, comm, pieces, dtype); !status && next_part(&p);) {
        take(x, in_chunk(&p, p.rank), train__at(mine, dtype, p.first), p.counts[p.rank], dtype);
        status = ravel_comm_allgatherv(comm, in_chunk(&p, p.rank), chunk_of(x), p.counts, NULL, dtype, err);
        for (int32_t r = 0; r < p.ranks && !status; r++)
            put(x, in_array(&p, all, r), in_chunk(&p, r), p.counts[r], dtype);
    }
    return status;
}

ravel_status train__port_scatter(const train__port *x, ravel_comm *comm, const void *all, void *mine,
                                 train__pieces pieces, int32_t dtype, ravel_error *err) {
    if (!x->host) return straight(x, comm, scatter, all, mine, pieces, dtype, NULL, err);
    ravel_status status = RAVEL_OK;
    for (part p = parts_of(x, comm, pieces, dtype); !status && next_part(&p);) {
        void *summed = in_chunk(&p, p.ranks);
        for (int32_t r = 0; r < p.ranks; r++) take(x, in_chunk(&p, r), in_array(&p, all, r), p.counts[r], dtype);
        status = ravel_comm_reduce_scatterv(comm, chunk_of(x), summed, p.counts, dtype, RAVEL_SUM, err);
        if (!status) put(x, train__at(mine, dtype, p.first), summed, p.counts[p.rank], dtype);
    }
    return status;
}

/* ---- messages --------------------------------------------------------------------------------------------- */

static void *place_of(const train__port *x, const train__parcel *p) {
    RAVEL_ASSERT(p->place >= 0 && p->place < x->places && bytes_of(p->count, p->dtype) <= x->message_bytes);
    return chunk_of(x) + chunk_bytes(x) + (size_t)p->place * x->message_bytes;
}

/* Over NCCL the request only queues; its wait puts all that are queued into the stream. */
static ravel_status begin_message(const train__port *x, const ravel_comm *comm, train__message *message,
                                  ravel_error *err) {
    if (!x->wires) return RAVEL_OK;
    message->comm = comm;
    return enter(x, comm, err);
}

ravel_status train__port_send(const train__port *x, ravel_comm *comm, const void *block, const train__parcel *p,
                              train__message *message, ravel_error *err) {
    *message = (train__message){0};
    if (x->host) {
        void *host = place_of(x, p);
        take(x, host, block, p->count, p->dtype);
        block = host;
    }
    ravel_status status = begin_message(x, comm, message, err);
    if (status) return status;
    return ravel_comm_isend(comm, block, p->count, p->dtype, p->peer, p->tag, &message->request, err);
}

ravel_status train__port_receive(const train__port *x, ravel_comm *comm, void *block, const train__parcel *p,
                                 train__message *message, ravel_error *err) {
    *message = (train__message){0};
    void *to = block;
    if (x->host) {
        to = place_of(x, p);
        *message = (train__message){.block = block, .host = to, .bytes = bytes_of(p->count, p->dtype)};
    }
    ravel_status status = begin_message(x, comm, message, err);
    if (status) return status;
    return ravel_comm_irecv(comm, to, p->count, p->dtype, p->peer, p->tag, &message->request, err);
}

ravel_status train__port_launch(const train__port *x, train__message *message, ravel_error *err) {
    if (!x->wires || !message->request) return RAVEL_OK;
    ravel_status status = ravel_request_wait(message->request, err);
    message->request = NULL;
    return status ? status : mark(x, message->comm, message, err);
}

ravel_status train__port_progress(train__message *message, ravel_error *err) {
    int32_t done = 0;
    if (!message->request || message->comm) return RAVEL_OK;
    ravel_status status = ravel_request_test(message->request, &done, err);
    if (done) message->request = NULL;
    return status;
}

ravel_status train__port_end(const train__port *x, train__message *message, ravel_error *err) {
    train__message m = *message;
    *message = (train__message){0};
    if (m.comm && m.request) {
        ravel_status launched = ravel_request_wait(m.request, err);
        return leave(x, m.comm, launched, err);
    }
    if (m.event) return train__wires_order(x->wires, m.comm, m.event, err);
    ravel_status status = ravel_request_wait(m.request, err);
    if (!status && m.bytes) x->kernels->upload(x->device, m.block, m.host, m.bytes);
    return status;
}

/* ---- links ----------------------------------------------------------------------------------------------- */

enum { TAG_RING = 31 }; /* and the tag after it */

train__link train__link_over(ravel_comm *comm, const train__port *port) {
    train__link link = {.port = port};
    train__link_set(&link, comm);
    return link;
}

void train__link_set(train__link *link, ravel_comm *comm) {
    link->comm = comm;
    link->ranks = comm ? ravel_comm_size(comm) : 1;
    link->rank = comm ? ravel_comm_rank(comm) : 0;
    RAVEL_ASSERT(link->ranks >= 1 && link->rank >= 0 && link->rank < link->ranks);
}

ravel_error *train__link_error(train__link *link) {
    return link->status ? NULL : &link->error;
}

void train__link_note(train__link *link, ravel_status status) {
    if (!link->status) link->status = status;
}

/* When a call begins. Through host memory it would first wait for the kernels, whose time is not that of communication:
 * this waits for them before it looks at the clock. */
static double begin(const train__link *link) {
    const train__port *x = link->port;
    if (x->host) (void)x->kernels->sync(x->device, NULL); /* a failure stays, and the next sync reports it */
    return train__now();
}

static void finish(train__link *link, double begun, ravel_status status) {
    train__link_note(link, status);
    link->seconds += train__now() - begun;
}

static int is_idle(const train__link *link) {
    return link->ranks == 1 || link->status;
}

void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype) {
    RAVEL_ASSERT(count >= 0 && (count == 0 || x));
    if (is_idle(link)) return;
    double begun = begin(link);
    finish(link, begun, train__port_sum(link->port, link->comm, x, count, dtype, &link->error));
}

void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype) {
    RAVEL_ASSERT(link->rank >= 0 && link->rank < link->ranks && count >= 0);
    if (is_idle(link)) return;
    double begun = begin(link);
    train__pieces pieces = {.each = count};
    finish(link, begun, train__port_gather(link->port, link->comm, mine, all, pieces, dtype, &link->error));
}

void train__link_scatter(train__link *link, const void *all, void *mine, int64_t count, int32_t dtype) {
    RAVEL_ASSERT(count >= 0 && (link->ranks == 1 || all != mine));
    if (is_idle(link)) return;
    double begun = begin(link);
    train__pieces pieces = {.each = count};
    finish(link, begun, train__port_scatter(link->port, link->comm, all, mine, pieces, dtype, &link->error));
}

/* Straight, or a part of every piece at a time through the chunk: what is sent, then what is received. */
static ravel_status exchange(const train__port *x, ravel_comm *comm, const void *from, const int64_t *send,
                             const int64_t *send_at, void *to, const int64_t *receive, const int64_t *receive_at,
                             int64_t most, int32_t dtype, ravel_error *err) {
    int32_t ranks = ravel_comm_size(comm);
    if (!x->host) {
        ravel_status status = enter(x, comm, err);
        if (!status) status = ravel_comm_alltoallv(comm, from, send, send_at, to, receive, receive_at, dtype, err);
        return leave(x, comm, status, err);
    }
    int64_t each = (int64_t)chunk_bytes(x) / ravel_dtype_bytes(dtype) / (2 * ranks), counts[4][EXCHANGED];
    char *out = chunk_of(x), *in = train__at(out, dtype, each * ranks);
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(each > 0 && ranks <= EXCHANGED);
    for (int64_t first = 0; first < most && !status; first += each) {
        for (int32_t r = 0; r < ranks; r++) {
            counts[0][r] = train__max(0, train__min(each, send[r] - first));
            counts[2][r] = train__max(0, train__min(each, receive[r] - first));
            counts[1][r] = counts[3][r] = r * each;
            take(x, train__at(out, dtype, r * each), train__at(from, dtype, send_at[r] + first), counts[0][r], dtype);
        }
        status = ravel_comm_alltoallv(comm, out, counts[0], counts[1], in, counts[2], counts[3], dtype, err);
        for (int32_t r = 0; r < ranks && !status; r++)
            put(x, train__at(to, dtype, receive_at[r] + first), train__at(in, dtype, r * each), counts[2][r], dtype);
    }
    return status;
}

void train__link_exchange(train__link *link, const void *from, const int64_t *send, const int64_t *send_at, void *to,
                          const int64_t *receive, const int64_t *receive_at, int64_t most, int32_t dtype) {
    if (is_idle(link)) return;
    double begun = begin(link);
    finish(link, begun,
           exchange(link->port, link->comm, from, send, send_at, to, receive, receive_at, most, dtype, &link->error));
}

void train__link_begin_gather(train__link *link, const void *mine, void *all, train__pieces pieces, int32_t dtype,
                              train__message *message) {
    const train__port *x = link->port;
    ravel_error *err = &link->error;
    ravel_status status;
    *message = (train__message){0};
    if (is_idle(link)) return;
    double begun = begin(link);
    if (x->host)
        status = train__port_gather(x, link->comm, mine, all, pieces, dtype, err);
    else if (!x->wires && pieces.counts)
        status = ravel_comm_iallgatherv(link->comm, mine, all, pieces.counts, NULL, dtype, &message->request, err);
    else
        status = straight(x, link->comm, gather, mine, all, pieces, dtype, message, err);
    finish(link, begun, status);
}

void train__link_begin_scatter(train__link *link, const void *all, void *mine, train__pieces pieces, int32_t dtype,
                               train__message *message) {
    const train__port *x = link->port;
    *message = (train__message){0};
    if (is_idle(link)) return;
    double begun = begin(link);
    finish(link, begun,
           x->wires ? straight(x, link->comm, scatter, all, mine, pieces, dtype, message, &link->error)
                    : train__port_scatter(x, link->comm, all, mine, pieces, dtype, &link->error));
}

void train__link_progress(train__link *link, train__message *message) {
    train__link_note(link, train__port_progress(message, train__link_error(link)));
}

void train__link_end(train__link *link, train__message *message) {
    if (!message->request && !message->event) return;
    double begun = train__now();
    finish(link, begun, train__port_end(link->port, message, train__link_error(link)));
}

void train__link_begin(train__link *link, train__shift *shift, int32_t tag, int32_t hop, const void *out, void *in,
                       int64_t count, int32_t dtype) {
    int32_t next = (link->rank + hop) % link->ranks, last = (link->rank + link->ranks - hop) % link->ranks;
    RAVEL_ASSERT(hop > 0 && hop < link->ranks && (count == 0 || out != in));
    RAVEL_ASSERT(tag >= 0 && 2 * tag + 1 < TRAIN__SHIFT_PLACES && count >= 0);
    *shift = (train__shift){0};
    if (is_idle(link)) return;
    double begun = begin(link);
    train__parcel parcel = {count, dtype, last, TAG_RING + tag, 2 * tag};
    link->status = train__port_receive(link->port, link->comm, in, &parcel, &shift->in, &link->error);
    parcel.peer = next;
    parcel.place++;
    if (!link->status) link->status = train__port_send(link->port, link->comm, out, &parcel, &shift->out, &link->error);
    if (!link->status) link->status = train__port_launch(link->port, &shift->in, &link->error);
    if (!link->status) link->status = train__port_launch(link->port, &shift->out, &link->error);
    link->seconds += train__now() - begun;
}

void train__link_finish(train__link *link, train__shift *shift) {
    train__link_end(link, &shift->in);
    train__link_end(link, &shift->out);
}

ravel_status train__link_status(train__link *link, ravel_error *err) {
    ravel_status status = link->status;
    if (status) (void)ravel_error_set(err, status, "%s", link->error.message);
    return status;
}
