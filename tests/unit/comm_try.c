#include "tests/unit/comm_try.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* ---- data that every rank can compute ------------------------------------------------------------------- */

/* The bytes [first, first + count) of what `rank` sends in operation `op`, eight at a time: with a sanitizer, filling and
 * comparing arrays byte by byte would take most of the time of these tests. */
void comm_fill(uint8_t *to, uint64_t op, int32_t rank, int64_t first, int64_t count) {
    uint64_t base = op * 0x9e3779b97f4a7c15u ^ (uint64_t)rank << 40;
    for (int64_t done = 0, part; done < count; done += part) {
        int64_t at = first + done, skip = at % 8;
        uint64_t word = ravel__mix64(base ^ (uint64_t)(at / 8)) >> (skip * 8);
        part = 8 - skip < count - done ? 8 - skip : count - done;
        memcpy(to + done, &word, (size_t)part);
    }
}

ravel_status comm_same(const uint8_t *got, uint64_t op, int32_t rank, int64_t first, int64_t count, const char *what,
                       ravel_error *err) {
    uint8_t want[4096];
    for (int64_t at = 0; at < count; at += (int64_t)sizeof want) {
        int64_t part = count - at < (int64_t)sizeof want ? count - at : (int64_t)sizeof want, i = 0;
        comm_fill(want, op, rank, first + at, part);
        if (memcmp(got + at, want, (size_t)part) == 0) continue;
        while (got[at + i] == want[i]) i++;
        return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: byte %lld from rank %d is %d, not %d", what,
                               (long long)(at + i), rank, got[at + i], want[i]);
    }
    return RAVEL_OK;
}

const int32_t comm_move_types[] = {RAVEL_U8, RAVEL_I32, RAVEL_BF16, RAVEL_F64, RAVEL_C64};
const int32_t comm_reduce_types[] = {RAVEL_I32, RAVEL_I64, RAVEL_U64, RAVEL_F32, RAVEL_F64, RAVEL_BF16,
                                     RAVEL_F16, RAVEL_U8,  RAVEL_I8,  RAVEL_U16, RAVEL_I16, RAVEL_U32};
_Static_assert(sizeof comm_move_types == MOVE_TYPES * sizeof(int32_t), "as many as comm_try.h says");
_Static_assert(sizeof comm_reduce_types == REDUCE_TYPES * sizeof(int32_t), "as many as comm_try.h says");

/* ---- moves ---------------------------------------------------------------------------------------------- */

ravel_status comm_try_broadcast(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t root,
                                int32_t later, ravel_error *err) {
    int64_t bytes = count * ravel_dtype_bytes(dtype);
    uint8_t *data = malloc((size_t)bytes + 1);
    ravel_request *request = NULL;
    if (ravel_comm_rank(comm) == root) comm_fill(data, op, root, 0, bytes);
    data[bytes] = 77;
    ravel_status status = later ? ravel_comm_ibroadcast(comm, data, count, dtype, root, &request, err)
                                : ravel_comm_broadcast(comm, data, count, dtype, root, err);
    if (!status && later) status = ravel_request_wait(request, err);
    if (!status) status = comm_same(data, op, root, 0, bytes, "broadcast", err);
    if (!status && data[bytes] != 77) status = ravel_error_set(err, RAVEL_E_INTERNAL, "broadcast wrote past the end");
    free(data);
    return status;
}

ravel_status comm_try_allgather(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t in_place,
                                ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    int64_t bytes = count * ravel_dtype_bytes(dtype);
    uint8_t *recv = malloc((size_t)(bytes * n) + 1), *send = malloc((size_t)bytes + 1);
    uint8_t *from = in_place ? recv + bytes * me : send;
    comm_fill(from, op, me, 0, bytes);
    ravel_status status = ravel_comm_allgather(comm, from, recv, count, dtype, err);
    for (int32_t r = 0; r < n && !status; r++) status = comm_same(recv + bytes * r, op, r, 0, bytes, "all-gather", err);
    free(send), free(recv);
    return status;
}

/* A count that every rank can compute: often 0, mostly small. */
int64_t comm_count(uint64_t op, int32_t a, int32_t b, int64_t most) {
    uint64_t x = ravel__mix64(op ^ (uint64_t)a << 20 ^ (uint64_t)b << 44);
    if (x % 4 == 0) return 0;
    if (x % 4 == 1) return (int64_t)(x / 4 % 9);
    return (int64_t)(x / 4 % (uint64_t)(most + 1));
}

ravel_status comm_try_allgatherv(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t later,
                                 ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), each = ravel_dtype_bytes(dtype);
    int64_t *counts = calloc((size_t)n, 2 * sizeof *counts), *offsets = counts + n, total = 0;
    for (int32_t r = n - 1; r >= 0; r--) { /* backwards, with gaps: offsets are each rank's own */
        counts[r] = comm_count(op, r, 0, most);
        offsets[r] = total;
        total += counts[r] + me % 3;
    }
    uint8_t *recv = malloc((size_t)(total * each) + 1), *send = malloc((size_t)(counts[me] * each) + 1);
    ravel_request *request = NULL;
    comm_fill(send, op, me, 0, counts[me] * each);
    ravel_status status = later ? ravel_comm_iallgatherv(comm, send, recv, counts, offsets, dtype, &request, err)
                                : ravel_comm_allgatherv(comm, send, recv, counts, offsets, dtype, err);
    if (!status && later) status = ravel_request_wait(request, err);
    for (int32_t r = 0; r < n && !status; r++)
        status = comm_same(recv + offsets[r] * each, op, r, 0, counts[r] * each, "all-gatherv", err);
    free(counts), free(send), free(recv);
    return status;
}

ravel_status comm_try_alltoall(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    int64_t bytes = count * ravel_dtype_bytes(dtype);
    uint8_t *send = malloc((size_t)(bytes * n) + 1), *recv = malloc((size_t)(bytes * n) + 1);
    comm_fill(send, op, me, 0, bytes * n);
    ravel_status status = ravel_comm_alltoall(comm, send, recv, count, dtype, err);
    for (int32_t r = 0; r < n && !status; r++)
        status = comm_same(recv + bytes * r, op, r, bytes * me, bytes, "all-to-all", err);
    free(send), free(recv);
    return status;
}

ravel_status comm_try_alltoallv(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t later,
                                ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), each = ravel_dtype_bytes(dtype);
    int64_t *lists = calloc((size_t)n, 4 * sizeof *lists), sent = 0, received = 0;
    int64_t *sends = lists, *recvs = lists + n, *send_at = lists + 2 * n, *recv_at = lists + 3 * n;
    for (int32_t r = 0; r < n; r++) {
        sends[r] = comm_count(op, me, r, most), recvs[r] = comm_count(op, r, me, most);
        send_at[r] = sent, recv_at[r] = received;
        sent += sends[r], received += recvs[r];
    }
    uint8_t *send = malloc((size_t)(sent * each) + 1), *recv = malloc((size_t)(received * each) + 1);
    ravel_request *request = NULL;
    for (int32_t r = 0; r < n; r++) comm_fill(send + send_at[r] * each, op ^ (uint64_t)r, me, 0, sends[r] * each);
    /* Offsets that say what the default says. */
    const int64_t *so = op % 2 ? send_at : NULL, *ro = op % 3 ? recv_at : NULL;
    ravel_status status = later ? ravel_comm_ialltoallv(comm, send, sends, so, recv, recvs, ro, dtype, &request, err)
                                : ravel_comm_alltoallv(comm, send, sends, so, recv, recvs, ro, dtype, err);
    if (!status && later) status = ravel_request_wait(request, err);
    for (int32_t r = 0; r < n && !status; r++)
        status = comm_same(recv + recv_at[r] * each, op ^ (uint64_t)me, r, 0, recvs[r] * each, "all-to-allv", err);
    free(lists), free(send), free(recv);
    return status;
}

/* ---- reductions ----------------------------------------------------------------------------------------- */

/* Element i of what `rank` brings: integers of all bits, floats of different sizes. */
static void element_at(uint64_t op, int32_t rank, int64_t i, int32_t dtype, void *element) {
    uint64_t x = ravel__mix64(op ^ (uint64_t)rank << 48 ^ (uint64_t)i);
    if (ravel_dtype_kind(dtype) != 'f') {
        memcpy(element, &x, (size_t)ravel_dtype_bytes(dtype));
        return;
    }
    static const double sizes[] = {1, 1e-3, 100, 0.37};
    double value = ((double)(x >> 40) / 0x1p23 - 1) * sizes[x % 4];
    float narrow = (float)value;
    if (dtype == RAVEL_F32)
        memcpy(element, &narrow, sizeof narrow);
    else
        (void)ravel_dtype_store(dtype, element, value);
}

static uint64_t widen(const void *element, int32_t dtype) {
    uint64_t u = 0;
    int32_t bytes = ravel_dtype_bytes(dtype);
    memcpy(&u, element, (size_t)bytes);
    if (ravel_dtype_kind(dtype) == 'i' && bytes < 8 && u >> (8 * bytes - 1)) u |= ~UINT64_C(0) << (8 * bytes);
    return u;
}

static uint64_t combine_integers(uint64_t a, uint64_t b, int32_t dtype, int32_t reduce) {
    if (reduce == RAVEL_SUM) return a + b;
    int b_less = ravel_dtype_kind(dtype) == 'i' ? (int64_t)b < (int64_t)a : b < a;
    return b_less == (reduce == RAVEL_MIN) ? b : a;
}

/* The reference: rank by rank, in the arithmetic that the header promises. */
static void reduced_at(uint64_t op, int32_t ranks, int64_t i, int32_t dtype, int32_t reduce, void *out) {
    uint64_t whole = 0;
    double wide = 0;
    float narrow = 0;
    for (int32_t r = 0; r < ranks; r++) {
        uint64_t room = 0;
        double x = 0;
        element_at(op, r, i, dtype, &room);
        if (ravel_dtype_kind(dtype) != 'f') {
            whole = r ? combine_integers(whole, widen(&room, dtype), dtype, reduce) : widen(&room, dtype);
            continue;
        }
        float f = 0;
        if (dtype == RAVEL_F32) {
            memcpy(&f, &room, sizeof f);
            x = (double)f;
        } else {
            (void)ravel_dtype_load(dtype, &room, &x);
            f = (float)x;
        }
        if (r == 0)
            wide = x, narrow = f;
        else if (reduce == RAVEL_SUM)
            wide += x, narrow += f;
        else if ((reduce == RAVEL_MIN) == (x < wide))
            wide = x, narrow = f;
    }
    if (ravel_dtype_kind(dtype) != 'f')
        memcpy(out, &whole, (size_t)ravel_dtype_bytes(dtype));
    else
        (void)ravel_dtype_store(dtype, out, dtype == RAVEL_F64 ? wide : (double)narrow);
}

/* The reference costs a sum over all ranks for every element of every rank. Sanitizers look for races and bad memory: there
 * every seventh element of a long array is compared, and the last; all of them in the build without. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { COMPARE_STEP = 7 };
#else
enum { COMPARE_STEP = 1 };
#endif

static ravel_status same_reduced(const uint8_t *got, uint64_t op, int32_t ranks, int64_t first, int64_t count,
                                 int32_t dtype, int32_t reduce, const char *what, ravel_error *err) {
    int32_t each = ravel_dtype_bytes(dtype);
    int64_t step = count > 512 ? COMPARE_STEP : 1;
    for (int64_t i = (count - 1) % step; i < count; i += step) {
        uint64_t want = 0, have = 0;
        reduced_at(op, ranks, first + i, dtype, reduce, &want);
        memcpy(&have, got + i * each, (size_t)each);
        if (have != want)
            return ravel_error_set(err, RAVEL_E_INTERNAL, "%s of %s, reduction %d: element %lld is %llx, not %llx",
                                   what, ravel_dtype_name(dtype), reduce, (long long)i, (unsigned long long)have,
                                   (unsigned long long)want);
    }
    return RAVEL_OK;
}

static uint8_t *elements(uint64_t op, int32_t rank, int64_t count, int32_t dtype) {
    int32_t each = ravel_dtype_bytes(dtype);
    uint8_t *data = malloc((size_t)(count * each) + 1);
    for (int64_t i = 0; i < count; i++) element_at(op, rank, i, dtype, data + i * each);
    return data;
}

ravel_status comm_try_allreduce(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t reduce,
                                int32_t in_place, ravel_error *err) {
    uint8_t *send = elements(op, ravel_comm_rank(comm), count, dtype);
    uint8_t *recv = in_place ? send : malloc((size_t)(count * ravel_dtype_bytes(dtype)) + 1);
    ravel_status status = ravel_comm_allreduce(comm, send, recv, count, dtype, reduce, err);
    if (!status) status = same_reduced(recv, op, ravel_comm_size(comm), 0, count, dtype, reduce, "all-reduce", err);
    if (recv != send) free(recv);
    free(send);
    return status;
}

ravel_status comm_try_reduce(ravel_comm *comm, uint64_t op, int64_t count, int32_t dtype, int32_t reduce, int32_t root,
                             ravel_error *err) {
    uint8_t *send = elements(op, ravel_comm_rank(comm), count, dtype);
    int is_root = ravel_comm_rank(comm) == root;
    ravel_status status =
        ravel_comm_reduce(comm, send, is_root ? send : NULL, count, dtype, reduce, root, err); /* in place */
    if (!status && is_root)
        status = same_reduced(send, op, ravel_comm_size(comm), 0, count, dtype, reduce, "reduce", err);
    free(send);
    return status;
}

ravel_status comm_try_reduce_scatter(ravel_comm *comm, uint64_t op, int64_t most, int32_t dtype, int32_t reduce,
                                     int32_t ragged, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    int64_t *counts = calloc((size_t)n, sizeof *counts), total = 0, first = 0;
    for (int32_t r = 0; r < n; r++) {
        counts[r] = ragged ? comm_count(op, r, 1, most) : most;
        if (r < me) first += counts[r];
        total += counts[r];
    }
    uint8_t *send = elements(op, me, total, dtype);
    uint8_t *recv = malloc((size_t)(counts[me] * ravel_dtype_bytes(dtype)) + 1);
    ravel_status status = ragged ? ravel_comm_reduce_scatterv(comm, send, recv, counts, dtype, reduce, err)
                                 : ravel_comm_reduce_scatter(comm, send, recv, most, dtype, reduce, err);
    if (!status) status = same_reduced(recv, op, n, first, counts[me], dtype, reduce, "reduce-scatter", err);
    free(counts), free(send), free(recv);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* To the right neighbour and from the left one, the tags taken in the opposite order. */
ravel_status comm_try_ring(ravel_comm *comm, uint64_t op, int64_t most, ravel_error *err) {
    enum { MESSAGES = 4 };
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), right = (me + 1) % n, left = (me + n - 1) % n;
    ravel_request *requests[2 * MESSAGES] = {NULL};
    uint8_t *sent[MESSAGES], *got[MESSAGES];
    ravel_status status = RAVEL_OK;
    for (int32_t m = 0; m < MESSAGES; m++) {
        int64_t out = comm_count(op, me, m, most), in = comm_count(op, left, m, most);
        sent[m] = malloc((size_t)out + 1);
        got[m] = malloc((size_t)in + 1);
        comm_fill(sent[m], op + (uint64_t)m, me, 0, out);
        if (!status) status = ravel_comm_isend(comm, sent[m], out, RAVEL_U8, right, m / 2, &requests[m], err);
    }
    for (int32_t m = MESSAGES / 2 - 1; m >= 0; m--) /* tag 1 first; within a tag they keep their order */
        for (int32_t k = 0; k < 2 && !status; k++) {
            int32_t which = 2 * m + k;
            int64_t in = comm_count(op, left, which, most);
            status = ravel_comm_irecv(comm, got[which], in, RAVEL_U8, left, m, &requests[MESSAGES + which], err);
        }
    ravel_status waited = ravel_request_wait_all(requests, 2 * MESSAGES, err);
    if (!status) status = waited;
    for (int32_t m = 0; m < MESSAGES; m++) {
        int64_t in = comm_count(op, left, m, most);
        if (!status) status = comm_same(got[m], op + (uint64_t)m, left, 0, in, "message", err);
        free(sent[m]), free(got[m]);
    }
    return status;
}

/* Blocking, from even to odd and back. */
ravel_status comm_try_ping_pong(ravel_comm *comm, uint64_t op, int64_t most, ravel_error *err) {
    int32_t me = ravel_comm_rank(comm), peer = me ^ 1, low = me & ~1;
    if (peer >= ravel_comm_size(comm)) return RAVEL_OK;
    int64_t bytes = comm_count(op, low, 0, most);
    uint8_t *data = malloc((size_t)bytes + 1);
    ravel_status status;
    if (me == low) {
        comm_fill(data, op, low, 0, bytes);
        status = ravel_comm_send(comm, data, bytes, RAVEL_U8, peer, 5, err);
        memset(data, 0, (size_t)bytes);
        if (!status) status = ravel_comm_recv(comm, data, bytes, RAVEL_U8, peer, 6, err);
    } else {
        status = ravel_comm_recv(comm, data, bytes, RAVEL_U8, peer, 5, err);
        if (!status) status = ravel_comm_send(comm, data, bytes, RAVEL_U8, peer, 6, err);
    }
    if (!status) status = comm_same(data, op, low, 0, bytes, "ping-pong", err);
    free(data);
    return status;
}

/* A barrier that was begun is not over before everybody has begun it: rank 0 begins when it has heard from all others,
 * who have looked by then. Where collectives happen in their start (callbacks) there is nothing to look at. */
ravel_status comm_try_ibarrier(ravel_comm *comm, ravel_error *err) {
    int32_t me = ravel_comm_rank(comm), n = ravel_comm_size(comm), done = 0, word = 0;
    int waits = strcmp(ravel_comm_kind(comm), "callbacks") == 0;
    ravel_request *request = NULL;
    ravel_status status = RAVEL_OK;
    for (int32_t r = 1; me == 0 && !waits && r < n && !status; r++)
        status = ravel_comm_recv(comm, &word, 1, RAVEL_I32, r, 9, err);
    if (!status) status = ravel_comm_ibarrier(comm, &request, err);
    if (me && !waits && !status) status = ravel_request_test(request, &done, err);
    if (done) return ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d: a barrier was over before all had come", me);
    if (me && !waits && !status) status = ravel_comm_send(comm, &word, 1, RAVEL_I32, 0, 9, err);
    ravel_status waited = ravel_request_wait(request, status ? NULL : err);
    return status ? status : waited;
}
