#include "tests/unit/comm_body.h"

#include "base/rng.h"
#include "comm/backend.h"
#include "tests/unit/comm_try.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                          \
    do {                                   \
        ravel_status try_status = (call);  \
        if (try_status) return try_status; \
    } while (0)

/* ---- bodies --------------------------------------------------------------------------------------------- */

/* Every operation, at sizes around the borders that implementations have. */
static ravel_status every_operation(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    static const int64_t counts[] = {0, 1, 3, 64, 1000, 4097, 33333};
    uint64_t op = job->seed;
    int32_t n = ravel_comm_size(comm);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t count = counts[i] > job->most ? job->most : counts[i];
        int32_t move = comm_move_types[i % MOVE_TYPES], sum = comm_reduce_types[i % REDUCE_TYPES], later = i % 2;
        TRY(ravel_comm_barrier(comm, err));
        TRY(comm_try_ibarrier(comm, err));
        TRY(comm_try_broadcast(comm, ++op, count, move, (int32_t)i % n, later, err));
        TRY(comm_try_allgather(comm, ++op, count, move, i % 2, err));
        TRY(comm_try_allgatherv(comm, ++op, count, move, later, err));
        TRY(comm_try_alltoall(comm, ++op, count, move, err));
        TRY(comm_try_alltoallv(comm, ++op, count, move, later, err));
        TRY(comm_try_allreduce(comm, ++op, count, sum, RAVEL_SUM, i % 2, err));
        TRY(comm_try_reduce(comm, ++op, count, sum, RAVEL_MAX, (int32_t)i % n, err));
        TRY(comm_try_reduce_scatter(comm, ++op, count / n, sum, RAVEL_MIN, i % 2, err));
        TRY(comm_try_ring(comm, ++op, count, err));
        TRY(comm_try_ping_pong(comm, ++op, count, err));
    }
    return RAVEL_OK;
}

static ravel_status every_reduction(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    uint64_t op = job->seed + 1000;
    for (int32_t t = 0; t < REDUCE_TYPES; t++)
        for (int32_t reduce = RAVEL_SUM; reduce <= RAVEL_MAX; reduce++) {
            TRY(comm_try_allreduce(comm, ++op, 7, comm_reduce_types[t], reduce, t % 2, err));
            TRY(comm_try_allreduce(comm, ++op, 2049, comm_reduce_types[t], reduce, !(t % 2), err));
            TRY(comm_try_reduce(comm, ++op, 100, comm_reduce_types[t], reduce, t % ravel_comm_size(comm), err));
            TRY(comm_try_reduce_scatter(comm, ++op, 65, comm_reduce_types[t], reduce, t % 2, err));
        }
    float nan = __builtin_nanf(""), values[2] = {ravel_comm_rank(comm) == 0 ? nan : 1, 1}, result[2];
    for (int32_t reduce = RAVEL_MIN; reduce <= RAVEL_MAX; reduce++) {
        TRY(ravel_comm_allreduce(comm, values, result, 2, RAVEL_F32, reduce, err));
        if (result[0] == result[0] || result[1] != 1)
            return ravel_error_set(err, RAVEL_E_INTERNAL, "a NaN got lost in a minimum or maximum");
    }
    return RAVEL_OK;
}

/* Long arrays of odd sizes. */
static ravel_status large_arrays(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    int64_t count = 1300001;
    uint64_t op = job->seed + 2000;
    TRY(comm_try_broadcast(comm, ++op, count, RAVEL_I32, ravel_comm_size(comm) - 1, 1, err));
    TRY(comm_try_allgather(comm, ++op, count / ravel_comm_size(comm) + 1, RAVEL_I16, 0, err));
    TRY(comm_try_alltoallv(comm, ++op, 2 * count / ravel_comm_size(comm), RAVEL_U8, 0, err));
    TRY(comm_try_allreduce(comm, ++op, count / 5, RAVEL_F32, RAVEL_SUM, 1, err));
    TRY(comm_try_reduce_scatter(comm, ++op, count / 5 / ravel_comm_size(comm), RAVEL_I64, RAVEL_SUM, 1, err));
    TRY(comm_try_ring(comm, ++op, count, err));
    return RAVEL_OK;
}

static ravel_status one_random(ravel_comm *comm, uint64_t op, int64_t most, ravel_error *err) {
    uint64_t x = ravel__mix64(op);
    int32_t n = ravel_comm_size(comm), later = x >> 8 & 1, root = (int32_t)(x >> 16 & 0xffff) % n;
    int32_t move = comm_move_types[(x >> 32 & 0xff) % MOVE_TYPES],
            sum = comm_reduce_types[(x >> 40 & 0xff) % REDUCE_TYPES];
    int32_t reduce = (int32_t)(x >> 48 & 0xff) % 3;
    int64_t count = comm_count(op, 9, 9, most);
    switch (x % 12) {
    case 0: return ravel_comm_barrier(comm, err);
    case 1: return comm_try_broadcast(comm, op, count, move, root, later, err);
    case 2: return comm_try_allgather(comm, op, count, move, later, err);
    case 3:
    case 4: return comm_try_allgatherv(comm, op, most, move, later, err);
    case 5: return comm_try_alltoall(comm, op, count, move, err);
    case 6:
    case 7: return comm_try_alltoallv(comm, op, most, move, later, err);
    case 8: return comm_try_allreduce(comm, op, count, sum, reduce, later, err);
    case 9: return comm_try_reduce(comm, op, count, sum, reduce, root, err);
    case 10: return comm_try_reduce_scatter(comm, op, most / n, sum, reduce, later, err);
    default: return later ? comm_try_ring(comm, op, most, err) : comm_try_ping_pong(comm, op, most, err);
    }
}

/* Random operations on the whole, and on random parts of it, and on parts of parts. */
static ravel_status random_operations(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    ravel__rng rng = ravel__rng_seed(job->seed);
    ravel_comm *part = NULL, *inner = NULL;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < job->rounds && !status; i++) {
        uint64_t draw = ravel__rng_next(&rng);
        int32_t colours = 1 + (int32_t)(draw >> 8 & 3), me = ravel_comm_rank(comm);
        if (draw % 8 == 0) { /* new parts */
            int32_t colour = (int32_t)(ravel__mix64(draw ^ (uint64_t)me) % (uint64_t)(colours + 1)) - 1;
            int32_t key = (int32_t)(ravel__mix64(draw + (uint64_t)me) & 7);
            ravel_comm_free(inner);
            ravel_comm_free(part);
            inner = part = NULL;
            status = ravel_comm_split(comm, colour, key, &part, err);
            if (!status && part && draw >> 16 & 1)
                status = ravel_comm_split(part, ravel_comm_rank(part) % 2, -ravel_comm_rank(part), &inner, err);
        } else if (draw % 8 < 4) {
            status = one_random(comm, draw, job->most, err);
        } else if (part) { /* the parts do not run in step: each draws by its own members */
            uint64_t op = ravel__mix64(draw ^ (uint64_t)ravel__comm_world_rank(part, 0));
            status = one_random(part, op, job->most, err);
            if (!status && inner)
                status = one_random(inner, ravel__mix64(op ^ (uint64_t)ravel__comm_world_rank(inner, 0) << 3),
                                    job->most, err);
        }
    }
    ravel_comm_free(inner);
    ravel_comm_free(part);
    return status;
}

/* Many operations under way at once, waited for in another order, some by testing. */
static ravel_status overlapped(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    enum { MANY = 24, BYTES = 3000 };
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    ravel_request *requests[MANY] = {NULL};
    uint8_t *data = calloc(MANY, BYTES);
    ravel_status status = RAVEL_OK;
    for (int32_t round = 0; round < 3 && !status; round++) {
        uint64_t op = job->seed + 5000 + (uint64_t)round * MANY;
        for (int32_t i = 0; i < MANY && !status; i++) {
            if (i % n == me) comm_fill(data + i * BYTES, op + (uint64_t)i, me, 0, BYTES);
            status = ravel_comm_ibroadcast(comm, data + i * BYTES, BYTES, RAVEL_U8, i % n, &requests[i], err);
        }
        for (int32_t k = 0; k < MANY && !status; k++) {
            int32_t i = (k * 7 + me) % MANY, done = 0; /* 7 and MANY have no common factor */
            while (k % 3 == 0 && !done && !status) status = ravel_request_test(requests[i], &done, err);
            if (k % 3 && !status) status = ravel_request_wait(requests[i], err);
            requests[i] = NULL;
            if (!status) status = comm_same(data + i * BYTES, op + (uint64_t)i, i % n, 0, BYTES, "ibroadcast", err);
        }
    }
    if (status) ravel_request_wait_all(requests, MANY, NULL);
    free(data);
    return status;
}

/* Several messages to the next rank and from the one before, begun in one order of tags by the sender, in another by the
 * receiver, and waited for in a third. Two have the same tag: they stay in order. */
static ravel_status tag_orders(ravel_comm *comm, void *user, ravel_error *err) {
    enum { MANY = 7, BYTES = 5000 };
    static const int32_t tags[MANY] = {5, 0, 9, 0, 2, 7, 1}; /* 1 goes before 3 in all orders */
    static const int32_t sending[2][MANY] = {{0, 1, 2, 3, 4, 5, 6}, {6, 5, 4, 1, 2, 3, 0}};
    static const int32_t receiving[2][MANY] = {{6, 1, 4, 0, 3, 5, 2}, {1, 0, 5, 3, 6, 2, 4}};
    const comm_job *job = user;
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), next = (me + 1) % n, last = (me + n - 1) % n;
    ravel_request *requests[2 * MANY] = {NULL};
    uint8_t *data = calloc((size_t)2 * MANY, BYTES);
    ravel_status status = RAVEL_OK;
    for (int32_t round = 0; round < 4 && !status; round++) {
        uint64_t op = job->seed + 9000 + (uint64_t)round * MANY;
        for (int32_t k = 0; k < MANY && !status; k++) {
            int32_t s = sending[round % 2][k], r = receiving[round / 2][k];
            int64_t bytes[2] = {(s * 811) % BYTES, (r * 811) % BYTES};
            comm_fill(data + s * BYTES, op + (uint64_t)s, me, 0, bytes[0]);
            status = ravel_comm_isend(comm, data + s * BYTES, bytes[0], RAVEL_U8, next, tags[s], &requests[s], err);
            if (!status)
                status = ravel_comm_irecv(comm, data + (MANY + r) * BYTES, bytes[1], RAVEL_U8, last, tags[r],
                                          &requests[MANY + r], err);
        }
        for (int32_t k = 0; k < 2 * MANY && !status; k++) {
            int32_t i = (k * 5 + me) % (2 * MANY); /* 5 and 14 have no common factor */
            status = ravel_request_wait(requests[i], err);
            requests[i] = NULL;
        }
        for (int32_t r = 0; r < MANY && !status; r++)
            status = comm_same(data + (MANY + r) * BYTES, op + (uint64_t)r, last, 0, (r * 811) % BYTES, "tags", err);
    }
    if (status) ravel_request_wait_all(requests, 2 * MANY, NULL);
    free(data);
    return status;
}

/* A background thread with a communicator of its own, as a prefetcher has. */
typedef struct helper {
    ravel_comm *comm;
    const comm_job *job;
    ravel_status status;
    ravel_error err;
} helper;

static void *help(void *argument) {
    helper *h = argument;
    for (int32_t i = 0; i < h->job->rounds && !h->status; i++)
        h->status = one_random(h->comm, h->job->seed * 7 + (uint64_t)i, h->job->most, &h->err);
    return NULL;
}

static ravel_status two_threads(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    helper h = {NULL, job, RAVEL_OK, RAVEL_ERROR_INIT};
    pthread_t thread;
    ravel_status status = RAVEL_OK;
    if (job->one_thread) return RAVEL_OK;
    TRY(ravel_comm_dup(comm, &h.comm, err));
    if (pthread_create(&thread, NULL, help, &h) != 0) return ravel_error_set(err, RAVEL_E_MEMORY, "no thread");
    for (int32_t i = 0; i < job->rounds && !status; i++)
        status = one_random(comm, job->seed * 9 + (uint64_t)i, job->most, err);
    if (status) ravel_comm_abort(comm, err); /* so that the helper ends */
    pthread_join(thread, NULL);
    if (!status && h.status) status = ravel_error_set(err, h.status, "helper: %s", h.err.message);
    ravel_comm_free(h.comm);
    return status;
}

/* ---- ranks that disagree -------------------------------------------------------------------------------- */

static ravel_status expect_mismatch(ravel_status status, const ravel_error *seen, const char *what, ravel_error *err) {
    if (status == RAVEL_E_MISMATCH && seen->message[0]) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s (%s), not E_MISMATCH", what, ravel_status_name(status),
                           seen->message);
}

/* The last rank asks for something else; everybody is told, and the communicator goes on. */
static ravel_status disagreement(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm), odd = me == n - 1;
    if (n == 1 || job->unchecked) return RAVEL_OK;
    int32_t *a = calloc((size_t)n, 64 * sizeof *a), *b = calloc((size_t)n, 64 * sizeof *b);
    int64_t *counts = calloc((size_t)n, 2 * sizeof *counts), *others = counts + n;
    for (int32_t r = 0; r < n; r++) counts[r] = others[r] = 2;
    if (odd) others[0] = 3, others[n - 1] = 1; /* as much in all, but dealt out otherwise */
    ravel_status status = RAVEL_OK;
    for (int32_t which = 0; which < 9 && !status; which++) {
        ravel_error seen = RAVEL_ERROR_INIT;
        ravel_status got = RAVEL_OK;
        const char *what = "?";
        switch (which) {
        case 0:
            what = "size of a broadcast", got = ravel_comm_broadcast(comm, a, odd ? 8 : 10, RAVEL_I32, 0, &seen);
            break;
        case 1: what = "root", got = ravel_comm_broadcast(comm, a, 8, RAVEL_I32, odd ? n - 1 : 0, &seen); break;
        case 2: what = "dtype", got = ravel_comm_broadcast(comm, a, 8, odd ? RAVEL_F32 : RAVEL_I32, 0, &seen); break;
        case 3:
            what = "operation";
            got = odd ? ravel_comm_barrier(comm, &seen) : ravel_comm_broadcast(comm, a, 8, RAVEL_I32, 0, &seen);
            break;
        case 4: what = "all-gather", got = ravel_comm_allgatherv(comm, a, b, others, NULL, RAVEL_I32, &seen); break;
        case 5:
            what = "all-to-all";
            got = ravel_comm_alltoallv(comm, a, others, NULL, b, counts, NULL, RAVEL_I32, &seen);
            break;
        case 6:
            what = "reduction";
            got = ravel_comm_allreduce(comm, a, b, 4, RAVEL_I32, odd ? RAVEL_MIN : RAVEL_SUM, &seen);
            break;
        case 7:
            what = "size of a reduction", got = ravel_comm_allreduce(comm, a, b, odd ? 5 : 4, RAVEL_I32, 0, &seen);
            break;
        case 8:
            what = "reduce-scatter";
            got = ravel_comm_reduce_scatterv(comm, a, b, others, RAVEL_I32, RAVEL_SUM, &seen);
            break;
        }
        status = expect_mismatch(got, &seen, what, err);
        if (!status) status = comm_try_allreduce(comm, job->seed + (uint64_t)which, 5, RAVEL_I64, RAVEL_SUM, 0, err);
    }
    free(a), free(b), free(counts);
    return status;
}

/* ---- arguments ------------------------------------------------------------------------------------------ */

static ravel_status expect_argument(ravel_status status, const ravel_error *seen, const char *words, ravel_error *err) {
    if ((status == RAVEL_E_ARGUMENT || status == RAVEL_E_OVERFLOW) && strstr(seen->message, words)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: \"%s\" does not say \"%s\"", ravel_status_name(status),
                           seen->message, words);
}

#define REFUSED(call, words)                             \
    do {                                                 \
        ravel_error seen = RAVEL_ERROR_INIT, *e = &seen; \
        ravel_status got = (call);                       \
        TRY(expect_argument(got, &seen, words, err));    \
    } while (0)

static ravel_status bad_arguments(ravel_comm *comm, void *user, ravel_error *err) {
    const comm_job *job = user;
    int32_t n = ravel_comm_size(comm), x[4] = {0};
    int64_t *huge = calloc((size_t)n, sizeof *huge);
    for (int32_t r = 0; r < n; r++) huge[r] = INT64_MAX / 4;
    ravel_status status = RAVEL_OK;
    huge[0] = INT64_MAX / 2;
    REFUSED(ravel_comm_broadcast(comm, x, 1, 99, 0, e), "dtype 99");
    REFUSED(ravel_comm_broadcast(comm, x, -1, RAVEL_I32, 0, e), "count is -1");
    REFUSED(ravel_comm_broadcast(comm, x, 1, RAVEL_I32, n, e), "does not exist");
    REFUSED(ravel_comm_broadcast(comm, NULL, 1, RAVEL_I32, 0, e), "NULL");
    REFUSED(ravel_comm_broadcast(comm, x, INT64_MAX, RAVEL_I32, 0, e), "fit memory");
    REFUSED(ravel_comm_allreduce(comm, x, x, 1, RAVEL_C64, RAVEL_SUM, e), "cannot be reduced");
    REFUSED(ravel_comm_allreduce(comm, x, x, 1, RAVEL_I32, 3, e), "RAVEL_SUM");
    REFUSED(ravel_comm_send(comm, x, 1, RAVEL_I32, -1, 0, e), "peer -1");
    REFUSED(ravel_comm_send(comm, x, 1, RAVEL_I32, 0, RAVEL_TAG_MAX + 1, e), "tag");
    REFUSED(ravel_comm_alltoallv(comm, x, NULL, NULL, x, NULL, NULL, RAVEL_I32, e), "counts are NULL");
    REFUSED(ravel_comm_allgatherv(comm, x, x, huge, NULL, RAVEL_I32, e), "fit");
    REFUSED(ravel_comm_reduce_scatterv(comm, x, x, huge, RAVEL_I32, RAVEL_SUM, e), "fit");
    free(huge);
    if (!status) status = comm_try_allreduce(comm, job->seed, 5, RAVEL_I64, RAVEL_SUM, 0, err); /* still in step */
    return status;
}

/* ---- splitting ------------------------------------------------------------------------------------------ */

static ravel_status splitting(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    ravel_comm *rows = NULL, *reversed = NULL, *none = NULL, *again = NULL;
    (void)user;
    TRY(ravel_comm_split(comm, me / 2, me, &rows, err));
    TRY(ravel_comm_split(comm, 0, -me, &reversed, err));
    TRY(ravel_comm_split(comm, me == 0 ? -1 : 3, 0, &none, err));
    TRY(ravel_comm_dup(comm, &again, err));
    int32_t wrong = ravel_comm_rank(rows) != me % 2 || ravel_comm_size(rows) != (me / 2 * 2 + 1 < n ? 2 : 1) ||
                    ravel_comm_rank(reversed) != n - 1 - me || ravel__comm_world_rank(reversed, 0) != n - 1 ||
                    (none == NULL) != (me == 0) || (none && ravel_comm_size(none) != n - 1) ||
                    ravel_comm_size(again) != n || ravel_comm_rank(again) != me;
    ravel_status status = RAVEL_OK;
    ravel_comm_set_name(rows, "rows and not columns"); /* cut at 15 characters */
    wrong |= strcmp(ravel_comm_name(rows), "rows and not co") != 0 || strcmp(ravel_comm_name(reversed), "sub") != 0 ||
             strcmp(ravel_comm_name(again), ravel_comm_name(comm)) != 0;
    if (wrong) status = ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d: split gave wrong ranks, sizes or names", me);
    int32_t rank = ravel_comm_rank(reversed), first = -1;
    if (!status) {
        first = rank;
        status = ravel_comm_broadcast(reversed, &first, 1, RAVEL_I32, n - 1, err);
        if (!status && first != n - 1)
            status = ravel_error_set(err, RAVEL_E_INTERNAL, "broadcast in a part went wrong");
    }
    if (!status) status = ravel_comm_barrier(rows, err);
    if (!status && none) status = ravel_comm_barrier(none, err);
    if (!status) status = ravel_comm_barrier(again, err);
    ravel_comm_free(rows);
    ravel_comm_free(reversed);
    ravel_comm_free(none);
    ravel_comm_free(again);
    return status ? status : ravel_comm_barrier(comm, err);
}

const comm_body comm_bodies[] = {
    {"every operation", every_operation},
    {"every reduction", every_reduction},
    {"random operations", random_operations},
    {"overlapped", overlapped},
    {"tag orders", tag_orders},
    {"two threads", two_threads},
    {"disagreement", disagreement},
    {"bad arguments", bad_arguments},
    {"splitting", splitting},
    {"large arrays", large_arrays},
    {NULL, NULL},
};
