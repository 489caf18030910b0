#include "train/model/exchange.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <string.h>

enum { CHUNK = 4 << 20, LINE = 64 };

/* ---- the staging memory:  counts [ranks] | chunk | places ---------------------------------------------- */

static size_t counts_bytes(const train__exchange *x) {
    return ((size_t)x->ranks * sizeof(int64_t) + LINE - 1) / LINE * LINE;
}

static size_t chunk_bytes(const train__exchange *x) {
    return x->chunk_bytes ? x->chunk_bytes : CHUNK;
}

size_t train__exchange_bytes(const train__exchange *x) {
    if (x->kernels->host_memory || x->wires || x->ranks <= 1) return 0;
    return counts_bytes(x) + chunk_bytes(x) + (size_t)x->places * x->message_bytes;
}

static char *chunk_of(const train__exchange *x) {
    return (char *)x->host + counts_bytes(x);
}

static size_t bytes_of(int64_t count, int32_t dtype) {
    return (size_t)(count * ravel_dtype_bytes(dtype));
}

/* To and from the host. A device that has failed moves nothing: what waits for it here is found by the next sync. */
static void take(const train__exchange *x, void *host, const void *block, int64_t count, int32_t dtype) {
    if (count) x->kernels->download(x->device, host, block, bytes_of(count, dtype));
}

static void put(const train__exchange *x, void *block, const void *host, int64_t count, int32_t dtype) {
    if (count) x->kernels->upload(x->device, block, host, bytes_of(count, dtype));
}

/* ---- around an operation that goes straight to the communicator -------------------------------------------- */

static ravel_status enter(const train__exchange *x, const ravel_comm *comm, ravel_error *err) {
    TRAIN_ASSERT(!x->wires || strcmp(ravel_comm_kind(comm), "nccl") == 0);
    return x->wires ? train__wires_enter(x->wires, comm, err) : RAVEL_OK;
}

static ravel_status leave(const train__exchange *x, const ravel_comm *comm, ravel_status status, ravel_error *err) {
    return x->wires && !status ? train__wires_leave(x->wires, comm, err) : status;
}

static ravel_status mark(const train__exchange *x, const ravel_comm *comm, train__message *message, ravel_error *err) {
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
static ravel_status straight(const train__exchange *x, ravel_comm *comm, collective *run, const void *from, void *to,
                             train__pieces pieces, int32_t dtype, train__message *message, ravel_error *err) {
    ravel_status status = enter(x, comm, err);
    if (!status) status = run(comm, from, to, pieces, dtype, err);
    return message && x->wires && !status ? mark(x, comm, message, err) : leave(x, comm, status, err);
}

double train__exchange_clock(const train__exchange *x) {
    if (x->host) (void)x->kernels->sync(x->device, NULL); /* a failure stays, and the next sync reports it */
    return train__now();
}

/* ---- collectives ------------------------------------------------------------------------------------------ */

ravel_status train__exchange_sum(const train__exchange *x, ravel_comm *comm, void *data, int64_t count, int32_t dtype,
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
    const train__exchange *x;
    train__pieces pieces;
    int32_t ranks, rank, dtype;
    int64_t first, most;
    int64_t *counts; /* [ranks] of this part */
} part;

static part parts_of(const train__exchange *x, const ravel_comm *comm, train__pieces pieces, int32_t dtype) {
    part p = {.x = x, .pieces = pieces, .dtype = dtype, .counts = x->host};
    p.ranks = ravel_comm_size(comm);
    p.rank = ravel_comm_rank(comm);
    TRAIN_ASSERT(p.ranks <= x->ranks);
    p.most = (int64_t)chunk_bytes(x) / ravel_dtype_bytes(dtype) / (p.ranks + 1); /* a sum lies behind them */
    TRAIN_ASSERT(p.most > 0);
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

ravel_status train__exchange_gather(const train__exchange *x, ravel_comm *comm, const void *mine, void *all,
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

ravel_status train__exchange_scatter(const train__exchange *x, ravel_comm *comm, const void *all, void *mine,
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

/* ---- beside kernels --------------------------------------------------------------------------------------- */

ravel_status train__exchange_begin_gather(const train__exchange *x, ravel_comm *comm, const void *mine, void *all,
                                          train__pieces pieces, int32_t dtype, train__message *message,
                                          ravel_error *err) {
    *message = (train__message){0};
    if (x->host) return train__exchange_gather(x, comm, mine, all, pieces, dtype, err);
    if (!x->wires && pieces.counts)
        return ravel_comm_iallgatherv(comm, mine, all, pieces.counts, NULL, dtype, &message->request, err);
    return straight(x, comm, gather, mine, all, pieces, dtype, message, err);
}

ravel_status train__exchange_begin_scatter(const train__exchange *x, ravel_comm *comm, const void *all, void *mine,
                                           train__pieces pieces, int32_t dtype, train__message *message,
                                           ravel_error *err) {
    *message = (train__message){0};
    if (!x->wires) return train__exchange_scatter(x, comm, all, mine, pieces, dtype, err);
    return straight(x, comm, scatter, all, mine, pieces, dtype, message, err);
}

/* ---- messages --------------------------------------------------------------------------------------------- */

static void *place_of(const train__exchange *x, const train__parcel *p) {
    TRAIN_ASSERT(p->place >= 0 && p->place < x->places && bytes_of(p->count, p->dtype) <= x->message_bytes);
    return chunk_of(x) + chunk_bytes(x) + (size_t)p->place * x->message_bytes;
}

/* Over NCCL the request only queues; its wait puts all that are queued into the stream. */
static ravel_status begin_message(const train__exchange *x, const ravel_comm *comm, train__message *message,
                                  ravel_error *err) {
    if (!x->wires) return RAVEL_OK;
    message->comm = comm;
    return enter(x, comm, err);
}

ravel_status train__exchange_send(const train__exchange *x, ravel_comm *comm, const void *block, const train__parcel *p,
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

ravel_status train__exchange_receive(const train__exchange *x, ravel_comm *comm, void *block, const train__parcel *p,
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

ravel_status train__exchange_launch(const train__exchange *x, train__message *message, ravel_error *err) {
    if (!x->wires || !message->request) return RAVEL_OK;
    ravel_status status = ravel_request_wait(message->request, err);
    message->request = NULL;
    return status ? status : mark(x, message->comm, message, err);
}

ravel_status train__exchange_progress(train__message *message, ravel_error *err) {
    int32_t done = 0;
    if (!message->request || message->comm) return RAVEL_OK;
    ravel_status status = ravel_request_test(message->request, &done, err);
    if (done) message->request = NULL;
    return status;
}

ravel_status train__exchange_end(const train__exchange *x, train__message *message, ravel_error *err) {
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
